/* aggregator/core/rating/rating.c - from measured unit-nanoseconds to priced lines, in the order: rows, cells, lines, invoices. The numbers are those of rating.h. */
#include "aggregator/core/rating/rating.h"

#include <stdlib.h>
#include <string.h>

#include "aggregator/core/rating/amortise.h"
#include "aggregator/core/rating/rounding.h"
#include "common/base/apportion.h"
#include "common/base/text.h"
#include "common/base/time.h"
#include "common/base/units.h"

/* The columns shared by all rows of one kind of charge, device, holder and price book: a month has few kinds, and each comes once a day. */
struct row_kind {
	const struct usage_day *day; /* the first of them */
	const char *sku;             /* "" : derived */
	const char *price_version;
	const char *currency;
	struct rating_price price; /* zero without a price */
	bool priced;
	size_t line; /* rows of kinds with the same number are one line */
};

/* A row of the input. */
struct row {
	const struct usage_day *day;
	const struct row_kind *kind;
};

enum { USED, IDLE, UNMEASURED, STATE_COUNT };

/* The rows of one line, day and reservation, which are quantised together. */
struct cell {
	const struct row *row; /* the first of them */
	int128 unit_ns[STATE_COUNT], over_unit_ns, energy_mj, meter_quantity;
	int128 total_unit_ns;                /* GPU time of any kind */
	int128 origin_unit_ns, origin_share; /* of divided idle time: the whole, and 10^9 x this tenant's part */
	int128 ngh, state_ngh[STATE_COUNT];
	/* Of a part of a reservation: in the commitment's unit, rounded together with the other parts; and whether that unit is an instance. */
	int128 part;
	bool part_per_instance;
	/* Of a reservation that is priced per instance, by the list or by the tenant's own item: in instances of the reserved kind, rounded together. */
	int128 instance_part;
};

#define ADD(sum, v) (!__builtin_add_overflow((sum), (v), &(sum)))

/* The kinds that were seen; in_place(row_kinds) struct row_kinds k = {0}; */
struct row_kinds {
	struct row_kind **at;
	size_t count, cap;
	size_t *slots; /* a hash table of positions + 1 */
	size_t slot_count;
};

/* ---- rule 1: kinds of rows, and which kinds are one line ---- */

static void
row_kinds_fini(struct row_kinds *k)
{
	for (size_t i = 0; i < k->count; i++)
		mem_free(k->at[i]);
	mem_free(k->at);
	mem_free(k->slots);
}

/* ---- the same kind ---- */

/* The texts that decide about a price or a line. */
static const size_t texts[] = {
	offsetof(struct usage_day, tenant),       offsetof(struct usage_day, cost_center),
	offsetof(struct usage_day, workspace),    offsetof(struct usage_day, gpu_model),
	offsetof(struct usage_day, mig_profile),  offsetof(struct usage_day, klass),
	offsetof(struct usage_day, sharing_mode), offsetof(struct usage_day, cluster),
	offsetof(struct usage_day, meter),        offsetof(struct usage_day, unit),
	offsetof(struct usage_day, counterparty), offsetof(struct usage_day, category),
	offsetof(struct usage_day, currency),     offsetof(struct usage_day, reserved_profile),
	offsetof(struct usage_day, meter_sku),
};
#define TEXTS_OF_PRICE 4 /* the last of them decide about price, unit and sku, which are compared on their own */

static const char *
text_at(const void *p, size_t offset)
{
	return *(const char *const *)(const void *)((const char *)p + offset);
}

static const char *
text_or_empty(const char *text)
{
	return text ? text : "";
}

/* NULL is "". */
static int
compare_at(const void *x, const void *y, const size_t *offsets, size_t n)
{
	int order = 0;

	for (size_t i = 0; i < n && order == 0; i++) {
		const char *a = text_at(x, offsets[i]), *b = text_at(y, offsets[i]);

		if (a != b) /* many are the same text in memory */
			order = strcmp(text_or_empty(a), text_or_empty(b));
	}
	return order;
}

static bool
same_kind(const struct usage_day *a, const struct usage_day *b)
{
	return a->kind == b->kind && a->price_book == b->price_book && a->instance_units == b->instance_units &&
	       a->amount == b->amount && a->reserved_units == b->reserved_units &&
	       compare_at(a, b, texts, ARRAY_LEN(texts)) == 0;
}

/* FNV-1a; a collision costs a comparison, nothing else. */
static size_t
hash_of(const struct usage_day *d)
{
	uint64_t hash = 14695981039346656037u ^ (uint64_t)d->kind ^ ((uint64_t)d->price_book << 8) ^
	                ((uint64_t)d->instance_units << 16);

	for (size_t i = 0; i < ARRAY_LEN(texts); i++) {
		for (const char *c = text_at(d, texts[i]); c != NULL && *c != '\0'; c++)
			hash = (hash ^ (unsigned char)*c) * 1099511628211u;
		hash = (hash ^ 0xff) * 1099511628211u;
	}
	return (size_t)(hash ^ hash >> 32);
}

/* ---- the price of a kind ---- */

/* The unit with the row's own texts. */
static struct rating_unit
unit_of_row(const struct usage_day *d, struct rating_unit u)
{
	u.base = d->kind == CHARGE_ENERGY ? "kWh" : d->unit;
	if (u.per_instance && d->reserved_profile != NULL && strcmp(d->reserved_profile, d->mig_profile) != 0)
		u.profile = d->reserved_profile;
	return u;
}

static struct row_kind
price_kind(const struct rating_input *in, const struct usage_day *d)
{
	const struct rating_book *book = d->price_book < 0 ? NULL : &in->books[d->price_book];
	struct rating_price price = {.unit = {.per = 1}, .own = {.per = 1}};

	if (d->kind == CHARGE_ADJUSTMENT) /* 12 */
		return (struct row_kind){.day = d,
		                         .sku = d->meter_sku,
		                         .price_version = "",
		                         .currency = d->currency,
		                         .price = {.unit_price = d->amount < 0 ? -d->amount : d->amount,
		                                   .unit = {.per = 1},
		                                   .own_price = d->amount < 0 ? -d->amount : d->amount,
		                                   .own = {.per = 1}},
		                         .priced = true};
	if (book != NULL)
		price = rating_price_of(book, d);
	if (price.item == NULL) { /* 7; kinds that cost nothing by rule 8 need no price */
		price.unit_price = price.own_price = 0;
		price.unit = price.own = (struct rating_unit){.per = 1};
		return (struct row_kind){.day = d,
		                         .sku = "",
		                         .price_version = "",
		                         .currency = in->currency,
		                         .price = price,
		                         .priced = d->kind == CHARGE_COVERED || d->kind == CHARGE_UNUSED};
	}
	return (struct row_kind){.day = d,
	                         .sku = price.item->sku,
	                         .price_version = book->version,
	                         .currency = book->currency,
	                         .price = price,
	                         .priced = true};
}

static struct row_kind
priced_kind(const struct rating_input *in, const struct usage_day *d)
{
	struct row_kind k = price_kind(in, d);

	k.price.unit = unit_of_row(d, k.price.unit);
	k.price.own = unit_of_row(d, k.price.own);
	return k;
}

/* Half of the slots stay empty. */
static void
grow(struct row_kinds *k)
{
	k->cap = k->cap == 0 ? 128 : 2 * k->cap;
	k->at = mem_grow(k->at, k->cap, sizeof(struct row_kind *));
	mem_free(k->slots);
	k->slot_count = 2 * k->cap;
	k->slots = mem_array(k->slot_count, sizeof(*k->slots));
	for (size_t i = 0; i < k->count; i++) {
		size_t slot = hash_of(k->at[i]->day) % k->slot_count;

		while (k->slots[slot] != 0)
			slot = (slot + 1) % k->slot_count;
		k->slots[slot] = i + 1;
	}
}

static const struct row_kind *
kind_of_row(struct row_kinds *k, const struct rating_input *in, const struct usage_day *d)
{
	size_t slot;

	if (k->count == k->cap)
		grow(k);
	for (slot = hash_of(d) % k->slot_count; k->slots[slot] != 0; slot = (slot + 1) % k->slot_count)
		if (same_kind(k->at[k->slots[slot] - 1]->day, d))
			return k->at[k->slots[slot] - 1];
	k->at[k->count] = mem_alloc(sizeof(struct row_kind));
	*k->at[k->count] = priced_kind(in, d);
	k->slots[slot] = ++k->count;
	return k->at[k->count - 1];
}

/* ---- which kinds are one line ---- */

static int
compare_units(const struct rating_unit *a, const struct rating_unit *b)
{
	int order = ORDER(a->per_instance, b->per_instance);

	if (order == 0)
		order = ORDER(a->basis_used, b->basis_used);
	return order ? order : ORDER(a->per, b->per);
}

static int
compare_prices(const struct rating_price *a, const struct rating_price *b)
{
	int order = ORDER(a->unit_price, b->unit_price);

	if (order == 0)
		order = ORDER(a->own_price, b->own_price);
	if (order == 0)
		order = ORDER(a->discount_ratio, b->discount_ratio);
	if (order == 0)
		order = compare_units(&a->unit, &b->unit);
	return order ? order : compare_units(&a->own, &b->own);
}

/* Instances of a commitment's kind, of which the row's device may be another. */
static int
compare_reserved(const struct row_kind *x, const struct row_kind *y)
{
	int order = 0;

	if (!x->price.unit.per_instance) /* both, as their prices are the same */
		return 0;
	order = ORDER(x->day->reserved_units, y->day->reserved_units);
	return order ? order : strcmp(text_or_empty(x->day->reserved_profile), text_or_empty(y->day->reserved_profile));
}

static int
compare_kinds(const struct row_kind *x, const struct row_kind *y)
{
	/* the effect of category and currency is in the kind */
	static const size_t own[] = {offsetof(struct row_kind, sku), offsetof(struct row_kind, price_version),
	                             offsetof(struct row_kind, currency)};
	int order = compare_at(x->day, y->day, texts, ARRAY_LEN(texts) - TEXTS_OF_PRICE);

	if (order == 0)
		order = compare_at(x, y, own, ARRAY_LEN(own));
	if (order == 0 && x->sku[0] == '\0') /* an item that names a sku makes one line of all skus of the events */
		order = strcmp(text_or_empty(x->day->meter_sku), text_or_empty(y->day->meter_sku));
	if (order == 0)
		order = ORDER(x->day->kind, y->day->kind);
	if (order == 0)
		order = ORDER(x->priced, y->priced);
	if (order == 0)
		order = compare_prices(&x->price, &y->price);
	if (order == 0)
		order = compare_reserved(x, y);
	return order ? order : ORDER(x->day->instance_units, y->day->instance_units);
}

static int
compare_pointers(const void *a, const void *b)
{
	return compare_kinds(*(const struct row_kind *const *)a, *(const struct row_kind *const *)b);
}

/* Gives the kinds of one line the same number. The hash table is invalid after this. */
static void
number_lines(struct row_kinds *k)
{
	if (k->count == 0)
		return;
	qsort(k->at, k->count, sizeof(struct row_kind *), compare_pointers);
	for (size_t i = 1; i < k->count; i++)
		k->at[i]->line = k->at[i - 1]->line + (compare_kinds(k->at[i - 1], k->at[i]) != 0);
}

/* ---- rows: checked, with the energy of rule 10 and the commitments of rules 8 and 9 ---- */

/* Far below the range of a line, and above any real amount. */
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

static int
compare_rows(const void *a, const void *b)
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
		out[n] = (struct row){.day = &energy[n], .kind = kind_of_row(kinds, in, &energy[n])};
		n++;
	}
	return n;
}

/* Rows without any amount are left out: they would make empty lines. */
static bool
has_amounts(const struct usage_day *d)
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

/* A row that needs the reserved kind. */
static bool
needs_commitment(const struct usage_day *d)
{
	return d->kind == CHARGE_LENT || d->kind == CHARGE_COVERED || d->kind == CHARGE_UNUSED;
}

/* Returns the number of parts. */
static size_t
find_commitments(const struct rating_input *in, struct commitments *c)
{
	size_t parts = 0;

	for (size_t i = 0; i < in->day_count; i++) {
		parts += needs_commitment(&in->days[i]);
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

/* Rules 8 and 9: a part with the kind of its commitment. */
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
		if (needs_commitment(d)) {
			*next = with_commitment(&commitments, d);
			d = next++;
		}
		if (has_amounts(d))
			rows[n++] = (struct row){.day = d, .kind = kind_of_row(kinds, in, d)};
	}
	n += add_energy_rows(in, kinds, energy, rows + n);
	number_lines(kinds);
	qsort(rows, n, sizeof(*rows), compare_rows);
	*ret = take(rows);
	*ret_count = n;
	return true;
}

/* ---- rules 2 and 4: cells, quantised once each ---- */

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

static bool
sum_too_large(const struct row *r, struct err *err)
{
	return err_set(err, ERR_INVALID, "%s/%s: the amounts of %s are beyond what a line holds", r->day->tenant,
	               r->day->workspace, r->day->meter ? r->day->meter : r->day->gpu_model);
}

static bool
make_cells(const struct row *rows, size_t n, struct cell *cells, size_t *ret_count, struct err *err)
{
	size_t count = 0;

	for (size_t i = 0; i < n; i++) {
		if (i == 0 || compare_rows(&rows[i - 1], &rows[i]) != 0)
			cells[count++].row = &rows[i];
		if (!add_to_cell(&cells[count - 1], rows[i].day))
			return sum_too_large(&rows[i], err);
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
	return order ? order : compare_kinds(x->row->kind, y->row->kind);
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
			return sum_too_large(cells[i]->row, err);
	}
	if (parts != cells[0]->total_unit_ns)
		return err_set(err, ERR_INVALID,
		               "%s/%s: the parts of reservation %" PRId64 " of day %" PRId32 " do not add up to it",
		               d->tenant, d->workspace, d->reservation, d->day);
	if (!round_together(exact, n - 1, NGH_DIVISOR, ngh, &sum))
		return sum_too_large(cells[0]->row, err);
	cells[0]->ngh = cells[0]->part = sum;
	for (size_t i = 1; i < n; i++)
		cells[i]->ngh = cells[i]->part = ngh[i - 1];
	if (!price->unit.per_instance && !price->own.per_instance)
		return true;
	if (!round_together(exact, n - 1, d->instance_units * SECONDS_PER_HOUR, ngh, &sum))
		return sum_too_large(cells[0]->row, err);
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

static bool
units_differ(const struct rating_unit *a, const struct rating_unit *b)
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

static int128
quantity_of(const struct cell *c, const struct rating_unit *unit)
{
	const int128 quantity = quantity_in(c, unit);

	return is_credit(c->row->day) ? -quantity : quantity;
}

/* Time that was rounded already, with the other parts or as GPU-hours, is not rounded again. */
static int128
on_demand_quantity(const struct cell *c)
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

static int128
reserved_quantity(const struct cell *c)
{
	const enum charge_kind kind = c->row->day->kind;

	if (kind != CHARGE_COVERED && kind != CHARGE_UNUSED && kind != CHARGE_LENT && kind != CHARGE_UNDELIVERED)
		return 0;
	return c->row->kind->price.reserved.per_instance ? c->instance_part : c->ngh;
}

/* ---- rules 5 and 13: lines ---- */

#define COST_MAX pow10_i128(RATING_COST_DIGITS + COST_SCALE)

static bool
within(int128 cost)
{
	return cost <= COST_MAX && cost >= -COST_MAX;
}

/* In two terms, because the product with a ratio would overflow 128 bits; the first is even, so that half to even holds for the whole. */
static int128
ratio_of(int128 cost, int64_t ratio)
{
	return cost / (2 * RATIO_ONE) * 2 * ratio + div_round_half_even(cost % (2 * RATIO_ONE) * ratio, RATIO_ONE);
}

/* The tenant's cost of a part of a reservation; 0 for a commitment that cannot be rated (13). */
static int128
reserved_cost(const struct cell *c)
{
	const struct rating_price *p = &c->row->kind->price;
	int128 cost;

	if (__builtin_mul_overflow(reserved_quantity(c), p->reserved_price, &cost) || !within(cost))
		return 0;
	return cost - ratio_of(cost, p->reserved_ratio);
}

/* The energy of lent time is on the borrower's line, and that of an energy line is its quantity. */
static bool
add_cell(struct rated_day *d, const struct cell *c)
{
	const struct rating_price *p = &c->row->kind->price;
	enum charge_kind kind = c->row->day->kind;

	d->day = c->row->day->day;
	if (c->origin_unit_ns > 0) {
		d->origin_ngh = div_round_half_even(c->origin_unit_ns, NGH_DIVISOR);
		d->origin_ratio = (int64_t)div_round_half_even(c->origin_share, c->origin_unit_ns);
	}
	if (!ADD(d->ngh, c->ngh) || !ADD(d->quantity, quantity_of(c, &p->unit)) ||
	    !ADD(d->own_quantity, quantity_of(c, &p->own)) || !ADD(d->on_demand_quantity, on_demand_quantity(c)) ||
	    !ADD(d->reserved_cost, reserved_cost(c)))
		return false;
	if (kind == CHARGE_USAGE || kind == CHARGE_COVERED)
		if (!ADD(d->used_ngh, c->state_ngh[USED]) || !ADD(d->idle_ngh, c->state_ngh[IDLE]) ||
		    !ADD(d->unmeasured_ngh, c->state_ngh[UNMEASURED]))
			return false;
	return kind == CHARGE_LENT || kind == CHARGE_ENERGY || ADD(d->energy_mj, c->energy_mj);
}

/* Rule 5, and the discount. false: rule 13. */
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
			return sum_too_large(r, err);
	}
	for (size_t i = 0; i < l->day_count; i++) {
		if (!add_day(l, &l->days[i]))
			return sum_too_large(r, err);
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

/* Rule 9: time that one workspace borrowed on one day. */
struct loan {
	const char *borrower;
	int32_t day;
	int128 unit_ns; /* the time it paid for */
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
			quantity += unit_ns / (p->paid_units * SECONDS_PER_HOUR);
			unit_ns = 0;
		}
		/* no overflow: the whole line's cost fits, and no borrower's part is larger */
		cents += quantity * p->paid_credit / pow10_i128(COST_SCALE - currency_scale);
	}
	return cents;
}

/* The cost centre of the first day of a tenant, whose rows are neighbours. Its lines have the same id whether the tenant has other cost
 * centres later in the month or not. Ties: the first in byte order. */
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

/* Events of a line may have several skus where an item names the line's: the first in byte order. */
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
	l->own_differs = units_differ(&k->price.unit, &k->price.own);
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

	if (!make_cells(rows, row_count, cells, &n, err) || !quantise(cells, n, err))
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

/* Divides the line's cents over its days. The cents of a loan are not its rounded cost: they go by each day's part of it. */
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
		/* a price that is rounded down to 0 for the commitment's unit may be some cents for the borrower's */
		if (!apportion(l->billed, net, l->day_count, billed))
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
	*ret_count = l->corrected_days != NULL ? l->corrected_day_count : l->day_count;
	return l->corrected_days != NULL ? l->corrected_days : l->days;
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
