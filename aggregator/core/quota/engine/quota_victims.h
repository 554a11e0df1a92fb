/* aggregator/core/quota/engine/quota_victims.h - whose leases end so that a request fits. For the engine's own files.
 *
 * Legal: preemptible; of a workspace with debt just before its removal, what is ordered or draining counted as gone, or the
 * request's own with lower priority; not admitted in this step; of a workspace that is enforced. With reclaim = lower only those of
 * lower priority, with never none of others. Foreign victims are for owed requests only, and for room only: where rule 2 is short, own
 * victims alone make up for it, of either pool and wherever they run. A request that borrows gives up only own work that borrows.
 *
 * Order: already draining; other workspaces before the own one; largest debt relative to weight, as it is after what was taken
 * before; lowest priority; newest; id.
 *
 * Search, the first that finds a set:
 *  1. in this order, leases of the request's shape only
 *  2. the same node by node, where devices must be together or alone
 *  3. in this order, leases of all shapes of the pool, whose sum may be what is missing
 *  4. where reservations are protected, in this order without leases on lost nodes or promised in part: they may leave more protected
 *     than free
 *  5. all sets, while there are few enough
 *  6. the same without the holds of other workspaces that would only borrow, when the request is owed
 * Then, from the last to the first, everything that is not needed is dropped, until nothing can be. */
#ifndef TOLLGATE_QUOTA_VICTIMS_H
#define TOLLGATE_QUOTA_VICTIMS_H

#include "aggregator/core/quota/engine/quota_state.h"

struct victim {
	int32_t lease;
	enum quota_why why;
	int64_t debt; /* of its workspace just before */
};

struct hunt {
	int32_t wait, account;
	struct victim *at; /* in the order of taking */
	size_t count, cap;
	struct plan plan;
	bool owed;
	int64_t borrowed;
	bool limit_short;           /* rule 2 forbids the request as things are */
	int32_t elsewhere;          /* the workspace's account in the other pool, where limit_short; else QUOTA_NONE */
	struct limit_others others; /* of rule 2, before anything was taken */
	int32_t *displaced;         /* requests whose hold must be dropped */
	size_t displaced_count, displaced_cap;
};

void quota_hunt_fini(struct hunt *h);
static inline void
hunt_fini(struct hunt *h)
{
	quota_hunt_fini(h);
}

/* Whether a legal set exists; limit_short: rule 2 forbids the request as things are. The state is as before when it returns. A set may be empty when only holds are displaced. */
MUST_CHECK bool quota_hunt(struct quota_state *s, int32_t wait, int32_t account, bool limit_short, struct hunt *ret);

/* ---- between quota_victims.c and quota_search.c ------------------------------------------------------------------------------ */

struct filter {
	int32_t shape; /* leases of this shape only, or QUOTA_NONE */
	int32_t node;  /* with a device on this node, or QUOTA_NONE */
	bool whole;    /* those whose return frees all they have */
	bool in_debt;  /* own ones only where the workspace has debt: the request will borrow */
};

bool quota_hunt_valid(const struct quota_state *s, const struct hunt *h, struct judgement *ret);
bool quota_hunt_within_limit(const struct quota_state *s, const struct hunt *h);
/* Whether a lease may be taken at all, debt aside. */
bool quota_hunt_may(const struct quota_state *s, const struct hunt *h, const struct lease *l, const struct filter *f);
/* The order among leases of one workspace. */
bool quota_hunt_sooner(const struct lease *a, const struct lease *b);
void quota_hunt_take(struct quota_state *s, struct hunt *h, int32_t lease, enum quota_why why);
void quota_hunt_undo(struct quota_state *s, struct hunt *h, size_t count);
void quota_hunt_prune(struct quota_state *s, struct hunt *h);
MUST_CHECK bool quota_hunt_all_sets(struct quota_state *s, struct hunt *h);

#endif
