/* aggregator/core/reports/focus.c - rated lines as rows of FOCUS, and its datasets Billing Period and Invoice Detail. The numbers are those of focus.h. */
#include "aggregator/core/reports/focus.h"

#include <stdlib.h>
#include <string.h>

#include "aggregator/core/rating/amortise.h"
#include "aggregator/core/reports/chargeback.h"
#include "common/base/units.h"
#include "common/base/wide.h"
#include "common/conf/json.h"

#define FOCUS_CELL_MAX (16u << 10)

/* The part of a line that a row shows: rule 4. */
enum row_part {
	PART_LINE,   /* the line itself */
	PART_UNUSED, /* of lent and undelivered time: the hours of the reservation that its owner did not use */
	PART_CREDIT, /* of lent and undelivered time: the credit for them */
};

/* Which amount of a day a price is for. */
enum focus_amount {
	AMOUNT_LINE,      /* the line's quantity, of credits negative */
	AMOUNT_OWN,       /* in the unit of the tenant's own price */
	AMOUNT_PART,      /* of a part of a reservation: its quantity, of credits too */
	AMOUNT_ON_DEMAND, /* of covered use: in the unit of the same use on demand */
	AMOUNT_RESERVED,  /* of a part of a reservation: rated_day.reserved_cost; at a price of 10^-9 */
};

/* Rule 2: the price list of a row. */
struct focus_price {
	bool known; /* false: the row has no unit price, and its costs are what was billed */
	const char *sku, *gpu_model, *mig_profile, *sharing_mode, *klass;
	const char *meter_sku; /* of a price for one sku of a meter; NULL: for all */
	struct rating_unit unit;
	int64_t instance_units;
	int128 list;       /* scale PRICE_SCALE */
	int128 contracted; /* scale PRICE_SCALE + 9, of what is paid for */
	enum focus_amount priced, paid;
	bool of_contract; /* no item of the book is for all: the list price is the tenant's own */
};

struct focus_row {
	const struct focus_input *f;
	const struct rated_line *l;
	const struct rated_day *d;
	enum row_part part;
	const struct focus_price *price;
	const struct focus_period *corrected; /* NULL: it is no correction */
	const char *starts, *ends;            /* the charge period */
	const struct focus_label *const *labels;
	size_t label_count;
	const char *closed_at; /* of a line of an invoice: UTC; "" while the period is open */
};

typedef void focus_cell(const struct focus_row *w, struct buf *out);
/* DAILY: a number or time that differs by day; LINE: a text that is the same on all days of a line; LINE_NUMBER: such a number. _JSON: a flat object. */
enum focus_column_kind { LINE, LINE_NUMBER, DAILY, LINE_JSON, DAILY_JSON };
struct focus_column {
	const char *name;
	focus_cell *cell;
	enum focus_column_kind kind;
};
/* Buffers for making a cell. */
struct focus_texts {
	struct buf cell, plain;
};

/* ---- words by kind of charge ---- */

const char *const focus_versions[] = {[FOCUS_1_2] = "1.2", [FOCUS_1_3] = "1.3", [FOCUS_1_4] = "1.4", NULL};

static const struct {
	const char *charge, *pricing, *frequency;
	bool held; /* somebody held it: it was consumed */
} kinds[CHARGE_KINDS] = {
	[CHARGE_USAGE] = {"Usage", "Standard", "Usage-Based", .held = true},
	[CHARGE_COVERED] = {"Usage", "Committed", "Usage-Based", .held = true},
	[CHARGE_COMMITMENT] = {"Purchase", "Standard", "Recurring", .held = false},
	[CHARGE_UNUSED] = {"Usage", "Committed", "Usage-Based", .held = false},
	[CHARGE_UNDELIVERED] = {"Usage", "Committed", "Usage-Based", .held = false},
	[CHARGE_LENT] = {"Usage", "Committed", "Usage-Based", .held = false},
	[CHARGE_DEDICATED] = {"Usage", "Standard", "Usage-Based", .held = false},
	[CHARGE_SHARED] = {"Usage", "Standard", "Usage-Based", .held = false},
	[CHARGE_METER] = {"Usage", "Standard", "Usage-Based", .held = true},
	[CHARGE_ADJUSTMENT] = {"Adjustment", "", "One-Time", .held = false},
	[CHARGE_ENERGY] = {"Usage", "Standard", "Usage-Based", .held = true},
};

static const struct service {
	const char *category; /* ours */
	const char *name, *focus_category, *focus_subcategory;
} services[] = {
	{"gpu", "GPU Platform", "AI and Machine Learning", "AI Platforms"},
	{"storage", "Storage", "Storage", "Block Storage"},
	{"network", "Network Egress", "Networking", "Network Connectivity"},
	{"inference", "Inference", "AI and Machine Learning", "Generative AI"},
	{"support", "Support", "Management and Governance", "Support"},
	{"energy", "Energy", "Other", "Other (Other)"},
	{"other", "Other Charges", "Other", "Other (Other)"},
};

static const struct service *
service_of(const struct rated_line *l)
{
	for (size_t i = 0; i < ARRAY_LEN(services); i++)
		if (strcmp(services[i].category, l->category) == 0)
			return &services[i];
	return &services[ARRAY_LEN(services) - 1];
}

static const char *
focus_service(const struct rated_line *l)
{
	return service_of(l)->name;
}

/* Of FOCUS's grammar of units: a capitalised count, or a size of data, with the time it is for. */
static const char *
focus_unit(const struct rating_unit *unit)
{
	static const struct {
		const char *ours, *focus;
	} units[] = {{"GB-hour", "GB-Hours"}, {"GB", "GB"},      {"request", "Requests"},
	             {"token", "Tokens"},     {"hour", "Hours"}, {"kWh", "Kilowatt-Hours"}};

	if (unit->base == NULL)
		return unit->per_instance ? "Instance-Hours" : "GPU-Hours";
	for (size_t i = 0; i < ARRAY_LEN(units); i++)
		if (strcmp(units[i].ours, unit->base) == 0)
			return units[i].focus;
	return "Units";
}

/* Of many: their number before it, "1000000 Tokens". */
static void
write_unit(const struct rating_unit *unit, struct buf *out)
{
	if (unit->per > 1)
		buf_printf(out, "%" PRId64 " ", unit->per);
	buf_str(out, focus_unit(unit));
}

/* ---- rules 2 and 11: the price list of a row ---- */

static int128
contracted_price(int128 own, int64_t discount_ratio)
{
	return own * (RATIO_ONE - discount_ratio);
}

static const struct rating_book *
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

/* Rule 11: whether the list price of a line is the tenant's own, and which sku of a meter it is for. Of a correction also its basis: a line read from
 * the database does not have it. */
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

/* Covered use has the price of the same use on demand; where the book does not sell that, the price of the reservation. */
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
	/* an own price for another unit cannot be compared with the list price */
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

static struct focus_price
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

/* A correction that was archived before this quantity was takes it from its hours. */
static int128
on_demand_of(const struct focus_row *w)
{
	const struct rated_day *d = w->d;

	if (w->corrected == NULL || d->on_demand_quantity != 0)
		return d->on_demand_quantity;
	return w->price->unit.basis_used ? d->used_ngh + d->unmeasured_ngh : d->ngh;
}

static int128
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

/* Where the tenant's own price is for another unit or basis, each day has another price for a unit of the list price: half of its last decimal may be lost. A quantity
 * of 0 has no price, though something may be paid. */
static int128
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

/* ---- cells ---- */

static int128
pricing_quantity(const struct focus_row *w)
{
	return focus_amount_of(w, w->price->priced);
}

static void
focus_decimal(struct buf *out, int128 value, int scale)
{
	char text[DECIMAL_TEXT_SIZE];

	buf_str(out, decimal_format(value, scale, scale > 0 ? 1 : 0, text));
	if (scale == 0)
		buf_str(out, ".0");
}

/* The exact product. */
static void
product(struct buf *out, int128 price, int price_scale, int128 quantity)
{
	char text[DECIMAL_PRODUCT_SIZE];

	buf_str(out, decimal_format_product(price, quantity, price_scale + QUANTITY_SCALE, 1, text));
}

#define TEXT_CELL(name, value)                                              \
	static void cell_##name(const struct focus_row *w, struct buf *out) \
	{                                                                   \
		(void)w;                                                    \
		buf_str(out, (value));                                      \
	}

static const char *
focus_charge(const struct focus_row *w)
{
	if (w->part == PART_CREDIT || (w->l->kind == CHARGE_ADJUSTMENT && w->l->quantity < 0))
		return "Credit";
	return kinds[w->l->kind].charge;
}

static bool
is_usage(const struct focus_row *w)
{
	return strcmp(focus_charge(w), "Usage") == 0;
}

/* Rule 3. */
static bool
is_reserved(const struct focus_row *w)
{
	return line_is_of_reservation(w->l);
}

/* Of a reservation: whether its owner used it. */
static const char *
reservation_status(const struct focus_row *w)
{
	if (!is_reserved(w) || !is_usage(w))
		return "";
	return w->l->kind == CHARGE_COVERED ? "Used" : "Unused";
}

static bool
is_unused(const struct focus_row *w)
{
	return strcmp(reservation_status(w), "Unused") == 0;
}

/* The text for a row of a commitment; "" for other rows. */
static const char *
of_commitment(const struct focus_row *w, const char *text)
{
	return is_reserved(w) ? text : "";
}

static bool
has_commitment_quantity(const struct focus_row *w)
{
	return is_reserved(w) && w->part != PART_CREDIT;
}

/* Unused hours of a reservation are no consumption. */
static bool
is_consumption(const struct focus_row *w)
{
	return is_usage(w) && !is_unused(w);
}

static bool
is_divided(const struct focus_row *w)
{
	return w->l->kind == CHARGE_SHARED && w->corrected == NULL && w->d->origin_ngh > 0;
}

TEXT_CELL(account_id, w->f->account_id)
TEXT_CELL(account_name, w->f->account_name)
TEXT_CELL(currency, w->l->currency)
TEXT_CELL(period_end, w->f->period_end)
TEXT_CELL(period_start, w->f->period_start)
TEXT_CELL(reservation_status, reservation_status(w))
TEXT_CELL(charge_category, focus_charge(w))
TEXT_CELL(commitment_category, of_commitment(w, "Usage"))
TEXT_CELL(commitment_type, of_commitment(w, "Reservation"))
TEXT_CELL(commitment_unit, has_commitment_quantity(w) ? "GPU-Hours" : "")
TEXT_CELL(nothing, "")
TEXT_CELL(allocated_tenant, is_divided(w) ? w->l->tenant : "")
TEXT_CELL(description, w->l->description)
TEXT_CELL(frequency, kinds[w->l->kind].frequency)
TEXT_CELL(provider, w->f->provider)

static void
cell_unit(const struct focus_row *w, struct buf *out)
{
	write_unit(&w->price->unit, out);
}

static void
cell_consumed_unit(const struct focus_row *w, struct buf *out)
{
	if (is_consumption(w))
		write_unit(&w->l->unit, out);
}
TEXT_CELL(cluster, w->l->cluster)
TEXT_CELL(service_category, service_of(w->l)->focus_category)
TEXT_CELL(service_subcategory, service_of(w->l)->focus_subcategory)
TEXT_CELL(service_name, focus_service(w->l))
TEXT_CELL(sku, w->price->sku != NULL ? w->price->sku : w->l->sku)
TEXT_CELL(tenant, w->l->tenant)
TEXT_CELL(account_type, "Tenant")
TEXT_CELL(workspace, w->l->workspace)
TEXT_CELL(line_id, w->l->line_id)
TEXT_CELL(klass, w->l->klass)
TEXT_CELL(charge_type, w->l->charge_type)
TEXT_CELL(price_version, w->l->price_version)
TEXT_CELL(counterparty, w->l->counterparty)
TEXT_CELL(cost_center, w->l->cost_center)

TEXT_CELL(charge_class, w->corrected != NULL ? "Correction" : "")
TEXT_CELL(correction_of, w->l->correction_of != NULL ? w->l->correction_of : "")
TEXT_CELL(day_start, w->starts)
TEXT_CELL(day_end, w->ends)

/* An invoice of FOCUS has one currency: what is in another one than the month's is an invoice of its own. */
static void
focus_invoice_id(const struct focus_row *w, struct buf *out)
{
	buf_str(out, w->l->invoice_id);
	if (strcmp(w->l->currency, w->f->in->currency) != 0)
		buf_printf(out, "-%s", w->l->currency);
}

/* Borrowed GPUs can be reclaimed at any time, so their price is not the standard one. */
static void
cell_pricing_category(const struct focus_row *w, struct buf *out)
{
	bool borrowed = w->l->kind == CHARGE_USAGE && strcmp(w->l->klass, "borrowed") == 0;

	buf_str(out, borrowed ? "Dynamic" : w->part == PART_CREDIT ? "" : kinds[w->l->kind].pricing);
}

static int128
billed_of(const struct focus_row *w)
{
	return w->part == PART_UNUSED ? 0 : w->d->billed;
}

/* Rule 3. */
static int128
effective_of(const struct focus_row *w)
{
	if (w->part == PART_CREDIT)
		return w->d->billed;
	return w->part == PART_UNUSED ? w->d->amortised : rated_effective(w->l, w->d);
}

static void
cell_billed(const struct focus_row *w, struct buf *out)
{
	focus_decimal(out, billed_of(w), w->l->currency_scale);
}

static void
cell_effective(const struct focus_row *w, struct buf *out)
{
	focus_decimal(out, effective_of(w), w->l->currency_scale);
}

static void
cell_quantity(const struct focus_row *w, struct buf *out)
{
	focus_decimal(out, pricing_quantity(w), QUANTITY_SCALE);
}

static void
cell_consumed(const struct focus_row *w, struct buf *out)
{
	if (is_consumption(w))
		focus_decimal(out, kinds[w->l->kind].held ? w->d->quantity : 0, QUANTITY_SCALE);
}

static void
cell_commitment_quantity(const struct focus_row *w, struct buf *out)
{
	if (has_commitment_quantity(w))
		focus_decimal(out, w->d->ngh, QUANTITY_SCALE);
}

static void
cell_list_price(const struct focus_row *w, struct buf *out)
{
	if (w->price->known)
		focus_decimal(out, w->price->list, PRICE_SCALE);
}

static void
cell_list_cost(const struct focus_row *w, struct buf *out)
{
	if (w->price->known)
		product(out, w->price->list, PRICE_SCALE, pricing_quantity(w));
	else
		cell_billed(w, out);
}

static void
cell_contracted_price(const struct focus_row *w, struct buf *out)
{
	if (w->price->known)
		focus_decimal(out, focus_contracted_price(w), PRICE_SCALE + 9);
}

static void
cell_contracted_cost(const struct focus_row *w, struct buf *out)
{
	if (w->price->known)
		product(out, w->price->contracted, PRICE_SCALE + 9, focus_amount_of(w, w->price->paid));
	else
		cell_billed(w, out);
}

static void
reservation_id(const struct rated_line *l, struct buf *out)
{
	buf_printf(out, "%s/%s/%s/%s", l->cluster, l->tenant, l->workspace, l->gpu_model);
}

static void
cell_reservation_id(const struct focus_row *w, struct buf *out)
{
	if (is_reserved(w))
		reservation_id(w->l, out);
}

static void
cell_reservation_name(const struct focus_row *w, struct buf *out)
{
	if (is_reserved(w))
		buf_printf(out, "%s reserved for %s", w->l->gpu_model, w->l->workspace);
}

/* Rule 10: the resource of a reservation's purchase and unused hours is the reservation, of everything else the workspace. */
static bool
is_resource_reservation(const struct focus_row *w)
{
	return w->l->kind == CHARGE_COMMITMENT || is_unused(w);
}

static bool
has_resource(const struct focus_row *w)
{
	return is_resource_reservation(w) || (w->l->workspace[0] != '\0' && w->l->kind != CHARGE_ADJUSTMENT);
}

static void
cell_resource_id(const struct focus_row *w, struct buf *out)
{
	if (is_resource_reservation(w))
		reservation_id(w->l, out);
	else if (has_resource(w))
		buf_printf(out, "%s/%s/%s", w->l->cluster, w->l->tenant, w->l->workspace);
}

static void
cell_resource_name(const struct focus_row *w, struct buf *out)
{
	if (is_resource_reservation(w))
		cell_reservation_name(w, out);
	else
		buf_str(out, has_resource(w) ? w->l->workspace : "");
}

static void
cell_resource_type(const struct focus_row *w, struct buf *out)
{
	if (has_resource(w))
		buf_str(out, is_resource_reservation(w) ? "Reservation" : "Workspace");
}

/* Rule 11. A correction of a month whose price book is not at hand has none: which basis its price had is not known. */
static void
cell_sku_price_id(const struct focus_row *w, struct buf *out)
{
	const struct focus_price *p = w->price;
	owned(mem) char *unit = rating_unit_text(&p->unit);

	if (!p->known || (w->corrected != NULL && (focus_book_of(w->f, w->l) == NULL || w->l->kind == CHARGE_METER)))
		return;
	buf_str(out, p->sku);
	if (w->l->meter != NULL)
		buf_printf(out, "/%s", w->l->meter);
	if (p->meter_sku != NULL && strcmp(p->meter_sku, p->sku) != 0)
		buf_printf(out, "/%s", p->meter_sku);
	for (size_t i = 0; i < 3; i++) {
		const char *const parts[] = {p->gpu_model, p->mig_profile, p->sharing_mode};

		if (parts[i][0] != '\0')
			buf_printf(out, "/%s", parts[i]);
	}
	if (w->l->kind == CHARGE_ENERGY)
		buf_printf(out, "/%s", w->l->cluster);
	buf_printf(out, "/%s/%s%s", p->klass[0] ? p->klass : "standard", unit, p->unit.basis_used ? "/used" : "");
	if (p->of_contract)
		buf_printf(out, "/contract/%s", w->l->tenant);
}

static void
focus_member(struct buf *out, const char **comma, const char *name, const char *value)
{
	if (value[0] == '\0')
		return;
	buf_str(out, *comma);
	*comma = ",";
	json_write_string(name, out);
	buf_char(out, ':');
	json_write_string(value, out);
}

/* Numbers are of one unit of the price: a GPU-hour is an hour of one GPU, an instance-hour one of a part of it. */
static void
cell_sku_details(const struct focus_row *w, struct buf *out)
{
	const struct focus_price *p = w->price;
	const char *comma = "";

	if (!p->known || strcmp(w->l->category, "gpu") != 0 || w->corrected != NULL)
		return;
	buf_char(out, '{');
	if (p->mig_profile[0] == '\0' || (p->unit.per_instance && p->instance_units > 0)) {
		char count[DECIMAL_TEXT_SIZE];
		int128 gpus = p->mig_profile[0] == '\0'
		                      ? RATIO_ONE
		                      : div_round_half_even((int128)p->instance_units * RATIO_ONE, UNITS_PER_GPU);

		buf_printf(out, "\"GpuCount\":%s", decimal_format(gpus, 9, 0, count));
		comma = ",";
	}
	focus_member(out, &comma, "InstanceType", p->gpu_model);
	focus_member(out, &comma, "x_MigProfile", p->mig_profile);
	focus_member(out, &comma, "x_SharingMode", p->sharing_mode);
	focus_member(out, &comma, "x_Class", p->klass);
	focus_member(out, &comma, "x_Basis", p->unit.basis_used ? "used" : "allocated");
	buf_char(out, '}');
}

/* Rule 12. */
static void
cell_tags(const struct focus_row *w, struct buf *out)
{
	static const char ours[] = "tollgate/";
	const struct rated_line *l = w->l;
	const char *comma = "";
	const bool use = l->kind == CHARGE_USAGE || l->kind == CHARGE_COVERED || l->kind == CHARGE_ENERGY;

	buf_char(out, '{');
	for (size_t i = 0; use && w->corrected == NULL && i < w->label_count; i++)
		if (strncmp(w->labels[i]->key, ours, strlen(ours)) != 0)
			focus_member(out, &comma, w->labels[i]->key, w->labels[i]->value);
	focus_member(out, &comma, "tollgate/cluster", l->cluster);
	focus_member(out, &comma, "tollgate/workspace", l->workspace);
	focus_member(out, &comma, "tollgate/cost-center", l->cost_center);
	buf_char(out, '}');
}

/* ---- idle shared nodes, divided among tenants ---- */

/* As the price book of the line says. */
static void
cell_method(const struct focus_row *w, struct buf *out)
{
	static const char *const names[] = {[SHARED_NONE] = "",
	                                    [SHARED_EVEN] = "even",
	                                    [SHARED_PROPORTIONAL] = "proportional",
	                                    [SHARED_WEIGHTS] = "weights"};
	const struct rating_book *book = focus_book_of(w->f, w->l);

	if (!is_divided(w))
		return;
	buf_str(out, "shared-idle");
	if (book != NULL)
		buf_printf(out, "/%s", names[book->shared_idle]);
}

static void
cell_method_details(const struct focus_row *w, struct buf *out)
{
	char ratio[DECIMAL_TEXT_SIZE], hours[DECIMAL_TEXT_SIZE];

	if (is_divided(w))
		buf_printf(out,
		           "{\"Elements\":[{\"AllocatedRatio\":%s,\"UsageUnit\":\"GPU-Hours\",\"UsageQuantity\":%s}]}",
		           decimal_format(w->d->origin_ratio, 9, 0, ratio),
		           decimal_format(w->d->ngh, QUANTITY_SCALE, 0, hours));
}

static void
cell_origin(const struct focus_row *w, struct buf *out)
{
	if (is_divided(w))
		focus_decimal(out, w->d->origin_ngh, QUANTITY_SCALE);
}

/* The hours of lent and undelivered time are on the row of the hours, not on that of the money. */
static bool
has_hours(const struct focus_row *w)
{
	return strcmp(w->l->category, "gpu") == 0 && w->part != PART_CREDIT;
}

#define HOURS_CELL(name, field)                                             \
	static void cell_##name(const struct focus_row *w, struct buf *out) \
	{                                                                   \
		if (has_hours(w))                                           \
			focus_decimal(out, w->d->field, QUANTITY_SCALE);    \
	}
HOURS_CELL(gpu_hours, ngh)
HOURS_CELL(used_hours, used_ngh)
HOURS_CELL(idle_hours, idle_ngh)
HOURS_CELL(unmeasured_hours, unmeasured_ngh)

static void
cell_energy(const struct focus_row *w, struct buf *out)
{
	if (has_hours(w))
		focus_decimal(out, div_round_half_even(w->d->energy_mj, MJ_PER_KWH / 1000000), 6);
}

/* ---- the table ---- */

static void
focus_texts_init(struct focus_texts *t)
{
	buf_init(&t->cell, FOCUS_CELL_MAX);
	buf_init(&t->plain, FOCUS_CELL_MAX);
}

static void
focus_texts_fini(struct focus_texts *t)
{
	buf_fini(&t->cell);
	buf_fini(&t->plain);
}

static bool
focus_write_cell(const struct focus_column *c, const struct focus_row *w, struct focus_texts *t, struct buf *out,
                 struct err *err)
{
	const bool json = c->kind == LINE_JSON || c->kind == DAILY_JSON;
	void (*put)(struct buf *, const char *) = c->kind == LINE ? csv_text_field : csv_field;

	buf_clear(&t->cell);
	c->cell(w, &t->cell);
	if (is_ascii(buf_text(&t->cell))) {
		put(out, buf_text(&t->cell));
		return buf_ok(&t->cell, c->name, err);
	}
	buf_clear(&t->plain);
	ascii_text(&t->plain, buf_text(&t->cell), json);
	put(out, buf_text(&t->plain));
	return buf_ok(&t->plain, c->name, err);
}

static const struct focus_column columns[] = {
	{"AllocatedMethodDetails", cell_method_details, DAILY_JSON},
	{"AllocatedMethodId", cell_method, LINE},
	{"AllocatedResourceId", cell_allocated_tenant, LINE},
	{"AllocatedResourceName", cell_allocated_tenant, LINE},
	{"AllocatedTags", cell_nothing, LINE},
	{"BilledCost", cell_billed, DAILY},
	{"BillingAccountId", cell_account_id, LINE},
	{"BillingAccountName", cell_account_name, LINE},
	{"BillingCurrency", cell_currency, LINE},
	{"BillingPeriodEnd", cell_period_end, LINE},
	{"BillingPeriodStart", cell_period_start, LINE},
	{"CapacityReservationId", cell_reservation_id, LINE},
	{"CapacityReservationStatus", cell_reservation_status, LINE},
	{"ChargeCategory", cell_charge_category, LINE},
	{"ChargeClass", cell_charge_class, LINE},
	{"ChargeDescription", cell_description, LINE},
	{"ChargeFrequency", cell_frequency, LINE},
	{"ChargePeriodEnd", cell_day_end, DAILY},
	{"ChargePeriodStart", cell_day_start, DAILY},
	{"CommitmentDiscountCategory", cell_commitment_category, LINE},
	{"CommitmentDiscountId", cell_reservation_id, LINE},
	{"CommitmentDiscountName", cell_reservation_name, LINE},
	{"CommitmentDiscountQuantity", cell_commitment_quantity, DAILY},
	{"CommitmentDiscountStatus", cell_reservation_status, LINE},
	{"CommitmentDiscountType", cell_commitment_type, LINE},
	{"CommitmentDiscountUnit", cell_commitment_unit, LINE},
	{"ConsumedQuantity", cell_consumed, DAILY},
	{"ConsumedUnit", cell_consumed_unit, LINE},
	{"ContractedCost", cell_contracted_cost, DAILY},
	{"ContractedUnitPrice", cell_contracted_price, DAILY},
	{"EffectiveCost", cell_effective, DAILY},
	{"HostProviderName", cell_provider, LINE},
	{"InvoiceDetailId", cell_line_id, LINE},
	{"InvoiceId", focus_invoice_id, LINE},
	{"InvoiceIssuerName", cell_provider, LINE},
	{"ListCost", cell_list_cost, DAILY},
	{"ListUnitPrice", cell_list_price, LINE_NUMBER},
	{"PricingCategory", cell_pricing_category, LINE},
	{"PricingCurrency", cell_currency, LINE},
	{"PricingCurrencyContractedUnitPrice", cell_contracted_price, DAILY},
	{"PricingCurrencyEffectiveCost", cell_effective, DAILY},
	{"PricingCurrencyListUnitPrice", cell_list_price, LINE_NUMBER},
	{"PricingQuantity", cell_quantity, DAILY},
	{"PricingUnit", cell_unit, LINE},
	{"ProviderName", cell_provider, LINE},
	{"PublisherName", cell_provider, LINE},
	{"RegionId", cell_cluster, LINE},
	{"RegionName", cell_cluster, LINE},
	{"ResourceId", cell_resource_id, LINE},
	{"ResourceName", cell_resource_name, LINE},
	{"ResourceType", cell_resource_type, LINE},
	{"ServiceCategory", cell_service_category, LINE},
	{"ServiceName", cell_service_name, LINE},
	{"ServiceProviderName", cell_provider, LINE},
	{"ServiceSubcategory", cell_service_subcategory, LINE},
	{"SkuId", cell_sku, LINE},
	{"SkuMeter", cell_unit, LINE},
	{"SkuPriceDetails", cell_sku_details, LINE_JSON},
	{"SkuPriceId", cell_sku_price_id, LINE},
	{"SubAccountId", cell_tenant, LINE},
	{"SubAccountName", cell_tenant, LINE},
	{"SubAccountType", cell_account_type, LINE},
	{"Tags", cell_tags, LINE_JSON},
	{"x_WorkspaceId", cell_workspace, LINE},
	{"x_LineId", cell_line_id, LINE},
	{"x_ChargeType", cell_charge_type, LINE},
	{"x_Class", cell_klass, LINE},
	{"x_CostCenter", cell_cost_center, LINE},
	{"x_Counterparty", cell_counterparty, LINE},
	{"x_PriceVersion", cell_price_version, LINE},
	{"x_GpuHours", cell_gpu_hours, DAILY},
	{"x_UsedGpuHours", cell_used_hours, DAILY},
	{"x_IdleGpuHours", cell_idle_hours, DAILY},
	{"x_UnmeasuredGpuHours", cell_unmeasured_hours, DAILY},
	{"x_EnergyKwh", cell_energy, DAILY},
	{"x_CorrectionOf", cell_correction_of, LINE},
	{"x_OriginGpuHours", cell_origin, DAILY},
};

/* Rule 13: the columns that not all versions have. */
static bool
has_column(enum focus_version version, size_t column)
{
	static const struct {
		const char *name;
		enum focus_version first, last;
	} some[] = {{"AllocatedResourceId", FOCUS_1_3, FOCUS_1_4}, {"AllocatedResourceName", FOCUS_1_3, FOCUS_1_4},
	            {"AllocatedTags", FOCUS_1_3, FOCUS_1_4},       {"InvoiceDetailId", FOCUS_1_4, FOCUS_1_4},
	            {"ProviderName", FOCUS_1_2, FOCUS_1_3},        {"PublisherName", FOCUS_1_2, FOCUS_1_3}};

	for (size_t i = 0; i < ARRAY_LEN(some); i++)
		if (strcmp(some[i].name, columns[column].name) == 0)
			return version >= some[i].first && version <= some[i].last;
	return true;
}

void
focus_header(enum focus_version version, struct buf *out)
{
	const char *comma = "";

	for (size_t i = 0; i < ARRAY_LEN(columns); i++) {
		if (!has_column(version, i))
			continue;
		buf_str(out, comma);
		buf_str(out, columns[i].name);
		comma = ",";
	}
	buf_str(out, "\r\n");
}

#define ROW_MAX (1u << 20) /* of the cells of one line that are the same every day */

/* The cells of a line that all its days have, each with the comma before it. */
struct line_cells {
	struct buf text;
	struct focus_texts texts;
	size_t end[ARRAY_LEN(columns)]; /* of each column in the text */
	bool has[ARRAY_LEN(columns)];   /* the version has it */
};

static void
line_cells_init(enum focus_version version, struct line_cells *c)
{
	for (size_t i = 0; i < ARRAY_LEN(columns); i++)
		c->has[i] = has_column(version, i);
	buf_init(&c->text, ROW_MAX);
	focus_texts_init(&c->texts);
}

static void
line_cells_fini(struct line_cells *c)
{
	buf_fini(&c->text);
	focus_texts_fini(&c->texts);
}

static bool
write_cell(const struct focus_row *w, size_t column, struct line_cells *c, struct buf *out, struct err *err)
{
	if (column > 0)
		buf_char(out, ',');
	return focus_write_cell(&columns[column], w, &c->texts, out, err);
}

static bool
is_daily(size_t column)
{
	return columns[column].kind == DAILY || columns[column].kind == DAILY_JSON;
}

static bool
write_line_cells(const struct focus_row *w, struct line_cells *c, struct err *err)
{
	buf_clear(&c->text);
	for (size_t i = 0; i < ARRAY_LEN(columns); i++) {
		if (c->has[i] && !is_daily(i) && !write_cell(w, i, c, &c->text, err))
			return false;
		c->end[i] = c->text.len;
	}
	return buf_ok(&c->text, "a line of the FOCUS export", err);
}

/* A day: its own cells between those of its line. */
static bool
write_row(const struct focus_row *w, struct line_cells *c, struct buf *out, struct err *err)
{
	size_t done = 0;

	for (size_t i = 0; i < ARRAY_LEN(columns); i++) {
		if (!is_daily(i) || !c->has[i])
			continue;
		buf_add(out, buf_text(&c->text) + done, c->end[i] - done);
		done = c->end[i];
		if (!write_cell(w, i, c, out, err))
			return false;
	}
	buf_add(out, buf_text(&c->text) + done, c->text.len - done);
	buf_str(out, "\r\n");
	return true;
}

/* ---- rows ---- */

/* The month that a line corrects; NULL of other lines. */
static bool
find_corrected(const struct focus_input *f, const struct rated_line *l, const struct focus_period **ret,
               struct err *err)
{
	*ret = NULL;
	if (l->correction_of == NULL || l->correction_of[0] == '\0')
		return true;
	for (size_t i = 0; i < f->period_count; i++)
		if (strcmp(f->periods[i].first_day, l->period_start) == 0) {
			*ret = &f->periods[i];
			return true;
		}
	return err_set(err, ERR_INVALID, "%s/%s: a correction of the month of %s, which is not known", l->tenant,
	               l->workspace, l->period_start);
}

/* Rule 4: time that was lent or not delivered is a row of hours and one of money. */
static size_t
focus_parts_of(const struct rated_line *l, enum row_part ret[2])
{
	if (l->kind != CHARGE_LENT && l->kind != CHARGE_UNDELIVERED) {
		ret[0] = PART_LINE;
		return 1;
	}
	ret[0] = PART_UNUSED;
	ret[1] = PART_CREDIT;
	return 2;
}

int64_t
focus_row_count(const struct rated *r)
{
	int64_t rows = 0;

	for (size_t i = 0; i < r->count; i++) {
		enum row_part parts[2];
		size_t days;

		(void)rated_line_days(&r->lines[i], &days);
		rows += (int64_t)(days * focus_parts_of(&r->lines[i], parts));
	}
	return rows;
}

/* Rule 6. */
static void
set_charge_period(struct focus_row *w)
{
	const struct focus_input *f = w->f;
	size_t day = (size_t)w->d->day, i = 0;

	if (w->corrected == NULL) {
		w->starts = f->day_bounds[day];
		w->ends = f->day_bounds[day + 1];
		return;
	}
	w->starts = w->corrected->start;
	w->ends = w->corrected->end;
	while (i < f->past_count && strcmp(f->past[i].first_day, w->corrected->first_day) != 0)
		i++;
	if (w->l->corrected_days == NULL || i + day >= f->past_count ||
	    strcmp(f->past[i + day].first_day, w->corrected->first_day) != 0)
		return;
	w->starts = f->past[i + day].begins;
	if (i + day + 1 < f->past_count && strcmp(f->past[i + day + 1].first_day, w->corrected->first_day) == 0)
		w->ends = f->past[i + day + 1].begins;
}

/* ---- labels ---- */

/* By tenant and workspace, each in the order in which they came. in_place(label_index) struct label_index x = {0}; */
struct label_index {
	const struct focus_label **at;
	size_t count;
};

static void
label_index_fini(struct label_index *x)
{
	mem_free(x->at);
}

static int
compare_workspaces(const struct focus_label *a, const char *tenant, const char *workspace)
{
	int order = strcmp(a->tenant, tenant);

	return order != 0 ? order : strcmp(a->workspace, workspace);
}

static int
compare_labels(const void *a, const void *b)
{
	const struct focus_label *x = *(const struct focus_label *const *)a, *y = *(const struct focus_label *const *)b;
	int order = compare_workspaces(x, y->tenant, y->workspace);

	return order != 0 ? order : (x > y) - (x < y);
}

static void
label_index_make(struct label_index *x, const struct focus_input *f)
{
	x->at = mem_array(f->label_count, sizeof(*x->at));
	for (x->count = 0; x->count < f->label_count; x->count++)
		x->at[x->count] = &f->labels[x->count];
	if (x->count > 1)
		qsort(x->at, x->count, sizeof(*x->at), compare_labels);
}

static void
find_labels(const struct label_index *x, struct focus_row *w)
{
	size_t low = 0, high = x->count;

	while (low < high) {
		size_t mid = low + (high - low) / 2;

		if (compare_workspaces(x->at[mid], w->l->tenant, w->l->workspace) < 0)
			low = mid + 1;
		else
			high = mid;
	}
	w->labels = x->at + low;
	while (low + w->label_count < x->count &&
	       compare_workspaces(x->at[low + w->label_count], w->l->tenant, w->l->workspace) == 0)
		w->label_count++;
}

static bool
write_days(const struct focus_input *f, const struct rated *r, const struct rated_line *l, enum row_part part,
           const struct label_index *labels, struct line_cells *cells, struct buf *out, struct err *err)
{
	const struct focus_price price = focus_price_of(f, r, l, part);
	struct focus_row row = {.f = f, .l = l, .part = part, .price = &price};
	size_t n;
	const struct rated_day *days = rated_line_days(l, &n);

	find_labels(labels, &row);
	if (!find_corrected(f, l, &row.corrected, err))
		return false;
	for (size_t d = 0; d < n; d++) {
		row.d = &days[d];
		ASSERT(row.corrected != NULL || (row.d->day >= 0 && (size_t)row.d->day < f->day_count));
		set_charge_period(&row);
		if ((d == 0 && !write_line_cells(&row, cells, err)) || !write_row(&row, cells, out, err))
			return false;
	}
	return true;
}

bool
focus_rows(const struct focus_input *f, const struct rated *r, struct buf *out, struct err *err)
{
	in_place(line_cells) struct line_cells cells = {0};
	in_place(label_index) struct label_index labels = {0};

	line_cells_init(f->version, &cells);
	label_index_make(&labels, f);
	for (size_t i = 0; i < r->count; i++) {
		enum row_part parts[2];
		size_t n = focus_parts_of(&r->lines[i], parts);

		for (size_t p = 0; p < n; p++)
			if (!write_days(f, r, &r->lines[i], parts[p], &labels, &cells, out, err))
				return false;
	}
	return buf_ok(out, "the FOCUS export", err);
}

/* ---- the dataset Billing Period ---- */

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

/* ---- the dataset Invoice Detail ---- */

TEXT_CELL(changed, w->closed_at[0] != '\0' ? w->closed_at : w->f->period_start)
TEXT_CELL(issued, w->closed_at)
TEXT_CELL(payment_terms, "Internal charge")
TEXT_CELL(status, w->closed_at[0] != '\0' ? "Issued" : "Open")

static void
cell_line_billed(const struct focus_row *w, struct buf *out)
{
	focus_decimal(out, w->l->billed, w->l->currency_scale);
}

/* The fields that identify a line of the invoice: rule 1 of rating.h. */
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

static const struct focus_column invoice_columns[] = {
	{"BilledCost", cell_line_billed, LINE_NUMBER},    {"BillingAccountId", cell_account_id, LINE},
	{"BillingCurrency", cell_currency, LINE},         {"BillingPeriodEnd", cell_period_end, LINE},
	{"BillingPeriodStart", cell_period_start, LINE},  {"ChargeCategory", cell_charge_category, LINE},
	{"InvoiceDetailCreated", cell_changed, LINE},     {"InvoiceDetailDescription", cell_description, LINE},
	{"InvoiceDetailGrain", cell_grain, LINE_JSON},    {"InvoiceDetailId", cell_line_id, LINE},
	{"InvoiceDetailLastUpdated", cell_changed, LINE}, {"InvoiceId", focus_invoice_id, LINE},
	{"InvoiceIssueDate", cell_issued, LINE},          {"InvoiceIssueStatus", cell_status, LINE},
	{"InvoiceIssuerName", cell_provider, LINE},       {"PaymentCurrency", cell_currency, LINE},
	{"PaymentDueDate", cell_nothing, LINE}, /* none is set */
	{"PaymentTerms", cell_payment_terms, LINE},       {"ReferenceInvoiceId", cell_reference, LINE},
	{"x_PriceVersion", cell_price_version, LINE},
};

void
focus_invoice_header(struct buf *out)
{
	for (size_t i = 0; i < ARRAY_LEN(invoice_columns); i++)
		buf_printf(out, "%s%s", i > 0 ? "," : "", invoice_columns[i].name);
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

		for (size_t c = 0; c < ARRAY_LEN(invoice_columns); c++) {
			if (c > 0)
				buf_char(out, ',');
			if (!focus_write_cell(&invoice_columns[c], &row, &texts, out, err))
				return false;
		}
		buf_str(out, "\r\n");
	}
	return buf_ok(out, "the invoices", err);
}
