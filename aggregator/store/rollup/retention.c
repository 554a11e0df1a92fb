/* aggregator/store/rollup/retention.c - makes partitions for the coming days and deletes data after its retention
 * time.
 *
 * Rules, in order:
 *  1. the records of a UTC day are deleted when every node-hour of it is sealed and clean, and every billing day that
 *     it reaches into is folded
 *  2. ingest never waits: the lock is requested briefly, and again in the next run
 *  3. batches are deleted after their period was closed, from the front of their stream, in whole ranges
 *     (sql/0010_usage_functions.sql); later batches for that time cannot be verified any more and are quarantined
 *     (ingest_accept.c)
 *  4. node-hours are deleted when their day is folded and their records are deleted
 *  5. ages are measured from the nodes' covered time, never from a clock that is ahead of it */
#include <inttypes.h>

#include "aggregator/store/rollup/rollup_internal.h"

#define PARTITION_DAYS_AHEAD 2
#define DAYS_AT_ONCE 10
#define ROWS_AT_ONCE 5000
#define RETIRE_LOCK_TIMEOUT "SET LOCAL lock_timeout = '200ms'"
/* Even with clocks that differ by a day, no replica accepts a batch for time that another one retires. */
#define BATCH_AGE_MIN_NS (2 * EVIDENCE_ASKED_NS)

/* --- ahead --- */

struct ahead {
	int64_t now_ns, made;
};

static bool
make_ahead(struct db *db, void *arg, struct err *err)
{
	static const struct db_stmt stmt = {"partitions ahead", "SELECT make_partitions($1, $2)"};
	struct ahead *w = arg;
	in_place(db_tx) struct db_tx tx = {0};
	owned(result) PGresult *r = NULL;
	struct db_args a = {0};

	arg_i64(&a, w->now_ns);
	arg_i64(&a, w->now_ns + PARTITION_DAYS_AHEAD * NS_PER_DAY);
	if (!db_tx_begin(&tx, db, err) || !db_run(db, &stmt, &a, &r, err) || !db_tx_commit(&tx, err))
		return false;
	w->made = res_i64(r, 0, 0);
	return true;
}

bool
store_partitions(struct db *db, int64_t now_ns, int64_t *ret_made, struct err *err)
{
	struct ahead w = {.now_ns = now_ns};
	bool ok = background_alone(db, DB_LOCK_RETAIN, make_ahead, &w, err);

	*ret_made = w.made;
	return ok;
}

/* --- records --- */

struct retaining {
	int64_t now_ns;
	const struct retention *keep;
	struct retention_result *result;
};

/* Rules 1 and 2. */
static bool
retire_day(struct db *db, int64_t day, struct retention_result *ret, struct err *err)
{
	static const struct db_stmt stmt = {"retire day", "SELECT retire_intervals($1)"};
	in_place(db_tx) struct db_tx tx = {0};
	owned(result) PGresult *r = NULL;
	struct db_args a = {0};

	arg_i64(&a, day);
	if (!db_tx_begin_long(&tx, db, DB_WORK_ROLLUP, err) || !db_script(db, RETIRE_LOCK_TIMEOUT, err))
		return false;
	if (!db_run(db, &stmt, &a, &r, err)) {
		if (err->kind != ERR_RETRY)
			return false;
		ret->busy++;
		return true;
	}
	if (!res_bool(r, 0, 0))
		return true;
	if (!db_tx_commit(&tx, err))
		return false;
	ret->days++;
	return true;
}

static bool
retire_days(struct db *db, struct retaining *w, struct err *err)
{
	static const struct db_stmt stmt = {
		"days to retire",
		"SELECT d.day FROM (SELECT (to_date(right(c.relname, 8), 'YYYYMMDD') - date '1970-01-01')::bigint AS day "
		"FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid WHERE i.inhparent = 'usage_interval'::regclass) d "
		"WHERE (d.day + 1) * 86400000000000 <= $1 AND NOT EXISTS (SELECT FROM node_hour h "
		"WHERE h.hour > at_ns(d.day * 86400000000000) - interval '1 hour' "
		"AND h.hour < at_ns((d.day + 1) * 86400000000000) AND (h.sealed_at IS NULL OR h.dirty)) "
		"AND NOT EXISTS (SELECT FROM billing_day b WHERE b.dirty AND b.starts_at < at_ns((d.day + 1) * 86400000000000) "
		"AND b.ends_at > at_ns(d.day * 86400000000000) - interval '1 hour') ORDER BY d.day LIMIT $2"};
	owned(result) PGresult *r = NULL;
	struct db_args a = {0};

	if (w->keep->intervals_ns == 0)
		return true;
	arg_i64(&a, w->now_ns - w->keep->intervals_ns);
	arg_i64(&a, DAYS_AT_ONCE);
	if (!db_run(db, &stmt, &a, &r, err))
		return false;
	for (int row = 0; row < PQntuples(r); row++)
		if (!retire_day(db, res_i64(r, row, 0), w->result, err))
			return err_prefix(err, "retiring the records of day %" PRId64, res_i64(r, row, 0));
	return true;
}

/* --- batches --- */

/* Rule 3. Periods are closed in order: a batch must end before the end of the newest period that was closed long
 * enough ago. Batches that arrived later and are in quarantine stay as long. The stream's row is locked as by ingest,
 * so that no push reads a batch that is being deleted. */
static bool
retire_batches(struct db *db, struct retaining *w, struct err *err)
{
	static const struct db_stmt lock = {"evidence alone", "SELECT pg_advisory_xact_lock(" DB_LOCK_EVIDENCE ")"};
	/* The start of the remaining batches is in the audit log: verify accepts the ledger's value only with that
	 * entry. */
	static const struct db_stmt limit = {
		"evidence limit",
		"WITH was AS (SELECT evidence_from_ns AS ns FROM ledger), moved AS (UPDATE ledger SET evidence_from_ns = x.ns FROM (SELECT max(ns_of(p.ends_at)) AS ns FROM period p "
		"WHERE p.status = 'closed' AND p.closed_at <= $1 AND p.ends_at <= $1 AND NOT EXISTS (SELECT FROM period o "
		"WHERE o.starts_at < p.starts_at AND o.status <> 'closed')) x WHERE x.ns > evidence_from_ns RETURNING evidence_from_ns AS ns) "
		"INSERT INTO audit_log (actor, action, subject, before, after, reason) SELECT 'tollgate-aggregator', 'evidence.retire', 'batches', "
		"jsonb_build_object('evidence_from', rfc3339(at_ns(w.ns))), jsonb_build_object('evidence_from', rfc3339(at_ns(m.ns))), "
		"'kept as long as keep_batches says' FROM was w, moved m"};
	static const struct db_stmt drop = {
		"evidence drop",
		"WITH old AS (SELECT s.id, s.evidence_seq, (SELECT min(b.seq) FROM ingest_batch b WHERE b.stream_id = s.id "
		"AND (b.to_ns > l.evidence_from_ns OR b.received_at > $2)) AS keep_seq, s.next_seq FROM stream s, ledger l "
		"WHERE EXISTS (SELECT FROM ingest_batch b WHERE b.stream_id = s.id AND b.seq = s.evidence_seq "
		"AND b.to_ns <= l.evidence_from_ns AND b.received_at <= $2) AND NOT EXISTS (SELECT FROM batch_range r JOIN ingest_batch b "
		"ON b.stream_id = s.id AND b.seq BETWEEN r.first_seq AND r.last_seq WHERE r.stream_id = s.id AND r.first_seq = s.evidence_seq "
		"AND (b.to_ns > l.evidence_from_ns OR b.received_at > $2)) ORDER BY s.id LIMIT 100 FOR NO KEY UPDATE OF s), "
		"cut AS (SELECT o.id, coalesce((SELECT max(r.last_seq) + 1 FROM batch_range r WHERE r.stream_id = o.id AND r.first_seq >= o.evidence_seq "
		"AND r.first_seq < o.evidence_seq + $1 AND r.last_seq < coalesce(o.keep_seq, o.next_seq)), "
		"least(coalesce(o.keep_seq, o.next_seq), o.evidence_seq + $1)) AS seq FROM old o), "
		"gone AS (DELETE FROM ingest_batch b USING cut c WHERE b.stream_id = c.id AND b.seq < c.seq RETURNING b.stream_id, b.last_seq), "
		"moved AS (UPDATE stream s SET evidence_seq = g.seq + 1 FROM (SELECT stream_id, max(last_seq) AS seq, count(*) AS n "
		"FROM gone GROUP BY stream_id) g WHERE s.id = g.stream_id RETURNING g.n), "
		"told AS (INSERT INTO audit_log (actor, action, subject, after, reason) SELECT 'tollgate-aggregator', 'evidence.retire', 'batches', "
		"jsonb_build_object('batches', sum(m.n), 'streams', count(*)), 'kept as long as keep_batches says' FROM moved m HAVING count(*) > 0) "
		"SELECT n FROM moved"};
	in_place(db_tx) struct db_tx tx = {0};
	owned(result) PGresult *r = NULL;
	struct db_args at = {0}, rows = {0};
	int64_t at_ns;

	if (w->keep->batches_ns == 0)
		return true;
	at_ns = w->now_ns - (w->keep->batches_ns > BATCH_AGE_MIN_NS ? w->keep->batches_ns : BATCH_AGE_MIN_NS);
	arg_time(&at, at_ns);
	arg_i64(&rows, ROWS_AT_ONCE);
	arg_time(&rows, at_ns);
	if (!db_tx_begin_long(&tx, db, DB_WORK_ROLLUP, err) || !db_run(db, &lock, NULL, NULL, err) ||
	    !db_run(db, &limit, &at, NULL, err) || !db_run(db, &drop, &rows, &r, err) || !db_tx_commit(&tx, err))
		return false;
	for (int row = 0; row < PQntuples(r); row++)
		w->result->batches += res_i64(r, row, 0);
	return true;
}

/* --- hours --- */

/* Rule 4. The node's hours then begin later, and still have no hole. The day can never be folded again. */
static bool
retire_day_hours(struct db *db, const char *day, struct retention_result *ret, struct err *err)
{
	static const struct db_stmt lock = {"hours lock", "SELECT pg_try_advisory_xact_lock(" DB_LOCK_DAY ", "
	                                                  "day_lock($1::date))"};
	static const struct db_stmt end = {"hours end", "UPDATE billing_day SET hours_gone = true WHERE day = $1::date "
	                                                "AND NOT dirty RETURNING day"};
	/* The day's charges are final from here on; the journal covers them. */
	static const struct db_stmt keep = {"hours keep", "SELECT journal_day($1::date)"};
	static const struct db_stmt audit = {
		"hours audit",
		"INSERT INTO audit_log (actor, action, subject, after, reason) SELECT 'tollgate-aggregator', "
		"'hours.retire', 'day ' || $1, jsonb_build_object('node_hours', count(*)), 'kept as long as keep_hours says' FROM node_hour h "
		"JOIN billing_day b ON b.day = $1::date AND h.hour >= b.starts_at AND h.hour < b.ends_at"};
	static const struct db_stmt nodes = {
		"hours nodes",
		"UPDATE node n SET hours_from = CASE WHEN n.hours_until > x.ends_at THEN x.ends_at END, "
		"hours_until = CASE WHEN n.hours_until > x.ends_at THEN n.hours_until END FROM (SELECT n.id, b.ends_at "
		"FROM node n, billing_day b WHERE b.day = $1::date AND n.hours_from < b.ends_at ORDER BY n.id "
		"FOR NO KEY UPDATE OF n) x WHERE n.id = x.id"};
	static const struct db_stmt rows = {"hours rows",
	                                    "DELETE FROM usage_hourly u USING billing_day b WHERE b.day = $1::date "
	                                    "AND u.hour >= b.starts_at AND u.hour < b.ends_at"};
	static const struct db_stmt hours = {
		"hours hours",
		"WITH gone AS (DELETE FROM node_hour h USING billing_day b WHERE b.day = $1::date "
		"AND h.hour >= b.starts_at AND h.hour < b.ends_at RETURNING 1) SELECT count(*) FROM gone"};
	in_place(db_tx) struct db_tx tx = {0};
	owned(result) PGresult *mine = NULL, *ended = NULL, *gone = NULL;
	struct db_args a = {0};

	arg_text(&a, day);
	if (!db_tx_begin_long(&tx, db, DB_WORK_ROLLUP, err) || !db_run(db, &lock, &a, &mine, err))
		return false;
	if (!res_bool(mine, 0, 0))
		return true;
	if (!db_run(db, &end, &a, &ended, err))
		return false;
	if (PQntuples(ended) == 0)
		return true;
	if (!db_run(db, &keep, &a, NULL, err) || !db_run(db, &audit, &a, NULL, err) ||
	    !db_run(db, &nodes, &a, NULL, err) || !db_run(db, &rows, &a, NULL, err) ||
	    !db_run(db, &hours, &a, &gone, err) || !db_tx_commit(&tx, err))
		return false;
	ret->hours += res_i64(gone, 0, 0);
	return true;
}

static bool
retire_hours(struct db *db, struct retaining *w, struct err *err)
{
	static const struct db_stmt stmt = {
		"hours to retire",
		"SELECT b.day FROM billing_day b WHERE b.ends_at <= $1 AND NOT b.dirty AND NOT b.hours_gone "
		"AND NOT EXISTS (SELECT FROM node_hour h WHERE h.hour >= b.starts_at AND h.hour < b.ends_at "
		"AND NOT h.retired) ORDER BY b.day LIMIT $2"};
	owned(result) PGresult *r = NULL;
	struct db_args a = {0};

	if (w->keep->hours_ns == 0)
		return true;
	arg_time(&a, w->now_ns - w->keep->hours_ns);
	arg_i64(&a, DAYS_AT_ONCE);
	if (!db_run(db, &stmt, &a, &r, err))
		return false;
	for (int row = 0; row < PQntuples(r); row++)
		if (!retire_day_hours(db, res_text(r, row, 0), w->result, err))
			return err_prefix(err, "retiring the hours of %s", res_text(r, row, 0));
	return true;
}

/* Rule 5. */
static bool
limit_now(struct db *db, struct retaining *w, struct err *err)
{
	static const struct db_stmt stmt = {"retain now", "SELECT coalesce(max(covered_until_ns), 0) FROM node"};
	owned(result) PGresult *r = NULL;

	if (!db_run(db, &stmt, NULL, &r, err))
		return false;
	if (res_i64(r, 0, 0) < w->now_ns)
		w->now_ns = res_i64(r, 0, 0);
	return true;
}

static bool
retain(struct db *db, void *arg, struct err *err)
{
	return limit_now(db, arg, err) && retire_days(db, arg, err) && retire_batches(db, arg, err) &&
	       retire_hours(db, arg, err);
}

bool
store_retain(struct db *db, int64_t now_ns, const struct retention *keep, struct retention_result *ret, struct err *err)
{
	struct retaining w = {.now_ns = now_ns, .keep = keep, .result = ret};

	*ret = (struct retention_result){0};
	return background_alone(db, DB_LOCK_RETAIN, retain, &w, err);
}
