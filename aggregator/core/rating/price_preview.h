/* aggregator/core/rating/price_preview.h - the cost of a month with its own price book and with a proposed one. Pure.
 *
 * Both are rated from the same rows, whole invoices, so that the preview equals the report once the book is in force. A
 * tenant has one row for each currency of the two. */
#ifndef TOLLGATE_PRICE_PREVIEW_H
#define TOLLGATE_PRICE_PREVIEW_H

#include "aggregator/core/rating/rating.h"

struct price_preview_row {
	char *tenant;
	char currency[4];
	int scale;        /* of the currency */
	int128 now, then; /* billed */
	size_t unpriced;  /* lines of then without a price */
};
/* in_place(price_preview) struct price_preview p = {0}; */
struct price_preview {
	struct price_preview_row *rows; /* in the order in which they came */
	size_t count, cap;
};
void price_preview_fini(struct price_preview *p);

/* Of one tenant or several, in any order. */
MUST_CHECK bool price_preview_add(struct price_preview *p, const struct rating_input *in, bool then, struct err *err);

/* {"period", "status", "version", "tenants": [{"tenant", "currency", "now", "then", "difference", "unpriced_lines"}], "totals":
 * [{"currency", "now", "then", "difference"}]} */
void price_preview_json(const struct price_preview *p, const struct rating_input *in, const char *version,
                        struct buf *out);

#endif
