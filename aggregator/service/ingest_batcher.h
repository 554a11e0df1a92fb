/* aggregator/service/ingest_batcher.h - where decoded pushes wait for the worker that is writing, so that the next to write takes all of
 * them in one transaction. There is no thread of its own: a push that finds nobody writing is written by its own worker at once, and
 * nobody ever waits for company. At most as many pushes wait as there are workers. */
#ifndef TOLLGATE_INGEST_BATCHER_H
#define TOLLGATE_INGEST_BATCHER_H

#include "aggregator/store/ingest/ingest.h"
#include "aggregator/store/store.h"

struct ingest_line;
/* slice_ns: see ingest_cache_new(). */
struct ingest_line *ingest_line_new(int64_t slice_ns);
void ingest_line_free(struct ingest_line *l); /* nobody waits any more */

/* The outcome of the push. db is the caller's own connection: by it the caller writes for others too, and what no group takes. */
MUST_CHECK bool ingest_line_pass(struct ingest_line *l, struct db *db, struct ingest_push *p, struct ingest_result *ret,
                                 struct err *err);

#endif
