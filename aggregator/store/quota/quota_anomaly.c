/* aggregator/store/quota/quota_anomaly.c - differences between telemetry and the quota book, idle leases, and the gauges of quota. */
#include "aggregator/store/db/db.h"
#include "aggregator/store/quota/quota_store.h"

/* New anomalies are inserted, present ones stay, others are deleted; beginnings and ends are audited. */
static bool
keep_anomalies(struct db *db, const struct quota_loop_out *found, int64_t now_ns, struct err *err)
{
	static const struct db_stmt stmt = {
		"quota anomalies",
		"WITH e AS (SELECT e.kind, e.subject, t.id AS tenant_id, e.detail FROM unnest($2::text[], $3::text[], $4::text[], "
		"$5::jsonb[]) AS e(kind, subject, tenant, detail) LEFT JOIN tenant t ON t.name = e.tenant), "
		"ended AS (DELETE FROM quota_anomaly a WHERE NOT EXISTS (SELECT FROM e WHERE e.kind = a.kind AND e.subject = a.subject) "
		"RETURNING a.kind, a.subject, a.tenant_id, a.since_ns, a.detail), "
		"kept AS (UPDATE quota_anomaly a SET last_ns = greatest(a.last_ns, $1), detail = e.detail FROM e WHERE e.kind = a.kind AND "
		"e.subject = a.subject AND (a.detail <> e.detail OR a.last_ns < $1 - 60000000000)), "
		"began AS (INSERT INTO quota_anomaly (kind, subject, tenant_id, since_ns, last_ns, detail) SELECT e.kind, e.subject, "
		"e.tenant_id, $1, $1, e.detail FROM e WHERE NOT EXISTS (SELECT FROM quota_anomaly a WHERE a.kind = e.kind AND a.subject = "
		"e.subject) RETURNING kind, subject, tenant_id, detail) "
		"INSERT INTO audit_log (actor, action, subject, before, after, tenant_id) "
		"SELECT 'tollgate-aggregator', 'quota.anomaly.begin', kind || ' ' || subject, NULL::jsonb, detail - 'holder', tenant_id FROM began "
		"UNION ALL SELECT 'tollgate-aggregator', 'quota.anomaly.end', kind || ' ' || subject, (detail - 'holder') || jsonb_build_object('since', "
		"rfc3339(at_ns(since_ns))), NULL, tenant_id FROM ended"};
	in_place(db_columns) struct db_columns c = {0};
	struct db_args a = {0};

	db_columns_init(&c, 4);
	for (size_t i = 0; i < found->anomaly_count; i++) {
		array_text(&c.col[0], found->anomalies[i].kind);
		array_text(&c.col[1], found->anomalies[i].subject);
		array_text(&c.col[2], found->anomalies[i].tenant);
		array_text(&c.col[3], found->anomalies[i].detail);
	}
	arg_i64(&a, now_ns);
	arg_columns(&a, &c);
	return db_run(db, &stmt, &a, NULL, err);
}

static bool
keep_idle(struct db *db, const struct quota_loop_out *found, struct err *err)
{
	static const struct db_stmt stmt = {
		"quota idle keep",
		"WITH e AS (SELECT * FROM unnest($1::text[], $2::bigint[], $3::bigint[]) AS e(lease_id, since_ns, warned_ns)), "
		"gone AS (DELETE FROM quota_idle i WHERE NOT EXISTS (SELECT FROM e WHERE e.lease_id = i.lease_id)) "
		"INSERT INTO quota_idle AS i (lease_id, since_ns, warned_ns) SELECT e.lease_id, e.since_ns, nullif(e.warned_ns, 0) FROM e "
		"ON CONFLICT (lease_id) DO UPDATE SET since_ns = excluded.since_ns, warned_ns = excluded.warned_ns "
		"WHERE (i.since_ns, i.warned_ns) IS DISTINCT FROM (excluded.since_ns, excluded.warned_ns)"};
	in_place(db_columns) struct db_columns c = {0};
	struct db_args a = {0};

	db_columns_init(&c, 3);
	for (size_t i = 0; i < found->idle_count; i++) {
		array_text(&c.col[0], found->idle[i].lease);
		array_i64(&c.col[1], found->idle[i].since_ns);
		array_i64(&c.col[2], found->idle[i].warned_ns);
	}
	arg_columns(&a, &c);
	return db_run(db, &stmt, &a, NULL, err);
}

bool
store_quota_anomalies(struct db *db, const struct quota_loop_out *found, int64_t now_ns, struct err *err)
{
	return keep_anomalies(db, found, now_ns, err) && keep_idle(db, found, err);
}

bool
store_quota_anomalies_json(struct db *db, const char *tenant, struct buf *out, struct err *err)
{
	static const struct db_stmt stmt = {
		"quota anomalies list",
		"SELECT a.kind, coalesce(d.request_id, a.subject) AS subject, coalesce(t.name, '') AS tenant, rfc3339(at_ns(a.since_ns)) AS since, "
		"rfc3339(at_ns(a.last_ns)) AS last, CASE WHEN $1::text IS NULL THEN a.detail ELSE a.detail - 'holder' END AS detail "
		"FROM quota_anomaly a LEFT JOIN tenant t ON t.id = a.tenant_id "
		"LEFT JOIN decision d ON d.key = a.subject WHERE a.kind <> 'ungated' AND ($1::text IS NULL OR t.name = $1) "
		"ORDER BY a.since_ns, a.kind, a.subject LIMIT 10000"};
	owned(result) PGresult *r = NULL;
	struct db_args a = {0};

	arg_text(&a, tenant);
	if (!db_run(db, &stmt, &a, &r, err))
		return false;
	buf_str(out, "{\"anomalies\":");
	res_json(r, out);
	buf_str(out, "}\n");
	return buf_ok(out, "the list", err);
}

bool
store_quota_unleased_json(struct db *db, const char *tenant, struct buf *out, struct err *err)
{
	static const struct db_stmt stmt = {
		"quota unleased list",
		"SELECT a.detail ->> 'workspace' AS workspace, a.detail ->> 'node' AS node, a.detail -> 'gpus' AS gpus "
		"FROM quota_anomaly a LEFT JOIN tenant t ON t.id = a.tenant_id WHERE a.kind IN ('unleased', 'ungated') "
		"AND ($1::text IS NULL OR t.name = $1) ORDER BY 1, 2 LIMIT 10000"};
	owned(result) PGresult *r = NULL;
	struct db_args a = {0};

	arg_text(&a, tenant);
	if (!db_run(db, &stmt, &a, &r, err))
		return false;
	res_json(r, out);
	return buf_ok(out, "the list", err);
}

/* ---- gauges ---------------------------------------------------------------------------------------------------------------- */

bool
store_quota_gauges(struct db *db, int64_t now_ns, quota_gauge_row *each, void *arg, struct err *err)
{
	/* the numbers are those of enum quota_gauge_family */
	static const struct db_stmt stmt = {
		"quota gauges",
		"SELECT 0, coalesce(t.name, ''), '', r.state, count(*) FROM reclaim r JOIN decision d ON d.key = r.lease_id "
		"LEFT JOIN tenant t ON t.id = d.tenant_id WHERE r.state NOT IN ('returned', 'cancelled') GROUP BY 2, 4 "
		"UNION ALL SELECT 1, t.name, '', CASE x.status WHEN 'requested' THEN 'requested' ELSE CASE WHEN "
		"lower(x.effective) > $1::timestamptz THEN 'approved' ELSE 'running' END END, count(*) FROM exception x JOIN tenant t "
		"ON t.id = x.tenant_id WHERE x.status IN ('requested', 'approved') AND upper(x.effective) > $1::timestamptz GROUP BY "
		"2, 4 "
		"UNION ALL SELECT 2, coalesce(t.name, ''), '', a.kind, count(*) FROM quota_anomaly a LEFT JOIN tenant t ON t.id = "
		"a.tenant_id WHERE a.kind <> 'ungated' GROUP BY 2, 4 "
		"UNION ALL SELECT 3, coalesce(t.name, ''), split_part(a.detail ->> 'workspace', '/', 2), '', "
		"round(sum((a.detail ->> 'gpus')::numeric) * 5040)::bigint FROM quota_anomaly a LEFT JOIN tenant t ON t.id = "
		"a.tenant_id WHERE a.kind = 'unleased' AND a.detail ->> 'gpus' ~ '^[0-9]+(\\.[0-9]+)?$' GROUP BY 2, 3"};
	owned(result) PGresult *r = NULL;
	struct db_args a = {0};

	arg_time(&a, now_ns);
	if (!db_run(db, &stmt, &a, &r, err))
		return false;
	for (int row = 0; row < PQntuples(r); row++)
		each(arg, &(struct quota_gauge){.family = (enum quota_gauge_family)res_i64(r, row, 0),
		                                .tenant = res_text(r, row, 1),
		                                .workspace = res_text(r, row, 2),
		                                .kind = res_text(r, row, 3),
		                                .amount = res_i64(r, row, 4)});
	return true;
}
