/* aggregator/core/policy/policy_part.c - the part of the policy that a tenant's administrator may change.
 *
 * Rules; a refusal names file, line, field and bound, and nothing of any other tenant:
 *  1. the file has exactly its own tenant, in the policy's cluster, and no nodes, prices or priority classes
 *  2. display_name, cost_center, owner, data_boundary, sla, maximum, isolation, priority_classes and limits of the tenant are the operator's:
 *     absent, or as they are
 *  3. the attribution rules are those that the operator gave the tenant, each once, with its priority, in any of its
 *     workspaces: a new pattern could take others' usage, a missing one would leave its own unpaid
 *  4. per pool, model and profile the workspaces reserve together at most what the operator's do
 *  5. no weight is above, and no enforcement looser than, what the operator gave some workspace of the tenant
 *  6. what the operator promised a workspace (sla) is the operator's: absent, or as it is
 *  7. everything else is checked as in any policy, beside the operator's maximum */
#include <string.h>

#include "aggregator/core/policy/policy_fields.h"
#include "common/base/time.h"

const struct policy_tenant *
policy_tenant_named(const struct policy *p, const char *name)
{
	size_t hint = 0;

	return policy_find(p->tenants, p->tenant_count, sizeof(*p->tenants), name, &hint);
}

/* The tenant as it will be: the operator's keys, and the rest from the part. Owns nothing. */
static struct policy_tenant
merged_tenant(const struct policy_tenant *granted, const struct policy_tenant *part)
{
	struct policy_tenant t = *part;

	for (size_t i = 0; i < policy_tenant_section.field_count; i++) {
		const struct policy_field *f = &policy_tenant_section.fields[i];

		if (f->flags & POLICY_OPERATOR)
			memcpy((char *)&t + f->offset, (const char *)granted + f->offset, f->type->size);
	}
	return t;
}

/* ---- rules 1 and 2 ---- */

static bool
check_scope(const struct policy *granted, const struct policy *part, const char *tenant, const char *file,
            struct err *err)
{
	if (part->tenant_count != 1)
		return err_set(err, ERR_INVALID, "%s:1: tenants: the file has %zu, but must have exactly %s", file,
		               part->tenant_count, tenant);
	if (strcmp(part->tenants[0].name, tenant) != 0)
		return err_set(err, ERR_INVALID, "%s:%d: tenant \"%s\": the file may only have the tenant %s", file,
		               part->tenants[0].line, part->tenants[0].name, tenant);
	if (strcmp(part->cluster, granted->cluster) != 0)
		return err_set(err, ERR_INVALID, "%s:1: cluster \"%s\": the policy's cluster is %s", file,
		               part->cluster, granted->cluster);
	if (part->node_count > 0)
		return err_set(err, ERR_INVALID, "%s:%d: nodes: only an operator declares nodes", file,
		               part->nodes[0].line);
	if (part->prices != NULL)
		return err_set(err, ERR_INVALID, "%s:%d: prices: only an operator sets prices", file,
		               part->prices->line);
	if (part->class_count > 0)
		return err_set(err, ERR_INVALID, "%s:%d: priority_classes: only an operator defines priority classes",
		               file, part->classes[0].line);
	return true;
}

static bool
check_operator_text(const char *field, const char *value, const char *granted, const char *preset, int line,
                    const char *file, struct err *err)
{
	return strcmp(value, granted) == 0 || strcmp(value, preset) == 0 ||
	       err_set(err, ERR_INVALID, "%s:%d: %s %s: only an operator changes it; it is %s", file, line, field,
	               value, granted[0] ? granted : "not set");
}

static bool
check_operator_fields(const struct policy_tenant *granted, const struct policy_tenant *part, const char *file,
                      struct err *err)
{
	in_place(buf) struct buf have = {0}, ask = {0}, usual = {0};
	struct policy_tenant absent = {0};

	policy_preset(&policy_tenant_section, &absent);
	buf_init(&have, POLICY_FIELD_MAX);
	buf_init(&ask, POLICY_FIELD_MAX);
	buf_init(&usual, POLICY_FIELD_MAX);
	for (size_t i = 0; i < policy_tenant_section.field_count; i++) {
		const struct policy_field *f = &policy_tenant_section.fields[i];

		if (!(f->flags & POLICY_OPERATOR))
			continue;
		policy_field_text(f, part, &ask);
		policy_field_text(f, granted, &have);
		policy_field_text(f, &absent, &usual);
		if (f->flags & POLICY_NAMED_SAME)
			buf_str(&usual, part->name);
		if (!check_operator_text(f->key, buf_text(&ask), buf_text(&have), buf_text(&usual), part->line, file,
		                         err))
			return false;
	}
	return true;
}

/* ---- rule 3 ---- */

static bool
same_rule(const struct policy_rule *a, const struct policy_rule *b)
{
	return a->priority == b->priority && policy_same_entry(&policy_rule_section, a, b);
}

/* Within a policy no two rules have the same patterns, so one that is found is found once. */
static bool
has_rule(const struct policy_tenant *t, const struct policy_rule *r)
{
	for (size_t w = 0; w < t->workspace_count; w++)
		for (size_t i = 0; i < t->workspaces[w].rule_count; i++)
			if (same_rule(&t->workspaces[w].rules[i], r))
				return true;
	return false;
}

static void
write_patterns(const struct policy_rule *r, struct buf *out)
{
	for (size_t i = 0; i < policy_rule_section.field_count; i++) {
		const struct policy_field *f = &policy_rule_section.fields[i];

		if ((f->flags & POLICY_IDENTITY) && policy_identity(f, r) != NULL)
			buf_printf(out, "%s %s ", f->key, policy_identity(f, r));
	}
	buf_printf(out, "priority %" PRId64, r->priority);
}

/* Every rule of `these` is one of the other's. */
static const struct policy_rule *
first_other_rule(const struct policy_tenant *these, const struct policy_tenant *those)
{
	for (size_t w = 0; w < these->workspace_count; w++)
		for (size_t i = 0; i < these->workspaces[w].rule_count; i++)
			if (!has_rule(those, &these->workspaces[w].rules[i]))
				return &these->workspaces[w].rules[i];
	return NULL;
}

static bool
check_rules(const struct policy_tenant *granted, const struct policy_tenant *part, const char *file, struct err *err)
{
	const struct policy_rule *added = first_other_rule(part, granted), *gone = first_other_rule(granted, part);
	in_place(buf) struct buf shown = {0};

	buf_init(&shown, 4096);
	if (added != NULL) {
		write_patterns(added, &shown);
		return err_set(
			err, ERR_INVALID,
			"%s:%d: rules: %s: the operator gave the tenant no such rule; rules may only move between "
			"its workspaces",
			file, added->line, buf_text(&shown));
	}
	if (gone != NULL) {
		write_patterns(gone, &shown);
		return err_set(err, ERR_INVALID,
		               "%s:%d: rules: %s is missing: the operator gave it to the tenant; rules may only move "
		               "between its workspaces",
		               file, part->line, buf_text(&shown));
	}
	return true;
}

/* ---- rule 4 ---- */

/* The sum of one kind of reservation over a tenant's workspaces, in units, or in instances of a profile. */
static int64_t
reserved_sum(const struct policy *p, const struct policy_tenant *t, const char *cluster, bool shared,
             const struct quantity *kind)
{
	int64_t sum = 0;

	for (size_t w = 0; w < t->workspace_count; w++) {
		const struct policy_workspace *ws = &t->workspaces[w];
		const struct policy_amounts *a = shared ? &ws->reserved_shared : &ws->reserved;

		if (strcmp(policy_workspace_cluster(p, ws), cluster) != 0)
			continue;
		for (size_t i = 0; i < a->count; i++)
			if (strcmp(a->at[i].model, kind->model) == 0 && strcmp(a->at[i].profile, kind->profile) == 0)
				sum += kind->profile[0] ? a->at[i].num : a->at[i].num * UNITS_PER_GPU / a->at[i].den;
	}
	return sum;
}

static bool
check_amount(const struct policy *granted, const struct policy_tenant *has, const struct policy *part,
             const struct policy_workspace *w, bool shared, const struct quantity *q, const char *file, struct err *err)
{
	const char *cluster = policy_workspace_cluster(part, w), *unit = q->profile[0] ? q->profile : "GPUs";
	int64_t sum = reserved_sum(part, &part->tenants[0], cluster, shared, q);
	int64_t most = reserved_sum(granted, has, cluster, shared, q);
	char asked[QUANTITY_TEXT_SIZE], bound[QUANTITY_TEXT_SIZE];
	int64_t each = q->profile[0] ? UNITS_PER_GPU : 1;

	if (sum <= most)
		return true;
	return err_set(err, ERR_INVALID,
	               "%s:%d: workspace %s/%s: %s: the workspaces reserve %s %s%s%s together, and the operator "
	               "granted %s",
	               file, (shared ? &w->reserved_shared : &w->reserved)->line, part->tenants[0].name, w->name,
	               shared ? "reserved_shared" : "reserved", quantity_text(sum * each, asked), unit,
	               q->model[0] ? " of " : "", q->model, quantity_text(most * each, bound));
}

static bool
check_reserved(const struct policy *granted, const struct policy_tenant *has, const struct policy *part,
               const char *file, struct err *err)
{
	const struct policy_tenant *t = &part->tenants[0];

	for (size_t i = 0; i < t->workspace_count; i++) {
		const struct policy_workspace *w = &t->workspaces[i];

		for (size_t k = 0; k < w->reserved.count; k++)
			if (!check_amount(granted, has, part, w, false, &w->reserved.at[k], file, err))
				return false;
		for (size_t k = 0; k < w->reserved_shared.count; k++)
			if (!check_amount(granted, has, part, w, true, &w->reserved_shared.at[k], file, err))
				return false;
	}
	return true;
}

/* ---- rule 5 ---- */

static int
strictness(const char *enforce)
{
	return strcmp(enforce, "on") == 0 ? 2 : strcmp(enforce, "warn") == 0 ? 1 : 0;
}

static bool
check_standing(const struct policy_tenant *granted, const struct policy_tenant *part, const char *file, struct err *err)
{
	const char *loosest = granted->workspace_count > 0 ? granted->workspaces[0].enforce : "on";
	int64_t heaviest = 1;

	for (size_t i = 0; i < granted->workspace_count; i++) {
		const struct policy_workspace *w = &granted->workspaces[i];

		heaviest = w->weight > heaviest ? w->weight : heaviest;
		loosest = strictness(w->enforce) < strictness(loosest) ? w->enforce : loosest;
	}
	for (size_t i = 0; i < part->workspace_count; i++) {
		const struct policy_workspace *w = &part->workspaces[i];

		if (w->weight > heaviest)
			return err_set(err, ERR_INVALID,
			               "%s:%d: workspace %s/%s: weight %" PRId64 " is above %" PRId64
			               ", the most the operator gave the tenant",
			               file, w->line, part->name, w->name, w->weight, heaviest);
		if (strictness(w->enforce) < strictness(loosest))
			return err_set(err, ERR_INVALID,
			               "%s:%d: workspace %s/%s: enforce %s is looser than %s, which the operator set",
			               file, w->line, part->name, w->name, w->enforce, loosest);
	}
	return true;
}

/* ---- rule 6 ---- */

static bool
is_promise(const struct policy_sla *s)
{
	return s->owed_wait_ns != 0 || s->delivered_millionths != 0;
}

static const struct policy_sla *
promise_of(const struct policy_tenant *t, const char *workspace, size_t *hint)
{
	static const struct policy_sla none;
	const struct policy_workspace *w = policy_find(t->workspaces, t->workspace_count, sizeof(*w), workspace, hint);

	return w != NULL ? &w->sla : &none;
}

static bool
check_promises(const struct policy_tenant *granted, const struct policy_tenant *part, const char *file, struct err *err)
{
	size_t hint = 0;

	for (size_t i = 0; i < part->workspace_count; i++) {
		const struct policy_workspace *w = &part->workspaces[i];
		const struct policy_sla *has = promise_of(granted, w->name, &hint);

		if (is_promise(&w->sla) && (w->sla.owed_wait_ns != has->owed_wait_ns ||
		                            w->sla.delivered_millionths != has->delivered_millionths))
			return err_set(err, ERR_INVALID, "%s:%d: workspace %s/%s: sla: only an operator changes it",
			               file, w->line, part->name, w->name);
	}
	return true;
}

/* The workspaces of a part, with what the operator promised them; from mem_*, the rest is borrowed. */
static struct policy_workspace *
with_promises(const struct policy_tenant *now, const struct policy_tenant *part)
{
	struct policy_workspace *all = mem_array(part->workspace_count, sizeof(*all));
	size_t hint = 0;

	for (size_t i = 0; i < part->workspace_count; i++) {
		all[i] = part->workspaces[i];
		if (!is_promise(&all[i].sla))
			all[i].sla = *promise_of(now, all[i].name, &hint);
	}
	return all;
}

bool
policy_part_check(const struct policy *granted, const struct policy *part, const char *tenant, const char *file,
                  struct err *err)
{
	const struct policy_tenant *has = policy_tenant_named(granted, tenant);
	struct policy_tenant merged;

	if (has == NULL)
		return err_set(err, ERR_CONFLICT, "tenant %s is not in the policy in force", tenant);
	if (!check_scope(granted, part, tenant, file, err) ||
	    !check_operator_fields(has, &part->tenants[0], file, err) ||
	    !check_rules(has, &part->tenants[0], file, err) || !check_reserved(granted, has, part, file, err) ||
	    !check_standing(has, &part->tenants[0], file, err) || !check_promises(has, &part->tenants[0], file, err))
		return false;
	merged = merged_tenant(has, &part->tenants[0]);
	return policy_check_quota(&merged, file, err);
}

/* ---- the document ---- */

/* A range of lines, from 1, the end not included. */
struct lines {
	int from, to;
};

static const char *
line_start(const char *text, const char *end, int line)
{
	for (; line > 1 && text < end; line--) {
		const char *eol = memchr(text, '\n', (size_t)(end - text));

		text = eol ? eol + 1 : end;
	}
	return text;
}

/* Blank, or nothing but a comment. */
static bool
is_remark(const char *text, const char *end, int line)
{
	const char *at = line_start(text, end, line);

	while (at < end && (*at == ' ' || *at == '\t' || *at == '\r'))
		at++;
	return at == end || *at == '\n' || *at == '#';
}

/* The lines of a tenant's entry in a block list, and by how much it is indented. Lines between it and the next entry
 * are not part of it. False when it shares a line with something else. */
static bool
find_lines(const struct yaml_doc *doc, const char *text, const char *end, const char *tenant, struct lines *ret,
           int *ret_indent)
{
	const struct yaml_node *list = yaml_get(yaml_root(doc), "tenants"), *n = list ? list->child : NULL;
	const char *at, *dash;
	int last = 1;

	for (; n != NULL; n = n->next) {
		const struct yaml_node *name = yaml_get(n, "name");

		if (name != NULL && strcmp(name->text, tenant) == 0)
			break;
	}
	if (n == NULL)
		return false;
	for (const char *c = text; c < end; c++)
		last += *c == '\n';
	ret->from = n->line;
	ret->to = n->next != NULL ? n->next->line : list->next != NULL ? list->next->key_line : last + 1;
	while (ret->to > ret->from + 1 && is_remark(text, end, ret->to - 1))
		ret->to--;
	at = line_start(text, end, ret->from);
	for (dash = at; dash < end && *dash == ' '; dash++)
		;
	*ret_indent = (int)(dash - at);
	return ret->to > ret->from && dash < end && *dash == '-';
}

static void
add_lines(struct buf *out, const char *text, const char *end, struct lines l)
{
	const char *from = line_start(text, end, l.from), *to = line_start(text, end, l.to);

	buf_add(out, from, (size_t)(to - from));
}

static void
write_effective(struct buf *out, int64_t effective_ns)
{
	char when[TIME_TEXT_SIZE];

	if (effective_ns != INT64_MIN)
		buf_printf(out, "effective: %s\n", time_format(effective_ns, when));
}

/* Everything before the tenant, with another effective time, the tenant, everything after it. */
static bool
splice(const char *document, size_t len, const struct policy_tenant *t, int64_t effective_ns, struct buf *out)
{
	owned(yaml) struct yaml_doc *doc = NULL;
	const char *end = document + len;
	const struct yaml_node *old, *list;
	struct lines tenant;
	int indent, at;

	if (!yaml_parse("policy", document, len, &doc, NULL) ||
	    !find_lines(doc, document, end, t->name, &tenant, &indent))
		return false;
	old = yaml_get(yaml_root(doc), "effective");
	list = yaml_get(yaml_root(doc), "tenants");
	at = old != NULL ? old->key_line : list->key_line;
	if (at >= tenant.from)
		return false;
	add_lines(out, document, end, (struct lines){1, at});
	write_effective(out, effective_ns);
	add_lines(out, document, end, (struct lines){old != NULL ? at + 1 : at, tenant.from});
	policy_render_tenant(t, indent, out);
	add_lines(out, document, end, (struct lines){tenant.to, INT32_MAX});
	return !out->over;
}

/* Does the document say exactly this policy? */
static bool
says(const struct buf *document, const struct policy *wanted)
{
	owned(policy) struct policy *p = NULL;
	in_place(buf) struct buf ignored = {0};

	buf_init(&ignored, YAML_MAX_BYTES);
	return policy_parse("policy", buf_text(document), document->len, &p, NULL) &&
	       p->effective_ns == wanted->effective_ns && policy_diff(p, wanted, &ignored) == 0;
}

bool
policy_part_merge(const char *document, size_t len, const struct policy *now, const struct policy *part,
                  int64_t effective_ns, struct buf *out, struct err *err)
{
	const struct policy_tenant *old = policy_tenant_named(now, part->tenants[0].name);
	owned(mem) struct policy_tenant *tenants = mem_array(now->tenant_count, sizeof(*tenants));
	owned(mem) struct policy_workspace *workspaces = NULL;
	struct policy wanted = *now;

	if (old == NULL)
		return err_set(err, ERR_CONFLICT, "tenant %s is not in the policy in force", part->tenants[0].name);
	workspaces = with_promises(old, &part->tenants[0]);
	memcpy(tenants, now->tenants, now->tenant_count * sizeof(*tenants));
	tenants[old - now->tenants] = merged_tenant(old, &part->tenants[0]);
	tenants[old - now->tenants].workspaces = workspaces;
	wanted.tenants = tenants;
	wanted.effective_ns = effective_ns;
	if (splice(document, len, &tenants[old - now->tenants], effective_ns, out) && says(out, &wanted))
		return true;
	buf_clear(out);
	policy_render(&wanted, out);
	return buf_ok(out, "the policy with the tenant's part", err);
}
