/* aggregator/core/simulate/scenario_policy.c - the tenants and workspaces of a scenario file, with their rights. */
#include <string.h>

#include "aggregator/core/rating/budget.h"
#include "aggregator/core/policy/policy_fields.h"
#include "aggregator/core/simulate/scenario_build.h"
#include "common/base/money.h"

#define TENANTS_MAX 10000u
#define WORKSPACES_MAX 10000u /* of one tenant */
#define WEIGHT_MAX 1000000
#define BUDGET_HOURS_MAX 100000000
#define MONEY_SCALE 2

/* ---- amounts ---- */

/* The amount under a key for one model, and the MIG shape it is given in. A missing key, or none for this model, leaves
 * *ret_units as it is. */
static bool
amount(struct scenario_builder *b, const struct scenario_at *at, const char *key, int32_t model, int64_t *ret_units,
       int32_t *ret_shape, struct err *err)
{
	const struct yaml_node *n = yaml_get(at->map, key);
	const char *name = scenario_model_name(b, model);
	const struct quantity *q;
	struct quantities all;
	struct err why = {0};
	int64_t each;

	if (n == NULL)
		return true;
	if (!scenario_amounts(at, key, &all, err))
		return false;
	q = quantity_for(&all, ((const char *const *)b->models.at)[model]);
	if (q == NULL)
		return true;
	if (!quantity_units(q, name, ret_units, &why))
		return scenario_err(at, key, err, "cannot be had: %s", why.text);
	if (ret_shape == NULL)
		return true;
	*ret_shape = QUOTA_NONE;
	if (q->profile[0] != '\0') {
		if (!quantity_profile_units(name, q->profile, &each, err))
			return false;
		*ret_shape = scenario_shape(b, model, QUOTA_MIG, q->profile, each);
	}
	return true;
}

static bool
pool_has(const struct scenario_builder *b, int32_t tenant, int32_t cluster, int32_t model)
{
	const struct quota_node *nodes = b->nodes.at;
	const struct quota_shape *shapes = b->shapes.at;

	for (size_t i = 0; i < b->nodes.count; i++)
		if (nodes[i].tenant == tenant && nodes[i].cluster == cluster)
			for (size_t g = 0; g < nodes[i].gpu_count; g++)
				if (shapes[nodes[i].gpus[g].slots[0].shape].model == model)
					return true;
	return false;
}

/* A reservation without a model must be for one pool: for several pools it would be ambiguous. */
static bool
check_models(struct scenario_builder *b, const struct scenario_at *at, const char *key, int32_t tenant, int32_t cluster,
             struct err *err)
{
	const struct yaml_node *n = yaml_get(at->map, key);
	size_t models = 0;

	if (n == NULL || n->kind == YAML_MAP) {
		for (const struct yaml_node *c = n != NULL ? n->child : NULL; c != NULL; c = c->next)
			if (scenario_find_name(&b->models, c->key) == QUOTA_NONE)
				return yaml_err(at->doc, c, err, "%s %s: \"%.60s\" is not a model of this file",
				                at->what, key, c->key);
		return true;
	}
	for (size_t i = 0; i < b->models.count; i++)
		models += pool_has(b, tenant, cluster, (int32_t)i);
	return (models == 0 ? b->models.count : models) == 1 ||
	       scenario_err(at, key, err, "is for which model? There are several: write {MODEL: amount}");
}

static struct quota_share *
share_of(struct scenario_builder *b, int32_t workspace, int32_t cluster, int32_t model, bool shared)
{
	struct quota_share *s = b->shares.at;

	for (size_t i = b->shares.count; i-- > 0;)
		if (s[i].workspace == workspace && s[i].cluster == cluster && s[i].model == model &&
		    s[i].shared == shared)
			return &s[i];
	s = scenario_push(&b->shares);
	*s = (struct quota_share){.workspace = workspace,
	                          .cluster = cluster,
	                          .model = model,
	                          .shared = shared,
	                          .reserved_shape = QUOTA_NONE,
	                          .limit = QUOTA_DEFAULT,
	                          .borrow = QUOTA_DEFAULT,
	                          .lend = QUOTA_DEFAULT};
	return s;
}

/* The keys of one pool of a workspace. Every quantity is per pool: limit, borrow and lend hold in each of the two, unless the
 * shared one has its own. */
static bool
read_share(struct scenario_builder *b, const struct scenario_at *at, int32_t workspace, int32_t cluster, bool shared,
           struct err *err)
{
	static const char *const own[] = {"reserved", "limit", "borrow", "lend"};
	static const char *const common[] = {"reserved_shared", "limit_shared", "borrow_shared", "lend_shared"};
	int32_t tenant = ((const struct quota_workspace *)b->workspaces.at)[workspace].tenant;
	const char *key[4];

	for (int k = 0; k < 4; k++)
		key[k] = shared && (k == 0 || yaml_get(at->map, common[k]) != NULL) ? common[k] : own[k];
	if (!check_models(b, at, key[0], shared ? QUOTA_NONE : tenant, cluster, err))
		return false;
	for (size_t i = 0; i < b->models.count; i++) {
		int32_t model = (int32_t)i;
		bool here = pool_has(b, shared ? QUOTA_NONE : tenant, cluster, model), given = false;
		struct quota_share *s;
		int64_t units[4] = {0, QUOTA_DEFAULT, QUOTA_DEFAULT, QUOTA_DEFAULT};
		int32_t shape = QUOTA_NONE;

		for (int k = 0; k < 4; k++) {
			const struct yaml_node *n = yaml_get(at->map, key[k]);

			given |= n != NULL &&
			         (here ||
			          (n->kind == YAML_MAP ? yaml_get(n, ((const char *const *)b->models.at)[i]) != NULL
			                               : k == 0 && b->models.count == 1));
		}
		if (!given)
			continue;
		s = share_of(b, workspace, cluster, model, shared);
		memcpy(units, (int64_t[4]){s->reserved, s->limit, s->borrow, s->lend}, sizeof(units));
		shape = s->reserved_shape;
		if (!amount(b, at, key[0], model, &units[0], &shape, err) ||
		    !amount(b, at, key[1], model, &units[1], NULL, err) ||
		    !amount(b, at, key[2], model, &units[2], NULL, err) ||
		    !amount(b, at, key[3], model, &units[3], NULL, err))
			return false;
		if (units[0] == QUOTA_UNLIMITED)
			return scenario_err(at, key[0], err, "is no amount that can be reserved");
		s->reserved = units[0];
		s->limit = units[1];
		s->borrow = units[2];
		s->lend = units[3];
		s->reserved_shape = shape;
	}
	return true;
}

/* ---- other limits, guardrails, budgets ---- */

static bool
read_others(const struct scenario_at *at, int64_t ret[QUOTA_OTHERS], struct err *err)
{
	struct policy_resources r;

	if (yaml_get(at->map, "limits") == NULL)
		return true;
	if (!policy_read_resources(at->doc, at->map, &r, err))
		return false;
	ret[QUOTA_CPU] = r.cpu_millis < 0 ? QUOTA_UNLIMITED : r.cpu_millis;
	ret[QUOTA_MEMORY] = r.memory_bytes < 0 ? QUOTA_UNLIMITED : r.memory_bytes;
	ret[QUOTA_STORAGE] = r.storage_bytes < 0 ? QUOTA_UNLIMITED : r.storage_bytes;
	return true;
}

static bool
read_per_workload(const struct scenario_at *at, int64_t *ret, struct err *err)
{
	int64_t gpus = -1;

	if (!scenario_i64(at, "max_per_workload", 1, QUANTITY_MAX_GPUS, &gpus, err))
		return false;
	if (gpus > 0)
		*ret = gpus * UNITS_PER_GPU;
	return true;
}

static bool
read_money(const struct scenario_at *at, const char *key, int64_t *ret, struct err *err)
{
	struct err why = {0};
	const char *text;
	int128 value;

	if (yaml_get(at->map, key) == NULL)
		return true;
	if (!yaml_str(at->doc, at->map, key, &text, err))
		return false;
	if (!decimal_parse(text, MONEY_SCALE, &value, &why) || value < 0 || value > INT64_C(1000000000000000))
		return scenario_err(at, key, err, "is not an amount of money like 1250.50, up to 10000000000000");
	*ret = (int64_t)value;
	return true;
}

/* As a policy file has it, in the engine's units. */
static bool
read_policy_budget(const struct scenario_at *at, struct quota_budget *ret, struct err *err)
{
	const int128 one = pow10_i128(PRICE_SCALE), most = INT64_C(1000000000000000000);
	struct policy_budget b = {0};
	int128 amount;

	if (!policy_read_budget(at->doc, at->map, &b, err))
		return false;
	ret->hard = strcmp(b.kind, "hard") == 0;
	ret->kind = budget_unit_is_money(b.unit) ? QUOTA_BUDGET_MONEY
	            : b.unit[0] != '\0'          ? QUOTA_BUDGET_TOKENS
	                                         : QUOTA_BUDGET_UNIT_SECONDS;
	amount = b.amount / one *
	                 (ret->kind == QUOTA_BUDGET_MONEY    ? 100
	                  : ret->kind == QUOTA_BUDGET_TOKENS ? 1
	                                                     : UNITS_PER_GPU * 3600) +
	         b.amount % one *
	                 (ret->kind == QUOTA_BUDGET_MONEY    ? 100
	                  : ret->kind == QUOTA_BUDGET_TOKENS ? 1
	                                                     : UNITS_PER_GPU * 3600) /
	                 one;
	ret->amount = (int64_t)(amount < most ? amount : most);
	return true;
}

/* budget: {gpu_hours: 1000, consumed: 10, hard: true}, {money: 1000.00, ...} or {tokens: 5000000, ...}; consumed is in the same unit. Without money,
 * consumed and hard it is a policy file's. */
static bool
read_budget(struct scenario_builder *b, const struct scenario_at *at, int32_t tenant, int32_t workspace,
            struct err *err)
{
	static const char *const keys[] = {"gpu_hours", "money", "tokens", "consumed", "hard", NULL};
	struct scenario_at in = {at->doc, yaml_get(at->map, "budget"), "budget"};
	struct quota_budget budget = {.tenant = tenant, .workspace = workspace, .hard = true};
	bool hours, money, tokens;

	if (in.map == NULL)
		return true;
	hours = yaml_get(in.map, "gpu_hours") != NULL;
	money = yaml_get(in.map, "money") != NULL;
	tokens = yaml_get(in.map, "tokens") != NULL;
	if (!money && yaml_get(in.map, "consumed") == NULL && yaml_get(in.map, "hard") == NULL) {
		if (!read_policy_budget(at, &budget, err))
			return false;
	} else if (!scenario_map(&in, keys, err) || !scenario_bool(&in, "hard", &budget.hard, err)) {
		return false;
	} else if (hours + money + tokens != 1) {
		return scenario_err(&in, NULL, err, "exactly one of gpu_hours, money and tokens is needed");
	} else if (tokens) {
		budget.kind = QUOTA_BUDGET_TOKENS;
		if (!scenario_i64(&in, "tokens", 0, POLICY_MAX_TOKENS, &budget.amount, err) ||
		    !scenario_i64(&in, "consumed", 0, POLICY_MAX_TOKENS, &budget.consumed, err))
			return false;
	} else if (hours) {
		if (!scenario_i64(&in, "gpu_hours", 0, BUDGET_HOURS_MAX, &budget.amount, err) ||
		    !scenario_i64(&in, "consumed", 0, BUDGET_HOURS_MAX, &budget.consumed, err))
			return false;
		budget.amount *= UNITS_PER_GPU * 3600;
		budget.consumed *= UNITS_PER_GPU * 3600;
	} else {
		budget.kind = QUOTA_BUDGET_MONEY;
		if (!read_money(&in, "money", &budget.amount, err) ||
		    !read_money(&in, "consumed", &budget.consumed, err))
			return false;
	}
	for (size_t i = 0; i < b->budgets.count; i++) {
		struct quota_budget *old = (struct quota_budget *)b->budgets.at + i;

		if (old->tenant == tenant && old->workspace == workspace) {
			*old = budget;
			return true;
		}
	}
	*(struct quota_budget *)scenario_push(&b->budgets) = budget;
	return true;
}

static bool
read_classes(struct scenario_builder *b, const struct scenario_at *at, struct quota_class_set *ret, struct err *err)
{
	const struct scenario_class *all = b->classes.at;
	const struct yaml_node *list;

	if (!policy_read_class_names(at->doc, at->map, &list, err))
		return false;
	if (list == NULL)
		return true;
	*ret = (struct quota_class_set){.only = true};
	for (const struct yaml_node *c = list->child; c != NULL; c = c->next) {
		size_t i = 0;

		while (i < b->classes.count && strcmp(all[i].name, c->text) != 0)
			i++;
		if (i == b->classes.count)
			return yaml_err(at->doc, c, err, "\"%.60s\" is not a priority class of this file", c->text);
		quota_class_allow(ret, (int32_t)i);
	}
	return true;
}

/* ---- tenants and workspaces ---- */

static bool
read_cap(struct scenario_builder *b, const struct scenario_at *at, int32_t tenant, int32_t cluster, struct err *err)
{
	for (size_t i = 0; i < b->models.count; i++) {
		struct quota_cap *all = b->caps.at, *cap = NULL;

		for (size_t k = 0; k < b->caps.count && !cap; k++)
			if (all[k].tenant == tenant && all[k].cluster == cluster && all[k].model == (int32_t)i)
				cap = &all[k];
		if (!cap) {
			cap = scenario_push(&b->caps);
			*cap = (struct quota_cap){tenant, cluster, (int32_t)i, QUOTA_UNLIMITED, QUOTA_DEFAULT};
		}
		if (!amount(b, at, "maximum", (int32_t)i, &cap->maximum, NULL, err) ||
		    !amount(b, at, "default_limit", (int32_t)i, &cap->default_limit, NULL, err))
			return false;
	}
	return true;
}

bool
scenario_read_tenant_quota(struct scenario_builder *b, const struct scenario_at *at, int32_t tenant, struct err *err)
{
	static const char *const isolations[] = {"shared", "mig", "gpu", "node", NULL};
	struct quota_tenant *t = (struct quota_tenant *)b->tenants.at + tenant;
	int isolation = (int)t->isolation;

	if (!scenario_choice(at, "isolation", isolations, &isolation, err) || !read_others(at, t->other_limit, err) ||
	    !read_per_workload(at, &t->per_workload_units, err) || !read_classes(b, at, &t->classes, err) ||
	    !read_budget(b, at, tenant, QUOTA_NONE, err))
		return false;
	t->isolation = (enum quota_isolation)isolation;
	if (yaml_get(at->map, "maximum") == NULL && yaml_get(at->map, "default_limit") == NULL)
		return true;
	for (size_t i = 0; i < b->clusters.count; i++)
		if (!read_cap(b, at, tenant, (int32_t)i, err))
			return false;
	return true;
}

bool
scenario_read_workspace_quota(struct scenario_builder *b, const struct scenario_at *at, int32_t workspace,
                              struct err *err)
{
	static const char *const reclaims[] = {"any", "lower", "never", NULL};
	static const char *const preempts[] = {"never", "lower", NULL};
	static const char *const enforces[] = {"on", "warn", "off", NULL};
	struct quota_workspace *w = (struct quota_workspace *)b->workspaces.at + workspace;
	int reclaim = (int)w->reclaim, preempt = w->preempt_own, enforce = (int)w->enforce;
	int64_t idle_ns = -1;
	int32_t *home = (int32_t *)b->homes.at + workspace;

	if (!scenario_choice(at, "reclaim", reclaims, &reclaim, err) ||
	    !scenario_choice(at, "preempt_own", preempts, &preempt, err) ||
	    !scenario_choice(at, "enforce", enforces, &enforce, err) ||
	    !scenario_i64(at, "weight", 1, WEIGHT_MAX, &w->weight, err) || !read_others(at, w->other_limit, err) ||
	    !read_per_workload(at, &w->per_workload_units, err) || !read_budget(b, at, w->tenant, workspace, err) ||
	    !scenario_cluster(b, at, home, err) || !scenario_duration(at, "idle_timeout", INT64_MAX, &idle_ns, err))
		return false;
	w->reclaim = (enum quota_reclaim)reclaim;
	w->preempt_own = preempt == 1;
	w->enforce = (enum quota_enforce)enforce;
	if (idle_ns >= 0)
		buf_printf(&b->sc->warnings,
		           "%s:%d: idle_timeout of workspace \"%s\" has no effect: a scenario has no telemetry\n",
		           yaml_name(at->doc), at->map->line, w->name);
	return read_share(b, at, workspace, *home, false, err) && read_share(b, at, workspace, *home, true, err);
}

static bool
read_workspace(struct scenario_builder *b, const struct yaml_node *n, int32_t tenant, size_t first, struct err *err)
{
	static const char *const keys[] = {
		"name",        "description",      "cluster",     "reserved",      "reserved_shared",
		"limit",       "limit_shared",     "borrow",      "borrow_shared", "lend",
		"lend_shared", "reclaim",          "preempt_own", "weight",        "enforce",
		"limits",      "max_per_workload", "budget",      "idle_timeout",  "sla",
		NULL};
	struct scenario_at at = {b->doc, n, "workspace"};
	const struct quota_workspace *all;
	struct quota_workspace *w;
	struct policy_sla promised; /* nothing is decided by it */
	owned(mem) char *name = NULL;

	if (!scenario_map(&at, keys, err) || !scenario_text(&at, "name", policy_label_fault, true, &name, err) ||
	    !policy_read_sla(b->doc, n, &promised, err))
		return false;
	all = b->workspaces.at;
	for (size_t i = first; i < b->workspaces.count; i++)
		if (strcmp(all[i].name, name) == 0)
			return scenario_err(&at, "name", err, "is there twice");
	w = scenario_push(&b->workspaces);
	*w = (struct quota_workspace){
		.name = scenario_keep_text(b, name),
		.tenant = tenant,
		.preempt_own = true,
		.weight = 1,
		.per_workload_units = QUOTA_UNLIMITED,
		.other_limit = {QUOTA_UNLIMITED, QUOTA_UNLIMITED, QUOTA_UNLIMITED},
	};
	(void)scenario_push(&b->homes);
	return scenario_read_workspace_quota(b, &at, (int32_t)b->workspaces.count - 1, err);
}

bool
scenario_read_tenant_names(struct scenario_builder *b, struct err *err)
{
	struct scenario_at top = {b->doc, yaml_root(b->doc), "scenario"};
	const struct yaml_node *list;

	if (!scenario_list(&top, "tenants", TENANTS_MAX, &list, err))
		return false;
	if (list == NULL)
		return scenario_err(&top, NULL, err, "the key tenants is missing");
	for (const struct yaml_node *c = list->child; c != NULL; c = c->next) {
		struct scenario_at at = {b->doc, c, "tenant"};
		owned(mem) char *name = NULL;

		if (!yaml_expect(b->doc, c, YAML_MAP, "a tenant", err) ||
		    !scenario_text(&at, "name", policy_label_fault, true, &name, err))
			return false;
		if (scenario_find_tenant(b, name) != QUOTA_NONE)
			return scenario_err(&at, "name", err, "is there twice");
		*(struct quota_tenant *)scenario_push(&b->tenants) = (struct quota_tenant){
			.name = scenario_keep_text(b, name),
			.per_workload_units = QUOTA_UNLIMITED,
			.other_limit = {QUOTA_UNLIMITED, QUOTA_UNLIMITED, QUOTA_UNLIMITED},
		};
	}
	return true;
}

static bool
read_tenant(struct scenario_builder *b, const struct yaml_node *n, int32_t tenant, struct err *err)
{
	static const char *const keys[] = {"name",    "description",      "model",     "capacity",
	                                   "maximum", "default_limit",    "isolation", "priority_classes",
	                                   "limits",  "max_per_workload", "budget",    "workspaces",
	                                   "sla",     "data_boundary",    NULL};
	struct scenario_at at = {b->doc, n, "tenant"};
	const struct yaml_node *list;
	size_t first = b->workspaces.count;
	struct policy_sla promised; /* nothing is decided by it, nor by the boundary */
	owned(mem) char *boundary = NULL;

	if (!scenario_map(&at, keys, err) || !policy_read_sla(b->doc, n, &promised, err) ||
	    !policy_read_text(b->doc, n, "data_boundary", "", POLICY_MAX_BOUNDARY, &boundary, err) ||
	    !scenario_read_tenant_quota(b, &at, tenant, err) ||
	    !scenario_list(&at, "workspaces", WORKSPACES_MAX, &list, err))
		return false;
	for (const struct yaml_node *c = list != NULL ? list->child : NULL; c != NULL; c = c->next)
		if (!read_workspace(b, c, tenant, first, err))
			return false;
	return true;
}

bool
scenario_read_tenants(struct scenario_builder *b, struct err *err)
{
	struct scenario_at top = {b->doc, yaml_root(b->doc), "scenario"};
	const struct yaml_node *list = yaml_get(top.map, "clusters");
	int32_t i = 0;

	for (const struct yaml_node *c = list != NULL ? list->child : NULL; c != NULL; c = c->next, i++) {
		struct scenario_at at = {b->doc, c, "cluster"};

		if (yaml_get(c, "maximum") != NULL && !read_cap(b, &at, QUOTA_NONE, i, err))
			return false;
	}
	i = 0;
	for (const struct yaml_node *c = yaml_get(top.map, "tenants")->child; c != NULL; c = c->next)
		if (!read_tenant(b, c, i++, err))
			return false;
	return true;
}
