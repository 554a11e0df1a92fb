/* exporter/delivery/spool_files.h - inside the spool: segments as bytes and as files, and the spool's state.
 * For spool.c, spool_files.c and their tests. */
#ifndef TOLLGATE_SPOOL_FILES_H
#define TOLLGATE_SPOOL_FILES_H

#include "exporter/delivery/spool.h"

/* ---- the bytes of a segment: a head and frames. Pure. ---- */

#define SEGMENT_VERSION 1
#define SEGMENT_HEAD_MAX (64u + WIRE_MAX_TEXT)

struct segment_head {
	uint32_t flags;
	uint8_t boot_id[WIRE_BOOT_ID_SIZE];
	uint64_t epoch;
	uint64_t first_seq;
	char node[WIRE_MAX_TEXT + 1];
};

/* Bytes of the head of a segment of this node. */
size_t segment_head_len(const char *node);
void segment_head_write(const struct segment_head *h, struct buf *out);
/* ERR_INVALID: not a whole, sound head. ERR_RETRY: a head of another version. */
MUST_CHECK bool segment_head_read(const void *data, size_t n, struct segment_head *ret, size_t *ret_len,
                                  struct err *err);

enum segment_end {
	SEGMENT_WHOLE,
	SEGMENT_TORN, /* ends inside a frame: an interrupted write */
	SEGMENT_BAD,  /* a frame that is impossible or belongs to another place */
};

/* The contents of a segment up to its first error. */
struct segment_scan {
	struct segment_head head;
	enum segment_end end;
	size_t sound_bytes; /* head and sound frames */
	size_t frames;
	uint64_t last_seq; /* first_seq - 1 without frames */
	bool loss;         /* its one frame is a loss batch */
	int64_t from_ns, to_ns;
};

/* False when the head is not sound. Every CRC is checked; the first and the last batch are decoded and compared with the head. */
MUST_CHECK bool segment_scan(const void *data, size_t n, struct segment_scan *ret, struct err *err);

/* ---- the spool in memory ---- */

struct segment {
	uint64_t epoch;
	uint64_t first_seq, last_seq; /* last = first - 1: no batch yet */
	int64_t bytes;
	int64_t from_ns, to_ns; /* wall time of its batches; 0: not known */
	int64_t acked_wall_ns;  /* when all of it was acknowledged; -1: not yet */
	bool loss;
	uint32_t flags;
	uint8_t boot_id[WIRE_BOOT_ID_SIZE];
	char *node;
};

/* How far the aggregator is in a stream. */
struct stream_ack {
	uint64_t epoch;
	uint64_t next_seq;
	int64_t wall_ns;
	int64_t rechecked_wall_ns; /* not 0: the end of the stream is sent again (rule 6); it was first acknowledged then */
};

struct spool {
	struct spool_options options; /* its texts are the next three */
	char *dir, *node, *version;
	bool view; /* a copy for reading: it changes no file */
	int lock_fd;
	struct segment *segments; /* by epoch and number */
	size_t count, cap;
	struct stream_ack *acks; /* by epoch; a stream without an entry has no acknowledgement */
	size_t ack_count;
	uint64_t epoch; /* of the open stream */
	uint64_t next_seq;
	int fd;          /* of the segment being written, which is the last; -1: the next batch begins one */
	bool tail_dirty; /* a failed write could not be cut off */
	int64_t bytes;
	int64_t lost_batches, corrupt_segments, foreign_segments, torn_tails;
	uint64_t *refused; /* streams that the aggregator refuses */
	size_t refused_count;
	/* file offset of one batch number: reading continues there without a search; epoch 0: not known */
	uint64_t hint_epoch, hint_seq;
	int64_t hint_offset;
};

/* ---- spool_files.c ---- */

char *segment_path(const struct spool *s, uint64_t epoch, uint64_t first_seq);
/* Inserts in order; takes ownership of g.node. */
void spool_insert(struct spool *s, struct segment g);
/* Removes a segment from the list; its file stays. */
void spool_remove(struct spool *s, size_t at);
/* Deletes a segment and its file. */
bool spool_delete(struct spool *s, size_t at, struct err *err);

/* Reads the directory and the state file when the spool is opened. */
MUST_CHECK bool spool_load(struct spool *s, struct err *err);
/* Renames the damaged file of segment `at` to .corrupt, keeps its sound beginning, and fills the hole with a loss batch. */
MUST_CHECK bool spool_set_aside(struct spool *s, size_t at, struct err *err);
/* Replaces segment `at` by one loss batch, joined with a loss batch directly before it. */
MUST_CHECK bool spool_replace_by_loss(struct spool *s, size_t at, struct err *err);
/* The frame of a loss batch for numbers first..last of the stream of g. */
MUST_CHECK bool spool_loss_frame(const struct spool *s, const struct segment *g, uint64_t first_seq, uint64_t last_seq,
                                 int64_t from_ns, int64_t to_ns, struct buf *out, struct err *err);

/* ---- spool.c ---- */

/* The first number of a stream that is not acknowledged. */
uint64_t spool_cursor(const struct spool *s, uint64_t epoch);
void spool_put_ack(struct spool *s, struct stream_ack ack);
/* Notes for each segment whether all of it is acknowledged, and since when. */
void spool_mark_acked(struct spool *s);
/* How many of its batches are not acknowledged. */
int64_t segment_unacked(const struct segment *g, uint64_t cursor);

#endif
