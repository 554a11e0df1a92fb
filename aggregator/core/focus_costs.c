/* aggregator/core/focus_costs.c - EffectiveCost: rule 3 of focus.h. */
#include "aggregator/core/focus_costs.h"

#include <stddef.h>
#include <string.h>

#include "common/split.h"

#define MONTH_DAYS 31

/* A correction is about another month: what it costs is what is billed. */
static bool
is_commitment(const struct rated_line *l)
{
	return l->kind == CHARGE_COMMITMENT && l->correction_of == NULL;
}

static bool
is_part(const struct rated_line *l)
{
	return l->correction_of == NULL && (l->kind == CHARGE_COVERED || l->kind == CHARGE_UNUSED ||
	                                    l->kind == CHARGE_LENT || l->kind == CHARGE_UNDELIVERED);
}

/* Lines of one reserved model: a commitment and what became of it. */
static bool
same_commitment(const struct rated_line *a, const struct rated_line *b)
{
	return strcmp(a->tenant, b->tenant) == 0 && strcmp(a->workspace, b->workspace) == 0 &&
	       strcmp(a->cluster, b->cluster) == 0 && strcmp(a->gpu_model, b->gpu_model) == 0 &&
	       strcmp(a->price_version, b->price_version) == 0 && strcmp(a->currency, b->currency) == 0;
}

/* EffectiveCost of every day of every line: those of line i begin at first[i]. */
struct costs {
	size_t *first;
	int128 *cents;
};

static ptrdiff_t
find_day(const struct rated_line *l, int32_t day)
{
	for (size_t i = 0; i < l->day_count; i++)
		if (l->days[i].day == day)
			return (ptrdiff_t)i;
	return -1;
}

/* Takes what was billed for the commitments of a day off them and gives it to their parts. What nothing became of stays. */
static void
spread_day(const struct rated *r, const size_t *group, size_t n, int32_t day, struct costs *c)
{
	owned(mem) int128 *weight = mem_array(n, sizeof(*weight));
	owned(mem) int128 *part = mem_array(n, sizeof(*part));
	int128 billed = 0;

	for (size_t i = 0; i < n; i++) {
		const struct rated_line *l = &r->lines[group[i]];
		ptrdiff_t at = find_day(l, day);

		if (at >= 0 && l->kind == CHARGE_COMMITMENT)
			billed += l->days[at].billed;
		else if (at >= 0)
			weight[i] = l->days[at].ngh;
	}
	if (!split_largest_remainder(billed, weight, n, part))
		return;
	for (size_t i = 0; i < n; i++) {
		const struct rated_line *l = &r->lines[group[i]];
		ptrdiff_t at = find_day(l, day);

		if (at >= 0 && l->kind == CHARGE_COMMITMENT)
			c->cents[c->first[group[i]] + (size_t)at] = 0;
		else if (at >= 0)
			c->cents[c->first[group[i]] + (size_t)at] += part[i];
	}
}

/* Lines of a tenant are neighbours. */
static void
spread_commitment(const struct rated *r, size_t first, size_t commitment, size_t *group, struct costs *c)
{
	const struct rated_line *l = &r->lines[commitment];
	size_t n = 0;

	for (size_t i = first; i < r->count && strcmp(r->lines[i].tenant, l->tenant) == 0; i++)
		if ((is_part(&r->lines[i]) || is_commitment(&r->lines[i])) && same_commitment(l, &r->lines[i]))
			group[n++] = i;
	for (int32_t day = 0; day < MONTH_DAYS; day++)
		spread_day(r, group, n, day, c);
}

static void
fill_costs(const struct rated *r, struct costs *c)
{
	owned(mem) size_t *group = mem_array(r->count, sizeof(*group));
	owned(mem) bool *done = mem_array(r->count, sizeof(*done));
	size_t tenant = 0;

	for (size_t i = 0; i < r->count; i++)
		for (size_t d = 0; d < r->lines[i].day_count; d++)
			c->cents[c->first[i] + d] = r->lines[i].days[d].billed;
	for (size_t i = 0; i < r->count; i++) {
		if (strcmp(r->lines[i].tenant, r->lines[tenant].tenant) != 0)
			tenant = i;
		if (!is_commitment(&r->lines[i]) || done[i])
			continue;
		for (size_t j = i; j < r->count; j++)
			done[j] = done[j] || same_commitment(&r->lines[i], &r->lines[j]);
		spread_commitment(r, tenant, i, group, c);
	}
}

int128 *
focus_effective(const struct rated *r)
{
	owned(mem) size_t *first = mem_array(r->count + 1, sizeof(*first));
	struct costs c = {.first = first};

	for (size_t i = 0; i < r->count; i++)
		first[i + 1] = first[i] + r->lines[i].day_count;
	c.cents = mem_array(first[r->count], sizeof(*c.cents));
	fill_costs(r, &c);
	return c.cents;
}
