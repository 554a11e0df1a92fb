/* exporter/metrics/metrics_gpu.c - GPUs and MIG instances on /metrics. A value that the driver does not have is left out, never zero. */
#include <string.h>

#include "common/base/time.h"
#include "exporter/metrics/metrics_render.h"

/* A sample per GPU or instance that has the value. */
struct value_family {
	const char *name; /* NULL: further samples of the family before it, with another label */
	enum prom_type type;
	const char *help;
	size_t offset; /* of the int64_t in struct gpu_reading or gpu_instance */
	int decimals;
	int64_t times;         /* 0: as it is */
	struct prom_set label; /* beside those of the GPU */
};

#define READING(field) offsetof(struct gpu_reading, field)
#define INSTANCE(field) offsetof(struct gpu_instance, field)
#define MHZ 1000000

static const struct value_family gpu_families[] = {
	{"tollgate_gpu_utilization_ratio",
         PROM_GAUGE,
         "Share of time in which a kernel was running.",
         READING(active_ppm),
         6,
         0,
         {0}},
	{"tollgate_gpu_memory_utilization_ratio",
         PROM_GAUGE,
         "Share of time in which memory was read or written.",
         READING(memory_active_ppm),
         6,
         0,
         {0}},
	{"tollgate_gpu_encoder_utilization_ratio",
         PROM_GAUGE,
         "Share of time in which the video encoder was running.",
         READING(board.encoder_ppm),
         6,
         0,
         {0}},
	{"tollgate_gpu_decoder_utilization_ratio",
         PROM_GAUGE,
         "Share of time in which the video decoder was running.",
         READING(board.decoder_ppm),
         6,
         0,
         {0}},
	{"tollgate_gpu_sm_active_ratio",
         PROM_GAUGE,
         "Share of time and multiprocessors that had a warp.",
         READING(sm_active_ppm),
         6,
         0,
         {0}},
	{"tollgate_gpu_sm_occupancy_ratio",
         PROM_GAUGE,
         "Warps that were resident, of those that could be.",
         READING(sm_occupancy_ppm),
         6,
         0,
         {0}},
	{"tollgate_gpu_tensor_active_ratio",
         PROM_GAUGE,
         "Share of time in which the tensor cores were working.",
         READING(tensor_active_ppm),
         6,
         0,
         {0}},
	{"tollgate_gpu_dram_active_ratio",
         PROM_GAUGE,
         "Share of time in which data moved from or to memory.",
         READING(dram_active_ppm),
         6,
         0,
         {0}},
	{"tollgate_gpu_memory_used_bytes", PROM_GAUGE, "GPU memory in use.", READING(memory_used_bytes), 0, 0, {0}},
	{"tollgate_gpu_memory_free_bytes",
         PROM_GAUGE,
         "GPU memory that is free.",
         READING(board.memory_free_bytes),
         0,
         0,
         {0}},
	{"tollgate_gpu_memory_reserved_bytes",
         PROM_GAUGE,
         "GPU memory that the driver keeps for itself.",
         READING(board.memory_reserved_bytes),
         0,
         0,
         {0}},
	{"tollgate_gpu_memory_total_bytes", PROM_GAUGE, "GPU memory in all.", READING(memory_bytes), 0, 0, {0}},
	{"tollgate_gpu_power_watts", PROM_GAUGE, "Power drawn by the board.", READING(power_mw), 3, 0, {0}},
	{"tollgate_gpu_power_limit_watts",
         PROM_GAUGE,
         "Power that the board is held to.",
         READING(board.power_limit_mw),
         3,
         0,
         {0}},
	{"tollgate_gpu_energy_joules_total",
         PROM_COUNTER,
         "Energy used by the board since the driver was loaded.",
         READING(energy_mj),
         3,
         0,
         {0}},
	{"tollgate_gpu_temperature_celsius", PROM_GAUGE, "Temperature of the GPU.", READING(temperature_c), 0, 0, {0}},
	{"tollgate_gpu_memory_temperature_celsius",
         PROM_GAUGE,
         "Temperature of the GPU's memory.",
         READING(board.memory_temperature_c),
         0,
         0,
         {0}},
	{"tollgate_gpu_clock_hertz", PROM_GAUGE, "Clocks of the GPU, by what they drive.",
         READING(board.graphics_clock_mhz), 0, MHZ, PROM_SET(",clock=\"graphics\"")},
	{NULL, PROM_GAUGE, NULL, READING(board.sm_clock_mhz), 0, MHZ, PROM_SET(",clock=\"sm\"")},
	{NULL, PROM_GAUGE, NULL, READING(board.memory_clock_mhz), 0, MHZ, PROM_SET(",clock=\"memory\"")},
	{NULL, PROM_GAUGE, NULL, READING(board.video_clock_mhz), 0, MHZ, PROM_SET(",clock=\"video\"")},
	{"tollgate_gpu_ecc_errors_total", PROM_COUNTER, "Memory errors since the board was made.",
         READING(board.ecc_corrected), 0, 0, PROM_SET(",kind=\"corrected\"")},
	{NULL, PROM_COUNTER, NULL, READING(board.ecc_uncorrected), 0, 0, PROM_SET(",kind=\"uncorrected\"")},
	{"tollgate_gpu_remapped_rows_total", PROM_COUNTER,
         "Memory rows replaced by spare ones, by the errors that were the cause.", READING(board.remapped_corrected), 0,
         0, PROM_SET(",kind=\"corrected\"")},
	{NULL, PROM_COUNTER, NULL, READING(board.remapped_uncorrected), 0, 0, PROM_SET(",kind=\"uncorrected\"")},
	{"tollgate_gpu_row_remap_pending",
         PROM_GAUGE,
         "1 when a memory row is to be replaced at the next reset of the GPU.",
         READING(board.remap_pending),
         0,
         0,
         {0}},
	{"tollgate_gpu_row_remap_failure",
         PROM_GAUGE,
         "1 when a memory row could not be replaced: the board is to be exchanged.",
         READING(board.remap_failed),
         0,
         0,
         {0}},
	{"tollgate_gpu_pcie_transmit_bytes_per_second",
         PROM_GAUGE,
         "Rate at which the GPU sends over PCIe.",
         READING(board.pcie_tx_bytes_per_s),
         0,
         0,
         {0}},
	{"tollgate_gpu_pcie_receive_bytes_per_second",
         PROM_GAUGE,
         "Rate at which the GPU receives over PCIe.",
         READING(board.pcie_rx_bytes_per_s),
         0,
         0,
         {0}},
	{"tollgate_gpu_pcie_replays_total",
         PROM_COUNTER,
         "PCIe packets that were sent again.",
         READING(board.pcie_replays),
         0,
         0,
         {0}},
	{"tollgate_gpu_pcie_link_generation",
         PROM_GAUGE,
         "PCIe generation that the link runs at.",
         READING(board.pcie_generation),
         0,
         0,
         {0}},
	{"tollgate_gpu_pcie_link_width",
         PROM_GAUGE,
         "PCIe lanes that the link has.",
         READING(board.pcie_width),
         0,
         0,
         {0}},
	{"tollgate_gpu_nvlink_transmit_bytes_total",
         PROM_COUNTER,
         "Bytes sent over all NVLinks.",
         READING(board.nvlink_tx_bytes),
         0,
         0,
         {0}},
	{"tollgate_gpu_nvlink_receive_bytes_total",
         PROM_COUNTER,
         "Bytes received over all NVLinks.",
         READING(board.nvlink_rx_bytes),
         0,
         0,
         {0}},
};

static const struct value_family instance_families[] = {
	{"tollgate_mig_memory_used_bytes",
         PROM_GAUGE,
         "Memory in use in the instance.",
         INSTANCE(memory_used_bytes),
         0,
         0,
         {0}},
	{"tollgate_mig_memory_total_bytes", PROM_GAUGE, "Memory of the instance.", INSTANCE(memory_bytes), 0, 0, {0}},
	{"tollgate_mig_engine_active_ratio",
         PROM_GAUGE,
         "Share of time in which a kernel was running in the instance.",
         INSTANCE(active_ppm),
         6,
         0,
         {0}},
	{"tollgate_mig_sm_active_ratio",
         PROM_GAUGE,
         "Share of time and the instance's multiprocessors that had a warp.",
         INSTANCE(sm_active_ppm),
         6,
         0,
         {0}},
	{"tollgate_mig_sm_occupancy_ratio",
         PROM_GAUGE,
         "Warps that were resident in the instance, of those that could be.",
         INSTANCE(sm_occupancy_ppm),
         6,
         0,
         {0}},
	{"tollgate_mig_tensor_active_ratio",
         PROM_GAUGE,
         "Share of time in which the instance's tensor cores were working.",
         INSTANCE(tensor_active_ppm),
         6,
         0,
         {0}},
	{"tollgate_mig_dram_active_ratio",
         PROM_GAUGE,
         "Share of time in which data moved from or to the instance's memory.",
         INSTANCE(dram_active_ppm),
         6,
         0,
         {0}},
};

/* NVML's bits for the reasons of a reduced clock. */
static const struct throttle_reason {
	int64_t bit;
	struct prom_set label;
} throttle_reasons[] = {
	{0x1, PROM_SET(",reason=\"idle\"")},
	{0x2, PROM_SET(",reason=\"clocks_setting\"")},
	{0x4, PROM_SET(",reason=\"sw_power_cap\"")},
	{0x8, PROM_SET(",reason=\"hw_slowdown\"")},
	{0x10, PROM_SET(",reason=\"sync_boost\"")},
	{0x20, PROM_SET(",reason=\"sw_thermal\"")},
	{0x40, PROM_SET(",reason=\"hw_thermal\"")},
	{0x80, PROM_SET(",reason=\"hw_power_brake\"")},
	{0x100, PROM_SET(",reason=\"display_clocks_setting\"")},
};

/* ABSENT when it is not known. */
static int64_t
value_of(const struct value_family *f, const void *thing)
{
	int64_t v;

	memcpy(&v, (const char *)thing + f->offset, sizeof(v));
	return f->times ? render_times(v, f->times) : v;
}

static bool
answers(const struct gpu_reading *g)
{
	return !g->down && !g->silent;
}

static void
render_gpu_info(struct render *r)
{
	struct prom *p = &r->p;

	render_family(r, "tollgate_gpu_info", PROM_GAUGE,
	              "A GPU of this node: its product name, address and MIG mode.");
	for (size_t i = 0; i < r->gpu_count; i++) {
		const struct gpu_reading *g = render_reading(r, i);
		struct prom_set set;

		if (!render_sample(r, i, 0, 1, 0))
			continue;
		set = label_sets_get(&r->gpus, i);
		prom_begin(p);
		prom_labels(p, &set);
		prom_label(p, "product", g->model);
		prom_label(p, "pci", g->pci);
		prom_label(p, "mig", g->mig ? "on" : "off");
		prom_int(p, 1);
		render_close(r);
	}
	render_family(r, "tollgate_gpu_up", PROM_GAUGE,
	              "1 when the GPU answers, 0 when it is lost, in error or does not answer.");
	for (size_t i = 0; i < r->gpu_count; i++) {
		bool up = answers(render_reading(r, i));

		if (render_sample(r, i, 0, up, 0))
			render_gpu_line(r, i, NULL, up, 0);
	}
	render_family(r, "tollgate_gpu_accounting", PROM_GAUGE,
	              "1 when the driver tells of processes that began and ended between two ticks.");
	for (size_t i = 0; i < r->gpu_count; i++) {
		const struct gpu_reading *g = render_reading(r, i);

		if (answers(g) && render_sample(r, i, 0, g->accounting, 0))
			render_gpu_line(r, i, NULL, g->accounting, 0);
	}
}

static void
render_throttle(struct render *r)
{
	render_family(r, "tollgate_gpu_throttle", PROM_GAUGE,
	              "1 for each reason that holds the clocks of the GPU down, 0 for the others.");
	for (size_t i = 0; i < r->gpu_count; i++) {
		int64_t reasons = render_reading(r, i)->board.throttle_reasons;

		if (reasons == ABSENT || !answers(render_reading(r, i)))
			continue;
		for (uint32_t k = 0; k < ARRAY_LEN(throttle_reasons); k++) {
			bool holds = reasons & throttle_reasons[k].bit;

			if (render_sample(r, i, k, holds, 0))
				render_gpu_line(r, i, &throttle_reasons[k].label, holds, 0);
		}
	}
}

static void
put_xid(struct render *r, size_t gpu, uint32_t code, int64_t value, int decimals)
{
	in_place(buf) struct buf label = {0};

	buf_init(&label, 64);
	label_number(&label, "xid", code);
	render_gpu_line(r, gpu, &(struct prom_set){buf_text(&label), label.len}, value, decimals);
}

/* Also for a lost GPU: its errors are the reason. */
static void
render_xids(struct render *r)
{
	render_family(r, "tollgate_gpu_xid_errors_total", PROM_COUNTER,
	              "Errors that the driver reported, by NVIDIA's number, since the exporter opened it.");
	for (size_t i = 0; i < r->gpu_count; i++)
		for (size_t k = 0; k < render_reading(r, i)->xid_count; k++) {
			const struct gpu_xid *x = &render_reading(r, i)->xids[k];

			if (render_sample(r, i, x->code, x->count, 0))
				put_xid(r, i, x->code, x->count, 0);
		}
	render_family(r, "tollgate_gpu_xid_last_timestamp_seconds", PROM_GAUGE,
	              "When such an error was last reported.");
	for (size_t i = 0; i < r->gpu_count; i++)
		for (size_t k = 0; k < render_reading(r, i)->xid_count; k++) {
			const struct gpu_xid *x = &render_reading(r, i)->xids[k];
			int64_t ms = x->last_wall_ns / NS_PER_MS;

			if (render_sample(r, i, x->code, ms, 3))
				put_xid(r, i, x->code, ms, 3);
		}
}

static void
render_gpu_values(struct render *r)
{
	for (uint32_t f = 0; f < ARRAY_LEN(gpu_families); f++) {
		const struct value_family *family = &gpu_families[f];

		if (family->name)
			render_family(r, family->name, family->type, family->help);
		for (size_t i = 0; i < r->gpu_count; i++) {
			const struct gpu_reading *g = render_reading(r, i);
			int64_t v = value_of(family, g);

			if (v != ABSENT && answers(g) && render_sample(r, i, f, v, family->decimals))
				render_gpu_line(r, i, family->label.len ? &family->label : NULL, v, family->decimals);
		}
	}
}

/* `family` NULL: tollgate_mig_info. */
static void
render_instances(struct render *r, const struct value_family *family)
{
	size_t n = 0;

	for (size_t i = 0; i < r->gpu_count; i++)
		for (size_t k = 0; k < render_reading(r, i)->instance_count; k++, n++) {
			int64_t v = family ? value_of(family, &render_reading(r, i)->instances[k]) : 1;
			int decimals = family ? family->decimals : 0;

			if (v != ABSENT && render_sample(r, n, 0, v, decimals)) {
				struct prom_set set = label_sets_get(&r->instances, n);

				render_gpu_line(r, i, &set, v, decimals);
			}
		}
}

static void
render_unplaced(struct render *r)
{
	size_t instances = 0;
	int64_t unplaced = 0;

	for (size_t i = 0; i < r->gpu_count; i++)
		for (size_t k = 0; k < render_reading(r, i)->instance_count; k++, instances++)
			unplaced += render_reading(r, i)->instances[k].placement_start < 0;
	if (instances > 0)
		render_single(r, "tollgate_exporter_unplaced_instances", PROM_GAUGE,
		              "MIG instances of which the driver does not tell where they lie; it tells root.",
		              unplaced, 0);
}

void
render_gpus(struct render *r)
{
	render_gpu_info(r);
	render_gpu_values(r);
	render_throttle(r);
	render_xids(r);
	render_family(r, "tollgate_mig_info", PROM_GAUGE, "A MIG compute instance of a GPU of this node.");
	render_instances(r, NULL);
	for (size_t f = 0; f < ARRAY_LEN(instance_families); f++) {
		const struct value_family *family = &instance_families[f];

		render_family(r, family->name, family->type, family->help);
		render_instances(r, family);
	}
	render_unplaced(r);
}

/* ---- values that only DCGM has ---- */

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

void
render_dcgm_counters(struct render *r)
{
	render_gpu_pipes(r);
	render_instance_pipes(r);
	render_nvlink(r, "tollgate_gpu_nvlink_transmit_bytes_per_second",
	              "Bytes sent over NVLink, with what the protocol adds.",
	              offsetof(struct gpu_counters, nvlink_tx_bytes_per_s));
	render_nvlink(r, "tollgate_gpu_nvlink_receive_bytes_per_second",
	              "Bytes received over NVLink, with what the protocol adds.",
	              offsetof(struct gpu_counters, nvlink_rx_bytes_per_s));
}
