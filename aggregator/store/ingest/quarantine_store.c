/* aggregator/store/ingest/quarantine_store.c - batches whose content was refused, and GPUs whose records were set aside: the list, and what is in
 * one of them. */
#include <string.h>

#include "aggregator/store/ingest/ingest.h"
#include "aggregator/store/ingest/quarantine_store.h"
#include "common/conf/json.h"

#define SHOWN_MAX 100 /* devices, holders and records that are spelt out */

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

/* --- what is in a batch --- */

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

/* What was refused may be anything that a frame can carry. */
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

bool
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
	/* The members of the row, and then the others. */
	ASSERT(out->len > 0 && out->data[out->len - 1] == '}');
	out->len--;
	hex_encode(bytes.sha, sizeof(bytes.sha), hex);
	buf_printf(out, ",\"sha256\":\"%s\",\"bytes\":%zu", hex, bytes.len);
	text_member(out, "exporter_version", b->exporter_version);
	write_content(b, out);
	buf_str(out, "}\n");
	return buf_ok(out, "the batch", err);
}
