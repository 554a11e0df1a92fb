/* exporter/meter/meter.c - from ticks to interval records: reads the ticks, cuts the plans of meter_share.c at interval boundaries, and makes
 * records and batches of the pieces. */
#include "exporter/meter/meter.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/time.h"
#include "common/base/units.h"
#include "exporter/meter/meter_internal.h"
#include "exporter/source/sanitize.h"

#define GAP_MAX_NS NS_PER_DAY
/* Closed records that are not left to wait for the interval's end: a batch must not grow beyond what one may hold. */
#define RECORDS_WAITING (WIRE_MAX_RECORDS / 4)

struct record_list {
	struct wire_record *list;
	size_t count, cap;
};

/* A stretch of time of one GPU in which nothing changed: the next records are made of it. */
struct run {
	int64_t start_ns, end_ns; /* wall; equal: no run */
	struct run_entry {
		struct plan_entry sum; /* key, and amounts since the run began */
		int64_t ticks;
	} * entries;
	size_t count, cap;
};

struct meter_gpu {
	struct dict_device *device;
	char uuid_read[GPU_TEXT]; /* as the driver has it */
	struct gpu_view views[2]; /* of the last tick, and the one being read */
	int view;                 /* which is the last tick's */
	bool began;               /* the last tick saw it, or knew that it was down */
	bool seen;                /* in this tick */
	int64_t energy_mj;        /* the counter when it was last read */
	int64_t slot_energy_mj;
	struct plan plan;
	struct run run;
};

struct meter {
	struct meter_options options;
	struct dict dict;
	struct meter_gpu **gpus;
	size_t gpu_count;
	bool ticked;
	int64_t last_boot_ns;
	int64_t from_ns;            /* wall: where the next batch begins */
	int64_t restart_ns;         /* wall: where the one after a gap begins; 0: no gap */
	struct record_list records; /* the closed ones first */
	size_t closed_count;
	bool closed;
	int64_t closed_to_ns;
	struct totals totals;
	struct meter_stats stats;
};

struct meter *
meter_new(const struct meter_options *o)
{
	struct meter *m = mem_alloc(sizeof(*m));

	ASSERT(o->sample_interval_ns > 0 && o->replicas >= 1);
	ASSERT(o->interval_ns > 0 && NS_PER_QUARTER_HOUR % o->interval_ns == 0);
	m->options = *o;
	return m;
}

void
meter_free(struct meter *m)
{
	if (!m)
		return;
	for (size_t i = 0; i < m->gpu_count; i++) {
		struct meter_gpu *g = m->gpus[i];

		gpu_view_fini(&g->views[0]);
		gpu_view_fini(&g->views[1]);
		plan_fini(&g->plan);
		mem_free(g->run.entries);
		mem_free(g);
	}
	mem_free(m->gpus);
	mem_free(m->records.list);
	totals_fini(&m->totals);
	dict_fini(&m->dict);
	mem_free(m);
}

/* ---- runs and their records ---- */

static void
add_record(struct record_list *l, struct wire_record r)
{
	array_room(l->list, l->count, l->cap);
	l->list[l->count++] = r;
}

/* Makes the run's records, and empties it. */
static void
run_close(struct run *run, struct record_list *into)
{
	if (run->start_ns == run->end_ns)
		return;
	for (size_t i = 0; i < run->count; i++) {
		const struct plan_entry *e = &run->entries[i].sum;
		/* only a broken counter exceeds it; the aggregator would refuse the batch */
		int64_t energy_mj = e->energy_mj < WIRE_MAX_ENERGY_MJ ? e->energy_mj : WIRE_MAX_ENERGY_MJ;

		add_record(into, (struct wire_record){.device = e->device->wire.id,
		                                      .holder = e->holder ? e->holder->wire.id : 0,
		                                      .state = e->state,
		                                      .sharing = e->sharing,
		                                      .method = e->method,
		                                      .units = e->units,
		                                      .start_ns = run->start_ns,
		                                      .duration_ns = run->end_ns - run->start_ns,
		                                      .held_ns = e->held_ns,
		                                      .used_ns = e->used_ns,
		                                      .unmeasured_ns = e->unmeasured_ns,
		                                      .over_ns = e->over_ns,
		                                      .memory_byte_ms = e->memory_byte_ms,
		                                      .energy_mj = energy_mj,
		                                      .ticks = run->entries[i].ticks,
		                                      .peak_memory_bytes = e->peak_memory_bytes,
		                                      .sm_active_ns = e->sm_active_ns,
		                                      .sm_measured_ns = e->sm_measured_ns});
	}
	run->start_ns = run->end_ns;
	run->count = 0;
}

static bool
same_shape(const struct run *run, const struct plan_entry *entries, size_t count)
{
	if (run->count != count)
		return false;
	for (size_t i = 0; i < count; i++) {
		const struct plan_entry *a = &run->entries[i].sum, *b = &entries[i];

		if (a->device != b->device || a->holder != b->holder || a->state != b->state ||
		    a->sharing != b->sharing || a->method != b->method || a->units != b->units ||
		    a->part_of != b->part_of || a->part_count != b->part_count)
			return false;
	}
	return true;
}

static void
begin_run(struct run *run, int64_t start_ns, const struct plan_entry *entries, size_t count)
{
	if (count > run->cap) {
		run->cap = count;
		run->entries = mem_grow(run->entries, count, sizeof(*run->entries));
	}
	run->start_ns = run->end_ns = start_ns;
	run->count = count;
	for (size_t i = 0; i < count; i++) {
		struct plan_entry key = entries[i];

		key.held_ns = key.used_ns = key.unmeasured_ns = key.over_ns = key.memory_byte_ms = key.energy_mj = 0;
		key.sm_active_ns = key.sm_measured_ns = key.peak_memory_bytes = 0;
		run->entries[i] = (struct run_entry){.sum = key};
	}
}

/* The run goes on at start_ns with entries of this shape; if it has another, it is closed and a new one begins. */
static void
run_continue(struct run *run, int64_t start_ns, const struct plan_entry *entries, size_t count,
             struct record_list *into)
{
	if (run->end_ns == start_ns && same_shape(run, entries, count))
		return;
	run_close(run, into);
	begin_run(run, start_ns, entries, count);
}

static void
run_add(struct run_entry *to, const struct plan_entry *cut, bool is_tick)
{
	struct plan_entry *sum = &to->sum;

	sum->held_ns += cut->held_ns;
	sum->used_ns += cut->used_ns;
	sum->unmeasured_ns += cut->unmeasured_ns;
	sum->over_ns += cut->over_ns;
	sum->memory_byte_ms += cut->memory_byte_ms;
	sum->energy_mj += cut->energy_mj;
	sum->sm_active_ns += cut->sm_active_ns;
	sum->sm_measured_ns += cut->sm_measured_ns;
	if (cut->peak_memory_bytes > sum->peak_memory_bytes)
		sum->peak_memory_bytes = cut->peak_memory_bytes;
	to->ticks += is_tick;
}

/* ---- rule 3: cutting at interval boundaries ---- */

/* Moves the part of one GPU's plan in [from, to) into its run. */
static void
add_piece(struct meter *m, struct meter_gpu *g, int64_t from_ns, int64_t to_ns, int64_t slot_end_ns)
{
	for (size_t s = 0; s < g->plan.segment_count; s++) {
		struct plan_segment *seg = &g->plan.segments[s];
		struct plan_entry *entries = &g->plan.entries[seg->first];
		int64_t start_ns = seg->start_ns > from_ns ? seg->start_ns : from_ns;
		int64_t end_ns = seg->end_ns < to_ns ? seg->end_ns : to_ns;

		if (start_ns >= end_ns)
			continue;
		run_continue(&g->run, start_ns, entries, seg->count, &m->records);
		for (size_t i = 0; i < seg->count; i++) {
			struct plan_entry cut =
				plan_cut(&entries[i], start_ns, end_ns - start_ns, seg->end_ns - start_ns);

			run_add(&g->run.entries[i], &cut, end_ns == slot_end_ns);
			if (cut.holder)
				totals_add(&m->totals, &cut);
		}
		g->run.end_ns = end_ns;
	}
}

static void
close_interval(struct meter *m, int64_t at_ns)
{
	for (size_t i = 0; i < m->gpu_count; i++)
		run_close(&m->gpus[i]->run, &m->records);
	m->closed_count = m->records.count;
	m->closed = true;
	m->closed_to_ns = at_ns;
}

/* Rule 3. A long unknown slot is cut at quarter-hours only, and where the batch will end. */
static int64_t
next_cut(const struct meter *m, int64_t t, int64_t end_ns, bool unknown)
{
	int64_t cut = time_next_multiple(t, unknown ? NS_PER_QUARTER_HOUR : m->options.interval_ns);
	int64_t last = end_ns - end_ns % m->options.interval_ns;

	if (unknown && last > t && last < cut)
		cut = last;
	return cut < end_ns ? cut : end_ns;
}

static bool
cut_slot(struct meter *m, int64_t start_ns, int64_t end_ns, bool unknown)
{
	bool closed = false;

	for (int64_t t = start_ns; t < end_ns;) {
		int64_t cut = next_cut(m, t, end_ns, unknown);

		for (size_t i = 0; i < m->gpu_count; i++)
			if (m->gpus[i]->began)
				add_piece(m, m->gpus[i], t, cut, end_ns);
		if (cut % m->options.interval_ns == 0) {
			close_interval(m, cut);
			closed = true;
		}
		t = cut;
	}
	return closed;
}

/* ---- ticks ---- */

/* Of the times that accounting reports: it has a clock of its own and begins with the first use of the GPU, and a tick takes time. */
static int64_t
tolerance_ns(const struct meter *m)
{
	return m->options.sample_interval_ns / 10;
}

/* `likely`: the position where the GPU was at the last tick, if the node is as it was. */
static struct meter_gpu *
find_gpu(struct meter *m, const struct gpu_reading *r, size_t likely)
{
	owned(mem) char *uuid = NULL;
	struct meter_gpu *g;

	if (likely < m->gpu_count && strcmp(m->gpus[likely]->uuid_read, r->uuid) == 0)
		return m->gpus[likely];
	uuid = sanitized_copy(r->uuid, GPU_TEXT);
	for (size_t i = 0; i < m->gpu_count; i++)
		if (strcmp(m->gpus[i]->device->wire.uuid, uuid) == 0)
			return m->gpus[i];
	/* in service from the first reading that says what it is */
	if (!r->uuid[0] || !r->model[0] || m->gpu_count == GPU_MAX)
		return NULL;
	g = mem_alloc(sizeof(*g));
	g->device = dict_add_gpu(&m->dict, r);
	memcpy(g->uuid_read, r->uuid, sizeof(g->uuid_read));
	g->energy_mj = ABSENT;
	g->views[0].read_ns = INT64_MAX; /* processes that ended before the first answer are not counted */
	m->gpus = mem_grow(m->gpus, m->gpu_count + 1, sizeof(*m->gpus));
	m->gpus[m->gpu_count++] = g;
	return g;
}

/* Rule 9: the rise of the counter since it was last read, also when ticks in between had none. A counter that fell began anew,
 * one that rose beyond reason is broken. */
static int64_t
energy_since(struct meter *m, struct meter_gpu *g, const struct gpu_reading *r)
{
	int64_t before = g->energy_mj;

	if (r->silent || r->down || r->energy_mj < 0)
		return 0;
	g->energy_mj = r->energy_mj;
	if (before == ABSENT)
		return 0;
	if (r->energy_mj < before || r->energy_mj - before > WIRE_MAX_ENERGY_MJ) {
		m->stats.energy_resets++;
		return 0;
	}
	return r->energy_mj - before;
}

static struct view_context
context_of(struct meter *m, struct meter_gpu *g, int64_t wall_ns)
{
	return (struct view_context){.dict = &m->dict,
	                             .gpu = g->device,
	                             .last = &g->views[g->view],
	                             .wall_ns = wall_ns,
	                             .wall_offset_ns = m->options.wall_offset_ns,
	                             .tolerance_ns = tolerance_ns(m)};
}

/* Gives each allocation to the GPU that has its device. They come nearly in the order of devices, so the search goes on where the last
 * one ended. */
static void
read_allocations(struct meter *m, const struct tick *t, int64_t wall_ns)
{
	size_t at = 0;

	m->stats.allocations_unknown = 0;
	for (size_t i = 0; i < t->allocation_count; i++) {
		bool found = false;

		for (size_t k = 0; k < m->gpu_count && !found; k++) {
			size_t place = (at + k) % m->gpu_count;
			struct meter_gpu *g = m->gpus[place];
			struct view_context c = context_of(m, g, wall_ns);

			found = gpu_view_add_claim(&g->views[!g->view], &c, g->uuid_read, &t->allocations[i]);
			if (found)
				at = place;
		}
		m->stats.allocations_unknown += !found;
	}
	for (size_t i = 0; i < m->gpu_count; i++)
		gpu_view_join_claims(&m->gpus[i]->views[!m->gpus[i]->view]);
}

static void
read_views(struct meter *m, const struct tick *t, int64_t wall_ns)
{
	size_t place = 0;

	for (size_t i = 0; i < m->gpu_count; i++)
		m->gpus[i]->seen = false;
	for (size_t i = 0; i < t->gpu_count; place += t->gpus[i++].process_count) {
		struct meter_gpu *g = find_gpu(m, t->gpus[i].reading, i);
		struct view_context c;

		if (!g || g->seen)
			continue;
		g->seen = true;
		g->slot_energy_mj = energy_since(m, g, t->gpus[i].reading);
		c = context_of(m, g, wall_ns);
		c.first_place = place;
		gpu_view_read(&g->views[!g->view], &c, &t->gpus[i]);
		if (g->began)
			m->stats.short_not_held += gpu_view_sampled(&g->views[!g->view], c.last, t->gpus[i].reading);
	}
	for (size_t i = 0; i < m->gpu_count; i++) {
		struct meter_gpu *g = m->gpus[i];

		if (g->seen)
			continue;
		g->slot_energy_mj = 0;
		gpu_view_down(&g->views[!g->view], &g->views[g->view]);
	}
	read_allocations(m, t, wall_ns);
	totals_begin_tick(&m->totals, place);
}

static void
make_plans(struct meter *m, int64_t start_ns, int64_t end_ns, bool unknown)
{
	for (size_t i = 0; i < m->gpu_count; i++) {
		struct meter_gpu *g = m->gpus[i];
		struct plan_slot slot = {.gpu = g->device,
		                         .prev = &g->views[g->view],
		                         .now = &g->views[!g->view],
		                         .start_ns = start_ns,
		                         .end_ns = end_ns,
		                         .unknown = unknown,
		                         .energy_mj = g->slot_energy_mj,
		                         .tolerance_ns = tolerance_ns(m),
		                         .replicas = m->options.replicas};

		if (!g->began)
			continue;
		plan_make(&slot, &g->plan);
		m->stats.unknown_slots += g->plan.unknown;
		m->stats.short_processes += g->plan.short_held;
		m->stats.short_not_held += g->plan.short_not_held;
	}
}

/* The tick's views are now the last ones. `slot_ns` 0: there was no slot before it. */
static void
end_tick(struct meter *m, int64_t wall_ns, int64_t slot_ns)
{
	for (size_t i = 0; i < m->gpu_count; i++) {
		struct meter_gpu *g = m->gpus[i];
		bool measured = g->began && slot_ns > 0 && !g->plan.no_holders;

		totals_add_gpu(&m->totals, &g->views[g->view], &g->views[!g->view], wall_ns - slot_ns, wall_ns,
		               measured);
		g->view = !g->view;
		g->began = true;
	}
	m->stats.intrusions += totals_end_tick(&m->totals);
}

static void
begin_anew(struct meter *m, int64_t wall_ns)
{
	for (size_t i = 0; i < m->gpu_count; i++)
		m->gpus[i]->began = false;
	if (m->closed)
		m->restart_ns = wall_ns;
	else
		m->from_ns = wall_ns;
}

bool
meter_tick(struct meter *m, const struct tick *t)
{
	int64_t wall_ns = t->boot_ns + m->options.wall_offset_ns;
	int64_t slot_ns = t->boot_ns - m->last_boot_ns;
	bool closed = false, gap = m->ticked && slot_ns > GAP_MAX_NS;
	bool begins = !m->ticked || gap;

	if (m->ticked && slot_ns <= 0)
		return false;
	if (gap)
		meter_flush(m);
	read_views(m, t, wall_ns);
	if (begins) {
		begin_anew(m, wall_ns);
		closed = m->closed;
	} else {
		bool unknown = slot_ns > 2 * m->options.sample_interval_ns;

		make_plans(m, wall_ns - slot_ns, wall_ns, unknown);
		closed = cut_slot(m, wall_ns - slot_ns, wall_ns, unknown);
	}
	if (m->records.count - m->closed_count > RECORDS_WAITING) {
		close_interval(m, wall_ns);
		closed = true;
	}
	end_tick(m, wall_ns, begins ? 0 : slot_ns);
	m->ticked = true;
	m->last_boot_ns = t->boot_ns;
	return closed;
}

void
meter_flush(struct meter *m)
{
	int64_t last_ns = m->last_boot_ns + m->options.wall_offset_ns;

	if (m->ticked && last_ns > (m->closed ? m->closed_to_ns : m->from_ns))
		close_interval(m, last_ns);
}

/* ---- batches ---- */

static int
record_order(const void *a, const void *b)
{
	const struct wire_record *x = a, *y = b;

	if (x->device != y->device)
		return x->device < y->device ? -1 : 1;
	if (x->holder != y->holder)
		return x->holder < y->holder ? -1 : 1;
	if (x->start_ns != y->start_ns)
		return x->start_ns < y->start_ns ? -1 : 1;
	return x->state < y->state ? -1 : x->state > y->state;
}

/* Moves the first `count` records into an array of their own, by device, holder and time, so that the columns of a batch change little from
 * row to row. */
static struct wire_record *
take_records(struct record_list *l, size_t count)
{
	struct wire_record *taken = mem_array(count, sizeof(*taken));

	if (count) {
		memcpy(taken, l->list, count * sizeof(*taken));
		qsort(taken, count, sizeof(*taken), record_order);
	}
	l->count -= count;
	if (count && l->count)
		memmove(l->list, l->list + count, l->count * sizeof(*l->list));
	return taken;
}

static void
mark(struct dict *d, uint32_t device_id, uint32_t holder_id)
{
	d->devices[hash_get(&d->device_by_id, device_id)]->marked = true;
	if (holder_id)
		d->holders[hash_get(&d->holder_by_id, holder_id)]->marked = true;
}

/* Keeps the dictionary to what is on a GPU now, in an open record or in a total. */
static void
sweep_dict(struct meter *m)
{
	struct dict *d = &m->dict;

	for (size_t i = 0; i < m->gpu_count; i++) {
		const struct meter_gpu *g = m->gpus[i];
		const struct gpu_view *v = &g->views[g->view];

		g->device->marked = true;
		for (size_t k = 0; k < v->instance_count; k++)
			v->instances[k].device->marked = true;
		for (size_t k = 0; k < v->process_count; k++)
			v->processes[k].device->marked = v->processes[k].holder->marked = true;
		for (size_t k = 0; k < v->claim_count; k++)
			v->claims[k].device->marked = v->claims[k].holder->marked = true;
		for (size_t k = 0; k < g->run.count; k++) {
			const struct plan_entry *e = &g->run.entries[k].sum;

			e->device->marked = true;
			if (e->holder)
				e->holder->marked = true;
		}
	}
	for (size_t i = 0; i < m->records.count; i++)
		mark(d, m->records.list[i].device, m->records.list[i].holder);
	for (size_t i = 0; i < m->totals.count; i++)
		mark(d, m->totals.list[i].device->id, m->totals.list[i].holder->id);
	dict_sweep(d);
}

bool
meter_batch(struct meter *m, bool full_dict, struct wire_batch *into)
{
	if (!m->closed)
		return false;
	into->from_ns = m->from_ns;
	into->to_ns = m->closed_to_ns;
	into->record_count = m->closed_count;
	into->records = take_records(&m->records, m->closed_count);
	m->closed_count = 0;
	m->closed = false;
	m->from_ns = m->restart_ns ? m->restart_ns : m->closed_to_ns;
	m->restart_ns = 0;
	dict_write(&m->dict, full_dict, into);
	sweep_dict(m);
	return true;
}

void
meter_carry(struct meter *m, const struct meter *before)
{
	totals_carry(&m->totals, &m->dict, &before->totals, &before->dict);
	for (size_t i = 0; i < m->gpu_count; i++) {
		struct gpu_view *v = &m->gpus[i]->views[m->gpus[i]->view];

		for (size_t k = 0; k < v->process_count; k++) {
			struct meter_process *p = &v->processes[k];

			p->measured = m->totals.processes[p->place].measured;
			p->active_unit_ns = m->totals.processes[p->place].active_unit_ns;
		}
	}
	m->stats = before->stats;
}

size_t
meter_totals(const struct meter *m, const struct meter_total **ret)
{
	*ret = m->totals.list;
	return m->totals.count;
}

size_t
meter_process_totals(const struct meter *m, const struct meter_process_total **ret)
{
	*ret = m->totals.processes;
	return m->totals.process_count;
}

size_t
meter_intruders(const struct meter *m, const struct meter_intruder **ret)
{
	*ret = m->totals.intruders;
	return m->totals.intruder_count;
}

void
meter_stats(const struct meter *m, struct meter_stats *ret)
{
	*ret = m->stats;
}
