/* aggregator/store/ingest/live_gauges.c - what the daemon's gauges show beside usage: capacity, nodes, what waits. */
#include "aggregator/store/db/db.h"
#include "aggregator/store/ingest/ingest.h"

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

/* Nodes with GPUs in service; one that is retired has none. */
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
