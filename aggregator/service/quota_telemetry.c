/* aggregator/service/quota_telemetry.c - the closed loop of quota: policy and telemetry as events for the book. The rules are in
 * core/quota/loop/quota_loop.h. */
#include "aggregator/service/quota_telemetry.h"

#include <pthread.h>
#include <string.h>

#include "aggregator/service/budget_table.h"
#include "aggregator/core/quota/engine/quota_memory.h"
#include "aggregator/store/billing/report_store.h"
#include "aggregator/store/policy/policy_store.h"
#include "aggregator/store/quota/quota_store.h"
#include "common/conf/json.h"
#include "common/base/time.h"

#define POLICY_BYTES QUOTA_EVENT_MAX_BYTES
#define POLICY_AGAIN_NS (60 * NS_PER_S) /* for changes without a version: prices, states of nodes */
#define QUARTER_NS (900 * NS_PER_S)
#define PERIOD_MAX 40

/* When a tick first saw a lease and its last change, on the clock of telemetry. */
struct since {
	char lease[QUOTA_ID_SIZE];
	int64_t change;
	int64_t first_ns, noted_ns;
};

struct quota_loop_memory {
	struct quota_settings settings;
	int64_t last_tick_ns;
	struct quota_live_kept *kept;
	/* The policy as it was last read, with the key of that reading. */
	struct buf policy;
	uint8_t policy_digest[SHA256_SIZE];
	int64_t policy_version, policy_read_ns;
	uint64_t policy_pools;
	struct quota_pace pace;
	struct since *since; /* by lease, while the book is ahead of the database's clock */
	size_t since_count;
	/* Of the thread that reads reports. */
	pthread_mutex_t lock;
	struct buf budgets; /* {"budgets":[...]} as last read, or empty */
};

struct quota_loop_memory *
quota_loop_memory_new(const struct quota_settings *settings)
{
	struct quota_loop_memory *m = mem_alloc(sizeof(*m));

	m->settings = *settings;
	m->kept = quota_live_kept_new();
	buf_init(&m->policy, POLICY_BYTES);
	buf_init(&m->budgets, POLICY_BYTES);
	ASSERT(pthread_mutex_init(&m->lock, NULL) == 0);
	return m;
}

void
quota_loop_memory_free(struct quota_loop_memory *m)
{
	if (!m)
		return;
	quota_live_kept_free(m->kept);
	mem_free(m->since);
	buf_fini(&m->policy);
	buf_fini(&m->budgets);
	(void)pthread_mutex_destroy(&m->lock);
	mem_free(m);
}

void
quota_loop_result_fini(struct quota_loop_result *r)
{
	quota_loop_out_fini(&r->out);
	mem_free(r->events);
	quota_memory_free(r->memory);
	*r = (struct quota_loop_result){0};
}

/* ---- the policy ---------------------------------------------------------------------------------------------------------------- */

static uint64_t
mix(uint64_t h, const char *text)
{
	for (; *text; text++)
		h = (h ^ (unsigned char)*text) * UINT64_C(0x100000001b3);
	return (h ^ 0xff) * UINT64_C(0x100000001b3);
}

/* Hash of the pools: cluster, tenant, GPU model. */
static uint64_t
pools_of(const struct quota_observed *seen)
{
	uint64_t h = UINT64_C(0xcbf29ce484222325);

	for (size_t i = 0; i < seen->node_count; i++) {
		const struct quota_seen_node *n = &seen->nodes[i];
		const char *last = "";

		for (size_t g = 0; g < n->gpu_count; g++)
			if (strcmp(n->gpus[g].model, last) != 0) {
				last = n->gpus[g].model;
				h = mix(mix(mix(h, n->cluster), n->tenant), last);
			}
	}
	return h;
}

/* Read again when a policy was applied, a billing hour may have begun, other pools are there, or a while has passed. */
static bool
read_policy(struct quota_loop_memory *m, struct db *db, const struct quota_observed *seen, int64_t now_ns,
            int64_t at_ns, struct err *err)
{
	uint64_t pools = pools_of(seen);
	in_place(quota_policy_rows) struct quota_policy_rows rows = {0};
	in_place(buf) struct buf text = {.max = POLICY_BYTES};
	int64_t version;

	buf_init(&text, POLICY_BYTES);
	if (!store_policy_version(db, &version, err))
		return false;
	if (m->policy.len > 0 && version == m->policy_version && pools == m->policy_pools &&
	    now_ns / QUARTER_NS == m->policy_read_ns / QUARTER_NS && now_ns >= m->policy_read_ns &&
	    now_ns - m->policy_read_ns < POLICY_AGAIN_NS)
		return true;
	if (!store_quota_policy(db, at_ns, &rows, err) || !policy_to_quota(&rows.policy, &m->settings, &text, err))
		return false;
	buf_clear(&m->policy);
	buf_add(&m->policy, buf_text(&text), text.len);
	sha256(buf_text(&text), text.len, m->policy_digest);
	m->policy_version = version;
	m->policy_pools = pools;
	m->policy_read_ns = now_ns;
	return true;
}

/* ---- a tick ---------------------------------------------------------------------------------------------------------------------- */

static void
add_event(struct quota_loop_result *r, const char *actor, const char *text)
{
	struct quota_memory *memory = r->memory;

	r->events[r->event_count++] = (struct quota_loop_event){actor, quota_keep_text(&memory, text)};
	r->memory = memory;
}

static const struct since *
find_since(const struct quota_loop_memory *m, const char *lease, size_t *at)
{
	int c = 1;

	while (*at < m->since_count && (c = strcmp(m->since[*at].lease, lease)) < 0)
		(*at)++;
	return c == 0 && *at < m->since_count ? &m->since[*at] : NULL;
}

/* The database's clock was set back, and the book's time stands still until it catches up. Until then leases are dated by when this process
 * first saw them and their last change, because the book's times are later than any telemetry. */
static void
translate(struct quota_loop_memory *m, struct quota_live *live, int64_t now_ns)
{
	struct since *anew = mem_array(live->seen.workload_count + 1, sizeof(*anew));
	size_t at = 0;

	for (size_t i = 0; i < live->seen.workload_count; i++) {
		struct quota_workload *w = &live->workloads[i];
		const struct since *was = find_since(m, w->lease, &at);

		anew[i] = was ? *was : (struct since){.change = -1, .first_ns = now_ns};
		/* ahead of the clock: that was set back once more */
		if (anew[i].change != w->change || anew[i].noted_ns > now_ns)
			anew[i].noted_ns = now_ns;
		if (anew[i].first_ns > now_ns)
			anew[i].first_ns = now_ns;
		memcpy(anew[i].lease, w->lease, strnlen(w->lease, QUOTA_ID_SIZE - 1));
		anew[i].change = w->change;
		w->since_ns = anew[i].first_ns;
		w->changed_ns = anew[i].noted_ns;
	}
	mem_free(m->since);
	m->since = anew;
	m->since_count = live->seen.workload_count;
}

static void
copy_budgets(struct quota_loop_memory *m, struct buf *out)
{
	(void)pthread_mutex_lock(&m->lock);
	buf_add(out, buf_text(&m->budgets), m->budgets.len);
	(void)pthread_mutex_unlock(&m->lock);
}

static void
forget_since(struct quota_loop_memory *m)
{
	mem_free(m->since);
	m->since = NULL;
	m->since_count = 0;
}

bool
quota_loop_events(struct quota_loop_memory *m, struct db *db, const struct quota_book *b, const uint8_t *policy_digest,
                  int64_t now_ns, struct quota_loop_result *ret, struct err *err)
{
	in_place(quota_live) struct quota_live live = {0};
	int64_t boot_ns = time_boot_ns();
	int64_t at_ns = quota_book_now(b) > now_ns ? quota_book_now(b) : now_ns;
	in_place(buf) struct buf budgets = {0};

	*ret = (struct quota_loop_result){0};
	buf_init(&budgets, POLICY_BYTES);
	if (!store_quota_observe(db, now_ns, at_ns, m->kept, &live, err) ||
	    !read_policy(m, db, &live.seen, now_ns, at_ns, err))
		return false;
	if (at_ns > now_ns)
		translate(m, &live, now_ns);
	else
		forget_since(m);
	copy_budgets(m, &budgets);
	live.seen.last_tick_ns = m->last_tick_ns;
	live.seen.was = m->pace;
	live.seen.boot_ns = boot_ns;
	live.seen.budgets = budgets.len > 0 ? buf_text(&budgets) : NULL;
	quota_loop(b, &live.seen, at_ns, &ret->out);
	m->pace = ret->out.pace;
	if (ret->out.ticked)
		m->last_tick_ns = at_ns;
	ret->policy_version = m->policy_version;
	ret->policy_at_ns = at_ns;
	ret->events = mem_array(ret->out.event_count + 1, sizeof(*ret->events));
	if (!policy_digest || memcmp(policy_digest, m->policy_digest, SHA256_SIZE) != 0) {
		add_event(ret, "policy", buf_text(&m->policy));
		ret->policy_changed = true;
		memcpy(ret->policy_digest, m->policy_digest, SHA256_SIZE);
	}
	for (size_t i = 0; i < ret->out.event_count; i++)
		ret->events[ret->event_count++] = ret->out.events[i];
	return true;
}

bool
quota_loop_store(struct db *db, const struct quota_loop_result *r, int64_t now_ns, struct err *err)
{
	return store_quota_anomalies(db, &r->out, now_ns, err);
}

/* ---- budgets ---------------------------------------------------------------------------------------------------------------------- */

static bool
add_tenant(void *arg, const struct rating_input *in, struct err *err)
{
	struct budget_table *t = arg;
	owned(rated) struct rated *rated = NULL;

	for (size_t i = 0; i < t->list->count; i++)
		if (strcmp(t->list->at[i].tenant, in->days[0].tenant) == 0)
			return rating_run(in, &rated, err) && budget_table_add(t, rated, err);
	return true;
}

static const char *
kind_of(const struct budget *b)
{
	return budget_unit_is_money(b->unit) ? "money" : b->unit[0] != '\0' ? "tokens" : "unit_seconds";
}

/* Hundredths of money, tokens, or unit-seconds, rounded up. */
static int64_t
consumed_of(const struct budget *b, int128 consumed)
{
	int128 scale = pow10_i128(PRICE_SCALE), value;

	if (consumed <= 0)
		return 0;
	value = consumed * (budget_unit_is_money(b->unit) ? 100
	                    : b->unit[0] != '\0'          ? 1
	                                                  : (int128)UNITS_PER_GPU * 3600);
	value = (value + scale - 1) / scale;
	return value > INT64_C(1000000000000000000) ? INT64_C(1000000000000000000) : (int64_t)value;
}

static bool
write_budgets(const struct budget_table *t, int64_t now_ns, struct buf *out, struct err *err)
{
	buf_str(out, "{\"budgets\":[");
	for (size_t i = 0; i < t->list->count; i++) {
		const struct budget *b = &t->list->at[i];
		struct budget_state s;

		if (!budget_table_judge(t, i, now_ns, &s, err))
			return false;
		buf_str(out, i > 0 ? ",{\"tenant\":" : "{\"tenant\":");
		json_write_string(b->tenant, out);
		if (b->workspace[0])
			buf_printf(out, ",\"workspace\":\"%s/%s\"", b->tenant, b->workspace);
		buf_printf(out, ",\"kind\":\"%s\",\"consumed\":%" PRId64 "}", kind_of(b), consumed_of(b, s.consumed));
	}
	buf_str(out, "]}");
	return buf_ok(out, "the budgets", err);
}

bool
quota_loop_budgets(struct quota_loop_memory *m, struct db *db, int64_t now_ns, struct err *err)
{
	owned(budget_list) struct budget_list *list = NULL;
	in_place(budget_table) struct budget_table t = {0};
	in_place(buf) struct buf text = {0};
	char period[PERIOD_MAX];

	buf_init(&text, POLICY_BYTES);
	if (!store_period_now(db, now_ns, period, err) || !store_budgets_load(db, period, NULL, now_ns, &list, err))
		return false;
	budget_table_init(&t, list);
	if (list->count == 0)
		return true;
	if (!store_report_each(db, period, NULL, NULL, add_tenant, &t, err) || !write_budgets(&t, now_ns, &text, err))
		return false;
	(void)pthread_mutex_lock(&m->lock);
	buf_clear(&m->budgets);
	buf_add(&m->budgets, buf_text(&text), text.len);
	(void)pthread_mutex_unlock(&m->lock);
	return true;
}
