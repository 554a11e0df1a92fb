/* aggregator/core/reports/chargeback.h - shaping rated lines into the chargeback report. Pure.
 *
 * One table of columns (chargeback.c) gives both forms, so that they cannot differ: CSV as RFC 4180 in UTF-8 with
 * CRLF, and JSON whose values are the same texts. Numbers have a decimal point and no grouping in every locale. */
#ifndef TOLLGATE_CHARGEBACK_H
#define TOLLGATE_CHARGEBACK_H

#include "aggregator/core/reports/invoice_html.h"
#include "aggregator/core/rating/rating.h"

/* How a table is written. The numbers are the same, digit by digit. */
enum csv_dialect {
	CSV_RFC4180, /* comma and decimal point: for programs */
	/* For spreadsheets of locales that write 1,5: a byte order mark, semicolons, a decimal comma; a text that would be taken for a
	 * number or a date, such as a version 2026-11, is written ="2026-11". */
	CSV_EXCEL
};

/* Header and one row per line. Text columns that a spreadsheet would take for a formula get a leading apostrophe. */
MUST_CHECK bool report_csv(const struct rating_input *in, const struct rated *r, struct buf *out, struct err *err);
/* The same in pieces, such as a tenant at a time. */
void report_csv_header(enum csv_dialect dialect, struct buf *out);
MUST_CHECK bool report_csv_rows(const struct rating_input *in, const struct rated *r, enum csv_dialect dialect,
                                struct buf *out, struct err *err);

/* {"period", "period_status", "currency", "lines": [{every CSV column by its name}], "totals": [one per invoice and currency]}, and "promises" if there are any;
 * every value is text, so that no reader makes a float of it. */
MUST_CHECK bool report_json(const struct rating_input *in, const struct rated *r, struct buf *out, struct err *err);
/* The same in pieces; all lines of a tenant are one piece. Totals are collected until the end. first: no line came before. */
void report_json_begin(const struct rating_input *in, struct buf *out);
MUST_CHECK bool report_json_rows(const struct rating_input *in, const struct rated *r, bool first, struct buf *out,
                                 struct buf *totals, struct err *err);
/* Appends one promise of a tenant. */
void report_json_promise(const char *tenant, const struct invoice_promise *p, struct buf *promises);
void report_json_end(struct buf *totals, struct buf *promises, struct buf *out);

/* One CSV field, quoted where RFC 4180 asks for it. */
void csv_field(struct buf *out, const char *text);
void csv_text_field(struct buf *out, const char *text); /* also neutralised against formulas */

#endif
