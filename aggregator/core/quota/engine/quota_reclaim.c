/* aggregator/core/quota/engine/quota_reclaim.c - which leases end so that a request fits: rule 8 and reclaim.
 *
 * Legal: preemptible; of a workspace with debt just before its removal, what is ordered or draining counted as gone, or the
 * request's own with lower priority; not admitted in this step; not adopted less than one grace ago; of a workspace that is enforced. With reclaim = lower only those of
 * lower priority, with never none of others. Foreign victims are for owed requests only, and for room only: where rule 2 is short, own
 * victims alone make up for it, of either pool and wherever they run. A request that borrows gives up only own work that borrows.
 *
 * Order: already draining; other workspaces before the own one; largest debt relative to weight, as it is after what was taken
 * before; lowest priority; newest; id.
 *
 * Search, the first that finds a set:
 *  1. in this order, leases of the request's shape only
 *  2. the same node by node, where devices must be together or alone
 *  3. in this order, leases of all shapes of the pool, whose sum may be what is missing; then again, own leases only where their
 *     workspace has debt: the request will borrow
 *  4. where reservations are protected, in this order without leases on lost nodes or promised in part: they may leave more protected
 *     than free
 *  5. all sets, while there are few enough
 *  6. the same without the holds of other workspaces that would only borrow, when the request is owed
 * Then, from the last to the first, everything that is not needed is dropped, until nothing can be. */
#include "aggregator/core/quota/engine/quota_state.h"

#include <stdlib.h>

#define MAX_CANDIDATES 20 /* of step 5 */
#define MAX_TRIALS 20000

/* Which leases a step looks at. */
struct filter {
	int32_t shape; /* leases of this shape only, or QUOTA_NONE */
	int32_t node;  /* with a device on this node, or QUOTA_NONE */
	bool whole;    /* those whose return frees all they have */
	bool in_debt;  /* own ones only where the workspace has debt: the request will borrow */
};

void
victim_search_fini(struct victim_search *h)
{
	mem_free(h->at);
	mem_free(h->displaced);
	plan_fini(&h->plan);
}

static int32_t
workspace_of(const struct quota_state *s, const struct lease *l)
{
	return s->accounts.at[l->account].workspace;
}

static bool
is_own(const struct quota_state *s, const struct victim_search *h, const struct lease *l)
{
	return workspace_of(s, l) == s->waits.at[h->wait].in.workspace;
}

/* ---- taking ----------------------------------------------------------------------------------------------------------------- */

static void
take_victim(struct quota_state *s, struct victim_search *h, int32_t lease, enum quota_why why)
{
	*PUSH(*h) = (struct victim){.lease = lease,
	                            .why = why,
	                            .debt = quota_victim_debt(&s->accounts.at[s->leases.at[lease].account])};
	quota_lease_vanish(s, lease);
}

static void
give_back(struct quota_state *s, struct victim_search *h, size_t count)
{
	while (h->count > count)
		quota_lease_appear(s, h->at[--h->count].lease);
}

static bool
within_limit(const struct quota_state *s, const struct victim_search *h)
{
	return !h->limit_short || quota_rule_limit(s, h->wait, h->account, &h->others, NULL);
}

/* Own victims in an account were its debt: with the largest taken last, each had debt just before its removal. */
static bool
own_victims_borrow(const struct quota_state *s, const struct victim_search *h, int32_t account)
{
	const struct account *a = &s->accounts.at[account];
	int64_t largest = 0;

	for (size_t i = 0; i < h->count; i++) {
		const struct lease *l = &s->leases.at[h->at[i].lease];

		if (h->at[i].why == QUOTA_WHY_OWN && l->account == account && l->units > largest)
			largest = l->units;
	}
	return largest == 0 || a->leased - a->leaving + a->held + largest > a->reserved;
}

/* Foreign victims are for owed requests only, also when it is an own victim that makes it owed. */
static bool
set_is_enough(const struct quota_state *s, const struct victim_search *h, struct judgement *ret)
{
	struct judgement j = quota_judge(s, h->wait, h->account, NULL, NULL, NULL);
	bool foreign = h->displaced_count > 0;

	for (size_t i = 0; i < h->count && !foreign; i++)
		foreign = !is_own(s, h, &s->leases.at[h->at[i].lease]);
	if (ret)
		*ret = j;
	return j.available && within_limit(s, h) &&
	       (j.owed || (j.borrow && !foreign && own_victims_borrow(s, h, h->account) &&
	                   (h->elsewhere == QUOTA_NONE || own_victims_borrow(s, h, h->elsewhere))));
}

/* One pass is not always enough: devices of another shape may have been taken for the sum alone. */
static void
drop_needless(struct quota_state *s, struct victim_search *h)
{
	bool again = true;

	while (again) {
		again = false;
		for (size_t i = h->count; i-- > 0;) {
			struct victim kept = h->at[i];

			quota_lease_appear(s, kept.lease);
			memmove(&h->at[i], &h->at[i + 1], (h->count - i - 1) * sizeof(*h->at));
			h->count--;
			if (set_is_enough(s, h, NULL)) {
				again = true;
				continue;
			}
			memmove(&h->at[i + 1], &h->at[i], (h->count - i) * sizeof(*h->at));
			h->at[i] = kept;
			h->count++;
			quota_lease_vanish(s, kept.lease);
		}
	}
}

/* ---- the next victim in the order --------------------------------------------------------------------------------------------------------- */

/* A device that would be free: alive, and promised to nobody. */
static bool
has_device(const struct quota_state *s, const struct lease *l, const struct filter *f)
{
	bool some = false;

	for (int32_t p = l->first_part; p != QUOTA_NONE; p = s->parts.at[p].next) {
		const struct part *part = &s->parts.at[p];
		const struct gpu *d = &s->gpus.at[s->groups.at[part->group].gpu];
		bool live = !d->lost && !s->nodes.at[d->node].lost;

		if (f->whole && (!live || part->promised > 0))
			return false;
		some = some || (live && part->count > part->promised && (f->node == QUOTA_NONE || d->node == f->node));
	}
	return some;
}

/* A lease that drains for a hold of its workspace counts there already: its end gives nothing more to rule 2. */
static bool
relieves_limit(const struct lease *l)
{
	if (l->own_promises == 0 || l->unassigned > 0)
		return true;
	for (size_t i = 0; i < QUOTA_OTHERS; i++)
		if (l->in.other[i] > 0)
			return true;
	return false;
}

static bool
may_take(const struct quota_state *s, const struct victim_search *h, const struct lease *l, const struct filter *f)
{
	const struct wait *w = &s->waits.at[h->wait];
	const struct workspace *asker = &s->workspaces.at[w->in.workspace];
	bool leaving = l->in.order != QUOTA_NO_ORDER;
	bool for_limit = h->limit_short && f->node == QUOTA_NONE && is_own(s, h, l) && relieves_limit(l);

	if (l->gone || (f->shape != QUOTA_NONE && l->in.shape != f->shape) || !(for_limit || has_device(s, l, f)))
		return false;
	if (!leaving && (!l->in.preemptible || l->batch == s->step || quota_is_spared(s, l) ||
	                 quota_enforce_in(s, workspace_of(s, l), l->in.cluster) != QUOTA_ENFORCE_ON))
		return false;
	if (is_own(s, h, l))
		return asker->in.preempt_own && l->in.priority < w->in.priority &&
		       (leaving || !f->in_debt || quota_victim_debt(&s->accounts.at[l->account]) > 0);
	if (asker->in.reclaim == QUOTA_RECLAIM_NEVER)
		return false;
	return leaving || asker->in.reclaim == QUOTA_RECLAIM_ANY || l->in.priority < w->in.priority;
}

static bool
lease_sooner(const struct lease *a, const struct lease *b)
{
	if (a->in.priority != b->in.priority)
		return a->in.priority < b->in.priority;
	if (a->in.since_ns != b->in.since_ns)
		return a->in.since_ns > b->in.since_ns;
	return strcmp(a->id, b->id) < 0;
}

/* The account's first lease in the order, draining or not as asked. */
static int32_t
first_of(const struct quota_state *s, const struct victim_search *h, const struct account *a, bool leaving,
         const struct filter *f)
{
	int32_t best = QUOTA_NONE;

	for (int32_t i = a->first_lease; i != QUOTA_NONE; i = s->leases.at[i].next) {
		const struct lease *l = &s->leases.at[i];

		if ((l->in.order != QUOTA_NO_ORDER) == leaving && may_take(s, h, l, f) &&
		    (best == QUOTA_NONE || lease_sooner(l, &s->leases.at[best])))
			best = i;
	}
	return best;
}

/* Whether lease a of an account comes before lease b of another one. */
static bool
account_sooner(const struct quota_state *s, int32_t a, int32_t b)
{
	const struct account *x = &s->accounts.at[s->leases.at[a].account],
			     *y = &s->accounts.at[s->leases.at[b].account];
	int128 left = (int128)quota_victim_debt(x) * s->workspaces.at[y->workspace].in.weight;
	int128 right = (int128)quota_victim_debt(y) * s->workspaces.at[x->workspace].in.weight;

	return left != right ? left > right : lease_sooner(&s->leases.at[a], &s->leases.at[b]);
}

/* The best offer of each account in the pool, found once and again only after one of it was taken. */
struct offer {
	int32_t account, lease;
};
struct offers {
	struct offer *at;
	size_t count, cap;
	bool leaving;
};

static void
offers_init(const struct quota_state *s, const struct victim_search *h, bool leaving, const struct filter *f,
            struct offers *ret)
{
	int32_t own = h->account;

	*ret = (struct offers){.leaving = leaving};
	for (int32_t i = s->pools.at[s->accounts.at[own].pool].first_account; i != QUOTA_NONE;
	     i = s->accounts.at[i].next_of_pool) {
		const struct account *a = &s->accounts.at[i];
		int32_t lease;

		if (i == own || (leaving ? a->leaving == 0 : quota_victim_debt(a) == 0))
			continue;
		lease = first_of(s, h, a, leaving, f);
		if (lease != QUOTA_NONE)
			*PUSH(*ret) = (struct offer){.account = i, .lease = lease};
	}
}

static int32_t
offers_next(const struct quota_state *s, const struct victim_search *h, const struct filter *f, struct offers *o)
{
	struct offer *best = NULL;

	for (size_t i = 0; i < o->count; i++) {
		struct offer *at = &o->at[i];

		if (at->lease == QUOTA_NONE || (!o->leaving && quota_victim_debt(&s->accounts.at[at->account]) == 0))
			continue;
		if (s->leases.at[at->lease].gone)
			at->lease = first_of(s, h, &s->accounts.at[at->account], o->leaving, f);
		if (at->lease != QUOTA_NONE && (!best || account_sooner(s, at->lease, best->lease)))
			best = at;
	}
	return best ? best->lease : QUOTA_NONE;
}

/* Others' leases are looked at only once the request is owed. */
struct queue_of_victims {
	struct offers draining, foreign;
	struct filter filter;
	bool ready;
};

static void
queue_of_victims_fini(struct queue_of_victims *c)
{
	mem_free(c->draining.at);
	mem_free(c->foreign.at);
}

static void
look_at_others(const struct quota_state *s, const struct victim_search *h, struct queue_of_victims *c)
{
	if (c->ready)
		return;
	offers_init(s, h, true, &c->filter, &c->draining);
	offers_init(s, h, false, &c->filter, &c->foreign);
	c->ready = true;
}

/* The workspace's own first lease, of both pools where rule 2 is short. */
static int32_t
first_own(const struct quota_state *s, const struct victim_search *h, bool leaving, const struct filter *f)
{
	int32_t here = first_of(s, h, &s->accounts.at[h->account], leaving, f), there = QUOTA_NONE;

	if (h->elsewhere != QUOTA_NONE && f->node == QUOTA_NONE)
		there = first_of(s, h, &s->accounts.at[h->elsewhere], leaving, f);
	if (here == QUOTA_NONE || there == QUOTA_NONE)
		return here == QUOTA_NONE ? there : here;
	return lease_sooner(&s->leases.at[there], &s->leases.at[here]) ? there : here;
}

/* Takes the next victim in the order, of other workspaces only where asked; false when there is none. */
static bool
take_next(struct quota_state *s, struct victim_search *h, struct queue_of_victims *c, bool others)
{
	int32_t lease = QUOTA_NONE;
	enum quota_why why = QUOTA_WHY_DRAINING;

	if (others) {
		look_at_others(s, h, c);
		lease = offers_next(s, h, &c->filter, &c->draining);
	}
	if (lease == QUOTA_NONE)
		lease = first_own(s, h, true, &c->filter);
	if (lease == QUOTA_NONE && others) {
		lease = offers_next(s, h, &c->filter, &c->foreign);
		why = QUOTA_WHY_DEBT;
	}
	if (lease == QUOTA_NONE) {
		lease = first_own(s, h, false, &c->filter);
		why = QUOTA_WHY_OWN;
	}
	if (lease == QUOTA_NONE)
		return false;
	take_victim(s, h, lease, why);
	return true;
}

/* ---- steps 1 to 4 ------------------------------------------------------------------------------------------------------------ */

static bool
in_order(struct quota_state *s, struct victim_search *h, struct filter filter)
{
	in_place(queue_of_victims) struct queue_of_victims next = {.filter = filter};
	struct judgement j;

	while (!set_is_enough(s, h, &j)) {
		if (!take_next(s, h, &next, j.owed && !j.available)) {
			give_back(s, h, 0);
			return false;
		}
	}
	return true;
}

/* Makes one node give as many together as asked, or leaves it as it was. */
static bool
clear_node(struct quota_state *s, struct victim_search *h, int32_t node, int32_t count)
{
	in_place(queue_of_victims) struct queue_of_victims next = {.filter = {.shape = QUOTA_NONE, .node = node}};
	size_t before = h->count;
	struct judgement j;

	(void)set_is_enough(s, h, &j);
	j.ask.node = node;
	j.ask.count = count;
	while (quota_fit_devices(s, &j.ask) < count) {
		bool owed = quota_judge(s, h->wait, h->account, NULL, NULL, NULL).owed;

		if (!take_next(s, h, &next, owed)) {
			give_back(s, h, before);
			return false;
		}
	}
	return true;
}

/* Takes own leases until rule 2 holds. */
static bool
relieve_limit(struct quota_state *s, struct victim_search *h)
{
	in_place(queue_of_victims) struct queue_of_victims next = {.filter = {.shape = QUOTA_NONE, .node = QUOTA_NONE}};

	while (!within_limit(s, h))
		if (!take_next(s, h, &next, false))
			return false;
	return true;
}

static bool
node_by_node(struct quota_state *s, struct victim_search *h)
{
	const struct wait *w = &s->waits.at[h->wait];
	int32_t pool_shape = quota_pool_shape(s, s->accounts.at[h->account].pool, w->in.shape);
	int32_t step = w->in.per_node > 1 ? w->in.per_node : 1;

	for (int32_t i = 0; pool_shape != QUOTA_NONE && i < s->pool_shapes.at[pool_shape].node_shape_count; i++) {
		const struct node_shape *k = &s->node_shapes.at[s->pool_shapes.at[pool_shape].first_node_shape + i];

		for (int32_t count = step; count <= k->live && count <= w->in.count; count += step) {
			size_t cleared;

			if (!clear_node(s, h, k->node, count))
				break;
			cleared = h->count;
			if (relieve_limit(s, h) && set_is_enough(s, h, NULL))
				return true;
			give_back(s, h, cleared);
		}
	}
	give_back(s, h, 0);
	return false;
}

static bool
together_or_alone(const struct quota_state *s, const struct victim_search *h)
{
	const struct pool *p = &s->pools.at[s->accounts.at[h->account].pool];
	const struct wait *w = &s->waits.at[h->wait];

	return w->in.per_node > 1 ||
	       (p->tenant == QUOTA_NONE &&
	        (p->strict > 0 ||
	         s->tenants.at[s->workspaces.at[w->in.workspace].in.tenant].in.isolation != QUOTA_SHARED));
}

/* ---- step 5: all sets, while there are few enough ------------------------------------------------------------------------------
 *
 * Several leases of one workspace are legal together when there is an order in which each has debt before it: all but the largest are
 * below the debt. */

struct candidates {
	int32_t lease[MAX_CANDIDATES];
	size_t count;
	int trials;
};

static const struct account *
account_of(const struct quota_state *s, int32_t lease)
{
	return &s->accounts.at[s->leases.at[lease].account];
}

static enum quota_why
why_of(const struct quota_state *s, const struct victim_search *h, int32_t lease)
{
	if (s->leases.at[lease].in.order != QUOTA_NO_ORDER)
		return QUOTA_WHY_DRAINING;
	return account_of(s, lease)->workspace == s->waits.at[h->wait].in.workspace ? QUOTA_WHY_OWN : QUOTA_WHY_DEBT;
}

/* The candidates in the order above, by the debts at the beginning. */
static bool
sooner(const struct quota_state *s, const struct victim_search *h, int32_t a, int32_t b)
{
	enum quota_why x = why_of(s, h, a), y = why_of(s, h, b);
	const struct account *m = account_of(s, a), *n = account_of(s, b);
	int128 left = (int128)quota_victim_debt(m) * s->workspaces.at[n->workspace].in.weight;
	int128 right = (int128)quota_victim_debt(n) * s->workspaces.at[m->workspace].in.weight;

	if (x != y)
		return x < y;
	return left != right ? left > right : lease_sooner(&s->leases.at[a], &s->leases.at[b]);
}

static bool
gather_of(const struct quota_state *s, const struct victim_search *h, const struct account *a, struct candidates *ret)
{
	const struct filter any = {.shape = QUOTA_NONE, .node = QUOTA_NONE};

	for (int32_t l = a->first_lease; l != QUOTA_NONE; l = s->leases.at[l].next) {
		size_t at;

		if (!may_take(s, h, &s->leases.at[l], &any) ||
		    (why_of(s, h, l) == QUOTA_WHY_DEBT && quota_victim_debt(a) == 0))
			continue;
		if (ret->count == MAX_CANDIDATES)
			return false;
		for (at = ret->count++; at > 0 && sooner(s, h, l, ret->lease[at - 1]); at--)
			ret->lease[at] = ret->lease[at - 1];
		ret->lease[at] = l;
	}
	return true;
}

static bool
gather(const struct quota_state *s, const struct victim_search *h, struct candidates *ret)
{
	int32_t pool = s->accounts.at[h->account].pool;

	for (int32_t i = s->pools.at[pool].first_account; i != QUOTA_NONE; i = s->accounts.at[i].next_of_pool)
		if (!gather_of(s, h, &s->accounts.at[i], ret))
			return false;
	return (h->elsewhere == QUOTA_NONE || gather_of(s, h, &s->accounts.at[h->elsewhere], ret)) && ret->count > 0;
}

/* Whether the victims taken from its workspace for debt stay legal together with this lease. Debt before the first of them is recorded with it. */
static bool
legal_with(const struct quota_state *s, const struct victim_search *h, int32_t lease)
{
	int64_t sum = s->leases.at[lease].units, largest = sum, debt = quota_victim_debt(account_of(s, lease));

	for (size_t i = h->count; i-- > 0;) {
		const struct lease *l = &s->leases.at[h->at[i].lease];

		if (h->at[i].why != QUOTA_WHY_DEBT || l->account != s->leases.at[lease].account)
			continue;
		sum += l->units;
		largest = l->units > largest ? l->units : largest;
		debt = h->at[i].debt; /* the last one seen is the first one taken */
	}
	return sum - largest < debt;
}

static bool
descend(struct quota_state *s, struct victim_search *h, struct candidates *q, size_t from)
{
	if (q->trials-- <= 0)
		return false;
	if (set_is_enough(s, h, NULL))
		return true;
	for (size_t i = from; i < q->count; i++) {
		enum quota_why why = why_of(s, h, q->lease[i]);

		if (why == QUOTA_WHY_DEBT && !legal_with(s, h, q->lease[i]))
			continue;
		take_victim(s, h, q->lease[i], why);
		if (descend(s, h, q, i + 1))
			return true;
		give_back(s, h, h->count - 1);
	}
	return false;
}

/* If even without all of them the shape does not fit, or there is no right to it, no set will do. Protected units are not looked at: a
 * lease that leaves may protect more for its owner than it frees, where it is on lost nodes or promised. */
static bool
hopeless(struct quota_state *s, struct victim_search *h, const struct candidates *q)
{
	struct judgement j;
	bool fits;

	for (size_t i = 0; i < q->count; i++)
		take_victim(s, h, q->lease[i], QUOTA_WHY_DRAINING);
	(void)set_is_enough(s, h, &j);
	fits = quota_fit_devices(s, &j.ask) >= j.ask.count && within_limit(s, h);
	give_back(s, h, 0);
	return !fits || !(j.owed || j.borrow_but_for_room);
}

/* Listed so that each has debt before it: of one workspace the largest comes last. */
static void
put_in_order(struct quota_state *s, struct victim_search *h)
{
	owned(mem) struct victim *list = mem_array(h->count + 1, sizeof(*list));
	size_t count = h->count;

	memcpy(list, h->at, count * sizeof(*list));
	give_back(s, h, 0);
	for (size_t i = 0; i < count; i++)
		for (size_t k = i + 1; k < count; k++) {
			const struct lease *a = &s->leases.at[list[i].lease], *b = &s->leases.at[list[k].lease];

			if (list[i].why != QUOTA_WHY_DRAINING && list[k].why == list[i].why &&
			    a->account == b->account && a->units > b->units) {
				struct victim swap = list[i];

				list[i] = list[k];
				list[k] = swap;
			}
		}
	for (size_t i = 0; i < count; i++)
		take_victim(s, h, list[i].lease, list[i].why);
}

static bool
all_sets(struct quota_state *s, struct victim_search *h)
{
	struct candidates q = {.trials = MAX_TRIALS};

	if (!gather(s, h, &q) || hopeless(s, h, &q) || !descend(s, h, &q, 0)) {
		give_back(s, h, 0);
		return false;
	}
	put_in_order(s, h);
	return true;
}

/* ---- steps 1 to 5 in turn, then 6 --------------------------------------------------------------------------------------------- */

static bool
find_set(struct quota_state *s, struct victim_search *h)
{
	struct filter shape = {.shape = s->waits.at[h->wait].in.shape, .node = QUOTA_NONE};
	struct filter any = {.shape = QUOTA_NONE, .node = QUOTA_NONE};
	struct filter whole = {.shape = QUOTA_NONE, .node = QUOTA_NONE, .whole = true};
	struct filter in_debt = {.shape = QUOTA_NONE, .node = QUOTA_NONE, .in_debt = true};
	bool caps = s->pools.at[s->accounts.at[h->account].pool].protected_empty > 0;

	return in_order(s, h, shape) ||                           /* 1 */
	       (together_or_alone(s, h) && node_by_node(s, h)) || /* 2 */
	       in_order(s, h, any) || in_order(s, h, in_debt) ||  /* 3 */
	       (caps && in_order(s, h, whole)) ||                 /* 4 */
	       all_sets(s, h);                                    /* 5 */
}

/* In the order of the rules: own victims that had to come first to make the request owed are listed last. A victim that was
 * dropped changes the debts that the others are listed with. */
static void
take_again(struct quota_state *s, struct victim_search *h)
{
	size_t count = h->count;
	owned(mem) struct victim *list = mem_array(count + 1, sizeof(*list));

	if (count > 0)
		memcpy(list, h->at, count * sizeof(*list));
	give_back(s, h, 0);
	for (enum quota_why why = QUOTA_WHY_DRAINING; why <= QUOTA_WHY_OWN; why++)
		for (size_t i = 0; i < count; i++)
			if (list[i].why == why)
				take_victim(s, h, list[i].lease, why);
}

/* Places the request as if the victims had ended, then restores the state. */
static bool
found(struct quota_state *s, struct victim_search *h)
{
	struct judgement j;
	const struct account *a = &s->accounts.at[h->account];
	bool ok;

	take_again(s, h);
	drop_needless(s, h);
	take_again(s, h);
	ok = set_is_enough(s, h, &j) && quota_fit(s, &j.ask, &h->plan);
	h->owed = j.owed;
	h->borrowed = 0;
	if (!j.owed) {
		int64_t after = quota_committed(a) + s->waits.at[h->wait].units - a->reserved;

		h->borrowed = (after > 0 ? after : 0) - quota_debt(a);
	}
	for (size_t i = h->count; i-- > 0;)
		quota_lease_appear(s, h->at[i].lease);
	return ok;
}

/* The latest hold of another workspace in the pool that would only borrow, or QUOTA_NONE. */
static int32_t
last_borrowers_hold(const struct quota_state *s, const struct victim_search *h)
{
	int32_t pool = s->accounts.at[h->account].pool, last = QUOTA_NONE;

	for (size_t i = 0; i < s->waits.count; i++) {
		const struct wait *w = &s->waits.at[i], *l = last == QUOTA_NONE ? NULL : &s->waits.at[last];

		if (w->id[0] == '\0' || w->account == QUOTA_NONE || w->hold_owed ||
		    s->accounts.at[w->account].pool != pool || w->in.workspace == s->waits.at[h->wait].in.workspace)
			continue;
		if (!l || w->in.submitted_ns > l->in.submitted_ns ||
		    (w->in.submitted_ns == l->in.submitted_ns && strcmp(w->id, l->id) > 0))
			last = (int32_t)i;
	}
	return last;
}

/* Takes holds of borrowers away, the latest first, until there is a set. */
static bool
displace_holds(struct quota_state *s, struct victim_search *h)
{
	bool ok = false;

	while (!ok) {
		int32_t last = last_borrowers_hold(s, h);

		if (last == QUOTA_NONE)
			break;
		array_room(h->displaced, h->displaced_count, h->displaced_cap);
		h->displaced[h->displaced_count++] = last;
		s->waits.at[last].detached_from = s->waits.at[last].account;
		quota_hold_detach(s, last);
		ok = find_set(s, h);
	}
	give_back(s, h, 0);
	return ok;
}

/* Step 6: the latest goes first, and comes back when it was not needed. */
static bool
without_borrowers_holds(struct quota_state *s, struct victim_search *h)
{
	bool ok;

	if (h->limit_short || !quota_judge(s, h->wait, h->account, NULL, NULL, NULL).owed ||
	    s->workspaces.at[s->waits.at[h->wait].in.workspace].in.reclaim != QUOTA_RECLAIM_ANY)
		return false;
	ok = displace_holds(s, h);
	for (size_t i = 0; ok && i < h->displaced_count;) {
		int32_t wait = h->displaced[i];

		quota_hold_attach(s, wait, s->waits.at[wait].detached_from);
		if (find_set(s, h)) {
			h->displaced[i] = h->displaced[--h->displaced_count];
		} else {
			quota_hold_detach(s, wait);
			i++;
		}
		give_back(s, h, 0);
	}
	ok = ok && find_set(s, h) && found(s, h);
	for (size_t i = h->displaced_count; i-- > 0;)
		quota_hold_attach(s, h->displaced[i], s->waits.at[h->displaced[i]].detached_from);
	if (!ok)
		h->displaced_count = 0;
	return ok;
}

/* At least the units that an account could give up for the request. */
static int64_t
could_give_up(const struct quota_state *s, int32_t account, int32_t priority)
{
	return account == QUOTA_NONE ? 0
	                             : quota_preemptible_below(s, account, priority) + s->accounts.at[account].leaving;
}

/* Even without all own lower work the workspace's limit would not hold. */
static bool
limit_hopeless(const struct quota_state *s, const struct victim_search *h)
{
	const struct wait *w = &s->waits.at[h->wait];
	const struct account *a = &s->accounts.at[h->account];
	int64_t here = could_give_up(s, h->account, w->in.priority);

	if (!s->workspaces.at[w->in.workspace].in.preempt_own ||
	    here + could_give_up(s, h->elsewhere, w->in.priority) == 0)
		return true;
	return a->limit != QUOTA_UNLIMITED && (int128)quota_committed(a) + w->units - here > a->limit;
}

bool
quota_victim_search(struct quota_state *s, int32_t wait, int32_t account, bool limit_short, struct victim_search *ret)
{
	const struct account *a = &s->accounts.at[account];
	const struct filter any = {.shape = QUOTA_NONE, .node = QUOTA_NONE};

	*ret = (struct victim_search){
		.wait = wait, .account = account, .limit_short = limit_short, .elsewhere = QUOTA_NONE};
	if (limit_short) {
		ret->elsewhere = quota_account_find(s, a->workspace, a->base.cluster, a->base.model, !a->base.shared);
		ret->others = quota_limit_others(s, account);
		if (limit_hopeless(s, ret))
			return false;
	}
	if ((limit_short || !quota_judge(s, wait, account, NULL, NULL, NULL).owed) &&
	    first_own(s, ret, true, &any) == QUOTA_NONE && first_own(s, ret, false, &any) == QUOTA_NONE)
		return false;
	if (find_set(s, ret))
		return found(s, ret);
	return without_borrowers_holds(s, ret);
}
