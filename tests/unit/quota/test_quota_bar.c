/* tests/unit/quota/test_quota_bar.c - a workspace's GPUs as a bar. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "aggregator/cli/commands/quota_bar.h"

static const struct {
	const char *name;
	struct quota_bar bar;
	const char *want;
} rows[] = {
	{"nothing is there", {0, 0, 0, 0, 0, 0}, "[........................]"},
	{"half of the limit is used", {8, 0, 4, 0, 0, 0}, "[############............]"},
	{"what is reserved and idle is apart from what is left", {8, 4, 2, 0, 0, 0}, "[######------............]"},
	{"what is beyond the reservation and of others is borrowed", {12, 4, 6, 2, 0, 0}, "[########++++............]"},
	{"what is on demand is not borrowed", {12, 4, 8, 2, 0, 2}, "[########****++++........]"},
	{"what is lent is part of the idle reservation", {8, 8, 2, 0, 4, 0}, "[######============------]"},
	{"the smallest part is seen", {1000, 0, 1, 0, 0, 0}, "[#.......................]"},
	{"without a limit the bar ends at what is reserved", {-1, 4, 2, 0, 0, 0}, "[############------------]"},
	{"without a limit and a reservation it is full", {-1, 0, 3, 3, 0, 0}, "[++++++++++++++++++++++++]"},
	{"more than the limit is no longer bar", {2, 0, 4, 4, 0, 0}, "[++++++++++++++++++++++++]"},
};

static void
each_bar_is_as_drawn(void **state)
{
	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		in_place(buf) struct buf out;

		buf_init(&out, 1024);
		quota_bar_write(&rows[i].bar, false, &out);
		if (strcmp(buf_text(&out), rows[i].want) != 0)
			fail_msg("%s: %s, not %s", rows[i].name, buf_text(&out), rows[i].want);
	}
}

/* Whatever the numbers are, they come from a server. */
static void
any_bar_is_as_long_as_every_other(void **state)
{
	uint64_t seed = UINT64_C(0x9e3779b97f4a7c15);

	(void)state;
	for (int i = 0; i < 20000; i++) {
		int64_t v[6];
		in_place(buf) struct buf out;

		for (size_t k = 0; k < ARRAY_LEN(v); k++) {
			seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
			v[k] = (int64_t)(seed >> 33) % (INT64_C(1) << (i % 31)) - 1;
		}
		buf_init(&out, 1024);
		quota_bar_write(&(struct quota_bar){v[0], v[1], v[2], v[3], v[4], v[5]}, false, &out);
		assert_int_equal(out.len, QUOTA_BAR_CELLS + 2);
	}
}

static void
a_colour_is_only_around_what_is_there(void **state)
{
	in_place(buf) struct buf out;

	(void)state;
	buf_init(&out, 1024);
	quota_bar_write(&(struct quota_bar){8, 0, 4, 0, 0, 0}, true, &out);
	assert_string_equal(buf_text(&out), "[\033[32m############\033[0m............]");
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(each_bar_is_as_drawn),
		cmocka_unit_test(any_bar_is_as_long_as_every_other),
		cmocka_unit_test(a_colour_is_only_around_what_is_there),
	};

	return cmocka_run_group_tests_name("quota_bar", tests, NULL, NULL);
}
