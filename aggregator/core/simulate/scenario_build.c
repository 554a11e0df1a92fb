/* aggregator/core/simulate/scenario_build.c - typed values of a scenario file, and the lists that are built from them. */
#include "aggregator/core/simulate/scenario_build.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "aggregator/core/policy/policy_fields.h"
#include "aggregator/core/quota/engine/quota.h"
#include "common/base/text.h"
#include "common/base/time.h"

/* ---- typed values ---------------------------------------------------------------------------------------------------------- */

#define SHOWN_MAX 80
#define ID_MAX (QUOTA_ID_SIZE - 1u)

bool
scenario_err(const struct scenario_at *at, const char *key, struct err *err, const char *fmt, ...)
{
	const struct yaml_node *n = key != NULL ? yaml_get(at->map, key) : NULL;
	char said[512];
	va_list args;

	va_start(args, fmt);
	vsnprintf(said, sizeof(said), fmt, args);
	va_end(args);
	if (n == NULL)
		return yaml_err(at->doc, at->map, err, "%s: %s", at->what, said);
	if (n->kind != YAML_SCALAR)
		return yaml_err(at->doc, n, err, "%s %s %s", at->what, key, said);
	return yaml_err(at->doc, n, err, "%s %s \"%.*s\" %s", at->what, key, SHOWN_MAX, n->text, said);
}

bool
scenario_map(const struct scenario_at *at, const char *const *keys, struct err *err)
{
	return yaml_expect(at->doc, at->map, YAML_MAP, at->what, err) && yaml_only_keys(at->doc, at->map, keys, err);
}

bool
scenario_text(const struct scenario_at *at, const char *key, const char *(*fault)(const char *), bool required,
              char **ret, struct err *err)
{
	const char *text, *reason;

	if (yaml_get(at->map, key) == NULL)
		return !required || scenario_err(at, key, err, "the key %s is missing", key);
	if (!yaml_str(at->doc, at->map, key, &text, err))
		return false;
	reason = fault(text);
	if (reason != NULL)
		return scenario_err(at, key, err, "%s", reason);
	mem_free(*ret);
	*ret = mem_strdup(text);
	return true;
}

bool
scenario_choice(const struct scenario_at *at, const char *key, const char *const *words, int *ret, struct err *err)
{
	in_place(buf) struct buf listed = {0};
	const char *text;

	buf_init(&listed, 256);
	if (yaml_get(at->map, key) == NULL)
		return true;
	if (!yaml_str(at->doc, at->map, key, &text, err))
		return false;
	for (int i = 0; words[i] != NULL; i++) {
		if (strcmp(words[i], text) == 0) {
			*ret = i;
			return true;
		}
		buf_printf(&listed, "%s%s", i > 0 ? ", " : "", words[i]);
	}
	return scenario_err(at, key, err, "is not one of %s", buf_text(&listed));
}

bool
scenario_i64(const struct scenario_at *at, const char *key, int64_t min, int64_t max, int64_t *ret, struct err *err)
{
	return yaml_get(at->map, key) == NULL || yaml_i64(at->doc, at->map, key, min, max, ret, err);
}

bool
scenario_bool(const struct scenario_at *at, const char *key, bool *ret, struct err *err)
{
	return yaml_get(at->map, key) == NULL || yaml_bool(at->doc, at->map, key, ret, err);
}

bool
scenario_duration(const struct scenario_at *at, const char *key, int64_t max_ns, int64_t *ret_ns, struct err *err)
{
	char most[TIME_TEXT_SIZE];
	struct err why = {0};
	const char *text;

	if (yaml_get(at->map, key) == NULL)
		return true;
	if (!yaml_str(at->doc, at->map, key, &text, err))
		return false;
	if (strcmp(text, "0") == 0) {
		*ret_ns = 0;
		return true;
	}
	if (!duration_parse(text, ret_ns, &why))
		return scenario_err(at, key, err, "is not a duration such as 90s, 10m or 7d");
	if (*ret_ns > max_ns)
		return scenario_err(at, key, err, "is more than %s", duration_format(max_ns, most));
	return true;
}

bool
scenario_list(const struct scenario_at *at, const char *key, size_t max, const struct yaml_node **ret, struct err *err)
{
	const struct yaml_node *n = yaml_get(at->map, key);

	*ret = n;
	if (n == NULL)
		return true;
	if (!yaml_expect(at->doc, n, YAML_LIST, key, err))
		return false;
	if (n->count > max)
		return yaml_err(at->doc, n, err, "%s has %zu entries, at most %zu are allowed", key, n->count, max);
	return true;
}

bool
scenario_amounts(const struct scenario_at *at, const char *key, struct quantities *ret, struct err *err)
{
	const struct yaml_node *n = yaml_get(at->map, key);
	struct err why = {0};

	*ret = (struct quantities){0};
	if (n == NULL)
		return true;
	if (n->kind != YAML_SCALAR)
		return quantity_read(at->doc, n, ret, err);
	ret->count = 1;
	return quantity_parse(n->text, &ret->at[0], &why) ||
	       yaml_err(at->doc, n, err, "%s %s %s", at->what, key, why.text);
}

const char *
scenario_id_fault(const char *text)
{
	size_t len = strnlen(text, ID_MAX + 1);

	if (len == 0)
		return "is empty";
	if (len > ID_MAX)
		return "has more than 63 characters";
	return text_is_clean(text) && strchr(text, ' ') == NULL
	               ? NULL
	               : "has a space, a control or a direction character, or is not UTF-8";
}

const char *
scenario_path_fault(const char *text)
{
	static const char fault[] = "is not of the form TENANT/WORKSPACE";
	const char *slash = strchr(text, '/');
	char tenant[64];

	if (slash == NULL || slash - text >= (ptrdiff_t)sizeof(tenant))
		return fault;
	memcpy(tenant, text, (size_t)(slash - text));
	tenant[slash - text] = '\0';
	return policy_label_fault(tenant) == NULL && policy_label_fault(slash + 1) == NULL ? NULL : fault;
}

/* ---- lists ----------------------------------------------------------------------------------------------------------------- */

void *
scenario_push(struct scenario_vec *v)
{
	char *last;

	if (v->count == v->cap)
		v->at = mem_double(v->at, &v->cap, v->size);
	last = (char *)v->at + v->count++ * v->size;
	memset(last, 0, v->size);
	return last;
}

const char *
scenario_keep_text(struct scenario_builder *b, const char *text)
{
	return quota_keep_text(&b->sc->memory, text);
}

void *
scenario_keep_list(struct scenario_builder *b, const struct scenario_vec *v)
{
	void *copy;

	if (v->count == 0)
		return NULL;
	copy = quota_keep(&b->sc->memory, v->count, v->size);
	memcpy(copy, v->at, v->count * v->size);
	return copy;
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

void
scenario_policy(struct scenario_builder *b, struct quota_policy *ret)
{
	*ret = (struct quota_policy){
		.settings = b->sc->world.policy.settings,
		.clusters = scenario_keep_list(b, &b->clusters),
		.cluster_count = b->clusters.count,
		.models = scenario_keep_list(b, &b->models),
		.model_count = b->models.count,
		.class_count = b->classes.count,
		.shapes = scenario_keep_list(b, &b->shapes),
		.shape_count = b->shapes.count,
		.tenants = scenario_keep_list(b, &b->tenants),
		.tenant_count = b->tenants.count,
		.workspaces = scenario_keep_list(b, &b->workspaces),
		.workspace_count = b->workspaces.count,
		.shares = scenario_keep_list(b, &b->shares),
		.share_count = b->shares.count,
		.caps = scenario_keep_list(b, &b->caps),
		.cap_count = b->caps.count,
		.budgets = scenario_keep_list(b, &b->budgets),
		.budget_count = b->budgets.count,
	};
}
