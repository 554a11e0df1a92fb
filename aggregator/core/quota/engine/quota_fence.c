/* aggregator/core/quota/engine/quota_fence.c - devices of work that its scheduler says ended on a dead node.
 *
 *  1. the lease ends: its units leave what is leased, debt, limits and budgets. Holds that waited for it are planned again
 *  2. its devices are fenced: neither free nor lendable, and isolation counts them as its tenant's. What was nowhere is fenced nowhere
 *  3. a fence ends when telemetry sees its GPU without the work, or when the GPU has no such devices any more
 * On a lost node a fence changes nothing: its devices are not live. */
#include "aggregator/core/quota/engine/quota_state.h"

bool
quota_fence_ok(const struct quota_state *s, const struct quota_fence *in)
{
	return in->id && in->id[0] != '\0' && strnlen(in->id, QUOTA_ID_SIZE) < QUOTA_ID_SIZE && in->workspace >= 0 &&
	       (size_t)in->workspace < s->workspaces.count && in->count > 0 && in->count <= QUOTA_MAX_COUNT &&
	       quota_group_at(s, in->node, in->gpu, in->shape) != QUOTA_NONE;
}

static int
compare_fences(const struct fence *a, const struct quota_fence *b)
{
	if (a->in.node != b->node)
		return a->in.node < b->node ? -1 : 1;
	if (a->in.gpu != b->gpu)
		return a->in.gpu < b->gpu ? -1 : 1;
	if (a->in.shape != b->shape)
		return a->in.shape < b->shape ? -1 : 1;
	return strcmp(a->id, b->id);
}

void
quota_fence_add(struct quota_state *s, const struct quota_fence *in)
{
	size_t at = 0;
	struct fence *f;

	while (at < s->fences.count && compare_fences(&s->fences.at[at], in) <= 0)
		at++;
	(void)PUSH(s->fences);
	f = &s->fences.at[at];
	memmove(f + 1, f, (s->fences.count - 1 - at) * sizeof(*f));
	*f = (struct fence){.in = *in, .group = quota_group_at(s, in->node, in->gpu, in->shape)};
	memcpy(f->id, in->id, strlen(in->id) + 1);
	quota_group_fence(s, f->group, in->count, s->workspaces.at[in->workspace].in.tenant);
}

void
quota_lose(struct quota_state *s, int32_t lease, struct gather *g)
{
	const struct lease *l = &s->leases.at[lease];
	struct quota_fence fence = {.workspace = s->accounts.at[l->account].workspace, .since_ns = s->now_ns};
	in_place(plan) struct plan had = {0};
	size_t before = s->fences.count;
	char id[QUOTA_ID_SIZE];

	memcpy(id, l->id, sizeof(id));
	fence.id = id;
	quota_replan_those_waiting_for(s, lease, g);
	for (int32_t p = l->first_part; p != QUOTA_NONE; p = s->parts.at[p].next)
		*PUSH(had) = (struct spot){.group = s->parts.at[p].group, .count = s->parts.at[p].count};
	quota_notice(g, QUOTA_LEASE_RETURNED, id, "", s->now_ns);
	quota_lease_end(s, lease);
	for (size_t i = 0; i < had.count; i++) {
		const struct group *at = &s->groups.at[had.at[i].group];

		fence.node = s->gpus.at[at->gpu].node;
		fence.gpu = at->gpu - s->nodes.at[fence.node].first_gpu;
		fence.shape = at->shape;
		fence.count = had.at[i].count;
		if (at->total > 0)
			quota_fence_add(s, &fence);
	}
	if (s->fences.count > before)
		quota_notice(g, QUOTA_FENCED, id, "", s->now_ns);
}

static void
end_fence(struct quota_state *s, size_t at)
{
	struct fence *f = &s->fences.at[at];

	quota_group_fence(s, f->group, -f->in.count, s->workspaces.at[f->in.workspace].in.tenant);
	memmove(f, f + 1, (--s->fences.count - at) * sizeof(*f));
	s->dirty = true;
}

static bool
is_named(const struct quota_event *e, const struct quota_fence *f)
{
	for (size_t i = 0; i < e->part_count; i++)
		if (e->parts[i].node == f->node && e->parts[i].gpu == f->gpu)
			return true;
	return e->part_count == 0;
}

void
quota_unfence(struct quota_state *s, const struct quota_event *e, struct gather *g)
{
	bool any = false;

	for (size_t i = 0; i < s->fences.count;) {
		if (strcmp(s->fences.at[i].id, e->id) != 0 || !is_named(e, &s->fences.at[i].in)) {
			i++;
			continue;
		}
		end_fence(s, i);
		any = true;
	}
	if (any)
		quota_notice(g, QUOTA_UNFENCED, e->id, "", s->now_ns);
	else
		quota_notice(g, QUOTA_REFUSED, e->id, "unknown", s->now_ns);
}

void
quota_unfence_gone(struct quota_state *s, int32_t gpu, struct gather *g)
{
	for (size_t i = 0; i < s->fences.count;) {
		const struct group *at = &s->groups.at[s->fences.at[i].group];

		if (at->gpu != gpu || at->total > 0) {
			i++;
			continue;
		}
		quota_notice(g, QUOTA_UNFENCED, s->fences.at[i].id, "", s->now_ns);
		end_fence(s, i);
	}
}
