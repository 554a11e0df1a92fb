/* aggregator/cli/commands/download.c - a document of any size to a file or to standard output, piece by piece. */
#include "aggregator/cli/commands/download.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

void
download_fini(struct download *d)
{
	if (d->fd >= 0)
		close(d->fd);
	if (d->temp != NULL)
		(void)unlink(d->temp);
	mem_free(d->temp);
	sha256_drop(d->sha);
	*d = (struct download){.fd = -1};
}

bool
download_open(struct download *d, const char *beside, struct err *err)
{
	char *temp = mem_printf("%s.XXXXXX", beside);

	d->fd = mkostemp(temp, O_CLOEXEC);
	if (d->fd < 0) {
		mem_free(temp);
		return err_errno(err, ERR_INVALID, errno, "cannot make a temporary file beside %s", beside);
	}
	d->temp = temp;
	return true;
}

static bool
take_piece(void *arg, const void *data, size_t n)
{
	struct download *d = arg;
	const char *p = data;

	sha256_add(d->sha, data, n);
	while (n > 0) {
		ssize_t done = write(d->fd >= 0 ? d->fd : STDOUT_FILENO, p, n);

		if (done < 0 && errno == EINTR)
			continue;
		if (done < 0) {
			d->errnum = errno;
			return false;
		}
		p += done;
		n -= (size_t)done;
	}
	return true;
}

bool
download_get(struct download *d, struct cli *c, const char *path, char *ret_sha256, struct buf *manifest,
             struct err *err)
{
	uint8_t digest[SHA256_SIZE];
	bool ok;

	d->sha = sha256_begin();
	fflush(stdout);
	ok = cli_get_pieces(c, path, take_piece, d, manifest, err);
	sha256_end(d->sha, digest);
	d->sha = NULL;
	if (!ok && d->errnum != 0)
		return err_errno(err, ERR_FATAL, d->errnum, "cannot write %s",
		                 d->temp ? d->temp : "to standard output");
	if (ret_sha256 != NULL)
		hex_encode(digest, SHA256_SIZE, ret_sha256);
	return ok;
}

bool
download_keep(struct download *d, const char *path, struct err *err)
{
	if (fchmod(d->fd, 0644) != 0 || fsync(d->fd) != 0 || rename(d->temp, path) != 0)
		return err_errno(err, ERR_INVALID, errno, "cannot write %s", path);
	mem_free(d->temp);
	d->temp = NULL;
	return true;
}
