/* aggregator/core/quota/engine/quota_explain.c - names of enums, the smallest change that would admit a request, and a waiting request explained as it stands now. */
#include "aggregator/core/quota/engine/quota_state.h"

/* ---- the smallest change ---------------------------------------------------------------------------------------------------- */

struct changes {
	struct quota_change at[QUOTA_MAX_CHANGES];
	size_t count;
	int128 sum;
	bool no_nodes; /* the pool has none for it */
	bool or_preemptible;
};

/* Of two shortages of the same thing the larger one counts. Two changes are of the same thing when their kind is the same, for other limits and budgets also the scope. */
static void
want(struct changes *c, enum quota_change_kind kind, const struct quota_check *k, int64_t amount)
{
	bool by_scope = kind == QUOTA_CHANGE_OTHER_LIMIT || kind == QUOTA_CHANGE_BUDGET;

	for (size_t i = 0; i < c->count; i++) {
		if (c->at[i].kind != kind || (by_scope && (c->at[i].scope != k->scope || c->at[i].budget != k->budget)))
			continue;
		if (amount > c->at[i].amount)
			c->at[i].amount = amount;
		return;
	}
	ASSERT(c->count < QUOTA_MAX_CHANGES);
	c->at[c->count++] = (struct quota_change){.kind = kind,
	                                          .rule = k->rule,
	                                          .scope = k->scope,
	                                          .shared = k->shared,
	                                          .budget = k->budget,
	                                          .amount = amount};
}

static enum quota_change_kind
kind_of_limit(enum quota_scope scope)
{
	switch (scope) {
	case QUOTA_SCOPE_WORKSPACE: return QUOTA_CHANGE_LIMIT;
	case QUOTA_SCOPE_TENANT: return QUOTA_CHANGE_TENANT_MAXIMUM;
	case QUOTA_SCOPE_CLUSTER: return QUOTA_CHANGE_CLUSTER_MAXIMUM;
	default: return QUOTA_CHANGE_OTHER_LIMIT;
	}
}

static void
want_for(const struct quota_check *k, int64_t each, struct changes *c)
{
	int64_t amount = k->need - k->have;

	if (k->ok || k->soft)
		return;
	switch (k->rule) {
	case QUOTA_RULE_VALID:
		if (k->scope == QUOTA_SCOPE_GUARDRAIL)
			want(c, QUOTA_CHANGE_GUARDRAIL, k, amount);
		else if (k->scope != QUOTA_SCOPE_ISOLATION) /* no node is no capacity: rule 5 says so */
			want(c, QUOTA_CHANGE_REQUEST, k, 0);
		break;
	case QUOTA_RULE_LIMIT: want(c, kind_of_limit(k->scope), k, amount); break;
	case QUOTA_RULE_BUDGET: want(c, QUOTA_CHANGE_BUDGET, k, amount); break;
	case QUOTA_RULE_AVAILABLE:
		if (k->scope == QUOTA_SCOPE_HEAD)
			want(c, QUOTA_CHANGE_TURN, k, 0);
		else
			want(c, QUOTA_CHANGE_CAPACITY, k, (amount + each - 1) / each * each);
		break;
	case QUOTA_RULE_OWNERSHIP:
	case QUOTA_RULE_OWED:
	case QUOTA_RULE_BORROW: /* these two by want_right() */
	case QUOTA_RULE_OWN:
	case QUOTA_RULE_DECLARED: break;
	}
}

/* 6 or 7. Work that cannot be preempted has only 6; else 7 is the easier one. */
static void
want_right(const struct checks *checks, bool shared, struct changes *c)
{
	const struct quota_check *owed = NULL, *preemptible = NULL, *borrow = NULL, *backoff = NULL;
	int64_t lacks = 0;

	for (size_t i = 0; i < checks->count; i++) {
		const struct quota_check *k = &checks->at[i];

		if (k->ok || k->shared != shared)
			continue;
		if (k->rule == QUOTA_RULE_OWED && k->need - k->have > lacks) {
			lacks = k->need - k->have;
			owed = k;
		}
		if (k->rule == QUOTA_RULE_BORROW && k->scope == QUOTA_SCOPE_PREEMPTIBLE)
			preemptible = k;
		if (k->rule == QUOTA_RULE_BORROW && k->scope == QUOTA_SCOPE_WORKSPACE)
			borrow = k;
		if (k->rule == QUOTA_RULE_BORROW && k->scope == QUOTA_SCOPE_BACKOFF)
			backoff = k;
	}
	if (!owed)
		return;
	if (preemptible) {
		want(c, QUOTA_CHANGE_RESERVED, owed, lacks);
		c->or_preemptible = (!borrow || borrow->follows) && !backoff;
		return;
	}
	if (borrow && !borrow->follows)
		want(c, QUOTA_CHANGE_BORROW, borrow, borrow->need - borrow->have);
	if (backoff)
		want(c, QUOTA_CHANGE_WAIT, backoff, backoff->have);
}

static void
changes_in(const struct checks *checks, bool shared, int64_t each, struct changes *ret)
{
	*ret = (struct changes){0};
	for (size_t i = 0; i < checks->count; i++) {
		const struct quota_check *k = &checks->at[i];

		if (k->rule == QUOTA_RULE_OWNERSHIP && k->shared == shared && !k->ok)
			ret->no_nodes = true;
		if (k->rule != QUOTA_RULE_AVAILABLE &&
		    (k->shared == shared || k->rule == QUOTA_RULE_VALID || k->rule == QUOTA_RULE_BUDGET))
			want_for(k, each, ret);
	}
	/* Free GPUs last: they do not help a request without a right to them. */
	if (ret->count > 0 && ret->at[0].kind == QUOTA_CHANGE_REQUEST) {
		ret->count = 1; /* the checks are of this request, not of the one that should be made */
	} else {
		want_right(checks, shared, ret);
		for (size_t i = 0; i < checks->count; i++)
			if (checks->at[i].rule == QUOTA_RULE_AVAILABLE && checks->at[i].shared == shared)
				want_for(&checks->at[i], each, ret);
	}
	for (size_t i = 0; i < ret->count; i++)
		ret->sum += ret->at[i].amount;
}

/* In a pool that has nodes for it; where fewer things must change, then where they must change less, then in the own one. */
void
quota_changes(struct quota_verdict *v, const struct checks *checks, int64_t each)
{
	struct changes own, shared;
	const struct changes *best = &own;

	changes_in(checks, false, each, &own);
	changes_in(checks, true, each, &shared);
	if (shared.no_nodes != own.no_nodes)
		best = own.no_nodes ? &shared : &own;
	else if (shared.count < own.count || (shared.count == own.count && shared.sum < own.sum))
		best = &shared;
	ASSERT(v->change_count + best->count <= QUOTA_MAX_CHANGES);
	memcpy(&v->changes[v->change_count], best->at, best->count * sizeof(*best->at));
	v->change_count += best->count;
	v->or_preemptible = best->or_preemptible;
}

/* ---- the rule that decided ---------------------------------------------------------------------------------------------------- */

bool
quota_has_no_node(const struct quota_verdict *v)
{
	int pools = 0;

	for (size_t i = 0; i < v->check_count; i++)
		pools += v->checks[i].rule == QUOTA_RULE_OWNERSHIP && !v->checks[i].ok;
	return pools == 2;
}

enum quota_rule
quota_deciding_rule(const struct quota_verdict *v)
{
	switch (v->would) {
	case QUOTA_ADMIT: return QUOTA_RULE_OWED;
	case QUOTA_BORROW: return QUOTA_RULE_BORROW;
	case QUOTA_RECLAIM:
		for (size_t i = 0; i < v->check_count; i++)
			if (!v->checks[i].ok && !v->checks[i].soft && v->checks[i].shared == v->shared)
				return v->checks[i].rule;
		break;
	case QUOTA_QUEUE:
	case QUOTA_REJECT:
		if (v->change_count > 0)
			return v->changes[0].rule != QUOTA_RULE_VALID && quota_has_no_node(v) ? QUOTA_RULE_OWNERSHIP
			                                                                      : v->changes[0].rule;
		break;
	}
	return QUOTA_RULE_AVAILABLE;
}

/* ---- a request as it stands now ---------------------------------------------------------------------------------------------- */

static bool
told_already(const struct quota_verdict *v, const char *id)
{
	for (size_t i = 0; i < v->victim_count; i++)
		if (strcmp(v->victims[i].id, id) == 0)
			return true;
	return false;
}

/* A request that has a hold waits for the leases that were asked to end for it, whatever the rules would say without it. */
static void
verdict_hold(const struct quota_state *s, const struct wait *w, struct quota_verdict *v)
{
	size_t parts = 0;

	for (int32_t p = w->first_part; p != QUOTA_NONE; p = s->parts.at[p].next)
		parts++;
	mem_free(v->victims);
	v->victims = mem_array(parts + 1, sizeof(*v->victims));
	v->victim_count = v->change_count = 0;
	v->or_preemptible = false;
	v->decision = v->would = QUOTA_RECLAIM;
	v->owed = w->hold_owed;
	v->shared = s->accounts.at[w->account].base.shared;
	for (int32_t p = w->first_part; p != QUOTA_NONE; p = s->parts.at[p].next) {
		const struct lease *l = s->parts.at[p].lease == QUOTA_NONE ? NULL : &s->leases.at[s->parts.at[p].lease];
		const struct account *a = l ? &s->accounts.at[l->account] : NULL;
		struct quota_victim *x = &v->victims[v->victim_count];

		if (!l || told_already(v, l->id))
			continue;
		*x = (struct quota_victim){.workspace = a->workspace,
		                           .why = a->workspace == w->in.workspace ? QUOTA_WHY_OWN
		                                  : l->in.order == QUOTA_ORDERED  ? QUOTA_WHY_DEBT
		                                                                  : QUOTA_WHY_DRAINING,
		                           .priority = l->in.priority,
		                           .units = l->units,
		                           .debt = quota_victim_debt(a) + l->units,
		                           .weight = s->workspaces.at[a->workspace].in.weight};
		memcpy(x->id, l->id, sizeof(x->id));
		v->victim_count++;
	}
}

struct quota_outcome *
quota_explain(const struct quota_state *s, int64_t now_ns, const char *request_id)
{
	owned(quota) struct quota_state *c = NULL;
	owned(quota_outcome) struct quota_outcome *o = NULL;
	int32_t wait = quota_wait_by_id(s, request_id);
	in_place(ruling) struct ruling r = {0};
	struct verdicts list;

	if (wait == QUOTA_NONE)
		return NULL;
	c = quota_clone(s);
	if (now_ns > c->now_ns)
		c->now_ns = now_ns;
	c->step++;
	if (c->waits.at[wait].account != QUOTA_NONE)
		quota_hold_drop(c, wait);
	o = mem_alloc(sizeof(*o));
	o->verdicts = mem_array(1, sizeof(*o->verdicts));
	o->verdict_count = 1;
	quota_rule(c, wait, &r);
	quota_make_verdict(c, wait, &r, &o->verdicts[0]);
	if (s->waits.at[wait].account != QUOTA_NONE)
		verdict_hold(s, &s->waits.at[wait], &o->verdicts[0]);
	else
		o->verdicts[0].not_yet = o->verdicts[0].decision == QUOTA_RECLAIM;
	list = (struct verdicts){.at = o->verdicts, .count = 1, .cap = 1};
	quota_positions(s, &list);
	return take(o);
}

/* ---- names ------------------------------------------------------------------------------------------------------------------- */

const char *
quota_decision_name(enum quota_decision d)
{
	static const char *const names[] = {"admit", "borrow", "reclaim", "queue", "reject"};

	return names[d];
}

const char *
quota_rule_name(enum quota_rule r)
{
	static const char *const names[] = {"",          "valid", "limit",  "budget", "ownership",
	                                    "available", "owed",  "borrow", "own",    "declared"};

	return names[r];
}

const char *
quota_scope_name(enum quota_scope s)
{
	static const char *const names[] = {
		[QUOTA_SCOPE_REQUEST] = "request",
		[QUOTA_SCOPE_GUARDRAIL] = "guardrail",
		[QUOTA_SCOPE_ISOLATION] = "isolation",
		[QUOTA_SCOPE_WORKSPACE] = "workspace",
		[QUOTA_SCOPE_TENANT] = "tenant",
		[QUOTA_SCOPE_CLUSTER] = "cluster",
		[QUOTA_SCOPE_CPU] = "cpu",
		[QUOTA_SCOPE_MEMORY] = "memory",
		[QUOTA_SCOPE_STORAGE] = "storage",
		[QUOTA_SCOPE_TENANT_CPU] = "tenant cpu",
		[QUOTA_SCOPE_TENANT_MEMORY] = "tenant memory",
		[QUOTA_SCOPE_TENANT_STORAGE] = "tenant storage",
		[QUOTA_SCOPE_POOL] = "pool",
		[QUOTA_SCOPE_SHAPE] = "shape",
		[QUOTA_SCOPE_NODES] = "nodes",
		[QUOTA_SCOPE_FIXED] = "not preemptible",
		[QUOTA_SCOPE_BACKOFF] = "back-off",
		[QUOTA_SCOPE_PREEMPTIBLE] = "preemptible",
		[QUOTA_SCOPE_HEAD] = "head of the queue",
		[QUOTA_SCOPE_UNUSED] = "unused lease",
	};

	return names[s];
}

const char *
quota_why_name(enum quota_why w)
{
	static const char *const names[] = {"already draining", "its workspace has more than its reservation",
	                                    "lower priority in the same workspace"};

	return names[w];
}

const char *
quota_change_name(const struct quota_change *c)
{
	static const char *const names[] = {
		[QUOTA_CHANGE_REQUEST] = "ask for something else",
		[QUOTA_CHANGE_SHAPE] = "ask for another shape",
		[QUOTA_CHANGE_SMALLER] = "ask for less",
		[QUOTA_CHANGE_GUARDRAIL] = "raise the maximum per workload",
		[QUOTA_CHANGE_LIMIT] = "raise the workspace's limit",
		[QUOTA_CHANGE_TENANT_MAXIMUM] = "raise the tenant's maximum",
		[QUOTA_CHANGE_CLUSTER_MAXIMUM] = "raise the cluster's maximum",
		[QUOTA_CHANGE_RESERVED] = "raise the reservation",
		[QUOTA_CHANGE_BORROW] = "raise the borrow cap",
		[QUOTA_CHANGE_CAPACITY] = "more free capacity",
		[QUOTA_CHANGE_WAIT] = "wait until the back-off ends",
		[QUOTA_CHANGE_TURN] = "wait for the head of the queue",
	};
	static const char *const limits[] = {
		"raise the workspace's CPU limit",     "raise the workspace's memory limit",
		"raise the workspace's storage limit", "raise the tenant's CPU limit",
		"raise the tenant's memory limit",     "raise the tenant's storage limit",
	};

	if (c->kind == QUOTA_CHANGE_OTHER_LIMIT)
		return limits[c->scope - QUOTA_SCOPE_CPU];
	if (c->kind == QUOTA_CHANGE_BUDGET)
		return c->scope == QUOTA_SCOPE_TENANT ? "raise the tenant's budget" : "raise the workspace's budget";
	return names[c->kind];
}

const char *
quota_notice_name(enum quota_notice_kind k)
{
	static const char *const names[] = {
		[QUOTA_ORDER_MADE] = "reclaim ordered",
		[QUOTA_ORDER_CANCELLED] = "reclaim cancelled",
		[QUOTA_ORDER_OVERDUE] = "reclaim overdue",
		[QUOTA_HOLD_DROPPED] = "hold dropped",
		[QUOTA_LEASE_RETURNED] = "lease returned",
		[QUOTA_LEASE_EXPIRED] = "lease expired",
		[QUOTA_LEASE_SUSPECT] = "lease suspect",
		[QUOTA_REQUEST_EXPIRED] = "request expired",
		[QUOTA_REQUEST_CANCELLED] = "request cancelled",
		[QUOTA_EXCEPTION_BEGAN] = "exception began",
		[QUOTA_EXCEPTION_ENDED] = "exception ended",
		[QUOTA_REFUSED] = "refused",
		[QUOTA_LEASE_ADOPTED] = "adopted",
		[QUOTA_FENCED] = "fenced",
		[QUOTA_UNFENCED] = "unfenced",
	};

	return names[k];
}
