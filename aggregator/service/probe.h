/* aggregator/service/probe.h - whether this replica is ready, for /readyz.
 *
 * A thread queries the database every second, with its own connection, and /readyz shows the last result. Rules:
 *  1. /readyz never queries the database itself: it replies at once, whatever the database does
 *  2. a failure is shown until a query succeeds
 *  3. if no query has succeeded for five seconds, because one hangs, that is a failure
 *  4. the database's error goes to the log; a client learns only that it does not answer, or has not this program's schema */
#ifndef TOLLGATE_PROBE_H
#define TOLLGATE_PROBE_H

#include "aggregator/service/app.h"

/* The caller has just checked the schema. */
MUST_CHECK bool probe_start(struct app *app, struct probe **ret, struct err *err);
void probe_stop(struct probe *p);
/* Why the replica is not ready, as a sentence; NULL: it is ready. */
const char *probe_why_not(struct probe *p);

#endif
