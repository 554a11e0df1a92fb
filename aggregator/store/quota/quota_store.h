/* aggregator/store/quota/quota_store.h - what the closed loop of quota reads of the ledger, and keeps in it. */
#ifndef TOLLGATE_QUOTA_STORE_H
#define TOLLGATE_QUOTA_STORE_H

#include "aggregator/core/quota/loop/quota_loop.h"
#include "aggregator/store/store.h"

/* What telemetry shows now. in_place(quota_live) struct quota_live live = {0}; */
struct quota_live {
	struct quota_observed seen;
	struct quota_workload *workloads; /* those that were seen, for who must say their times otherwise */
	void *memory;
};
void quota_live_fini(struct quota_live *live);
/* What of it need not be read again while nodes say the same. What was observed points into it until the next look. */
struct quota_live_kept;
struct quota_live_kept *quota_live_kept_new(void);
void quota_live_kept_free(struct quota_live_kept *k);
DEFINE_OWNED(quota_live_kept, struct quota_live_kept)
/* at_ns: of what is in force, which is the book's time where the database's clock was set back. */
MUST_CHECK bool store_quota_observe(struct db *db, int64_t now_ns, int64_t at_ns, struct quota_live_kept *kept,
                                    struct quota_live *ret, struct err *err);

/* {"policy":{...}}: the policy in force at a time, with these settings, as the quota book reads it. The text of a policy is
 * the same as long as it says the same. */
MUST_CHECK bool store_quota_policy(struct db *db, int64_t now_ns, const struct quota_settings *settings,
                                   struct buf *out, struct err *err);

/* The model that a name stands for (core/quota/engine/quantity.h) among those that the policy in force at a time knows. */
MUST_CHECK bool store_quota_model(struct db *db, int64_t now_ns, const char *name, char ret[QUOTA_NAME_SIZE],
                                  struct err *err);
/* Whether a tenant's own nodes of a cluster have a model, and whether the shared ones have. */
MUST_CHECK bool store_quota_pools(struct db *db, int64_t now_ns, int64_t cluster_id, const char *tenant,
                                  const char *model, bool *ret_own, bool *ret_shared, struct err *err);

/* Anomalies as they are now: new ones and those that ended are audited. Idle leases that are to be remembered. In a transaction. */
MUST_CHECK bool store_quota_anomalies(struct db *db, const struct quota_loop_out *found, int64_t now_ns,
                                      struct err *err);

/* {"anomalies":[...]}, the oldest first; tenant: its own, without who strangers are; NULL: all. */
MUST_CHECK bool store_quota_anomalies_json(struct db *db, const char *tenant, struct buf *out, struct err *err);
/* [{workspace, node, gpus}]: what is held without a lease. */
MUST_CHECK bool store_quota_unleased_json(struct db *db, const char *tenant, struct buf *out, struct err *err);

#endif
