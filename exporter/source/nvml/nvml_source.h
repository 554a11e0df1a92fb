/* exporter/source/nvml/nvml_source.h - what the files of the NVML source share: nvml.c (the library), nvml_node.c (who is there, events),
 * nvml_gpu.c (one GPU, its instances), nvml_board.c (its board), nvml_gpm.c (activity by counters), nvml_process.c (who is on
 * it), nvml_accounting.c (who ended).
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
 *     is copied under the lock, the rest of a GPU belongs to its reading
 *  8. what a GPU lacks is asked again rarely, what changes slowly is asked in turn
 *  9. a process that ended is told once, by the driver's accounting
 * 10. the indexes of MIG devices have holes: a slot that answers "not found" or "invalid argument" is one, and the other instances of
 *     the GPU are read
 * 11. the counters of an instance are sampled by its GPU's handle and its id; where the driver does not have that call, or refuses it,
 *     by the instance's own handle. The two samples that are compared are taken in the same way */
#ifndef TOLLGATE_NVML_SOURCE_H
#define TOLLGATE_NVML_SOURCE_H

#include <pthread.h>

#include "common/base/idmap.h"
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

/* What a GPU may lack, by bit in struct known_gpu. */
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

/* The last two samples of something, and what happened between them; millionths, or bytes per second. */
enum gpm_value { GPM_ENGINE, GPM_SM, GPM_OCCUPANCY, GPM_TENSOR, GPM_DRAM, GPM_PCIE_TX, GPM_PCIE_RX, GPM_VALUES };
struct gpm_pair {
	struct nvml_gpm_sample *samples[2];
	unsigned newest;
	bool begun;     /* the newest is one */
	bool by_handle; /* rule 11: how the newest was taken */
	int64_t boot_ns;
	int64_t values[GPM_VALUES];
};

struct known_instance {
	char name[NVML_TEXT_SIZE];  /* with the UUID it tells a new instance: old drivers made UUIDs from gi and ci */
	struct nvml_device *device; /* of the reading under way */
	struct gpu_instance instance;
	struct gpm_pair gpm;
};

/* A process in the driver's accounting. */
struct accounted {
	uint32_t pid;
	bool ended;
	uint64_t start_us; /* of the one that was told; 0: none was */
};
struct accounting {
	bool on, begun;
	uint32_t *pids; /* the list of the reading under way */
	uint32_t pid_cap;
	struct accounted *entries; /* in the list's order */
	uint32_t count;
	uint32_t next;       /* of the ended ones to ask again, before the remainder */
	struct idmap places; /* of PIDs in entries */
};

/* Whether a PID is an MPS server, remembered while the process stays on the GPU. */
struct known_name {
	uint32_t pid;
	int32_t gi, ci;
	bool told, server;
};

/* What the list tells of a GPU to its next reading. */
struct told_gpu {
	struct nvml_device *device; /* NULL: no handle, and down_reason says why */
	char down_reason[GPU_TEXT];
	int32_t index;
	int64_t boot_ns;
	bool seen; /* by the list under way */
};

/* What the driver's events have told of a GPU. */
struct gpu_events {
	struct gpu_xid xids[GPU_XID_MAX];
	size_t xid_count;
	unsigned mig_changes; /* of its partition */
};

/* A GPU ever seen: what does not change while it keeps its UUID, what it is told, and what its readings keep. */
struct known_gpu {
	char uuid[GPU_TEXT], model[GPU_TEXT], pci[32];
	struct told_gpu told;                          /* under the lock */
	struct gpu_events events;                      /* under the lock */
	struct nvml_device *registered;                /* the handle whose events are in the set; of the list alone */
	uint64_t lacking;                              /* rule 8: bits by enum nvml_ask */
	int64_t lacking_boot_ns;                       /* since when they are collected */
	bool mig;                                      /* at the last reading */
	unsigned mig_changes;                          /* that the last reading knew of */
	bool slow_begun;                               /* rule 8 */
	size_t slow_next;                              /* whose turn it is */
	int64_t slow_boot_ns;                          /* of the last turn */
	struct gpu_board slow;                         /* what the turns brought */
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
	pthread_mutex_t lock;          /* rule 7: on gpus, gpu_count, and what each GPU is told */
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

static inline bool
nvml_lacks(const struct nvml_reading *n, unsigned what)
{
	return n->gpu->lacking >> what & 1;
}

static inline int
nvml_note(struct nvml_reading *n, unsigned what, int status)
{
	if (status == NVST_NOT_SUPPORTED || status == NVST_FUNCTION_NOT_FOUND)
		n->gpu->lacking |= UINT64_C(1) << what;
	return status;
}

/* Rule 8: a call that is left out while the GPU is known to lack its answer. */
#define NVML_ASK(n, what, name, ...) \
	(nvml_lacks((n), (what)) ? NVST_NOT_SUPPORTED : nvml_note((n), (what), NVML_CALL((n)->s, name, __VA_ARGS__)))

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

/* Of a GPU or of an instance. Version 1 does not tell what is reserved. */
bool nvml_read_memory(struct nvml_reading *n, struct nvml_device *device, struct nvml_memory *ret);
void nvml_read_board(struct nvml_reading *n);
void nvml_read_slow(struct nvml_reading *n); /* once GPM has been read: it may have the answer */

/* Brings p->values up to date, for a whole GPU (gi -1) or a GPU instance; each is ABSENT until the second time. `mig`: the handle to try
 * by rule 11, NULL: none. False: the GPU has no GPM. */
bool nvml_read_gpm(struct nvml_reading *n, struct gpm_pair *p, int32_t gi, struct nvml_device *mig);
void nvml_free_gpm(const struct nvml_source *s, struct known_gpu *g);

/* Adds the processes of a GPU, or of the instance that gi and ci tell. False: the fault is set. */
bool nvml_read_processes(struct nvml_reading *n, struct nvml_device *device, int32_t gi, int32_t ci);
/* The activity of the processes of a whole GPU. */
void nvml_read_activity(struct nvml_reading *n);
/* Takes MPS servers out; once all processes and their activity are there. */
void nvml_drop_mps_servers(struct nvml_reading *n);

bool nvml_was_mps_server(const struct known_gpu *g, uint32_t pid); /* at the previous reading of a whole GPU */

/* The processes of a whole GPU that ended, once the running ones are there. */
void nvml_read_exits(struct nvml_reading *n);
void nvml_free_accounting(struct accounting *a);
void nvml_enable_accounting(const struct nvml_source *s); /* where that is wanted */

#endif
