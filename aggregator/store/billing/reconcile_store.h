/* aggregator/store/billing/reconcile_store.h - a month's capacity against what was billed of it (core/reports/reconcile.h).
 *
 * Without a word of SQL or libpq: api/ includes this. */
#ifndef TOLLGATE_RECONCILE_STORE_H
#define TOLLGATE_RECONCILE_STORE_H

#include "aggregator/core/reports/reconcile.h"
#include "aggregator/store/store.h"

/* Lines of a closed month are those that were billed, capacity is what the ledger has now. zone: of the ledger. ERR_MISSING: the ledger
 * has nothing of the period. */
MUST_CHECK bool store_reconcile(struct db *db, const char *period, struct reconciliation **ret, char ret_zone[64],
                                struct err *err);

#endif
