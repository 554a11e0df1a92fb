/* aggregator/core/rating.c - from measured unit-nanoseconds to priced lines. The numbers are those of rating.h. */
#include "aggregator/core/rating.h"

#include <stdlib.h>
#include <string.h>

#include "aggregator/core/rating_text.h"
#include "aggregator/core/rounding.h"
#include "common/time.h"
#include "common/units.h"

/* A quantity of hours has nine decimals, so the nanoseconds of an hour cancel down to its seconds. */
#define SECONDS_PER_HOUR (NS_PER_HOUR / NS_PER_S)
_Static_assert(QUANTITY_SCALE == 9, "the divisors below turn nanoseconds into billionths of an hour");

/* Far above any bill, and far enough below 2^127 that rounding up cannot leave it. */
#define COST_MAX (pow10_i128(COST_SCALE) * pow10_i128(COST_SCALE))

/* A row of the input with what its price decides about the line it belongs to. */
struct row {
	const struct usage_day *day;
	const char *sku; /* "" : derived */
	const char *price_version;
	const char *currency;
	int128 price;
	bool priced;
	bool per_instance; /* 4 */
};

/* ---- rule 3: the price ---- */

static bool
accepts(const char *wanted, const char *value)
{
	return wanted == NULL || strcmp(wanted, value) == 0;
}

static int
specificity(const struct rating_item *i)
{
	return (i->gpu_model ? 8 : 0) + (i->mig_profile ? 4 : 0) + (i->sharing_mode ? 2 : 0) + (i->klass ? 1 : 0);
}

const struct rating_item *
rating_pick(const struct rating_book *book, const char *gpu_model, const char *mig_profile, const char *sharing_mode,
            const char *klass)
{
	const struct rating_item *best = NULL;

	for (size_t i = 0; i < book->item_count; i++) {
		const struct rating_item *it = &book->items[i];

		if (accepts(it->gpu_model, gpu_model) && accepts(it->mig_profile, mig_profile) &&
		    accepts(it->sharing_mode, sharing_mode) && accepts(it->klass, klass) &&
		    (best == NULL || specificity(it) > specificity(best)))
			best = it;
	}
	return best;
}

static bool
check_day(const struct rating_input *in, size_t index, struct err *err)
{
	const struct usage_day *d = &in->days[index];

	if (d->used_unit_ns < 0 || d->idle_unit_ns < 0 || d->unmeasured_unit_ns < 0)
		return err_set(err, ERR_INVALID, "usage row %zu of %s/%s: used, idle or unmeasured is negative", index,
		               d->tenant, d->workspace);
	if (d->energy_mj < 0)
		return err_set(err, ERR_INVALID, "usage row %zu of %s/%s: energy is negative", index, d->tenant,
		               d->workspace);
	if (d->instance_units < 1 || d->instance_units > UNITS_PER_GPU)
		return err_set(err, ERR_INVALID,
		               "usage row %zu of %s/%s: instance_units is %" PRId64 ", outside 1 to %" PRId64, index,
		               d->tenant, d->workspace, d->instance_units, UNITS_PER_GPU);
	if (d->price_book < -1 || d->price_book >= (int64_t)in->book_count)
		return err_set(err, ERR_INVALID, "usage row %zu of %s/%s: price_book is %" PRId64 ", there are %zu",
		               index, d->tenant, d->workspace, d->price_book, in->book_count);
	return true;
}

static struct row
price_day(const struct rating_input *in, const struct usage_day *d)
{
	const struct rating_book *book = d->price_book < 0 ? NULL : &in->books[d->price_book];
	const struct rating_item *item =
		book ? rating_pick(book, d->gpu_model, d->mig_profile, d->sharing_mode, d->klass) : NULL;

	if (item == NULL) /* 7 */
		return (struct row){.day = d, .sku = "", .price_version = "", .currency = in->currency};
	return (struct row){.day = d,
	                    .sku = item->sku,
	                    .price_version = book->version,
	                    .currency = book->currency,
	                    .price = item->price,
	                    .priced = true,
	                    .per_instance = item->mig_profile != NULL};
}

/* ---- rule 1: which rows are one line ---- */

#define ORDER(a, b) (((a) > (b)) - ((a) < (b)))

static int
compare_text(const char *const *a, const char *const *b, size_t n)
{
	int order = 0;

	for (size_t i = 0; i < n && order == 0; i++)
		order = strcmp(a[i], b[i]);
	return order;
}

static int
compare_keys(const struct row *x, const struct row *y)
{
	const struct usage_day *a = x->day, *b = y->day;
	const char *const at[] = {a->tenant,      a->workspace,    a->cluster, x->sku,      a->gpu_model,
	                          a->mig_profile, a->sharing_mode, a->klass,   x->currency, x->price_version};
	const char *const bt[] = {b->tenant,      b->workspace,    b->cluster, y->sku,      b->gpu_model,
	                          b->mig_profile, b->sharing_mode, b->klass,   y->currency, y->price_version};
	int order = compare_text(at, bt, ARRAY_LEN(at));

	if (order == 0)
		order = ORDER(x->priced, y->priced);
	if (order == 0)
		order = ORDER(x->price, y->price);
	if (order == 0)
		order = ORDER(x->per_instance, y->per_instance);
	return order ? order : ORDER(a->instance_units, b->instance_units);
}

static int
compare_rows(const void *a, const void *b)
{
	const struct row *x = a, *y = b;
	int order = compare_keys(x, y);

	return order ? order : ORDER(x->day->day, y->day->day);
}

/* Rows in which nothing happened are left out: they would make lines of nothing. */
static bool
resolve_rows(const struct rating_input *in, struct row **ret, size_t *ret_count, struct err *err)
{
	owned(mem) struct row *rows = mem_array(in->day_count, sizeof(*rows));
	size_t n = 0;

	for (size_t i = 0; i < in->day_count; i++) {
		const struct usage_day *d = &in->days[i];

		if (!check_day(in, i, err))
			return false;
		if (d->used_unit_ns > 0 || d->idle_unit_ns > 0 || d->unmeasured_unit_ns > 0 || d->energy_mj > 0)
			rows[n++] = price_day(in, d);
	}
	qsort(rows, n, sizeof(*rows), compare_rows);
	*ret = take(rows);
	*ret_count = n;
	return true;
}

/* ---- rules 2, 4, 5: amounts ---- */

enum { USED, IDLE, UNMEASURED, STATE_COUNT };

/* The sums of rows; false when they leave 128 bits. */
static bool
sum_rows(const struct row *rows, size_t n, int128 ret_unit_ns[STATE_COUNT], int128 *energy_mj)
{
	bool fits = true;

	memset(ret_unit_ns, 0, STATE_COUNT * sizeof(*ret_unit_ns));
	for (size_t i = 0; i < n && fits; i++) {
		const struct usage_day *d = rows[i].day;

		fits = !__builtin_add_overflow(ret_unit_ns[USED], d->used_unit_ns, &ret_unit_ns[USED]) &&
		       !__builtin_add_overflow(ret_unit_ns[IDLE], d->idle_unit_ns, &ret_unit_ns[IDLE]) &&
		       !__builtin_add_overflow(ret_unit_ns[UNMEASURED], d->unmeasured_unit_ns,
		                               &ret_unit_ns[UNMEASURED]) &&
		       !__builtin_add_overflow(*energy_mj, d->energy_mj, energy_mj);
	}
	return fits;
}

/* Adds one day, given as all its rows. */
static bool
add_day(struct rated_line *l, const struct row *rows, size_t n)
{
	int128 unit_ns[STATE_COUNT], ngh[STATE_COUNT], allocated_ngh, quantity;

	if (!sum_rows(rows, n, unit_ns, &l->energy_mj) ||
	    !round_together(unit_ns, STATE_COUNT, UNITS_PER_GPU * SECONDS_PER_HOUR, ngh, &allocated_ngh))
		return false;
	quantity = allocated_ngh;
	if (rows->per_instance)
		quantity = div_round_half_even(unit_ns[USED] + unit_ns[IDLE] + unit_ns[UNMEASURED],
		                               rows->day->instance_units * SECONDS_PER_HOUR);
	return !__builtin_add_overflow(l->used_ngh, ngh[USED], &l->used_ngh) &&
	       !__builtin_add_overflow(l->idle_ngh, ngh[IDLE], &l->idle_ngh) &&
	       !__builtin_add_overflow(l->unmeasured_ngh, ngh[UNMEASURED], &l->unmeasured_ngh) &&
	       !__builtin_add_overflow(l->allocated_ngh, allocated_ngh, &l->allocated_ngh) &&
	       !__builtin_add_overflow(l->quantity, quantity, &l->quantity);
}

static bool
add_days(struct rated_line *l, const struct row *rows, size_t n, struct err *err)
{
	for (size_t i = 0, end; i < n; i = end) {
		for (end = i + 1; end < n && rows[end].day->day == rows[i].day->day; end++)
			;
		if (!add_day(l, rows + i, end - i))
			return err_set(err, ERR_INVALID,
			               "%s/%s: the hours or the energy of %s are beyond what a line holds", l->tenant,
			               l->workspace, l->gpu_model);
	}
	return true;
}

/* The cost centre is no part of the key: if rows differ, the first in byte order stands on the line, whatever
 * their order. */
static const char *
first_cost_center(const struct row *rows, size_t n)
{
	const char *first = rows->day->cost_center;

	for (size_t i = 1; i < n; i++)
		if (strcmp(rows[i].day->cost_center, first) < 0)
			first = rows[i].day->cost_center;
	return first;
}

static bool
fill_line(const struct rating_input *in, const struct row *rows, size_t n, struct rated_line *l, struct err *err)
{
	const struct usage_day *d = rows->day;

	l->cluster = d->cluster;
	l->tenant = d->tenant;
	l->cost_center = first_cost_center(rows, n);
	l->workspace = d->workspace;
	l->gpu_model = d->gpu_model;
	l->mig_profile = d->mig_profile;
	l->sharing_mode = d->sharing_mode;
	l->klass = d->klass;
	l->charge_type = "usage";
	l->category = "gpu";
	l->unit = rows->per_instance ? "instance-hour" : "gpu-hour";
	l->price_version = rows->price_version;
	l->currency = rows->currency;
	l->priced = rows->priced;
	l->unit_price = rows->price;
	l->invoice_id = mem_printf("%s-%s-%" PRId32, d->tenant, in->period, in->invoice_version);
	l->sku = rows->sku[0] != '\0' ? mem_strdup(rows->sku) : rating_sku(d->gpu_model, d->mig_profile);
	l->description = rating_description(l);
	if (!currency_exponent(l->currency, &l->currency_scale, err) || !add_days(l, rows, n, err) ||
	    !rating_line_id(in->period, d->instance_units, l, err))
		return false;
	if (__builtin_mul_overflow((int128)l->quantity, l->unit_price, &l->list_cost) ||
	    l->list_cost > COST_MAX) /* 5 */
		return err_set(err, ERR_INVALID, "%s/%s: the cost of %s is beyond what a line holds", l->tenant,
		               l->workspace, l->sku);
	return true;
}

static size_t
run_length(const struct row *rows, size_t n)
{
	size_t end = 1;

	while (end < n && compare_keys(&rows[0], &rows[end]) == 0)
		end++;
	return end;
}

static bool
make_lines(const struct rating_input *in, const struct row *rows, size_t n, struct rated *r, struct err *err)
{
	size_t count = 0;

	for (size_t i = 0; i < n; i += run_length(rows + i, n - i))
		count++;
	r->lines = mem_array(count, sizeof(*r->lines));
	for (size_t i = 0, len; i < n; i += len) {
		struct rated_line *l = &r->lines[r->count++];

		len = run_length(rows + i, n - i);
		if (!fill_line(in, rows + i, len, l, err))
			return false;
	}
	return true;
}

/* ---- rule 6: invoices ---- */

static int
compare_lines(const void *a, const void *b)
{
	const struct rated_line *x = a, *y = b;
	const char *const xt[] = {x->tenant,        x->workspace, x->sku,          x->klass,
	                          x->price_version, x->cluster,   x->sharing_mode, x->line_id};
	const char *const yt[] = {y->tenant,        y->workspace, y->sku,          y->klass,
	                          y->price_version, y->cluster,   y->sharing_mode, y->line_id};

	return compare_text(xt, yt, ARRAY_LEN(xt));
}

static int
compare_for_cents(const void *a, const void *b)
{
	const struct rated_line *x = *(struct rated_line *const *)a, *y = *(struct rated_line *const *)b;
	const char *const xt[] = {x->tenant, x->currency, x->line_id}, *const yt[] = {y->tenant, y->currency,
	                                                                              y->line_id};

	return compare_text(xt, yt, ARRAY_LEN(xt));
}

/* Lines of one tenant in one currency, by line_id. */
static bool
round_invoice(struct rated_line *const *lines, size_t n, struct err *err)
{
	owned(mem) int128 *net = mem_array(n, sizeof(*net));
	owned(mem) int128 *billed = mem_array(n, sizeof(*billed));
	int128 minor_unit = pow10_i128(COST_SCALE - lines[0]->currency_scale), total;

	for (size_t i = 0; i < n; i++)
		net[i] = lines[i]->list_cost - lines[i]->discount;
	if (!round_together(net, n, minor_unit, billed, &total))
		return err_set(err, ERR_INVALID, "%s: the total cost of the month is beyond what an invoice holds",
		               lines[0]->tenant);
	for (size_t i = 0; i < n; i++) {
		lines[i]->billed = billed[i];
		lines[i]->rounding = billed[i] * minor_unit - net[i];
	}
	return true;
}

static bool
round_invoices(struct rated *r, struct err *err)
{
	owned(mem) struct rated_line **lines = mem_array(r->count, sizeof(*lines));

	for (size_t i = 0; i < r->count; i++)
		lines[i] = &r->lines[i];
	qsort(lines, r->count, sizeof(*lines), compare_for_cents);
	for (size_t i = 0, end; i < r->count; i = end) {
		for (end = i + 1; end < r->count && strcmp(lines[end]->tenant, lines[i]->tenant) == 0 &&
		                  strcmp(lines[end]->currency, lines[i]->currency) == 0;
		     end++)
			;
		if (!round_invoice(lines + i, end - i, err))
			return false;
	}
	return true;
}

bool
rating_run(const struct rating_input *in, struct rated **ret, struct err *err)
{
	owned(rated) struct rated *r = mem_alloc(sizeof(*r));
	owned(mem) struct row *rows = NULL;
	size_t row_count;

	if (!resolve_rows(in, &rows, &row_count, err) || !make_lines(in, rows, row_count, r, err))
		return false;
	qsort(r->lines, r->count, sizeof(*r->lines), compare_lines);
	if (!round_invoices(r, err))
		return false;
	*ret = take(r);
	return true;
}

void
rated_free(struct rated *r)
{
	if (r == NULL)
		return;
	for (size_t i = 0; i < r->count; i++) {
		mem_free(r->lines[i].invoice_id);
		mem_free(r->lines[i].sku);
		mem_free(r->lines[i].description);
	}
	mem_free(r->lines);
	mem_free(r);
}
