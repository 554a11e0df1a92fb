/* exporter/metrics/workload_cgroup.h - what the kernel counts for one workload: the CPU time, memory, I/O and pressure of its own cgroup.
 *
 * Rules:
 *  1. what v2 has is taken from there, the rest from v1; a value that neither has is absent, never zero
 *  2. only the owner's own folder is read (cgroup.h), which counts all below it: what a workload makes there adds to its own
 *  3. a file that is open stays the cgroup's for which it was opened: one that is made anew under the same name is another
 *  4. files stay open as long as there are not too many of them; the others are opened each time */
#ifndef TOLLGATE_WORKLOAD_CGROUP_H
#define TOLLGATE_WORKLOAD_CGROUP_H

#include "exporter/identity/cgroup.h"
#include "exporter/source/gpu_source.h"

enum workload_value {
	WORKLOAD_CPU_USER_NS,
	WORKLOAD_CPU_SYSTEM_NS,
	WORKLOAD_MEMORY_BYTES,
	WORKLOAD_MEMORY_WORKING_SET_BYTES, /* without the file pages that are dropped first */
	WORKLOAD_MEMORY_ANON_BYTES,
	WORKLOAD_MEMORY_PEAK_BYTES,
	WORKLOAD_MEMORY_LIMIT_BYTES, /* ABSENT: none */
	WORKLOAD_OOM_KILLS,
	WORKLOAD_IO_READ_BYTES,
	WORKLOAD_IO_WRITE_BYTES,
	WORKLOAD_PRESSURE_CPU_SOME_NS,
	WORKLOAD_PRESSURE_CPU_FULL_NS,
	WORKLOAD_PRESSURE_MEMORY_SOME_NS,
	WORKLOAD_PRESSURE_MEMORY_FULL_NS,
	WORKLOAD_PRESSURE_IO_SOME_NS,
	WORKLOAD_PRESSURE_IO_FULL_NS,
	WORKLOAD_VALUES
};

enum { HIERARCHY_V2, HIERARCHY_CPUACCT, HIERARCHY_MEMORY, HIERARCHY_BLKIO, HIERARCHIES };
#define WORKLOAD_FILES 17 /* of v2 and v1 together */

/* Where the node's cgroups are, and how many files are kept open. */
struct workload_mounts {
	int fds[HIERARCHIES]; /* -1: there is none */
	size_t kept, keep_max;
	int64_t failures; /* files that are there and could not be read */
};
/* `root` is "/sys/fs/cgroup": v2 itself, or a folder with v1's hierarchies and perhaps v2 as "unified". */
void workload_mounts_init(struct workload_mounts *m, const char *root, size_t keep_max);
void workload_mounts_fini(struct workload_mounts *m);

struct workload_cgroup {
	int folders[HIERARCHIES]; /* -1: none */
	struct workload_file {
		int fd;
		bool missing;
	} files[WORKLOAD_FILES];
};

/* Opens the own folders of the owner that a text of /proc/PID/cgroup names. False: none can be opened, and there is nothing to
 * close. */
MUST_CHECK bool workload_cgroup_open(struct workload_mounts *m, const struct cgroup_base *base, const char *text,
                                     size_t len, const struct cgroup_owner *owner, struct workload_cgroup *ret);
void workload_cgroup_close(struct workload_mounts *m, struct workload_cgroup *c);
/* False: the cgroup is gone. */
MUST_CHECK bool workload_cgroup_read(struct workload_mounts *m, struct workload_cgroup *c,
                                     int64_t ret[WORKLOAD_VALUES]);

#endif
