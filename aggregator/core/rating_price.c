/* aggregator/core/rating_price.c - what a unit of a row costs: rules 3, 4, 8, 9 and 10 of rating.h. */
#include <string.h>

#include "aggregator/core/rating_rows.h"
#include "aggregator/core/rating_text.h"
#include "common/units.h"

#define RATIO_ONE 1000000000 /* ratios are in 10^-9 */

static bool
accepts(const char *wanted, const char *value)
{
	return wanted == NULL || strcmp(wanted, value) == 0;
}

/* What the price is asked for: a row, or what another row says about it. */
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

/* Rounded down: what is passed on is never more than what is paid. */
static int128
net_of(const struct rating_price *p)
{
	int128 left = p->unit_price - p->discount_price;

	return left - (left * p->discount_ratio + RATIO_ONE - 1) / RATIO_ONE;
}

/* Rule 3. */
static struct rating_price
price_for(const struct rating_book *book, const struct wanted *w, const char *category)
{
	const struct rating_item *list = pick(book, w, false), *own = pick(book, w, true), *in_force = own ? own : list;
	struct rating_price p = {.item = in_force};

	if (in_force == NULL)
		return p;
	p.per_instance = w->meter == NULL && in_force->mig_profile != NULL;
	p.basis_used = in_force->basis_used;
	p.unit_price = in_force->price;
	/* what two items price differently cannot be compared */
	if (own != NULL && list != NULL && list->price > own->price && list->basis_used == own->basis_used &&
	    (list->mig_profile != NULL) == (own->mig_profile != NULL)) {
		p.unit_price = list->price;
		p.discount_price = list->price - own->price;
	}
	p.discount_ratio = discount_of(book, w->tenant, category, w->klass);
	p.net_price = net_of(&p);
	return p;
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

/* Rule 9: what the borrower paid x ratio, at most what the lender itself pays for the same time. */
static struct rating_price
lent_price(const struct rating_book *book, const struct usage_day *d)
{
	struct rating_price paid = gpu_price(book, d, d->counterparty, "borrowed");
	struct wanted w = {.tenant = d->tenant,
	                   .gpu_model = d->gpu_model,
	                   .mig_profile = d->reserved_profile ? d->reserved_profile : "",
	                   .sharing_mode = "",
	                   .klass = "reserved"};
	struct rating_price reserved = price_for(book, &w, "gpu");
	int128 most;

	if (paid.item == NULL)
		return paid;
	/* of as many units as one that the borrower paid for has */
	most = reserved.net_price * (paid.per_instance ? d->instance_units : UNITS_PER_GPU) /
	       (reserved.per_instance && d->reserved_units > 0 ? d->reserved_units : UNITS_PER_GPU);
	paid.unit_price = paid.net_price * book->lender_ratio / RATIO_ONE;
	if (paid.unit_price > most)
		paid.unit_price = most;
	paid.net_price = paid.unit_price;
	paid.discount_price = 0;
	paid.discount_ratio = 0;
	return paid;
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
			                          .net_price = book->sites[i].energy_price};
	return p;
}

struct rating_price
rating_price_of(const struct rating_book *book, const struct usage_day *d)
{
	static const struct rating_item shown = {.sku = ""};
	struct wanted meter;

	switch (d->kind) {
	case CHARGE_COVERED:
	case CHARGE_ADJUSTMENT:                                           /* 12 */
	case CHARGE_UNUSED: return (struct rating_price){.item = &shown}; /* 8 */
	case CHARGE_LENT: return lent_price(book, d);
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
	return gpu_price(book, d, d->tenant, rating_class(d));
}
