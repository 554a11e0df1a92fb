/* exporter/metrics/workload.h - CPU, memory, I/O and pressure of the workloads that are on this node's GPUs, read by a thread of its own.
 *
 * Rules:
 *  1. a workload's cgroup is its own folder (cgroup.h): the container, the Slurm job, the user's slice; found by one of its processes on a
 *     GPU, and believed only if that folder names the same pod, job or user
 *  2. it stays this cgroup until that is gone; then it is found anew. A workload without one has no values
 *  3. values are read every WORKLOAD_INTERVAL_NS, those of a new workload at once; older than WORKLOAD_STALE_NS they are none
 *  4. a workload that is in the tick neither by a process nor by an allocation is gone, with the tick
 *  5. of two workloads whose labels are the same the one that came first is shown
 *  6. nobody waits for the thread: a file that hangs costs the values, not a tick, and not the end */
#ifndef TOLLGATE_WORKLOAD_H
#define TOLLGATE_WORKLOAD_H

#include "exporter/meter/meter.h"
#include "exporter/metrics/workload_cgroup.h"

#define WORKLOAD_INTERVAL_NS INT64_C(5000000000)
#define WORKLOAD_STALE_NS (4 * WORKLOAD_INTERVAL_NS)
#define WORKLOADS_MAX 1024u /* followed; further ones have no values */

struct workload_options {
	const char *proc_root;   /* "/proc" */
	const char *cgroup_root; /* "/sys/fs/cgroup" */
	size_t files_max;        /* kept open */
};

struct workload;
struct workload *workload_new(const struct workload_options *o);
/* Begins the thread. */
MUST_CHECK bool workload_start(struct workload *w, struct err *err);
void workload_free(struct workload *w);
DEFINE_OWNED(workload, struct workload)

struct workload_row {
	const struct wire_holder *holder; /* of the tick */
	int64_t values[WORKLOAD_VALUES];  /* ABSENT: not known */
};
struct workload_stats {
	size_t unread;    /* workloads without values */
	int64_t failures; /* files that are there and could not be read */
	int64_t round_ns; /* how long the last reading of all of them took; ABSENT: none yet */
};

/* Once per tick: who is there, and what is known of them; valid until the next one. NULL: the driver told nothing, so nobody is
 * shown and nobody forgotten. */
size_t workload_follow(struct workload *w, const struct tick *t, const struct workload_row **ret);
void workload_stats(struct workload *w, struct workload_stats *ret);

/* One round in the calling thread: of all, or of those that are new. What the thread does; else only for tests. */
void workload_round(struct workload *w, int64_t boot_ns, bool all);

#endif
