/* tests/unit/quota/test_decision_optimistic.c - when a replica may decide without the lock of the book's row. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "aggregator/core/quota/book/decision_optimistic.h"
#include "common/base/time.h"

#define T0 (1000 * NS_PER_S)
#define QUIET_NS (5 * NS_PER_S)
#define PAUSE_MIN_NS (QUIET_NS / OPTIMISTIC_PAUSE_MIN_PART)
#define PAUSE_MAX_NS (QUIET_NS * OPTIMISTIC_PAUSE_MAX_TIMES)

static struct decision_optimistic *
optimistic_new(void)
{
	struct decision_optimistic *b = mem_alloc(sizeof(*b));

	b->quiet_ns = QUIET_NS;
	optimistic_clock(b, T0 - NS_PER_MS, T0, 5000 * NS_PER_S);
	return b;
}

static void
nobody_bets_without_knowing_the_time(void **state)
{
	owned(mem) struct decision_optimistic *b = mem_alloc(sizeof(*b));

	(void)state;
	assert_false(optimistic_commit_allowed(b, T0));
	optimistic_clock(b, T0 - NS_PER_MS, T0, 5000 * NS_PER_S);
	assert_true(optimistic_commit_allowed(b, T0));
	assert_true(optimistic_commit_allowed(b, T0 + OPTIMISTIC_CLOCK_MAX_NS - 1));
	assert_false(optimistic_commit_allowed(b, T0 + OPTIMISTIC_CLOCK_MAX_NS));
}

static void
others_must_have_been_quiet(void **state)
{
	owned(mem) struct decision_optimistic *b = optimistic_new();

	(void)state;
	optimistic_others_decided(b, T0);
	assert_false(optimistic_commit_allowed(b, T0));
	assert_false(optimistic_commit_allowed(b, T0 + QUIET_NS - 1));
	assert_true(optimistic_commit_allowed(b, T0 + QUIET_NS));
}

static void
who_loses_waits_and_twice_as_long_when_losing_again(void **state)
{
	owned(mem) struct decision_optimistic *b = optimistic_new();
	int64_t at = T0, pause = PAUSE_MIN_NS;

	(void)state;
	for (int i = 0; i < 10; i++) {
		optimistic_failed(b, at);
		optimistic_clock(b, at, at, at);
		assert_false(optimistic_commit_allowed(b, at + pause - 1));
		optimistic_clock(b, at + pause, at + pause, at);
		assert_true(optimistic_commit_allowed(b, at + pause));
		at += pause;
		pause = 2 * pause < PAUSE_MAX_NS ? 2 * pause : PAUSE_MAX_NS;
	}
	/* long ago is forgiven */
	at += PAUSE_MAX_NS;
	optimistic_failed(b, at);
	optimistic_clock(b, at, at, at);
	assert_false(optimistic_commit_allowed(b, at + PAUSE_MIN_NS - 1));
	assert_true(optimistic_commit_allowed(b, at + PAUSE_MIN_NS));
}

static void
who_need_not_wait_bets_whatever_happened(void **state)
{
	owned(mem) struct decision_optimistic *b = optimistic_new();

	(void)state;
	b->quiet_ns = 0;
	optimistic_others_decided(b, T0);
	optimistic_failed(b, T0);
	optimistic_failed(b, T0);
	assert_true(optimistic_commit_allowed(b, T0));
}

static void
an_id_that_was_decided_is_known(void **state)
{
	owned(mem) struct decision_optimistic *b = optimistic_new();
	struct quota_verdict verdicts[2] = {{.id = "a"}, {.id = "b"}};
	struct quota_outcome o = {.verdicts = verdicts, .verdict_count = 2};

	(void)state;
	assert_false(optimistic_knows(b, "a"));
	optimistic_decided(b, &o);
	assert_true(optimistic_knows(b, "a"));
	assert_true(optimistic_knows(b, "b"));
	assert_false(optimistic_knows(b, "c"));
	assert_false(optimistic_knows(b, ""));
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
		owned(mem) struct decision_optimistic *b = mem_alloc(sizeof(*b));

		optimistic_clock(b, 0, 10, 1000); /* 990 ahead at least, 1000 at most */
		optimistic_clock(b, rows[i].asked, rows[i].told, rows[i].database);
		if (optimistic_database_now(b, rows[i].now) != rows[i].expected)
			fail_msg("%s: %lld", rows[i].what, (long long)optimistic_database_now(b, rows[i].now));
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

	return cmocka_run_group_tests_name("decision_optimistic", tests, NULL, NULL);
}
