/* exporter/record/record_writer.h - files of a recording on their way to a disk that may be slow or hang: a thread writes them, and nobody
 * waits for it but the end. */
#ifndef TOLLGATE_RECORD_WRITER_H
#define TOLLGATE_RECORD_WRITER_H

#include "common/base/buf.h"

struct record_writer;

MUST_CHECK bool record_writer_new(struct record_writer **ret, struct err *err);
/* Takes over the text. One that waits for the same path is replaced: the newer has it all. Beyond RECORD_WAITING_MAX the oldest is
 * given up. */
#define RECORD_WAITING_MAX 4
void record_writer_put(struct record_writer *w, const char *path, struct buf *text);
/* False, with the reason: the last file was not written, or files were given up. */
MUST_CHECK bool record_writer_check(struct record_writer *w, struct err *err);
/* Waits for the disk, but not longer than this. False: something is not written; a write that is under way is left behind. */
MUST_CHECK bool record_writer_close(struct record_writer *w, int64_t patience_ns, struct err *err);

#endif
