/* exporter/nvml_process.c - who is on a GPU, through NVML: lists of processes and their activity. The rules are in
 * nvml_source.h. */
#include "exporter/nvml_source.h"

#include <string.h>

/* Larger than any entry a driver has used, so that one it enlarges stays inside our memory. */
#define ENTRY_ROOM 64u
#define ENTRY_FIRST_CAP 16u
#define SAMPLE_FIRST_CAP 128u
#define UNWRITTEN 0xAA
#define MPS_SERVER "nvidia-cuda-mps-server"
/* A server on Volta or later runs nothing itself and holds a few hundred MiB; what holds more is not left out for its name. */
#define MPS_SERVER_MAX_BYTES (INT64_C(1) << 30)
#define SILENT_READINGS_MAX 3

/* ---- processes ------------------------------------------------------------------------------------------------------ */

/* Rule 3. The buffer was filled with UNWRITTEN; the last entry ends in an instance id, or in a size, and neither is made of
 * that byte. What is not a plausible size means that the driver wrote beyond its entries, which are then of the known size. */
static size_t
entry_stride(const struct known_gpu *g, uint32_t count, size_t expected)
{
	size_t written = (size_t)g->entry_cap * ENTRY_ROOM, stride;

	while (written > 0 && g->entries[written - 1] == UNWRITTEN)
		written--;
	stride = written / count;
	if (written % count != 0 || stride % sizeof(uint64_t) != 0 || stride < expected || stride > ENTRY_ROOM)
		return expected;
	return stride;
}

static bool
entries_grow(struct known_gpu *g, uint32_t needed)
{
	uint32_t cap = g->entry_cap ? g->entry_cap : ENTRY_FIRST_CAP;

	if (needed > GPU_PROCESS_MAX)
		return false;
	while (cap < needed)
		cap *= 2;
	g->entries = mem_grow(g->entries, cap, ENTRY_ROOM);
	g->entry_cap = cap;
	return true;
}

/* Processes may start between two calls, so a size that was enough may not be; each round leaves room for more. */
static int
list_call(struct known_gpu *g, nvml_list_function *list, struct nvml_device *device, uint32_t *ret_count)
{
	if (!g->entries && !entries_grow(g, ENTRY_FIRST_CAP))
		return NVST_INSUFFICIENT_SIZE;
	for (int round = 0; round < 8; round++) {
		uint32_t count = g->entry_cap;
		int status;

		memset(g->entries, UNWRITTEN, (size_t)g->entry_cap * ENTRY_ROOM);
		status = list(device, &count, g->entries);
		if (status == NVST_SUCCESS && count <= g->entry_cap) {
			*ret_count = count;
			return NVST_SUCCESS;
		}
		if (status != NVST_SUCCESS && status != NVST_INSUFFICIENT_SIZE)
			return status;
		if (!entries_grow(g, count > g->entry_cap ? count : g->entry_cap + 1))
			return NVST_INSUFFICIENT_SIZE;
	}
	return NVST_INSUFFICIENT_SIZE;
}

/* A library newer than its driver has the symbol but not the function: then the older one serves, from now on. */
static int
list_newest(struct nvml_reading *n, enum nvml_list kind, struct nvml_device *device, uint32_t *ret_count)
{
	for (; n->gpu->list_version[kind] < LIST_VERSIONS; n->gpu->list_version[kind]++) {
		nvml_list_function *list = n->s->lists[kind][n->gpu->list_version[kind]];
		int status = list ? list_call(n->gpu, list, device, ret_count) : NVST_FUNCTION_NOT_FOUND;

		if (status != NVST_FUNCTION_NOT_FOUND)
			return status;
	}
	return NVST_FUNCTION_NOT_FOUND;
}

/* Unites one list of a GPU, or of an instance (gi and ci then tell which), with what is there. */
static int
add_processes(struct nvml_reading *n, enum nvml_list kind, struct nvml_device *device, int32_t gi, int32_t ci)
{
	struct known_gpu *g = n->gpu;
	uint32_t count = 0;
	int status = list_newest(n, kind, device, &count);
	size_t expected, stride;

	if (status != NVST_SUCCESS || count == 0)
		return status;
	expected = g->list_version[kind] == LIST_VERSIONS - 1 ? sizeof(struct nvml_process_info_v1)
	                                                      : sizeof(struct nvml_process_info);
	stride = entry_stride(g, count, expected);
	for (uint32_t i = 0; i < count; i++) {
		struct nvml_process_info_v1 entry; /* the beginning of every layout */
		struct gpu_process *p;

		memcpy(&entry, g->entries + i * stride, sizeof(entry));
		p = gpu_reading_process(n->r, entry.pid, gi, ci);
		if (!p)
			return NVST_INSUFFICIENT_SIZE;
		/* a process in two lists has one memory: the lists repeat it */
		if (entry.used_memory != NVML_NOT_AVAILABLE && nvml_from_u64(entry.used_memory) > p->memory_bytes)
			p->memory_bytes = nvml_from_u64(entry.used_memory);
		p->mps_client |= kind == LIST_MPS;
	}
	n->r->mps |= kind == LIST_MPS;
	return NVST_SUCCESS;
}

/* Rule 1: without its compute processes nobody can say whether a GPU is free. The other lists only add. */
bool
nvml_read_processes(struct nvml_reading *n, struct nvml_device *device, int32_t gi, int32_t ci)
{
	if (!nvml_needs(n, add_processes(n, LIST_COMPUTE, device, gi, ci)))
		return false;
	(void)nvml_has(n, add_processes(n, LIST_GRAPHICS, device, gi, ci));
	(void)nvml_has(n, add_processes(n, LIST_MPS, device, gi, ci));
	return n->fault == NVST_SUCCESS;
}

/* The name of a process is asked for when it appears, not each second. */
static bool
is_named_mps_server(struct nvml_reading *n, uint32_t pid)
{
	struct known_gpu *known = n->gpu;
	struct known_name found = {.pid = pid, .seen = true};
	char name[256] = "";
	const char *base;

	for (size_t i = 0; i < known->name_count; i++)
		if (known->names[i].pid == pid) {
			known->names[i].seen = true;
			return known->names[i].server;
		}
	if (!nvml_has(n, NVML_CALL(n->s, nvmlSystemGetProcessName, pid, name, sizeof(name))))
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
void
nvml_drop_mps_servers(struct nvml_reading *n)
{
	struct gpu_reading *r = n->r;
	size_t kept = 0;

	for (size_t i = 0; i < r->process_count; i++) {
		struct gpu_process p = r->processes[i];
		bool quiet = p.sm_ppm <= 0 && p.memory_bytes < MPS_SERVER_MAX_BYTES;

		if (!p.mps_client && quiet && is_named_mps_server(n, p.pid))
			r->mps = true;
		else
			r->processes[kept++] = p;
	}
	r->process_count = kept;
	forget_names(n->gpu);
}

/* The samples since the last reading; NVST_NOT_FOUND: none. */
static int
sample_call(struct nvml_reading *n, uint32_t *ret_count)
{
	struct known_gpu *g = n->gpu;

	if (!g->samples) {
		g->sample_cap = SAMPLE_FIRST_CAP;
		g->samples = mem_array(g->sample_cap, sizeof(*g->samples));
	}
	for (int round = 0; round < 8; round++) {
		uint32_t count = g->sample_cap;
		int status;

		memset(g->samples, 0, g->sample_cap * sizeof(*g->samples));
		status = NVML_CALL(n->s, nvmlDeviceGetProcessUtilization, n->device, g->samples, &count,
		                   g->last_seen_us);
		*ret_count = count;
		if (status != NVST_INSUFFICIENT_SIZE)
			return status == NVST_SUCCESS && count > g->sample_cap ? NVST_UNKNOWN : status;
		if (count <= g->sample_cap)
			count = g->sample_cap * 2;
		if (count > 4 * GPU_PROCESS_MAX)
			return status;
		g->samples = mem_grow(g->samples, count, sizeof(*g->samples));
		g->sample_cap = count;
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
void
nvml_read_activity(struct nvml_reading *n)
{
	struct known_gpu *known = n->gpu;
	struct gpu_reading *r = n->r;
	uint64_t newest = known->last_seen_us;
	uint32_t count = 0;
	int status = sample_call(n, &count);

	if (status == NVST_NOT_FOUND)
		count = 0;
	else if (!nvml_has(n, status))
		return;
	if (count == 0 && is_silent(known, r))
		return;
	known->silent_readings = 0;
	r->process_activity = true;
	for (size_t i = 0; i < r->process_count; i++)
		r->processes[i].sm_ppm = 0;
	for (uint32_t i = 0; i < count; i++) {
		const struct nvml_process_sample *sample = &known->samples[i];
		const struct gpu_process *p;

		if (sample->pid == 0 || sample->timestamp_us <= known->last_seen_us)
			continue;
		if (sample->timestamp_us > newest)
			newest = sample->timestamp_us;
		p = gpu_reading_find(r, sample->pid, -1, -1);
		/* ABSENT, the answer for noise, is below zero; of several samples of one process the highest stays */
		if (p && nvml_percent_to_ppm(sample->sm) > p->sm_ppm)
			r->processes[p - r->processes].sm_ppm = nvml_percent_to_ppm(sample->sm);
	}
	known->last_seen_us = newest;
}
