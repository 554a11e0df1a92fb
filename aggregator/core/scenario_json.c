/* aggregator/core/scenario_json.c - what a replay told, as lines of JSON. Keys in a fixed order, numbers without binary
 * fractions. */
#include <string.h>

#include "aggregator/core/scenario.h"
#include "aggregator/core/scenario_text.h"
#include "common/json.h"
#include "common/time.h"

static void
key(struct buf *out, const char *name)
{
	buf_printf(out, ",\"%s\":", name);
}

static void
string(struct buf *out, const char *name, const char *text)
{
	key(out, name);
	json_write_string(text, out);
}

static void
workspace(const struct quota_scenario *sc, struct buf *out, int32_t w)
{
	in_place(buf) struct buf path;

	buf_init(&path, 4u * QUOTA_NAME_SIZE);
	quota_scenario_workspace(sc, w, &path);
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

static void
check(const struct quota_scenario *sc, const struct quota_check *c, int32_t w, struct buf *out)
{
	enum scenario_measure m = scenario_measure_of(sc, c, w);

	buf_printf(out, "{\"rule\":\"%s\",\"ok\":%s", quota_rule_name(c->rule), c->ok ? "true" : "false");
	amount(out, "need", c->need, m);
	amount(out, "have", c->have, m);
	string(out, "scope", quota_scope_name(c->scope));
	string(out, "pool", c->shared ? "shared" : "own");
	string(out, "unit", scenario_measure_name(m));
	amount(out, "leased", c->leased, m);
	amount(out, "held", c->held, m);
	amount(out, "requested", c->requested, m);
	amount(out, "headroom", c->headroom, m);
	buf_char(out, '}');
}

static void
victims(const struct quota_scenario *sc, const struct quota_verdict *v, struct buf *out)
{
	key(out, "reasons");
	buf_char(out, '[');
	for (size_t i = 0; i < v->victim_count; i++) {
		const struct quota_victim *x = &v->victims[i];

		buf_str(out, i > 0 ? ",{\"id\":" : "{\"id\":");
		json_write_string(x->id, out);
		workspace(sc, out, x->workspace);
		string(out, "why", quota_why_name(x->why));
		amount(out, "gpus", x->units, SCENARIO_GPUS);
		buf_printf(out, ",\"priority\":%" PRId32, x->priority);
		amount(out, "debt_gpus", x->debt, SCENARIO_GPUS);
		buf_printf(out, ",\"weight\":%" PRId64 "}", x->weight);
	}
	buf_char(out, ']');
}

/* Devices by node; which GPU of it is the scheduler's choice until the lease is bound. */
static void
placed(const struct quota_scenario *sc, const struct quota_verdict *v, struct buf *out)
{
	key(out, "nodes");
	buf_char(out, '[');
	for (size_t i = 0; i < v->placed_count;) {
		int32_t node = v->placed[i].node;
		int64_t count = 0;

		for (; i < v->placed_count && v->placed[i].node == node; i++)
			count += v->placed[i].count;
		buf_str(out, out->data[out->len - 1] == '[' ? "{\"node\":" : ",{\"node\":");
		json_write_string(sc->world.nodes[node].name, out);
		buf_printf(out, ",\"count\":%" PRId64 "}", count);
	}
	buf_char(out, ']');
}

static void
changes(const struct quota_verdict *v, struct buf *out)
{
	key(out, "changes");
	buf_char(out, '[');
	for (size_t i = 0; i < v->change_count; i++) {
		buf_str(out, i > 0 ? ",{\"change\":" : "{\"change\":");
		json_write_string(quota_change_name(v->changes[i].kind), out);
		amount(out, "amount", v->changes[i].amount, scenario_change_measure(v->changes[i].kind));
		buf_char(out, '}');
	}
	buf_char(out, ']');
}

static void
verdict(const struct quota_scenario *sc, const struct scenario_told *t, const struct quota_verdict *v, struct buf *out)
{
	int32_t w = scenario_workspace_of(sc, v->id);
	char at[TIME_TEXT_SIZE];

	buf_str(out, "{\"id\":");
	json_write_string(v->id, out);
	string(out, "decision", quota_decision_name(v->decision));
	amount(out, "borrowed_gpus", v->borrowed_units, SCENARIO_GPUS);
	key(out, "victims");
	for (size_t i = 0; i < v->victim_count; i++) {
		buf_char(out, i > 0 ? ',' : '[');
		json_write_string(v->victims[i].id, out);
	}
	buf_str(out, v->victim_count > 0 ? "]" : "[]");
	key(out, "checks");
	for (size_t i = 0; i < v->check_count; i++) {
		buf_char(out, i > 0 ? ',' : '[');
		check(sc, &v->checks[i], w, out);
	}
	buf_str(out, v->check_count > 0 ? "]" : "[]");
	string(out, "at", duration_format(t->at_ns, at));
	workspace(sc, out, w);
	string(out, "would", quota_decision_name(v->would));
	buf_printf(out, ",\"warn\":%s,\"owed\":%s", v->warn ? "true" : "false", v->owed ? "true" : "false");
	string(out, "pool", v->shared ? "shared" : "own");
	buf_printf(out, ",\"position\":%" PRId64 ",\"borrowed_units\":%" PRId64, v->position, v->borrowed_units);
	placed(sc, v, out);
	victims(sc, v, out);
	changes(v, out);
	buf_str(out, "}\n");
}

static void
notice(const struct scenario_told *t, const struct quota_notice *n, struct buf *out)
{
	char text[TIME_TEXT_SIZE];

	buf_str(out, "{\"at\":");
	json_write_string(duration_format(t->at_ns, text), out);
	string(out, "event", quota_notice_name(n->kind));
	string(out, "id", n->id);
	if (n->for_id[0] != '\0')
		string(out, n->kind == QUOTA_REFUSED ? "reason" : "for", n->for_id);
	if (n->kind == QUOTA_ORDER_MADE)
		string(out, "due", duration_format(n->at_ns - SCENARIO_START_NS, text));
	buf_str(out, "}\n");
}

void
quota_scenario_json(const struct quota_scenario *sc, const struct scenario_told *told, struct buf *out)
{
	for (size_t i = 0; i < told->outcome->verdict_count; i++)
		verdict(sc, told, &told->outcome->verdicts[i], out);
	for (size_t i = 0; sc->over_time && i < told->outcome->notice_count; i++)
		notice(told, &told->outcome->notices[i], out);
}
