/* aggregator/core/rating/rating.h - from measured unit-nanoseconds to priced lines. Pure, exact (BILLING 3, 4).
 *
 * Rules, in order:
 *  1. a line is month x cluster x workspace x sku x class x charge type x price version. Two kinds of device (model, MIG profile, size, sharing mode), two
 *     prices, two counterparties or two cost centres are never in one line, so that a line has one unit price. Lines of the tenant's first cost centre
 *     in the month have the same id as if it were the only one
 *  2. each day of a line is quantised once: hours to nano-GPU-hours, half to even, and used, idle and unmeasured
 *     rounded together by largest remainder, so that they add up to it; everything larger is a sum of these
 *     integers. The parts of a reservation's day (covered, lent, unused, undelivered) are rounded together, so
 *     that they add up to the commitment; equal remainders in the order of MIG profile, sharing mode, counterparty, sku, kind and price
 *  3. the price is the most specific item that matches: GPU model, then MIG profile, then sharing mode, then
 *     class; ties by order in the book. An item for one tenant goes before those for all: the tenant pays it, in its own
 *     unit, basis and quantity. The list price is that of the item for all, in its unit and basis, or without one the tenant's own.
 *     One discount of the book, the most specific, is taken off the price that the tenant pays. Energy has no discount
 *  4. an item with a MIG profile is priced per instance-hour, quantised per day like the hours; any other per
 *     GPU-equivalent hour. With basis used, the active time, the unmeasured time and the active time beyond
 *     the share are priced. A meter's price may be for a number of its units, as a million tokens: the quantity is in those
 *  5. list_cost = quantity x unit_price, exactly, and the own cost likewise; discount = list_cost - the tenant's cost, negative
 *     where its own item is dearer. Credits have a negative quantity
 *  6. an invoice is a tenant's month: its total is rounded once, half to even, to the currency's exponent, and the
 *     cents go to the lines by largest remainder of list_cost - discount, ties by line_id; rounding = billed_cost
 *     - (list_cost - discount). Where a month has two currencies, each is a total of its own. Credits of lent time (9) are beside it
 *  7. usage without a price is a line without price at cost 0, and its description says so
 *  8. a commitment is the whole reservation at the reserved price; undelivered time is a credit at the same
 *     price; covered time, and time neither used nor lent, is shown at price 0. All parts are in the commitment's unit
 *  9. lent time is a credit: the price that its borrower paid x lender ratio for as many units as the commitment's unit has, at most
 *     the commitment's own price; rounded down once to a price's nine decimals. Its cents are rounded toward zero outside of rule 6, for
 *     each borrowing workspace on its own, and from quantities rounded down: so the credits for a borrowed line are never more than the
 *     cents of that line, which are its cost rounded down or up
 * 10. energy is priced per kWh where the book has a price for the cluster, once for all time that a workspace held
 * 11. idle time of shared nodes that is divided among tenants costs the dedicated price
 * 12. a one-off charge is one line of quantity 1 whose price is its own; a credit has the quantity -1. No price book and no
 *     discount applies to it
 * 13. a line whose cost is beyond 10^18 of its currency cannot be rated, nor can the largest lines of an invoice whose list
 *     costs add up to more: it keeps its quantity and its id, has no price, costs 0, and its description says so. No other line changes by it
 *
 * Files, in the order of the rules: rating.c (1, 2, 4 to 7, 10, 12, 13), rating_price.c (3, 8 to 11), rating_text.c (sku, description, line_id).
 *
 * Quantities, hours and costs have 128 bits: the amount of an event is below 10^15, so that 10^14 of them fit a line, and 10^18 of a
 * currency at 18 decimals leaves room for the sums of 170 such invoices.
 * The order of the input and the number of rows in which a day arrives change nothing. */
#ifndef TOLLGATE_RATING_H
#define TOLLGATE_RATING_H

#include "common/base/money.h"

enum charge_kind {
	CHARGE_USAGE,       /* held, on demand or borrowed */
	CHARGE_COVERED,     /* held, and reserved */
	CHARGE_COMMITMENT,  /* all that is reserved */
	CHARGE_UNUSED,      /* of it: neither held nor lent */
	CHARGE_UNDELIVERED, /* of it: there was no capacity */
	CHARGE_LENT,        /* of it: borrowed by others */
	CHARGE_DEDICATED,   /* of a tenant's own nodes: neither held nor reserved */
	CHARGE_SHARED,      /* of shared nodes: idle, divided among tenants (shared_cost.h) */
	CHARGE_METER,       /* of another meter */
	CHARGE_ADJUSTMENT,  /* one-off: a charge, or a credit when the amount is negative */
	CHARGE_ENERGY,      /* made by rule 10, not in the input */
	CHARGE_KINDS
};

/* One day of one combination, summed by the store. Strings are borrowed. */
struct usage_day {
	int32_t day; /* ordinal in the period, only to quantise per day */
	enum charge_kind kind;
	const char *cluster, *tenant, *cost_center, *workspace;
	/* mig_profile is "" for a whole GPU; klass is "" for other meters. Of lent time it is the kind that was borrowed */
	const char *gpu_model, *mig_profile, *sharing_mode, *klass;
	int64_t instance_units; /* units of one whole device of this kind: 5040, or the MIG instance's */
	int64_t price_book;     /* index into rating_input.books; -1: none in force */
	int128 used_unit_ns, idle_unit_ns, unmeasured_unit_ns; /* >= 0, as are all amounts; of usage and covered */
	int128 over_unit_ns;                                   /* beside them */
	int128 energy_mj;
	int128 unit_ns; /* of the kinds that have no activity */
	/* Rows of one day and book with the same number above 0 are a commitment and its parts. */
	int64_t reservation;
	const char *counterparty; /* of lent time: the tenant that borrowed it; else NULL */
	const char *borrower;     /* its workspace; NULL: not known, one for all */
	/* The reserved kind, of parts of a commitment: set by rating, from the commitment. NULL and 0: not a part of one. */
	const char *reserved_profile;
	int64_t reserved_units;
	/* Of another meter, else NULL and 0. A reversal of a one-off amount names that amount in meter. */
	const char *meter, *category, *unit, *meter_sku;
	int128 quantity; /* scale QUANTITY_SCALE; of a one-off charge or credit 1 */
	/* Of a one-off charge or credit, which also has a category and a unique name as meter_sku. */
	int128 amount; /* scale PRICE_SCALE; not 0 */
	const char *currency, *reason;
	/* Of a share of idle shared nodes: the whole that was divided, and this tenant's ratio of it, in 10^-9; the ratios of all tenants
	 * add up to 1. */
	int128 origin_unit_ns;
	int64_t origin_ratio;
	bool provisional; /* it has hours that are not sealed: its class may change. Never in a closed month, and not archived */
};

struct rating_item {
	const char *sku;                                            /* "" : derived from model and profile */
	const char *gpu_model, *mig_profile, *sharing_mode, *klass; /* NULL: any */
	int128 price;
	const char *tenant;    /* for this tenant alone; NULL: for all */
	bool basis_used;       /* only of usage: 4 */
	const char *meter;     /* of another meter; NULL: of GPUs */
	const char *meter_sku; /* NULL: any of that meter */
	int64_t per;           /* how many units of the meter the price is for; 0 is 1 */
};
/* A discount, in 10^-9 of the price. One with the tenant wins, then one with the category, then one with the class. */
struct rating_discount {
	const char *tenant, *category, *klass; /* NULL: any */
	int64_t ratio;                         /* 0 .. 10^9 */
};
struct rating_site {
	const char *cluster;
	int128 energy_price; /* per kWh; scale PRICE_SCALE; -1: none */
	int128 carbon;       /* grams per kWh; scale PRICE_SCALE; -1: not known */
};
/* How idle time of shared nodes is divided among tenants (shared_cost.h). */
enum shared_method { SHARED_NONE, SHARED_EVEN, SHARED_PROPORTIONAL, SHARED_WEIGHTS };
struct rating_weight {
	const char *tenant;
	int64_t weight; /* >= 1 */
};
struct rating_book {
	const char *version;
	const char *currency;
	const struct rating_item *items;
	size_t item_count;
	const struct rating_discount *discounts;
	size_t discount_count;
	const struct rating_site *sites; /* where energy has a price, or its carbon is known */
	size_t site_count;
	int64_t lender_ratio; /* 10^-9 of what the borrower pays; 0 .. 10^9 */
	enum shared_method shared_idle;
	const struct rating_weight *weights; /* of SHARED_WEIGHTS */
	size_t weight_count;
	int128 platform_cost; /* monthly cost of the platform; scale PRICE_SCALE; -1: not given */
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

/* The unit of a price: a number of units of a meter, or an hour of a whole GPU or of an instance, held or used. Texts are borrowed. */
struct rating_unit {
	bool per_instance;
	bool basis_used;  /* only of usage and loans: the other kinds have no activity */
	int64_t per;      /* of a meter: the price is for so many */
	const char *base; /* of a meter, of energy and of one-off amounts: "token", "kWh"; NULL: hours of GPUs */
	const char *
		profile; /* per instance of what was reserved, where the device is another kind; NULL: of the device's own */
};

/* One day of a line: the line's numbers are the sums of its days'. */
struct rated_day {
	int32_t day;
	int128 ngh, used_ngh, idle_ngh, unmeasured_ngh, quantity;
	int128 own_quantity;       /* in the unit of the tenant's own price; without one as quantity */
	int128 on_demand_quantity; /* of covered use: in the unit of the list price of the same use on demand; else 0 */
	int128 reserved_cost; /* of a part of a reservation: its part of the commitment's cost; scale COST_SCALE. Else 0 */
	int128 list_cost, discount; /* scale COST_SCALE */
	int128 billed;              /* the line's cents, apportioned by largest remainder */
	int128 amortised;           /* of a reservation: its part of the commitment's cents (amortise.h); else 0 */
	int128 energy_mj;
	/* Of a share of idle shared nodes, as in usage_day; the whole in nano-GPU-hours. */
	int128 origin_ngh;
	int64_t origin_ratio;
};

#define RATING_COST_DIGITS 18 /* rule 13 */

/* Raised with every change that rates the same rows differently. A close stores it: a month that was closed by earlier rules stays as it was billed. */
#define RATING_RULES 2

struct rated_line {
	/* Half a SHA-256 over the key of rule 1: the same line has the same id in every computation. */
	char line_id[33];
	char *invoice_id; /* tenant-period-version */
	char *sku;
	enum charge_kind kind;
	const char *cluster, *tenant, *cost_center, *workspace, *gpu_model, *mig_profile, *sharing_mode, *klass,
		*counterparty;  /* borrowed from the input */
	int64_t instance_units; /* of one whole device of its kind; 0: not known, or no device */
	const char *charge_type, *category;
	struct rating_unit
		unit; /* of the list price. The basis of a line read from the database is not known, and is held */
	const char *meter,
		*meter_sku; /* of another meter, borrowed from the input; NULL of GPUs, and of a line read from the database */
	const char *price_version; /* "" without a price */
	/* Of lent time without a price, else NULL: the version of its commitment's price, and the reserved profile, if that is priced per instance. */
	const char *commitment_version, *commitment_profile;
	const char *currency;
	bool priced;
	bool unrated;     /* 13 */
	bool provisional; /* some of its hours are not sealed (BILLING 4); its description says so */
	int128 allocated_ngh, used_ngh, idle_ngh, unmeasured_ngh; /* nano-GPU-hours; of usage and covered, else 0 */
	int128 ngh; /* GPU-hours of any kind of GPU line, not negative: those that the commitment's parts add up to */
	int128 quantity;       /* scale QUANTITY_SCALE; of credits negative */
	int128 unit_price;     /* the public list price, or the credit for a unit; scale PRICE_SCALE */
	int128 discount_price; /* list price less the tenant's own price for the same unit; negative: it is dearer */
	/* Of a tenant's own price for another unit or basis than the public one, else 0. */
	bool own_differs;
	struct rating_unit own_unit;
	int128 own_quantity, own_price;
	int64_t discount_ratio;               /* of the tenant's price, in 10^-9 */
	int128 list_cost, discount, rounding; /* scale COST_SCALE */
	int128 billed;                        /* scale currency_scale */
	int currency_scale;
	int128 energy_mj;
	char *description;
	/* Of a correction (correction.h), else NULL and 0: the line it changes, that line's month, and which invoice of that
	 * month it is on. */
	const char *correction_of, *period_start, *period_end;
	int32_t invoice_version;
	struct rated_day *days; /* in their order; of a correction one for the whole month */
	size_t day_count;
	/* Of a correction: the difference of each day of the month that it corrects; they add up to it, but for rounding. NULL: not known by day. */
	struct rated_day *corrected_days;
	size_t corrected_day_count;
};

struct rated {
	struct rated_line *lines; /* by tenant, workspace, sku, class, price version, cluster, sharing mode, line_id */
	size_t count;
};

/* ERR_INVALID names a row that cannot be: a negative amount, a size outside 1..5040, a sum beyond 128 bits. */
MUST_CHECK bool rating_run(const struct rating_input *in, struct rated **ret, struct err *err);
/* The days of a line; of a correction its differences by day, where they are known. */
const struct rated_day *rated_line_days(const struct rated_line *l, size_t *ret_count);
void rated_line_fini(struct rated_line *l); /* of a line that rating_run() made */
void rated_free(struct rated *r);
DEFINE_OWNED(rated, struct rated)

/* The price of a row by rules 3, 4, 8, 9 and 10; item NULL: there is none. */
struct rating_price {
	const struct rating_item *item; /* in force: the tenant's own, or the public one */
	int128 unit_price;              /* the list price, or the credit for a unit */
	struct rating_unit unit;
	int128 own_price; /* the tenant's own, or the same */
	struct rating_unit own;
	int64_t discount_ratio; /* of the own price */
	/* Of lent time: the credit for a unit that the borrower paid for, the size of that unit, and whether only use is paid. */
	int128 paid_credit;
	int64_t paid_units;
	bool paid_used;
	/* Of a part of a reservation: the tenant's price of the commitment, and whether its list price is per instance. */
	struct rating_unit reserved;
	int128 reserved_price;
	int64_t reserved_ratio;
	bool reserved_per_instance;
	struct rating_unit on_demand; /* of covered use: the unit of the list price of the same use on demand */
	bool sold_on_demand;          /* there is one */
};
struct rating_price rating_price_of(const struct rating_book *book, const struct usage_day *d);

/* ---- the texts of a line that follow from its columns ---- */

/* The stock-keeping unit of a kind of device: "h100-80gb", "a100-80gb-mig-3g.40gb". */
char *rating_sku(const char *gpu_model, const char *mig_profile);

/* The class that a row is priced and shown as: that of its usage, or of its kind. */
const char *rating_class(const struct usage_day *d);
const char *rating_charge_type(const struct usage_day *d);

/* The description on an invoice: "On-demand use of A100-80GB MIG 3g.40gb". d: a row of the line. */
char *rating_description(const struct rated_line *l, const struct usage_day *d);
/* The same of a correction: "correction of 2026-10: On-demand use of H100-80GB". month: a month, or a time that begins with it. */
char *rating_correction_description(const char *month, const char *of);

/* "gpu-hour", "1000000 tokens", "instance-hour of 1g.10gb". */
char *rating_unit_text(const struct rating_unit *unit);
/* The same of a tenant's own price, with its basis: "gpu-hour used". */
char *rating_own_unit_text(const struct rating_unit *unit);
/* Parses either text, for a line read from the database. The caller owns the unit's texts. */
struct rating_unit rating_unit_read(enum charge_kind kind, const char *text);
void rating_unit_fini(struct rating_unit *u); /* of one that was read */
/* Adds a tenant's own price, its unit and quantity to the description; call it after the line's sums are known. */
void rating_describe_own(struct rated_line *l);

/* Fills l->line_id from the key columns, which must all be set. reserved: its unit is the commitment's instance.
 * with_cost_center: it is not the tenant's first in the month. */
MUST_CHECK bool rating_line_id(const char *period, const struct usage_day *d, bool reserved, bool with_cost_center,
                               struct rated_line *l, struct err *err);

/* Lines as a tenant's own document shows them: a borrower is "another tenant" (BILLING 3.8); everything else is as in the operator's.
 * Borrows all but the changed texts from r. in_place(tenant_lines) struct tenant_lines t = {0}; */
struct tenant_lines {
	struct rated rated;
	bool *owned; /* the descriptions that it owns */
};
void tenant_lines_make(struct tenant_lines *t, const struct rated *r);
void tenant_lines_fini(struct tenant_lines *t);

#endif
