/* aggregator/core/simulate/scenario.c - reading a scenario: YAML or JSON, its sections in order, the checks across them, and warnings. */
#include "aggregator/core/simulate/scenario.h"

#include <stdlib.h>
#include <string.h>

#include "aggregator/core/quota/engine/quantity.h"
#include "aggregator/core/simulate/scenario_build.h"
#include "common/base/time.h"
#include "common/conf/json.h"

/* ---- warnings -------------------------------------------------------------------------------------------------------------- */

static bool
in_pool(const struct quota_world *w, const struct quota_node *n, const struct quota_share *s)
{
	int32_t tenant = s->shared ? QUOTA_NONE : w->policy.workspaces[s->workspace].tenant;

	return n->tenant == tenant && n->cluster == s->cluster;
}

static bool
same_pool(const struct quota_world *w, const struct quota_share *a, const struct quota_share *b)
{
	return a->cluster == b->cluster && a->model == b->model && a->shared == b->shared &&
	       (a->shared || w->policy.workspaces[a->workspace].tenant == w->policy.workspaces[b->workspace].tenant);
}

/* Declared units of a pool; of a MIG shape only, unless shape is QUOTA_NONE. */
static int64_t
declared(const struct quota_world *w, const struct quota_share *s, int32_t shape)
{
	int64_t units = 0;

	for (size_t i = 0; i < w->node_count; i++) {
		const struct quota_node *n = &w->nodes[i];

		for (size_t g = 0; in_pool(w, n, s) && g < n->gpu_count; g++)
			for (size_t k = 0; k < n->gpus[g].slot_count; k++) {
				const struct quota_slots *slots = &n->gpus[g].slots[k];

				if (w->policy.shapes[slots->shape].model == s->model &&
				    (shape == QUOTA_NONE || slots->shape == shape))
					units += slots->count * w->policy.shapes[slots->shape].units;
			}
	}
	return units;
}

static void
warn(struct scenario_builder *b, const struct quota_share *s, int32_t shape, int64_t reserved, int64_t has)
{
	const struct quota_policy *p = &b->sc->world.policy;
	char need[QUANTITY_TEXT_SIZE], have[QUANTITY_TEXT_SIZE];
	const char *whose = s->shared ? "shared" : p->tenants[p->workspaces[s->workspace].tenant].name;

	if (shape == QUOTA_NONE)
		buf_printf(&b->sc->warnings,
		           "%s: reservations of %s %s exceed the capacity of %s (cluster %s, %s nodes)\n",
		           yaml_name(b->doc), quantity_text(reserved, need), p->models[s->model],
		           quantity_text(has, have), p->clusters[s->cluster], whose);
	else
		buf_printf(&b->sc->warnings,
		           "%s: reservations of %" PRId64 " x %s exceed the %" PRId64
		           " that there are (cluster %s, %s nodes)\n",
		           yaml_name(b->doc), reserved / p->shapes[shape].units, p->shapes[shape].name,
		           has / p->shapes[shape].units, p->clusters[s->cluster], whose);
}

/* The sum over the pool of a share, reported at its first one. */
static void
look_at(struct scenario_builder *b, size_t index, int32_t shape)
{
	const struct quota_world *w = &b->sc->world;
	const struct quota_share *s = &w->policy.shares[index];
	int64_t sum = 0, has;

	for (size_t i = 0; i < w->policy.share_count; i++) {
		const struct quota_share *o = &w->policy.shares[i];

		if (!same_pool(w, s, o) || o->reserved == 0 || (shape != QUOTA_NONE && o->reserved_shape != shape))
			continue;
		if (i < index)
			return;
		sum += o->reserved;
	}
	has = declared(w, s, shape);
	if (sum > has)
		warn(b, s, shape, sum, has);
}

void
scenario_warn(struct scenario_builder *b)
{
	const struct quota_policy *p = &b->sc->world.policy;

	for (size_t i = 0; i < p->share_count; i++) {
		if (p->shares[i].reserved == 0)
			continue;
		look_at(b, i, QUOTA_NONE);
		if (p->shares[i].reserved_shape != QUOTA_NONE)
			look_at(b, i, p->shares[i].reserved_shape);
	}
}

/* ---- the file -------------------------------------------------------------------------------------------------------------- */

#define WARNINGS_BYTES (1u << 20)
#define TIME_MAX_NS (3660 * NS_PER_DAY)
#define BURST_MAX 1000

void
quota_scenario_free(struct quota_scenario *sc)
{
	if (sc == NULL)
		return;
	quota_memory_free(sc->memory);
	buf_fini(&sc->warnings);
	mem_free(sc);
}

static bool
read_settings(struct scenario_builder *b, struct err *err)
{
	static const char *const keys[] = {"burst",   "grace",   "aging",  "head_wait", "backoff", "backoff_forget",
	                                   "confirm", "silence", "drains", "tick",      "end",     NULL};
	struct quota_settings *s = &b->sc->world.policy.settings;
	struct scenario_at at = {b->doc, yaml_get(yaml_root(b->doc), "settings"), "settings"};

	*s = (struct quota_settings){.burst = 2,
	                             .grace_ns = 5 * NS_PER_MIN,
	                             .aging_ns = 10 * NS_PER_MIN,
	                             .head_wait_ns = 30 * NS_PER_MIN,
	                             .backoff_ns = 10 * NS_PER_MIN,
	                             .backoff_forget_ns = NS_PER_DAY,
	                             .unused_most_ns = NS_PER_HOUR};
	b->drains_ns = -1;
	if (at.map == NULL)
		return true;
	return scenario_map(&at, keys, err) && scenario_i64(&at, "burst", 0, BURST_MAX, &s->burst, err) &&
	       scenario_duration(&at, "grace", TIME_MAX_NS, &s->grace_ns, err) &&
	       scenario_duration(&at, "aging", TIME_MAX_NS, &s->aging_ns, err) &&
	       scenario_duration(&at, "head_wait", TIME_MAX_NS, &s->head_wait_ns, err) &&
	       scenario_duration(&at, "backoff", TIME_MAX_NS, &s->backoff_ns, err) &&
	       scenario_duration(&at, "backoff_forget", TIME_MAX_NS, &s->backoff_forget_ns, err) &&
	       scenario_duration(&at, "confirm", TIME_MAX_NS, &s->confirm_ns, err) &&
	       scenario_duration(&at, "silence", TIME_MAX_NS, &s->silence_ns, err) &&
	       scenario_duration(&at, "drains", TIME_MAX_NS, &b->drains_ns, err) &&
	       scenario_duration(&at, "tick", TIME_MAX_NS, &b->sc->tick_ns, err) &&
	       scenario_duration(&at, "end", TIME_MAX_NS, &b->sc->end_ns, err);
}

/* ---- checks across sections ---- */

static int
compare_runs(const void *a, const void *b)
{
	const struct scenario_run *x = a, *y = b;
	int order = strcmp(x->id, y->id);

	return order != 0 ? order : (x->line > y->line) - (x->line < y->line);
}

static bool
check_ids(struct scenario_builder *b, struct err *err)
{
	const struct scenario_run *r = b->runs.at;

	if (b->runs.count > 1)
		qsort(b->runs.at, b->runs.count, sizeof(*r), compare_runs);
	for (size_t i = 1; i < b->runs.count; i++)
		if (strcmp(r[i - 1].id, r[i].id) == 0)
			return err_set(err, ERR_INVALID, "%s:%d: id \"%s\" is there already, on line %d",
			               yaml_name(b->doc), r[i].line, r[i].id, r[i - 1].line);
	return true;
}

static bool
check_time(struct scenario_builder *b, struct err *err)
{
	struct scenario_at top = {b->doc, yaml_root(b->doc), "scenario"};
	struct quota_scenario *sc = b->sc;

	for (size_t i = 0; i < b->runs.count; i++) {
		const struct scenario_run *r = (const struct scenario_run *)b->runs.at + i;

		sc->over_time |= r->runs_ns >= 0;
	}
	sc->over_time |= sc->end_ns > 0 || sc->tick_ns > 0;
	if (sc->tick_ns > 0 && sc->end_ns / sc->tick_ns > SCENARIO_MAX_TICKS)
		return scenario_err(&top, NULL, err, "more than %d ticks from 0 to the end", SCENARIO_MAX_TICKS);
	return true;
}

/* ---- sections ---- */

static bool
read_sections(struct scenario_builder *b, struct err *err)
{
	static const char *const keys[] = {"version", "settings", "clusters",   "priority_classes", "nodes", "tenants",
	                                   "leases",  "requests", "exceptions", "events",           NULL};
	struct scenario_at top = {b->doc, yaml_root(b->doc), "scenario"};
	int64_t version;

	if (!scenario_map(&top, keys, err))
		return false;
	if (yaml_get(top.map, "version") == NULL)
		return scenario_err(&top, NULL, err, "the key version is missing; this program reads version %d",
		                    SCENARIO_VERSION);
	return yaml_i64(b->doc, top.map, "version", SCENARIO_VERSION, SCENARIO_VERSION, &version, err) &&
	       read_settings(b, err) && scenario_read_names(b, err) && scenario_read_tenant_names(b, err) &&
	       scenario_read_nodes(b, err) && scenario_read_tenants(b, err) && scenario_read_leases(b, err) &&
	       scenario_read_exceptions(b, err);
}

/* The world is the state before the first event: its policy is kept before events change the lists, and once more for the
 * shapes that only events name. */
static bool
read_all(struct scenario_builder *b, struct err *err)
{
	struct quota_world *w = &b->sc->world;
	struct quota_settings settings;

	if (!read_sections(b, err))
		return false;
	settings = w->policy.settings;
	scenario_policy(b, &w->policy);
	w->policy.settings = settings;
	if (!scenario_read_events(b, err) || !check_ids(b, err) || !check_time(b, err))
		return false;
	w->policy.shapes = scenario_keep_list(b, &b->shapes);
	w->policy.shape_count = b->shapes.count;
	for (size_t i = 0; i < b->events.count; i++) {
		struct quota_policy *p = NULL;
		struct scenario_event *e = (struct scenario_event *)b->events.at + i;

		if (e->event.policy == NULL)
			continue;
		p = quota_keep(&b->sc->memory, 1, sizeof(*p));
		*p = *e->event.policy;
		p->shapes = w->policy.shapes;
		p->shape_count = w->policy.shape_count;
		e->event.policy = p;
	}
	return true;
}

static void
finish(struct scenario_builder *b)
{
	struct quota_scenario *sc = b->sc;

	sc->world.now_ns = SCENARIO_START_NS;
	sc->world.nodes = scenario_keep_list(b, &b->nodes);
	sc->world.node_count = b->nodes.count;
	sc->world.leases = scenario_keep_list(b, &b->leases);
	sc->world.lease_count = b->leases.count;
	sc->world.exceptions = scenario_keep_list(b, &b->exceptions);
	sc->world.exception_count = b->exceptions.count;
	sc->events = scenario_keep_list(b, &b->events);
	sc->event_count = b->events.count;
	sc->runs = scenario_keep_list(b, &b->runs);
	sc->run_count = b->runs.count;
}

static void
free_lists(struct scenario_builder *b)
{
	struct scenario_vec *lists[] = {&b->clusters,   &b->models, &b->classes,    &b->shapes, &b->tenants,
	                                &b->workspaces, &b->homes,  &b->shares,     &b->caps,   &b->budgets,
	                                &b->nodes,      &b->leases, &b->exceptions, &b->events, &b->runs};

	for (size_t i = 0; i < ARRAY_LEN(lists); i++)
		mem_free(lists[i]->at);
}

static struct scenario_builder
builder_of(const struct yaml_doc *doc, struct quota_scenario *sc)
{
	return (struct scenario_builder){
		.doc = doc,
		.sc = sc,
		.clusters = {.size = sizeof(const char *)},
		.models = {.size = sizeof(const char *)},
		.classes = {.size = sizeof(struct scenario_class)},
		.shapes = {.size = sizeof(struct quota_shape)},
		.tenants = {.size = sizeof(struct quota_tenant)},
		.workspaces = {.size = sizeof(struct quota_workspace)},
		.homes = {.size = sizeof(int32_t)},
		.shares = {.size = sizeof(struct quota_share)},
		.caps = {.size = sizeof(struct quota_cap)},
		.budgets = {.size = sizeof(struct quota_budget)},
		.nodes = {.size = sizeof(struct quota_node)},
		.leases = {.size = sizeof(struct quota_lease)},
		.exceptions = {.size = sizeof(struct quota_exception)},
		.events = {.size = sizeof(struct scenario_event)},
		.runs = {.size = sizeof(struct scenario_run)},
	};
}

/* JSON is YAML, but stricter: a file that begins as JSON is held to JSON's rules before it is read as YAML, which knows the
 * lines. */
static bool
parse_text(const char *name, const char *text, size_t len, struct yaml_doc **ret, struct err *err)
{
	owned(json) json_t *json = NULL;
	size_t at = 0;

	while (at < len && strchr(" \t\r\n", text[at]) != NULL && text[at] != '\0')
		at++;
	if (at < len && text[at] == '{') {
		do
			at++;
		while (at < len && text[at] != '\0' && strchr(" \t\r\n", text[at]) != NULL);
		if (at < len && text[at] == '"' && !json_parse(name, text, len, &json, err))
			return false;
	}
	return yaml_parse(name, text, len, ret, err);
}

bool
quota_scenario_parse(const char *name, const char *text, size_t len, struct quota_scenario **ret, struct err *err)
{
	owned(quota_scenario) struct quota_scenario *sc = mem_alloc(sizeof(*sc));
	owned(yaml) struct yaml_doc *doc = NULL;
	struct scenario_builder b;
	bool ok;

	buf_init(&sc->warnings, WARNINGS_BYTES);
	if (!parse_text(name, text, len, &doc, err))
		return false;
	b = builder_of(doc, sc);
	ok = read_all(&b, err);
	if (ok) {
		finish(&b);
		scenario_warn(&b);
	}
	free_lists(&b);
	if (!ok)
		return false;
	*ret = take(sc);
	return true;
}
