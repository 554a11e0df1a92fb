/* aggregator/core/rating/cost_day.c - a day's lines over hours and holders. The numbers are those of cost_day.h. */
#include "aggregator/core/rating/cost_day.h"

#include <string.h>

#include "common/base/apportion.h"

static int
compare_kinds(const struct cost_cell *a, const struct cost_cell *b)
{
	int order = strcmp(a->gpu_model, b->gpu_model);

	if (order == 0)
		order = strcmp(a->profile, b->profile);
	if (order == 0)
		order = ORDER(a->units, b->units);
	return order != 0 ? order : ORDER(a->sharing, b->sharing);
}

static int
compare_workspaces(const struct cost_cell *a, const struct cost_cell *b)
{
	int order = ORDER(a->workspace_id, b->workspace_id);

	return order != 0 ? order : ORDER(a->cluster_id, b->cluster_id);
}

int
cost_cell_compare(const struct cost_cell *a, const struct cost_cell *b)
{
	int order = compare_workspaces(a, b);

	if (order == 0)
		order = compare_kinds(a, b);
	if (order == 0)
		order = ORDER(a->hour_ns, b->hour_ns);
	return order != 0 ? order : ORDER(a->owner_id, b->owner_id);
}

static int128
held_of(const struct class_amounts *a)
{
	return a->used + a->idle + a->unmeasured;
}

static int128
priced_of(const struct cost_cell *c, const struct cost_line *l)
{
	const struct class_amounts *a = &c->classes[l->klass];
	int128 energy = 0;

	switch (l->basis) {
	case COST_HELD: return held_of(a);
	case COST_USED: return a->used + a->unmeasured + a->over;
	case COST_ENERGY:
	case COST_BASES: break;
	}
	for (size_t k = 0; k < CLASS_COUNT; k++)
		energy += c->classes[k].energy_mj;
	return energy;
}

/* The cells of the line's workspace and cluster, and of its kind of device, whatever the hour. */
static size_t
find_cells(const struct cost_line *l, const struct cost_cell *cells, size_t n, size_t *ret_first)
{
	const struct cost_cell wanted = {.workspace_id = l->workspace_id,
	                                 .cluster_id = l->cluster_id,
	                                 .gpu_model = l->gpu_model,
	                                 .profile = l->profile,
	                                 .units = l->units,
	                                 .sharing = l->sharing};
	size_t low = 0, high = n, end;

#define COMPARE(cell)                                                               \
	(compare_workspaces(cell, &wanted) != 0 ? compare_workspaces(cell, &wanted) \
	 : l->basis == COST_ENERGY              ? 0                                 \
	                                        : compare_kinds(cell, &wanted))
	while (low < high) {
		size_t mid = low + (high - low) / 2;

		if (COMPARE(&cells[mid]) < 0)
			low = mid + 1;
		else
			high = mid;
	}
	for (end = low; end < n && COMPARE(&cells[end]) == 0; end++)
		;
#undef COMPARE
	*ret_first = low;
	return end - low;
}

/* A line that is priced by use also contains time that was held and not used: it costs 0. */
static bool
is_of_line(const struct cost_cell *c, const struct cost_line *l, int128 priced)
{
	return priced > 0 || (l->basis == COST_USED && held_of(&c->classes[l->klass]) > 0);
}

int128
cost_line_spread(const struct cost_line *l, struct cost_cell *cells, size_t n)
{
	size_t first, count = find_cells(l, cells, n, &first);
	owned(mem) int128 *weight = mem_array(count, sizeof(*weight));
	owned(mem) int128 *part = mem_array(count, sizeof(*part));

	for (size_t i = 0; i < count; i++) {
		struct cost_cell *c = &cells[first + i];

		/* A price version has one currency; a cell that has another one is not this line's. */
		if (strcmp(c->price_version, l->price_version) != 0 || (c->priced && c->currency != l->currency))
			continue;
		weight[i] = priced_of(c, l);
		if (is_of_line(c, l, weight[i])) {
			c->priced = true;
			c->currency = l->currency;
		}
	}
	if (!apportion(l->amount, weight, count, part))
		return l->amount; /* 5 */
	for (size_t i = 0; i < count; i++)
		cells[first + i].parts[l->basis] += part[i];
	return 0;
}

int128
cost_cell_split(const struct cost_cell *c, const struct cost_share *shares, size_t n, int128 *out)
{
	owned(mem) int128 *weight = mem_array(n, sizeof(*weight));
	owned(mem) int128 *part = mem_array(n, sizeof(*part));
	int128 left = 0;

	for (size_t i = 0; i < n; i++)
		out[i] = 0;
	for (size_t b = 0; b < COST_BASES; b++) {
		bool done = c->parts[b] == 0;

		for (size_t attempt = b; !done; attempt = COST_HELD) {
			for (size_t i = 0; i < n; i++)
				weight[i] = shares[i].amount[attempt];
			done = apportion(c->parts[b], weight, n, part);
			for (size_t i = 0; done && i < n; i++)
				out[i] += part[i];
			if (attempt == COST_HELD)
				break;
		}
		if (!done)
			left += c->parts[b];
	}
	return left;
}
