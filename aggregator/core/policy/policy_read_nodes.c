/* aggregator/core/policy/policy_read_nodes.c - reading the nodes: whose they are, what they have, and the state they are in. */
#include <string.h>

#include "aggregator/core/policy/policy_check.h"
#include "aggregator/core/policy/policy_read.h"

#define NODE_MAX_INSTANCES 10000

static const char *const node_states[] = {"in-service", "maintenance", "retired", NULL};

static bool
read_owner(const struct yaml_doc *doc, const struct yaml_node *n, struct policy_node *ret, struct err *err)
{
	const struct yaml_node *shared = yaml_get(n, "shared");
	bool is_shared = true;

	if (!policy_read_optional(doc, n, "node", "tenant", policy_label_fault, &ret->tenant, err))
		return false;
	if ((shared != NULL) == (ret->tenant != NULL))
		return yaml_err(doc, n, err, "node \"%s\" needs exactly one of tenant: NAME and shared: true",
		                ret->name);
	if (shared != NULL && !yaml_bool(doc, n, "shared", &is_shared, err))
		return false;
	if (!is_shared)
		return yaml_err(doc, shared, err,
		                "node \"%s\" has shared: false, but no tenant; write tenant: NAME instead", ret->name);
	return true;
}

/* mig: {1g.10gb: 7}; each must be a profile of the model. */
static bool
read_profiles(const struct yaml_doc *doc, const struct yaml_node *n, struct policy_node *ret, struct err *err)
{
	const struct yaml_node *map = yaml_get(n, "mig");
	int64_t gpus = ret->gpus;

	if (map == NULL)
		return true;
	if (!yaml_expect(doc, map, YAML_MAP, "mig", err))
		return false;
	if (map->count > POLICY_MAX_PROFILES)
		return yaml_err(doc, map, err, "mig has %zu profiles, at most %u are allowed", map->count,
		                POLICY_MAX_PROFILES);
	ret->profiles = mem_array(map->count, sizeof(*ret->profiles));
	for (const struct yaml_node *c = map->child; c != NULL; c = c->next) {
		struct policy_profile *p = &ret->profiles[ret->profile_count++];
		const char *reason = policy_profile_fault(c->key);
		struct err why = {0};
		int64_t units;

		if (reason != NULL)
			return yaml_err(doc, c, err, "mig \"%.*s\" %s", policy_shown(c->key), c->key, reason);
		p->profile = mem_strdup(c->key);
		if (!yaml_i64(doc, map, c->key, 1, NODE_MAX_INSTANCES, &p->count, err))
			return false;
		if (!quantity_profile_units(ret->model, p->profile, &units, &why))
			return yaml_err(doc, c, err, "mig: %s", why.text);
		/* As many GPUs as it takes; they are counted like this until the node is seen. */
		gpus += (p->count + UNITS_PER_GPU / units - 1) / (UNITS_PER_GPU / units);
		if (gpus > LIMIT_NODE_GPUS)
			return yaml_err(doc, c, err, "node \"%s\": its instances need %" PRId64 " GPUs, the most is %d",
			                ret->name, gpus, LIMIT_NODE_GPUS);
	}
	return true;
}

static bool
read_declared(const struct yaml_doc *doc, const struct yaml_node *n, struct policy_node *ret, struct err *err)
{
	if (!policy_read_optional(doc, n, "node", "model", policy_code_fault, &ret->model, err))
		return false;
	if (ret->model == NULL) {
		const struct yaml_node *has = yaml_get(n, "gpus") ? yaml_get(n, "gpus") : yaml_get(n, "mig");

		return has == NULL ||
		       yaml_err(doc, has, err, "node \"%s\" says what it has, and needs the key model", ret->name);
	}
	if (yaml_get(n, "gpus") != NULL && !yaml_i64(doc, n, "gpus", 0, LIMIT_NODE_GPUS, &ret->gpus, err))
		return false;
	if (!read_profiles(doc, n, ret, err))
		return false;
	if (ret->gpus == 0 && ret->profile_count == 0)
		return yaml_err(doc, yaml_get(n, "model"), err,
		                "node \"%s\" has a model, and needs gpus: N, mig: {PROFILE: N} or both", ret->name);
	return true;
}

static const char *
uuid_fault(const char *text)
{
	if (text[0] == '\0' || strlen(text) > LIMIT_GPU_UUID)
		return "must have 1 to " LIMIT_TEXT(LIMIT_GPU_UUID) " characters";
	if (text[strspn(text, "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz-._:")] != '\0')
		return "must be letters, digits and -._: as the driver writes it";
	return NULL;
}

static bool
read_devices(const struct yaml_doc *doc, const struct yaml_node *n, struct policy_node *ret, struct err *err)
{
	static const char *const keys[] = {"uuid", "state", NULL};
	const struct yaml_node *list;

	if (!policy_read_list(doc, n, "devices", LIMIT_NODE_GPUS, &list, err))
		return false;
	if (list == NULL)
		return true;
	ret->devices = mem_array(list->count, sizeof(*ret->devices));
	for (const struct yaml_node *c = list->child; c != NULL; c = c->next) {
		struct policy_device *d = &ret->devices[ret->device_count++];

		d->line = c->line;
		if (!yaml_expect(doc, c, YAML_MAP, "a device", err) || !yaml_only_keys(doc, c, keys, err) ||
		    !policy_read_checked(doc, c, "device", "uuid", uuid_fault, &d->uuid, err) ||
		    !policy_read_word(doc, c, "state", node_states, &d->state, err))
			return false;
		if (d->state == NULL)
			return yaml_err(doc, c, err, "a device needs the key state");
	}
	return true;
}

static bool
read_node(const struct yaml_doc *doc, const struct yaml_node *n, const char *cluster, struct policy_node *ret,
          struct err *err)
{
	static const char *const keys[] = {"name", "cluster", "tenant", "shared",  "model",
	                                   "gpus", "mig",     "state",  "devices", NULL};

	ret->line = n->line;
	ret->state = node_states[0];
	if (!yaml_expect(doc, n, YAML_MAP, "a node", err) || !yaml_only_keys(doc, n, keys, err) ||
	    !policy_read_checked(doc, n, "node", "name", policy_node_fault, &ret->name, err) ||
	    !policy_read_optional(doc, n, "node", "cluster", policy_label_fault, &ret->cluster, err) ||
	    !read_owner(doc, n, ret, err) || !read_declared(doc, n, ret, err) ||
	    !policy_read_word(doc, n, "state", node_states, &ret->state, err) || !read_devices(doc, n, ret, err))
		return false;
	if (ret->cluster == NULL)
		ret->cluster = mem_strdup(cluster);
	return true;
}

bool
policy_read_nodes(const struct yaml_doc *doc, struct policy *p, struct err *err)
{
	const struct yaml_node *list;

	if (!policy_read_list(doc, yaml_root(doc), "nodes", POLICY_MAX_NODES, &list, err))
		return false;
	if (list == NULL)
		return true;
	p->nodes = mem_array(list->count, sizeof(*p->nodes));
	for (const struct yaml_node *c = list->child; c != NULL; c = c->next)
		if (!read_node(doc, c, p->cluster, &p->nodes[p->node_count++], err))
			return false;
	return true;
}
