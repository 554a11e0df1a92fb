/* aggregator/store/billing/document_facts.c - the facts of a month that its documents have beside its lines, and its promises as JSON. */
#include "aggregator/store/billing/document.h"

#include <stdio.h>
#include <string.h>

#include "aggregator/store/billing/finance.h"
#include "aggregator/store/billing/period_internal.h"
#include "aggregator/store/db/db.h"

/* Promises of a month as texts, of k, a row of promises_kept(). */
#define PROMISE_OWED_WAIT "trim_scale(k.owed_wait_ns / 1000000000.0)::text"
#define PROMISE_LONGEST_WAIT "trim_scale(round(k.longest_wait_ns / 1000000000.0, 3))::text"
#define PROMISE_OWED_KEPT "CASE WHEN k.owed_requests > 0 THEN k.owed_late = 0 END"
#define PROMISE_DELIVERED "trim_scale(k.delivered_millionths / 10000.0)::text"
#define PROMISE_MEASURED "trim_scale(trunc((k.reserved - k.undelivered) * 100 / k.reserved, 4))::text"
#define PROMISE_DELIVERED_KEPT "CASE WHEN k.reserved > 0 THEN (k.reserved - k.undelivered) * 1000000 >= k.promised END"

/* ---- the month before ---- */

void
previous_month_fini(struct previous_month *p)
{
	mem_free(p->at);
	*p = (struct previous_month){0};
}

static struct previous_amount *
amount_of(struct previous_month *p, const char *tenant, const char *currency, int scale)
{
	struct previous_amount *a;

	/* tenants come one after the other */
	for (size_t i = p->count; i > 0 && strcmp(p->at[i - 1].tenant, tenant) == 0; i--)
		if (strcmp(p->at[i - 1].currency, currency) == 0)
			return &p->at[i - 1];
	p->at = mem_grow(p->at, p->count + 1, sizeof(*p->at));
	a = &p->at[p->count++];
	*a = (struct previous_amount){.scale = scale};
	snprintf(a->tenant, sizeof(a->tenant), "%s", tenant);
	snprintf(a->currency, sizeof(a->currency), "%s", currency);
	return a;
}

static bool
add_lines(void *arg, const struct rating_input *in, const struct rated *r, struct err *err)
{
	(void)in;
	(void)err;
	for (size_t i = 0; i < r->count; i++) {
		const struct rated_line *l = &r->lines[i];

		amount_of(arg, l->tenant, l->currency, l->currency_scale)->billed += l->billed;
	}
	return true;
}

/* For a closed month: the sums of its invoices, and the corrections billed with it. */
static bool
load_billed(struct db *db, const char *tenant, struct previous_month *p, struct err *err)
{
	static const struct db_stmt stmt = {
		"document billed before",
		"SELECT t.name, s.currency, sum(s.billed) FROM invoice i JOIN invoice_total s ON s.number = i.number "
		"JOIN tenant t ON t.id = i.tenant_id WHERE i.closed_in = $1 AND ($2::text IS NULL OR t.name = $2) "
		"GROUP BY 1, 2 ORDER BY t.name COLLATE \"C\", 2"};
	owned(result) PGresult *r = NULL;
	struct db_args a = {0};

	arg_text(&a, p->period);
	arg_text(&a, tenant);
	if (!db_run(db, &stmt, &a, &r, err))
		return false;
	for (int row = 0; row < PQntuples(r); row++) {
		int scale;

		if (!currency_exponent(res_text(r, row, 1), &scale, err) ||
		    !res_i128(r, row, 2, scale, &amount_of(p, res_text(r, row, 0), res_text(r, row, 1), scale)->billed,
		              err))
			return false;
	}
	return true;
}

bool
previous_month_load(struct db *db, const char *month, const char *tenant, struct previous_month *ret, struct err *err)
{
	static const struct db_stmt stmt = {"document month before",
	                                    "SELECT b.month, b.status = 'closed' FROM period p "
	                                    "JOIN period b ON b.ends_at = p.starts_at WHERE p.month = $1"};
	owned(result) PGresult *r = NULL;
	struct db_args a = {0};

	arg_text(&a, month);
	if (!db_run(db, &stmt, &a, &r, err))
		return false;
	if (PQntuples(r) == 0)
		return true;
	snprintf(ret->period, sizeof(ret->period), "%s", res_text(r, 0, 0));
	return res_bool(r, 0, 1) ? load_billed(db, tenant, ret, err)
	                         : store_period_each(db, ret->period, tenant, add_lines, ret, err);
}

/* ---- days and months ---- */

/* The days of a month begin at midnight in the billing zone, but the first and the end where the period says. */
static bool
add_days(struct db *db, const struct rating_input *in, struct buf *out, struct err *err)
{
	static const struct db_stmt stmt = {
		"document days",
		"SELECT rfc3339(y.at), ns_of(y.at) FROM ledger l, period p, "
		"generate_series($1::date, $2::date, interval '1 day') g, LATERAL (SELECT g::date AS day) x, "
		"LATERAL (SELECT CASE WHEN x.day = $1::date THEN p.starts_at WHEN x.day = $2::date THEN p.ends_at "
		"ELSE x.day::timestamp AT TIME ZONE l.zone END AS at) y WHERE p.month = $3 ORDER BY x.day"};
	owned(result) PGresult *r = NULL;
	struct db_args a = {0};

	arg_text(&a, in->period_start);
	arg_text(&a, in->period_end);
	arg_text(&a, in->period);
	if (!db_run(db, &stmt, &a, &r, err))
		return false;
	if (PQntuples(r) < 2)
		return err_set(err, ERR_FATAL, "period %s has no days", in->period);
	for (int row = 0; row < PQntuples(r); row++)
		facts_write_day(&(struct facts_day){res_text(r, row, 0), res_i64(r, row, 1)}, out);
	return true;
}

/* Up to the month itself: those are closed for good once it is. */
static bool
add_periods(struct db *db, const struct rating_input *in, const struct facts_request *rq, struct buf *out,
            struct err *err)
{
	static const struct db_stmt stmt = {
		"document periods",
		"SELECT rfc3339(p.starts_at), rfc3339(p.ends_at), CASE WHEN x.at IS NULL THEN p.status ELSE 'closed' END, "
		"coalesce(rfc3339(x.at), ''), to_char(p.starts_at AT TIME ZONE l.zone, 'YYYY-MM-DD') "
		"FROM ledger l, period m JOIN period p ON p.starts_at <= m.starts_at, LATERAL (SELECT CASE WHEN p.month = m.month "
		"THEN coalesce(p.closed_at, $2::timestamptz) ELSE p.closed_at END AS at) x WHERE m.month = $1 ORDER BY p.starts_at"};
	owned(result) PGresult *r = NULL;
	struct db_args a = {0};

	arg_text(&a, in->period);
	if (rq->closing)
		arg_time(&a, rq->now_ns);
	else
		arg_text(&a, NULL);
	if (!db_run(db, &stmt, &a, &r, err))
		return false;
	for (int row = 0; row < PQntuples(r); row++)
		facts_write_period(&(struct focus_period){.start = res_text(r, row, 0),
		                                          .end = res_text(r, row, 1),
		                                          .status = res_text(r, row, 2),
		                                          .closed_at = res_text(r, row, 3),
		                                          .first_day = res_text(r, row, 4)},
		                   out);
	return true;
}

/* The days of the months before it: corrections are of these. */
static bool
add_past_days(struct db *db, const struct rating_input *in, struct buf *out, struct err *err)
{
	static const struct db_stmt stmt = {
		"document past days",
		"SELECT to_char(p.starts_at AT TIME ZONE l.zone, 'YYYY-MM-DD'), rfc3339(greatest(g.day::timestamp AT TIME ZONE l.zone, p.starts_at)) "
		"FROM ledger l, period m JOIN period p ON p.starts_at < m.starts_at, "
		"LATERAL (SELECT g::date AS day FROM generate_series((p.starts_at AT TIME ZONE l.zone)::date, "
		"(p.ends_at AT TIME ZONE l.zone)::date - 1, interval '1 day') g) g WHERE m.month = $1 ORDER BY p.starts_at, g.day"};
	owned(result) PGresult *r = NULL;
	struct db_args a = {0};

	arg_text(&a, in->period);
	if (!db_run(db, &stmt, &a, &r, err))
		return false;
	for (int row = 0; row < PQntuples(r); row++)
		facts_write_past_day(&(struct focus_day){res_text(r, row, 0), res_text(r, row, 1)}, out);
	return true;
}

/* Rule 12 of focus.h. A ledger whose pods have no labels is not searched for them. */
static bool
add_labels(struct db *db, const struct rating_input *in, const struct facts_request *rq, struct buf *out,
           struct err *err)
{
	static const struct db_stmt any = {"document any label",
	                                   "SELECT EXISTS (SELECT FROM holder WHERE labels <> '{}')"};
	static const char sql[] =
		"WITH held AS (SELECT DISTINCT u.workspace_id, u.holder_id FROM period p, usage_rows(p.starts_at, p.ends_at) u "
		"WHERE p.month = $1 AND u.workspace_id IN (SELECT w.id FROM workspace w JOIN tenant t ON t.id = w.tenant_id "
		"WHERE $2::text IS NULL OR t.name = $2)), holders AS (SELECT workspace_id, count(*) AS n FROM held GROUP BY 1) "
		"SELECT t.name, w.name, e.key, e.value FROM held d JOIN holder h ON h.id = d.holder_id AND h.labels <> '{}' "
		"CROSS JOIN jsonb_each_text(h.labels) e JOIN holders n USING (workspace_id) "
		"JOIN workspace w ON w.id = d.workspace_id JOIN tenant t ON t.id = w.tenant_id GROUP BY 1, 2, 3, 4, n.n HAVING count(*) = n.n ORDER BY t.name COLLATE \"C\", w.name COLLATE \"C\", e.key COLLATE \"C\"";
	owned(result) PGresult *found = NULL, *r = NULL;
	struct db_args none = {0}, a = {0};

	if (!db_run(db, &any, &none, &found, err))
		return false;
	if (!res_bool(found, 0, 0))
		return true;
	arg_text(&a, in->period);
	arg_text(&a, rq->tenant);
	if (!db_run_text(db, sql, &a, &r, err))
		return false;
	for (int row = 0; row < PQntuples(r); row++)
		facts_write_label(&(struct focus_label){.tenant = res_text(r, row, 0),
		                                        .workspace = res_text(r, row, 1),
		                                        .key = res_text(r, row, 2),
		                                        .value = res_text(r, row, 3)},
		                  out);
	return true;
}

/* ---- tenants ---- */

static bool
add_tenant(const PGresult *r, int row, struct buf *out, struct err *err)
{
	struct facts_tenant t = {.tenant = res_text(r, row, 0),
	                         .display_name = res_text(r, row, 1),
	                         .has_own = !res_null(r, row, 2)};

	if (t.has_own &&
	    (!res_i128(r, row, 2, 0, &t.own.held, err) || !res_i128(r, row, 3, 0, &t.own.unallocated, err) ||
	     !res_i128(r, row, 4, 0, &t.own.stranded, err) || !res_i128(r, row, 5, 0, &t.own.down, err) ||
	     !res_i128(r, row, 6, 0, &t.own.unknown, err)))
		return false;
	facts_write_tenant(&t, out);
	return true;
}

/* By tenant, its own before those of its workspaces. */
static bool
load_promises(struct db *db, const struct rating_input *in, const struct facts_request *rq, PGresult **ret,
              struct err *err)
{
	static const char sql[] =
		"SELECT k.tenant, k.workspace, " PROMISE_OWED_WAIT
		", k.owed_requests::text, k.owed_late::text, " PROMISE_LONGEST_WAIT ", (" PROMISE_OWED_KEPT
		")::text, " PROMISE_DELIVERED ", " PROMISE_MEASURED ", (" PROMISE_DELIVERED_KEPT
		")::text FROM period p CROSS JOIN LATERAL promises_kept(p.starts_at, "
		"p.ends_at, least(greatest($3::timestamptz, p.starts_at), p.ends_at - interval '1 microsecond')) k WHERE p.month = $1 AND ($2::text IS NULL OR "
		"k.tenant = $2) ORDER BY k.tenant COLLATE \"C\", k.workspace COLLATE \"C\"";
	struct db_args a = {0};

	arg_text(&a, in->period);
	arg_text(&a, rq->tenant);
	arg_time(&a, rq->now_ns);
	return db_run_text(db, sql, &a, ret, err);
}

static void
add_promises(const char *tenant, const PGresult *r, int *row, struct buf *out)
{
	while (*row < PQntuples(r) && strcmp(res_text(r, *row, 0), tenant) < 0)
		++*row;
	for (; *row < PQntuples(r) && strcmp(res_text(r, *row, 0), tenant) == 0; ++*row) {
		const char *text[10];

		for (int i = 1; i < 10; i++)
			text[i] = res_null(r, *row, i) ? NULL : res_text(r, *row, i);
		facts_write_promise(&(struct invoice_promise){.workspace = text[1],
		                                              .owed_wait_seconds = text[2],
		                                              .owed_requests = text[3],
		                                              .owed_late = text[4],
		                                              .longest_wait_seconds = text[5],
		                                              .owed_kept = text[6],
		                                              .delivered_percent = text[7],
		                                              .measured_percent = text[8],
		                                              .delivered_kept = text[9]},
		                    out);
	}
}

static bool
add_promises_only(struct db *db, const struct rating_input *in, const struct facts_request *rq, struct buf *out,
                  struct err *err)
{
	owned(result) PGresult *r = NULL;

	if (!load_promises(db, in, rq, &r, err))
		return false;
	for (int row = 0; row < PQntuples(r);) {
		const char *tenant = res_text(r, row, 0);

		facts_write_tenant(&(struct facts_tenant){.tenant = tenant, .display_name = ""}, out);
		add_promises(tenant, r, &row, out);
	}
	return true;
}

/* Both lists come by tenant. */
static void
add_parts(const char *tenant, const struct previous_month *previous, size_t *p, const struct budget_list *budgets,
          size_t *b, struct buf *out)
{
	while (*p < previous->count && strcmp(previous->at[*p].tenant, tenant) < 0)
		++*p;
	for (; *p < previous->count && strcmp(previous->at[*p].tenant, tenant) == 0; ++*p)
		facts_write_amount(&(struct invoice_amount){.currency = previous->at[*p].currency,
		                                            .billed = previous->at[*p].billed,
		                                            .scale = previous->at[*p].scale},
		                   out);
	while (*b < budgets->count && strcmp(budgets->at[*b].tenant, tenant) < 0)
		++*b;
	for (; *b < budgets->count && strcmp(budgets->at[*b].tenant, tenant) == 0; ++*b)
		facts_write_budget(&budgets->at[*b], out);
}

static bool
add_tenants(struct db *db, const struct rating_input *in, const struct facts_request *rq,
            const struct previous_month *previous, struct buf *out, struct err *err)
{
	static const char sql[] =
		"SELECT t.name, t.display_name, sum(u.used + u.idle + u.unmeasured), sum(u.unallocated), sum(u.stranded), "
		"sum(u.down), sum(u.unknown) FROM period p CROSS JOIN LATERAL tenants_known(p.ends_at - interval '1 microsecond') t "
		"LEFT JOIN LATERAL (SELECT o.* FROM daily_rows(p.starts_at, p.ends_at) o WHERE o.owner_id IS NOT NULL) u "
		"ON u.owner_id = t.id WHERE p.month = $1 AND ($2::text IS NULL OR t.name = $2) GROUP BY 1, 2 ORDER BY t.name COLLATE \"C\"";
	owned(budget_list) struct budget_list *budgets = NULL;
	owned(result) PGresult *r = NULL, *promises = NULL;
	struct db_args a = {0};
	size_t p = 0, b = 0;
	int s = 0;

	arg_text(&a, in->period);
	arg_text(&a, rq->tenant);
	if (!store_budgets_load(db, in->period, rq->tenant, rq->now_ns, &budgets, err) ||
	    !db_run_text(db, sql, &a, &r, err) || !load_promises(db, in, rq, &promises, err))
		return false;
	facts_write_ledger(&(struct facts_ledger){budgets->first_ns}, out);
	for (int row = 0; row < PQntuples(r); row++) {
		if (!add_tenant(r, row, out, err))
			return false;
		add_parts(res_text(r, row, 0), previous, &p, budgets, &b, out);
		add_promises(res_text(r, row, 0), promises, &s, out);
	}
	return true;
}

bool
document_facts(struct db *db, const struct rating_input *in, const struct facts_request *rq,
               const struct previous_month *previous, struct buf *out, struct err *err)
{
	struct facts_frame frame = {.organisation = rq->organisation, .provider = rq->provider, .now_ns = rq->now_ns};
	struct db_ledger ledger;

	if (!db_ledger_get(db, &ledger, err))
		return false;
	frame.zone = ledger.zone;
	frame.previous_period = previous != NULL && previous->period[0] != '\0' ? previous->period : NULL;
	frame.layout = INVOICE_LAYOUT;
	facts_write_frame(&frame, out);
	if (rq->promises_only)
		return add_days(db, in, out, err) && add_promises_only(db, in, rq, out, err) &&
		       buf_ok(out, "what documents say", err);
	return add_days(db, in, out, err) && add_periods(db, in, rq, out, err) && add_past_days(db, in, out, err) &&
	       add_labels(db, in, rq, out, err) && (previous == NULL || add_tenants(db, in, rq, previous, out, err)) &&
	       buf_ok(out, "what documents say", err);
}

/* ---- promises of a month as JSON ---- */

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
