/* aggregator/core/quota/engine/quota_adopt.c - work that ran before anybody asked for it, and when enforcement begins where such work is adopted.
 *
 * An adopted lease is confirmed from the beginning and is where its scheduler says:
 *  1. it is in one pool, as every lease: its tenant's own or the shared one, whichever has more of its devices; without devices, the first that has room
 *  2. devices of that pool are its, also where others have them: what is too much is the pool's excess
 *  3. of a part without GPU, free devices of the node are its first, then others of the node
 *  4. devices elsewhere, or that the state does not know, are nowhere: they count for the account, and for the pool's excess
 * No rule is asked. Requests whose right or room it may have taken lose their hold and are planned again in the same step. */
#include "aggregator/core/quota/engine/quota_state.h"

/* ---- one lease --------------------------------------------------------------------------------------------------------------- */

bool
quota_adopt_ok(const struct quota_state *s, const struct quota_event *e, struct err *err)
{
	const struct quota_lease *in = e->adopted;
	int64_t sum = 0;

	if (!in || !quota_lease_ok(s, in))
		return err_set(err, ERR_INVALID, "a field of the adopted lease is out of range");
	if (quota_wait_by_id(s, in->id) != QUOTA_NONE || quota_lease_by_id(s, in->id) != QUOTA_NONE)
		return err_set(err, ERR_CONFLICT, "the request_id \"%s\" waits or runs already", in->id);
	if (s->lease_count >= QUOTA_MAX_LEASES)
		return err_set(err, ERR_INVALID, "there are %zu leases already, the most there may be", s->lease_count);
	for (size_t i = 0; i < in->part_count; i++) {
		const struct quota_part *p = &in->parts[i];

		if (p->node < 0 || (size_t)p->node >= s->nodes.count ||
		    (p->gpu != QUOTA_NONE && (p->gpu < 0 || p->gpu >= s->nodes.at[p->node].gpu_count)) ||
		    p->count < 1 || p->count > in->count)
			return err_set(err, ERR_INVALID, "part %zu of the adopted lease is out of range", i);
		sum += p->count;
	}
	return sum <= in->count ||
	       err_set(err, ERR_INVALID, "the parts have %" PRId64 " devices, the lease %d", sum, in->count);
}

/* Whether a node is in the pool of a lease's account: rule 1. */
static bool
is_in_pool(const struct quota_state *s, const struct quota_lease *in, int32_t node, bool shared)
{
	const struct node *n = &s->nodes.at[node];

	return n->cluster == in->cluster &&
	       n->tenant == (shared ? QUOTA_NONE : s->workspaces.at[in->workspace].in.tenant);
}

static int64_t
devices_in(const struct quota_state *s, const struct quota_lease *in, bool shared)
{
	int64_t count = 0;

	for (size_t i = 0; i < in->part_count; i++)
		if (is_in_pool(s, in, in->parts[i].node, shared))
			count += in->parts[i].count;
	return count;
}

static int32_t
planned(const struct plan *p, int32_t group)
{
	int32_t count = 0;

	for (size_t i = 0; i < p->count; i++)
		if (p->at[i].group == group)
			count += p->at[i].count;
	return count;
}

/* Rule 3. */
static void
plan_on_node(const struct quota_state *s, const struct quota_part *part, int32_t shape, struct plan *ret)
{
	const struct node *n = &s->nodes.at[part->node];
	int32_t left = part->count;

	for (int taken = 0; taken < 2; taken++)
		for (int32_t gpu = 0; gpu < n->gpu_count && left > 0; gpu++) {
			int32_t group = quota_group_at(s, part->node, gpu, shape);
			int32_t room = group == QUOTA_NONE ? 0
			               : taken             ? s->groups.at[group].total
			                                   : quota_group_free(s, group);

			if (group != QUOTA_NONE)
				room -= planned(ret, group);
			if (room <= 0)
				continue;
			room = room < left ? room : left;
			*PUSH(*ret) = (struct spot){.group = group, .count = room};
			left -= room;
		}
}

/* Rules 2 to 4. */
static void
plan_parts(const struct quota_state *s, const struct quota_lease *in, bool shared, struct plan *ret)
{
	for (int anywhere = 0; anywhere < 2; anywhere++)
		for (size_t i = 0; i < in->part_count; i++) {
			const struct quota_part *p = &in->parts[i];
			int32_t group =
				p->gpu == QUOTA_NONE ? QUOTA_NONE : quota_group_at(s, p->node, p->gpu, in->shape);

			if (!is_in_pool(s, in, p->node, shared) || (p->gpu == QUOTA_NONE) != (anywhere == 1))
				continue;
			if (anywhere)
				plan_on_node(s, p, in->shape, ret);
			else if (group != QUOTA_NONE)
				*PUSH(*ret) = (struct spot){.group = group, .count = p->count};
		}
	quota_plan_merge(ret);
}

/* Rule 1: whether it is in the shared pool. */
static bool
plan_adopted(struct quota_state *s, const struct quota_lease *in, bool is_elsewhere, struct plan *ret)
{
	int32_t model = s->shapes.at[in->shape].in.model;
	bool shared = devices_in(s, in, true) > devices_in(s, in, false);

	if (in->part_count > 0) {
		plan_parts(s, in, shared, ret);
		return shared;
	}
	if (is_elsewhere)
		return false;
	for (int i = 0; i < 2; i++) {
		int32_t account = quota_account(s, in->workspace, in->cluster, model, i == 1);
		struct ask ask = {.pool = s->accounts.at[account].pool,
		                  .shape = in->shape,
		                  .tenant = s->workspaces.at[in->workspace].in.tenant,
		                  .count = in->count,
		                  .node = QUOTA_NONE};

		if (quota_fit(s, &ask, ret))
			return i == 1;
	}
	return false;
}

/* Holds that may have lost a right (of its tenant) or room (of its cluster and model). */
static void
replan_others(struct quota_state *s, const struct account *a, struct gather *g)
{
	int32_t tenant = s->workspaces.at[a->workspace].in.tenant, cluster_cap = a->cluster_cap;

	for (size_t i = 0; i < s->waits.count; i++) {
		const struct wait *w = &s->waits.at[i];

		if (w->id[0] != '\0' && w->account != QUOTA_NONE &&
		    (s->workspaces.at[w->in.workspace].in.tenant == tenant ||
		     s->accounts.at[w->account].cluster_cap == cluster_cap))
			quota_replan(s, (int32_t)i, g);
	}
}

static void
tell_adopted(const struct quota_state *s, int32_t lease, const struct plan *plan, int64_t debt_before, struct gather *g)
{
	const struct lease *l = &s->leases.at[lease];
	const struct account *a = &s->accounts.at[l->account];
	struct quota_verdict *v = PUSH(g->verdicts);

	memcpy(v->id, l->id, sizeof(v->id));
	v->workspace = a->workspace;
	v->decision = v->would = QUOTA_ADMIT;
	v->adopted = true;
	v->shape = l->in.shape;
	v->shared = a->base.shared;
	v->borrowed_units = quota_debt(a) - debt_before;
	quota_verdict_placed(s, plan, v);
	quota_notice(g, QUOTA_LEASE_ADOPTED, l->id, "", s->now_ns);
	if (l->placed_units < l->units)
		quota_notice(g, QUOTA_REFUSED, l->id, "place", s->now_ns);
}

void
quota_adopt(struct quota_state *s, const struct quota_event *e, struct gather *g)
{
	in_place(plan) struct plan plan = {0};
	const struct quota_lease *told = e->adopted;
	struct quota_lease in = {.workspace = told->workspace,
	                         .cluster = told->cluster,
	                         .shape = told->shape,
	                         .count = told->count,
	                         .node = QUOTA_NONE,
	                         .priority = told->priority,
	                         .preemptible = told->preemptible,
	                         .state = QUOTA_CONFIRMED,
	                         .since_ns = told->since_ns < s->now_ns ? told->since_ns : s->now_ns,
	                         .seen_ns = s->now_ns,
	                         .adopted = true,
	                         .adopted_ns = s->now_ns,
	                         .unit_seconds = told->unit_seconds,
	                         .cost = told->cost};
	bool shared = plan_adopted(s, told, e->is_elsewhere, &plan);
	int32_t account = quota_account(s, in.workspace, in.cluster, s->shapes.at[in.shape].in.model, shared), lease;
	int64_t debt;

	memcpy(in.other, told->other, sizeof(in.other));
	replan_others(s, &s->accounts.at[account], g);
	debt = quota_debt(&s->accounts.at[account]);
	lease = quota_lease_new(s, told->id, &in, account);
	s->leases.at[lease].batch = s->step;
	quota_lease_place(s, lease, &plan);
	tell_adopted(s, lease, &plan, debt, g);
}

/* ---- what adoption protects ------------------------------------------------------------------------------------------------------ */

const struct quota_adoption *
quota_adoption_of(const struct quota_state *s, int32_t cluster)
{
	for (size_t i = 0; i < s->adoptions.count; i++)
		if (s->adoptions.at[i].cluster == cluster)
			return &s->adoptions.at[i];
	return NULL;
}

int64_t
quota_spared_until(const struct quota_state *s, const struct lease *l)
{
	const struct quota_adoption *a = quota_adoption_of(s, l->in.cluster);
	int64_t since_ns = l->in.adopted_ns;

	if (a && a->switched_ns > since_ns)
		since_ns = a->switched_ns;
	return since_ns + s->settings.grace_ns;
}

bool
quota_is_spared(const struct quota_state *s, const struct lease *l)
{
	return l->in.adopted && s->now_ns < quota_spared_until(s, l);
}

/* ---- switches of enforcement ------------------------------------------------------------------------------------------------------- */

enum quota_enforce
quota_enforce_in(const struct quota_state *s, int32_t workspace, int32_t cluster)
{
	const struct workspace *w = &s->workspaces.at[workspace];
	size_t from = 0, to = s->switches.count;

	if (!w->switching)
		return w->in.enforce;
	while (from < to) {
		size_t middle = from + (to - from) / 2;
		const struct quota_switch *at = &s->switches.at[middle];

		if (at->workspace < workspace || (at->workspace == workspace && at->cluster < cluster))
			from = middle + 1;
		else
			to = middle;
	}
	if (from < s->switches.count && s->switches.at[from].workspace == workspace &&
	    s->switches.at[from].cluster == cluster)
		return s->switches.at[from].enforce;
	return w->in.enforce;
}

/* In force before a policy; a workspace that it brings was not enforced. */
static enum quota_enforce
enforced_before(const struct quota_state *s, size_t workspace, int32_t cluster)
{
	return workspace < s->workspaces.count ? quota_enforce_in(s, (int32_t)workspace, cluster) : QUOTA_ENFORCE_OFF;
}

void
quota_switches_under(const struct quota_state *s, const struct quota_policy *policy,
                     struct quota_adoption **ret_adoptions, struct quota_switch **ret_switches,
                     size_t *ret_switch_count)
{
	struct quota_adoption *adoptions = mem_array(s->adoptions.count + 1, sizeof(*adoptions));
	struct quota_switch *switches = mem_array(policy->workspace_count * s->adoptions.count + 1, sizeof(*switches));
	size_t count = 0;

	for (size_t i = 0; i < s->adoptions.count; i++)
		adoptions[i] = s->adoptions.at[i];
	for (size_t w = 0; w < policy->workspace_count; w++)
		for (size_t i = 0; i < s->adoptions.count && policy->workspaces[w].enforce == QUOTA_ENFORCE_ON; i++) {
			enum quota_enforce before = enforced_before(s, w, adoptions[i].cluster);

			if (before == QUOTA_ENFORCE_ON)
				continue;
			if (adoptions[i].complete) {
				/* a new workspace has no adopted work, and must not spare that of others once more */
				if (w < s->workspaces.count)
					adoptions[i].switched_ns = s->now_ns;
				continue;
			}
			switches[count++] = (struct quota_switch){.workspace = (int32_t)w,
			                                          .cluster = adoptions[i].cluster,
			                                          .enforce = before};
		}
	*ret_adoptions = adoptions;
	*ret_switches = switches;
	*ret_switch_count = count;
}

static void
complete(struct quota_state *s, struct quota_adoption *a)
{
	size_t kept = 0;

	for (size_t i = 0; i < s->workspaces.count; i++)
		s->workspaces.at[i].switching = false;
	for (size_t i = 0; i < s->switches.count; i++) {
		struct quota_switch at = s->switches.at[i];

		if (at.cluster == a->cluster) {
			a->switched_ns = s->now_ns;
			continue;
		}
		s->switches.at[kept++] = at;
		s->workspaces.at[at.workspace].switching = true;
	}
	s->switches.count = kept;
}

void
quota_adoption(struct quota_state *s, const struct quota_event *e)
{
	size_t at = 0;

	while (at < s->adoptions.count && s->adoptions.at[at].cluster < e->cluster)
		at++;
	if (at == s->adoptions.count || s->adoptions.at[at].cluster != e->cluster) {
		(void)PUSH(s->adoptions);
		memmove(&s->adoptions.at[at + 1], &s->adoptions.at[at],
		        (s->adoptions.count - 1 - at) * sizeof(*s->adoptions.at));
		s->adoptions.at[at] = (struct quota_adoption){.cluster = e->cluster};
	}
	s->adoptions.at[at].complete = e->complete;
	if (e->complete)
		complete(s, &s->adoptions.at[at]);
	s->dirty = true;
}
