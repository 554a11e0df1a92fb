/* exporter/spool.h - batches on disk until the aggregator has them. The format is drawn in exporter/README.md.
 *
 * Not thread-safe by itself: one mutex in the daemon guards it. Every function is a short file operation. */
#ifndef TOLLGATE_EXPORTER_SPOOL_H
#define TOLLGATE_EXPORTER_SPOOL_H

#include "common/buf.h"
#include "common/wire.h"

struct spool;

struct spool_options {
	const char *dir;           /* made if missing; one process at a time (a lock file) */
	int64_t cap_bytes;         /* beyond it the oldest segment becomes one loss batch */
	int64_t segment_bytes;     /* a new segment begins beyond this */
	int64_t keep_ns;           /* acknowledged segments stay this long */
	const char *node;
	uint8_t boot_id[WIRE_BOOT_ID_SIZE];
};

/* Cuts a torn tail, sets corrupt segments aside, and opens a new stream: epoch = max(last + 1, wall seconds). */
MUST_CHECK bool spool_open(const struct spool_options *o, int64_t wall_ns, struct spool **ret, struct err *err);
void spool_free(struct spool *s);
DEFINE_OWNED(spool, struct spool)

uint64_t spool_epoch(const struct spool *s);
uint64_t spool_next_seq(const struct spool *s);
/* True when the next batch begins a segment: it must carry the full dictionary. */
bool spool_wants_dict(const struct spool *s);
/* Appends one packed batch as a frame and fsyncs. On an error nothing was appended (a partial write is cut off again), and the caller may try
 * the same batch again. */
MUST_CHECK bool spool_append(struct spool *s, const void *payload, size_t n, int64_t from_ns, int64_t to_ns, int64_t wall_ns, struct err *err);

/* The next unacknowledged frames of one stream, oldest first, at most max_bytes (at least one frame). False when there is nothing. */
struct spool_chunk {
	uint64_t epoch;
	uint64_t first_seq, last_seq;
};
MUST_CHECK bool spool_peek(struct spool *s, size_t max_bytes, struct buf *frames, struct spool_chunk *ret, bool *ret_any, struct err *err);
/* The aggregator has everything of this stream before next_seq. May also move back, when it lost some. */
MUST_CHECK bool spool_ack(struct spool *s, uint64_t epoch, uint64_t next_seq, int64_t wall_ns, struct err *err);

struct spool_stats {
	int64_t bytes, segments, unacked_batches, lost_batches, corrupt_segments;
	int64_t oldest_unacked_wall_ns; /* ABSENT-like -1 when none */
};
void spool_stats(const struct spool *s, struct spool_stats *ret);

#endif
