/* tests/support/nvmlsim/world.c - the state of a scenario at a moment of virtual time. */
#include "tests/support/nvmlsim/world.h"

#define PPM INT64_C(1000000)
#define PPM_PER_PERCENT 10000

static int64_t
least(int64_t a, int64_t b)
{
	return a < b ? a : b;
}

int64_t
world_latest_run(const struct sim_process *p, int64_t t_ns)
{
	if (t_ns < p->start_ns)
		return -1;
	return p->every_ns ? (t_ns - p->start_ns) / p->every_ns : 0;
}

int64_t
world_run_start(const struct sim_process *p, int64_t run)
{
	return p->start_ns + run * p->every_ns;
}

static int64_t
run_end(const struct sim_process *p, int64_t run)
{
	return p->end_ns == SIM_NEVER ? SIM_NEVER : p->end_ns + run * p->every_ns;
}

int64_t
world_run(const struct sim_process *p, int64_t t_ns)
{
	int64_t run = world_latest_run(p, t_ns);

	return run >= 0 && t_ns < run_end(p, run) ? run : -1;
}

uint32_t
world_pid(const struct sim_process *p, int64_t run)
{
	return p->pid + (uint32_t)(run % p->pid_span);
}

int64_t
world_run_overlap(const struct sim_process *p, int64_t run, int64_t from_ns, int64_t to_ns)
{
	int64_t start = world_run_start(p, run);
	int64_t from = from_ns > start ? from_ns : start;
	int64_t to = least(to_ns, run_end(p, run));

	return to > from ? to - from : 0;
}

const struct sim_layout *
world_layout(const struct sim_gpu *g, int64_t t_ns)
{
	size_t i = g->layout_count - 1;

	while (i > 0 && g->layouts[i].at_ns > t_ns)
		i--;
	return &g->layouts[i];
}

static bool
has_place(size_t gpu, const struct sim_process *p, const struct sim_layout *l)
{
	if (!(p->gpus >> gpu & 1))
		return false;
	return p->instance < 0 ? !l->mig : l->mig && (size_t)p->instance < l->count;
}

bool
world_is_on(const struct scenario *sc, size_t gpu, const struct sim_process *p, int64_t t_ns)
{
	return world_run(p, t_ns) >= 0 && has_place(gpu, p, world_layout(&sc->gpus[gpu], t_ns));
}

int64_t
world_active_ppm(const struct scenario *sc, size_t gpu, int64_t t_ns)
{
	const struct sim_gpu *g = &sc->gpus[gpu];
	const struct sim_layout *l = world_layout(g, t_ns);
	int64_t in_instance[SIM_INSTANCES_MAX] = {0}, whole = 0;

	for (size_t i = 0; i < sc->process_count; i++) {
		const struct sim_process *p = &sc->processes[i];

		if (!has_place(gpu, p, l) || world_run(p, t_ns) < 0)
			continue;
		*(p->instance < 0 ? &whole : &in_instance[p->instance]) += p->sm * PPM_PER_PERCENT;
	}
	for (size_t i = 0; i < l->count; i++)
		whole += least(in_instance[i], PPM) * l->instances[i].slices.compute / g->geometry.compute_slices;
	return least(whole, PPM);
}

int64_t
world_power_mw(const struct scenario *sc, size_t gpu, int64_t t_ns)
{
	const struct sim_gpu *g = &sc->gpus[gpu];

	return g->idle_mw + (g->max_mw - g->idle_mw) * world_active_ppm(sc, gpu, t_ns) / PPM;
}

const struct sim_fault *
world_fault(const struct scenario *sc, int gpu, int64_t t_ns)
{
	for (size_t i = 0; i < sc->fault_count; i++) {
		const struct sim_fault *f = &sc->faults[i];

		if (f->gpu == gpu && f->at_ns <= t_ns && t_ns < f->until_ns)
			return f;
	}
	return NULL;
}

/* The first moment after t at which a run of the process begins or ends. */
static int64_t
next_turn(const struct sim_process *p, int64_t t_ns)
{
	int64_t run = world_latest_run(p, t_ns);

	if (run < 0)
		return p->start_ns;
	if (t_ns < run_end(p, run))
		return run_end(p, run);
	return p->every_ns ? world_run_start(p, run + 1) : SIM_NEVER;
}

/* Until when the power of the GPU stays what it is at t. */
static int64_t
next_change(const struct scenario *sc, size_t gpu, int64_t t_ns)
{
	const struct sim_gpu *g = &sc->gpus[gpu];
	int64_t next = SIM_NEVER;

	for (size_t i = 0; i < sc->process_count; i++)
		if (sc->processes[i].gpus >> gpu & 1)
			next = least(next, next_turn(&sc->processes[i], t_ns));
	for (size_t i = 0; i < g->layout_count; i++)
		if (g->layouts[i].at_ns > t_ns)
			next = least(next, g->layouts[i].at_ns);
	return next;
}

int64_t
world_energy_mj(const struct scenario *sc, size_t gpu, struct world_energy *e, int64_t t_ns)
{
	if (t_ns < e->t_ns)
		*e = (struct world_energy){0};
	while (e->t_ns < t_ns) {
		int64_t until = least(next_change(sc, gpu, e->t_ns), t_ns);

		e->mw_ns += (int128)world_power_mw(sc, gpu, e->t_ns) * (until - e->t_ns);
		e->t_ns = until;
	}
	return (int64_t)(e->mw_ns / INT64_C(1000000000));
}
