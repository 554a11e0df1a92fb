/* aggregator/core/quota/loop/quota_loop_state.h - one look of the closed loop while it is taken. For its own files. */
#ifndef TOLLGATE_QUOTA_LOOP_STATE_H
#define TOLLGATE_QUOTA_LOOP_STATE_H

#include "aggregator/core/quota/loop/quota_loop.h"
#include "aggregator/core/quota/engine/quota_memory.h"

/* A device with a holder. */
struct loop_device {
	const struct quota_seen_holder *holder; /* the first of them */
	size_t holder_count;                    /* as many follow it in the list */
	int32_t node;                           /* index into the observed nodes */
	int32_t book_node, gpu, shape;          /* positions in the book, or QUOTA_NONE */
	int32_t workspace;                      /* of the first holder; QUOTA_NONE: nobody's */
	int32_t lease;                          /* position in the lists that it is seen for, or QUOTA_NONE */
	int32_t next;                           /* of the same workspace */
	int32_t next_of_lease;
};

/* The devices on which a lease was seen. */
struct loop_lease {
	const struct quota_workload *workload; /* NULL: none is known */
	bool identified;                       /* it has an identity */
	int64_t changed_ns;
	int32_t seen;  /* devices */
	int32_t first; /* of them, in the order of places, or QUOTA_NONE */
};

struct loop {
	const struct quota_book *b;
	const struct quota_observed *in; /* judged, from loop_judge() on */
	struct quota_observed judged;
	const struct quota_world *w; /* the book's lists */
	int64_t now_ns;
	struct quota_loop_out *out;
	struct quota_memory *m;
	int32_t *seen_of;            /* by node of the book: index into the observed nodes, or QUOTA_NONE */
	int32_t *book_of;            /* by node seen */
	struct loop_device *devices; /* by node, GPU, device, replica */
	size_t device_count;
	int32_t *first_of;         /* by workspace: its first device, or QUOTA_NONE */
	struct loop_lease *leases; /* beside the book's */
	size_t event_cap, anomaly_cap, idle_cap, warned_cap;
};

/* ---- quota_loop.c ---- */
void loop_event(struct loop *l, const char *actor, const struct buf *text);
/* detail: members of a JSON object, without its braces. */
void loop_anomaly(struct loop *l, const char *kind, const char *subject, const char *tenant, const struct buf *detail);

/* ---- the rules ---- */
void loop_clock(struct loop *l);     /* 0 */
void loop_judge(struct loop *l);     /* 1, its beginning; before positions are looked up */
void loop_inventory(struct loop *l); /* 1 */
void loop_match(struct loop *l);     /* 2 */
/* Whether a shape of the book is this profile, under its name or under that of rule 7 in quota_loop_nodes.c. */
bool loop_is_profile(const char *shape, const char *profile);
void loop_leases(struct loop *l);    /* 3 to 7 */
void loop_budgets(struct loop *l);   /* 7 */
void loop_anomalies(struct loop *l); /* 8 */

#endif
