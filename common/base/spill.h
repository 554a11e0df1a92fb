/* common/base/spill.h - a document of any size, made in pieces: kept in a file without a name, so that memory holds one piece. */
#ifndef TOLLGATE_SPILL_H
#define TOLLGATE_SPILL_H

#include "common/base/buf.h"
#include "common/base/digest.h"

struct spill;
/* gzip: the file has the gzipped bytes. ERR_RETRY when no file can be made. */
MUST_CHECK bool spill_new(bool gzip, struct spill **ret, struct err *err);
void spill_free(struct spill *s);
DEFINE_OWNED(spill, struct spill)

/* Where to write: whoever adds to it calls spill_step from time to time, which moves it to the file when it is worth it. */
struct buf *spill_buf(struct spill *s);
MUST_CHECK bool spill_step(struct spill *s, struct err *err);

/* All of it is in the file. The descriptor is the caller's from then on, its position at the beginning. */
struct spill_file {
	int fd;
	int64_t len;                 /* as it is in the file */
	int64_t plain_len;           /* before gzip */
	uint8_t sha256[SHA256_SIZE]; /* of the plain bytes */
};
MUST_CHECK bool spill_end(struct spill *s, struct spill_file *ret, struct err *err);

#endif
