/* exporter/nvml_source.h - what the two files of the NVML source share: nvml.c (library and node) and nvml_gpu.c (one GPU).
 *
 * Rules, by number in their code:
 *  1. what a driver does not have is ABSENT; a GPU that cannot be read is down with the reason; only a library that lost
 *     its driver fails the whole reading
 *  2. GPUs and MIG instances are known by UUID: indexes move and handles are reused
 *  3. the size of a process entry is derived from what the driver wrote, because drivers 535.43 to 535.86 changed it unsaid
 *  4. compute, graphics and MPS lists are united by PID; an MPS server is not a holder, its clients are
 *  5. per-process activity covers the time since the stamp of the previous reading; no sample means idle; a value above
 *     100 % is noise
 *  6. on a partitioned GPU utilisation is not asked for: the driver has it for whole GPUs only */
#ifndef TOLLGATE_EXPORTER_NVML_SOURCE_H
#define TOLLGATE_EXPORTER_NVML_SOURCE_H

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

/* What does not change while a GPU keeps its UUID, and what the next reading needs of this one. */
struct known_gpu {
	char uuid[GPU_TEXT], model[GPU_TEXT], pci[32];
	int32_t index;
	bool seen;                                     /* in the reading under way */
	uint64_t last_seen_us;                         /* rule 5 */
	int silent_readings;                           /* in a row: the GPU was active, yet no process had a sample */
	struct known_instance slots[GPU_INSTANCE_MAX]; /* by MIG index; an empty uuid: none */
	struct known_name names[16];
	size_t name_count;
};

struct nvml_source {
	struct gpu_source base;
	void *library;
	bool initialised, simulated;
	struct nvml_api api;
	nvml_list_function *lists[LIST_KINDS][LIST_VERSIONS]; /* newest first */
	size_t list_version[LIST_KINDS];                      /* the newest that the driver has */
	char driver_version[NVML_VERSION_SIZE], library_version[NVML_VERSION_SIZE];
	struct known_gpu *gpus[GPU_MAX];
	size_t gpu_count;
	int fault;              /* of the GPU being read: a status that makes it, or the library, unusable */
	unsigned char *entries; /* entry_cap entries of any size a driver may use */
	uint32_t entry_cap;
	struct nvml_process_sample *samples;
	uint32_t sample_cap;
};

#define NVML_CALL(s, name, ...) ((s)->api.name ? (s)->api.name(__VA_ARGS__) : NVST_FUNCTION_NOT_FOUND)

/* Rule 1: whether there is a value; statuses that concern more than one value become the fault. */
static inline bool
nvml_has(struct nvml_source *s, int status)
{
	if (status == NVST_UNINITIALIZED || status == NVST_GPU_IS_LOST || status == NVST_RESET_REQUIRED)
		s->fault = status;
	return status == NVST_SUCCESS;
}

/* A call without which a GPU cannot be metered: whatever it answers but success is the GPU's fault. */
static inline bool
nvml_needs(struct nvml_source *s, int status)
{
	if (s->fault == NVST_SUCCESS)
		s->fault = status;
	return nvml_has(s, status);
}

const char *nvml_status_text(const struct nvml_source *s, int status);

/* Reads a GPU into r, which says who it is already. Afterwards s->fault tells whether the library itself failed. */
void nvml_read_gpu(struct nvml_source *s, struct nvml_device *device, struct known_gpu *known, struct gpu_reading *r);

#endif
