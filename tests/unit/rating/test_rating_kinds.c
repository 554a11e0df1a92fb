/* tests/unit/rating/test_rating_kinds.c - who pays what: commitments, credits, own prices, other meters and energy, to the cent. */
#include "aggregator/core/rating/rating.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/units.h"

#define HOURS(n) ((int128)(n)*UNITS_PER_GPU * 3600 * 1000000000)
#define PRICE(cents) ((int128)(cents)*10000000)
#define RATIO(percent) ((int64_t)(percent)*10000000)

static struct usage_day
row_of(enum charge_kind kind, const char *tenant, const char *workspace, int hours)
{
	struct usage_day d = {.kind = kind,
	                      .cluster = "main",
	                      .tenant = tenant,
	                      .cost_center = "",
	                      .workspace = workspace,
	                      .gpu_model = "H100-80GB",
	                      .mig_profile = "",
	                      .sharing_mode = kind == CHARGE_USAGE || kind == CHARGE_COVERED || kind == CHARGE_LENT
	                                              ? "exclusive"
	                                              : "",
	                      .klass = "on-demand",
	                      .instance_units = UNITS_PER_GPU};

	if (kind == CHARGE_USAGE || kind == CHARGE_COVERED || kind == CHARGE_LENT)
		d.idle_unit_ns = HOURS(hours);
	else
		d.unit_ns = HOURS(hours);
	return d;
}

static void
assert_unit(const struct rating_unit *got, const char *want)
{
	owned(mem) char *text = rating_unit_text(got);

	assert_string_equal(text, want);
}

static void
assert_own_unit(const struct rating_unit *got, const char *want)
{
	owned(mem) char *text = rating_own_unit_text(got);

	assert_string_equal(text, want);
}

static struct usage_day
part_of(enum charge_kind kind, const char *tenant, const char *workspace, int hours)
{
	struct usage_day d = row_of(kind, tenant, workspace, hours);

	d.reservation = 1;
	return d;
}

static struct usage_day
borrowed(const char *tenant, const char *workspace, int hours)
{
	struct usage_day d = row_of(CHARGE_USAGE, tenant, workspace, hours);

	d.klass = "borrowed";
	return d;
}

static struct usage_day
lent_to(const char *borrower, struct usage_day d)
{
	d.klass = "borrowed";
	d.counterparty = borrower;
	return d;
}

static struct rated *
rate(const struct rating_book *book, const struct usage_day *days, size_t n)
{
	const struct rating_input in = {.period_start = "2026-11-01",
	                                .period_end = "2026-12-01",
	                                .period = "2026-11",
	                                .period_status = "open",
	                                .currency = "EUR",
	                                .invoice_version = 1,
	                                .books = book,
	                                .book_count = 1,
	                                .days = days,
	                                .day_count = n};
	struct rated *r = NULL;
	struct err err = {0};

	if (!rating_run(&in, &r, &err))
		fail_msg("%s", err.text);
	return r;
}

/* Cents of a tenant's lines of a kind; CHARGE_KINDS: of all. */
static int64_t
cents(const struct rated *r, const char *tenant, enum charge_kind kind)
{
	int64_t sum = 0;

	for (size_t i = 0; i < r->count; i++)
		if (strcmp(r->lines[i].tenant, tenant) == 0 && (kind == CHARGE_KINDS || r->lines[i].kind == kind))
			sum += (int64_t)r->lines[i].billed;
	return sum;
}

static const struct rated_line *
line_of(const struct rated *r, enum charge_kind kind)
{
	const struct rated_line *found = NULL;

	for (size_t i = 0; i < r->count; i++)
		if (r->lines[i].kind == kind) {
			assert_null(found);
			found = &r->lines[i];
		}
	assert_non_null(found);
	return found;
}

static const struct rating_item example_items[] = {
	{.sku = "", .klass = "reserved", .price = PRICE(200)},
	{.sku = "", .klass = "on-demand", .price = PRICE(300)},
	{.sku = "", .klass = "borrowed", .price = PRICE(150)},
	{.sku = "", .klass = "dedicated", .price = PRICE(50)},
};
static const struct rating_book example_book = {.version = "v1",
                                                .currency = "EUR",
                                                .items = example_items,
                                                .item_count = ARRAY_LEN(example_items),
                                                .lender_ratio = RATIO(80)};

static void
the_pool_of_eight_costs_what_the_worked_example_says(void **state)
{
	struct usage_day days[] = {
		part_of(CHARGE_COMMITMENT, "a", "w", 4),
		part_of(CHARGE_COVERED, "a", "w", 1),
		lent_to("b", part_of(CHARGE_LENT, "a", "w", 1)),
		part_of(CHARGE_UNUSED, "a", "w", 2),
		part_of(CHARGE_COMMITMENT, "b", "w", 2),
		part_of(CHARGE_COVERED, "b", "w", 2),
		row_of(CHARGE_USAGE, "b", "w", 2),
		borrowed("b", "w", 1),
	};
	owned(rated) struct rated *r = NULL;

	(void)state;
	days[4].reservation = days[5].reservation = 2;
	r = rate(&example_book, days, ARRAY_LEN(days));
	assert_int_equal(cents(r, "a", CHARGE_COMMITMENT), 800);
	assert_int_equal(cents(r, "a", CHARGE_LENT), -120);
	assert_int_equal(cents(r, "a", CHARGE_KINDS), 680);
	assert_int_equal(cents(r, "b", CHARGE_KINDS), 1150);
	assert_int_equal(cents(r, "a", CHARGE_COVERED) + cents(r, "a", CHARGE_UNUSED), 0);
}

static void
the_shared_node_of_four_costs_what_the_worked_example_says(void **state)
{
	static const struct rating_item items[] = {{.sku = "", .klass = "reserved", .price = PRICE(200)},
	                                           {.sku = "", .klass = "borrowed", .price = PRICE(120)}};
	static const struct rating_book book = {
		.version = "v1", .currency = "EUR", .items = items, .item_count = 2, .lender_ratio = RATIO(50)};
	struct usage_day days[] = {
		part_of(CHARGE_COMMITMENT, "prod", "w", 2880),
		part_of(CHARGE_COVERED, "prod", "w", 1440),
		part_of(CHARGE_UNUSED, "prod", "w", 900),
		lent_to("research", part_of(CHARGE_LENT, "prod", "w", 500)),
		part_of(CHARGE_UNDELIVERED, "prod", "w", 40),
		borrowed("research", "w", 500),
	};
	owned(rated) struct rated *r = NULL;

	(void)state;
	days[1].idle_unit_ns = HOURS(440);
	days[1].used_unit_ns = HOURS(1000);
	r = rate(&book, days, ARRAY_LEN(days));
	assert_int_equal(cents(r, "prod", CHARGE_COMMITMENT), 576000);
	assert_int_equal(cents(r, "prod", CHARGE_LENT), -30000);
	assert_int_equal(cents(r, "prod", CHARGE_UNDELIVERED), -8000);
	assert_int_equal(cents(r, "prod", CHARGE_KINDS), 538000);
	assert_int_equal(cents(r, "research", CHARGE_KINDS), 60000);
	assert_int_equal(line_of(r, CHARGE_COVERED)->used_ngh, 1000000000000);
	assert_string_equal(line_of(r, CHARGE_LENT)->counterparty, "research");
	assert_string_equal(line_of(r, CHARGE_LENT)->charge_type, "credit");
	assert_string_equal(line_of(r, CHARGE_LENT)->description, "Reserved H100-80GB, lent to research");
	assert_int_equal(line_of(r, CHARGE_LENT)->quantity, -500000000000);
	assert_int_equal(line_of(r, CHARGE_LENT)->allocated_ngh, 0);
}

static void
own_idle_capacity_is_dedicated(void **state)
{
	struct usage_day day = row_of(CHARGE_DEDICATED, "a", "", 10);
	owned(rated) struct rated *r = NULL;

	(void)state;
	r = rate(&example_book, &day, 1);
	assert_int_equal(cents(r, "a", CHARGE_DEDICATED), 500);
	assert_string_equal(r->lines[0].klass, "dedicated");
	assert_string_equal(r->lines[0].description, "Own H100-80GB, held by nobody");
}

/* The price of a's borrowers is 1.50 x 0.8 = 1.20 for the lender, unless that is more than somebody paid. */
static void
lent_time_earns_no_more_than_was_paid_for_it(void **state)
{
	static const struct {
		const char *name;
		int64_t reserved, borrowed, own, ratio, discount,
			earned; /* cents, percent; own 0: no price of its own */
	} rows[] = {
		{"the ratio of the borrower's price", 200, 150, 0, 80, 0, 120},
		{"no more than the commitment cost", 100, 150, 0, 80, 0, 100},
		{"a borrower with a price of its own", 200, 150, 100, 80, 0, 80},
		{"a borrower with a discount", 200, 150, 0, 80, 10, 108},
		{"a ratio of 100 gives all of it", 200, 150, 0, 100, 0, 150},
		{"a ratio of 0 gives nothing", 200, 150, 0, 0, 0, 0},
		{"a reservation without a price cost nothing", 0, 150, 0, 80, 0, 0},
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		const struct rating_item items[] = {
			{.sku = "", .klass = "borrowed", .price = PRICE(rows[i].borrowed)},
			{.sku = "", .klass = rows[i].reserved ? "reserved" : "none", .price = PRICE(rows[i].reserved)},
			{.sku = "",
		         .klass = "borrowed",
		         .price = PRICE(rows[i].own),
		         .tenant = rows[i].own ? "b" : "nobody"},
		};
		const struct rating_discount discount = {.tenant = "b", .ratio = RATIO(rows[i].discount)};
		const struct rating_book book = {.version = "v1",
		                                 .currency = "EUR",
		                                 .items = items,
		                                 .item_count = ARRAY_LEN(items),
		                                 .discounts = &discount,
		                                 .discount_count = 1,
		                                 .lender_ratio = RATIO(rows[i].ratio)};
		const struct usage_day day = lent_to("b", row_of(CHARGE_LENT, "a", "w", 1));
		owned(rated) struct rated *r = rate(&book, &day, 1);

		if (cents(r, "a", CHARGE_LENT) != -rows[i].earned)
			fail_msg("%s: %" PRId64 " cents", rows[i].name, cents(r, "a", CHARGE_LENT));
	}
}

/* Seven instances of 1g.10gb are reserved and lent: one is 675 of the 5040 units of a GPU. */
static void
lent_time_earns_no_more_than_its_commitment_cost_however_that_is_priced(void **state)
{
	static const struct {
		const char *name, *borrowed; /* which kind: "" or a profile */
		int64_t gpu,
			reserved; /* cents for a whole GPU reserved, and for an instance; -1: there is no such price */
		int64_t paid;     /* cents for what was borrowed */
		int64_t earned;   /* 10^-9 of the currency for a unit of what was reserved */
	} rows[] = {
		{"the instance cost less than its share of a GPU", "1g.10gb", 200, 10, 35, 100000000},
		{"the instance cost more", "1g.10gb", 200, 30, 35, 280000000},
		{"only instances have a price", "1g.10gb", -1, 30, 35, 280000000},
		{"whole GPUs are borrowed of instances", "", -1, 10, 100, 100000000},
		{"and cost less than their ratio", "", -1, 30, 100, 107142857},
		{"instances cost their share of a GPU", "1g.10gb", 100, -1, 35, 1000000000},
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		const bool whole = rows[i].borrowed[0] == '\0';
		const struct rating_item items[] = {
			{.sku = "",
		         .klass = "borrowed",
		         .mig_profile = whole ? NULL : rows[i].borrowed,
		         .price = PRICE(rows[i].paid)},
			{.sku = "", .klass = rows[i].gpu < 0 ? "none" : "reserved", .price = PRICE(rows[i].gpu)},
			{.sku = "",
		         .klass = rows[i].reserved < 0 ? "none" : "reserved",
		         .mig_profile = "1g.10gb",
		         .price = PRICE(rows[i].reserved)},
		};
		const struct rating_book book = {.version = "v1",
		                                 .currency = "EUR",
		                                 .items = items,
		                                 .item_count = ARRAY_LEN(items),
		                                 .lender_ratio = RATIO(80)};
		struct usage_day days[] = {part_of(CHARGE_COMMITMENT, "a", "w", 1),
		                           lent_to("b", part_of(CHARGE_LENT, "a", "w", 1))};
		owned(rated) struct rated *r = NULL;

		days[0].mig_profile = "1g.10gb";
		days[0].instance_units = 675;
		days[1].mig_profile = rows[i].borrowed;
		days[1].instance_units = whole ? UNITS_PER_GPU : 675;
		r = rate(&book, days, ARRAY_LEN(days));
		if (line_of(r, CHARGE_LENT)->unit_price != rows[i].earned)
			fail_msg("%s: %" PRId64, rows[i].name, (int64_t)line_of(r, CHARGE_LENT)->unit_price);
	}
}

static void
what_a_tenant_saves_is_a_discount_on_the_list_price(void **state)
{
	static const struct rating_item items[] = {{.sku = "", .price = PRICE(300)},
	                                           {.sku = "", .price = PRICE(250), .tenant = "a"}};
	static const struct rating_discount discounts[] = {{.ratio = RATIO(1)}, {.tenant = "a", .ratio = RATIO(10)}};
	static const struct rating_book book = {.version = "v1",
	                                        .currency = "EUR",
	                                        .items = items,
	                                        .item_count = 2,
	                                        .discounts = discounts,
	                                        .discount_count = 2};
	const struct usage_day days[] = {row_of(CHARGE_USAGE, "a", "w", 10), row_of(CHARGE_USAGE, "b", "w", 10)};
	const int128 euro = pow10_i128(COST_SCALE);
	owned(rated) struct rated *r = rate(&book, days, 2);

	(void)state;
	assert_true(r->lines[0].list_cost == 30 * euro && r->lines[0].unit_price == PRICE(300));
	/* 5.00 by its own price, then a tenth of what is left */
	assert_true(r->lines[0].discount == 5 * euro + 25 * euro / 10);
	assert_int_equal(cents(r, "a", CHARGE_KINDS), 2250);
	assert_int_equal(cents(r, "b", CHARGE_KINDS), 2970);
}

static void
a_price_of_its_own_above_the_list_is_a_negative_discount(void **state)
{
	static const struct rating_item items[] = {{.sku = "", .price = PRICE(300)},
	                                           {.sku = "", .price = PRICE(350), .tenant = "a"}};
	static const struct rating_book book = {.version = "v1", .currency = "EUR", .items = items, .item_count = 2};
	const struct usage_day day = row_of(CHARGE_USAGE, "a", "w", 10);
	owned(rated) struct rated *r = rate(&book, &day, 1);

	(void)state;
	assert_true(r->lines[0].unit_price == PRICE(300) && r->lines[0].discount == -5 * pow10_i128(COST_SCALE));
	assert_int_equal(cents(r, "a", CHARGE_KINDS), 3500);
}

static void
a_price_of_its_own_for_another_unit_leaves_the_list_price_as_it_is(void **state)
{
	static const struct rating_item items[] = {
		{.sku = "", .price = PRICE(300)},
		{.sku = "", .price = PRICE(50), .mig_profile = "1g.10gb", .tenant = "a"}};
	static const struct rating_book book = {.version = "v1", .currency = "EUR", .items = items, .item_count = 2};
	struct usage_day day = row_of(CHARGE_USAGE, "a", "w", 10);
	const struct rated_line *l;

	(void)state;
	day.mig_profile = "1g.10gb";
	day.instance_units = 675;
	owned(rated) struct rated *r = rate(&book, &day, 1);
	l = &r->lines[0];
	/* 10 GPU-hours of 5040 units are 74.666666667 hours of an instance of 675 */
	assert_true(l->unit_price == PRICE(300) && l->quantity == INT64_C(10000000000));
	assert_unit(&l->unit, "gpu-hour");
	assert_own_unit(&l->own_unit, "instance-hour held");
	assert_true(l->own_quantity == INT64_C(74666666667) && l->own_price == PRICE(50) && l->discount_price == 0);
	assert_true(l->list_cost - l->discount == l->own_quantity * l->own_price);
	assert_int_equal(cents(r, "a", CHARGE_KINDS), 3733);
	assert_non_null(strstr(l->description, ", own price: 74.666666667 x 0.50 per instance-hour held"));
}

static void
a_price_for_a_million_has_its_quantity_in_millions(void **state)
{
	static const struct rating_item items[] = {
		{.sku = "", .price = 123, .meter = "inference-input-tokens", .per = 1000000},
		{.sku = "", .price = 1, .meter = "inference-input-tokens", .per = 1000, .tenant = "b"}};
	static const struct rating_book book = {.version = "v1", .currency = "EUR", .items = items, .item_count = 2};
	struct usage_day days[2];

	(void)state;
	for (size_t i = 0; i < 2; i++) {
		days[i] = row_of(CHARGE_METER, i == 0 ? "a" : "b", "w", 0);
		days[i].cluster = days[i].gpu_model = days[i].sharing_mode = days[i].klass = "";
		days[i].meter = "inference-input-tokens";
		days[i].category = "inference";
		days[i].unit = "token";
		days[i].meter_sku = "m";
		days[i].quantity = INT64_C(1234567) * pow10_i128(QUANTITY_SCALE);
	}
	owned(rated) struct rated *r = rate(&book, days, 2);
	assert_unit(&r->lines[0].unit, "1000000 tokens");
	assert_true(r->lines[0].quantity == 1234567000 && r->lines[0].unit_price == 123);
	assert_true(r->lines[0].list_cost == r->lines[0].quantity * 123 && !r->lines[0].own_differs);
	assert_true(r->lines[1].unit_price == 123 && r->lines[1].quantity == 1234567000);
	assert_own_unit(&r->lines[1].own_unit, "1000 tokens");
	assert_true(r->lines[1].own_quantity == INT64_C(1234567000000));
	assert_true(r->lines[1].list_cost - r->lines[1].discount == INT64_C(1234567000000));
}

static void
a_unit_comes_back_from_its_text(void **state)
{
	static const struct {
		enum charge_kind kind;
		struct rating_unit unit;
		const char *text, *own;
	} rows[] = {
		{CHARGE_USAGE, {.per = 1}, "gpu-hour", "gpu-hour held"},
		{CHARGE_USAGE, {.per = 1, .basis_used = true}, NULL, "gpu-hour used"},
		{CHARGE_USAGE, {.per = 1, .per_instance = true}, "instance-hour", "instance-hour held"},
		{CHARGE_LENT, {.per = 1, .per_instance = true, .basis_used = true}, NULL, "instance-hour used"},
		{CHARGE_COVERED,
	         {.per = 1, .per_instance = true, .profile = "1g.10gb"},
	         "instance-hour of 1g.10gb",
	         NULL},
		{CHARGE_METER, {.per = 1, .base = "token"}, "token", "token"},
		{CHARGE_METER, {.per = 1000000, .base = "token"}, "1000000 tokens", "1000000 tokens"},
		{CHARGE_METER, {.per = 1000, .base = "GB"}, "1000 GB", "1000 GB"},
		{CHARGE_METER, {.per = 1000, .base = "GB-hour"}, "1000 GB-hours", "1000 GB-hours"},
		{CHARGE_ENERGY, {.per = 1, .base = "kWh"}, "kWh", "kWh"},
		{CHARGE_ADJUSTMENT, {.per = 1, .base = "charge"}, "charge", "charge"},
	};

	(void)state;
	for (size_t i = 0; i < 2 * ARRAY_LEN(rows); i++) {
		const struct rating_unit *u = &rows[i / 2].unit;
		const char *text = i % 2 == 0 ? rows[i / 2].text : rows[i / 2].own;
		struct rating_unit back;

		if (text == NULL)
			continue;
		(i % 2 == 0 ? assert_unit : assert_own_unit)(u, text);
		back = rating_unit_read(rows[i / 2].kind, text);
		assert_true(back.per == u->per && back.per_instance == u->per_instance &&
		            back.basis_used == u->basis_used);
		assert_string_equal(back.base ? back.base : "", u->base ? u->base : "");
		assert_string_equal(back.profile ? back.profile : "", u->profile ? u->profile : "");
		rating_unit_fini(&back);
	}
}

/* A quarter of what the reservation cost is on each hour, also on the one that was lent for nothing. */
static void
lent_time_without_a_price_has_its_part_of_what_the_reservation_cost(void **state)
{
	static const struct rating_book book = {
		.version = "v1", .currency = "EUR", .items = example_items, .item_count = 2, .lender_ratio = RATIO(80)};
	const struct usage_day days[] = {part_of(CHARGE_COMMITMENT, "a", "w", 4), part_of(CHARGE_COVERED, "a", "w", 1),
	                                 part_of(CHARGE_UNUSED, "a", "w", 2),
	                                 lent_to("b", part_of(CHARGE_LENT, "a", "w", 1)), borrowed("b", "v", 1)};

	(void)state;
	owned(rated) struct rated *r = rate(&book, days, ARRAY_LEN(days));
	assert_false(line_of(r, CHARGE_LENT)->priced);
	assert_int_equal(cents(r, "a", CHARGE_COMMITMENT), 800);
	assert_true(line_of(r, CHARGE_COVERED)->days[0].amortised == 200);
	assert_true(line_of(r, CHARGE_LENT)->days[0].amortised == 200);
	assert_true(line_of(r, CHARGE_UNUSED)->days[0].amortised == 400);
	assert_true(line_of(r, CHARGE_COMMITMENT)->days[0].amortised == 0);
}

/* The credit for an instance-hour is below the ninth decimal, that for the GPU-hour which the borrower paid is not. */
static void
cents_of_a_loan_go_to_its_first_day_where_no_day_costs_anything(void **state)
{
	static const struct rating_item items[] = {
		{.sku = "", .price = PRICE(100), .mig_profile = "1g.10gb", .klass = "reserved"},
		{.sku = "", .price = 5, .klass = "borrowed"}};
	static const struct rating_book book = {
		.version = "v1", .currency = "EUR", .items = items, .item_count = 2, .lender_ratio = RATIO(100)};
	struct usage_day days[] = {part_of(CHARGE_COMMITMENT, "a", "w", 10000000),
	                           lent_to("b", part_of(CHARGE_LENT, "a", "w", 10000000))};

	(void)state;
	days[0].mig_profile = "1g.10gb";
	days[0].instance_units = 675;
	owned(rated) struct rated *r = rate(&book, days, ARRAY_LEN(days));
	assert_true(line_of(r, CHARGE_LENT)->unit_price == 0 && line_of(r, CHARGE_LENT)->billed == -5);
	assert_true(line_of(r, CHARGE_LENT)->days[0].billed == -5);
}

/* Instances of two profiles with one size are reserved, and whole GPUs use both. */
static void
profiles_of_one_size_are_two_lines_in_every_order_of_the_input(void **state)
{
	static const struct rating_item items[] = {
		{.sku = "", .price = PRICE(30), .mig_profile = "1g.10gb", .klass = "reserved"},
		{.sku = "", .price = PRICE(30), .mig_profile = "1g.10gb+me", .klass = "reserved"}};
	static const struct rating_book book = {.version = "v1", .currency = "EUR", .items = items, .item_count = 2};
	struct usage_day days[] = {part_of(CHARGE_COMMITMENT, "a", "w", 3), part_of(CHARGE_COVERED, "a", "w", 3),
	                           part_of(CHARGE_COMMITMENT, "a", "w", 5), part_of(CHARGE_COVERED, "a", "w", 5)};

	(void)state;
	for (size_t i = 0; i < 4; i += 2) {
		days[i].mig_profile = i == 0 ? "1g.10gb" : "1g.10gb+me";
		days[i].instance_units = 675;
		days[i].reservation = days[i + 1].reservation = i == 0 ? 1 : 2;
	}
	for (size_t order = 0; order < 2; order++) {
		owned(rated) struct rated *r = rate(&book, days, ARRAY_LEN(days));
		size_t covered = 0;

		for (size_t i = 0; i < r->count; i++) {
			const struct rated_line *l = &r->lines[i];

			if (l->kind != CHARGE_COVERED)
				continue;
			covered++;
			assert_unit(&l->unit,
			            l->ngh == 3000000000 ? "instance-hour of 1g.10gb" : "instance-hour of 1g.10gb+me");
		}
		assert_int_equal(covered, 2);
		for (size_t i = 0; i < 2; i++) {
			struct usage_day first = days[i];

			days[i] = days[i + 2];
			days[i + 2] = first;
		}
	}
}

/* Instances are reserved and priced as such, and whole GPUs use and borrow them. */
static void
parts_of_a_reservation_have_its_unit_and_add_up_in_it(void **state)
{
	static const struct rating_item items[] = {
		{.sku = "", .price = PRICE(100)},
		{.sku = "", .price = PRICE(30), .mig_profile = "1g.10gb", .klass = "reserved"}};
	static const struct rating_book book = {
		.version = "v1", .currency = "EUR", .items = items, .item_count = 2, .lender_ratio = RATIO(100)};
	struct usage_day days[] = {part_of(CHARGE_COMMITMENT, "a", "w", 3), part_of(CHARGE_COVERED, "a", "w", 1),
	                           part_of(CHARGE_UNUSED, "a", "w", 1),
	                           lent_to("b", part_of(CHARGE_LENT, "a", "w", 1))};
	int128 sum = 0;

	(void)state;
	for (size_t i = 0; i < 3; i += 2) {
		days[i].mig_profile = "1g.10gb";
		days[i].instance_units = 675;
	}
	owned(rated) struct rated *r = rate(&book, days, ARRAY_LEN(days));
	assert_int_equal(r->count, 4);
	for (size_t i = 0; i < r->count; i++) {
		const struct rated_line *l = &r->lines[i];

		assert_unit(&l->unit, l->mig_profile[0] != '\0' ? "instance-hour" : "instance-hour of 1g.10gb");
		assert_true(l->list_cost == l->quantity * l->unit_price);
		sum += l->kind == CHARGE_COMMITMENT ? -l->quantity : l->quantity < 0 ? -l->quantity : l->quantity;
	}
	assert_true(sum == 0);
	assert_true(line_of(r, CHARGE_COMMITMENT)->quantity == INT64_C(22400000000));
}

static void
credits_for_a_borrowed_line_are_never_more_than_its_cents(void **state)
{
	static const struct rating_item items[] = {{.sku = "", .price = PRICE(100)}};
	static const struct rating_book book = {
		.version = "v1", .currency = "EUR", .items = items, .item_count = 1, .lender_ratio = RATIO(100)};
	struct usage_day days[] = {part_of(CHARGE_COMMITMENT, "a", "w", 1),
	                           lent_to("b", part_of(CHARGE_LENT, "a", "w", 0)),
	                           lent_to("b", part_of(CHARGE_LENT, "a", "w", 0)),
	                           part_of(CHARGE_UNUSED, "a", "w", 0)};
	const int128 hour = days[0].unit_ns;

	(void)state;
	/* two workspaces of b borrowed six thousandths of an hour each: six tenths of a cent, of which each may have been billed nothing */
	days[1].idle_unit_ns = days[2].idle_unit_ns = hour * 6 / 1000;
	days[1].borrower = "1";
	days[2].borrower = "2";
	days[3].unit_ns = hour - 2 * days[1].idle_unit_ns;
	owned(rated) struct rated *two = rate(&book, days, ARRAY_LEN(days));
	assert_int_equal(cents(two, "a", CHARGE_LENT), 0);
	assert_int_equal(cents(two, "a", CHARGE_COMMITMENT), 100);
	days[2].borrower = "1";
	owned(rated) struct rated *one = rate(&book, days, ARRAY_LEN(days));
	assert_int_equal(cents(one, "a", CHARGE_LENT), -1);
	/* what was lent at no price earns nothing */
	owned(rated) struct rated *free_of_charge =
		rate(&(struct rating_book){.version = "v1", .currency = "EUR"}, days, ARRAY_LEN(days));
	assert_int_equal(cents(free_of_charge, "a", CHARGE_KINDS), 0);
}

static void
basis_used_prices_activity_and_what_cannot_be_measured(void **state)
{
	static const struct rating_item item = {.sku = "", .price = PRICE(100), .basis_used = true};
	static const struct rating_book book = {.version = "v1", .currency = "EUR", .items = &item, .item_count = 1};
	struct usage_day day = row_of(CHARGE_USAGE, "a", "w", 5);
	owned(rated) struct rated *r = NULL;

	(void)state;
	day.used_unit_ns = HOURS(3);
	day.unmeasured_unit_ns = HOURS(1);
	day.over_unit_ns = HOURS(2);
	r = rate(&book, &day, 1);
	assert_int_equal(r->lines[0].allocated_ngh, 9000000000);
	assert_int_equal(r->lines[0].quantity, 6000000000);
	assert_int_equal(cents(r, "a", CHARGE_KINDS), 600);
}

static void
other_meters_have_their_own_items(void **state)
{
	static const struct rating_item items[] = {
		{.sku = "", .price = PRICE(100)}, /* of GPUs */
		{.sku = "", .meter = "storage", .price = PRICE(1)},
		{.sku = "STO-NVME", .meter = "storage", .meter_sku = "nvme", .price = PRICE(2)},
	};
	static const struct rating_book book = {.version = "v1", .currency = "EUR", .items = items, .item_count = 3};
	struct usage_day days[] = {row_of(CHARGE_METER, "a", "w", 0), row_of(CHARGE_METER, "a", "w", 0),
	                           row_of(CHARGE_METER, "a", "w", 0)};
	static const char *const skus[] = {"nvme", "disk", "standard"}, *const meters[] = {"storage", "storage",
	                                                                                   "egress"};
	owned(rated) struct rated *r = NULL;

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(days); i++) {
		days[i].gpu_model = days[i].sharing_mode = days[i].klass = "";
		days[i].instance_units = 0;
		days[i].meter = meters[i];
		days[i].meter_sku = skus[i];
		days[i].category = i < 2 ? "storage" : "network";
		days[i].unit = i < 2 ? "GB-hour" : "GB";
		days[i].quantity = 100000000000;
	}
	r = rate(&book, days, ARRAY_LEN(days));
	assert_int_equal(r->count, 3);
	assert_string_equal(r->lines[0].sku, "STO-NVME");
	assert_int_equal(r->lines[0].billed, 200);
	assert_string_equal(r->lines[1].sku, "disk");
	assert_int_equal(r->lines[1].billed, 100);
	assert_unit(&r->lines[1].unit, "GB-hour");
	assert_string_equal(r->lines[2].description, "standard, egress (no price in force)");
	assert_int_equal(r->lines[2].billed, 0);
}

static void
what_an_item_calls_one_sku_is_one_line(void **state)
{
	static const struct rating_item items[] = {
		{.sku = "disk", .price = PRICE(10), .meter = "storage"},
		{.sku = "disk", .price = PRICE(10), .meter = "storage", .meter_sku = "nvme"},
		{.sku = "disk", .price = PRICE(20), .meter = "storage", .meter_sku = "gold"}};
	static const struct rating_book book = {.version = "v1", .currency = "EUR", .items = items, .item_count = 3};
	static const char *const skus[] = {"nvme", "ssd", "gold"};
	struct usage_day days[3];

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(days); i++) {
		days[i] = row_of(CHARGE_METER, "a", "w", 0);
		days[i].cluster = days[i].gpu_model = days[i].sharing_mode = days[i].klass = "";
		days[i].meter = days[i].category = "storage";
		days[i].unit = "GB-hour";
		days[i].meter_sku = skus[i];
		days[i].quantity = pow10_i128(QUANTITY_SCALE);
	}
	owned(rated) struct rated *r = rate(&book, days, ARRAY_LEN(days));
	assert_int_equal(r->count, 2);
	assert_string_not_equal(r->lines[0].line_id, r->lines[1].line_id);
	for (size_t i = 0; i < 2; i++) {
		const struct rated_line *l = &r->lines[i];

		assert_string_equal(l->sku, "disk");
		assert_int_equal((int64_t)l->quantity, l->unit_price == PRICE(10) ? 2000000000 : 1000000000);
		assert_string_equal(l->meter_sku, l->unit_price == PRICE(10) ? "nvme" : "gold");
	}
}

static void
energy_is_a_line_where_it_has_a_price(void **state)
{
	static const struct rating_site site = {.cluster = "main", .energy_price = PRICE(30)};
	static const struct rating_item item = {.sku = "", .price = 0};
	static const struct rating_book book = {
		.version = "v1", .currency = "EUR", .items = &item, .item_count = 1, .sites = &site, .site_count = 1};
	struct usage_day days[] = {row_of(CHARGE_USAGE, "a", "w", 1), row_of(CHARGE_COVERED, "a", "w", 1),
	                           row_of(CHARGE_USAGE, "a", "w", 1)};
	owned(rated) struct rated *r = NULL;

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(days); i++)
		days[i].energy_mj = (int128)3600000000 * 10; /* 10 kWh each */
	days[2].cluster = "elsewhere";
	r = rate(&book, days, ARRAY_LEN(days));
	assert_int_equal(line_of(r, CHARGE_ENERGY)->quantity, 20000000000);
	assert_unit(&line_of(r, CHARGE_ENERGY)->unit, "kWh");
	assert_string_equal(line_of(r, CHARGE_ENERGY)->category, "energy");
	assert_int_equal(cents(r, "a", CHARGE_KINDS), 600);
}

static void
energy_is_quantised_half_to_even(void **state)
{
	static const struct rating_site site = {.cluster = "main", .energy_price = PRICE(30)};
	static const struct rating_item item = {.sku = "", .price = 0};
	static const struct rating_book book = {
		.version = "v1", .currency = "EUR", .items = &item, .item_count = 1, .sites = &site, .site_count = 1};
	static const struct {
		int64_t mj, quantity;
	} rows[] = {{9, 2}, {27, 8}, {45, 12}, {63, 18}, {26, 7}, {28, 8}};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		struct usage_day day = row_of(CHARGE_USAGE, "a", "w", 1);
		owned(rated) struct rated *r = NULL;

		day.energy_mj = rows[i].mj;
		r = rate(&book, &day, 1);
		assert_int_equal(line_of(r, CHARGE_ENERGY)->quantity, rows[i].quantity);
	}
}

static void
a_discount_is_rounded_half_to_even(void **state)
{
	static const struct rating_item item = {.sku = "", .price = 1};
	static const struct rating_discount discount = {.ratio = 1};
	static const struct rating_book book = {.version = "v1",
	                                        .currency = "EUR",
	                                        .items = &item,
	                                        .item_count = 1,
	                                        .discounts = &discount,
	                                        .discount_count = 1};
	static const struct {
		int halves, discount; /* of an hour at 10^-9, less 10^-9 of it: in 10^-18 */
	} rows[] = {{1, 0}, {3, 2}, {5, 2}, {7, 4}};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		struct usage_day day = row_of(CHARGE_USAGE, "a", "w", 1);
		owned(rated) struct rated *r = NULL;

		day.idle_unit_ns = day.idle_unit_ns / 2 * rows[i].halves;
		r = rate(&book, &day, 1);
		assert_int_equal(r->lines[0].discount, rows[i].discount);
	}
}

static void
the_parts_of_a_commitment_add_up_to_it_in_every_digit(void **state)
{
	/* thirds of a nano-GPU-hour each day, which each part alone would round away */
	struct usage_day days[4 * 30];
	int128 parts = 0;
	owned(rated) struct rated *r = NULL;

	(void)state;
	for (int32_t i = 0; i < 30; i++) {
		static const enum charge_kind kinds[] = {CHARGE_COVERED, CHARGE_UNUSED, CHARGE_UNDELIVERED};
		int128 third = UNITS_PER_GPU * 3600 / 3;

		for (size_t k = 0; k < ARRAY_LEN(kinds); k++) {
			struct usage_day *d = &days[i * 4 + (int)k];

			*d = part_of(kinds[k], "a", "w", 0);
			d->day = i;
			*(kinds[k] == CHARGE_COVERED ? &d->idle_unit_ns : &d->unit_ns) = third;
		}
		days[i * 4 + 3] = part_of(CHARGE_COMMITMENT, "a", "w", 0);
		days[i * 4 + 3].day = i;
		days[i * 4 + 3].unit_ns = 3 * third;
	}
	r = rate(&example_book, days, ARRAY_LEN(days));
	for (size_t i = 0; i < r->count; i++)
		parts += r->lines[i].kind == CHARGE_COMMITMENT ? 0 : r->lines[i].ngh;
	assert_true(line_of(r, CHARGE_COMMITMENT)->ngh == 30);
	assert_true(parts == 30);
}

static void
a_commitment_that_is_not_its_parts_is_refused(void **state)
{
	const struct usage_day days[] = {part_of(CHARGE_COMMITMENT, "a", "w", 4), part_of(CHARGE_COVERED, "a", "w", 3)};
	const struct rating_input in = {.period_start = "2026-11-01",
	                                .period_end = "2026-12-01",
	                                .period = "2026-11",
	                                .period_status = "open",
	                                .currency = "EUR",
	                                .books = &example_book,
	                                .book_count = 1,
	                                .days = days,
	                                .day_count = 2};
	struct rated *r = NULL;
	struct err err = {0};

	(void)state;
	assert_false(rating_run(&in, &r, &err));
	assert_non_null(strstr(err.text, "a/w: the parts of reservation 1 of day 0 do not add up to it"));
}

/* ---- one-off charges and credits ---- */

static struct usage_day
one_off(const char *workspace, int cents, const char *sku, const char *reason)
{
	return (struct usage_day){.kind = CHARGE_ADJUSTMENT,
	                          .cluster = "",
	                          .tenant = "acme",
	                          .cost_center = "",
	                          .workspace = workspace,
	                          .gpu_model = "",
	                          .mig_profile = "",
	                          .sharing_mode = "",
	                          .klass = "",
	                          .price_book = -1,
	                          .category = "support",
	                          .unit = "charge",
	                          .meter_sku = sku,
	                          .quantity = 1000000000,
	                          .amount = PRICE(cents),
	                          .currency = "EUR",
	                          .reason = reason};
}

static void
a_one_off_charge_and_a_credit_are_lines_of_their_own(void **state)
{
	const struct rating_item items[] = {{.sku = "", .price = PRICE(300)}};
	const struct rating_discount off[] = {{.ratio = RATIO(50)}};
	const struct rating_book book = {.version = "1",
	                                 .currency = "EUR",
	                                 .items = items,
	                                 .item_count = 1,
	                                 .discounts = off,
	                                 .discount_count = 1};
	const struct usage_day days[] = {row_of(CHARGE_USAGE, "acme", "training", 2),
	                                 one_off("training", 2550, "adjustment-1", "on-site visit"),
	                                 one_off("", -1000, "adjustment-2", "node lost on the 3rd")};
	owned(rated) struct rated *r = rate(&book, days, ARRAY_LEN(days));
	const struct rated_line *credit = &r->lines[0], *charge = &r->lines[1];

	(void)state;
	assert_int_equal(r->count, 3);
	assert_string_equal(credit->charge_type, "credit");
	assert_string_equal(credit->sku, "adjustment-2");
	assert_string_equal(credit->category, "support");
	assert_unit(&credit->unit, "charge");
	assert_string_equal(credit->description, "Credit: node lost on the 3rd");
	assert_true(credit->quantity == -1000000000 && credit->unit_price == PRICE(1000) && credit->billed == -1000);
	assert_string_equal(charge->charge_type, "adjustment");
	assert_string_equal(charge->description, "One-off charge: on-site visit");
	assert_true(charge->quantity == 1000000000 && charge->billed == 2550 && charge->discount == 0 &&
	            charge->ngh == 0);
	assert_true(r->lines[2].billed == 300); /* 2 h x 3.00, half off */
}

static void
the_total_of_an_invoice_is_rounded_with_its_adjustments(void **state)
{
	const struct rating_book book = {.version = "1", .currency = "EUR"};
	struct usage_day days[] = {one_off("", 0, "adjustment-1", "a"), one_off("", 0, "adjustment-2", "b"),
	                           one_off("", 0, "adjustment-3", "c")};
	int128 sum = 0;

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(days); i++)
		days[i].amount = PRICE(1) / 3 + 1; /* a third of a cent, and a little */
	owned(rated) struct rated *r = rate(&book, days, ARRAY_LEN(days));
	for (size_t i = 0; i < r->count; i++)
		sum += r->lines[i].billed;
	assert_int_equal(r->count, 3);
	assert_true(sum == 1);
}

static void
an_adjustment_of_nothing_is_refused(void **state)
{
	const struct rating_book book = {.version = "1", .currency = "EUR"};
	const struct usage_day day = one_off("", 0, "adjustment-1", "nothing");
	const struct rating_input in = {
		.period = "2026-11", .currency = "EUR", .books = &book, .book_count = 1, .days = &day, .day_count = 1};
	struct rated *r = NULL;
	struct err err = {0};

	(void)state;
	assert_false(rating_run(&in, &r, &err));
	assert_int_equal(err.kind, ERR_INVALID);
	assert_non_null(strstr(err.text, "adjustment-1"));
}

static void
a_tenant_is_not_told_who_borrowed(void **state)
{
	static const struct {
		const char *name, *description, *counterparty, *model, *profile, *sharing, *correction_of, *own;
	} rows[] = {
		{"a whole GPU", "Reserved H100-80GB, lent to globex", "globex", "H100-80GB", "", "exclusive", NULL,
	         "Reserved H100-80GB, lent to another tenant"},
		{"what follows the name stays", "Reserved A100-80GB MIG 3g.40gb, lent to globex (no price in force)",
	         "globex", "A100-80GB", "3g.40gb", "mig", NULL,
	         "Reserved A100-80GB MIG 3g.40gb, lent to another tenant (no price in force)"},
		{"a correction", "correction of 2026-10: Reserved H100-80GB, time-sliced, lent to globex", "globex",
	         "H100-80GB", "", "timeslice", "0123",
	         "correction of 2026-10: Reserved H100-80GB, time-sliced, lent to another tenant"},
		{"a model with the same words", "Reserved X, lent to g, lent to g (provisional: an hour is still open)",
	         "g", "X, lent to g", "", "exclusive", NULL,
	         "Reserved X, lent to g, lent to another tenant (provisional: an hour is still open)"},
		{"words of another version", "Lent: H100-80GB for globex", "globex", "H100-80GB", "", "exclusive", NULL,
	         "Reserved H100-80GB, lent to another tenant"},
		{"a line of another kind has no borrower", "Reserved H100-80GB, neither used nor lent", "", "H100-80GB",
	         "", "exclusive", NULL, "Reserved H100-80GB, neither used nor lent"},
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		owned(mem) char *description = mem_strdup(rows[i].description);
		struct rated_line line = {.kind = rows[i].counterparty[0] != '\0' ? CHARGE_LENT : CHARGE_UNUSED,
		                          .description = description,
		                          .counterparty = rows[i].counterparty,
		                          .gpu_model = rows[i].model,
		                          .mig_profile = rows[i].profile,
		                          .sharing_mode = rows[i].sharing,
		                          .correction_of = rows[i].correction_of,
		                          .period_start = rows[i].correction_of != NULL ? "2026-10-01" : NULL};
		const struct rated all = {.lines = &line, .count = 1};
		struct tenant_lines own = {0};

		print_message("  %s\n", rows[i].name);
		tenant_lines_make(&own, &all);
		assert_string_equal(own.rated.lines[0].description, rows[i].own);
		assert_string_equal(own.rated.lines[0].counterparty, "");
		assert_string_equal(line.description, rows[i].description);
		tenant_lines_fini(&own);
	}
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_pool_of_eight_costs_what_the_worked_example_says),
		cmocka_unit_test(the_shared_node_of_four_costs_what_the_worked_example_says),
		cmocka_unit_test(own_idle_capacity_is_dedicated),
		cmocka_unit_test(lent_time_earns_no_more_than_was_paid_for_it),
		cmocka_unit_test(lent_time_earns_no_more_than_its_commitment_cost_however_that_is_priced),
		cmocka_unit_test(what_a_tenant_saves_is_a_discount_on_the_list_price),
		cmocka_unit_test(a_price_of_its_own_above_the_list_is_a_negative_discount),
		cmocka_unit_test(a_price_of_its_own_for_another_unit_leaves_the_list_price_as_it_is),
		cmocka_unit_test(a_price_for_a_million_has_its_quantity_in_millions),
		cmocka_unit_test(a_unit_comes_back_from_its_text),
		cmocka_unit_test(lent_time_without_a_price_has_its_part_of_what_the_reservation_cost),
		cmocka_unit_test(cents_of_a_loan_go_to_its_first_day_where_no_day_costs_anything),
		cmocka_unit_test(profiles_of_one_size_are_two_lines_in_every_order_of_the_input),
		cmocka_unit_test(what_an_item_calls_one_sku_is_one_line),
		cmocka_unit_test(parts_of_a_reservation_have_its_unit_and_add_up_in_it),
		cmocka_unit_test(credits_for_a_borrowed_line_are_never_more_than_its_cents),
		cmocka_unit_test(basis_used_prices_activity_and_what_cannot_be_measured),
		cmocka_unit_test(other_meters_have_their_own_items),
		cmocka_unit_test(energy_is_a_line_where_it_has_a_price),
		cmocka_unit_test(energy_is_quantised_half_to_even),
		cmocka_unit_test(a_discount_is_rounded_half_to_even),
		cmocka_unit_test(the_parts_of_a_commitment_add_up_to_it_in_every_digit),
		cmocka_unit_test(a_commitment_that_is_not_its_parts_is_refused),
		cmocka_unit_test(a_one_off_charge_and_a_credit_are_lines_of_their_own),
		cmocka_unit_test(the_total_of_an_invoice_is_rounded_with_its_adjustments),
		cmocka_unit_test(an_adjustment_of_nothing_is_refused),
		cmocka_unit_test(a_tenant_is_not_told_who_borrowed),
	};

	return cmocka_run_group_tests_name("rating_kinds", tests, NULL, NULL);
}
