/* aggregator/store/quota/quota_store.h - ledger access of the closed loop of quota: telemetry, policy, anomalies, gauges. */
#ifndef TOLLGATE_QUOTA_STORE_H
#define TOLLGATE_QUOTA_STORE_H

#include "aggregator/core/policy/policy_to_quota.h"
#include "aggregator/core/quota/loop/quota_loop.h"
#include "aggregator/store/store.h"

/* Telemetry as it is now. in_place(quota_live) struct quota_live live = {0}; */
struct quota_live {
	struct quota_observed seen;
	struct quota_workload *workloads; /* observed ones, whose times a caller may correct */
	void *memory;
};
void quota_live_fini(struct quota_live *live);
/* A cache of rows that need not be read again while the reports of nodes do not change. An observation points into it until the next look. */
struct quota_live_kept;
struct quota_live_kept *quota_live_kept_new(void);
void quota_live_kept_free(struct quota_live_kept *k);
DEFINE_OWNED(quota_live_kept, struct quota_live_kept)
/* at_ns: the time whose policy is in force, which is the book's time where the database's clock was set back. */
MUST_CHECK bool store_quota_observe(struct db *db, int64_t now_ns, int64_t at_ns, struct quota_live_kept *kept,
                                    struct quota_live *ret, struct err *err);

/* The policy in force at a time, for policy_to_quota(). in_place(quota_policy_rows) struct quota_policy_rows rows = {0}; */
struct quota_policy_rows {
	struct in_force_policy policy;
	void *memory;
};
void quota_policy_rows_fini(struct quota_policy_rows *rows);
MUST_CHECK bool store_quota_policy(struct db *db, int64_t now_ns, struct quota_policy_rows *ret, struct err *err);

/* The model that a name stands for (core/quota/engine/quantity.h) among those that the policy in force at a time knows. */
MUST_CHECK bool store_quota_model(struct db *db, int64_t now_ns, const char *name, char ret[QUOTA_NAME_SIZE],
                                  struct err *err);
/* Whether a tenant's own nodes of a cluster have a model, and whether the shared ones have. */
MUST_CHECK bool store_quota_pools(struct db *db, int64_t now_ns, int64_t cluster_id, const char *tenant,
                                  const char *model, bool *ret_own, bool *ret_shared, struct err *err);

/* Anomalies as they are now: new ones and those that ended are audited. Idle leases that are to be remembered. In a transaction. */
MUST_CHECK bool store_quota_anomalies(struct db *db, const struct quota_loop_out *found, int64_t now_ns,
                                      struct err *err);

/* {"anomalies":[...]}, the oldest first; tenant: its own, without the identity of foreign holders; NULL: all. */
MUST_CHECK bool store_quota_anomalies_json(struct db *db, const char *tenant, struct buf *out, struct err *err);
/* [{workspace, node, gpus}]: GPUs held without a lease. */
MUST_CHECK bool store_quota_unleased_json(struct db *db, const char *tenant, struct buf *out, struct err *err);

/* ---- gauges ------------------------------------------------------------------------------------------------------------------- */

enum quota_gauge_family { QUOTA_RECLAIMS, QUOTA_EXCEPTIONS, QUOTA_ANOMALIES, QUOTA_UNLEASED, QUOTA_GAUGE_FAMILIES };
struct quota_gauge {
	enum quota_gauge_family family;
	const char *tenant, *workspace; /* "": of nobody, or of the tenant as a whole */
	const char *kind;               /* state, or kind of anomaly */
	int64_t amount;                 /* how many; of unleased GPUs in units */
};
typedef void quota_gauge_row(void *arg, const struct quota_gauge *g);
/* Reclaims that are open by state; exceptions that are asked for, agreed to and not begun, or run; where telemetry and the book differ; and
 * GPUs that are held without a lease. */
MUST_CHECK bool store_quota_gauges(struct db *db, int64_t now_ns, quota_gauge_row *each, void *arg, struct err *err);

#endif
