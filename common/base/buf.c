/* common/base/buf.c - a growing byte buffer with a ceiling, and whole files through it. */
#include "common/base/buf.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define BUF_FIRST_CAP 256u

void
buf_init(struct buf *b, size_t max_bytes)
{
	ASSERT(max_bytes < SIZE_MAX / 4);
	*b = (struct buf){.max = max_bytes};
}

void
buf_fini(struct buf *b)
{
	mem_free(b->data);
	*b = (struct buf){.max = b->max};
}

void
buf_clear(struct buf *b)
{
	b->len = 0;
	b->over = false;
	if (b->data)
		b->data[0] = '\0';
}

/* After one append was left out the rest is left out too: half a text with a hole would look like a whole one. */
char *
buf_reserve(struct buf *b, size_t n)
{
	if (b->over || n > b->max - b->len) {
		b->over = true;
		return NULL;
	}
	/* cap counts content; one byte more is always there for the final NUL */
	if (!b->data || b->len + n > b->cap) {
		size_t cap = b->cap ? b->cap : BUF_FIRST_CAP;

		while (cap < b->len + n)
			cap *= 2;
		if (cap > b->max)
			cap = b->max;
		b->data = mem_grow(b->data, cap + 1, 1);
		b->cap = cap;
	}
	b->data[b->len + n] = '\0';
	return b->data + b->len;
}

void
buf_commit(struct buf *b, size_t n)
{
	ASSERT(n <= b->cap - b->len);
	b->len += n;
	if (b->data)
		b->data[b->len] = '\0';
}

void
buf_add(struct buf *b, const void *data, size_t n)
{
	char *to;

	if (n == 0)
		return;
	to = buf_reserve(b, n);
	if (!to)
		return;
	memcpy(to, data, n);
	b->len += n;
}

void
buf_str(struct buf *b, const char *s)
{
	buf_add(b, s, strlen(s));
}

void
buf_char(struct buf *b, char c)
{
	char *to = buf_reserve(b, 1);

	if (!to)
		return;
	*to = c;
	b->len++;
}

void
buf_printf(struct buf *b, const char *fmt, ...)
{
	va_list args;
	char *to;
	int n;

	va_start(args, fmt);
	n = vsnprintf(NULL, 0, fmt, args);
	va_end(args);
	ASSERT(n >= 0);
	if (n == 0)
		return;
	to = buf_reserve(b, (size_t)n);
	if (!to)
		return;
	va_start(args, fmt);
	n = vsnprintf(to, (size_t)n + 1, fmt, args);
	va_end(args);
	b->len += (size_t)n;
}

void
buf_u64(struct buf *b, uint64_t v)
{
	char digits[20];
	size_t at = sizeof(digits);

	do {
		digits[--at] = (char)('0' + v % 10);
		v /= 10;
	} while (v);
	buf_add(b, digits + at, sizeof(digits) - at);
}

void
buf_i64(struct buf *b, int64_t v)
{
	if (v < 0)
		buf_char(b, '-');
	buf_u64(b, v < 0 ? 0 - (uint64_t)v : (uint64_t)v);
}

const char *
buf_text(const struct buf *b)
{
	return b->data ? b->data : "";
}

bool
buf_ok(const struct buf *b, const char *what, struct err *err)
{
	if (!b->over)
		return true;
	return err_set(err, ERR_INVALID, "%s is larger than the limit of %zu bytes", what, b->max);
}

static void
fd_fini(const int *fd)
{
	if (*fd >= 0)
		close(*fd);
}

static enum err_kind
kind_of_errno(int errnum)
{
	switch (errnum) {
	case ENOENT:
	case ENOTDIR: return ERR_MISSING;
	case EACCES:
	case EPERM:
	case EROFS: return ERR_DENIED;
	case ENOSPC:
	case EDQUOT:
	case EMFILE:
	case ENFILE:
	case ENOMEM:
	case EINTR: return ERR_RETRY;
	default: return ERR_FATAL;
	}
}

static ssize_t
read_some(int fd, void *to, size_t n)
{
	ssize_t got;

	do
		got = read(fd, to, n);
	while (got < 0 && errno == EINTR);
	return got;
}

/* Reads to the end whatever the size claims: files of /proc say 0. */
static bool
read_all(int fd, struct buf *b, const char *path, struct err *err)
{
	for (;;) {
		size_t room = b->max - b->len;
		size_t want = b->cap - b->len;
		char beyond, *to;
		ssize_t got;

		if (want < 1)
			want = b->cap ? b->cap : 4096;
		if (want > room)
			want = room;
		/* at the ceiling one more byte tells whether the file ends here */
		to = want ? buf_reserve(b, want) : &beyond;
		ASSERT(to);
		got = read_some(fd, to, want ? want : 1);
		if (got < 0)
			return err_errno(err, kind_of_errno(errno), errno, "cannot read %s", path);
		if (got == 0)
			return true;
		if (!want) {
			b->over = true;
			return err_set(err, ERR_INVALID, "%s is larger than the limit of %zu bytes", path, b->max);
		}
		buf_commit(b, (size_t)got);
	}
}

bool
buf_read_file(struct buf *b, const char *path, struct err *err)
{
	in_place(fd) int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY);
	struct stat st;

	buf_clear(b);
	if (fd < 0)
		return err_errno(err, kind_of_errno(errno), errno, "cannot open %s", path);
	/* the right size at once for an ordinary file; one byte more so that the end is seen without growing */
	if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_size > 0 && (uint64_t)st.st_size < b->max)
		(void)buf_reserve(b, (size_t)st.st_size + 1);
	buf_clear(b);
	return read_all(fd, b, path, err);
}

static bool
write_all(int fd, const char *data, size_t n)
{
	while (n > 0) {
		ssize_t put = write(fd, data, n);

		if (put < 0 && errno == EINTR)
			continue;
		if (put < 0)
			return false;
		data += put;
		n -= (size_t)put;
	}
	return true;
}

/* A rename is durable once the folder that holds the names is on disk. */
static bool
sync_folder_of(const char *path)
{
	const char *slash = strrchr(path, '/');
	size_t len = slash ? (size_t)(slash - path) : 0;
	owned(mem) char *folder = !slash ? mem_strdup(".") : mem_strndup(path, len ? len : 1);
	in_place(fd) int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	return fd >= 0 && fsync(fd) == 0;
}

bool
file_write_atomic(const char *path, const void *data, size_t n, unsigned mode, struct err *err)
{
	owned(mem) char *temp = mem_printf("%s.XXXXXX", path);
	in_place(fd) int fd = mkostemp(temp, O_CLOEXEC);
	const char *step = NULL;
	int errnum;

	if (fd < 0)
		return err_errno(err, kind_of_errno(errno), errno, "cannot make a temporary file beside %s", path);
	if (fchmod(fd, (mode_t)mode) != 0)
		step = "set the mode of";
	else if (!write_all(fd, data, n))
		step = "write";
	else if (fsync(fd) != 0)
		step = "sync";
	else if (rename(temp, path) != 0)
		step = "replace";
	if (step) {
		errnum = errno;
		unlink(temp);
		return err_errno(err, kind_of_errno(errnum), errnum, "cannot %s %s", step, path);
	}
	if (!sync_folder_of(path))
		return err_errno(err, kind_of_errno(errno), errno, "cannot sync the folder of %s", path);
	return true;
}
