/* tests/unit/test_quota_explain.c - amounts as people write them, the numbers of the checks, and what would admit a request. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "aggregator/core/quantity.h"
#include "tests/support/quotascript.h"

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
			            quota_change_name(o->verdicts[0].changes[0].kind),
			            o->verdicts[0].changes[0].amount);
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

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(amounts_become_units_or_are_refused),
		cmocka_unit_test(units_are_written_as_gpus),
		cmocka_unit_test(the_smallest_change_that_would_admit),
		cmocka_unit_test(all_checks_are_told_in_the_order_of_the_rules),
	};

	return cmocka_run_group_tests_name("quota explained", tests, NULL, NULL);
}
