/* aggregator/core/reports/reconcile_end.c - capacity at list price against what was billed, in terms that add up. The numbers are those of
 * reconcile.h. */
#include <stdlib.h>
#include <string.h>

#include "aggregator/core/reports/reconcile_parts.h"
#include "aggregator/core/rating/rounding.h"
#include "common/base/time.h"
#include "common/base/units.h"

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
		return reconcile_too_much("hours", err);
	for (size_t i = 0; i < RECONCILE_HOURS; i++) {
		row->ngh[i] += ngh[i];
		if (c->price != RECONCILE_NO_PRICE &&
		    (__builtin_mul_overflow(ngh[i], c->price, &value) || !RECONCILE_ADD(x->value[i], value)))
			return reconcile_too_much("values", err);
	}
	row->capacity_ngh += sum;
	if (c->price == RECONCILE_NO_PRICE)
		row->unpriced_ngh += sum;
	return true;
}

/* Rule 3: every term but billed and credits, which are whole cents. */
static bool
exact_terms(const struct reconcile_group *g, const struct exact *x, int128 terms[RECONCILE_TERMS])
{
	const int128 *v = x->value, *l = g->list_cost;
	int128 reserved = v[HOURS_COVERED];
	bool ok = RECONCILE_ADD(reserved, v[HOURS_UNUSED]) && RECONCILE_ADD(reserved, v[HOURS_BORROWED]) &&
	          RECONCILE_ADD(reserved, -l[TERM_COMMITMENTS]) && RECONCILE_ADD(reserved, -l[TERM_UNDELIVERED]);

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
	       /* the lenders' commitments have these hours too; what the lenders get back is a credit, and negative */
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
	row->list_price = RECONCILE_NO_PRICE;
	for (size_t i = 0; i < r->cell_count; i++) {
		struct reconcile_cell *c = &r->cells[i];

		if (c->group != at)
			continue;
		if (!RECONCILE_ADD(differ, differing(c)))
			return reconcile_too_much("hours", err);
		row->list_price = first || row->list_price == c->price ? c->price : RECONCILE_NO_PRICE;
		first = false;
		if (!add_cell(c, row, &x, err))
			return false;
	}
	row->differs = differ != 0;
	row->differ_ngh = div_round_half_even(differ, NGH_DIVISOR);
	return (exact_terms(g, &x, terms) && round_terms(g, terms, row)) || reconcile_too_much("values", err);
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
		if (!RECONCILE_ADD(sum->ngh[i], row->ngh[i]))
			return false;
	for (size_t i = 0; i < RECONCILE_TERMS; i++)
		if (!RECONCILE_ADD(sum->terms[i], row->terms[i]))
			return false;
	sum->differs |= row->differs;
	return RECONCILE_ADD(sum->capacity_ngh, row->capacity_ngh) &&
	       RECONCILE_ADD(sum->unpriced_ngh, row->unpriced_ngh) && RECONCILE_ADD(sum->differ_ngh, row->differ_ngh) &&
	       RECONCILE_ADD(sum->value, row->value);
}

/* The row that sums up at that level what belongs to it; made where there is none yet. */
static struct reconcile_row *
sum_row(struct reconciliation *s, enum reconcile_level level, const struct reconcile_row *of)
{
	struct reconcile_row wanted = {.level = level,
	                               .cluster = level == LEVEL_CLUSTER ? of->cluster : "",
	                               .gpu_model = "",
	                               .scale = of->scale,
	                               .list_price = RECONCILE_NO_PRICE};

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
		reconcile_total_of(m, s->rows[i].currency, s->rows[i].scale); /* also where nothing was billed */
		if (!add_to_sum(sum_row(s, LEVEL_CLUSTER, &s->rows[i]), &s->rows[i]) ||
		    !add_to_sum(sum_row(s, LEVEL_ALL, &s->rows[i]), &s->rows[i]))
			return reconcile_too_much("sums", err);
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
