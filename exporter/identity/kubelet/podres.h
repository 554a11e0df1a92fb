/* exporter/identity/kubelet/podres.h - devices that the kubelet gave to pods, from its pod-resources service (v1) on a unix socket.
 *
 * A thread asks it from time to time, so that no tick ever waits for it. Rules:
 *  1. a device that the kubelet lists is allocated, from the answer that first has it until one that misses it
 *  2. while there is no answer (the kubelet is away, slow, or answers nonsense), the last one holds: a pod keeps its GPU while the
 *     kubelet restarts
 *  3. a kubelet that has just started may answer before it knows its pods: an allocation that it then misses stays for PODRES_GRACE_NS,
 *     unless the device was given to another pod, or the pod's folder is gone
 *  4. a pod that has a folder but no longer a cgroup has ended and holds nothing, where the node's pods can be seen to have
 *     cgroups: some kubelets list ended pods until they are deleted
 *  5. one device id is one pod's: of several, the one whose folder changed last
 *  6. a pod that has no folder yet is being set up. It counts when its folder shows its UID, so that it is one holder from its
 *     first record on, or after PODRES_SETUP_NS without */
#ifndef TOLLGATE_PODRES_H
#define TOLLGATE_PODRES_H

#include "common/base/buf.h"
#include "exporter/identity/kubelet/pod_folders.h"

#define PODRES_MESSAGE_MAX (16u << 20) /* of one answer */
#define PODRES_GRANTS_MAX 8192u        /* GPUs and their replicas in one answer */
#define PODRES_GRACE_NS INT64_C(60000000000)
#define PODRES_SETUP_NS INT64_C(5000000000)

/* ---- messages: podres_decode.c ---- */

/* A device of a container. Texts are clean and no longer than a record allows. */
struct podres_grant {
	char *ns, *pod, *uid, *container; /* uid: empty when the node has no folder for the pod */
	char *device;                     /* as advertised, without "::n" */
	int32_t replica;                  /* n, or -1 */
	int32_t replica_of;               /* how many are advertised; 0: not known */
	int64_t listed_boot_ns;           /* since when */
	bool setting_up;                  /* rule 6: does not count yet */
};
struct podres_list {
	struct podres_grant *grants;
	size_t count;
};
void podres_grant_fini(struct podres_grant *g);
void podres_list_fini(struct podres_list *l);

/* How often each device is advertised. */
struct podres_offer {
	char *device;
	int32_t replicas;
};
struct podres_offers {
	struct podres_offer *offers; /* sorted by device; only those with replicas */
	size_t count;
};
void podres_offers_fini(struct podres_offers *o);

/* The answers of List and GetAllocatableResources. Devices that are not GPUs are left out, also pods without a name. ERR_INVALID:
 * the bytes are no such answer, or it is too large. */
MUST_CHECK bool podres_decode_list(const void *message, size_t n, struct podres_list *ret, struct err *err);
MUST_CHECK bool podres_decode_offers(const void *message, size_t n, struct podres_offers *ret, struct err *err);

/* ---- calls: podres_call.c ---- */

struct podres_conn;
/* ERR_MISSING: nobody listens on the socket; ERR_DENIED: the listener is neither root nor this user. Times are the monotonic clock's. */
MUST_CHECK bool podres_connect(const char *socket_path, int64_t deadline_ns, struct podres_conn **ret, struct err *err);
/* One call without arguments; the answer's message replaces the content of `ret`, whose ceiling is that of the message. */
MUST_CHECK bool podres_call(struct podres_conn *c, const char *method, int64_t deadline_ns, struct buf *ret,
                            struct err *err);
void podres_conn_free(struct podres_conn *c);
DEFINE_OWNED(podres_conn, struct podres_conn)

/* ---- rules 3 to 6, pure ---- */

struct podres_circumstances {
	const struct pod_folders *folders;
	int64_t boot_ns;
	bool just_started; /* rule 3 */
	/* Rule 4: does this pod have a cgroup? NULL: that cannot be seen on this node. */
	bool (*alive)(const void *arg, const char *uid);
	const void *arg;
};
/* Applies the rules to a new list. `before` is the list until now; its texts may move into the new one. */
void podres_apply(const struct podres_circumstances *c, const struct podres_offers *offers, struct podres_list *list,
                  struct podres_list *before);

/* ---- cgroups of pods ---- */

#define PODRES_HIERARCHIES 5
#define PODRES_PLACES 4

/* The places below "/sys/fs/cgroup" where pods can be. */
struct podres_cgroups {
	const char *root;
	bool exists[PODRES_HIERARCHIES][PODRES_PLACES];
};
void podres_cgroups_look(struct podres_cgroups *c, const char *root);
/* Whether the kubelet's cgroups can be seen: false when none of these pods has one. */
bool podres_cgroups_seen(const struct podres_cgroups *c, const struct pod_folders *folders);
bool podres_cgroup_exists(const struct podres_cgroups *c, const char *uid);

/* ---- the thread ---- */

struct podres_options {
	const char *socket_path; /* "/var/lib/kubelet/pod-resources/kubelet.sock" */
	const char *pods_root;   /* "/var/log/pods" */
	const char *cgroup_root; /* "/sys/fs/cgroup" */
	int64_t refresh_ns;      /* between two answers */
	int64_t timeout_ns;      /* of one question */
};
struct podres;
MUST_CHECK bool podres_start(const struct podres_options *o, struct podres **ret, struct err *err);
void podres_free(struct podres *p);
DEFINE_OWNED(podres, struct podres)

/* Waits for the end of the first question, so that a restart of the exporter does not begin without allocations. */
void podres_wait_first(struct podres *p, int64_t most_ns);
/* The last answer lacks a pod that is there: ask soon. */
void podres_hurry(struct podres *p);

struct podres_stats {
	bool used;                /* there is, or was, a kubelet */
	bool up;                  /* the last question was answered */
	int64_t answered_boot_ns; /* the last answer; ABSENT: none yet */
	int64_t answers, failures;
	uint64_t version;   /* changes when the allocations change */
	struct err trouble; /* of the last question; kind ERR_NONE: none */
};
void podres_stats(struct podres *p, struct podres_stats *ret);

/* Calls `each` for every grant that counts now, under the lock; returns their version. */
uint64_t podres_visit(struct podres *p, void (*each)(void *arg, const struct podres_grant *g), void *arg);

#endif
