/* aggregator/store/quota/quota_policy.c - the policy in force at a time, and the inventory that it is for: rows of the policy's tables as the structs of
 * core/policy/policy_to_quota.h, which makes the event of the quota book from them. */
#include <string.h>

#include "aggregator/core/quota/engine/quota_memory.h"
#include "aggregator/store/policy/price_books.h"
#include "aggregator/store/quota/quota_store.h"
#include "common/conf/json.h"

enum list {
	CLUSTERS,
	MODELS,
	POOLS,
	SHAPES,
	CLASSES,
	TENANTS,
	WORKSPACES,
	RESERVATIONS,
	LIMITS,
	MAXIMA,
	BUDGETS,
	LISTS
};

/* $1: the time. GPUs of nodes: counted on them or declared, and not retired. */
#define WITH_INVENTORY                                                                                                                    \
	"WITH had AS (SELECT p.node_id, p.model FROM gpu_place p WHERE p.model <> '' "                                                    \
	"UNION SELECT d.node_id, d.model FROM node_declared d WHERE d.effective @> $1::timestamptz), "                                    \
	"pool AS (SELECT DISTINCT c.name AS cluster, coalesce(t.name, '') AS tenant, h.model FROM had h JOIN node n ON n.id = h.node_id " \
	"JOIN cluster c ON c.id = n.cluster_id LEFT JOIN node_owner o ON o.node_id = n.id AND o.effective @> $1::timestamptz "            \
	"LEFT JOIN tenant t ON t.id = o.tenant_id WHERE NOT EXISTS (SELECT FROM node_state x WHERE x.node_id = n.id "                     \
	"AND x.state = 'retired' AND x.effective @> $1::timestamptz)) "
#define PATH "(w.tenant || '/' || w.name)"
#define OF_WORKSPACE "JOIN workspaces_at($1) w ON w.id = x.workspace_id AND NOT w.builtin "

static const struct db_stmt statements[LISTS] = {
	[CLUSTERS] = {"quota policy clusters",
                      "SELECT name FROM cluster WHERE $1::timestamptz IS NOT NULL ORDER BY id"},
	[MODELS] =
		{"quota policy models", WITH_INVENTORY
                 ", known AS (SELECT model FROM pool UNION SELECT model FROM reservation WHERE effective @> $1::timestamptz), "
                 "limited AS (SELECT model FROM workspace_limit WHERE effective @> $1::timestamptz UNION SELECT model FROM "
                 "tenant_limit WHERE effective @> $1::timestamptz) "
                 /* a limit may name a family: that is no model where there is one of it */
                 "SELECT DISTINCT m.model COLLATE \"C\" FROM (SELECT model FROM known UNION SELECT model FROM limited l WHERE NOT "
                 "EXISTS (SELECT FROM known k WHERE starts_with(k.model, l.model || '-'))) m WHERE m.model <> '' ORDER BY 1"},
	[POOLS] =
		{"quota policy pools", WITH_INVENTORY
                 "SELECT cluster, tenant, model FROM pool ORDER BY cluster COLLATE \"C\", tenant COLLATE \"C\", model "
                 "COLLATE \"C\""},
	[SHAPES] =
		{"quota policy shapes",
                 "SELECT DISTINCT model COLLATE \"C\", profile COLLATE \"C\", units FROM (SELECT model, profile, units FROM node_declared "
                 "WHERE effective @> $1::timestamptz UNION ALL SELECT model, profile, units / instances FROM reservation "
                 "WHERE effective @> $1::timestamptz) s WHERE profile <> '' ORDER BY 1, 2"},
	[CLASSES] = {"quota policy classes",
                     "SELECT name, value, preemptible FROM priority_class WHERE effective @> $1::timestamptz "
                     "ORDER BY name COLLATE \"C\""},
	[TENANTS] =
		{"quota policy tenants",
                 "SELECT t.name, coalesce(q.isolation, 'shared'), array_to_json(q.priority_classes)::text, q.cpu_millis, "
                 "q.memory_bytes, q.storage_bytes FROM tenants_at($1) t LEFT JOIN tenant_quota q ON q.tenant_id = t.id AND "
                 "q.effective @> $1::timestamptz WHERE NOT t.builtin ORDER BY t.name COLLATE \"C\""},
	[WORKSPACES] =
		{"quota policy workspaces",
                 "SELECT " PATH
                 ", w.tenant, coalesce(h.home, l.home), coalesce(x.reclaim, 'any'), coalesce(x.preempt_own, 'lower') = "
                 "'lower', coalesce(x.enforce, 'on'), coalesce(x.weight, 1), x.cpu_millis, x.memory_bytes, x.storage_bytes "
                 "FROM workspaces_at($1) w CROSS JOIN (SELECT c.name AS home FROM ledger JOIN cluster c "
                 "ON c.id = ledger.cluster_id) l LEFT JOIN workspace_quota x ON x.workspace_id = w.id AND x.effective @> "
                 "$1::timestamptz LEFT JOIN LATERAL (SELECT min(c.name) AS home FROM reservation r JOIN cluster c ON c.id = "
                 "r.cluster_id WHERE r.workspace_id = w.id AND r.effective @> $1::timestamptz HAVING count(DISTINCT c.id) = 1) h "
                 "ON true WHERE NOT w.builtin ORDER BY " PATH " COLLATE \"C\""},
	[RESERVATIONS] =
		{"quota policy reservations",
                 "SELECT " PATH
                 ", c.name, x.model, x.shared, sum(x.units)::bigint, CASE WHEN count(*) = 1 THEN min(x.profile) ELSE '' "
                 "END FROM reservation x JOIN cluster c ON c.id = x.cluster_id " OF_WORKSPACE
                 "WHERE x.effective @> $1::timestamptz GROUP BY " PATH ", c.name, x.model, x.shared "
                 "ORDER BY " PATH " COLLATE \"C\", c.name COLLATE \"C\", x.model COLLATE \"C\", x.shared"},
	[LIMITS] = {"quota policy limits",
                    "SELECT " PATH
                    ", x.kind, x.model, x.profile, x.instances, x.units FROM workspace_limit x " OF_WORKSPACE
                    "WHERE x.effective @> $1::timestamptz ORDER BY " PATH
                    " COLLATE \"C\", x.kind, x.model COLLATE \"C\" DESC"},
	[MAXIMA] =
		{"quota policy maxima",
                 "SELECT t.name, x.kind, x.model, x.profile, x.instances, x.units FROM tenant_limit x JOIN tenants_at($1) t ON t.id = x.tenant_id "
                 "AND NOT t.builtin WHERE x.effective @> $1::timestamptz "
                 "ORDER BY t.name COLLATE \"C\", x.kind, x.model COLLATE \"C\" DESC"},
	[BUDGETS] =
		{"quota policy budgets",
                 "SELECT t.name, CASE WHEN w.id IS NULL THEN '' ELSE " PATH
                 " END, b.kind = 'hard', CASE WHEN b.meter_unit = 'token' THEN 'tokens' WHEN b.currency IS NULL THEN 'unit_seconds' ELSE 'money' END, "
                 "least(floor(b.amount * CASE WHEN b.meter_unit = 'token' THEN 1 WHEN b.currency IS NULL THEN 5040 * 3600 ELSE 100 END), "
                 "1000000000000000000)::bigint, b.currency FROM budget b JOIN tenants_at($1) t ON t.id = b.tenant_id "
                 "LEFT JOIN workspaces_at($1) w ON w.id = b.workspace_id WHERE b.effective @> $1::timestamptz "
                 "AND (b.workspace_id IS NULL OR w.id IS NOT NULL) ORDER BY t.name COLLATE \"C\", 2"},
};

/* ---- rows as structs ----------------------------------------------------------------------------------------------------------- */

struct policy_memory {
	PGresult *at[LISTS]; /* texts point into them */
	struct price_books books;
	struct quota_memory *lists;
};

void
quota_policy_rows_fini(struct quota_policy_rows *rows)
{
	struct policy_memory *m = rows->memory;

	if (m) {
		for (size_t i = 0; i < LISTS; i++)
			PQclear(m->at[i]);
		price_books_fini(&m->books);
		quota_memory_free(m->lists);
	}
	mem_free(m);
	*rows = (struct quota_policy_rows){0};
}

/* Room for as many elements as a list has rows. */
static void *
room(struct policy_memory *m, enum list list, size_t size, size_t *ret_count)
{
	*ret_count = (size_t)PQntuples(m->at[list]);
	return quota_keep(&m->lists, *ret_count, size);
}

static const char **
read_names(struct policy_memory *m, enum list list, size_t *ret_count)
{
	const char **names = room(m, list, sizeof(*names), ret_count);

	for (size_t i = 0; i < *ret_count; i++)
		names[i] = res_text(m->at[list], (int)i, 0);
	return names;
}

/* -1 for NULL: no limit, or not known. */
static int64_t
amount(const PGresult *r, int row, int col)
{
	return res_null(r, row, col) ? -1 : res_i64(r, row, col);
}

static struct policy_resources
read_resources(const PGresult *r, int row, int col)
{
	return (struct policy_resources){.cpu_millis = amount(r, row, col),
	                                 .memory_bytes = amount(r, row, col + 1),
	                                 .storage_bytes = amount(r, row, col + 2)};
}

static void
read_inventory(struct policy_memory *m, struct in_force_policy *p)
{
	const PGresult *r = m->at[POOLS];

	p->clusters = read_names(m, CLUSTERS, &p->cluster_count);
	p->models = read_names(m, MODELS, &p->model_count);
	p->pools = room(m, POOLS, sizeof(*p->pools), &p->pool_count);
	for (int i = 0; i < PQntuples(r); i++)
		p->pools[i] = (struct in_force_pool){res_text(r, i, 0), res_text(r, i, 1), res_text(r, i, 2)};
	r = m->at[SHAPES];
	p->shapes = room(m, SHAPES, sizeof(*p->shapes), &p->shape_count);
	for (int i = 0; i < PQntuples(r); i++)
		p->shapes[i] = (struct in_force_shape){res_text(r, i, 0), res_text(r, i, 1), res_i64(r, i, 2)};
	r = m->at[CLASSES];
	p->classes = room(m, CLASSES, sizeof(*p->classes), &p->class_count);
	for (int i = 0; i < PQntuples(r); i++)
		p->classes[i] = (struct in_force_class){res_text(r, i, 0), res_i64(r, i, 1), res_bool(r, i, 2)};
}

/* The names of an array of the server, which it writes as JSON. */
static bool
read_class_names(struct policy_memory *m, const PGresult *r, int row, int col, struct in_force_tenant *t,
                 struct err *err)
{
	owned(json) json_t *list = NULL;
	const char **names;

	if (res_null(r, row, col))
		return true;
	if (!json_parse("priority classes", res_text(r, row, col), strlen(res_text(r, row, col)), &list, err))
		return err_prefix(err, "tenant %s", t->name);
	t->class_count = json_array_size(list);
	t->classes = names = quota_keep(&m->lists, t->class_count, sizeof(*names));
	for (size_t i = 0; i < t->class_count; i++)
		names[i] = quota_keep_text(&m->lists, json_string_value(json_array_get(list, i)));
	return true;
}

static bool
read_tenants(struct policy_memory *m, struct in_force_policy *p, struct err *err)
{
	const PGresult *r = m->at[TENANTS];

	p->tenants = room(m, TENANTS, sizeof(*p->tenants), &p->tenant_count);
	for (int i = 0; i < PQntuples(r); i++) {
		p->tenants[i] = (struct in_force_tenant){.name = res_text(r, i, 0),
		                                         .isolation = res_text(r, i, 1),
		                                         .limits = read_resources(r, i, 3)};
		if (!read_class_names(m, r, i, 2, &p->tenants[i], err))
			return false;
	}
	return true;
}

static void
read_workspaces(struct policy_memory *m, struct in_force_policy *p)
{
	const PGresult *r = m->at[WORKSPACES];

	p->workspaces = room(m, WORKSPACES, sizeof(*p->workspaces), &p->workspace_count);
	for (int i = 0; i < PQntuples(r); i++)
		p->workspaces[i] = (struct in_force_workspace){.path = res_text(r, i, 0),
		                                               .tenant = res_text(r, i, 1),
		                                               .home = res_text(r, i, 2),
		                                               .reclaim = res_text(r, i, 3),
		                                               .preempt_own = res_bool(r, i, 4),
		                                               .enforce = res_text(r, i, 5),
		                                               .weight = res_i64(r, i, 6),
		                                               .limits = read_resources(r, i, 7)};
	r = m->at[RESERVATIONS];
	p->reservations = room(m, RESERVATIONS, sizeof(*p->reservations), &p->reservation_count);
	for (int i = 0; i < PQntuples(r); i++)
		p->reservations[i] = (struct in_force_reservation){.workspace = res_text(r, i, 0),
		                                                   .cluster = res_text(r, i, 1),
		                                                   .model = res_text(r, i, 2),
		                                                   .shared = res_bool(r, i, 3),
		                                                   .units = res_i64(r, i, 4),
		                                                   .profile = res_text(r, i, 5)};
}

static struct in_force_amount *
read_amounts(struct policy_memory *m, enum list list, size_t *ret_count)
{
	static const char *const kinds[] = {[IN_FORCE_LIMIT] = "limit",
	                                    [IN_FORCE_BORROW] = "borrow",
	                                    [IN_FORCE_LEND] = "lend",
	                                    [IN_FORCE_MAXIMUM] = "maximum",
	                                    [IN_FORCE_DEFAULT_LIMIT] = "default_limit"};
	struct in_force_amount *amounts = room(m, list, sizeof(*amounts), ret_count);
	const PGresult *r = m->at[list];

	for (int i = 0; i < PQntuples(r); i++) {
		size_t kind = 0;

		while (kind + 1 < ARRAY_LEN(kinds) && strcmp(kinds[kind], res_text(r, i, 1)) != 0)
			kind++;
		amounts[i] = (struct in_force_amount){.owner = res_text(r, i, 0),
		                                      .kind = (enum in_force_kind)kind,
		                                      .model = res_text(r, i, 2),
		                                      .profile = res_text(r, i, 3),
		                                      .instances = res_i64(r, i, 4),
		                                      .units = amount(r, i, 5)};
	}
	return amounts;
}

static void
read_budgets(struct policy_memory *m, struct in_force_policy *p)
{
	const PGresult *r = m->at[BUDGETS];

	p->budgets = room(m, BUDGETS, sizeof(*p->budgets), &p->budget_count);
	for (int i = 0; i < PQntuples(r); i++)
		p->budgets[i] = (struct in_force_budget){.tenant = res_text(r, i, 0),
		                                         .workspace = res_text(r, i, 1),
		                                         .hard = res_bool(r, i, 2),
		                                         .kind = res_text(r, i, 3),
		                                         .amount = res_i64(r, i, 4),
		                                         .currency = res_text(r, i, 5)};
}

bool
store_quota_policy(struct db *db, int64_t now_ns, struct quota_policy_rows *ret, struct err *err)
{
	in_place(quota_policy_rows) struct quota_policy_rows rows = {0};
	struct policy_memory *m = rows.memory = mem_alloc(sizeof(*m));
	struct in_force_policy *p = &rows.policy;
	struct db_args when = {0};

	arg_time(&when, now_ns);
	for (size_t i = 0; i < LISTS; i++)
		if (!db_run(db, &statements[i], &when, &m->at[i], err))
			return false;
	read_inventory(m, p);
	if (!read_tenants(m, p, err))
		return false;
	read_workspaces(m, p);
	p->limits = read_amounts(m, LIMITS, &p->limit_count);
	p->maxima = read_amounts(m, MAXIMA, &p->maximum_count);
	read_budgets(m, p);
	/* without a budget no price is asked for */
	if (p->budget_count > 0 && !price_books_at(db, now_ns, &m->books, err))
		return false;
	p->prices = m->books.count > 0 ? &m->books.books[0] : NULL;
	*ret = rows;
	rows.memory = NULL;
	return true;
}

bool
store_quota_model(struct db *db, int64_t now_ns, const char *name, char ret[QUOTA_NAME_SIZE], struct err *err)
{
	owned(mem) const char **models = NULL;
	owned(result) PGresult *r = NULL;
	struct db_args when = {0};
	const char *model = "";
	int count;

	arg_time(&when, now_ns);
	if (!db_run(db, &statements[MODELS], &when, &r, err))
		return false;
	count = PQntuples(r);
	models = mem_array((size_t)count + 1, sizeof(*models));
	for (int i = 0; i < count; i++)
		models[i] = res_text(r, i, 0);
	if (!quantity_model(name, models, (size_t)count, &model, err))
		return false;
	if (strlen(model) >= QUOTA_NAME_SIZE)
		return err_set(err, ERR_INVALID, "the name of a model has at most %d bytes", QUOTA_NAME_SIZE - 1);
	memcpy(ret, model, strlen(model) + 1);
	return true;
}

bool
store_quota_pools(struct db *db, int64_t now_ns, int64_t cluster_id, const char *tenant, const char *model,
                  bool *ret_own, bool *ret_shared, struct err *err)
{
	static const struct db_stmt stmt = {
		"quota pools of a model", WITH_INVENTORY
		"SELECT coalesce(bool_or(p.tenant = $3), false), coalesce(bool_or(p.tenant = ''), false) FROM pool p JOIN cluster c "
		"ON c.name = p.cluster WHERE c.id = $2 AND p.model = $4"};
	owned(result) PGresult *r = NULL;
	struct db_args a = {0};

	arg_time(&a, now_ns);
	arg_i64(&a, cluster_id);
	arg_text(&a, tenant);
	arg_text(&a, model);
	if (!db_run(db, &stmt, &a, &r, err))
		return false;
	*ret_own = res_bool(r, 0, 0);
	*ret_shared = res_bool(r, 0, 1);
	return true;
}
