/* tests/unit/reports/test_month_facts.c - what documents say beside their lines, as a text and back. */
#include "aggregator/core/reports/month_facts.h"

#include <string.h>

#include "tests/support/billing/rates.h"

static void
write_all(struct buf *out)
{
	facts_write_frame(&(struct facts_frame){.organisation = "Example\tInc. & Sons",
	                                        .provider = "Plat\\form",
	                                        .zone = "Asia/Kolkata",
	                                        .now_ns = 17},
	                  out);
	facts_write_day(&(struct facts_day){"2026-10-31T18:30:00Z", 1793471400000000000}, out);
	facts_write_day(&(struct facts_day){"2026-11-01T18:30:00Z", 1793557800000000000}, out);
	facts_write_period(&(struct focus_period){"2026-10-31T18:30:00Z", "2026-11-30T18:30:00Z", "closed",
	                                          "2026-12-03T00:00:00Z", "2026-11-01"},
	                   out);
	facts_write_ledger(&(struct facts_ledger){1793557800000000001}, out);
	facts_write_tenant(&(struct facts_tenant){.tenant = "acme", .display_name = "Acme\nLtd."}, out);
	facts_write_amount(&(struct invoice_amount){.currency = "EUR", .billed = -((int128)1 << 90), .scale = 2}, out);
	facts_write_amount(&(struct invoice_amount){.currency = "JPY", .billed = 7}, out);
	facts_write_budget(&(struct budget){.workspace = "", .kind = "hard", .unit = "EUR", .limit = 5}, out);
	facts_write_promise(
		&(struct invoice_promise){.workspace = "prod", .owed_wait_seconds = "60", .owed_requests = "0"}, out);
	facts_write_tenant(
		&(struct facts_tenant){.tenant = "globex",
	                               .display_name = "",
	                               .has_own = true,
	                               .own = {.held = 1, .unallocated = 2, .stranded = 3, .down = 4, .unknown = 5}},
		out);
	facts_write_tenant(&(struct facts_tenant){.tenant = "initech", .display_name = ""}, out);
	facts_write_amount(&(struct invoice_amount){.currency = "USD", .billed = 9, .scale = 2}, out);
}

static void
what_was_written_is_read(void **state)
{
	owned(month_facts) struct month_facts *f = NULL;
	in_place(buf) struct buf text;
	struct err err = {0};

	(void)state;
	buf_init(&text, 1u << 20);
	write_all(&text);
	assert_true(month_facts_read(buf_text(&text), text.len, &f, &err));
	assert_string_equal(f->frame.organisation, "Example\tInc. & Sons");
	assert_string_equal(f->frame.account_id, "org/example-inc-sons");
	assert_string_equal(f->frame.provider, "Plat\\form");
	assert_null(f->frame.previous_period);
	assert_int_equal(f->frame.now_ns, 17);
	assert_int_equal(f->frame.layout, 0);
	assert_int_equal(f->days[1].begins_ns, 1793557800000000000);
	assert_true(f->first_ns == 1793557800000000001);
	assert_int_equal(f->day_bound_count, 2);
	assert_string_equal(f->day_bounds[1], "2026-11-01T18:30:00Z");
	assert_int_equal(f->period_count, 1);
	assert_string_equal(f->periods[0].closed_at, "2026-12-03T00:00:00Z");
	assert_int_equal(f->tenant_count, 3);
	assert_string_equal(month_facts_tenant(f, "acme")->display_name, "Acme\nLtd.");
	assert_int_equal(month_facts_tenant(f, "acme")->previous_count, 2);
	assert_true(month_facts_tenant(f, "acme")->previous[0].billed == -((int128)1 << 90));
	assert_string_equal(month_facts_tenant(f, "acme")->previous[1].currency, "JPY");
	assert_false(month_facts_tenant(f, "acme")->has_own);
	assert_int_equal(month_facts_tenant(f, "acme")->budget_count, 1);
	assert_string_equal(month_facts_tenant(f, "acme")->budgets[0].tenant, "acme");
	assert_true(month_facts_tenant(f, "acme")->budgets[0].limit == 5);
	assert_int_equal(month_facts_tenant(f, "acme")->promise_count, 1);
	assert_string_equal(month_facts_tenant(f, "acme")->promises[0].owed_wait_seconds, "60");
	assert_null(month_facts_tenant(f, "acme")->promises[0].delivered_kept);
	assert_int_equal(month_facts_tenant(f, "globex")->promise_count, 0);
	assert_int_equal(month_facts_tenant(f, "globex")->previous_count, 0);
	assert_true(month_facts_tenant(f, "globex")->has_own);
	assert_true(month_facts_tenant(f, "globex")->own.unknown == 5);
	assert_string_equal(month_facts_tenant(f, "initech")->previous[0].currency, "USD");
	assert_null(month_facts_tenant(f, "umbrella"));
}

/* A text of before there were layouts is one of the first. */
static void
the_layout_of_pages_is_kept(void **state)
{
	static const struct {
		const char *text;
		int64_t layout;
	} cases[] = {{"F\ta\tb\torg/a\td\t\\N\t5\n", 0}, {"F\ta\tb\torg/a\td\t\\N\t5\t1\n", 1}};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		owned(month_facts) struct month_facts *f = NULL;
		in_place(buf) struct buf text;
		struct err err = {0};

		buf_init(&text, 1u << 20);
		if (!month_facts_read(cases[i].text, strlen(cases[i].text), &f, &err))
			fail_msg("%s", err.text);
		assert_int_equal(f->frame.layout, cases[i].layout);
		facts_write_frame(&f->frame, &text);
		assert_string_equal(buf_text(&text), cases[i].text);
	}
}

static void
other_bytes_are_refused(void **state)
{
	static const struct {
		const char *name, *text;
	} cases[] = {
		{"nobody pays", ""},
		{"two frames", "F\ta\tb\tc\td\t\\N\t0\nF\ta\tb\tc\td\t\\N\t0\n"},
		{"a frame without a zone", "F\ta\tb\tc\t\\N\t\\N\t0\n"},
		{"an amount of no tenant", "F\ta\tb\tc\td\t\\N\t0\nA\tEUR\t1\t2\n"},
		{"an amount without a currency", "F\ta\tb\tc\td\t\\N\t0\nT\tx\t\t0\t0\t0\t0\t0\t0\nA\t\\N\t1\t2\n"},
		{"a tenant without a name", "F\ta\tb\tc\td\t\\N\t0\nT\t\\N\t\t0\t0\t0\t0\t0\t0\n"},
		{"a field too many", "F\ta\tb\tc\td\t\\N\t0\t1\te\n"},
		{"a layout that is no number", "F\ta\tb\tc\td\t\\N\t0\te\n"},
		{"a period without its end", "F\ta\tb\tc\td\t\\N\t0\nP\ta\t\\N\tc\td\te\n"},
		{"a day that begins nowhere", "F\ta\tb\tc\td\t\\N\t0\nD\t\\N\t0\n"},
		{"a budget of nothing", "F\ta\tb\tc\td\t\\N\t0\nT\tx\t\t0\t0\t0\t0\t0\t0\nB\t\tsoft\tEUR\t0\n"},
		{"a number with a zero in front", "F\ta\tb\tc\td\t\\N\t01\n"},
		{"a letter that nothing has", "F\ta\tb\tc\td\t\\N\t0\nZ\ta\n"},
		{"a line without an end", "F\ta\tb\tc\td\t\\N\t0"},
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		owned(month_facts) struct month_facts *f = NULL;
		struct err err = {0};

		if (month_facts_read(cases[i].text, strlen(cases[i].text), &f, &err))
			fail_msg("%s is taken", cases[i].name);
		assert_int_equal(err.kind, ERR_INVALID);
	}
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_was_written_is_read),
		cmocka_unit_test(the_layout_of_pages_is_kept),
		cmocka_unit_test(other_bytes_are_refused),
	};

	return cmocka_run_group_tests_name("month facts", tests, NULL, NULL);
}
