/* exporter/nvml_gpu.c - one GPU read through NVML: board and MIG instances. The rules are in nvml_source.h. */
#include "exporter/nvml_source.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void
read_memory(struct nvml_reading *n, struct nvml_device *device, int64_t *ret_total, int64_t *ret_used)
{
	struct nvml_memory memory = {.version = NVML_MEMORY_V2};
	struct nvml_memory_v1 old = {0};

	*ret_total = *ret_used = ABSENT;
	if (nvml_has(n, NVML_CALL(n->s, nvmlDeviceGetMemoryInfo_v2, device, &memory))) {
		*ret_total = nvml_from_u64(memory.total);
		*ret_used = nvml_from_u64(memory.used);
	} else if (nvml_has(n, NVML_CALL(n->s, nvmlDeviceGetMemoryInfo, device, &old))) {
		*ret_total = nvml_from_u64(old.total);
		*ret_used = nvml_from_u64(old.used);
	}
}

static void
read_board(struct nvml_reading *n)
{
	struct gpu_reading *r = n->r;
	uint32_t milliwatts, celsius;
	uint64_t millijoules;

	read_memory(n, n->device, &r->memory_bytes, &r->memory_used_bytes);
	if (nvml_has(n, NVML_CALL(n->s, nvmlDeviceGetPowerUsage, n->device, &milliwatts)))
		r->power_mw = milliwatts;
	if (nvml_has(n, NVML_CALL(n->s, nvmlDeviceGetTotalEnergyConsumption, n->device, &millijoules)))
		r->energy_mj = nvml_from_u64(millijoules);
	if (nvml_has(n, NVML_CALL(n->s, nvmlDeviceGetTemperature, n->device, NVML_SENSOR_GPU, &celsius)) &&
	    celsius < 1000)
		r->temperature_c = celsius;
}

static void
read_whole(struct nvml_reading *n)
{
	struct gpu_reading *r = n->r;
	struct nvml_utilization rates;

	if (nvml_has(n, NVML_CALL(n->s, nvmlDeviceGetUtilizationRates, n->device, &rates))) {
		r->active_ppm = nvml_percent_to_ppm(rates.gpu);
		r->memory_active_ppm = nvml_percent_to_ppm(rates.memory);
	}
	if (!nvml_read_processes(n, n->device, -1, -1))
		return;
	nvml_read_activity(n);
	nvml_drop_mps_servers(n);
}

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

/* Rule 2: what stays the same is read when the instance is new. */
static bool
learn_instance(struct nvml_reading *n, struct nvml_device *mig, const char *uuid, const char *name,
               const struct mig_geometry *g, struct known_instance *slot)
{
	struct gpu_instance *in = &slot->instance;
	uint32_t gi, ci;

	*slot = (struct known_instance){.instance.active_ppm = ABSENT};
	if (!nvml_needs(n, NVML_CALL(n->s, nvmlDeviceGetGpuInstanceId, mig, &gi)) ||
	    !nvml_needs(n, NVML_CALL(n->s, nvmlDeviceGetComputeInstanceId, mig, &ci)))
		return false;
	in->gi = small(gi);
	in->ci = small(ci);
	if (!read_slices(n, mig, name, g, in))
		return false;
	snprintf(in->uuid, sizeof(in->uuid), "%s", uuid);
	snprintf(slot->name, sizeof(slot->name), "%s", name);
	return true;
}

static bool
read_instance(struct nvml_reading *n, struct nvml_device *mig, const struct mig_geometry *g,
              struct known_instance *slot)
{
	struct gpu_reading *r = n->r;
	char uuid[NVML_TEXT_SIZE] = "", name[NVML_TEXT_SIZE] = "";
	struct gpu_instance *in;

	if (!nvml_needs(n, n->s->api.nvmlDeviceGetUUID(mig, uuid, sizeof(uuid))) ||
	    !nvml_needs(n, n->s->api.nvmlDeviceGetName(mig, name, sizeof(name))))
		return false;
	uuid[sizeof(uuid) - 1] = name[sizeof(name) - 1] = '\0';
	if ((strcmp(uuid, slot->instance.uuid) != 0 || strcmp(name, slot->name) != 0) &&
	    !learn_instance(n, mig, uuid, name, g, slot))
		return false;
	in = &r->instances[r->instance_count++];
	*in = slot->instance;
	read_memory(n, mig, &in->memory_bytes, &in->memory_used_bytes);
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

/* Rule 6. The indexes of MIG devices have holes. */
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
	for (uint32_t i = 0; i < max_instances; i++) {
		struct nvml_device *mig = NULL;
		int status = NVML_CALL(n->s, nvmlDeviceGetMigDeviceHandleByIndex, n->device, i, &mig);

		if (status == NVST_NOT_FOUND)
			n->gpu->slots[i].instance.uuid[0] = '\0';
		else if (!nvml_needs(n, status) || !read_instance(n, mig, &g, &n->gpu->slots[i]))
			return;
	}
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

	read_board(n);
	if (n->fault != NVST_SUCCESS || !read_mig_mode(n, &partitioned))
		return;
	if (partitioned)
		read_partitioned(n);
	else
		read_whole(n);
}
