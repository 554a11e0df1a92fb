/* tests/support/dcgmsim/dcgmsim.h - what the files of the simulated DCGM share.
 *
 * One lock around everything; a call that is slow or hangs waits without it. */
#ifndef TOLLGATE_DCGMSIM_DCGMSIM_H
#define TOLLGATE_DCGMSIM_DCGMSIM_H

#include <pthread.h>

#include "exporter/source/dcgm/dcgm_abi.h"
#include "tests/support/nvmlsim/sim_live.h"
#include "tests/support/nvmlsim/world.h"

#define EXPORTED __attribute__((visibility("default")))
#define PROTOTYPE(ret, name, args) EXPORTED ret name args;
DCGM_FUNCTIONS(PROTOTYPE, PROTOTYPE)
#undef PROTOTYPE

#define SIM_GROUPS 64
#define SIM_FIELDS 12
#define SIM_SAMPLES_MAX (2 * (DCGM_DEVICES_MAX + DCGM_HIERARCHY_MAX))

struct sim_group {
	bool used;
	struct dcgm_pair entities[DCGM_GROUP_ENTITIES];
	size_t count;
};
struct sim_field_group {
	bool used;
	uint32_t fields; /* by bit, from DCGM_FIELD_ENGINE on */
};
struct sim_watch {
	bool used;
	size_t group, field_group;
};

/* What is watched of a GPU or an instance, and its last two samples. */
struct sim_sample {
	struct dcgm_pair pair;
	char uuid[SIM_TEXT]; /* of whom; another one under the same ids is not the same */
	uint32_t fields;
	bool begun, whole; /* one sample was taken; two */
	int64_t from_ns, to_ns;
	int128 active_ppm_ns;
	int64_t active_ppm; /* between the two */
};

struct dcgmsim {
	pthread_mutex_t lock;
	pthread_cond_t changed;
	unsigned users;
	uintptr_t handle; /* 0: not connected */
	int64_t connected_ns;
	int64_t now_ns; /* of the call under way */
	int64_t t0_ns;
	unsigned hanging;
	uint64_t releases;
	struct scenario *sc;
	struct world *world;
	struct live *live;
	struct sim_group groups[SIM_GROUPS];
	struct sim_field_group field_groups[SIM_GROUPS];
	struct sim_watch watches[SIM_GROUPS];
	struct sim_sample samples[SIM_SAMPLES_MAX];
	size_t sample_count;
};
extern struct dcgmsim dsim;

/* Takes the lock until the function returns, and returns from it when there is no engine behind the handle or the scenario lets the
 * function fail. */
#define ENTER(handle)                                                             \
	__attribute__((cleanup(dsim_leave))) pthread_mutex_t *held_ = &dsim.lock; \
	pthread_mutex_lock(held_);                                                \
	int entered_ = dsim_enter(__func__, (handle));                            \
	if (entered_ != DCST_OK) {                                                \
		return entered_;                                                  \
	}
int dsim_enter(const char *function, uintptr_t handle);
void dsim_leave(pthread_mutex_t **lock);

int64_t dsim_clock_ns(void);
void dsim_begin_time(void);
/* Calls that the scenario makes slow, failing or hanging; gives up the lock while it waits. */
int dsim_misbehave(const char *function);
/* The outage of this moment; NULL: none. */
const struct sim_outage *dsim_outage(bool stuck);

/* What a pair stands for at this moment. */
struct sim_entity {
	size_t gpu;
	const struct sim_layout *layout;
	const struct sim_instance *instance; /* of a GPU instance the first in it; NULL: the GPU */
	bool is_gi;
};
bool dsim_find(struct dcgm_pair pair, struct sim_entity *ret);
const char *dsim_uuid(const struct sim_entity *e, char out[SIM_TEXT]);
/* The entity ids of an instance, and of its GPU instance. */
uint32_t dsim_ci_id(size_t gpu, size_t instance);
uint32_t dsim_gi_id(size_t gpu, const struct sim_layout *l, uint32_t gi);

/* The fields that a GPU can measure, by bit. */
uint32_t dsim_supported(const struct sim_gpu *g);

/* Samples of all that is watched; what is not watched any more goes. */
void dsim_follow(void);
void dsim_take_samples(void);

#endif
