/* aggregator/service/decider_turn.h - one turn of the decider: queued requests become events of the quota log, their outcomes replies. For decider.c. */
#ifndef TOLLGATE_DECIDER_TURN_H
#define TOLLGATE_DECIDER_TURN_H

#include "aggregator/service/decider.h"
#include "aggregator/service/quota_telemetry.h"

struct turn_result {
	struct quota_turn *turn; /* NULL: nothing to decide */
	bool optimistic_failed;  /* an optimistic commit came first and failed: the book was read again */
	char **texts;            /* texts that the turn borrows */
	size_t text_count;
};
void turn_result_fini(struct turn_result *r);

/* Decides the requests together and commits; each gets its fate. False: nothing is known to have happened, and no fate is set. queued_max: how
 * many requests of one tenant may wait; a new one beyond that is refused with ERR_LIMIT. */
MUST_CHECK bool decider_turn(struct db *db, struct quota_log *log, struct capacity_request *items, int64_t queued_max,
                             struct turn_result *ret, struct err *err);
/* Whether the request's tenant has as many waiting as it may; then the request's err has the refusal. */
bool decider_is_limited(const struct quota_book *b, struct capacity_request *i, int64_t queued_max);
/* Requests that are refused without a turn, each for its err: sets REQUEST_REFUSED, REQUEST_READ_ROW where the request was decided before, or
 * REQUEST_TOKEN_REVOKED. False: no fate is set. */
MUST_CHECK bool decider_settle_refused(struct db *db, struct capacity_request *items, struct err *err);
/* A tick of the quota loop: the clock, the policy, exceptions and telemetry change the book. One replica at a time reads telemetry; `now` makes
 * this replica read policy and telemetry in any case. */
struct tick_state {
	struct quota_loop_memory *memory;
	bool now;
	int refused; /* events of the last tick that the book refused */
	struct err why;
	/* The policy that the book had after the last tick, and when that is in force. 0: not known. */
	int64_t policy_version, policy_at_ns;
};
MUST_CHECK bool decider_tick(struct tick_state *l, struct db *db, struct quota_log *log, struct turn_result *ret,
                             struct err *err);
/* The view of a request that this turn decided, without reading its row. */
bool turn_result_view(const struct turn_result *r, const struct capacity_request *i, struct decision_view *ret);

#endif
