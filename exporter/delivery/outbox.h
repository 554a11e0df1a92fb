/* exporter/delivery/outbox.h - the spool as the threads of the daemon share it, so that a disk that hangs holds up nobody.
 *
 * Rules, by number in the code:
 *  1. the spool belongs to one thread, the writer: whatever waits for the disk is done there, one thing after the other
 *  2. who adds a batch waits until it is on disk, but not for longer than the outbox's patience, and not at all while the
 *     writer has not come back from what was waited for before
 *  3. batches that are not on disk wait in memory, in order. When there is no room for one more, the two oldest become one loss
 *     batch, so that the time they covered is on the books; what the writer has in its hands stays
 *  4. while any waits, new batches must carry the full dictionary: the ones before them may not arrive
 *  5. sending goes by a view of the spool, which the writer renews after all it does; how far the aggregator is, the view knows
 *     first, and the writer puts it on disk when it comes to it. After a crash in between, batches are sent twice, and the
 *     aggregator knows them */
#ifndef TOLLGATE_OUTBOX_H
#define TOLLGATE_OUTBOX_H

#include "exporter/delivery/spool.h"

#define OUTBOX_WAITING_MAX 64

struct outbox;

/* Takes the spool over. The options are those it was opened with; its texts must outlive the outbox. Until outbox_start whoever
 * calls does the writer's work, and waits for it: for tests and tools. */
struct outbox *outbox_new(struct spool *spool, const struct spool_options *o);
MUST_CHECK bool outbox_start(struct outbox *b, int64_t patience_ns, struct err *err);
void outbox_set_patience(struct outbox *b, int64_t patience_ns);
/* Everything that waits is tried once more. A disk that hangs is waited for as long as the patience; then the writer and its
 * memory are left to themselves, and the result is false. */
bool outbox_close(struct outbox *b);
void outbox_free(struct outbox *b); /* the same, where nobody asks */
DEFINE_OWNED(outbox, struct outbox)

/* Called whenever the writer has done something, under the outbox's lock: it may not wait, nor call the outbox. NULL: nobody. */
void outbox_listen(struct outbox *b, void (*changed)(void *arg), void *arg);
/* The flags of this run's batches (enum wire_flag), where they were not known when the spool was opened. Before the first
 * batch. */
void outbox_set_flags(struct outbox *b, uint32_t flags);

bool outbox_wants_dict(struct outbox *b);
/* Takes the batch over, gives it its place in the stream and puts it on disk, after those that wait. False: something waits
 * now, and err says why. */
MUST_CHECK bool outbox_add(struct outbox *b, struct wire_batch *batch, int64_t wall_ns, struct err *err);
/* Tries again what waits. */
MUST_CHECK bool outbox_flush(struct outbox *b, int64_t wall_ns, struct err *err);
/* The next stream, after what waits of the old one. */
MUST_CHECK bool outbox_new_stream(struct outbox *b, int64_t wall_ns, struct err *err);

/* For one thread at a time. None of these waits for a write. */
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
