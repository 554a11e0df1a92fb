/* common/wire/frame.h - the framing of spool segments and of the body of POST /v1/ingest: the same bytes on disk and wire.
 *
 *   frame := length u32 LE | CRC32C of payload u32 LE | payload (one gzipped batch, see WIRE.md) */
#ifndef TOLLGATE_FRAME_H
#define TOLLGATE_FRAME_H

#include "common/base/buf.h"

#define FRAME_HEAD 8u
#define FRAME_MAX (8u << 20) /* of one payload */

uint32_t crc32c(uint32_t crc, const void *data, size_t n);          /* start with 0 */
uint32_t crc32c_portable(uint32_t crc, const void *data, size_t n); /* the same without the processor's instruction */

/* 1 .. FRAME_MAX bytes. Past the ceiling of out nothing is written, see buf.h. */
void frame_append(struct buf *out, const void *payload, size_t n);

enum frame_result {
	FRAME_OK,
	FRAME_END,  /* nothing left */
	FRAME_TORN, /* the bytes end inside a frame: the tail of an interrupted write */
	FRAME_BAD,  /* impossible length (0 or above FRAME_MAX) or wrong CRC */
};
/* Reads the frame at *pos; on FRAME_OK the payload points into data and *pos moves behind it. */
enum frame_result frame_next(const void *data, size_t n, size_t *pos, const uint8_t **ret_payload, size_t *ret_len);

#endif
