/* exporter/gpu_source.h - where readings of GPUs come from: one small interface, NVML behind it, others later.
 *
 * A value that the driver does not have is ABSENT, never zero. */
#ifndef TOLLGATE_EXPORTER_GPU_SOURCE_H
#define TOLLGATE_EXPORTER_GPU_SOURCE_H

#include "common/err.h"
#include "common/units.h"

#define ABSENT INT64_C(-1)
#define GPU_MAX 64
#define GPU_INSTANCE_MAX 56  /* compute instances of one GPU */
#define GPU_PROCESS_MAX 4096 /* of one GPU */
#define GPU_TEXT 96

struct gpu_process {
	uint32_t pid;   /* host PID */
	int32_t gi, ci; /* -1: the whole GPU */
	int64_t memory_bytes;
	int64_t sm_ppm; /* activity since the previous reading, 0..1000000 */
	bool mps_client;
};

struct gpu_instance {
	char uuid[GPU_TEXT];
	char profile[GPU_TEXT]; /* "3g.40gb" */
	int32_t gi, ci;
	int32_t compute_slices, memory_slices, gi_compute_slices;
	int64_t units;
	int64_t memory_bytes, memory_used_bytes;
	int64_t active_ppm; /* engine-active time since the previous reading */
};

struct gpu_reading {
	char uuid[GPU_TEXT];
	char model[GPU_TEXT];
	char pci[32];
	int32_t index;
	bool down; /* lost, in error, or not answering; the fields below are then ABSENT or empty */
	char down_reason[GPU_TEXT];
	bool mig;                                  /* MIG mode is on */
	int64_t units_unallocated, units_stranded; /* of a partitioned GPU: slices in no instance */
	int64_t active_ppm;                        /* engine-active time, from utilisation */
	int64_t memory_active_ppm;
	int64_t memory_bytes, memory_used_bytes;
	int64_t power_mw, energy_mj, temperature_c;
	bool mps; /* an MPS server is on it */
	struct gpu_instance instances[GPU_INSTANCE_MAX];
	size_t instance_count;
	struct gpu_process *processes; /* owned by the snapshot; MPS servers left out, one entry per PID and instance */
	size_t process_count, process_cap;
	bool process_activity; /* sm_ppm of the processes is measured */
};

struct gpu_snapshot {
	int64_t boot_ns; /* when the reading began */
	struct gpu_reading *gpus;
	size_t count, cap; /* readings up to cap keep their process memory */
};
struct gpu_snapshot *gpu_snapshot_new(void);
void gpu_snapshot_free(struct gpu_snapshot *s);
DEFINE_OWNED(gpu_snapshot, struct gpu_snapshot)

/* For sources: filling a snapshot without allocating, once it has grown to what the node has. */
void gpu_snapshot_resize(struct gpu_snapshot *s, size_t count); /* at most GPU_MAX */
void gpu_reading_clear(struct gpu_reading *r);                  /* all ABSENT or empty */
/* Keeps who the GPU is, drops what was read of it. */
void gpu_reading_down(struct gpu_reading *r, const char *fmt, ...) PRINTF_LIKE(2, 3);
/* The entry of a process, made if there is none: the union of several lists. NULL beyond GPU_PROCESS_MAX. */
struct gpu_process *gpu_reading_process(struct gpu_reading *r, uint32_t pid, int32_t gi, int32_t ci);
const struct gpu_process *gpu_reading_find(const struct gpu_reading *r, uint32_t pid, int32_t gi, int32_t ci);
/* Weighs the instances of a partitioned GPU by their slices, and what is left of it, so that all adds up to 5040. Compute
 * slices of a GPU instance that are in no compute instance are unallocated. ERR_INVALID: more slices than the GPU has. */
MUST_CHECK bool gpu_reading_weigh(struct gpu_reading *r, const struct mig_geometry *g, struct err *err);

struct gpu_source;
struct gpu_source_ops {
	const char *name;
	/* Static facts for the log and tollgate_exporter_source_info: driver and library version. */
	const char *(*driver_version)(const struct gpu_source *s); /* empty when not told */
	const char *(*library_version)(const struct gpu_source *s);
	bool (*simulated)(const struct gpu_source *s);
	/* Fills a snapshot kept from tick to tick. A GPU that fails is in it as down; only a failing library is an error
	 * (ERR_RETRY: try to open again later). */
	MUST_CHECK bool (*read)(struct gpu_source *s, int64_t boot_ns, struct gpu_snapshot *into, struct err *err);
	void (*close)(struct gpu_source *s);
};
struct gpu_source {
	const struct gpu_source_ops *ops;
};

/* Opens libnvidia-ml.so.1, or the library at `path`. ERR_MISSING: no library or no driver, with what to do about it. */
MUST_CHECK bool nvml_open(const char *path, struct gpu_source **ret, struct err *err);
void gpu_source_free(struct gpu_source *s);
DEFINE_OWNED(gpu_source, struct gpu_source)

/* Whether a folder like /sys/bus/pci/devices shows a device of NVIDIA; true when it cannot be read. */
bool pci_has_nvidia(const char *devices_dir);

#endif
