/* aggregator/service/start_estimate.c - when what waits is expected to start, worked out in the background once per version of the book. */
#include "aggregator/service/start_estimate.h"

#include <string.h>

#include "common/base/thread.h"

#define NICE 10         /* decisions and dry runs go first */
#define COST_MAX 300000 /* steps and rulings: some seconds of a slow processor */
#define OF_TENANT_MAX 100

struct estimates {
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t wake;
	_Atomic bool stop;
	struct quota_book *book; /* to be run forward; NULL: the thread is idle, or works */
	int64_t book_seq, book_now_ns;
	bool busy;
	struct quota_start *at; /* by id: the last estimate */
	size_t count;
	int64_t seq; /* of it */
};

bool
estimates_want(struct estimates *e, int64_t seq)
{
	bool want;

	pthread_mutex_lock(&e->lock);
	want = !e->busy && e->seq < seq;
	pthread_mutex_unlock(&e->lock);
	return want;
}

void
estimates_give(struct estimates *e, struct quota_book *copy, int64_t seq, int64_t now_ns)
{
	pthread_mutex_lock(&e->lock);
	quota_book_free(e->book);
	e->book = copy;
	e->book_seq = seq;
	e->book_now_ns = now_ns;
	e->busy = true;
	pthread_cond_signal(&e->wake);
	pthread_mutex_unlock(&e->lock);
}

int64_t
estimates_seq(struct estimates *e)
{
	int64_t seq;

	pthread_mutex_lock(&e->lock);
	seq = e->seq;
	pthread_mutex_unlock(&e->lock);
	return seq;
}

struct quota_start
estimates_of(struct estimates *e, const char *key)
{
	struct quota_start ret = {.kind = QUOTA_START_NOT_YET};
	const struct quota_start *found;

	pthread_mutex_lock(&e->lock);
	found = quota_start_find(e->at, e->count, key);
	if (found)
		ret = *found;
	pthread_mutex_unlock(&e->lock);
	return ret;
}

/* The next copy; NULL: it is time to stop. */
static struct quota_book *
take_book(struct estimates *e, int64_t *ret_seq, int64_t *ret_now_ns)
{
	struct quota_book *book;

	pthread_mutex_lock(&e->lock);
	e->busy = e->book != NULL;
	while (!e->book && !e->stop)
		pthread_cond_wait(&e->wake, &e->lock);
	book = e->stop ? NULL : take(e->book);
	*ret_seq = e->book_seq;
	*ret_now_ns = e->book_now_ns;
	pthread_mutex_unlock(&e->lock);
	return book;
}

static void *
estimates_main(void *arg)
{
	struct estimates *e = arg;

	thread_gives_way(NICE);
	for (;;) {
		int64_t seq = 0, now_ns = 0;
		owned(quota_book) struct quota_book *book = take_book(e, &seq, &now_ns);
		owned(mem) struct quota_start *old = NULL;
		struct quota_start *at = NULL;
		size_t count;

		if (!book)
			return NULL;
		count = quota_forecast(quota_book_state(book), now_ns,
		                       (struct quota_reach){.cost = COST_MAX, .of_tenant = OF_TENANT_MAX}, &e->stop,
		                       &at);
		for (size_t i = 0; i < count; i++)
			if (quota_start_is_known(at[i].kind))
				at[i].at_ns = quota_start_told_ns(at[i].at_ns, now_ns);
		pthread_mutex_lock(&e->lock);
		old = e->at;
		e->at = at;
		e->count = count;
		e->seq = seq;
		pthread_mutex_unlock(&e->lock);
	}
}

static void
estimates_free(struct estimates *e)
{
	quota_book_free(e->book);
	mem_free(e->at);
	pthread_cond_destroy(&e->wake);
	pthread_mutex_destroy(&e->lock);
	mem_free(e);
}

bool
estimates_start(struct estimates **ret, struct err *err)
{
	struct estimates *e = mem_alloc(sizeof(*e));

	*e = (struct estimates){.seq = -1};
	pthread_mutex_init(&e->lock, NULL);
	condition_init(&e->wake);
	if (!thread_start("of estimates", estimates_main, e, &e->thread, err)) {
		estimates_free(e);
		return false;
	}
	*ret = e;
	return true;
}

void
estimates_stop(struct estimates *e)
{
	if (!e)
		return;
	pthread_mutex_lock(&e->lock);
	e->stop = true;
	pthread_cond_signal(&e->wake);
	pthread_mutex_unlock(&e->lock);
	pthread_join(e->thread, NULL);
	estimates_free(e);
}
