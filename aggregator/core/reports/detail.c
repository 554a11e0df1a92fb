/* aggregator/core/reports/detail.c - a line's day divided among its workloads. The numbers are those of detail.h. */
#include "aggregator/core/reports/detail.h"

#include "common/base/apportion.h"

bool
detail_has_workloads(const struct rated_line *l)
{
	return l->workspace[0] != '\0' &&
	       (l->kind == CHARGE_USAGE || l->kind == CHARGE_COVERED || l->kind == CHARGE_ENERGY);
}

static int128
held(const struct detail_workload *w)
{
	return w->used + w->idle + w->unmeasured;
}

enum weight { BY_USED, BY_IDLE, BY_UNMEASURED, BY_HELD, BY_ENERGY };

static int128
weight_of(const struct detail_workload *w, enum weight by)
{
	switch (by) {
	case BY_USED: return w->used;
	case BY_IDLE: return w->idle;
	case BY_UNMEASURED: return w->unmeasured;
	case BY_ENERGY: return w->energy_mj;
	default: return held(w);
	}
}

/* By that weight, or where it is 0 for all by the time held, or equally: the whole total is divided. */
static void
divide(int128 total, const struct detail_workload *workloads, size_t n, enum weight by, int128 *weights, int128 *parts)
{
	for (int attempt = 0; attempt < 3; attempt++) {
		for (size_t i = 0; i < n; i++)
			weights[i] = attempt == 2 ? 1 : weight_of(&workloads[i], attempt == 1 ? BY_HELD : by);
		if (apportion(total, weights, n, parts))
			return;
	}
}

size_t
detail_day(const struct rated_line *l, const struct rated_day *d, const struct detail_workload *workloads, size_t n,
           struct detail_row **ret)
{
	const size_t count = n > 0 ? n : 1;
	struct detail_row *rows = mem_array(count, sizeof(*rows));
	owned(mem) int128 *weights = mem_array(count, sizeof(*weights));
	owned(mem) int128 *parts = mem_array(count, sizeof(*parts));
	const enum weight priced_by = l->kind == CHARGE_ENERGY ? BY_ENERGY : BY_HELD;

	*ret = rows;
	if (n == 0) {
		rows[0] = (struct detail_row){.day = d->day,
		                              .ngh = d->ngh,
		                              .used_ngh = d->used_ngh,
		                              .idle_ngh = d->idle_ngh,
		                              .unmeasured_ngh = d->unmeasured_ngh,
		                              .quantity = d->quantity,
		                              .own_quantity = l->own_differs ? d->own_quantity : 0,
		                              .list_cost = d->list_cost,
		                              .billed = d->billed,
		                              .energy_mj = d->energy_mj};
		return 1;
	}
#define DIVIDE(field, by)                                     \
	divide(d->field, workloads, n, (by), weights, parts); \
	for (size_t i = 0; i < n; i++)                        \
	rows[i].field = parts[i]
	DIVIDE(used_ngh, BY_USED);
	DIVIDE(idle_ngh, BY_IDLE);
	DIVIDE(unmeasured_ngh, BY_UNMEASURED);
	DIVIDE(quantity, priced_by);
	if (l->own_differs) {
		DIVIDE(own_quantity, priced_by);
	}
	DIVIDE(energy_mj, BY_ENERGY);
#undef DIVIDE
	for (size_t i = 0; i < n; i++) {
		rows[i].workload = &workloads[i];
		rows[i].day = d->day;
		rows[i].ngh = rows[i].used_ngh + rows[i].idle_ngh + rows[i].unmeasured_ngh;
		if (d->quantity == d->ngh && l->kind != CHARGE_ENERGY)
			rows[i].quantity = rows[i].ngh;
		rows[i].list_cost = rows[i].quantity * l->unit_price;
		weights[i] = rows[i].quantity < 0 ? -rows[i].quantity : rows[i].quantity;
	}
	if (!apportion(d->billed, weights, n, parts))
		divide(d->billed, workloads, n, priced_by, weights, parts);
	for (size_t i = 0; i < n; i++)
		rows[i].billed = parts[i];
	return n;
}
