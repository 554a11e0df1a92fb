/* tests/unit/cli/test_cli.c - the command line: what is accepted, which time is meant, what a bar looks like. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "aggregator/cli/cli.h"
#include "common/conf/roff.h"

/* ---- parsing ---- */

static void
a_command_line_is_read_or_refused_with_the_word_that_is_wrong(void **state)
{
	static const struct {
		const char *name;
		const char *words[8];
		const char *wrong; /* part of the refusal; NULL: it is accepted */
	} cases[] = {
		{"a command of one word", {"usage"}, NULL},
		{"a command of two words", {"token", "list"}, NULL},
		{"an option with a value behind it", {"usage", "--since", "7d"}, NULL},
		{"an option with a value in it", {"usage", "--since=7d"}, NULL},
		{"a letter", {"apply", "-f", "x"}, NULL},
		{"a choice", {"get", "nodes", "-o", "csv"}, NULL},
		{"a list of choices", {"usage", "--by", "tenant,state"}, NULL},
		{"a word that is not among the known ones where others may be", {"report", "2026-11"}, NULL},
		{"a word behind two dashes", {"report", "--", "2026-11"}, NULL},
		{"help without what is required", {"apply", "--help"}, NULL},
		{"no such command", {"dance"}, "there is no command \"dance\""},
		{"half a command", {"token"}, "there is no command \"token\" alone; it is followed by one of create, "},
		{"half a command with an option",
	         {"quota", "-o", "json"},
	         "\"quota\" alone; it is followed by one of status, "},
		{"help for half a command", {"quota", "--help"}, NULL},
		{"help before half a command", {"help", "quota"}, NULL},
		{"help before a command", {"help", "quota", "decide"}, NULL},
		{"help for half a command with a wrong option", {"quota", "--help", "--gpus"}, "\"quota\" alone"},
		{"options before the command", {"--url", "http://x", "-o", "yaml", "get", "nodes"}, NULL},
		{"an option before and one behind", {"--url=http://x", "token", "list", "-o", "csv"}, NULL},
		{"an option of one command before it",
	         {"--since", "7d", "usage"},
	         "--since is not an option of every command"},
		{"a wrong value before the command",
	         {"-o", "xml", "usage"},
	         "--out: \"xml\" is not one of table, json, csv, yaml"},
		{"a value before the command that is missing", {"--url"}, "--url needs URL"},
		{"options and no command", {"--url", "http://x"}, "a command is missing"},
		{"a form that the command does not have",
	         {"completion", "bash", "-o", "json"},
	         "tollgate completion has no --out"},
		{"one of two forms that it has", {"-o", "table", "quota", "simulate", "x"}, NULL},
		{"a form beside the two that it has",
	         {"quota", "simulate", "x", "-o", "csv"},
	         "tollgate quota simulate --out: \"csv\" is not one of table, json"},
		{"nearly a command", {"token", "crate"}, "did you mean \"token create\"?"},
		{"no such option", {"usage", "--sinse", "7d"}, "--sinse is not an option of tollgate usage"},
		{"an option of another command", {"top", "--since", "7d"}, "--since is not an option of tollgate top"},
		{"a value that is missing", {"usage", "--since"}, "--since needs AGE"},
		{"a value too many", {"apply", "--dry-run=1", "-f", "x"}, "--dry-run takes no value"},
		{"a required option that is missing", {"apply"}, "tollgate apply needs --file FILE"},
		{"a word that is missing", {"get"}, "tollgate get needs tenants|workspaces"},
		{"a word too many", {"top", "now"}, "tollgate top: unexpected argument \"now\""},
		{"a word that is no choice", {"get", "dragons"}, "\"dragons\" is not one of tenants, workspaces"},
		{"a value that is no choice", {"usage", "-o", "xml"}, "--out: \"xml\" is not one of table, json, csv"},
		{"a list with a key that is none",
	         {"usage", "--by", "tenant,colour"},
	         "--by: \"colour\" is not one of"},
		{"a list with an empty key", {"usage", "--by", "tenant,"}, "--by: \"\" is not one of"},
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		char program[] = "tollgate", copies[8][64];
		char *argv[9] = {program};
		struct cli c = {0};
		struct err err = {0};
		int argc = 1;
		bool ok;

		for (; argc <= 8 && cases[i].words[argc - 1] != NULL; argc++) {
			snprintf(copies[argc - 1], sizeof(copies[0]), "%s", cases[i].words[argc - 1]);
			argv[argc] = copies[argc - 1];
		}
		ok = cli_parse(&c, argc, argv, &err);
		if (ok != (cases[i].wrong == NULL) || (!ok && strstr(err.text, cases[i].wrong) == NULL))
			fail_msg("%s: %s", cases[i].name, ok ? "accepted" : err.text);
	}
}

static void
every_row_of_the_table_can_be_told(void **state)
{
	(void)state;
	for (size_t i = 0; i < cli_command_count; i++) {
		const struct cli_command *cmd = &cli_commands[i];
		size_t n = 0;

		assert_non_null(cmd->run);
		assert_non_null(cmd->words);
		assert_true(cmd->word_min <= cmd->word_max && cmd->word_max <= CLI_WORD_MAX);
		assert_int_equal(cmd->word_max > 0, cmd->words[0] != '\0');
		for (; n < CLI_OPTION_MAX && cmd->options[n].name != NULL; n++) {
			const struct cli_option *o = &cmd->options[n];

			assert_non_null(o->help);
			assert_true(o->value != NULL || (o->choices == NULL && o->flags == 0));
			for (size_t k = 0; k < cli_common_count; k++)
				if (strcmp(o->name, cli_common[k].name) == 0 ||
				    (o->letter != 0 && o->letter == cli_common[k].letter))
					fail_msg("%s: --%s is an option of every command", cmd->name, o->name);
		}
		assert_true(n < CLI_OPTION_MAX);
	}
}

/* ---- time ---- */

static json_t *
periods(void)
{
	struct err err = {0};
	json_t *list = NULL;
	/* Berlin: October ends with winter time */
	static const char text[] =
		"[{\"month\":\"2026-08\",\"starts_at\":\"2026-07-31T22:00:00Z\",\"ends_at\":\"2026-08-31T22:00:00Z\"},"
		"{\"month\":\"2026-10\",\"starts_at\":\"2026-09-30T22:00:00Z\",\"ends_at\":\"2026-10-31T23:00:00Z\"},"
		"{\"month\":\"2026-11\",\"starts_at\":\"2026-10-31T23:00:00Z\",\"ends_at\":\"2026-11-30T23:00:00Z\"}]";

	if (!json_parse("periods", text, strlen(text), &list, &err))
		fail_msg("%s", err.text);
	return list;
}

static void
options_of_time_become_a_range_or_a_refusal(void **state)
{
	static const struct {
		const char *name;
		struct range_options o;
		const char *now, *from, *to, *wrong;
	} cases[] = {
		{"nothing is the preset", {.preset = "24h"}, "2026-11-16T08:00:00Z", "2026-11-15T08:00:00Z", "", NULL},
		{"since", {.since = "7d"}, "2026-11-16T08:00:00Z", "2026-11-09T08:00:00Z", "", NULL},
		{"a moment and a day go as they are",
	         {.from = "2026-11-01", .to = "2026-11-02T00:00:00+01:00"},
	         "2026-11-16T08:00:00Z",
	         "2026-11-01",
	         "2026-11-02T00:00:00+01:00",
	         NULL},
		{"an end alone", {.to = "2026-11-02"}, "2026-11-16T08:00:00Z", "", "2026-11-02", NULL},
		{"this month begins in the billing zone",
	         {.this_month = true},
	         "2026-11-16T08:00:00Z",
	         "2026-10-31T23:00:00Z",
	         "",
	         NULL},
		{"last month",
	         {.last_month = true},
	         "2026-11-16T08:00:00Z",
	         "2026-09-30T22:00:00Z",
	         "2026-10-31T23:00:00Z",
	         NULL},
		{"the last second of a month is in it",
	         {.this_month = true},
	         "2026-10-31T22:59:59Z",
	         "2026-09-30T22:00:00Z",
	         "",
	         NULL},
		{"the first second is in the next",
	         {.this_month = true},
	         "2026-10-31T23:00:00Z",
	         "2026-10-31T23:00:00Z",
	         "",
	         NULL},
		{"a month that the ledger has not",
	         {.last_month = true},
	         "2026-10-16T08:00:00Z",
	         NULL,
	         NULL,
	         "nothing of last month"},
		{"the ledger's first month has none before it",
	         {.last_month = true},
	         "2026-08-16T08:00:00Z",
	         NULL,
	         NULL,
	         "nothing of last month"},
		{"a time beyond all months",
	         {.this_month = true},
	         "2027-01-01T08:00:00Z",
	         NULL,
	         NULL,
	         "nothing of this month"},
		{"an age without unit", {.since = "7"}, "2026-11-16T08:00:00Z", NULL, NULL, "--since"},
		{"a day that does not exist",
	         {.from = "2026-02-31"},
	         "2026-11-16T08:00:00Z",
	         NULL,
	         NULL,
	         "--from: \"2026-02-31\""},
		{"a time without zone", {.to = "2026-11-01T00:00:00"}, "2026-11-16T08:00:00Z", NULL, NULL, "--to"},
		{"two ways at once",
	         {.since = "7d", .last_month = true},
	         "2026-11-16T08:00:00Z",
	         NULL,
	         NULL,
	         "only one"},
		{"both months",
	         {.this_month = true, .last_month = true},
	         "2026-11-16T08:00:00Z",
	         NULL,
	         NULL,
	         "only one"},
	};
	owned(json) json_t *months = periods();

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		struct range r;
		struct err err = {0};
		int64_t now_ns = 0;
		bool ok;

		assert_true(time_parse(cases[i].now, &now_ns, NULL));
		ok = range_check(&cases[i].o, &err) && range_resolve(&cases[i].o, now_ns, months, &r, &err);
		if (ok != (cases[i].wrong == NULL) || (!ok && strstr(err.text, cases[i].wrong) == NULL))
			fail_msg("%s: %s", cases[i].name, ok ? "accepted" : err.text);
		if (ok && (strcmp(r.from, cases[i].from) != 0 || strcmp(r.to, cases[i].to) != 0))
			fail_msg("%s: from \"%s\" to \"%s\"", cases[i].name, r.from, r.to);
	}
}

/* ---- what is shown ---- */

static void
a_bar_says_how_far_a_call_is(void **state)
{
	static const struct {
		int64_t elapsed_ns, received, total;
		const char *line;
	} cases[] = {
		{3 * NS_PER_S, 0, 0, "waiting for the aggregator, 3 s"},
		{2 * NS_PER_S, 512 << 10, 1 << 20, "[############............] 50% of 1.0 MiB, 2 s"},
		{NS_PER_S, 1, 100 << 20, "[........................] 0% of 100.0 MiB, 1 s"},
		{NS_PER_MIN, 3000, 3000, "[########################] 100% of 3 KiB, 60 s"},
		{5 * NS_PER_S, 3 << 20, 0, "3.0 MiB, 5 s"},
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		in_place(buf) struct buf line;

		buf_init(&line, 256);
		progress_line(cases[i].elapsed_ns, cases[i].received, cases[i].total, &line);
		assert_string_equal(buf_text(&line), cases[i].line);
	}
}

static void
manual_text_holds_nothing_that_roff_would_take_for_its_own(void **state)
{
	in_place(buf) struct buf out;

	(void)state;
	buf_init(&out, 4096);
	roff_paragraph(&out, ".x \\n it's --fine ~ ^ `y`");
	assert_string_equal(buf_text(&out), ".PP\n\\&.x \\en it\\(aqs \\-\\-fine \\(ti \\(ha \\(gay\\(ga.\n");
	buf_clear(&out);
	roff_section(&out, "OPTIONS");
	roff_paragraph(&out, "begins by itself?");
	roff_item(&out, "--file", "FILE", "the policy");
	assert_string_equal(buf_text(&out),
	                    ".SH OPTIONS\nBegins by itself?\n.TP\n\\fB\\-\\-file\\fR \\fIFILE\\fR\nThe policy.\n");
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_command_line_is_read_or_refused_with_the_word_that_is_wrong),
		cmocka_unit_test(every_row_of_the_table_can_be_told),
		cmocka_unit_test(options_of_time_become_a_range_or_a_refusal),
		cmocka_unit_test(a_bar_says_how_far_a_call_is),
		cmocka_unit_test(manual_text_holds_nothing_that_roff_would_take_for_its_own),
	};

	return cmocka_run_group_tests_name("cli", tests, NULL, NULL);
}
