/* exporter/source/nvml/nvml_source.h - inside the NVML source: its state and the functions that its files share. nvml.c has the library, the
 * list of GPUs and events; nvml_gpu.c one GPU; nvml_gpm.c activity counters; nvml_process.c processes; nvml_accounting.c ended processes.
 *
 * Rules, by number in the code:
 *  1. a value that a driver does not have is ABSENT; a GPU that cannot be read is down with the reason; only a library that lost
 *     its driver fails the whole reading
 *  2. GPUs and MIG instances are identified by UUID: indexes move and handles are reused
 *  3. the size of a process entry is derived from what the driver wrote, because drivers 535.43 to 535.86 changed it without a new
 *     version number
 *  4. compute, graphics and MPS lists are united by PID; an MPS server is not a holder, its clients are
 *  5. per-process activity covers the time since the stamp of the previous reading; no sample means idle; a value above
 *     100 % is noise
 *  6. utilisation of a partitioned GPU is not read: the driver has it for whole GPUs only
 *  7. GPUs are read in several threads, each GPU in one at a time, while the list may be renewed: the list's result for a GPU is copied
 *     under the lock, the rest of a GPU's state belongs to its reading
 *  8. unsupported values are tried again rarely, slowly changing values are read in turn
 *  9. a process that ended is reported once, from the driver's accounting
 * 10. the indexes of MIG devices have holes: a slot that answers "not found" or "invalid argument" is empty, and the other instances of
 *     the GPU are read
 * 11. the counters of an instance are sampled by its GPU's handle and its id; where the driver does not have that call, or refuses it,
 *     by the instance's own handle. The two samples that are compared are taken in the same way */
#ifndef TOLLGATE_NVML_SOURCE_H
#define TOLLGATE_NVML_SOURCE_H

#include <pthread.h>

#include "common/base/hash.h"
#include "exporter/source/gpu_source.h"
#include "exporter/source/nvml/nvml_abi.h"

struct nvml_api {
#define FIELD(ret, name, args) ret(*name) args;
	NVML_FUNCTIONS(FIELD, FIELD)
#undef FIELD
};

typedef int nvml_list_function(struct nvml_device *device, uint32_t *count, void *entries);

enum nvml_list { LIST_COMPUTE, LIST_GRAPHICS, LIST_MPS, LIST_KINDS };
#define LIST_VERSIONS 3

/* Calls that a GPU may not support, by bit in known_gpu.unsupported. */
enum nvml_ask {
	ASK_MEMORY_V2,
	ASK_POWER,
	ASK_ENERGY,
	ASK_TEMPERATURE,
	ASK_CLOCK, /* and the three after it, by enum nvml_clock */
	ASK_EVENT_REASONS = ASK_CLOCK + 4,
	ASK_THROTTLE_REASONS,
	ASK_FIELDS,
	ASK_FIELD_MEMORY_TEMPERATURE,
	ASK_FIELD_NVLINK_TX,
	ASK_FIELD_NVLINK_RX,
	ASK_POWER_LIMIT,
	ASK_ECC,
	ASK_REMAPPED_ROWS,
	ASK_PCIE_GENERATION,
	ASK_PCIE_WIDTH,
	ASK_PCIE_REPLAYS,
	ASK_PCIE_TX,
	ASK_PCIE_RX,
	ASK_RATES,
	ASK_ENCODER,
	ASK_DECODER,
	ASK_UTILIZATION_INFO,
	ASK_UTILIZATION,
	ASK_ACCOUNTING,
	ASK_ACCOUNTING_V2,
	ASK_GPM_SUPPORT,
	ASK_GPM,
	ASK_GPM_MIG,
	ASK_GPM_MIG_HANDLE,
};

/* The last two samples of a device, and the values between them: millionths, or bytes per second. */
enum gpm_value { GPM_ENGINE, GPM_SM, GPM_OCCUPANCY, GPM_TENSOR, GPM_DRAM, GPM_PCIE_TX, GPM_PCIE_RX, GPM_VALUES };
struct gpm_pair {
	struct nvml_gpm_sample *samples[2];
	unsigned newest;
	bool begun;     /* the newest sample is valid */
	bool by_handle; /* rule 11: how the newest was taken */
	int64_t boot_ns;
	int64_t values[GPM_VALUES];
};

struct known_instance {
	char name
		[NVML_TEXT_SIZE]; /* compared with the UUID to detect a new instance: old drivers made UUIDs from gi and ci */
	struct nvml_device *device; /* of the current reading */
	struct gpu_instance instance;
	struct gpm_pair gpm;
};

/* A process in the driver's accounting. */
struct accounted {
	uint32_t pid;
	bool ended;
	uint64_t start_us; /* of the last reported exit; 0: none */
};
struct accounting {
	bool on, begun;
	uint32_t *pids; /* the list of the current reading */
	uint32_t pid_cap;
	struct accounted *entries; /* in the list's order */
	uint32_t count;
	uint32_t next;      /* position (modulo count) of the next ended entry to query again */
	struct hash places; /* of PIDs in entries */
};

/* Whether a PID is an MPS server, remembered while the process stays on the GPU. */
struct known_name {
	uint32_t pid;
	int32_t gi, ci;
	bool known, server;
};

/* The list's result for a GPU, used by its next reading. */
struct listed_gpu {
	struct nvml_device *device; /* NULL: no handle, and down_reason says why */
	enum gpu_fault fault;
	char down_reason[GPU_TEXT];
	int32_t index;
	int64_t boot_ns;
	bool seen; /* in the current list */
};

/* Events of a GPU since the source was opened. */
struct gpu_events {
	struct gpu_xid xids[GPU_XID_MAX];
	size_t xid_count;
	unsigned mig_changes; /* of its partition */
};

/* A GPU that was ever listed: its constants, the list's result, and the state of its readings. */
struct known_gpu {
	char uuid[GPU_TEXT], model[GPU_TEXT], pci[32];
	struct listed_gpu listed;                      /* under the lock */
	struct gpu_events events;                      /* under the lock */
	struct nvml_device *registered;                /* the handle whose events are in the set; of the list alone */
	uint64_t unsupported;                          /* rule 8: bits by enum nvml_ask */
	int64_t unsupported_boot_ns;                   /* when they were last cleared */
	bool mig;                                      /* at the last reading */
	unsigned mig_changes;                          /* at the last reading */
	bool slow_begun;                               /* rule 8 */
	size_t slow_next;                              /* the next group */
	int64_t slow_boot_ns;                          /* of the last turn */
	struct gpu_board slow;                         /* values of the last turns */
	size_t list_version[LIST_KINDS];               /* the newest that the driver has */
	uint64_t last_seen_us;                         /* rule 5 */
	int64_t last_seen_boot_ns;                     /* of the reading that it is from */
	int silent_readings;                           /* in a row: the GPU was active, yet no process had a sample */
	struct known_instance slots[GPU_INSTANCE_MAX]; /* by MIG index; an empty uuid: none */
	struct gpm_pair gpm_whole;
	struct nvml_gpm_metrics *gpm_metrics; /* NULL: no GPM */
	struct accounting accounting;         /* rule 9 */
	struct known_name *names;             /* of the last reading, in its order */
	size_t name_count, name_cap;
	unsigned char *entries; /* entry_cap entries of any size a driver may use */
	uint32_t entry_cap;
	void *samples; /* sample_cap samples of either layout */
	uint32_t sample_cap;
};

struct nvml_source {
	struct gpu_source base;
	void *library;
	bool initialised, simulated, enable_accounting;
	struct nvml_api api;
	nvml_list_function *lists[LIST_KINDS][LIST_VERSIONS]; /* newest first */
	char driver_version[NVML_VERSION_SIZE], library_version[NVML_VERSION_SIZE];
	struct nvml_event_set *events; /* NULL: none */
	pthread_mutex_t lock;          /* rule 7: of gpus, gpu_count, and each GPU's listed and events */
	struct known_gpu *gpus[GPU_MAX];
	size_t gpu_count;
};

/* One reading of one GPU. */
struct nvml_reading {
	struct nvml_source *s;
	struct known_gpu *gpu;
	size_t place;
	struct nvml_device *device;
	int64_t boot_ns;
	struct gpu_reading *r;
	int fault; /* a status that makes the GPU, or the library, unusable */
};

#define NVML_CALL(s, name, ...) ((s)->api.name ? (s)->api.name(__VA_ARGS__) : NVST_FUNCTION_NOT_FOUND)

/* Rule 1: true when there is a value; a status that concerns the GPU or the library becomes the fault. */
static inline bool
nvml_has(struct nvml_reading *n, int status)
{
	if (status == NVST_UNINITIALIZED || status == NVST_GPU_IS_LOST || status == NVST_RESET_REQUIRED)
		n->fault = status;
	return status == NVST_SUCCESS;
}

/* For a call that is required to meter a GPU: every status but success becomes the fault. */
static inline bool
nvml_needs(struct nvml_reading *n, int status)
{
	if (n->fault == NVST_SUCCESS)
		n->fault = status;
	return nvml_has(n, status);
}

static inline bool
nvml_is_unsupported(const struct nvml_reading *n, unsigned what)
{
	return n->gpu->unsupported >> what & 1;
}

static inline int
nvml_note(struct nvml_reading *n, unsigned what, int status)
{
	if (status == NVST_NOT_SUPPORTED || status == NVST_FUNCTION_NOT_FOUND)
		n->gpu->unsupported |= UINT64_C(1) << what;
	return status;
}

/* Rule 8: a call that is skipped while the GPU is known not to support it. */
#define NVML_ASK(n, what, name, ...)                           \
	(nvml_is_unsupported((n), (what)) ? NVST_NOT_SUPPORTED \
	                                  : nvml_note((n), (what), NVML_CALL((n)->s, name, __VA_ARGS__)))

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

/* Reads a GPU into n->r, whose identity is filled in. On failure n->fault is set. */
void nvml_read_gpu(struct nvml_reading *n);

/* Updates p->values of a whole GPU (gi -1) or a GPU instance; they are ABSENT until the second call. `mig`: the handle to try by rule 11,
 * NULL: none. False: the GPU has no GPM. */
bool nvml_read_gpm(struct nvml_reading *n, struct gpm_pair *p, int32_t gi, struct nvml_device *mig);
void nvml_free_gpm(const struct nvml_source *s, struct known_gpu *g);

/* Adds the processes of a whole GPU (gi and ci -1) or of an instance. False: the fault is set. */
bool nvml_read_processes(struct nvml_reading *n, struct nvml_device *device, int32_t gi, int32_t ci);
/* The activity of the processes of a whole GPU. */
void nvml_read_activity(struct nvml_reading *n);
/* Removes MPS servers; called after all processes and their activity were read. */
void nvml_drop_mps_servers(struct nvml_reading *n);

bool nvml_was_mps_server(const struct known_gpu *g, uint32_t pid); /* at the previous reading of a whole GPU */

/* Adds the processes of a whole GPU that ended; called after the running ones were read. */
void nvml_read_exits(struct nvml_reading *n);
void nvml_free_accounting(struct accounting *a);
void nvml_enable_accounting(const struct nvml_source *s); /* when the option asks for it */

#endif
