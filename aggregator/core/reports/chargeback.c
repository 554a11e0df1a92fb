/* aggregator/core/reports/chargeback.c - rated lines as the chargeback CSV and as JSON, from one table of columns. */
#include "aggregator/core/reports/chargeback.h"

#include <string.h>

#include "aggregator/core/rating/rating.h"
#include "common/conf/json.h"

#define CELL_MAX (64u << 10) /* of one column of one line */
#define RATIO_DECIMALS 6
#define ENERGY_DECIMALS 6
#define ENERGY_MJ_PER_MICRO_KWH (MJ_PER_KWH / 1000000)

/* ---- cells ---- */

static void
cell_decimal(struct buf *b, int128 value, int scale, int min_decimals)
{
	char text[DECIMAL_TEXT_SIZE];

	buf_str(b, decimal_format(value, scale, min_decimals, text));
}

static void
cell_hours(struct buf *b, int128 nano_hours)
{
	cell_decimal(b, nano_hours, QUANTITY_SCALE, QUANTITY_SCALE);
}

/* Lines that are not of GPUs leave the columns of GPUs empty. */
static void
cell_gpu_hours(struct buf *b, const struct rated_line *l, int128 nano_hours)
{
	if (l->kind != CHARGE_METER && l->kind != CHARGE_ENERGY && l->kind != CHARGE_ADJUSTMENT)
		cell_hours(b, nano_hours);
}

/* Exact, with as many decimals as it needs and at least the currency's. */
static void
cell_cost(struct buf *b, const struct rated_line *l, int128 cost)
{
	cell_decimal(b, cost, COST_SCALE, l->currency_scale);
}

typedef void cell_fn(const struct rating_input *in, const struct rated_line *l, struct buf *out);

#define TEXT_CELL(name, value)                                                                              \
	static void cell_##name(const struct rating_input *in, const struct rated_line *l, struct buf *out) \
	{                                                                                                   \
		(void)in;                                                                                   \
		(void)l;                                                                                    \
		buf_str(out, (value));                                                                      \
	}
#define CELL(name, statement)                                                                               \
	static void cell_##name(const struct rating_input *in, const struct rated_line *l, struct buf *out) \
	{                                                                                                   \
		(void)in;                                                                                   \
		statement;                                                                                  \
	}

TEXT_CELL(period_start, l->period_start != NULL ? l->period_start : in->period_start)
TEXT_CELL(period_end, l->period_end != NULL ? l->period_end : in->period_end)
TEXT_CELL(period_status, in->period_status)
TEXT_CELL(invoice_id, l->invoice_id)
TEXT_CELL(line_id, l->line_id)
TEXT_CELL(cluster, l->cluster)
TEXT_CELL(tenant, l->tenant)
TEXT_CELL(cost_center, l->cost_center)
TEXT_CELL(workspace, l->workspace)
TEXT_CELL(charge_type, l->charge_type)
TEXT_CELL(category, l->category)
TEXT_CELL(sku, l->sku)
TEXT_CELL(gpu_model, l->gpu_model)
TEXT_CELL(mig_profile, l->mig_profile)
TEXT_CELL(sharing_mode, l->sharing_mode)
TEXT_CELL(class, l->klass)
TEXT_CELL(price_version, l->price_version)
TEXT_CELL(currency, l->currency)
TEXT_CELL(counterparty, l->counterparty)
TEXT_CELL(description, l->description)
TEXT_CELL(correction_of, l->correction_of != NULL ? l->correction_of : "")

static void
cell_unit(const struct rating_input *in, const struct rated_line *l, struct buf *out)
{
	owned(mem) char *unit = rating_unit_text(&l->unit);

	(void)in;
	buf_str(out, unit);
}

static void
cell_invoice_version(const struct rating_input *in, const struct rated_line *l, struct buf *out)
{
	buf_i64(out, l->correction_of != NULL ? l->invoice_version : in->invoice_version);
}

CELL(allocated_gpu_hours, cell_gpu_hours(out, l, l->allocated_ngh))
CELL(used_gpu_hours, cell_gpu_hours(out, l, l->used_ngh))
CELL(idle_gpu_hours, cell_gpu_hours(out, l, l->idle_ngh))
CELL(unmeasured_gpu_hours, cell_gpu_hours(out, l, l->unmeasured_ngh))
CELL(quantity, cell_hours(out, l->quantity))
CELL(list_cost, cell_cost(out, l, l->list_cost))
CELL(discount, cell_cost(out, l, l->discount))
CELL(rounding, cell_cost(out, l, l->rounding))
CELL(billed_cost, cell_decimal(out, l->billed, l->currency_scale, l->currency_scale))

/* Unknown time has no holder, hence it is on no usage line. */
static void
cell_unknown_gpu_hours(const struct rating_input *in, const struct rated_line *l, struct buf *out)
{
	(void)in;
	cell_gpu_hours(out, l, 0);
}

/* Which part of the allocated time has a measurement. Of nothing there is no ratio: the cell stays empty. */
static void
cell_measured_ratio(const struct rating_input *in, const struct rated_line *l, struct buf *out)
{
	int128 measured = l->used_ngh + l->idle_ngh;

	(void)in;
	if (l->allocated_ngh > 0)
		cell_decimal(out, div_round_half_even(measured * pow10_i128(RATIO_DECIMALS), l->allocated_ngh),
		             RATIO_DECIMALS, RATIO_DECIMALS);
}

/* Empty without a price, which is not the same as a price of 0. */
static void
cell_unit_price(const struct rating_input *in, const struct rated_line *l, struct buf *out)
{
	(void)in;
	if (l->priced)
		cell_decimal(out, l->unit_price, PRICE_SCALE, l->currency_scale);
}

/* The energy of what was held; where it has a price, its quantity is on a line of its own. */
static void
cell_energy_kwh(const struct rating_input *in, const struct rated_line *l, struct buf *out)
{
	(void)in;
	if (l->kind != CHARGE_METER && l->kind != CHARGE_ENERGY && l->kind != CHARGE_ADJUSTMENT)
		cell_decimal(out, div_round_half_even(l->energy_mj, ENERGY_MJ_PER_MICRO_KWH), ENERGY_DECIMALS,
		             ENERGY_DECIMALS);
}

/* ---- the table ---- */

enum column_kind { COLUMN_TEXT, COLUMN_NUMBER };

struct column {
	const char *name;
	enum column_kind kind;
	cell_fn *cell;
};

#define T(name)                                 \
	{                                       \
#name, COLUMN_TEXT, cell_##name \
	}
#define N(name)                                   \
	{                                         \
#name, COLUMN_NUMBER, cell_##name \
	}

/* A public contract: finance imports by these names in this order. */
static const struct column columns[] = {
	T(period_start),
	T(period_end),
	T(period_status),
	T(invoice_id),
	N(invoice_version),
	T(line_id),
	T(cluster),
	T(tenant),
	T(cost_center),
	T(workspace),
	T(charge_type),
	T(category),
	T(sku),
	T(gpu_model),
	T(mig_profile),
	T(sharing_mode),
	T(class),
	N(allocated_gpu_hours),
	N(used_gpu_hours),
	N(idle_gpu_hours),
	N(unmeasured_gpu_hours),
	N(unknown_gpu_hours),
	N(measured_ratio),
	N(quantity),
	T(unit),
	N(unit_price),
	T(price_version),
	N(list_cost),
	N(discount),
	N(rounding),
	N(billed_cost),
	T(currency),
	N(energy_kwh),
	T(counterparty),
	T(description),
	T(correction_of),
};

/* ---- CSV ---- */

static void
add_escaped(struct buf *out, const char *text, const char *prefix)
{
	if (strpbrk(text, "\",\r\n") == NULL) {
		buf_str(out, prefix);
		buf_str(out, text);
		return;
	}
	buf_char(out, '"');
	buf_str(out, prefix);
	for (; *text != '\0'; text++) {
		if (*text == '"')
			buf_char(out, '"');
		buf_char(out, *text);
	}
	buf_char(out, '"');
}

void
csv_field(struct buf *out, const char *text)
{
	add_escaped(out, text, "");
}

/* Spreadsheets run a cell that begins with one of these as a formula; the apostrophe makes it text. */
void
csv_text_field(struct buf *out, const char *text)
{
	add_escaped(out, text, text[0] != '\0' && strchr("=+-@\t\r", text[0]) != NULL ? "'" : "");
}

/* A text that a spreadsheet would make a number or a date of: it begins with a digit and has nothing but digits, signs and an
 * exponent. */
static bool
looks_like_a_number(const char *text)
{
	return text[0] >= '0' && text[0] <= '9' && text[strspn(text, "0123456789.,:/eE+-")] == '\0';
}

/* In quotes, always: a semicolon or a line end may be in it. */
static void
excel_text(struct buf *out, const char *text, bool date)
{
	const bool guarded = !date && looks_like_a_number(text);
	in_place(buf) struct buf cell = {0};

	buf_init(&cell, CELL_MAX + 8);
	buf_printf(&cell, guarded ? "=\"%s\"" : "%s%s",
	           guarded                                                  ? text
	           : text[0] != '\0' && strchr("=+-@\t\r", text[0]) != NULL ? "'"
	                                                                    : "",
	           text);
	buf_char(out, '"');
	for (const char *c = buf_text(&cell); *c != '\0'; c++) {
		if (*c == '"')
			buf_char(out, '"');
		buf_char(out, *c);
	}
	buf_char(out, '"');
}

static void
csv_cell(const struct column *c, const char *text, enum csv_dialect dialect, struct buf *out)
{
	if (dialect == CSV_EXCEL && c->kind == COLUMN_NUMBER) {
		for (; *text != '\0'; text++)
			buf_char(out, *text == '.' ? ',' : *text);
	} else if (dialect == CSV_EXCEL) {
		if (text[0] != '\0')
			excel_text(out, text, c->cell == cell_period_start || c->cell == cell_period_end);
	} else if (c->kind == COLUMN_TEXT) {
		csv_text_field(out, text);
	} else {
		csv_field(out, text);
	}
}

static bool
csv_line(const struct rating_input *in, const struct rated_line *l, enum csv_dialect dialect, struct buf *cell,
         struct buf *out, struct err *err)
{
	for (size_t i = 0; i < ARRAY_LEN(columns); i++) {
		buf_clear(cell);
		columns[i].cell(in, l, cell);
		if (!buf_ok(cell, columns[i].name, err))
			return false;
		if (i > 0)
			buf_char(out, dialect == CSV_EXCEL ? ';' : ',');
		csv_cell(&columns[i], buf_text(cell), dialect, out);
	}
	buf_str(out, "\r\n");
	return true;
}

void
report_csv_header(enum csv_dialect dialect, struct buf *out)
{
	buf_str(out, dialect == CSV_EXCEL ? "\xef\xbb\xbf" : "");
	for (size_t i = 0; i < ARRAY_LEN(columns); i++) {
		buf_str(out, i == 0 ? "" : dialect == CSV_EXCEL ? ";" : ",");
		csv_field(out, columns[i].name);
	}
	buf_str(out, "\r\n");
}

bool
report_csv_rows(const struct rating_input *in, const struct rated *r, enum csv_dialect dialect, struct buf *out,
                struct err *err)
{
	in_place(buf) struct buf cell = {0};

	buf_init(&cell, CELL_MAX);
	for (size_t i = 0; i < r->count; i++)
		if (!csv_line(in, &r->lines[i], dialect, &cell, out, err))
			return false;
	return buf_ok(out, "the chargeback report", err);
}

bool
report_csv(const struct rating_input *in, const struct rated *r, struct buf *out, struct err *err)
{
	report_csv_header(CSV_RFC4180, out);
	return report_csv_rows(in, r, CSV_RFC4180, out, err);
}

/* ---- JSON ---- */

static void
json_member(struct buf *out, bool first, const char *name, const char *value)
{
	buf_str(out, first ? "" : ",");
	json_write_string(name, out);
	buf_char(out, ':');
	json_write_string(value, out);
}

static bool
json_line(const struct rating_input *in, const struct rated_line *l, struct buf *cell, struct buf *out, struct err *err)
{
	buf_char(out, '{');
	for (size_t i = 0; i < ARRAY_LEN(columns); i++) {
		buf_clear(cell);
		columns[i].cell(in, l, cell);
		if (!buf_ok(cell, columns[i].name, err))
			return false;
		json_member(out, i == 0, columns[i].name, buf_text(cell));
	}
	/* a document of a closed month has none, and stays what it was */
	buf_str(out, l->provisional ? ",\"provisional\":true}" : "}");
	return true;
}

static bool
same_total(const struct rated_line *a, const struct rated_line *b)
{
	return strcmp(a->invoice_id, b->invoice_id) == 0 && strcmp(a->currency, b->currency) == 0;
}

/* A line is the first of its invoice and currency when no earlier line of the tenant, which are its neighbours,
 * has them. */
static bool
opens_total(const struct rated *r, size_t index)
{
	for (size_t i = index; i > 0 && strcmp(r->lines[i - 1].tenant, r->lines[index].tenant) == 0; i--)
		if (same_total(&r->lines[i - 1], &r->lines[index]))
			return false;
	return true;
}

static void
json_total(const struct rated *r, size_t index, struct buf *out)
{
	const struct rated_line *head = &r->lines[index];
	char hours[DECIMAL_TEXT_SIZE], billed[DECIMAL_TEXT_SIZE];
	int128 ngh = 0, sum = 0;

	for (size_t i = index; i < r->count && strcmp(r->lines[i].tenant, head->tenant) == 0; i++)
		if (same_total(&r->lines[i], head)) {
			ngh += r->lines[i].allocated_ngh;
			sum += r->lines[i].billed;
		}
	buf_char(out, '{');
	json_member(out, true, "invoice_id", head->invoice_id);
	json_member(out, false, "tenant", head->tenant);
	json_member(out, false, "allocated_gpu_hours", decimal_format(ngh, QUANTITY_SCALE, QUANTITY_SCALE, hours));
	json_member(out, false, "billed_cost", decimal_format(sum, head->currency_scale, head->currency_scale, billed));
	json_member(out, false, "currency", head->currency);
	buf_char(out, '}');
}

void
report_json_begin(const struct rating_input *in, struct buf *out)
{
	buf_char(out, '{');
	json_member(out, true, "period", in->period);
	json_member(out, false, "period_status", in->period_status);
	json_member(out, false, "currency", in->currency);
	buf_str(out, ",\"lines\":[");
}

bool
report_json_rows(const struct rating_input *in, const struct rated *r, bool first, struct buf *out, struct buf *totals,
                 struct err *err)
{
	in_place(buf) struct buf cell = {0};

	buf_init(&cell, CELL_MAX);
	for (size_t i = 0; i < r->count; i++) {
		buf_str(out, first && i == 0 ? "\n" : ",\n");
		if (!json_line(in, &r->lines[i], &cell, out, err))
			return false;
		if (!opens_total(r, i))
			continue;
		buf_str(totals, totals->len > 0 ? ",\n" : "\n");
		json_total(r, i, totals);
	}
	return buf_ok(out, "the chargeback report", err) && buf_ok(totals, "the totals of the chargeback report", err);
}

void
report_json_promise(const char *tenant, const struct invoice_promise *p, struct buf *promises)
{
	const struct {
		const char *name, *value;
	} members[] = {{"workspace", p->workspace},
	               {"owed_wait_seconds", p->owed_wait_seconds},
	               {"owed_requests", p->owed_requests},
	               {"owed_late", p->owed_late},
	               {"longest_wait_seconds", p->longest_wait_seconds},
	               {"owed_kept", p->owed_kept},
	               {"delivered_percent", p->delivered_percent},
	               {"measured_percent", p->measured_percent},
	               {"delivered_kept", p->delivered_kept}};

	buf_str(promises, promises->len > 0 ? ",\n{" : "\n{");
	json_member(promises, true, "tenant", tenant);
	for (size_t i = 0; i < ARRAY_LEN(members); i++)
		if (members[i].value != NULL)
			json_member(promises, false, members[i].name, members[i].value);
	buf_char(promises, '}');
}

void
report_json_end(struct buf *totals, struct buf *promises, struct buf *out)
{
	buf_str(out, "],\"totals\":[");
	buf_add(out, buf_text(totals), totals->len);
	if (promises->len > 0) {
		buf_str(out, "],\"promises\":[");
		buf_add(out, buf_text(promises), promises->len);
	}
	buf_str(out, "]}\n");
}

#define TOTALS_MAX (64u << 20)

bool
report_json(const struct rating_input *in, const struct rated *r, struct buf *out, struct err *err)
{
	in_place(buf) struct buf totals = {0}, promises = {0};

	buf_init(&totals, TOTALS_MAX);
	buf_init(&promises, TOTALS_MAX);
	report_json_begin(in, out);
	if (!report_json_rows(in, r, true, out, &totals, err))
		return false;
	report_json_end(&totals, &promises, out);
	return buf_ok(out, "the chargeback report", err);
}
