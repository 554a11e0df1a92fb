/* tests/unit/quota/test_quota_forecast.c - when what waits is expected to start. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "tests/support/quota/quotascript.h"

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
		n = quota_forecast(s, quota_now(s), (struct quota_reach){1000, 100}, NULL, &at);
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

		assert_int_equal(quota_forecast(s, 0, (struct quota_reach){cost, 100}, NULL, &at), 3);
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

		assert_int_equal(quota_forecast(s, 0, (struct quota_reach){13, 100}, NULL, &at), 3);
		assert_int_equal(at[2].kind, QUOTA_START_AT);
		assert_int_equal(at[2].at_ns, 30 * SECOND);
		assert_ptr_equal(quota_start_find(at, 3, "r3"), &at[1]);
		assert_null(quota_start_find(at, 3, "r1"));
	}
}

/* Tenant t: one runs, 1,000 wait, each a second after the one before. Tenant u: one runs for 7,200 s, one waits. */
static void
a_tenants_many_requests_take_the_estimate_from_its_own(void **state)
{
	static const struct {
		size_t of_tenant, known; /* of the 1,000 */
		enum quota_start_kind other;
	} rows[] = {
		{1000, 0, QUOTA_START_TOO_FAR},
		{100, 100, QUOTA_START_ROUGHLY},
		{1, 1, QUOTA_START_ROUGHLY},
		{0, 0, QUOTA_START_TOO_FAR},
	};
	owned(quota) struct quota_state *s = NULL;
	in_place(buf) struct buf answers = {0}, script = {0};
	struct err err = {0};

	(void)state;
	buf_init(&answers, 1 << 20);
	buf_init(&script, 1 << 20);
	buf_str(&script,
	        "tenant t; tenant u; ws a R1 M9 of=t; ws b R1 M9 of=u; node n 1 of=t; node o 1 of=u; ask x b 1 "
	        "for=7200; ask y b 1 for=1; ask l a 1 for=3600");
	for (int i = 0; i < 1000; i++)
		buf_printf(&script, "; ask r%04d a 1 for=1", i);
	if (!quotascript_run(buf_text(&script), &answers, &s, &err))
		fail_msg("%s", err.text);
	for (size_t k = 0; k < ARRAY_LEN(rows); k++) {
		owned(mem) struct quota_start *at = NULL;
		const struct quota_start *y;
		size_t known = 0;

		/* all of 1,000 cost 1,001 a step: 20 steps. A hundred of them 101 and less */
		assert_int_equal(quota_forecast(s, 0, (struct quota_reach){20000, rows[k].of_tenant}, NULL, &at), 1001);
		for (size_t i = 0; i < 1000; i++) {
			if (i < rows[k].of_tenant && quota_start_is_known(at[i].kind)) {
				assert_int_equal(at[i].at_ns, (3600 + (int64_t)i) * SECOND);
				known++;
			} else {
				assert_int_equal(at[i].kind, QUOTA_START_TOO_FAR);
			}
		}
		y = quota_start_find(at, 1001, "y");
		assert_int_equal(y->kind, rows[k].other);
		assert_int_equal(y->at_ns, y->kind == QUOTA_START_ROUGHLY ? 7200 * SECOND : 0);
		if (rows[k].of_tenant < 1000)
			assert_int_equal(known, rows[k].known);
		assert_int_equal(quota_waiting_count(s), 1001);
	}
}

static void
a_start_is_told_to_the_minute(void **state)
{
	static const struct {
		int64_t at, now, told;
	} rows[] = {
		{0, 0, 0},         {1, 0, 60},        {60, 0, 60},     {61, 0, 120},
		{3600, 0, 3600},   {3601, 0, 3900},   {3900, 0, 3900}, {3901, 0, 4200},
		{3901, 301, 3960}, {3901, 300, 4200}, {4321, 0, 4500}, {4321, 4000, 4380},
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(rows); i++)
		assert_int_equal(quota_start_told_ns(rows[i].at * SECOND, rows[i].now * SECOND), rows[i].told * SECOND);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_waits_starts_when_enough_has_ended),
		cmocka_unit_test(the_estimate_ends_when_its_cost_is_used_up),
		cmocka_unit_test(a_tenants_many_requests_take_the_estimate_from_its_own),
		cmocka_unit_test(a_start_is_told_to_the_minute),
	};

	return cmocka_run_group_tests_name("quota forecast", tests, NULL, NULL);
}
