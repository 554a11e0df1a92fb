/* aggregator/core/quota/engine/quota_time.c - what time does to leases, requests and exceptions, and what is heard of a lease. */
#include "aggregator/core/quota/engine/quota_queue.h"

#include <stdlib.h>

#include "aggregator/core/quota/engine/quota_load.h"

#define MAX_DOUBLINGS 20
#define MOMENT_MAX_NS (INT64_C(1) << 62)

/* ---- time -------------------------------------------------------------------------------------------------------------------- */

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

void
quota_exceptions_at(struct quota_state *s, struct gather *g)
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

/* A reclaim that can no longer be taken back. What was ordered at the same time counts once. */
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
	if (l->in.state == QUOTA_ADMITTED && passed(s, l->in.since_ns, s->settings.confirm_ns)) {
		return_lease(s, lease, QUOTA_LEASE_EXPIRED, g);
	} else if (l->in.state == QUOTA_CONFIRMED && passed(s, l->in.seen_ns, s->settings.silence_ns)) {
		l->in.state = QUOTA_SUSPECT;
		quota_notice(g, QUOTA_LEASE_SUSPECT, l->id, "", s->now_ns);
	}
}

void
quota_end_request(struct quota_state *s, int32_t wait, enum quota_notice_kind kind, struct gather *g)
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

void
quota_tick(struct quota_state *s, struct gather *g)
{
	tick_leases(s, g);
	for (size_t i = 0; i < s->waits.count; i++) {
		const struct wait *w = &s->waits.at[i];

		if (w->id[0] != '\0' && w->in.expires_ns > 0 && s->now_ns >= w->in.expires_ns)
			quota_end_request(s, (int32_t)i, QUOTA_REQUEST_EXPIRED, g);
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

void
quota_clock_set(struct quota_state *s, const struct quota_event *e)
{
	int64_t by_ns = e->skipped_ns - s->skipped_ns;

	for (size_t i = 0; i < s->leases.count; i++) {
		struct quota_lease *l = &s->leases.at[i].in;

		if (l->order != QUOTA_NO_ORDER && l->due_ns > 0 && l->ordered_ns <= e->until_ns)
			move(&l->due_ns, INT64_MAX, by_ns);
		move(&l->ordered_ns, e->until_ns, by_ns);
		move(&l->since_ns, e->until_ns, by_ns);
		move(&l->seen_ns, e->until_ns, by_ns);
	}
	for (size_t i = 0; i < s->waits.count; i++)
		move(&s->waits.at[i].in.submitted_ns, e->until_ns, by_ns);
	for (size_t i = 0; i < s->backoffs.count; i++) {
		if (s->backoffs.at[i].last_ns <= e->until_ns)
			move(&s->backoffs.at[i].until_ns, INT64_MAX, by_ns);
		move(&s->backoffs.at[i].last_ns, e->until_ns, by_ns);
	}
	s->skipped_ns = e->skipped_ns;
	s->dirty = true;
}

/* ---- leases ------------------------------------------------------------------------------------------------------------------- */

static void
replan_those_waiting_for(struct quota_state *s, int32_t lease, struct gather *g)
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
		ok = ok && s->shelves.at[s->stocks.at[s->groups.at[to.at[i].group].stock].shelf].pool == pool;
	}
	if (!ok || sum != l->in.count)
		return false;
	replan_those_waiting_for(s, lease, g);
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

	/* What an ended exception left over the limit runs on, but is not confirmed again. */
	if (l->in.state != QUOTA_ADMITTED && quota_committed(a) > a->limit &&
	    s->workspaces.at[a->workspace].in.enforce == QUOTA_ENFORCE_ON) {
		quota_notice(g, QUOTA_REFUSED, l->id, "limit", s->now_ns);
		return;
	}
	l->in.state = QUOTA_CONFIRMED;
	l->in.seen_ns = s->now_ns;
	l->in.empty = false;
	if (e->part_count > 0 && !move_lease(s, lease, e, g))
		quota_notice(g, QUOTA_REFUSED, s->leases.at[lease].id, "place", s->now_ns);
}

void
quota_lease_event(struct quota_state *s, const struct quota_event *e, struct gather *g)
{
	int32_t lease = quota_lease_by_id(s, e->id);
	struct lease *l = lease == QUOTA_NONE ? NULL : &s->leases.at[lease];

	if (!l) {
		quota_notice(g, QUOTA_REFUSED, e->id, "unknown", s->now_ns);
		return;
	}
	switch (e->kind) {
	case QUOTA_FINISH: return_lease(s, lease, QUOTA_LEASE_RETURNED, g); return;
	case QUOTA_RELEASE: l->in.released = true; break;
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
