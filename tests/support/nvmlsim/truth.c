/* tests/support/nvmlsim/truth.c - what a scenario says happened between two moments. */
#include "tests/support/nvmlsim/truth.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int64_t
least(int64_t a, int64_t b)
{
	return a < b ? a : b;
}

/* ---- stretches ------------------------------------------------------------------------------------------------------ */

/* Until when everything on the GPU stays what it is at t. */
static int64_t
next_change(const struct scenario *sc, size_t gpu, int64_t t_ns)
{
	const struct sim_gpu *g = &sc->gpus[gpu];
	int64_t next = moment_next_point(sim_series_of(g, KEY_POWER_MW, -1, -1), t_ns);

	for (size_t i = 0; i < sc->process_count; i++)
		if (sc->processes[i].gpus >> gpu & 1)
			next = least(next, moment_next_turn(&sc->processes[i], t_ns));
	for (size_t i = 0; i < g->layout_count; i++)
		if (g->layouts[i].at_ns > t_ns)
			next = least(next, g->layouts[i].at_ns);
	for (size_t i = 0; i < sc->fault_count; i++) {
		const struct sim_fault *f = &sc->faults[i];

		if (f->gpu != (int)gpu && f->gpu != -1)
			continue;
		if (f->at_ns > t_ns)
			next = least(next, f->at_ns);
		if (f->until_ns > t_ns)
			next = least(next, f->until_ns);
	}
	return next;
}

static int
by_place(const void *a, const void *b)
{
	const struct truth_holder *x = a, *y = b;

	return x->place != y->place ? x->place - y->place : strcmp(x->workload, y->workload);
}

static bool
is_server(const struct sim_process *p)
{
	return strcmp(p->comm, "nvidia-cuda-mps-server") == 0;
}

/* Adds a process to the holder that it belongs to. */
static void
join_holder(struct truth_holder *holders, size_t *count, const struct sim_process *p, int place, int64_t since_ns)
{
	const struct sim_phase *phase = moment_phase(p, since_ns);
	size_t i = 0;

	while (i < *count && (holders[i].place != place || strcmp(holders[i].workload, p->workload) != 0))
		i++;
	if (i == *count)
		holders[(*count)++] = (struct truth_holder){.workload = p->workload, .place = place};
	holders[i].processes++;
	holders[i].active_ppm = least(holders[i].active_ppm + moment_cap_ppm(phase->sm), SIM_PPM);
	holders[i].memory_bytes += phase->memory_bytes;
}

void
truth_walk(const struct scenario *sc, size_t gpu, int64_t from_ns, int64_t to_ns, truth_visit *visit, void *arg)
{
	struct truth_holder *holders = mem_array(sc->process_count, sizeof(*holders));
	const struct sim_gpu *g = &sc->gpus[gpu];

	for (int64_t t = from_ns; t < to_ns;) {
		int64_t percent[SIM_INSTANCES_MAX + 1] = {0};
		struct truth_stretch s = {.gpu = gpu,
		                          .from_ns = t,
		                          .to_ns = least(next_change(sc, gpu, t), to_ns),
		                          .layout = moment_layout(g, t),
		                          .fault = moment_fault(sc, (int)gpu, t),
		                          .unloaded = moment_fault(sc, -1, t) != NULL,
		                          .holders = holders};

		for (size_t i = 0; i < sc->process_count; i++) {
			const struct sim_process *p = &sc->processes[i];
			int64_t run = p->gpus >> gpu & 1 ? moment_run(p, t) : -1;
			int place = run < 0 ? PLACE_NONE : moment_place(p, s.layout);
			int64_t since = t - moment_run_start(p, run);

			if (place == PLACE_NONE)
				continue;
			percent[place == PLACE_WHOLE ? SIM_INSTANCES_MAX : place] += moment_phase(p, since)->sm;
			if (!is_server(p))
				join_holder(holders, &s.holder_count, p, place, since);
		}
		qsort(holders, s.holder_count, sizeof(*holders), by_place);
		if (!moment_scripted(g, KEY_POWER_MW, -1, -1, t, &s.power_mw))
			s.power_mw =
				g->idle_mw + (g->max_mw - g->idle_mw) * moment_gpu_ppm(g, s.layout, percent) / SIM_PPM;
		visit(arg, &s);
		t = s.to_ns;
	}
	mem_free(holders);
}

/* ---- sums ----------------------------------------------------------------------------------------------------------- */

struct summing {
	struct truth *truth;
	const struct scenario *sc;
	int replicas;
};

static struct truth_row *
row_of(struct truth *t, size_t gpu, const char *device, const char *workload)
{
	for (size_t i = 0; i < t->count; i++)
		if (strcmp(t->rows[i].device, device) == 0 && strcmp(t->rows[i].workload, workload) == 0)
			return &t->rows[i];
	if (t->count == t->cap) {
		t->cap = t->cap ? 2 * t->cap : 64;
		t->rows = mem_grow(t->rows, t->cap, sizeof(*t->rows));
	}
	t->rows[t->count] = (struct truth_row){.gpu = gpu, .workload = mem_strdup(workload)};
	snprintf(t->rows[t->count].device, SIM_TEXT, "%s", device);
	return &t->rows[t->count++];
}

static size_t
holders_at(const struct truth_stretch *s, int place)
{
	size_t n = 0;

	for (size_t i = 0; i < s->holder_count; i++)
		n += s->holders[i].place == place;
	return n;
}

/* One holder of a device that is divided into n equal parts. */
static void
add_holder(struct truth_row *row, const struct truth_holder *h, int64_t ns, int64_t units, size_t n)
{
	int128 all = (int128)units * ns * TRUTH_PARTS;
	int128 held = all / (int64_t)n,
	       active = all / SIM_PPM * h->active_ppm + all % SIM_PPM * h->active_ppm / SIM_PPM;

	row->units = units;
	row->present_ns += ns;
	row->held += held;
	row->used += active < held ? active : held;
	row->over += active < held ? 0 : active - held;
	row->memory_byte_ns += (int128)h->memory_bytes * ns;
}

static void
sum_stretch(void *arg, const struct truth_stretch *s)
{
	const struct summing *sum = arg;
	const struct sim_gpu *g = &sum->sc->gpus[s->gpu];
	int64_t ns = s->to_ns - s->from_ns;
	int128 taken = 0;

	sum->truth->energy_mw_ns[s->gpu] += (int128)s->power_mw * ns;
	if (s->unloaded || s->fault) {
		*(s->unloaded ? &sum->truth->unloaded_ns[s->gpu] : &sum->truth->down_ns[s->gpu]) += ns;
		return;
	}
	for (size_t i = 0; i < s->holder_count; i++) {
		const struct truth_holder *h = &s->holders[i];
		const struct sim_instance *in = h->place == PLACE_WHOLE ? NULL : &s->layout->instances[h->place];
		size_t n = holders_at(s, h->place);
		int64_t units = in ? units_of_slices(&g->geometry, in->slices) : UNITS_PER_GPU;

		if (!in && n < (size_t)sum->replicas)
			n = (size_t)sum->replicas;
		add_holder(row_of(sum->truth, s->gpu, in ? in->uuid : g->uuid, h->workload), h, ns, units, n);
		taken += (int128)units * TRUTH_PARTS / (int64_t)n;
	}
	sum->truth->free_unit_ns[s->gpu] += ((int128)UNITS_PER_GPU * TRUTH_PARTS - taken) * ns / TRUTH_PARTS;
}

static int
by_device(const void *a, const void *b)
{
	const struct truth_row *x = a, *y = b;
	int order = x->gpu != y->gpu ? (x->gpu < y->gpu ? -1 : 1) : strcmp(x->device, y->device);

	return order ? order : strcmp(x->workload, y->workload);
}

struct truth *
truth_new(const struct scenario *sc, int64_t from_ns, int64_t to_ns, int replicas)
{
	struct truth *t = mem_alloc(sizeof(*t));
	struct summing sum = {.truth = t, .sc = sc, .replicas = replicas};

	for (size_t g = 0; g < sc->gpu_count; g++)
		truth_walk(sc, g, from_ns, to_ns, sum_stretch, &sum);
	if (t->count > 0)
		qsort(t->rows, t->count, sizeof(*t->rows), by_device);
	return t;
}

void
truth_free(struct truth *t)
{
	if (!t)
		return;
	for (size_t i = 0; i < t->count; i++)
		mem_free(t->rows[i].workload);
	mem_free(t->rows);
	mem_free(t);
}

const struct truth_row *
truth_find(const struct truth *t, const char *device, const char *workload)
{
	for (size_t i = 0; i < t->count; i++)
		if (strcmp(t->rows[i].device, device) == 0 && strcmp(t->rows[i].workload, workload) == 0)
			return &t->rows[i];
	return NULL;
}
