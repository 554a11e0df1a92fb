/* exporter/nvml_gpu.c - one GPU read through NVML: board, processes, MIG instances. The rules are in nvml_source.h. */
#include "exporter/nvml_source.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PPM_PER_PERCENT 10000
/* Larger than any entry a driver has used, so that one it enlarges stays inside our memory. */
#define ENTRY_ROOM 64u
#define ENTRY_FIRST_CAP 16u
#define SAMPLE_FIRST_CAP 128u
#define UNWRITTEN 0xAA
#define MPS_SERVER "nvidia-cuda-mps-server"
/* A server on Volta or later runs nothing itself and holds a few hundred MiB; what holds more is not left out for its name. */
#define MPS_SERVER_MAX_BYTES (INT64_C(1) << 30)
#define SILENT_READINGS_MAX 3

static int64_t
from_u64(uint64_t value)
{
	return value > INT64_MAX ? ABSENT : (int64_t)value;
}

static int64_t
percent_to_ppm(uint32_t percent)
{
	return percent > 100 ? ABSENT : (int64_t)percent * PPM_PER_PERCENT;
}

/* ---- processes ------------------------------------------------------------------------------------------------------ */

/* Rule 3. The buffer was filled with UNWRITTEN; the last entry ends in an instance id, or in a size, and neither is made of
 * that byte. What is not a plausible size means that the driver wrote beyond its entries, which are then of the known size. */
static size_t
entry_stride(const struct nvml_source *s, uint32_t count, size_t expected)
{
	size_t written = (size_t)s->entry_cap * ENTRY_ROOM, stride;

	while (written > 0 && s->entries[written - 1] == UNWRITTEN)
		written--;
	stride = written / count;
	if (written % count != 0 || stride % sizeof(uint64_t) != 0 || stride < expected || stride > ENTRY_ROOM)
		return expected;
	return stride;
}

static bool
entries_grow(struct nvml_source *s, uint32_t needed)
{
	uint32_t cap = s->entry_cap ? s->entry_cap : ENTRY_FIRST_CAP;

	if (needed > GPU_PROCESS_MAX)
		return false;
	while (cap < needed)
		cap *= 2;
	s->entries = mem_grow(s->entries, cap, ENTRY_ROOM);
	s->entry_cap = cap;
	return true;
}

/* Processes may start between two calls, so a size that was enough may not be; each round leaves room for more. */
static int
list_call(struct nvml_source *s, nvml_list_function *list, struct nvml_device *device, uint32_t *ret_count)
{
	if (!s->entries && !entries_grow(s, ENTRY_FIRST_CAP))
		return NVST_INSUFFICIENT_SIZE;
	for (int round = 0; round < 8; round++) {
		uint32_t count = s->entry_cap;
		int status;

		memset(s->entries, UNWRITTEN, (size_t)s->entry_cap * ENTRY_ROOM);
		status = list(device, &count, s->entries);
		if (status == NVST_SUCCESS && count <= s->entry_cap) {
			*ret_count = count;
			return NVST_SUCCESS;
		}
		if (status != NVST_SUCCESS && status != NVST_INSUFFICIENT_SIZE)
			return status;
		if (!entries_grow(s, count > s->entry_cap ? count : s->entry_cap + 1))
			return NVST_INSUFFICIENT_SIZE;
	}
	return NVST_INSUFFICIENT_SIZE;
}

/* A library newer than its driver has the symbol but not the function: then the older one serves, from now on. */
static int
list_newest(struct nvml_source *s, enum nvml_list kind, struct nvml_device *device, uint32_t *ret_count)
{
	for (; s->list_version[kind] < LIST_VERSIONS; s->list_version[kind]++) {
		nvml_list_function *list = s->lists[kind][s->list_version[kind]];
		int status = list ? list_call(s, list, device, ret_count) : NVST_FUNCTION_NOT_FOUND;

		if (status != NVST_FUNCTION_NOT_FOUND)
			return status;
	}
	return NVST_FUNCTION_NOT_FOUND;
}

/* Unites one list of a GPU, or of an instance (gi and ci then tell which), with what is there. */
static int
add_processes(struct nvml_source *s, enum nvml_list kind, struct nvml_device *device, int32_t gi, int32_t ci,
              struct gpu_reading *r)
{
	uint32_t count = 0;
	int status = list_newest(s, kind, device, &count);
	size_t expected, stride;

	if (status != NVST_SUCCESS || count == 0)
		return status;
	expected = s->list_version[kind] == LIST_VERSIONS - 1 ? sizeof(struct nvml_process_info_v1)
	                                                      : sizeof(struct nvml_process_info);
	stride = entry_stride(s, count, expected);
	for (uint32_t i = 0; i < count; i++) {
		struct nvml_process_info_v1 entry; /* the beginning of every layout */
		struct gpu_process *p;

		memcpy(&entry, s->entries + i * stride, sizeof(entry));
		p = gpu_reading_process(r, entry.pid, gi, ci);
		if (!p)
			return NVST_INSUFFICIENT_SIZE;
		/* a process in two lists has one memory: the lists repeat it */
		if (entry.used_memory != NVML_NOT_AVAILABLE && from_u64(entry.used_memory) > p->memory_bytes)
			p->memory_bytes = from_u64(entry.used_memory);
		p->mps_client |= kind == LIST_MPS;
	}
	r->mps |= kind == LIST_MPS;
	return NVST_SUCCESS;
}

/* Rule 1: without its compute processes nobody can say whether a GPU is free. The other lists only add. */
static bool
read_processes(struct nvml_source *s, struct nvml_device *device, int32_t gi, int32_t ci, struct gpu_reading *r)
{
	if (!nvml_needs(s, add_processes(s, LIST_COMPUTE, device, gi, ci, r)))
		return false;
	(void)nvml_has(s, add_processes(s, LIST_GRAPHICS, device, gi, ci, r));
	(void)nvml_has(s, add_processes(s, LIST_MPS, device, gi, ci, r));
	return s->fault == NVST_SUCCESS;
}

/* The name of a process is asked for when it appears, not each second. */
static bool
is_named_mps_server(struct nvml_source *s, struct known_gpu *known, uint32_t pid)
{
	struct known_name found = {.pid = pid, .seen = true};
	char name[256] = "";
	const char *base;

	for (size_t i = 0; i < known->name_count; i++)
		if (known->names[i].pid == pid) {
			known->names[i].seen = true;
			return known->names[i].server;
		}
	if (!nvml_has(s, NVML_CALL(s, nvmlSystemGetProcessName, pid, name, sizeof(name))))
		return false;
	name[sizeof(name) - 1] = '\0';
	base = strrchr(name, '/');
	found.server = strcmp(base ? base + 1 : name, MPS_SERVER) == 0;
	if (known->name_count < ARRAY_LEN(known->names))
		known->names[known->name_count++] = found;
	return found.server;
}

/* A PID that left the GPU may come back as somebody else. */
static void
forget_names(struct known_gpu *known)
{
	size_t kept = 0;

	for (size_t i = 0; i < known->name_count; i++) {
		if (!known->names[i].seen)
			continue;
		known->names[kept] = known->names[i];
		known->names[kept++].seen = false;
	}
	known->name_count = kept;
}

/* Rule 4. A name is the process's own choice, so it excuses only what looks like a server: small and without activity. */
static void
drop_mps_servers(struct nvml_source *s, struct known_gpu *known, struct gpu_reading *r)
{
	size_t kept = 0;

	for (size_t i = 0; i < r->process_count; i++) {
		struct gpu_process p = r->processes[i];
		bool quiet = p.sm_ppm <= 0 && p.memory_bytes < MPS_SERVER_MAX_BYTES;

		if (!p.mps_client && quiet && is_named_mps_server(s, known, p.pid))
			r->mps = true;
		else
			r->processes[kept++] = p;
	}
	r->process_count = kept;
	forget_names(known);
}

/* The samples since the last reading; NVST_NOT_FOUND: none. */
static int
sample_call(struct nvml_source *s, struct nvml_device *device, uint64_t last_seen_us, uint32_t *ret_count)
{
	if (!s->samples) {
		s->sample_cap = SAMPLE_FIRST_CAP;
		s->samples = mem_array(s->sample_cap, sizeof(*s->samples));
	}
	for (int round = 0; round < 8; round++) {
		uint32_t count = s->sample_cap;
		int status;

		memset(s->samples, 0, s->sample_cap * sizeof(*s->samples));
		status = NVML_CALL(s, nvmlDeviceGetProcessUtilization, device, s->samples, &count, last_seen_us);
		*ret_count = count;
		if (status != NVST_INSUFFICIENT_SIZE)
			return status == NVST_SUCCESS && count > s->sample_cap ? NVST_UNKNOWN : status;
		if (count <= s->sample_cap)
			count = s->sample_cap * 2;
		if (count > 4 * GPU_PROCESS_MAX)
			return status;
		s->samples = mem_grow(s->samples, count, sizeof(*s->samples));
		s->sample_cap = count;
	}
	return NVST_INSUFFICIENT_SIZE;
}

/* The stamps are wall time: after a step back of the clock no sample is newer than the last one seen, and a busy GPU would
 * look idle until time has caught up. A GPU active without any active process is not believed for long. */
static bool
is_silent(struct known_gpu *known, const struct gpu_reading *r)
{
	if (r->active_ppm <= 0 || r->process_count == 0)
		return false;
	if (++known->silent_readings >= SILENT_READINGS_MAX)
		known->last_seen_us = 0;
	return true;
}

/* Rule 5. The driver pads its array with entries without a PID, and may repeat entries that were there before. */
static void
read_activity(struct nvml_source *s, struct nvml_device *device, struct known_gpu *known, struct gpu_reading *r)
{
	uint64_t newest = known->last_seen_us;
	uint32_t count = 0;
	int status = sample_call(s, device, known->last_seen_us, &count);

	if (status == NVST_NOT_FOUND)
		count = 0;
	else if (!nvml_has(s, status))
		return;
	if (count == 0 && is_silent(known, r))
		return;
	known->silent_readings = 0;
	r->process_activity = true;
	for (size_t i = 0; i < r->process_count; i++)
		r->processes[i].sm_ppm = 0;
	for (uint32_t i = 0; i < count; i++) {
		const struct nvml_process_sample *sample = &s->samples[i];
		const struct gpu_process *p;

		if (sample->pid == 0 || sample->timestamp_us <= known->last_seen_us)
			continue;
		if (sample->timestamp_us > newest)
			newest = sample->timestamp_us;
		p = gpu_reading_find(r, sample->pid, -1, -1);
		/* ABSENT, the answer for noise, is below zero; of several samples of one process the highest stays */
		if (p && percent_to_ppm(sample->sm) > p->sm_ppm)
			r->processes[p - r->processes].sm_ppm = percent_to_ppm(sample->sm);
	}
	known->last_seen_us = newest;
}

/* ---- one GPU -------------------------------------------------------------------------------------------------------- */

static void
read_memory(struct nvml_source *s, struct nvml_device *device, int64_t *ret_total, int64_t *ret_used)
{
	struct nvml_memory memory = {.version = NVML_MEMORY_V2};
	struct nvml_memory_v1 old = {0};

	*ret_total = *ret_used = ABSENT;
	if (nvml_has(s, NVML_CALL(s, nvmlDeviceGetMemoryInfo_v2, device, &memory))) {
		*ret_total = from_u64(memory.total);
		*ret_used = from_u64(memory.used);
	} else if (nvml_has(s, NVML_CALL(s, nvmlDeviceGetMemoryInfo, device, &old))) {
		*ret_total = from_u64(old.total);
		*ret_used = from_u64(old.used);
	}
}

static void
read_board(struct nvml_source *s, struct nvml_device *device, struct gpu_reading *r)
{
	uint32_t milliwatts, celsius;
	uint64_t millijoules;

	read_memory(s, device, &r->memory_bytes, &r->memory_used_bytes);
	if (nvml_has(s, NVML_CALL(s, nvmlDeviceGetPowerUsage, device, &milliwatts)))
		r->power_mw = milliwatts;
	if (nvml_has(s, NVML_CALL(s, nvmlDeviceGetTotalEnergyConsumption, device, &millijoules)))
		r->energy_mj = from_u64(millijoules);
	if (nvml_has(s, NVML_CALL(s, nvmlDeviceGetTemperature, device, NVML_SENSOR_GPU, &celsius)) && celsius < 1000)
		r->temperature_c = celsius;
}

static void
read_whole(struct nvml_source *s, struct nvml_device *device, struct known_gpu *known, struct gpu_reading *r)
{
	struct nvml_utilization rates;

	if (nvml_has(s, NVML_CALL(s, nvmlDeviceGetUtilizationRates, device, &rates))) {
		r->active_ppm = percent_to_ppm(rates.gpu);
		r->memory_active_ppm = percent_to_ppm(rates.memory);
	}
	if (!read_processes(s, device, -1, -1, r))
		return;
	read_activity(s, device, known, r);
	drop_mps_servers(s, known, r);
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
read_slices(struct nvml_source *s, struct nvml_device *mig, const char *name, const struct mig_geometry *g,
            struct gpu_instance *in)
{
	struct nvml_attributes a;
	struct mig_slices slices;

	if (g->memory_slice_mib > 0 && nvml_has(s, NVML_CALL(s, nvmlDeviceGetAttributes_v2, mig, &a))) {
		uint64_t slice = (uint64_t)g->memory_slice_mib;

		in->compute_slices = small(a.ci_slices);
		in->gi_compute_slices = small(a.gi_slices);
		in->memory_slices = small(a.memory_mib / slice + (a.memory_mib % slice * 2 >= slice));
		name_profile(name, g, in);
		return true;
	}
	name_profile(name, g, in);
	if (!mig_profile_parse(g, in->profile, &slices, NULL))
		return nvml_needs(s, NVST_NOT_SUPPORTED);
	in->compute_slices = slices.compute;
	in->gi_compute_slices = slices.gi_compute;
	in->memory_slices = slices.memory;
	return true;
}

/* Rule 2: what stays the same is read when the instance is new. */
static bool
learn_instance(struct nvml_source *s, struct nvml_device *mig, const char *uuid, const char *name,
               const struct mig_geometry *g, struct known_instance *slot)
{
	struct gpu_instance *in = &slot->instance;
	uint32_t gi, ci;

	*slot = (struct known_instance){.instance.active_ppm = ABSENT};
	if (!nvml_needs(s, NVML_CALL(s, nvmlDeviceGetGpuInstanceId, mig, &gi)) ||
	    !nvml_needs(s, NVML_CALL(s, nvmlDeviceGetComputeInstanceId, mig, &ci)))
		return false;
	in->gi = small(gi);
	in->ci = small(ci);
	if (!read_slices(s, mig, name, g, in))
		return false;
	snprintf(in->uuid, sizeof(in->uuid), "%s", uuid);
	snprintf(slot->name, sizeof(slot->name), "%s", name);
	return true;
}

static bool
read_instance(struct nvml_source *s, struct nvml_device *mig, const struct mig_geometry *g, struct known_instance *slot,
              struct gpu_reading *r)
{
	char uuid[NVML_TEXT_SIZE] = "", name[NVML_TEXT_SIZE] = "";
	struct gpu_instance *in;

	if (!nvml_needs(s, s->api.nvmlDeviceGetUUID(mig, uuid, sizeof(uuid))) ||
	    !nvml_needs(s, s->api.nvmlDeviceGetName(mig, name, sizeof(name))))
		return false;
	uuid[sizeof(uuid) - 1] = name[sizeof(name) - 1] = '\0';
	if ((strcmp(uuid, slot->instance.uuid) != 0 || strcmp(name, slot->name) != 0) &&
	    !learn_instance(s, mig, uuid, name, g, slot))
		return false;
	in = &r->instances[r->instance_count++];
	*in = slot->instance;
	read_memory(s, mig, &in->memory_bytes, &in->memory_used_bytes);
	return read_processes(s, mig, in->gi, in->ci, r);
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
read_partitioned(struct nvml_source *s, struct nvml_device *device, struct known_gpu *known, struct gpu_reading *r)
{
	uint32_t max_instances = 0;
	struct mig_geometry g;
	struct err err;

	r->mig = true;
	if (!nvml_needs(s, NVML_CALL(s, nvmlDeviceGetMaxMigDeviceCount, device, &max_instances)))
		return;
	if (max_instances == 0 || max_instances > GPU_INSTANCE_MAX) {
		gpu_reading_down(r, "the driver allows %" PRIu32 " MIG instances, between 1 and %d expected",
		                 max_instances, GPU_INSTANCE_MAX);
		return;
	}
	g = geometry_of(r, max_instances);
	for (uint32_t i = 0; i < max_instances; i++) {
		struct nvml_device *mig = NULL;
		int status = NVML_CALL(s, nvmlDeviceGetMigDeviceHandleByIndex, device, i, &mig);

		if (status == NVST_NOT_FOUND)
			known->slots[i].instance.uuid[0] = '\0';
		else if (!nvml_needs(s, status) || !read_instance(s, mig, &g, &known->slots[i], r))
			return;
	}
	drop_mps_servers(s, known, r);
	if (!gpu_reading_weigh(r, &g, &err))
		gpu_reading_down(r, "%.*s", GPU_TEXT - 1, err.text);
}

/* A driver or GPU without MIG says so; any other failure leaves open what the GPU is. */
static bool
read_mig_mode(struct nvml_source *s, struct nvml_device *device, bool *ret_on)
{
	uint32_t current = 0, pending = 0;
	int status = NVML_CALL(s, nvmlDeviceGetMigMode, device, &current, &pending);

	*ret_on = status == NVST_SUCCESS && current == 1;
	return status == NVST_NOT_SUPPORTED || status == NVST_FUNCTION_NOT_FOUND || nvml_needs(s, status);
}

void
nvml_read_gpu(struct nvml_source *s, struct nvml_device *device, struct known_gpu *known, struct gpu_reading *r)
{
	bool partitioned;

	read_board(s, device, r);
	if (s->fault == NVST_SUCCESS && read_mig_mode(s, device, &partitioned)) {
		if (partitioned)
			read_partitioned(s, device, known, r);
		else
			read_whole(s, device, known, r);
	}
	if (s->fault != NVST_SUCCESS)
		gpu_reading_down(r, "%s", nvml_status_text(s, s->fault));
}
