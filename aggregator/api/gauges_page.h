/* aggregator/api/gauges_page.h - one reading of the ledger for /metrics, made and freed by gauges.c. */
#ifndef TOLLGATE_API_GAUGES_PAGE_H
#define TOLLGATE_API_GAUGES_PAGE_H

#include "aggregator/api/gauges.h"

MUST_CHECK bool gauges_page_read(struct db *db, size_t rows_max, struct gauges_page **ret, struct err *err);
void gauges_page_free(struct gauges_page *p);
DEFINE_OWNED(gauges_page, struct gauges_page)

#endif
