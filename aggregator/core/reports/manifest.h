/* aggregator/core/reports/manifest.h - the manifest of a document, for its receiver: rows, sums per currency, SHA-256. Pure. */
#ifndef TOLLGATE_MANIFEST_H
#define TOLLGATE_MANIFEST_H

#include "aggregator/core/rating/rating.h"
#include "common/base/digest.h"

#define MANIFEST_CURRENCIES 16 /* in one document */

struct manifest {
	int64_t lines;           /* of the chargeback, shown in the document or not */
	int64_t rows;            /* of the document: lines, days of lines, or pages */
	int32_t invoice_version; /* the highest of its invoices */
	struct manifest_total {
		char currency[8];
		int scale;
		int128 list_cost, discount, rounding; /* scale COST_SCALE */
		int128 billed;                        /* scale of the currency */
	} totals[MANIFEST_CURRENCIES];
	size_t total_count;
};

/* Adds lines that were written as so many rows. ERR_INVALID: more currencies than a document may have. */
MUST_CHECK bool manifest_add(struct manifest *m, const struct rating_input *in, const struct rated *r, int64_t rows,
                             struct err *err);

struct manifest_document {
	const char *name;   /* of the file */
	const char *period; /* "2026-11" */
	const char *period_status;
	const char *tenant; /* NULL: all */
	int64_t bytes;
	uint8_t sha256[SHA256_SIZE];
};
/* {"document","period","period_status","tenant","invoice_version","chargeback_lines","rows","bytes","sha256","sums":[{"currency","list_cost",
 * "discount","rounding","billed_cost"}]}; amounts are text. */
void manifest_json(const struct manifest *m, const struct manifest_document *d, struct buf *out);

#endif
