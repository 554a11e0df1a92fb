/* tests/unit/test_quota_forecast.c - when what waits is expected to start. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "tests/support/quotascript.h"

#define SECOND INT64_C(1000000000)

static void
what_waits_starts_when_enough_has_ended(void **state)
{
	static const struct {
		const char *name, *script, *starts; /* seconds, or why they are not known */
	} rows[] = {
		{"a chain: each starts when the one before it ends",
	         "ws a R2 M9; node n 2; ask r1 a 2 for=100; ask r2 a 2 for=50; ask r3 a 2 for=30", "r2 100; r3 150"},
		{"the higher priority starts first",
	         "ws a R2 M9 noown; node n 2; ask r1 a 2 for=100; ask r2 a 2 for=50; ask r3 a 2 p1 for=30",
	         "r2 130; r3 100"},
		{"time that has passed is not waited for again",
	         "ws a R2 M9; node n 2; ask r1 a 2 for=100; tick 40; ask r2 a 2 for=50", "r2 100"},
		{"what was lent comes back when the grace period is over",
	         "set grace=10; ws a R2; ws b R2 M9; node n 4; ask l b 4 for=1000; tick 5; ask r a 1", "r 15"},
		{"or when it ends before", "set grace=500; ws a R2; ws b R2 M9; node n 4; ask l b 4 for=100; ask r a 1",
	         "r 100"},
		{"what gave way starts again when its turn comes",
	         "set grace=10; ws a R2; ws b R2 M9; node n 4; ask l b 4 for=1000; ask r a 1 for=100; ask q b 4 for=1",
	         "q 110; r 10"},
		{"without an expected duration it is not known", "ws a R2 M9; node n 2; ask r1 a 2; ask r2 a 2 for=50",
	         "r2 unknown end"},
		{"nor behind one that has none",
	         "ws a R2 M9; node n 2; ask r1 a 2 for=10; ask r2 a 2; ask r3 a 2 for=1", "r2 10; r3 unknown end"},
		{"nor where it has run longer than expected",
	         "ws a R2 M9; node n 2; ask r1 a 2 for=10; tick 20; ask r2 a 2 for=50", "r2 unknown end"},
		{"work elsewhere without a duration does not matter",
	         "ws a R2; ws b R2; node n 4; ask x b 2 fixed; ask r1 a 2 for=10; ask r2 a 2", "r2 10"},
		{"a limit that was lowered is not waited for",
	         "ws a R2; node n 2; ask r1 a 2 for=10; ask r2 a 2; policy ws a R1 M1", "r2 not by waiting"},
		{"a request that expires does not start",
	         "ws a R2 M9; node n 2; ask r1 a 2 for=100; ask r2 a 2 until=50; ask r3 a 2", "r2 expires; r3 100"},
		{"a back-off ends at its time",
	         "set backoff=60 forget=3600; ws a R2; ws b R1 M9; node n 4; ask l b 4; ask r a 2; finish l; ask q b 2",
	         "q 60"},
		{"a lease that nobody confirms is not expected to expire",
	         "set confirm=5; ws a R2 M9; node n 2; ask r1 a 2 for=100; ask r2 a 2", "r2 100"},
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		static const char *const why[] = {[QUOTA_START_NOT_YET] = "not yet",
		                                  [QUOTA_START_NO_DURATION] = "unknown end",
		                                  [QUOTA_START_NOT_BY_WAITING] = "not by waiting",
		                                  [QUOTA_START_EXPIRES] = "expires",
		                                  [QUOTA_START_TOO_FAR] = "too far"};
		owned(quota) struct quota_state *s = NULL;
		owned(mem) struct quota_start *at = NULL;
		in_place(buf) struct buf answers = {0}, starts = {0};
		struct err err = {0};
		size_t n;

		buf_init(&answers, 1 << 16);
		buf_init(&starts, 1 << 16);
		if (!quotascript_run(rows[i].script, &answers, &s, &err))
			fail_msg("%s: %s", rows[i].name, err.text);
		n = quota_forecast(s, quota_now(s), 1000, NULL, &at);
		assert_int_equal(n, quota_waiting_count(s));
		for (size_t k = 0; k < n; k++) {
			buf_printf(&starts, "%s%s ", k > 0 ? "; " : "", at[k].id);
			if (at[k].kind == QUOTA_START_AT)
				buf_printf(&starts, "%" PRId64, at[k].at_ns / SECOND);
			else
				buf_str(&starts, why[at[k].kind]);
		}
		if (strcmp(buf_text(&starts), rows[i].starts) != 0)
			print_error("%s: %s (%s)\n", rows[i].name, buf_text(&starts), buf_text(&answers));
		assert_string_equal(buf_text(&starts), rows[i].starts);
	}
}

static void
the_estimate_ends_when_its_cost_is_used_up(void **state)
{
	owned(quota) struct quota_state *s = NULL;
	in_place(buf) struct buf answers = {0};
	struct err err = {0};

	(void)state;
	buf_init(&answers, 1 << 16);
	assert_true(quotascript_run("ws a R1 M9; node n 1; ask r1 a 1 for=10; ask r2 a 1 for=10; ask r3 a 1 for=10; "
	                            "ask r4 a 1 for=10",
	                            &answers, &s, &err));
	for (int64_t cost = 0; cost < 12; cost++) {
		owned(mem) struct quota_start *at = NULL;
		int64_t known = 0;

		assert_int_equal(quota_forecast(s, 0, cost, NULL, &at), 3);
		/* a tick of 1 + 3, then ends of 1 + 3, 1 + 2 and 1 + 1 */
		for (size_t i = 0; i < 3; i++) {
			if (at[i].kind == QUOTA_START_AT)
				known++;
			else
				assert_int_equal(at[i].kind, QUOTA_START_TOO_FAR);
		}
		assert_int_equal(known, cost < 8 ? 0 : cost < 11 ? 1 : 2);
		assert_int_equal(quota_waiting_count(s), 3);
	}
	{
		owned(mem) struct quota_start *at = NULL;

		assert_int_equal(quota_forecast(s, 0, 13, NULL, &at), 3);
		assert_int_equal(at[2].kind, QUOTA_START_AT);
		assert_int_equal(at[2].at_ns, 30 * SECOND);
		assert_ptr_equal(quota_start_find(at, 3, "r3"), &at[1]);
		assert_null(quota_start_find(at, 3, "r1"));
	}
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_waits_starts_when_enough_has_ended),
		cmocka_unit_test(the_estimate_ends_when_its_cost_is_used_up),
	};

	return cmocka_run_group_tests_name("quota forecast", tests, NULL, NULL);
}
