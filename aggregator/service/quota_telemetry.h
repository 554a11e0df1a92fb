/* aggregator/service/quota_telemetry.h - the closed loop of quota: telemetry against the book, run by the decider every quota-tick. */
#ifndef TOLLGATE_QUOTA_TELEMETRY_H
#define TOLLGATE_QUOTA_TELEMETRY_H

#include "aggregator/core/quota/loop/quota_loop.h"
#include "aggregator/store/store.h"
#include "common/base/digest.h"

/* State that a process keeps between two ticks, so that it need not read it again. */
struct quota_loop_memory;
struct quota_loop_memory *quota_loop_memory_new(const struct quota_settings *settings);
void quota_loop_memory_free(struct quota_loop_memory *m);

struct quota_loop_result {
	struct quota_loop_event *events; /* in the order in which the book must take them */
	size_t event_count;
	bool policy_changed;                /* the first event is the policy with this digest */
	uint8_t policy_digest[SHA256_SIZE]; /* for quota_book.policy_digest */
	int64_t policy_version;             /* of the policy that was read; 0: none was applied */
	int64_t policy_at_ns;               /* when it is in force */
	struct quota_loop_out out;          /* anomalies and idle leases to store */
	void *memory;
};
void quota_loop_result_fini(struct quota_loop_result *r);

/* Reads only, and needs no lock of the book: an event about a book that has changed meanwhile is still right, or refused by the engine with a
 * notice. policy_digest: of the policy that the book has, or NULL: it has none. */
MUST_CHECK bool quota_loop_events(struct quota_loop_memory *m, struct db *db, const struct quota_book *b,
                                  const uint8_t *policy_digest, int64_t now_ns, struct quota_loop_result *ret,
                                  struct err *err);

/* In the transaction of the events: stores anomalies that began, go on or ended, with audit entries, and idle leases. */
MUST_CHECK bool quota_loop_store(struct db *db, const struct quota_loop_result *r, int64_t now_ns, struct err *err);

/* Reads what is consumed of this month's budgets, for the next tick. It rates the month, so background.c runs it instead of the decider. */
MUST_CHECK bool quota_loop_budgets(struct quota_loop_memory *m, struct db *db, int64_t now_ns, struct err *err);

#endif
