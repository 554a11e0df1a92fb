/* aggregator/core/quota/book/decision_rows.h - changes of the rows of decisions and reclaims by outcomes of the quota engine; and the hash chain
 * of hashes over its log.
 *
 * Pure. The engine's state is the truth and rows follow: whatever happened, the rows that are open are the engine's waiting requests
 * and leases, in their states, and the reclaims that are open are its orders. Changes are added event by event and folded, so that a
 * transaction with many events writes each row once. */
#ifndef TOLLGATE_DECISION_ROWS_H
#define TOLLGATE_DECISION_ROWS_H

#include "aggregator/core/quota/engine/quota.h"
#include "common/base/digest.h"
#include "common/base/hash.h"
#include "common/conf/json.h"

enum decision_status {
	DECISION_SAME, /* as it was */
	DECISION_WAITING,
	DECISION_ADMITTED,
	DECISION_CONFIRMED,
	DECISION_SUSPECT,
	DECISION_ENDED,
	DECISION_REJECTED,
	DECISION_CANCELLED,
	DECISION_EXPIRED,
};
const char *decision_status_name(enum decision_status s); /* "waiting"; NULL for SAME */

enum reclaim_state {
	RECLAIM_SAME,
	RECLAIM_ORDERED,
	RECLAIM_DRAINING,
	RECLAIM_OVERDUE,
	RECLAIM_ENFORCED,
	RECLAIM_RETURNED,
	RECLAIM_CANCELLED,
};
const char *reclaim_state_name(enum reclaim_state s);

/* Times are 0 where nothing is said. */
struct decision_change {
	char id[QUOTA_ID_SIZE];
	bool fresh; /* submitted: there is no row yet */
	enum decision_status status;
	bool has_verdict;
	enum quota_decision decision, would;
	enum quota_rule rule; /* that decided: owed or borrow when admitted, else the first that was not met */
	bool warn;
	int64_t position;
	int64_t submitted_seq, verdict_seq, changed_seq, changed_ns;
	size_t verdict_at, verdict_len; /* in the outcome of verdict_seq */
	int64_t adopted_ns;             /* it ran already */
	int64_t admitted_ns, confirmed_ns, seen_ns, released_ns, ended_ns;
	const char *ended_why; /* static text */
	bool told;             /* somebody may wait for this: more than a heartbeat */
};

struct reclaim_change {
	char lease[QUOTA_ID_SIZE];
	enum reclaim_state state;
	bool made;    /* a new row; else the one that was open: only one that was ordered comes to drain */
	bool drained; /* not made, but if none was open, its scheduler drains it by itself: then it is */
	bool idle;    /* drained because it was idle */
	char for_request[QUOTA_ID_SIZE]; /* empty: drained */
	int64_t seq, at_ns;              /* of the last change */
	int64_t ordered_seq, ordered_ns, due_ns, acked_ns, ended_ns;
	const char *asked_by;
};

struct decision_rows {
	struct decision_change *decisions;
	size_t decision_count, decision_cap;
	struct reclaim_change *reclaims;
	size_t reclaim_count, reclaim_cap;
	struct hash decision_ids, reclaim_ids;
};
void decision_rows_clear(struct decision_rows *r);
void decision_rows_fini(struct decision_rows *r);

/* The parts of an event that rows depend on. */
struct decision_cause {
	enum quota_event_kind kind;
	const char **ids; /* of leases, or of the requests submitted */
	size_t id_count;
};
/* Reads it from an event's text, as core/quota/book/quota_book.h has it. The ids live as long as doc; the list is freed by fini. */
void decision_cause_of(const json_t *doc, struct decision_cause *ret);
void decision_cause_fini(struct decision_cause *c);

struct decision_moment {
	int64_t seq, at_ns;
	const char *actor; /* outlives the rows */
};
/* The actor that drains leases which were measured idle. */
#define DECISION_ACTOR_IDLE "idle"

void decision_rows_add(struct decision_rows *r, const struct decision_moment *m, const struct decision_cause *cause,
                       const struct quota_outcome *o);
/* NULL: nothing changed. */
const struct decision_change *decision_rows_of(const struct decision_rows *r, const char *id);

/* The chain: SHA-256 over the hash before, then seq and at_ns (8 bytes each, big-endian), then actor, event and outcome, each after
 * its length (8 bytes, big-endian). Zeros before the first. */
struct quota_log_entry {
	int64_t seq, at_ns;
	const char *actor, *event, *outcome;
	size_t event_len, outcome_len;
};
void quota_log_hash(const uint8_t before[SHA256_SIZE], const struct quota_log_entry *e, uint8_t ret[SHA256_SIZE]);
/* Whether the outcome now contains all of the logged one. A later release may add members to a verdict and give other advice. */
bool quota_log_agrees(const struct quota_log_entry *e, const struct buf *told);
/* Whether the outcome contains all of the logged one. Sentences may differ in another version. */
bool quota_outcome_agrees(const json_t *logged, const json_t *told);

#endif
