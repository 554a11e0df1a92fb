/* aggregator/store/billing/refund_store.h - hours of jobs that ended by a failed GPU or node, and what was charged for them (core/rating/refund.h).
 *
 * Without a word of SQL or libpq: api/ includes this. */
#ifndef TOLLGATE_REFUND_STORE_H
#define TOLLGATE_REFUND_STORE_H

#include "aggregator/store/store.h"

struct refund_query {
	const char *period, *tenant; /* tenant NULL: all */
	bool csv;
};
/* {"period","refunds":[{every column}]}, or a table. ERR_MISSING: the ledger has nothing of the period. */
MUST_CHECK bool store_refunds(struct db *db, const struct refund_query *q, struct buf *out, struct err *err);

#endif
