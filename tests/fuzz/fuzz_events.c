/* tests/fuzz/fuzz_events.c - any bytes as events, single and batch, of any sender: refused in words, or sound in every field that
 * the store relies on; and the same bytes have the same digests. */
#include <string.h>

#include "aggregator/core/metering/events.h"
#include "common/base/money.h"
#include "common/base/text.h"
#include "common/base/time.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void
check_amount(int128 v, int scale)
{
	ASSERT(v == EVENT_NONE || (v >= 0 && v < pow10_i128(EVENT_AMOUNT_LIMIT_DIGITS + scale)));
}

static void
check_sound(const struct event *e, const struct event_rules *r)
{
	bool inference = e->type == EVENT_INFERENCE;

	ASSERT(e->id[0] != '\0' && strlen(e->id) <= EVENT_ID_MAX && text_is_clean(e->id));
	ASSERT(e->source[0] != '\0' && strlen(e->source) <= EVENT_SOURCE_MAX && text_is_clean(e->source));
	ASSERT(e->time_ns >= r->now_ns - r->age_ns && e->time_ns <= r->now_ns + r->ahead_ns);
	ASSERT((e->ns[0] == '\0') == (e->tenant[0] != '\0' && e->workspace[0] != '\0'));
	ASSERT(r->tenant == NULL || strcmp(e->tenant, r->tenant) == 0);
	ASSERT(e->sku[0] != '\0' && strlen(e->sku) <= EVENT_SKU_MAX && text_is_clean(e->sku));
	ASSERT(inference == (e->amount == EVENT_NONE) && inference == (e->model[0] != '\0'));
	ASSERT(inference ==
	       (e->requests != EVENT_NONE || e->input_tokens != EVENT_NONE || e->output_tokens != EVENT_NONE));
	check_amount(e->amount, QUANTITY_SCALE);
	check_amount(e->requests, 0);
	check_amount(e->input_tokens, 0);
	check_amount(e->output_tokens, 0);
}

static void
run(const uint8_t *data, size_t size, bool batch, const char *tenant)
{
	const struct event_rules r = {.now_ns = INT64_C(1794787200) * NS_PER_S,
	                              .age_ns = 45 * NS_PER_DAY,
	                              .ahead_ns = 5 * NS_PER_MIN,
	                              .count_max = 100,
	                              .tenant = tenant};
	owned(events) struct events *all = NULL, *again = NULL;
	struct err err = {0};

	if (!events_parse((const char *)data, size, batch, &r, &all, &err)) {
		ASSERT(all == NULL && err.kind == ERR_INVALID && err.text[0] != '\0');
		return;
	}
	ASSERT(events_parse((const char *)data, size, batch, &r, &again, &err) && again->count == all->count);
	for (size_t i = 0; i < all->count; i++) {
		const struct event *e = &all->items[i];

		ASSERT(memcmp(e->digest, again->items[i].digest, SHA256_SIZE) == 0);
		if (e->fate == EVENT_SOUND)
			check_sound(e, &r);
		else
			ASSERT(e->fate == EVENT_REFUSED && e->kind != ERR_NONE && e->detail[0] != '\0');
	}
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	if (size > 1 << 16)
		return 0;
	run(data, size, false, NULL);
	run(data, size, true, NULL);
	run(data, size, false, "acme");
	return 0;
}
