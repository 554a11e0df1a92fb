/* aggregator/store/billing/document.h - a month as a document: written tenant by tenant, so that memory holds one tenant's month.
 *
 * No SQL and no libpq: api/ includes this. */
#ifndef TOLLGATE_DOCUMENT_H
#define TOLLGATE_DOCUMENT_H

#include "aggregator/core/reports/manifest.h"
#include "aggregator/core/reports/month_facts.h"
#include "aggregator/store/store.h"
#include "common/base/spill.h"

enum document_format {
	DOCUMENT_CSV,
	DOCUMENT_EXCEL,
	DOCUMENT_JSON,
	DOCUMENT_FOCUS,
	DOCUMENT_PERIODS, /* FOCUS's file of billing periods up to the month: the same for every tenant */
	DOCUMENT_HTML,
	/* Not stored: of a closed month they are made from its archive, which does not change. DOCUMENT_FOCUS is version 1.2. */
	DOCUMENT_FOCUS_1_3,
	DOCUMENT_FOCUS_1_4,
	DOCUMENT_INVOICES, /* Invoice Detail of FOCUS 1.4 */
	DOCUMENT_FORMATS
};
/* The suffix of the requested path after the month: "csv", "focus.csv". Formats that share one are told apart by a parameter. */
const char *document_suffix(enum document_format format);
/* A unique name of the format: "excel.csv". */
const char *document_name(enum document_format format);
/* FOCUS of "1.2", "1.3" or "1.4". */
MUST_CHECK bool document_focus_format(const char *version, enum document_format *ret);

/* The document of one tenant names no other tenant that borrowed from it, for every reader. The operator's document, of all tenants, names
 * them. Each has its own manifest. */
struct document_request {
	const char *period; /* "2026-11" */
	const char *tenant; /* NULL: all */
	enum document_format format;
	const char *organisation, *provider; /* the paying organisation and the platform's operator */
	int64_t now_ns;                      /* for the forecast of the budgets on an invoice */
};

struct document_result {
	struct manifest sums;
	char period_status[16];
};
/* Of a closed month the bytes that were stored. ERR_MISSING when the ledger has nothing of the period. */
MUST_CHECK bool store_document(struct db *db, const struct document_request *rq, struct spill *to,
                               struct document_result *ret, struct err *err);

/* The same in steps, for callers that have the lines: begin, the lines of each tenant by name, end. in is without days. CSV, Excel's and JSON need
 * no facts. layout: that of documents made now, or of those made when a month was closed (invoice_html.h). Facts and spill must outlive it. The text
 * stays in the spill's buffer until the caller's spill_step(). */
struct document;
MUST_CHECK bool document_begin(enum document_format format, const char *tenant, int64_t layout,
                               const struct month_facts *facts, const struct rating_input *in, struct spill *to,
                               struct document **ret, struct err *err);
MUST_CHECK bool document_tenant(struct document *d, const struct rating_input *in, const struct rated *r,
                                struct err *err);
MUST_CHECK bool document_end(struct document *d, struct document_result *ret, struct err *err);
void document_free(struct document *d);
DEFINE_OWNED(document, struct document)

/* The workloads that add up to a line (core/reports/detail.h): one row per day, workload and device, with the day of the month; energy in whole
 * millijoules. A table, or {"rows":[{every column, as text}]}. ERR_MISSING: there is no such line, or it is another tenant's. */
struct detail_request {
	const char *period, *tenant; /* tenant NULL: any */
	const char *line_id;
	bool json;
};
MUST_CHECK bool store_detail(struct db *db, const struct detail_request *rq, struct spill *to, int64_t *ret_rows,
                             struct err *err);

/* ---- the facts of a month that documents have beside their lines (document_facts.c) ---- */

/* The invoices of the month before, for the change that an invoice shows. in_place(previous_month) struct previous_month p = {0}; */
struct previous_month {
	char period[8]; /* "": there is none */
	struct previous_amount {
		char tenant[64];
		char currency[8];
		int128 billed;
		int scale;
	} * at; /* by tenant */
	size_t count;
};
void previous_month_fini(struct previous_month *p);
/* Outside of a transaction, unless that month is closed. tenant NULL: all. */
MUST_CHECK bool previous_month_load(struct db *db, const char *month, const char *tenant, struct previous_month *ret,
                                    struct err *err);

struct facts_request {
	const char *tenant;                  /* NULL: all */
	const char *organisation, *provider; /* the paying organisation and the platform's operator */
	int64_t now_ns;
	bool closing;       /* the month is being closed now */
	bool promises_only; /* JSON has no other facts */
};
/* Writes the text of core/reports/month_facts.h. previous NULL: without tenants. */
MUST_CHECK bool document_facts(struct db *db, const struct rating_input *in, const struct facts_request *rq,
                               const struct previous_month *previous, struct buf *out, struct err *err);

#endif
