/* common/http/httpd_pool.h - worker threads, and the jobs that wait for them in fair shares. Knows nothing of HTTP.
 *
 * A job counts for a group (a tenant) and in it for a member (a token). Rules, in order:
 *  1. groups with runnable jobs take turns, so do the members of a group, and a member's jobs run in order of arrival
 *  2. at most running_max jobs of a group run at once, so that other groups find a worker
 *  3. at most heavy_max heavy jobs run at once, and of a group at most the heavy_max of its share; its plain jobs overtake heavy ones that wait
 *  4. a group that may run one heavy job at a time rests after each for as long as the job ran, at most ten seconds, so that heavy jobs use
 *     about half of a worker's time
 *  5. at most waiting_max jobs of a group wait, at most heavy_waiting_max of them heavy; further ones are refused
 *  6. when the queue is full, the group with the most waiting jobs loses its newest one to a new job of a group that has at least two fewer */
#ifndef TOLLGATE_HTTPD_POOL_H
#define TOLLGATE_HTTPD_POOL_H

#include "common/base/err.h"

struct httpd_pool;
struct httpd_place;

#define HTTPD_GROUP_SIZE 88
#define HTTPD_MEMBER_SIZE 88

/* The group and the member that a job counts for. */
struct httpd_share {
	char group[HTTPD_GROUP_SIZE];
	char member[HTTPD_MEMBER_SIZE];
	int heavy_max; /* heavy jobs of the group at once; 0: any number */
	bool heavy;    /* the job */
};

/* Embedded in the caller's request. It belongs to the pool from the push until it is run, removed or displaced. */
struct httpd_job {
	struct httpd_job *next, *before; /* of the same member, in the order they came */
	struct httpd_member *member;     /* NULL: it does not wait */
	struct httpd_place *place;       /* of the worker that runs it */
	uint64_t number;                 /* in the order they came */
	bool heavy;
};

struct httpd_pool_options {
	int workers;
	int queue_max; /* jobs beyond one for each worker */
	/* 0: no such limit */
	int running_max, waiting_max, heavy_max, heavy_waiting_max;
	int nice; /* of the threads: they leave the processor to others */
	void *app;
	void *(*worker_new)(void *app); /* in the worker's thread, NULL allowed */
	void (*worker_free)(void *worker);
	void (*run)(struct httpd_job *job, void *worker);
};

enum httpd_push {
	HTTPD_PUSHED,
	HTTPD_PUSH_CLOSING,
	HTTPD_PUSH_FULL,       /* too many wait, and no group has two more than this one */
	HTTPD_PUSH_GROUP_FULL, /* too many of this group wait */
	HTTPD_PUSH_HEAVY_FULL, /* too many heavy ones of it */
};

MUST_CHECK bool httpd_pool_start(const struct httpd_pool_options *o, struct httpd_pool **ret, struct err *err);
/* A job that is not pushed stays the caller's. ret_displaced: the job that lost its place by rule 6, the caller's now; NULL: none. */
MUST_CHECK enum httpd_push httpd_pool_push(struct httpd_pool *p, struct httpd_job *job, const struct httpd_share *share,
                                           struct httpd_job **ret_displaced);
/* True: the job was still waiting; it is removed and belongs to the caller. */
MUST_CHECK bool httpd_pool_remove(struct httpd_pool *p, struct httpd_job *job);
/* For the worker that runs the job: it counts for another share from here on. False: that group may run nothing more now, or has jobs
 * that wait; nothing has changed. */
MUST_CHECK bool httpd_pool_move(struct httpd_pool *p, struct httpd_job *job, const struct httpd_share *share);
/* How often a worker that slept was woken, since the start. */
uint64_t httpd_pool_wakes(struct httpd_pool *p);
void httpd_pool_counts(struct httpd_pool *p, int64_t *ret_waiting, int64_t *ret_running);
/* No more pushes succeed, every job that was pushed is run, the threads end. */
void httpd_pool_drain(struct httpd_pool *p);
/* Drains and frees. NULL is allowed; nobody may push any more. */
void httpd_pool_free(struct httpd_pool *p);

#endif
