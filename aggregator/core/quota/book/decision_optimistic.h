/* aggregator/core/quota/book/decision_optimistic.h - whether it pays to decide first and ask afterwards.
 *
 * A replica whose book is up to date need not lock the book's row before it decides: it bets that nobody else has decided since, and the
 * transaction that writes the decision is refused when somebody has. That saves a round trip; a bet that is lost costs reading the
 * book anew. So it is made only where it is likely to be won: other replicas are quiet, no request is one that came before, and bets
 * were not lost a moment ago.
 *
 * Pure: times are given, on this machine's boot clock unless they are said to be the database's. */
#ifndef TOLLGATE_DECISION_OPTIMISTIC_H
#define TOLLGATE_DECISION_OPTIMISTIC_H

#include "aggregator/core/quota/engine/quota.h"

/* Times go by how long nobody else must have decided (quiet_ns; 0: every bet pays). After a bet that was lost none is made for a part of
 * it, and twice as long after the next one, up to a multiple; after as long a time without one it is the least again. */
#define BET_PAUSE_MIN_PART 5
#define BET_PAUSE_MAX_TIMES 12
#define BET_CLOCK_MAX_NS (30 * NS_PER_S) /* so long the database's clock is known without being read */

#define BET_RECENT 65536u /* a power of two */
struct decision_bets {
	int64_t quiet_ns;
	uint64_t recent[BET_RECENT]; /* hashes of ids that were decided, each at its place; the last one stays */
	int64_t others_ns;           /* when somebody else's decision was last seen */
	int64_t lost_ns, pause_ns;   /* the last bet that was lost, and how long none is made after it; 0: none was */
	/* The database's clock less this machine's, and when that was last seen to be so. */
	bool has_clock;
	int64_t clock_ns, clock_seen_ns;
};

/* Ids that have a decision now. */
void bets_decided(struct decision_bets *b, const struct quota_outcome *o);
/* An id that turned out to have one, given before this program started or long ago: a bet with it would be lost. */
void bets_remember(struct decision_bets *b, const char *id);
/* Whether one of this id may have been decided before. One that was decided long ago, or before this program started, is not known. */
bool bets_know(const struct decision_bets *b, const char *id);

void bets_others_decided(struct decision_bets *b, int64_t now_ns);
void bets_lost(struct decision_bets *b, int64_t now_ns);
bool bets_pay(const struct decision_bets *b, int64_t now_ns);

/* The database told its time between these two moments. What was believed is kept as far as it can be true. */
void bets_clock(struct decision_bets *b, int64_t asked_ns, int64_t told_ns, int64_t database_ns);
/* The database's clock now; only where bets pay. */
int64_t bets_database_now(const struct decision_bets *b, int64_t now_ns);

#endif
