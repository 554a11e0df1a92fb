/* tests/support/nvmlsim/scenario.h - what the simulator simulates, read from a YAML file. The format is in README.md.
 * All times are virtual: nanoseconds since the scenario began. */
#ifndef TOLLGATE_NVMLSIM_SCENARIO_H
#define TOLLGATE_NVMLSIM_SCENARIO_H

#include "common/err.h"
#include "common/units.h"

#define SIM_GPUS_MAX 64
#define SIM_LAYOUTS_MAX 16
#define SIM_INSTANCES_MAX 8
#define SIM_PROCESSES_MAX 10000
#define SIM_FAULTS_MAX 1000
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
	QUIRK_UNPRIVILEGED = 1 << 8,   /* a partitioned GPU tells its memory and processes to nobody */
};

struct sim_instance {
	char profile[SIM_TEXT];
	char uuid[SIM_TEXT];
	struct mig_slices slices;
	uint32_t gi, ci;
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
	int64_t memory_mib;
	int64_t idle_mw, max_mw;
	bool mig_capable;
	struct mig_geometry geometry;               /* when it is */
	struct sim_layout layouts[SIM_LAYOUTS_MAX]; /* the first at 0, in order of time */
	size_t layout_count;
};

struct sim_pod {
	char *ns, *name, *uid, *container;
};

struct sim_process {
	int line; /* in the file */
	uint32_t pid;
	uint32_t pid_span;        /* the n-th repetition has pid + n % span; 1: always the same */
	uint64_t gpus;            /* a bit per GPU */
	int instance;             /* index in the layout; -1: the whole GPU */
	int64_t start_ns, end_ns; /* of the first run; SIM_NEVER: stays */
	int64_t every_ns;         /* 0: runs once */
	int64_t sm;               /* percent of what it holds */
	int64_t memory_bytes;     /* on each GPU */
	int64_t uid;
	char *cgroup; /* text of /proc/PID/cgroup */
	char *comm;
	struct sim_pod *pod; /* NULL: none */
	bool mps, graphics;
};

enum sim_fault_kind { FAULT_LOST, FAULT_RESET_REQUIRED, FAULT_UNKNOWN, FAULT_UNLOADED };
struct sim_fault {
	enum sim_fault_kind kind;
	int gpu; /* -1: the driver */
	int64_t at_ns, until_ns;
};

struct scenario {
	char *name;
	char *driver;
	unsigned quirks; /* enum sim_quirk */
	int init_error;  /* what nvmlInit answers; 0: success */
	struct sim_gpu *gpus;
	size_t gpu_count;
	struct sim_process *processes;
	size_t process_count;
	struct sim_fault *faults;
	size_t fault_count;
};

MUST_CHECK bool scenario_parse(const char *name, const char *text, size_t len, struct scenario **ret, struct err *err);
MUST_CHECK bool scenario_load(const char *path, struct scenario **ret, struct err *err);
void scenario_free(struct scenario *sc);
DEFINE_OWNED(scenario, struct scenario)

/* "<prefix>-xxxxxxxx-...": the same for the same words. prefix may be empty. */
void sim_uuid(const char *prefix, const char *words, char out[SIM_TEXT]);

#endif
