/* exporter/metrics/workload.h - CPU, memory, I/O and pressure of the workloads on this node's GPUs, read from their cgroups by a thread.
 *
 * Rules:
 *  1. a workload's cgroup is its own folder (cgroup.h): the container, the Slurm job, the user's slice. It is found through one of its
 *     processes on a GPU, and accepted only if that folder names the same pod, job or user
 *  2. it stays this cgroup until that is removed; then it is searched again. A workload without one has no values
 *  3. values are read every WORKLOAD_INTERVAL_NS, those of a new workload at once; they expire after WORKLOAD_STALE_NS
 *  4. a workload that has neither a process nor an allocation in a tick is dropped with that tick
 *  5. of two workloads with the same labels the one that came first is shown
 *  6. nothing waits for the thread: a file that hangs costs values, not a tick, and not the end of the program
 * Rules of the files of a cgroup (workload_cgroup.c):
 *  7. values are taken from cgroup v2 where it has them, the rest from v1; a value that neither has is absent, never zero
 *  8. only the owner's own folder is read, which includes everything below it: cgroups that a workload creates count as its own
 *  9. an open file stays with the cgroup for which it was opened: a cgroup created anew under the same name is another one
 * 10. files stay open up to a limit; beyond it they are opened for each reading */
#ifndef TOLLGATE_WORKLOAD_H
#define TOLLGATE_WORKLOAD_H

#include "exporter/identity/cgroup.h"
#include "exporter/meter/meter.h"

#define WORKLOAD_INTERVAL_NS INT64_C(5000000000)
#define WORKLOAD_STALE_NS (4 * WORKLOAD_INTERVAL_NS)
#define WORKLOADS_MAX 1024u /* with values; further ones have none */

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

struct workload_options {
	const char *proc_root;   /* "/proc" */
	const char *cgroup_root; /* "/sys/fs/cgroup" */
	size_t files_max;        /* rule 10 */
};

struct workload;
struct workload *workload_new(const struct workload_options *o);
/* Starts the thread. */
MUST_CHECK bool workload_start(struct workload *w, struct err *err);
void workload_free(struct workload *w);
DEFINE_OWNED(workload, struct workload)

struct workload_row {
	const struct wire_holder *holder; /* of the tick */
	int64_t values[WORKLOAD_VALUES];  /* ABSENT: not known */
};
struct workload_stats {
	size_t unread;    /* workloads without values */
	int64_t failures; /* files that exist and could not be read */
	int64_t round_ns; /* how long the last reading of all of them took; ABSENT: none yet */
};

/* Once per tick: updates the set of workloads and returns their values, valid until the next call. tick NULL: the GPUs could not be read,
 * so none is shown and none dropped. */
size_t workload_follow(struct workload *w, const struct tick *t, const struct workload_row **ret);
void workload_stats(struct workload *w, struct workload_stats *ret);

/* One round of reading in the calling thread: of all workloads, or of new ones. For the thread and for tests. */
void workload_round(struct workload *w, int64_t boot_ns, bool all);

/* ---- the files of a cgroup (workload_cgroup.c) ---- */

enum { HIERARCHY_V2, HIERARCHY_CPUACCT, HIERARCHY_MEMORY, HIERARCHY_BLKIO, HIERARCHIES };
#define WORKLOAD_FILES 17 /* of v2 and v1 together */

/* The node's cgroup hierarchies, and how many files are kept open. */
struct workload_mounts {
	int fds[HIERARCHIES]; /* -1: none */
	size_t kept, keep_max;
	int64_t failures; /* files that exist and could not be read */
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

/* Opens the folders of the owner named by a text of /proc/PID/cgroup. False: none can be opened, and there is nothing to close. */
MUST_CHECK bool workload_cgroup_open(struct workload_mounts *m, const struct cgroup_base *base, const char *text,
                                     size_t len, const struct cgroup_owner *owner, struct workload_cgroup *ret);
void workload_cgroup_close(struct workload_mounts *m, struct workload_cgroup *c);
/* False: the cgroup was removed. */
MUST_CHECK bool workload_cgroup_read(struct workload_mounts *m, struct workload_cgroup *c,
                                     int64_t ret[WORKLOAD_VALUES]);

#endif
