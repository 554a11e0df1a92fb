/* aggregator/core/report.h - shaping rated lines into the chargeback report. Pure.
 *
 * One table of columns (report.c) gives both forms, so that they cannot differ: CSV as RFC 4180 in UTF-8 with
 * CRLF, and JSON whose values are the same texts. Numbers have a decimal point and no grouping in every locale. */
#ifndef TOLLGATE_CORE_REPORT_H
#define TOLLGATE_CORE_REPORT_H

#include "aggregator/core/rating.h"

/* Header and one row per line. Text columns that a spreadsheet would take for a formula get a leading apostrophe. */
MUST_CHECK bool report_csv(const struct rating_input *in, const struct rated *r, struct buf *out, struct err *err);

/* {"period", "period_status", "currency", "totals": [one per invoice and currency], "lines": [{every CSV column by
 * its name}]}; every value is text, so that no reader makes a float of it. */
MUST_CHECK bool report_json(const struct rating_input *in, const struct rated *r, struct buf *out, struct err *err);

/* One CSV field, quoted where RFC 4180 asks for it. */
void csv_field(struct buf *out, const char *text);
void csv_text_field(struct buf *out, const char *text); /* also neutralised against formulas */

#endif
