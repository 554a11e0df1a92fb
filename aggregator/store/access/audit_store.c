/* aggregator/store/access/audit_store.c - audit log: list, entries for reads, ranges of batches, chains and seals. */
#include "aggregator/store/access/access.h"
#include "aggregator/store/db/db.h"

/* --- list --- */

static void
arg_time_or_any(struct db_args *a, int64_t wall_ns)
{
	if (wall_ns == INT64_MIN || wall_ns == INT64_MAX)
		arg_text(a, NULL);
	else
		arg_time(a, wall_ns);
}

/* Not prepared: planned for the filters given, each with its own index. */
bool
store_audit_json(struct db *db, const struct audit_query *q, struct buf *out, struct err *err)
{
	static const char sql[] =
		"SELECT a.id, rfc3339(a.at) AS at, a.actor, a.action, a.subject, t.name AS tenant, a.before, a.after, "
		"a.reason FROM audit_log a LEFT JOIN tenant t ON t.id = a.tenant_id "
		"WHERE ($1::text IS NULL OR a.tenant_id = (SELECT id FROM tenant WHERE name = $1)) "
		"AND ($2::text IS NULL OR a.actor = $2) AND ($3::text IS NULL OR a.action = $3) "
		"AND ($4::text IS NULL OR a.subject = $4) AND ($5::timestamptz IS NULL OR a.at >= $5) "
		"AND ($6::timestamptz IS NULL OR a.at < $6) AND ($7::bigint = 0 OR a.id < $7) "
		"ORDER BY a.id DESC LIMIT $8::bigint + 1";
	owned(result) PGresult *r = NULL;
	struct db_args a = {0};

	arg_text(&a, q->tenant);
	arg_text(&a, q->actor);
	arg_text(&a, q->action);
	arg_text(&a, q->subject);
	arg_time_or_any(&a, q->from_ns);
	arg_time_or_any(&a, q->to_ns);
	arg_i64(&a, q->page.before);
	arg_i64(&a, q->page.limit);
	return db_run_text(db, sql, &a, &r, err) && res_json_page(r, "entries", q->page.limit, out, err);
}

/* --- entries for reads, chains and seals --- */

#define DB_LOCK_AUDIT DB_LOCK_CLASS ", 9"
#define DB_LOCK_ANCHOR DB_LOCK_CLASS ", 13"
#define ANCHOR_AT_ONCE 10000

/* The hourly entry has the time of the first read; the entry of a deleted tenant belongs to the operator. */
bool
store_audit_reads(struct db *db, const struct audit_read *reads, size_t n, struct err *err)
{
	static const struct db_stmt stmt = {
		"audit reads",
		"INSERT INTO audit_log (at, actor, action, subject, after, tenant_id) SELECT r.first, r.actor, r.action, "
		"r.subject, CASE WHEN r.times > 1 THEN jsonb_build_object('times', r.times, 'last', rfc3339(r.last)) END, "
		"(SELECT t.id FROM tenant t WHERE t.name = r.tenant) FROM unnest($1::text[], $2::text[], $3::text[], "
		"$4::text[], $5::timestamptz[], $6::timestamptz[], $7::bigint[]) "
		"WITH ORDINALITY r (actor, action, subject, tenant, first, last, times, i) ORDER BY r.i"};
	in_place(db_columns) struct db_columns c = {0};
	in_place(db_tx) struct db_tx tx = {0};
	struct db_args a = {0};

	db_columns_init(&c, 7);
	for (size_t i = 0; i < n; i++) {
		array_text(&c.col[0], reads[i].actor);
		array_text(&c.col[1], reads[i].action);
		array_text(&c.col[2], reads[i].subject);
		array_text(&c.col[3], reads[i].tenant);
		array_time(&c.col[4], reads[i].first_ns);
		array_time(&c.col[5], reads[i].last_ns);
		array_i64(&c.col[6], reads[i].times);
	}
	arg_columns(&a, &c);
	return db_tx_begin(&tx, db, err) && db_run(db, &stmt, &a, NULL, err) && db_tx_commit(&tx, err);
}

/* Retention makes ranges too, under the exclusive evidence lock. */
bool
store_batches_anchor(struct db *db, int64_t *ret_batches, bool *ret_more, struct err *err)
{
	static const struct db_stmt lock = {"anchor lock", "SELECT pg_advisory_xact_lock_shared(" DB_LOCK_EVIDENCE
	                                                   "), pg_advisory_xact_lock(" DB_LOCK_ANCHOR ")"};
	static const struct db_stmt stmt = {"anchor", "SELECT batches, more FROM batches_anchor($1::integer)"};
	in_place(db_tx) struct db_tx tx = {0};
	owned(result) PGresult *r = NULL;
	struct db_args a = {0};

	arg_i64(&a, ANCHOR_AT_ONCE);
	if (!db_tx_begin(&tx, db, err) || !db_run(db, &lock, NULL, NULL, err) || !db_run(db, &stmt, &a, &r, err) ||
	    !db_tx_commit(&tx, err))
		return err_prefix(err, "batches into ranges");
	*ret_batches = res_i64(r, 0, 0);
	*ret_more = res_bool(r, 0, 1);
	return true;
}

bool
store_audit_seal(struct db *db, int most, struct audit_sealed *ret, struct err *err)
{
	static const struct db_stmt lock = {"audit lock", "SELECT pg_try_advisory_xact_lock(" DB_LOCK_AUDIT ")"};
	static const struct db_stmt journal = {"journal seal", "SELECT journal_seal_entries($1::integer)"};
	static const struct db_stmt seal = {
		"audit seal", "SELECT entries, seal, encode(hash, 'hex') FROM audit_seal_entries($1::integer)"};
	in_place(db_tx) struct db_tx tx = {0};
	owned(result) PGresult *locked = NULL, *r = NULL;
	struct audit_sealed done = {0};
	struct db_args a = {0};

	arg_i64(&a, most);
	if (!db_tx_begin(&tx, db, err) || !db_run(db, &lock, NULL, &locked, err))
		return false;
	if (res_bool(locked, 0, 0)) {
		if (!db_run(db, &journal, &a, NULL, err) || !db_run(db, &seal, &a, &r, err))
			return false;
		if (PQntuples(r) == 1) {
			done.entries = res_i64(r, 0, 0);
			done.seal = res_i64(r, 0, 1);
			snprintf(done.hash, sizeof(done.hash), "%s", res_text(r, 0, 2));
		}
	}
	if (!db_tx_commit(&tx, err))
		return false;
	*ret = done;
	return true;
}

bool
store_journal_accept(struct db *db, const struct journal_accept *rq, struct buf *out, struct err *err)
{
	static const struct db_stmt look = {
		"journal entry",
		"SELECT json_build_object('entry', j.id, 'relation', j.relation, 'operation', j.operation, 'keys', j.keys, 'at', rfc3339(j.at)), EXISTS (SELECT "
		"FROM audit_log a WHERE a.action = 'journal.accept' AND a.subject = 'journal entry ' || j.id) FROM row_journal j WHERE j.id = $1"};
	static const struct db_stmt accept = {
		"journal accept",
		"INSERT INTO audit_log (actor, action, subject, after, reason) VALUES ($1, 'journal.accept', 'journal entry ' || $2, $3::jsonb, $4)"};
	in_place(db_tx) struct db_tx tx = {0};
	owned(result) PGresult *r = NULL;
	struct db_args one = {0}, a = {0};

	arg_i64(&one, rq->entry);
	if (!db_tx_begin(&tx, db, err) || !db_run(db, &look, &one, &r, err))
		return false;
	if (PQntuples(r) == 0)
		return err_set(err, ERR_MISSING, "the journal has no entry %" PRId64, rq->entry);
	if (res_bool(r, 0, 1))
		return err_set(err, ERR_CONFLICT, "entry %" PRId64 " of the journal is accepted already", rq->entry);
	arg_text(&a, rq->actor);
	arg_i64(&a, rq->entry);
	arg_text(&a, res_text(r, 0, 0));
	arg_text(&a, rq->reason);
	if (!db_run(db, &accept, &a, NULL, err) || !db_tx_commit(&tx, err))
		return false;
	buf_printf(out, "%s\n", res_text(r, 0, 0));
	return true;
}
