/* aggregator/store/ingest/live_store.c - status of nodes: one row per node, replaced by each report; and the values
 * of the daemon's gauges. */
#include "aggregator/store/db/db.h"
#include "aggregator/store/ingest/ingest.h"

/* Makes the node's row: a status may be the first message of a node. */
static bool
make_node(struct db *db, const char *name, struct err *err)
{
	static const struct db_stmt stmt = {"live node insert",
	                                    "INSERT INTO node (cluster_id, name) SELECT cluster_id, $1 FROM ledger "
	                                    "ON CONFLICT (name) DO NOTHING"};
	struct db_args a = {0};

	arg_text(&a, name);
	return db_put(db, &stmt, &a, NULL, err);
}

/* Arrival time by the database's clock; the parameter is its age in microseconds. */
#define ARRIVED(age) "now() - " age "::bigint * interval '1 microsecond'"

/* The usual case: only the time has changed, and the lists are neither sent nor written again. */
static bool
touch(struct db *db, const struct live_status *s, int64_t skew_ns, int64_t age_ns, bool *ret_kept, struct err *err)
{
	static const struct db_stmt stmt = {
		"live touch",
		"UPDATE node_status s SET boot_ns = $3, wall_ns = $4, received_at = " ARRIVED(
			"$9") ", skew_ns = $5, "
			      "interval_ns = $6, left_out = $7 FROM node n WHERE n.name = $1 AND s.node_id = n.id "
			      "AND s.boot_id = $2 AND s.boot_ns <= $3 AND s.digest = $8 RETURNING 1"};
	owned(result) PGresult *r = NULL;
	struct db_args a = {0};

	arg_text(&a, s->node);
	arg_text(&a, s->boot_id);
	arg_i64(&a, s->boot_ns);
	arg_i64(&a, s->wall_ns);
	arg_i64(&a, skew_ns);
	arg_i64(&a, s->interval_ns);
	arg_i64(&a, s->left_out);
	arg_bytes(&a, s->digest, sizeof(s->digest));
	arg_i64(&a, age_ns / 1000);
	if (!db_put(db, &stmt, &a, &r, err))
		return false;
	*ret_kept = PQntuples(r) > 0;
	return true;
}

/* One idempotent statement. It need not be on disk before the answer: the next report repeats it. */
static bool
replace(struct db *db, const struct live_status *s, int64_t skew_ns, int64_t age_ns, bool *ret_node, bool *ret_kept,
        struct err *err)
{
	static const struct db_stmt stmt = {
		"live replace",
		"WITH n AS (SELECT id FROM node WHERE name = $1), kept AS (INSERT INTO node_status AS s (node_id, boot_id, "
		"boot_ns, wall_ns, received_at, skew_ns, interval_ns, left_out, digest, gpus, instances, holders) "
		"SELECT n.id, $2, $3, $4, " ARRIVED(
			"$12") ", $5, $6, $7, $8, $9, $10, $11 FROM n, "
			       "(SELECT set_config('synchronous_commit', 'off', true)) async ON CONFLICT (node_id) DO UPDATE SET "
			       "boot_id = excluded.boot_id, boot_ns = excluded.boot_ns, wall_ns = excluded.wall_ns, "
			       "received_at = excluded.received_at, skew_ns = excluded.skew_ns, interval_ns = excluded.interval_ns, "
			       "left_out = excluded.left_out, digest = excluded.digest, "
			       "gpus = excluded.gpus, instances = excluded.instances, holders = excluded.holders "
			       "WHERE s.boot_id <> excluded.boot_id OR s.boot_ns <= excluded.boot_ns RETURNING 1) "
			       "SELECT EXISTS (SELECT FROM n), EXISTS (SELECT FROM kept)"};
	owned(result) PGresult *r = NULL;
	struct db_args a = {0};

	arg_text(&a, s->node);
	arg_text(&a, s->boot_id);
	arg_i64(&a, s->boot_ns);
	arg_i64(&a, s->wall_ns);
	arg_i64(&a, skew_ns);
	arg_i64(&a, s->interval_ns);
	arg_i64(&a, s->left_out);
	arg_bytes(&a, s->digest, sizeof(s->digest));
	arg_text(&a, buf_text(&s->gpus));
	arg_text(&a, buf_text(&s->instances));
	arg_text(&a, buf_text(&s->holders));
	arg_i64(&a, age_ns / 1000);
	if (!db_put(db, &stmt, &a, &r, err))
		return false;
	*ret_node = res_bool(r, 0, 0);
	*ret_kept = res_bool(r, 0, 1);
	return true;
}

static bool
save_errors(struct db *db, const struct live_status *s, int64_t now_ns, struct err *err)
{
	static const struct db_stmt stmt = {"live errors", "SELECT xids_told($1, $2, $3)"};
	struct db_args a = {0};

	arg_text(&a, s->node);
	arg_text(&a, buf_text(&s->gpus));
	arg_i64(&a, now_ns);
	return s->error_count == 0 || db_put(db, &stmt, &a, NULL, err);
}

bool
store_status_keep(struct db *db, const struct live_status *s, const struct live_arrival *came, bool *ret_kept,
                  struct err *err)
{
	struct db_ledger ledger;
	bool known = false, kept = false, replaced;

	if (!db_ledger_get(db, &ledger, err))
		return false;
	if (s->simulated && !ledger.demo)
		return err_set(err, ERR_DENIED,
		               "the status was made by a simulator, and this ledger was not created as a demo");
	if (!touch(db, s, came->skew_ns, came->age_ns, &kept, err))
		return false;
	replaced = !kept;
	if (!kept && !replace(db, s, came->skew_ns, came->age_ns, &known, &kept, err))
		return false;
	if (!kept && !known &&
	    (!make_node(db, s->node, err) || !replace(db, s, came->skew_ns, came->age_ns, &known, &kept, err)))
		return false;
	if (replaced && kept && !save_errors(db, s, came->wall_ns, err))
		return false;
	*ret_kept = kept;
	return true;
}

/* $1 tenant, $2 node, $3 the limit of skew. A tenant sees:
 *  1. every GPU of its own nodes, and on other nodes the GPUs that it uses
 *  2. only its own holders */
static const char list_sql[] =
	"WITH seen AS (SELECT h.*, coalesce(t.name, '') AS tenant, coalesce(w.name, '') AS workspace FROM live_holder h "
	"LEFT JOIN workspace w ON w.id = h.workspace_id LEFT JOIN tenant t ON t.id = w.tenant_id "
	"WHERE $1::text IS NULL OR t.name = $1), "
	"nodes AS (SELECT n.id, n.name, c.name AS cluster, coalesce(t.name, '') AS tenant, "
	"$1::text IS NULL OR coalesce(t.name = $1, false) AS whole, s.received_at, s.interval_ns, s.skew_ns, s.left_out, "
	"(SELECT count(*) FROM gpu_service v WHERE v.node_id = n.id AND v.until_ns IS NULL) AS served FROM node n "
	"JOIN cluster c ON c.id = n.cluster_id LEFT JOIN node_status s ON s.node_id = n.id "
	"LEFT JOIN node_owner o ON o.node_id = n.id AND o.effective @> now() LEFT JOIN tenant t ON t.id = o.tenant_id "
	"WHERE ($2::text IS NULL OR n.name = $2)), "
	"gpus AS (SELECT g.node_id, count(*) AS gpus, count(*) FILTER (WHERE g.healthy) AS healthy, "
	"count(*) FILTER (WHERE x.held) AS held, jsonb_agg(jsonb_build_object('uuid', g.uuid, 'gpu_model', g.short_model, "
	"'index', g.index, 'healthy', g.healthy, 'reason', g.reason, 'xid', g.xid, 'sharing', g.sharing, 'replicas', g.replicas, "
	"'instances', coalesce(i.list, '[]'), 'holders', coalesce(x.list, '[]')) ORDER BY g.index, g.uuid) AS list "
	"FROM live_gpu g JOIN nodes n ON n.id = g.node_id "
	"LEFT JOIN LATERAL (SELECT bool_or(h.holds) AS held, jsonb_agg(jsonb_build_object('tenant', h.tenant, 'workspace', h.workspace, "
	"'kind', (ARRAY['pod', 'slurm_job', 'host_user'])[h.kind], 'namespace', h.namespace, 'pod', h.pod, 'pod_uid', h.pod_uid, "
	"'container', h.container, 'slurm_job', h.slurm_job, 'slurm_account', h.slurm_account, 'user', h.user_name, 'uid', h.uid, "
	"'device', h.device, 'replica', h.replica, 'allocated', h.allocated, 'holds', h.holds, 'active', h.active) "
	"ORDER BY h.device, h.replica, h.tenant, h.workspace, h.namespace, h.pod, h.slurm_job, h.user_name) AS list "
	"FROM seen h WHERE h.node_id = g.node_id AND h.gpu = g.uuid) x ON true "
	"LEFT JOIN LATERAL (SELECT jsonb_agg(jsonb_build_object('gi', i.gi, 'ci', i.ci, 'uuid', i.uuid, 'profile', i.profile, "
	"'units', i.units) ORDER BY i.gi, i.ci) AS list FROM live_instance i WHERE i.node_id = g.node_id AND i.gpu = g.uuid "
	"AND (n.whole OR EXISTS (SELECT FROM seen h WHERE h.node_id = i.node_id AND h.device = i.uuid))) i ON true "
	"WHERE n.whole OR x.list IS NOT NULL GROUP BY g.node_id) "
	"SELECT n.name AS node, n.cluster, CASE WHEN n.whole THEN n.tenant ELSE '' END AS tenant, rfc3339(n.received_at) AS received_at, "
	"floor(extract(epoch FROM now() - n.received_at))::bigint AS age_seconds, is_silent(n.received_at, n.interval_ns) AS silent, "
	"round(n.skew_ns / 1000000000.0, 3)::text AS skew_seconds, coalesce(abs(n.skew_ns) > $3, false) AS skewed, "
	"coalesce(g.gpus, 0) AS gpus, coalesce(g.healthy, 0) AS healthy, coalesce(g.held, 0) AS held, "
	"CASE WHEN n.whole THEN coalesce(n.left_out, 0) ELSE 0 END AS left_out, coalesce(g.list, '[]') AS devices "
	"FROM nodes n LEFT JOIN gpus g ON g.node_id = n.id "
	"WHERE CASE WHEN n.whole THEN n.received_at IS NOT NULL OR n.served > 0 ELSE g.list IS NOT NULL END ORDER BY n.name";

bool
store_status_json(struct db *db, const struct live_query *q, struct buf *out, struct err *err)
{
	static const struct db_stmt stmt = {"live list", list_sql};
	owned(result) PGresult *r = NULL;
	struct db_args a = {0};

	arg_text(&a, q->tenant);
	arg_text(&a, q->node);
	arg_i64(&a, q->skew_max_ns);
	if (!db_run(db, &stmt, &a, &r, err))
		return false;
	res_json(r, out);
	buf_char(out, '\n');
	return buf_ok(out, "the list", err);
}

/* --- figures for gauges: capacity, nodes, backlog --- */

bool
store_capacity(struct db *db, void (*each)(void *arg, const struct capacity_row *c), void *arg, struct err *err)
{
	static const struct db_stmt stmt = {
		"live capacity",
		"SELECT c.name, coalesce(t.name, ''), x.short_model, x.state, count(*) FROM capacity x "
		"JOIN cluster c ON c.id = x.cluster_id LEFT JOIN tenant t ON t.id = x.tenant_id "
		"GROUP BY 1, 2, 3, 4 ORDER BY 1, 2, 3, 4"};
	owned(result) PGresult *r = NULL;

	if (!db_run(db, &stmt, NULL, &r, err))
		return false;
	for (int row = 0; row < PQntuples(r); row++)
		each(arg, &(struct capacity_row){.cluster = res_text(r, row, 0),
		                                 .tenant = res_text(r, row, 1),
		                                 .gpu_model = res_text(r, row, 2),
		                                 .state = res_text(r, row, 3),
		                                 .gpus = res_i64(r, row, 4)});
	return true;
}

/* Nodes with GPUs in service; a retired node has none. */
bool
store_nodes(struct db *db, int64_t now_ns, void (*each)(void *arg, const struct node_row *n), void *arg,
            struct err *err)
{
	static const struct db_stmt stmt = {
		"live nodes",
		"SELECT c.name, n.name, coalesce(t.name, ''), greatest($1 - n.covered_until_ns, 0), "
		"greatest(ns_of(now()) - ns_of(s.received_at), 0), s.skew_ns, is_silent(s.received_at, s.interval_ns) "
		"FROM (SELECT DISTINCT node_id FROM capacity) x JOIN node n ON n.id = x.node_id "
		"JOIN cluster c ON c.id = n.cluster_id LEFT JOIN node_status s ON s.node_id = n.id "
		"LEFT JOIN node_owner o ON o.node_id = n.id AND o.effective @> now() "
		"LEFT JOIN tenant t ON t.id = o.tenant_id ORDER BY n.name"};
	owned(result) PGresult *r = NULL;
	struct db_args a = {0};

	arg_i64(&a, now_ns);
	if (!db_run(db, &stmt, &a, &r, err))
		return false;
	for (int row = 0; row < PQntuples(r); row++)
		each(arg, &(struct node_row){.cluster = res_text(r, row, 0),
		                             .node = res_text(r, row, 1),
		                             .tenant = res_text(r, row, 2),
		                             .lag_ns = res_null(r, row, 3) ? -1 : res_i64(r, row, 3),
		                             .heard = !res_null(r, row, 4),
		                             .age_ns = res_i64(r, row, 4),
		                             .skew_ns = res_i64(r, row, 5),
		                             .silent = res_bool(r, row, 6)});
	return true;
}

bool
store_backlog(struct db *db, int64_t now_ns, struct backlog *ret, struct err *err)
{
	static const struct db_stmt stmt = {
		"live backlog",
		"SELECT q.n, q.age, h.open, h.dirty, h.age, x.n FROM (SELECT coalesce(sum(n), 0)::bigint AS n, "
		"coalesce(ns_of(now()) - ns_of(min(received_at)), 0) AS age FROM (SELECT 1 AS n, received_at "
		"FROM ingest_batch WHERE status = 'quarantined' AND decision IS NULL AND class IS DISTINCT FROM 'unapproved' UNION ALL SELECT a.n, b.received_at "
		"FROM (SELECT stream_id, min(seq) AS seq, count(*) AS n FROM batch_set_aside WHERE decision IS NULL GROUP BY stream_id) a "
		"JOIN ingest_batch b USING (stream_id, seq)) w) q, (SELECT count(*) AS n FROM node "
		"WHERE approved_at IS NULL AND (EXISTS (SELECT FROM stream s WHERE s.node_id = node.id) OR EXISTS (SELECT FROM node_status s "
		"WHERE s.node_id = node.id))) x, (SELECT count(*) FILTER (WHERE NOT dirty) AS open, "
		"count(*) FILTER (WHERE dirty) AS dirty, coalesce($1 - ns_of(min(hour)) - 3600000000000, 0) AS age "
		"FROM node_hour WHERE sealed_at IS NULL OR dirty) h"};
	owned(result) PGresult *r = NULL;
	struct db_args a = {0};

	arg_i64(&a, now_ns);
	if (!db_run(db, &stmt, &a, &r, err))
		return false;
	*ret = (struct backlog){.quarantined = res_i64(r, 0, 0),
	                        .quarantine_age_ns = res_i64(r, 0, 1),
	                        .open_hours = res_i64(r, 0, 2),
	                        .dirty_hours = res_i64(r, 0, 3),
	                        .unsealed_age_ns = res_i64(r, 0, 4),
	                        .held_nodes = res_i64(r, 0, 5)};
	if (ret->unsealed_age_ns < 0)
		ret->unsealed_age_ns = 0;
	return true;
}

bool
store_workspaces(struct db *db, void (*each)(void *arg, int32_t id, const char *tenant, const char *workspace),
                 void *arg, struct err *err)
{
	static const struct db_stmt stmt = {
		"live workspaces",
		"SELECT w.id, t.name, w.name FROM workspace w JOIN tenant t ON t.id = w.tenant_id ORDER BY w.id"};
	owned(result) PGresult *r = NULL;

	if (!db_run(db, &stmt, NULL, &r, err))
		return false;
	for (int row = 0; row < PQntuples(r); row++)
		each(arg, (int32_t)res_i64(r, row, 0), res_text(r, row, 1), res_text(r, row, 2));
	return true;
}
