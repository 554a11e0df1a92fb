/* exporter/sampler.c - one tick from the driver to /metrics. */
#include "exporter/sampler.h"

#include <stdio.h>

#include "common/time.h"

struct sampler {
	struct sampler_options options;
	struct gpu_source *source; /* NULL while its library fails */
	int64_t source_retry_boot_ns;
	char source_name[32], driver[GPU_TEXT], library[GPU_TEXT];
	bool simulated;
	struct gpu_snapshot *snapshot;
	struct identity *identity;
	struct meter *meter;
	uint64_t stream; /* counts meters */
	int64_t wall_offset_ns;
	struct outbox *outbox;
	struct push *push;
	struct metrics *metrics;
	struct tick_process *processes; /* of all GPUs, one after the other */
	size_t process_cap;
	struct tick_gpu gpus[GPU_MAX];
	struct tick tick;
	int64_t ticks, missed_ticks, failed_readings, tick_duration_ns, last_reading_wall_ns;
};

static struct meter *
new_meter(struct sampler *s)
{
	struct meter_options o = {.sample_interval_ns = s->options.sample_interval_ns,
	                          .interval_ns = s->options.interval_ns,
	                          .wall_offset_ns = s->wall_offset_ns,
	                          .replicas = s->options.replicas};

	s->stream++;
	return meter_new(&o);
}

/* The source's facts are kept: it may be gone when they are shown. */
static void
note_source(struct sampler *s)
{
	const struct gpu_source_ops *ops = s->source->ops;

	snprintf(s->source_name, sizeof(s->source_name), "%s", ops->name);
	snprintf(s->driver, sizeof(s->driver), "%s", ops->driver_version(s->source));
	snprintf(s->library, sizeof(s->library), "%s", ops->library_version(s->source));
	s->simulated = ops->simulated(s->source);
}

struct sampler *
sampler_new(const struct sampler_options *o, struct gpu_source *source, struct outbox *outbox, struct push *push,
            struct metrics *metrics, int64_t boot_ns, int64_t wall_ns)
{
	struct sampler *s = mem_alloc(sizeof(*s));

	s->options = *o;
	s->source = source;
	s->outbox = outbox;
	s->push = push;
	s->metrics = metrics;
	s->snapshot = gpu_snapshot_new();
	s->identity = identity_new(&o->identity);
	s->wall_offset_ns = wall_ns - boot_ns;
	s->meter = new_meter(s);
	s->last_reading_wall_ns = -1;
	note_source(s);
	return s;
}

void
sampler_free(struct sampler *s)
{
	if (!s)
		return;
	meter_free(s->meter);
	identity_free(s->identity);
	gpu_snapshot_free(s->snapshot);
	gpu_source_free(s->source);
	mem_free(s->processes);
	mem_free(s);
}

/* ---- reading ---- */

static bool
reopen(struct sampler *s, int64_t boot_ns, struct err *err)
{
	const struct nvml_options nvml = {.library = s->options.nvml_library,
	                                  .enable_accounting = s->options.enable_accounting};

	if (boot_ns < s->source_retry_boot_ns)
		return err_set(err, ERR_RETRY, "the GPU library failed and is opened again soon");
	s->source_retry_boot_ns = boot_ns + SOURCE_PAUSE_NS;
	if (!nvml_open(&nvml, &s->source, err))
		return false;
	/* records are flagged once per stream: a library that is now another kind is not taken */
	if (s->source->ops->simulated(s->source) != s->simulated) {
		gpu_source_free(take(s->source));
		return err_set(err, ERR_FATAL, "the GPU library changed between a real one and a simulator");
	}
	note_source(s);
	return true;
}

static bool
read_gpus(struct sampler *s, int64_t boot_ns, struct err *err)
{
	if (!s->source && !reopen(s, boot_ns, err))
		return false;
	if (gpu_source_read_all(s->source, boot_ns, s->snapshot, err))
		return true;
	gpu_source_free(take(s->source));
	s->source_retry_boot_ns = boot_ns + SOURCE_PAUSE_NS;
	return false;
}

/* The processes of one GPU with their owners; one that is already gone is left out. */
static size_t
identify(struct sampler *s, const struct gpu_reading *r, struct tick_process *to)
{
	size_t n = 0;

	for (size_t i = 0; i < r->process_count; i++) {
		const struct gpu_process *p = &r->processes[i];
		struct process_identity who;

		if (!identity_of(s->identity, p->pid, &who, NULL))
			continue;
		to[n++] = (struct tick_process){.holder = who.holder,
		                                .pid = p->pid,
		                                .start_boot_ns = who.start_boot_ns,
		                                .gi = p->gi,
		                                .ci = p->ci,
		                                .memory_bytes = p->memory_bytes,
		                                .sm_ppm = p->sm_ppm};
	}
	return n;
}

static void
make_tick(struct sampler *s, int64_t boot_ns)
{
	const struct gpu_snapshot *snap = s->snapshot;
	size_t total = 0, used = 0;

	for (size_t i = 0; i < snap->count; i++)
		total += snap->gpus[i].process_count;
	if (total > s->process_cap) {
		s->process_cap = total;
		s->processes = mem_grow(s->processes, total, sizeof(*s->processes));
	}
	s->tick = (struct tick){.boot_ns = boot_ns, .gpus = s->gpus};
	for (size_t i = 0; i < snap->count && i < GPU_MAX; i++) {
		struct tick_gpu *g = &s->gpus[s->tick.gpu_count++];

		*g = (struct tick_gpu){.reading = &snap->gpus[i], .processes = s->processes + used};
		g->process_count = identify(s, &snap->gpus[i], s->processes + used);
		used += g->process_count;
	}
}

/* ---- handing over ---- */

/* All that is closed, into the outbox. */
static void
hand_over(struct sampler *s, int64_t wall_ns, struct err *err)
{
	for (;;) {
		struct wire_batch *b = wire_batch_new();

		if (!meter_batch(s->meter, outbox_wants_dict(s->outbox), b)) {
			wire_batch_free(b);
			break;
		}
		if (outbox_add(s->outbox, b, wall_ns, err))
			err->kind = ERR_NONE;
	}
	if (s->push)
		push_wake(s->push);
}

/* The stream ends here and the next one begins at the same tick, so that no time between them is lost or counted twice by the
 * boot clock; what wall time did is for the ledger to book. */
static void
step_clock(struct sampler *s, int64_t boot_ns, int64_t wall_ns, struct sampler_report *ret)
{
	ret->clock_step_ns = wall_ns - boot_ns - s->wall_offset_ns;
	meter_flush(s->meter);
	hand_over(s, wall_ns, &ret->storing);
	if (outbox_new_stream(s->outbox, wall_ns, &ret->storing))
		ret->storing.kind = ERR_NONE;
	s->wall_offset_ns = wall_ns - boot_ns;
	meter_free(s->meter);
	s->meter = new_meter(s);
	(void)meter_tick(s->meter, &s->tick); /* the first one closes nothing */
}

static void
meter(struct sampler *s, int64_t boot_ns, int64_t wall_ns, struct sampler_report *ret)
{
	int64_t drift_ns = wall_ns - boot_ns - s->wall_offset_ns;

	if (meter_tick(s->meter, &s->tick))
		hand_over(s, wall_ns, &ret->storing);
	if (drift_ns > CLOCK_STEP_NS || drift_ns < -CLOCK_STEP_NS)
		step_clock(s, boot_ns, wall_ns, ret);
}

static void
publish(struct sampler *s, bool read)
{
	struct metrics_input in = {.node = s->options.node,
	                           .version = s->options.version,
	                           .source = s->source_name,
	                           .driver = s->driver,
	                           .library = s->library,
	                           .simulated = s->simulated,
	                           .tick = read ? &s->tick : NULL,
	                           .process_metrics = s->options.process_metrics,
	                           .pushes = s->push != NULL,
	                           .ticks = s->ticks,
	                           .missed_ticks = s->missed_ticks,
	                           .failed_readings = s->failed_readings,
	                           .tick_duration_ns = s->tick_duration_ns,
	                           .last_reading_wall_ns = s->last_reading_wall_ns};

	in.total_count = meter_totals(s->meter, &in.totals);
	in.stream = s->stream;
	outbox_stats(s->outbox, &in.outbox);
	if (s->push)
		push_stats(s->push, &in.push);
	metrics_publish(s->metrics, &in);
}

void
sampler_tick(struct sampler *s, int64_t boot_ns, int64_t wall_ns, struct sampler_report *ret)
{
	bool read;

	*ret = (struct sampler_report){0};
	s->ticks++;
	read = read_gpus(s, boot_ns, &ret->reading);
	if (read) {
		ret->gpus = s->snapshot->count;
		s->last_reading_wall_ns = wall_ns;
		make_tick(s, boot_ns);
		meter(s, boot_ns, wall_ns, ret);
	} else {
		s->failed_readings++;
	}
	/* what the disk did not take before, it may take now */
	if (ret->storing.kind == ERR_NONE && outbox_flush(s->outbox, wall_ns, &ret->storing))
		ret->storing.kind = ERR_NONE;
	publish(s, read);
	identity_sweep(s->identity);
}

void
sampler_finish(struct sampler *s, int64_t wall_ns, struct sampler_report *ret)
{
	*ret = (struct sampler_report){0};
	meter_flush(s->meter);
	hand_over(s, wall_ns, &ret->storing);
	if (outbox_flush(s->outbox, wall_ns, &ret->storing))
		ret->storing.kind = ERR_NONE;
}

void
sampler_missed(struct sampler *s, int64_t ticks)
{
	s->missed_ticks += ticks;
}

void
sampler_took(struct sampler *s, int64_t duration_ns)
{
	s->tick_duration_ns = duration_ns;
}
