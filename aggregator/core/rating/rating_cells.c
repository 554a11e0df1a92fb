/* aggregator/core/rating/rating_cells.c - the days of a line, quantised once each: rules 2, 4 and 5 of rating.h. */
#include <stdlib.h>

#include "aggregator/core/rating/rating_rows.h"
#include "aggregator/core/rating/rounding.h"
#include "common/base/time.h"
#include "common/base/units.h"

/* A quantity of hours has nine decimals, so the nanoseconds of an hour cancel down to its seconds. */
#define SECONDS_PER_HOUR (NS_PER_HOUR / NS_PER_S)
_Static_assert(QUANTITY_SCALE == 9, "the divisors below turn nanoseconds into billionths of an hour");

static bool
has_states(enum charge_kind kind)
{
	return kind == CHARGE_USAGE || kind == CHARGE_COVERED || kind == CHARGE_LENT;
}

static bool
is_credit(const struct usage_day *d)
{
	return d->kind == CHARGE_UNDELIVERED || d->kind == CHARGE_LENT || d->amount < 0;
}

static bool
add_to_cell(struct cell *c, const struct usage_day *d)
{
	int128 share;

	return !__builtin_mul_overflow(d->origin_unit_ns, (int128)d->origin_ratio, &share) &&
	       ADD(c->origin_unit_ns, d->origin_unit_ns) && ADD(c->origin_share, share) &&
	       ADD(c->unit_ns[USED], d->used_unit_ns) && ADD(c->unit_ns[IDLE], d->idle_unit_ns) &&
	       ADD(c->unit_ns[UNMEASURED], d->unmeasured_unit_ns) && ADD(c->over_unit_ns, d->over_unit_ns) &&
	       ADD(c->energy_mj, d->energy_mj) && ADD(c->meter_quantity, d->quantity) &&
	       ADD(c->total_unit_ns, d->unit_ns) && ADD(c->total_unit_ns, d->used_unit_ns) &&
	       ADD(c->total_unit_ns, d->idle_unit_ns) && ADD(c->total_unit_ns, d->unmeasured_unit_ns);
}

bool
rating_too_much(const struct row *r, struct err *err)
{
	return err_set(err, ERR_INVALID, "%s/%s: the amounts of %s are beyond what a line holds", r->day->tenant,
	               r->day->workspace, r->day->meter ? r->day->meter : r->day->gpu_model);
}

static bool
make_cells(const struct row *rows, size_t n, struct cell *cells, size_t *ret_count, struct err *err)
{
	size_t count = 0;

	for (size_t i = 0; i < n; i++) {
		if (i == 0 || rating_compare_rows(&rows[i - 1], &rows[i]) != 0)
			cells[count++].row = &rows[i];
		if (!add_to_cell(&cells[count - 1], rows[i].day))
			return rating_too_much(&rows[i], err);
	}
	*ret_count = count;
	return true;
}

#define NGH_DIVISOR (UNITS_PER_GPU * SECONDS_PER_HOUR)

static int
compare_reservations(const void *a, const void *b)
{
	const struct cell *x = *(struct cell *const *)a, *y = *(struct cell *const *)b;
	const struct usage_day *p = x->row->day, *q = y->row->day;
	int order = ORDER(p->reservation, q->reservation);

	if (order == 0)
		order = ORDER(p->day, q->day);
	if (order == 0)
		order = ORDER(p->price_book, q->price_book);
	if (order == 0)
		order = ORDER(p->kind != CHARGE_COMMITMENT, q->kind != CHARGE_COMMITMENT);
	return order ? order : row_kind_compare(x->row->kind, y->row->kind);
}

/* The commitment comes first; the others are its parts. */
static bool
round_reservation(struct cell *const *cells, size_t n, struct err *err)
{
	owned(mem) int128 *exact = mem_array(n, sizeof(*exact));
	owned(mem) int128 *ngh = mem_array(n, sizeof(*ngh));
	const struct usage_day *d = cells[0]->row->day;
	const struct rating_price *price = &cells[0]->row->kind->price;
	int128 parts = 0, sum;

	if (d->kind != CHARGE_COMMITMENT || (n > 1 && cells[1]->row->day->kind == CHARGE_COMMITMENT))
		return err_set(err, ERR_INVALID,
		               "%s/%s: reservation %" PRId64 " of day %" PRId32 " is not one commitment", d->tenant,
		               d->workspace, d->reservation, d->day);
	for (size_t i = 1; i < n; i++) {
		exact[i - 1] = cells[i]->total_unit_ns;
		if (!ADD(parts, exact[i - 1]))
			return rating_too_much(cells[i]->row, err);
	}
	if (parts != cells[0]->total_unit_ns)
		return err_set(err, ERR_INVALID,
		               "%s/%s: the parts of reservation %" PRId64 " of day %" PRId32 " do not add up to it",
		               d->tenant, d->workspace, d->reservation, d->day);
	if (!round_together(exact, n - 1, NGH_DIVISOR, ngh, &sum))
		return rating_too_much(cells[0]->row, err);
	cells[0]->ngh = cells[0]->part = sum;
	for (size_t i = 1; i < n; i++)
		cells[i]->ngh = cells[i]->part = ngh[i - 1];
	if (!price->unit.per_instance && !price->own.per_instance)
		return true;
	if (!round_together(exact, n - 1, d->instance_units * SECONDS_PER_HOUR, ngh, &sum))
		return rating_too_much(cells[0]->row, err);
	cells[0]->instance_part = sum;
	for (size_t i = 1; i < n; i++)
		cells[i]->instance_part = ngh[i - 1];
	for (size_t i = 0; i < n && price->unit.per_instance; i++) {
		cells[i]->part = cells[i]->instance_part;
		cells[i]->part_per_instance = true;
	}
	return true;
}

static bool
same_reservation(const struct cell *a, const struct cell *b)
{
	const struct usage_day *p = a->row->day, *q = b->row->day;

	return p->reservation == q->reservation && p->day == q->day && p->price_book == q->price_book;
}

static bool
round_reservations(struct cell *cells, size_t n, struct err *err)
{
	owned(mem) struct cell **parts = mem_array(n, sizeof(*parts));
	size_t count = 0;

	for (size_t i = 0; i < n; i++)
		if (cells[i].row->day->reservation > 0)
			parts[count++] = &cells[i];
	qsort(parts, count, sizeof(*parts), compare_reservations);
	for (size_t i = 0, end; i < count; i = end) {
		for (end = i + 1; end < count && same_reservation(parts[i], parts[end]); end++)
			;
		if (!round_reservation(parts + i, end - i, err))
			return false;
	}
	return true;
}

/* Rule 2. */
static bool
quantise(struct cell *cells, size_t n, struct err *err)
{
	if (!round_reservations(cells, n, err))
		return false;
	for (size_t i = 0; i < n; i++) {
		struct cell *c = &cells[i];

		if (c->row->day->reservation == 0)
			c->ngh = div_round_half_even(c->total_unit_ns, NGH_DIVISOR);
		if (has_states(c->row->day->kind))
			round_to_sum(c->unit_ns, STATE_COUNT, NGH_DIVISOR, c->ngh, c->state_ngh);
	}
	return true;
}

bool
rating_units_differ(const struct rating_unit *a, const struct rating_unit *b)
{
	return a->per_instance != b->per_instance || a->per != b->per || a->basis_used != b->basis_used;
}

static int128
quantity_in(const struct cell *c, const struct rating_unit *unit)
{
	const struct usage_day *d = c->row->day;
	const int64_t instance = d->reserved_units > 0 ? d->reserved_units : d->instance_units;

	if (d->kind == CHARGE_METER || d->kind == CHARGE_ADJUSTMENT)
		return div_round_half_even(c->meter_quantity, unit->per);
	/* mJ to 10^-9 kWh: a kWh is 3.6e9 mJ. In parts, because five times as much might leave 128 bits; the first is even, so that half to even
	 * is of the whole */
	if (d->kind == CHARGE_ENERGY)
		return c->energy_mj / 36 * 10 + div_round_half_even(c->energy_mj % 36 * 5, 18);
	if (unit->basis_used)
		return div_round_half_even(c->unit_ns[USED] + c->unit_ns[UNMEASURED] + c->over_unit_ns,
		                           (unit->per_instance ? instance : UNITS_PER_GPU) * SECONDS_PER_HOUR);
	if (d->reservation > 0 && unit->per_instance == c->part_per_instance)
		return c->part;
	return unit->per_instance ? div_round_half_even(c->total_unit_ns, instance * SECONDS_PER_HOUR) : c->ngh;
}

int128
rating_quantity(const struct cell *c, const struct rating_unit *unit)
{
	const int128 quantity = quantity_in(c, unit);

	return is_credit(c->row->day) ? -quantity : quantity;
}

/* Time that was rounded already, with the other parts or as GPU-hours, is not rounded again. */
int128
rating_on_demand_quantity(const struct cell *c)
{
	const struct usage_day *d = c->row->day;
	const struct rating_price *p = &c->row->kind->price;
	const int64_t units = p->on_demand.per_instance ? d->instance_units : UNITS_PER_GPU;

	if (!p->sold_on_demand)
		return 0;
	if (p->on_demand.basis_used)
		return div_round_half_even(c->unit_ns[USED] + c->unit_ns[UNMEASURED] + c->over_unit_ns,
		                           units * SECONDS_PER_HOUR);
	if (!p->on_demand.per_instance)
		return c->ngh;
	return c->part_per_instance && p->unit.profile == NULL
	               ? c->part
	               : div_round_half_even(c->total_unit_ns, units * SECONDS_PER_HOUR);
}

int128
rating_reserved_quantity(const struct cell *c)
{
	const enum charge_kind kind = c->row->day->kind;

	if (kind != CHARGE_COVERED && kind != CHARGE_UNUSED && kind != CHARGE_LENT && kind != CHARGE_UNDELIVERED)
		return 0;
	return c->row->kind->price.reserved.per_instance ? c->instance_part : c->ngh;
}

bool
rating_cells(const struct row *rows, size_t n, struct cell *cells, size_t *ret_count, struct err *err)
{
	*ret_count = 0;
	return make_cells(rows, n, cells, ret_count, err) && quantise(cells, *ret_count, err);
}
