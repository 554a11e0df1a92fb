/* aggregator/service/budget_table.h - the budgets of a month and what rated lines consume of them. */
#ifndef TOLLGATE_BUDGET_TABLE_H
#define TOLLGATE_BUDGET_TABLE_H

#include "aggregator/store/billing/finance.h"

struct budget_table {
	const struct budget_list *list;
	struct forecast_day *days; /* list->day_count for each budget */
	int128 *once;              /* one-off amounts, for each budget */
};
void budget_table_init(struct budget_table *t, const struct budget_list *list);
void budget_table_fini(struct budget_table *t);
/* Each rated line is added once. */
MUST_CHECK bool budget_table_add(struct budget_table *t, const struct rated *r, struct err *err);
MUST_CHECK bool budget_table_judge(const struct budget_table *t, size_t i, int64_t now_ns, struct budget_state *ret,
                                   struct err *err);

#endif
