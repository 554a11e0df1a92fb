/* aggregator/core/quota/book/quota_book_step.h - one event on a quota book while it is read and applied. For the book's own files. */
#ifndef TOLLGATE_QUOTA_BOOK_STEP_H
#define TOLLGATE_QUOTA_BOOK_STEP_H

#include "aggregator/core/quota/book/quota_book_names.h"
#include "aggregator/core/quota/engine/quota_memory.h"
#include "common/conf/json.h"

struct book_step {
	struct quota_book *b;
	int64_t now_ns;
	struct quota_memory *m;    /* of what the event points to */
	struct quota_outcome *out; /* what came of it until now */
};

/* ---- quota_book.c ---- */
/* One event of the engine on a state. */
MUST_CHECK bool book_step_state(struct book_step *s, struct quota_state *state, const struct quota_event *event,
                                struct err *err);
/* One event of the engine on the book's state; what comes of it follows what there is. */
MUST_CHECK bool book_step_engine(struct book_step *s, const struct quota_event *event, struct err *err);
/* The same on a state that takes the place of the book's, with its names, when the engine takes the event. */
MUST_CHECK bool book_step_anew(struct book_step *s, const struct quota_world *world, struct book_names **names,
                               const struct quota_event *event, struct err *err);
void book_notice(struct book_step *s, enum quota_notice_kind kind, const char *id, const char *for_id);
/* ---- quota_book_policy.c, quota_book_nodes.c ---- */
/* Clusters, models and shapes of a policy from the names. */
void book_policy_names(struct book_step *s, const struct book_names *names, struct quota_policy *policy);
/* {"profile","units"}, {"of"} or a whole GPU, added when it is new. */
MUST_CHECK bool book_read_shape(struct book_names *n, int32_t model, const json_t *o, int32_t *ret, struct err *err);
/* The policy of saved lists, with what the names have more: as much of it as nobody uses yet. */
void book_policy_extend(struct book_step *s, const struct book_names *names, struct quota_policy *policy);

/* ---- quota_book_read.c ---- */
MUST_CHECK bool book_settings_read(const json_t *v, struct quota_memory **m, struct quota_settings *ret,
                                   struct err *err);

/* ---- readers: each one takes the value of the event's one member ---- */
MUST_CHECK bool book_submit(struct book_step *s, const json_t *v, struct err *err);
MUST_CHECK bool book_policy(struct book_step *s, const json_t *v, struct err *err);
MUST_CHECK bool book_budgets(struct book_step *s, const json_t *v, struct err *err);
MUST_CHECK bool book_nodes(struct book_step *s, const json_t *v, struct err *err);
MUST_CHECK bool book_layout(struct book_step *s, const json_t *v, struct err *err);
/* "node" and "gpu" (position or UUID) of an object. */
MUST_CHECK bool book_read_device(const struct book_names *n, const json_t *v, int32_t *ret_node, int32_t *ret_gpu,
                                 struct err *err);

#endif
