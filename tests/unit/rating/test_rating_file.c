/* tests/unit/rating/test_rating_file.c - what a month was rated from, as a text and back. */
#include "aggregator/core/rating/rating_file.h"

#include <string.h>

#include "tests/support/billing/rates.h"

static const struct rating_item items[] = {
	{.sku = "", .gpu_model = "H100-80GB", .price = CENTS(333), .tenant = "acme", .basis_used = true},
	{.sku = "a\tb\\c\nd\r", .meter = "storage", .price = 1},
};
static const struct rating_discount discounts[] = {{.tenant = "acme", .ratio = 100}};
static const struct rating_site sites[] = {{.cluster = "c", .energy_price = -1, .carbon = 380}};
static const struct rating_weight weights[] = {{.tenant = "acme", .weight = 2}};
static const struct rating_book books[] = {
	{.version = "v1", .currency = "EUR", .items = items, .item_count = 1, .platform_cost = -1},
	{.version = "v2",
         .currency = "EUR",
         .items = items + 1,
         .item_count = 1,
         .discounts = discounts,
         .discount_count = 1,
         .sites = sites,
         .site_count = 1,
         .weights = weights,
         .weight_count = 1,
         .shared_idle = SHARED_WEIGHTS},
};
static const struct usage_day day = {.kind = CHARGE_USAGE,
                                     .cluster = "c",
                                     .tenant = "acme",
                                     .cost_center = "4\t2",
                                     .workspace = "w",
                                     .gpu_model = "H100-80GB",
                                     .mig_profile = "",
                                     .sharing_mode = "exclusive",
                                     .klass = "on-demand",
                                     .instance_units = 5040,
                                     .price_book = 1,
                                     .used_unit_ns = GPU_HOUR};
static const struct rating_input month = {NOVEMBER_2026, .books = books, .book_count = 2, .days = &day, .day_count = 1};

static void
write(const struct rating_input *in, struct buf *out)
{
	rating_file_prices(in, out);
	rating_file_rows(in, out);
}

static void
what_was_read_is_written_as_the_same_bytes_and_rated_alike(void **state)
{
	owned(rating_file) struct rating_file *f = NULL;
	owned(rated) struct rated *before = rate(&month), *after = NULL;
	in_place(buf) struct buf text, again;
	struct err err = {0};

	(void)state;
	buf_init(&text, 1u << 20);
	buf_init(&again, 1u << 20);
	write(&month, &text);
	if (!rating_file_read(buf_text(&text), text.len, &f, &err))
		fail_msg("%s", err.text);
	write(&f->in, &again);
	assert_string_equal(buf_text(&text), buf_text(&again));
	assert_string_equal(f->in.books[1].items[0].sku, items[1].sku);
	assert_null(f->in.books[0].items[0].meter);
	assert_string_equal(f->in.days[0].cost_center, "4\t2");
	after = rate(&f->in);
	assert_int_equal(after->count, before->count);
	assert_string_equal(after->lines[0].line_id, before->lines[0].line_id);
}

static void
other_bytes_are_refused(void **state)
{
	static const char *const wrong[] = {
		"M",
		"X\t1\n",
		"M\t2026-11\n",
		"I\t\\N\n",
		"M\t2026-11\t2026-11-01\t2026-12-01\tEUR\tone\n",
		"M\t2026-11\t2026-11-01\t2026-12-01\tEUR\t1\t2\n",
		"M\t2026-11\t2026-11-01\t2026-12-01\tE\\UR\t1\n",
		"",
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(wrong); i++) {
		owned(rating_file) struct rating_file *f = NULL;
		struct err err = {0};

		if (rating_file_read(wrong[i], strlen(wrong[i]), &f, &err) || err.kind != ERR_INVALID)
			fail_msg("taken: %s", wrong[i]);
	}
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_was_read_is_written_as_the_same_bytes_and_rated_alike),
		cmocka_unit_test(other_bytes_are_refused),
	};

	return cmocka_run_group_tests_name("rating_file", tests, NULL, NULL);
}
