/* aggregator/service/dry_run.h - POST /v1/decisions?dry_run=1: what would be decided, and why a request waits, worked out beside the deciding thread.
 *
 *  1. one thread answers them all. It has a connection and a book of its own, which follows the log: it takes no lock of the database's and
 *     none of the deciding thread's, so no turn waits for a dry run, and no dry run for a turn
 *  2. the book is brought up to the last committed event before each group of answers: whoever reads an answer to a decision and then
 *     asks for a dry run, in whichever replica, is told what follows from it. The answer names that event
 *  3. a tenant has a limited number of them open at once, whoever asks in its name; so has the replica
 *  4. between groups the thread rests as long as the last one took, at least 5 ms: who asks often shares a group, and dry runs take half of a
 *     processor at most. The tokens of a group that are only remembered are proved together
 *  5. what waits is shown with an estimate of its start (estimate.h), for which it is waited a limited time; a short one where there is an older one
 *  6. a workspace that a policy made a moment ago is waited for until the deciding thread has read that policy, for a limited time */
#ifndef TOLLGATE_DRY_RUN_H
#define TOLLGATE_DRY_RUN_H

#include "aggregator/service/decider.h"

struct dry_runs;
MUST_CHECK bool dry_runs_start(struct app *app, struct dry_runs **ret, struct err *err);
/* Keeps the request and takes the item, a submit with its body; answers at once with 429 or 503 where that cannot be. The handler touches
 * neither again. */
void dry_runs_put(struct dry_runs *d, struct desk_item *item);
/* Takes an item whose request is kept, of a decision that waits: it is answered with its checks as they stand. */
void dry_runs_show(struct dry_runs *d, struct desk_item *item);
/* Asks for an estimate of the book as it is, for a later reader. */
void dry_runs_estimate(struct dry_runs *d);
/* The last estimate of a request. */
struct quota_start dry_runs_start_of(struct dry_runs *d, const char *key);
/* From now on nothing waits for a policy. For httpd's on_stop. */
void dry_runs_hurry(struct dry_runs *d);
void dry_runs_stop(struct dry_runs *d);

#endif
