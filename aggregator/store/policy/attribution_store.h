/* aggregator/store/policy/attribution_store.h - attribution of holders by the rules of core/policy/attribution, over time. Writers hold DB_LOCK_POLICY. */
#ifndef TOLLGATE_ATTRIBUTION_STORE_H
#define TOLLGATE_ATTRIBUTION_STORE_H

#include "aggregator/core/policy/attribution.h"
#include "aggregator/store/db/db.h"
#include "aggregator/store/policy/policy_store.h"

/* Attributes holders that were just inserted: rows of holder_attribution for all of time, by past and future rules. */
MUST_CHECK bool attribute_new(struct db *db, const char *cluster, const struct wire_holder *const *holders,
                              const int64_t *ids, size_t n, struct err *err);

/* Cache of the rules of one policy version, so that they are not read for each workload. It belongs to one thread and one database. */
struct rules_kept; /* rules_kept_free() is in store.h */

/* The workspace, as "acme/prod", that the rules in force at at_ns give a workload; NULL: no rule matches. From mem_*.
 * A NULL cluster is the ledger's own. *kept is NULL or from the call before. */
MUST_CHECK bool attribute_workload(struct db *db, struct rules_kept **kept, int64_t at_ns, const char *cluster,
                                   const struct wire_holder *holder, char **ret, struct err *err);

/* In the transaction of a change of rules: all holders are due to be attributed again from effective_ns on. */
MUST_CHECK bool reattribute_begin(struct db *db, int64_t effective_ns, struct err *err);
/* ERR_RETRY while holders are still due. */
MUST_CHECK bool reattribute_settled(struct db *db, struct err *err);

#endif
