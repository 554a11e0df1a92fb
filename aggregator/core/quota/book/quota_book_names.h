/* aggregator/core/quota/book/quota_book_names.h - what the positions of a quota book's engine are called. For the book's own files.
 *
 * Names are read by all copies of a book and never changed: an event that brings new ones works on a copy, and the book takes that
 * when the engine took the event. */
#ifndef TOLLGATE_QUOTA_BOOK_NAMES_H
#define TOLLGATE_QUOTA_BOOK_NAMES_H

#include "aggregator/core/quota/book/quota_book.h"
#include "aggregator/core/quota/engine/quota_ids.h"

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

/* What a GPU of a model, or an instance of a profile that has a price of its own, costs a tenant on demand. The profile need not be a shape:
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
	struct quota_ids ids;
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

/* A shape by what it is; QUOTA_NONE. */
int32_t book_find_shape(const struct book_names *n, int32_t model, enum quota_shape_kind kind, const char *name);
MUST_CHECK bool book_add_shape(struct book_names *n, int32_t model, enum quota_shape_kind kind, const char *name,
                               int64_t units, int32_t *ret, struct err *err);
/* A model, with the shape of its whole GPU. */
MUST_CHECK bool book_add_model(struct book_names *n, const char *name, int32_t *ret, struct err *err);
/* The prices that a policy has, each tenant, model and profile once. */
void book_prices_set(struct book_names *n, const struct book_price *prices, size_t count);
MUST_CHECK bool book_price_init(struct book_price *p, int32_t tenant, int32_t model, const char *profile,
                                int64_t hour_micros, struct err *err);
/* What one of a shape costs in an hour, as ret_micros for ret_units of it; 0 micros where no price is known. */
void book_price_of(const struct book_names *n, int32_t tenant, int32_t shape, int64_t *ret_micros, int64_t *ret_units);

struct quota_book {
	struct quota_state *state;
	struct book_names *names;
	int64_t *denied; /* by workspace: requests that were let through before the state was loaded */
	size_t denied_count;
};

#endif
