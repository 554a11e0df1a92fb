/* aggregator/store/verify/audit_replay.c - the quota log proved: its hashes, and what the engine makes of its events once more.
 *
 * Rules, in order:
 *  1. events are numbered without a hole, and the hash of each is over the hash before it and all that it says
 *  2. the engine, given the events, has the outcomes that were logged. A later release may tell more of a verdict, and give other advice: members that were not
 *     logged, and those of advice, are not compared (rule 1 has their bytes)
 *  3. a snapshot is the book after its event
 *  4. the book's row is where the log ends
 *  5. the rows of decisions are what the log says of them, where the log itself is right (audit_decision.c) */
#include <string.h>

#include "aggregator/core/quota/book/decision_rows.h"
#include "aggregator/core/quota/book/quota_book.h"
#include "aggregator/store/verify/audit_proof.h"
#include "common/base/gz.h"

#define PAGE_EVENTS 5000
#define READ_EVENTS 500
#define SHOWN_BYTES 200

struct replay {
	struct proof *p;
	struct quota_book *book; /* NULL: it cannot be replayed further, only hashed */
	int64_t seq;
	uint8_t head[SHA256_SIZE];
	bool log_is_wrong; /* by rule 1, in this page */
};

static void
replay_fini(struct replay *r)
{
	quota_book_free(r->book);
}

enum { SNAPSHOT_SEQ, SNAPSHOT_HEAD, SNAPSHOT_STATE };

static bool
snapshot_text(const PGresult *r, struct buf *out, struct err *err)
{
	size_t n = (size_t)PQgetlength(r, 0, SNAPSHOT_STATE) / 2;
	owned(mem) uint8_t *packed = mem_alloc(n + 1);

	return hex_decode(res_text(r, 0, SNAPSHOT_STATE), packed, n, err) && gz_expand(packed, n, out, err);
}

/* What is stored of a snapshot that cannot be read is a difference, not an error of this call. */
static bool
open_book(struct replay *r, int64_t seq, struct err *err)
{
	static const struct db_stmt stmt = {"audit snapshot",
	                                    "SELECT seq, encode(head, 'hex'), encode(state, 'hex') FROM quota_snapshot "
	                                    "WHERE seq <= $1 ORDER BY seq DESC LIMIT 1"};
	owned(result) PGresult *s = NULL;
	in_place(buf) struct buf state = {0};
	struct db_args a = {0};
	struct err why = {0};

	buf_init(&state, QUOTA_BOOK_MAX_BYTES);
	arg_i64(&a, seq);
	if (!db_run(r->p->db, &stmt, &a, &s, err))
		return false;
	if (PQntuples(s) == 0)
		return quota_book_open("{}", 2, &r->book, err);
	r->seq = res_i64(s, 0, SNAPSHOT_SEQ);
	if (!hex_decode(res_text(s, 0, SNAPSHOT_HEAD), r->head, SHA256_SIZE, &why) || !snapshot_text(s, &state, &why) ||
	    !quota_book_open(buf_text(&state), state.len, &r->book, &why)) {
		char what[64];

		snprintf(what, sizeof(what), "the snapshot after event %" PRId64, r->seq);
		proof_tell(r->p, "quota-snapshot", what, "a book", why.text);
	}
	return true;
}

/* Rule 3. */
static bool
check_snapshot(struct replay *r, struct err *err)
{
	static const struct db_stmt stmt = {"audit snapshot of",
	                                    "SELECT seq, encode(head, 'hex'), encode(state, 'hex') FROM quota_snapshot "
	                                    "WHERE seq = $1"};
	owned(result) PGresult *s = NULL;
	in_place(buf) struct buf state = {0}, now = {0};
	struct db_args a = {0};
	struct err why = {0};
	hash_text head;
	char what[64];

	buf_init(&state, QUOTA_BOOK_MAX_BYTES);
	buf_init(&now, QUOTA_BOOK_MAX_BYTES);
	arg_i64(&a, r->seq);
	if (!db_run(r->p->db, &stmt, &a, &s, err))
		return false;
	hex_encode(r->head, SHA256_SIZE, head);
	snprintf(what, sizeof(what), "the snapshot after event %" PRId64, r->seq);
	if (strcmp(head, res_text(s, 0, SNAPSHOT_HEAD)) != 0)
		proof_tell(r->p, "quota-snapshot", what, head, res_text(s, 0, SNAPSHOT_HEAD));
	quota_book_write(r->book, &now);
	if (!snapshot_text(s, &state, &why))
		proof_tell(r->p, "quota-snapshot", what, "a book", why.text);
	else if (state.len != now.len || memcmp(buf_text(&state), buf_text(&now), now.len) != 0)
		proof_tell(r->p, "quota-snapshot", what, "the book that the events make", "another one");
	return true;
}

/* Rule 2. An event that the engine refuses ends what can be replayed of this page. */
static void
check_outcome(struct replay *r, const struct quota_log_entry *e)
{
	owned(quota_outcome) struct quota_outcome *o = NULL;
	in_place(buf) struct buf told = {0};
	struct err why = {0};
	char what[64], expected[SHOWN_BYTES], found[SHOWN_BYTES];
	size_t from = 0;

	buf_init(&told, QUOTA_EVENT_MAX_BYTES);
	snprintf(what, sizeof(what), "event %" PRId64 " of the quota log, replayed", e->seq);
	if (!quota_book_step(r->book, e->at_ns, e->event, e->event_len, &o, &why)) {
		proof_tell(r->p, "quota-replay", what, "an event", why.text);
		quota_book_free(r->book);
		r->book = NULL;
		return;
	}
	quota_book_outcome_json(r->book, o, &told);
	if (quota_log_agrees(e, &told))
		return;
	while (from < told.len && from < e->outcome_len && told.data[from] == e->outcome[from])
		from++;
	/* from a little before they part; bytes that are no UTF-8 any more are written as such */
	from = from > 40 ? from - 40 : 0;
	snprintf(expected, sizeof(expected), "%s", from < e->outcome_len ? e->outcome + from : "");
	snprintf(found, sizeof(found), "%s", from < told.len ? buf_text(&told) + from : "");
	proof_tell(r->p, "quota-replay", what, expected, found);
}

enum { EVENT_SEQ, EVENT_AT, EVENT_ACTOR, EVENT_TEXT, EVENT_OUTCOME, EVENT_HASH, EVENT_SNAPSHOT };

/* Rule 1, then the others. The page before has told what is at or before its end. */
static bool
check_event(struct replay *r, const PGresult *rows, int row, int64_t told_seq, struct err *err)
{
	struct quota_log_entry e = {.seq = res_i64(rows, row, EVENT_SEQ),
	                            .at_ns = res_i64(rows, row, EVENT_AT),
	                            .actor = res_text(rows, row, EVENT_ACTOR),
	                            .event = res_text(rows, row, EVENT_TEXT),
	                            .event_len = (size_t)PQgetlength(rows, row, EVENT_TEXT),
	                            .outcome = res_text(rows, row, EVENT_OUTCOME),
	                            .outcome_len = (size_t)PQgetlength(rows, row, EVENT_OUTCOME)};
	bool again = e.seq <= told_seq;
	int64_t count = r->p->node.report->counts.differences;
	char what[64], number[24];
	hash_text computed;

	snprintf(what, sizeof(what), "event %" PRId64 " of the quota log", e.seq);
	snprintf(number, sizeof(number), "%" PRId64, r->seq + 1);
	quota_log_hash(r->head, &e, r->head);
	hex_encode(r->head, SHA256_SIZE, computed);
	if (!again && e.seq != r->seq + 1)
		proof_tell(r->p, "quota-log", what, number, res_text(rows, row, EVENT_SEQ));
	else if (!again && strcmp(computed, res_text(rows, row, EVENT_HASH)) != 0)
		proof_tell(r->p, "quota-log", what, res_text(rows, row, EVENT_HASH), computed);
	r->log_is_wrong |= r->p->node.report->counts.differences != count;
	/* so that one fault is told once */
	if (!hex_decode(res_text(rows, row, EVENT_HASH), r->head, SHA256_SIZE, err))
		return false;
	r->seq = e.seq;
	if (again && r->book != NULL) {
		owned(quota_outcome) struct quota_outcome *o = NULL;

		if (quota_book_step(r->book, e.at_ns, e.event, e.event_len, &o, NULL))
			return true;
		quota_book_free(r->book);
		r->book = NULL;
	}
	if (again)
		return true;
	r->p->events++;
	/* what was changed cannot be replayed */
	if (r->book != NULL && r->p->node.report->counts.differences == count)
		check_outcome(r, &e);
	return r->book == NULL || !res_bool(rows, row, EVENT_SNAPSHOT) || check_snapshot(r, err);
}

/* Rule 4, at the end of the log. */
static bool
check_row(struct replay *r, struct err *err)
{
	static const struct db_stmt stmt = {"audit book", "SELECT seq, encode(head, 'hex') FROM quota_book"};
	owned(result) PGresult *row = NULL;
	char expected[128], found[128];
	hash_text head;

	if (!db_run(r->p->db, &stmt, NULL, &row, err))
		return false;
	hex_encode(r->head, SHA256_SIZE, head);
	if (PQntuples(row) == 1 && res_i64(row, 0, 0) == r->seq && strcmp(res_text(row, 0, 1), head) == 0)
		return true;
	snprintf(expected, sizeof(expected), "%s %s", PQntuples(row) == 1 ? res_text(row, 0, 0) : "none",
	         PQntuples(row) == 1 ? res_text(row, 0, 1) : "");
	snprintf(found, sizeof(found), "%" PRId64 " %s", r->seq, head);
	proof_tell(r->p, "quota-log", "the end of the quota log", expected, found);
	return true;
}

bool
proof_events(struct proof *p, struct err *err)
{
	static const struct db_stmt stmt = {
		"audit events",
		"SELECT e.seq, e.at_ns, e.actor, e.event, e.outcome, encode(e.hash, 'hex'), EXISTS (SELECT FROM quota_snapshot s "
		"WHERE s.seq = e.seq) FROM quota_event e WHERE e.seq > $1 ORDER BY e.seq LIMIT $2"};
	in_place(replay) struct replay r = {.p = p};
	int64_t told = p->at.seq, until = told + PAGE_EVENTS;
	bool rest = true;

	if (!open_book(&r, told, err))
		return false;
	while (rest && r.seq < until) {
		owned(result) PGresult *rows = NULL;
		struct db_args a = {0};

		arg_i64(&a, r.seq);
		arg_i64(&a, READ_EVENTS);
		if (!db_run(p->db, &stmt, &a, &rows, err))
			return false;
		for (int row = 0; row < PQntuples(rows); row++)
			if (!check_event(&r, rows, row, told, err))
				return false;
		rest = PQntuples(rows) == READ_EVENTS;
	}
	p->at.seq = r.seq;
	p->more = rest;
	if (!r.log_is_wrong && !proof_decisions(p, told, r.seq, !rest, err))
		return false;
	return rest || check_row(&r, err);
}
