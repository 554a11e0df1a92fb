/* tests/support/quota/quotasums.c - every sum that the quota engine keeps, again from the plain lists. */
#include "tests/support/quota/quotasums.h"

#include <string.h>

#include "aggregator/core/quota/engine/quota_state.h"

static bool
wrong(struct buf *why, const char *what, int64_t got, int64_t expected)
{
	buf_printf(why, "%s is %" PRId64 ", the lists say %" PRId64 "; ", what, got, expected);
	return false;
}

static bool
same(struct buf *why, const char *what, int64_t got, int64_t expected)
{
	return got == expected || wrong(why, what, got, expected);
}

/* Devices of a shape on a GPU: [0] in use, [1] held. */
void
quotasums_devices(const struct quota_world *w, int32_t node, int32_t gpu, int32_t shape, int64_t ret[2])
{
	ret[0] = ret[1] = 0;
	for (size_t i = 0; i < w->lease_count; i++)
		for (size_t k = 0; k < w->leases[i].part_count; k++) {
			const struct quota_part *p = &w->leases[i].parts[k];

			if (p->node == node && p->gpu == gpu && p->shape == shape)
				ret[0] += p->count;
		}
	for (size_t i = 0; i < w->waiting_count; i++)
		for (size_t k = 0; k < w->waiting[i].hold_count; k++) {
			const struct quota_part *p = &w->waiting[i].hold[k];

			if (p->node == node && p->gpu == gpu && p->shape == shape && !p->lease)
				ret[1] += p->count;
		}
}

static int64_t
fenced_on(const struct quota_world *w, int32_t node, int32_t gpu, int32_t shape)
{
	int64_t devices = 0;

	for (size_t i = 0; i < w->fence_count; i++) {
		const struct quota_fence *f = &w->fences[i];

		if (f->node == node && f->gpu == gpu && f->shape == shape)
			devices += f->count;
	}
	return devices;
}

bool
quotasums_of_pool(const struct quota_world *w, const struct quota_pool_figures *p, int32_t workspace, int32_t cluster,
                  int32_t shape, bool shared)
{
	return cluster == p->cluster && w->policy.shapes[shape].model == p->model &&
	       shared == (p->tenant == QUOTA_NONE) && (shared || w->policy.workspaces[workspace].tenant == p->tenant);
}

static bool
hold_is_shared(const struct quota_world *w, const struct quota_request *r)
{
	for (size_t k = 0; k < r->hold_count; k++)
		if (r->hold[k].node != QUOTA_NONE)
			return w->nodes[r->hold[k].node].tenant == QUOTA_NONE;
	return false;
}

static bool
waits_for(const struct quota_request *r, const struct quota_lease *l)
{
	for (size_t k = 0; k < r->hold_count; k++)
		if (r->workspace == l->workspace && r->hold[k].lease && strcmp(r->hold[k].lease, l->id) == 0)
			return true;
	return false;
}

/* An own lease that drains for holds of its workspace in the same pool, and a hold that waits for own leases. */
#define LEAVING_MAX 10
struct leaving {
	const struct quota_lease *leases[LEAVING_MAX];
	const struct quota_request *holds[LEAVING_MAX];
	size_t lease_count, hold_count;
	bool too_many;
	bool one_to_one; /* no lease drains for two holds */
};

struct sums {
	int64_t leased, held, fixed, reserved;
	int64_t worst; /* the most that can be leased, whatever the order in which the leaving leases return */
	int64_t by_text; /* a hold and what drains for it as the larger of the two; QUOTA_NONE where a lease drains for two */
};

/* Every set of leases that may have returned by then: those left, and the holds that waited for none of them. */
static int64_t
worst_of(const struct quota_world *w, const struct leaving *at, int64_t leased, int64_t held)
{
	int64_t worst = leased + held;

	for (size_t k = 0; k < at->hold_count; k++)
		worst -= at->holds[k]->count * w->policy.shapes[at->holds[k]->shape].units;
	held = worst - leased; /* of holds that wait for others' leases: any may be complete first */
	for (unsigned set = 0; set < 1u << at->lease_count; set++) {
		int64_t sum = leased + held;

		for (size_t k = 0; k < at->hold_count; k++) {
			bool complete = true;

			for (size_t i = 0; i < at->lease_count; i++)
				complete = complete && ((set >> i & 1) != 0 || !waits_for(at->holds[k], at->leases[i]));
			if (complete)
				sum += at->holds[k]->count * w->policy.shapes[at->holds[k]->shape].units;
		}
		for (size_t i = 0; i < at->lease_count; i++)
			if ((set >> i & 1) != 0)
				sum -= at->leases[i]->count * w->policy.shapes[at->leases[i]->shape].units;
		worst = sum > worst ? sum : worst;
	}
	return worst;
}

static int64_t
by_text_of(const struct quota_world *w, const struct leaving *at, int64_t leased, int64_t held)
{
	int64_t sum = leased + held;

	for (size_t k = 0; k < at->hold_count; k++) {
		int64_t drains = 0, units = at->holds[k]->count * w->policy.shapes[at->holds[k]->shape].units;

		for (size_t i = 0; i < at->lease_count; i++)
			if (waits_for(at->holds[k], at->leases[i]))
				drains += at->leases[i]->count * w->policy.shapes[at->leases[i]->shape].units;
		sum -= drains < units ? drains : units;
	}
	return sum;
}

static struct sums
account_sums(const struct quota_world *w, int32_t workspace, const struct quota_pool_figures *p)
{
	struct leaving at = {.one_to_one = true};
	struct sums s = {0};

	for (size_t i = 0; i < w->lease_count; i++) {
		const struct quota_lease *l = &w->leases[i];
		int64_t units = l->count * w->policy.shapes[l->shape].units, holds = 0;

		if (l->workspace != workspace || !quotasums_of_pool(w, p, workspace, l->cluster, l->shape, l->shared))
			continue;
		s.leased += units;
		s.fixed += l->preemptible ? 0 : units;
		for (size_t k = 0; k < w->waiting_count; k++)
			holds += waits_for(&w->waiting[k], l);
		at.one_to_one = at.one_to_one && holds <= 1;
		if (holds > 0 && at.lease_count < LEAVING_MAX)
			at.leases[at.lease_count++] = l;
		else if (holds > 0)
			at.too_many = true;
	}
	for (size_t i = 0; i < w->waiting_count; i++) {
		const struct quota_request *r = &w->waiting[i];
		int64_t units = r->count * w->policy.shapes[r->shape].units;

		if (r->workspace != workspace || r->hold_count == 0 ||
		    !quotasums_of_pool(w, p, workspace, r->cluster, r->shape, hold_is_shared(w, r)))
			continue;
		s.held += units;
		s.fixed += r->preemptible ? 0 : units;
		for (size_t k = 0; k < at.lease_count; k++)
			if (waits_for(r, at.leases[k])) {
				if (at.hold_count < LEAVING_MAX)
					at.holds[at.hold_count++] = r;
				else
					at.too_many = true;
				break;
			}
	}
	s.worst = at.too_many ? 0 : worst_of(w, &at, s.leased, s.held);
	s.by_text = at.too_many || !at.one_to_one ? QUOTA_NONE : by_text_of(w, &at, s.leased, s.held);
	for (size_t i = 0; i < w->policy.share_count; i++) {
		const struct quota_share *h = &w->policy.shares[i];

		if (h->workspace == workspace && h->cluster == p->cluster && h->model == p->model &&
		    h->shared == (p->tenant == QUOTA_NONE))
			s.reserved += h->reserved;
	}
	for (size_t i = 0; i < w->exception_count; i++) {
		const struct quota_exception *x = &w->exceptions[i];

		if (x->workspace == workspace && x->cluster == p->cluster && x->model == p->model &&
		    x->shared == (p->tenant == QUOTA_NONE) && x->from_ns <= w->now_ns && w->now_ns < x->until_ns)
			s.reserved += x->extra_reserved;
	}
	return s;
}

static bool
accounts_add_up(const struct quota_state *s, const struct quota_world *w, const struct quota_pool_figures *p,
                struct buf *why)
{
	struct quota_pool_figures all = {0};
	bool ok = true;

	for (int32_t i = 0; i < (int32_t)w->policy.workspace_count; i++) {
		struct quota_account_figures a;
		struct sums sums;
		int64_t committed, idle;

		if (p->tenant != QUOTA_NONE && w->policy.workspaces[i].tenant != p->tenant)
			continue;
		a = quota_account_at(s, i, p->cluster, p->model, p->tenant == QUOTA_NONE);
		sums = account_sums(w, i, p);
		committed = a.committed;
		idle = sums.reserved > committed ? sums.reserved - committed : 0;
		ok = same(why, "an account's leased", a.leased, sums.leased) &&
		     same(why, "an account's held", a.held, sums.held) &&
		     (sums.by_text == QUOTA_NONE || same(why, "an account's committed", committed, sums.by_text)) &&
		     (committed >= sums.worst ||
		      wrong(why, "an account's committed below the worst", committed, sums.worst)) &&
		     (committed <= sums.leased + sums.held ||
		      wrong(why, "an account's committed above all", committed, sums.leased + sums.held)) &&
		     same(why, "an account's fixed", a.fixed, sums.fixed) &&
		     same(why, "an account's reserved", a.reserved, sums.reserved) && ok;
		all.reserved += sums.reserved;
		all.idle += idle;
		all.debt += committed > sums.reserved ? committed - sums.reserved : 0;
		all.protected_units += idle > a.lend ? idle - a.lend : 0;
	}
	return same(why, "a pool's reserved", p->reserved, all.reserved) &&
	       same(why, "a pool's idle", p->idle, all.idle) && same(why, "a pool's debt", p->debt, all.debt) &&
	       same(why, "a pool's protected", p->protected_units, all.protected_units) && ok;
}

bool
quotasums_pools(const struct quota_state *s, const struct quota_world *w, struct buf *why)
{
	bool ok = true;

	for (size_t i = 0; i < quota_pool_count(s) && ok; i++) {
		struct quota_pool_figures p = quota_pool_at(s, i), sum = {0};

		for (size_t n = 0; n < w->node_count; n++) {
			const struct quota_node *node = &w->nodes[n];

			if (node->cluster != p.cluster || node->tenant != p.tenant)
				continue;
			for (size_t d = 0; d < node->gpu_count; d++)
				for (size_t k = 0; k < node->gpus[d].slot_count; k++) {
					const struct quota_slots *slots = &node->gpus[d].slots[k];
					int64_t units = w->policy.shapes[slots->shape].units, taken[2], left, fenced;
					bool live = !node->lost && !node->gpus[d].lost;

					if (w->policy.shapes[slots->shape].model != p.model)
						continue;
					quotasums_devices(w, (int32_t)n, (int32_t)d, slots->shape, taken);
					left = slots->count - taken[0] - taken[1];
					left = live && left > 0 ? left : 0;
					fenced = fenced_on(w, (int32_t)n, (int32_t)d, slots->shape);
					fenced = fenced < left ? fenced : left;
					sum.declared += slots->count * units;
					sum.live += live ? slots->count * units : 0;
					sum.free += (left - fenced) * units;
					sum.fenced += fenced * units;
					sum.held += taken[1] * units;
					sum.leased += taken[0] * units;
				}
		}
		for (size_t k = 0; k < w->lease_count; k++) {
			const struct quota_lease *l = &w->leases[k];
			int64_t placed = 0;

			if (!quotasums_of_pool(w, &p, l->workspace, l->cluster, l->shape, l->shared))
				continue;
			for (size_t q = 0; q < l->part_count; q++)
				placed += l->parts[q].count;
			sum.leased += (l->count - placed) * w->policy.shapes[l->shape].units;
		}
		ok = same(why, "declared", p.declared, sum.declared) && same(why, "live", p.live, sum.live) &&
		     same(why, "free", p.free, sum.free) && same(why, "held", p.held, sum.held) &&
		     same(why, "leased", p.leased, sum.leased) && same(why, "fenced", p.fenced, sum.fenced) &&
		     same(why, "the excess", p.excess, sum.leased + sum.held + sum.fenced + sum.free - sum.live) &&
		     accounts_add_up(s, w, &p, why);
	}
	return ok;
}

/* The indexes inside, against themselves made anew. */
bool
quotasums_indexes(const struct quota_state *s, struct buf *why)
{
	owned(quota) struct quota_state *c = quota_clone(s);
	bool ok;

	quota_reindex(c);
	ok = same(why, "the number of node_shapes", (int64_t)s->node_shapes.count, (int64_t)c->node_shapes.count) &&
	     same(why, "the number of pool_shapes", (int64_t)s->pool_shapes.count, (int64_t)c->pool_shapes.count);
	for (size_t i = 0; ok && i < s->node_shapes.count; i++)
		ok = same(why, "a node_shape",
		          memcmp(&s->node_shapes.at[i], &c->node_shapes.at[i], sizeof(s->node_shapes.at[i])), 0);
	for (size_t i = 0; ok && i < s->pool_shapes.count; i++)
		ok = same(why, "a pool_shape",
		          memcmp(&s->pool_shapes.at[i], &c->pool_shapes.at[i], sizeof(s->pool_shapes.at[i])), 0);
	for (size_t i = 0; ok && i < s->pools.count; i++)
		ok = same(why, "a pool's protected when empty", s->pools.at[i].protected_empty,
		          c->pools.at[i].protected_empty);
	for (size_t i = 0; ok && i < s->caps.count; i++)
		ok = same(why, "what counts for a maximum", s->caps.at[i].committed, c->caps.at[i].committed);
	return ok;
}
