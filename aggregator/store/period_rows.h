/* aggregator/store/period_rows.h - between the files of closed months: period_close.c (the close), period_write.c (a tenant's invoices and
 * documents), period_correct.c (corrections), period_read.c (what was stored, and the proof of it). */
#ifndef TOLLGATE_STORE_PERIOD_ROWS_H
#define TOLLGATE_STORE_PERIOD_ROWS_H

#include "aggregator/store/db.h"
#include "aggregator/store/period.h"
#include "aggregator/store/report_rows.h"
#include "common/digest.h"
#include "common/spill.h"

#define DB_LOCK_CLOSE DB_LOCK_CLASS ", 8"

/* --- documents --- */

/* Those that are kept. */
enum kept_format { KEPT_CSV, KEPT_JSON, KEPT_FORMATS };
extern const char *const kept_names[KEPT_FORMATS];
/* What they were made from, kept beside them (core/rating_file.h): charge rows per tenant, price books of the month. */
#define SOURCE_ROWS "source.rows"
#define SOURCE_PRICES "source.prices"

/* The documents of a month, written tenant by tenant. in_place(period_papers) struct period_papers p = {0}; */
struct period_papers {
	struct spill *at[KEPT_FORMATS];
	struct buf totals; /* of JSON: they come last */
	int64_t lines;
};
MUST_CHECK bool period_papers_begin(struct period_papers *p, const struct rating_input *in, struct err *err);
/* All lines of a tenant. */
MUST_CHECK bool period_papers_add(struct period_papers *p, const struct rating_input *in, const struct rated *r,
                                  struct err *err);
MUST_CHECK bool period_papers_end(struct period_papers *p, struct spill_file ret[KEPT_FORMATS], struct err *err);
void period_papers_fini(struct period_papers *p);

/* --- writing, inside the transaction of the close --- */

struct period_writer {
	struct db *db;
	const char *month;
	int64_t number; /* the last invoice number that was given */
	int64_t invoices, lines, corrections;
	struct sha256_state *input, *output;
	struct period_papers all;
};
/* A tenant's month: input, invoices, documents. view: its lines and its corrections. */
MUST_CHECK bool period_write_tenant(struct period_writer *w, const struct rating_input *in, const char *tenant,
                                    const struct rated *view, struct err *err);
/* The documents of all tenants, and the price books. */
MUST_CHECK bool period_write_all(struct period_writer *w, const struct rating_input *in, struct err *err);
/* SHA-256 over what the price books say. */
void period_prices_sha256(const struct rating_input *in, uint8_t ret[SHA256_SIZE]);

/* --- reading --- */

/* The lines and corrections of a month, tenant by tenant: of a closed one as it was billed, else as they are now. */
MUST_CHECK bool period_each(struct db *db, const char *month, const char *tenant, report_begin *begin,
                            period_tenant *each, void *arg, struct err *err);

/* --- corrections --- */

/* With the ids of the changes that were seen, as an array: a close that bills the corrections removes them. */
MUST_CHECK bool period_corrections(struct db *db, const char *month, const char *tenant, struct corrections *ret,
                                   struct db_array *ret_seen, struct err *err);

#endif
