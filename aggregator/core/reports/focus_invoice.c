/* aggregator/core/reports/focus_invoice.c - the datasets Billing Period and Invoice Detail of FOCUS 1.4. Pure. */
#include <string.h>

#include "aggregator/core/reports/focus_ascii.h"
#include "aggregator/core/reports/focus_parts.h"
#include "aggregator/core/reports/report.h"

/* ---- billing periods ---- */

/* A period is there from its beginning, and changes once, when it is closed. */
static const char *
period_updated(const struct focus_period *p)
{
	return p->closed_at[0] != '\0' ? p->closed_at : p->start;
}

void
focus_periods(const struct focus_input *f, const struct focus_period *periods, size_t n, struct buf *out)
{
	in_place(buf) struct buf plain = {0};

	buf_init(&plain, FOCUS_CELL_MAX);
	ascii_text(&plain, f->provider, false);
	buf_str(out,
	        "BillingPeriodCreated,BillingPeriodEnd,BillingPeriodLastUpdated,BillingPeriodStart,BillingPeriodStatus,"
	        "InvoiceIssuerName,x_BillingPeriodClosed\r\n");
	for (size_t i = 0; i < n; i++) {
		const struct focus_period *p = &periods[i];

		buf_printf(out, "%s,%s,%s,%s,%s,", p->start, p->end, period_updated(p), p->start,
		           strcmp(p->status, "closed") == 0 ? "Closed" : "Open");
		csv_text_field(out, buf_text(&plain));
		buf_printf(out, ",%s\r\n", p->closed_at);
	}
}

/* ---- the lines of invoices ---- */

#define TEXT_CELL(name, value)                                              \
	static void cell_##name(const struct focus_row *w, struct buf *out) \
	{                                                                   \
		buf_str(out, (value));                                      \
	}
TEXT_CELL(account_id, w->f->account_id)
TEXT_CELL(currency, w->l->currency)
TEXT_CELL(period_end, w->f->period_end)
TEXT_CELL(period_start, w->f->period_start)
TEXT_CELL(charge_category, focus_charge(w))
TEXT_CELL(changed, w->closed_at[0] != '\0' ? w->closed_at : w->f->period_start)
TEXT_CELL(description, w->l->description)
TEXT_CELL(line_id, w->l->line_id)
TEXT_CELL(issued, w->closed_at)
TEXT_CELL(status, w->closed_at[0] != '\0' ? "Issued" : "Open")
TEXT_CELL(provider, w->f->provider)
TEXT_CELL(price_version, w->l->price_version)

static void
cell_billed(const struct focus_row *w, struct buf *out)
{
	focus_decimal(out, w->l->billed, w->l->currency_scale);
}

/* No date by which it is due. */
static void
cell_due(const struct focus_row *w, struct buf *out)
{
	(void)w;
	(void)out;
}

static void
cell_terms(const struct focus_row *w, struct buf *out)
{
	(void)w;
	buf_str(out, "Internal charge");
}

/* What makes a line of the invoice: rule 1 of rating.h. */
static void
cell_grain(const struct focus_row *w, struct buf *out)
{
	const char *comma = "";

	buf_char(out, '{');
	focus_member(out, &comma, "RegionId", w->l->cluster);
	focus_member(out, &comma, "ServiceName", focus_service(w->l));
	focus_member(out, &comma, "SkuId", w->l->sku);
	focus_member(out, &comma, "SubAccountId", w->l->tenant);
	focus_member(out, &comma, "x_WorkspaceId", w->l->workspace);
	focus_member(out, &comma, "x_ChargeType", w->l->charge_type);
	focus_member(out, &comma, "x_Class", w->l->klass);
	focus_member(out, &comma, "x_SharingMode", w->l->sharing_mode);
	buf_char(out, '}');
}

/* A correction refers to the first invoice of the month that it corrects. */
static void
cell_reference(const struct focus_row *w, struct buf *out)
{
	const struct rated_line *l = w->l;
	const bool other = strcmp(l->currency, w->f->in->currency) != 0;

	if (l->correction_of == NULL)
		focus_invoice_id(w, out);
	else
		buf_printf(out, "%s-%.7s-1%s%s", l->tenant, l->period_start, other ? "-" : "",
		           other ? l->currency : "");
}

static const struct focus_column columns[] = {
	{"BilledCost", cell_billed, LINE_NUMBER},
	{"BillingAccountId", cell_account_id, LINE},
	{"BillingCurrency", cell_currency, LINE},
	{"BillingPeriodEnd", cell_period_end, LINE},
	{"BillingPeriodStart", cell_period_start, LINE},
	{"ChargeCategory", cell_charge_category, LINE},
	{"InvoiceDetailCreated", cell_changed, LINE},
	{"InvoiceDetailDescription", cell_description, LINE},
	{"InvoiceDetailGrain", cell_grain, LINE_JSON},
	{"InvoiceDetailId", cell_line_id, LINE},
	{"InvoiceDetailLastUpdated", cell_changed, LINE},
	{"InvoiceId", focus_invoice_id, LINE},
	{"InvoiceIssueDate", cell_issued, LINE},
	{"InvoiceIssueStatus", cell_status, LINE},
	{"InvoiceIssuerName", cell_provider, LINE},
	{"PaymentCurrency", cell_currency, LINE},
	{"PaymentDueDate", cell_due, LINE},
	{"PaymentTerms", cell_terms, LINE},
	{"ReferenceInvoiceId", cell_reference, LINE},
	{"x_PriceVersion", cell_price_version, LINE},
};

void
focus_invoice_header(struct buf *out)
{
	for (size_t i = 0; i < ARRAY_LEN(columns); i++)
		buf_printf(out, "%s%s", i > 0 ? "," : "", columns[i].name);
	buf_str(out, "\r\n");
}

/* The period whose documents these are. */
static const struct focus_period *
own_period(const struct focus_input *f)
{
	for (size_t i = 0; i < f->period_count; i++)
		if (strcmp(f->periods[i].start, f->period_start) == 0)
			return &f->periods[i];
	return NULL;
}

bool
focus_invoice_rows(const struct focus_input *f, const struct rated *r, struct buf *out, struct err *err)
{
	const struct focus_period *period = own_period(f);
	in_place(focus_texts) struct focus_texts texts = {0};

	focus_texts_init(&texts);
	for (size_t i = 0; i < r->count; i++) {
		enum row_part parts[2];
		size_t n = focus_parts_of(&r->lines[i], parts);
		const struct focus_row row = {.f = f,
		                              .l = &r->lines[i],
		                              .part = parts[n - 1],
		                              .closed_at = period != NULL ? period->closed_at : ""};

		for (size_t c = 0; c < ARRAY_LEN(columns); c++) {
			if (c > 0)
				buf_char(out, ',');
			if (!focus_write_cell(&columns[c], &row, &texts, out, err))
				return false;
		}
		buf_str(out, "\r\n");
	}
	return buf_ok(out, "the invoices", err);
}
