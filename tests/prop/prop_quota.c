/* tests/prop/prop_quota.c - what holds of the quota engine after any sequence of events.
 *
 * A case is a small world and a long list of events. After each event everything is computed again from the plain lists of
 * quota_save() and held against what the engine keeps, and against what QUOTA promises:
 *   sums       pools, accounts, node_shapes and pool_shapes are what the lists add up to; leased + held + fenced + free = live + excess
 *   places     what was admitted is on live devices that nobody else has; a lease has as many devices as it counts
 *   holds      each waits for something; what it waits for is ordered, and promised once; an order has somebody who waits
 *   rights     no admission above a limit; work that cannot be preempted is never above its reservation; a borrower leaves what is
 *              protected; an owed request gets its due at once or by reclaim
 *   victims    preemptible, for an owed request from somebody with debt, or own of lower priority; none of a workspace not enforced, none
 *              that was adopted less than one grace ago
 *   fences     a lost lease counts nowhere, its devices are given to nobody, and no hold is on them
 *   unused     nobody is evicted for a request whose last lease expired unconfirmed before the time for that has passed, unless its scheduler
 *              gives another reason or a lease of its workspace and shape was confirmed since
 *   adoption   what runs is a lease where it runs, whatever the rules say, and nobody gives way for it
 *   sameness   a copy and a state saved and loaded answer with the same bytes, and a dry run changes nothing
 *   the end    when all jobs end and all nodes are back, nobody waits who could ever be admitted */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "aggregator/core/quota/engine/quota_state.h"
#include "tests/support/harness/prop.h"
#include "tests/support/quota/quotasums.h"
#include "tests/support/quota/quotaworld.h"

/* Some thousand events each: 400,000 in all, a few seconds of a slow processor; with a sanitizer they cost several times as much.
 * make soak goes on with other seeds for an hour. */
#ifdef __SANITIZE_ADDRESS__
#define CASES "60"
#else
#define CASES "400"
#endif

static size_t events_done;

/* ---- what was said, as bytes ------------------------------------------------------------------------------------------------------ */

static void
write_outcome(const struct quota_outcome *o, struct buf *out)
{
	for (size_t i = 0; i < o->verdict_count; i++) {
		const struct quota_verdict *v = &o->verdicts[i];

		buf_printf(out, "%s %d %d %d %d %d %" PRId64 " %" PRId64 ":", v->id, v->decision, v->would, v->warn,
		           v->owed, v->shared, v->borrowed_units, v->position);
		for (size_t k = 0; k < v->placed_count; k++)
			buf_printf(out, " %d/%d/%d x%d", v->placed[k].node, v->placed[k].gpu, v->placed[k].shape,
			           v->placed[k].count);
		for (size_t k = 0; k < v->victim_count; k++)
			buf_printf(out, " -%s(%d,%" PRId64 ")", v->victims[k].id, v->victims[k].why,
			           v->victims[k].debt);
		for (size_t k = 0; k < v->check_count; k++)
			buf_printf(out, " %d.%d.%d=%" PRId64 "/%" PRId64, v->checks[k].rule, v->checks[k].scope,
			           v->checks[k].ok, v->checks[k].need, v->checks[k].have);
		buf_char(out, '\n');
	}
	for (size_t i = 0; i < o->notice_count; i++)
		buf_printf(out, "%d %s %s %" PRId64 "\n", o->notices[i].kind, o->notices[i].id, o->notices[i].for_id,
		           o->notices[i].at_ns);
}

static void
write_parts(const struct quota_part *parts, size_t count, struct buf *out)
{
	for (size_t i = 0; i < count; i++)
		buf_printf(out, " %d/%d/%dx%d%s%s", parts[i].node, parts[i].gpu, parts[i].shape, parts[i].count,
		           parts[i].lease ? "<" : "", parts[i].lease ? parts[i].lease : "");
	buf_char(out, '\n');
}

static void
write_world(const struct quota_world *w, struct buf *out)
{
	for (size_t i = 0; i < w->lease_count; i++) {
		const struct quota_lease *l = &w->leases[i];

		buf_printf(out, "%s %d %d %d %d %d %d %" PRId64 " %" PRId64, l->id, l->state, l->order, l->released,
		           l->empty, l->reclaimed, l->adopted, l->adopted_ns, l->renewed_ns);
		write_parts(l->parts, l->part_count, out);
	}
	for (size_t i = 0; i < w->waiting_count; i++) {
		buf_printf(out, "%s %d", w->waiting[i].id, w->waiting[i].hold_owed);
		write_parts(w->waiting[i].hold, w->waiting[i].hold_count, out);
	}
	for (size_t i = 0; i < w->adoption_count; i++)
		buf_printf(out, "%d %d %" PRId64 "\n", w->adoptions[i].cluster, w->adoptions[i].complete,
		           w->adoptions[i].switched_ns);
	for (size_t i = 0; i < w->switch_count; i++)
		buf_printf(out, "%d %d %d\n", w->switches[i].workspace, w->switches[i].cluster, w->switches[i].enforce);
	for (size_t i = 0; i < w->unused_count; i++) {
		const struct quota_unused *u = &w->unused[i];

		buf_printf(out, "%d %d %d %d %d %" PRId64 " %" PRId64 " %s\n", u->workspace, u->shape, u->count,
		           u->priority, u->times, u->last_ns, u->until_ns, u->reason);
	}
	for (size_t i = 0; i < w->fence_count; i++) {
		const struct quota_fence *f = &w->fences[i];

		buf_printf(out, "%s %d %d/%d/%dx%d %" PRId64 "\n", f->id, f->workspace, f->node, f->gpu, f->shape,
		           f->count, f->since_ns);
	}
	for (size_t i = 0; i < w->backoff_count; i++)
		buf_printf(out, "%d %d %" PRId64 "\n", w->backoffs[i].workspace, w->backoffs[i].times,
		           w->backoffs[i].until_ns);
}

/* ---- holds and orders ------------------------------------------------------------------------------------------------------------- */

static const struct quota_lease *
lease_named(const struct quota_world *w, const char *id)
{
	for (size_t i = 0; i < w->lease_count; i++)
		if (strcmp(w->leases[i].id, id) == 0)
			return &w->leases[i];
	return NULL;
}

static bool
say(struct buf *why, const char *sentence, const char *id)
{
	buf_printf(why, "%s: %s; ", id, sentence);
	return false;
}

static bool
hold_is_sound(const struct quota_world *w, const struct quota_request *r, struct buf *why)
{
	int64_t devices = 0, waits = 0;

	for (size_t k = 0; k < r->hold_count; k++) {
		const struct quota_part *p = &r->hold[k];
		const struct quota_lease *l = p->lease ? lease_named(w, p->lease) : NULL;

		devices += p->count;
		waits += p->lease ? 1 : 0;
		if (p->lease && (!l || l->order == QUOTA_NO_ORDER))
			return say(why, "its hold waits for a lease that is not ordered to leave", r->id);
		if (p->node != QUOTA_NONE && (w->nodes[p->node].lost || w->nodes[p->node].gpus[p->gpu].lost))
			return say(why, "its hold is on a lost device", r->id);
	}
	if (r->hold_count > 0 && waits == 0)
		return say(why, "its hold waits for nothing", r->id);
	return r->hold_count == 0 || devices == r->count || say(why, "its hold has another number of devices", r->id);
}

static int64_t
promised_of(const struct quota_world *w, const struct quota_lease *l, const struct quota_part *part)
{
	int64_t promised = 0;

	for (size_t i = 0; i < w->waiting_count; i++)
		for (size_t k = 0; k < w->waiting[i].hold_count; k++) {
			const struct quota_part *p = &w->waiting[i].hold[k];

			if (p->lease && strcmp(p->lease, l->id) == 0 && p->node == part->node && p->gpu == part->gpu)
				promised += p->count;
		}
	return promised;
}

static bool
lease_is_sound(const struct quota_world *w, const struct quota_lease *l, struct buf *why)
{
	int64_t waited_for = 0;

	for (size_t i = 0; i < w->waiting_count; i++)
		for (size_t k = 0; k < w->waiting[i].hold_count; k++)
			waited_for += w->waiting[i].hold[k].lease && strcmp(w->waiting[i].hold[k].lease, l->id) == 0;
	if (l->order == QUOTA_ORDERED && waited_for == 0)
		return say(why, "is ordered to leave and nobody waits for it", l->id);
	for (size_t q = 0; q < l->part_count; q++)
		if (promised_of(w, l, &l->parts[q]) > l->parts[q].count)
			return say(why, "its devices are promised twice", l->id);
	return true;
}

/* ---- what was decided ------------------------------------------------------------------------------------------------------------- */

/* By the policy, where no switch waits for adoption. */
static bool
enforced(const struct quota_world *w, int32_t workspace)
{
	for (size_t i = 0; i < w->switch_count; i++)
		if (w->switches[i].workspace == workspace)
			return false;
	return w->policy.workspaces[workspace].enforce == QUOTA_ENFORCE_ON;
}

/* It was adopted, and one grace has not passed since then or since enforcement began. */
static bool
spared(const struct quota_world *w, const struct quota_lease *l)
{
	int64_t since_ns = l->adopted_ns;

	for (size_t i = 0; i < w->adoption_count; i++)
		if (w->adoptions[i].cluster == l->cluster && w->adoptions[i].switched_ns > since_ns)
			since_ns = w->adoptions[i].switched_ns;
	return l->adopted && w->now_ns < since_ns + w->policy.settings.grace_ns;
}

static bool
admission_is_sound(const struct quota_state *s, const struct quota_world *w, const struct quota_verdict *v, bool last,
                   struct buf *why)
{
	const struct quota_lease *l = lease_named(w, v->id);
	struct quota_account_figures a;

	if (!l)
		return say(why, "was admitted and has no lease", v->id);
	a = quota_account_at(s, l->workspace, l->cluster, w->policy.shapes[l->shape].model, l->shared);
	for (size_t k = 0; k < l->part_count; k++) {
		const struct quota_part *p = &l->parts[k];
		const struct quota_gpu *d = &w->nodes[p->node].gpus[p->gpu];
		int64_t taken[2], total = 0;

		quotasums_devices(w, p->node, p->gpu, p->shape, taken);
		for (size_t q = 0; q < d->slot_count; q++)
			total += d->slots[q].shape == p->shape ? d->slots[q].count : 0;
		for (size_t q = 0; q < w->fence_count; q++)
			total -= w->fences[q].node == p->node && w->fences[q].gpu == p->gpu &&
			                         w->fences[q].shape == p->shape
			                 ? w->fences[q].count
			                 : 0;
		if (d->lost || w->nodes[p->node].lost || taken[0] + taken[1] > total)
			return say(why, "was admitted where there is no room", v->id);
		if (w->nodes[p->node].tenant != QUOTA_NONE &&
		    w->nodes[p->node].tenant != w->policy.workspaces[l->workspace].tenant)
			return say(why, "was admitted on another tenant's node", v->id);
	}
	if (!enforced(w, l->workspace))
		return true;
	if (last && v->checks && a.committed > a.limit)
		return say(why, "was admitted above the limit", v->id);
	if (a.leased > a.limit)
		return say(why, "was admitted, and more is leased than the limit", v->id);
	if (last && !l->preemptible && a.fixed > a.reserved)
		return say(why, "cannot be preempted and was admitted above the reservation", v->id);
	if (last && v->checks && v->decision == QUOTA_BORROW)
		for (size_t i = 0; i < quota_pool_count(s); i++) {
			struct quota_pool_figures p = quota_pool_at(s, i);
			int64_t own = a.idle > a.lend ? a.idle - a.lend : 0;

			if (quotasums_of_pool(w, &p, l->workspace, l->cluster, l->shape, l->shared) &&
			    p.free < p.protected_units - own)
				return say(why, "borrowed what is protected", v->id);
		}
	return true;
}

/* It runs where it ran, as nobody's beneficiary. */
static bool
adoption_is_sound(const struct quota_world *w, const struct quota_event *e, const struct quota_verdict *v,
                  struct buf *why)
{
	const struct quota_lease *l = lease_named(w, v->id);

	if (e->kind != QUOTA_ADOPT || strcmp(e->adopted->id, v->id) != 0)
		return say(why, "is adopted by another event", v->id);
	if (!l || l->state != QUOTA_CONFIRMED || !l->adopted || l->order != QUOTA_NO_ORDER ||
	    l->count != e->adopted->count || l->workspace != e->adopted->workspace)
		return say(why, "was adopted and is no confirmed lease", v->id);
	for (size_t k = 0; k < l->part_count; k++) {
		const struct quota_node *n = &w->nodes[l->parts[k].node];

		if (n->tenant != (l->shared ? QUOTA_NONE : w->policy.workspaces[l->workspace].tenant))
			return say(why, "was adopted in two pools", v->id);
	}
	return v->victim_count == 0 || say(why, "was adopted and has victims", v->id);
}

/* Just before its removal some own victim's workspace had debt. */
static bool
some_debt(const struct quota_verdict *v, int32_t workspace)
{
	for (size_t k = 0; k < v->victim_count; k++)
		if (v->victims[k].workspace == workspace && v->victims[k].debt > 0)
			return true;
	return false;
}

static bool
victims_are_sound(const struct quota_world *before, const struct quota_world *w, const struct quota_verdict *v,
                  struct buf *why)
{
	const struct quota_request *r = NULL;

	for (size_t i = 0; i < w->waiting_count; i++)
		if (strcmp(w->waiting[i].id, v->id) == 0)
			r = &w->waiting[i];
	if (v->victim_count > 0 && v->decision != QUOTA_RECLAIM)
		return say(why, "has victims without reclaim", v->id);
	if (v->decision == QUOTA_RECLAIM && (!r || r->hold_count == 0) && v->would == QUOTA_RECLAIM)
		return true; /* displaced later in the same step */
	for (size_t k = 0; k < v->victim_count; k++) {
		const struct quota_lease *l = lease_named(before, v->victims[k].id);

		if (!l)
			return say(why, "is a victim that was not there before the step", v->victims[k].id);
		if (v->victims[k].why == QUOTA_WHY_DRAINING)
			continue;
		if (!enforced(w, l->workspace))
			return say(why, "is a victim of a workspace that is not enforced", l->id);
		if (!l->preemptible)
			return say(why, "is a victim and cannot be preempted", l->id);
		if (spared(w, l))
			return say(why, "is a victim and was adopted less than one grace ago", l->id);
		if (r && l->workspace == r->workspace && l->priority >= r->priority)
			return say(why, "is an own victim of no lower priority", l->id);
		if (r && l->workspace == r->workspace && !v->owed && !some_debt(v, l->workspace))
			return say(why, "is given up for a borrower though its workspace borrows nothing", l->id);
		if (r && l->workspace != r->workspace && (!v->owed || v->victims[k].debt <= 0))
			return say(why, "is a victim of others without a debt, or for somebody who is not owed", l->id);
	}
	return true;
}

/* Whole GPUs in the request's pool that own leases leave already and that are promised to nobody. Where the lease is of no lower priority
 * the request may not hold them, since the order can still be taken back; it is admitted when they are returned. */
static int64_t
own_devices_returning(const struct quota_world *w, const struct quota_request *r)
{
	int64_t devices = 0;

	for (size_t i = 0; i < w->lease_count; i++) {
		const struct quota_lease *l = &w->leases[i];

		if (l->workspace != r->workspace || l->cluster != r->cluster || l->shared ||
		    l->order == QUOTA_NO_ORDER ||
		    (l->priority < r->priority && w->policy.workspaces[r->workspace].preempt_own))
			continue;
		for (size_t q = 0; q < l->part_count; q++)
			if (l->parts[q].shape == 0)
				devices += l->parts[q].count - promised_of(w, l, &l->parts[q]);
	}
	return devices;
}

/* A whole-GPU request of an own pool without other shapes, within its rights: at once or after one grace period. */
static bool
owed_gets_its_due(const struct quota_state *s, const struct quota_world *w, const struct quota_event *e,
                  const struct quota_outcome *o, struct buf *why)
{
	const struct quota_request *r;
	const struct quota_verdict *v;
	int64_t free_units = 0;
	bool shared;

	if (e->kind != QUOTA_SUBMIT || e->request_count != 1 || o->verdict_count < 1)
		return true;
	r = &e->requests[0];
	v = &o->verdicts[0];
	if (!v->owed || v->decision != QUOTA_QUEUE || r->shape != 0 || r->per_node > 1 ||
	    w->policy.workspaces[r->workspace].reclaim != QUOTA_RECLAIM_ANY)
		return true;
	for (size_t i = 0; i < v->check_count; i++) {
		const struct quota_check *k = &v->checks[i];

		if ((k->rule <= QUOTA_RULE_BUDGET && !k->ok && !k->soft) || k->scope == QUOTA_SCOPE_HEAD ||
		    k->scope == QUOTA_SCOPE_UNUSED)
			return true;
	}
	shared = quota_account_at(s, r->workspace, r->cluster, 0, false).reserved < r->count * UNITS_PER_GPU;
	if (shared)
		return true;
	for (size_t i = 0; i < quota_pool_count(s); i++) {
		struct quota_pool_figures p = quota_pool_at(s, i);

		if (!quotasums_of_pool(w, &p, r->workspace, r->cluster, r->shape, false))
			continue;
		if (p.live - p.fenced < p.reserved || p.excess != 0 || !quotaworld_only_whole(w, p.tenant))
			return true;
		free_units += p.free;
	}
	for (size_t i = 0; i < w->lease_count; i++)
		if (spared(w, &w->leases[i]))
			return true;
	for (size_t i = 0; i < w->policy.workspace_count; i++) {
		struct quota_account_figures a = quota_account_at(s, (int32_t)i, r->cluster, 0, false);

		if (a.fixed > a.reserved || (!enforced(w, (int32_t)i) && a.leased > 0))
			return true;
	}
	{
		struct quota_account_figures a = quota_account_at(s, r->workspace, r->cluster, 0, false);

		if (a.committed + r->count * UNITS_PER_GPU > a.reserved)
			return true; /* owed only in the shared pool */
	}
	if (free_units < r->count * UNITS_PER_GPU &&
	    free_units / UNITS_PER_GPU + own_devices_returning(w, r) >= r->count)
		return true;
	return say(why, "is owed, could be had, and waits without a hold", r->id);
}

/* Its lease is gone, and its devices are as fenced as they were its. */
static bool
loss_is_sound(const struct quota_world *before, const struct quota_world *w, const struct quota_event *e,
              struct buf *why)
{
	const struct quota_lease *l = e->kind == QUOTA_RELEASE && e->lost ? lease_named(before, e->id) : NULL;

	if (!l)
		return true;
	if (lease_named(w, e->id))
		return say(why, "was lost and is still leased", e->id);
	for (size_t k = 0; k < l->part_count; k++) {
		const struct quota_part *p = &l->parts[k];
		const struct quota_gpu *d = &w->nodes[p->node].gpus[p->gpu];
		int64_t fenced = 0, total = 0;

		for (size_t i = 0; i < w->fence_count; i++)
			if (strcmp(w->fences[i].id, e->id) == 0 && w->fences[i].node == p->node &&
			    w->fences[i].gpu == p->gpu && w->fences[i].shape == p->shape)
				fenced += w->fences[i].count;
		for (size_t q = 0; q < d->slot_count; q++)
			total += d->slots[q].shape == p->shape ? d->slots[q].count : 0;
		if (fenced != (total > 0 ? p->count : 0))
			return say(why, "was lost, and its devices are not fenced", e->id);
	}
	return true;
}

static bool
outcome_is_sound(const struct quota_state *s, const struct quota_world *before, const struct quota_world *w,
                 const struct quota_event *e, const struct quota_outcome *o, struct buf *why)
{
	bool ok = true;

	for (size_t i = 0; i < o->verdict_count && ok; i++) {
		const struct quota_verdict *v = &o->verdicts[i];
		bool in = v->decision == QUOTA_ADMIT || v->decision == QUOTA_BORROW;

		ok = victims_are_sound(before, w, v, why);
		if (v->adopted)
			ok = adoption_is_sound(w, e, v, why) && ok;
		else if (in && v->check_count != 3 && lease_named(w, v->id))
			ok = admission_is_sound(s, w, v, i + 1 == o->verdict_count, why) && ok;
	}
	return ok && loss_is_sound(before, w, e, why) && owed_gets_its_due(s, w, e, o, why);
}

/* ---- leases that were not used ------------------------------------------------------------------------------------------------------ */

/* The same by a list of what happened: every lease that expired, and the last confirmation of its workspace and shape. */
struct expiry {
	struct quota_lease lease; /* its pointers are not used */
	char reason[QUOTA_REASON_SIZE];
	int64_t at_ns;
	bool in_a_row; /* admitted after the one before it had expired */
};

struct history {
	struct expiry *at;
	size_t count, cap;
};

static bool
is_alike(const struct expiry *e, int32_t workspace, int32_t shape, int32_t count, int32_t priority)
{
	return e->lease.workspace == workspace && e->lease.shape == shape && e->lease.count == count &&
	       e->lease.priority == priority;
}

static void
remember_expiry(struct history *h, const struct quota_lease *l, int64_t now_ns)
{
	struct expiry *e;

	array_room(h->at, h->count, h->cap);
	e = &h->at[h->count];
	*e = (struct expiry){.lease = *l, .at_ns = now_ns, .in_a_row = true};
	if (l->reason)
		memcpy(e->reason, l->reason, strlen(l->reason) + 1);
	for (size_t i = 0; i < h->count; i++)
		if (is_alike(&h->at[i], l->workspace, l->shape, l->count, l->priority) && l->since_ns < h->at[i].at_ns)
			e->in_a_row = false;
	h->count++;
}

static void
forget_confirmed(struct history *h, const struct quota_lease *l)
{
	size_t kept = 0;

	for (size_t i = 0; i < h->count; i++)
		if (h->at[i].lease.workspace != l->workspace || h->at[i].lease.shape != l->shape)
			h->at[kept++] = h->at[i];
	h->count = kept;
}

/* Before the step's verdicts are looked at: the event itself may confirm, or let leases expire. */
static void
remember(struct history *h, const struct quota_world *before, const struct quota_world *w, const struct quota_event *e,
         const struct quota_outcome *o)
{
	const struct quota_lease *l = e->kind == QUOTA_CONFIRM ? lease_named(before, e->id) : NULL;

	if (l && l->state == QUOTA_ADMITTED)
		forget_confirmed(h, l);
	for (size_t i = 0; i < o->notice_count; i++)
		if (o->notices[i].kind == QUOTA_LEASE_EXPIRED) {
			l = lease_named(before, o->notices[i].id);
			if (l && l->order == QUOTA_NO_ORDER)
				remember_expiry(h, l, w->now_ns);
		}
}

static bool
may_evict(const struct history *h, const struct quota_settings *set, const struct quota_request *r, int64_t now_ns)
{
	const struct expiry *last = NULL;
	int64_t span = set->confirm_ns;

	for (size_t i = 0; i < h->count; i++) {
		if (!h->at[i].in_a_row || !is_alike(&h->at[i], r->workspace, r->shape, r->count, r->priority))
			continue;
		span = last ? 2 * span : set->confirm_ns;
		span = span < set->unused_most_ns ? span : set->unused_most_ns;
		last = &h->at[i];
	}
	if (!last || now_ns >= last->at_ns + span)
		return true;
	return r->reason && r->reason[0] != '\0' && last->reason[0] != '\0' && strcmp(r->reason, last->reason) != 0;
}

static bool
nobody_evicts_in_vain(const struct history *h, const struct quota_world *w, const struct quota_outcome *o,
                      struct buf *why)
{
	for (size_t i = 0; i < o->verdict_count; i++)
		for (size_t k = 0; k < w->waiting_count && o->verdicts[i].victim_count > 0; k++)
			if (strcmp(w->waiting[k].id, o->verdicts[i].id) == 0 &&
			    !may_evict(h, &w->policy.settings, &w->waiting[k], w->now_ns))
				return say(why, "evicts though its last lease was not used", o->verdicts[i].id);
	for (size_t k = 0; k < w->waiting_count; k++)
		if (w->waiting[k].hold_count > 0 && !may_evict(h, &w->policy.settings, &w->waiting[k], w->now_ns))
			return say(why, "has a hold though its last lease was not used", w->waiting[k].id);
	return true;
}

/* ---- sameness --------------------------------------------------------------------------------------------------------------------- */

static void
answer(struct quota_state *s, int64_t now_ns, const struct quota_event *e, struct buf *out)
{
	owned(quota_outcome) struct quota_outcome *o = NULL;
	struct err err;

	if (quota_step(s, now_ns, e, &o, &err))
		write_outcome(o, out);
	else
		buf_str(out, err.text);
}

static bool
answers_alike(const struct quota_state *s, int64_t now_ns, const struct quota_event *e, struct buf *why)
{
	owned(quota) struct quota_state *copy = quota_clone(s), *loaded = NULL;
	owned(quota_outcome) struct quota_outcome *tried = NULL;
	struct quota_saved saved, after;
	struct buf text[5];
	struct err err;
	bool ok;

	for (size_t i = 0; i < ARRAY_LEN(text); i++)
		buf_init(&text[i], 1 << 20);
	quota_save(s, &saved);
	ok = quota_load(&saved.world, &loaded, &err);
	if (!ok)
		buf_printf(why, "what was saved cannot be loaded: %s", err.text);
	write_world(&saved.world, &text[3]);
	if (ok) {
		answer(copy, now_ns, e, &text[0]);
		answer(loaded, now_ns, e, &text[1]);
		if (quota_try(s, now_ns, e, &tried, &err))
			write_outcome(tried, &text[2]);
		else
			buf_str(&text[2], err.text);
		quota_save(s, &after);
		write_world(&after.world, &text[4]);
		quota_saved_fini(&after);
		ok = strcmp(buf_text(&text[0]), buf_text(&text[1])) == 0 &&
		     strcmp(buf_text(&text[0]), buf_text(&text[2])) == 0 &&
		     strcmp(buf_text(&text[3]), buf_text(&text[4])) == 0;
		if (!ok)
			buf_printf(why, "a copy says\n%sthe state saved and loaded\n%sthe dry run\n%s",
			           buf_text(&text[0]), buf_text(&text[1]), buf_text(&text[2]));
	}
	quota_saved_fini(&saved);
	for (size_t i = 0; i < ARRAY_LEN(text); i++)
		buf_fini(&text[i]);
	return ok;
}

/* ---- a case ------------------------------------------------------------------------------------------------------------------------ */

static bool
counts_are_sound(const struct quota_state *s, const struct quota_world *w, struct buf *why)
{
	for (size_t t = 0; t < w->policy.tenant_count; t++) {
		size_t waiting = 0;

		for (size_t i = 0; i < w->waiting_count; i++)
			waiting += w->policy.workspaces[w->waiting[i].workspace].tenant == (int32_t)t;
		if (quota_waiting_of_tenant(s, (int32_t)t) != waiting)
			return say(why, "has another number of requests that wait", w->policy.tenants[t].name);
	}
	return true;
}

static bool
state_is_sound(const struct quota_state *s, const struct quota_world *w, struct buf *why)
{
	bool ok = quotasums_pools(s, w, why) && counts_are_sound(s, w, why);

	for (size_t i = 0; i < w->waiting_count && ok; i++)
		ok = hold_is_sound(w, &w->waiting[i], why);
	for (size_t i = 0; i < w->lease_count && ok; i++)
		ok = lease_is_sound(w, &w->leases[i], why);
	return ok;
}

static bool
step_is_sound(struct quota_state *s, const struct quotaworld *k, size_t i, struct quota_saved *saved, struct history *h,
              struct buf *why)
{
	owned(quota_outcome) struct quota_outcome *o = NULL;
	struct quotaworld_event made;
	const struct quota_event *e = quotaworld_event(k, i, &saved->world, &made);
	struct quota_saved after;
	struct err err;
	bool ok;

	if (i % 48 == 0 && !answers_alike(s, made.now_ns, e, why))
		return false;
	if (!quota_step(s, made.now_ns, e, &o, &err)) {
		buf_printf(why, "an event is refused: %s", err.text);
		return false;
	}
	events_done++;
	quota_save(s, &after);
	remember(h, &saved->world, &after.world, e, o);
	ok = state_is_sound(s, &after.world, why) && nobody_evicts_in_vain(h, &after.world, o, why) &&
	     outcome_is_sound(s, &saved->world, &after.world, e, o, why) && (i % 16 != 0 || quotasums_indexes(s, why));
	quota_saved_fini(saved);
	*saved = after;
	return ok;
}

/* All jobs end, all nodes are back, no lost work is seen, and time passes: who still waits is one that the policy could never admit. */
static bool
all_ends_well(struct quota_state *s, const struct quotaworld *k, struct quota_saved *saved, struct buf *why)
{
	int64_t now = saved->world.now_ns;
	size_t rounds = 2 * (saved->world.waiting_count + saved->world.lease_count) + 4;
	struct err err;

	(void)k;
	for (size_t i = 0; i < saved->world.node_count; i++)
		for (int32_t d = QUOTA_NONE; d < (int32_t)saved->world.nodes[i].gpu_count; d++) {
			owned(quota_outcome) struct quota_outcome *o = NULL;

			if (!quota_step(s, now,
			                &(struct quota_event){.kind = d == QUOTA_NONE ? QUOTA_NODE_BACK
			                                                              : QUOTA_GPU_BACK,
			                                      .node = (int32_t)i,
			                                      .gpu = d},
			                &o, &err))
				return say(why, err.text, "node");
		}
	for (size_t i = 0; i < saved->world.fence_count; i++) {
		owned(quota_outcome) struct quota_outcome *o = NULL;

		if (!quota_step(s, now, &(struct quota_event){.kind = QUOTA_UNFENCE, .id = saved->world.fences[i].id},
		                &o, &err))
			return say(why, err.text, "unfence");
	}
	for (size_t round = 0; round < rounds && quota_waiting_count(s) + quota_lease_count(s) > 0; round++) {
		quota_saved_fini(saved);
		quota_save(s, saved);
		for (size_t i = 0; i < saved->world.lease_count; i++) {
			owned(quota_outcome) struct quota_outcome *o = NULL;

			if (!quota_step(s, now,
			                &(struct quota_event){.kind = QUOTA_FINISH, .id = saved->world.leases[i].id},
			                &o, &err))
				return say(why, err.text, "finish");
		}
		now += INT64_C(1) << 50;
		{
			owned(quota_outcome) struct quota_outcome *o = NULL;

			if (!quota_step(s, now, &(struct quota_event){.kind = QUOTA_TICK}, &o, &err))
				return say(why, err.text, "tick");
		}
	}
	quota_saved_fini(saved);
	quota_save(s, saved);
	for (size_t i = 0; i < saved->world.waiting_count; i++) {
		owned(quota_outcome) struct quota_outcome *o = quota_explain(s, now, saved->world.waiting[i].id);
		bool never = true;

		for (size_t c = 0; c < o->verdicts[0].check_count; c++)
			if (o->verdicts[0].checks[c].rule == QUOTA_RULE_DECLARED && o->verdicts[0].checks[c].ok)
				never = false;
		for (size_t c = 0; c < o->verdicts[0].check_count; c++)
			if (o->verdicts[0].checks[c].rule == QUOTA_RULE_VALID && !o->verdicts[0].checks[c].ok)
				never = true;
		if (!never)
			return say(why, "waits for ever although everything has ended", saved->world.waiting[i].id);
	}
	return true;
}

static bool
everything_holds(const void *c, struct buf *why)
{
	const struct quotaworld *k = c;
	owned(quota) struct quota_state *s = NULL;
	struct quota_saved saved;
	struct history h = {0};
	struct err err;
	bool ok;

	if (!quotaworld_load(k, &s, &err)) {
		buf_printf(why, "the world cannot be loaded: %s", err.text);
		return false;
	}
	quota_save(s, &saved);
	ok = state_is_sound(s, &saved.world, why);
	for (size_t i = 0; i < k->event_count && ok; i++) {
		ok = step_is_sound(s, k, i, &saved, &h, why);
		if (!ok)
			buf_printf(why, " (event %zu)", i);
	}
	ok = ok && all_ends_well(s, k, &saved, why);
	quota_saved_fini(&saved);
	mem_free(h.at);
	return ok;
}

/* Seeds of cases that once broke, and what it was. */
static const uint64_t known_cases[] = {
	0xf652a7e702b7f8c3u, /* a hold that was displaced before its turn had two, and the first ended its request */
	0x000000009f729b08u, /* an owed request waits for an own lease of its priority, which leaves for another one */
};
#define KNOWN_REPORT_MAX (1u << 20)

int
main(void)
{
	static const struct prop_test known = {"a case that once broke",  sizeof(struct quotaworld),
	                                       quotaworld_generate_first, everything_holds,
	                                       quotaworld_describe,       NULL};
	static const struct prop_test tests[] = {
		{"after any events sums, places, holds, rights, victims and answers are as promised",
	         sizeof(struct quotaworld), quotaworld_generate, everything_holds, quotaworld_describe, NULL},
	};
	int code;

	for (size_t i = 0; i < ARRAY_LEN(known_cases); i++) {
		in_place(buf) struct buf report;

		buf_init(&report, KNOWN_REPORT_MAX);
		if (!prop_run(&known, known_cases[i], 1, &report)) {
			printf("not ok - a case that once broke\n%s", buf_text(&report));
			return 1;
		}
	}
	ASSERT(setenv("TOLLGATE_PROP_CASES", CASES, 0) == 0);
	code = prop_main("prop_quota", tests, ARRAY_LEN(tests));
	printf("# %zu events\n", events_done);
	return code;
}
