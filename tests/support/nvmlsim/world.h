/* tests/support/nvmlsim/world.h - the state of a scenario at a moment of virtual time. Pure, but for the energy counters,
 * which remember how far they have come. */
#ifndef TOLLGATE_NVMLSIM_WORLD_H
#define TOLLGATE_NVMLSIM_WORLD_H

#include "tests/support/nvmlsim/scenario.h"

/* Which run of a process is alive: 0, 1, ... ; -1: none. */
int64_t world_run(const struct sim_process *p, int64_t t_ns);
uint32_t world_pid(const struct sim_process *p, int64_t run);
int64_t world_run_start(const struct sim_process *p, int64_t run);
/* The last run that began at or before t; -1: none did. */
int64_t world_latest_run(const struct sim_process *p, int64_t t_ns);
/* How much of from..to a run was alive. */
int64_t world_run_overlap(const struct sim_process *p, int64_t run, int64_t from_ns, int64_t to_ns);

const struct sim_layout *world_layout(const struct sim_gpu *g, int64_t t_ns);
/* Alive on this GPU: in an instance of the present layout, or on a GPU that is whole. */
bool world_is_on(const struct scenario *sc, size_t gpu, const struct sim_process *p, int64_t t_ns);

/* Activity of a GPU in millionths: its processes together, never above 1000000; in MIG weighted by their slices. */
int64_t world_active_ppm(const struct scenario *sc, size_t gpu, int64_t t_ns);
int64_t world_power_mw(const struct scenario *sc, size_t gpu, int64_t t_ns);

/* The fault of a GPU, or with gpu -1 of the driver, at a moment; NULL: none. */
const struct sim_fault *world_fault(const struct scenario *sc, int gpu, int64_t t_ns);

struct world_energy {
	int64_t t_ns;
	int128 mw_ns; /* power integrated from 0 to t_ns, exactly */
};
/* Advances the counter to t (back to 0 first when t is earlier) and returns millijoules. */
int64_t world_energy_mj(const struct scenario *sc, size_t gpu, struct world_energy *e, int64_t t_ns);

#endif
