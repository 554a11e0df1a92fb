/* common/base/thread.h - threads, conditions with deadlines on the monotonic clock, and threads that repeat their work. */
#ifndef TOLLGATE_THREAD_H
#define TOLLGATE_THREAD_H

#include <pthread.h>

#include "common/base/err.h"

/* `what` completes the error "cannot start the thread ...", like "that closes periods". */
MUST_CHECK bool thread_start(const char *what, void *(*run)(void *arg), void *arg, pthread_t *ret, struct err *err);

/* A condition for condition_wait_until(). */
void condition_init(pthread_cond_t *c);
/* Waits for a signal with the lock held; deadline_ns is on time_monotonic_ns(), INT64_MAX: none. False: the deadline has passed. As with
 * pthread_cond_wait(), true does not mean that the awaited state is there: the caller tests it in a loop. */
bool condition_wait_until(pthread_cond_t *c, pthread_mutex_t *lock, int64_t deadline_ns);

/* A thread that works, waits and works again until it is stopped. run() is the thread: it returns when ticker_wait() returns false. */
struct ticker;
MUST_CHECK bool ticker_start(const char *what, void (*run)(struct ticker *t, void *arg), void *arg, struct ticker **ret,
                             struct err *err);
/* In the thread: waits so long, or until ticker_wake(). False: the thread must end. */
MUST_CHECK bool ticker_wait(struct ticker *t, int64_t ns);
bool ticker_is_stopping(struct ticker *t);
void ticker_wake(struct ticker *t);
/* Returns after the thread has ended. NULL is allowed. */
void ticker_stop(struct ticker *t);

#endif
