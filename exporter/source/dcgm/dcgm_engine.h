/* exporter/source/dcgm/dcgm_engine.h - inside the DCGM client: a connection to an engine, its entities and their values. For dcgm.c, the
 * worker, to which the engine belongs, and for tests. The rules are in dcgm.h. */
#ifndef TOLLGATE_DCGM_ENGINE_H
#define TOLLGATE_DCGM_ENGINE_H

#include "exporter/source/dcgm/dcgm.h"
#include "exporter/source/dcgm/dcgm_abi.h"

#define DCGM_ENTITIES_MAX (DCGM_DEVICES_MAX + DCGM_HIERARCHY_MAX)
#define DCGM_GROUPS_MAX 60 /* an engine has 64 for all its clients, some of them its own */

struct dcgm_api {
#define FIELD(ret, name, args) ret(*name) args;
	DCGM_FUNCTIONS(FIELD, FIELD)
#undef FIELD
};

/* The profiling fields, from DCGM_FIELD_ENGINE on in the order of their numbers. */
enum dcgm_value {
	DCGM_ENGINE,
	DCGM_SM,
	DCGM_OCCUPANCY,
	DCGM_TENSOR,
	DCGM_DRAM,
	DCGM_FP64,
	DCGM_FP32,
	DCGM_FP16,
	DCGM_PCIE_TX, /* this and the next three: of GPUs only */
	DCGM_PCIE_RX,
	DCGM_NVLINK_TX,
	DCGM_NVLINK_RX,
	DCGM_VALUES,
};
#define DCGM_BIT(value) (1u << (value))
#define DCGM_OF_ALL (DCGM_BIT(DCGM_PCIE_TX) - 1)
#define DCGM_OF_GPUS (DCGM_BIT(DCGM_VALUES) - 1)

/* A measured entity: a GPU (gi and ci -1), a GPU instance (ci -1) or a compute instance. */
struct dcgm_entity {
	struct dcgm_pair pair;
	size_t gpu; /* in gpus */
	int32_t gi, ci;
	uint32_t fields;             /* watched ones, by bit; 0: refused */
	int64_t values[DCGM_VALUES]; /* millionths, or bytes per second; or ABSENT */
	int64_t stamps_us[DCGM_VALUES];
	int64_t boot_ns[DCGM_VALUES]; /* of the first reading with this stamp */
};

struct dcgm_gpu {
	uint32_t id;
	char uuid[GPU_TEXT];
	uint32_t fields; /* that it supports */
};

/* The discovered GPUs and entities with their values. */
struct dcgm_view {
	struct dcgm_gpu gpus[DCGM_DEVICES_MAX];
	size_t gpu_count;
	struct dcgm_entity entities[DCGM_ENTITIES_MAX];
	size_t count;
};

/* Entities that are watched together. */
struct dcgm_watch {
	uintptr_t group, field_group;
	uint32_t fields;
	size_t *members; /* places in the view's entities */
	size_t count;
};

struct dcgm_engine {
	void *library;
	struct dcgm_api api;
	bool simulated, initialised, connected, embedded;
	uintptr_t handle;
	char version[GPU_TEXT];
	int64_t every_ns;
	struct dcgm_view *view, *spare; /* the next discovery fills the spare one */
	struct dcgm_watch watches[DCGM_GROUPS_MAX];
	size_t watch_count;
	unsigned group_number;      /* counts groups, for unique names */
	size_t refused;             /* entities */
	bool instances_unavailable; /* MIG instances cannot be listed, for the reason in incomplete */
	struct err incomplete;      /* the first reason why not everything is watched; kind ERR_NONE: none */
	int64_t clamped;
	struct dcgm_field_value *answers; /* DCGM_ANSWERS of them */
};
#define DCGM_ANSWERS ((size_t)(16 * DCGM_VALUES))

/* Loads the library, opens the engine, discovers all entities and watches them. After an error the engine must be closed. Closing keeps
 * the library loaded. */
MUST_CHECK bool dcgm_engine_open(struct dcgm_engine *e, const struct dcgm_options *o, struct err *err);
void dcgm_engine_close(struct dcgm_engine *e);
void dcgm_engine_fini(struct dcgm_engine *e); /* after it is closed */

/* Discovers GPUs and instances, watches new ones, and renews the watches of the instances of the GPUs in `renew` (bits by place in the
 * view). Entities that stay watched keep their values. */
MUST_CHECK bool dcgm_engine_discover(struct dcgm_engine *e, uint32_t renew, struct err *err);
/* Updates the values of the view. */
MUST_CHECK bool dcgm_engine_read(struct dcgm_engine *e, int64_t boot_ns, struct err *err);

#endif
