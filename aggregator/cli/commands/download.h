/* aggregator/cli/commands/download.h - a document of any size on its way to a file or to standard output; memory holds a piece of it. */
#ifndef TOLLGATE_DOWNLOAD_H
#define TOLLGATE_DOWNLOAD_H

#include "aggregator/cli/cli.h"
#include "common/base/digest.h"

/* in_place(download) struct download d = {.fd = -1}; */
struct download {
	int fd;     /* -1: standard output */
	char *temp; /* the file's name until it is whole */
	struct sha256_state *sha;
	int errnum; /* of what could not be written */
};
void download_fini(struct download *d);
/* A file without a name of its own yet, beside this one. */
MUST_CHECK bool download_open(struct download *d, const char *beside, struct err *err);
/* The whole document; ret_sha256: in hex; manifest: what came with it, or nothing; NULL: not wanted. */
MUST_CHECK bool download_get(struct download *d, struct cli *c, const char *path, char *ret_sha256,
                             struct buf *manifest, struct err *err);
/* Gives the file its name: whoever looks finds the old content, or all of the new. */
MUST_CHECK bool download_keep(struct download *d, const char *path, struct err *err);

#endif
