/* exporter/identity/alloc.h - the allocations of this node: what the kubelet and Slurm gave to whom, also while no process uses it.
 *
 * Belongs to the tick's thread; the kubelet is asked by a thread of its own (podres.h), Slurm's files are looked at in each tick
 * (slurm_map.h). Rules:
 *  1. an allocation of the kubelet is held by the pod, with the container's name and the pod's labels
 *  2. an allocation of Slurm is held by the job, with account, user and uid from its file and the user's group; of an HPC mapping
 *     by the job alone
 *  3. a process of a pod or a job that has allocations has the holder of that one which has its device, else that of
 *     its only container. So a workload is one holder, whether it is known by its allocation or by its processes
 *  4. a process outside any job is the job's, where it is of the job's user and on a device that the job has: Slurm without
 *     cgroups, a login to the node of one's own job
 *  5. nothing else is inferred: whoever is on a device of others stays who it is (and holds nothing there: meter.h) */
#ifndef TOLLGATE_ALLOC_H
#define TOLLGATE_ALLOC_H

#include "exporter/identity/identity.h"
#include "exporter/identity/kubelet/podres.h"
#include "exporter/identity/slurm_map.h"
#include "exporter/tick.h"

struct alloc_options {
	struct podres_options kubelet; /* socket_path NULL: none */
	struct slurm_map_options slurm;
};

struct alloc;
/* Waits for the kubelet's first answer for at most `patience_ns`. */
MUST_CHECK bool alloc_new(const struct alloc_options *o, struct identity *id, int64_t patience_ns, struct alloc **ret,
                          struct err *err);
void alloc_free(struct alloc *a);
DEFINE_OWNED(alloc, struct alloc)

/* Brings all up to date; once per tick, before what follows. */
void alloc_refresh(struct alloc *a, const struct gpu_snapshot *snap, int64_t boot_ns, int64_t wall_ns);
/* Valid until the next refresh, and as long as the snapshot. */
size_t alloc_list(const struct alloc *a, const struct tick_allocation **ret);
/* Rules 3 to 5: the holder of a process that identity knows as `process`, on a GPU or (gi and ci not -1) an instance of it. */
const struct wire_holder *alloc_holder(struct alloc *a, const struct wire_holder *process, const struct gpu_reading *r,
                                       int32_t gi, int32_t ci);

struct alloc_stats {
	struct podres_stats kubelet;
	int64_t kubelet_age_ns;          /* of what holds; ABSENT: the kubelet never answered */
	size_t from_kubelet, from_slurm; /* devices and replicas allocated */
	size_t unresolved;               /* of these: by a name that is none of a GPU here */
	size_t refused_files;
	struct err refused; /* the first of them; kind ERR_NONE: none */
};
void alloc_stats(struct alloc *a, int64_t boot_ns, struct alloc_stats *ret);

#endif
