/* aggregator/core/policy/policy_diff.c - the changes that applying a policy makes, one line each, for the person who is about to apply it. */
#include <string.h>

#include "aggregator/core/policy/policy_fields.h"

#define PERCENT_SCALE 7 /* 10^-9 of a price is 10^-7 of a percentage */

struct diff {
	struct buf *out;
	size_t changes;
	size_t *asked_last; /* per priority: which workspace of the old file had the rule seen last */
	bool reordered;
};

/* One line; the format ends in a newline. */
#define CHANGE(d, ...) ((d)->changes++, buf_printf((d)->out, __VA_ARGS__))

/* ---- finding the old entry ---- */

_Static_assert(offsetof(struct policy_tenant, name) == 0 && offsetof(struct policy_workspace, name) == 0 &&
                       offsetof(struct policy_node, name) == 0 && offsetof(struct policy_class, name) == 0 &&
                       offsetof(struct policy_member, user) == 0 && offsetof(struct policy_device, uuid) == 0 &&
                       offsetof(struct policy_energy, cluster) == 0 && offsetof(struct policy_weight, tenant) == 0,
               "policy_find() reads the name as the first member");

const void *
policy_find(const void *array, size_t n, size_t size, const char *name, size_t *hint)
{
	for (size_t i = 0; i < n; i++) {
		size_t at = (*hint + i) % n;
		const char *entry = (const char *)array + at * size;

		if (strcmp(*(char *const *)(const void *)entry, name) == 0) {
			*hint = at + 1;
			return entry;
		}
	}
	return NULL;
}

static const void *
find_same(const struct policy_section *s, const void *array, size_t n, const void *entry)
{
	for (size_t i = 0; i < n; i++) {
		const char *at = (const char *)array + i * s->size;

		if (policy_same_entry(s, at, entry))
			return at;
	}
	return NULL;
}

/* ---- by the table ---- */

/* One key of a thing; an absent value is new or gone, and any other is changed. */
static void
field_change(struct diff *d, const char *thing, const char *key, const char *from, const char *to)
{
	if (strcmp(from, to) == 0)
		return;
	if (from[0] == '\0')
		CHANGE(d, "+ %s %s %s\n", thing, key, to);
	else if (to[0] == '\0')
		CHANGE(d, "- %s %s %s\n", thing, key, from);
	else
		CHANGE(d, "~ %s %s %s -> %s\n", thing, key, from, to);
}

/* One key of an entry; `absent` stands for a new entry's old state, which is a NULL `from`, and for the new state of one that is
 * gone, a NULL `to`. */
static void
diff_field(struct diff *d, const struct policy_field *f, const char *thing, const void *from, const void *to,
           const void *absent)
{
	in_place(buf) struct buf before = {0}, after = {0};

	if (f->type->text == NULL || (f->flags & POLICY_OWN_DIFF) || ((f->flags & POLICY_OLD_DIFF) && from == NULL))
		return;
	buf_init(&before, POLICY_FIELD_MAX);
	buf_init(&after, POLICY_FIELD_MAX);
	policy_field_text(f, from ? from : absent, &before);
	policy_field_text(f, to ? to : absent, &after);
	if (!(f->flags & POLICY_TEXT_DIFF))
		field_change(d, thing, f->key, buf_text(&before), buf_text(&after));
	else if (strcmp(buf_text(&before), buf_text(&after)) != 0)
		CHANGE(d, "~ %s %s \"%s\" -> \"%s\"\n", thing, f->key, buf_text(&before), buf_text(&after));
}

static void
diff_fields(struct diff *d, const struct policy_section *s, const char *thing, const void *from, const void *to)
{
	owned(mem) void *absent = mem_alloc(s->size);

	policy_preset(s, absent);
	for (size_t i = 0; i < s->field_count; i++)
		diff_field(d, &s->fields[i], thing, from, to, absent);
}

static void
diff_members(struct diff *d, const char *of, const struct policy_members *from, const struct policy_members *to)
{
	size_t hint = 0;

	for (size_t i = 0; i < to->count; i++) {
		const struct policy_member *m = &to->at[i];
		const struct policy_member *old = policy_find(from->at, from->count, sizeof(*m), m->user, &hint);

		if (old == NULL)
			CHANGE(d, "+ member %s %s %s\n", of, m->user, m->role);
		else if (strcmp(old->role, m->role) != 0)
			CHANGE(d, "~ member %s %s %s -> %s\n", of, m->user, old->role, m->role);
	}
	hint = 0;
	for (size_t i = 0; i < from->count; i++)
		if (policy_find(to->at, to->count, sizeof(*to->at), from->at[i].user, &hint) == NULL)
			CHANGE(d, "- member %s %s %s\n", of, from->at[i].user, from->at[i].role);
}

/* ---- priority classes ---- */

static const char *
preempted(const struct policy_class *k)
{
	return k->preemptible ? "preemptible" : "not preemptible";
}

static void
diff_classes(struct diff *d, const struct policy *from, const struct policy *to)
{
	size_t hint = 0;

	for (size_t i = 0; i < to->class_count; i++) {
		const struct policy_class *k = &to->classes[i];
		const struct policy_class *old =
			policy_find(from->classes, from->class_count, sizeof(*k), k->name, &hint);

		if (old == NULL)
			CHANGE(d, "+ priority class %s %" PRId64 " %s\n", k->name, k->value, preempted(k));
		else if (old->value != k->value || old->preemptible != k->preemptible)
			CHANGE(d, "~ priority class %s %" PRId64 " %s -> %" PRId64 " %s\n", k->name, old->value,
			       preempted(old), k->value, preempted(k));
	}
	hint = 0;
	for (size_t i = 0; i < from->class_count; i++)
		if (policy_find(to->classes, to->class_count, sizeof(*to->classes), from->classes[i].name, &hint) ==
		    NULL)
			CHANGE(d, "- priority class %s\n", from->classes[i].name);
}

/* ---- tenants ---- */

static void
write_rule(struct buf *out, const struct policy_rule *r)
{
	for (size_t i = 0; i < policy_rule_section.field_count; i++) {
		const struct policy_field *f = &policy_rule_section.fields[i];

		if ((f->flags & POLICY_IDENTITY) && policy_identity(f, r) != NULL)
			buf_printf(out, " %s %s", f->key, policy_identity(f, r));
	}
}

static void
rule_change(struct diff *d, char sign, const char *workspace, const struct policy_rule *r)
{
	CHANGE(d, "%c rule %s", sign, workspace);
	write_rule(d->out, r);
	buf_printf(d->out, " priority %" PRId64 "\n", r->priority);
}

/* `ordinal` numbers the old file's workspaces from 1. Among rules of equal priority the first in the file wins, so
 * an order that changed may move usage although every rule is still there. */
static void
diff_rules(struct diff *d, const char *name, const struct policy_workspace *from, const struct policy_workspace *to,
           size_t ordinal)
{
	for (size_t i = 0; i < to->rule_count; i++) {
		const struct policy_rule *r = &to->rules[i],
					 *old = find_same(&policy_rule_section, from->rules, from->rule_count, r);

		if (old == NULL) {
			rule_change(d, '+', name, r);
		} else if (old->priority != r->priority) {
			CHANGE(d, "~ rule %s", name);
			write_rule(d->out, r);
			buf_printf(d->out, " priority %" PRId64 " -> %" PRId64 "\n", old->priority, r->priority);
		} else {
			d->reordered |= ordinal < d->asked_last[r->priority];
			d->asked_last[r->priority] = ordinal;
		}
	}
	for (size_t i = 0; i < from->rule_count; i++)
		if (find_same(&policy_rule_section, to->rules, to->rule_count, &from->rules[i]) == NULL)
			rule_change(d, '-', name, &from->rules[i]);
}

static const struct policy_workspace no_workspace;

static void
diff_workspaces(struct diff *d, const struct policy_tenant *from, const struct policy_tenant *to, size_t tenant_ordinal)
{
	size_t hint = 0;

	for (size_t i = 0; i < to->workspace_count; i++) {
		const struct policy_workspace *w = &to->workspaces[i];
		const struct policy_workspace *old =
			policy_find(from->workspaces, from->workspace_count, sizeof(*w), w->name, &hint);
		owned(mem) char *thing = mem_printf("workspace %s/%s", to->name, w->name);
		const char *name = thing + strlen("workspace ");

		if (old == NULL)
			CHANGE(d, "+ %s\n", thing);
		diff_fields(d, &policy_workspace_section, thing, old, w);
		diff_members(d, name, old ? &old->members : &no_workspace.members, &w->members);
		diff_rules(d, name, old ? old : &no_workspace, w, tenant_ordinal * POLICY_MAX_WORKSPACES + hint);
	}
	hint = 0;
	for (size_t i = 0; i < from->workspace_count; i++) {
		const char *gone = from->workspaces[i].name;

		if (policy_find(to->workspaces, to->workspace_count, sizeof(*to->workspaces), gone, &hint) == NULL)
			CHANGE(d, "- workspace %s/%s\n", to->name, gone);
	}
}

static void
diff_tenants(struct diff *d, const struct policy *from, const struct policy *to)
{
	static const struct policy_tenant none;
	size_t hint = 0;

	for (size_t i = 0; i < to->tenant_count; i++) {
		const struct policy_tenant *t = &to->tenants[i];
		const struct policy_tenant *old =
			policy_find(from->tenants, from->tenant_count, sizeof(*t), t->name, &hint);
		owned(mem) char *thing = mem_printf("tenant %s", t->name);

		if (old == NULL)
			CHANGE(d, "+ %s (%s)\n", thing, t->display_name);
		diff_fields(d, &policy_tenant_section, thing, old, t);
		diff_members(d, t->name, old ? &old->members : &none.members, &t->members);
		diff_workspaces(d, old ? old : &none, t, hint);
	}
	hint = 0;
	for (size_t i = 0; i < from->tenant_count; i++) {
		const struct policy_tenant *gone = &from->tenants[i];

		if (policy_find(to->tenants, to->tenant_count, sizeof(*gone), gone->name, &hint) != NULL)
			continue;
		CHANGE(d, "- tenant %s (%s)\n", gone->name, gone->display_name);
		for (size_t w = 0; w < gone->workspace_count; w++)
			CHANGE(d, "- workspace %s/%s\n", gone->name, gone->workspaces[w].name);
	}
	if (d->reordered)
		CHANGE(d, "~ rules of equal priority are asked in another order\n");
}

/* ---- nodes ---- */

static void
diff_devices(struct diff *d, const struct policy_node *from, const struct policy_node *to)
{
	size_t hint = 0;

	for (size_t i = 0; i < to->device_count; i++) {
		const struct policy_device *v = &to->devices[i];
		const struct policy_device *old =
			policy_find(from->devices, from->device_count, sizeof(*v), v->uuid, &hint);
		owned(mem) char *thing = mem_printf("device %s", v->uuid);

		field_change(d, thing, "state", old ? old->state : "", v->state);
	}
	hint = 0;
	for (size_t i = 0; i < from->device_count; i++)
		if (policy_find(to->devices, to->device_count, sizeof(*to->devices), from->devices[i].uuid, &hint) ==
		    NULL)
			CHANGE(d, "- device %s state %s\n", from->devices[i].uuid, from->devices[i].state);
}

/* `from` is NULL for a new node. */
static void
diff_node_fields(struct diff *d, const struct policy_node *from, const struct policy_node *to)
{
	static const struct policy_node none;
	owned(mem) char *thing = mem_printf("node %s", to->name);

	diff_fields(d, &policy_node_section, thing, from, to);
	diff_devices(d, from ? from : &none, to);
}

static bool
same_text(const char *a, const char *b)
{
	return a != NULL && b != NULL ? strcmp(a, b) == 0 : a == b;
}

static const char *
owner_of(const struct policy_node *n)
{
	return n->tenant ? n->tenant : "shared";
}

static void
diff_nodes(struct diff *d, const struct policy *from, const struct policy *to)
{
	size_t hint = 0;

	for (size_t i = 0; i < to->node_count; i++) {
		const struct policy_node *n = &to->nodes[i];
		const struct policy_node *old = policy_find(from->nodes, from->node_count, sizeof(*n), n->name, &hint);

		if (old == NULL) {
			CHANGE(d, "+ node %s %s%s\n", n->name, n->tenant ? "of " : "", owner_of(n));
			diff_node_fields(d, NULL, n);
			continue;
		}
		if (!same_text(old->tenant, n->tenant))
			CHANGE(d, "~ node %s %s%s -> %s%s\n", n->name, old->tenant ? "of " : "", owner_of(old),
			       n->tenant ? "of " : "", owner_of(n));
		if (strcmp(old->cluster, n->cluster) != 0)
			CHANGE(d, "~ node %s cluster %s -> %s\n", n->name, old->cluster, n->cluster);
		diff_node_fields(d, old, n);
	}
	hint = 0;
	for (size_t i = 0; i < from->node_count; i++)
		if (policy_find(to->nodes, to->node_count, sizeof(*to->nodes), from->nodes[i].name, &hint) == NULL)
			CHANGE(d, "- node %s\n", from->nodes[i].name);
}

/* ---- prices ---- */

static void
write_price(struct buf *out, const struct policy_price *p)
{
	const char *const words[] = {p->meter_sku, p->sharing_mode, p->klass};

	buf_str(out, p->meter ? p->meter : p->gpu_model ? p->gpu_model : "any GPU");
	if (p->mig_profile != NULL)
		buf_printf(out, " MIG %s", p->mig_profile);
	for (size_t i = 0; i < ARRAY_LEN(words); i++)
		if (words[i] != NULL)
			buf_printf(out, " %s", words[i]);
	if (p->tenant != NULL)
		buf_printf(out, " for %s", p->tenant);
}

/* "SIGN price WHAT", to which the caller adds the rest of the line. */
static void
price_change(struct diff *d, char sign, const struct policy_price *p)
{
	CHANGE(d, "%c price ", sign);
	write_price(d->out, p);
}

static void
write_amount(struct buf *out, const struct policy_price *p, int decimals)
{
	char price[DECIMAL_TEXT_SIZE];

	buf_printf(out, " %s", decimal_format(p->price, PRICE_SCALE, decimals, price));
	if (p->per != 1)
		buf_printf(out, " per %" PRId64, p->per);
	if (p->basis_used)
		buf_str(out, " of what was used");
}

static void
diff_price(struct diff *d, const struct policy_price *old, const struct policy_price *p, int decimals)
{
	bool amount = old == NULL || old->price != p->price || old->per != p->per || old->basis_used != p->basis_used;

	if (amount) {
		price_change(d, old ? '~' : '+', p);
		if (old != NULL) {
			write_amount(d->out, old, decimals);
			buf_str(d->out, " ->");
		}
		write_amount(d->out, p, decimals);
		buf_char(d->out, '\n');
	}
	if (old != NULL && strcmp(old->sku, p->sku) != 0) {
		price_change(d, '~', p);
		buf_printf(d->out, " sku \"%s\" -> \"%s\"\n", old->sku, p->sku);
	}
}

static void
diff_items(struct diff *d, const struct policy_book *from, const struct policy_book *to)
{
	struct err err;
	int decimals = 0;

	if (!currency_exponent(to->currency, &decimals, &err))
		decimals = 0; /* only how many zeros are shown */
	for (size_t i = 0; i < to->item_count; i++)
		diff_price(d, find_same(&policy_price_section, from->items, from->item_count, &to->items[i]),
		           &to->items[i], decimals);
	for (size_t i = 0; i < from->item_count; i++)
		if (find_same(&policy_price_section, to->items, to->item_count, &from->items[i]) == NULL) {
			price_change(d, '-', &from->items[i]);
			buf_char(d->out, '\n');
		}
}

/* ---- what is beside them ---- */

static void
discount_change(struct diff *d, char sign, const struct policy_discount *x)
{
	CHANGE(d, "%c discount %s", sign, x->tenant ? x->tenant : "everybody");
	if (x->category != NULL)
		buf_printf(d->out, " %s", x->category);
	if (x->klass != NULL)
		buf_printf(d->out, " %s", x->klass);
}

static void
diff_discounts(struct diff *d, const struct policy_book *from, const struct policy_book *to)
{
	char before[DECIMAL_TEXT_SIZE], after[DECIMAL_TEXT_SIZE];

	for (size_t i = 0; i < to->discount_count; i++) {
		const struct policy_discount *x = &to->discounts[i],
					     *old = find_same(&policy_discount_section, from->discounts,
		                                              from->discount_count, x);

		decimal_format(x->ratio, PERCENT_SCALE, 0, after);
		if (old != NULL && old->ratio == x->ratio)
			continue;
		discount_change(d, old ? '~' : '+', x);
		if (old != NULL)
			buf_printf(d->out, " %s %% ->", decimal_format(old->ratio, PERCENT_SCALE, 0, before));
		buf_printf(d->out, " %s %%\n", after);
	}
	for (size_t i = 0; i < from->discount_count; i++)
		if (find_same(&policy_discount_section, to->discounts, to->discount_count, &from->discounts[i]) ==
		    NULL) {
			discount_change(d, '-', &from->discounts[i]);
			buf_char(d->out, '\n');
		}
}

static void
diff_energy(struct diff *d, const struct policy_book *from, const struct policy_book *to)
{
	size_t hint = 0;

	for (size_t i = 0; i < to->energy_count; i++) {
		const char *cluster = to->energy[i].cluster;
		owned(mem) char *thing = mem_printf("energy %s", cluster);

		diff_fields(d, &policy_energy_section, thing,
		            policy_find(from->energy, from->energy_count, sizeof(*from->energy), cluster, &hint),
		            &to->energy[i]);
	}
	hint = 0;
	for (size_t i = 0; i < from->energy_count; i++) {
		const char *cluster = from->energy[i].cluster;
		owned(mem) char *thing = mem_printf("energy %s", cluster);

		if (policy_find(to->energy, to->energy_count, sizeof(*to->energy), cluster, &hint) == NULL)
			diff_fields(d, &policy_energy_section, thing, &from->energy[i], NULL);
	}
}

static void
diff_weights(struct diff *d, const struct policy_book *from, const struct policy_book *to)
{
	size_t hint = 0;

	for (size_t i = 0; i < to->weight_count; i++) {
		const struct policy_weight *w = &to->weights[i];
		const struct policy_weight *old =
			policy_find(from->weights, from->weight_count, sizeof(*w), w->tenant, &hint);

		if (old == NULL)
			CHANGE(d, "+ shared_idle weight %s %" PRId64 "\n", w->tenant, w->weight);
		else if (old->weight != w->weight)
			CHANGE(d, "~ shared_idle weight %s %" PRId64 " -> %" PRId64 "\n", w->tenant, old->weight,
			       w->weight);
	}
	hint = 0;
	for (size_t i = 0; i < from->weight_count; i++)
		if (policy_find(to->weights, to->weight_count, sizeof(*to->weights), from->weights[i].tenant, &hint) ==
		    NULL)
			CHANGE(d, "- shared_idle weight %s\n", from->weights[i].tenant);
}

static void
diff_books(struct diff *d, const struct policy_book *from, const struct policy_book *to)
{
	struct policy_book absent = {0};
	const struct policy_book *old = from ? from : &absent;

	policy_preset(&policy_book_section, &absent);
	if (to == NULL) {
		if (from != NULL)
			CHANGE(d, "- prices %s in %s\n", from->version, from->currency);
		return;
	}
	if (from == NULL)
		CHANGE(d, "+ prices %s in %s\n", to->version, to->currency);
	for (size_t i = 0; i < policy_book_section.field_count; i++) {
		const struct policy_field *f = &policy_book_section.fields[i];

		if (f->section == &policy_price_section)
			diff_items(d, old, to);
		else if (f->section == &policy_discount_section)
			diff_discounts(d, old, to);
		else if (f->section == &policy_energy_section)
			diff_energy(d, old, to);
		else
			diff_field(d, f, "prices", from, to, &absent);
		if (f->type == &policy_type_shared_idle)
			diff_weights(d, old, to);
	}
}

/* ---- the policy ---- */

size_t
policy_diff(const struct policy *from, const struct policy *to, struct buf *out)
{
	static const struct policy none;
	owned(mem) size_t *asked_last = mem_array(POLICY_MAX_PRIORITY + 1, sizeof(*asked_last));
	struct diff d = {.out = out, .asked_last = asked_last};

	if (from == NULL) {
		CHANGE(&d, "+ cluster %s\n", to->cluster);
		from = &none;
	} else if (strcmp(from->cluster, to->cluster) != 0) {
		CHANGE(&d, "~ cluster %s -> %s\n", from->cluster, to->cluster);
	}
	diff_classes(&d, from, to);
	diff_tenants(&d, from, to);
	diff_nodes(&d, from, to);
	diff_books(&d, from->prices, to->prices);
	return d.changes;
}
