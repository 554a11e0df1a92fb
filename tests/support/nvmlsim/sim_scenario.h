/* tests/support/nvmlsim/sim_scenario.h - what the simulator simulates, read from a YAML file. The format is in README.md.
 * All times are virtual: nanoseconds since the scenario began. */
#ifndef TOLLGATE_NVMLSIM_SCENARIO_H
#define TOLLGATE_NVMLSIM_SCENARIO_H

#include "common/base/err.h"
#include "common/base/units.h"

#define SIM_GPUS_MAX 64
#define SIM_LAYOUTS_MAX 1000
#define SIM_INSTANCES_MAX 8
#define SIM_PROCESSES_MAX 10000
#define SIM_FAULTS_MAX 1000
#define SIM_EVENTS_MAX 10000
#define SIM_TEXT 96
#define SIM_NEVER INT64_MAX

/* Habits of real drivers that a client has to live with. */
enum sim_quirk {
	QUIRK_STRIDE32 = 1 << 0,       /* _v3 lists have 32-byte entries, as 535.43 to 535.86 */
	QUIRK_NO_V3 = 1 << 1,          /* _v3 lists: function not found */
	QUIRK_NO_V2 = 1 << 2,          /* _v3 and _v2 lists: function not found */
	QUIRK_LIST_RACE = 1 << 3,      /* processes appear between the size query and the list */
	QUIRK_ZOMBIE_SAMPLES = 1 << 4, /* utilisation above 100 %, of idle processes and of a PID that is gone */
	QUIRK_NO_SAMPLES = 1 << 5,     /* no per-process utilisation */
	QUIRK_MEMORY_V1 = 1 << 6,      /* GetMemoryInfo_v2: function not found */
	QUIRK_NO_ATTRIBUTES = 1 << 7,  /* GetAttributes_v2: not supported */
	QUIRK_UNPRIVILEGED = 1 << 8,   /* a caller without root: see README.md */
	QUIRK_INVALID_SLOTS = 1 << 9,  /* a MIG slot without an instance: invalid argument instead of not found */
};

/* What can be scripted of a board, or of an instance of it. */
enum sim_key {
	KEY_ACTIVE, /* percent */
	KEY_MEMORY_ACTIVE,
	KEY_POWER_MW,
	KEY_ENERGY_MJ,
	KEY_POWER_LIMIT_MW,
	KEY_TEMPERATURE_C,
	KEY_MEMORY_TEMPERATURE_C,
	KEY_GRAPHICS_CLOCK_MHZ,
	KEY_SM_CLOCK_MHZ,
	KEY_MEMORY_CLOCK_MHZ,
	KEY_VIDEO_CLOCK_MHZ,
	KEY_THROTTLE_REASONS,
	KEY_ENCODER, /* percent */
	KEY_DECODER,
	KEY_MEMORY_USED_BYTES,
	KEY_MEMORY_RESERVED_BYTES,
	KEY_MEMORY_BYTES,
	KEY_ECC_CORRECTED,
	KEY_ECC_UNCORRECTED,
	KEY_REMAPPED_CORRECTED,
	KEY_REMAPPED_UNCORRECTED,
	KEY_REMAP_PENDING,
	KEY_REMAP_FAILED,
	KEY_PCIE_TX_BYTES_PER_S,
	KEY_PCIE_RX_BYTES_PER_S,
	KEY_PCIE_REPLAYS,
	KEY_PCIE_GENERATION,
	KEY_PCIE_WIDTH,
	KEY_NVLINK_TX_BYTES,
	KEY_NVLINK_RX_BYTES,
	KEY_ENGINE_ACTIVE_PPM, /* this and the next four by GPM: averages over time, not moments */
	KEY_SM_ACTIVE_PPM,
	KEY_SM_OCCUPANCY_PPM,
	KEY_TENSOR_ACTIVE_PPM,
	KEY_DRAM_ACTIVE_PPM,
	KEY_COUNT,
};
#define SIM_ABSENT INT64_C(-1) /* scripted: the driver does not tell it */

struct sim_point {
	int64_t at_ns, value;
};
/* What one key says over time, of a board (gi -1) or of an instance. */
struct sim_series {
	enum sim_key key;
	int gi, ci;
	struct sim_point *points; /* in order of time */
	size_t count, cap;
};

struct sim_instance {
	char profile[SIM_TEXT];
	char uuid[SIM_TEXT];
	struct mig_slices slices;
	uint32_t gi, ci;
	int placement; /* of its GPU instance: the first memory slice */
	uint64_t memory_mib;
};

/* How a GPU is cut from `at` on. */
struct sim_layout {
	int64_t at_ns;
	bool mig;
	struct sim_instance instances[SIM_INSTANCES_MAX];
	size_t count;
};

struct sim_gpu {
	char model[SIM_TEXT];
	char uuid[SIM_TEXT];
	char pci[32]; /* "00000000:3B:00.0" */
	int64_t memory_mib;
	int64_t idle_mw, max_mw;
	bool mig_capable;
	struct mig_geometry geometry; /* when it is */
	bool gpm, ecc, row_remap, energy, samples;
	bool dcp; /* DCGM can profile it */
	int64_t nvlinks;
	bool accounting;
	struct sim_layout *layouts; /* the first at 0, in order of time */
	size_t layout_count;
	struct sim_series *series;
	size_t series_count;
};

struct sim_pod {
	char *ns, *name, *uid, *container;
};

/* What a run does from a moment after its start on. */
struct sim_phase {
	int64_t after_ns;
	int64_t sm;           /* percent of what it holds */
	int64_t memory_bytes; /* on each GPU */
};

struct sim_process {
	int line; /* in the file */
	uint32_t pid, ppid;
	uint32_t pid_span;        /* the n-th repetition has pid + n % span; 1: always the same */
	uint64_t gpus;            /* a bit per GPU */
	int instance;             /* index in the layout; -1: the whole GPU, or by ids */
	int gi, ci;               /* the instance by its ids; -1: not */
	char *instance_uuid;      /* the instance by its UUID; NULL: not */
	int64_t start_ns, end_ns; /* of the first run; SIM_NEVER: stays */
	int64_t every_ns;         /* 0: runs once */
	struct sim_phase *phases; /* the first at 0 */
	size_t phase_count;
	int64_t uid;
	char *cgroup; /* text of /proc/PID/cgroup */
	char *comm;
	char *workload;      /* who is billed: "pod/NS/NAME/CONTAINER", "slurm/JOB/UID" or "user/UID" */
	struct sim_pod *pod; /* NULL: none */
	bool mps, graphics;
};

enum sim_fault_kind { FAULT_LOST, FAULT_RESET_REQUIRED, FAULT_UNKNOWN, FAULT_UNLOADED };
struct sim_fault {
	enum sim_fault_kind kind;
	int gpu; /* -1: the driver */
	int64_t at_ns, until_ns;
};

/* A function that is slow, fails or hangs. */
struct sim_call {
	char name[64]; /* "*": every function */
	int gpu;       /* -1: on any GPU, and where none is named */
	int64_t at_ns, until_ns;
	int64_t delay_ns;
	int status; /* 0: it answers as it should, afterwards */
	bool hang;
};

#define SIM_EVENT_XID UINT64_C(8)
#define SIM_EVENT_MIG UINT64_C(0x100)
struct sim_event {
	int64_t at_ns;
	size_t gpu;
	uint64_t type, data;
	uint32_t gi, ci; /* UINT32_MAX: the whole GPU */
};

struct sim_clock_step {
	int64_t at_ns, by_ns;
};

/* Habits of DCGM, and times at which its engine is not there. */
enum sim_dcgm_quirk {
	DCGM_QUIRK_BLANKS = 1 << 0,     /* what there is not has status 0 and a blank number */
	DCGM_QUIRK_ABOVE_ONE = 1 << 1,  /* shares of instances are a quarter too large */
	DCGM_QUIRK_MULTI_PASS = 1 << 2, /* one field at a time */
	DCGM_QUIRK_UNTOLD = 1 << 3,     /* what a GPU can measure is not told */
	DCGM_QUIRK_NEEDS_ROOT = 1 << 4, /* an embedded engine does not start for another user than root */
};
struct sim_outage {
	int64_t at_ns, until_ns;
	bool stuck; /* it answers, and brings nothing new */
};
#define SIM_OUTAGES_MAX 16
/* An instance that the engine does not list for a while, though NVML does. */
struct sim_unlisted {
	int gpu;
	int64_t instance; /* place in the layout */
	int64_t at_ns, until_ns;
};
#define SIM_UNLISTED_MAX 16
struct sim_dcgm {
	char *version;
	unsigned quirks; /* enum sim_dcgm_quirk */
	struct sim_outage outages[SIM_OUTAGES_MAX];
	size_t outage_count;
	struct sim_unlisted unlisted[SIM_UNLISTED_MAX];
	size_t unlisted_count;
};

struct scenario {
	char *name;
	char *driver, *library;
	unsigned quirks; /* enum sim_quirk */
	int init_error;  /* what nvmlInit answers; 0: success */
	int64_t gpm_metrics;
	struct sim_gpu *gpus;
	size_t gpu_count;
	struct sim_process *processes;
	size_t process_count;
	struct sim_fault *faults;
	size_t fault_count;
	struct sim_call *calls;
	size_t call_count;
	struct sim_event *events; /* in order of time */
	size_t event_count;
	struct sim_clock_step *steps; /* in order of time */
	size_t step_count;
	struct sim_dcgm dcgm;
};

MUST_CHECK bool scenario_parse(const char *name, const char *text, size_t len, struct scenario **ret, struct err *err);
MUST_CHECK bool scenario_load(const char *path, struct scenario **ret, struct err *err);
void scenario_free(struct scenario *sc);
DEFINE_OWNED(scenario, struct scenario)

/* A process registered while the simulator runs (sim_live.h), on the GPUs of a scenario, which stays as it is. */
MUST_CHECK bool scenario_parse_live(struct scenario *sc, const char *name, const char *text, size_t len,
                                    struct sim_process **ret, struct err *err);
void sim_process_fini(struct sim_process *p);

/* "<prefix>-xxxxxxxx-...": the same for the same words. prefix may be empty. */
void sim_uuid(const char *prefix, const char *words, char out[SIM_TEXT]);

const char *sim_key_name(enum sim_key key);
/* The series of a key; NULL: it is not scripted. */
const struct sim_series *sim_series_of(const struct sim_gpu *g, enum sim_key key, int gi, int ci);

#endif
