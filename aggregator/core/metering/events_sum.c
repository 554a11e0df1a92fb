/* aggregator/core/metering/events_sum.c - what a tenant's events of one billing month may add up to. The numbers are those of events_sum.h. */
#include "aggregator/core/metering/events_sum.h"

#include <string.h>

#include "common/base/limits.h"
#include "common/base/money.h"

static const struct meter_limit {
	const char *name;  /* as a policy calls it */
	const char *field; /* of an event */
	int digits;        /* the limit is 10^digits */
} meters[EVENT_METERS] = {
	[METER_STORAGE] = {"storage", "data.gb_hours", LIMIT_METER_GB_DIGITS},
	[METER_EGRESS] = {"egress", "data.gb", LIMIT_METER_GB_DIGITS},
	[METER_REQUESTS] = {"inference-requests", "data.requests", LIMIT_METER_COUNT_DIGITS},
	[METER_INPUT_TOKENS] = {"inference-input-tokens", "data.input_tokens", LIMIT_METER_COUNT_DIGITS},
	[METER_OUTPUT_TOKENS] = {"inference-output-tokens", "data.output_tokens", LIMIT_METER_COUNT_DIGITS},
	[METER_SUPPORT] = {"support", "data.hours", LIMIT_METER_HOURS_DIGITS},
};

/* Scale QUANTITY_SCALE; 0: it says nothing of the meter. */
static int128
measured(const struct event *e, enum event_meter m)
{
	const int128 all[EVENT_METERS] = {
		[METER_STORAGE] = e->type == EVENT_STORAGE ? e->amount : EVENT_NONE,
		[METER_EGRESS] = e->type == EVENT_EGRESS ? e->amount : EVENT_NONE,
		[METER_REQUESTS] = e->requests,
		[METER_INPUT_TOKENS] = e->input_tokens,
		[METER_OUTPUT_TOKENS] = e->output_tokens,
		[METER_SUPPORT] = e->type == EVENT_SUPPORT ? e->amount : EVENT_NONE,
	};

	if (all[m] == EVENT_NONE)
		return 0;
	return e->type == EVENT_INFERENCE ? all[m] * pow10_i128(QUANTITY_SCALE) : all[m];
}

static int128
limit_of(size_t m)
{
	return pow10_i128(meters[m].digits + QUANTITY_SCALE);
}

bool
event_is_small(const struct event *e)
{
	for (size_t m = 0; m < EVENT_METERS; m++)
		if (measured(e, (enum event_meter)m) >= limit_of(m) / pow10_i128(LIMIT_METER_SMALL_DIGITS))
			return false;
	return true;
}

/* One that is beyond the limit on its own is wrong; another comes too late in its month. */
static bool
refuse(struct event *e, size_t m, const char *month, int128 value, int128 sum)
{
	char shown[DECIMAL_TEXT_SIZE], had[DECIMAL_TEXT_SIZE], most[DECIMAL_TEXT_SIZE];

	return event_refuse(e, EVENT_REFUSED, value > limit_of(m) ? ERR_INVALID : ERR_LIMIT, meters[m].field,
	                    "%s is %s: the events of %s add up to %s, and may add up to %s", meters[m].field,
	                    decimal_format(value, QUANTITY_SCALE, 0, shown), month,
	                    decimal_format(sum, QUANTITY_SCALE, 0, had),
	                    decimal_format(limit_of(m), QUANTITY_SCALE, 0, most));
}

void
event_sum(const struct event *e, int128 sums[EVENT_METERS])
{
	for (size_t m = 0; m < EVENT_METERS; m++)
		sums[m] += measured(e, (enum event_meter)m);
}

bool
event_add_up(struct event *e, const char *month, int128 sums[EVENT_METERS])
{
	for (size_t m = 0; m < EVENT_METERS; m++) {
		int128 value = measured(e, (enum event_meter)m);

		if (value > 0 && value > limit_of(m) - sums[m])
			return refuse(e, m, month, value, sums[m]);
	}
	event_sum(e, sums);
	return true;
}

bool
event_sums_are_large(const int128 sums[EVENT_METERS])
{
	for (size_t m = 0; m < EVENT_METERS; m++)
		if (sums[m] > limit_of(m) / 1000)
			return true;
	return false;
}

int128
event_price_limit(const char *meter, int64_t per)
{
	size_t m = 0;

	while (strcmp(meters[m].name, meter) != 0) {
		m++;
		ASSERT(m < EVENT_METERS);
	}
	return pow10_i128(LIMIT_METER_COST_DIGITS - meters[m].digits + PRICE_SCALE) * per;
}
