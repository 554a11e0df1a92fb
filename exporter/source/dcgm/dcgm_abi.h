/* exporter/source/dcgm/dcgm_abi.h - the part of DCGM's binary interface that Tollgate uses, declared here so that no NVIDIA file is needed
 * to build. x86-64 layouts, the same from DCGM 3.3 to 4.6, each size and offset checked by the compiler below.
 *
 * Names differ from those of NVIDIA's headers on purpose: a comparison can include both. Versioned structs begin with
 * sizeof | version << 24. Fields are known by number: their names have changed between versions, their numbers have not. Only
 * exporter/source/dcgm/, the simulator and their tests include this file. */
#ifndef TOLLGATE_DCGM_ABI_H
#define TOLLGATE_DCGM_ABI_H

#include <assert.h>
#include <stddef.h>
#include <stdint.h>

enum dcgm_code {
	DCST_OK = 0,
	DCST_BADPARAM = -1,
	DCST_GENERIC_ERROR = -3,
	DCST_NOT_SUPPORTED = -6,
	DCST_INIT_ERROR = -7,
	DCST_UNINITIALIZED = -10,
	DCST_VER_MISMATCH = -12,
	DCST_UNKNOWN_FIELD = -13,
	DCST_NO_DATA = -14,
	DCST_NOT_WATCHED = -16,
	DCST_GPU_IS_LOST = -18,
	DCST_CONNECTION_NOT_VALID = -21,
	DCST_MAX_LIMIT = -24,
	DCST_REQUIRES_ROOT = -29,
	DCST_MODULE_NOT_LOADED = -33,
	DCST_PROFILING_MULTI_PASS = -38,
};

#define DCGM_MODE_MANUAL 2u /* an embedded engine reads when it is told to */
#define DCGM_EMPTY_GROUP 1  /* a group that is made without members */
#define DCGM_LIVE 1u        /* a value that is not watched: ask the driver now */
#define DCGM_DEVICES_MAX 32 /* GPUs of one engine */
#define DCGM_HIERARCHY_MAX 448
#define DCGM_GROUP_ENTITIES 64 /* that every version takes */

enum dcgm_entity_group { DCGM_OF_GPU = 1, DCGM_OF_GI = 4, DCGM_OF_CI = 5 };

enum dcgm_field_id {
	DCGM_FIELD_UUID = 54,
	DCGM_FIELD_ENGINE = 1001, /* shares of time, as doubles */
	DCGM_FIELD_SM = 1002,
	DCGM_FIELD_OCCUPANCY = 1003,
	DCGM_FIELD_TENSOR = 1004,
	DCGM_FIELD_DRAM = 1005, /* of a GPU instance; a compute instance has none */
	DCGM_FIELD_FP64 = 1006,
	DCGM_FIELD_FP32 = 1007,
	DCGM_FIELD_FP16 = 1008,
	DCGM_FIELD_PCIE_TX = 1009, /* bytes per second */
	DCGM_FIELD_PCIE_RX = 1010,
	DCGM_FIELD_NVLINK_TX = 1011,
	DCGM_FIELD_NVLINK_RX = 1012,
};

enum dcgm_field_type { DCGM_TYPE_DOUBLE = 'd', DCGM_TYPE_INT64 = 'i', DCGM_TYPE_TEXT = 's' };

/* Numbers from here on are blank: the difference is the reason. */
#define DCGM_BLANK_INT64 INT64_C(0x7ffffffffffffff0)
#define DCGM_BLANK_FP64 140737488355328.0
#define DCGM_NOT_FOUND 1 /* the reasons, added to the blank */
#define DCGM_NOT_SUPPORTED 2
#define DCGM_NO_PERMISSION 3

#define DCGM_VERSIONED(type, version) ((uint32_t)(sizeof(struct type) | (uint32_t)(version) << 24))

struct dcgm_embedded {
	uint32_t version, mode;
	uintptr_t handle; /* out */
	const char *log_file;
	uint32_t severity, deny_count;
	const char *service_account;
	uint32_t deny[10];
};
#define DCGM_EMBEDDED_V2 DCGM_VERSIONED(dcgm_embedded, 2)
#define DCGM_LOG_NONE 0u /* severity */

struct dcgm_connect {
	uint32_t version, persist, timeout_ms, is_unix;
};
#define DCGM_CONNECT_V2 DCGM_VERSIONED(dcgm_connect, 2)

struct dcgm_pair {
	uint32_t group, id;
};

struct dcgm_mig_entity {
	struct dcgm_pair entity, parent;
	char gpu_uuid[128];
	uint32_t gpu_index, gi, ci; /* as NVML numbers them; ci is UINT32_MAX of a GPU instance */
	uint32_t profile, slices;
};
struct dcgm_hierarchy {
	uint32_t version, count;
	struct dcgm_mig_entity entities[DCGM_HIERARCHY_MAX];
};
#define DCGM_HIERARCHY_V2 DCGM_VERSIONED(dcgm_hierarchy, 2)

struct dcgm_field_value {
	uint32_t version, group, id;
	uint16_t field, type;
	int32_t status;
	uint32_t unused;
	int64_t stamp_us; /* since 1970 */
	union {
		int64_t i64;
		double dbl;
		char text[256];
		char blob[4096];
	} value;
};
#define DCGM_FIELD_VALUE_V2 DCGM_VERSIONED(dcgm_field_value, 2)

struct dcgm_metric_group {
	uint16_t major, minor;
	uint32_t count;
	uint16_t fields[64];
};
struct dcgm_metric_groups {
	uint32_t version, unused, gpu, count;
	struct dcgm_metric_group groups[10];
};
#define DCGM_METRIC_GROUPS_V3 DCGM_VERSIONED(dcgm_metric_groups, 3)

struct dcgm_version_info {
	uint32_t version;
	char text[512]; /* "version:4.2.3;arch:x86_64;..." */
};
#define DCGM_VERSION_INFO_V2 DCGM_VERSIONED(dcgm_version_info, 2)

#define DCGM_SIZE(type, size) static_assert(sizeof(struct type) == (size), "size of " #type)
#define DCGM_AT(type, field, offset) static_assert(offsetof(struct type, field) == (offset), #type "." #field)
#define DCGM_IS(version, value) static_assert((version) == (value), #version)

DCGM_SIZE(dcgm_embedded, 80);
DCGM_AT(dcgm_embedded, mode, 4);
DCGM_AT(dcgm_embedded, handle, 8);
DCGM_AT(dcgm_embedded, log_file, 16);
DCGM_AT(dcgm_embedded, severity, 24);
DCGM_AT(dcgm_embedded, deny_count, 28);
DCGM_AT(dcgm_embedded, service_account, 32);
DCGM_AT(dcgm_embedded, deny, 40);
DCGM_IS(DCGM_EMBEDDED_V2, 0x02000050u);
DCGM_SIZE(dcgm_connect, 16);
DCGM_AT(dcgm_connect, persist, 4);
DCGM_AT(dcgm_connect, timeout_ms, 8);
DCGM_AT(dcgm_connect, is_unix, 12);
DCGM_IS(DCGM_CONNECT_V2, 0x02000010u);
DCGM_SIZE(dcgm_pair, 8);
DCGM_SIZE(dcgm_mig_entity, 164);
DCGM_AT(dcgm_mig_entity, parent, 8);
DCGM_AT(dcgm_mig_entity, gpu_uuid, 16);
DCGM_AT(dcgm_mig_entity, gpu_index, 144);
DCGM_AT(dcgm_mig_entity, gi, 148);
DCGM_AT(dcgm_mig_entity, ci, 152);
DCGM_AT(dcgm_mig_entity, profile, 156);
DCGM_AT(dcgm_mig_entity, slices, 160);
DCGM_AT(dcgm_hierarchy, entities, 8);
DCGM_IS(DCGM_HIERARCHY_V2, 0x02011f08u);
DCGM_SIZE(dcgm_field_value, 4128);
DCGM_AT(dcgm_field_value, group, 4);
DCGM_AT(dcgm_field_value, id, 8);
DCGM_AT(dcgm_field_value, field, 12);
DCGM_AT(dcgm_field_value, type, 14);
DCGM_AT(dcgm_field_value, status, 16);
DCGM_AT(dcgm_field_value, stamp_us, 24);
DCGM_AT(dcgm_field_value, value, 32);
DCGM_IS(DCGM_FIELD_VALUE_V2, 0x02001020u);
DCGM_SIZE(dcgm_metric_group, 136);
DCGM_AT(dcgm_metric_group, count, 4);
DCGM_AT(dcgm_metric_group, fields, 8);
DCGM_AT(dcgm_metric_groups, gpu, 8);
DCGM_AT(dcgm_metric_groups, count, 12);
DCGM_AT(dcgm_metric_groups, groups, 16);
DCGM_IS(DCGM_METRIC_GROUPS_V3, 0x03000560u);
DCGM_AT(dcgm_version_info, text, 4);
DCGM_IS(DCGM_VERSION_INFO_V2, 0x02000204u);

/* Every function that is called, once: the table of symbols, the table of pointers and the simulator's prototypes come from it. */
#define DCGM_FUNCTIONS(REQUIRED, OPTIONAL)                                                                             \
	REQUIRED(int, dcgmInit, (void))                                                                                \
	REQUIRED(int, dcgmShutdown, (void))                                                                            \
	REQUIRED(int, dcgmStartEmbedded_v2, (struct dcgm_embedded * params))                                           \
	REQUIRED(int, dcgmStopEmbedded, (uintptr_t handle))                                                            \
	REQUIRED(int, dcgmConnect_v2, (const char *address, struct dcgm_connect *params, uintptr_t *handle))           \
	REQUIRED(int, dcgmDisconnect, (uintptr_t handle))                                                              \
	REQUIRED(int, dcgmGetAllSupportedDevices, (uintptr_t handle, uint32_t ids[DCGM_DEVICES_MAX], int *count))      \
	REQUIRED(int, dcgmGroupCreate, (uintptr_t handle, int type, const char *name, uintptr_t *group))               \
	REQUIRED(int, dcgmGroupDestroy, (uintptr_t handle, uintptr_t group))                                           \
	REQUIRED(int, dcgmGroupAddEntity, (uintptr_t handle, uintptr_t group, uint32_t entity_group, uint32_t entity)) \
	REQUIRED(int, dcgmFieldGroupCreate,                                                                            \
	         (uintptr_t handle, int count, const uint16_t *fields, const char *name, uintptr_t *field_group))      \
	REQUIRED(int, dcgmFieldGroupDestroy, (uintptr_t handle, uintptr_t field_group))                                \
	REQUIRED(int, dcgmWatchFields,                                                                                 \
	         (uintptr_t handle, uintptr_t group, uintptr_t field_group, long long every_us, double keep_s,         \
	          int keep_samples))                                                                                   \
	REQUIRED(int, dcgmUpdateAllFields, (uintptr_t handle, int wait))                                               \
	REQUIRED(int, dcgmEntitiesGetLatestValues,                                                                     \
	         (uintptr_t handle, struct dcgm_pair * entities, uint32_t count, uint16_t * fields,                    \
	          uint32_t field_count, uint32_t flags, struct dcgm_field_value * values))                             \
	OPTIONAL(int, dcgmUnwatchFields, (uintptr_t handle, uintptr_t group, uintptr_t field_group))                   \
	OPTIONAL(int, dcgmGetGpuInstanceHierarchy, (uintptr_t handle, struct dcgm_hierarchy * hierarchy))              \
	OPTIONAL(int, dcgmProfGetSupportedMetricGroups, (uintptr_t handle, struct dcgm_metric_groups * groups))        \
	OPTIONAL(int, dcgmHostengineVersionInfo, (uintptr_t handle, struct dcgm_version_info * info))                  \
	OPTIONAL(const char *, errorString, (int status))

#endif
