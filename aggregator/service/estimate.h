/* aggregator/service/estimate.h - when what waits is expected to start, worked out in the background once per version of the book.
 *
 *  1. one thread at low priority runs copies of the book forward (core/quota/engine/quota_forecast.c). It reads no database and takes no lock of the
 *     deciding thread's: the thread of dry runs, whose book follows the log, gives it the copies
 *  2. it has one copy at a time. What is newer is given to it when it is ready, and what was never asked for is not worked out
 *  3. an estimate has a limited cost, and looks at the first hundred of a tenant's waiting requests; requests beyond either have none, and are
 *     told so
 *  4. times are told as quota_start_told_ns() rounds them */
#ifndef TOLLGATE_ESTIMATE_H
#define TOLLGATE_ESTIMATE_H

#include "aggregator/core/quota/book/quota_book.h"

struct estimates;
MUST_CHECK bool estimates_start(struct estimates **ret, struct err *err);
void estimates_stop(struct estimates *e);

/* Whether it would take the book as it is after event seq: it is idle, and has not worked that out. */
bool estimates_want(struct estimates *e, int64_t seq);
/* Takes the copy, which is as old as it may be: at now_ns the estimate begins. */
void estimates_give(struct estimates *e, struct quota_book *copy, int64_t seq, int64_t now_ns);
/* After which event the last estimate is; -1: there is none. */
int64_t estimates_seq(struct estimates *e);
/* The last estimate of a request; QUOTA_START_NOT_YET where there is none. */
struct quota_start estimates_of(struct estimates *e, const char *key);

#endif
