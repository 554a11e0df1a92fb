/* tests/unit/rating/test_cost_day.c - a day's lines over hours and holders: each rule of cost_day.h. */
#include "aggregator/core/rating/cost_day.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#define CELL(ws, model, hour, ...)                                                                         \
	{                                                                                                  \
		.workspace_id = (ws), .cluster_id = 1, .gpu_model = (model), .profile = "", .units = 5040, \
		.sharing = 1, .hour_ns = (hour), .price_version = "1", .classes = {                        \
			__VA_ARGS__                                                                        \
		}                                                                                          \
	}
#define HELD(n)             \
	{                   \
		.idle = (n) \
	}

static struct cost_line
line_of(enum usage_class klass, enum cost_basis basis, int128 amount)
{
	return (struct cost_line){.workspace_id = 1,
	                          .cluster_id = 1,
	                          .gpu_model = "H100",
	                          .profile = "",
	                          .units = 5040,
	                          .sharing = 1,
	                          .price_version = "1",
	                          .klass = klass,
	                          .basis = basis,
	                          .amount = amount};
}

static void
test_a_line_goes_to_the_hours_of_its_class(void **state)
{
	struct cost_cell cells[] = {
		CELL(1, "A100", 0, [CLASS_ON_DEMAND] = HELD(9)),
		CELL(1, "H100", 0, [CLASS_COVERED] = HELD(2)),
		CELL(1, "H100", 1, [CLASS_COVERED] = HELD(1), [CLASS_ON_DEMAND] = HELD(5)),
		CELL(2, "H100", 0, [CLASS_COVERED] = HELD(7)),
	};
	struct cost_line covered = line_of(CLASS_COVERED, COST_HELD, 100),
			 more = line_of(CLASS_ON_DEMAND, COST_HELD, -7);

	(void)state;
	assert_true(cost_line_spread(&covered, cells, ARRAY_LEN(cells)) == 0);
	assert_true(cells[1].parts[COST_HELD] == 67 && cells[2].parts[COST_HELD] == 33);
	assert_true(cost_line_spread(&more, cells, ARRAY_LEN(cells)) == 0);
	assert_true(cells[2].parts[COST_HELD] == 26 && cells[0].parts[COST_HELD] == 0 &&
	            cells[3].parts[COST_HELD] == 0);
}

static void
test_a_line_goes_by_use_where_that_is_paid_for(void **state)
{
	struct cost_cell cells[] = {
		CELL(1, "H100", 0, [CLASS_ON_DEMAND] = {.used = 1, .idle = 100}),
		CELL(1, "H100", 1, [CLASS_ON_DEMAND] = {.unmeasured = 1, .over = 2}),
	};
	struct cost_line used = line_of(CLASS_ON_DEMAND, COST_USED, 40), none = line_of(CLASS_BORROWED, COST_USED, 5);

	(void)state;
	assert_true(cost_line_spread(&used, cells, ARRAY_LEN(cells)) == 0);
	assert_true(cells[0].parts[COST_USED] == 10 && cells[1].parts[COST_USED] == 30);
	assert_true(cost_line_spread(&none, cells, ARRAY_LEN(cells)) == 5); /* 5 */
}

static void
test_energy_goes_to_all_kinds_of_a_workspace(void **state)
{
	struct cost_cell cells[] = {
		CELL(1, "A100", 0, [CLASS_BORROWED] = {.energy_mj = 1}),
		CELL(1, "H100", 0, [CLASS_COVERED] = {.energy_mj = 2}, [CLASS_ON_DEMAND] = {.energy_mj = 1}),
		CELL(2, "H100", 0, [CLASS_COVERED] = {.energy_mj = 50}),
	};
	struct cost_line energy = line_of(CLASS_COVERED, COST_ENERGY, 8), later = energy;

	(void)state;
	energy.gpu_model = "";
	assert_true(cost_line_spread(&energy, cells, ARRAY_LEN(cells)) == 0);
	assert_true(cells[0].parts[COST_ENERGY] == 2 && cells[1].parts[COST_ENERGY] == 6);
	later.price_version = "2";
	assert_true(cost_line_spread(&later, cells, ARRAY_LEN(cells)) == 8);
	later.price_version = "1";
	later.currency = 1; /* a version has one currency */
	assert_true(cost_line_spread(&later, cells, ARRAY_LEN(cells)) == 8);
}

static void
test_a_cell_goes_to_its_holders(void **state)
{
	struct cost_cell cell = CELL(1, "H100", 0, [CLASS_COVERED] = HELD(1));
	const struct cost_share shares[] = {{{1, 0, 0}}, {{2, 0, 5}}};
	int128 part[2];

	(void)state;
	cell.parts[COST_HELD] = 10;
	cell.parts[COST_ENERGY] = 4;
	assert_true(cost_cell_split(&cell, shares, 2, part) == 0);
	assert_true(part[0] == 3 && part[1] == 7 + 4);
	cell.parts[COST_USED] = 3; /* none of them used anything: by the time held */
	assert_true(cost_cell_split(&cell, shares, 2, part) == 0);
	assert_true(part[0] == 3 + 1 && part[1] == 7 + 4 + 2);
	assert_true(cost_cell_split(&cell, shares, 0, part) == 17); /* 5 */
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_line_goes_to_the_hours_of_its_class),
		cmocka_unit_test(test_a_line_goes_by_use_where_that_is_paid_for),
		cmocka_unit_test(test_energy_goes_to_all_kinds_of_a_workspace),
		cmocka_unit_test(test_a_cell_goes_to_its_holders),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
