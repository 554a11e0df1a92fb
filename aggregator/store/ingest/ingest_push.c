/* aggregator/store/ingest/ingest_push.c - stores the batches of a push exactly once and in order, in one transaction with the
 * stream's cursor.
 *
 * Rules, in order:
 *  1. corrupt frames (length, CRC, gzip, wire bytes) and frames of several streams are refused, and nothing is stored
 *  2. a token speaks for one node; a ledger that is not a demo takes nothing from a simulator
 *  3. the stream's row is locked: concurrent pushes of the stream wait here
 *  4. a number before the cursor is acknowledged again if its bytes are the same; other bytes are a mismatch
 *  5. a number after the cursor is a gap: the caller learns which one is expected
 *  6. a loss batch stands for the part of its range that is not stored yet, so it never contradicts a stored batch
 *  7. the next number is judged (ingest_accept.c); accepted, quarantined or loss, it is kept as evidence and the
 *     cursor moves
 *  8. the records are written by one COPY, their hours are touched and the slices that end in them are stored; nothing is visible
 *     before the commit */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "aggregator/store/ingest/ingest.h"
#include "aggregator/store/ingest/ingest_push.h"
#include "common/base/text.h"

#define ATTEMPTS 5

/* --- the stream --- */

static bool
select_stream(struct ingest *in, PGresult **ret, struct err *err)
{
	static const struct db_stmt stmt = {
		"stream lock",
		"SELECT s.id, s.node_id, s.next_seq, s.covered_until_ns, s.cluster_id, c.name, "
		"coalesce((SELECT max(v.id) FROM policy_version v), 0), n.held, n.covered_until_ns, " STREAM_HAS_ENTRIES
		" FROM stream s "
		"JOIN node n ON n.id = s.node_id JOIN cluster c ON c.id = s.cluster_id "
		"WHERE n.name = $1 AND s.boot_id = encode($2, 'hex')::uuid AND s.epoch = $3 FOR NO KEY UPDATE OF s"};
	const struct wire_batch *b = in->frames[0].batch;
	struct db_args a = {0};

	arg_text(&a, b->node);
	arg_bytes(&a, b->boot_id, sizeof(b->boot_id));
	arg_i64(&a, (int64_t)b->epoch);
	return db_run(in->db, &stmt, &a, ret, err);
}

static bool
create_stream(struct ingest *in, struct err *err)
{
	static const struct db_stmt node = {"node insert",
	                                    "INSERT INTO node (cluster_id, name) SELECT cluster_id, $1 FROM ledger "
	                                    "ON CONFLICT (name) DO NOTHING"};
	static const struct db_stmt stream = {
		"stream insert",
		"INSERT INTO stream (node_id, cluster_id, boot_id, epoch) SELECT n.id, k.cluster_id, encode($2, 'hex')::uuid, $3 "
		"FROM node n JOIN node_cluster k ON k.node_id = n.id AND k.effective @> now() WHERE n.name = $1 ON CONFLICT (node_id, boot_id, epoch) DO NOTHING"};
	const struct wire_batch *b = in->frames[0].batch;
	struct db_args just_name = {0}, a = {0};

	arg_text(&just_name, b->node);
	arg_text(&a, b->node);
	arg_bytes(&a, b->boot_id, sizeof(b->boot_id));
	arg_i64(&a, (int64_t)b->epoch);
	return db_run(in->db, &node, &just_name, NULL, err) && db_run(in->db, &stream, &a, NULL, err);
}

/* Rule 3. */
static bool
lock_stream(struct ingest *in, struct err *err)
{
	owned(result) PGresult *r = NULL;

	if (!select_stream(in, &r, err))
		return false;
	if (PQntuples(r) == 0) {
		PQclear(take(r));
		if (!create_stream(in, err) || !select_stream(in, &r, err))
			return false;
		if (PQntuples(r) == 0)
			return err_set(err, ERR_RETRY, "the stream's row is not there yet");
	}
	in->stream_id = res_i64(r, 0, 0);
	in->node_id = res_i64(r, 0, 1);
	in->next_seq = res_i64(r, 0, 2);
	in->covered_until_ns = res_null(r, 0, 3) ? INT64_MIN : res_i64(r, 0, 3);
	in->cluster_id = res_i64(r, 0, 4);
	mem_free(in->cluster);
	in->cluster = mem_strdup(res_text(r, 0, 5));
	in->policy_version = res_i64(r, 0, 6);
	in->held = res_bool(r, 0, 7);
	in->node_until_ns = res_null(r, 0, 8) ? INT64_MIN : res_i64(r, 0, 8);
	in->has_entries = res_bool(r, 0, 9);
	return !in->held || ingest_held_lock(in, err);
}

/* --- numbers --- */

/* Compares the frame with the batch that has its number, an earlier frame of this call or a stored batch. A number inside a
 * loss has no bytes to compare: it counts as the same. */
static bool
same_as_stored(struct ingest *in, const struct ingest_frame *f, bool *ret_same, struct err *err)
{
	static const struct db_stmt stmt = {"batch sha",
	                                    "SELECT sha256 = $3 FROM ingest_batch WHERE stream_id = $1 AND seq = $2"};
	owned(result) PGresult *r = NULL;
	struct db_args a = {0};

	for (const struct ingest_frame *g = in->frames; g < f; g++) {
		if (g->seq == f->seq && g->outcome != OUTCOME_DUPLICATE) {
			*ret_same = memcmp(g->sha, f->sha, sizeof(g->sha)) == 0;
			return true;
		}
	}
	arg_i64(&a, in->stream_id);
	arg_i64(&a, f->seq);
	arg_bytes(&a, f->sha, sizeof(f->sha));
	if (!db_run(in->db, &stmt, &a, &r, err))
		return false;
	*ret_same = PQntuples(r) == 0 || res_bool(r, 0, 0);
	return true;
}

/* Rule 4. */
static bool
check_known(struct ingest *in, const struct ingest_frame *f, struct ingest_result *ret, struct err *err)
{
	bool same = false;

	if (!same_as_stored(in, f, &same, err))
		return false;
	if (same || f->batch->kind == WIRE_LOSS)
		return true;
	ret->mismatch = true;
	ret->refusal = REFUSAL_MISMATCH;
	return err_set(err, ERR_CONFLICT, "batch %" PRId64 " of node %s, epoch %" PRIu64 ", is known with other bytes",
	               f->seq, f->batch->node, f->batch->epoch);
}

/* Rules 4 to 7 over all frames. Leaves the cursor after them in *ret_next. */
static bool
judge_frames(struct ingest *in, struct ingest_result *ret, int64_t *ret_next, struct err *err)
{
	int64_t next = in->next_seq;

	for (size_t i = 0; i < in->count; i++) {
		struct ingest_frame *f = &in->frames[i];

		if (f->batch->kind == WIRE_LOSS && f->seq < next && f->last_seq >= next)
			f->seq = next;
		if (f->seq > next) {
			ret->gap = true;
			ret->refusal = REFUSAL_GAP;
			return err_set(err, ERR_CONFLICT,
			               "node %s, epoch %" PRIu64 ": batch %" PRId64 " came, %" PRId64 " is expected",
			               f->batch->node, f->batch->epoch, f->seq, next);
		}
		if (f->seq < next) {
			if (!check_known(in, f, ret, err))
				return false;
			f->outcome = OUTCOME_DUPLICATE;
			ret->duplicates++;
			continue;
		}
		if (!ingest_judge(in, f, err))
			return false;
		next = f->last_seq + 1;
	}
	*ret_next = next;
	return true;
}

/* --- what is stored --- */

bool
ingest_partitions(struct ingest *in, struct err *err)
{
	static const struct db_stmt stmt = {"partitions", "SELECT make_partitions($1, $2)"};
	int64_t first = INT64_MAX, last = INT64_MIN;
	struct db_args a = {0};

	for (size_t i = 0; i < in->count; i++) {
		if (in->frames[i].outcome != OUTCOME_ACCEPTED)
			continue;
		if (in->frames[i].batch->from_ns < first)
			first = in->frames[i].batch->from_ns;
		if (in->frames[i].batch->to_ns > last)
			last = in->frames[i].batch->to_ns;
	}
	arg_i64(&a, first);
	arg_i64(&a, last);
	return db_run(in->db, &stmt, &a, NULL, err);
}

void
ingest_make_clean(char *text)
{
	size_t n = strlen(text);
	uint32_t code;

	for (size_t i = 0, step; i < n; i += step) {
		step = utf8_next(text + i, n - i, &code);
		if (step == 0)
			text[i] = '?', step = 1;
	}
}

static bool
store_evidence(struct ingest *in, const struct ingest_frame *f, struct err *err)
{
	static const struct db_stmt stmt = {
		"batch insert",
		"INSERT INTO ingest_batch (stream_id, seq, last_seq, status, reason, from_ns, to_ns, records, "
		"exporter_version, sha256, payload, class, held_ns, quarantine_id) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, "
		"$10, $11, $12, $13, CASE WHEN $4 = 'quarantined' THEN nextval('quarantine_id') END)"};
	static const char *const status[] = {
		[OUTCOME_ACCEPTED] = "accepted", [OUTCOME_QUARANTINED] = "quarantined", [OUTCOME_LOSS] = "loss"};
	char reason[sizeof(f->reason.text)];
	struct db_args a = {0};

	memcpy(reason, f->reason.text, sizeof(reason));
	ingest_make_clean(reason);
	arg_i64(&a, in->stream_id);
	arg_i64(&a, f->seq);
	arg_i64(&a, f->last_seq);
	arg_text(&a, status[f->outcome]);
	arg_text(&a, f->outcome == OUTCOME_QUARANTINED ? reason : "");
	arg_i64(&a, f->batch->from_ns);
	arg_i64(&a, f->batch->to_ns);
	arg_i64(&a, (int64_t)f->batch->record_count);
	arg_text(&a, text_is_clean(f->batch->exporter_version) ? f->batch->exporter_version : "");
	arg_bytes(&a, f->sha, sizeof(f->sha));
	arg_bytes(&a, f->payload, f->len);
	arg_text(&a, f->outcome == OUTCOME_QUARANTINED ? quarantine_class_name(f->klass) : NULL);
	/* A batch that breaks a rule of the format adds nothing to the dictionary, even when the node is approved. */
	if (in->held && f->klass != QUARANTINE_FORMAT)
		arg_i64(&a, in->now_ns);
	else
		arg_text(&a, NULL);
	return db_run(in->db, &stmt, &a, NULL, err) &&
	       (f->outcome != OUTCOME_ACCEPTED || ingest_set_aside_store(in, f, err));
}

static int
compare_i64(const void *a, const void *b)
{
	int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

	return (x > y) - (x < y);
}

/* The distinct billing hours of the accepted records, ascending. Consecutive records are mostly in the same hour. */
size_t
ingest_hours(const struct ingest *in, int64_t **ret)
{
	owned(mem) int64_t *hours = NULL;
	size_t n = 0, distinct = 0;

	for (size_t i = 0; i < in->count; i++) {
		const struct ingest_frame *f = &in->frames[i];

		for (size_t k = 0; f->outcome == OUTCOME_ACCEPTED && k < f->batch->record_count; k++) {
			int64_t hour = hour_floor(&in->ledger, f->batch->records[k].start_ns);

			if (f->device_id[k] == 0)
				continue;
			if (n > 0 && hours[n - 1] == hour)
				continue;
			array_room_by_count(hours, n);
			hours[n++] = hour;
		}
	}
	if (n > 0)
		qsort(hours, n, sizeof(*hours), compare_i64);
	for (size_t i = 0; i < n; i++)
		if (i == 0 || hours[i] != hours[i - 1])
			hours[distinct++] = hours[i];
	*ret = take(hours);
	return distinct;
}

/* The start of the first accepted batch; INT64_MAX: there is none. */
int64_t
ingest_first_ns(const struct ingest *in)
{
	int64_t first_ns = INT64_MAX;

	for (size_t i = 0; i < in->count; i++)
		if (in->frames[i].outcome == OUTCOME_ACCEPTED && in->frames[i].batch->from_ns < first_ns)
			first_ns = in->frames[i].batch->from_ns;
	return first_ns;
}

void
ingest_services_arg(const struct ingest *in, struct db_args *a)
{
	if (in->dict.services_read && !in->entry_locked)
		arg_i64(a, in->dict.services_seen);
	else
		arg_text(a, NULL);
}

/* Creates the node's hours from the first record to the end of its coverage, losses included. Locks the node's row: if its services have
 * changed since they were read, the push fails here and is tried again. */
bool
ingest_touch_hours(struct ingest *in, struct err *err)
{
	static const struct db_stmt stmt = {
		"hours touch",
		"SELECT t.had_ns, t.behind, services_as_read($1, $8) FROM node_hours_touch($1, $2::timestamptz[], $3, $4, $5, $6, $7) t"};
	owned(mem) int64_t *hours = NULL;
	owned(result) PGresult *r = NULL;
	size_t n = ingest_hours(in, &hours);
	int64_t last = hour_floor(&in->ledger, in->covered_until_ns - 1);
	in_place(db_array) struct db_array list = {0};
	struct db_args a = {0};

	db_array_init(&list);
	for (size_t i = 0; i < n; i++)
		array_time(&list, hours[i]);
	arg_i64(&a, in->node_id);
	arg_array(&a, &list);
	arg_time(&a, n > 0 ? hours[0] : last);
	arg_time(&a, last);
	arg_i64(&a, in->covered_until_ns);
	arg_i64(&a, ingest_first_ns(in));
	if (in->node_had)
		arg_i64(&a, in->node_had_ns);
	else
		arg_text(&a, NULL);
	ingest_services_arg(in, &a);
	if (!db_run(in->db, &stmt, &a, &r, err))
		return false;
	in->node_had = true;
	in->node_had_ns = res_null(r, 0, 0) ? INT64_MIN : res_i64(r, 0, 0);
	in->node_behind = res_i64(r, 0, 1);
	return true;
}

bool
ingest_move_cursor(struct ingest *in, int64_t next, struct err *err)
{
	static const struct db_stmt stmt = {
		"stream move",
		"UPDATE stream SET next_seq = $2, covered_until_ns = greatest(covered_until_ns, $3) WHERE id = $1"};
	in_place(slice_rows) struct slice_rows slices = {0};
	bool covered = in->covered_until_ns != INT64_MIN;
	struct db_args a = {0};

	arg_i64(&a, in->stream_id);
	arg_i64(&a, next);
	if (covered)
		arg_i64(&a, in->covered_until_ns);
	else
		arg_text(&a, NULL);
	if (covered) {
		if (!ingest_touch_hours(in, err))
			return false;
		ingest_slice(in, &slices);
	}
	return ingest_slices_store(in->db, &slices, err) && db_run(in->db, &stmt, &a, NULL, err);
}

void
ingest_count(const struct ingest *in, struct ingest_result *ret)
{
	for (size_t i = 0; i < in->count; i++) {
		const struct ingest_frame *f = &in->frames[i];

		switch (f->outcome) {
		case OUTCOME_DUPLICATE: break;
		case OUTCOME_ACCEPTED:
			ret->batches++;
			ret->records += f->counted;
			ret->set_aside += (int64_t)f->batch->record_count - f->counted;
			for (size_t k = 0; k < f->aside_count; k++) {
				ret->quarantined_by[f->aside[k].klass]++;
				snprintf(ret->quarantine_reason, sizeof(ret->quarantine_reason),
				         "batch %" PRId64 ": %.200s", f->seq, f->aside[k].reason);
				ingest_make_clean(ret->quarantine_reason);
			}
			break;
		case OUTCOME_LOSS: ret->lost += f->last_seq - f->seq + 1; break;
		case OUTCOME_QUARANTINED:
			ret->quarantined++;
			ret->quarantined_by[f->klass]++;
			snprintf(ret->quarantine_reason, sizeof(ret->quarantine_reason), "batch %" PRId64 ": %.200s",
			         f->seq, f->reason.text);
			ingest_make_clean(ret->quarantine_reason);
			break;
		}
	}
}

static bool
ingest_once(struct ingest *in, struct ingest_result *ret, struct err *err)
{
	in_place(db_tx) struct db_tx tx = {0};
	in_place(ingest_sums) struct ingest_sums sums = {0};
	int64_t next = 0;

	in->entry_locked = false;
	in->aside_read = false;
	in->node_had = false;
	if (!db_tx_begin(&tx, in->db, err) || !lock_stream(in, err))
		return false;
	ret->epoch = in->frames[0].batch->epoch;
	ret->next_seq = (uint64_t)in->next_seq;
	if (!dict_load(in, err) || !judge_frames(in, ret, &next, err))
		return false;
	if (next == in->next_seq)
		return true; /* nothing new: the transaction has only read */
	if (in->held && !ingest_held_count(in, ret, err))
		return false;
	ingest_count(in, ret);
	if (ret->records > 0 &&
	    (!ingest_partitions(in, err) || !ingest_copy(in, err) || !ingest_sum_up(in, &sums, err)))
		return false;
	for (size_t i = 0; i < in->count; i++)
		if (in->frames[i].outcome != OUTCOME_DUPLICATE && !store_evidence(in, &in->frames[i], err))
			return false;
	if (!ingest_move_cursor(in, next, err) || !db_tx_commit(&tx, err))
		return false;
	ret->next_seq = (uint64_t)next;
	ret->sums = sums;
	sums = (struct ingest_sums){0};
	return true;
}

/* Rule 2, second half. */
static bool
check_demo(const struct ingest *in, struct ingest_result *ret, struct err *err)
{
	for (size_t i = 0; i < in->count && !in->ledger.demo; i++) {
		if ((in->frames[i].batch->flags & WIRE_SIMULATED) == 0)
			continue;
		ret->simulated = true;
		ret->refusal = REFUSAL_SIMULATED;
		return err_set(err, ERR_INVALID,
		               "frame %zu was made by a simulator, and this ledger was not created as a demo", i);
	}
	return true;
}

static bool
ingest_alone(struct ingest *in, struct ingest_cache *cache, struct ingest_result *ret, struct err *err)
{
	*ret = (struct ingest_result){.refusal = REFUSAL_OTHER};
	if (!db_ledger_get(in->db, &in->ledger, err) || !check_demo(in, ret, err))
		return false;
	if (cache)
		ingest_cache_slice(cache, &in->ledger, in);
	/* Two nodes may introduce the same holder or claim the same GPU at the same moment; one of the two pushes is tried again. */
	for (int attempt = 1;; attempt++) {
		*ret = (struct ingest_result){0};
		ingest_frames_reset(in);
		if (attempt > 1)
			slice_sums_fini(&in->slice);
		if (ingest_once(in, ret, err))
			return true;
		if (ret->refusal == REFUSAL_NONE)
			ret->refusal = REFUSAL_OTHER;
		if (ret->gap || ret->mismatch || attempt == ATTEMPTS || !db_contended(in->db))
			return false;
	}
}

bool
store_ingest_push(struct db *db, struct ingest_cache *cache, struct ingest_push *p, struct ingest_result *ret,
                  struct err *err)
{
	if (p->done) {
		*ret = p->result;
		p->result = (struct ingest_result){0};
		return true;
	}
	p->in.db = db;
	if (!ingest_alone(&p->in, cache, ret, err))
		return false;
	if (cache)
		ingest_cache_learn(cache, &p->in);
	return true;
}

bool
store_ingest(struct db *db, struct ingest_cache *cache, const struct ingest_request *rq, struct ingest_result *ret,
             struct err *err)
{
	owned(ingest_push) struct ingest_push *p = NULL;

	if (!ingest_push_new(rq, &p, ret, err))
		return false;
	if (cache)
		store_ingest_group(db, cache, &p, 1);
	return store_ingest_push(db, cache, p, ret, err);
}
