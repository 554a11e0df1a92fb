/* aggregator/cli/commands/cmd_quota_simulate.c - quota simulate: the engine on a state from a file, or on a recording of a service's decisions, without an
 * aggregator. Lines of JSON for scripts; every check in a table for people. */
#include <stdio.h>
#include <string.h>

#include "aggregator/cli/cli.h"
#include "aggregator/cli/commands/quota_print.h"
#include "aggregator/core/quota/book/quota_book.h"
#include "aggregator/core/simulate/scenario.h"
#include "common/conf/json.h"
#include "common/base/time.h"
#include "common/conf/yaml.h"

#define LINES_BYTES (256u << 20) /* of one step */
#define DIFFERENCES 5            /* that are shown */

struct teller {
	const struct quota_scenario *sc;
	const char *file;
	bool explain;
	bool failed;
	int differences;
};

/* ---- a scenario ---- */

static void
tell(void *to, const struct scenario_told *told)
{
	struct teller *t = to;
	const struct quota_namer namer = quota_scenario_namer(t->sc);
	char at[TIME_TEXT_SIZE], due[TIME_TEXT_SIZE];
	in_place(buf) struct buf lines = {0};

	duration_format(told->at_ns, at);
	if (t->explain) {
		for (size_t i = 0; i < told->outcome->verdict_count; i++)
			quota_print_verdict(&namer, at, &told->outcome->verdicts[i]);
		for (size_t i = 0; t->sc->over_time && i < told->outcome->notice_count; i++)
			quota_print_notice(at,
			                   duration_format(told->outcome->notices[i].at_ns - SCENARIO_START_NS, due),
			                   &told->outcome->notices[i]);
		return;
	}
	buf_init(&lines, LINES_BYTES);
	quota_scenario_json(t->sc, told, &lines);
	t->failed |= lines.over;
	fputs(buf_text(&lines), stdout);
}

static bool
simulate(struct teller *t, const struct buf *document, struct err *err)
{
	owned(quota_scenario) struct quota_scenario *sc = NULL;

	if (document->len > YAML_MAX_BYTES)
		return err_set(err, ERR_INVALID, "%s: %zu bytes are more than the limit of %u", t->file, document->len,
		               YAML_MAX_BYTES);
	if (!quota_scenario_parse(t->file, buf_text(document), document->len, &sc, err))
		return false;
	fputs(buf_text(&sc->warnings), stderr);
	t->sc = sc;
	if (!quota_scenario_replay(sc, tell, t, err))
		return err_prefix(err, "%s", t->file);
	return true;
}

/* ---- a recording ---- */

static void
tell_differs(struct teller *t, const struct quota_recorded *told)
{
	if (t->differences++ < DIFFERENCES)
		fprintf(stderr, "%s: event %" PRId64 " has another outcome\nrecorded: %snow:      %s", t->file,
		        told->seq, told->expected, told->found);
}

static void
tell_recorded(void *to, const struct quota_recorded *told)
{
	struct teller *t = to;
	const struct quota_namer namer = quota_book_namer(told->book);
	char at[TIME_TEXT_SIZE], due[TIME_TEXT_SIZE];
	in_place(buf) struct buf lines = {0};

	buf_init(&lines, LINES_BYTES);
	time_format(told->at_ns, at);
	for (size_t i = 0; i < told->outcome->verdict_count; i++) {
		if (t->explain)
			quota_print_verdict(&namer, at, &told->outcome->verdicts[i]);
		else
			quota_json_verdict(&namer, &told->outcome->verdicts[i], at, &lines);
		buf_str(&lines, t->explain ? "" : "\n");
	}
	for (size_t i = 0; i < told->outcome->notice_count; i++) {
		const struct quota_notice *n = &told->outcome->notices[i];

		if (t->explain)
			quota_print_notice(at, time_format(n->at_ns, due), n);
		else
			quota_json_notice(n, at, &lines);
		buf_str(&lines, t->explain ? "" : "\n");
	}
	t->failed |= lines.over;
	fputs(buf_text(&lines), stdout);
	if (told->differs)
		tell_differs(t, told);
}

static bool
replay(struct teller *t, const struct buf *document, struct err *err)
{
	struct quota_recording_sum sum;

	if (!quota_recording_replay(t->file, buf_text(document), document->len, tell_recorded, t, &sum, err))
		return false;
	if (sum.differ > 0)
		return err_set(err, ERR_CONFLICT,
		               "%s: %" PRId64 " of %" PRId64 " recorded outcomes are not what comes of their events",
		               t->file, sum.differ, sum.compared);
	fprintf(stderr, "%s: %" PRId64 " events, %" PRId64 " recorded outcomes, all the same\n", t->file, sum.events,
	        sum.compared);
	return true;
}

int
cmd_quota_simulate(struct cli *c)
{
	in_place(buf) struct buf document = {0};
	struct teller t = {.file = strcmp(c->words[0], "-") == 0 ? "standard input" : c->words[0]};
	struct err err = {0};
	bool ok;

	buf_init(&document, QUOTA_RECORDING_MAX_BYTES);
	if (cli_value(c, "explain") != NULL && cli_output(c, OUTPUT_TABLE) == OUTPUT_JSON) {
		(void)err_set(&err, ERR_INVALID, "--explain is a table: leave out --out json, or --explain");
		return cli_misuse(&err);
	}
	if (!cli_read_document(c->words[0], &document, &err))
		return cli_fail(&err);
	t.explain = cli_value(c, "explain") != NULL || cli_output(c, OUTPUT_JSON) == OUTPUT_TABLE;
	if (quota_recording_is(buf_text(&document), document.len))
		ok = replay(&t, &document, &err);
	else
		ok = simulate(&t, &document, &err);
	if (ok && t.failed)
		ok = err_set(&err, ERR_INVALID, "%s: the answer to one event is larger than %u bytes", t.file,
		             LINES_BYTES);
	return ok ? CLI_OK : cli_fail(&err);
}
