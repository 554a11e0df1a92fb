/* aggregator/store/billing/period_internal.h - shared by the files that close a month and read closed ones: period_documents.c (makes documents and
 * writes invoices), period_archive.c (reads a month, from its archive if it is closed), period_correct.c (corrections), period_recompute.c
 * (makes the documents of a closed month again and compares), store/close. */
#ifndef TOLLGATE_PERIOD_INTERNAL_H
#define TOLLGATE_PERIOD_INTERNAL_H

#include "aggregator/store/billing/report_store.h"
#include "aggregator/store/db/db.h"
#include "aggregator/store/billing/document.h"
#include "aggregator/store/billing/period.h"
#include "aggregator/store/billing/report_internal.h"
#include "common/base/digest.h"
#include "common/base/spill.h"

#define DB_LOCK_CLOSE DB_LOCK_CLASS ", 8"

/* The archived input of documents: charge rows per tenant and price books of the month (core/rating/rating_file.h), and the facts beside
 * their lines (core/reports/month_facts.h). Months that were closed before facts were archived have none, and only CSV and JSON. */
#define SOURCE_ROWS "source.rows"
#define SOURCE_PRICES "source.prices"
#define SOURCE_FACTS "source.facts"

/* --- documents from lines --- */

/* A document as it is stored. Up to layout 1, the CSV of all tenants is stored as its first line alone: the rows of the tenants' own follow it. */
struct document_file {
	struct spill_file file; /* of a joined document the first line; size and SHA-256 are of the whole */
	int64_t lines, rows;
	bool joined;
};
void document_files_close(struct document_file files[DOCUMENT_FORMATS]);

/* The documents of all tenants, written as the tenants come. in_place(period_documents) struct period_documents p = {0}; */
struct period_documents {
	const struct month_facts *facts;
	struct document_draft {
		struct spill *spill;
		struct document *document;
		/* of a joined document */
		struct sha256_state *sha;
		int64_t bytes, lines, rows;
	} at[DOCUMENT_FORMATS];
};
/* facts NULL: CSV and JSON alone. The facts must outlive it. */
MUST_CHECK bool period_documents_begin(struct period_documents *p, const struct month_facts *facts,
                                       const struct rating_input *in, struct err *err);
/* Makes the tenant's own documents from all its lines. Formats that one tenant does not have, or that are not made, have no descriptor. */
MUST_CHECK bool period_documents_tenant(struct period_documents *p, const struct rating_input *in, const char *tenant,
                                        const struct rated *r, struct document_file ret[DOCUMENT_FORMATS],
                                        struct err *err);
MUST_CHECK bool period_documents_end(struct period_documents *p, struct document_file ret[DOCUMENT_FORMATS],
                                     struct err *err);
void period_documents_fini(struct period_documents *p);

/* --- writing, inside the transaction of the close --- */

struct period_writer {
	struct db *db;
	const char *month;
	int64_t number; /* the last invoice number that was given */
	int64_t invoices, lines, corrections;
	struct sha256_state *input, *output;
	struct period_documents documents;
};
/* A tenant's month: input, invoices, documents. view: its lines and its corrections. */
MUST_CHECK bool period_write_tenant(struct period_writer *w, const struct rating_input *in, const char *tenant,
                                    const struct rated *view, struct err *err);
/* The documents of all tenants, the price books, and the facts. */
MUST_CHECK bool period_write_all(struct period_writer *w, const struct rating_input *in, const struct buf *facts,
                                 struct err *err);
/* SHA-256 over the price books. */
void period_prices_sha256(const struct rating_input *in, uint8_t ret[SHA256_SIZE]);

/* --- reading --- */

/* Columns of a query over invoice_line: the line's id, LINE_NAMES of l, LINE_AMOUNTS of l or of sums with the same names; then the caller's own. */
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
/* The line owns all its texts; corrections_add() takes them, also after an error. */
MUST_CHECK bool period_line_read(const PGresult *r, int row, const char *tenant, struct rated_line *ret,
                                 struct err *err);

/* The lines and corrections of a month, tenant by tenant: of a closed month as it was billed, of another as they are now. begin may be NULL. */
MUST_CHECK bool period_each(struct db *db, const char *month, const char *tenant, report_begin *begin,
                            period_tenant *each, void *arg, struct err *err);
/* The same of a closed month, from its archive: as it was billed, or its archived rows as the present rules rate them. The two differ in months
 * that earlier rules rated (core/rating/rating_file.h). */
enum archive_as { ARCHIVE_AS_BILLED, ARCHIVE_AS_RATED_NOW };
MUST_CHECK bool period_archive_each(struct db *db, const char *month, const char *tenant, enum archive_as as,
                                    report_begin *begin, period_tenant *each, void *arg, struct err *err);
MUST_CHECK bool period_is_closed(struct db *db, const char *month, bool *ret, struct err *err);
/* An archived input of documents; empty where there is none. tenant NULL: of the month. */
MUST_CHECK bool period_archive_source(struct db *db, const char *month, const char *tenant, const char *name,
                                      struct buf *out, struct err *err);

/* A document of a closed month, byte for byte as it was stored. */
struct archived_document {
	bool found;
	struct manifest sums;
};
MUST_CHECK bool period_archive_document(struct db *db, const char *month, const char *tenant, const char *name,
                                        struct spill *to, struct archived_document *ret, struct err *err);

/* --- corrections --- */

/* ret_seen: ids of the changes that the corrections include; a close that bills them removes the changes. */
MUST_CHECK bool period_corrections(struct db *db, const char *month, const char *tenant, struct corrections *ret,
                                   struct db_array *ret_seen, struct err *err);

#endif
