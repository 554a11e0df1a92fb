/* aggregator/core/forecast.h - what a month will have come to when it is over, from what it has come to so far. Pure, exact.
 *
 * Rules, in order:
 *  1. a month that is over is its own forecast
 *  2. with seven full billing days: what there is, and for the time that is left the mean of the last seven full days. A day has the
 *     length it has: 23 or 25 hours where the clock changes
 *  3. with fewer: what there is, pro rata of the time that has passed
 *  4. before the month begins there is nothing to go by: what there is
 *  5. what comes once (one-off charges and credits) is in it once, whatever the time
 *  6. rounded once, half to even */
#ifndef TOLLGATE_CORE_FORECAST_H
#define TOLLGATE_CORE_FORECAST_H

#include "common/base.h"

#define FORECAST_DAYS 7

struct forecast_day {
	int64_t from_ns, to_ns; /* they follow one another */
	int128 amount;          /* of any scale; may be negative */
};
struct forecast_input {
	int64_t start_ns, end_ns, now_ns;
	const struct forecast_day *days; /* of the month; those to come have nothing */
	size_t count;
	int128 once; /* beside the days */
};
struct forecast {
	int128 amount;
	const char *method; /* a word: over, 7-day-mean, pro-rata, none */
};
/* False: a sum or product is beyond the number's range. */
MUST_CHECK bool forecast_run(const struct forecast_input *in, struct forecast *ret);

/* The method in words. */
const char *forecast_method_text(const char *method);

#endif
