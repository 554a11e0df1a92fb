/* aggregator/core/policy/suggest_plan.h - between suggest_plan.c (who claims what) and suggest.c (the text). */
#ifndef TOLLGATE_SUGGEST_PLAN_H
#define TOLLGATE_SUGGEST_PLAN_H

#include "aggregator/core/policy/suggest.h"

enum claim_field { CLAIM_NAMESPACE, CLAIM_ACCOUNT, CLAIM_GROUP, CLAIM_USER };
#define CLAIM_NAME 64 /* of a tenant or workspace, with its end */

/* A rule to be, and whose it makes what it matches. */
struct claim {
	enum claim_field field;
	char *pattern;
	char *labels; /* "team=ml"; NULL: none */
	int64_t priority;
	char tenant[CLAIM_NAME], workspace[CLAIM_NAME];
	int128 unit_ns;
	bool taken;
};
/* in_place(plan) struct plan p = {0}; */
struct plan {
	struct claim *at; /* those taken first, by tenant and workspace; then the others, largest first */
	size_t count, taken;
	int128 total, before, covered; /* unit_ns: of all, by the rules in force, and with what was taken */
};
void plan_fini(struct plan *p);
/* current: the policy in force; NULL: there is none. */
void plan_make(const struct suggest_input *in, const struct policy *current, struct plan *p);

/* A tenant of the policy in force; NULL: it has none of that name. */
const struct policy_tenant *plan_tenant(const struct policy *current, const char *name);

#endif
