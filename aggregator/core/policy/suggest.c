/* aggregator/core/policy/suggest.c - the text of the draft: the policy in force as a tree, written again with what is new in its
 * places. The numbers are those of suggest.h. */
#include "aggregator/core/policy/suggest.h"

#include <stdio.h>
#include <string.h>

#include "aggregator/core/policy/policy_check.h"
#include "aggregator/core/policy/suggest_plan.h"
#include "common/conf/json.h"
#include "common/base/time.h"
#include "common/base/units.h"
#include "common/conf/yaml.h"

#define LEFT_OUT_SHOWN 20

struct draft {
	const struct suggest_input *in;
	const struct plan *plan;
	const struct policy *current; /* NULL: there is none */
	struct buf *out;
};

static void
indent(struct buf *out, int depth)
{
	for (int i = 0; i < depth; i++)
		buf_str(out, "  ");
}

/* --- scalars --- */

/* What can be written as it is, and is then read as the same: no quote, no white space, nothing that YAML gives a meaning to. */
static bool
is_plain(const char *text)
{
	size_t n = strlen(text);

	return n > 0 && strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./") == n &&
	       text[0] != '-' && text[0] != '.';
}

static void
put_text(struct buf *out, const char *text)
{
	bool like_number = strspn(text, "0123456789.-") == strlen(text);
	static const char *const words[] = {"true", "false", "null", "yes", "no", "on", "off", "~"};

	for (size_t i = 0; i < ARRAY_LEN(words); i++)
		like_number = like_number || strcmp(text, words[i]) == 0;
	if (is_plain(text) && !like_number)
		buf_str(out, text);
	else
		json_write_string(text, out);
}

static void
put_scalar(struct buf *out, const struct yaml_node *n)
{
	if (yaml_is_null(n))
		buf_str(out, "null");
	else if (!n->quoted && is_plain(n->text))
		buf_str(out, n->text);
	else
		json_write_string(n->text, out);
}

/* --- rule 1: the tree of the policy in force --- */

static bool
is_leaf(const struct yaml_node *n)
{
	for (const struct yaml_node *c = n->child; c != NULL; c = c->next)
		if (c->kind != YAML_SCALAR)
			return false;
	return true;
}

/* On one line: scalars, and maps and lists of nothing else. */
static void
put_flow(struct buf *out, const struct yaml_node *n)
{
	const char *comma = "";

	if (n->kind == YAML_SCALAR) {
		put_scalar(out, n);
		return;
	}
	buf_char(out, n->kind == YAML_MAP ? '{' : '[');
	for (const struct yaml_node *c = n->child; c != NULL; c = c->next, comma = ", ") {
		buf_str(out, comma);
		if (n->kind == YAML_MAP) {
			put_text(out, c->key);
			buf_str(out, ": ");
		}
		put_flow(out, c);
	}
	buf_char(out, n->kind == YAML_MAP ? '}' : ']');
}

/* The value of a key, or of an item behind its dash. Depth is bounded by the reader. */
static void
put_value(struct buf *out, const struct yaml_node *n, bool item, int depth)
{
	if (n->kind == YAML_SCALAR || is_leaf(n)) {
		buf_char(out, ' ');
		put_flow(out, n);
		buf_char(out, '\n');
		return;
	}
	/* A map may begin beside the dash, as people write it. */
	item = item && n->kind == YAML_MAP;
	if (!item)
		buf_char(out, '\n');
	for (const struct yaml_node *c = n->child; c != NULL; c = c->next) {
		if (item && c == n->child)
			buf_char(out, ' ');
		else
			indent(out, depth);
		if (n->kind == YAML_MAP) {
			put_text(out, c->key);
			buf_char(out, ':');
		} else {
			buf_char(out, '-');
		}
		put_value(out, c, n->kind == YAML_LIST, depth + 1);
	}
}

/* --- what is new --- */

static void
put_hours(struct buf *out, int128 unit_ns)
{
	char text[DECIMAL_TEXT_SIZE];

	buf_str(out, decimal_format(unit_ns / ((int128)UNITS_PER_GPU * NS_PER_HOUR / 10), 1, 1, text));
}

static void
put_percent(struct buf *out, int128 part, int128 whole)
{
	char text[DECIMAL_TEXT_SIZE];

	buf_printf(out, "%s %%", decimal_format(whole == 0 ? 10000 : part * 10000 / whole, 2, 2, text));
}

static const char *
field_name(enum claim_field f)
{
	static const char *const names[] = {[CLAIM_NAMESPACE] = "namespace",
	                                    [CLAIM_ACCOUNT] = "slurm_account",
	                                    [CLAIM_GROUP] = "group",
	                                    [CLAIM_USER] = "user"};

	return names[f];
}

static void
put_rule(struct buf *out, const struct claim *c)
{
	buf_printf(out, "{%s: ", field_name(c->field));
	put_text(out, c->pattern);
	if (c->labels != NULL) {
		const char *value = strchr(c->labels, '=') + 1;

		buf_printf(out, ", labels: {%.*s: ", (int)(value - 1 - c->labels), c->labels);
		put_text(out, value);
		buf_char(out, '}');
	}
	buf_printf(out, ", priority: %" PRId64 "}   # ", c->priority);
	put_hours(out, c->unit_ns);
	buf_str(out, " GPU-hours\n");
}

/* The workspaces that are new in a tenant, from its first claim on; gives the first claim of another tenant. */
static size_t
put_workspaces(const struct draft *d, size_t i, int depth)
{
	const struct claim *at = d->plan->at;
	size_t first = i;

	for (; i < d->plan->taken && strcmp(at[i].tenant, at[first].tenant) == 0; i++) {
		if (i == first || strcmp(at[i].workspace, at[i - 1].workspace) != 0) {
			indent(d->out, depth);
			buf_str(d->out, "- name: ");
			put_text(d->out, at[i].workspace);
			buf_char(d->out, '\n');
			indent(d->out, depth + 1);
			buf_str(d->out, "rules:\n");
		}
		indent(d->out, depth + 2);
		buf_str(d->out, "- ");
		put_rule(d->out, &at[i]);
	}
	return i;
}

/* A tenant of the policy in force, and the workspaces that it gets. */
static void
put_tenant(const struct draft *d, const struct yaml_node *tenant)
{
	const struct yaml_node *name = yaml_get(tenant, "name"), *spaces = yaml_get(tenant, "workspaces");
	size_t claim = 0;

	while (claim < d->plan->taken && strcmp(d->plan->at[claim].tenant, name->text) != 0)
		claim++;
	buf_str(d->out, "  -");
	if (claim == d->plan->taken) {
		put_value(d->out, tenant, true, 2);
		return;
	}
	for (const struct yaml_node *c = tenant->child; c != NULL; c = c->next) {
		if (c == spaces)
			continue;
		buf_str(d->out, c == tenant->child ? " " : "    ");
		put_text(d->out, c->key);
		buf_char(d->out, ':');
		put_value(d->out, c, false, 3);
	}
	buf_str(d->out, spaces == tenant->child ? " workspaces:\n" : "    workspaces:\n");
	for (const struct yaml_node *c = spaces != NULL ? spaces->child : NULL; c != NULL; c = c->next) {
		buf_str(d->out, "      -");
		put_value(d->out, c, true, 4);
	}
	put_workspaces(d, claim, 3);
}

static void
put_tenants(const struct draft *d, const struct yaml_node *tenants)
{
	const struct claim *at = d->plan->at;

	buf_str(d->out,
	        d->plan->taken == 0 && (tenants == NULL || tenants->count == 0) ? "tenants: []\n" : "tenants:\n");
	for (const struct yaml_node *c = tenants != NULL ? tenants->child : NULL; c != NULL; c = c->next)
		put_tenant(d, c);
	for (size_t i = 0; i < d->plan->taken;) {
		if (plan_tenant(d->current, at[i].tenant) != NULL) {
			const char *name = at[i].tenant;

			while (i < d->plan->taken && strcmp(at[i].tenant, name) == 0)
				i++;
			continue;
		}
		buf_str(d->out, "  - name: ");
		put_text(d->out, at[i].tenant);
		buf_str(d->out, "\n    workspaces:\n");
		i = put_workspaces(d, i, 3);
	}
}

static void
put_nodes(const struct draft *d, const struct yaml_node *nodes)
{
	bool any = nodes != NULL && nodes->count > 0;
	const struct suggest_input *in = d->in;

	for (size_t i = 0; i < in->node_count; i++)
		any = any || (!in->nodes[i].declared && policy_node_fault(in->nodes[i].name) == NULL);
	if (!any)
		return;
	buf_str(d->out,
	        "\n# shared: true is nobody's own; say tenant: NAME instead where a node is one tenant's.\nnodes:\n");
	for (const struct yaml_node *c = nodes != NULL ? nodes->child : NULL; c != NULL; c = c->next) {
		buf_str(d->out, "  -");
		put_value(d->out, c, true, 2);
	}
	for (size_t i = 0; i < in->node_count; i++) {
		if (in->nodes[i].declared || policy_node_fault(in->nodes[i].name) != NULL)
			continue;
		buf_str(d->out, "  - {name: ");
		put_text(d->out, in->nodes[i].name);
		buf_str(d->out, ", cluster: ");
		put_text(d->out, in->nodes[i].cluster);
		buf_str(d->out, ", shared: true}\n");
	}
}

/* --- the document --- */

static void
put_left_out(const struct draft *d)
{
	const struct plan *p = d->plan;
	in_place(buf) struct buf name = {0};

	buf_init(&name, 8 * WIRE_MAX_TEXT);
	if (p->count == p->taken)
		return;
	buf_printf(d->out, "# %zu more were left out, because each is less than a thousandth:\n", p->count - p->taken);
	for (size_t i = p->taken; i < p->count && i < p->taken + LEFT_OUT_SHOWN; i++) {
		buf_clear(&name);
		json_write_string(p->at[i].pattern, &name);
		buf_printf(d->out, "#   %s %s, ", field_name(p->at[i].field), buf_text(&name));
		put_hours(d->out, p->at[i].unit_ns);
		buf_str(d->out, " GPU-hours\n");
	}
	if (p->count - p->taken > LEFT_OUT_SHOWN)
		buf_str(d->out, "#   ...\n");
}

static void
put_head(const struct draft *d)
{
	char from[TIME_TEXT_SIZE], to[TIME_TEXT_SIZE];

	buf_printf(d->out,
	           "# A draft, made from what was held from %s to %s. Names are guesses: look at each, change what is\n"
	           "# wrong, then\n"
	           "#\n"
	           "#   tollgate apply -f FILE --dry-run     shows what would change\n"
	           "#   tollgate apply -f FILE\n"
	           "#\n"
	           "# Its rules own ",
	           time_format(d->in->from_ns, from), time_format(d->in->to_ns, to));
	put_percent(d->out, d->plan->covered, d->plan->total);
	buf_str(d->out, " of the ");
	put_hours(d->out, d->plan->total);
	buf_str(d->out, " GPU-hours that somebody held; those in force own ");
	put_percent(d->out, d->plan->before, d->plan->total);
	buf_str(d->out,
	        ".\n# What was in force stays, and is asked first. Labels are chosen by whoever makes a pod.\n");
	put_left_out(d);
}

static void
put_document(const struct draft *d, const struct yaml_node *root)
{
	static const char *const ours[] = {"version", "cluster", "effective", "tenants", "nodes"};
	const struct yaml_node *cluster = root != NULL ? yaml_get(root, "cluster") : NULL;
	char when[TIME_TEXT_SIZE];

	put_head(d);
	buf_printf(d->out, "\nversion: %d\ncluster: ", POLICY_VERSION);
	put_text(d->out, cluster != NULL ? cluster->text : d->in->cluster);
	buf_printf(d->out, "\n\n# From the start of this billing hour on.\neffective: %s\n\n",
	           time_format(d->in->effective_ns, when));
	put_tenants(d, root != NULL ? yaml_get(root, "tenants") : NULL);
	put_nodes(d, root != NULL ? yaml_get(root, "nodes") : NULL);
	for (const struct yaml_node *c = root != NULL ? root->child : NULL; c != NULL; c = c->next) {
		bool known = false;

		for (size_t i = 0; i < ARRAY_LEN(ours); i++)
			known = known || strcmp(ours[i], c->key) == 0;
		if (known)
			continue;
		buf_char(d->out, '\n');
		put_text(d->out, c->key);
		buf_char(d->out, ':');
		put_value(d->out, c, false, 1);
	}
}

bool
suggest_policy(const struct suggest_input *in, struct buf *out, struct err *err)
{
	owned(yaml) struct yaml_doc *doc = NULL;
	owned(policy) struct policy *current = NULL, *again = NULL;
	in_place(plan) struct plan plan = {0};
	struct draft d = {.in = in, .plan = &plan, .out = out};
	size_t begun = out->len;

	if (in->current != NULL && (!policy_parse("the policy in force", in->current, in->current_len, &current, err) ||
	                            !yaml_parse("the policy in force", in->current, in->current_len, &doc, err)))
		return false;
	d.current = current;
	plan_make(in, current, &plan);
	put_document(&d, doc != NULL ? yaml_root(doc) : NULL);
	if (!buf_ok(out, "the draft", err))
		return false;
	return policy_parse("the draft", out->data + begun, out->len - begun, &again, err);
}
