/* tests/unit/reports/test_invoice_html.c - the printed page: one month byte by byte, sums that add up as printed, and hostile names. */
#include <stdio.h>
#include <string.h>

#include "tests/support/billing/rates.h"

#include "aggregator/core/reports/html.h"
#include "aggregator/core/reports/invoice_html.h"
#include "tests/support/harness/golden.h"

#define PAGE_MAX (1u << 20)

static const struct rating_item items[] = {
	{.sku = "", .klass = "reserved", .price = CENTS(200)},
	{.sku = "", .klass = "on-demand", .price = CENTS(300)},
	{.sku = "", .klass = "borrowed", .price = CENTS(120)},
	{.sku = "", .klass = "dedicated", .price = CENTS(110)},
	{.sku = "", .meter = "storage", .price = 123456},
	{.sku = "", .meter = "egress", .price = CENTS(4)},
	{.sku = "", .meter = "inference-requests", .price = 2500},
	{.sku = "", .meter = "support", .price = CENTS(9000)},
};
static const struct rating_site site = {.cluster = "main", .energy_price = CENTS(30), .carbon = CENTS(38000)};
static const struct rating_book book = {.version = "2026-11",
                                        .currency = "EUR",
                                        .items = items,
                                        .item_count = ARRAY_LEN(items),
                                        .sites = &site,
                                        .site_count = 1,
                                        .lender_ratio = 500000000};

#define GPU(kind_, workspace_, class_, ...)                                                                          \
	{                                                                                                            \
		.day = 0, .kind = (kind_), .cluster = "main", .tenant = "acme", .cost_center = "R&D <4711>",         \
		.workspace = (workspace_), .gpu_model = "H100-80GB", .mig_profile = "", .sharing_mode = "exclusive", \
		.klass = (class_), .instance_units = 5040, __VA_ARGS__                                               \
	}
#define OTHER(meter_, sku_, category_, unit_, quantity_)                                                          \
	{                                                                                                         \
		.day = 1, .kind = CHARGE_METER, .cluster = "main", .tenant = "acme", .cost_center = "R&D <4711>", \
		.workspace = "prod", .gpu_model = "", .mig_profile = "", .sharing_mode = "", .klass = "",         \
		.meter = (meter_), .meter_sku = (sku_), .category = (category_), .unit = (unit_),                 \
		.quantity = (int128)(quantity_)*1000000000                                                        \
	}
/* The second worked example of a month, other meters, and thirds of an hour. */
static const struct usage_day days[] = {
	GPU(CHARGE_COMMITMENT, "prod", "", .unit_ns = 2880 * GPU_HOUR, .reservation = 1),
	GPU(CHARGE_COVERED, "prod", "", .used_unit_ns = 1000 * GPU_HOUR, .idle_unit_ns = 440 * GPU_HOUR,
            .reservation = 1, .energy_mj = 7200000000000),
	GPU(CHARGE_UNUSED, "prod", "", .unit_ns = 900 * GPU_HOUR, .reservation = 1),
	GPU(CHARGE_LENT, "prod", "", .idle_unit_ns = 500 * GPU_HOUR, .reservation = 1, .counterparty = "globex"),
	GPU(CHARGE_UNDELIVERED, "prod", "", .unit_ns = 40 * GPU_HOUR, .reservation = 1),
	GPU(CHARGE_USAGE, "<b>dev</b>", "on-demand", .used_unit_ns = GPU_HOUR / 3, .idle_unit_ns = GPU_HOUR / 3,
            .unmeasured_unit_ns = GPU_HOUR / 3),
	GPU(CHARGE_DEDICATED, "prod", "", .unit_ns = 12 * GPU_HOUR),
	OTHER("storage", "nvme", "storage", "GB-hour", 720000),
	OTHER("egress", "egress", "network", "GB", 125),
	OTHER("inference-requests", "llama", "inference", "request", 100000),
	OTHER("support", "gold", "support", "hour", 1),
};
static const struct rating_input november = {NOVEMBER_2026, .books = &book, .book_count = 1, .days = days,
                                             .day_count = ARRAY_LEN(days)};
/* The same month with discounts, and a price of its own. */
static const struct rating_item own_items[] = {
	{.sku = "", .klass = "reserved", .price = CENTS(200)},
	{.sku = "", .klass = "on-demand", .price = CENTS(300)},
	{.sku = "", .klass = "borrowed", .price = CENTS(120)},
	{.sku = "", .klass = "dedicated", .price = CENTS(110)},
	{.sku = "", .meter = "storage", .price = 123456},
	{.sku = "", .meter = "egress", .price = CENTS(4)},
	{.sku = "", .meter = "inference-requests", .price = 2500},
	{.sku = "", .meter = "support", .price = CENTS(9000)},
	{.sku = "", .meter = "support", .price = CENTS(8500), .tenant = "acme"},
};
static const struct rating_discount own_discounts[] = {{.category = "storage", .ratio = 333333333},
                                                       {.category = "gpu", .klass = "reserved", .ratio = 100000000}};
static const struct rating_book own_book = {.version = "2026-11",
                                            .currency = "EUR",
                                            .items = own_items,
                                            .item_count = ARRAY_LEN(own_items),
                                            .discounts = own_discounts,
                                            .discount_count = ARRAY_LEN(own_discounts),
                                            .sites = &site,
                                            .site_count = 1,
                                            .lender_ratio = 500000000};
static const struct rating_input discounted = {NOVEMBER_2026, .books = &own_book, .book_count = 1, .days = days,
                                               .day_count = ARRAY_LEN(days)};
static const struct invoice_amount october = {.currency = "EUR", .billed = 512345, .scale = 2};
static const struct invoice_capacity own = {.held = 1000 * GPU_HOUR,
                                            .unallocated = 12 * GPU_HOUR,
                                            .stranded = GPU_HOUR / 3,
                                            .down = 30 * GPU_HOUR,
                                            .unknown = 10 * GPU_HOUR};
static const struct invoice_budget budgets[] = {
	{.workspace = "",
         .unit = "EUR",
         .limit = CENTS(800000),
         .spent = CENTS(610000),
         .forecast = CENTS(810000),
         .method = "mean of the last 7 full days x the time left"},
	{.workspace = "<b>dev</b>",
         .unit = "",
         .limit = (int128)1000 * 1000000000,
         .spent = (int128)1000000000 / 3,
         .forecast = 1000000000,
         .method = "mean of the last 7 full days x the time left",
         .hard = true},
	{.workspace = "prod",
         .unit = "EUR",
         .limit = CENTS(100),
         .spent = CENTS(100),
         .forecast = CENTS(101),
         .method = "mean of the last 7 full days x the time left"},
	{.workspace = "rest", .unit = "EUR", .limit = CENTS(100)},
};
static const struct invoice_input values = {.in = &november,
                                            .provider = "Platform Team",
                                            .organisation = "Example & Söhne",
                                            .tenant_name = "Acme \"Robotics\"",
                                            .zone = "Europe/Berlin",
                                            .previous_period = "2026-10",
                                            .previous = &october,
                                            .previous_count = 1,
                                            .own = &own,
                                            .budgets = budgets,
                                            .budget_count = ARRAY_LEN(budgets)};

static void
render_as(const struct rating_input *in, int64_t layout, struct buf *out)
{
	owned(rated) struct rated *r = rate(in);
	struct invoice_input i = values;
	struct err err = {0};

	i.in = in;
	i.r = r;
	i.layout = layout;
	buf_init(out, PAGE_MAX);
	invoice_html_begin("acme-2026-11-1", layout, out);
	if (!invoice_html_page(&i, out, &err))
		fail_msg("%s", err.text);
	invoice_html_end(out);
}

static void
render(const struct rating_input *in, struct buf *out)
{
	render_as(in, INVOICE_LAYOUT, out);
}

static void
a_month_is_the_golden_file(void **state)
{
	in_place(buf) struct buf out;
	struct err err = {0};

	(void)state;
	render(&discounted, &out);
	if (!golden_check("invoice.html", buf_text(&out), out.len, &err))
		fail_msg("%s", err.text);
}

/* What was closed before is proved byte by byte. */
static void
cost_centres_beyond_the_first_four_are_counted(void **state)
{
	static const char *const centers[] = {"c1", "c2", "c3", "c4", "c5", "c6"};
	struct usage_day rows[ARRAY_LEN(centers)];
	struct rating_input in = discounted;
	in_place(buf) struct buf now = {0}, before = {0};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		rows[i] = days[5];
		rows[i].cost_center = centers[i];
	}
	in.days = rows;
	in.day_count = ARRAY_LEN(rows);
	render(&in, &now);
	assert_non_null(strstr(buf_text(&now), " and 2 more</dd>"));
	render_as(&in, INVOICE_LAYOUT_CENTERS - 1, &before);
	assert_null(strstr(buf_text(&before), " more</dd>"));
}

static void
a_month_of_the_first_layout_is_what_it_was(void **state)
{
	in_place(buf) struct buf out;
	struct err err = {0};

	(void)state;
	render_as(&november, 0, &out);
	if (!golden_check("invoice-layout-0.html", buf_text(&out), out.len, &err))
		fail_msg("%s", err.text);
}
static void
a_month_of_the_second_layout_is_what_it_was(void **state)
{
	in_place(buf) struct buf out;
	struct err err = {0};

	(void)state;
	render_as(&november, 2, &out);
	if (!golden_check("invoice-layout-2.html", buf_text(&out), out.len, &err))
		fail_msg("%s", err.text);
}

/* ---- pages as full as they can be ---- */

#define LONG_WORD "WwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwW"
#define LONG_NAME LONG_WORD " " LONG_WORD " \xc3\x84rger & S\xc3\xb6hne " LONG_WORD
enum { FULL_LINES = 40 };

static const struct rating_book full_books[] = {
	{.version = "1",
         .currency = "EUR",
         .items = items,
         .item_count = ARRAY_LEN(items),
         .sites = &(const struct rating_site){.cluster = "main", .energy_price = -1, .carbon = CENTS(38012)},
         .site_count = 1},
	{.version = "2", .currency = "USD", .items = items, .item_count = ARRAY_LEN(items)},
	{.version = "3", .currency = "JPY", .items = items, .item_count = ARRAY_LEN(items)},
};

struct full_page {
	const char *name;
	int currencies, budgets;
	bool corrections, long_words;
};

/* Lines of large amounts; every third is a correction. */
static struct rated *
full_lines(const struct full_page *what, struct rating_input *in, struct usage_day days_[FULL_LINES])
{
	static char names[FULL_LINES][80];
	struct rated *r;

	for (int i = 0; i < FULL_LINES; i++) {
		snprintf(names[i], sizeof(names[i]), "team-%02d%s", i, what->long_words ? LONG_WORD : "");
		days_[i] = (struct usage_day)GPU(CHARGE_USAGE, names[i], "on-demand",
		                                 .used_unit_ns = (i + 1) * GPU_HOUR * 1234567 / 7,
		                                 .energy_mj = 123456789123456, .price_book = i % what->currencies);
	}
	in->books = full_books;
	in->book_count = ARRAY_LEN(full_books);
	in->days = days_;
	in->day_count = FULL_LINES;
	r = rate(in);
	for (size_t i = 0; i < r->count; i++) {
		struct rated_line *l = &r->lines[i];

		if (what->long_words) {
			mem_free(l->description);
			l->description = mem_strdup(LONG_NAME " " LONG_NAME);
		}
		if (!what->corrections || i % 3 > 0)
			continue;
		l->correction_of = "0123456789abcdef0123456789abcdef";
		mem_free(l->invoice_id);
		l->invoice_id = mem_printf("acme-2026-%02d-2", 10 - (int)i / 12);
	}
	return r;
}

/* The browser says whether each is one page (integration/test_invoice_print.py). */
static void
pages_as_full_as_they_can_be_are_the_golden_file(void **state)
{
	static const struct full_page pages[] = {
		{"short lines", 1, 0, false, false},
		{"long lines", 1, 0, false, true},
		{"corrections", 1, 0, true, false},
		{"everything", 3, 4, true, true},
		{"long lines and budgets", 1, 4, false, true},
		{"three currencies", 3, 0, true, true},
	};
	struct invoice_budget long_budgets[ARRAY_LEN(budgets)];
	in_place(buf) struct buf out;
	struct err err = {0};

	(void)state;
	buf_init(&out, PAGE_MAX);
	invoice_html_begin("full pages", INVOICE_LAYOUT, &out);
	for (size_t i = 0; i < ARRAY_LEN(pages); i++) {
		struct usage_day rows[FULL_LINES];
		struct rating_input in = november;
		owned(rated) struct rated *r = full_lines(&pages[i], &in, rows);
		struct invoice_input page = values;

		memcpy(long_budgets, budgets, sizeof(budgets));
		for (size_t k = 1; k < ARRAY_LEN(budgets); k++)
			long_budgets[k].workspace = LONG_WORD;
		page.in = &in;
		page.r = r;
		page.layout = INVOICE_LAYOUT;
		page.budgets = long_budgets;
		page.budget_count = (size_t)pages[i].budgets;
		if (pages[i].long_words)
			page.tenant_name = page.organisation = page.provider = LONG_NAME;
		if (pages[i].long_words)
			for (size_t k = 0; k < r->count; k++)
				r->lines[k].cost_center = LONG_NAME;
		if (!invoice_html_page(&page, &out, &err))
			fail_msg("%s: %s", pages[i].name, err.text);
	}
	invoice_html_end(&out);
	if (!golden_check("invoice-full.html", buf_text(&out), out.len, &err))
		fail_msg("%s", err.text);
}

static void
names_are_text_whatever_they_look_like(void **state)
{
	in_place(buf) struct buf out;

	(void)state;
	render(&november, &out);
	assert_null(strstr(buf_text(&out), "<b>"));
	assert_non_null(strstr(buf_text(&out), "&lt;b&gt;dev&lt;/b&gt;"));
	assert_non_null(strstr(buf_text(&out), "R&amp;D &lt;4711&gt;"));
	assert_non_null(strstr(buf_text(&out), "Acme &quot;Robotics&quot;"));
	assert_null(strstr(buf_text(&out), "<script"));
	assert_null(strstr(buf_text(&out), "http"));
	assert_null(strstr(buf_text(&out), "url("));
}

static void
parts_add_up_as_they_are_printed(void **state)
{
	in_place(buf) struct buf out;

	(void)state;
	render(&november, &out);
	assert_non_null(strstr(buf_text(&out), "<th>Committed</th><td class=\"n\">2880.000</td>"));
	assert_non_null(strstr(buf_text(&out), "<th>= covered</th><td class=\"n\">1440.000</td>"));
	assert_non_null(strstr(buf_text(&out), "<th>+ undelivered</th><td class=\"n\">40.000</td>"));
	/* 1440 and three thirds, of which the first gets the odd thousandth */
	assert_non_null(strstr(buf_text(&out), "<th>Allocated</th><td class=\"n\">1441.000</td>"));
	assert_non_null(strstr(buf_text(&out), "<th>= used</th><td class=\"n\">1000.334</td>"));
	assert_non_null(strstr(buf_text(&out), "<th>+ unmeasured</th><td class=\"n\">0.333</td>"));
}

/* 2000 kWh at 380 g are 760 kg; where nobody knows the grid of one cluster, only those of the other are weighed. */
static void
energy_is_weighed_by_the_grid_of_its_cluster(void **state)
{
	struct usage_day two[] = {
		GPU(CHARGE_USAGE, "prod", "on-demand", .used_unit_ns = GPU_HOUR, .energy_mj = 7200000000000),
		GPU(CHARGE_USAGE, "prod", "on-demand", .used_unit_ns = GPU_HOUR, .energy_mj = 1800000),
	};
	struct rating_input in = november;
	in_place(buf) struct buf out, other;

	(void)state;
	render(&november, &out);
	assert_non_null(strstr(buf_text(&out), " Energy: 2000.000\xc2\xa0kWh, 760.000\xc2\xa0kg CO\xe2\x82\x82"
	                                       "e.</p>"));
	in.days = two;
	in.day_count = ARRAY_LEN(two);
	two[1].cluster = "elsewhere";
	render(&in, &other);
	assert_non_null(strstr(buf_text(&other), " Energy: 2000.000\xc2\xa0kWh, 760.000\xc2\xa0kg CO\xe2\x82\x82"
	                                         "e where the grid is known.</p>"));
}

/* Every workspace has one line: more than a page has room for. */
static void
lines_beyond_the_page_are_one_row_and_the_sum_stays(void **state)
{
	enum { WORKSPACES = 40 };
	static char names[WORKSPACES][24];
	struct usage_day many[WORKSPACES];
	struct rating_input in = november;
	in_place(buf) struct buf out;

	(void)state;
	for (int i = 0; i < WORKSPACES; i++) {
		snprintf(names[i], sizeof(names[i]), "team-%02d", i);
		many[i] =
			(struct usage_day)GPU(CHARGE_USAGE, names[i], "on-demand", .used_unit_ns = (i + 1) * GPU_HOUR);
	}
	in.days = many;
	in.day_count = WORKSPACES;
	render(&in, &out);
	/* 3.00 for each of 1..40 hours is 2460.00; beside three budgets there is room for 5 workspaces with a line each; the others are
	 * 1..35 hours: 1890.00 */
	assert_non_null(
		strstr(buf_text(&out),
	               "35 smaller lines, in the CSV</span></td><td class=\"n\">1890.00</td><td class=\"n\">0.00</td>"
	               "<td class=\"n\">1890.00</td>"));
	assert_non_null(strstr(buf_text(&out),
	                       "<td colspan=\"4\">Total</td><td class=\"n\">2460.00</td><td class=\"n\">0.00</td>"
	                       "<td class=\"n\">2460.00</td>"));
	assert_null(strstr(buf_text(&out), "team-34"));
	assert_non_null(strstr(buf_text(&out), "team-35"));
}

/* Forty workspaces with a line each are more than a page has room for, and each of them is larger than what is looked for here. */
static void
what_has_no_price_and_the_parts_of_a_reservation_are_shown(void **state)
{
	enum { WORKSPACES = 40 };
	static char names[WORKSPACES][24];
	struct usage_day many[WORKSPACES + 4];
	struct rating_book without = book;
	struct rating_input in = november;
	in_place(buf) struct buf out = {0}, before = {0};

	(void)state;
	for (int i = 0; i < WORKSPACES; i++) {
		snprintf(names[i], sizeof(names[i]), "team-%02d", i);
		many[i] =
			(struct usage_day)GPU(CHARGE_USAGE, names[i], "on-demand", .used_unit_ns = (i + 1) * GPU_HOUR);
	}
	many[WORKSPACES] = (struct usage_day)OTHER("support", "gold", "support", "hour", 1);
	many[WORKSPACES + 1] =
		(struct usage_day)GPU(CHARGE_COMMITMENT, "prod", "", .unit_ns = 1000 * GPU_HOUR, .reservation = 1);
	many[WORKSPACES + 2] =
		(struct usage_day)GPU(CHARGE_UNDELIVERED, "prod", "", .unit_ns = GPU_HOUR, .reservation = 1);
	many[WORKSPACES + 3] =
		(struct usage_day)GPU(CHARGE_UNUSED, "prod", "", .unit_ns = 999 * GPU_HOUR, .reservation = 1);
	without.item_count--; /* the last one is that of support */
	in.books = &without;
	in.days = many;
	in.day_count = ARRAY_LEN(many);
	render(&in, &out);
	assert_non_null(strstr(buf_text(&out), ">gold, support (no price in force)<"));
	assert_non_null(strstr(buf_text(&out), " 1 line has no price and costs nothing.</p>"));
	assert_non_null(strstr(buf_text(&out), "<td class=\"n\">" HTML_MINUS "2.00</td>"));
	render_as(&in, INVOICE_LAYOUT_WHOLE - 1, &before);
	assert_null(strstr(buf_text(&before), "no price"));
	assert_null(strstr(buf_text(&before), "<td class=\"n\">" HTML_MINUS "2.00</td>"));
}

/* Money has the currency's decimals, tokens are whole. */
static void
budgets_have_the_decimals_of_their_unit(void **state)
{
	static const struct invoice_budget some[] = {
		{.workspace = "", .unit = "EUR", .limit = CENTS(100), .forecast = 3106571223018000000, .method = "x"},
		{.workspace = "a", .unit = "token", .limit = CENTS(100), .spent = CENTS(50), .method = "x"},
	};
	owned(rated) struct rated *r = rate(&november);
	struct invoice_input i = values;
	in_place(buf) struct buf out = {0};
	struct err err = {0};

	(void)state;
	i.r = r;
	i.budgets = some;
	i.budget_count = ARRAY_LEN(some);
	i.layout = INVOICE_LAYOUT;
	buf_init(&out, PAGE_MAX);
	if (!invoice_html_page(&i, &out, &err))
		fail_msg("%s", err.text);
	assert_non_null(strstr(buf_text(&out), "<td class=\"n\">3106571223.02</td>"));
	assert_non_null(strstr(buf_text(&out), "<td>tokens</td><td class=\"n whole\">1</td>"));
}

/* A line is its list cost less its discount, as printed; what is not shown of a group is in the group's subtotal; credits come after
 * what they are credits for. */
static void
a_line_has_list_discount_and_net(void **state)
{
	in_place(buf) struct buf out;
	const char *page, *reservation, *credit;

	(void)state;
	render(&discounted, &out);
	page = buf_text(&out);
	/* 720,000 x 0.000123456 = 88.88832, of which a third less */
	assert_non_null(strstr(
		page,
		"<td>GB-hour</td><td class=\"n\">0.000123456</td><td class=\"n\">88.89</td><td class=\"n\">29.63</td>"
		"<td class=\"n\">59.26</td>"));
	/* a price of its own */
	assert_non_null(strstr(
		page,
		"<td class=\"n\">90.00</td><td class=\"n\">90.00</td><td class=\"n\">5.00</td><td class=\"n\">85.00</td>"));
	assert_non_null(strstr(page, "<dd>1 to 30 November 2026, Europe/Berlin</dd>"));
	reservation = strstr(page, ">Reservation of H100-80GB<");
	credit = strstr(page, ">Reserved H100-80GB, lent to globex<");
	assert_true(reservation != NULL && credit != NULL && reservation < credit);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_month_is_the_golden_file),
		cmocka_unit_test(cost_centres_beyond_the_first_four_are_counted),
		cmocka_unit_test(a_month_of_the_first_layout_is_what_it_was),
		cmocka_unit_test(a_month_of_the_second_layout_is_what_it_was),
		cmocka_unit_test(pages_as_full_as_they_can_be_are_the_golden_file),
		cmocka_unit_test(names_are_text_whatever_they_look_like),
		cmocka_unit_test(parts_add_up_as_they_are_printed),
		cmocka_unit_test(energy_is_weighed_by_the_grid_of_its_cluster),
		cmocka_unit_test(lines_beyond_the_page_are_one_row_and_the_sum_stays),
		cmocka_unit_test(a_line_has_list_discount_and_net),
		cmocka_unit_test(what_has_no_price_and_the_parts_of_a_reservation_are_shown),
		cmocka_unit_test(budgets_have_the_decimals_of_their_unit),
	};

	return cmocka_run_group_tests_name("invoice_html", tests, NULL, NULL);
}
