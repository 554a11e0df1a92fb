/* exporter/delivery/spool.h - batches on disk until the aggregator has acknowledged them. README.md in this folder draws the files.
 *
 * A stream is one run of the exporter: an epoch, with batches numbered from 1 without a gap. A segment is a file with consecutive
 * batches of one stream. Not thread-safe: one thread of the daemon owns the spool (see outbox.h).
 *
 * Rules:
 *  1. a batch is on disk (fsync) before spool_append returns; a failed write leaves nothing behind
 *  2. a file that ends inside a frame is cut to its last whole frame; a damaged file is renamed to .corrupt and its sound beginning kept
 *  3. numbers that are lost, by damage or by the cap, become a loss batch, so the stream has no hole and the ledger knows the loss
 *  4. over the cap acknowledged segments are deleted first, then the oldest unacknowledged one becomes a loss batch; the segment being
 *     written stays
 *  5. streams are sent oldest first, each in the order of its numbers; a stream that the aggregator refuses is skipped
 *  6. when a stream begins, or the aggregator moves its cursor back, the last batch of the stream before is sent once more: an
 *     aggregator that lost its latest commits reports that only for the stream it is sent */
#ifndef TOLLGATE_SPOOL_H
#define TOLLGATE_SPOOL_H

#include "common/base/buf.h"
#include "common/wire/wire.h"

struct spool;

struct spool_options {
	const char *dir;       /* made if missing; one process at a time (a lock file) */
	int64_t cap_bytes;     /* rule 4 */
	int64_t segment_bytes; /* a new segment begins beyond this */
	int64_t keep_ns;       /* acknowledged segments stay this long */
	const char *node;
	uint8_t boot_id[WIRE_BOOT_ID_SIZE];
	uint32_t flags;               /* enum wire_flag, of this run's batches */
	const char *exporter_version; /* in loss batches */
};

/* Repairs the files (rules 2 and 3) and opens a new stream: epoch = max(last + 1, wall seconds). */
MUST_CHECK bool spool_open(const struct spool_options *o, int64_t wall_ns, struct spool **ret, struct err *err);
void spool_free(struct spool *s);
DEFINE_OWNED(spool, struct spool)

/* Ends the stream and opens the next one (the clock was stepped). */
MUST_CHECK bool spool_new_stream(struct spool *s, int64_t wall_ns, struct err *err);
/* Sets the flags of this run's batches when they were not known at the opening; only before the first batch. */
void spool_set_flags(struct spool *s, uint32_t flags);

uint64_t spool_epoch(const struct spool *s);
uint64_t spool_next_seq(const struct spool *s);
/* True when the next batch begins a segment: it must carry the full dictionary. */
bool spool_wants_dict(const struct spool *s);
/* Appends one packed batch as a frame and fsyncs. On an error (ERR_RETRY) nothing was appended, a partial write is cut off again, and the
 * caller may try the same batch again. */
MUST_CHECK bool spool_append(struct spool *s, const void *payload, size_t n, int64_t from_ns, int64_t to_ns,
                             int64_t wall_ns, struct err *err);

/* The next unacknowledged frames of one stream, oldest first, at most max_bytes (at least one frame) into a buffer that holds
 * FRAME_HEAD + FRAME_MAX and max_bytes. *ret_any is false when there is nothing. */
struct spool_chunk {
	uint64_t epoch;
	uint64_t first_seq, last_seq;
	bool foreign; /* made under another node name, or by a simulator where this run is not, or the other way round */
};
MUST_CHECK bool spool_peek(struct spool *s, size_t max_bytes, struct buf *frames, struct spool_chunk *ret,
                           bool *ret_any, struct err *err);
/* The aggregator has everything of this stream before next_seq. The cursor may also move back, when the aggregator lost some; numbers
 * that are no longer on disk are then offered as a loss batch. Rule 6 applies. ERR_CONFLICT: the aggregator claims batches that this
 * stream does not have yet. */
MUST_CHECK bool spool_ack(struct spool *s, uint64_t epoch, uint64_t next_seq, int64_t wall_ns, struct err *err);
/* spool_ack in two steps: a crash before spool_save forgets the acknowledgement. */
MUST_CHECK bool spool_note_ack(struct spool *s, uint64_t epoch, uint64_t next_seq, int64_t wall_ns, struct err *err);
MUST_CHECK bool spool_save(struct spool *s, struct err *err);

/* The aggregator refuses this stream for good: spool_peek skips it until spool_offer_again. Its batches stay on disk. */
void spool_refuse(struct spool *s, uint64_t epoch);
void spool_offer_again(struct spool *s);

/* A copy for reading (spool_peek, spool_note_ack, spool_refuse) while the owner goes on writing. ERR_CONFLICT: a file is not as the
 * copy has it. Either the owner changed it meanwhile, or it is damaged and the owner must repair it. */
struct spool *spool_view(const struct spool *s);
/* Copies acknowledgements and refused streams from one copy to another, or to the spool itself. */
void spool_copy_acks(struct spool *to, const struct spool *from);
/* Copies the reading position, so that the new copy does not search for it. */
void spool_copy_position(struct spool *to, const struct spool *from);

struct spool_stats {
	int64_t bytes, segments, unacked_batches;
	int64_t refused_batches;        /* of the unacknowledged ones */
	int64_t lost_batches;           /* replaced by loss batches since the spool was opened */
	int64_t corrupt_segments;       /* renamed to .corrupt since the spool was opened */
	int64_t foreign_segments;       /* written by a newer exporter, left alone */
	int64_t torn_tails;             /* cut since the spool was opened */
	int64_t oldest_unacked_wall_ns; /* -1: none */
};
void spool_stats(const struct spool *s, struct spool_stats *ret);

#endif
