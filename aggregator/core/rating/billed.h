/* aggregator/core/rating/billed.h - a month that other rules have rated, as it was billed. Pure, exact.
 *
 * The kept rows of such a month, rated by the rules of today, have other cents than its invoice; but only they say what its lines have on each day.
 *
 * Rules, in order:
 *  1. a line has the amounts that were billed of it. Cents that differ go to its days in proportion to what each has, by largest remainder
 *  2. a line that was not billed is none
 *  3. what was billed for reservations is amortised anew (core/rating/amortise.h)
 *
 * So what the days of the lines that are left have adds up to what was billed of them; lines that the rules of today do not make are the caller's. */
#ifndef TOLLGATE_BILLED_H
#define TOLLGATE_BILLED_H

#include "aggregator/core/rating/rating.h"

/* billed: n lines by line_id; found[i]: there is such a line. */
void rated_set_billed(struct rated *r, const struct rated_line *billed, size_t n, bool *ret_found);

#endif
