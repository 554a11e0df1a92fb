/* exporter/metrics/metrics_self.c - the exporter's own metrics: source, DCGM, ticks, spool, push, allocations. */
#include "common/base/time.h"
#include "common/base/text.h"
#include "exporter/metrics/metrics_render.h"

/* ---- DCGM ---- */

/* The field that represents each kind, of a GPU and of an instance. */
static const struct {
	const char *name;
	size_t of_gpu, of_instance;
} kinds[GPU_KINDS] = {
#define GPU(field) offsetof(struct gpu_reading, field)
#define INSTANCE(field) offsetof(struct gpu_instance, field)
#define NONE SIZE_MAX
	[GPU_KIND_ACTIVITY] = {"gpu_activity", GPU(active_ppm), NONE},
	[GPU_KIND_MIG_ACTIVITY] = {"mig_activity", NONE, INSTANCE(active_ppm)},
	[GPU_KIND_SM_ACTIVE] = {"sm_active", GPU(sm_active_ppm), INSTANCE(sm_active_ppm)},
	[GPU_KIND_SM_OCCUPANCY] = {"sm_occupancy", GPU(sm_occupancy_ppm), INSTANCE(sm_occupancy_ppm)},
	[GPU_KIND_TENSOR_ACTIVE] = {"tensor_active", GPU(tensor_active_ppm), INSTANCE(tensor_active_ppm)},
	[GPU_KIND_DRAM_ACTIVE] = {"dram_active", GPU(dram_active_ppm), INSTANCE(dram_active_ppm)},
	[GPU_KIND_PCIE] = {"pcie_throughput", GPU(board.pcie_tx_bytes_per_s), NONE},
};

static bool
is_present(const void *base, size_t offset)
{
	return offset != NONE && *(const int64_t *)((const char *)base + offset) != ABSENT;
}

static bool
has_kind(const struct gpu_reading *r, size_t kind)
{
	bool found = is_present(r, kinds[kind].of_gpu);

	for (size_t i = 0; !found && i < r->instance_count; i++)
		found = is_present(&r->instances[i], kinds[kind].of_instance);
	return found;
}

static bool
has_values_from(const struct render *r, size_t kind, bool by_dcgm)
{
	for (size_t i = 0; i < r->gpu_count; i++) {
		const struct gpu_reading *g = render_reading(r, i);

		if ((g->by_dcgm >> kind & 1) == by_dcgm && has_kind(g, kind))
			return true;
	}
	return false;
}

/* More samples of tollgate_exporter_source_info. */
static void
render_source_kinds(struct render *r)
{
	static const char *const sources[] = {"nvml", "dcgm"};
	const struct dcgm_status *d = r->in->dcgm;

	if (!d)
		return;
	if (d->up && render_sample(r, text_hash(d->version), 1 + d->simulated, 1, 0)) {
		prom_begin(&r->p);
		prom_label(&r->p, "source", "dcgm");
		prom_label(&r->p, "library_version", d->version);
		prom_label(&r->p, "simulated", d->simulated ? "true" : "false");
		prom_int(&r->p, 1);
		render_close(r);
	}
	for (size_t kind = 0; kind < GPU_KINDS; kind++)
		for (uint32_t by = 0; by < ARRAY_LEN(sources); by++) {
			if (!has_values_from(r, kind, by) || !render_sample(r, kind, 3 + by, 1, 0))
				continue;
			prom_begin(&r->p);
			prom_label(&r->p, "source", sources[by]);
			prom_label(&r->p, "field", kinds[kind].name);
			prom_int(&r->p, 1);
			render_close(r);
		}
}

static void
render_dcgm_state(struct render *r)
{
	const struct dcgm_status *d = r->in->dcgm;

	if (!d)
		return;
	render_dcgm_counters(r);
	render_single(r, "tollgate_exporter_dcgm_up", PROM_GAUGE, "1 when values can be had from DCGM.", d->up, 0);
	render_single(r, "tollgate_exporter_dcgm_connections_total", PROM_COUNTER,
	              "Times that an engine of DCGM was reached or started.", d->connections, 0);
	render_single(r, "tollgate_exporter_dcgm_failures_total", PROM_COUNTER,
	              "Times that an engine of DCGM was not reached, or failed.", d->failures, 0);
	render_single(r, "tollgate_exporter_dcgm_late_ticks_total", PROM_COUNTER,
	              "Ticks that began while DCGM was at work for an earlier one.", d->late, 0);
	render_single(r, "tollgate_exporter_dcgm_clamped_values_total", PROM_COUNTER,
	              "Shares of time above 1 that were taken as 1.", d->clamped, 0);
	render_single(r, "tollgate_exporter_dcgm_watched", PROM_GAUGE,
	              "GPUs, GPU instances and compute instances that DCGM profiles.", (int64_t)d->watched, 0);
	render_single(r, "tollgate_exporter_dcgm_refused", PROM_GAUGE,
	              "GPUs, GPU instances and compute instances that DCGM refuses to profile.", (int64_t)d->refused,
	              0);
	render_single(r, "tollgate_exporter_dcgm_unlisted_instances", PROM_GAUGE,
	              "MIG instances that NVML lists and DCGM does not: their activity is not measured by it.",
	              (int64_t)d->unlisted, 0);
}

/* ---- the exporter ---- */

static void
render_info(struct render *r)
{
	struct prom *p = &r->p;

	render_family(r, "tollgate_exporter_build_info", PROM_GAUGE, "The version of the exporter.");
	if (render_sample(r, 0, 0, 1, 0)) {
		prom_begin(p);
		prom_label(p, "version", r->in->version);
		prom_int(p, 1);
		render_close(r);
	}
	render_family(r, "tollgate_exporter_source_info", PROM_GAUGE, "Where readings of GPUs come from.");
	if (render_sample(r, 0, 0, 1, 0)) {
		prom_begin(p);
		prom_label(p, "source", r->in->source);
		prom_label(p, "driver_version", r->in->driver);
		prom_label(p, "library_version", r->in->library);
		prom_label(p, "simulated", r->in->simulated ? "true" : "false");
		prom_int(p, 1);
		render_close(r);
	}
	render_source_kinds(r);
}

static void
render_ticks(struct render *r)
{
	const struct metrics_input *in = r->in;

	render_single(r, "tollgate_exporter_ticks_total", PROM_COUNTER, "Ticks: readings of all GPUs at once.",
	              in->ticks, 0);
	render_single(r, "tollgate_exporter_missed_ticks_total", PROM_COUNTER,
	              "Ticks that were left out because the one before took too long.", in->missed_ticks, 0);
	render_single(r, "tollgate_exporter_failed_readings_total", PROM_COUNTER,
	              "Readings that the driver did not answer.", in->failed_readings, 0);
	render_single(r, "tollgate_exporter_tick_duration_seconds", PROM_GAUGE, "How long the last tick took.",
	              in->tick_duration_ns, 9);
	if (in->last_reading_wall_ns >= 0)
		render_single(r, "tollgate_exporter_last_reading_timestamp_seconds", PROM_GAUGE,
		              "When GPUs were last read.", in->last_reading_wall_ns / NS_PER_MS, 3);
}

static void
render_steps(struct render *r, bool durations)
{
	render_family(r, durations ? "tollgate_exporter_step_duration_seconds" : "tollgate_exporter_step_success",
	              PROM_GAUGE,
	              durations ? "How long a part of the last tick took."
	                        : "1 when a part of the last tick succeeded.");
	for (size_t i = 0; i < r->in->step_count; i++) {
		const struct metrics_step *step = &r->in->steps[i];
		int64_t v = durations ? step->duration_ns : step->success;

		if (!render_sample(r, (uintptr_t)step->name, 0, v, durations ? 9 : 0))
			continue;
		prom_begin(&r->p);
		prom_label(&r->p, "step", step->name);
		prom_fixed(&r->p, v, durations ? 9 : 0);
		render_close(r);
	}
}

static void
render_gpu_counts(struct render *r)
{
	const struct metrics_gpus *g = &r->in->gpus;
	const struct {
		const char *state;
		size_t count;
	} states[] = {{"listed", g->listed}, {"readable", g->readable}, {"down", g->down}};

	render_family(
		r, "tollgate_exporter_gpus", PROM_GAUGE,
		"GPUs that the driver lists, those that were read, and those that are down: lost, in error, refused or gone.");
	for (size_t i = 0; i < ARRAY_LEN(states); i++) {
		if (!render_sample(r, i, 0, (int64_t)states[i].count, 0))
			continue;
		prom_begin(&r->p);
		prom_label(&r->p, "state", states[i].state);
		prom_int(&r->p, (int64_t)states[i].count);
		render_close(r);
	}
}

/* Failed readings, and their effect on the meter. */
static void
render_meter(struct render *r)
{
	const struct meter_stats *m = &r->in->meter;
	const struct {
		const char *held;
		int64_t count;
	} short_ones[] = {{"true", m->short_processes}, {"false", m->short_not_held}};

	render_single(r, "tollgate_exporter_silent_gpus", PROM_GAUGE,
	              "GPUs of which nothing is known, because the driver did not answer in time.",
	              (int64_t)r->in->silent_gpus, 0);
	render_single(r, "tollgate_exporter_silent_seconds", PROM_GAUGE,
	              "For how long a GPU, or the whole driver, has not answered; the longest.", r->in->silent_ns, 9);
	render_single(r, "tollgate_exporter_hanging_calls", PROM_GAUGE, "Calls of the driver that have not returned.",
	              (int64_t)r->in->hanging_calls, 0);
	render_single(r, "tollgate_exporter_unknown_slots_total", PROM_COUNTER,
	              "Times between two ticks that were booked as unknown, for want of a reading of a GPU.",
	              m->unknown_slots, 0);
	render_single(r, "tollgate_exporter_energy_resets_total", PROM_COUNTER,
	              "Times that a GPU's counter of energy fell or jumped.", m->energy_resets, 0);
	render_family(r, "tollgate_exporter_short_processes_total", PROM_COUNTER,
	              "Processes that began and ended between two ticks, by whether they held something.");
	for (size_t i = 0; i < ARRAY_LEN(short_ones); i++) {
		if (!render_sample(r, i, 0, short_ones[i].count, 0))
			continue;
		prom_begin(&r->p);
		prom_label(&r->p, "held", short_ones[i].held);
		prom_int(&r->p, short_ones[i].count);
		render_close(r);
	}
	render_single(r, "tollgate_exporter_intruders", PROM_GAUGE,
	              "Workloads on GPUs or instances that are allocated to others.", (int64_t)r->in->intruder_count,
	              0);
	render_single(r, "tollgate_exporter_intrusions_total", PROM_COUNTER,
	              "Times that a workload came upon a GPU or instance that is allocated to another.", m->intrusions,
	              0);
	render_single(r, "tollgate_exporter_unknown_allocations", PROM_GAUGE,
	              "Allocations of GPUs and instances that the driver does not show now.",
	              (int64_t)m->allocations_unknown, 0);
	if (r->in->process_metrics)
		render_single(r, "tollgate_exporter_process_series_dropped", PROM_GAUGE,
		              "Series of processes left out, because there are more than --max-process-series.",
		              (int64_t)r->rows->dropped, 0);
}

/* Sources of allocations. A node without a kubelet has no series for it. */
static void
render_allocations(struct render *r)
{
	const struct alloc_stats *a = r->in->alloc;
	const struct {
		const char *source;
		size_t count;
	} sources[] = {{"kubelet", a->from_kubelet}, {"slurm", a->from_slurm}};

	render_family(r, "tollgate_exporter_allocations", PROM_GAUGE,
	              "GPUs, instances and replicas that are allocated, by who told of it.");
	for (size_t i = 0; i < ARRAY_LEN(sources); i++) {
		if (!render_sample(r, i, 0, (int64_t)sources[i].count, 0))
			continue;
		prom_begin(&r->p);
		prom_label(&r->p, "source", sources[i].source);
		prom_int(&r->p, (int64_t)sources[i].count);
		render_close(r);
	}
	render_single(r, "tollgate_exporter_unresolved_allocations", PROM_GAUGE,
	              "Allocations by names that mean no GPU of this node.", (int64_t)a->unresolved, 0);
	render_single(
		r, "tollgate_exporter_unmapped_slurm_processes", PROM_GAUGE,
		"Processes on GPUs whose Slurm job is known by its SLUID alone: no job file has it in a sluid= line.",
		(int64_t)a->unmapped_processes, 0);
	render_single(r, "tollgate_exporter_refused_map_files", PROM_GAUGE,
	              "Files and folders about jobs that are not believed: wrong, or writable by others than root.",
	              (int64_t)a->refused_files, 0);
	if (!a->kubelet.used)
		return;
	render_single(r, "tollgate_exporter_kubelet_up", PROM_GAUGE, "1 when the kubelet answered the last question.",
	              a->kubelet.up, 0);
	render_single(r, "tollgate_exporter_kubelet_failures_total", PROM_COUNTER,
	              "Questions that the kubelet did not answer.", a->kubelet.failures, 0);
	if (a->kubelet_age_ns >= 0)
		render_single(r, "tollgate_exporter_kubelet_answer_age_seconds", PROM_GAUGE,
		              "Age of the kubelet's answer that holds.", a->kubelet_age_ns, 9);
}

/* Labels of pods, when the kubelet is asked for them. */
static void
render_labels(struct render *r)
{
	const struct podlabels_stats *l = r->in->labels;

	render_single(r, "tollgate_exporter_pod_labels_up", PROM_GAUGE,
	              "1 when the kubelet answered the last question for its pods' labels.", l->up, 0);
	render_single(r, "tollgate_exporter_pod_labels_failures_total", PROM_COUNTER,
	              "Questions for pods' labels that the kubelet did not answer.", l->failures, 0);
	if (l->answered_boot_ns != ABSENT)
		render_single(r, "tollgate_exporter_pod_labels_answer_age_seconds", PROM_GAUGE,
		              "Age of the kubelet's last answer about its pods' labels.",
		              r->in->boot_ns > l->answered_boot_ns ? r->in->boot_ns - l->answered_boot_ns : 0, 9);
	render_single(r, "tollgate_exporter_pods_known", PROM_GAUGE, "Pods that the kubelet told of.", (int64_t)l->pods,
	              0);
	render_single(r, "tollgate_exporter_pods_labelled", PROM_GAUGE,
	              "Pods that have one of the labels of --pod-labels.", (int64_t)l->labelled, 0);
}

/* Reading the cgroups of workloads. */
static void
render_cgroup_reading(struct render *r)
{
	const struct workload_stats *w = r->in->workload_stats;

	render_single(
		r, "tollgate_exporter_workloads_without_cgroup", PROM_GAUGE,
		"Workloads whose CPU time and memory are not known: no cgroup of their own was found, or it cannot be read.",
		(int64_t)w->unread, 0);
	render_single(r, "tollgate_exporter_cgroup_read_failures_total", PROM_COUNTER,
	              "Files of workloads' cgroups that are there and could not be read.", w->failures, 0);
	if (w->round_ns != ABSENT)
		render_single(r, "tollgate_exporter_cgroup_read_duration_seconds", PROM_GAUGE,
		              "How long the last reading of all workloads' cgroups took, beside the ticks.",
		              w->round_ns, 9);
}

static void
render_spool(struct render *r)
{
	const struct outbox_stats *o = &r->in->outbox;

	render_single(r, "tollgate_exporter_spool_bytes", PROM_GAUGE, "Size of the spool on disk.", o->spool.bytes, 0);
	render_single(r, "tollgate_exporter_spool_segments", PROM_GAUGE, "Files of the spool.", o->spool.segments, 0);
	render_single(r, "tollgate_exporter_spool_batches", PROM_GAUGE,
	              "Batches on disk that the aggregator does not have.", o->spool.unacked_batches, 0);
	render_single(r, "tollgate_exporter_spool_refused_batches", PROM_GAUGE,
	              "Of those, batches of streams that the aggregator refuses.", o->spool.refused_batches, 0);
	render_single(r, "tollgate_exporter_spool_waiting_batches", PROM_GAUGE,
	              "Batches in memory that the disk did not take.", o->waiting, 0);
	render_single(r, "tollgate_exporter_spool_lost_batches_total", PROM_COUNTER,
	              "Batches given up: over the cap, damaged, or not taken by the disk.",
	              o->spool.lost_batches + o->lost_waiting, 0);
	render_single(r, "tollgate_exporter_spool_corrupt_segments_total", PROM_COUNTER, "Damaged files set aside.",
	              o->spool.corrupt_segments, 0);
	render_single(r, "tollgate_exporter_spool_torn_tails_total", PROM_COUNTER,
	              "Files whose last batch was not written to its end, and was cut off.", o->spool.torn_tails, 0);
	render_single(r, "tollgate_exporter_spool_foreign_segments", PROM_GAUGE,
	              "Files of a newer exporter, which are left alone.", o->spool.foreign_segments, 0);
	if (o->spool.oldest_unacked_wall_ns >= 0)
		render_single(r, "tollgate_exporter_spool_oldest_batch_timestamp_seconds", PROM_GAUGE,
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
	render_family(r, "tollgate_exporter_push_requests_total", PROM_COUNTER,
	              "Requests to the aggregator by what came of them.");
	for (size_t i = 0; i < ARRAY_LEN(results); i++) {
		if (!render_sample(r, i, 0, results[i].count, 0))
			continue;
		prom_begin(&r->p);
		prom_label(&r->p, "result", results[i].result);
		prom_int(&r->p, results[i].count);
		render_close(r);
	}
	if (s->last_success_wall_ns >= 0)
		render_single(r, "tollgate_exporter_push_last_success_timestamp_seconds", PROM_GAUGE,
		              "When the aggregator last acknowledged a batch.", s->last_success_wall_ns / NS_PER_MS, 3);
}

static void
render_status(struct render *r)
{
	const struct status_stats *s = r->in->status;
	const struct {
		const char *result;
		int64_t count;
	} results[] = {{"sent", s->sent}, {"failed", s->failed}, {"replaced", s->replaced}};

	render_family(r, "tollgate_exporter_status_messages_total", PROM_COUNTER,
	              "Messages about who holds what now, by what came of them.");
	for (size_t i = 0; i < ARRAY_LEN(results); i++) {
		if (!render_sample(r, i, 0, results[i].count, 0))
			continue;
		prom_begin(&r->p);
		prom_label(&r->p, "result", results[i].result);
		prom_int(&r->p, results[i].count);
		render_close(r);
	}
	if (s->last_success_wall_ns >= 0)
		render_single(r, "tollgate_exporter_status_last_success_timestamp_seconds", PROM_GAUGE,
		              "When the aggregator last took such a message.", s->last_success_wall_ns / NS_PER_MS, 3);
}

void
render_exporter(struct render *r)
{
	render_info(r);
	render_ticks(r);
	render_steps(r, false);
	render_steps(r, true);
	render_gpu_counts(r);
	render_meter(r);
	render_dcgm_state(r);
	if (r->in->labels)
		render_labels(r);
	if (r->in->alloc)
		render_allocations(r);
	if (r->in->workload_stats)
		render_cgroup_reading(r);
	render_spool(r);
	render_push(r);
	if (r->in->status)
		render_status(r);
}
