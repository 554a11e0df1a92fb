/* tests/support/exporter/books.c - what batches say, added up. */
#include "tests/support/exporter/books.h"

#include <stdio.h>
#include <string.h>

#include "common/wire/frame.h"
#include "common/base/units.h"

/* Of one stream: what its ids stand for. */
struct books_dict {
	uint64_t epoch;
	size_t *gpu_of; /* by device id: place in gpus, plus 1; 0: not introduced */
	size_t device_cap;
	char (*holder)[BOOKS_LABEL]; /* by holder id; empty: not introduced */
	size_t holder_cap;
};

void
books_init(struct books *b)
{
	*b = (struct books){.dict = mem_alloc(sizeof(*b->dict))};
}

static void
dict_clear(struct books_dict *d)
{
	mem_free(d->gpu_of);
	mem_free(d->holder);
	*d = (struct books_dict){0};
}

void
books_fini(struct books *b)
{
	dict_clear(b->dict);
	mem_free(b->dict);
	mem_free(b->gpus);
	mem_free(b->cells);
	mem_free(b->batches);
}

/* ---- dictionary ---- */

static size_t
find_gpu(struct books *b, const char *uuid)
{
	for (size_t i = 0; i < b->gpu_count; i++)
		if (strcmp(b->gpus[i].uuid, uuid) == 0)
			return i;
	b->gpus = mem_grow(b->gpus, b->gpu_count + 1, sizeof(*b->gpus));
	b->gpus[b->gpu_count] = (struct book_gpu){0};
	snprintf(b->gpus[b->gpu_count].uuid, BOOKS_LABEL, "%s", uuid);
	return b->gpu_count++;
}

static void
learn_device(struct books *b, const struct wire_device *device)
{
	struct books_dict *d = b->dict;
	size_t cap = device->id < d->device_cap ? d->device_cap : device->id + 64;

	if (cap > d->device_cap) {
		d->gpu_of = mem_grow(d->gpu_of, cap, sizeof(*d->gpu_of));
		memset(d->gpu_of + d->device_cap, 0, (cap - d->device_cap) * sizeof(*d->gpu_of));
		d->device_cap = cap;
	}
	/* a GPU comes before its instances */
	d->gpu_of[device->id] = device->id == device->gpu     ? find_gpu(b, device->uuid) + 1
	                        : device->gpu < d->device_cap ? d->gpu_of[device->gpu]
	                                                      : 0;
}

static void
learn_holder(struct books_dict *d, const struct wire_holder *h)
{
	size_t cap = h->id < d->holder_cap ? d->holder_cap : h->id + 64;
	char *to;

	if (cap > d->holder_cap) {
		d->holder = mem_grow(d->holder, cap, sizeof(*d->holder));
		memset(d->holder + d->holder_cap, 0, (cap - d->holder_cap) * sizeof(*d->holder));
		d->holder_cap = cap;
	}
	to = d->holder[h->id];
	if (h->kind == WIRE_POD)
		snprintf(to, BOOKS_LABEL, "pod/%s/%s", h->ns, h->pod);
	else if (h->kind == WIRE_SLURM_JOB)
		snprintf(to, BOOKS_LABEL, "slurm/%s/%" PRId64, h->slurm_job, h->uid);
	else
		snprintf(to, BOOKS_LABEL, "user/%" PRId64, h->uid);
}

static void
learn(struct books *b, const struct wire_batch *batch)
{
	if (b->dict->epoch != batch->epoch) {
		dict_clear(b->dict);
		b->dict->epoch = batch->epoch;
		b->stream_count++;
	}
	for (size_t i = 0; i < batch->device_count; i++)
		if (batch->devices[i].id == batch->devices[i].gpu)
			learn_device(b, &batch->devices[i]);
	for (size_t i = 0; i < batch->device_count; i++)
		if (batch->devices[i].id != batch->devices[i].gpu)
			learn_device(b, &batch->devices[i]);
	for (size_t i = 0; i < batch->holder_count; i++)
		learn_holder(b->dict, &batch->holders[i]);
}

/* ---- adding ---- */

static struct book_cell *
find_cell(struct books *b, size_t gpu, const char *holder)
{
	for (size_t i = b->cell_count; i-- > 0;)
		if (b->cells[i].gpu == gpu && strcmp(b->cells[i].holder, holder) == 0)
			return &b->cells[i];
	if (b->cell_count == b->cell_cap) {
		b->cell_cap = b->cell_cap ? 2 * b->cell_cap : 64;
		b->cells = mem_grow(b->cells, b->cell_cap, sizeof(*b->cells));
	}
	b->cells[b->cell_count] = (struct book_cell){.gpu = gpu, .first_ns = INT64_MAX, .last_ns = INT64_MIN};
	snprintf(b->cells[b->cell_count].holder, BOOKS_LABEL, "%s", holder);
	return &b->cells[b->cell_count++];
}

static void
add_held(struct books *b, size_t gpu, const struct wire_record *r)
{
	struct book_cell *c = find_cell(b, gpu, b->dict->holder[r->holder]);
	int64_t end_ns = r->start_ns + r->duration_ns;

	c->held += (int128)r->units * r->held_ns;
	c->used += (int128)r->units * r->used_ns;
	c->unmeasured += (int128)r->units * r->unmeasured_ns;
	c->over += (int128)r->units * r->over_ns;
	c->first_ns = r->start_ns < c->first_ns ? r->start_ns : c->first_ns;
	c->last_ns = end_ns > c->last_ns ? end_ns : c->last_ns;
}

static void
add_sums(struct book_sums *s, const struct wire_record *r)
{
	int128 held = (int128)r->units * r->held_ns, used = (int128)r->units * r->used_ns,
	       unmeasured = (int128)r->units * r->unmeasured_ns;

	s->energy_mj += r->energy_mj;
	s->over += (int128)r->units * r->over_ns;
	switch ((enum wire_state)r->state) {
	case WIRE_HELD:
		s->used += used;
		s->unmeasured += unmeasured;
		s->idle += held - used - unmeasured;
		break;
	case WIRE_UNALLOCATED: s->unallocated += held; break;
	case WIRE_STRANDED: s->stranded += held; break;
	case WIRE_DOWN: s->down += held; break;
	case WIRE_UNKNOWN: s->unknown += held; break;
	}
}

static bool
add_records(struct books *b, const struct wire_batch *batch, int128 *sum_by_gpu, struct err *err)
{
	const struct books_dict *d = b->dict;

	for (size_t i = 0; i < batch->record_count; i++) {
		const struct wire_record *r = &batch->records[i];
		size_t gpu = r->device < d->device_cap ? d->gpu_of[r->device] : 0;

		if (gpu == 0 || (r->holder && (r->holder >= d->holder_cap || !d->holder[r->holder][0])))
			return err_set(err, ERR_INVALID,
			               "batch %" PRIu64 ": record %zu has an id that nobody introduced", batch->seq, i);
		sum_by_gpu[gpu - 1] += (int128)r->units * r->held_ns;
		add_sums(&b->gpus[gpu - 1].sums, r);
		if (r->holder)
			add_held(b, gpu - 1, r);
	}
	return true;
}

/* Each GPU that is in the batch is accounted for in all of its time. */
static bool
check_sums(struct books *b, const struct wire_batch *batch, const int128 *sum_by_gpu, struct err *err)
{
	int64_t covered_ns = batch->to_ns - batch->from_ns;

	for (size_t i = 0; i < b->gpu_count; i++) {
		if (sum_by_gpu[i] == 0)
			continue;
		if (sum_by_gpu[i] != (int128)UNITS_PER_GPU * covered_ns)
			return err_set(err, ERR_INVALID,
			               "batch %" PRIu64 "/%" PRIu64 ": %s has %" PRId64
			               " ns of whole GPU, the batch covers %" PRId64,
			               batch->epoch, batch->seq, b->gpus[i].uuid,
			               (int64_t)(sum_by_gpu[i] / UNITS_PER_GPU), covered_ns);
		b->gpus[i].covered_ns += covered_ns;
	}
	return true;
}

/* Numbers follow each other, and so does time. A loss may begin in the unknown before the first batch that is left. */
static bool
check_place(const struct books *b, const struct wire_batch *batch, struct err *err)
{
	const struct book_batch *last = b->batch_count ? &b->batches[b->batch_count - 1] : NULL;
	bool same = last && last->epoch == batch->epoch;

	if (last && !same && batch->epoch < last->epoch)
		return err_set(err, ERR_INVALID, "stream %" PRIu64 " after %" PRIu64, batch->epoch, last->epoch);
	if (batch->seq != (same ? last->last_seq + 1 : 1))
		return err_set(err, ERR_INVALID, "stream %" PRIu64 ": batch %" PRIu64 " after %" PRIu64, batch->epoch,
		               batch->seq, same ? last->last_seq : 0);
	if (same && batch->from_ns != last->to_ns)
		return err_set(err, ERR_INVALID,
		               "stream %" PRIu64 ": batch %" PRIu64 " begins %" PRId64
		               " ns after the end of the one before",
		               batch->epoch, batch->seq, batch->from_ns - last->to_ns);
	return true;
}

static bool
is_known(const struct books *b, const struct wire_batch *batch)
{
	for (size_t i = b->batch_count; i-- > 0 && b->batches[i].epoch >= batch->epoch;)
		if (b->batches[i].epoch == batch->epoch && b->batches[i].last_seq >= batch->last_seq)
			return true;
	return false;
}

static void
note_batch(struct books *b, const struct wire_batch *batch)
{
	if (b->batch_count == b->batch_cap) {
		b->batch_cap = b->batch_cap ? 2 * b->batch_cap : 64;
		b->batches = mem_grow(b->batches, b->batch_cap, sizeof(*b->batches));
	}
	b->batches[b->batch_count++] = (struct book_batch){.epoch = batch->epoch,
	                                                   .seq = batch->seq,
	                                                   .last_seq = batch->last_seq,
	                                                   .from_ns = batch->from_ns,
	                                                   .to_ns = batch->to_ns,
	                                                   .loss = batch->kind == WIRE_LOSS,
	                                                   .record_count = batch->record_count};
}

bool
books_add(struct books *b, const void *payload, size_t len, struct err *err)
{
	owned(wire_batch) struct wire_batch *batch = NULL;
	owned(mem) int128 *sums = NULL;

	if (!wire_unpack(payload, len, &batch, err) || !wire_check(batch, err))
		return false;
	if (is_known(b, batch))
		return true;
	if (!check_place(b, batch, err))
		return false;
	learn(b, batch);
	sums = mem_array(b->gpu_count + 1, sizeof(*sums));
	if (!add_records(b, batch, sums, err) || !check_sums(b, batch, sums, err))
		return false;
	note_batch(b, batch);
	return true;
}

bool
books_add_spool(struct books *b, struct spool *s, int64_t wall_ns, struct err *err)
{
	in_place(buf) struct buf frames;
	struct spool_chunk chunk;
	bool any = true;

	buf_init(&frames, FRAME_HEAD + FRAME_MAX);
	for (;;) {
		const uint8_t *payload;
		size_t pos = 0, len;

		if (!spool_peek(s, FRAME_HEAD + FRAME_MAX, &frames, &chunk, &any, err))
			return false;
		if (!any)
			return true;
		while (frame_next(frames.data, frames.len, &pos, &payload, &len) == FRAME_OK)
			if (!books_add(b, payload, len, err))
				return false;
		if (!spool_ack(s, chunk.epoch, chunk.last_seq + 1, wall_ns, err))
			return false;
	}
}

/* ---- asking ---- */

const struct book_gpu *
books_gpu(const struct books *b, const char *uuid)
{
	for (size_t i = 0; i < b->gpu_count; i++)
		if (strcmp(b->gpus[i].uuid, uuid) == 0)
			return &b->gpus[i];
	return NULL;
}

const struct book_cell *
books_cell(const struct books *b, const char *uuid, const char *holder)
{
	for (size_t i = 0; i < b->cell_count; i++)
		if (strcmp(b->gpus[b->cells[i].gpu].uuid, uuid) == 0 && strcmp(b->cells[i].holder, holder) == 0)
			return &b->cells[i];
	return NULL;
}

int128
book_states(const struct book_sums *s)
{
	return s->used + s->idle + s->unmeasured + s->unallocated + s->stranded + s->down + s->unknown;
}

struct book_time
books_time(const struct books *b)
{
	struct book_time t = {0};

	for (size_t i = 0; i < b->batch_count; i++) {
		const struct book_batch *now = &b->batches[i];
		int64_t seam_ns = i ? now->from_ns - now[-1].to_ns : 0;

		if (i == 0)
			t.first_ns = now->from_ns;
		t.last_ns = now->to_ns;
		*(now->loss ? &t.lost_ns : &t.covered_ns) += now->to_ns - now->from_ns;
		*(seam_ns > 0 ? &t.gap_ns : &t.overlap_ns) += seam_ns > 0 ? seam_ns : -seam_ns;
	}
	return t;
}
