/* aggregator/core/policy/policy_check.c - what a value of the policy file may be, and what must agree across the file. */
#include "aggregator/core/policy/policy_check.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/labels.h"

/* ---- single values ---- */

#define LOWER "abcdefghijklmnopqrstuvwxyz"
#define UPPER "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
#define DIGIT "0123456789"

static bool
only(const char *text, const char *allowed)
{
	return text[strspn(text, allowed)] == '\0';
}

static bool
begins_and_ends(const char *text, const char *allowed)
{
	return text[0] != '\0' && strchr(allowed, text[0]) != NULL && strchr(allowed, text[strlen(text) - 1]) != NULL;
}

/* The rule of DNS labels: such a name can also be a namespace, a label value and a file name. */
const char *
policy_label_fault(const char *text)
{
	if (strlen(text) > LIMIT_LABEL)
		return "is longer than " LIMIT_TEXT(LIMIT_LABEL) " characters";
	if (!only(text, LOWER DIGIT "-") || !begins_and_ends(text, LOWER DIGIT))
		return "must be lower-case letters, digits and '-', beginning and ending with a letter or digit";
	return NULL;
}

const char *
policy_node_fault(const char *text)
{
	if (strlen(text) > LIMIT_NODE_NAME)
		return "is longer than " LIMIT_TEXT(LIMIT_NODE_NAME) " characters";
	if (!only(text, LOWER UPPER DIGIT "-._") || !begins_and_ends(text, LOWER UPPER DIGIT))
		return "must be letters, digits, '-', '.' and '_', beginning and ending with a letter or digit";
	return NULL;
}

/* Anything else could never match: namespaces are DNS labels. */
const char *
policy_ns_fault(const char *text)
{
	if (text[0] == '\0')
		return "is empty";
	if (strlen(text) > 63)
		return "is longer than 63 characters";
	if (!only(text, LOWER DIGIT "-*?"))
		return "must be lower-case letters, digits and '-', with * and ? for what varies";
	return NULL;
}

/* As long as a value and of its characters, or it could never match; empty for the empty value. */
const char *
policy_value_fault(const char *text)
{
	if (strlen(text) > LABEL_MAX_VALUE)
		return "is longer than 63 characters";
	if (!only(text, LOWER UPPER DIGIT "-_.*?"))
		return "must be letters, digits, '-', '_' and '.', with * and ? for what varies";
	return NULL;
}

const char *
policy_code_fault(const char *text)
{
	if (strlen(text) > LIMIT_MODEL)
		return "is longer than " LIMIT_TEXT(LIMIT_MODEL) " characters";
	if (!only(text, LOWER UPPER DIGIT "-._+/ ") || !begins_and_ends(text, LOWER UPPER DIGIT))
		return "must be letters, digits, spaces and -._+/ beginning and ending with a letter or digit";
	return NULL;
}

/* Past digits, of which there must be one, and then a word; NULL when it is not so. */
static const char *
past_number(const char *text, const char *word)
{
	size_t digits = strspn(text, DIGIT);

	if (digits == 0 || strncmp(text + digits, word, strlen(word)) != 0)
		return NULL;
	return text + digits + strlen(word);
}

const char *
policy_profile_fault(const char *text)
{
	static const char fault[] = "is not a MIG profile like 3g.40gb, 1g.10gb+me or 1c.3g.40gb";
	const char *rest = past_number(text, "c.");

	if (strlen(text) > 32)
		return "is longer than 32 characters";
	rest = past_number(rest ? rest : text, "g.");
	rest = rest ? past_number(rest, "gb") : NULL;
	if (rest == NULL)
		return fault;
	if (rest[0] != '\0' && ((rest[0] != '+' && rest[0] != '-') || rest[1] == '\0' || !only(rest + 1, LOWER "+-.")))
		return fault;
	return NULL;
}

/* ---- the whole file ---- */

/* Something that may occur only once, by up to six texts of which some may be NULL. */
struct entry {
	const char *part[6];
	int line;
	const struct policy_tenant *tenant; /* where it stands, for the message */
	const struct policy_workspace *workspace;
};

static int
compare_parts(const struct entry *a, const struct entry *b)
{
	int order = 0;

	for (size_t i = 0; i < ARRAY_LEN(a->part) && order == 0; i++) {
		const char *x = a->part[i], *y = b->part[i];

		order = x != NULL && y != NULL ? strcmp(x, y) : (x != NULL) - (y != NULL);
	}
	return order;
}

static int
compare_entries(const void *a, const void *b)
{
	const struct entry *x = a, *y = b;
	int order = compare_parts(x, y);

	return order ? order : (x->line > y->line) - (x->line < y->line);
}

/* The first repetition in the file: sorts, and returns the second of two equal entries, which stands right behind
 * the first; NULL when all differ. */
static const struct entry *
find_repeated(struct entry *entries, size_t n)
{
	const struct entry *found = NULL;

	qsort(entries, n, sizeof(*entries), compare_entries);
	for (size_t i = 1; i < n; i++)
		if (compare_parts(&entries[i - 1], &entries[i]) == 0 &&
		    (found == NULL || entries[i].line < found->line))
			found = &entries[i];
	return found;
}

static bool
check_tenants(const struct policy *p, const char *file, struct err *err)
{
	owned(mem) struct entry *names = mem_array(p->tenant_count, sizeof(*names));
	const struct entry *again;

	for (size_t i = 0; i < p->tenant_count; i++)
		names[i] = (struct entry){.part = {p->tenants[i].name}, .line = p->tenants[i].line};
	again = find_repeated(names, p->tenant_count);
	if (again != NULL)
		return err_set(err, ERR_INVALID, "%s:%d: tenant \"%s\" is already on line %d", file, again->line,
		               again->part[0], again[-1].line);
	return true;
}

static bool
check_workspaces(const struct policy_tenant *t, const char *file, struct err *err)
{
	owned(mem) struct entry *names = mem_array(t->workspace_count, sizeof(*names));
	const struct entry *again;

	for (size_t i = 0; i < t->workspace_count; i++)
		names[i] = (struct entry){.part = {t->workspaces[i].name}, .line = t->workspaces[i].line};
	again = find_repeated(names, t->workspace_count);
	if (again != NULL)
		return err_set(err, ERR_INVALID, "%s:%d: workspace \"%s\" of tenant \"%s\" is already on line %d", file,
		               again->line, again->part[0], t->name, again[-1].line);
	return true;
}

static int
compare_tenants(const void *key, const void *tenant)
{
	const struct policy_tenant *const *t = tenant;

	return strcmp(key, (*t)->name);
}

static int
order_tenants(const void *a, const void *b)
{
	const struct policy_tenant *const *x = a, *const *y = b;

	return strcmp((*x)->name, (*y)->name);
}

static bool
check_owners(const struct policy *p, const char *file, struct err *err)
{
	owned(mem) const struct policy_tenant **sorted = mem_array(p->tenant_count, sizeof(*sorted));

	for (size_t i = 0; i < p->tenant_count; i++)
		sorted[i] = &p->tenants[i];
	qsort(sorted, p->tenant_count, sizeof(*sorted), order_tenants);
	for (size_t i = 0; i < p->node_count; i++) {
		const struct policy_node *n = &p->nodes[i];

		if (n->tenant != NULL &&
		    bsearch(n->tenant, sorted, p->tenant_count, sizeof(*sorted), compare_tenants) == NULL)
			return err_set(err, ERR_INVALID,
			               "%s:%d: node \"%s\" belongs to tenant \"%s\", which this file does not have",
			               file, n->line, n->name, n->tenant);
	}
	return true;
}

/* By name alone: an exporter gives no other. */
static bool
check_nodes(const struct policy *p, const char *file, struct err *err)
{
	owned(mem) struct entry *names = mem_array(p->node_count, sizeof(*names));
	const struct entry *again;

	for (size_t i = 0; i < p->node_count; i++)
		names[i] = (struct entry){.part = {p->nodes[i].name}, .line = p->nodes[i].line};
	again = find_repeated(names, p->node_count);
	if (again != NULL)
		return err_set(err, ERR_INVALID, "%s:%d: node \"%s\" is already on line %d", file, again->line,
		               again->part[0], again[-1].line);
	return check_owners(p, file, err);
}

static size_t
list_rules(const struct policy_tenant *t, struct entry *out)
{
	size_t n = 0;

	for (size_t w = 0; w < t->workspace_count; w++)
		for (size_t i = 0; i < t->workspaces[w].rule_count; i++) {
			const struct policy_rule *r = &t->workspaces[w].rules[i];

			if (out != NULL)
				out[n] = (struct entry){.part = {r->cluster, r->ns, r->slurm_account, r->user, r->group,
				                                 r->labels},
				                        .line = r->line,
				                        .tenant = t,
				                        .workspace = &t->workspaces[w]};
			n++;
		}
	return n;
}

/* Of two rules with the same patterns only one is ever reached, whatever their priorities. */
static bool
check_rules(const struct policy *p, const char *file, struct err *err)
{
	owned(mem) struct entry *rules = NULL;
	const struct entry *again;
	size_t count = 0;

	for (size_t i = 0; i < p->tenant_count; i++)
		count += list_rules(&p->tenants[i], NULL);
	rules = mem_array(count, sizeof(*rules));
	count = 0;
	for (size_t i = 0; i < p->tenant_count; i++)
		count += list_rules(&p->tenants[i], rules + count);
	again = find_repeated(rules, count);
	if (again != NULL)
		return err_set(err, ERR_INVALID, "%s:%d: this rule of workspace %s/%s is also on line %d, for %s/%s",
		               file, again->line, again->tenant->name, again->workspace->name, again[-1].line,
		               again[-1].tenant->name, again[-1].workspace->name);
	return true;
}

/* Members of one tenant or workspace, which `what` names. */
static bool
check_members(const struct policy_members *m, const char *what, const char *file, struct err *err)
{
	owned(mem) struct entry *names = mem_array(m->count, sizeof(*names));
	const struct entry *again;

	for (size_t i = 0; i < m->count; i++)
		names[i] = (struct entry){.part = {m->at[i].user}, .line = m->at[i].line};
	again = find_repeated(names, m->count);
	if (again != NULL)
		return err_set(err, ERR_INVALID, "%s:%d: member \"%s\" of %s is already on line %d", file, again->line,
		               again->part[0], what, again[-1].line);
	return true;
}

static bool
check_devices(const struct policy *p, const char *file, struct err *err)
{
	owned(mem) struct entry *devices = NULL;
	const struct entry *again;
	size_t count = 0;

	for (size_t i = 0; i < p->node_count; i++)
		count += p->nodes[i].device_count;
	devices = mem_array(count, sizeof(*devices));
	count = 0;
	for (size_t i = 0; i < p->node_count; i++)
		for (size_t k = 0; k < p->nodes[i].device_count; k++)
			devices[count++] = (struct entry){.part = {p->nodes[i].devices[k].uuid},
			                                  .line = p->nodes[i].devices[k].line};
	again = find_repeated(devices, count);
	if (again != NULL)
		return err_set(err, ERR_INVALID, "%s:%d: device \"%s\" is already on line %d", file, again->line,
		               again->part[0], again[-1].line);
	return true;
}

static bool
check_classes(const struct policy *p, const char *file, struct err *err)
{
	owned(mem) struct entry *names = mem_array(p->class_count, sizeof(*names));
	const struct entry *again;

	for (size_t i = 0; i < p->class_count; i++)
		names[i] = (struct entry){.part = {p->classes[i].name}, .line = p->classes[i].line};
	again = find_repeated(names, p->class_count);
	if (again != NULL)
		return err_set(err, ERR_INVALID, "%s:%d: priority class \"%s\" is already on line %d", file,
		               again->line, again->part[0], again[-1].line);
	return true;
}

static bool
check_tenant(const struct policy_tenant *t, const char *file, struct err *err)
{
	if (!check_workspaces(t, file, err) || !check_members(&t->members, t->name, file, err))
		return false;
	for (size_t i = 0; i < t->workspace_count; i++) {
		owned(mem) char *what = mem_printf("%s/%s", t->name, t->workspaces[i].name);

		if (!check_members(&t->workspaces[i].members, what, file, err))
			return false;
	}
	return policy_check_quota(t, file, err);
}

bool
policy_check(const struct policy *p, const char *file, struct err *err)
{
	if (!check_tenants(p, file, err))
		return false;
	for (size_t i = 0; i < p->tenant_count; i++)
		if (!check_tenant(&p->tenants[i], file, err))
			return false;
	return check_classes(p, file, err) && check_rules(p, file, err) && check_nodes(p, file, err) &&
	       check_devices(p, file, err) && policy_check_book(p->prices, p, file, err);
}
