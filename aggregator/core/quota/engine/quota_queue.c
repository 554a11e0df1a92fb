/* aggregator/core/quota/engine/quota_queue.c - the queue: its order, its head, and the pass over it.
 *
 * Queue order: owed requests first; then priority plus aging; then the smallest debt relative to weight; then the time of submission;
 * then the id. It is looked at again after each decision, because that may end a right or raise a debt.
 *
 * A right is in one pool. A request that is owed in one pool and would now be admitted in the other as a borrower lets requests of other
 * workspaces go first that are owed there: a lease admitted in a step is no victim in it, and they would wait without a hold beside their
 * own units. */
#include "aggregator/core/quota/engine/quota_state.h"

#include <stdlib.h>

/* ---- the order ----------------------------------------------------------------------------------------------------------------- */

struct place_in_queue {
	int32_t wait;
	bool owed;
	int64_t priority; /* with aging */
	int64_t debt, weight;
	int64_t submitted_ns;
	const char *id;
};

static bool
owed_in(const struct wait *w, const struct account *a)
{
	return quota_committed(a) + w->units <= a->reserved &&
	       (w->in.preemptible || a->fixed + w->units <= a->reserved);
}

static struct place_in_queue
place_of(const struct quota_state *s, int32_t wait)
{
	const struct wait *w = &s->waits.at[wait];
	struct place_in_queue p = {.wait = wait,
	                           .owed = w->account != QUOTA_NONE && w->hold_owed,
	                           .priority = w->in.priority,
	                           .weight = s->workspaces.at[w->in.workspace].in.weight,
	                           .submitted_ns = w->in.submitted_ns,
	                           .id = w->id};
	int64_t waited = s->now_ns - w->in.submitted_ns;

	if (s->settings.aging_ns > 0 && waited > 0)
		p.priority += waited / s->settings.aging_ns;
	for (int i = 0; i < 2 && w->in.shape != QUOTA_NONE; i++) {
		int32_t account = quota_account_find(s, w->in.workspace, w->in.cluster,
		                                     s->shapes.at[w->in.shape].in.model, i == 1);
		const struct account *a = &s->accounts.at[account];

		p.debt += quota_debt(a);
		if (w->account == QUOTA_NONE)
			p.owed = p.owed || owed_in(w, a);
	}
	return p;
}

static int
compare_queue(const struct place_in_queue *a, const struct place_in_queue *b)
{
	int128 left = (int128)a->debt * b->weight, right = (int128)b->debt * a->weight;

	if (a->owed != b->owed)
		return a->owed ? -1 : 1;
	if (a->priority != b->priority)
		return a->priority > b->priority ? -1 : 1;
	if (left != right)
		return left < right ? -1 : 1;
	if (a->submitted_ns != b->submitted_ns)
		return a->submitted_ns < b->submitted_ns ? -1 : 1;
	return strcmp(a->id, b->id);
}

static int
compare_places(const void *a, const void *b)
{
	return compare_queue(a, b);
}

size_t
quota_queue_order(const struct quota_state *s, struct queued **ret)
{
	owned(mem) struct place_in_queue *places = mem_array(s->wait_count + 1, sizeof(*places));
	struct queued *order = mem_array(s->wait_count + 1, sizeof(*order));
	size_t n = 0;

	for (size_t i = 0; i < s->waits.count; i++)
		if (s->waits.at[i].id[0] != '\0')
			places[n++] = place_of(s, (int32_t)i);
	qsort(places, n, sizeof(*places), compare_places);
	for (size_t i = 0; i < n; i++)
		order[i].wait = places[i].wait;
	*ret = order;
	return n;
}

/* ---- a heap of those still to be decided --------------------------------------------------------------------------------------- */

struct heap {
	struct place_in_queue *at;
	size_t count, cap;
};

static void
heap_fini(struct heap *h)
{
	mem_free(h->at);
}

static void
sink(struct heap *h, size_t i)
{
	struct place_in_queue moving = h->at[i];

	for (size_t child = 2 * i + 1; child < h->count; child = 2 * i + 1) {
		if (child + 1 < h->count && compare_queue(&h->at[child + 1], &h->at[child]) < 0)
			child++;
		if (compare_queue(&moving, &h->at[child]) <= 0)
			break;
		h->at[i] = h->at[child];
		i = child;
	}
	h->at[i] = moving;
}

static void
heap_refresh(const struct quota_state *s, struct heap *h)
{
	for (size_t i = 0; i < h->count; i++)
		h->at[i] = place_of(s, h->at[i].wait);
	for (size_t i = h->count / 2; i-- > 0;)
		sink(h, i);
}

/* A request that is still in the heap is not added again: its one turn may be its last. heap_refresh() restores the order. */
static void
heap_add(struct heap *h, int32_t wait)
{
	for (size_t i = 0; i < h->count; i++)
		if (h->at[i].wait == wait)
			return;
	PUSH(*h)->wait = wait;
}

/* The first as things are now. A decision can only take rights away and add debt, so that a place which has not become worse is
 * right; where one gave something back, heap_refresh() was called. */
static int32_t
heap_pop(const struct quota_state *s, struct heap *h)
{
	for (;;) {
		struct place_in_queue now = place_of(s, h->at[0].wait);
		int32_t first = h->at[0].wait;

		if (compare_queue(&now, &h->at[0]) <= 0) {
			h->at[0] = h->at[--h->count];
			if (h->count > 0)
				sink(h, 0);
			return first;
		}
		h->at[0] = now;
		sink(h, 0);
	}
}

static bool
owed_in_pool(const struct quota_state *s, const struct wait *w, int32_t pool)
{
	for (int i = 0; i < 2 && w->in.shape != QUOTA_NONE; i++) {
		int32_t account = quota_account_find(s, w->in.workspace, w->in.cluster,
		                                     s->shapes.at[w->in.shape].in.model, i == 1);
		const struct account *a = &s->accounts.at[account];

		if (a->pool == pool && owed_in(w, a))
			return true;
	}
	return false;
}

/* Takes out the first of another workspace that has no hold and is owed in the account's pool; QUOTA_NONE: there is none. */
static int32_t
heap_take_owed(const struct quota_state *s, struct heap *h, const struct account *a)
{
	struct place_in_queue first = {.wait = QUOTA_NONE};
	size_t at = 0;

	for (size_t i = 0; i < h->count; i++) {
		const struct wait *w = &s->waits.at[h->at[i].wait];
		struct place_in_queue p;

		if (w->account != QUOTA_NONE || w->in.workspace == a->workspace ||
		    quota_enforce_in(s, w->in.workspace, w->in.cluster) != QUOTA_ENFORCE_ON ||
		    !owed_in_pool(s, w, a->pool))
			continue;
		p = place_of(s, h->at[i].wait);
		if (first.wait == QUOTA_NONE || compare_queue(&p, &first) < 0) {
			first = p;
			at = i;
		}
	}
	if (first.wait != QUOTA_NONE) {
		h->at[at] = h->at[--h->count];
		heap_refresh(s, h);
	}
	return first.wait;
}

/* ---- the pass ------------------------------------------------------------------------------------------------------------------ */

/* It waited long enough, and nothing but room is missing: the pool keeps the next units for it, unless it does so for another. It stays
 * the head while this is so, or smaller requests with less debt could pass it for ever. */
static void
consider_as_head(struct quota_state *s, int32_t wait, const struct ruling *r)
{
	struct wait *w = &s->waits.at[wait];

	quota_head_clear(s, wait);
	if (s->settings.head_wait_ns == 0 || s->now_ns - w->in.submitted_ns < s->settings.head_wait_ns)
		return;
	for (int i = 0; i < 2; i++) {
		struct pool *p = &s->pools.at[s->accounts.at[r->account[i]].pool];

		if (!r->may[i] || p->head != QUOTA_NONE || !(r->j[i].owed || r->j[i].borrow_but_for_room) ||
		    !quota_rule_declared(s, wait, r->account[i], NULL))
			continue;
		p->head = wait;
		w->head_of = s->accounts.at[r->account[i]].pool;
		return;
	}
}

static bool
is_enforced(const struct quota_state *s, int32_t wait)
{
	const struct wait *w = &s->waits.at[wait];

	return quota_enforce_in(s, w->in.workspace, w->in.cluster) == QUOTA_ENFORCE_ON;
}

/* Tells the ruling and carries it out. */
static void
settle(struct quota_state *s, int32_t wait, struct ruling *r, struct heap *heap, struct gather *g)
{
	bool enforced = is_enforced(s, wait), better;

	if (s->waits.at[wait].account != QUOTA_NONE) {
		quota_hold_drop(s, wait);
		s->dirty = true;
	}
	if (s->waits.at[wait].fresh || r->decision != QUOTA_QUEUE || !enforced) {
		struct quota_verdict *v = PUSH(g->verdicts);

		quota_make_verdict(s, wait, r, v);
	}
	better = quota_carry_out(s, wait, r, g);
	if (r->decision == QUOTA_QUEUE && enforced)
		consider_as_head(s, wait, r);
	/* A hold that had to go waits again, behind or before those that are left. */
	for (size_t i = 0; i < r->search.displaced_count; i++)
		heap_add(heap, r->search.displaced[i]);
	if (better || r->search.displaced_count > 0)
		heap_refresh(s, heap);
}

/* False: it has a hold, and cannot do with less. */
static bool
rule(struct quota_state *s, int32_t wait, struct ruling *ret)
{
	if (s->waits.at[wait].account != QUOTA_NONE)
		return quota_improve(s, wait, ret);
	quota_rule(s, wait, ret);
	return true;
}

/* The ruling makes a borrower of one that had its turn because it is owed: in the other pool. */
static bool
borrows_though_owed(const struct quota_state *s, int32_t wait, const struct ruling *r)
{
	return r->decision == QUOTA_BORROW && is_enforced(s, wait) && place_of(s, wait).owed;
}

/* Lets a request go first that is owed where the ruling only borrows; false when there is none. One that would itself only borrow elsewhere
 * is put aside: it takes nothing that it is owed, and has its turn later. A hold that this displaces is never that of the request which
 * lets it pass, because that one is owed. */
static bool
let_one_pass(struct quota_state *s, const struct ruling *r, struct heap *heap, struct heap *aside, struct gather *g)
{
	in_place(ruling) struct ruling its = {0};
	int32_t wait = heap_take_owed(s, heap, &s->accounts.at[r->account[r->place]]);

	if (wait == QUOTA_NONE)
		return false;
	quota_rule(s, wait, &its);
	if (its.decision == QUOTA_BORROW)
		PUSH(*aside)->wait = wait;
	else
		settle(s, wait, &its, heap, g);
	return true;
}

static void
decide(struct quota_state *s, int32_t wait, struct heap *heap, struct gather *g)
{
	in_place(heap) struct heap aside = {0};
	bool again = true;

	while (again) {
		in_place(ruling) struct ruling r = {0};
		bool ruled = rule(s, wait, &r);

		again = ruled && borrows_though_owed(s, wait, &r) && let_one_pass(s, &r, heap, &aside, g);
		if (ruled && !again)
			settle(s, wait, &r, heap, g);
	}
	for (size_t i = 0; i < aside.count; i++)
		PUSH(*heap)->wait = aside.at[i].wait;
	if (aside.count > 0)
		heap_refresh(s, heap);
}

static void
pass(struct quota_state *s, bool all, struct gather *g)
{
	in_place(heap) struct heap heap = {0};

	for (size_t i = 0; i < s->waits.count; i++) {
		const struct wait *w = &s->waits.at[i];

		if (w->id[0] != '\0' && (all || w->fresh))
			PUSH(heap)->wait = (int32_t)i;
	}
	heap_refresh(s, &heap);
	while (heap.count > 0)
		decide(s, heap_pop(s, &heap), &heap, g);
}

/* A hold that was dropped on the way, or a workspace that gave up its own, may leave room or a right for those passed over before. Each
 * further pass needs a new plan of some request; should it ever take more passes than requests, the rest comes with the next step. */
void
quota_pass(struct quota_state *s, struct gather *g)
{
	bool all = s->dirty;
	size_t passes = 0;

	do {
		s->dirty = false;
		pass(s, all, g);
		all = true;
	} while (s->dirty && ++passes < 2 + s->wait_count);
}

/* ---- positions shown to users --------------------------------------------------------------------------------------------------------- */

/* A request waits in the queue of every pool that has nodes for it, its tenant's own and the shared one. The position that is shown is the
 * one in the first of them, from 1. Within a pool no two have the same. */
struct position {
	struct quota_verdict *verdict;
	struct place_in_queue place;
	int32_t pool;
	bool shown;     /* the first of its pools */
	int64_t count;  /* requests in the pool between the verdict before this one and this one, itself among them */
	int64_t behind; /* requests behind the last verdict of the pool; of that one only */
};

/* The pools that the request waits in; without nodes anywhere its own one. */
static int
pools_of(const struct quota_state *s, int32_t wait, int32_t ret[2])
{
	const struct quota_request *in = &s->waits.at[wait].in;
	int n = 0;

	for (int i = 0; i < 2 && in->shape != QUOTA_NONE; i++) {
		int32_t account =
			quota_account_find(s, in->workspace, in->cluster, s->shapes.at[in->shape].in.model, i == 1);

		if (account != QUOTA_NONE && quota_pool_shape(s, s->accounts.at[account].pool, in->shape) != QUOTA_NONE)
			ret[n++] = s->accounts.at[account].pool;
		else if (account != QUOTA_NONE && i == 0)
			ret[0] = s->accounts.at[account].pool;
	}
	return n > 0 ? n : 1;
}

static int
compare_positions(const void *a_, const void *b_)
{
	const struct position *a = a_, *b = b_;

	if (a->pool != b->pool)
		return a->pool < b->pool ? -1 : 1;
	return compare_queue(&a->place, &b->place);
}

/* Those that wait, once for each of their pools, in the order of their places; few of all that wait, mostly one. */
static size_t
positions_of(const struct quota_state *s, struct verdicts *v, struct position *ret)
{
	size_t n = 0;

	for (size_t i = 0; i < v->count; i++) {
		int32_t wait = v->at[i].decision == QUOTA_QUEUE || v->at[i].decision == QUOTA_RECLAIM
		                       ? quota_wait_by_id(s, v->at[i].id)
		                       : QUOTA_NONE;
		int32_t pools[2] = {QUOTA_NONE, QUOTA_NONE};
		int count;

		if (wait == QUOTA_NONE)
			continue;
		count = pools_of(s, wait, pools);
		for (int k = 0; k < count; k++)
			ret[n++] = (struct position){
				.verdict = &v->at[i], .place = place_of(s, wait), .pool = pools[k], .shown = k == 0};
	}
	qsort(ret, n, sizeof(*ret), compare_positions);
	return n;
}

/* Counts one that waits in a pool for the first verdict of the pool that is not before it; where it is behind all of them, for the last. */
static void
count_request(struct position *at, size_t n, const struct position *one)
{
	size_t low = 0, high = n;

	while (low < high) {
		size_t middle = (low + high) / 2;

		if (compare_positions(&at[middle], one) < 0)
			low = middle + 1;
		else
			high = middle;
	}
	if (low < n && at[low].pool == one->pool)
		at[low].count++;
	else if (low > 0 && at[low - 1].pool == one->pool)
		at[low - 1].behind++;
}

/* Whether other requests could take what a change brings that is not of one pool alone. */
static bool
others_share(const struct quota_state *s, const struct quota_verdict *v)
{
	const struct tenant *t = &s->tenants.at[s->workspaces.at[v->workspace].in.tenant];

	for (size_t i = 0; i < v->change_count; i++)
		switch (v->changes[i].kind) {
		case QUOTA_CHANGE_CLUSTER_MAXIMUM:
			if (s->wait_count > 1)
				return true;
			break;
		case QUOTA_CHANGE_TENANT_MAXIMUM:
		case QUOTA_CHANGE_OTHER_LIMIT:
		case QUOTA_CHANGE_BUDGET:
		case QUOTA_CHANGE_GUARDRAIL:
		case QUOTA_CHANGE_WAIT:
			if (t->waiting > 1)
				return true;
			break;
		default: break;
		}
	return false;
}

void
quota_positions(const struct quota_state *s, struct verdicts *v)
{
	owned(mem) struct position *at = mem_array(2 * v->count + 1, sizeof(*at));
	size_t n = positions_of(s, v, at);

	for (size_t i = 0; n > 0 && i < s->waits.count; i++) {
		int32_t pools[2] = {QUOTA_NONE, QUOTA_NONE};
		struct position one = {0};
		int count;

		if (s->waits.at[i].id[0] == '\0')
			continue;
		one.place = place_of(s, (int32_t)i);
		count = pools_of(s, (int32_t)i, pools);
		for (int k = 0; k < count; k++) {
			one.pool = pools[k];
			count_request(at, n, &one);
		}
	}
	for (size_t i = 0, end; i < n; i = end) {
		int64_t before = 0;

		for (end = i; end < n && at[end].pool == at[i].pool; end++) {
			before += at[end].count;
			if (at[end].shown)
				at[end].verdict->position = before;
			if (before > 1)
				at[end].verdict->others_first = true;
		}
		for (size_t k = i; k < end; k++) {
			int64_t length = before + at[end - 1].behind;

			/* a request that is owed elsewhere and would borrow here lets those pass that are owed here */
			if (length > 1 && at[k].place.owed &&
			    !owed_in_pool(s, &s->waits.at[at[k].place.wait], at[k].pool))
				at[k].verdict->others_first = true;
			if (!at[k].shown)
				continue;
			if (others_share(s, at[k].verdict))
				at[k].verdict->others_first = true;
			at[k].verdict->queue_length = length;
			at[k].verdict->queue_shared = s->pools.at[at[k].pool].tenant == QUOTA_NONE;
		}
	}
}

size_t
quota_queue_places(const struct quota_state *s, struct quota_place **ret)
{
	struct verdicts v = {.at = mem_array(s->wait_count + 1, sizeof(*v.at))};
	struct quota_place *places = mem_array(s->wait_count + 1, sizeof(*places));

	for (size_t i = 0; i < s->waits.count; i++)
		if (s->waits.at[i].id[0] != '\0') {
			v.at[v.count].decision = QUOTA_QUEUE;
			memcpy(v.at[v.count++].id, s->waits.at[i].id, QUOTA_ID_SIZE);
		}
	quota_positions(s, &v);
	for (size_t i = 0; i < v.count; i++) {
		memcpy(places[i].id, v.at[i].id, sizeof(places[i].id));
		places[i].position = v.at[i].position;
		places[i].shared = v.at[i].queue_shared;
	}
	mem_free(v.at);
	*ret = places;
	return v.count;
}
