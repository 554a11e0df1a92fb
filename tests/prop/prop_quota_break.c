/* tests/prop/prop_quota_break.c - sequences that try to break the promises of QUOTA: policies that change under running work, nodes
 * and GPUs lost in the middle of a drain, requests cancelled while their victims leave, exceptions that end, leases that are never
 * confirmed, two pools, instances and replicas. After every step the state must be sound, who has a hold must get what it was
 * promised, and who is owed must not wait without one. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/harness/prop.h"
#include "tests/support/quota/quotaref_live.h"
#include "tests/support/quota/quotaref_world.h"

#ifdef __SANITIZE_ADDRESS__
#define CASES "300"
#else
#define CASES "8000"
#endif
#define EVENTS_MAX 40

enum {
	DO_SUBMIT,
	DO_FINISH,
	DO_DRAIN,
	DO_CANCEL,
	DO_TICK,
	DO_NODE,
	DO_POLICY,
	DO_EXCEPTION,
	DO_RELEASE,
	DO_EMPTY,
	DO_GPU,
	DO_CONFIRM,
	DO_EXCEPTION_END,
	DO_KINDS
};

struct happening {
	int kind;
	int64_t a, b, c, d;
};

struct sequence {
	struct qref_state state;
	enum qref_kind kind;
	struct quota_settings settings;
	struct happening events[EVENTS_MAX];
	size_t count;
};

/* ---- random sequences ---- */

static void
generate(struct prop_source *s, void *p)
{
	struct sequence *q = p;
	struct qref_state *st = &q->state;
	int64_t left[QREF_TENANTS + 1] = {0};

	q->kind = (enum qref_kind)prop_index(s, 3);
	q->settings.burst = 2;
	q->settings.grace_ns = 100;
	q->settings.aging_ns = prop_index(s, 2) == 1 ? 50 : 0;
	q->settings.backoff_ns = prop_index(s, 3) == 2 ? 100 : 0;
	q->settings.backoff_forget_ns = 1000;
	q->settings.head_wait_ns = prop_index(s, 4) == 3 ? 100 : 0;
	q->settings.confirm_ns = prop_index(s, 4) == 3 ? 500 : 0;
	st->maximum = QREF_NONE;
	st->node_count = 1 + (int)prop_index(s, 3);
	for (int n = 0; n < st->node_count; n++) {
		st->nodes[n] =
			(struct qref_node){.tenant = (int)prop_index(s, 4), .devices = 1 + (int)prop_index(s, 4)};
		if (st->nodes[n].tenant >= QREF_TENANTS)
			st->nodes[n].tenant = st->nodes[n].tenant == QREF_TENANTS ? 0 : QREF_SHARED;
		left[st->nodes[n].tenant + 1] += st->nodes[n].devices;
	}
	st->workspace_count = 1 + (int)prop_index(s, 3);
	for (int i = 0; i < st->workspace_count; i++) {
		struct qref_workspace *w = &st->workspaces[i];

		w->tenant = prop_index(s, 4) == 3;
		w->weight = prop_i64(s, 1, 2);
		w->preempt_own = true;
		w->own = w->shared = (struct qref_quota){0, QREF_NONE, QREF_NONE, QREF_NONE};
		w->own.reserved = prop_i64(s, 0, left[w->tenant + 1]);
		left[w->tenant + 1] -= w->own.reserved;
		w->shared.reserved = prop_i64(s, 0, left[0]);
		left[0] -= w->shared.reserved;
		w->own.lend = prop_index(s, 4) == 3 ? prop_i64(s, 0, w->own.reserved) : QREF_NONE;
	}
	q->count = prop_index(s, EVENTS_MAX + 1);
	for (size_t i = 0; i < q->count; i++)
		q->events[i] = (struct happening){(int)prop_index(s, DO_KINDS), prop_i64(s, 0, 7), prop_i64(s, 0, 7),
		                                  prop_i64(s, 0, 7), prop_i64(s, 0, 7)};
}

static void
describe(const void *p, struct buf *out)
{
	static const char *const names[] = {"submit", "finish",  "drain",        "cancel",  "tick",
	                                    "node",   "policy",  "exception",    "release", "empty",
	                                    "gpu",    "confirm", "exception end"};
	const struct sequence *q = p;
	struct qref_request none = {0};

	buf_printf(out, "kind %d, aging %" PRId64 ", head wait %" PRId64 ", backoff %" PRId64 ", confirm %" PRId64,
	           (int)q->kind, q->settings.aging_ns, q->settings.head_wait_ns, q->settings.backoff_ns,
	           q->settings.confirm_ns);
	qref_describe(&q->state, &none, out);
	for (size_t i = 0; i < q->count; i++)
		buf_printf(out, "\n#     %zu: %s %" PRId64 " %" PRId64 " %" PRId64 " %" PRId64, i,
		           names[q->events[i].kind], q->events[i].a, q->events[i].b, q->events[i].c, q->events[i].d);
}

/* ---- one step ---- */

struct running {
	const struct sequence *q;
	struct qref_world *w;
	struct quota_state *state;
	struct quota_saved saved;
	int64_t now_ns;
	size_t exceptions;
	char id[QUOTA_ID_SIZE];
	struct quota_request requests[3];
	char ids[3][QUOTA_ID_SIZE];
	struct quota_exception exception;
};

static void
make_submit(struct running *r, const struct happening *h, size_t index, struct quota_event *e)
{
	size_t count = h->d >= 6 ? 2 : 1;

	for (size_t i = 0; i < count; i++) {
		struct qref_request ask = {.workspace = (int)(h->a + (int64_t)i) % r->q->state.workspace_count,
		                           .count = 1 + (int)(h->b % 4),
		                           .priority = h->c % 3 - 1,
		                           .preemptible = h->c < 6};

		if (h->d == 5)
			ask.per_node = ask.count;
		snprintf(r->ids[i], sizeof(r->ids[i]), "r%zu-%zu", index % 1000, i);
		r->requests[i] = qref_world_request(&ask, r->ids[i], r->now_ns);
		r->requests[i].expires_ns = h->d == 4 ? r->now_ns + 300 : 0;
	}
	*e = (struct quota_event){.kind = QUOTA_SUBMIT, .requests = r->requests, .request_count = count};
}

/* The policy with one share of one workspace changed; the lists are the world's own. */
static void
make_policy(struct running *r, const struct happening *h, struct quota_event *e)
{
	struct quota_share *s = &r->w->shares[h->a % (2 * r->q->state.workspace_count)];
	struct quota_workspace *w = &r->w->workspaces[s->workspace];

	switch (h->b) {
	case 0: s->reserved = 0; break;
	case 1: s->limit = h->c * r->w->unit; break;
	case 2: s->borrow = h->c * r->w->unit; break;
	case 3: s->lend = h->c * r->w->unit; break;
	case 4:
		w->weight = 1 + h->c;
		w->enforce = h->c == 7 ? QUOTA_ENFORCE_OFF : QUOTA_ENFORCE_ON;
		break;
	case 5: w->reclaim = (enum quota_reclaim)(h->c % 3); break;
	case 6: w->preempt_own = h->c % 2 == 0; break;
	default: s->reserved = h->c * r->w->unit; break;
	}
	*e = (struct quota_event){.kind = QUOTA_POLICY, .policy = &r->w->world.policy};
}

static void
make_exception(struct running *r, const struct happening *h, struct quota_event *e)
{
	snprintf(r->id, sizeof(r->id), "e%zu", r->exceptions++ % 1000);
	r->exception = (struct quota_exception){.id = r->id,
	                                        .workspace = (int32_t)(h->a % r->q->state.workspace_count),
	                                        .shared = h->b % 2 == 1,
	                                        .extra_limit = h->c * r->w->unit,
	                                        .extra_reserved = h->d % 3 * r->w->unit,
	                                        .from_ns = r->now_ns,
	                                        .until_ns = r->now_ns + 1 + h->b * 60};
	*e = (struct quota_event){.kind = QUOTA_EXCEPTION, .exception = &r->exception};
}

/* The event of the engine; false when there is nothing that it could happen to. */
static bool
make_event(struct running *r, const struct happening *h, size_t index, struct quota_event *e)
{
	static const enum quota_event_kind of_lease[] = {[DO_FINISH] = QUOTA_FINISH,
	                                                 [DO_DRAIN] = QUOTA_DRAIN,
	                                                 [DO_RELEASE] = QUOTA_RELEASE,
	                                                 [DO_EMPTY] = QUOTA_EMPTY,
	                                                 [DO_CONFIRM] = QUOTA_CONFIRM};
	const struct quota_world *w = &r->saved.world;
	int32_t node = (int32_t)(h->a % r->q->state.node_count);

	switch (h->kind) {
	case DO_SUBMIT: make_submit(r, h, index, e); return true;
	case DO_POLICY: make_policy(r, h, e); return true;
	case DO_EXCEPTION: make_exception(r, h, e); return true;
	case DO_TICK:
		r->now_ns += h->a * 50;
		*e = (struct quota_event){.kind = QUOTA_TICK};
		return true;
	case DO_NODE:
		*e = (struct quota_event){.kind = w->nodes[node].lost ? QUOTA_NODE_BACK : QUOTA_NODE_LOST,
		                          .node = node};
		return true;
	case DO_GPU:
		*e = (struct quota_event){.kind = h->c < 4 ? QUOTA_GPU_BACK : QUOTA_GPU_LOST,
		                          .node = node,
		                          .gpu = (int32_t)((size_t)h->b % w->nodes[node].gpu_count)};
		return true;
	case DO_EXCEPTION_END:
		snprintf(r->id, sizeof(r->id), "e%" PRId64, h->a % 8);
		*e = (struct quota_event){.kind = QUOTA_EXCEPTION_END, .id = r->id};
		return true;
	case DO_CANCEL:
		if (w->waiting_count == 0)
			return false;
		*e = (struct quota_event){.kind = QUOTA_CANCEL, .id = w->waiting[(size_t)h->a % w->waiting_count].id};
		return true;
	default:
		if (w->lease_count == 0)
			return false;
		*e = (struct quota_event){.kind = of_lease[h->kind], .id = w->leases[(size_t)h->a % w->lease_count].id};
		return true;
	}
}

/* ---- what must hold after it ---- */

/* With more reserved than there is, two owners may displace each other's work in turn: each is owed, and each has debt. */
static bool
reservations_fit(const struct quota_state *s)
{
	for (size_t i = 0; i < quota_pool_count(s); i++) {
		struct quota_pool_figures f = quota_pool_at(s, i);

		if (f.reserved > f.live || f.excess > 0)
			return false;
	}
	return true;
}

/* Also for work that cannot be preempted: then the owed have a right that can be honoured. */
static bool
rights_fit(const struct quota_state *s, const struct running *r)
{
	/* who waits behind the head of its own workspace waits longer, and what is not enforced takes what it wants */
	if (r->q->settings.head_wait_ns > 0 || !reservations_fit(s))
		return false;
	for (int32_t w = 0; w < r->q->state.workspace_count; w++) {
		if (r->w->workspaces[w].enforce != QUOTA_ENFORCE_ON)
			return false;
		for (int shared = 0; shared < 2; shared++) {
			struct quota_account_figures a = quota_account_at(s, w, 0, 0, shared == 1);

			if (a.fixed > a.reserved)
				return false;
		}
	}
	return true;
}

static bool
is_told(const struct quota_outcome *o, const char *id)
{
	for (size_t i = 0; i < o->notice_count; i++)
		if (strcmp(o->notices[i].id, id) == 0)
			return true;
	return false;
}

/* Queue may only advance: what waited waits, runs, or was told to have ended; what ran runs or was told to have ended. */
static bool
nothing_vanished(const struct quota_world *before, const struct quota_world *after, const struct quota_outcome *o,
                 struct buf *why)
{
	for (size_t i = 0; i < before->waiting_count + before->lease_count; i++) {
		bool waited = i < before->waiting_count, there = false;
		const char *id = waited ? before->waiting[i].id : before->leases[i - before->waiting_count].id;

		for (size_t k = 0; k < after->lease_count; k++)
			there |= strcmp(after->leases[k].id, id) == 0;
		for (size_t k = 0; waited && k < after->waiting_count; k++)
			there |= strcmp(after->waiting[k].id, id) == 0;
		if (!there && !is_told(o, id)) {
			buf_printf(why, "%s has vanished", id);
			return false;
		}
	}
	return true;
}

static bool
holds_after(struct running *r, const struct quota_outcome *o, struct buf *why)
{
	struct quota_saved after = {0};
	bool ok;

	quota_save(r->state, &after);
	ok = nothing_vanished(&r->saved.world, &after.world, o, why);
	quota_saved_fini(&after);
	return ok && qref_sound(r->state, why) && qref_outcome_sound(r->state, o, why) &&
	       qref_holds_are_honoured(r->state, r->now_ns, why) &&
	       (!reservations_fit(r->state) || qref_evictions_end(r->state, r->now_ns, why)) &&
	       (!rights_fit(r->state, r) || qref_owed_are_served(r->state, why));
}

static bool
one_step(struct running *r, size_t index, struct buf *why)
{
	owned(quota_outcome) struct quota_outcome *o = NULL;
	struct quota_event e = {0};
	struct err err = {0};
	bool ok = true;

	r->now_ns += 10;
	quota_save(r->state, &r->saved);
	if (make_event(r, &r->q->events[index], index, &e)) {
		ok = quota_step(r->state, r->now_ns, &e, &o, &err);
		if (!ok)
			buf_printf(why, "the step failed: %s", err.text);
		ok = ok && holds_after(r, o, why);
	}
	quota_saved_fini(&r->saved);
	if (!ok)
		buf_printf(why, " (after event %zu)", index);
	return ok;
}

static bool
the_promises_hold(const void *p, struct buf *why)
{
	owned(mem) struct qref_world *w = mem_alloc(sizeof(*w));
	owned(quota) struct quota_state *state = NULL;
	const struct sequence *q = p;
	struct running r = {.q = q, .w = w, .now_ns = QREF_START_NS};
	struct err err = {0};

	qref_world_init(w, &q->state, q->kind);
	w->world.policy.settings = q->settings;
	if (!quota_load(&w->world, &state, &err)) {
		buf_str(why, err.text);
		return false;
	}
	r.state = state;
	for (size_t i = 0; i < q->count; i++)
		if (!one_step(&r, i, why))
			return false;
	return true;
}

int
main(void)
{
	static const struct prop_test tests[] = {
		{"whatever happens, states are sound, holds are honoured and the owed are served",
	         sizeof(struct sequence), generate, the_promises_hold, describe, NULL},
	};

	ASSERT(setenv("TOLLGATE_PROP_CASES", CASES, 0) == 0);
	return prop_main("prop_quota_break", tests, ARRAY_LEN(tests));
}
