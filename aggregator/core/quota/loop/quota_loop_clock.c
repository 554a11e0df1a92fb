/* aggregator/core/quota/loop/quota_loop_clock.c - the closed loop, rules 0 and 7: the clock that was set, and what the ledger knows of budgets. */
#include <string.h>

#include "aggregator/core/quota/loop/quota_loop_state.h"
#include "common/conf/json.h"
#include "common/base/time.h"

#define TEXT_BYTES 256u
#define STEP_NS (2 * NS_PER_S) /* less is how clocks are */
#define GAP_NS (60 * NS_PER_S) /* after this nobody knows what other processes made of it */

/* Until when moments are from before the clock was set.
 *     forward        those that are not after what the time would be now
 *     it stands      all of them
 *     back by more   those of before this look: what was made since is of the new time */
static int64_t
before_it_was_set(const struct loop *l, int64_t off_ns, int64_t passed_ns)
{
	if (off_ns > 0)
		return l->now_ns - off_ns;
	return -off_ns <= 2 * STEP_NS + passed_ns ? l->now_ns : l->now_ns - passed_ns - 1;
}

void
loop_clock(struct loop *l)
{
	const struct quota_pace *was = &l->in->was;
	int64_t skipped_ns = quota_skipped(quota_book_state(l->b));
	int64_t lived_ns = l->now_ns - skipped_ns, passed_ns = l->in->boot_ns - was->boot_ns;
	int64_t off_ns = lived_ns - was->lived_ns - passed_ns;
	in_place(buf) struct buf text = {0};

	buf_init(&text, TEXT_BYTES);
	l->out->pace = (struct quota_pace){l->in->boot_ns, lived_ns};
	if (was->boot_ns == 0 || (off_ns < 0 && passed_ns > GAP_NS) ||
	    l->w->lease_count + l->w->waiting_count + l->w->backoff_count == 0)
		return;
	l->out->pace.lived_ns = lived_ns - off_ns;
	if (off_ns > -STEP_NS && off_ns < STEP_NS)
		return;
	buf_printf(&text, "{\"clock\":{\"until_ns\":%" PRId64 ",\"skipped_ns\":%" PRId64 "}}",
	           before_it_was_set(l, off_ns, passed_ns), skipped_ns + off_ns);
	loop_event(l, "clock", &text);
}

/* ---- budgets ------------------------------------------------------------------------------------------------------------------ */

static bool
book_has(const struct loop *l, const json_t *o)
{
	const char *tenant = json_string_value(json_object_get(o, "tenant"));
	const char *path = json_string_value(json_object_get(o, "workspace"));
	const char *kind = json_string_value(json_object_get(o, "kind"));
	int64_t consumed = json_integer_value(json_object_get(o, "consumed"));
	int32_t of = tenant ? quota_book_tenant(l->b, tenant) : QUOTA_NONE;
	int32_t workspace = path ? quota_book_workspace(l->b, path) : QUOTA_NONE;
	enum quota_budget_kind is = kind && strcmp(kind, "money") == 0    ? QUOTA_BUDGET_MONEY
	                            : kind && strcmp(kind, "tokens") == 0 ? QUOTA_BUDGET_TOKENS
	                                                                  : QUOTA_BUDGET_UNIT_SECONDS;

	for (size_t i = 0; i < l->w->policy.budget_count; i++) {
		const struct quota_budget *b = &l->w->policy.budgets[i];

		if (b->tenant == of && b->workspace == workspace && b->kind == is)
			return b->consumed == consumed;
	}
	return true; /* a budget that the policy does not have any more, or not yet */
}

/* Until the book says the same: what was told may be lost with a transaction, or with a database that failed over. */
void
loop_budgets(struct loop *l)
{
	owned(json) json_t *doc = NULL;
	const json_t *list;
	in_place(buf) struct buf text = {0};
	bool same = true;

	buf_init(&text, QUOTA_EVENT_MAX_BYTES);
	if (!l->in->budgets || l->w->policy.budget_count == 0 ||
	    !json_parse_max("budgets", l->in->budgets, strlen(l->in->budgets), QUOTA_EVENT_MAX_BYTES, &doc, NULL))
		return;
	list = json_object_get(doc, "budgets");
	for (size_t i = 0; i < json_array_size(list) && same; i++)
		same = book_has(l, json_array_get(list, i));
	if (same)
		return;
	buf_str(&text, l->in->budgets);
	loop_event(l, "ledger", &text);
}
