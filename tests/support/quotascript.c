/* tests/support/quotascript.c - what happens to the state of a script, and the answers in a few words. */
#include "tests/support/quotascript_state.h"

#include <string.h>

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
	static const char *const words[] = {"order",   "cancel order", "overdue",   "dropped", "returned", "expired",
	                                    "suspect", "expired",      "cancelled", "began",   "ended",    "refused"};

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
	{"revoke", QUOTA_EXCEPTION_END},
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
