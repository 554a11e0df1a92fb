/* aggregator/core/quota/engine/quota_check.c - rules 1 to 7 and 9 of quota.h in their order, on the state as it is. Nothing here changes the state. Rule 8 is in quota_reclaim.c. */
#include "aggregator/core/quota/engine/quota_state.h"

static int64_t
clamp(int128 v)
{
	return v > INT64_MAX ? INT64_MAX : v < INT64_MIN ? INT64_MIN : (int64_t)v;
}

static int64_t
least(int64_t a, int64_t b)
{
	return a < b ? a : b;
}

/* Whether need <= have, recorded with its numbers; leased and held are the part of the need that was there before. */
static bool
check(struct checks *out, enum quota_rule rule, enum quota_scope scope, bool shared, int128 need, int64_t have,
      struct quota_check about)
{
	bool ok = have == QUOTA_UNLIMITED || need <= have;

	if (out) {
		about.rule = rule;
		about.scope = scope;
		about.shared = shared;
		about.ok = ok;
		about.need = clamp(need);
		about.have = have;
		about.headroom =
			have == QUOTA_UNLIMITED ? QUOTA_UNLIMITED : clamp((int128)have - need + about.requested);
		*PUSH(*out) = about;
	}
	return ok;
}

/* A check that is a yes or a no: need 1 of have 0 or 1. */
static bool
check_yes(struct checks *out, enum quota_rule rule, enum quota_scope scope, bool shared, bool yes)
{
	return check(out, rule, scope, shared, 1, yes ? 1 : 0, (struct quota_check){.requested = 1});
}

static const struct tenant *
tenant_of(const struct quota_state *s, const struct wait *w)
{
	return &s->tenants.at[s->workspaces.at[w->in.workspace].in.tenant];
}

/* ---- rule 1: valid ---------------------------------------------------------------------------------------------------------------------- */

const char *
quota_fault(const struct quota_state *s, int32_t wait)
{
	const struct wait *w = &s->waits.at[wait];

	if (w->in.shape == QUOTA_NONE)
		return "there is no such model or shape";
	if (w->in.count <= 0)
		return "it asks for nothing";
	if (w->in.per_node > 0 && w->in.count % w->in.per_node != 0)
		return "the count is not a multiple of per_node";
	if (w->in.klass == QUOTA_NONE)
		return NULL;
	if (w->in.klass < 0 || (size_t)w->in.klass >= s->class_count)
		return "there is no such priority class";
	return quota_class_allowed(&tenant_of(s, w)->in.classes, w->in.klass)
	               ? NULL
	               : "its tenant may not use this priority class";
}

static int64_t
nodes_of(const struct quota_state *s, int32_t workspace, int32_t cluster, int32_t shape, bool shared)
{
	int32_t account = quota_account_find(s, workspace, cluster, s->shapes.at[shape].in.model, shared);
	int32_t pool_shape =
		account == QUOTA_NONE ? QUOTA_NONE : quota_pool_shape(s, s->accounts.at[account].pool, shape);

	return pool_shape == QUOTA_NONE ? 0 : s->pool_shapes.at[pool_shape].node_shape_count;
}

static int64_t
nodes_with(const struct quota_state *s, const struct wait *w, bool shared)
{
	return nodes_of(s, w->in.workspace, w->in.cluster, w->in.shape, shared);
}

bool
quota_may_use_shape(const struct quota_state *s, int32_t workspace, int32_t cluster, int32_t shape)
{
	return nodes_of(s, workspace, cluster, shape, false) + nodes_of(s, workspace, cluster, shape, true) > 0;
}

bool
quota_may_use_class(const struct quota_state *s, int32_t workspace, int32_t klass)
{
	return quota_class_allowed(&s->tenants.at[s->workspaces.at[workspace].in.tenant].in.classes, klass);
}

bool
quota_is_enforced(const struct quota_state *s, int32_t workspace)
{
	return s->workspaces.at[workspace].in.enforce == QUOTA_ENFORCE_ON && !s->workspaces.at[workspace].switching;
}

int64_t
quota_guardrail(const struct quota_state *s, int32_t wait)
{
	const struct wait *w = &s->waits.at[wait];

	return least(tenant_of(s, w)->in.per_workload_units, s->workspaces.at[w->in.workspace].in.per_workload_units);
}

bool
quota_rule_valid(const struct quota_state *s, int32_t wait, struct checks *out)
{
	const struct wait *w = &s->waits.at[wait];
	int64_t guard = quota_guardrail(s, wait);
	bool formed = check_yes(out, QUOTA_RULE_VALID, QUOTA_SCOPE_REQUEST, false, quota_fault(s, wait) == NULL);
	bool guarded = check(out, QUOTA_RULE_VALID, QUOTA_SCOPE_GUARDRAIL, false, w->units, guard,
	                     (struct quota_check){.requested = w->units});

	/* Every shape can be had alone by filling its GPU or node; the remaining question is whether there is a node. */
	return check_yes(out, QUOTA_RULE_VALID, QUOTA_SCOPE_ISOLATION, false,
	                 w->in.shape != QUOTA_NONE && nodes_with(s, w, false) + nodes_with(s, w, true) > 0) &&
	       formed && guarded;
}

/* ---- rule 2: limit ---------------------------------------------------------------------------------------------------------------------- */

/* The workspace's part of the maximums of a cluster and model, in both pools. */
static int64_t
own_units(const struct quota_state *s, const struct account *a)
{
	int64_t units = 0;

	for (int i = 0; i < 2; i++) {
		int32_t at = quota_account_find(s, a->workspace, a->base.cluster, a->base.model, i == 1);

		if (at != QUOTA_NONE)
			units += s->accounts.at[at].leased + s->accounts.at[at].held - s->accounts.at[at].replaced_all;
	}
	return units;
}

struct limit_others
quota_limit_others(const struct quota_state *s, int32_t account)
{
	const struct account *a = &s->accounts.at[account];
	const struct workspace *ws = &s->workspaces.at[a->workspace];
	int64_t own = own_units(s, a);
	struct limit_others o = {.tenant_units = s->caps.at[a->cap].committed - own,
	                         .cluster_units = s->caps.at[a->cluster_cap].committed - own};

	for (int i = 0; i < QUOTA_OTHERS; i++)
		o.tenant_other[i] = s->tenants.at[ws->in.tenant].other_used[i] - ws->other_used[i];
	return o;
}

static bool
within_cap(const struct quota_state *s, const struct wait *w, int32_t cap, int64_t committed, enum quota_scope scope,
           bool shared, struct checks *out)
{
	return check(out, QUOTA_RULE_LIMIT, scope, shared, (int128)committed + w->units, s->caps.at[cap].in.maximum,
	             (struct quota_check){.leased = committed, .requested = w->units});
}

bool
quota_rule_limit(const struct quota_state *s, int32_t wait, int32_t account, const struct limit_others *others,
                 struct checks *out)
{
	const struct wait *w = &s->waits.at[wait];
	const struct account *a = &s->accounts.at[account];
	const struct workspace *ws = &s->workspaces.at[w->in.workspace];
	const struct tenant *t = tenant_of(s, w);
	int64_t own = others ? own_units(s, a) : 0;
	bool ok = check(out, QUOTA_RULE_LIMIT, QUOTA_SCOPE_WORKSPACE, a->base.shared,
	                (int128)quota_committed(a) + w->units, a->limit,
	                (struct quota_check){.leased = a->leased, .held = a->held, .requested = w->units});

	ok = within_cap(s, w, a->cap, others ? others->tenant_units + own : s->caps.at[a->cap].committed,
	                QUOTA_SCOPE_TENANT, a->base.shared, out) &&
	     ok;
	ok = within_cap(s, w, a->cluster_cap,
	                others ? others->cluster_units + own : s->caps.at[a->cluster_cap].committed,
	                QUOTA_SCOPE_CLUSTER, a->base.shared, out) &&
	     ok;
	for (int i = 0; i < QUOTA_OTHERS; i++) {
		int64_t want = w->in.other[i];
		int128 of_tenant = others ? others->tenant_other[i] + ws->other_used[i] : t->other_used[i];

		if (want == 0)
			continue;
		ok = check(out, QUOTA_RULE_LIMIT, (enum quota_scope)(QUOTA_SCOPE_CPU + i), a->base.shared,
		           ws->other_used[i] + want, ws->in.other_limit[i],
		           (struct quota_check){.leased = clamp(ws->other_used[i]), .requested = want}) &&
		     ok;
		ok = check(out, QUOTA_RULE_LIMIT, (enum quota_scope)(QUOTA_SCOPE_TENANT_CPU + i), a->base.shared,
		           of_tenant + want, t->in.other_limit[i],
		           (struct quota_check){.leased = clamp(of_tenant), .requested = want}) &&
		     ok;
	}
	return ok;
}

/* ---- rule 3: budget ---------------------------------------------------------------------------------------------------------------------- */

/* With `empty` as if nothing were running: the consumed part stays. */
bool
quota_rule_budget(const struct quota_state *s, int32_t wait, bool empty, bool *ret_warn, struct checks *out)
{
	const struct wait *w = &s->waits.at[wait];
	bool ok = true;

	for (int32_t i = tenant_of(s, w)->first_budget; i != QUOTA_NONE; i = s->budgets.at[i].next) {
		const struct budget *b = &s->budgets.at[i];
		int64_t want = b->in.kind == QUOTA_BUDGET_MONEY    ? w->in.cost
		               : b->in.kind == QUOTA_BUDGET_TOKENS ? 1
		                                                   : w->units * w->in.expected_s;
		int128 committed = empty ? 0 : b->committed;
		bool fits;

		if (b->in.workspace != QUOTA_NONE && b->in.workspace != w->in.workspace)
			continue;
		fits = check(out, QUOTA_RULE_BUDGET,
		             b->in.workspace == QUOTA_NONE ? QUOTA_SCOPE_TENANT : QUOTA_SCOPE_WORKSPACE, false,
		             b->in.consumed + committed + want, b->in.amount,
		             (struct quota_check){.soft = !b->in.hard,
		                                  .budget = b->in.kind,
		                                  .leased = b->in.consumed,
		                                  .held = clamp(committed),
		                                  .requested = want});
		if (!fits && b->in.hard)
			ok = false;
		if (!fits && !b->in.hard && ret_warn)
			*ret_warn = true;
	}
	return ok;
}

/* ---- rule 4: ownership ---------------------------------------------------------------------------------------------------------------------- */

bool
quota_rule_ownership(const struct quota_state *s, int32_t wait, int32_t account, struct checks *out)
{
	const struct wait *w = &s->waits.at[wait];
	const struct account *a = &s->accounts.at[account];
	int64_t nodes = nodes_with(s, w, a->base.shared);

	return check(out, QUOTA_RULE_OWNERSHIP, QUOTA_SCOPE_ISOLATION, a->base.shared, 1, nodes,
	             (struct quota_check){.requested = 1});
}

/* ---- rule 5: available ---------------------------------------------------------------------------------------------------------------------- */

static int64_t
free_of_shape(const struct quota_state *s, const struct account *a, int32_t shape)
{
	int32_t pool_shape = quota_pool_shape(s, a->pool, shape);
	int64_t kept;

	if (pool_shape == QUOTA_NONE)
		return 0;
	kept = s->pool_shapes.at[pool_shape].protected_units - (a->pool_shape == pool_shape ? quota_protected(a) : 0);
	return s->pool_shapes.at[pool_shape].free * s->shapes.at[shape].in.units - kept;
}

static bool
submitted_after(const struct wait *w, const struct wait *h)
{
	if (w->in.submitted_ns != h->in.submitted_ns)
		return w->in.submitted_ns > h->in.submitted_ns;
	return strcmp(w->id, h->id) > 0;
}

/* The head of the queue keeps the next units it could use: every node that could ever give it a part. It does not hold back an
 * owed request of another workspace; later requests of its own workspace wait behind it, owed or not. */
static bool
head_allows(const struct quota_state *s, int32_t wait, const struct account *a, bool owed, struct ask *ask)
{
	const struct pool *p = &s->pools.at[a->pool];
	const struct wait *w = &s->waits.at[wait], *h;

	if (p->head == QUOTA_NONE || p->head == wait)
		return true;
	h = &s->waits.at[p->head];
	if (h->in.workspace == w->in.workspace)
		return !submitted_after(w, h);
	if (owed)
		return true;
	if (h->in.shape == w->in.shape)
		ask->avoid_live = h->in.per_node > 1 ? h->in.per_node : 1;
	return p->free - p->protected_units - w->units >= h->units;
}

static void
judge_available(const struct quota_state *s, int32_t wait, const struct account *a, struct judgement *j,
                struct checks *out)
{
	const struct wait *w = &s->waits.at[wait];
	const struct pool *p = &s->pools.at[a->pool];
	bool shared = a->base.shared;
	int64_t each = s->shapes.at[w->in.shape].in.units;
	int64_t sum = p->free - (p->protected_units - quota_protected(a)), shape = free_of_shape(s, a, w->in.shape);
	bool ok, fits;

	ok = check(out, QUOTA_RULE_AVAILABLE, QUOTA_SCOPE_POOL, shared, w->units, sum,
	           (struct quota_check){.leased = p->leased, .held = p->held, .requested = w->units});
	ok = check(out, QUOTA_RULE_AVAILABLE, QUOTA_SCOPE_SHAPE, shared, w->units, shape,
	           (struct quota_check){.requested = w->units}) &&
	     ok;
	fits = (out || ok) && quota_fit_devices(s, &j->ask) >= w->in.count;
	if (out) {
		struct ask anywhere = j->ask;

		/* All that is free, and then the part that the head of the queue keeps. */
		anywhere.avoid_live = 0;
		(void)check(out, QUOTA_RULE_AVAILABLE, QUOTA_SCOPE_NODES, shared, w->units,
		            quota_fit_devices(s, &anywhere) * each, (struct quota_check){.requested = w->units});
		if (!j->head || (!fits && j->ask.avoid_live > 0))
			check_yes(out, QUOTA_RULE_AVAILABLE, QUOTA_SCOPE_HEAD, shared, false);
	}
	j->available = ok && fits && j->head;
}

/* ---- rules 6 and 7: owed, borrow -------------------------------------------------------------------------------------------------------------------- */

static bool
judge_owed(const struct quota_state *s, const struct wait *w, const struct account *a, struct checks *out)
{
	bool ok = check(out, QUOTA_RULE_OWED, QUOTA_SCOPE_WORKSPACE, a->base.shared,
	                (int128)quota_committed(a) + w->units, a->reserved,
	                (struct quota_check){.leased = a->leased, .held = a->held, .requested = w->units});

	(void)s;
	if (!w->in.preemptible)
		ok = check(out, QUOTA_RULE_OWED, QUOTA_SCOPE_FIXED, a->base.shared, (int128)a->fixed + w->units,
		           a->reserved, (struct quota_check){.leased = a->fixed, .requested = w->units}) &&
		     ok;
	return ok;
}

static int64_t
backoff_left(const struct quota_state *s, const struct wait *w)
{
	int32_t model = s->shapes.at[w->in.shape].in.model;

	for (size_t i = 0; i < s->backoffs.count; i++) {
		const struct quota_backoff *b = &s->backoffs.at[i];

		if (b->workspace == w->in.workspace && b->cluster == w->in.cluster && b->model == model)
			return b->until_ns > s->now_ns ? b->until_ns - s->now_ns : 0;
	}
	return 0;
}

static void
judge_borrow(const struct quota_state *s, const struct wait *w, const struct account *a, struct judgement *j,
             struct checks *out)
{
	const struct pool *p = &s->pools.at[a->pool];
	bool shared = a->base.shared;
	int64_t debt = quota_debt(a),
		after = least(w->units, INT64_MAX - quota_committed(a)) + quota_committed(a) - a->reserved;
	int64_t fresh, sum = p->free - (p->protected_units - quota_protected(a)), left = backoff_left(s, w);
	bool ok = check_yes(out, QUOTA_RULE_BORROW, QUOTA_SCOPE_PREEMPTIBLE, shared, w->in.preemptible);

	after = after > 0 ? after : 0;
	fresh = after - debt;
	ok = check(out, QUOTA_RULE_BORROW, QUOTA_SCOPE_WORKSPACE, shared, after, a->borrow,
	           (struct quota_check){
			   .leased = debt, .requested = fresh, .follows = a->base.borrow == QUOTA_DEFAULT}) &&
	     ok;
	if (left > 0) {
		if (out)
			*PUSH(*out) = (struct quota_check){.rule = QUOTA_RULE_BORROW,
			                                   .scope = QUOTA_SCOPE_BACKOFF,
			                                   .shared = shared,
			                                   .have = left};
		ok = false;
	}
	j->borrow_but_for_room = ok && !j->owed;
	ok = check(out, QUOTA_RULE_BORROW, QUOTA_SCOPE_POOL, shared, fresh, sum - (w->units - fresh),
	           (struct quota_check){.leased = p->debt, .held = p->held, .requested = fresh}) &&
	     ok;
	j->borrow = ok && !j->owed;
}

struct judgement
quota_judge(const struct quota_state *s, int32_t wait, int32_t account, struct checks *available, struct checks *owed,
            struct checks *borrow)
{
	const struct wait *w = &s->waits.at[wait];
	const struct account *a = &s->accounts.at[account];
	struct judgement j = {.ask = {.pool = a->pool,
	                              .shape = w->in.shape,
	                              .tenant = s->workspaces.at[w->in.workspace].in.tenant,
	                              .count = w->in.count,
	                              .per_node = w->in.per_node,
	                              .node = QUOTA_NONE}};

	j.owed = judge_owed(s, w, a, owed);
	j.head = head_allows(s, wait, a, j.owed, &j.ask);
	judge_available(s, wait, a, &j, available);
	judge_borrow(s, w, a, &j, borrow);
	return j;
}

/* ---- rule 9: declared capacity could ever admit it ---------------------------------------------------------------------------------------------------------------------- */

bool
quota_rule_declared(const struct quota_state *s, int32_t wait, int32_t account, struct checks *out)
{
	const struct wait *w = &s->waits.at[wait];
	const struct account *a = &s->accounts.at[account];
	const struct workspace *ws = &s->workspaces.at[w->in.workspace];
	const struct pool *p = &s->pools.at[a->pool];
	const struct tenant *t = tenant_of(s, w);
	int32_t pool_shape = quota_pool_shape(s, a->pool, w->in.shape);
	int64_t own = a->reserved > a->lend ? a->reserved - a->lend : 0;
	int64_t have = p->declared - (p->protected_empty - own), most = a->limit;
	struct ask ask = {.pool = a->pool, .shape = w->in.shape, .count = w->in.count, .per_node = w->in.per_node};
	bool ok = quota_rule_budget(s, wait, true, NULL, NULL) && quota_fit_declared(s, &ask);

	if (pool_shape != QUOTA_NONE)
		have = least(have, s->pool_shapes.at[pool_shape].declared * s->shapes.at[w->in.shape].in.units -
		                           (s->pool_shapes.at[pool_shape].protected_empty -
		                            (a->pool_shape == pool_shape ? own : 0)));
	most = least(most, least(s->caps.at[a->cap].in.maximum, s->caps.at[a->cluster_cap].in.maximum));
	/* Owed, or borrowed up to the cap; work that cannot be preempted is never borrowed. */
	if (!w->in.preemptible)
		most = least(most, a->reserved);
	else if (a->borrow != QUOTA_UNLIMITED)
		most = least(most, a->reserved + a->borrow);
	for (int i = 0; i < QUOTA_OTHERS; i++)
		ok = ok && w->in.other[i] <= ws->in.other_limit[i] && w->in.other[i] <= t->in.other_limit[i];
	return check(out, QUOTA_RULE_DECLARED, QUOTA_SCOPE_POOL, a->base.shared, w->units, ok ? least(have, most) : 0,
	             (struct quota_check){.requested = w->units}) &&
	       ok;
}
