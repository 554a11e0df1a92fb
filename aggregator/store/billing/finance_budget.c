/* aggregator/store/billing/finance_budget.c - the budgets of a month, and the days it has. */
#include "aggregator/store/db/db.h"
#include "aggregator/store/billing/finance.h"

struct budget_memory {
	PGresult *rows;
};

void
budget_list_free(struct budget_list *l)
{
	struct budget_memory *m;

	if (l == NULL)
		return;
	m = l->memory;
	PQclear(m->rows);
	mem_free(m);
	mem_free(l->at);
	mem_free(l->days);
	mem_free(l);
}

/* The bounds of its days in the billing zone, and so its own. */
static bool
load_days(struct db *db, const char *period, struct budget_list *l, struct err *err)
{
	static const struct db_stmt stmt = {
		"budget days",
		"SELECT ns_of(d AT TIME ZONE l.zone) FROM ledger l, period p, generate_series(p.starts_at AT TIME ZONE l.zone, "
		"p.ends_at AT TIME ZONE l.zone, interval '1 day') d WHERE p.month = $1 ORDER BY 1"};
	owned(result) PGresult *r = NULL;
	struct db_args a = {0};
	int rows;

	arg_text(&a, period);
	if (!db_run(db, &stmt, &a, &r, err))
		return false;
	rows = PQntuples(r);
	if (rows < 2)
		return err_set(err, ERR_MISSING, "the ledger has nothing of period %.40s", period);
	l->day_count = (size_t)rows - 1;
	l->days = mem_array(l->day_count, sizeof(*l->days));
	for (int i = 0; i + 1 < rows; i++)
		l->days[i] = (struct forecast_day){.from_ns = res_i64(r, i, 0), .to_ns = res_i64(r, i + 1, 0)};
	return true;
}

/* The ledger's first hour is that of the first node, or of the first event where that is earlier. Where a day lies before the month nobody needs it. */
static bool
load_first_hour(struct db *db, struct budget_list *l, struct err *err)
{
	static const struct db_stmt stmt = {
		"budget first hour",
		"SELECT CASE WHEN EXISTS (SELECT FROM billing_day b WHERE b.starts_at < $1) THEN 0 ELSE ns_of(least("
		"(SELECT min(x.hour) FROM node n CROSS JOIN LATERAL (SELECT h.hour FROM node_hour h WHERE h.node_id = n.id ORDER BY h.hour LIMIT 1) x), "
		"(SELECT hour_of(min(e.time_ns)) FROM meter_event e WHERE e.time_ns < ns_of($2)))) END"};
	owned(result) PGresult *r = NULL;
	struct db_args a = {0};

	arg_time(&a, l->days[0].from_ns);
	arg_time(&a, l->days[l->day_count - 1].to_ns);
	if (!db_run(db, &stmt, &a, &r, err))
		return false;
	l->first_ns = res_i64(r, 0, 0) > l->days[0].from_ns ? res_i64(r, 0, 0) : 0;
	return true;
}

/* Those in force now, or at the end of a month that is over. */
static bool
load_rows(struct db *db, const char *period, const char *tenant, int64_t now_ns, PGresult **ret, struct err *err)
{
	static const struct db_stmt stmt = {
		"budgets",
		"SELECT t.name, coalesce(w.name, ''), b.kind, coalesce(b.currency, b.meter_unit, ''), b.amount FROM period p, budget b JOIN "
		"tenant t ON t.id = b.tenant_id LEFT JOIN workspace w ON w.id = b.workspace_id WHERE p.month = $1 AND "
		"b.effective @> greatest(p.starts_at, least($2::timestamptz, p.ends_at - interval '1 microsecond')) AND "
		"($3::text IS NULL OR t.name = $3) ORDER BY t.name COLLATE \"C\", coalesce(w.name, '') COLLATE \"C\""};
	struct db_args a = {0};

	arg_text(&a, period);
	arg_time(&a, now_ns);
	arg_text(&a, tenant);
	return db_run(db, &stmt, &a, ret, err);
}

bool
store_budgets_load(struct db *db, const char *period, const char *tenant, int64_t now_ns, struct budget_list **ret,
                   struct err *err)
{
	owned(budget_list) struct budget_list *l = mem_alloc(sizeof(*l));
	struct budget_memory *m = l->memory = mem_alloc(sizeof(*m));

	if (!load_days(db, period, l, err) || !load_first_hour(db, l, err) ||
	    !load_rows(db, period, tenant, now_ns, &m->rows, err))
		return false;
	l->count = (size_t)PQntuples(m->rows);
	l->at = mem_array(l->count, sizeof(*l->at));
	for (int i = 0; i < (int)l->count; i++) {
		l->at[i] = (struct budget){.tenant = res_text(m->rows, i, 0),
		                           .workspace = res_text(m->rows, i, 1),
		                           .kind = res_text(m->rows, i, 2),
		                           .unit = res_text(m->rows, i, 3)};
		if (!res_i128(m->rows, i, 4, PRICE_SCALE, &l->at[i].limit, err))
			return false;
	}
	*ret = take(l);
	return true;
}
