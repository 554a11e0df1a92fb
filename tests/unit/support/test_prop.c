/* tests/unit/support/test_prop.c - the property tests' own helper: it must find, shrink and replay failures. */
#include "tests/support/harness/prop.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

struct list {
	size_t count;
	int64_t item[32];
};

static void
make_list(struct prop_source *s, void *c)
{
	struct list *l = c;

	l->count = prop_index(s, ARRAY_LEN(l->item) + 1);
	for (size_t i = 0; i < l->count; i++)
		l->item[i] = prop_i64(s, -1000000, 1000000);
}

static void
show_list(const void *c, struct buf *out)
{
	const struct list *l = c;

	for (size_t i = 0; i < l->count; i++) {
		if (i > 0)
			buf_char(out, ' ');
		buf_i64(out, l->item[i]);
	}
}

static bool
always(const void *c, struct buf *why)
{
	(void)c;
	(void)why;
	return true;
}

static bool
no_item_reaches_1234(const void *c, struct buf *why)
{
	const struct list *l = c;

	for (size_t i = 0; i < l->count; i++)
		if (l->item[i] >= 1234) {
			buf_printf(why, "item %zu", i);
			return false;
		}
	return true;
}

static bool
fewer_than_three_items_are_negative(const void *c, struct buf *why)
{
	const struct list *l = c;
	int negative = 0;

	for (size_t i = 0; i < l->count; i++)
		negative += l->item[i] < 0;
	buf_printf(why, "%d", negative);
	return negative < 3;
}

static void
a_property_that_holds_passes_without_a_report(void **state)
{
	const struct prop_test t = {"holds", sizeof(struct list), make_list, always, show_list, NULL};
	in_place(buf) struct buf report = {.max = 100000};

	(void)state;
	assert_true(prop_run(&t, 1, 500, &report));
	assert_int_equal(report.len, 0);
}

static void
a_failure_is_shrunk_to_the_smallest_case_from_any_seed(void **state)
{
	const struct prop_test one = {"no 1234", sizeof(struct list), make_list, no_item_reaches_1234, show_list, NULL};
	const struct prop_test three = {"few",     sizeof(struct list),
	                                make_list, fewer_than_three_items_are_negative,
	                                show_list, NULL};

	(void)state;
	for (uint64_t seed = 0; seed < 50; seed++) {
		in_place(buf) struct buf a = {.max = 100000}, b = {.max = 100000};

		assert_false(prop_run(&one, seed, 1000, &a));
		if (!strstr(buf_text(&a), "case: 1234\n") || !strstr(buf_text(&a), "found: item 0\n"))
			fail_msg("seed %" PRIu64 ":\n%s", seed, buf_text(&a));
		assert_false(prop_run(&three, seed, 1000, &b));
		if (!strstr(buf_text(&b), "case: -1 -1 -1\n"))
			fail_msg("seed %" PRIu64 ":\n%s", seed, buf_text(&b));
	}
}

static void
the_seed_in_the_report_replays_the_failure_in_one_case(void **state)
{
	const struct prop_test t = {"no 1234", sizeof(struct list), make_list, no_item_reaches_1234, show_list, NULL};

	(void)state;
	for (uint64_t seed = 1000; seed < 1020; seed++) {
		in_place(buf) struct buf first = {.max = 100000}, again = {.max = 100000};
		const char *at;
		uint64_t own;

		assert_false(prop_run(&t, seed, 1000, &first));
		at = strstr(buf_text(&first), "replay: TOLLGATE_PROP_SEED=0x");
		assert_non_null(at);
		own = strtoull(strchr(at, '=') + 1, NULL, 16);
		assert_false(prop_run(&t, own, 1, &again));
		assert_non_null(strstr(buf_text(&again), "case: 1234\n"));
	}
}

static void
the_same_seed_gives_the_same_report(void **state)
{
	const struct prop_test t = {"few",     sizeof(struct list),
	                            make_list, fewer_than_three_items_are_negative,
	                            show_list, NULL};
	in_place(buf) struct buf a = {.max = 100000}, b = {.max = 100000};

	(void)state;
	assert_false(prop_run(&t, 77, 1000, &a));
	assert_false(prop_run(&t, 77, 1000, &b));
	assert_string_equal(buf_text(&a), buf_text(&b));
}

/* Ranges: each draw stays inside and reaches both ends. */
struct ranges {
	int64_t around, above, below, fixed;
	int128 wide;
	uint64_t full;
};

static bool seen_least, seen_most, seen_above, seen_below, seen_full;

static void
make_ranges(struct prop_source *s, void *c)
{
	struct ranges *r = c;

	r->around = prop_i64(s, INT64_MIN, INT64_MAX);
	r->above = prop_i64(s, 5, 9);
	r->below = prop_i64(s, -9, -5);
	r->fixed = prop_i64(s, 3, 3);
	r->wide = prop_i128(s, 126);
	r->full = prop_u64(s, UINT64_MAX);
}

static bool
ranges_hold(const void *c, struct buf *why)
{
	const int128 limit = (int128)1 << 126;
	const struct ranges *r = c;

	(void)why;
	seen_least |= r->around == INT64_MIN;
	seen_most |= r->around == INT64_MAX;
	seen_above |= r->above == 9;
	seen_below |= r->below == -9;
	seen_full |= r->full == UINT64_MAX;
	return r->above >= 5 && r->above <= 9 && r->below >= -9 && r->below <= -5 && r->fixed == 3 && r->wide < limit &&
	       r->wide > -limit;
}

static void
show_ranges(const void *c, struct buf *out)
{
	buf_i64(out, ((const struct ranges *)c)->around);
}

static void
draws_stay_in_their_range_and_reach_its_ends(void **state)
{
	const struct prop_test t = {"ranges", sizeof(struct ranges), make_ranges, ranges_hold, show_ranges, NULL};
	in_place(buf) struct buf report = {.max = 100000};

	(void)state;
	if (!prop_run(&t, 3, 2000, &report))
		fail_msg("%s", buf_text(&report));
	assert_true(seen_least && seen_most && seen_above && seen_below && seen_full);
}

static int live;

static void
make_owning(struct prop_source *s, void *c)
{
	*(char **)c = mem_printf("%" PRIu64, prop_u64(s, 100));
	live++;
}

static bool
owning_is_small(const void *c, struct buf *why)
{
	(void)why;
	return strlen(*(char *const *)c) < 2;
}

static void
show_owning(const void *c, struct buf *out)
{
	buf_str(out, *(char *const *)c);
}

static void
free_owning(void *c)
{
	mem_free(*(char **)c);
	live--;
}

static void
every_case_made_is_freed(void **state)
{
	const struct prop_test t = {"owning", sizeof(char *), make_owning, owning_is_small, show_owning, free_owning};
	in_place(buf) struct buf report = {.max = 100000};

	(void)state;
	assert_false(prop_run(&t, 5, 1000, &report));
	assert_non_null(strstr(buf_text(&report), "case: 10\n"));
	assert_int_equal(live, 0);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_property_that_holds_passes_without_a_report),
		cmocka_unit_test(a_failure_is_shrunk_to_the_smallest_case_from_any_seed),
		cmocka_unit_test(the_seed_in_the_report_replays_the_failure_in_one_case),
		cmocka_unit_test(the_same_seed_gives_the_same_report),
		cmocka_unit_test(draws_stay_in_their_range_and_reach_its_ends),
		cmocka_unit_test(every_case_made_is_freed),
	};

	return cmocka_run_group_tests_name("prop", tests, NULL, NULL);
}
