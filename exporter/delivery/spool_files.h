/* exporter/delivery/spool_files.h - inside the spool: its segments as files, and what is done to them. Only spool*.c include this. */
#ifndef TOLLGATE_SPOOL_FILES_H
#define TOLLGATE_SPOOL_FILES_H

#include "exporter/delivery/spool.h"
#include "exporter/delivery/spool_segment.h"

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
	int64_t doubted_wall_ns; /* not 0: its end is offered again, and was acknowledged then */
};

struct spool {
	struct spool_options options; /* its texts are the next three */
	char *dir, *node, *version;
	bool view; /* a copy for reading: touches no file but to read it */
	int lock_fd;
	struct segment *segments; /* by epoch and number */
	size_t count, cap;
	struct stream_ack *acks; /* by epoch; a stream without one has acknowledged nothing */
	size_t ack_count;
	uint64_t epoch; /* of the open stream */
	uint64_t next_seq;
	int fd;          /* of the segment being written, which is the last; -1: the next batch begins one */
	bool tail_dirty; /* a failed write could not be cut off */
	int64_t bytes;
	int64_t lost_batches, corrupt_segments, foreign_segments, torn_tails;
	uint64_t *refused; /* streams that the aggregator will not have */
	size_t refused_count;
	/* where a number begins in a file, so that reading on does not search */
	uint64_t hint_epoch, hint_seq;
	int64_t hint_offset;
};

char *segment_path(const struct spool *s, uint64_t epoch, uint64_t first_seq);
void segment_fini(struct segment *g);
/* Inserts in order; takes the node over. */
void spool_insert(struct spool *s, struct segment g);
/* Out of the list; the file stays. */
void spool_remove(struct spool *s, size_t at);
/* Deletes a segment and its file. */
bool spool_delete(struct spool *s, size_t at, struct err *err);

/* Reads the directory at the start. */
MUST_CHECK bool spool_load(struct spool *s, struct err *err);
/* Keeps the sound beginning of segment `at`, sets the file aside, and fills the hole before the next number. */
MUST_CHECK bool spool_set_aside(struct spool *s, size_t at, struct err *err);
/* One loss batch for what is in the segment, in its place; joined with a loss before it. */
MUST_CHECK bool spool_give_up(struct spool *s, size_t at, struct err *err);

/* The frame of a loss batch for numbers first..last of the stream of g. */
MUST_CHECK bool spool_loss_frame(const struct spool *s, const struct segment *g, uint64_t first_seq, uint64_t last_seq,
                                 int64_t from_ns, int64_t to_ns, struct buf *out, struct err *err);

/* The state file: the last epoch and the acknowledged numbers. A state that cannot be read counts as empty: batches are then offered
 * again, and the aggregator knows them. */
void state_load(struct spool *s);
MUST_CHECK bool state_save(struct spool *s, struct err *err);

/* The first number of a stream that is not acknowledged. */
uint64_t spool_cursor(const struct spool *s, uint64_t epoch);
void spool_put_ack(struct spool *s, struct stream_ack ack);
const struct stream_ack *spool_find_ack(const struct spool *s, uint64_t epoch); /* NULL: it has acknowledged nothing */
/* The stream before this one is offered again at its end: the aggregator may have lost that too. */
void spool_doubt_before(struct spool *s, uint64_t epoch);
bool spool_is_refused(const struct spool *s, uint64_t epoch);
/* Notes which segments are acknowledged in whole, and since when. */
void spool_mark_acked(struct spool *s);

/* Cursors of all segments in order, without searching for each: start with a zeroed one. */
struct cursor_walk {
	uint64_t epoch, cursor;
};
uint64_t cursor_next(struct cursor_walk *w, const struct spool *s, const struct segment *g);
/* How many of its batches are not acknowledged. */
int64_t segment_unacked(const struct segment *g, uint64_t cursor);

#endif
