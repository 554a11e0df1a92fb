/* aggregator/core/reports/detail.h - the workloads behind a line of the report, adding up to it in every digit. Pure.
 *
 * Rules:
 *  1. a line is divided day by day, as it was quantised: the rows of a day add up to the line's day
 *  2. used, idle and unmeasured hours go by the hours of each workload in that state; priced quantity by the time held, energy by its
 *     energy. Where hours are priced, a row has as many of both.
 *     Lines priced at 0 or by others' use (reservations, credits, other meters) have no workloads: one row for the day, without a workload
 *  3. billed cents go by quantity; list cost is quantity x unit price, exactly
 *  4. all divisions are by largest remainder, ties by the order of the workloads
 *  5. classes are of the hour and the pool, not of a workload: each workload of a day has its part of each class
 *  6. a correction is of a whole month, not of days. Where its line had not been billed before, it has the workloads of that month; else it
 *     is the difference of two sums, which belongs to no workload */
#ifndef TOLLGATE_DETAIL_H
#define TOLLGATE_DETAIL_H

#include "aggregator/core/rating/rating.h"

struct detail_workload {
	int32_t day; /* ordinal in the period */
	const char *user, *job, *namespace, *pod, *container, *device, *node;
	int128 used, idle, unmeasured; /* unit-nanoseconds */
	int128 energy_mj;
};

struct detail_row {
	const struct detail_workload *workload; /* NULL: none */
	int32_t day;
	int128 ngh, used_ngh, idle_ngh, unmeasured_ngh, quantity;
	int128 own_quantity; /* of the line's own_unit; 0 without one */
	int128 list_cost;    /* scale COST_SCALE */
	int128 billed;       /* scale of the currency */
	int128 energy_mj;
};

/* Whether a line has workloads; a correction by rule 6 only if its line was not billed before. */
bool detail_has_workloads(const struct rated_line *l);
/* The rows of one day of a line; those of the workloads with that day, which are neighbours, first. n of them, at least one row.
 * The caller frees *ret. */
size_t detail_day(const struct rated_line *l, const struct rated_day *d, const struct detail_workload *workloads,
                  size_t n, struct detail_row **ret);

#endif
