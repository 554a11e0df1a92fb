/* aggregator/core/simulate/scenario_replay.c - a scenario over time: its events, the ends of its work, and ticks, one step of the engine
 * each. */
#include "aggregator/core/simulate/scenario.h"

#include <stdlib.h>
#include <string.h>

#include "aggregator/core/quota/engine/quota_text.h"
#include "common/base/time.h"
#include "common/conf/json.h"

/* Something that comes of itself: the order is acknowledged, or the work has ended. */
struct due {
	int64_t at_ns;
	uint64_t turn; /* those of the same moment in the order they were made */
	enum quota_event_kind kind;
	const char *id;
};

struct replay {
	const struct quota_scenario *sc;
	scenario_tell *tell;
	void *to;
	struct quota_state *state;
	struct due *heap; /* the earliest first */
	size_t count, cap;
	uint64_t turns;
	bool *runs; /* by position in the scenario's runs: its lease is there */
};

/* ---- ends and drains of work ---- */

static bool
earlier(const struct due *a, const struct due *b)
{
	return a->at_ns != b->at_ns ? a->at_ns < b->at_ns : a->turn < b->turn;
}

static void
swap(struct due *a, struct due *b)
{
	struct due kept = *a;

	*a = *b;
	*b = kept;
}

static void
add_due(struct replay *r, int64_t at_ns, enum quota_event_kind kind, const char *id)
{
	size_t i = r->count;

	array_room(r->heap, r->count, r->cap);
	r->count++;
	r->heap[i] = (struct due){at_ns, r->turns++, kind, id};
	for (; i > 0 && earlier(&r->heap[i], &r->heap[(i - 1) / 2]); i = (i - 1) / 2)
		swap(&r->heap[i], &r->heap[(i - 1) / 2]);
}

static struct due
take_due(struct replay *r)
{
	struct due first = r->heap[0];
	size_t i = 0;

	r->heap[0] = r->heap[--r->count];
	for (;;) {
		size_t least = i;

		for (size_t c = 2 * i + 1; c <= 2 * i + 2; c++)
			if (c < r->count && earlier(&r->heap[c], &r->heap[least]))
				least = c;
		if (least == i)
			return first;
		swap(&r->heap[i], &r->heap[least]);
		i = least;
	}
}

static int
compare_id(const void *key, const void *run)
{
	return strcmp(key, ((const struct scenario_run *)run)->id);
}

static const struct scenario_run *
run_of(const struct quota_scenario *sc, const char *id)
{
	return sc->run_count == 0 ? NULL : bsearch(id, sc->runs, sc->run_count, sizeof(*sc->runs), compare_id);
}

static void
started(struct replay *r, const char *id, int64_t now_ns)
{
	const struct scenario_run *run = run_of(r->sc, id);

	if (run == NULL)
		return;
	r->runs[run - r->sc->runs] = true;
	if (run->runs_ns >= 0)
		add_due(r, now_ns + run->runs_ns, QUOTA_FINISH, run->id);
}

static void
noticed(struct replay *r, int64_t now_ns, const struct quota_notice *n)
{
	const struct scenario_run *run = run_of(r->sc, n->id);

	if (run == NULL)
		return;
	if (n->kind == QUOTA_LEASE_RETURNED || n->kind == QUOTA_LEASE_EXPIRED)
		r->runs[run - r->sc->runs] = false;
	if (n->kind == QUOTA_ORDER_MADE && run->drains_ns >= 0) {
		add_due(r, now_ns, QUOTA_DRAIN, run->id);
		add_due(r, now_ns + run->drains_ns, QUOTA_FINISH, run->id);
	}
}

/* The scheduler's part after an outcome: admitted work begins, reclaimed work leaves. */
static void
react(struct replay *r, int64_t now_ns, const struct quota_outcome *o)
{
	for (size_t i = 0; i < o->notice_count; i++)
		noticed(r, now_ns, &o->notices[i]);
	for (size_t i = 0; i < o->verdict_count; i++)
		if (o->verdicts[i].decision == QUOTA_ADMIT || o->verdicts[i].decision == QUOTA_BORROW)
			started(r, o->verdicts[i].id, now_ns);
}

/* ---- steps ---- */

static bool
step(struct replay *r, int64_t at_ns, const struct quota_event *event, struct err *err)
{
	owned(quota_outcome) struct quota_outcome *o = NULL;

	if (!quota_step(r->state, SCENARIO_START_NS + at_ns, event, &o, err))
		return false;
	r->tell(r->to, &(struct scenario_told){at_ns, event, o, r->state});
	react(r, at_ns, o);
	return true;
}

/* Work may have ended before, by an event of the file or by a reclaim. */
static bool
step_due(struct replay *r, struct err *err)
{
	struct due d = take_due(r);
	struct quota_event event = {.kind = d.kind, .id = d.id};

	return !r->runs[run_of(r->sc, d.id) - r->sc->runs] || step(r, d.at_ns, &event, err);
}

static bool
run_all(struct replay *r, struct err *err)
{
	static const struct quota_event tick = {.kind = QUOTA_TICK};
	const struct quota_scenario *sc = r->sc;
	int64_t tick_ns = sc->tick_ns > 0 ? sc->tick_ns : INT64_MAX, ticks = 0;
	size_t next = 0;

	for (;;) {
		int64_t due_ns = r->count > 0 ? r->heap[0].at_ns : INT64_MAX;
		int64_t file_ns = next < sc->event_count ? sc->events[next].at_ns : INT64_MAX;
		int64_t last_ns = due_ns == INT64_MAX && file_ns == INT64_MAX ? sc->end_ns : INT64_MAX;

		if (due_ns <= file_ns && due_ns <= tick_ns && due_ns != INT64_MAX) {
			if (!step_due(r, err))
				return false;
		} else if (file_ns <= tick_ns && file_ns != INT64_MAX) {
			const struct scenario_event *e = &sc->events[next++];

			if (!step(r, e->at_ns, &e->event, err))
				return err_prefix(err, "the event of line %d", e->line);
		} else if (tick_ns == INT64_MAX || tick_ns > last_ns) {
			return true;
		} else {
			if (++ticks > SCENARIO_MAX_TICKS)
				return err_set(err, ERR_INVALID, "more than %d ticks", SCENARIO_MAX_TICKS);
			if (!step(r, tick_ns, &tick, err))
				return false;
			tick_ns += sc->tick_ns;
		}
	}
}

bool
quota_scenario_replay(const struct quota_scenario *sc, scenario_tell *tell, void *to, struct err *err)
{
	owned(quota) struct quota_state *state = NULL;
	struct replay r = {.sc = sc, .tell = tell, .to = to};
	bool ok;

	if (!quota_load(&sc->world, &state, err))
		return false;
	r.state = state;
	r.runs = mem_array(sc->run_count + 1, sizeof(*r.runs));
	for (size_t i = 0; i < sc->world.lease_count; i++)
		started(&r, sc->world.leases[i].id, 0);
	ok = run_all(&r, err);
	mem_free(r.heap);
	mem_free(r.runs);
	return ok;
}

/* ---- outcomes as lines of JSON --------------------------------------------------------------------------------------------- */

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
