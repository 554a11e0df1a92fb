/* aggregator/core/rating/budget.h - a budget held against a month's report: what was spent, what it will come to, which thresholds are
 * passed. Pure, exact.
 *
 * Rules, in order:
 *  1. of money, all that the report bills in the budget's currency counts: the tenant's lines, or those of the workspace alone. One-off
 *     charges and credits, and corrections of earlier months, come once
 *  2. of GPU-hours, what was held in the month counts: on demand, borrowed or covered by a reservation
 *  3. of tokens, what events of inference counted in the month: input and output
 *  4. a line that cannot be rated (rule 13 of rating.h) costs more than any budget has: it counts 10^18 of its currency, once, however many there are
 *  5. a threshold is reached at its percentage exactly, not above it; the forecast breaches when it is above the whole budget */
#ifndef TOLLGATE_BUDGET_H
#define TOLLGATE_BUDGET_H

#include "aggregator/core/rating/forecast.h"
#include "aggregator/core/rating/rating.h"

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

/* Adds each day's consumption to days[day].amount (as many as the month has), and what comes once to *once. Lines of other tenants
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
