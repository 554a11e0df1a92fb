/* tests/support/quotascript_state.c - the statements of a script that describe the state before anything happens. */
#include "tests/support/quotascript_state.h"

#include <stdlib.h>
#include <string.h>

static const char *const clusters[] = {"c"};
static const char *const models[] = {"H100"};
static const struct quota_shape shapes[] = {
	{.model = 0, .kind = QUOTA_WHOLE, .units = 5040, .name = ""},
	{.model = 0, .kind = QUOTA_MIG, .units = 675, .name = "1g.10gb"},
	{.model = 0, .kind = QUOTA_REPLICA, .units = 1260, .name = "1/4"},
};

/* ---- words ------------------------------------------------------------------------------------------------------------------- */

bool
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
bool
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

int32_t
script_find_workspace(struct script *s, const char *name)
{
	for (size_t i = 0; i < s->workspace_count; i++)
		if (strcmp(s->workspaces[i].name, name) == 0)
			return (int32_t)i;
	s->unknown = name;
	return 0;
}

int32_t
script_find_node(struct script *s, const char *name)
{
	for (size_t i = 0; i < s->node_count; i++)
		if (strcmp(s->nodes[i].name, name) == 0)
			return (int32_t)i;
	s->unknown = name;
	return 0;
}

/* ---- the state --------------------------------------------------------------------------------------------------------------- */

void
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
		else if (script_amount_after(w, "cluster=", &v))
			s->caps[s->cap_count++] =
				(struct quota_cap){.tenant = QUOTA_NONE, .maximum = v, .default_limit = QUOTA_DEFAULT};
		else
			s->unknown = w;
	}
}

void
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
void
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

void
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

void
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

void
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

struct quota_policy
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
