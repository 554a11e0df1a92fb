/* aggregator/store/document.c - a month as CSV, JSON, FOCUS or HTML, tenant by tenant, into a file without a name. */
#include "aggregator/store/document.h"

#include <stdio.h>
#include <string.h>

#include "aggregator/core/focus.h"
#include "aggregator/core/invoice_html.h"
#include "aggregator/core/report.h"
#include "aggregator/store/db.h"
#include "aggregator/store/finance.h"
#include "aggregator/store/period_rows.h"

#define TOTALS_MAX (64u << 20) /* of a JSON document: a hundred bytes for each invoice */
#define NAME_MAX_BYTES 1024
#define STORED_MAX (1000u << 20)
#define STORED_PIECE (1u << 20)

struct document {
	struct db *db;
	const struct document_request *rq;
	struct spill *to;
	struct document_result result;
	bool stored; /* the bytes are there: lines are only counted */
	struct buf totals, account_id;
	struct focus_input focus;
	/* Texts point into these. */
	PGresult *bounds, *periods, *tenants;
	const char **day_bounds;
	struct focus_period *period_rows;
	size_t period_count;
	/* Of an invoice: the month before, by tenant. */
	struct previous *previous;
	size_t previous_count;
	char previous_period[8];
	struct budget_list *budgets;
};

struct previous {
	char tenant[64];
	char currency[8];
	int128 billed;
	int scale;
};

void
document_free(struct document *d)
{
	if (!d)
		return;
	buf_fini(&d->totals);
	buf_fini(&d->account_id);
	PQclear(d->bounds);
	PQclear(d->periods);
	PQclear(d->tenants);
	mem_free(d->day_bounds);
	mem_free(d->period_rows);
	mem_free(d->previous);
	budget_list_free(d->budgets);
	mem_free(d);
}

const char *
document_suffix(enum document_format format)
{
	static const char *const suffixes[DOCUMENT_FORMATS] = {
		[DOCUMENT_CSV] = "csv",         [DOCUMENT_EXCEL] = "csv", [DOCUMENT_JSON] = "json",
		[DOCUMENT_FOCUS] = "focus.csv", [DOCUMENT_HTML] = "html", [DOCUMENT_PERIODS] = "focus-periods.csv",
	};

	return suffixes[format];
}

/* ---- FOCUS: the bounds of days and months ---- */

#define UTC_TEXT(expression) "to_char(" expression " AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS\"Z\"')"

/* The days of a month begin at midnight in the billing zone, but the first and the end where the period says. */
static bool
load_bounds(struct document *d, const struct rating_input *in, struct err *err)
{
	static const struct db_stmt stmt = {
		"document days",
		"SELECT " UTC_TEXT(
			"CASE WHEN day = $1::date THEN p.starts_at WHEN day = $2::date THEN p.ends_at "
			"ELSE day::timestamp AT TIME ZONE l.zone END") ", l.zone FROM ledger l, period p, "
								       "generate_series($1::date, $2::date, interval '1 day') g, LATERAL (SELECT g::date AS day) x "
								       "WHERE p.month = $3 ORDER BY day"};
	struct db_args a = {0};
	int count;

	arg_text(&a, in->period_start);
	arg_text(&a, in->period_end);
	arg_text(&a, in->period);
	if (!db_run(d->db, &stmt, &a, &d->bounds, err))
		return false;
	count = PQntuples(d->bounds);
	if (count < 2)
		return err_set(err, ERR_FATAL, "period %s has no days", in->period);
	d->day_bounds = mem_array((size_t)count, sizeof(*d->day_bounds));
	for (int i = 0; i < count; i++)
		d->day_bounds[i] = res_text(d->bounds, i, 0);
	d->focus.day_bounds = d->day_bounds;
	d->focus.day_count = (size_t)count - 1;
	d->focus.period_start = d->day_bounds[0];
	d->focus.period_end = d->day_bounds[count - 1];
	return true;
}

static bool
load_periods(struct document *d, struct err *err)
{
	static const struct db_stmt stmt = {
		"document periods",
		"SELECT " UTC_TEXT("p.starts_at") ", " UTC_TEXT("p.ends_at") ", p.status, coalesce(" UTC_TEXT(
			"p.closed_at") ", ''), "
				       "to_char(p.starts_at AT TIME ZONE l.zone, 'YYYY-MM-DD') FROM period p, ledger l ORDER BY p.starts_at"};
	struct db_args a = {0};

	if (!db_run(d->db, &stmt, &a, &d->periods, err))
		return false;
	d->period_count = (size_t)PQntuples(d->periods);
	d->period_rows = mem_array(d->period_count, sizeof(*d->period_rows));
	for (size_t i = 0; i < d->period_count; i++)
		d->period_rows[i] = (struct focus_period){.start = res_text(d->periods, (int)i, 0),
		                                          .end = res_text(d->periods, (int)i, 1),
		                                          .status = res_text(d->periods, (int)i, 2),
		                                          .closed_at = res_text(d->periods, (int)i, 3),
		                                          .first_day = res_text(d->periods, (int)i, 4)};
	d->focus.periods = d->period_rows;
	d->focus.period_count = d->period_count;
	return true;
}

/* "org/example-inc": letters and digits of the name. */
static void
account_id(const char *organisation, struct buf *out)
{
	bool dash = false;

	buf_str(out, "org/");
	for (const char *c = organisation; *c != '\0'; c++) {
		bool upper = *c >= 'A' && *c <= 'Z';

		if (!upper && !(*c >= 'a' && *c <= 'z') && !(*c >= '0' && *c <= '9')) {
			dash = out->len > 4;
			continue;
		}
		buf_str(out, dash ? "-" : "");
		buf_char(out, (char)(upper ? *c - 'A' + 'a' : *c));
		dash = false;
	}
	if (out->len == 4)
		buf_str(out, "default");
}

/* ---- HTML: what an invoice says beside its lines ---- */

static bool
load_tenants(struct document *d, const struct rating_input *in, struct err *err)
{
	static const char sql[] =
		"SELECT t.name, t.display_name, sum(u.used + u.idle + u.unmeasured), sum(u.unallocated), sum(u.stranded), "
		"sum(u.down), sum(u.unknown) FROM period p JOIN tenant t ON $2::text IS NULL OR t.name = $2 "
		"LEFT JOIN LATERAL (SELECT o.* FROM daily_rows(p.starts_at, p.ends_at) o WHERE o.owner_id IS NOT NULL) u "
		"ON u.owner_id = t.id WHERE p.month = $1 GROUP BY 1, 2 ORDER BY 1";
	struct db_args a = {0};

	arg_text(&a, in->period);
	arg_text(&a, d->rq->tenant);
	return db_run_text(d->db, sql, &a, &d->tenants, err);
}

static bool
capacity_of(const struct document *d, int row, struct invoice_capacity *ret, struct err *err)
{
	const PGresult *r = d->tenants;

	return res_i128(r, row, 2, 0, &ret->held, err) && res_i128(r, row, 3, 0, &ret->unallocated, err) &&
	       res_i128(r, row, 4, 0, &ret->stranded, err) && res_i128(r, row, 5, 0, &ret->down, err) &&
	       res_i128(r, row, 6, 0, &ret->unknown, err);
}

static struct previous *
previous_of(struct document *d, const struct rated_line *l)
{
	/* tenants come one after the other */
	for (size_t i = d->previous_count; i > 0 && strcmp(d->previous[i - 1].tenant, l->tenant) == 0; i--)
		if (strcmp(d->previous[i - 1].currency, l->currency) == 0)
			return &d->previous[i - 1];
	d->previous = mem_grow(d->previous, d->previous_count + 1, sizeof(*d->previous));
	struct previous *p = &d->previous[d->previous_count++];
	*p = (struct previous){.scale = l->currency_scale};
	snprintf(p->tenant, sizeof(p->tenant), "%s", l->tenant);
	snprintf(p->currency, sizeof(p->currency), "%s", l->currency);
	return p;
}

static bool
skip(void *arg, const struct rating_input *in, struct err *err)
{
	(void)arg;
	(void)in;
	(void)err;
	return true;
}

static bool
add_previous(void *arg, const struct rating_input *in, const struct rated *r, struct err *err)
{
	(void)in;
	(void)err;
	for (size_t i = 0; i < r->count; i++)
		previous_of(arg, &r->lines[i])->billed += r->lines[i].billed;
	return true;
}

/* The month before, if the ledger has something of it: an invoice says what changed. */
static bool
load_previous(struct document *d, struct err *err)
{
	static const struct db_stmt stmt = {
		"document month before",
		"SELECT max(b.month) FROM period p JOIN period b ON b.ends_at = p.starts_at WHERE p.month = $1"};
	owned(result) PGresult *r = NULL;
	struct db_args a = {0};

	arg_text(&a, d->rq->period);
	if (!db_run(d->db, &stmt, &a, &r, err))
		return false;
	snprintf(d->previous_period, sizeof(d->previous_period), "%s", res_text(r, 0, 0));
	if (d->previous_period[0] == '\0')
		return true;
	return period_each(d->db, d->previous_period, d->rq->tenant, skip, add_previous, d, err);
}

/* What the tenant's budgets have come to, its own before those of its workspaces. The caller frees *ret. */
static bool
judge_budgets(const struct document *d, const struct rated *r, struct invoice_budget **ret, size_t *ret_count,
              struct err *err)
{
	const struct budget_list *l = d->budgets;
	owned(mem) struct forecast_day *days = mem_array(l->day_count, sizeof(*days));
	owned(mem) struct invoice_budget *out = mem_array(l->count, sizeof(*out));
	size_t count = 0;

	for (size_t i = 0; i < l->count; i++) {
		const struct budget *b = &l->at[i];
		struct forecast_input in = {.start_ns = l->days[0].from_ns,
		                            .end_ns = l->days[l->day_count - 1].to_ns,
		                            .now_ns = d->rq->now_ns,
		                            .days = days,
		                            .count = l->day_count};
		struct budget_state s;

		if (strcmp(b->tenant, r->lines[0].tenant) != 0)
			continue;
		memcpy(days, l->days, l->day_count * sizeof(*days));
		if (!budget_consume(b, r, days, l->day_count, &in.once, err) || !budget_judge(b, &in, &s, err))
			return false;
		out[count++] = (struct invoice_budget){
			.workspace = b->workspace,
			.currency = b->currency[0] != '\0' ? b->currency : NULL,
			.limit = b->limit,
			.spent = s.consumed,
			.forecast = s.forecast,
			.method = forecast_method_text(s.method),
			.hard = strcmp(b->kind, "hard") == 0,
		};
	}
	*ret = take(out);
	*ret_count = count;
	return true;
}

static bool
add_page(struct document *d, const struct rating_input *in, const struct rated *r, struct err *err)
{
	struct invoice_amount before[INVOICE_CURRENCIES];
	struct invoice_capacity own = {0};
	owned(mem) struct invoice_budget *budgets = NULL;
	struct invoice_input page = {.in = in,
	                             .r = r,
	                             .provider = d->rq->provider,
	                             .organisation = d->rq->organisation,
	                             .tenant_name = "",
	                             .zone = res_text(d->bounds, 0, 1),
	                             .previous_period = d->previous_period[0] != '\0' ? d->previous_period : NULL,
	                             .previous = before};

	for (int i = 0; i < PQntuples(d->tenants); i++) {
		if (strcmp(res_text(d->tenants, i, 0), r->lines[0].tenant) != 0)
			continue;
		page.tenant_name = res_text(d->tenants, i, 1);
		if (!res_null(d->tenants, i, 2)) {
			if (!capacity_of(d, i, &own, err))
				return false;
			page.own = &own;
		}
	}
	for (size_t i = 0; i < d->previous_count && page.previous_count < INVOICE_CURRENCIES; i++)
		if (strcmp(d->previous[i].tenant, r->lines[0].tenant) == 0)
			before[page.previous_count++] = (struct invoice_amount){.currency = d->previous[i].currency,
			                                                        .billed = d->previous[i].billed,
			                                                        .scale = d->previous[i].scale};
	if (!judge_budgets(d, r, &budgets, &page.budget_count, err))
		return false;
	page.budgets = budgets;
	return invoice_html_page(&page, spill_buf(d->to), err);
}

/* ---- the document ---- */

static bool
write_begin(struct document *d, const struct rating_input *in, struct err *err)
{
	struct buf *out = spill_buf(d->to);
	in_place(buf) struct buf title;

	buf_init(&title, NAME_MAX_BYTES);
	switch (d->rq->format) {
	case DOCUMENT_CSV:
	case DOCUMENT_EXCEL:
		report_csv_header(d->rq->format == DOCUMENT_EXCEL ? CSV_EXCEL : CSV_RFC4180, out);
		return true;
	case DOCUMENT_JSON: report_json_begin(in, out); return true;
	case DOCUMENT_FOCUS: focus_header(out); return load_bounds(d, in, err) && load_periods(d, err);
	case DOCUMENT_PERIODS: return load_periods(d, err);
	case DOCUMENT_HTML:
		buf_printf(&title, "%s %s", d->rq->tenant ? d->rq->tenant : d->rq->organisation, in->period);
		invoice_html_begin(buf_text(&title), out);
		return load_bounds(d, in, err) && load_tenants(d, in, err) &&
		       store_budgets_load(d->db, in->period, d->rq->tenant, d->rq->now_ns, &d->budgets, err);
	default: return err_set(err, ERR_FATAL, "no such format of a document");
	}
}

static struct document *
document_new(struct db *db, const struct document_request *rq, struct spill *to)
{
	struct document *d = mem_alloc(sizeof(*d));

	d->db = db;
	d->rq = rq;
	d->to = to;
	buf_init(&d->totals, TOTALS_MAX);
	buf_init(&d->account_id, NAME_MAX_BYTES);
	account_id(rq->organisation, &d->account_id);
	d->focus = (struct focus_input){.account_id = buf_text(&d->account_id),
	                                .account_name = rq->organisation,
	                                .provider = rq->provider};
	return d;
}

static bool
begin(void *arg, const struct rating_input *in, struct err *err)
{
	struct document *d = arg;

	snprintf(d->result.period_status, sizeof(d->result.period_status), "%s", in->period_status);
	return d->stored || write_begin(d, in, err);
}

bool
document_begin(struct db *db, const struct document_request *rq, const struct rating_input *in, struct spill *to,
               struct document **ret, struct err *err)
{
	owned(document) struct document *d = document_new(db, rq, to);

	if (!begin(d, in, err))
		return false;
	*ret = take(d);
	return true;
}

bool
document_tenant(struct document *d, const struct rating_input *in, const struct rated *r, struct err *err)
{
	struct buf *out = spill_buf(d->to);
	bool first = d->result.sums.lines == 0, ok = true;
	int64_t rows = (int64_t)r->count;

	if (r->count == 0 || d->rq->format == DOCUMENT_PERIODS)
		return true;
	if (d->stored)
		return manifest_add(&d->result.sums, in, r, rows, err);
	switch (d->rq->format) {
	case DOCUMENT_CSV:
	case DOCUMENT_EXCEL:
		ok = report_csv_rows(in, r, d->rq->format == DOCUMENT_EXCEL ? CSV_EXCEL : CSV_RFC4180, out, err);
		break;
	case DOCUMENT_JSON: ok = report_json_rows(in, r, first, out, &d->totals, err); break;
	case DOCUMENT_FOCUS:
		d->focus.in = in;
		ok = focus_rows(&d->focus, r, out, err);
		rows = 0;
		for (size_t i = 0; i < r->count; i++)
			rows += (int64_t)r->lines[i].day_count;
		break;
	default: ok = add_page(d, in, r, err); rows = 1;
	}
	return ok && manifest_add(&d->result.sums, in, r, rows, err) && spill_step(d->to, err);
}

bool
document_end(struct document *d, struct document_result *ret, struct err *err)
{
	struct buf *out = spill_buf(d->to);

	if (d->stored)
		;
	else if (d->rq->format == DOCUMENT_JSON)
		report_json_end(&d->totals, out);
	else if (d->rq->format == DOCUMENT_HTML)
		invoice_html_end(out);
	else if (d->rq->format == DOCUMENT_PERIODS) {
		focus_periods(&d->focus, d->period_rows, d->period_count, out);
		d->result.sums.rows = (int64_t)d->period_count;
	}
	*ret = d->result;
	return buf_ok(out, "the document", err);
}

static bool
add_tenant(void *arg, const struct rating_input *in, const struct rated *r, struct err *err)
{
	return document_tenant(arg, in, r, err);
}

/* A closed month's CSV and JSON are the bytes that were stored. */
static bool
add_stored(struct document *d, struct err *err)
{
	const char *format = document_suffix(d->rq->format);
	in_place(buf) struct buf text;

	buf_init(&text, STORED_MAX);
	if (d->rq->format != DOCUMENT_CSV && d->rq->format != DOCUMENT_JSON)
		return true;
	if (!store_closed_document(d->db, d->rq->period, d->rq->tenant, format, &text, &d->stored, err))
		return false;
	d->stored = d->stored && text.len > 0;
	for (size_t at = 0, n; at < text.len; at += n) {
		n = text.len - at < STORED_PIECE ? text.len - at : STORED_PIECE;
		buf_add(spill_buf(d->to), buf_text(&text) + at, n);
		if (!spill_step(d->to, err))
			return false;
	}
	return true;
}

bool
store_document(struct db *db, const struct document_request *rq, struct spill *to, struct document_result *ret,
               struct err *err)
{
	owned(document) struct document *d = document_new(db, rq, to);

	if (rq->format == DOCUMENT_HTML && !load_previous(d, err))
		return false;
	return add_stored(d, err) && period_each(db, rq->period, rq->tenant, begin, add_tenant, d, err) &&
	       document_end(d, ret, err);
}
