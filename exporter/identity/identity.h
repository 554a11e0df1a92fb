/* exporter/identity/identity.h - whose process it is: PID to holder, from /proc and the node's own records.
 *
 * Nothing that a process chooses about itself decides: not its name, arguments, environment, nor what it makes below its own
 * cgroup (cgroup.h). Processes are told apart by PID and start time. */
#ifndef TOLLGATE_IDENTITY_H
#define TOLLGATE_IDENTITY_H

#include "common/base/err.h"
#include "common/wire/wire.h"
#include "exporter/identity/identity_users.h"
#include "exporter/identity/kubelet/podlabels.h"

struct identity; /* caches by PID and start time */

struct identity_options {
	const char *proc_root;    /* "/proc" */
	const char *pods_root;    /* "/var/log/pods" */
	struct user_source users; /* empty: the system's */
};

/* Longest that the look-ups of one tick wait for user names, all together. */
#define IDENTITY_PATIENCE_NS INT64_C(20000000)

struct process_identity {
	int64_t start_boot_ns; /* when the process began, on the boot clock */
	/* owned by the identity cache until the next sweep; an id is never given to other content */
	const struct wire_holder *holder;
};

struct identity *identity_new(const struct identity_options *o);
void identity_free(struct identity *id);
DEFINE_OWNED(identity, struct identity)

/* ERR_MISSING: the process is gone. */
MUST_CHECK bool identity_of(struct identity *id, uint32_t pid, struct process_identity *ret, struct err *err);
/* The holder of a process that has ended, of which one moment of its life is known: NULL when it was not asked for while it
 * lived, or that was long ago. */
const struct wire_holder *identity_of_ended(struct identity *id, uint32_t pid, int64_t boot_ns);
/* Call once per tick after all lookups: forgets PIDs not asked for since the last sweep, and holders without a use when there
 * are many. */
void identity_sweep(struct identity *id);

/* ---- labels of pods ---- */

/* What the kubelet says of labels now, taken over. Before the look-ups of a tick: pods whose labels became known or changed are
 * other holders from then on. A pod that the list does not have keeps what it had. */
void identity_set_labels(struct identity *id, struct podlabels_list *list);
/* Whether a pod was looked for that the list does not have, since this was last asked. */
bool identity_misses_labels(struct identity *id);
/* Another number when labels of pods are others, or names of users came to be known: holders made from them are then to be
 * made anew. */
uint64_t identity_version(struct identity *id);

/* For holders that are known from elsewhere. Valid until the labels are set again; empty: not known. */
const char *identity_labels(struct identity *id, const char *pod_uid);
const char *identity_group(struct identity *id, int64_t uid);

/* A holder that is known from elsewhere, under the id that its content has; it stays until released as often. The id in `content`
 * is not looked at, a text may be NULL. */
const struct wire_holder *identity_hold(struct identity *id, const struct wire_holder *content);
void identity_release(struct identity *id, const struct wire_holder *holder);

#endif
