/* tests/support/quota/quotascript.c - scripts of quotascript.h: the state before anything happens, events, the answers in a few words, and tables of both. */
#include "tests/support/quota/quotascript.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define MOST 32
#define SECOND INT64_C(1000000000)

struct script {
	struct quota_settings settings;
	struct quota_tenant tenants[MOST];
	struct quota_workspace workspaces[MOST];
	struct quota_share shares[2 * MOST];
	struct quota_cap caps[MOST];
	struct quota_budget budgets[MOST];
	struct quota_node nodes[MOST];
	struct quota_gpu gpus[MOST][MOST];
	struct quota_slots slots[MOST][MOST];
	struct quota_lease leases[MOST];
	size_t tenant_count, workspace_count, share_count, cap_count, budget_count, node_count, lease_count;
	struct quota_state *state;
	int64_t now_ns;
	struct buf *answers;
	struct err *err;
	char *words[MOST];
	size_t word_count;
	const char *unknown; /* an unknown word */
};

static const char *const clusters[] = {"c"};
static const char *const models[] = {"H100"};
static const struct quota_shape shapes[] = {
	{.model = 0, .kind = QUOTA_WHOLE, .units = 5040, .name = ""},
	{.model = 0, .kind = QUOTA_MIG, .units = 675, .name = "1g.10gb"},
	{.model = 0, .kind = QUOTA_REPLICA, .units = 1260, .name = "1/4"},
};

/* ---- words ------------------------------------------------------------------------------------------------------------------- */

/* The number behind a prefix; false when the word has another one. An amount is in GPUs unless the word says otherwise. */
static bool
script_number_after(const char *word, const char *prefix, int64_t *ret)
{
	size_t len = strlen(prefix);
	char *end;

	if (strncmp(word, prefix, len) != 0 || word[len] == '\0' || strchr("0123456789-", word[len]) == NULL)
		return false;
	*ret = strtoll(word + len, &end, 10);
	if (strcmp(end, "m") == 0)
		*ret *= shapes[SCRIPT_MIG].units;
	else if (strcmp(end, "r") == 0)
		*ret *= shapes[SCRIPT_REP].units;
	else if (*end != '\0')
		return false;
	return true;
}

/* GPUs as units, unless the word says slices or replicas. */
static bool
script_amount_after(const char *word, const char *prefix, int64_t *ret)
{
	if (!script_number_after(word, prefix, ret))
		return false;
	if (word[strlen(word) - 1] != 'm' && word[strlen(word) - 1] != 'r')
		*ret *= UNITS_PER_GPU;
	return true;
}

static int32_t
tenant_named(struct script *s, const char *name)
{
	for (size_t i = 0; i < s->tenant_count; i++)
		if (strcmp(s->tenants[i].name, name) == 0)
			return (int32_t)i;
	s->tenants[s->tenant_count] = (struct quota_tenant){
		.name = name,
		.per_workload_units = QUOTA_UNLIMITED,
		.other_limit = {QUOTA_UNLIMITED, QUOTA_UNLIMITED, QUOTA_UNLIMITED},
	};
	return (int32_t)s->tenant_count++;
}

static int32_t
script_find_workspace(struct script *s, const char *name)
{
	for (size_t i = 0; i < s->workspace_count; i++)
		if (strcmp(s->workspaces[i].name, name) == 0)
			return (int32_t)i;
	s->unknown = name;
	return 0;
}

static int32_t
script_find_node(struct script *s, const char *name)
{
	for (size_t i = 0; i < s->node_count; i++)
		if (strcmp(s->nodes[i].name, name) == 0)
			return (int32_t)i;
	s->unknown = name;
	return 0;
}

/* ---- the state --------------------------------------------------------------------------------------------------------------- */

static void
script_set(struct script *s)
{
	for (size_t i = 1; i < s->word_count; i++) {
		const char *w = s->words[i];
		int64_t v;

		if (script_number_after(w, "grace=", &v))
			s->settings.grace_ns = v * SECOND;
		else if (script_number_after(w, "aging=", &v))
			s->settings.aging_ns = v * SECOND;
		else if (script_number_after(w, "head=", &v))
			s->settings.head_wait_ns = v * SECOND;
		else if (script_number_after(w, "backoff=", &v))
			s->settings.backoff_ns = v * SECOND;
		else if (script_number_after(w, "forget=", &v))
			s->settings.backoff_forget_ns = v * SECOND;
		else if (script_number_after(w, "confirm=", &v))
			s->settings.confirm_ns = v * SECOND;
		else if (script_number_after(w, "silence=", &v))
			s->settings.silence_ns = v * SECOND;
		else if (script_number_after(w, "unused=", &v))
			s->settings.unused_most_ns = v * SECOND;
		else if (script_amount_after(w, "cluster=", &v))
			s->caps[s->cap_count++] =
				(struct quota_cap){.tenant = QUOTA_NONE, .maximum = v, .default_limit = QUOTA_DEFAULT};
		else
			s->unknown = w;
	}
}

static void
script_tenant(struct script *s)
{
	int32_t at = tenant_named(s, s->words[1]);
	struct quota_tenant *t = &s->tenants[at];
	struct quota_cap cap = {.tenant = at, .maximum = QUOTA_UNLIMITED, .default_limit = QUOTA_DEFAULT};

	for (size_t i = 2; i < s->word_count; i++) {
		const char *w = s->words[i];

		if (strcmp(w, "iso=node") == 0)
			t->isolation = QUOTA_BY_NODE;
		else if (strcmp(w, "iso=gpu") == 0)
			t->isolation = QUOTA_BY_GPU;
		else if (strcmp(w, "iso=mig") == 0)
			t->isolation = QUOTA_BY_MIG;
		else if (!script_amount_after(w, "max=", &cap.maximum) &&
		         !script_amount_after(w, "default=", &cap.default_limit) &&
		         !script_amount_after(w, "guard=", &t->per_workload_units) &&
		         !script_number_after(w, "cpu=", &t->other_limit[QUOTA_CPU]))
			s->unknown = w;
	}
	s->caps[s->cap_count++] = cap;
}

static bool
workspace_word(struct quota_workspace *w, const char *word)
{
	if (strcmp(word, "lower") == 0)
		w->reclaim = QUOTA_RECLAIM_LOWER;
	else if (strcmp(word, "never") == 0)
		w->reclaim = QUOTA_RECLAIM_NEVER;
	else if (strcmp(word, "noown") == 0)
		w->preempt_own = false;
	else if (strcmp(word, "off") == 0)
		w->enforce = QUOTA_ENFORCE_OFF;
	else if (strcmp(word, "warn") == 0)
		w->enforce = QUOTA_ENFORCE_WARN;
	else
		return script_number_after(word, "W", &w->weight) ||
		       script_amount_after(word, "guard=", &w->per_workload_units) ||
		       script_number_after(word, "cpu=", &w->other_limit[QUOTA_CPU]);
	return true;
}

/* A workspace that is there already gets other numbers. */
static void
script_workspace(struct script *s, size_t from)
{
	const char *name = s->words[from];
	size_t at = s->workspace_count;
	struct quota_share own = {
		.reserved_shape = QUOTA_NONE, .limit = QUOTA_DEFAULT, .borrow = QUOTA_DEFAULT, .lend = QUOTA_DEFAULT};
	struct quota_share shared;
	struct quota_workspace w = {.name = name,
	                            .preempt_own = true,
	                            .weight = 1,
	                            .per_workload_units = QUOTA_UNLIMITED,
	                            .other_limit = {QUOTA_UNLIMITED, QUOTA_UNLIMITED, QUOTA_UNLIMITED}};
	const char *tenant = "t";

	for (size_t i = 0; i < s->workspace_count; i++)
		if (strcmp(s->workspaces[i].name, name) == 0)
			at = i;
	own.workspace = (int32_t)at;
	shared = own;
	shared.shared = true;
	for (size_t i = from + 1; i < s->word_count; i++) {
		const char *word = s->words[i];

		if (strncmp(word, "of=", 3) == 0)
			tenant = word + 3;
		else if (script_amount_after(word, "R", &own.reserved))
			own.reserved_shape = word[strlen(word) - 1] == 'm' ? SCRIPT_MIG : QUOTA_NONE;
		else if (script_amount_after(word, "M", &own.limit))
			shared.limit = own.limit;
		else if (script_amount_after(word, "B", &own.borrow))
			shared.borrow = own.borrow;
		else if (!script_amount_after(word, "S", &shared.reserved) &&
		         !script_amount_after(word, "L", &own.lend) && !workspace_word(&w, word))
			s->unknown = word;
	}
	w.tenant = at < s->workspace_count ? s->workspaces[at].tenant : tenant_named(s, tenant);
	s->workspaces[at] = w;
	s->shares[2 * at] = own;
	s->shares[2 * at + 1] = shared;
	if (at == s->workspace_count) {
		s->workspace_count++;
		s->share_count += 2;
	}
}

static void
script_node(struct script *s)
{
	size_t at = s->node_count++;
	struct quota_node *n = &s->nodes[at];
	const char *tenant = "t";
	bool whole = strcmp(s->words[0], "node") == 0, shared = false;
	int64_t count = 0;

	*n = (struct quota_node){.name = s->words[1], .gpus = s->gpus[at]};
	(void)script_number_after(s->words[2], "", &count);
	for (size_t i = 3; i < s->word_count; i++) {
		if (strcmp(s->words[i], "shared") == 0)
			shared = true;
		else if (strcmp(s->words[i], "down") == 0)
			n->lost = true;
		else if (strncmp(s->words[i], "of=", 3) == 0)
			tenant = s->words[i] + 3;
		else
			s->unknown = s->words[i];
	}
	n->tenant = shared ? QUOTA_NONE : tenant_named(s, tenant);
	n->gpu_count = whole && count < MOST ? (size_t)count : 1;
	for (size_t d = 0; d < n->gpu_count; d++) {
		s->slots[at][d] =
			(struct quota_slots){.shape = SCRIPT_WHOLE, .count = count < MOST ? 1 : (int32_t)count};
		if (!whole)
			s->slots[at][d] =
				(struct quota_slots){.shape = strcmp(s->words[0], "mig") == 0 ? SCRIPT_MIG : SCRIPT_REP,
			                             .count = (int32_t)count};
		s->gpus[at][d] = (struct quota_gpu){.slots = &s->slots[at][d], .slot_count = 1};
	}
}

static void
script_lease(struct script *s)
{
	struct quota_lease *l = &s->leases[s->lease_count];
	int64_t v = 0;

	*l = (struct quota_lease){.id = s->words[1],
	                          .workspace = script_find_workspace(s, s->words[2]),
	                          .node = QUOTA_NONE,
	                          .preemptible = true,
	                          .since_ns = (int64_t)s->lease_count - MOST};
	(void)script_number_after(s->words[3], "", &v);
	l->count = (int32_t)v;
	for (size_t i = 4; i < s->word_count; i++) {
		const char *w = s->words[i];

		if (strcmp(w, "fixed") == 0)
			l->preemptible = false;
		else if (strcmp(w, "draining") == 0)
			l->order = QUOTA_DRAINING;
		else if (strcmp(w, "confirmed") == 0)
			l->state = QUOTA_CONFIRMED;
		else if (strcmp(w, "mig") == 0)
			l->shape = SCRIPT_MIG;
		else if (strcmp(w, "rep") == 0)
			l->shape = SCRIPT_REP;
		else if (w[0] == '@')
			l->node = script_find_node(s, w + 1);
		else if (script_number_after(w, "p", &v))
			l->priority = (int32_t)v;
		else
			s->unknown = w;
	}
	s->lease_count++;
}

static void
script_budget(struct script *s)
{
	struct quota_budget *b = &s->budgets[s->budget_count++];

	*b = (struct quota_budget){.workspace = script_find_workspace(s, s->words[1])};
	b->tenant = s->workspaces[b->workspace].tenant;
	(void)script_amount_after(s->words[2], "", &b->amount);
	for (size_t i = 3; i < s->word_count; i++) {
		if (strcmp(s->words[i], "hard") == 0)
			b->hard = true;
		else if (strcmp(s->words[i], "soft") != 0 && !script_amount_after(s->words[i], "used=", &b->consumed))
			s->unknown = s->words[i];
	}
}

static struct quota_policy
script_policy_of(const struct script *s)
{
	return (struct quota_policy){.settings = s->settings,
	                             .clusters = clusters,
	                             .cluster_count = 1,
	                             .models = models,
	                             .model_count = 1,
	                             .shapes = shapes,
	                             .shape_count = ARRAY_LEN(shapes),
	                             .tenants = s->tenants,
	                             .tenant_count = s->tenant_count,
	                             .workspaces = s->workspaces,
	                             .workspace_count = s->workspace_count,
	                             .shares = s->shares,
	                             .share_count = s->share_count,
	                             .caps = s->caps,
	                             .cap_count = s->cap_count,
	                             .budgets = s->budgets,
	                             .budget_count = s->budget_count};
}

/* ---- answers ----------------------------------------------------------------------------------------------------------------- */

static void
say(struct script *s, const char *text)
{
	buf_printf(s->answers, "%s%s", s->answers->len > 0 ? "; " : "", text);
}

static void
say_units(struct buf *out, int64_t units)
{
	if (units % UNITS_PER_GPU == 0)
		buf_printf(out, " %" PRId64, units / UNITS_PER_GPU);
	else
		buf_printf(out, " %" PRId64 "u", units);
}

static void
say_verdict(struct script *s, const struct quota_verdict *v)
{
	say(s, v->id);
	buf_printf(s->answers, " %s", quota_decision_name(v->decision));
	if (v->decision == QUOTA_BORROW || (v->decision == QUOTA_RECLAIM && v->borrowed_units > 0))
		say_units(s->answers, v->borrowed_units);
	for (size_t i = 0; i < v->victim_count; i++)
		buf_printf(s->answers, "%s%s", i == 0 ? " " : ",", v->victims[i].id);
	if (v->would != v->decision)
		buf_printf(s->answers, " would %s", quota_decision_name(v->would));
	if (v->warn)
		buf_str(s->answers, " warn");
}

static void
say_notice(struct script *s, const struct quota_notice *n)
{
	static const char *const words[] = {"order",   "cancel order", "overdue", "dropped",   "returned",
	                                    "expired", "suspect",      "expired", "cancelled", "began",
	                                    "ended",   "refused",      "adopted", "fenced",    "unfenced"};

	say(s, words[n->kind]);
	buf_printf(s->answers, " %s", n->id);
	if (n->kind == QUOTA_ORDER_MADE)
		buf_printf(s->answers, " for %s", n->for_id);
	if (n->kind == QUOTA_REFUSED)
		buf_printf(s->answers, " %s", n->for_id);
}

static bool
step(struct script *s, const struct quota_event *e)
{
	owned(quota_outcome) struct quota_outcome *o = NULL;

	if (!s->state) {
		const struct quota_world world = {.policy = script_policy_of(s),
		                                  .nodes = s->nodes,
		                                  .node_count = s->node_count,
		                                  .leases = s->leases,
		                                  .lease_count = s->lease_count};

		if (!quota_load(&world, &s->state, s->err))
			return false;
	}
	if (!quota_step(s->state, s->now_ns, e, &o, s->err))
		return false;
	for (size_t i = 0; i < o->verdict_count; i++)
		say_verdict(s, &o->verdicts[i]);
	for (size_t i = 0; i < o->notice_count; i++)
		say_notice(s, &o->notices[i]);
	return true;
}

/* ---- events ------------------------------------------------------------------------------------------------------------------ */

/* "ask r a 3 p1 , r2 b 4": the words between commas are a request each. */
static bool
ask_words(struct script *s)
{
	struct quota_request list[MOST] = {{0}};
	size_t count = 0, from = 1;

	while (from < s->word_count) {
		struct quota_request *r = &list[count++];
		int64_t v = 0;
		size_t i;

		if (from + 2 >= s->word_count)
			return err_set(s->err, ERR_INVALID, "ask: id, workspace and count are expected");
		*r = (struct quota_request){.id = s->words[from],
		                            .workspace = script_find_workspace(s, s->words[from + 1]),
		                            .klass = QUOTA_NONE,
		                            .preemptible = true,
		                            .submitted_ns = s->now_ns};
		(void)script_number_after(s->words[from + 2], "", &v);
		r->count = (int32_t)v;
		for (i = from + 3; i < s->word_count && strcmp(s->words[i], ",") != 0; i++) {
			const char *w = s->words[i];

			if (strcmp(w, "fixed") == 0)
				r->preemptible = false;
			else if (strcmp(w, "mig") == 0)
				r->shape = SCRIPT_MIG;
			else if (strcmp(w, "rep") == 0)
				r->shape = SCRIPT_REP;
			else if (strcmp(w, "unknown") == 0)
				r->shape = QUOTA_NONE;
			else if (script_number_after(w, "p", &v))
				r->priority = (int32_t)v;
			else if (script_number_after(w, "k", &v))
				r->per_node = (int32_t)v;
			else if (strncmp(w, "why=", 4) == 0)
				r->reason = w + 4;
			else if (script_number_after(w, "since=", &v))
				r->submitted_ns = v * SECOND;
			else if (script_number_after(w, "until=", &v))
				r->expires_ns = v * SECOND;
			else if (!script_number_after(w, "for=", &r->expected_s) &&
			         !script_number_after(w, "cpu=", &r->other[QUOTA_CPU]))
				s->unknown = w;
		}
		from = i + 1;
	}
	return step(s, &(struct quota_event){.kind = QUOTA_SUBMIT, .requests = list, .request_count = count});
}

/* "@n" is one device of the node, "@n:2" one of its GPU 2. */
static bool
adopt_part(struct script *s, char *word, struct quota_part *ret)
{
	char *colon = strchr(word, ':');
	int64_t gpu = QUOTA_NONE;

	if (word[0] != '@')
		return false;
	if (colon) {
		*colon = '\0';
		if (!script_number_after(colon + 1, "", &gpu))
			return false;
	}
	*ret = (struct quota_part){.node = script_find_node(s, word + 1), .gpu = (int32_t)gpu, .count = 1};
	return true;
}

static bool
adopt_words(struct script *s)
{
	struct quota_part parts[MOST];
	struct quota_lease l = {
		.id = s->words[1], .node = QUOTA_NONE, .parts = parts, .preemptible = true, .since_ns = s->now_ns};
	int64_t v = 0;

	if (s->word_count < 4)
		return err_set(s->err, ERR_INVALID, "adopt: id, workspace and count are expected");
	l.workspace = script_find_workspace(s, s->words[2]);
	(void)script_number_after(s->words[3], "", &v);
	l.count = (int32_t)v;
	for (size_t i = 4; i < s->word_count; i++) {
		const char *w = s->words[i];

		if (strcmp(w, "fixed") == 0)
			l.preemptible = false;
		else if (strcmp(w, "mig") == 0)
			l.shape = SCRIPT_MIG;
		else if (strcmp(w, "rep") == 0)
			l.shape = SCRIPT_REP;
		else if (script_number_after(w, "p", &v))
			l.priority = (int32_t)v;
		else if (script_number_after(w, "since=", &v))
			l.since_ns = v * SECOND;
		else if (adopt_part(s, s->words[i], &parts[l.part_count]))
			l.part_count++;
		else if (!script_number_after(w, "cpu=", &l.other[QUOTA_CPU]))
			s->unknown = w;
	}
	for (size_t i = 0; i < l.part_count; i++)
		parts[i].shape = l.shape;
	return step(s, &(struct quota_event){.kind = QUOTA_ADOPT, .adopted = &l});
}

static bool
unfence_words(struct script *s)
{
	struct quota_part parts[MOST];
	struct quota_event e = {.kind = QUOTA_UNFENCE, .id = s->words[1], .parts = parts};

	for (size_t i = 2; i < s->word_count; i++)
		if (!adopt_part(s, s->words[i], &parts[e.part_count++]))
			s->unknown = s->words[i];
	return step(s, &e);
}

static bool
cut_words(struct script *s)
{
	int64_t gpu = 0, count = 0;
	struct quota_slots slots;

	(void)script_number_after(s->words[2], "", &gpu);
	(void)script_number_after(s->words[3], "", &count);
	slots = (struct quota_slots){.shape = count > 0 ? SCRIPT_MIG : SCRIPT_WHOLE,
	                             .count = count > 0 ? (int32_t)count : 1};
	return step(s, &(struct quota_event){.kind = QUOTA_LAYOUT,
	                                     .node = script_find_node(s, s->words[1]),
	                                     .gpu = (int32_t)gpu,
	                                     .slots = &slots,
	                                     .slot_count = 1});
}

static bool
except_words(struct script *s)
{
	struct quota_exception x = {.id = s->words[1],
	                            .workspace = script_find_workspace(s, s->words[2]),
	                            .from_ns = s->now_ns};
	int64_t amount = 0, span = 60;

	(void)script_amount_after(s->words[3], "", &amount);
	if (s->word_count > 4)
		(void)script_number_after(s->words[4], "for=", &span);
	if (strcmp(s->words[0], "reserve") == 0)
		x.extra_reserved = amount;
	else
		x.extra_limit = amount;
	x.until_ns = s->now_ns + span * SECOND;
	return step(s, &(struct quota_event){.kind = QUOTA_EXCEPTION, .exception = &x});
}

static const struct {
	const char *word;
	enum quota_event_kind kind;
} simple[] = {
	{"finish", QUOTA_FINISH},        {"release", QUOTA_RELEASE},  {"empty", QUOTA_EMPTY},
	{"drain", QUOTA_DRAIN},          {"enforce", QUOTA_ENFORCE},  {"confirm", QUOTA_CONFIRM},
	{"beat", QUOTA_HEARTBEAT},       {"cancel", QUOTA_CANCEL},    {"lost", QUOTA_NODE_LOST},
	{"back", QUOTA_NODE_BACK},       {"gpulost", QUOTA_GPU_LOST}, {"gpuback", QUOTA_GPU_BACK},
	{"revoke", QUOTA_EXCEPTION_END}, {"renew", QUOTA_RENEW},
};

static bool
simple_words(struct script *s)
{
	for (size_t i = 0; i < ARRAY_LEN(simple); i++) {
		struct quota_event e = {.kind = simple[i].kind};
		int64_t gpu = 0;

		if (strcmp(s->words[0], simple[i].word) != 0)
			continue;
		e.id = s->words[1];
		if (e.kind >= QUOTA_NODE_LOST && e.kind <= QUOTA_GPU_BACK)
			e.node = script_find_node(s, s->words[1]);
		if (s->word_count > 2)
			(void)script_number_after(s->words[2], "", &gpu);
		e.gpu = (int32_t)gpu;
		return step(s, &e);
	}
	s->unknown = s->words[0];
	return true;
}

static bool
event_words(struct script *s)
{
	int64_t seconds = 0;

	if (strcmp(s->words[0], "ask") == 0)
		return ask_words(s);
	if (strcmp(s->words[0], "adopt") == 0)
		return adopt_words(s);
	if (strcmp(s->words[0], "adoption") == 0)
		return step(s, &(struct quota_event){.kind = QUOTA_ADOPTION,
		                                     .complete = strcmp(s->words[1], "complete") == 0});
	if (strcmp(s->words[0], "lose") == 0)
		return step(s, &(struct quota_event){.kind = QUOTA_RELEASE, .id = s->words[1], .lost = true});
	if (strcmp(s->words[0], "unfence") == 0)
		return unfence_words(s);
	if (strcmp(s->words[0], "cut") == 0)
		return cut_words(s);
	if (strcmp(s->words[0], "except") == 0 || strcmp(s->words[0], "reserve") == 0)
		return except_words(s);
	if (strcmp(s->words[0], "tick") == 0) {
		(void)script_number_after(s->words[1], "", &seconds);
		s->now_ns += seconds * SECOND;
		return step(s, &(struct quota_event){.kind = QUOTA_TICK});
	}
	if (strcmp(s->words[0], "clock") == 0) {
		struct quota_event e = {.kind = QUOTA_CLOCK, .until_ns = s->now_ns};

		(void)script_number_after(s->words[1], "", &seconds);
		s->now_ns += seconds * SECOND;
		e.skipped_ns = quota_skipped(s->state) + seconds * SECOND;
		return step(s, &e);
	}
	if (strcmp(s->words[0], "policy") == 0) {
		struct quota_policy policy;

		script_workspace(s, 2);
		policy = script_policy_of(s);
		return step(s, &(struct quota_event){.kind = QUOTA_POLICY, .policy = &policy});
	}
	return simple_words(s);
}

static bool
statement(struct script *s)
{
	const char *first = s->words[0];

	if (strcmp(first, "set") == 0)
		script_set(s);
	else if (s->word_count < 2)
		s->unknown = first;
	else if (strcmp(first, "tenant") == 0)
		script_tenant(s);
	else if (strcmp(first, "ws") == 0)
		script_workspace(s, 1);
	else if (strcmp(first, "node") == 0 || strcmp(first, "mig") == 0 || strcmp(first, "rep") == 0)
		script_node(s);
	else if (strcmp(first, "lease") == 0)
		script_lease(s);
	else if (strcmp(first, "budget") == 0)
		script_budget(s);
	else if (!event_words(s))
		return false;
	if (s->unknown)
		return err_set(s->err, ERR_INVALID, "what is \"%s\" in a statement that begins with \"%s\"?",
		               s->unknown, first);
	return true;
}

/* A comma ends a word and is one. */
static void
add_word(struct script *s, char *word)
{
	static char comma[] = ",";
	size_t len = strlen(word);

	s->words[s->word_count++] = word;
	if (word[len - 1] == ',' && len > 1 && s->word_count < MOST) {
		word[len - 1] = '\0';
		s->words[s->word_count++] = comma;
	}
}

bool
quotascript_run(const char *script, struct buf *answers, struct quota_state **ret_state, struct err *err)
{
	owned(mem) struct script *s = mem_alloc(sizeof(*s));
	owned(mem) char *text = mem_strdup(script);
	char *rest = text;
	bool ok = true;

	s->settings = (struct quota_settings){.burst = 2};
	s->answers = answers;
	s->err = err;
	for (char *line = strsep(&rest, ";"); line && ok; line = strsep(&rest, ";")) {
		char *word;

		s->word_count = 0;
		while ((word = strsep(&line, " \n\t")) && s->word_count < MOST)
			if (*word)
				add_word(s, word);
		if (s->word_count > 0)
			ok = statement(s);
	}
	if (ok && ret_state)
		*ret_state = take(s->state);
	quota_free(s->state);
	return ok;
}

/* ---- tables of scripts -------------------------------------------------------------------------------------------------------- */

void
quotascript_check(const struct quotascript_row *rows, size_t count)
{
	size_t wrong = 0;

	for (size_t i = 0; i < count; i++) {
		struct buf answers;
		struct err err;

		buf_init(&answers, 1 << 16);
		if (!quotascript_run(rows[i].script, &answers, NULL, &err)) {
			print_error("%s: %s\n", rows[i].name, err.text);
			wrong++;
		} else if (strcmp(buf_text(&answers), rows[i].answers) != 0) {
			print_error("%s:\n  got      %s\n  expected %s\n", rows[i].name, buf_text(&answers),
			            rows[i].answers);
			wrong++;
		}
		buf_fini(&answers);
	}
	assert_int_equal(wrong, 0);
}
