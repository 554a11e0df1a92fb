/* exporter/metrics/metrics_source.c - where values come from when DCGM is beside NVML, and how DCGM is, on /metrics. */
#include "exporter/metrics/metrics_render.h"
#include "common/base/text.h"

/* A value of each kind, of a GPU and of an instance. */
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
is_there(const void *base, size_t offset)
{
	return offset != NONE && *(const int64_t *)((const char *)base + offset) != ABSENT;
}

static bool
has_kind(const struct gpu_reading *r, size_t kind)
{
	bool found = is_there(r, kinds[kind].of_gpu);

	for (size_t i = 0; !found && i < r->instance_count; i++)
		found = is_there(&r->instances[i], kinds[kind].of_instance);
	return found;
}

static bool
is_told(const struct render *r, size_t kind, bool by_dcgm)
{
	for (size_t i = 0; i < r->gpu_count; i++) {
		const struct gpu_reading *g = render_reading(r, i);

		if ((g->by_dcgm >> kind & 1) == by_dcgm && has_kind(g, kind))
			return true;
	}
	return false;
}

void
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
			if (!is_told(r, kind, by) || !render_sample(r, kind, 3 + by, 1, 0))
				continue;
			prom_begin(&r->p);
			prom_label(&r->p, "source", sources[by]);
			prom_label(&r->p, "field", kinds[kind].name);
			prom_int(&r->p, 1);
			render_close(r);
		}
}

/* ---- what only DCGM tells ---- */

static const struct prom_set pipe_labels[GPU_PIPES] = {
	[GPU_PIPE_FP64] = PROM_SET(",pipe=\"fp64\""),
	[GPU_PIPE_FP32] = PROM_SET(",pipe=\"fp32\""),
	[GPU_PIPE_FP16] = PROM_SET(",pipe=\"fp16\""),
};

static void
render_gpu_pipes(struct render *r)
{
	render_family(r, "tollgate_gpu_pipe_active_ratio", PROM_GAUGE,
	              "Share of time in which arithmetic of this kind was done.");
	for (size_t i = 0; i < r->gpu_count; i++)
		for (uint32_t k = 0; k < GPU_PIPES; k++) {
			const struct gpu_counters *f = &render_reading(r, i)->counters;

			if (f->present && f->pipe_ppm[k] != ABSENT && render_sample(r, i, k, f->pipe_ppm[k], 6))
				render_gpu_line(r, i, &pipe_labels[k], f->pipe_ppm[k], 6);
		}
}

static void
put_instance_pipe(struct render *r, size_t gpu, size_t instance, uint32_t pipe, int64_t ppm)
{
	struct prom_set set = label_sets_get(&r->instances, instance);
	in_place(buf) struct buf labels = {0};

	buf_init(&labels, 4096);
	buf_add(&labels, set.text, set.len);
	buf_add(&labels, pipe_labels[pipe].text, pipe_labels[pipe].len);
	render_gpu_line(r, gpu, &(struct prom_set){buf_text(&labels), labels.len}, ppm, 6);
}

static void
render_instance_pipes(struct render *r)
{
	size_t n = 0;

	render_family(r, "tollgate_mig_pipe_active_ratio", PROM_GAUGE,
	              "Share of time in which arithmetic of this kind was done in the instance.");
	for (size_t i = 0; i < r->gpu_count; i++)
		for (size_t at = 0; at < render_reading(r, i)->instance_count; at++, n++)
			for (uint32_t k = 0; k < GPU_PIPES; k++) {
				const struct gpu_counters *f = &render_reading(r, i)->instances[at].counters;

				if (f->present && f->pipe_ppm[k] != ABSENT && render_sample(r, n, k, f->pipe_ppm[k], 6))
					put_instance_pipe(r, i, n, k, f->pipe_ppm[k]);
			}
}

static void
render_nvlink(struct render *r, const char *name, const char *help, size_t offset)
{
	render_family(r, name, PROM_GAUGE, help);
	for (size_t i = 0; i < r->gpu_count; i++) {
		const struct gpu_counters *c = &render_reading(r, i)->counters;
		int64_t rate = *(const int64_t *)((const char *)c + offset);

		if (c->present && rate != ABSENT && render_sample(r, i, 0, rate, 0))
			render_gpu_line(r, i, NULL, rate, 0);
	}
}

/* ---- how DCGM is ---- */

void
render_dcgm_state(struct render *r)
{
	const struct dcgm_status *d = r->in->dcgm;

	if (!d)
		return;
	render_gpu_pipes(r);
	render_instance_pipes(r);
	render_nvlink(r, "tollgate_gpu_nvlink_transmit_bytes_per_second",
	              "Bytes sent over NVLink, with what the protocol adds.",
	              offsetof(struct gpu_counters, nvlink_tx_bytes_per_s));
	render_nvlink(r, "tollgate_gpu_nvlink_receive_bytes_per_second",
	              "Bytes received over NVLink, with what the protocol adds.",
	              offsetof(struct gpu_counters, nvlink_rx_bytes_per_s));
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
