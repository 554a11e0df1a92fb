/* exporter/delivery/spool_segment.h - the bytes of one spool segment: a head and frames. Pure; drawn in exporter/README.md. */
#ifndef TOLLGATE_SPOOL_SEGMENT_H
#define TOLLGATE_SPOOL_SEGMENT_H

#include "common/base/buf.h"
#include "common/wire/wire.h"

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
/* ERR_INVALID: not a whole, sound head. ERR_RETRY: one of another version. */
MUST_CHECK bool segment_head_read(const void *data, size_t n, struct segment_head *ret, size_t *ret_len,
                                  struct err *err);

enum segment_end {
	SEGMENT_WHOLE,
	SEGMENT_TORN, /* ends inside a frame: an interrupted write */
	SEGMENT_BAD,  /* a frame that cannot be, or that does not belong here */
};

/* What a segment holds, up to the first thing wrong with it. */
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

#endif
