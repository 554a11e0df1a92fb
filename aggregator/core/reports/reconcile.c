/* aggregator/core/reports/reconcile.c - the pools, rows and lines of a month, added up. The numbers are those of reconcile.h. */
#include "aggregator/core/reports/reconcile.h"

#include <stdio.h>
#include <string.h>

#include "aggregator/core/reports/reconcile_parts.h"
#include "common/base/units.h"

const struct reconcile_naming reconcile_terms[RECONCILE_TERMS] = {
	[TERM_ON_DEMAND] = {"on-demand", "On-demand use", SECTION_BILLED, HOURS_ON_DEMAND},
	[TERM_BORROWED] = {"borrowed", "Borrowed use", SECTION_BILLED, HOURS_BORROWED},
	[TERM_COMMITMENTS] = {"commitments", "Reservations, used or not", SECTION_BILLED, -1},
	[TERM_DEDICATED] = {"dedicated", "Tenants' own nodes, held by nobody", SECTION_BILLED, HOURS_DEDICATED},
	[TERM_SHARED] = {"shared", "Shared nodes, held by nobody, spread over tenants", SECTION_BILLED, HOURS_SHARED},
	[TERM_UNDELIVERED] = {"undelivered", "Reserved, but not delivered", SECTION_CREDITS, -1},
	[TERM_LENT] = {"lent", "To those who lent what they had reserved", SECTION_CREDITS, -1},
	[TERM_IDLE] = {"idle", "Shared nodes, held by nobody", SECTION_UNRECOVERED, HOURS_IDLE},
	[TERM_STRANDED] = {"stranded", "Stranded on shared nodes", SECTION_UNRECOVERED, HOURS_STRANDED},
	[TERM_DOWN] = {"down", "Down", SECTION_UNRECOVERED, HOURS_DOWN},
	[TERM_UNKNOWN] = {"unknown", "Unknown", SECTION_UNRECOVERED, HOURS_UNKNOWN},
	[TERM_ON_DEMAND_PRICES] = {"on-demand-prices", "On-demand use at other prices than list", SECTION_PRICES, -1},
	[TERM_BORROWED_PRICES] = {"borrowed-prices", "Borrowed use below list", SECTION_PRICES, -1},
	[TERM_RESERVED_PRICES] = {"reserved-prices", "Reservations below list", SECTION_PRICES, -1},
	[TERM_DEDICATED_PRICES] = {"dedicated-prices", "Tenants' own idle nodes below list", SECTION_PRICES, -1},
	[TERM_SHARED_PRICES] = {"shared-prices", "Spread idle time below list", SECTION_PRICES, -1},
	[TERM_OWN_PRICES] = {"own-prices", "Tenants' own prices", SECTION_PRICES, -1},
	[TERM_DISCOUNTS] = {"discounts", "Discounts", SECTION_PRICES, -1},
	[TERM_PAID_TWICE] = {"paid-twice", "Lent hours, which lender and borrower both pay, less the credit",
                             SECTION_PRICES, -1},
	[TERM_ROUNDING] = {"rounding", "Rounding of invoices", SECTION_PRICES, -1},
};
const char *const reconcile_sections[RECONCILE_SECTIONS] = {"billed", "credits", "unrecovered", "prices"};
const char *const reconcile_hours_names[RECONCILE_HOURS] = {"on_demand", "borrowed", "covered",  "unused", "dedicated",
                                                            "shared",    "idle",     "stranded", "down",   "unknown"};
const char *const reconcile_beside_names[RECONCILE_BESIDES] = {"energy",  "storage", "network",     "inference",
                                                               "support", "other",   "adjustments", "corrections"};

struct reconcile_total *
reconcile_total_of(struct reconcile *r, const char *currency, int scale)
{
	for (size_t i = 0; i < r->total_count; i++)
		if (strcmp(r->totals[i].currency, currency) == 0)
			return &r->totals[i];
	r->totals = mem_grow(r->totals, r->total_count + 1, sizeof(*r->totals));
	r->totals[r->total_count] = (struct reconcile_total){.scale = scale, .platform_cost = -1};
	snprintf(r->totals[r->total_count].currency, sizeof(r->totals->currency), "%s", currency);
	return &r->totals[r->total_count++];
}

/* Rule 7: the last book that says something. */
static void
set_platform_costs(struct reconcile *r, const struct rating_input *in)
{
	for (size_t i = 0; i < in->book_count; i++) {
		const struct rating_book *b = &in->books[i];
		struct reconcile_total *t;
		struct err err = {0};
		int scale;

		if (b->platform_cost < 0 || !currency_exponent(b->currency, &scale, &err))
			continue;
		t = reconcile_total_of(r, b->currency, scale);
		t->platform_cost = div_round_half_even(b->platform_cost, pow10_i128(PRICE_SCALE - scale));
	}
}

struct reconcile *
reconcile_new(const struct rating_input *in)
{
	struct reconcile *r = mem_alloc(sizeof(*r));

	snprintf(r->period, sizeof(r->period), "%s", in->period);
	snprintf(r->period_status, sizeof(r->period_status), "%s", in->period_status);
	snprintf(r->period_start, sizeof(r->period_start), "%s", in->period_start);
	snprintf(r->period_end, sizeof(r->period_end), "%s", in->period_end);
	set_platform_costs(r, in);
	return r;
}

void
reconcile_free(struct reconcile *r)
{
	if (r == NULL)
		return;
	for (size_t i = 0; i < r->group_count; i++) {
		mem_free(r->groups[i].cluster);
		mem_free(r->groups[i].gpu_model);
	}
	for (size_t i = 0; i < r->version_count; i++)
		mem_free(r->versions[i]);
	mem_free(r->groups);
	mem_free(r->cells);
	mem_free(r->totals);
	mem_free(r->versions);
	mem_free(r);
}

bool
reconcile_too_much(const char *what, struct err *err)
{
	return err_set(err, ERR_INVALID, "the %s of the month are beyond what a reconciliation holds", what);
}

static bool
find_group(struct reconcile *r, const char *cluster, const char *model, const char *currency, size_t *ret,
           struct err *err)
{
	struct reconcile_group *g;

	for (size_t i = 0; i < r->group_count; i++) {
		g = &r->groups[i];
		if (strcmp(g->gpu_model, model) == 0 && strcmp(g->cluster, cluster) == 0 &&
		    strcmp(g->currency, currency) == 0) {
			*ret = i;
			return true;
		}
	}
	r->groups = mem_grow(r->groups, r->group_count + 1, sizeof(*r->groups));
	g = &r->groups[r->group_count];
	*g = (struct reconcile_group){0};
	if (!currency_exponent(currency, &g->scale, err))
		return false;
	g->cluster = mem_strdup(cluster);
	g->gpu_model = mem_strdup(model);
	snprintf(g->currency, sizeof(g->currency), "%s", currency);
	*ret = r->group_count++;
	return true;
}

static const char *
keep_version(struct reconcile *r, const char *version)
{
	for (size_t i = 0; i < r->version_count; i++)
		if (strcmp(r->versions[i], version) == 0)
			return r->versions[i];
	r->versions = mem_grow(r->versions, r->version_count + 1, sizeof(*r->versions));
	r->versions[r->version_count] = mem_strdup(version);
	return r->versions[r->version_count++];
}

/* Rule 2. */
static int128
list_price(const struct rating_book *book, const char *model)
{
	const struct usage_day whole = {.kind = CHARGE_USAGE,
	                                .cluster = "",
	                                .tenant = "",
	                                .workspace = "",
	                                .gpu_model = model,
	                                .mig_profile = "",
	                                .sharing_mode = "exclusive",
	                                .klass = "on-demand",
	                                .instance_units = UNITS_PER_GPU};
	struct rating_price p = {0};

	if (book != NULL)
		p = rating_price_of(book, &whole);
	return p.item != NULL ? p.unit_price : RECONCILE_NO_PRICE;
}

/* book NULL: none was in force. */
static bool
find_cell(struct reconcile *r, const struct rating_input *in, const char *cluster, const char *model,
          const struct rating_book *book, struct reconcile_cell **ret, struct err *err)
{
	const char *version = book != NULL ? book->version : "";
	size_t group;

	if (!find_group(r, cluster, model, book != NULL ? book->currency : in->currency, &group, err))
		return false;
	for (size_t i = 0; i < r->cell_count; i++)
		if (r->cells[i].group == group && strcmp(r->cells[i].version, version) == 0) {
			*ret = &r->cells[i];
			return true;
		}
	r->cells = mem_grow(r->cells, r->cell_count + 1, sizeof(*r->cells));
	*ret = &r->cells[r->cell_count++];
	**ret = (struct reconcile_cell){.group = group,
	                                .version = keep_version(r, version),
	                                .price = list_price(book, model)};
	return true;
}

bool
reconcile_add_pool(struct reconcile *r, const struct rating_input *in, const struct reconcile_pool *p, struct err *err)
{
	const struct rating_book *book = NULL;
	int128 stranded = p->stranded < p->unreserved_idle ? p->stranded : p->unreserved_idle;
	const struct {
		enum reconcile_hours to;
		int128 amount;
	} parts[] = {
		{HOURS_ON_DEMAND, p->on_demand},
		{HOURS_BORROWED, p->borrowed},
		{HOURS_COVERED, p->covered},
		{HOURS_UNUSED, p->unused},
		/* stranded is the owner's on its own nodes; where it is reserved, it is unused */
		{HOURS_DEDICATED, p->owned ? p->unreserved_idle : 0},
		{HOURS_IDLE, p->owned ? 0 : p->unreserved_idle - stranded},
		{HOURS_STRANDED, p->owned ? 0 : stranded},
		{HOURS_DOWN, p->down},
		{HOURS_UNKNOWN, p->unknown},
	};
	struct reconcile_cell *c = NULL;

	for (size_t i = 0; p->price_version != NULL && book == NULL && i < in->book_count; i++)
		if (strcmp(in->books[i].version, p->price_version) == 0)
			book = &in->books[i];
	if (p->price_version != NULL && book == NULL)
		return err_set(err, ERR_INVALID, "price version %s is in force, but the month does not have it",
		               p->price_version);
	if (!find_cell(r, in, p->cluster, p->gpu_model, book, &c, err))
		return false;
	for (size_t i = 0; i < ARRAY_LEN(parts); i++) {
		if (parts[i].amount < 0)
			return err_set(err, ERR_INVALID, "%s %s: %s time is below 0", p->cluster, p->gpu_model,
			               reconcile_hours_names[parts[i].to]);
		if (!RECONCILE_ADD(c->pool[parts[i].to], parts[i].amount))
			return reconcile_too_much("hours", err);
	}
	return true;
}

/* ---- what was rated ---- */

static bool
add_row(struct reconcile *r, const struct rating_input *in, const struct usage_day *d, struct err *err)
{
	const struct rating_book *book = d->price_book >= 0 ? &in->books[d->price_book] : NULL;
	int128 held = d->used_unit_ns + d->idle_unit_ns + d->unmeasured_unit_ns, amount = d->unit_ns, *to = NULL;
	struct reconcile_cell *c = NULL;

	if (d->kind == CHARGE_METER || d->kind == CHARGE_ADJUSTMENT || d->kind == CHARGE_ENERGY ||
	    d->kind == CHARGE_COMMITMENT || d->kind == CHARGE_UNDELIVERED)
		return true;
	if (!find_cell(r, in, d->cluster, d->gpu_model, book, &c, err))
		return false;
	switch (d->kind) {
	case CHARGE_USAGE:
		to = &c->rated[strcmp(d->klass, "borrowed") == 0 ? HOURS_BORROWED : HOURS_ON_DEMAND];
		amount = held;
		break;
	case CHARGE_COVERED:
		to = &c->rated[HOURS_COVERED];
		amount = held;
		break;
	case CHARGE_LENT:
		to = &c->lent;
		amount = held;
		break;
	case CHARGE_UNUSED: to = &c->rated[HOURS_UNUSED]; break;
	case CHARGE_DEDICATED: to = &c->rated[HOURS_DEDICATED]; break;
	case CHARGE_SHARED: to = &c->rated[HOURS_SHARED]; break;
	default: return true;
	}
	return RECONCILE_ADD(*to, amount) || reconcile_too_much("hours", err);
}

/* Which term the line is; RECONCILE_TERMS: it is shown, and costs nothing. */
static enum reconcile_term
term_of(const struct rated_line *l)
{
	switch (l->kind) {
	case CHARGE_USAGE: return strcmp(l->klass, "borrowed") == 0 ? TERM_BORROWED : TERM_ON_DEMAND;
	case CHARGE_COMMITMENT: return TERM_COMMITMENTS;
	case CHARGE_UNDELIVERED: return TERM_UNDELIVERED;
	case CHARGE_LENT: return TERM_LENT;
	case CHARGE_DEDICATED: return TERM_DEDICATED;
	case CHARGE_SHARED: return TERM_SHARED;
	default: return RECONCILE_TERMS;
	}
}

static enum reconcile_beside
beside_of(const struct rated_line *l)
{
	if (l->correction_of != NULL && l->correction_of[0] != '\0')
		return BESIDE_CORRECTIONS;
	if (l->kind == CHARGE_ADJUSTMENT)
		return BESIDE_ADJUSTMENTS;
	for (int i = BESIDE_ENERGY; i < BESIDE_OTHER; i++)
		if (strcmp(l->category, reconcile_beside_names[i]) == 0)
			return (enum reconcile_beside)i;
	return BESIDE_OTHER;
}

static bool
add_line(struct reconcile *r, const struct rated_line *l, struct err *err)
{
	bool correction = l->correction_of != NULL && l->correction_of[0] != '\0';
	struct reconcile_total *t = reconcile_total_of(r, l->currency, l->currency_scale);
	enum reconcile_term term = term_of(l);
	int128 own = l->own_differs ? l->list_cost - l->own_quantity * l->own_price : l->quantity * l->discount_price;
	struct reconcile_group *g;
	size_t at;

	if (!RECONCILE_ADD(t->total, l->billed))
		return reconcile_too_much("costs", err);
	if (correction || l->kind == CHARGE_METER || l->kind == CHARGE_ADJUSTMENT || l->kind == CHARGE_ENERGY)
		return RECONCILE_ADD(t->beside[beside_of(l)], l->billed) || reconcile_too_much("costs", err);
	t->capacity += l->billed; /* a part of the total, or as small */
	if (!find_group(r, l->cluster, l->gpu_model, l->currency, &at, err))
		return false;
	g = &r->groups[at];
	if (term == RECONCILE_TERMS)
		return l->billed == 0 ||
		       err_set(err, ERR_INVALID, "line %s costs something, and should not", l->line_id);
	return (RECONCILE_ADD(g->billed[term], l->billed) && RECONCILE_ADD(g->list_cost[term], l->list_cost) &&
	        RECONCILE_ADD(g->own_discount, own) && RECONCILE_ADD(g->discount, l->discount - own) &&
	        RECONCILE_ADD(g->rounding, l->rounding)) ||
	       reconcile_too_much("costs", err);
}

bool
reconcile_add_rated(struct reconcile *r, const struct rating_input *in, const struct rated *rated, struct err *err)
{
	for (size_t i = 0; i < in->day_count; i++)
		if (!add_row(r, in, &in->days[i], err))
			return false;
	for (size_t i = 0; i < rated->count; i++)
		if (!add_line(r, &rated->lines[i], err))
			return false;
	return true;
}
