/* aggregator/core/focus.c - FOCUS rows from rated lines: one table of columns. The numbers are those of focus.h. */
#include "aggregator/core/focus.h"

#include <string.h>

#include "aggregator/core/focus_ascii.h"
#include "aggregator/core/focus_costs.h"
#include "aggregator/core/report.h"
#include "common/json.h"

#define CELL_MAX (16u << 10)
#define RATIO_ONE 1000000000
#define KWH_MJ 3600000000 /* a kWh in mJ */

struct focus_row {
	const struct focus_input *f;
	const struct rated_line *l;
	const struct rated_day *d;
	int128 effective;                     /* in the currency's smallest unit */
	const struct focus_period *corrected; /* NULL: it is no correction */
};

/* ---- words by kind of charge ---- */

static const struct {
	const char *charge, *pricing, *frequency, *reservation;
} kinds[CHARGE_KINDS] = {
	[CHARGE_USAGE] = {"Usage", "Standard", "Usage-Based", ""},
	[CHARGE_COVERED] = {"Usage", "Committed", "Usage-Based", "Used"},
	[CHARGE_COMMITMENT] = {"Purchase", "Committed", "Recurring", ""},
	[CHARGE_UNUSED] = {"Usage", "Committed", "Usage-Based", "Unused"},
	[CHARGE_UNDELIVERED] = {"Credit", "", "Usage-Based", ""},
	[CHARGE_LENT] = {"Credit", "", "Usage-Based", ""},
	[CHARGE_DEDICATED] = {"Usage", "Standard", "Usage-Based", ""},
	[CHARGE_SHARED] = {"Usage", "Standard", "Usage-Based", ""},
	[CHARGE_METER] = {"Usage", "Standard", "Usage-Based", ""},
	[CHARGE_ADJUSTMENT] = {"Adjustment", "", "One-Time", ""},
	[CHARGE_ENERGY] = {"Usage", "Standard", "Usage-Based", ""},
};

static const struct service {
	const char *category; /* ours */
	const char *name, *focus_category, *focus_subcategory, *resource;
} services[] = {
	{"gpu", "GPU Platform", "AI and Machine Learning", "AI Platforms", "GPU"},
	{"storage", "Storage", "Storage", "Block Storage", "Volume"},
	{"network", "Network Egress", "Networking", "Network Connectivity", "Network"},
	{"inference", "Inference", "AI and Machine Learning", "Generative AI", "Model"},
	{"support", "Support", "Management and Governance", "Support", "Support Contract"},
	{"energy", "Energy", "Other", "Other (Other)", "Power"},
	{"other", "Other Charges", "Other", "Other (Other)", "Other"},
};

static const struct service *
service_of(const struct rated_line *l)
{
	for (size_t i = 0; i < ARRAY_LEN(services); i++)
		if (strcmp(services[i].category, l->category) == 0)
			return &services[i];
	return &services[ARRAY_LEN(services) - 1];
}

/* Of FOCUS's grammar of units: a capitalised count, or a size of data, with the time it is for. */
static const char *
unit_of(const struct rated_line *l)
{
	static const struct {
		const char *ours, *focus;
	} units[] = {{"gpu-hour", "GPU-Hours"}, {"instance-hour", "Instance-Hours"},
	             {"GB-hour", "GB-Hours"},   {"GB", "GB"},
	             {"request", "Requests"},   {"token", "Tokens"},
	             {"hour", "Hours"},         {"kWh", "Kilowatt-Hours"}};

	for (size_t i = 0; i < ARRAY_LEN(units); i++)
		if (strcmp(units[i].ours, l->unit) == 0)
			return units[i].focus;
	return "Units";
}

/* ---- cells ---- */

typedef bool cell_fn(const struct focus_row *w, struct buf *out);

static void
decimal(struct buf *out, int128 value, int scale)
{
	char text[DECIMAL_TEXT_SIZE];

	buf_str(out, decimal_format(value, scale, 0, text));
}

#define TEXT_CELL(name, value)                                              \
	static bool cell_##name(const struct focus_row *w, struct buf *out) \
	{                                                                   \
		(void)w;                                                    \
		buf_str(out, (value));                                      \
		return true;                                                \
	}

static bool
is_usage(const struct focus_row *w)
{
	return strcmp(kinds[w->l->kind].charge, "Usage") == 0;
}

static bool
is_reserved(const struct focus_row *w)
{
	return kinds[w->l->kind].reservation[0] != '\0';
}

TEXT_CELL(account_id, w->f->account_id)
TEXT_CELL(account_name, w->f->account_name)
TEXT_CELL(currency, w->l->currency)
TEXT_CELL(period_end, w->f->period_end)
TEXT_CELL(period_start, w->f->period_start)
TEXT_CELL(reservation_status, kinds[w->l->kind].reservation)
TEXT_CELL(charge_category, w->l->kind == CHARGE_ADJUSTMENT && w->l->quantity < 0 ? "Credit" : kinds[w->l->kind].charge)
TEXT_CELL(nothing, "")
TEXT_CELL(description, w->l->description)
TEXT_CELL(frequency, kinds[w->l->kind].frequency)
TEXT_CELL(provider, w->f->provider)
TEXT_CELL(unit, unit_of(w->l))
TEXT_CELL(consumed_unit, is_usage(w) ? unit_of(w->l) : "")
TEXT_CELL(cluster, w->l->cluster)
TEXT_CELL(service_category, service_of(w->l)->focus_category)
TEXT_CELL(service_subcategory, service_of(w->l)->focus_subcategory)
TEXT_CELL(service_name, service_of(w->l)->name)
TEXT_CELL(sku, w->l->sku)
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
TEXT_CELL(day_start, w->corrected != NULL ? w->corrected->start : w->f->day_bounds[w->d->day])
TEXT_CELL(day_end, w->corrected != NULL ? w->corrected->end : w->f->day_bounds[w->d->day + 1])

/* An invoice of FOCUS has one currency: what is in another one than the month's is an invoice of its own. */
static bool
cell_invoice_id(const struct focus_row *w, struct buf *out)
{
	buf_str(out, w->l->invoice_id);
	if (strcmp(w->l->currency, w->f->in->currency) != 0)
		buf_printf(out, "-%s", w->l->currency);
	return true;
}

/* What was borrowed can be taken back at any time: the price of that is not the standard one. */
static bool
cell_pricing_category(const struct focus_row *w, struct buf *out)
{
	bool borrowed = w->l->kind == CHARGE_USAGE && strcmp(w->l->klass, "borrowed") == 0;

	buf_str(out, borrowed ? "Dynamic" : kinds[w->l->kind].pricing);
	return true;
}

static bool
cell_billed(const struct focus_row *w, struct buf *out)
{
	decimal(out, w->d->billed, w->l->currency_scale);
	return true;
}

static bool
cell_effective(const struct focus_row *w, struct buf *out)
{
	decimal(out, w->effective, w->l->currency_scale);
	return true;
}

static bool
cell_quantity(const struct focus_row *w, struct buf *out)
{
	decimal(out, w->d->quantity, QUANTITY_SCALE);
	return true;
}

static bool
cell_consumed(const struct focus_row *w, struct buf *out)
{
	return !is_usage(w) || cell_quantity(w, out);
}

static bool
cell_list_price(const struct focus_row *w, struct buf *out)
{
	decimal(out, w->l->unit_price, PRICE_SCALE);
	return true;
}

static bool
cell_list_cost(const struct focus_row *w, struct buf *out)
{
	decimal(out, w->d->list_cost, COST_SCALE);
	return true;
}

/* With the tenant's own price and discount, exactly: a price and a ratio have nine decimals each. */
static int128
contracted_price(const struct rated_line *l)
{
	return (l->unit_price - l->discount_price) * (RATIO_ONE - l->discount_ratio);
}

static bool
cell_contracted_price(const struct focus_row *w, struct buf *out)
{
	decimal(out, contracted_price(w->l), PRICE_SCALE + 9);
	return true;
}

static bool
cell_contracted_cost(const struct focus_row *w, struct buf *out)
{
	int128 cost;

	if (__builtin_mul_overflow(contracted_price(w->l), (int128)w->d->quantity, &cost))
		return false;
	decimal(out, cost, COST_SCALE + 9);
	return true;
}

static void
pool_name(const struct rated_line *l, struct buf *out)
{
	buf_str(out, l->cluster);
	buf_char(out, '/');
	buf_str(out, l->gpu_model[0] ? l->gpu_model : l->sku);
	if (l->mig_profile[0]) {
		buf_char(out, '/');
		buf_str(out, l->mig_profile);
	}
}

static bool
cell_reservation_id(const struct focus_row *w, struct buf *out)
{
	if (is_reserved(w))
		buf_printf(out, "%s/%s/%s/%s", w->l->cluster, w->l->tenant, w->l->workspace, w->l->gpu_model);
	return true;
}

static bool
cell_resource_id(const struct focus_row *w, struct buf *out)
{
	if (w->l->kind != CHARGE_ADJUSTMENT) /* money alone is no resource */
		pool_name(w->l, out);
	return true;
}

static bool
cell_resource_type(const struct focus_row *w, struct buf *out)
{
	if (w->l->kind != CHARGE_ADJUSTMENT)
		buf_str(out, w->l->mig_profile[0] ? "MIG Instance" : service_of(w->l)->resource);
	return true;
}

/* A sku on a kind of device, how it is shared and its class have one price at a time, whatever version of the book says so. */
static bool
cell_sku_price_id(const struct focus_row *w, struct buf *out)
{
	const char *const parts[] = {w->l->gpu_model, w->l->mig_profile, w->l->sharing_mode};

	buf_str(out, w->l->sku);
	for (size_t i = 0; i < ARRAY_LEN(parts); i++)
		if (parts[i][0] != '\0')
			buf_printf(out, "/%s", parts[i]);
	buf_printf(out, "/%s/%s", w->l->klass[0] ? w->l->klass : "standard", w->l->charge_type);
	return true;
}

static void
member(struct buf *out, const char **comma, const char *name, const char *value)
{
	if (value[0] == '\0')
		return;
	buf_str(out, *comma);
	*comma = ",";
	json_write_string(name, out);
	buf_char(out, ':');
	json_write_string(value, out);
}

static bool
cell_sku_details(const struct focus_row *w, struct buf *out)
{
	const char *comma = ",";

	if (strcmp(w->l->category, "gpu") != 0 || w->l->kind == CHARGE_ADJUSTMENT)
		return true;
	buf_str(out, "{\"GpuCount\":1");
	member(out, &comma, "InstanceType", w->l->gpu_model);
	member(out, &comma, "x_MigProfile", w->l->mig_profile);
	member(out, &comma, "x_SharingMode", w->l->sharing_mode);
	member(out, &comma, "x_Class", w->l->klass);
	buf_char(out, '}');
	return true;
}

static bool
cell_tags(const struct focus_row *w, struct buf *out)
{
	const char *comma = "";

	buf_char(out, '{');
	member(out, &comma, "tollgate/cluster", w->l->cluster);
	member(out, &comma, "tollgate/workspace", w->l->workspace);
	member(out, &comma, "tollgate/cost-center", w->l->cost_center);
	buf_char(out, '}');
	return true;
}

/* ---- what was divided among tenants ---- */

static bool
is_divided(const struct focus_row *w)
{
	return w->l->kind == CHARGE_SHARED && w->corrected == NULL && w->d->origin_ngh > 0;
}

/* As the price book of the line says. */
static bool
cell_method(const struct focus_row *w, struct buf *out)
{
	static const char *const names[] = {[SHARED_NONE] = "",
	                                    [SHARED_EVEN] = "even",
	                                    [SHARED_PROPORTIONAL] = "proportional",
	                                    [SHARED_WEIGHTS] = "weights"};
	const struct rating_input *in = w->f->in;

	for (size_t i = 0; is_divided(w) && i < in->book_count; i++)
		if (strcmp(in->books[i].version, w->l->price_version) == 0) {
			buf_printf(out, "shared-idle/%s", names[in->books[i].shared_idle]);
			return true;
		}
	if (is_divided(w))
		buf_str(out, "shared-idle");
	return true;
}

static bool
cell_method_details(const struct focus_row *w, struct buf *out)
{
	if (!is_divided(w))
		return true;
	buf_str(out, "{\"Elements\":[{\"AllocatedRatio\":");
	decimal(out, w->d->origin_ratio, 9);
	buf_str(out, ",\"UsageUnit\":\"GPU-Hours\",\"UsageQuantity\":");
	decimal(out, w->d->ngh, QUANTITY_SCALE);
	buf_str(out, "}]}");
	return true;
}

static bool
cell_origin(const struct focus_row *w, struct buf *out)
{
	if (is_divided(w))
		decimal(out, w->d->origin_ngh, QUANTITY_SCALE);
	return true;
}

#define HOURS_CELL(name, field)                                             \
	static bool cell_##name(const struct focus_row *w, struct buf *out) \
	{                                                                   \
		if (strcmp(w->l->category, "gpu") == 0)                     \
			decimal(out, w->d->field, QUANTITY_SCALE);          \
		return true;                                                \
	}
HOURS_CELL(gpu_hours, ngh)
HOURS_CELL(used_hours, used_ngh)
HOURS_CELL(idle_hours, idle_ngh)
HOURS_CELL(unmeasured_hours, unmeasured_ngh)

static bool
cell_energy(const struct focus_row *w, struct buf *out)
{
	if (strcmp(w->l->category, "gpu") == 0)
		decimal(out, div_round_half_even(w->d->energy_mj, KWH_MJ / 1000000), 6);
	return true;
}

/* ---- the table ---- */

/* DAILY: its days differ, numbers and times; LINE: a text that all days of a line have; LINE_NUMBER: a number that they have. _JSON: a flat object. */
enum column_kind { LINE, LINE_NUMBER, DAILY, LINE_JSON, DAILY_JSON };

static const struct {
	const char *name;
	cell_fn *cell;
	enum column_kind kind;
} columns[] = {
	{"AllocatedMethodDetails", cell_method_details, DAILY_JSON},
	{"AllocatedMethodId", cell_method, LINE},
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
	{"CommitmentDiscountStatus", cell_nothing, LINE},
	{"ConsumedQuantity", cell_consumed, DAILY},
	{"ConsumedUnit", cell_consumed_unit, LINE},
	{"ContractedCost", cell_contracted_cost, DAILY},
	{"ContractedUnitPrice", cell_contracted_price, LINE_NUMBER},
	{"EffectiveCost", cell_effective, DAILY},
	{"HostProviderName", cell_provider, LINE},
	{"InvoiceId", cell_invoice_id, LINE},
	{"InvoiceIssuerName", cell_provider, LINE},
	{"ListCost", cell_list_cost, DAILY},
	{"ListUnitPrice", cell_list_price, LINE_NUMBER},
	{"PricingCategory", cell_pricing_category, LINE},
	{"PricingCurrency", cell_currency, LINE},
	{"PricingCurrencyContractedUnitPrice", cell_contracted_price, LINE_NUMBER},
	{"PricingCurrencyEffectiveCost", cell_effective, DAILY},
	{"PricingCurrencyListUnitPrice", cell_list_price, LINE_NUMBER},
	{"PricingQuantity", cell_quantity, DAILY},
	{"PricingUnit", cell_unit, LINE},
	{"ProviderName", cell_provider, LINE},
	{"PublisherName", cell_provider, LINE},
	{"RegionId", cell_cluster, LINE},
	{"RegionName", cell_cluster, LINE},
	{"ResourceId", cell_resource_id, LINE},
	{"ResourceName", cell_resource_id, LINE},
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

void
focus_header(struct buf *out)
{
	for (size_t i = 0; i < ARRAY_LEN(columns); i++) {
		buf_str(out, i > 0 ? "," : "");
		buf_str(out, columns[i].name);
	}
	buf_str(out, "\r\n");
}

#define ROW_MAX (1u << 20) /* of the cells of one line that are the same every day */

/* The cells of a line that all its days have, each with the comma before it. */
struct line_cells {
	struct buf text, cell, plain;
	size_t end[ARRAY_LEN(columns)]; /* of each column in the text */
};

static void
line_cells_init(struct line_cells *c)
{
	buf_init(&c->text, ROW_MAX);
	buf_init(&c->cell, CELL_MAX);
	buf_init(&c->plain, CELL_MAX);
}

static void
line_cells_fini(struct line_cells *c)
{
	buf_fini(&c->text);
	buf_fini(&c->cell);
	buf_fini(&c->plain);
}

static bool
write_cell(const struct focus_row *w, size_t column, struct line_cells *c, struct buf *out, struct err *err)
{
	const bool json = columns[column].kind == LINE_JSON || columns[column].kind == DAILY_JSON;
	const bool text = columns[column].kind == LINE && !w->f->plain;
	void (*put)(struct buf *, const char *) = text ? csv_text_field : csv_field;

	buf_clear(&c->cell);
	if (!columns[column].cell(w, &c->cell))
		return err_set(err, ERR_INVALID, "%s/%s: %s of %s is beyond what a row holds", w->l->tenant,
		               w->l->workspace, columns[column].name, w->l->sku);
	if (column > 0)
		buf_char(out, ',');
	if (is_ascii(buf_text(&c->cell))) {
		put(out, buf_text(&c->cell));
		return buf_ok(&c->cell, columns[column].name, err);
	}
	buf_clear(&c->plain);
	ascii_text(&c->plain, buf_text(&c->cell), json);
	put(out, buf_text(&c->plain));
	return buf_ok(&c->plain, columns[column].name, err);
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
		if (!is_daily(i) && !write_cell(w, i, c, &c->text, err))
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
		if (!is_daily(i))
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

bool
focus_rows(const struct focus_input *f, const struct rated *r, struct buf *out, struct err *err)
{
	owned(mem) int128 *effective = focus_effective(r);
	const int128 *next = effective;
	in_place(line_cells) struct line_cells cells = {0};

	line_cells_init(&cells);
	for (size_t i = 0; i < r->count; i++) {
		const struct focus_period *corrected = NULL;

		if (!find_corrected(f, &r->lines[i], &corrected, err))
			return false;
		for (size_t d = 0; d < r->lines[i].day_count; d++) {
			const struct focus_row row = {.f = f,
			                              .l = &r->lines[i],
			                              .d = &r->lines[i].days[d],
			                              .effective = *next++,
			                              .corrected = corrected};

			ASSERT(corrected != NULL || (row.d->day >= 0 && (size_t)row.d->day < f->day_count));
			if ((d == 0 && !write_line_cells(&row, &cells, err)) || !write_row(&row, &cells, out, err))
				return false;
		}
	}
	return buf_ok(out, "the FOCUS export", err);
}

/* ---- billing periods ---- */

void
focus_periods(const struct focus_input *f, const struct focus_period *periods, size_t n, struct buf *out)
{
	in_place(buf) struct buf issuer = {0};

	buf_init(&issuer, CELL_MAX);
	buf_str(out,
	        "BillingPeriodStart,BillingPeriodEnd,BillingPeriodStatus,BillingPeriodClosed,InvoiceIssuerName\r\n");
	for (size_t i = 0; i < n; i++) {
		const struct focus_period *p = &periods[i];

		buf_printf(out, "%s,%s,%s,%s,", p->start, p->end, strcmp(p->status, "closed") == 0 ? "Closed" : "Open",
		           p->closed_at);
		buf_clear(&issuer);
		ascii_text(&issuer, f->provider, false);
		(f->plain ? csv_field : csv_text_field)(out, buf_text(&issuer));
		buf_str(out, "\r\n");
	}
}
