/* aggregator/core/rating/rating_price.c - the price of a unit of a row: rules 3, 4 and 8 to 11 of rating.h. */
#include <string.h>

#include "aggregator/core/rating/rating.h"
#include "common/base/units.h"

static bool
accepts(const char *wanted, const char *value)
{
	return wanted == NULL || strcmp(wanted, value) == 0;
}

/* The columns of a row that its price depends on. */
struct wanted {
	const char *tenant, *meter, *meter_sku; /* meter NULL: GPUs */
	const char *gpu_model, *mig_profile, *sharing_mode, *klass;
};

static bool
matches(const struct rating_item *i, const struct wanted *w)
{
	if (w->meter != NULL)
		return i->meter != NULL && strcmp(i->meter, w->meter) == 0 && accepts(i->meter_sku, w->meter_sku);
	return i->meter == NULL && accepts(i->gpu_model, w->gpu_model) && accepts(i->mig_profile, w->mig_profile) &&
	       accepts(i->sharing_mode, w->sharing_mode) && accepts(i->klass, w->klass);
}

static int
specificity(const struct rating_item *i)
{
	return (i->gpu_model ? 8 : 0) + (i->mig_profile ? 4 : 0) + (i->sharing_mode ? 2 : 0) + (i->klass ? 1 : 0) +
	       (i->meter_sku ? 1 : 0);
}

/* own: among the items of this tenant alone; else among those for all. */
static const struct rating_item *
pick(const struct rating_book *book, const struct wanted *w, bool own)
{
	const struct rating_item *best = NULL;

	for (size_t i = 0; i < book->item_count; i++) {
		const struct rating_item *it = &book->items[i];

		if (own != (it->tenant != NULL) || (own && strcmp(it->tenant, w->tenant) != 0) || !matches(it, w))
			continue;
		if (best == NULL || specificity(it) > specificity(best))
			best = it;
	}
	return best;
}

static int64_t
discount_of(const struct rating_book *book, const char *tenant, const char *category, const char *klass)
{
	int64_t ratio = 0;
	int best = -1;

	for (size_t i = 0; i < book->discount_count; i++) {
		const struct rating_discount *d = &book->discounts[i];
		int fields = (d->tenant ? 4 : 0) + (d->category ? 2 : 0) + (d->klass ? 1 : 0);

		if (accepts(d->tenant, tenant) && accepts(d->category, category) && accepts(d->klass, klass) &&
		    fields > best) {
			best = fields;
			ratio = d->ratio;
		}
	}
	return ratio;
}

static struct rating_unit
unit_of(const struct rating_item *i)
{
	return (struct rating_unit){.per_instance = i->meter == NULL && i->mig_profile != NULL,
	                            .basis_used = i->meter == NULL && i->basis_used,
	                            .per = i->per > 0 ? i->per : 1};
}

/* Rule 3. */
static struct rating_price
price_for(const struct rating_book *book, const struct wanted *w, const char *category)
{
	const struct rating_item *list = pick(book, w, false), *own = pick(book, w, true);

	own = own != NULL ? own : list;
	list = list != NULL ? list : own;
	if (own == NULL)
		return (struct rating_price){.item = NULL};
	return (struct rating_price){.item = own,
	                             .unit_price = list->price,
	                             .unit = unit_of(list),
	                             .own_price = own->price,
	                             .own = unit_of(own),
	                             .discount_ratio = discount_of(book, w->tenant, category, w->klass)};
}

static struct rating_price
gpu_price(const struct rating_book *book, const struct usage_day *d, const char *tenant, const char *klass)
{
	struct wanted w = {.tenant = tenant,
	                   .gpu_model = d->gpu_model,
	                   .mig_profile = d->mig_profile,
	                   .sharing_mode = d->sharing_mode,
	                   .klass = klass};

	return price_for(book, &w, "gpu");
}

/* The price of the commitment that a row is a part of. */
static struct rating_price
reserved_price(const struct rating_book *book, const struct usage_day *d)
{
	const struct wanted w = {.tenant = d->tenant,
	                         .gpu_model = d->gpu_model,
	                         .mig_profile = d->reserved_profile ? d->reserved_profile : "",
	                         .sharing_mode = "",
	                         .klass = "reserved"};
	struct rating_price p = price_for(book, &w, "gpu");

	p.unit.basis_used = false; /* reserved time is held, used or not */
	p.unit.per = 1;
	p.own.basis_used = false;
	return p;
}

/* The commitment's price as a part of the reservation carries it. */
static struct rating_price
as_part(struct rating_price commitment)
{
	return (struct rating_price){.reserved = commitment.own,
	                             .reserved_price = commitment.own_price,
	                             .reserved_ratio = commitment.discount_ratio,
	                             .reserved_per_instance = commitment.unit.per_instance};
}

/* Rule 8: at no price, in the commitment's unit. */
static struct rating_price
shown_price(const struct rating_book *book, const struct usage_day *d)
{
	static const struct rating_item shown = {.sku = ""};
	const struct rating_price on_demand = d->kind == CHARGE_COVERED ? gpu_price(book, d, d->tenant, "on-demand")
	                                                                : (struct rating_price){.item = NULL};
	struct rating_price p = as_part(reserved_price(book, d));

	p.item = &shown;
	p.unit = d->reserved_units > 0 ? reserved_price(book, d).unit : (struct rating_unit){.per = 1};
	p.own = p.unit;
	p.on_demand = on_demand.unit;
	p.sold_on_demand = on_demand.item != NULL;
	return p;
}

/* price x (1 - discount) x lender ratio, converted from a unit of size `from` to one of size `to`; rounded down once. */
static int128
credited(int128 price, int64_t discount, int64_t lender_ratio, int64_t to, int64_t from)
{
	int128 exact = price * (RATIO_ONE - discount) * lender_ratio, scaled;

	/* a price is below 10^18: with two ratios it is below 10^36 */
	if (to == from)
		scaled = exact;
	else if (__builtin_mul_overflow(exact, (int128)to, &scaled))
		scaled = exact / from * to;
	else
		scaled /= from;
	return scaled / RATIO_ONE / RATIO_ONE;
}

static int128
at_most(int128 value, int128 most)
{
	return value < most ? value : most;
}

/* Rule 9: the borrower's price x ratio, at most the lender's own price for the same time. */
static struct rating_price
lent_price(const struct rating_book *book, const struct usage_day *d)
{
	const struct rating_price paid = gpu_price(book, d, d->counterparty, "borrowed"),
				  reserved = reserved_price(book, d);
	const bool part = d->reserved_units > 0;
	const struct rating_unit unit = {.per_instance = part ? reserved.unit.per_instance : paid.own.per_instance,
	                                 .per = 1};
	const int64_t whole = part ? d->reserved_units : d->instance_units,
		      units = unit.per_instance ? whole : UNITS_PER_GPU,
		      paid_units = paid.own.per_instance ? d->instance_units : UNITS_PER_GPU;
	const int64_t reserved_units = part && reserved.own.per_instance ? d->reserved_units : UNITS_PER_GPU;
	int128 credit, paid_credit;
	struct rating_price p;

	if (paid.item == NULL)
		return as_part(reserved);
	credit = at_most(credited(paid.own_price, paid.discount_ratio, book->lender_ratio, units, paid_units),
	                 credited(reserved.own_price, reserved.discount_ratio, RATIO_ONE, units, reserved_units));
	paid_credit =
		at_most(credited(paid.own_price, paid.discount_ratio, book->lender_ratio, paid_units, paid_units),
	                credited(reserved.own_price, reserved.discount_ratio, RATIO_ONE, paid_units, reserved_units));
	p = as_part(reserved);
	p.item = paid.item;
	p.unit_price = p.own_price = credit;
	p.unit = unit;
	p.own = (struct rating_unit){.per_instance = unit.per_instance, .basis_used = paid.own.basis_used, .per = 1};
	p.paid_credit = paid_credit;
	p.paid_units = paid_units;
	p.paid_used = paid.own.basis_used;
	return p;
}

static struct rating_price
energy_price(const struct rating_book *book, const struct usage_day *d)
{
	static const struct rating_item energy = {.sku = "energy"};
	struct rating_price p = {0};

	for (size_t i = 0; i < book->site_count && p.item == NULL; i++)
		if (book->sites[i].energy_price >= 0 && strcmp(book->sites[i].cluster, d->cluster) == 0)
			p = (struct rating_price){.item = &energy,
			                          .unit_price = book->sites[i].energy_price,
			                          .unit = {.per = 1},
			                          .own_price = book->sites[i].energy_price,
			                          .own = {.per = 1}};
	return p;
}

struct rating_price
rating_price_of(const struct rating_book *book, const struct usage_day *d)
{
	struct wanted meter;
	struct rating_price p;

	switch (d->kind) {
	case CHARGE_COVERED:
	case CHARGE_UNUSED: return shown_price(book, d);
	case CHARGE_LENT: return lent_price(book, d);
	case CHARGE_ADJUSTMENT: return (struct rating_price){.item = NULL}; /* 12 */
	case CHARGE_ENERGY: return energy_price(book, d);
	case CHARGE_METER:
		meter = (struct wanted){.tenant = d->tenant, .meter = d->meter, .meter_sku = d->meter_sku, .klass = ""};
		return price_for(book, &meter, d->category);
	case CHARGE_USAGE:
	case CHARGE_COMMITMENT:
	case CHARGE_UNDELIVERED:
	case CHARGE_DEDICATED:
	case CHARGE_SHARED:
	case CHARGE_KINDS: break;
	}
	p = gpu_price(book, d, d->tenant, rating_class(d));
	if (d->kind != CHARGE_USAGE)
		p.unit.basis_used = p.own.basis_used = false; /* nobody used it */
	p.reserved = p.own;
	p.reserved_price = p.own_price;
	p.reserved_ratio = p.discount_ratio;
	return p;
}
