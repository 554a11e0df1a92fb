/* aggregator/core/policy/policy_diff.c - what applying a policy changes, one line each, for the person who is about to do
 * it. */
#include <string.h>

#include "aggregator/core/policy/policy_diff.h"

/* ---- finding the old entry ---- */

_Static_assert(offsetof(struct policy_tenant, name) == 0 && offsetof(struct policy_workspace, name) == 0 &&
                       offsetof(struct policy_node, name) == 0 && offsetof(struct policy_class, name) == 0 &&
                       offsetof(struct policy_member, user) == 0 && offsetof(struct policy_device, uuid) == 0 &&
                       offsetof(struct policy_energy, cluster) == 0 && offsetof(struct policy_weight, tenant) == 0,
               "diff_find() reads the name as the first member");

const void *
diff_find(const void *array, size_t n, size_t size, const char *name, size_t *hint)
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

static const struct policy_rule *
find_rule(const struct policy_workspace *w, const struct policy_rule *r)
{
	for (size_t i = 0; i < w->rule_count; i++) {
		const struct policy_rule *x = &w->rules[i];

		if (diff_same_text(x->cluster, r->cluster) && diff_same_text(x->ns, r->ns) &&
		    diff_same_text(x->slurm_account, r->slurm_account) && diff_same_text(x->user, r->user) &&
		    diff_same_text(x->group, r->group) && diff_same_text(x->labels, r->labels))
			return x;
	}
	return NULL;
}

/* ---- tenants ---- */

static void
text_change(struct diff *d, const char *kind, const char *name, const char *field, const char *from, const char *to)
{
	if (strcmp(from, to) != 0)
		CHANGE(d, "~ %s %s %s \"%s\" -> \"%s\"\n", kind, name, field, from, to);
}

static void
write_rule(struct buf *out, const struct policy_rule *r)
{
	const char *const names[] = {"namespace", "slurm_account", "user", "group", "labels", "cluster"};
	const char *const patterns[] = {r->ns, r->slurm_account, r->user, r->group, r->labels, r->cluster};

	for (size_t i = 0; i < ARRAY_LEN(names); i++)
		if (patterns[i] != NULL)
			buf_printf(out, " %s %s", names[i], patterns[i]);
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
		const struct policy_rule *r = &to->rules[i], *old = find_rule(from, r);

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
		if (find_rule(to, &from->rules[i]) == NULL)
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
			diff_find(from->workspaces, from->workspace_count, sizeof(*w), w->name, &hint);
		owned(mem) char *name = mem_printf("%s/%s", to->name, w->name);

		if (old == NULL)
			CHANGE(d, "+ workspace %s\n", name);
		else
			text_change(d, "workspace", name, "description", old->description, w->description);
		diff_workspace_quota(d, name, old, w);
		diff_rules(d, name, old ? old : &no_workspace, w, tenant_ordinal * POLICY_MAX_WORKSPACES + hint);
	}
	hint = 0;
	for (size_t i = 0; i < from->workspace_count; i++) {
		const char *gone = from->workspaces[i].name;

		if (diff_find(to->workspaces, to->workspace_count, sizeof(*to->workspaces), gone, &hint) == NULL)
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
			diff_find(from->tenants, from->tenant_count, sizeof(*t), t->name, &hint);

		if (old == NULL) {
			CHANGE(d, "+ tenant %s (%s)\n", t->name, t->display_name);
		} else {
			text_change(d, "tenant", t->name, "display_name", old->display_name, t->display_name);
			text_change(d, "tenant", t->name, "cost_center", old->cost_center, t->cost_center);
			text_change(d, "tenant", t->name, "owner", old->owner, t->owner);
		}
		diff_tenant_quota(d, old, t);
		diff_workspaces(d, old ? old : &none, t, hint);
	}
	hint = 0;
	for (size_t i = 0; i < from->tenant_count; i++) {
		const struct policy_tenant *gone = &from->tenants[i];

		if (diff_find(to->tenants, to->tenant_count, sizeof(*gone), gone->name, &hint) != NULL)
			continue;
		CHANGE(d, "- tenant %s (%s)\n", gone->name, gone->display_name);
		for (size_t w = 0; w < gone->workspace_count; w++)
			CHANGE(d, "- workspace %s/%s\n", gone->name, gone->workspaces[w].name);
	}
	if (d->reordered)
		CHANGE(d, "~ rules of equal priority are asked in another order\n");
}

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
