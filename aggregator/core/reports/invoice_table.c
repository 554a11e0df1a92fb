/* aggregator/core/reports/invoice_table.c - the lines of an invoice's page since layout 3. Rule 3 of invoice_html.h says what there is room for.
 *
 * Rules, in order:
 *  1. lines are grouped by currency and workspace. A group begins with its subtotal, which has all lines of the group, shown or not
 *  2. inside a group: reservations, what was made of them, credits for them, usage, other meters, one-off amounts, corrections
 *  3. quantity x list price = list; list - discount = net, before all of them are rounded
 *  4. list and discount are rounded to the currency's exponent where they are printed; net amounts are the cents of the lines, and the subtotals
 *     and the groups that are not shown add up to the total */
#include <stdlib.h>
#include <string.h>

#include "aggregator/core/rating/amortise.h"
#include "aggregator/core/reports/html.h"
#include "aggregator/core/reports/invoice_parts.h"
#include "aggregator/core/rating/rating_text.h"

#define PAGE_DIGITS 92      /* of all columns beside each other, without the room between them */
#define WHAT_LEAST 12       /* characters that words have in any case */
#define CORRECTED_DIGITS 12 /* of the line that a correction changes: enough to find it in the CSV */
#define COLUMNS_BEFORE_SUMS 4

struct entry {
	const struct rated_line *line;
	size_t index; /* in the report */
	size_t text_lines;
	bool shown;
	bool group_shown; /* its subtotal is on the page */
};
struct sums {
	int128 list, discount, billed;
	int scale;
};

/* Rule 2: by kind. */
static const int places[CHARGE_KINDS] = {
	[CHARGE_COMMITMENT] = 0,  [CHARGE_COVERED] = 1, [CHARGE_UNUSED] = 2,      [CHARGE_LENT] = 3,
	[CHARGE_UNDELIVERED] = 4, [CHARGE_USAGE] = 5,   [CHARGE_DEDICATED] = 6,   [CHARGE_SHARED] = 7,
	[CHARGE_ENERGY] = 8,      [CHARGE_METER] = 9,   [CHARGE_ADJUSTMENT] = 10,
};

static int
compare_groups(const struct rated_line *a, const struct rated_line *b)
{
	int order = strcmp(a->currency, b->currency);

	return order != 0 ? order : strcmp(a->workspace, b->workspace);
}

static int
in_page_order(const void *a, const void *b)
{
	const struct entry *x = a, *y = b;
	int order = compare_groups(x->line, y->line);

	if (order == 0)
		order = ORDER(invoice_is_correction(x->line), invoice_is_correction(y->line));
	if (order == 0)
		order = ORDER(places[x->line->kind], places[y->line->kind]);
	return order != 0 ? order : ORDER(x->index, y->index);
}

/* ---- what there is room for ---- */

static size_t
digits_of(int128 value, int scale, int min_decimals)
{
	char text[DECIMAL_TEXT_SIZE];

	return strlen(decimal_format(value, scale, min_decimals, text));
}

static int128
to_cents(int128 cost, int scale)
{
	return div_round_half_even(cost, pow10_i128(COST_SCALE - scale));
}

static size_t
larger(size_t a, size_t b)
{
	return a > b ? a : b;
}

/* Characters of a description that fit into one line of text, beside the widest numbers of the page. */
static size_t
room_for_words(const struct page *p)
{
	size_t quantity = 8, unit = 4, price = 9, amounts = 3 * 8, used;

	for (size_t i = 0; i < p->i->r->count; i++) {
		const struct rated_line *l = &p->i->r->lines[i];

		quantity = larger(quantity, digits_of(l->quantity, QUANTITY_SCALE, 2));
		owned(mem) char *name = rating_unit_text(&l->unit);

		unit = larger(unit, strlen(name));
		price = larger(price, digits_of(l->unit_price, PRICE_SCALE, l->currency_scale));
	}
	for (size_t c = 0; c < p->count; c++)
		amounts = larger(amounts, 3 * digits_of(p->sums[c].billed, p->sums[c].scale, p->sums[c].scale));
	used = quantity + unit + price + amounts;
	return used + WHAT_LEAST < PAGE_DIGITS ? PAGE_DIGITS - used : WHAT_LEAST;
}

static int
larger_first(const void *a, const void *b)
{
	const struct entry *const *x = a, *const *y = b;
	int128 size_x = (*x)->line->billed, size_y = (*y)->line->billed;
	int order = ORDER(size_y < 0 ? -size_y : size_y, size_x < 0 ? -size_x : size_x);

	return order != 0 ? order : ORDER((*x)->index, (*y)->index);
}

/* What nobody has a price for is not hidden behind its 0. */
static int
unpriced_first(const void *a, const void *b)
{
	const struct entry *const *x = a, *const *y = b;
	int order = ORDER((*x)->line->priced, (*y)->line->priced);

	return order != 0 ? order : larger_first(a, b);
}

/* Entries of a group are neighbours. */
static void
show(struct entry *at, size_t n, struct entry *e)
{
	size_t from = (size_t)(e - at);

	e->shown = true;
	while (from > 0 && compare_groups(at[from - 1].line, e->line) == 0)
		from--;
	for (; from < n && compare_groups(at[from].line, e->line) == 0; from++)
		at[from].group_shown = true;
}

/* Of a line: up to two, of a correction up to three, because the line that it changes is at the end of its words. */
static size_t
text_lines(const struct rated_line *l, size_t words)
{
	size_t n = invoice_characters(l->description), most = 2;

	if (invoice_is_correction(l)) {
		n += strlen(" on , corrects ") + strlen(l->invoice_id) + CORRECTED_DIGITS;
		most = 3;
	}
	if (n <= words)
		return 1;
	return n + words / 4 <= 2 * words ? 2 : most;
}

/* A credit for what was not had of a reservation, or what else is billed for a part of it. */
static bool
is_part_of(const struct entry *e, const struct entry *reservation)
{
	return e != reservation && !e->shown && e->line->billed != 0 && !invoice_is_correction(e->line) &&
	       line_is_of_reservation(e->line) && line_is_of_same_reservation(e->line, reservation->line);
}

/* Shows the parts of a reservation, if there is room for all of them. */
static void
show_parts(struct entry *at, size_t n, const struct entry *reservation, size_t *room)
{
	size_t needed = 0;

	for (size_t i = 0; i < n; i++)
		needed += is_part_of(&at[i], reservation) ? at[i].text_lines : 0;
	if (needed > *room)
		return;
	*room -= needed;
	for (size_t i = 0; i < n; i++)
		if (is_part_of(&at[i], reservation))
			show(at, n, &at[i]);
}

/* Those without a price, then the largest lines, ties by their order, until one has no room; the first of a group also needs that of its subtotal. */
static void
choose(const struct page *p, struct entry *at, size_t n)
{
	const bool whole = p->i->layout >= INVOICE_LAYOUT_WHOLE;
	owned(mem) struct entry **by_size = mem_array(n, sizeof(*by_size));
	size_t words = room_for_words(p), room = invoice_room(p);

	for (size_t i = 0; i < n; i++) {
		at[i].text_lines = text_lines(at[i].line, words);
		by_size[i] = &at[i];
	}
	qsort(by_size, n, sizeof(struct entry *), whole ? unpriced_first : larger_first);
	for (size_t i = 0; i < n; i++) {
		size_t needed = by_size[i]->text_lines + !by_size[i]->group_shown;

		if (by_size[i]->shown)
			continue;
		if (needed > room)
			return;
		room -= needed;
		show(at, n, by_size[i]);
		if (whole && by_size[i]->line->kind == CHARGE_COMMITMENT && !invoice_is_correction(by_size[i]->line))
			show_parts(at, n, by_size[i], &room);
	}
}

/* ---- rows ---- */

static void
add_to(struct sums *s, const struct rated_line *l)
{
	s->list += l->list_cost;
	s->discount += l->discount;
	s->billed += l->billed;
	s->scale = l->currency_scale;
}

static void
sum_cells(const struct sums *s, struct buf *out)
{
	html_cell(out, "", to_cents(s->list, s->scale), s->scale, s->scale);
	html_cell(out, "", to_cents(s->discount, s->scale), s->scale, s->scale);
	html_cell(out, "", s->billed, s->scale, s->scale);
	buf_str(out, "</tr>\n");
}

static void
add_group(const struct page *p, const struct rated_line *l, const struct sums *s, size_t hidden, struct buf *out)
{
	buf_printf(out, "<tr class=\"group\"><td class=\"what\" colspan=\"%d\"><div class=\"one\">",
	           COLUMNS_BEFORE_SUMS);
	html_text(out, l->workspace[0] != '\0' ? l->workspace : "The tenant as a whole");
	if (p->count > 1)
		buf_printf(out, ", %s", l->currency);
	if (hidden > 0)
		buf_printf(out, " <span class=\"of\">with %zu smaller line%s, in the CSV</span>", hidden,
		           hidden == 1 ? "" : "s");
	buf_str(out, "</div></td>");
	sum_cells(s, out);
}

static void
add_line(const struct entry *e, struct buf *out)
{
	static const char *const classes[] = {"", "one", "two", "three"};
	const struct rated_line *l = e->line;
	struct sums s = {0};

	buf_printf(out, "<tr><td class=\"what\"><div class=\"%s\">", classes[e->text_lines]);
	html_text(out, l->description);
	if (invoice_is_correction(l)) {
		buf_str(out, " <span class=\"of\">on ");
		html_text(out, l->invoice_id);
		buf_printf(out, ", corrects %.*s</span>", CORRECTED_DIGITS, l->correction_of);
	}
	buf_str(out, "</div></td>");
	html_cell(out, "", l->quantity, QUANTITY_SCALE, 2);
	buf_str(out, "<td>");
	invoice_unit(l, out);
	buf_str(out, "</td>");
	if (l->priced)
		html_cell(out, "", l->unit_price, PRICE_SCALE, l->currency_scale);
	else
		buf_str(out, "<td class=\"n\">" HTML_DASH "</td>");
	add_to(&s, l);
	sum_cells(&s, out);
}

/* Of one currency: the groups that are not shown, and all of it. */
static void
add_total(const struct page *p, const struct invoice_amount *a, const struct entry *at, size_t n, struct buf *out)
{
	struct sums all = {.scale = a->scale}, rest = {.scale = a->scale};
	size_t lines = 0;

	for (size_t i = 0; i < n; i++) {
		if (strcmp(at[i].line->currency, a->currency) != 0)
			continue;
		add_to(&all, at[i].line);
		if (at[i].group_shown)
			continue;
		add_to(&rest, at[i].line);
		lines++;
	}
	if (lines > 0) {
		buf_printf(
			out,
			"<tr class=\"group\"><td colspan=\"%d\">Other workspaces%s%s <span class=\"of\">%zu smaller line%s, in the "
			"CSV</span></td>",
			COLUMNS_BEFORE_SUMS, p->count > 1 ? ", " : "", p->count > 1 ? a->currency : "", lines,
			lines == 1 ? "" : "s");
		sum_cells(&rest, out);
	}
	buf_printf(out, "<tr class=\"total\"><td colspan=\"%d\">Total%s%s</td>", COLUMNS_BEFORE_SUMS,
	           p->count > 1 ? " " : "", p->count > 1 ? a->currency : "");
	sum_cells(&all, out);
}

/* Rule 3 in words, and how much the rounding was. */
static void
add_note(const struct page *p, struct buf *out)
{
	size_t unpriced = 0;

	buf_str(out,
	        "<p class=\"note\">List = quantity \xc3\x97 list price; net = list \xe2\x88\x92 discount. Amounts are computed "
	        "exactly and rounded once for the whole invoice, so one line may differ by the smallest unit of the currency. "
	        "Rounding in all: ");
	for (size_t c = 0; c < p->count; c++) {
		int128 rounding = 0;

		for (size_t i = 0; i < p->i->r->count; i++)
			if (strcmp(p->i->r->lines[i].currency, p->sums[c].currency) == 0)
				rounding += p->i->r->lines[i].rounding;
		buf_str(out, c > 0 ? ", " : "");
		html_number(out, rounding, COST_SCALE, p->sums[c].scale);
		buf_printf(out, "\xc2\xa0%s", p->sums[c].currency);
	}
	buf_str(out, ".");
	for (size_t i = 0; i < p->i->r->count; i++)
		unpriced += !p->i->r->lines[i].priced;
	if (unpriced > 0 && p->i->layout >= INVOICE_LAYOUT_WHOLE)
		buf_printf(out, " %zu line%s no price and cost%s nothing.", unpriced, unpriced == 1 ? " has" : "s have",
		           unpriced == 1 ? "s" : "");
	buf_str(out, "</p>");
}

void
invoice_table(const struct page *p, struct buf *out)
{
	const size_t n = p->i->r->count;
	owned(mem) struct entry *at = mem_array(n, sizeof(*at));

	for (size_t i = 0; i < n; i++)
		at[i] = (struct entry){.line = &p->i->r->lines[i], .index = i};
	qsort(at, n, sizeof(*at), in_page_order);
	choose(p, at, n);
	buf_printf(
		out,
		"<div><table class=\"lines\"><thead><tr><th>What</th><th class=\"n\">Quantity</th><th>Unit</th><th class=\"n\">List "
		"price</th><th class=\"n\">List</th><th class=\"n\">Discount</th><th class=\"n\">Net%s%s</th></tr></thead><tbody>\n",
		p->count == 1 ? " " : "", p->count == 1 ? p->sums[0].currency : "");
	for (size_t from = 0, to; from < n; from = to) {
		struct sums s = {0};
		size_t hidden = 0;

		for (to = from; to < n && compare_groups(at[from].line, at[to].line) == 0; to++) {
			add_to(&s, at[to].line);
			hidden += !at[to].shown;
		}
		if (at[from].group_shown)
			add_group(p, at[from].line, &s, hidden, out);
		for (size_t i = from; i < to; i++)
			if (at[i].shown)
				add_line(&at[i], out);
	}
	for (size_t c = 0; c < p->count; c++)
		add_total(p, &p->sums[c], at, n, out);
	buf_str(out, "</tbody></table>\n");
	add_note(p, out);
	buf_str(out, "</div>\n");
}
