/* aggregator/store/rollup.c - node-hours: sealed when they are due, and again when something they were made of has
 * changed.
 *
 * Rules, in order:
 *  1. one replica at a time rolls up; another one finds the lock taken and does nothing
 *  2. a node that has been silent for longer than the grace has its time counted until now, as unknown
 *  3. an hour is due when its node has covered it, or when the grace after its end has passed; and whenever it is
 *     dirty
 *  4. sealing locks the hours first and reads afterwards, so that no record slips between; ingest locks the same
 *     rows
 *  5. the rows of an hour are replaced in one transaction: nothing is ever added to what is there */
#include "aggregator/store/db.h"

#define PARTITION_DAYS_AHEAD 2

/* Rule 2, and the partitions that the next days need. */
static bool
prepare(struct db *db, int64_t now_ns, int64_t grace_ns, struct err *err)
{
	static const struct db_stmt silent = {"nodes silent", "SELECT nodes_fall_silent($1, $2)"};
	static const struct db_stmt partitions = {"partitions ahead", "SELECT make_partitions($1, $2)"};
	in_place(db_tx) struct db_tx tx = {0};
	struct db_args s = {0}, p = {0};

	arg_i64(&s, now_ns);
	arg_i64(&s, grace_ns);
	arg_i64(&p, now_ns);
	arg_i64(&p, now_ns + PARTITION_DAYS_AHEAD * NS_PER_DAY);
	return db_tx_begin(&tx, db, err) && db_run(db, &silent, &s, NULL, err) &&
	       db_run(db, &partitions, &p, NULL, err) && db_tx_commit(&tx, err);
}

/* Rule 3. One row per hour: the hour and its nodes, oldest first. */
static bool
due(struct db *db, int64_t now_ns, int64_t grace_ns, int limit, PGresult **ret, struct err *err)
{
	static const struct db_stmt stmt = {
		"hours due",
		"SELECT ns_of(x.hour), array_agg(x.node_id) "
		"FROM (SELECT h.hour, h.node_id FROM node_hour h JOIN node n ON n.id = h.node_id WHERE "
		"(h.sealed_at IS NULL OR h.dirty) AND (h.dirty OR ns_of(h.hour) + 3600000000000 <= "
		"greatest(n.covered_until_ns, $1::bigint - $2::bigint)) ORDER BY h.hour, h.node_id LIMIT $3) x "
		"GROUP BY x.hour ORDER BY x.hour"};
	struct db_args a = {0};

	arg_i64(&a, now_ns);
	arg_i64(&a, grace_ns);
	arg_i64(&a, limit);
	return db_run(db, &stmt, &a, ret, err);
}

/* The hour just ended is where the planner's statistics are oldest: it expects a few rows and would sort a million. */
#define SEAL_SETTINGS "SET LOCAL enable_sort = off; SET LOCAL work_mem = '64MB'"

/* Rules 4 and 5. */
static bool
seal(struct db *db, int64_t hour_ns, const char *nodes, int64_t now_ns, struct rollup_result *ret, struct err *err)
{
	static const struct db_stmt policy = {"seal policy", "SELECT pg_advisory_xact_lock_shared(" DB_LOCK_POLICY ")"};
	static const struct db_stmt lock = {
		"seal lock", "SELECT count(*) FILTER (WHERE x.sealed_at IS NULL), count(*) FILTER (WHERE x.dirty) "
			     "FROM (SELECT h.sealed_at, h.dirty FROM node_hour h WHERE h.hour = $1 "
			     "AND h.node_id = ANY ($2::integer[]) ORDER BY h.node_id FOR UPDATE) x"};
	static const struct db_stmt drop = {
		"seal drop", "DELETE FROM usage_hourly WHERE hour = $1 AND node_id = ANY ($2::integer[])"};
	/* Not prepared: its plan should know how much an hour is. */
	static const char fill[] =
		"INSERT INTO usage_hourly (hour, node_id, device_id, holder_id, workspace_id, sharing, method, "
		"used, idle, unmeasured, unallocated, stranded, down, unknown, over, clock_adjust, energy_mj, "
		"memory_byte_ms) "
		"SELECT $1, u.node_id, u.device_id, u.holder_id, u.workspace_id, u.sharing, u.method, u.used, "
		"u.idle, u.unmeasured, u.unallocated, u.stranded, u.down, u.unknown, u.over, u.clock_adjust, "
		"u.energy_mj, u.memory_byte_ms FROM hour_usage($1, $2::integer[]) u";
	static const struct db_stmt mark = {"seal mark", "UPDATE node_hour SET sealed_at = $3, dirty = false "
	                                                 "WHERE hour = $1 AND node_id = ANY ($2::integer[])"};
	in_place(db_tx) struct db_tx tx = {0};
	owned(result) PGresult *r = NULL;
	struct db_args a = {0}, m = {0};

	arg_time(&a, hour_ns);
	arg_text(&a, nodes);
	arg_time(&m, hour_ns);
	arg_text(&m, nodes);
	arg_time(&m, now_ns);
	if (!db_tx_begin_long(&tx, db, err) || !db_script(db, SEAL_SETTINGS, err) ||
	    !db_run(db, &policy, NULL, NULL, err) || !db_run(db, &lock, &a, &r, err) ||
	    !db_run(db, &drop, &a, NULL, err) || !db_run_text(db, fill, &a, NULL, err) ||
	    !db_run(db, &mark, &m, NULL, err) || !db_tx_commit(&tx, err))
		return false;
	ret->sealed += res_i64(r, 0, 0);
	ret->resealed += res_i64(r, 0, 1);
	return true;
}

static bool
rollup_locked(struct db *db, int64_t now_ns, int64_t grace_ns, int limit, struct rollup_result *ret, struct err *err)
{
	owned(result) PGresult *hours = NULL;

	if (!prepare(db, now_ns, grace_ns, err) || !due(db, now_ns, grace_ns, limit, &hours, err))
		return false;
	for (int row = 0; row < PQntuples(hours); row++) {
		char hour[TIME_TEXT_SIZE];

		if (!seal(db, res_i64(hours, row, 0), res_text(hours, row, 1), now_ns, ret, err))
			return err_prefix(err, "sealing the hour of %s", time_format(res_i64(hours, row, 0), hour));
	}
	return true;
}

bool
store_rollup(struct db *db, int64_t now_ns, int64_t grace_ns, int limit, struct rollup_result *ret, struct err *err)
{
	static const struct db_stmt lock = {"rollup lock", "SELECT pg_try_advisory_lock(" DB_LOCK_ROLLUP ")"};
	owned(result) PGresult *r = NULL;
	struct err unlock = {0};
	bool ok;

	*ret = (struct rollup_result){0};
	if (!db_run(db, &lock, NULL, &r, err))
		return false;
	if (!res_bool(r, 0, 0))
		return true;
	ok = rollup_locked(db, now_ns, grace_ns, limit, ret, err);
	/* A session that cannot give the lock back ends, and the lock with it. */
	if (!db_script(db, "SELECT pg_advisory_unlock(" DB_LOCK_ROLLUP ")", &unlock))
		db_drop(db);
	return ok;
}
