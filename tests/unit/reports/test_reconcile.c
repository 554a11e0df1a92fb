/* tests/unit/reports/test_reconcile.c - capacity at list price against what was billed: the worked example term by term, and the documents. */
#include <stdio.h>
#include <string.h>

#include "tests/support/billing/rates.h"

#include "aggregator/core/reports/reconcile.h"
#include "common/conf/json.h"
#include "tests/support/harness/golden.h"

#define PAGE_MAX (1u << 20)

static const struct rating_item items[] = {
	{.sku = "", .klass = "reserved", .price = CENTS(200)},
	{.sku = "", .klass = "on-demand", .price = CENTS(300)},
	{.sku = "", .klass = "borrowed", .price = CENTS(150)},
	{.sku = "", .klass = "dedicated", .price = CENTS(110)},
	{.sku = "", .klass = "on-demand", .tenant = "c", .price = CENTS(250)},
};
static const struct rating_discount discounts[] = {{.tenant = "c", .ratio = 100000000}};
static const struct rating_book books[] = {{.version = "2026-11",
                                            .currency = "EUR",
                                            .items = items,
                                            .item_count = ARRAY_LEN(items),
                                            .discounts = discounts,
                                            .discount_count = 1,
                                            .lender_ratio = 800000000,
                                            .platform_cost = CENTS(10000)}};

#define GPU(kind_, tenant_, cluster_, class_, ...)                                                                \
	{                                                                                                         \
		.kind = (kind_), .cluster = (cluster_), .tenant = (tenant_), .cost_center = "", .workspace = "w", \
		.gpu_model = "H100-80GB", .mig_profile = "", .sharing_mode = "exclusive", .klass = (class_),      \
		.instance_units = 5040, __VA_ARGS__                                                               \
	}
/* The pool of 8 GPUs for an hour: A reserves 4 and holds 1, B reserves 2 and holds 5. And two hours of C, who has its own price. */
static const struct usage_day days[] = {
	GPU(CHARGE_COMMITMENT, "a", "<east>", "", .unit_ns = 4 * GPU_HOUR, .reservation = 1),
	GPU(CHARGE_COVERED, "a", "<east>", "", .used_unit_ns = GPU_HOUR, .reservation = 1),
	GPU(CHARGE_UNUSED, "a", "<east>", "", .unit_ns = 2 * GPU_HOUR, .reservation = 1),
	GPU(CHARGE_LENT, "a", "<east>", "", .used_unit_ns = GPU_HOUR, .reservation = 1, .counterparty = "b"),
	GPU(CHARGE_COMMITMENT, "b", "<east>", "", .unit_ns = 2 * GPU_HOUR, .reservation = 2),
	GPU(CHARGE_COVERED, "b", "<east>", "", .used_unit_ns = 2 * GPU_HOUR, .reservation = 2),
	GPU(CHARGE_USAGE, "b", "<east>", "on-demand", .used_unit_ns = 2 * GPU_HOUR),
	GPU(CHARGE_USAGE, "b", "<east>", "borrowed", .used_unit_ns = GPU_HOUR),
	GPU(CHARGE_USAGE, "c", "=west", "on-demand", .idle_unit_ns = 2 * GPU_HOUR),
	GPU(CHARGE_DEDICATED, "c", "=west", "dedicated", .unit_ns = GPU_HOUR),
};
static const struct rating_input november = {NOVEMBER_2026, .books = books, .book_count = ARRAY_LEN(books),
                                             .days = days, .day_count = ARRAY_LEN(days)};
static const struct reconcile_pool pools[] = {
	{.cluster = "<east>",
         .gpu_model = "H100-80GB",
         .price_version = "2026-11",
         .on_demand = 2 * GPU_HOUR,
         .borrowed = GPU_HOUR,
         .covered = 3 * GPU_HOUR,
         .unused = 2 * GPU_HOUR},
	{.cluster = "=west",
         .gpu_model = "H100-80GB",
         .price_version = "2026-11",
         .on_demand = 2 * GPU_HOUR,
         .unreserved_idle = 5 * GPU_HOUR,
         .stranded = GPU_HOUR / 4,
         .down = 3 * GPU_HOUR,
         .unknown = GPU_HOUR / 3},
	{.cluster = "=west",
         .gpu_model = "H100-80GB",
         .price_version = "2026-11",
         .owned = true,
         .unreserved_idle = GPU_HOUR},
	/* before there was a book */
	{.cluster = "=west", .gpu_model = "L40S-48GB", .unreserved_idle = GPU_HOUR},
};

static struct reconciliation *
reconcile(const struct usage_day *rows, size_t n)
{
	owned(reconcile) struct reconcile *r = reconcile_new(&november);
	struct rating_input in = november;
	owned(rated) struct rated *rated = rate(&november);
	struct reconciliation *out = NULL;
	struct err err = {0};

	in.days = rows;
	in.day_count = n;
	for (size_t i = 0; i < ARRAY_LEN(pools); i++)
		if (!reconcile_add_pool(r, &in, &pools[i], &err))
			fail_msg("%s", err.text);
	if (!reconcile_add_rated(r, &in, rated, &err) || !reconcile_end(&r, &out, &err))
		fail_msg("%s", err.text);
	return out;
}

static const struct reconcile_row *
row_of(const struct reconciliation *r, enum reconcile_level level, const char *cluster, const char *model)
{
	for (size_t i = 0; i < r->count; i++)
		if (r->rows[i].level == level && strcmp(r->rows[i].cluster, cluster) == 0 &&
		    strcmp(r->rows[i].gpu_model, model) == 0)
			return &r->rows[i];
	fail_msg("no row of %s %s", cluster, model);
	return NULL;
}

static void
the_worked_example_is_accounted_for_term_by_term(void **state)
{
	static const struct {
		const char *cluster;
		enum reconcile_term term;
		int cents;
	} terms[] = {
		{"<east>", TERM_ON_DEMAND, 600},
		{"<east>", TERM_BORROWED, 150},
		{"<east>", TERM_COMMITMENTS, 1200},
		{"<east>", TERM_LENT, -120},
		{"<east>", TERM_UNDELIVERED, 0},
		{"<east>", TERM_ON_DEMAND_PRICES, 0},
		{"<east>", TERM_BORROWED_PRICES, 150},
		{"<east>", TERM_RESERVED_PRICES, 600},
		{"<east>", TERM_PAID_TWICE, -180},
		/* two hours at 2.50 less a tenth; an hour at 1.10 less a tenth */
		{"=west", TERM_ON_DEMAND, 450},
		{"=west", TERM_DEDICATED, 99},
		{"=west", TERM_OWN_PRICES, 100},
		{"=west", TERM_DISCOUNTS, 61},
		{"=west", TERM_DEDICATED_PRICES, 190},
		{"=west", TERM_IDLE, 1425},
		{"=west", TERM_STRANDED, 75},
		{"=west", TERM_DOWN, 900},
		{"=west", TERM_UNKNOWN, 100},
	};
	owned(reconciliation) struct reconciliation *r = reconcile(days, ARRAY_LEN(days));

	(void)state;
	assert_int_equal(row_of(r, LEVEL_CLUSTER, "<east>", "")->value, 2400);
	assert_int_equal(row_of(r, LEVEL_CLUSTER, "=west", "")->value, 3400);
	assert_int_equal(row_of(r, LEVEL_ALL, "", "")->value, 5800);
	for (size_t i = 0; i < ARRAY_LEN(terms); i++)
		if (row_of(r, LEVEL_CLUSTER, terms[i].cluster, "")->terms[terms[i].term] != terms[i].cents)
			fail_msg("%s of %s is %d cents", reconcile_terms[terms[i].term].name, terms[i].cluster,
			         (int)row_of(r, LEVEL_CLUSTER, terms[i].cluster, "")->terms[terms[i].term]);
	assert_int_equal(r->total_count, 1);
	assert_int_equal(r->totals[0].total, 1830 + 549);
	assert_int_equal(r->totals[0].platform_cost, 10000);
	assert_false(row_of(r, LEVEL_ALL, "", "")->differs);
}

static void
time_without_a_list_price_is_shown_and_worth_nothing(void **state)
{
	owned(reconciliation) struct reconciliation *r = reconcile(days, ARRAY_LEN(days));
	const struct reconcile_row *row = row_of(r, LEVEL_MODEL, "=west", "L40S-48GB");

	(void)state;
	assert_int_equal(row->unpriced_ngh, 1000000000);
	assert_int_equal(row->value, 0);
	assert_int_equal(row->list_price, -1);
}

static void
hours_that_were_not_rated_are_named(void **state)
{
	owned(reconciliation) struct reconciliation *r = reconcile(days, ARRAY_LEN(days) - 2);
	const struct reconcile_row *row = row_of(r, LEVEL_ALL, "", "");

	(void)state;
	assert_true(row->differs);
	assert_int_equal(row->differ_ngh, INT64_C(3000000000));
	assert_false(row_of(r, LEVEL_CLUSTER, "<east>", "")->differs);
}

static void
a_version_that_the_month_does_not_have_is_refused(void **state)
{
	owned(reconcile) struct reconcile *r = reconcile_new(&november);
	struct reconcile_pool p = pools[0];
	struct err err = {0};

	(void)state;
	p.price_version = "1999";
	assert_false(reconcile_add_pool(r, &november, &p, &err));
	assert_non_null(strstr(err.text, "1999"));
	p = pools[0];
	p.down = -1;
	assert_false(reconcile_add_pool(r, &november, &p, &err));
	assert_non_null(strstr(err.text, "down"));
}

static void
the_documents_are_the_golden_files(void **state)
{
	static const struct reconcile_page page = {"Platform <Team>", "Example & Söhne", "Europe/Berlin"};
	owned(reconciliation) struct reconciliation *r = reconcile(days, ARRAY_LEN(days));
	in_place(buf) struct buf csv, html, text;
	owned(json) json_t *doc = NULL;
	struct err err = {0};

	(void)state;
	buf_init(&csv, PAGE_MAX);
	buf_init(&html, PAGE_MAX);
	buf_init(&text, PAGE_MAX);
	if (!reconcile_csv(r, &csv, &err) || !golden_check("reconciliation.csv", buf_text(&csv), csv.len, &err) ||
	    !reconcile_html(r, &page, &html, &err) ||
	    !golden_check("reconciliation.html", buf_text(&html), html.len, &err) || !reconcile_json(r, &text, &err) ||
	    !json_parse("the JSON", buf_text(&text), text.len, &doc, &err))
		fail_msg("%s", err.text);
	assert_int_equal(json_array_size(json_object_get(doc, "rows")), r->count);
}

static void
a_month_of_nothing_is_a_page_too(void **state)
{
	static const struct reconcile_page page = {"", "", "UTC"};
	owned(reconcile) struct reconcile *r = NULL;
	owned(reconciliation) struct reconciliation *out = NULL;
	struct rating_input in = november;
	in_place(buf) struct buf html;
	struct err err = {0};

	(void)state;
	in.book_count = 0;
	r = reconcile_new(&in);
	buf_init(&html, PAGE_MAX);
	if (!reconcile_end(&r, &out, &err) || !reconcile_html(out, &page, &html, &err))
		fail_msg("%s", err.text);
	assert_int_equal(out->count, 0);
	assert_non_null(strstr(buf_text(&html), "Reconciliation 2026-11"));
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_worked_example_is_accounted_for_term_by_term),
		cmocka_unit_test(time_without_a_list_price_is_shown_and_worth_nothing),
		cmocka_unit_test(hours_that_were_not_rated_are_named),
		cmocka_unit_test(a_version_that_the_month_does_not_have_is_refused),
		cmocka_unit_test(the_documents_are_the_golden_files),
		cmocka_unit_test(a_month_of_nothing_is_a_page_too),
	};

	return cmocka_run_group_tests_name("reconcile", tests, NULL, NULL);
}
