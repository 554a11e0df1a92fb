/* tests/support/nvmlsim/world.c - a scenario in motion. */
#include "tests/support/nvmlsim/world.h"

#include <string.h>

#include "common/base/time.h"

enum event_kind { EVENT_LAYOUT, EVENT_POWER, EVENT_PROCESS };
struct event {
	int64_t at_ns;
	enum event_kind kind;
	size_t index; /* of the GPU or the process */
};

struct world_gpu {
	const struct sim_layout *layout;
	struct world_run *alive; /* in the order of the file; those without a place too */
	size_t alive_count, alive_cap;
	struct world_run *shown; /* what world_alive gives: those with a place */
	size_t shown_cap;
	struct world_ended *ended; /* a ring */
	size_t ended_total;
	/* integrals up to t_ns, and the values that hold from there on unless they are stale */
	int64_t t_ns;
	bool stale;
	int64_t active_ppm, instance_ppm[SIM_INSTANCES_MAX], power_mw;
	int128 ppm_ns, instance_ppm_ns[SIM_INSTANCES_MAX], mw_ns;
};

struct world {
	const struct scenario *sc;
	int64_t now_ns;
	uint64_t version;
	struct event *heap; /* the earliest first */
	size_t heap_count;
	int64_t *runs; /* by process: the run that is alive; -1: none */
	struct world_gpu gpus[SIM_GPUS_MAX];
	struct sim_process **live; /* all that were added, ended or not */
	size_t live_count;
};

/* ---- the next event ------------------------------------------------------------------------------------------------- */

static void
heap_sink(struct world *w, size_t at)
{
	for (;;) {
		size_t child = 2 * at + 1;
		struct event moved = w->heap[at];

		if (child >= w->heap_count)
			return;
		if (child + 1 < w->heap_count && w->heap[child + 1].at_ns < w->heap[child].at_ns)
			child++;
		if (w->heap[child].at_ns >= moved.at_ns)
			return;
		w->heap[at] = w->heap[child];
		w->heap[child] = moved;
		at = child;
	}
}

static void
heap_add(struct world *w, struct event e)
{
	size_t at = w->heap_count++;

	while (at > 0 && w->heap[(at - 1) / 2].at_ns > e.at_ns) {
		w->heap[at] = w->heap[(at - 1) / 2];
		at = (at - 1) / 2;
	}
	w->heap[at] = e;
}

/* When the thing of an event next changes after t. */
static int64_t
next_time(const struct world *w, const struct event *e, int64_t t_ns)
{
	const struct sim_layout *l;

	switch (e->kind) {
	case EVENT_PROCESS: return moment_next_turn(&w->sc->processes[e->index], t_ns);
	case EVENT_POWER: return moment_next_point(sim_series_of(&w->sc->gpus[e->index], KEY_POWER_MW, -1, -1), t_ns);
	case EVENT_LAYOUT: break;
	}
	l = moment_layout(&w->sc->gpus[e->index], t_ns);
	return l + 1 < w->sc->gpus[e->index].layouts + w->sc->gpus[e->index].layout_count ? l[1].at_ns : SIM_NEVER;
}

/* ---- one GPU -------------------------------------------------------------------------------------------------------- */

static void
weigh(struct world *w, size_t gpu)
{
	struct world_gpu *g = &w->gpus[gpu];
	const struct sim_gpu *sg = &w->sc->gpus[gpu];
	int64_t percent[SIM_INSTANCES_MAX + 1] = {0};

	for (size_t i = 0; i < g->alive_count; i++) {
		const struct world_run *run = &g->alive[i];

		if (run->place != PLACE_NONE)
			percent[run->place == PLACE_WHOLE ? SIM_INSTANCES_MAX : run->place] +=
				moment_phase(run->p, g->t_ns - run->start_ns)->sm;
	}
	for (size_t i = 0; i < SIM_INSTANCES_MAX; i++)
		g->instance_ppm[i] = moment_cap_ppm(percent[i]);
	g->active_ppm = moment_gpu_ppm(sg, g->layout, percent);
	if (!moment_scripted(sg, KEY_POWER_MW, -1, -1, g->t_ns, &g->power_mw) || g->power_mw == SIM_ABSENT)
		g->power_mw = sg->idle_mw + (sg->max_mw - sg->idle_mw) * g->active_ppm / SIM_PPM;
	g->stale = false;
}

/* Brings the integrals to t, through time in which nothing changed, and the values with them. */
static struct world_gpu *
integrate(struct world *w, size_t gpu, int64_t t_ns)
{
	struct world_gpu *g = &w->gpus[gpu];
	int64_t ns = t_ns - g->t_ns;

	if (g->stale)
		weigh(w, gpu);
	g->ppm_ns += (int128)g->active_ppm * ns;
	for (size_t i = 0; i < g->layout->count; i++)
		g->instance_ppm_ns[i] += (int128)g->instance_ppm[i] * ns;
	g->mw_ns += (int128)g->power_mw * ns;
	g->t_ns = t_ns;
	return g;
}

/* Something changes on the GPU at t. */
static struct world_gpu *
touch(struct world *w, size_t gpu, int64_t t_ns)
{
	struct world_gpu *g = integrate(w, gpu, t_ns);

	g->stale = true;
	w->version++;
	return g;
}

/* An instance that keeps its UUID goes on. */
static void
change_layout(struct world *w, size_t gpu, int64_t t_ns)
{
	struct world_gpu *g = touch(w, gpu, t_ns);
	const struct sim_layout *old = g->layout;
	int128 kept[SIM_INSTANCES_MAX] = {0};

	g->layout = moment_layout(&w->sc->gpus[gpu], t_ns);
	for (size_t i = 0; i < g->layout->count; i++)
		for (size_t j = 0; j < old->count; j++)
			if (strcmp(g->layout->instances[i].uuid, old->instances[j].uuid) == 0)
				kept[i] = g->instance_ppm_ns[j];
	memcpy(g->instance_ppm_ns, kept, sizeof(kept));
	for (size_t i = 0; i < g->alive_count; i++)
		g->alive[i].place = moment_place(g->alive[i].p, g->layout);
}

/* ---- runs ----------------------------------------------------------------------------------------------------------- */

static void
begin_run(struct world *w, const struct sim_process *p, size_t order, uint32_t pid, int64_t start_ns, int64_t t_ns)
{
	for (size_t gpu = 0; gpu < w->sc->gpu_count; gpu++) {
		struct world_gpu *g;
		size_t at;

		if (!(p->gpus >> gpu & 1))
			continue;
		g = touch(w, gpu, t_ns);
		if (g->alive_count == g->alive_cap) {
			g->alive_cap = g->alive_cap ? 2 * g->alive_cap : 16;
			g->alive = mem_grow(g->alive, g->alive_cap, sizeof(*g->alive));
		}
		for (at = g->alive_count++; at > 0 && g->alive[at - 1].order > order; at--)
			g->alive[at] = g->alive[at - 1];
		g->alive[at] = (struct world_run){p, pid, start_ns, moment_place(p, g->layout), order};
	}
}

static int64_t
max_memory(const struct sim_process *p, int64_t lasted_ns)
{
	int64_t most = 0;

	for (size_t i = 0; i < p->phase_count && p->phases[i].after_ns < lasted_ns; i++)
		most = p->phases[i].memory_bytes > most ? p->phases[i].memory_bytes : most;
	return most;
}

static void
end_run(struct world *w, const struct sim_process *p, int64_t end_ns)
{
	for (size_t gpu = 0; gpu < w->sc->gpu_count; gpu++) {
		struct world_gpu *g;
		size_t at = 0;

		if (!(p->gpus >> gpu & 1))
			continue;
		g = touch(w, gpu, end_ns);
		while (at < g->alive_count && g->alive[at].p != p)
			at++;
		if (at == g->alive_count)
			continue;
		if (!g->ended)
			g->ended = mem_array(WORLD_ENDED_MAX, sizeof(*g->ended));
		g->ended[g->ended_total++ % WORLD_ENDED_MAX] =
			(struct world_ended){p, g->alive[at].pid, g->alive[at].start_ns, end_ns,
		                             max_memory(p, end_ns - g->alive[at].start_ns)};
		memmove(g->alive + at, g->alive + at + 1, (--g->alive_count - at) * sizeof(*g->alive));
	}
}

/* A run may end at the moment at which the next one begins. */
static void
turn_process(struct world *w, size_t index, int64_t t_ns)
{
	const struct sim_process *p = &w->sc->processes[index];
	int64_t run = moment_run(p, t_ns);

	if (run == w->runs[index]) {
		for (size_t gpu = 0; gpu < w->sc->gpu_count; gpu++)
			if (p->gpus >> gpu & 1)
				touch(w, gpu, t_ns);
		return;
	}
	if (w->runs[index] >= 0)
		end_run(w, p, t_ns);
	if (run >= 0)
		begin_run(w, p, index, moment_pid(p, run), moment_run_start(p, run), t_ns);
	w->runs[index] = run;
}

/* ---- the world ------------------------------------------------------------------------------------------------------ */

static void
begin(struct world *w)
{
	w->now_ns = 0;
	w->version++;
	w->heap_count = 0;
	for (size_t i = 0; i < w->sc->gpu_count; i++) {
		struct world_gpu *g = &w->gpus[i];

		g->layout = moment_layout(&w->sc->gpus[i], 0);
		g->alive_count = g->ended_total = 0;
		g->t_ns = 0;
		g->ppm_ns = g->mw_ns = 0;
		memset(g->instance_ppm_ns, 0, sizeof(g->instance_ppm_ns));
		g->stale = true;
		for (enum event_kind kind = EVENT_LAYOUT; kind <= EVENT_POWER; kind++) {
			struct event e = {.kind = kind, .index = i};

			e.at_ns = next_time(w, &e, 0);
			if (e.at_ns != SIM_NEVER)
				heap_add(w, e);
		}
	}
	for (size_t i = 0; i < w->sc->process_count; i++) {
		struct event e = {.kind = EVENT_PROCESS, .index = i};

		w->runs[i] = -1;
		turn_process(w, i, 0);
		e.at_ns = moment_next_turn(&w->sc->processes[i], 0);
		if (e.at_ns != SIM_NEVER)
			heap_add(w, e);
	}
}

struct world *
world_new(const struct scenario *sc)
{
	struct world *w = mem_alloc(sizeof(*w));

	w->sc = sc;
	w->heap = mem_array(2 * sc->gpu_count + sc->process_count, sizeof(*w->heap));
	w->runs = mem_array(sc->process_count, sizeof(*w->runs));
	begin(w);
	return w;
}

void
world_free(struct world *w)
{
	if (!w)
		return;
	for (size_t i = 0; i < w->sc->gpu_count; i++) {
		mem_free(w->gpus[i].alive);
		mem_free(w->gpus[i].shown);
		mem_free(w->gpus[i].ended);
	}
	for (size_t i = 0; i < w->live_count; i++) {
		sim_process_fini(w->live[i]);
		mem_free(w->live[i]);
	}
	mem_free(w->live);
	mem_free(w->heap);
	mem_free(w->runs);
	mem_free(w);
}

static void
happen(struct world *w, const struct event *e)
{
	switch (e->kind) {
	case EVENT_LAYOUT: change_layout(w, e->index, e->at_ns); break;
	case EVENT_POWER: touch(w, e->index, e->at_ns); break;
	case EVENT_PROCESS: turn_process(w, e->index, e->at_ns); break;
	}
}

/* What was added and has not ended is there again after going back, from the moment at which it came. */
static void
go_back(struct world *w)
{
	begin(w);
	for (size_t i = 0; i < w->live_count; i++)
		if (w->live[i]->end_ns == SIM_NEVER)
			begin_run(w, w->live[i], SIZE_MAX, w->live[i]->pid, 0, 0);
}

void
world_advance(struct world *w, int64_t t_ns)
{
	if (t_ns < w->now_ns)
		go_back(w);
	while (w->heap_count > 0 && w->heap[0].at_ns <= t_ns) {
		struct event e = w->heap[0];

		happen(w, &e);
		e.at_ns = next_time(w, &e, e.at_ns);
		if (e.at_ns == SIM_NEVER)
			w->heap[0] = w->heap[--w->heap_count];
		else
			w->heap[0] = e;
		heap_sink(w, 0);
	}
	w->now_ns = t_ns;
}

int64_t
world_now(const struct world *w)
{
	return w->now_ns;
}

uint64_t
world_version(const struct world *w)
{
	return w->version;
}

void
world_add(struct world *w, struct sim_process *p)
{
	w->live = mem_grow(w->live, w->live_count + 1, sizeof(*w->live));
	w->live[w->live_count++] = p;
	p->start_ns = w->now_ns;
	begin_run(w, p, SIZE_MAX, p->pid, w->now_ns, w->now_ns);
}

void
world_end(struct world *w, const struct sim_process *p)
{
	for (size_t i = 0; i < w->live_count; i++)
		if (w->live[i] == p && p->end_ns == SIM_NEVER) {
			end_run(w, p, w->now_ns);
			w->live[i]->end_ns = w->now_ns;
		}
}

/* ---- questions ------------------------------------------------------------------------------------------------------ */

size_t
world_alive(struct world *w, size_t gpu, const struct world_run **ret)
{
	struct world_gpu *g = &w->gpus[gpu];
	size_t count = 0;

	if (g->shown_cap < g->alive_cap) {
		g->shown = mem_grow(g->shown, g->alive_cap, sizeof(*g->shown));
		g->shown_cap = g->alive_cap;
	}
	for (size_t i = 0; i < g->alive_count; i++)
		if (g->alive[i].place != PLACE_NONE)
			g->shown[count++] = g->alive[i];
	*ret = g->shown;
	return count;
}

const struct sim_process *
world_process(const struct world *w, uint32_t pid)
{
	for (size_t gpu = 0; gpu < w->sc->gpu_count; gpu++)
		for (size_t i = 0; i < w->gpus[gpu].alive_count; i++)
			if (w->gpus[gpu].alive[i].pid == pid)
				return w->gpus[gpu].alive[i].p;
	return NULL;
}

const struct world_ended *
world_ended(const struct world *w, size_t gpu, size_t n)
{
	const struct world_gpu *g = &w->gpus[gpu];

	if (n >= g->ended_total || n >= WORLD_ENDED_MAX)
		return NULL;
	return &g->ended[(g->ended_total - 1 - n) % WORLD_ENDED_MAX];
}

const struct sim_layout *
world_layout(const struct world *w, size_t gpu)
{
	return w->gpus[gpu].layout;
}

static const struct world_gpu *
settled(struct world *w, size_t gpu)
{
	return integrate(w, gpu, w->now_ns);
}

int64_t
world_active_ppm(struct world *w, size_t gpu)
{
	return settled(w, gpu)->active_ppm;
}

int64_t
world_instance_ppm(struct world *w, size_t gpu, size_t instance)
{
	return settled(w, gpu)->instance_ppm[instance];
}

int128
world_active_ppm_ns(struct world *w, size_t gpu)
{
	return settled(w, gpu)->ppm_ns;
}

int128
world_instance_ppm_ns(struct world *w, size_t gpu, size_t instance)
{
	return settled(w, gpu)->instance_ppm_ns[instance];
}

int64_t
world_power_mw(struct world *w, size_t gpu)
{
	return settled(w, gpu)->power_mw;
}

int64_t
world_energy_mj(struct world *w, size_t gpu)
{
	return (int64_t)(settled(w, gpu)->mw_ns / NS_PER_S);
}
