/* aggregator/store/quota/quota_gauges.h - what the ledger has of quota for the daemon's gauges. */
#ifndef TOLLGATE_QUOTA_GAUGES_H
#define TOLLGATE_QUOTA_GAUGES_H

#include "aggregator/store/store.h"

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
