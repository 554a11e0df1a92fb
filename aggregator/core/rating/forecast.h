/* aggregator/core/rating/forecast.h - what a month will have come to when it is over, from what it has come to so far. Pure, exact.
 *
 * Rules, in order:
 *  1. a month that is over is its own forecast
 *  2. time counts from the beginning of the month, or from the ledger's first hour where that is later: before it nothing was measured,
 *     which is not the same as nothing
 *  3. with seven full billing days: what there is, and for the time that is left the mean of the last seven full days. A day has the
 *     length it has: 23 or 25 hours where the clock changes; that in which the ledger began is no full one
 *  4. with fewer: what there is, pro rata of the time that has passed
 *  5. before that there is nothing to go by: what there is
 *  6. what comes once (one-off charges and credits) is in it once, whatever the time
 *  7. rounded once, half to even */
#ifndef TOLLGATE_FORECAST_H
#define TOLLGATE_FORECAST_H

#include "common/base/base.h"

#define FORECAST_DAYS 7

struct forecast_day {
	int64_t from_ns, to_ns; /* they follow one another */
	int128 amount;          /* of any scale; may be negative */
};
struct forecast_input {
	int64_t start_ns, end_ns, now_ns;
	int64_t first_ns;                /* the ledger's first hour; at or before start_ns, or 0: it had begun */
	const struct forecast_day *days; /* of the month; those to come have nothing */
	size_t count;
	int128 once; /* beside the days */
};
struct forecast {
	int128 amount;
	const char *method; /* a word: over, 7-day-mean, pro-rata, pro-rata-since-first-hour, none */
};
/* False: a sum or product is beyond the number's range. */
MUST_CHECK bool forecast_run(const struct forecast_input *in, struct forecast *ret);

/* The method in words. */
const char *forecast_method_text(const char *method);

#endif
