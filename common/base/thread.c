/* common/base/thread.c - threads, conditions with deadlines on the monotonic clock, and threads that repeat their work. */
#include "common/base/thread.h"

#include <errno.h>
#include <time.h>

#include "common/base/time.h"

bool
thread_start(const char *what, void *(*run)(void *arg), void *arg, pthread_t *ret, struct err *err)
{
	int rc = pthread_create(ret, NULL, run, arg);

	return rc == 0 || err_errno(err, ERR_FATAL, rc, "cannot start the thread %s", what);
}

void
condition_init(pthread_cond_t *c)
{
	pthread_condattr_t attr;

	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(c, &attr);
	pthread_condattr_destroy(&attr);
}

bool
condition_wait_until(pthread_cond_t *c, pthread_mutex_t *lock, int64_t deadline_ns)
{
	const struct timespec deadline = {.tv_sec = (time_t)(deadline_ns / NS_PER_S),
	                                  .tv_nsec = (long)(deadline_ns % NS_PER_S)};

	if (deadline_ns != INT64_MAX)
		return pthread_cond_timedwait(c, lock, &deadline) != ETIMEDOUT;
	pthread_cond_wait(c, lock);
	return true;
}

/* ---- threads that repeat their work ---- */

struct ticker {
	void (*run)(struct ticker *t, void *arg);
	void *arg;
	pthread_t thread;
	pthread_mutex_t lock; /* of what follows */
	pthread_cond_t wake;
	bool stop, woken;
};

static void *
ticker_main(void *arg)
{
	struct ticker *t = arg;

	t->run(t, t->arg);
	return NULL;
}

static void
ticker_free(struct ticker *t)
{
	pthread_cond_destroy(&t->wake);
	pthread_mutex_destroy(&t->lock);
	mem_free(t);
}

bool
ticker_start(const char *what, void (*run)(struct ticker *t, void *arg), void *arg, struct ticker **ret,
             struct err *err)
{
	struct ticker *t = mem_alloc(sizeof(*t));

	*t = (struct ticker){.run = run, .arg = arg};
	pthread_mutex_init(&t->lock, NULL);
	condition_init(&t->wake);
	*ret = t; /* run() may use it before this function returns */
	if (thread_start(what, ticker_main, t, &t->thread, err))
		return true;
	*ret = NULL;
	ticker_free(t);
	return false;
}

bool
ticker_wait(struct ticker *t, int64_t ns)
{
	int64_t deadline_ns = time_monotonic_ns() + ns;
	bool stop;

	pthread_mutex_lock(&t->lock);
	while (!t->stop && !t->woken && condition_wait_until(&t->wake, &t->lock, deadline_ns))
		;
	t->woken = false;
	stop = t->stop;
	pthread_mutex_unlock(&t->lock);
	return !stop;
}

bool
ticker_is_stopping(struct ticker *t)
{
	bool stop;

	pthread_mutex_lock(&t->lock);
	stop = t->stop;
	pthread_mutex_unlock(&t->lock);
	return stop;
}

void
ticker_wake(struct ticker *t)
{
	pthread_mutex_lock(&t->lock);
	t->woken = true;
	pthread_cond_signal(&t->wake);
	pthread_mutex_unlock(&t->lock);
}

void
ticker_stop(struct ticker *t)
{
	if (!t)
		return;
	pthread_mutex_lock(&t->lock);
	t->stop = true;
	pthread_cond_signal(&t->wake);
	pthread_mutex_unlock(&t->lock);
	pthread_join(t->thread, NULL);
	ticker_free(t);
}
