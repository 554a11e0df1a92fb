/* aggregator/core/quota/loop/quota_loop.c - the closed loop: one look at telemetry and the book, the clock (rule 0) and budgets (rule 7). */
#include "aggregator/core/quota/loop/quota_loop.h"

#include <stdlib.h>
#include <string.h>

#include "aggregator/core/quota/loop/quota_loop_state.h"
#include "common/base/time.h"
#include "common/conf/json.h"

/* ---- rules 0 and 7: the clock, and budgets of the ledger ------------------------------------------------------------------- */

#define TEXT_BYTES 256u
#define STEP_NS (2 * NS_PER_S) /* smaller differences are normal */
#define GAP_NS (60 * NS_PER_S) /* after this it is unknown how other processes handled it */

/* Until when moments are from before the clock was set.
 *     forward        those that are not after the time as it would be now
 *     it stands      all of them
 *     back by more   those of before this look: later ones are of the new time */
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
	    l->w->lease_count + l->w->waiting_count + l->w->backoff_count + l->w->fence_count + l->w->unused_count == 0)
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

/* Repeated until the book says the same: the event may be lost with a transaction, or with a database that failed over. */
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

/* ---- one look -------------------------------------------------------------------------------------------------------------- */

void
quota_loop_out_fini(struct quota_loop_out *out)
{
	mem_free(out->events);
	mem_free(out->anomalies);
	mem_free(out->idle);
	mem_free(out->warned);
	quota_memory_free(out->memory);
	*out = (struct quota_loop_out){0};
}

void
loop_event(struct loop *l, const char *actor, const struct buf *text)
{
	struct quota_loop_out *o = l->out;

	array_room(o->events, o->event_count, l->event_cap);
	o->events[o->event_count++] = (struct quota_loop_event){actor, quota_keep_text(&l->m, buf_text(text))};
}

void
loop_anomaly(struct loop *l, const char *kind, const char *subject, const char *tenant, const struct buf *detail)
{
	struct quota_loop_out *o = l->out;
	in_place(buf) struct buf object = {0};

	buf_init(&object, detail->len + 3);
	buf_printf(&object, "{%s}", buf_text(detail));
	array_room(o->anomalies, o->anomaly_count, l->anomaly_cap);
	o->anomalies[o->anomaly_count++] =
		(struct quota_anomaly){kind, quota_keep_text(&l->m, subject), quota_keep_text(&l->m, tenant),
	                               quota_keep_text(&l->m, buf_text(&object))};
}

static int
compare_anomalies(const void *a, const void *b)
{
	const struct quota_anomaly *x = a, *y = b;
	int c = strcmp(x->kind, y->kind);

	return c != 0 ? c : strcmp(x->subject, y->subject);
}

/* One for each kind and subject: duplicates are merged. */
static void
sort_anomalies(struct quota_loop_out *o)
{
	size_t kept = 0;

	if (o->anomaly_count == 0)
		return;
	qsort(o->anomalies, o->anomaly_count, sizeof(*o->anomalies), compare_anomalies);
	for (size_t i = 1; i < o->anomaly_count; i++)
		if (compare_anomalies(&o->anomalies[kept], &o->anomalies[i]) != 0)
			o->anomalies[++kept] = o->anomalies[i];
	o->anomaly_count = kept + 1;
}

static void
map_nodes(struct loop *l)
{
	l->seen_of = quota_keep(&l->m, l->w->node_count, sizeof(*l->seen_of));
	l->book_of = quota_keep(&l->m, l->in->node_count, sizeof(*l->book_of));
	for (size_t i = 0; i < l->w->node_count; i++)
		l->seen_of[i] = QUOTA_NONE;
	for (size_t i = 0; i < l->in->node_count; i++) {
		l->book_of[i] = quota_book_node(l->b, l->in->nodes[i].name);
		if (l->book_of[i] != QUOTA_NONE)
			l->seen_of[l->book_of[i]] = (int32_t)i;
	}
}

void
quota_loop(const struct quota_book *b, const struct quota_observed *seen, int64_t now_ns, struct quota_loop_out *ret)
{
	struct quota_saved saved;
	struct loop l = {.b = b, .in = seen, .now_ns = now_ns, .out = ret};

	*ret = (struct quota_loop_out){0};
	quota_save(quota_book_state(b), &saved);
	l.w = &saved.world;
	loop_judge(&l);
	map_nodes(&l);
	loop_clock(&l);
	loop_inventory(&l);
	loop_match(&l);
	loop_leases(&l);
	loop_budgets(&l);
	loop_anomalies(&l);
	sort_anomalies(ret);
	quota_saved_fini(&saved);
	ret->memory = l.m;
}
