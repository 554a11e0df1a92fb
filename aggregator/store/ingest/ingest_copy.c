/* aggregator/store/ingest/ingest_copy.c - interval records into usage_interval, and slices into usage_slice, by COPY BINARY. */
#include <endian.h>
#include <string.h>

#include "aggregator/store/ingest/ingest.h"
#include "aggregator/store/ingest/ingest_push.h"

#define COPY_CHUNK (32u << 10) /* more would only be copied further from the processor */
#define COPY_SQL                                                                                 \
	"COPY usage_interval (start_ns, duration_ns, held_ns, used_ns, unmeasured_ns, over_ns, " \
	"memory_byte_ms, energy_mj, seq, stream_id, node_id, device_id, ticks, units, state, "   \
	"sharing, method, holder_id, peak_memory_bytes, sm_active_ns, sm_measured_ns) FROM STDIN BINARY"
#define COPY_COLUMNS 21
#define ROW_MAX (2 + COPY_COLUMNS * (4 + 8))
#define SLICE_SQL                                                                                               \
	"COPY usage_slice (hour, until_ns, node_id, device_id, holder_id, state, sharing, method, held, used, " \
	"unmeasured, over, energy_mj, memory_byte_ms, sm_active, sm_measured, peak_memory_bytes) FROM STDIN BINARY"
#define SLICE_COLUMNS (8 + SLICE_AMOUNTS + 1)
#define NUMERIC_DIGITS 5 /* of base 10000, in 64 bits */
#define SLICE_MAX (2 + 9 * (4 + 8) + SLICE_AMOUNTS * (4 + 8 + 2 * NUMERIC_DIGITS))
#define POSTGRES_EPOCH_S INT64_C(946684800) /* timestamptz counts from 2000 */

static uint8_t *
put16(uint8_t *p, int64_t v)
{
	uint16_t be = htobe16((uint16_t)v);

	memcpy(p, &be, sizeof(be));
	return p + sizeof(be);
}

static uint8_t *
put32(uint8_t *p, int64_t v)
{
	uint32_t be = htobe32((uint32_t)v);

	memcpy(p, &be, sizeof(be));
	return p + sizeof(be);
}

static uint8_t *
put64(uint8_t *p, int64_t v)
{
	uint64_t be = htobe64((uint64_t)v);

	memcpy(p, &be, sizeof(be));
	return p + sizeof(be);
}

/* A field is its length and its bytes. */
static uint8_t *
bigint_field(uint8_t *p, int64_t v)
{
	return put64(put32(p, 8), v);
}

static uint8_t *
integer_field(uint8_t *p, int64_t v)
{
	return put32(put32(p, 4), v);
}

static uint8_t *
smallint_field(uint8_t *p, int64_t v)
{
	return put16(put32(p, 2), v);
}

/* In the order of COPY_SQL; the ranges were checked by wire_check. */
static uint8_t *
put_row(uint8_t *p, const struct ingest *in, const struct ingest_frame *f, size_t i)
{
	const struct wire_record *r = &f->batch->records[i];

	p = put16(p, COPY_COLUMNS);
	p = bigint_field(p, r->start_ns);
	p = bigint_field(p, r->duration_ns);
	p = bigint_field(p, r->held_ns);
	p = bigint_field(p, r->used_ns);
	p = bigint_field(p, r->unmeasured_ns);
	p = bigint_field(p, r->over_ns);
	p = bigint_field(p, r->memory_byte_ms);
	p = bigint_field(p, r->energy_mj);
	p = bigint_field(p, f->seq);
	p = integer_field(p, in->stream_id);
	p = integer_field(p, in->node_id);
	p = integer_field(p, f->device_id[i]);
	p = integer_field(p, r->ticks);
	p = smallint_field(p, r->units);
	p = smallint_field(p, r->state);
	p = smallint_field(p, r->sharing);
	p = smallint_field(p, r->method);
	p = f->holder_id[i] != 0 ? bigint_field(p, f->holder_id[i]) : put32(p, -1);
	p = bigint_field(p, r->peak_memory_bytes);
	p = bigint_field(p, r->sm_active_ns);
	return bigint_field(p, r->sm_measured_ns);
}

/* Not below 0: number of digits, weight of the first, sign, decimals, digits of base 10000. */
static uint8_t *
numeric_field(uint8_t *p, int64_t v)
{
	int16_t digits[NUMERIC_DIGITS];
	int n = 0;

	for (; v > 0; v /= 10000)
		digits[n++] = (int16_t)(v % 10000);
	p = put32(p, 8 + 2 * n);
	p = put16(put16(put16(put16(p, n), n > 0 ? n - 1 : 0), 0), 0);
	while (n > 0)
		p = put16(p, digits[--n]);
	return p;
}

/* In the order of SLICE_SQL. */
static uint8_t *
put_slice(uint8_t *p, const struct slice_row *row, const struct slice_sum *s)
{
	p = put16(p, SLICE_COLUMNS);
	p = bigint_field(p, row->hour_ns / NS_PER_US - POSTGRES_EPOCH_S * (NS_PER_S / NS_PER_US));
	p = bigint_field(p, row->until_ns);
	p = integer_field(p, row->node_id);
	p = integer_field(p, s->device_id);
	p = s->holder_id != 0 ? bigint_field(p, s->holder_id) : put32(p, -1);
	p = smallint_field(p, s->state);
	p = smallint_field(p, s->sharing);
	p = smallint_field(p, s->method);
	for (size_t k = 0; k < SLICE_AMOUNTS; k++)
		p = numeric_field(p, s->amount[k]);
	return bigint_field(p, s->peak_memory_bytes);
}

/* A whole chunk goes to the server. */
static bool
pass_on(struct db *db, struct buf *b, struct err *err)
{
	if (b->len < COPY_CHUNK)
		return true;
	if (!db_copy_put(db, b->data, b->len, err))
		return false;
	buf_clear(b);
	return true;
}

static bool
copy_frame(const struct ingest *in, const struct ingest_frame *f, struct db *db, struct buf *b, struct err *err)
{
	for (size_t i = 0; i < f->batch->record_count; i++) {
		uint8_t *at;

		if (f->device_id[i] == 0)
			continue;
		at = (uint8_t *)buf_reserve(b, ROW_MAX);
		ASSERT(at != NULL);
		buf_commit(b, (size_t)(put_row(at, in, f, i) - at));
		if (!pass_on(db, b, err))
			return false;
	}
	return true;
}

static bool
copy_push(const struct ingest *in, struct db *db, struct buf *b, struct err *err)
{
	for (size_t i = 0; i < in->count; i++)
		if (in->frames[i].fate == FATE_ACCEPTED && !copy_frame(in, &in->frames[i], db, b, err))
			return false;
	return true;
}

static bool
copy_begin(struct db *db, const char *sql, struct buf *b, struct err *err)
{
	static const uint8_t head[] = "PGCOPY\n\377\r\n\0\0\0\0\0\0\0\0";

	buf_init(b, COPY_CHUNK + (ROW_MAX > SLICE_MAX ? ROW_MAX : SLICE_MAX) + sizeof(head));
	if (!db_copy_begin(db, sql, err))
		return false;
	buf_add(b, head, sizeof(head));
	return true;
}

static bool
copy_end(struct db *db, const struct buf *b, struct err *err)
{
	static const uint8_t end[] = {0xff, 0xff};

	return db_copy_put(db, b->data, b->len, err) && db_copy_put(db, end, sizeof(end), err) && db_copy_end(db, err);
}

bool
ingest_copy(struct ingest *in, struct err *err)
{
	in_place(buf) struct buf b = {0};

	return copy_begin(in->db, COPY_SQL, &b, err) && copy_push(in, in->db, &b, err) && copy_end(in->db, &b, err);
}

bool
ingest_copy_all(struct db *db, struct ingest_push *const *pushes, size_t n, struct err *err)
{
	in_place(buf) struct buf b = {0};

	if (!copy_begin(db, COPY_SQL, &b, err))
		return false;
	for (size_t i = 0; i < n; i++)
		if (!copy_push(&pushes[i]->in, db, &b, err))
			return false;
	return copy_end(db, &b, err);
}

bool
ingest_copy_slices(struct db *db, const struct slice_rows *rows, struct err *err)
{
	in_place(buf) struct buf b = {0};

	if (!copy_begin(db, SLICE_SQL, &b, err))
		return false;
	for (size_t i = 0; i < rows->count; i++) {
		const struct slice_row *row = &rows->at[i];

		for (size_t k = 0; row->marked && k < row->count; k++) {
			uint8_t *at = (uint8_t *)buf_reserve(&b, SLICE_MAX);

			ASSERT(at != NULL);
			buf_commit(&b, (size_t)(put_slice(at, row, &row->sums[k]) - at));
			if (!pass_on(db, &b, err))
				return false;
		}
	}
	return copy_end(db, &b, err);
}
