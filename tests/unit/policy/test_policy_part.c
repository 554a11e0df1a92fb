/* tests/unit/policy/test_policy_part.c - the part of the policy that a tenant's administrator may change: the bounds, and its place in
 * the operator's document. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "aggregator/core/policy/policy.h"

#define FILE_MAX (4u << 20)

static const char operators[] =
	"# the operator's file\n"
	"version: 1\n"
	"cluster: demo\n"
	"effective: 2026-11-01T00:00:00Z # the beginning\n"
	"priority_classes: [{name: production, value: 100}]\n"
	"tenants:\n"
	"  # Globex came first.\n"
	"  - name: globex\n"
	"    workspaces: [{name: g, rules: [{namespace: globex}]}]\n"
	"\n"
	"  # Acme pays for two.\n"
	"  - name: acme\n"
	"    display_name: Acme\n"
	"    cost_center: \"42\"\n"
	"    owner: ops\n"
	"    maximum: 16\n"
	"    priority_classes: [production]\n"
	"    limits: {cpu: 64}\n"
	"    workspaces:\n"
	"      - {name: a, reserved: 4, limit: 8, weight: 3, rules: [{namespace: one}, {user: u, priority: 5}]}\n"
	"      - {name: b, reserved: {L4: 1}, reserved_shared: 2x1g.10gb, enforce: warn, rules: [{group: g}]}\n"
	"      # nothing below is Acme's\n"
	"\n"
	"  # Initech is last.\n"
	"  - name: initech\n"
	"nodes: # all of them\n"
	"  - {name: n, tenant: acme, model: H100-80GB, gpus: 8}\n";

static struct policy *
parse(const char *text)
{
	struct policy *p = NULL;
	struct err err = {0};

	if (!policy_parse_part("part.yaml", text, strlen(text), &p, &err))
		fail_msg("refused: %s", err.text);
	return p;
}

#define PART "version: 1\ncluster: demo\ntenants:\n  - name: acme\n"
#define RULES_A "rules: [{namespace: one}, {user: u, priority: 5}]"
#define RULES_B "rules: [{group: g}]"
#define WORKSPACES(a, b)                                                                                      \
	PART "    workspaces:\n      - {name: a, " RULES_A a "}\n      - {name: b, enforce: warn, " RULES_B b \
	     "}\n" /* 6, 7 */

static const struct {
	const char *name, *text, *want; /* NULL: it may */
} rows[] = {
	{"what the operator granted", WORKSPACES(", reserved: 4", ", reserved: {L4: 1}, reserved_shared: 2x1g.10gb"),
         NULL},
	{"less than that", WORKSPACES("", ""), NULL},
	{"a reservation moved to another workspace", WORKSPACES("", ", reserved: 4"), NULL},
	{"a reservation shared out", WORKSPACES(", reserved: 3", ", reserved: 1"), NULL},
	{"members, limits and a new workspace",
         PART "    members: [{user: z, role: tenant-admin}]\n    default_limit: 2\n    workspaces:\n"
              "      - {name: a, limit: 16, members: [{user: y, role: viewer}], " RULES_A "}\n"
              "      - {name: c, limit: none, weight: 3, " RULES_B "}\n",
         NULL},
	{"the operator's fields as they are",
         PART
         "    display_name: Acme\n    cost_center: \"42\"\n    owner: ops\n    maximum: 16\n    isolation: shared\n"
         "    priority_classes: [production]\n    limits: {cpu: 64}\n"
         "    workspaces: [{name: a, " RULES_A "}, {name: b, " RULES_B "}]\n",
         NULL},
	{"rules moved to another workspace", PART "    workspaces: [{name: a, " RULES_B "}, {name: b, " RULES_A "}]\n",
         NULL},
	{"more than was granted", WORKSPACES(", reserved: 5", ""),
         "part.yaml:6: workspace acme/a: reserved: the workspaces reserve 5 GPUs together, and the operator granted 4"},
	{"more than was granted in two workspaces", WORKSPACES(", reserved: 3", ", reserved: 2"),
         "reserve 5 GPUs together, and the operator granted 4"},
	{"a part more", WORKSPACES(", reserved: 4", ", reserved: \"1/7\""),
         "reserve 29/7 GPUs together, and the operator granted 4"},
	{"another model", WORKSPACES(", reserved: {H100: 1}", ""),
         "reserve 1 GPUs of H100 together, and the operator granted 0"},
	{"more of one model", WORKSPACES("", ", reserved: {L4: 2}"),
         "part.yaml:7: workspace acme/b: reserved: the workspaces reserve 2 GPUs of L4 together, and the operator granted 1"},
	{"instances instead of GPUs", WORKSPACES(", reserved: 1x1g.10gb", ""),
         "reserve 1 1g.10gb together, and the operator granted 0"},
	{"more shared instances", WORKSPACES("", ", reserved_shared: 3x1g.10gb"),
         "part.yaml:7: workspace acme/b: reserved_shared: the workspaces reserve 3 1g.10gb together, and the operator granted 2"},
	{"its reservation in the shared pool", WORKSPACES(", reserved_shared: 4", ""),
         "reserved_shared: the workspaces reserve 4 GPUs together, and the operator granted 0"},
	{"its reservation in another cluster", WORKSPACES(", cluster: west, reserved: 4", ""),
         "reserved: the workspaces reserve 4 GPUs together, and the operator granted 0"},
	{"a limit beyond the maximum", WORKSPACES(", limit: 17", ""),
         "part.yaml:6: workspace acme/a: limit 17 is beyond the tenant's maximum 16"},
	{"a default limit beyond the maximum",
         PART "    default_limit: 17\n    workspaces: [{name: a, " RULES_A "}, {name: b, " RULES_B "}]\n",
         "part.yaml:5: tenant acme: default_limit 17 is beyond maximum 16"},
	{"cores beyond the tenant's", WORKSPACES(", limits: {cpu: 65}", ""),
         "part.yaml:6: workspace acme/a: limits: cpu (in thousandths) 65000 is beyond the tenant's 64000"},
	{"more weight", WORKSPACES(", weight: 4", ""),
         "part.yaml:6: workspace acme/a: weight 4 is above 3, the most the operator gave the tenant"},
	{"no enforcement", WORKSPACES(", enforce: off", ""),
         "part.yaml:6: workspace acme/a: enforce off is looser than warn, which the operator set"},
	{"a greater maximum", PART "    maximum: 17\n",
         "part.yaml:4: maximum 17: only an operator changes it; it is 16"},
	{"another isolation", PART "    isolation: gpu\n",
         "part.yaml:4: isolation gpu: only an operator changes it; it is shared"},
	{"another owner", PART "    owner: me\n", "part.yaml:4: owner me: only an operator changes it; it is ops"},
	{"another cost center", PART "    cost_center: \"1\"\n",
         "part.yaml:4: cost_center 1: only an operator changes it; it is 42"},
	{"other priority classes", PART "    priority_classes: []\n",
         "part.yaml:4: priority_classes []: only an operator changes it; it is [production]"},
	{"more cores", PART "    limits: {cpu: 65}\n",
         "part.yaml:4: limits {cpu: 65}: only an operator changes it; it is {cpu: 64}"},
	{"a new pattern", PART "    workspaces: [{name: a, rules: [{namespace: globex}]}]\n",
         "part.yaml:5: rules: namespace globex priority 100: the operator gave the tenant no such rule"},
	{"a wider pattern", PART "    workspaces: [{name: a, rules: [{namespace: \"*\"}]}]\n",
         "rules: namespace * priority 100: the operator gave the tenant no such rule"},
	{"a rule that is asked earlier", PART "    workspaces: [{name: a, rules: [{namespace: one, priority: 1}]}]\n",
         "rules: namespace one priority 1: the operator gave the tenant no such rule"},
	{"a rule left out", PART "    workspaces: [{name: a, " RULES_A "}]\n",
         "part.yaml:4: rules: group g priority 100 is missing: the operator gave it to the tenant"},
	{"another tenant", "version: 1\ncluster: demo\ntenants: [{name: globex}]\n",
         "part.yaml:3: tenant \"globex\": the file may only have the tenant acme"},
	{"a tenant that is not there", "version: 1\ncluster: demo\ntenants: [{name: nobody}]\n",
         "part.yaml:3: tenant \"nobody\": the file may only have the tenant acme"},
	{"two tenants", "version: 1\ncluster: demo\ntenants: [{name: acme}, {name: globex}]\n",
         "part.yaml:1: tenants: the file has 2, but must have exactly acme"},
	{"no tenant", "version: 1\ncluster: demo\n",
         "part.yaml:1: tenants: the file has 0, but must have exactly acme"},
	{"another cluster", "version: 1\ncluster: prod\ntenants: [{name: acme}]\n",
         "part.yaml:1: cluster \"prod\": the policy's cluster is demo"},
	{"a node", PART "nodes: [{name: n, shared: true}]\n", "part.yaml:5: nodes: only an operator declares nodes"},
	{"prices", PART "prices: {version: a, currency: EUR, items: []}\n",
         "part.yaml:5: prices: only an operator sets prices"},
	{"priority classes", PART "priority_classes: [{name: a, value: 1}]\n",
         "part.yaml:5: priority_classes: only an operator defines priority classes"},
};

static void
a_tenant_changes_its_part_inside_what_the_operator_granted(void **state)
{
	owned(policy) struct policy *granted = parse(operators);

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		owned(policy) struct policy *part = parse(rows[i].text);
		struct err err = {0};
		bool may = policy_part_check(granted, part, "acme", "part.yaml", &err);

		if (may != (rows[i].want == NULL))
			fail_msg("%s: %s", rows[i].name, may ? "accepted" : err.text);
		if (!may && (err.kind != ERR_INVALID || strstr(err.text, rows[i].want) == NULL))
			fail_msg("%s: \"%s\", wanted \"%s\"", rows[i].name, err.text, rows[i].want);
	}
}

static void
a_refusal_says_nothing_of_other_tenants(void **state)
{
	owned(policy) struct policy *granted = parse(operators);

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		owned(policy) struct policy *part = parse(rows[i].text);
		struct err err = {0};

		if (!policy_part_check(granted, part, "acme", "part.yaml", &err) &&
		    ((strstr(err.text, "globex") != NULL && strstr(rows[i].text, "globex") == NULL) ||
		     strstr(err.text, "initech") != NULL))
			fail_msg("%s: \"%s\"", rows[i].name, err.text);
	}
}

static void
a_tenant_that_the_policy_no_longer_has_changes_nothing(void **state)
{
	owned(policy) struct policy *granted = parse(operators);
	owned(policy) struct policy *part = parse("version: 1\ncluster: demo\ntenants: [{name: gone}]\n");
	in_place(buf) struct buf out;
	struct err err = {0};

	(void)state;
	buf_init(&out, FILE_MAX);
	assert_false(policy_part_check(granted, part, "gone", "part.yaml", &err));
	assert_int_equal(err.kind, ERR_CONFLICT);
	assert_false(policy_part_merge(operators, strlen(operators), granted, part, INT64_MIN, &out, &err));
	assert_int_equal(err.kind, ERR_CONFLICT);
}

/* ---- the document ---- */

static char *
merge(const char *document, const char *text, int64_t effective_ns)
{
	owned(policy) struct policy *now = parse(document), *part = parse(text);
	in_place(buf) struct buf out;
	struct err err = {0};

	buf_init(&out, FILE_MAX);
	if (!policy_part_merge(document, strlen(document), now, part, effective_ns, &out, &err))
		fail_msg("%s", err.text);
	return mem_strdup(buf_text(&out));
}

static void
only_the_tenant_s_lines_of_the_document_change(void **state)
{
	owned(mem) char *merged = merge(operators, WORKSPACES(", limit: 5", ""), INT64_MIN);
	static const char want[] = "# the operator's file\n"
				   "version: 1\n"
				   "cluster: demo\n"
				   "priority_classes: [{name: production, value: 100}]\n"
				   "tenants:\n"
				   "  # Globex came first.\n"
				   "  - name: globex\n"
				   "    workspaces: [{name: g, rules: [{namespace: globex}]}]\n"
				   "\n"
				   "  # Acme pays for two.\n"
				   "  - name: \"acme\"\n"
				   "    display_name: \"Acme\"\n"
				   "    cost_center: \"42\"\n"
				   "    owner: \"ops\"\n"
				   "    maximum: 16\n"
				   "    priority_classes: [production]\n"
				   "    limits: {cpu: 64}\n"
				   "    workspaces:\n"
				   "      - name: \"a\"\n"
				   "        limit: 5\n"
				   "        rules:\n"
				   "          - {namespace: \"one\", priority: 100}\n"
				   "          - {user: \"u\", priority: 5}\n"
				   "      - name: \"b\"\n"
				   "        enforce: warn\n"
				   "        rules:\n"
				   "          - {group: \"g\", priority: 100}\n"
				   "      # nothing below is Acme's\n"
				   "\n"
				   "  # Initech is last.\n"
				   "  - name: initech\n"
				   "nodes: # all of them\n"
				   "  - {name: n, tenant: acme, model: H100-80GB, gpus: 8}\n";

	(void)state;
	assert_string_equal(merged, want);
}

static void
a_time_to_come_is_written_into_the_document(void **state)
{
	const int64_t hour_ns = INT64_C(1796083200) * 1000000000;
	owned(mem) char *merged = merge(operators, WORKSPACES("", ""), hour_ns);
	owned(mem) char *added =
		merge("version: 1\ncluster: demo\ntenants:\n- name: acme\n",
	              "version: 1\ncluster: demo\ntenants: [{name: acme, default_limit: 1}]\n", hour_ns);

	(void)state;
	assert_non_null(strstr(merged, "cluster: demo\neffective: 2026-12-01T00:00:00Z\npriority_classes:"));
	assert_string_equal(added,
	                    "version: 1\ncluster: demo\neffective: 2026-12-01T00:00:00Z\ntenants:\n- name: \"acme\"\n"
	                    "  default_limit: 1\n");
}

static void
a_document_in_which_the_tenant_has_no_lines_of_its_own_is_written_anew(void **state)
{
	static const char *const documents[] = {
		"version: 1\ncluster: demo\ntenants: [{name: x}, {name: acme}]\n",
		"{\"version\": 1, \"cluster\": \"demo\", \"tenants\": [{\"name\": \"acme\"}, {\"name\": \"x\"}]}",
		"tenants:\n  -\n    name: acme\n  - name: x\nversion: 1\ncluster: demo\n",
		"tenants:\n  - name: acme\n  - name: x\nversion: 1\ncluster: demo\neffective: 2026-11-01T00:00:00Z\n",
		"version: 1\r\ncluster: demo\r\ntenants:\r\n  - name: acme\r\n  - name: x",
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(documents); i++) {
		owned(mem) char *merged =
			merge(documents[i], "version: 1\ncluster: demo\ntenants: [{name: acme, default_limit: 1}]\n",
		              INT64_MIN);
		owned(policy) struct policy *p = parse(merged);
		const struct policy_tenant *t = policy_tenant_named(p, "acme");

		assert_int_equal(p->tenant_count, 2);
		assert_int_equal(t->default_limit.count, 1);
		assert_true(p->effective_ns == INT64_MIN);
	}
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_tenant_changes_its_part_inside_what_the_operator_granted),
		cmocka_unit_test(a_refusal_says_nothing_of_other_tenants),
		cmocka_unit_test(a_tenant_that_the_policy_no_longer_has_changes_nothing),
		cmocka_unit_test(only_the_tenant_s_lines_of_the_document_change),
		cmocka_unit_test(a_time_to_come_is_written_into_the_document),
		cmocka_unit_test(a_document_in_which_the_tenant_has_no_lines_of_its_own_is_written_anew),
	};

	return cmocka_run_group_tests_name("policy_part", tests, NULL, NULL);
}
