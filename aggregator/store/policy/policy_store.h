/* aggregator/store/policy/policy_store.h - applying and reading the policy, attribution after a change of rules, and plain lists. */
#ifndef TOLLGATE_POLICY_STORE_H
#define TOLLGATE_POLICY_STORE_H

#include "aggregator/store/store.h"

struct policy_outcome {
	size_t changes;
	int64_t effective_ns;
	int64_t version;    /* 0 for a dry run or when nothing changed */
	bool reattributing; /* holders are still being attributed again: store_reattribution_json */
	/* The first closed month that it reaches into: what it changes of it becomes corrections. "": none. */
	char corrects_from[8];
};
struct policy_request {
	const char *name; /* of the document, for errors */
	const char *text;
	size_t len;
	const char *actor;
	const char *tenant; /* NULL: the whole policy, by an operator; else this tenant's part, by its administrator */
	int64_t now_ns;
	bool dry_run;
};
/* All or nothing. The differences are written to ret_diff, for people. */
MUST_CHECK bool store_policy_apply(struct db *db, const struct policy_request *rq, struct policy_outcome *ret,
                                   struct buf *ret_diff, struct err *err);
/* After a change of rules, holders that are there are attributed again in the background (policy/attribution_store.c): some steps of it, each a
 * short transaction, in any replica. ret_done: fewer than steps, and there is nothing left to do here. */
MUST_CHECK bool store_reattribute(struct db *db, int steps, int *ret_done, struct err *err);
/* {"running","effective","started","finished","holders","holders_done","changed","hours_dirty"} of the last change of rules. */
MUST_CHECK bool store_reattribution_json(struct db *db, struct buf *out, struct err *err);
/* A draft of a policy from what was held in the range (core/policy/suggest.h), cut to where a rule may still change something: not before the
 * policy in force, and not in a closed period. */
MUST_CHECK bool store_policy_suggest(struct db *db, int64_t from_ns, int64_t to_ns, struct buf *out, struct err *err);
/* The document as it was applied, with what tenants' administrators changed in it; or one tenant's part of it. ERR_MISSING
 * when there is none yet. */
MUST_CHECK bool store_policy_get(struct db *db, const char *tenant, struct buf *ret_text, struct err *err);
/* The id of the policy that was applied last; 0: none was applied yet. */
MUST_CHECK bool store_policy_version(struct db *db, int64_t *ret, struct err *err);
/* Attribution rules that one thread caches between two calls of store_workload_workspace() (quota/decision.h); NULL at first. */
struct rules_kept;
void rules_kept_free(struct rules_kept *k);

/* Lists for `tollgate get`: JSON arrays of objects. what: tenants, workspaces, nodes, periods. */
MUST_CHECK bool store_list_json(struct db *db, const char *what, const char *tenant, struct buf *out, struct err *err);
/* ERR_MISSING: no policy ever had a tenant of that name. */
MUST_CHECK bool store_tenant_known(struct db *db, const char *name, struct err *err);

#endif
