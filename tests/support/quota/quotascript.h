/* tests/support/quota/quotascript.h - a quota state and what happens to it, in a few words a line, and the answers in as few.
 *
 * Statements are separated by ';'. First the state:
 *   set grace=10 aging=60 head=300 backoff=60 forget=3600 confirm=30 silence=60 unused=3600 cluster=8      seconds; the cluster's maximum
 *   tenant t max=8 default=4 iso=node|gpu|mig|shared guard=4 cpu=1000                            without: t
 *   ws a R4 S2 M8 B4 L2 W2 lower|never noown off|warn guard=4 cpu=1000 of=t                      S: reserved_shared
 *   node n 8 [shared|of=t] [down]     mig n 7 ...     rep n 4 ...     whole GPUs; one GPU of slices; one of replicas
 *   lease l a 3 [p1] [fixed] [draining] [@n] [mig|rep] [confirmed]                               oldest first
 *   budget a 10 hard|soft used=4                                                                 GPU-seconds
 * Amounts are GPUs; with m behind them slices of 675 units, with r replicas of 1260. Then events:
 *   ask r a 3 [p1] [fixed] [k2] [mig|rep] [cpu=500] [for=60] [until=90] [since=-30] [why=x], r2 b 4       one batch; since: queued, in seconds of the script
 *   lose l  unfence l [@n:0] ...      lose: released as lost; unfence: on those GPUs, or anywhere
 *   finish l  release l  empty l  drain l  enforce l  confirm l  beat l  cancel r
 *   renew l  adopt l a 3 [p1] [fixed] [mig|rep] [cpu=500] [@n] [@n:0] ...  adoption begins|complete     each @ is a device, on a GPU or anywhere
 *   lost n  back n  gpulost n 0  gpuback n 0  cut n 0 7      cut: a GPU becomes so many slices, 0: whole again
 *   tick 60  except x a 4 for=60  reserve x a 4 for=60  revoke x  policy ws a R2 ...
 * Every event answers with what it decided: "r admit", "r borrow 2", "r reclaim l7,l8", "r queue", "r reject", and what else
 * happened: "order l7 for r", "cancel order l7", "overdue l7", "returned l7", and so on; separated by "; ". */
#ifndef TOLLGATE_TESTS_QUOTASCRIPT_H
#define TOLLGATE_TESTS_QUOTASCRIPT_H

#include "aggregator/core/quota/engine/quota.h"
#include "common/base/buf.h"

enum { SCRIPT_WHOLE, SCRIPT_MIG, SCRIPT_REP };

/* Runs it; false with the sentence when the script itself is wrong. state: the last one, or NULL when it is not wanted. */
MUST_CHECK bool quotascript_run(const char *script, struct buf *answers, struct quota_state **ret_state,
                                struct err *err);

/* A table of scripts and their answers, a sentence each: fails the running test with every row that came out otherwise. */
struct quotascript_row {
	const char *name;
	const char *script;
	const char *answers;
};
void quotascript_check(const struct quotascript_row *rows, size_t count);
#define QUOTASCRIPT_CHECK(rows) quotascript_check(rows, ARRAY_LEN(rows))

#endif
