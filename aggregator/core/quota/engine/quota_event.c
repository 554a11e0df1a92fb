/* aggregator/core/quota/engine/quota_event.c - a step: one event applied to nodes, leases, requests, exceptions or the policy, and its outcome.
 *
 * A step is: time moves on, the event is applied, holds that miss nothing are admitted, and the queue is decided again where something
 * became possible. */
#include "aggregator/core/quota/engine/quota_state.h"

#include <stdlib.h>

#define MAX_DOUBLINGS 20
#define MOMENT_MAX_NS (INT64_C(1) << 62)

/* ---- nodes -------------------------------------------------------------------------------------------------------------------- */

static void
replan_on(struct quota_state *s, int32_t first_gpu, int32_t gpu_count, struct gather *g)
{
	for (size_t i = 0; i < s->waits.count; i++) {
		const struct wait *w = &s->waits.at[i];
		bool there = false;

		if (w->id[0] == '\0' || w->account == QUOTA_NONE)
			continue;
		for (int32_t p = w->first_part; p != QUOTA_NONE; p = s->parts.at[p].next) {
			int32_t group = s->parts.at[p].group;

			there = there || (group != QUOTA_NONE && s->groups.at[group].gpu >= first_gpu &&
			                  s->groups.at[group].gpu < first_gpu + gpu_count);
		}
		if (there)
			quota_replan(s, (int32_t)i, g);
	}
}

static void
node_event(struct quota_state *s, const struct quota_event *e, struct gather *g)
{
	const struct node *n = &s->nodes.at[e->node];
	int32_t gpu = n->first_gpu + e->gpu;

	s->dirty = true;
	switch (e->kind) {
	case QUOTA_NODE_LOST:
	case QUOTA_NODE_BACK:
		if (e->kind == QUOTA_NODE_LOST)
			replan_on(s, n->first_gpu, n->gpu_count, g);
		quota_node_health(s, e->node, e->kind == QUOTA_NODE_LOST);
		break;
	case QUOTA_GPU_LOST:
	case QUOTA_GPU_BACK:
		if (e->kind == QUOTA_GPU_LOST)
			replan_on(s, gpu, 1, g);
		quota_gpu_health(s, gpu, e->kind == QUOTA_GPU_LOST);
		break;
	default: /* QUOTA_LAYOUT */
		replan_on(s, gpu, 1, g);
		quota_gpu_slots(s, gpu, e->slots, e->slot_count);
		quota_reindex(s);
		quota_unfence_gone(s, gpu, g);
		break;
	}
}

/* ---- requests, exceptions, policy --------------------------------------------------------------------------------------------- */

static void
submit(struct quota_state *s, const struct quota_event *e)
{
	for (size_t i = 0; i < e->request_count; i++) {
		struct quota_request in = e->requests[i];
		int32_t wait;

		in.hold = NULL;
		in.hold_count = 0;
		if (in.submitted_ns > s->now_ns)
			in.submitted_ns = s->now_ns;
		in.head_own = in.head_shared = false;
		wait = quota_wait_new(s, &in);
		s->waits.at[wait].fresh = true;
		if (in.shape == QUOTA_NONE)
			continue;
		for (int shared = 0; shared < 2; shared++)
			(void)quota_account(s, in.workspace, in.cluster, s->shapes.at[in.shape].in.model, shared == 1);
	}
}

static bool
submit_ok(const struct quota_state *s, const struct quota_event *e, struct err *err)
{
	for (size_t i = 0; i < e->request_count; i++) {
		const struct quota_request *in = &e->requests[i];

		if (!quota_request_ok(s, in))
			return err_set(err, ERR_INVALID, "request %zu: a field is out of range", i);
		if (quota_wait_by_id(s, in->id) != QUOTA_NONE || quota_lease_by_id(s, in->id) != QUOTA_NONE)
			return err_set(err, ERR_CONFLICT, "the request_id \"%s\" waits or runs already", in->id);
		for (size_t k = 0; k < i; k++)
			if (strcmp(e->requests[k].id, in->id) == 0)
				return err_set(err, ERR_CONFLICT, "the request_id \"%s\" is twice in the batch",
				               in->id);
	}
	return true;
}

static void
end_exception(struct quota_state *s, const char *id, struct gather *g)
{
	for (size_t i = 0; i < s->exceptions.count; i++) {
		if (strcmp(s->exceptions.at[i].id, id) != 0)
			continue;
		s->exceptions.at[i].in.until_ns = s->now_ns;
		if (s->exceptions.at[i].in.from_ns > s->now_ns)
			s->exceptions.at[i].in.from_ns = s->now_ns;
		return;
	}
	quota_notice(g, QUOTA_REFUSED, id, "unknown", s->now_ns);
}

/* The state is saved and loaded with the other policy: quota_load() is the one way from a policy to a state. */
static bool
load_policy(const struct quota_state *s, const struct quota_policy *policy, struct quota_state **ret, struct err *err)
{
	owned(mem) struct quota_adoption *adoptions = NULL;
	owned(mem) struct quota_switch *switches = NULL;
	struct quota_saved saved;
	bool ok;

	if (policy->cluster_count < s->clusters.count || policy->model_count < s->models.count ||
	    policy->shape_count < s->shapes.count || policy->tenant_count < s->tenants.count ||
	    policy->workspace_count < s->workspaces.count)
		return err_set(err, ERR_INVALID,
		               "the policy has fewer clusters, models, shapes, tenants or workspaces than the state");
	quota_save(s, &saved);
	saved.world.policy = *policy;
	quota_switches_under(s, policy, &adoptions, &switches, &saved.world.switch_count);
	saved.world.adoptions = adoptions;
	saved.world.switches = switches;
	ok = quota_load(&saved.world, ret, err);
	quota_saved_fini(&saved);
	return ok;
}

static void
change_policy(struct quota_state *s, struct quota_state *anew, struct gather *g)
{
	struct quota_state old = *s;

	ASSERT(anew != NULL);
	anew->step = s->step;
	anew->now_ns = s->now_ns;
	for (size_t i = 0; i < s->workspaces.count; i++)
		anew->workspaces.at[i].would_deny = s->workspaces.at[i].would_deny;
	*s = *anew;
	*anew = old;
	for (size_t i = 0; i < s->waits.count; i++)
		if (s->waits.at[i].account != QUOTA_NONE)
			quota_replan(s, (int32_t)i, g);
	s->dirty = true;
}

/* ---- time, and events of leases ---------------------------------------------------------------------------------------- */

/* A right that came or went: the workspace's holds are planned anew. */
static void
terms_changed(struct quota_state *s, int32_t workspace, struct gather *g)
{
	for (int32_t a = s->workspaces.at[workspace].first_account; a != QUOTA_NONE;
	     a = s->accounts.at[a].next_of_workspace)
		quota_account_terms(s, a);
	for (size_t i = 0; i < s->waits.count; i++)
		if (s->waits.at[i].id[0] != '\0' && s->waits.at[i].in.workspace == workspace &&
		    s->waits.at[i].account != QUOTA_NONE)
			quota_replan(s, (int32_t)i, g);
	s->dirty = true;
}

static void
exceptions_at(struct quota_state *s, struct gather *g)
{
	for (size_t i = 0; i < s->exceptions.count;) {
		struct exception *e = &s->exceptions.at[i];
		int32_t workspace = e->in.workspace;
		bool running = e->in.from_ns <= s->now_ns && s->now_ns < e->in.until_ns;
		bool over = s->now_ns >= e->in.until_ns, was = e->running;

		if (running != was)
			quota_notice(g, running ? QUOTA_EXCEPTION_BEGAN : QUOTA_EXCEPTION_ENDED, e->id, "", s->now_ns);
		e->running = running;
		if (over)
			memmove(e, e + 1, (--s->exceptions.count - i) * sizeof(*e));
		else
			i++;
		if (running != was)
			terms_changed(s, workspace, g);
	}
}

/* ---- returning --------------------------------------------------------------------------------------------------------------- */

/* A reclaim that can no longer be taken back. Orders of the same moment count once. */
static void
back_off(struct quota_state *s, const struct lease *l)
{
	const struct account *a = &s->accounts.at[l->account];
	struct quota_backoff *b = NULL;

	if (!l->in.reclaimed || s->settings.backoff_ns == 0)
		return;
	for (size_t i = 0; i < s->backoffs.count; i++) {
		struct quota_backoff *at = &s->backoffs.at[i];

		if (at->workspace == a->workspace && at->cluster == a->base.cluster && at->model == a->base.model)
			b = at;
	}
	if (!b) {
		b = PUSH(s->backoffs);
		*b = (struct quota_backoff){.workspace = a->workspace,
		                            .cluster = a->base.cluster,
		                            .model = a->base.model,
		                            .last_ns = INT64_MIN,
		                            .until_ns = INT64_MIN};
	}
	if (l->in.ordered_ns > b->last_ns) {
		bool quiet = b->times == 0 || s->now_ns - b->until_ns >= s->settings.backoff_forget_ns;

		b->times = quiet ? 1 : b->times + 1;
		b->last_ns = l->in.ordered_ns;
	}
	b->until_ns = s->now_ns + (s->settings.backoff_ns << (b->times > MAX_DOUBLINGS ? MAX_DOUBLINGS : b->times - 1));
}

static void
return_lease(struct quota_state *s, int32_t lease, enum quota_notice_kind kind, struct gather *g)
{
	const struct lease *l = &s->leases.at[lease];

	if (l->in.order == QUOTA_ORDERED)
		back_off(s, l);
	quota_notice(g, kind, l->id, "", s->now_ns);
	quota_lease_end(s, lease);
}

static void
set_order(struct quota_state *s, int32_t lease, enum quota_order order)
{
	if (s->leases.at[lease].in.order == QUOTA_ORDERED)
		back_off(s, &s->leases.at[lease]);
	quota_lease_set_order(s, lease, order);
	s->leases.at[lease].was = order;
}

/* ---- a tick ------------------------------------------------------------------------------------------------------------------- */

static bool
passed(const struct quota_state *s, int64_t since_ns, int64_t span_ns)
{
	return span_ns > 0 && s->now_ns - since_ns >= span_ns;
}

static void
tick_lease(struct quota_state *s, int32_t lease, struct gather *g)
{
	struct lease *l = &s->leases.at[lease];

	if (l->in.order >= QUOTA_ORDERED && l->in.order <= QUOTA_DRAINING && l->in.due_ns > 0 &&
	    s->now_ns >= l->in.due_ns) {
		set_order(s, lease, QUOTA_OVERDUE);
		quota_notice(g, QUOTA_ORDER_OVERDUE, l->id, "", l->in.due_ns);
	}
	if (l->in.state == QUOTA_ADMITTED && passed(s, quota_confirmable_since(&l->in), s->settings.confirm_ns)) {
		quota_unused_expired(s, l, g);
		return_lease(s, lease, QUOTA_LEASE_EXPIRED, g);
	} else if (l->in.state == QUOTA_CONFIRMED && passed(s, l->in.seen_ns, s->settings.silence_ns)) {
		l->in.state = QUOTA_SUSPECT;
		quota_notice(g, QUOTA_LEASE_SUSPECT, l->id, "", s->now_ns);
	}
}

static void
end_request(struct quota_state *s, int32_t wait, enum quota_notice_kind kind, struct gather *g)
{
	if (s->waits.at[wait].account != QUOTA_NONE)
		quota_replan(s, wait, g);
	quota_notice(g, kind, s->waits.at[wait].id, "", s->now_ns);
	quota_wait_free(s, wait);
	s->dirty = true;
}

static int
compare_by_order(const void *a, const void *b, void *arg)
{
	const struct quota_state *s = arg;
	const struct lease *x = &s->leases.at[((const struct place_of_lease *)a)->lease];
	const struct lease *y = &s->leases.at[((const struct place_of_lease *)b)->lease];

	if (x->in.ordered_ns != y->in.ordered_ns)
		return x->in.ordered_ns < y->in.ordered_ns ? -1 : 1;
	return strcmp(x->id, y->id);
}

/* In the order of their orders: back-offs depend on it. */
static void
tick_leases(struct quota_state *s, struct gather *g)
{
	owned(mem) struct place_of_lease *list = mem_array(s->lease_count + 1, sizeof(*list));
	size_t count = 0;

	for (size_t i = 0; i < s->leases.count; i++)
		if (s->leases.at[i].id[0] != '\0' && (s->leases.at[i].in.order != QUOTA_NO_ORDER ||
		                                      s->settings.confirm_ns > 0 || s->settings.silence_ns > 0))
			list[count++].lease = (int32_t)i;
	qsort_r(list, count, sizeof(*list), compare_by_order, s);
	for (size_t i = 0; i < count; i++)
		tick_lease(s, list[i].lease, g);
}

static void
tick(struct quota_state *s, struct gather *g)
{
	tick_leases(s, g);
	quota_unused_forget(s);
	for (size_t i = 0; i < s->waits.count; i++) {
		const struct wait *w = &s->waits.at[i];

		if (w->id[0] != '\0' && w->in.expires_ns > 0 && s->now_ns >= w->in.expires_ns)
			end_request(s, (int32_t)i, QUOTA_REQUEST_EXPIRED, g);
	}
	s->dirty = true;
}

/* ---- the clock ---------------------------------------------------------------------------------------------------------------- */

static void
move(int64_t *moment, int64_t until_ns, int64_t by_ns)
{
	int128 to = (int128)*moment + by_ns;

	if (*moment > until_ns)
		return;
	*moment = to > MOMENT_MAX_NS ? MOMENT_MAX_NS : to < -MOMENT_MAX_NS ? -MOMENT_MAX_NS : (int64_t)to;
}

static void
clock_set(struct quota_state *s, const struct quota_event *e)
{
	int64_t by_ns = e->skipped_ns - s->skipped_ns;

	for (size_t i = 0; i < s->leases.count; i++) {
		struct quota_lease *l = &s->leases.at[i].in;

		if (l->order != QUOTA_NO_ORDER && l->due_ns > 0 && l->ordered_ns <= e->until_ns)
			move(&l->due_ns, INT64_MAX, by_ns);
		move(&l->ordered_ns, e->until_ns, by_ns);
		move(&l->since_ns, e->until_ns, by_ns);
		move(&l->seen_ns, e->until_ns, by_ns);
		if (l->renewed_ns != 0)
			move(&l->renewed_ns, e->until_ns, by_ns);
		if (l->adopted)
			move(&l->adopted_ns, e->until_ns, by_ns);
	}
	for (size_t i = 0; i < s->adoptions.count; i++)
		if (s->adoptions.at[i].switched_ns != 0)
			move(&s->adoptions.at[i].switched_ns, e->until_ns, by_ns);
	for (size_t i = 0; i < s->waits.count; i++)
		move(&s->waits.at[i].in.submitted_ns, e->until_ns, by_ns);
	for (size_t i = 0; i < s->backoffs.count; i++) {
		if (s->backoffs.at[i].last_ns <= e->until_ns)
			move(&s->backoffs.at[i].until_ns, INT64_MAX, by_ns);
		move(&s->backoffs.at[i].last_ns, e->until_ns, by_ns);
	}
	for (size_t i = 0; i < s->unused.count; i++) {
		if (s->unused.at[i].in.last_ns <= e->until_ns)
			move(&s->unused.at[i].in.until_ns, INT64_MAX, by_ns);
		move(&s->unused.at[i].in.last_ns, e->until_ns, by_ns);
	}
	for (size_t i = 0; i < s->fences.count; i++)
		move(&s->fences.at[i].in.since_ns, e->until_ns, by_ns);
	s->skipped_ns = e->skipped_ns;
	s->dirty = true;
}

/* ---- leases ------------------------------------------------------------------------------------------------------------------- */

void
quota_replan_those_waiting_for(struct quota_state *s, int32_t lease, struct gather *g)
{
	for (size_t i = 0; i < s->waits.count && s->leases.at[lease].promises > 0; i++) {
		const struct wait *w = &s->waits.at[i];
		bool waits = false;

		if (w->id[0] == '\0' || w->account == QUOTA_NONE)
			continue;
		for (int32_t p = w->first_part; p != QUOTA_NONE; p = s->parts.at[p].next)
			waits = waits || s->parts.at[p].lease == lease;
		if (waits)
			quota_replan(s, (int32_t)i, g);
	}
}

/* Where it really runs. False when that is not free or in another pool. */
static bool
move_lease(struct quota_state *s, int32_t lease, const struct quota_event *e, struct gather *g)
{
	struct lease *l = &s->leases.at[lease];
	int32_t pool = s->accounts.at[l->account].pool;
	in_place(plan) struct plan to = {0}, from = {0};
	int64_t sum = 0;
	bool ok = quota_plan_of_parts(s, e->parts, e->part_count, l->in.shape, l->in.count, &to);

	for (size_t i = 0; i < to.count; i++) {
		sum += to.at[i].count;
		ok = ok &&
		     s->pool_shapes.at[s->node_shapes.at[s->groups.at[to.at[i].group].node_shape].pool_shape].pool ==
		             pool;
	}
	if (!ok || sum != l->in.count)
		return false;
	quota_replan_those_waiting_for(s, lease, g);
	for (int32_t p = l->first_part; p != QUOTA_NONE; p = s->parts.at[p].next)
		*PUSH(from) = (struct spot){.group = s->parts.at[p].group, .count = s->parts.at[p].count};
	quota_lease_unplace(s, lease);
	for (size_t i = 0; i < to.count && ok; i++)
		ok = quota_group_free(s, to.at[i].group) >= to.at[i].count;
	quota_lease_place(s, lease, ok ? &to : &from);
	s->dirty = true;
	return ok;
}

static void
confirm(struct quota_state *s, int32_t lease, const struct quota_event *e, struct gather *g)
{
	struct lease *l = &s->leases.at[lease];
	const struct account *a = &s->accounts.at[l->account];

	/* A lease that is over the limit because an exception ended runs on, but is not confirmed again. */
	if (l->in.state != QUOTA_ADMITTED && quota_committed(a) > a->limit &&
	    quota_enforce_in(s, a->workspace, a->base.cluster) == QUOTA_ENFORCE_ON) {
		quota_notice(g, QUOTA_REFUSED, l->id, "limit", s->now_ns);
		return;
	}
	if (l->in.state == QUOTA_ADMITTED)
		quota_unused_confirmed(s, l);
	l->reason[0] = '\0';
	l->in.state = QUOTA_CONFIRMED;
	l->in.seen_ns = s->now_ns;
	l->in.empty = false;
	if (e->part_count > 0 && !move_lease(s, lease, e, g))
		quota_notice(g, QUOTA_REFUSED, s->leases.at[lease].id, "place", s->now_ns);
}

static void
lease_event(struct quota_state *s, const struct quota_event *e, struct gather *g)
{
	int32_t lease = quota_lease_by_id(s, e->id);
	struct lease *l = lease == QUOTA_NONE ? NULL : &s->leases.at[lease];

	if (!l) {
		quota_notice(g, QUOTA_REFUSED, e->id, "unknown", s->now_ns);
		return;
	}
	switch (e->kind) {
	case QUOTA_FINISH: return_lease(s, lease, QUOTA_LEASE_RETURNED, g); return;
	case QUOTA_RELEASE:
		if (e->lost) {
			quota_lose(s, lease, g);
			return;
		}
		l->in.released = true;
		break;
	case QUOTA_EMPTY: l->in.empty = true; break;
	case QUOTA_DRAIN:
		if (l->in.order <= QUOTA_ORDERED)
			set_order(s, lease, QUOTA_DRAINING);
		return;
	case QUOTA_ENFORCE:
		if (l->in.order == QUOTA_OVERDUE)
			set_order(s, lease, QUOTA_ENFORCED);
		else
			quota_notice(g, QUOTA_REFUSED, l->id, "not overdue", s->now_ns);
		return;
	case QUOTA_CONFIRM: confirm(s, lease, e, g); return;
	case QUOTA_RENEW:
		if (l->in.state == QUOTA_ADMITTED)
			l->in.renewed_ns = s->now_ns;
		return;
	default: /* QUOTA_HEARTBEAT */
		l->in.seen_ns = s->now_ns;
		l->in.empty = false;
		if (l->in.state == QUOTA_SUSPECT)
			l->in.state = QUOTA_CONFIRMED;
		return;
	}
	if (l->in.empty && (l->in.released || l->in.state == QUOTA_SUSPECT))
		return_lease(s, lease, QUOTA_LEASE_RETURNED, g);
}

/* ---- a step ------------------------------------------------------------------------------------------------------------------- */

static bool
event_ok(const struct quota_state *s, const struct quota_event *e, struct err *err)
{
	bool node = e->kind >= QUOTA_NODE_LOST && e->kind <= QUOTA_LAYOUT;
	bool gpu = e->kind >= QUOTA_GPU_LOST && e->kind <= QUOTA_LAYOUT;
	bool id = (e->kind >= QUOTA_FINISH && e->kind <= QUOTA_CANCEL) || e->kind == QUOTA_EXCEPTION_END ||
	          e->kind == QUOTA_RENEW || e->kind == QUOTA_UNFENCE;

	if (id && (!e->id || strnlen(e->id, QUOTA_ID_SIZE) >= QUOTA_ID_SIZE || e->id[0] == '\0'))
		return err_set(err, ERR_INVALID, "an id of 1 to %d bytes is expected", QUOTA_ID_SIZE - 1);
	if (node && (e->node < 0 || (size_t)e->node >= s->nodes.count))
		return err_set(err, ERR_INVALID, "there is no node %d", e->node);
	if (gpu && (e->gpu < 0 || e->gpu >= s->nodes.at[e->node].gpu_count))
		return err_set(err, ERR_INVALID, "node %s has no GPU %d", s->nodes.at[e->node].name, e->gpu);
	if (e->kind == QUOTA_LAYOUT && !quota_slots_ok(s, e->slots, e->slot_count))
		return err_set(err, ERR_INVALID, "the slots of a GPU are of one model, and a count is at most %d",
		               QUOTA_MAX_COUNT);
	if (e->kind == QUOTA_EXCEPTION && (!e->exception || !quota_exception_ok(s, e->exception)))
		return err_set(err, ERR_INVALID, "a field of the exception is out of range");
	if (e->kind == QUOTA_EXCEPTION)
		for (size_t i = 0; i < s->exceptions.count; i++)
			if (strcmp(s->exceptions.at[i].id, e->exception->id) == 0)
				return err_set(err, ERR_CONFLICT, "there is an exception \"%s\" already",
				               e->exception->id);
	if (e->kind == QUOTA_CLOCK && (e->skipped_ns < -QUOTA_MAX_SKIPPED_NS || e->skipped_ns > QUOTA_MAX_SKIPPED_NS))
		return err_set(err, ERR_INVALID, "no clock is set by %" PRId64 " ns", e->skipped_ns);
	if (e->kind == QUOTA_ADOPT && !quota_adopt_ok(s, e, err))
		return false;
	if (e->kind == QUOTA_ADOPTION && (e->cluster < 0 || (size_t)e->cluster >= s->clusters.count))
		return err_set(err, ERR_INVALID, "there is no cluster %d", e->cluster);
	return e->kind != QUOTA_SUBMIT || submit_ok(s, e, err);
}

static void
apply(struct quota_state *s, const struct quota_event *e, struct quota_state *anew, struct gather *g)
{
	struct exception *x;
	int32_t wait;

	switch (e->kind) {
	case QUOTA_SUBMIT: submit(s, e); break;
	case QUOTA_TICK: tick(s, g); break;
	case QUOTA_CANCEL:
		wait = quota_wait_by_id(s, e->id);
		if (wait == QUOTA_NONE)
			quota_notice(g, QUOTA_REFUSED, e->id, "unknown", s->now_ns);
		else
			end_request(s, wait, QUOTA_REQUEST_CANCELLED, g);
		break;
	case QUOTA_NODE_LOST:
	case QUOTA_NODE_BACK:
	case QUOTA_GPU_LOST:
	case QUOTA_GPU_BACK:
	case QUOTA_LAYOUT: node_event(s, e, g); break;
	case QUOTA_EXCEPTION:
		x = PUSH(s->exceptions);
		x->in = *e->exception;
		memcpy(x->id, e->exception->id, strlen(e->exception->id) + 1);
		(void)quota_account(s, x->in.workspace, x->in.cluster, x->in.model, x->in.shared);
		break;
	case QUOTA_EXCEPTION_END: end_exception(s, e->id, g); break;
	case QUOTA_POLICY: change_policy(s, anew, g); break;
	case QUOTA_CLOCK: clock_set(s, e); break;
	case QUOTA_ADOPT: quota_adopt(s, e, g); break;
	case QUOTA_ADOPTION: quota_adoption(s, e); break;
	case QUOTA_UNFENCE: quota_unfence(s, e, g); break;
	default: lease_event(s, e, g); break;
	}
}

static int
compare_touched(const void *a, const void *b)
{
	const struct place_of_lease *x = a, *y = b;

	return (x->lease > y->lease) - (x->lease < y->lease);
}

static int
compare_notices(const void *a, const void *b)
{
	const struct quota_notice *x = a, *y = b;

	if (x->kind != y->kind)
		return x->kind < y->kind ? -1 : 1;
	return strcmp(x->id, y->id);
}

/* The request that waits for a lease, the first by time and id. */
static const char *
beneficiary(const struct quota_state *s, int32_t lease)
{
	const struct wait *best = NULL;

	for (size_t i = 0; i < s->waits.count; i++) {
		const struct wait *w = &s->waits.at[i];

		if (w->id[0] == '\0' || w->account == QUOTA_NONE)
			continue;
		for (int32_t p = w->first_part; p != QUOTA_NONE; p = s->parts.at[p].next)
			if (s->parts.at[p].lease == lease &&
			    (!best || w->in.submitted_ns < best->in.submitted_ns ||
			     (w->in.submitted_ns == best->in.submitted_ns && strcmp(w->id, best->id) < 0)))
				best = w;
	}
	return best ? best->id : "";
}

/* Orders made or cancelled in this step; one that was cancelled and taken up again is neither. */
static void
notice_orders(struct quota_state *s, struct gather *g)
{
	if (s->touched.count > 0)
		qsort(s->touched.at, s->touched.count, sizeof(*s->touched.at), compare_touched);
	for (size_t i = 0; i < s->touched.count; i++) {
		int32_t lease = s->touched.at[i].lease;
		struct lease *l = &s->leases.at[lease];

		if (l->id[0] == '\0' || (i > 0 && s->touched.at[i - 1].lease == lease))
			continue;
		if (l->was == QUOTA_NO_ORDER && l->in.order == QUOTA_ORDERED)
			quota_notice(g, QUOTA_ORDER_MADE, l->id, beneficiary(s, lease), l->in.due_ns);
		else if (l->was == QUOTA_ORDERED && l->in.order == QUOTA_NO_ORDER)
			quota_notice(g, QUOTA_ORDER_CANCELLED, l->id, "", s->now_ns);
		l->was = l->in.order;
	}
	if (g->notices.count > 0)
		qsort(g->notices.at, g->notices.count, sizeof(*g->notices.at), compare_notices);
	s->touched.count = 0;
}

bool
quota_step(struct quota_state *s, int64_t now_ns, const struct quota_event *event, struct quota_outcome **ret,
           struct err *err)
{
	owned(quota) struct quota_state *anew = NULL;
	struct quota_outcome *o = NULL;
	struct gather g = {0};

	if (!event_ok(s, event, err) || (event->kind == QUOTA_POLICY && !load_policy(s, event->policy, &anew, err)))
		return false;
	s->step++;
	s->touched.count = 0;
	if (now_ns > s->now_ns)
		s->now_ns = now_ns;
	apply(s, event, anew, &g);
	exceptions_at(s, &g);
	quota_complete(s, &g);
	quota_pass(s, &g);
	quota_positions(s, &g.verdicts);
	notice_orders(s, &g);
	o = mem_alloc(sizeof(*o));
	o->verdicts = g.verdicts.at;
	o->verdict_count = g.verdicts.count;
	o->notices = g.notices.at;
	o->notice_count = g.notices.count;
	*ret = o;
	return true;
}

void
quota_outcome_free(struct quota_outcome *o)
{
	if (!o)
		return;
	for (size_t i = 0; i < o->verdict_count; i++) {
		mem_free(o->verdicts[i].placed);
		mem_free(o->verdicts[i].victims);
		mem_free(o->verdicts[i].checks);
		mem_free(o->verdicts[i].fault);
		mem_free(o->verdicts[i].remedy);
	}
	mem_free(o->verdicts);
	mem_free(o->notices);
	mem_free(o);
}

bool
quota_try(const struct quota_state *s, int64_t now_ns, const struct quota_event *event, struct quota_outcome **ret,
          struct err *err)
{
	owned(quota) struct quota_state *c = quota_clone(s);

	return quota_step(c, now_ns, event, ret, err);
}
