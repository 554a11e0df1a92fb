/* tests/unit/rating/test_correction.c - a closed month computed again: what is more or less than was billed. */
#include "aggregator/core/rating/correction.h"

#include <stdio.h>
#include <string.h>

#include "common/base/base.h"
#include "tests/support/billing/rates.h"

static const struct rating_item items[] = {{.sku = "", .price = CENTS(333)}};
static const struct rating_book book = {.version = "v1", .currency = "EUR", .items = items, .item_count = 1};

static struct usage_day
day_of(const char *workspace, int64_t milli_hours)
{
	return (struct usage_day){.kind = CHARGE_USAGE,
	                          .cluster = "c",
	                          .tenant = "acme",
	                          .cost_center = "",
	                          .workspace = workspace,
	                          .gpu_model = "H100-80GB",
	                          .mig_profile = "",
	                          .sharing_mode = "exclusive",
	                          .klass = "on-demand",
	                          .instance_units = 5040,
	                          .used_unit_ns = GPU_HOUR / 1000 * milli_hours};
}

static struct rated *
month_of(const struct usage_day *days, size_t n)
{
	return rate(
		&(struct rating_input){NOVEMBER_2026, .books = &book, .book_count = 1, .days = days, .day_count = n});
}

static void
correct(const struct rated *now, const struct rated *billed, struct corrections *c)
{
	const struct correction_input in = {.tenant = "acme",
	                                    .month = "2026-11",
	                                    .period_start = "2026-11-01",
	                                    .period_end = "2026-12-01",
	                                    .billed_in = "2026-12",
	                                    .version = 2,
	                                    .now = now,
	                                    .billed = billed != NULL ? billed->lines : NULL,
	                                    .billed_count = billed != NULL ? billed->count : 0};
	struct err err = {0};

	if (!correction_run(&in, c, &err))
		fail_msg("%s", err.text);
	corrections_sort(c);
}

static int64_t
cents(const struct rated_line *lines, size_t n)
{
	int64_t sum = 0;

	for (size_t i = 0; i < n; i++) {
		assert_true(lines[i].list_cost - lines[i].discount + lines[i].rounding ==
		            lines[i].billed * pow10_i128(COST_SCALE - lines[i].currency_scale));
		sum += (int64_t)lines[i].billed;
	}
	return sum;
}

/* Two workspaces, a and b, in thousandths of a GPU-hour; below 0: no row. */
struct sentence {
	const char *name;
	int64_t billed[2], now[2];
	size_t corrections;
};
static const struct sentence sentences[] = {
	{"where nothing changed there is nothing to correct", {1000, 500}, {1000, 500}, 0},
	{"late usage is one line with what is more", {1000, 2000}, {3000, 2000}, 1},
	{"late usage can move a cent of the rounding to another line", {1000, 500}, {1500, 500}, 2},
	{"usage that was too much is given back", {3000, 2000}, {1000, 2000}, 1},
	{"a line that was not billed is corrected from nothing", {1000, -1}, {1000, 700}, 1},
	{"a line that is no more is taken back whole", {1000, 500}, {1000, -1}, 1},
	{"re-attribution takes from one and gives to the other", {1000, 500}, {800, 700}, 2},
	{"a month that is no more is taken back whole", {1000, 500}, {-1, -1}, 2},
	{"a month that was never billed is billed", {-1, -1}, {1, 2}, 2},
};

static struct rated *
month_of_sentence(const int64_t amount[2])
{
	struct usage_day days[2];
	size_t n = 0;

	for (size_t i = 0; i < 2; i++)
		if (amount[i] >= 0)
			days[n++] = day_of(i == 0 ? "a" : "b", amount[i]);
	return month_of(days, n);
}

static void
invoice_and_corrections_are_the_month_computed_again(void **state)
{
	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(sentences); i++) {
		const struct sentence *s = &sentences[i];
		owned(rated) struct rated *billed = month_of_sentence(s->billed), *now = month_of_sentence(s->now);
		struct corrections c;
		int64_t sum;

		corrections_init(&c);
		correct(now, billed, &c);
		sum = cents(billed->lines, billed->count) + cents(c.lines, c.count);
		if (c.count != s->corrections || sum != cents(now->lines, now->count))
			fail_msg("%s: %zu corrections, %lld cents", s->name, c.count, (long long)sum);
		corrections_fini(&c);
	}
}

/* Of two reserved hours a day one was covered, and now both are: nothing more is billed, and the use costs what was left before. */
static void
a_correction_by_day_moves_what_a_reservation_cost(void **state)
{
	struct usage_day before[6], after[6];
	struct corrections c;
	int128 covered = 0, unused = 0;

	(void)state;
	for (int32_t i = 0; i < 6; i++) {
		before[i] = day_of("a", 0);
		before[i].klass = "";
		before[i].day = 3 * (i / 3);
		before[i].reservation = 1;
		before[i].kind = i % 3 == 0 ? CHARGE_COMMITMENT : i % 3 == 1 ? CHARGE_COVERED : CHARGE_UNUSED;
		before[i].unit_ns = i % 3 == 0 ? 2 * GPU_HOUR : i % 3 == 2 ? GPU_HOUR : 0;
		before[i].used_unit_ns = i % 3 == 1 ? GPU_HOUR : 0;
		after[i] = before[i];
	}
	after[4].used_unit_ns = 2 * GPU_HOUR;
	after[5].unit_ns = 0;
	{
		owned(rated) struct rated *billed = month_of(before, 6), *now = month_of(after, 5);
		const struct correction_input in = {.tenant = "acme",
		                                    .month = "2026-11",
		                                    .period_start = "2026-11-01",
		                                    .period_end = "2026-12-01",
		                                    .billed_in = "2026-12",
		                                    .version = 2,
		                                    .now = now,
		                                    .billed = billed->lines,
		                                    .billed_count = billed->count,
		                                    .by_day = true};
		struct err err = {0};

		corrections_init(&c);
		if (!correction_run(&in, &c, &err))
			fail_msg("%s", err.text);
	}
	assert_int_equal(c.count, 2);
	for (size_t i = 0; i < c.count; i++) {
		in_place(buf) struct buf text = {0};
		struct rated_day *again = NULL;
		size_t n = 0;
		struct err err = {0};

		assert_int_equal(c.lines[i].corrected_day_count, 1);
		assert_int_equal(c.lines[i].corrected_days[0].day, 3);
		*(c.lines[i].kind == CHARGE_COVERED ? &covered : &unused) = c.lines[i].corrected_days[0].amortised;
		buf_init(&text, 4096);
		correction_days_write(&c.lines[i], &text);
		assert_true(correction_days_read(buf_text(&text), &again, &n, &err) && n == 1);
		assert_true(again[0].day == 3 && again[0].amortised == c.lines[i].corrected_days[0].amortised &&
		            again[0].ngh == c.lines[i].corrected_days[0].ngh);
		mem_free(again);
		assert_false(correction_days_read("D\t1\n", &again, &n, &err));
	}
	assert_true(covered == 333 && unused == -333);
	corrections_fini(&c);
}

static void
a_correction_names_its_line_its_month_and_its_document(void **state)
{
	struct usage_day before = day_of("a", 1000), after = day_of("a", 2000);
	owned(rated) struct rated *billed = month_of(&before, 1), *now = month_of(&after, 1);
	const struct rated_line *l;
	struct corrections c;

	(void)state;
	corrections_init(&c);
	correct(now, billed, &c);
	assert_int_equal(c.count, 1);
	l = &c.lines[0];
	assert_string_equal(l->charge_type, "correction");
	assert_string_equal(l->correction_of, billed->lines[0].line_id);
	assert_string_not_equal(l->line_id, l->correction_of);
	assert_string_equal(l->invoice_id, "acme-2026-11-2");
	assert_int_equal(l->invoice_version, 2);
	assert_string_equal(l->period_start, "2026-11-01");
	assert_string_equal(l->period_end, "2026-12-01");
	assert_true(l->quantity == 1000000000 && l->allocated_ngh == 1000000000 && l->billed == 333);
	assert_int_equal(l->day_count, 1);
	assert_true(l->days[0].billed == l->billed);
	corrections_fini(&c);
}

static void
a_correction_outlives_what_it_was_made_from(void **state)
{
	struct usage_day after = day_of("a", 2000);
	struct rated *now = month_of(&after, 1);
	struct corrections c;

	(void)state;
	corrections_init(&c);
	correct(now, NULL, &c);
	rated_free(now);
	assert_string_equal(c.lines[0].workspace, "a");
	assert_string_equal(c.lines[0].sku[0] != '\0' ? c.lines[0].currency : "", "EUR");
	corrections_fini(&c);
}

static void
a_report_has_the_corrections_of_its_tenant_behind_its_lines(void **state)
{
	struct usage_day after = day_of("a", 2000);
	owned(rated) struct rated *now = month_of(&after, 1);
	const struct rated_line *mine = NULL;
	struct rated_view v = {0};
	struct corrections c;

	(void)state;
	corrections_init(&c);
	correct(now, NULL, &c);
	assert_int_equal(corrections_of(&c, "abc", &mine), 0);
	assert_int_equal(corrections_of(&c, "zzz", &mine), 0);
	assert_int_equal(corrections_of(&c, "acme", &mine), 1);
	rated_view_make(&v, now, mine, 1);
	assert_int_equal(v.rated.count, 2);
	assert_null(v.rated.lines[0].correction_of);
	assert_non_null(v.rated.lines[1].correction_of);
	rated_view_fini(&v);
	corrections_fini(&c);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(invoice_and_corrections_are_the_month_computed_again),
		cmocka_unit_test(a_correction_by_day_moves_what_a_reservation_cost),
		cmocka_unit_test(a_correction_names_its_line_its_month_and_its_document),
		cmocka_unit_test(a_correction_outlives_what_it_was_made_from),
		cmocka_unit_test(a_report_has_the_corrections_of_its_tenant_behind_its_lines),
	};

	return cmocka_run_group_tests_name("correction", tests, NULL, NULL);
}
