/* aggregator/core/quota_json.c - verdicts as JSON. */
#include "aggregator/core/quota_json.h"

#include "aggregator/core/scenario_text.h"
#include "common/json.h"

static void
key(struct buf *out, const char *name)
{
	buf_str(out, ",\"");
	buf_str(out, name);
	buf_str(out, "\":");
}

static void
string(struct buf *out, const char *name, const char *text)
{
	key(out, name);
	json_write_string(text, out);
}

/* One of the words that this program knows: nothing in it needs an escape. */
static void
word(struct buf *out, const char *name, const char *text)
{
	key(out, name);
	buf_char(out, '"');
	buf_str(out, text);
	buf_char(out, '"');
}

static void
flag(struct buf *out, const char *name, bool value)
{
	key(out, name);
	buf_str(out, value ? "true" : "false");
}

static void
whole(struct buf *out, const char *name, int64_t value)
{
	key(out, name);
	buf_i64(out, value);
}

static void
workspace(const struct quota_namer *namer, struct buf *out, int32_t w)
{
	in_place(buf) struct buf path = {0};

	buf_init(&path, 4u * QUOTA_NAME_SIZE);
	namer->workspace(namer->of, w, &path);
	string(out, "workspace", buf_text(&path));
}

static void
amount(struct buf *out, const char *name, int64_t value, enum scenario_measure m)
{
	key(out, name);
	if (value == QUOTA_UNLIMITED)
		buf_str(out, "null");
	else
		scenario_number(value, m, out);
}

enum scenario_measure
quota_json_measure(const struct quota_namer *namer, const struct quota_check *c, int32_t w)
{
	bool money = c->rule == QUOTA_RULE_BUDGET && w != QUOTA_NONE &&
	             namer->money(namer->of, w, c->scope == QUOTA_SCOPE_TENANT);

	return scenario_measure_of(c, money);
}

static void
check(const struct quota_namer *namer, const struct quota_check *c, int32_t w, struct buf *out)
{
	enum scenario_measure m = quota_json_measure(namer, c, w);

	buf_str(out, "{\"rule\":\"");
	buf_str(out, quota_rule_name(c->rule));
	buf_char(out, '"');
	flag(out, "ok", c->ok);
	amount(out, "need", c->need, m);
	amount(out, "have", c->have, m);
	word(out, "scope", quota_scope_name(c->scope));
	word(out, "pool", c->shared ? "shared" : "own");
	word(out, "unit", scenario_measure_name(m));
	amount(out, "leased", c->leased, m);
	amount(out, "held", c->held, m);
	amount(out, "requested", c->requested, m);
	amount(out, "headroom", c->headroom, m);
	if (c->after)
		flag(out, "after", true);
	buf_char(out, '}');
}

static void
victims(const struct quota_namer *namer, const struct quota_verdict *v, struct buf *out)
{
	key(out, "reasons");
	buf_char(out, '[');
	for (size_t i = 0; i < v->victim_count; i++) {
		const struct quota_victim *x = &v->victims[i];

		buf_str(out, i > 0 ? ",{\"id\":" : "{\"id\":");
		json_write_string(x->id, out);
		workspace(namer, out, x->workspace);
		word(out, "why", quota_why_name(x->why));
		amount(out, "gpus", x->units, SCENARIO_GPUS);
		whole(out, "priority", x->priority);
		amount(out, "debt_gpus", x->debt, SCENARIO_GPUS);
		whole(out, "weight", x->weight);
		buf_char(out, '}');
	}
	buf_char(out, ']');
}

/* Devices by node; which GPU of it is the scheduler's choice until the lease is bound. */
static void
placed(const struct quota_namer *namer, const struct quota_verdict *v, struct buf *out)
{
	key(out, "nodes");
	buf_char(out, '[');
	for (size_t i = 0; i < v->placed_count;) {
		int32_t node = v->placed[i].node;
		bool first = i == 0;
		int64_t count = 0;

		for (; i < v->placed_count && v->placed[i].node == node; i++)
			count += v->placed[i].count;
		buf_str(out, first ? "{\"node\":" : ",{\"node\":");
		json_write_string(namer->node(namer->of, node), out);
		whole(out, "count", count);
		buf_char(out, '}');
	}
	buf_char(out, ']');
}

static void
changes(const struct quota_verdict *v, struct buf *out)
{
	key(out, "changes");
	buf_char(out, '[');
	for (size_t i = 0; i < v->change_count; i++) {
		buf_str(out, i > 0 ? ",{\"change\":\"" : "{\"change\":\"");
		buf_str(out, quota_change_name(v->changes[i].kind));
		buf_char(out, '"');
		amount(out, "amount", v->changes[i].amount, scenario_change_measure(v->changes[i].kind));
		buf_char(out, '}');
	}
	buf_char(out, ']');
}

void
quota_json_verdict(const struct quota_namer *namer, const struct quota_verdict *v, const char *at, struct buf *out)
{
	buf_str(out, "{\"id\":");
	json_write_string(v->id, out);
	word(out, "decision", quota_decision_name(v->decision));
	amount(out, "borrowed_gpus", v->borrowed_units, SCENARIO_GPUS);
	key(out, "victims");
	buf_char(out, '[');
	for (size_t i = 0; i < v->victim_count; i++) {
		if (i > 0)
			buf_char(out, ',');
		json_write_string(v->victims[i].id, out);
	}
	buf_char(out, ']');
	key(out, "checks");
	buf_char(out, '[');
	for (size_t i = 0; i < v->check_count; i++) {
		if (i > 0)
			buf_char(out, ',');
		check(namer, &v->checks[i], v->workspace, out);
	}
	buf_char(out, ']');
	if (at)
		word(out, "at", at);
	workspace(namer, out, v->workspace);
	word(out, "would", quota_decision_name(v->would));
	flag(out, "warn", v->warn);
	flag(out, "owed", v->owed);
	word(out, "pool", v->shared ? "shared" : "own");
	whole(out, "position", v->position);
	whole(out, "borrowed_units", v->borrowed_units);
	placed(namer, v, out);
	victims(namer, v, out);
	changes(v, out);
	buf_char(out, '}');
}

void
quota_json_notice(const struct quota_notice *n, const char *at, struct buf *out)
{
	buf_char(out, '{');
	if (at) {
		buf_str(out, "\"at\":");
		json_write_string(at, out);
		buf_char(out, ',');
	}
	buf_str(out, "\"event\":");
	json_write_string(quota_notice_name(n->kind), out);
	string(out, "id", n->id);
	if (n->for_id[0] != '\0')
		string(out, n->kind == QUOTA_REFUSED ? "reason" : "for", n->for_id);
	if (n->kind == QUOTA_ORDER_MADE)
		whole(out, "due_ns", n->at_ns);
	buf_char(out, '}');
}
