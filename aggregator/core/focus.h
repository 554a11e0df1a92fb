/* aggregator/core/focus.h - rated lines as FOCUS 1.2 rows, with the provider columns of 1.3. Pure.
 *
 * A row is a day of a line. Rules:
 *  1. BilledCost is the day's part of the line's cents: the rows of an invoice add up to it
 *  2. ListCost and ContractedCost are the exact products of their unit price and PricingQuantity, not rounded
 *  3. a commitment is a Purchase of which nothing is used yet: its EffectiveCost is 0, and what was billed for it is spread over what
 *     became of it that day (covered, unused, lent, undelivered) in proportion to the hours. So EffectiveCost adds up to BilledCost
 *  4. what gives money back is a Credit; everything else is Usage
 *  5. an empty field is null; a text that a spreadsheet would run as a formula gets an apostrophe, as in the chargeback CSV. Numbers, dates and JSON
 *     stay as they are
 *  6. a correction has the class Correction and keeps the month that it corrects as its charge period
 *  7. the columns of FOCUS come first, then ours, which begin with x_
 *  8. everything is ASCII (focus_ascii.h)
 *  9. a part of what nobody held of shared nodes says by which method it was divided (Allocated*, FOCUS 1.3) and of how many GPU-hours
 *     (x_OriginGpuHours); the ratios of all tenants of a pool's day add up to 1 */
#ifndef TOLLGATE_CORE_FOCUS_H
#define TOLLGATE_CORE_FOCUS_H

#include "aggregator/core/rating.h"

struct focus_period {
	const char *start, *end; /* UTC */
	const char *status;      /* open, grace, closed */
	const char *closed_at;   /* UTC; "" while it is not */
	const char *first_day;   /* in the billing zone: "2026-11-01" */
};

struct focus_input {
	const struct rating_input *in;
	const char *account_id, *account_name; /* of the organisation that pays */
	const char *provider;                  /* who runs the platform */
	bool plain; /* without rule 5's apostrophe: months that were closed before there was it */
	/* UTC, "2026-10-31T23:00:00Z": the bounds of the period, and the beginnings of its days with its end behind them */
	const char *period_start, *period_end;
	const char *const *day_bounds;
	size_t day_count;
	const struct focus_period *periods; /* those that lines may correct */
	size_t period_count;
};

void focus_header(struct buf *out);
/* Rows of all lines. All lines of a tenant must be in one call: rule 3 looks at them together. */
MUST_CHECK bool focus_rows(const struct focus_input *f, const struct rated *r, struct buf *out, struct err *err);

/* The billing periods (FOCUS 1.4, draft): one row each. */
void focus_periods(const struct focus_input *f, const struct focus_period *periods, size_t n, struct buf *out);

#endif
