/* aggregator/core/rating/rating_file.c - the rating input of a closed month as an archived text, and back. The numbers are those of rating_file.h. */
#include "aggregator/core/rating/rating_file.h"

#include <stdlib.h>
#include <string.h>

#include "aggregator/core/rating/amortise.h"
#include "aggregator/core/rating/records.h"
#include "common/base/apportion.h"

/* --- which fields a record has --- */

#define M(kind, name) RECORD_FIELD(kind, struct rating_input, name)
static const struct record_field month_fields[] = {M(TEXT, period), M(TEXT, period_start), M(TEXT, period_end),
                                                   M(TEXT, currency), M(I32, invoice_version)};
#define B(kind, name) RECORD_FIELD(kind, struct rating_book, name)
static const struct record_field book_fields[] = {B(TEXT, version), B(TEXT, currency), B(I64, lender_ratio),
                                                  B(I32, shared_idle), B(I128, platform_cost)};
#define I(kind, name) RECORD_FIELD(kind, struct rating_item, name)
static const struct record_field item_fields[] = {I(TEXT, sku),          I(TEXT, gpu_model),  I(TEXT, mig_profile),
                                                  I(TEXT, sharing_mode), I(TEXT, klass),      I(I128, price),
                                                  I(TEXT, tenant),       I(BOOL, basis_used), I(TEXT, meter),
                                                  I(TEXT, meter_sku),    I(I64, per)};
#define D(kind, name) RECORD_FIELD(kind, struct rating_discount, name)
static const struct record_field discount_fields[] = {D(TEXT, tenant), D(TEXT, category), D(TEXT, klass),
                                                      D(I64, ratio)};
#define S(kind, name) RECORD_FIELD(kind, struct rating_site, name)
static const struct record_field site_fields[] = {S(TEXT, cluster), S(I128, energy_price), S(I128, carbon)};
#define W(kind, name) RECORD_FIELD(kind, struct rating_weight, name)
static const struct record_field weight_fields[] = {W(TEXT, tenant), W(I64, weight)};
#define U(kind, name) RECORD_FIELD(kind, struct usage_day, name)
static const struct record_field row_fields[] = {U(I32, day),
                                                 U(I32, kind),
                                                 U(TEXT, cluster),
                                                 U(TEXT, tenant),
                                                 U(TEXT, cost_center),
                                                 U(TEXT, workspace),
                                                 U(TEXT, gpu_model),
                                                 U(TEXT, mig_profile),
                                                 U(TEXT, sharing_mode),
                                                 U(TEXT, klass),
                                                 U(I64, instance_units),
                                                 U(I64, price_book),
                                                 U(I128, used_unit_ns),
                                                 U(I128, idle_unit_ns),
                                                 U(I128, unmeasured_unit_ns),
                                                 U(I128, over_unit_ns),
                                                 U(I128, energy_mj),
                                                 U(I128, unit_ns),
                                                 U(I64, reservation),
                                                 U(TEXT, counterparty),
                                                 U(TEXT, meter),
                                                 U(TEXT, category),
                                                 U(TEXT, unit),
                                                 U(TEXT, meter_sku),
                                                 U(I128, quantity),
                                                 U(I128, amount),
                                                 U(TEXT, currency),
                                                 U(TEXT, reason),
                                                 U(I128, origin_unit_ns),
                                                 U(I64, origin_ratio),
                                                 U(TEXT, borrower)};

/* A field that is added to a struct belongs in its table: without it a closed month could not be computed again. */
_Static_assert(sizeof(struct usage_day) == 352,
               "a row of charges has another field"); /* three of them are not archived */
_Static_assert(sizeof(struct rating_item) == 112, "a price item has another field");
_Static_assert(sizeof(struct rating_book) == 112, "a price book has another field");
_Static_assert(sizeof(enum charge_kind) == sizeof(int32_t) && sizeof(enum shared_method) == sizeof(int32_t),
               "enums are archived as 32 bits");

enum record {
	RECORD_MONTH,
	RECORD_BOOK,
	RECORD_ITEM,
	RECORD_DISCOUNT,
	RECORD_SITE,
	RECORD_WEIGHT,
	RECORD_ROW,
	RECORDS
};
static const struct record_type types[RECORDS] = {
	[RECORD_MONTH] = {'M', sizeof(struct rating_input), month_fields, ARRAY_LEN(month_fields), 0},
	[RECORD_BOOK] = {'B', sizeof(struct rating_book), book_fields, ARRAY_LEN(book_fields), 0},
	[RECORD_ITEM] = {'I', sizeof(struct rating_item), item_fields, ARRAY_LEN(item_fields), .later = 1},
	[RECORD_DISCOUNT] = {'D', sizeof(struct rating_discount), discount_fields, ARRAY_LEN(discount_fields), 0},
	[RECORD_SITE] = {'S', sizeof(struct rating_site), site_fields, ARRAY_LEN(site_fields), 0},
	[RECORD_WEIGHT] = {'W', sizeof(struct rating_weight), weight_fields, ARRAY_LEN(weight_fields), 0},
	[RECORD_ROW] = {'U', sizeof(struct usage_day), row_fields, ARRAY_LEN(row_fields), .later = 3},
};

/* --- writing --- */

void
rating_file_prices(const struct rating_input *in, struct buf *out)
{
	record_write(&types[RECORD_MONTH], in, out);
	for (size_t i = 0; i < in->book_count; i++) {
		const struct rating_book *b = &in->books[i];

		record_write(&types[RECORD_BOOK], b, out);
		for (size_t j = 0; j < b->item_count; j++)
			record_write(&types[RECORD_ITEM], &b->items[j], out);
		for (size_t j = 0; j < b->discount_count; j++)
			record_write(&types[RECORD_DISCOUNT], &b->discounts[j], out);
		for (size_t j = 0; j < b->site_count; j++)
			record_write(&types[RECORD_SITE], &b->sites[j], out);
		for (size_t j = 0; j < b->weight_count; j++)
			record_write(&types[RECORD_WEIGHT], &b->weights[j], out);
	}
}

void
rating_file_rows(const struct rating_input *in, struct buf *out)
{
	for (size_t i = 0; i < in->day_count; i++)
		record_write(&types[RECORD_ROW], &in->days[i], out);
}

/* --- reading --- */

void
rating_file_free(struct rating_file *f)
{
	struct records *r;

	if (f == NULL)
		return;
	r = f->memory;
	records_fini(r);
	mem_free(r);
	mem_free(f);
}

/* The month, its books, the rows; what a book has follows it, each kind after the one before. */
static bool
is_in_order(const struct records *r, size_t kind)
{
	if (r->lists[RECORD_MONTH].count != 1 || kind == RECORD_MONTH)
		return kind == RECORD_MONTH && r->lists[RECORD_MONTH].count == 1;
	return kind >= r->last || (kind == RECORD_BOOK && r->last < RECORD_ROW);
}

static bool
count_part(struct records *r, size_t kind)
{
	struct rating_book *book = r->lists[RECORD_BOOK].at;

	if (!is_in_order(r, kind))
		return false;
	if (kind < RECORD_ITEM || kind > RECORD_WEIGHT)
		return true;
	if (r->lists[RECORD_BOOK].count == 0)
		return false;
	book += r->lists[RECORD_BOOK].count - 1;
	*(kind == RECORD_ITEM       ? &book->item_count
	  : kind == RECORD_DISCOUNT ? &book->discount_count
	  : kind == RECORD_SITE     ? &book->site_count
	                            : &book->weight_count) += 1;
	return true;
}

static void
join_books(struct records *r)
{
	struct rating_book *book = r->lists[RECORD_BOOK].at;
	const struct rating_item *item = r->lists[RECORD_ITEM].at;
	const struct rating_discount *discount = r->lists[RECORD_DISCOUNT].at;
	const struct rating_site *site = r->lists[RECORD_SITE].at;
	const struct rating_weight *weight = r->lists[RECORD_WEIGHT].at;

	for (size_t i = 0; i < r->lists[RECORD_BOOK].count; i++, book++) {
		book->items = item;
		book->discounts = discount;
		book->sites = site;
		book->weights = weight;
		item = book->item_count > 0 ? item + book->item_count : item; /* there may be none at all */
		discount = book->discount_count > 0 ? discount + book->discount_count : discount;
		site = book->site_count > 0 ? site + book->site_count : site;
		weight = book->weight_count > 0 ? weight + book->weight_count : weight;
	}
}

#define RATIO_MAX 1000000000
#define PRICE_MAX pow10_i128(PRICE_SCALE + 15) /* far above any, and a ratio of it stays in 128 bits */

static bool
has_all(const char *const *texts, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (texts[i] == NULL)
			return false;
	return true;
}

/* Checks texts that rating compares without a NULL check, and numbers that it uses as positions. */
static bool
row_is_sound(const struct records *r, const struct usage_day *d)
{
	const char *const all[] = {d->cluster,   d->tenant,      d->cost_center,  d->workspace,
	                           d->gpu_model, d->mig_profile, d->sharing_mode, d->klass};
	const char *const meter[] = {d->meter, d->category, d->unit, d->meter_sku};
	const char *const once[] = {d->category, d->unit, d->meter_sku, d->currency, d->reason};

	if (d->kind < 0 || d->kind >= CHARGE_ENERGY || d->price_book < -1 ||
	    d->price_book >= (int64_t)r->lists[RECORD_BOOK].count || !has_all(all, ARRAY_LEN(all)))
		return false;
	if (d->kind == CHARGE_METER)
		return has_all(meter, ARRAY_LEN(meter));
	if (d->kind == CHARGE_ADJUSTMENT)
		return has_all(once, ARRAY_LEN(once));
	return d->meter == NULL && (d->kind != CHARGE_LENT || d->counterparty != NULL);
}

static bool
rows_are_sound(const struct records *r, size_t *ret_row)
{
	const struct usage_day *d = r->lists[RECORD_ROW].at;

	for (size_t i = 0; i < r->lists[RECORD_ROW].count; i++, d++) {
		*ret_row = i + 1;
		if (!row_is_sound(r, d))
			return false;
	}
	return true;
}

static bool
is_price(int128 price, int128 least)
{
	return price >= least && price <= PRICE_MAX;
}

static bool
book_is_sound(const struct rating_book *b)
{
	bool ok = b->version != NULL && b->currency != NULL && b->lender_ratio >= 0 && b->lender_ratio <= RATIO_MAX &&
	          b->shared_idle >= 0 && b->shared_idle <= SHARED_WEIGHTS && is_price(b->platform_cost, -1);

	for (size_t i = 0; ok && i < b->item_count; i++)
		ok = b->items[i].sku != NULL && is_price(b->items[i].price, 0) && b->items[i].per >= 0 &&
		     b->items[i].per <= RATIO_MAX;
	for (size_t i = 0; ok && i < b->discount_count; i++)
		ok = b->discounts[i].ratio >= 0 && b->discounts[i].ratio <= RATIO_MAX;
	for (size_t i = 0; ok && i < b->site_count; i++)
		ok = b->sites[i].cluster != NULL && is_price(b->sites[i].energy_price, -1) &&
		     is_price(b->sites[i].carbon, -1);
	for (size_t i = 0; ok && i < b->weight_count; i++)
		ok = b->weights[i].tenant != NULL && b->weights[i].weight >= 1;
	return ok;
}

static bool
month_is_sound(const struct records *r)
{
	const struct rating_input *in = r->lists[RECORD_MONTH].at;
	const struct rating_book *books = r->lists[RECORD_BOOK].at;
	const char *const texts[] = {in->period, in->period_start, in->period_end, in->currency};

	for (size_t i = 0; i < r->lists[RECORD_BOOK].count; i++)
		if (!book_is_sound(&books[i]))
			return false;
	return has_all(texts, ARRAY_LEN(texts));
}

bool
rating_file_read(const char *text, size_t len, struct rating_file **ret, struct err *err)
{
	owned(rating_file) struct rating_file *f = mem_alloc(sizeof(*f));
	struct records *r = f->memory = mem_alloc(sizeof(*r));
	size_t row = 0;

	records_init(r, types, RECORDS);
	if (!records_read(r, text, len, "what was rated", count_part, err))
		return false;
	if (r->lists[RECORD_MONTH].count != 1)
		return err_set(err, ERR_INVALID, "it has %zu months, not one", r->lists[RECORD_MONTH].count);
	if (!rows_are_sound(r, &row))
		return err_set(err, ERR_INVALID, "row %zu of the charges cannot be", row);
	join_books(r);
	if (!month_is_sound(r))
		return err_set(err, ERR_INVALID, "its month or its price books cannot be");
	f->in = *(const struct rating_input *)r->lists[RECORD_MONTH].at;
	f->in.books = r->lists[RECORD_BOOK].at;
	f->in.book_count = r->lists[RECORD_BOOK].count;
	f->in.days = r->lists[RECORD_ROW].at;
	f->in.day_count = r->lists[RECORD_ROW].count;
	*ret = take(f);
	return true;
}

/* --- the lines of an archived month, at the amounts that were billed --- */

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

	if (!apportion(cents, weight, l->day_count, share))
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
