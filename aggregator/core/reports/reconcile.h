/* aggregator/core/reports/reconcile.h - reconciliation: a month's capacity at list price against its billed amounts. Pure, exact.
 *
 * Rules, in order:
 *  1. capacity is all time in service, down and unknown too. Each unit of it is in one class of hours: on demand, borrowed, covered,
 *     unused, dedicated (a tenant's own nodes, neither held nor reserved), shared (idle time of shared nodes, divided over tenants), idle (the rest of it,
 *     the platform's), stranded, down, unknown
 *  2. the list price of a GPU model is the price for all tenants of a whole GPU on demand. Time without such a price is shown with
 *     the value 0
 *  3. capacity x list price = billed + credits + unrecovered + prices, every term named:
 *     - billed and credits are the cents of the report's lines of GPUs
 *     - unrecovered are idle, stranded, down and unknown hours at list price
 *     - prices is the effect of other prices: per class its hours at list price less its lines' list cost; tenants' own prices;
 *       discounts; hours that both lender and borrower pay, which the lenders' hours at list price subtract again; the rounding of invoices
 *  4. hours are quantised once for each cluster, model and book; terms are rounded together to the currency's exponent, per cluster and
 *     model. Everything larger is a sum of these
 *  5. the hours of capacity and those that were rated are the same, to the unit-nanosecond. Where they are not (the ledger has changed since the
 *     month was closed) the difference is shown in hours, and its value is in the terms of rule 3
 *  6. amounts billed for other things than capacity (energy, other meters, one-off charges and credits, corrections of earlier months) stand
 *     below: with them the page adds up to the total of the report
 *  7. the platform's cost is that of the newest book of the month in that currency */
#ifndef TOLLGATE_RECONCILE_H
#define TOLLGATE_RECONCILE_H

#include "aggregator/core/rating/rating.h"

enum reconcile_hours {
	HOURS_ON_DEMAND,
	HOURS_BORROWED,
	HOURS_COVERED,
	HOURS_UNUSED,
	HOURS_DEDICATED,
	HOURS_SHARED,
	HOURS_IDLE,
	HOURS_STRANDED,
	HOURS_DOWN,
	HOURS_UNKNOWN,
	RECONCILE_HOURS
};

enum reconcile_section { SECTION_BILLED, SECTION_CREDITS, SECTION_UNRECOVERED, SECTION_PRICES, RECONCILE_SECTIONS };

enum reconcile_term {
	TERM_ON_DEMAND,
	TERM_BORROWED,
	TERM_COMMITMENTS,
	TERM_DEDICATED,
	TERM_SHARED,
	TERM_UNDELIVERED,
	TERM_LENT,
	TERM_IDLE,
	TERM_STRANDED,
	TERM_DOWN,
	TERM_UNKNOWN,
	TERM_ON_DEMAND_PRICES,
	TERM_BORROWED_PRICES,
	TERM_RESERVED_PRICES,
	TERM_DEDICATED_PRICES,
	TERM_SHARED_PRICES,
	TERM_OWN_PRICES,
	TERM_DISCOUNTS,
	TERM_PAID_TWICE,
	TERM_ROUNDING,
	RECONCILE_TERMS
};

/* Name and description of a term. hours: the class of hours that it values; -1: none. */
struct reconcile_naming {
	const char *name, *words;
	enum reconcile_section section;
	int hours;
};
extern const struct reconcile_naming reconcile_terms[RECONCILE_TERMS];
extern const char *const reconcile_sections[RECONCILE_SECTIONS];
extern const char *const reconcile_hours_names[RECONCILE_HOURS];

/* Billed, but not for capacity. */
enum reconcile_beside {
	BESIDE_ENERGY,
	BESIDE_STORAGE,
	BESIDE_NETWORK,
	BESIDE_INFERENCE,
	BESIDE_SUPPORT,
	BESIDE_OTHER,
	BESIDE_ADJUSTMENTS,
	BESIDE_CORRECTIONS,
	RECONCILE_BESIDES
};
extern const char *const reconcile_beside_names[RECONCILE_BESIDES];

/* A pool's time in the month, or a part of it, in unit-nanoseconds. Texts are borrowed for the call. */
struct reconcile_pool {
	const char *cluster, *gpu_model;
	const char *price_version; /* of the book in force; NULL: there was none */
	bool owned;                /* by a tenant; else shared */
	int128 on_demand, borrowed, covered, unused, unreserved_idle, stranded, down, unknown;
};

struct reconcile;
/* For the month of this input, which it does not refer to later. */
struct reconcile *reconcile_new(const struct rating_input *in);
void reconcile_free(struct reconcile *r);
DEFINE_OWNED(reconcile, struct reconcile)
/* In any order. ERR_INVALID: a book that the month does not have, an amount below 0, a sum beyond the number's range. */
MUST_CHECK bool reconcile_add_pool(struct reconcile *r, const struct rating_input *in, const struct reconcile_pool *p,
                                   struct err *err);
/* The rows of one tenant or several, and their lines; corrections may be among these. */
MUST_CHECK bool reconcile_add_rated(struct reconcile *r, const struct rating_input *in, const struct rated *rated,
                                    struct err *err);

enum reconcile_level { LEVEL_MODEL, LEVEL_CLUSTER, LEVEL_ALL };
/* One cluster and model; one cluster; everything. Of one currency. */
struct reconcile_row {
	enum reconcile_level level;
	const char *cluster, *gpu_model; /* "": all */
	char currency[8];
	int scale;
	int128 list_price; /* scale PRICE_SCALE; -1: none, or several */
	int128 ngh[RECONCILE_HOURS], capacity_ngh;
	int128 unpriced_ngh; /* of them: without a list price */
	int128 differ_ngh;   /* rule 5; 0 as a rule */
	bool differs;        /* also by less than a billionth of an hour */
	int128 value;        /* capacity at list price, in the currency's smallest unit, as are all amounts */
	int128 terms[RECONCILE_TERMS];
};
int128 reconcile_section_sum(const struct reconcile_row *row, enum reconcile_section s);

struct reconcile_total { /* of a currency */
	char currency[8];
	int scale;
	int128 capacity; /* billed and credited for it */
	int128 beside[RECONCILE_BESIDES];
	int128 total;         /* of the report */
	int128 platform_cost; /* of the whole month; -1: not given */
};

struct reconciliation {
	char period[8], period_status[8], period_start[12], period_end[12];
	struct reconcile_row
		*rows; /* by cluster and model, each cluster's sum behind it; at the end one for everything */
	size_t count;
	struct reconcile_total *totals;
	size_t total_count;
	struct reconcile *memory; /* owns the texts */
};
void reconciliation_free(struct reconciliation *r);
DEFINE_OWNED(reconciliation, struct reconciliation)
/* Takes ownership of *r, which is NULL afterwards, also when it fails. */
MUST_CHECK bool reconcile_end(struct reconcile **r, struct reconciliation **ret, struct err *err);

/* ---- as documents (reconcile_report.c) ---- */

/* {"period","period_status","rows":[...],"totals":[...]}; amounts and hours are text. */
MUST_CHECK bool reconcile_json(const struct reconciliation *r, struct buf *out, struct err *err);
/* A row for each term: period, level, cluster, gpu_model, currency, section, item, gpu_hours, amount, description. */
MUST_CHECK bool reconcile_csv(const struct reconciliation *r, struct buf *out, struct err *err);
struct reconcile_page {
	const char *provider, *organisation, *zone;
};
MUST_CHECK bool reconcile_html(const struct reconciliation *r, const struct reconcile_page *page, struct buf *out,
                               struct err *err);

#endif
