/* tests/support/quotascript_state.h - what a script has said of the state so far. For the two files of quotascript.h. */
#ifndef TOLLGATE_TESTS_QUOTASCRIPT_STATE_H
#define TOLLGATE_TESTS_QUOTASCRIPT_STATE_H

#include "tests/support/quotascript.h"

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
	const char *unknown; /* a word nobody knew */
};

/* The number behind a prefix; false when the word has another one. An amount is in GPUs unless the word says otherwise. */
bool script_number_after(const char *word, const char *prefix, int64_t *ret);
bool script_amount_after(const char *word, const char *prefix, int64_t *ret);

/* What nobody knows is remembered in `unknown`. */
int32_t script_find_workspace(struct script *s, const char *name);
int32_t script_find_node(struct script *s, const char *name);

/* A statement each. */
void script_set(struct script *s);
void script_tenant(struct script *s);
void script_workspace(struct script *s, size_t from);
void script_node(struct script *s);
void script_lease(struct script *s);
void script_budget(struct script *s);
struct quota_policy script_policy_of(const struct script *s);

#endif
