/* aggregator/store/audit_seal.c - reads entered into the audit log; entries put into their chains, and sealed. */
#include "aggregator/store/audit.h"
#include "aggregator/store/db.h"

#define DB_LOCK_AUDIT DB_LOCK_CLASS ", 9"

/* The hour's moment is the first read's; a tenant that has gone since leaves the entry to the operator. */
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
