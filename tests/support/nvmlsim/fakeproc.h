/* tests/support/nvmlsim/fakeproc.h - the simulated processes as the kernel and the kubelet would show them: a folder like
 * /proc with stat, status and cgroup of each, and one like /var/log/pods. What finds the owner of a process runs on these
 * as it runs on a node. */
#ifndef TOLLGATE_NVMLSIM_FAKEPROC_H
#define TOLLGATE_NVMLSIM_FAKEPROC_H

#include "tests/support/nvmlsim/world.h"

struct fakeproc;

/* Either folder may be NULL. They are made, or taken over from an earlier simulator and emptied; others are refused.
 * t0_ns is the boot time of virtual time 0. The scenario must outlive the result. */
MUST_CHECK bool fakeproc_open(const char *proc_dir, const char *pods_dir, const struct scenario *sc, int64_t t0_ns,
                              struct fakeproc **ret, struct err *err);
void fakeproc_free(struct fakeproc *fp); /* leaves the folders as they are */
DEFINE_OWNED(fakeproc, struct fakeproc)

/* Makes the folders show what is alive. Does nothing when that has not changed. */
MUST_CHECK bool fakeproc_sync(struct fakeproc *fp, const struct world *w, struct err *err);

#endif
