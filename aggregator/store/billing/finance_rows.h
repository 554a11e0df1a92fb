/* aggregator/store/billing/finance_rows.h - the one-off charges and credits of a tenant's month, for its report. */
#ifndef TOLLGATE_FINANCE_ROWS_H
#define TOLLGATE_FINANCE_ROWS_H

#include "aggregator/store/db/db.h"
#include "aggregator/store/billing/finance.h"

MUST_CHECK bool adjustment_rows(struct db *db, const char *period, int64_t tenant_id, PGresult **ret, struct err *err);
/* A row of it as rating takes it; its texts are the result's, and whose tenant it is the caller writes. */
MUST_CHECK bool adjustment_day(const PGresult *r, int row, struct usage_day *ret, struct err *err);

#endif
