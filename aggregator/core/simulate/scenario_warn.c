/* aggregator/core/simulate/scenario_warn.c - reservations that a scenario's nodes cannot honour. A policy file with them is refused; a
 * simulation says so and goes on. */
#include "aggregator/core/quota/engine/quantity.h"
#include "aggregator/core/simulate/scenario_build.h"

static bool
in_pool(const struct quota_world *w, const struct quota_node *n, const struct quota_share *s)
{
	int32_t tenant = s->shared ? QUOTA_NONE : w->policy.workspaces[s->workspace].tenant;

	return n->tenant == tenant && n->cluster == s->cluster;
}

static bool
same_pool(const struct quota_world *w, const struct quota_share *a, const struct quota_share *b)
{
	return a->cluster == b->cluster && a->model == b->model && a->shared == b->shared &&
	       (a->shared || w->policy.workspaces[a->workspace].tenant == w->policy.workspaces[b->workspace].tenant);
}

/* Declared units of a pool; of a MIG shape only, unless shape is QUOTA_NONE. */
static int64_t
declared(const struct quota_world *w, const struct quota_share *s, int32_t shape)
{
	int64_t units = 0;

	for (size_t i = 0; i < w->node_count; i++) {
		const struct quota_node *n = &w->nodes[i];

		for (size_t g = 0; in_pool(w, n, s) && g < n->gpu_count; g++)
			for (size_t k = 0; k < n->gpus[g].slot_count; k++) {
				const struct quota_slots *slots = &n->gpus[g].slots[k];

				if (w->policy.shapes[slots->shape].model == s->model &&
				    (shape == QUOTA_NONE || slots->shape == shape))
					units += slots->count * w->policy.shapes[slots->shape].units;
			}
	}
	return units;
}

static void
warn(struct scenario_builder *b, const struct quota_share *s, int32_t shape, int64_t reserved, int64_t has)
{
	const struct quota_policy *p = &b->sc->world.policy;
	char need[QUANTITY_TEXT_SIZE], have[QUANTITY_TEXT_SIZE];
	const char *whose = s->shared ? "shared" : p->tenants[p->workspaces[s->workspace].tenant].name;

	if (shape == QUOTA_NONE)
		buf_printf(&b->sc->warnings,
		           "%s: reservations of %s %s exceed the capacity of %s (cluster %s, %s nodes)\n",
		           yaml_name(b->doc), quantity_text(reserved, need), p->models[s->model],
		           quantity_text(has, have), p->clusters[s->cluster], whose);
	else
		buf_printf(&b->sc->warnings,
		           "%s: reservations of %" PRId64 " x %s exceed the %" PRId64
		           " that there are (cluster %s, %s nodes)\n",
		           yaml_name(b->doc), reserved / p->shapes[shape].units, p->shapes[shape].name,
		           has / p->shapes[shape].units, p->clusters[s->cluster], whose);
}

/* The sum over the pool of a share, told at its first one. */
static void
look_at(struct scenario_builder *b, size_t index, int32_t shape)
{
	const struct quota_world *w = &b->sc->world;
	const struct quota_share *s = &w->policy.shares[index];
	int64_t sum = 0, has;

	for (size_t i = 0; i < w->policy.share_count; i++) {
		const struct quota_share *o = &w->policy.shares[i];

		if (!same_pool(w, s, o) || o->reserved == 0 || (shape != QUOTA_NONE && o->reserved_shape != shape))
			continue;
		if (i < index)
			return;
		sum += o->reserved;
	}
	has = declared(w, s, shape);
	if (sum > has)
		warn(b, s, shape, sum, has);
}

void
scenario_warn(struct scenario_builder *b)
{
	const struct quota_policy *p = &b->sc->world.policy;

	for (size_t i = 0; i < p->share_count; i++) {
		if (p->shares[i].reserved == 0)
			continue;
		look_at(b, i, QUOTA_NONE);
		if (p->shares[i].reserved_shape != QUOTA_NONE)
			look_at(b, i, p->shares[i].reserved_shape);
	}
}
