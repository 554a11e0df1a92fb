/* tests/prop/prop_quota_small.c - the quota engine against the rules written a second time, on random small states: every
 * decision, and for reclaim every subset of victims tried. */
#include <stdlib.h>

#include "tests/support/harness/prop.h"
#include "tests/support/quota/quotaref_world.h"

/* A state costs some ten microseconds; with a sanitizer twenty times that. */
#ifdef __SANITIZE_ADDRESS__
#define CASES "10000"
#else
#define CASES "200000"
#endif

/* ---- random small states ---- */

struct small {
	struct qref_state state;
	struct qref_request request;
	enum qref_kind kind;
};

static int64_t
maybe_cap(struct prop_source *s, int64_t most)
{
	return prop_index(s, 3) < 2 ? QREF_NONE : prop_i64(s, 0, most);
}

static void
draw_quota(struct prop_source *s, struct qref_quota *q, int64_t *left)
{
	q->reserved = prop_i64(s, 0, *left);
	*left -= q->reserved;
	q->limit = maybe_cap(s, 6);
	if (q->limit != QREF_NONE)
		q->limit += q->reserved;
	q->borrow = maybe_cap(s, 5);
	q->lend = maybe_cap(s, q->reserved);
}

static void
draw_nodes(struct prop_source *s, struct qref_state *st, int tenants, bool shared)
{
	st->node_count = 1 + (int)prop_index(s, QREF_NODES);
	for (int n = 0; n < st->node_count; n++) {
		st->nodes[n].tenant =
			shared && prop_index(s, 3) == 2 ? QREF_SHARED : (int)prop_index(s, (size_t)tenants);
		st->nodes[n].devices = 1 + (int)prop_index(s, 4);
		st->nodes[n].down = prop_index(s, 8) == 7;
	}
}

static int64_t
capacity(const struct qref_state *st, int pool)
{
	int64_t sum = 0;

	for (int n = 0; n < st->node_count; n++)
		if (st->nodes[n].tenant == pool)
			sum += st->nodes[n].devices;
	return sum;
}

/* A lease takes what is left on the nodes of one pool of its workspace; none when nothing is. */
static bool
draw_lease(struct prop_source *s, struct qref_state *st, struct qref_lease *l)
{
	int left = 1 + (int)prop_index(s, 4), pool;
	int64_t count = 0;

	l->workspace = (int)prop_index(s, (size_t)st->workspace_count);
	pool = prop_index(s, 3) == 2 ? QREF_SHARED : st->workspaces[l->workspace].tenant;
	l->priority = prop_i64(s, -1, 1);
	l->preemptible = prop_index(s, 5) != 4;
	l->draining = prop_index(s, 8) == 7;
	for (int n = (int)prop_index(s, (size_t)st->node_count), k = 0; k < st->node_count;
	     k++, n = (n + 1) % st->node_count) {
		int free = st->nodes[n].devices;

		for (int i = 0; i < st->lease_count; i++)
			free -= st->leases[i].on[n];
		if (st->nodes[n].tenant != pool)
			continue;
		l->on[n] = free < left ? free : left;
		left -= l->on[n];
		count += l->on[n];
	}
	return count > 0;
}

static void
draw_state(struct prop_source *s, struct small *c, bool two_pools)
{
	struct qref_state *st = &c->state;
	int tenants = two_pools ? 1 + (int)prop_index(s, QREF_TENANTS) : 1;
	int64_t left[QREF_TENANTS + 1];
	int leases;

	c->kind = (enum qref_kind)prop_index(s, 3);
	draw_nodes(s, st, tenants, two_pools);
	for (int t = 0; t < tenants; t++)
		left[t + 1] = capacity(st, t);
	left[0] = capacity(st, QREF_SHARED);
	st->maximum = prop_index(s, 8) == 7 ? prop_i64(s, 1, 8) : QREF_NONE;
	st->workspace_count = 1 + (int)prop_index(s, 3);
	for (int i = 0; i < st->workspace_count; i++) {
		struct qref_workspace *w = &st->workspaces[i];

		w->tenant = (int)prop_index(s, (size_t)tenants);
		draw_quota(s, &w->own, &left[w->tenant + 1]);
		draw_quota(s, &w->shared, &left[0]);
		w->weight = prop_i64(s, 1, 3);
		w->reclaim = (enum qref_reclaim)prop_index(s, 3);
		w->preempt_own = prop_index(s, 3) != 2;
	}
	leases = (int)prop_index(s, QREF_LEASES);
	for (int i = 0; i < leases; i++) {
		struct qref_lease l = {0};

		if (draw_lease(s, st, &l))
			st->leases[st->lease_count++] = l;
	}
	c->request.workspace = (int)prop_index(s, (size_t)st->workspace_count);
	c->request.count = 1 + (int)prop_index(s, 6);
	if (prop_index(s, 4) == 3) {
		c->request.per_node = 1 + (int)prop_index(s, 3);
		c->request.count = c->request.per_node * (1 + (int)prop_index(s, 3));
	}
	c->request.priority = prop_i64(s, -1, 1);
	c->request.preemptible = prop_index(s, 4) != 3;
}

static void
generate_one_pool(struct prop_source *s, void *c)
{
	draw_state(s, c, false);
}

static void
generate_two_pools(struct prop_source *s, void *c)
{
	draw_state(s, c, true);
}

static void
describe(const void *c, struct buf *out)
{
	static const char *const kinds[] = {"whole GPUs", "slices", "replicas"};
	const struct small *x = c;

	buf_str(out, kinds[x->kind]);
	qref_describe(&x->state, &x->request, out);
}

/* ---- what the engine says ---- */

static bool
victims_agree(const struct small *c, const struct quota_verdict *v, struct buf *why)
{
	int pool = v->shared ? QREF_SHARED : c->state.workspaces[c->request.workspace].tenant;
	unsigned set = 0, ordered = qref_ordered_victims(&c->state, &c->request, pool);
	in_place(buf) struct buf fault = {.max = 1024};

	for (size_t i = 0; i < v->victim_count; i++)
		set |= 1u << (v->victims[i].id[1] - '0');
	buf_printf(why, "victims %x, by the order %x: ", set, ordered);
	if (!qref_victims_hold(&c->state, &c->request, pool, set, why))
		return false;
	/* Taking owed and own ones in one order may end with a set from which one more could go: the engine's is as good. */
	if (ordered != 0 && ordered != set && qref_victims_hold(&c->state, &c->request, pool, ordered, &fault)) {
		buf_str(why, "the order of QUOTA finds another set");
		return false;
	}
	return true;
}

static bool
agrees(const struct small *c, const struct quota_verdict *v, int64_t unit, struct buf *why)
{
	struct qref_answer a = qref_decide(&c->state, &c->request);

	if ((int)v->decision != (int)a.decision) {
		buf_printf(why, "the engine says %s, the rules %s (a legal set: %x)", quota_decision_name(v->decision),
		           qref_decision_name(a.decision), a.legal);
		return false;
	}
	if ((v->decision == QUOTA_ADMIT || v->decision == QUOTA_BORROW) &&
	    (v->borrowed_units != a.borrowed * unit || v->shared != (a.pool == QREF_SHARED))) {
		buf_printf(why, "%s of %" PRId64 " borrowed units, %s; by the rules %" PRId64 " devices in pool %d",
		           quota_decision_name(v->decision), v->borrowed_units, v->shared ? "shared" : "own",
		           a.borrowed, a.pool);
		return false;
	}
	return v->decision != QUOTA_RECLAIM || victims_agree(c, v, why);
}

static bool
the_engine_agrees(const void *p, struct buf *why)
{
	owned(quota_outcome) struct quota_outcome *o = NULL;
	owned(quota) struct quota_state *state = NULL;
	owned(mem) struct qref_world *w = mem_alloc(sizeof(*w));
	const struct small *c = p;
	struct quota_request r = qref_world_request(&c->request, "r", QREF_START_NS);
	struct quota_event submit = {.kind = QUOTA_SUBMIT, .requests = &r, .request_count = 1};
	struct err err = {0};

	qref_world_init(w, &c->state, c->kind);
	if (!quota_load(&w->world, &state, &err) || !quota_step(state, QREF_START_NS, &submit, &o, &err)) {
		buf_str(why, err.text);
		return false;
	}
	if (o->verdict_count != 1) {
		buf_printf(why, "%zu verdicts for one request", o->verdict_count);
		return false;
	}
	return agrees(c, &o->verdicts[0], w->unit, why) && qref_sound(state, why);
}

int
main(void)
{
	static const struct prop_test tests[] = {
		{"one pool: the engine decides as the rules do, its victims are legal, minimal and in order",
	         sizeof(struct small), generate_one_pool, the_engine_agrees, describe, NULL},
		{"own and shared pools of two tenants: the same", sizeof(struct small), generate_two_pools,
	         the_engine_agrees, describe, NULL},
	};

	ASSERT(setenv("TOLLGATE_PROP_CASES", CASES, 0) == 0);
	return prop_main("prop_quota_small", tests, ARRAY_LEN(tests));
}
