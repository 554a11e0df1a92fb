/* aggregator/core/policy.c - the memory of a policy. */
#include "aggregator/core/policy.h"

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
	mem_free(w->name);
	mem_free(w->description);
}

static void
free_tenant(struct policy_tenant *t)
{
	for (size_t i = 0; i < t->workspace_count; i++)
		free_workspace(&t->workspaces[i]);
	mem_free(t->workspaces);
	mem_free(t->name);
	mem_free(t->display_name);
	mem_free(t->cost_center);
	mem_free(t->owner);
}

static void
free_book(struct policy_book *b)
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
	}
	mem_free(b->items);
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
	for (size_t i = 0; i < p->node_count; i++) {
		mem_free(p->nodes[i].name);
		mem_free(p->nodes[i].cluster);
		mem_free(p->nodes[i].tenant);
	}
	mem_free(p->nodes);
	free_book(p->prices);
	mem_free(p->cluster);
	mem_free(p);
}
