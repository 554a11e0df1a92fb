/* exporter/privileges.h - leaving root for the user of --user, once the GPU library is open. */
#ifndef TOLLGATE_PRIVILEGES_H
#define TOLLGATE_PRIVILEGES_H

#include <sys/types.h>

#include "common/base/err.h"

#define PRIVILEGES_GROUPS_MAX 64

struct privileges {
	char user[64];
	uid_t uid;
	gid_t gid;
	gid_t groups[PRIVILEGES_GROUPS_MAX];
	int group_count;
};

/* Looks the user up in the system's user database. ERR_INVALID: there is no such user, or it is root. */
MUST_CHECK bool privileges_find(const char *user, struct privileges *ret, struct err *err);
/* Becomes that user, in this thread and those that it starts later, for good: no program that is started and no set-user-id bit
 * gives root back. It changes this thread only: a thread that hangs in the driver leaves root when its call returns. ERR_DENIED: this is neither root nor that user. */
MUST_CHECK bool privileges_drop(const struct privileges *p, struct err *err);

#endif
