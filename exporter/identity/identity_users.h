/* exporter/identity/identity_users.h - names of users and of their primary groups. Asking for one may take as long as a directory server
 * likes, so a thread of its own asks, and a tick waits for it no longer than it has patience left.
 *
 * A name once known stays while the exporter runs, and so does the group that came with it: a holder goes from its number to its
 * name at most once, and never to another name. A number without a name is asked for again from time to time. */
#ifndef TOLLGATE_IDENTITY_USERS_H
#define TOLLGATE_IDENTITY_USERS_H

#include "common/base/base.h"

#define USER_NAME_SIZE 256
#define USERS_MAX 4096u /* numbers remembered; further ones have no name */

struct user_text {
	char name[USER_NAME_SIZE], group[USER_NAME_SIZE];
};
struct user_source {
	/* The name of a number, and of its primary group, empty where that has none; false: the number has none, or the directory
	 * does not answer. NULL: the system's users. */
	bool (*ask)(void *arg, uint32_t uid, struct user_text *ret);
	void *arg;
};

struct user_names;
struct user_names *user_names_new(const struct user_source *source);
/* Does not wait for a question under way. */
void user_names_free(struct user_names *n);
DEFINE_OWNED(user_names, struct user_names)

/* Valid as long as user_names. */
struct user_name {
	const char *name;  /* NULL: not known (yet) */
	const char *group; /* empty: not known */
};
/* Waits up to *patience_ns for the first answer, and takes what it waited off it. */
struct user_name user_names_get(struct user_names *n, uint32_t uid, int64_t *patience_ns);
/* How many names came to be known. */
uint64_t user_names_known(struct user_names *n);

#endif
