/* aggregator/store/db/db_watch.c - the thread that shuts the sockets of database servers that do not answer. The rules are in the header. */
#include "aggregator/store/db/db_watch.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "common/base/time.h"

/* One for the process: a thread that waits for a hung server must not depend on the thread that made the connection. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct db_watched *first; /* under the lock, as are the links */
static bool running;             /* likewise */
static atomic_llong stop_ns = INT64_MAX, cuts;

static bool
is_due(struct db_watched *w, int64_t now_ns)
{
	long long deadline_ns = atomic_load_explicit(&w->deadline_ns, memory_order_relaxed);

	if (atomic_load_explicit(&w->cut, memory_order_relaxed))
		return false;
	if (now_ns >= atomic_load(&stop_ns))
		return true;
	/* A call that has ended meanwhile, and perhaps begun anew, has changed it. */
	return deadline_ns != 0 && now_ns >= deadline_ns &&
	       atomic_compare_exchange_strong(&w->deadline_ns, &deadline_ns, 0);
}

static void
look(int64_t now_ns)
{
	pthread_mutex_lock(&lock);
	for (struct db_watched *w = first; w; w = w->behind) {
		if (!is_due(w, now_ns))
			continue;
		/* before the socket: the waiting thread reads it to find the cause */
		atomic_store(&w->cut, true);
		atomic_fetch_add(&cuts, 1);
		(void)shutdown(w->fd, SHUT_RDWR);
	}
	pthread_mutex_unlock(&lock);
}

static void *
watch(void *arg)
{
	const struct timespec rest = {.tv_nsec = DB_WATCH_NS};

	for (;;) {
		(void)clock_nanosleep(CLOCK_MONOTONIC, 0, &rest, NULL);
		look(time_boot_ns());
	}
	return arg;
}

/* Under the lock. The thread lives as long as the process, and signals are not for it. */
static int
start_thread(void)
{
	pthread_attr_t attr;
	sigset_t all, before;
	pthread_t thread;
	int rc;

	if (running)
		return 0;
	pthread_attr_init(&attr);
	pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	rc = pthread_create(&thread, &attr, watch, NULL);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	pthread_attr_destroy(&attr);
	running = rc == 0;
	return rc;
}

bool
db_watch_add(struct db_watched *w, int fd, struct err *err)
{
	int copy = fcntl(fd, F_DUPFD_CLOEXEC, 0), rc;

	ASSERT(!w->linked);
	if (copy < 0)
		return err_errno(err, ERR_RETRY, errno, "cannot watch a database connection");
	atomic_store(&w->deadline_ns, 0);
	atomic_store(&w->cut, false);
	w->fd = copy;
	pthread_mutex_lock(&lock);
	rc = start_thread();
	if (rc == 0) {
		w->before = NULL;
		w->behind = first;
		if (first)
			first->before = w;
		first = w;
		w->linked = true;
	}
	pthread_mutex_unlock(&lock);
	if (rc == 0)
		return true;
	close(copy);
	return err_errno(err, ERR_RETRY, rc, "cannot start the thread that watches database connections");
}

void
db_watch_remove(struct db_watched *w)
{
	if (!w->linked)
		return;
	pthread_mutex_lock(&lock);
	if (w->before)
		w->before->behind = w->behind;
	else
		first = w->behind;
	if (w->behind)
		w->behind->before = w->before;
	w->linked = false;
	pthread_mutex_unlock(&lock);
	close(w->fd);
}

void
db_watch_cut(struct db_watched *w)
{
	pthread_mutex_lock(&lock);
	if (w->linked)
		(void)shutdown(w->fd, SHUT_RDWR);
	pthread_mutex_unlock(&lock);
}

void
db_watch_stop_at(int64_t boot_ns)
{
	atomic_store(&stop_ns, boot_ns);
}

bool
db_watch_stopped(void)
{
	return time_boot_ns() >= atomic_load(&stop_ns);
}

int64_t
db_watch_cuts(void)
{
	return (int64_t)atomic_load(&cuts);
}
