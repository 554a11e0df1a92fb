/* exporter/metrics_render.c - what a node knows about its GPUs and about its exporter, as Prometheus families.
 * What the driver does not have is left out, never zero. */
#include <string.h>

#include "common/time.h"
#include "common/units.h"
#include "exporter/metrics.h"

#define LABELS_MAX (64u << 10)

/* Label sets rendered once and used by several families. */
struct label_sets {
	struct buf bytes; /* one after the other */
	struct span {
		size_t at, len;
	} * spans;
	size_t count, cap;
};

struct render {
	const struct metrics_input *in;
	struct prom p;
	struct label_sets gpus, instances, processes; /* of the tick, in its order */
	size_t gpu_count;
};

static void
sets_init(struct label_sets *l)
{
	*l = (struct label_sets){0};
	buf_init(&l->bytes, METRICS_MAX);
}

static void
sets_fini(struct label_sets *l)
{
	buf_fini(&l->bytes);
	mem_free(l->spans);
}

/* Ends the set that was written into bytes since the last one. */
static void
sets_end(struct label_sets *l)
{
	size_t at = l->count ? l->spans[l->count - 1].at + l->spans[l->count - 1].len : 0;

	if (l->count == l->cap) {
		l->cap = l->cap ? l->cap * 2 : 16;
		l->spans = mem_grow(l->spans, l->cap, sizeof(*l->spans));
	}
	l->spans[l->count++] = (struct span){.at = at, .len = l->bytes.len - at};
}

static void
put_set(struct prom *p, const struct label_sets *l, size_t i)
{
	const struct span *span = &l->spans[i];
	struct buf view = {.data = l->bytes.data + span->at, .len = span->len};

	prom_labels(p, &view);
}

/* snprintf takes longer than all the rest of a sample. */
static void
label_number(struct buf *set, const char *name, int64_t value)
{
	char text[24], *at = text + sizeof(text) - 1;
	uint64_t v = value < 0 ? 0 - (uint64_t)value : (uint64_t)value;

	*at = '\0';
	do {
		*--at = (char)('0' + v % 10);
		v /= 10;
	} while (v);
	if (value < 0)
		*--at = '-';
	prom_set_label(set, name, at);
}

static void
label_gpu(struct buf *set, const char *node, int64_t index, const char *uuid, const char *model)
{
	char name[GPU_TEXT];

	gpu_model_short(model, name, sizeof(name));
	label_number(set, "gpu", index);
	prom_set_label(set, "uuid", uuid);
	prom_set_label(set, "gpu_model", name);
	prom_set_label(set, "node", node);
}

static void
label_instance(struct buf *set, const char *uuid, int32_t gi, int32_t ci, const char *profile)
{
	prom_set_label(set, "mig_uuid", uuid);
	label_number(set, "gi", gi);
	label_number(set, "ci", ci);
	prom_set_label(set, "profile", profile);
}

static void
label_holder(struct buf *set, const struct wire_holder *h)
{
	prom_set_label(set, "kind", wire_holder_kind_name(h->kind));
	prom_set_label(set, "namespace", h->ns);
	prom_set_label(set, "pod", h->pod);
	prom_set_label(set, "container", h->container);
	prom_set_label(set, "slurm_job", h->slurm_job);
	prom_set_label(set, "user", h->user);
	/* a pod without name is known by its UID only */
	if (h->kind == WIRE_POD && !h->pod[0])
		prom_set_label(set, "pod_uid", h->pod_uid);
}

static const struct gpu_reading *
reading(const struct render *r, size_t gpu)
{
	return r->in->tick->gpus[gpu].reading;
}

/* ---- GPUs ---- */

static const struct gpu_family {
	const char *name;
	enum prom_type type;
	const char *help;
	size_t offset; /* of the int64_t in struct gpu_reading */
	int decimals;
} gpu_families[] = {
	{"tollgate_gpu_utilization_ratio", PROM_GAUGE, "Share of time in which a kernel was running.",
         offsetof(struct gpu_reading, active_ppm), 6},
	{"tollgate_gpu_memory_used_bytes", PROM_GAUGE, "Memory in use.",
         offsetof(struct gpu_reading, memory_used_bytes), 0},
	{"tollgate_gpu_memory_total_bytes", PROM_GAUGE, "Memory of the GPU.",
         offsetof(struct gpu_reading, memory_bytes), 0},
	{"tollgate_gpu_power_watts", PROM_GAUGE, "Power drawn by the board.", offsetof(struct gpu_reading, power_mw),
         3},
	{"tollgate_gpu_energy_joules_total", PROM_COUNTER, "Energy used by the board since the driver was loaded.",
         offsetof(struct gpu_reading, energy_mj), 3},
	{"tollgate_gpu_temperature_celsius", PROM_GAUGE, "Temperature of the GPU.",
         offsetof(struct gpu_reading, temperature_c), 0},
};

static int64_t
value_at(const void *thing, size_t offset)
{
	int64_t v;

	memcpy(&v, (const char *)thing + offset, sizeof(v));
	return v;
}

static void
render_gpu_info(struct render *r)
{
	struct prom *p = &r->p;

	prom_family(p, "tollgate_gpu_info", PROM_GAUGE, "A GPU of this node: its product name, address and MIG mode.");
	for (size_t i = 0; i < r->gpu_count; i++) {
		prom_begin(p);
		put_set(p, &r->gpus, i);
		prom_label(p, "product", reading(r, i)->model);
		prom_label(p, "pci", reading(r, i)->pci);
		prom_label(p, "mig", reading(r, i)->mig ? "on" : "off");
		prom_int(p, 1);
	}
	prom_family(p, "tollgate_gpu_up", PROM_GAUGE, "1 when the GPU answers, 0 when it is lost or in error.");
	for (size_t i = 0; i < r->gpu_count; i++) {
		prom_begin(p);
		put_set(p, &r->gpus, i);
		prom_int(p, !reading(r, i)->down);
	}
}

static void
render_gpus(struct render *r)
{
	struct prom *p = &r->p;

	render_gpu_info(r);
	for (size_t f = 0; f < ARRAY_LEN(gpu_families); f++) {
		const struct gpu_family *family = &gpu_families[f];

		prom_family(p, family->name, family->type, family->help);
		for (size_t i = 0; i < r->gpu_count; i++) {
			int64_t v = value_at(reading(r, i), family->offset);

			if (v == ABSENT || reading(r, i)->down)
				continue;
			prom_begin(p);
			put_set(p, &r->gpus, i);
			prom_fixed(p, v, family->decimals);
		}
	}
}

/* ---- MIG instances ---- */

static const struct gpu_family instance_families[] = {
	{"tollgate_mig_memory_used_bytes", PROM_GAUGE, "Memory in use in the instance.",
         offsetof(struct gpu_instance, memory_used_bytes), 0},
	{"tollgate_mig_memory_total_bytes", PROM_GAUGE, "Memory of the instance.",
         offsetof(struct gpu_instance, memory_bytes), 0},
	{"tollgate_mig_engine_active_ratio", PROM_GAUGE, "Share of time in which a kernel was running in the instance.",
         offsetof(struct gpu_instance, active_ppm), 6},
};

/* `family` NULL: tollgate_mig_info. */
static void
render_instances(struct render *r, const struct gpu_family *family)
{
	struct prom *p = &r->p;
	size_t set = 0;

	for (size_t i = 0; i < r->gpu_count; i++)
		for (size_t k = 0; k < reading(r, i)->instance_count; k++, set++) {
			int64_t v = family ? value_at(&reading(r, i)->instances[k], family->offset) : 1;

			if (v == ABSENT)
				continue;
			prom_begin(p);
			put_set(p, &r->gpus, i);
			put_set(p, &r->instances, set);
			prom_fixed(p, v, family ? family->decimals : 0);
		}
}

static void
render_mig(struct render *r)
{
	prom_family(&r->p, "tollgate_mig_info", PROM_GAUGE, "A MIG compute instance of a GPU of this node.");
	render_instances(r, NULL);
	for (size_t f = 0; f < ARRAY_LEN(instance_families); f++) {
		prom_family(&r->p, instance_families[f].name, instance_families[f].type, instance_families[f].help);
		render_instances(r, &instance_families[f]);
	}
}

/* ---- processes and workloads ---- */

/* One family over all processes; a process without the value is left out. */
static void
render_process_family(struct render *r, bool memory)
{
	struct prom *p = &r->p;
	size_t set = 0;

	for (size_t i = 0; i < r->gpu_count; i++)
		for (size_t k = 0; k < r->in->tick->gpus[i].process_count; k++, set++) {
			const struct tick_process *t = &r->in->tick->gpus[i].processes[k];

			if (memory ? t->memory_bytes == ABSENT
			           : t->sm_ppm == ABSENT || !reading(r, i)->process_activity)
				continue;
			prom_begin(p);
			put_set(p, &r->gpus, i);
			put_set(p, &r->processes, set);
			prom_fixed(p, memory ? t->memory_bytes : t->sm_ppm, memory ? 0 : 6);
		}
}

static void
render_processes(struct render *r)
{
	prom_family(&r->p, "tollgate_process_memory_used_bytes", PROM_GAUGE, "GPU memory in use by a process.");
	render_process_family(r, true);
	prom_family(&r->p, "tollgate_process_sm_utilization_ratio", PROM_GAUGE,
	            "Share of time in which kernels of a process were running.");
	render_process_family(r, false);
}

/* The set of a GPU of this tick, or a new one for a GPU that is not in it. */
static void
put_gpu(struct render *r, const struct wire_device *gpu, struct buf *set)
{
	for (size_t i = 0; i < r->gpu_count; i++)
		if (strcmp(reading(r, i)->uuid, gpu->uuid) == 0) {
			buf_add(set, r->gpus.bytes.data + r->gpus.spans[i].at, r->gpus.spans[i].len);
			return;
		}
	label_gpu(set, r->in->node, gpu->index, gpu->uuid, gpu->model);
}

static void
render_total(struct render *r, const struct meter_total *t, struct buf *set)
{
	const struct {
		const char *state;
		int128 unit_ns;
	} states[] = {{"used", t->used_unit_ns}, {"idle", t->idle_unit_ns}, {"unmeasured", t->unmeasured_unit_ns}};

	buf_clear(set);
	put_gpu(r, t->gpu, set);
	if (t->device != t->gpu)
		label_instance(set, t->device->uuid, t->device->gi, t->device->ci, t->device->profile);
	label_holder(set, t->holder);
	for (size_t i = 0; i < ARRAY_LEN(states); i++) {
		prom_begin(&r->p);
		prom_labels(&r->p, set);
		prom_label(&r->p, "state", states[i].state);
		prom_fixed(&r->p, (int64_t)(states[i].unit_ns / UNITS_PER_GPU), 9);
	}
}

static void
render_workloads(struct render *r)
{
	in_place(buf) struct buf set;

	buf_init(&set, LABELS_MAX);
	prom_family(&r->p, "tollgate_workload_gpu_seconds_total", PROM_COUNTER,
	            "GPU time held by a workload since it was first seen, in seconds of a whole GPU.");
	for (size_t i = 0; i < r->in->total_count; i++)
		render_total(r, &r->in->totals[i], &set);
}

/* ---- the exporter itself ---- */

static void
simple(struct render *r, const char *name, enum prom_type type, const char *help, int64_t value, int decimals)
{
	prom_family(&r->p, name, type, help);
	prom_begin(&r->p);
	prom_fixed(&r->p, value, decimals);
}

static void
render_info(struct render *r)
{
	struct prom *p = &r->p;

	prom_family(p, "tollgate_exporter_build_info", PROM_GAUGE, "The version of the exporter.");
	prom_begin(p);
	prom_label(p, "version", r->in->version);
	prom_int(p, 1);
	prom_family(p, "tollgate_exporter_source_info", PROM_GAUGE, "Where readings of GPUs come from.");
	prom_begin(p);
	prom_label(p, "source", r->in->source);
	prom_label(p, "driver_version", r->in->driver);
	prom_label(p, "library_version", r->in->library);
	prom_label(p, "simulated", r->in->simulated ? "true" : "false");
	prom_int(p, 1);
}

static void
render_ticks(struct render *r)
{
	const struct metrics_input *in = r->in;

	simple(r, "tollgate_exporter_ticks_total", PROM_COUNTER, "Readings of all GPUs.", in->ticks, 0);
	simple(r, "tollgate_exporter_missed_ticks_total", PROM_COUNTER, "Readings that did not take place in time.",
	       in->missed_ticks, 0);
	simple(r, "tollgate_exporter_failed_readings_total", PROM_COUNTER, "Readings that the driver did not answer.",
	       in->failed_readings, 0);
	simple(r, "tollgate_exporter_tick_duration_seconds", PROM_GAUGE, "How long the last tick took.",
	       in->tick_duration_ns, 9);
	if (in->last_reading_wall_ns >= 0)
		simple(r, "tollgate_exporter_last_reading_timestamp_seconds", PROM_GAUGE, "When GPUs were last read.",
		       in->last_reading_wall_ns / NS_PER_MS, 3);
}

static void
render_spool(struct render *r)
{
	const struct outbox_stats *o = &r->in->outbox;

	simple(r, "tollgate_exporter_spool_bytes", PROM_GAUGE, "Size of the spool on disk.", o->spool.bytes, 0);
	simple(r, "tollgate_exporter_spool_segments", PROM_GAUGE, "Files of the spool.", o->spool.segments, 0);
	simple(r, "tollgate_exporter_spool_batches", PROM_GAUGE, "Batches on disk that the aggregator does not have.",
	       o->spool.unacked_batches, 0);
	simple(r, "tollgate_exporter_spool_waiting_batches", PROM_GAUGE,
	       "Batches in memory that the disk did not take.", o->waiting, 0);
	simple(r, "tollgate_exporter_spool_lost_batches_total", PROM_COUNTER,
	       "Batches given up: over the cap, damaged, or not taken by the disk.",
	       o->spool.lost_batches + o->lost_waiting, 0);
	simple(r, "tollgate_exporter_spool_corrupt_segments_total", PROM_COUNTER, "Damaged files set aside.",
	       o->spool.corrupt_segments, 0);
	if (o->spool.oldest_unacked_wall_ns >= 0)
		simple(r, "tollgate_exporter_spool_oldest_batch_timestamp_seconds", PROM_GAUGE,
		       "Beginning of the oldest batch that the aggregator does not have.",
		       o->spool.oldest_unacked_wall_ns / NS_PER_MS, 3);
}

static void
render_push(struct render *r)
{
	const struct push_stats *s = &r->in->push;
	const struct {
		const char *result;
		int64_t count;
	} results[] = {{"acked", s->acked}, {"moved", s->moved}, {"failed", s->failed}};

	if (!r->in->pushes)
		return;
	prom_family(&r->p, "tollgate_exporter_push_requests_total", PROM_COUNTER,
	            "Requests to the aggregator by what came of them.");
	for (size_t i = 0; i < ARRAY_LEN(results); i++) {
		prom_begin(&r->p);
		prom_label(&r->p, "result", results[i].result);
		prom_int(&r->p, results[i].count);
	}
	if (s->last_success_wall_ns >= 0)
		simple(r, "tollgate_exporter_push_last_success_timestamp_seconds", PROM_GAUGE,
		       "When the aggregator last acknowledged a batch.", s->last_success_wall_ns / NS_PER_MS, 3);
}

static void
make_sets(struct render *r)
{
	sets_init(&r->gpus);
	sets_init(&r->instances);
	sets_init(&r->processes);
	for (size_t i = 0; i < r->gpu_count; i++) {
		const struct tick_gpu *t = &r->in->tick->gpus[i];
		const struct gpu_reading *g = t->reading;

		label_gpu(&r->gpus.bytes, r->in->node, g->index, g->uuid, g->model);
		sets_end(&r->gpus);
		for (size_t k = 0; k < g->instance_count; k++) {
			const struct gpu_instance *in = &g->instances[k];

			label_instance(&r->instances.bytes, in->uuid, in->gi, in->ci, in->profile);
			sets_end(&r->instances);
		}
		for (size_t k = 0; r->in->process_metrics && k < t->process_count; k++) {
			const struct tick_process *p = &t->processes[k];

			for (size_t n = 0; n < g->instance_count; n++)
				if (g->instances[n].gi == p->gi && g->instances[n].ci == p->ci)
					label_instance(&r->processes.bytes, g->instances[n].uuid, p->gi, p->ci,
					               g->instances[n].profile);
			label_number(&r->processes.bytes, "pid", p->pid);
			label_holder(&r->processes.bytes, p->holder);
			sets_end(&r->processes);
		}
	}
}

void
metrics_render(const struct metrics_input *in, struct buf *out)
{
	struct render r = {.in = in, .gpu_count = in->tick ? in->tick->gpu_count : 0};

	prom_init(&r.p, out, PROM_TEXT);
	make_sets(&r);
	if (in->tick) {
		render_gpus(&r);
		render_mig(&r);
		if (in->process_metrics)
			render_processes(&r);
	}
	render_workloads(&r);
	render_info(&r);
	render_ticks(&r);
	render_spool(&r);
	render_push(&r);
	prom_end(&r.p);
	sets_fini(&r.gpus);
	sets_fini(&r.instances);
	sets_fini(&r.processes);
}

/* The two formats differ in the names of counters in HELP and TYPE, and in the last line. Turning one into the other, for the
 * scrape that asks, is cheaper than rendering both every second. */
void
metrics_openmetrics(const char *text, size_t len, struct buf *out)
{
	const char suffix[] = "_total ";

	while (len > 0) {
		const char *end = memchr(text, '\n', len);
		size_t line = end ? (size_t)(end - text) + 1 : len;
		const char *name = line > 7 && text[0] == '#' ? text + 7 : NULL; /* "# HELP " or "# TYPE " */
		const char *space = name ? memchr(name, ' ', line - 7) : NULL;
		size_t name_len = space ? (size_t)(space - text) : 0;

		if (space && name_len >= 7 + sizeof(suffix) - 2 &&
		    memcmp(space - (sizeof(suffix) - 2), suffix, sizeof(suffix) - 1) == 0) {
			buf_add(out, text, name_len - (sizeof(suffix) - 2));
			buf_add(out, space, line - name_len);
		} else {
			buf_add(out, text, line);
		}
		text += line;
		len -= line;
	}
	buf_str(out, "# EOF\n");
}
