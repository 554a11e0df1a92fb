/* aggregator/core/reports/reconcile_report.c - a reconciliation as JSON, as CSV and as printed pages, one for each currency. */
#include "aggregator/core/reports/reconcile.h"

#include <string.h>

#include "aggregator/core/rating/rounding.h"
#include "aggregator/core/reports/html.h"
#include "aggregator/core/reports/chargeback.h"
#include "common/conf/json.h"

static const char *const levels[] = {[LEVEL_MODEL] = "model", [LEVEL_CLUSTER] = "cluster", [LEVEL_ALL] = "all"};

static void
hours(struct buf *out, int128 ngh)
{
	char text[DECIMAL_TEXT_SIZE];

	buf_str(out, decimal_format(ngh, QUANTITY_SCALE, QUANTITY_SCALE, text));
}

static void
amount(struct buf *out, int128 value, int scale)
{
	char text[DECIMAL_TEXT_SIZE];

	buf_str(out, decimal_format(value, scale, scale, text));
}

/* ---- JSON ---- */

static void
json_amount(struct buf *out, const char *name, int128 value, int scale)
{
	buf_printf(out, ",\"%s\":\"", name);
	amount(out, value, scale);
	buf_char(out, '"');
}

static void
json_hours(struct buf *out, const char *comma, const char *name, int128 ngh)
{
	buf_printf(out, "%s\"%s\":\"", comma, name);
	hours(out, ngh);
	buf_char(out, '"');
}

static void
json_row(const struct reconcile_row *r, struct buf *out)
{
	char price[DECIMAL_TEXT_SIZE];

	buf_printf(out, "{\"level\":\"%s\",\"cluster\":", levels[r->level]);
	json_write_string(r->cluster, out);
	buf_str(out, ",\"gpu_model\":");
	json_write_string(r->gpu_model, out);
	buf_printf(out, ",\"currency\":\"%s\",\"list_price\":", r->currency);
	if (r->list_price >= 0)
		buf_printf(out, "\"%s\"", decimal_format(r->list_price, PRICE_SCALE, r->scale, price));
	else
		buf_str(out, "null");
	json_hours(out, ",", "capacity_gpu_hours", r->capacity_ngh);
	buf_str(out, ",\"gpu_hours\":{");
	for (size_t i = 0; i < RECONCILE_HOURS; i++)
		json_hours(out, i > 0 ? "," : "", reconcile_hours_names[i], r->ngh[i]);
	buf_char(out, '}');
	json_hours(out, ",", "unpriced_gpu_hours", r->unpriced_ngh);
	json_hours(out, ",", "differing_gpu_hours", r->differ_ngh);
	json_amount(out, "capacity_value", r->value, r->scale);
	for (size_t s = 0; s < RECONCILE_SECTIONS; s++)
		json_amount(out, reconcile_sections[s], reconcile_section_sum(r, (enum reconcile_section)s), r->scale);
	buf_str(out, ",\"terms\":[");
	for (size_t i = 0; i < RECONCILE_TERMS; i++) {
		buf_printf(out, "%s{\"section\":\"%s\",\"item\":\"%s\"", i > 0 ? "," : "",
		           reconcile_sections[reconcile_terms[i].section], reconcile_terms[i].name);
		json_amount(out, "amount", r->terms[i], r->scale);
		buf_char(out, '}');
	}
	buf_printf(out, "],\"agrees\":%s}", r->differs ? "false" : "true");
}

static void
json_total(const struct reconcile_total *t, struct buf *out)
{
	buf_printf(out, "{\"currency\":\"%s\"", t->currency);
	json_amount(out, "capacity", t->capacity, t->scale);
	for (size_t i = 0; i < RECONCILE_BESIDES; i++)
		json_amount(out, reconcile_beside_names[i], t->beside[i], t->scale);
	json_amount(out, "total", t->total, t->scale);
	if (t->platform_cost >= 0) {
		json_amount(out, "platform_cost", t->platform_cost, t->scale);
		json_amount(out, "difference", t->total - t->platform_cost, t->scale);
	} else {
		buf_str(out, ",\"platform_cost\":null,\"difference\":null");
	}
	buf_char(out, '}');
}

bool
reconcile_json(const struct reconciliation *r, struct buf *out, struct err *err)
{
	buf_printf(
		out,
		"{\"period\":\"%s\",\"period_status\":\"%s\",\"period_start\":\"%s\",\"period_end\":\"%s\",\"rows\":[",
		r->period, r->period_status, r->period_start, r->period_end);
	for (size_t i = 0; i < r->count; i++) {
		buf_str(out, i > 0 ? ",\n" : "\n");
		json_row(&r->rows[i], out);
	}
	buf_str(out, "],\"totals\":[");
	for (size_t i = 0; i < r->total_count; i++) {
		buf_str(out, i > 0 ? ",\n" : "\n");
		json_total(&r->totals[i], out);
	}
	buf_str(out, "]}\n");
	return buf_ok(out, "the reconciliation", err);
}

/* ---- CSV ---- */

/* The first columns of every row. */
struct place {
	const struct reconciliation *of;
	const char *level, *cluster, *gpu_model, *currency;
	int scale;
};

/* ngh -1: the item is not about hours. value NULL: it has no amount. */
static void
csv_item(const struct place *p, const char *section, const char *item, int128 ngh, const int128 *value,
         const char *words, struct buf *out)
{
	buf_printf(out, "%s,%s,%s,", p->of->period, p->of->period_status, p->level);
	csv_text_field(out, p->cluster);
	buf_char(out, ',');
	csv_text_field(out, p->gpu_model);
	buf_printf(out, ",%s,%s,%s,", p->currency, section, item);
	if (ngh >= 0)
		hours(out, ngh);
	buf_char(out, ',');
	if (value != NULL)
		amount(out, *value, p->scale);
	buf_char(out, ',');
	csv_text_field(out, words);
	buf_str(out, "\r\n");
}

static void
csv_row(const struct reconciliation *of, const struct reconcile_row *r, struct buf *out)
{
	const struct place p = {of, levels[r->level], r->cluster, r->gpu_model, r->currency, r->scale};

	csv_item(&p, "capacity", "list-price", r->capacity_ngh, &r->value, "Time in service at list price", out);
	for (size_t i = 0; i < RECONCILE_TERMS; i++)
		csv_item(&p, reconcile_sections[reconcile_terms[i].section], reconcile_terms[i].name,
		         reconcile_terms[i].hours >= 0 ? r->ngh[reconcile_terms[i].hours] : -1, &r->terms[i],
		         reconcile_terms[i].words, out);
	csv_item(&p, "hours", "covered", r->ngh[HOURS_COVERED], NULL, "Reserved, and held by who reserved it", out);
	csv_item(&p, "hours", "unused", r->ngh[HOURS_UNUSED], NULL, "Reserved, and neither held nor lent", out);
	csv_item(&p, "hours", "unpriced", r->unpriced_ngh, NULL, "Without a list price", out);
	csv_item(&p, "hours", "differing", r->differ_ngh, NULL, "Billed otherwise than capacity is now", out);
}

static void
csv_total(const struct reconciliation *of, const struct reconcile_total *t, struct buf *out)
{
	const struct place p = {of, "report", "", "", t->currency, t->scale};
	int128 difference = t->total - t->platform_cost;

	csv_item(&p, "total", "capacity", -1, &t->capacity, "Billed and credited for capacity", out);
	for (size_t i = 0; i < RECONCILE_BESIDES; i++)
		csv_item(&p, "beside", reconcile_beside_names[i], -1, &t->beside[i], "Billed beside capacity", out);
	csv_item(&p, "total", "report", -1, &t->total, "Total of the month's report", out);
	if (t->platform_cost < 0)
		return;
	csv_item(&p, "platform", "cost", -1, &t->platform_cost, "What the platform costs in a month, by policy", out);
	csv_item(&p, "platform", "difference", -1, &difference, "Total of the report less that", out);
}

bool
reconcile_csv(const struct reconciliation *r, struct buf *out, struct err *err)
{
	buf_str(out,
	        "period,period_status,level,cluster,gpu_model,currency,section,item,gpu_hours,amount,description\r\n");
	for (size_t i = 0; i < r->count; i++)
		csv_row(r, &r->rows[i], out);
	for (size_t i = 0; i < r->total_count; i++)
		csv_total(r, &r->totals[i], out);
	return buf_ok(out, "the reconciliation", err);
}

/* ---- pages ---- */

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
