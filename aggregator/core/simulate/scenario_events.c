/* aggregator/core/simulate/scenario_events.c - what a scenario's file says happens over time. */
#include <string.h>

#include "aggregator/core/policy/policy_check.h"
#include "aggregator/core/simulate/scenario_build.h"
#include "common/base/time.h"

#define EVENTS_MAX 100000u
#define TIME_MAX_NS (3660 * NS_PER_DAY)

/* Events whose value is an id, of a lease unless the kind says otherwise. */
static const struct {
	const char *key;
	enum quota_event_kind kind;
} by_id[] = {
	/* clang-format off */
	{"finish", QUOTA_FINISH},
	{"release", QUOTA_RELEASE},
	{"empty", QUOTA_EMPTY},
	{"drain", QUOTA_DRAIN},
	{"enforce", QUOTA_ENFORCE},
	{"confirm", QUOTA_CONFIRM},
	{"heartbeat", QUOTA_HEARTBEAT},
	{"cancel", QUOTA_CANCEL},
	{"exception_end", QUOTA_EXCEPTION_END},
	/* clang-format on */
};

static bool
read_node_event(struct scenario_builder *b, const struct scenario_at *at, const char *key, enum quota_event_kind kind,
                struct quota_event *e, struct err *err)
{
	const char *text;

	if (!yaml_str(at->doc, at->map, key, &text, err))
		return false;
	e->kind = kind;
	e->node = scenario_find_node(b, text);
	return e->node != QUOTA_NONE || scenario_err(at, key, err, "is not a node of this file");
}

/* gpu_lost: {node: n1, gpu: 0} */
static bool
read_gpu_event(struct scenario_builder *b, const struct scenario_at *at, const char *key, enum quota_event_kind kind,
               struct quota_event *e, struct err *err)
{
	static const char *const keys[] = {"node", "gpu", NULL};
	struct scenario_at in = {at->doc, yaml_get(at->map, key), key};
	const struct quota_node *nodes = b->nodes.at;
	int64_t gpu = -1;

	if (!scenario_map(&in, keys, err) || !read_node_event(b, &in, "node", kind, e, err) ||
	    !yaml_i64(in.doc, in.map, "gpu", 0, (int64_t)nodes[e->node].gpu_count - 1, &gpu, err))
		return false;
	e->gpu = (int32_t)gpu;
	return true;
}

/* policy: {workspace: acme/prod, reserved: 6} or {tenant: acme, maximum: 8}: what is not said stays as it is. */
static bool
read_policy_event(struct scenario_builder *b, const struct yaml_node *map, struct quota_event *e, struct err *err)
{
	static const char *const of_workspace[] = {
		"workspace", "cluster",       "reserved", "reserved_shared",  "limit",   "limit_shared",
		"borrow",    "borrow_shared", "lend",     "lend_shared",      "reclaim", "preempt_own",
		"weight",    "enforce",       "limits",   "max_per_workload", "budget",  NULL};
	static const char *const of_tenant[] = {"tenant",           "maximum",          "default_limit",
	                                        "isolation",        "priority_classes", "limits",
	                                        "max_per_workload", "budget",           NULL};
	struct scenario_at at = {b->doc, map, "policy"};
	struct quota_policy *policy;
	int32_t index = QUOTA_NONE;
	const char *name;

	if (++b->policy_count > SCENARIO_MAX_POLICIES)
		return yaml_err(b->doc, map, err, "more than %u changes of the policy", SCENARIO_MAX_POLICIES);
	if (!yaml_expect(b->doc, map, YAML_MAP, "policy", err))
		return false;
	if (yaml_get(map, "tenant") != NULL) {
		if (!scenario_map(&at, of_tenant, err) || !yaml_str(b->doc, map, "tenant", &name, err))
			return false;
		index = scenario_find_tenant(b, name);
		if (index == QUOTA_NONE)
			return scenario_err(&at, "tenant", err, "is not a tenant of this file");
		if (!scenario_read_tenant_quota(b, &at, index, err))
			return false;
	} else if (!scenario_map(&at, of_workspace, err) || !scenario_workspace(b, &at, &index, err) ||
	           !scenario_read_workspace_quota(b, &at, index, err)) {
		return false;
	}
	policy = scenario_keep(b, mem_alloc(sizeof(*policy)));
	scenario_policy(b, policy);
	e->kind = QUOTA_POLICY;
	e->policy = policy;
	return true;
}

static bool
read_by_id(struct scenario_builder *b, const struct scenario_at *at, const char *key, struct quota_event *e,
           struct err *err)
{
	owned(mem) char *id = NULL;

	for (size_t i = 0; i < ARRAY_LEN(by_id); i++)
		if (strcmp(by_id[i].key, key) == 0) {
			if (!scenario_text(at, key, scenario_id_fault, true, &id, err))
				return false;
			e->kind = by_id[i].kind;
			e->id = scenario_keep(b, take(id));
			return true;
		}
	return scenario_err(at, key, err, "is no event");
}

static bool
read_what(struct scenario_builder *b, const struct scenario_at *at, const struct yaml_node *what, int64_t at_ns,
          struct quota_event *e, struct err *err)
{
	struct quota_exception *exception;
	bool tick = false;

	if (strcmp(what->key, "node_lost") == 0 || strcmp(what->key, "node_back") == 0)
		return read_node_event(b, at, what->key,
		                       strcmp(what->key, "node_lost") ? QUOTA_NODE_BACK : QUOTA_NODE_LOST, e, err);
	if (strcmp(what->key, "gpu_lost") == 0 || strcmp(what->key, "gpu_back") == 0)
		return read_gpu_event(b, at, what->key, strcmp(what->key, "gpu_lost") ? QUOTA_GPU_BACK : QUOTA_GPU_LOST,
		                      e, err);
	if (strcmp(what->key, "requests") == 0)
		return scenario_read_requests(b, what, at_ns, e, err);
	if (strcmp(what->key, "policy") == 0)
		return read_policy_event(b, what, e, err);
	if (strcmp(what->key, "exception") == 0) {
		exception = scenario_keep(b, mem_alloc(sizeof(*exception)));
		e->kind = QUOTA_EXCEPTION;
		e->exception = exception;
		return scenario_read_exception(b, what, at_ns, exception, err);
	}
	if (strcmp(what->key, "tick") == 0) {
		e->kind = QUOTA_TICK;
		return scenario_bool(at, "tick", &tick, err) &&
		       (tick || scenario_err(at, "tick", err, "is only ever true"));
	}
	return read_by_id(b, at, what->key, e, err);
}

static bool
read_event(struct scenario_builder *b, const struct yaml_node *n, int64_t *last_ns, struct err *err)
{
	static const char *const keys[] = {"at",        "finish",    "release",   "empty",    "drain",
	                                   "enforce",   "confirm",   "heartbeat", "cancel",   "exception_end",
	                                   "node_lost", "node_back", "gpu_lost",  "gpu_back", "requests",
	                                   "policy",    "exception", "tick",      NULL};
	struct scenario_at at = {b->doc, n, "event"};
	const struct yaml_node *what = NULL;
	struct scenario_event e = {.line = n->line};
	char before[TIME_TEXT_SIZE];

	if (!scenario_map(&at, keys, err) || !scenario_duration(&at, "at", TIME_MAX_NS, &e.at_ns, err))
		return false;
	if (yaml_get(n, "at") == NULL || n->count != 2)
		return scenario_err(&at, NULL, err, "the key at and exactly one thing that happens are needed");
	if (e.at_ns < *last_ns)
		return scenario_err(&at, "at", err, "is before the event above it, which is at %s",
		                    duration_format(*last_ns, before));
	*last_ns = e.at_ns;
	what = strcmp(n->child->key, "at") == 0 ? n->child->next : n->child;
	if (!read_what(b, &at, what, e.at_ns, &e.event, err))
		return false;
	*(struct scenario_event *)scenario_push(&b->events) = e;
	return true;
}

bool
scenario_read_events(struct scenario_builder *b, struct err *err)
{
	struct scenario_at top = {b->doc, yaml_root(b->doc), "scenario"};
	const struct yaml_node *list = yaml_get(top.map, "requests");
	struct scenario_event first = {0};
	int64_t last_ns = 0;

	if (list != NULL) {
		first.line = list->line;
		if (!scenario_read_requests(b, list, 0, &first.event, err))
			return false;
		*(struct scenario_event *)scenario_push(&b->events) = first;
	}
	if (!scenario_list(&top, "events", EVENTS_MAX, &list, err))
		return false;
	for (const struct yaml_node *c = list != NULL ? list->child : NULL; c != NULL; c = c->next)
		if (!read_event(b, c, &last_ns, err))
			return false;
	b->sc->over_time |= list != NULL;
	if (last_ns > b->sc->end_ns)
		b->sc->end_ns = last_ns;
	return true;
}
