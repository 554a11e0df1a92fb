/* aggregator/store/quota/exception_read.c - exceptions listed, ended when their time has come, and handed to the quota log. */
#include "aggregator/store/db/db.h"
#include "aggregator/store/quota/exception_store.h"
#include "aggregator/store/quota/exception_rows.h"

/* Not prepared: planned for the filters given. */
bool
store_exceptions_json(struct db *db, const struct exception_query *q, struct buf *out, struct err *err)
{
	static const char sql[] = EXCEPTION_ROW(
		"$1") "WHERE ($2::text IS NULL OR t.name = $2) AND ($3::text IS NULL OR w.name = $3) AND ($4::text "
		      "IS NULL OR x.status = $4) AND ($5::bigint = 0 OR x.id < $5) ORDER BY x.id DESC LIMIT "
		      "$6::bigint + 1";
	owned(result) PGresult *r = NULL;
	struct db_args a = {0};

	arg_time(&a, q->now_ns);
	arg_text(&a, q->tenant);
	arg_text(&a, q->workspace);
	arg_text(&a, q->status);
	arg_i64(&a, q->page.before);
	arg_i64(&a, q->page.limit);
	return db_run_text(db, sql, &a, &r, err) && res_json_page(r, "exceptions", q->page.limit, out, err);
}

/* Rule 4. Whoever is deciding about one has it first; it is ended at the next turn. */
bool
store_exceptions_end(struct db *db, int64_t now_ns, int64_t *ret_ended, struct err *err)
{
	static const struct db_stmt stmt = {
		"exceptions end",
		"WITH due AS MATERIALIZED (SELECT x AS was FROM exception x WHERE x.status IN ('requested', 'approved') AND "
		"upper(x.effective) <= $1 FOR NO KEY UPDATE SKIP LOCKED), over AS (UPDATE exception x SET status = 'ended', "
		"over_by = 'tollgate-aggregator', over_at = upper(x.effective), over_why = CASE x.status WHEN 'requested' THEN "
		"'nobody decided' ELSE '' END FROM due WHERE x.id = (due.was).id RETURNING x AS is, due.was) INSERT INTO "
		"audit_log (actor, action, subject, before, after, reason, tenant_id) SELECT 'tollgate-aggregator', "
		"'exception.end', 'exception ' || (o.is).id, shown(o.was), shown(o.is), (o.is).over_why, (o.is).tenant_id FROM "
		"over o ORDER BY (o.is).id RETURNING id"};
	in_place(db_tx) struct db_tx tx = {0};
	owned(result) PGresult *r = NULL;
	struct db_args a = {0};

	arg_time(&a, now_ns);
	if (!db_tx_begin(&tx, db, err) || !db_run(db, &stmt, &a, &r, err) || !db_tx_commit(&tx, err))
		return false;
	*ret_ended = PQntuples(r);
	return true;
}

/* --- for the quota log --- */

void
exception_events_fini(struct exception_events *e)
{
	for (size_t i = 0; i < e->count; i++) {
		mem_free(e->at[i].actor);
		mem_free(e->at[i].event);
	}
	mem_free(e->at);
	*e = (struct exception_events){0};
}

/* Read by the index of what is missing, which is empty but for a moment. */
bool
store_exception_events(struct db *db, int64_t now_ns, struct exception_events *ret, struct err *err)
{
	static const struct db_stmt stmt = {
		"exception events",
		"SELECT x.id, x.status = 'revoked', CASE x.status WHEN 'revoked' THEN x.over_by ELSE x.decided_by END, CASE x.status "
		"WHEN 'revoked' THEN json_build_object('exception_end', 'exception-' || x.id) ELSE json_build_object('exception', "
		"json_build_object('id', 'exception-' || x.id, 'workspace', t.name || '/' || w.name, 'cluster', c.name, 'model', "
		"x.model, 'shared', x.shared, 'extra_limit_units', CASE x.kind WHEN 'limit' THEN x.units ELSE 0 END, "
		"'extra_reserved_units', CASE x.kind WHEN 'reserved' THEN x.units ELSE 0 END, 'from_ns', ns_of(lower(x.effective)), "
		"'until_ns', ns_of(upper(x.effective)))) END FROM exception x JOIN tenant t ON t.id = x.tenant_id JOIN workspace w ON "
		"w.id = x.workspace_id JOIN cluster c ON c.id = x.cluster_id WHERE ((x.status = 'approved' AND x.begun_seq IS NULL) "
		"OR (x.status = 'revoked' AND x.begun_seq IS NOT NULL AND x.ended_seq IS NULL)) AND upper(x.effective) > $1 ORDER "
		"BY x.id FOR NO KEY UPDATE OF x SKIP LOCKED"};
	owned(result) PGresult *r = NULL;
	struct db_args a = {0};

	arg_time(&a, now_ns);
	if (!db_run(db, &stmt, &a, &r, err))
		return false;
	*ret = (struct exception_events){.count = (size_t)PQntuples(r)};
	ret->at = mem_array(ret->count, sizeof(*ret->at));
	for (int row = 0; row < PQntuples(r); row++)
		ret->at[row] = (struct exception_event){.id = res_i64(r, row, 0),
		                                        .ends = res_bool(r, row, 1),
		                                        .actor = mem_strdup(res_text(r, row, 2)),
		                                        .event = mem_strdup(res_text(r, row, 3))};
	return true;
}

bool
store_exception_entered(struct db *db, const struct exception_event *e, int64_t seq, struct err *err)
{
	static const struct db_stmt begun = {"exception begun", "UPDATE exception SET begun_seq = $2 WHERE id = $1"};
	static const struct db_stmt ended = {"exception ended", "UPDATE exception SET ended_seq = $2 WHERE id = $1"};
	struct db_args a = {0};

	arg_i64(&a, e->id);
	arg_i64(&a, seq);
	return db_run(db, e->ends ? &ended : &begun, &a, NULL, err);
}
