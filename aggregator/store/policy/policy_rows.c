/* aggregator/store/policy/policy_rows.c - a policy as rows, set by set.
 *
 * Tenants, workspaces and clusters are never deleted, because old usage keeps its name. What the file says of them, and
 * whether it names them, holds over ranges of billing hours, as owners, rules and prices do: what the file changes ends at
 * `effective`, what had not begun by then is taken back, and the new begins. What is the same stays untouched, so that
 * nothing is rolled up again without need. */
#include "aggregator/store/policy/attribute.h"
#include "aggregator/store/policy/policy_over_time.h"
#include "aggregator/store/policy/policy_rows.h"

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
	/* Whoever may apply a policy vouches for the nodes that it declares. */
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

bool
policy_rows_write(struct db *db, const struct policy *p, const char *only, const char *file, int64_t effective_ns,
                  int64_t closed_ns, struct err *err)
{
	bool home_changed = false, rules_changed = false;

	if (!write_home(db, p->cluster, effective_ns, &home_changed, err) || !write_tenants(db, p, effective_ns, err) ||
	    !write_workspaces(db, p, effective_ns, err) || !write_nodes(db, p, effective_ns, err) ||
	    !quota_rows_write(db, p, effective_ns, err) || !node_rows_write(db, p, file, effective_ns, err) ||
	    !reservation_rows_write(db, p, only, file, effective_ns, err) ||
	    !write_rules(db, p, effective_ns, &rules_changed, err) ||
	    !(closed_ns > effective_ns ? price_rows_keep(db, p->prices, closed_ns, err)
	                               : price_rows_write(db, p->prices, effective_ns, err)))
		return false;
	/* A rule may name a cluster. */
	if (!home_changed && !rules_changed)
		return true;
	return reattribute_begin(db, effective_ns, err);
}
