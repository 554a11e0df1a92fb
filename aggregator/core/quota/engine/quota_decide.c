/* aggregator/core/quota/engine/quota_decide.c - one request: the rules in their order, the verdict with its checks, and carrying it out. */
#include "aggregator/core/quota/engine/quota_state.h"

void
ruling_fini(struct ruling *r)
{
	plan_fini(&r->plan);
	victim_search_fini(&r->search);
}

/* ---- the rules ------------------------------------------------------------------------------------------------------ */

static int64_t
borrowed_by(const struct account *a, int64_t units)
{
	int64_t after = quota_committed(a) + units - a->reserved;

	return (after > 0 ? after : 0) - quota_debt(a);
}

static bool
rule_admit(struct quota_state *s, int32_t wait, struct ruling *r)
{
	for (int i = 0; i < 2; i++) {
		const struct judgement *j = &r->j[i];

		if (!r->may[i] || !j->available || !(j->owed || j->borrow) || !quota_fit(s, &j->ask, &r->plan))
			continue;
		r->place = i;
		r->decision = j->owed ? QUOTA_ADMIT : QUOTA_BORROW;
		r->borrowed = j->owed ? 0 : borrowed_by(&s->accounts.at[r->account[i]], s->waits.at[wait].units);
		return true;
	}
	return false;
}

static bool
rule_reclaim(struct quota_state *s, int32_t wait, struct ruling *r)
{
	for (int i = 0; i < 2; i++) {
		victim_search_fini(&r->search);
		r->search = (struct victim_search){0};
		if (!r->may_replace[i] || !r->j[i].head ||
		    !quota_victim_search(s, wait, r->account[i], !r->may[i], &r->search))
			continue;
		r->place = i;
		r->borrowed = r->search.borrowed;
		r->decision = r->search.count > 0 ? QUOTA_RECLAIM : QUOTA_ADMIT;
		return true;
	}
	return false;
}

void
quota_rule(struct quota_state *s, int32_t wait, struct ruling *ret)
{
	const struct quota_request *in = &s->waits.at[wait].in;
	bool ever = false;

	*ret = (struct ruling){.decision = s->waits.at[wait].fresh ? QUOTA_REJECT : QUOTA_QUEUE};
	for (int i = 0; i < 2 && in->shape != QUOTA_NONE; i++)
		ret->account[i] =
			quota_account_find(s, in->workspace, in->cluster, s->shapes.at[in->shape].in.model, i == 1);
	if (!quota_rule_valid(s, wait, NULL)) /* 1 */
		return;
	for (int i = 0; i < 2; i++) { /* 2 to 7, the own pool first */
		ret->may_replace[i] = quota_rule_budget(s, wait, false, &ret->warn, NULL) &&
		                      quota_rule_ownership(s, wait, ret->account[i], NULL);
		ret->may[i] = ret->may_replace[i] && quota_rule_limit(s, wait, ret->account[i], NULL, NULL);
		if (ret->may_replace[i])
			ret->j[i] = quota_judge(s, wait, ret->account[i], NULL, NULL, NULL);
	}
	/* Admission in either pool comes before a reclaim in either; 8 is part of the reclaim. */
	if (rule_admit(s, wait, ret) || (quota_unused_until(s, &s->waits.at[wait]) == 0 && rule_reclaim(s, wait, ret)))
		return;
	for (int i = 0; i < 2; i++)
		ever = ever || quota_rule_declared(s, wait, ret->account[i], NULL);
	/* 9. A request that waits already is never rejected: a later policy that could not admit it leaves it waiting. */
	ret->decision = ever || !s->waits.at[wait].fresh ? QUOTA_QUEUE : QUOTA_REJECT;
}

/* Leases that the hold waits for, each once. */
static size_t
waited_for(const struct quota_state *s, const struct wait *w)
{
	size_t count = 0;

	for (int32_t i = w->first_part; i != QUOTA_NONE; i = s->parts.at[i].next) {
		bool seen = false;

		for (int32_t k = w->first_part; k != i; k = s->parts.at[k].next)
			seen = seen || s->parts.at[k].lease == s->parts.at[i].lease;
		if (!seen && s->parts.at[i].lease != QUOTA_NONE)
			count++;
	}
	return count;
}

static bool
waits_for(const struct quota_state *s, const struct wait *w, int32_t lease)
{
	for (int32_t i = w->first_part; i != QUOTA_NONE; i = s->parts.at[i].next)
		if (s->parts.at[i].lease == lease)
			return true;
	return false;
}

/* Devices that became free may make victims needless: then they are spared, and the request may be admitted at once. The request never comes
 * to wait for another lease, or its waiting would begin anew each time. */
bool
quota_improve(struct quota_state *s, int32_t wait, struct ruling *ret)
{
	int32_t account = s->waits.at[wait].account;
	bool fewer, better;

	quota_hold_detach(s, wait);
	quota_rule(s, wait, ret);
	fewer = ret->search.count < waited_for(s, &s->waits.at[wait]);
	for (size_t i = 0; i < ret->search.count; i++)
		fewer = fewer && waits_for(s, &s->waits.at[wait], ret->search.at[i].lease);
	better = ret->search.displaced_count == 0 && (ret->decision == QUOTA_ADMIT || ret->decision == QUOTA_BORROW ||
	                                              (ret->decision == QUOTA_RECLAIM && fewer));
	quota_hold_attach(s, wait, account);
	return better;
}

/* ---- the verdict ---------------------------------------------------------------------------------------------------------- */

/* Rule 8: the units that the workspace could give up itself. */
static void
check_own(const struct quota_state *s, int32_t wait, int32_t account, bool used, struct checks *out)
{
	const struct wait *w = &s->waits.at[wait];
	const struct account *a = &s->accounts.at[account];
	bool may = s->workspaces.at[w->in.workspace].in.preempt_own;
	int64_t lower = may ? quota_preemptible_below(s, account, w->in.priority) : 0;

	*PUSH(*out) = (struct quota_check){.rule = QUOTA_RULE_OWN,
	                                   .scope = QUOTA_SCOPE_WORKSPACE,
	                                   .shared = a->base.shared,
	                                   .ok = used,
	                                   .need = w->units,
	                                   .have = lower,
	                                   .leased = a->leased,
	                                   .requested = w->units,
	                                   .headroom = lower};
}

static bool
has_own_victim(const struct ruling *r, int i)
{
	for (size_t v = 0; r->place == i && v < r->search.count; v++)
		if (r->search.at[v].why == QUOTA_WHY_OWN)
			return true;
	return false;
}

/* Rule 8: nobody is evicted for it for a while. */
static void
check_unused(const struct quota_state *s, int32_t wait, struct checks *out)
{
	int64_t until_ns = quota_unused_until(s, &s->waits.at[wait]);

	if (until_ns > 0)
		*PUSH(*out) = (struct quota_check){.rule = QUOTA_RULE_OWN,
		                                   .scope = QUOTA_SCOPE_UNUSED,
		                                   .have = until_ns - s->now_ns};
}

/* Rule 8: rule 2 once more, as if the victims had ended. */
static void
check_limit_after(struct quota_state *s, int32_t wait, const struct ruling *r, struct checks *out)
{
	size_t first = out->count;

	if (r->decision != QUOTA_RECLAIM || !r->search.limit_short)
		return;
	for (size_t i = 0; i < r->search.count; i++)
		quota_lease_vanish(s, r->search.at[i].lease);
	(void)quota_rule_limit(s, wait, r->account[r->place], &r->search.others, out);
	for (size_t i = r->search.count; i-- > 0;)
		quota_lease_appear(s, r->search.at[i].lease);
	for (size_t i = first; i < out->count; i++)
		out->at[i].after = true;
}

/* All checks in the order of the rules, the own pool before the shared one. */
static void
make_checks(struct quota_state *s, int32_t wait, const struct ruling *r, struct checks *out)
{
	struct checks sorted[3] = {{0}};

	(void)quota_rule_valid(s, wait, out);
	if (s->waits.at[wait].in.shape == QUOTA_NONE || s->waits.at[wait].in.count <= 0)
		return;
	for (int i = 0; i < 2; i++)
		(void)quota_rule_limit(s, wait, r->account[i], NULL, out);
	check_limit_after(s, wait, r, out);
	(void)quota_rule_budget(s, wait, false, NULL, out);
	for (int i = 0; i < 2; i++)
		(void)quota_rule_ownership(s, wait, r->account[i], out);
	for (int i = 0; i < 2; i++)
		(void)quota_judge(s, wait, r->account[i], &sorted[0], &sorted[1], &sorted[2]);
	for (size_t k = 0; k < ARRAY_LEN(sorted); k++) {
		for (size_t i = 0; i < sorted[k].count; i++)
			*PUSH(*out) = sorted[k].at[i];
		mem_free(sorted[k].at);
	}
	for (int i = 0; i < 2; i++)
		check_own(s, wait, r->account[i], has_own_victim(r, i), out);
	check_unused(s, wait, out);
	for (int i = 0; i < 2; i++)
		(void)quota_rule_declared(s, wait, r->account[i], out);
}

void
quota_verdict_placed(const struct quota_state *s, const struct plan *plan, struct quota_verdict *v)
{
	v->placed = mem_array(plan->count + 1, sizeof(*v->placed));
	for (size_t i = 0; i < plan->count; i++) {
		const struct group *g = &s->groups.at[plan->at[i].group];
		int32_t node = s->gpus.at[g->gpu].node;

		v->placed[v->placed_count++] = (struct quota_placed){.node = node,
		                                                     .gpu = g->gpu - s->nodes.at[node].first_gpu,
		                                                     .shape = g->shape,
		                                                     .count = plan->at[i].count};
	}
}

static void
verdict_victims(const struct quota_state *s, const struct victim_search *h, struct quota_verdict *v)
{
	v->victims = mem_array(h->count + 1, sizeof(*v->victims));
	for (size_t i = 0; i < h->count; i++) {
		const struct lease *l = &s->leases.at[h->at[i].lease];
		int32_t workspace = s->accounts.at[l->account].workspace;
		struct quota_victim *to = &v->victims[v->victim_count++];

		*to = (struct quota_victim){.workspace = workspace,
		                            .why = h->at[i].why,
		                            .priority = l->in.priority,
		                            .units = l->units,
		                            .debt = h->at[i].debt,
		                            .weight = s->workspaces.at[workspace].in.weight};
		memcpy(to->id, l->id, sizeof(to->id));
	}
}

/* Where no node has the requested shape: the shape of most devices of its model in a pool that the workspace may use, its tenant's own pool
 * first; else QUOTA_NONE. */
static int32_t
offered_instead(const struct quota_state *s, int32_t wait)
{
	const struct quota_request *in = &s->waits.at[wait].in;
	int32_t offered = QUOTA_NONE;

	for (int i = 0; i < 2 && in->shape != QUOTA_NONE; i++) {
		int32_t account =
			quota_account_find(s, in->workspace, in->cluster, s->shapes.at[in->shape].in.model, i == 1);
		const struct pool *p = account == QUOTA_NONE ? NULL : &s->pools.at[s->accounts.at[account].pool];
		int64_t most = 0;

		for (int32_t k = 0; p && k < p->pool_shape_count; k++) {
			const struct pool_shape *f = &s->pool_shapes.at[p->first_pool_shape + k];

			if (f->shape == in->shape)
				return QUOTA_NONE;
			if (f->declared > most && (i == 0 || offered == QUOTA_NONE)) {
				most = f->declared;
				offered = f->shape;
			}
		}
	}
	return offered;
}

static void
count_wait(struct quota_state *s, struct wait *w, int32_t shape, int64_t count)
{
	w->in.shape = shape;
	w->in.count = (int32_t)count;
	w->units = count * s->shapes.at[shape].in.units;
}

/* The changes that would admit it. Where another request must be made, that comes first, and the rest are the changes which that one needs. */
static void
verdict_changes(struct quota_state *s, int32_t wait, const struct ruling *r, struct quota_verdict *v)
{
	struct wait *w = &s->waits.at[wait], asked = *w;
	struct checks checks = {.at = v->checks, .count = v->check_count};
	int32_t offered = offered_instead(s, wait);
	int64_t guard = quota_guardrail(s, wait), each = 1;

	if (offered != QUOTA_NONE) {
		v->changes[v->change_count++] = (struct quota_change){.kind = QUOTA_CHANGE_SHAPE,
		                                                      .rule = QUOTA_RULE_VALID,
		                                                      .scope = QUOTA_SCOPE_ISOLATION};
		v->shape = offered;
		count_wait(s, w, offered, w->in.count);
	}
	if (w->in.shape != QUOTA_NONE) {
		int64_t together = w->in.per_node > 0 ? w->in.per_node : 1, most;

		each = s->shapes.at[w->in.shape].in.units;
		most = guard / (each * together) * together;
		if (w->units > guard && most > 0 && w->in.count > 0) {
			v->changes[v->change_count++] = (struct quota_change){.kind = QUOTA_CHANGE_SMALLER,
			                                                      .rule = QUOTA_RULE_VALID,
			                                                      .scope = QUOTA_SCOPE_GUARDRAIL,
			                                                      .amount = most * each};
			count_wait(s, w, w->in.shape, most);
		}
	}
	if (v->change_count > 0) {
		checks = (struct checks){0};
		make_checks(s, wait, r, &checks);
	}
	quota_changes(v, &checks, each);
	if (v->change_count > 0 && v->changes[0].kind == QUOTA_CHANGE_REQUEST && quota_fault(s, wait))
		v->fault = mem_strdup(quota_fault(s, wait));
	if (checks.at != v->checks)
		mem_free(checks.at);
	*w = asked;
}

void
quota_make_verdict(struct quota_state *s, int32_t wait, const struct ruling *r, struct quota_verdict *ret)
{
	const struct wait *w = &s->waits.at[wait];
	enum quota_enforce enforce = quota_enforce_in(s, w->in.workspace, w->in.cluster);
	bool granted = r->decision != QUOTA_QUEUE && r->decision != QUOTA_REJECT;
	struct checks checks = {0};

	*ret = (struct quota_verdict){.decision = enforce == QUOTA_ENFORCE_ON ? r->decision : QUOTA_ADMIT,
	                              .would = r->decision,
	                              .warn = r->warn || (enforce == QUOTA_ENFORCE_WARN && r->decision != QUOTA_ADMIT),
	                              .borrowed_units = r->borrowed,
	                              .shared = granted && r->place == 1,
	                              .owed = r->may[0] && r->j[0].owed};
	if (granted)
		ret->owed = r->decision == QUOTA_RECLAIM ? r->search.owed : r->decision == QUOTA_ADMIT;
	else if (r->may[1])
		ret->owed = ret->owed || r->j[1].owed;
	if (r->decision == QUOTA_BORROW) {
		const struct account *a = &s->accounts.at[r->account[r->place]];

		ret->unreserved = s->pools.at[a->pool].reserved <= a->reserved;
	}
	memcpy(ret->id, w->id, sizeof(ret->id));
	ret->workspace = w->in.workspace;
	ret->shape = w->in.shape;
	make_checks(s, wait, r, &checks);
	ret->checks = checks.at;
	ret->check_count = checks.count;
	if (enforce == QUOTA_ENFORCE_ON) {
		quota_verdict_placed(s, r->search.plan.count > 0 ? &r->search.plan : &r->plan, ret);
		verdict_victims(s, &r->search, ret);
	}
	if (!granted)
		verdict_changes(s, wait, r, ret);
	if (r->decision == QUOTA_QUEUE)
		ret->unused_until_ns = quota_unused_until(s, w);
}

void
quota_notice(struct gather *g, enum quota_notice_kind kind, const char *id, const char *for_id, int64_t at_ns)
{
	struct quota_notice *n = PUSH(g->notices);

	n->kind = kind;
	n->at_ns = at_ns;
	memcpy(n->id, id, strnlen(id, QUOTA_ID_SIZE - 1));
	memcpy(n->for_id, for_id, strnlen(for_id, QUOTA_ID_SIZE - 1));
}

/* ---- carrying it out --------------------------------------------------------------------------------------------------- */

void
quota_replan(struct quota_state *s, int32_t wait, struct gather *g)
{
	quota_hold_drop(s, wait);
	quota_notice(g, QUOTA_HOLD_DROPPED, s->waits.at[wait].id, "", s->now_ns);
	s->dirty = true;
}

/* Devices of a group that victims will return and that nobody else waits for. */
static int32_t
from_victims(struct quota_state *s, int32_t wait, const struct victim_search *h, int32_t group, int32_t count,
             bool *used)
{
	for (size_t v = 0; v < h->count && count > 0; v++) {
		for (int32_t p = s->leases.at[h->at[v].lease].first_part; p != QUOTA_NONE; p = s->parts.at[p].next) {
			int32_t left = s->parts.at[p].count - s->parts.at[p].promised;

			if (s->parts.at[p].group != group || left <= 0)
				continue;
			left = left < count ? left : count;
			quota_hold_add(s, wait, group, left, h->at[v].lease);
			count -= left;
			used[v] = true;
			break;
		}
	}
	return count;
}

/* Free devices and those that the victims will return are all held from this moment on. */
static void
make_hold(struct quota_state *s, int32_t wait, const struct ruling *r)
{
	const struct victim_search *h = &r->search;
	owned(mem) bool *used = mem_array(h->count + 1, sizeof(*used));

	for (size_t i = 0; i < h->plan.count; i++) {
		int32_t group = h->plan.at[i].group, count = h->plan.at[i].count, now = quota_group_free(s, group);

		now = now < count ? now : count;
		if (now > 0)
			quota_hold_add(s, wait, group, now, QUOTA_NONE);
		count = from_victims(s, wait, h, group, count - now, used);
		ASSERT(count == 0);
	}
	for (size_t v = 0; v < h->count; v++)
		if (!used[v])
			quota_hold_add(s, wait, QUOTA_NONE, 0, h->at[v].lease);
	s->waits.at[wait].hold_owed = h->owed;
	quota_head_clear(s, wait);
	quota_hold_attach(s, wait, r->account[r->place]);
	ASSERT(s->waits.at[wait].missing > 0);
}

/* enforce off or warn: it runs whatever the rules say, where it fits or else nowhere that is known. */
static void
let_through(struct quota_state *s, int32_t wait, const struct ruling *r)
{
	const struct wait *w = &s->waits.at[wait];
	struct workspace *ws = &s->workspaces.at[w->in.workspace];

	if (r->decision != QUOTA_ADMIT && r->decision != QUOTA_BORROW)
		ws->would_deny++;
	if (w->in.shape == QUOTA_NONE || w->in.count <= 0) {
		quota_wait_free(s, wait);
		return;
	}
	for (int i = 0; i < 2; i++) {
		int32_t model = s->shapes.at[w->in.shape].in.model;
		int32_t account = quota_account_find(s, w->in.workspace, w->in.cluster, model, i == 1);
		struct ask ask = {.pool = s->accounts.at[account].pool,
		                  .shape = w->in.shape,
		                  .tenant = ws->in.tenant,
		                  .count = w->in.count,
		                  .per_node = w->in.per_node,
		                  .node = QUOTA_NONE};
		in_place(plan) struct plan plan = {0};

		if (quota_fit(s, &ask, &plan)) {
			(void)quota_admit(s, wait, account, &plan);
			return;
		}
	}
	(void)quota_admit(
		s, wait,
		quota_account_find(s, w->in.workspace, w->in.cluster, s->shapes.at[w->in.shape].in.model, false), NULL);
}

bool
quota_carry_out(struct quota_state *s, int32_t wait, struct ruling *r, struct gather *g)
{
	bool better = r->search.count > 0 || r->search.displaced_count > 0;

	s->waits.at[wait].fresh = false;
	if (quota_enforce_in(s, s->waits.at[wait].in.workspace, s->waits.at[wait].in.cluster) != QUOTA_ENFORCE_ON) {
		let_through(s, wait, r);
		return false;
	}
	for (size_t i = 0; i < r->search.displaced_count; i++)
		quota_replan(s, r->search.displaced[i], g);
	switch (r->decision) {
	case QUOTA_ADMIT:
	case QUOTA_BORROW:
		(void)quota_admit(s, wait, r->account[r->place], r->search.plan.count > 0 ? &r->search.plan : &r->plan);
		break;
	case QUOTA_RECLAIM:
		make_hold(s, wait, r);
		for (size_t i = 0; i < r->search.count; i++)
			s->dirty = s->dirty || s->leases.at[r->search.at[i].lease].account == r->account[r->place];
		break;
	case QUOTA_QUEUE: break;
	case QUOTA_REJECT: quota_wait_free(s, wait); break;
	}
	return better;
}

/* The oldest first; they cannot get in each other's way. */
static int32_t
next_complete(const struct quota_state *s)
{
	int32_t best = QUOTA_NONE;

	for (size_t i = 0; i < s->waits.count; i++) {
		const struct wait *w = &s->waits.at[i], *b = best == QUOTA_NONE ? NULL : &s->waits.at[best];

		if (w->id[0] == '\0' || w->account == QUOTA_NONE || w->missing > 0)
			continue;
		if (!b || w->in.submitted_ns < b->in.submitted_ns ||
		    (w->in.submitted_ns == b->in.submitted_ns && strcmp(w->id, b->id) < 0))
			best = (int32_t)i;
	}
	return best;
}

void
quota_complete(struct quota_state *s, struct gather *g)
{
	if (!s->complete)
		return;
	s->complete = false;
	for (int32_t wait = next_complete(s); wait != QUOTA_NONE; wait = next_complete(s)) {
		const struct wait *w = &s->waits.at[wait];
		const struct account *a = &s->accounts.at[w->account];
		struct quota_verdict *v = PUSH(g->verdicts);
		in_place(plan) struct plan plan = {0};
		int64_t debt = quota_debt(a);

		for (int32_t p = w->first_part; p != QUOTA_NONE; p = s->parts.at[p].next)
			if (s->parts.at[p].group != QUOTA_NONE)
				*PUSH(plan) =
					(struct spot){.group = s->parts.at[p].group, .count = s->parts.at[p].count};
		memcpy(v->id, w->id, sizeof(v->id));
		v->workspace = w->in.workspace;
		v->borrowed_units = debt < w->units ? debt : w->units;
		v->decision = v->would = v->borrowed_units > 0 ? QUOTA_BORROW : QUOTA_ADMIT;
		v->owed = w->hold_owed;
		v->shared = a->base.shared;
		v->unreserved = s->pools.at[a->pool].reserved <= a->reserved;
		quota_verdict_placed(s, &plan, v);
		(void)quota_admit(s, wait, w->account, NULL);
	}
}
