/* tests/unit/hooks/test_hook_desk.c - answers to job_submit.lua: the rules of hook_desk.h, by number. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "hooks/agent/hook_desk.h"

#define NOW 1000
#define SUBMIT "submit\taccount=Physics\tuser=ann\tpartition=gpu\texclusive=0\tinteractive=0\tpriority_hold=0"
#define HOLD "hold\t\tadmin_comment=tollgate%20wait.0%20submitted:%20its%20quota%20is%20being%20asked%20for"

static void
is_answered(struct hook_desk *d, const char *name, const char *question, const char *expected)
{
	owned(mem) char *line = mem_strdup(question);
	in_place(buf) struct buf out = {0};

	buf_init(&out, HOOK_LINE_MAX);
	hook_desk_answer(d, line, NOW, &out);
	if (strcmp(buf_text(&out), expected) != 0)
		fail_msg("%s:\n  %s\nnot\n  %s", name, buf_text(&out), expected);
}

static struct job
physics(int64_t gpus)
{
	return (struct job){
		.account = "physics", .user = "ann", .batch = true, .requeue = true, .ask = {gpus, 0, "a100"}};
}

static void
submissions(void **state)
{
	struct hook_desk *pass = hook_desk_new(UNATTRIBUTED_PASS), *deny = hook_desk_new(UNATTRIBUTED_DENY);
	struct job eight = physics(8), five = physics(5);

	(void)state;
	for (int i = 0; i < 2; i++) {
		struct hook_desk *d = i ? deny : pass;
		struct partitions p = {0};

		assert_true(partitions_add(&p, "gpu|gpu:a100:4", NULL));
		hook_desk_partitions(d, &p);
		hook_desk_learn(d, &eight, SHAPE_REJECTED, "limit: 4 GPUs, wanted 8", NOW + 1);
		hook_desk_learn(d, &five, SHAPE_NOBODY, "nobody's", NOW + 1);
		is_answered(d, "1: no GPU", SUBMIT "\ttres_per_node=gres:nvme:1", "pass\t");
		is_answered(
			d, "2: two types", SUBMIT "\ttres_per_node=gpu:a100:1,gpu:h100:1",
			"refuse\tTollgate:%20GPUs%20of%20two%20types,%20a100%20and%20h100,%20in%20one%20job:%20submit%20one%20job%20for%20each");
		is_answered(
			d, "2: heterogeneous", SUBMIT "\thet_index=1\ttres_per_job=gres:gpu:1",
			"refuse\tTollgate:%20GPUs%20in%20a%20heterogeneous%20job%20cannot%20be%20leased%3B%20submit%20one%20job%20for%20each%20kind%20of%20node");
		is_answered(d, "3: rejected a moment ago", SUBMIT "\ttres_per_job=gres:gpu:8",
		            "refuse\tTollgate:%20limit:%204%20GPUs,%20wanted%208");
		is_answered(d, "4: of no workspace", SUBMIT "\ttres_per_job=gres:gpu:a100:5",
		            i ? "refuse\tTollgate:%20nobody%27s" : "pass\t");
		is_answered(d, "5: one that is not requeued is another ask",
		            SUBMIT "\trequeue=0\ttres_per_job=gres:gpu:8", HOLD);
		is_answered(d, "5: held", SUBMIT "\ttres_per_job=gres:gpu:2", HOLD);
		is_answered(
			d, "5: with its user's hold and signal",
			"submit\taccount=physics\tuser=ann\ttres_per_job=gres:gpu:2\tpriority_hold=1\tsignal=10\tsignal_batch=1",
			"hold\t\tadmin_comment=tollgate%20wait.0ub10%20submitted:%20the%20user%20holds%20it");
	}
	hook_desk_free(pass);
	hook_desk_free(deny);
}

static void
an_answer_is_believed_for_its_time(void **state)
{
	struct hook_desk *d = hook_desk_new(UNATTRIBUTED_PASS);
	struct job eight = physics(8), six = physics(6);
	char text[SHAPE_TEXT_SIZE];

	(void)state;
	hook_desk_learn(d, &eight, SHAPE_REJECTED, "no", NOW + 1);
	assert_int_equal(hook_desk_known(d, &eight, NOW, text), SHAPE_REJECTED);
	assert_string_equal(text, "no");
	assert_int_equal(hook_desk_known(d, &eight, NOW + 1, text), SHAPE_UNKNOWN);
	assert_string_equal(text, "");
	assert_int_equal(hook_desk_known(d, &six, NOW, text), SHAPE_UNKNOWN);
	hook_desk_free(d);
}

static void
changes_by_users(void **state)
{
	static const char *const by_change[] = {"modify\ttres_per_job=gres:gpu:8\tjob=7", "modify\tgres=gpu:8\tjob=7",
	                                        "modify\ttasks_per_gpu=1\tjob=7",
	                                        "modify\ttres_per_job=gresgpu:8\tjob=7",
	                                        "modify\tpartition=p\texclusive=1\tjob=7"};
	struct hook_desk *d = hook_desk_new(UNATTRIBUTED_PASS);
	struct user_hold *holds;
	size_t n = 0;

	(void)state;
	is_answered(d, "6: our hold stays", "modify\thold=0\tjob=7\tadmin_comment=tollgate%20wait.0u%20hold:%20x",
	            "refuse\tthe%20job%20waits%20for%20its%20quota,%20and%20is%20released%20when%20it%20is%20admitted");
	is_answered(d, "6: the user holds a task",
	            "modify\thold=1\tjob=9\tarray_job=8\tarray_task=3\tadmin_comment=tollgate%20wait.0%20limit:%20x",
	            "pass\t");
	is_answered(d, "7: it waits", "modify\taccount=b\tjob=7\tadmin_comment=tollgate%20wait.0%20limit:%20x",
	            "pass\t");
	is_answered(
		d, "7: it was admitted", "modify\taccount=b\tjob=7\tadmin_comment=tollgate%20run.0%20admitted:%20x",
		"refuse\taccount%20cannot%20change%20once%20the%20job%20was%20admitted:%20cancel%20it,%20and%20submit%20another");
	is_answered(d, "7: its time limit may change",
	            "modify\ttime_limit_s=60\tjob=7\tadmin_comment=tollgate%20run.0%20admitted:%20x", "pass\t");
	is_answered(d, "a job without a mark", "modify\taccount=b\tjob=7\tadmin_comment=of%20the%20site", "pass\t");
	is_answered(
		d, "7: nodes of an admitted job",
		"modify\tnodes=gn7\tjob=7\tadmin_comment=tollgate%20run.0%20admitted:%20x",
		"refuse\tnodes%20cannot%20change%20once%20the%20job%20was%20admitted:%20cancel%20it,%20and%20submit%20another");
	for (size_t i = 0; i < ARRAY_LEN(by_change); i++)
		is_answered(
			d, "8: no GPU by a change", by_change[i],
			"refuse\ta%20job%20that%20was%20submitted%20without%20GPUs%20gets%20none%20by%20a%20change:%20cancel%20it,%20and%20submit%20another");
	is_answered(d, "2: tasks alone", "submit\ttasks=8\ttasks_per_gpu=1\tuser=a\tpartition=p",
	            "refuse\tTollgate:%20ntasks-per-gpu:%20say%20how%20many%20GPUs,%20with%20--gpus");
	holds = hook_desk_take_holds(d, &n);
	assert_int_equal(n, 2);
	assert_true(holds[0].job == 7 && holds[0].array_id == 0 && !holds[0].hold);
	assert_true(holds[1].job == 9 && holds[1].array_id == 8 && holds[1].array_task == 3 && holds[1].hold);
	mem_free(holds);
	holds = hook_desk_take_holds(d, &n);
	assert_int_equal(n, 0);
	mem_free(holds);
	hook_desk_free(d);
}

static void
questions_that_are_none_have_no_answer(void **state)
{
	static const char *const wrong[] = {
		"",     "start", "submit\tx", "submit\ttres_per_job=%0", "submit\ttres_per_job=%zz", "submit\ta=%00",
		"\ta=b"};
	struct hook_desk *d = hook_desk_new(UNATTRIBUTED_PASS);
	int64_t counts[HOOK_VERBS][HOOK_RESULTS];

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(wrong); i++)
		is_answered(d, wrong[i], wrong[i], "");
	hook_desk_counts(d, counts);
	assert_int_equal(counts[HOOK_OTHER][HOOK_MALFORMED], ARRAY_LEN(wrong));
	hook_desk_free(d);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(submissions),
		cmocka_unit_test(an_answer_is_believed_for_its_time),
		cmocka_unit_test(changes_by_users),
		cmocka_unit_test(questions_that_are_none_have_no_answer),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
