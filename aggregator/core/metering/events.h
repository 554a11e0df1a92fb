/* aggregator/core/metering/events.h - CloudEvents 1.0 that meter something other than GPUs: read and checked. Pure.
 *
 * Rules, in order; the first that an event breaks refuses it, and only it:
 *  1. it is an object of CloudEvents 1.0: specversion, id, source and type are text, names of attributes are lower-case
 *     letters and digits, attributes are text, whole numbers or true and false; null is the same as absent
 *  2. its type is one of ours
 *  3. it has a time, and that lies in the window: not older than age_ns, not further ahead than ahead_ns
 *  4. its data is a JSON object with the fields of its type and no other
 *  5. it names tenant and workspace, or a namespace for the attribution rules, never both. A sender that is bound to a
 *     tenant means that tenant, need not say so, and must name the workspace
 *  6. amounts are whole numbers, or decimals in quotes with at most nine places; never negative, below 10^15
 * The store checks that tenant and workspace exist and that the event is not known already, and then
 *  7. of each meter, the events of a tenant in a billing month add up to at most a limit (common/base/limits.h). An event that would
 *     carry the sum beyond it is refused, and only it; the sum stays as it was
 *  8. limit x the largest price of the meter is 10^17 of a currency. There are six meters: the cost of events fits an invoice (rule 13
 *     of rating.h)
 *  9. small events, of less than 10^-8 of the limit, are not added up: 10^8 of them are as much as the limit, and still fit */
#ifndef TOLLGATE_EVENTS_H
#define TOLLGATE_EVENTS_H

#include "common/base/digest.h"
#include "common/conf/json.h"

#define EVENT_SOURCE_MAX 512
#define EVENT_ID_MAX 256
#define EVENT_NAME_MAX 253
#define EVENT_SKU_MAX 128
#define EVENT_ATTRIBUTES_MAX 32
#define EVENT_AMOUNT_LIMIT_DIGITS 15

enum event_type { EVENT_STORAGE = 1, EVENT_EGRESS, EVENT_INFERENCE, EVENT_SUPPORT };
const char *event_type_name(enum event_type type); /* "tollgate.storage.v1" */

enum event_fate {
	EVENT_SOUND,     /* not offered to the store yet */
	EVENT_ACCEPTED,  /* new, and now durable */
	EVENT_DUPLICATE, /* known with the same content */
	EVENT_CONFLICT,  /* known with other content */
	EVENT_REFUSED,
};
#define EVENT_FATES 5
const char *event_fate_name(enum event_fate fate);

/* An amount that an event does not have. */
#define EVENT_NONE ((int128)-1)

struct event {
	enum event_fate fate;
	enum err_kind kind; /* why it is refused, with the field to blame and a sentence */
	char field[48];
	char *detail;
	const char *id, *source; /* NULL when they could not be read */
	enum event_type type;
	int64_t time_ns;
	const char *tenant, *workspace; /* "" when ns says whose it is */
	const char *ns;
	const char *sku;
	int128 amount;                                /* GB-hours, GB or hours, in 1e-9 */
	int128 requests, input_tokens, output_tokens; /* whole */
	const char *model, *caller, *server;
	const char *end_user;        /* the person who asked, by the sender's name for them; "": not given */
	uint8_t digest[SHA256_SIZE]; /* of what it says; source, id and attributes that decide nothing are not in it */
};

struct event_rules {
	int64_t now_ns, age_ns, ahead_ns;
	size_t count_max;
	const char *tenant; /* the only one the sender may speak for; NULL: any */
};

struct events {
	json_t *doc; /* owns the texts */
	struct event *items;
	size_t count;
};
void events_free(struct events *e);
DEFINE_OWNED(events, struct events)

/* One event, or with `batch` a list of them. Fails only when there are no events to judge: no JSON, no list, too many. */
MUST_CHECK bool events_parse(const char *text, size_t len, bool batch, const struct event_rules *rules,
                             struct events **ret, struct err *err);
/* Refuses an event that was sound so far: the store found something wrong with it. Returns false. */
bool event_refuse(struct event *e, enum event_fate fate, enum err_kind kind, const char *field, const char *fmt, ...)
	PRINTF_LIKE(5, 6);

enum event_meter {
	METER_STORAGE,
	METER_EGRESS,
	METER_REQUESTS,
	METER_INPUT_TOKENS,
	METER_OUTPUT_TOKENS,
	METER_SUPPORT,
};
#define EVENT_METERS 6

bool event_is_small(const struct event *e); /* rule 9 */
/* Adds what the event measures to the sums, which have the scale QUANTITY_SCALE. */
void event_sum(const struct event *e, int128 sums[EVENT_METERS]);
/* The same, within the limits of rule 7. False: it is refused, with a sentence that names the month. */
bool event_add_up(struct event *e, const char *month, int128 sums[EVENT_METERS]);
/* Above a thousandth of the limit of any meter. */
bool event_sums_are_large(const int128 sums[EVENT_METERS]);
/* Rule 8: the largest price for `per` units, scale PRICE_SCALE. The meter is named as in a policy. */
int128 event_price_limit(const char *meter, int64_t per);

#endif
