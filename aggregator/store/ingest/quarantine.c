/* aggregator/store/ingest/quarantine.c - batches in quarantine and GPUs whose records were set aside: list, content,
 * and the operator's decision. */
#include <stdio.h>
#include <string.h>

#include "aggregator/store/ingest/ingest_push.h"
#include "common/conf/json.h"

/* --- list and contents --- */

/* The columns shown for a batch, or for one GPU's records in it. */
#define QUARANTINE_COLUMNS                                                                                       \
	"q.id, q.node, q.stream_id AS stream, q.epoch, q.seq, q.last_seq, q.gpu, q.class, q.reason, "            \
	"rfc3339(at_ns(q.from_ns)) AS \"from\", rfc3339(at_ns(q.to_ns)) AS \"to\", q.records, "                  \
	"rfc3339(q.received_at) AS received, extract(epoch FROM now() - q.received_at)::bigint AS age_seconds, " \
	"coalesce(q.decision, 'open') AS decision, q.decided_by, rfc3339(q.decided_at) AS decided, q.decided_why AS why "

#define SHOWN_MAX 100 /* devices, holders and records shown in full */

bool
store_quarantine_json(struct db *db, const struct quarantine_query *q, struct buf *out, struct err *err)
{
	static const char sql[] =
		"SELECT " QUARANTINE_COLUMNS "FROM quarantine q WHERE ($1::text IS NULL OR q.node = $1) "
		"AND ($2::text IS NULL OR q.class = $2) AND ($3::text IS NULL OR coalesce(q.decision, 'open') = $3) "
		"AND ($4::bigint = 0 OR q.stream_id = $4) AND ($5::bigint = 0 OR q.id < $5) ORDER BY q.id DESC LIMIT $6::bigint + 1";
	owned(result) PGresult *r = NULL;
	struct db_args a = {0};

	arg_text(&a, q->node);
	arg_text(&a, q->klass);
	arg_text(&a, q->decision);
	arg_i64(&a, q->stream);
	arg_i64(&a, q->page.before);
	arg_i64(&a, q->page.limit);
	return db_run_text(db, sql, &a, &r, err) && res_json_page(r, "batches", q->page.limit, out, err);
}

/* --- content of a batch --- */

static void
text_member(struct buf *out, const char *name, const char *text)
{
	buf_printf(out, ",\"%s\":", name);
	json_write_string(text, out);
}

static void
write_devices(const struct wire_batch *b, struct buf *out)
{
	for (size_t i = 0; i < b->device_count && i < SHOWN_MAX; i++) {
		const struct wire_device *d = &b->devices[i];

		buf_printf(out, "%s{\"id\":%" PRIu32 ",\"gpu\":%" PRIu32, i > 0 ? "," : "", d->id, d->gpu);
		text_member(out, "uuid", d->uuid);
		text_member(out, "model", d->model);
		text_member(out, "profile", d->profile);
		buf_printf(out, ",\"units\":%" PRId64 "}", d->units);
	}
}

static void
write_holders(const struct wire_batch *b, struct buf *out)
{
	for (size_t i = 0; i < b->holder_count && i < SHOWN_MAX; i++) {
		const struct wire_holder *h = &b->holders[i];

		buf_printf(out, "%s{\"id\":%" PRIu32, i > 0 ? "," : "", h->id);
		text_member(out, "kind", wire_holder_kind_name(h->kind));
		text_member(out, "namespace", h->ns);
		text_member(out, "pod", h->pod);
		text_member(out, "slurm_job", h->slurm_job);
		text_member(out, "slurm_account", h->slurm_account);
		text_member(out, "user", h->user);
		buf_char(out, '}');
	}
}

static void
write_records(const struct wire_batch *b, struct buf *out)
{
	for (size_t i = 0; i < b->record_count && i < SHOWN_MAX; i++) {
		const struct wire_record *r = &b->records[i];

		buf_printf(out,
		           "%s{\"device\":%" PRIu32 ",\"holder\":%" PRIu32 ",\"state\":\"%s\",\"units\":%" PRId64
		           ",\"start_ns\":%" PRId64 ",\"duration_ns\":%" PRId64 ",\"held_ns\":%" PRId64
		           ",\"used_ns\":%" PRId64 ",\"unmeasured_ns\":%" PRId64 ",\"energy_mj\":%" PRId64 "}",
		           i > 0 ? "," : "", r->device, r->holder, wire_state_name(r->state), r->units, r->start_ns,
		           r->duration_ns, r->held_ns, r->used_ns, r->unmeasured_ns, r->energy_mj);
	}
}

/* The refused content may contain any bytes that a frame can carry. */
static void
write_content(const struct wire_batch *b, struct buf *out)
{
	buf_printf(out, ",\"device_count\":%zu,\"holder_count\":%zu,\"devices\":[", b->device_count, b->holder_count);
	write_devices(b, out);
	buf_str(out, "],\"holders\":[");
	write_holders(b, out);
	buf_str(out, "],\"first_records\":[");
	write_records(b, out);
	buf_char(out, ']');
}

/* gpu "": the whole batch. ERR_MISSING: no batch of that number was ever in quarantine, or no records of that GPU
 * were set aside. */
static bool
quarantine_row(struct db *db, int64_t stream, int64_t seq, const char *gpu, PGresult **ret, struct err *err)
{
	static const struct db_stmt stmt = {"quarantine row", "SELECT " QUARANTINE_COLUMNS "FROM quarantine q "
	                                                      "WHERE q.stream_id = $1 AND q.seq = $2 AND q.gpu = $3"};
	struct db_args a = {0};

	arg_i64(&a, stream);
	arg_i64(&a, seq);
	arg_text(&a, gpu);
	if (!db_run(db, &stmt, &a, ret, err))
		return false;
	if (PQntuples(*ret) > 0)
		return true;
	if (gpu[0] != '\0')
		return err_set(err, ERR_MISSING,
		               "no records of GPU %.64s in batch %" PRId64 " of stream %" PRId64 " were ever set aside",
		               gpu, seq, stream);
	return err_set(err, ERR_MISSING, "no batch %" PRId64 " of stream %" PRId64 " was ever in quarantine", seq,
	               stream);
}

bool
quarantine_payload(struct db *db, int64_t stream, int64_t seq, struct quarantine_bytes *ret, struct err *err)
{
	static const struct db_stmt stmt = {"quarantine payload",
	                                    "SELECT payload, encode(sha256, 'hex') FROM ingest_batch "
	                                    "WHERE stream_id = $1 AND seq = $2"};
	owned(result) PGresult *r = NULL;
	struct db_args a = {0};
	char hex[2 * SHA256_SIZE + 1];

	arg_i64(&a, stream);
	arg_i64(&a, seq);
	if (!db_run(db, &stmt, &a, &r, err))
		return false;
	ret->data = PQunescapeBytea((const unsigned char *)res_text(r, 0, 0), &ret->len);
	if (ret->data == NULL)
		return err_set(err, ERR_RETRY, "no memory for a batch");
	sha256(ret->data, ret->len, ret->sha);
	hex_encode(ret->sha, sizeof(ret->sha), hex);
	return strcmp(hex, res_text(r, 0, 1)) == 0 ||
	       err_set(err, ERR_FATAL,
	               "batch %" PRId64 " of stream %" PRId64 " is not what was received: its SHA-256 is %s", seq,
	               stream, hex);
}

void
quarantine_bytes_fini(struct quarantine_bytes *b)
{
	PQfreemem(b->data);
}

bool
store_quarantine_show(struct db *db, int64_t stream, int64_t seq, const char *gpu, struct buf *out, struct err *err)
{
	in_place(quarantine_bytes) struct quarantine_bytes bytes = {0};
	owned(wire_batch) struct wire_batch *b = NULL;
	owned(result) PGresult *r = NULL;
	char hex[2 * SHA256_SIZE + 1];

	if (!quarantine_row(db, stream, seq, gpu, &r, err) || !quarantine_payload(db, stream, seq, &bytes, err) ||
	    !wire_unpack(bytes.data, bytes.len, &b, err))
		return false;
	res_json_row(r, 0, out);
	/* Appends members to the row's JSON object. */
	ASSERT(out->len > 0 && out->data[out->len - 1] == '}');
	out->len--;
	hex_encode(bytes.sha, sizeof(bytes.sha), hex);
	buf_printf(out, ",\"sha256\":\"%s\",\"bytes\":%zu", hex, bytes.len);
	text_member(out, "exporter_version", b->exporter_version);
	write_content(b, out);
	buf_str(out, "}\n");
	return buf_ok(out, "the batch", err);
}

/* --- an operator's decision ---
 *
 * Rules, in order:
 *  1. the stream's row is locked, as by a push: a decision and a push wait for each other. Batches of a held node are
 *     released by approving the node
 *  2. repeating a decision changes nothing; a released batch stays released
 *  3. a batch to release is judged again (ingest_accept.c) against the ledger as it is now, with rule 3 overruled; if
 *     it is still refused, the answer says why and nothing changes. In an accepted batch only the records of the
 *     given GPU are judged, by rule 7 of ingest_accept.c
 *  4. its dictionary, records and hours are stored by the functions of a push, in one transaction with the decision
 *     and its audit entry */

#define ATTEMPTS 5

static void
release_fini(struct ingest *in)
{
	struct ingest_frame *f = in->frames;

	wire_batch_free(f->batch);
	mem_free(f->device_id);
	mem_free(f->holder_id);
	set_asides_free(f->aside, f->aside_count);
	dict_fini(&in->dict);
	mem_free(in->cluster);
}

/* Rule 1. */
static bool
lock_stream(struct ingest *in, bool release, struct err *err)
{
	static const struct db_stmt stmt = {
		"quarantine stream",
		"SELECT s.node_id, s.next_seq, s.covered_until_ns, s.cluster_id, c.name, n.held, n.name, " STREAM_HAS_ENTRIES
		" FROM stream s "
		"JOIN node n ON n.id = s.node_id JOIN cluster c ON c.id = s.cluster_id WHERE s.id = $1 "
		"FOR NO KEY UPDATE OF s"};
	owned(result) PGresult *r = NULL;
	struct db_args a = {0};

	arg_i64(&a, in->stream_id);
	if (!db_run(in->db, &stmt, &a, &r, err))
		return false;
	if (PQntuples(r) == 0)
		return err_set(err, ERR_MISSING, "there is no stream %" PRId64, in->stream_id);
	/* Held batches are released together and in order. */
	if (release && res_bool(r, 0, 5))
		return err_set(err, ERR_CONFLICT, "its node is held: tollgate node approve %s takes in what it sent",
		               res_text(r, 0, 6));
	in->node_id = res_i64(r, 0, 0);
	in->next_seq = res_i64(r, 0, 1);
	in->covered_until_ns = res_null(r, 0, 2) ? INT64_MIN : res_i64(r, 0, 2);
	in->cluster_id = res_i64(r, 0, 3);
	in->cluster = mem_strdup(res_text(r, 0, 4));
	in->has_entries = res_bool(r, 0, 7);
	return true;
}

static bool
load_frame(struct ingest *in, const struct quarantine_bytes *bytes, int64_t seq, int64_t last_seq, struct err *err)
{
	struct ingest_frame *f = in->frames;

	f->payload = bytes->data;
	f->len = bytes->len;
	f->seq = seq;
	f->last_seq = last_seq;
	memcpy(f->sha, bytes->sha, sizeof(f->sha));
	return wire_unpack(bytes->data, bytes->len, &f->batch, err);
}

static bool
write_decision(struct db *db, const struct quarantine_decision *d, const char *status, struct err *err)
{
	static const struct db_stmt stmt = {
		"quarantine decide",
		"WITH was AS (SELECT status, decision FROM ingest_batch WHERE stream_id = $1 AND seq = $2), "
		"done AS (UPDATE ingest_batch b SET status = $3, decision = $4, decided_by = $5, decided_at = now(), "
		"decided_why = $6 WHERE b.stream_id = $1 AND b.seq = $2 RETURNING b.*) "
		"INSERT INTO audit_log (actor, action, subject, before, after, reason) "
		"SELECT $5, CASE WHEN $4 = 'released' THEN 'quarantine.release' ELSE 'quarantine.discard' END, "
		"'batch ' || d.seq || ' of node ' || n.name || ', epoch ' || s.epoch, "
		"jsonb_build_object('status', was.status, 'decision', coalesce(was.decision, 'open'), 'class', d.class, "
		"'refused', d.reason), jsonb_build_object('status', d.status, 'decision', d.decision, 'stream', d.stream_id, "
		"'records', d.records, 'from', rfc3339(at_ns(d.from_ns)), 'to', rfc3339(at_ns(d.to_ns)), 'sha256', "
		"encode(d.sha256, 'hex')), $6 FROM done d, was, stream s JOIN node n ON n.id = s.node_id "
		"WHERE s.id = d.stream_id"};
	struct db_args a = {0};

	arg_i64(&a, d->stream);
	arg_i64(&a, d->seq);
	arg_text(&a, status);
	arg_text(&a, d->release ? "released" : "discarded");
	arg_text(&a, d->actor);
	arg_text(&a, d->why);
	return db_run(db, &stmt, &a, NULL, err);
}

static bool
write_gpu_decision(struct db *db, const struct quarantine_decision *d, struct err *err)
{
	static const struct db_stmt stmt = {
		"quarantine decide gpu",
		"WITH was AS (SELECT decision FROM batch_set_aside WHERE stream_id = $1 AND seq = $2 AND gpu = $3), "
		"done AS (UPDATE batch_set_aside a SET decision = $4, decided_by = $5, decided_at = now(), decided_why = $6 "
		"WHERE a.stream_id = $1 AND a.seq = $2 AND a.gpu = $3 RETURNING a.*) "
		"INSERT INTO audit_log (actor, action, subject, before, after, reason) "
		"SELECT $5, CASE WHEN $4 = 'released' THEN 'quarantine.release' ELSE 'quarantine.discard' END, "
		"'GPU ' || d.gpu || ' in batch ' || d.seq || ' of node ' || n.name || ', epoch ' || s.epoch, "
		"jsonb_build_object('decision', coalesce(was.decision, 'open'), 'class', d.class, 'refused', d.reason), "
		"jsonb_build_object('decision', d.decision, 'stream', d.stream_id, 'records', d.records, "
		"'from', rfc3339(at_ns(d.from_ns)), 'to', rfc3339(at_ns(d.to_ns))), $6 FROM done d, was, stream s "
		"JOIN node n ON n.id = s.node_id WHERE s.id = d.stream_id"};
	struct db_args a = {0};

	arg_i64(&a, d->stream);
	arg_i64(&a, d->seq);
	arg_text(&a, d->gpu);
	arg_text(&a, d->release ? "released" : "discarded");
	arg_text(&a, d->actor);
	arg_text(&a, d->why);
	return db_run(db, &stmt, &a, NULL, err);
}

/* Rules 3 and 4. */
static bool
release(struct ingest *in, const struct quarantine_decision *d, struct ingest_result *ret, struct err *err)
{
	struct ingest_frame *f = in->frames;

	if (!db_ledger_get(in->db, &in->ledger, err) || !dict_load(in, err) || !ingest_judge(in, f, err))
		return false;
	if (f->outcome == OUTCOME_QUARANTINED)
		return err_set(err, ERR_CONFLICT, "it cannot be released: %s", f->reason.text);
	if (in->only_gpu && f->aside_count > 0)
		return err_set(err, ERR_CONFLICT, "it cannot be released: %.400s", f->aside[0].reason);
	if (f->counted > 0 &&
	    (!ingest_partitions(in, err) || !ingest_copy(in, err) || !ingest_sum_up(in, &ret->sums, err)))
		return false;
	if (!ingest_move_cursor(in, in->next_seq, err))
		return false;
	if (in->only_gpu ? !write_gpu_decision(in->db, d, err)
	                 : !write_decision(in->db, d, f->outcome == OUTCOME_LOSS ? "loss" : "accepted", err) ||
	                           !ingest_set_aside_store(in, f, err))
		return false;
	ret->batches = f->outcome == OUTCOME_ACCEPTED && !in->only_gpu;
	ret->records = f->counted;
	ret->lost = f->outcome == OUTCOME_LOSS ? f->last_seq - f->seq + 1 : 0;
	return true;
}

static bool
decide(struct ingest *in, const struct quarantine_decision *d, struct ingest_result *ret, struct buf *out,
       struct err *err)
{
	in_place(db_tx) struct db_tx tx = {0};
	in_place(quarantine_bytes) struct quarantine_bytes bytes = {0};
	owned(result) PGresult *was = NULL, *is = NULL;
	const char *decision;

	if (!db_tx_begin(&tx, in->db, err) || !lock_stream(in, d->release, err) ||
	    !quarantine_row(in->db, d->stream, d->seq, d->gpu, &was, err))
		return false;
	decision = res_text(was, 0, PQfnumber(was, "decision"));
	if (!d->release && strcmp(decision, "released") == 0)
		return err_set(err, ERR_CONFLICT, "it was released by %s at %s, and its records are in the ledger",
		               res_text(was, 0, PQfnumber(was, "decided_by")),
		               res_text(was, 0, PQfnumber(was, "decided")));
	if (strcmp(decision, d->release ? "released" : "discarded") != 0) {
		if (!d->release && !(in->only_gpu ? write_gpu_decision(in->db, d, err)
		                                  : write_decision(in->db, d, "quarantined", err)))
			return false;
		if (d->release && (!quarantine_payload(in->db, d->stream, d->seq, &bytes, err) ||
		                   !load_frame(in, &bytes, d->seq, res_i64(was, 0, PQfnumber(was, "last_seq")), err) ||
		                   !release(in, d, ret, err)))
			return false;
	}
	if (!quarantine_row(in->db, d->stream, d->seq, d->gpu, &is, err) || !db_tx_commit(&tx, err))
		return false;
	res_json_row(is, 0, out);
	buf_char(out, '\n');
	return buf_ok(out, "the batch", err);
}

bool
store_quarantine_decide(struct db *db, const struct quarantine_decision *d, struct ingest_result *ret, struct buf *out,
                        struct err *err)
{
	*ret = (struct ingest_result){0};
	/* A push may introduce the same holder or claim the same GPU at the same moment. */
	for (int attempt = 1;; attempt++) {
		struct ingest_frame frame = {0};
		in_place(release) struct ingest in = {.db = db,
		                                      .now_ns = d->now_ns,
		                                      .stream_id = d->stream,
		                                      .overruled = true,
		                                      .only_gpu = d->gpu[0] != '\0' ? d->gpu : NULL,
		                                      .frames = &frame,
		                                      .count = 1};

		if (decide(&in, d, ret, out, err))
			return true;
		ingest_result_fini(ret);
		*ret = (struct ingest_result){0};
		if (attempt == ATTEMPTS || !db_contended(db))
			return err_prefix(err, "batch %" PRId64 " of stream %" PRId64, d->seq, d->stream);
	}
}
