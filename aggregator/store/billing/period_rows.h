/* aggregator/store/billing/period_rows.h - between the files of closed months: period_close.c (the close), period_write.c (a tenant's invoices and
 * documents), period_documents.c (documents from lines), period_correct.c (corrections), period_archive.c (what was stored), period_read.c (a
 * month as it is), period_recompute.c (the proof of a closed one). */
#ifndef TOLLGATE_PERIOD_ROWS_H
#define TOLLGATE_PERIOD_ROWS_H

#include "aggregator/store/billing/report_store.h"
#include "aggregator/store/db/db.h"
#include "aggregator/store/billing/document.h"
#include "aggregator/store/billing/period.h"
#include "aggregator/store/billing/report_rows.h"
#include "common/base/digest.h"
#include "common/base/spill.h"

#define DB_LOCK_CLOSE DB_LOCK_CLASS ", 8"

/* What documents were made from, kept beside them: charge rows per tenant and price books of the month (core/rating/rating_file.h), and what they
 * say beside their lines (core/reports/month_facts.h; months that were closed before that was kept have none, and only CSV and JSON). */
#define SOURCE_ROWS "source.rows"
#define SOURCE_PRICES "source.prices"
#define SOURCE_FACTS "source.facts"

/* --- documents from lines --- */

/* A document as it is kept. Tables of all tenants are kept as their first line alone: behind it come the rows of each tenant's own. */
struct kept_file {
	struct spill_file file; /* of a joined one: its first line; size and SHA-256 are of the whole */
	int64_t lines, rows;
	bool joined;
};
void kept_files_close(struct kept_file files[DOCUMENT_FORMATS]);

/* The documents of all tenants, written as the tenants come. in_place(period_papers) struct period_papers p = {0}; */
struct period_papers {
	const struct month_facts *facts;
	struct paper {
		struct spill *spill;
		struct document *document;
		/* Of a joined one. */
		struct sha256_state *sha;
		int64_t bytes, lines, rows;
	} at[DOCUMENT_FORMATS];
};
/* facts NULL: CSV and JSON alone. They must stay until it is freed. */
MUST_CHECK bool period_papers_begin(struct period_papers *p, const struct month_facts *facts,
                                    const struct rating_input *in, struct err *err);
/* All lines of a tenant: its own documents. Those that do not exist of one tenant, or are not wanted, have no descriptor. */
MUST_CHECK bool period_papers_tenant(struct period_papers *p, const struct rating_input *in, const char *tenant,
                                     const struct rated *r, struct kept_file ret[DOCUMENT_FORMATS], struct err *err);
MUST_CHECK bool period_papers_end(struct period_papers *p, struct kept_file ret[DOCUMENT_FORMATS], struct err *err);
void period_papers_fini(struct period_papers *p);

/* --- writing, inside the transaction of the close --- */

struct period_writer {
	struct db *db;
	const char *month;
	int64_t number; /* the last invoice number that was given */
	int64_t invoices, lines, corrections;
	struct sha256_state *input, *output;
	struct period_papers papers;
};
/* A tenant's month: input, invoices, documents. view: its lines and its corrections. */
MUST_CHECK bool period_write_tenant(struct period_writer *w, const struct rating_input *in, const char *tenant,
                                    const struct rated *view, struct err *err);
/* The documents of all tenants, the price books, and what documents say beside their lines. */
MUST_CHECK bool period_write_all(struct period_writer *w, const struct rating_input *in, const struct buf *facts,
                                 struct err *err);
/* SHA-256 over what the price books say. */
void period_prices_sha256(const struct rating_input *in, uint8_t ret[SHA256_SIZE]);

/* --- reading --- */

/* A row of invoice_line as all read it: the line's id, then LINE_NAMES of l, then LINE_AMOUNTS of l or of sums with the same names. What follows is the reader's own. */
enum line_column {
	LINE_ID,
	LINE_KIND,
	LINE_PRICED,
	LINE_CURRENCY_SCALE,
	LINE_CLUSTER,
	LINE_COST_CENTER,
	LINE_WORKSPACE,
	LINE_CATEGORY,
	LINE_SKU,
	LINE_GPU_MODEL,
	LINE_MIG_PROFILE,
	LINE_SHARING_MODE,
	LINE_CLASS,
	LINE_UNIT,
	LINE_PRICE_VERSION,
	LINE_CURRENCY,
	LINE_COUNTERPARTY,
	LINE_DESCRIPTION,
	LINE_UNIT_PRICE,
	LINE_DISCOUNT_PRICE,
	LINE_DISCOUNT_RATIO,
	LINE_OWN_UNIT,
	LINE_OWN_PRICE,
	LINE_ALLOCATED,
	LINE_USED,
	LINE_IDLE,
	LINE_UNMEASURED,
	LINE_HOURS,
	LINE_QUANTITY,
	LINE_OWN_QUANTITY,
	LINE_LIST_COST,
	LINE_DISCOUNT,
	LINE_ROUNDING,
	LINE_BILLED,
	LINE_ENERGY,
	LINE_COLUMNS
};
#define LINE_NAMES                                                                                                     \
	"l.kind, l.priced, l.currency_scale, l.cluster, l.cost_center, l.workspace, l.category, l.sku, l.gpu_model, "  \
	"l.mig_profile, l.sharing_mode, l.class, l.unit, l.price_version, l.currency, l.counterparty, l.description, " \
	"l.unit_price, l.discount_price, l.discount_ratio, l.own_unit, coalesce(l.own_price, 0)"
#define LINE_AMOUNTS(x)                                                                                      \
	x ".allocated_gpu_hours, " x ".used_gpu_hours, " x ".idle_gpu_hours, " x ".unmeasured_gpu_hours, " x \
	  ".gpu_hours, " x ".quantity, coalesce(" x ".own_quantity, 0), " x ".list_cost, " x ".discount, " x \
	  ".rounding, " x ".billed, " x ".energy_mj"
/* All its texts are its own: corrections_add() takes them, also after an error. */
MUST_CHECK bool period_line_read(const PGresult *r, int row, const char *tenant, struct rated_line *ret,
                                 struct err *err);

/* The lines and corrections of a month, tenant by tenant: of a closed one as it was billed, else as they are now. begin may be NULL. */
MUST_CHECK bool period_each(struct db *db, const char *month, const char *tenant, report_begin *begin,
                            period_tenant *each, void *arg, struct err *err);
/* The same of a closed month, from what was kept: as it was billed, or its kept rows as the rules of today rate them. The two differ in months that
 * other rules have rated (core/rating/rating_file.h). */
enum kept_as { KEPT_AS_BILLED, KEPT_AS_RATED_NOW };
MUST_CHECK bool period_kept_each(struct db *db, const char *month, const char *tenant, enum kept_as as,
                                 report_begin *begin, period_tenant *each, void *arg, struct err *err);
MUST_CHECK bool period_is_closed(struct db *db, const char *month, bool *ret, struct err *err);
/* A text that documents were made from; nothing where there is none. tenant NULL: of the month. */
MUST_CHECK bool period_kept_source(struct db *db, const char *month, const char *tenant, const char *name,
                                   struct buf *out, struct err *err);

/* A document of a closed month, byte for byte as it was stored. */
struct kept_document {
	bool found;
	struct manifest sums;
};
MUST_CHECK bool period_kept_document(struct db *db, const char *month, const char *tenant, const char *name,
                                     struct spill *to, struct kept_document *ret, struct err *err);

/* --- corrections --- */

/* With the ids of the changes that were seen, as an array: a close that bills the corrections removes them. */
MUST_CHECK bool period_corrections(struct db *db, const char *month, const char *tenant, struct corrections *ret,
                                   struct db_array *ret_seen, struct err *err);

#endif
