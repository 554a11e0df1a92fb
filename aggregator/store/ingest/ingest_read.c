/* aggregator/store/ingest/ingest_read.c - decodes the frames of a push, without the database: rule 1 of ingest_push.c and the first half of rule 2.
 * Runs in the threads of the callers, several at a time. */
#include <stdlib.h>
#include <string.h>

#include "aggregator/store/ingest/ingest.h"
#include "aggregator/store/ingest/ingest_push.h"
#include "common/wire/frame.h"
#include "common/base/gz.h"
#include "common/base/text.h"

#define NODE_NAME_MAX 253
#define SEQ_MAX (UINT64_C(1) << 62) /* the highest number that a loss batch may reach */
/* Limits of one call. The sender repeats the rest of the body, beginning after the acknowledged number. */
#define CALL_MAX_ITEMS 300000u
#define CALL_MAX_FRAMES 10000u

static void
frames_fini(struct ingest *in)
{
	for (size_t i = 0; i < in->count; i++) {
		wire_batch_free(in->frames[i].batch);
		mem_free(in->frames[i].device_id);
		mem_free(in->frames[i].holder_id);
		set_asides_free(in->frames[i].aside, in->frames[i].aside_count);
	}
	mem_free(in->frames);
}

void
ingest_fini(struct ingest *in)
{
	frames_fini(in);
	dict_fini(&in->dict);
	slice_sums_fini(&in->slice);
	mem_free(in->cluster);
}

/* Classifies a payload that cannot be unpacked. */
static enum ingest_refusal
classify_refusal(const uint8_t *payload, size_t len, const struct err *why)
{
	in_place(buf) struct buf plain = {0};

	buf_init(&plain, WIRE_MAX_BODY);
	if (!gz_expand(payload, len, &plain, NULL))
		return REFUSAL_GZIP;
	return why->kind == ERR_RETRY ? REFUSAL_VERSION : REFUSAL_CONTENT;
}

void
ingest_result_fini(struct ingest_result *r)
{
	ingest_sums_fini(&r->sums);
}

static bool
same_stream(const struct wire_batch *a, const struct wire_batch *b)
{
	return strcmp(a->node, b->node) == 0 && a->epoch == b->epoch &&
	       memcmp(a->boot_id, b->boot_id, sizeof(a->boot_id)) == 0;
}

/* Checks the fields that identify the stream. */
static bool
check_stream(const struct wire_batch *b, const char *node, enum ingest_refusal *ret_why, struct err *err)
{
	size_t len = strlen(b->node);

	*ret_why = REFUSAL_NODE;
	if (node && strcmp(node, b->node) != 0)
		return err_set(err, ERR_DENIED, "the token speaks for node %s, the batch is of node %.256s", node,
		               b->node);
	*ret_why = REFUSAL_STREAM;
	if (len == 0 || len > NODE_NAME_MAX || !text_is_clean(b->node))
		return err_set(err, ERR_INVALID, "the node's name has %zu bytes; it is UTF-8 text of 1 to %d", len,
		               NODE_NAME_MAX);
	if (b->epoch == 0 || b->epoch > INT64_MAX)
		return err_set(err, ERR_INVALID, "epoch is %" PRIu64 ", outside 1 to %" PRId64, b->epoch, INT64_MAX);
	if (b->seq == 0 || b->seq > INT64_MAX)
		return err_set(err, ERR_INVALID, "seq is %" PRIu64 ", outside 1 to %" PRId64, b->seq, INT64_MAX);
	return true;
}

static bool
add_frame(struct ingest *in, const uint8_t *payload, size_t len, const char *node, enum ingest_refusal *ret_why,
          struct err *err)
{
	owned(wire_batch) struct wire_batch *b = NULL;
	struct ingest_frame *f;

	if (!wire_unpack(payload, len, &b, err)) {
		*ret_why = classify_refusal(payload, len, err);
		return false;
	}
	if (!check_stream(b, node, ret_why, err))
		return false;
	if (in->count > 0 && !same_stream(in->frames[0].batch, b))
		return err_set(err, ERR_INVALID, "is of another stream than frame 0");
	array_room_by_count(in->frames, in->count);
	f = &in->frames[in->count++];
	*f = (struct ingest_frame){.payload = payload, .len = len};
	sha256(payload, len, f->sha);
	f->batch = take(b);
	return true;
}

/* Rule 1, and the first half of rule 2. */
static bool
read_frames(struct ingest *in, const struct ingest_request *rq, enum ingest_refusal *ret_why, struct err *err)
{
	const uint8_t *payload;
	size_t pos = 0, len, items = 0;

	while (items < CALL_MAX_ITEMS && in->count < CALL_MAX_FRAMES) {
		const struct wire_batch *b;

		switch (frame_next(rq->frames, rq->len, &pos, &payload, &len)) {
		case FRAME_END: return in->count > 0 || err_set(err, ERR_INVALID, "the body has no frame");
		case FRAME_TORN:
			*ret_why = REFUSAL_TORN;
			return err_set(err, ERR_INVALID, "frame %zu: the body ends inside it", in->count);
		case FRAME_BAD:
			*ret_why = REFUSAL_CRC;
			return err_set(err, ERR_INVALID, "frame %zu: its length or CRC32C is wrong", in->count);
		case FRAME_OK: break;
		}
		if (!add_frame(in, payload, len, rq->node, ret_why, err))
			return err_prefix(err, "frame %zu", in->count);
		b = in->frames[in->count - 1].batch;
		items += b->record_count + b->holder_count + b->device_count + 1;
	}
	return true;
}

void
ingest_frames_reset(struct ingest *in)
{
	for (size_t i = 0; i < in->count; i++) {
		struct ingest_frame *f = &in->frames[i];
		const struct wire_batch *b = f->batch;

		mem_free(take(f->device_id));
		mem_free(take(f->holder_id));
		set_asides_free(take(f->aside), f->aside_count);
		f->aside_count = 0;
		f->lacks_rows = false;
		f->outcome = OUTCOME_DUPLICATE;
		f->seq = f->last_seq = (int64_t)b->seq;
		/* Only a loss batch stands for several numbers. */
		if (b->kind == WIRE_LOSS && b->last_seq > b->seq && b->last_seq < SEQ_MAX)
			f->last_seq = (int64_t)b->last_seq;
	}
}

bool
ingest_push_new(const struct ingest_request *rq, struct ingest_push **ret, struct ingest_result *ret_result,
                struct err *err)
{
	owned(ingest_push) struct ingest_push *p = mem_alloc(sizeof(*p));

	p->in.now_ns = rq->now_ns;
	p->in.skew_ns = rq->clock_ns == INT64_MIN ? 0 : rq->clock_ns - rq->now_ns;
	p->in.skew_max_ns = rq->skew_max_ns;
	p->in.held_max = rq->held_max;
	*ret_result = (struct ingest_result){.refusal = REFUSAL_OTHER};
	if (!read_frames(&p->in, rq, &ret_result->refusal, err))
		return false;
	ingest_frames_reset(&p->in);
	*ret_result = (struct ingest_result){0};
	*ret = take(p);
	return true;
}

size_t
ingest_push_records(const struct ingest_push *p)
{
	size_t n = 0;

	for (size_t i = 0; i < p->in.count; i++)
		n += p->in.frames[i].batch->record_count;
	return n;
}

void
ingest_push_free(struct ingest_push *p)
{
	if (!p)
		return;
	ingest_fini(&p->in);
	ingest_result_fini(&p->result);
	mem_free(p);
}
