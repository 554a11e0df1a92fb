/* aggregator/store/billing/document.c - a month as CSV, JSON, FOCUS or HTML, written tenant by tenant into an unnamed file. */
#include "aggregator/store/billing/document.h"

#include <stdio.h>
#include <string.h>

#include "aggregator/core/rating/rating.h"
#include "aggregator/core/reports/chargeback.h"
#include "aggregator/store/db/db.h"
#include "aggregator/store/billing/period_internal.h"

#define TOTALS_MAX (64u << 20) /* of a JSON document: a hundred bytes for each invoice */
#define TITLE_MAX 1024
#define FACTS_MAX (256u << 20)

struct document {
	enum document_format format;
	const char *tenant; /* NULL: all */
	int64_t layout;
	const struct month_facts *facts;
	struct spill *to;
	struct document_result result;
	struct buf totals, promises;
	struct focus_input focus;
};

void
document_free(struct document *d)
{
	if (!d)
		return;
	buf_fini(&d->totals);
	buf_fini(&d->promises);
	mem_free(d);
}

static const struct {
	const char *suffix, *name;
} formats[DOCUMENT_FORMATS] = {
	[DOCUMENT_CSV] = {"csv", "csv"},
	[DOCUMENT_EXCEL] = {"csv", "excel.csv"},
	[DOCUMENT_JSON] = {"json", "json"},
	[DOCUMENT_FOCUS] = {"focus.csv", "focus.csv"},
	[DOCUMENT_PERIODS] = {"focus-periods.csv", "focus.periods.csv"},
	[DOCUMENT_HTML] = {"html", "html"},
	[DOCUMENT_FOCUS_1_3] = {"focus.csv", "focus-1.3.csv"},
	[DOCUMENT_FOCUS_1_4] = {"focus.csv", "focus-1.4.csv"},
	[DOCUMENT_INVOICES] = {"focus-invoices.csv", "focus-invoices.csv"},
};

bool
document_focus_format(const char *version, enum document_format *ret)
{
	static const enum document_format by_version[] = {
		[FOCUS_1_2] = DOCUMENT_FOCUS, [FOCUS_1_3] = DOCUMENT_FOCUS_1_3, [FOCUS_1_4] = DOCUMENT_FOCUS_1_4};

	for (size_t i = 0; i < ARRAY_LEN(by_version); i++)
		if (strcmp(focus_versions[i], version) == 0) {
			*ret = by_version[i];
			return true;
		}
	return false;
}

static bool
needs_facts(enum document_format format)
{
	return format != DOCUMENT_CSV && format != DOCUMENT_EXCEL;
}

const char *
document_suffix(enum document_format format)
{
	return formats[format].suffix;
}

const char *
document_name(enum document_format format)
{
	return formats[format].name;
}

/* ---- from lines ---- */

static void
focus_begin(struct document *d)
{
	const struct month_facts *f = d->facts;

	d->focus = (struct focus_input){.version = d->format == DOCUMENT_FOCUS_1_3   ? FOCUS_1_3
	                                           : d->format == DOCUMENT_FOCUS_1_4 ? FOCUS_1_4
	                                                                             : FOCUS_1_2,
	                                .account_id = f->frame.account_id,
	                                .account_name = f->frame.organisation,
	                                .provider = f->frame.provider,
	                                .period_start = f->day_bounds[0],
	                                .period_end = f->day_bounds[f->day_bound_count - 1],
	                                .day_bounds = f->day_bounds,
	                                .day_count = f->day_bound_count - 1,
	                                .periods = f->periods,
	                                .period_count = f->period_count,
	                                .past = f->past,
	                                .past_count = f->past_count,
	                                .labels = f->labels,
	                                .label_count = f->label_count};
}

static bool
write_begin(struct document *d, const struct rating_input *in, struct err *err)
{
	struct buf *out = spill_buf(d->to);
	in_place(buf) struct buf title = {0};

	buf_init(&title, TITLE_MAX);
	switch (d->format) {
	case DOCUMENT_CSV: report_csv_header(CSV_RFC4180, out); return true;
	case DOCUMENT_EXCEL: report_csv_header(CSV_EXCEL, out); return true;
	case DOCUMENT_JSON: report_json_begin(in, out); return true;
	case DOCUMENT_FOCUS:
	case DOCUMENT_FOCUS_1_3:
	case DOCUMENT_FOCUS_1_4:
		focus_begin(d);
		focus_header(d->focus.version, out);
		return true;
	case DOCUMENT_INVOICES:
		focus_begin(d);
		focus_invoice_header(out);
		return true;
	case DOCUMENT_PERIODS: focus_begin(d); return true;
	case DOCUMENT_HTML:
		buf_printf(&title, "%s %s", d->tenant != NULL ? d->tenant : d->facts->frame.organisation, in->period);
		invoice_html_begin(buf_text(&title), d->facts->frame.layout, out);
		return true;
	default: return err_set(err, ERR_FATAL, "no such format of a document");
	}
}

bool
document_begin(enum document_format format, const char *tenant, int64_t layout, const struct month_facts *facts,
               const struct rating_input *in, struct spill *to, struct document **ret, struct err *err)
{
	owned(document) struct document *d = mem_alloc(sizeof(*d));

	d->format = format;
	d->tenant = tenant;
	d->layout = layout;
	d->facts = facts;
	d->to = to;
	buf_init(&d->totals, TOTALS_MAX);
	buf_init(&d->promises, TOTALS_MAX);
	snprintf(d->result.period_status, sizeof(d->result.period_status), "%s", in->period_status);
	if (facts != NULL && facts->day_bound_count < 2)
		return err_set(err, ERR_INVALID, "a month without days");
	if (!write_begin(d, in, err))
		return false;
	*ret = take(d);
	return true;
}

/* The state of the tenant's budgets. The caller frees *ret. */
static bool
judge_budgets(const struct month_facts *f, const struct facts_tenant *t, const struct rated *r,
              struct invoice_budget **ret, struct err *err)
{
	size_t count = f->day_bound_count - 1;
	owned(mem) struct forecast_day *days = mem_array(count, sizeof(*days));
	owned(mem) struct invoice_budget *out = mem_array(t->budget_count, sizeof(*out));

	for (size_t i = 0; i < t->budget_count; i++) {
		const struct budget *b = &t->budgets[i];
		struct forecast_input in = {.start_ns = f->days[0].begins_ns,
		                            .end_ns = f->days[count].begins_ns,
		                            .now_ns = f->frame.now_ns,
		                            .first_ns = f->first_ns,
		                            .days = days,
		                            .count = count};
		struct budget_state s;

		for (size_t k = 0; k < count; k++)
			days[k] = (struct forecast_day){.from_ns = f->days[k].begins_ns,
			                                .to_ns = f->days[k + 1].begins_ns};
		if (!budget_consume(b, r, days, count, &in.once, err) || !budget_judge(b, &in, &s, err))
			return false;
		out[i] = (struct invoice_budget){
			.workspace = b->workspace,
			.unit = b->unit,
			.limit = b->limit,
			.spent = s.consumed,
			.forecast = s.forecast,
			.method = forecast_method_text(s.method),
			.hard = strcmp(b->kind, "hard") == 0,
		};
	}
	*ret = take(out);
	return true;
}

static bool
add_page(const struct document *d, const struct rating_input *in, const struct rated *r, struct err *err)
{
	static const struct facts_tenant unknown = {.display_name = ""};
	const struct facts_tenant *t = month_facts_tenant(d->facts, r->lines[0].tenant);
	owned(mem) struct invoice_budget *budgets = NULL;
	struct invoice_input page = {.in = in,
	                             .r = r,
	                             .provider = d->facts->frame.provider,
	                             .organisation = d->facts->frame.organisation,
	                             .zone = d->facts->frame.zone,
	                             .previous_period = d->facts->frame.previous_period};

	t = t != NULL ? t : &unknown;
	if (!judge_budgets(d->facts, t, r, &budgets, err))
		return false;
	page.layout = d->facts->frame.layout;
	page.tenant_name = t->display_name;
	page.previous = t->previous;
	page.previous_count = t->previous_count;
	page.own = t->has_own ? &t->own : NULL;
	page.budgets = budgets;
	page.budget_count = t->budget_count;
	page.promises = t->promises;
	page.promise_count = t->promise_count;
	return invoice_html_page(&page, spill_buf(d->to), err);
}

static void
add_promises(struct document *d, const char *tenant)
{
	const struct facts_tenant *t = d->facts != NULL ? month_facts_tenant(d->facts, tenant) : NULL;

	for (size_t i = 0; t != NULL && i < t->promise_count; i++)
		report_json_promise(tenant, &t->promises[i], &d->promises);
}

bool
document_tenant(struct document *d, const struct rating_input *in, const struct rated *lines, struct err *err)
{
	in_place(tenant_lines) struct tenant_lines own = {0};
	const struct rated *r = lines;
	struct buf *out = spill_buf(d->to);
	bool first = d->result.sums.lines == 0, ok = true;
	int64_t rows = (int64_t)lines->count;

	if (lines->count == 0 || d->format == DOCUMENT_PERIODS)
		return true;
	if (d->tenant != NULL && d->layout >= INVOICE_LAYOUT_PRIVATE) {
		tenant_lines_make(&own, lines);
		r = &own.rated;
	}
	switch (d->format) {
	case DOCUMENT_CSV: ok = report_csv_rows(in, r, CSV_RFC4180, out, err); break;
	case DOCUMENT_EXCEL: ok = report_csv_rows(in, r, CSV_EXCEL, out, err); break;
	case DOCUMENT_JSON:
		add_promises(d, r->lines[0].tenant);
		ok = report_json_rows(in, r, first, out, &d->totals, err) && buf_ok(&d->promises, "the promises", err);
		break;
	case DOCUMENT_INVOICES:
		d->focus.in = in;
		ok = focus_invoice_rows(&d->focus, r, out, err);
		break;
	case DOCUMENT_FOCUS:
	case DOCUMENT_FOCUS_1_3:
	case DOCUMENT_FOCUS_1_4:
		d->focus.in = in;
		ok = focus_rows(&d->focus, r, out, err);
		rows = focus_row_count(r);
		break;
	default: ok = add_page(d, in, r, err); rows = 1;
	}
	return ok && manifest_add(&d->result.sums, in, r, rows, err);
}

bool
document_end(struct document *d, struct document_result *ret, struct err *err)
{
	struct buf *out = spill_buf(d->to);

	if (d->format == DOCUMENT_JSON)
		report_json_end(&d->totals, &d->promises, out);
	else if (d->format == DOCUMENT_HTML)
		invoice_html_end(out);
	else if (d->format == DOCUMENT_PERIODS) {
		focus_periods(&d->focus, d->facts->periods, d->facts->period_count, out);
		d->result.sums.rows = (int64_t)d->facts->period_count;
	}
	*ret = d->result;
	return buf_ok(out, "the document", err);
}

/* ---- from the ledger ---- */

struct making {
	struct db *db;
	const struct document_request *rq;
	struct spill *to;
	struct previous_month previous;
	struct month_facts *facts;
	struct document *document;
};

static void
making_fini(struct making *m)
{
	document_free(m->document);
	month_facts_free(m->facts);
	previous_month_fini(&m->previous);
}

static bool
begin(void *arg, const struct rating_input *in, struct err *err)
{
	struct making *m = arg;
	const struct document_request *rq = m->rq;
	struct facts_request facts = {.tenant = rq->tenant,
	                              .organisation = rq->organisation,
	                              .provider = rq->provider,
	                              .now_ns = rq->now_ns,
	                              .promises_only = rq->format == DOCUMENT_JSON};
	in_place(buf) struct buf text = {0};

	buf_init(&text, FACTS_MAX);
	/* A closed month that is not stored in this format uses its archived facts. */
	if (needs_facts(rq->format) && strcmp(in->period_status, "closed") == 0 &&
	    !period_archive_source(m->db, rq->period, NULL, SOURCE_FACTS, &text, err))
		return false;
	if (needs_facts(rq->format) && text.len == 0 &&
	    !document_facts(m->db, in, &facts, rq->format == DOCUMENT_HTML ? &m->previous : NULL, &text, err))
		return false;
	if (needs_facts(rq->format) && !month_facts_read(buf_text(&text), text.len, &m->facts, err))
		return false;
	return document_begin(rq->format, rq->tenant, INVOICE_LAYOUT, m->facts, in, m->to, &m->document, err);
}

static bool
add_tenant(void *arg, const struct rating_input *in, const struct rated *r, struct err *err)
{
	struct making *m = arg;

	return document_tenant(m->document, in, r, err) && spill_step(m->to, err);
}

bool
store_document(struct db *db, const struct document_request *rq, struct spill *to, struct document_result *ret,
               struct err *err)
{
	in_place(making) struct making m = {.db = db, .rq = rq, .to = to};
	const char *tenant = rq->format != DOCUMENT_PERIODS ? rq->tenant : NULL;
	struct archived_document stored = {0};

	if (!period_archive_document(db, rq->period, tenant, document_name(rq->format), to, &stored, err))
		return false;
	if (stored.found) {
		*ret = (struct document_result){.sums = stored.sums, .period_status = "closed"};
		return true;
	}
	return (rq->format != DOCUMENT_HTML || previous_month_load(db, rq->period, rq->tenant, &m.previous, err)) &&
	       period_each(db, rq->period, rq->tenant, begin, add_tenant, &m, err) &&
	       document_end(m.document, ret, err);
}
