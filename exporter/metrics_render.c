/* exporter/metrics_render.c - what a node knows about its GPUs and about its exporter, as Prometheus families.
 * What the driver does not have is left out, never zero. */
#include <string.h>

#include "common/time.h"
#include "common/units.h"
#include "exporter/metrics.h"
#include "exporter/metrics_labels.h"

#define LABELS_MAX (64u << 10)

struct render {
	const struct metrics_input *in;
	struct prom p;
	struct label_sets gpus,
		instances;           /* of the tick, in its order; rendered with every page, few and in many samples */
	struct label_sets processes; /* only for a page that is written in full */
	size_t gpu_count;
	const char *family;
	/* either the numbers are put into the template, as long as it fits, or it is recorded */
	bool in_full, fits;
	struct template_cursor cursor;
	struct template_recorder recorder;
	struct sample_key key;
};

static void
begin_family(struct render *r, const char *name, enum prom_type type, const char *help)
{
	r->family = name;
	if (r->in_full)
		prom_family(&r->p, name, type, help);
}

/* Every sample begins here: true when it is to be written in full, and then end_sample follows. What the labels depend on, beside
 * the ground (see make_ground), is in thing and place. */
static inline bool
begin_sample(struct render *r, uint64_t thing, uint64_t place, int64_t value, int decimals)
{
	if (!r->in_full) {
		if (r->fits)
			r->fits = template_number(&r->cursor, r->family, thing, place, value, decimals);
		return false;
	}
	r->key = (struct sample_key){r->family, thing, place};
	return true;
}

static void
end_sample(struct render *r)
{
	if (r->recorder.t)
		template_record_sample(&r->recorder, &r->key, &r->p);
}

static void
put_set(struct prom *p, const struct label_sets *l, size_t i)
{
	struct prom_set set = label_sets_get(l, i);

	prom_labels(p, &set);
}

/* A sample of a GPU and of what is on it. */
static void
put_sample(struct render *r, size_t gpu, const struct label_sets *more, size_t i, int64_t value, int decimals)
{
	struct prom_set sets[2] = {label_sets_get(&r->gpus, gpu)};

	if (more)
		sets[1] = label_sets_get(more, i);
	prom_sample(&r->p, sets, more ? 2 : 1, value, decimals);
	end_sample(r);
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

	begin_family(r, "tollgate_gpu_info", PROM_GAUGE, "A GPU of this node: its product name, address and MIG mode.");
	for (size_t i = 0; i < r->gpu_count; i++) {
		if (!begin_sample(r, 0, i, 1, 0))
			continue;
		prom_begin(p);
		put_set(p, &r->gpus, i);
		prom_label(p, "product", reading(r, i)->model);
		prom_label(p, "pci", reading(r, i)->pci);
		prom_label(p, "mig", reading(r, i)->mig ? "on" : "off");
		prom_int(p, 1);
		end_sample(r);
	}
	begin_family(r, "tollgate_gpu_up", PROM_GAUGE, "1 when the GPU answers, 0 when it is lost or in error.");
	for (size_t i = 0; i < r->gpu_count; i++)
		if (begin_sample(r, 0, i, !reading(r, i)->down, 0))
			put_sample(r, i, NULL, 0, !reading(r, i)->down, 0);
}

static void
render_gpus(struct render *r)
{
	render_gpu_info(r);
	for (size_t f = 0; f < ARRAY_LEN(gpu_families); f++) {
		const struct gpu_family *family = &gpu_families[f];

		begin_family(r, family->name, family->type, family->help);
		for (size_t i = 0; i < r->gpu_count; i++) {
			int64_t v = value_at(reading(r, i), family->offset);

			if (v == ABSENT || reading(r, i)->down)
				continue;
			if (begin_sample(r, 0, i, v, family->decimals))
				put_sample(r, i, NULL, 0, v, family->decimals);
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
	size_t set = 0;

	for (size_t i = 0; i < r->gpu_count; i++)
		for (size_t k = 0; k < reading(r, i)->instance_count; k++, set++) {
			int64_t v = family ? value_at(&reading(r, i)->instances[k], family->offset) : 1;
			int decimals = family ? family->decimals : 0;

			if (v != ABSENT && begin_sample(r, set, i, v, decimals))
				put_sample(r, i, &r->instances, set, v, decimals);
		}
}

static void
render_mig(struct render *r)
{
	begin_family(r, "tollgate_mig_info", PROM_GAUGE, "A MIG compute instance of a GPU of this node.");
	render_instances(r, NULL);
	for (size_t f = 0; f < ARRAY_LEN(instance_families); f++) {
		begin_family(r, instance_families[f].name, instance_families[f].type, instance_families[f].help);
		render_instances(r, &instance_families[f]);
	}
}

/* ---- processes and workloads ---- */

/* A holder without id has no identity, so nothing can be kept about it. */
static uint64_t
holder_thing(struct render *r, uint32_t other, const struct wire_holder *h)
{
	if (h->id == 0)
		r->fits = false;
	return (uint64_t)other << 32 | h->id;
}

/* Where a process is: its GPU, and there the instance or none. */
static uint64_t
process_place(const struct render *r, size_t gpu, const struct tick_process *t)
{
	const struct gpu_reading *g = reading(r, gpu);
	size_t k = 0;

	while (k < g->instance_count && (g->instances[k].gi != t->gi || g->instances[k].ci != t->ci))
		k++;
	return gpu * (GPU_INSTANCE_MAX + 1) + k;
}

/* One family over all processes; a process without the value is left out. */
static void
render_process_family(struct render *r, bool memory)
{
	size_t set = 0;

	for (size_t i = 0; i < r->gpu_count; i++)
		for (size_t k = 0; k < r->in->tick->gpus[i].process_count; k++, set++) {
			const struct tick_process *t = &r->in->tick->gpus[i].processes[k];
			int64_t v = memory ? t->memory_bytes : t->sm_ppm;
			int decimals = memory ? 0 : 6;

			if (v == ABSENT || (!memory && !reading(r, i)->process_activity))
				continue;
			if (begin_sample(r, holder_thing(r, t->pid, t->holder), process_place(r, i, t), v, decimals))
				put_sample(r, i, &r->processes, set, v, decimals);
		}
}

static void
render_processes(struct render *r)
{
	begin_family(r, "tollgate_process_memory_used_bytes", PROM_GAUGE, "GPU memory in use by a process.");
	render_process_family(r, true);
	begin_family(r, "tollgate_process_sm_utilization_ratio", PROM_GAUGE,
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

/* Dividing 128 bits takes longer than writing the number; a GPU fills 64 of them in 21 days. */
static int64_t
gpu_ns(int128 unit_ns)
{
	if (unit_ns >= 0 && unit_ns <= INT64_MAX)
		return (int64_t)unit_ns / UNITS_PER_GPU;
	return (int64_t)(unit_ns / UNITS_PER_GPU);
}

#define STATE(name)                                                      \
	{                                                                \
		",state=\"" name "\"", sizeof(",state=\"" name "\"") - 1 \
	}

static void
render_total(struct render *r, const struct meter_total *t, struct buf *set)
{
	static const struct prom_set states[] = {STATE("used"), STATE("idle"), STATE("unmeasured")};
	const int128 unit_ns[] = {t->used_unit_ns, t->idle_unit_ns, t->unmeasured_unit_ns};
	uint64_t thing = holder_thing(r, t->device->id, t->holder);

	if (!r->in_full) {
		for (size_t i = 0; i < ARRAY_LEN(states); i++)
			begin_sample(r, thing, i, gpu_ns(unit_ns[i]), 9);
		return;
	}
	buf_clear(set);
	put_gpu(r, t->gpu, set);
	if (t->device != t->gpu)
		label_instance(set, t->device->uuid, t->device->gi, t->device->ci, t->device->profile);
	label_holder(set, t->holder);
	for (size_t i = 0; i < ARRAY_LEN(states); i++) {
		const struct prom_set sets[] = {{buf_text(set), set->len}, states[i]};

		begin_sample(r, thing, i, 0, 0);
		prom_sample(&r->p, sets, ARRAY_LEN(sets), gpu_ns(unit_ns[i]), 9);
		end_sample(r);
	}
}

static void
render_workloads(struct render *r)
{
	in_place(buf) struct buf set;

	buf_init(&set, LABELS_MAX);
	begin_family(r, "tollgate_workload_gpu_seconds_total", PROM_COUNTER,
	             "GPU time held by a workload since it was first seen, in seconds of a whole GPU.");
	for (size_t i = 0; i < r->in->total_count; i++)
		render_total(r, &r->in->totals[i], &set);
}

/* ---- the exporter itself ---- */

static void
simple(struct render *r, const char *name, enum prom_type type, const char *help, int64_t value, int decimals)
{
	begin_family(r, name, type, help);
	if (!begin_sample(r, 0, 0, value, decimals))
		return;
	prom_begin(&r->p);
	prom_fixed(&r->p, value, decimals);
	end_sample(r);
}

static void
render_info(struct render *r)
{
	struct prom *p = &r->p;

	begin_family(r, "tollgate_exporter_build_info", PROM_GAUGE, "The version of the exporter.");
	if (begin_sample(r, 0, 0, 1, 0)) {
		prom_begin(p);
		prom_label(p, "version", r->in->version);
		prom_int(p, 1);
		end_sample(r);
	}
	begin_family(r, "tollgate_exporter_source_info", PROM_GAUGE, "Where readings of GPUs come from.");
	if (begin_sample(r, 0, 0, 1, 0)) {
		prom_begin(p);
		prom_label(p, "source", r->in->source);
		prom_label(p, "driver_version", r->in->driver);
		prom_label(p, "library_version", r->in->library);
		prom_label(p, "simulated", r->in->simulated ? "true" : "false");
		prom_int(p, 1);
		end_sample(r);
	}
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
	begin_family(r, "tollgate_exporter_push_requests_total", PROM_COUNTER,
	             "Requests to the aggregator by what came of them.");
	for (size_t i = 0; i < ARRAY_LEN(results); i++) {
		if (!begin_sample(r, 0, i, results[i].count, 0))
			continue;
		prom_begin(&r->p);
		prom_label(&r->p, "result", results[i].result);
		prom_int(&r->p, results[i].count);
		end_sample(r);
	}
	if (s->last_success_wall_ns >= 0)
		simple(r, "tollgate_exporter_push_last_success_timestamp_seconds", PROM_GAUGE,
		       "When the aggregator last acknowledged a batch.", s->last_success_wall_ns / NS_PER_MS, 3);
}

static void
make_sets(struct render *r)
{
	label_sets_init(&r->gpus);
	label_sets_init(&r->instances);
	label_sets_init(&r->processes);
	for (size_t i = 0; i < r->gpu_count; i++) {
		const struct gpu_reading *g = reading(r, i);

		label_gpu(&r->gpus.bytes, r->in->node, g->index, g->uuid, g->model);
		label_sets_end(&r->gpus);
		for (size_t k = 0; k < g->instance_count; k++) {
			const struct gpu_instance *in = &g->instances[k];

			label_instance(&r->instances.bytes, in->uuid, in->gi, in->ci, in->profile);
			label_sets_end(&r->instances);
		}
	}
}

static void
make_process_sets(struct render *r)
{
	size_t instances = 0;

	for (size_t i = 0; i < r->gpu_count; i++) {
		const struct tick_gpu *t = &r->in->tick->gpus[i];

		for (size_t k = 0; k < t->process_count; k++) {
			const struct tick_process *p = &t->processes[k];
			size_t n = process_place(r, i, p) % (GPU_INSTANCE_MAX + 1);

			if (n < t->reading->instance_count) {
				struct prom_set set = label_sets_get(&r->instances, instances + n);

				buf_add(&r->processes.bytes, set.text, set.len);
			}
			label_number(&r->processes.bytes, "pid", p->pid);
			label_holder(&r->processes.bytes, p->holder);
			label_sets_end(&r->processes);
		}
		instances += t->reading->instance_count;
	}
}

/* All that the text of a page depends on, but for which samples it has and for what their keys say. */
static void
make_ground(const struct render *r, struct buf *ground)
{
	const struct metrics_input *in = r->in;

	prom_set_label(ground, "version", in->version);
	prom_set_label(ground, "source", in->source);
	prom_set_label(ground, "driver", in->driver);
	prom_set_label(ground, "library", in->library);
	label_number(ground, "stream", (int64_t)in->stream);
	label_number(ground, "flags",
	             in->simulated | in->process_metrics << 1 | in->pushes << 2 | (in->tick != NULL) << 3);
	for (size_t i = 0; in->tick && i < r->gpu_count; i++) {
		buf_add(ground, reading(r, i)->pci, strlen(reading(r, i)->pci) + 1);
		buf_add(ground, reading(r, i)->model, strlen(reading(r, i)->model) + 1);
		label_number(ground, "mig", reading(r, i)->mig);
		label_number(ground, "instances", (int64_t)reading(r, i)->instance_count);
	}
	buf_add(ground, r->gpus.bytes.data, r->gpus.bytes.len);
	buf_add(ground, r->instances.bytes.data, r->instances.bytes.len);
}

static void
render_page(struct render *r)
{
	if (r->in->tick) {
		render_gpus(r);
		render_mig(r);
		if (r->in->process_metrics)
			render_processes(r);
	}
	render_workloads(r);
	render_info(r);
	render_ticks(r);
	render_spool(r);
	render_push(r);
}

static bool
render_with_template(struct render *r, const struct page_template *t, const struct buf *ground)
{
	r->fits = template_begin(&r->cursor, t, ground, r->p.out);
	if (r->fits)
		render_page(r);
	return r->fits && template_end(&r->cursor);
}

void
metrics_render(const struct metrics_input *in, struct page_template *t, struct buf *out)
{
	struct render r = {.in = in, .gpu_count = in->tick ? in->tick->gpu_count : 0};
	in_place(buf) struct buf ground;

	ASSERT(out->len == 0);
	buf_init(&ground, METRICS_MAX);
	prom_init(&r.p, out, PROM_TEXT);
	make_sets(&r);
	make_ground(&r, &ground);
	if (!t || !render_with_template(&r, t, &ground)) {
		r.in_full = true;
		if (t)
			template_record(&r.recorder, t, &ground);
		if (in->process_metrics)
			make_process_sets(&r);
		render_page(&r);
		if (t)
			template_record_end(&r.recorder, out);
	}
	label_sets_fini(&r.gpus);
	label_sets_fini(&r.instances);
	label_sets_fini(&r.processes);
}
