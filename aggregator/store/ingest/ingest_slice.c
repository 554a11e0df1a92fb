/* aggregator/store/ingest/ingest_slice.c - slices of open hours, summed while their records go by.
 *
 * Whoever takes in all records of a node adds them up as they come, and stores the sums of a slice in the transaction that
 * covers its end: then neither slicing nor sealing reads the records again.
 *
 * Rules, in order:
 *  1. sums begin where the node has nothing yet: at a slice's beginning that it had not covered, or at that of an hour
 *     that it had not reached. All later records of that slice come forward of what is covered, or behind it
 *  2. what comes forward, from whomever, moves node.covered_until_ns; what comes behind counts node.behind up. Both are
 *     read under the node's lock at each push: unless they are as this stream's last push left them, the sums are dropped
 *  3. sums that do not fit 64 bits, or are too many, or of too long a push, are dropped
 *  4. a slice is stored only if the hour is open and its slices end where this one begins; a slice that is not stored, for
 *     whatever reason, is made from the records (rollup.c)
 *  5. sums are kept between pushes only if the transaction was committed (ingest_cache.c) */
#include "aggregator/store/ingest/ingest_push.h"

#define SUMS_MAX 20000u
#define SPAN_MAX (24 * NS_PER_HOUR) /* of one push */
#define DEVICE_MAX (1u << 24)

void
slice_sums_fini(struct slice_sums *s)
{
	mem_free(s->at);
	idmap_fini(&s->index);
	*s = (struct slice_sums){0};
}

static void
clear(struct slice_sums *s)
{
	s->count = 0;
	idmap_clear(&s->index);
}

/* A stream's own numbers, which never change what they mean, and the three words. */
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

	if (idmap_find(&s->index, key, &at))
		return &s->at[at];
	if (r->device >= DEVICE_MAX || s->count == SUMS_MAX)
		return NULL;
	if (s->count == s->cap) {
		s->cap = s->cap == 0 ? 64 : 2 * s->cap;
		s->at = mem_grow(s->at, s->cap, sizeof(*s->at));
	}
	idmap_put(&s->index, key, s->count);
	s->at[s->count] = (struct slice_sum){.device_id = f->device_id[i],
	                                     .holder_id = f->holder_id[i],
	                                     .state = (int8_t)r->state,
	                                     .sharing = (int8_t)r->sharing,
	                                     .method = (int8_t)r->method};
	return &s->at[s->count++];
}

/* False: rule 3. A record lies in a quarter-hour, so its own products fit. */
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

		if (f->fate != FATE_ACCEPTED || f->batch->to_ns <= from_ns || f->batch->from_ns >= until_ns)
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
	if ((rows->count & (rows->count - 1)) == 0)
		rows->at = mem_grow(rows->at, rows->count == 0 ? 1 : 2 * rows->count, sizeof(*rows->at));
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

/* All that this push covers to the end of a slice, an hour at a time; the rest stays. */
static bool
go_on(struct slice_sums *s, const struct ingest *in, int64_t covered_ns, struct slice_rows *rows)
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
	s->begun = go_on(s, in, covered_ns, rows);
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

/* The places of those that were marked. */
static bool
mark(struct db *db, const struct slice_rows *rows, PGresult **ret, struct err *err)
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
	if (!mark(db, rows, &marked, err))
		return false;
	for (int row = 0; row < PQntuples(marked); row++)
		rows->at[res_i64(marked, row, 0) - 1].marked = true;
	return PQntuples(marked) == 0 || ingest_copy_slices(db, rows, err);
}
