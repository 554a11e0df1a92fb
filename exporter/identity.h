/* exporter/identity.h - whose process it is: PID to holder, from /proc and the node's own records.
 * A process's name, environment and arguments are never looked at. */
#ifndef TOLLGATE_EXPORTER_IDENTITY_H
#define TOLLGATE_EXPORTER_IDENTITY_H

#include "common/err.h"
#include "common/wire.h"

struct identity; /* caches by PID and start time */

struct identity_options {
	const char *proc_root; /* "/proc" */
	const char *pods_root; /* "/var/log/pods" */
};

struct process_identity {
	int64_t start_boot_ns; /* when the process began, on the boot clock */
	const struct wire_holder
		*holder; /* owned by the identity cache until the next sweep; an id is never given to other content */
};

struct identity *identity_new(const struct identity_options *o);
void identity_free(struct identity *id);
DEFINE_OWNED(identity, struct identity)

/* ERR_MISSING: the process is gone. */
MUST_CHECK bool identity_of(struct identity *id, uint32_t pid, struct process_identity *ret, struct err *err);
/* Call once per tick after all lookups: forgets PIDs not asked for since the last sweep, and holders without a process when
 * there are many. */
void identity_sweep(struct identity *id);

/* Pure: the holder named by the text of /proc/PID/cgroup (v1 or v2): pod UID and container id, or a Slurm job; false when neither.
 * What lies below user.slice is the user's own to name, and says nothing. */
struct cgroup_owner {
	char pod_uid[64];
	char container_id[80];
	char slurm_job[32];
};
bool cgroup_owner_parse(const char *text, size_t len, struct cgroup_owner *ret);

#endif
