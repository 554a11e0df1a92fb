/* aggregator/core/reports/reconcile_html.c - a reconciliation as printed pages, one for each currency. */
#include <string.h>

#include "aggregator/core/reports/html.h"
#include "aggregator/core/reports/reconcile.h"
#include "aggregator/core/rating/rounding.h"

#define HOUR_DECIMALS 3
#define NANO_PER_MILLI 1000000

struct sheet {
	const struct reconciliation *r;
	const struct reconcile_page *page;
	const struct reconcile_total *total;
	const struct reconcile_row *all; /* NULL: nothing was in service */
};

static void
add_head(const struct sheet *s, struct buf *out)
{
	bool closed = strcmp(s->r->period_status, "closed") == 0;
	in_place(buf) struct buf period = {0};

	buf_init(&period, 256);
	buf_printf(&period, "%s to %s (exclusive), %s", s->r->period_start, s->r->period_end, s->page->zone);
	buf_str(out, "<header><div><p class=\"from\">");
	html_text(out, s->page->provider);
	buf_printf(out, "</p><h1>Reconciliation %s</h1></div><p class=\"status %s\">%s</p></header>\n", s->r->period,
	           closed ? "closed" : "open", closed ? "closed" : "open " HTML_DASH " not final");
	buf_str(out, "<dl class=\"facts\">\n");
	html_fact(out, "Organisation", s->page->organisation);
	html_fact(out, "Period", buf_text(&period));
	html_fact(out, "Currency", s->total->currency);
	buf_str(out, "</dl>\n");
}

/* ---- the equation ---- */

static void
equation_row(const char *klass, const char *sign, const char *words, const int128 *milli, int128 value, int scale,
             struct buf *out)
{
	buf_printf(out, "<tr%s><th>%s", klass, sign);
	html_text(out, words);
	buf_str(out, "</th>");
	if (milli != NULL)
		html_cell(out, "", *milli, HOUR_DECIMALS, HOUR_DECIMALS);
	else
		buf_str(out, "<td></td>");
	html_cell(out, "", value, scale, scale);
	buf_str(out, "</tr>\n");
}

/* Hours that are shown as parts of a sum add up as they are printed. */
static int128
printed_hours(const struct reconcile_row *r, int128 milli[RECONCILE_HOURS])
{
	int128 sum = 0;

	if (!round_together(r->ngh, RECONCILE_HOURS, NANO_PER_MILLI, milli, &sum))
		memset(milli, 0, sizeof(*milli) * RECONCILE_HOURS);
	return sum;
}

static void
add_equation(const struct sheet *s, struct buf *out)
{
	static const char *const heads[RECONCILE_SECTIONS] = {"billed", "credits",
	                                                      "not recovered: capacity that nobody pays for",
	                                                      "other prices than list"};
	const struct reconcile_row *r = s->all;
	int128 milli[RECONCILE_HOURS], capacity = printed_hours(r, milli);

	buf_str(out, "<table class=\"parts\"><thead><tr><th>Capacity at list price</th><th class=\"n\">GPU-hours</th>");
	buf_printf(out, "<th class=\"n\">%s</th></tr></thead><tbody>\n", r->currency);
	equation_row(" class=\"whole\"", "", "Time in service at list price", &capacity, r->value, r->scale, out);
	for (size_t k = 0; k < RECONCILE_SECTIONS; k++) {
		equation_row(" class=\"whole\"", k == 0 ? "= " : "+ ", heads[k], NULL,
		             reconcile_section_sum(r, (enum reconcile_section)k), r->scale, out);
		for (size_t i = 0; i < RECONCILE_TERMS; i++) {
			const struct reconcile_naming *n = &reconcile_terms[i];

			if (n->section == k)
				equation_row(" class=\"sub\"", "", n->words, n->hours >= 0 ? &milli[n->hours] : NULL,
				             r->terms[i], r->scale, out);
		}
	}
	buf_str(out, "</tbody></table>\n");
}

/* ---- beside it ---- */

static void
amount_row(const char *klass, const char *words, int128 value, int scale, struct buf *out)
{
	buf_printf(out, "<tr%s><th>%s</th>", klass, words);
	html_cell(out, "", value, scale, scale);
	buf_str(out, "</tr>\n");
}

static void
add_total(const struct sheet *s, struct buf *out)
{
	static const char *const words[RECONCILE_BESIDES] = {"+ energy",
	                                                     "+ storage",
	                                                     "+ network",
	                                                     "+ inference",
	                                                     "+ support",
	                                                     "+ other",
	                                                     "+ one-off charges and credits",
	                                                     "+ corrections of earlier months"};
	const struct reconcile_total *t = s->total;

	buf_printf(
		out,
		"<table class=\"parts\"><thead><tr><th>Total of the report</th><th class=\"n\">%s</th></tr></thead><tbody>\n",
		t->currency);
	amount_row("", "Capacity: billed and credits", t->capacity, t->scale, out);
	for (size_t i = 0; i < RECONCILE_BESIDES; i++)
		amount_row("", words[i], t->beside[i], t->scale, out);
	amount_row(" class=\"total\"", "Total of all invoices", t->total, t->scale, out);
	if (t->platform_cost >= 0) {
		amount_row("", "Platform cost of the month, by policy", t->platform_cost, t->scale, out);
		amount_row(" class=\"total\"",
		           t->total < t->platform_cost ? "Not recovered of it" : "Recovered beyond it",
		           t->total < t->platform_cost ? t->platform_cost - t->total : t->total - t->platform_cost,
		           t->scale, out);
	}
	buf_str(out, "</tbody></table>\n<p class=\"note\">");
	if (t->platform_cost > 0) {
		buf_str(out, "Recovered: ");
		html_number(out, div_round_half_even(t->total * 1000, t->platform_cost), 1, 1);
		buf_str(out, "\xc2\xa0% of what the platform costs in a month.");
	} else if (t->platform_cost < 0) {
		buf_str(out, "The policy does not say what the platform costs (prices: platform_cost).");
	}
	buf_str(out, "</p>\n");
}

static void
add_reserved(const struct sheet *s, struct buf *out)
{
	const struct reconcile_row *r = s->all;
	static const struct {
		const char *words;
		enum reconcile_hours hours;
	} rows[] = {{"covered: held by who reserved it", HOURS_COVERED},
	            {"lent: held by who borrowed it", HOURS_BORROWED},
	            {"unused", HOURS_UNUSED}};

	buf_str(out,
	        "<table class=\"parts\"><thead><tr><th>Reserved and delivered</th><th class=\"n\">GPU-hours</th></tr></thead><tbody>\n");
	for (size_t i = 0; i < ARRAY_LEN(rows); i++)
		amount_row("", rows[i].words, div_round_half_even(r->ngh[rows[i].hours], NANO_PER_MILLI), HOUR_DECIMALS,
		           out);
	buf_str(out, "</tbody></table>\n");
}

/* ---- by cluster and model ---- */

static void
add_row(const struct reconcile_row *r, struct buf *out)
{
	buf_printf(out, "<tr%s><td>", r->level == LEVEL_MODEL ? "" : " class=\"whole\"");
	html_text(out, r->level == LEVEL_ALL ? "Everything" : r->cluster);
	buf_str(out, "</td><td>");
	html_text(out, r->gpu_model);
	buf_str(out, "</td>");
	html_cell(out, "", div_round_half_even(r->capacity_ngh, NANO_PER_MILLI), HOUR_DECIMALS, HOUR_DECIMALS);
	if (r->list_price >= 0)
		html_cell(out, "", r->list_price, PRICE_SCALE, r->scale);
	else
		buf_printf(out, "<td class=\"n\">%s</td>", r->level == LEVEL_MODEL ? HTML_DASH : "");
	html_cell(out, "", r->value, r->scale, r->scale);
	for (size_t k = 0; k < RECONCILE_SECTIONS; k++)
		html_cell(out, "", reconcile_section_sum(r, (enum reconcile_section)k), r->scale, r->scale);
	buf_str(out, "</tr>\n");
}

static void
add_rows(const struct sheet *s, struct buf *out)
{
	buf_str(out,
	        "<table class=\"lines\"><thead><tr><th>Cluster</th><th>GPU model</th><th class=\"n\">GPU-hours</th>"
	        "<th class=\"n\">List price</th><th class=\"n\">At list price</th><th class=\"n\">= billed</th>"
	        "<th class=\"n\">+ credits</th><th class=\"n\">+ not recovered</th><th class=\"n\">+ prices</th></tr></thead><tbody>\n");
	for (size_t i = 0; i < s->r->count; i++)
		if (strcmp(s->r->rows[i].currency, s->total->currency) == 0)
			add_row(&s->r->rows[i], out);
	buf_str(out, "</tbody></table>\n");
}

static void
add_notes(const struct sheet *s, struct buf *out)
{
	const struct reconcile_row *r = s->all;

	buf_str(out, "<p class=\"note\">");
	if (r->unpriced_ngh > 0) {
		html_number(out, div_round_half_even(r->unpriced_ngh, NANO_PER_MILLI), HOUR_DECIMALS, HOUR_DECIMALS);
		buf_str(out, " GPU-hours have no list price, and are worth nothing here. ");
	}
	if (r->differs) {
		buf_str(out, "<strong>");
		html_number(out, div_round_half_even(r->differ_ngh, NANO_PER_MILLI), HOUR_DECIMALS, HOUR_DECIMALS);
		buf_str(out,
		        " GPU-hours were billed otherwise than the ledger has them now:</strong> they changed after the month was "
		        "closed, and are corrected in a later one. ");
	} else {
		buf_str(out, "The hours that were billed are those of the capacity, to the nanosecond.");
	}
	buf_str(out, "</p>\n");
}

static void
add_sheet(const struct sheet *s, struct buf *out)
{
	buf_str(out, "<section>\n");
	add_head(s, out);
	if (s->all != NULL) {
		buf_str(out, "<div class=\"sides\"><div class=\"side\">\n");
		add_equation(s, out);
		buf_str(out, "</div><div class=\"side\">\n");
		add_total(s, out);
		add_reserved(s, out);
		add_notes(s, out);
		buf_str(out, "</div></div>\n");
		add_rows(s, out);
	} else {
		add_total(s, out);
	}
	buf_str(out,
	        "<footer>The list price is what the price book asks of everybody for a whole GPU on demand. Time that was down or "
	        "unknown is never billed. Every term is also in the CSV of this page.</footer>\n</section>\n");
}

bool
reconcile_html(const struct reconciliation *r, const struct reconcile_page *page, struct buf *out, struct err *err)
{
	const struct reconcile_total nothing = {.platform_cost = -1};
	in_place(buf) struct buf title = {0};

	buf_init(&title, 256);
	buf_printf(&title, "Reconciliation %s", r->period);
	html_begin(buf_text(&title), "", out);
	for (size_t i = 0; i < (r->total_count > 0 ? r->total_count : 1); i++) {
		struct sheet s = {.r = r, .page = page, .total = r->total_count > 0 ? &r->totals[i] : &nothing};

		for (size_t k = 0; k < r->count; k++)
			if (r->rows[k].level == LEVEL_ALL && strcmp(r->rows[k].currency, s.total->currency) == 0)
				s.all = &r->rows[k];
		add_sheet(&s, out);
	}
	html_end(out);
	return buf_ok(out, "the reconciliation", err);
}
