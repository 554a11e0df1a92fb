/* aggregator/service/ticker.h - a thread that works, waits and works again until it is stopped. */
#ifndef TOLLGATE_TICKER_H
#define TOLLGATE_TICKER_H

#include "common/base/err.h"

struct ticker;

/* run() is the thread: it works, and waits with ticker_wait until that says false. `what` names the thread in the error. */
MUST_CHECK bool ticker_start(const char *what, void (*run)(struct ticker *t, void *arg), void *arg, struct ticker **ret,
                             struct err *err);
/* In the thread: waits so long, or until ticker_wake. False: it is to end. */
MUST_CHECK bool ticker_wait(struct ticker *t, int64_t ns);
bool ticker_is_stopping(struct ticker *t);
void ticker_wake(struct ticker *t);
/* Returns when the thread has ended. NULL is allowed. */
void ticker_stop(struct ticker *t);

#endif
