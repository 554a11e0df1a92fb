/* aggregator/core/rating/amortise.h - the billed cost of reservations, spread over their covered, lent, unused and undelivered hours. Pure, exact.
 *
 * Rules, in order:
 *  1. the lines of one reservation are those of a tenant, workspace, cluster, GPU model, price version and currency whose kind is commitment,
 *     covered, unused, lent or undelivered, and whose commitment is priced per GPU-hour, or per instance of the same profile. Lent time without a
 *     price is of its commitment's version
 *  2. of each day the cents that were billed for the commitment go to the hours of its parts by largest remainder, ties in the order of the lines
 *  3. cents of a day without such hours go to the hours of the month. Where there are none at all they stay with the commitment
 *  4. so rated_day.amortised of the lines of a reservation adds up to the billed cost of its commitment, to the cent. It is 0 on other lines
 *
 * Corrections are left as they are: theirs is the difference of two months (correction.h). */
#ifndef TOLLGATE_AMORTISE_H
#define TOLLGATE_AMORTISE_H

#include "aggregator/core/rating/rating.h"

/* Sets rated_day.amortised of all lines. */
void rated_amortise(struct rated *r);

/* The line is a commitment or a part of one. */
bool line_is_of_reservation(const struct rated_line *l);
/* By rule 1; both are of a reservation. */
bool line_is_of_same_reservation(const struct rated_line *a, const struct rated_line *b);

/* The cost of a line's day with its part of the reservation: EffectiveCost of FOCUS. Over all lines it adds up to the billed cost. */
int128 rated_effective(const struct rated_line *l, const struct rated_day *d);
/* The same of a whole correction. */
int128 rated_effective_sum(const struct rated_line *l);

/* Why no workload caused a line's cost: "reservation-unused", ...; NULL: workloads did. */
const char *line_cost_reason(const struct rated_line *l);

#endif
