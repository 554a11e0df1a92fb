/* aggregator/store/policy/reattribute.c - what a change of rules means for the holders that are there already, in small steps.
 *
 * Rules, in order:
 *  1. the change itself is one transaction; it leaves a note from when on holders are due (table reattribution)
 *  2. a step is a transaction with the policy lock shared: new holders are made and attributed meanwhile, by the new rules
 *  3. first the holders, page by page; then the hours, a few at a time: those sealed with another answer become dirty
 *  4. an hour is looked at with its rows locked, so that one that is being sealed with the old answers is waited for
 *  5. a change before the end begins again, from the earlier of both times: a step does not care what was done before
 *  6. the end is in the audit log, where somebody has another owner for it */
#include "aggregator/store/policy/attribute.h"

#define HOLDERS_AT_ONCE 2000
#define HOURS_AT_ONCE "24 hours"

bool
reattribute_begin(struct db *db, int64_t effective_ns, struct err *err)
{
	static const struct db_stmt stmt = {
		"reattribution begin",
		"INSERT INTO reattribution AS r (effective_at, last_id, holders) "
		"SELECT $1, coalesce(max(h.id), 0), count(*) FROM holder h "
		"ON CONFLICT (one) DO UPDATE SET effective_at = CASE WHEN r.finished_at IS NULL "
		"THEN least(r.effective_at, EXCLUDED.effective_at) ELSE EXCLUDED.effective_at END, started_at = now(), "
		"finished_at = NULL, after_id = 0, last_id = EXCLUDED.last_id, holders = EXCLUDED.holders, holders_done = 0, "
		"changed = 0, hour = NULL, last_hour = NULL, hours_dirty = 0"};
	struct db_args a = {0};

	arg_time(&a, effective_ns);
	return db_run(db, &stmt, &a, NULL, err);
}

static bool
step_holders(struct db *db, int64_t effective_ns, int64_t after_id, struct err *err)
{
	static const struct db_stmt stmt = {
		"reattribution holders",
		"UPDATE reattribution SET after_id = CASE WHEN $2 = 0 THEN greatest(last_id, $1) ELSE $1 END, "
		"holders_done = holders_done + $2, changed = changed + $3, "
		"hour = CASE WHEN $2 = 0 OR $1 >= last_id THEN effective_at END, "
		"last_hour = CASE WHEN $2 = 0 OR $1 >= last_id THEN (SELECT max(h.hour) FROM node_hour h) END"};
	struct attribute_page page;
	struct db_args a = {0};

	if (!attribute_page(db, effective_ns, after_id, HOLDERS_AT_ONCE, &page, err))
		return false;
	arg_i64(&a, page.last_id);
	arg_i64(&a, page.holders);
	arg_i64(&a, page.changed);
	return db_run(db, &stmt, &a, NULL, err);
}

/* Rules 3 and 4. Sealing that begins later reads what the holders have now. */
static bool
step_hours(struct db *db, struct err *err)
{
	static const struct db_stmt mark = {"reattribution hours",
	                                    "UPDATE reattribution SET hours_dirty = hours_dirty + "
	                                    "node_hours_reattribute(hour, hour + interval '" HOURS_AT_ONCE "'), "
	                                    "hour = hour + interval '" HOURS_AT_ONCE "'"};

	return db_run(db, &mark, NULL, NULL, err);
}

/* Rule 6. */
static bool
finish(struct db *db, struct err *err)
{
	static const struct db_stmt stmt = {
		"reattribution end",
		"WITH done AS (UPDATE reattribution SET finished_at = clock_timestamp() RETURNING *) "
		"INSERT INTO audit_log (actor, action, subject, after) SELECT 'tollgate-aggregator', 'policy.reattribute', "
		"'holders from ' || rfc3339(d.effective_at) || ' on', jsonb_build_object('effective', rfc3339(d.effective_at), "
		"'holders', d.holders_done, 'changed', d.changed, 'hours', d.hours_dirty, 'started', rfc3339(d.started_at)) "
		"FROM done d WHERE d.changed > 0"};

	return db_run(db, &stmt, NULL, NULL, err);
}

/* Rule 2. Another replica that is at it is let be. */
static bool
step(struct db *db, bool *ret_more, struct err *err)
{
	static const struct db_stmt lock = {"reattribution policy",
	                                    "SELECT pg_advisory_xact_lock_shared(" DB_LOCK_POLICY ")"};
	static const struct db_stmt due = {
		"reattribution due",
		"SELECT ns_of(effective_at), after_id, hour IS NULL, coalesce(hour > last_hour, true) "
		"FROM reattribution WHERE finished_at IS NULL FOR UPDATE SKIP LOCKED"};
	in_place(db_tx) struct db_tx tx = {0};
	owned(result) PGresult *r = NULL;
	bool ok;

	*ret_more = false;
	if (!db_tx_begin_long(&tx, db, DB_WORK_ROLLUP, err) || !db_run(db, &lock, NULL, NULL, err) ||
	    !db_run(db, &due, NULL, &r, err))
		return false;
	if (PQntuples(r) == 0)
		return true;
	*ret_more = true;
	if (res_bool(r, 0, 2))
		ok = step_holders(db, res_i64(r, 0, 0), res_i64(r, 0, 1), err);
	else if (!res_bool(r, 0, 3))
		ok = step_hours(db, err);
	else
		ok = finish(db, err);
	return ok && db_tx_commit(&tx, err);
}

bool
store_reattribute(struct db *db, int steps, int *ret_done, struct err *err)
{
	static const struct db_stmt waiting = {"reattribution waiting",
	                                       "SELECT FROM reattribution WHERE finished_at IS NULL"};
	owned(result) PGresult *r = NULL;
	bool more = true;

	*ret_done = 0;
	if (!db_run(db, &waiting, NULL, &r, err))
		return false;
	for (more = PQntuples(r) > 0; more && *ret_done < steps; *ret_done += more)
		if (!step(db, &more, err))
			return false;
	return true;
}

bool
store_reattribution_json(struct db *db, struct buf *out, struct err *err)
{
	static const struct db_stmt stmt = {
		"reattribution row",
		"SELECT coalesce(r.finished_at IS NULL AND r.one, false) AS running, rfc3339(r.effective_at) AS effective, "
		"rfc3339(r.started_at) AS started, rfc3339(r.finished_at) AS finished, coalesce(r.holders, 0) AS holders, "
		"coalesce(least(r.holders_done, r.holders), 0) AS holders_done, coalesce(r.changed, 0) AS changed, "
		"coalesce(r.hours_dirty, 0) AS hours_dirty FROM ledger l LEFT JOIN reattribution r ON r.one"};
	owned(result) PGresult *r = NULL;

	if (!db_run(db, &stmt, NULL, &r, err))
		return false;
	res_json_row(r, 0, out);
	buf_char(out, '\n');
	return buf_ok(out, "the progress", err);
}

bool
reattribute_settled(struct db *db, struct err *err)
{
	static const struct db_stmt stmt = {
		"reattribution settled",
		"SELECT rfc3339(started_at), holders_done, holders FROM reattribution WHERE finished_at IS NULL"};
	owned(result) PGresult *r = NULL;

	if (!db_run(db, &stmt, NULL, &r, err))
		return false;
	return PQntuples(r) == 0 ||
	       err_set(err, ERR_RETRY, "the rules were changed at %s, and %s of %s holders are attributed again so far",
	               res_text(r, 0, 0), res_text(r, 0, 1), res_text(r, 0, 2));
}
