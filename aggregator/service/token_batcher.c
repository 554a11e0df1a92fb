/* aggregator/service/token_batcher.c - requests that come at the same time share one look at their tokens. */
#include "aggregator/service/token_batcher.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <time.h>

#include "aggregator/store/access/access.h"
#include "common/base/digest.h"
#include "common/base/time.h"

#define LOOKS_AT_ONCE 2u
/* A session may hang that others do not: who has waited for so long looks for itself, however many others do. */
#define PATIENCE_NS (200 * NS_PER_MS)
#define REMEMBERED 4096        /* of a fleet: one that is not remembered costs a look more at each request */
#define REMEMBER_NS NS_PER_MIN /* then the next look says that the token is in use */

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

struct token_line {
	pthread_mutex_t lock;
	pthread_condattr_t clock;
	struct waiter *first, **end;
	unsigned looking;
	struct memory memories[REMEMBERED]; /* each at the place that its hash says; the last one stays */
};

struct token_line *
token_line_new(void)
{
	struct token_line *l = mem_alloc(sizeof(*l));

	l->end = &l->first;
	pthread_mutex_init(&l->lock, NULL);
	pthread_condattr_init(&l->clock);
	pthread_condattr_setclock(&l->clock, CLOCK_MONOTONIC);
	return l;
}

void
token_line_free(struct token_line *l)
{
	if (!l)
		return;
	ASSERT(!l->first && !l->looking);
	pthread_condattr_destroy(&l->clock);
	pthread_mutex_destroy(&l->lock);
	mem_free(l);
}

static struct memory *
memory_of(struct token_line *l, const char *token, uint8_t sha[SHA256_SIZE])
{
	sha256(token, strlen(token), sha);
	return &l->memories[(sha[0] | (unsigned)sha[1] << 8) % REMEMBERED];
}

/* With the lock. */
static void
remember(struct token_line *l, const struct token_look *k)
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
token_line_recall(struct token_line *l, const char *token, struct identity_row *ret)
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
token_line_forget(struct token_line *l, const char *token)
{
	uint8_t sha[SHA256_SIZE];
	struct memory *m = memory_of(l, token, sha);

	pthread_mutex_lock(&l->lock);
	if (memcmp(m->sha, sha, sizeof(sha)) == 0)
		m->until_ns = 0;
	pthread_mutex_unlock(&l->lock);
}

/* With the lock, which is let go of while it looks: for those that wait, the longest first. */
static void
look(struct token_line *l, struct db *db)
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

static struct timespec
patience_end(void)
{
	int64_t ns = time_monotonic_ns() + PATIENCE_NS;

	return (struct timespec){.tv_sec = (time_t)(ns / NS_PER_S), .tv_nsec = (long)(ns % NS_PER_S)};
}

bool
token_line_check(struct token_line *l, struct db *db, const char *token, struct identity_row *ret, struct err *err)
{
	struct waiter me = {.look = {.token = token}};
	struct timespec until = {0};
	bool patient = true;

	pthread_cond_init(&me.moved, &l->clock);
	pthread_mutex_lock(&l->lock);
	*l->end = &me;
	l->end = &me.next;
	while (me.state != DONE) {
		if (me.state == WAITS && (l->looking < LOOKS_AT_ONCE || !patient)) {
			look(l, db);
			continue;
		}
		if (until.tv_sec == 0)
			until = patience_end();
		if (me.state == WAITS)
			patient = pthread_cond_timedwait(&me.moved, &l->lock, &until) != ETIMEDOUT;
		else
			pthread_cond_wait(&me.moved, &l->lock);
	}
	pthread_mutex_unlock(&l->lock);
	pthread_cond_destroy(&me.moved);
	*ret = me.look.who;
	*err = me.look.err;
	return err->kind == ERR_NONE;
}
