/* aggregator/store/billing/finance.h - one-off charges and credits, budgets, refunds, reconciliation.
 *
 * No SQL and no libpq: api/ includes this. */
#ifndef TOLLGATE_FINANCE_H
#define TOLLGATE_FINANCE_H

#include "aggregator/core/rating/budget.h"
#include "aggregator/core/reports/reconcile.h"
#include "aggregator/store/store.h"

/* Texts are clean; amount has the currency's decimals, and is not 0. */
struct adjustment_request {
	const char *tenant, *workspace; /* workspace NULL: of the tenant as a whole */
	const char *period, *amount, *currency, *category, *reason;
	const char *refund; /* the lost device (store_refunds()) that it is a credit for; NULL: none */
	const char *actor;
	bool approved; /* the actor is an administrator: no other approval is needed */
};
/* The new row is written to out. ERR_MISSING: no such tenant, workspace, period or refund; ERR_CONFLICT: the period is closed. */
MUST_CHECK bool store_adjustment_add(struct db *db, const struct adjustment_request *rq, struct buf *out,
                                     struct err *err);

struct adjustment_decision {
	int64_t id;
	const char *actor, *reason;
	const char *period; /* of a reversal; NULL: the period of the row that it reverses */
	bool admin;
};
/* Approves another user's request; a second approval changes nothing. ERR_DENIED: the actor made the request and is no administrator. */
MUST_CHECK bool store_adjustment_approve(struct db *db, const struct adjustment_decision *d, struct buf *out,
                                         struct err *err);
/* A new row of the opposite amount. ERR_CONFLICT: the row was reversed before, is itself a reversal, or is not approved. */
MUST_CHECK bool store_adjustment_reverse(struct db *db, const struct adjustment_decision *d, struct buf *out,
                                         struct err *err);

struct adjustment_query {
	const char *tenant, *period; /* NULL: any */
	bool approved_only;
	struct page page;
};
/* {"adjustments":[...],"next":ID or null} */
MUST_CHECK bool store_adjustments_json(struct db *db, const struct adjustment_query *q, struct buf *out,
                                       struct err *err);

/* The budgets of a month that are in force now, by tenant and workspace, and the days of that month with no amounts. */
struct budget_list {
	struct budget *at;
	size_t count;
	struct forecast_day *days;
	size_t day_count; /* at least 1 */
	int64_t first_ns; /* the ledger's first hour; 0: before the month, or it has none */
	void *memory;
};
void budget_list_free(struct budget_list *l);
DEFINE_OWNED(budget_list, struct budget_list)
/* ERR_MISSING: the ledger has nothing of the period. tenant NULL: all. */
MUST_CHECK bool store_budgets_load(struct db *db, const char *period, const char *tenant, int64_t now_ns,
                                   struct budget_list **ret, struct err *err);

/* ---- refunds: hours of jobs that ended by a failed GPU or node, and their charges (core/rating/refund.h) ---- */

struct refund_query {
	const char *period, *tenant; /* tenant NULL: all */
	bool csv;
};
/* {"period","refunds":[{every column}]}, or a table. ERR_MISSING: the ledger has nothing of the period. */
MUST_CHECK bool store_refunds(struct db *db, const struct refund_query *q, struct buf *out, struct err *err);

/* ---- reconciliation: a month's capacity compared with its invoices (core/reports/reconcile.h) ---- */

/* Lines of a closed month are those that were billed, capacity is what the ledger has now. zone: of the ledger. ERR_MISSING: the ledger
 * has nothing of the period. */
MUST_CHECK bool store_reconcile(struct db *db, const char *period, struct reconciliation **ret, char ret_zone[64],
                                struct err *err);

#endif
