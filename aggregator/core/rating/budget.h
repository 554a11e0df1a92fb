/* aggregator/core/rating/budget.h - a budget compared with a month's report: what was spent, the forecast, which thresholds are passed. Pure, exact.
 *
 * Rules of the budget, in order:
 *  1. a budget of money counts all amounts billed in its currency: the tenant's lines, or those of the workspace alone. One-off
 *     charges and credits, and corrections of earlier months, come once
 *  2. a budget of GPU-hours counts the time held in the month: on demand, borrowed or covered by a reservation
 *  3. a budget of tokens counts the input and output tokens of the month's inference events
 *  4. a line that cannot be rated (rule 13 of rating.h) costs more than any budget has: it counts 10^18 of its currency, once, however many there are
 *  5. a threshold is reached at its percentage exactly, not above it; the forecast breaches when it is above the whole budget */
#ifndef TOLLGATE_BUDGET_H
#define TOLLGATE_BUDGET_H

#include "aggregator/core/rating/rating.h"

/* The cost of the whole month, estimated from the part that is over.
 *
 * Rules, in order:
 *  1. a month that is over is its own forecast
 *  2. time counts from the beginning of the month, or from the ledger's first hour where that is later: before it nothing was measured,
 *     which is not the same as nothing
 *  3. with seven full billing days: the sum so far, and for the remaining time the mean of the last seven full days. A day has the
 *     length it has: 23 or 25 hours where the clock changes; the day in which the ledger began is not full
 *  4. with fewer: the sum so far, pro rata of the elapsed time
 *  5. before any time has elapsed: the sum so far
 *  6. amounts that come once (one-off charges and credits) are not extrapolated
 *  7. rounded once, half to even */
#define FORECAST_DAYS 7

struct forecast_day {
	int64_t from_ns, to_ns; /* each begins where the one before ends */
	int128 amount;          /* of any scale; may be negative */
};
struct forecast_input {
	int64_t start_ns, end_ns, now_ns;
	int64_t first_ns;                /* the ledger's first hour; at or before start_ns, or 0: it had begun */
	const struct forecast_day *days; /* of the month; days to come have 0 */
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

#define BUDGET_HOURS ""
#define BUDGET_TOKENS "token"
bool budget_unit_is_money(const char *unit);

/* Amounts have the scale PRICE_SCALE. */
struct budget {
	const char *tenant, *workspace; /* workspace "": of the tenant as a whole */
	const char *kind;               /* soft, hard */
	const char *unit;               /* BUDGET_HOURS, BUDGET_TOKENS, or a currency */
	int128 limit;                   /* > 0 */
};

/* Adds each day's consumption to days[day].amount (as many as the month has), and amounts that come once to *once. Lines of other tenants
 * are passed over. ERR_INVALID: a sum is beyond the number's range, or a day beyond the month. */
MUST_CHECK bool budget_consume(const struct budget *b, const struct rated *r, struct forecast_day *days, size_t count,
                               int128 *once, struct err *err);

struct budget_state {
	int128 consumed, forecast;
	const char *method;
	int128 millionths; /* consumed of the limit, rounded down; 0 when it is negative */
	int threshold;     /* the highest reached: 0, 50, 80, 100 percent */
	bool forecast_breach;
};
MUST_CHECK bool budget_judge(const struct budget *b, const struct forecast_input *in, struct budget_state *ret,
                             struct err *err);

#endif
