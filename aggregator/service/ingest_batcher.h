/* aggregator/service/ingest_batcher.h - writes pushes that wait at the same time in one transaction.
 *
 * It has no thread. A push that finds no transaction under way is written by its own worker at once; the others wait, and the next worker
 * to write takes all of them. At most as many pushes wait as there are workers. */
#ifndef TOLLGATE_INGEST_BATCHER_H
#define TOLLGATE_INGEST_BATCHER_H

#include "aggregator/store/ingest/ingest.h"
#include "aggregator/store/store.h"

struct ingest_batcher;
/* slice_ns: see ingest_cache_new(). */
struct ingest_batcher *ingest_batcher_new(int64_t slice_ns);
void ingest_batcher_free(struct ingest_batcher *b); /* no push waits any more */

/* Stores the push. db is the caller's connection, by which it may also write the pushes of others. */
MUST_CHECK bool ingest_batcher_push(struct ingest_batcher *b, struct db *db, struct ingest_push *p,
                                    struct ingest_result *ret, struct err *err);

#endif
