/* tests/support/nvmlsim/world.h - a scenario in motion: who is alive, how active each GPU is, what it has consumed.
 *
 * Time goes forward event by event (a run begins, ends or changes, a GPU is cut anew), so that a tick costs what happened since
 * the last one and not what the scenario has in it. Going back in time begins from 0 again. */
#ifndef TOLLGATE_NVMLSIM_WORLD_H
#define TOLLGATE_NVMLSIM_WORLD_H

#include "tests/support/nvmlsim/moment.h"

struct world;

/* A process that is alive on a GPU. */
struct world_run {
	const struct sim_process *p;
	uint32_t pid;
	int64_t start_ns;
	int place;    /* see moment_place; never PLACE_NONE in what world_alive gives */
	size_t order; /* in the file */
};
/* One that has ended. */
struct world_ended {
	const struct sim_process *p;
	uint32_t pid;
	int64_t start_ns, end_ns;
	int64_t max_memory_bytes;
};
#define WORLD_ENDED_MAX 4000u /* the driver's accounting keeps as many */

struct world *world_new(const struct scenario *sc); /* at time 0; the scenario must outlive it */
void world_free(struct world *w);
DEFINE_OWNED(world, struct world)

void world_advance(struct world *w, int64_t t_ns);
int64_t world_now(const struct world *w);
/* Another number after every change. */
uint64_t world_version(const struct world *w);

/* Processes beside those of the scenario, from now on or until now. The world owns what it was given. */
void world_add(struct world *w, struct sim_process *p);
void world_end(struct world *w, const struct sim_process *p);

/* Those on a GPU, in the order of the file. Valid until the next advance. */
size_t world_alive(struct world *w, size_t gpu, const struct world_run **ret);
/* The one with a PID, on any GPU; NULL: none. */
const struct sim_process *world_process(const struct world *w, uint32_t pid);
/* The n-th latest that ended on a GPU, from 0; NULL: not kept. */
const struct world_ended *world_ended(const struct world *w, size_t gpu, size_t n);

const struct sim_layout *world_layout(const struct world *w, size_t gpu);
/* Activity in millionths, now and integrated over time since 0 (of an instance: since it was made). */
int64_t world_active_ppm(struct world *w, size_t gpu);
int64_t world_instance_ppm(struct world *w, size_t gpu, size_t instance);
int128 world_active_ppm_ns(struct world *w, size_t gpu);
int128 world_instance_ppm_ns(struct world *w, size_t gpu, size_t instance);
int64_t world_power_mw(struct world *w, size_t gpu);
int64_t world_energy_mj(struct world *w, size_t gpu); /* power integrated from 0, exactly */

#endif
