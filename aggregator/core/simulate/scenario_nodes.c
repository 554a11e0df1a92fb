/* aggregator/core/simulate/scenario_nodes.c - the clusters, models, priority classes and nodes of a scenario file. */
#include <string.h>

#include "aggregator/core/policy/policy_fields.h"
#include "aggregator/core/simulate/scenario_build.h"

#define CLUSTERS_MAX 100u
#define NODES_MAX 20000u

static void
add_name(struct scenario_builder *b, struct scenario_vec *names, const char *name)
{
	if (scenario_find_name(names, name) == QUOTA_NONE)
		*(const char **)scenario_push(names) = scenario_keep_text(b, name);
}

static const struct yaml_node *
children(const struct yaml_node *map, const char *key)
{
	const struct yaml_node *n = yaml_get(map, key);

	return n != NULL && n->kind == YAML_LIST ? n->child : NULL;
}

/* Names that occur under a key of a list's maps, wherever they are well formed; readers refuse the others later. */
static void
names_in(struct scenario_builder *b, const char *list, const char *key, const char *(*fault)(const char *),
         struct scenario_vec *names)
{
	for (const struct yaml_node *c = children(yaml_root(b->doc), list); c != NULL; c = c->next) {
		const struct yaml_node *n = yaml_get(c, key);

		if (n != NULL && n->kind == YAML_SCALAR && fault(n->text) == NULL)
			add_name(b, names, n->text);
	}
}

/* Models that occur only in amounts: {H100: 4, A100: 2}. */
static void
models_in_amounts(struct scenario_builder *b, const struct yaml_node *map)
{
	static const char *const keys[] = {"capacity", "reserved", "reserved_shared", "maximum", "limit", NULL};

	for (int i = 0; keys[i] != NULL; i++) {
		const struct yaml_node *n = yaml_get(map, keys[i]);

		if (n == NULL || n->kind != YAML_MAP)
			continue;
		for (const struct yaml_node *c = n->child; c != NULL; c = c->next)
			if (policy_code_fault(c->key) == NULL)
				add_name(b, &b->models, c->key);
	}
}

static bool
read_cluster(struct scenario_builder *b, const struct yaml_node *n, struct err *err)
{
	static const char *const keys[] = {"name", "maximum", NULL};
	struct scenario_at at = {b->doc, n, "cluster"};
	owned(mem) char *name = NULL;

	if (!scenario_map(&at, keys, err) || !scenario_text(&at, "name", policy_label_fault, true, &name, err))
		return false;
	if (scenario_find_name(&b->clusters, name) != QUOTA_NONE)
		return scenario_err(&at, "name", err, "is there twice");
	add_name(b, &b->clusters, name);
	return true;
}

static bool
read_class(struct scenario_builder *b, const struct yaml_node *n, struct err *err)
{
	static const char *const keys[] = {"name", "value", "preemptible", NULL};
	struct scenario_at at = {b->doc, n, "priority class"};
	struct scenario_class *all = b->classes.at, *c;
	owned(mem) char *name = NULL;

	if (!scenario_map(&at, keys, err) || !scenario_text(&at, "name", policy_label_fault, true, &name, err))
		return false;
	for (size_t i = 0; i < b->classes.count; i++)
		if (strcmp(all[i].name, name) == 0)
			return scenario_err(&at, "name", err, "is there twice");
	c = scenario_push(&b->classes);
	*c = (struct scenario_class){.name = scenario_keep_text(b, name), .preemptible = true};
	return scenario_i64(&at, "value", -QUOTA_MAX_PRIORITY, QUOTA_MAX_PRIORITY, &c->value, err) &&
	       scenario_bool(&at, "preemptible", &c->preemptible, err);
}

bool
scenario_read_names(struct scenario_builder *b, struct err *err)
{
	struct scenario_at top = {b->doc, yaml_root(b->doc), "scenario"};
	const struct yaml_node *list;

	if (!scenario_list(&top, "clusters", CLUSTERS_MAX, &list, err))
		return false;
	for (const struct yaml_node *c = list != NULL ? list->child : NULL; c != NULL; c = c->next)
		if (!read_cluster(b, c, err))
			return false;
	if (list == NULL)
		names_in(b, "nodes", "cluster", policy_label_fault, &b->clusters);
	if (b->clusters.count == 0)
		add_name(b, &b->clusters, "default");
	if (b->clusters.count > CLUSTERS_MAX)
		return scenario_err(&top, NULL, err, "the nodes are in more than %u clusters", CLUSTERS_MAX);
	if (!scenario_list(&top, "priority_classes", LIMIT_CLASSES, &list, err))
		return false;
	for (const struct yaml_node *c = list != NULL ? list->child : NULL; c != NULL; c = c->next)
		if (!read_class(b, c, err))
			return false;
	names_in(b, "nodes", "model", policy_code_fault, &b->models);
	names_in(b, "tenants", "model", policy_code_fault, &b->models);
	for (const struct yaml_node *t = children(yaml_root(b->doc), "tenants"); t != NULL; t = t->next) {
		models_in_amounts(b, t);
		for (const struct yaml_node *w = children(t, "workspaces"); w != NULL; w = w->next)
			models_in_amounts(b, w);
	}
	if (b->models.count > QUANTITY_MAX_MODELS)
		return scenario_err(&top, NULL, err, "the file names %zu models, at most %d are allowed",
		                    b->models.count, QUANTITY_MAX_MODELS);
	b->nameless = b->models.count == 0;
	if (b->nameless)
		add_name(b, &b->models, "GPU");
	for (size_t i = 0; i < b->models.count; i++)
		(void)scenario_shape(b, (int32_t)i, QUOTA_WHOLE, "", UNITS_PER_GPU);
	return true;
}

/* ---- nodes ---- */

/* So many GPUs that are cut alike: they share one array of slots. */
static bool
add_gpus(struct scenario_builder *b, const struct scenario_at *at, const char *key, int64_t count,
         const struct quota_slots *slots, size_t slot_count, struct scenario_vec *ret, struct err *err)
{
	struct quota_slots *kept = quota_keep(&b->sc->memory, slot_count, sizeof(*kept));

	if ((size_t)count > SCENARIO_MAX_GPUS - b->gpu_count)
		return scenario_err(at, key, err, "brings the file to more than %u GPUs", SCENARIO_MAX_GPUS);
	memcpy(kept, slots, slot_count * sizeof(*kept));
	b->gpu_count += (size_t)count;
	for (; count > 0; count--)
		*(struct quota_gpu *)scenario_push(ret) = (struct quota_gpu){.slots = kept, .slot_count = slot_count};
	return true;
}

static bool
read_whole(struct scenario_builder *b, const struct scenario_at *at, int32_t model, struct scenario_vec *ret,
           struct err *err)
{
	struct quota_slots slots = {.shape = model, .count = 1};
	int64_t gpus = 0, replicas = 0;

	if (!scenario_i64(at, "gpus", 0, LIMIT_NODE_GPUS, &gpus, err) ||
	    !scenario_i64(at, "replicas", 2, UNITS_PER_GPU, &replicas, err))
		return false;
	if (replicas > 0 && UNITS_PER_GPU % replicas != 0)
		return scenario_err(at, "replicas", err, "does not divide the %" PRId64 " units of a GPU",
		                    UNITS_PER_GPU);
	if (replicas > 0)
		slots = (struct quota_slots){.shape = scenario_shape(b, model, QUOTA_REPLICA, "",
		                                                     UNITS_PER_GPU / replicas),
		                             .count = (int32_t)replicas};
	return gpus == 0 || add_gpus(b, at, "gpus", gpus, &slots, 1, ret, err);
}

#define PROFILES_MAX 16u

/* The instances of the GPU that is being filled. */
struct filling {
	struct quota_slots slots[PROFILES_MAX];
	size_t count;
	int64_t units;
};

static bool
flush_gpu(struct scenario_builder *b, const struct scenario_at *at, struct filling *f, struct scenario_vec *ret,
          struct err *err)
{
	if (f->count > 0 && !add_gpus(b, at, "mig", 1, f->slots, f->count, ret, err))
		return false;
	*f = (struct filling){0};
	return true;
}

/* So many instances, each on the GPU that is being filled or on the next one. */
static bool
fill(struct scenario_builder *b, const struct scenario_at *at, struct filling *f, int32_t shape, int64_t count,
     struct scenario_vec *ret, struct err *err)
{
	int64_t units = ((const struct quota_shape *)b->shapes.at)[shape].units;

	for (; count > 0; count--) {
		if (f->units + units > UNITS_PER_GPU && !flush_gpu(b, at, f, ret, err))
			return false;
		if (f->count == 0 || f->slots[f->count - 1].shape != shape)
			f->slots[f->count++].shape = shape;
		f->slots[f->count - 1].count++;
		f->units += units;
	}
	return true;
}

/* {1g.10gb: 7, 3g.40gb: 2}: as many GPUs as they need, filled in the order of the file; with `one` they are one GPU's. */
static bool
read_instances(struct scenario_builder *b, const struct scenario_at *at, const struct yaml_node *map, int32_t model,
               bool one, struct scenario_vec *ret, struct err *err)
{
	struct scenario_at in = {at->doc, map, "mig"};
	struct filling f = {0};

	if (!yaml_expect(at->doc, map, YAML_MAP, "mig", err))
		return false;
	if (map->count > PROFILES_MAX)
		return yaml_err(at->doc, map, err, "mig has %zu profiles, at most %u are allowed", map->count,
		                PROFILES_MAX);
	for (const struct yaml_node *c = map->child; c != NULL; c = c->next) {
		struct err why = {0};
		int64_t units, count;

		if (!quantity_profile_units(scenario_model_name(b, model), c->key, &units, &why))
			return yaml_err(at->doc, c, err, "mig: %s", why.text);
		if (!yaml_i64(at->doc, map, c->key, 1, LIMIT_NODE_GPUS, &count, err))
			return false;
		if (one && f.units + count * units > UNITS_PER_GPU)
			return scenario_err(&in, c->key, err, "brings the instances to more than one GPU");
		if (!fill(b, at, &f, scenario_shape(b, model, QUOTA_MIG, c->key, units), count, ret, err))
			return false;
	}
	return flush_gpu(b, at, &f, ret, err);
}

static bool
read_mig(struct scenario_builder *b, const struct scenario_at *at, int32_t model, struct scenario_vec *ret,
         struct err *err)
{
	const struct yaml_node *n = yaml_get(at->map, "mig");

	if (n == NULL)
		return true;
	if (n->kind != YAML_LIST)
		return read_instances(b, at, n, model, false, ret, err);
	for (const struct yaml_node *c = n->child; c != NULL; c = c->next)
		if (!read_instances(b, at, c, model, true, ret, err))
			return false;
	return true;
}

static bool
read_owner(struct scenario_builder *b, const struct scenario_at *at, int32_t *ret, struct err *err)
{
	bool shared = false;
	const char *text;

	if (!scenario_bool(at, "shared", &shared, err))
		return false;
	if (shared == (yaml_get(at->map, "tenant") != NULL))
		return scenario_err(at, NULL, err, "exactly one of tenant: NAME and shared: true is needed");
	*ret = QUOTA_NONE;
	if (shared)
		return true;
	if (!yaml_str(at->doc, at->map, "tenant", &text, err))
		return false;
	*ret = scenario_find_tenant(b, text);
	return *ret != QUOTA_NONE || scenario_err(at, "tenant", err, "is not a tenant of this file");
}

static bool
read_node(struct scenario_builder *b, const struct yaml_node *n, struct err *err)
{
	static const char *const keys[] = {"name", "cluster",  "tenant", "shared", "model",
	                                   "gpus", "replicas", "mig",    "lost",   NULL};
	struct scenario_at at = {b->doc, n, "node"};
	struct quota_node node = {0};
	owned(mem) char *name = NULL;
	struct scenario_vec gpus = {.size = sizeof(struct quota_gpu)};
	int32_t model;
	bool ok;

	if (!scenario_map(&at, keys, err) || !scenario_text(&at, "name", policy_node_fault, true, &name, err))
		return false;
	if (scenario_find_node(b, name) != QUOTA_NONE)
		return scenario_err(&at, "name", err, "is there twice");
	if (!scenario_cluster(b, &at, &node.cluster, err) || !read_owner(b, &at, &node.tenant, err) ||
	    !scenario_bool(&at, "lost", &node.lost, err))
		return false;
	if (yaml_get(n, "model") == NULL && b->models.count > 1)
		return scenario_err(&at, NULL, err, "the key model is missing; this file has several models");
	if (!scenario_model(b, &at, QUOTA_NONE, &model, err))
		return false;
	ok = read_whole(b, &at, model, &gpus, err) && read_mig(b, &at, model, &gpus, err);
	node.gpus = scenario_keep_list(b, &gpus);
	node.gpu_count = gpus.count;
	mem_free(gpus.at);
	if (!ok)
		return false;
	if (gpus.count == 0)
		return scenario_err(&at, NULL, err, "it has no GPUs: gpus or mig is needed");
	node.name = scenario_keep_text(b, name);
	*(struct quota_node *)scenario_push(&b->nodes) = node;
	return true;
}

/* ---- a tenant without nodes: one of `capacity` GPUs, or of the sum of reservations ---- */

/* Of one model: whole GPUs, or instances where all amounts are in the same profile. */
struct capacity {
	int64_t units;
	char profile[32];
	bool mixed;
};

static bool
add_amounts(struct scenario_builder *b, const struct scenario_at *at, const char *key, int32_t preset,
            struct capacity *sums, struct err *err)
{
	struct quantities all;
	struct err why = {0};

	if (!scenario_amounts(at, key, &all, err))
		return false;
	for (size_t i = 0; i < all.count; i++) {
		int32_t model = all.at[i].model[0] ? scenario_find_name(&b->models, all.at[i].model) : preset;
		struct capacity *sum;
		int64_t units;

		if (model == QUOTA_NONE)
			return scenario_err(at, key, err,
			                    "is for which model? There are several: write {MODEL: amount}");
		if (!quantity_units(&all.at[i], scenario_model_name(b, model), &units, &why))
			return scenario_err(at, key, err, "cannot be had: %s", why.text);
		if (units > LIMIT_NODE_GPUS * UNITS_PER_GPU)
			return scenario_err(at, key, err, "is more than the %d GPUs that a node may have",
			                    LIMIT_NODE_GPUS);
		sum = &sums[model];
		sum->mixed |= sum->units > 0 && strcmp(sum->profile, all.at[i].profile) != 0;
		memcpy(sum->profile, all.at[i].profile, sizeof(sum->profile));
		sum->units += units;
	}
	return true;
}

static bool
add_capacity(struct scenario_builder *b, const struct scenario_at *at, int32_t model, const struct capacity *c,
             struct scenario_vec *ret, struct err *err)
{
	struct quota_slots whole = {.shape = model, .count = 1};
	struct filling f = {0};
	int64_t each;

	if (c->units == 0)
		return true;
	if (c->mixed || c->profile[0] == '\0')
		return add_gpus(b, at, NULL, (c->units + UNITS_PER_GPU - 1) / UNITS_PER_GPU, &whole, 1, ret, err);
	return quantity_profile_units(scenario_model_name(b, model), c->profile, &each, err) &&
	       fill(b, at, &f, scenario_shape(b, model, QUOTA_MIG, c->profile, each), c->units / each, ret, err) &&
	       flush_gpu(b, at, &f, ret, err);
}

static bool
default_node(struct scenario_builder *b, const struct yaml_node *tenant, int32_t index, struct err *err)
{
	struct scenario_at at = {b->doc, tenant, "tenant"};
	const char *name = ((const struct quota_tenant *)b->tenants.at)[index].name;
	struct capacity sums[QUANTITY_MAX_MODELS] = {0};
	int32_t preset = b->models.count == 1 ? 0 : QUOTA_NONE;
	struct scenario_vec gpus = {.size = sizeof(struct quota_gpu)};
	bool ok = true;

	if (yaml_get(tenant, "model") != NULL && !scenario_model(b, &at, index, &preset, err))
		return false;
	if (!add_amounts(b, &at, "capacity", preset, sums, err))
		return false;
	for (const struct yaml_node *w = yaml_get(tenant, "capacity") ? NULL : children(tenant, "workspaces");
	     w != NULL; w = w->next) {
		struct scenario_at in = {b->doc, w, "workspace"};

		if (!add_amounts(b, &in, "reserved", preset, sums, err))
			return false;
	}
	for (size_t i = 0; i < b->models.count && ok; i++)
		ok = add_capacity(b, &at, (int32_t)i, &sums[i], &gpus, err);
	if (gpus.count > 0)
		*(struct quota_node *)scenario_push(&b->nodes) = (struct quota_node){
			.name = name, .tenant = index, .gpus = scenario_keep_list(b, &gpus), .gpu_count = gpus.count};
	mem_free(gpus.at);
	return ok;
}

static bool
default_nodes(struct scenario_builder *b, struct err *err)
{
	int32_t i = 0;

	for (const struct yaml_node *c = children(yaml_root(b->doc), "tenants"); c != NULL; c = c->next)
		if (!default_node(b, c, i++, err))
			return false;
	return true;
}

bool
scenario_read_nodes(struct scenario_builder *b, struct err *err)
{
	struct scenario_at top = {b->doc, yaml_root(b->doc), "scenario"};
	const struct yaml_node *list;

	if (!scenario_list(&top, "nodes", NODES_MAX, &list, err))
		return false;
	if (list == NULL)
		return default_nodes(b, err);
	for (const struct yaml_node *t = children(top.map, "tenants"); t != NULL; t = t->next)
		if (yaml_get(t, "capacity") != NULL)
			return yaml_err(b->doc, yaml_get(t, "capacity"), err,
			                "tenant capacity is for files without nodes; here the nodes say it");
	for (const struct yaml_node *c = list->child; c != NULL; c = c->next)
		if (!read_node(b, c, err))
			return false;
	return true;
}
