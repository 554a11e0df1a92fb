/* aggregator/store/verify_day.c - folded days against their sealed hours, by another statement than the one that folds. */
#include <stdio.h>

#include "aggregator/store/verify.h"

/* Columns before the sums: the day, and what the row is of. */
enum { DAY, WHAT, FIRST_SUM };

#define SUMS(u)                                                                                                     \
	"sum(" u ".used) AS s0, sum(" u ".idle) AS s1, sum(" u ".unmeasured) AS s2, sum(" u ".unallocated) AS s3, " \
	"sum(" u ".stranded) AS s4, sum(" u ".down) AS s5, sum(" u ".unknown) AS s6, sum(" u ".over) AS s7, "       \
	"sum(" u ".clock_adjust) AS s8, sum(" u ".energy_mj) AS s9, sum(" u ".memory_byte_ms) AS s10"
#define PAIR(n) "coalesce(h.s" #n ", 0), coalesce(f.s" #n ", 0)"

/* Only what differs comes back. A key is a text, so that nobody and nothing compare like anything else. */
static const char days_sql[] =
	"WITH days AS (SELECT day, starts_at, ends_at FROM billing_day WHERE NOT dirty AND NOT hours_gone "
	"AND starts_at >= $1 AND ends_at <= $2), "
	"f AS (SELECT u.day, concat_ws(', ', 'price book ' || u.price_book_id, 'cluster ' || u.cluster_id, "
	"'owner ' || u.owner_id, 'workspace ' || u.workspace_id, u.gpu_model, nullif(u.profile, ''), u.units || ' units', "
	"'sharing ' || u.sharing, 'method ' || u.method) AS key, " SUMS(
		"u") " FROM usage_daily u JOIN days USING (day) GROUP BY 1, 2), "
		     "h AS (SELECT b.day, concat_ws(', ', 'price book ' || (SELECT p.id FROM price_book p WHERE p.effective @> u.hour), "
		     "'cluster ' || k.cluster_id, 'owner ' || (SELECT o.tenant_id FROM node_owner o WHERE o.node_id = u.node_id "
		     "AND o.effective @> u.hour), 'workspace ' || u.workspace_id, g.short_model, nullif(d.profile, ''), d.units || ' units', "
		     "'sharing ' || u.sharing, 'method ' || u.method) AS key, " SUMS(
			     "u") " FROM days b JOIN usage_hourly u ON u.hour >= b.starts_at "
				  "AND u.hour < b.ends_at LEFT JOIN node_cluster k ON k.node_id = u.node_id AND k.effective @> u.hour "
				  "JOIN device d ON d.id = u.device_id LEFT JOIN gpu_spec g ON g.gpu_id = d.gpu_id AND g.effective @> u.hour GROUP BY 1, 2) "
				  "SELECT coalesce(f.day, h.day), coalesce(f.key, h.key), " PAIR(0) ", " PAIR(1) ", " PAIR(2) ", " PAIR(
					  3) ", " PAIR(4) ", " PAIR(5) ", " PAIR(6) ", " PAIR(7) ", " PAIR(8) ", " PAIR(9) ", " PAIR(10) " FROM f FULL JOIN h ON f.day = h.day AND f.key = h.key "
																	 "WHERE (f.s0, f.s1, f.s2, f.s3, f.s4, f.s5, f.s6, f.s7, f.s8, f.s9, f.s10) IS DISTINCT "
																	 "FROM (h.s0, h.s1, h.s2, h.s3, h.s4, h.s5, h.s6, h.s7, h.s8, h.s9, h.s10) ORDER BY 1, 2";

static bool
tell_row(struct verify_node *n, const PGresult *r, int row, struct err *err)
{
	char what[256];

	for (int s = 0; s < VERIFY_SUMS; s++) {
		int128 expected, found;

		if (!res_i128(r, row, FIRST_SUM + 2 * s, 0, &expected, err) ||
		    !res_i128(r, row, FIRST_SUM + 2 * s + 1, 0, &found, err))
			return false;
		if (expected == found)
			continue;
		snprintf(what, sizeof(what), "%s of %s: %.200s", verify_sum_names[s], res_text(r, row, DAY),
		         res_text(r, row, WHAT));
		verify_say(n, "day-changed", NULL, INT64_MIN, what, expected, found);
	}
	return true;
}

bool
verify_days(struct verify_node *n, struct err *err)
{
	static const struct db_stmt count = {
		"verify days",
		"SELECT count(*) FROM billing_day WHERE NOT dirty AND NOT hours_gone AND starts_at >= $1 "
		"AND ends_at <= $2"};
	in_place(db_tx) struct db_tx tx = {0};
	owned(result) PGresult *days = NULL, *r = NULL;
	struct db_args a = {0};

	arg_time(&a, n->from_ns);
	arg_time(&a, n->to_ns);
	if (!db_tx_begin_read(&tx, n->db, err) || !db_run(n->db, &count, &a, &days, err) ||
	    !db_run_text(n->db, days_sql, &a, &r, err))
		return false;
	n->report->days = res_i64(days, 0, 0);
	for (int row = 0; row < PQntuples(r); row++)
		if (!tell_row(n, r, row, err))
			return false;
	return db_tx_commit(&tx, err);
}
