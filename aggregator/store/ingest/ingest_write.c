/* aggregator/store/ingest/ingest_write.c - accepted records into usage_interval by COPY BINARY, slices of open hours, and the sums for counters. */
#include <endian.h>
#include <string.h>

#include "aggregator/store/ingest/ingest.h"
#include "aggregator/store/ingest/ingest_push.h"

/* --- COPY BINARY of records and slices --- */

#define COPY_CHUNK (32u << 10) /* larger chunks leave the processor's cache */
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

/* Columns in the order of COPY_SQL; wire_check has checked the ranges. */
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

/* For values >= 0: number of digits, weight of the first, sign, decimals, digits of base 10000. */
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

/* Columns in the order of SLICE_SQL. */
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

/* Sends a full chunk to the server. */
static bool
flush_chunk(struct db *db, struct buf *b, struct err *err)
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
		if (!flush_chunk(db, b, err))
			return false;
	}
	return true;
}

static bool
copy_push(const struct ingest *in, struct db *db, struct buf *b, struct err *err)
{
	for (size_t i = 0; i < in->count; i++)
		if (in->frames[i].outcome == OUTCOME_ACCEPTED && !copy_frame(in, &in->frames[i], db, b, err))
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

/* Writes the marked slices by COPY BINARY. */
static bool
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
			if (!flush_chunk(db, &b, err))
				return false;
		}
	}
	return copy_end(db, &b, err);
}

/* --- slices of open hours ---
 *
 * A stream that delivers all records of its node sums them as they arrive, and stores the sums of a slice in the
 * transaction that covers its end: neither slicing nor sealing then reads the records again.
 *
 * They stay because of tests/bench/bench_ingest.py, sealing: storing the slices and sealing from them takes 0.27 to 0.36 us of processor time a
 * record, sealing from the records 0.69 to 0.71, which is above the limit of 0.5. A push costs the same with and without, 3.4 to 3.6.
 *
 * Rules, in order:
 *  1. sums start where the node has no records yet: at the start of a slice that it had not covered, or of an hour
 *     that it had not reached. Later records of that slice lie either after the covered time or before its end (late)
 *  2. records after the covered time, of any stream, move node.covered_until_ns; late records increment node.behind.
 *     Both are read under the node's lock at each push: if they differ from this stream's last push, the sums are
 *     dropped
 *  3. sums that do not fit 64 bits, too many sums, or sums of too long a push are dropped
 *  4. a slice is stored only if the hour is open and its slices end where this one begins; any other slice is made
 *     from the records (seal.c)
 *  5. sums survive a push only if its transaction was committed (ingest_cache.c) */

#define SUMS_MAX 20000u
#define SPAN_MAX (24 * NS_PER_HOUR) /* longest push */
#define DEVICE_MAX (1u << 24)

void
slice_sums_fini(struct slice_sums *s)
{
	mem_free(s->at);
	hash_fini(&s->index);
	*s = (struct slice_sums){0};
}

static void
clear(struct slice_sums *s)
{
	s->count = 0;
	hash_clear(&s->index);
}

/* Hash of a record's stream-local numbers, which never change their meaning, and of its three enums. */
static uint64_t
key_of(const struct wire_record *r)
{
	return (uint64_t)r->device << 40 | (uint64_t)r->holder << 8 | (uint64_t)r->state << 5 |
	       (uint64_t)r->sharing << 2 | (uint64_t)r->method;
}

static struct slice_sum *
sum_of(struct slice_sums *s, const struct ingest_frame *f, size_t i)
{
	const struct wire_record *r = &f->batch->records[i];
	uint64_t key = key_of(r);
	size_t at;

	if (hash_find(&s->index, key, &at))
		return &s->at[at];
	if (r->device >= DEVICE_MAX || s->count == SUMS_MAX)
		return NULL;
	array_room(s->at, s->count, s->cap);
	hash_put(&s->index, key, s->count);
	s->at[s->count] = (struct slice_sum){.device_id = f->device_id[i],
	                                     .holder_id = f->holder_id[i],
	                                     .state = (int8_t)r->state,
	                                     .sharing = (int8_t)r->sharing,
	                                     .method = (int8_t)r->method};
	return &s->at[s->count++];
}

/* False: rule 3. A record lies within a quarter-hour, so its own products fit. */
static bool
add_record(struct slice_sums *s, const struct ingest_frame *f, size_t i)
{
	const struct wire_record *r = &f->batch->records[i];
	struct slice_sum *sum = sum_of(s, f, i);
	const int64_t amounts[SLICE_AMOUNTS] = {r->units * r->held_ns,
	                                        r->units * r->used_ns,
	                                        r->units * r->unmeasured_ns,
	                                        r->units * r->over_ns,
	                                        r->energy_mj,
	                                        r->memory_byte_ms,
	                                        r->units * r->sm_active_ns,
	                                        r->units * r->sm_measured_ns};

	if (!sum)
		return false;
	for (size_t k = 0; k < SLICE_AMOUNTS; k++)
		if (__builtin_add_overflow(sum->amount[k], amounts[k], &sum->amount[k]))
			return false;
	if (r->peak_memory_bytes > sum->peak_memory_bytes)
		sum->peak_memory_bytes = r->peak_memory_bytes;
	return true;
}

static bool
add_stretch(struct slice_sums *s, const struct ingest *in, int64_t from_ns, int64_t until_ns)
{
	for (size_t i = 0; i < in->count; i++) {
		const struct ingest_frame *f = &in->frames[i];

		if (f->outcome != OUTCOME_ACCEPTED || f->batch->to_ns <= from_ns || f->batch->from_ns >= until_ns)
			continue;
		for (size_t k = 0; k < f->batch->record_count; k++) {
			int64_t start_ns = f->batch->records[k].start_ns;

			if (start_ns >= from_ns && start_ns < until_ns && f->device_id[k] != 0 && !add_record(s, f, k))
				return false;
		}
	}
	return true;
}

/* Rule 1. */
static void
begin(struct slice_sums *s, const struct ingest *in, int64_t first_ns)
{
	int64_t hour_ns = hour_floor(&in->ledger, first_ns), past_ns;

	clear(s);
	s->begun = true;
	s->from_ns = hour_ns;
	if (in->node_had_ns <= hour_ns)
		return;
	hour_ns = hour_floor(&in->ledger, in->node_had_ns);
	past_ns = (in->node_had_ns - hour_ns) % in->slice_ns;
	s->from_ns = past_ns == 0 ? in->node_had_ns : in->node_had_ns - past_ns + in->slice_ns;
}

static void
finish(struct slice_rows *rows, const struct ingest *in, const struct slice_sums *s, int64_t hour_ns, int64_t until_ns)
{
	array_room_by_count(rows->at, rows->count);
	rows->at[rows->count] = (struct slice_row){.node_id = in->node_id,
	                                           .hour_ns = hour_ns,
	                                           .from_ns = s->from_ns,
	                                           .until_ns = until_ns,
	                                           .sums = mem_array(s->count, sizeof(*s->at)),
	                                           .count = s->count};
	for (size_t i = 0; i < s->count; i++)
		rows->at[rows->count].sums[i] = s->at[i];
	rows->count++;
}

/* Emits every slice that this push completes, an hour at a time; the rest stays in the sums. */
static bool
emit_slices(struct slice_sums *s, const struct ingest *in, int64_t covered_ns, struct slice_rows *rows)
{
	for (;;) {
		int64_t hour_ns = hour_floor(&in->ledger, s->from_ns);
		int64_t until_ns = covered_ns - (covered_ns - hour_ns) % in->slice_ns;

		if (until_ns > hour_ns + NS_PER_HOUR)
			until_ns = hour_ns + NS_PER_HOUR;
		if (until_ns <= s->from_ns)
			return add_stretch(s, in, s->from_ns, INT64_MAX);
		if (!add_stretch(s, in, s->from_ns, until_ns))
			return false;
		finish(rows, in, s, hour_ns, until_ns);
		clear(s);
		s->from_ns = until_ns;
	}
}

void
ingest_slice(struct ingest *in, struct slice_rows *rows)
{
	struct slice_sums *s = &in->slice;
	int64_t first_ns = ingest_first_ns(in), covered_ns = in->covered_until_ns;

	if (in->slice_ns == 0)
		return;
	if (covered_ns < in->node_had_ns)
		covered_ns = in->node_had_ns;
	if (s->begun && (s->covered_ns != in->node_had_ns || s->behind != in->node_behind))
		s->begun = false;
	if (!s->begun && first_ns != INT64_MAX)
		begin(s, in, first_ns);
	s->begun = s->begun && first_ns >= in->node_had_ns && covered_ns - s->from_ns <= SPAN_MAX;
	if (!s->begun)
		return;
	s->begun = emit_slices(s, in, covered_ns, rows);
	s->covered_ns = covered_ns;
	s->behind = in->node_behind;
}

void
slice_rows_fini(struct slice_rows *rows)
{
	for (size_t i = 0; i < rows->count; i++)
		mem_free(rows->at[i].sums);
	mem_free(rows->at);
}

/* --- rule 4 --- */

/* Marks the slices that their hours expect next, and returns their positions in rows. */
static bool
mark_slices(struct db *db, const struct slice_rows *rows, PGresult **ret, struct err *err)
{
	static const struct db_stmt stmt = {
		"ingest slice mark",
		"SELECT slices_mark($1::integer[], $2::timestamptz[], $3::bigint[], $4::bigint[])"};
	in_place(db_columns) struct db_columns c = {0};
	struct db_args a = {0};

	db_columns_init(&c, 4);
	for (size_t i = 0; i < rows->count; i++) {
		array_i64(&c.col[0], rows->at[i].node_id);
		array_time(&c.col[1], rows->at[i].hour_ns);
		array_i64(&c.col[2], rows->at[i].from_ns);
		array_i64(&c.col[3], rows->at[i].until_ns);
	}
	arg_columns(&a, &c);
	return db_run(db, &stmt, &a, ret, err);
}

bool
ingest_slices_store(struct db *db, struct slice_rows *rows, struct err *err)
{
	owned(result) PGresult *marked = NULL;

	if (rows->count == 0)
		return true;
	if (!mark_slices(db, rows, &marked, err))
		return false;
	for (int row = 0; row < PQntuples(marked); row++)
		rows->at[res_i64(marked, row, 0) - 1].marked = true;
	return PQntuples(marked) == 0 || ingest_copy_slices(db, rows, err);
}

/* --- sums by workspace at the hour of the record --- */

/* Start of the earliest accepted record. */
static int64_t
accepted_from(const struct ingest *in)
{
	int64_t from_ns = INT64_MAX;

	for (size_t i = 0; i < in->count; i++)
		if (in->frames[i].outcome == OUTCOME_ACCEPTED && in->frames[i].batch->from_ns < from_ns)
			from_ns = in->frames[i].batch->from_ns;
	return from_ns;
}

/* Loads the owners of all holders of the dictionary from the first record on, without an end: rules may change at any
 * hour. */
static bool
load_owners(struct ingest *in, struct err *err)
{
	static const struct db_stmt stmt = {
		"holder owners",
		"SELECT holder_id, workspace_id, ns_of(lower(effective)), ns_of(upper(effective)) FROM holder_attribution "
		"WHERE holder_id = ANY ($1::bigint[]) AND effective && tstzrange($2::timestamptz, NULL) "
		"ORDER BY holder_id, lower(effective) NULLS FIRST"};
	owned(result) PGresult *r = NULL;
	in_place(db_array) struct db_array ids = {0};
	struct dict *d = &in->dict;
	struct db_args a = {0};

	db_array_init(&ids);
	mem_free(take(d->owners));
	d->owner_count = 0;
	hash_clear(&d->owner_ids);
	d->has_owners = true;
	if (d->holder_count == 0)
		return true;
	for (size_t i = 0; i < d->holder_count; i++)
		if (d->holders[i].holder_id != 0)
			array_i64(&ids, d->holders[i].holder_id);
	arg_array(&a, &ids);
	arg_time(&a, hour_floor(&in->ledger, accepted_from(in)));
	if (!db_run(in->db, &stmt, &a, &r, err))
		return false;
	d->owners = mem_array((size_t)PQntuples(r), sizeof(*d->owners));
	for (int row = 0; row < PQntuples(r); row++) {
		size_t i = d->owner_count++;

		d->owners[i] = (struct dict_owner){
			.holder_id = res_i64(r, row, 0),
			.workspace_id = (int32_t)res_i64(r, row, 1),
			.from_ns = res_null(r, row, 2) ? INT64_MIN : res_i64(r, row, 2),
			.until_ns = res_null(r, row, 3) ? INT64_MAX : res_i64(r, row, 3),
		};
		if (i == 0 || d->owners[i - 1].holder_id != d->owners[i].holder_id)
			hash_put(&d->owner_ids, (uint64_t)d->owners[i].holder_id, i);
	}
	return true;
}

/* Attribution changes only at billing hours, and a record lies within one. */
static int32_t
owner_at(const struct dict *d, int64_t holder_id, int64_t start_ns)
{
	size_t i;

	if (holder_id == 0 || !hash_find(&d->owner_ids, (uint64_t)holder_id, &i))
		return 0;
	for (; i < d->owner_count && d->owners[i].holder_id == holder_id; i++)
		if (d->owners[i].from_ns <= start_ns && start_ns < d->owners[i].until_ns)
			return d->owners[i].workspace_id;
	return 0;
}

static void
add_frame(const struct dict *d, const struct ingest_frame *f, const int32_t *classes, struct ingest_sums *sums)
{
	for (size_t i = 0; i < f->batch->record_count; i++) {
		const struct wire_record *r = &f->batch->records[i];
		size_t device = hash_get(&d->device_ids, r->device);

		if (f->device_id[i] == 0)
			continue;
		ingest_sums_add(sums, owner_at(d, f->holder_id[i], r->start_ns),
		                classes[d->devices[device].device_class], r);
	}
}

void
ingest_sum_known(const struct ingest *in, struct ingest_sums *sums)
{
	const struct dict *d = &in->dict;
	owned(mem) int32_t *classes = mem_array(d->classes.count, sizeof(*classes));

	for (size_t i = 0; i < d->classes.count; i++) {
		const struct device_class *c = &d->classes.at[i];

		classes[i] = device_classes_find(&sums->classes, c->cluster, c->gpu_model, c->profile);
	}
	for (size_t i = 0; i < in->count; i++)
		if (in->frames[i].outcome == OUTCOME_ACCEPTED)
			add_frame(d, &in->frames[i], classes, sums);
}

bool
ingest_sum_up(struct ingest *in, struct ingest_sums *sums, struct err *err)
{
	if (!load_owners(in, err))
		return false;
	ingest_sum_known(in, sums);
	return true;
}
