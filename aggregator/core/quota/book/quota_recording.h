/* aggregator/core/quota/book/quota_recording.h - what happened to a quota book, as it was logged, and the same again.
 *
 *   {"recording":1, "state":{a book}, "state_seq":N,
 *    "events":[{"seq":N+1, "at_ns":T, "event":{...}, "outcome":{...}}, ...]}
 *
 * The state is as quota_book_write() makes it, {} for a book's beginning; events follow each other without a gap. Where an outcome
 * is recorded, what comes of the event now is held against it. Pure. */
#ifndef TOLLGATE_QUOTA_RECORDING_H
#define TOLLGATE_QUOTA_RECORDING_H

#include "aggregator/core/quota/book/quota_book.h"

#define QUOTA_RECORDING_VERSION 1
#define QUOTA_RECORDING_MAX_BYTES (1u << 30)

/* One event of it, with the book after it. */
struct quota_recorded {
	int64_t seq, at_ns;
	const struct quota_outcome *outcome;
	const struct quota_book *book;
	bool differs;
	const char *expected, *found; /* where it differs: the outcomes as JSON */
};
typedef void quota_recorded_tell(void *to, const struct quota_recorded *told);

struct quota_recording_sum {
	int64_t events, compared, differ;
};

/* Whether a text says of itself that it is one. */
bool quota_recording_is(const char *text, size_t len);

/* Every event in its order. ERR_INVALID: it is no recording, or an event of it cannot happen. */
MUST_CHECK bool quota_recording_replay(const char *name, const char *text, size_t len, quota_recorded_tell *tell,
                                       void *to, struct quota_recording_sum *ret, struct err *err);

#endif
