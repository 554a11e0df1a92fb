/* tests/support/nvmlsim/moment.h - what a scenario says of a moment of virtual time. Pure. */
#ifndef TOLLGATE_NVMLSIM_MOMENT_H
#define TOLLGATE_NVMLSIM_MOMENT_H

#include "tests/support/nvmlsim/sim_scenario.h"

#define SIM_PPM INT64_C(1000000)

/* ---- processes ---- */

/* Which run of a process is alive: 0, 1, ... ; -1: none. */
int64_t moment_run(const struct sim_process *p, int64_t t_ns);
uint32_t moment_pid(const struct sim_process *p, int64_t run);
int64_t moment_run_start(const struct sim_process *p, int64_t run);
int64_t moment_run_end(const struct sim_process *p, int64_t run); /* SIM_NEVER: none */
/* The first moment after t at which a run begins, ends or changes its phase; SIM_NEVER: none. */
int64_t moment_next_turn(const struct sim_process *p, int64_t t_ns);
/* The phase so long after the start of a run. */
const struct sim_phase *moment_phase(const struct sim_process *p, int64_t since_start_ns);
/* Activity of a run that began at start_ns, between two moments of its life: percent x nanoseconds. */
int128 moment_sm_ns(const struct sim_process *p, int64_t start_ns, int64_t from_ns, int64_t to_ns);

/* ---- GPUs ---- */

const struct sim_layout *moment_layout(const struct sim_gpu *g, int64_t t_ns);

#define PLACE_WHOLE (-1)
#define PLACE_NONE (-2) /* its instance is not there, or the GPU is not whole */
/* Where a process is on one of its GPUs: the index of its instance in the layout, or one of the above. */
int moment_place(const struct sim_process *p, const struct sim_layout *l);

/* The activity of instances and GPU in millionths, from the percents of the processes in each (index SIM_INSTANCES_MAX: in the
 * whole GPU). Never above 1000000; a GPU weighs its instances by their compute slices. */
int64_t moment_cap_ppm(int64_t percent);
int64_t moment_gpu_ppm(const struct sim_gpu *g, const struct sim_layout *l,
                       const int64_t percent[SIM_INSTANCES_MAX + 1]);

/* The fault of a GPU, or with gpu -1 of the driver; NULL: none. */
const struct sim_fault *moment_fault(const struct scenario *sc, int gpu, int64_t t_ns);

/* What is scripted of a board (gi -1) or an instance. False: nothing up to then. */
bool moment_scripted(const struct sim_gpu *g, enum sim_key key, int gi, int ci, int64_t t_ns, int64_t *ret);
/* The first scripted change of a key after t; SIM_NEVER: none. */
int64_t moment_next_point(const struct sim_series *s, int64_t t_ns);
/* The average of a scripted value between two moments, rounded. False: it is not scripted in all of that time. */
bool moment_average(const struct sim_gpu *g, enum sim_key key, int gi, int ci, int64_t from_ns, int64_t to_ns,
                    int64_t *ret);

/* ---- the wall clock of the node ---- */

int64_t moment_wall_ns(const struct scenario *sc, int64_t wall0_ns, int64_t t_ns);
/* The latest moment, up to t, at which the wall clock showed this; 0 when it never did. */
int64_t moment_of_wall(const struct scenario *sc, int64_t wall0_ns, int64_t wall_ns, int64_t t_ns);

#endif
