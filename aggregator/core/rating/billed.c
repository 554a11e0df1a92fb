/* aggregator/core/rating/billed.c - a month that other rules have rated, as it was billed. The numbers are those of billed.h. */
#include "aggregator/core/rating/billed.h"

#include <stdlib.h>
#include <string.h>

#include "aggregator/core/rating/amortise.h"
#include "common/base/split.h"

static int
by_line_id(const void *key, const void *line)
{
	return strcmp(key, ((const struct rated_line *)line)->line_id);
}

/* Adds the cents to the days; false: none has a weight. */
static bool
spread(struct rated_line *l, int128 cents, const int128 *weight)
{
	owned(mem) int128 *share = mem_array(l->day_count, sizeof(*share));

	if (!split_largest_remainder(cents, weight, l->day_count, share))
		return false;
	for (size_t i = 0; i < l->day_count; i++)
		l->days[i].billed += share[i];
	return true;
}

/* Rule 1. A line of which no day has a cent goes by its quantity, else to its first day. */
static void
bill_days(struct rated_line *l, int128 billed)
{
	owned(mem) int128 *cents = mem_array(l->day_count, sizeof(*cents));
	owned(mem) int128 *quantity = mem_array(l->day_count, sizeof(*quantity));
	int128 more = billed;

	for (size_t i = 0; i < l->day_count; i++) {
		const struct rated_day *d = &l->days[i];

		more -= d->billed;
		cents[i] = d->billed < 0 ? -d->billed : d->billed;
		quantity[i] = d->quantity < 0 ? -d->quantity : d->quantity;
	}
	if (more != 0 && l->day_count > 0 && !spread(l, more, cents) && !spread(l, more, quantity))
		l->days[0].billed += more;
}

static void
set_billed(struct rated_line *l, const struct rated_line *billed)
{
	bill_days(l, billed->billed);
	l->unit_price = billed->unit_price;
	l->discount_price = billed->discount_price;
	l->discount_ratio = billed->discount_ratio;
	l->quantity = billed->quantity;
	l->list_cost = billed->list_cost;
	l->discount = billed->discount;
	l->rounding = billed->rounding;
	l->billed = billed->billed;
}

void
rated_set_billed(struct rated *r, const struct rated_line *billed, size_t n, bool *ret_found)
{
	size_t kept = 0;

	memset(ret_found, 0, n * sizeof(*ret_found));
	for (size_t i = 0; i < r->count; i++) {
		const struct rated_line *b =
			n > 0 ? bsearch(r->lines[i].line_id, billed, n, sizeof(*billed), by_line_id) : NULL;

		if (b == NULL) { /* 2 */
			rated_line_fini(&r->lines[i]);
			continue;
		}
		set_billed(&r->lines[i], b);
		ret_found[b - billed] = true;
		r->lines[kept++] = r->lines[i];
	}
	r->count = kept;
	rated_amortise(r); /* 3 */
}
