/* aggregator/store/quota/decision_state.h - a replica's quota log and its turns from inside. For the files of this folder only. */
#ifndef TOLLGATE_DECISION_STATE_H
#define TOLLGATE_DECISION_STATE_H

#include <pthread.h>

#include "aggregator/core/quota/book/decision_optimistic.h"
#include "aggregator/store/db/db.h"
#include "aggregator/store/quota/decision.h"

/* The row of the book. */
struct book_row {
	int64_t seq, at_ns, snapshot_seq, snapshot_at_ns;
	uint8_t head[SHA256_SIZE];
	bool has_policy;
	uint8_t policy_digest[SHA256_SIZE];
};

struct quota_log {
	pthread_mutex_t lock; /* of the book, while it changes or is read */
	struct quota_book *book;
	int64_t seq, at_ns;
	uint8_t head[SHA256_SIZE];
	int64_t server_started_us, database; /* where this was read */
	int64_t disagreements;
	bool has_policy; /* as the row last said */
	uint8_t policy_digest[SHA256_SIZE];
	struct decision_optimistic optimistic; /* of the thread that takes turns */
};

extern const struct db_stmt quota_book_stmt, quota_events_stmt, quota_clock_stmt;
void quota_events_args(struct db_args *a, int64_t after_seq);
#define QUOTA_EVENTS_AT_ONCE 500

/* Of the one row; its digests are remembered. */
void quota_log_row(struct quota_log *l, const PGresult *r, struct book_row *ret);
/* Forgets the book: memory and database may differ. */
void quota_log_drop(struct quota_log *l);
/* Another server or database than the book was read from: forgets it. */
MUST_CHECK bool quota_log_same_place(struct db *db, struct quota_log *l, struct err *err);
/* The last snapshot, when nothing was read yet. */
MUST_CHECK bool quota_log_open(struct db *db, struct quota_log *l, struct err *err);
/* Applies rows of quota_events_stmt, which follow l->seq, up to an event: events committed since are for the next time. */
MUST_CHECK bool quota_log_apply(struct quota_log *l, const PGresult *events, int64_t to_seq,
                                struct decision_rows *changed, struct err *err);
/* Reads and applies the rest up to the row. On any mismatch the book is forgotten: ERR_RETRY. */
MUST_CHECK bool quota_log_reach(struct db *db, struct quota_log *l, const struct book_row *to,
                                struct decision_rows *changed, struct err *err);

/* ---- decision_write.c: a turn as rows ------------------------------------------------------------------------------------------- */

/* Every statement of a turn finds its rows by key. A plan made while the tables were empty would read all of them for ever. */
extern const struct db_stmt turn_plans_stmt;

/* An event as it will be logged. */
struct turn_event {
	const char *actor;
	char *event, *outcome; /* the turn's */
	size_t event_len, outcome_len;
	int64_t seq;
	uint8_t hash[SHA256_SIZE];
	struct quota_outcome *told;
};

struct turn_workload {
	const char *key;
	struct decision_workload workload;
};

/* The epoch of a cluster's agents. */
struct turn_leader {
	const char *cluster, *actor;
	int64_t epoch;
	bool changed; /* by this turn */
};

struct turn_write {
	const struct book_row *row; /* as it will be */
	const struct turn_event *events;
	size_t event_count;
	const struct decision_rows *rows;
	const struct decision_ask *const *asks; /* of all that are fresh */
	size_t ask_count;
	const struct turn_workload *workloads;
	size_t workload_count;
	const struct turn_leader *leaders; /* those that are not changed too */
	size_t leader_count;
	const struct buf *snapshot; /* packed; NULL: none */
	int64_t snapshot_bytes;
};
/* Everything and COMMIT, in one round trip. */
MUST_CHECK bool turn_write(struct db_tx *tx, const struct turn_write *w, struct err *err);

/* Assumptions of an optimistic turn: the book has not changed, and the tokens are still valid. */
struct turn_expected {
	int64_t seq;
	uint8_t head[SHA256_SIZE];
	const int64_t *tokens;
	size_t token_count;
};
/* BEGIN too. ERR_CONFLICT: the assumption was wrong, and nothing was done. Returns the database's clock. */
MUST_CHECK bool turn_write_optimistic(struct db *db, const struct turn_write *w, const struct turn_expected *expected,
                                      int64_t *ret_clock_ns, struct err *err);

#endif
