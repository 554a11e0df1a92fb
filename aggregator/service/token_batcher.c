/* aggregator/service/token_batcher.c - one query checks the tokens of requests that arrive at the same time. */
#include "aggregator/service/token_batcher.h"

#include <string.h>

#include "aggregator/store/access/access.h"
#include "common/base/digest.h"
#include "common/base/thread.h"
#include "common/base/time.h"

#define QUERIES_AT_ONCE 2u
/* One database session may hang: a request that has waited this long queries for itself, whatever the others do. */
#define PATIENCE_NS (200 * NS_PER_MS)
#define CACHE_SIZE 4096     /* for a fleet; a token without a place costs a query per request */
#define CACHE_NS NS_PER_MIN /* after that a query also notes that the token is in use */

struct waiter {
	struct token_look look;
	struct waiter *next;
	enum { WAITS, QUERIED, DONE } state;
	pthread_cond_t moved;
};

struct cached_token {
	uint8_t sha[SHA256_SIZE];
	int64_t until_ns; /* on the boot clock; 0: empty */
	struct identity_row who;
};

struct token_batcher {
	pthread_mutex_t lock;
	struct waiter *first, **end;
	unsigned querying;
	struct cached_token cache[CACHE_SIZE]; /* by hash; a collision replaces the older one */
};

struct token_batcher *
token_batcher_new(void)
{
	struct token_batcher *b = mem_alloc(sizeof(*b));

	b->end = &b->first;
	pthread_mutex_init(&b->lock, NULL);
	return b;
}

void
token_batcher_free(struct token_batcher *b)
{
	if (!b)
		return;
	ASSERT(!b->first && !b->querying);
	pthread_mutex_destroy(&b->lock);
	mem_free(b);
}

static struct cached_token *
cache_slot(struct token_batcher *b, const char *token, uint8_t sha[SHA256_SIZE])
{
	sha256(token, strlen(token), sha);
	return &b->cache[(sha[0] | (unsigned)sha[1] << 8) % CACHE_SIZE];
}

/* With the lock. */
static void
cache_identity(struct token_batcher *b, const struct token_look *k)
{
	uint8_t sha[SHA256_SIZE];
	struct cached_token *m = cache_slot(b, k->token, sha);

	if (k->err.kind == ERR_NONE) {
		memcpy(m->sha, sha, sizeof(sha));
		m->who = k->who;
		m->until_ns = time_boot_ns() + CACHE_NS;
	} else if (memcmp(m->sha, sha, sizeof(sha)) == 0) {
		m->until_ns = 0;
	}
}

bool
token_batcher_cached(struct token_batcher *b, const char *token, struct identity_row *ret)
{
	uint8_t sha[SHA256_SIZE];
	const struct cached_token *m = cache_slot(b, token, sha);
	bool found;

	pthread_mutex_lock(&b->lock);
	found = memcmp(m->sha, sha, sizeof(sha)) == 0 && time_boot_ns() < m->until_ns;
	if (found)
		*ret = m->who;
	pthread_mutex_unlock(&b->lock);
	return found;
}

void
token_batcher_forget(struct token_batcher *b, const char *token)
{
	uint8_t sha[SHA256_SIZE];
	struct cached_token *m = cache_slot(b, token, sha);

	pthread_mutex_lock(&b->lock);
	if (memcmp(m->sha, sha, sizeof(sha)) == 0)
		m->until_ns = 0;
	pthread_mutex_unlock(&b->lock);
}

/* Queries for all that wait, the oldest first. With the lock, which is released during the query. */
static void
query(struct token_batcher *b, struct db *db)
{
	struct waiter *group[TOKEN_LOOKS_MAX];
	struct token_look *looks[TOKEN_LOOKS_MAX];
	size_t n = 0;

	for (; b->first && n < TOKEN_LOOKS_MAX; b->first = b->first->next) {
		b->first->state = QUERIED;
		group[n] = b->first;
		looks[n++] = &b->first->look;
	}
	if (!b->first)
		b->end = &b->first;
	b->querying++;
	pthread_mutex_unlock(&b->lock);
	store_tokens_check(db, looks, n);
	pthread_mutex_lock(&b->lock);
	b->querying--;
	for (size_t i = 0; i < n; i++) {
		cache_identity(b, looks[i]);
		group[i]->state = DONE;
		pthread_cond_signal(&group[i]->moved);
	}
	if (b->first)
		pthread_cond_signal(&b->first->moved);
}

bool
token_batcher_check(struct token_batcher *b, struct db *db, const char *token, struct identity_row *ret,
                    struct err *err)
{
	struct waiter me = {.look = {.token = token}};
	int64_t deadline_ns = 0;
	bool patient = true;

	condition_init(&me.moved);
	pthread_mutex_lock(&b->lock);
	*b->end = &me;
	b->end = &me.next;
	while (me.state != DONE) {
		if (me.state == WAITS && (b->querying < QUERIES_AT_ONCE || !patient)) {
			query(b, db);
			continue;
		}
		if (deadline_ns == 0)
			deadline_ns = time_monotonic_ns() + PATIENCE_NS;
		if (me.state == WAITS)
			patient = condition_wait_until(&me.moved, &b->lock, deadline_ns);
		else
			pthread_cond_wait(&me.moved, &b->lock);
	}
	pthread_mutex_unlock(&b->lock);
	pthread_cond_destroy(&me.moved);
	*ret = me.look.who;
	*err = me.look.err;
	return err->kind == ERR_NONE;
}
