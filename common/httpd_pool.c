/* common/httpd_pool.c - a bounded queue of requests and the worker threads that empty it. */
#include "common/httpd_pool.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>

struct httpd_pool {
	struct httpd_pool_options options;
	pthread_mutex_t lock;
	pthread_cond_t wake; /* a job came, or the pool is closing */
	void **ring;
	size_t ring_size; /* queue_max, and one for each worker */
	size_t head, waiting, running;
	bool closing;
	pthread_t *threads;
	int started;
};

/* The next job, or NULL when there will be none. Closing lets what waits go first. */
static void *
next_job(struct httpd_pool *p)
{
	void *job = NULL;

	pthread_mutex_lock(&p->lock);
	while (!p->waiting && !p->closing)
		pthread_cond_wait(&p->wake, &p->lock);
	if (p->waiting) {
		job = p->ring[p->head];
		p->head = (p->head + 1) % p->ring_size;
		p->waiting--;
		p->running++;
	}
	pthread_mutex_unlock(&p->lock);
	return job;
}

static void
job_done(struct httpd_pool *p)
{
	pthread_mutex_lock(&p->lock);
	p->running--;
	pthread_mutex_unlock(&p->lock);
}

static void *
work(void *arg)
{
	struct httpd_pool *p = arg;
	void *worker = p->options.worker_new ? p->options.worker_new(p->options.app) : NULL;
	void *job;

	while ((job = next_job(p))) {
		p->options.run(job, worker);
		job_done(p);
	}
	if (p->options.worker_free)
		p->options.worker_free(worker);
	return NULL;
}

/* Signals stay with the program's own threads: a worker that took SIGTERM could not act on it. */
static int
start_threads(struct httpd_pool *p)
{
	sigset_t all, before;
	int errnum = 0;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	while (p->started < p->options.workers && !errnum) {
		errnum = pthread_create(&p->threads[p->started], NULL, work, p);
		if (!errnum)
			p->started++;
	}
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return errnum;
}

bool
httpd_pool_start(const struct httpd_pool_options *o, struct httpd_pool **ret, struct err *err)
{
	struct httpd_pool *p;
	int errnum;

	ASSERT(o->workers > 0 && o->queue_max > 0);
	p = mem_alloc(sizeof(*p));
	p->options = *o;
	p->ring_size = (size_t)o->queue_max + (size_t)o->workers;
	p->ring = mem_array(p->ring_size, sizeof(*p->ring));
	p->threads = mem_array((size_t)o->workers, sizeof(*p->threads));
	pthread_mutex_init(&p->lock, NULL);
	pthread_cond_init(&p->wake, NULL);
	errnum = start_threads(p);
	if (errnum) {
		httpd_pool_free(p);
		return err_errno(err, ERR_RETRY, errnum, "cannot start %d HTTP workers", o->workers);
	}
	*ret = p;
	return true;
}

bool
httpd_pool_push(struct httpd_pool *p, void *job)
{
	bool room;

	pthread_mutex_lock(&p->lock);
	room = !p->closing && p->waiting + p->running < p->ring_size;
	if (room) {
		p->ring[(p->head + p->waiting) % p->ring_size] = job;
		p->waiting++;
		pthread_cond_signal(&p->wake);
	}
	pthread_mutex_unlock(&p->lock);
	return room;
}

void
httpd_pool_drain(struct httpd_pool *p)
{
	pthread_mutex_lock(&p->lock);
	p->closing = true;
	pthread_cond_broadcast(&p->wake);
	pthread_mutex_unlock(&p->lock);
	while (p->started > 0)
		pthread_join(p->threads[--p->started], NULL);
}

void
httpd_pool_free(struct httpd_pool *p)
{
	if (!p)
		return;
	httpd_pool_drain(p);
	pthread_cond_destroy(&p->wake);
	pthread_mutex_destroy(&p->lock);
	mem_free(p->threads);
	mem_free(p->ring);
	mem_free(p);
}
