/* aggregator/core/rating/price_preview.c - the cost of a month with its own price book and with a proposed one. */
#include "aggregator/core/rating/price_preview.h"

#include <stdio.h>
#include <string.h>

#include "common/conf/json.h"

void
price_preview_fini(struct price_preview *p)
{
	for (size_t i = 0; i < p->count; i++)
		mem_free(p->rows[i].tenant);
	mem_free(p->rows);
}

/* Tenants come one after the other: the row is nearly always among the last ones, or new. */
static struct price_preview_row *
row_of(struct price_preview *p, const struct rated_line *l)
{
	struct price_preview_row *r;

	for (size_t i = p->count; i > 0; i--)
		if (strcmp(p->rows[i - 1].tenant, l->tenant) == 0 && strcmp(p->rows[i - 1].currency, l->currency) == 0)
			return &p->rows[i - 1];
	array_room(p->rows, p->count, p->cap);
	r = &p->rows[p->count++];
	*r = (struct price_preview_row){.tenant = mem_strdup(l->tenant), .scale = l->currency_scale};
	snprintf(r->currency, sizeof(r->currency), "%s", l->currency);
	return r;
}

bool
price_preview_add(struct price_preview *p, const struct rating_input *in, bool then, struct err *err)
{
	owned(rated) struct rated *rated = NULL;

	if (!rating_run(in, &rated, err))
		return false;
	for (size_t i = 0; i < rated->count; i++) {
		struct price_preview_row *r = row_of(p, &rated->lines[i]);

		*(then ? &r->then : &r->now) += rated->lines[i].billed;
		r->unpriced += then && !rated->lines[i].priced;
	}
	return true;
}

static void
write_amounts(struct buf *out, int128 now, int128 then, int scale)
{
	char text[DECIMAL_TEXT_SIZE];

	buf_printf(out, "\"now\":\"%s\"", decimal_format(now, scale, scale, text));
	buf_printf(out, ",\"then\":\"%s\"", decimal_format(then, scale, scale, text));
	buf_printf(out, ",\"difference\":\"%s\"", decimal_format(then - now, scale, scale, text));
}

/* Is this the first row of its currency? */
static bool
is_first(const struct price_preview *p, size_t row)
{
	for (size_t i = 0; i < row; i++)
		if (strcmp(p->rows[i].currency, p->rows[row].currency) == 0)
			return false;
	return true;
}

static void
write_totals(const struct price_preview *p, struct buf *out)
{
	const char *before = "";

	for (size_t i = 0; i < p->count; i++) {
		int128 now = 0, then = 0;

		if (!is_first(p, i))
			continue;
		for (size_t k = i; k < p->count; k++)
			if (strcmp(p->rows[k].currency, p->rows[i].currency) == 0) {
				now += p->rows[k].now;
				then += p->rows[k].then;
			}
		buf_printf(out, "%s{\"currency\":\"%s\",", before, p->rows[i].currency);
		write_amounts(out, now, then, p->rows[i].scale);
		buf_char(out, '}');
		before = ",";
	}
}

void
price_preview_json(const struct price_preview *p, const struct rating_input *in, const char *version, struct buf *out)
{
	buf_printf(out, "{\"period\":\"%s\",\"status\":\"%s\",\"version\":", in->period, in->period_status);
	json_write_string(version, out);
	buf_str(out, ",\"tenants\":[");
	for (size_t i = 0; i < p->count; i++) {
		const struct price_preview_row *r = &p->rows[i];

		buf_printf(out, "%s{\"tenant\":\"%s\",\"currency\":\"%s\",", i ? "," : "", r->tenant, r->currency);
		write_amounts(out, r->now, r->then, r->scale);
		buf_printf(out, ",\"unpriced_lines\":%zu}", r->unpriced);
	}
	buf_str(out, "],\"totals\":[");
	write_totals(p, out);
	buf_str(out, "]}\n");
}
