/* exporter/source/nvml/nvml_gpu.c - one GPU read through NVML: whole, or its MIG instances. The rules are in nvml_source.h. */
#include "exporter/source/nvml/nvml_source.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void
read_whole_gpm(struct nvml_reading *n)
{
	struct gpu_reading *r = n->r;
	const int64_t *v = n->gpu->gpm_whole.values;

	if (!nvml_read_gpm(n, &n->gpu->gpm_whole, -1, NULL))
		return;
	/* both mean engine-active time, but the counters cover all of it since the last reading */
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

/* ---- a partitioned one ---------------------------------------------------------------------------------------------- */

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

/* Ids and counts of slices are small; what is not is refused later, by gpu_reading_weigh. */
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

/* Where its GPU instance lies. Told to root only; without it the free slices are only counted. */
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

/* Rule 2: what stays the same is read when the instance is new. */
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

/* Rule 10: no instance is there. Drivers answer either status for a slot that is empty, and for one that is being changed. */
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
	if (nvml_read_memory(n, mig, &memory)) {
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

/* Where the driver tells the memory of a partitioned GPU to root only, the model's name tells it. The geometry of a model
 * that is not known follows from how many instances the driver allows. */
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

/* The counters are of GPU instances: where several compute instances share one, none of them is measured. */
static void
read_instance_gpm(struct nvml_reading *n, struct known_instance *slot, struct gpu_instance *in)
{
	const int64_t *v = slot->gpm.values;

	for (size_t i = 0; i < n->r->instance_count; i++)
		if (n->r->instances[i].gi == in->gi && &n->r->instances[i] != in)
			return;
	/* by handle the sample may be of the compute instance: the same where that is all of the GPU instance */
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
		gpu_reading_down(r, "the driver allows %" PRIu32 " MIG instances, between 1 and %d expected",
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
		gpu_reading_down(r, "%.*s", GPU_TEXT - 1, err.text);
}

/* A driver or GPU without MIG says so; any other failure leaves open what the GPU is. */
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

	nvml_read_board(n);
	if (n->fault != NVST_SUCCESS || !read_mig_mode(n, &partitioned))
		return;
	if (partitioned != n->gpu->mig)
		n->gpu->lacking = 0;
	n->gpu->mig = partitioned;
	if (partitioned)
		read_partitioned(n);
	else
		read_whole(n);
	if (n->fault == NVST_SUCCESS && !n->r->down)
		nvml_read_slow(n);
}
