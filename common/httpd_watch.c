/* common/httpd_watch.c - the open connections of the HTTP server and until when each may take for what it is doing. */
#include "common/httpd_watch.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>
#include <time.h>

#include "common/time.h"

#define LEAST_NS (20 * NS_PER_MS)

struct httpd_watch {
	int64_t interval_ns;
	void (*tick)(void *arg);
	void *arg;
	pthread_t thread;
	bool running;
	pthread_mutex_t lock;
	pthread_cond_t wake;
	bool stop;
	struct httpd_slot *first;
};

static bool
sleep_for(struct httpd_watch *w, int64_t ns)
{
	struct timespec until;
	bool stop;

	clock_gettime(CLOCK_MONOTONIC, &until);
	ns += until.tv_nsec;
	until.tv_sec += (time_t)(ns / NS_PER_S);
	until.tv_nsec = (long)(ns % NS_PER_S);
	pthread_mutex_lock(&w->lock);
	while (!w->stop && pthread_cond_timedwait(&w->wake, &w->lock, &until) != ETIMEDOUT)
		;
	stop = w->stop;
	pthread_mutex_unlock(&w->lock);
	return !stop;
}

/* Both directions: an end of reading alone is not noticed by libmicrohttpd when bytes came just before it. Returns when to look
 * again: at the nearest deadline, and not later than a deadline set from now on can be due. */
static int64_t
end_overdue(struct httpd_watch *w, int64_t now_ns)
{
	int64_t next_ns = now_ns + w->interval_ns;

	pthread_mutex_lock(&w->lock);
	for (struct httpd_slot *s = w->first; s; s = s->behind) {
		int64_t deadline_ns = atomic_load_explicit(&s->deadline_ns, memory_order_relaxed);

		if (deadline_ns > now_ns && deadline_ns < next_ns)
			next_ns = deadline_ns;
		if (deadline_ns == 0 || deadline_ns > now_ns)
			continue;
		atomic_store_explicit(&s->deadline_ns, 0, memory_order_relaxed);
		(void)shutdown(s->fd, SHUT_RDWR);
	}
	pthread_mutex_unlock(&w->lock);
	return next_ns;
}

static void *
watch(void *arg)
{
	struct httpd_watch *w = arg;
	int64_t sleep_ns = w->interval_ns;

	while (sleep_for(w, sleep_ns)) {
		int64_t now_ns = time_boot_ns();

		sleep_ns = end_overdue(w, now_ns) - now_ns;
		if (sleep_ns < LEAST_NS)
			sleep_ns = LEAST_NS;
		w->tick(w->arg);
	}
	return NULL;
}

bool
httpd_watch_start(int64_t interval_ns, void (*tick)(void *arg), void *arg, struct httpd_watch **ret, struct err *err)
{
	struct httpd_watch *w = mem_alloc(sizeof(*w));
	pthread_condattr_t attr;
	sigset_t all, before;
	int rc;

	ASSERT(interval_ns > 0);
	w->interval_ns = interval_ns;
	w->tick = tick;
	w->arg = arg;
	pthread_mutex_init(&w->lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&w->wake, &attr);
	pthread_condattr_destroy(&attr);
	/* signals stay with the program's own threads */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	rc = pthread_create(&w->thread, NULL, watch, w);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	w->running = rc == 0;
	if (rc != 0) {
		httpd_watch_free(w);
		return err_errno(err, ERR_RETRY, rc, "cannot start the thread that watches HTTP connections");
	}
	*ret = w;
	return true;
}

void
httpd_watch_stop(struct httpd_watch *w)
{
	if (!w || !w->running)
		return;
	pthread_mutex_lock(&w->lock);
	w->stop = true;
	pthread_cond_signal(&w->wake);
	pthread_mutex_unlock(&w->lock);
	pthread_join(w->thread, NULL);
	w->running = false;
}

void
httpd_watch_free(struct httpd_watch *w)
{
	if (!w)
		return;
	httpd_watch_stop(w);
	pthread_cond_destroy(&w->wake);
	pthread_mutex_destroy(&w->lock);
	mem_free(w);
}

void
httpd_watch_add(struct httpd_watch *w, struct httpd_slot *slot, int fd, int64_t deadline_ns)
{
	*slot = (struct httpd_slot){.fd = fd, .deadline_ns = deadline_ns};
	pthread_mutex_lock(&w->lock);
	slot->behind = w->first;
	if (w->first)
		w->first->before = slot;
	w->first = slot;
	pthread_mutex_unlock(&w->lock);
}

void
httpd_watch_remove(struct httpd_watch *w, struct httpd_slot *slot)
{
	pthread_mutex_lock(&w->lock);
	if (slot->before)
		slot->before->behind = slot->behind;
	else
		w->first = slot->behind;
	if (slot->behind)
		slot->behind->before = slot->before;
	pthread_mutex_unlock(&w->lock);
}
