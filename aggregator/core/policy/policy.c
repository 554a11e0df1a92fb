/* aggregator/core/policy/policy.c - the memory of a policy, and what is asked of its values in several places. */
#include "aggregator/core/policy/policy.h"

#include <string.h>

static void
free_members(struct policy_members *m)
{
	for (size_t i = 0; i < m->count; i++)
		mem_free(m->at[i].user);
	mem_free(m->at);
}

static void
free_workspace(struct policy_workspace *w)
{
	for (size_t i = 0; i < w->rule_count; i++) {
		struct policy_rule *r = &w->rules[i];

		mem_free(r->cluster);
		mem_free(r->ns);
		mem_free(r->slurm_account);
		mem_free(r->user);
		mem_free(r->group);
		mem_free(r->labels);
	}
	mem_free(w->rules);
	free_members(&w->members);
	mem_free(w->reserved.at);
	mem_free(w->reserved_shared.at);
	mem_free(w->limit.at);
	mem_free(w->borrow.at);
	mem_free(w->lend.at);
	mem_free(w->cluster);
	mem_free(w->name);
	mem_free(w->description);
}

static void
free_tenant(struct policy_tenant *t)
{
	for (size_t i = 0; i < t->workspace_count; i++)
		free_workspace(&t->workspaces[i]);
	mem_free(t->workspaces);
	free_members(&t->members);
	mem_free(t->maximum.at);
	mem_free(t->default_limit.at);
	for (size_t i = 0; i < t->class_count; i++)
		mem_free(t->classes[i]);
	mem_free(t->classes);
	mem_free(t->name);
	mem_free(t->display_name);
	mem_free(t->cost_center);
	mem_free(t->owner);
	mem_free(t->data_boundary);
}

static void
free_node(struct policy_node *n)
{
	for (size_t i = 0; i < n->profile_count; i++)
		mem_free(n->profiles[i].profile);
	mem_free(n->profiles);
	for (size_t i = 0; i < n->device_count; i++)
		mem_free(n->devices[i].uuid);
	mem_free(n->devices);
	mem_free(n->name);
	mem_free(n->cluster);
	mem_free(n->tenant);
	mem_free(n->model);
}

void
policy_book_free(struct policy_book *b)
{
	if (b == NULL)
		return;
	for (size_t i = 0; i < b->item_count; i++) {
		struct policy_price *it = &b->items[i];

		mem_free(it->sku);
		mem_free(it->gpu_model);
		mem_free(it->mig_profile);
		mem_free(it->sharing_mode);
		mem_free(it->klass);
		mem_free(it->tenant);
		mem_free(it->meter_sku);
	}
	for (size_t i = 0; i < b->discount_count; i++)
		mem_free(b->discounts[i].tenant);
	for (size_t i = 0; i < b->energy_count; i++)
		mem_free(b->energy[i].cluster);
	for (size_t i = 0; i < b->weight_count; i++)
		mem_free(b->weights[i].tenant);
	mem_free(b->items);
	mem_free(b->discounts);
	mem_free(b->energy);
	mem_free(b->weights);
	mem_free(b->version);
	mem_free(b->currency);
	mem_free(b);
}

void
policy_free(struct policy *p)
{
	if (p == NULL)
		return;
	for (size_t i = 0; i < p->tenant_count; i++)
		free_tenant(&p->tenants[i]);
	mem_free(p->tenants);
	for (size_t i = 0; i < p->node_count; i++)
		free_node(&p->nodes[i]);
	mem_free(p->nodes);
	for (size_t i = 0; i < p->class_count; i++)
		mem_free(p->classes[i].name);
	mem_free(p->classes);
	policy_book_free(p->prices);
	mem_free(p->cluster);
	mem_free(p);
}

const struct quantity *
policy_amount_for(const struct policy_amounts *a, const char *model)
{
	for (size_t i = 0; i < a->count; i++)
		if (a->at[i].model[0] == '\0' || strcmp(a->at[i].model, model) == 0)
			return &a->at[i];
	return NULL;
}

static void
write_quantity(const struct quantity *q, struct buf *out)
{
	if (q->unlimited)
		buf_str(out, "none");
	else if (q->profile[0])
		buf_printf(out, "%" PRId64 "x%s", q->num, q->profile);
	else if (q->den != 1)
		buf_printf(out, "%" PRId64 "/%" PRId64, q->num, q->den);
	else
		buf_i64(out, q->num);
}

void
policy_amounts_text(const struct policy_amounts *a, struct buf *out)
{
	if (a->count == 1 && a->at[0].model[0] == '\0') {
		write_quantity(&a->at[0], out);
		return;
	}
	for (size_t i = 0; i < a->count; i++) {
		buf_printf(out, "%s%s: ", i == 0 ? "{" : ", ", a->at[i].model);
		write_quantity(&a->at[i], out);
	}
	if (a->count > 0)
		buf_char(out, '}');
}

const char *
policy_workspace_cluster(const struct policy *p, const struct policy_workspace *w)
{
	return w->cluster ? w->cluster : p->cluster;
}
