/* exporter/identity/identity.h - the holder of a process: from its PID, /proc and the node's own records.
 *
 * Nothing that a process chooses about itself counts: not its name, arguments or environment, nor folders that it makes below its own
 * cgroup (cgroup.h). Processes are told apart by PID and start time. */
#ifndef TOLLGATE_IDENTITY_H
#define TOLLGATE_IDENTITY_H

#include "common/base/err.h"
#include "common/base/text.h"
#include "common/wire/wire.h"
#include "exporter/identity/kubelet/podlabels.h"
#include "exporter/identity/slurm_map.h"

/* ---- names of users and of their primary groups: identity_users.c ----
 *
 * A directory server may take any time to answer, so a thread of its own asks for names, and a tick waits for it no longer than its
 * patience lasts. A known name stays while the exporter runs, and so does the group that came with it: a holder goes from its number
 * to its name at most once, and never to another name. A number without a name is asked for again from time to time. */

#define USER_NAME_SIZE 256
#define USERS_MAX 4096u /* uids remembered; further ones have no name */

struct user_text {
	char name[USER_NAME_SIZE], group[USER_NAME_SIZE];
};
struct user_source {
	/* The name of a uid and of its primary group, empty where the group has none; false: the uid has no name, or the directory does
	 * not answer. NULL: the system's users. */
	bool (*ask)(void *arg, uint32_t uid, struct user_text *ret);
	void *arg;
};

struct user_names;
struct user_names *user_names_new(const struct user_source *source);
/* Does not wait for a lookup under way. */
void user_names_free(struct user_names *n);
DEFINE_OWNED(user_names, struct user_names)

/* Valid as long as user_names. */
struct user_name {
	const char *name;  /* NULL: not known (yet) */
	const char *group; /* empty: not known */
};
/* Waits up to *patience_ns for the first answer, and subtracts the time it waited. */
struct user_name user_names_get(struct user_names *n, uint32_t uid, int64_t *patience_ns);
/* How many names are known. */
uint64_t user_names_known(struct user_names *n);

/* ---- holders of processes ---- */

struct identity; /* caches by PID and start time */

struct identity_options {
	const char *proc_root;            /* "/proc" */
	const char *pods_root;            /* "/var/log/pods" */
	const char *slurm_pod_namespaces; /* "slurm,slurm-test"; NULL: none */
	struct user_source users;         /* empty: the system's */
};

/* Longest that the look-ups of one tick wait for user names, all together. */
#define IDENTITY_PATIENCE_NS INT64_C(20000000)

struct process_identity {
	int64_t start_boot_ns; /* when the process began, on the boot clock */
	/* owned by the identity cache until the next sweep; an id is never given to other content */
	const struct wire_holder *holder;
	char slurm_sluid[SLUID_CHARS +
	                 1]; /* of the job in whose cgroup the process is; empty: the cgroup has its number */
};

struct identity *identity_new(const struct identity_options *o);
void identity_free(struct identity *id);
DEFINE_OWNED(identity, struct identity)

/* ERR_MISSING: the process is gone. */
MUST_CHECK bool identity_of(struct identity *id, uint32_t pid, struct process_identity *ret, struct err *err);
/* The holder of an ended process that ran at boot_ns: NULL when identity_of was not called while it ran, or that was long ago. */
const struct wire_holder *identity_of_ended(struct identity *id, uint32_t pid, int64_t boot_ns);
/* Call once per tick after all lookups: forgets PIDs not asked for since the last sweep, and holders without a use when there
 * are many. */
void identity_sweep(struct identity *id);

/* ---- jobs of Slurm ----
 *
 * A cgroup that is named by a SLUID says that the process is a job's, and the job's file says which job that is. A job that no file
 * names (or two do) is a holder under its SLUID, never a host user. Jobs inside a pod are believed of the pods in slurm_pod_namespaces
 * alone; in any other namespace such a process is the pod's. */

/* The jobs whose files name a SLUID. Called before the look-ups of a tick, when the files have changed. A process that is known as a job's
 * stays so after the file is gone. */
void identity_set_jobs(struct identity *id, const struct slurm_job *jobs, size_t count);
/* Processes of the last sweep that are known as a job's by the SLUID alone. */
size_t identity_unmapped(const struct identity *id);
/* Whether pods of this namespace run slurmd. */
bool identity_runs_slurm(const struct identity *id, const char *ns);

/* ---- labels of pods ---- */

/* Takes the kubelet's current labels. Called before the look-ups of a tick: pods whose labels became known or changed are other holders
 * from then on. A pod that the list lacks keeps its labels. */
void identity_set_labels(struct identity *id, struct podlabels_list *list);
/* Whether, since the last call, labels were looked up of a pod that the list lacks. */
bool identity_misses_labels(struct identity *id);
/* Changes when labels of pods change or names of users become known: holders made from them must then be made anew. */
uint64_t identity_version(struct identity *id);

/* For holders made by alloc.c. Valid until the labels are set again; empty: not known. */
const char *identity_labels(struct identity *id, const char *pod_uid);
const char *identity_group(struct identity *id, int64_t uid);

/* A holder made by alloc.c, under the id that its content has; it stays until it is released as often. The id in `content` is
 * ignored, a text may be NULL. */
const struct wire_holder *identity_hold(struct identity *id, const struct wire_holder *content);
void identity_release(struct identity *id, const struct wire_holder *holder);

#endif
