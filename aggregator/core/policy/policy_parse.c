/* aggregator/core/policy/policy_parse.c - reading the policy file. What may stand in a field is in policy_check.c. */
#include "aggregator/core/policy/policy.h"

#include <string.h>

#include "aggregator/core/policy/policy_check.h"
#include "aggregator/core/policy/policy_read.h"
#include "common/base/labels.h"
#include "common/base/text.h"
#include "common/base/time.h"
#include "common/conf/yaml.h"

#define DISPLAY_MAX 200u
#define DESCRIPTION_MAX 500u
#define COST_CENTER_MAX 64u
#define OWNER_MAX 254u /* an address of mail */
#define PATTERN_MAX 253u
#define DEFAULT_PRIORITY 100

/* ---- tenants ---- */

/* The key is looked up as it is, its value is a pattern. Leaves one text with one spelling, as of the labels themselves. */
static bool
read_labels(const struct yaml_doc *doc, const struct yaml_node *rule, char **ret, struct err *err)
{
	const struct yaml_node *map = yaml_get(rule, "labels");
	struct labels_set set = {0};

	if (map == NULL)
		return true;
	if (!yaml_expect(doc, map, YAML_MAP, "labels", err))
		return false;
	if (map->count == 0 || map->count > LABEL_MAX_COUNT)
		return yaml_err(doc, map, err, "labels has %zu keys, 1 to %u are allowed", map->count, LABEL_MAX_COUNT);
	for (const struct yaml_node *n = map->child; n != NULL; n = n->next) {
		const char *text, *reason = label_key_fault(n->key, strlen(n->key));

		if (reason != NULL)
			return yaml_err(doc, n, err, "label \"%.*s\" %s", policy_shown(n->key), n->key, reason);
		if (!yaml_str(doc, map, n->key, &text, err))
			return false;
		reason = policy_value_fault(text);
		if (reason != NULL)
			return yaml_err(doc, n, err, "label %.*s \"%.*s\" %s", policy_shown(n->key), n->key,
			                policy_shown(text), text, reason);
		ASSERT(labels_put(&set, n->key, text));
	}
	*ret = labels_join(&set);
	return true;
}

static bool
read_rule(const struct yaml_doc *doc, const struct yaml_node *n, struct policy_rule *r, struct err *err)
{
	static const char *const keys[] = {"namespace", "slurm_account", "user",     "group",
	                                   "labels",    "cluster",       "priority", NULL};

	r->line = n->line;
	r->priority = DEFAULT_PRIORITY;
	if (!yaml_expect(doc, n, YAML_MAP, "a rule", err) || !yaml_only_keys(doc, n, keys, err) ||
	    !policy_read_optional(doc, n, "rule", "namespace", policy_ns_fault, &r->ns, err) ||
	    !policy_read_text(doc, n, "slurm_account", NULL, PATTERN_MAX, &r->slurm_account, err) ||
	    !policy_read_text(doc, n, "user", NULL, PATTERN_MAX, &r->user, err) ||
	    !policy_read_text(doc, n, "group", NULL, PATTERN_MAX, &r->group, err) ||
	    !read_labels(doc, n, &r->labels, err) ||
	    !policy_read_text(doc, n, "cluster", NULL, PATTERN_MAX, &r->cluster, err))
		return false;
	if (yaml_get(n, "priority") != NULL && !yaml_i64(doc, n, "priority", 0, POLICY_MAX_PRIORITY, &r->priority, err))
		return false;
	if (r->ns == NULL && r->slurm_account == NULL && r->user == NULL && r->group == NULL && r->labels == NULL &&
	    r->cluster == NULL)
		return yaml_err(
			doc, n, err,
			"a rule needs at least one of namespace, slurm_account, user, group, labels and cluster");
	return true;
}

static const char *const workspace_keys[] = {"name",     "description",     "rules",  "members", "cluster",
                                             "reserved", "reserved_shared", "limit",  "borrow",  "lend",
                                             "reclaim",  "preempt_own",     "weight", "enforce", "idle_timeout",
                                             "limits",   "budget",          "sla",    NULL};
static const char *const tenant_keys[] = {
	"name",          "display_name",  "cost_center",      "owner",  "members", "maximum",
	"default_limit", "isolation",     "priority_classes", "limits", "budget",  "auto_approve",
	"sla",           "data_boundary", "workspaces",       NULL};

static bool
read_workspace(const struct yaml_doc *doc, const struct yaml_node *n, struct policy_workspace *w, struct err *err)
{
	const struct yaml_node *rules;

	w->line = n->line;
	if (!yaml_expect(doc, n, YAML_MAP, "a workspace", err) || !yaml_only_keys(doc, n, workspace_keys, err) ||
	    !policy_read_checked(doc, n, "workspace", "name", policy_label_fault, &w->name, err) ||
	    !policy_read_text(doc, n, "description", "", DESCRIPTION_MAX, &w->description, err) ||
	    !policy_read_workspace_quota(doc, n, w, err) ||
	    !policy_read_list(doc, n, "rules", POLICY_MAX_RULES, &rules, err))
		return false;
	if (rules == NULL)
		return true;
	w->rules = mem_array(rules->count, sizeof(*w->rules));
	for (const struct yaml_node *c = rules->child; c != NULL; c = c->next)
		if (!read_rule(doc, c, &w->rules[w->rule_count++], err))
			return false;
	return true;
}

static bool
read_tenant(const struct yaml_doc *doc, const struct yaml_node *n, struct policy_tenant *t, struct err *err)
{
	const struct yaml_node *workspaces;

	t->line = n->line;
	if (!yaml_expect(doc, n, YAML_MAP, "a tenant", err) || !yaml_only_keys(doc, n, tenant_keys, err) ||
	    !policy_read_checked(doc, n, "tenant", "name", policy_label_fault, &t->name, err) ||
	    !policy_read_text(doc, n, "display_name", t->name, DISPLAY_MAX, &t->display_name, err) ||
	    !policy_read_text(doc, n, "cost_center", "", COST_CENTER_MAX, &t->cost_center, err) ||
	    !policy_read_text(doc, n, "owner", "", OWNER_MAX, &t->owner, err) ||
	    !policy_read_text(doc, n, "data_boundary", "", POLICY_MAX_BOUNDARY, &t->data_boundary, err) ||
	    !policy_read_tenant_quota(doc, n, t, err) ||
	    !policy_read_list(doc, n, "workspaces", POLICY_MAX_WORKSPACES, &workspaces, err))
		return false;
	if (strcmp(t->name, "unattributed") == 0 || strcmp(t->name, "platform") == 0)
		return yaml_err(doc, yaml_get(n, "name"), err,
		                "tenant name \"%s\" is reserved for usage that belongs to no tenant", t->name);
	if (workspaces == NULL)
		return true;
	t->workspaces = mem_array(workspaces->count, sizeof(*t->workspaces));
	for (const struct yaml_node *c = workspaces->child; c != NULL; c = c->next)
		if (!read_workspace(doc, c, &t->workspaces[t->workspace_count++], err))
			return false;
	return true;
}

static bool
read_tenants(const struct yaml_doc *doc, struct policy *p, struct err *err)
{
	const struct yaml_node *list;

	if (!policy_read_list(doc, yaml_root(doc), "tenants", POLICY_MAX_TENANTS, &list, err))
		return false;
	if (list == NULL)
		return true;
	p->tenants = mem_array(list->count, sizeof(*p->tenants));
	for (const struct yaml_node *c = list->child; c != NULL; c = c->next)
		if (!read_tenant(doc, c, &p->tenants[p->tenant_count++], err))
			return false;
	return true;
}

/* ---- the file ---- */

static bool
read_head(const struct yaml_doc *doc, struct policy *p, struct err *err)
{
	static const char *const keys[] = {"version", "cluster", "effective", "priority_classes",
	                                   "tenants", "nodes",   "prices",    NULL};
	const struct yaml_node *root = yaml_root(doc), *effective = yaml_get(root, "effective");
	struct err why = {0};
	const char *text;
	int64_t version;

	if (!yaml_expect(doc, root, YAML_MAP, "a policy", err) ||
	    !yaml_i64(doc, root, "version", 1, INT32_MAX, &version, err))
		return false;
	/* before the keys, so that a file of a later version is not blamed for what only that version knows */
	if (version != POLICY_VERSION)
		return yaml_err(doc, yaml_get(root, "version"), err,
		                "version is %" PRId64 ", this program reads version %d", version, POLICY_VERSION);
	if (!yaml_only_keys(doc, root, keys, err) ||
	    !policy_read_checked(doc, root, "policy", "cluster", policy_label_fault, &p->cluster, err))
		return false;
	p->effective_ns = INT64_MIN;
	if (effective == NULL)
		return true;
	if (!yaml_str(doc, root, "effective", &text, err))
		return false;
	if (!time_parse(text, &p->effective_ns, &why))
		return yaml_err(doc, effective, err, "effective: %s", why.text);
	return true;
}

static bool
read_policy(const struct yaml_doc *doc, struct policy *p, struct err *err)
{
	return read_head(doc, p, err) && policy_read_classes(doc, p, err) && read_tenants(doc, p, err) &&
	       policy_read_nodes(doc, p, err) && policy_read_book(doc, &p->prices, err) &&
	       policy_check(p, yaml_name(doc), err);
}

bool
policy_parse_part(const char *name, const char *text, size_t len, struct policy **ret, struct err *err)
{
	owned(yaml) struct yaml_doc *doc = NULL;
	owned(policy) struct policy *p = mem_alloc(sizeof(*p));

	if (!yaml_parse(name, text, len, &doc, err) || !read_policy(doc, p, err))
		return false;
	*ret = take(p);
	return true;
}

/* Only the key prices, beside a policy that has the tenants and clusters. */
static bool
parse_section(const struct yaml_doc *doc, const struct policy *beside, struct policy_book **ret, struct err *err)
{
	static const char *const keys[] = {"version", "prices", NULL};

	return yaml_only_keys(doc, yaml_root(doc), keys, err) && policy_read_book(doc, ret, err) &&
	       policy_check_book(*ret, beside, yaml_name(doc), err);
}

bool
policy_parse_book(const char *name, const char *text, size_t len, const struct policy *beside, struct policy_book **ret,
                  struct err *err)
{
	owned(yaml) struct yaml_doc *doc = NULL;
	owned(policy) struct policy *p = NULL;
	owned(policy_book) struct policy_book *book = NULL;

	if (!yaml_parse(name, text, len, &doc, err))
		return false;
	if (yaml_get(yaml_root(doc), "prices") == NULL)
		return yaml_err(doc, yaml_root(doc), err, "the file has no key prices");
	if (yaml_get(yaml_root(doc), "cluster") == NULL) {
		if (!parse_section(doc, beside, &book, err))
			return false;
		*ret = take(book);
		return true;
	}
	if (!policy_parse(name, text, len, &p, err))
		return false;
	*ret = take(p->prices);
	return true;
}

bool
policy_parse(const char *name, const char *text, size_t len, struct policy **ret, struct err *err)
{
	owned(policy) struct policy *p = NULL;

	if (!policy_parse_part(name, text, len, &p, err) || !policy_check_whole(p, name, err))
		return false;
	*ret = take(p);
	return true;
}
