/* tests/unit/hooks/test_job_actions.c - jobs and requests as they are found, and what follows: the rules of job_actions.h, by number. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/time.h"
#include "hooks/agent/job_actions.h"

static const struct job_actions_options options = {.cluster = "c", .kill_wait_ns = 30 * NS_PER_S, .window = 2};

static struct job
job(const char *key, enum job_state state, bool held, const char *mark)
{
	struct job j = {.id = 7,
	                .array_id = 7,
	                .array_task = -1,
	                .state = state,
	                .held = held,
	                .batch = true,
	                .requeue = true,
	                .account = "physics",
	                .user = "ann",
	                .ask = {2, 2, "a100"},
	                .mark = mark_parse(mark)};

	snprintf(j.key, sizeof(j.key), "%s", key);
	return j;
}

/* The job's own request. */
static struct request
request(const struct job *j, enum request_state state)
{
	struct request r = {.tenant = "science", .state = state, .category = "limit"};

	job_request_id(j, "c", r.id);
	assert_true(request_id_parse(r.id, "c", &r.of));
	return r;
}

/* What follows, as text: "start 7; mark 7 wait.0 limit; release s". */
static void
follows(const char *name, struct job *jobs, size_t job_count, struct request *requests, size_t request_count,
        const char *expected)
{
	static const char *const words[] = {"", "wait", "run", "back", "drain"};
	struct job_list j = {.at = jobs, .count = job_count};
	struct request_list r = {.at = requests, .count = request_count};
	in_place(action_list) struct action_list done = {0};
	in_place(buf) struct buf text = {0};

	buf_init(&text, 4096);
	job_actions_find(&j, &r, &options, &done);
	for (size_t i = 0; i < done.count; i++) {
		const struct action *a = &done.at[i];

		buf_printf(&text, "%s%s %s", i ? "; " : "", action_names[a->kind],
		           a->job != NO_JOB ? jobs[a->job].key : requests[a->request].of.key);
		if (a->kind == ACTION_MARK || a->kind == ACTION_HOLD || a->kind == ACTION_TELL ||
		    a->kind == ACTION_START)
			buf_printf(&text, " %s.%d%s %s", words[a->mark.word], (int)a->mark.attempt,
			           a->mark.user_hold ? "u" : "", a->mark.category);
	}
	if (strcmp(buf_text(&text), expected) != 0)
		fail_msg("%s:\n  %s\nnot\n  %s", name, buf_text(&text), expected);
}

#define WAITS "tollgate wait.0 submitted: x"
#define RUNS "tollgate run.0 admitted: x"

static void
a_job_with_its_own_request(void **state)
{
	static const struct {
		const char *name;
		enum job_state state;
		bool held;
		const char *mark;
		int request; /* -1: none */
		const char *expected;
	} rows[] = {
		{"1: a job that runs is confirmed", JOB_RUNNING, false, RUNS, REQUEST_ADMITTED, "confirm 7"},
		{"1: once", JOB_RUNNING, false, RUNS, REQUEST_CONFIRMED, ""},
		{"1: killed between the release and the mark", JOB_RUNNING, false, WAITS, REQUEST_ADMITTED,
	         "confirm 7; mark 7 run.0 admitted"},
		{"1: a job that runs without a lease is asked for", JOB_RUNNING, false, RUNS, -1, "ask 7"},
		{"1: and is not asked for twice", JOB_RUNNING, false, RUNS, REQUEST_WAITING, ""},
		{"1: a job that is ending keeps its lease", JOB_ENDING, false, RUNS, REQUEST_CONFIRMED, ""},
		{"4: a hold of an admitted job is its user's", JOB_PENDING, true, RUNS, REQUEST_ADMITTED,
	         "mark 7 wait.1u hold"},
		{"4: the lease of a job that its user holds is released", JOB_PENDING, true, "tollgate wait.0u hold: x",
	         REQUEST_ADMITTED, "release 7"},
		{"4: its request is cancelled", JOB_PENDING, true, "tollgate wait.0u hold: x", REQUEST_WAITING,
	         "cancel 7"},
		{"4: and nothing is asked for", JOB_PENDING, true, "tollgate wait.0u hold: x", -1, ""},
		{"5: an admitted job is started", JOB_PENDING, true, WAITS, REQUEST_ADMITTED, "start 7 run.0 admitted"},
		{"5: also after a requeue", JOB_PENDING, true, "tollgate drain.0 reclaim: x", REQUEST_ADMITTED,
	         "start 7 run.0 admitted"},
		{"6: a waiting job is told why", JOB_PENDING, true, WAITS, REQUEST_WAITING, "mark 7 wait.0 limit"},
		{"6: once", JOB_PENDING, true, "tollgate wait.0 limit: x", REQUEST_WAITING, ""},
		{"7: a job without a request asks", JOB_PENDING, true, WAITS, -1, "ask 7"},
		{"7: after a drain too", JOB_PENDING, true, "tollgate drain.0 reclaim: x", -1, "ask 7"},
		{"8: an admitted job that Slurm has not placed yet keeps its lease", JOB_PENDING, false, RUNS,
	         REQUEST_ADMITTED, ""},
		{"8: without a lease it is held again", JOB_PENDING, false, RUNS, -1, "hold 7 back.1 again"},
		{"8: but for one of no workspace", JOB_PENDING, false, "tollgate run.0 unattributed: x", -1, ""},
		{"8: and one that an outage let through", JOB_PENDING, false, "tollgate run.0 outage: x", -1, ""},
		{"9: killed between the release and the mark", JOB_PENDING, false, WAITS, REQUEST_ADMITTED,
	         "mark 7 run.0 admitted"},
		{"9: an operator released it", JOB_PENDING, false, WAITS, REQUEST_WAITING, "mark 7 run.0 operator"},
		{"9: likewise, before it was asked for", JOB_PENDING, false, WAITS, -1, "mark 7 run.0 operator"},
		{"a job without a mark is none of ours", JOB_PENDING, true, "of the site", -1, ""},
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		struct job j = job("7", rows[i].state, rows[i].held, rows[i].mark);
		struct request r = {0};

		if (rows[i].request >= 0)
			r = request(&j, (enum request_state)rows[i].request);
		follows(rows[i].name, &j, 1, &r, rows[i].request >= 0, rows[i].expected);
	}
}

static void
old_requests_are_ended_before_a_new_one_is_made(void **state)
{
	struct job j = job("7", JOB_PENDING, true, "tollgate drain.0 reclaim: x"), before = j, other = j;
	struct request r[2];

	(void)state;
	j.restarts = 1;
	r[0] = request(&before, REQUEST_CONFIRMED);
	follows("3: the lease of the start before is released, and nothing is asked for", &j, 1, r, 1, "release 7");
	r[0].released = true;
	follows("3: until it has ended", &j, 1, r, 1, "");
	r[0] = request(&before, REQUEST_WAITING);
	follows("3: a request of the start before is cancelled, and the job asks", &j, 1, r, 1, "cancel 7; ask 7");
	other.restarts = 1;
	other.ask.gpus = 1;
	r[0] = request(&other, REQUEST_WAITING);
	follows("3: the job asks for something else now", &j, 1, r, 1, "cancel 7; ask 7");
	r[1] = request(&j, REQUEST_ADMITTED);
	follows("3: and has got it", &j, 1, r, 2, "cancel 7; start 7 run.0 admitted");
	j = job("7", JOB_RUNNING, false, RUNS);
	before = j;
	j.restarts = 1;
	r[0] = request(&before, REQUEST_CONFIRMED);
	follows("1: Slurm requeued and started it by itself", &j, 1, r, 1, "release 7");
}

static void
a_job_that_runs_has_its_lease_whatever_its_ask_looks_like_now(void **state)
{
	struct job j = job("7", JOB_RUNNING, false, RUNS);
	struct request r = request(&j, REQUEST_CONFIRMED);

	(void)state;
	j.ask.gpus = 3;
	j.time_limit_s = 365 * 86400;
	follows("the queue shows other numbers of a job that runs", &j, 1, &r, 1, "");
}

static void
an_ordered_job_is_told_once_and_requeued_in_time(void **state)
{
	struct job j = job("7", JOB_RUNNING, false, RUNS);
	struct request r = request(&j, REQUEST_CONFIRMED);

	(void)state;
	r.order = 12;
	r.due_in_ns = 60 * NS_PER_S;
	follows("2: ordered", &j, 1, &r, 1, "ack 7; tell 7 drain.0 reclaim");
	r.order_acked = true;
	follows("2: killed before it was told", &j, 1, &r, 1, "tell 7 drain.0 reclaim");
	j.mark = mark_parse("tollgate drain.0 reclaim: x");
	follows("2: told", &j, 1, &r, 1, "");
	r.due_in_ns = 30 * NS_PER_S;
	follows("2: the time that Slurm needs begins", &j, 1, &r, 1, "requeue 7");
	r.due_in_ns = -5 * NS_PER_S;
	j.mark = mark_parse(RUNS);
	follows("2: overdue, the agent was away", &j, 1, &r, 1, "tell 7 drain.0 reclaim; requeue 7");
	j.state = JOB_ENDING;
	follows("2: on its way out", &j, 1, &r, 1, "");
	j.state = JOB_RUNNING;
	r.order = 0;
	j.mark = mark_parse("tollgate drain.0 reclaim: x");
	follows("2: the order was taken back", &j, 1, &r, 1, "mark 7 run.0 admitted");
}

static void
a_lease_that_is_ordered_back_before_its_job_started_is_given_up(void **state)
{
	struct job j = job("7", JOB_PENDING, false, RUNS);
	struct request r = request(&j, REQUEST_ADMITTED);

	(void)state;
	r.order = 12;
	r.due_in_ns = 60 * NS_PER_S;
	follows("10: released to Slurm", &j, 1, &r, 1, "hold 7 back.1 again");
	j.held = true;
	j.mark = mark_parse(WAITS);
	follows("10: not released yet", &j, 1, &r, 1, "mark 7 back.1 again");
	j.mark = mark_parse("tollgate back.1 again: x");
	follows("3: then the lease is an old one", &j, 1, &r, 1, "release 7");
}

static void
a_request_that_cannot_be_leased_says_why(void **state)
{
	struct job j = job("7", JOB_PENDING, true, WAITS);

	(void)state;
	snprintf(j.fault, sizeof(j.fault), "mps: parts of a GPU");
	follows("7: once", &j, 1, NULL, 0, "mark 7 wait.0 unfit");
	j.mark = mark_parse("tollgate wait.0 unfit: x");
	follows("7: and not again", &j, 1, NULL, 0, "");
}

static void
requests_without_a_job_are_ended(void **state)
{
	struct job gone = job("8", JOB_RUNNING, false, RUNS), unmarked = job("8", JOB_RUNNING, false, "of the site");
	struct request r = request(&gone, REQUEST_CONFIRMED);

	(void)state;
	follows("the job ended", NULL, 0, &r, 1, "release 8");
	r.released = true;
	follows("once", NULL, 0, &r, 1, "");
	r = request(&gone, REQUEST_WAITING);
	follows("the job was cancelled", NULL, 0, &r, 1, "cancel 8");
	r = request(&gone, REQUEST_CONFIRMED);
	follows("a job whose mark was overwritten has not ended", &unmarked, 1, &r, 1, "");
}

static void
only_a_window_of_each_kind_is_asked_for_the_nicest_and_oldest_first(void **state)
{
	struct job jobs[6];
	struct request r;

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(jobs); i++) {
		char key[8];

		snprintf(key, sizeof(key), "%zu", i);
		jobs[i] = job(key, JOB_PENDING, true, "tollgate wait.0 limit: x");
		jobs[i].submit_s = 100 - (int64_t)i;
	}
	follows("two of six, the oldest", jobs, 6, NULL, 0, "ask 5; ask 4");
	jobs[1].nice = -10;
	follows("a nice value comes before age", jobs, 6, NULL, 0, "ask 1; ask 5");
	r = request(&jobs[3], REQUEST_WAITING);
	follows("one that waits already counts", jobs, 6, &r, 1, "ask 1");
	jobs[0].ask.gpus = 8;
	follows("another shape has a window of its own", jobs, 6, &r, 1, "ask 1; ask 0");
	jobs[1].waits = true;
	snprintf(jobs[5].fault, sizeof(jobs[5].fault), "mps");
	jobs[5].mark = mark_parse("tollgate wait.0 unfit: x");
	follows("jobs that cannot start or cannot be asked for are passed over", jobs, 6, &r, 1, "ask 4; ask 0");
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_job_with_its_own_request),
		cmocka_unit_test(old_requests_are_ended_before_a_new_one_is_made),
		cmocka_unit_test(a_job_that_runs_has_its_lease_whatever_its_ask_looks_like_now),
		cmocka_unit_test(an_ordered_job_is_told_once_and_requeued_in_time),
		cmocka_unit_test(a_lease_that_is_ordered_back_before_its_job_started_is_given_up),
		cmocka_unit_test(a_request_that_cannot_be_leased_says_why),
		cmocka_unit_test(requests_without_a_job_are_ended),
		cmocka_unit_test(only_a_window_of_each_kind_is_asked_for_the_nicest_and_oldest_first),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
