/* common/base/spill.c - a document of any size, made in pieces, in a file without a name. */
#include "common/base/spill.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "common/base/gz.h"

#define PIECE_BYTES (256u << 10)
#define PIECE_MAX (64u << 20) /* between two steps */

struct spill {
	int fd;
	struct gz_stream *gz; /* NULL: as it is */
	struct sha256_state *sha;
	struct buf piece, packed;
	int64_t len, plain_len;
};

/* In $TMPDIR, else /tmp: a file that is gone with its last descriptor, whatever happens to this process. */
static int
nameless_file(void)
{
	const char *dir = getenv("TMPDIR");
	char path[4096];
	int fd, n;

	if (!dir || dir[0] == '\0')
		dir = "/tmp";
	fd = open(dir, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
	if (fd >= 0 || (errno != EOPNOTSUPP && errno != EISDIR && errno != ENOENT && errno != EINVAL))
		return fd;
	/* a file system without nameless files */
	n = snprintf(path, sizeof(path), "%s/tollgate-XXXXXX", dir);
	if (n < 0 || (size_t)n >= sizeof(path)) {
		errno = ENAMETOOLONG;
		return -1;
	}
	fd = mkostemp(path, O_CLOEXEC);
	if (fd >= 0)
		(void)unlink(path);
	return fd;
}

bool
spill_new(bool gzip, struct spill **ret, struct err *err)
{
	int fd = nameless_file();
	struct spill *s;

	if (fd < 0)
		return err_errno(err, ERR_RETRY, errno, "no temporary file for a large document");
	s = mem_alloc(sizeof(*s));
	s->fd = fd;
	s->gz = gzip ? gz_stream_new(1) : NULL;
	s->sha = sha256_begin();
	buf_init(&s->piece, PIECE_MAX);
	buf_init(&s->packed, PIECE_MAX);
	*ret = s;
	return true;
}

void
spill_free(struct spill *s)
{
	if (!s)
		return;
	if (s->fd >= 0)
		close(s->fd);
	gz_stream_free(s->gz);
	sha256_drop(s->sha);
	buf_fini(&s->piece);
	buf_fini(&s->packed);
	mem_free(s);
}

struct buf *
spill_buf(struct spill *s)
{
	return &s->piece;
}

static bool
write_all(struct spill *s, const char *data, size_t n, struct err *err)
{
	while (n > 0) {
		ssize_t done = write(s->fd, data, n);

		if (done < 0 && errno == EINTR)
			continue;
		if (done < 0)
			return err_errno(err, ERR_RETRY, errno,
			                 "a large document cannot be written to its temporary file");
		data += done;
		n -= (size_t)done;
		s->len += done;
	}
	return true;
}

static bool
move(struct spill *s, bool last, struct err *err)
{
	if (!buf_ok(&s->piece, "a piece of a large document", err))
		return false;
	sha256_add(s->sha, s->piece.data, s->piece.len);
	s->plain_len += (int64_t)s->piece.len;
	if (s->gz == NULL) {
		if (!write_all(s, s->piece.data, s->piece.len, err))
			return false;
	} else {
		buf_clear(&s->packed);
		if (!gz_stream_add(s->gz, s->piece.data, s->piece.len, last, &s->packed, err) ||
		    !write_all(s, s->packed.data, s->packed.len, err))
			return false;
	}
	buf_clear(&s->piece);
	return true;
}

bool
spill_step(struct spill *s, struct err *err)
{
	return s->piece.len < PIECE_BYTES || move(s, false, err);
}

bool
spill_end(struct spill *s, struct spill_file *ret, struct err *err)
{
	if (!move(s, true, err))
		return false;
	if (lseek(s->fd, 0, SEEK_SET) != 0)
		return err_errno(err, ERR_RETRY, errno, "a large document cannot be read from its temporary file");
	*ret = (struct spill_file){.fd = s->fd, .len = s->len, .plain_len = s->plain_len};
	sha256_end(take(s->sha), ret->sha256);
	s->fd = -1;
	return true;
}
