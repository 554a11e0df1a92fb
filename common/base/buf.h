/* common/base/buf.h - a growing byte buffer with a ceiling.
 *
 * Writers append without checking each step: past the ceiling the buffer stays unchanged and records the failure, which
 * buf_ok() reports at the end. The data is always NUL-terminated, so that text can be used as a string. */
#ifndef TOLLGATE_BUF_H
#define TOLLGATE_BUF_H

#include "common/base/err.h"

struct buf {
	char *data; /* NULL until the first append */
	size_t len;
	size_t cap;
	size_t max; /* the ceiling in bytes */
	bool over;  /* an append did not fit */
};

void buf_init(struct buf *b, size_t max_bytes);
void buf_fini(struct buf *b);
void buf_clear(struct buf *b);              /* empties, keeps the memory */
char *buf_reserve(struct buf *b, size_t n); /* n writable bytes after len, or NULL (over is set) */
void buf_commit(struct buf *b, size_t n);   /* the first n of the bytes reserved are now content */
void buf_add(struct buf *b, const void *data, size_t n);
void buf_str(struct buf *b, const char *s);
void buf_char(struct buf *b, char c);
void buf_printf(struct buf *b, const char *fmt, ...) PRINTF_LIKE(2, 3);
void buf_i64(struct buf *b, int64_t v); /* decimal, faster than printf */
void buf_u64(struct buf *b, uint64_t v);
const char *buf_text(const struct buf *b); /* never NULL */
MUST_CHECK bool buf_ok(const struct buf *b, const char *what, struct err *err);

/* Replaces the content by a whole file of at most max bytes. ERR_MISSING: there is none; ERR_INVALID: it is larger. */
MUST_CHECK bool buf_read_file(struct buf *b, const char *path, struct err *err);
/* Writes a file so that a crash leaves the old or the new content: temporary file, fsync, rename, fsync of the folder.
 * mode is the file's mode; the umask is ignored. A symbolic link is replaced, not followed. */
MUST_CHECK bool file_write_atomic(const char *path, const void *data, size_t n, unsigned mode, struct err *err);

#endif
