/* aggregator/store/policy/policy_write_nodes.c - writes the capacity and state of nodes, and the reservations of workspaces, as rows. */
#include "aggregator/store/policy/policy_write.h"

/* ---- nodes ---- */

static bool
write_declared(struct db *db, const struct policy *p, int64_t effective_ns, struct err *err)
{
	static const struct over_time table =
		OVER_TIME("policy declared", "node_declared", "node_id, model, profile, count, units",
	                  "t.node_id, t.model, t.profile, t.count, t.units",
	                  "SELECT n.id, e.model, e.profile, e.count, e.units "
	                  "FROM unnest($2::text[], $3::text[], $4::text[], $5::bigint[], $6::bigint[]) "
	                  "AS e(node, model, profile, count, units) JOIN node n ON n.name = e.node",
	                  "");
	in_place(db_columns) struct db_columns c = {0};
	struct db_args a = {0};

	db_columns_init(&c, 5);
	for (size_t i = 0; i < p->node_count; i++) {
		const struct policy_node *n = &p->nodes[i];

		for (size_t k = 0; k <= n->profile_count; k++) {
			const char *profile = k > 0 ? n->profiles[k - 1].profile : "";
			int64_t count = k > 0 ? n->profiles[k - 1].count : n->gpus, units = UNITS_PER_GPU;

			if (count == 0 || (k > 0 && !quantity_profile_units(n->model, profile, &units, err)))
				continue;
			array_text(&c.col[0], n->name);
			array_text(&c.col[1], n->model);
			array_text(&c.col[2], profile);
			array_i64(&c.col[3], count);
			array_i64(&c.col[4], units);
		}
	}
	arg_time(&a, effective_ns);
	arg_columns(&a, &c);
	return over_time_write(db, &table, &a, err);
}

/* A GPU that is listed has been seen: a mistyped UUID would be a state of nothing. Where it was seen does not matter: the node
 * under which it is listed is where it belongs. */
static bool
check_devices(struct db *db, struct db_columns *c, const char *file, struct err *err)
{
	static const struct db_stmt stmt = {
		"policy devices",
		"SELECT e.node, e.uuid, e.line FROM unnest($1::text[], $2::text[], $3::integer[]) "
		"AS e(node, uuid, line) WHERE NOT EXISTS (SELECT FROM gpu g JOIN gpu_service s ON s.gpu_id = g.id "
		"WHERE g.uuid = e.uuid) ORDER BY e.line LIMIT 1"};
	owned(result) PGresult *r = NULL;
	struct db_args a = {0};

	arg_array(&a, &c->col[0]);
	arg_array(&a, &c->col[1]);
	arg_array(&a, &c->col[3]);
	if (!db_run(db, &stmt, &a, &r, err))
		return false;
	return PQntuples(r) == 0 ||
	       err_set(err, ERR_CONFLICT, "%s:%s: device \"%s\" of node %s: no such GPU has been seen", file,
	               res_text(r, 0, 2), res_text(r, 0, 1), res_text(r, 0, 0));
}

static bool
write_states(struct db *db, const struct policy *p, const char *file, int64_t effective_ns, struct err *err)
{
	static const struct over_time nodes =
		OVER_TIME("policy node states", "node_state", "node_id, state", "t.node_id, t.state",
	                  "SELECT n.id, e.state FROM unnest($2::text[], $3::text[]) AS e(node, state) "
	                  "JOIN node n ON n.name = e.node",
	                  "AND t.node_id IS NOT NULL");
	static const struct over_time gpus =
		OVER_TIME("policy gpu states", "node_state", "gpu_id, state", "t.gpu_id, t.state",
	                  "SELECT g.id, e.state FROM unnest($2::text[], $3::text[]) AS e(uuid, state) "
	                  "JOIN gpu g ON g.uuid = e.uuid",
	                  "AND t.gpu_id IS NOT NULL");
	static const struct over_time places =
		OVER_TIME("policy gpu places", "gpu_declared", "gpu_id, node_id", "t.gpu_id, t.node_id",
	                  "SELECT g.id, n.id FROM unnest($2::text[], $3::text[]) AS e(node, uuid) "
	                  "JOIN gpu g ON g.uuid = e.uuid JOIN node n ON n.name = e.node",
	                  "");
	in_place(db_columns) struct db_columns n = {0}, d = {0};
	struct db_args of_nodes = {0}, of_gpus = {0}, of_places = {0};

	db_columns_init(&n, 2);
	db_columns_init(&d, 4);
	for (size_t i = 0; i < p->node_count; i++) {
		array_text(&n.col[0], p->nodes[i].name);
		array_text(&n.col[1], p->nodes[i].state);
		for (size_t k = 0; k < p->nodes[i].device_count; k++) {
			array_text(&d.col[0], p->nodes[i].name);
			array_text(&d.col[1], p->nodes[i].devices[k].uuid);
			array_text(&d.col[2], p->nodes[i].devices[k].state);
			array_i64(&d.col[3], p->nodes[i].devices[k].line);
		}
	}
	if (!check_devices(db, &d, file, err))
		return false;
	arg_time(&of_nodes, effective_ns);
	arg_columns(&of_nodes, &n);
	arg_time(&of_gpus, effective_ns);
	arg_array(&of_gpus, &d.col[1]);
	arg_array(&of_gpus, &d.col[2]);
	arg_time(&of_places, effective_ns);
	arg_array(&of_places, &d.col[0]);
	arg_array(&of_places, &d.col[1]);
	return over_time_write(db, &nodes, &of_nodes, err) && over_time_write(db, &gpus, &of_gpus, err) &&
	       over_time_write(db, &places, &of_places, err);
}

bool
policy_write_nodes(struct db *db, const struct policy *p, const char *file, int64_t effective_ns, struct err *err)
{
	return write_declared(db, p, effective_ns, err) && write_states(db, p, file, effective_ns, err);
}

/* ---- reservations ---- */

static bool
any_reserved(const struct policy *p)
{
	for (size_t i = 0; i < p->tenant_count; i++)
		for (size_t k = 0; k < p->tenants[i].workspace_count; k++)
			if (p->tenants[i].workspaces[k].reserved.count > 0 ||
			    p->tenants[i].workspaces[k].reserved_shared.count > 0)
				return true;
	return false;
}

/* The GPUs in service, and of a partitioned one its instances: those devices whose records reach as far as any of the GPU's
 * do, in the last quarter-hour that the node accounts for. */
static bool
load_seen(struct db *db, PGresult **ret, struct err *err)
{
	static const struct db_stmt stmt = {
		"policy seen",
		"WITH live AS (SELECT n.id AS node_id, n.name, n.covered_until_ns, g.gpu_id, g.uuid, "
		"g.short_model FROM gpu_now g JOIN node n ON n.id = g.node_id), "
		"cut AS (SELECT DISTINCT l.node_id, l.covered_until_ns FROM live l "
		"WHERE EXISTS (SELECT FROM device d WHERE d.gpu_id = l.gpu_id AND d.gi >= 0)), "
		"ends AS (SELECT d.gpu_id, d.id, d.gi, d.profile, d.units, max(u.start_ns + u.duration_ns) AS until_ns "
		"FROM cut c CROSS JOIN LATERAL (SELECT u.device_id, u.start_ns, u.duration_ns FROM usage_interval u "
		"WHERE u.node_id = c.node_id AND u.start_ns >= c.covered_until_ns - 900000000000 "
		"AND u.start_ns < c.covered_until_ns) u JOIN device d ON d.id = u.device_id GROUP BY d.id), "
		"parts AS (SELECT gpu_id, profile, units, count(*) AS count FROM (SELECT *, max(until_ns) "
		"OVER (PARTITION BY gpu_id) AS last_ns FROM ends) e WHERE until_ns = last_ns AND gi >= 0 "
		"GROUP BY gpu_id, profile, units) "
		"SELECT l.name, l.uuid, l.short_model, coalesce(p.profile, ''), coalesce(p.count, 1), "
		"coalesce(p.units, 5040) FROM live l LEFT JOIN parts p ON p.gpu_id = l.gpu_id"};

	return db_run(db, &stmt, NULL, ret, err);
}

static bool
write_reservations(struct db *db, const struct policy_reservations *r, const char *only, int64_t effective_ns,
                   struct err *err)
{
	static const struct over_time table = OVER_TIME(
		"policy reservations", "reservation",
		"workspace_id, cluster_id, shared, model, profile, instances, units",
		"t.workspace_id, t.cluster_id, t.shared, t.model, t.profile, t.instances, t.units",
		"SELECT w.id, k.id AS cluster_id, e.shared, e.model, e.profile, e.instances, e.units "
		"FROM unnest($3::text[], $4::text[], $5::text[], $6::boolean[], $7::text[], $8::text[], $9::bigint[], "
		"$10::bigint[]) AS e(tenant, workspace, cluster, shared, model, profile, instances, units) "
		"JOIN tenant x ON x.name = e.tenant JOIN workspace w ON w.tenant_id = x.id AND w.name = e.workspace "
		"JOIN cluster k ON k.name = e.cluster",
		"AND ($2::text IS NULL OR EXISTS (SELECT FROM workspace o JOIN tenant y ON y.id = o.tenant_id "
		"WHERE o.id = t.workspace_id AND y.name = $2))");
	in_place(db_columns) struct db_columns c = {0};
	struct db_args a = {0};

	db_columns_init(&c, 8);
	for (size_t i = 0; i < r->count; i++) {
		const struct policy_reservation *x = &r->at[i];

		array_text(&c.col[0], x->tenant);
		array_text(&c.col[1], x->workspace);
		array_text(&c.col[2], x->cluster);
		array_text(&c.col[3], x->shared ? "t" : "f");
		array_text(&c.col[4], x->model);
		array_text(&c.col[5], x->profile);
		array_i64_or_null(&c.col[6], x->instances > 0, x->instances);
		array_i64(&c.col[7], x->units);
	}
	arg_time(&a, effective_ns);
	arg_text(&a, only);
	arg_columns(&a, &c);
	return over_time_write(db, &table, &a, err);
}

bool
policy_write_reservations(struct db *db, const struct policy *p, const char *only, const char *file,
                          int64_t effective_ns, struct err *err)
{
	in_place(policy_reservations) struct policy_reservations r = {0};
	owned(mem) struct policy_seen *seen = NULL;
	owned(result) PGresult *rows = NULL;
	int count = 0;

	if (any_reserved(p)) {
		if (!load_seen(db, &rows, err))
			return false;
		count = PQntuples(rows);
	}
	seen = mem_array((size_t)count, sizeof(*seen));
	for (int i = 0; i < count; i++)
		seen[i] = (struct policy_seen){.node = res_text(rows, i, 0),
		                               .gpu = res_text(rows, i, 1),
		                               .model = res_text(rows, i, 2),
		                               .profile = res_text(rows, i, 3),
		                               .count = res_i64(rows, i, 4),
		                               .units = res_i64(rows, i, 5)};
	return policy_reserve(p, seen, (size_t)count, only, file, &r, err) &&
	       write_reservations(db, &r, only, effective_ns, err);
}
