/* common/base/gz.h - gzip by zlib, both ways, with a ceiling on what comes out. */
#ifndef TOLLGATE_GZ_H
#define TOLLGATE_GZ_H

#include "common/base/buf.h"

/* Both append to out, and leave its content as it was when they fail. */

/* The bytes depend only on input and level (1..9): no time stamp, no file name. */
MUST_CHECK bool gz_compress(const void *in, size_t n, int level, struct buf *out, struct err *err);
/* Exactly one gzip member. More output than out->max (a bomb), a torn stream, wrong checks, bytes behind it:
 * ERR_INVALID. */
MUST_CHECK bool gz_expand(const void *in, size_t n, struct buf *out, struct err *err);

/* The same piece by piece, of any length; false of it ends it. */
typedef bool gz_piece(void *arg, const char *data, size_t n, struct err *err);
MUST_CHECK bool gz_expand_pieces(const void *in, size_t n, gz_piece *each, void *arg, struct err *err);

/* Compressing in pieces: one member, of any length, with memory for a piece. */
struct gz_stream;
struct gz_stream *gz_stream_new(int level);
void gz_stream_free(struct gz_stream *g);
DEFINE_OWNED(gz_stream, struct gz_stream)
/* Appends what there is of the gzipped data to out; `last` ends it, and nothing may follow. */
MUST_CHECK bool gz_stream_add(struct gz_stream *g, const void *in, size_t n, bool last, struct buf *out,
                              struct err *err);

#endif
