/* tests/prop/prop_decision_rows.c - the rows of decisions and reclaims follow the quota engine, whatever happens.
 *
 * Random events run through the engine; their changes are folded over random transactions of one to five events, and applied to rows
 * as the statements of store/quota/decision_write.c apply them. After each transaction the rows that are open are what quota_save() lists. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "aggregator/core/quota/book/decision_rows.h"
#include "tests/support/harness/prop.h"
#include "tests/support/quota/quotaworld.h"

#ifdef __SANITIZE_ADDRESS__
#define CASES "12"
#else
#define CASES "60"
#endif

/* The random worlds begin at 0, which is no time in a row. */
#define ERA_NS 1

struct decision_row {
	char id[QUOTA_ID_SIZE];
	enum decision_status status;
	enum quota_decision decision;
	int64_t admitted_ns, confirmed_ns, released_ns, ended_ns, position;
};

struct reclaim_row {
	char lease[QUOTA_ID_SIZE];
	enum reclaim_state state;
	int64_t seq;
};

struct tables {
	struct decision_row *decisions;
	struct reclaim_row *reclaims;
	size_t decision_count, reclaim_count;
};

static bool
say(struct buf *why, const char *id, const char *sentence)
{
	buf_printf(why, "%s: %s; ", id, sentence);
	return false;
}

/* ---- the statements ------------------------------------------------------------------------------------------------------------ */

static struct decision_row *
row_of(const struct tables *t, const char *id)
{
	for (size_t i = t->decision_count; i-- > 0;)
		if (strcmp(t->decisions[i].id, id) == 0)
			return &t->decisions[i];
	return NULL;
}

static bool
is_final(enum decision_status s)
{
	return s == DECISION_ENDED || s == DECISION_REJECTED || s == DECISION_CANCELLED || s == DECISION_EXPIRED;
}

static bool
apply_decision(struct tables *t, const struct decision_change *c, struct buf *why)
{
	struct decision_row *d = row_of(t, c->id);

	if (c->fresh) {
		if (d)
			return say(why, c->id, "is made twice");
		t->decisions = mem_grow(t->decisions, t->decision_count + 1, sizeof(*t->decisions));
		d = &t->decisions[t->decision_count++];
		*d = (struct decision_row){0};
		memcpy(d->id, c->id, sizeof(d->id));
	}
	if (!d)
		return say(why, c->id, "is changed, and there is no row");
	if (is_final(d->status))
		return say(why, c->id, "is final, and changes");
	if (c->status != DECISION_SAME)
		d->status = c->status;
	else if (c->seen_ns != 0 && d->status == DECISION_SUSPECT)
		d->status = DECISION_CONFIRMED;
	if (c->has_verdict)
		d->decision = c->decision;
	if (c->has_verdict || c->ended_ns)
		d->position = c->position;
	d->admitted_ns = c->admitted_ns ? c->admitted_ns : d->admitted_ns;
	d->confirmed_ns = d->confirmed_ns ? d->confirmed_ns : c->confirmed_ns;
	d->released_ns = d->released_ns ? d->released_ns : c->released_ns;
	d->ended_ns = c->ended_ns ? c->ended_ns : d->ended_ns;
	return true;
}

static bool
is_open(enum reclaim_state s)
{
	return s >= RECLAIM_ORDERED && s <= RECLAIM_ENFORCED;
}

static struct reclaim_row *
open_reclaim(const struct tables *t, const char *lease)
{
	for (size_t i = 0; i < t->reclaim_count; i++)
		if (strcmp(t->reclaims[i].lease, lease) == 0 && is_open(t->reclaims[i].state))
			return &t->reclaims[i];
	return NULL;
}

/* The row that is open; false: there is none. */
static bool
move_reclaim(struct tables *t, const struct reclaim_change *c)
{
	struct reclaim_row *r = open_reclaim(t, c->lease);

	if (!r)
		return false;
	if (c->state != RECLAIM_DRAINING || r->state == RECLAIM_ORDERED)
		r->state = c->state;
	return true;
}

static bool
make_reclaim(struct tables *t, const struct reclaim_change *c, struct buf *why)
{
	struct reclaim_row *r;

	if (is_open(c->state) && open_reclaim(t, c->lease))
		return say(why, c->lease, "is reclaimed twice");
	if (!row_of(t, c->lease))
		return say(why, c->lease, "is reclaimed and not known");
	t->reclaims = mem_grow(t->reclaims, t->reclaim_count + 1, sizeof(*t->reclaims));
	r = &t->reclaims[t->reclaim_count++];
	*r = (struct reclaim_row){.state = c->state};
	memcpy(r->lease, c->lease, sizeof(r->lease));
	return true;
}

/* First all that are open, then all that are new, as two statements do it. */
static bool
apply(struct tables *t, const struct decision_rows *rows, struct buf *why)
{
	owned(mem) bool *make = mem_array(rows->reclaim_count + 1, sizeof(*make));

	for (size_t i = 0; i < rows->decision_count; i++)
		if (!apply_decision(t, &rows->decisions[i], why))
			return false;
	for (size_t i = 0; i < rows->reclaim_count; i++)
		make[i] = rows->reclaims[i].made || (!move_reclaim(t, &rows->reclaims[i]) && rows->reclaims[i].drained);
	for (size_t i = 0; i < rows->reclaim_count; i++)
		if (make[i] && !make_reclaim(t, &rows->reclaims[i], why))
			return false;
	return true;
}

/* ---- what must agree ---------------------------------------------------------------------------------------------------------- */

static bool
lease_agrees(const struct tables *t, const struct quota_lease *l, struct buf *why)
{
	static const enum decision_status states[] = {[QUOTA_ADMITTED] = DECISION_ADMITTED,
	                                              [QUOTA_CONFIRMED] = DECISION_CONFIRMED,
	                                              [QUOTA_SUSPECT] = DECISION_SUSPECT};
	static const enum reclaim_state orders[] = {[QUOTA_NO_ORDER] = RECLAIM_SAME,
	                                            [QUOTA_ORDERED] = RECLAIM_ORDERED,
	                                            [QUOTA_DRAINING] = RECLAIM_DRAINING,
	                                            [QUOTA_OVERDUE] = RECLAIM_OVERDUE,
	                                            [QUOTA_ENFORCED] = RECLAIM_ENFORCED};
	const struct decision_row *d = row_of(t, l->id);
	const struct reclaim_row *r = open_reclaim(t, l->id);

	if (!d)
		return say(why, l->id, "is a lease without a row");
	if (d->status != states[l->state])
		return say(why, l->id, "is a lease in another state than its row");
	if (d->decision != QUOTA_ADMIT && d->decision != QUOTA_BORROW)
		return say(why, l->id, "is a lease, and its row does not say that it was admitted");
	if (d->admitted_ns != ERA_NS + (l->adopted ? l->adopted_ns : l->since_ns) ||
	    (d->released_ns != 0) != l->released || d->position != 0)
		return say(why, l->id, "is a lease since another time, or released otherwise");
	if (l->state != QUOTA_ADMITTED && d->confirmed_ns == 0)
		return say(why, l->id, "runs and was never confirmed");
	return (r ? r->state : RECLAIM_SAME) == orders[l->order] || say(why, l->id, "has another order than its row");
}

static bool
agrees(const struct tables *t, const struct quota_world *w, struct buf *why)
{
	size_t waiting = 0, leases = 0, orders = 0, ordered = 0;

	for (size_t i = 0; i < w->lease_count; i++) {
		ordered += w->leases[i].order != QUOTA_NO_ORDER;
		if (!lease_agrees(t, &w->leases[i], why))
			return false;
	}
	for (size_t i = 0; i < w->waiting_count; i++) {
		const struct decision_row *d = row_of(t, w->waiting[i].id);

		if (!d || d->status != DECISION_WAITING || (d->decision != QUOTA_QUEUE && d->decision != QUOTA_RECLAIM))
			return say(why, w->waiting[i].id, "waits, and its row does not");
	}
	for (size_t i = 0; i < t->decision_count; i++) {
		enum decision_status s = t->decisions[i].status;

		waiting += s == DECISION_WAITING;
		leases += s == DECISION_ADMITTED || s == DECISION_CONFIRMED || s == DECISION_SUSPECT;
		if ((s == DECISION_ENDED || s == DECISION_CANCELLED || s == DECISION_EXPIRED) !=
		    (t->decisions[i].ended_ns != 0))
			return say(why, t->decisions[i].id, "has an end without a time, or a time without an end");
	}
	for (size_t i = 0; i < t->reclaim_count; i++)
		orders += is_open(t->reclaims[i].state);
	if (waiting != w->waiting_count || leases != w->lease_count || orders != ordered) {
		buf_printf(why, "%zu rows wait, %zu run, %zu are ordered back; the engine has %zu, %zu, %zu", waiting,
		           leases, orders, w->waiting_count, w->lease_count, ordered);
		return false;
	}
	return true;
}

static struct decision_cause
cause_of(const struct quota_event *e, const char *ids[4])
{
	struct decision_cause c = {.kind = e->kind, .ids = ids};

	if (e->kind == QUOTA_SUBMIT)
		for (size_t i = 0; i < e->request_count; i++)
			ids[c.id_count++] = e->requests[i].id;
	else if (e->kind == QUOTA_ADOPT)
		ids[c.id_count++] = e->adopted->id;
	else if (e->id)
		ids[c.id_count++] = e->id;
	return c;
}

/* The ids that the random world uses again after they ended belong to another decision: an id is asked for once. */
static bool
asks_again(const struct tables *t, const struct decision_rows *rows, const struct decision_cause *c)
{
	for (size_t i = 0; (c->kind == QUOTA_SUBMIT || c->kind == QUOTA_ADOPT) && i < c->id_count; i++)
		if (row_of(t, c->ids[i]) || decision_rows_of(rows, c->ids[i]))
			return true;
	return false;
}

static bool
rows_follow(const void *c, struct buf *why)
{
	const struct quotaworld *k = c;
	in_place(decision_rows) struct decision_rows rows = {0};
	owned(quota) struct quota_state *s = NULL;
	struct tables t = {0};
	struct quota_saved saved;
	struct err err;
	size_t left = 1;
	bool ok = quotaworld_load(k, &s, &err);

	ASSERT(ok);
	quota_save(s, &saved);
	for (size_t i = 0; i < k->event_count && ok; i++) {
		owned(quota_outcome) struct quota_outcome *o = NULL;
		struct quotaworld_event made;
		const struct quota_event *e = quotaworld_event(k, i, &saved.world, &made);
		const char *ids[4];
		struct decision_cause cause = cause_of(e, ids);

		if (asks_again(&t, &rows, &cause))
			continue;
		ok = quota_step(s, made.now_ns, e, &o, &err);
		if (!ok) {
			buf_printf(why, "an event is refused: %s", err.text);
			break;
		}
		decision_rows_add(&rows,
		                  &(struct decision_moment){.seq = (int64_t)i + 1,
		                                            .at_ns = ERA_NS + (made.now_ns > saved.world.now_ns
		                                                                       ? made.now_ns
		                                                                       : saved.world.now_ns),
		                                            .actor = "somebody"},
		                  &cause, o);
		/* not before: the event may be about what is in it */
		quota_saved_fini(&saved);
		quota_save(s, &saved);
		if (--left > 0 && i + 1 < k->event_count)
			continue;
		left = 1 + k->events[i].pick % 5u;
		ok = apply(&t, &rows, why) && agrees(&t, &saved.world, why);
		decision_rows_clear(&rows);
	}
	quota_saved_fini(&saved);
	mem_free(t.decisions);
	mem_free(t.reclaims);
	return ok;
}

int
main(void)
{
	static const struct prop_test tests[] = {
		{"after any events, in any transactions, the open rows are the engine's requests, leases and orders",
	         sizeof(struct quotaworld), quotaworld_generate, rows_follow, quotaworld_describe, NULL},
	};

	ASSERT(setenv("TOLLGATE_PROP_CASES", CASES, 0) == 0);
	return prop_main("prop_decision_rows", tests, ARRAY_LEN(tests));
}
