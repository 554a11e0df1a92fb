/* exporter/metrics/metrics_workload.c - CPU, memory, I/O and pressure of workloads on /metrics, beside their GPU time. */
#include "exporter/metrics/metrics_render.h"

/* `kind` is taken: it says what a workload is. */
static const struct prom_set modes[] = {PROM_SET(",mode=\"user\""), PROM_SET(",mode=\"system\"")};
static const struct prom_set stalls[] = {
	PROM_SET(",resource=\"cpu\",stall=\"some\""),    PROM_SET(",resource=\"cpu\",stall=\"full\""),
	PROM_SET(",resource=\"memory\",stall=\"some\""), PROM_SET(",resource=\"memory\",stall=\"full\""),
	PROM_SET(",resource=\"io\",stall=\"some\""),     PROM_SET(",resource=\"io\",stall=\"full\""),
};

/* A sample for each of `count` values, which its labels tell apart. */
static const struct cgroup_family {
	const char *name;
	enum prom_type type;
	int decimals;
	enum workload_value first;
	uint32_t count;
	const struct prom_set *labels; /* NULL: one value, and no label for it */
	const char *help;
} families[] = {
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
put_labels(const struct render *r, struct label_sets *sets)
{
	label_sets_init(sets);
	for (size_t i = 0; i < r->in->workload_count; i++) {
		prom_set_label(&sets->bytes, "node", r->in->node);
		label_holder(&sets->bytes, r->in->workloads[i].holder);
		label_sets_end(sets);
	}
}

static void
put_family(struct render *r, const struct cgroup_family *f, const struct label_sets *labels)
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
number_family(struct render *r, const struct cgroup_family *f)
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
		put_labels(r, &labels);
	for (size_t i = 0; i < ARRAY_LEN(families); i++) {
		const struct cgroup_family *f = &families[i];

		render_family(r, f->name, f->type, f->help);
		if (r->in_full)
			put_family(r, f, &labels);
		else
			number_family(r, f);
	}
	if (r->in_full)
		label_sets_fini(&labels);
}
