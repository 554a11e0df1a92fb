/* tests/prop/prop_prices.c - what holds for every price book: changes are two bills, nothing is paid back for use, and one tenant's
 * prices are nobody else's. */
#include <string.h>

#include "aggregator/core/rating/price_preview.h"
#include "tests/support/harness/prop.h"

#define ROWS_MAX 16u
#define ITEMS_MAX 8u
#define DISCOUNTS_MAX 4u
#define BOOKS 2u

struct month {
	struct usage_day rows[ROWS_MAX];
	size_t count;
	struct rating_item items[BOOKS][ITEMS_MAX];
	struct rating_discount discounts[BOOKS][DISCOUNTS_MAX];
	struct rating_site sites[BOOKS];
	struct rating_book books[BOOKS]; /* made when the case is used: it points into the case */
	int64_t ratio[BOOKS];
};

static const char *const tenants[] = {"acme", "globex", "initech"};
static const char *const models[] = {"H100-80GB", "A100-80GB"};
static const char *const classes[] = {"on-demand", "borrowed", "reserved", "dedicated"};
static const char *const meters[] = {"storage", "egress"};
static const char *const versions[BOOKS] = {"v1", "v2"};

/* Any, or one of them. */
static const char *
maybe(struct prop_source *s, const char *const *words, size_t n)
{
	size_t i = prop_index(s, n + 1);

	return i == 0 ? NULL : words[i - 1];
}

static struct usage_day
draw_row(struct prop_source *s)
{
	static const enum charge_kind kinds[] = {CHARGE_USAGE,     CHARGE_USAGE,  CHARGE_METER,      CHARGE_COVERED,
	                                         CHARGE_DEDICATED, CHARGE_SHARED, CHARGE_UNDELIVERED};
	enum charge_kind kind = kinds[prop_index(s, ARRAY_LEN(kinds))];
	struct usage_day d = {.day = (int32_t)prop_index(s, 3),
	                      .kind = kind,
	                      .cluster = "demo",
	                      .tenant = tenants[prop_index(s, ARRAY_LEN(tenants))],
	                      .cost_center = "",
	                      .workspace = "w",
	                      .gpu_model = kind == CHARGE_METER ? "" : models[prop_index(s, ARRAY_LEN(models))],
	                      .mig_profile = "",
	                      .sharing_mode = kind == CHARGE_METER ? "" : "exclusive",
	                      .klass = kind == CHARGE_USAGE ? classes[prop_index(s, 2)] : "",
	                      .instance_units = 5040,
	                      .price_book = (int64_t)prop_index(s, BOOKS)};
	int128 amount = (int128)prop_u64(s, UINT64_C(5040) * 1000) * (int128)prop_u64(s, UINT64_C(86400000000));

	if (kind == CHARGE_METER) {
		d.meter = meters[prop_index(s, ARRAY_LEN(meters))];
		d.category = strcmp(d.meter, "egress") == 0 ? "network" : d.meter;
		d.unit = "GB";
		d.meter_sku = "standard";
		d.quantity = (int128)prop_u64(s, UINT64_C(1000000000000000));
	} else if (kind == CHARGE_USAGE || kind == CHARGE_COVERED) {
		d.used_unit_ns = amount / 3;
		d.idle_unit_ns = amount - d.used_unit_ns;
		d.over_unit_ns = amount / 7;
		d.energy_mj = (int128)prop_u64(s, UINT64_C(1000000000000));
	} else {
		d.unit_ns = amount;
	}
	return d;
}

static struct rating_item
draw_item(struct prop_source *s)
{
	struct rating_item it = {.sku = "", .price = (int128)prop_u64(s, UINT64_C(9999999999999))};

	it.tenant = maybe(s, tenants, ARRAY_LEN(tenants));
	if (prop_index(s, 3) == 2) {
		it.meter = meters[prop_index(s, ARRAY_LEN(meters))];
		return it;
	}
	it.gpu_model = maybe(s, models, ARRAY_LEN(models));
	it.klass = maybe(s, classes, ARRAY_LEN(classes));
	it.basis_used = (it.klass == NULL || it.klass == classes[0] || it.klass == classes[1]) && prop_bool(s);
	return it;
}

static void
generate(struct prop_source *s, void *c)
{
	static const char *const categories[] = {"gpu", "storage", "network"};
	struct month *m = c;

	m->count = prop_index(s, ROWS_MAX + 1);
	for (size_t i = 0; i < m->count; i++)
		m->rows[i] = draw_row(s);
	for (size_t b = 0; b < BOOKS; b++) {
		m->books[b].item_count = prop_index(s, ITEMS_MAX + 1);
		m->books[b].discount_count = prop_index(s, DISCOUNTS_MAX + 1);
		m->ratio[b] = (int64_t)prop_u64(s, 1000000000);
		m->sites[b] = (struct rating_site){"demo", prop_i64(s, -1, INT64_C(5000000000)), -1};
		for (size_t i = 0; i < m->books[b].item_count; i++)
			m->items[b][i] = draw_item(s);
		for (size_t i = 0; i < m->books[b].discount_count; i++)
			m->discounts[b][i] = (struct rating_discount){maybe(s, tenants, ARRAY_LEN(tenants)),
			                                              maybe(s, categories, ARRAY_LEN(categories)),
			                                              maybe(s, classes, ARRAY_LEN(classes)),
			                                              (int64_t)prop_u64(s, 1000000000)};
	}
}

static void
describe(const void *c, struct buf *out)
{
	const struct month *m = c;
	char text[DECIMAL_TEXT_SIZE];

	for (size_t i = 0; i < m->count; i++)
		buf_printf(out, "row: kind %d, book %d, day %d, %s, %s %s\n", (int)m->rows[i].kind,
		           (int)m->rows[i].price_book, (int)m->rows[i].day, m->rows[i].tenant, m->rows[i].gpu_model,
		           m->rows[i].klass);
	for (size_t b = 0; b < BOOKS; b++)
		for (size_t i = 0; i < m->books[b].item_count; i++)
			buf_printf(out, "book %zu: %s %s %s %s\n", b,
			           m->items[b][i].tenant ? m->items[b][i].tenant : "all",
			           m->items[b][i].meter       ? m->items[b][i].meter
			           : m->items[b][i].gpu_model ? m->items[b][i].gpu_model
			                                      : "any",
			           m->items[b][i].klass ? m->items[b][i].klass : "any",
			           decimal_format(m->items[b][i].price, PRICE_SCALE, 0, text));
}

/* Without what is for `left_out` alone, where it is given. */
static void
make_books(const struct month *m, const char *left_out, struct month *out)
{
	*out = *m;
	for (size_t b = 0; b < BOOKS; b++) {
		struct rating_book *k = &out->books[b];

		*k = (struct rating_book){.version = versions[b],
		                          .currency = "EUR",
		                          .items = out->items[b],
		                          .discounts = out->discounts[b],
		                          .sites = &out->sites[b],
		                          .site_count = 1,
		                          .lender_ratio = m->ratio[b]};
		for (size_t i = 0; i < m->books[b].item_count; i++)
			if (left_out == NULL || m->items[b][i].tenant != left_out)
				out->items[b][k->item_count++] = m->items[b][i];
		for (size_t i = 0; i < m->books[b].discount_count; i++)
			if (left_out == NULL || m->discounts[b][i].tenant != left_out)
				out->discounts[b][k->discount_count++] = m->discounts[b][i];
	}
}

static struct rating_input
input_of(const struct month *m, const struct usage_day *rows, size_t n)
{
	return (struct rating_input){.period_start = "2026-11-01",
	                             .period_end = "2026-12-01",
	                             .period = "2026-11",
	                             .period_status = "open",
	                             .currency = "EUR",
	                             .invoice_version = 1,
	                             .books = m->books,
	                             .book_count = BOOKS,
	                             .days = rows,
	                             .day_count = n};
}

static struct rated *
rate(const struct month *m, const struct usage_day *rows, size_t n, struct buf *why)
{
	struct rating_input in = input_of(m, rows, n);
	struct rated *r = NULL;
	struct err err = {0};

	if (!rating_run(&in, &r, &err))
		buf_printf(why, "refused: %s\n", err.text);
	return r;
}

static const struct rated_line *
find_line(const struct rated *r, const char *line_id)
{
	for (size_t i = 0; i < r->count; i++)
		if (strcmp(r->lines[i].line_id, line_id) == 0)
			return &r->lines[i];
	return NULL;
}

/* Every line of some is a line of all, with the same quantity and exact cost. */
static bool
contains(const struct rated *all, const struct rated *some, struct buf *why)
{
	for (size_t i = 0; i < some->count; i++) {
		const struct rated_line *a = &some->lines[i], *b = find_line(all, a->line_id);

		if (b == NULL || a->quantity != b->quantity || a->list_cost != b->list_cost ||
		    a->discount != b->discount) {
			buf_printf(why, "%s: %s is %s\n", a->tenant, a->description, b ? "another" : "missing");
			return false;
		}
	}
	return true;
}

/* Lines that no book prices have no version: rows of both books are one line of them. They cost nothing. */
static size_t
priced_count(const struct rated *r)
{
	size_t n = 0;

	for (size_t i = 0; i < r->count; i++)
		n += r->lines[i].price_version[0] != '\0';
	return n;
}

static bool
a_change_is_two_bills(const void *c, struct buf *why)
{
	struct month m;
	struct usage_day part[BOOKS][ROWS_MAX];
	size_t n[BOOKS] = {0}, count = 0;
	owned(rated) struct rated *all = NULL;

	make_books(c, NULL, &m);
	for (size_t i = 0; i < m.count; i++)
		part[m.rows[i].price_book][n[m.rows[i].price_book]++] = m.rows[i];
	all = rate(&m, m.rows, m.count, why);
	for (size_t b = 0; b < BOOKS; b++) {
		owned(rated) struct rated *one = rate(&m, part[b], n[b], why);
		size_t kept = 0;

		if (all == NULL || one == NULL)
			return false;
		count += priced_count(one);
		/* only the priced ones are compared: what has no price has no version */
		for (size_t i = 0; i < one->count; i++)
			kept += one->lines[i].price_version[0] != '\0' && find_line(all, one->lines[i].line_id) == NULL;
		if (kept > 0 || (priced_count(one) == one->count && !contains(all, one, why)))
			return false;
	}
	return count == priced_count(all);
}

static bool
is_credit(enum charge_kind kind)
{
	return kind == CHARGE_UNDELIVERED || kind == CHARGE_LENT;
}

static bool
use_is_never_paid_back(const void *c, struct buf *why)
{
	struct month m;
	owned(rated) struct rated *r = NULL;

	make_books(c, NULL, &m);
	r = rate(&m, m.rows, m.count, why);
	if (r == NULL)
		return false;
	for (size_t i = 0; i < r->count; i++) {
		const struct rated_line *l = &r->lines[i];
		int128 net = is_credit(l->kind) ? l->discount - l->list_cost : l->list_cost - l->discount;
		int128 billed = is_credit(l->kind) ? -l->billed : l->billed;

		if (net < 0 || billed < 0) {
			buf_printf(why, "%s: %s\n", l->tenant, l->description);
			return false;
		}
	}
	return true;
}

static bool
prices_are_nobody_elses(const void *c, struct buf *why)
{
	struct month with, without;
	owned(rated) struct rated *a = NULL, *b = NULL;

	make_books(c, NULL, &with);
	make_books(c, tenants[0], &without);
	a = rate(&with, with.rows, with.count, why);
	b = rate(&without, without.rows, without.count, why);
	if (a == NULL || b == NULL)
		return false;
	for (size_t i = 0; i < a->count; i++) {
		const struct rated_line *l = &a->lines[i], *other = find_line(b, l->line_id);

		if (strcmp(l->tenant, tenants[0]) != 0 &&
		    (other == NULL || other->billed != l->billed || other->discount != l->discount)) {
			buf_printf(why, "%s: %s\n", l->tenant, l->description);
			return false;
		}
	}
	return true;
}

static bool
a_preview_is_the_bill(const void *c, struct buf *why)
{
	struct month m;
	owned(rated) struct rated *r = NULL;
	in_place(price_preview) struct price_preview p = {0};
	struct rating_input in;
	struct err err = {0};

	make_books(c, NULL, &m);
	r = rate(&m, m.rows, m.count, why);
	in = input_of(&m, m.rows, m.count);
	if (r == NULL || !price_preview_add(&p, &in, false, &err) || !price_preview_add(&p, &in, true, &err))
		return false;
	for (size_t i = 0; i < p.count; i++) {
		int128 sum = 0;

		for (size_t k = 0; k < r->count; k++)
			if (strcmp(r->lines[k].tenant, p.rows[i].tenant) == 0)
				sum += r->lines[k].billed;
		if (p.rows[i].now != sum)
			return false;
	}
	return true;
}

int
main(void)
{
	static const struct prop_test tests[] = {
		{"a month with a change of prices is the two bills of its parts", sizeof(struct month), generate,
	         a_change_is_two_bills, describe, NULL},
		{"use never has a negative line, nor a credit a positive one", sizeof(struct month), generate,
	         use_is_never_paid_back, describe, NULL},
		{"what is for one tenant alone changes no other's bill", sizeof(struct month), generate,
	         prices_are_nobody_elses, describe, NULL},
		{"a preview of the month adds up to its lines", sizeof(struct month), generate, a_preview_is_the_bill,
	         describe, NULL},
	};

	return prop_main("prop_prices", tests, ARRAY_LEN(tests));
}
