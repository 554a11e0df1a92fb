/* aggregator/service/probe.h - whether this replica is ready, for /readyz.
 *
 * A thread asks the database every second, with a connection of its own, and /readyz tells what it found last. Rules:
 *  1. /readyz never asks the database itself: it is answered at once, whatever the database does
 *  2. a look that failed is told until one succeeds
 *  3. when no look has succeeded for five seconds, because the one under way hangs, that is told
 *  4. what the database said is for the log; a client learns no more than that it does not answer, or is not this program's */
#ifndef TOLLGATE_PROBE_H
#define TOLLGATE_PROBE_H

#include "aggregator/service/app.h"

/* The schema was found sound a moment ago. */
MUST_CHECK bool probe_start(struct app *app, struct probe **ret, struct err *err);
void probe_stop(struct probe *p);
/* A sentence; NULL: it is ready. */
const char *probe_why_not(struct probe *p);

#endif
