/* tests/unit/hooks/test_agent_job.c - lines of squeue, marks, and names of requests. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "hooks/agent/job.h"

/* A line as squeue 22.05 wrote it, by the columns of SQUEUE_FORMAT. */
#define LINE(array, task, id, state, priority, restarts, nodes, max_nodes, tasks, sharing, eligible, limit, het, job, \
             node, per_task, dependency, mark)                                                                        \
	array "|" task "|" id "  |" state "  |" priority "|" restarts "|1   |1   |1000|0|" nodes "|" max_nodes        \
	      "|" tasks "|" sharing "|1794990266|" eligible "|" limit "|" het "|wsa  |ann|all|" job "|" node          \
	      "|N/A|" per_task "|" dependency "|" mark
#define HELD "tollgate wait.0 submitted: its quota is being asked for   "

static struct job
one(const char *line)
{
	in_place(job_list) struct job_list l = {0};
	struct partitions p = {0};
	struct err err = {0};

	if (!job_list_add(&l, line, &p, 1794990300, &err))
		fail_msg("%s", err.text);
	assert_int_equal(l.count, 1);
	return l.at[0];
}

static void
a_line_of_the_queue_is_a_job(void **state)
{
	struct job j = one(LINE("4711", "N/A", "4711", "PD", "0", "2", "2", "2", "4", "OK", "N/A", "2-01:03:00", "N/A",
	                        "N/A", "gres:gpu:a100:2", "N/A", "(null)", HELD));

	(void)state;
	assert_string_equal(j.key, "4711");
	assert_int_equal(j.state, JOB_PENDING);
	assert_true(j.held && j.batch && j.requeue && !j.waits);
	assert_int_equal(j.restarts, 2);
	assert_int_equal(j.ask.gpus, 4);
	assert_int_equal(j.ask.per_node, 2);
	assert_string_equal(j.ask.type, "a100");
	assert_string_equal(j.account, "wsa");
	assert_string_equal(j.user, "ann");
	assert_int_equal(j.uid, 1000);
	assert_int_equal(j.time_limit_s, 2 * 86400 + 3600 + 180);
	assert_int_equal(j.mark.word, MARK_WAIT);
	assert_string_equal(j.mark.category, "submitted");
	j = one(LINE("5", "3", "10", "R", "4294901758", "0", "1", "1", "1", "OK", "1794990269", "UNLIMITED", "N/A",
	             "gres:gpu:1", "N/A", "N/A", "(null)", "of the site | tollgate run.0"));
	assert_string_equal(j.key, "5_3");
	assert_int_equal(j.id, 10);
	assert_int_equal(j.state, JOB_RUNNING);
	assert_false(j.held);
	assert_int_equal(j.time_limit_s, 0);
	assert_int_equal(j.mark.word, MARK_NONE);
}

static void
a_job_waits_for_others_and_for_its_time(void **state)
{
	(void)state;
	assert_true(one(LINE("1", "N/A", "1", "PD", "0", "0", "1", "1", "1", "OK", "1794993866", "10:00", "N/A",
	                     "gres:gpu:1", "N/A", "N/A", "(null)", HELD))
	                    .waits);
	assert_true(one(LINE("1", "N/A", "1", "PD", "0", "0", "1", "1", "1", "OK", "N/A", "10:00", "N/A", "gres:gpu:1",
	                     "N/A", "N/A", "afterok:1(unful", HELD))
	                    .waits);
	assert_false(one(LINE("1", "N/A", "1", "PD", "0", "0", "1", "1", "1", "OK", "1794990275", "10:00", "N/A",
	                      "gres:gpu:1", "N/A", "N/A", "(null)", HELD))
	                     .waits);
}

static void
what_cannot_be_asked_for_says_why(void **state)
{
	(void)state;
	assert_string_equal(one(LINE("1", "N/A", "1", "PD", "0", "0", "1", "1", "1", "OK", "N/A", "1:00", "N/A", "N/A",
	                             "gres:mps:5", "N/A", "(null)", HELD))
	                            .fault,
	                    "mps: parts of a GPU have no lease here; ask for whole GPUs or MIG instances");
	assert_string_equal(one(LINE("1", "N/A", "1", "PD", "0", "0", "1", "1", "1", "OK", "N/A", "1:00", "77", "gpu:1",
	                             "N/A", "N/A", "(null)", HELD))
	                            .fault,
	                    "heterogeneous jobs are not asked for");
}

static void
jobs_without_gpus_are_left_out_and_lines_of_another_form_are_errors(void **state)
{
	static const char *const wrong[] = {"", "squeue: error",
	                                    "a|b|c|d|e|f|g|h|i|j|k|l|m|n|o|p|q|r|s|t|u|v|w|x|y|z|mark"};
	in_place(job_list) struct job_list l = {0};
	struct partitions p = {0};
	struct err err = {0};

	(void)state;
	assert_true(job_list_add(&l,
	                         LINE("1", "N/A", "1", "PD", "0", "0", "1", "1", "1", "OK", "N/A", "1:00", "N/A", "N/A",
	                              "N/A", "N/A", "(null)", "(null)"),
	                         &p, 0, &err));
	assert_int_equal(l.count, 0);
	for (size_t i = 0; i < ARRAY_LEN(wrong); i++) {
		assert_false(job_list_add(&l, wrong[i], &p, 0, &err));
		assert_int_equal(err.kind, ERR_INVALID);
	}
}

static void
a_mark_is_read_as_it_was_written(void **state)
{
	static const struct {
		struct mark mark;
		const char *text, *written;
	} rows[] = {
		{{MARK_WAIT, 0, false, 0, false, "limit"}, "a b", "tollgate wait.0 limit: a b"},
		{{MARK_RUN, 12, false, 10, true, "admitted"}, "x", "tollgate run.12b10 admitted: x"},
		{{MARK_BACK, 1, true, 15, false, "again"}, "x\ny\x7f", "tollgate back.1us15 again: x y "},
		{{MARK_DRAIN, 3, true, 0, false, "reclaim"}, "", "tollgate drain.3u reclaim: "},
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		in_place(buf) struct buf b = {0};
		struct mark m;

		buf_init(&b, 512);
		mark_write(&rows[i].mark, rows[i].text, &b);
		assert_string_equal(buf_text(&b), rows[i].written);
		m = mark_parse(buf_text(&b));
		assert_memory_equal(&m, &rows[i].mark, sizeof(m));
	}
}

static void
marks_of_job_submit_lua_are_read_and_other_comments_are_none(void **state)
{
	static const char *const none[] = {"",
	                                   "of the site",
	                                   "tollgate",
	                                   "tollgate ",
	                                   "tollgate wait",
	                                   "tollgate wait. x: y",
	                                   "tollgate waits.0 x: y",
	                                   "tollgate stop.0 x: y",
	                                   "tollgate wait.0z x: y",
	                                   "tollgate wait.0b x: y",
	                                   "tollgate wait.0b65 x: y",
	                                   "tollgate wait.99999999999 x: y",
	                                   "tollgate wait.0 a-category-that-is-much-too-long: y"};
	struct mark m = mark_parse("tollgate wait.0ub10 agent: the quota agent did not answer at submission");

	(void)state;
	assert_true(m.word == MARK_WAIT && m.user_hold && m.signal == 10 && m.signal_batch);
	assert_string_equal(m.category, "agent");
	m = mark_parse("tollgate wait.0");
	assert_true(m.word == MARK_WAIT && m.category[0] == '\0');
	for (size_t i = 0; i < ARRAY_LEN(none); i++)
		if (mark_parse(none[i]).word != MARK_NONE)
			fail_msg("\"%s\" was taken for a mark", none[i]);
}

static void
a_request_has_the_name_of_its_job_start_attempt_and_ask(void **state)
{
	struct job j = {.key = "4711_3",
	                .restarts = 2,
	                .batch = true,
	                .requeue = true,
	                .ask = {4, 2, "a100"},
	                .account = "wsa",
	                .user = "ann"};
	char id[REQUEST_ID_SIZE], other[REQUEST_ID_SIZE];
	struct request_name name = {0};

	(void)state;
	j.mark.attempt = 1;
	job_request_id(&j, "hpc", id);
	assert_memory_equal(id, "s:hpc:4711_3:2.1:", 17);
	assert_true(request_id_parse(id, "hpc", &name));
	assert_string_equal(name.key, "4711_3");
	assert_int_equal(name.restarts, 2);
	assert_int_equal(name.attempt, 1);
	assert_false(request_id_parse(id, "hp", &name));
	assert_false(request_id_parse(id, "hpc2", &name));
	assert_false(request_id_parse("s:hpc:1:2:3", "hpc", &name));
	assert_false(request_id_parse("job-4711", "hpc", &name));
	job_request_id(&j, "hpc", other);
	assert_string_equal(id, other);
	j.ask.gpus = 5;
	job_request_id(&j, "hpc", other);
	assert_string_not_equal(id, other);
}

static void
the_longest_name_fits(void **state)
{
	struct job j = {.key = "67108863_4000000", .restarts = 99999, .mark = {.attempt = 9999}};
	char id[REQUEST_ID_SIZE];
	struct request_name name;

	(void)state;
	job_request_id(&j, "sixteen-letters-", id);
	assert_true(request_id_parse(id, "sixteen-letters-", &name));
	assert_int_equal(strlen(strrchr(id, ':')), 9);
}

static void
partitions_of_a_job_are_known_together_where_they_are_alike(void **state)
{
	in_place(partitions) struct partitions p = {0};

	(void)state;
	assert_true(partitions_add(&p, "a|gpu:a100:8", NULL));
	assert_true(partitions_add(&p, "b|gpu:a100:8(S:0)", NULL));
	assert_true(partitions_add(&p, "c|gpu:h100:8", NULL));
	assert_true(partitions_add(&p, "c|gpu:h100:4", NULL));
	assert_false(partitions_add(&p, "no gres", NULL));
	assert_int_equal(partitions_find(&p, "a,b")->count, 8);
	assert_true(partitions_find(&p, "c")->mixed);
	assert_null(partitions_find(&p, "a,c"));
	assert_null(partitions_find(&p, "a,z"));
	assert_null(partitions_find(&p, ""));
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_line_of_the_queue_is_a_job),
		cmocka_unit_test(a_job_waits_for_others_and_for_its_time),
		cmocka_unit_test(what_cannot_be_asked_for_says_why),
		cmocka_unit_test(jobs_without_gpus_are_left_out_and_lines_of_another_form_are_errors),
		cmocka_unit_test(a_mark_is_read_as_it_was_written),
		cmocka_unit_test(marks_of_job_submit_lua_are_read_and_other_comments_are_none),
		cmocka_unit_test(a_request_has_the_name_of_its_job_start_attempt_and_ask),
		cmocka_unit_test(the_longest_name_fits),
		cmocka_unit_test(partitions_of_a_job_are_known_together_where_they_are_alike),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
