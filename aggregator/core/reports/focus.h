/* aggregator/core/reports/focus.h - rated lines as rows of FOCUS 1.2, 1.3 or 1.4. Pure.
 *
 * A row is a day of a line. Rules:
 *  1. BilledCost is the day's part of the line's cents: the rows of an invoice add up to it
 *  2. ListCost is the exact product of its unit price and PricingQuantity, not rounded. So is ContractedCost; where a tenant's own price is for another
 *     unit or basis it is what the day costs, exactly, and ContractedUnitPrice has 18 decimals of what that is for a unit of the list price. Covered use has
 *     the prices of the same use on demand, unused hours of a reservation those of the reservation. Credits and one-off charges have no unit price: their costs are what is billed
 *  3. a reservation is a commitment and a capacity reservation, with one id: a Purchase of which nothing is used yet, so that its EffectiveCost is 0.
 *     Its billed cost is the EffectiveCost of its use and of its unused hours (amortise.h). So EffectiveCost of the Usage of a
 *     reservation and month adds up to BilledCost of its Purchase, and EffectiveCost of an invoice to its BilledCost
 *  4. a refund of money is a Credit, whose EffectiveCost is its BilledCost. Time that was lent or not delivered is two rows: the hours of
 *     the reservation that its owner did not use, and the Credit for them
 *  5. an empty field is null; a text that a spreadsheet would run as a formula gets an apostrophe, as in the chargeback CSV. Numbers, dates and JSON
 *     stay as they are. Decimals have a decimal point
 *  6. a correction has the class Correction and keeps the days that it corrects as its charge periods; one that was billed before days were archived has the whole month
 *  7. the columns of FOCUS come first, then ours, which begin with x_
 *  8. everything is ASCII (ascii_text())
 *  9. a share of idle shared nodes names the method of the division (Allocated*, FOCUS 1.3) and the divided GPU-hours
 *     (x_OriginGpuHours); the ratios of all tenants of a pool's day add up to 1
 * 10. a row is the sum over many devices of a workspace: its resource is the workspace. The resource of a reservation's purchase and of its unused hours is the reservation
 * 11. a SkuPriceId is the SKU, the device, how it is shared, the class, the unit and the basis of a price: whatever the book's version, it has one
 *     list price at a time. A price that is one tenant's alone has the tenant in it, one for a sku of a meter that the book calls otherwise that sku
 * 12. Tags of use has the pod labels that all holders of the workspace had in the month, as they are spelt; ours begin with tollgate/. A label that differs between holders is
 *     left out: a row is the sum over all of them
 * 13. version 1.2 has the provider columns of 1.3 beside its own; 1.3 also names the tenant that a share was allocated to; 1.4 has no ProviderName and
 *     PublisherName any more and names the line of the invoice */
#ifndef TOLLGATE_FOCUS_H
#define TOLLGATE_FOCUS_H

#include "aggregator/core/rating/rating.h"

enum focus_version { FOCUS_1_2, FOCUS_1_3, FOCUS_1_4 };
#define FOCUS_VERSIONS "1.2|1.3|1.4"
extern const char *const focus_versions[]; /* by their number, NULL-ended */

struct focus_period {
	const char *start, *end; /* UTC */
	const char *status;      /* open, grace, closed */
	const char *closed_at;   /* UTC; "" while it is not */
	const char *first_day;   /* in the billing zone: "2026-11-01" */
};

/* A day of a month before. */
struct focus_day {
	const char *first_day; /* of its month, in the billing zone */
	const char *begins;    /* UTC */
};

/* A label that every holder of the workspace had in the month, with the same value. */
struct focus_label {
	const char *tenant, *workspace, *key, *value;
};

struct focus_input {
	enum focus_version version;
	const struct rating_input *in;
	const char *account_id, *account_name; /* of the paying organisation */
	const char *provider;                  /* the platform's operator */
	/* UTC, "2026-10-31T23:00:00Z": the bounds of the period, and the beginnings of its days with its end behind them */
	const char *period_start, *period_end;
	const char *const *day_bounds;
	size_t day_count;
	const struct focus_period *periods; /* the months that lines may correct */
	size_t period_count;
	const struct focus_day *past; /* the days of these, in their order */
	size_t past_count;
	const struct focus_label *labels;
	size_t label_count;
};

void focus_header(enum focus_version version, struct buf *out);
/* Rows of all lines. All lines of a tenant must be in one call: rule 2 looks at those of a reservation together. */
int64_t focus_row_count(const struct rated *r);
MUST_CHECK bool focus_rows(const struct focus_input *f, const struct rated *r, struct buf *out, struct err *err);

/* The datasets Billing Period, one row each, and Invoice Detail, one row for each line of an invoice, of FOCUS 1.4. A line has the InvoiceDetailId that its
 * rows have, and lines of 0 are there too. */
void focus_periods(const struct focus_input *f, const struct focus_period *periods, size_t n, struct buf *out);
void focus_invoice_header(struct buf *out);
MUST_CHECK bool focus_invoice_rows(const struct focus_input *f, const struct rated *r, struct buf *out,
                                   struct err *err);

/* Rule 8. */
bool is_ascii(const char *text);
/* The UTF-8 text in ASCII. json: inside a JSON text, as \uXXXX, which loses nothing. Else Latin letters as they are written without their
 * marks, umlauts with an e, and any other character as U+XXXX. Bytes that are no UTF-8 are question marks. */
void ascii_text(struct buf *out, const char *text, bool json);

#endif
