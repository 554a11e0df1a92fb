/* aggregator/core/policy/policy_render.c - a policy as a file again. Texts are always quoted, so that none is taken for a number, a
 * boolean or nothing. */
#include <string.h>

#include "aggregator/core/policy/policy_text.h"
#include "common/base/labels.h"
#include "common/base/time.h"

#define PERCENT_SCALE 7 /* 10^-9 of a price is 10^-7 of a percentage */

/* Values of the file have no control characters. */
static void
write_quoted(struct buf *out, const char *text, size_t len)
{
	buf_char(out, '"');
	for (size_t i = 0; i < len; i++) {
		if (text[i] == '"' || text[i] == '\\')
			buf_char(out, '\\');
		buf_char(out, text[i]);
	}
	buf_char(out, '"');
}

/* KEY: "TEXT" inside braces; nothing when there is no text. */
static void
write_pair(struct buf *out, const char **before, const char *key, const char *text)
{
	if (text == NULL)
		return;
	buf_printf(out, "%s%s: ", *before, key);
	write_quoted(out, text, strlen(text));
	*before = ", ";
}

static void
write_text(struct buf *out, int indent, const char *key, const char *text)
{
	buf_printf(out, "%*s%s: ", indent, "", key);
	write_quoted(out, text, strlen(text));
	buf_char(out, '\n');
}

/* Names must be quoted, amounts and words must not. */
static void
write_value(struct buf *out, const char *key, const char *value)
{
	if (strcmp(key, "model") == 0 || strcmp(key, "cluster") == 0 || strcmp(key, "data_boundary") == 0)
		write_quoted(out, value, strlen(value));
	else
		buf_str(out, value);
}

/* Those fields that are not what they would be without their keys. */
#define WRITE_FIELDS(out, before, after, fields, thing, preset)                     \
	do {                                                                        \
		in_place(buf) struct buf value = {0}, usual = {0};                  \
		const char *key;                                                    \
                                                                                    \
		buf_init(&value, POLICY_FIELD_MAX);                                 \
		buf_init(&usual, POLICY_FIELD_MAX);                                 \
		for (size_t i = 0; (key = fields(thing, i, &value)) != NULL; i++) { \
			(void)fields(preset, i, &usual);                            \
			if (strcmp(buf_text(&value), buf_text(&usual)) == 0)        \
				continue;                                           \
			buf_printf(out, "%s%s: ", before, key);                     \
			write_value(out, key, buf_text(&value));                    \
			buf_str(out, after);                                        \
		}                                                                   \
	} while (0)

static void
write_members(struct buf *out, int indent, const struct policy_members *m)
{
	if (m->count > 0)
		buf_printf(out, "%*smembers:\n", indent, "");
	for (size_t i = 0; i < m->count; i++) {
		const char *before = "{";

		buf_printf(out, "%*s- ", indent + 2, "");
		write_pair(out, &before, "user", m->at[i].user);
		buf_printf(out, ", role: %s}\n", m->at[i].role);
	}
}

static void
write_labels(struct buf *out, const char **before, const char *labels)
{
	const char *separator = "{";
	struct label l;

	if (labels == NULL)
		return;
	buf_printf(out, "%slabels: ", *before);
	while (labels_next(&labels, &l)) {
		buf_str(out, separator);
		write_quoted(out, l.key, l.key_len);
		buf_str(out, ": ");
		write_quoted(out, l.value, l.value_len);
		separator = ", ";
	}
	buf_char(out, '}');
	*before = ", ";
}

static void
write_rules(struct buf *out, int indent, const struct policy_workspace *w)
{
	if (w->rule_count > 0)
		buf_printf(out, "%*srules:\n", indent, "");
	for (size_t i = 0; i < w->rule_count; i++) {
		const struct policy_rule *r = &w->rules[i];
		const char *before = "{";

		buf_printf(out, "%*s- ", indent + 2, "");
		write_pair(out, &before, "namespace", r->ns);
		write_pair(out, &before, "slurm_account", r->slurm_account);
		write_pair(out, &before, "user", r->user);
		write_pair(out, &before, "group", r->group);
		write_labels(out, &before, r->labels);
		write_pair(out, &before, "cluster", r->cluster);
		buf_printf(out, ", priority: %" PRId64 "}\n", r->priority);
	}
}

static void
write_workspace(struct buf *out, int indent, const struct policy_workspace *w)
{
	owned(mem) char *before = mem_printf("%*s", indent + 2, "");

	buf_printf(out, "%*s", indent, "");
	write_text(out, 0, "- name", w->name);
	if (w->description[0])
		write_text(out, indent + 2, "description", w->description);
	WRITE_FIELDS(out, before, "\n", policy_workspace_field, w, &policy_workspace_preset);
	write_members(out, indent + 2, &w->members);
	write_rules(out, indent + 2, w);
}

void
policy_render_tenant(const struct policy_tenant *t, int indent, struct buf *out)
{
	owned(mem) char *before = mem_printf("%*s", indent + 2, "");

	buf_printf(out, "%*s", indent, "");
	write_text(out, 0, "- name", t->name);
	if (strcmp(t->display_name, t->name) != 0)
		write_text(out, indent + 2, "display_name", t->display_name);
	if (t->cost_center[0])
		write_text(out, indent + 2, "cost_center", t->cost_center);
	if (t->owner[0])
		write_text(out, indent + 2, "owner", t->owner);
	WRITE_FIELDS(out, before, "\n", policy_tenant_field, t, &policy_tenant_preset);
	write_members(out, indent + 2, &t->members);
	if (t->workspace_count > 0)
		buf_printf(out, "%*sworkspaces:\n", indent + 2, "");
	for (size_t i = 0; i < t->workspace_count; i++)
		write_workspace(out, indent + 4, &t->workspaces[i]);
}

static void
write_head(const struct policy *p, struct buf *out)
{
	buf_printf(out, "version: %d\n", POLICY_VERSION);
	write_text(out, 0, "cluster", p->cluster);
}

void
policy_render_part(const struct policy *p, const struct policy_tenant *t, struct buf *out)
{
	write_head(p, out);
	buf_str(out, "tenants:\n");
	policy_render_tenant(t, 2, out);
}

static void
write_node(struct buf *out, const struct policy_node *n)
{
	const char *before = "  - {";

	write_pair(out, &before, "name", n->name);
	write_pair(out, &before, "cluster", n->cluster);
	write_pair(out, &before, "tenant", n->tenant);
	if (n->tenant == NULL)
		buf_str(out, ", shared: true");
	WRITE_FIELDS(out, ", ", "", policy_node_field, n, &policy_node_preset);
	before = ", devices: [{";
	for (size_t i = 0; i < n->device_count; i++) {
		write_pair(out, &before, "uuid", n->devices[i].uuid);
		buf_printf(out, ", state: %s}", n->devices[i].state);
		before = ", {";
	}
	buf_str(out, n->device_count > 0 ? "]}\n" : "}\n");
}

static void
write_item(struct buf *out, const struct policy_price *it)
{
	const char *before = "    - {";
	char price[DECIMAL_TEXT_SIZE];

	write_pair(out, &before, "sku", it->sku[0] ? it->sku : NULL);
	write_pair(out, &before, "gpu_model", it->gpu_model);
	write_pair(out, &before, "mig_profile", it->mig_profile);
	write_pair(out, &before, "sharing_mode", it->sharing_mode);
	write_pair(out, &before, "class", it->klass);
	write_pair(out, &before, "basis", it->basis_used ? "used" : NULL);
	write_pair(out, &before, "meter", it->meter);
	write_pair(out, &before, "meter_sku", it->meter_sku);
	write_pair(out, &before, "tenant", it->tenant);
	write_pair(out, &before, "price", decimal_format(it->price, PRICE_SCALE, 0, price));
	if (it->per != 1)
		buf_printf(out, ", per: %" PRId64, it->per);
	buf_str(out, "}\n");
}

/* An amount that may be absent, which is -1. */
static void
write_amount(struct buf *out, const char **before, const char *key, int128 amount)
{
	char text[DECIMAL_TEXT_SIZE];

	write_pair(out, before, key, amount >= 0 ? decimal_format(amount, PRICE_SCALE, 0, text) : NULL);
}

static void
write_discounts(struct buf *out, const struct policy_book *b)
{
	char percent[DECIMAL_TEXT_SIZE];

	buf_str(out, b->discount_count > 0 ? "  discounts:\n" : "");
	for (size_t i = 0; i < b->discount_count; i++) {
		const char *before = "    - {";

		write_pair(out, &before, "tenant", b->discounts[i].tenant);
		write_pair(out, &before, "category", b->discounts[i].category);
		write_pair(out, &before, "class", b->discounts[i].klass);
		write_pair(out, &before, "percent", decimal_format(b->discounts[i].ratio, PERCENT_SCALE, 0, percent));
		buf_str(out, "}\n");
	}
}

static void
write_beside(struct buf *out, const struct policy_book *b)
{
	char text[DECIMAL_TEXT_SIZE];
	const char *before;

	write_discounts(out, b);
	if (b->lender_ratio > 0)
		write_text(out, 2, "lender_ratio", decimal_format(b->lender_ratio, PRICE_SCALE, 0, text));
	buf_str(out, b->energy_count > 0 ? "  energy:\n" : "");
	for (size_t i = 0; i < b->energy_count; i++) {
		before = "    - {";
		write_pair(out, &before, "cluster", b->energy[i].cluster);
		write_amount(out, &before, "price_per_kwh", b->energy[i].price);
		write_amount(out, &before, "carbon_g_per_kwh", b->energy[i].carbon);
		buf_str(out, "}\n");
	}
	if (strcmp(b->shared_idle, "none") != 0)
		buf_printf(out, "  shared_idle: {method: %s", b->shared_idle);
	before = ", weights: {";
	for (size_t i = 0; i < b->weight_count; i++, before = ", ") {
		buf_str(out, before);
		write_quoted(out, b->weights[i].tenant, strlen(b->weights[i].tenant));
		buf_printf(out, ": %" PRId64, b->weights[i].weight);
	}
	if (strcmp(b->shared_idle, "none") != 0)
		buf_str(out, b->weight_count > 0 ? "}}\n" : "}\n");
	if (b->platform_cost >= 0)
		buf_printf(out, "  platform_cost: {monthly: \"%s\"}\n",
		           decimal_format(b->platform_cost, PRICE_SCALE, 0, text));
}

static void
write_prices(struct buf *out, const struct policy_book *b)
{
	if (b == NULL)
		return;
	buf_str(out, "prices:\n");
	write_text(out, 2, "version", b->version);
	write_text(out, 2, "currency", b->currency);
	buf_str(out, b->item_count > 0 ? "  items:\n" : "  items: []\n");
	for (size_t i = 0; i < b->item_count; i++)
		write_item(out, &b->items[i]);
	write_beside(out, b);
}

void
policy_render(const struct policy *p, struct buf *out)
{
	char when[TIME_TEXT_SIZE];

	write_head(p, out);
	if (p->effective_ns != INT64_MIN)
		buf_printf(out, "effective: %s\n", time_format(p->effective_ns, when));
	if (p->class_count > 0)
		buf_str(out, "priority_classes:\n");
	for (size_t i = 0; i < p->class_count; i++) {
		const char *before = "  - {";

		write_pair(out, &before, "name", p->classes[i].name);
		buf_printf(out, ", value: %" PRId64 ", preemptible: %s}\n", p->classes[i].value,
		           p->classes[i].preemptible ? "true" : "false");
	}
	if (p->tenant_count > 0)
		buf_str(out, "tenants:\n");
	for (size_t i = 0; i < p->tenant_count; i++)
		policy_render_tenant(&p->tenants[i], 2, out);
	if (p->node_count > 0)
		buf_str(out, "nodes:\n");
	for (size_t i = 0; i < p->node_count; i++)
		write_node(out, &p->nodes[i]);
	write_prices(out, p->prices);
}
