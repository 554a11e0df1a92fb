/* aggregator/core/quota/book/decision_optimistic.c - whether it pays to decide first and ask afterwards. */
#include "aggregator/core/quota/book/decision_optimistic.h"

#include "common/base/text.h"
#include "common/base/time.h"

/* Never 0. */
static uint64_t
hash_of(const char *id)
{
	uint64_t h = text_hash(id);

	return h ? h : 1;
}

void
bets_remember(struct decision_bets *b, const char *id)
{
	uint64_t h = hash_of(id);

	b->recent[h % BET_RECENT] = h;
}

void
bets_decided(struct decision_bets *b, const struct quota_outcome *o)
{
	for (size_t i = 0; i < o->verdict_count; i++)
		bets_remember(b, o->verdicts[i].id);
}

bool
bets_know(const struct decision_bets *b, const char *id)
{
	uint64_t h = hash_of(id);

	return b->recent[h % BET_RECENT] == h;
}

void
bets_others_decided(struct decision_bets *b, int64_t now_ns)
{
	b->others_ns = now_ns;
}

void
bets_lost(struct decision_bets *b, int64_t now_ns)
{
	int64_t most_ns = b->quiet_ns * BET_PAUSE_MAX_TIMES;
	bool again = b->pause_ns > 0 && now_ns - b->lost_ns < b->pause_ns + most_ns;

	b->pause_ns = again ? 2 * b->pause_ns : b->quiet_ns / BET_PAUSE_MIN_PART;
	if (b->pause_ns > most_ns)
		b->pause_ns = most_ns;
	b->lost_ns = now_ns;
}

bool
bets_pay(const struct decision_bets *b, int64_t now_ns)
{
	return b->has_clock && now_ns - b->clock_seen_ns < BET_CLOCK_MAX_NS &&
	       (b->others_ns == 0 || now_ns - b->others_ns >= b->quiet_ns) &&
	       (b->pause_ns == 0 || now_ns - b->lost_ns >= b->pause_ns);
}

void
bets_clock(struct decision_bets *b, int64_t asked_ns, int64_t told_ns, int64_t database_ns)
{
	int64_t least = database_ns - told_ns, most = database_ns - asked_ns;

	if (!b->has_clock || b->clock_ns < least)
		b->clock_ns = least;
	else if (b->clock_ns > most)
		b->clock_ns = most;
	b->clock_seen_ns = told_ns;
	b->has_clock = true;
}

int64_t
bets_database_now(const struct decision_bets *b, int64_t now_ns)
{
	return now_ns + b->clock_ns;
}
