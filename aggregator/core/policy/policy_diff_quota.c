/* aggregator/core/policy/policy_diff_quota.c - what applying a policy changes: members, quotas, priority classes, nodes. */
#include "aggregator/core/policy/policy_diff.h"
#include "aggregator/core/policy/policy_text.h"

/* One field of a thing; what is absent is new or gone, and everything else is changed. */
static void
field_change(struct diff *d, const char *kind, const char *name, const char *field, const char *from, const char *to)
{
	if (strcmp(from, to) == 0)
		return;
	if (from[0] == '\0')
		CHANGE(d, "+ %s %s %s %s\n", kind, name, field, to);
	else if (to[0] == '\0')
		CHANGE(d, "- %s %s %s %s\n", kind, name, field, from);
	else
		CHANGE(d, "~ %s %s %s %s -> %s\n", kind, name, field, from, to);
}

#define DIFF_FIELDS(d, kind, name, fields, from, to)                                             \
	do {                                                                                     \
		in_place(buf) struct buf before = {0}, after = {0};                              \
		const char *field;                                                               \
                                                                                                 \
		buf_init(&before, POLICY_FIELD_MAX);                                             \
		buf_init(&after, POLICY_FIELD_MAX);                                              \
		for (size_t i = 0; (field = fields(from, i, &before)) != NULL; i++) {            \
			(void)fields(to, i, &after);                                             \
			field_change(d, kind, name, field, buf_text(&before), buf_text(&after)); \
		}                                                                                \
	} while (0)

static void
diff_members(struct diff *d, const char *of, const struct policy_members *from, const struct policy_members *to)
{
	size_t hint = 0;

	for (size_t i = 0; i < to->count; i++) {
		const struct policy_member *m = &to->at[i];
		const struct policy_member *old = diff_find(from->at, from->count, sizeof(*m), m->user, &hint);

		if (old == NULL)
			CHANGE(d, "+ member %s %s %s\n", of, m->user, m->role);
		else if (strcmp(old->role, m->role) != 0)
			CHANGE(d, "~ member %s %s %s -> %s\n", of, m->user, old->role, m->role);
	}
	hint = 0;
	for (size_t i = 0; i < from->count; i++)
		if (diff_find(to->at, to->count, sizeof(*to->at), from->at[i].user, &hint) == NULL)
			CHANGE(d, "- member %s %s %s\n", of, from->at[i].user, from->at[i].role);
}

void
diff_tenant_quota(struct diff *d, const struct policy_tenant *from, const struct policy_tenant *to)
{
	if (from == NULL)
		from = &policy_tenant_preset;
	DIFF_FIELDS(d, "tenant", to->name, policy_tenant_field, from, to);
	diff_members(d, to->name, &from->members, &to->members);
}

void
diff_workspace_quota(struct diff *d, const char *name, const struct policy_workspace *from,
                     const struct policy_workspace *to)
{
	if (from == NULL)
		from = &policy_workspace_preset;
	DIFF_FIELDS(d, "workspace", name, policy_workspace_field, from, to);
	diff_members(d, name, &from->members, &to->members);
}

static const char *
preempted(const struct policy_class *k)
{
	return k->preemptible ? "preemptible" : "not preemptible";
}

void
diff_classes(struct diff *d, const struct policy *from, const struct policy *to)
{
	size_t hint = 0;

	for (size_t i = 0; i < to->class_count; i++) {
		const struct policy_class *k = &to->classes[i];
		const struct policy_class *old =
			diff_find(from->classes, from->class_count, sizeof(*k), k->name, &hint);

		if (old == NULL)
			CHANGE(d, "+ priority class %s %" PRId64 " %s\n", k->name, k->value, preempted(k));
		else if (old->value != k->value || old->preemptible != k->preemptible)
			CHANGE(d, "~ priority class %s %" PRId64 " %s -> %" PRId64 " %s\n", k->name, old->value,
			       preempted(old), k->value, preempted(k));
	}
	hint = 0;
	for (size_t i = 0; i < from->class_count; i++)
		if (diff_find(to->classes, to->class_count, sizeof(*to->classes), from->classes[i].name, &hint) == NULL)
			CHANGE(d, "- priority class %s\n", from->classes[i].name);
}

/* ---- nodes ---- */

static void
diff_devices(struct diff *d, const struct policy_node *from, const struct policy_node *to)
{
	size_t hint = 0;

	for (size_t i = 0; i < to->device_count; i++) {
		const struct policy_device *v = &to->devices[i];
		const struct policy_device *old =
			diff_find(from->devices, from->device_count, sizeof(*v), v->uuid, &hint);

		field_change(d, "device", v->uuid, "state", old ? old->state : "", v->state);
	}
	hint = 0;
	for (size_t i = 0; i < from->device_count; i++)
		if (diff_find(to->devices, to->device_count, sizeof(*to->devices), from->devices[i].uuid, &hint) ==
		    NULL)
			field_change(d, "device", from->devices[i].uuid, "state", from->devices[i].state, "");
}

static void
diff_node_fields(struct diff *d, const struct policy_node *from, const struct policy_node *to)
{
	DIFF_FIELDS(d, "node", to->name, policy_node_field, from, to);
	diff_devices(d, from, to);
}

static const char *
owner_of(const struct policy_node *n)
{
	return n->tenant ? n->tenant : "shared";
}

void
diff_nodes(struct diff *d, const struct policy *from, const struct policy *to)
{
	size_t hint = 0;

	for (size_t i = 0; i < to->node_count; i++) {
		const struct policy_node *n = &to->nodes[i];
		const struct policy_node *old = diff_find(from->nodes, from->node_count, sizeof(*n), n->name, &hint);

		if (old == NULL) {
			CHANGE(d, "+ node %s %s%s\n", n->name, n->tenant ? "of " : "", owner_of(n));
			diff_node_fields(d, &policy_node_preset, n);
			continue;
		}
		if (!diff_same_text(old->tenant, n->tenant))
			CHANGE(d, "~ node %s %s%s -> %s%s\n", n->name, old->tenant ? "of " : "", owner_of(old),
			       n->tenant ? "of " : "", owner_of(n));
		if (strcmp(old->cluster, n->cluster) != 0)
			CHANGE(d, "~ node %s cluster %s -> %s\n", n->name, old->cluster, n->cluster);
		diff_node_fields(d, old, n);
	}
	hint = 0;
	for (size_t i = 0; i < from->node_count; i++)
		if (diff_find(to->nodes, to->node_count, sizeof(*to->nodes), from->nodes[i].name, &hint) == NULL)
			CHANGE(d, "- node %s\n", from->nodes[i].name);
}
