/* aggregator/store/quota/decision_read.c - reading decisions: one with its verdict, lists, reclaims. */
#include "aggregator/store/quota/decision_state.h"

#include <string.h>

#include "aggregator/store/policy/attribution_store.h"
#include "aggregator/store/policy/policy_store.h"

/* The verdict is not kept twice: it is in the outcome of the event that gave it, and cut out there by bytes. */
#define VERDICT                                                                                                             \
	"(SELECT convert_from(substring(convert_to(e.outcome, 'UTF8') FROM d.verdict_at + 1 FOR d.verdict_bytes), 'UTF8') " \
	"FROM quota_event e WHERE e.seq = d.verdict_seq)"

void
decision_views_fini(struct decision_views *v)
{
	mem_free(v->at);
	PQclear(v->memory);
	*v = (struct decision_views){0};
}

static const char *
text_or_null(const PGresult *r, int row, int col)
{
	return res_null(r, row, col) ? NULL : res_text(r, row, col);
}

static void
view_of(const PGresult *r, int i, struct decision_view *v)
{
	int c = 0;

	v->key = res_text(r, i, c++);
	v->request_id = res_text(r, i, c++);
	v->tenant = res_text(r, i, c++);
	v->workspace = res_text(r, i, c++);
	v->status = res_text(r, i, c++);
	v->decision = res_text(r, i, c++);
	v->would = res_text(r, i, c++);
	v->rule = res_text(r, i, c++);
	v->warn = res_bool(r, i, c++);
	v->position = res_i64(r, i, c++);
	v->body = res_text(r, i, c++);
	v->asked_by = res_text(r, i, c++);
	v->submitted_ns = res_i64(r, i, c++);
	v->changed_ns = res_i64(r, i, c++);
	v->changed_seq = res_i64(r, i, c++);
	v->admitted_ns = res_i64(r, i, c++);
	v->confirmed_ns = res_i64(r, i, c++);
	v->seen_ns = res_i64(r, i, c++);
	v->released_ns = res_i64(r, i, c++);
	v->ended_ns = res_i64(r, i, c++);
	v->ended_why = res_text(r, i, c++);
	v->reclaim = res_text(r, i, c++);
	v->workload.namespace = text_or_null(r, i, c++);
	v->workload.pod = text_or_null(r, i, c++);
	v->workload.pod_uid = text_or_null(r, i, c++);
	v->workload.slurm_job = text_or_null(r, i, c++);
	v->workload.list = text_or_null(r, i, c++);
	v->adopted_ns = res_i64(r, i, c++);
	v->verdict = text_or_null(r, i, c);
}

bool
store_decisions_get(struct db *db, const char *const *keys, size_t n, struct decision_views *ret, struct err *err)
{
	static const struct db_stmt stmt = {
		"decision_get",
		"SELECT d.key, d.request_id, split_part(d.workspace, '/', 1), d.workspace, d.status, d.decision, d.would, d.rule, d.warn, d.position, d.body, "
		"d.asked_by, d.submitted_ns, d.changed_ns, d.changed_seq, d.admitted_ns, d.confirmed_ns, d.seen_ns, d.released_ns, "
		"d.ended_ns, d.ended_why, (SELECT r.state FROM reclaim r WHERE r.lease_id = d.key AND r.state NOT IN "
		"('returned', 'cancelled')), d.workload_namespace, d.workload_pod, d.workload_pod_uid, d.workload_slurm_job, to_json(d.workloads), d.adopted_ns, " VERDICT
		" FROM unnest($1::text[]) AS i(key) CROSS JOIN LATERAL (SELECT * FROM decision WHERE key = i.key LIMIT 1) d"};
	in_place(db_array) struct db_array list = {0};
	owned(result) PGresult *r = NULL;
	struct db_args a = {0};

	db_array_init(&list);
	for (size_t i = 0; i < n; i++)
		array_text(&list, keys[i]);
	arg_array(&a, &list);
	if (!db_run(db, &stmt, &a, &r, err))
		return false;
	*ret = (struct decision_views){.count = (size_t)PQntuples(r)};
	ret->at = mem_array(ret->count + 1, sizeof(*ret->at));
	for (size_t i = 0; i < ret->count; i++)
		view_of(r, (int)i, &ret->at[i]);
	ret->memory = take(r);
	return true;
}

static void
copy_text(const PGresult *r, int col, char *out, size_t size)
{
	memset(out, 0, size);
	memcpy(out, res_text(r, 0, col), strnlen(res_text(r, 0, col), size - 1));
}

bool
store_decision_find(struct db *db, const char *tenant, const char *request_id, char ret_key[QUOTA_ID_SIZE],
                    char ret_tenant[DECISION_TENANT_SIZE], struct err *err)
{
	static const struct db_stmt stmt = {
		"decision_find",
		"SELECT key, split_part(workspace, '/', 1) AS tenant FROM decision WHERE request_id = $1 "
		"AND ($2::text IS NULL OR split_part(workspace, '/', 1) = $2) ORDER BY tenant LIMIT 2"};
	owned(result) PGresult *r = NULL;
	struct db_args a = {0};

	arg_text(&a, request_id);
	arg_text(&a, tenant);
	if (!db_run(db, &stmt, &a, &r, err))
		return false;
	if (PQntuples(r) == 0)
		return err_set(err, ERR_MISSING, "there is no decision or lease \"%s\"", request_id);
	if (PQntuples(r) > 1)
		return err_set(err, ERR_CONFLICT,
		               "request_id: \"%s\" is of more than one tenant: say %s/%s, %s/%s or another one's",
		               request_id, res_text(r, 0, 1), request_id, res_text(r, 1, 1), request_id);
	copy_text(r, 0, ret_key, QUOTA_ID_SIZE);
	copy_text(r, 1, ret_tenant, DECISION_TENANT_SIZE);
	return true;
}

bool
store_decision_workspace(struct db *db, const char *tenant, const char *request_id, char **ret, struct err *err)
{
	static const struct db_stmt stmt = {
		"decision_workspace",
		"SELECT workspace FROM decision WHERE request_id = $1 AND split_part(workspace, '/', 1) = $2 LIMIT 1"};
	owned(result) PGresult *r = NULL;
	struct db_args a = {0};

	*ret = NULL;
	arg_text(&a, request_id);
	arg_text(&a, tenant);
	if (!db_run(db, &stmt, &a, &r, err))
		return false;
	if (PQntuples(r) > 0)
		*ret = mem_strdup(res_text(r, 0, 0));
	return true;
}

bool
store_decision_replayed(struct db *db, const char *now, const char *request_id, const uint8_t digest[SHA256_SIZE],
                        char **ret, struct err *err)
{
	static const struct db_stmt stmt = {
		"decision_replayed",
		"SELECT workspace, tenant, named FROM (SELECT d.workspace, t.tenant, coalesce(t.tenant = split_part($2, '/', 1), false) AS named, "
		"d.status, d.asked_by FROM decision d CROSS JOIN LATERAL (SELECT split_part(d.workspace, '/', 1) AS tenant) t "
		"WHERE d.request_id = $1 AND d.digest = $3) x WHERE named OR (status IN ('waiting', 'admitted', 'confirmed', 'suspect') "
		"AND split_part(asked_by, ' ', 1) IN ('admin', 'scheduler')) ORDER BY named DESC, tenant LIMIT 2"};
	owned(result) PGresult *r = NULL;
	struct db_args a = {0};

	*ret = NULL;
	arg_text(&a, request_id);
	arg_text(&a, now);
	arg_bytes(&a, digest, SHA256_SIZE);
	if (!db_run(db, &stmt, &a, &r, err))
		return false;
	if (PQntuples(r) > 1 && !res_bool(r, 0, 2))
		return err_set(
			err, ERR_CONFLICT,
			"request_id: \"%s\" was asked for with this workload for %s and for %s, and the rules name neither now: use another one",
			request_id, res_text(r, 0, 1), res_text(r, 1, 1));
	if (PQntuples(r) > 0)
		*ret = mem_strdup(res_text(r, 0, 0));
	return true;
}

bool
store_workload_workspace(struct db *db, struct rules_kept **kept, const char *cluster, const struct wire_holder *holder,
                         char **ret, struct err *err)
{
	int64_t now_ns = 0;

	return store_quota_clock(db, &now_ns, err) && attribute_workload(db, kept, now_ns, cluster, holder, ret, err);
}

/* Not prepared: planned for the filters given. */
bool
store_decisions_json(struct db *db, const struct decision_query *q, struct buf *out, struct err *err)
{
	static const char sql[] =
		"SELECT d.id, d.request_id, d.workspace, d.status, d.decision, d.would, d.rule, d.warn, "
		"CASE WHEN d.status = 'waiting' THEN coalesce(p.position, d.position) ELSE 0 END AS position, "
		"CASE WHEN d.status = 'waiting' THEN p.pool END AS queue_pool, "
		"CASE WHEN d.status = 'waiting' THEN rfc3339(at_ns(nullif(p.start_ns, 0))) END AS expected_start, d.body AS request, "
		"d.asked_by, rfc3339(at_ns(d.submitted_ns)) AS submitted_at, rfc3339(at_ns(d.changed_ns)) AS changed_at, "
		"rfc3339(at_ns(d.adopted_ns)) AS adopted_at, rfc3339(at_ns(d.admitted_ns)) AS admitted_at, rfc3339(at_ns(d.confirmed_ns)) AS confirmed_at, "
		"rfc3339(at_ns(d.seen_ns)) AS seen_at, rfc3339(at_ns(d.released_ns)) AS released_at, "
		"rfc3339(at_ns(d.ended_ns)) AS ended_at, d.ended_why, coalesce(to_json(d.workloads), '[]') AS workloads, "
		"(SELECT r.state FROM reclaim r WHERE r.lease_id = d.key AND r.state NOT IN ('returned', 'cancelled')) AS reclaim "
		"FROM decision d LEFT JOIN unnest($7::text[], $8::bigint[], $9::text[], $10::bigint[]) AS p(key, position, pool, start_ns) ON p.key = d.key "
		"WHERE ($1::text IS NULL OR d.tenant_id = (SELECT id FROM tenant WHERE name = $1)) "
		"AND ($2::text IS NULL OR d.workspace = $2) AND CASE WHEN $3::text IS NOT NULL THEN d.status = $3 "
		"WHEN $4::boolean THEN d.status IN ('admitted', 'confirmed', 'suspect') ELSE true END "
		"AND (NOT $4 OR d.admitted_ns IS NOT NULL) AND ($5::bigint = 0 OR d.id < $5) ORDER BY d.id DESC LIMIT $6::bigint + 1";
	in_place(db_columns) struct db_columns places = {0};
	owned(result) PGresult *r = NULL;
	struct db_args a = {0};

	db_columns_init(&places, 4);
	for (size_t i = 0; i < q->place_count; i++) {
		array_text(&places.col[0], q->places[i].id);
		array_i64(&places.col[1], q->places[i].position);
		array_text(&places.col[2], q->places[i].shared ? "shared" : "own");
		array_i64(&places.col[3], q->places[i].start_ns);
	}
	arg_text(&a, q->tenant);
	arg_text(&a, q->workspace);
	arg_text(&a, q->status);
	arg_bool(&a, q->leases);
	arg_i64(&a, q->page.before);
	arg_i64(&a, q->page.limit);
	for (size_t i = 0; i < 4; i++)
		arg_array(&a, &places.col[i]);
	return db_run_text(db, sql, &a, &r, err) &&
	       res_json_page(r, q->leases ? "leases" : "decisions", q->page.limit, out, err);
}

/* The number of the log is read with the rows, so that nothing between the two is missed. */
bool
store_reclaims_json(struct db *db, const struct reclaim_query *q, struct buf *out, int64_t *ret_count, struct err *err)
{
	static const struct db_stmt stmt = {
		"reclaims",
		"SELECT b.seq, coalesce(json_agg(json_build_object('id', r.id, 'lease', d.request_id, 'workspace', d.workspace, "
		"'cause', r.cause, 'for', CASE WHEN $1::text IS NULL OR f.tenant_id = d.tenant_id THEN coalesce(f.request_id, r.for_request) END, "
		"'state', r.state, 'ordered_at', rfc3339(at_ns(r.ordered_ns)), 'due_at', "
		"rfc3339(at_ns(r.due_ns)), 'due_in_seconds', floor((coalesce(u.due_ns, r.due_ns) - greatest(b.at_ns, c.now_ns)) / 1000000000.0)::bigint, 'acked_at', rfc3339(at_ns(r.acked_ns)), 'ended_at', rfc3339(at_ns(r.ended_ns)), 'seq', "
		"r.changed_seq, 'workload', json_build_object('namespace', d.workload_namespace, 'pod', d.workload_pod, 'pod_uid', "
		"d.workload_pod_uid, 'slurm_job', d.workload_slurm_job), 'workloads', coalesce(to_json(d.workloads), '[]')) ORDER BY r.id) FILTER (WHERE r.id IS NOT NULL), '[]'), "
		"count(r.id) FROM quota_book b CROSS JOIN (SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint * 1000 AS now_ns) c "
		"LEFT JOIN (reclaim r JOIN decision d ON d.key = r.lease_id LEFT JOIN decision f ON f.key = r.for_request "
		"LEFT JOIN unnest($4::text[], $5::bigint[]) AS u(lease, due_ns) ON u.lease = r.lease_id AND r.ended_ns IS NULL) "
		"ON r.changed_seq > $2 AND ($3 OR r.state NOT IN ('returned', 'cancelled')) "
		"AND ($1::text IS NULL OR d.tenant_id = (SELECT id FROM tenant WHERE name = $1)) GROUP BY b.seq"};
	in_place(db_columns) struct db_columns due = {0};
	owned(result) PGresult *r = NULL;
	struct db_args a = {0};

	db_columns_init(&due, 2);
	for (size_t i = 0; i < q->due_count; i++) {
		array_text(&due.col[0], q->due[i].lease);
		array_i64(&due.col[1], q->due[i].due_ns);
	}
	arg_text(&a, q->tenant);
	arg_i64(&a, q->after);
	arg_bool(&a, q->ended);
	arg_columns(&a, &due);
	if (!db_run(db, &stmt, &a, &r, err))
		return false;
	buf_printf(out, "{\"reclaims\":%s,\"seq\":%" PRId64 "}\n", res_text(r, 0, 1), res_i64(r, 0, 0));
	*ret_count = res_i64(r, 0, 2);
	return true;
}

bool
store_reclaim_lease(struct db *db, int64_t id, const char *tenant, char ret_lease[QUOTA_ID_SIZE],
                    char ret_tenant[DECISION_TENANT_SIZE], char ret_state[16], struct err *err)
{
	static const struct db_stmt stmt = {
		"reclaim_lease",
		"SELECT r.lease_id, r.state, split_part(d.workspace, '/', 1) FROM reclaim r JOIN decision d ON d.key = r.lease_id LEFT JOIN tenant t ON "
		"t.id = d.tenant_id WHERE r.id = $1 AND ($2::text IS NULL OR t.name = $2)"};
	owned(result) PGresult *r = NULL;
	struct db_args a = {0};

	arg_i64(&a, id);
	arg_text(&a, tenant);
	if (!db_run(db, &stmt, &a, &r, err))
		return false;
	if (PQntuples(r) != 1)
		return err_set(err, ERR_MISSING, "there is no reclaim %" PRId64, id);
	copy_text(r, 0, ret_lease, QUOTA_ID_SIZE);
	copy_text(r, 1, ret_state, 16);
	copy_text(r, 2, ret_tenant, DECISION_TENANT_SIZE);
	return true;
}
