/* aggregator/store/quota/decision_log.h - the inside of a replica's quota log, for the files of store/ that take turns. */
#ifndef TOLLGATE_DECISION_LOG_H
#define TOLLGATE_DECISION_LOG_H

#include <pthread.h>

#include "aggregator/core/quota/book/decision_optimistic.h"
#include "aggregator/store/db/db.h"
#include "aggregator/store/quota/decision.h"

/* What the row of the book says. */
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
	struct decision_bets bets; /* of the thread that takes turns */
};

extern const struct db_stmt quota_book_stmt, quota_events_stmt, quota_clock_stmt;
void quota_events_args(struct db_args *a, int64_t after_seq);
#define QUOTA_EVENTS_AT_ONCE 500

/* Of the one row; its digests are remembered. */
void quota_log_row(struct quota_log *l, const PGresult *r, struct book_row *ret);
/* Forgets the book: what is in memory may not be what is in the database. */
void quota_log_drop(struct quota_log *l);
/* Another server or database than the book was read from: forgets it. */
MUST_CHECK bool quota_log_same_place(struct db *db, struct quota_log *l, struct err *err);
/* The last snapshot, when nothing was read yet. */
MUST_CHECK bool quota_log_open(struct db *db, struct quota_log *l, struct err *err);
/* Applies rows of quota_events_stmt, which follow l->seq, up to an event: what was committed since is for the next time. */
MUST_CHECK bool quota_log_apply(struct quota_log *l, const PGresult *events, int64_t to_seq,
                                struct decision_rows *changed, struct err *err);
/* Reads and applies the rest up to the row. Whatever does not fit together: the book is forgotten, and ERR_RETRY. */
MUST_CHECK bool quota_log_reach(struct db *db, struct quota_log *l, const struct book_row *to,
                                struct decision_rows *changed, struct err *err);

#endif
