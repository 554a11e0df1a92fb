/* aggregator/core/reports/reconcile.c - a month's capacity at list price against its billed amounts, in terms that add up. The numbers are those of reconcile.h. */
#include "aggregator/core/reports/reconcile.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "aggregator/core/rating/rounding.h"
#include "common/base/time.h"
#include "common/base/units.h"

#define ADD(sum, v) (!__builtin_add_overflow((sum), (v), &(sum)))
#define NO_PRICE (-1)

/* A cluster's model under one book. */
struct reconcile_cell {
	size_t group;
	const char *version;          /* of the book, which is the group's; "": none */
	int128 price;                 /* NO_PRICE: none */
	int128 pool[RECONCILE_HOURS]; /* of the pools; idle time of shared nodes is HOURS_IDLE */
	/* Of the rated rows, without time that nobody pays for. Covered: with lent and unused time. */
	int128 rated[RECONCILE_HOURS], lent;
};

struct reconcile_group {
	char *cluster, *gpu_model;
	char currency[8];
	int scale;
	int128 billed[RECONCILE_TERMS];          /* cents: of billed and credits */
	int128 list_cost[RECONCILE_TERMS];       /* of the same, exact */
	int128 own_discount, discount, rounding; /* exact */
};

struct reconcile {
	char period[8], period_status[8], period_start[12], period_end[12];
	struct reconcile_group *groups;
	size_t group_count;
	struct reconcile_cell *cells;
	size_t cell_count;
	struct reconcile_total *totals;
	size_t total_count;
	char **versions;
	size_t version_count;
};

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

static struct reconcile_total *
total_of(struct reconcile *r, const char *currency, int scale)
{
	for (size_t i = 0; i < r->total_count; i++)
		if (strcmp(r->totals[i].currency, currency) == 0)
			return &r->totals[i];
	r->totals = mem_grow(r->totals, r->total_count + 1, sizeof(*r->totals));
	r->totals[r->total_count] = (struct reconcile_total){.scale = scale, .platform_cost = -1};
	snprintf(r->totals[r->total_count].currency, sizeof(r->totals->currency), "%s", currency);
	return &r->totals[r->total_count++];
}

/* Rule 7: the last book that has a platform cost. */
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
		t = total_of(r, b->currency, scale);
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

static bool
sum_too_large(const char *what, struct err *err)
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
	return p.item != NULL ? p.unit_price : NO_PRICE;
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
		if (!ADD(c->pool[parts[i].to], parts[i].amount))
			return sum_too_large("hours", err);
	}
	return true;
}

/* ---- rated rows and lines ---- */

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
	return ADD(*to, amount) || sum_too_large("hours", err);
}

/* The term of the line; RECONCILE_TERMS: none, the line costs nothing. */
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
	struct reconcile_total *t = total_of(r, l->currency, l->currency_scale);
	enum reconcile_term term = term_of(l);
	int128 own = l->own_differs ? l->list_cost - l->own_quantity * l->own_price : l->quantity * l->discount_price;
	struct reconcile_group *g;
	size_t at;

	if (!ADD(t->total, l->billed))
		return sum_too_large("costs", err);
	if (correction || l->kind == CHARGE_METER || l->kind == CHARGE_ADJUSTMENT || l->kind == CHARGE_ENERGY)
		return ADD(t->beside[beside_of(l)], l->billed) || sum_too_large("costs", err);
	t->capacity += l->billed; /* a part of the total, or as small */
	if (!find_group(r, l->cluster, l->gpu_model, l->currency, &at, err))
		return false;
	g = &r->groups[at];
	if (term == RECONCILE_TERMS)
		return l->billed == 0 ||
		       err_set(err, ERR_INVALID, "line %s costs something, and should not", l->line_id);
	return (ADD(g->billed[term], l->billed) && ADD(g->list_cost[term], l->list_cost) && ADD(g->own_discount, own) &&
	        ADD(g->discount, l->discount - own) && ADD(g->rounding, l->rounding)) ||
	       sum_too_large("costs", err);
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

#define NGH_DIVISOR (UNITS_PER_GPU * (NS_PER_HOUR / NS_PER_S)) /* unit-nanoseconds of a billionth of a GPU-hour */

/* ---- the equation ---- */

static int128
distance(int128 a, int128 b)
{
	return a < b ? b - a : a - b;
}

/* Rule 5. */
static int128
differing(const struct reconcile_cell *c)
{
	static const enum reconcile_hours same[] = {HOURS_ON_DEMAND, HOURS_BORROWED, HOURS_COVERED, HOURS_UNUSED,
	                                            HOURS_DEDICATED};
	int128 sum = distance(c->lent, c->pool[HOURS_BORROWED]);

	for (size_t i = 0; i < ARRAY_LEN(same); i++)
		sum += distance(c->rated[same[i]], c->pool[same[i]]);
	return sum + (c->rated[HOURS_SHARED] > c->pool[HOURS_IDLE] ? c->rated[HOURS_SHARED] - c->pool[HOURS_IDLE] : 0);
}

/* Exact amounts of a group, scale COST_SCALE. */
struct exact {
	int128 value[RECONCILE_HOURS];
};

static bool
add_cell(struct reconcile_cell *c, struct reconcile_row *row, struct exact *x, struct err *err)
{
	int128 ngh[RECONCILE_HOURS], sum, value, shared = c->rated[HOURS_SHARED];

	c->pool[HOURS_SHARED] = shared < c->pool[HOURS_IDLE] ? shared : c->pool[HOURS_IDLE];
	c->pool[HOURS_IDLE] -= c->pool[HOURS_SHARED];
	if (!round_together(c->pool, RECONCILE_HOURS, NGH_DIVISOR, ngh, &sum))
		return sum_too_large("hours", err);
	for (size_t i = 0; i < RECONCILE_HOURS; i++) {
		row->ngh[i] += ngh[i];
		if (c->price != NO_PRICE &&
		    (__builtin_mul_overflow(ngh[i], c->price, &value) || !ADD(x->value[i], value)))
			return sum_too_large("values", err);
	}
	row->capacity_ngh += sum;
	if (c->price == NO_PRICE)
		row->unpriced_ngh += sum;
	return true;
}

/* Rule 3: every term but billed and credits, which are whole cents. */
static bool
exact_terms(const struct reconcile_group *g, const struct exact *x, int128 terms[RECONCILE_TERMS])
{
	const int128 *v = x->value, *l = g->list_cost;
	int128 reserved = v[HOURS_COVERED];
	bool ok = ADD(reserved, v[HOURS_UNUSED]) && ADD(reserved, v[HOURS_BORROWED]) &&
	          ADD(reserved, -l[TERM_COMMITMENTS]) && ADD(reserved, -l[TERM_UNDELIVERED]);

	terms[TERM_IDLE] = v[HOURS_IDLE];
	terms[TERM_STRANDED] = v[HOURS_STRANDED];
	terms[TERM_DOWN] = v[HOURS_DOWN];
	terms[TERM_UNKNOWN] = v[HOURS_UNKNOWN];
	terms[TERM_RESERVED_PRICES] = reserved;
	terms[TERM_OWN_PRICES] = g->own_discount;
	terms[TERM_DISCOUNTS] = g->discount;
	terms[TERM_ROUNDING] = -g->rounding;
	return ok && !__builtin_sub_overflow(v[HOURS_ON_DEMAND], l[TERM_ON_DEMAND], &terms[TERM_ON_DEMAND_PRICES]) &&
	       !__builtin_sub_overflow(v[HOURS_BORROWED], l[TERM_BORROWED], &terms[TERM_BORROWED_PRICES]) &&
	       !__builtin_sub_overflow(v[HOURS_DEDICATED], l[TERM_DEDICATED], &terms[TERM_DEDICATED_PRICES]) &&
	       !__builtin_sub_overflow(v[HOURS_SHARED], l[TERM_SHARED], &terms[TERM_SHARED_PRICES]) &&
	       /* the lenders' commitments have these hours too; the lenders' credits are negative */
	       !__builtin_sub_overflow(-v[HOURS_BORROWED], l[TERM_LENT], &terms[TERM_PAID_TWICE]);
}

/* Rule 4. */
static bool
round_terms(const struct reconcile_group *g, const int128 exact[RECONCILE_TERMS], struct reconcile_row *row)
{
	int128 unit = pow10_i128(COST_SCALE - g->scale), num[RECONCILE_TERMS];

	for (size_t i = 0; i < RECONCILE_TERMS; i++) {
		num[i] = exact[i];
		if (reconcile_terms[i].section <= SECTION_CREDITS &&
		    __builtin_mul_overflow(g->billed[i], unit, &num[i]))
			return false;
	}
	return round_together(num, RECONCILE_TERMS, unit, row->terms, &row->value);
}

static bool
end_group(struct reconcile *r, size_t at, struct reconcile_row *row, struct err *err)
{
	const struct reconcile_group *g = &r->groups[at];
	int128 terms[RECONCILE_TERMS] = {0}, differ = 0;
	struct exact x = {0};
	bool first = true;

	*row = (struct reconcile_row){
		.level = LEVEL_MODEL, .cluster = g->cluster, .gpu_model = g->gpu_model, .scale = g->scale};
	memcpy(row->currency, g->currency, sizeof(row->currency));
	row->list_price = NO_PRICE;
	for (size_t i = 0; i < r->cell_count; i++) {
		struct reconcile_cell *c = &r->cells[i];

		if (c->group != at)
			continue;
		if (!ADD(differ, differing(c)))
			return sum_too_large("hours", err);
		row->list_price = first || row->list_price == c->price ? c->price : NO_PRICE;
		first = false;
		if (!add_cell(c, row, &x, err))
			return false;
	}
	row->differs = differ != 0;
	row->differ_ngh = div_round_half_even(differ, NGH_DIVISOR);
	return (exact_terms(g, &x, terms) && round_terms(g, terms, row)) || sum_too_large("values", err);
}

int128
reconcile_section_sum(const struct reconcile_row *row, enum reconcile_section s)
{
	int128 sum = 0;

	for (size_t i = 0; i < RECONCILE_TERMS; i++)
		if (reconcile_terms[i].section == s)
			sum += row->terms[i];
	return sum;
}

/* ---- sums ---- */

static int
compare_rows(const void *a, const void *b)
{
	const struct reconcile_row *x = a, *y = b;
	int order = (x->level == LEVEL_ALL) - (y->level == LEVEL_ALL);

	if (order == 0)
		order = strcmp(x->cluster, y->cluster);
	if (order == 0)
		order = (int)x->level - (int)y->level;
	if (order == 0)
		order = strcmp(x->gpu_model, y->gpu_model);
	return order ? order : strcmp(x->currency, y->currency);
}

static bool
add_to_sum(struct reconcile_row *sum, const struct reconcile_row *row)
{
	for (size_t i = 0; i < RECONCILE_HOURS; i++)
		if (!ADD(sum->ngh[i], row->ngh[i]))
			return false;
	for (size_t i = 0; i < RECONCILE_TERMS; i++)
		if (!ADD(sum->terms[i], row->terms[i]))
			return false;
	sum->differs |= row->differs;
	return ADD(sum->capacity_ngh, row->capacity_ngh) && ADD(sum->unpriced_ngh, row->unpriced_ngh) &&
	       ADD(sum->differ_ngh, row->differ_ngh) && ADD(sum->value, row->value);
}

/* The row that sums up at that level what belongs to it; made where there is none yet. */
static struct reconcile_row *
sum_row(struct reconciliation *s, enum reconcile_level level, const struct reconcile_row *of)
{
	struct reconcile_row wanted = {.level = level,
	                               .cluster = level == LEVEL_CLUSTER ? of->cluster : "",
	                               .gpu_model = "",
	                               .scale = of->scale,
	                               .list_price = NO_PRICE};

	memcpy(wanted.currency, of->currency, sizeof(wanted.currency));
	for (size_t i = 0; i < s->count; i++)
		if (compare_rows(&s->rows[i], &wanted) == 0)
			return &s->rows[i];
	s->rows[s->count] = wanted;
	return &s->rows[s->count++];
}

static int
compare_totals(const void *a, const void *b)
{
	return strcmp(((const struct reconcile_total *)a)->currency, ((const struct reconcile_total *)b)->currency);
}

void
reconciliation_free(struct reconciliation *r)
{
	if (r == NULL)
		return;
	reconcile_free(r->memory);
	mem_free(r->rows);
	mem_free(r);
}

bool
reconcile_end(struct reconcile **r, struct reconciliation **ret, struct err *err)
{
	owned(reconciliation) struct reconciliation *s = mem_alloc(sizeof(*s));
	struct reconcile *m = s->memory = take(*r);
	size_t groups = m->group_count;

	memcpy(s->period, m->period, sizeof(s->period));
	memcpy(s->period_status, m->period_status, sizeof(s->period_status));
	memcpy(s->period_start, m->period_start, sizeof(s->period_start));
	memcpy(s->period_end, m->period_end, sizeof(s->period_end));
	s->rows = mem_array(3 * groups, sizeof(*s->rows));
	for (; s->count < groups; s->count++)
		if (!end_group(m, s->count, &s->rows[s->count], err))
			return err_prefix(err, "%s %s", m->groups[s->count].cluster, m->groups[s->count].gpu_model);
	for (size_t i = 0; i < groups; i++) {
		total_of(m, s->rows[i].currency, s->rows[i].scale); /* also where nothing was billed */
		if (!add_to_sum(sum_row(s, LEVEL_CLUSTER, &s->rows[i]), &s->rows[i]) ||
		    !add_to_sum(sum_row(s, LEVEL_ALL, &s->rows[i]), &s->rows[i]))
			return sum_too_large("sums", err);
	}
	if (s->count > 0)
		qsort(s->rows, s->count, sizeof(*s->rows), compare_rows);
	if (m->total_count > 0)
		qsort(m->totals, m->total_count, sizeof(*m->totals), compare_totals);
	s->totals = m->totals;
	s->total_count = m->total_count;
	*ret = take(s);
	return true;
}
