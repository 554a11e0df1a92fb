/* tests/unit/rating/test_rating.c - the numbered rules of aggregator/core/rating/rating.h, one by one. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "aggregator/core/rating/rating.h"
#include "aggregator/core/rating/rounding.h"
#include "tests/support/billing/rates.h"

#define NANO_GPU_HOUR INT64_C(18144000) /* unit-nanoseconds in a billionth of a GPU-hour */

static const struct rating_item demo_items[] = {
	{.sku = "", .gpu_model = "H100-80GB", .klass = "on-demand", .price = CENTS(320)},
	{.sku = "", .gpu_model = "H100-80GB", .klass = "borrowed", .price = CENTS(150)},
	{.sku = "", .gpu_model = "A100-80GB", .mig_profile = "1g.10gb", .price = CENTS(35)},
	{.sku = "", .gpu_model = "A100-80GB", .price = CENTS(210)},
};
static const struct rating_book demo_books[] = {
	{.version = "2026-11", .currency = "EUR", .items = demo_items, .item_count = ARRAY_LEN(demo_items)},
};

static struct usage_day
h100_day(int32_t day, int128 used, int128 idle, int128 unmeasured)
{
	return (struct usage_day){.day = day,
	                          .cluster = "demo",
	                          .tenant = "acme",
	                          .cost_center = "4711",
	                          .workspace = "training",
	                          .gpu_model = "H100-80GB",
	                          .mig_profile = "",
	                          .sharing_mode = "exclusive",
	                          .klass = "on-demand",
	                          .instance_units = 5040,
	                          .used_unit_ns = used,
	                          .idle_unit_ns = idle,
	                          .unmeasured_unit_ns = unmeasured};
}

static struct usage_day
mig_day(const char *profile, int64_t units, int128 used)
{
	struct usage_day d = h100_day(1, used, 0, 0);

	d.gpu_model = "A100-80GB";
	d.mig_profile = profile;
	d.sharing_mode = "mig";
	d.instance_units = units;
	return d;
}

static struct rating_input
november(const struct usage_day *days, size_t n)
{
	return (struct rating_input){NOVEMBER_2026, .books = demo_books, .book_count = ARRAY_LEN(demo_books),
	                             .days = days, .day_count = n};
}

static void
assert_i128(int128 got, int128 want)
{
	char g[DECIMAL_TEXT_SIZE], w[DECIMAL_TEXT_SIZE];

	if (got != want)
		fail_msg("got %s, want %s", decimal_format(got, 0, 0, g), decimal_format(want, 0, 0, w));
}

static void
assert_unit(const struct rating_unit *got, const char *want)
{
	owned(mem) char *text = rating_unit_text(got);

	assert_string_equal(text, want);
}

static void
assert_adds_up(const struct rated_line *l)
{
	assert_int_equal(l->allocated_ngh, l->used_ngh + l->idle_ngh + l->unmeasured_ngh);
	assert_i128(l->billed * pow10_i128(COST_SCALE - l->currency_scale), l->list_cost - l->discount + l->rounding);
}

static void
one_gpu_for_one_hour_costs_its_price(void **state)
{
	struct usage_day day = h100_day(1, GPU_HOUR / 2, GPU_HOUR / 4, GPU_HOUR / 4);
	struct rating_input in = november(&day, 1);
	owned(rated) struct rated *r = rate(&in);
	const struct rated_line *l = &r->lines[0];

	(void)state;
	assert_int_equal(r->count, 1);
	assert_int_equal(l->allocated_ngh, 1000000000);
	assert_int_equal(l->used_ngh, 500000000);
	assert_int_equal(l->idle_ngh, 250000000);
	assert_int_equal(l->unmeasured_ngh, 250000000);
	assert_int_equal(l->quantity, 1000000000);
	assert_unit(&l->unit, "gpu-hour");
	assert_string_equal(l->sku, "h100-80gb");
	assert_string_equal(l->charge_type, "usage");
	assert_string_equal(l->category, "gpu");
	assert_string_equal(l->price_version, "2026-11");
	assert_string_equal(l->invoice_id, "acme-2026-11-1");
	assert_string_equal(l->description, "On-demand use of H100-80GB");
	assert_int_equal(strlen(l->line_id), 32);
	assert_true(l->priced);
	assert_i128(l->billed, 320);
	assert_i128(l->rounding, 0);
	assert_adds_up(l);
}

static void
a_profile_with_its_own_price_is_billed_per_instance_hour(void **state)
{
	struct usage_day day = mig_day("1g.10gb", 675, (int128)675 * HOUR_NS * 2);
	struct rating_input in = november(&day, 1);
	owned(rated) struct rated *r = rate(&in);
	const struct rated_line *l = &r->lines[0];

	(void)state;
	assert_string_equal(l->sku, "a100-80gb-mig-1g.10gb");
	assert_unit(&l->unit, "instance-hour");
	assert_string_equal(l->description, "On-demand use of A100-80GB MIG 1g.10gb");
	assert_int_equal(l->quantity, 2000000000);
	assert_int_equal(l->allocated_ngh, 267857143);
	assert_i128(l->billed, 70);
	assert_adds_up(l);
}

static void
a_profile_without_a_price_is_billed_as_its_share_of_the_gpu(void **state)
{
	struct usage_day day = mig_day("3g.40gb", 2340, (int128)2340 * HOUR_NS);
	struct rating_input in = november(&day, 1);
	owned(rated) struct rated *r = rate(&in);
	const struct rated_line *l = &r->lines[0];

	(void)state;
	assert_string_equal(l->sku, "a100-80gb-mig-3g.40gb");
	assert_unit(&l->unit, "gpu-hour");
	assert_int_equal(l->quantity, 464285714);
	assert_i128(l->list_cost, (int128)464285714 * CENTS(210));
	assert_i128(l->billed, 97); /* 0.9749999994 */
	assert_adds_up(l);
}

static void
a_day_is_quantised_half_to_even(void **state)
{
	static const struct {
		const char *name;
		int64_t unit_ns;
		int64_t want_ngh;
	} rows[] = {
		{"half of a nano-hour goes down to the even 0", NANO_GPU_HOUR / 2, 0},
		{"one and a half go up to the even 2", NANO_GPU_HOUR * 3 / 2, 2},
		{"two and a half go down to the even 2", NANO_GPU_HOUR * 5 / 2, 2},
		{"just below the half goes down", NANO_GPU_HOUR * 3 / 2 - 1, 1},
		{"just above the half goes up", NANO_GPU_HOUR / 2 + 1, 1},
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		struct usage_day day = h100_day(1, rows[i].unit_ns, 0, 0);
		struct rating_input in = november(&day, 1);
		owned(rated) struct rated *r = rate(&in);

		if (r->lines[0].allocated_ngh != rows[i].want_ngh)
			fail_msg("%s: got %" PRId64, rows[i].name, (int64_t)r->lines[0].allocated_ngh);
	}
}

static void
each_day_is_quantised_by_itself_and_only_once(void **state)
{
	const int64_t part = NANO_GPU_HOUR * 2 / 5;
	const struct usage_day two_days[] = {h100_day(1, part, 0, 0), h100_day(2, part, 0, 0)};
	const struct usage_day one_day[] = {h100_day(1, part, 0, 0), h100_day(1, 0, part, 0)};
	struct rating_input apart = november(two_days, 2), together = november(one_day, 2);
	owned(rated) struct rated *a = rate(&apart);
	owned(rated) struct rated *t = rate(&together);

	(void)state;
	assert_int_equal(a->count, 1);
	assert_int_equal(a->lines[0].allocated_ngh, 0);
	assert_int_equal(t->count, 1);
	assert_int_equal(t->lines[0].allocated_ngh, 1);
	assert_int_equal(t->lines[0].used_ngh, 1); /* equal remainders: the first state */
	assert_adds_up(&t->lines[0]);
}

static void
the_most_specific_price_wins(void **state)
{
	static const struct rating_item items[] = {
		{.sku = "any"},
		{.sku = "class", .klass = "on-demand"},
		{.sku = "mode", .sharing_mode = "mig"},
		{.sku = "profile", .mig_profile = "1g.10gb"},
		{.sku = "model", .gpu_model = "A100-80GB"},
		{.sku = "model and class", .gpu_model = "A100-80GB", .klass = "on-demand"},
		{.sku = "model and profile", .gpu_model = "A100-80GB", .mig_profile = "1g.10gb"},
		{.sku = "model and profile again", .gpu_model = "A100-80GB", .mig_profile = "1g.10gb"},
		{.sku = "only a model", .gpu_model = "L4"},
		{.sku = "other class", .gpu_model = "A100-80GB", .mig_profile = "1g.10gb", .klass = "borrowed"},
	};
	static const struct rating_book book = {.version = "v",
	                                        .currency = "EUR",
	                                        .items = items,
	                                        .item_count = ARRAY_LEN(items)},
					empty = {.version = "v", .currency = "EUR"};
	static const struct {
		const char *name, *model, *profile, *mode, *klass, *want;
	} rows[] = {
		{"nothing matches but the item for anything", "L40S-48GB", "", "timeslice", "borrowed", "any"},
		{"a class beats nothing", "L40S-48GB", "", "timeslice", "on-demand", "class"},
		{"a sharing mode beats a class", "H100-80GB", "2g.20gb", "mig", "on-demand", "mode"},
		{"a profile beats a sharing mode", "H100-80GB", "1g.10gb", "mig", "on-demand", "profile"},
		{"a model beats a profile", "L4", "1g.10gb", "mig", "on-demand", "only a model"},
		{"a model beats a sharing mode", "A100-80GB", "2g.20gb", "mig", "borrowed", "model"},
		{"model and class beat the model", "A100-80GB", "2g.20gb", "mig", "on-demand", "model and class"},
		{"model and profile beat model and class, the first of two", "A100-80GB", "1g.10gb", "mig", "on-demand",
	         "model and profile"},
		{"all three beat two", "A100-80GB", "1g.10gb", "mig", "borrowed", "other class"},
		{"a whole GPU does not match a profile", "A100-80GB", "", "exclusive", "borrowed", "model"},
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		const struct usage_day row = {.tenant = "acme",
		                              .gpu_model = rows[i].model,
		                              .mig_profile = rows[i].profile,
		                              .sharing_mode = rows[i].mode,
		                              .klass = rows[i].klass};
		const struct rating_item *it = rating_price_of(&book, &row).item;

		if (it == NULL || strcmp(it->sku, rows[i].want) != 0)
			fail_msg("%s: got %s", rows[i].name, it ? it->sku : "nothing");
	}
	assert_null(rating_price_of(&empty, &(struct usage_day){.tenant = "acme",
	                                                        .gpu_model = "A100-80GB",
	                                                        .mig_profile = "",
	                                                        .sharing_mode = "exclusive",
	                                                        .klass = "on-demand"})
	                    .item);
}

static void
the_usage_lines_of_the_worked_example_cost_what_it_says(void **state)
{
	/* B of BILLING 5: 2 on-demand at 3.00 and 1 borrowed at 1.50 */
	static const struct rating_item items[] = {
		{.sku = "", .klass = "on-demand", .price = CENTS(300)},
		{.sku = "", .klass = "borrowed", .price = CENTS(150)},
	};
	static const struct rating_book book = {
		.version = "v1", .currency = "EUR", .items = items, .item_count = ARRAY_LEN(items)};
	struct usage_day days[] = {h100_day(1, 2 * GPU_HOUR, 0, 0), h100_day(1, GPU_HOUR, 0, 0)};
	struct rating_input in = november(days, 2);

	(void)state;
	days[1].klass = "borrowed";
	in.books = &book;
	owned(rated) struct rated *r = rate(&in);
	assert_int_equal(r->count, 2);
	assert_string_equal(r->lines[0].klass, "borrowed");
	assert_i128(r->lines[0].billed, 150);
	assert_i128(r->lines[1].billed, 600);
}

static void
eighty_one_rounded_lines_lose_no_cent(void **state)
{
	/* 81 x 0.0133... : each line alone would be 0.01, together 1.08 */
	static char names[81][8];
	struct usage_day days[81];
	static const struct rating_item item = {.sku = "", .price = 13333333};
	static const struct rating_book book = {.version = "v1", .currency = "EUR", .items = &item, .item_count = 1};
	struct rating_input in = november(days, ARRAY_LEN(days));
	int128 sum = 0;

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(days); i++) {
		snprintf(names[i], sizeof(names[i]), "ws-%zu", i);
		days[i] = h100_day(1, GPU_HOUR, 0, 0);
		days[i].workspace = names[i];
	}
	in.books = &book;
	owned(rated) struct rated *r = rate(&in);
	assert_int_equal(r->count, 81);
	for (size_t i = 0; i < r->count; i++) {
		assert_true(r->lines[i].billed == 1 || r->lines[i].billed == 2);
		assert_adds_up(&r->lines[i]);
		sum += r->lines[i].billed;
	}
	assert_i128(sum, 108);
}

static void
each_tenant_is_rounded_by_itself(void **state)
{
	/* 0.005 each: half to even is 0.00 for each invoice, though the two together are a cent */
	static const struct rating_item item = {.sku = "", .price = 5000000};
	static const struct rating_book book = {.version = "v1", .currency = "EUR", .items = &item, .item_count = 1};
	struct usage_day days[] = {h100_day(1, GPU_HOUR, 0, 0), h100_day(1, GPU_HOUR, 0, 0)};
	struct rating_input in = november(days, 2);

	(void)state;
	days[1].tenant = "globex";
	in.books = &book;
	owned(rated) struct rated *r = rate(&in);
	assert_i128(r->lines[0].billed, 0);
	assert_i128(r->lines[1].billed, 0);
	assert_string_equal(r->lines[1].invoice_id, "globex-2026-11-1");
}

static void
a_price_change_in_the_month_gives_two_lines(void **state)
{
	static const struct rating_item before = {.sku = "", .price = CENTS(300)},
					after = {.sku = "", .price = CENTS(320)};
	static const struct rating_book books[] = {
		{.version = "2026-11", .currency = "EUR", .items = &before, .item_count = 1},
		{.version = "2026-11b", .currency = "EUR", .items = &after, .item_count = 1}};
	struct usage_day days[] = {h100_day(1, GPU_HOUR, 0, 0), h100_day(1, GPU_HOUR, 0, 0)};
	struct rating_input in = november(days, 2);

	(void)state;
	days[1].price_book = 1;
	in.books = books;
	in.book_count = 2;
	owned(rated) struct rated *r = rate(&in);
	assert_int_equal(r->count, 2);
	assert_string_equal(r->lines[0].price_version, "2026-11");
	assert_i128(r->lines[0].billed, 300);
	assert_string_equal(r->lines[1].price_version, "2026-11b");
	assert_i128(r->lines[1].billed, 320);
	assert_string_not_equal(r->lines[0].line_id, r->lines[1].line_id);
}

static void
the_same_book_in_force_twice_gives_one_line(void **state)
{
	const struct rating_book books[] = {demo_books[0], demo_books[0]};
	struct usage_day days[] = {h100_day(1, GPU_HOUR, 0, 0), h100_day(2, GPU_HOUR, 0, 0)};
	struct rating_input in = november(days, 2);

	(void)state;
	days[1].price_book = 1;
	in.books = books;
	in.book_count = 2;
	owned(rated) struct rated *r = rate(&in);
	assert_int_equal(r->count, 1);
	assert_i128(r->lines[0].billed, 640);
}

static void
two_prices_are_two_lines_even_under_one_version(void **state)
{
	static const struct rating_item before = {.sku = "", .price = CENTS(300)},
					after = {.sku = "", .price = CENTS(320)};
	static const struct rating_book books[] = {
		{.version = "2026-11", .currency = "EUR", .items = &before, .item_count = 1},
		{.version = "2026-11", .currency = "EUR", .items = &after, .item_count = 1}};
	struct usage_day days[] = {h100_day(1, GPU_HOUR, 0, 0), h100_day(1, GPU_HOUR, 0, 0)};
	struct rating_input in = november(days, 2);

	(void)state;
	days[1].price_book = 1;
	in.books = books;
	in.book_count = 2;
	owned(rated) struct rated *r = rate(&in);
	assert_int_equal(r->count, 2);
	assert_i128(r->lines[0].billed + r->lines[1].billed, 620);
	assert_string_not_equal(r->lines[0].line_id, r->lines[1].line_id);
}

/* Hours before a change stay with the cost centre of then, on a line that keeps its id. */
static void
a_cost_centre_that_changed_is_another_line(void **state)
{
	struct usage_day days[] = {h100_day(1, GPU_HOUR, 0, 0), h100_day(2, 2 * GPU_HOUR, 0, 0)};
	struct rating_input in = november(days, 2);

	(void)state;
	owned(rated) struct rated *one = rate(&in);
	assert_int_equal(one->count, 1);
	days[1].cost_center = "9000";
	owned(rated) struct rated *two = rate(&in);
	assert_int_equal(two->count, 2);
	for (size_t i = 0; i < 2; i++) {
		const struct rated_line *l = &two->lines[i];
		bool first = strcmp(l->cost_center, "4711") == 0;

		assert_true(l->allocated_ngh == (first ? 1 : 2) * (int64_t)1000000000);
		assert_int_equal(strcmp(l->line_id, one->lines[0].line_id) == 0, first);
	}
	days[1].cost_center = "1000"; /* before the other in byte order, and later */
	owned(rated) struct rated *other = rate(&in);
	assert_int_equal(other->count, 2);
	assert_true(strcmp(other->lines[0].line_id, one->lines[0].line_id) == 0 ||
	            strcmp(other->lines[1].line_id, one->lines[0].line_id) == 0);
}

static void
usage_without_a_price_is_a_line_that_says_so(void **state)
{
	struct usage_day days[] = {h100_day(1, GPU_HOUR, 0, 0), h100_day(1, GPU_HOUR, 0, 0)};
	struct rating_input in = november(days, 2);

	(void)state;
	days[0].price_book = -1;          /* no book in force */
	days[1].gpu_model = "B200-180GB"; /* a book without an item for it */
	owned(rated) struct rated *r = rate(&in);
	assert_int_equal(r->count, 2);
	for (size_t i = 0; i < 2; i++) {
		assert_false(r->lines[i].priced);
		assert_string_equal(r->lines[i].price_version, "");
		assert_string_equal(r->lines[i].currency, "EUR");
		assert_int_equal(r->lines[i].quantity, 1000000000);
		assert_i128(r->lines[i].billed, 0);
		assert_non_null(strstr(r->lines[i].description, "no price"));
	}
}

static void
cents_are_those_of_the_currency(void **state)
{
	static const struct {
		const char *name, *currency;
		int scale;
		int64_t want;
	} rows[] = {
		{"yen have no decimals", "JPY", 0, 3},
		{"euros have two", "EUR", 2, 320},
		{"dinars of Kuwait have three", "KWD", 3, 3200},
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		struct rating_book book = demo_books[0];
		struct usage_day day = h100_day(1, GPU_HOUR, 0, 0);
		struct rating_input in = november(&day, 1);

		book.currency = rows[i].currency;
		in.books = &book;
		owned(rated) struct rated *r = rate(&in);
		if (r->lines[0].currency_scale != rows[i].scale || r->lines[0].billed != rows[i].want)
			fail_msg("%s: scale %d", rows[i].name, r->lines[0].currency_scale);
		assert_adds_up(&r->lines[0]);
	}
}

static void
a_month_with_two_currencies_has_two_totals(void **state)
{
	static const struct rating_item item = {.sku = "", .price = 5000000};
	static const struct rating_book books[] = {
		{.version = "a", .currency = "EUR", .items = &item, .item_count = 1},
		{.version = "b", .currency = "USD", .items = &item, .item_count = 1}};
	struct usage_day days[] = {h100_day(1, GPU_HOUR, 0, 0), h100_day(1, GPU_HOUR, 0, 0)};
	struct rating_input in = november(days, 2);

	(void)state;
	days[1].price_book = 1;
	in.books = books;
	in.book_count = 2;
	owned(rated) struct rated *r = rate(&in);
	assert_int_equal(r->count, 2);
	assert_string_equal(r->lines[0].currency, "EUR");
	assert_i128(r->lines[0].billed, 0);
	assert_string_equal(r->lines[1].currency, "USD");
	assert_i128(r->lines[1].billed, 0);
}

static void
an_item_names_its_own_sku(void **state)
{
	static const struct rating_item item = {.sku = "GPU-TOP", .price = CENTS(100)};
	static const struct rating_book book = {.version = "v1", .currency = "EUR", .items = &item, .item_count = 1};
	struct usage_day days[] = {h100_day(1, GPU_HOUR, 0, 0), mig_day("3g.40gb", 2340, 2340 * (int128)HOUR_NS)};
	struct rating_input in = november(days, 2);

	(void)state;
	in.books = &book;
	owned(rated) struct rated *r = rate(&in);
	assert_int_equal(r->count, 2); /* two kinds of device are two lines, also under one name */
	assert_string_equal(r->lines[0].sku, "GPU-TOP");
	assert_string_equal(r->lines[1].sku, "GPU-TOP");
	assert_string_not_equal(r->lines[0].line_id, r->lines[1].line_id);
}

static void
line_ids_tell_neighbouring_columns_apart(void **state)
{
	struct usage_day days[] = {h100_day(1, GPU_HOUR, 0, 0), h100_day(1, GPU_HOUR, 0, 0)};
	struct rating_input in = november(days, 2);

	(void)state;
	days[0].tenant = "ab";
	days[0].workspace = "c";
	days[1].tenant = "a";
	days[1].workspace = "bc";
	owned(rated) struct rated *r = rate(&in);
	assert_string_not_equal(r->lines[0].line_id, r->lines[1].line_id);
}

static void
a_line_id_does_not_depend_on_amounts_or_invoice_version(void **state)
{
	struct usage_day small = h100_day(1, GPU_HOUR, 0, 0), large = h100_day(7, 0, 9 * GPU_HOUR, 0);
	struct rating_input first = november(&small, 1), second = november(&large, 1);

	(void)state;
	second.invoice_version = 2;
	owned(rated) struct rated *a = rate(&first);
	owned(rated) struct rated *b = rate(&second);
	assert_string_equal(a->lines[0].line_id, b->lines[0].line_id);
	assert_string_equal(b->lines[0].invoice_id, "acme-2026-11-2");
	second.period = "2026-12";
	owned(rated) struct rated *c = rate(&second);
	assert_string_not_equal(a->lines[0].line_id, c->lines[0].line_id);
}

static void
sharing_is_told_in_the_description(void **state)
{
	static const struct {
		const char *mode, *want;
	} rows[] = {
		{"exclusive", "On-demand use of L40S-48GB"},
		{"timeslice", "On-demand use of L40S-48GB, time-sliced"},
		{"mps", "On-demand use of L40S-48GB, shared by MPS"},
		{"plain", "On-demand use of L40S-48GB, shared"},
	};
	static const struct rating_item item = {.sku = "", .price = CENTS(110)};
	static const struct rating_book book = {.version = "v1", .currency = "EUR", .items = &item, .item_count = 1};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		struct usage_day day = h100_day(1, GPU_HOUR, 0, 0);
		struct rating_input in = november(&day, 1);

		day.gpu_model = "L40S-48GB";
		day.sharing_mode = rows[i].mode;
		in.books = &book;
		owned(rated) struct rated *r = rate(&in);
		assert_string_equal(r->lines[0].description, rows[i].want);
	}
}

static void
lines_are_in_the_order_finance_reads_them(void **state)
{
	static const char *const order[][2] = {{"acme", "inference"}, {"acme", "training"}, {"globex", "research"}};
	struct usage_day days[] = {h100_day(1, GPU_HOUR, 0, 0), h100_day(1, GPU_HOUR, 0, 0),
	                           h100_day(1, GPU_HOUR, 0, 0)};
	struct rating_input in = november(days, 3);

	(void)state;
	for (size_t i = 0; i < 3; i++) {
		days[2 - i].tenant = order[i][0];
		days[2 - i].workspace = order[i][1];
	}
	owned(rated) struct rated *r = rate(&in);
	for (size_t i = 0; i < 3; i++) {
		assert_string_equal(r->lines[i].tenant, order[i][0]);
		assert_string_equal(r->lines[i].workspace, order[i][1]);
	}
}

static void
an_empty_month_has_no_lines(void **state)
{
	struct rating_input in = november(NULL, 0);
	owned(rated) struct rated *r = rate(&in);

	(void)state;
	assert_int_equal(r->count, 0);
}

static void
rows_in_which_nothing_happened_make_no_line(void **state)
{
	struct usage_day day = h100_day(1, 0, 0, 0);
	struct rating_input in = november(&day, 1);
	owned(rated) struct rated *r = rate(&in);

	(void)state;
	assert_int_equal(r->count, 0);
	day.energy_mj = 1;
	owned(rated) struct rated *with_energy = rate(&in);
	assert_int_equal(with_energy->count, 1);
}

static void
what_cannot_be_rated_is_refused(void **state)
{
	static const struct rating_book foreign = {
		.version = "v1", .currency = "XXX", .items = demo_items, .item_count = 1};
	static const struct {
		const char *name, *want;
		int64_t units, price_book;
		int128 used, energy;
		const struct rating_book *book;
	} rows[] = {
		{"negative usage", "used", 5040, 0, -1, 0, demo_books},
		{"negative energy", "energy", 5040, 0, 1, -1, demo_books},
		{"a device of no size", "instance_units", 0, 0, 1, 0, demo_books},
		{"a device above a whole GPU", "instance_units", 5041, 0, 1, 0, demo_books},
		{"a price book that is not there", "price_book", 5040, 1, 1, 0, demo_books},
		{"a currency without decimals", "XXX", 5040, 0, GPU_HOUR, 0, &foreign},
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		struct usage_day day = h100_day(1, rows[i].used, 0, 0);
		struct rating_input in = november(&day, 1);
		struct rated *r = NULL;
		struct err err = {0};

		day.instance_units = rows[i].units;
		day.price_book = rows[i].price_book;
		day.energy_mj = rows[i].energy;
		in.books = rows[i].book;
		if (rating_run(&in, &r, &err) || r != NULL || err.kind != ERR_INVALID ||
		    strstr(err.text, rows[i].want) == NULL)
			fail_msg("%s: \"%s\"", rows[i].name, err.text);
	}
}

static void
a_line_that_cannot_be_rated_is_named_and_changes_no_other(void **state)
{
	static const struct rating_item items[] = {{.sku = "", .gpu_model = "H100-80GB", .price = 2000000000},
	                                           {.sku = "", .gpu_model = "dear", .price = (int128)1 << 100},
	                                           {.sku = "", .gpu_model = "large", .price = 1000000000}};
	static const struct rating_book book = {.version = "v1", .currency = "EUR", .items = items, .item_count = 3};
	const int128 most = pow10_i128(RATING_COST_DIGITS);
	struct usage_day days[] = {h100_day(1, 3 * GPU_HOUR, 0, 0), h100_day(1, GPU_HOUR, 0, 0),
	                           h100_day(1, (most - 6) * GPU_HOUR, 0, 0)};
	struct rating_input in = november(days, 3);

	(void)state;
	days[1].gpu_model = "dear";
	days[2].gpu_model = "large";
	in.books = &book;
	owned(rated) struct rated *fits = rate(&in);
	for (size_t i = 0; i < 3; i++) {
		const struct rated_line *l = &fits->lines[i];

		assert_int_equal(l->unrated, strcmp(l->gpu_model, "dear") == 0);
		assert_int_equal(l->priced, !l->unrated);
		if (!l->unrated)
			continue;
		assert_i128(l->quantity, 1000000000);
		assert_i128(l->list_cost, 0);
		assert_i128(l->billed, 0);
		assert_non_null(strstr(l->description, "(not rated: the cost is beyond 10^18 EUR)"));
	}
	/* a second more, and the largest line does not fit the invoice */
	days[2].used_unit_ns += GPU_HOUR;
	owned(rated) struct rated *beyond = rate(&in);
	for (size_t i = 0; i < 3; i++) {
		assert_int_equal(beyond->lines[i].unrated, strcmp(beyond->lines[i].gpu_model, "H100-80GB") != 0);
		assert_string_equal(beyond->lines[i].line_id, fits->lines[i].line_id);
		if (!beyond->lines[i].unrated)
			assert_i128(beyond->lines[i].billed, 600);
	}
}

static void
a_trillion_tokens_cost_what_they_cost(void **state)
{
	static const struct rating_item item = {.sku = "", .price = 150, .meter = "inference-output-tokens"};
	static const struct rating_book book = {.version = "v1", .currency = "USD", .items = &item, .item_count = 1};
	struct usage_day days[2];
	struct rating_input in = november(days, 2);

	(void)state;
	for (size_t i = 0; i < 2; i++)
		days[i] = (struct usage_day){.day = (int32_t)i,
		                             .kind = CHARGE_METER,
		                             .cluster = "",
		                             .tenant = "acme",
		                             .cost_center = "",
		                             .workspace = "w",
		                             .gpu_model = "",
		                             .mig_profile = "",
		                             .sharing_mode = "",
		                             .klass = "",
		                             .meter = "inference-output-tokens",
		                             .category = "inference",
		                             .unit = "token",
		                             .meter_sku = "large",
		                             .quantity = (i == 0 ? INT64_C(1000000000000) : 1) *
		                                         pow10_i128(QUANTITY_SCALE)};
	in.books = &book;
	owned(rated) struct rated *r = rate(&in);
	assert_int_equal(r->count, 1);
	assert_i128(r->lines[0].quantity, INT64_C(1000000000001) * pow10_i128(QUANTITY_SCALE));
	assert_i128(r->lines[0].list_cost, (int128)INT64_C(1000000000001) * 150 * pow10_i128(QUANTITY_SCALE));
	assert_i128(r->lines[0].billed, 15000000);
	assert_i128(r->lines[0].days[0].billed, 15000000);
}

static void
sums_of_rows_beyond_the_numbers_are_refused(void **state)
{
	const int128 huge = ((int128)1 << 126) + ((int128)1 << 125);
	struct usage_day days[] = {h100_day(1, huge, 0, 0), h100_day(1, huge, 0, 0)};
	struct rating_input in = november(days, 2);
	struct rated *r = NULL;
	struct err err = {0};

	(void)state;
	assert_false(rating_run(&in, &r, &err));
	assert_int_equal(err.kind, ERR_INVALID);
	days[0] = days[1] = h100_day(1, 0, 0, 0);
	days[0].energy_mj = days[1].energy_mj = huge;
	assert_false(rating_run(&in, &r, &err));
	assert_int_equal(err.kind, ERR_INVALID);
}

static void
rounding_together_keeps_each_part_beside_its_own_value(void **state)
{
	static const struct {
		const char *name;
		int128 num[3];
		int128 want[3];
		int128 sum;
	} rows[] = {
		{"no part moves by more than one", {1099, 26, 26}, {11, 1, 0}, 12},
		{"ties go to the lower index", {150, 150, 100}, {2, 1, 1}, 4},
		{"even parts stay as they are", {100, 200, 51}, {1, 2, 1}, 4},
		{"credits add up too", {-150, 250, -30}, {-1, 2, 0}, 1},
		{"credits are rounded down before the rest is given out", {-150, 250, -80}, {-1, 2, -1}, 0},
		{"nothing is nothing", {0, 0, 0}, {0, 0, 0}, 0},
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		int128 out[3], sum;

		assert_true(round_together(rows[i].num, 3, 100, out, &sum));
		if (sum != rows[i].sum || memcmp(out, rows[i].want, sizeof(out)) != 0)
			fail_msg("%s: %d %d %d", rows[i].name, (int)out[0], (int)out[1], (int)out[2]);
	}
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(one_gpu_for_one_hour_costs_its_price),
		cmocka_unit_test(a_profile_with_its_own_price_is_billed_per_instance_hour),
		cmocka_unit_test(a_profile_without_a_price_is_billed_as_its_share_of_the_gpu),
		cmocka_unit_test(a_day_is_quantised_half_to_even),
		cmocka_unit_test(each_day_is_quantised_by_itself_and_only_once),
		cmocka_unit_test(the_most_specific_price_wins),
		cmocka_unit_test(the_usage_lines_of_the_worked_example_cost_what_it_says),
		cmocka_unit_test(eighty_one_rounded_lines_lose_no_cent),
		cmocka_unit_test(each_tenant_is_rounded_by_itself),
		cmocka_unit_test(a_price_change_in_the_month_gives_two_lines),
		cmocka_unit_test(the_same_book_in_force_twice_gives_one_line),
		cmocka_unit_test(two_prices_are_two_lines_even_under_one_version),
		cmocka_unit_test(a_cost_centre_that_changed_is_another_line),
		cmocka_unit_test(usage_without_a_price_is_a_line_that_says_so),
		cmocka_unit_test(cents_are_those_of_the_currency),
		cmocka_unit_test(a_month_with_two_currencies_has_two_totals),
		cmocka_unit_test(an_item_names_its_own_sku),
		cmocka_unit_test(line_ids_tell_neighbouring_columns_apart),
		cmocka_unit_test(a_line_id_does_not_depend_on_amounts_or_invoice_version),
		cmocka_unit_test(sharing_is_told_in_the_description),
		cmocka_unit_test(lines_are_in_the_order_finance_reads_them),
		cmocka_unit_test(an_empty_month_has_no_lines),
		cmocka_unit_test(rows_in_which_nothing_happened_make_no_line),
		cmocka_unit_test(what_cannot_be_rated_is_refused),
		cmocka_unit_test(a_line_that_cannot_be_rated_is_named_and_changes_no_other),
		cmocka_unit_test(a_trillion_tokens_cost_what_they_cost),
		cmocka_unit_test(sums_of_rows_beyond_the_numbers_are_refused),
		cmocka_unit_test(rounding_together_keeps_each_part_beside_its_own_value),
	};

	return cmocka_run_group_tests_name("rating", tests, NULL, NULL);
}
