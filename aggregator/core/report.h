/* aggregator/core/report.h - shaping rated lines into the chargeback CSV (columns of the design's section 3, RFC 4180, UTF-8). Pure. */
#ifndef TOLLGATE_CORE_REPORT_H
#define TOLLGATE_CORE_REPORT_H

#include "aggregator/core/rating.h"

/* Header and one row per line, CRLF line ends. Text columns that a spreadsheet would take for a formula get a leading quote. */
MUST_CHECK bool report_csv(const struct rating_input *in, const struct rated *r, struct buf *out, struct err *err);

/* One CSV field, quoted where RFC 4180 asks for it. */
void csv_field(struct buf *out, const char *text);
void csv_text_field(struct buf *out, const char *text); /* also neutralised against formulas */

#endif
