/* tests/unit/rating/test_refund.c - what was charged for a lost device: its part of the lines of that day, rounded once. */
#include <string.h>

#include "tests/support/billing/rates.h"

#include "aggregator/core/rating/refund.h"

static const struct rating_item items[] = {{.sku = "", .klass = "on-demand", .price = CENTS(300)},
                                           {.sku = "", .klass = "reserved", .price = CENTS(200)}};
static const struct rating_book book = {
	.version = "1", .currency = "EUR", .items = items, .item_count = ARRAY_LEN(items), .platform_cost = -1};

#define HELD(kind_, day_, ...)                                                                                         \
	{                                                                                                              \
		.kind = (kind_), .day = (day_), .cluster = "c", .tenant = "acme", .cost_center = "", .workspace = "w", \
		.gpu_model = "H100-80GB", .mig_profile = "", .sharing_mode = "exclusive",                              \
		.klass = (kind_) == CHARGE_USAGE ? "on-demand" : "reserved", .instance_units = 5040, __VA_ARGS__       \
	}
static const struct usage_day days[] = {
	HELD(CHARGE_USAGE, 0, .idle_unit_ns = 3 * GPU_HOUR),
	HELD(CHARGE_USAGE, 1, .idle_unit_ns = GPU_HOUR),
	HELD(CHARGE_COMMITMENT, 1, .unit_ns = 2 * GPU_HOUR, .reservation = 1),
	HELD(CHARGE_COVERED, 1, .idle_unit_ns = 2 * GPU_HOUR, .reservation = 1),
};
static const struct rating_input november = {NOVEMBER_2026, .books = &book, .book_count = 1, .days = days,
                                             .day_count = ARRAY_LEN(days)};

#define PART(refund_, day_, held_, all_)                                                                        \
	{                                                                                                       \
		.refund = (refund_), .day = (day_), .tenant = "acme", .workspace = "w", .cluster = "c",         \
		.gpu_model = "H100-80GB", .mig_profile = "", .sharing_mode = "exclusive", .price_version = "1", \
		.held = (held_), .all = (all_)                                                                  \
	}

static void
it_is_the_part_of_each_days_lines_and_reserved_time_costs_nothing(void **state)
{
	/* a third of the first day's three hours; half of the second's, of which two thirds were reserved */
	static const struct refund_part parts[] = {PART(0, 0, GPU_HOUR, 3 * GPU_HOUR), PART(0, 1, 3, 6),
	                                           PART(1, 0, 1, 7)};
	owned(rated) struct rated *r = rate(&november);
	in_place(refund_charges) struct refund_charges c = {0};
	struct refund_charge of;
	struct err err = {0};

	(void)state;
	assert_true(refund_add(&c, r, parts, ARRAY_LEN(parts), &err));
	assert_true(refund_charge_at(&c, 0, 0, &of));
	assert_string_equal(of.currency, "EUR");
	assert_int_equal(of.charged, 300 + 150);
	assert_int_equal(of.gpu_ngh, INT64_C(2500000000));
	assert_int_equal(of.reserved_ngh, INT64_C(1000000000));
	assert_false(refund_charge_at(&c, 0, 1, &of));
	assert_true(refund_charge_at(&c, 1, 0, &of));
	assert_int_equal(of.charged, 129); /* 9.00 / 7 */
	assert_false(refund_charge_at(&c, 2, 0, &of));
}

static void
other_kinds_and_other_days_are_not_its_own(void **state)
{
	static const struct refund_part parts[] = {PART(0, 2, 1, 1)};
	struct refund_part other = PART(0, 0, 1, 1);
	owned(rated) struct rated *r = rate(&november);
	in_place(refund_charges) struct refund_charges c = {0};
	struct err err = {0};

	(void)state;
	assert_true(refund_add(&c, r, parts, 1, &err));
	other.gpu_model = "A100-80GB";
	assert_true(refund_add(&c, r, &other, 1, &err));
	other.gpu_model = "H100-80GB";
	other.workspace = "x";
	assert_true(refund_add(&c, r, &other, 1, &err));
	assert_int_equal(c.count, 0);
}

static void
more_than_there_was_is_refused(void **state)
{
	static const struct refund_part parts[] = {PART(0, 0, 2, 1)}, none[] = {PART(0, 0, 0, 1)};
	owned(rated) struct rated *r = rate(&november);
	in_place(refund_charges) struct refund_charges c = {0};
	struct err err = {0};

	(void)state;
	assert_false(refund_add(&c, r, parts, 1, &err));
	assert_non_null(strstr(err.text, "no part"));
	assert_false(refund_add(&c, r, none, 1, &err));
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(it_is_the_part_of_each_days_lines_and_reserved_time_costs_nothing),
		cmocka_unit_test(other_kinds_and_other_days_are_not_its_own),
		cmocka_unit_test(more_than_there_was_is_refused),
	};

	return cmocka_run_group_tests_name("refund", tests, NULL, NULL);
}
