/* aggregator/service/decider_turn.h - one turn of the decider: from the items on its desk to events and back, for decider.c alone. */
#ifndef TOLLGATE_DECIDER_TURN_H
#define TOLLGATE_DECIDER_TURN_H

#include "aggregator/service/decider.h"
#include "aggregator/service/closed_loop.h"

struct turn_result {
	struct quota_turn *turn; /* NULL: there was nothing to decide */
	bool optimistic_failed;  /* the optimistic turn failed and the book was read anew */
	char **texts;            /* that the turn borrows */
	size_t text_count;
};
void turn_result_fini(struct turn_result *r);

/* Decides the items together and commits; each gets its fate. False: nothing is known to have happened, and none has one. queued_max: how many
 * requests of one tenant may wait; a new one of a tenant that has as many is refused with ERR_LIMIT. */
MUST_CHECK bool decider_turn(struct db *db, struct quota_log *log, struct desk_item *items, int64_t queued_max,
                             struct turn_result *ret, struct err *err);
/* Whether a request is one of a tenant that has as many waiting; the sentence of its refusal is in its err. */
bool decider_is_limited(const struct quota_book *b, struct desk_item *i, int64_t queued_max);
/* Requests that are refused without a turn, each for its err: each becomes DESK_REFUSED, or DESK_READ where there is a decision of it,
 * or DESK_STRANGER. False: none did. */
MUST_CHECK bool decider_settle_refused(struct db *db, struct desk_item *items, struct err *err);
/* What the clock, the policy, exceptions and telemetry do to the book. One replica looks at telemetry; a replica that must know the
 * policy at once says so. */
struct decider_look {
	struct quota_loop_memory *memory;
	bool now;
	int refused; /* events that the book did not take, in the last look */
	struct err why;
	/* What the book was found to have or was told in the last look: this version of the policy, as it is in force at this time. */
	int64_t policy_version, policy_at_ns;
};
MUST_CHECK bool decider_tick(struct decider_look *l, struct db *db, struct quota_log *log, struct turn_result *ret,
                             struct err *err);
/* A request that this turn decided, without reading its row. */
bool turn_result_view(const struct turn_result *r, const struct desk_item *i, struct decision_view *ret);

#endif
