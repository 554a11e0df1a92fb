/* aggregator/core/quota/engine/quota.h - the quota engine: which requests get GPUs now, which wait, and which leases give back what was lent.
 *
 * Pure: no clock, database, log or file; the time is an argument. A state is a value: it is loaded from plain lists, changed by
 * events, and saved as plain lists again. The same state and event give the same outcome to the byte; ties go by id.
 *
 * Words. A pool is one cluster's nodes of one tenant, or its shared nodes, per GPU model. A shape is the kind of device that a request counts: whole
 * GPUs, instances of a MIG profile, or replicas of a shared GPU. An account has the rights and the use of one workspace in one pool.
 *     leased     units of its leases, draining ones until they returned
 *     held       units of its waiting requests that have a hold
 *     committed  leased + held, where a hold and the own leases that drain for it count as the larger of the two: what rules 2, 6
 *                and 7 count
 *     debt       max(0, committed - reserved)         idle       max(0, reserved - committed)
 *     protected  max(0, idle - lend cap): never available to anyone else
 *     free       units of healthy devices neither leased, held nor fenced
 *
 * The rules, in order; every check is recorded with its numbers, also those that pass:
 *  1. valid       known workspace, model, shape and class; count > 0, a multiple of per_node; within the guardrails; its
 *                 tenant's isolation can be had on some node
 *  2. limit       committed + want <= limit + running exceptions; likewise the tenant's maximum (over its own and the shared pool)
 *                 and the cluster's (over all tenants), per model; likewise CPU, memory and storage
 *  3. budget      consumed + committed + requested <= budget; a soft one only warns
 *  4. ownership   there are nodes that the tenant owns, or shared ones, in this pool that its isolation allows
 *  5. available   the shape fits free healthy devices on real nodes, and free - protected of others >= want. Gates admission, not
 *                 reclaim
 *  6. owed        committed + want <= reserved, and for work that cannot be preempted also the sum of such leases and this one
 *  7. borrow      not owed, preemptible, debt after <= borrow cap, not in back-off, and the new part of the debt is found in free
 *                 unreserved units, then in idle reservations within their lend caps
 *  8. own         own preemptible leases of strictly lower priority may be given up; then 2 and 5-7 as if they had ended. For 2
 *                 they may be in either pool. A request that still borrows then may give up only own work that borrows: its workspace has
 *                 debt in that pool just before its removal. 3 is not relaxed, CPU, memory and storage are
 *  9. otherwise   queue when declared capacity and the present policy could ever admit it, else reject
 *
 * A request is placed wholly in one pool: the own one is tried first, then the shared one. Admission in either comes before a
 * reclaim in either.
 *
 * A workspace with enforce off or warn always gets "admit"; `would` has the decision by the rules. Its leases are placed where they fit, or
 * else counted as excess, make no victims and are none.
 *
 * Adoption: what ran before anybody asked becomes a confirmed lease where it runs. While a scheduler has declared that it adopts, and not yet that
 * this is complete, a workspace whose enforcement is switched on stays as it was in that cluster. What was adopted is no victim for one grace, from
 * its adoption and from such a switch; then it is as any other lease.
 *
 * Unused leases: for a request whose last lease expired unconfirmed nobody is evicted, first for the confirm time, then doubled each time: what the
 * scheduler cannot place would evict again and again. It is the same request when workspace, cluster, shape, count and priority are the same. Another reason
 * of its scheduler than that of the expired one ends this at once, a confirmed lease of the workspace and shape forgets it. It is admitted where there is room.
 *
 * Fences: work that its scheduler says ended on a dead node counts nowhere from then on, but nobody has seen that its devices are empty. They are
 * fenced, neither free nor lendable, until telemetry speaks or the devices are gone. No hold waits for a fence. */
#ifndef TOLLGATE_QUOTA_H
#define TOLLGATE_QUOTA_H

#include "common/base/limits.h"
#include "common/base/units.h"

#define QUOTA_UNLIMITED INT64_MAX
#define QUOTA_DEFAULT INT64_C(-1) /* limit, borrow, lend: the default of the struct that has it */
#define QUOTA_NONE (-1)           /* as an index */
#define QUOTA_NOWHERE (-2)        /* as a lease's node: on no device that is known */
#define QUOTA_ID_SIZE 128         /* of leases, requests, exceptions, with the NUL */
#define QUOTA_NAME_SIZE 128       /* of tenants, workspaces, clusters, models, profiles, with the NUL */
#define QUOTA_NODE_SIZE (LIMIT_NODE_NAME + 1)
#define QUOTA_REASON_SIZE 129   /* of a scheduler's reason, with the NUL */
#define QUOTA_MAX_COUNT 1000000 /* devices of one request */
#define QUOTA_MAX_LEASES 1000000u
#define QUOTA_MAX_PRIORITY 1000000000
#define QUOTA_MAX_SKIPPED_NS (INT64_C(1) << 60)

_Static_assert(QUOTA_NAME_SIZE > LIMIT_MODEL && QUOTA_NAME_SIZE > LIMIT_PROFILE && QUOTA_NAME_SIZE > LIMIT_LABEL,
               "what others accept has room");

enum quota_isolation {
	QUOTA_SHARED,
	QUOTA_BY_MIG,
	QUOTA_BY_GPU,
	QUOTA_BY_NODE
}; /* the smallest thing that it shares with no other tenant */
enum quota_reclaim { QUOTA_RECLAIM_ANY, QUOTA_RECLAIM_LOWER, QUOTA_RECLAIM_NEVER };
enum quota_enforce { QUOTA_ENFORCE_ON, QUOTA_ENFORCE_WARN, QUOTA_ENFORCE_OFF };
enum quota_shape_kind { QUOTA_WHOLE, QUOTA_MIG, QUOTA_REPLICA };
enum quota_other { QUOTA_CPU, QUOTA_MEMORY, QUOTA_STORAGE, QUOTA_OTHERS }; /* thousandths of a core; bytes; bytes */

/* ---- the policy, as plain lists; the position in its list is a thing's index -------------------------------------- */

struct quota_shape {
	int32_t model; /* index into models */
	enum quota_shape_kind kind;
	int64_t units;    /* of one: 5040 for a whole GPU */
	const char *name; /* profile, or "" */
};

/* The priority classes that a tenant may use. */
struct quota_class_set {
	bool only; /* those of the set, which may be none; else all, whatever the set says */
	uint64_t bits[(LIMIT_CLASSES + 63) / 64];
};
static inline void
quota_class_allow(struct quota_class_set *set, int32_t klass)
{
	set->only = true;
	set->bits[klass / 64] |= UINT64_C(1) << klass % 64;
}
static inline bool
quota_class_allowed(const struct quota_class_set *set, int32_t klass)
{
	return !set->only || (klass < LIMIT_CLASSES && (set->bits[klass / 64] >> klass % 64 & 1) != 0);
}

struct quota_tenant {
	const char *name;
	enum quota_isolation isolation;
	int64_t per_workload_units;        /* guardrail, QUOTA_UNLIMITED: none */
	struct quota_class_set classes;    /* that it may use */
	int64_t other_limit[QUOTA_OTHERS]; /* QUOTA_UNLIMITED: none */
};

struct quota_workspace {
	const char *name;
	int32_t tenant;
	enum quota_reclaim reclaim;
	bool preempt_own; /* lower; else never */
	enum quota_enforce enforce;
	int64_t weight; /* > 0 */
	int64_t per_workload_units;
	int64_t other_limit[QUOTA_OTHERS];
};

/* The rights of a workspace in a pool. Without one: reserved 0 and the rest by default. */
struct quota_share {
	int32_t workspace, cluster, model;
	bool shared; /* in the cluster's shared pool; else in the tenant's own one */
	int64_t reserved;
	int32_t reserved_shape; /* the MIG shape it was given in, or QUOTA_NONE: then its protected part is of that shape */
	int64_t limit;          /* default: reserved + burst x reserved; with reserved 0 the tenant's default_limit */
	int64_t borrow;         /* default: limit - reserved */
	int64_t lend;           /* default: all of reserved */
};

/* The maximum of a tenant per cluster and model, or of the cluster itself (tenant QUOTA_NONE). */
struct quota_cap {
	int32_t tenant, cluster, model;
	int64_t maximum;
	int64_t default_limit; /* of its workspaces without reservation; QUOTA_DEFAULT: the maximum */
};

enum quota_budget_kind { QUOTA_BUDGET_UNIT_SECONDS, QUOTA_BUDGET_MONEY, QUOTA_BUDGET_TOKENS };
struct quota_budget {
	int32_t tenant, workspace; /* workspace QUOTA_NONE: of the whole tenant */
	enum quota_budget_kind kind;
	bool hard;
	int64_t amount,
		consumed; /* of this month; money in the unit of the requests' cost. A request counts as one token: a budget that is used up stops new work */
};

struct quota_settings {
	int64_t burst;             /* default 2 */
	int64_t grace_ns;          /* from the order until it is overdue */
	int64_t aging_ns;          /* one step of priority in the queue; 0: none */
	int64_t head_wait_ns;      /* after this the first one waiting gets a reservation; 0: none */
	int64_t backoff_ns;        /* first back-off after a reclaim, doubled each time; 0: none */
	int64_t backoff_forget_ns; /* quiet time after which it begins anew */
	int64_t confirm_ns;        /* an unconfirmed lease expires after this; 0: never */
	int64_t silence_ns;        /* a confirmed lease is suspect after this; 0: never */
	int64_t unused_most_ns; /* the longest time for which nobody is evicted because a lease was not used; 0: none. Logs of before have none */
};

struct quota_policy {
	struct quota_settings settings;
	const char *const *clusters;
	size_t cluster_count;
	const char *const *models;
	size_t model_count;
	size_t class_count; /* priority classes that exist */
	const struct quota_shape *shapes;
	size_t shape_count;
	const struct quota_tenant *tenants;
	size_t tenant_count;
	const struct quota_workspace *workspaces;
	size_t workspace_count;
	const struct quota_share *shares;
	size_t share_count;
	const struct quota_cap *caps;
	size_t cap_count;
	const struct quota_budget *budgets;
	size_t budget_count;
};

/* ---- nodes, leases and requests -------------------------------------------------------------------------------------------- */

struct quota_slots {
	int32_t shape;
	int32_t count;
};

/* Whole: one slot of the whole. Partitioned: its instances. Shared: its replicas. All of one model. */
struct quota_gpu {
	const struct quota_slots *slots;
	size_t slot_count;
	bool lost;
};

struct quota_node {
	const char *name;
	int32_t cluster;
	int32_t tenant; /* owner; QUOTA_NONE: shared */
	bool lost;      /* silent, down or in maintenance: declared, but not live */
	const struct quota_gpu *gpus;
	size_t gpu_count;
};

/* Devices of one shape on one GPU. */
struct quota_part {
	int32_t node, gpu; /* gpu: position on its node */
	int32_t shape, count;
	const char *lease; /* of a hold: whose return it waits for; NULL: held already */
};

enum quota_lease_state { QUOTA_ADMITTED, QUOTA_CONFIRMED, QUOTA_SUSPECT };
enum quota_order { QUOTA_NO_ORDER, QUOTA_ORDERED, QUOTA_DRAINING, QUOTA_OVERDUE, QUOTA_ENFORCED };

struct quota_lease {
	const char *id;
	int32_t workspace, cluster, shape, count;
	int32_t node; /* where it runs, or QUOTA_NONE: the first node where it fits. Not read with parts */
	bool shared;  /* of the shared pool; read where the node is QUOTA_NOWHERE */
	const struct quota_part *parts; /* its devices, when they are known */
	size_t part_count;
	int32_t priority;
	bool preemptible;
	enum quota_lease_state state;
	bool released, empty;   /* of returning: the scheduler said so; telemetry saw it */
	int64_t since_ns;       /* admitted; the newest has the largest */
	int64_t seen_ns;        /* last confirmation, heartbeat or telemetry */
	enum quota_order order; /* draining without a hold is QUOTA_DRAINING */
	int64_t ordered_ns, due_ns;
	bool reclaimed;     /* ordered for another workspace: its own may not borrow for a while */
	int64_t renewed_ns; /* since when it may be confirmed, where that began anew; 0: since it was admitted */
	bool adopted;       /* it ran before anybody asked for it */
	int64_t adopted_ns; /* since when the book knows it; for one grace from then on it is no victim */
	const char *reason; /* of its request, until it is confirmed; NULL or "": none */
	int64_t unit_seconds, cost; /* committed in budgets */
	int64_t other[QUOTA_OTHERS];
};

/* Since when an unconfirmed lease may be confirmed. */
static inline int64_t
quota_confirmable_since(const struct quota_lease *l)
{
	return l->renewed_ns != 0 ? l->renewed_ns : l->since_ns;
}

struct quota_request {
	const char *id;
	int32_t workspace, cluster, shape, count;
	int32_t per_node; /* 0: anywhere; else a node gives a multiple of this, and count is one */
	int32_t priority;
	int32_t klass; /* priority class, QUOTA_NONE: not named */
	bool preemptible;
	int64_t expected_s; /* for budgets of GPU-hours; 0: not known */
	int64_t cost;       /* for budgets of money */
	int64_t submitted_ns; /* since when it waits: its scheduler may say that it did so before it was asked for. Never after the step */
	int64_t expires_ns; /* 0: never */
	const char *reason; /* why it waits, as its scheduler says; NULL or "": not said */
	int64_t other[QUOTA_OTHERS];
	/* As saved: the hold it has, empty when none. At least one part then waits for a lease. */
	const struct quota_part *hold;
	size_t hold_count;
	bool hold_owed;             /* made for an owed request */
	bool head_own, head_shared; /* the head of the queue of its own pool, or of the shared one */
};

struct quota_exception {
	const char *id;
	int32_t workspace, cluster, model;
	bool shared;
	int64_t extra_limit, extra_reserved; /* units; a reservation raises the limit too */
	int64_t from_ns, until_ns;
};

/* Adoption of what runs in a cluster, as its scheduler declared it. A cluster without one is as one that is complete. */
struct quota_adoption {
	int32_t cluster;
	bool complete;
	int64_t switched_ns; /* when enforcement last began for a workspace of it; 0: not since it was declared */
};

/* A workspace that the policy enforces and whose switch does not take effect in a cluster before adoption there is complete. */
struct quota_switch {
	int32_t workspace, cluster;
	enum quota_enforce enforce; /* in force until then: warn or off */
};

struct quota_backoff {
	int32_t workspace, cluster, model;
	int32_t times;
	int64_t last_ns, until_ns;
};

/* Requests of which the last lease was not used. */
struct quota_unused {
	int32_t workspace, cluster, shape, count, priority;
	int32_t times;             /* leases in a row */
	int64_t last_ns, until_ns; /* the last one expired; nobody is evicted */
	const char *reason;        /* of the last one */
};

/* Devices of a lost lease on one GPU. */
struct quota_fence {
	const char *id; /* the lease that had them */
	int32_t workspace, node, gpu, shape, count;
	int64_t since_ns; /* telemetry of before says nothing */
};

struct quota_world {
	int64_t now_ns; /* of the last step */
	int64_t skipped_ns; /* how far the clock was set forward until then, which is no time that passed. Negative: it was set back */
	struct quota_policy policy;
	const struct quota_node *nodes;
	size_t node_count;
	const struct quota_lease *leases; /* any order; since_ns tells the age */
	size_t lease_count;
	const struct quota_request *waiting;
	size_t waiting_count;
	const struct quota_exception *exceptions;
	size_t exception_count;
	const struct quota_backoff *backoffs;
	size_t backoff_count;
	const struct quota_adoption *adoptions; /* by cluster */
	size_t adoption_count;
	const struct quota_switch *switches; /* by workspace and cluster */
	size_t switch_count;
	const struct quota_fence *fences; /* by node, GPU, shape and id */
	size_t fence_count;
	const struct quota_unused *unused; /* by workspace, cluster, shape, count and priority */
	size_t unused_count;
};

struct quota_state;

/* Checks the lists (indices, ids unique, ranges) and builds the state; nothing is decided. */
MUST_CHECK bool quota_load(const struct quota_world *world, struct quota_state **ret, struct err *err);
struct quota_state *quota_clone(const struct quota_state *s);
void quota_free(struct quota_state *s);
DEFINE_OWNED(quota, struct quota_state)

/* The state as plain lists, in a fixed order; loading it gives a state that behaves the same. */
struct quota_saved {
	struct quota_world world;
	void *memory; /* everything the world points to */
};
void quota_save(const struct quota_state *s, struct quota_saved *ret);
void quota_saved_fini(struct quota_saved *saved);

/* ---- events --------------------------------------------------------------------------------------------------------- */

enum quota_event_kind {
	QUOTA_SUBMIT, /* requests: one batch */
	QUOTA_TICK, /* time has passed: expiry, silence, overdue orders, exceptions, back-offs, aging, head of the queue */
	QUOTA_FINISH,  /* lease: released and seen empty */
	QUOTA_RELEASE, /* lease: the scheduler says it ended; it returns when it is seen empty too. lost: at once, and its devices are fenced */
	QUOTA_EMPTY,   /* lease: telemetry sees its devices empty; a released or suspect one returns */
	QUOTA_DRAIN,   /* lease: the order is acknowledged, or the scheduler drains it anyway */
	QUOTA_ENFORCE, /* lease: the overdue order is being enforced */
	QUOTA_CONFIRM, /* lease: it runs; with parts: where */
	QUOTA_HEARTBEAT, /* lease: it still runs */
	QUOTA_CANCEL,    /* id: a waiting request */
	QUOTA_NODE_LOST,
	QUOTA_NODE_BACK, /* node */
	QUOTA_GPU_LOST,
	QUOTA_GPU_BACK,      /* node, gpu */
	QUOTA_LAYOUT,        /* node, gpu, slots: it was partitioned anew */
	QUOTA_EXCEPTION,     /* exception: it begins at from_ns */
	QUOTA_EXCEPTION_END, /* id: revoked */
	QUOTA_POLICY, /* policy: replaces the old one; tenants, workspaces, shapes and so on keep their positions, new ones follow */
	QUOTA_CLOCK, /* until_ns, skipped_ns: the clock was set. Moments of leases, orders, requests and back-offs until then move with it, so
	              * that everything is as old as it was; dates (exceptions, expiry of requests) stay */
	QUOTA_RENEW, /* lease: an unconfirmed one may be confirmed for the whole time again; a confirmed one stays as it is */
	QUOTA_ADOPT, /* adopted: it runs already. No rule stops it, what is too much is counted as excess, and nobody gives way for it */
	QUOTA_ADOPTION, /* cluster, complete: whether everything that runs there has been adopted */
	QUOTA_UNFENCE, /* id: a lease that was lost; telemetry sees nothing of it on its devices, with parts: on those of their nodes and GPUs */
};

struct quota_event {
	enum quota_event_kind kind;
	const char *id; /* of the lease, request or exception */
	const struct quota_request *requests;
	size_t request_count;
	int32_t node, gpu;
	const struct quota_slots *slots;
	size_t slot_count;
	const struct quota_part *parts;
	size_t part_count;
	const struct quota_exception *exception;
	const struct quota_policy *policy;
	/* With its parts; one whose GPU is QUOTA_NONE is anywhere on its node. Only what a scheduler can say of it is read. */
	const struct quota_lease *adopted;
	bool is_elsewhere; /* of one without parts: it runs on nodes that the state does not know */
	int32_t cluster;
	bool complete;
	bool lost;                    /* of QUOTA_RELEASE: its node is dead */
	int64_t until_ns, skipped_ns; /* skipped_ns: all of it, since the book began; saying it twice changes nothing */
};

enum quota_decision { QUOTA_ADMIT, QUOTA_BORROW, QUOTA_RECLAIM, QUOTA_QUEUE, QUOTA_REJECT };

enum quota_rule {
	QUOTA_RULE_VALID = 1,
	QUOTA_RULE_LIMIT,
	QUOTA_RULE_BUDGET,
	QUOTA_RULE_OWNERSHIP,
	QUOTA_RULE_AVAILABLE,
	QUOTA_RULE_OWED,
	QUOTA_RULE_BORROW,
	QUOTA_RULE_OWN,
	QUOTA_RULE_DECLARED, /* 9: whether it could ever be admitted */
};

/* The subject of a check's numbers. Amounts are units unless said otherwise. */
enum quota_scope {
	QUOTA_SCOPE_REQUEST,   /* 1: known and well formed; need = count */
	QUOTA_SCOPE_GUARDRAIL, /* 1: maximum per workload */
	QUOTA_SCOPE_ISOLATION, /* 1, 4: nodes that may be used */
	QUOTA_SCOPE_WORKSPACE, /* 2, 3, 6, 7 */
	QUOTA_SCOPE_TENANT,    /* 2, 3 */
	QUOTA_SCOPE_CLUSTER,   /* 2 */
	QUOTA_SCOPE_CPU,       /* 2: of the workspace; then the tenant's */
	QUOTA_SCOPE_MEMORY,
	QUOTA_SCOPE_STORAGE,
	QUOTA_SCOPE_TENANT_CPU,
	QUOTA_SCOPE_TENANT_MEMORY,
	QUOTA_SCOPE_TENANT_STORAGE,
	QUOTA_SCOPE_POOL,        /* 5, 7: the sum, less what is protected */
	QUOTA_SCOPE_SHAPE,       /* 5: devices of the shape, less what is protected of it */
	QUOTA_SCOPE_NODES,       /* 5: real nodes and instances; units that could be placed */
	QUOTA_SCOPE_FIXED,       /* 6: the workspace's leases that cannot be preempted */
	QUOTA_SCOPE_BACKOFF,     /* 7: have = ns until it may borrow again */
	QUOTA_SCOPE_PREEMPTIBLE, /* 7: only preemptible work borrows */
	QUOTA_SCOPE_HEAD,        /* 5: the head of the queue has a reservation of what this would use */
	QUOTA_SCOPE_UNUSED,      /* 8: have = ns until leases may be evicted for it: its last one was not used */
};

struct quota_check {
	enum quota_rule rule;
	enum quota_scope scope;
	bool shared; /* of the shared pool */
	bool ok;
	bool soft;                     /* a budget that only warns */
	bool after;                    /* rule 2 as if the victims had ended */
	enum quota_budget_kind budget; /* 3: what it is of */
	bool follows; /* 7: the borrow cap is what the limit leaves above the reservation, and rises with it */
	int64_t need; /* the sum that must not exceed `have` */
	int64_t have; /* QUOTA_UNLIMITED: no limit */
	int64_t leased, held, requested;
	int64_t headroom; /* have - need + requested: the most that would still fit; QUOTA_UNLIMITED */
};

enum quota_why {
	QUOTA_WHY_DRAINING, /* was draining already */
	QUOTA_WHY_DEBT,     /* its workspace has more than its reservation */
	QUOTA_WHY_OWN,      /* of the same workspace, with lower priority */
};

struct quota_victim {
	char id[QUOTA_ID_SIZE];
	int32_t workspace;
	enum quota_why why;
	int32_t priority;
	int64_t units;
	int64_t debt;   /* of its workspace just before its removal */
	int64_t weight; /* of its workspace */
};

enum quota_change_kind {
	QUOTA_CHANGE_REQUEST, /* ask for something else: it is not valid */
	QUOTA_CHANGE_SHAPE,   /* ask for the verdict's offered shape: there is no device of the one asked for */
	QUOTA_CHANGE_SMALLER, /* ask for no more than amount: one workload may not have more */
	QUOTA_CHANGE_GUARDRAIL, /* from here: raise by amount. The maximum per workload, where even the smallest request exceeds it */
	QUOTA_CHANGE_LIMIT,
	QUOTA_CHANGE_TENANT_MAXIMUM,
	QUOTA_CHANGE_CLUSTER_MAXIMUM,
	QUOTA_CHANGE_OTHER_LIMIT, /* of the scope */
	QUOTA_CHANGE_BUDGET,      /* of the scope; of money or not */
	QUOTA_CHANGE_RESERVED,
	QUOTA_CHANGE_BORROW,
	QUOTA_CHANGE_CAPACITY, /* amount more units that are free and not protected, in whole devices of the verdict's shape */
	QUOTA_CHANGE_WAIT, /* amount ns, until the back-off ends */
	QUOTA_CHANGE_TURN, /* wait: the head of the queue comes first */
};

#define QUOTA_MAX_CHANGES \
	22 /* one of each kind but the last two of rule 2 and 3: six scopes, two scopes of three kinds */
struct quota_change {
	enum quota_change_kind kind;
	enum quota_rule rule; /* of the check that asks for it: with its scope this says what the amount is in */
	enum quota_scope scope;
	bool shared;                   /* in the shared pool */
	enum quota_budget_kind budget; /* of rule 3 */
	int64_t amount;
};

/* When a waiting request is expected to start, or why that is not known. */
enum quota_start_kind {
	QUOTA_START_UNASKED,
	QUOTA_START_NOT_YET,        /* not estimated yet */
	QUOTA_START_AT,             /* at a time */
	QUOTA_START_ROUGHLY,        /* likewise, though not every waiting request was simulated */
	QUOTA_START_NO_DURATION,    /* something that must end first has no expected duration, or has outrun it */
	QUOTA_START_NOT_BY_WAITING, /* when everything else has ended it still waits */
	QUOTA_START_EXPIRES,        /* its own time is over before */
	QUOTA_START_TOO_FAR, /* beyond the steps that were simulated, or behind too many requests of its tenant */
};

struct quota_placed {
	int32_t node, gpu, shape, count;
};

struct quota_verdict {
	char id[QUOTA_ID_SIZE];
	int32_t workspace; /* whose request it is */
	enum quota_decision decision;
	enum quota_decision would; /* what the rules say: differs only where enforce is not on */
	bool warn;                 /* enforce is warn and would is not admit, or a soft budget is exceeded */
	bool owed;
	bool shared;            /* placed in the shared pool */
	int64_t borrowed_units; /* new part of the debt */
	int64_t position;       /* in the queue of a pool, from 1; 0: does not wait */
	int64_t queue_length;   /* requests that wait in it */
	bool queue_shared;      /* it is the shared pool's: its tenant has no nodes of its own for it */
	bool others_first; /* other requests may take what the changes bring: they are before it, or wait for the same */
	enum quota_start_kind start;
	int64_t start_ns;            /* of QUOTA_START_AT and QUOTA_START_ROUGHLY */
	bool not_yet;                /* reclaim: its victims are asked to end only when the queue is next looked at */
	int32_t shape;               /* what is counted; with QUOTA_CHANGE_SHAPE the offered one */
	struct quota_placed *placed; /* admit, borrow; reclaim: everything that is held */
	size_t placed_count;
	struct quota_victim *victims;
	size_t victim_count;
	struct quota_check *checks;
	size_t check_count;
	/* The smallest set of changes that would admit it. None when it is admitted. */
	struct quota_change changes[QUOTA_MAX_CHANGES];
	size_t change_count;
	/* Of QUOTA_CHANGE_REQUEST, where they are known: the fault, and the request to make instead. */
	char *fault, *remedy;
	bool unreserved;         /* borrow: nobody else reserves anything in its pool */
	bool adopted;            /* it ran already */
	int64_t unused_until_ns; /* nobody is evicted for it until then; 0: not so */
	bool or_preemptible;     /* instead of QUOTA_CHANGE_RESERVED: ask as preemptible */
	/* Where its text is in that of the outcome, when that was written (quota_book_outcome_json). */
	size_t text_at, text_len;
};

enum quota_notice_kind {
	QUOTA_ORDER_MADE,      /* id: the victim, for_id: the request it returns its devices to */
	QUOTA_ORDER_CANCELLED, /* before it drained */
	QUOTA_ORDER_OVERDUE,
	QUOTA_HOLD_DROPPED, /* id: the request; it is planned again in the same step where it still waits */
	QUOTA_LEASE_RETURNED,
	QUOTA_LEASE_EXPIRED, /* was not confirmed */
	QUOTA_LEASE_SUSPECT,
	QUOTA_REQUEST_EXPIRED,
	QUOTA_REQUEST_CANCELLED,
	QUOTA_EXCEPTION_BEGAN,
	QUOTA_EXCEPTION_ENDED,
	QUOTA_REFUSED, /* id: not known, or the event is not possible now; for_id is a word why */
	QUOTA_LEASE_ADOPTED,
	QUOTA_FENCED,   /* id: a lease that returned as lost; its devices are fenced */
	QUOTA_UNFENCED, /* its devices, or some of them, are not fenced any more */
};

struct quota_notice {
	enum quota_notice_kind kind;
	char id[QUOTA_ID_SIZE];
	char for_id[QUOTA_ID_SIZE];
	int64_t at_ns; /* an order: when it is due */
};

/* The result of a step. Verdicts: each submitted request, then each waiting one that advanced or got another plan, in the order
 * decided. A request that gets what its hold waited for is there with admit or borrow. */
struct quota_outcome {
	struct quota_verdict *verdicts;
	size_t verdict_count;
	struct quota_notice *notices; /* by kind and id */
	size_t notice_count;
};

/* Applies one event; time never goes back (a smaller now_ns is the last one). ERR_INVALID leaves the state as it was: an index out of range,
 * an id too long, a policy that does not fit. An id that is not known is a notice, not an error. A request_id that waits or runs
 * already is ERR_CONFLICT. */
MUST_CHECK bool quota_step(struct quota_state *s, int64_t now_ns, const struct quota_event *event,
                           struct quota_outcome **ret, struct err *err);
void quota_outcome_free(struct quota_outcome *o);
DEFINE_OWNED(quota_outcome, struct quota_outcome)

/* What-if: the same on a copy; nothing is written. */
MUST_CHECK bool quota_try(const struct quota_state *s, int64_t now_ns, const struct quota_event *event,
                          struct quota_outcome **ret, struct err *err);

/* A waiting request with all its checks as they stand now. NULL: no such request. */
struct quota_outcome *quota_explain(const struct quota_state *s, int64_t now_ns, const char *request_id);

/* An estimate: a copy of the state is run forward from now_ns on, as far as it reaches. Each waiting request, by id; the caller frees the list.
 * It ends early when give_up becomes true. */
struct quota_reach {
	int64_t cost;     /* a step costs one and one for each request that is looked at and waits */
	size_t of_tenant; /* a tenant's requests that are looked at, the first in the queue; beside those with a hold */
};
struct quota_start {
	char id[QUOTA_ID_SIZE];
	enum quota_start_kind kind;
	int64_t at_ns; /* 0: not known */
};
size_t quota_forecast(const struct quota_state *s, int64_t now_ns, struct quota_reach reach,
                      const _Atomic bool *give_up, struct quota_start **ret);
bool quota_start_is_known(enum quota_start_kind kind);
/* As shown to users: rounded up to a minute, and to five where it is more than an hour ahead. Exact, it would reveal to the second when another tenant's work ends. */
int64_t quota_start_told_ns(int64_t at_ns, int64_t now_ns);
const struct quota_start *quota_start_find(const struct quota_start *at, size_t count, const char *id);

/* Every waiting request with its position as things are now; the caller frees the list. */
struct quota_place {
	char id[QUOTA_ID_SIZE];
	int64_t position;
	int64_t start_ns; /* where the caller knows an estimate; 0: none */
	bool shared;      /* in the queue of the shared pool */
};
size_t quota_queue_places(const struct quota_state *s, struct quota_place **ret);

/* ---- figures -------------------------------------------------------------------------------------------------------- */

struct quota_pool_figures {
	int32_t cluster, tenant, model; /* tenant QUOTA_NONE: shared */
	int64_t declared, live;
	int64_t leased, held, fenced, free; /* leased + held + fenced + free = live + excess */
	int64_t excess;                     /* leased or held on lost devices, or beyond them */
	int64_t reserved;                   /* with running exceptions; above declared or live: an alert */
	int64_t debt, idle, protected_units;
};
size_t quota_pool_count(const struct quota_state *s);
struct quota_pool_figures quota_pool_at(const struct quota_state *s, size_t i);

struct quota_account_figures {
	int64_t reserved, limit, borrow, lend; /* in force: with defaults and running exceptions */
	int64_t leased, held, committed, fixed, debt, idle;
};
/* Zeros when the workspace has no such pool. */
struct quota_account_figures quota_account_at(const struct quota_state *s, int32_t workspace, int32_t cluster,
                                              int32_t model, bool shared);

/* The rule that the first sentence about a verdict names: the first that forbids it, or the one that admits it. */
enum quota_rule quota_deciding_rule(const struct quota_verdict *v);
/* Neither its tenant nor the shared pool has a node with the requested shape. */
bool quota_has_no_node(const struct quota_verdict *v);
/* Whether its quotas are enforced in every cluster. */
bool quota_is_enforced(const struct quota_state *s, int32_t workspace);
/* What is in force for a workspace in a cluster: the policy's word, or the one before it where a switch waits for adoption. */
enum quota_enforce quota_enforce_in(const struct quota_state *s, int32_t workspace, int32_t cluster);
/* The adoption that a cluster's scheduler declared; NULL: none. */
const struct quota_adoption *quota_adoption_of(const struct quota_state *s, int32_t cluster);
/* Whether the tenant of a workspace may use a priority class. */
bool quota_may_use_class(const struct quota_state *s, int32_t workspace, int32_t klass);
/* Whether there is a node of a cluster, own or shared, that work of a workspace may use and that has devices of a shape. */
bool quota_may_use_shape(const struct quota_state *s, int32_t workspace, int32_t cluster, int32_t shape);
/* Requests of workspaces that are not enforced whose `would` was not admit or borrow, since the state was loaded. */
int64_t quota_would_deny_count(const struct quota_state *s, int32_t workspace);
size_t quota_lease_count(const struct quota_state *s);
size_t quota_waiting_count(const struct quota_state *s);
size_t quota_waiting_of_tenant(const struct quota_state *s, int32_t tenant);
int64_t quota_now(const struct quota_state *s); /* of the last step */
int64_t quota_skipped(const struct quota_state *s);
/* Whether there is a request or lease of this id. */
bool quota_knows(const struct quota_state *s, const char *id);
/* When the order of each lease that has one with an end is due, moved with a clock that was set; the caller frees the list. */
struct quota_due {
	char lease[QUOTA_ID_SIZE];
	int64_t due_ns;
};
size_t quota_orders_due(const struct quota_state *s, struct quota_due **ret);
/* The shape of a lease; QUOTA_NONE when there is none of that id. */
int32_t quota_lease_shape(const struct quota_state *s, const char *id);

const char *quota_decision_name(enum quota_decision d); /* "admit" */
const char *quota_rule_name(enum quota_rule r);         /* "limit" */
const char *quota_scope_name(enum quota_scope s);       /* "tenant memory" */
const char *quota_why_name(enum quota_why w);
const char *quota_change_name(const struct quota_change *c); /* "raise the workspace's limit" */
const char *quota_notice_name(enum quota_notice_kind k);
const char *quota_start_text(enum quota_start_kind k); /* why it is not known, or what is assumed */

#endif
