/* aggregator/cli/commands/quota_print.c - decisions of the quota engine as tables of checks. */
#include "aggregator/cli/commands/quota_print.h"

#include <stdio.h>

#include "aggregator/cli/cli.h"
#include "aggregator/core/quota/engine/quota_text.h"
#include "common/base/units.h"

/* Amounts of a check; "none" where there is no limit. */
static json_t *
cell(int64_t value, enum check_measure m)
{
	in_place(buf) struct buf text = {0};

	buf_init(&text, 64);
	if (value == QUOTA_UNLIMITED)
		buf_str(&text, "none");
	else
		check_number(value, m, &text);
	return json_string(buf_text(&text));
}

/* Whether a check is worth a row. A pool without nodes for this tenant gets none but the check that says so, if the other pool has nodes. */
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
print_checks(const struct quota_verdict *v)
{
	owned(json) json_t *rows = json_array();

	for (size_t i = 0; i < v->check_count; i++) {
		const struct quota_check *c = &v->checks[i];
		enum check_measure m = check_measure_of(c->rule, c->scope, c->budget);
		json_t *row;

		if (!says_something(v, c))
			continue;
		row = json_pack("{s:s, s:s, s:s, s:s, s:o, s:o, s:o, s:o, s:o, s:o, s:s}", "rule",
		                c->after ? "limit, after" : quota_rule_name(c->rule), "scope",
		                quota_scope_name(c->scope), "pool", c->shared ? "shared" : "own", "holds",
		                c->ok ? "yes" : "NO", "need", cell(c->need, m), "have", cell(c->have, m), "leased",
		                cell(c->leased, m), "held", cell(c->held, m), "requested", cell(c->requested, m),
		                "headroom", cell(c->headroom, m), "unit", check_measure_name(m));

		ASSERT(row != NULL && json_array_append_new(rows, row) == 0);
	}
	if (json_array_size(rows) > 0)
		cli_print_table(rows);
}

static const char *
number(int64_t value, enum check_measure m, struct buf *scratch)
{
	buf_clear(scratch);
	check_number(value, m, scratch);
	return buf_text(scratch);
}

static void
print_victims(const struct quota_namer *namer, const struct quota_verdict *v)
{
	in_place(buf) struct buf gpus = {0}, debt = {0}, path = {0};

	buf_init(&gpus, 64);
	buf_init(&debt, 64);
	buf_init(&path, 1024);
	for (size_t i = 0; i < v->victim_count; i++) {
		const struct quota_victim *x = &v->victims[i];

		buf_clear(&path);
		namer->workspace(namer->of, x->workspace, &path);
		printf("victim %zu: %s of %s, %s GPU%s, priority %" PRId32 ", debt %s, weight %" PRId64 ": %s\n", i + 1,
		       x->id, buf_text(&path), number(x->units, CHECK_GPUS, &gpus),
		       x->units == UNITS_PER_GPU ? "" : "s", x->priority, number(x->debt, CHECK_GPUS, &debt), x->weight,
		       quota_why_name(x->why));
	}
}

void
quota_print_verdict(const struct quota_namer *namer, const char *at, const struct quota_verdict *v)
{
	in_place(buf) struct buf path = {0}, borrowed = {0}, told = {0};

	buf_init(&path, 1024);
	buf_init(&borrowed, 64);
	namer->workspace(namer->of, v->workspace, &path);
	printf("%s  request %s of %s: %s", at, v->id, buf_text(&path), quota_decision_name(v->decision));
	if (v->would != v->decision)
		printf(" (not enforced; by the rules: %s)", quota_decision_name(v->would));
	if (v->owed)
		printf(", owed");
	if (v->borrowed_units > 0)
		printf(", borrows %s GPU%s", number(v->borrowed_units, CHECK_GPUS, &borrowed),
		       v->borrowed_units == UNITS_PER_GPU ? "" : "s");
	if (v->position > 0)
		printf(", position %" PRId64 " of %" PRId64 " in the queue for %s GPUs", v->position, v->queue_length,
		       v->queue_shared ? "shared" : "its own");
	for (size_t i = 0; i < v->placed_count;) {
		int32_t node = v->placed[i].node;
		int64_t count = 0;
		bool first = i == 0;

		for (; i < v->placed_count && v->placed[i].node == node; i++)
			count += v->placed[i].count;
		printf("%s%" PRId64 " on %s", first ? v->victim_count > 0 ? ", held: " : ", placed: " : ", ", count,
		       namer->node(namer->of, node));
	}
	putchar('\n');
	buf_init(&told, 8u * QUOTA_NAME_SIZE);
	quota_sentences(namer, v, &told);
	if (told.len > 0)
		cli_print_paragraph(buf_text(&told));
	print_victims(namer, v);
	print_checks(v);
	putchar('\n');
}

void
quota_print_notice(const char *at, const char *due, const struct quota_notice *n)
{
	printf("%s  %s %s", at, quota_notice_name(n->kind), n->id);
	if (n->for_id[0] != '\0')
		printf(n->kind == QUOTA_REFUSED ? ": %s" : " for %s", n->for_id);
	if (n->kind == QUOTA_ORDER_MADE)
		printf(", due at %s", due);
	putchar('\n');
}
