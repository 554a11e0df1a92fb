/* aggregator/cli/quota_simulate.c - quota simulate: the engine on a state from a file, without an aggregator. Lines of JSON for
 * scripts; every check in a table for people. */
#include <stdio.h>
#include <string.h>

#include "aggregator/cli/cli.h"
#include "aggregator/core/scenario.h"
#include "aggregator/core/scenario_text.h"
#include "common/yaml.h"

#define LINES_BYTES (256u << 20) /* of one step */

struct teller {
	const struct quota_scenario *sc;
	bool explain;
	bool failed;
};

/* ---- for people ---- */

/* Amounts of a check; "none" where there is no limit. */
static json_t *
cell(int64_t value, enum scenario_measure m)
{
	in_place(buf) struct buf text;

	buf_init(&text, 64);
	if (value == QUOTA_UNLIMITED)
		buf_str(&text, "none");
	else
		scenario_number(value, m, &text);
	return json_string(buf_text(&text));
}

/* A tenant without nodes of a pool has nothing to learn from what is not in it, as long as there is another. */
static bool
says_something(const struct quota_verdict *v, const struct quota_check *c)
{
	bool other = false, here = true;

	for (size_t i = 0; i < v->check_count; i++)
		if (v->checks[i].rule == QUOTA_RULE_OWNERSHIP) {
			if (v->checks[i].shared == c->shared)
				here = v->checks[i].ok;
			else
				other = v->checks[i].ok;
		}
	return here || !other || c->rule == QUOTA_RULE_OWNERSHIP;
}

static void
print_checks(const struct quota_scenario *sc, const struct quota_verdict *v)
{
	owned(json) json_t *rows = json_array();

	for (size_t i = 0; i < v->check_count; i++) {
		const struct quota_check *c = &v->checks[i];
		bool money = scenario_budget_is_money(&sc->world.policy, v->workspace, c->scope == QUOTA_SCOPE_TENANT);
		enum scenario_measure m = scenario_measure_of(c, money);
		json_t *row;

		if (!says_something(v, c))
			continue;
		row = json_pack("{s:s, s:s, s:s, s:s, s:o, s:o, s:o, s:o, s:o, s:o, s:s}", "rule",
		                quota_rule_name(c->rule), "scope", quota_scope_name(c->scope), "pool",
		                c->shared ? "shared" : "own", "holds", c->ok ? "yes" : "NO", "need", cell(c->need, m),
		                "have", cell(c->have, m), "leased", cell(c->leased, m), "held", cell(c->held, m),
		                "requested", cell(c->requested, m), "headroom", cell(c->headroom, m), "unit",
		                scenario_measure_name(m));

		ASSERT(row != NULL && json_array_append_new(rows, row) == 0);
	}
	if (json_array_size(rows) > 0)
		cli_print_table(rows);
}

static const char *
number(int64_t value, enum scenario_measure m, struct buf *scratch)
{
	buf_clear(scratch);
	scenario_number(value, m, scratch);
	return buf_text(scratch);
}

static void
print_victims(const struct quota_scenario *sc, const struct quota_verdict *v)
{
	in_place(buf) struct buf gpus, debt, path;

	buf_init(&gpus, 64);
	buf_init(&debt, 64);
	buf_init(&path, 1024);
	for (size_t i = 0; i < v->victim_count; i++) {
		const struct quota_victim *x = &v->victims[i];

		buf_clear(&path);
		quota_scenario_workspace(sc, x->workspace, &path);
		printf("victim %zu: %s of %s, %s GPUs, priority %" PRId32 ", debt %s, weight %" PRId64 ": %s\n", i + 1,
		       x->id, buf_text(&path), number(x->units, SCENARIO_GPUS, &gpus), x->priority,
		       number(x->debt, SCENARIO_GPUS, &debt), x->weight, quota_why_name(x->why));
	}
}

static void
print_changes(const struct quota_verdict *v)
{
	in_place(buf) struct buf text;

	buf_init(&text, 64);
	if (v->change_count > 0)
		printf("would be admitted after: ");
	for (size_t i = 0; i < v->change_count; i++) {
		enum scenario_measure m = scenario_change_measure(v->changes[i].kind);

		printf("%s%s", i > 0 ? " and " : "", quota_change_name(v->changes[i].kind));
		if (v->changes[i].amount > 0)
			printf(" by %s%s%s", number(v->changes[i].amount, m, &text), m == SCENARIO_COUNT ? "" : " ",
			       m == SCENARIO_COUNT ? "" : scenario_measure_name(m));
	}
	if (v->change_count > 0)
		putchar('\n');
}

static void
print_verdict(const struct quota_scenario *sc, int64_t at_ns, const struct quota_verdict *v)
{
	in_place(buf) struct buf path, borrowed;
	char at[TIME_TEXT_SIZE];

	buf_init(&path, 1024);
	buf_init(&borrowed, 64);
	quota_scenario_workspace(sc, v->workspace, &path);
	printf("%s  request %s of %s: %s", duration_format(at_ns, at), v->id, buf_text(&path),
	       quota_decision_name(v->decision));
	if (v->would != v->decision)
		printf(" (not enforced; by the rules: %s)", quota_decision_name(v->would));
	if (v->owed)
		printf(", owed");
	if (v->borrowed_units > 0)
		printf(", borrows %s GPUs", number(v->borrowed_units, SCENARIO_GPUS, &borrowed));
	if (v->position > 0)
		printf(", position %" PRId64 " of the queue", v->position);
	for (size_t i = 0; i < v->placed_count;) {
		int32_t node = v->placed[i].node;
		int64_t count = 0;
		bool first = i == 0;

		for (; i < v->placed_count && v->placed[i].node == node; i++)
			count += v->placed[i].count;
		printf("%s%" PRId64 " on %s", first ? v->victim_count > 0 ? ", held: " : ", placed: " : ", ", count,
		       sc->world.nodes[node].name);
	}
	putchar('\n');
	print_victims(sc, v);
	print_changes(v);
	print_checks(sc, v);
	putchar('\n');
}

static void
print_notice(int64_t at_ns, const struct quota_notice *n)
{
	char at[TIME_TEXT_SIZE];

	printf("%s  %s %s", duration_format(at_ns, at), quota_notice_name(n->kind), n->id);
	if (n->for_id[0] != '\0')
		printf(n->kind == QUOTA_REFUSED ? ": %s" : " for %s", n->for_id);
	if (n->kind == QUOTA_ORDER_MADE)
		printf(", due at %s", duration_format(n->at_ns - SCENARIO_START_NS, at));
	putchar('\n');
}

static void
tell(void *to, const struct scenario_told *told)
{
	struct teller *t = to;
	in_place(buf) struct buf lines;

	if (t->explain) {
		for (size_t i = 0; i < told->outcome->verdict_count; i++)
			print_verdict(t->sc, told->at_ns, &told->outcome->verdicts[i]);
		for (size_t i = 0; t->sc->over_time && i < told->outcome->notice_count; i++)
			print_notice(told->at_ns, &told->outcome->notices[i]);
		return;
	}
	buf_init(&lines, LINES_BYTES);
	quota_scenario_json(t->sc, told, &lines);
	t->failed |= lines.over;
	fputs(buf_text(&lines), stdout);
}

int
cmd_quota_simulate(struct cli *c)
{
	owned(quota_scenario) struct quota_scenario *sc = NULL;
	in_place(buf) struct buf document;
	const char *file = strcmp(c->words[0], "-") == 0 ? "standard input" : c->words[0];
	struct teller t = {0};
	struct err err = {0};

	buf_init(&document, YAML_MAX_BYTES);
	if (cli_output(c, OUTPUT_JSON) == OUTPUT_CSV) {
		(void)err_set(&err, ERR_INVALID, "quota simulate has no csv: it is json, or table with --explain");
		return cli_misuse(&err);
	}
	if (!cli_read_document(c->words[0], &document, &err) ||
	    !quota_scenario_parse(file, buf_text(&document), document.len, &sc, &err))
		return cli_fail(&err);
	fputs(buf_text(&sc->warnings), stderr);
	t.sc = sc;
	t.explain = cli_value(c, "explain") != NULL || cli_output(c, OUTPUT_JSON) == OUTPUT_TABLE;
	if (!quota_scenario_replay(sc, tell, &t, &err)) {
		(void)err_prefix(&err, "%s", file);
		return cli_fail(&err);
	}
	if (t.failed) {
		(void)err_set(&err, ERR_INVALID, "%s: the answer to one event is larger than %u bytes", file,
		              LINES_BYTES);
		return cli_fail(&err);
	}
	return CLI_OK;
}
