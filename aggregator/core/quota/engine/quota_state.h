/* aggregator/core/quota/engine/quota_state.h - the quota engine from inside: its state, and the functions between its files. For the engine's own files only.
 *
 *   tenant ── workspace ── account ─────────── pool ── pool_shape ── node_shape ── group ── gpu ── node
 *                            │ (workspace, pool)     (pool, shape)   (node, shape)  (gpu, shape)
 *                            └ lease ── part ─────────────────────────────────────────┘
 *                              request ── part (its hold)
 *
 * Everything is in flat arrays and refers to others by position, so that a copy is a copy of the arrays. Sums on accounts, pools,
 * pool_shapes and node_shapes are kept up with every change, by two functions only: group_change() and the pair account_out(), account_in(). The
 * property test recomputes each of them from the plain lists. */
#ifndef TOLLGATE_QUOTA_STATE_H
#define TOLLGATE_QUOTA_STATE_H

#include <string.h>

#include "aggregator/core/quota/engine/quota.h"
#include "common/base/hash.h"

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
	int32_t gpu, shape, node_shape;
	int32_t next; /* of the same GPU */
	int32_t total, used, held, fenced;
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

struct node_shape {
	int32_t node, pool_shape;
	int32_t free, live, declared; /* devices; live: and not fenced */
};

struct pool_shape {
	int32_t pool, shape;
	int32_t first_node_shape, node_shape_count; /* in the order of nodes */
	int64_t free, live, declared;               /* devices */
	int64_t protected_units;                    /* of accounts whose reservation is in this shape */
	int64_t protected_empty;                    /* the same if nobody leased anything */
};

struct pool {
	int32_t cluster, tenant, model;
	int32_t first_pool_shape, pool_shape_count;
	int64_t declared, live, leased, held, fenced, free; /* units; fenced: of those that would be free */
	int64_t unplaced;                                   /* units of leases that are nowhere */
	int64_t strict; /* devices taken by tenants that share a GPU or node with nobody */
	int64_t reserved, debt, idle, protected_units;
	int64_t protected_empty; /* if nobody leased anything */
	int32_t first_account;
	int32_t head; /* the waiting request that has a reservation of the next units, or QUOTA_NONE */
};

struct place {
	int32_t pool; /* or QUOTA_NONE */
};

/* ---- tenants, workspaces and their rights ------------------------------------------------------------------------------------------------- */

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
	bool switching;                      /* it has a switch */
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
	int32_t pool_shape; /* of reserved_shape, or QUOTA_NONE */
	int32_t next_of_workspace, next_of_pool;
	struct quota_share base; /* with the defaults filled in, without exceptions */
	int64_t reserved, limit; /* with running exceptions */
	int64_t borrow, lend;
	int64_t leased, held;
	int64_t replaced; /* units both leased and held in this pool: they drain for a hold of this workspace, and count once */
	int64_t replaced_all; /* the same with units that drain in the workspace's other pool of the model: for the maximums */
	int64_t leaving; /* of leased: units ordered or draining for any request */
	int64_t fixed;   /* of leased and held: units that cannot be preempted */
	int32_t first_lease;
	int32_t first_level; /* preemptible units, by priority */
};

/* Leases of an account that can be preempted and have one priority. */
struct priority_level {
	int64_t priority, units;
	int32_t leases; /* 0: this position is free */
	int32_t next;
};

/* ---- leases and requests ------------------------------------------------------------------------------------------------ */

struct part {
	int32_t group; /* QUOTA_NONE in a hold: a return that it waits for without using its devices */
	int32_t count;
	int32_t promised; /* of a lease's part: devices that holds wait for */
	int32_t lease;    /* of a hold's part: whose return it waits for, or QUOTA_NONE */
	int32_t next;
};

struct lease {
	char id[QUOTA_ID_SIZE]; /* "": this position is free */
	char reason[QUOTA_REASON_SIZE];
	struct quota_lease in; /* its pointers are not used */
	int32_t account, first_part;
	int32_t next, prev; /* of the same account */
	int32_t promises;   /* parts of holds that wait for it */
	int32_t own_promises;
	int64_t units;
	int64_t placed_units; /* less: the rest is nowhere */
	int64_t batch;        /* the step that admitted it */
	int64_t dropped_step; /* the step that cancelled its order, so that the same step can take it up again */
	enum quota_order was; /* its order when the step began */
	bool gone;            /* taken out for a what-if */
	int64_t unassigned;   /* where own holds wait for it: units that stand for none of them (count_replaced) */
	bool others_assigned; /* likewise its CPU, memory and storage */
};

struct wait {
	char id[QUOTA_ID_SIZE];
	char reason[QUOTA_REASON_SIZE];
	struct quota_request in;
	int64_t units;
	int32_t first_part;               /* of its hold */
	int32_t account;                  /* where its hold is, or QUOTA_NONE: it has none */
	int32_t head_of;                  /* the pool whose next units are kept for it, or QUOTA_NONE */
	int32_t detached_from;            /* while its hold is taken out for a what-if */
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

struct unused {
	char reason[QUOTA_REASON_SIZE];
	struct quota_unused in; /* its reason is not used */
};

struct fence {
	char id[QUOTA_ID_SIZE];
	struct quota_fence in; /* its id is not used */
	int32_t group;
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
	ARRAY_OF(pool_shape) pool_shapes;
	ARRAY_OF(node_shape) node_shapes;
	ARRAY_OF(node) nodes;
	ARRAY_OF(gpu) gpus;
	ARRAY_OF(group) groups;
	ARRAY_OF(part) parts;
	ARRAY_OF(priority_level) levels;
	ARRAY_OF(lease) leases;
	ARRAY_OF(wait) waits;
	ARRAY_OF(exception) exceptions;
	ARRAY_OF(quota_backoff) backoffs;
	ARRAY_OF(quota_adoption) adoptions; /* by cluster */
	ARRAY_OF(quota_switch) switches;    /* by workspace and cluster */
	ARRAY_OF(fence) fences;             /* by node, GPU, shape and id */
	ARRAY_OF(unused) unused;            /* by workspace, cluster, shape, count and priority */
	ARRAY_OF(place_of_lease) touched;   /* leases whose order changed in this step */
	struct hash lease_ids, wait_ids;
	int32_t first_cluster_cap;
	int32_t free_part, free_level, free_lease, free_wait; /* positions to use again */
	size_t lease_count, wait_count;
	bool complete; /* a hold misses nothing any more */
	bool dirty;    /* something became possible: all waiting requests are looked at again */
};

/* ---- quota_account.c: the sums -------------------------------------------------------------------------------------------- */

int32_t quota_group_free(const struct quota_state *s, int32_t group);
/* Devices of a group that a tenant uses or holds, more or fewer. The only way to change them. */
void quota_group_change(struct quota_state *s, int32_t group, int32_t used, int32_t held, int32_t tenant);
/* Devices of a group that a tenant's lost work may still have, more or fewer. */
void quota_group_fence(struct quota_state *s, int32_t group, int32_t devices, int32_t tenant);
/* Devices of a group that a tenant has, or will have when a lease has returned: no tenant is placed beside it that isolation forbids. */
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
/* The units that reclaim may take from it: ordered and draining leases count as gone, holds as there. */
int64_t quota_victim_debt(const struct account *a);
/* Computes node_shapes, pool_shapes and pools anew from the groups, and adds all accounts to them. */
void quota_reindex(struct quota_state *s);
/* The workspace's account in its tenant's own pool or the shared one; made when there is none. */
int32_t quota_account(struct quota_state *s, int32_t workspace, int32_t cluster, int32_t model, bool shared);
int32_t quota_account_find(const struct quota_state *s, int32_t workspace, int32_t cluster, int32_t model, bool shared);
int32_t quota_pool_shape(const struct quota_state *s, int32_t pool, int32_t shape);
/* The numbers in force: defaults, then exceptions that run. */
void quota_account_terms(struct quota_state *s, int32_t account);

/* ---- quota_lease.c: leases, and holds of the devices that they will return ------------------------------------------------------------- */

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

/* Units of the account's leases that can be preempted and have a lower priority. */
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
/* It has returned: its devices are free, or held for the requests that they were promised to. */
void quota_lease_end(struct quota_state *s, int32_t lease);
/* Takes a lease out of the sums for a what-if, and puts it back. Promised devices stay taken. */
void quota_lease_vanish(struct quota_state *s, int32_t lease);
void quota_lease_appear(struct quota_state *s, int32_t lease);
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
	bool head; /* the head of the queue does not hold it back */
	bool available, owed, borrow;
	bool borrow_but_for_room; /* 7 without looking at free units */
	struct ask ask;
};

/* The use by other workspaces of the maximums that a request of this one counts for. Remembered before victims are taken out, because
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

/* ---- quota_load.c: a state from lists; the devices of a GPU ----------------------------------------------------------- */

bool quota_slots_ok(const struct quota_state *s, const struct quota_slots *slots, size_t count);
void quota_gpu_slots(struct quota_state *s, int32_t gpu, const struct quota_slots *slots, size_t count);
/* Parts as a plan, of at most `want` devices of the shape; false when there is no such place. */
bool quota_plan_of_parts(const struct quota_state *s, const struct quota_part *parts, size_t count, int32_t shape,
                         int64_t want, struct plan *ret);

/* The group of a shape on a GPU, or QUOTA_NONE. */
int32_t quota_group_at(const struct quota_state *s, int32_t node, int32_t gpu, int32_t shape);
bool quota_lease_ok(const struct quota_state *s, const struct quota_lease *in);
bool quota_request_ok(const struct quota_state *s, const struct quota_request *in);
bool quota_exception_ok(const struct quota_state *s, const struct quota_exception *in);

/* ---- quota_reclaim.c: rule 8 and reclaim -------------------------------------------------------------------------------------- */

struct victim {
	int32_t lease;
	enum quota_why why;
	int64_t debt; /* of its workspace just before */
};

struct victim_search {
	int32_t wait, account;
	struct victim *at; /* in the order of taking */
	size_t count, cap;
	struct plan plan;
	bool owed;
	int64_t borrowed;
	bool limit_short;           /* rule 2 forbids the request as things are */
	int32_t elsewhere;          /* the workspace's account in the other pool, where limit_short; else QUOTA_NONE */
	struct limit_others others; /* of rule 2, before anything was taken */
	int32_t *displaced;         /* requests whose hold must be dropped */
	size_t displaced_count, displaced_cap;
};

void victim_search_fini(struct victim_search *h);

/* Whether a legal set exists; limit_short: rule 2 forbids the request as things are. The state is as before when it returns. A set may be empty when only holds are displaced. */
MUST_CHECK bool quota_victim_search(struct quota_state *s, int32_t wait, int32_t account, bool limit_short,
                                    struct victim_search *ret);

/* The verdicts and notices of a step so far. */
struct verdicts {
	struct quota_verdict *at;
	size_t count, cap;
};
struct notices {
	struct quota_notice *at;
	size_t count, cap;
};
struct gather {
	struct verdicts verdicts;
	struct notices notices;
};

/* The rules applied to one request, before anything is done about it. */
struct ruling {
	enum quota_decision decision;
	int32_t account[2];  /* own, shared */
	bool may[2];         /* rules 2 to 4 */
	bool may_replace[2]; /* rules 3 and 4: own work may be given up for rule 2 */
	struct judgement j[2];
	int place; /* where it goes: 0 own, 1 shared */
	bool warn; /* a soft budget is exceeded */
	int64_t borrowed;
	struct plan plan;
	struct victim_search search; /* reclaim */
};

/* ---- quota_adopt.c: work that ran before anybody asked for it ----------------------------------------------------------------- */

MUST_CHECK bool quota_adopt_ok(const struct quota_state *s, const struct quota_event *e, struct err *err);
void quota_adopt(struct quota_state *s, const struct quota_event *e, struct gather *g);
void quota_adoption(struct quota_state *s, const struct quota_event *e);
/* The adoptions and switches of a state whose policy becomes another one; the caller frees both lists. */
void quota_switches_under(const struct quota_state *s, const struct quota_policy *policy,
                          struct quota_adoption **ret_adoptions, struct quota_switch **ret_switches,
                          size_t *ret_switch_count);
/* Whether it is no victim yet because it was adopted. */
bool quota_is_spared(const struct quota_state *s, const struct lease *l);
/* Until when; meaningful where it was adopted. */
int64_t quota_spared_until(const struct quota_state *s, const struct lease *l);

/* ---- quota_fence.c: devices of work that was lost ------------------------------------------------------------------------------ */

MUST_CHECK bool quota_fence_ok(const struct quota_state *s, const struct quota_fence *in);
/* A fence in its place of the list. */
void quota_fence_add(struct quota_state *s, const struct quota_fence *in);
/* The lease ends, and its devices are fenced. */
void quota_lose(struct quota_state *s, int32_t lease, struct gather *g);
void quota_unfence(struct quota_state *s, const struct quota_event *e, struct gather *g);
/* Ends the fences of a GPU on devices that it has not any more. */
void quota_unfence_gone(struct quota_state *s, int32_t gpu, struct gather *g);

/* ---- quota_unused.c: requests of which the last lease was not used ------------------------------------------------------------- */

MUST_CHECK bool quota_unused_ok(const struct quota_state *s, const struct quota_unused *in);
/* In its place of the list. */
void quota_unused_add(struct quota_state *s, const struct quota_unused *in);
/* A lease expires unconfirmed. Holds of such requests are dropped. */
void quota_unused_expired(struct quota_state *s, const struct lease *l, struct gather *g);
/* A lease is confirmed for the first time. */
void quota_unused_confirmed(struct quota_state *s, const struct lease *l);
/* Those that are long past. */
void quota_unused_forget(struct quota_state *s);
/* Until when nobody is evicted for the request; 0: it may reclaim. */
int64_t quota_unused_until(const struct quota_state *s, const struct wait *w);
/* A reason that may be missing, into its place. */
void quota_copy_reason(char to[QUOTA_REASON_SIZE], const char *from);

/* ---- quota_event.c ------------------------------------------------------------------------------------------------------------- */

/* Requests whose hold waits for the lease lose it and are planned again. */
void quota_replan_those_waiting_for(struct quota_state *s, int32_t lease, struct gather *g);

/* ---- quota_decide.c: one request --------------------------------------------------------------------------------------------------------- */

void ruling_fini(struct ruling *r);
/* The state is as before when it returns. */
void quota_rule(struct quota_state *s, int32_t wait, struct ruling *ret);
/* The same of a request that has a hold, as if it had none: true when it can do with less now. */
bool quota_improve(struct quota_state *s, int32_t wait, struct ruling *ret);
/* The verdict with all its checks; made before the ruling is carried out. */
void quota_make_verdict(struct quota_state *s, int32_t wait, const struct ruling *r, struct quota_verdict *ret);
/* Where the plan has its devices. */
void quota_verdict_placed(const struct quota_state *s, const struct plan *plan, struct quota_verdict *v);
/* Carries it out. True when requests may have got a better place in the queue. */
bool quota_carry_out(struct quota_state *s, int32_t wait, struct ruling *r, struct gather *g);
void quota_notice(struct gather *g, enum quota_notice_kind kind, const char *id, const char *for_id, int64_t at_ns);
/* Drops a request's hold; it waits on and is decided again in this step. */
void quota_replan(struct quota_state *s, int32_t wait, struct gather *g);
/* Requests whose hold misses nothing any more are admitted. */
void quota_complete(struct quota_state *s, struct gather *g);

/* ---- quota_queue.c: all that wait, in order ---------------------------------------------------------------------------------------------------------- */

/* All that wait, first to last as things are now; the caller frees the list. */
struct queued {
	int32_t wait;
};
size_t quota_queue_order(const struct quota_state *s, struct queued **ret);
/* Decides the waiting requests: all of them when something became possible, else those just submitted. */
void quota_pass(struct quota_state *s, struct gather *g);
/* The place of each waiting request in the queue, from 1, into the verdicts that wait. */
void quota_positions(const struct quota_state *s, struct verdicts *v);

/* ---- quota_explain.c: the changes that would admit a request ------------------------------------------------------- */

/* The changes that would admit it, from the checks; each: units of one device. They follow those that the verdict has already. */
void quota_changes(struct quota_verdict *v, const struct checks *checks, int64_t each);

#endif
