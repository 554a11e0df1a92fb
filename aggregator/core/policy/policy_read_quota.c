/* aggregator/core/policy/policy_read_quota.c - reading what tenants and workspaces may have: members, amounts of GPUs and how they
 * are lent, priority classes. */
#include <string.h>

#include "aggregator/core/policy/policy_budget.h"
#include "aggregator/core/policy/policy_exception.h"
#include "aggregator/core/policy/policy_check.h"
#include "aggregator/core/policy/policy_read.h"
#include "aggregator/core/policy/policy_sla.h"
#include "common/base/time.h"

#define USER_MAX 254u /* an address of mail */
#define IDLE_TIMEOUT_MAX (30 * 24 * NS_PER_HOUR)

static bool
read_member(const struct yaml_doc *doc, const struct yaml_node *n, const char *const *roles, struct policy_member *m,
            struct err *err)
{
	static const char *const keys[] = {"user", "role", NULL};

	m->line = n->line;
	if (!yaml_expect(doc, n, YAML_MAP, "a member", err) || !yaml_only_keys(doc, n, keys, err) ||
	    !policy_read_text(doc, n, "user", NULL, USER_MAX, &m->user, err) ||
	    !policy_read_word(doc, n, "role", roles, &m->role, err))
		return false;
	if (m->user == NULL || m->role == NULL)
		return yaml_err(doc, n, err, "a member needs the key %s", m->user == NULL ? "user" : "role");
	return true;
}

static bool
read_members(const struct yaml_doc *doc, const struct yaml_node *map, const char *const *roles,
             struct policy_members *ret, struct err *err)
{
	const struct yaml_node *list;

	if (!policy_read_list(doc, map, "members", POLICY_MAX_MEMBERS, &list, err))
		return false;
	if (list == NULL)
		return true;
	ret->at = mem_array(list->count, sizeof(*ret->at));
	for (const struct yaml_node *c = list->child; c != NULL; c = c->next)
		if (!read_member(doc, c, roles, &ret->at[ret->count++], err))
			return false;
	return true;
}

/* `none`, or so long. */
static bool
read_idle_timeout(const struct yaml_doc *doc, const struct yaml_node *n, int64_t *ret_ns, struct err *err)
{
	char most[TIME_TEXT_SIZE];
	struct err why = {0};
	const char *text;

	if (yaml_get(n, "idle_timeout") == NULL)
		return true;
	if (!yaml_str(doc, n, "idle_timeout", &text, err))
		return false;
	if (strcmp(text, "none") == 0)
		return true;
	if (!duration_parse(text, ret_ns, &why))
		return yaml_err(doc, yaml_get(n, "idle_timeout"), err, "idle_timeout: %s", why.text);
	if (*ret_ns < NS_PER_S || *ret_ns > IDLE_TIMEOUT_MAX)
		return yaml_err(doc, yaml_get(n, "idle_timeout"), err, "idle_timeout \"%.*s\" is outside 1s to %s",
		                policy_shown(text), text, duration_format(IDLE_TIMEOUT_MAX, most));
	return true;
}

bool
policy_read_workspace_quota(const struct yaml_doc *doc, const struct yaml_node *n, struct policy_workspace *w,
                            struct err *err)
{
	static const char *const roles[] = {"developer", "viewer", NULL};
	static const char *const reclaim[] = {"any", "lower", "never", NULL};
	static const char *const preempt[] = {"lower", "never", NULL};
	static const char *const enforce[] = {"off", "warn", "on", NULL};

	w->reclaim = "any";
	w->preempt_own = "lower";
	w->enforce = "on";
	w->weight = 1;
	return read_members(doc, n, roles, &w->members, err) &&
	       policy_read_optional(doc, n, "workspace", "cluster", policy_label_fault, &w->cluster, err) &&
	       policy_read_amounts(doc, n, "reserved", &w->reserved, err) &&
	       policy_read_amounts(doc, n, "reserved_shared", &w->reserved_shared, err) &&
	       policy_read_amounts(doc, n, "limit", &w->limit, err) &&
	       policy_read_amounts(doc, n, "borrow", &w->borrow, err) &&
	       policy_read_amounts(doc, n, "lend", &w->lend, err) &&
	       policy_read_word(doc, n, "reclaim", reclaim, &w->reclaim, err) &&
	       policy_read_word(doc, n, "preempt_own", preempt, &w->preempt_own, err) &&
	       policy_read_word(doc, n, "enforce", enforce, &w->enforce, err) &&
	       (yaml_get(n, "weight") == NULL || yaml_i64(doc, n, "weight", 1, POLICY_MAX_WEIGHT, &w->weight, err)) &&
	       read_idle_timeout(doc, n, &w->idle_timeout_ns, err) && policy_read_resources(doc, n, &w->limits, err) &&
	       policy_read_budget(doc, n, &w->budget, err) && policy_read_sla(doc, n, &w->sla, err);
}

bool
policy_read_class_names(const struct yaml_doc *doc, const struct yaml_node *map, const struct yaml_node **ret,
                        struct err *err)
{
	if (!policy_read_list(doc, map, "priority_classes", LIMIT_CLASSES, ret, err))
		return false;
	for (const struct yaml_node *c = *ret != NULL ? (*ret)->child : NULL; c != NULL; c = c->next) {
		const char *reason;

		if (!yaml_expect(doc, c, YAML_SCALAR, "the name of a priority class", err))
			return false;
		reason = policy_label_fault(c->text);
		if (reason != NULL)
			return yaml_err(doc, c, err, "priority class \"%.*s\" %s", policy_shown(c->text), c->text,
			                reason);
	}
	return true;
}

/* That the classes exist is looked at when the whole file is known. */
static bool
read_tenant_classes(const struct yaml_doc *doc, const struct yaml_node *n, struct policy_tenant *t, struct err *err)
{
	const struct yaml_node *list;

	if (!policy_read_class_names(doc, n, &list, err))
		return false;
	if (list == NULL)
		return true;
	t->classes_given = true;
	t->classes = mem_array(list->count, sizeof(*t->classes));
	for (const struct yaml_node *c = list->child; c != NULL; c = c->next)
		t->classes[t->class_count++] = mem_strdup(c->text);
	return true;
}

bool
policy_read_tenant_quota(const struct yaml_doc *doc, const struct yaml_node *n, struct policy_tenant *t,
                         struct err *err)
{
	static const char *const roles[] = {"tenant-admin", "developer", "viewer", NULL};
	static const char *const isolations[] = {"node", "gpu", "mig", "shared", NULL};

	t->isolation = "shared";
	return read_members(doc, n, roles, &t->members, err) &&
	       policy_read_amounts(doc, n, "maximum", &t->maximum, err) &&
	       policy_read_amounts(doc, n, "default_limit", &t->default_limit, err) &&
	       policy_read_word(doc, n, "isolation", isolations, &t->isolation, err) &&
	       read_tenant_classes(doc, n, t, err) && policy_read_resources(doc, n, &t->limits, err) &&
	       policy_read_budget(doc, n, &t->budget, err) && policy_read_sla(doc, n, &t->sla, err) &&
	       policy_read_auto_approve(doc, n, &t->auto_approve, err);
}

static bool
read_class(const struct yaml_doc *doc, const struct yaml_node *n, struct policy_class *k, struct err *err)
{
	static const char *const keys[] = {"name", "value", "preemptible", NULL};

	k->line = n->line;
	k->preemptible = true;
	return yaml_expect(doc, n, YAML_MAP, "a priority class", err) && yaml_only_keys(doc, n, keys, err) &&
	       policy_read_checked(doc, n, "priority class", "name", policy_label_fault, &k->name, err) &&
	       yaml_i64(doc, n, "value", -POLICY_MAX_CLASS_VALUE, POLICY_MAX_CLASS_VALUE, &k->value, err) &&
	       (yaml_get(n, "preemptible") == NULL || yaml_bool(doc, n, "preemptible", &k->preemptible, err));
}

bool
policy_read_classes(const struct yaml_doc *doc, struct policy *p, struct err *err)
{
	const struct yaml_node *list;

	if (!policy_read_list(doc, yaml_root(doc), "priority_classes", LIMIT_CLASSES, &list, err))
		return false;
	if (list == NULL)
		return true;
	p->classes = mem_array(list->count, sizeof(*p->classes));
	for (const struct yaml_node *c = list->child; c != NULL; c = c->next)
		if (!read_class(doc, c, &p->classes[p->class_count++], err))
			return false;
	return true;
}
