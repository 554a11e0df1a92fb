/* tests/unit/reports/test_focus.c - FOCUS rows: one month byte by byte, and what its costs add up to. */
#include <string.h>

#include "tests/support/billing/rates.h"

#include "aggregator/core/rating/amortise.h"
#include "aggregator/core/reports/focus.h"
#include "tests/support/harness/golden.h"

#define EXPORT_MAX (1u << 20)

static const struct rating_item items[] = {
	{.sku = "", .klass = "reserved", .price = CENTS(200)},
	{.sku = "", .klass = "on-demand", .price = CENTS(300)},
	{.sku = "", .klass = "borrowed", .price = CENTS(150)},
	{.sku = "", .meter = "storage", .price = 123456},
};
static const struct rating_discount discount = {.tenant = "globex", .ratio = 100000000};
static const struct rating_site site = {.cluster = "main", .energy_price = CENTS(30)};
static const struct rating_book book = {.version = "2026-11",
                                        .currency = "EUR",
                                        .items = items,
                                        .item_count = ARRAY_LEN(items),
                                        .discounts = &discount,
                                        .discount_count = 1,
                                        .sites = &site,
                                        .site_count = 1,
                                        .lender_ratio = 800000000};

#define ROW(n, kind_, tenant_, class_, ...)                                                                  \
	{                                                                                                    \
		.day = (n), .kind = (kind_), .cluster = "main", .tenant = (tenant_), .cost_center = "47,11", \
		.workspace = "w", .gpu_model = "H100-80GB", .mig_profile = "", .sharing_mode = "exclusive",  \
		.klass = (class_), .instance_units = 5040, __VA_ARGS__                                       \
	}
/* Two days of the worked example, the second one with thirds of hours. */
#define EXAMPLE(n, hour)                                                                                               \
	ROW(n, CHARGE_COMMITMENT, "acme", "", .unit_ns = 4 * (hour), .reservation = 1),                                \
		ROW(n, CHARGE_COVERED, "acme", "", .used_unit_ns = (hour), .reservation = 1, .energy_mj = 7200000000), \
		ROW(n, CHARGE_UNUSED, "acme", "", .unit_ns = 2 * (hour), .reservation = 1),                            \
		ROW(n, CHARGE_LENT, "acme", "", .idle_unit_ns = (hour), .reservation = 1, .counterparty = "globex"),   \
		ROW(n, CHARGE_USAGE, "globex", "on-demand", .used_unit_ns = 2 * (hour)),                               \
		ROW(n, CHARGE_USAGE, "globex", "borrowed", .idle_unit_ns = (hour))
static const struct usage_day days[] = {
	EXAMPLE(0, GPU_HOUR),
	EXAMPLE(1, GPU_HOUR / 3),
	{.day = 1,
         .kind = CHARGE_METER,
         .cluster = "main",
         .tenant = "globex",
         .cost_center = "",
         .workspace = "w",
         .gpu_model = "",
         .mig_profile = "",
         .sharing_mode = "",
         .klass = "",
         .meter = "storage",
         .meter_sku = "nvme",
         .category = "storage",
         .unit = "GB-hour",
         .quantity = 1000500000000},
};
static const struct rating_input november = {NOVEMBER_2026, .books = &book, .book_count = 1, .days = days,
                                             .day_count = ARRAY_LEN(days)};
/* A month of Berlin. */
static const char *const bounds[] = {"2026-10-31T23:00:00Z", "2026-11-01T23:00:00Z", "2026-11-02T23:00:00Z"};
static const struct focus_input focus = {.in = &november,
                                         .account_id = "org/1",
                                         .account_name = "Example, Inc.",
                                         .provider = "Platform Team",
                                         .period_start = "2026-10-31T23:00:00Z",
                                         .period_end = "2026-11-30T23:00:00Z",
                                         .day_bounds = bounds,
                                         .day_count = 2};

static void
a_month_is_the_golden_file(void **state)
{
	owned(rated) struct rated *r = rate(&november);
	in_place(buf) struct buf out;
	struct err err = {0};

	(void)state;
	buf_init(&out, EXPORT_MAX);
	focus_header(FOCUS_1_2, &out);
	if (!focus_rows(&focus, r, &out, &err) || !golden_check("focus.csv", buf_text(&out), out.len, &err))
		fail_msg("%s", err.text);
}

static void
effective_costs_add_up_to_what_was_billed_and_a_purchase_has_none(void **state)
{
	owned(rated) struct rated *r = rate(&november);
	int128 acme = 0, billed = 0, covered = 0, purchase = 0, amortised = 0;

	(void)state;
	for (size_t i = 0; i < r->count; i++)
		for (size_t d = 0; d < r->lines[i].day_count; d++) {
			const struct rated_line *l = &r->lines[i];
			int128 effective = rated_effective(l, &l->days[d]);

			if (l->kind == CHARGE_COMMITMENT) {
				assert_true(effective == 0);
				purchase += l->days[d].billed;
			}
			if (l->kind == CHARGE_COVERED && d == 0)
				covered += effective;
			if (strcmp(l->tenant, "globex") == 0)
				assert_true(effective == l->days[d].billed);
			else {
				acme += effective;
				billed += l->days[d].billed;
				amortised += l->days[d].amortised;
			}
		}
	assert_true(acme == billed);
	assert_true(covered == 200); /* one hour of four at 2.00 */
	assert_true(amortised == purchase);
}

static void
cents_of_a_day_without_hours_go_to_the_hours_of_the_month(void **state)
{
	/* Of the first day only the commitment is there, of the second only a part of it. */
	struct rated_day bought = {.day = 0, .billed = 500, .ngh = 7}, used = {.day = 1, .ngh = 3},
			 lost = {.day = 1, .ngh = 2};
	struct rated_line lines[] = {
		{.kind = CHARGE_COMMITMENT, .days = &bought, .day_count = 1},
		{.kind = CHARGE_COVERED, .days = &used, .day_count = 1},
		{.kind = CHARGE_UNDELIVERED, .days = &lost, .day_count = 1},
	};
	struct rated r = {.lines = lines, .count = ARRAY_LEN(lines)};

	(void)state;
	for (size_t i = 0; i < r.count; i++)
		lines[i].tenant = lines[i].workspace = lines[i].cluster = lines[i].gpu_model = lines[i].price_version =
			lines[i].currency = "x";
	rated_amortise(&r);
	assert_true(bought.amortised == 0 && used.amortised == 300 && lost.amortised == 200);
	r.count = 1;
	rated_amortise(&r);
	assert_true(rated_effective(&lines[0], &bought) == 500); /* nothing became of it */
}

static void
periods_are_open_until_they_are_closed(void **state)
{
	static const struct focus_period periods[] = {
		{"2026-09-30T22:00:00Z", "2026-10-31T23:00:00Z", "closed", "2026-11-04T08:00:00Z", "2026-10-01"},
		{"2026-10-31T23:00:00Z", "2026-11-30T23:00:00Z", "grace", "", "2026-11-01"},
	};
	in_place(buf) struct buf out;

	(void)state;
	buf_init(&out, EXPORT_MAX);
	focus_periods(&focus, periods, ARRAY_LEN(periods), &out);
	assert_string_equal(
		buf_text(&out),
		"BillingPeriodCreated,BillingPeriodEnd,BillingPeriodLastUpdated,BillingPeriodStart,BillingPeriodStatus,"
		"InvoiceIssuerName,x_BillingPeriodClosed\r\n"
		"2026-09-30T22:00:00Z,2026-10-31T23:00:00Z,2026-11-04T08:00:00Z,2026-09-30T22:00:00Z,Closed,Platform Team,"
		"2026-11-04T08:00:00Z\r\n"
		"2026-10-31T23:00:00Z,2026-11-30T23:00:00Z,2026-10-31T23:00:00Z,2026-10-31T23:00:00Z,Open,Platform Team,\r\n");
}

static void
texts_are_ascii_and_json_loses_nothing(void **state)
{
	static const struct {
		const char *text, *plain, *json;
	} rows[] = {
		{"plain, 1 & 2", "plain, 1 & 2", "plain, 1 & 2"},
		{"Söhne Straße Ærø Łódź", "Soehne Strasse AEro Lodz",
	         "S\\u00f6hne Stra\\u00dfe \\u00c6r\\u00f8 \\u0141\\u00f3d\\u017a"},
		{"中", "U+4E2D", "\\u4e2d"},
		{"😀", "U+1F600", "\\ud83d\\ude00"},
		{"a\xff\xc3", "a??", "a??"},
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(rows); i++)
		for (int json = 0; json < 2; json++) {
			in_place(buf) struct buf out;

			buf_init(&out, 256);
			ascii_text(&out, rows[i].text, json != 0);
			assert_string_equal(buf_text(&out), json != 0 ? rows[i].json : rows[i].plain);
			assert_true(is_ascii(buf_text(&out)));
		}
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(texts_are_ascii_and_json_loses_nothing),
		cmocka_unit_test(a_month_is_the_golden_file),
		cmocka_unit_test(cents_of_a_day_without_hours_go_to_the_hours_of_the_month),
		cmocka_unit_test(effective_costs_add_up_to_what_was_billed_and_a_purchase_has_none),
		cmocka_unit_test(periods_are_open_until_they_are_closed),
	};

	return cmocka_run_group_tests_name("focus", tests, NULL, NULL);
}
