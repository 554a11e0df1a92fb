/* exporter/meter.c - from ticks to interval records: time is cut here, what each piece holds is planned in meter_plan.c. */
#include "exporter/meter.h"

#include <stdlib.h>
#include <string.h>

#include "common/time.h"
#include "common/units.h"
#include "exporter/meter_plan.h"
#include "exporter/meter_view.h"
#include "exporter/sanitize.h"

#define GAP_MAX_NS NS_PER_DAY

struct run_entry {
	struct plan_entry sum; /* key and amounts since the run began */
	int64_t ticks;
};

/* A stretch of one GPU in which nothing changed: what the next records will be made of. */
struct run {
	int64_t start_ns, end_ns; /* wall; equal: no run */
	struct run_entry *entries;
	size_t count, cap;
};

struct meter_gpu {
	struct dict_device *device;
	struct gpu_view views[2]; /* of the last tick, and the one being read */
	int view;                 /* which is the last tick's */
	bool began;               /* the last tick saw it, or knew that it was down */
	bool seen;                /* in this tick */
	int64_t energy_mj;        /* the counter when it was last read */
	int64_t slot_energy_mj;
	struct plan plan;
	struct run run;
};

struct total_extra {
	int64_t last_held_ns; /* wall */
	uint64_t key;
};

struct meter {
	struct meter_options options;
	struct dict dict;
	struct meter_gpu **gpus;
	size_t gpu_count;
	bool ticked;
	int64_t last_boot_ns;
	int64_t from_ns;             /* wall: where the next batch begins */
	int64_t restart_ns;          /* wall: where the one after a gap begins; 0: no gap */
	struct wire_record *records; /* the closed ones first */
	size_t record_count, record_cap;
	size_t closed_count;
	bool closed;
	int64_t closed_to_ns;
	struct meter_total *totals;
	struct total_extra *extras; /* beside totals */
	size_t total_count, total_cap;
	struct idmap total_by_key;
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
	mem_free(m->records);
	mem_free(m->totals);
	mem_free(m->extras);
	idmap_fini(&m->total_by_key);
	dict_fini(&m->dict);
	mem_free(m);
}

/* ---- records ---- */

static void
add_record(struct meter *m, struct wire_record r)
{
	if (m->record_count == m->record_cap) {
		m->record_cap = m->record_cap ? m->record_cap * 2 : 64;
		m->records = mem_grow(m->records, m->record_cap, sizeof(*m->records));
	}
	m->records[m->record_count++] = r;
}

static void
close_run(struct meter *m, struct run *run)
{
	if (run->start_ns == run->end_ns)
		return;
	for (size_t i = 0; i < run->count; i++) {
		const struct plan_entry *e = &run->entries[i].sum;
		/* only a broken counter gets there; it must not make the batch one that is refused */
		int64_t energy_mj = e->energy_mj < WIRE_MAX_ENERGY_MJ ? e->energy_mj : WIRE_MAX_ENERGY_MJ;

		add_record(m, (struct wire_record){.device = e->device->wire.id,
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
		                                   .ticks = run->entries[i].ticks});
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
		run->entries[i] = (struct run_entry){.sum = key};
	}
}

static struct meter_total *
total_of(struct meter *m, const struct plan_entry *e, int64_t end_ns)
{
	uint64_t key = (uint64_t)e->device->wire.id << 32 | e->holder->wire.id;
	size_t at = idmap_get(&m->total_by_key, key);

	if (at == IDMAP_NONE) {
		if (m->total_count == m->total_cap) {
			m->total_cap = m->total_cap ? m->total_cap * 2 : 16;
			m->totals = mem_grow(m->totals, m->total_cap, sizeof(*m->totals));
			m->extras = mem_grow(m->extras, m->total_cap, sizeof(*m->extras));
		}
		at = m->total_count++;
		m->totals[at] = (struct meter_total){.holder = &e->holder->wire,
		                                     .device = &e->device->wire,
		                                     .gpu = &e->device->gpu->wire};
		idmap_put(&m->total_by_key, key, at);
	}
	m->extras[at] = (struct total_extra){.last_held_ns = end_ns, .key = key};
	return &m->totals[at];
}

static void
add_cut(struct meter *m, struct run_entry *to, const struct plan_entry *cut, int64_t end_ns, bool is_tick)
{
	struct plan_entry *sum = &to->sum;
	struct meter_total *total;

	sum->held_ns += cut->held_ns;
	sum->used_ns += cut->used_ns;
	sum->unmeasured_ns += cut->unmeasured_ns;
	sum->over_ns += cut->over_ns;
	sum->memory_byte_ms += cut->memory_byte_ms;
	sum->energy_mj += cut->energy_mj;
	to->ticks += is_tick;
	if (!cut->holder)
		return;
	total = total_of(m, cut, end_ns);
	total->used_unit_ns += (int128)cut->units * cut->used_ns;
	total->unmeasured_unit_ns += (int128)cut->units * cut->unmeasured_ns;
	total->idle_unit_ns += (int128)cut->units * (cut->held_ns - cut->used_ns - cut->unmeasured_ns);
}

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
		if (g->run.end_ns != start_ns || !same_shape(&g->run, entries, seg->count)) {
			close_run(m, &g->run);
			begin_run(&g->run, start_ns, entries, seg->count);
		}
		for (size_t i = 0; i < seg->count; i++) {
			struct plan_entry cut =
				plan_cut(&entries[i], start_ns, end_ns - start_ns, seg->end_ns - start_ns);

			add_cut(m, &g->run.entries[i], &cut, end_ns, end_ns == slot_end_ns);
		}
		g->run.end_ns = end_ns;
	}
}

static void
close_interval(struct meter *m, int64_t at_ns)
{
	for (size_t i = 0; i < m->gpu_count; i++)
		close_run(m, &m->gpus[i]->run);
	m->closed_count = m->record_count;
	m->closed = true;
	m->closed_to_ns = at_ns;
}

/* Rule 2. A long unknown slot is cut at quarter-hours only, and where the batch will end. */
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

static struct meter_gpu *
find_gpu(struct meter *m, const struct gpu_reading *r)
{
	owned(mem) char *uuid = sanitized_copy(r->uuid, GPU_TEXT);
	struct meter_gpu *g;

	for (size_t i = 0; i < m->gpu_count; i++)
		if (strcmp(m->gpus[i]->device->wire.uuid, uuid) == 0)
			return m->gpus[i];
	/* in service from the first reading that says what it is */
	if (!r->uuid[0] || !r->model[0] || m->gpu_count == GPU_MAX)
		return NULL;
	g = mem_alloc(sizeof(*g));
	g->device = dict_add_gpu(&m->dict, r);
	g->energy_mj = ABSENT;
	m->gpus = mem_grow(m->gpus, m->gpu_count + 1, sizeof(*m->gpus));
	m->gpus[m->gpu_count++] = g;
	return g;
}

/* What the counter rose by since it was last read, also when ticks in between had none. A counter that fell began anew, one that
 * rose beyond reason is broken. */
static int64_t
energy_since(struct meter_gpu *g, const struct gpu_reading *r)
{
	int64_t before = g->energy_mj, rise;

	if (r->down || r->energy_mj < 0)
		return 0;
	g->energy_mj = r->energy_mj;
	rise = before == ABSENT || r->energy_mj < before ? 0 : r->energy_mj - before;
	return rise > WIRE_MAX_ENERGY_MJ ? 0 : rise;
}

static void
read_views(struct meter *m, const struct tick *t, int64_t wall_ns)
{
	for (size_t i = 0; i < m->gpu_count; i++)
		m->gpus[i]->seen = false;
	for (size_t i = 0; i < t->gpu_count; i++) {
		struct meter_gpu *g = find_gpu(m, t->gpus[i].reading);

		if (!g || g->seen)
			continue;
		g->seen = true;
		g->slot_energy_mj = energy_since(g, t->gpus[i].reading);
		gpu_view_read(&g->views[!g->view], &m->dict, g->device, &t->gpus[i], &g->views[g->view], wall_ns,
		              m->options.wall_offset_ns);
	}
	for (size_t i = 0; i < m->gpu_count; i++) {
		struct meter_gpu *g = m->gpus[i];

		if (g->seen)
			continue;
		g->slot_energy_mj = 0;
		gpu_view_down(&g->views[!g->view], &g->views[g->view]);
	}
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
		                         .replicas = m->options.replicas};

		if (g->began)
			plan_make(&slot, &g->plan);
	}
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

	if (m->ticked && slot_ns <= 0)
		return false;
	if (gap)
		meter_flush(m);
	read_views(m, t, wall_ns);
	if (!m->ticked || gap) {
		begin_anew(m, wall_ns);
		closed = m->closed;
	} else {
		bool unknown = slot_ns > 2 * m->options.sample_interval_ns;

		make_plans(m, wall_ns - slot_ns, wall_ns, unknown);
		closed = cut_slot(m, wall_ns - slot_ns, wall_ns, unknown);
	}
	for (size_t i = 0; i < m->gpu_count; i++) {
		m->gpus[i]->view = !m->gpus[i]->view;
		m->gpus[i]->began = true;
	}
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
drop_old_totals(struct meter *m, int64_t before_ns)
{
	size_t kept = 0;

	for (size_t i = 0; i < m->total_count; i++) {
		if (m->extras[i].last_held_ns <= before_ns)
			continue;
		m->totals[kept] = m->totals[i];
		m->extras[kept++] = m->extras[i];
	}
	if (kept == m->total_count)
		return;
	m->total_count = kept;
	idmap_clear(&m->total_by_key);
	for (size_t i = 0; i < kept; i++)
		idmap_put(&m->total_by_key, m->extras[i].key, i);
}

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
		for (size_t k = 0; k < v->presence_count; k++)
			mark(d, v->presences[k].device->wire.id, v->presences[k].holder->wire.id);
		for (size_t k = 0; k < g->run.count; k++) {
			const struct plan_entry *e = &g->run.entries[k].sum;

			mark(d, e->device->wire.id, e->holder ? e->holder->wire.id : 0);
		}
	}
	for (size_t i = 0; i < m->record_count; i++)
		mark(d, m->records[i].device, m->records[i].holder);
	for (size_t i = 0; i < m->total_count; i++)
		mark(d, m->totals[i].device->id, m->totals[i].holder->id);
	dict_sweep(d);
}

/* By device, holder and time, so that the columns of the batch change little from row to row. */
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

bool
meter_batch(struct meter *m, bool full_dict, struct wire_batch *into)
{
	size_t open = m->record_count - m->closed_count;

	if (!m->closed)
		return false;
	into->from_ns = m->from_ns;
	into->to_ns = m->closed_to_ns;
	into->record_count = m->closed_count;
	into->records = mem_array(m->closed_count, sizeof(*into->records));
	if (m->closed_count) {
		memcpy(into->records, m->records, m->closed_count * sizeof(*into->records));
		qsort(into->records, m->closed_count, sizeof(*into->records), record_order);
	}
	if (open)
		memmove(m->records, m->records + m->closed_count, open * sizeof(*m->records));
	m->record_count = open;
	m->closed_count = 0;
	m->closed = false;
	m->from_ns = m->restart_ns ? m->restart_ns : m->closed_to_ns;
	m->restart_ns = 0;
	dict_write(&m->dict, full_dict, into);
	drop_old_totals(m, into->from_ns);
	sweep_dict(m);
	return true;
}

size_t
meter_totals(const struct meter *m, const struct meter_total **ret)
{
	*ret = m->totals;
	return m->total_count;
}
