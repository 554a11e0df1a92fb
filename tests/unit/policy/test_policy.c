/* tests/unit/policy/test_policy.c - the policy file: what it may say, what is refused and how, and the differences it
 * makes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "aggregator/core/policy/attribution.h"
#include "aggregator/core/policy/policy_fields.h"

#define FILE_MAX (4u << 20)

#define HEAD "version: 1\ncluster: demo\n"

static struct policy *
parse(const char *text)
{
	struct policy *p = NULL;
	struct err err = {0};

	if (!policy_parse("p.yaml", text, strlen(text), &p, &err))
		fail_msg("refused: %s", err.text);
	return p;
}

static struct policy *
parse_file(const char *path)
{
	in_place(buf) struct buf b;
	struct err err = {0};

	buf_init(&b, FILE_MAX);
	if (!buf_read_file(&b, path, &err))
		fail_msg("%s", err.text);
	return parse(buf_text(&b));
}

static const char full[] = HEAD "effective: 2026-11-16T06:00:00Z\n"
				"tenants:\n"
				"  - name: acme\n"
				"    display_name: Acme Robotics\n"
				"    cost_center: \"0042\"\n"
				"    owner: ops@acme.example\n"
				"    workspaces:\n"
				"      - name: training\n"
				"        description: big jobs\n"
				"        rules:\n"
				"          - {namespace: acme-training, priority: 10}\n"
				"          - {slurm_account: \"acme-*\", user: alice, cluster: \"d*\"}\n"
				"      - name: empty\n"
				"  - name: globex\n"
				"nodes:\n"
				"  - {name: demo-h100, tenant: acme}\n"
				"  - {name: Rack_1.node-7, shared: true, cluster: other}\n"
				"prices:\n"
				"  version: \"2026-11\"\n"
				"  currency: EUR\n"
				"  items:\n"
				"    - {gpu_model: H100-80GB, class: on-demand, price: \"3.20\"}\n"
				"    - {gpu_model: A100-80GB, mig_profile: 1g.10gb, price: 0.35, sku: MIG-1}\n"
				"    - {sharing_mode: timeslice, price: 0}\n"
				"    - {price: \"0.000000001\"}\n";

static void
a_full_policy_is_read_as_it_stands(void **state)
{
	owned(policy) struct policy *p = parse(full);
	const struct policy_workspace *w = &p->tenants[0].workspaces[0];

	(void)state;
	assert_string_equal(p->cluster, "demo");
	assert_int_equal(p->effective_ns, INT64_C(1794808800) * 1000000000);
	assert_int_equal(p->tenant_count, 2);
	assert_string_equal(p->tenants[0].display_name, "Acme Robotics");
	assert_string_equal(p->tenants[0].cost_center, "0042");
	assert_string_equal(p->tenants[0].owner, "ops@acme.example");
	assert_int_equal(p->tenants[0].line, 5);
	assert_int_equal(p->tenants[0].workspace_count, 2);
	assert_string_equal(w->name, "training");
	assert_string_equal(w->description, "big jobs");
	assert_int_equal(w->rule_count, 2);
	assert_string_equal(w->rules[0].ns, "acme-training");
	assert_int_equal(w->rules[0].priority, 10);
	assert_null(w->rules[0].user);
	assert_null(w->rules[0].cluster);
	assert_string_equal(w->rules[1].slurm_account, "acme-*");
	assert_string_equal(w->rules[1].user, "alice");
	assert_string_equal(w->rules[1].cluster, "d*");
	assert_int_equal(w->rules[1].priority, 100);
	assert_null(w->rules[1].ns);
	assert_int_equal(p->node_count, 2);
	assert_string_equal(p->nodes[0].cluster, "demo");
	assert_string_equal(p->nodes[0].tenant, "acme");
	assert_string_equal(p->nodes[1].cluster, "other");
	assert_null(p->nodes[1].tenant);
}

static void
prices_are_exact(void **state)
{
	owned(policy) struct policy *p = parse(full);
	const struct policy_price *items = p->prices->items;

	(void)state;
	assert_string_equal(p->prices->version, "2026-11");
	assert_string_equal(p->prices->currency, "EUR");
	assert_int_equal(p->prices->item_count, 4);
	assert_true(items[0].price == INT64_C(3200000000));
	assert_string_equal(items[0].klass, "on-demand");
	assert_string_equal(items[0].sku, "");
	assert_null(items[0].mig_profile);
	assert_true(items[1].price == 350000000);
	assert_string_equal(items[1].mig_profile, "1g.10gb");
	assert_string_equal(items[1].sku, "MIG-1");
	assert_string_equal(items[2].sharing_mode, "timeslice");
	assert_true(items[2].price == 0);
	assert_null(items[3].gpu_model);
	assert_true(items[3].price == 1);
}

static void
what_is_absent_has_a_default(void **state)
{
	owned(policy) struct policy *p = parse(full);
	owned(policy) struct policy *least = parse(HEAD);

	(void)state;
	assert_string_equal(p->tenants[1].display_name, "globex");
	assert_string_equal(p->tenants[1].cost_center, "");
	assert_string_equal(p->tenants[1].owner, "");
	assert_int_equal(p->tenants[1].workspace_count, 0);
	assert_string_equal(p->tenants[0].workspaces[1].description, "");
	assert_int_equal(p->tenants[0].workspaces[1].rule_count, 0);
	assert_true(least->effective_ns == INT64_MIN);
	assert_int_equal(least->tenant_count, 0);
	assert_int_equal(least->node_count, 0);
	assert_null(least->prices);
}

static void
json_is_a_policy_too(void **state)
{
	owned(policy) struct policy *p =
		parse("{\"version\": 1, \"cluster\": \"demo\", \"tenants\": [{\"name\": \"acme\"}]}");

	(void)state;
	assert_int_equal(p->tenant_count, 1);
}

#define TENANT "tenants:\n  - name: acme\n"
#define WORKSPACE TENANT "    workspaces:\n      - name: a\n"
#define RULES WORKSPACE "        rules:\n"
#define NODES TENANT "nodes:\n"
#define BOOK "prices:\n  version: v1\n  currency: EUR\n  items:\n"
#define X16 "xxxxxxxxxxxxxxxx"
#define X64 X16 X16 X16 X16

static const struct refusal {
	const char *name, *text, *want;
} refusals[] = {
	{"no version", "cluster: demo\n", "p.yaml:1: key 'version' is missing"},
	{"another version", "version: 2\ncluster: demo\nnew_key: 1\n",
         "p.yaml:1: version is 2, this program reads version 1"},
	{"no cluster", "version: 1\n", "p.yaml:1: a policy needs the key cluster"},
	{"a list", "- 1\n", "p.yaml:1: a policy must be a map"},
	{"an unknown key", HEAD "tenant: []\n", "p.yaml:3: unknown key 'tenant'; did you mean 'tenants'?"},
	{"an unknown key of a tenant", HEAD TENANT "    costcenter: 1\n",
         "p.yaml:5: unknown key 'costcenter'; did you mean 'cost_center'?"},
	{"an unknown key of a workspace", HEAD WORKSPACE "        rule: []\n",
         "p.yaml:7: unknown key 'rule'; did you mean 'rules'?"},
	{"an unknown key of a rule", HEAD RULES "          - {name_space: a}\n",
         "p.yaml:8: unknown key 'name_space'; did you mean 'namespace'?"},
	{"an unknown key of a node", HEAD NODES "  - {name: n, share: true}\n",
         "p.yaml:6: unknown key 'share'; did you mean 'shared'?"},
	{"an unknown key of a price", HEAD BOOK "    - {gpu-model: x, price: 1}\n",
         "p.yaml:7: unknown key 'gpu-model'; did you mean 'gpu_model'?"},
	{"an effective time without a zone", HEAD "effective: 2026-11-16T06:00\n",
         "p.yaml:3: effective: \"2026-11-16T06:00\" is not"},
	{"tenants without a value", HEAD "tenants:\n", "tenants must be a list"},
	{"a tenant without a name", HEAD "tenants:\n  - owner: a\n", "p.yaml:4: a tenant needs the key name"},
	{"a tenant that is a word", HEAD "tenants: [acme]\n", "p.yaml:3: a tenant must be a map"},
	{"capital letters", HEAD "tenants:\n  - name: Acme\n",
         "p.yaml:4: tenant name \"Acme\" must be lower-case letters"},
	{"a name that ends in a dash", HEAD "tenants:\n  - name: acme-\n", "p.yaml:4: tenant name \"acme-\" must be"},
	{"an empty name", HEAD "tenants:\n  - name: \"\"\n", "p.yaml:4: tenant name \"\" must be"},
	{"a long name", HEAD "tenants:\n  - name: " X64 "\n", "is longer than 63 characters"},
	{"the tenant of unattributed usage", HEAD "tenants:\n  - name: unattributed\n",
         "p.yaml:4: tenant name \"unattributed\" is reserved"},
	{"the platform's own name", HEAD "tenants:\n  - name: platform\n",
         "p.yaml:4: tenant name \"platform\" is reserved"},
	{"a control character", HEAD TENANT "    owner: \"a\\tb\"\n", "p.yaml:5: owner has a control character"},
	{"a long text", HEAD TENANT "    cost_center: " X64 "x\n",
         "p.yaml:5: cost_center has 65 bytes, at most 64 are allowed"},
	{"a tenant twice", HEAD TENANT "  - name: b\n  - name: acme\n",
         "p.yaml:6: tenant \"acme\" is already on line 4"},
	{"two tenants twice", HEAD "tenants:\n  - name: a\n  - name: a\n  - name: z\n  - name: z\n",
         "p.yaml:5: tenant \"a\""},
	{"two tenants twice, the other way round",
         HEAD "tenants:\n  - name: z\n  - name: z\n  - name: a\n  - name: a\n", "p.yaml:5: tenant \"z\""},
	{"a workspace twice", HEAD WORKSPACE "      - name: b\n      - name: a\n",
         "p.yaml:8: workspace \"a\" of tenant \"acme\" is already on line 6"},
	{"a rule without a pattern", HEAD RULES "          - {priority: 1}\n",
         "p.yaml:8: a rule needs at least one of"},
	{"labels that are a list", HEAD RULES "          - {labels: [a]}\n", "p.yaml:8: labels must be a map"},
	{"labels without a key", HEAD RULES "          - {labels: {}}\n",
         "p.yaml:8: labels has 0 keys, 1 to 16 are allowed"},
	{"a label that no pod can have", HEAD RULES "          - {labels: {\"a b\": x}}\n",
         "p.yaml:8: label \"a b\" must be letters"},
	{"a value that no label can have", HEAD RULES "          - {labels: {team: \"m/l\"}}\n",
         "p.yaml:8: label team \"m/l\" must be letters"},
	{"a label without a value", HEAD RULES "          - {labels: {team: }}\n", "p.yaml:8: team "},
	{"an empty group", HEAD RULES "          - {group: \"\"}\n", "p.yaml:8: group is empty"},
	{"the same labels in another order",
         HEAD RULES
         "          - {labels: {a: x, b: y}}\n      - name: b\n        rules:\n          - {labels: {b: y, a: x}}\n",
         "p.yaml:11: this rule of workspace acme/b is also on line 8, for acme/a"},
	{"an empty pattern", HEAD RULES "          - {user: \"\"}\n", "p.yaml:8: user is empty"},
	{"a namespace that cannot exist", HEAD RULES "          - {namespace: Acme}\n",
         "p.yaml:8: rule namespace \"Acme\" must be"},
	{"a priority out of range", HEAD RULES "          - {user: a, priority: 10001}\n",
         "p.yaml:8: priority is 10001, outside 0 to 10000"},
	{"a priority that is no number", HEAD RULES "          - {user: a, priority: high}\n",
         "p.yaml:8: priority must be a whole number"},
	{"a rule of two workspaces",
         HEAD RULES "          - {user: a}\n      - name: b\n        rules:\n          - {user: a, priority: 5}\n",
         "p.yaml:11: this rule of workspace acme/b is also on line 8, for acme/a"},
	{"a node without an owner", HEAD NODES "  - {name: n}\n", "p.yaml:6: node \"n\" needs exactly one of"},
	{"a node with two owners", HEAD NODES "  - {name: n, tenant: acme, shared: true}\n",
         "p.yaml:6: node \"n\" needs exactly one of"},
	{"a node that is not shared", HEAD NODES "  - {name: n, shared: false}\n",
         "p.yaml:6: node \"n\" has shared: false"},
	{"a node of nobody known", HEAD NODES "  - {name: n, tenant: acne}\n",
         "p.yaml:6: node \"n\" belongs to tenant \"acne\", which this file does not have"},
	{"a node twice", HEAD NODES "  - {name: n, shared: true}\n  - {name: n, tenant: acme}\n",
         "p.yaml:7: node \"n\" is already on line 6"},
	{"a node with a space", HEAD NODES "  - {name: a b, shared: true}\n", "p.yaml:6: node name \"a b\" must be"},
	{"a book without a version", HEAD "prices: {currency: EUR, items: []}\n",
         "p.yaml:3: a price book needs the key version"},
	{"a book without items", HEAD "prices: {version: a, currency: EUR}\n",
         "p.yaml:3: a price book needs the key items"},
	{"an unknown currency", HEAD "prices: {version: a, currency: EURO, items: []}\n",
         "p.yaml:3: currency \"EURO\" is not"},
	{"no price", HEAD BOOK "    - {class: on-demand}\n", "p.yaml:7: a price needs the key price"},
	{"a price with a comma", HEAD BOOK "    - {price: \"3,20\"}\n", "p.yaml:7: price \"3,20\" is not a decimal"},
	{"a price with ten decimals", HEAD BOOK "    - {price: 0.0000000001}\n",
         "p.yaml:7: price \"0.0000000001\" has 10 decimals"},
	{"a negative price", HEAD BOOK "    - {price: -1}\n", "p.yaml:7: price \"-1\" is outside 0 to 1000000000"},
	{"a price beyond the limit", HEAD BOOK "    - {price: 1000000001}\n",
         "p.yaml:7: price \"1000000001\" is outside"},
	{"an unknown class", HEAD BOOK "    - {class: spot, price: 1}\n",
         "p.yaml:7: class \"spot\" is not one of on-demand, borrowed, dedicated, reserved"},
	{"an unknown sharing mode", HEAD BOOK "    - {sharing_mode: vgpu, price: 1}\n",
         "p.yaml:7: sharing_mode \"vgpu\" is not one of"},
	{"a wrong profile", HEAD BOOK "    - {mig_profile: 3g40gb, price: 1}\n",
         "p.yaml:7: price mig_profile \"3g40gb\" is not a MIG profile"},
	{"two prices for the same", HEAD BOOK "    - {gpu_model: A, price: 1}\n    - {gpu_model: A, price: 2}\n",
         "p.yaml:8: this price is for the same usage as the one on line 7"},
};

static void
what_is_wrong_is_refused_with_file_line_field_and_value(void **state)
{
	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(refusals); i++) {
		const struct refusal *r = &refusals[i];
		struct policy *p = NULL;
		struct err err = {0};

		if (policy_parse("p.yaml", r->text, strlen(r->text), &p, &err))
			fail_msg("%s was accepted", r->name);
		if (p != NULL || err.kind != ERR_INVALID || strstr(err.text, r->want) == NULL)
			fail_msg("%s: \"%s\", wanted \"%s\"", r->name, err.text, r->want);
	}
}

static void
profiles_as_nvidia_writes_them_are_accepted(void **state)
{
	static const char *const profiles[] = {"1g.10gb",    "7g.80gb",        "1g.10gb+me", "1c.3g.40gb",
	                                       "1g.24gb-me", "1g.24gb+me.all", "2g.48gb+gfx"};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(profiles); i++) {
		char text[256];

		snprintf(text, sizeof(text), HEAD BOOK "    - {mig_profile: %s, price: 1}\n", profiles[i]);
		owned(policy) struct policy *p = parse(text);
		assert_string_equal(p->prices->items[0].mig_profile, profiles[i]);
	}
}

/* HEAD, then a list that begins with `before` and repeats `entry` with a number. */
static bool
parse_many(const char *before, const char *entry, size_t count, struct err *err)
{
	owned(policy) struct policy *p = NULL;
	in_place(buf) struct buf b;

	buf_init(&b, FILE_MAX);
	buf_str(&b, HEAD);
	buf_str(&b, before);
	for (size_t i = 0; i < count; i++) {
		buf_str(&b, entry);
		buf_u64(&b, i);
		buf_char(&b, '\n');
	}
	return policy_parse("p.yaml", buf_text(&b), b.len, &p, err);
}

static void
counts_have_limits(void **state)
{
	static const struct {
		const char *name, *before, *entry, *want;
		size_t most;
	} rows[] = {
		{"tenants", "tenants:\n", "  - name: t", "tenants has 10001 entries, at most 10000",
	         POLICY_MAX_TENANTS},
		{"workspaces", TENANT "    workspaces:\n", "      - name: w", "workspaces has 1001 entries",
	         POLICY_MAX_WORKSPACES},
		{"rules", RULES, "          - user: u", "rules has 1001 entries", POLICY_MAX_RULES},
		{"nodes", "nodes:\n", "  - shared: true\n    name: n", "nodes has 20001 entries", POLICY_MAX_NODES},
		{"prices", BOOK, "    - price: 1\n      gpu_model: m", "items has 1001 entries", POLICY_MAX_PRICES},
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		struct err err = {0};

		if (!parse_many(rows[i].before, rows[i].entry, rows[i].most, &err))
			fail_msg("%s at the limit: %s", rows[i].name, err.text);
		if (parse_many(rows[i].before, rows[i].entry, rows[i].most + 1, &err) ||
		    strstr(err.text, rows[i].want) == NULL)
			fail_msg("%s beyond the limit: \"%s\"", rows[i].name, err.text);
	}
}

static void
the_demo_policy_is_what_the_demo_needs(void **state)
{
	owned(policy) struct policy *p = parse_file("deploy/demo/policy.yaml");

	(void)state;
	assert_string_equal(p->cluster, "demo");
	assert_int_equal(p->tenant_count, 2);
	assert_int_equal(p->tenants[0].workspace_count + p->tenants[1].workspace_count, 4);
	assert_int_equal(p->node_count, 3);
	assert_string_equal(p->nodes[0].tenant, "acme");
	assert_string_equal(p->tenants[1].workspaces[1].rules[0].user, "20001");
}

/* deploy/POLICY.md is written from the table of keys: TOLLGATE_WRITE=1 writes it anew. */
static void
the_reference_of_keys_is_that_of_the_table(void **state)
{
	static const char head[] =
		"# Keys of the policy file\n\nWritten from the table of `aggregator/core/policy/policy_fields.c`; a test holds it "
		"against the table. `demo/policy.yaml` is a commented\nexample. Amounts of GPUs are `4`, `3/7`, `2x1g.10gb`, "
		"`none`, or one per model: `{H100-80GB: 4}`.\n";
	in_place(buf) struct buf want = {0}, have = {0};
	struct err err = {0};

	(void)state;
	buf_init(&want, FILE_MAX);
	buf_init(&have, FILE_MAX);
	buf_str(&want, head);
	policy_key_reference(&want);
	if (getenv("TOLLGATE_WRITE") != NULL) {
		FILE *f = fopen("deploy/POLICY.md", "w");

		assert_non_null(f);
		assert_int_equal(fwrite(want.data, 1, want.len, f), want.len);
		assert_int_equal(fclose(f), 0);
	}
	assert_true(buf_read_file(&have, "deploy/POLICY.md", &err));
	assert_string_equal(buf_text(&have), buf_text(&want));
}

static void
the_demo_policy_has_every_key_with_a_comment(void **state)
{
	in_place(buf) struct buf demo = {0};
	struct err err = {0};

	(void)state;
	buf_init(&demo, FILE_MAX);
	assert_true(buf_read_file(&demo, "deploy/demo/policy.yaml", &err));
	for (const struct policy_section *const *s = policy_sections; *s != NULL; s++)
		for (size_t i = 0; i < (*s)->field_count; i++) {
			owned(mem) char *key = mem_printf("%s:", (*s)->fields[i].key);

			if (strstr(buf_text(&demo), key) == NULL)
				fail_msg("deploy/demo/policy.yaml does not have the key %s of %s", key, (*s)->path);
		}
}

static void
the_host_policy_is_sound_once_it_has_a_node(void **state)
{
	in_place(buf) struct buf b;
	struct err err = {0};
	const char *mark;

	(void)state;
	buf_init(&b, FILE_MAX);
	assert_true(buf_read_file(&b, "deploy/demo/policy-host.yaml", &err));
	mark = strstr(buf_text(&b), "name: \"${NODE}\"");
	assert_non_null(mark);
	owned(mem) char *text = mem_printf("%.*sname: \"gpu-7.example\"%s", (int)(mark - b.data), b.data,
	                                   mark + strlen("name: \"${NODE}\""));
	owned(policy) struct policy *p = parse(text);
	assert_string_equal(p->nodes[0].name, "gpu-7.example");
	assert_string_equal(p->tenants[0].workspaces[0].rules[0].user, "*");
}

static void
labels_of_a_rule_have_one_spelling_whatever_the_order(void **state)
{
	owned(policy) struct policy *p = parse(HEAD RULES "          - labels:\n"
	                                                  "              team: \"m*\"\n"
	                                                  "              example.com/app: web\n"
	                                                  "              flag: \"\"\n"
	                                                  "            group: \"gpu-?\"\n"
	                                                  "          - {group: staff}\n");
	const struct policy_workspace *w = &p->tenants[0].workspaces[0];

	(void)state;
	assert_string_equal(w->rules[0].labels, "example.com/app=web,flag=,team=m*");
	assert_string_equal(w->rules[0].group, "gpu-?");
	assert_null(w->rules[1].labels);
	assert_string_equal(w->rules[1].group, "staff");
}

/* ---- differences ---- */

static void
assert_diff(const struct policy *from, const struct policy *to, const char *want)
{
	in_place(buf) struct buf out;
	size_t lines = 0, changes;

	buf_init(&out, FILE_MAX);
	changes = policy_diff(from, to, &out);
	assert_string_equal(buf_text(&out), want);
	for (const char *c = want; *c != '\0'; c++)
		lines += *c == '\n';
	assert_int_equal(changes, lines);
}

static void
a_first_policy_is_all_new(void **state)
{
	owned(policy) struct policy *p = parse(full);

	(void)state;
	assert_diff(NULL, p,
	            "+ cluster demo\n"
	            "+ tenant acme (Acme Robotics)\n"
	            "+ workspace acme/training\n"
	            "+ rule acme/training namespace acme-training priority 10\n"
	            "+ rule acme/training slurm_account acme-* user alice cluster d* priority 100\n"
	            "+ workspace acme/empty\n"
	            "+ tenant globex (globex)\n"
	            "+ node demo-h100 of acme\n"
	            "+ node Rack_1.node-7 shared\n"
	            "+ prices 2026-11 in EUR\n"
	            "+ price H100-80GB on-demand 3.20\n"
	            "+ price A100-80GB MIG 1g.10gb 0.35\n"
	            "+ price any GPU timeslice 0.00\n"
	            "+ price any GPU 0.000000001\n");
}

static void
groups_and_labels_of_rules_are_part_of_what_changes(void **state)
{
	owned(policy) struct policy *a =
		parse(HEAD RULES "          - {group: staff}\n          - {labels: {b: x, a: y}}\n");
	owned(policy) struct policy *b =
		parse(HEAD RULES "          - {group: staff}\n          - {labels: {a: y, b: z}}\n");

	(void)state;
	assert_diff(a, b,
	            "+ rule acme/a labels a=y,b=z priority 100\n"
	            "- rule acme/a labels a=y,b=x priority 100\n");
}

static void
the_same_policy_changes_nothing(void **state)
{
	owned(policy) struct policy *a = parse(full);
	owned(policy) struct policy *b = parse(full);

	(void)state;
	assert_diff(a, b, "");
	b->effective_ns = 0;
	assert_diff(a, b, "");
}

static void
each_kind_of_change_is_one_line(void **state)
{
	owned(policy) struct policy *a = parse(full);
	owned(policy) struct policy *b = parse("version: 1\ncluster: prod\n"
	                                       "tenants:\n"
	                                       "  - name: acme\n"
	                                       "    cost_center: \"43\"\n"
	                                       "    workspaces:\n"
	                                       "      - name: training\n"
	                                       "        rules:\n"
	                                       "          - {namespace: acme-training, priority: 20}\n"
	                                       "          - {user: bob}\n"
	                                       "      - name: new\n"
	                                       "nodes:\n"
	                                       "  - {name: demo-h100, shared: true, cluster: demo}\n"
	                                       "  - {name: n2, tenant: acme}\n"
	                                       "prices:\n"
	                                       "  version: \"2026-12\"\n"
	                                       "  currency: USD\n"
	                                       "  items:\n"
	                                       "    - {gpu_model: H100-80GB, class: on-demand, price: 3, sku: TOP}\n"
	                                       "    - {gpu_model: L4, price: 0.5}\n");

	(void)state;
	assert_diff(a, b,
	            "~ cluster demo -> prod\n"
	            "~ tenant acme display_name \"Acme Robotics\" -> \"acme\"\n"
	            "~ tenant acme cost_center \"0042\" -> \"43\"\n"
	            "~ tenant acme owner \"ops@acme.example\" -> \"\"\n"
	            "~ workspace acme/training description \"big jobs\" -> \"\"\n"
	            "~ rule acme/training namespace acme-training priority 10 -> 20\n"
	            "+ rule acme/training user bob priority 100\n"
	            "- rule acme/training slurm_account acme-* user alice cluster d* priority 100\n"
	            "+ workspace acme/new\n"
	            "- workspace acme/empty\n"
	            "- tenant globex (globex)\n"
	            "~ node demo-h100 of acme -> shared\n"
	            "+ node n2 of acme\n"
	            "- node Rack_1.node-7\n"
	            "~ prices version 2026-11 -> 2026-12\n"
	            "~ prices currency EUR -> USD\n"
	            "~ price H100-80GB on-demand 3.20 -> 3.00\n"
	            "~ price H100-80GB on-demand sku \"\" -> \"TOP\"\n"
	            "+ price L4 0.50\n"
	            "- price A100-80GB MIG 1g.10gb\n"
	            "- price any GPU timeslice\n"
	            "- price any GPU\n");
}

static void
prices_and_clusters_of_nodes_come_and_go(void **state)
{
	owned(policy) struct policy *without = parse(HEAD "nodes:\n  - {name: n, shared: true}\n");
	owned(policy) struct policy *with =
		parse(HEAD "nodes:\n  - {name: n, shared: true, cluster: x}\n" BOOK "    - {price: 1}\n");

	(void)state;
	assert_diff(without, with, "~ node n cluster demo -> x\n+ prices v1 in EUR\n+ price any GPU 1.00\n");
	assert_diff(with, without, "~ node n cluster x -> demo\n- prices v1 in EUR\n");
}

#define PART_A "  - name: a\n    workspaces:\n      - {name: w, rules: [{namespace: \"a-*\"}, {user: a}]}\n"
#define PART_B "  - name: b\n    workspaces:\n      - {name: w, rules: [{namespace: \"*-b\"}]}\n"
#define PART_C "  - name: c\n    workspaces:\n      - {name: w, rules: [{namespace: \"c\", priority: 7}]}\n"

static void
another_order_of_equal_rules_is_a_change(void **state)
{
	owned(policy) struct policy *abc = parse(HEAD "tenants:\n" PART_A PART_B PART_C);
	owned(policy) struct policy *bac = parse(HEAD "tenants:\n" PART_B PART_A PART_C);
	owned(policy) struct policy *cab = parse(HEAD "tenants:\n" PART_C PART_A PART_B);

	(void)state;
	assert_diff(abc, bac, "~ rules of equal priority are asked in another order\n");
	assert_diff(abc, cab, ""); /* c has a priority of its own */
}

static void
a_tenant_that_goes_takes_its_workspaces_along(void **state)
{
	owned(policy) struct policy *ab = parse(HEAD "tenants:\n" PART_A PART_B);
	owned(policy) struct policy *b = parse(HEAD "tenants:\n" PART_B);

	(void)state;
	assert_diff(ab, b, "- tenant a (a)\n- workspace a/w\n");
}

/* ---- patterns ---- */

static void
patterns_match_as_in_a_shell(void **state)
{
	static const struct {
		const char *pattern, *text;
		bool want;
	} rows[] = {
		{"acme", "acme", true},
		{"acme", "acme2", false},
		{"acme", "acm", false},
		{"*", "", true},
		{"*", "anything", true},
		{"", "", true},
		{"", "a", false},
		{"?", "", false},
		{"?", "a", true},
		{"?", "\xc3\xa4", true}, /* one character of two bytes */
		{"??", "\xc3\xa4", false},
		{"acme-*", "acme-", true},
		{"acme-*", "acme", false},
		{"*-training", "acme-training", true},
		{"*-training", "acme-training-2", false},
		{"a*b*c", "aXXbYYc", true},
		{"a*b*c", "aXXcYYb", false},
		{"*a*", "bab", true},
		{"**?", "a", true},
		{"*ab", "aab", true},
		{"*aab", "aaab", true},
		{"[a]", "a", false}, /* no sets: a bracket is a bracket */
		{"[a]", "[a]", true},
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(rows); i++)
		if (pattern_match(rows[i].pattern, rows[i].text) != rows[i].want)
			fail_msg("\"%s\" on \"%s\"", rows[i].pattern, rows[i].text);
}

/* A matcher that tries every split would take 2^60 steps and more; this test then never ends. */
static void
a_hostile_pattern_is_only_slow(void **state)
{
	char pattern[254], text[513];

	(void)state;
	for (size_t i = 0; i + 1 < sizeof(pattern); i++)
		pattern[i] = i % 2 == 0 ? '*' : 'a';
	pattern[sizeof(pattern) - 2] = 'b';
	pattern[sizeof(pattern) - 1] = '\0';
	memset(text, 'a', sizeof(text) - 1);
	text[sizeof(text) - 1] = '\0';
	assert_false(pattern_match(pattern, text));
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_full_policy_is_read_as_it_stands),
		cmocka_unit_test(prices_are_exact),
		cmocka_unit_test(what_is_absent_has_a_default),
		cmocka_unit_test(json_is_a_policy_too),
		cmocka_unit_test(what_is_wrong_is_refused_with_file_line_field_and_value),
		cmocka_unit_test(profiles_as_nvidia_writes_them_are_accepted),
		cmocka_unit_test(counts_have_limits),
		cmocka_unit_test(the_demo_policy_is_what_the_demo_needs),
		cmocka_unit_test(the_reference_of_keys_is_that_of_the_table),
		cmocka_unit_test(the_demo_policy_has_every_key_with_a_comment),
		cmocka_unit_test(the_host_policy_is_sound_once_it_has_a_node),
		cmocka_unit_test(a_first_policy_is_all_new),
		cmocka_unit_test(the_same_policy_changes_nothing),
		cmocka_unit_test(each_kind_of_change_is_one_line),
		cmocka_unit_test(prices_and_clusters_of_nodes_come_and_go),
		cmocka_unit_test(another_order_of_equal_rules_is_a_change),
		cmocka_unit_test(labels_of_a_rule_have_one_spelling_whatever_the_order),
		cmocka_unit_test(groups_and_labels_of_rules_are_part_of_what_changes),
		cmocka_unit_test(a_tenant_that_goes_takes_its_workspaces_along),
		cmocka_unit_test(patterns_match_as_in_a_shell),
		cmocka_unit_test(a_hostile_pattern_is_only_slow),
	};

	return cmocka_run_group_tests_name("policy", tests, NULL, NULL);
}
