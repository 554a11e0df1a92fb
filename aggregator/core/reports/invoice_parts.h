/* aggregator/core/reports/invoice_parts.h - between the files of an invoice's page: invoice_html.c (the page), invoice_table.c (its lines),
 * invoice_lines.c (its lines up to layout 2). */
#ifndef TOLLGATE_INVOICE_PARTS_H
#define TOLLGATE_INVOICE_PARTS_H

#include "aggregator/core/reports/invoice_html.h"

struct page {
	const struct invoice_input *i;
	struct invoice_amount sums[INVOICE_CURRENCIES];
	size_t count;
};

/* The column of a currency; the number of columns, if it has none. */
size_t invoice_column(const struct page *p, const char *currency);
void invoice_currency_heads(const struct page *p, struct buf *out);
bool invoice_is_correction(const struct rated_line *l);
void invoice_unit(const struct rated_line *l, struct buf *out);
/* Those that there is room for. */
size_t invoice_budgets_shown(const struct invoice_input *i);
size_t invoice_promises_shown(const struct invoice_input *i);

/* Lines of text that the page has for lines of the report. */
size_t invoice_room(const struct page *p);
size_t invoice_characters(const char *text); /* of UTF-8 */

void invoice_lines(const struct page *p, struct buf *out);
void invoice_table(const struct page *p, struct buf *out);

#endif
