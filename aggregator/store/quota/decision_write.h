/* aggregator/store/quota/decision_write.h - a turn of deciding as rows, for decision_turn.c alone. */
#ifndef TOLLGATE_DECISION_WRITE_H
#define TOLLGATE_DECISION_WRITE_H

#include "aggregator/store/quota/decision_log.h"

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

struct turn_write {
	const struct book_row *row; /* as it will be */
	const struct turn_event *events;
	size_t event_count;
	const struct decision_rows *rows;
	const struct decision_ask *const *asks; /* of all that are fresh */
	size_t ask_count;
	const struct turn_workload *workloads;
	size_t workload_count;
	const struct buf *snapshot; /* packed; NULL: none */
	int64_t snapshot_bytes;
};
/* Everything and COMMIT, in one round trip. */
MUST_CHECK bool turn_write(struct db_tx *tx, const struct turn_write *w, struct err *err);

/* What a bet is about: the book as it was, and tokens that hold. */
struct turn_bet {
	int64_t seq;
	uint8_t head[SHA256_SIZE];
	const int64_t *tokens;
	size_t token_count;
};
/* BEGIN too. ERR_CONFLICT: it is lost, and nothing was done. The database's clock is told. */
MUST_CHECK bool turn_write_bet(struct db *db, const struct turn_write *w, const struct turn_bet *bet,
                               int64_t *ret_clock_ns, struct err *err);

#endif
