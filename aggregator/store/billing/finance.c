/* aggregator/store/billing/finance.c - one-off charges and credits (requested, approved, reversed), and the budgets of a month.
 *
 * Rules of one-off charges and credits, in order:
 *  1. a row is never changed, and none enters a closed period: the database refuses both
 *  2. it is billed once it is approved by a person other than its requester. An administrator's request is approved at once
 *  3. it is reversed by a row of the opposite amount, once, and such a row is final
 *  4. every step has its audit entry in the same transaction */
#include "aggregator/store/billing/finance.h"

#include <string.h>

#include "aggregator/store/billing/report_internal.h"
#include "aggregator/store/db/db.h"

#define ROW                                                                                                               \
	"SELECT a.id, t.name AS tenant, coalesce(w.name, '') AS workspace, a.period, a.amount::text AS amount, "          \
	"a.currency, a.category, a.reason, CASE WHEN p.at IS NULL THEN 'requested' WHEN r.id IS NOT NULL "                \
	"THEN 'reversed' ELSE 'approved' END AS status, a.requested_by, rfc3339(a.at) AS requested, p.approved_by, "      \
	"rfc3339(p.at) AS approved, a.reverses, r.id AS reversed_by, a.refund FROM adjustment a JOIN tenant t ON t.id = " \
	"a.tenant_id LEFT JOIN workspace w ON w.id = a.workspace_id LEFT JOIN adjustment_approval p ON "                  \
	"p.adjustment_id = a.id LEFT JOIN adjustment r ON r.reverses = a.id AND EXISTS (SELECT FROM "                     \
	"adjustment_approval x WHERE x.adjustment_id = r.id) "

static bool
write_row(struct db *db, int64_t id, struct buf *out, struct err *err)
{
	static const struct db_stmt stmt = {"adjustment row", ROW "WHERE a.id = $1"};
	owned(result) PGresult *r = NULL;
	struct db_args a = {0};

	arg_i64(&a, id);
	if (!db_run(db, &stmt, &a, &r, err))
		return false;
	if (PQntuples(r) == 0)
		return err_set(err, ERR_MISSING, "there is no one-off charge or credit %" PRId64, id);
	res_json_row(r, 0, out);
	buf_char(out, '\n');
	return buf_ok(out, "the adjustment", err);
}

/* Rule 4; the audit entry has the row after the step. */
static bool
audit(struct db *db, int64_t id, const char *actor, const char *action, const char *reason, struct err *err)
{
	static const struct db_stmt stmt = {
		"adjustment audit",
		"INSERT INTO audit_log (actor, action, subject, after, reason, tenant_id) SELECT $2, $3, "
		"'adjustment ' || a.id, jsonb_build_object('tenant', t.name, 'workspace', w.name, 'period', a.period, "
		"'amount', a.amount::text, 'currency', a.currency, 'category', a.category, 'requested_by', "
		"a.requested_by, 'approved_by', p.approved_by, 'reverses', a.reverses, 'refund', a.refund), $4, a.tenant_id "
		"FROM adjustment a JOIN tenant t ON t.id = a.tenant_id LEFT JOIN workspace w ON w.id = a.workspace_id "
		"LEFT JOIN adjustment_approval p ON p.adjustment_id = a.id WHERE a.id = $1"};
	struct db_args a = {0};

	arg_i64(&a, id);
	arg_text(&a, actor);
	arg_text(&a, action);
	arg_text(&a, reason);
	return db_run(db, &stmt, &a, NULL, err);
}

static bool
approve(struct db *db, int64_t id, const char *actor, struct err *err)
{
	static const struct db_stmt stmt = {"adjustment approve", "INSERT INTO adjustment_approval (adjustment_id, "
	                                                          "approved_by) VALUES ($1, $2)"};
	struct db_args a = {0};

	arg_i64(&a, id);
	arg_text(&a, actor);
	return db_run(db, &stmt, &a, NULL, err);
}

/* --- requests --- */

static bool
find_place(struct db *db, const struct adjustment_request *rq, PGresult **ret, struct err *err)
{
	static const struct db_stmt stmt = {
		"adjustment place",
		"SELECT t.id, w.id, p.status FROM (VALUES (1)) one LEFT JOIN tenant t ON t.name = $1 LEFT JOIN workspace w "
		"ON w.tenant_id = t.id AND w.name = $2 LEFT JOIN period p ON p.month = $3"};
	struct db_args a = {0};

	arg_text(&a, rq->tenant);
	arg_text(&a, rq->workspace);
	arg_text(&a, rq->period);
	if (!db_run(db, &stmt, &a, ret, err))
		return false;
	if (res_null(*ret, 0, 0))
		return err_set(err, ERR_MISSING, "there is no tenant \"%.64s\"", rq->tenant);
	if (rq->workspace != NULL && res_null(*ret, 0, 1))
		return err_set(err, ERR_MISSING, "the tenant %s has no workspace \"%.64s\"", rq->tenant, rq->workspace);
	if (res_null(*ret, 0, 2))
		return err_set(err, ERR_MISSING, "the ledger has nothing of period %.40s", rq->period);
	if (strcmp(res_text(*ret, 0, 2), "closed") == 0)
		return err_set(err, ERR_CONFLICT,
		               "period %.40s is closed: a one-off charge or credit goes into one that is open",
		               rq->period);
	return true;
}

/* Only for a day that is over: today's rows may still change. */
static bool
find_refund(struct db *db, const struct adjustment_request *rq, struct err *err)
{
	static const struct db_stmt stmt = {
		"adjustment refund",
		"SELECT EXISTS (SELECT FROM lost_hold l JOIN holder_attribution a ON a.holder_id = l.holder_id AND a.effective @> "
		"hour_of(l.ended_ns - 1) JOIN workspace w ON w.id = a.workspace_id JOIN tenant t ON t.id = w.tenant_id "
		"WHERE t.name = $1 AND refund_id(l.device_id, l.holder_id, l.ended_ns) = $2)"};
	owned(result) PGresult *r = NULL;
	struct db_args a = {0};

	if (rq->refund == NULL)
		return true;
	arg_text(&a, rq->tenant);
	arg_text(&a, rq->refund);
	if (!db_run(db, &stmt, &a, &r, err))
		return false;
	return res_bool(r, 0, 0) ||
	       err_set(err, ERR_MISSING,
	               "refund: the tenant %s has lost nothing of id \"%.32s\", or the day is not over", rq->tenant,
	               rq->refund);
}

bool
store_adjustment_add(struct db *db, const struct adjustment_request *rq, struct buf *out, struct err *err)
{
	static const struct db_stmt stmt = {
		"adjustment add",
		"INSERT INTO adjustment (tenant_id, workspace_id, period, amount, currency, category, reason, requested_by, refund) "
		"VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9) RETURNING id"};
	in_place(db_tx) struct db_tx tx = {0};
	owned(result) PGresult *place = NULL, *made = NULL;
	struct db_args a = {0};
	int64_t id;

	if (!db_tx_begin(&tx, db, err) || !find_place(db, rq, &place, err) || !find_refund(db, rq, err))
		return false;
	arg_i64(&a, res_i64(place, 0, 0));
	arg_text(&a, res_null(place, 0, 1) ? NULL : res_text(place, 0, 1));
	arg_text(&a, rq->period);
	arg_text(&a, rq->amount);
	arg_text(&a, rq->currency);
	arg_text(&a, rq->category);
	arg_text(&a, rq->reason);
	arg_text(&a, rq->actor);
	arg_text(&a, rq->refund);
	if (!db_run(db, &stmt, &a, &made, err))
		return false;
	id = res_i64(made, 0, 0);
	return (!rq->approved || approve(db, id, rq->actor, err)) &&
	       audit(db, id, rq->actor, "credit.add", rq->reason, err) && write_row(db, id, out, err) &&
	       db_tx_commit(&tx, err);
}

/* --- decided --- */

static bool
lock_row(struct db *db, int64_t id, PGresult **ret, struct err *err)
{
	static const struct db_stmt stmt = {
		"adjustment lock",
		"SELECT a.requested_by, p.approved_by, a.reverses, (SELECT r.id FROM adjustment r WHERE r.reverses = a.id), "
		"m.status, a.period FROM adjustment a JOIN period m ON m.month = a.period LEFT JOIN adjustment_approval p "
		"ON p.adjustment_id = a.id WHERE a.id = $1 FOR NO KEY UPDATE OF a"};
	struct db_args a = {0};

	arg_i64(&a, id);
	if (!db_run(db, &stmt, &a, ret, err))
		return false;
	return PQntuples(*ret) == 1 || err_set(err, ERR_MISSING, "there is no one-off charge or credit %" PRId64, id);
}

bool
store_adjustment_approve(struct db *db, const struct adjustment_decision *d, struct buf *out, struct err *err)
{
	in_place(db_tx) struct db_tx tx = {0};
	owned(result) PGresult *was = NULL;

	if (!db_tx_begin(&tx, db, err) || !lock_row(db, d->id, &was, err))
		return false;
	if (res_null(was, 0, 1)) {
		if (!d->admin && strcmp(res_text(was, 0, 0), d->actor) == 0)
			return err_set(err, ERR_DENIED, "%s asked for it: somebody else has to agree", d->actor);
		if (strcmp(res_text(was, 0, 4), "closed") == 0)
			return err_set(err, ERR_CONFLICT, "period %s is closed", res_text(was, 0, 5));
		if (!approve(db, d->id, d->actor, err) || !audit(db, d->id, d->actor, "credit.approve", d->reason, err))
			return false;
	}
	return write_row(db, d->id, out, err) && db_tx_commit(&tx, err);
}

static bool
may_be_reversed(const PGresult *was, struct err *err)
{
	if (res_null(was, 0, 1))
		return err_set(err, ERR_CONFLICT, "nobody agreed to it: it is not billed");
	if (!res_null(was, 0, 2))
		return err_set(err, ERR_CONFLICT, "it takes back %s, and that is final", res_text(was, 0, 2));
	if (!res_null(was, 0, 3))
		return err_set(err, ERR_CONFLICT, "it was taken back by %s", res_text(was, 0, 3));
	return true;
}

bool
store_adjustment_reverse(struct db *db, const struct adjustment_decision *d, struct buf *out, struct err *err)
{
	static const struct db_stmt stmt = {
		"adjustment reverse",
		"INSERT INTO adjustment (tenant_id, workspace_id, period, amount, currency, category, reason, requested_by, "
		"reverses) SELECT a.tenant_id, a.workspace_id, p.month, -a.amount, a.currency, a.category, $2, $3, a.id "
		"FROM adjustment a, period p WHERE a.id = $1 AND p.month = $4 AND p.status <> 'closed' RETURNING id"};
	in_place(db_tx) struct db_tx tx = {0};
	owned(result) PGresult *was = NULL, *made = NULL;
	struct db_args a = {0};
	const char *period;
	int64_t id;

	if (!db_tx_begin(&tx, db, err) || !lock_row(db, d->id, &was, err) || !may_be_reversed(was, err))
		return false;
	period = d->period != NULL ? d->period : res_text(was, 0, 5);
	arg_i64(&a, d->id);
	arg_text(&a, d->reason);
	arg_text(&a, d->actor);
	arg_text(&a, period);
	if (!db_run(db, &stmt, &a, &made, err))
		return false;
	if (PQntuples(made) == 0)
		return err_set(err, ERR_CONFLICT, "period %.40s is closed or not in the ledger: name one that is open",
		               period);
	id = res_i64(made, 0, 0);
	return (!d->admin || approve(db, id, d->actor, err)) &&
	       audit(db, id, d->actor, "credit.reverse", d->reason, err) && write_row(db, id, out, err) &&
	       db_tx_commit(&tx, err);
}

/* --- read --- */

/* Not prepared: planned for the filters given. */
bool
store_adjustments_json(struct db *db, const struct adjustment_query *q, struct buf *out, struct err *err)
{
	static const char sql[] = ROW "WHERE ($1::text IS NULL OR t.name = $1) AND ($2::text IS NULL OR a.period = $2) "
				      "AND (NOT $3::boolean OR p.at IS NOT NULL) AND ($4::bigint = 0 OR a.id < $4) "
				      "ORDER BY a.id DESC LIMIT $5::bigint + 1";
	owned(result) PGresult *r = NULL;
	struct db_args a = {0};

	arg_text(&a, q->tenant);
	arg_text(&a, q->period);
	arg_bool(&a, q->approved_only);
	arg_i64(&a, q->page.before);
	arg_i64(&a, q->page.limit);
	return db_run_text(db, sql, &a, &r, err) && res_json_page(r, "adjustments", q->page.limit, out, err);
}

/* The day is that of the request, as far as it lies in the month. */
bool
adjustment_rows(struct db *db, const char *period, int64_t tenant_id, PGresult **ret, struct err *err)
{
	static const struct db_stmt stmt = {
		"adjustment rows",
		"SELECT greatest(0, least((a.at AT TIME ZONE l.zone)::date, (p.ends_at AT TIME ZONE l.zone)::date - 1) - "
		"(p.starts_at AT TIME ZONE l.zone)::date), coalesce(w.name, ''), a.category, 'adjustment-' || a.id, "
		"a.amount, a.currency, a.reason, (SELECT CASE WHEN o.amount < 0 THEN 'credit' ELSE 'charge' END || ' adjustment-' || o.id FROM adjustment o "
		"WHERE o.id = a.reverses) FROM ledger l, adjustment a JOIN adjustment_approval y ON y.adjustment_id = "
		"a.id JOIN period p ON p.month = a.period LEFT JOIN workspace w ON w.id = a.workspace_id "
		"WHERE a.period = $1 AND a.tenant_id = $2 ORDER BY a.id"};
	struct db_args a = {0};

	arg_text(&a, period);
	arg_i64(&a, tenant_id);
	return db_run(db, &stmt, &a, ret, err);
}

bool
adjustment_day(const PGresult *r, int row, struct usage_day *ret, struct err *err)
{
	*ret = (struct usage_day){.day = (int32_t)res_i64(r, row, 0),
	                          .kind = CHARGE_ADJUSTMENT,
	                          .cluster = "",
	                          .tenant = "",
	                          .cost_center = "",
	                          .workspace = res_text(r, row, 1),
	                          .gpu_model = "",
	                          .mig_profile = "",
	                          .sharing_mode = "",
	                          .klass = "",
	                          .price_book = -1,
	                          .category = res_text(r, row, 2),
	                          .unit = "charge",
	                          .meter_sku = res_text(r, row, 3),
	                          .quantity = pow10_i128(QUANTITY_SCALE),
	                          .currency = res_text(r, row, 5),
	                          .reason = res_text(r, row, 6),
	                          .meter = res_null(r, row, 7) ? NULL : res_text(r, row, 7)};
	return res_i128(r, row, 4, PRICE_SCALE, &ret->amount, err);
}

/* ---- budgets ---- */

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

/* The ledger's first hour is that of the first node, or of the first event if that is earlier. A day before the month
 * is not needed. */
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
