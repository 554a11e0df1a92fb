/* aggregator/core/quota/book/quota_book_state.h - the quota book from inside: names and positions, and one event while it is read and applied. For the book's own
 * files only.
 *
 * Names are read by all copies of a book and never changed: an event that brings new ones works on a copy, and the book takes that
 * when the engine took the event. */
#ifndef TOLLGATE_QUOTA_BOOK_STATE_H
#define TOLLGATE_QUOTA_BOOK_STATE_H

#include "aggregator/core/quota/book/quota_book.h"
#include "common/base/hash.h"
#include "aggregator/core/quota/engine/quota_memory.h"
#include "common/conf/json.h"

#define QUOTA_BOOK_MAX_ROWS (1u << 20) /* of a list in an event or a book */
#define BOOK_MAX_NS (INT64_C(1) << 62) /* of a time or duration: far from where sums of them do not fit */

/* ---- quota_book_names.c: names and positions ------------------------------------------------------------------------------- */

struct book_name {
	char text[QUOTA_NAME_SIZE];
	bool gone; /* not in the policy any more */
};

struct book_class {
	char text[QUOTA_NAME_SIZE];
	int32_t value;
	bool preemptible;
	bool gone;
};

struct book_shape {
	char text[2 * QUOTA_NAME_SIZE + 24]; /* model, kind and name: the key */
	struct quota_shape in;
	char name[QUOTA_NAME_SIZE];
};

struct book_workspace {
	char text[2 * QUOTA_NAME_SIZE]; /* the path */
	int32_t tenant;
	int32_t home; /* the cluster of requests that name none, or QUOTA_NONE */
	bool gone;
};

struct book_node {
	char text[QUOTA_NODE_SIZE];
	char (*uuids)[QUOTA_UUID_SIZE]; /* of its GPUs; "": not seen yet */
	size_t gpu_count;
};

/* The price on demand, for a tenant, of a GPU of a model or of an instance of a profile that has a price of its own. The profile need not be a shape:
 * a price book may name one that no GPU is cut into. */
struct book_price {
	int32_t tenant, model;
	char profile[QUOTA_NAME_SIZE]; /* "": a whole GPU */
	int64_t hour_micros;
};

/* Each element begins with its text. */
struct book_list {
	void *at;
	size_t count, cap, size;
	struct hash ids;
};

struct book_names {
	_Atomic int copies;
	struct book_list clusters;   /* struct book_name */
	struct book_list models;     /* struct book_name */
	struct book_list classes;    /* struct book_class */
	struct book_list shapes;     /* struct book_shape */
	struct book_list tenants;    /* struct book_name */
	struct book_list workspaces; /* struct book_workspace */
	struct book_list nodes;      /* struct book_node */
	struct book_price *prices;   /* by tenant, model and profile */
	size_t price_count;
	struct quota_settings settings;
};

struct book_names *book_names_new(void);
struct book_names *book_names_copy(const struct book_names *n); /* that may be changed */
struct book_names *book_names_share(struct book_names *n);      /* the same once more */
void book_names_free(struct book_names *n);
DEFINE_OWNED(book_names, struct book_names)

/* The position, or QUOTA_NONE. */
int32_t book_find(const struct book_list *l, const char *text);
/* The position of a text, which is added when it is not there; the element is zeroed but for its text. ERR_INVALID: it is empty or
 * longer than `size` allows, or there are too many. */
MUST_CHECK bool book_add(struct book_list *l, const char *what, const char *text, size_t size, int32_t *ret,
                         struct err *err);

#define BOOK_AT(list, type, i) (&((struct type *)(list).at)[i])

/* A shape by model, kind and name; QUOTA_NONE. */
int32_t book_find_shape(const struct book_names *n, int32_t model, enum quota_shape_kind kind, const char *name);
MUST_CHECK bool book_add_shape(struct book_names *n, int32_t model, enum quota_shape_kind kind, const char *name,
                               int64_t units, int32_t *ret, struct err *err);
/* A model, with the shape of its whole GPU. */
MUST_CHECK bool book_add_model(struct book_names *n, const char *name, int32_t *ret, struct err *err);
/* The prices that a policy has, each tenant, model and profile once. */
void book_prices_set(struct book_names *n, const struct book_price *prices, size_t count);
MUST_CHECK bool book_price_init(struct book_price *p, int32_t tenant, int32_t model, const char *profile,
                                int64_t hour_micros, struct err *err);
/* The price of one device of a shape per hour, as ret_micros for ret_units of it; 0 micros where no price is known. */
void book_price_of(const struct book_names *n, int32_t tenant, int32_t shape, int64_t *ret_micros, int64_t *ret_units);

struct quota_book {
	struct quota_state *state;
	struct book_names *names;
	int64_t *denied; /* by workspace: requests that were let through before the state was loaded */
	size_t denied_count;
};

/* ---- an event -------------------------------------------------------------------------------------------------------------- */

struct book_step {
	struct quota_book *b;
	int64_t now_ns;
	struct quota_memory *m;    /* of the lists that the event points to */
	struct quota_outcome *out; /* outcomes so far */
};

/* ---- quota_book.c ---- */
/* One event of the engine on a state. */
MUST_CHECK bool book_step_state(struct book_step *s, struct quota_state *state, const struct quota_event *event,
                                struct err *err);
/* One event of the engine on the book's state; its outcome is appended. */
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
/* The policy of saved lists, extended by names that are new and not used yet. */
void book_policy_extend(struct book_step *s, const struct book_names *names, struct quota_policy *policy);

/* ---- quota_book_codec.c ---- */
/* The list under a key, of at most max; none when the key is missing. */
MUST_CHECK bool book_list_read(const json_t *object, const char *key, size_t max, const json_t **ret, size_t *ret_count,
                               struct err *err);
MUST_CHECK bool book_settings_read(const json_t *v, struct quota_memory **m, struct quota_settings *ret,
                                   struct err *err);

/* ---- readers: each one takes the value of the event's one member ---- */
MUST_CHECK bool book_submit(struct book_step *s, const json_t *v, struct err *err);
MUST_CHECK bool book_adopt(struct book_step *s, const json_t *v, struct err *err);
MUST_CHECK bool book_policy(struct book_step *s, const json_t *v, struct err *err);
MUST_CHECK bool book_budgets(struct book_step *s, const json_t *v, struct err *err);
MUST_CHECK bool book_nodes(struct book_step *s, const json_t *v, struct err *err);
MUST_CHECK bool book_layout(struct book_step *s, const json_t *v, struct err *err);
/* "node" and "gpu" (position or UUID) of an object. */
MUST_CHECK bool book_read_device(const struct book_names *n, const json_t *v, int32_t *ret_node, int32_t *ret_gpu,
                                 struct err *err);

#endif
