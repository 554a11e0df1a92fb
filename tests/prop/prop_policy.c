/* tests/prop/prop_policy.c - whatever a policy says, it says again when it is written as a file, and a tenant that applies what it
 * reads changes nothing. */
#include <string.h>

#include "aggregator/core/policy/policy.h"
#include "tests/support/harness/prop.h"

#define TEXT_MAX (1u << 20)

struct world {
	struct buf text; /* a policy as a person may have written it, comments and all */
};

static const char *
pick(struct prop_source *s, const char *const *words, size_t n)
{
	return words[prop_index(s, n)];
}

#define PICK(s, ...) \
	pick(s, (const char *const[]){__VA_ARGS__}, sizeof((const char *const[]){__VA_ARGS__}) / sizeof(char *))

/* A key in braces, or not. */
static void
maybe(struct prop_source *s, struct buf *out, const char *key, const char *value)
{
	if (prop_bool(s))
		buf_printf(out, ", %s: %s", key, value);
}

static void
write_members(struct prop_source *s, struct buf *out, const char *role)
{
	size_t n = prop_index(s, 3);

	if (n == 0)
		return;
	buf_str(out, ", members: [");
	for (size_t i = 0; i < n; i++)
		buf_printf(out, "%s{user: \"%s%zu\", role: %s}", i ? ", " : "",
		           PICK(s, "u", "it's \\\"me\\\"\\\\ ", "ä@x.example"), i, prop_bool(s) ? role : "viewer");
	buf_char(out, ']');
}

/* The patterns of no two rules are the same: each has a number of its own. */
static void
write_rules(struct prop_source *s, struct buf *out, size_t *number)
{
	size_t n = prop_index(s, 4);

	if (n == 0)
		return;
	buf_str(out, ", rules: [");
	for (size_t i = 0; i < n; i++, ++*number) {
		buf_printf(out, "%s{%s: \"p%zu-*\"", i ? ", " : "",
		           PICK(s, "namespace", "slurm_account", "user", "group"), *number);
		if (prop_bool(s))
			buf_printf(out, ", labels: {team: \"x?\", app.example/name: \"%zu\"}", *number);
		maybe(s, out, "cluster", "\"c*\"");
		if (prop_bool(s))
			buf_printf(out, ", priority: %" PRIu64, prop_u64(s, POLICY_MAX_PRIORITY));
		buf_char(out, '}');
	}
	buf_char(out, ']');
}

static void
write_workspace(struct prop_source *s, struct buf *out, size_t number, size_t *rules)
{
	buf_printf(out, "{name: w%zu", number);
	maybe(s, out, "description", PICK(s, "\"\"", "plain words", "\"quoted: # \\\"x\\\"\""));
	maybe(s, out, "reserved", PICK(s, "0", "1", "\"3/7\"", "2x1g.10gb", "{H100-80GB: 1, A100-80GB: 2x3g.40gb}"));
	maybe(s, out, "reserved_shared", PICK(s, "1", "{RTX 6000 Ada: \"1/2\"}"));
	maybe(s, out, "limit", PICK(s, "none", "9", "{H100-80GB: 12, A100-80GB: none}"));
	maybe(s, out, "borrow", PICK(s, "none", "1", "0"));
	maybe(s, out, "lend", PICK(s, "none", "0"));
	maybe(s, out, "reclaim", PICK(s, "any", "lower", "never"));
	maybe(s, out, "preempt_own", PICK(s, "lower", "never"));
	maybe(s, out, "weight", PICK(s, "1", "2", "1000000"));
	maybe(s, out, "enforce", PICK(s, "on", "warn", "off"));
	maybe(s, out, "idle_timeout", PICK(s, "none", "30m", "1h30m"));
	maybe(s, out, "limits", PICK(s, "{}", "{cpu: 500m}", "{cpu: 8, memory: 1Ti, storage: 1000000001}"));
	maybe(s, out, "budget",
	      PICK(s, "{gpu_hours: 500}", "{gpu_hours: \"0.25\", kind: hard}", "{amount: 10, currency: JPY}",
	           "{tokens: 1000000000000, kind: hard}"));
	maybe(s, out, "cluster", PICK(s, "demo", "west"));
	write_members(s, out, "developer");
	write_rules(s, out, rules);
	buf_char(out, '}');
}

static void
write_tenant(struct prop_source *s, struct buf *out, size_t number, size_t *rules)
{
	size_t n = prop_index(s, 4);

	buf_printf(out, "  - {name: t%zu", number);
	maybe(s, out, "budget",
	      PICK(s, "{amount: \"1000.00\", currency: EUR}", "{gpu_hours: 7, kind: soft}", "{tokens: 5}"));
	maybe(s, out, "auto_approve", PICK(s, "{max: 2, for: 24h}", "{max: \"3/7\", for: 90m}"));
	maybe(s, out, "display_name", PICK(s, "\"The \\\\ One\"", "null-ish"));
	maybe(s, out, "cost_center", PICK(s, "\"007\"", "x"));
	maybe(s, out, "owner", "o@example");
	maybe(s, out, "sla", PICK(s, "{owed_wait: 10m}", "{delivered: \"99.5\"}", "{owed_wait: 90s, delivered: 100}"));
	maybe(s, out, "data_boundary", PICK(s, "EU", "\"no: \\\\ where\""));
	maybe(s, out, "maximum", PICK(s, "none", "64", "{H100-80GB: 64, L4: none}"));
	maybe(s, out, "default_limit", PICK(s, "none", "0", "4"));
	maybe(s, out, "isolation", PICK(s, "shared", "mig", "gpu"));
	maybe(s, out, "priority_classes", PICK(s, "[]", "[low]", "[high, low]"));
	maybe(s, out, "limits", PICK(s, "{cpu: 64}", "{memory: none}"));
	write_members(s, out, "tenant-admin");
	buf_str(out, n ? ", workspaces: [" : "");
	for (size_t i = 0; i < n; i++) {
		buf_str(out, i ? ",\n      " : "");
		write_workspace(s, out, i, rules);
	}
	buf_str(out, n ? "]}\n" : "}\n");
}

static void
write_node(struct prop_source *s, struct buf *out, size_t number, size_t tenants)
{
	buf_printf(out, "  - {name: n%zu", number);
	if (tenants > 0 && prop_bool(s))
		buf_printf(out, ", tenant: t%zu", prop_index(s, tenants));
	else
		buf_str(out, ", shared: true");
	buf_str(out, PICK(s, "", ", model: H100-80GB, gpus: 8", ", model: A100-80GB, mig: {1g.10gb: 7, 3g.40gb: 1}"));
	maybe(s, out, "state", PICK(s, "in-service", "maintenance"));
	maybe(s, out, "cluster", "west");
	if (prop_bool(s))
		buf_printf(out, ", devices: [{uuid: GPU-%zu, state: %s}]", number, PICK(s, "retired", "in-service"));
	buf_str(out, "}\n");
}

static void
write_beside(struct prop_source *s, struct buf *out, size_t tenants)
{
	maybe(s, out, "lender_ratio", PICK(s, "0", "\"0.8\"", "1", "0.000000001"));
	maybe(s, out, "platform_cost", PICK(s, "{monthly: 0}", "{monthly: \"120000.00\"}"));
	maybe(s, out, "energy",
	      PICK(s, "[]", "[{cluster: demo, price_per_kwh: 0.3}]",
	           "[{cluster: west, carbon_g_per_kwh: 12.5}, {cluster: demo, price_per_kwh: 0, carbon_g_per_kwh: 0}]"));
	maybe(s, out, "discounts",
	      PICK(s, "[]", "[{percent: 0}]", "[{category: gpu, class: borrowed, percent: \"99.9999999\"}]"));
	if (tenants > 0 && prop_bool(s))
		buf_printf(out, ", shared_idle: {method: weights, weights: {t%zu: %" PRIu64 "}}",
		           prop_index(s, tenants), 1 + prop_u64(s, POLICY_MAX_WEIGHT - 1));
	else
		maybe(s, out, "shared_idle", PICK(s, "{method: none}", "{method: even}", "{method: proportional}"));
}

static void
write_prices(struct prop_source *s, struct buf *out, size_t tenants)
{
	buf_str(out, "prices: {version: v, currency: EUR, items: [{price: 1.5}");
	buf_str(out, PICK(s, "", ", {gpu_model: L4, class: borrowed, sku: S, price: 0}",
	                  ", {gpu_model: L4, class: on-demand, basis: used, price: 0.000000001}"));
	buf_str(out, PICK(s, "", ", {meter: storage, price: 1}",
	                  ", {meter: inference-input-tokens, meter_sku: \"7b x\", price: 0.15, per: 1000000}"));
	if (tenants > 0 && prop_bool(s))
		buf_printf(out, ", {tenant: t%zu, price: 1}, {tenant: t0, meter: egress, price: 3, per: 3}",
		           prop_index(s, tenants));
	buf_char(out, ']');
	write_beside(s, out, tenants);
	buf_str(out, "}\n");
}

/* A node that everybody may use makes every isolation possible, and both clusters known. */
static void
generate(struct prop_source *s, void *c)
{
	struct world *w = c;
	size_t tenants = prop_index(s, 5), nodes = prop_index(s, 4), rules = 0;

	buf_init(&w->text, TEXT_MAX);
	buf_str(&w->text, "# as somebody wrote it\nversion: 1\ncluster: demo\n");
	buf_str(&w->text, PICK(s, "", "effective: 2026-11-01T00:00:00Z\n"));
	buf_str(&w->text, "priority_classes: [{name: high, value: 10, preemptible: false}, {name: low, value: -1}]\n");
	buf_str(&w->text, tenants ? "tenants:\n" : "");
	for (size_t i = 0; i < tenants; i++) {
		buf_str(&w->text, PICK(s, "", "  # a remark\n", "\n"));
		write_tenant(s, &w->text, i, &rules);
	}
	buf_str(&w->text, "nodes:\n  - {name: all, shared: true, cluster: west}\n");
	for (size_t i = 0; i < nodes; i++)
		write_node(s, &w->text, i, tenants);
	if (prop_bool(s))
		write_prices(s, &w->text, tenants);
}

static void
describe(const void *c, struct buf *out)
{
	buf_str(out, buf_text(&((const struct world *)c)->text));
}

static void
fini(void *c)
{
	buf_fini(&((struct world *)c)->text);
}

static struct policy *
parse(const struct buf *text, struct buf *why)
{
	struct policy *p = NULL;
	struct err err = {0};

	if (!policy_parse("p", buf_text(text), text->len, &p, &err))
		buf_printf(why, "refused: %s\n", err.text);
	return p;
}

/* No difference in either direction. */
static bool
same(const struct policy *a, const struct policy *b, struct buf *why)
{
	return policy_diff(a, b, why) == 0 && policy_diff(b, a, why) == 0 && a->effective_ns == b->effective_ns;
}

static bool
reads_back(const void *c, struct buf *why)
{
	const struct world *w = c;
	owned(policy) struct policy *p = parse(&w->text, why), *again = NULL;
	in_place(buf) struct buf first, second;

	buf_init(&first, TEXT_MAX);
	buf_init(&second, TEXT_MAX);
	if (p == NULL)
		return false;
	policy_render(p, &first);
	again = parse(&first, why);
	if (again == NULL || !same(p, again, why))
		return false;
	policy_render(again, &second);
	return strcmp(buf_text(&first), buf_text(&second)) == 0;
}

static bool
differs_from_nothing_only(const void *c, struct buf *why)
{
	owned(policy) struct policy *p = parse(&((const struct world *)c)->text, why);
	in_place(buf) struct buf out;
	size_t lines = 0, changes;

	buf_init(&out, TEXT_MAX);
	if (p == NULL || !same(p, p, why))
		return false;
	changes = policy_diff(NULL, p, &out);
	for (size_t i = 0; i < out.len; i++)
		lines += out.data[i] == '\n';
	buf_printf(why, "%zu changes in %zu lines\n", changes, lines);
	return changes == lines && changes >= 1 + p->tenant_count + p->node_count;
}

/* For one tenant: what it reads is inside its bounds, and put into the document says what the document says. */
static bool
part_is_neutral(const struct policy *p, const struct policy_tenant *t, const struct buf *document, struct buf *why)
{
	in_place(buf) struct buf part_text, merged_text;
	owned(policy) struct policy *part = NULL, *merged = NULL;
	struct err err = {0};

	buf_init(&part_text, TEXT_MAX);
	buf_init(&merged_text, TEXT_MAX);
	policy_render_part(p, t, &part_text);
	if (!policy_parse_part("part", buf_text(&part_text), part_text.len, &part, &err) ||
	    !policy_part_check(p, part, t->name, "part", &err) ||
	    !policy_part_merge(buf_text(document), document->len, p, part, p->effective_ns, &merged_text, &err)) {
		buf_printf(why, "%s\n%s", err.text, buf_text(&part_text));
		return false;
	}
	merged = parse(&merged_text, why);
	return merged != NULL && same(p, merged, why);
}

static bool
parts_are_neutral(const void *c, struct buf *why)
{
	const struct world *w = c;
	owned(policy) struct policy *p = parse(&w->text, why);

	if (p == NULL)
		return false;
	for (size_t i = 0; i < p->tenant_count; i++)
		if (!part_is_neutral(p, &p->tenants[i], &w->text, why))
			return false;
	return true;
}

int
main(void)
{
	static const struct prop_test tests[] = {
		{"a policy written as a file reads back as the same policy", sizeof(struct world), generate, reads_back,
	         describe, fini},
		{"a policy does not differ from itself, and each difference is one line", sizeof(struct world),
	         generate, differs_from_nothing_only, describe, fini},
		{"a tenant that applies the part it reads changes nothing", sizeof(struct world), generate,
	         parts_are_neutral, describe, fini},
	};

	return prop_main("prop_policy", tests, ARRAY_LEN(tests));
}
