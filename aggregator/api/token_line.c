/* aggregator/api/token_line.c - requests that show the same token at the same time share one look at it. */
#include "aggregator/api/token_line.h"

#include <pthread.h>
#include <string.h>

#include "common/digest.h"
#include "common/time.h"

#define REMEMBERED 64
#define REMEMBER_NS NS_PER_MIN /* then the next look says that the token is in use */

struct look {
	struct look *next;
	const char *token; /* of who made it, who stays to the end */
	enum { LOOK_GATHERS, LOOK_RUNS, LOOK_DONE } state;
	int others; /* who still need what it found */
	bool ok;
	struct identity_row who;
	struct err err;
};

struct memory {
	uint8_t sha[SHA256_SIZE];
	int64_t until_ns; /* on the boot clock; 0: empty */
	struct identity_row who;
};

struct token_line {
	pthread_mutex_t lock;
	pthread_cond_t moved;
	struct look *looks;
	struct memory memories[REMEMBERED]; /* each at the place that its hash says; the last one stays */
};

struct token_line *
token_line_new(void)
{
	struct token_line *l = mem_alloc(sizeof(*l));

	pthread_mutex_init(&l->lock, NULL);
	pthread_cond_init(&l->moved, NULL);
	return l;
}

void
token_line_free(struct token_line *l)
{
	if (!l)
		return;
	ASSERT(!l->looks);
	pthread_cond_destroy(&l->moved);
	pthread_mutex_destroy(&l->lock);
	mem_free(l);
}

static struct look *
find(const struct token_line *l, const char *token, int state)
{
	for (struct look *k = l->looks; k; k = k->next)
		if ((int)k->state == state && strcmp(k->token, token) == 0)
			return k;
	return NULL;
}

static void
drop(struct token_line *l, const struct look *k)
{
	struct look **at = &l->looks;

	while (*at != k)
		at = &(*at)->next;
	*at = k->next;
}

static struct memory *
memory_of(struct token_line *l, const char *token, uint8_t sha[SHA256_SIZE])
{
	sha256(token, strlen(token), sha);
	return &l->memories[sha[0] % REMEMBERED];
}

/* With the lock. */
static void
remember(struct token_line *l, const struct look *k)
{
	uint8_t sha[SHA256_SIZE];
	struct memory *m = memory_of(l, k->token, sha);

	if (k->ok) {
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

/* With the lock, which is let go of while it looks. */
static void
run(struct token_line *l, struct db *db, struct look *k)
{
	while (find(l, k->token, LOOK_RUNS))
		pthread_cond_wait(&l->moved, &l->lock);
	k->state = LOOK_RUNS;
	pthread_mutex_unlock(&l->lock);
	k->ok = store_token_check(db, k->token, &k->who, &k->err);
	pthread_mutex_lock(&l->lock);
	remember(l, k);
	k->state = LOOK_DONE;
	pthread_cond_broadcast(&l->moved);
}

bool
token_line_check(struct token_line *l, struct db *db, const char *token, struct identity_row *ret, struct err *err)
{
	struct look mine = {.token = token}, *k;
	bool ok;

	pthread_mutex_lock(&l->lock);
	k = find(l, token, LOOK_GATHERS);
	if (k) {
		k->others++;
		while (k->state != LOOK_DONE)
			pthread_cond_wait(&l->moved, &l->lock);
	} else {
		k = &mine;
		k->next = l->looks;
		l->looks = k;
		run(l, db, k);
	}
	*ret = k->who;
	*err = k->err;
	ok = k->ok;
	if (k == &mine) {
		while (k->others > 0)
			pthread_cond_wait(&l->moved, &l->lock);
		drop(l, k);
	} else if (--k->others == 0) {
		pthread_cond_broadcast(&l->moved);
	}
	pthread_mutex_unlock(&l->lock);
	return ok;
}
