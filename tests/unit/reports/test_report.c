/* tests/unit/reports/test_report.c - the chargeback report: its columns, its escaping, and one whole month byte by byte. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "aggregator/core/reports/manifest.h"
#include "aggregator/core/reports/chargeback.h"
#include "common/conf/json.h"
#include "tests/support/harness/golden.h"
#include "tests/support/billing/rates.h"

#define REPORT_MAX (1u << 20)
#define KWH_MJ INT64_C(3600000000)

static const char header[] =
	"period_start,period_end,period_status,invoice_id,invoice_version,line_id,cluster,tenant,cost_center,workspace,"
	"charge_type,category,sku,gpu_model,mig_profile,sharing_mode,class,allocated_gpu_hours,used_gpu_hours,"
	"idle_gpu_hours,unmeasured_gpu_hours,unknown_gpu_hours,measured_ratio,quantity,unit,unit_price,price_version,"
	"list_cost,discount,rounding,billed_cost,currency,energy_kwh,counterparty,description,correction_of\r\n";

/* A month with every kind of line that usage makes, and texts that a CSV reader can trip over. */
static const struct rating_item november_items[] = {
	{.sku = "", .gpu_model = "H100-80GB", .klass = "on-demand", .price = CENTS(320)},
	{.sku = "", .gpu_model = "A100-80GB", .mig_profile = "1g.10gb", .price = CENTS(35)},
	{.sku = "", .gpu_model = "A100-80GB", .price = CENTS(210)},
};
static const struct rating_item late_items[] = {{.sku = "GPU-TOP", .gpu_model = "H100-80GB", .price = 3333333333}};
static const struct rating_book books[] = {
	{.version = "2026-11", .currency = "EUR", .items = november_items, .item_count = ARRAY_LEN(november_items)},
	{.version = "2026-11b", .currency = "EUR", .items = late_items, .item_count = ARRAY_LEN(late_items)},
};

#define DAY(n, tenant_, center_, ws_, model_, profile_, mode_, units_, book_, used_, idle_, unmeasured_, mj_)        \
	{                                                                                                            \
		.day = (n), .cluster = "demo", .tenant = (tenant_), .cost_center = (center_), .workspace = (ws_),    \
		.gpu_model = (model_), .mig_profile = (profile_), .sharing_mode = (mode_), .klass = "on-demand",     \
		.instance_units = (units_), .price_book = (book_), .used_unit_ns = (used_), .idle_unit_ns = (idle_), \
		.unmeasured_unit_ns = (unmeasured_), .energy_mj = (mj_)                                              \
	}
static const struct usage_day days[] = {
	DAY(1, "acme", "=4711", "training", "H100-80GB", "", "exclusive", 5040, 0, 100 * GPU_HOUR / 3,
            50 * GPU_HOUR / 7, 0, 20 * KWH_MJ),
	DAY(2, "acme", "=4711", "training", "H100-80GB", "", "exclusive", 5040, 0, 7 * GPU_HOUR, 0, 0,
            3 * KWH_MJ + 1800),
	DAY(2, "acme", "=4711", "training", "H100-80GB", "", "exclusive", 5040, 1, GPU_HOUR, GPU_HOUR / 2, 0, KWH_MJ),
	DAY(1, "acme", "=4711", "inference", "A100-80GB", "1g.10gb", "mig", 675, 0, 0, 0, 24 * 675 * (int128)HOUR_NS,
            0),
	DAY(1, "acme", "=4711", "inference", "A100-80GB", "3g.40gb", "mig", 2340, 0, 0, 2340 * (int128)HOUR_NS,
            2340 * (int128)HOUR_NS, 0),
	DAY(1, "globex", "R&D, \"east\"", "research", "L40S-48GB", "", "timeslice", 5040, 0, GPU_HOUR / 4, 0, 0,
            5 * KWH_MJ),
	DAY(3, "globex", "R&D, \"east\"", "research", "H100-80GB", "", "exclusive", 5040, 0, GPU_HOUR / 3, 0, 0, 0),
};

static const struct rating_input november = {
	NOVEMBER_2026, .books = books, .book_count = ARRAY_LEN(books), .days = days, .day_count = ARRAY_LEN(days),
};

static void
a_month_is_the_golden_file(void **state)
{
	owned(rated) struct rated *r = rate(&november);
	in_place(buf) struct buf out;
	struct err err = {0};

	(void)state;
	buf_init(&out, REPORT_MAX);
	if (!report_csv(&november, r, &out, &err) || !golden_check("report.csv", buf_text(&out), out.len, &err))
		fail_msg("%s", err.text);
}

static void
an_empty_month_is_a_header_of_the_contracts_columns(void **state)
{
	struct rating_input in = november;
	in_place(buf) struct buf out;
	struct err err = {0};

	(void)state;
	in.day_count = 0;
	owned(rated) struct rated *r = rate(&in);
	buf_init(&out, REPORT_MAX);
	assert_true(report_csv(&in, r, &out, &err));
	assert_string_equal(buf_text(&out), header);
}

static void
fields_are_quoted_only_where_they_must_be(void **state)
{
	static const struct {
		const char *name, *in, *field, *text_field;
	} rows[] = {
		{"plain text stays", "training", "training", "training"},
		{"nothing stays nothing", "", "", ""},
		{"a comma needs quotes", "a,b", "\"a,b\"", "\"a,b\""},
		{"a quote is doubled", "a\"b", "\"a\"\"b\"", "\"a\"\"b\""},
		{"a line end needs quotes", "a\r\nb", "\"a\r\nb\"", "\"a\r\nb\""},
		{"spaces stay as they are", " a ", " a ", " a "},
		{"a formula becomes text", "=1+1", "=1+1", "'=1+1"},
		{"a plus becomes text", "+1", "+1", "'+1"},
		{"a minus becomes text, in text columns only", "-1", "-1", "'-1"},
		{"an at sign becomes text", "@SUM(A1)", "@SUM(A1)", "'@SUM(A1)"},
		{"a tab becomes text", "\t=1", "\t=1", "'\t=1"},
		{"a carriage return becomes text inside the quotes", "\r=1", "\"\r=1\"", "\"'\r=1\""},
		{"a formula with a comma gets both", "=A1,B1", "\"=A1,B1\"", "\"'=A1,B1\""},
		{"a sign further on is no formula", "a=1", "a=1", "a=1"},
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		in_place(buf) struct buf plain, text;

		buf_init(&plain, 100);
		buf_init(&text, 100);
		csv_field(&plain, rows[i].in);
		csv_text_field(&text, rows[i].in);
		if (strcmp(buf_text(&plain), rows[i].field) != 0 || strcmp(buf_text(&text), rows[i].text_field) != 0)
			fail_msg("%s: %s and %s", rows[i].name, buf_text(&plain), buf_text(&text));
	}
}

static void
a_negative_number_is_not_a_formula(void **state)
{
	/* a third of an hour at 3.20 rounds down: the rounding column is negative and must stay a number */
	owned(rated) struct rated *r = rate(&november);
	in_place(buf) struct buf out;
	struct err err = {0};

	(void)state;
	buf_init(&out, REPORT_MAX);
	assert_true(report_csv(&november, r, &out, &err));
	assert_non_null(strstr(buf_text(&out), ",-0.00"));
	assert_null(strstr(buf_text(&out), ",'-"));
	assert_non_null(strstr(buf_text(&out), ",'=4711,"));
}

static void
json_says_the_same_as_csv_and_adds_up(void **state)
{
	owned(rated) struct rated *r = rate(&november);
	owned(json) json_t *doc = NULL;
	in_place(buf) struct buf out;
	struct err err = {0};
	const json_t *lines, *totals;
	int128 acme = 0, billed, total;

	(void)state;
	buf_init(&out, REPORT_MAX);
	assert_true(report_json(&november, r, &out, &err));
	if (!json_parse("report", buf_text(&out), out.len, &doc, &err))
		fail_msg("%s", err.text);
	lines = json_object_get(doc, "lines");
	totals = json_object_get(doc, "totals");
	assert_int_equal(json_array_size(lines), r->count);
	assert_int_equal(json_array_size(totals), 2);
	for (size_t i = 0; i < json_array_size(lines); i++) {
		const json_t *line = json_array_get(lines, i);

		assert_int_equal(json_object_size(line), 36);
		assert_string_equal(json_string_value(json_object_get(line, "line_id")), r->lines[i].line_id);
		assert_true(decimal_parse(json_string_value(json_object_get(line, "billed_cost")), 2, &billed, &err));
		assert_true(billed == r->lines[i].billed);
		if (strcmp(r->lines[i].tenant, "acme") == 0)
			acme += billed;
	}
	assert_string_equal(json_string_value(json_object_get(json_array_get(totals, 0), "tenant")), "acme");
	assert_true(decimal_parse(json_string_value(json_object_get(json_array_get(totals, 0), "billed_cost")), 2,
	                          &total, &err));
	assert_true(total == acme);
}

static void
yen_have_no_decimal_point(void **state)
{
	static const struct rating_item item = {.sku = "", .price = (int128)500 * 1000000000};
	static const struct rating_book yen = {.version = "v1", .currency = "JPY", .items = &item, .item_count = 1};
	static const struct usage_day day = DAY(1, "acme", "", "training", "H100-80GB", "", "exclusive", 5040, 0,
	                                        GPU_HOUR / 2 + GPU_HOUR / 1000, 0, 0, 0);
	struct rating_input in = november;
	in_place(buf) struct buf out;
	struct err err = {0};

	(void)state;
	in.books = &yen;
	in.book_count = 1;
	in.days = &day;
	in.day_count = 1;
	owned(rated) struct rated *r = rate(&in);
	buf_init(&out, REPORT_MAX);
	assert_true(report_csv(&in, r, &out, &err));
	assert_non_null(strstr(buf_text(&out), ",0.501000000,gpu-hour,500,v1,250.5,0,-0.5,250,JPY,"));
}

static void
a_spreadsheet_gets_the_same_numbers_with_a_comma(void **state)
{
	owned(rated) struct rated *r = rate(&november);
	in_place(buf) struct buf out;
	struct err err = {0};

	(void)state;
	buf_init(&out, REPORT_MAX);
	report_csv_header(CSV_EXCEL, &out);
	assert_true(report_csv_rows(&november, r, CSV_EXCEL, &out, &err));
	assert_memory_equal(buf_text(&out), "\xef\xbb\xbfperiod_start;period_end;", 3 + 24);
	assert_non_null(strstr(buf_text(&out), "\r\n\"2026-11-01\";\"2026-12-01\";\"open\";"));
	/* neither a date nor a formula */
	assert_non_null(strstr(buf_text(&out), ";\"=\"\"2026-11\"\"\";"));
	assert_non_null(strstr(buf_text(&out), ";\"'=4711\";"));
	assert_non_null(strstr(buf_text(&out), ";\"R&D, \"\"east\"\"\";"));
	assert_non_null(strstr(buf_text(&out), ";3,20;"));
	assert_null(strstr(buf_text(&out), ";3.20;"));
}

static void
a_manifest_has_the_sums_of_all_pieces(void **state)
{
	owned(rated) struct rated *r = rate(&november);
	const struct manifest_document doc = {.name = "2026-11.csv", .period = "2026-11", .period_status = "open"};
	struct manifest m = {0};
	in_place(buf) struct buf out;
	owned(json) json_t *json = NULL;
	const json_t *total;
	int128 billed = 0, told;
	struct err err = {0};

	(void)state;
	buf_init(&out, REPORT_MAX);
	for (size_t i = 0; i < r->count; i++)
		billed += 2 * r->lines[i].billed;
	assert_true(manifest_add(&m, &november, r, 7, &err) && manifest_add(&m, &november, r, 8, &err));
	manifest_json(&m, &doc, &out);
	if (!json_parse("manifest", buf_text(&out), out.len, &json, &err))
		fail_msg("%s", err.text);
	assert_int_equal(json_integer_value(json_object_get(json, "rows")), 15);
	assert_int_equal(json_integer_value(json_object_get(json, "chargeback_lines")), 2 * r->count);
	assert_true(json_is_null(json_object_get(json, "tenant")));
	assert_int_equal(json_array_size(json_object_get(json, "sums")), 1);
	total = json_array_get(json_object_get(json, "sums"), 0);
	assert_true(decimal_parse(json_string_value(json_object_get(total, "billed_cost")), 2, &told, &err));
	assert_true(told == billed);
}

static void
a_report_beyond_its_ceiling_is_refused(void **state)
{
	owned(rated) struct rated *r = rate(&november);
	in_place(buf) struct buf csv, json;
	struct err err = {0};

	(void)state;
	buf_init(&csv, 1000);
	buf_init(&json, 1000);
	assert_false(report_csv(&november, r, &csv, &err));
	assert_non_null(strstr(err.text, "report"));
	assert_false(report_json(&november, r, &json, &err));
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_month_is_the_golden_file),
		cmocka_unit_test(an_empty_month_is_a_header_of_the_contracts_columns),
		cmocka_unit_test(fields_are_quoted_only_where_they_must_be),
		cmocka_unit_test(a_negative_number_is_not_a_formula),
		cmocka_unit_test(json_says_the_same_as_csv_and_adds_up),
		cmocka_unit_test(yen_have_no_decimal_point),
		cmocka_unit_test(a_spreadsheet_gets_the_same_numbers_with_a_comma),
		cmocka_unit_test(a_manifest_has_the_sums_of_all_pieces),
		cmocka_unit_test(a_report_beyond_its_ceiling_is_refused),
	};

	return cmocka_run_group_tests_name("report", tests, NULL, NULL);
}
