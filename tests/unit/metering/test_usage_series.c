/* Counters of what was taken in: each once, a bounded number of them, and nothing lost beyond the bound. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "aggregator/core/metering/usage_series.h"
#include "common/base/time.h"

/* A held record of one second, half of it used, by a workspace on a GPU model. */
static void
taken_in(struct usage_table *t, int32_t workspace_id, const char *model)
{
	const struct wire_record r = {.device = 1,
	                              .holder = 1,
	                              .state = WIRE_HELD,
	                              .sharing = WIRE_EXCLUSIVE,
	                              .method = WIRE_MEASURED,
	                              .units = 5040,
	                              .duration_ns = NS_PER_S,
	                              .held_ns = NS_PER_S,
	                              .used_ns = NS_PER_S / 2,
	                              .energy_mj = 700};
	in_place(ingest_sums) struct ingest_sums sums = {0};

	ingest_sums_add(&sums, workspace_id, device_classes_find(&sums.classes, "c", model, ""), &r);
	usage_table_add(t, &sums);
}

static int128
amount(const struct usage_table *t, int32_t workspace_id, unsigned kind, const char *model)
{
	for (size_t i = 0; i < t->count; i++)
		if (t->at[i].workspace_id == workspace_id && t->at[i].kind == kind &&
		    strcmp(t->at[i].gpu_model, model) == 0)
			return t->at[i].amount;
	return -1;
}

static void
what_is_taken_in_is_counted_by_workspace_model_and_state(void **state)
{
	in_place(usage_table) struct usage_table t;
	const int128 half = (int128)5040 * (NS_PER_S / 2);

	(void)state;
	usage_table_init(&t, 100);
	taken_in(&t, 1, "H100");
	taken_in(&t, 1, "H100");
	taken_in(&t, 2, "H100");
	taken_in(&t, 1, "L4");
	assert_true(amount(&t, 1, USAGE_USED, "H100") == 2 * half);
	assert_true(amount(&t, 1, USAGE_IDLE, "H100") == 2 * half);
	assert_true(amount(&t, 1, SERIES_ENERGY, "H100") == 1400);
	assert_true(amount(&t, 2, USAGE_USED, "H100") == half);
	assert_true(amount(&t, 1, USAGE_USED, "L4") == half);
	/* a state that nothing was in has no series */
	assert_true(amount(&t, 1, USAGE_DOWN, "H100") == -1);
	assert_int_equal(t.count, 9);
	assert_int_equal(usage_table_left_out(&t), 0);
}

static void
beyond_the_limit_sums_stay_true_and_known_series_go_on(void **state)
{
	in_place(usage_table) struct usage_table t;
	const int128 half = (int128)5040 * (NS_PER_S / 2);

	(void)state;
	usage_table_init(&t, 3);
	taken_in(&t, 1, "H100");
	for (int32_t w = 2; w <= 50; w++)
		for (int again = 0; again < 2; again++)
			taken_in(&t, w, "H100");
	taken_in(&t, 1, "H100");
	assert_int_equal(t.count, 3);
	assert_true(amount(&t, 1, USAGE_USED, "H100") == 2 * half);
	assert_true(t.rest[USAGE_USED] == 98 * half && t.rest[USAGE_IDLE] == 98 * half);
	assert_true(t.rest[SERIES_ENERGY] == 98 * 700);
	/* used, idle and energy of each of the 49, once */
	assert_int_equal(usage_table_left_out(&t), 147);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_is_taken_in_is_counted_by_workspace_model_and_state),
		cmocka_unit_test(beyond_the_limit_sums_stay_true_and_known_series_go_on),
	};

	return cmocka_run_group_tests_name("usage_series", tests, NULL, NULL);
}
