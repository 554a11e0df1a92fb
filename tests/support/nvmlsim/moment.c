/* tests/support/nvmlsim/moment.c - what a scenario says of a moment of virtual time. */
#include "tests/support/nvmlsim/moment.h"

#include <string.h>

#define PPM_PER_PERCENT 10000

static int64_t
least(int64_t a, int64_t b)
{
	return a < b ? a : b;
}

static int64_t
most(int64_t a, int64_t b)
{
	return a > b ? a : b;
}

/* ---- processes ------------------------------------------------------------------------------------------------------ */

/* The last run that began at or before t; -1: none did. */
static int64_t
latest_run(const struct sim_process *p, int64_t t_ns)
{
	if (t_ns < p->start_ns)
		return -1;
	return p->every_ns ? (t_ns - p->start_ns) / p->every_ns : 0;
}

int64_t
moment_run_start(const struct sim_process *p, int64_t run)
{
	return p->start_ns + run * p->every_ns;
}

int64_t
moment_run_end(const struct sim_process *p, int64_t run)
{
	return p->end_ns == SIM_NEVER ? SIM_NEVER : p->end_ns + run * p->every_ns;
}

int64_t
moment_run(const struct sim_process *p, int64_t t_ns)
{
	int64_t run = latest_run(p, t_ns);

	return run >= 0 && t_ns < moment_run_end(p, run) ? run : -1;
}

uint32_t
moment_pid(const struct sim_process *p, int64_t run)
{
	return p->pid + (uint32_t)(run % p->pid_span);
}

const struct sim_phase *
moment_phase(const struct sim_process *p, int64_t since_start_ns)
{
	size_t low = 0, high = p->phase_count;

	while (high - low > 1) {
		size_t mid = low + (high - low) / 2;

		if (p->phases[mid].after_ns <= since_start_ns)
			low = mid;
		else
			high = mid;
	}
	return &p->phases[low];
}

static int64_t
next_phase(const struct sim_process *p, int64_t start_ns, int64_t t_ns)
{
	const struct sim_phase *phase = moment_phase(p, t_ns - start_ns);

	return phase + 1 < p->phases + p->phase_count ? start_ns + phase[1].after_ns : SIM_NEVER;
}

int64_t
moment_next_turn(const struct sim_process *p, int64_t t_ns)
{
	int64_t run = latest_run(p, t_ns);

	if (run < 0)
		return p->start_ns;
	if (t_ns < moment_run_end(p, run))
		return least(moment_run_end(p, run), next_phase(p, moment_run_start(p, run), t_ns));
	return p->every_ns ? moment_run_start(p, run + 1) : SIM_NEVER;
}

int128
moment_sm_ns(const struct sim_process *p, int64_t start_ns, int64_t from_ns, int64_t to_ns)
{
	int128 sum = 0;

	for (int64_t t = most(from_ns, start_ns); t < to_ns;) {
		int64_t until = least(next_phase(p, start_ns, t), to_ns);

		sum += (int128)moment_phase(p, t - start_ns)->sm * (until - t);
		t = until;
	}
	return sum;
}

/* ---- GPUs ----------------------------------------------------------------------------------------------------------- */

const struct sim_layout *
moment_layout(const struct sim_gpu *g, int64_t t_ns)
{
	size_t low = 0, high = g->layout_count;

	while (high - low > 1) {
		size_t mid = low + (high - low) / 2;

		if (g->layouts[mid].at_ns <= t_ns)
			low = mid;
		else
			high = mid;
	}
	return &g->layouts[low];
}

int
moment_place(const struct sim_process *p, const struct sim_layout *l)
{
	bool by_ids = p->gi >= 0;

	if (p->instance >= 0)
		return l->mig && (size_t)p->instance < l->count ? p->instance : PLACE_NONE;
	if (!by_ids && !p->instance_uuid)
		return l->mig ? PLACE_NONE : PLACE_WHOLE;
	for (size_t i = 0; i < l->count; i++) {
		const struct sim_instance *in = &l->instances[i];

		if (by_ids ? in->gi == (uint32_t)p->gi && in->ci == (uint32_t)p->ci
		           : strcmp(in->uuid, p->instance_uuid) == 0)
			return (int)i;
	}
	return PLACE_NONE;
}

int64_t
moment_cap_ppm(int64_t percent)
{
	return least(percent * PPM_PER_PERCENT, SIM_PPM);
}

int64_t
moment_gpu_ppm(const struct sim_gpu *g, const struct sim_layout *l, const int64_t percent[SIM_INSTANCES_MAX + 1])
{
	int64_t whole = moment_cap_ppm(percent[SIM_INSTANCES_MAX]);

	for (size_t i = 0; i < l->count; i++)
		whole += moment_cap_ppm(percent[i]) * l->instances[i].slices.compute / g->geometry.compute_slices;
	return least(whole, SIM_PPM);
}

const struct sim_fault *
moment_fault(const struct scenario *sc, int gpu, int64_t t_ns)
{
	for (size_t i = 0; i < sc->fault_count; i++) {
		const struct sim_fault *f = &sc->faults[i];

		if (f->gpu == gpu && f->at_ns <= t_ns && t_ns < f->until_ns)
			return f;
	}
	return NULL;
}

/* ---- what is scripted ----------------------------------------------------------------------------------------------- */

/* How many points are at or before t. */
static size_t
points_until(const struct sim_series *s, int64_t t_ns)
{
	size_t low = 0, high = s->count;

	while (low < high) {
		size_t mid = low + (high - low) / 2;

		if (s->points[mid].at_ns <= t_ns)
			low = mid + 1;
		else
			high = mid;
	}
	return low;
}

bool
moment_scripted(const struct sim_gpu *g, enum sim_key key, int gi, int ci, int64_t t_ns, int64_t *ret)
{
	const struct sim_series *s = g->series_count ? sim_series_of(g, key, gi, ci) : NULL;
	size_t n = s ? points_until(s, t_ns) : 0;

	if (n == 0)
		return false;
	*ret = s->points[n - 1].value;
	return true;
}

int64_t
moment_next_point(const struct sim_series *s, int64_t t_ns)
{
	size_t n = s ? points_until(s, t_ns) : 0;

	return s && n < s->count ? s->points[n].at_ns : SIM_NEVER;
}

bool
moment_average(const struct sim_gpu *g, enum sim_key key, int gi, int ci, int64_t from_ns, int64_t to_ns, int64_t *ret)
{
	const struct sim_series *s = sim_series_of(g, key, gi, ci);
	int128 sum = 0;
	int64_t value;

	if (!s || to_ns <= from_ns)
		return false;
	for (int64_t t = from_ns; t < to_ns;) {
		int64_t until = least(moment_next_point(s, t), to_ns);

		if (!moment_scripted(g, key, gi, ci, t, &value))
			return false;
		if (value == SIM_ABSENT) {
			*ret = SIM_ABSENT;
			return true;
		}
		sum += (int128)value * (until - t);
		t = until;
	}
	*ret = (int64_t)((sum + (to_ns - from_ns) / 2) / (to_ns - from_ns));
	return true;
}

/* ---- the wall clock ------------------------------------------------------------------------------------------------- */

int64_t
moment_wall_ns(const struct scenario *sc, int64_t wall0_ns, int64_t t_ns)
{
	int64_t wall = wall0_ns + t_ns;

	for (size_t i = 0; i < sc->step_count && sc->steps[i].at_ns <= t_ns; i++)
		wall += sc->steps[i].by_ns;
	return wall;
}

int64_t
moment_of_wall(const struct scenario *sc, int64_t wall0_ns, int64_t wall_ns, int64_t t_ns)
{
	int64_t offset = wall0_ns, until = t_ns;
	size_t n = 0;

	while (n < sc->step_count && sc->steps[n].at_ns <= t_ns)
		offset += sc->steps[n++].by_ns;
	/* from the last stretch between two steps back to the first */
	for (;; n--) {
		int64_t begins = n > 0 ? sc->steps[n - 1].at_ns : 0;

		if (wall_ns - offset >= begins)
			return least(wall_ns - offset, until);
		if (n == 0)
			return 0;
		/* skipped by a step forward: it stood there at the step */
		if (sc->steps[n - 1].by_ns > 0 && wall_ns - (offset - sc->steps[n - 1].by_ns) >= begins)
			return begins;
		offset -= sc->steps[n - 1].by_ns;
		until = begins;
	}
}
