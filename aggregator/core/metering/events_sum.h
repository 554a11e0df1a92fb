/* aggregator/core/metering/events_sum.h - what a tenant's events of one billing month may add up to. Pure, exact.
 *
 * Rules, in order:
 *  1. of each meter, the events of a tenant in a billing month add up to at most a limit (common/base/limits.h). An event that would carry the
 *     sum beyond it is refused, and only it; the sum is as before then
 *  2. limit x the largest price of the meter is 10^17 of a currency. There are six meters: what events cost fits an invoice (rule 13 of rating.h)
 *  3. small events, of less than 10^-8 of the limit, are not added up: 10^8 of them are as much as the limit, and still fit */
#ifndef TOLLGATE_EVENTS_SUM_H
#define TOLLGATE_EVENTS_SUM_H

#include "aggregator/core/metering/events.h"

enum event_meter {
	METER_STORAGE,
	METER_EGRESS,
	METER_REQUESTS,
	METER_INPUT_TOKENS,
	METER_OUTPUT_TOKENS,
	METER_SUPPORT,
};
#define EVENT_METERS 6

bool event_is_small(const struct event *e);
/* Adds what the event measures to the sums, which have the scale QUANTITY_SCALE. */
void event_sum(const struct event *e, int128 sums[EVENT_METERS]);
/* The same, within the limits. False: it is refused. The month is for the sentence. */
bool event_add_up(struct event *e, const char *month, int128 sums[EVENT_METERS]);
/* Above a thousandth of the limit of any meter. */
bool event_sums_are_large(const int128 sums[EVENT_METERS]);
/* Rule 2: for `per` units, scale PRICE_SCALE. The meter is a word of a policy. */
int128 event_price_limit(const char *meter, int64_t per);

#endif
