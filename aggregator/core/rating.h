/* aggregator/core/rating.h - from measured unit-nanoseconds to priced lines. Pure, exact (BILLING 3, 4).
 *
 * Rules, in order:
 *  1. a line is month x cluster x workspace x sku x class x charge type x price version. Two kinds of device
 *     (model, MIG profile, size, sharing mode) or two prices are never in one line, so that a line has one unit
 *     price
 *  2. each day of a line is quantised once: allocated to nano-GPU-hours, half to even, and used, idle and
 *     unmeasured rounded together by largest remainder, so that they add up to it; everything larger is a sum of
 *     these integers
 *  3. the price is the most specific item that matches: GPU model, then MIG profile, then sharing mode, then
 *     class; ties by order in the book
 *  4. an item with a MIG profile is priced per instance-hour, quantised per day like the hours; any other per
 *     GPU-equivalent hour
 *  5. list_cost = quantity x unit_price, exactly
 *  6. an invoice is a tenant's month: its total is rounded once, half to even, to the currency's exponent, and the
 *     cents go to the lines by largest remainder of list_cost - discount, ties by line_id; rounding = billed_cost
 *     - (list_cost - discount). Where a month has two currencies, each is a total of its own
 *  7. usage without a price is a line without price at cost 0, and says so
 *
 * The order of the input and the number of rows in which a day arrives change nothing. */
#ifndef TOLLGATE_CORE_RATING_H
#define TOLLGATE_CORE_RATING_H

#include "common/money.h"

/* One day of one combination, summed by the store. Strings are borrowed. */
struct usage_day {
	int32_t day; /* ordinal in the period, only to quantise per day */
	const char *cluster, *tenant, *cost_center, *workspace;
	const char *gpu_model, *mig_profile, *sharing_mode, *klass; /* mig_profile is "" for a whole GPU */
	int64_t instance_units; /* units of one whole device of this kind: 5040, or the MIG instance's */
	int64_t price_book;     /* index into rating_input.books; -1: none in force */
	int128 used_unit_ns, idle_unit_ns, unmeasured_unit_ns; /* >= 0, as is the energy */
	int128 energy_mj;
};

struct rating_item {
	const char *sku;                                            /* "" : derived from model and profile */
	const char *gpu_model, *mig_profile, *sharing_mode, *klass; /* NULL: any */
	int128 price;
};
struct rating_book {
	const char *version;
	const char *currency;
	const struct rating_item *items;
	size_t item_count;
};

struct rating_input {
	const char *period_start, *period_end; /* dates in the billing zone: "2026-11-01", end exclusive "2026-12-01" */
	const char *period;                    /* "2026-11" */
	const char *period_status;             /* open, grace, closed */
	const char *currency;                  /* of lines without a price */
	int32_t invoice_version;
	const struct rating_book *books;
	size_t book_count;
	const struct usage_day *days;
	size_t day_count;
};

struct rated_line {
	/* Half a SHA-256 over the key of rule 1: the same line has the same id in every computation. */
	char line_id[33];
	char *invoice_id; /* tenant-period-version */
	char *sku;
	const char *cluster, *tenant, *cost_center, *workspace, *gpu_model, *mig_profile, *sharing_mode,
		*klass; /* borrowed from the input */
	const char *charge_type, *category, *unit;
	const char *price_version; /* "" without a price */
	const char *currency;
	bool priced;
	int64_t allocated_ngh, used_ngh, idle_ngh, unmeasured_ngh; /* nano-GPU-hours */
	int64_t quantity;                                          /* scale QUANTITY_SCALE */
	int128 unit_price;                                         /* scale PRICE_SCALE */
	int128 list_cost, discount, rounding;                      /* scale COST_SCALE */
	int128 billed;                                             /* scale currency_scale */
	int currency_scale;
	int128 energy_mj;
	char *description;
};

struct rated {
	struct rated_line *lines; /* by tenant, workspace, sku, class, price version, cluster, sharing mode, line_id */
	size_t count;
};

/* ERR_INVALID names the row that cannot be rated: a negative amount, a size outside 1..5040, a sum beyond the
 * number's range. */
MUST_CHECK bool rating_run(const struct rating_input *in, struct rated **ret, struct err *err);
void rated_free(struct rated *r);
DEFINE_OWNED(rated, struct rated)

/* The item of the book that prices this usage, or NULL. */
const struct rating_item *rating_pick(const struct rating_book *book, const char *gpu_model, const char *mig_profile,
                                      const char *sharing_mode, const char *klass);

#endif
