/* aggregator/core/quota/engine/quota_fit.c - shapes on real nodes and instances.
 *
 * A request's devices come from as few nodes as possible, and from those that have the least to spare:
 *  1. the node with the fewest free devices among those that can give all that is missing;
 *  2. without such a node, the node that can give the most, and then again from 1.
 * With per_node a node gives multiples of it. Ties go to the first node. On a node the GPU with the fewest free instances gives
 * first. In a shared pool a GPU or node is left out where the tenant's isolation, or that of a tenant on it, forbids it. */
#include "aggregator/core/quota/engine/quota_state.h"

static bool
may_join(const struct tenancy *who, int32_t tenant, bool alone)
{
	int64_t t = tenant + 1;

	if (who->devices == 0)
		return true;
	if (who->sum == who->devices * t && who->devices * who->squares == who->sum * who->sum)
		return true;
	return !alone && who->strict == 0;
}

/* Own pools have one tenant, and where no tenant has isolation every tenant may join. */
static bool
company_matters(const struct quota_state *s, const struct ask *ask)
{
	const struct pool *p = &s->pools.at[ask->pool];

	return p->tenant == QUOTA_NONE && (p->strict > 0 || s->tenants.at[ask->tenant].in.isolation != QUOTA_SHARED);
}

static bool
gpu_allowed(const struct quota_state *s, const struct ask *ask, int32_t gpu)
{
	enum quota_isolation isolation = s->tenants.at[ask->tenant].in.isolation;
	bool alone = isolation >= QUOTA_BY_GPU ||
	             (isolation == QUOTA_BY_MIG && s->shapes.at[ask->shape].in.kind == QUOTA_REPLICA);

	return may_join(&s->gpus.at[gpu].who, ask->tenant, alone);
}

static bool
node_allowed(const struct quota_state *s, const struct ask *ask, int32_t node)
{
	return may_join(&s->nodes.at[node].who, ask->tenant, s->tenants.at[ask->tenant].in.isolation == QUOTA_BY_NODE);
}

static int32_t
careful_count(const struct quota_state *s, const struct ask *ask, const struct node_shape *k)
{
	const struct node *n = &s->nodes.at[k->node];
	int32_t count = 0;

	if (k->free == 0 || !node_allowed(s, ask, k->node))
		return 0;
	for (int32_t d = n->first_gpu; d < n->first_gpu + n->gpu_count; d++)
		for (int32_t g = s->gpus.at[d].first_group; g != QUOTA_NONE; g = s->groups.at[g].next)
			if (s->groups.at[g].shape == ask->shape && gpu_allowed(s, ask, d))
				count += quota_group_free(s, g);
	return count;
}

/* The devices that a node can give, a multiple of per_node. */
static int32_t
can_give(const struct quota_state *s, const struct ask *ask, const struct node_shape *k, bool careful)
{
	int32_t count = k->free;

	if ((ask->avoid_live > 0 && k->live >= ask->avoid_live) || (ask->node != QUOTA_NONE && k->node != ask->node))
		return 0;
	if (careful)
		count = careful_count(s, ask, k);
	return ask->per_node > 1 ? count - count % ask->per_node : count;
}

static const struct pool_shape *
pool_shape_of(const struct quota_state *s, const struct ask *ask)
{
	int32_t at = quota_pool_shape(s, ask->pool, ask->shape);

	return at == QUOTA_NONE ? NULL : &s->pool_shapes.at[at];
}

int64_t
quota_fit_devices(const struct quota_state *s, const struct ask *ask)
{
	const struct pool_shape *f = pool_shape_of(s, ask);
	bool careful = company_matters(s, ask);
	int64_t sum = 0;

	if (!f)
		return 0;
	if (!careful && ask->per_node <= 1 && ask->avoid_live == 0 && ask->node == QUOTA_NONE)
		return f->free < ask->count ? f->free : ask->count;
	for (int32_t i = 0; i < f->node_shape_count && sum < ask->count; i++)
		sum += can_give(s, ask, &s->node_shapes.at[f->first_node_shape + i], careful);
	return sum < ask->count ? sum : ask->count;
}

/* The GPUs of a node in the order of their free devices. */
static void
take_from_node(const struct quota_state *s, const struct ask *ask, int32_t node, int32_t count, bool careful,
               struct plan *ret)
{
	const struct node *n = &s->nodes.at[node];
	int32_t last_free = 0, last_at = 0;

	while (count > 0) {
		int32_t best = QUOTA_NONE, best_free = 0, best_at = 0, at = 0;

		for (int32_t d = n->first_gpu; d < n->first_gpu + n->gpu_count; d++) {
			for (int32_t g = s->gpus.at[d].first_group; g != QUOTA_NONE; g = s->groups.at[g].next) {
				int32_t free = s->groups.at[g].shape == ask->shape ? quota_group_free(s, g) : 0;

				at++;
				if (free == 0 || free < last_free || (free == last_free && at <= last_at) ||
				    (best != QUOTA_NONE && free >= best_free) || (careful && !gpu_allowed(s, ask, d)))
					continue;
				best = g;
				best_free = free;
				best_at = at;
			}
		}
		ASSERT(best != QUOTA_NONE);
		*PUSH(*ret) = (struct spot){.group = best, .count = best_free < count ? best_free : count};
		count -= best_free;
		last_free = best_free;
		last_at = best_at;
	}
}

/* Rule 1: most requests fit one node, and then nothing needs to be remembered. */
static int32_t
one_node(const struct quota_state *s, const struct ask *ask, const struct pool_shape *f, bool careful)
{
	int32_t best = QUOTA_NONE, least = 0;

	for (int32_t i = f->first_node_shape; i < f->first_node_shape + f->node_shape_count; i++) {
		int32_t give =
			s->node_shapes.at[i].free < ask->count ? 0 : can_give(s, ask, &s->node_shapes.at[i], careful);

		if (give >= ask->count && (best == QUOTA_NONE || give < least)) {
			best = i;
			least = give;
		}
	}
	return best;
}

bool
quota_fit(const struct quota_state *s, const struct ask *ask, struct plan *ret)
{
	const struct pool_shape *f = pool_shape_of(s, ask);
	bool careful = company_matters(s, ask);
	owned(mem) int32_t *give = NULL;
	int32_t missing = ask->count, one;

	if (!f || quota_fit_devices(s, ask) < ask->count)
		return false;
	one = one_node(s, ask, f, careful);
	if (one != QUOTA_NONE) {
		take_from_node(s, ask, s->node_shapes.at[one].node, ask->count, careful, ret);
		return true;
	}
	give = mem_array((size_t)f->node_shape_count, sizeof(*give));
	for (int32_t i = 0; i < f->node_shape_count; i++)
		give[i] = can_give(s, ask, &s->node_shapes.at[f->first_node_shape + i], careful);
	while (missing > 0) {
		int32_t all = QUOTA_NONE, most = 0, from, count;

		for (int32_t i = 0; i < f->node_shape_count; i++) {
			if (give[i] >= missing && (all == QUOTA_NONE || give[i] < give[all]))
				all = i;
			if (give[i] > give[most])
				most = i;
		}
		from = all != QUOTA_NONE ? all : most;
		count = give[from] < missing ? give[from] : missing;
		take_from_node(s, ask, s->node_shapes.at[f->first_node_shape + from].node, count, careful, ret);
		missing -= count;
		give[from] = 0;
	}
	return true;
}

bool
quota_fit_declared(const struct quota_state *s, const struct ask *ask)
{
	const struct pool_shape *f = pool_shape_of(s, ask);
	int64_t sum = 0;

	if (!f || f->declared < ask->count)
		return false;
	if (ask->per_node <= 1)
		return true;
	for (int32_t i = 0; i < f->node_shape_count; i++) {
		int32_t declared = s->node_shapes.at[f->first_node_shape + i].declared;

		sum += declared - declared % ask->per_node;
	}
	return sum >= ask->count;
}
