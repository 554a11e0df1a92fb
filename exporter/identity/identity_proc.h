/* exporter/identity/identity_proc.h - the files of a process in /proc: start time, uid and cgroup. Its name, arguments and environment,
 * which it chooses itself, are never read. */
#ifndef TOLLGATE_IDENTITY_PROC_H
#define TOLLGATE_IDENTITY_PROC_H

#include "common/base/err.h"

#define PROC_FILE_MAX 65536u /* of one /proc file; more than this is cut */

/* How to see that a PID still is the same process, cheapest first. */
enum proc_watch {
	PROC_PIDFD, /* this system's own /proc: a pidfd is readable once its process has ended */
	PROC_FOLDER, /* another system's /proc (a container's view of the host): an open folder of a process stays its own */
	PROC_READ, /* files that look like /proc: the start time is read again */
};

struct proc {
	int fd; /* -1: the root cannot be opened */
	char *root;
	enum proc_watch watch;
	int64_t ns_per_clock_tick;
	char text[PROC_FILE_MAX + 1]; /* the file just read */
};

void proc_init(struct proc *p, const char *root);
void proc_fini(struct proc *p);

/* All: ERR_MISSING: the process is gone; ERR_DENIED: it is there, and this cannot be read. */

/* Reads ROOT/NAME/FILE into p->text; name is "self" or a number. */
MUST_CHECK bool proc_read(struct proc *p, const char *name, const char *file, size_t *ret_len, struct err *err);
/* Start of a process, in clock ticks since boot: with the PID, which process it is. */
MUST_CHECK bool proc_start(struct proc *p, uint32_t pid, uint64_t *ret_ticks, struct err *err);
/* The real uid: the user who started it. */
MUST_CHECK bool proc_uid(struct proc *p, uint32_t pid, int64_t *ret_uid, struct err *err);
MUST_CHECK bool proc_cgroup(struct proc *p, uint32_t pid, size_t *ret_len, struct err *err);

/* A descriptor for proc_ended(); -1: none is available. */
int proc_hold(const struct proc *p, uint32_t pid);
bool proc_ended(const struct proc *p, int held);

#endif
