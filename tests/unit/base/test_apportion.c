/* tests/unit/base/test_apportion.c - largest remainder: worked splits, ties, debts, and the edges of 128 bits. */
#include "common/base/apportion.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#define ROW_MAX 8

static const struct {
	const char *name;
	int64_t total;
	size_t n;
	int64_t weight[ROW_MAX];
	int64_t part[ROW_MAX];
} rows[] = {
	{"one party has it all", 100, 1, {7}, {100}},
	{"an even split needs no remainder", 100, 4, {1, 1, 1, 1}, {25, 25, 25, 25}},
	{"ties go to the lower index", 10, 3, {1, 1, 1}, {4, 3, 3}},
	{"two left over go to the two lowest", 11, 3, {1, 1, 1}, {4, 4, 3}},
	{"the largest remainders win, not the largest weights", 10, 3, {5, 4, 2}, {4, 4, 2}},
	{"the largest remainder may be last", 1, 3, {1, 1, 2}, {0, 0, 1}},
	{"three equal remainders and two left over", 10, 3, {1, 4, 1}, {2, 7, 1}},
	{"a weight of 0 gets nothing, even in a tie", 5, 4, {0, 1, 0, 1}, {0, 3, 0, 2}},
	{"a total of 0 gives everybody 0", 0, 3, {3, 0, 9}, {0, 0, 0}},
	{"a total below the number of parties", 2, 5, {1, 1, 1, 1, 1}, {1, 1, 0, 0, 0}},
	{"a debt is split as the same credit would be", -10, 3, {1, 1, 1}, {-4, -3, -3}},
	{"a debt of one", -1, 2, {1, 1}, {-1, 0}},
	{"a debt with unequal weights", -10, 3, {5, 3, 1}, {-6, -3, -1}},
	{"the weights need not be small", 3, 2, {INT64_MAX, INT64_MAX}, {2, 1}},
	{"the total need not be small", INT64_MAX, 2, {1, 1}, {INT64_MAX / 2 + 1, INT64_MAX / 2}},
	{"a tick of one second between three holders", 1000000000, 3, {1, 1, 1}, {333333334, 333333333, 333333333}},
};

static void
each_worked_split_comes_out(void **state)
{
	(void)state;
	for (size_t r = 0; r < ARRAY_LEN(rows); r++) {
		int128 weight[ROW_MAX], part[ROW_MAX];

		for (size_t i = 0; i < rows[r].n; i++)
			weight[i] = rows[r].weight[i];
		if (!apportion(rows[r].total, weight, rows[r].n, part))
			fail_msg("%s: nobody gets it", rows[r].name);
		for (size_t i = 0; i < rows[r].n; i++)
			if (part[i] != rows[r].part[i])
				fail_msg("%s: part %zu is %" PRId64 " instead of %" PRId64, rows[r].name, i,
				         (int64_t)part[i], rows[r].part[i]);
	}
}

static void
a_total_without_weights_belongs_to_nobody(void **state)
{
	int128 none[3] = {0, 0, 0}, part[3] = {7, 7, 7};

	(void)state;
	assert_false(apportion(10, none, 3, part));
	for (int i = 0; i < 3; i++)
		assert_true(part[i] == 0);
	assert_false(apportion(10, NULL, 0, NULL));
}

static void
the_bounds_of_128_bits_are_split_exactly(void **state)
{
	const int128 most = ((int128)1 << 126) - 1;
	int128 weight[3] = {1, 1, 1}, part[3];

	(void)state;
	assert_true(apportion(most, weight, 3, part));
	assert_true(part[0] == most / 3 && part[1] == most / 3 && part[2] == most / 3);
	assert_true(part[0] + part[1] + part[2] == most);
	assert_true(apportion(-most, weight, 2, part));
	assert_true(part[0] == -(most / 2 + 1) && part[1] == -(most / 2));

	weight[0] = most - 1;
	weight[1] = 1;
	assert_true(apportion(1, weight, 2, part));
	assert_true(part[0] == 1 && part[1] == 0);
}

/* Unit-nanoseconds of a GPU's month, among holders in proportion to nanoseconds. */
static void
a_months_unit_nanoseconds_are_split_exactly(void **state)
{
	const int128 month_ns = (int128)31 * 86400 * 1000000000;
	const int128 total = month_ns * 5040;
	int128 weight[3] = {month_ns, month_ns - 1, 1}, part[3];

	(void)state;
	assert_true(apportion(total, weight, 3, part));
	assert_true(part[0] + part[1] + part[2] == total);
	assert_true(part[0] == total / 2 && part[2] == 2520 && part[1] == total / 2 - 2520);
}

/* A pool of 20,000 GPUs for an hour: the products have more than 128 bits. */
static void
products_beyond_128_bits_are_exact(void **state)
{
	const int128 gpu_hour = (int128)5040 * 3600 * 1000000000;
	const int128 total = gpu_hour * 20000 + 1;
	int128 weight[3] = {gpu_hour * 7000, gpu_hour * 7000, gpu_hour * 7000}, part[3];

	(void)state;
	assert_true(apportion(total, weight, 3, part));
	assert_true(part[0] == total / 3 + (total % 3 > 0) && part[1] == total / 3 + (total % 3 > 1) &&
	            part[2] == total / 3);
	weight[1] = gpu_hour * 3000;
	weight[2] = 0;
	assert_true(apportion(-total, weight, 3, part));
	assert_true(part[0] == -(gpu_hour * 14000 + 1) && part[1] == -gpu_hour * 6000 && part[2] == 0);
}

/* More parties than are kept on the stack. */
static void
many_parties_are_served_in_order(void **state)
{
	int128 weight[1000], part[1000];

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(weight); i++)
		weight[i] = 1;
	assert_true(apportion(1500, weight, ARRAY_LEN(weight), part));
	for (size_t i = 0; i < ARRAY_LEN(weight); i++)
		assert_true(part[i] == (i < 500 ? 2 : 1));
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(each_worked_split_comes_out),
		cmocka_unit_test(a_total_without_weights_belongs_to_nobody),
		cmocka_unit_test(the_bounds_of_128_bits_are_split_exactly),
		cmocka_unit_test(a_months_unit_nanoseconds_are_split_exactly),
		cmocka_unit_test(products_beyond_128_bits_are_exact),
		cmocka_unit_test(many_parties_are_served_in_order),
	};

	return cmocka_run_group_tests_name("split", tests, NULL, NULL);
}
