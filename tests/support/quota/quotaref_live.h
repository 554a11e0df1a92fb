/* tests/support/quota/quotaref_live.h - what a state of the quota engine promises about the future: nobody owed waits without a hold,
 * a hold is served when its victims are gone, everybody is served when work ends, and evicted work that comes back does not evict
 * for ever. */
#ifndef TOLLGATE_TESTS_QUOTAREF_LIVE_H
#define TOLLGATE_TESTS_QUOTAREF_LIVE_H

#include "aggregator/core/quota/engine/quota.h"
#include "common/base/buf.h"

/* No owed request with reclaim any and without per_node waits without a hold, unless leases that leave already serve it. Only for
 * states in which reservations fit what is live. */
bool qref_owed_are_served(const struct quota_state *s, struct buf *why);

/* A request with a hold is admitted when the leases that it waits for have ended: one grace period. */
bool qref_holds_are_honoured(const struct quota_state *s, int64_t now_ns, struct buf *why);

/* When work ends, oldest first, every waiting request is admitted in the end. */
bool qref_nobody_starves(const struct quota_state *s, int64_t now_ns, struct buf *why);

/* A lease that is ordered to end comes back at once as a new request: the orders come to an end. */
bool qref_evictions_end(const struct quota_state *s, int64_t now_ns, struct buf *why);

/* Of one step: victims have a beneficiary with a right to them, and nothing is placed on a lost node. */
bool qref_outcome_sound(const struct quota_state *after, const struct quota_outcome *o, struct buf *why);

#endif
