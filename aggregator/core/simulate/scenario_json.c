/* aggregator/core/simulate/scenario_json.c - what a replay told, as lines of JSON. Keys in a fixed order, numbers without binary
 * fractions. */
#include "aggregator/core/quota/engine/quota_text.h"
#include "aggregator/core/simulate/scenario.h"
#include "common/conf/json.h"
#include "common/base/time.h"

static void
string(struct buf *out, const char *name, const char *text)
{
	buf_printf(out, ",\"%s\":", name);
	json_write_string(text, out);
}

static void
name_workspace(const void *of, int32_t w, struct buf *out)
{
	const struct quota_policy *p = &((const struct quota_scenario *)of)->world.policy;

	if (w != QUOTA_NONE)
		buf_printf(out, "%s/%s", p->tenants[p->workspaces[w].tenant].name, p->workspaces[w].name);
}

static const char *
name_node(const void *of, int32_t node)
{
	return ((const struct quota_scenario *)of)->world.nodes[node].name;
}

static struct quota_shape
name_shape(const void *of, int32_t shape)
{
	return ((const struct quota_scenario *)of)->world.policy.shapes[shape];
}

struct quota_namer
quota_scenario_namer(const struct quota_scenario *sc)
{
	return (struct quota_namer){sc, name_workspace, name_node, name_shape};
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
	const struct quota_namer namer = quota_scenario_namer(sc);
	char at[TIME_TEXT_SIZE];

	for (size_t i = 0; i < told->outcome->verdict_count; i++) {
		quota_json_verdict(&namer, &told->outcome->verdicts[i], duration_format(told->at_ns, at), out);
		buf_char(out, '\n');
	}
	for (size_t i = 0; sc->over_time && i < told->outcome->notice_count; i++)
		notice(told, &told->outcome->notices[i], out);
}
