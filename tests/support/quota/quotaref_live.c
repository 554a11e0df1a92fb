/* tests/support/quota/quotaref_live.c - what a state of the quota engine promises about the future. */
#include "tests/support/quota/quotaref_live.h"

#include <stdio.h>
#include <string.h>

static bool
step_id(struct quota_state *s, int64_t now_ns, enum quota_event_kind kind, const char *id, struct buf *why)
{
	owned(quota_outcome) struct quota_outcome *o = NULL;
	struct quota_event e = {.kind = kind, .id = id};
	struct err err = {0};

	if (quota_step(s, now_ns, &e, &o, &err))
		return true;
	buf_printf(why, "a step failed: %s", err.text);
	return false;
}

static bool
has_request(const struct quota_world *w, const char *id)
{
	for (size_t i = 0; i < w->waiting_count; i++)
		if (strcmp(w->waiting[i].id, id) == 0)
			return true;
	return false;
}

/* leased + want <= R, and leased has draining leases in it until they returned: what the workspace itself is about to return, for a
 * hold of its own or for nobody, gives no right before it has. What its holds will be is taken already. */
static bool
owed_in(const struct quota_state *s, const struct quota_world *w, const struct quota_request *r, bool shared)
{
	const struct quota_shape *shape = &w->policy.shapes[r->shape];
	struct quota_account_figures f = quota_account_at(s, r->workspace, r->cluster, shape->model, shared);
	int64_t want = r->count * shape->units;

	return f.leased + want <= f.reserved && f.committed + want <= f.reserved &&
	       (r->preemptible || f.fixed + want <= f.reserved) && want <= f.limit - f.committed;
}

static bool
is_owed(const struct quota_state *s, const struct quota_world *w, const struct quota_request *r)
{
	return r->per_node == 0 && w->policy.workspaces[r->workspace].reclaim == QUOTA_RECLAIM_ANY &&
	       (owed_in(s, w, r, false) || owed_in(s, w, r, true));
}

static bool
waits_without_hold(const struct quota_state *s, const struct quota_world *w, const char *id)
{
	for (size_t i = 0; i < w->waiting_count; i++)
		if (strcmp(w->waiting[i].id, id) == 0)
			return w->waiting[i].hold_count == 0 && is_owed(s, w, &w->waiting[i]);
	return false;
}

/* One that was owed and had no hold, and now still is owed or has only got one: it would wait a second grace period. */
static const char *
find_late(const struct quota_state *before, const struct quota_world *w, const struct quota_state *after,
          const struct quota_world *now)
{
	for (size_t i = 0; i < now->waiting_count; i++)
		if (waits_without_hold(before, w, now->waiting[i].id) &&
		    (now->waiting[i].hold_count > 0 || is_owed(after, now, &now->waiting[i])))
			return now->waiting[i].id;
	return NULL;
}

/* What is leaving has left. */
static bool
end_leaving(struct quota_state *s, int64_t now_ns, struct buf *why)
{
	struct quota_saved saved = {0};
	bool ok = true;

	quota_save(s, &saved);
	for (size_t i = 0; ok && i < saved.world.lease_count; i++)
		if (saved.world.leases[i].order != QUOTA_NO_ORDER)
			ok = step_id(s, now_ns, QUOTA_FINISH, saved.world.leases[i].id, why);
	quota_saved_fini(&saved);
	return ok;
}

bool
qref_owed_are_served(const struct quota_state *s, struct buf *why)
{
	owned(quota) struct quota_state *copy = NULL;
	struct quota_saved saved = {0}, after = {0};
	bool any = false, ok = true;
	const char *late;

	quota_save(s, &saved);
	for (size_t i = 0; i < saved.world.waiting_count; i++)
		any |= waits_without_hold(s, &saved.world, saved.world.waiting[i].id);
	if (any) {
		copy = quota_clone(s);
		ok = end_leaving(copy, saved.world.now_ns, why);
		quota_save(copy, &after);
		late = ok ? find_late(s, &saved.world, copy, &after.world) : NULL;
		if (late != NULL) {
			buf_printf(why, "%s is owed, has no hold, and still waits when all that is leaving has left",
			           late);
			ok = false;
		}
		quota_saved_fini(&after);
	}
	quota_saved_fini(&saved);
	return ok;
}

/* Ends every lease that the hold waits for. */
static bool
end_victims(struct quota_state *s, int64_t now_ns, const struct quota_request *r, struct buf *why)
{
	for (size_t k = 0; k < r->hold_count; k++)
		if (r->hold[k].lease != NULL && !step_id(s, now_ns, QUOTA_FINISH, r->hold[k].lease, why))
			return false;
	return true;
}

static bool
has_nothing_yet(const struct quota_world *w, const char *id)
{
	for (size_t i = 0; i < w->waiting_count; i++)
		if (strcmp(w->waiting[i].id, id) == 0)
			return w->waiting[i].hold_count == 0;
	return false;
}

/* More is reserved there than is live. */
static bool
is_over_reserved(const struct quota_state *s, int32_t tenant, int32_t cluster, int32_t model)
{
	for (size_t i = 0; i < quota_pool_count(s); i++) {
		struct quota_pool_figures p = quota_pool_at(s, i);

		if (p.tenant == tenant && p.cluster == cluster && p.model == model)
			return p.reserved > p.live;
	}
	return false;
}

/* It is of another workspace than the hold, was owed in the hold's pool and had nothing, and has got something. */
static bool
is_owner(const struct quota_state *before, const struct quota_world *w, const struct quota_world *after,
         const struct quota_request *r, const struct quota_request *x)
{
	int32_t pool = w->nodes[r->hold[0].node].tenant;
	bool same_pool = x->shape != QUOTA_NONE && x->cluster == r->cluster &&
	                 w->policy.shapes[x->shape].model == w->policy.shapes[r->shape].model &&
	                 (pool == QUOTA_NONE || w->policy.workspaces[x->workspace].tenant == pool);

	return same_pool && x->workspace != r->workspace && x->hold_count == 0 && !has_nothing_yet(after, x->id) &&
	       w->policy.workspaces[x->workspace].reclaim == QUOTA_RECLAIM_ANY &&
	       owed_in(before, w, x, pool == QUOTA_NONE);
}

/* A borrower's hold yields to owed requests of other workspaces that find no other way. That is left to them only where more is reserved
 * than there is: they were passed over while nobody had debt, and what the first victim returned is enough for them. It was they: without
 * them the hold is honoured. */
static bool
yielded_to_owner(const struct quota_state *before, const struct quota_world *w, const struct quota_world *after,
                 const struct quota_request *r, int64_t now_ns, struct buf *why)
{
	owned(quota) struct quota_state *copy = NULL;
	struct quota_saved saved = {0};
	bool any = false, ok = true;

	if (r->hold_owed ||
	    !is_over_reserved(before, w->nodes[r->hold[0].node].tenant, r->cluster, w->policy.shapes[r->shape].model))
		return false;
	copy = quota_clone(before);
	for (size_t i = 0; ok && i < w->waiting_count; i++)
		if (is_owner(before, w, after, r, &w->waiting[i])) {
			any = true;
			ok = step_id(copy, now_ns, QUOTA_CANCEL, w->waiting[i].id, why);
		}
	if (!any || !ok)
		return false;
	ok = end_victims(copy, now_ns, r, why);
	quota_save(copy, &saved);
	ok = ok && !has_request(&saved.world, r->id);
	quota_saved_fini(&saved);
	return ok;
}

bool
qref_holds_are_honoured(const struct quota_state *s, int64_t now_ns, struct buf *why)
{
	struct quota_saved saved = {0}, after = {0};
	bool ok = true;

	quota_save(s, &saved);
	for (size_t i = 0; ok && i < saved.world.waiting_count; i++) {
		const struct quota_request *r = &saved.world.waiting[i];
		owned(quota) struct quota_state *copy = NULL;

		if (r->hold_count == 0)
			continue;
		copy = quota_clone(s);
		ok = end_victims(copy, now_ns, r, why);
		quota_save(copy, &after);
		if (ok && has_request(&after.world, r->id) &&
		    !yielded_to_owner(s, &saved.world, &after.world, r, now_ns, why)) {
			buf_printf(why, "%s still waits when what its hold waited for has ended", r->id);
			ok = false;
		}
		quota_saved_fini(&after);
	}
	quota_saved_fini(&saved);
	return ok;
}

bool
qref_nobody_starves(const struct quota_state *s, int64_t now_ns, struct buf *why)
{
	owned(quota) struct quota_state *copy = quota_clone(s);
	struct quota_saved saved = {0};
	bool ok = true;

	for (int turn = 0; ok && turn < 1000 && quota_lease_count(copy) > 0; turn++) {
		const struct quota_lease *oldest;

		quota_save(copy, &saved);
		oldest = &saved.world.leases[0];
		for (size_t i = 1; i < saved.world.lease_count; i++)
			if (saved.world.leases[i].since_ns < oldest->since_ns)
				oldest = &saved.world.leases[i];
		ok = step_id(copy, now_ns + turn, QUOTA_FINISH, oldest->id, why);
		quota_saved_fini(&saved);
	}
	if (ok && (quota_waiting_count(copy) > 0 || quota_lease_count(copy) > 0)) {
		buf_printf(why, "%zu still wait and %zu run when all work should have ended", quota_waiting_count(copy),
		           quota_lease_count(copy));
		ok = false;
	}
	return ok;
}

/* The lease's work as a new request. */
static struct quota_request
again(const struct quota_lease *l, const char *id, int64_t now_ns)
{
	return (struct quota_request){.id = id,
	                              .workspace = l->workspace,
	                              .cluster = l->cluster,
	                              .shape = l->shape,
	                              .count = l->count,
	                              .priority = l->priority,
	                              .klass = QUOTA_NONE,
	                              .preemptible = l->preemptible,
	                              .submitted_ns = now_ns};
}

/* Ends the first lease with an order and asks for it again; false when there is none. */
static bool
evict_one(struct quota_state *s, int64_t now_ns, int turn, bool *ret_ok, struct buf *why)
{
	struct quota_saved saved = {0};
	const struct quota_lease *l = NULL;
	char id[QUOTA_ID_SIZE];

	quota_save(s, &saved);
	for (size_t i = 0; i < saved.world.lease_count && l == NULL; i++)
		if (saved.world.leases[i].order != QUOTA_NO_ORDER)
			l = &saved.world.leases[i];
	if (l != NULL) {
		owned(quota_outcome) struct quota_outcome *o = NULL;
		struct quota_request r;
		struct quota_event submit = {.kind = QUOTA_SUBMIT, .requests = &r, .request_count = 1};
		struct err err = {0};

		snprintf(id, sizeof(id), "again-%d", turn);
		r = again(l, id, now_ns);
		*ret_ok = step_id(s, now_ns, QUOTA_FINISH, l->id, why) && quota_step(s, now_ns, &submit, &o, &err);
	}
	quota_saved_fini(&saved);
	return l != NULL;
}

#define EVICTIONS_MAX 64

bool
qref_evictions_end(const struct quota_state *s, int64_t now_ns, struct buf *why)
{
	owned(quota) struct quota_state *copy = quota_clone(s);
	bool ok = true;

	for (int turn = 0; ok && evict_one(copy, now_ns + turn, turn, &ok, why); turn++)
		if (turn == EVICTIONS_MAX) {
			buf_printf(why, "evicted work that comes back was evicted %d times", EVICTIONS_MAX);
			return false;
		}
	return ok;
}

bool
qref_outcome_sound(const struct quota_state *after, const struct quota_outcome *o, struct buf *why)
{
	struct quota_saved saved = {0};
	bool ok = true;

	quota_save(after, &saved);
	for (size_t i = 0; ok && i < o->verdict_count; i++) {
		const struct quota_verdict *v = &o->verdicts[i];

		for (size_t k = 0; ok && k < v->placed_count; k++)
			ok = !saved.world.nodes[v->placed[k].node].lost;
		if (!ok)
			buf_printf(why, "%s is placed on a lost node", v->id);
		for (size_t k = 0; ok && k < v->victim_count; k++) {
			const struct quota_victim *x = &v->victims[k];

			ok = x->why == QUOTA_WHY_DRAINING || x->why == QUOTA_WHY_OWN || (v->owed && x->debt > 0);
			if (!ok)
				buf_printf(why, "%s gives way to %s, which is not owed, or has no debt", x->id, v->id);
		}
	}
	quota_saved_fini(&saved);
	return ok;
}
