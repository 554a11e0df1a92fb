/* aggregator/core/quota/engine/quota_state.h - how the quota engine keeps its state. For the engine's own files and nobody else.
 *
 *   tenant ── workspace ── account ─────────── pool ── shelf ── stock ── group ── gpu ── node
 *                            │ (workspace, pool)   (pool, shape) (node, shape) (gpu, shape)
 *                            └ lease ── part ──────────────────────────────┘
 *                              request ── part (its hold)
 *
 * Everything is in flat arrays and refers to others by position, so that a copy is a copy of the arrays. Sums on accounts, pools,
 * shelves and stocks are kept up with every change, by two functions only: group_change() and the pair account_out(), account_in(). The
 * property test recomputes each of them from the plain lists. */
#ifndef TOLLGATE_QUOTA_STATE_H
#define TOLLGATE_QUOTA_STATE_H

#include <string.h>

#include "aggregator/core/quota/engine/quota.h"
#include "aggregator/core/quota/engine/quota_ids.h"

struct name {
	char text[QUOTA_NAME_SIZE];
};

struct shape {
	char name[QUOTA_NAME_SIZE];
	struct quota_shape in;
};

/* ---- devices ---------------------------------------------------------------------------------------------------------- */

/* Which tenants are on a GPU or node, without a list: all devices are of one tenant when count * squares = sum * sum. */
struct tenancy {
	int32_t devices;
	int32_t strict; /* of tenants that share it with nobody */
	int64_t sum, squares;
};

struct group {
	int32_t gpu, shape, stock;
	int32_t next; /* of the same GPU */
	int32_t total, used, held;
};

struct gpu {
	int32_t node, first_group;
	bool lost;
	struct tenancy who;
};

struct node {
	char name[QUOTA_NODE_SIZE];
	int32_t cluster, tenant;
	int32_t first_gpu, gpu_count;
	bool lost;
	struct tenancy who;
};

struct stock {
	int32_t node, shelf;
	int32_t free, live, declared; /* devices */
};

struct shelf {
	int32_t pool, shape;
	int32_t first_stock, stock_count; /* in the order of nodes */
	int64_t free, live, declared;     /* devices */
	int64_t protected_units;          /* of accounts whose reservation is in this shape */
	int64_t protected_empty;          /* the same if nobody leased anything */
};

struct pool {
	int32_t cluster, tenant, model;
	int32_t first_shelf, shelf_count;
	int64_t declared, live, leased, held, free; /* units */
	int64_t unplaced;                           /* units of leases that are nowhere */
	int64_t strict;                             /* devices taken by tenants that share a GPU or node with nobody */
	int64_t reserved, debt, idle, protected_units;
	int64_t protected_empty; /* if nobody leased anything */
	int32_t first_account;
	int32_t head; /* the waiting request that has a reservation of the next units, or QUOTA_NONE */
};

struct place {
	int32_t pool; /* or QUOTA_NONE */
};

/* ---- who may have what ------------------------------------------------------------------------------------------------- */

struct tenant {
	char name[QUOTA_NAME_SIZE];
	struct quota_tenant in; /* here and below: pointers in it are not used */
	int32_t first_cap, first_budget;
	int128 other_used[QUOTA_OTHERS];
	size_t waiting; /* requests of its workspaces in waits */
};

struct workspace {
	char name[QUOTA_NAME_SIZE];
	struct quota_workspace in;
	int32_t first_account;
	int32_t first_hold; /* its requests that have a hold, by id */
	int128 other_used[QUOTA_OTHERS];
	int128 other_replaced[QUOTA_OTHERS]; /* as of accounts; other_used is without it */
	int64_t would_deny;
};

struct cap {
	struct quota_cap in;
	int64_t committed;
	int32_t next; /* of the same tenant, or of the clusters */
	bool implied; /* not in the policy: no maximum */
};

struct budget {
	struct quota_budget in;
	int128 committed;
	int32_t next; /* of the same tenant */
};

struct account {
	int32_t workspace, pool, cap, cluster_cap;
	int32_t shelf; /* of reserved_shape, or QUOTA_NONE */
	int32_t next_of_workspace, next_of_pool;
	struct quota_share base; /* with the defaults filled in, without exceptions */
	int64_t reserved, limit; /* with running exceptions */
	int64_t borrow, lend;
	int64_t leased, held;
	int64_t replaced; /* what is both leased and held in this pool: it drains for a hold of this workspace, and counts once */
	int64_t replaced_all; /* the same with what drains in the workspace's other pool of the model: for the maximums */
	int64_t leaving;      /* of leased: what is ordered or draining for anyone */
	int64_t fixed;        /* of leased and held: what cannot be preempted */
	int32_t first_lease;
	int32_t first_rung; /* what can be preempted, by priority */
};

/* Leases of an account that can be preempted and have one priority. */
struct rung {
	int64_t priority, units;
	int32_t leases; /* 0: this position is free */
	int32_t next;
};

/* ---- leases and requests ------------------------------------------------------------------------------------------------ */

struct part {
	int32_t group; /* QUOTA_NONE in a hold: a return that it waits for without using its devices */
	int32_t count;
	int32_t promised; /* of a lease's part: what holds wait for */
	int32_t lease;    /* of a hold's part: whose return it waits for, or QUOTA_NONE */
	int32_t next;
};

struct lease {
	char id[QUOTA_ID_SIZE]; /* "": this position is free */
	struct quota_lease in;  /* its pointers are not used */
	int32_t account, first_part;
	int32_t next, prev; /* of the same account */
	int32_t promises;   /* parts of holds that wait for it */
	int32_t own_promises;
	int64_t units;
	int64_t placed_units; /* less: the rest is nowhere */
	int64_t batch;        /* the step that admitted it */
	int64_t dropped_step; /* the step that cancelled its order, so that the same step can take it up again */
	enum quota_order was; /* its order when the step began */
	bool gone;            /* taken out to look at what would be */
	int64_t unassigned;   /* where own holds wait for it: units that stand for none of them (count_replaced) */
	bool others_assigned; /* likewise its CPU, memory and storage */
};

struct wait {
	char id[QUOTA_ID_SIZE];
	struct quota_request in;
	int64_t units;
	int32_t first_part;               /* of its hold */
	int32_t account;                  /* where its hold is, or QUOTA_NONE: it has none */
	int32_t head_of;                  /* the pool whose next units are kept for it, or QUOTA_NONE */
	int32_t detached_from;            /* while its hold is taken out to look at what would be */
	int32_t missing;                  /* parts of the hold that wait for a lease */
	int32_t next_hold;                /* of the same workspace */
	int64_t drains, drains_elsewhere; /* own units that stand for this hold: in its pool, and in the other one */
	bool hold_owed;
	bool fresh; /* submitted in this step */
};

struct place_of_lease {
	int32_t lease;
};

struct exception {
	char id[QUOTA_ID_SIZE];
	struct quota_exception in;
	bool running;
};

#define ARRAY_OF(type)             \
	struct {                   \
		struct type *at;   \
		size_t count, cap; \
	}
/* A zeroed new element at the end. */
#define PUSH(a)                                                              \
	__extension__({                                                      \
		if ((a).count == (a).cap) {                                  \
			(a).cap = (a).cap ? 2 * (a).cap : 16;                \
			(a).at = mem_grow((a).at, (a).cap, sizeof(*(a).at)); \
		}                                                            \
		memset(&(a).at[(a).count], 0, sizeof(*(a).at));              \
		&(a).at[(a).count++];                                        \
	})

struct quota_state {
	struct quota_settings settings;
	int64_t now_ns, skipped_ns, step;
	size_t class_count;
	ARRAY_OF(name) clusters;
	ARRAY_OF(name) models;
	ARRAY_OF(shape) shapes;
	ARRAY_OF(tenant) tenants;
	ARRAY_OF(workspace) workspaces;
	ARRAY_OF(cap) caps;
	ARRAY_OF(budget) budgets;
	ARRAY_OF(account) accounts;
	ARRAY_OF(pool) pools;
	ARRAY_OF(place) pool_places; /* of (tenant + 1, cluster, model) */
	ARRAY_OF(shelf) shelves;
	ARRAY_OF(stock) stocks;
	ARRAY_OF(node) nodes;
	ARRAY_OF(gpu) gpus;
	ARRAY_OF(group) groups;
	ARRAY_OF(part) parts;
	ARRAY_OF(rung) rungs;
	ARRAY_OF(lease) leases;
	ARRAY_OF(wait) waits;
	ARRAY_OF(exception) exceptions;
	ARRAY_OF(quota_backoff) backoffs;
	ARRAY_OF(place_of_lease) touched; /* leases whose order changed in this step */
	struct quota_ids lease_ids, wait_ids;
	int32_t first_cluster_cap;
	int32_t free_part, free_rung, free_lease, free_wait; /* positions to use again */
	size_t lease_count, wait_count;
	bool complete; /* a hold misses nothing any more */
	bool dirty;    /* something became possible: all waiting requests are looked at again */
};

/* ---- quota_index.c: the sums -------------------------------------------------------------------------------------------- */

int32_t quota_group_free(const struct quota_state *s, int32_t group);
/* Devices of a group that a tenant uses or holds, more or fewer. The only way to change them. */
void quota_group_change(struct quota_state *s, int32_t group, int32_t used, int32_t held, int32_t tenant);
/* Devices of a group that a tenant has, or will have when a lease has returned: nobody comes beside it who may not. */
void quota_group_expect(struct quota_state *s, int32_t group, int32_t devices, int32_t tenant);
void quota_gpu_health(struct quota_state *s, int32_t gpu, bool lost);
void quota_node_health(struct quota_state *s, int32_t node, bool lost);
/* Between the two an account's numbers may be changed. */
void quota_account_out(struct quota_state *s, int32_t account);
void quota_account_in(struct quota_state *s, int32_t account);
int64_t quota_committed(const struct account *a);
int64_t quota_debt(const struct account *a);
int64_t quota_idle(const struct account *a);
int64_t quota_protected(const struct account *a);
/* What reclaim may take from it: what is ordered or draining counts as gone, what is held as there. */
int64_t quota_victim_debt(const struct account *a);
/* Stocks, shelves and pools anew from the groups, and all accounts into them. */
void quota_reindex(struct quota_state *s);
int32_t quota_pool(struct quota_state *s, int32_t cluster, int32_t tenant, int32_t model);
/* The workspace's account in its tenant's own pool or the shared one; made when there is none. */
int32_t quota_account(struct quota_state *s, int32_t workspace, int32_t cluster, int32_t model, bool shared);
int32_t quota_account_find(const struct quota_state *s, int32_t workspace, int32_t cluster, int32_t model, bool shared);
int32_t quota_shelf(const struct quota_state *s, int32_t pool, int32_t shape);
/* The numbers in force: defaults, then exceptions that run. */
void quota_account_terms(struct quota_state *s, int32_t account);

/* ---- quota_lease.c: leases, and holds of what they will return ------------------------------------------------------------- */

/* Where a request's devices are taken from. */
struct spot {
	int32_t group, count;
};
struct plan {
	struct spot *at;
	size_t count, cap;
};
static inline void
plan_fini(struct plan *p)
{
	mem_free(p->at);
}

void quota_plan_merge(struct plan *p);

/* What leases of the account that can be preempted and have a lower priority use. */
int64_t quota_preemptible_below(const struct quota_state *s, int32_t account, int64_t priority);
int32_t quota_lease_new(struct quota_state *s, const char *id, const struct quota_lease *in, int32_t account);
int32_t quota_wait_new(struct quota_state *s, const struct quota_request *in);
void quota_wait_free(struct quota_state *s, int32_t wait);
/* It is the head of no pool's queue any more. */
void quota_head_clear(struct quota_state *s, int32_t wait);
int32_t quota_lease_by_id(const struct quota_state *s, const char *id);
int32_t quota_wait_by_id(const struct quota_state *s, const char *id);
/* Devices of a lease, each group once: they are in use from now on. */
void quota_lease_place(struct quota_state *s, int32_t lease, const struct plan *plan);
void quota_lease_unplace(struct quota_state *s, int32_t lease);
void quota_lease_set_order(struct quota_state *s, int32_t lease, enum quota_order order);
/* It has returned: its devices are free, or held for whom they were promised to. */
void quota_lease_end(struct quota_state *s, int32_t lease);
/* Takes a lease out of the sums to look at what would be, and puts it back. Promised devices stay taken. */
void quota_lease_vanish(struct quota_state *s, int32_t lease);
void quota_lease_appear(struct quota_state *s, int32_t lease);
int32_t quota_part_new(struct quota_state *s);
/* A hold is made by adding parts and attaching it. Detached, it keeps its parts and may be attached again. */
void quota_hold_add(struct quota_state *s, int32_t wait, int32_t group, int32_t count, int32_t lease);
void quota_hold_attach(struct quota_state *s, int32_t wait, int32_t account);
void quota_hold_detach(struct quota_state *s, int32_t wait);
void quota_hold_drop(struct quota_state *s, int32_t wait);
/* Makes the lease of a request from a plan, or from its hold when that misses nothing; the request is gone. */
int32_t quota_admit(struct quota_state *s, int32_t wait, int32_t account, const struct plan *plan);

/* ---- quota_fit.c: shapes on real nodes --------------------------------------------------------------------------------------- */

struct ask {
	int32_t pool, shape, tenant;
	int32_t count, per_node;
	int32_t avoid_live; /* leave out nodes that have as many devices of the shape alive; 0: none */
	int32_t node;       /* only this one, or QUOTA_NONE */
};

/* Devices that could be placed now, counted no further than asked for; a multiple of per_node. */
int64_t quota_fit_devices(const struct quota_state *s, const struct ask *ask);
/* The devices for all of it, or false. */
MUST_CHECK bool quota_fit(const struct quota_state *s, const struct ask *ask, struct plan *ret);
/* Whether it would fit if everything declared were there and free. */
bool quota_fit_declared(const struct quota_state *s, const struct ask *ask);

/* ---- quota_check.c: rules 1 to 7, and 9 --------------------------------------------------------------------------------------- */

struct checks {
	struct quota_check *at;
	size_t count, cap;
};

/* Rules 5 to 7 for a request in a pool, on the state as it is. */
struct judgement {
	bool head; /* the head of the queue does not mind */
	bool available, owed, borrow;
	bool borrow_but_for_room; /* 7 without looking at what is free */
	struct ask ask;
};

/* What other workspaces use of the maximums that a request of this one counts for. Remembered before victims are taken out, because
 * rule 2 is relaxed by own victims only. */
struct limit_others {
	int64_t tenant_units, cluster_units;
	int128 tenant_other[QUOTA_OTHERS];
};
struct limit_others quota_limit_others(const struct quota_state *s, int32_t account);

/* Each records its checks where a list is given. */
bool quota_rule_valid(const struct quota_state *s, int32_t wait, struct checks *out); /* 1 */
/* Why it is not well formed; NULL: it is. */
const char *quota_fault(const struct quota_state *s, int32_t wait);
/* Units that one workload of its workspace may have; QUOTA_UNLIMITED. */
int64_t quota_guardrail(const struct quota_state *s, int32_t wait);
bool quota_rule_limit(const struct quota_state *s, int32_t wait, int32_t account, const struct limit_others *others,
                      struct checks *out); /* 2; others NULL: as they are now */
bool quota_rule_budget(const struct quota_state *s, int32_t wait, bool empty, bool *ret_warn,
                       struct checks *out);                                                                /* 3 */
bool quota_rule_ownership(const struct quota_state *s, int32_t wait, int32_t account, struct checks *out); /* 4 */
struct judgement quota_judge(const struct quota_state *s, int32_t wait, int32_t account, struct checks *available,
                             struct checks *owed, struct checks *borrow);                                 /* 5, 6, 7 */
bool quota_rule_declared(const struct quota_state *s, int32_t wait, int32_t account, struct checks *out); /* 9 */

#endif
