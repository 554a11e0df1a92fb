/* tests/support/nvmlsim/nvmlsim.h - what the files of the simulated library share.
 *
 * One lock around everything: NVML is thread-safe, so this is. A call that is slow or hangs waits without it. */
#ifndef TOLLGATE_NVMLSIM_NVMLSIM_H
#define TOLLGATE_NVMLSIM_NVMLSIM_H

#include <pthread.h>

#include "common/base/hash.h"
#include "exporter/source/nvml/nvml_abi.h"
#include "tests/support/nvmlsim/fakeproc.h"
#include "tests/support/nvmlsim/sim_live.h"
#include "tests/support/nvmlsim/world.h"

#define EXPORTED __attribute__((visibility("default")))
#define PROTOTYPE(ret, name, args) EXPORTED ret name args;
NVML_FUNCTIONS(PROTOTYPE, PROTOTYPE)
#undef PROTOTYPE

/* What a handle points to. Handles of instances are slots, so another instance comes under the same handle after a
 * repartition, as on real GPUs. */
struct nvml_device {
	size_t gpu;
	int slot; /* -1: the GPU itself */
};
/* Of a GPU instance, by its id: ids are below 101. */
struct nvml_gpu_instance {
	size_t gpu;
	uint32_t id;
};
#define SIM_GI_MAX 101

/* The driver's accounting of one GPU: on since a moment, and its PIDs as the last call found them. */
struct sim_accounting {
	bool on;
	int64_t since_ns;
	uint64_t version; /* of the world at that call */
	uint32_t *pids;
	size_t count;
	struct hash known;
};

struct nvmlsim {
	pthread_mutex_t lock;
	pthread_cond_t changed;                             /* the clock was set, or hanging calls were released */
	unsigned users;                                     /* of nvmlInit without nvmlShutdown */
	bool unloaded;                                      /* the driver went away after nvmlInit */
	char complaint[sizeof(((struct err *)NULL)->text)]; /* the last one */
	bool frozen;
	int64_t frozen_ns;
	int64_t t0_ns;    /* 0: not begun */
	int64_t wall0_ns; /* wall time at virtual time 0 */
	int64_t now_ns;   /* virtual, of the call under way */
	unsigned hanging; /* calls */
	uint64_t releases;
	struct scenario *sc;
	struct world *world;
	struct fakeproc *fp;
	struct live *live; /* NULL: no folder of registrations */
	struct nvml_device gpus[SIM_GPUS_MAX];
	struct nvml_device slots[SIM_GPUS_MAX][SIM_INSTANCES_MAX];
	struct nvml_gpu_instance gis[SIM_GPUS_MAX][SIM_GI_MAX];
	struct sim_accounting accounting[SIM_GPUS_MAX];
	uint32_t racers; /* processes that appeared in a race */
};
extern struct nvmlsim sim;

void sim_complain(const char *text); /* on stderr, each once */

/* Takes the lock until the function returns, and returns from it when the library is not in use or the scenario lets the
 * function fail. device may be NULL. */
#define ENTER_WITH(device)                                                      \
	__attribute__((cleanup(sim_leave))) pthread_mutex_t *held_ = &sim.lock; \
	pthread_mutex_lock(held_);                                              \
	int entered_ = sim_enter(__func__, (device));                           \
	if (entered_ != NVST_SUCCESS) {                                         \
		return entered_;                                                \
	}
#define ENTER() ENTER_WITH(NULL)

int sim_enter(const char *function, const struct nvml_device *device);
void sim_leave(pthread_mutex_t **lock);
/* The virtual clock; also outside of calls. */
int64_t sim_clock_ns(void);
/* Calls that the scenario makes slow, failing or hanging; gives up the lock while it waits. */
int sim_misbehave(const char *function, int gpu);
/* A moment without the lock. */
void sim_wait_a_little(void);

/* What a handle stands for at this moment; instance is NULL for a GPU. */
struct target {
	size_t index;
	const struct sim_gpu *gpu;
	const struct sim_layout *layout;
	const struct sim_instance *instance;
};

/* ENTER, and the target of the handle; returns when it has none, or when an argument is missing. */
#define ENTER_DEVICE(device, argument)                                                     \
	struct target on;                                                                  \
	ENTER_WITH(device);                                                                \
	int status_ = (argument) ? sim_find_target((device), &on) : NVST_INVALID_ARGUMENT; \
	if (status_ != NVST_SUCCESS) {                                                     \
		return status_;                                                            \
	}
/* For what only a GPU has. */
#define ENTER_BOARD(device, argument)      \
	ENTER_DEVICE(device, argument);    \
	if (on.instance) {                 \
		return NVST_NOT_SUPPORTED; \
	}

int sim_find_target(const struct nvml_device *device, struct target *ret);

/* A value that may be scripted, of the target: else the derived one. NOT_SUPPORTED when it is SIM_ABSENT. */
int sim_value(const struct target *on, enum sim_key key, int64_t derived, int64_t *ret);
int sim_value_u32(const struct target *on, enum sim_key key, int64_t derived, uint32_t *ret);
/* Whether a run is on the GPU or in the instance that is asked about. */
bool sim_is_in(const struct target *on, const struct world_run *run);
/* The major version of the driver: which functions it has. */
long sim_driver_major(void);
bool sim_is_unprivileged(void);

#endif
