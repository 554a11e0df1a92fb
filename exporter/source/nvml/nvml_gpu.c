/* exporter/source/nvml/nvml_gpu.c - reading one GPU: its board, then the whole GPU or its MIG instances. The rules are in nvml_source.h.
 *
 * Rule 8: values that change slowly or take long to read (PCIe throughput makes the driver sample for 20 ms) are read in turn, one group
 * each SLOW_STEP_NS, and kept until their next turn. */
#include "exporter/source/nvml/nvml_source.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/time.h"

#define SLOW_STEP_NS (2 * NS_PER_S)
#define KIB 1024

/* ---- the board ---- */

static int64_t
from_kib(uint64_t kib)
{
	return kib > INT64_MAX / KIB ? ABSENT : (int64_t)kib * KIB;
}

/* Of a GPU or of an instance. Version 1 does not have the reserved memory. */
static bool
read_memory(struct nvml_reading *n, struct nvml_device *device, struct nvml_memory *ret)
{
	struct nvml_memory_v1 old = {0};

	*ret = (struct nvml_memory){.version = NVML_MEMORY_V2, .reserved = NVML_NOT_AVAILABLE};
	if (nvml_has(n, NVML_ASK(n, ASK_MEMORY_V2, nvmlDeviceGetMemoryInfo_v2, device, ret)))
		return true;
	if (!nvml_has(n, NVML_CALL(n->s, nvmlDeviceGetMemoryInfo, device, &old)))
		return false;
	*ret = (struct nvml_memory){
		.total = old.total, .free = old.free, .used = old.used, .reserved = NVML_NOT_AVAILABLE};
	return true;
}

static void
read_clocks(struct nvml_reading *n)
{
	struct gpu_board *b = &n->r->board;
	int64_t *const clocks[] = {
		[NVML_CLOCK_OF_GRAPHICS] = &b->graphics_clock_mhz,
		[NVML_CLOCK_OF_SM] = &b->sm_clock_mhz,
		[NVML_CLOCK_OF_MEMORY] = &b->memory_clock_mhz,
		[NVML_CLOCK_OF_VIDEO] = &b->video_clock_mhz,
	};
	uint32_t mhz;
	uint64_t reasons;

	for (uint32_t i = 0; i < ARRAY_LEN(clocks); i++)
		if (nvml_has(n, NVML_ASK(n, ASK_CLOCK + i, nvmlDeviceGetClockInfo, n->device, i, &mhz)))
			*clocks[i] = mhz;
	if (nvml_has(n, NVML_ASK(n, ASK_EVENT_REASONS, nvmlDeviceGetCurrentClocksEventReasons, n->device, &reasons)) ||
	    nvml_has(n,
	             NVML_ASK(n, ASK_THROTTLE_REASONS, nvmlDeviceGetCurrentClocksThrottleReasons, n->device, &reasons)))
		b->throttle_reasons = nvml_from_u64(reasons);
}

/* The driver names the type of the value. */
static int64_t
field_value(const struct nvml_field_value *f)
{
	int32_t small;

	switch ((enum nvml_value_type)f->type) {
	case NVML_TYPE_UINT: return (int64_t)(f->value & UINT32_MAX);
	case NVML_TYPE_USHORT: return (int64_t)(f->value & UINT16_MAX);
	case NVML_TYPE_INT: memcpy(&small, &f->value, sizeof(small)); return small < 0 ? ABSENT : small;
	case NVML_TYPE_ULONG:
	case NVML_TYPE_ULONGLONG:
	case NVML_TYPE_LONGLONG: return nvml_from_u64(f->value);
	case NVML_TYPE_DOUBLE: break;
	}
	return ABSENT;
}

/* One call for all fields; each has its own status. */
static void
read_fields(struct nvml_reading *n)
{
	struct gpu_board *b = &n->r->board;
	const struct {
		enum nvml_ask ask;
		enum nvml_field field;
		uint32_t scope;
		int64_t *to;
		int64_t unit;
	} fields[] = {
		{ASK_FIELD_MEMORY_TEMPERATURE, NVML_FIELD_MEMORY_TEMPERATURE, 0, &b->memory_temperature_c, 1},
		{ASK_FIELD_NVLINK_TX, NVML_FIELD_NVLINK_DATA_TX, NVML_ALL_LINKS, &b->nvlink_tx_bytes, KIB},
		{ASK_FIELD_NVLINK_RX, NVML_FIELD_NVLINK_DATA_RX, NVML_ALL_LINKS, &b->nvlink_rx_bytes, KIB},
	};
	struct nvml_field_value values[ARRAY_LEN(fields)] = {0};
	size_t which[ARRAY_LEN(fields)];
	int count = 0;

	for (size_t i = 0; i < ARRAY_LEN(fields); i++) {
		if (nvml_is_unsupported(n, fields[i].ask))
			continue;
		which[count] = i;
		values[count++] = (struct nvml_field_value){.id = fields[i].field,
		                                            .scope = fields[i].scope,
		                                            .status = NVST_UNKNOWN};
	}
	if (count == 0 || !nvml_has(n, NVML_ASK(n, ASK_FIELDS, nvmlDeviceGetFieldValues, n->device, count, values)))
		return;
	for (int i = 0; i < count; i++) {
		int64_t value = field_value(&values[i]);

		if (!nvml_has(n, nvml_note(n, fields[which[i]].ask, (int)values[i].status)))
			continue;
		*fields[which[i]].to = fields[which[i]].unit == KIB ? from_kib((uint64_t)value) : value;
	}
}

static void
ask_power_limit(struct nvml_reading *n, struct gpu_board *b)
{
	uint32_t milliwatts;

	b->power_limit_mw = ABSENT;
	if (nvml_has(n, NVML_ASK(n, ASK_POWER_LIMIT, nvmlDeviceGetEnforcedPowerLimit, n->device, &milliwatts)))
		b->power_limit_mw = milliwatts;
}

/* Absent while ECC is off. */
static void
ask_ecc(struct nvml_reading *n, struct gpu_board *b)
{
	uint64_t count;

	b->ecc_corrected = b->ecc_uncorrected = ABSENT;
	if (nvml_has(n, NVML_ASK(n, ASK_ECC, nvmlDeviceGetTotalEccErrors, n->device, NVML_ERROR_CORRECTED,
	                         NVML_ECC_AGGREGATE, &count)))
		b->ecc_corrected = nvml_from_u64(count);
	if (nvml_has(n, NVML_ASK(n, ASK_ECC, nvmlDeviceGetTotalEccErrors, n->device, NVML_ERROR_UNCORRECTED,
	                         NVML_ECC_AGGREGATE, &count)))
		b->ecc_uncorrected = nvml_from_u64(count);
}

/* Absent on a partitioned GPU. */
static void
ask_remapped_rows(struct nvml_reading *n, struct gpu_board *b)
{
	uint32_t corrected, uncorrected, pending, failed;

	b->remapped_corrected = b->remapped_uncorrected = b->remap_pending = b->remap_failed = ABSENT;
	if (!nvml_has(n, NVML_ASK(n, ASK_REMAPPED_ROWS, nvmlDeviceGetRemappedRows, n->device, &corrected, &uncorrected,
	                          &pending, &failed)))
		return;
	b->remapped_corrected = corrected;
	b->remapped_uncorrected = uncorrected;
	b->remap_pending = pending != 0;
	b->remap_failed = failed != 0;
}

static void
ask_pcie_link(struct nvml_reading *n, struct gpu_board *b)
{
	uint32_t value;

	b->pcie_generation = b->pcie_width = b->pcie_replays = ABSENT;
	if (nvml_has(n, NVML_ASK(n, ASK_PCIE_GENERATION, nvmlDeviceGetCurrPcieLinkGeneration, n->device, &value)))
		b->pcie_generation = value;
	if (nvml_has(n, NVML_ASK(n, ASK_PCIE_WIDTH, nvmlDeviceGetCurrPcieLinkWidth, n->device, &value)))
		b->pcie_width = value;
	if (nvml_has(n, NVML_ASK(n, ASK_PCIE_REPLAYS, nvmlDeviceGetPcieReplayCounter, n->device, &value)))
		b->pcie_replays = value;
}

/* Not read when GPM has the values already, without the wait. */
static void
ask_pcie_throughput(struct nvml_reading *n, struct gpu_board *b)
{
	uint32_t kib;

	b->pcie_tx_bytes_per_s = b->pcie_rx_bytes_per_s = ABSENT;
	if (n->r->board.pcie_tx_bytes_per_s != ABSENT)
		return;
	if (nvml_has(n, NVML_ASK(n, ASK_PCIE_TX, nvmlDeviceGetPcieThroughput, n->device, NVML_PCIE_TX, &kib)))
		b->pcie_tx_bytes_per_s = from_kib(kib);
	if (nvml_has(n, NVML_ASK(n, ASK_PCIE_RX, nvmlDeviceGetPcieThroughput, n->device, NVML_PCIE_RX, &kib)))
		b->pcie_rx_bytes_per_s = from_kib(kib);
}

typedef void slow_group(struct nvml_reading *n, struct gpu_board *b);
/* The last one takes long: it is left out of the first reading, which reads all others. */
static slow_group *const slow_groups[] = {ask_power_limit, ask_ecc, ask_remapped_rows, ask_pcie_link,
                                          ask_pcie_throughput};
#define SLOW_GROUPS ARRAY_LEN(slow_groups)

static void
read_next_slow(struct nvml_reading *n)
{
	struct known_gpu *g = n->gpu;

	if (!g->slow_begun) {
		memset(&g->slow, 0xff, sizeof(g->slow)); /* all ABSENT */
		for (size_t i = 0; i + 1 < SLOW_GROUPS; i++)
			slow_groups[i](n, &g->slow);
		g->slow_begun = true;
		g->slow_next = n->place % SLOW_GROUPS; /* so that the GPUs read the long one at different times */
		g->slow_boot_ns = n->boot_ns;
	} else if (n->boot_ns - g->slow_boot_ns >= SLOW_STEP_NS) {
		slow_groups[g->slow_next](n, &g->slow);
		g->slow_next = (g->slow_next + 1) % SLOW_GROUPS;
		g->slow_boot_ns = n->boot_ns;
	}
}

static void
read_board(struct nvml_reading *n)
{
	struct gpu_reading *r = n->r;
	struct nvml_memory memory;
	uint32_t milliwatts, celsius;
	uint64_t millijoules;

	if (read_memory(n, n->device, &memory)) {
		r->memory_bytes = nvml_from_u64(memory.total);
		r->memory_used_bytes = nvml_from_u64(memory.used);
		r->board.memory_reserved_bytes = nvml_from_u64(memory.reserved);
		r->board.memory_free_bytes = nvml_from_u64(memory.free);
	}
	if (nvml_has(n, NVML_ASK(n, ASK_POWER, nvmlDeviceGetPowerUsage, n->device, &milliwatts)))
		r->power_mw = milliwatts;
	if (nvml_has(n, NVML_ASK(n, ASK_ENERGY, nvmlDeviceGetTotalEnergyConsumption, n->device, &millijoules)))
		r->energy_mj = nvml_from_u64(millijoules);
	if (nvml_has(n, NVML_ASK(n, ASK_TEMPERATURE, nvmlDeviceGetTemperature, n->device, NVML_SENSOR_GPU, &celsius)) &&
	    celsius < 1000)
		r->temperature_c = celsius;
	read_clocks(n);
	read_fields(n);
}

/* After GPM was read: it may have the PCIe values already. */
static void
read_slow(struct nvml_reading *n)
{
	struct gpu_board *b = &n->r->board;
	const struct gpu_board *slow = &n->gpu->slow;

	read_next_slow(n);
	b->power_limit_mw = slow->power_limit_mw;
	b->ecc_corrected = slow->ecc_corrected;
	b->ecc_uncorrected = slow->ecc_uncorrected;
	b->remapped_corrected = slow->remapped_corrected;
	b->remapped_uncorrected = slow->remapped_uncorrected;
	b->remap_pending = slow->remap_pending;
	b->remap_failed = slow->remap_failed;
	b->pcie_generation = slow->pcie_generation;
	b->pcie_width = slow->pcie_width;
	b->pcie_replays = slow->pcie_replays;
	if (b->pcie_tx_bytes_per_s == ABSENT) {
		b->pcie_tx_bytes_per_s = slow->pcie_tx_bytes_per_s;
		b->pcie_rx_bytes_per_s = slow->pcie_rx_bytes_per_s;
	}
}

/* ---- a whole GPU ---- */

static void
read_whole_gpm(struct nvml_reading *n)
{
	struct gpu_reading *r = n->r;
	const int64_t *v = n->gpu->gpm_whole.values;

	if (!nvml_read_gpm(n, &n->gpu->gpm_whole, -1, NULL))
		return;
	/* both are engine-active time, but the counters cover the whole time since the last reading */
	if (v[GPM_ENGINE] != ABSENT)
		r->active_ppm = v[GPM_ENGINE];
	r->sm_active_ppm = v[GPM_SM];
	r->sm_occupancy_ppm = v[GPM_OCCUPANCY];
	r->tensor_active_ppm = v[GPM_TENSOR];
	r->dram_active_ppm = v[GPM_DRAM];
	r->board.pcie_tx_bytes_per_s = v[GPM_PCIE_TX];
	r->board.pcie_rx_bytes_per_s = v[GPM_PCIE_RX];
}

static void
read_whole(struct nvml_reading *n)
{
	struct gpu_reading *r = n->r;
	struct nvml_utilization rates;
	uint32_t percent, period_us;

	if (nvml_has(n, NVML_ASK(n, ASK_RATES, nvmlDeviceGetUtilizationRates, n->device, &rates))) {
		r->active_ppm = nvml_percent_to_ppm(rates.gpu);
		r->memory_active_ppm = nvml_percent_to_ppm(rates.memory);
	}
	if (nvml_has(n, NVML_ASK(n, ASK_ENCODER, nvmlDeviceGetEncoderUtilization, n->device, &percent, &period_us)))
		r->board.encoder_ppm = nvml_percent_to_ppm(percent);
	if (nvml_has(n, NVML_ASK(n, ASK_DECODER, nvmlDeviceGetDecoderUtilization, n->device, &percent, &period_us)))
		r->board.decoder_ppm = nvml_percent_to_ppm(percent);
	read_whole_gpm(n);
	if (!nvml_read_processes(n, n->device, -1, -1))
		return;
	nvml_read_activity(n);
	nvml_read_exits(n);
	nvml_drop_mps_servers(n);
}

/* ---- a partitioned GPU ---- */

/* The part of "NVIDIA A100-SXM4-80GB MIG 3g.40gb" that names the profile, or one made from the slices. */
static void
name_profile(const char *name, const struct mig_geometry *g, struct gpu_instance *in)
{
	const char *mig = strstr(name, " MIG ");
	int64_t gib = (in->memory_slices * g->memory_slice_mib + 512) / 1024;

	if (mig)
		snprintf(in->profile, sizeof(in->profile), "%s", mig + strlen(" MIG "));
	else if (in->compute_slices < in->gi_compute_slices)
		snprintf(in->profile, sizeof(in->profile), "%dc.%dg.%" PRId64 "gb", in->compute_slices,
		         in->gi_compute_slices, gib);
	else
		snprintf(in->profile, sizeof(in->profile), "%dg.%" PRId64 "gb", in->gi_compute_slices, gib);
}

/* Ids and counts of slices are small; gpu_reading_weigh refuses others later. */
static int32_t
small(uint64_t value)
{
	return value > INT16_MAX ? INT16_MAX : (int32_t)value;
}

/* From the device's attributes, else from the profile in its name. The memory of an instance is a little below its slices'. */
static bool
read_slices(struct nvml_reading *n, struct nvml_device *mig, const char *name, const struct mig_geometry *g,
            struct gpu_instance *in)
{
	struct nvml_attributes a;
	struct mig_slices slices;

	if (g->memory_slice_mib > 0 && nvml_has(n, NVML_CALL(n->s, nvmlDeviceGetAttributes_v2, mig, &a))) {
		uint64_t slice = (uint64_t)g->memory_slice_mib;

		in->compute_slices = small(a.ci_slices);
		in->gi_compute_slices = small(a.gi_slices);
		in->memory_slices = small(a.memory_mib / slice + (a.memory_mib % slice * 2 >= slice));
		name_profile(name, g, in);
		return true;
	}
	name_profile(name, g, in);
	if (!mig_profile_parse(g, in->profile, &slices, NULL))
		return nvml_needs(n, NVST_NOT_SUPPORTED);
	in->compute_slices = slices.compute;
	in->gi_compute_slices = slices.gi_compute;
	in->memory_slices = slices.memory;
	return true;
}

/* The placement of its GPU instance. Only root may read it; without it the free slices are only counted. */
static void
read_placement(struct nvml_reading *n, struct gpu_instance *in)
{
	struct nvml_gpu_instance *handle = NULL;
	struct nvml_gpu_instance_info info;

	in->placement_start = in->placement_size = -1;
	if (!nvml_has(n, NVML_CALL(n->s, nvmlDeviceGetGpuInstanceById, n->device, (uint32_t)in->gi, &handle)) ||
	    !nvml_has(n, NVML_CALL(n->s, nvmlGpuInstanceGetInfo, handle, &info)))
		return;
	in->placement_start = small(info.placement.start);
	in->placement_size = small(info.placement.size);
}

/* Rule 2: constant properties are read when the instance is new. */
static bool
learn_instance(struct nvml_reading *n, struct nvml_device *mig, const char *uuid, const char *name,
               const struct mig_geometry *g, struct known_instance *slot)
{
	struct gpu_instance *in = &slot->instance;
	uint32_t gi, ci;

	slot->gpm.begun = false;
	*in = (struct gpu_instance){
		.active_ppm = ABSENT,
		.sm_active_ppm = ABSENT,
		.sm_occupancy_ppm = ABSENT,
		.tensor_active_ppm = ABSENT,
		.dram_active_ppm = ABSENT,
	};
	if (!nvml_needs(n, NVML_CALL(n->s, nvmlDeviceGetGpuInstanceId, mig, &gi)) ||
	    !nvml_needs(n, NVML_CALL(n->s, nvmlDeviceGetComputeInstanceId, mig, &ci)))
		return false;
	in->gi = small(gi);
	in->ci = small(ci);
	if (!read_slices(n, mig, name, g, in))
		return false;
	read_placement(n, in);
	snprintf(in->uuid, sizeof(in->uuid), "%s", uuid);
	snprintf(slot->name, sizeof(slot->name), "%s", name);
	return true;
}

/* Rule 10. Drivers answer either status for an empty slot and for one that is being changed. */
static bool
is_empty_slot(int status)
{
	return status == NVST_NOT_FOUND || status == NVST_INVALID_ARGUMENT;
}

static bool
read_instance(struct nvml_reading *n, uint32_t index, const struct mig_geometry *g)
{
	struct known_instance *slot = &n->gpu->slots[index];
	struct gpu_reading *r = n->r;
	char uuid[NVML_TEXT_SIZE] = "", name[NVML_TEXT_SIZE] = "";
	struct nvml_device *mig = NULL;
	struct nvml_memory memory;
	struct gpu_instance *in;
	int status = NVML_CALL(n->s, nvmlDeviceGetMigDeviceHandleByIndex, n->device, index, &mig);

	/* an instance may be destroyed between the two calls */
	if (status == NVST_SUCCESS)
		status = n->s->api.nvmlDeviceGetUUID(mig, uuid, sizeof(uuid));
	if (is_empty_slot(status)) {
		slot->instance.uuid[0] = '\0';
		return true;
	}
	if (!nvml_needs(n, status) || !nvml_needs(n, n->s->api.nvmlDeviceGetName(mig, name, sizeof(name))))
		return false;
	slot->device = mig;
	uuid[sizeof(uuid) - 1] = name[sizeof(name) - 1] = '\0';
	if ((strcmp(uuid, slot->instance.uuid) != 0 || strcmp(name, slot->name) != 0) &&
	    !learn_instance(n, mig, uuid, name, g, slot))
		return false;
	in = &r->instances[r->instance_count++];
	*in = slot->instance;
	in->memory_bytes = in->memory_used_bytes = ABSENT;
	if (read_memory(n, mig, &memory)) {
		in->memory_bytes = nvml_from_u64(memory.total);
		in->memory_used_bytes = nvml_from_u64(memory.used);
	}
	return nvml_read_processes(n, mig, in->gi, in->ci);
}

/* The nominal size in the short name of a model, such as H100-80GB; 0 when it has none. */
static int64_t
named_memory_mib(const char *model)
{
	char text[GPU_TEXT], *end;
	const char *dash;
	long gib;

	gpu_model_short(model, text, sizeof(text));
	dash = strrchr(text, '-');
	if (!dash)
		return 0;
	gib = strtol(dash + 1, &end, 10);
	return gib > 0 && gib < 10000 && strcmp(end, "GB") == 0 ? gib * 1024 : 0;
}

/* Where only root may read the memory size of a partitioned GPU, it is taken from the model name. The geometry of an unknown model
 * follows from the number of instances that the driver allows. */
static struct mig_geometry
geometry_of(const struct gpu_reading *r, uint32_t max_instances)
{
	int64_t mib = r->memory_bytes > 0 ? r->memory_bytes >> 20 : named_memory_mib(r->model);
	struct mig_geometry g;

	if (mig_geometry_of(r->model, mib, &g, NULL))
		return g;
	g.compute_slices = (int)max_instances;
	g.memory_slices = max_instances == 7 ? 8 : (int)max_instances;
	g.memory_slice_mib = mib / g.memory_slices;
	return g;
}

/* The counters belong to GPU instances: compute instances that share one are not measured. */
static void
read_instance_gpm(struct nvml_reading *n, struct known_instance *slot, struct gpu_instance *in)
{
	const int64_t *v = slot->gpm.values;

	for (size_t i = 0; i < n->r->instance_count; i++)
		if (n->r->instances[i].gi == in->gi && &n->r->instances[i] != in)
			return;
	/* by handle the sample may be of the compute instance: the same when that fills the GPU instance */
	if (!nvml_read_gpm(n, &slot->gpm, in->gi, in->compute_slices == in->gi_compute_slices ? slot->device : NULL))
		return;
	in->active_ppm = v[GPM_ENGINE];
	in->sm_active_ppm = v[GPM_SM];
	in->sm_occupancy_ppm = v[GPM_OCCUPANCY];
	in->tensor_active_ppm = v[GPM_TENSOR];
	in->dram_active_ppm = v[GPM_DRAM];
}

/* Rules 6 and 10. */
static void
read_partitioned(struct nvml_reading *n)
{
	struct gpu_reading *r = n->r;
	uint32_t max_instances = 0;
	struct mig_geometry g;
	struct err err;

	r->mig = true;
	if (!nvml_needs(n, NVML_CALL(n->s, nvmlDeviceGetMaxMigDeviceCount, n->device, &max_instances)))
		return;
	if (max_instances == 0 || max_instances > GPU_INSTANCE_MAX) {
		gpu_reading_down(r, GPU_FAULT_OTHER,
		                 "the driver allows %" PRIu32 " MIG instances, between 1 and %d expected",
		                 max_instances, GPU_INSTANCE_MAX);
		return;
	}
	g = geometry_of(r, max_instances);
	for (uint32_t i = 0; i < max_instances; i++)
		if (!read_instance(n, i, &g))
			return;
	for (uint32_t i = 0, at = 0; i < max_instances; i++)
		if (n->gpu->slots[i].instance.uuid[0])
			read_instance_gpm(n, &n->gpu->slots[i], &r->instances[at++]);
	nvml_drop_mps_servers(n);
	if (!gpu_reading_weigh(r, &g, &err))
		gpu_reading_down(r, GPU_FAULT_OTHER, "%.*s", GPU_TEXT - 1, err.text);
}

/* A driver or GPU without MIG says so; after any other failure the mode is unknown and the GPU cannot be read. */
static bool
read_mig_mode(struct nvml_reading *n, bool *ret_on)
{
	uint32_t current = 0, pending = 0;
	int status = NVML_CALL(n->s, nvmlDeviceGetMigMode, n->device, &current, &pending);

	*ret_on = status == NVST_SUCCESS && current == 1;
	return status == NVST_NOT_SUPPORTED || status == NVST_FUNCTION_NOT_FOUND || nvml_needs(n, status);
}

void
nvml_read_gpu(struct nvml_reading *n)
{
	bool partitioned;

	read_board(n);
	if (n->fault != NVST_SUCCESS || !read_mig_mode(n, &partitioned))
		return;
	if (partitioned != n->gpu->mig)
		n->gpu->unsupported = 0;
	n->gpu->mig = partitioned;
	if (partitioned)
		read_partitioned(n);
	else
		read_whole(n);
	if (n->fault == NVST_SUCCESS && !n->r->down)
		read_slow(n);
}
