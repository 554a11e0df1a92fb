/* exporter/delivery/spool.h - batches on disk until the aggregator has them. The format is drawn in exporter/README.md.
 *
 * Not thread-safe by itself: one thread of the daemon has it (see outbox.h). Every function is a short file operation, as long as
 * the disk answers. */
#ifndef TOLLGATE_SPOOL_H
#define TOLLGATE_SPOOL_H

#include "common/base/buf.h"
#include "common/wire/wire.h"

struct spool;

struct spool_options {
	const char *dir;       /* made if missing; one process at a time (a lock file) */
	int64_t cap_bytes;     /* beyond it the oldest segment becomes one loss batch */
	int64_t segment_bytes; /* a new segment begins beyond this */
	int64_t keep_ns;       /* acknowledged segments stay this long */
	const char *node;
	uint8_t boot_id[WIRE_BOOT_ID_SIZE];
	uint32_t flags;               /* enum wire_flag, of this run's batches */
	const char *exporter_version; /* in loss batches */
};

/* Cuts a torn tail, sets corrupt segments aside, and opens a new stream: epoch = max(last + 1, wall seconds). */
MUST_CHECK bool spool_open(const struct spool_options *o, int64_t wall_ns, struct spool **ret, struct err *err);
void spool_free(struct spool *s);
DEFINE_OWNED(spool, struct spool)

/* Ends the stream and opens the next one (the clock was stepped). */
MUST_CHECK bool spool_new_stream(struct spool *s, int64_t wall_ns, struct err *err);

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
/* The aggregator has everything of this stream before next_seq. May also move back, when it lost some; what is no longer here is
 * then offered as a loss batch. When it moved back, or this is the first of the stream, the end of the stream before is offered once
 * more: the aggregator's answer tells whether it lost that too. ERR_CONFLICT: it claims batches that this stream does not have yet. */
MUST_CHECK bool spool_ack(struct spool *s, uint64_t epoch, uint64_t next_seq, int64_t wall_ns, struct err *err);

/* The aggregator will not have this stream, whatever is sent of it: spool_peek leaves it out until spool_offer_again, and the
 * streams behind it go on. Its batches stay. */
void spool_refuse(struct spool *s, uint64_t epoch);
void spool_offer_again(struct spool *s);

/* The same without writing it down: until spool_save, a crash forgets it. */
MUST_CHECK bool spool_note_ack(struct spool *s, uint64_t epoch, uint64_t next_seq, int64_t wall_ns, struct err *err);
MUST_CHECK bool spool_save(struct spool *s, struct err *err);

/* A copy for reading: spool_peek, spool_note_ack, spool_refuse and the like, while its owner goes on writing. A file that is not
 * as the copy has it (ERR_CONFLICT) has been changed by the owner meanwhile, or is damaged, which the owner is to find. */
struct spool *spool_view(const struct spool *s);
/* How far the aggregator is and what it refuses, from one copy to another or to the spool itself. */
void spool_carry(struct spool *to, const struct spool *from);
void spool_read_on(struct spool *to, const struct spool *from); /* reading goes on where it was, without searching */
/* Of this run's batches, where they were not known at the opening; before the first batch. */
void spool_set_flags(struct spool *s, uint32_t flags);

struct spool_stats {
	int64_t bytes, segments, unacked_batches;
	int64_t refused_batches;        /* of those that are not acknowledged */
	int64_t lost_batches;           /* given up since the spool was opened */
	int64_t corrupt_segments;       /* set aside since the spool was opened */
	int64_t foreign_segments;       /* of a newer exporter, left alone */
	int64_t torn_tails;             /* cut since the spool was opened */
	int64_t oldest_unacked_wall_ns; /* -1: none */
};
void spool_stats(const struct spool *s, struct spool_stats *ret);

#endif
