/* aggregator/service/ticker.c - a thread that works, waits and works again until it is stopped. */
#include "aggregator/service/ticker.h"

#include <errno.h>
#include <pthread.h>
#include <time.h>

#include "common/base/time.h"

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
	pthread_condattr_t attr;
	int rc;

	*t = (struct ticker){.run = run, .arg = arg};
	pthread_mutex_init(&t->lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&t->wake, &attr);
	pthread_condattr_destroy(&attr);
	*ret = t; /* before the thread may look for it */
	rc = pthread_create(&t->thread, NULL, ticker_main, t);
	if (rc != 0) {
		*ret = NULL;
		ticker_free(t);
		return err_errno(err, ERR_FATAL, rc, "cannot start the thread %s", what);
	}
	return true;
}

bool
ticker_wait(struct ticker *t, int64_t ns)
{
	struct timespec until;
	bool stop;

	clock_gettime(CLOCK_MONOTONIC, &until);
	ns += until.tv_nsec;
	until.tv_sec += (time_t)(ns / NS_PER_S);
	until.tv_nsec = (long)(ns % NS_PER_S);
	pthread_mutex_lock(&t->lock);
	while (!t->stop && !t->woken && pthread_cond_timedwait(&t->wake, &t->lock, &until) != ETIMEDOUT)
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
