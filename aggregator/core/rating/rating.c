/* aggregator/core/rating/rating.c - from measured unit-nanoseconds to priced lines. The numbers are those of rating.h. */
#include "aggregator/core/rating/rating.h"

#include <stdlib.h>
#include <string.h>

#include "aggregator/core/rating/amortise.h"
#include "aggregator/core/rating/rating_rows.h"
#include "aggregator/core/rating/rating_text.h"
#include "aggregator/core/rating/rounding.h"
#include "common/base/split.h"
#include "common/base/text.h"
#include "common/base/time.h"
#include "common/base/units.h"

#define COST_MAX pow10_i128(RATING_COST_DIGITS + COST_SCALE)

/* ---- rows ---- */

/* Far below what a line holds, and above what anybody would enter. */
#define AMOUNT_MAX pow10_i128(PRICE_SCALE + 15)

static bool
check_adjustment(size_t index, const struct usage_day *d, struct err *err)
{
	if (d->amount == 0 || d->amount > AMOUNT_MAX || d->amount < -AMOUNT_MAX)
		return err_set(err, ERR_INVALID, "row %zu of %s: the amount of %s is 0 or beyond 10^15", index,
		               d->tenant, d->meter_sku);
	if (d->quantity != pow10_i128(QUANTITY_SCALE))
		return err_set(err, ERR_INVALID, "row %zu of %s: the quantity of %s is not 1", index, d->tenant,
		               d->meter_sku);
	return true;
}

static bool
check_day(const struct rating_input *in, size_t index, struct err *err)
{
	const struct usage_day *d = &in->days[index];

	if (d->used_unit_ns < 0 || d->idle_unit_ns < 0 || d->unmeasured_unit_ns < 0)
		return err_set(err, ERR_INVALID, "usage row %zu of %s/%s: used, idle or unmeasured is negative", index,
		               d->tenant, d->workspace);
	if (d->over_unit_ns < 0 || d->unit_ns < 0 || d->quantity < 0)
		return err_set(err, ERR_INVALID, "usage row %zu of %s/%s: an amount is negative", index, d->tenant,
		               d->workspace);
	if (d->energy_mj < 0)
		return err_set(err, ERR_INVALID, "usage row %zu of %s/%s: energy is negative", index, d->tenant,
		               d->workspace);
	if (d->kind == CHARGE_ADJUSTMENT)
		return check_adjustment(index, d, err);
	if (d->kind != CHARGE_METER && (d->instance_units < 1 || d->instance_units > UNITS_PER_GPU))
		return err_set(err, ERR_INVALID,
		               "usage row %zu of %s/%s: instance_units is %" PRId64 ", outside 1 to %" PRId64, index,
		               d->tenant, d->workspace, d->instance_units, UNITS_PER_GPU);
	if (d->price_book < -1 || d->price_book >= (int64_t)in->book_count)
		return err_set(err, ERR_INVALID, "usage row %zu of %s/%s: price_book is %" PRId64 ", there are %zu",
		               index, d->tenant, d->workspace, d->price_book, in->book_count);
	return true;
}

int
rating_compare_rows(const void *a, const void *b)
{
	const struct row *x = a, *y = b;
	int order = ORDER(x->kind->line, y->kind->line);

	if (order == 0)
		order = ORDER(x->day->day, y->day->day);
	if (order == 0)
		order = ORDER(x->day->reservation, y->day->reservation);
	/* a version that comes back within a day is two books, and each has a commitment and its parts */
	return order || x->day->reservation == 0 ? order : ORDER(x->day->price_book, y->day->price_book);
}

static bool
energy_has_a_price(const struct rating_input *in)
{
	for (size_t i = 0; i < in->book_count; i++)
		if (in->books[i].site_count > 0)
			return true;
	return false;
}

/* Rule 10: a row of energy for every row that has some, where it has a price. */
static size_t
add_energy_rows(const struct rating_input *in, struct row_kinds *kinds, struct usage_day *energy, struct row *out)
{
	size_t n = 0;

	for (size_t i = 0; i < in->day_count; i++) {
		const struct usage_day *d = &in->days[i];
		struct usage_day e = {.day = d->day,
		                      .kind = CHARGE_ENERGY,
		                      .cluster = d->cluster,
		                      .tenant = d->tenant,
		                      .cost_center = d->cost_center,
		                      .workspace = d->workspace,
		                      .gpu_model = "",
		                      .mig_profile = "",
		                      .sharing_mode = "",
		                      .klass = "",
		                      .instance_units = UNITS_PER_GPU,
		                      .price_book = d->price_book,
		                      .energy_mj = d->energy_mj,
		                      .provisional = d->provisional};

		if (d->energy_mj == 0 || d->kind == CHARGE_LENT || d->price_book < 0 ||
		    in->books[d->price_book].site_count == 0 ||
		    rating_price_of(&in->books[d->price_book], &e).item == NULL)
			continue;
		energy[n] = e;
		out[n] = (struct row){.day = &energy[n], .kind = row_kind_of(kinds, in, &energy[n])};
		n++;
	}
	return n;
}

/* Rows in which nothing happened are left out: they would make lines of nothing. */
static bool
something_happened(const struct usage_day *d)
{
	return d->used_unit_ns > 0 || d->idle_unit_ns > 0 || d->unmeasured_unit_ns > 0 || d->energy_mj > 0 ||
	       d->unit_ns > 0 || d->quantity > 0;
}

/* The commitments of a month by number, day and book, to find that of a part. */
struct commitments {
	const struct usage_day **at;
	size_t count;
};

static void
commitments_fini(struct commitments *c)
{
	mem_free(c->at);
}

static int
compare_commitments(const void *a, const void *b)
{
	const struct usage_day *x = *(const struct usage_day *const *)a, *y = *(const struct usage_day *const *)b;
	int order = ORDER(x->reservation, y->reservation);

	if (order == 0)
		order = ORDER(x->day, y->day);
	return order ? order : ORDER(x->price_book, y->price_book);
}

/* A row that is to know what was reserved. */
static bool
is_part(const struct usage_day *d)
{
	return d->kind == CHARGE_LENT || d->kind == CHARGE_COVERED || d->kind == CHARGE_UNUSED;
}

/* How many parts there are. */
static size_t
find_commitments(const struct rating_input *in, struct commitments *c)
{
	size_t parts = 0;

	for (size_t i = 0; i < in->day_count; i++) {
		parts += is_part(&in->days[i]);
		c->count += in->days[i].kind == CHARGE_COMMITMENT;
	}
	if (parts == 0 || c->count == 0) {
		c->count = 0;
		return parts;
	}
	c->at = mem_array(c->count, sizeof(*c->at));
	c->count = 0;
	for (size_t i = 0; i < in->day_count; i++)
		if (in->days[i].kind == CHARGE_COMMITMENT)
			c->at[c->count++] = &in->days[i];
	qsort(c->at, c->count, sizeof(*c->at), compare_commitments);
	return parts;
}

/* Rules 8 and 9: a part with the kind that its commitment is of. */
static struct usage_day
with_commitment(const struct commitments *c, const struct usage_day *d)
{
	const struct usage_day *const *found =
		c->count > 0 ? bsearch(&d, c->at, c->count, sizeof(*c->at), compare_commitments) : NULL;
	struct usage_day out = *d;

	out.reserved_profile = found != NULL && d->reservation > 0 ? (*found)->mig_profile : NULL;
	out.reserved_units = found != NULL && d->reservation > 0 ? (*found)->instance_units : 0;
	return out;
}

static bool
resolve_rows(const struct rating_input *in, struct row_kinds *kinds, struct usage_day *energy, struct usage_day **parts,
             struct row **ret, size_t *ret_count, struct err *err)
{
	owned(mem) struct row *rows = mem_array(in->day_count * 2, sizeof(*rows));
	in_place(commitments) struct commitments commitments = {0};
	struct usage_day *next = *parts = mem_array(find_commitments(in, &commitments), sizeof(**parts));
	size_t n = 0;

	for (size_t i = 0; i < in->day_count; i++) {
		const struct usage_day *d = &in->days[i];

		if (!check_day(in, i, err))
			return false;
		if (is_part(d)) {
			*next = with_commitment(&commitments, d);
			d = next++;
		}
		if (something_happened(d))
			rows[n++] = (struct row){.day = d, .kind = row_kind_of(kinds, in, d)};
	}
	n += add_energy_rows(in, kinds, energy, rows + n);
	row_kinds_number(kinds);
	qsort(rows, n, sizeof(*rows), rating_compare_rows);
	*ret = take(rows);
	*ret_count = n;
	return true;
}

/* ---- lines ---- */

static bool
within(int128 cost)
{
	return cost <= COST_MAX && cost >= -COST_MAX;
}

/* In parts, because the product with a ratio would leave 128 bits; the first is even, so that half to even is of the whole. */
static int128
ratio_of(int128 cost, int64_t ratio)
{
	return cost / (2 * RATIO_ONE) * 2 * ratio + div_round_half_even(cost % (2 * RATIO_ONE) * ratio, RATIO_ONE);
}

/* What the tenant pays for a part of a reservation; of a commitment that cannot be rated (13) nothing. */
static int128
reserved_cost(const struct cell *c)
{
	const struct rating_price *p = &c->row->kind->price;
	int128 cost;

	if (__builtin_mul_overflow(rating_reserved_quantity(c), p->reserved_price, &cost) || !within(cost))
		return 0;
	return cost - ratio_of(cost, p->reserved_ratio);
}

/* Lent time is on the borrower's line, and the energy of a line of energy is its quantity. */
static bool
add_cell(struct rated_day *d, const struct cell *c)
{
	const struct rating_price *p = &c->row->kind->price;
	enum charge_kind kind = c->row->day->kind;

	d->day = c->row->day->day;
	if (c->origin_unit_ns > 0) {
		d->origin_ngh = div_round_half_even(c->origin_unit_ns, UNITS_PER_GPU * (NS_PER_HOUR / NS_PER_S));
		d->origin_ratio = (int64_t)div_round_half_even(c->origin_share, c->origin_unit_ns);
	}
	if (!ADD(d->ngh, c->ngh) || !ADD(d->quantity, rating_quantity(c, &p->unit)) ||
	    !ADD(d->own_quantity, rating_quantity(c, &p->own)) ||
	    !ADD(d->on_demand_quantity, rating_on_demand_quantity(c)) || !ADD(d->reserved_cost, reserved_cost(c)))
		return false;
	if (kind == CHARGE_USAGE || kind == CHARGE_COVERED)
		if (!ADD(d->used_ngh, c->state_ngh[USED]) || !ADD(d->idle_ngh, c->state_ngh[IDLE]) ||
		    !ADD(d->unmeasured_ngh, c->state_ngh[UNMEASURED]))
			return false;
	return kind == CHARGE_LENT || kind == CHARGE_ENERGY || ADD(d->energy_mj, c->energy_mj);
}

/* Rule 5, and what is taken off. false: rule 13. */
static bool
cost_day(const struct rating_price *p, struct rated_day *d)
{
	int128 own;

	if (__builtin_mul_overflow(d->quantity, p->unit_price, &d->list_cost) || !within(d->list_cost) ||
	    __builtin_mul_overflow(d->own_quantity, p->own_price, &own) || !within(own))
		return false;
	d->discount = d->list_cost - own + ratio_of(own, p->discount_ratio);
	return true;
}

static bool
add_day(struct rated_line *l, const struct rated_day *d)
{
	return ADD(l->ngh, d->ngh) && ADD(l->quantity, d->quantity) &&
	       (!l->own_differs || ADD(l->own_quantity, d->own_quantity)) && ADD(l->used_ngh, d->used_ngh) &&
	       ADD(l->idle_ngh, d->idle_ngh) && ADD(l->unmeasured_ngh, d->unmeasured_ngh) &&
	       ADD(l->energy_mj, d->energy_mj);
}

/* Rule 13. */
static void
leave_unrated(struct rated_line *l)
{
	char *named = mem_printf("%s (not rated: the cost is beyond 10^%d %s)", l->description, RATING_COST_DIGITS,
	                         l->currency);

	mem_free(l->description);
	l->description = named;
	l->unrated = true;
	l->priced = false;
	l->unit_price = l->discount_price = l->own_price = 0;
	l->discount_ratio = 0;
	l->list_cost = l->discount = 0;
	for (size_t i = 0; i < l->day_count; i++)
		l->days[i].list_cost = l->days[i].discount = 0;
}

/* The cells of a line are sorted by day; those of several reservations may be of one. */
static bool
fill_days(const struct cell *cells, size_t n, struct rated_line *l, struct err *err)
{
	const struct row *r = cells->row;
	const struct rating_price *price = &r->kind->price;
	bool fits = true;

	l->days = mem_array(n, sizeof(*l->days));
	for (size_t i = 0; i < n; i++) {
		if (i == 0 || cells[i].row->day->day != cells[i - 1].row->day->day)
			l->day_count++;
		if (!add_cell(&l->days[l->day_count - 1], &cells[i]))
			return rating_too_much(r, err);
	}
	for (size_t i = 0; i < l->day_count; i++) {
		if (!add_day(l, &l->days[i]))
			return rating_too_much(r, err);
		fits = fits && cost_day(price, &l->days[i]) && ADD(l->list_cost, l->days[i].list_cost) &&
		       ADD(l->discount, l->days[i].discount);
	}
	if (!fits || !within(l->list_cost) || !within(l->list_cost - l->discount))
		leave_unrated(l);
	else if (l->own_differs)
		rating_describe_own(l);
	if (l->kind == CHARGE_USAGE || l->kind == CHARGE_COVERED)
		l->allocated_ngh = l->ngh;
	return true;
}

/* Rule 9: what one workspace borrowed on one day. */
struct loan {
	const char *borrower;
	int32_t day;
	int128 unit_ns; /* of what it paid for */
};

static int
compare_loans(const void *a, const void *b)
{
	const struct loan *x = a, *y = b;
	int order = strcmp(x->borrower, y->borrower);

	return order ? order : ORDER(x->day, y->day);
}

/* Rule 9: the cents of a line of lent time, not negative. The rows are one stretch and have one price. */
static int128
loan_cents(const struct row *rows, const struct row *end, int currency_scale)
{
	const struct rating_price *p = &rows->kind->price;
	const int64_t seconds = NS_PER_HOUR / NS_PER_S;
	const size_t n = (size_t)(end - rows);
	owned(mem) struct loan *loans = mem_array(n, sizeof(*loans));
	int128 cents = 0;

	for (size_t i = 0; i < n; i++) {
		const struct usage_day *d = rows[i].day;

		loans[i] = (struct loan){.borrower = d->borrower ? d->borrower : "", .day = d->day};
		loans[i].unit_ns =
			d->used_unit_ns + d->unmeasured_unit_ns + (p->paid_used ? d->over_unit_ns : d->idle_unit_ns);
	}
	qsort(loans, n, sizeof(*loans), compare_loans);
	for (size_t i = 0, end_of; i < n; i = end_of) {
		int128 quantity = 0, unit_ns = 0;

		for (end_of = i; end_of < n && strcmp(loans[end_of].borrower, loans[i].borrower) == 0; end_of++) {
			unit_ns += loans[end_of].unit_ns;
			if (end_of + 1 < n && compare_loans(&loans[end_of], &loans[end_of + 1]) == 0)
				continue;
			quantity += unit_ns / (p->paid_units * seconds);
			unit_ns = 0;
		}
		/* the line's cost was found to fit, and that of no borrower is larger */
		cents += quantity * p->paid_credit / pow10_i128(COST_SCALE - currency_scale);
	}
	return cents;
}

/* Of the rows of a tenant, which are neighbours: the cost centre of the first day. Lines of this one have the same id whether the tenant has
 * others later in the month or not. Ties: the first in byte order. */
static const char *
first_cost_center(const struct row *rows, const struct row *end)
{
	const struct usage_day *first = rows->day;

	for (const struct row *r = rows + 1; r < end && strcmp(r->day->tenant, first->tenant) == 0; r++)
		if (r->day->day < first->day ||
		    (r->day->day == first->day && strcmp(r->day->cost_center, first->cost_center) < 0))
			first = r->day;
	return first->cost_center;
}

static bool
any_provisional(const struct row *rows, const struct row *end)
{
	for (const struct row *r = rows; r < end; r++)
		if (r->day->provisional)
			return true;
	return false;
}

/* Where an item names the sku, events may have several: the first in byte order. */
static const char *
first_meter_sku(const struct row *rows, const struct row *end)
{
	const char *first = rows->day->meter_sku;

	for (const struct row *r = rows + 1; first != NULL && r < end; r++)
		if (strcmp(r->day->meter_sku, first) < 0)
			first = r->day->meter_sku;
	return first;
}

static bool
fill_line(const struct rating_input *in, const struct cell *cells, size_t n, const struct row *end,
          const char *first_center, struct rated_line *l, struct err *err)
{
	const struct row_kind *k = cells->row->kind;
	const struct usage_day *d = cells->row->day;

	l->kind = d->kind;
	l->cluster = d->cluster;
	l->tenant = d->tenant;
	l->cost_center = d->cost_center;
	l->workspace = d->workspace;
	l->gpu_model = d->gpu_model;
	l->mig_profile = d->mig_profile;
	l->instance_units = d->instance_units;
	l->sharing_mode = d->sharing_mode;
	l->klass = rating_class(d);
	l->counterparty = d->counterparty ? d->counterparty : "";
	l->charge_type = rating_charge_type(d);
	l->meter = d->meter;
	l->meter_sku = first_meter_sku(cells->row, end);
	l->category = d->category != NULL ? d->category : d->kind == CHARGE_ENERGY ? "energy" : "gpu";
	l->unit = k->price.unit;
	l->price_version = k->price_version;
	l->currency = k->currency;
	if (d->kind == CHARGE_LENT && !k->priced && d->price_book >= 0) {
		l->commitment_version = in->books[d->price_book].version;
		l->commitment_profile = k->price.reserved_per_instance ? d->reserved_profile : "";
	}
	l->priced = k->priced;
	l->provisional = any_provisional(cells->row, end);
	l->unit_price = k->price.unit_price;
	l->discount_ratio = k->price.discount_ratio;
	l->own_differs = rating_units_differ(&k->price.unit, &k->price.own);
	if (!l->own_differs) {
		l->discount_price = k->price.unit_price - k->price.own_price;
	} else {
		l->own_unit = k->price.own;
		l->own_price = k->price.own_price;
	}
	l->invoice_id = mem_printf("%s-%s-%" PRId32, d->tenant, in->period, in->invoice_version);
	l->sku = k->sku[0] != '\0'         ? mem_strdup(k->sku)
	         : d->kind == CHARGE_METER ? mem_strdup(d->meter_sku)
	                                   : rating_sku(d->gpu_model, d->mig_profile);
	l->description = rating_description(l, d);
	if (!currency_exponent(l->currency, &l->currency_scale, err) ||
	    !rating_line_id(in->period, d, k->price.unit.per_instance, strcmp(l->cost_center, first_center) != 0, l,
	                    err) ||
	    !fill_days(cells, n, l, err))
		return false;
	if (d->kind == CHARGE_LENT && l->priced)
		l->billed = -loan_cents(cells->row, end, l->currency_scale);
	return true;
}

static size_t
run_length(const struct cell *cells, size_t n)
{
	size_t end = 1;

	while (end < n && cells[0].row->kind->line == cells[end].row->kind->line)
		end++;
	return end;
}

static bool
make_lines(const struct rating_input *in, const struct row *rows, size_t row_count, struct rated *r, struct err *err)
{
	owned(mem) struct cell *cells = mem_array(row_count, sizeof(*cells));
	const char *tenant = "", *first_center = "";
	size_t n = 0, count = 0;

	if (!rating_cells(rows, row_count, cells, &n, err))
		return false;
	for (size_t i = 0; i < n; i += run_length(cells + i, n - i))
		count++;
	r->lines = mem_array(count, sizeof(*r->lines));
	for (size_t i = 0, len; i < n; i += len) {
		struct rated_line *l = &r->lines[r->count++];

		len = run_length(cells + i, n - i);
		if (i == 0 || strcmp(tenant, cells[i].row->day->tenant) != 0) {
			tenant = cells[i].row->day->tenant;
			first_center = first_cost_center(cells[i].row, rows + row_count);
		}
		if (!fill_line(in, cells + i, len, i + len < n ? cells[i + len].row : rows + row_count, first_center, l,
		               err))
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

	return compare_texts(xt, yt, ARRAY_LEN(xt));
}

static int
compare_for_cents(const void *a, const void *b)
{
	const struct rated_line *x = *(struct rated_line *const *)a, *y = *(struct rated_line *const *)b;
	const char *const xt[] = {x->tenant, x->currency, x->line_id}, *const yt[] = {y->tenant, y->currency,
	                                                                              y->line_id};

	return compare_texts(xt, yt, ARRAY_LEN(xt));
}

/* The line's cents to its days. Those of a loan are not its cost rounded: they go by what each day has of it. */
static void
round_days(struct rated_line *l, int128 minor_unit)
{
	owned(mem) int128 *net = mem_array(l->day_count, sizeof(*net));
	owned(mem) int128 *billed = mem_array(l->day_count, sizeof(*billed));

	for (size_t i = 0; i < l->day_count; i++)
		net[i] = l->days[i].list_cost - l->days[i].discount;
	if (l->kind != CHARGE_LENT) {
		round_to_sum(net, l->day_count, minor_unit, l->billed, billed);
	} else if (l->billed != 0) {
		for (size_t i = 0; i < l->day_count; i++)
			net[i] = -net[i];
		/* a price that is cut to nothing for the commitment's unit may be some cents for the borrower's */
		if (!split_largest_remainder(l->billed, net, l->day_count, billed))
			billed[0] = l->billed;
	}
	for (size_t i = 0; i < l->day_count; i++)
		l->days[i].billed = billed[i];
}

static int128
size_of(const struct rated_line *l)
{
	int128 list = l->list_cost < 0 ? -l->list_cost : l->list_cost, net = l->list_cost - l->discount;

	net = net < 0 ? -net : net;
	return list > net ? list : net;
}

static int
compare_sizes(const void *a, const void *b)
{
	const struct rated_line *x = *(struct rated_line *const *)a, *y = *(struct rated_line *const *)b;
	int order = ORDER(size_of(x), size_of(y));

	return order ? order : strcmp(x->line_id, y->line_id);
}

/* Rule 13: as many of an invoice's lines as its total can hold, the smaller ones first. */
static void
fit_invoice(struct rated_line *const *lines, size_t n)
{
	owned(mem) struct rated_line **by_size = NULL;
	int128 sum = 0;
	size_t i;

	for (i = 0; i < n && sum <= COST_MAX; i++)
		sum += size_of(lines[i]);
	if (sum <= COST_MAX)
		return;
	by_size = mem_array(n, sizeof(*by_size));
	memcpy(by_size, lines, n * sizeof(*by_size));
	qsort(by_size, n, sizeof(*by_size), compare_sizes);
	for (i = 0, sum = 0; i < n && sum + size_of(by_size[i]) <= COST_MAX; i++)
		sum += size_of(by_size[i]);
	for (; i < n; i++)
		leave_unrated(by_size[i]);
}

/* Lines of one tenant in one currency, by line_id. */
static void
round_invoice(struct rated_line *const *lines, size_t n)
{
	owned(mem) int128 *net = mem_array(n, sizeof(*net));
	owned(mem) int128 *billed = mem_array(n, sizeof(*billed));
	int128 minor_unit = pow10_i128(COST_SCALE - lines[0]->currency_scale), total;

	fit_invoice(lines, n);
	for (size_t i = 0; i < n; i++)
		net[i] = lines[i]->kind == CHARGE_LENT ? 0 : lines[i]->list_cost - lines[i]->discount;
	ASSERT(round_together(net, n, minor_unit, billed, &total));
	for (size_t i = 0; i < n; i++) {
		struct rated_line *l = lines[i];

		l->billed = l->kind == CHARGE_LENT && l->priced ? l->billed : billed[i];
		l->rounding = l->billed * minor_unit - (l->list_cost - l->discount);
		round_days(l, minor_unit);
	}
}

static void
round_invoices(struct rated *r)
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
		round_invoice(lines + i, end - i);
	}
}

bool
rating_run(const struct rating_input *in, struct rated **ret, struct err *err)
{
	owned(rated) struct rated *r = mem_alloc(sizeof(*r));
	owned(mem) struct usage_day *energy = mem_array(energy_has_a_price(in) ? in->day_count : 0, sizeof(*energy));
	in_place(row_kinds) struct row_kinds kinds = {0};
	owned(mem) struct usage_day *parts = NULL;
	owned(mem) struct row *rows = NULL;
	size_t row_count;

	if (!resolve_rows(in, &kinds, energy, &parts, &rows, &row_count, err) ||
	    !make_lines(in, rows, row_count, r, err))
		return false;
	qsort(r->lines, r->count, sizeof(*r->lines), compare_lines);
	round_invoices(r);
	rated_amortise(r);
	*ret = take(r);
	return true;
}

const struct rated_day *
rated_line_days(const struct rated_line *l, size_t *ret_count)
{
	*ret_count = l->parts != NULL ? l->part_count : l->day_count;
	return l->parts != NULL ? l->parts : l->days;
}

void
rated_line_fini(struct rated_line *l)
{
	mem_free(l->invoice_id);
	mem_free(l->sku);
	mem_free(l->description);
	mem_free(l->days);
}

void
rated_free(struct rated *r)
{
	if (r == NULL)
		return;
	for (size_t i = 0; i < r->count; i++)
		rated_line_fini(&r->lines[i]);
	mem_free(r->lines);
	mem_free(r);
}
