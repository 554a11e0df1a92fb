/* exporter/identity/cgroup.h - the owner that the text of /proc/PID/cgroup names (v1 or v2). Pure.
 *
 * The upper folders of a cgroup path are made by the node's own services, the lower ones may be made by the workload. Rules:
 *  1. a path is read from the root. The first owner met is the true one; folders below it, which it may have made itself, are ignored
 *  2. pods are below kubepods; kubepods is at the root, below /kubelet, below slices, or in a container runtime's service
 *  3. jobs are below Slurm's own folders: /slurm, /slurm_NODE, SLICE/slurmstepd.scope, SLICE/NODE_slurmstepd.scope
 *  4. all below user.slice is its user's to name; only the uid in user-UID.slice counts, because logind made that
 *  5. at anything else (a scope, a service, a container, a folder of unknown origin) the path names nobody
 *  6. where this exporter is inside a container itself (a node of kind or minikube), that container is its node: paths
 *     below it are read from there
 *  7. ".." at the beginning (seen from another cgroup namespace) stands for folders above this exporter, which no workload
 *     made; so the rest of the path may begin in the middle of rule 2 or 3
 *  8. of several hierarchies (v1) a pod comes before a job, a job before a session
 *  9. a job's folder has its number (job_4711) or, from Slurm 26.05 on, its SLUID (sEKNKTV3WPV500); which job that is, the path does
 *     not tell
 * 10. slurmd may run inside a pod: Slurm's folders are then below the container, as in rule 3. Any pod that may write to its own cgroup can
 *     make them, so pod and job are both reported, and the caller decides whether it believes the pod (cgroup_forget_job if not) */
#ifndef TOLLGATE_CGROUP_H
#define TOLLGATE_CGROUP_H

#include "common/base/text.h"

struct cgroup_owner {
	char pod_uid[64];
	char container_id[80];
	char slurm_job[32];
	char slurm_sluid[SLUID_CHARS + 1]; /* of a job whose number the path does not have */
	int64_t session_uid;               /* of the login session; -1: none */
};

bool cgroup_names_job(const struct cgroup_owner *o);
/* Rule 10: the pod alone. */
void cgroup_forget_job(struct cgroup_owner *o);

/* Rule 6: the path of the container that this exporter's node is, without a slash at its end; empty: the host. */
struct cgroup_base {
	char path[512];
};

/* From the text of the exporter's own /proc/self/cgroup. */
void cgroup_base_parse(const char *text, size_t len, struct cgroup_base *ret);

/* True when a pod or a job is named; a session's uid may be known also without. base may be NULL: the host. */
bool cgroup_owner_parse(const struct cgroup_base *base, const char *text, size_t len, struct cgroup_owner *ret);

/* The folder that is the owner's own in the hierarchy of a controller ("" for v2), without a slash at its beginning: the container,
 * or the pod where none is named, the job, the user's slice; never a folder below it. An owner whose job was forgotten (rule 10) has its
 * container. False: it has none there, or its path is longer than `size`. */
bool cgroup_own_folder(const struct cgroup_base *base, const char *text, size_t len, const struct cgroup_owner *owner,
                       const char *controller, char *ret, size_t size);

#endif
