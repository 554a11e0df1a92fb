/* aggregator/store/policy/policy_write.c - writes clusters, tenants, workspaces, node owners, rules, members and quotas of a policy as rows.
 *
 * Tenants, workspaces and clusters are never deleted, because old usage keeps its name. Their terms and their presence in the file
 * hold over ranges of billing hours, as owners, rules and prices do (policy_write.h). An unchanged row stays untouched, so that no
 * hour is rolled up again without need. */
#include "aggregator/store/policy/policy_write.h"

#include <string.h>

#include "aggregator/core/rating/budget.h"
#include "aggregator/store/policy/attribution_store.h"
#include "aggregator/store/policy/price_books.h"

void
array_i64_or_null(struct db_array *a, bool known, int64_t v)
{
	if (known)
		array_i64(a, v);
	else
		array_text(a, NULL);
}

bool
over_time_write(struct db *db, const struct over_time *t, const struct db_args *a, struct err *err)
{
	return db_run(db, &t->drop, a, NULL, err) && db_run(db, &t->cut, a, NULL, err) &&
	       db_run(db, &t->fill, a, NULL, err);
}

/* All columns behind the hour. */
static bool
write_columns(struct db *db, const struct over_time *t, struct db_columns *c, int64_t effective_ns, struct err *err)
{
	struct db_args a = {0};

	arg_time(&a, effective_ns);
	arg_columns(&a, c);
	return over_time_write(db, t, &a, err);
}

/* --- clusters, tenants, workspaces --- */

/* The cluster of each node of the file from effective on. A node that has no hours yet has been there from ever. */
static bool
write_clusters(struct db *db, struct db_columns *nodes, int64_t effective_ns, struct err *err)
{
	static const struct db_stmt changed = {
		"policy clusters changed",
		"SELECT array_agg(n.id) FROM unnest($1::text[], $2::text[]) AS e(name, cluster) JOIN node n ON n.name = e.name "
		"JOIN cluster c ON c.name = e.cluster WHERE NOT EXISTS (SELECT FROM node_cluster k WHERE k.node_id = n.id "
		"AND k.cluster_id = c.id AND upper_inf(k.effective) AND k.effective @> $3::timestamptz)"};
	static const struct db_stmt drop = {
		"policy clusters drop",
		"DELETE FROM node_cluster k USING node n WHERE n.id = k.node_id "
		"AND n.id = ANY ($1::integer[]) AND (lower(k.effective) >= $2 OR n.hours_from IS NULL)"};
	static const struct db_stmt cut = {"policy clusters cut",
	                                   "UPDATE node_cluster SET effective = tstzrange(lower(effective), $2) "
	                                   "WHERE node_id = ANY ($1::integer[]) AND effective @> $2::timestamptz"};
	static const struct db_stmt fill = {
		"policy clusters fill",
		"INSERT INTO node_cluster (node_id, cluster_id, effective) SELECT n.id, n.cluster_id, "
		"tstzrange(CASE WHEN n.hours_from IS NOT NULL THEN $2::timestamptz END, NULL) FROM node n "
		"WHERE n.id = ANY ($1::integer[])"};
	owned(result) PGresult *r = NULL;
	struct db_args c = {0}, a = {0};

	arg_array(&c, &nodes->col[0]);
	arg_array(&c, &nodes->col[1]);
	arg_time(&c, effective_ns);
	if (!db_run(db, &changed, &c, &r, err))
		return false;
	if (res_null(r, 0, 0))
		return true;
	arg_text(&a, res_text(r, 0, 0));
	arg_time(&a, effective_ns);
	return db_run(db, &drop, &a, NULL, err) && db_run(db, &cut, &a, NULL, err) && db_run(db, &fill, &a, NULL, err);
}

/* The home cluster gets another name:
 *  1. where that is another cluster's name, that one becomes home
 *  2. where the home cluster has no hours yet, or no policy has named it, it is renamed
 *  3. else hours keep the name they were measured and billed under: a new cluster becomes home, and the nodes of the old one are in it from
 *     effective on */
static bool
write_home(struct db *db, const char *name, int64_t effective_ns, bool *ret_changed, struct err *err)
{
	static const struct db_stmt home = {
		"policy home",
		"SELECT c.name = $1, (SELECT o.id FROM cluster o WHERE o.name = $1), EXISTS (SELECT FROM node_cluster k JOIN node n ON n.id = "
		"k.node_id AND n.hours_from IS NOT NULL WHERE k.cluster_id = c.id) AND EXISTS (SELECT FROM policy_version), c.id FROM ledger l JOIN cluster c ON c.id = l.cluster_id"};
	static const struct db_stmt move = {"policy home move",
	                                    "UPDATE ledger SET cluster_id = (SELECT id FROM cluster WHERE name = $1)"};
	static const struct db_stmt rename = {
		"policy home name", "UPDATE cluster SET name = $1 WHERE id = (SELECT cluster_id FROM ledger)"};
	static const struct db_stmt add = {"policy home new", "INSERT INTO cluster (name) VALUES ($1)"};
	static const struct db_stmt nodes = {
		"policy home nodes",
		"UPDATE node SET cluster_id = (SELECT id FROM cluster WHERE name = $1) WHERE cluster_id = $2 RETURNING name, $1::text"};
	owned(result) PGresult *r = NULL, *moved = NULL;
	in_place(db_columns) struct db_columns c = {0};
	struct db_args a = {0}, n = {0};

	arg_text(&a, name);
	if (!db_run(db, &home, &a, &r, err))
		return false;
	*ret_changed = !res_bool(r, 0, 0);
	if (!*ret_changed)
		return true;
	if (!res_null(r, 0, 1)) /* 1 */
		return db_run(db, &move, &a, NULL, err);
	if (!res_bool(r, 0, 2)) /* 2 */
		return db_run(db, &rename, &a, NULL, err);
	arg_text(&n, name);
	arg_i64(&n, res_i64(r, 0, 3));
	if (!db_run(db, &add, &a, NULL, err) || !db_run(db, &move, &a, NULL, err) ||
	    !db_run(db, &nodes, &n, &moved, err)) /* 3 */
		return false;
	db_columns_init(&c, 2);
	for (int row = 0; row < PQntuples(moved); row++) {
		array_text(&c.col[0], res_text(moved, row, 0));
		array_text(&c.col[1], res_text(moved, row, 1));
	}
	return write_clusters(db, &c, effective_ns, err);
}

static bool
write_tenants(struct db *db, const struct policy *p, int64_t effective_ns, struct err *err)
{
	static const struct db_stmt names = {
		"policy tenants", "INSERT INTO tenant (name) SELECT e.name FROM unnest($1::text[]) AS e(name) "
				  "ON CONFLICT (name) DO NOTHING"};
	static const struct over_time terms = OVER_TIME(
		"policy tenant terms", "tenant_term", "tenant_id, display_name, cost_center, owner, data_boundary",
		"t.tenant_id, t.display_name, t.cost_center, t.owner, t.data_boundary",
		"SELECT x.id, e.display_name, e.cost_center, e.owner, e.data_boundary FROM unnest($2::text[], $3::text[], $4::text[], "
		"$5::text[], $6::text[]) AS e(name, display_name, cost_center, owner, data_boundary) JOIN tenant x ON x.name = e.name",
		"AND NOT lower_inf(t.effective)");
	in_place(db_columns) struct db_columns c = {0};
	struct db_args n = {0}, a = {0};

	db_columns_init(&c, 5);
	for (size_t i = 0; i < p->tenant_count; i++) {
		array_text(&c.col[0], p->tenants[i].name);
		array_text(&c.col[1], p->tenants[i].display_name);
		array_text(&c.col[2], p->tenants[i].cost_center);
		array_text(&c.col[3], p->tenants[i].owner);
		array_text(&c.col[4], p->tenants[i].data_boundary[0] != '\0' ? p->tenants[i].data_boundary : NULL);
	}
	arg_array(&n, &c.col[0]);
	arg_time(&a, effective_ns);
	arg_columns(&a, &c);
	return db_run(db, &names, &n, NULL, err) && over_time_write(db, &terms, &a, err);
}

static bool
write_workspaces(struct db *db, const struct policy *p, int64_t effective_ns, struct err *err)
{
	static const struct db_stmt names = {
		"policy workspaces",
		"INSERT INTO workspace (tenant_id, name) SELECT t.id, e.name FROM unnest($1::text[], $2::text[]) "
		"AS e(tenant, name) JOIN tenant t ON t.name = e.tenant ON CONFLICT (tenant_id, name) DO NOTHING"};
	static const struct over_time terms = OVER_TIME(
		"policy workspace terms", "workspace_term", "workspace_id, description",
		"t.workspace_id, t.description",
		"SELECT w.id, e.description FROM unnest($2::text[], $3::text[], $4::text[]) AS e(tenant, name, description) "
		"JOIN tenant x ON x.name = e.tenant JOIN workspace w ON w.tenant_id = x.id AND w.name = e.name",
		"AND NOT lower_inf(t.effective)");
	in_place(db_columns) struct db_columns c = {0};
	struct db_args n = {0}, a = {0};

	db_columns_init(&c, 3);
	for (size_t i = 0; i < p->tenant_count; i++) {
		for (size_t k = 0; k < p->tenants[i].workspace_count; k++) {
			array_text(&c.col[0], p->tenants[i].name);
			array_text(&c.col[1], p->tenants[i].workspaces[k].name);
			array_text(&c.col[2], p->tenants[i].workspaces[k].description);
		}
	}
	arg_array(&n, &c.col[0]);
	arg_array(&n, &c.col[1]);
	arg_time(&a, effective_ns);
	arg_columns(&a, &c);
	return db_run(db, &names, &n, NULL, err) && over_time_write(db, &terms, &a, err);
}

/* --- nodes and their owners --- */

/* Owners from effective on: the nodes for which the file and the ledger differ, then what they had, then what they
 * get. */
static bool
write_owners(struct db *db, struct db_columns *nodes, int64_t effective_ns, struct err *err)
{
	static const struct db_stmt changed = {
		"policy owners changed",
		"SELECT array_agg(n.id) FROM node n "
		"LEFT JOIN unnest($1::text[], $2::text[]) AS e(name, tenant) ON e.name = n.name "
		"LEFT JOIN tenant t ON t.name = e.tenant "
		"LEFT JOIN node_owner o ON o.node_id = n.id AND upper_inf(o.effective) "
		"AND o.effective @> $3::timestamptz "
		"WHERE CASE WHEN e.name IS NULL THEN EXISTS (SELECT FROM node_owner x WHERE x.node_id = n.id "
		"AND (upper_inf(x.effective) OR upper(x.effective) > $3)) ELSE o.node_id IS NULL OR o.tenant_id "
		"IS DISTINCT FROM t.id END"};
	static const struct db_stmt drop = {
		"policy owners drop",
		"DELETE FROM node_owner WHERE node_id = ANY ($1::integer[]) AND lower(effective) >= $2"};
	static const struct db_stmt cut = {"policy owners cut",
	                                   "UPDATE node_owner SET effective = tstzrange(lower(effective), $2) "
	                                   "WHERE node_id = ANY ($1::integer[]) AND effective @> $2::timestamptz"};
	static const struct db_stmt fill = {
		"policy owners",
		"INSERT INTO node_owner (node_id, tenant_id, effective) SELECT n.id, t.id, tstzrange($4, NULL) "
		"FROM unnest($1::text[], $2::text[]) AS e(name, tenant) JOIN node n ON n.name = e.name "
		"LEFT JOIN tenant t ON t.name = e.tenant WHERE n.id = ANY ($3::integer[])"};
	owned(result) PGresult *r = NULL;
	struct db_args c = {0}, d = {0}, f = {0};

	arg_array(&c, &nodes->col[0]);
	arg_array(&c, &nodes->col[2]);
	arg_time(&c, effective_ns);
	if (!db_run(db, &changed, &c, &r, err))
		return false;
	if (res_null(r, 0, 0))
		return true;
	arg_text(&d, res_text(r, 0, 0));
	arg_time(&d, effective_ns);
	arg_array(&f, &nodes->col[0]);
	arg_array(&f, &nodes->col[2]);
	arg_text(&f, res_text(r, 0, 0));
	arg_time(&f, effective_ns);
	return db_run(db, &drop, &d, NULL, err) && db_run(db, &cut, &d, NULL, err) && db_run(db, &fill, &f, NULL, err);
}

static bool
write_nodes(struct db *db, const struct policy *p, int64_t effective_ns, struct err *err)
{
	static const struct db_stmt clusters = {
		"policy clusters", "INSERT INTO cluster (name) SELECT DISTINCT c FROM unnest($1::text[]) c ORDER BY c "
				   "ON CONFLICT (name) DO NOTHING"};
	static const struct db_stmt upsert = {
		"policy nodes",
		"INSERT INTO node (cluster_id, name) SELECT c.id, e.name "
		"FROM unnest($1::text[], $2::text[]) AS e(name, cluster) JOIN cluster c ON c.name = e.cluster "
		"ORDER BY e.name ON CONFLICT (name) DO UPDATE SET cluster_id = EXCLUDED.cluster_id "
		"WHERE node.cluster_id <> EXCLUDED.cluster_id"};
	/* The right to apply a policy includes the approval of the nodes that it declares. */
	static const struct db_stmt approve = {
		"policy approve",
		"SELECT node_approve(n.name, 'policy', 'a policy declares it', false) FROM (SELECT name FROM node "
		"WHERE name = ANY ($1::text[]) AND approved_at IS NULL ORDER BY name) n"};
	in_place(db_columns) struct db_columns c = {0}; /* name, cluster, tenant */
	struct db_args k = {0}, u = {0}, v = {0};

	db_columns_init(&c, 3);
	for (size_t i = 0; i < p->node_count; i++) {
		array_text(&c.col[0], p->nodes[i].name);
		array_text(&c.col[1], p->nodes[i].cluster ? p->nodes[i].cluster : p->cluster);
		array_text(&c.col[2], p->nodes[i].tenant);
	}
	arg_array(&k, &c.col[1]);
	arg_array(&u, &c.col[0]);
	arg_array(&u, &c.col[1]);
	arg_array(&v, &c.col[0]);
	return db_run(db, &clusters, &k, NULL, err) && db_run(db, &upsert, &u, NULL, err) &&
	       db_run(db, &approve, &v, NULL, err) && write_clusters(db, &c, effective_ns, err) &&
	       write_owners(db, &c, effective_ns, err);
}

/* --- rules --- */

enum {
	RULE_TENANT,
	RULE_WORKSPACE,
	RULE_POSITION,
	RULE_PRIORITY,
	RULE_CLUSTER,
	RULE_NAMESPACE,
	RULE_ACCOUNT,
	RULE_USER,
	RULE_GROUP,
	RULE_LABELS,
	RULE_COLUMNS
};

#define RULES_OF_FILE                                                                                \
	"SELECT w.id, e.position, e.priority, e.cluster, e.ns, e.account, e.usr, e.grp, "            \
	"labels_of(e.labels) "                                                                       \
	"FROM unnest($2::text[], $3::text[], $4::integer[], $5::integer[], $6::text[], $7::text[], " \
	"$8::text[], $9::text[], $10::text[], $11::text[]) "                                         \
	"AS e(tenant, workspace, position, priority, cluster, ns, account, usr, grp, labels) "       \
	"JOIN tenant t ON t.name = e.tenant JOIN workspace w ON w.tenant_id = t.id AND w.name = e.workspace"

static void
rule_columns(const struct policy *p, struct db_columns *c)
{
	int64_t position = 0;

	for (size_t i = 0; i < p->tenant_count; i++) {
		for (size_t k = 0; k < p->tenants[i].workspace_count; k++) {
			const struct policy_workspace *w = &p->tenants[i].workspaces[k];

			for (size_t m = 0; m < w->rule_count; m++) {
				array_text(&c->col[RULE_TENANT], p->tenants[i].name);
				array_text(&c->col[RULE_WORKSPACE], w->name);
				array_i64(&c->col[RULE_POSITION], position++);
				array_i64(&c->col[RULE_PRIORITY], w->rules[m].priority);
				array_text(&c->col[RULE_CLUSTER], w->rules[m].cluster);
				array_text(&c->col[RULE_NAMESPACE], w->rules[m].ns);
				array_text(&c->col[RULE_ACCOUNT], w->rules[m].slurm_account);
				array_text(&c->col[RULE_USER], w->rules[m].user);
				array_text(&c->col[RULE_GROUP], w->rules[m].group);
				array_text(&c->col[RULE_LABELS], w->rules[m].labels);
			}
		}
	}
}

static bool
write_rules(struct db *db, const struct policy *p, int64_t effective_ns, bool *ret_changed, struct err *err)
{
	static const struct db_stmt same = {
		"policy rules same",
		"WITH file AS (" RULES_OF_FILE
		"), held AS (SELECT workspace_id, position, priority, cluster, namespace, slurm_account, "
		"user_name, group_name, labels FROM attribution_rule "
		"WHERE upper_inf(effective) AND effective @> $1::timestamptz) SELECT NOT EXISTS ((TABLE file "
		"EXCEPT TABLE held) UNION ALL (TABLE held EXCEPT TABLE file)) AND NOT EXISTS (SELECT "
		"FROM attribution_rule WHERE lower(effective) > $1)"};
	static const struct db_stmt end = {
		"policy rules end", "UPDATE attribution_rule "
				    "SET effective = CASE WHEN lower(effective) >= $1 THEN 'empty'::tstzrange ELSE "
				    "tstzrange(lower(effective), $1) END "
				    "WHERE NOT isempty(effective) AND (upper_inf(effective) OR upper(effective) > $1)"};
	static const struct db_stmt fill = {
		"policy rules",
		"INSERT INTO attribution_rule (workspace_id, position, priority, cluster, namespace, "
		"slurm_account, user_name, group_name, labels, effective) SELECT x.*, tstzrange($1, NULL) FROM (" RULES_OF_FILE
		" ORDER BY e.position) x"};
	in_place(db_columns) struct db_columns c = {0};
	owned(result) PGresult *r = NULL;
	struct db_args at = {0}, a = {0};

	db_columns_init(&c, RULE_COLUMNS);
	rule_columns(p, &c);
	arg_time(&at, effective_ns);
	arg_time(&a, effective_ns);
	arg_columns(&a, &c);
	if (!db_run(db, &same, &a, &r, err))
		return false;
	*ret_changed = !res_bool(r, 0, 0);
	return !*ret_changed || (db_run(db, &end, &at, NULL, err) && db_run(db, &fill, &a, NULL, err));
}

/* --- members, quotas, budgets --- */

#define WORKSPACE_OF_E \
	"JOIN tenant x ON x.name = e.tenant JOIN workspace w ON w.tenant_id = x.id AND w.name = e.workspace"

static bool
write_classes(struct db *db, const struct policy *p, int64_t effective_ns, struct err *err)
{
	static const struct over_time table =
		OVER_TIME("policy classes", "priority_class", "name, value, preemptible",
	                  "t.name, t.value, t.preemptible",
	                  "SELECT * FROM unnest($2::text[], $3::integer[], $4::boolean[]) AS e(name, value, "
	                  "preemptible)",
	                  "");
	in_place(db_columns) struct db_columns c = {0};

	db_columns_init(&c, 3);
	for (size_t i = 0; i < p->class_count; i++) {
		array_text(&c.col[0], p->classes[i].name);
		array_i64(&c.col[1], p->classes[i].value);
		array_text(&c.col[2], p->classes[i].preemptible ? "t" : "f");
	}
	return write_columns(db, &table, &c, effective_ns, err);
}

static bool
write_tenant_members(struct db *db, const struct policy *p, int64_t effective_ns, struct err *err)
{
	static const struct over_time table =
		OVER_TIME("policy members", "tenant_member", "tenant_id, member, role", "t.tenant_id, t.member, t.role",
	                  "SELECT x.id, e.member, e.role FROM unnest($2::text[], $3::text[], $4::text[]) "
	                  "AS e(tenant, member, role) JOIN tenant x ON x.name = e.tenant",
	                  "");
	in_place(db_columns) struct db_columns c = {0};

	db_columns_init(&c, 3);
	for (size_t i = 0; i < p->tenant_count; i++)
		for (size_t k = 0; k < p->tenants[i].members.count; k++) {
			array_text(&c.col[0], p->tenants[i].name);
			array_text(&c.col[1], p->tenants[i].members.at[k].user);
			array_text(&c.col[2], p->tenants[i].members.at[k].role);
		}
	return write_columns(db, &table, &c, effective_ns, err);
}

static bool
write_workspace_members(struct db *db, const struct policy *p, int64_t effective_ns, struct err *err)
{
	static const struct over_time table =
		OVER_TIME("policy workspace members", "workspace_member", "workspace_id, member, role",
	                  "t.workspace_id, t.member, t.role",
	                  "SELECT w.id, e.member, e.role FROM unnest($2::text[], $3::text[], $4::text[], $5::text[]) "
	                  "AS e(tenant, workspace, member, role) " WORKSPACE_OF_E,
	                  "");
	in_place(db_columns) struct db_columns c = {0};

	db_columns_init(&c, 4);
	for (size_t i = 0; i < p->tenant_count; i++)
		for (size_t k = 0; k < p->tenants[i].workspace_count; k++) {
			const struct policy_workspace *w = &p->tenants[i].workspaces[k];

			for (size_t m = 0; m < w->members.count; m++) {
				array_text(&c.col[0], p->tenants[i].name);
				array_text(&c.col[1], w->name);
				array_text(&c.col[2], w->members.at[m].user);
				array_text(&c.col[3], w->members.at[m].role);
			}
		}
	return write_columns(db, &table, &c, effective_ns, err);
}

/* '{"a","b"}', or NULL where all may be used. Names need no escape. */
static void
add_class_names(struct db_array *a, const struct policy_tenant *t)
{
	in_place(buf) struct buf text = {0};

	buf_init(&text, LIMIT_CLASSES * 70u);
	buf_char(&text, '{');
	for (size_t i = 0; i < t->class_count; i++)
		buf_printf(&text, "%s\"%s\"", i == 0 ? "" : ",", t->classes[i]);
	buf_char(&text, '}');
	array_text(a, t->classes_given ? buf_text(&text) : NULL);
}

static void
add_resources(struct db_array *cols, const struct policy_resources *r)
{
	array_i64_or_null(&cols[0], r->cpu_millis >= 0, r->cpu_millis);
	array_i64_or_null(&cols[1], r->memory_bytes >= 0, r->memory_bytes);
	array_i64_or_null(&cols[2], r->storage_bytes >= 0, r->storage_bytes);
}

static void
add_sla(struct db_array *cols, const struct policy_sla *s)
{
	array_i64_or_null(&cols[0], s->owed_wait_ns > 0, s->owed_wait_ns);
	array_i64_or_null(&cols[1], s->delivered_millionths > 0, s->delivered_millionths);
}

static bool
write_tenant_quotas(struct db *db, const struct policy *p, int64_t effective_ns, struct err *err)
{
	static const struct over_time table = OVER_TIME(
		"policy tenant quotas", "tenant_quota",
		"tenant_id, isolation, priority_classes, cpu_millis, memory_bytes, storage_bytes, owed_wait_ns, delivered_millionths",
		"t.tenant_id, t.isolation, t.priority_classes, t.cpu_millis, t.memory_bytes, t.storage_bytes, t.owed_wait_ns, "
		"t.delivered_millionths",
		"SELECT x.id, e.isolation, e.classes::text[], e.cpu, e.memory, e.storage, e.owed_wait, e.delivered "
		"FROM unnest($2::text[], $3::text[], $4::text[], $5::bigint[], $6::bigint[], $7::bigint[], $8::bigint[], "
		"$9::bigint[]) AS e(tenant, isolation, classes, cpu, memory, storage, owed_wait, delivered) JOIN tenant x ON x.name = e.tenant",
		"");
	in_place(db_columns) struct db_columns c = {0};

	db_columns_init(&c, 8);
	for (size_t i = 0; i < p->tenant_count; i++) {
		array_text(&c.col[0], p->tenants[i].name);
		array_text(&c.col[1], p->tenants[i].isolation);
		add_class_names(&c.col[2], &p->tenants[i]);
		add_resources(&c.col[3], &p->tenants[i].limits);
		add_sla(&c.col[6], &p->tenants[i].sla);
	}
	return write_columns(db, &table, &c, effective_ns, err);
}

/* kind, model, profile, instances, units. The units of an instance are unknown where its model is not named. */
static void
add_amount(struct db_array *cols, const char *kind, const struct quantity *q)
{
	struct err ignored;
	int64_t units = 0;
	bool known = (q->model[0] || !q->profile[0]) && !q->unlimited && quantity_units(q, q->model, &units, &ignored);

	array_text(&cols[0], kind);
	array_text(&cols[1], q->model);
	array_text(&cols[2], q->profile);
	array_i64_or_null(&cols[3], q->profile[0] != '\0', q->num);
	array_i64_or_null(&cols[4], known, units);
}

static bool
write_tenant_limits(struct db *db, const struct policy *p, int64_t effective_ns, struct err *err)
{
	static const struct over_time table =
		OVER_TIME("policy tenant limits", "tenant_limit", "tenant_id, kind, model, profile, instances, units",
	                  "t.tenant_id, t.kind, t.model, t.profile, t.instances, t.units",
	                  "SELECT x.id, e.kind, e.model, e.profile, e.instances, e.units "
	                  "FROM unnest($2::text[], $3::text[], $4::text[], $5::text[], $6::bigint[], $7::bigint[]) "
	                  "AS e(tenant, kind, model, profile, instances, units) JOIN tenant x ON x.name = e.tenant",
	                  "");
	in_place(db_columns) struct db_columns c = {0};

	db_columns_init(&c, 6);
	for (size_t i = 0; i < p->tenant_count; i++) {
		const struct policy_tenant *t = &p->tenants[i];
		const struct policy_amounts *const amounts[] = {&t->maximum, &t->default_limit};
		static const char *const kinds[] = {"maximum", "default_limit"};

		for (size_t k = 0; k < ARRAY_LEN(amounts); k++)
			for (size_t m = 0; m < amounts[k]->count; m++) {
				array_text(&c.col[0], t->name);
				add_amount(&c.col[1], kinds[k], &amounts[k]->at[m]);
			}
	}
	return write_columns(db, &table, &c, effective_ns, err);
}

static bool
write_workspace_quotas(struct db *db, const struct policy *p, int64_t effective_ns, struct err *err)
{
	static const struct over_time table = OVER_TIME(
		"policy workspace quotas", "workspace_quota",
		"workspace_id, reclaim, preempt_own, weight, enforce, idle_timeout_ns, cpu_millis, memory_bytes, "
		"storage_bytes, owed_wait_ns, delivered_millionths",
		"t.workspace_id, t.reclaim, t.preempt_own, t.weight, t.enforce, t.idle_timeout_ns, t.cpu_millis, "
		"t.memory_bytes, t.storage_bytes, t.owed_wait_ns, t.delivered_millionths",
		"SELECT w.id, e.reclaim, e.preempt_own, e.weight, e.enforce, e.idle, e.cpu, e.memory, e.storage, e.owed_wait, e.delivered "
		"FROM unnest($2::text[], $3::text[], $4::text[], $5::text[], $6::integer[], $7::text[], $8::bigint[], "
		"$9::bigint[], $10::bigint[], $11::bigint[], $12::bigint[], $13::bigint[]) AS e(tenant, workspace, reclaim, preempt_own, weight, "
		"enforce, idle, cpu, memory, storage, owed_wait, delivered) " WORKSPACE_OF_E,
		"");
	in_place(db_columns) struct db_columns c = {0};

	db_columns_init(&c, 12);
	for (size_t i = 0; i < p->tenant_count; i++)
		for (size_t k = 0; k < p->tenants[i].workspace_count; k++) {
			const struct policy_workspace *w = &p->tenants[i].workspaces[k];

			array_text(&c.col[0], p->tenants[i].name);
			array_text(&c.col[1], w->name);
			array_text(&c.col[2], w->reclaim);
			array_text(&c.col[3], w->preempt_own);
			array_i64(&c.col[4], w->weight);
			array_text(&c.col[5], w->enforce);
			array_i64_or_null(&c.col[6], w->idle_timeout_ns > 0, w->idle_timeout_ns);
			add_resources(&c.col[7], &w->limits);
			add_sla(&c.col[10], &w->sla);
		}
	return write_columns(db, &table, &c, effective_ns, err);
}

static bool
write_workspace_limits(struct db *db, const struct policy *p, int64_t effective_ns, struct err *err)
{
	static const struct over_time table = OVER_TIME(
		"policy workspace limits", "workspace_limit", "workspace_id, kind, model, profile, instances, units",
		"t.workspace_id, t.kind, t.model, t.profile, t.instances, t.units",
		"SELECT w.id, e.kind, e.model, e.profile, e.instances, e.units FROM unnest($2::text[], $3::text[], "
		"$4::text[], $5::text[], $6::text[], $7::bigint[], $8::bigint[]) "
		"AS e(tenant, workspace, kind, model, profile, instances, units) " WORKSPACE_OF_E,
		"");
	in_place(db_columns) struct db_columns c = {0};

	db_columns_init(&c, 7);
	for (size_t i = 0; i < p->tenant_count; i++)
		for (size_t k = 0; k < p->tenants[i].workspace_count; k++) {
			const struct policy_workspace *w = &p->tenants[i].workspaces[k];
			const struct policy_amounts *const amounts[] = {&w->limit, &w->borrow, &w->lend};
			static const char *const kinds[] = {"limit", "borrow", "lend"};

			for (size_t n = 0; n < ARRAY_LEN(amounts); n++)
				for (size_t m = 0; m < amounts[n]->count; m++) {
					array_text(&c.col[0], p->tenants[i].name);
					array_text(&c.col[1], w->name);
					add_amount(&c.col[2], kinds[n], &amounts[n]->at[m]);
				}
		}
	return write_columns(db, &table, &c, effective_ns, err);
}

static void
add_budget(struct db_columns *c, const char *tenant, const char *workspace, const struct policy_budget *b)
{
	char text[DECIMAL_TEXT_SIZE];

	if (b->kind == NULL)
		return;
	array_text(&c->col[0], tenant);
	array_text(&c->col[1], workspace);
	array_text(&c->col[2], b->kind);
	array_text(&c->col[3], budget_unit_is_money(b->unit) ? b->unit : NULL);
	array_text(&c->col[4], decimal_format(b->amount, PRICE_SCALE, 0, text));
	array_text(&c->col[5], strcmp(b->unit, BUDGET_TOKENS) == 0 ? b->unit : NULL);
}

static bool
write_budgets(struct db *db, const struct policy *p, int64_t effective_ns, struct err *err)
{
	static const struct over_time table = OVER_TIME(
		"policy budgets", "budget", "tenant_id, workspace_id, kind, currency, amount, meter_unit",
		"t.tenant_id, t.workspace_id, t.kind, t.currency, t.amount, t.meter_unit",
		"SELECT x.id, w.id, e.kind, e.currency, e.amount::numeric(30, 9), e.meter_unit FROM unnest($2::text[], $3::text[], "
		"$4::text[], $5::text[], $6::numeric[], $7::text[]) AS e(tenant, workspace, kind, currency, amount, meter_unit) JOIN tenant x ON "
		"x.name = e.tenant LEFT JOIN workspace w ON w.tenant_id = x.id AND w.name = e.workspace",
		"");
	in_place(db_columns) struct db_columns c = {0};

	db_columns_init(&c, 6);
	for (size_t i = 0; i < p->tenant_count; i++) {
		const struct policy_tenant *t = &p->tenants[i];

		add_budget(&c, t->name, NULL, &t->budget);
		for (size_t k = 0; k < t->workspace_count; k++)
			add_budget(&c, t->name, t->workspaces[k].name, &t->workspaces[k].budget);
	}
	return write_columns(db, &table, &c, effective_ns, err);
}

static bool
write_auto_approve(struct db *db, const struct policy *p, int64_t effective_ns, struct err *err)
{
	static const struct over_time table = OVER_TIME(
		"policy auto-approval", "tenant_auto_approve", "tenant_id, units, for_ns",
		"t.tenant_id, t.units, t.for_ns",
		"SELECT x.id, e.units, e.for_ns FROM unnest($2::text[], $3::bigint[], $4::bigint[]) AS e(tenant, units, "
		"for_ns) JOIN tenant x ON x.name = e.tenant",
		"");
	in_place(db_columns) struct db_columns c = {0};

	db_columns_init(&c, 3);
	for (size_t i = 0; i < p->tenant_count; i++) {
		const struct policy_tenant *t = &p->tenants[i];

		if (t->auto_approve.units == 0)
			continue;
		array_text(&c.col[0], t->name);
		array_i64(&c.col[1], t->auto_approve.units);
		array_i64(&c.col[2], t->auto_approve.for_ns);
	}
	return write_columns(db, &table, &c, effective_ns, err);
}

static bool
write_quotas(struct db *db, const struct policy *p, int64_t effective_ns, struct err *err)
{
	return write_classes(db, p, effective_ns, err) && write_tenant_members(db, p, effective_ns, err) &&
	       write_workspace_members(db, p, effective_ns, err) && write_tenant_quotas(db, p, effective_ns, err) &&
	       write_tenant_limits(db, p, effective_ns, err) && write_workspace_quotas(db, p, effective_ns, err) &&
	       write_workspace_limits(db, p, effective_ns, err) && write_budgets(db, p, effective_ns, err) &&
	       write_auto_approve(db, p, effective_ns, err);
}

/* --- the whole policy --- */

bool
policy_write(struct db *db, const struct policy *p, const char *only, const char *file, int64_t effective_ns,
             int64_t closed_ns, struct err *err)
{
	bool home_changed = false, rules_changed = false;

	if (!write_home(db, p->cluster, effective_ns, &home_changed, err) || !write_tenants(db, p, effective_ns, err) ||
	    !write_workspaces(db, p, effective_ns, err) || !write_nodes(db, p, effective_ns, err) ||
	    !write_quotas(db, p, effective_ns, err) || !policy_write_nodes(db, p, file, effective_ns, err) ||
	    !policy_write_reservations(db, p, only, file, effective_ns, err) ||
	    !write_rules(db, p, effective_ns, &rules_changed, err) ||
	    !(closed_ns > effective_ns ? price_book_unchanged(db, p->prices, closed_ns, err)
	                               : price_book_write(db, p->prices, effective_ns, err)))
		return false;
	/* A rule may name a cluster. */
	if (!home_changed && !rules_changed)
		return true;
	return reattribute_begin(db, effective_ns, err);
}
