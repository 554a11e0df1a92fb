/* tests/support/nvmlsim/nvmlsim.h - what the files of the simulated library share.
 *
 * One lock around everything: NVML is thread-safe, so this is. */
#ifndef TOLLGATE_NVMLSIM_NVMLSIM_H
#define TOLLGATE_NVMLSIM_NVMLSIM_H

#include <pthread.h>

#include "exporter/nvml_abi.h"
#include "tests/support/nvmlsim/fakeproc.h"
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

struct nvmlsim {
	pthread_mutex_t lock;
	unsigned users;                                     /* of nvmlInit without nvmlShutdown */
	bool unloaded;                                      /* the driver went away after nvmlInit */
	char complaint[sizeof(((struct err *)NULL)->text)]; /* the last one */
	bool frozen;
	int64_t frozen_ns;
	int64_t t0_ns;  /* 0: not begun */
	int64_t now_ns; /* virtual, of the call under way */
	struct scenario *sc;
	struct fakeproc *fp;
	struct world_energy energy[SIM_GPUS_MAX];
	struct nvml_device gpus[SIM_GPUS_MAX];
	struct nvml_device slots[SIM_GPUS_MAX][SIM_INSTANCES_MAX];
	uint32_t racers; /* processes that appeared in a race */
};
extern struct nvmlsim sim;

void sim_complain(const char *text); /* on stderr, each once */

/* Takes the lock until the function returns, and returns from it when the library is not in use. */
#define ENTER()                                                                 \
	__attribute__((cleanup(sim_leave))) pthread_mutex_t *held_ = &sim.lock; \
	pthread_mutex_lock(held_);                                              \
	if (!sim_is_running()) {                                                \
		return NVST_UNINITIALIZED;                                      \
	}

bool sim_is_running(void);
void sim_leave(pthread_mutex_t **lock);

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
	ENTER();                                                                           \
	int status_ = (argument) ? sim_find_target((device), &on) : NVST_INVALID_ARGUMENT; \
	if (status_ != NVST_SUCCESS) {                                                     \
		return status_;                                                            \
	}

int sim_find_target(const struct nvml_device *device, struct target *ret);

/* Whether a process is on the GPU or in the instance that is asked about. */
bool sim_is_in(const struct target *on, const struct sim_process *p);

#endif
