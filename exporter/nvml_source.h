/* exporter/nvml_source.h - what the files of the NVML source share: nvml.c (the library), nvml_node.c (who is there),
 * nvml_gpu.c (one GPU, its instances), nvml_process.c (who is on it).
 *
 * Rules, by number in their code:
 *  1. what a driver does not have is ABSENT; a GPU that cannot be read is down with the reason; only a library that lost
 *     its driver fails the whole reading
 *  2. GPUs and MIG instances are known by UUID: indexes move and handles are reused
 *  3. the size of a process entry is derived from what the driver wrote, because drivers 535.43 to 535.86 changed it unsaid
 *  4. compute, graphics and MPS lists are united by PID; an MPS server is not a holder, its clients are
 *  5. per-process activity covers the time since the stamp of the previous reading; no sample means idle; a value above
 *     100 % is noise
 *  6. on a partitioned GPU utilisation is not asked for: the driver has it for whole GPUs only
 *  7. GPUs are read in several threads, each GPU in one at a time, while the list may go on: what the list tells a reading
 *     is copied under the lock, the rest of a GPU belongs to its reading */
#ifndef TOLLGATE_EXPORTER_NVML_SOURCE_H
#define TOLLGATE_EXPORTER_NVML_SOURCE_H

#include <pthread.h>

#include "exporter/gpu_source.h"
#include "exporter/nvml_abi.h"

struct nvml_api {
#define FIELD(ret, name, args) ret(*name) args;
	NVML_FUNCTIONS(FIELD, FIELD)
#undef FIELD
};

typedef int nvml_list_function(struct nvml_device *device, uint32_t *count, void *entries);

enum nvml_list { LIST_COMPUTE, LIST_GRAPHICS, LIST_MPS, LIST_KINDS };
#define LIST_VERSIONS 3

struct known_instance {
	char name[NVML_TEXT_SIZE]; /* with the UUID it tells a new instance: old drivers made UUIDs from gi and ci */
	struct gpu_instance instance;
};

/* Whether a PID is an MPS server, remembered while the process stays on the GPU. */
struct known_name {
	uint32_t pid;
	bool server, seen;
};

/* What the list tells of a GPU to its next reading. */
struct told_gpu {
	struct nvml_device *device; /* NULL: no handle, and down_reason says why */
	char down_reason[GPU_TEXT];
	int32_t index;
	int64_t boot_ns;
	bool seen; /* by the list under way */
};

/* A GPU ever seen: what does not change while it keeps its UUID, what it is told, and what its readings keep. */
struct known_gpu {
	char uuid[GPU_TEXT], model[GPU_TEXT], pci[32];
	struct told_gpu told;                          /* under the lock */
	size_t list_version[LIST_KINDS];               /* the newest that the driver has */
	uint64_t last_seen_us;                         /* rule 5 */
	int silent_readings;                           /* in a row: the GPU was active, yet no process had a sample */
	struct known_instance slots[GPU_INSTANCE_MAX]; /* by MIG index; an empty uuid: none */
	struct known_name names[16];
	size_t name_count;
	unsigned char *entries; /* entry_cap entries of any size a driver may use */
	uint32_t entry_cap;
	struct nvml_process_sample *samples;
	uint32_t sample_cap;
};

struct nvml_source {
	struct gpu_source base;
	void *library;
	bool initialised, simulated;
	struct nvml_api api;
	nvml_list_function *lists[LIST_KINDS][LIST_VERSIONS]; /* newest first */
	char driver_version[NVML_VERSION_SIZE], library_version[NVML_VERSION_SIZE];
	pthread_mutex_t lock; /* rule 7: on gpus, gpu_count and each told_gpu */
	struct known_gpu *gpus[GPU_MAX];
	size_t gpu_count;
};

/* One reading of one GPU. */
struct nvml_reading {
	struct nvml_source *s;
	struct known_gpu *gpu;
	struct nvml_device *device;
	int64_t boot_ns;
	struct gpu_reading *r;
	int fault; /* a status that makes the GPU, or the library, unusable */
};

#define NVML_CALL(s, name, ...) ((s)->api.name ? (s)->api.name(__VA_ARGS__) : NVST_FUNCTION_NOT_FOUND)

/* Rule 1: whether there is a value; statuses that concern more than one value become the fault. */
static inline bool
nvml_has(struct nvml_reading *n, int status)
{
	if (status == NVST_UNINITIALIZED || status == NVST_GPU_IS_LOST || status == NVST_RESET_REQUIRED)
		n->fault = status;
	return status == NVST_SUCCESS;
}

/* A call without which a GPU cannot be metered: whatever it answers but success is the GPU's fault. */
static inline bool
nvml_needs(struct nvml_reading *n, int status)
{
	if (n->fault == NVST_SUCCESS)
		n->fault = status;
	return nvml_has(n, status);
}

static inline int64_t
nvml_from_u64(uint64_t value)
{
	return value > INT64_MAX ? ABSENT : (int64_t)value;
}

static inline int64_t
nvml_percent_to_ppm(uint32_t percent)
{
	return percent > 100 ? ABSENT : (int64_t)percent * 10000;
}

const char *nvml_status_text(const struct nvml_source *s, int status);

/* The two halves of a source, for its operations. */
MUST_CHECK bool nvml_list(struct gpu_source *base, int64_t boot_ns, struct gpu_snapshot *into, struct err *err);
void nvml_read(struct gpu_source *base, size_t place, struct gpu_reading *r);

/* Reads a GPU into n->r, which says who it is already. Afterwards n->fault tells whether it failed. */
void nvml_read_gpu(struct nvml_reading *n);

/* Adds the processes of a GPU, or of the instance that gi and ci tell. False: the fault is set. */
bool nvml_read_processes(struct nvml_reading *n, struct nvml_device *device, int32_t gi, int32_t ci);
/* The activity of the processes of a whole GPU. */
void nvml_read_activity(struct nvml_reading *n);
/* Takes MPS servers out; once all processes and their activity are there. */
void nvml_drop_mps_servers(struct nvml_reading *n);

#endif
