/* exporter/source/nvml/nvml_process.c - the processes on a GPU and their activity. The rules are in nvml_source.h. */
#include "exporter/source/nvml/nvml_source.h"

#include <string.h>

#include "common/base/time.h"

/* Larger than any entry a driver has used, so that a larger one still fits. */
#define ENTRY_ROOM 64u
#define ENTRY_WORDS (ENTRY_ROOM / sizeof(uint64_t))
#define ENTRY_FIRST_CAP 16u
#define SAMPLE_FIRST_CAP 128u
#define UNWRITTEN 0xAA
#define MPS_SERVER "nvidia-cuda-mps-server"
/* A server on Volta or later runs nothing itself and holds a few hundred MiB; a process with more is kept whatever its name. */
#define MPS_SERVER_MAX_BYTES (INT64_C(1) << 30)
#define SILENT_READINGS_MAX 3

/* ---- processes ---- */

static bool
is_unwritten(const struct known_gpu *g, size_t word)
{
	uint64_t unwritten, found;

	memset(&unwritten, UNWRITTEN, sizeof(unwritten));
	memcpy(&found, g->entries + word * sizeof(found), sizeof(found));
	return found == unwritten;
}

/* Rule 3. The buffer was filled with UNWRITTEN; the last word of an entry, instance ids or a size, never has that value. An implausible
 * size means that the driver wrote beyond its entries, which then have the known size. */
static size_t
entry_stride(const struct known_gpu *g, uint32_t count, size_t expected)
{
	size_t room = (size_t)count * ENTRY_WORDS, words = room, stride;

	if (count < g->entry_cap && !is_unwritten(g, room))
		return expected;
	while (words > 0 && is_unwritten(g, words - 1))
		words--;
	stride = words / count * sizeof(uint64_t);
	return words % count == 0 && stride >= expected ? stride : expected;
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

/* Processes may start between two calls, so each round makes more room. */
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

/* A library newer than its driver has the symbol but not the function: then the older version is used from now on. */
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

/* Adds one list of a GPU, or of the instance gi, ci, to the processes already found. */
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
		/* both lists of a process report the same memory */
		if (entry.used_memory != NVML_NOT_AVAILABLE && nvml_from_u64(entry.used_memory) > p->memory_bytes)
			p->memory_bytes = nvml_from_u64(entry.used_memory);
		p->mps_client |= kind == LIST_MPS;
	}
	n->r->mps |= kind == LIST_MPS;
	return NVST_SUCCESS;
}

/* Rule 1: without its compute processes a GPU cannot be metered. The other lists are optional. */
bool
nvml_read_processes(struct nvml_reading *n, struct nvml_device *device, int32_t gi, int32_t ci)
{
	if (!nvml_needs(n, add_processes(n, LIST_COMPUTE, device, gi, ci)))
		return false;
	(void)nvml_has(n, add_processes(n, LIST_GRAPHICS, device, gi, ci));
	(void)nvml_has(n, add_processes(n, LIST_MPS, device, gi, ci));
	return n->fault == NVST_SUCCESS;
}

static void
ask_name(struct nvml_reading *n, struct known_name *k)
{
	char name[256] = "";
	const char *base;

	k->known = nvml_has(n, NVML_CALL(n->s, nvmlSystemGetProcessName, k->pid, name, sizeof(name)));
	name[sizeof(name) - 1] = '\0';
	base = strrchr(name, '/');
	k->server = k->known && strcmp(base ? base + 1 : name, MPS_SERVER) == 0;
}

static int
name_order(const struct known_name *k, const struct gpu_process *p)
{
	if (k->gi != p->gi)
		return k->gi < p->gi ? -1 : 1;
	if (k->ci != p->ci)
		return k->ci < p->ci ? -1 : 1;
	return k->pid < p->pid ? -1 : k->pid > p->pid;
}

/* The name of a process is read once, when it appears: both lists are sorted alike and walked together. A PID that left the GPU may come
 * back as another process. */
static void
update_names(struct nvml_reading *n)
{
	struct known_gpu *g = n->gpu;
	const struct gpu_reading *r = n->r;
	struct known_name *names;
	size_t at = 0;

	if (g->name_count + r->process_count > g->name_cap) {
		g->name_cap = 2 * (g->name_count + r->process_count);
		g->names = mem_grow(g->names, g->name_cap, sizeof(*g->names));
	}
	names = g->names + g->name_count; /* the new list is built behind the old one, then moved to the front */
	for (size_t i = 0; i < r->process_count; i++) {
		const struct gpu_process *p = &r->processes[i];

		while (at < g->name_count && name_order(&g->names[at], p) < 0)
			at++;
		names[i] = (struct known_name){.pid = p->pid, .gi = p->gi, .ci = p->ci};
		if (at < g->name_count && name_order(&g->names[at], p) == 0)
			names[i] = g->names[at];
		if (!names[i].known)
			ask_name(n, &names[i]);
	}
	if (r->process_count == 0) {
		g->name_count = 0;
		return;
	}
	memmove(g->names, names, r->process_count * sizeof(*names));
	g->name_count = r->process_count;
}

/* Rule 4. A process chooses its own name, so only one that looks like a server, small and without activity, is left out. */
void
nvml_drop_mps_servers(struct nvml_reading *n)
{
	struct gpu_reading *r = n->r;
	size_t kept = 0;

	update_names(n);
	for (size_t i = 0; i < r->process_count; i++) {
		struct gpu_process p = r->processes[i];
		bool quiet = p.sm_ppm <= 0 && p.memory_bytes < MPS_SERVER_MAX_BYTES;

		if (!p.mps_client && quiet && n->gpu->names[i].server)
			r->mps = true;
		else
			r->processes[kept++] = p;
	}
	r->process_count = kept;
}

bool
nvml_was_mps_server(const struct known_gpu *g, uint32_t pid)
{
	for (size_t i = 0; i < g->name_count; i++)
		if (g->names[i].pid == pid)
			return g->names[i].server;
	return false;
}

/* ---- activity ---- */

/* The common part of both layouts of a sample. */
struct sample {
	uint32_t pid, sm;
	uint64_t timestamp_us;
};

#define SAMPLE_ROOM sizeof(struct nvml_process_utilization)
static_assert(SAMPLE_ROOM >= sizeof(struct nvml_process_sample), "samples of both layouts fit");

static struct sample
sample_at(const struct known_gpu *g, bool is_new, uint32_t i)
{
	if (is_new) {
		const struct nvml_process_utilization *s = (const struct nvml_process_utilization *)g->samples + i;

		return (struct sample){.pid = s->pid, .sm = s->sm, .timestamp_us = s->timestamp_us};
	}
	const struct nvml_process_sample *s = (const struct nvml_process_sample *)g->samples + i;

	return (struct sample){.pid = s->pid, .sm = s->sm, .timestamp_us = s->timestamp_us};
}

/* Drivers from 550 on have the new call, earlier ones the old one. */
static int
sample_round(struct nvml_reading *n, bool is_new, uint32_t *count)
{
	struct known_gpu *g = n->gpu;
	struct nvml_processes_utilization info = {.version = NVML_PROCESSES_UTILIZATION_V1,
	                                          .count = *count,
	                                          .last_seen_us = g->last_seen_us,
	                                          .entries = g->samples};
	int status;

	if (!is_new)
		return NVML_ASK(n, ASK_UTILIZATION, nvmlDeviceGetProcessUtilization, n->device, g->samples, count,
		                g->last_seen_us);
	status = NVML_ASK(n, ASK_UTILIZATION_INFO, nvmlDeviceGetProcessesUtilizationInfo, n->device, &info);
	*count = info.count;
	return status;
}

/* The samples since the last reading; NVST_NOT_FOUND: none. */
static int
sample_call(struct nvml_reading *n, bool is_new, uint32_t *ret_count)
{
	struct known_gpu *g = n->gpu;

	if (!g->samples) {
		g->sample_cap = SAMPLE_FIRST_CAP;
		g->samples = mem_array(g->sample_cap, SAMPLE_ROOM);
	}
	for (int round = 0; round < 8; round++) {
		uint32_t count = g->sample_cap;
		int status;

		memset(g->samples, 0, g->sample_cap * SAMPLE_ROOM);
		status = sample_round(n, is_new, &count);
		*ret_count = count;
		if (status != NVST_INSUFFICIENT_SIZE)
			return status == NVST_SUCCESS && count > g->sample_cap ? NVST_UNKNOWN : status;
		if (count <= g->sample_cap)
			count = g->sample_cap * 2;
		if (count > 4 * GPU_PROCESS_MAX)
			return status;
		g->samples = mem_grow(g->samples, count, SAMPLE_ROOM);
		g->sample_cap = count;
	}
	return NVST_INSUFFICIENT_SIZE;
}

/* The stamps are wall time: after a step back of the clock no sample is newer than the last one seen, and a busy GPU would
 * look idle until time has caught up. After a few readings of an active GPU without active processes the stamp is reset. */
static bool
is_silent(struct known_gpu *known, const struct gpu_reading *r)
{
	if (r->active_ppm <= 0 || r->process_count == 0)
		return false;
	if (++known->silent_readings >= SILENT_READINGS_MAX)
		known->last_seen_us = 0;
	return true;
}

/* A process that was active and is in no list any more. */
static void
note_sampled(struct gpu_reading *r, const struct sample *sample)
{
	for (size_t i = 0; i < r->sampled_count; i++)
		if (r->sampled[i] == sample->pid)
			return;
	if (nvml_percent_to_ppm(sample->sm) > 0 && r->sampled_count < GPU_SAMPLED_MAX)
		r->sampled[r->sampled_count++] = sample->pid;
}

static void
take_samples(struct known_gpu *known, struct gpu_reading *r, bool is_new, uint32_t count)
{
	uint64_t newest = known->last_seen_us;

	for (uint32_t i = 0; i < count; i++) {
		struct sample sample = sample_at(known, is_new, i);
		const struct gpu_process *p;

		if (sample.pid == 0 || sample.timestamp_us <= known->last_seen_us)
			continue;
		if (sample.timestamp_us > newest)
			newest = sample.timestamp_us;
		p = gpu_reading_find(r, sample.pid, -1, -1);
		/* ABSENT, the answer for noise, is below zero; of several samples of one process the highest stays */
		if (p && nvml_percent_to_ppm(sample.sm) > p->sm_ppm)
			r->processes[p - r->processes].sm_ppm = nvml_percent_to_ppm(sample.sm);
		if (!p)
			note_sampled(r, &sample);
	}
	known->last_seen_us = newest;
}

/* Without a new sample the stamp advances with time: otherwise the activity of a process that wakes would be averaged over all the time
 * that the GPU was idle. */
static void
move_stamp(struct known_gpu *known, uint64_t before_us, int64_t boot_ns)
{
	if (known->last_seen_us == before_us && before_us != 0 && boot_ns > known->last_seen_boot_ns)
		known->last_seen_us += (uint64_t)((boot_ns - known->last_seen_boot_ns) / NS_PER_US);
	known->last_seen_boot_ns = boot_ns;
}

/* Rule 5. The driver pads its array with entries without a PID, and may repeat entries that were there before. */
void
nvml_read_activity(struct nvml_reading *n)
{
	struct known_gpu *known = n->gpu;
	struct gpu_reading *r = n->r;
	uint64_t before_us;
	uint32_t count = 0;
	bool is_new = true;
	int status = sample_call(n, is_new, &count);

	if (status != NVST_SUCCESS && status != NVST_NOT_FOUND) {
		is_new = false;
		(void)nvml_has(n, status);
		status = sample_call(n, is_new, &count);
	}
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
	before_us = known->last_seen_us;
	take_samples(known, r, is_new, count);
	move_stamp(known, before_us, n->boot_ns);
}
