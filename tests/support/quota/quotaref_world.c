/* tests/support/quota/quotaref_world.c - a small state as the quota engine wants it, and what must hold of any state of it. */
#include "tests/support/quota/quotaref_world.h"

#include <stdio.h>
#include <string.h>

static const char *const clusters[] = {"c"};
static const char *const models[] = {"H100"};
static const char *const tenants[] = {"t0", "t1"};
static const char *const workspaces[] = {"w0", "w1", "w2", "w3"};
static const char *const nodes[] = {"n0", "n1", "n2", "n3"};

static int64_t
units(int64_t devices, int64_t unit)
{
	return devices == QREF_NONE ? QUOTA_UNLIMITED : devices * unit;
}

static struct quota_share
share(int32_t workspace, bool shared, const struct qref_quota *q, int64_t unit)
{
	return (struct quota_share){.workspace = workspace,
	                            .shared = shared,
	                            .reserved = q->reserved * unit,
	                            .reserved_shape = QUOTA_NONE,
	                            .limit = units(q->limit, unit),
	                            .borrow = units(q->borrow, unit),
	                            .lend = units(q->lend, unit)};
}

static void
add_nodes(struct qref_world *w, const struct qref_state *s, int per_gpu)
{
	for (int n = 0; n < s->node_count; n++) {
		int left = s->nodes[n].devices, gpus = 0;

		for (; left > 0; left -= per_gpu, gpus++) {
			w->slots[n][gpus] = (struct quota_slots){.count = left < per_gpu ? left : per_gpu};
			w->gpus[n][gpus] = (struct quota_gpu){.slots = &w->slots[n][gpus], .slot_count = 1};
		}
		w->nodes[n] = (struct quota_node){.name = nodes[n],
		                                  .tenant = s->nodes[n].tenant,
		                                  .lost = s->nodes[n].down,
		                                  .gpus = w->gpus[n],
		                                  .gpu_count = (size_t)gpus};
	}
}

/* Leases fill the GPUs of a node from its first on. */
static void
add_leases(struct qref_world *w, const struct qref_state *s, int per_gpu)
{
	int used[QREF_NODES] = {0};

	for (int i = 0; i < s->lease_count; i++) {
		const struct qref_lease *l = &s->leases[i];
		size_t parts = 0;
		int32_t count = 0;

		for (int n = 0; n < s->node_count; n++)
			for (int d = 0; d < l->on[n]; d++, used[n]++, count++)
				if (parts > 0 && w->parts[i][parts - 1].node == n &&
				    w->parts[i][parts - 1].gpu == used[n] / per_gpu)
					w->parts[i][parts - 1].count++;
				else
					w->parts[i][parts++] =
						(struct quota_part){.node = n, .gpu = used[n] / per_gpu, .count = 1};
		snprintf(w->ids[i], sizeof(w->ids[i]), "l%u", (unsigned)i % QREF_LEASES);
		w->leases[i] = (struct quota_lease){.id = w->ids[i],
		                                    .workspace = l->workspace,
		                                    .count = count,
		                                    .node = QUOTA_NONE,
		                                    .parts = w->parts[i],
		                                    .part_count = parts,
		                                    .priority = (int32_t)l->priority,
		                                    .preemptible = l->preemptible,
		                                    .state = QUOTA_CONFIRMED,
		                                    .since_ns = QREF_START_NS - QREF_LEASES + i,
		                                    .seen_ns = QREF_START_NS,
		                                    .order = l->draining ? QUOTA_DRAINING : QUOTA_NO_ORDER,
		                                    .due_ns = l->draining ? 2 * QREF_START_NS : 0};
	}
}

void
qref_world_init(struct qref_world *w, const struct qref_state *s, enum qref_kind kind)
{
	static const struct {
		struct quota_shape shape;
		int per_gpu;
	} kinds[] = {
		[QREF_WHOLE] = {{.kind = QUOTA_WHOLE, .units = UNITS_PER_GPU, .name = ""}, 1},
		[QREF_SLICES] = {{.kind = QUOTA_MIG, .units = 675, .name = "1g.10gb"}, 7},
		[QREF_REPLICAS] = {{.kind = QUOTA_REPLICA, .units = UNITS_PER_GPU / 4, .name = ""}, 4},
	};

	memset(w, 0, sizeof(*w));
	w->shape = kinds[kind].shape;
	w->unit = w->shape.units;
	for (int t = 0; t < QREF_TENANTS; t++) {
		w->tenants[t] =
			(struct quota_tenant){.name = tenants[t],
		                              .per_workload_units = QUOTA_UNLIMITED,
		                              .other_limit = {QUOTA_UNLIMITED, QUOTA_UNLIMITED, QUOTA_UNLIMITED}};
		w->caps[t] = (struct quota_cap){.tenant = t,
		                                .maximum = units(s->maximum, w->unit),
		                                .default_limit = QUOTA_DEFAULT};
	}
	for (int i = 0; i < s->workspace_count; i++) {
		const struct qref_workspace *x = &s->workspaces[i];

		w->workspaces[i] =
			(struct quota_workspace){.name = workspaces[i],
		                                 .tenant = x->tenant,
		                                 .reclaim = (enum quota_reclaim)x->reclaim,
		                                 .preempt_own = x->preempt_own,
		                                 .weight = x->weight,
		                                 .per_workload_units = QUOTA_UNLIMITED,
		                                 .other_limit = {QUOTA_UNLIMITED, QUOTA_UNLIMITED, QUOTA_UNLIMITED}};
		w->shares[2 * i] = share(i, false, &x->own, w->unit);
		w->shares[2 * i + 1] = share(i, true, &x->shared, w->unit);
	}
	add_nodes(w, s, kinds[kind].per_gpu);
	add_leases(w, s, kinds[kind].per_gpu);
	w->world = (struct quota_world){
		.now_ns = QREF_START_NS,
		.policy = {.settings = {.burst = 2, .grace_ns = 1000},
	                   .clusters = clusters,
	                   .cluster_count = 1,
	                   .models = models,
	                   .model_count = 1,
	                   .shapes = &w->shape,
	                   .shape_count = 1,
	                   .tenants = w->tenants,
	                   .tenant_count = QREF_TENANTS,
	                   .workspaces = w->workspaces,
	                   .workspace_count = (size_t)s->workspace_count,
	                   .shares = w->shares,
	                   .share_count = 2 * (size_t)s->workspace_count,
	                   .caps = w->caps,
	                   .cap_count = QREF_TENANTS},
		.nodes = w->nodes,
		.node_count = (size_t)s->node_count,
		.leases = w->leases,
		.lease_count = (size_t)s->lease_count,
	};
}

struct quota_request
qref_world_request(const struct qref_request *r, const char *id, int64_t now_ns)
{
	return (struct quota_request){.id = id,
	                              .workspace = r->workspace,
	                              .count = r->count,
	                              .per_node = r->per_node,
	                              .priority = (int32_t)r->priority,
	                              .klass = QUOTA_NONE,
	                              .preemptible = r->preemptible,
	                              .submitted_ns = now_ns};
}

/* ---- what must hold of any state ---- */

static const struct quota_lease *
find_lease(const struct quota_world *w, const char *id)
{
	for (size_t i = 0; i < w->lease_count; i++)
		if (strcmp(w->leases[i].id, id) == 0)
			return &w->leases[i];
	return NULL;
}

static int64_t
there_are(const struct quota_world *w, const struct quota_part *p)
{
	const struct quota_gpu *g;

	if (p->node < 0 || (size_t)p->node >= w->node_count || (size_t)p->gpu >= w->nodes[p->node].gpu_count)
		return 0;
	g = &w->nodes[p->node].gpus[p->gpu];
	for (size_t i = 0; i < g->slot_count; i++)
		if (g->slots[i].shape == p->shape)
			return g->slots[i].count;
	return 0;
}

/* Devices of one shape of one GPU that are leased, or held and free. */
static int64_t
taken(const struct quota_world *w, const struct quota_part *at)
{
	int64_t sum = 0;

	for (size_t i = 0; i < w->lease_count; i++)
		for (size_t k = 0; k < w->leases[i].part_count; k++) {
			const struct quota_part *p = &w->leases[i].parts[k];

			if (p->node == at->node && p->gpu == at->gpu && p->shape == at->shape)
				sum += p->count;
		}
	for (size_t i = 0; i < w->waiting_count; i++)
		for (size_t k = 0; k < w->waiting[i].hold_count; k++) {
			const struct quota_part *p = &w->waiting[i].hold[k];

			if (p->lease == NULL && p->node == at->node && p->gpu == at->gpu && p->shape == at->shape)
				sum += p->count;
		}
	return sum;
}

static bool
is_waited_for(const struct quota_world *w, const char *lease)
{
	for (size_t i = 0; i < w->waiting_count; i++)
		for (size_t k = 0; k < w->waiting[i].hold_count; k++)
			if (w->waiting[i].hold[k].lease != NULL && strcmp(w->waiting[i].hold[k].lease, lease) == 0)
				return true;
	return false;
}

/* Devices of a lease on one GPU that holds wait for. */
static int64_t
promised(const struct quota_world *w, const char *lease, const struct quota_part *at)
{
	int64_t sum = 0;

	for (size_t i = 0; i < w->waiting_count; i++)
		for (size_t k = 0; k < w->waiting[i].hold_count; k++) {
			const struct quota_part *p = &w->waiting[i].hold[k];

			if (p->lease != NULL && strcmp(p->lease, lease) == 0 && p->node == at->node &&
			    p->gpu == at->gpu && p->shape == at->shape)
				sum += p->count;
		}
	return sum;
}

static bool
leases_sound(const struct quota_world *w, int64_t *ret_nowhere, struct buf *why)
{
	for (size_t i = 0; i < w->lease_count; i++) {
		const struct quota_lease *l = &w->leases[i];
		int64_t count = 0;

		for (size_t k = 0; k < l->part_count; k++) {
			count += l->parts[k].count;
			if (taken(w, &l->parts[k]) > there_are(w, &l->parts[k])) {
				buf_printf(why, "node %d has more leased and held than it has devices, %s among it",
				           l->parts[k].node, l->id);
				return false;
			}
			if (promised(w, l->id, &l->parts[k]) > l->parts[k].count) {
				buf_printf(why, "what %s returns is promised twice", l->id);
				return false;
			}
		}
		if (count > l->count) {
			buf_printf(why, "%s of %d devices is on %" PRId64, l->id, l->count, count);
			return false;
		}
		*ret_nowhere += (l->count - count) * w->policy.shapes[l->shape].units;
		if (l->order == QUOTA_ORDERED && !is_waited_for(w, l->id)) {
			buf_printf(why, "%s was told to go, and no hold waits for it", l->id);
			return false;
		}
	}
	return true;
}

static bool
hold_sound(const struct quota_world *w, const struct quota_request *r, struct buf *why)
{
	int64_t count = 0, waits = 0;

	for (size_t k = 0; k < r->hold_count; k++) {
		const struct quota_part *p = &r->hold[k];
		const struct quota_lease *l = p->lease != NULL ? find_lease(w, p->lease) : NULL;

		waits += p->lease != NULL;
		if (p->lease != NULL && l == NULL) {
			buf_printf(why, "the hold of %s waits for %s, which is not there", r->id, p->lease);
			return false;
		}
		if (l != NULL && l->order == QUOTA_NO_ORDER) {
			buf_printf(why, "the hold of %s waits for %s, which was not told to go", r->id, p->lease);
			return false;
		}
		if (p->node == QUOTA_NONE) /* it waits for the right, not for the devices */
			continue;
		count += p->count;
		if (taken(w, p) > there_are(w, p)) {
			buf_printf(why, "node %d has more leased and held than it has devices, the hold of %s among it",
			           p->node, r->id);
			return false;
		}
		if (w->nodes[p->node].lost) {
			buf_printf(why, "the hold of %s is on a lost node", r->id);
			return false;
		}
	}
	if (r->hold_count > 0 && (waits == 0 || count != r->count)) {
		buf_printf(why, "the hold of %s has %" PRId64 " of %d devices and waits for %" PRId64, r->id, count,
		           r->count, waits);
		return false;
	}
	return true;
}

bool
qref_sound(const struct quota_state *s, struct buf *why)
{
	struct quota_saved saved = {0};
	int64_t nowhere = 0, excess = 0;
	bool ok;

	quota_save(s, &saved);
	ok = leases_sound(&saved.world, &nowhere, why);
	for (size_t i = 0; ok && i < saved.world.waiting_count; i++)
		ok = hold_sound(&saved.world, &saved.world.waiting[i], why);
	quota_saved_fini(&saved);
	for (size_t i = 0; ok && i < quota_pool_count(s); i++) {
		struct quota_pool_figures f = quota_pool_at(s, i);

		ok = f.leased + f.held + f.fenced + f.free == f.live + f.excess && f.free >= 0 && f.excess >= 0;
		if (!ok)
			buf_printf(why,
			           "leased %" PRId64 " + held %" PRId64 " + fenced %" PRId64 " + free %" PRId64
			           " is not live %" PRId64 " + excess %" PRId64,
			           f.leased, f.held, f.fenced, f.free, f.live, f.excess);
		excess += f.excess;
	}
	if (ok && nowhere > excess) {
		buf_printf(why, "%" PRId64 " leased units are on no device, and %" PRId64 " are reported as excess",
		           nowhere, excess);
		return false;
	}
	return ok;
}
