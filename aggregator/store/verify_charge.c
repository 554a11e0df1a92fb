/* aggregator/store/verify_charge.c - what folded days are charged as, made again from their sealed hours and what was reserved. */
#include <stdio.h>

#include "aggregator/store/charges.h"
#include "aggregator/store/verify.h"

#define DAYS                                                                                                 \
	"(SELECT b.day FROM billing_day b WHERE NOT b.dirty AND NOT b.hours_gone AND b.starts_at >= $1 AND " \
	"b.starts_at < $2)"
/* Rows as texts: only what one of the two lacks comes back. */
#define EXPECTED(table) "SELECT '" table "' AS what, c.day, c::text AS row FROM open_" table " c"
#define FOUND(table) "SELECT '" table "' AS what, c.day, c::text AS row FROM " table " c WHERE c.day IN " DAYS

#define ALL(part)                                                                                               \
	part("charge_day") " UNION ALL " part("reserve_day") " UNION ALL " part("loan_day") " UNION ALL " part( \
		"pool_day")

static const char charges_sql[] = "WITH e AS MATERIALIZED (" ALL(EXPECTED) "), f AS MATERIALIZED (" ALL(
	FOUND) ") "
	       "SELECT x.what, x.day, x.row, true FROM (SELECT * FROM e EXCEPT ALL SELECT * FROM f) x UNION ALL "
	       "SELECT x.what, x.day, x.row, false FROM (SELECT * FROM f EXCEPT ALL SELECT * FROM e) x ORDER BY 2, 1, 4 DESC, 3";

bool
verify_charges(struct verify_node *n, struct err *err)
{
	in_place(db_tx) struct db_tx tx = {0};
	owned(result) PGresult *r = NULL;
	struct db_args a = {0};
	int64_t days;

	arg_time(&a, n->from_ns);
	arg_time(&a, n->to_ns);
	if (!db_tx_begin_long(&tx, n->db, err) ||
	    !db_script(n->db, "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ", err) || !charges_tables(n->db, err) ||
	    !charges_open(n->db, n->from_ns, n->to_ns, true, &days, err) ||
	    !db_run_text(n->db, charges_sql, &a, &r, err))
		return false;
	for (int row = 0; row < PQntuples(r); row++) {
		bool expected = res_bool(r, row, 3);
		char what[64];

		snprintf(what, sizeof(what), "%s of %s", res_text(r, row, 0), res_text(r, row, 1));
		verify_say_text(n, "charge", NULL, INT64_MIN, what, expected ? res_text(r, row, 2) : "",
		                expected ? "" : res_text(r, row, 2));
	}
	return db_tx_commit(&tx, err);
}
