/* aggregator/service/start_estimate.h - when waiting requests are expected to start, computed once per version of the book.
 *
 *  1. one thread at low priority runs copies of the book forward (core/quota/engine/quota_forecast.c). It uses no database and takes no lock of
 *     the decider; the thread of dry runs gives it the copies
 *  2. it has one copy at a time, and computes an estimate only when somebody asks for one
 *  3. the cost of an estimate is limited, and so is the number of waiting requests of a tenant that it covers (100); other requests have no
 *     estimate, and their replies say so
 *  4. times are rounded by quota_start_told_ns() */
#ifndef TOLLGATE_START_ESTIMATE_H
#define TOLLGATE_START_ESTIMATE_H

#include "aggregator/core/quota/book/quota_book.h"

struct estimates;
MUST_CHECK bool estimates_start(struct estimates **ret, struct err *err);
void estimates_stop(struct estimates *e);

/* Whether it would take the book as of event seq: it is idle and has no estimate of that book. */
bool estimates_want(struct estimates *e, int64_t seq);
/* Takes ownership of the copy. The estimate begins at now_ns. */
void estimates_give(struct estimates *e, struct quota_book *copy, int64_t seq, int64_t now_ns);
/* The event up to which the last estimate knows the book; -1: there is none. */
int64_t estimates_seq(struct estimates *e);
/* The last estimate of a request; QUOTA_START_NOT_YET where there is none. */
struct quota_start estimates_of(struct estimates *e, const char *key);

#endif
