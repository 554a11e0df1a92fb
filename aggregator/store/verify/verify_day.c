/* aggregator/store/verify/verify_day.c - billing days: the flags that decide which rows are read, and folded days
 * against their sealed hours, by a statement other than the one that folds. */
#include <stdio.h>
#include <string.h>

#include "aggregator/store/verify/verify_ledger.h"

/* Columns before the sums: the day and the row's key. */
enum { DAY, WHAT, FIRST_SUM };

#define SUMS(u)                                                                                                     \
	"sum(" u ".used) AS s0, sum(" u ".idle) AS s1, sum(" u ".unmeasured) AS s2, sum(" u ".unallocated) AS s3, " \
	"sum(" u ".stranded) AS s4, sum(" u ".down) AS s5, sum(" u ".unknown) AS s6, sum(" u ".over) AS s7, "       \
	"sum(" u ".clock_adjust) AS s8, sum(" u ".energy_mj) AS s9, sum(" u ".memory_byte_ms) AS s10, "             \
	"sum(" u ".sm_active) AS s11, sum(" u ".sm_measured) AS s12, max(" u ".peak_memory_bytes) AS s13"
#define PAIR(n) "coalesce(h.s" #n ", 0), coalesce(f.s" #n ", 0)"

/* Returns only differences. A key is text, so that NULLs compare like other values. $1 the day, $2 and $3 its bounds. */
static const char sums_sql[] =
	"WITH f AS (SELECT concat_ws(', ', 'price book ' || u.price_book_id, 'cluster ' || u.cluster_id, 'owner ' || u.owner_id, "
	"'workspace ' || u.workspace_id, u.gpu_model, nullif(u.profile, ''), u.units || ' units', 'sharing ' || u.sharing, 'method ' || u.method) "
	"AS key, " SUMS(
		"u") " FROM usage_daily u WHERE u.day = $1 GROUP BY 1), "
		     "h AS (SELECT concat_ws(', ', 'price book ' || (SELECT p.id FROM price_book p WHERE p.effective @> u.hour), "
		     "'cluster ' || k.cluster_id, 'owner ' || (SELECT o.tenant_id FROM node_owner o WHERE o.node_id = u.node_id "
		     "AND o.effective @> u.hour), 'workspace ' || u.workspace_id, g.short_model, nullif(d.profile, ''), d.units || ' units', "
		     "'sharing ' || u.sharing, 'method ' || u.method) AS key, " SUMS(
			     "u") " FROM usage_hourly u LEFT JOIN node_cluster k ON k.node_id = u.node_id "
				  "AND k.effective @> u.hour JOIN device d ON d.id = u.device_id LEFT JOIN gpu_spec g ON g.gpu_id = d.gpu_id AND g.effective @> u.hour WHERE u.hour >= $2 AND u.hour < $3 GROUP BY 1) "
				  "SELECT $1::date, coalesce(f.key, h.key), " PAIR(0) ", " PAIR(1) ", " PAIR(2) ", " PAIR(3) ", " PAIR(4) ", " PAIR(5) ", " PAIR(
					  6) ", " PAIR(7) ", " PAIR(8) ", " PAIR(9) ", " PAIR(10) ", " PAIR(11) ", " PAIR(12) ", " PAIR(13) " FROM f FULL JOIN h ON f.key = h.key "
																	    "WHERE (f.s0, f.s1, f.s2, f.s3, f.s4, f.s5, f.s6, f.s7, f.s8, f.s9, f.s10, f.s11, f.s12, f.s13) IS DISTINCT "
																	    "FROM (h.s0, h.s1, h.s2, h.s3, h.s4, h.s5, h.s6, h.s7, h.s8, h.s9, h.s10, h.s11, h.s12, h.s13) ORDER BY 2";

/* The flags that decide which rows are read, against the rows. One row for each contradiction: kind, what, expected,
 * found.
 *  1. every hour of a node lies in a day, and a day begins and ends where the zone says
 *  2. a folded day has only sealed and clean hours
 *  3. a day whose hours were deleted by retention has none
 *  4. the stored rows of a day belong to an existing day
 *  5. stored sums belong to a sealed node-hour; records belong to an existing node-hour whose records were not
 *     retired */
static const char flags_sql[] =
	"SELECT 'day-missing', 'a row of billing_day for ' || x.day, 'a row', '' FROM (SELECT DISTINCT (h.hour AT TIME ZONE l.zone)::date AS day "
	"FROM node_hour h, ledger l WHERE h.hour >= $1 AND h.hour < $2) x WHERE NOT EXISTS (SELECT FROM billing_day b WHERE b.day = x.day) "
	"UNION ALL SELECT 'day-bounds', 'the bounds of ' || b.day, (b.day::timestamp AT TIME ZONE l.zone) || ' to ' || ((b.day + 1)::timestamp "
	"AT TIME ZONE l.zone), b.starts_at || ' to ' || b.ends_at FROM billing_day b, ledger l WHERE b.starts_at < $2 AND b.ends_at > $1 AND "
	"(b.starts_at, b.ends_at) IS DISTINCT FROM (b.day::timestamp AT TIME ZONE l.zone, (b.day + 1)::timestamp AT TIME ZONE l.zone) "
	"UNION ALL SELECT 'day-flag', 'node ' || n.name || ', ' || rfc3339(h.hour) || ', in the folded day ' || b.day, 'sealed and clean', CASE WHEN "
	"h.sealed_at IS NULL THEN 'open' ELSE 'dirty' END FROM billing_day b JOIN node_hour h ON h.hour >= b.starts_at AND h.hour < b.ends_at "
	"JOIN node n ON n.id = h.node_id WHERE b.starts_at >= $1 AND b.starts_at < $2 AND NOT b.dirty AND NOT b.hours_gone AND (h.sealed_at IS NULL "
	"OR h.dirty) "
	"UNION ALL SELECT 'day-flag', 'hours of ' || b.day || ', which were given up', '', 'rows of node_hour or usage_hourly' FROM billing_day b "
	"WHERE b.starts_at >= $1 AND b.starts_at < $2 AND b.hours_gone AND (EXISTS (SELECT FROM node_hour h WHERE h.hour >= b.starts_at AND "
	"h.hour < b.ends_at) OR EXISTS (SELECT FROM usage_hourly u WHERE u.hour >= b.starts_at AND u.hour < b.ends_at)) "
	"UNION ALL SELECT u.kind, 'a row of ' || u.name || ', ' || u.day || ': ' || u.key, '', 'a row of a day that is not there' FROM ("
	"SELECT 'day-row-extra' AS kind, 'usage_daily' AS name, day, concat_ws(', ', 'workspace ' || workspace_id, gpu_model, profile) AS key FROM usage_daily "
	"UNION ALL SELECT 'charge-row-extra', 'charge_day', day, concat_ws(', ', 'workspace ' || workspace_id, gpu_model, profile, class) FROM charge_day "
	"UNION ALL SELECT 'charge-row-extra', 'reserve_day', day, concat_ws(', ', 'workspace ' || workspace_id, gpu_model, profile) FROM reserve_day "
	"UNION ALL SELECT 'charge-row-extra', 'loan_day', day, concat_ws(', ', 'workspace ' || lender_id, 'lent to ' || borrower_id, gpu_model, profile) FROM loan_day "
	"UNION ALL SELECT 'charge-row-extra', 'pool_day', day, concat_ws(', ', 'owner ' || owner_id, gpu_model) FROM pool_day "
	"UNION ALL SELECT 'lost-hold-extra', 'lost_hold', day, 'device ' || device_id || ', holder ' || holder_id || ', ended_ns ' || ended_ns FROM lost_hold) u "
	"WHERE NOT EXISTS (SELECT FROM billing_day b WHERE b.day = u.day) "
	"UNION ALL SELECT 'hour-row-extra', 'rows of usage_hourly for node ' || u.node_id || ', ' || rfc3339(u.hour), '', 'rows of no sealed "
	"node-hour' FROM (SELECT DISTINCT hour, node_id FROM usage_hourly WHERE hour >= $1 AND hour < $2) u WHERE NOT EXISTS (SELECT FROM "
	"node_hour h WHERE h.hour = u.hour AND h.node_id = u.node_id AND h.sealed_at IS NOT NULL) "
	"UNION ALL SELECT 'hour-extra', 'node ' || n.name || ', ' || rfc3339(h.hour), coalesce(rfc3339(n.hours_from) || ' to ' || "
	"rfc3339(n.hours_until), 'no hour'), 'a node-hour' FROM node_hour h JOIN node n ON n.id = h.node_id WHERE h.hour >= $1 AND h.hour < $2 AND "
	"NOT coalesce(h.hour >= n.hours_from AND h.hour < n.hours_until, false) "
	"UNION ALL SELECT 'interval-extra', 'records of node ' || i.node_id || ' in ' || rfc3339(i.hour), '', CASE WHEN i.retired THEN 'records of an "
	"hour that has given them up' ELSE 'records of no node-hour' END FROM (SELECT x.node_id, x.hour, h.retired FROM (SELECT DISTINCT node_id, "
	"hour_of(start_ns) AS hour FROM usage_interval WHERE start_ns >= ns_of($1) AND start_ns < ns_of($2)) x LEFT JOIN node_hour h ON h.node_id = "
	"x.node_id AND h.hour = x.hour) i WHERE coalesce(i.retired, true)";

/* Sums that are not whole numbers are reported as they are. */
static void
report_row(struct verify_node *n, const PGresult *r, int row)
{
	char what[256];

	for (int s = 0; s < NODE_HOUR_SUMS; s++) {
		int e = FIRST_SUM + 2 * s, f = e + 1;
		int128 expected, found;
		struct err why = {0};

		if (strcmp(res_text(r, row, e), res_text(r, row, f)) == 0)
			continue;
		snprintf(what, sizeof(what), "%s of usage_daily, %s: %.200s", node_hour_sum_names[s],
		         res_text(r, row, DAY), res_text(r, row, WHAT));
		if (!res_i128(r, row, e, 0, &expected, &why) || !res_i128(r, row, f, 0, &found, &why))
			verify_report_text(n, "day-changed", NULL, INT64_MIN, what, res_text(r, row, e),
			                   res_text(r, row, f));
		else if (expected != found)
			verify_report_amount(n, "day-changed", NULL, INT64_MIN, what, expected, found);
	}
}

static bool
check_flags(struct verify_node *n, struct err *err)
{
	owned(result) PGresult *r = NULL;
	struct db_args a = {0};

	arg_time(&a, n->from_ns);
	arg_time(&a, n->to_ns);
	if (!db_run_text(n->db, flags_sql, &a, &r, err))
		return false;
	for (int row = 0; row < PQntuples(r); row++)
		verify_report_text(n, res_text(r, row, 0), NULL, INT64_MIN, res_text(r, row, 1), res_text(r, row, 2),
		                   res_text(r, row, 3));
	return true;
}

/* In a snapshot of its own: a day with hours that became dirty since the list was made is open. */
static bool
verify_day(struct verify_node *n, const char *day, int64_t from_ns, int64_t until_ns, struct err *err)
{
	static const struct db_stmt clean = {"verify day",
	                                     "SELECT FROM billing_day WHERE day = $1 AND NOT dirty AND NOT hours_gone"};
	in_place(db_tx) struct db_tx tx = {0};
	owned(result) PGresult *r = NULL, *is_clean = NULL;
	struct db_args a = {0}, d = {0};

	arg_text(&d, day);
	arg_text(&a, day);
	arg_time(&a, from_ns);
	arg_time(&a, until_ns);
	if (!db_tx_begin_read_long(&tx, n->db, DB_WORK_VERIFY, err) || !db_run(n->db, &clean, &d, &is_clean, err))
		return false;
	if (PQntuples(is_clean) == 0) {
		n->report->counts.days_open++;
		return db_tx_commit(&tx, err);
	}
	if (!db_run_text(n->db, sums_sql, &a, &r, err))
		return false;
	for (int row = 0; row < PQntuples(r); row++)
		report_row(n, r, row);
	n->report->counts.days++;
	return verify_charges(n, day, from_ns, until_ns, err) && verify_losses(n, day, from_ns, until_ns, err) &&
	       db_tx_commit(&tx, err);
}

static bool
load_days(struct verify_node *n, PGresult **ret, struct err *err)
{
	static const struct db_stmt stmt = {
		"verify days", "SELECT day, ns_of(starts_at), ns_of(ends_at), dirty, hours_gone FROM billing_day "
			       "WHERE starts_at >= $1 AND starts_at < $2 ORDER BY day"};
	in_place(db_tx) struct db_tx tx = {0};
	struct db_args a = {0};

	arg_time(&a, n->from_ns);
	arg_time(&a, n->to_ns);
	return db_tx_begin_read_long(&tx, n->db, DB_WORK_VERIFY, err) && check_flags(n, err) &&
	       db_run(n->db, &stmt, &a, ret, err) && db_tx_commit(&tx, err);
}

/* At most one day is in memory. */
bool
verify_days(struct verify_node *n, struct err *err)
{
	owned(result) PGresult *days = NULL;

	if (!load_days(n, &days, err))
		return false;
	for (int row = 0; row < PQntuples(days); row++) {
		const char *day = res_text(days, row, 0);
		struct err why = {0};
		char thing[64];
		bool ok;

		if (res_bool(days, row, 3)) {
			n->report->counts.days_open++;
			continue;
		}
		if (res_bool(days, row, 4)) {
			n->report->counts.days_gone++;
			continue;
		}
		ok = verify_day(n, day, res_i64(days, row, 1), res_i64(days, row, 2), &why);
		snprintf(thing, sizeof(thing), "the rest of %s", day);
		if (!verify_continue(n, ok, thing, &why, err))
			return err_prefix(err, "day %s", day);
	}
	return true;
}
