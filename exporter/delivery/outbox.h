/* exporter/delivery/outbox.h - the spool shared by the daemon's threads, so that a disk that hangs delays none of them.
 *
 * Rules, by number in the code:
 *  1. the spool belongs to one thread, the writer: every operation that may wait for the disk runs there, one after the other
 *  2. outbox_add waits until the batch is on disk, but no longer than the outbox's patience, and not at all while the writer has
 *     not finished an operation that exceeded the patience before
 *  3. batches that are not on disk wait in memory, in order. When the queue is full, the two oldest become one loss batch, so that
 *     the ledger knows the time they covered; the batch being written stays
 *  4. while a batch waits, new batches must carry the full dictionary: the ones before them may be lost
 *  5. the sending thread reads from a view of the spool, which the writer replaces after each operation. Acknowledgements change
 *     the view first; the writer saves them later. After a crash in between, batches are sent twice and the aggregator
 *     recognises them */
#ifndef TOLLGATE_OUTBOX_H
#define TOLLGATE_OUTBOX_H

#include "exporter/delivery/spool.h"

#define OUTBOX_WAITING_MAX 64

struct outbox;

/* Takes ownership of the spool. The options are those it was opened with; their texts must outlive the outbox. Until outbox_start
 * the calling thread does the writer's work itself: for tests and tools. */
struct outbox *outbox_new(struct spool *spool, const struct spool_options *o);
MUST_CHECK bool outbox_start(struct outbox *b, int64_t patience_ns, struct err *err);
void outbox_set_patience(struct outbox *b, int64_t patience_ns);
/* Tries to write all waiting batches once more, then frees. False: the disk did not answer within the patience; the writer and its
 * memory are abandoned. */
bool outbox_close(struct outbox *b);
void outbox_free(struct outbox *b); /* outbox_close without its result */
DEFINE_OWNED(outbox, struct outbox)

/* Sets a function that the writer calls after each operation, under the outbox's lock: it must neither wait nor call the outbox.
 * NULL: none. */
void outbox_listen(struct outbox *b, void (*changed)(void *arg), void *arg);
/* Sets the flags of this run's batches (enum wire_flag) when they were not known at the opening; only before the first batch. */
void outbox_set_flags(struct outbox *b, uint32_t flags);

/* True when the next batch must carry the full dictionary. */
bool outbox_wants_dict(struct outbox *b);
/* Takes ownership of the batch, numbers it and writes it to disk, after those that wait. False: batches wait in memory, for the
 * reason in err. */
MUST_CHECK bool outbox_add(struct outbox *b, struct wire_batch *batch, int64_t wall_ns, struct err *err);
/* Tries to write waiting batches again. */
MUST_CHECK bool outbox_flush(struct outbox *b, int64_t wall_ns, struct err *err);
/* Begins the next stream, after the waiting batches of the old one. */
MUST_CHECK bool outbox_new_stream(struct outbox *b, int64_t wall_ns, struct err *err);

/* For the sending thread. outbox_peek may wait for the writer to repair a damaged file, within the patience. */
MUST_CHECK bool outbox_peek(struct outbox *b, size_t max_bytes, struct buf *frames, struct spool_chunk *ret,
                            bool *ret_any, struct err *err);
MUST_CHECK bool outbox_ack(struct outbox *b, uint64_t epoch, uint64_t next_seq, int64_t wall_ns, struct err *err);
/* See spool_refuse. */
void outbox_refuse(struct outbox *b, uint64_t epoch);
void outbox_offer_again(struct outbox *b);

struct outbox_stats {
	struct spool_stats spool;
	int64_t waiting;      /* batches in memory */
	int64_t lost_waiting; /* batches lost there (rule 3) */
	uint64_t epoch;
	uint64_t next_seq;
};
void outbox_stats(struct outbox *b, struct outbox_stats *ret);

#endif
