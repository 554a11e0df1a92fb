/* aggregator/service/gauges_page.h - one reading of the ledger for /metrics, made and freed by gauges.c. */
#ifndef TOLLGATE_GAUGES_PAGE_H
#define TOLLGATE_GAUGES_PAGE_H

#include "aggregator/service/gauges.h"

struct gauge_key {
	const char *cluster, *tenant, *workspace, *what, *kind; /* never NULL */
	bool rest;
};
/* The row of a key, made where it is new; the rest's when there are as many as there may be. */
struct gauge_row *gauge_row(struct gauge_rows *r, const struct gauge_key *k);
void gauge_rows_fini(struct gauge_rows *r);

MUST_CHECK bool gauges_page_read(struct db *db, size_t rows_max, struct gauges_page **ret, struct err *err);
void gauges_page_free(struct gauges_page *p);
DEFINE_OWNED(gauges_page, struct gauges_page)

#endif
