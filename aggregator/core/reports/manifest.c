/* aggregator/core/reports/manifest.c - the sums of a document and its JSON. */
#include "aggregator/core/reports/manifest.h"

#include <stdio.h>
#include <string.h>

#include "common/conf/json.h"

static struct manifest_total *
total_of(struct manifest *m, const struct rated_line *l)
{
	for (size_t i = 0; i < m->total_count; i++)
		if (strcmp(m->totals[i].currency, l->currency) == 0)
			return &m->totals[i];
	if (m->total_count == MANIFEST_CURRENCIES)
		return NULL;
	struct manifest_total *t = &m->totals[m->total_count++];
	snprintf(t->currency, sizeof(t->currency), "%s", l->currency);
	t->scale = l->currency_scale;
	return t;
}

bool
manifest_add(struct manifest *m, const struct rating_input *in, const struct rated *r, int64_t rows, struct err *err)
{
	for (size_t i = 0; i < r->count; i++) {
		const struct rated_line *l = &r->lines[i];
		struct manifest_total *t = total_of(m, l);

		if (t == NULL)
			return err_set(err, ERR_INVALID, "a document has at most %d currencies", MANIFEST_CURRENCIES);
		t->list_cost += l->list_cost;
		t->discount += l->discount;
		t->rounding += l->rounding;
		t->billed += l->billed;
	}
	m->lines += (int64_t)r->count;
	m->rows += rows;
	if (in->invoice_version > m->invoice_version)
		m->invoice_version = in->invoice_version;
	return true;
}

static void
text_member(struct buf *out, const char *name, const char *value)
{
	buf_printf(out, "\"%s\":", name);
	json_write_string(value, out);
	buf_char(out, ',');
}

static void
add_total(const struct manifest_total *t, struct buf *out)
{
	char text[DECIMAL_TEXT_SIZE];

	buf_printf(out, "{\"currency\":\"%s\",", t->currency);
	text_member(out, "list_cost", decimal_format(t->list_cost, COST_SCALE, t->scale, text));
	text_member(out, "discount", decimal_format(t->discount, COST_SCALE, t->scale, text));
	text_member(out, "rounding", decimal_format(t->rounding, COST_SCALE, t->scale, text));
	buf_printf(out, "\"billed_cost\":\"%s\"}", decimal_format(t->billed, t->scale, t->scale, text));
}

void
manifest_json(const struct manifest *m, const struct manifest_document *d, struct buf *out)
{
	char hex[2 * SHA256_SIZE + 1];

	hex_encode(d->sha256, SHA256_SIZE, hex);
	buf_char(out, '{');
	text_member(out, "document", d->name);
	text_member(out, "period", d->period);
	text_member(out, "period_status", d->period_status);
	buf_str(out, "\"tenant\":");
	if (d->tenant)
		json_write_string(d->tenant, out);
	else
		buf_str(out, "null");
	buf_printf(
		out,
		",\"invoice_version\":%d,\"chargeback_lines\":%lld,\"rows\":%lld,\"bytes\":%lld,\"sha256\":\"%s\",\"sums\":[",
		m->invoice_version, (long long)m->lines, (long long)m->rows, (long long)d->bytes, hex);
	for (size_t i = 0; i < m->total_count; i++) {
		buf_str(out, i > 0 ? "," : "");
		add_total(&m->totals[i], out);
	}
	buf_str(out, "]}\n");
}
