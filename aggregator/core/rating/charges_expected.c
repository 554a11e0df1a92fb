/* aggregator/core/rating/charges_expected.c - the charges of a pool's hour, computed a second time. The numbers are those of charges_expected.h. */
#include "aggregator/core/rating/charges_expected.h"

#include <stdlib.h>
#include <string.h>

/* ---- exact shares ---- */

/* total x weight / whole and the remainder, where the product may need more than 128 bits: the weight is fed in bit by bit. */
static int128
portion(int128 total, int128 weight, int128 whole, int128 *ret_rest)
{
	int128 quotient = 0, rest = 0, product;
	const int128 each = total / whole, left = total % whole;

	if (!__builtin_mul_overflow(total, weight, &product)) {
		*ret_rest = product % whole;
		return product / whole;
	}
	for (int bit = 126; bit >= 0; bit--) {
		quotient = 2 * quotient;
		rest = 2 * rest;
		if (weight >> bit & 1) {
			quotient += each;
			rest += left;
		}
		for (; rest >= whole; rest -= whole)
			quotient++;
	}
	*ret_rest = rest;
	return quotient;
}

void
charges_expected_share(int128 total, const int128 *weight, size_t n, int128 *out)
{
	owned(mem) int128 *rest = mem_array(n, sizeof(*rest));
	int128 whole = 0, left = total;

	for (size_t i = 0; i < n; i++)
		whole += weight[i];
	for (size_t i = 0; i < n; i++) {
		out[i] = whole == 0 ? 0 : portion(total, weight[i], whole, &rest[i]);
		left -= out[i];
	}
	/* The units that are left go one by one to the largest remainder that has none yet. */
	while (whole > 0 && left > 0) {
		size_t best = 0;

		for (size_t i = 1; i < n; i++)
			if (rest[i] > rest[best])
				best = i;
		out[best]++;
		rest[best] = -1;
		left--;
	}
}

/* The same with a ceiling for each: who would exceed it gets it, and the others share what is left. */
static void
share_below(int128 total, const int128 *weight, const int128 *ceiling, size_t n, int128 *out)
{
	owned(mem) int128 *open = mem_array(n, sizeof(*open));
	owned(mem) bool *full = mem_array(n, sizeof(*full));
	owned(mem) int128 *part = mem_array(n, sizeof(*part));
	bool again = true;

	memset(out, 0, n * sizeof(*out));
	while (again) {
		int128 left = total;

		again = false;
		for (size_t i = 0; i < n; i++) {
			left -= full[i] ? ceiling[i] : 0;
			open[i] = full[i] || ceiling[i] == 0 ? 0 : weight[i];
		}
		charges_expected_share(left, open, n, part);
		for (size_t i = 0; i < n; i++) {
			if (!full[i] && part[i] > ceiling[i])
				again = full[i] = true;
			out[i] = full[i] ? ceiling[i] : part[i];
		}
	}
}

/* ---- the hour ---- */

struct party {
	int64_t workspace;
	size_t use, use_end, right, right_end; /* its rows */
	int128 held, reserved;
	int128 of_class[CHARGES_EXPECTED_CLASSES];
	int128 unused, lent, undelivered;
};
struct hour {
	const struct charges_expected_pool *pool;
	struct party *parties;
	size_t count;
	int128 (*of_use)[CHARGES_EXPECTED_CLASSES][CHARGES_EXPECTED_AMOUNTS];
	charges_expected_tell *tell;
	void *arg;
};

static int128
least(int128 a, int128 b)
{
	return a < b ? a : b;
}

/* Rule 7. */
static int
by_size(int64_t units_a, const char *profile_a, int64_t units_b, const char *profile_b)
{
	return units_a != units_b ? (units_a > units_b ? -1 : 1) : strcmp(profile_a, profile_b);
}

static int
use_order(const void *a, const void *b)
{
	const struct charges_expected_use *x = a, *y = b;
	int order = (x->workspace > y->workspace) - (x->workspace < y->workspace);

	if (order == 0)
		order = by_size(x->units, x->profile, y->units, y->profile);
	return order != 0 ? order : (x->sharing > y->sharing) - (x->sharing < y->sharing);
}

static int
right_order(const void *a, const void *b)
{
	const struct charges_expected_right *x = a, *y = b;
	int order = (x->workspace > y->workspace) - (x->workspace < y->workspace);

	return order != 0 ? order : by_size(x->units, x->profile, y->units, y->profile);
}

static int128
time_of(const int128 amount[CHARGES_EXPECTED_AMOUNTS])
{
	int128 sum = 0;

	for (int s = 0; s < CHARGES_EXPECTED_HELD_STATES; s++)
		sum += amount[s];
	return sum;
}

static void
find_parties(struct hour *h)
{
	const struct charges_expected_pool *p = h->pool;

	for (size_t u = 0, r = 0; u < p->use_count || r < p->right_count;) {
		struct party *x = &h->parties[h->count++];

		*x = (struct party){.use = u, .right = r};
		x->workspace =
			r == p->right_count || (u < p->use_count && p->uses[u].workspace < p->rights[r].workspace)
				? p->uses[u].workspace
				: p->rights[r].workspace;
		for (; u < p->use_count && p->uses[u].workspace == x->workspace; u++)
			x->held += time_of(p->uses[u].amount);
		for (; r < p->right_count && p->rights[r].workspace == x->workspace; r++)
			x->reserved += p->rights[r].reserved;
		x->use_end = u;
		x->right_end = r;
	}
}

/* Rules 1 to 6; what is unreserved idle. */
static int128
classify(struct hour *h, int128 capacity)
{
	size_t n = h->count;
	owned(mem) int128 *weight = mem_array(n, sizeof(*weight));
	owned(mem) int128 *room = mem_array(n, sizeof(*room));
	owned(mem) int128 *part = mem_array(n, sizeof(*part));
	int128 reserved = 0, spare = capacity, over = 0, borrowed = 0, willing = 0;

	for (size_t i = 0; i < n; i++) { /* 2 */
		struct party *x = &h->parties[i];

		reserved += x->reserved;
		weight[i] = x->reserved;
		room[i] = x->reserved - least(x->reserved, x->held);
	}
	share_below(reserved > capacity ? reserved - capacity : 0, weight, room, n, part);
	for (size_t i = 0; i < n; i++) { /* 3 */
		struct party *x = &h->parties[i];

		x->undelivered = part[i];
		x->of_class[CHARGES_EXPECTED_COVERED] = least(x->held, x->reserved - part[i]);
		x->unused = x->reserved - part[i] - x->of_class[CHARGES_EXPECTED_COVERED];
		spare -= x->reserved - part[i];
		weight[i] = x->held - x->of_class[CHARGES_EXPECTED_COVERED];
		over += weight[i];
	}
	charges_expected_share(least(over, spare), weight, n, part);
	for (size_t i = 0; i < n; i++) { /* 4 */
		struct party *x = &h->parties[i];

		x->of_class[CHARGES_EXPECTED_ON_DEMAND] = part[i];
		x->of_class[CHARGES_EXPECTED_BORROWED] = weight[i] - part[i];
		borrowed += weight[i] - part[i];
		spare -= part[i];
	}
	for (size_t i = 0; i < n; i++) { /* 5 */
		struct party *x = &h->parties[i];
		int128 cap = x->right < x->right_end ? h->pool->rights[x->right].lend_cap : 0;

		weight[i] = x->unused;
		room[i] = cap < 0 ? x->unused : least(x->unused, cap);
		willing += room[i];
	}
	share_below(least(borrowed, willing), weight, room, n, part);
	for (size_t i = 0; i < n; i++) {
		h->parties[i].lent = part[i];
		room[i] = weight[i] - part[i];
	}
	share_below(borrowed - least(borrowed, willing), room, room, n, part);
	for (size_t i = 0; i < n; i++) {
		h->parties[i].lent += part[i];
		h->parties[i].unused -= h->parties[i].lent;
	}
	return spare;
}

/* Rule 7: one kind of device, whose time in each class is given. */
static void
divide_use(const struct charges_expected_use *u, const int128 time[CHARGES_EXPECTED_CLASSES],
           int128 out[CHARGES_EXPECTED_CLASSES][CHARGES_EXPECTED_AMOUNTS])
{
	int128 left[CHARGES_EXPECTED_HELD_STATES], part[CHARGES_EXPECTED_CLASSES];

	memcpy(left, u->amount, sizeof(left));
	for (int c = 0; c < CHARGES_EXPECTED_CLASSES; c++) {
		charges_expected_share(time[c], left, CHARGES_EXPECTED_HELD_STATES, out[c]);
		for (int s = 0; s < CHARGES_EXPECTED_HELD_STATES; s++)
			left[s] -= out[c][s];
	}
	for (int s = CHARGES_EXPECTED_HELD_STATES; s < CHARGES_EXPECTED_AMOUNTS; s++) {
		charges_expected_share(u->amount[s], time, CHARGES_EXPECTED_CLASSES, part);
		for (int c = 0; c < CHARGES_EXPECTED_CLASSES; c++)
			out[c][s] = part[c];
		if (time_of(u->amount) == 0)
			out[CHARGES_EXPECTED_ON_DEMAND][s] = u->amount[s];
	}
}

static void
say(const struct hour *h, const struct charges_expected_row *row)
{
	for (int s = 0; s < CHARGES_EXPECTED_SUMS; s++)
		if (row->sum[s] != 0) {
			h->tell(h->arg, row);
			return;
		}
}

static void
tell_uses(struct hour *h, const struct party *x)
{
	int128 left[CHARGES_EXPECTED_CLASSES];

	memcpy(left, x->of_class, sizeof(left));
	for (size_t u = x->use; u < x->use_end; u++) {
		int128 rest = time_of(h->pool->uses[u].amount), time[CHARGES_EXPECTED_CLASSES];

		for (int c = 0; c < CHARGES_EXPECTED_CLASSES; c++) {
			time[c] = least(rest, left[c]);
			rest -= time[c];
			left[c] -= time[c];
		}
		divide_use(&h->pool->uses[u], time, h->of_use[u]);
		for (int c = 0; c < CHARGES_EXPECTED_CLASSES; c++) {
			struct charges_expected_row row = {.table = CHARGES_EXPECTED_CHARGE_DAY,
			                                   .use = &h->pool->uses[u],
			                                   .klass = c};

			memcpy(row.sum, h->of_use[u][c], sizeof(h->of_use[u][c]));
			say(h, &row);
		}
	}
}

/* Rule 9. */
static void
tell_rights(const struct hour *h, const struct party *x)
{
	size_t n = x->right_end - x->right;
	owned(mem) int128 *weight = mem_array(n, sizeof(*weight));
	owned(mem) int128 *undelivered = mem_array(n, sizeof(*undelivered));
	int128 left[] = {x->of_class[CHARGES_EXPECTED_COVERED], x->lent, x->unused};

	for (size_t i = 0; i < n; i++)
		weight[i] = h->pool->rights[x->right + i].reserved;
	charges_expected_share(x->undelivered, weight, n, undelivered);
	for (size_t i = 0; i < n; i++) {
		struct charges_expected_row row = {.table = CHARGES_EXPECTED_RESERVE_DAY,
		                                   .right = &h->pool->rights[x->right + i]};
		int128 rest = weight[i] - undelivered[i];

		row.sum[0] = weight[i];
		for (size_t k = 0; k < ARRAY_LEN(left); k++) {
			row.sum[1 + k] = least(rest, left[k]);
			rest -= row.sum[1 + k];
			left[k] -= row.sum[1 + k];
		}
		row.sum[4] = undelivered[i];
		say(h, &row);
	}
}

/* Rule 8. */
static void
tell_loans(struct hour *h)
{
	owned(mem) int128 *lent = mem_array(h->count, sizeof(*lent));
	owned(mem) int128 *time = mem_array(h->count, sizeof(*time));

	for (size_t i = 0; i < h->count; i++)
		lent[i] = h->parties[i].lent;
	for (size_t u = 0; u < h->pool->use_count; u++) {
		int128 *left = h->of_use[u][CHARGES_EXPECTED_BORROWED];

		if (time_of(left) == 0)
			continue;
		charges_expected_share(time_of(left), lent, h->count, time);
		for (size_t i = 0; i < h->count; i++) {
			struct charges_expected_row row = {.table = CHARGES_EXPECTED_LOAN_DAY,
			                                   .use = &h->pool->uses[u],
			                                   .lender = h->parties[i].workspace};
			int128 part[2];

			if (time[i] == 0)
				continue;
			lent[i] -= time[i];
			for (int s = CHARGES_EXPECTED_HELD_STATES; s < CHARGES_EXPECTED_AMOUNTS; s++) {
				charges_expected_share(left[s], (int128[]){time[i], time_of(left) - time[i]}, 2, part);
				row.sum[s] = part[0];
			}
			charges_expected_share(time[i], left, CHARGES_EXPECTED_HELD_STATES, row.sum);
			for (int s = 0; s < CHARGES_EXPECTED_AMOUNTS; s++)
				left[s] -= row.sum[s];
			say(h, &row);
		}
	}
}

void
charges_expected_settle(struct charges_expected_pool *p, charges_expected_tell *tell, void *arg)
{
	owned(mem) struct party *parties = mem_array(p->use_count + p->right_count, sizeof(*parties));
	struct hour h = {.pool = p, .parties = parties, .tell = tell, .arg = arg};
	struct charges_expected_row row = {.table = CHARGES_EXPECTED_POOL_DAY};
	int128 capacity = p->unallocated + p->stranded;

	if (p->use_count > 0)
		qsort(p->uses, p->use_count, sizeof(*p->uses), use_order);
	if (p->right_count > 0)
		qsort(p->rights, p->right_count, sizeof(*p->rights), right_order);
	h.of_use = mem_array(p->use_count, sizeof(*h.of_use));
	find_parties(&h);
	for (size_t i = 0; i < h.count; i++)
		capacity += parties[i].held;
	row.sum[0] = capacity;
	row.sum[5] = classify(&h, capacity);
	for (size_t i = 0; i < h.count; i++) {
		for (int c = 0; c < CHARGES_EXPECTED_CLASSES; c++)
			row.sum[1 + c] += parties[i].of_class[c];
		row.sum[4] += parties[i].unused;
		tell_uses(&h, &parties[i]);
		tell_rights(&h, &parties[i]);
	}
	row.sum[6] = p->unallocated;
	row.sum[7] = p->stranded;
	row.sum[8] = p->down;
	row.sum[9] = p->unknown;
	row.sum[10] = p->energy_mj;
	row.sum[11] = row.sum[5] > p->stranded ? row.sum[5] - p->stranded : 0;
	say(&h, &row);
	tell_loans(&h);
	mem_free(h.of_use);
}
