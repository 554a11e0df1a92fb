/* tests/unit/test_decision_bet.c - when a replica decides before it asks. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "aggregator/core/quota/book/decision_optimistic.h"
#include "common/base/time.h"

#define T0 (1000 * NS_PER_S)
#define QUIET_NS (5 * NS_PER_S)
#define PAUSE_MIN_NS (QUIET_NS / BET_PAUSE_MIN_PART)
#define PAUSE_MAX_NS (QUIET_NS * BET_PAUSE_MAX_TIMES)

static struct decision_bets *
bets_new(void)
{
	struct decision_bets *b = mem_alloc(sizeof(*b));

	b->quiet_ns = QUIET_NS;
	bets_clock(b, T0 - NS_PER_MS, T0, 5000 * NS_PER_S);
	return b;
}

static void
nobody_bets_without_knowing_the_time(void **state)
{
	owned(mem) struct decision_bets *b = mem_alloc(sizeof(*b));

	(void)state;
	assert_false(bets_pay(b, T0));
	bets_clock(b, T0 - NS_PER_MS, T0, 5000 * NS_PER_S);
	assert_true(bets_pay(b, T0));
	assert_true(bets_pay(b, T0 + BET_CLOCK_MAX_NS - 1));
	assert_false(bets_pay(b, T0 + BET_CLOCK_MAX_NS));
}

static void
others_must_have_been_quiet(void **state)
{
	owned(mem) struct decision_bets *b = bets_new();

	(void)state;
	bets_others_decided(b, T0);
	assert_false(bets_pay(b, T0));
	assert_false(bets_pay(b, T0 + QUIET_NS - 1));
	assert_true(bets_pay(b, T0 + QUIET_NS));
}

static void
who_loses_waits_and_twice_as_long_when_losing_again(void **state)
{
	owned(mem) struct decision_bets *b = bets_new();
	int64_t at = T0, pause = PAUSE_MIN_NS;

	(void)state;
	for (int i = 0; i < 10; i++) {
		bets_lost(b, at);
		bets_clock(b, at, at, at);
		assert_false(bets_pay(b, at + pause - 1));
		bets_clock(b, at + pause, at + pause, at);
		assert_true(bets_pay(b, at + pause));
		at += pause;
		pause = 2 * pause < PAUSE_MAX_NS ? 2 * pause : PAUSE_MAX_NS;
	}
	/* long ago is forgiven */
	at += PAUSE_MAX_NS;
	bets_lost(b, at);
	bets_clock(b, at, at, at);
	assert_false(bets_pay(b, at + PAUSE_MIN_NS - 1));
	assert_true(bets_pay(b, at + PAUSE_MIN_NS));
}

static void
who_need_not_wait_bets_whatever_happened(void **state)
{
	owned(mem) struct decision_bets *b = bets_new();

	(void)state;
	b->quiet_ns = 0;
	bets_others_decided(b, T0);
	bets_lost(b, T0);
	bets_lost(b, T0);
	assert_true(bets_pay(b, T0));
}

static void
an_id_that_was_decided_is_known(void **state)
{
	owned(mem) struct decision_bets *b = bets_new();
	struct quota_verdict verdicts[2] = {{.id = "a"}, {.id = "b"}};
	struct quota_outcome o = {.verdicts = verdicts, .verdict_count = 2};

	(void)state;
	assert_false(bets_know(b, "a"));
	bets_decided(b, &o);
	assert_true(bets_know(b, "a"));
	assert_true(bets_know(b, "b"));
	assert_false(bets_know(b, "c"));
	assert_false(bets_know(b, ""));
}

/* It was told somewhere between question and answer: what was believed stays where that can be, and moves as little as it must. */
static void
the_clock_moves_as_little_as_it_must(void **state)
{
	static const struct {
		const char *what;
		int64_t asked, told, database, now, expected;
	} rows[] = {
		{"within what the answer allows: it stays", 100, 110, 1095, 200, 1190},
		{"at the edges too", 90, 100, 1080, 200, 1190},
		{"a slow answer changes nothing", 0, 1000, 1500, 2000, 2990},
		{"it had gone forward", 100, 110, 2000, 200, 2090},
		{"it had gone back", 100, 110, 500, 200, 600},
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		owned(mem) struct decision_bets *b = mem_alloc(sizeof(*b));

		bets_clock(b, 0, 10, 1000); /* 990 ahead at least, 1000 at most */
		bets_clock(b, rows[i].asked, rows[i].told, rows[i].database);
		if (bets_database_now(b, rows[i].now) != rows[i].expected)
			fail_msg("%s: %lld", rows[i].what, (long long)bets_database_now(b, rows[i].now));
	}
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(nobody_bets_without_knowing_the_time),
		cmocka_unit_test(others_must_have_been_quiet),
		cmocka_unit_test(who_loses_waits_and_twice_as_long_when_losing_again),
		cmocka_unit_test(who_need_not_wait_bets_whatever_happened),
		cmocka_unit_test(an_id_that_was_decided_is_known),
		cmocka_unit_test(the_clock_moves_as_little_as_it_must),
	};

	return cmocka_run_group_tests_name("decision_bet", tests, NULL, NULL);
}
