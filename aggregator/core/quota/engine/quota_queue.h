/* aggregator/core/quota/engine/quota_queue.h - the order in which waiting requests are decided, and the decisions. For the engine's own files.
 *
 * Queue order: owed requests first; then priority plus aging; then the smallest debt relative to weight; then the time of
 * submission; then the id. It is looked at again after each decision, because that may end a right or raise a debt.
 *
 * A right is in one pool. Who is owed in one and would now be admitted in the other as a borrower lets those of other workspaces go
 * first who are owed there: what a step admits is no victim in it, and they would wait without a hold beside their own units. */
#ifndef TOLLGATE_QUOTA_QUEUE_H
#define TOLLGATE_QUOTA_QUEUE_H

#include "aggregator/core/quota/engine/quota_victims.h"

/* What a step gathers for its outcome. */
struct verdicts {
	struct quota_verdict *at;
	size_t count, cap;
};
struct notices {
	struct quota_notice *at;
	size_t count, cap;
};
struct gather {
	struct verdicts verdicts;
	struct notices notices;
};

/* What the rules say of one request, before anything is done about it. */
struct ruling {
	enum quota_decision decision;
	int32_t account[2];  /* own, shared */
	bool may[2];         /* rules 2 to 4 */
	bool may_replace[2]; /* rules 3 and 4: own work may be given up for rule 2 */
	struct judgement j[2];
	int place; /* where it goes: 0 own, 1 shared */
	bool warn; /* a soft budget is exceeded */
	int64_t borrowed;
	struct plan plan;
	struct hunt hunt; /* reclaim */
};

/* ---- quota_decide.c --------------------------------------------------------------------------------------------------------- */

void quota_ruling_fini(struct ruling *r);
static inline void
ruling_fini(struct ruling *r)
{
	quota_ruling_fini(r);
}
/* The state is as before when it returns. */
void quota_rule(struct quota_state *s, int32_t wait, struct ruling *ret);
/* The same of a request that has a hold, as if it had none: true when it can do with less now. */
bool quota_improve(struct quota_state *s, int32_t wait, struct ruling *ret);
/* The verdict with all its checks; made before the ruling is carried out. */
void quota_tell(struct quota_state *s, int32_t wait, const struct ruling *r, struct quota_verdict *ret);
/* Carries it out. True when requests may have got a better place in the queue. */
bool quota_carry_out(struct quota_state *s, int32_t wait, struct ruling *r, struct gather *g);
void quota_notice(struct gather *g, enum quota_notice_kind kind, const char *id, const char *for_id, int64_t at_ns);
/* Drops a request's hold; it waits on and is decided again in this step. */
void quota_replan(struct quota_state *s, int32_t wait, struct gather *g);
/* Requests whose hold misses nothing any more are admitted. */
void quota_complete(struct quota_state *s, struct gather *g);

/* ---- quota_queue.c ---------------------------------------------------------------------------------------------------------- */

/* All that wait, first to last as things are now; the caller frees the list. */
struct queued {
	int32_t wait;
};
size_t quota_queue_order(const struct quota_state *s, struct queued **ret);
/* Decides the waiting requests: all of them when something became possible, else those just submitted. */
void quota_pass(struct quota_state *s, struct gather *g);
/* The place of each waiting request in the queue, from 1, into the verdicts that wait. */
void quota_positions(const struct quota_state *s, struct verdicts *v);

/* ---- quota_time.c ----------------------------------------------------------------------------------------------------------- */

/* Exceptions begin and end with the clock. */
void quota_exceptions_at(struct quota_state *s, struct gather *g);
/* Orders become overdue, leases expire or are suspect, requests expire. */
void quota_tick(struct quota_state *s, struct gather *g);
/* The clock was set: what is from before it moves with it. */
void quota_clock_set(struct quota_state *s, const struct quota_event *e);
void quota_end_request(struct quota_state *s, int32_t wait, enum quota_notice_kind kind, struct gather *g);
/* What the scheduler or telemetry says of a lease. */
void quota_lease_event(struct quota_state *s, const struct quota_event *e, struct gather *g);

/* ---- quota_explain.c -------------------------------------------------------------------------------------------------------- */

/* The changes that would admit it, from the checks; each: units of one device. They follow those that the verdict has already. */
void quota_changes(struct quota_verdict *v, const struct checks *checks, int64_t each);

#endif
