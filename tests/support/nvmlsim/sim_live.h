/* tests/support/nvmlsim/sim_live.h - a folder in which real processes register themselves: a file each, see README.md. */
#ifndef TOLLGATE_NVMLSIM_LIVE_H
#define TOLLGATE_NVMLSIM_LIVE_H

#include "tests/support/nvmlsim/world.h"

#define LIVE_MAX 4096u

struct live;

/* Files of the scenario's GPUs. The folder must exist. */
MUST_CHECK bool live_open(const char *dir, struct scenario *sc, struct live **ret, struct err *err);
void live_free(struct live *l);
DEFINE_OWNED(live, struct live)

/* Brings the world up to date with the folder and with who is still running: one system call when nothing happened. False when
 * a registration is refused; the others are taken all the same. */
MUST_CHECK bool live_sync(struct live *l, struct world *w, struct err *err);

#endif
