/* aggregator/store/fold.c - days folded from sealed hours.
 *
 * Rules, in order:
 *  1. a day is folded when it is over, everything in it is sealed and clean, and it is dirty
 *  2. whoever changes something of a day holds its lock until commit: folding takes the lock alone, or leaves the day
 *  3. its rows are replaced in one transaction: nothing is ever added to what is there */
#include "aggregator/store/charges.h"
#include "aggregator/store/rollup.h"

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

/* What workloads lost that day is found in its records; where these are gone, what was found stays. */
static bool
replace_losses(struct db *db, const char *day, struct err *err)
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
	return db_run(db, &drop, &a, NULL, err) && db_run_text(db, fill, &a, NULL, err);
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

/* Under the lock the day is looked at once more: what was marked before is committed now. */
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
