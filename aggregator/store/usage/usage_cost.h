/* aggregator/store/usage/usage_cost.h - what groups of usage cost: amortised, adding up to the invoices.
 *
 * Rules, in order:
 *  1. the cost of a line's day is EffectiveCost of FOCUS (core/rating/amortise.h): covered hours cost what was paid for the reservation
 *  2. the cost of covered, on-demand and borrowed use goes to the hours that it is of, in proportion to what was priced of that class in each
 *     hour, and within an hour to the holders, pro rata within the workspace, the kind of device, the pool and the hour: by the time held, or by the
 *     time used where the tenant pays for that. Energy likewise by energy (core/rating/cost_day.h). A holder that ran in covered hours pays nothing for another's
 *     hours on demand
 *  3. what no workload caused is a row of its own with a reason, and never goes to a holder: unused, lent and undelivered reservation, idle
 *     nodes, other meters, one-off amounts, corrections, and use whose hours name no holder any more (workload-unknown)
 *  4. amounts have COST_DECIMALS digits more than the currency, by largest remainder. So the groups of all pages and the rows without a workload add up to
 *     the lines of the range: of a whole month to its invoices, whatever it is grouped by. A month that other rules have rated costs what was billed (core/rating/rating_file.h)
 *  5. days are whole: the range is widened to billing days. A correction counts on the first day of the month that it is billed in
 *  6. an answer is of one snapshot. The rows without a workload and the total of all groups are on the first page only
 *  7. memory holds the groups of the page, a month's lines, and one day's cells. An answer that has to read more than usage_query.cost_rows
 *     rows of cells and groups is refused */
#ifndef TOLLGATE_USAGE_COST_H
#define TOLLGATE_USAGE_COST_H

#include "aggregator/store/usage/usage.h"
#include "aggregator/store/usage/usage_group.h"
#include "aggregator/store/usage/usage_write.h"

#define COST_DECIMALS 6

/* ERR_INVALID: a filter or form that has no cost. */
MUST_CHECK bool usage_cost_check(const struct usage_query *q, struct err *err);

struct usage_cost;
/* Of the first `rows` rows of a result whose first columns are the keys, in their order; it must stay. The range is whole billing days:
 * usage_widen_days(). Inside a transaction of one snapshot. ERR_INVALID: too many rows. */
MUST_CHECK bool usage_cost_load(struct db *db, const struct usage_query *q, const struct grouping *g,
                                const int64_t range[2], const PGresult *groups, int rows, struct usage_cost **ret,
                                struct err *err);
void usage_cost_free(struct usage_cost *c);
DEFINE_OWNED(usage_cost, struct usage_cost)

MUST_CHECK bool usage_widen_days(struct db *db, int64_t range[2], struct err *err);

/* "costs":[{"currency","amount"}] of a row: an amount of 0 where there is a price, nothing where there is none. */
void usage_cost_write_group(const struct usage_cost *c, int row, struct usage_row *o);
/* "costs_without_workload":[{"tenant","workspace","cluster","gpu_model","reason","currency","amount"}],"costs_total":[...] */
void usage_cost_write_rest(const struct usage_cost *c, struct usage_row *o);

#endif
