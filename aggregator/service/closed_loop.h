/* aggregator/service/closed_loop.h - the closed loop of quota, as whoever decides runs it every quota-tick. */
#ifndef TOLLGATE_CLOSED_LOOP_H
#define TOLLGATE_CLOSED_LOOP_H

#include "aggregator/core/quota/loop/quota_loop.h"
#include "aggregator/store/store.h"
#include "common/base/digest.h"

/* What one process remembers between two looks: what it read and need not read again. */
struct quota_loop_memory;
struct quota_loop_memory *quota_loop_memory_new(const struct quota_settings *settings);
void quota_loop_memory_free(struct quota_loop_memory *m);

struct quota_loop_result {
	struct quota_loop_event *events; /* in the order in which they are to be told */
	size_t event_count;
	bool policy_changed;                /* the first event is the policy with this digest */
	uint8_t policy_digest[SHA256_SIZE]; /* for quota_book.policy_digest */
	int64_t policy_version;             /* of the policy that was read; 0: none was applied */
	int64_t policy_at_ns;               /* when it is in force */
	struct quota_loop_out out;          /* anomalies and idle leases to store */
	void *memory;
};
void quota_loop_result_fini(struct quota_loop_result *r);

/* Reads only; may be asked before the book is locked: what it says of a book that went on meanwhile is still true, or refused by
 * the engine with a notice. policy_digest: of the policy that the book has, or NULL: it has none. */
MUST_CHECK bool quota_loop_events(struct quota_loop_memory *m, struct db *db, const struct quota_book *b,
                                  const uint8_t *policy_digest, int64_t now_ns, struct quota_loop_result *ret,
                                  struct err *err);

/* In the transaction that tells the events: anomalies that began, go on or ended with audit entries, and idle leases. */
MUST_CHECK bool quota_loop_store(struct db *db, const struct quota_loop_result *r, int64_t now_ns, struct err *err);

/* What of this month's budgets is consumed, for the next look. It reads reports, so it is not the decider's work: another thread asks for it
 * once a minute. */
MUST_CHECK bool quota_loop_budgets(struct quota_loop_memory *m, struct db *db, int64_t now_ns, struct err *err);

#endif
