/* aggregator/store/rollup/fold.c - folds sealed hours into days.
 *
 * Rules, in order:
 *  1. a day is folded when it is over and dirty, and everything in it is sealed and clean
 *  2. every writer of a day's data holds the day's lock (shared) until commit; folding takes the lock exclusively, or
 *     skips the day
 *  3. the day's rows are replaced in one transaction: nothing is ever added to existing rows
 *  4. losses of workloads are found in records, also in those of the hours just before and after the day: with a day,
 *     the losses of the folded neighbour days are computed again
 *  5. if a node has only some of its records around the day, the others are restored first, because a gap would look
 *     like a silent node; so are those of nodes with the same workloads. Nodes without any records keep the losses
 *     found before */
#include "aggregator/store/rollup/charges.h"
#include "aggregator/store/rollup/rollup_internal.h"

struct folding {
	int64_t now_ns;
	int limit;
	int64_t folded;
};

/* Rule 1. */
static bool
due(struct db *db, const struct folding *w, PGresult **ret, struct err *err)
{
	static const struct db_stmt stmt = {
		"days due",
		"SELECT b.day, ns_of(b.starts_at), ns_of(b.ends_at) FROM billing_day b WHERE b.dirty AND b.ends_at <= $1 AND NOT EXISTS (SELECT FROM node_hour h "
		"WHERE h.hour >= b.starts_at AND h.hour < b.ends_at AND (h.sealed_at IS NULL OR h.dirty)) "
		"ORDER BY b.day LIMIT $2"};
	struct db_args a = {0};

	arg_time(&a, w->now_ns);
	arg_i64(&a, w->limit);
	return db_run(db, &stmt, &a, ret, err);
}

#define SPAN                                                                                                                   \
	"WITH span AS MATERIALIZED (SELECT b.starts_at, b.ends_at, b.starts_at - interval '1 hour' AS from_hour, b.ends_at + " \
	"interval '1 hour' AS until_hour FROM billing_day b WHERE b.day = $1::date), "                                         \
	"gone AS MATERIALIZED (SELECT h.node_id, h.hour FROM span s JOIN node_hour h ON h.hour >= s.from_hour AND h.hour < "   \
	"s.until_hour, ledger l WHERE h.retired AND ns_of(h.hour) >= l.evidence_from_ns), "                                    \
	"fresh AS MATERIALIZED (SELECT DISTINCT h.node_id FROM span s JOIN node_hour h ON h.hour >= s.starts_at AND h.hour < " \
	"s.ends_at WHERE NOT h.retired) "

/* Rule 5. A node is in trouble if it had time down, silent or in error. */
static bool
restore_records(struct db *db, const char *day, struct err *err)
{
	static const char some[] = SPAN "SELECT EXISTS (SELECT FROM gone) AND EXISTS (SELECT FROM fresh)";
	static const char hours[] = SPAN
		", used AS MATERIALIZED (SELECT u.node_id, u.holder_id, bool_or(u.down > 0 OR u.unknown > 0) AS trouble FROM span s JOIN usage_hourly u ON "
		"u.hour >= s.from_hour AND u.hour < s.until_hour GROUP BY 1, 2), "
		"trouble AS MATERIALIZED (SELECT u.node_id FROM used u WHERE u.trouble UNION SELECT v.node_id FROM span s, gpu_xid x JOIN gpu_service v ON "
		"v.gpu_id = x.gpu_id WHERE x.at_ns >= ns_of(s.from_hour) AND x.at_ns < ns_of(s.until_hour)), "
		"pairs AS (SELECT t.node_id AS a, t.node_id AS b FROM trouble t UNION SELECT u.node_id, o.node_id FROM used u JOIN used o ON o.holder_id = "
		"u.holder_id WHERE u.node_id IN (SELECT node_id FROM trouble)), "
		"due AS (SELECT p.a, p.b FROM pairs p WHERE p.a IN (SELECT node_id FROM fresh) OR p.b IN (SELECT node_id FROM fresh)) "
		"SELECT g.node_id, ns_of(g.hour) FROM gone g WHERE g.node_id IN (SELECT a FROM due UNION SELECT b FROM due) ORDER BY 2, 1";
	owned(result) PGresult *any = NULL, *r = NULL;
	struct db_args a = {0};

	arg_text(&a, day);
	if (!db_run_text(db, some, &a, &any, err))
		return false;
	if (!res_bool(any, 0, 0))
		return true;
	if (!db_run_text(db, hours, &a, &r, err))
		return false;
	for (int row = 0; row < PQntuples(r); row++)
		if (!restore_hour(db, res_i64(r, row, 0), res_i64(r, row, 1), err))
			return false;
	return true;
}

static bool
replace_losses_of(struct db *db, const char *day, struct err *err)
{
	static const struct db_stmt drop = {
		"fold drop losses",
		"DELETE FROM lost_hold l WHERE l.day = $1::date AND NOT EXISTS (SELECT FROM node_hour h WHERE h.node_id = l.node_id "
		"AND h.hour = hour_of(l.ended_ns) AND h.retired)"};
	static const char fill[] =
		"INSERT INTO lost_hold SELECT b.day, x.* FROM billing_day b, "
		"LATERAL lost_holds(b.starts_at, b.ends_at) x WHERE b.day = $1::date ON CONFLICT DO NOTHING";
	struct db_args a = {0};

	arg_text(&a, day);
	return restore_records(db, day, err) && db_run(db, &drop, &a, NULL, err) &&
	       db_run_text(db, fill, &a, NULL, err);
}

/* Rule 4. */
static bool
replace_losses(struct db *db, const char *day, struct err *err)
{
	static const struct db_stmt stmt = {
		"fold days beside",
		"SELECT b.day FROM billing_day b WHERE b.day = $1::date OR (b.day BETWEEN $1::date - 1 AND "
		"$1::date + 1 AND NOT b.dirty AND NOT b.hours_gone) ORDER BY b.day <> $1::date, b.day"};
	owned(result) PGresult *r = NULL;
	struct db_args a = {0};

	/* No record is deleted between the search for records and the reading of them. */
	if (!db_script(db, "LOCK TABLE usage_interval IN ACCESS SHARE MODE", err))
		return false;
	arg_text(&a, day);
	if (!db_run(db, &stmt, &a, &r, err))
		return false;
	for (int row = 0; row < PQntuples(r); row++)
		if (!replace_losses_of(db, res_text(r, row, 0), err))
			return err_prefix(err, "losses of %s", res_text(r, row, 0));
	return true;
}

/* Rule 3: usage, charges and losses. */
static bool
replace_rows(struct db *db, const char *day, int64_t from_ns, int64_t until_ns, struct err *err)
{
	static const struct db_stmt drops[] = {
		{"fold drop", "DELETE FROM usage_daily WHERE day = $1::date"},
		{"fold drop charges", "DELETE FROM charge_day WHERE day = $1::date"},
		{"fold drop reserves", "DELETE FROM reserve_day WHERE day = $1::date"},
		{"fold drop loans", "DELETE FROM loan_day WHERE day = $1::date"},
		{"fold drop pools", "DELETE FROM pool_day WHERE day = $1::date"},
	};
	static const char fill[] = "INSERT INTO usage_daily SELECT b.day, u.* FROM billing_day b, "
				   "LATERAL folded_usage(b.starts_at, b.ends_at) u WHERE b.day = $1::date";
	struct db_args a = {0};

	arg_text(&a, day);
	if (!db_script(db, "SET LOCAL work_mem = '128MB'; SET LOCAL jit = off", err))
		return false;
	for (size_t i = 0; i < ARRAY_LEN(drops); i++)
		if (!db_run(db, &drops[i], &a, NULL, err))
			return false;
	return db_run_text(db, fill, &a, NULL, err) && charges_write(db, day, from_ns, until_ns, CHARGES_STORED, err) &&
	       replace_losses(db, day, err);
}

/* Checks the day again under the lock: earlier marks are committed by now. */
static bool
fold(struct db *db, const char *day, int64_t from_ns, int64_t until_ns, struct folding *w, struct err *err)
{
	static const struct db_stmt lock = {"fold lock", "SELECT pg_try_advisory_xact_lock(" DB_LOCK_DAY ", "
	                                                 "day_lock($1::date))"};
	static const struct db_stmt clean = {
		"fold clean", "SELECT NOT EXISTS (SELECT FROM node_hour h, billing_day b WHERE b.day = $1::date "
			      "AND h.hour >= b.starts_at AND h.hour < b.ends_at AND (h.sealed_at IS NULL OR h.dirty))"};
	static const struct db_stmt mark = {"fold mark", "UPDATE billing_day SET dirty = false, folded_at = $2 "
	                                                 "WHERE day = $1::date"};
	in_place(db_tx) struct db_tx tx = {0};
	owned(result) PGresult *mine = NULL, *ready = NULL;
	struct db_args a = {0}, m = {0};

	arg_text(&a, day);
	arg_text(&m, day);
	arg_time(&m, w->now_ns);
	if (!db_tx_begin_long(&tx, db, DB_WORK_ROLLUP, err) || !db_run(db, &lock, &a, &mine, err))
		return false;
	if (!res_bool(mine, 0, 0))
		return true;
	if (!db_run(db, &clean, &a, &ready, err))
		return false;
	if (!res_bool(ready, 0, 0))
		return true;
	if (!replace_rows(db, day, from_ns, until_ns, err) || !db_run(db, &mark, &m, NULL, err) ||
	    !db_tx_commit(&tx, err))
		return false;
	w->folded++;
	return true;
}

static bool
fold_all(struct db *db, void *arg, struct err *err)
{
	struct folding *w = arg;
	owned(result) PGresult *days = NULL;

	if (!due(db, w, &days, err))
		return false;
	for (int row = 0; row < PQntuples(days); row++)
		if (!fold(db, res_text(days, row, 0), res_i64(days, row, 1), res_i64(days, row, 2), w, err))
			return err_prefix(err, "folding %s", res_text(days, row, 0));
	return true;
}

bool
store_fold(struct db *db, int64_t now_ns, int limit, int64_t *ret_folded, struct err *err)
{
	struct folding w = {.now_ns = now_ns, .limit = limit};
	bool ok = background_alone(db, DB_LOCK_FOLD, fold_all, &w, err);

	*ret_folded = w.folded;
	return ok;
}
