/* aggregator/store/usage_cost.h - what groups of usage cost: amortised, adding up to the invoices.
 *
 * Rules, in order:
 *  1. the cost of a line's day is EffectiveCost of FOCUS (core/amortise.h): covered hours cost what was paid for the reservation
 *  2. the cost of use, covered use and energy goes to the holders that had it: pro rata within the workspace, the kind of device, the day, the price
 *     version and the class, by the time held, by the time used where that is what is priced, or by energy
 *  3. what no workload caused is a row of its own with a reason, and never goes to a holder: unused, lent and undelivered reservation, idle
 *     nodes, other meters, one-off amounts, corrections, and use whose hours name no holder any more
 *  4. amounts have COST_DECIMALS digits more than the currency, by largest remainder. So the groups of all pages and the rows without a workload add up to
 *     the lines of the range: of a whole month to its invoices, whatever it is grouped by
 *  5. days are whole: the range is widened to billing days. A correction counts on the first day of the month that it is billed in */
#ifndef TOLLGATE_STORE_USAGE_COST_H
#define TOLLGATE_STORE_USAGE_COST_H

#include "aggregator/store/usage_group.h"
#include "aggregator/store/usage_write.h"

#define COST_DECIMALS 6

struct usage_cost;
/* The range is whole billing days: usage_widen_days(). ERR_INVALID: a filter or form that has no cost. */
MUST_CHECK bool usage_cost_load(struct db *db, const struct usage_query *q, struct grouping *g, const int64_t range[2],
                                struct usage_cost **ret, struct err *err);
void usage_cost_free(struct usage_cost *c);
DEFINE_OWNED(usage_cost, struct usage_cost)

MUST_CHECK bool usage_widen_days(struct db *db, int64_t range[2], struct err *err);

/* "costs":[{"currency","amount"}] of the group whose keys a row of a result has in its first columns. */
void usage_cost_write_group(const struct usage_cost *c, const PGresult *r, int row, struct usage_row *o);
/* "costs_without_workload":[{"tenant","workspace","cluster","gpu_model","reason","currency","amount"}],"costs_total":[...] */
void usage_cost_write_rest(const struct usage_cost *c, struct usage_row *o);

#endif
