/* aggregator/core/reports/reconcile_text.c - a reconciliation as JSON and as a table. */
#include <string.h>

#include "aggregator/core/reports/reconcile.h"
#include "aggregator/core/reports/report.h"
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

/* What every row of it begins with. */
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
