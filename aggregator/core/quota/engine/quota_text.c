/* aggregator/core/quota/engine/quota_text.c - verdicts and notices as JSON, and the numbers of their checks. */
#include "aggregator/core/quota/engine/quota_text.h"

#include <string.h>

#include "common/conf/json.h"
#include "common/base/time.h"

/* ---- numbers -------------------------------------------------------------------------------------------------------------- */

#define DECIMALS 9

static const struct {
	const char *name;
	int64_t one;
} measures[] = {
	/* clang-format off */
	[CHECK_GPUS] = {"gpus", UNITS_PER_GPU},
	[CHECK_COUNT] = {"count", 1},
	[CHECK_CORES] = {"cores", 1000},
	[CHECK_BYTES] = {"bytes", 1},
	[CHECK_GPU_HOURS] = {"gpu_hours", UNITS_PER_GPU * 3600},
	[CHECK_MONEY] = {"money", 100},
	[CHECK_TOKENS] = {"tokens", 1},
	[CHECK_SECONDS] = {"seconds", NS_PER_S},
	/* clang-format on */
};

const char *
check_measure_name(enum check_measure m)
{
	return measures[m].name;
}

enum check_measure
check_measure_of(enum quota_rule rule, enum quota_scope scope, enum quota_budget_kind budget)
{
	switch (scope) {
	case QUOTA_SCOPE_REQUEST:
	case QUOTA_SCOPE_ISOLATION:
	case QUOTA_SCOPE_HEAD:
	case QUOTA_SCOPE_PREEMPTIBLE: return CHECK_COUNT;
	case QUOTA_SCOPE_CPU:
	case QUOTA_SCOPE_TENANT_CPU: return CHECK_CORES;
	case QUOTA_SCOPE_MEMORY:
	case QUOTA_SCOPE_STORAGE:
	case QUOTA_SCOPE_TENANT_MEMORY:
	case QUOTA_SCOPE_TENANT_STORAGE: return CHECK_BYTES;
	case QUOTA_SCOPE_UNUSED:
	case QUOTA_SCOPE_BACKOFF: return CHECK_SECONDS;
	default: break;
	}
	if (rule != QUOTA_RULE_BUDGET)
		return CHECK_GPUS;
	switch (budget) {
	case QUOTA_BUDGET_MONEY: return CHECK_MONEY;
	case QUOTA_BUDGET_TOKENS: return CHECK_TOKENS;
	case QUOTA_BUDGET_UNIT_SECONDS: break;
	}
	return CHECK_GPU_HOURS;
}

void
check_number(int64_t value, enum check_measure m, struct buf *out)
{
	const int64_t scale = INT64_C(1000000000);
	int64_t one = measures[m].one, size = value < 0 ? -value : value;
	char digits[DECIMALS + 1];
	int64_t part;
	int n = DECIMALS;

	if (value >= 0 && value % one == 0) { /* nearly always */
		buf_i64(out, value / one);
		return;
	}
	/* no measure has more than a thousand million in one: the product has room */
	part = ((size % one) * scale * 2 + one) / (2 * one);
	size /= one;
	if (part == scale) {
		part = 0;
		size++;
	}
	if (value < 0 && (size > 0 || part > 0))
		buf_char(out, '-');
	buf_i64(out, size);
	if (part == 0)
		return;
	for (int i = DECIMALS; i-- > 0; part /= 10)
		digits[i] = (char)('0' + part % 10);
	while (n > 0 && digits[n - 1] == '0')
		n--;
	buf_char(out, '.');
	buf_add(out, digits, (size_t)n);
}

/* ---- JSON ------------------------------------------------------------------------------------------------------------------- */

/* A member's name is known when this is compiled: a verdict has hundreds of them, and is written with every decision. */
#define KEY(out, name) buf_add((out), ",\"" name "\":", sizeof(",\"" name "\":") - 1)
#define STRING(out, name, text) (KEY(out, name), json_write_string((text), (out)))
#define WORD(out, name, text) (KEY(out, name), write_word((out), (text)))
#define FLAG(out, name, value) (KEY(out, name), buf_str((out), (value) ? "true" : "false"))
#define WHOLE(out, name, value) (KEY(out, name), buf_i64((out), (value)))
#define AMOUNT(out, name, value, m) (KEY(out, name), write_amount((out), (value), (m)))

#define SUMMARY_MAX 8192u

/* One of the words that this program knows: nothing in it needs an escape. */
static void
write_word(struct buf *out, const char *text)
{
	buf_char(out, '"');
	buf_str(out, text);
	buf_char(out, '"');
}

static void
write_amount(struct buf *out, int64_t value, enum check_measure m)
{
	if (value == QUOTA_UNLIMITED)
		buf_str(out, "null");
	else
		check_number(value, m, out);
}

static void
workspace(const struct quota_namer *namer, struct buf *out, int32_t w)
{
	in_place(buf) struct buf path = {0};

	buf_init(&path, 4u * QUOTA_NAME_SIZE);
	namer->workspace(namer->of, w, &path);
	STRING(out, "workspace", buf_text(&path));
}

static void
check(const struct quota_check *c, struct buf *out)
{
	enum check_measure m = check_measure_of(c->rule, c->scope, c->budget);

	buf_str(out, "{\"rule\":\"");
	buf_str(out, quota_rule_name(c->rule));
	buf_char(out, '"');
	FLAG(out, "ok", c->ok);
	AMOUNT(out, "need", c->need, m);
	AMOUNT(out, "have", c->have, m);
	WORD(out, "scope", quota_scope_name(c->scope));
	WORD(out, "pool", c->shared ? "shared" : "own");
	WORD(out, "unit", check_measure_name(m));
	AMOUNT(out, "leased", c->leased, m);
	AMOUNT(out, "held", c->held, m);
	AMOUNT(out, "requested", c->requested, m);
	AMOUNT(out, "headroom", c->headroom, m);
	if (c->after)
		FLAG(out, "after", true);
	buf_char(out, '}');
}

static bool
may_know(const struct quota_reader *reader, const char *path)
{
	size_t n = reader ? strlen(reader->tenant) : 0;

	return n == 0 || (strncmp(path, reader->tenant, n) == 0 && path[n] == '/');
}

/* The request_id of a key: without the tenant. */
static void
lease_id(const struct quota_reader *reader, const char *key_, struct buf *out)
{
	const char *slash = reader ? strchr(key_, '/') : NULL;

	json_write_string(slash ? slash + 1 : key_, out);
}

static void
reason(const struct quota_namer *namer, const struct quota_victim *x, const struct quota_reader *reader,
       struct buf *path, struct buf *out)
{
	bool known;

	buf_clear(path);
	namer->workspace(namer->of, x->workspace, path);
	known = may_know(reader, buf_text(path));
	buf_str(out, "{\"id\":");
	if (known)
		lease_id(reader, x->id, out);
	else
		buf_str(out, "null");
	STRING(out, "workspace", known ? buf_text(path) : NULL);
	WORD(out, "why", quota_why_name(x->why));
	AMOUNT(out, "gpus", x->units, CHECK_GPUS);
	if (known) {
		WHOLE(out, "priority", x->priority);
		AMOUNT(out, "debt_gpus", x->debt, CHECK_GPUS);
		WHOLE(out, "weight", x->weight);
	}
	buf_char(out, '}');
}

static void
reasons(const struct quota_namer *namer, const struct quota_verdict *v, const struct quota_reader *reader,
        struct buf *out)
{
	in_place(buf) struct buf path = {0};

	buf_init(&path, 4u * QUOTA_NAME_SIZE);
	KEY(out, "reasons");
	buf_char(out, '[');
	for (size_t i = 0; i < v->victim_count; i++) {
		if (i > 0)
			buf_char(out, ',');
		reason(namer, &v->victims[i], reader, &path, out);
	}
	buf_char(out, ']');
}

static void
victims(const struct quota_namer *namer, const struct quota_verdict *v, const struct quota_reader *reader,
        struct buf *out)
{
	in_place(buf) struct buf path = {0};
	const char *comma = "";

	buf_init(&path, 4u * QUOTA_NAME_SIZE);
	KEY(out, "victims");
	buf_char(out, '[');
	for (size_t i = 0; i < v->victim_count; i++) {
		buf_clear(&path);
		namer->workspace(namer->of, v->victims[i].workspace, &path);
		if (!may_know(reader, buf_text(&path)))
			continue;
		buf_str(out, comma);
		lease_id(reader, v->victims[i].id, out);
		comma = ",";
	}
	buf_char(out, ']');
}

/* Devices by node; which GPU of it is the scheduler's choice until the lease is bound. */
static void
placed(const struct quota_namer *namer, const struct quota_verdict *v, struct buf *out)
{
	KEY(out, "nodes");
	buf_char(out, '[');
	for (size_t i = 0; i < v->placed_count;) {
		int32_t node = v->placed[i].node;
		bool first = i == 0;
		int64_t count = 0;

		for (; i < v->placed_count && v->placed[i].node == node; i++)
			count += v->placed[i].count;
		buf_str(out, first ? "{\"node\":" : ",{\"node\":");
		json_write_string(namer->node(namer->of, node), out);
		WHOLE(out, "count", count);
		buf_char(out, '}');
	}
	buf_char(out, ']');
}

static void
changes(const struct quota_verdict *v, struct buf *out)
{
	KEY(out, "changes");
	buf_char(out, '[');
	for (size_t i = 0; i < v->change_count; i++) {
		const struct quota_change *c = &v->changes[i];
		enum check_measure m = check_measure_of(c->rule, c->scope, c->budget);

		buf_str(out, i > 0 ? ",{\"change\":\"" : "{\"change\":\"");
		buf_str(out, quota_change_name(c));
		buf_char(out, '"');
		AMOUNT(out, "amount", c->amount, m);
		WORD(out, "unit", check_measure_name(m));
		WORD(out, "scope", quota_scope_name(c->scope));
		WORD(out, "pool", c->shared ? "shared" : "own");
		buf_char(out, '}');
	}
	buf_char(out, ']');
}

/* Stored with the verdict, so that the same request always gets the same sentences. */
static void
summary(const struct quota_namer *namer, const struct quota_verdict *v, struct buf *out)
{
	in_place(buf) struct buf told = {0};

	buf_init(&told, SUMMARY_MAX);
	quota_sentences(namer, v, &told);
	STRING(out, "summary", buf_text(&told));
}

/* reader NULL: the log, where leases have their keys and nothing is left out. */
static void
members(const struct quota_namer *namer, const struct quota_verdict *v, const struct quota_reader *reader,
        const char *at, struct buf *out)
{
	AMOUNT(out, "borrowed_gpus", v->borrowed_units, CHECK_GPUS);
	victims(namer, v, reader, out);
	if (reader)
		summary(namer, v, out);
	KEY(out, "checks");
	buf_char(out, '[');
	for (size_t i = 0; i < v->check_count; i++) {
		if (i > 0)
			buf_char(out, ',');
		check(&v->checks[i], out);
	}
	buf_char(out, ']');
	if (at)
		WORD(out, "at", at);
	workspace(namer, out, v->workspace);
	WORD(out, "would", quota_decision_name(v->would));
	FLAG(out, "warn", v->warn);
	FLAG(out, "owed", v->owed);
	WORD(out, "pool", v->shared ? "shared" : "own");
	WHOLE(out, "position", v->position);
	if (v->position > 0) {
		WHOLE(out, "queue_length", v->queue_length);
		WORD(out, "queue_pool", v->queue_shared ? "shared" : "own");
	}
	if (v->start != QUOTA_START_UNASKED) {
		char time[TIME_TEXT_SIZE];

		STRING(out, "expected_start", quota_start_is_known(v->start) ? time_format(v->start_ns, time) : NULL);
		WORD(out, "expected_start_reason", quota_start_text(v->start));
	}
	if (v->adopted)
		FLAG(out, "adopted", true);
	WHOLE(out, "borrowed_units", v->borrowed_units);
	placed(namer, v, out);
	reasons(namer, v, reader, out);
	changes(v, out);
	if (!reader)
		summary(namer, v, out);
}

void
quota_json_reply(const struct quota_namer *namer, const struct quota_verdict *v, const struct quota_reader *reader,
                 struct buf *out)
{
	members(namer, v, reader, NULL, out);
}

void
quota_json_verdict(const struct quota_namer *namer, const struct quota_verdict *v, const char *at, struct buf *out)
{
	buf_str(out, "{\"id\":");
	json_write_string(v->id, out);
	WORD(out, "decision", quota_decision_name(v->decision));
	members(namer, v, NULL, at, out);
	buf_char(out, '}');
}

void
quota_json_notice(const struct quota_notice *n, const char *at, struct buf *out)
{
	buf_char(out, '{');
	if (at) {
		buf_str(out, "\"at\":");
		json_write_string(at, out);
		buf_char(out, ',');
	}
	buf_str(out, "\"event\":");
	json_write_string(quota_notice_name(n->kind), out);
	STRING(out, "id", n->id);
	if (n->for_id[0] != '\0') {
		buf_str(out, n->kind == QUOTA_REFUSED ? ",\"reason\":" : ",\"for\":");
		json_write_string(n->for_id, out);
	}
	if (n->kind == QUOTA_ORDER_MADE)
		WHOLE(out, "due_ns", n->at_ns);
	buf_char(out, '}');
}
