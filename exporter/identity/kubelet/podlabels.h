/* exporter/identity/kubelet/podlabels.h - labels of this node's pods, from its own kubelet: GET /pods.
 *
 * A thread asks from time to time, so that no tick ever waits for it. Rules:
 *  1. only the labels that the options name are read; all others, and the rest of a pod's description, are skipped
 *  2. while there is no answer (the kubelet is away, slow, refuses or answers nonsense), the last one holds, and the pauses between
 *     questions grow
 *  3. a pod that an answer misses keeps its labels for PODLABELS_KEEP_NS: a kubelet that has just started may answer before it
 *     knows its pods, and one that ends is forgotten there before its processes are
 *  4. labels that become known, or change, count from the next tick on; records made before keep the former holder (identity.h) */
#ifndef TOLLGATE_PODLABELS_H
#define TOLLGATE_PODLABELS_H

#include "common/base/labels.h"

#define PODLABELS_BODY_MAX (16u << 20) /* of one answer */
#define PODLABELS_PODS_MAX 10000u
#define PODLABELS_KEEP_NS INT64_C(60000000000)

/* ---- answers ---- */

/* Which labels are read. */
struct podlabels_keys {
	char *keys[LABEL_MAX_COUNT];
	size_t count;
};
/* "app,example.com/team". ERR_INVALID: a key that no label can have, one twice, or too many. Empty: none. */
MUST_CHECK bool podlabels_keys_parse(const char *text, struct podlabels_keys *ret, struct err *err);
void podlabels_keys_fini(struct podlabels_keys *k);

struct pod_labels {
	char *uid;
	char *labels;           /* as common/base/labels.h writes them; empty: none of those that are read */
	int64_t listed_boot_ns; /* by the last answer that had it */
};
struct podlabels_list {
	struct pod_labels *pods; /* sorted by uid, each once */
	size_t count;
};
void podlabels_list_fini(struct podlabels_list *l);
/* NULL: there is no such pod. */
const char *podlabels_find(const struct podlabels_list *l, const char *uid);

/* The body of an answer, a PodList. Labels with an invalid value are left out, and so are pods without a UID. ERR_INVALID: the bytes are
 * no such answer, or it is too large. */
MUST_CHECK bool podlabels_decode(const char *body, size_t n, const struct podlabels_keys *keys,
                                 struct podlabels_list *ret, struct err *err);

/* Rule 3: moves the pods of `before` that the new list misses into it, unless they are too old. The new list's pods are listed now. */
void podlabels_keep(struct podlabels_list *list, const struct podlabels_list *before, int64_t boot_ns);

/* ---- the thread ---- */

struct podlabels_options {
	const char *url;        /* "https://10.0.0.7:10250" */
	const char *token_file; /* NULL: none. Read before each question */
	const char *ca_file;    /* NULL: the system's */
	const char *keys;       /* as podlabels_keys_parse reads them */
	const char *user_agent;
	int64_t refresh_ns; /* between two answers */
	int64_t timeout_ns; /* of one question */
};
struct podlabels;
MUST_CHECK bool podlabels_start(const struct podlabels_options *o, struct podlabels **ret, struct err *err);
/* A question under way is broken off. */
void podlabels_free(struct podlabels *p);
DEFINE_OWNED(podlabels, struct podlabels)

/* Waits for the end of the first question, so that a restart of the exporter does not begin without labels. */
void podlabels_wait_first(struct podlabels *p, int64_t most_ns);
/* The last answer lacks a pod that is there: ask soon. Does not shorten the pauses of rule 2. */
void podlabels_hurry(struct podlabels *p);
/* Copies the current labels when their version differs from *version, which is updated. Does not wait for a question. */
bool podlabels_take(struct podlabels *p, uint64_t *version, struct podlabels_list *ret);

struct podlabels_stats {
	bool up;                  /* the last question was answered */
	int64_t answered_boot_ns; /* the last answer; ABSENT: none yet */
	int64_t answers, failures;
	size_t pods, labelled; /* that are known, and of these with a label that is read */
	struct err trouble;    /* of the last question; kind ERR_NONE: none */
};
void podlabels_stats(struct podlabels *p, struct podlabels_stats *ret);

#endif
