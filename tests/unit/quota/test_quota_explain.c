/* tests/unit/quota/test_quota_explain.c - amounts as people write them, the numbers of the checks, and what would admit a request. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "aggregator/core/quota/engine/quantity.h"
#include "aggregator/core/quota/engine/quota_text.h"
#include "tests/support/quota/quotascript.h"

static void
amounts_become_units_or_are_refused(void **state)
{
	static const struct {
		const char *text, *model;
		int64_t units; /* -1: refused */
	} rows[] = {
		{"4", "H100-80GB", 4 * 5040},
		{"0", "H100-80GB", 0},
		{"3/7", "H100-80GB", 2160},
		{"1/11", "H100-80GB", -1},
		{"none", "H100-80GB", QUANTITY_UNLIMITED},
		{"2x1g.10gb", "H100-80GB", 1350},
		{"2x1g.10gb", "H100", 1350},
		{"1x1g.10gb", "A100-40GB", 990},
		{"1x1g.5gb", "A100", 675},
		{"2x1g.10gb", "", 1350},
		{"2x1g.10gb", "L40S", -1},
		{"2x9g.10gb", "H100", -1},
		{"", "H100", -1},
		{"-1", "H100", -1},
		{"04", "H100", -1},
		{"1/0", "H100", -1},
		{"1.5", "H100", -1},
		{"1000001", "H100", -1},
		{"2x", "H100", -1},
		{"None", "H100", -1},
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		struct quantity q;
		struct err err;
		int64_t units = -1;

		if (!quantity_parse(rows[i].text, &q, &err) || !quantity_units(&q, rows[i].model, &units, &err))
			units = -1;
		if (units != rows[i].units)
			print_error("%s of %s: %" PRId64 "\n", rows[i].text, rows[i].model, units);
		assert_int_equal(units, rows[i].units);
	}
}

static void
units_are_written_as_gpus(void **state)
{
	char text[QUANTITY_TEXT_SIZE];

	(void)state;
	assert_string_equal(quantity_text(4 * 5040, text), "4");
	assert_string_equal(quantity_text(0, text), "0");
	assert_string_equal(quantity_text(2160, text), "3/7");
	assert_string_equal(quantity_text(QUANTITY_UNLIMITED, text), "none");
}

/* What would admit the last request of a script. */
static void
the_smallest_change_that_would_admit(void **state)
{
	static const struct {
		const char *name, *script;
		enum quota_change_kind kind;
		int64_t amount;
	} rows[] = {
		{"the limit is one GPU short", "ws a R2 M3 B9; node n 8; lease l a 2; ask r a 2", QUOTA_CHANGE_LIMIT,
	         5040},
		{"the tenant's maximum is short", "tenant t max=3; ws a R4; node n 8; lease l a 2; ask r a 2",
	         QUOTA_CHANGE_TENANT_MAXIMUM, 5040},
		{"the borrow cap is short", "ws a R2 B2 M9; ws b R4; node n 8; lease l a 3; ask r a 2",
	         QUOTA_CHANGE_BORROW, 5040},
		{"room is missing", "ws a R3 L2; ws b R2 L2; node n 5; lease l b 2; ask r b 3", QUOTA_CHANGE_CAPACITY,
	         5040},
		{"work that cannot be preempted needs a reservation",
	         "ws a R2 M9; ws b R2; node n 4; lease l a 1; ask r a 2 fixed", QUOTA_CHANGE_RESERVED, 5040},
		{"the cores are short", "ws a R4 cpu=1000; node n 4; ask q a 1 cpu=600; ask r a 1 cpu=600",
	         QUOTA_CHANGE_OTHER_LIMIT, 200},
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		owned(quota) struct quota_state *s = NULL;
		owned(quota_outcome) struct quota_outcome *o = NULL;
		struct buf answers;
		struct err err;

		buf_init(&answers, 1 << 16);
		assert_true(quotascript_run(rows[i].script, &answers, &s, &err));
		buf_fini(&answers);
		o = quota_explain(s, 0, "r");
		assert_non_null(o);
		if (o->verdicts[0].change_count != 1 || o->verdicts[0].changes[0].kind != rows[i].kind ||
		    o->verdicts[0].changes[0].amount != rows[i].amount)
			print_error("%s: %zu changes, %s by %" PRId64 "\n", rows[i].name, o->verdicts[0].change_count,
			            quota_change_name(&o->verdicts[0].changes[0]), o->verdicts[0].changes[0].amount);
		assert_int_equal(o->verdicts[0].change_count, 1);
		assert_int_equal(o->verdicts[0].changes[0].kind, rows[i].kind);
		assert_int_equal(o->verdicts[0].changes[0].amount, rows[i].amount);
		assert_int_equal(o->verdicts[0].position, 1);
	}
}

static void
all_checks_are_told_in_the_order_of_the_rules(void **state)
{
	owned(quota) struct quota_state *s = NULL;
	owned(quota_outcome) struct quota_outcome *o = NULL;
	struct buf answers;
	struct err err;
	bool seen[QUOTA_RULE_DECLARED + 1] = {false};

	(void)state;
	buf_init(&answers, 1 << 16);
	assert_true(
		quotascript_run("ws a R2 M3; node n 8; budget a 9 hard; lease l a 2; ask r a 2", &answers, &s, &err));
	buf_fini(&answers);
	o = quota_explain(s, 0, "r");
	assert_non_null(o);
	for (size_t i = 0; i < o->verdicts[0].check_count; i++) {
		const struct quota_check *k = &o->verdicts[0].checks[i];

		assert_true(i == 0 || k->rule >= o->verdicts[0].checks[i - 1].rule);
		seen[k->rule] = true;
		if (k->rule == QUOTA_RULE_LIMIT && k->scope == QUOTA_SCOPE_WORKSPACE && !k->shared) {
			assert_int_equal(k->need, 4 * 5040);
			assert_int_equal(k->have, 3 * 5040);
			assert_int_equal(k->leased, 2 * 5040);
			assert_int_equal(k->headroom, 5040);
			assert_false(k->ok);
		}
	}
	for (size_t r = QUOTA_RULE_VALID; r <= QUOTA_RULE_DECLARED; r++)
		assert_true(seen[r]);
	assert_null(quota_explain(s, 0, "nobody"));
}

/* ---- sentences ----------------------------------------------------------------------------------------------------------------- */

#define GIB (INT64_C(1) << 30)

static struct quota_shape
shape_of(const void *of, int32_t shape)
{
	static const struct quota_shape shapes[] = {{.kind = QUOTA_WHOLE, .units = 5040, .name = ""},
	                                            {.kind = QUOTA_MIG, .units = 675, .name = "1g.10gb"},
	                                            {.kind = QUOTA_REPLICA, .units = 1260, .name = "1/4"}};

	(void)of;
	return shapes[shape];
}

static const struct quota_namer by_shape = {.shape = shape_of};

/* What is said of a request for so many whole GPUs of workspace 0 after a script, and which rule decided. */
static enum quota_rule
told(const char *script, struct quota_request r, struct buf *out)
{
	owned(quota) struct quota_state *s = NULL;
	owned(quota_outcome) struct quota_outcome *o = NULL;
	in_place(buf) struct buf answers = {0};
	struct err err = {0};

	buf_init(&answers, 1 << 16);
	buf_clear(out);
	r.id = "r";
	r.klass = QUOTA_NONE;
	r.submitted_ns = 0;
	if (!quotascript_run(script, &answers, &s, &err) ||
	    !quota_try(s, quota_now(s), &(struct quota_event){.kind = QUOTA_SUBMIT, .requests = &r, .request_count = 1},
	               &o, &err))
		fail_msg("%s: %s", script, err.text);
	quota_sentences(&by_shape, &o->verdicts[o->verdict_count - 1], out);
	return quota_deciding_rule(&o->verdicts[o->verdict_count - 1]);
}

/* Time begins at 1970: the lease expired after half a minute. */
static void
for_whom_nobody_is_evicted_it_is_said_until_when(void **state)
{
	in_place(buf) struct buf said = {0};

	(void)state;
	buf_init(&said, 4096);
	(void)told("set confirm=30 unused=3600; ws a R2; ws b R0 M9; node n 2; ask q a 2; tick 30; ask l b 2; tick 0",
	           (struct quota_request){.count = 2, .preemptible = true}, &said);
	assert_string_equal(
		buf_text(&said),
		"It needs 2 more free GPUs. Nobody is evicted for it until 1970-01-01T00:01:00Z: its last lease was not "
		"used. It is number 1 of 1 in the queue for its tenant's own GPUs. To be admitted: wait until 2 more "
		"GPUs are free.");
}

static void
where_quotas_are_not_enforced_the_sentence_says_so(void **state)
{
	static const struct {
		const char *script; /* of workspace a, which is enforced or not */
		int32_t gpus;
		const char *enforced, *would;
	} rows[] = {
		{"ws a R2 %s; node n 4; tick 0", 1, "It is within the reservation of its workspace.", NULL},
		{"ws a R1 B9 M9 %s; ws b R3; node n 4; tick 0", 2,
	         "It uses 1 GPU beyond the reservation of its workspace; a workspace that reserved them may take them back.",
	         "borrow 1 GPU."},
		{"ws a R2 %s; ws b R2 M9; node n 4; lease l b 4; tick 0", 1,
	         "It waits for 1 lease that was asked to end; the GPUs that come back are kept for it. It is number 1 of 1 in "
	         "the queue for its tenant's own GPUs.",
	         "wait until others have given GPUs back."},
		{"ws a R2 M2 %s; node n 4; lease l a 2; tick 0", 1,
	         "The workspace's limit leaves 0 GPUs, and it asks for 1 GPU. It is number 1 of 1 in the queue for its "
	         "tenant's own GPUs. To be admitted: raise the workspace's limit by 1 GPU; an exception can be asked for.",
	         "wait. The workspace's limit leaves 0 GPUs, and it asks for 1 GPU."},
		{"ws a R2 M2 %s; node n 4; tick 0", 3,
	         "The workspace's limit leaves 2 GPUs, and it asks for 3 GPUs. As things are it can never be admitted. To be "
	         "admitted: raise the workspace's limit by 1 GPU; an exception can be asked "
	         "for.",
	         "be refused. The workspace's limit leaves 2 GPUs, and it asks for 3 GPUs."},
	};
	static const char *const enforce[] = {"", "warn", "off"};
	in_place(buf) struct buf said = {0}, expected = {0};

	(void)state;
	buf_init(&said, 4096);
	buf_init(&expected, 4096);
	for (size_t i = 0; i < ARRAY_LEN(rows); i++)
		for (size_t e = 0; e < ARRAY_LEN(enforce); e++) {
			const char *gap = strstr(rows[i].script, "%s");
			in_place(buf) struct buf script = {0};

			buf_init(&script, 4096);
			buf_add(&script, rows[i].script, (size_t)(gap - rows[i].script));
			buf_printf(&script, "%s%s", enforce[e], gap + 2);
			(void)told(buf_text(&script),
			           (struct quota_request){.count = rows[i].gpus, .preemptible = true}, &said);
			buf_clear(&expected);
			if (e == 0 || !rows[i].would)
				buf_str(&expected, rows[i].enforced);
			else
				buf_printf(&expected,
				           "It is admitted because quotas are not enforced for its workspace; if they "
				           "were, it would %s",
				           rows[i].would);
			assert_string_equal(buf_text(&said), buf_text(&expected));
		}
}

/* Each change in the unit that people count it in. */
static void
changes_are_told_in_their_units(void **state)
{
	static const struct {
		struct quota_change change;
		int32_t shape;
		const char *text;
	} rows[] = {
		{{QUOTA_CHANGE_LIMIT, QUOTA_RULE_LIMIT, QUOTA_SCOPE_WORKSPACE, true, false, 2 * 5040},
	         0,
	         "raise the workspace's limit in the shared pool by 2 GPUs"},
		{{QUOTA_CHANGE_OTHER_LIMIT, QUOTA_RULE_LIMIT, QUOTA_SCOPE_TENANT_CPU, false, false, 1500},
	         0,
	         "raise the tenant's CPU limit by 1.5 cores"},
		{{QUOTA_CHANGE_OTHER_LIMIT, QUOTA_RULE_LIMIT, QUOTA_SCOPE_MEMORY, true, false, 3 * GIB},
	         0,
	         "raise the workspace's memory limit by 3 GiB"},
		{{QUOTA_CHANGE_OTHER_LIMIT, QUOTA_RULE_LIMIT, QUOTA_SCOPE_STORAGE, false, false, 1000},
	         0,
	         "raise the workspace's storage limit by 1000 bytes"},
		{{QUOTA_CHANGE_BUDGET, QUOTA_RULE_BUDGET, QUOTA_SCOPE_TENANT, false, false,
	          INT64_C(5040) * 3600 * 5 / 2},
	         0,
	         "raise the tenant's budget by 2.5 GPU-hours"},
		{{QUOTA_CHANGE_BUDGET, QUOTA_RULE_BUDGET, QUOTA_SCOPE_WORKSPACE, false, true, 1250},
	         0,
	         "raise the workspace's budget by 12.5 in money"},
		{{QUOTA_CHANGE_CAPACITY, QUOTA_RULE_AVAILABLE, QUOTA_SCOPE_POOL, false, false, 3 * 5040},
	         0,
	         "wait until 3 more GPUs are free"},
		{{QUOTA_CHANGE_CAPACITY, QUOTA_RULE_AVAILABLE, QUOTA_SCOPE_POOL, false, false, 675},
	         1,
	         "wait until 1 more instance of 1g.10gb is free"},
		{{QUOTA_CHANGE_SMALLER, QUOTA_RULE_VALID, QUOTA_SCOPE_GUARDRAIL, false, false, 2 * 1260},
	         2,
	         "ask for no more than 2 replicas (4 are one GPU)"},
		{{QUOTA_CHANGE_WAIT, QUOTA_RULE_BORROW, QUOTA_SCOPE_BACKOFF, false, false, INT64_C(89500000000)},
	         0,
	         "wait 1m30s, until the back-off ends"},
	};
	in_place(buf) struct buf said = {0};

	(void)state;
	buf_init(&said, 4096);
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		const struct quota_verdict v = {.would = QUOTA_QUEUE, .shape = rows[i].shape};

		buf_clear(&said);
		quota_change_text(&by_shape, &v, &rows[i].change, &said);
		assert_string_equal(buf_text(&said), rows[i].text);
	}
}

/* Two limits of one request are two changes: cores and bytes are not compared. */
static void
each_scope_has_its_own_change(void **state)
{
	in_place(buf) struct buf said = {0};

	(void)state;
	buf_init(&said, 4096);
	(void)told("tenant t cpu=1000; ws a R4 cpu=500 of=t; node n 4; tick 0",
	           (struct quota_request){.count = 1, .preemptible = true, .other = {[QUOTA_CPU] = 2000}}, &said);
	assert_non_null(strstr(buf_text(&said),
	                       "To be admitted: raise the workspace's CPU limit by 1.5 cores and raise the "
	                       "tenant's CPU limit by 1 core."));
}

static void
what_is_wrong_with_a_request_is_named(void **state)
{
	in_place(buf) struct buf said = {0};

	(void)state;
	buf_init(&said, 4096);
	(void)told("ws a R4; node n 4; tick 0", (struct quota_request){.count = 3, .per_node = 2, .preemptible = true},
	           &said);
	assert_string_equal(
		buf_text(&said),
		"It cannot be admitted as it is asked for: the count is not a multiple of per_node. To be admitted: "
		"ask for something else.");
}

/* The rule that the headline names is the one that the first sentence is about. */
static void
the_first_sentence_is_about_the_deciding_rule(void **state)
{
	static const struct {
		const char *script;
		struct quota_request r;
		enum quota_rule rule;
		const char *told;
	} rows[] = {
		{"ws a R2 M8; node n 8; lease l a 2; tick 0",
	         {.count = 2},
	         QUOTA_RULE_OWED,
	         "It is not preemptible, so it must fit the reservation of its workspace, and that is 2 GPUs too small."},
		{"ws a R2 M8; node n 8; tick 0",
	         {.count = 3, .preemptible = true},
	         QUOTA_RULE_BORROW,
	         "It uses 1 GPU beyond the reservation of its workspace, of those that nobody reserved."},
		{"ws a R4 M8 B1; node n 8; lease l a 4; tick 0",
	         {.count = 3, .preemptible = true},
	         QUOTA_RULE_BORROW,
	         "It would borrow 2 GPUs more than its workspace may."},
		{"ws a R0 M2; tick 0",
	         {.count = 3, .preemptible = true},
	         QUOTA_RULE_OWNERSHIP,
	         "There is no node with what it asks for that its workspace may use: its tenant owns none, and none is "
	         "shared."},
		{"ws a R4; node n 8; budget a 9 hard; tick 0",
	         {.count = 4, .preemptible = true, .expected_s = 36000},
	         QUOTA_RULE_BUDGET,
	         "The workspace's budget of this month leaves 0.0025 GPU-hours, and it asks for 40 GPU-hours. As things are "
	         "it can never"},
	};
	in_place(buf) struct buf said = {0};

	(void)state;
	buf_init(&said, 4096);
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		assert_int_equal(told(rows[i].script, rows[i].r, &said), rows[i].rule);
		if (strncmp(buf_text(&said), rows[i].told, strlen(rows[i].told)) != 0)
			fail_msg("%s: %s", rows[i].script, buf_text(&said));
	}
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(amounts_become_units_or_are_refused),
		cmocka_unit_test(units_are_written_as_gpus),
		cmocka_unit_test(the_smallest_change_that_would_admit),
		cmocka_unit_test(all_checks_are_told_in_the_order_of_the_rules),
		cmocka_unit_test(for_whom_nobody_is_evicted_it_is_said_until_when),
		cmocka_unit_test(where_quotas_are_not_enforced_the_sentence_says_so),
		cmocka_unit_test(changes_are_told_in_their_units),
		cmocka_unit_test(each_scope_has_its_own_change),
		cmocka_unit_test(what_is_wrong_with_a_request_is_named),
		cmocka_unit_test(the_first_sentence_is_about_the_deciding_rule),
	};

	return cmocka_run_group_tests_name("quota explained", tests, NULL, NULL);
}
