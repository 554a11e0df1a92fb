/* tests/support/exporter/spooldir.h - a private directory for a spool, and batches to put into it. */
#ifndef TOLLGATE_TESTS_SPOOLDIR_H
#define TOLLGATE_TESTS_SPOOLDIR_H

#include "exporter/delivery/spool.h"

#define SPOOLDIR_WALL (INT64_C(1794807900) * 1000000000) /* 2026-11-16T05:45:00Z */

struct spooldir {
	char path[64];
};

void spooldir_init(struct spooldir *d); /* in memory where the system has such a place: these tests sync a lot */
void spooldir_fini(struct spooldir *d); /* with everything in it */
void spooldir_copy(const struct spooldir *from, struct spooldir *to);
/* The n-th segment file by name, from 0; NULL when there are fewer. */
char *spooldir_segment(const struct spooldir *d, size_t n);
size_t spooldir_count(const struct spooldir *d, const char *suffix);

struct spool_options spooldir_options(const struct spooldir *d);

/* A sound batch of this number, about `filler` bytes long, one minute after the other, packed. */
void spooldir_batch(const struct spool_options *o, uint64_t epoch, uint64_t seq, size_t filler, struct buf *out);
/* The same in another version of the wire format; one that is not known is as the newest, but for its number. */
void spooldir_batch_in(uint32_t version, const struct spool_options *o, uint64_t epoch, uint64_t seq, size_t filler,
                       struct buf *out);
int64_t spooldir_from_ns(uint64_t seq);

#endif
