/* exporter/meter/meter.c - from ticks to interval records: time is cut here, what each piece holds is planned in meter_plan.c. */
#include "exporter/meter/meter.h"

#include <string.h>

#include "common/base/time.h"
#include "common/base/units.h"
#include "exporter/meter/meter_plan.h"
#include "exporter/meter/meter_run.h"
#include "exporter/meter/meter_view.h"
#include "exporter/meter/meter_watch.h"
#include "exporter/source/sanitize.h"

#define GAP_MAX_NS NS_PER_DAY
/* Closed records that are not left to wait for the interval's end: a batch must not grow beyond what one may hold. */
#define RECORDS_WAITING (WIRE_MAX_RECORDS / 4)

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
	struct watch watch;
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
		run_fini(&g->run);
		mem_free(g);
	}
	mem_free(m->gpus);
	record_list_fini(&m->records);
	watch_fini(&m->watch);
	dict_fini(&m->dict);
	mem_free(m);
}

/* ---- cutting ---- */

/* Moves what one GPU's plan has in [from, to) into its run. */
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
		run_go_on(&g->run, start_ns, entries, seg->count, &m->records);
		for (size_t i = 0; i < seg->count; i++) {
			struct plan_entry cut =
				plan_cut(&entries[i], start_ns, end_ns - start_ns, seg->end_ns - start_ns);

			run_add(&g->run.entries[i], &cut, end_ns == slot_end_ns);
			if (cut.holder)
				watch_add(&m->watch, &cut);
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

/* Accounting has times of its own clock and of when the GPU was first used; a tick takes some time too. */
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
	g->views[0].read_ns = INT64_MAX; /* what ended before the first answer is not told of */
	m->gpus = mem_grow(m->gpus, m->gpu_count + 1, sizeof(*m->gpus));
	m->gpus[m->gpu_count++] = g;
	return g;
}

/* Rule 9: what the counter rose by since it was last read, also when ticks in between had none. A counter that fell began
 * anew, one that rose beyond reason is broken. */
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

/* Each allocation to the GPU that has its device. They come in the order of devices, or nearly: the search goes on where the last
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

			found = gpu_view_claim(&g->views[!g->view], &c, g->uuid_read, &t->allocations[i]);
			if (found)
				at = place;
		}
		m->stats.allocations_unknown += !found;
	}
	for (size_t i = 0; i < m->gpu_count; i++)
		gpu_view_claimed(&m->gpus[i]->views[!m->gpus[i]->view]);
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
	watch_begin(&m->watch, place);
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
		bool measured = g->began && slot_ns > 0 && !g->plan.nobody;

		watch_gpu(&m->watch, &g->views[g->view], &g->views[!g->view], wall_ns - slot_ns, wall_ns, measured);
		g->view = !g->view;
		g->began = true;
	}
	m->stats.intrusions += watch_end(&m->watch);
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

static void
mark(struct dict *d, uint32_t device_id, uint32_t holder_id)
{
	d->devices[idmap_get(&d->device_by_id, device_id)]->marked = true;
	if (holder_id)
		d->holders[idmap_get(&d->holder_by_id, holder_id)]->marked = true;
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
	for (size_t i = 0; i < m->watch.total_count; i++)
		mark(d, m->watch.totals[i].device->id, m->watch.totals[i].holder->id);
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
	into->records = record_list_take(&m->records, m->closed_count);
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
	watch_carry(&m->watch, &m->dict, &before->watch, &before->dict);
	for (size_t i = 0; i < m->gpu_count; i++) {
		struct gpu_view *v = &m->gpus[i]->views[m->gpus[i]->view];

		for (size_t k = 0; k < v->process_count; k++) {
			struct view_process *p = &v->processes[k];

			p->measured = m->watch.processes[p->place].measured;
			p->active_unit_ns = m->watch.processes[p->place].active_unit_ns;
		}
	}
	m->stats = before->stats;
}

size_t
meter_totals(const struct meter *m, const struct meter_total **ret)
{
	*ret = m->watch.totals;
	return m->watch.total_count;
}

size_t
meter_process_totals(const struct meter *m, const struct meter_process_total **ret)
{
	*ret = m->watch.processes;
	return m->watch.process_count;
}

size_t
meter_intruders(const struct meter *m, const struct meter_intruder **ret)
{
	*ret = m->watch.intruders;
	return m->watch.intruder_count;
}

void
meter_stats(const struct meter *m, struct meter_stats *ret)
{
	*ret = m->stats;
}
