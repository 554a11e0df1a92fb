/* exporter/source/dcgm/dcgm_engine.h - what the files of the DCGM client share: dcgm_engine.c (the library, the connection), dcgm_watch.c (who is
 * there, what is watched), dcgm_read.c (values), dcgm.c (the worker). The rules are in dcgm.h.
 *
 * An engine belongs to one thread. */
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

/* Something that is measured: a GPU (gi and ci -1), a GPU instance (ci -1) or a compute instance. */
struct dcgm_entity {
	struct dcgm_pair pair;
	size_t gpu; /* in gpus */
	int32_t gi, ci;
	uint32_t fields;             /* that are watched, by bit; 0: refused */
	int64_t values[DCGM_VALUES]; /* millionths, or bytes per second; or ABSENT */
	int64_t stamps_us[DCGM_VALUES];
	int64_t boot_ns[DCGM_VALUES]; /* of the reading that brought the stamp */
};

struct dcgm_gpu {
	uint32_t id;
	char uuid[GPU_TEXT];
	uint32_t fields; /* that it can measure, as far as it tells */
};

/* What was found and what it says. */
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
	struct dcgm_view *view, *spare; /* the spare one is for looking again */
	struct dcgm_watch watches[DCGM_GROUPS_MAX];
	size_t watch_count;
	unsigned names;        /* of groups, so that each is another */
	size_t refused;        /* entities */
	bool instances_untold; /* of MIG; lacking says why */
	struct err lacking;    /* kind ERR_NONE: nothing. The first reason why not all is watched */
	int64_t clamped;
	struct dcgm_field_value *answers; /* DCGM_ANSWERS of them */
};
#define DCGM_ANSWERS ((size_t)(16 * DCGM_VALUES))

/* Opens the library and the engine, finds everything and watches it. An engine that fails is to be closed; closing leaves it as
 * zeroed, and the library loaded. */
MUST_CHECK bool dcgm_engine_open(struct dcgm_engine *e, const struct dcgm_options *o, struct err *err);
void dcgm_engine_close(struct dcgm_engine *e);
void dcgm_engine_fini(struct dcgm_engine *e); /* after it is closed */

const char *dcgm_status_text(const struct dcgm_engine *e, int status);
/* Whether a status is about the engine as a whole. */
bool dcgm_is_lost(int status);

/* Finds GPUs and instances, and watches what is not watched yet, and the instances of the GPUs in `renew` (by bit, places in the view)
 * anew. What is watched already and goes on keeps its values. */
MUST_CHECK bool dcgm_engine_look(struct dcgm_engine *e, uint32_t renew, struct err *err);
void dcgm_engine_unwatch(struct dcgm_engine *e);
/* Brings the view's values up to date. */
MUST_CHECK bool dcgm_engine_read(struct dcgm_engine *e, int64_t boot_ns, struct err *err);

#endif
