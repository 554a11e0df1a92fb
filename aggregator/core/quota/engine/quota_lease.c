/* aggregator/core/quota/engine/quota_lease.c - leases, and holds of the devices that they will return. */
#include "aggregator/core/quota/engine/quota_state.h"

#include <stdlib.h>

static int32_t
tenant_of(const struct quota_state *s, int32_t workspace)
{
	return s->workspaces.at[workspace].in.tenant;
}

/* ---- parts ---------------------------------------------------------------------------------------------------------------- */

static int32_t
part_new(struct quota_state *s)
{
	int32_t at = s->free_part;

	if (at == QUOTA_NONE) {
		at = (int32_t)s->parts.count;
		(void)PUSH(s->parts);
	} else {
		s->free_part = s->parts.at[at].next;
	}
	s->parts.at[at] = (struct part){.group = QUOTA_NONE, .lease = QUOTA_NONE, .next = QUOTA_NONE};
	return at;
}

static void
free_parts(struct quota_state *s, int32_t *first)
{
	while (*first != QUOTA_NONE) {
		int32_t next = s->parts.at[*first].next;

		s->parts.at[*first].next = s->free_part;
		s->free_part = *first;
		*first = next;
	}
}

/* At the front; saved from the back, so that a loaded list is the same one. */
static struct part *
add_part(struct quota_state *s, int32_t *first)
{
	int32_t at = part_new(s);

	s->parts.at[at].next = *first;
	*first = at;
	return &s->parts.at[at];
}

static int
compare_spots(const void *a, const void *b)
{
	const struct spot *x = a, *y = b;

	return (x->group > y->group) - (x->group < y->group);
}

/* Each group once: a hold may have some of its devices now and some later. */
void
quota_plan_merge(struct plan *p)
{
	size_t count = 0;

	if (p->count == 0)
		return;
	qsort(p->at, p->count, sizeof(*p->at), compare_spots);
	for (size_t i = 1; i < p->count; i++) {
		if (p->at[i].group == p->at[count].group)
			p->at[count].count += p->at[i].count;
		else
			p->at[++count] = p->at[i];
	}
	p->count = count + 1;
}

/* ---- sums that a lease or hold counts in ------------------------------------------------------------------------------------- */

static void
count_others(struct quota_state *s, int32_t workspace, const int64_t other[QUOTA_OTHERS], int sign)
{
	struct workspace *w = &s->workspaces.at[workspace];
	struct tenant *t = &s->tenants.at[w->in.tenant];

	for (size_t i = 0; i < QUOTA_OTHERS; i++) {
		w->other_used[i] += sign * (int128)other[i];
		t->other_used[i] += sign * (int128)other[i];
	}
}

static void
count_budgets(struct quota_state *s, int32_t workspace, int64_t unit_seconds, int64_t cost, int sign)
{
	int32_t b = s->tenants.at[tenant_of(s, workspace)].first_budget;

	for (; b != QUOTA_NONE; b = s->budgets.at[b].next) {
		struct budget *at = &s->budgets.at[b];

		if (at->in.workspace == QUOTA_NONE || at->in.workspace == workspace)
			at->committed += sign * (int128)(at->in.kind == QUOTA_BUDGET_MONEY    ? cost
			                                 : at->in.kind == QUOTA_BUDGET_TOKENS ? 0
			                                                                      : unit_seconds);
	}
}

static void
count_lease(struct quota_state *s, const struct lease *l, int sign)
{
	struct account *a = &s->accounts.at[l->account];
	int64_t units = sign * l->units;

	quota_account_out(s, l->account);
	a->leased += units;
	if (l->in.order != QUOTA_NO_ORDER)
		a->leaving += units;
	if (!l->in.preemptible)
		a->fixed += units;
	quota_account_in(s, l->account);
}

/* The own lease that a part of a hold waits for, or NULL. */
static struct lease *
own_lease_of(struct quota_state *s, const struct wait *w, const struct part *p)
{
	struct lease *l = p->lease == QUOTA_NONE ? NULL : &s->leases.at[p->lease];

	return l && !l->gone && s->accounts.at[l->account].workspace == w->in.workspace ? l : NULL;
}

/* Lets up to `most` units of a leaving lease stand for the hold. */
static void
assign(struct wait *w, struct lease *l, int64_t most)
{
	int64_t units = l->unassigned < most ? l->unassigned : most;

	if (units <= 0)
		return;
	l->unassigned -= units;
	if (l->account == w->account)
		w->drains += units;
	else
		w->drains_elsewhere += units;
}

static int64_t
least(int64_t a, int64_t b)
{
	return a < b ? a : b;
}

/* 1: units promised to it; 2: of leases in its pool; 3: of others. */
static void
assign_leaving_of(struct quota_state *s, struct wait *w, int rule)
{
	for (int32_t p = w->first_part; p != QUOTA_NONE; p = s->parts.at[p].next) {
		const struct part *part = &s->parts.at[p];
		struct lease *l = own_lease_of(s, w, part);

		if (!l)
			continue;
		if (rule == 1 && part->group != QUOTA_NONE)
			assign(w, l, part->count * s->shapes.at[s->groups.at[part->group].shape].in.units);
		if (rule == 2 && l->account == w->account)
			assign(w, l, w->units - w->drains);
		if (rule == 3 && l->account != w->account)
			assign(w, l, w->units - w->drains - w->drains_elsewhere);
	}
}

/* Every unit of an own lease that holds wait for stands for one of them:
 *  1. where its device is promised to a hold, for that one
 *  2. else for the first, by id, that still lacks units: leases of the hold's pool before those of the other one
 *  3. else for none
 * CPU, memory and storage of a lease stand for the first hold that waits for it. */
static void
assign_leaving(struct quota_state *s, struct workspace *ws)
{
	for (int32_t i = ws->first_hold; i != QUOTA_NONE; i = s->waits.at[i].next_hold) {
		struct wait *w = &s->waits.at[i];

		w->drains = w->drains_elsewhere = 0;
		for (int32_t p = w->first_part; p != QUOTA_NONE; p = s->parts.at[p].next) {
			struct lease *l = own_lease_of(s, w, &s->parts.at[p]);

			if (l) {
				l->unassigned = l->units;
				l->others_assigned = false;
			}
		}
	}
	for (int rule = 1; rule <= 3; rule++)
		for (int32_t i = ws->first_hold; i != QUOTA_NONE; i = s->waits.at[i].next_hold)
			assign_leaving_of(s, &s->waits.at[i], rule);
}

static void
replaced_others(struct quota_state *s, const struct workspace *ws, int128 ret[QUOTA_OTHERS])
{
	for (int32_t i = ws->first_hold; i != QUOTA_NONE; i = s->waits.at[i].next_hold) {
		const struct wait *w = &s->waits.at[i];
		int128 drains[QUOTA_OTHERS] = {0};

		for (int32_t p = w->first_part; p != QUOTA_NONE; p = s->parts.at[p].next) {
			struct lease *l = own_lease_of(s, w, &s->parts.at[p]);

			if (!l || l->others_assigned)
				continue;
			l->others_assigned = true;
			for (size_t k = 0; k < QUOTA_OTHERS; k++)
				drains[k] += l->in.other[k];
		}
		for (size_t k = 0; k < QUOTA_OTHERS; k++)
			ret[k] += drains[k] < w->in.other[k] ? drains[k] : w->in.other[k];
	}
}

/* A hold and the own leases that drain for it count as the larger of the two. Each unit of a lease stands for one hold at most, so that
 * whatever the order in which the leases return, no more is ever leased than is counted. */
static void
count_replaced(struct quota_state *s, int32_t workspace)
{
	struct workspace *ws = &s->workspaces.at[workspace];
	int128 others[QUOTA_OTHERS] = {0};

	for (int32_t a = ws->first_account; a != QUOTA_NONE; a = s->accounts.at[a].next_of_workspace) {
		quota_account_out(s, a);
		s->accounts.at[a].replaced = s->accounts.at[a].replaced_all = 0;
	}
	assign_leaving(s, ws);
	for (int32_t i = ws->first_hold; i != QUOTA_NONE; i = s->waits.at[i].next_hold) {
		const struct wait *w = &s->waits.at[i];
		struct account *a = &s->accounts.at[w->account];

		a->replaced += least(w->units, w->drains);
		a->replaced_all += least(w->units, w->drains + w->drains_elsewhere);
	}
	for (int32_t a = ws->first_account; a != QUOTA_NONE; a = s->accounts.at[a].next_of_workspace)
		quota_account_in(s, a);
	replaced_others(s, ws, others);
	for (size_t k = 0; k < QUOTA_OTHERS; k++) {
		ws->other_used[k] -= others[k] - ws->other_replaced[k];
		s->tenants.at[ws->in.tenant].other_used[k] -= others[k] - ws->other_replaced[k];
		ws->other_replaced[k] = others[k];
	}
}

/* ---- priority levels: preemptible units are known without looking at every lease ---------------------------------------- */

static int32_t
level_new(struct quota_state *s, int64_t priority)
{
	int32_t at = s->free_level;

	if (at == QUOTA_NONE) {
		at = (int32_t)s->levels.count;
		(void)PUSH(s->levels);
	} else {
		s->free_level = s->levels.at[at].next;
	}
	s->levels.at[at] = (struct priority_level){.priority = priority, .next = QUOTA_NONE};
	return at;
}

static void
count_level(struct quota_state *s, const struct lease *l, int sign)
{
	struct account *a = &s->accounts.at[l->account];
	int32_t at = a->first_level, before = QUOTA_NONE;

	if (!l->in.preemptible)
		return;
	for (; at != QUOTA_NONE && s->levels.at[at].priority != l->in.priority; at = s->levels.at[at].next)
		before = at;
	if (at == QUOTA_NONE) {
		at = level_new(s, l->in.priority);
		if (before == QUOTA_NONE)
			a->first_level = at;
		else
			s->levels.at[before].next = at;
	}
	s->levels.at[at].units += sign * l->units;
	s->levels.at[at].leases += sign;
	if (s->levels.at[at].leases > 0)
		return;
	if (before == QUOTA_NONE)
		a->first_level = s->levels.at[at].next;
	else
		s->levels.at[before].next = s->levels.at[at].next;
	s->levels.at[at].next = s->free_level;
	s->free_level = at;
}

int64_t
quota_preemptible_below(const struct quota_state *s, int32_t account, int64_t priority)
{
	int64_t units = 0;

	for (int32_t i = s->accounts.at[account].first_level; i != QUOTA_NONE; i = s->levels.at[i].next)
		if (s->levels.at[i].priority < priority)
			units += s->levels.at[i].units;
	return units;
}

/* ---- leases --------------------------------------------------------------------------------------------------------------- */

int32_t
quota_lease_by_id(const struct quota_state *s, const char *id)
{
	return (int32_t)hash_find_text(&s->lease_ids, s->leases.at, sizeof(*s->leases.at), id); /* or QUOTA_NONE */
}

int32_t
quota_lease_new(struct quota_state *s, const char *id, const struct quota_lease *in, int32_t account)
{
	struct account *a = &s->accounts.at[account];
	int32_t at = s->free_lease;
	struct lease *l;

	if (at == QUOTA_NONE) {
		at = (int32_t)s->leases.count;
		(void)PUSH(s->leases);
	} else {
		s->free_lease = s->leases.at[at].next;
	}
	l = &s->leases.at[at];
	*l = (struct lease){.in = *in,
	                    .account = account,
	                    .first_part = QUOTA_NONE,
	                    .next = a->first_lease,
	                    .prev = QUOTA_NONE,
	                    .units = in->count * s->shapes.at[in->shape].in.units,
	                    .was = in->order};
	memcpy(l->id, id, strlen(id) + 1);
	quota_copy_reason(l->reason, in->reason);
	if (a->first_lease != QUOTA_NONE)
		s->leases.at[a->first_lease].prev = at;
	a->first_lease = at;
	hash_add(&s->lease_ids, hash_text(HASH_START, id), (size_t)at);
	s->lease_count++;
	s->pools.at[a->pool].unplaced += l->units;
	count_lease(s, l, 1);
	count_level(s, l, 1);
	count_others(s, a->workspace, l->in.other, 1);
	count_budgets(s, a->workspace, l->in.unit_seconds, l->in.cost, 1);
	return at;
}

void
quota_lease_place(struct quota_state *s, int32_t lease, const struct plan *plan)
{
	int32_t account = s->leases.at[lease].account;
	int32_t tenant = tenant_of(s, s->accounts.at[account].workspace);

	for (size_t i = 0; i < plan->count; i++) {
		const struct spot *spot = &plan->at[i];
		struct part *p;
		int64_t units = spot->count * s->shapes.at[s->groups.at[spot->group].shape].in.units;

		p = add_part(s, &s->leases.at[lease].first_part);
		p->group = spot->group;
		p->count = spot->count;
		quota_group_change(s, spot->group, spot->count, 0, tenant);
		s->leases.at[lease].placed_units += units;
		s->pools.at[s->accounts.at[account].pool].unplaced -= units;
	}
}

void
quota_lease_unplace(struct quota_state *s, int32_t lease)
{
	struct lease *l = &s->leases.at[lease];
	const struct account *a = &s->accounts.at[l->account];

	for (int32_t p = l->first_part; p != QUOTA_NONE; p = s->parts.at[p].next)
		quota_group_change(s, s->parts.at[p].group, -s->parts.at[p].count, 0, tenant_of(s, a->workspace));
	free_parts(s, &l->first_part);
	s->pools.at[a->pool].unplaced += l->placed_units;
	l->placed_units = 0;
}

void
quota_lease_set_order(struct quota_state *s, int32_t lease, enum quota_order order)
{
	struct lease *l = &s->leases.at[lease];

	count_lease(s, l, -1);
	l->in.order = order;
	count_lease(s, l, 1);
}

/* Holds that wait for the lease have its devices now. */
static void
hand_over(struct quota_state *s, int32_t lease)
{
	int32_t left = s->leases.at[lease].promises;

	for (size_t i = 0; i < s->waits.count && left > 0; i++) {
		struct wait *w = &s->waits.at[i];

		if (w->id[0] == '\0' || w->account == QUOTA_NONE)
			continue;
		for (int32_t *link = &w->first_part; *link != QUOTA_NONE;) {
			int32_t p = *link;
			struct part *part = &s->parts.at[p];

			if (part->lease != lease) {
				link = &part->next;
				continue;
			}
			part->lease = QUOTA_NONE;
			if (--w->missing == 0)
				s->complete = true;
			left--;
			if (part->group != QUOTA_NONE) {
				quota_group_expect(s, part->group, -part->count, tenant_of(s, w->in.workspace));
				quota_group_change(s, part->group, 0, part->count, tenant_of(s, w->in.workspace));
				link = &part->next;
			} else { /* it waited for the right alone: there is nothing to keep */
				*link = part->next;
				part->next = s->free_part;
				s->free_part = p;
			}
		}
	}
	ASSERT(left == 0);
}

void
quota_lease_end(struct quota_state *s, int32_t lease)
{
	struct lease *l = &s->leases.at[lease];
	struct account *a = &s->accounts.at[l->account];

	count_lease(s, l, -1);
	count_level(s, l, -1);
	count_others(s, a->workspace, l->in.other, -1);
	count_budgets(s, a->workspace, l->in.unit_seconds, l->in.cost, -1);
	quota_lease_unplace(s, lease);
	hand_over(s, lease);
	if (l->own_promises > 0)
		count_replaced(s, a->workspace);
	s->pools.at[a->pool].unplaced -= l->units;
	if (l->prev == QUOTA_NONE)
		a->first_lease = l->next;
	else
		s->leases.at[l->prev].next = l->next;
	if (l->next != QUOTA_NONE)
		s->leases.at[l->next].prev = l->prev;
	hash_remove(&s->lease_ids, hash_text(HASH_START, l->id), (size_t)lease);
	l->id[0] = '\0';
	l->next = s->free_lease;
	s->free_lease = lease;
	s->lease_count--;
	s->dirty = true;
}

static void
vanish(struct quota_state *s, struct lease *l, int sign)
{
	int32_t tenant = tenant_of(s, s->accounts.at[l->account].workspace);

	for (int32_t p = l->first_part; p != QUOTA_NONE; p = s->parts.at[p].next)
		quota_group_change(s, s->parts.at[p].group, sign * (s->parts.at[p].count - s->parts.at[p].promised), 0,
		                   tenant);
	count_lease(s, l, sign);
	count_others(s, s->accounts.at[l->account].workspace, l->in.other, sign);
	l->gone = sign < 0;
	if (l->own_promises > 0)
		count_replaced(s, s->accounts.at[l->account].workspace);
}

void
quota_lease_vanish(struct quota_state *s, int32_t lease)
{
	vanish(s, &s->leases.at[lease], -1);
}

void
quota_lease_appear(struct quota_state *s, int32_t lease)
{
	vanish(s, &s->leases.at[lease], 1);
}

/* ---- requests and their holds ---------------------------------------------------------------------------------------------- */

int32_t
quota_wait_by_id(const struct quota_state *s, const char *id)
{
	return (int32_t)hash_find_text(&s->wait_ids, s->waits.at, sizeof(*s->waits.at), id); /* or QUOTA_NONE */
}

int32_t
quota_wait_new(struct quota_state *s, const struct quota_request *in)
{
	int32_t at = s->free_wait;
	struct wait *w;

	if (at == QUOTA_NONE) {
		at = (int32_t)s->waits.count;
		(void)PUSH(s->waits);
	} else {
		s->free_wait = s->waits.at[at].first_part;
	}
	w = &s->waits.at[at];
	*w = (struct wait){.in = *in,
	                   .first_part = QUOTA_NONE,
	                   .account = QUOTA_NONE,
	                   .head_of = QUOTA_NONE,
	                   .next_hold = QUOTA_NONE};
	if (in->shape != QUOTA_NONE)
		w->units = in->count * s->shapes.at[in->shape].in.units;
	memcpy(w->id, in->id, strlen(in->id) + 1);
	quota_copy_reason(w->reason, in->reason);
	hash_add(&s->wait_ids, hash_text(HASH_START, w->id), (size_t)at);
	s->wait_count++;
	s->tenants.at[tenant_of(s, in->workspace)].waiting++;
	return at;
}

void
quota_head_clear(struct quota_state *s, int32_t wait)
{
	struct wait *w = &s->waits.at[wait];

	if (w->head_of != QUOTA_NONE)
		s->pools.at[w->head_of].head = QUOTA_NONE;
	w->head_of = QUOTA_NONE;
}

void
quota_wait_free(struct quota_state *s, int32_t wait)
{
	struct wait *w = &s->waits.at[wait];

	ASSERT(w->account == QUOTA_NONE && w->first_part == QUOTA_NONE);
	hash_remove(&s->wait_ids, hash_text(HASH_START, w->id), (size_t)wait);
	w->id[0] = '\0';
	w->first_part = s->free_wait;
	s->free_wait = wait;
	s->wait_count--;
	s->tenants.at[tenant_of(s, w->in.workspace)].waiting--;
	quota_head_clear(s, wait);
}

void
quota_hold_add(struct quota_state *s, int32_t wait, int32_t group, int32_t count, int32_t lease)
{
	struct part *p = add_part(s, &s->waits.at[wait].first_part);

	p->group = group;
	p->count = count;
	p->lease = lease;
}

/* A promise of a lease's devices, or its end. */
static void
promise(struct quota_state *s, const struct wait *w, const struct part *p, int sign)
{
	struct lease *l = &s->leases.at[p->lease];
	bool own = s->accounts.at[l->account].workspace == w->in.workspace;

	PUSH(s->touched)->lease = p->lease;
	count_lease(s, l, -1);
	l->promises += sign;
	if (own)
		l->own_promises += sign;
	if (sign > 0 && l->in.order == QUOTA_NO_ORDER) {
		/* In the step that cancelled it the order is the old one, with its old time. */
		if (l->dropped_step != s->step || s->step == 0) {
			l->in.ordered_ns = s->now_ns;
			l->in.due_ns = s->now_ns + s->settings.grace_ns;
		}
		l->in.order = QUOTA_ORDERED;
		l->in.reclaimed = !own;
	} else if (l->promises == 0 && l->in.order == QUOTA_ORDERED) {
		l->in.order = QUOTA_NO_ORDER;
		l->in.reclaimed = false;
		l->dropped_step = s->step;
	}
	count_lease(s, l, 1);
	if (p->group != QUOTA_NONE)
		quota_group_expect(s, p->group, sign * p->count, tenant_of(s, w->in.workspace));
	for (int32_t i = l->first_part; i != QUOTA_NONE; i = s->parts.at[i].next)
		if (s->parts.at[i].group == p->group)
			s->parts.at[i].promised += sign * p->count;
}

static void
attach(struct quota_state *s, struct wait *w, int sign)
{
	struct account *a = &s->accounts.at[w->account];

	for (int32_t i = w->first_part; i != QUOTA_NONE; i = s->parts.at[i].next) {
		const struct part *p = &s->parts.at[i];

		if (p->lease != QUOTA_NONE) {
			promise(s, w, p, sign);
			w->missing += sign;
		} else if (p->group != QUOTA_NONE) {
			quota_group_change(s, p->group, 0, sign * p->count, tenant_of(s, w->in.workspace));
		}
	}
	quota_account_out(s, w->account);
	a->held += sign * w->units;
	if (!w->in.preemptible)
		a->fixed += sign * w->units;
	quota_account_in(s, w->account);
	count_others(s, w->in.workspace, w->in.other, sign);
	count_budgets(s, w->in.workspace, w->units * w->in.expected_s, w->in.cost, sign);
}

/* The place in the workspace's list of holds where this one is or belongs. */
static int32_t *
link_of_hold(struct quota_state *s, int32_t wait)
{
	int32_t *link = &s->workspaces.at[s->waits.at[wait].in.workspace].first_hold;

	while (*link != QUOTA_NONE && strcmp(s->waits.at[*link].id, s->waits.at[wait].id) < 0)
		link = &s->waits.at[*link].next_hold;
	return link;
}

void
quota_hold_attach(struct quota_state *s, int32_t wait, int32_t account)
{
	struct wait *w = &s->waits.at[wait];
	int32_t *link = link_of_hold(s, wait);

	w->account = account;
	attach(s, w, 1);
	w->next_hold = *link;
	*link = wait;
	count_replaced(s, w->in.workspace);
}

void
quota_hold_detach(struct quota_state *s, int32_t wait)
{
	struct wait *w = &s->waits.at[wait];

	*link_of_hold(s, wait) = w->next_hold;
	attach(s, w, -1);
	w->account = QUOTA_NONE;
	count_replaced(s, w->in.workspace);
}

void
quota_hold_drop(struct quota_state *s, int32_t wait)
{
	quota_hold_detach(s, wait);
	free_parts(s, &s->waits.at[wait].first_part);
}

/* The parts of a hold as a plan. */
static void
plan_of_hold(const struct quota_state *s, const struct wait *w, struct plan *ret)
{
	for (int32_t i = w->first_part; i != QUOTA_NONE; i = s->parts.at[i].next) {
		if (s->parts.at[i].group == QUOTA_NONE)
			continue;
		*PUSH(*ret) = (struct spot){.group = s->parts.at[i].group, .count = s->parts.at[i].count};
	}
}

int32_t
quota_admit(struct quota_state *s, int32_t wait, int32_t account, const struct plan *plan)
{
	struct wait *w = &s->waits.at[wait];
	in_place(plan) struct plan held = {0};
	struct quota_request in = w->in;
	char id[QUOTA_ID_SIZE], reason[QUOTA_REASON_SIZE];
	int32_t lease;

	memcpy(id, w->id, sizeof(id));
	memcpy(reason, w->reason, sizeof(reason));
	if (w->account != QUOTA_NONE) {
		ASSERT(w->missing == 0);
		plan_of_hold(s, w, &held);
		quota_plan_merge(&held);
		quota_hold_drop(s, wait);
		plan = &held;
	}
	quota_wait_free(s, wait);
	lease = quota_lease_new(s, id,
	                        &(struct quota_lease){.workspace = in.workspace,
	                                              .cluster = in.cluster,
	                                              .shape = in.shape,
	                                              .count = in.count,
	                                              .node = QUOTA_NONE,
	                                              .priority = in.priority,
	                                              .preemptible = in.preemptible,
	                                              .since_ns = s->now_ns,
	                                              .seen_ns = s->now_ns,
	                                              .unit_seconds = in.count * s->shapes.at[in.shape].in.units *
	                                                              in.expected_s,
	                                              .cost = in.cost,
	                                              .reason = reason,
	                                              .other = {in.other[0], in.other[1], in.other[2]}},
	                        account);
	s->leases.at[lease].batch = s->step;
	if (plan)
		quota_lease_place(s, lease, plan);
	return lease;
}
