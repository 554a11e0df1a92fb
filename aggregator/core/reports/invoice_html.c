/* aggregator/core/reports/invoice_html.c - the page of a tenant's month, from top to bottom. The numbers are those of invoice_html.h. */
#include "aggregator/core/reports/invoice_html.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "aggregator/core/rating/amortise.h"
#include "aggregator/core/rating/budget.h"
#include "aggregator/core/reports/html.h"
#include "common/base/apportion.h"
#include "common/base/time.h"

#define HOUR_DECIMALS 3
#define PARTS_MAX 8
#define CENTERS_SHOWN 4
#define CENTERS_MAX (16u << 10)
#define NANO_PER_MILLI 1000000
#define UNIT_NS_PER_MILLI_HOUR ((int128)5040 * 3600000000)
#define CORRECTED_DIGITS 12 /* of the line that a correction changes: enough to find it in the CSV */

struct page {
	const struct invoice_input *i;
	struct invoice_amount sums[INVOICE_CURRENCIES];
	size_t count;
};

/* ---- currencies ---- */

static size_t
currency_column(const struct page *p, const char *currency)
{
	size_t at = 0;

	while (at < p->count && strcmp(p->sums[at].currency, currency) != 0)
		at++;
	return at;
}

static bool
add_up(struct page *p, struct err *err)
{
	const struct rated *r = p->i->r;

	for (size_t i = 0; i < r->count; i++) {
		size_t at = currency_column(p, r->lines[i].currency);

		if (at == INVOICE_CURRENCIES)
			return err_set(err, ERR_INVALID, "an invoice has at most %d currencies", INVOICE_CURRENCIES);
		if (at == p->count)
			p->sums[p->count++] = (struct invoice_amount){.currency = r->lines[i].currency,
			                                              .scale = r->lines[i].currency_scale};
		p->sums[at].billed += r->lines[i].billed;
	}
	return true;
}

typedef bool line_filter(const struct rated_line *l, const void *arg);

/* A cell per currency with what the lines of the filter add up to. */
static void
sum_cells(const struct page *p, line_filter *wanted, const void *arg, struct buf *out)
{
	int128 sums[INVOICE_CURRENCIES] = {0};

	for (size_t i = 0; i < p->i->r->count; i++)
		if (wanted(&p->i->r->lines[i], arg))
			sums[currency_column(p, p->i->r->lines[i].currency)] += p->i->r->lines[i].billed;
	for (size_t c = 0; c < p->count; c++)
		html_cell(out, "", sums[c], p->sums[c].scale, p->sums[c].scale);
}

static void
add_currency_heads(const struct page *p, struct buf *out)
{
	for (size_t c = 0; c < p->count; c++)
		buf_printf(out, "<th class=\"n\">%s</th>", p->sums[c].currency);
}

/* ---- head ---- */

/* Of a date: "2026-11-30" has 2026, 11 and 30. */
static int
number_in(const char *date, size_t at, size_t len)
{
	int n = 0;

	for (size_t i = at; i < at + len; i++)
		n = 10 * n + (date[i] - '0');
	return n;
}

/* "1 to 30 November 2026": dates, of which the second is the first one behind the period. Whatever is no date stays as it is. */
static void
add_dates(const char *start, const char *end, struct buf *out)
{
	static const char *const months[] = {"January", "February", "March",     "April",   "May",      "June",
	                                     "July",    "August",   "September", "October", "November", "December"};
	const char *const texts[] = {start, end};
	int year[2], month[2], day[2];
	char at[TIME_TEXT_SIZE];

	for (int i = 0; i < 2; i++) {
		int64_t ns;

		snprintf(at, sizeof(at), "%.10sT00:00:00Z", texts[i]);
		if (!time_parse(at, &ns, &(struct err){0})) {
			buf_printf(out, "%s to %s (exclusive)", start, end);
			return;
		}
		(void)time_format(ns - i, at);
		year[i] = number_in(at, 0, 4);
		month[i] = number_in(at, 5, 2);
		day[i] = number_in(at, 8, 2);
	}
	buf_i64(out, day[0]);
	if (year[0] != year[1] || month[0] != month[1])
		buf_printf(out, " %s", months[month[0] - 1]);
	if (year[0] != year[1])
		buf_printf(out, " %d", year[0]);
	buf_printf(out, " to %d %s %d", day[1], months[month[1] - 1], year[1]);
}

/* Those of the lines, each once: the first ones, and how many more there are. */
static void
add_cost_centers(const struct rated *r, int64_t layout, struct buf *out)
{
	owned(mem) const char **seen = mem_array(r->count, sizeof(*seen));
	size_t n = 0;

	for (size_t i = 0; i < r->count; i++) {
		const char *center = r->lines[i].cost_center;
		bool known = center[0] == '\0';

		for (size_t k = 0; k < n; k++)
			known = known || strcmp(seen[k], center) == 0;
		if (known)
			continue;
		if (n < CENTERS_SHOWN)
			buf_printf(out, "%s%s", n > 0 ? ", " : "", center);
		seen[n++] = center;
	}
	if (n > CENTERS_SHOWN && layout >= INVOICE_LAYOUT_CENTERS)
		buf_printf(out, " and %zu more", n - CENTERS_SHOWN);
}

static void
add_head(const struct page *p, struct buf *out)
{
	const struct rating_input *in = p->i->in;
	const struct rated_line *l = &p->i->r->lines[0];
	bool closed = strcmp(in->period_status, "closed") == 0;
	in_place(buf) struct buf period = {0}, version = {0}, centers = {0};

	buf_init(&centers, CENTERS_MAX);
	buf_init(&period, 256);
	buf_init(&version, 32);
	if (p->i->layout >= INVOICE_LAYOUT_LISTED)
		add_dates(in->period_start, in->period_end, &period);
	else
		buf_printf(&period, "%s to %s (exclusive)", in->period_start, in->period_end);
	buf_printf(&period, ", %s", p->i->zone);
	buf_i64(&version, in->invoice_version);
	buf_str(out, "<header><div><p class=\"from\">");
	html_text(out, p->i->provider);
	buf_printf(out, "</p><h1>%s %s</h1></div><p class=\"status %s\">%s</p></header>\n",
	           closed ? "Invoice" : "Statement", in->period, closed ? "closed" : "open",
	           closed ? "closed" : "open " HTML_DASH " not final");
	buf_str(out, "<dl class=\"facts\">\n");
	html_fact(out, "Tenant", p->i->tenant_name[0] != '\0' ? p->i->tenant_name : l->tenant);
	if (p->i->layout >= INVOICE_LAYOUT_LISTED)
		add_cost_centers(p->i->r, p->i->layout, &centers);
	else
		buf_str(&centers, l->cost_center);
	html_fact(out, "Cost centre", buf_text(&centers));
	html_fact(out, "Organisation", p->i->organisation);
	html_fact(out, "Number", l->invoice_id);
	html_fact(out, "Version", buf_text(&version));
	html_fact(out, "Period", buf_text(&period));
	buf_str(out, "</dl>\n");
}

/* ---- totals ---- */

static bool
is_category(const struct rated_line *l, const void *category)
{
	return strcmp(l->category, category) == 0;
}

static bool
corrects_line(const struct rated_line *l)
{
	return l->correction_of != NULL && l->correction_of[0] != '\0';
}

static void
add_unit(const struct rated_line *l, struct buf *out)
{
	owned(mem) char *unit = rating_unit_text(&l->unit);

	html_text(out, unit);
}

static bool
is_correction(const struct rated_line *l, const void *arg)
{
	(void)arg;
	return corrects_line(l);
}

static const struct invoice_amount *
previous_of(const struct invoice_input *i, const char *currency)
{
	for (size_t c = 0; c < i->previous_count; c++)
		if (strcmp(i->previous[c].currency, currency) == 0)
			return &i->previous[c];
	return NULL;
}

static void
add_change(const struct page *p, struct buf *out)
{
	if (p->i->previous_period == NULL)
		return;
	buf_printf(out, "<tr class=\"memo\"><th>Change against %s</th>", p->i->previous_period);
	for (size_t c = 0; c < p->count; c++) {
		const struct invoice_amount *before = previous_of(p->i, p->sums[c].currency);
		int128 change = p->sums[c].billed - (before ? before->billed : 0);

		buf_str(out, "<td class=\"n\">");
		buf_str(out, change > 0 ? "+" : "");
		html_number(out, change, p->sums[c].scale, p->sums[c].scale);
		if (before != NULL && before->billed > 0) {
			buf_printf(out, " (%s", change > 0 ? "+" : "");
			html_number(out, div_round_half_even(change * 1000, before->billed), 1, 1);
			buf_str(out, "\xc2\xa0%)");
		}
		buf_str(out, "</td>");
	}
	buf_str(out, "</tr>\n");
}

/* Corrections of a month are a document with a number of its own; those of one document are neighbours. */
static void
add_numbers(const struct page *p, struct buf *out)
{
	const char *last = "";

	buf_str(out, "<div class=\"one\">");
	for (size_t i = 0; i < p->i->r->count; i++) {
		const struct rated_line *l = &p->i->r->lines[i];

		if (!is_correction(l, NULL) || strcmp(l->invoice_id, last) == 0)
			continue;
		buf_str(out, last[0] != '\0' ? ", " : "");
		html_text(out, l->invoice_id);
		last = l->invoice_id;
	}
	buf_str(out, "</div>");
}

static void
add_totals(const struct page *p, struct buf *out)
{
	static const char *const categories[][2] = {{"gpu", "GPU"},         {"storage", "Storage"},
	                                            {"network", "Network"}, {"inference", "Inference"},
	                                            {"support", "Support"}, {"energy", "Energy"},
	                                            {"other", "Other"}};
	size_t corrections = 0;

	for (size_t i = 0; i < p->i->r->count; i++)
		corrections += is_correction(&p->i->r->lines[i], NULL);
	buf_str(out, "<table class=\"totals\"><thead><tr><th>Totals</th>");
	add_currency_heads(p, out);
	buf_str(out, "</tr></thead><tbody>\n");
	for (size_t c = 0; c < ARRAY_LEN(categories); c++) {
		buf_printf(out, "<tr><th>%s</th>", categories[c][1]);
		sum_cells(p, is_category, categories[c][0], out);
		buf_str(out, "</tr>\n");
	}
	buf_str(out, "<tr class=\"total\"><th>Total</th>");
	for (size_t c = 0; c < p->count; c++)
		html_cell(out, "", p->sums[c].billed, p->sums[c].scale, p->sums[c].scale);
	buf_printf(out, "</tr>\n<tr class=\"memo\"><th>Corrections of earlier months in it: %zu", corrections);
	if (p->i->layout > 0 && corrections > 0)
		add_numbers(p, out);
	buf_str(out, "</th>");
	sum_cells(p, is_correction, NULL, out);
	buf_str(out, "</tr>\n");
	add_change(p, out);
	buf_str(out, "</tbody></table>\n");
}

/* ---- hours ---- */

struct part {
	const char *name;
	int128 amount;
};

/* Rule 4. */
static int128
round_parts(int128 whole, const struct part *parts, size_t n, int128 per_milli_hour, int128 ret_milli[PARTS_MAX])
{
	int128 weight[PARTS_MAX], total = div_round_half_even(whole, per_milli_hour);

	ASSERT(n <= PARTS_MAX);
	for (size_t i = 0; i < n; i++)
		weight[i] = parts[i].amount;
	if (!apportion(total, weight, n, ret_milli))
		memset(ret_milli, 0, sizeof(*ret_milli) * n);
	return total;
}

/* One below the other: the whole, then what it is made of. In nano-GPU-hours. */
static void
add_parts(const char *title, const struct part *whole, const struct part *parts, size_t n, struct buf *out)
{
	int128 milli[PARTS_MAX], total = round_parts(whole->amount, parts, n, NANO_PER_MILLI, milli);

	buf_printf(out,
	           "<table class=\"parts\"><thead><tr><th>%s</th><th class=\"n\">GPU-hours</th></tr></thead><tbody>\n",
	           title);
	buf_printf(out, "<tr class=\"whole\"><th>%s</th>", whole->name);
	html_cell(out, "", total, HOUR_DECIMALS, HOUR_DECIMALS);
	buf_str(out, "</tr>\n");
	for (size_t i = 0; i < n; i++) {
		buf_printf(out, "<tr><th>%s %s</th>", i == 0 ? "=" : "+", parts[i].name);
		html_cell(out, "", milli[i], HOUR_DECIMALS, HOUR_DECIMALS);
		buf_str(out, "</tr>\n");
	}
	buf_str(out, "</tbody></table>\n");
}

static int128
hours_of(const struct page *p, enum charge_kind kind)
{
	int128 sum = 0;

	for (size_t i = 0; i < p->i->r->count; i++)
		if (p->i->r->lines[i].kind == kind && !is_correction(&p->i->r->lines[i], NULL))
			sum += p->i->r->lines[i].ngh;
	return sum;
}

static void
add_committed(const struct page *p, struct buf *out)
{
	const struct part whole = {"Committed", hours_of(p, CHARGE_COMMITMENT)};
	const struct part parts[] = {
		{"covered", hours_of(p, CHARGE_COVERED)},
		{"lent", hours_of(p, CHARGE_LENT)},
		{"reserved, unused", hours_of(p, CHARGE_UNUSED)},
		{"undelivered", hours_of(p, CHARGE_UNDELIVERED)},
	};

	add_parts("Reservations", &whole, parts, ARRAY_LEN(parts), out);
}

/* Grams for a kWh in the cluster of a line, by its price book; -1: not known. */
static int128
carbon_of(const struct rating_input *in, const struct rated_line *l)
{
	for (size_t b = 0; b < in->book_count; b++)
		for (size_t s = 0; strcmp(in->books[b].version, l->price_version) == 0 && s < in->books[b].site_count;
		     s++)
			if (strcmp(in->books[b].sites[s].cluster, l->cluster) == 0)
				return in->books[b].sites[s].carbon;
	return -1;
}

/* The energy of the invoice's lines, and its carbon where the grid's factor is known. */
static void
add_energy(const struct page *p, struct buf *out)
{
	int128 all = 0, known = 0, weighed = 0;

	for (size_t i = 0; i < p->i->r->count; i++) {
		const struct rated_line *l = &p->i->r->lines[i];
		int128 carbon = carbon_of(p->i->in, l);

		if (corrects_line(l))
			continue;
		all += l->energy_mj;
		known += carbon >= 0 ? l->energy_mj : 0;
		weighed += carbon >= 0 ? l->energy_mj * carbon : 0;
	}
	if (all == 0)
		return;
	buf_str(out, " Energy: ");
	html_number(out, div_round_half_even(all, MJ_PER_KWH / 1000), 3, 3);
	buf_str(out, "\xc2\xa0kWh");
	if (known > 0) {
		buf_str(out, ", ");
		html_number(out, div_round_half_even(weighed, (int128)MJ_PER_KWH * pow10_i128(PRICE_SCALE)), 3, 3);
		buf_str(out, "\xc2\xa0kg CO\xe2\x82\x82"
		             "e");
	}
	buf_str(out, known > 0 && known < all ? " where the grid is known." : ".");
}

static void
add_held(const struct page *p, struct buf *out)
{
	struct part whole = {"Allocated", 0}, parts[] = {{"used", 0}, {"idle", 0}, {"unmeasured", 0}};

	for (size_t i = 0; i < p->i->r->count; i++) {
		const struct rated_line *l = &p->i->r->lines[i];

		if (is_correction(l, NULL))
			continue;
		whole.amount += l->allocated_ngh;
		parts[0].amount += l->used_ngh;
		parts[1].amount += l->idle_ngh;
		parts[2].amount += l->unmeasured_ngh;
	}
	add_parts("GPU time held", &whole, parts, ARRAY_LEN(parts), out);
	buf_str(out, "<p class=\"note\">Measured: ");
	if (whole.amount > 0) {
		html_number(out, div_round_half_even((parts[0].amount + parts[1].amount) * 1000, whole.amount), 1, 1);
		buf_str(out, "\xc2\xa0% of the time held.");
	} else {
		buf_str(out, HTML_DASH);
	}
	if (p->i->layout > 0)
		add_energy(p, out);
	buf_str(out, "</p>\n");
}

/* Beside each other, to save the page's height. */
static void
add_capacity(const struct page *p, struct buf *out)
{
	static const struct invoice_capacity none;
	const struct invoice_capacity *c = p->i->own;

	if (c == NULL && p->i->layout == 0)
		return;
	c = c != NULL ? c : &none;
	const struct part parts[] = {{"held by somebody", c->held},
	                             {"held by nobody", c->unallocated},
	                             {"stranded", c->stranded},
	                             {"down", c->down},
	                             {"unknown", c->unknown}};
	int128 milli[PARTS_MAX], total = round_parts(c->held + c->unallocated + c->stranded + c->down + c->unknown,
	                                             parts, ARRAY_LEN(parts), UNIT_NS_PER_MILLI_HOUR, milli);

	buf_str(out, "<table class=\"parts\"><thead><tr><th>Own nodes, GPU-hours</th><th class=\"n\">in service</th>");
	for (size_t i = 0; i < ARRAY_LEN(parts); i++)
		buf_printf(out, "<th class=\"n\">%s %s</th>", i == 0 ? "=" : "+", parts[i].name);
	buf_str(out, "</tr></thead><tbody><tr><th>States of the capacity</th>");
	html_cell(out, " whole", total, HOUR_DECIMALS, HOUR_DECIMALS);
	for (size_t i = 0; i < ARRAY_LEN(parts); i++)
		html_cell(out, "", milli[i], HOUR_DECIMALS, HOUR_DECIMALS);
	buf_str(out, "</tr></tbody></table>\n");
}

/* ---- budgets ---- */

/* Money has the decimals of its currency, tokens are whole. */
static void
budget_amount(const struct page *p, const struct invoice_budget *b, const char *klass, int128 amount, struct buf *out)
{
	int scale = HOUR_DECIMALS, least = 2;

	if (p->i->layout >= INVOICE_LAYOUT_WHOLE && b->unit[0] != '\0') {
		if (!budget_unit_is_money(b->unit) || !currency_exponent(b->unit, &scale, &(struct err){0}))
			scale = 0;
		least = scale;
	}
	html_cell(out, klass, div_round_half_even(amount, pow10_i128(PRICE_SCALE - scale)), scale, least);
}

static void
budget_cells(const struct page *p, const struct invoice_budget *b, int128 amount, struct buf *out)
{
	budget_amount(p, b, "", amount, out);
	buf_str(out, "<td class=\"n\">");
	html_number(out, div_round_half_even(amount * 1000, b->limit), 1, 1);
	buf_str(out, "\xc2\xa0%</td>");
}

static void
add_budget(const struct page *p, const struct invoice_budget *b, struct buf *out)
{
	const bool bounded = p->i->layout > 0;

	buf_str(out, bounded ? "<tr><th class=\"what\"><div class=\"one\">" : "<tr><th>");
	html_text(out, b->workspace[0] != '\0' ? b->workspace : "All workspaces");
	buf_printf(out, ", %s%s</th><td>%s</td>", b->hard ? "hard" : "soft", bounded ? "</div>" : "",
	           budget_unit_is_money(b->unit) ? b->unit
	           : b->unit[0] != '\0'          ? "tokens"
	                                         : "GPU-hours");
	budget_amount(p, b, " whole", b->limit, out);
	budget_cells(p, b, b->spent, out);
	budget_cells(p, b, b->forecast, out);
	buf_str(out, "</tr>\n");
}

static size_t
budgets_shown(const struct invoice_input *i)
{
	return i->budget_count < INVOICE_BUDGETS ? i->budget_count : INVOICE_BUDGETS;
}

/* The budgets that fit, and the method of the forecast. */
static void
add_budgets(const struct page *p, struct buf *out)
{
	const struct invoice_input *i = p->i;
	size_t shown = budgets_shown(i);

	if (shown == 0)
		return;
	buf_str(out,
	        "<div><table class=\"parts\"><thead><tr><th>Budgets of the month</th><th>in</th><th class=\"n\">limit</th>"
	        "<th class=\"n\">spent</th><th></th><th class=\"n\">at its end</th><th></th></tr></thead><tbody>\n");
	for (size_t k = 0; k < shown; k++)
		add_budget(p, &i->budgets[k], out);
	buf_printf(out, "</tbody></table>\n<p class=\"note\">At its end: %s.", i->budgets[0].method);
	if (i->budget_count > shown)
		buf_printf(out, " Not shown: %zu more budgets.", i->budget_count - shown);
	buf_str(out, "</p></div>\n");
}

/* ---- promises ---- */

static size_t
promises_shown(const struct invoice_input *i)
{
	return i->promise_count < INVOICE_PROMISES ? i->promise_count : INVOICE_PROMISES;
}

static void
promise_cell(struct buf *out, const char *text, const char *unit)
{
	buf_str(out, "<td class=\"n\">");
	if (text != NULL) {
		html_text(out, text);
		buf_str(out, unit);
	}
	buf_str(out, "</td>");
}

/* Promised beside measured values; a cell is empty where a value was not promised or not measured. */
static void
add_promises(const struct page *p, struct buf *out)
{
	const struct invoice_input *i = p->i;
	size_t shown = promises_shown(i);

	if (shown == 0)
		return;
	buf_str(out,
	        "<div><table class=\"parts\"><thead><tr><th>Promises of the month</th><th class=\"n\">owed within</th><th class=\"n\">requests</th>"
	        "<th class=\"n\">late</th><th class=\"n\">longest wait</th><th class=\"n\">delivered, promised</th><th class=\"n\">measured</th></tr></thead><tbody>\n");
	for (size_t k = 0; k < shown; k++) {
		const struct invoice_promise *s = &i->promises[k];
		const bool owed = s->owed_wait_seconds != NULL;

		buf_str(out, "<tr><th class=\"what\"><div class=\"one\">");
		html_text(out, s->workspace[0] != '\0' ? s->workspace : "All workspaces");
		buf_str(out, "</div></th>");
		promise_cell(out, s->owed_wait_seconds, " s");
		promise_cell(out, owed ? s->owed_requests : NULL, "");
		promise_cell(out, owed ? s->owed_late : NULL, "");
		promise_cell(out, s->longest_wait_seconds, " s");
		promise_cell(out, s->delivered_percent, "\xc2\xa0%");
		promise_cell(out, s->measured_percent, "\xc2\xa0%");
		buf_str(out, "</tr>\n");
	}
	buf_str(out, "</tbody></table>\n");
	if (i->promise_count > shown)
		buf_printf(out, "<p class=\"note\">Not shown: %zu more promises.</p>", i->promise_count - shown);
	buf_str(out, "</div>\n");
}

/* ---- rule 3: lines up to layout 2, in which months that were closed with it are made again ---- */

#define LINE_CHARS 56         /* that fit into one line of text beside one currency */
#define CHARS_PER_CURRENCY 12 /* that each further one takes */
#define LINES_PER_CURRENCY 2  /* the same of the lines above, whose words have less room */

static int128
size_of(const struct rated_line *l)
{
	return l->billed < 0 ? -l->billed : l->billed;
}

static size_t
characters_in(const char *text)
{
	size_t n = 0;

	for (; *text != '\0'; text++)
		n += ((unsigned char)*text & 0xc0) != 0x80; /* UTF-8: what begins one */
	return n;
}

/* How many lines of text a line of the report takes: rule 3. */
static size_t
layout2_text_lines(const struct page *p, const struct rated_line *l)
{
	size_t room = LINE_CHARS - (p->count - 1) * CHARS_PER_CURRENCY;

	return p->i->layout == 0 || (!corrects_line(l) && characters_in(l->description) <= room) ? 1 : 2;
}

static size_t
text_lines_left(const struct page *p)
{
	size_t budgets = budgets_shown(p->i), promises = promises_shown(p->i),
	       room = p->i->layout == 0 ? INVOICE_LINES : INVOICE_TEXT_LINES;
	bool corrected = false;

	for (size_t i = 0; i < p->i->r->count && p->i->layout > 0; i++)
		corrected = corrected || corrects_line(&p->i->r->lines[i]);
	if (p->i->layout > 0)
		room -= (p->count - 1) * LINES_PER_CURRENCY;
	return room - (budgets > 0 ? budgets + 2 : 0) - (promises > 0 ? promises + 2 : 0) - corrected;
}

struct candidate {
	const struct rated_line *line;
	size_t index;
};

static int
layout2_larger_first(const void *a, const void *b)
{
	const struct candidate *x = a, *y = b;
	int order = ORDER(size_of(y->line), size_of(x->line));

	return order ? order : ORDER(x->index, y->index);
}

/* Which lines there is room for: all, or as many of the largest as fit, ties by their order. */
static bool *
layout2_choose(const struct page *p)
{
	const struct rated *r = p->i->r;
	owned(mem) struct candidate *at = mem_array(r->count, sizeof(*at));
	bool *shown = mem_array(r->count, sizeof(*shown));
	size_t room = text_lines_left(p), needed = 0;

	for (size_t i = 0; i < r->count; i++) {
		at[i] = (struct candidate){&r->lines[i], i};
		needed += layout2_text_lines(p, &r->lines[i]);
	}
	if (needed > room)
		qsort(at, r->count, sizeof(*at), layout2_larger_first);
	else
		room = needed;
	for (size_t i = 0; i < r->count && layout2_text_lines(p, at[i].line) <= room; i++) {
		room -= layout2_text_lines(p, at[i].line);
		shown[at[i].index] = true;
	}
	return shown;
}

/* The description; of a correction also the document and the line that it changes. */
static void
layout2_add_words(const struct page *p, const struct rated_line *l, struct buf *out)
{
	const bool bounded = p->i->layout > 0;

	buf_str(out, bounded ? "<tr><td class=\"who\">" : "<tr><td>");
	html_text(out, l->workspace);
	buf_str(out, "</td>");
	if (bounded)
		buf_printf(out, "<td class=\"what\"><div class=\"%s\">", layout2_text_lines(p, l) == 1 ? "one" : "two");
	else
		buf_str(out, "<td>");
	html_text(out, l->description);
	if (corrects_line(l) && bounded) {
		buf_str(out, " <span class=\"of\">on ");
		html_text(out, l->invoice_id);
		buf_printf(out, ", corrects %.*s</span>", CORRECTED_DIGITS, l->correction_of);
	} else if (corrects_line(l)) {
		buf_str(out, " <span class=\"of\">corrects ");
		html_text(out, l->correction_of);
		buf_str(out, "</span>");
	}
	buf_str(out, bounded ? "</div></td>" : "</td>");
}

static void
layout2_add_line(const struct page *p, const struct rated_line *l, struct buf *out)
{
	layout2_add_words(p, l, out);
	html_cell(out, "", l->quantity, QUANTITY_SCALE, 2);
	buf_str(out, "<td>");
	add_unit(l, out);
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

static void
layout2_add_lines(const struct page *p, struct buf *out)
{
	const struct rated *r = p->i->r;
	owned(mem) bool *shown = layout2_choose(p);
	int128 rest[INVOICE_CURRENCIES] = {0};
	size_t left = 0;

	buf_str(out,
	        "<table class=\"lines\"><thead><tr><th>Workspace</th><th>What</th><th class=\"n\">Quantity</th><th>Unit</th>"
	        "<th class=\"n\">Price</th>");
	add_currency_heads(p, out);
	buf_str(out, "</tr></thead><tbody>\n");
	for (size_t i = 0; i < r->count; i++)
		if (shown[i]) {
			layout2_add_line(p, &r->lines[i], out);
		} else {
			rest[currency_column(p, r->lines[i].currency)] += r->lines[i].billed;
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

/* ---- lines since layout 3 ----
 *
 * Rules, in order:
 *  1. lines are grouped by currency and workspace. A group begins with its subtotal, which has all lines of the group, shown or not
 *  2. inside a group: reservations, what was made of them, credits for them, usage, other meters, one-off amounts, corrections
 *  3. quantity x list price = list; list - discount = net, before all of them are rounded
 *  4. list and discount are rounded to the currency's exponent where they are printed; net amounts are the cents of the lines, and the subtotals
 *     and the groups that are not shown add up to the total */

#define PAGE_DIGITS 92 /* of all columns beside each other, without the room between them */
#define WHAT_LEAST 12  /* characters that words have in any case */
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
		order = ORDER(corrects_line(x->line), corrects_line(y->line));
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

/* Lines without a price cost 0, and must not be hidden for it. */
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
	size_t n = characters_in(l->description), most = 2;

	if (corrects_line(l)) {
		n += strlen(" on , corrects ") + strlen(l->invoice_id) + CORRECTED_DIGITS;
		most = 3;
	}
	if (n <= words)
		return 1;
	return n + words / 4 <= 2 * words ? 2 : most;
}

/* A part of the reservation with an amount of its own, such as a credit for undelivered time. */
static bool
is_part_of(const struct entry *e, const struct entry *reservation)
{
	return e != reservation && !e->shown && e->line->billed != 0 && !corrects_line(e->line) &&
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
	size_t words = room_for_words(p), room = text_lines_left(p);

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
		if (whole && by_size[i]->line->kind == CHARGE_COMMITMENT && !corrects_line(by_size[i]->line))
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
add_sums(const struct sums *s, struct buf *out)
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
	add_sums(s, out);
}

static void
add_line(const struct entry *e, struct buf *out)
{
	static const char *const classes[] = {"", "one", "two", "three"};
	const struct rated_line *l = e->line;
	struct sums s = {0};

	buf_printf(out, "<tr><td class=\"what\"><div class=\"%s\">", classes[e->text_lines]);
	html_text(out, l->description);
	if (corrects_line(l)) {
		buf_str(out, " <span class=\"of\">on ");
		html_text(out, l->invoice_id);
		buf_printf(out, ", corrects %.*s</span>", CORRECTED_DIGITS, l->correction_of);
	}
	buf_str(out, "</div></td>");
	html_cell(out, "", l->quantity, QUANTITY_SCALE, 2);
	buf_str(out, "<td>");
	add_unit(l, out);
	buf_str(out, "</td>");
	if (l->priced)
		html_cell(out, "", l->unit_price, PRICE_SCALE, l->currency_scale);
	else
		buf_str(out, "<td class=\"n\">" HTML_DASH "</td>");
	add_to(&s, l);
	add_sums(&s, out);
}

/* Of one currency: the groups that are not shown, and all of it. */
static void
add_currency_total(const struct page *p, const struct invoice_amount *a, const struct entry *at, size_t n,
                   struct buf *out)
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
		add_sums(&rest, out);
	}
	buf_printf(out, "<tr class=\"total\"><td colspan=\"%d\">Total%s%s</td>", COLUMNS_BEFORE_SUMS,
	           p->count > 1 ? " " : "", p->count > 1 ? a->currency : "");
	add_sums(&all, out);
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

static void
add_lines(const struct page *p, struct buf *out)
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
		add_currency_total(p, &p->sums[c], at, n, out);
	buf_str(out, "</tbody></table>\n");
	add_note(p, out);
	buf_str(out, "</div>\n");
}

/* ---- the document ---- */

/* Rule 3: what has words of unknown length has so many lines of text, and no column pushes another off the page. */
#define BOUNDED_STYLE                                                                                                   \
	".lines td{white-space:nowrap;overflow-wrap:normal}.who{max-width:28mm;overflow:hidden;text-overflow:ellipsis}" \
	".what{width:99%;max-width:0}.lines .what{white-space:normal}.parts td,.status{white-space:nowrap}"             \
	".memo td{white-space:normal}.memo th{min-width:30mm}header>div{min-width:0}"                                   \
	".one,.two,dd,.from{overflow:hidden;display:-webkit-box;-webkit-box-orient:vertical;overflow-wrap:anywhere}"    \
	".one,.from{-webkit-line-clamp:1}.two,dd{-webkit-line-clamp:2}"
static const char bounded_style[] = BOUNDED_STYLE;
static const char listed_style[] = BOUNDED_STYLE
	".group>*{font-weight:600;border-top:.6pt solid #9aa5ae!important}.group .of{font-weight:400}"
	".three{overflow:hidden;display:-webkit-box;-webkit-box-orient:vertical;overflow-wrap:anywhere;-webkit-line-clamp:3}";

void
invoice_html_begin(const char *title, int64_t layout, struct buf *out)
{
	html_begin(title, layout >= INVOICE_LAYOUT_LISTED ? listed_style : layout > 0 ? bounded_style : "", out);
}

bool
invoice_html_page(const struct invoice_input *i, struct buf *out, struct err *err)
{
	struct page p = {.i = i};

	ASSERT(i->r->count > 0);
	if (!add_up(&p, err))
		return false;
	buf_str(out, "<section>\n");
	add_head(&p, out);
	buf_str(out, "<div class=\"sides\"><div class=\"side\">\n");
	add_totals(&p, out);
	buf_str(out, "</div><div class=\"side\">\n");
	add_held(&p, out);
	add_committed(&p, out);
	buf_str(out, "</div></div>\n");
	add_capacity(&p, out);
	add_budgets(&p, out);
	add_promises(&p, out);
	if (i->layout >= INVOICE_LAYOUT_LISTED)
		add_lines(&p, out);
	else
		layout2_add_lines(&p, out);
	buf_str(out,
	        "<footer>Every line of this month, with its sums and a SHA-256, is in the CSV and its manifest. Time that was down or "
	        "unknown is never billed.</footer>\n</section>\n");
	return buf_ok(out, "the invoice", err);
}

void
invoice_html_end(struct buf *out)
{
	html_end(out);
}
