/* aggregator/store/billing/finance.h - one-off charges and credits, and budgets. */
#ifndef TOLLGATE_FINANCE_H
#define TOLLGATE_FINANCE_H

#include "aggregator/core/rating/budget.h"
#include "aggregator/store/store.h"

/* Texts are clean; amount has the currency's decimals, and is not 0. */
struct adjustment_request {
	const char *tenant, *workspace; /* workspace NULL: of the tenant as a whole */
	const char *period, *amount, *currency, *category, *reason;
	const char *refund; /* the lost device (refund_store.h) that it is a credit for; NULL: none */
	const char *actor;
	bool approved; /* the actor is an administrator: nobody else needs to agree */
};
/* The new row is written to out. ERR_MISSING: no such tenant, workspace, period or refund; ERR_CONFLICT: the period is closed. */
MUST_CHECK bool store_adjustment_add(struct db *db, const struct adjustment_request *rq, struct buf *out,
                                     struct err *err);

struct adjustment_decision {
	int64_t id;
	const char *actor, *reason;
	const char *period; /* of a reversal: where it goes; NULL: the period of what it takes back */
	bool admin;
};
/* Agrees to what somebody else asked for; again changes nothing. ERR_DENIED: the actor asked for it, and is no administrator. */
MUST_CHECK bool store_adjustment_approve(struct db *db, const struct adjustment_decision *d, struct buf *out,
                                         struct err *err);
/* A new row of the opposite amount. ERR_CONFLICT: it was taken back before, takes back another, or nobody agreed to it. */
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

#endif
