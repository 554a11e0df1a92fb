/* aggregator/service/ingest_batcher.c - pushes that wait at the same time become one transaction. */
#include "aggregator/service/ingest_batcher.h"

#include <pthread.h>

#define GROUP_MAX 64u /* as many as there can be workers */
/* A second transaction beside the first uses a second core, and shares nothing with it. It is begun only for as many records as make what
 * every transaction costs small beside what they cost themselves: the first thousand rows of each COPY also cost PostgreSQL the
 * memory that all later ones are read into. */
#define WRITERS_MAX 2u
#define WORTH_A_SECOND 2000u

struct waiter {
	struct ingest_push *push;
	struct waiter *next;
	bool tried; /* a group has been written with it, or without it */
	pthread_cond_t moved;
};

struct ingest_batcher {
	struct ingest_cache *cache;
	pthread_mutex_t lock;
	struct waiter *first, **end;
	size_t records; /* of the waiting pushes */
	unsigned writing;
};

struct ingest_batcher *
ingest_batcher_new(int64_t slice_ns)
{
	struct ingest_batcher *b = mem_alloc(sizeof(*b));

	b->cache = ingest_cache_new(slice_ns);
	b->end = &b->first;
	pthread_mutex_init(&b->lock, NULL);
	return b;
}

void
ingest_batcher_free(struct ingest_batcher *b)
{
	if (!b)
		return;
	ASSERT(!b->first && !b->writing);
	pthread_mutex_destroy(&b->lock);
	ingest_cache_free(b->cache);
	mem_free(b);
}

/* With the lock, which is released while the group is written. */
static void
write_group(struct ingest_batcher *b, struct db *db)
{
	struct waiter *group[GROUP_MAX];
	struct ingest_push *pushes[GROUP_MAX];
	size_t n = 0;

	for (; b->first && n < GROUP_MAX; b->first = b->first->next) {
		b->records -= ingest_push_records(b->first->push);
		group[n] = b->first;
		pushes[n++] = b->first->push;
	}
	if (!b->first)
		b->end = &b->first;
	b->writing++;
	pthread_mutex_unlock(&b->lock);
	store_ingest_group(db, b->cache, pushes, n);
	pthread_mutex_lock(&b->lock);
	b->writing--;
	for (size_t i = 0; i < n; i++) {
		group[i]->tried = true;
		pthread_cond_signal(&group[i]->moved);
	}
	/* Waking one of the new ones is enough: it writes for all. */
	if (b->first)
		pthread_cond_signal(&b->first->moved);
}

bool
ingest_batcher_push(struct ingest_batcher *b, struct db *db, struct ingest_push *p, struct ingest_result *ret,
                    struct err *err)
{
	struct waiter me = {.push = p};

	pthread_cond_init(&me.moved, NULL);
	pthread_mutex_lock(&b->lock);
	*b->end = &me;
	b->end = &me.next;
	b->records += ingest_push_records(p);
	while (!me.tried) {
		if (b->writing == 0 || (b->writing < WRITERS_MAX && b->records >= WORTH_A_SECOND))
			write_group(b, db);
		else
			pthread_cond_wait(&me.moved, &b->lock);
	}
	pthread_mutex_unlock(&b->lock);
	pthread_cond_destroy(&me.moved);
	return store_ingest_push(db, b->cache, p, ret, err);
}
