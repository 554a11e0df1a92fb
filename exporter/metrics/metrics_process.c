/* exporter/metrics/metrics_process.c - processes and workloads on /metrics: GPU time, intruders, CPU, memory, I/O and pressure. */
#include <stdlib.h>
#include <string.h>

#include "common/base/units.h"
#include "exporter/metrics/metrics_render.h"

#define LABELS_MAX (64u << 10)
#define SERIES_PER_PROCESS 3 /* at most */

/* ---- which processes ---- */

/* The instance of a process on its GPU; instance_count: none. `guess` is the instance of the process before it. */
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

/* Divides 64 bits where they suffice (21 days of a GPU): a 128-bit division takes longer than writing the number. */
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
		*row = (struct process_row){.id = (uint64_t)t->pid << 32 | t->holder->id,
		                            .part = (uint32_t)(gpu * (GPU_INSTANCE_MAX + 1) + instance),
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

/* Drops the youngest processes: a process that is shown stays until it ends, however many start after it. */
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
	return row->part / (GPU_INSTANCE_MAX + 1);
}

void
process_rows_labels(struct render *r)
{
	size_t gpu = 0, first = 0; /* instance of that GPU */

	for (size_t i = 0; i < r->rows->count; i++) {
		const struct process_row *row = &r->rows->row[i];
		size_t instance = row->part % (GPU_INSTANCE_MAX + 1);

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

/* One family over all rows, with the template or in full. A process without the value is left out. */
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

			render_open(r, row->id, row->part, v);
			render_gpu_line(r, row_gpu(row), &set, v, decimals);
		} else if (fits) {
			fits = template_number(&c, row->id, row->part, v, decimals);
		}
	}
	r->cursor = c;
	r->fits = fits;
}

void
render_processes(struct render *r)
{
	/* a holder without an id has no key for the template */
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

/* Adds the labels of a GPU, also of one that is not in this tick. */
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
key_of(const struct wire_device *device, const struct wire_holder *holder)
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

		render_open(r, key_of(t->device, t->holder), i, ns[i]);
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
update_totals(struct render *r)
{
	struct template_cursor c = r->cursor;
	bool fits = r->fits;

	for (size_t i = 0; i < r->in->total_count && fits; i++) {
		const struct meter_total *t = &r->in->totals[i];
		uint64_t id = key_of(t->device, t->holder);

		fits = t->holder->id != 0 && template_number(&c, id, USED, gpu_ns(t->used_unit_ns), 9) &&
		       template_number(&c, id, IDLE, gpu_ns(t->idle_unit_ns), 9) &&
		       template_number(&c, id, UNMEASURED, gpu_ns(t->unmeasured_unit_ns), 9);
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
		if (!render_sample(r, key_of(in->device, in->holder), 0, 1, 0))
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
		update_totals(r);
	render_intruders(r);
}

/* ---- CPU, memory, I/O and pressure of workloads ---- */

/* The label `kind` is in use for the kind of the workload. */
static const struct prom_set modes[] = {PROM_SET(",mode=\"user\""), PROM_SET(",mode=\"system\"")};
static const struct prom_set stalls[] = {
	PROM_SET(",resource=\"cpu\",stall=\"some\""),    PROM_SET(",resource=\"cpu\",stall=\"full\""),
	PROM_SET(",resource=\"memory\",stall=\"some\""), PROM_SET(",resource=\"memory\",stall=\"full\""),
	PROM_SET(",resource=\"io\",stall=\"some\""),     PROM_SET(",resource=\"io\",stall=\"full\""),
};

/* `count` samples per workload, with one label each. */
static const struct cgroup_family {
	const char *name;
	enum prom_type type;
	int decimals;
	enum workload_value first;
	uint32_t count;
	const struct prom_set *labels; /* NULL: one value without a label */
	const char *help;
} cgroup_families[] = {
	{"tollgate_workload_cpu_seconds_total", PROM_COUNTER, 9, WORKLOAD_CPU_USER_NS, ARRAY_LEN(modes), modes,
         "CPU time of a workload since its cgroup was made."},
	{"tollgate_workload_memory_bytes", PROM_GAUGE, 0, WORKLOAD_MEMORY_BYTES, 1, NULL,
         "Host memory charged to a workload, cached files included."},
	{"tollgate_workload_memory_working_set_bytes", PROM_GAUGE, 0, WORKLOAD_MEMORY_WORKING_SET_BYTES, 1, NULL,
         "Host memory of a workload without the cached files that are dropped first."},
	{"tollgate_workload_memory_anon_bytes", PROM_GAUGE, 0, WORKLOAD_MEMORY_ANON_BYTES, 1, NULL,
         "Host memory of a workload that belongs to no file."},
	{"tollgate_workload_memory_peak_bytes", PROM_GAUGE, 0, WORKLOAD_MEMORY_PEAK_BYTES, 1, NULL,
         "The most host memory that was ever charged to a workload."},
	{"tollgate_workload_memory_limit_bytes", PROM_GAUGE, 0, WORKLOAD_MEMORY_LIMIT_BYTES, 1, NULL,
         "The most host memory that a workload may have; absent where there is no limit."},
	{"tollgate_workload_oom_kills_total", PROM_COUNTER, 0, WORKLOAD_OOM_KILLS, 1, NULL,
         "Processes of a workload that were killed because memory ran out."},
	{"tollgate_workload_io_read_bytes_total", PROM_COUNTER, 0, WORKLOAD_IO_READ_BYTES, 1, NULL,
         "Bytes that a workload read from block devices."},
	{"tollgate_workload_io_write_bytes_total", PROM_COUNTER, 0, WORKLOAD_IO_WRITE_BYTES, 1, NULL,
         "Bytes that a workload wrote to block devices."},
	{"tollgate_workload_pressure_seconds_total", PROM_COUNTER, 9, WORKLOAD_PRESSURE_CPU_SOME_NS, ARRAY_LEN(stalls),
         stalls, "Time in which some, or all, of a workload's tasks were waiting for a resource."},
};

static void
put_workload_labels(const struct render *r, struct label_sets *sets)
{
	label_sets_init(sets);
	for (size_t i = 0; i < r->in->workload_count; i++) {
		prom_set_label(&sets->bytes, "node", r->in->node);
		label_holder(&sets->bytes, r->in->workloads[i].holder);
		label_sets_end(sets);
	}
}

static void
put_cgroup_family(struct render *r, const struct cgroup_family *f, const struct label_sets *labels)
{
	for (size_t i = 0; i < r->in->workload_count; i++) {
		const struct workload_row *row = &r->in->workloads[i];

		for (uint32_t k = 0; k < f->count; k++) {
			struct prom_set sets[2] = {label_sets_get(labels, i)};
			int64_t v = row->values[f->first + k];

			if (v == ABSENT)
				continue;
			if (f->labels)
				sets[1] = f->labels[k];
			render_open(r, row->holder->id, k, v);
			prom_sample(&r->p, sets, f->labels ? 2 : 1, v, f->decimals);
			render_close(r);
		}
	}
}

static void
update_cgroup_family(struct render *r, const struct cgroup_family *f)
{
	struct template_cursor c = r->cursor;
	bool fits = r->fits;

	for (size_t i = 0; i < r->in->workload_count && fits; i++) {
		const struct workload_row *row = &r->in->workloads[i];

		for (uint32_t k = 0; k < f->count && fits; k++) {
			int64_t v = row->values[f->first + k];

			fits = row->holder->id != 0 &&
			       (v == ABSENT || template_number(&c, row->holder->id, k, v, f->decimals));
		}
	}
	r->cursor = c;
	r->fits = fits;
}

void
render_workload_cgroups(struct render *r)
{
	struct label_sets labels;

	if (r->in_full)
		put_workload_labels(r, &labels);
	for (size_t i = 0; i < ARRAY_LEN(cgroup_families); i++) {
		const struct cgroup_family *f = &cgroup_families[i];

		render_family(r, f->name, f->type, f->help);
		if (r->in_full)
			put_cgroup_family(r, f, &labels);
		else
			update_cgroup_family(r, f);
	}
	if (r->in_full)
		label_sets_fini(&labels);
}
