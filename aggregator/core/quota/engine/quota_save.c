/* aggregator/core/quota/engine/quota_save.c - a state as plain lists again, and copies of it. */
#include "aggregator/core/quota/engine/quota_state.h"

#include <stdlib.h>

#include "aggregator/core/quota/engine/quota_memory.h"

/* ---- the lists ---------------------------------------------------------------------------------------------------------------- */

static void
save_names(const struct quota_state *s, struct quota_memory **m, struct quota_policy *p)
{
	const char **clusters = quota_keep(m, s->clusters.count, sizeof(*clusters));
	const char **models = quota_keep(m, s->models.count, sizeof(*models));
	struct quota_shape *shapes = quota_keep(m, s->shapes.count, sizeof(*shapes));

	for (size_t i = 0; i < s->clusters.count; i++)
		clusters[i] = quota_keep_text(m, s->clusters.at[i].text);
	for (size_t i = 0; i < s->models.count; i++)
		models[i] = quota_keep_text(m, s->models.at[i].text);
	for (size_t i = 0; i < s->shapes.count; i++) {
		shapes[i] = s->shapes.at[i].in;
		shapes[i].name = quota_keep_text(m, s->shapes.at[i].name);
	}
	p->clusters = clusters;
	p->cluster_count = s->clusters.count;
	p->models = models;
	p->model_count = s->models.count;
	p->shapes = shapes;
	p->shape_count = s->shapes.count;
	p->class_count = s->class_count;
}

static int
compare_shares(const void *a, const void *b)
{
	const struct quota_share *x = a, *y = b;

	if (x->workspace != y->workspace)
		return x->workspace < y->workspace ? -1 : 1;
	if (x->cluster != y->cluster)
		return x->cluster < y->cluster ? -1 : 1;
	if (x->model != y->model)
		return x->model < y->model ? -1 : 1;
	return (int)x->shared - (int)y->shared;
}

static void
save_policy(const struct quota_state *s, struct quota_memory **m, struct quota_policy *p)
{
	struct quota_tenant *tenants = quota_keep(m, s->tenants.count, sizeof(*tenants));
	struct quota_workspace *workspaces = quota_keep(m, s->workspaces.count, sizeof(*workspaces));
	struct quota_share *shares = quota_keep(m, s->accounts.count, sizeof(*shares));
	struct quota_cap *caps = quota_keep(m, s->caps.count, sizeof(*caps));
	struct quota_budget *budgets = quota_keep(m, s->budgets.count, sizeof(*budgets));

	for (size_t i = 0; i < s->tenants.count; i++) {
		tenants[i] = s->tenants.at[i].in;
		tenants[i].name = quota_keep_text(m, s->tenants.at[i].name);
	}
	for (size_t i = 0; i < s->workspaces.count; i++) {
		workspaces[i] = s->workspaces.at[i].in;
		workspaces[i].name = quota_keep_text(m, s->workspaces.at[i].name);
	}
	for (size_t i = 0; i < s->accounts.count; i++)
		shares[i] = s->accounts.at[i].base;
	qsort(shares, s->accounts.count, sizeof(*shares), compare_shares);
	for (size_t i = 0; i < s->caps.count; i++)
		if (!s->caps.at[i].implied)
			caps[p->cap_count++] = s->caps.at[i].in;
	for (size_t i = 0; i < s->budgets.count; i++)
		budgets[i] = s->budgets.at[i].in;
	p->settings = s->settings;
	p->tenants = tenants;
	p->tenant_count = s->tenants.count;
	p->workspaces = workspaces;
	p->workspace_count = s->workspaces.count;
	p->shares = shares;
	p->share_count = s->accounts.count;
	p->caps = caps;
	p->budgets = budgets;
	p->budget_count = s->budgets.count;
}

static void
save_gpu(const struct quota_state *s, struct quota_memory **m, const struct gpu *d, struct quota_gpu *ret)
{
	struct quota_slots *slots;
	size_t count = 0;

	for (int32_t g = d->first_group; g != QUOTA_NONE; g = s->groups.at[g].next)
		count++;
	slots = quota_keep(m, count, sizeof(*slots));
	count = 0;
	for (int32_t g = d->first_group; g != QUOTA_NONE; g = s->groups.at[g].next) {
		slots[count] = (struct quota_slots){.shape = s->groups.at[g].shape, .count = s->groups.at[g].total};
		count++;
	}
	*ret = (struct quota_gpu){.slots = slots, .slot_count = count, .lost = d->lost};
}

static void
save_nodes(const struct quota_state *s, struct quota_memory **m, struct quota_world *w)
{
	struct quota_node *nodes = quota_keep(m, s->nodes.count, sizeof(*nodes));
	struct quota_gpu *gpus = quota_keep(m, s->gpus.count, sizeof(*gpus));

	for (size_t i = 0; i < s->gpus.count; i++)
		save_gpu(s, m, &s->gpus.at[i], &gpus[i]);
	for (size_t i = 0; i < s->nodes.count; i++) {
		const struct node *n = &s->nodes.at[i];

		nodes[i] = (struct quota_node){.name = quota_keep_text(m, n->name),
		                               .cluster = n->cluster,
		                               .tenant = n->tenant,
		                               .lost = n->lost,
		                               .gpus = &gpus[n->first_gpu],
		                               .gpu_count = (size_t)n->gpu_count};
	}
	w->nodes = nodes;
	w->node_count = s->nodes.count;
}

static struct quota_part *
save_parts(const struct quota_state *s, struct quota_memory **m, int32_t first, size_t *ret_count)
{
	struct quota_part *parts;
	size_t count = 0;

	for (int32_t p = first; p != QUOTA_NONE; p = s->parts.at[p].next)
		count++;
	parts = quota_keep(m, count, sizeof(*parts));
	*ret_count = count;
	for (int32_t p = first; p != QUOTA_NONE; p = s->parts.at[p].next) {
		const struct part *in = &s->parts.at[p];
		struct quota_part *out = &parts[--count];

		*out = (struct quota_part){
			.node = QUOTA_NONE, .gpu = QUOTA_NONE, .shape = QUOTA_NONE, .count = in->count};
		if (in->lease != QUOTA_NONE)
			out->lease = quota_keep_text(m, s->leases.at[in->lease].id);
		if (in->group != QUOTA_NONE) {
			const struct group *g = &s->groups.at[in->group];

			out->node = s->gpus.at[g->gpu].node;
			out->gpu = g->gpu - s->nodes.at[out->node].first_gpu;
			out->shape = g->shape;
		}
	}
	return parts;
}

static int
compare_parts(const void *a, const void *b)
{
	const struct quota_part *x = a, *y = b;

	if (x->node != y->node)
		return x->node < y->node ? -1 : 1;
	if (x->gpu != y->gpu)
		return x->gpu < y->gpu ? -1 : 1;
	return (x->shape > y->shape) - (x->shape < y->shape);
}

/* Devices of a lease in the order of places, however it came by them. */
static const struct quota_part *
save_places(const struct quota_state *s, struct quota_memory **m, int32_t first, size_t *ret_count)
{
	struct quota_part *parts = save_parts(s, m, first, ret_count);

	if (*ret_count > 1)
		qsort(parts, *ret_count, sizeof(*parts), compare_parts);
	return parts;
}

static int
compare_leases(const void *a, const void *b)
{
	const struct quota_lease *x = a, *y = b;

	if (x->since_ns != y->since_ns)
		return x->since_ns < y->since_ns ? -1 : 1;
	return strcmp(x->id, y->id);
}

static int
compare_requests(const void *a, const void *b)
{
	const struct quota_request *x = a, *y = b;

	if (x->submitted_ns != y->submitted_ns)
		return x->submitted_ns < y->submitted_ns ? -1 : 1;
	return strcmp(x->id, y->id);
}

static void
save_leases(const struct quota_state *s, struct quota_memory **m, struct quota_world *w)
{
	struct quota_lease *leases = quota_keep(m, s->lease_count, sizeof(*leases));
	struct quota_request *waiting = quota_keep(m, s->wait_count, sizeof(*waiting));

	for (size_t i = 0; i < s->leases.count; i++) {
		const struct lease *in = &s->leases.at[i];
		struct quota_lease *out = &leases[w->lease_count];

		if (in->id[0] == '\0')
			continue;
		*out = in->in;
		out->id = quota_keep_text(m, in->id);
		out->reason = in->reason[0] != '\0' ? quota_keep_text(m, in->reason) : NULL;
		out->node = QUOTA_NOWHERE;
		out->shared = s->accounts.at[in->account].base.shared;
		out->parts = save_places(s, m, in->first_part, &out->part_count);
		w->lease_count++;
	}
	for (size_t i = 0; i < s->waits.count; i++) {
		const struct wait *in = &s->waits.at[i];
		struct quota_request *out = &waiting[w->waiting_count];

		if (in->id[0] == '\0')
			continue;
		*out = in->in;
		out->id = quota_keep_text(m, in->id);
		out->reason = in->reason[0] != '\0' ? quota_keep_text(m, in->reason) : NULL;
		out->hold = save_parts(s, m, in->first_part, &out->hold_count);
		out->hold_owed = in->account != QUOTA_NONE && in->hold_owed;
		out->head_shared = in->head_of != QUOTA_NONE && s->pools.at[in->head_of].tenant == QUOTA_NONE;
		out->head_own = in->head_of != QUOTA_NONE && !out->head_shared;
		w->waiting_count++;
	}
	qsort(leases, w->lease_count, sizeof(*leases), compare_leases);
	qsort(waiting, w->waiting_count, sizeof(*waiting), compare_requests);
	w->leases = leases;
	w->waiting = waiting;
}

static void
save_rest(const struct quota_state *s, struct quota_memory **m, struct quota_world *w)
{
	struct quota_exception *exceptions = quota_keep(m, s->exceptions.count, sizeof(*exceptions));
	struct quota_backoff *backoffs = quota_keep(m, s->backoffs.count, sizeof(*backoffs));
	struct quota_adoption *adoptions = quota_keep(m, s->adoptions.count, sizeof(*adoptions));
	struct quota_switch *switches = quota_keep(m, s->switches.count, sizeof(*switches));
	struct quota_fence *fences = quota_keep(m, s->fences.count, sizeof(*fences));
	struct quota_unused *unused = quota_keep(m, s->unused.count, sizeof(*unused));

	for (size_t i = 0; i < s->exceptions.count; i++) {
		exceptions[i] = s->exceptions.at[i].in;
		exceptions[i].id = quota_keep_text(m, s->exceptions.at[i].id);
	}
	for (size_t i = 0; i < s->backoffs.count; i++)
		backoffs[i] = s->backoffs.at[i];
	w->exceptions = exceptions;
	w->exception_count = s->exceptions.count;
	w->backoffs = backoffs;
	w->backoff_count = s->backoffs.count;
	for (size_t i = 0; i < s->adoptions.count; i++)
		adoptions[i] = s->adoptions.at[i];
	for (size_t i = 0; i < s->switches.count; i++)
		switches[i] = s->switches.at[i];
	w->adoptions = adoptions;
	w->adoption_count = s->adoptions.count;
	w->switches = switches;
	w->switch_count = s->switches.count;
	for (size_t i = 0; i < s->fences.count; i++) {
		fences[i] = s->fences.at[i].in;
		fences[i].id = quota_keep_text(m, s->fences.at[i].id);
	}
	w->fences = fences;
	w->fence_count = s->fences.count;
	for (size_t i = 0; i < s->unused.count; i++) {
		unused[i] = s->unused.at[i].in;
		unused[i].reason = quota_keep_text(m, s->unused.at[i].reason);
	}
	w->unused = unused;
	w->unused_count = s->unused.count;
}

void
quota_save(const struct quota_state *s, struct quota_saved *ret)
{
	struct quota_memory *m = NULL;

	*ret = (struct quota_saved){0};
	ret->world.now_ns = s->now_ns;
	ret->world.skipped_ns = s->skipped_ns;
	save_names(s, &m, &ret->world.policy);
	save_policy(s, &m, &ret->world.policy);
	save_nodes(s, &m, &ret->world);
	save_leases(s, &m, &ret->world);
	save_rest(s, &m, &ret->world);
	ret->memory = m;
}

void
quota_saved_fini(struct quota_saved *saved)
{
	quota_memory_free(saved->memory);
	*saved = (struct quota_saved){0};
}

/* ---- copies ------------------------------------------------------------------------------------------------------------------- */

static void *
copy_of(const void *from, size_t count, size_t size)
{
	void *to = mem_grow(NULL, count + 1, size); /* with room for one more, which is zeroed when it is used */

	if (count > 0)
		memcpy(to, from, count * size);
	return to;
}

#define COPY(c, s, array)                                                                         \
	do {                                                                                      \
		(c)->array.at = copy_of((s)->array.at, (s)->array.count, sizeof(*(s)->array.at)); \
		(c)->array.cap = (s)->array.count + 1;                                            \
	} while (0)

struct quota_state *
quota_clone(const struct quota_state *s)
{
	struct quota_state *c = mem_alloc(sizeof(*c));

	*c = *s;
	COPY(c, s, clusters);
	COPY(c, s, models);
	COPY(c, s, shapes);
	COPY(c, s, tenants);
	COPY(c, s, workspaces);
	COPY(c, s, caps);
	COPY(c, s, budgets);
	COPY(c, s, accounts);
	COPY(c, s, pools);
	COPY(c, s, pool_places);
	COPY(c, s, pool_shapes);
	COPY(c, s, node_shapes);
	COPY(c, s, nodes);
	COPY(c, s, gpus);
	COPY(c, s, groups);
	COPY(c, s, parts);
	COPY(c, s, levels);
	COPY(c, s, leases);
	COPY(c, s, waits);
	COPY(c, s, exceptions);
	COPY(c, s, backoffs);
	COPY(c, s, adoptions);
	COPY(c, s, switches);
	COPY(c, s, fences);
	COPY(c, s, unused);
	COPY(c, s, touched);
	hash_copy(&c->lease_ids, &s->lease_ids);
	hash_copy(&c->wait_ids, &s->wait_ids);
	return c;
}
