/* exporter/metrics/metrics_process.c - processes and workloads on /metrics. */
#include <stdlib.h>
#include <string.h>

#include "common/base/units.h"
#include "exporter/metrics/metrics_render.h"

#define LABELS_MAX (64u << 10)
#define SERIES_PER_PROCESS 3 /* at most */

/* ---- which processes ---- */

/* Where a process is: its GPU, and there the instance or none. `guess` is the instance of the process before it. */
static size_t
instance_of(const struct gpu_reading *g, const struct tick_process *t, size_t guess)
{
	size_t n = g->instance_count;

	if (t->gi < 0)
		return n;
	if (guess < n && g->instances[guess].gi == t->gi && g->instances[guess].ci == t->ci)
		return guess;
	for (size_t k = 0; k < n; k++)
		if (g->instances[k].gi == t->gi && g->instances[k].ci == t->ci)
			return k;
	return n;
}

/* Dividing 128 bits takes longer than writing the number; a GPU fills 64 of them in 21 days. */
static inline int64_t
gpu_ns(int128 unit_ns)
{
	if ((unit_ns >> 63) == 0)
		return (int64_t)((uint64_t)unit_ns / UNITS_PER_GPU);
	return (int64_t)(unit_ns / UNITS_PER_GPU);
}

static void
fill_gpu(struct render *r, size_t gpu)
{
	struct process_rows *rows = r->rows;
	const struct tick_gpu *g = &r->in->tick->gpus[gpu];
	struct process_row *row = rows->row + rows->count;
	const struct meter_process_total *total = rows->count + g->process_count <= r->in->process_total_count
	                                                  ? r->in->process_totals + rows->count
	                                                  : NULL;
	size_t instance = 0;

	for (size_t k = 0; k < g->process_count; k++, row++) {
		const struct tick_process *t = &g->processes[k];

		instance = instance_of(g->reading, t, instance);
		rows->without_id |= t->holder->id == 0;
		*row = (struct process_row){.thing = (uint64_t)t->pid << 32 | t->holder->id,
		                            .place = (uint32_t)(gpu * (GPU_INSTANCE_MAX + 1) + instance),
		                            .memory_bytes = t->memory_bytes,
		                            .sm_ppm = g->reading->process_activity ? t->sm_ppm : ABSENT,
		                            .active_ns = total && total[k].measured ? gpu_ns(total[k].active_unit_ns)
		                                                                    : ABSENT,
		                            .process = t};
	}
	rows->count += g->process_count;
}

static int
by_start(const void *a, const void *b)
{
	const struct tick_process *x = (*(const struct process_row *const *)a)->process;
	const struct tick_process *y = (*(const struct process_row *const *)b)->process;

	if (x->start_boot_ns != y->start_boot_ns)
		return x->start_boot_ns < y->start_boot_ns ? -1 : 1;
	if (x->pid != y->pid)
		return x->pid < y->pid ? -1 : 1;
	return x < y ? -1 : x > y;
}

static size_t
series_of(const struct process_row *row)
{
	const int64_t values[SERIES_PER_PROCESS] = {row->memory_bytes, row->sm_ppm, row->active_ns};
	size_t n = 0;

	for (size_t i = 0; i < ARRAY_LEN(values); i++)
		n += values[i] != ABSENT;
	return n;
}

/* Who was there first stays: a process that is shown is shown until it ends, however many come after it. */
static void
drop_latest(struct process_rows *rows, size_t keep)
{
	const struct process_row **order = mem_array(rows->count, sizeof(const struct process_row *));
	size_t n = 0;

	for (size_t i = 0; i < rows->count; i++)
		order[i] = &rows->row[i];
	qsort(order, rows->count, sizeof(const struct process_row *), by_start);
	for (size_t i = keep; i < rows->count; i++) {
		struct process_row *row = rows->row + (order[i] - rows->row);

		rows->dropped += series_of(row);
		row->process = NULL;
	}
	for (size_t i = 0; i < rows->count; i++)
		if (rows->row[i].process)
			rows->row[n++] = rows->row[i];
	rows->count = n;
	mem_free(order);
}

void
process_rows_fill(struct render *r)
{
	struct process_rows *rows = r->rows;
	size_t total = 0, keep = r->in->max_process_series / SERIES_PER_PROCESS;

	rows->count = rows->dropped = 0;
	rows->without_id = false;
	if (!r->in->process_metrics)
		return;
	for (size_t i = 0; i < r->gpu_count; i++)
		total += r->in->tick->gpus[i].process_count;
	if (total > rows->cap) {
		rows->cap = total;
		rows->row = mem_grow(rows->row, total, sizeof(*rows->row));
	}
	for (size_t i = 0; i < r->gpu_count; i++)
		fill_gpu(r, i);
	if (r->in->max_process_series && rows->count > keep)
		drop_latest(rows, keep);
}

static size_t
row_gpu(const struct process_row *row)
{
	return row->place / (GPU_INSTANCE_MAX + 1);
}

void
process_rows_labels(struct render *r)
{
	size_t gpu = 0, first = 0; /* instance of that GPU */

	for (size_t i = 0; i < r->rows->count; i++) {
		const struct process_row *row = &r->rows->row[i];
		size_t instance = row->place % (GPU_INSTANCE_MAX + 1);

		for (; gpu < row_gpu(row); gpu++)
			first += render_reading(r, gpu)->instance_count;
		if (instance < render_reading(r, gpu)->instance_count) {
			struct prom_set set = label_sets_get(&r->instances, first + instance);

			buf_add(&r->processes.bytes, set.text, set.len);
		}
		label_number(&r->processes.bytes, "pid", row->process->pid);
		label_holder(&r->processes.bytes, row->process->holder);
		label_sets_end(&r->processes);
	}
}

/* ---- processes ---- */

/* One family over all rows: into the template, or in full. A process without the value is left out. */
static inline void
render_rows(struct render *r, size_t offset, int decimals)
{
	struct template_cursor c = r->cursor;
	bool fits = r->fits;

	for (size_t i = 0; i < r->rows->count; i++) {
		const struct process_row *row = &r->rows->row[i];
		int64_t v = *(const int64_t *)(const void *)((const char *)row + offset);

		if (v == ABSENT)
			continue;
		if (r->in_full) {
			struct prom_set set = label_sets_get(&r->processes, i);

			render_open(r, row->thing, row->place, v);
			render_gpu_line(r, row_gpu(row), &set, v, decimals);
		} else if (fits) {
			fits = template_number(&c, row->thing, row->place, v, decimals);
		}
	}
	r->cursor = c;
	r->fits = fits;
}

void
render_processes(struct render *r)
{
	/* a holder without id has no identity, so nothing can be kept about it */
	r->fits = r->fits && !r->rows->without_id;
	render_family(r, "tollgate_process_memory_used_bytes", PROM_GAUGE, "GPU memory in use by a process.");
	render_rows(r, offsetof(struct process_row, memory_bytes), 0);
	render_family(r, "tollgate_process_sm_utilization_ratio", PROM_GAUGE,
	              "Share of time in which kernels of a process were running.");
	render_rows(r, offsetof(struct process_row, sm_ppm), 6);
	render_family(
		r, "tollgate_process_gpu_seconds_total", PROM_COUNTER,
		"Time in which kernels of a process were running since it was first seen, in seconds of a whole GPU.");
	render_rows(r, offsetof(struct process_row, active_ns), 9);
}

/* ---- workloads ---- */

/* The set of a GPU of this tick, or a new one for a GPU that is not in it. */
static void
put_gpu(struct render *r, const struct wire_device *gpu, struct buf *set)
{
	for (size_t i = 0; i < r->gpu_count; i++)
		if (strcmp(render_reading(r, i)->uuid, gpu->uuid) == 0) {
			buf_add(set, r->gpus.bytes.data + r->gpus.spans[i].at, r->gpus.spans[i].len);
			return;
		}
	label_gpu(set, r->in->node, gpu->index, gpu->uuid, gpu->model);
}

enum { USED, IDLE, UNMEASURED };

static uint64_t
thing_of(const struct wire_device *device, const struct wire_holder *holder)
{
	return (uint64_t)device->id << 32 | holder->id;
}

static void
put_device(struct render *r, const struct wire_device *device, const struct wire_device *gpu,
           const struct wire_holder *holder, struct buf *set)
{
	buf_clear(set);
	put_gpu(r, gpu, set);
	if (device != gpu)
		label_instance(set, device->uuid, device->gi, device->ci, device->profile);
	label_holder(set, holder);
}

static void
put_total(struct render *r, const struct meter_total *t, struct buf *set)
{
	static const struct prom_set states[] = {PROM_SET(",state=\"used\""), PROM_SET(",state=\"idle\""),
	                                         PROM_SET(",state=\"unmeasured\"")};
	const int64_t ns[] = {gpu_ns(t->used_unit_ns), gpu_ns(t->idle_unit_ns), gpu_ns(t->unmeasured_unit_ns)};

	put_device(r, t->device, t->gpu, t->holder, set);
	for (uint32_t i = USED; i <= UNMEASURED; i++) {
		const struct prom_set sets[] = {{buf_text(set), set->len}, states[i]};

		render_open(r, thing_of(t->device, t->holder), i, ns[i]);
		prom_sample(&r->p, sets, ARRAY_LEN(sets), ns[i], 9);
		render_close(r);
	}
}

static void
put_totals(struct render *r)
{
	in_place(buf) struct buf set = {0};

	buf_init(&set, LABELS_MAX);
	for (size_t i = 0; i < r->in->total_count; i++)
		put_total(r, &r->in->totals[i], &set);
}

static void
number_totals(struct render *r)
{
	struct template_cursor c = r->cursor;
	bool fits = r->fits;

	for (size_t i = 0; i < r->in->total_count && fits; i++) {
		const struct meter_total *t = &r->in->totals[i];
		uint64_t thing = thing_of(t->device, t->holder);

		fits = t->holder->id != 0 && template_number(&c, thing, USED, gpu_ns(t->used_unit_ns), 9) &&
		       template_number(&c, thing, IDLE, gpu_ns(t->idle_unit_ns), 9) &&
		       template_number(&c, thing, UNMEASURED, gpu_ns(t->unmeasured_unit_ns), 9);
	}
	r->cursor = c;
	r->fits = fits;
}

static void
render_intruders(struct render *r)
{
	in_place(buf) struct buf set = {0};

	buf_init(&set, LABELS_MAX);
	render_family(r, "tollgate_workload_intruder", PROM_GAUGE,
	              "1 for a workload on a device that is allocated to another one.");
	for (size_t i = 0; i < r->in->intruder_count; i++) {
		const struct meter_intruder *in = &r->in->intruders[i];

		r->fits = r->fits && in->holder->id != 0;
		if (!render_sample(r, thing_of(in->device, in->holder), 0, 1, 0))
			continue;
		put_device(r, in->device, in->gpu, in->holder, &set);
		prom_sample(&r->p, &(struct prom_set){buf_text(&set), set.len}, 1, 1, 0);
		render_close(r);
	}
}

void
render_workloads(struct render *r)
{
	render_family(r, "tollgate_workload_gpu_seconds_total", PROM_COUNTER,
	              "GPU time held by a workload since it was first seen, in seconds of a whole GPU.");
	if (r->in_full)
		put_totals(r);
	else
		number_totals(r);
	render_intruders(r);
}
