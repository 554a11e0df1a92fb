/* exporter/identity/alloc.h - the allocations of this node: the devices that the kubelet and Slurm gave to a holder, used or not.
 *
 * Belongs to the tick's thread; the kubelet is asked by a thread of its own (podres.h), Slurm's files are looked at in each tick
 * (slurm_map.h). Rules:
 *  1. an allocation of the kubelet is held by the pod, with the container's name and the pod's labels
 *  2. an allocation of Slurm is held by the job, with account, user and uid from its file and the user's group; of an HPC mapping
 *     by the job alone
 *  3. a process of a pod or a job that has allocations has the holder of the allocation of its device, else that of
 *     its only container. So a workload is one holder, whether it is known by its allocation or by its processes
 *  4. a process outside any job, or in one that is known by its SLUID alone (identity.h), belongs to a job whose user it has and
 *     whose device it uses: Slurm without cgroups, a login to the node of one's own job, a file without sluid=
 *  5. nothing else is inferred: a process on a device that is allocated to others keeps its holder, and holds nothing there (meter.h)
 *  6. the devices of a container "slurmd" in a namespace whose pods run Slurm are Slurm's to allocate, not the pod's own */
#ifndef TOLLGATE_ALLOC_H
#define TOLLGATE_ALLOC_H

#include "exporter/identity/identity.h"
#include "exporter/identity/kubelet/podres.h"
#include "exporter/identity/slurm_map.h"
#include "exporter/tick.h"

/* ---- names of devices, pure ---- */

/* "GPU-<uuid>", "MIG-<uuid>", "MIG-GPU-<uuid>/<gi>/<ci>" (drivers before 470), "3" (an index as nvidia-smi counts), "nvidia3",
 * "nvidia3/gi1", "nvidia3/vgpu2", "nvidia3/gi1/vgpu2" (GKE's device plugin). */
struct device_name {
	char *uuid;         /* NULL: by index, or no device at all */
	int32_t index;      /* -1: by UUID */
	int32_t gi, ci;     /* -1: not given */
	int32_t replica;    /* -1: not given */
	int32_t replica_of; /* 0: not given */
};

struct device_name device_name_parse(const char *text);
struct device_name device_name_none(void);
bool device_name_is_none(const struct device_name *d);
bool device_name_equal(const struct device_name *a, const struct device_name *b);
void device_name_fini(struct device_name *d);

/* The UUIDs of the devices with this name, as the driver has them: one, or the compute instances of a GPU instance; 0: this node has
 * none. A UUID is returned as it is, whether or not the driver lists it now. */
size_t device_name_resolve(const struct device_name *d, const struct gpu_snapshot *snap,
                           const char *ret[GPU_INSTANCE_MAX]);

/* ---- allocations ---- */

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

/* Once per tick, before the functions below. */
void alloc_refresh(struct alloc *a, const struct gpu_snapshot *snap, int64_t boot_ns, int64_t wall_ns);
/* Valid until the next refresh, and as long as the snapshot. */
size_t alloc_list(const struct alloc *a, const struct tick_allocation **ret);
/* Rules 3 to 5: the holder of a process that identity knows as `process`, on a GPU or (gi and ci not -1) an instance of it. */
const struct wire_holder *alloc_holder(struct alloc *a, const struct wire_holder *process, const struct gpu_reading *r,
                                       int32_t gi, int32_t ci);

struct alloc_stats {
	struct podres_stats kubelet;
	int64_t kubelet_age_ns;          /* of the last answer; ABSENT: the kubelet never answered */
	size_t from_kubelet, from_slurm; /* devices and replicas allocated */
	size_t unresolved;               /* of these: by a name that no GPU here has */
	size_t unmapped_processes;       /* of jobs known by their SLUID alone */
	size_t refused_files;
	struct err refused; /* the first of them; kind ERR_NONE: none */
};
void alloc_stats(struct alloc *a, int64_t boot_ns, struct alloc_stats *ret);

#endif
