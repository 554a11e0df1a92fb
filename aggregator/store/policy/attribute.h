/* aggregator/store/policy/attribute.h - holders and the rules of core/attribution, over time. Who writes holds DB_LOCK_POLICY. */
#ifndef TOLLGATE_ATTRIBUTE_H
#define TOLLGATE_ATTRIBUTE_H

#include "aggregator/core/policy/attribution.h"
#include "aggregator/store/db/db.h"

/* Enters holder_attribution for holders that have just been made: for all of time, as the rules were and will be. */
MUST_CHECK bool attribute_new(struct db *db, const char *cluster, const struct wire_holder *const *holders,
                              const int64_t *ids, size_t n, struct err *err);

/* A page of holders after a change of rules: what the rules say of them from then on is entered where it is something else. */
struct attribute_page {
	int64_t last_id;          /* of the page */
	int64_t holders, changed; /* 0 holders: there are no more */
};
MUST_CHECK bool attribute_page(struct db *db, int64_t effective_ns, int64_t after_id, int limit,
                               struct attribute_page *ret, struct err *err);

/* The rules as they were last read, so that they are not read for each workload: true of one database of one server, under one version of the policy. Of
 * one thread. */
struct rules_kept; /* rules_kept_free() is in store.h */

/* The workspace, "acme/prod", to which the rules in force at an instant give a workload; cluster NULL: the ledger's own. NULL: none does. From mem_*.
 * *kept is NULL or from the call before. */
MUST_CHECK bool attribute_workload(struct db *db, struct rules_kept **kept, int64_t at_ns, const char *cluster,
                                   const struct wire_holder *holder, char **ret, struct err *err);

/* Beside a change of rules, in its transaction: from then on holders are due to be attributed again (reattribute.c). */
MUST_CHECK bool reattribute_begin(struct db *db, int64_t effective_ns, struct err *err);
/* ERR_RETRY while that is under way. */
MUST_CHECK bool reattribute_settled(struct db *db, struct err *err);

#endif
