/* common/httpd_pool.h - a bounded queue of requests and the worker threads that empty it. Knows nothing of HTTP. */
#ifndef TOLLGATE_COMMON_HTTPD_POOL_H
#define TOLLGATE_COMMON_HTTPD_POOL_H

#include "common/err.h"

struct httpd_pool;

struct httpd_pool_options {
	int workers;
	int queue_max; /* jobs beyond one for each worker */
	void *app;
	void *(*worker_new)(void *app); /* in the worker's thread, NULL allowed */
	void (*worker_free)(void *worker);
	void (*run)(void *job, void *worker);
};

MUST_CHECK bool httpd_pool_start(const struct httpd_pool_options *o, struct httpd_pool **ret, struct err *err);
/* False when every worker is taken and queue_max more jobs wait, or the pool is closing; the job stays the caller's then. */
MUST_CHECK bool httpd_pool_push(struct httpd_pool *p, void *job);
/* No more pushes succeed, every job that was pushed is run, the threads end. */
void httpd_pool_drain(struct httpd_pool *p);
/* Drains and frees. NULL is allowed; nobody may push any more. */
void httpd_pool_free(struct httpd_pool *p);

#endif
