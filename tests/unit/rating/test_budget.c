/* tests/unit/rating/test_budget.c - budgets against a month, and what the month will come to. */
#include "aggregator/core/rating/budget.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/time.h"
#include "common/base/units.h"

#define ONE ((int128)1000000000) /* of money or of hours */
#define DAYS 30

/* A month of 30 days of 24 hours, of which each day until now took `each`. */
static void
month_of(struct forecast_day days[DAYS], int128 each, int until)
{
	for (int i = 0; i < DAYS; i++)
		days[i] = (struct forecast_day){i * NS_PER_DAY, (i + 1) * NS_PER_DAY, i < until ? each : 0};
}

static void
forecasts_say_what_they_are_based_on(void **state)
{
	static const struct {
		const char *name;
		int full, half; /* days that are over, and half of another */
		int64_t each, once, expected;
		const char *method;
	} rows[] = {
		{"a month that has not begun has nothing to go by", 0, 0, 10, 0, 0, "none"},
		{"half a day is taken for the month, pro rata", 0, 1, 10, 0, 300, "pro-rata"},
		{"six days are pro rata", 6, 0, 10, 0, 300, "pro-rata"},
		{"seven days are a mean", 7, 0, 10, 0, 300, "7-day-mean"},
		{"what comes once is not multiplied pro rata", 6, 0, 10, 1000, 1300, "pro-rata"},
		{"what comes once is not multiplied by a mean", 20, 0, 10, -70, 230, "7-day-mean"},
		{"a month that is over is what it was", 30, 0, 10, 5, 305, "over"},
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		struct forecast_day days[DAYS];
		struct forecast_input in = {.end_ns = DAYS * NS_PER_DAY, .days = days, .count = DAYS};
		struct forecast f;

		month_of(days, rows[i].each, rows[i].full);
		if (rows[i].half)
			days[rows[i].full].amount = rows[i].each / 2;
		in.now_ns = rows[i].full * NS_PER_DAY + rows[i].half * NS_PER_DAY / 2;
		in.once = rows[i].once;
		assert_true(forecast_run(&in, &f));
		if (f.amount != rows[i].expected || strcmp(f.method, rows[i].method) != 0)
			fail_msg("%s: %" PRId64 " by %s", rows[i].name, (int64_t)f.amount, f.method);
	}
}

/* 10 a day from the first hour on: days before it are no days of nothing. */
static void
a_young_ledger_is_foreseen_from_its_first_hour(void **state)
{
	static const struct {
		const char *name;
		int64_t first_hours, now_hours; /* since the month began */
		int64_t expected;
		const char *method;
	} rows[] = {
		{"a ledger that is older than the month", 0, 48, 300, "pro-rata"},
		{"one that began in the middle", 15 * 24, 16 * 24, 150, "pro-rata-since-first-hour"},
		{"one that begins this hour", 15 * 24, 15 * 24, 0, "none"},
		{"one that began at noon, so that the first day is no full one", 12, 7 * 24, 295,
	         "pro-rata-since-first-hour"},
		{"with seven full days behind that", 12, 8 * 24, 295, "7-day-mean"},
		{"a month that is over", 29 * 24, 30 * 24, 10, "over"},
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		struct forecast_day days[DAYS];
		struct forecast_input in = {.end_ns = DAYS * NS_PER_DAY, .days = days, .count = DAYS};
		struct forecast f;

		in.first_ns = rows[i].first_hours * NS_PER_HOUR;
		in.now_ns = rows[i].now_hours * NS_PER_HOUR;
		for (int d = 0; d < DAYS; d++) {
			int64_t from = d * NS_PER_DAY > in.first_ns ? d * NS_PER_DAY : in.first_ns;
			int64_t to = (d + 1) * NS_PER_DAY < in.now_ns ? (d + 1) * NS_PER_DAY : in.now_ns;

			days[d] = (struct forecast_day){d * NS_PER_DAY, (d + 1) * NS_PER_DAY,
			                                to > from ? 10 * (to - from) / NS_PER_DAY : 0};
		}
		assert_true(forecast_run(&in, &f));
		if (f.amount != rows[i].expected || strcmp(f.method, rows[i].method) != 0)
			fail_msg("%s: %" PRId64 " by %s", rows[i].name, (int64_t)f.amount, f.method);
	}
}

static void
only_the_last_seven_days_count_for_the_time_left(void **state)
{
	struct forecast_day days[DAYS];
	struct forecast_input in = {
		.end_ns = DAYS * NS_PER_DAY, .now_ns = 10 * NS_PER_DAY, .days = days, .count = DAYS};
	struct forecast f;

	(void)state;
	month_of(days, 7, 10);
	days[0].amount = days[1].amount = days[2].amount = 100;
	assert_true(forecast_run(&in, &f));
	assert_true(f.amount == 300 + 7 * 7 + 20 * 7);
	assert_string_equal(forecast_method_text(f.method), "mean of the last 7 full days x the time left");
}

static void
a_day_of_25_hours_is_no_longer_at_the_same_rate(void **state)
{
	struct forecast_day days[DAYS];
	struct forecast_input in = {.end_ns = DAYS * NS_PER_DAY + NS_PER_HOUR,
	                            .now_ns = 10 * NS_PER_DAY + NS_PER_HOUR,
	                            .days = days,
	                            .count = DAYS};
	struct forecast f;

	(void)state;
	month_of(days, 24, 10);
	days[9].to_ns += NS_PER_HOUR;
	days[9].amount = 25;
	for (int i = 10; i < DAYS; i++) {
		days[i].from_ns += NS_PER_HOUR;
		days[i].to_ns += NS_PER_HOUR;
	}
	assert_true(forecast_run(&in, &f));
	assert_true(f.amount == DAYS * 24 + 1);
}

static void
thresholds_are_reached_at_their_percentage(void **state)
{
	static const struct {
		const char *name;
		int64_t consumed;
		int threshold;
		int64_t millionths;
	} rows[] = {
		{"nothing", 0, 0, 0},          {"a little", 22, 0, 220},
		{"a credit", -5, 0, 0},        {"just below half", 49999, 0, 499990},
		{"half", 50000, 50, 500000},   {"below 80", 79999, 50, 799990},
		{"80", 80000, 80, 800000},     {"below all", 99999, 80, 999990},
		{"all", 100000, 100, 1000000}, {"far above", 1000000, 100, 10000000},
	};
	const struct budget b = {.tenant = "acme", .workspace = "", .kind = "soft", .unit = "EUR", .limit = 100 * ONE};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		const struct forecast_day day = {0, NS_PER_DAY, rows[i].consumed * (ONE / 1000)};
		const struct forecast_input in = {.end_ns = NS_PER_DAY, .now_ns = NS_PER_DAY, .days = &day, .count = 1};
		struct budget_state s;
		struct err err = {0};

		assert_true(budget_judge(&b, &in, &s, &err));
		if (s.threshold != rows[i].threshold || s.millionths != rows[i].millionths ||
		    s.forecast_breach != (rows[i].consumed > 100000))
			fail_msg("%s: %d %%, %" PRId64 " millionths", rows[i].name, s.threshold, (int64_t)s.millionths);
	}
}

/* A cent to spend, and 10^12 spent: the ratio in millionths is beyond 64 bits. */
static void
a_ratio_beyond_64_bits_is_told(void **state)
{
	const struct budget b = {.tenant = "acme", .workspace = "", .kind = "soft", .unit = "EUR", .limit = ONE / 100};
	const struct forecast_day day = {0, NS_PER_DAY, (int128)1000000000000 * ONE};
	const struct forecast_input in = {.end_ns = NS_PER_DAY, .now_ns = NS_PER_DAY, .days = &day, .count = 1};
	struct budget_state s;
	struct err err = {0};

	(void)state;
	assert_true(budget_judge(&b, &in, &s, &err));
	assert_true(s.millionths == pow10_i128(20));
}

static struct usage_day
used(int day, const char *workspace, int hours)
{
	return (struct usage_day){.day = day,
	                          .kind = CHARGE_USAGE,
	                          .cluster = "main",
	                          .tenant = "acme",
	                          .cost_center = "",
	                          .workspace = workspace,
	                          .gpu_model = "H100-80GB",
	                          .mig_profile = "",
	                          .sharing_mode = "exclusive",
	                          .klass = "on-demand",
	                          .instance_units = UNITS_PER_GPU,
	                          .used_unit_ns = (int128)hours * UNITS_PER_GPU * NS_PER_HOUR};
}

static struct usage_day
tokens(int day, const char *meter, int64_t count)
{
	return (struct usage_day){.day = day,
	                          .kind = CHARGE_METER,
	                          .cluster = "",
	                          .tenant = "acme",
	                          .cost_center = "",
	                          .workspace = "a",
	                          .gpu_model = "",
	                          .mig_profile = "",
	                          .sharing_mode = "",
	                          .klass = "",
	                          .category = "inference",
	                          .meter = meter,
	                          .unit = "token",
	                          .meter_sku = "llm",
	                          .quantity = count * ONE};
}

static void
money_hours_and_tokens_are_those_of_the_report(void **state)
{
	const struct rating_item items[] = {
		{.sku = "", .price = 3 * ONE},
		{.sku = "", .meter = "inference-input-tokens", .price = 2 * ONE, .per = 1000000},
	};
	const struct rating_book book = {
		.version = "1", .currency = "EUR", .items = items, .item_count = ARRAY_LEN(items)};
	struct usage_day rows[] = {used(0, "a", 2),
	                           used(1, "a", 1),
	                           used(1, "b", 5),
	                           {.kind = CHARGE_ADJUSTMENT,
	                            .cluster = "",
	                            .tenant = "acme",
	                            .cost_center = "",
	                            .workspace = "",
	                            .gpu_model = "",
	                            .mig_profile = "",
	                            .sharing_mode = "",
	                            .klass = "",
	                            .price_book = -1,
	                            .category = "other",
	                            .unit = "charge",
	                            .meter_sku = "adjustment-1",
	                            .quantity = ONE,
	                            .amount = -4 * ONE,
	                            .currency = "EUR",
	                            .reason = "goodwill"},
	                           tokens(0, "inference-input-tokens", 1500000),
	                           tokens(1, "inference-output-tokens", INT64_C(2000000000001))};
	const struct rating_input in = {.period = "2026-11",
	                                .period_start = "2026-11-01",
	                                .period_end = "2026-11-03",
	                                .period_status = "open",
	                                .currency = "EUR",
	                                .invoice_version = 1,
	                                .books = &book,
	                                .book_count = 1,
	                                .days = rows,
	                                .day_count = ARRAY_LEN(rows)};
	const struct budget money = {"acme", "", "hard", "EUR", 100 * ONE}, other = {"acme", "", "soft", "USD", ONE},
			    hours = {"acme", "a", "soft", "", 10 * ONE}, count = {"acme", "", "soft", "token", ONE};
	struct forecast_day m[2] = {{0}}, h[2] = {{0}}, o[2] = {{0}}, t[2] = {{0}};
	int128 m_once = 0, h_once = 0, o_once = 0, t_once = 0;
	owned(rated) struct rated *r = NULL;
	struct err err = {0};

	(void)state;
	assert_true(rating_run(&in, &r, &err));
	assert_true(budget_consume(&money, r, m, 2, &m_once, &err));
	assert_true(m[0].amount == 9 * ONE && m[1].amount == 18 * ONE && m_once == -4 * ONE);
	assert_true(budget_consume(&hours, r, h, 2, &h_once, &err));
	assert_true(h[0].amount == 2 * ONE && h[1].amount == ONE && h_once == 0);
	assert_true(budget_consume(&other, r, o, 2, &o_once, &err));
	assert_true(o[0].amount == 0 && o[1].amount == 0 && o_once == 0);
	assert_true(budget_consume(&count, r, t, 2, &t_once, &err)); /* with a price for a million, and without one */
	assert_true(t[0].amount == 1500000 * ONE && t[1].amount == INT64_C(2000000000001) * ONE && t_once == 0);
	assert_false(budget_consume(&money, r, m, 1, &m_once, &err));
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(forecasts_say_what_they_are_based_on),
		cmocka_unit_test(a_young_ledger_is_foreseen_from_its_first_hour),
		cmocka_unit_test(only_the_last_seven_days_count_for_the_time_left),
		cmocka_unit_test(a_day_of_25_hours_is_no_longer_at_the_same_rate),
		cmocka_unit_test(thresholds_are_reached_at_their_percentage),
		cmocka_unit_test(a_ratio_beyond_64_bits_is_told),
		cmocka_unit_test(money_hours_and_tokens_are_those_of_the_report),
	};

	return cmocka_run_group_tests_name("budget", tests, NULL, NULL);
}
