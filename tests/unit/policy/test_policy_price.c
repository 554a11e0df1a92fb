/* tests/unit/policy/test_policy_price.c - the price book of a policy: what is read, what is refused, what is said to change. */
#include "aggregator/core/policy/policy.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#define HEAD "version: 1\ncluster: demo\n"
#define PEOPLE HEAD "tenants: [{name: acme}, {name: globex}]\nnodes: [{name: n, shared: true, cluster: west}]\n"
#define BOOK "prices:\n  version: v1\n  currency: EUR\n"
#define ITEMS PEOPLE BOOK "  items:\n"
#define NO_ITEMS PEOPLE BOOK "  items: []\n"

static const char full[] = ITEMS
	"    - {gpu_model: H100-80GB, class: on-demand, price: \"3.20\"}\n"
	"    - {gpu_model: H100-80GB, class: on-demand, basis: used, tenant: acme, sku: acme-h100, price: \"2.50\"}\n"
	"    - {meter: storage, meter_sku: nvme, price: \"0.0002\"}\n"
	"    - {meter: inference-input-tokens, tenant: globex, price: \"0.15\", per: 1000000}\n"
	"  discounts:\n"
	"    - {tenant: acme, category: gpu, class: on-demand, percent: \"12.5\"}\n"
	"    - {percent: 1}\n"
	"  lender_ratio: \"0.8\"\n"
	"  energy:\n"
	"    - {cluster: demo, price_per_kwh: \"0.30\", carbon_g_per_kwh: 380}\n"
	"    - {cluster: west, carbon_g_per_kwh: \"12.5\"}\n"
	"  shared_idle: {method: weights, weights: {acme: 2, globex: 1}}\n"
	"  platform_cost: {monthly: \"120000.00\"}\n";

static struct policy *
parse(const char *text)
{
	struct policy *p = NULL;
	struct err err = {0};

	if (!policy_parse("p.yaml", text, strlen(text), &p, &err))
		fail_msg("%s", err.text);
	return p;
}

static void
a_full_book_is_read_as_it_stands(void **state)
{
	owned(policy) struct policy *p = parse(full);
	const struct policy_book *b = p->prices;

	(void)state;
	assert_int_equal(b->item_count, 4);
	assert_null(b->items[0].tenant);
	assert_false(b->items[0].basis_used);
	assert_int_equal(b->items[0].per, 1);
	assert_string_equal(b->items[1].tenant, "acme");
	assert_true(b->items[1].basis_used);
	assert_string_equal(b->items[2].meter, "storage");
	assert_string_equal(b->items[2].meter_sku, "nvme");
	assert_null(b->items[2].klass);
	assert_true(b->items[3].price == 150000000);
	assert_int_equal(b->items[3].per, 1000000);
	assert_int_equal(b->discount_count, 2);
	assert_int_equal(b->discounts[0].ratio, 125000000);
	assert_string_equal(b->discounts[0].category, "gpu");
	assert_null(b->discounts[1].tenant);
	assert_int_equal(b->lender_ratio, 800000000);
	assert_true(b->energy[0].price == 300000000);
	assert_true(b->energy[0].carbon == 380 * pow10_i128(PRICE_SCALE));
	assert_true(b->energy[1].price == -1);
	assert_string_equal(b->shared_idle, "weights");
	assert_int_equal(b->weights[0].weight, 2);
	assert_true(b->platform_cost == 120000 * pow10_i128(PRICE_SCALE));
}

static void
what_a_book_does_not_say_costs_and_grants_nothing(void **state)
{
	owned(policy) struct policy *p = parse(NO_ITEMS);

	(void)state;
	assert_int_equal(p->prices->lender_ratio, 0);
	assert_int_equal(p->prices->discount_count, 0);
	assert_int_equal(p->prices->energy_count, 0);
	assert_string_equal(p->prices->shared_idle, "none");
	assert_true(p->prices->platform_cost == -1);
}

static const struct refusal {
	const char *name, *text, *want;
} refusals[] = {
	{"an unknown key of a book", NO_ITEMS "  discount: []\n",
         "p.yaml:9: unknown key 'discount'; did you mean 'discounts'?"},
	{"an unknown meter", ITEMS "    - {meter: tape, price: 1}\n",
         "p.yaml:9: meter \"tape\" is not one of storage, egress, inference-requests"},
	{"a meter with a GPU", ITEMS "    - {meter: storage, gpu_model: L4, price: 1}\n",
         "p.yaml:9: gpu_model: a price of meter storage has no such key"},
	{"a meter with a class", ITEMS "    - {meter: support, class: reserved, price: 1}\n",
         "p.yaml:9: class: a price of meter support has no such key"},
	{"a GPU with the SKU of a meter", ITEMS "    - {gpu_model: L4, meter_sku: nvme, price: 1}\n",
         "p.yaml:9: meter_sku: a price without a meter has no such key"},
	{"hours of GPUs by the thousand", ITEMS "    - {gpu_model: L4, price: 1, per: 1000}\n",
         "p.yaml:9: per: a price without a meter has no such key"},
	{"a price per nothing", ITEMS "    - {meter: egress, price: 1, per: 0}\n",
         "p.yaml:9: per is 0, outside 1 to 1000000000"},
	{"used time of a reservation", ITEMS "    - {class: reserved, basis: used, price: 1}\n",
         "p.yaml:9: basis \"used\" is for class on-demand or borrowed, not reserved"},
	{"an unknown basis", ITEMS "    - {basis: busy, price: 1}\n",
         "p.yaml:9: basis \"busy\" is not one of allocated, used"},
	{"a price for nobody known", ITEMS "    - {tenant: acne, price: 1}\n",
         "p.yaml:9: this price is for tenant \"acne\", which the policy does not have"},
	{"one tenant's price twice",
         ITEMS "    - {tenant: acme, price: 1}\n    - {price: 1}\n    - {tenant: acme, price: 2}\n",
         "p.yaml:11: this price is for the same usage as the one on line 9"},
	{"one meter's price twice", ITEMS "    - {meter: egress, price: 1}\n    - {meter: egress, price: 2}\n",
         "p.yaml:10: this price is for the same usage as the one on line 9"},
	{"a discount without an amount", NO_ITEMS "  discounts: [{tenant: acme}]\n",
         "p.yaml:9: a discount needs the key percent"},
	{"a discount above the price", NO_ITEMS "  discounts: [{percent: 100.5}]\n",
         "p.yaml:9: percent \"100.5\" is outside 0 to 100"},
	{"a discount that is a surcharge", NO_ITEMS "  discounts: [{percent: -5}]\n",
         "p.yaml:9: percent \"-5\" is outside 0 to 100"},
	{"a discount finer than a price", NO_ITEMS "  discounts: [{percent: 0.00000001}]\n",
         "p.yaml:9: percent \"0.00000001\" has 8 decimals"},
	{"a discount for nobody known", NO_ITEMS "  discounts: [{tenant: acne, percent: 5}]\n",
         "p.yaml:9: this discount is for tenant \"acne\", which the policy does not have"},
	{"a discount on energy", NO_ITEMS "  discounts: [{category: energy, percent: 5}]\n",
         "p.yaml:9: category \"energy\" is not one of gpu, storage"},
	{"a class of storage", NO_ITEMS "  discounts: [{category: storage, class: reserved, percent: 5}]\n",
         "p.yaml:9: class \"reserved\": category storage has no classes"},
	{"a discount twice", NO_ITEMS "  discounts: [{tenant: acme, percent: 5}, {tenant: acme, percent: 6}]\n",
         "p.yaml:9: this discount is for the same as the one on line 9"},
	{"a ratio above one", NO_ITEMS "  lender_ratio: 1.1\n", "p.yaml:9: lender_ratio \"1.1\" is outside 0 to 1"},
	{"a ratio with ten decimals", NO_ITEMS "  lender_ratio: 0.1234567891\n",
         "p.yaml:9: lender_ratio \"0.1234567891\" has 10 decimals"},
	{"energy of no cluster", NO_ITEMS "  energy: [{price_per_kwh: 1}]\n",
         "p.yaml:9: an entry of energy needs the key cluster"},
	{"energy of an unknown cluster", NO_ITEMS "  energy: [{cluster: moon, price_per_kwh: 1}]\n",
         "p.yaml:9: energy: cluster \"moon\" is neither the policy's nor a node's"},
	{"energy without a number", NO_ITEMS "  energy: [{cluster: demo}]\n",
         "p.yaml:9: energy of cluster demo needs price_per_kwh, carbon_g_per_kwh or both"},
	{"carbon beyond any plant's", NO_ITEMS "  energy: [{cluster: demo, carbon_g_per_kwh: 1000001}]\n",
         "p.yaml:9: carbon_g_per_kwh \"1000001\" is outside 0 to 1000000"},
	{"a cluster's energy twice",
         NO_ITEMS "  energy: [{cluster: demo, price_per_kwh: 1}, {cluster: demo, price_per_kwh: 1}]\n",
         "p.yaml:9: energy of cluster \"demo\" is already on line 9"},
	{"an unknown method", NO_ITEMS "  shared_idle: {method: fair}\n",
         "p.yaml:9: method \"fair\" is not one of none, even, proportional, weights"},
	{"no method", NO_ITEMS "  shared_idle: {}\n", "p.yaml:9: shared_idle needs the key method"},
	{"weights without any", NO_ITEMS "  shared_idle: {method: weights}\n",
         "p.yaml:9: shared_idle: method weights needs the key weights"},
	{"weights beside another method", NO_ITEMS "  shared_idle: {method: even, weights: {acme: 1}}\n",
         "p.yaml:9: shared_idle: weights are for method weights, not even"},
	{"a weight of nothing", NO_ITEMS "  shared_idle: {method: weights, weights: {acme: 0}}\n",
         "p.yaml:9: acme is 0, outside 1 to 1000000"},
	{"a weight of nobody known", NO_ITEMS "  shared_idle: {method: weights, weights: {acne: 1}}\n",
         "p.yaml:9: this weight is for tenant \"acne\", which the policy does not have"},
	{"a platform that pays", NO_ITEMS "  platform_cost: {monthly: -1}\n",
         "p.yaml:9: monthly \"-1\" is outside 0 to 1000000000000"},
	{"a cost of no month", NO_ITEMS "  platform_cost: {}\n", "p.yaml:9: platform_cost needs the key monthly"},
};

static void
what_is_wrong_is_refused_with_file_line_field_and_value(void **state)
{
	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(refusals); i++) {
		const struct refusal *r = &refusals[i];
		owned(policy) struct policy *p = NULL;
		struct err err = {0};

		if (policy_parse("p.yaml", r->text, strlen(r->text), &p, &err))
			fail_msg("%s: accepted", r->name);
		if (err.kind != ERR_INVALID || strncmp(err.text, r->want, strlen(r->want)) != 0)
			fail_msg("%s: \"%s\", wanted \"%s\"", r->name, err.text, r->want);
	}
}

static void
assert_diff(const char *from, const char *to, const char *want)
{
	owned(policy) struct policy *a = parse(from), *b = parse(to);
	in_place(buf) struct buf out;

	buf_init(&out, 1u << 16);
	(void)policy_diff(a, b, &out);
	assert_string_equal(buf_text(&out), want);
}

static void
each_change_of_a_book_is_one_line(void **state)
{
	static const char after[] =
		ITEMS "    - {gpu_model: H100-80GB, class: on-demand, basis: used, price: \"3.20\"}\n"
		      "    - {meter: storage, meter_sku: nvme, price: \"0.0003\"}\n"
		      "    - {meter: inference-input-tokens, tenant: globex, price: \"0.15\", per: 1000}\n"
		      "  discounts:\n"
		      "    - {tenant: acme, category: gpu, class: on-demand, percent: 10}\n"
		      "    - {category: storage, percent: 2}\n"
		      "  energy: [{cluster: demo, price_per_kwh: \"0.25\"}]\n"
		      "  shared_idle: {method: weights, weights: {globex: 3}}\n"
		      "  platform_cost: {monthly: 1}\n";

	(void)state;
	assert_diff(full, full, "");
	assert_diff(full, after,
	            "~ price H100-80GB on-demand 3.20 -> 3.20 of what was used\n"
	            "~ price storage nvme 0.0002 -> 0.0003\n"
	            "~ price inference-input-tokens for globex 0.15 per 1000000 -> 0.15 per 1000\n"
	            "- price H100-80GB on-demand for acme\n"
	            "~ discount acme gpu on-demand 12.5 % -> 10 %\n"
	            "+ discount everybody storage 2 %\n"
	            "- discount everybody\n"
	            "~ prices lender_ratio 0.8 -> 0\n"
	            "~ energy demo price_per_kwh 0.3 -> 0.25\n"
	            "- energy demo carbon_g_per_kwh 380\n"
	            "- energy west carbon_g_per_kwh 12.5\n"
	            "~ shared_idle weight globex 1 -> 3\n"
	            "- shared_idle weight acme\n"
	            "~ prices platform_cost 120000 -> 1\n");
	assert_diff(NO_ITEMS, PEOPLE BOOK "  items: []\n  shared_idle: {method: even}\n  platform_cost: {monthly: 1}\n",
	            "~ prices shared_idle none -> even\n+ prices platform_cost 1\n");
}

static void
prices_alone_are_read_beside_a_policy(void **state)
{
	static const struct {
		const char *name, *text, *want; /* want NULL: accepted */
	} cases[] = {
		{"only the prices", "prices: {version: v2, currency: EUR, items: [{tenant: acme, price: 2}]}\n", NULL},
		{"a whole policy with its own tenants",
	         HEAD
	         "tenants: [{name: new}]\nprices: {version: v2, currency: EUR, items: [{tenant: new, price: 2}]}\n",
	         NULL},
		{"a tenant that neither has",
	         "prices: {version: v2, currency: EUR, items: [{tenant: new, price: 2}]}\n",
	         "b.yaml:1: this price is for tenant \"new\", which the policy does not have"},
		{"no prices", HEAD, "b.yaml:1: the file has no key prices"},
		{"half a policy", "tenants: []\nprices: {version: v2, currency: EUR, items: []}\n",
	         "b.yaml:1: unknown key 'tenants'"},
	};
	owned(policy) struct policy *beside = parse(full);

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		owned(policy_book) struct policy_book *b = NULL;
		struct err err = {0};
		bool ok = policy_parse_book("b.yaml", cases[i].text, strlen(cases[i].text), beside, &b, &err);

		if (ok != (cases[i].want == NULL) ||
		    (!ok && strncmp(err.text, cases[i].want, strlen(cases[i].want)) != 0))
			fail_msg("%s: %s", cases[i].name, ok ? "accepted" : err.text);
		if (ok)
			assert_string_equal(b->version, "v2");
		else
			assert_null(b);
	}
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_full_book_is_read_as_it_stands),
		cmocka_unit_test(what_a_book_does_not_say_costs_and_grants_nothing),
		cmocka_unit_test(what_is_wrong_is_refused_with_file_line_field_and_value),
		cmocka_unit_test(each_change_of_a_book_is_one_line),
		cmocka_unit_test(prices_alone_are_read_beside_a_policy),
	};

	return cmocka_run_group_tests_name("policy_price", tests, NULL, NULL);
}
