/* tests/prop/prop_cost_day.c - no part of a line's cost is lost on its way to hours and holders, and none goes where its class, version or workspace is not. */
#include <stdlib.h>
#include <string.h>

#include "aggregator/core/rating/cost_day.h"
#include "tests/support/harness/prop.h"

#define CELLS_MAX 12
#define LINES_MAX 6
#define SHARES_MAX 5

static const char *const models[] = {"A100", "H100"}, *const versions[] = {"1", "2"};

struct world {
	struct cost_cell cells[CELLS_MAX];
	struct cost_line lines[LINES_MAX];
	struct cost_share shares[SHARES_MAX];
	size_t cell_count, line_count, share_count;
};

static int
compare(const void *a, const void *b)
{
	return cost_cell_compare(a, b);
}

static int128
amount_of(struct prop_source *s)
{
	int128 v = prop_index(s, 3) == 0 ? 0 : prop_i128(s, 80);

	return v < 0 ? -v : v;
}

static void
generate(struct prop_source *s, void *c)
{
	struct world *w = c;

	w->cell_count = prop_index(s, CELLS_MAX + 1);
	for (size_t i = 0; i < w->cell_count; i++) {
		struct cost_cell *cell = &w->cells[i];

		*cell = (struct cost_cell){.workspace_id = 1 + (int64_t)prop_index(s, 2),
		                           .cluster_id = 1,
		                           .gpu_model = models[prop_index(s, 2)],
		                           .profile = "",
		                           .units = 5040,
		                           .hour_ns = (int64_t)i,
		                           .price_version = versions[prop_index(s, 2)]};
		for (size_t k = 0; k < CLASS_COUNT; k++)
			cell->classes[k] = (struct class_amounts){.used = amount_of(s),
			                                          .idle = amount_of(s),
			                                          .over = amount_of(s),
			                                          .energy_mj = amount_of(s)};
	}
	qsort(w->cells, w->cell_count, sizeof(*w->cells), compare);
	w->line_count = prop_index(s, LINES_MAX + 1);
	for (size_t i = 0; i < w->line_count; i++)
		w->lines[i] = (struct cost_line){.workspace_id = 1 + (int64_t)prop_index(s, 2),
		                                 .cluster_id = 1,
		                                 .gpu_model = models[prop_index(s, 2)],
		                                 .profile = "",
		                                 .units = 5040,
		                                 .price_version = versions[prop_index(s, 2)],
		                                 .klass = (enum usage_class)prop_index(s, CLASS_COUNT),
		                                 .basis = (enum cost_basis)prop_index(s, COST_BASES),
		                                 .currency = prop_index(s, 2),
		                                 .amount = prop_i128(s, 70)};
	w->share_count = prop_index(s, SHARES_MAX + 1);
	for (size_t i = 0; i < w->share_count; i++)
		for (size_t b = 0; b < COST_BASES; b++)
			w->shares[i].amount[b] = amount_of(s);
}

static void
describe(const void *c, struct buf *out)
{
	const struct world *w = c;

	for (size_t i = 0; i < w->cell_count; i++)
		buf_printf(out, "cell: workspace %d, %s, version %s\n", (int)w->cells[i].workspace_id,
		           w->cells[i].gpu_model, w->cells[i].price_version);
	for (size_t i = 0; i < w->line_count; i++)
		buf_printf(out, "line: workspace %d, %s, version %s, class %d, basis %d\n",
		           (int)w->lines[i].workspace_id, w->lines[i].gpu_model, w->lines[i].price_version,
		           (int)w->lines[i].klass, (int)w->lines[i].basis);
}

/* May the line have changed the cell? */
static bool
is_of(const struct cost_line *l, const struct cost_cell *c)
{
	const struct class_amounts *a = &c->classes[l->klass];
	int128 energy = 0;

	for (size_t k = 0; k < CLASS_COUNT; k++)
		energy += c->classes[k].energy_mj;
	if (l->workspace_id != c->workspace_id || strcmp(l->price_version, c->price_version) != 0)
		return false;
	if (l->basis == COST_ENERGY)
		return energy > 0;
	return strcmp(l->gpu_model, c->gpu_model) == 0 &&
	       (l->basis == COST_HELD ? a->used + a->idle : a->used + a->over) > 0;
}

static bool
nothing_is_lost(const void *c, struct buf *why)
{
	const struct world *w = c;
	struct cost_cell cells[CELLS_MAX];

	memcpy(cells, w->cells, sizeof(cells));
	for (size_t i = 0; i < w->line_count; i++) {
		struct cost_cell before[CELLS_MAX];
		int128 sum = 0, left;

		memcpy(before, cells, sizeof(before));
		left = cost_line_spread(&w->lines[i], cells, w->cell_count);
		for (size_t k = 0; k < w->cell_count; k++) {
			const int128 part = cells[k].parts[w->lines[i].basis] - before[k].parts[w->lines[i].basis];

			sum += part;
			if (part != 0 && !is_of(&w->lines[i], &cells[k])) {
				buf_printf(why, "line %zu goes to cell %zu, which has nothing of it", i, k);
				return false;
			}
		}
		if (sum + left != w->lines[i].amount) {
			buf_printf(why, "the parts of line %zu do not add up to it", i);
			return false;
		}
	}
	for (size_t k = 0; k < w->cell_count; k++) {
		int128 part[SHARES_MAX], sum = cost_cell_split(&cells[k], w->shares, w->share_count, part), whole = 0;

		for (size_t i = 0; i < w->share_count; i++)
			sum += part[i];
		for (size_t b = 0; b < COST_BASES; b++)
			whole += cells[k].parts[b];
		if (sum != whole) {
			buf_printf(why, "the holders of cell %zu do not add up to it", k);
			return false;
		}
	}
	return true;
}

int
main(void)
{
	static const struct prop_test tests[] = {
		{"hours and holders add up to the lines, and have something of what they pay for", sizeof(struct world),
	         generate, nothing_is_lost, describe, NULL},
	};

	return prop_main("prop_cost_day", tests, ARRAY_LEN(tests));
}
