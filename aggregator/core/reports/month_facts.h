/* aggregator/core/reports/month_facts.h - the facts of a month that documents show beside its lines: names, days, months, last month's amounts. Pure.
 *
 * Facts always pass through their text form, so that a document made today and one made again years later have the same input. Lines of
 * records.h: F the frame (payer, operator, zone), H the ledger's first hour, D the start of a day, P a billing period, Y a day of an earlier
 * period, L a label of a workspace, T a tenant, A its amount of the month before, B its budget, S its promise. */
#ifndef TOLLGATE_MONTH_FACTS_H
#define TOLLGATE_MONTH_FACTS_H

#include "aggregator/core/rating/budget.h"
#include "aggregator/core/reports/focus.h"
#include "aggregator/core/reports/invoice_html.h"

struct facts_frame {
	const char *organisation, *provider; /* the paying organisation and the platform's operator */
	const char *account_id;              /* the organisation as an identifier of FOCUS */
	const char *zone;                    /* of the days */
	const char *previous_period;         /* "2026-10"; NULL: there is none */
	int64_t now_ns;                      /* for the forecast of budgets */
	int64_t layout;                      /* of invoices (invoice_html.h); 0 in older texts, which do not have it */
};
/* 0 in older texts, which have no such line. */
struct facts_ledger {
	int64_t first_ns; /* its first hour; 0: before the month */
};
struct facts_day {
	const char *begins; /* UTC */
	int64_t begins_ns;
};
struct facts_tenant {
	const char *tenant, *display_name;
	bool has_own; /* it has nodes of its own */
	struct invoice_capacity own;
	/* Set by reading. */
	const struct invoice_amount *previous;
	size_t previous_count;
	const struct budget *budgets; /* its own before those of its workspaces */
	size_t budget_count;
	const struct invoice_promise *promises; /* likewise */
	size_t promise_count;
};

/* Writing: the frame, whose account_id is made; then days and periods in their order, the ledger's first hour, tenants by name, each followed by its amounts and
 * budgets and promises. */
void facts_write_frame(const struct facts_frame *f, struct buf *out);
void facts_write_ledger(const struct facts_ledger *l, struct buf *out);
void facts_write_day(const struct facts_day *d, struct buf *out); /* the last one is the end of the month */
void facts_write_period(const struct focus_period *p, struct buf *out);
void facts_write_past_day(const struct focus_day *d, struct buf *out); /* after the periods, by month */
void facts_write_label(const struct focus_label *l, struct buf *out);
void facts_write_tenant(const struct facts_tenant *t, struct buf *out);
void facts_write_amount(const struct invoice_amount *a, struct buf *out);
void facts_write_budget(const struct budget *b, struct buf *out);
void facts_write_promise(const struct invoice_promise *p, struct buf *out);

struct month_facts {
	struct facts_frame frame;
	int64_t first_ns;              /* of facts_ledger */
	const char *const *day_bounds; /* one more than days */
	size_t day_bound_count;
	const struct facts_day *days; /* as many as bounds */
	const struct focus_period *periods;
	size_t period_count;
	const struct focus_day *past;
	size_t past_count;
	const struct focus_label *labels;
	size_t label_count;
	const struct facts_tenant *tenants;
	size_t tenant_count;
	void *memory;
};
/* ERR_INVALID names the line. */
MUST_CHECK bool month_facts_read(const char *text, size_t len, struct month_facts **ret, struct err *err);
void month_facts_free(struct month_facts *f);
DEFINE_OWNED(month_facts, struct month_facts)

/* NULL: there are no facts of the tenant. */
const struct facts_tenant *month_facts_tenant(const struct month_facts *f, const char *tenant);

#endif
