/* tests/support/exporter/metersched.c - random schedules for the meter, and the ticks that show them. */
#include "tests/support/exporter/metersched.h"

#include <stdio.h>

#include "common/base/time.h"
#include "common/base/units.h"

static const struct sched_layout layouts[] = {
	{.mig = false},
	{.mig = true, .units = {2340, 2700}},
	{.mig = true, .units = {675, 0, 675, 675}},
	{.mig = true, .units = {5040}},
	{.mig = true},
	{.mig = true, .units = {0, 1350, 675}, .stranded = 990},
};

static const int64_t intervals[] = {900, 300, 100, 50, 20}; /* in units; each is divided by the next two */

const struct sched_layout *
schedule_layout(const struct schedule *c, size_t tick, size_t gpu)
{
	return &layouts[c->layout[tick][gpu]];
}

struct meter_options
schedule_options(const struct schedule *c, int finer)
{
	return (struct meter_options){.sample_interval_ns = 20 * c->unit_ns,
	                              .interval_ns = intervals[c->fineness + finer] * c->unit_ns,
	                              .wall_offset_ns = c->offset_ns,
	                              .replicas = c->replicas};
}

static void
generate_tick(struct prop_source *s, struct schedule *c, size_t k, int64_t *energy)
{
	for (size_t g = 0; g < c->gpus; g++) {
		size_t keep = prop_index(s, 4);

		c->layout[k][g] = k && keep ? c->layout[k - 1][g] : prop_index(s, ARRAY_LEN(layouts));
		c->sight[k][g] = prop_index(s, 8) == 7 ? (enum sight)prop_index(s, 4) : SEEN;
		c->active_ppm[k][g] = prop_i64(s, -1, 1000000);
		energy[g] = prop_index(s, 12) == 11 ? 0 : energy[g] + (int64_t)prop_u64(s, 1000);
		c->energy_mj[k][g] = prop_index(s, 5) == 4 ? ABSENT : energy[g];
	}
}

static void
generate_people(struct prop_source *s, struct schedule *c, uint64_t span)
{
	for (size_t i = 0; i < c->processes; i++) {
		struct sched_process *p = &c->process[i];

		p->gpu = prop_index(s, c->gpus);
		p->holder = prop_index(s, SCHED_HOLDERS);
		p->gi = prop_index(s, SCHED_WHOLE);
		p->begin = c->at[0] - 5 + (int64_t)prop_u64(s, span);
		p->end = p->begin + (int64_t)prop_u64(s, prop_bool(s) ? span : (uint64_t)(20 * c->unit_ns));
		p->memory_bytes = prop_i64(s, -1, INT64_C(1) << 36);
		p->sm_ppm = prop_i64(s, -1, 1000000);
		p->told = prop_bool(s);
		p->named = prop_index(s, 4) != 3;
		p->exit_ppm = prop_i64(s, -1, 1000000);
	}
	for (size_t i = 0; i < c->allocations; i++) {
		struct sched_allocation *a = &c->allocation[i];

		a->gpu = prop_index(s, c->gpus);
		a->slot = prop_index(s, SCHED_SLOTS);
		a->holder = prop_index(s, SCHED_HOLDERS);
		a->replica = (int32_t)prop_i64(s, -1, 3);
		a->replica_of = (int32_t)prop_i64(s, 0, 6);
		a->begin = c->at[0] - 5 + (int64_t)prop_u64(s, span);
		a->end = a->begin + (int64_t)prop_u64(s, span);
		a->begin_known = prop_bool(s);
	}
}

static void
generate(struct prop_source *s, struct schedule *c, int64_t unit_ns)
{
	int64_t t = unit_ns * (5 + (int64_t)prop_u64(s, 1000));
	int64_t energy[SCHED_GPUS] = {0};

	c->unit_ns = unit_ns;
	c->offset_ns = unit_ns * 900 * (int64_t)prop_u64(s, 1000) + (int64_t)prop_u64(s, 1000);
	c->replicas = (int)prop_i64(s, 1, 5);
	c->fineness = (int)prop_index(s, 3);
	c->gpus = 1 + prop_index(s, SCHED_GPUS);
	c->ticks = 1 + prop_index(s, SCHED_TICKS);
	c->processes = prop_index(s, SCHED_PROCESSES + 1);
	c->allocations = prop_bool(s) ? prop_index(s, SCHED_ALLOCATIONS + 1) : 0;
	for (size_t g = 0; g < c->gpus; g++)
		c->process_activity[g] = prop_bool(s);
	for (size_t k = 0; k < c->ticks; k++) {
		c->at[k] = t;
		t += 1 + (int64_t)prop_u64(s, (uint64_t)(unit_ns * 50 - 1));
		generate_tick(s, c, k, energy);
	}
	generate_people(s, c, (uint64_t)(t - c->at[0]) + 1);
}

void
schedule_small(struct prop_source *s, void *schedule)
{
	generate(s, schedule, 1);
}

void
schedule_real(struct prop_source *s, void *schedule)
{
	generate(s, schedule, NS_PER_S / 20);
}

void
schedule_describe(const void *schedule, struct buf *out)
{
	static const char *const sights[] = {"seen", "lost", "missing", "silent"};
	const struct schedule *c = schedule;

	buf_printf(out, "offset %" PRId64 ", replicas %d, interval %d, %zu gpus\n", c->offset_ns, c->replicas,
	           c->fineness, c->gpus);
	for (size_t k = 0; k < c->ticks; k++) {
		buf_printf(out, "tick %" PRId64 ":", c->at[k]);
		for (size_t g = 0; g < c->gpus; g++)
			buf_printf(out, " [%s layout %zu active %" PRId64 " mj %" PRId64 "]", sights[c->sight[k][g]],
			           c->layout[k][g], c->active_ppm[k][g], c->energy_mj[k][g]);
		buf_char(out, '\n');
	}
	for (size_t i = 0; i < c->processes; i++) {
		const struct sched_process *p = &c->process[i];

		buf_printf(out,
		           "pid %zu, holder %zu on gpu %zu gi %zu from %" PRId64 " to %" PRId64 " sm %" PRId64
		           ", end %s%s active %" PRId64 "\n",
		           i + 1, p->holder, p->gpu, p->gi, p->begin, p->end, p->sm_ppm, p->told ? "told" : "not told",
		           p->named ? "" : " without owner", p->exit_ppm);
	}
	for (size_t i = 0; i < c->allocations; i++) {
		const struct sched_allocation *a = &c->allocation[i];

		buf_printf(out,
		           "allocation to %zu: gpu %zu slot %zu replica %d of %d from %s%" PRId64 " to %" PRId64 "\n",
		           a->holder, a->gpu, a->slot, a->replica, a->replica_of,
		           a->begin_known ? "" : "some time after ", a->begin, a->end);
	}
}

/* ---- as ticks ---- */

void
stage_init(struct stage *st)
{
	static char names[SCHED_HOLDERS][8] = {"u0", "u1", "u2", "u3"};
	static char empty[] = "";

	*st = (struct stage){.readings = mem_array(SCHED_GPUS, sizeof(*st->readings))};
	for (size_t i = 0; i < SCHED_HOLDERS; i++) {
		struct wire_holder *h = &st->holders[i];

		*h = (struct wire_holder){
			.id = (uint32_t)i + 10, .kind = WIRE_HOST_USER, .user = names[i], .uid = (int64_t)i};
		h->ns = h->pod = h->pod_uid = h->container = h->slurm_job = h->slurm_account = empty;
		h->group = h->labels = empty;
	}
}

void
stage_fini(struct stage *st)
{
	mem_free(st->readings);
}

static void
stage_reading(struct gpu_reading *r, const struct schedule *c, size_t k, size_t g)
{
	const struct sched_layout *l = schedule_layout(c, k, g);
	int64_t sm_active_ppm;

	/* the multiprocessors of an active engine work half of the time; of the second GPU nothing is told of them */
	sm_active_ppm = g == 1 || c->active_ppm[k][g] < 0 ? ABSENT : c->active_ppm[k][g] / 2;
	*r = (struct gpu_reading){.index = (int32_t)g,
	                          .active_ppm = l->mig ? ABSENT : c->active_ppm[k][g],
	                          .sm_active_ppm = l->mig ? ABSENT : sm_active_ppm};
	snprintf(r->uuid, sizeof(r->uuid), "GPU-%zu", g);
	snprintf(r->model, sizeof(r->model), "H100");
	r->down = c->sight[k][g] == LOST;
	r->silent = c->sight[k][g] == SILENT;
	r->energy_mj = c->sight[k][g] == SEEN ? c->energy_mj[k][g] : ABSENT;
	r->process_activity = c->process_activity[g];
	r->mig = l->mig;
	r->units_stranded = l->stranded;
	for (size_t i = 0; l->mig && i < SCHED_WHOLE; i++) {
		struct gpu_instance *in = &r->instances[r->instance_count];

		if (!l->units[i])
			continue;
		*in = (struct gpu_instance){.gi = (int32_t)i,
		                            .ci = 0,
		                            .units = l->units[i],
		                            .active_ppm = c->active_ppm[k][g],
		                            .sm_active_ppm = sm_active_ppm};
		snprintf(in->uuid, sizeof(in->uuid), "MIG-%zu-%zu", g, i);
		snprintf(in->profile, sizeof(in->profile), "p%" PRId64, in->units);
		r->instance_count++;
	}
}

static void
stage_process(struct stage *st, const struct schedule *c, size_t k, size_t i)
{
	const struct sched_process *p = &c->process[i];
	struct tick_gpu *tg = &st->gpus[p->gpu];
	bool mig = schedule_layout(c, k, p->gpu)->mig;

	if (sched_alive(p, c->at[k])) {
		st->processes[p->gpu][tg->process_count++] = (struct tick_process){.holder = &st->holders[p->holder],
		                                                                   .pid = (uint32_t)i + 1,
		                                                                   .start_boot_ns = p->begin,
		                                                                   .memory_bytes = p->memory_bytes,
		                                                                   .sm_ppm = p->sm_ppm,
		                                                                   .gi = mig ? (int32_t)p->gi : -1,
		                                                                   .ci = mig ? 0 : -1};
		return;
	}
	if (!p->told || p->end > c->at[k] || st->exit_told[i] || c->sight[k][p->gpu] != SEEN)
		return;
	st->exit_told[i] = true;
	st->exits[p->gpu][tg->exit_count++] = (struct tick_process){.holder = p->named ? &st->holders[p->holder] : NULL,
	                                                            .pid = (uint32_t)i + 1,
	                                                            .start_boot_ns = p->begin,
	                                                            .end_boot_ns = p->end,
	                                                            .sm_ppm = p->exit_ppm,
	                                                            .memory_bytes = p->memory_bytes};
}

static size_t
stage_allocations(struct stage *st, const struct schedule *c, size_t k)
{
	size_t n = 0;

	for (size_t i = 0; i < c->allocations; i++) {
		const struct sched_allocation *a = &c->allocation[i];

		if (!sched_shown(a, c->at[k]))
			continue;
		if (a->slot == SCHED_WHOLE)
			snprintf(st->uuids[n], sizeof(st->uuids[n]), "GPU-%zu", a->gpu);
		else
			snprintf(st->uuids[n], sizeof(st->uuids[n]), "MIG-%zu-%zu", a->gpu, a->slot);
		st->allocations[n] = (struct tick_allocation){.holder = &st->holders[a->holder],
		                                              .device_uuid = st->uuids[n],
		                                              .replica = a->replica,
		                                              .replica_of = a->replica_of,
		                                              .begin_boot_ns = a->begin_known ? a->begin : ABSENT};
		n++;
	}
	return n;
}

bool
stage_tick(struct stage *st, const struct schedule *c, size_t k, struct meter *m)
{
	struct tick_gpu there[SCHED_GPUS];
	struct tick t = {.boot_ns = c->at[k], .gpus = there, .allocations = st->allocations};

	for (size_t g = 0; g < c->gpus; g++) {
		stage_reading(&st->readings[g], c, k, g);
		st->gpus[g] = (struct tick_gpu){.reading = &st->readings[g],
		                                .processes = st->processes[g],
		                                .exits = st->exits[g]};
	}
	for (size_t i = 0; i < c->processes; i++)
		stage_process(st, c, k, i);
	for (size_t g = 0; g < c->gpus; g++)
		if (c->sight[k][g] != MISSING)
			there[t.gpu_count++] = st->gpus[g];
	t.allocation_count = stage_allocations(st, c, k);
	return meter_tick(m, &t);
}
