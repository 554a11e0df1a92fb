/* aggregator/core/quota/engine/quota_search.c - all legal sets of victims, while there are few enough. Step 5 of quota_victims.h.
 *
 * Several leases of one workspace are legal together when there is an order in which each has debt before it: all but the largest are
 * below the debt. */
#include "aggregator/core/quota/engine/quota_victims.h"

#include <stdlib.h>

#define MAX_CANDIDATES 20
#define MAX_TRIALS 20000

struct search {
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
why_of(const struct quota_state *s, const struct hunt *h, int32_t lease)
{
	if (s->leases.at[lease].in.order != QUOTA_NO_ORDER)
		return QUOTA_WHY_DRAINING;
	return account_of(s, lease)->workspace == s->waits.at[h->wait].in.workspace ? QUOTA_WHY_OWN : QUOTA_WHY_DEBT;
}

/* The candidates in the order of victims.h, by the debts at the beginning. */
static bool
sooner(const struct quota_state *s, const struct hunt *h, int32_t a, int32_t b)
{
	enum quota_why x = why_of(s, h, a), y = why_of(s, h, b);
	const struct account *m = account_of(s, a), *n = account_of(s, b);
	int128 left = (int128)quota_victim_debt(m) * s->workspaces.at[n->workspace].in.weight;
	int128 right = (int128)quota_victim_debt(n) * s->workspaces.at[m->workspace].in.weight;

	if (x != y)
		return x < y;
	return left != right ? left > right : quota_hunt_sooner(&s->leases.at[a], &s->leases.at[b]);
}

static bool
gather_of(const struct quota_state *s, const struct hunt *h, const struct account *a, struct search *ret)
{
	const struct filter any = {.shape = QUOTA_NONE, .node = QUOTA_NONE};

	for (int32_t l = a->first_lease; l != QUOTA_NONE; l = s->leases.at[l].next) {
		size_t at;

		if (!quota_hunt_may(s, h, &s->leases.at[l], &any) ||
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
gather(const struct quota_state *s, const struct hunt *h, struct search *ret)
{
	int32_t pool = s->accounts.at[h->account].pool;

	for (int32_t i = s->pools.at[pool].first_account; i != QUOTA_NONE; i = s->accounts.at[i].next_of_pool)
		if (!gather_of(s, h, &s->accounts.at[i], ret))
			return false;
	return (h->elsewhere == QUOTA_NONE || gather_of(s, h, &s->accounts.at[h->elsewhere], ret)) && ret->count > 0;
}

/* With this lease, what is taken of its workspace for its debt stays legal. Debt before the first of them is recorded with it. */
static bool
legal_with(const struct quota_state *s, const struct hunt *h, int32_t lease)
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
descend(struct quota_state *s, struct hunt *h, struct search *q, size_t from)
{
	if (q->trials-- <= 0)
		return false;
	if (quota_hunt_valid(s, h, NULL))
		return true;
	for (size_t i = from; i < q->count; i++) {
		enum quota_why why = why_of(s, h, q->lease[i]);

		if (why == QUOTA_WHY_DEBT && !legal_with(s, h, q->lease[i]))
			continue;
		quota_hunt_take(s, h, q->lease[i], why);
		if (descend(s, h, q, i + 1))
			return true;
		quota_hunt_undo(s, h, h->count - 1);
	}
	return false;
}

/* If even without all of them the shape does not fit, or there is no right to it, no set will do. What is protected is not looked at: a
 * lease that leaves may protect more for its owner than it frees, where it is on lost nodes or promised. */
static bool
hopeless(struct quota_state *s, struct hunt *h, const struct search *q)
{
	struct judgement j;
	bool fits;

	for (size_t i = 0; i < q->count; i++)
		quota_hunt_take(s, h, q->lease[i], QUOTA_WHY_DRAINING);
	(void)quota_hunt_valid(s, h, &j);
	fits = quota_fit_devices(s, &j.ask) >= j.ask.count && quota_hunt_within_limit(s, h);
	quota_hunt_undo(s, h, 0);
	return !fits || !(j.owed || j.borrow_but_for_room);
}

/* Listed so that each has debt before it: of one workspace the largest comes last. */
static void
put_in_order(struct quota_state *s, struct hunt *h)
{
	owned(mem) struct victim *list = mem_array(h->count + 1, sizeof(*list));
	size_t count = h->count;

	memcpy(list, h->at, count * sizeof(*list));
	quota_hunt_undo(s, h, 0);
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
		quota_hunt_take(s, h, list[i].lease, list[i].why);
}

bool
quota_hunt_all_sets(struct quota_state *s, struct hunt *h)
{
	struct search q = {.trials = MAX_TRIALS};

	if (!gather(s, h, &q) || hopeless(s, h, &q) || !descend(s, h, &q, 0)) {
		quota_hunt_undo(s, h, 0);
		return false;
	}
	put_in_order(s, h);
	return true;
}
