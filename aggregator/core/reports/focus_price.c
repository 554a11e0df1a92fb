/* aggregator/core/reports/focus_price.c - the price list of a FOCUS row: rules 2 and 11 of focus.h. Pure. */
#include <string.h>

#include "aggregator/core/rating/amortise.h"
#include "aggregator/core/reports/focus_parts.h"
#include "common/base/wide.h"

static int128
contracted_price(int128 own, int64_t discount_ratio)
{
	return own * (RATIO_ONE - discount_ratio);
}

const struct rating_book *
focus_book_of(const struct focus_input *f, const struct rated_line *l)
{
	for (size_t i = 0; i < f->in->book_count; i++)
		if (strcmp(f->in->books[i].version, l->price_version) == 0)
			return &f->in->books[i];
	return NULL;
}

static struct rating_price
price_in_book(const struct rating_book *book, const struct rated_line *l, const char *tenant, const char *klass)
{
	return rating_price_of(book, &(struct usage_day){.kind = CHARGE_USAGE,
	                                                 .cluster = l->cluster,
	                                                 .tenant = tenant,
	                                                 .gpu_model = l->gpu_model,
	                                                 .mig_profile = l->mig_profile,
	                                                 .sharing_mode = l->sharing_mode,
	                                                 .klass = klass,
	                                                 .instance_units = l->instance_units});
}

/* Rule 11: whose the list price of a line is, and which of the skus of a meter it is for. Of a correction also its basis: the line may have been read back. */
static void
ask_book(const struct rating_book *book, const struct rated_line *l, struct focus_price *p)
{
	struct rating_price price;

	if (strcmp(l->category, "gpu") == 0 && l->kind != CHARGE_ADJUSTMENT) {
		price = price_in_book(book, l, "", l->klass);
		p->of_contract = price.item == NULL && l->priced;
		if (price.item == NULL)
			price = price_in_book(book, l, l->tenant, l->klass);
		if (l->correction_of != NULL)
			p->unit.basis_used = l->kind == CHARGE_USAGE && price.unit.basis_used;
	}
	if (l->kind == CHARGE_METER && l->meter != NULL) {
		struct usage_day ask = {.kind = CHARGE_METER,
		                        .tenant = "",
		                        .meter = l->meter,
		                        .meter_sku = l->meter_sku,
		                        .category = l->category};

		price = rating_price_of(book, &ask);
		p->of_contract = price.item == NULL && l->priced;
		if (price.item == NULL) {
			ask.tenant = l->tenant;
			price = rating_price_of(book, &ask);
		}
		p->meter_sku = price.item != NULL ? price.item->meter_sku : NULL;
	}
}

/* The price that a line was billed at. */
static struct focus_price
line_price(const struct focus_input *f, const struct rated_line *l)
{
	const struct rating_book *book = focus_book_of(f, l);
	const int128 own = l->own_differs ? l->own_price : l->unit_price - l->discount_price;
	struct focus_price p = {.known = true,
	                        .sku = l->sku,
	                        .gpu_model = l->gpu_model,
	                        .mig_profile = l->mig_profile,
	                        .sharing_mode = l->sharing_mode,
	                        .klass = l->klass,
	                        .unit = l->unit,
	                        .instance_units = l->instance_units,
	                        .list = l->unit_price,
	                        .contracted = contracted_price(own, l->discount_ratio),
	                        .priced = AMOUNT_LINE,
	                        .paid = l->own_differs ? AMOUNT_OWN : AMOUNT_LINE};

	if (book != NULL)
		ask_book(book, l, &p);
	return p;
}

/* The hours of a reservation that its owner did not use are of the commitment, and at its list price. A line may have parts of several commitments: they
 * have one list price, and the tenant may have an own one for each. */
static struct focus_price
commitment_price(const struct focus_input *f, const struct rated *r, const struct rated_line *part)
{
	const bool one = part->kind == CHARGE_UNUSED || part->kind == CHARGE_UNDELIVERED;
	struct focus_price p = {.unit = part->unit, .priced = AMOUNT_PART, .paid = AMOUNT_PART};

	for (size_t i = 0; i < r->count; i++) {
		const struct rated_line *l = &r->lines[i];
		struct focus_price of;

		if (l->kind != CHARGE_COMMITMENT || (l->correction_of == NULL) != (part->correction_of == NULL) ||
		    !line_is_of_same_reservation(l, part) || (one && strcmp(l->mig_profile, part->mig_profile) != 0))
			continue;
		of = line_price(f, l);
		of.priced = AMOUNT_PART;
		of.paid = l->own_differs || (p.known && p.contracted != of.contracted) ? AMOUNT_RESERVED : AMOUNT_PART;
		if (!p.known)
			p = of;
		else if (of.paid == AMOUNT_RESERVED)
			p.paid = AMOUNT_RESERVED;
	}
	if (p.paid == AMOUNT_RESERVED)
		p.contracted = RATIO_ONE;
	return p;
}

/* Covered use costs what the same use costs without the reservation; where the book does not sell that, what the reservation costs. */
static struct focus_price
covered_price(const struct focus_input *f, const struct rated *r, const struct rated_line *l)
{
	static const char klass[] = "on-demand";
	const struct rating_book *book = focus_book_of(f, l);
	struct rating_price price = {0}, public = {0};

	if (book != NULL) {
		price = price_in_book(book, l, l->tenant, klass);
		public = price_in_book(book, l, "", klass);
	}
	/* an own price for another unit says nothing about a unit of the list price */
	const bool same =
		price.unit.per_instance == price.own.per_instance && price.unit.basis_used == price.own.basis_used;
	if (price.item == NULL || (price.unit.per_instance && l->instance_units <= 0))
		return commitment_price(f, r, l);
	return (struct focus_price){
		.known = true,
		.sku = price.item->sku[0] != '\0' ? price.item->sku : l->sku,
		.gpu_model = l->gpu_model,
		.mig_profile = l->mig_profile,
		.sharing_mode = l->sharing_mode,
		.klass = klass,
		.unit = price.unit,
		.instance_units = l->instance_units,
		.list = price.unit_price,
		.contracted = contracted_price(same ? price.own_price : price.unit_price, price.discount_ratio),
		.priced = AMOUNT_ON_DEMAND,
		.paid = AMOUNT_ON_DEMAND,
		.of_contract = public.item == NULL,
	};
}

struct focus_price
focus_price_of(const struct focus_input *f, const struct rated *r, const struct rated_line *l, enum row_part part)
{
	if (part == PART_CREDIT || l->kind == CHARGE_ADJUSTMENT)
		return (struct focus_price){.unit = l->unit, .priced = AMOUNT_LINE, .paid = AMOUNT_LINE};
	if (part == PART_UNUSED || l->kind == CHARGE_UNUSED)
		return commitment_price(f, r, l);
	if (l->kind == CHARGE_COVERED)
		return covered_price(f, r, l);
	return line_price(f, l);
}

/* A correction that was kept before this was has it from its hours. */
static int128
on_demand_of(const struct focus_row *w)
{
	const struct rated_day *d = w->d;

	if (w->corrected == NULL || d->on_demand_quantity != 0)
		return d->on_demand_quantity;
	return w->price->unit.basis_used ? d->used_ngh + d->unmeasured_ngh : d->ngh;
}

int128
focus_amount_of(const struct focus_row *w, enum focus_amount amount)
{
	const bool credit = w->l->kind == CHARGE_LENT || w->l->kind == CHARGE_UNDELIVERED;

	switch (amount) {
	case AMOUNT_OWN: return w->d->own_quantity;
	case AMOUNT_PART: return credit ? -w->d->quantity : w->d->quantity;
	case AMOUNT_ON_DEMAND: return on_demand_of(w);
	case AMOUNT_RESERVED: return w->d->reserved_cost;
	case AMOUNT_LINE: break;
	}
	return w->d->quantity;
}

static uint128
magnitude(int128 v)
{
	return v < 0 ? 0 - (uint128)v : (uint128)v;
}

/* Where the tenant's own price is for another unit or basis, each day has another price for a unit of the list price: half of its last decimal may be lost. Of
 * nothing there is no price, though something may be paid. */
int128
focus_contracted_price(const struct focus_row *w)
{
	const struct focus_price *p = w->price;
	const int128 of = focus_amount_of(w, p->priced), paid = focus_amount_of(w, p->paid);
	struct wide cost;
	uint128 price, rest;

	if (p->priced == p->paid)
		return p->contracted;
	cost = wide_multiply(magnitude(p->contracted), magnitude(paid));
	if (of == 0 || cost.high >= magnitude(of))
		return 0;
	price = wide_divide(cost, magnitude(of), &rest);
	price += rest >= magnitude(of) - rest;
	return price >> 126 != 0 ? 0 : (paid < 0) != (of < 0) ? -(int128)price : (int128)price;
}
