/* aggregator/api/api_budgets.h - the budgets of a month with what was spent of them, for GET /v1/budgets and /metrics. */
#ifndef TOLLGATE_API_BUDGETS_H
#define TOLLGATE_API_BUDGETS_H

#include "aggregator/store/billing/finance.h"

struct budget_table {
	const struct budget_list *list;
	struct forecast_day *days; /* list->day_count for each budget */
	int128 *once;
};
void budget_table_init(struct budget_table *t, const struct budget_list *list);
void budget_table_fini(struct budget_table *t);
/* Of rated lines, each once. */
MUST_CHECK bool budget_table_add(struct budget_table *t, const struct rated *r, struct err *err);
MUST_CHECK bool budget_table_judge(const struct budget_table *t, size_t i, int64_t now_ns, struct budget_state *ret,
                                   struct err *err);

#endif
