/* exporter/identity/identity_users.c - names of users and groups, looked up by a thread of its own. */
#include "exporter/identity/identity.h"

#include <errno.h>
#include <grp.h>
#include <pthread.h>
#include <pwd.h>
#include <stdio.h>

#include "common/base/hash.h"
#include "common/base/thread.h"
#include "common/base/time.h"
#include "exporter/source/sanitize.h"

#define ASK_AGAIN_NS (30 * NS_PER_S)

enum state { WANTED, NAMED, NAMELESS };

struct user {
	uint32_t uid;
	enum state state;
	int64_t asked_boot_ns;
	char *name, *group; /* NULL: none */
};

struct user_names {
	pthread_mutex_t lock;
	pthread_cond_t wanted, answered;
	pthread_t thread;
	bool has_thread, stop;
	bool busy;     /* the thread is asking */
	bool orphaned; /* the thread frees all this */
	struct user_source source;
	struct user *users;
	size_t count;
	struct hash by_uid;
	uint64_t known; /* users with a name */
};

/* A large group is a long text: it lists its members, which are not needed here. */
#define GROUP_TEXT_MAX (4u << 20)

static void
ask_group(gid_t gid, char out[USER_NAME_SIZE])
{
	size_t size = 16384;
	struct group gr, *found;
	int rc;

	do {
		owned(mem) char *text = mem_alloc(size);

		found = NULL;
		rc = getgrgid_r(gid, &gr, text, size, &found);
		if (rc == 0 && found)
			snprintf(out, USER_NAME_SIZE, "%s", found->gr_name);
		size *= 4;
	} while (rc == ERANGE && size <= GROUP_TEXT_MAX);
}

static bool
ask_system(void *arg, uint32_t uid, struct user_text *ret)
{
	struct passwd pw, *found = NULL;
	char text[16384];

	(void)arg;
	if (getpwuid_r((uid_t)uid, &pw, text, sizeof(text), &found) != 0 || !found || !found->pw_name[0])
		return false;
	snprintf(ret->name, sizeof(ret->name), "%s", found->pw_name);
	ask_group(found->pw_gid, ret->group);
	return true;
}

static void
destroy(struct user_names *n)
{
	for (size_t i = 0; i < n->count; i++) {
		mem_free(n->users[i].name);
		mem_free(n->users[i].group);
	}
	mem_free(n->users);
	hash_fini(&n->by_uid);
	pthread_cond_destroy(&n->wanted);
	pthread_cond_destroy(&n->answered);
	pthread_mutex_destroy(&n->lock);
	mem_free(n);
}

static bool
find_wanted(const struct user_names *n, size_t *ret)
{
	for (size_t i = 0; i < n->count; i++)
		if (n->users[i].state == WANTED) {
			*ret = i;
			return true;
		}
	return false;
}

/* Asks for the user at a position, without the lock. Users are never removed, so the position stays. */
static void
ask(struct user_names *n, size_t at)
{
	uint32_t uid = n->users[at].uid;
	struct user_text text = {0};
	bool known;

	n->busy = true;
	pthread_mutex_unlock(&n->lock);
	known = n->source.ask(n->source.arg, uid, &text);
	pthread_mutex_lock(&n->lock);
	n->busy = false;
	n->users[at].state = known ? NAMED : NAMELESS;
	n->users[at].asked_boot_ns = time_boot_ns();
	if (known) {
		n->users[at].name = sanitized_copy(text.name, USER_NAME_SIZE);
		n->users[at].group = sanitized_copy(text.group, USER_NAME_SIZE);
		n->known++;
	}
	pthread_cond_broadcast(&n->answered);
}

static void *
run(void *arg)
{
	struct user_names *n = arg;
	bool orphaned;
	size_t at;

	pthread_mutex_lock(&n->lock);
	while (!n->stop) {
		if (find_wanted(n, &at))
			ask(n, at);
		else
			pthread_cond_wait(&n->wanted, &n->lock);
	}
	orphaned = n->orphaned;
	pthread_mutex_unlock(&n->lock);
	if (orphaned)
		destroy(n);
	return NULL;
}

struct user_names *
user_names_new(const struct user_source *source)
{
	struct user_names *n = mem_alloc(sizeof(*n));

	n->source = *source;
	if (!n->source.ask)
		n->source.ask = ask_system;
	n->users = mem_array(USERS_MAX, sizeof(*n->users));
	pthread_mutex_init(&n->lock, NULL);
	condition_init(&n->wanted);
	condition_init(&n->answered);
	/* without a thread users have no names; everything else goes on */
	n->has_thread = pthread_create(&n->thread, NULL, run, n) == 0;
	return n;
}

void
user_names_free(struct user_names *n)
{
	bool orphan;

	if (!n)
		return;
	pthread_mutex_lock(&n->lock);
	n->stop = true;
	orphan = n->has_thread && n->busy;
	n->orphaned = orphan;
	if (orphan)
		pthread_detach(n->thread);
	pthread_cond_signal(&n->wanted);
	pthread_mutex_unlock(&n->lock);
	if (orphan)
		return;
	if (n->has_thread)
		pthread_join(n->thread, NULL);
	destroy(n);
}

/* The user's entry, asked for if it was not, or not lately. NULL: there are too many. */
static struct user *
want(struct user_names *n, uint32_t uid)
{
	size_t at = hash_get(&n->by_uid, uid);

	if (at == HASH_NONE) {
		if (n->count == USERS_MAX)
			return NULL;
		at = n->count++;
		n->users[at] = (struct user){.uid = uid, .state = WANTED};
		hash_put(&n->by_uid, uid, at);
		pthread_cond_signal(&n->wanted);
	} else if (n->users[at].state == NAMELESS && time_boot_ns() - n->users[at].asked_boot_ns > ASK_AGAIN_NS) {
		n->users[at].state = WANTED;
		pthread_cond_signal(&n->wanted);
	}
	return &n->users[at];
}

struct user_name
user_names_get(struct user_names *n, uint32_t uid, int64_t *patience_ns)
{
	struct user_name ret = {.group = ""};
	int64_t began_ns, end_ns;
	const struct user *u;

	pthread_mutex_lock(&n->lock);
	u = want(n, uid);
	if (u && u->state == WANTED && u->asked_boot_ns == 0 && n->has_thread && *patience_ns > 0) {
		began_ns = time_monotonic_ns();
		end_ns = began_ns + *patience_ns;
		while (u->state == WANTED && condition_wait_until(&n->answered, &n->lock, end_ns))
			;
		*patience_ns -= time_monotonic_ns() - began_ns;
	}
	/* a user that is looked up again keeps its name meanwhile */
	if (u && u->name)
		ret = (struct user_name){.name = u->name, .group = u->group};
	pthread_mutex_unlock(&n->lock);
	return ret;
}

uint64_t
user_names_known(struct user_names *n)
{
	uint64_t known;

	pthread_mutex_lock(&n->lock);
	known = n->known;
	pthread_mutex_unlock(&n->lock);
	return known;
}
