/* aggregator/service/token_batcher.c - one query checks the tokens of requests that arrive at the same time. */
#include "aggregator/service/token_batcher.h"

#include <string.h>

#include "aggregator/store/access/access.h"
#include "common/base/digest.h"
#include "common/base/thread.h"
#include "common/base/time.h"

#define LOOKS_AT_ONCE 2u
/* One database session may hang: a request that has waited this long queries for itself, whatever the others do. */
#define PATIENCE_NS (200 * NS_PER_MS)
#define REMEMBERED 4096        /* for a fleet; a token without a place costs a query per request */
#define REMEMBER_NS NS_PER_MIN /* after that a query also notes that the token is in use */

struct waiter {
	struct token_look look;
	struct waiter *next;
	enum { WAITS, LOOKED_FOR, DONE } state;
	pthread_cond_t moved;
};

struct memory {
	uint8_t sha[SHA256_SIZE];
	int64_t until_ns; /* on the boot clock; 0: empty */
	struct identity_row who;
};

struct token_batcher {
	pthread_mutex_t lock;
	struct waiter *first, **end;
	unsigned looking;
	struct memory memories[REMEMBERED]; /* by hash; a collision replaces the older one */
};

struct token_batcher *
token_batcher_new(void)
{
	struct token_batcher *l = mem_alloc(sizeof(*l));

	l->end = &l->first;
	pthread_mutex_init(&l->lock, NULL);
	return l;
}

void
token_batcher_free(struct token_batcher *l)
{
	if (!l)
		return;
	ASSERT(!l->first && !l->looking);
	pthread_mutex_destroy(&l->lock);
	mem_free(l);
}

static struct memory *
memory_of(struct token_batcher *l, const char *token, uint8_t sha[SHA256_SIZE])
{
	sha256(token, strlen(token), sha);
	return &l->memories[(sha[0] | (unsigned)sha[1] << 8) % REMEMBERED];
}

/* With the lock. */
static void
remember(struct token_batcher *l, const struct token_look *k)
{
	uint8_t sha[SHA256_SIZE];
	struct memory *m = memory_of(l, k->token, sha);

	if (k->err.kind == ERR_NONE) {
		memcpy(m->sha, sha, sizeof(sha));
		m->who = k->who;
		m->until_ns = time_boot_ns() + REMEMBER_NS;
	} else if (memcmp(m->sha, sha, sizeof(sha)) == 0) {
		m->until_ns = 0;
	}
}

bool
token_batcher_cached(struct token_batcher *l, const char *token, struct identity_row *ret)
{
	uint8_t sha[SHA256_SIZE];
	const struct memory *m = memory_of(l, token, sha);
	bool found;

	pthread_mutex_lock(&l->lock);
	found = memcmp(m->sha, sha, sizeof(sha)) == 0 && time_boot_ns() < m->until_ns;
	if (found)
		*ret = m->who;
	pthread_mutex_unlock(&l->lock);
	return found;
}

void
token_batcher_forget(struct token_batcher *l, const char *token)
{
	uint8_t sha[SHA256_SIZE];
	struct memory *m = memory_of(l, token, sha);

	pthread_mutex_lock(&l->lock);
	if (memcmp(m->sha, sha, sizeof(sha)) == 0)
		m->until_ns = 0;
	pthread_mutex_unlock(&l->lock);
}

/* Queries for all that wait, the oldest first. With the lock, which is released during the query. */
static void
look(struct token_batcher *l, struct db *db)
{
	struct waiter *group[TOKEN_LOOKS_MAX];
	struct token_look *looks[TOKEN_LOOKS_MAX];
	size_t n = 0;

	for (; l->first && n < TOKEN_LOOKS_MAX; l->first = l->first->next) {
		l->first->state = LOOKED_FOR;
		group[n] = l->first;
		looks[n++] = &l->first->look;
	}
	if (!l->first)
		l->end = &l->first;
	l->looking++;
	pthread_mutex_unlock(&l->lock);
	store_tokens_check(db, looks, n);
	pthread_mutex_lock(&l->lock);
	l->looking--;
	for (size_t i = 0; i < n; i++) {
		remember(l, looks[i]);
		group[i]->state = DONE;
		pthread_cond_signal(&group[i]->moved);
	}
	if (l->first)
		pthread_cond_signal(&l->first->moved);
}

bool
token_batcher_check(struct token_batcher *l, struct db *db, const char *token, struct identity_row *ret,
                    struct err *err)
{
	struct waiter me = {.look = {.token = token}};
	int64_t deadline_ns = 0;
	bool patient = true;

	condition_init(&me.moved);
	pthread_mutex_lock(&l->lock);
	*l->end = &me;
	l->end = &me.next;
	while (me.state != DONE) {
		if (me.state == WAITS && (l->looking < LOOKS_AT_ONCE || !patient)) {
			look(l, db);
			continue;
		}
		if (deadline_ns == 0)
			deadline_ns = time_monotonic_ns() + PATIENCE_NS;
		if (me.state == WAITS)
			patient = condition_wait_until(&me.moved, &l->lock, deadline_ns);
		else
			pthread_cond_wait(&me.moved, &l->lock);
	}
	pthread_mutex_unlock(&l->lock);
	pthread_cond_destroy(&me.moved);
	*ret = me.look.who;
	*err = me.look.err;
	return err->kind == ERR_NONE;
}
