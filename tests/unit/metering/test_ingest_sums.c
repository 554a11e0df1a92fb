/* tests/unit/metering/test_ingest_sums.c - what a push adds, by workspace, class of device and state. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "aggregator/core/metering/ingest_sums.h"

/* A row of zeros when there is none. */
static struct ingest_sum
find(const struct ingest_sums *s, int32_t workspace, int32_t device_class, enum usage_state state)
{
	for (size_t i = 0; i < s->count; i++)
		if (s->at[i].workspace_id == workspace && s->at[i].device_class == device_class &&
		    s->at[i].state == state)
			return s->at[i];
	return (struct ingest_sum){0};
}

static void
a_held_record_is_split_into_used_unmeasured_and_idle_and_nothing_is_left(void **state)
{
	in_place(ingest_sums) struct ingest_sums s = {0};
	struct wire_record r = {.state = WIRE_HELD,
	                        .units = 5040,
	                        .duration_ns = INT64_C(900000000000),
	                        .held_ns = INT64_C(900000000000),
	                        .used_ns = INT64_C(1),
	                        .unmeasured_ns = INT64_C(299999999999),
	                        .energy_mj = 77};

	(void)state;
	for (int i = 0; i < 3000; i++)
		ingest_sums_add(&s, 4, 0, &r);
	assert_int_equal(s.count, 3);
	assert_true(find(&s, 4, 0, USAGE_USED).unit_ns == (int128)3000 * 5040);
	assert_true(find(&s, 4, 0, USAGE_UNMEASURED).unit_ns == (int128)3000 * 5040 * INT64_C(299999999999));
	/* beyond 64 bits */
	assert_true(find(&s, 4, 0, USAGE_IDLE).unit_ns == (int128)3000 * 5040 * INT64_C(600000000000));
	assert_int_equal(find(&s, 4, 0, USAGE_USED).energy_mj, 3000 * 77);
	assert_int_equal(find(&s, 4, 0, USAGE_IDLE).energy_mj, 0);
}

static void
what_nobody_holds_is_nobody_s_in_its_own_state(void **state)
{
	static const struct {
		enum wire_state is;
		enum usage_state as;
	} rows[] = {{WIRE_UNALLOCATED, USAGE_UNALLOCATED},
	            {WIRE_STRANDED, USAGE_STRANDED},
	            {WIRE_DOWN, USAGE_DOWN},
	            {WIRE_UNKNOWN, USAGE_UNKNOWN}};
	in_place(ingest_sums) struct ingest_sums s = {0};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		struct wire_record r = {.state = rows[i].is, .units = 315, .duration_ns = 10, .held_ns = 10};

		ingest_sums_add(&s, 9, 1, &r);
		assert_true(find(&s, 0, 1, rows[i].as).unit_ns == 3150);
	}
	assert_int_equal(s.count, ARRAY_LEN(rows));
}

static void
workspaces_and_classes_are_kept_apart(void **state)
{
	in_place(ingest_sums) struct ingest_sums s = {0};
	int32_t whole = device_classes_find(&s.classes, "c", "H100", ""),
		part = device_classes_find(&s.classes, "c", "H100", "1g.10gb");
	struct wire_record r = {.state = WIRE_HELD, .units = 1, .duration_ns = 1, .held_ns = 1, .used_ns = 1};

	(void)state;
	assert_int_not_equal(whole, part);
	assert_int_equal(device_classes_find(&s.classes, "c", "H100", ""), whole);
	assert_int_not_equal(device_classes_find(&s.classes, "d", "H100", ""), whole);
	for (int32_t workspace = 0; workspace < 200; workspace++) {
		ingest_sums_add(&s, workspace, whole, &r);
		ingest_sums_add(&s, workspace, part, &r);
	}
	assert_int_equal(s.count, 400);
	for (size_t i = 0; i < s.count; i++)
		assert_true(s.at[i].unit_ns == 1);
	assert_string_equal(s.classes.at[part].profile, "1g.10gb");
}

static void
a_record_of_no_time_and_no_energy_adds_no_row(void **state)
{
	in_place(ingest_sums) struct ingest_sums s = {0};
	struct wire_record r = {.state = WIRE_HELD, .units = 5040, .duration_ns = 10};

	(void)state;
	ingest_sums_add(&s, 1, 0, &r);
	assert_int_equal(s.count, 0);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_held_record_is_split_into_used_unmeasured_and_idle_and_nothing_is_left),
		cmocka_unit_test(what_nobody_holds_is_nobody_s_in_its_own_state),
		cmocka_unit_test(workspaces_and_classes_are_kept_apart),
		cmocka_unit_test(a_record_of_no_time_and_no_energy_adds_no_row),
	};

	return cmocka_run_group_tests_name("ingest sums", tests, NULL, NULL);
}
