/* aggregator/service/budget_table.c - the budgets of a month and what rated lines consume of them. */
#include "aggregator/service/budget_table.h"

#include <string.h>

void
budget_table_init(struct budget_table *t, const struct budget_list *list)
{
	*t = (struct budget_table){.list = list,
	                           .days = mem_array(list->count * list->day_count, sizeof(*t->days)),
	                           .once = mem_array(list->count, sizeof(*t->once))};
	for (size_t i = 0; i < list->count; i++)
		memcpy(t->days + i * list->day_count, list->days, list->day_count * sizeof(*list->days));
}

void
budget_table_fini(struct budget_table *t)
{
	mem_free(t->days);
	mem_free(t->once);
}

bool
budget_table_add(struct budget_table *t, const struct rated *r, struct err *err)
{
	const struct budget_list *l = t->list;

	for (size_t i = 0; i < l->count; i++)
		if (!budget_consume(&l->at[i], r, t->days + i * l->day_count, l->day_count, &t->once[i], err))
			return false;
	return true;
}

bool
budget_table_judge(const struct budget_table *t, size_t i, int64_t now_ns, struct budget_state *ret, struct err *err)
{
	const struct budget_list *l = t->list;
	const struct forecast_input in = {.start_ns = l->days[0].from_ns,
	                                  .end_ns = l->days[l->day_count - 1].to_ns,
	                                  .now_ns = now_ns,
	                                  .first_ns = l->first_ns,
	                                  .days = t->days + i * l->day_count,
	                                  .count = l->day_count,
	                                  .once = t->once[i]};

	return budget_judge(&l->at[i], &in, ret, err);
}
