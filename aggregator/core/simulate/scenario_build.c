/* aggregator/core/simulate/scenario_build.c - the lists of a scenario while its file is read: names and things by name. */
#include "aggregator/core/simulate/scenario_build.h"

#include <string.h>

void *
scenario_push(struct scenario_vec *v)
{
	char *last;

	if (v->count == v->cap) {
		v->cap = v->cap > 0 ? 2 * v->cap : 16;
		v->at = mem_grow(v->at, v->cap, v->size);
	}
	last = (char *)v->at + v->count++ * v->size;
	memset(last, 0, v->size);
	return last;
}

void *
scenario_keep(struct scenario_builder *b, void *memory)
{
	*(void **)scenario_push(&b->kept) = memory;
	return memory;
}

const char *
scenario_keep_text(struct scenario_builder *b, const char *text)
{
	return scenario_keep(b, mem_strdup(text));
}

const char *
scenario_model_name(const struct scenario_builder *b, int32_t model)
{
	return b->nameless ? "" : ((const char *const *)b->models.at)[model];
}

int32_t
scenario_find_name(const struct scenario_vec *names, const char *name)
{
	for (size_t i = 0; i < names->count; i++)
		if (strcmp(((const char *const *)names->at)[i], name) == 0)
			return (int32_t)i;
	return QUOTA_NONE;
}

int32_t
scenario_find_tenant(const struct scenario_builder *b, const char *name)
{
	const struct quota_tenant *t = b->tenants.at;

	for (size_t i = 0; i < b->tenants.count; i++)
		if (strcmp(t[i].name, name) == 0)
			return (int32_t)i;
	return QUOTA_NONE;
}

int32_t
scenario_find_node(const struct scenario_builder *b, const char *name)
{
	const struct quota_node *n = b->nodes.at;

	for (size_t i = 0; i < b->nodes.count; i++)
		if (strcmp(n[i].name, name) == 0)
			return (int32_t)i;
	return QUOTA_NONE;
}

int32_t
scenario_shape(struct scenario_builder *b, int32_t model, enum quota_shape_kind kind, const char *name, int64_t units)
{
	struct quota_shape *s = b->shapes.at;

	for (size_t i = 0; i < b->shapes.count; i++)
		if (s[i].model == model && s[i].kind == kind && s[i].units == units && strcmp(s[i].name, name) == 0)
			return (int32_t)i;
	s = scenario_push(&b->shapes);
	*s = (struct quota_shape){.model = model, .kind = kind, .units = units, .name = scenario_keep_text(b, name)};
	return (int32_t)b->shapes.count - 1;
}

bool
scenario_workspace(struct scenario_builder *b, const struct scenario_at *at, int32_t *ret, struct err *err)
{
	const struct quota_workspace *w = b->workspaces.at;
	const struct quota_tenant *tenants = b->tenants.at;
	owned(mem) char *path = NULL;
	const char *slash;

	if (!scenario_text(at, "workspace", scenario_path_fault, true, &path, err))
		return false;
	slash = strchr(path, '/');
	for (size_t i = 0; i < b->workspaces.count; i++) {
		const char *tenant = tenants[w[i].tenant].name;

		if (strcmp(w[i].name, slash + 1) == 0 && strlen(tenant) == (size_t)(slash - path) &&
		    memcmp(tenant, path, strlen(tenant)) == 0) {
			*ret = (int32_t)i;
			return true;
		}
	}
	return scenario_err(at, "workspace", err, "is not among the tenants of this file");
}

bool
scenario_cluster(struct scenario_builder *b, const struct scenario_at *at, int32_t *ret, struct err *err)
{
	const struct yaml_node *n = yaml_get(at->map, "cluster");
	const char *text;

	if (n == NULL)
		return true;
	if (!yaml_str(at->doc, at->map, "cluster", &text, err))
		return false;
	*ret = scenario_find_name(&b->clusters, text);
	return *ret != QUOTA_NONE || scenario_err(at, "cluster", err, "is not a cluster of this file");
}

/* The only model of the nodes that a tenant may use; QUOTA_NONE when there are several or none. */
static int32_t
only_model(const struct scenario_builder *b, int32_t tenant)
{
	const struct quota_node *nodes = b->nodes.at;
	const struct quota_shape *shapes = b->shapes.at;
	int32_t found = QUOTA_NONE;

	if (b->models.count == 1)
		return 0;
	for (size_t i = 0; i < b->nodes.count; i++)
		for (size_t g = 0;
		     (nodes[i].tenant == tenant || nodes[i].tenant == QUOTA_NONE) && g < nodes[i].gpu_count; g++) {
			int32_t model = shapes[nodes[i].gpus[g].slots[0].shape].model;

			if (found != QUOTA_NONE && found != model)
				return QUOTA_NONE;
			found = model;
		}
	return found;
}

bool
scenario_model(struct scenario_builder *b, const struct scenario_at *at, int32_t tenant, int32_t *ret, struct err *err)
{
	const char *text;

	if (yaml_get(at->map, "model") == NULL) {
		*ret = only_model(b, tenant);
		return *ret != QUOTA_NONE ||
		       scenario_err(at, NULL, err, "the key model is missing; this file has several models");
	}
	if (!yaml_str(at->doc, at->map, "model", &text, err))
		return false;
	*ret = scenario_find_name(&b->models, text);
	return *ret != QUOTA_NONE || scenario_err(at, "model", err, "is not a model of this file's nodes or amounts");
}

static const void *
copy_of(struct scenario_builder *b, const struct scenario_vec *v)
{
	void *copy;

	if (v->count == 0)
		return NULL;
	copy = scenario_keep(b, mem_array(v->count, v->size));
	memcpy(copy, v->at, v->count * v->size);
	return copy;
}

void
scenario_policy(struct scenario_builder *b, struct quota_policy *ret)
{
	*ret = (struct quota_policy){
		.settings = b->sc->world.policy.settings,
		.clusters = copy_of(b, &b->clusters),
		.cluster_count = b->clusters.count,
		.models = copy_of(b, &b->models),
		.model_count = b->models.count,
		.class_count = b->classes.count,
		.shapes = copy_of(b, &b->shapes),
		.shape_count = b->shapes.count,
		.tenants = copy_of(b, &b->tenants),
		.tenant_count = b->tenants.count,
		.workspaces = copy_of(b, &b->workspaces),
		.workspace_count = b->workspaces.count,
		.shares = copy_of(b, &b->shares),
		.share_count = b->shares.count,
		.caps = copy_of(b, &b->caps),
		.cap_count = b->caps.count,
		.budgets = copy_of(b, &b->budgets),
		.budget_count = b->budgets.count,
	};
}
