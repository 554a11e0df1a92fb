/* tests/unit/rating/test_shared_cost.c - what nobody held of shared nodes: who pays, and that the parts add up. */
#include "aggregator/core/rating/shared_cost.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/time.h"
#include "common/base/units.h"

#define PARTIES 3

static const struct rating_weight weights[] = {{"acme", 2}, {"globex", 1}};

static const struct method_case {
	const char *name;
	enum shared_method method;
	int64_t idle;
	int64_t held[PARTIES]; /* of acme, globex, initech */
	int64_t want[PARTIES];
} cases[] = {
	{"the platform pays where no method is declared", SHARED_NONE, 90, {10, 20, 30}, {0, 0, 0}},
	{"even parts for those that held something", SHARED_EVEN, 90, {10, 0, 30}, {45, 0, 45}},
	{"what does not divide goes to the lower id", SHARED_EVEN, 91, {10, 1, 30}, {31, 30, 30}},
	{"in proportion to what was held", SHARED_PROPORTIONAL, 90, {10, 20, 60}, {10, 20, 60}},
	{"a proportion that does not divide goes to the largest remainder",
         SHARED_PROPORTIONAL,
         10,
         {1, 1, 5},
         {2, 1, 7}},
	{"by declared weights, whoever held something", SHARED_WEIGHTS, 90, {0, 0, 30}, {60, 30, 0}},
	{"nobody held anything, so nobody pays", SHARED_PROPORTIONAL, 90, {0, 0, 0}, {0, 0, 0}},
	{"nothing was idle", SHARED_EVEN, 0, {10, 20, 30}, {0, 0, 0}},
};

static const char *const names[PARTIES] = {"acme", "globex", "initech"};

static void
each_method_divides_what_was_idle(void **state)
{
	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		const struct method_case *c = &cases[i];
		const struct rating_book book = {.shared_idle = c->method,
		                                 .weights = weights,
		                                 .weight_count = ARRAY_LEN(weights)};
		const struct shared_pool pool = {
			.day = 3, .cluster = "demo", .gpu_model = "L4", .idle_unit_ns = c->idle};
		struct shared_tenant parties[PARTIES];
		struct usage_day rows[PARTIES];
		int64_t got[PARTIES] = {0};
		size_t n;

		for (size_t k = 0; k < PARTIES; k++)
			parties[k] = (struct shared_tenant){names[k], "", c->held[k]};
		n = shared_cost_rows(&book, &pool, parties, PARTIES, rows);
		for (size_t r = 0; r < n; r++)
			for (size_t k = 0; k < PARTIES; k++)
				if (strcmp(rows[r].tenant, names[k]) == 0)
					got[k] += (int64_t)rows[r].unit_ns;
		for (size_t k = 0; k < PARTIES; k++)
			if (got[k] != c->want[k])
				fail_msg("%s: %s pays %" PRId64 ", not %" PRId64, c->name, names[k], got[k],
				         c->want[k]);
	}
}

static void
a_share_is_a_line_at_the_dedicated_price(void **state)
{
	static const struct rating_item items[] = {{.sku = "", .price = 3000000000},
	                                           {.sku = "", .klass = "dedicated", .price = 500000000}};
	const struct rating_book book = {.version = "v1",
	                                 .currency = "EUR",
	                                 .items = items,
	                                 .item_count = ARRAY_LEN(items),
	                                 .shared_idle = SHARED_WEIGHTS,
	                                 .weights = weights,
	                                 .weight_count = ARRAY_LEN(weights)};
	const struct shared_pool pool = {.cluster = "demo",
	                                 .gpu_model = "L4",
	                                 .idle_unit_ns = (int128)UNITS_PER_GPU * NS_PER_HOUR * 30};
	const struct shared_tenant parties[] = {{"acme", "4711", 0}, {"globex", "", 0}};
	struct usage_day rows[2];
	const struct rating_input in = {.period_start = "2026-11-01",
	                                .period_end = "2026-12-01",
	                                .period = "2026-11",
	                                .period_status = "open",
	                                .currency = "EUR",
	                                .invoice_version = 1,
	                                .books = &book,
	                                .book_count = 1,
	                                .days = rows,
	                                .day_count = shared_cost_rows(&book, &pool, parties, 2, rows)};
	owned(rated) struct rated *r = NULL;
	struct err err = {0};

	(void)state;
	assert_int_equal(in.day_count, 2);
	if (!rating_run(&in, &r, &err))
		fail_msg("%s", err.text);
	assert_int_equal(r->count, 2);
	assert_string_equal(r->lines[0].tenant, "acme");
	assert_string_equal(r->lines[0].cost_center, "4711");
	assert_string_equal(r->lines[0].charge_type, "usage");
	assert_string_equal(r->lines[0].klass, "dedicated");
	assert_string_equal(r->lines[0].description, "Share of L4 on shared nodes, held by nobody");
	assert_true(r->lines[0].billed == 1000);
	assert_true(r->lines[1].billed == 500);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(each_method_divides_what_was_idle),
		cmocka_unit_test(a_share_is_a_line_at_the_dedicated_price),
	};

	return cmocka_run_group_tests_name("shared_cost", tests, NULL, NULL);
}
