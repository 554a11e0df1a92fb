/* aggregator/store/quota/quota_gauges.c - what the ledger has of quota for the daemon's gauges. */
#include "aggregator/store/quota/quota_gauges.h"

#include "aggregator/store/db/db.h"

bool
store_quota_gauges(struct db *db, int64_t now_ns, quota_gauge_row *each, void *arg, struct err *err)
{
	/* the numbers are those of enum quota_gauge_family */
	static const struct db_stmt stmt = {
		"quota gauges",
		"SELECT 0, coalesce(t.name, ''), '', r.state, count(*) FROM reclaim r JOIN decision d ON d.key = r.lease_id "
		"LEFT JOIN tenant t ON t.id = d.tenant_id WHERE r.state NOT IN ('returned', 'cancelled') GROUP BY 2, 4 "
		"UNION ALL SELECT 1, t.name, '', CASE x.status WHEN 'requested' THEN 'requested' ELSE CASE WHEN "
		"lower(x.effective) > $1::timestamptz THEN 'approved' ELSE 'running' END END, count(*) FROM exception x JOIN tenant t "
		"ON t.id = x.tenant_id WHERE x.status IN ('requested', 'approved') AND upper(x.effective) > $1::timestamptz GROUP BY "
		"2, 4 "
		"UNION ALL SELECT 2, coalesce(t.name, ''), '', a.kind, count(*) FROM quota_anomaly a LEFT JOIN tenant t ON t.id = "
		"a.tenant_id WHERE a.kind <> 'ungated' GROUP BY 2, 4 "
		"UNION ALL SELECT 3, coalesce(t.name, ''), split_part(a.detail ->> 'workspace', '/', 2), '', "
		"round(sum((a.detail ->> 'gpus')::numeric) * 5040)::bigint FROM quota_anomaly a LEFT JOIN tenant t ON t.id = "
		"a.tenant_id WHERE a.kind = 'unleased' AND a.detail ->> 'gpus' ~ '^[0-9]+(\\.[0-9]+)?$' GROUP BY 2, 3"};
	owned(result) PGresult *r = NULL;
	struct db_args a = {0};

	arg_time(&a, now_ns);
	if (!db_run(db, &stmt, &a, &r, err))
		return false;
	for (int row = 0; row < PQntuples(r); row++)
		each(arg, &(struct quota_gauge){.family = (enum quota_gauge_family)res_i64(r, row, 0),
		                                .tenant = res_text(r, row, 1),
		                                .workspace = res_text(r, row, 2),
		                                .kind = res_text(r, row, 3),
		                                .amount = res_i64(r, row, 4)});
	return true;
}
