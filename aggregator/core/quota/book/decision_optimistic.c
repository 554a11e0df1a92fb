/* aggregator/core/quota/book/decision_optimistic.c - when a replica may decide without the lock of the book's row. */
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
optimistic_remember(struct decision_optimistic *b, const char *id)
{
	uint64_t h = hash_of(id);

	b->recent[h % OPTIMISTIC_RECENT] = h;
}

void
optimistic_decided(struct decision_optimistic *b, const struct quota_outcome *o)
{
	for (size_t i = 0; i < o->verdict_count; i++)
		optimistic_remember(b, o->verdicts[i].id);
}

bool
optimistic_knows(const struct decision_optimistic *b, const char *id)
{
	uint64_t h = hash_of(id);

	return b->recent[h % OPTIMISTIC_RECENT] == h;
}

void
optimistic_others_decided(struct decision_optimistic *b, int64_t now_ns)
{
	b->others_ns = now_ns;
}

void
optimistic_failed(struct decision_optimistic *b, int64_t now_ns)
{
	int64_t most_ns = b->quiet_ns * OPTIMISTIC_PAUSE_MAX_TIMES;
	bool again = b->pause_ns > 0 && now_ns - b->lost_ns < b->pause_ns + most_ns;

	b->pause_ns = again ? 2 * b->pause_ns : b->quiet_ns / OPTIMISTIC_PAUSE_MIN_PART;
	if (b->pause_ns > most_ns)
		b->pause_ns = most_ns;
	b->lost_ns = now_ns;
}

bool
optimistic_commit_allowed(const struct decision_optimistic *b, int64_t now_ns)
{
	return b->has_clock && now_ns - b->clock_seen_ns < OPTIMISTIC_CLOCK_MAX_NS &&
	       (b->others_ns == 0 || now_ns - b->others_ns >= b->quiet_ns) &&
	       (b->pause_ns == 0 || now_ns - b->lost_ns >= b->pause_ns);
}

void
optimistic_clock(struct decision_optimistic *b, int64_t asked_ns, int64_t told_ns, int64_t database_ns)
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
optimistic_database_now(const struct decision_optimistic *b, int64_t now_ns)
{
	return now_ns + b->clock_ns;
}
