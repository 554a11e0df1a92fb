/* tests/unit/policy/test_policy_to_quota.c - the policy in force as an event of the quota book: its bytes, each rule of the header, and that the book
 * takes it. */
#include "aggregator/core/policy/policy_to_quota.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "aggregator/core/quota/book/quota_book.h"
#include "common/conf/json.h"

#define OUT_MAX (1u << 20)
#define GPUS(n) ((n)*INT64_C(5040))
#define NO_LIMITS                                                         \
	{                                                                 \
		.cpu_millis = -1, .memory_bytes = -1, .storage_bytes = -1 \
	}

static const struct quota_settings settings = {.burst = 2,
                                               .grace_ns = 300,
                                               .aging_ns = 600,
                                               .head_wait_ns = 1800,
                                               .backoff_ns = 60,
                                               .backoff_forget_ns = 86400,
                                               .confirm_ns = 120,
                                               .silence_ns = 90,
                                               .unused_most_ns = 3600};

static const char *east_west[] = {"east", "west"};
static const char *models[] = {"A100-80GB", "H100-80GB"};
static const char *one_class[] = {"high"};
static struct in_force_pool pools[] = {{"east", "", "A100-80GB"},
                                       {"east", "acme", "H100-80GB"},
                                       {"east", "globex", "H100-80GB"}};
static struct in_force_tenant tenants[] = {
	{.name = "acme", .isolation = "gpu", .limits = NO_LIMITS},
	{.name = "globex", .isolation = "shared", .limits = NO_LIMITS},
};
static struct in_force_workspace workspaces[] = {
	{.path = "acme/a",
         .tenant = "acme",
         .home = "east",
         .reclaim = "any",
         .enforce = "on",
         .weight = 1,
         .limits = NO_LIMITS},
	{.path = "globex/g",
         .tenant = "globex",
         .home = "west",
         .reclaim = "any",
         .enforce = "on",
         .weight = 1,
         .limits = NO_LIMITS},
};

/* Two clusters, two models, a pool of each tenant and a shared one, and no rights. */
static struct in_force_policy
plain(void)
{
	return (struct in_force_policy){.clusters = east_west,
	                                .cluster_count = ARRAY_LEN(east_west),
	                                .models = models,
	                                .model_count = ARRAY_LEN(models),
	                                .pools = pools,
	                                .pool_count = ARRAY_LEN(pools),
	                                .tenants = tenants,
	                                .tenant_count = ARRAY_LEN(tenants),
	                                .workspaces = workspaces,
	                                .workspace_count = ARRAY_LEN(workspaces)};
}

static void
write_event(const struct in_force_policy *p, struct buf *out)
{
	struct err err = {0};

	buf_init(out, OUT_MAX);
	if (!policy_to_quota(p, &settings, out, &err))
		fail_msg("%s", err.text);
}

/* One list of the event is this text. */
static void
expect(const char *name, const struct in_force_policy *p, const char *list, const char *want)
{
	in_place(buf) struct buf text = {0};
	owned(json) json_t *event = NULL;
	struct err err = {0};
	char *found;

	write_event(p, &text);
	if (!json_parse("event", buf_text(&text), text.len, &event, &err))
		fail_msg("%s: %s", name, err.text);
	found = json_dumps(json_object_get(json_object_get(event, "policy"), list), JSON_COMPACT);
	if (strcmp(found, want) != 0)
		fail_msg("%s:\n%s\nnot\n%s", name, found, want);
	free(found);
}

/* ---- the bytes ---------------------------------------------------------------------------------------------------------------- */

static void
every_member_is_written_in_its_place(void **state)
{
	struct in_force_shape shapes[] = {{"H100-80GB", "1g.10gb", 630}};
	struct in_force_class classes[] = {{"high", 10, false}, {"low", -5, true}};
	struct in_force_tenant of[] = {{.name = "acme",
	                                .isolation = "gpu",
	                                .classes = one_class,
	                                .class_count = 1,
	                                .limits = {.cpu_millis = 500, .memory_bytes = 0, .storage_bytes = -1}},
	                               {.name = "globex",
	                                .isolation = "shared",
	                                .classes = one_class,
	                                .limits = {.cpu_millis = -1, .memory_bytes = -1, .storage_bytes = 7}}};
	struct in_force_workspace a[] = {{.path = "acme/a",
	                                  .tenant = "acme",
	                                  .home = "east",
	                                  .reclaim = "lower",
	                                  .enforce = "warn",
	                                  .preempt_own = true,
	                                  .weight = 3,
	                                  .limits = {.cpu_millis = 1, .memory_bytes = 2, .storage_bytes = 3}}};
	struct in_force_reservation reserved[] = {{"acme/a", "east", "H100-80GB", false, 1260, "1g.10gb"}};
	struct in_force_amount limits[] = {
		{.owner = "acme/a", .kind = IN_FORCE_LIMIT, .model = "", .units = GPUS(8), .profile = ""}};
	struct in_force_amount maxima[] = {
		{.owner = "acme", .kind = IN_FORCE_MAXIMUM, .model = "H100-80GB", .units = -1, .profile = ""}};
	struct in_force_budget budgets[] = {{"acme", "", true, "money", 100000, "EUR"},
	                                    {"acme", "acme/a", false, "unit_seconds", 18144000, ""}};
	struct rating_item item = {.sku = "", .price = 3200000000};
	struct rating_book book = {.currency = "EUR", .items = &item, .item_count = 1};
	struct in_force_policy p = {.clusters = east_west,
	                            .cluster_count = 1,
	                            .models = models + 1,
	                            .model_count = 1,
	                            .pools = pools + 1,
	                            .pool_count = 1,
	                            .shapes = shapes,
	                            .shape_count = 1,
	                            .classes = classes,
	                            .class_count = 2,
	                            .tenants = of,
	                            .tenant_count = 2,
	                            .workspaces = a,
	                            .workspace_count = 1,
	                            .reservations = reserved,
	                            .reservation_count = 1,
	                            .limits = limits,
	                            .limit_count = 1,
	                            .maxima = maxima,
	                            .maximum_count = 1,
	                            .budgets = budgets,
	                            .budget_count = 2,
	                            .prices = &book};
	in_place(buf) struct buf out = {0};

	(void)state;
	write_event(&p, &out);
	assert_string_equal(
		buf_text(&out),
		"{\"policy\":{\"settings\":{\"burst\":2,\"grace_ns\":300,\"aging_ns\":600,\"head_wait_ns\":1800,\"backoff_ns\":60,"
		"\"backoff_forget_ns\":86400,\"confirm_ns\":120,\"silence_ns\":90,\"unused_most_ns\":3600},\"clusters\":[\"east\"],\"models\":[\"H100-80GB\"],"
		"\"shapes\":[{\"model\":\"H100-80GB\",\"profile\":\"1g.10gb\",\"units\":630}],"
		"\"classes\":[{\"name\":\"high\",\"value\":10,\"preemptible\":false},{\"name\":\"low\",\"value\":-5,\"preemptible\":true}],"
		"\"tenants\":[{\"name\":\"acme\",\"isolation\":\"gpu\",\"classes\":[\"high\"],\"cpu_millis\":500,\"memory_bytes\":0},"
		"{\"name\":\"globex\",\"isolation\":\"shared\",\"classes\":[],\"storage_bytes\":7}],"
		"\"workspaces\":[{\"path\":\"acme/a\",\"home\":\"east\",\"reclaim\":\"lower\",\"preempt_own\":true,\"enforce\":\"warn\","
		"\"weight\":3,\"cpu_millis\":1,\"memory_bytes\":2,\"storage_bytes\":3}],"
		"\"shares\":[{\"workspace\":\"acme/a\",\"cluster\":\"east\",\"model\":\"H100-80GB\",\"shared\":false,"
		"\"reserved_units\":1260,\"reserved_profile\":\"1g.10gb\",\"limit_units\":40320}],"
		"\"caps\":[{\"tenant\":\"acme\",\"cluster\":\"east\",\"model\":\"H100-80GB\",\"maximum_units\":null}],"
		"\"budgets\":[{\"tenant\":\"acme\",\"kind\":\"money\",\"hard\":true,\"amount\":100000},"
		"{\"tenant\":\"acme\",\"workspace\":\"acme/a\",\"kind\":\"unit_seconds\",\"hard\":false,\"amount\":18144000}],"
		"\"prices\":[{\"tenant\":\"acme\",\"model\":\"H100-80GB\",\"hour_micros\":3200000}]}}");
}

static void
an_event_that_does_not_fit_its_buffer_is_refused(void **state)
{
	const struct in_force_policy p = plain();
	in_place(buf) struct buf out = {0};
	struct err err = {0};

	(void)state;
	buf_init(&out, 100);
	assert_false(policy_to_quota(&p, &settings, &out, &err));
	assert_non_null(err.text);
}

/* ---- shares: rules 1 to 3 and 5 ------------------------------------------------------------------------------------------------- */

#define SHARE(w, c, m, shared, amounts) \
	"{\"workspace\":\"" w "\",\"cluster\":\"" c "\",\"model\":\"" m "\",\"shared\":" shared amounts "}"
#define LIMIT_OF(w, m, of, profile_, n)                                                                          \
	{                                                                                                        \
		.owner = w, .kind = IN_FORCE_LIMIT, .model = m, .units = of, .profile = profile_, .instances = n \
	}

static const struct share_case {
	const char *name;
	struct in_force_reservation reserved[2];
	struct in_force_amount limits[4];
	const char *want;
} share_cases[] = {
	{"a workspace without rights has no share", {{0}}, {{0}}, "[]"},
	{"a limit for every model holds in the own pool and in the shared one, not in another tenant's",
         {{0}},
         {LIMIT_OF("acme/a", "", GPUS(8), "", 0)},
         "[" SHARE("acme/a", "east", "A100-80GB", "true", ",\"limit_units\":40320") "," SHARE(
		 "acme/a", "east", "H100-80GB", "false", ",\"limit_units\":40320") "]"},
	{"a reservation is in its pool alone",
         {{"acme/a", "east", "A100-80GB", true, GPUS(2), ""}},
         {{0}},
         "[" SHARE("acme/a", "east", "A100-80GB", "true", ",\"reserved_units\":10080") "]"},
	{"a reservation in a pool without GPUs is still one",
         {{"globex/g", "west", "H100-80GB", false, GPUS(1), ""}},
         {{0}},
         "[" SHARE("globex/g", "west", "H100-80GB", "false", ",\"reserved_units\":5040") "]"},
	{"a limit that names its model holds in empty pools of the home too",
         {{0}},
         {LIMIT_OF("globex/g", "H100-80GB", GPUS(4), "", 0)},
         "[" SHARE("globex/g", "east", "H100-80GB", "false", ",\"limit_units\":20160") "," SHARE(
		 "globex/g", "west", "H100-80GB", "false",
		 ",\"limit_units\":20160") "," SHARE("globex/g", "west", "H100-80GB", "true",
                                                     ",\"limit_units\":20160") "]"},
	{"a reservation in an empty pool of the home has its limit once",
         {{"globex/g", "west", "H100-80GB", false, GPUS(1), ""}},
         {LIMIT_OF("globex/g", "H100", GPUS(4), "", 0)},
         "[" SHARE("globex/g", "east", "H100-80GB", "false", ",\"limit_units\":20160") "," SHARE(
		 "globex/g", "west", "H100-80GB", "false",
		 ",\"reserved_units\":5040,\"limit_units\":20160") "," SHARE("globex/g", "west", "H100-80GB", "true",
                                                                             ",\"limit_units\":20160") "]"},
	{"a limit of the model comes before the one of every model, and none is null",
         {{0}},
         {LIMIT_OF("acme/a", "H100-80GB", GPUS(1), "", 0), LIMIT_OF("acme/a", "", -1, "", 0)},
         "[" SHARE("acme/a", "east", "A100-80GB", "true", ",\"limit_units\":null") "," SHARE(
		 "acme/a", "east", "H100-80GB", "false",
		 ",\"limit_units\":5040") "," SHARE("acme/a", "east", "H100-80GB", "true",
                                                    ",\"limit_units\":5040") "]"},
	{"instances are weighed by the model of the pool",
         {{0}},
         {LIMIT_OF("acme/a", "", -1, "1g.10gb", 4)},
         "[" SHARE("acme/a", "east", "A100-80GB", "true", ",\"limit_units\":2700") "," SHARE(
		 "acme/a", "east", "H100-80GB", "false", ",\"limit_units\":2700") "]"},
	{"instances of a profile that the model does not have are no amount",
         {{0}},
         {LIMIT_OF("acme/a", "", -1, "1g.5gb", 4)},
         "[]"},
	{"limit, borrow and lend are one share",
         {{0}},
         {{.owner = "globex/g", .kind = IN_FORCE_BORROW, .model = "A100", .units = 0, .profile = ""},
          {.owner = "globex/g", .kind = IN_FORCE_LEND, .model = "A100", .units = 630, .profile = ""},
          {.owner = "globex/g", .kind = IN_FORCE_LIMIT, .model = "A100", .units = GPUS(1), .profile = ""}},
         "[" SHARE("globex/g", "east", "A100-80GB", "true", ",\"limit_units\":5040,\"borrow_units\":0,\"lend_units\":630") "," SHARE(
		 "globex/g", "west", "A100-80GB", "false",
		 ",\"limit_units\":5040,\"borrow_units\":0,\"lend_units\":630") "," SHARE("globex/g", "west",
                                                                                          "A100-80GB", "true",
                                                                                          ",\"limit_units\":5040,\"borrow_units\":0,\"lend_units\":630") "]"},
	{"rights of a workspace that is not in force any more are passed over",
         {{"acme/Z", "east", "H100-80GB", false, GPUS(1), ""}, {"acme/a", "east", "H100-80GB", false, GPUS(3), ""}},
         {LIMIT_OF("acme/0", "", GPUS(9), "", 0), LIMIT_OF("globex/z", "", GPUS(9), "", 0)},
         "[" SHARE("acme/a", "east", "H100-80GB", "false", ",\"reserved_units\":15120") "]"},
};

static void
each_share_is_as_the_rules_say(void **state)
{
	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(share_cases); i++) {
		struct share_case c = share_cases[i];
		struct in_force_policy p = plain();

		p.reservations = c.reserved;
		while (p.reservation_count < ARRAY_LEN(c.reserved) && c.reserved[p.reservation_count].workspace)
			p.reservation_count++;
		p.limits = c.limits;
		while (p.limit_count < ARRAY_LEN(c.limits) && c.limits[p.limit_count].owner)
			p.limit_count++;
		expect(c.name, &p, "shares", c.want);
	}
}

/* ---- caps and prices: rules 4 and 6 ---------------------------------------------------------------------------------------------- */

static void
a_maximum_holds_in_every_cluster_for_each_model_that_it_fits(void **state)
{
	struct in_force_amount maxima[] = {
		{.owner = "acme", .kind = IN_FORCE_DEFAULT_LIMIT, .model = "H100", .units = GPUS(1), .profile = ""},
		{.owner = "acme", .kind = IN_FORCE_MAXIMUM, .model = "H100", .units = GPUS(4), .profile = ""},
		{.owner = "globex", .kind = IN_FORCE_MAXIMUM, .model = "L4", .units = GPUS(2), .profile = ""},
	};
	struct in_force_policy p = plain();

	(void)state;
	p.maxima = maxima;
	p.maximum_count = ARRAY_LEN(maxima);
	expect("caps", &p, "caps",
	       "[{\"tenant\":\"acme\",\"cluster\":\"east\",\"model\":\"H100-80GB\",\"maximum_units\":20160,\"default_limit_units\":5040},"
	       "{\"tenant\":\"acme\",\"cluster\":\"west\",\"model\":\"H100-80GB\",\"maximum_units\":20160,\"default_limit_units\":5040}]");
}

static void
prices_are_for_tenants_with_a_budget_in_the_book_s_currency(void **state)
{
	struct rating_item items[] = {
		{.sku = "", .gpu_model = "H100-80GB", .klass = "on-demand", .price = 3000000001},
		{.sku = "",
	         .gpu_model = "H100-80GB",
	         .mig_profile = "1g.10gb",
	         .klass = "on-demand",
	         .price = 500000000},
		{.sku = "", .gpu_model = "A100-80GB", .mig_profile = "1g.10gb", .klass = "reserved", .price = 1},
	};
	struct rating_discount tenth = {.tenant = "globex", .ratio = RATIO_ONE / 10};
	struct rating_book book = {.currency = "EUR",
	                           .items = items,
	                           .item_count = ARRAY_LEN(items),
	                           .discounts = &tenth,
	                           .discount_count = 1};
	struct in_force_budget budgets[] = {{"acme", "", true, "unit_seconds", 1, ""},
	                                    {"globex", "", true, "money", 1, "EUR"},
	                                    {"globex", "globex/g", true, "money", 1, "EUR"}};
	struct in_force_policy p = plain();

	(void)state;
	p.budgets = budgets;
	p.budget_count = ARRAY_LEN(budgets);
	expect("without a book there are none", &p, "prices", "[]");
	p.prices = &book;
	expect("each tenant, model and profile once", &p, "prices",
	       "[{\"tenant\":\"globex\",\"model\":\"A100-80GB\",\"hour_micros\":0},"
	       "{\"tenant\":\"globex\",\"model\":\"A100-80GB\",\"profile\":\"1g.10gb\",\"hour_micros\":0},"
	       "{\"tenant\":\"globex\",\"model\":\"H100-80GB\",\"hour_micros\":2700001},"
	       "{\"tenant\":\"globex\",\"model\":\"H100-80GB\",\"profile\":\"1g.10gb\",\"hour_micros\":450000}]");
	budgets[1].currency = budgets[2].currency = "USD";
	expect("another currency is not converted", &p, "prices", "[]");
}

/* ---- the book ----------------------------------------------------------------------------------------------------------------- */

static void
the_book_takes_the_event_and_has_its_workspaces(void **state)
{
	struct in_force_amount limits[] = {LIMIT_OF("acme/a", "", GPUS(8), "", 0)};
	struct in_force_class high = {"high", 10, true};
	struct in_force_policy p = plain();
	owned(quota_book) struct quota_book *book = NULL;
	owned(quota_outcome) struct quota_outcome *outcome = NULL;
	in_place(buf) struct buf out = {0};
	struct err err = {0};

	(void)state;
	p.limits = limits;
	p.limit_count = 1;
	p.classes = &high;
	p.class_count = 1;
	write_event(&p, &out);
	if (!quota_book_open("{}", 2, &book, &err) ||
	    !quota_book_step(book, 1, buf_text(&out), out.len, &outcome, &err))
		fail_msg("%s", err.text);
	assert_int_equal(quota_book_cluster_count(book), 2);
	assert_true(quota_book_takes(book, "acme/a", "high"));
	assert_false(quota_book_takes(book, "acme/b", NULL));
	assert_int_equal(quota_book_settings(book)->head_wait_ns, settings.head_wait_ns);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_member_is_written_in_its_place),
		cmocka_unit_test(an_event_that_does_not_fit_its_buffer_is_refused),
		cmocka_unit_test(each_share_is_as_the_rules_say),
		cmocka_unit_test(a_maximum_holds_in_every_cluster_for_each_model_that_it_fits),
		cmocka_unit_test(prices_are_for_tenants_with_a_budget_in_the_book_s_currency),
		cmocka_unit_test(the_book_takes_the_event_and_has_its_workspaces),
	};

	return cmocka_run_group_tests_name("policy_to_quota", tests, NULL, NULL);
}
