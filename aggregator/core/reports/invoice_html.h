/* aggregator/core/reports/invoice_html.h - a tenant's month as one printed page. Pure.
 *
 * Rules:
 *  1. the page needs nothing beside itself: no script, no other file, no address; every text is escaped
 *  2. amounts are the cents of the lines: those by category add up to the total, and so do the lines shown and the rest
 *  3. a page has room for INVOICE_TEXT_LINES lines of text. A line of the report takes one, or two where its words need them; budgets take one each and two, the
 *     numbers of corrections one, every currency but the first two. Where there are more, those without a price and then the largest are shown, a reservation with its credits, in the report's order,
 *     and the others are one row. Words that are too long for their room end
 *     in an ellipsis: however long the names, a page is one page
 *  4. hours that are shown as parts of a sum are rounded together, so that they add up as they are printed
 *  5. amounts of two currencies are never added: totals have a column for each, lines a group and a total for each
 *  6. layout 0 is how pages were made before there was rule 3: INVOICE_LINES lines, however long. Months that were closed then are made again with it.
 *     Up to layout 2 lines had list price and net without the discount between them, and up to layout 3 FOCUS had other costs. Up to layout 1 documents of a tenant named the tenants that had borrowed from it */
#ifndef TOLLGATE_INVOICE_HTML_H
#define TOLLGATE_INVOICE_HTML_H

#include "aggregator/core/rating/rating.h"

#define INVOICE_LAYOUT 4 /* of documents made now */
#define INVOICE_LAYOUT_PRIVATE \
	2 /* the first whose documents of a tenant name no other; tables of all tenants are not those of each joined */
#define INVOICE_LAYOUT_LISTED \
	3 /* the first whose lines have list price, list, discount and net, grouped by workspace */
#define INVOICE_LAYOUT_CENTERS 4 /* the first that says how many cost centres it does not show */
#define INVOICE_LAYOUT_FOCUS 4   /* the first whose FOCUS files can be made again from the archive */
#define INVOICE_LAYOUT_WHOLE \
	4 /* the first whose lines without a price come first, whose reservations have their parts, whose budgets have the currency's decimals */
#define INVOICE_TEXT_LINES 15
#define INVOICE_LINES 14     /* of layout 0 */
#define INVOICE_CURRENCIES 3 /* columns of one page */

struct invoice_amount {
	const char *currency;
	int128 billed; /* in the currency's smallest unit */
	int scale;
};

/* The time of the tenant's own nodes by state, in unit-nanoseconds. */
struct invoice_capacity {
	int128 held, unallocated, stranded, down, unknown;
};

#define INVOICE_BUDGETS 3 /* for which a page has room */

struct invoice_budget {
	const char *workspace; /* "": of the tenant as a whole */
	const char *unit;      /* of budget.h */
	int128 limit, spent;   /* scale PRICE_SCALE; a limit is above 0 */
	int128 forecast;       /* at the end of the month */
	const char *method;    /* of it, in words; the same for all of a month */
	bool hard;
};

#define INVOICE_PROMISES 3 /* likewise */

/* Promised and measured values as texts. NULL: not promised, or nothing to measure. */
struct invoice_promise {
	const char *workspace; /* "": of the tenant as a whole */
	const char *owed_wait_seconds, *owed_requests, *owed_late, *longest_wait_seconds, *owed_kept;
	const char *delivered_percent, *measured_percent, *delivered_kept; /* kept: "true" or "false" */
};

struct invoice_input {
	const struct rating_input *in;
	const struct rated *r;       /* of one tenant, at least one line */
	const char *provider;        /* the platform's operator */
	const char *organisation;    /* the paying organisation */
	const char *tenant_name;     /* display name; "": none */
	const char *zone;            /* of the days, such as Europe/Berlin */
	const char *previous_period; /* "2026-10"; NULL: there is none to compare with */
	const struct invoice_amount *previous;
	size_t previous_count;
	const struct invoice_capacity *own;   /* NULL: it has no nodes of its own */
	const struct invoice_budget *budgets; /* those beyond the room are counted */
	size_t budget_count;
	const struct invoice_promise *promises; /* likewise */
	size_t promise_count;
	int64_t layout; /* rule 6 */
};

/* A document is begin, one page per tenant, end. */
void invoice_html_begin(const char *title, int64_t layout, struct buf *out);
/* ERR_INVALID: more currencies than a page has columns. */
MUST_CHECK bool invoice_html_page(const struct invoice_input *i, struct buf *out, struct err *err);
void invoice_html_end(struct buf *out);

#endif
