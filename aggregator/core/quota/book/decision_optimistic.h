/* aggregator/core/quota/book/decision_optimistic.h - when a replica may decide without the lock of the book's row.
 *
 * A replica whose book is up to date need not lock the book's row before it decides: it assumes that no other replica has decided since, and
 * the transaction that writes the decision is refused when one has. That saves a round trip; an optimistic commit that fails costs reading
 * the book anew. So it is tried only where it is likely to succeed: other replicas are quiet, no request came before, and none failed a
 * moment ago.
 *
 * It stays because of tests/bench/bench_decide.py: without it a decision of one client takes 2.2 round trips to the database in place of 1.2, and 38 %
 * more processor time of aggregator and server together; with 64 clients, who share turns, 9 %.
 *
 * Pure: times are arguments, on this machine's boot clock unless they are said to be the database's. */
#ifndef TOLLGATE_DECISION_OPTIMISTIC_H
#define TOLLGATE_DECISION_OPTIMISTIC_H

#include "aggregator/core/quota/engine/quota.h"

/* All pauses follow from quiet_ns, the time for which no other replica must have decided (0: always allowed). After a failure none is tried for a
 * part of it, and twice as long after the next one, up to a multiple; after as long a time without one the pause is the shortest again. */
#define OPTIMISTIC_PAUSE_MIN_PART 5
#define OPTIMISTIC_PAUSE_MAX_TIMES 12
#define OPTIMISTIC_CLOCK_MAX_NS (30 * NS_PER_S) /* the offset of the database's clock is trusted for this long */

#define OPTIMISTIC_RECENT 65536u /* a power of two */
struct decision_optimistic {
	int64_t quiet_ns;
	uint64_t recent
		[OPTIMISTIC_RECENT]; /* hashes of decided ids, each in its slot; a later one replaces an earlier */
	int64_t others_ns;           /* when a decision of another replica was last seen */
	int64_t lost_ns, pause_ns;   /* the last failure, and the pause after it; 0: none */
	/* The database's clock less this machine's, and when that was last seen to be so. */
	bool has_clock;
	int64_t clock_ns, clock_seen_ns;
};

/* Ids that have a decision now. */
void optimistic_decided(struct decision_optimistic *b, const struct quota_outcome *o);
/* An id that turned out to have a decision, from before this program started or long ago: an optimistic commit with it would fail. */
void optimistic_remember(struct decision_optimistic *b, const char *id);
/* Whether a request of this id may have been decided before. One that was decided long ago, or before this program started, is not known. */
bool optimistic_knows(const struct decision_optimistic *b, const char *id);

void optimistic_others_decided(struct decision_optimistic *b, int64_t now_ns);
void optimistic_failed(struct decision_optimistic *b, int64_t now_ns);
bool optimistic_commit_allowed(const struct decision_optimistic *b, int64_t now_ns);

/* The database read its clock between these two moments. The known offset is kept as far as it can be true. */
void optimistic_clock(struct decision_optimistic *b, int64_t asked_ns, int64_t told_ns, int64_t database_ns);
/* The database's clock now; only where optimistic_commit_allowed(). */
int64_t optimistic_database_now(const struct decision_optimistic *b, int64_t now_ns);

#endif
