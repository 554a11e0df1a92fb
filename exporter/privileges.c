/* exporter/privileges.c - leaving root for the user of --user. */
#include "exporter/privileges.h"

#include <errno.h>
#include <grp.h>
#include <pwd.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

bool
privileges_find(const char *user, struct privileges *ret, struct err *err)
{
	struct passwd pw, *found = NULL;
	char text[4096];
	int rc = getpwnam_r(user, &pw, text, sizeof(text), &found);

	if (rc != 0)
		return err_errno(err, ERR_FATAL, rc, "user: '%s' cannot be looked up", user);
	if (!found)
		return err_set(err, ERR_INVALID, "user: there is no '%s'", user);
	if (pw.pw_uid == 0)
		return err_set(err, ERR_INVALID, "user: '%s' is root; this option is for leaving root", user);
	*ret = (struct privileges){.uid = pw.pw_uid, .gid = pw.pw_gid, .group_count = PRIVILEGES_GROUPS_MAX};
	snprintf(ret->user, sizeof(ret->user), "%s", user);
	if (getgrouplist(user, pw.pw_gid, ret->groups, &ret->group_count) < 0)
		return err_set(err, ERR_INVALID, "user: '%s' is in more than %d groups", user, PRIVILEGES_GROUPS_MAX);
	return true;
}

/* The system calls themselves: glibc's functions of these names stop every thread to change it too, and wait for one that hangs. */
static bool
become(const struct privileges *p)
{
	return syscall(SYS_setgroups, (size_t)p->group_count, p->groups) == 0 &&
	       syscall(SYS_setresgid, p->gid, p->gid, p->gid) == 0 &&
	       syscall(SYS_setresuid, p->uid, p->uid, p->uid) == 0;
}

bool
privileges_drop(const struct privileges *p, struct err *err)
{
	if (prctl(PR_SET_NO_NEW_PRIVS, 1L, 0L, 0L, 0L) != 0)
		return err_errno(err, ERR_FATAL, errno, "user: new privileges cannot be ruled out");
	if (geteuid() == p->uid && getuid() == p->uid)
		return true;
	if (!become(p))
		return err_errno(err, errno == EPERM ? ERR_DENIED : ERR_FATAL, errno,
		                 "user: cannot become '%s', which takes root", p->user);
	/* checked, because there must be no way back to root */
	if (syscall(SYS_setresuid, 0, 0, 0) == 0 || getuid() != p->uid || geteuid() != p->uid || getgid() != p->gid)
		return err_set(err, ERR_FATAL, "user: '%s' could become root again", p->user);
	return true;
}
