/* aggregator/service/dry_run.h - POST /v1/decisions?dry_run=1: what would be decided, and why a request waits.
 *
 *  1. one thread beside the decider answers all of them. It has its own connection and its own book, which follows the quota log. It takes no
 *     lock that the decider takes: turns do not wait for dry runs, nor dry runs for turns
 *  2. before each group of replies the book is brought up to the last committed event, so that a dry run sees every decision that its caller
 *     can have seen, in whichever replica. The reply names that event
 *  3. the number of open dry runs is limited, of each tenant and of the replica
 *  4. between groups the thread rests as long as the last group took, at least 5 ms: frequent callers share a group, and dry runs use at most half
 *     of a processor. Cached tokens of a group are checked with one query
 *  5. a waiting request is shown with an estimate of its start (start_estimate.h). The reply waits for a new estimate for a limited time, shorter where
 *     there is an older one
 *  6. a request of an unknown workspace waits, for a limited time, until the deciding thread has read the newest policy */
#ifndef TOLLGATE_DRY_RUN_H
#define TOLLGATE_DRY_RUN_H

#include "aggregator/service/decider.h"

struct dry_runs;
MUST_CHECK bool dry_runs_start(struct app *app, struct dry_runs **ret, struct err *err);
/* Keeps the HTTP request and takes ownership of the item, a submit with its body, or replies 429 or 503 at once. The handler touches neither
 * again. */
void dry_runs_put(struct dry_runs *d, struct capacity_request *item);
/* Takes ownership of an item whose HTTP request is kept, about a waiting decision: replies with its checks as they stand now. */
void dry_runs_show(struct dry_runs *d, struct capacity_request *item);
/* Requests an estimate of the present book, for later readers. */
void dry_runs_estimate(struct dry_runs *d);
/* The last estimate of a request. */
struct quota_start dry_runs_start_of(struct dry_runs *d, const char *key);
/* From now on no dry run waits for a policy or an estimate. For httpd's on_stop. */
void dry_runs_drain(struct dry_runs *d);
void dry_runs_stop(struct dry_runs *d);

#endif
