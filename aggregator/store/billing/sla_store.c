/* aggregator/store/billing/sla_store.c - promises of a month and how they were kept (promises_kept() in sql/0015_quota_functions.sql). */
#include "aggregator/store/billing/report_store.h"
#include "aggregator/store/db/db.h"
#include "aggregator/store/billing/promise_sql.h"

bool
store_sla_json(struct db *db, const char *period, const char *tenant, int64_t now_ns, struct buf *out, struct err *err)
{
	static const struct db_stmt bounds = {"sla period",
	                                      "SELECT ns_of(starts_at), ns_of(ends_at) FROM period WHERE month = $1"};
	/* not prepared: its plan should know how long the range is */
	static const char promises[] =
		"SELECT k.tenant, k.workspace, k.data_boundary, " PROMISE_OWED_WAIT
		" AS owed_wait_seconds, k.owed_requests, k.owed_late, " PROMISE_LONGEST_WAIT
		" AS longest_wait_seconds, " PROMISE_OWED_KEPT " AS owed_kept, " PROMISE_DELIVERED
		" AS delivered_percent, "
		"trim_scale(round(k.reserved / 18144000000000000, 9))::text AS reserved_gpu_hours, "
		"trim_scale(round(k.undelivered / 18144000000000000, 9))::text AS undelivered_gpu_hours, " PROMISE_MEASURED
		" AS measured_percent, k.days AS "
		"measured_days, " PROMISE_DELIVERED_KEPT
		" AS delivered_kept FROM promises_kept($1, $2, least(greatest($3::timestamptz, $1), $2::timestamptz - interval '1 microsecond')) k "
		"WHERE $4::text IS NULL OR k.tenant = $4";
	owned(result) PGresult *p = NULL, *r = NULL;
	struct db_args b = {0}, a = {0};

	arg_text(&b, period);
	if (!db_run(db, &bounds, &b, &p, err))
		return false;
	if (PQntuples(p) == 0)
		return err_set(err, ERR_MISSING, "the ledger has nothing of the period \"%.32s\"", period);
	arg_time(&a, res_i64(p, 0, 0));
	arg_time(&a, res_i64(p, 0, 1));
	arg_time(&a, now_ns);
	arg_text(&a, tenant);
	if (!db_run_text(db, promises, &a, &r, err))
		return false;
	buf_printf(out, "{\"period\":\"%s\",\"promises\":", period);
	res_json(r, out);
	buf_str(out, "}\n");
	return buf_ok(out, "the promises", err);
}
