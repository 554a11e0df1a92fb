/* exporter/outbox.h - the spool as the threads of the daemon share it: a lock, and a little memory for when the disk is full.
 *
 * Batches that the disk does not take wait in memory, in order. When more than OUTBOX_WAITING_MAX wait, the oldest become one
 * loss batch, so that the time they covered is on the books. While any waits, new batches must carry the full dictionary:
 * the ones before them may not arrive. */
#ifndef TOLLGATE_EXPORTER_OUTBOX_H
#define TOLLGATE_EXPORTER_OUTBOX_H

#include "exporter/spool.h"

#define OUTBOX_WAITING_MAX 64

struct outbox;

/* Takes the spool over. The options are those it was opened with; its texts must outlive the outbox. */
struct outbox *outbox_new(struct spool *spool, const struct spool_options *o);
void outbox_free(struct outbox *b);
DEFINE_OWNED(outbox, struct outbox)

bool outbox_wants_dict(struct outbox *b);
/* Takes the batch over, gives it its place in the stream and puts it on disk, after those that wait. False: something waits
 * now, and err says why. */
MUST_CHECK bool outbox_add(struct outbox *b, struct wire_batch *batch, int64_t wall_ns, struct err *err);
/* Tries again what waits. */
MUST_CHECK bool outbox_flush(struct outbox *b, int64_t wall_ns, struct err *err);
/* The next stream. What waits of the old one is given up: its numbers would belong to the new one. */
MUST_CHECK bool outbox_new_stream(struct outbox *b, int64_t wall_ns, struct err *err);

MUST_CHECK bool outbox_peek(struct outbox *b, size_t max_bytes, struct buf *frames, struct spool_chunk *ret,
                            bool *ret_any, struct err *err);
MUST_CHECK bool outbox_ack(struct outbox *b, uint64_t epoch, uint64_t next_seq, int64_t wall_ns, struct err *err);
/* See spool_refuse. */
void outbox_refuse(struct outbox *b, uint64_t epoch);
void outbox_offer_again(struct outbox *b);

struct outbox_stats {
	struct spool_stats spool;
	int64_t waiting;      /* batches in memory */
	int64_t lost_waiting; /* batches given up there */
	uint64_t epoch;
	uint64_t next_seq;
};
void outbox_stats(struct outbox *b, struct outbox_stats *ret);

#endif
