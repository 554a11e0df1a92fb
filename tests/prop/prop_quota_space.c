/* tests/prop/prop_quota_space.c - every state that a small pool can get into, by any sequence of requests, ends, drains, cancels, ticks
 * and lost nodes: none is overcommitted, no hold is lost or waits for nothing, no eviction is endless, and nobody starves.
 *
 * States are told apart by what is there and in which order it came, not by ids or the clock. Spaces larger than their state_max are
 * cut in a daily run; TOLLGATE_QUOTA_STATES=200000 looks at all of them (about half a minute of processor time). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/quota/quotaref_live.h"
#include "tests/support/quota/quotaref_world.h"

#define TEMPLATES_MAX 6
#define GRACE_NS 1000
#ifdef __SANITIZE_ADDRESS__
#define SLOW 1
#else
#define SLOW 0
#endif

struct space {
	const char *name;
	struct qref_state state;
	struct qref_request asks[TEMPLATES_MAX];
	int ask_count;
	size_t live_max; /* leases and waiting requests together */
	bool nodes_fail;
	size_t state_max; /* states looked at; all of them when there are fewer */
	int64_t head_wait_ns;
};

/* How a state was reached first. */
struct seen {
	uint64_t hash;
	size_t from;
	struct quota_event event; /* without pointers */
	int ask;
	char id[QUOTA_ID_SIZE];
};

struct explorer {
	const struct space *space;
	struct seen *seen;
	size_t count, cap;
	struct quota_state **states; /* of those not yet expanded; NULL afterwards */
	size_t *table;               /* hash to position + 1 */
	size_t table_size;
	struct buf *why;
};

/* ---- a state as a number: what is not age, id or clock ---- */

static void
put(uint64_t *h, int64_t v)
{
	for (int i = 0; i < 8; i++) {
		*h ^= (uint64_t)(v >> 8 * i) & 0xff;
		*h *= UINT64_C(0x100000001b3);
	}
}

static int64_t
rank_of(const struct quota_world *w, const char *lease)
{
	int64_t rank = 0;
	const struct quota_lease *l = NULL;

	for (size_t i = 0; i < w->lease_count; i++)
		if (lease != NULL && strcmp(w->leases[i].id, lease) == 0)
			l = &w->leases[i];
	if (l == NULL)
		return -1;
	for (size_t i = 0; i < w->lease_count; i++)
		rank += w->leases[i].since_ns < l->since_ns;
	return rank;
}

static void
put_parts(uint64_t *h, const struct quota_world *w, const struct quota_part *parts, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		put(h, parts[i].node);
		put(h, parts[i].count);
		put(h, rank_of(w, parts[i].lease));
	}
}

static int
by_age(const void *a, const void *b)
{
	const struct quota_lease *x = *(const struct quota_lease *const *)a, *y = *(const struct quota_lease *const *)b;

	return (x->since_ns > y->since_ns) - (x->since_ns < y->since_ns);
}

static int
by_submission(const void *a, const void *b)
{
	const struct quota_request *x = *(const struct quota_request *const *)a,
				   *y = *(const struct quota_request *const *)b;

	return (x->submitted_ns > y->submitted_ns) - (x->submitted_ns < y->submitted_ns);
}

static uint64_t
hash_of(const struct quota_state *s)
{
	const struct quota_lease *leases[64];
	const struct quota_request *waiting[64];
	uint64_t h = UINT64_C(0xcbf29ce484222325);
	struct quota_saved saved = {0};
	const struct quota_world *w = &saved.world;

	quota_save(s, &saved);
	ASSERT(w->lease_count <= 64 && w->waiting_count <= 64);
	for (size_t i = 0; i < w->lease_count; i++)
		leases[i] = &w->leases[i];
	for (size_t i = 0; i < w->waiting_count; i++)
		waiting[i] = &w->waiting[i];
	qsort(leases, w->lease_count, sizeof(leases[0]), by_age);
	qsort(waiting, w->waiting_count, sizeof(waiting[0]), by_submission);
	for (size_t i = 0; i < w->lease_count; i++) {
		const struct quota_lease *l = leases[i];

		put(&h, l->workspace);
		put(&h, l->priority * 8 + l->preemptible * 4 + l->released * 2 + l->empty);
		put(&h, (int64_t)l->order);
		put_parts(&h, w, l->parts, l->part_count);
	}
	put(&h, -1);
	for (size_t i = 0; i < w->waiting_count; i++) {
		const struct quota_request *r = waiting[i];

		put(&h, r->workspace);
		put(&h, r->count);
		put(&h, r->per_node);
		put(&h, r->priority * 4 + r->preemptible * 2 + r->hold_owed);
		put_parts(&h, w, r->hold, r->hold_count);
		put(&h, -2);
	}
	for (size_t i = 0; i < w->node_count; i++)
		put(&h, w->nodes[i].lost);
	quota_saved_fini(&saved);
	return h;
}

/* ---- what is known already ---- */

static bool
is_new(struct explorer *x, uint64_t hash)
{
	size_t at = hash % x->table_size;

	while (x->table[at] != 0) {
		if (x->seen[x->table[at] - 1].hash == hash)
			return false;
		at = (at + 1) % x->table_size;
	}
	x->table[at] = x->count + 1;
	return true;
}

static void
describe_path(const struct explorer *x, size_t at, struct buf *out)
{
	static const char *const kinds[] = {
		[QUOTA_SUBMIT] = "submit",   [QUOTA_TICK] = "tick",           [QUOTA_FINISH] = "finish",
		[QUOTA_RELEASE] = "release", [QUOTA_EMPTY] = "empty",         [QUOTA_DRAIN] = "drain",
		[QUOTA_CANCEL] = "cancel",   [QUOTA_NODE_LOST] = "node lost", [QUOTA_NODE_BACK] = "node back"};
	size_t path[256], n = 0;

	for (; at != 0 && n < ARRAY_LEN(path); at = x->seen[at].from)
		path[n++] = at;
	while (n-- > 0) {
		const struct seen *s = &x->seen[path[n]];

		buf_printf(out, "\n#   %s", kinds[s->event.kind]);
		if (s->event.kind == QUOTA_SUBMIT)
			buf_printf(out, " %s: w%d %d devices p%" PRId64 " per_node %d%s", s->id,
			           x->space->asks[s->ask].workspace, x->space->asks[s->ask].count,
			           x->space->asks[s->ask].priority, x->space->asks[s->ask].per_node,
			           x->space->asks[s->ask].preemptible ? "" : " firm");
		else if (s->event.kind == QUOTA_NODE_LOST || s->event.kind == QUOTA_NODE_BACK)
			buf_printf(out, " %d", s->event.node);
		else
			buf_printf(out, " %s", s->id);
	}
}

/* ---- what must hold of a state ---- */

static bool
holds(const struct quota_state *s, int64_t now_ns, struct buf *why)
{
	struct quota_saved saved = {0};
	bool lost = false;

	quota_save(s, &saved);
	for (size_t i = 0; i < saved.world.node_count; i++)
		lost |= saved.world.nodes[i].lost;
	quota_saved_fini(&saved);
	return qref_sound(s, why) && qref_holds_are_honoured(s, now_ns, why) && qref_evictions_end(s, now_ns, why) &&
	       (lost || (qref_owed_are_served(s, why) && qref_nobody_starves(s, now_ns, why)));
}

static void
remember(struct explorer *x, uint64_t hash, size_t from, const struct quota_event *e, int ask, const char *id,
         struct quota_state *state)
{
	if (x->count == x->cap) {
		x->cap = 2 * x->cap + 1024;
		x->seen = mem_grow(x->seen, x->cap, sizeof(*x->seen));
		x->states = mem_grow(x->states, x->cap, sizeof(struct quota_state *));
	}
	x->seen[x->count] =
		(struct seen){.hash = hash, .from = from, .event = {.kind = e->kind, .node = e->node}, .ask = ask};
	snprintf(x->seen[x->count].id, QUOTA_ID_SIZE, "%s", id != NULL ? id : "");
	x->states[x->count++] = state;
}

/* One event on a copy; a state not seen before is looked at and kept. */
static bool
try_event(struct explorer *x, size_t from, int64_t now_ns, const struct quota_event *e, int ask, const char *id)
{
	owned(quota) struct quota_state *next = quota_clone(x->states[from]);
	owned(quota_outcome) struct quota_outcome *o = NULL;
	struct err err = {0};
	uint64_t hash;

	if (!quota_step(next, now_ns, e, &o, &err)) {
		buf_str(x->why, err.text);
	} else if (qref_outcome_sound(next, o, x->why)) {
		hash = hash_of(next);
		if (!is_new(x, hash))
			return true;
		remember(x, hash, from, e, ask, id, NULL);
		if (holds(next, now_ns + GRACE_NS, x->why)) {
			x->states[x->count - 1] = take(next);
			return true;
		}
		describe_path(x, x->count - 1, x->why);
		return false;
	}
	remember(x, 0, from, e, ask, id, NULL);
	describe_path(x, x->count - 1, x->why);
	return false;
}

static bool
submit_each(struct explorer *x, size_t at, int64_t now_ns)
{
	char id[QUOTA_ID_SIZE];

	if (quota_lease_count(x->states[at]) + quota_waiting_count(x->states[at]) >= x->space->live_max)
		return true;
	snprintf(id, sizeof(id), "r%" PRId64, now_ns - QREF_START_NS);
	for (int i = 0; i < x->space->ask_count; i++) {
		struct quota_request r = qref_world_request(&x->space->asks[i], id, now_ns);
		struct quota_event e = {.kind = QUOTA_SUBMIT, .requests = &r, .request_count = 1};

		if (!try_event(x, at, now_ns, &e, i, id))
			return false;
	}
	return true;
}

static bool
touch_each_lease(struct explorer *x, size_t at, int64_t now_ns, const struct quota_world *w)
{
	for (size_t i = 0; i < w->lease_count; i++) {
		const struct quota_lease *l = &w->leases[i];
		struct quota_event e = {.kind = QUOTA_FINISH, .id = l->id};

		if (!try_event(x, at, now_ns, &e, 0, l->id))
			return false;
		e.kind = QUOTA_DRAIN;
		if (l->order <= QUOTA_ORDERED && !try_event(x, at, now_ns, &e, 0, l->id))
			return false;
		e.kind = QUOTA_RELEASE;
		if (!l->released && l->order != QUOTA_NO_ORDER && !try_event(x, at, now_ns, &e, 0, l->id))
			return false;
	}
	return true;
}

static bool
expand(struct explorer *x, size_t at)
{
	struct quota_saved saved = {0};
	struct quota_event tick = {.kind = QUOTA_TICK};
	int64_t now_ns;
	bool ok;

	quota_save(x->states[at], &saved);
	now_ns = saved.world.now_ns + 1;
	ok = submit_each(x, at, now_ns) && touch_each_lease(x, at, now_ns, &saved.world) &&
	     try_event(x, at, now_ns + 2 * GRACE_NS, &tick, 0, NULL);
	for (size_t i = 0; ok && i < saved.world.waiting_count; i++) {
		struct quota_event e = {.kind = QUOTA_CANCEL, .id = saved.world.waiting[i].id};

		ok = try_event(x, at, now_ns, &e, 0, e.id);
	}
	for (size_t i = 0; ok && x->space->nodes_fail && i < saved.world.node_count; i++) {
		struct quota_event e = {.kind = saved.world.nodes[i].lost ? QUOTA_NODE_BACK : QUOTA_NODE_LOST,
		                        .node = (int32_t)i};

		ok = try_event(x, at, now_ns, &e, 0, NULL);
	}
	quota_saved_fini(&saved);
	return ok;
}

static bool
explore(const struct space *space, struct buf *why, size_t *ret_count)
{
	owned(mem) struct qref_world *w = mem_alloc(sizeof(*w));
	struct explorer x = {.space = space, .table_size = 8 * space->state_max + 1, .why = why};
	struct quota_state *first = NULL;
	struct quota_event none = {.kind = QUOTA_TICK};
	struct err err = {0};
	bool ok = true;

	x.table = mem_array(x.table_size, sizeof(*x.table));
	qref_world_init(w, &space->state, QREF_WHOLE);
	w->world.policy.settings.grace_ns = GRACE_NS;
	w->world.policy.settings.head_wait_ns = space->head_wait_ns;
	if (!quota_load(&w->world, &first, &err)) {
		buf_str(why, err.text);
		ok = false;
	} else {
		(void)is_new(&x, hash_of(first));
		remember(&x, hash_of(first), 0, &none, 0, NULL, first);
	}
	for (size_t i = 0; ok && i < x.count && x.count < space->state_max; i++) {
		ok = expand(&x, i);
		quota_free(x.states[i]);
		x.states[i] = NULL;
	}
	*ret_count = x.count;
	for (size_t i = 0; i < x.count; i++)
		quota_free(x.states[i]);
	mem_free(x.states);
	mem_free(x.seen);
	mem_free(x.table);
	return ok;
}

/* ---- the spaces ---- */

#define Q(r_)                                                                                \
	{                                                                                    \
		.reserved = (r_), .limit = QREF_NONE, .borrow = QREF_NONE, .lend = QREF_NONE \
	}
#define WS(t_, r_, shared_)                                                                          \
	{                                                                                            \
		.tenant = (t_), .own = Q(r_), .shared = Q(shared_), .weight = 1, .preempt_own = true \
	}
#define ASK(w_, n_, p_)                                                                 \
	{                                                                               \
		.workspace = (w_), .count = (n_), .priority = (p_), .preemptible = true \
	}
#define FIRM(w_, n_)                             \
	{                                        \
		.workspace = (w_), .count = (n_) \
	}

static const struct space spaces[] = {
	{.name = "two owners of one GPU each lend it to each other",
         .state = {.workspace_count = 2,
                   .workspaces = {WS(0, 1, 0), WS(0, 1, 0)},
                   .node_count = 1,
                   .nodes = {{0, 2, false}},
                   .maximum = QREF_NONE},
         .asks = {ASK(0, 1, 0), ASK(0, 2, 0), ASK(1, 1, 0), ASK(1, 2, 0), ASK(1, 1, 1)},
         .ask_count = 5,
         .live_max = 4,
         .state_max = 15000},
	{.name = "an owner of two GPUs on two nodes that fail, and a borrower",
         .state = {.workspace_count = 2,
                   .workspaces = {WS(0, 2, 0), WS(0, 0, 0)},
                   .node_count = 2,
                   .nodes = {{0, 1, false}, {0, 1, false}},
                   .maximum = QREF_NONE},
         .asks = {ASK(0, 1, 0), ASK(0, 2, 0), ASK(1, 1, 0), ASK(1, 2, 0)},
         .ask_count = 4,
         .live_max = 4,
         .nodes_fail = true,
         .state_max = 6000},
	{.name = "three GPUs, work that cannot be preempted, and a borrower of all",
         .state = {.workspace_count = 2,
                   .workspaces = {WS(0, 2, 0), WS(0, 1, 0)},
                   .node_count = 1,
                   .nodes = {{0, 3, false}},
                   .maximum = QREF_NONE},
         .asks = {ASK(0, 2, 0), FIRM(0, 1), ASK(1, 3, 0), ASK(1, 1, 0), FIRM(1, 1)},
         .ask_count = 5,
         .live_max = 4,
         .state_max = 6000},
	{.name = "one workspace whose high jobs displace its low ones",
         .state = {.workspace_count = 1,
                   .workspaces = {WS(0, 2, 0)},
                   .node_count = 1,
                   .nodes = {{0, 3, false}},
                   .maximum = QREF_NONE},
         .asks = {ASK(0, 1, -1), ASK(0, 2, 0), ASK(0, 1, 1), ASK(0, 3, 1)},
         .ask_count = 4,
         .live_max = 4,
         .state_max = 14000},
	{.name = "two tenants with a GPU each and a shared one",
         .state = {.workspace_count = 2,
                   .workspaces = {WS(0, 1, 1), WS(1, 1, 0)},
                   .node_count = 3,
                   .nodes = {{0, 1, false}, {1, 1, false}, {QREF_SHARED, 1, false}},
                   .maximum = QREF_NONE},
         .asks = {ASK(0, 1, 0), ASK(1, 1, 0), FIRM(0, 1)},
         .ask_count = 3,
         .live_max = 4,
         .nodes_fail = true,
         .state_max = 6000},
	{.name = "pairs that must lie on one node",
         .state = {.workspace_count = 2,
                   .workspaces = {WS(0, 2, 0), WS(0, 1, 0)},
                   .node_count = 2,
                   .nodes = {{0, 2, false}, {0, 1, false}},
                   .maximum = QREF_NONE},
         .asks = {ASK(0, 1, 0),
                  {.workspace = 0, .count = 2, .per_node = 2, .preemptible = true},
                  ASK(1, 1, 0),
                  ASK(1, 2, 0)},
         .ask_count = 4,
         .live_max = 4,
         .state_max = 6000},
	{.name = "the first of the queue keeps what comes free",
         .state = {.workspace_count = 2,
                   .workspaces = {WS(0, 1, 0), WS(0, 0, 0)},
                   .node_count = 1,
                   .nodes = {{0, 2, false}},
                   .maximum = QREF_NONE},
         .asks = {ASK(0, 1, 0), ASK(1, 2, 0), ASK(1, 1, 0)},
         .ask_count = 3,
         .live_max = 4,
         .state_max = 4000,
         .head_wait_ns = GRACE_NS},
};

int
main(void)
{
	const char *deep = getenv("TOLLGATE_QUOTA_STATES");
	int failed = 0;

	printf("1..%zu\n", ARRAY_LEN(spaces));
	for (size_t i = 0; i < ARRAY_LEN(spaces); i++) {
		in_place(buf) struct buf why = {.max = 1u << 20};
		struct space space = spaces[i];
		size_t count = 0;
		bool ok;

		if (deep != NULL)
			space.state_max = strtoull(deep, NULL, 10);
		else if (SLOW)
			space.state_max /= 10;
		ok = explore(&space, &why, &count);
		if (!ok)
			printf("# %s\n", buf_text(&why));
		printf("# %zu states\n%s %zu - %s\n", count, ok ? "ok" : "not ok", i + 1, space.name);
		fflush(stdout);
		failed += !ok;
	}
	return failed > 0 ? 1 : 0;
}
