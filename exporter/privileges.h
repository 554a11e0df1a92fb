/* exporter/privileges.h - from root to a user who may do no more than is needed, once the GPU library is open. */
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

/* Who that is, by the system's user database. ERR_INVALID: nobody, or root. */
MUST_CHECK bool privileges_find(const char *user, struct privileges *ret, struct err *err);
/* Becomes that user, in this thread and those that it starts later, for good: no program that is started and no set-user-id bit
 * gives anything back. Of this thread only, because a thread that hangs in the driver cannot be told: it drops when its call
 * returns. ERR_DENIED: this is neither root nor that user. */
MUST_CHECK bool privileges_drop(const struct privileges *p, struct err *err);

#endif
