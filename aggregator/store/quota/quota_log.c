/* aggregator/store/quota/quota_log.c - the quota book of this replica: read from the last snapshot and the events behind it, and kept in step with
 * other replicas.
 *
 * Rules:
 *  1. the book in memory is the state after event `seq`, and `head` is the hash of the chain there. It goes on only with events whose hashes lead
 *     from there to the head that the book's row has; otherwise, as after a failover that lost events, the book is forgotten
 *  2. it is true of one database of one server
 *  3. a transaction that was not certainly committed forgets it */
#include <string.h>

#include "aggregator/store/quota/decision_state.h"
#include "common/base/gz.h"

const struct db_stmt quota_book_stmt = {"quota_book",
                                        "SELECT seq, at_ns, encode(head, 'hex'), snapshot_seq, snapshot_at_ns, "
                                        "encode(policy_digest, 'hex') FROM quota_book"};
const struct db_stmt quota_events_stmt = {
	"quota_events",
	"SELECT seq, at_ns, actor, event, outcome FROM quota_event WHERE seq > $1 ORDER BY seq LIMIT $2"};

void
quota_events_args(struct db_args *a, int64_t after_seq)
{
	arg_i64(a, after_seq);
	arg_i64(a, QUOTA_EVENTS_AT_ONCE);
}

struct quota_log *
quota_log_new(int64_t quiet_ns)
{
	struct quota_log *l = mem_alloc(sizeof(*l));

	l->optimistic.quiet_ns = quiet_ns;
	pthread_mutex_init(&l->lock, NULL);
	return l;
}

void
quota_log_drop(struct quota_log *l)
{
	pthread_mutex_lock(&l->lock);
	quota_book_free(l->book);
	l->book = NULL;
	l->seq = l->at_ns = 0;
	memset(l->head, 0, sizeof(l->head));
	pthread_mutex_unlock(&l->lock);
}

void
quota_log_free(struct quota_log *l)
{
	if (!l)
		return;
	quota_log_drop(l);
	pthread_mutex_destroy(&l->lock);
	mem_free(l);
}

const struct quota_book *
quota_log_borrow(struct quota_log *l)
{
	pthread_mutex_lock(&l->lock);
	return l->book;
}

void
quota_log_give_back(struct quota_log *l)
{
	pthread_mutex_unlock(&l->lock);
}

const struct quota_book *
quota_log_mine(const struct quota_log *l)
{
	return l->book;
}

int64_t
quota_log_seq(struct quota_log *l)
{
	int64_t seq;

	pthread_mutex_lock(&l->lock);
	seq = l->seq;
	pthread_mutex_unlock(&l->lock);
	return seq;
}

int64_t
quota_log_disagreements(struct quota_log *l)
{
	int64_t n;

	pthread_mutex_lock(&l->lock);
	n = l->disagreements;
	pthread_mutex_unlock(&l->lock);
	return n;
}

static bool
digest_of(const PGresult *r, int col, uint8_t ret[SHA256_SIZE])
{
	return !res_null(r, 0, col) && hex_decode(res_text(r, 0, col), ret, SHA256_SIZE, NULL);
}

void
quota_log_row(struct quota_log *l, const PGresult *r, struct book_row *ret)
{
	*ret = (struct book_row){.seq = res_i64(r, 0, 0),
	                         .at_ns = res_i64(r, 0, 1),
	                         .snapshot_seq = res_i64(r, 0, 3),
	                         .snapshot_at_ns = res_i64(r, 0, 4)};
	(void)digest_of(r, 2, ret->head);
	ret->has_policy = digest_of(r, 5, ret->policy_digest);
	l->has_policy = ret->has_policy;
	memcpy(l->policy_digest, ret->policy_digest, SHA256_SIZE);
}

const uint8_t *
quota_log_policy_digest(const struct quota_log *l)
{
	return l->has_policy ? l->policy_digest : NULL;
}

bool
quota_log_same_place(struct db *db, struct quota_log *l, struct err *err)
{
	struct db_ledger ledger;

	if (!db_ledger_get(db, &ledger, err))
		return false;
	if (l->server_started_us != ledger.server_started_us || l->database != ledger.database)
		quota_log_drop(l);
	l->server_started_us = ledger.server_started_us;
	l->database = ledger.database;
	return true;
}

/* ---- reading ----------------------------------------------------------------------------------------------------------------- */

static bool
expand(const PGresult *r, struct buf *out, struct err *err)
{
	size_t n = (size_t)PQgetlength(r, 0, 3) / 2;
	owned(mem) uint8_t *packed = mem_alloc(n + 1);

	return hex_decode(res_text(r, 0, 3), packed, n, err) && gz_expand(packed, n, out, err);
}

bool
quota_log_open(struct db *db, struct quota_log *l, struct err *err)
{
	static const struct db_stmt stmt = {
		"quota_snapshot_last",
		"SELECT seq, at_ns, encode(head, 'hex'), encode(state, 'hex') FROM quota_snapshot "
		"ORDER BY seq DESC LIMIT 1"};
	owned(quota_book) struct quota_book *book = NULL;
	owned(result) PGresult *r = NULL;
	in_place(buf) struct buf state = {.max = QUOTA_BOOK_MAX_BYTES};
	uint8_t head[SHA256_SIZE] = {0};
	bool found;

	if (l->book)
		return true;
	if (!db_run(db, &stmt, NULL, &r, err))
		return false;
	found = PQntuples(r) == 1;
	if (found && (!expand(r, &state, err) || !hex_decode(res_text(r, 0, 2), head, sizeof(head), err)))
		return err_prefix(err, "quota snapshot %s", res_text(r, 0, 0));
	if (!found)
		buf_str(&state, "{}");
	if (!quota_book_open(buf_text(&state), state.len, &book, err)) {
		err->kind = ERR_FATAL;
		return err_prefix(err, "quota snapshot");
	}
	pthread_mutex_lock(&l->lock);
	l->book = take(book);
	l->seq = found ? res_i64(r, 0, 0) : 0;
	l->at_ns = found ? res_i64(r, 0, 1) : 0;
	memcpy(l->head, head, sizeof(head));
	pthread_mutex_unlock(&l->lock);
	return true;
}

static void
add_changes(struct decision_rows *changed, const struct quota_log_entry *e, const struct quota_outcome *o)
{
	struct decision_moment m = {.seq = e->seq, .at_ns = e->at_ns, .actor = "another replica"};
	owned(json) json_t *doc = NULL;
	in_place(decision_cause) struct decision_cause cause = {0};

	if (!json_parse("event", e->event, e->event_len, &doc, NULL))
		return;
	decision_cause_of(doc, &cause);
	decision_rows_add(changed, &m, &cause, o);
}

/* With the lock. */
static bool
apply_one(struct quota_log *l, const struct quota_log_entry *e, struct decision_rows *changed, struct err *err)
{
	owned(quota_outcome) struct quota_outcome *o = NULL;
	in_place(buf) struct buf told = {.max = QUOTA_EVENT_MAX_BYTES};

	if (e->seq != l->seq + 1)
		return err_set(err, ERR_RETRY, "the quota log goes on with event %" PRId64 " after %" PRId64, e->seq,
		               l->seq);
	if (!quota_book_step(l->book, e->at_ns, e->event, e->event_len, &o, err)) {
		/* no request is at fault */
		err->kind = ERR_FATAL;
		return err_prefix(err, "event %" PRId64 " of the quota log", e->seq);
	}
	quota_book_outcome_json(l->book, o, &told);
	if (!quota_log_agrees(e, &told))
		l->disagreements++;
	quota_log_hash(l->head, e, l->head);
	l->seq = e->seq;
	l->at_ns = e->at_ns;
	optimistic_decided(&l->optimistic, o);
	if (changed)
		add_changes(changed, e, o);
	return true;
}

bool
quota_log_apply(struct quota_log *l, const PGresult *events, int64_t to_seq, struct decision_rows *changed,
                struct err *err)
{
	bool ok = true;

	pthread_mutex_lock(&l->lock);
	for (int i = 0; i < PQntuples(events) && ok && res_i64(events, i, 0) <= to_seq; i++) {
		struct quota_log_entry e = {.seq = res_i64(events, i, 0),
		                            .at_ns = res_i64(events, i, 1),
		                            .actor = res_text(events, i, 2),
		                            .event = res_text(events, i, 3),
		                            .event_len = (size_t)PQgetlength(events, i, 3),
		                            .outcome = res_text(events, i, 4),
		                            .outcome_len = (size_t)PQgetlength(events, i, 4)};

		ok = apply_one(l, &e, changed, err);
	}
	pthread_mutex_unlock(&l->lock);
	if (PQntuples(events) > 0)
		optimistic_others_decided(&l->optimistic, time_boot_ns());
	return ok;
}

bool
quota_log_reach(struct db *db, struct quota_log *l, const struct book_row *to, struct decision_rows *changed,
                struct err *err)
{
	while (l->seq < to->seq) {
		owned(result) PGresult *r = NULL;
		struct db_args a = {0};

		quota_events_args(&a, l->seq);
		if (!db_run(db, &quota_events_stmt, &a, &r, err))
			return false;
		if (PQntuples(r) == 0) {
			quota_log_drop(l);
			return err_set(err, ERR_RETRY, "the quota log ends before event %" PRId64, to->seq);
		}
		if (!quota_log_apply(l, r, to->seq, changed, err)) {
			quota_log_drop(l);
			return false;
		}
	}
	if (l->seq == to->seq && memcmp(l->head, to->head, SHA256_SIZE) == 0)
		return true;
	quota_log_drop(l);
	return err_set(err, ERR_RETRY, "the quota log is another one than this replica had read: it reads it again");
}

/* The row first: the snapshot that it names exists. */
bool
store_quota_follow(struct db *db, struct quota_log *l, struct decision_rows *changed, struct err *err)
{
	owned(result) PGresult *r = NULL;
	struct book_row row;

	if (!quota_log_same_place(db, l, err) || !quota_log_open(db, l, err) ||
	    !db_run(db, &quota_book_stmt, NULL, &r, err))
		return false;
	if (PQntuples(r) != 1)
		return err_set(err, ERR_FATAL, "the quota book has no row");
	quota_log_row(l, r, &row);
	/* far behind, and the changed rows are not needed: the last snapshot is the shorter way */
	if (!changed && row.snapshot_seq - l->seq > QUOTA_EVENTS_AT_ONCE) {
		quota_log_drop(l);
		if (!quota_log_open(db, l, err))
			return false;
	}
	/* this replica's last commit may be ahead of the row that was read */
	return l->seq > row.seq || quota_log_reach(db, l, &row, changed, err);
}

/* The lock is the session's, not a transaction's: it goes with the connection. */
bool
store_quota_looks(struct db *db, bool *ret, struct err *err)
{
	static const struct db_stmt stmt = {
		"quota_looks",
		"SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid() AND granted "
		"AND (classid, objid, objsubid) = (" DB_LOCK_LOOK ", 2)) OR pg_try_advisory_lock(" DB_LOCK_LOOK ")"};
	owned(result) PGresult *r = NULL;

	if (!db_run(db, &stmt, NULL, &r, err))
		return false;
	*ret = res_bool(r, 0, 0);
	return true;
}

const struct db_stmt quota_clock_stmt = {"quota_clock",
                                         "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint * 1000"};

bool
store_quota_clock(struct db *db, int64_t *ret_ns, struct err *err)
{
	owned(result) PGresult *r = NULL;

	if (!db_run(db, &quota_clock_stmt, NULL, &r, err))
		return false;
	*ret_ns = res_i64(r, 0, 0);
	return true;
}

/* ---- a recording: a stretch of the log that `tollgate quota simulate` replays ---------------------------------------------- */

static bool
write_state(const PGresult *r, int64_t *ret_seq, struct buf *out, struct err *err)
{
	in_place(buf) struct buf state = {0};
	size_t n;
	owned(mem) uint8_t *packed = NULL;

	buf_init(&state, QUOTA_BOOK_MAX_BYTES);
	*ret_seq = 0;
	if (PQntuples(r) == 1) {
		n = (size_t)PQgetlength(r, 0, 1) / 2;
		packed = mem_alloc(n + 1);
		if (!hex_decode(res_text(r, 0, 1), packed, n, err) || !gz_expand(packed, n, &state, err))
			return err_prefix(err, "quota snapshot %s", res_text(r, 0, 0));
		*ret_seq = res_i64(r, 0, 0);
	}
	buf_printf(out, "{\"recording\":1,\"state\":%s,\"state_seq\":%" PRId64 ",\"events\":[",
	           state.len > 0 ? buf_text(&state) : "{}", *ret_seq);
	return true;
}

static void
write_event(const PGresult *r, int i, bool first, struct buf *out)
{
	buf_printf(out, "%s\n{\"seq\":%s,\"at_ns\":%s,\"actor\":", first ? "" : ",", res_text(r, i, 0),
	           res_text(r, i, 1));
	json_write_string(res_text(r, i, 2), out);
	buf_str(out, ",\"event\":");
	buf_str(out, res_text(r, i, 3));
	buf_str(out, ",\"outcome\":");
	buf_str(out, res_text(r, i, 4));
	buf_char(out, '}');
}

bool
store_quota_recording(struct db *db, int64_t from_seq, int64_t to_seq, struct spill *out, struct err *err)
{
	static const struct db_stmt stmt = {
		"quota_snapshot_at",
		"SELECT seq, encode(state, 'hex') FROM quota_snapshot WHERE seq < $1 ORDER BY seq DESC LIMIT 1"};
	owned(result) PGresult *snapshot = NULL;
	struct db_args from = {0};
	int64_t seq;
	bool first = true, more = true;

	if (from_seq > to_seq)
		return err_set(err, ERR_INVALID, "to_seq: it is before from_seq");
	arg_i64(&from, from_seq);
	if (!db_run(db, &stmt, &from, &snapshot, err) || !write_state(snapshot, &seq, spill_buf(out), err))
		return false;
	while (more) {
		owned(result) PGresult *r = NULL;
		struct db_args a = {0};

		quota_events_args(&a, seq);
		if (!db_run(db, &quota_events_stmt, &a, &r, err))
			return false;
		more = PQntuples(r) == QUOTA_EVENTS_AT_ONCE;
		for (int i = 0; i < PQntuples(r); i++) {
			seq = res_i64(r, i, 0);
			if (seq > to_seq) {
				more = false;
				break;
			}
			write_event(r, i, first, spill_buf(out));
			first = false;
		}
		if (!spill_step(out, err))
			return false;
	}
	buf_str(spill_buf(out), "\n]}\n");
	return buf_ok(spill_buf(out), "a recording", err);
}
