/* aggregator/store/rollup/seal.c - node-hours: sliced while they are open, sealed when they are due, and sealed
 * again when their input has changed.
 *
 * Rules, in order:
 *  1. one replica at a time rolls up; any other finds the lock taken and does nothing
 *  2. a node that has been silent for longer than the grace has its time counted as unknown, until now or until its
 *     last GPU left service
 *  3. the covered part of an open hour is summed in slices, so that a reader sums only the rest. Usually ingest has
 *     stored them (ingest_write.c); here only the missing ones are made. A late record voids the slices of its hour;
 *     a record or a slice that arrives while a slice is being made undoes that slice
 *  4. an hour is due when its node has covered it, when the grace after its end has passed, or when it is dirty
 *  5. a dirty hour whose records were retired is sealed again from its stored sums; if its records changed, they are
 *     restored from the batches first, unless those are deleted too
 *  6. sealing locks the hours first and reads afterwards, so that no record is missed; ingest locks the same rows. An
 *     hour whose time in service is not fully accounted for is left for the next run
 *  7. the rows of an hour are replaced in one transaction: nothing is ever added to existing rows */
#include "aggregator/store/rollup/rollup_internal.h"

#include <inttypes.h>
#include <stdio.h>

/* Nodes in one statement: their sums should fit in memory. */
#define NODES_AT_ONCE 250
/* JIT compilation pays off from this many records on: a slice is one sum, an hour a statement many times as long. */
#define COMPILE_SLICE 1000000
#define COMPILE_HOUR 10000000
#define UNPROVED "(ns_of(h.hour) < (SELECT evidence_from_ns FROM ledger))"

bool
background_alone(struct db *db, const char *lock, background_work *work, void *arg, struct err *err)
{
	char take_lock[96], give_back[96];
	owned(result) PGresult *r = NULL;
	struct err unlock = {0};
	bool ok;

	snprintf(take_lock, sizeof(take_lock), "SELECT pg_try_advisory_lock(%s)", lock);
	snprintf(give_back, sizeof(give_back), "SELECT pg_advisory_unlock(%s)", lock);
	if (!db_run_text(db, take_lock, NULL, &r, err))
		return false;
	if (!res_bool(r, 0, 0))
		return true;
	ok = work(db, arg, err);
	/* A session that cannot give the lock back ends, and the lock with it. */
	if (!db_script(db, give_back, &unlock))
		db_drop(db);
	return ok;
}

bool
background_settings(struct db *db, int64_t from_ns, int64_t until_ns, int64_t nodes, int64_t compile, struct err *err)
{
	static const struct db_stmt jit = {"seal compile",
	                                   "SELECT set_config('jit', (expected_records($1, $2, $3) > $4)::text, true)"};
	struct db_args a = {0};

	arg_i64(&a, from_ns);
	arg_i64(&a, until_ns);
	arg_i64(&a, nodes);
	arg_i64(&a, compile);
	return db_script(db,
	                 "SET LOCAL enable_sort = off; SET LOCAL work_mem = '128MB'; SET LOCAL jit_above_cost = 0; "
	                 "SET LOCAL jit_inline_above_cost = 0; SET LOCAL jit_optimize_above_cost = 0",
	                 err) &&
	       db_run(db, &jit, &a, NULL, err);
}

/* --- slices --- */

/* A range of an hour and the nodes that have covered it. */
struct stretch {
	int64_t hour_ns, from_ns, until_ns, count;
	const char *nodes, *changes;
};

/* Rule 3. An hour covered to its end is due, and not sliced any more. */
static bool
to_slice(struct db *db, int64_t slice_ns, PGresult **ret, struct err *err)
{
	static const struct db_stmt stmt = {
		"slices due",
		"SELECT ns_of(y.hour), y.from_ns, y.until_ns, count(*), array_agg(y.node_id ORDER BY y.node_id), "
		"array_agg(y.changes ORDER BY y.node_id) FROM (SELECT x.*, row_number() OVER (PARTITION BY x.hour, "
		"x.from_ns, x.until_ns ORDER BY x.node_id) - 1 AS place FROM (SELECT h.hour, h.node_id, h.changes, "
		"coalesce(h.sliced_until_ns, ns_of(h.hour)) AS from_ns, n.covered_until_ns - "
		"mod(n.covered_until_ns - ns_of(h.hour), $1) AS until_ns FROM node_hour h JOIN node n ON n.id = h.node_id "
		"WHERE h.sealed_at IS NULL AND n.covered_until_ns > ns_of(h.hour) "
		"AND n.covered_until_ns < ns_of(h.hour) + 3600000000000) x WHERE x.until_ns > x.from_ns) y "
		"GROUP BY y.hour, y.from_ns, y.until_ns, y.place / $2 ORDER BY 1, 2, 3"};
	struct db_args a = {0};

	arg_i64(&a, slice_ns);
	arg_i64(&a, NODES_AT_ONCE);
	return db_run(db, &stmt, &a, ret, err);
}

static bool
slice(struct db *db, const struct stretch *s, int64_t *ret_count, struct err *err)
{
	static const char fill[] = "INSERT INTO usage_slice SELECT $1::timestamptz, $4::bigint, r.* "
				   "FROM summed_records($3, $4, $2::integer[]) r";
	static const struct db_stmt mark = {
		"slice mark",
		"UPDATE node_hour h SET sliced_until_ns = $4 FROM unnest($2::integer[], $5::bigint[]) AS x(node_id, "
		"changes) WHERE h.node_id = x.node_id AND h.hour = $1 AND h.changes = x.changes AND h.sealed_at IS NULL "
		"AND coalesce(h.sliced_until_ns, ns_of(h.hour)) = $3 RETURNING h.node_id"};
	static const struct db_stmt undo = {
		"slice undo",
		"DELETE FROM usage_slice s WHERE s.hour = $1 AND s.node_id = ANY ($2::integer[]) AND s.until_ns = $3 "
		"AND s.node_id <> ALL ($4::integer[]) AND s.xmin = pg_current_xact_id()::xid"};
	in_place(db_tx) struct db_tx tx = {0};
	owned(result) PGresult *r = NULL;
	in_place(db_array) struct db_array marked = {0};
	struct db_args f = {0}, m = {0}, u = {0};
	struct db_args *all[] = {&f, &m, &u};

	db_array_init(&marked);
	for (size_t i = 0; i < ARRAY_LEN(all); i++) {
		arg_time(all[i], s->hour_ns);
		arg_text(all[i], s->nodes);
	}
	arg_i64(&f, s->from_ns);
	arg_i64(&f, s->until_ns);
	arg_i64(&m, s->from_ns);
	arg_i64(&m, s->until_ns);
	arg_text(&m, s->changes);
	arg_i64(&u, s->until_ns);
	if (!db_tx_begin_long(&tx, db, DB_WORK_ROLLUP, err) ||
	    !background_settings(db, s->from_ns, s->until_ns, s->count, COMPILE_SLICE, err) ||
	    !db_run_text(db, fill, &f, NULL, err) || !db_run(db, &mark, &m, &r, err))
		return false;
	for (int row = 0; row < PQntuples(r); row++)
		array_i64(&marked, res_i64(r, row, 0));
	arg_array(&u, &marked);
	if (PQntuples(r) < s->count && !db_run(db, &undo, &u, NULL, err))
		return false;
	*ret_count += PQntuples(r);
	return db_tx_commit(&tx, err);
}

struct slicing {
	int64_t slice_ns, sliced;
};

static bool
slice_all(struct db *db, void *arg, struct err *err)
{
	struct slicing *w = arg;
	owned(result) PGresult *due = NULL;

	if (!to_slice(db, w->slice_ns, &due, err))
		return false;
	for (int row = 0; row < PQntuples(due); row++) {
		struct stretch s = {.hour_ns = res_i64(due, row, 0),
		                    .from_ns = res_i64(due, row, 1),
		                    .until_ns = res_i64(due, row, 2),
		                    .count = res_i64(due, row, 3),
		                    .nodes = res_text(due, row, 4),
		                    .changes = res_text(due, row, 5)};
		char at[TIME_TEXT_SIZE];

		if (!slice(db, &s, &w->sliced, err))
			return err_prefix(err, "slicing the hour of %s", time_format(s.hour_ns, at));
	}
	return true;
}

bool
store_slice(struct db *db, int64_t slice_ns, int64_t *ret_sliced, struct err *err)
{
	struct slicing w = {.slice_ns = slice_ns};
	bool ok = background_alone(db, DB_LOCK_ROLLUP, slice_all, &w, err);

	*ret_sliced = w.sliced;
	return ok;
}

/* --- hours --- */

struct sealing {
	int64_t now_ns, grace_ns;
	int limit;
	struct rollup_result *result;
};

/* Rule 2. */
static bool
fall_silent(struct db *db, const struct sealing *w, struct err *err)
{
	static const struct db_stmt silent = {"nodes silent", "SELECT nodes_fall_silent($1, $2)"};
	in_place(db_tx) struct db_tx tx = {0};
	struct db_args a = {0};

	arg_i64(&a, w->now_ns);
	arg_i64(&a, w->grace_ns);
	return db_tx_begin(&tx, db, err) && db_run(db, &silent, &a, NULL, err) && db_tx_commit(&tx, err);
}

/* Rule 4. One row per hour and kind of input: its nodes, the end of its slices, whether its records are retired.
 * Oldest first. */
static bool
due(struct db *db, const struct sealing *w, PGresult **ret, struct err *err)
{
	static const struct db_stmt stmt = {
		"hours due",
		"SELECT ns_of(x.hour), x.from_ns, x.retired, count(*), array_agg(x.node_id) "
		"FROM (SELECT h.hour, h.node_id, h.retired, coalesce(h.sliced_until_ns, ns_of(h.hour)) AS from_ns, "
		"row_number() OVER (PARTITION BY h.hour ORDER BY h.node_id) - 1 AS place "
		"FROM node_hour h JOIN node n ON n.id = h.node_id WHERE "
		"(h.sealed_at IS NULL OR h.dirty) AND (NOT h.retired OR h.changes = h.sealed_changes OR " UNPROVED ") "
		"AND (h.dirty OR ns_of(h.hour) + 3600000000000 <= "
		"greatest(n.covered_until_ns, $1::bigint - $2::bigint)) ORDER BY h.hour, h.node_id LIMIT $3) x "
		"GROUP BY x.hour, x.from_ns, x.retired, x.place / $4 ORDER BY x.hour"};
	struct db_args a = {0};

	arg_i64(&a, w->now_ns);
	arg_i64(&a, w->grace_ns);
	arg_i64(&a, w->limit);
	arg_i64(&a, NODES_AT_ONCE);
	return db_run(db, &stmt, &a, ret, err);
}

/* The hours that have not changed since they were found and whose time in service is fully accounted for; NULL: none.
 * A node that pushed after rule 2 was applied may not be accounted for yet; the next run applies rule 2 again.
 * Checked only under the lock. */
static bool
lock_hours(struct db *db, const struct stretch *s, bool retired, PGresult **ret, struct err *err)
{
	static const struct db_stmt policy = {"seal policy", "SELECT pg_advisory_xact_lock_shared(" DB_LOCK_POLICY ")"};
	static const struct db_stmt lock = {
		"seal lock",
		"SELECT count(*) FROM (SELECT FROM node_hour WHERE hour = $1 AND node_id = ANY ($2::integer[]) "
		"ORDER BY node_id FOR UPDATE) h"};
	static const struct db_stmt locked = {
		"seal locked",
		"SELECT array_agg(h.node_id), count(*) FILTER (WHERE h.sealed_at IS NULL), count(*) FILTER (WHERE h.dirty) "
		"FROM node_hour h WHERE h.hour = $1 AND h.node_id = ANY ($2::integer[]) "
		"AND coalesce(h.sliced_until_ns, ns_of(h.hour)) = $3 AND h.retired = $4 "
		"AND (NOT h.retired OR h.changes = h.sealed_changes OR " UNPROVED
		") AND is_accounted(h.node_id, h.hour)"};
	struct db_args l = {0}, a = {0};

	arg_time(&l, s->hour_ns);
	arg_text(&l, s->nodes);
	arg_time(&a, s->hour_ns);
	arg_text(&a, s->nodes);
	arg_i64(&a, s->from_ns);
	arg_bool(&a, retired);
	return db_run(db, &policy, NULL, NULL, err) && db_run(db, &lock, &l, NULL, err) &&
	       db_run(db, &locked, &a, ret, err);
}

/* Rule 7, for an hour with records. Not prepared: the planner should see the size of an hour. */
static bool
replace_rows(struct db *db, const struct db_args *hours, const struct db_args *source, struct err *err)
{
	static const struct db_stmt drop = {
		"seal drop", "DELETE FROM usage_hourly WHERE hour = $1 AND node_id = ANY ($2::integer[])"};
	static const char fill[] = "INSERT INTO usage_hourly SELECT $1::timestamptz, u.* "
				   "FROM hour_usage($1, $2::integer[], $3, false) u";
	static const struct db_stmt slices = {
		"seal slices", "DELETE FROM usage_slice WHERE hour = $1 AND node_id = ANY ($2::integer[])"};

	return db_run(db, &drop, hours, NULL, err) && db_run_text(db, fill, source, NULL, err) &&
	       db_run(db, &slices, hours, NULL, err);
}

/* Rule 5: owners of the stored sums, and the rest of the time in service. */
static bool
redo_rows(struct db *db, const struct db_args *hours, const struct db_args *source, struct err *err)
{
	static const struct db_stmt owners = {
		"kept owners",
		"UPDATE usage_hourly u SET workspace_id = x.workspace_id FROM hour_usage($1, $2::integer[], $3, true) x "
		"WHERE u.hour = $1 AND u.node_id = x.node_id AND u.device_id = x.device_id AND u.holder_id = x.holder_id "
		"AND u.sharing = x.sharing AND u.method = x.method AND u.workspace_id <> x.workspace_id"};
	static const struct db_stmt drop = {
		"kept drop",
		"DELETE FROM usage_hourly WHERE hour = $1 AND node_id = ANY ($2::integer[]) AND sharing = 0"};
	static const struct db_stmt fill = {"kept fill",
	                                    "INSERT INTO usage_hourly SELECT $1::timestamptz, u.* "
	                                    "FROM hour_usage($1, $2::integer[], $3, true) u WHERE u.sharing = 0"};

	return db_run(db, &owners, source, NULL, err) && db_run(db, &drop, hours, NULL, err) &&
	       db_run(db, &fill, source, NULL, err);
}

static bool
seal(struct db *db, const struct stretch *s, bool retired, int64_t now_ns, struct rollup_result *ret, struct err *err)
{
	static const struct db_stmt mark = {
		"seal mark", "UPDATE node_hour SET sealed_at = $3, dirty = false, sealed_changes = changes, "
			     "sliced_until_ns = NULL WHERE hour = $1 AND node_id = ANY ($2::integer[])"};
	in_place(db_tx) struct db_tx tx = {0};
	owned(result) PGresult *r = NULL;
	struct db_args hours = {0}, source = {0}, sealed = {0};
	struct db_args *all[] = {&hours, &source, &sealed};

	if (!db_tx_begin_long(&tx, db, DB_WORK_ROLLUP, err) ||
	    !background_settings(db, s->from_ns, s->hour_ns + NS_PER_HOUR, s->count, COMPILE_HOUR, err) ||
	    !lock_hours(db, s, retired, &r, err))
		return false;
	if (res_null(r, 0, 0))
		return true;
	for (size_t i = 0; i < ARRAY_LEN(all); i++) {
		arg_time(all[i], s->hour_ns);
		arg_text(all[i], res_text(r, 0, 0));
	}
	arg_i64(&source, s->from_ns);
	arg_time(&sealed, now_ns);
	if (!(retired ? redo_rows : replace_rows)(db, &hours, &source, err) || !db_run(db, &mark, &sealed, NULL, err) ||
	    !db_tx_commit(&tx, err))
		return false;
	ret->sealed += res_i64(r, 0, 1);
	ret->resealed += res_i64(r, 0, 2);
	return true;
}

/* Rule 5, the other half: one hour of one node at a time. */
static bool
restore(struct db *db, const struct sealing *w, struct err *err)
{
	static const struct db_stmt due = {
		"restore due",
		"SELECT h.node_id, ns_of(h.hour) FROM node_hour h WHERE h.dirty AND h.retired "
		"AND h.changes <> h.sealed_changes AND NOT " UNPROVED " ORDER BY h.hour, h.node_id LIMIT $1"};
	owned(result) PGresult *r = NULL;
	struct db_args a = {0};
	char at[TIME_TEXT_SIZE];

	arg_i64(&a, w->limit);
	if (!db_run(db, &due, &a, &r, err))
		return false;
	for (int row = 0; row < PQntuples(r); row++) {
		in_place(db_tx) struct db_tx tx = {0};

		if (!db_tx_begin_long(&tx, db, DB_WORK_ROLLUP, err) ||
		    !restore_hour(db, res_i64(r, row, 0), res_i64(r, row, 1), err) || !db_tx_commit(&tx, err))
			return err_prefix(err, "making the records of %s again", time_format(res_i64(r, row, 1), at));
		w->result->restored++;
	}
	return true;
}

static bool
seal_all(struct db *db, void *arg, struct err *err)
{
	struct sealing *w = arg;
	owned(result) PGresult *hours = NULL;

	if (!fall_silent(db, w, err) || !restore(db, w, err) || !due(db, w, &hours, err))
		return false;
	for (int row = 0; row < PQntuples(hours); row++) {
		struct stretch s = {.hour_ns = res_i64(hours, row, 0),
		                    .from_ns = res_i64(hours, row, 1),
		                    .count = res_i64(hours, row, 3),
		                    .nodes = res_text(hours, row, 4)};
		char at[TIME_TEXT_SIZE];

		if (!seal(db, &s, res_bool(hours, row, 2), w->now_ns, w->result, err))
			return err_prefix(err, "sealing the hour of %s", time_format(s.hour_ns, at));
	}
	return true;
}

bool
store_rollup(struct db *db, int64_t now_ns, int64_t grace_ns, int limit, struct rollup_result *ret, struct err *err)
{
	struct sealing w = {.now_ns = now_ns, .grace_ns = grace_ns, .limit = limit, .result = ret};

	*ret = (struct rollup_result){0};
	return background_alone(db, DB_LOCK_ROLLUP, seal_all, &w, err);
}
