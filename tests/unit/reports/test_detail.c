/* tests/unit/reports/test_detail.c - a line divided among its workloads: every digit is somebody's. */
#include "tests/support/billing/rates.h"

#include "aggregator/core/reports/detail.h"

#define ROW(n_, kind_, class_, ...)                                                                         \
	{                                                                                                   \
		.day = (n_), .kind = (kind_), .cluster = "main", .tenant = "acme", .cost_center = "",       \
		.workspace = "w", .gpu_model = "H100-80GB", .mig_profile = "", .sharing_mode = "exclusive", \
		.klass = (class_), .instance_units = 5040, __VA_ARGS__                                      \
	}
static const struct rating_item item = {.sku = "", .price = 3333333333};
static const struct rating_book book = {.version = "1", .currency = "EUR", .items = &item, .item_count = 1};

static void
check_sums(const struct rated_line *l, const struct rated_day *d, const struct detail_row *rows, size_t n)
{
	struct detail_row sum = {0};

	for (size_t i = 0; i < n; i++) {
		sum.ngh += rows[i].ngh;
		sum.used_ngh += rows[i].used_ngh;
		sum.idle_ngh += rows[i].idle_ngh;
		sum.unmeasured_ngh += rows[i].unmeasured_ngh;
		sum.quantity += rows[i].quantity;
		sum.list_cost += rows[i].list_cost;
		sum.billed += rows[i].billed;
		sum.energy_mj += rows[i].energy_mj;
		assert_true(rows[i].quantity >= 0 && rows[i].billed >= 0 && rows[i].ngh >= 0);
		assert_true(rows[i].list_cost == (int128)rows[i].quantity * l->unit_price);
	}
	assert_true(sum.ngh == d->ngh && sum.quantity == d->quantity && sum.billed == d->billed);
	assert_true(sum.used_ngh == d->used_ngh && sum.idle_ngh == d->idle_ngh &&
	            sum.unmeasured_ngh == d->unmeasured_ngh);
	assert_true(sum.list_cost == d->list_cost && sum.energy_mj == d->energy_mj);
}

static void
thirds_of_a_day_add_up_to_it(void **state)
{
	const struct usage_day day =
		ROW(3, CHARGE_USAGE, "on-demand", .used_unit_ns = GPU_HOUR / 3, .idle_unit_ns = 2 * GPU_HOUR,
	            .unmeasured_unit_ns = GPU_HOUR / 7, .energy_mj = 1000);
	const struct rating_input in = {NOVEMBER_2026, .books = &book, .book_count = 1, .days = &day, .day_count = 1};
	owned(rated) struct rated *r = rate(&in);

	(void)state;
	assert_int_equal(r->count, 1);
	for (size_t n = 1; n <= 40; n++) {
		struct detail_workload w[40] = {{0}};
		owned(mem) struct detail_row *rows = NULL;

		for (size_t i = 0; i < n; i++)
			w[i] = (struct detail_workload){
				.day = 3, .used = (int128)i * 1000003, .idle = 7, .energy_mj = (int128)i % 3};
		assert_int_equal(detail_day(&r->lines[0], &r->lines[0].days[0], w, n, &rows), n);
		check_sums(&r->lines[0], &r->lines[0].days[0], rows, n);
		for (size_t i = 0; i < n; i++)
			assert_true(rows[i].quantity == rows[i].ngh);
	}
}

/* What is priced by its use is divided by what was held, as before. */
static void
what_is_not_priced_by_its_hours_adds_up_for_itself(void **state)
{
	const struct rating_item by_use = {.sku = "", .price = 3333333333, .basis_used = true};
	const struct rating_book used = {.version = "1", .currency = "EUR", .items = &by_use, .item_count = 1};
	const struct usage_day day = ROW(3, CHARGE_USAGE, "on-demand", .used_unit_ns = GPU_HOUR / 3,
	                                 .idle_unit_ns = 2 * GPU_HOUR, .energy_mj = 1000);
	const struct rating_input in = {NOVEMBER_2026, .books = &used, .book_count = 1, .days = &day, .day_count = 1};
	const struct detail_workload w[] = {{.day = 3, .used = 1, .idle = 1}, {.day = 3, .idle = 1}};
	owned(rated) struct rated *r = rate(&in);
	owned(mem) struct detail_row *rows = NULL;

	(void)state;
	assert_int_equal(detail_day(&r->lines[0], &r->lines[0].days[0], w, ARRAY_LEN(w), &rows), ARRAY_LEN(w));
	check_sums(&r->lines[0], &r->lines[0].days[0], rows, ARRAY_LEN(w));
	assert_true(rows[0].quantity != rows[0].ngh);
}

static void
what_nobody_held_is_a_row_of_nobody(void **state)
{
	const struct usage_day day = ROW(0, CHARGE_DEDICATED, "", .unit_ns = 4 * GPU_HOUR);
	const struct rating_input in = {NOVEMBER_2026, .books = &book, .book_count = 1, .days = &day, .day_count = 1};
	owned(rated) struct rated *r = rate(&in);
	owned(mem) struct detail_row *rows = NULL;

	(void)state;
	assert_false(detail_has_workloads(&r->lines[0]));
	assert_int_equal(detail_day(&r->lines[0], &r->lines[0].days[0], NULL, 0, &rows), 1);
	assert_null(rows[0].workload);
	check_sums(&r->lines[0], &r->lines[0].days[0], rows, 1);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(thirds_of_a_day_add_up_to_it),
		cmocka_unit_test(what_is_not_priced_by_its_hours_adds_up_for_itself),
		cmocka_unit_test(what_nobody_held_is_a_row_of_nobody),
	};

	return cmocka_run_group_tests_name("detail", tests, NULL, NULL);
}
