/* aggregator/core/policy/policy_check_quota.c - amounts, isolation and priority classes that contradict each other.
 *
 * Rules, for each model that an amount of the tenant names (or for any, where none is named):
 *  1. a reservation is a number; a limit is not below it
 *  2. what may be owed is at most the limit less the reservation, what may be lent at most the reservation
 *  3. no limit, and no sum of reservations, is beyond the tenant's maximum
 *  4. other resources of a workspace are within the tenant's
 *  5. every priority class and every cluster that is named exists
 *  6. there is a node that the tenant's isolation allows; on its own nodes alone nothing is reserved among the shared ones,
 *     and on whole GPUs alone no MIG instance is */
#include <string.h>

#include "aggregator/core/policy/policy_check.h"

/* In units; -1 when no amount is given, or it is of a profile that the model does not have. */
static int64_t
units_of(const struct policy_amounts *a, const char *model)
{
	const struct quantity *q = policy_amount_for(a, model);
	struct err ignored;
	int64_t units;

	return q != NULL && quantity_units(q, model, &units, &ignored) ? units : -1;
}

static int64_t
reserved_of(const struct policy_amounts *a, const char *model)
{
	int64_t units = units_of(a, model);

	return units > 0 ? units : 0;
}

static bool
bounded(int64_t units)
{
	return units >= 0 && units != QUANTITY_UNLIMITED;
}

struct place {
	const struct policy_tenant *tenant;
	const struct policy_workspace *workspace;
	const char *file;
	const char *model;
};

/* "FILE:LINE: workspace acme/a: limit 2 (H100) is below reserved 4" */
static bool
refuse(const struct place *at, int line, const char *field, int64_t value, const char *relation, int64_t bound,
       struct err *err)
{
	char shown[QUANTITY_TEXT_SIZE], most[QUANTITY_TEXT_SIZE];
	bool named = at->model[0] != '\0';

	return err_set(err, ERR_INVALID, "%s:%d: %s %s%s%s: %s %s%s%s%s %s %s", at->file, line,
	               at->workspace ? "workspace" : "tenant", at->tenant->name, at->workspace ? "/" : "",
	               at->workspace ? at->workspace->name : "", field, quantity_text(value, shown), named ? " (" : "",
	               at->model, named ? ")" : "", relation, quantity_text(bound, most));
}

/* Rules 1 and 2, and 3 for one limit. */
static bool
check_workspace(const struct place *at, struct err *err)
{
	const struct policy_workspace *w = at->workspace;
	int64_t own = reserved_of(&w->reserved, at->model), shared = reserved_of(&w->reserved_shared, at->model);
	int64_t reserved = own > shared ? own : shared;
	int64_t limit = units_of(&w->limit, at->model), borrow = units_of(&w->borrow, at->model);
	int64_t lend = units_of(&w->lend, at->model), maximum = units_of(&at->tenant->maximum, at->model);

	if (own == QUANTITY_UNLIMITED || shared == QUANTITY_UNLIMITED)
		return err_set(err, ERR_INVALID, "%s:%d: workspace %s/%s: reserved is none, but must be a number",
		               at->file, own == QUANTITY_UNLIMITED ? w->reserved.line : w->reserved_shared.line,
		               at->tenant->name, w->name);
	if (bounded(limit) && limit < reserved)
		return refuse(at, w->limit.line, "limit", limit, "is below reserved", reserved, err);
	if (bounded(limit) && bounded(borrow) && borrow > limit - own)
		return refuse(at, w->borrow.line, "borrow", borrow, "is more than limit less reserved,", limit - own,
		              err);
	if (bounded(lend) && lend > reserved)
		return refuse(at, w->lend.line, "lend", lend, "is more than reserved", reserved, err);
	if (bounded(limit) && bounded(maximum) && limit > maximum)
		return refuse(at, w->limit.line, "limit", limit, "is beyond the tenant's maximum", maximum, err);
	return true;
}

static bool
check_tenant_model(const struct place *at, struct err *err)
{
	const struct policy_tenant *t = at->tenant;
	int64_t maximum = units_of(&t->maximum, at->model), preset = units_of(&t->default_limit, at->model);
	struct place inside = *at;
	int64_t sum = 0;

	for (size_t i = 0; i < t->workspace_count; i++) {
		inside.workspace = &t->workspaces[i];
		if (!check_workspace(&inside, err))
			return false;
		/* at most 2 x 10^6 GPUs each, of at most 1000 workspaces */
		sum += reserved_of(&t->workspaces[i].reserved, at->model) +
		       reserved_of(&t->workspaces[i].reserved_shared, at->model);
	}
	if (!bounded(maximum))
		return true;
	if (bounded(preset) && preset > maximum)
		return refuse(at, t->default_limit.line, "default_limit", preset, "is beyond maximum", maximum, err);
	if (sum > maximum)
		return refuse(at, t->maximum.line, "maximum", maximum, "is below what its workspaces reserve together,",
		              sum, err);
	return true;
}

struct models {
	const char **at;
	size_t count;
};

static void
add_models(struct models *m, const struct policy_amounts *a)
{
	for (size_t i = 0; i < a->count; i++) {
		bool have = a->at[i].model[0] == '\0';

		for (size_t k = 0; k < m->count && !have; k++)
			have = strcmp(m->at[k], a->at[i].model) == 0;
		if (have)
			continue;
		m->at = mem_grow(m->at, m->count + 1, sizeof(*m->at));
		m->at[m->count++] = a->at[i].model;
	}
}

static bool
check_resources(const struct policy_tenant *t, const char *file, struct err *err)
{
	for (size_t i = 0; i < t->workspace_count; i++) {
		const struct policy_resources *w = &t->workspaces[i].limits;
		const struct {
			const char *name;
			int64_t have, most;
		} rows[] = {{"cpu (in thousandths)", w->cpu_millis, t->limits.cpu_millis},
		            {"memory (in bytes)", w->memory_bytes, t->limits.memory_bytes},
		            {"storage (in bytes)", w->storage_bytes, t->limits.storage_bytes}};

		for (size_t k = 0; k < ARRAY_LEN(rows); k++)
			if (rows[k].have >= 0 && rows[k].most >= 0 && rows[k].have > rows[k].most)
				return err_set(err, ERR_INVALID,
				               "%s:%d: workspace %s/%s: limits: %s %" PRId64
				               " is beyond the tenant's %" PRId64,
				               file, w->line, t->name, t->workspaces[i].name, rows[k].name,
				               rows[k].have, rows[k].most);
	}
	return true;
}

bool
policy_check_quota(const struct policy_tenant *t, const char *file, struct err *err)
{
	struct place at = {.tenant = t, .file = file, .model = ""};
	struct models m = {0};
	bool ok;

	add_models(&m, &t->maximum);
	add_models(&m, &t->default_limit);
	for (size_t i = 0; i < t->workspace_count; i++) {
		const struct policy_workspace *w = &t->workspaces[i];

		add_models(&m, &w->reserved);
		add_models(&m, &w->reserved_shared);
		add_models(&m, &w->limit);
		add_models(&m, &w->borrow);
		add_models(&m, &w->lend);
	}
	ok = check_resources(t, file, err) && check_tenant_model(&at, err);
	for (size_t i = 0; i < m.count && ok; i++) {
		at.model = m.at[i];
		ok = check_tenant_model(&at, err);
	}
	mem_free(m.at);
	return ok;
}

/* ---- between tenants, priority classes and nodes ---- */

static bool
check_class_names(const struct policy *p, const struct policy_tenant *t, const char *file, struct err *err)
{
	for (size_t i = 0; i < t->class_count; i++) {
		bool known = false;

		for (size_t k = 0; k < p->class_count && !known; k++)
			known = strcmp(p->classes[k].name, t->classes[i]) == 0;
		if (!known)
			return err_set(
				err, ERR_INVALID,
				"%s:%d: tenant %s: priority_classes: \"%s\" is not among the file's %zu priority classes",
				file, t->line, t->name, t->classes[i], p->class_count);
		for (size_t k = 0; k < i; k++)
			if (strcmp(t->classes[k], t->classes[i]) == 0)
				return err_set(err, ERR_INVALID,
				               "%s:%d: tenant %s: priority_classes: \"%s\" is there twice", file,
				               t->line, t->name, t->classes[i]);
	}
	return true;
}

static bool
has_node(const struct policy *p, const char *tenant)
{
	for (size_t i = 0; i < p->node_count; i++) {
		const struct policy_node *n = &p->nodes[i];

		if (strcmp(n->state, "retired") != 0 &&
		    (n->tenant != NULL ? tenant != NULL && strcmp(n->tenant, tenant) == 0 : tenant == NULL))
			return true;
	}
	return false;
}

static bool
has_profile(const struct policy_amounts *a)
{
	for (size_t i = 0; i < a->count; i++)
		if (a->at[i].profile[0])
			return true;
	return false;
}

static bool
check_isolation(const struct policy *p, const struct policy_tenant *t, const char *file, struct err *err)
{
	bool apart = strcmp(t->isolation, "node") == 0, whole = strcmp(t->isolation, "gpu") == 0;

	if (strcmp(t->isolation, "shared") == 0)
		return true;
	if (!has_node(p, t->name) && (apart || !has_node(p, NULL)))
		return err_set(err, ERR_INVALID, "%s:%d: tenant %s: isolation %s: no node of this file is %s", file,
		               t->line, t->name, t->isolation, apart ? "its own" : "its own or shared");
	for (size_t i = 0; i < t->workspace_count; i++) {
		const struct policy_workspace *w = &t->workspaces[i];

		if (apart && w->reserved_shared.count > 0)
			return err_set(err, ERR_INVALID,
			               "%s:%d: workspace %s/%s: reserved_shared: the tenant's isolation is node, so "
			               "it never runs on shared nodes",
			               file, w->reserved_shared.line, t->name, w->name);
		if (whole && has_profile(&w->reserved_shared))
			return err_set(err, ERR_INVALID,
			               "%s:%d: workspace %s/%s: reserved_shared: the tenant's isolation is gpu, so "
			               "it never runs on a MIG instance of a shared node",
			               file, w->reserved_shared.line, t->name, w->name);
	}
	return true;
}

static bool
check_clusters(const struct policy *p, const struct policy_tenant *t, const char *file, struct err *err)
{
	for (size_t i = 0; i < t->workspace_count; i++) {
		const struct policy_workspace *w = &t->workspaces[i];
		bool known = w->cluster == NULL || strcmp(w->cluster, p->cluster) == 0;

		for (size_t k = 0; k < p->node_count && !known; k++)
			known = strcmp(p->nodes[k].cluster, w->cluster) == 0;
		if (!known)
			return err_set(err, ERR_INVALID,
			               "%s:%d: workspace %s/%s: cluster \"%s\" is neither the file's nor a node's",
			               file, w->line, t->name, w->name, w->cluster);
	}
	return true;
}

bool
policy_check_whole(const struct policy *p, const char *file, struct err *err)
{
	for (size_t i = 0; i < p->tenant_count; i++) {
		const struct policy_tenant *t = &p->tenants[i];

		if (!check_class_names(p, t, file, err) || !check_isolation(p, t, file, err) ||
		    !check_clusters(p, t, file, err))
			return false;
	}
	return true;
}
