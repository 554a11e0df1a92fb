/* exporter/outbox.c - the spool as the threads of the daemon share it. */
#include "exporter/outbox.h"

#include <pthread.h>
#include <string.h>

#include "common/frame.h"

struct outbox {
	pthread_mutex_t lock;
	struct spool *spool;
	struct spool_options options;
	struct wire_batch *waiting[OUTBOX_WAITING_MAX];
	size_t count;
	int64_t lost;
};

struct outbox *
outbox_new(struct spool *spool, const struct spool_options *o)
{
	struct outbox *b = mem_alloc(sizeof(*b));

	pthread_mutex_init(&b->lock, NULL);
	b->spool = spool;
	b->options = *o;
	return b;
}

void
outbox_free(struct outbox *b)
{
	if (!b)
		return;
	for (size_t i = 0; i < b->count; i++)
		wire_batch_free(b->waiting[i]);
	spool_free(b->spool);
	pthread_mutex_destroy(&b->lock);
	mem_free(b);
}

bool
outbox_wants_dict(struct outbox *b)
{
	bool wants;

	pthread_mutex_lock(&b->lock);
	wants = b->count > 0 || spool_wants_dict(b->spool);
	pthread_mutex_unlock(&b->lock);
	return wants;
}

/* What is left of a batch that is given up: the time it covered. */
static struct wire_batch *
loss_of(const struct wire_batch *batch)
{
	struct wire_batch *loss = wire_batch_new();

	loss->kind = WIRE_LOSS;
	loss->from_ns = batch->from_ns;
	loss->to_ns = batch->to_ns;
	return loss;
}

static void
give_up(struct outbox *b, size_t at)
{
	struct wire_batch *loss = loss_of(b->waiting[at]);

	b->lost += b->waiting[at]->kind == WIRE_USAGE;
	wire_batch_free(b->waiting[at]);
	b->waiting[at] = loss;
}

/* The two oldest become one loss. */
static void
make_place(struct outbox *b)
{
	give_up(b, 0);
	give_up(b, 1);
	b->waiting[0]->to_ns = b->waiting[1]->to_ns;
	wire_batch_free(b->waiting[1]);
	b->count--;
	memmove(&b->waiting[1], &b->waiting[2], (b->count - 1) * sizeof(b->waiting[0]));
}

static void
put_head(const struct outbox *b, struct wire_batch *batch)
{
	if (!batch->node) {
		batch->node = mem_strdup(b->options.node);
		batch->exporter_version = mem_strdup(b->options.exporter_version);
	}
	memcpy(batch->boot_id, b->options.boot_id, sizeof(batch->boot_id));
	batch->flags = b->options.flags;
	batch->epoch = spool_epoch(b->spool);
	batch->seq = batch->last_seq = spool_next_seq(b->spool);
}

/* A batch that cannot be packed (too large, or against the rules) will not be packable later: its time goes as a loss, so that
 * it does not hold up the others. */
static bool
append_first(struct outbox *b, int64_t wall_ns, struct err *err)
{
	in_place(buf) struct buf payload;

	buf_init(&payload, FRAME_MAX);
	put_head(b, b->waiting[0]);
	if (!wire_pack(b->waiting[0], &payload, err)) {
		if (b->waiting[0]->kind == WIRE_USAGE)
			give_up(b, 0);
		return false;
	}
	if (!spool_append(b->spool, payload.data, payload.len, b->waiting[0]->from_ns, b->waiting[0]->to_ns, wall_ns,
	                  err))
		return false;
	wire_batch_free(b->waiting[0]);
	b->count--;
	memmove(&b->waiting[0], &b->waiting[1], b->count * sizeof(b->waiting[0]));
	return true;
}

static bool
append_waiting(struct outbox *b, int64_t wall_ns, struct err *err)
{
	while (b->count > 0)
		if (!append_first(b, wall_ns, err))
			return false;
	return true;
}

bool
outbox_add(struct outbox *b, struct wire_batch *batch, int64_t wall_ns, struct err *err)
{
	bool ok;

	pthread_mutex_lock(&b->lock);
	if (b->count == OUTBOX_WAITING_MAX)
		make_place(b);
	batch->kind = WIRE_USAGE;
	b->waiting[b->count++] = batch;
	ok = append_waiting(b, wall_ns, err);
	pthread_mutex_unlock(&b->lock);
	return ok;
}

bool
outbox_flush(struct outbox *b, int64_t wall_ns, struct err *err)
{
	bool ok;

	pthread_mutex_lock(&b->lock);
	ok = append_waiting(b, wall_ns, err);
	pthread_mutex_unlock(&b->lock);
	return ok;
}

bool
outbox_new_stream(struct outbox *b, int64_t wall_ns, struct err *err)
{
	bool ok;

	pthread_mutex_lock(&b->lock);
	for (; b->count > 0; b->count--) {
		b->lost += b->waiting[b->count - 1]->kind == WIRE_USAGE;
		wire_batch_free(b->waiting[b->count - 1]);
	}
	ok = spool_new_stream(b->spool, wall_ns, err);
	pthread_mutex_unlock(&b->lock);
	return ok;
}

bool
outbox_peek(struct outbox *b, size_t max_bytes, struct buf *frames, struct spool_chunk *ret, bool *ret_any,
            struct err *err)
{
	bool ok;

	pthread_mutex_lock(&b->lock);
	ok = spool_peek(b->spool, max_bytes, frames, ret, ret_any, err);
	pthread_mutex_unlock(&b->lock);
	return ok;
}

bool
outbox_ack(struct outbox *b, uint64_t epoch, uint64_t next_seq, int64_t wall_ns, struct err *err)
{
	bool ok;

	pthread_mutex_lock(&b->lock);
	ok = spool_ack(b->spool, epoch, next_seq, wall_ns, err);
	pthread_mutex_unlock(&b->lock);
	return ok;
}

void
outbox_refuse(struct outbox *b, uint64_t epoch)
{
	pthread_mutex_lock(&b->lock);
	spool_refuse(b->spool, epoch);
	pthread_mutex_unlock(&b->lock);
}

void
outbox_offer_again(struct outbox *b)
{
	pthread_mutex_lock(&b->lock);
	spool_offer_again(b->spool);
	pthread_mutex_unlock(&b->lock);
}

void
outbox_stats(struct outbox *b, struct outbox_stats *ret)
{
	pthread_mutex_lock(&b->lock);
	*ret = (struct outbox_stats){.waiting = (int64_t)b->count,
	                             .lost_waiting = b->lost,
	                             .epoch = spool_epoch(b->spool),
	                             .next_seq = spool_next_seq(b->spool)};
	spool_stats(b->spool, &ret->spool);
	pthread_mutex_unlock(&b->lock);
}
