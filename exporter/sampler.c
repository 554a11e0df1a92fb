/* exporter/sampler.c - one tick from the driver to /metrics. */
#include "exporter/sampler.h"

#include <stdio.h>
#include <string.h>

#include "common/base/time.h"

enum { STEP_GPUS, STEP_IDENTITY, STEP_METER, STEP_SPOOL, STEP_COUNT };

struct sampler {
	struct sampler_options options;
	struct reader *reader;
	struct reader_facts facts;
	bool flagged; /* the outbox knows whether the source is a simulator */
	const struct gpu_snapshot *snapshot;
	struct identity *identity;
	struct alloc *alloc; /* NULL: none */
	struct alloc_stats alloc_stats;
	struct podlabels *labels; /* NULL: not asked */
	uint64_t labels_version;
	struct podlabels_stats label_stats;
	struct dcgm_status dcgm;
	struct workload *workload; /* NULL: not read */
	struct status *status;     /* NULL: not sent */
	uint8_t boot_id[WIRE_BOOT_ID_SIZE];
	struct buf status_text;
	struct meter *meter;
	uint64_t stream; /* counts meters */
	int64_t wall_offset_ns;
	struct outbox *outbox;
	struct push *push;
	struct metrics *metrics;
	struct tick_process *processes; /* of all GPUs, one after the other */
	size_t process_cap;
	struct tick_process *exits; /* the same */
	size_t exit_cap;
	struct tick_gpu gpus[GPU_MAX];
	struct tick tick;
	int64_t ticks, missed_ticks, failed_readings, tick_duration_ns, last_reading_wall_ns;
	struct metrics_step steps[STEP_COUNT];
	int64_t step_began_ns;
	struct metrics_gpus gpu_counts;
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

struct sampler *
sampler_new(const struct sampler_options *o, struct reader *reader, struct outbox *outbox, struct push *push,
            struct metrics *metrics, int64_t boot_ns, int64_t wall_ns)
{
	struct sampler *s = mem_alloc(sizeof(*s));

	s->options = *o;
	s->reader = reader;
	s->outbox = outbox;
	s->push = push;
	s->metrics = metrics;
	s->identity = identity_new(&o->identity);
	s->wall_offset_ns = wall_ns - boot_ns;
	s->meter = new_meter(s);
	s->last_reading_wall_ns = -1;
	buf_init(&s->status_text, STATUS_MAX);
	return s;
}

void
sampler_free(struct sampler *s)
{
	if (!s)
		return;
	meter_free(s->meter);
	workload_free(s->workload);
	alloc_free(s->alloc);
	identity_free(s->identity);
	buf_fini(&s->status_text);
	mem_free(s->processes);
	mem_free(s->exits);
	mem_free(s);
}

bool
sampler_use_allocations(struct sampler *s, const struct alloc_options *o, int64_t patience_ns, struct err *err)
{
	return alloc_new(o, s->identity, patience_ns, &s->alloc, err);
}

void
sampler_use_labels(struct sampler *s, struct podlabels *labels)
{
	s->labels = labels;
}

bool
sampler_use_workloads(struct sampler *s, const struct workload_options *o, struct err *err)
{
	s->workload = workload_new(o);
	return workload_start(s->workload, err);
}

void
sampler_use_status(struct sampler *s, struct status *status, const uint8_t boot_id[WIRE_BOOT_ID_SIZE])
{
	s->status = status;
	memcpy(s->boot_id, boot_id, sizeof(s->boot_id));
}

/* ---- reading ---- */

static void
note_silent(const struct gpu_snapshot *snap, struct sampler_report *ret)
{
	in_place(buf) struct buf names = {0};

	buf_init(&names, sizeof(ret->silent.text) - 1);
	for (size_t i = 0; i < snap->count; i++) {
		if (snap->gpus[i].silent)
			buf_printf(&names, "%s%s", names.len ? " " : "", snap->gpus[i].uuid);
		else
			ret->gpus_read++;
	}
	if (names.len > 0)
		(void)err_set(&ret->silent, ERR_RETRY, "%s", buf_text(&names));
}

/* GPUs that answered and cannot be metered. */
static void
note_down(const struct gpu_snapshot *snap, struct sampler_report *ret)
{
	in_place(buf) struct buf names = {0};

	buf_init(&names, sizeof(ret->down.text) - 1);
	ret->count = (struct metrics_gpus){.listed = snap->listed, .down = snap->unnamed};
	for (size_t i = 0; i < snap->count; i++) {
		const struct gpu_reading *r = &snap->gpus[i];

		ret->count.down += r->down;
		ret->count.readable += !r->down && !r->silent;
		if (r->down)
			buf_printf(&names, "%s%s: %s", names.len ? "; " : "", r->uuid, r->down_reason);
	}
	if (names.len > 0)
		(void)err_set(&ret->down, ERR_RETRY, "%s", buf_text(&names));
	if (snap->unnamed > 0)
		(void)err_set(&ret->unnamed, ERR_RETRY, "%s", snap->unnamed_reason);
}

/* False: there is nothing to meter. When the library fails, every GPU is silent, and that is metered. */
static bool
read_gpus(struct sampler *s, int64_t boot_ns, int64_t wall_ns, struct sampler_report *ret)
{
	bool ok = reader_read(s->reader, boot_ns, s->options.read_patience_ns, &s->snapshot, &ret->reading);

	reader_facts(s->reader, &s->facts);
	if (s->facts.opened && !s->flagged) {
		outbox_set_flags(s->outbox, s->facts.simulated ? WIRE_SIMULATED : 0);
		s->flagged = true;
	}
	ret->gpus = s->snapshot->count;
	note_down(s->snapshot, ret);
	s->gpu_counts = ret->count;
	if (ok) {
		ret->reading.kind = ERR_NONE;
		note_silent(s->snapshot, ret);
		if (ret->gpus_read > 0 || ret->gpus == 0)
			s->last_reading_wall_ns = wall_ns;
	} else {
		s->failed_readings++;
	}
	return ok || s->snapshot->count > 0;
}

/* The processes of one GPU with their holders; one that has ended meanwhile is left out. */
static size_t
identify(struct sampler *s, const struct gpu_reading *r, struct tick_process *to)
{
	size_t n = 0;

	for (size_t i = 0; i < r->process_count; i++) {
		const struct gpu_process *p = &r->processes[i];
		struct process_identity found;

		if (!identity_of(s->identity, p->pid, &found, NULL))
			continue;
		if (s->alloc)
			found.holder = alloc_holder(s->alloc, found.holder, r, p->gi, p->ci);
		to[n] = (struct tick_process){.holder = found.holder,
		                              .pid = p->pid,
		                              .start_boot_ns = found.start_boot_ns,
		                              .gi = p->gi,
		                              .ci = p->ci,
		                              .memory_bytes = p->memory_bytes,
		                              .sm_ppm = p->sm_ppm};
		memcpy(to[n++].slurm_sluid, found.slurm_sluid, sizeof(found.slurm_sluid));
	}
	return n;
}

/* The end of the range where the sum is beyond it: a driver's values must not overflow. */
static int64_t
add_clamped(int64_t a, int64_t b)
{
	int64_t sum;

	if (__builtin_add_overflow(a, b, &sum))
		return a < 0 ? INT64_MIN : INT64_MAX;
	return sum;
}

/* The ended processes of one GPU, with their holders where known. The driver stamps them with wall time; without valid times the holder
 * is not known. */
static size_t
identify_ended(struct sampler *s, const struct gpu_reading *r, int64_t offset_ns, struct tick_process *to)
{
	for (size_t i = 0; i < r->exit_count; i++) {
		const struct gpu_exit *e = &r->exits[i];
		bool valid = e->start_wall_ns != ABSENT && e->duration_ns != ABSENT;
		int64_t start_ns = add_clamped(e->start_wall_ns, -offset_ns);
		const struct wire_holder *holder = valid ? identity_of_ended(s->identity, e->pid, start_ns) : NULL;

		if (s->alloc && holder)
			holder = alloc_holder(s->alloc, holder, r, -1, -1);
		to[i] = (struct tick_process){.holder = holder,
		                              .pid = e->pid,
		                              .start_boot_ns = start_ns,
		                              .end_boot_ns = add_clamped(start_ns, e->duration_ns),
		                              .sm_ppm = e->active_ppm,
		                              .memory_bytes = e->max_memory_bytes};
	}
	return r->exit_count;
}

static void
make_room(struct sampler *s)
{
	size_t processes = 0, exits = 0;

	for (size_t i = 0; i < s->snapshot->count; i++) {
		processes += s->snapshot->gpus[i].process_count;
		exits += s->snapshot->gpus[i].exit_count;
	}
	if (processes > s->process_cap) {
		s->process_cap = processes;
		s->processes = mem_grow(s->processes, processes, sizeof(*s->processes));
	}
	if (exits > s->exit_cap) {
		s->exit_cap = exits;
		s->exits = mem_grow(s->exits, exits, sizeof(*s->exits));
	}
}

/* Before allocations and processes: labels are part of a holder. */
static void
refresh_labels(struct sampler *s, struct sampler_report *ret)
{
	struct podlabels_list list;

	if (!s->labels)
		return;
	if (podlabels_take(s->labels, &s->labels_version, &list))
		identity_set_labels(s->identity, &list);
	if (identity_misses_labels(s->identity))
		podlabels_hurry(s->labels);
	podlabels_stats(s->labels, &s->label_stats);
	ret->labels = s->label_stats.trouble;
}

/* Before the processes: their holders depend on it. */
static void
refresh_allocations(struct sampler *s, int64_t boot_ns, int64_t wall_ns, struct sampler_report *ret)
{
	struct alloc_stats *stats = &s->alloc_stats;

	if (!s->alloc)
		return;
	alloc_refresh(s->alloc, s->snapshot, boot_ns, wall_ns);
	s->tick.allocation_count = alloc_list(s->alloc, &s->tick.allocations);
	alloc_stats(s->alloc, boot_ns, stats);
	if (stats->kubelet.used)
		ret->kubelet = stats->kubelet.trouble;
	ret->job_files = stats->refused;
}

static void
make_tick(struct sampler *s, int64_t boot_ns, int64_t wall_ns, struct sampler_report *ret)
{
	const struct gpu_snapshot *snap = s->snapshot;
	struct tick_process *process;
	struct tick_process *exit;

	make_room(s);
	process = s->processes;
	exit = s->exits;
	s->tick = (struct tick){.boot_ns = boot_ns, .gpus = s->gpus};
	refresh_labels(s, ret);
	refresh_allocations(s, boot_ns, wall_ns, ret);
	for (size_t i = 0; i < snap->count && i < GPU_MAX; i++) {
		struct tick_gpu *g = &s->gpus[s->tick.gpu_count++];

		*g = (struct tick_gpu){.reading = &snap->gpus[i], .processes = process, .exits = exit};
		g->process_count = identify(s, &snap->gpus[i], process);
		g->exit_count = identify_ended(s, &snap->gpus[i], wall_ns - boot_ns, exit);
		process += g->process_count;
		exit += g->exit_count;
	}
}

/* ---- metering, and handing batches to the outbox ---- */

/* Moves every closed interval into the outbox. */
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
}

/* Ends the stream and begins the next one at the same tick, so that by the boot clock no time between them is lost or counted twice. The
 * ledger books the step of wall time. */
static void
step_clock(struct sampler *s, int64_t boot_ns, int64_t wall_ns, struct sampler_report *ret)
{
	struct meter *before = s->meter;

	ret->clock_step_ns = wall_ns - boot_ns - s->wall_offset_ns;
	meter_flush(s->meter);
	hand_over(s, wall_ns, &ret->storing);
	if (outbox_new_stream(s->outbox, wall_ns, &ret->storing))
		ret->storing.kind = ERR_NONE;
	s->wall_offset_ns = wall_ns - boot_ns;
	s->meter = new_meter(s);
	(void)meter_tick(s->meter, &s->tick); /* the first one closes nothing */
	meter_carry(s->meter, before);
	meter_free(before);
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

/* Makes the text only, and only if one is due: another thread compresses and sends it. */
static void
offer_status(struct sampler *s, bool read, int64_t boot_ns, int64_t wall_ns)
{
	struct status_input in = {.node = s->options.node,
	                          .boot_ns = boot_ns,
	                          .wall_ns = wall_ns,
	                          .interval_ns = status_interval_ns(s->status),
	                          .simulated = s->facts.simulated,
	                          .replicas = s->options.replicas,
	                          .tick = read ? &s->tick : NULL};
	uint64_t fingerprint = status_fingerprint(&in);

	if (!status_due(s->status, boot_ns, fingerprint))
		return;
	memcpy(in.boot_id, s->boot_id, sizeof(in.boot_id));
	buf_clear(&s->status_text);
	status_write(&in, &s->status_text);
	status_offer(s->status, &s->status_text, boot_ns, fingerprint);
}

static void
publish(struct sampler *s, bool read, int64_t boot_ns)
{
	struct reader_status status;
	struct workload_stats beside;
	struct status_stats sent;
	struct metrics_input in = {.node = s->options.node,
	                           .version = s->options.version,
	                           .source = s->facts.name,
	                           .driver = s->facts.driver,
	                           .library = s->facts.library,
	                           .simulated = s->facts.simulated,
	                           .tick = read ? &s->tick : NULL,
	                           .process_metrics = s->options.process_metrics,
	                           .max_process_series = s->options.max_process_series,
	                           .dcgm_hostname = s->options.dcgm_hostname,
	                           .dcgm_pod_uid = s->options.dcgm_pod_uid,
	                           .steps = s->steps,
	                           .step_count = s->options.clock ? STEP_COUNT : 0,
	                           .pushes = s->push != NULL,
	                           .ticks = s->ticks,
	                           .missed_ticks = s->missed_ticks,
	                           .failed_readings = s->failed_readings,
	                           .tick_duration_ns = s->tick_duration_ns,
	                           .last_reading_wall_ns = s->last_reading_wall_ns};

	reader_status(s->reader, boot_ns, &status);
	in.total_count = meter_totals(s->meter, &in.totals);
	in.process_total_count = meter_process_totals(s->meter, &in.process_totals);
	in.intruder_count = meter_intruders(s->meter, &in.intruders);
	meter_stats(s->meter, &in.meter);
	in.gpus = s->gpu_counts;
	in.silent_gpus = status.silent;
	in.silent_ns = status.silent_ns;
	in.hanging_calls = status.hanging;
	in.stream = s->stream;
	in.alloc = s->alloc ? &s->alloc_stats : NULL;
	in.labels = s->labels ? &s->label_stats : NULL;
	in.boot_ns = boot_ns;
	in.dcgm = s->options.dcgm ? &s->dcgm : NULL;
	if (s->workload) {
		in.workload_count = workload_follow(s->workload, in.tick, &in.workloads);
		workload_stats(s->workload, &beside);
		in.workload_stats = &beside;
	}
	outbox_stats(s->outbox, &in.outbox);
	if (s->push)
		push_stats(s->push, &in.push);
	if (s->status) {
		status_stats(s->status, &sent);
		in.status = &sent;
	}
	metrics_publish(s->metrics, &in);
}

static void
begin_step(struct sampler *s)
{
	s->step_began_ns = s->options.clock ? s->options.clock() : 0;
}

/* Ends a step and begins the next. */
static void
end_step(struct sampler *s, int step, const char *name, bool success)
{
	int64_t began_ns = s->step_began_ns;

	begin_step(s);
	s->steps[step] = (struct metrics_step){name, success, s->step_began_ns - began_ns};
}

void
sampler_tick(struct sampler *s, int64_t boot_ns, int64_t wall_ns, struct sampler_report *ret)
{
	bool read;

	*ret = (struct sampler_report){0};
	s->ticks++;
	begin_step(s);
	read = read_gpus(s, boot_ns, wall_ns, ret);
	if (s->options.dcgm) {
		dcgm_status(s->options.dcgm, &s->dcgm);
		ret->dcgm = s->dcgm.trouble;
		ret->dcgm_lists = s->dcgm.not_listed;
	}
	end_step(s, STEP_GPUS, "gpus", ret->reading.kind == ERR_NONE && ret->silent.kind == ERR_NONE);
	if (read)
		make_tick(s, boot_ns, wall_ns, ret);
	end_step(s, STEP_IDENTITY, "identity", read);
	if (read)
		meter(s, boot_ns, wall_ns, ret);
	end_step(s, STEP_METER, "meter", read);
	/* the disk may now accept batches that wait in memory */
	if (ret->storing.kind == ERR_NONE && outbox_flush(s->outbox, wall_ns, &ret->storing))
		ret->storing.kind = ERR_NONE;
	end_step(s, STEP_SPOOL, "spool", ret->storing.kind == ERR_NONE);
	if (s->status)
		offer_status(s, read, boot_ns, wall_ns);
	publish(s, read, boot_ns);
	identity_sweep(s->identity);
}

void
sampler_finish(struct sampler *s, int64_t wall_ns, struct sampler_report *ret)
{
	*ret = (struct sampler_report){.dcgm = s->dcgm.trouble};
	meter_flush(s->meter);
	hand_over(s, wall_ns, &ret->storing);
	if (outbox_flush(s->outbox, wall_ns, &ret->storing))
		ret->storing.kind = ERR_NONE;
}

const struct gpu_snapshot *
sampler_snapshot(const struct sampler *s)
{
	return s->snapshot;
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
