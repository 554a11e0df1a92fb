/* aggregator/core/reports/invoice_lines.c - the lines of an invoice's page up to layout 2: which there is room for, and what they say. Rule 3 of invoice_html.h. */
#include <stdlib.h>
#include <string.h>

#include "aggregator/core/reports/html.h"
#include "aggregator/core/reports/invoice_parts.h"

#define LINE_CHARS 56         /* that fit into one line of text beside one currency */
#define CHARS_PER_CURRENCY 12 /* that each further one takes */
#define LINES_PER_CURRENCY 2  /* the same of the lines above, whose words have less room */
#define CORRECTED_DIGITS 12   /* of the line that a correction changes: enough to find it in the CSV */

static int128
size_of(const struct rated_line *l)
{
	return l->billed < 0 ? -l->billed : l->billed;
}

size_t
invoice_characters(const char *text)
{
	size_t n = 0;

	for (; *text != '\0'; text++)
		n += ((unsigned char)*text & 0xc0) != 0x80; /* UTF-8: what begins one */
	return n;
}

/* How many lines of text a line of the report takes: rule 3. */
static size_t
text_lines(const struct page *p, const struct rated_line *l)
{
	size_t room = LINE_CHARS - (p->count - 1) * CHARS_PER_CURRENCY;

	return p->i->layout == 0 || (!invoice_is_correction(l) && invoice_characters(l->description) <= room) ? 1 : 2;
}

size_t
invoice_room(const struct page *p)
{
	size_t budgets = invoice_budgets_shown(p->i), promises = invoice_promises_shown(p->i),
	       room = p->i->layout == 0 ? INVOICE_LINES : INVOICE_TEXT_LINES;
	bool corrected = false;

	for (size_t i = 0; i < p->i->r->count && p->i->layout > 0; i++)
		corrected = corrected || invoice_is_correction(&p->i->r->lines[i]);
	if (p->i->layout > 0)
		room -= (p->count - 1) * LINES_PER_CURRENCY;
	return room - (budgets > 0 ? budgets + 2 : 0) - (promises > 0 ? promises + 2 : 0) - corrected;
}

struct candidate {
	const struct rated_line *line;
	size_t index;
};

static int
larger_first(const void *a, const void *b)
{
	const struct candidate *x = a, *y = b;
	int order = ORDER(size_of(y->line), size_of(x->line));

	return order ? order : ORDER(x->index, y->index);
}

/* Which lines there is room for: all, or as many of the largest as fit, ties by their order. */
static bool *
choose_lines(const struct page *p)
{
	const struct rated *r = p->i->r;
	owned(mem) struct candidate *at = mem_array(r->count, sizeof(*at));
	bool *shown = mem_array(r->count, sizeof(*shown));
	size_t room = invoice_room(p), needed = 0;

	for (size_t i = 0; i < r->count; i++) {
		at[i] = (struct candidate){&r->lines[i], i};
		needed += text_lines(p, &r->lines[i]);
	}
	if (needed > room)
		qsort(at, r->count, sizeof(*at), larger_first);
	else
		room = needed;
	for (size_t i = 0; i < r->count && text_lines(p, at[i].line) <= room; i++) {
		room -= text_lines(p, at[i].line);
		shown[at[i].index] = true;
	}
	return shown;
}

/* What it is, and of a correction which line of which document it changes. */
static void
add_words(const struct page *p, const struct rated_line *l, struct buf *out)
{
	const bool bounded = p->i->layout > 0;

	buf_str(out, bounded ? "<tr><td class=\"who\">" : "<tr><td>");
	html_text(out, l->workspace);
	buf_str(out, "</td>");
	if (bounded)
		buf_printf(out, "<td class=\"what\"><div class=\"%s\">", text_lines(p, l) == 1 ? "one" : "two");
	else
		buf_str(out, "<td>");
	html_text(out, l->description);
	if (invoice_is_correction(l) && bounded) {
		buf_str(out, " <span class=\"of\">on ");
		html_text(out, l->invoice_id);
		buf_printf(out, ", corrects %.*s</span>", CORRECTED_DIGITS, l->correction_of);
	} else if (invoice_is_correction(l)) {
		buf_str(out, " <span class=\"of\">corrects ");
		html_text(out, l->correction_of);
		buf_str(out, "</span>");
	}
	buf_str(out, bounded ? "</div></td>" : "</td>");
}

static void
add_line(const struct page *p, const struct rated_line *l, struct buf *out)
{
	add_words(p, l, out);
	html_cell(out, "", l->quantity, QUANTITY_SCALE, 2);
	buf_str(out, "<td>");
	invoice_unit(l, out);
	buf_str(out, "</td>");
	if (l->priced)
		html_cell(out, "", l->unit_price, PRICE_SCALE, l->currency_scale);
	else
		buf_str(out, "<td class=\"n\">" HTML_DASH "</td>");
	for (size_t c = 0; c < p->count; c++)
		if (strcmp(p->sums[c].currency, l->currency) == 0)
			html_cell(out, "", l->billed, l->currency_scale, l->currency_scale);
		else
			buf_str(out, "<td></td>");
	buf_str(out, "</tr>\n");
}

void
invoice_lines(const struct page *p, struct buf *out)
{
	const struct rated *r = p->i->r;
	owned(mem) bool *shown = choose_lines(p);
	int128 rest[INVOICE_CURRENCIES] = {0};
	size_t left = 0;

	buf_str(out,
	        "<table class=\"lines\"><thead><tr><th>Workspace</th><th>What</th><th class=\"n\">Quantity</th><th>Unit</th>"
	        "<th class=\"n\">Price</th>");
	invoice_currency_heads(p, out);
	buf_str(out, "</tr></thead><tbody>\n");
	for (size_t i = 0; i < r->count; i++)
		if (shown[i]) {
			add_line(p, &r->lines[i], out);
		} else {
			rest[invoice_column(p, r->lines[i].currency)] += r->lines[i].billed;
			left++;
		}
	if (left > 0) {
		buf_printf(out, "<tr><td></td><td colspan=\"4\">%zu smaller lines, in the CSV of this month</td>",
		           left);
		for (size_t c = 0; c < p->count; c++)
			html_cell(out, "", rest[c], p->sums[c].scale, p->sums[c].scale);
		buf_str(out, "</tr>\n");
	}
	buf_str(out, "<tr class=\"total\"><td></td><td colspan=\"4\">Total</td>");
	for (size_t c = 0; c < p->count; c++)
		html_cell(out, "", p->sums[c].billed, p->sums[c].scale, p->sums[c].scale);
	buf_str(out, "</tr>\n</tbody></table>\n");
}
