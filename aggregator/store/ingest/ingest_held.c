/* aggregator/store/ingest/ingest_held.c - batches of nodes without approval: held, and stored as usage once the node
 * is approved.
 *
 * Rules, in order:
 *  1. a batch of a held node is stored as evidence with the class unapproved and its arrival time; no device, holder,
 *     service, hour or dictionary entry is made from it (ingest_accept.c)
 *  2. a node without approval has at most held_max bytes here; beyond that a push is refused, and the exporter keeps
 *     it
 *  3. once the node is approved, its batches are judged in the order of their numbers, each as of its arrival time,
 *     by the same functions as a push: the result is the same as if the node had been approved then
 *  4. a batch that begins before the oldest open month stays in quarantine: that month was billed without the node
 *  5. batches that arrive meanwhile are held behind them. The last step holds the node's lock, finds no held batch
 *     and ends the state
 *  6. a node whose batches cannot be stored does not delay other nodes
 * A step is one transaction with a few batches of one stream; any replica runs the next one. */
#include <string.h>

#include "aggregator/store/ingest/ingest.h"
#include "aggregator/store/ingest/ingest_push.h"

#define BATCHES_AT_ONCE "32"
#define BYTES_AT_ONCE "8388608"
#define THINGS_AT_ONCE 50000 /* devices, holders and records; a larger batch is stored in a step of its own */
#define ATTEMPTS 5

/* ---- a push of a held node ------------------------------------------------------------------------------------------------ */

/* The lock makes the last step of a release wait for this push, or this push for it. */
bool
ingest_held_lock(struct ingest *in, struct err *err)
{
	static const struct db_stmt stmt = {
		"held node",
		"SELECT held, held_bytes, approved_at IS NOT NULL FROM node WHERE id = $1 FOR NO KEY UPDATE"};
	owned(result) PGresult *r = NULL;
	struct db_args a = {0};

	arg_i64(&a, in->node_id);
	if (!db_run(in->db, &stmt, &a, &r, err))
		return false;
	in->held = res_bool(r, 0, 0);
	in->held_bytes = res_i64(r, 0, 1);
	in->approved = res_bool(r, 0, 2);
	return true;
}

/* Rule 2. */
bool
ingest_held_count(struct ingest *in, struct ingest_result *ret, struct err *err)
{
	static const struct db_stmt stmt = {"held bytes", "UPDATE node SET held_bytes = held_bytes + $2 WHERE id = $1"};
	struct db_args a = {0};
	int64_t bytes = 0;

	for (size_t i = 0; i < in->count; i++)
		if (in->frames[i].outcome == OUTCOME_QUARANTINED)
			bytes += (int64_t)in->frames[i].len;
	if (!in->approved && in->held_max > 0 && in->held_bytes + bytes > in->held_max) {
		ret->refusal = REFUSAL_HELD;
		return err_set(err, ERR_LIMIT,
		               "node %s waits for approval and has %" PRId64
		               " bytes of batches here, with these %" PRId64 "; the most is %" PRId64
		               ": tollgate node approve",
		               in->frames[0].batch->node, in->held_bytes, in->held_bytes + bytes, in->held_max);
	}
	arg_i64(&a, in->node_id);
	arg_i64(&a, bytes);
	return db_run(in->db, &stmt, &a, NULL, err);
}

/* ---- releasing held batches
 * ------------------------------------------------------------------------------------------------ */

struct step {
	struct ingest in;
	struct quarantine_bytes *bytes; /* of the frames */
	bool *dictionary_only;
	char *by;
	int64_t open_from_ns; /* rule 4 */
};

static void
step_fini(struct step *s)
{
	for (size_t i = 0; i < s->in.count; i++) {
		wire_batch_free(s->in.frames[i].batch);
		mem_free(s->in.frames[i].device_id);
		mem_free(s->in.frames[i].holder_id);
		set_asides_free(s->in.frames[i].aside, s->in.frames[i].aside_count);
		PQfreemem(s->bytes[i].data);
	}
	mem_free(s->in.frames);
	mem_free(s->bytes);
	mem_free(s->dictionary_only);
	mem_free(s->by);
	mem_free(s->in.cluster);
	dict_fini(&s->in.dict);
}

/* The next node and stream to release. Stream 0: the node has no held batch left; node 0: there is no such node. */
static bool
choose(struct step *s, const struct held_turn *turn, struct err *err)
{
	static const struct db_stmt stmt = {
		"held next",
		"SELECT n.id, n.approved_by, coalesce((SELECT b.stream_id FROM stream s JOIN ingest_batch b ON b.stream_id = s.id "
		"AND b.held_ns IS NOT NULL WHERE s.node_id = n.id ORDER BY b.quarantine_id LIMIT 1), 0), "
		"(SELECT coalesce(ns_of(max(p.ends_at)), 0) FROM period p WHERE p.status = 'closed') "
		"FROM node n WHERE n.held AND n.approved_at IS NOT NULL AND n.id <> ALL ($1::bigint[]) ORDER BY n.approved_at, n.id LIMIT 1"};
	struct db_array skipped;
	owned(result) PGresult *r = NULL;
	struct db_args a = {0};
	bool ok;

	db_array_init(&skipped);
	for (size_t i = 0; i < turn->count; i++)
		array_i64(&skipped, turn->skipped[i]);
	arg_array(&a, &skipped);
	ok = db_run(s->in.db, &stmt, &a, &r, err);
	db_array_fini(&skipped);
	if (!ok)
		return false;
	if (PQntuples(r) == 0)
		return true;
	s->in.node_id = res_i64(r, 0, 0);
	s->by = mem_strdup(res_text(r, 0, 1));
	s->in.stream_id = res_i64(r, 0, 2);
	s->open_from_ns = res_i64(r, 0, 3);
	return true;
}

/* Rule 5. */
static bool
finish(struct step *s, struct err *err)
{
	static const struct db_stmt stmt = {
		"held end",
		"UPDATE node n SET held = false, held_bytes = 0 WHERE n.id = $1 AND NOT EXISTS (SELECT FROM stream s "
		"JOIN ingest_batch b ON b.stream_id = s.id AND b.held_ns IS NOT NULL WHERE s.node_id = n.id)"};
	struct db_args a = {0};

	if (!ingest_held_lock(&s->in, err))
		return false;
	arg_i64(&a, s->in.node_id);
	return db_run(s->in.db, &stmt, &a, NULL, err);
}

static bool
lock_stream(struct ingest *in, struct err *err)
{
	static const struct db_stmt stmt = {
		"held stream",
		"SELECT s.next_seq, s.covered_until_ns, s.cluster_id, c.name, n.covered_until_ns, " STREAM_HAS_ENTRIES
		" FROM stream s "
		"JOIN node n ON n.id = s.node_id JOIN cluster c ON c.id = s.cluster_id WHERE s.id = $1 FOR NO KEY UPDATE OF s"};
	owned(result) PGresult *r = NULL;
	struct db_args a = {0};

	arg_i64(&a, in->stream_id);
	if (!db_run(in->db, &stmt, &a, &r, err))
		return false;
	in->next_seq = res_i64(r, 0, 0);
	in->covered_until_ns = res_null(r, 0, 1) ? INT64_MIN : res_i64(r, 0, 1);
	in->cluster_id = res_i64(r, 0, 2);
	in->cluster = mem_strdup(res_text(r, 0, 3));
	in->node_until_ns = res_null(r, 0, 4) ? INT64_MIN : res_i64(r, 0, 4);
	in->has_entries = res_bool(r, 0, 5);
	return true;
}

static bool
load(struct step *s, PGresult **ret, struct err *err)
{
	static const struct db_stmt stmt = {
		"held batches",
		"SELECT b.seq, b.last_seq, b.held_ns, b.class, b.decision IS NOT NULL FROM (SELECT x.*, sum(octet_length(x.payload)) OVER "
		"(ORDER BY x.seq) - octet_length(x.payload) AS before FROM ingest_batch x WHERE x.stream_id = $1 AND x.held_ns IS NOT NULL "
		"ORDER BY x.seq LIMIT " BATCHES_AT_ONCE ") b WHERE b.before < " BYTES_AT_ONCE " ORDER BY b.seq"};
	struct db_args a = {0};
	size_t n;

	arg_i64(&a, s->in.stream_id);
	if (!db_run(s->in.db, &stmt, &a, ret, err))
		return false;
	n = (size_t)PQntuples(*ret);
	s->in.frames = mem_array(n, sizeof(*s->in.frames));
	s->bytes = mem_array(n, sizeof(*s->bytes));
	s->dictionary_only = mem_array(n, sizeof(*s->dictionary_only));
	for (size_t i = 0, things = 0; i < n && things < THINGS_AT_ONCE; i++) {
		struct ingest_frame *f = &s->in.frames[i];

		f->seq = res_i64(*ret, (int)i, 0);
		f->last_seq = res_i64(*ret, (int)i, 1);
		s->in.count = i + 1;
		if (!quarantine_payload(s->in.db, s->in.stream_id, f->seq, &s->bytes[i], err))
			return false;
		f->payload = s->bytes[i].data;
		f->len = s->bytes[i].len;
		memcpy(f->sha, s->bytes[i].sha, sizeof(f->sha));
		if (!wire_unpack(f->payload, f->len, &f->batch, err))
			return false;
		things += f->batch->device_count + f->batch->holder_count + f->batch->record_count;
		/* A batch refused on arrival, or decided since, only introduces its dictionary. */
		s->dictionary_only[i] =
			strcmp(res_text(*ret, (int)i, 3), "unapproved") != 0 || res_bool(*ret, (int)i, 4);
	}
	return true;
}

/* Rules 3 and 4. */
static bool
judge(struct step *s, const PGresult *rows, struct err *err)
{
	char from[TIME_TEXT_SIZE], open[TIME_TEXT_SIZE];

	for (size_t i = 0; i < s->in.count; i++) {
		struct ingest_frame *f = &s->in.frames[i];
		struct err ignored;

		s->in.now_ns = res_i64(rows, (int)i, 2);
		if (!s->dictionary_only[i] && f->batch->from_ns >= s->open_from_ns) {
			if (!ingest_judge(&s->in, f, err))
				return false;
			continue;
		}
		f->outcome = OUTCOME_QUARANTINED;
		f->klass = QUARANTINE_UNAPPROVED;
		if (!s->dictionary_only[i])
			err_set(&f->reason, ERR_INVALID,
			        "covers time from %s, before the oldest open month began at %s; its node was approved later",
			        time_format(f->batch->from_ns, from), time_format(s->open_from_ns, open));
		if (!dict_note(&s->in, f->batch, &ignored, err) ||
		    (ignored.kind == ERR_NONE && !dict_save(&s->in, err)))
			return false;
	}
	return true;
}

/* Writes one audit entry per step for its decisions: verify accepts a decision only with an entry. */
static bool
write_audit(struct step *s, struct err *err)
{
	static const struct db_stmt stmt = {
		"held audit",
		"INSERT INTO audit_log (actor, action, subject, after, reason) SELECT $2, 'node.release', 'node ' || n.name, "
		"jsonb_build_object('stream', s.id, 'epoch', s.epoch, 'first', $3::bigint, 'last', $4::bigint, 'batches', $5::bigint, "
		"'taken', $6::bigint), 'its node was approved' FROM stream s JOIN node n ON n.id = s.node_id WHERE s.id = $1"};
	int64_t taken = 0;
	struct db_args a = {0};

	if (s->in.count == 0)
		return true;
	for (size_t i = 0; i < s->in.count; i++)
		taken += s->in.frames[i].outcome != OUTCOME_QUARANTINED;
	arg_i64(&a, s->in.stream_id);
	arg_text(&a, s->by);
	arg_i64(&a, s->in.frames[0].seq);
	arg_i64(&a, s->in.frames[s->in.count - 1].seq);
	arg_i64(&a, (int64_t)s->in.count);
	arg_i64(&a, taken);
	return db_run(s->in.db, &stmt, &a, NULL, err);
}

static bool
write_outcomes(struct step *s, struct err *err)
{
	static const struct db_stmt taken = {
		"held taken",
		"UPDATE ingest_batch SET held_ns = NULL, status = $3, decision = 'released', decided_by = $4, decided_at = now(), "
		"decided_why = 'its node was approved' WHERE stream_id = $1 AND seq = $2"};
	static const struct db_stmt refused = {
		"held refused",
		"UPDATE ingest_batch SET held_ns = NULL, class = $3, reason = $4 WHERE stream_id = $1 AND seq = $2"};
	static const struct db_stmt kept = {"held kept",
	                                    "UPDATE ingest_batch SET held_ns = NULL WHERE stream_id = $1 AND seq = $2"};

	for (size_t i = 0; i < s->in.count; i++) {
		const struct ingest_frame *f = &s->in.frames[i];
		const struct db_stmt *stmt = f->outcome != OUTCOME_QUARANTINED ? &taken
		                             : s->dictionary_only[i]           ? &kept
		                                                               : &refused;
		char reason[sizeof(f->reason.text)];
		struct db_args a = {0};

		memcpy(reason, f->reason.text, sizeof(reason));
		ingest_make_clean(reason);
		arg_i64(&a, s->in.stream_id);
		arg_i64(&a, f->seq);
		if (stmt == &taken) {
			arg_text(&a, f->outcome == OUTCOME_LOSS ? "loss" : "accepted");
			arg_text(&a, s->by);
		} else if (stmt == &refused) {
			arg_text(&a, quarantine_class_name(f->klass));
			arg_text(&a, reason);
		}
		if (!db_run(s->in.db, stmt, &a, NULL, err) ||
		    (f->outcome == OUTCOME_ACCEPTED && !ingest_set_aside_store(&s->in, f, err)))
			return false;
	}
	return true;
}

static bool
store_step(struct step *s, struct ingest_result *ret, struct err *err)
{
	owned(result) PGresult *rows = NULL;

	if (!lock_stream(&s->in, err) || !load(s, &rows, err) || !db_ledger_get(s->in.db, &s->in.ledger, err) ||
	    !dict_load(&s->in, err) || !judge(s, rows, err))
		return false;
	ingest_count(&s->in, ret);
	if (ret->records > 0 &&
	    (!ingest_partitions(&s->in, err) || !ingest_copy(&s->in, err) || !ingest_sum_up(&s->in, &ret->sums, err)))
		return false;
	return ingest_move_cursor(&s->in, s->in.next_seq, err) && write_outcomes(s, err) && write_audit(s, err);
}

/* *ret_node: the node of this step. */
static bool
step(struct db *db, const struct held_turn *turn, struct ingest_result *ret, bool *ret_more, int64_t *ret_node,
     struct err *err)
{
	static const struct db_stmt lock = {"held lock", "SELECT pg_try_advisory_xact_lock(" DB_LOCK_HELD ")"};
	in_place(db_tx) struct db_tx tx = {0};
	in_place(step) struct step s = {.in = {.db = db}};
	owned(result) PGresult *r = NULL;

	*ret_more = false;
	*ret_node = 0;
	if (!db_tx_begin(&tx, db, err) || !db_run(db, &lock, NULL, &r, err))
		return false;
	if (!res_bool(r, 0, 0))
		return true;
	if (!choose(&s, turn, err))
		return false;
	if (s.in.node_id == 0)
		return true;
	*ret_node = s.in.node_id;
	*ret_more = true;
	return (s.in.stream_id == 0 ? finish(&s, err) : store_step(&s, ret, err)) && db_tx_commit(&tx, err);
}

void
held_turn_fini(struct held_turn *t)
{
	mem_free(t->skipped);
	*t = (struct held_turn){0};
}

/* Rule 6. */
static void
skip_node(struct held_turn *turn, int64_t node, const struct err *err)
{
	if (turn->count == 0)
		turn->err = *err;
	turn->skipped = mem_grow(turn->skipped, turn->count + 1, sizeof(*turn->skipped));
	turn->skipped[turn->count++] = node;
}

bool
store_held_release(struct db *db, struct held_turn *turn, struct ingest_result *ret, bool *ret_more, struct err *err)
{
	int64_t node;

	*ret = (struct ingest_result){0};
	/* A push may introduce the same holder or claim the same GPU at the same moment. */
	for (int attempt = 1;; attempt++) {
		if (step(db, turn, ret, ret_more, &node, err))
			return true;
		ingest_result_fini(ret);
		*ret = (struct ingest_result){0};
		if (attempt < ATTEMPTS && db_contended(db))
			continue;
		err_prefix(err, "batches of an approved node");
		if (node == 0 || err->kind == ERR_RETRY || err->kind == ERR_UNKNOWN)
			return false;
		skip_node(turn, node, err);
		*ret_more = true;
		return true;
	}
}
