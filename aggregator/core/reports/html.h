/* aggregator/core/reports/html.h - the elements of printed pages: one style, escaped texts, numbers. Pure.
 *
 * A page needs nothing beside itself: no script, no other file, no address. */
#ifndef TOLLGATE_HTML_H
#define TOLLGATE_HTML_H

#include "common/base/money.h"

#define HTML_MINUS "\xe2\x88\x92"
#define HTML_DASH "\xe2\x80\x93"

/* more_style: rules of this page behind those of all, or "". */
void html_begin(const char *title, const char *more_style, struct buf *out);
void html_end(struct buf *out);

void html_text(struct buf *out, const char *s);
/* A minus sign as wide as a digit. */
void html_number(struct buf *out, int128 value, int scale, int min_decimals);
/* A cell of a table; klass follows " n", with a space before it. */
void html_cell(struct buf *out, const char *klass, int128 value, int scale, int min_decimals);
/* A term and its value, in a <dl>; an empty value is a dash. */
void html_fact(struct buf *out, const char *name, const char *value);

#endif
