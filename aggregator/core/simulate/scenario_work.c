/* aggregator/core/simulate/scenario_work.c - the leases, requests, exceptions and events of a scenario file. */
#include <string.h>

#include "aggregator/core/policy/policy_fields.h"
#include "aggregator/core/simulate/scenario_build.h"
#include "common/base/money.h"
#include "common/base/time.h"

/* ---- leases, requests and exceptions --------------------------------------------------------------------------------------- */

#define LEASES_MAX 100000u
#define REQUESTS_MAX 100000u
#define EXCEPTIONS_MAX 10000u
#define TIME_MAX_NS (3660 * NS_PER_DAY)
#define MONEY_SCALE 2

/* Keys that leases and requests have in common. */
struct work {
	const char *id;
	int32_t workspace, cluster, shape, count, priority, klass;
	bool preemptible;
	int64_t other[QUOTA_OTHERS];
};

/* ---- shape and count ---- */

static bool
read_replicas(struct scenario_builder *b, const struct scenario_at *at, int32_t model, struct work *w, struct err *err)
{
	const struct quota_shape *shapes = b->shapes.at;
	int64_t count, of = 0;

	w->shape = QUOTA_NONE;
	if (!yaml_i64(at->doc, at->map, "replicas", 1, QUOTA_MAX_COUNT, &count, err) ||
	    !scenario_i64(at, "of", 2, UNITS_PER_GPU, &of, err))
		return false;
	w->count = (int32_t)count;
	for (size_t i = 0; i < b->shapes.count; i++)
		if (shapes[i].model == model && shapes[i].kind == QUOTA_REPLICA &&
		    (of == 0 || shapes[i].units * of == UNITS_PER_GPU)) {
			if (w->shape != QUOTA_NONE)
				return scenario_err(at, "replicas", err,
				                    "of how many to a GPU? There are several: write of: N");
			w->shape = (int32_t)i;
		}
	return w->shape != QUOTA_NONE ||
	       scenario_err(at, of > 0 ? "of" : "replicas", err, "is of replicas that no node of this file has");
}

static bool
read_profile(struct scenario_builder *b, const struct scenario_at *at, const char *key, int32_t model,
             const char *profile, struct work *w, struct err *err)
{
	struct err why = {0};
	int64_t units;

	if (!quantity_profile_units(scenario_model_name(b, model), profile, &units, &why))
		return scenario_err(at, key, err, "cannot be had: %s", why.text);
	w->shape = scenario_shape(b, model, QUOTA_MIG, profile, units);
	return true;
}

/* gpus: 3, gpus: 2x1g.10gb, profile and count, or replicas and of. */
static bool
read_how_much(struct scenario_builder *b, const struct scenario_at *at, struct work *w, struct err *err)
{
	const char *const ways[] = {"gpus", "profile", "replicas"};
	int32_t model;
	int64_t count = 1;
	struct quantity q;
	const char *text;
	int given = 0;

	for (int i = 0; i < 3; i++)
		given += yaml_get(at->map, ways[i]) != NULL;
	if (given != 1)
		return scenario_err(at, NULL, err, "exactly one of gpus, profile and replicas is needed");
	for (int i = 0; i < 2; i++) {
		const char *needs = i == 0 ? "profile" : "replicas", *key = i == 0 ? "count" : "of";

		if (yaml_get(at->map, key) != NULL && yaml_get(at->map, needs) == NULL)
			return scenario_err(at, key, err, "goes with %s only", needs);
	}
	if (!scenario_model(b, at, ((const struct quota_workspace *)b->workspaces.at)[w->workspace].tenant, &model,
	                    err))
		return false;
	if (yaml_get(at->map, "replicas") != NULL)
		return read_replicas(b, at, model, w, err);
	if (yaml_get(at->map, "profile") != NULL) {
		if (!yaml_str(at->doc, at->map, "profile", &text, err) ||
		    !scenario_i64(at, "count", 1, QUOTA_MAX_COUNT, &count, err))
			return false;
		w->count = (int32_t)count;
		return read_profile(b, at, "profile", model, text, w, err);
	}
	if (!yaml_str(at->doc, at->map, "gpus", &text, err))
		return false;
	if (!quantity_parse(text, &q, NULL) || q.unlimited || q.num == 0 || q.num > QUOTA_MAX_COUNT || q.den != 1)
		return scenario_err(at, "gpus", err,
		                    "is not a number of whole GPUs or instances: 1 to %d, or 2x1g.10gb",
		                    QUOTA_MAX_COUNT);
	w->count = (int32_t)q.num;
	w->shape = model;
	return q.profile[0] == '\0' || read_profile(b, at, "gpus", model, q.profile, w, err);
}

/* A number, or the name of a class, which then also says whether it may be preempted. */
static bool
read_priority(struct scenario_builder *b, const struct scenario_at *at, struct work *w, struct err *err)
{
	const struct scenario_class *all = b->classes.at;
	const struct yaml_node *n = yaml_get(at->map, "priority");
	int64_t value = 0;

	w->klass = QUOTA_NONE;
	w->preemptible = true;
	for (size_t i = 0; n != NULL && n->kind == YAML_SCALAR && i < b->classes.count; i++)
		if (strcmp(all[i].name, n->text) == 0) {
			w->klass = (int32_t)i;
			w->priority = (int32_t)all[i].value;
			w->preemptible = all[i].preemptible;
			return scenario_bool(at, "preemptible", &w->preemptible, err);
		}
	if (n != NULL && n->kind == YAML_SCALAR && n->text[0] != '-' && (n->text[0] < '0' || n->text[0] > '9'))
		return scenario_err(at, "priority", err, "is neither a number nor a priority class of this file");
	if (!scenario_i64(at, "priority", -QUOTA_MAX_PRIORITY, QUOTA_MAX_PRIORITY, &value, err))
		return false;
	w->priority = (int32_t)value;
	return scenario_bool(at, "preemptible", &w->preemptible, err);
}

static bool
read_work(struct scenario_builder *b, const struct scenario_at *at, struct work *w, struct err *err)
{
	struct policy_resources r;
	owned(mem) char *id = NULL;
	int64_t runs_ns = -1, drains_ns = b->drains_ns;

	if (!scenario_text(at, "id", scenario_id_fault, true, &id, err) ||
	    !scenario_workspace(b, at, &w->workspace, err))
		return false;
	w->cluster = ((const int32_t *)b->homes.at)[w->workspace];
	if (!scenario_cluster(b, at, &w->cluster, err) || !read_how_much(b, at, w, err) ||
	    !read_priority(b, at, w, err) || !scenario_duration(at, "runs", TIME_MAX_NS, &runs_ns, err) ||
	    !scenario_duration(at, "drains", TIME_MAX_NS, &drains_ns, err) ||
	    !policy_read_resources(at->doc, at->map, &r, err))
		return false;
	w->id = scenario_keep_text(b, id);
	w->other[QUOTA_CPU] = r.cpu_millis < 0 ? 0 : r.cpu_millis;
	w->other[QUOTA_MEMORY] = r.memory_bytes < 0 ? 0 : r.memory_bytes;
	w->other[QUOTA_STORAGE] = r.storage_bytes < 0 ? 0 : r.storage_bytes;
	*(struct scenario_run *)scenario_push(&b->runs) =
		(struct scenario_run){w->id, at->map->line, runs_ns, drains_ns};
	return true;
}

/* ---- leases ---- */

static bool
read_lease(struct scenario_builder *b, const struct yaml_node *n, int64_t since_ns, struct err *err)
{
	static const char *const keys[] = {"id",        "workspace", "cluster", "model",    "gpus",        "profile",
	                                   "count",     "replicas",  "of",      "priority", "preemptible", "draining",
	                                   "confirmed", "node",      "limits",  "runs",     "drains",      NULL};
	struct scenario_at at = {b->doc, n, "lease"};
	bool draining = false, confirmed = true;
	struct quota_lease *l;
	struct work w = {0};
	const char *node;

	if (!scenario_map(&at, keys, err) || !read_work(b, &at, &w, err) ||
	    !scenario_bool(&at, "draining", &draining, err) || !scenario_bool(&at, "confirmed", &confirmed, err))
		return false;
	l = scenario_push(&b->leases);
	*l = (struct quota_lease){.id = w.id,
	                          .workspace = w.workspace,
	                          .cluster = w.cluster,
	                          .shape = w.shape,
	                          .count = w.count,
	                          .node = QUOTA_NONE,
	                          .priority = w.priority,
	                          .preemptible = w.preemptible,
	                          .state = confirmed ? QUOTA_CONFIRMED : QUOTA_ADMITTED,
	                          .since_ns = since_ns,
	                          .seen_ns = SCENARIO_START_NS,
	                          .order = draining ? QUOTA_DRAINING : QUOTA_NO_ORDER};
	memcpy(l->other, w.other, sizeof(l->other));
	if (draining) {
		l->ordered_ns = SCENARIO_START_NS;
		l->due_ns = SCENARIO_START_NS + b->sc->world.policy.settings.grace_ns;
	}
	if (yaml_get(n, "node") == NULL)
		return true;
	if (!yaml_str(b->doc, n, "node", &node, err))
		return false;
	l->node = scenario_find_node(b, node);
	if (l->node == QUOTA_NONE)
		return scenario_err(&at, "node", err, "is not a node of this file");
	l->cluster = ((const struct quota_node *)b->nodes.at)[l->node].cluster;
	return true;
}

bool
scenario_read_leases(struct scenario_builder *b, struct err *err)
{
	struct scenario_at top = {b->doc, yaml_root(b->doc), "scenario"};
	const struct yaml_node *list;
	int64_t since_ns;

	if (!scenario_list(&top, "leases", LEASES_MAX, &list, err))
		return false;
	if (list == NULL)
		return true;
	since_ns = SCENARIO_START_NS - (int64_t)list->count;
	for (const struct yaml_node *c = list->child; c != NULL; c = c->next)
		if (!read_lease(b, c, since_ns++, err))
			return false;
	return true;
}

/* ---- requests ---- */

static bool
read_cost(const struct scenario_at *at, int64_t *ret, struct err *err)
{
	const char *text;
	int128 value;

	if (yaml_get(at->map, "cost") == NULL)
		return true;
	if (!yaml_str(at->doc, at->map, "cost", &text, err))
		return false;
	if (!decimal_parse(text, MONEY_SCALE, &value, NULL) || value < 0 || value > INT64_C(1000000000000000))
		return scenario_err(at, "cost", err, "is not an amount of money like 12.50");
	*ret = (int64_t)value;
	return true;
}

static const char *
reason_fault(const char *text)
{
	return text[0] != '\0' && strlen(text) < QUOTA_REASON_SIZE ? NULL : "is not a text of 1 to 128 bytes";
}

static bool
read_request(struct scenario_builder *b, const struct yaml_node *n, int64_t at_ns, struct quota_request *r,
             struct err *err)
{
	static const char *const keys[] = {"id",       "workspace", "cluster", "model",    "gpus",     "profile",
	                                   "count",    "replicas",  "of",      "per_node", "priority", "preemptible",
	                                   "expected", "cost",      "waited",  "expires",  "limits",   "runs",
	                                   "drains",   "reason",    NULL};
	struct scenario_at at = {b->doc, n, "request"};
	int64_t per_node = 0, waited_ns = 0, expires_ns = 0, expected_ns = 0;
	owned(mem) char *reason = NULL;
	struct work w = {0};

	if (!scenario_map(&at, keys, err) || !read_work(b, &at, &w, err) ||
	    !scenario_text(&at, "reason", reason_fault, false, &reason, err) ||
	    !scenario_i64(&at, "per_node", 1, QUOTA_MAX_COUNT, &per_node, err) ||
	    !scenario_duration(&at, "waited", TIME_MAX_NS, &waited_ns, err) ||
	    !scenario_duration(&at, "expires", TIME_MAX_NS, &expires_ns, err) ||
	    !scenario_duration(&at, "expected", TIME_MAX_NS, &expected_ns, err) || !read_cost(&at, &r->cost, err))
		return false;
	r->id = w.id;
	r->workspace = w.workspace;
	r->cluster = w.cluster;
	r->shape = w.shape;
	r->count = w.count;
	r->per_node = (int32_t)per_node;
	r->priority = w.priority;
	r->klass = w.klass;
	r->preemptible = w.preemptible;
	r->expected_s = expected_ns / NS_PER_S;
	r->submitted_ns = SCENARIO_START_NS + at_ns - waited_ns;
	r->expires_ns = expires_ns > 0 ? SCENARIO_START_NS + at_ns + expires_ns : 0;
	r->reason = reason ? scenario_keep_text(b, reason) : NULL;
	memcpy(r->other, w.other, sizeof(r->other));
	return true;
}

bool
scenario_read_requests(struct scenario_builder *b, const struct yaml_node *list, int64_t at_ns, struct quota_event *ret,
                       struct err *err)
{
	struct quota_request *requests;
	size_t count = 0;

	if (!yaml_expect(b->doc, list, YAML_LIST, "requests", err))
		return false;
	if (list->count == 0)
		return yaml_err(b->doc, list, err, "requests is empty");
	if (list->count > REQUESTS_MAX)
		return yaml_err(b->doc, list, err, "requests has %zu entries, at most %u are allowed", list->count,
		                REQUESTS_MAX);
	requests = quota_keep(&b->sc->memory, list->count, sizeof(*requests));
	for (const struct yaml_node *c = list->child; c != NULL; c = c->next)
		if (!read_request(b, c, at_ns, &requests[count++], err))
			return false;
	*ret = (struct quota_event){.kind = QUOTA_SUBMIT, .requests = requests, .request_count = count};
	return true;
}

/* ---- exceptions ---- */

static bool
read_extra(struct scenario_builder *b, const struct scenario_at *at, const char *key, int32_t model, int64_t *ret,
           struct err *err)
{
	struct err why = {0};
	struct quantity q;
	const char *text;

	if (yaml_get(at->map, key) == NULL)
		return true;
	if (!yaml_str(at->doc, at->map, key, &text, err))
		return false;
	if (!quantity_parse(text, &q, &why) || !quantity_units(&q, scenario_model_name(b, model), ret, &why))
		return scenario_err(at, key, err, "cannot be had: %s", why.text);
	return *ret != QUOTA_UNLIMITED || scenario_err(at, key, err, "is no amount that can be added");
}

bool
scenario_read_exception(struct scenario_builder *b, const struct yaml_node *n, int64_t at_ns,
                        struct quota_exception *ret, struct err *err)
{
	static const char *const keys[] = {"id",    "workspace", "cluster", "model", "shared",
	                                   "limit", "reserved",  "from",    "until", NULL};
	struct scenario_at at = {b->doc, n, "exception"};
	struct quota_exception e = {0};
	owned(mem) char *id = NULL;
	int64_t from_ns = at_ns, until_ns = -1;

	if (!scenario_map(&at, keys, err) || !scenario_text(&at, "id", scenario_id_fault, true, &id, err) ||
	    !scenario_workspace(b, &at, &e.workspace, err))
		return false;
	e.cluster = ((const int32_t *)b->homes.at)[e.workspace];
	if (!scenario_cluster(b, &at, &e.cluster, err) ||
	    !scenario_model(b, &at, ((const struct quota_workspace *)b->workspaces.at)[e.workspace].tenant, &e.model,
	                    err) ||
	    !scenario_bool(&at, "shared", &e.shared, err) ||
	    !read_extra(b, &at, "limit", e.model, &e.extra_limit, err) ||
	    !read_extra(b, &at, "reserved", e.model, &e.extra_reserved, err) ||
	    !scenario_duration(&at, "from", TIME_MAX_NS, &from_ns, err) ||
	    !scenario_duration(&at, "until", TIME_MAX_NS, &until_ns, err))
		return false;
	if (until_ns < 0)
		return scenario_err(&at, NULL, err, "the key until is missing; an exception ends");
	if (until_ns <= from_ns)
		return scenario_err(&at, "until", err, "is not after its beginning");
	if (e.extra_limit == 0 && e.extra_reserved == 0)
		return scenario_err(&at, NULL, err, "limit or reserved is needed: what may it have more?");
	e.id = scenario_keep_text(b, id);
	e.from_ns = SCENARIO_START_NS + from_ns;
	e.until_ns = SCENARIO_START_NS + until_ns;
	*ret = e;
	return true;
}

bool
scenario_read_exceptions(struct scenario_builder *b, struct err *err)
{
	struct scenario_at top = {b->doc, yaml_root(b->doc), "scenario"};
	const struct yaml_node *list;

	if (!scenario_list(&top, "exceptions", EXCEPTIONS_MAX, &list, err))
		return false;
	for (const struct yaml_node *c = list != NULL ? list->child : NULL; c != NULL; c = c->next)
		if (!scenario_read_exception(b, c, 0, scenario_push(&b->exceptions), err))
			return false;
	return true;
}

/* ---- events ---------------------------------------------------------------------------------------------------------------- */

#define EVENTS_MAX 100000u

/* Events whose value is an id, of a lease unless the kind says otherwise. */
static const struct {
	const char *key;
	enum quota_event_kind kind;
} by_id[] = {
	/* clang-format off */
	{"finish", QUOTA_FINISH},
	{"release", QUOTA_RELEASE},
	{"lost", QUOTA_RELEASE},
	{"unfence", QUOTA_UNFENCE},
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

/* policy: {workspace: acme/prod, reserved: 6} or {tenant: acme, maximum: 8}: keys that are missing stay as they are. */
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
	policy = quota_keep(&b->sc->memory, 1, sizeof(*policy));
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
			e->lost = strcmp(key, "lost") == 0;
			e->id = scenario_keep_text(b, id);
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
		exception = quota_keep(&b->sc->memory, 1, sizeof(*exception));
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
	                                   "policy",    "exception", "tick",      "lost",     "unfence",
	                                   NULL};
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
