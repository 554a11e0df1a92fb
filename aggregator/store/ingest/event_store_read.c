/* aggregator/store/ingest/event_store_read.c - what the events of a billing month add up to. */
#include "aggregator/store/db/db.h"
#include "aggregator/store/ingest/ingest.h"
#include "common/conf/json.h"

#define METERS_MAX 100000

static bool
write_rows(const PGresult *r, struct buf *out, struct err *err)
{
	if (PQntuples(r) > METERS_MAX)
		return err_set(err, ERR_INVALID, "meter: more than %d groups; ask for one meter or one tenant",
		               METERS_MAX);
	res_json(r, out);
	return true;
}

bool
store_meters_json(struct db *db, const struct meter_query *q, struct buf *out, struct err *err)
{
	static const struct db_stmt bounds = {"meter period",
	                                      "SELECT ns_of(starts_at), ns_of(ends_at) FROM period WHERE month = $1"};
	/* not prepared: its plan should know how long the range is */
	static const char totals[] =
		"SELECT t.name AS tenant, w.name AS workspace, u.category, u.meter, u.unit, u.sku, "
		"trim_scale(sum(u.quantity))::text AS quantity, sum(u.events)::bigint AS events "
		"FROM meter_usage($1, $2) u JOIN workspace w ON w.id = u.workspace_id JOIN tenant t ON t.id = w.tenant_id "
		"WHERE ($3::text IS NULL OR t.name = $3) AND ($4::text IS NULL OR u.meter = $4) "
		"GROUP BY t.name, w.name, u.category, u.meter, u.unit, u.sku "
		"ORDER BY t.name, w.name, u.category, u.meter, u.unit, u.sku LIMIT 100001";
	static const char by_end_user[] =
		"SELECT t.name AS tenant, w.name AS workspace, 'inference' AS category, m.meter, m.unit, e.sku, coalesce(e.end_user, '') AS end_user, "
		"trim_scale(sum(m.quantity))::text AS quantity, count(*) AS events FROM meter_event e LEFT JOIN holder_attribution a "
		"ON a.holder_id = e.holder_id AND a.effective @> at_ns(e.time_ns) JOIN workspace w ON w.id = coalesce(e.workspace_id, a.workspace_id) "
		"JOIN tenant t ON t.id = w.tenant_id CROSS JOIN LATERAL (VALUES ('inference-requests', 'request', e.requests::numeric), "
		"('inference-input-tokens', 'token', e.input_tokens::numeric), ('inference-output-tokens', 'token', e.output_tokens::numeric)) "
		"AS m(meter, unit, quantity) WHERE e.type = 3 AND e.time_ns >= ns_of($1) AND e.time_ns < ns_of($2) AND m.quantity IS NOT NULL "
		"AND ($3::text IS NULL OR t.name = $3) AND ($4::text IS NULL OR m.meter = $4) GROUP BY 1, 2, 4, 5, 6, 7 "
		"ORDER BY 1, 2, 4, 5, 6, 7 LIMIT 100001";
	owned(result) PGresult *p = NULL, *r = NULL;
	struct db_args b = {0}, a = {0};
	char from[TIME_TEXT_SIZE], to[TIME_TEXT_SIZE];

	_Static_assert(METERS_MAX == 100000, "the statement asks for one row more");
	arg_text(&b, q->period);
	if (!db_run(db, &bounds, &b, &p, err))
		return false;
	if (PQntuples(p) == 0)
		return err_set(err, ERR_MISSING, "the ledger has nothing of the period \"%.32s\"", q->period);
	arg_time(&a, res_i64(p, 0, 0));
	arg_time(&a, res_i64(p, 0, 1));
	arg_text(&a, q->tenant);
	arg_text(&a, q->meter);
	if (!db_run_text(db, q->by_end_user ? by_end_user : totals, &a, &r, err))
		return false;
	buf_printf(out, "{\"period\":\"%s\",\"from\":\"%s\",\"to\":\"%s\",\"meters\":", q->period,
	           time_format(res_i64(p, 0, 0), from), time_format(res_i64(p, 0, 1), to));
	if (!write_rows(r, out, err))
		return false;
	buf_str(out, "}\n");
	return buf_ok(out, "the answer", err);
}
