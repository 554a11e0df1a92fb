/* exporter/source/gpu_source.h - the interface of a source of GPU readings (NVML, or NVML with DCGM), and the readings themselves.
 *
 * A value that the driver does not have is ABSENT, never zero. */
#ifndef TOLLGATE_GPU_SOURCE_H
#define TOLLGATE_GPU_SOURCE_H

#include "common/base/err.h"
#include "common/base/units.h"

#define ABSENT INT64_C(-1)
#define GPU_MAX 64
#define GPU_INSTANCE_MAX 56  /* compute instances of one GPU */
#define GPU_PROCESS_MAX 4096 /* of one GPU */
#define GPU_EXIT_MAX 4096    /* of one GPU between two readings */
#define GPU_XID_MAX 32       /* kinds of errors of one GPU */
#define GPU_SAMPLED_MAX 64   /* processes of one GPU that only samples show */
#define GPU_TEXT 96
#define GPU_UNNAMED_TEXT 512

struct gpu_process {
	uint32_t pid;   /* host PID */
	int32_t gi, ci; /* -1: the whole GPU */
	int64_t memory_bytes;
	int64_t sm_ppm; /* activity since the previous reading, 0..1000000 */
	bool mps_client;
};

/* A process that ended since the previous reading, from the driver's accounting; the last one of several with the same PID. */
struct gpu_exit {
	uint32_t pid;
	int64_t start_wall_ns, duration_ns;
	int64_t active_ppm; /* of its lifetime */
	int64_t max_memory_bytes;
};

/* Values that only DCGM has: share of time in which each kind of arithmetic was active, and NVLink rates of a whole GPU. */
enum gpu_pipe { GPU_PIPE_FP64, GPU_PIPE_FP32, GPU_PIPE_FP16, GPU_PIPES };
struct gpu_counters {
	bool present; /* false: the other fields are not set */
	int64_t pipe_ppm[GPU_PIPES];
	int64_t nvlink_tx_bytes_per_s, nvlink_rx_bytes_per_s;
};

struct gpu_instance {
	char uuid[GPU_TEXT];
	char profile[GPU_TEXT]; /* "3g.40gb" */
	int32_t gi, ci;
	int32_t compute_slices, memory_slices, gi_compute_slices;
	int32_t placement_start,
		placement_size; /* of its GPU instance, in memory slices; -1: not known, only root may read it */
	int64_t units;
	int64_t memory_bytes, memory_used_bytes;
	int64_t active_ppm; /* engine-active time since the previous reading */
	int64_t sm_active_ppm, sm_occupancy_ppm, tensor_active_ppm, dram_active_ppm;
	struct gpu_counters counters;
};

/* Values of the whole board, also when it is partitioned. */
struct gpu_board {
	int64_t graphics_clock_mhz, sm_clock_mhz, memory_clock_mhz, video_clock_mhz;
	int64_t memory_temperature_c;
	int64_t power_limit_mw;   /* enforced */
	int64_t throttle_reasons; /* NVML's bits */
	int64_t encoder_ppm, decoder_ppm;
	int64_t memory_reserved_bytes, memory_free_bytes;
	int64_t ecc_corrected, ecc_uncorrected; /* errors since the board was made */
	int64_t remapped_corrected, remapped_uncorrected;
	int64_t remap_pending, remap_failed; /* 0 or 1 */
	int64_t pcie_tx_bytes_per_s, pcie_rx_bytes_per_s;
	int64_t pcie_replays, pcie_generation, pcie_width;
	int64_t nvlink_tx_bytes, nvlink_rx_bytes; /* counters over all links */
};

/* Critical errors by NVIDIA's number, counted by a source since it was opened (gpu_xids_accumulate: since the exporter started). Kinds beyond
 * GPU_XID_MAX are counted with code 0. */
struct gpu_xid {
	uint32_t code;
	int64_t count, last_wall_ns;
};

/* Kinds of values that more than one source may have. */
enum gpu_kind {
	GPU_KIND_ACTIVITY, /* of a whole GPU */
	GPU_KIND_MIG_ACTIVITY,
	GPU_KIND_SM_ACTIVE, /* this and those below: of either */
	GPU_KIND_SM_OCCUPANCY,
	GPU_KIND_TENSOR_ACTIVE,
	GPU_KIND_DRAM_ACTIVE,
	GPU_KIND_PCIE,
	GPU_KINDS,
};

/* Why a GPU is down, as far as something is done about it; the words are for people. */
enum gpu_fault {
	GPU_FAULT_NONE, /* it is not down */
	GPU_FAULT_LOST, /* fell off the bus, or is no longer listed */
	GPU_FAULT_RESET_REQUIRED,
	GPU_FAULT_OTHER,
};

struct gpu_reading {
	char uuid[GPU_TEXT];
	char model[GPU_TEXT];
	char pci[32];
	int32_t index;
	struct gpu_xid xids[GPU_XID_MAX];
	size_t xid_count;
	bool silent;       /* the driver did not answer in time, nothing is known; set by the reader, not by sources */
	bool library_lost; /* the library itself failed during this reading: open it again */
	bool down;         /* lost, in error, or not answering; the fields below are then ABSENT or empty */
	enum gpu_fault fault;
	char down_reason[GPU_TEXT];
	bool mig;                                  /* MIG mode is on */
	int64_t units_unallocated, units_stranded; /* of a partitioned GPU: slices in no instance */
	int64_t active_ppm;                        /* engine-active time, from utilisation */
	int64_t memory_active_ppm;
	int64_t memory_bytes, memory_used_bytes;
	int64_t power_mw, energy_mj, temperature_c;
	struct gpu_board board;
	int64_t sm_active_ppm, sm_occupancy_ppm, tensor_active_ppm, dram_active_ppm; /* efficiency, never billed */
	struct gpu_counters counters;
	uint32_t by_dcgm; /* kinds of values that come from DCGM, by bit; the others are NVML's */
	bool mps;         /* an MPS server is on it */
	bool accounting;  /* exits are reported */
	struct gpu_instance instances[GPU_INSTANCE_MAX];
	size_t instance_count;
	struct gpu_process *processes; /* owned by the snapshot; MPS servers left out, one entry per PID and instance */
	size_t process_count, process_cap;
	bool process_activity;  /* sm_ppm of the processes is measured */
	struct gpu_exit *exits; /* owned by the snapshot */
	size_t exit_count, exit_cap;
	uint32_t sampled[GPU_SAMPLED_MAX]; /* PIDs that were active but are in no process list; the first ones */
	size_t sampled_count;
};

struct gpu_snapshot {
	int64_t boot_ns; /* when the reading began */
	struct gpu_reading *gpus;
	size_t count, cap; /* readings up to cap keep the memory of their lists */
	size_t listed;     /* GPUs that the driver lists now */
	/* Listed GPUs that are not in gpus: their UUID is not known, so there is no name to record their time under. */
	size_t unnamed;
	char unnamed_reason[GPU_UNNAMED_TEXT]; /* the first of them by index, with reasons */
};
struct gpu_snapshot *gpu_snapshot_new(void);
void gpu_snapshot_free(struct gpu_snapshot *s);
DEFINE_OWNED(gpu_snapshot, struct gpu_snapshot)

/* For sources: these reuse memory, so that a snapshot stops allocating once it has the size of the node. */
void gpu_snapshot_resize(struct gpu_snapshot *s, size_t count); /* at most GPU_MAX */
void gpu_reading_clear(struct gpu_reading *r);                  /* all ABSENT or empty */
/* Keeps the identity of the GPU and its errors, and drops the values read. */
void gpu_reading_down(struct gpu_reading *r, enum gpu_fault fault, const char *fmt, ...) PRINTF_LIKE(3, 4);
/* Finds or adds the entry of a process, so that several lists can be united. NULL beyond GPU_PROCESS_MAX. */
struct gpu_process *gpu_reading_process(struct gpu_reading *r, uint32_t pid, int32_t gi, int32_t ci);
const struct gpu_process *gpu_reading_find(const struct gpu_reading *r, uint32_t pid, int32_t gi, int32_t ci);
/* Adds an entry to exits; NULL beyond GPU_EXIT_MAX. */
struct gpu_exit *gpu_reading_exit(struct gpu_reading *r);
/* Computes the units of the instances of a partitioned GPU from their slices, and of the rest, so that all add up to 5040. Whether the rest
 * can still be allocated depends on the placement of the instances; when one is not known, the free slices are counted. Compute slices
 * of a GPU instance that are in no compute instance are unallocated. ERR_INVALID: more slices than the GPU has. */
MUST_CHECK bool gpu_reading_weigh(struct gpu_reading *r, const struct mig_geometry *g, struct err *err);

struct gpu_source;
struct gpu_source_ops {
	const char *name;
	/* Static facts for the log and tollgate_exporter_source_info: driver and library version. */
	const char *(*driver_version)(const struct gpu_source *s); /* empty when not known */
	const char *(*library_version)(const struct gpu_source *s);
	bool (*simulated)(const struct gpu_source *s);
	/* Lists every GPU ever seen, each at a fixed place, without values; a GPU without a handle is down. Drains the driver's
	 * events. Only a failing library is an error (ERR_RETRY: open it again later). May run while a hanging read is still
	 * in progress. */
	MUST_CHECK bool (*list)(struct gpu_source *s, int64_t boot_ns, struct gpu_snapshot *into, struct err *err);
	/* Reads the GPU at a place of the last list into r, which may belong to another snapshot. Reads of different places may run
	 * concurrently in different threads, never two of one place. A GPU that fails is down. */
	void (*read)(struct gpu_source *s, size_t place, struct gpu_reading *r);
	void (*close)(struct gpu_source *s); /* with no read in progress */
};
struct gpu_source {
	const struct gpu_source_ops *ops;
};

/* Lists, then reads each, in this thread: for tests and tools. Fails where list does, and when the library is lost. */
MUST_CHECK bool gpu_source_read_all(struct gpu_source *s, int64_t boot_ns, struct gpu_snapshot *into, struct err *err);

struct nvml_options {
	const char *library;    /* NULL: libnvidia-ml.so.1, the driver's */
	bool enable_accounting; /* switch on the driver's accounting of processes; needs root */
};
/* ERR_MISSING: no library or no driver; the text says what to do. */
MUST_CHECK bool nvml_open(const struct nvml_options *o, struct gpu_source **ret, struct err *err);
void gpu_source_free(struct gpu_source *s);
DEFINE_OWNED(gpu_source, struct gpu_source)

/* XIDs counted for as long as the exporter runs. A source counts from its opening, and a library that failed is opened again: the counters of
 * earlier openings are added, so that the exported counters never fall. */
struct gpu_xids;
struct gpu_xids *gpu_xids_new(void);
void gpu_xids_free(struct gpu_xids *x);
/* Adds the XIDs of earlier openings to each GPU of the snapshot. Each opening has its own number. */
void gpu_xids_accumulate(struct gpu_xids *x, unsigned opening, struct gpu_snapshot *s);

/* Whether a directory like /sys/bus/pci/devices shows NVIDIA devices. It is hidden in a container without /sys. */
enum pci_view { PCI_HIDDEN, PCI_WITHOUT_NVIDIA, PCI_WITH_NVIDIA };
enum pci_view pci_view(const char *devices_dir);

#endif
