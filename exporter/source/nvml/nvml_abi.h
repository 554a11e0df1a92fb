/* exporter/source/nvml/nvml_abi.h - the part of NVML's binary interface that Tollgate uses, declared here so that no NVIDIA file is
 * needed to build. x86-64 layouts, each size and offset checked by the compiler below.
 *
 * Names differ from those of nvml.h on purpose: a comparison can include both. Versioned structs begin with
 * sizeof | version << 24. Only exporter/source/nvml/nvml.c, the simulator and their tests include this file. */
#ifndef TOLLGATE_NVML_ABI_H
#define TOLLGATE_NVML_ABI_H

#include <assert.h>
#include <stddef.h>
#include <stdint.h>

enum nvml_status {
	NVST_SUCCESS = 0,
	NVST_UNINITIALIZED = 1,
	NVST_INVALID_ARGUMENT = 2,
	NVST_NOT_SUPPORTED = 3,
	NVST_NO_PERMISSION = 4,
	NVST_NOT_FOUND = 6,
	NVST_INSUFFICIENT_SIZE = 7,
	NVST_DRIVER_NOT_LOADED = 9,
	NVST_TIMEOUT = 10,
	NVST_LIBRARY_NOT_FOUND = 12,
	NVST_FUNCTION_NOT_FOUND = 13,
	NVST_GPU_IS_LOST = 15,
	NVST_RESET_REQUIRED = 16,
	NVST_LIB_RM_VERSION_MISMATCH = 18,
	NVST_ARGUMENT_VERSION_MISMATCH = 25,
	NVST_UNKNOWN = 999,
};

#define NVML_TEXT_SIZE 96             /* of a UUID or a name */
#define NVML_VERSION_SIZE 80          /* of a driver or library version */
#define NVML_NO_INSTANCE UINT32_MAX   /* gi and ci of a process outside MIG */
#define NVML_NOT_AVAILABLE UINT64_MAX /* a process's memory, where the driver does not report it */
#define NVML_SENSOR_GPU 0u
#define NVML_ALL_LINKS UINT32_MAX /* scope of an NVLink field: the sum over all links */

enum nvml_clock { NVML_CLOCK_OF_GRAPHICS = 0, NVML_CLOCK_OF_SM = 1, NVML_CLOCK_OF_MEMORY = 2, NVML_CLOCK_OF_VIDEO = 3 };
enum nvml_error_type { NVML_ERROR_CORRECTED = 0, NVML_ERROR_UNCORRECTED = 1 };
enum nvml_ecc_counter { NVML_ECC_VOLATILE = 0, NVML_ECC_AGGREGATE = 1 };
enum nvml_pcie_counter { NVML_PCIE_TX = 0, NVML_PCIE_RX = 1 };
enum nvml_field {
	NVML_FIELD_MEMORY_TEMPERATURE = 82,
	NVML_FIELD_NVLINK_DATA_TX = 138, /* KiB since the driver was loaded */
	NVML_FIELD_NVLINK_DATA_RX = 139,
};
/* How the value of a field is stored. */
enum nvml_value_type {
	NVML_TYPE_DOUBLE = 0,
	NVML_TYPE_UINT = 1,
	NVML_TYPE_ULONG = 2,
	NVML_TYPE_ULONGLONG = 3,
	NVML_TYPE_LONGLONG = 4,
	NVML_TYPE_INT = 5,
	NVML_TYPE_USHORT = 6,
};
#define NVML_EVENT_XID UINT64_C(0x8)
#define NVML_EVENT_MIG_CONFIG UINT64_C(0x100)
/* Percent, but for PCIe, which is MiB per second. */
enum nvml_gpm_metric_id {
	NVML_GPM_ENGINE = 1,
	NVML_GPM_SM = 2,
	NVML_GPM_OCCUPANCY = 3,
	NVML_GPM_TENSOR = 5,
	NVML_GPM_DRAM = 10,
	NVML_GPM_PCIE_TX = 20,
	NVML_GPM_PCIE_RX = 21,
};

struct nvml_device; /* opaque: the target of a handle */
struct nvml_gpu_instance;
struct nvml_event_set;
struct nvml_gpm_sample;

struct nvml_process_info_v1 {
	uint32_t pid;
	uint64_t used_memory;
};
/* Used by the functions _v2 and _v3. */
struct nvml_process_info {
	uint32_t pid;
	uint64_t used_memory;
	uint32_t gi, ci;
};
/* Also the layout that drivers 535.43 to 535.86 returned from _v3 without saying so. */
struct nvml_process_detail {
	uint32_t pid;
	uint64_t used_memory;
	uint32_t gi, ci;
	uint64_t used_protected_memory;
};
struct nvml_process_sample {
	uint32_t pid;
	uint64_t timestamp_us;
	uint32_t sm, memory, encoder, decoder;
};
struct nvml_process_utilization {
	uint64_t timestamp_us;
	uint32_t pid;
	uint32_t sm, memory, encoder, decoder, jpeg, ofa;
};
struct nvml_processes_utilization {
	uint32_t version;
	uint32_t count;
	uint64_t last_seen_us;
	struct nvml_process_utilization *entries;
};
struct nvml_attributes {
	uint32_t multiprocessors;
	uint32_t copy_engines, decoders, encoders, jpegs, ofas;
	uint32_t gi_slices, ci_slices;
	uint64_t memory_mib;
};
struct nvml_memory_v1 {
	uint64_t total, free, used;
};
struct nvml_memory {
	uint32_t version;
	uint64_t total, reserved, free, used;
};
struct nvml_utilization {
	uint32_t gpu, memory; /* percent */
};
struct nvml_pci_info {
	char bus_id_legacy[16];
	uint32_t domain, bus, device, pci_device_id, pci_subsystem_id;
	char bus_id[32];
};
/* Percent and bytes over the life of a process; time is 0 while it runs. */
struct nvml_accounting {
	uint32_t gpu, memory;
	uint64_t max_memory, time_ms, start_us;
	uint32_t running;
	uint32_t reserved[5];
};
/* The sums are in hundredths of a percent. */
struct nvml_accounting_v2 {
	uint32_t pid, running, gpu, memory;
	uint64_t max_memory;
	uint32_t sample_count;
	uint64_t sum_gpu, sum_memory, time_ms, start_us;
};
/* In memory slices. */
struct nvml_placement {
	uint32_t start, size;
};
struct nvml_gpu_instance_info {
	struct nvml_device *device;
	uint32_t id, profile;
	struct nvml_placement placement;
};
struct nvml_event {
	struct nvml_device *device;
	uint64_t type, data;
	uint32_t gi, ci;
};
struct nvml_field_value {
	uint32_t id, scope;
	int64_t timestamp_us, latency_us;
	uint32_t type, status;
	uint64_t value;
};
struct nvml_gpm_metric {
	uint32_t id, status;
	double value;
	const char *short_name, *long_name, *unit;
};
/* The driver's own array has 98, 210 or 333 entries under one version number: allocate generously. */
struct nvml_gpm_metrics {
	uint32_t version; /* 1, not sized */
	uint32_t count;
	struct nvml_gpm_sample *from, *to;
	struct nvml_gpm_metric metrics[];
};
struct nvml_gpm_support {
	uint32_t version; /* 1, not sized */
	uint32_t supported;
};

#define NVML_VERSIONED(type, version) ((uint32_t)(sizeof(type) | (unsigned)(version) << 24))
#define NVML_MEMORY_V2 NVML_VERSIONED(struct nvml_memory, 2)
#define NVML_PROCESSES_UTILIZATION_V1 NVML_VERSIONED(struct nvml_processes_utilization, 1)
#define NVML_GPM_VERSION 1u

#define NVML_SIZE(name, size) static_assert(sizeof(struct name) == (size), "the size of " #name)
#define NVML_AT(name, field, at) static_assert(offsetof(struct name, field) == (at), "the offset of " #name "." #field)
NVML_SIZE(nvml_process_info_v1, 16);
NVML_AT(nvml_process_info_v1, pid, 0);
NVML_AT(nvml_process_info_v1, used_memory, 8);
NVML_SIZE(nvml_process_info, 24);
NVML_AT(nvml_process_info, pid, 0);
NVML_AT(nvml_process_info, used_memory, 8);
NVML_AT(nvml_process_info, gi, 16);
NVML_AT(nvml_process_info, ci, 20);
NVML_SIZE(nvml_process_detail, 32);
NVML_AT(nvml_process_detail, gi, 16);
NVML_AT(nvml_process_detail, used_protected_memory, 24);
NVML_SIZE(nvml_process_sample, 32);
NVML_AT(nvml_process_sample, timestamp_us, 8);
NVML_AT(nvml_process_sample, sm, 16);
NVML_AT(nvml_process_sample, memory, 20);
NVML_AT(nvml_process_sample, encoder, 24);
NVML_AT(nvml_process_sample, decoder, 28);
NVML_SIZE(nvml_process_utilization, 40);
NVML_AT(nvml_process_utilization, timestamp_us, 0);
NVML_AT(nvml_process_utilization, pid, 8);
NVML_AT(nvml_process_utilization, sm, 12);
NVML_AT(nvml_process_utilization, memory, 16);
NVML_AT(nvml_process_utilization, encoder, 20);
NVML_AT(nvml_process_utilization, decoder, 24);
NVML_AT(nvml_process_utilization, jpeg, 28);
NVML_AT(nvml_process_utilization, ofa, 32);
NVML_SIZE(nvml_processes_utilization, 24);
NVML_AT(nvml_processes_utilization, count, 4);
NVML_AT(nvml_processes_utilization, last_seen_us, 8);
NVML_AT(nvml_processes_utilization, entries, 16);
static_assert(NVML_PROCESSES_UTILIZATION_V1 == 0x01000018, "the version of nvml_processes_utilization");
NVML_SIZE(nvml_attributes, 40);
NVML_AT(nvml_attributes, multiprocessors, 0);
NVML_AT(nvml_attributes, gi_slices, 24);
NVML_AT(nvml_attributes, ci_slices, 28);
NVML_AT(nvml_attributes, memory_mib, 32);
NVML_SIZE(nvml_memory_v1, 24);
NVML_SIZE(nvml_memory, 40);
NVML_AT(nvml_memory, total, 8);
NVML_AT(nvml_memory, reserved, 16);
NVML_AT(nvml_memory, free, 24);
NVML_AT(nvml_memory, used, 32);
static_assert(NVML_MEMORY_V2 == 0x02000028, "the version of nvml_memory");
NVML_SIZE(nvml_utilization, 8);
NVML_SIZE(nvml_pci_info, 68);
NVML_AT(nvml_pci_info, domain, 16);
NVML_AT(nvml_pci_info, bus_id, 36);
NVML_SIZE(nvml_accounting, 56);
NVML_AT(nvml_accounting, gpu, 0);
NVML_AT(nvml_accounting, memory, 4);
NVML_AT(nvml_accounting, max_memory, 8);
NVML_AT(nvml_accounting, time_ms, 16);
NVML_AT(nvml_accounting, start_us, 24);
NVML_AT(nvml_accounting, running, 32);
NVML_SIZE(nvml_accounting_v2, 64);
NVML_AT(nvml_accounting_v2, pid, 0);
NVML_AT(nvml_accounting_v2, running, 4);
NVML_AT(nvml_accounting_v2, gpu, 8);
NVML_AT(nvml_accounting_v2, memory, 12);
NVML_AT(nvml_accounting_v2, max_memory, 16);
NVML_AT(nvml_accounting_v2, sample_count, 24);
NVML_AT(nvml_accounting_v2, sum_gpu, 32);
NVML_AT(nvml_accounting_v2, sum_memory, 40);
NVML_AT(nvml_accounting_v2, time_ms, 48);
NVML_AT(nvml_accounting_v2, start_us, 56);
NVML_SIZE(nvml_placement, 8);
NVML_AT(nvml_placement, start, 0);
NVML_AT(nvml_placement, size, 4);
NVML_SIZE(nvml_gpu_instance_info, 24);
NVML_AT(nvml_gpu_instance_info, device, 0);
NVML_AT(nvml_gpu_instance_info, id, 8);
NVML_AT(nvml_gpu_instance_info, profile, 12);
NVML_AT(nvml_gpu_instance_info, placement, 16);
NVML_SIZE(nvml_event, 32);
NVML_AT(nvml_event, device, 0);
NVML_AT(nvml_event, type, 8);
NVML_AT(nvml_event, data, 16);
NVML_AT(nvml_event, gi, 24);
NVML_AT(nvml_event, ci, 28);
NVML_SIZE(nvml_field_value, 40);
NVML_AT(nvml_field_value, id, 0);
NVML_AT(nvml_field_value, scope, 4);
NVML_AT(nvml_field_value, timestamp_us, 8);
NVML_AT(nvml_field_value, latency_us, 16);
NVML_AT(nvml_field_value, type, 24);
NVML_AT(nvml_field_value, status, 28);
NVML_AT(nvml_field_value, value, 32);
NVML_SIZE(nvml_gpm_metric, 40);
NVML_AT(nvml_gpm_metric, id, 0);
NVML_AT(nvml_gpm_metric, status, 4);
NVML_AT(nvml_gpm_metric, value, 8);
NVML_AT(nvml_gpm_metrics, count, 4);
NVML_AT(nvml_gpm_metrics, from, 8);
NVML_AT(nvml_gpm_metrics, to, 16);
NVML_AT(nvml_gpm_metrics, metrics, 24);
NVML_SIZE(nvml_gpm_support, 8);
NVML_AT(nvml_gpm_support, supported, 4);
static_assert(sizeof(struct nvml_gpm_metrics) + 98 * sizeof(struct nvml_gpm_metric) == 3944, "nvml_gpm_metrics of 98");
static_assert(sizeof(struct nvml_gpm_metrics) + 210 * sizeof(struct nvml_gpm_metric) == 8424,
              "nvml_gpm_metrics of 210");
static_assert(sizeof(struct nvml_gpm_metrics) + 333 * sizeof(struct nvml_gpm_metric) == 13344,
              "nvml_gpm_metrics of 333");

/* Every function in use: REQUIRED ones make a library usable, without the OPTIONAL ones something is absent from the
 * readings. The table of nvml.c and the prototypes of the simulator both come from this list. */
#define NVML_FUNCTIONS(REQUIRED, OPTIONAL)                                                                           \
	REQUIRED(int, nvmlInit_v2, (void))                                                                           \
	REQUIRED(int, nvmlShutdown, (void))                                                                          \
	REQUIRED(const char *, nvmlErrorString, (int status))                                                        \
	REQUIRED(int, nvmlDeviceGetCount_v2, (uint32_t * count))                                                     \
	REQUIRED(int, nvmlDeviceGetHandleByIndex_v2, (uint32_t index, struct nvml_device * *device))                 \
	REQUIRED(int, nvmlDeviceGetUUID, (struct nvml_device * device, char *text, uint32_t size))                   \
	REQUIRED(int, nvmlDeviceGetName, (struct nvml_device * device, char *text, uint32_t size))                   \
	OPTIONAL(int, nvmlSystemGetDriverVersion, (char *text, uint32_t size))                                       \
	OPTIONAL(int, nvmlSystemGetNVMLVersion, (char *text, uint32_t size))                                         \
	OPTIONAL(int, nvmlSystemGetProcessName, (uint32_t pid, char *text, uint32_t size))                           \
	OPTIONAL(int, nvmlDeviceGetPciInfo_v3, (struct nvml_device * device, struct nvml_pci_info * pci))            \
	OPTIONAL(int, nvmlDeviceGetUtilizationRates, (struct nvml_device * device, struct nvml_utilization * rates)) \
	OPTIONAL(int, nvmlDeviceGetMemoryInfo_v2, (struct nvml_device * device, struct nvml_memory * memory))        \
	OPTIONAL(int, nvmlDeviceGetMemoryInfo, (struct nvml_device * device, struct nvml_memory_v1 * memory))        \
	OPTIONAL(int, nvmlDeviceGetPowerUsage, (struct nvml_device * device, uint32_t * milliwatts))                 \
	OPTIONAL(int, nvmlDeviceGetTotalEnergyConsumption, (struct nvml_device * device, uint64_t * millijoules))    \
	OPTIONAL(int, nvmlDeviceGetTemperature, (struct nvml_device * device, uint32_t sensor, uint32_t * celsius))  \
	OPTIONAL(int, nvmlDeviceGetMigMode, (struct nvml_device * device, uint32_t * current, uint32_t * pending))   \
	OPTIONAL(int, nvmlDeviceGetMaxMigDeviceCount, (struct nvml_device * device, uint32_t * count))               \
	OPTIONAL(int, nvmlDeviceGetMigDeviceHandleByIndex,                                                           \
	         (struct nvml_device * device, uint32_t index, struct nvml_device * *mig))                           \
	OPTIONAL(int, nvmlDeviceGetGpuInstanceId, (struct nvml_device * mig, uint32_t * id))                         \
	OPTIONAL(int, nvmlDeviceGetComputeInstanceId, (struct nvml_device * mig, uint32_t * id))                     \
	OPTIONAL(int, nvmlDeviceGetAttributes_v2, (struct nvml_device * mig, struct nvml_attributes * attributes))   \
	NVML_PROCESS_LIST(OPTIONAL, nvmlDeviceGetComputeRunningProcesses)                                            \
	NVML_PROCESS_LIST(OPTIONAL, nvmlDeviceGetGraphicsRunningProcesses)                                           \
	NVML_PROCESS_LIST(OPTIONAL, nvmlDeviceGetMPSComputeRunningProcesses)                                         \
	OPTIONAL(int, nvmlDeviceGetProcessUtilization,                                                               \
	         (struct nvml_device * device, struct nvml_process_sample * samples, uint32_t * count,               \
	          uint64_t last_seen_us))                                                                            \
	NVML_PROCESS_FUNCTIONS(OPTIONAL)                                                                             \
	NVML_BOARD_FUNCTIONS(OPTIONAL)                                                                               \
	NVML_EVENT_FUNCTIONS(OPTIONAL)                                                                               \
	NVML_MIG_FUNCTIONS(OPTIONAL)                                                                                 \
	NVML_GPM_FUNCTIONS(OPTIONAL)

#define NVML_PROCESS_LIST(OPTIONAL, name)                                                        \
	OPTIONAL(int, name##_v3, (struct nvml_device * device, uint32_t * count, void *entries)) \
	OPTIONAL(int, name##_v2, (struct nvml_device * device, uint32_t * count, void *entries)) \
	OPTIONAL(int, name, (struct nvml_device * device, uint32_t * count, void *entries))

#define NVML_PROCESS_FUNCTIONS(OPTIONAL)                                                                             \
	OPTIONAL(int, nvmlDeviceGetProcessesUtilizationInfo,                                                         \
	         (struct nvml_device * device, struct nvml_processes_utilization * info))                            \
	OPTIONAL(int, nvmlDeviceGetAccountingMode, (struct nvml_device * device, uint32_t * on))                     \
	OPTIONAL(int, nvmlDeviceSetAccountingMode, (struct nvml_device * device, uint32_t on))                       \
	OPTIONAL(int, nvmlDeviceGetAccountingPids, (struct nvml_device * device, uint32_t * count, uint32_t * pids)) \
	OPTIONAL(int, nvmlDeviceGetAccountingStats,                                                                  \
	         (struct nvml_device * device, uint32_t pid, struct nvml_accounting * stats))                        \
	OPTIONAL(int, nvmlDeviceGetAccountingStats_v2, (struct nvml_device * device, struct nvml_accounting_v2 * stats))

/* The older name of the clocks' event reasons is throttle reasons; the bits are the same. */
#define NVML_BOARD_FUNCTIONS(OPTIONAL)                                                                              \
	OPTIONAL(int, nvmlDeviceGetClockInfo, (struct nvml_device * device, uint32_t clock, uint32_t * mhz))        \
	OPTIONAL(int, nvmlDeviceGetCurrentClocksEventReasons, (struct nvml_device * device, uint64_t * reasons))    \
	OPTIONAL(int, nvmlDeviceGetCurrentClocksThrottleReasons, (struct nvml_device * device, uint64_t * reasons)) \
	OPTIONAL(int, nvmlDeviceGetEnforcedPowerLimit, (struct nvml_device * device, uint32_t * milliwatts))        \
	OPTIONAL(int, nvmlDeviceGetEncoderUtilization,                                                              \
	         (struct nvml_device * device, uint32_t * percent, uint32_t * period_us))                           \
	OPTIONAL(int, nvmlDeviceGetDecoderUtilization,                                                              \
	         (struct nvml_device * device, uint32_t * percent, uint32_t * period_us))                           \
	OPTIONAL(int, nvmlDeviceGetTotalEccErrors,                                                                  \
	         (struct nvml_device * device, uint32_t error_type, uint32_t counter, uint64_t * count))            \
	OPTIONAL(int, nvmlDeviceGetRemappedRows,                                                                    \
	         (struct nvml_device * device, uint32_t * corrected, uint32_t * uncorrected, uint32_t * pending,    \
	          uint32_t * failed))                                                                               \
	OPTIONAL(int, nvmlDeviceGetPcieThroughput,                                                                  \
	         (struct nvml_device * device, uint32_t counter, uint32_t * kib_per_s))                             \
	OPTIONAL(int, nvmlDeviceGetPcieReplayCounter, (struct nvml_device * device, uint32_t * count))              \
	OPTIONAL(int, nvmlDeviceGetCurrPcieLinkGeneration, (struct nvml_device * device, uint32_t * generation))    \
	OPTIONAL(int, nvmlDeviceGetCurrPcieLinkWidth, (struct nvml_device * device, uint32_t * width))              \
	OPTIONAL(int, nvmlDeviceGetFieldValues,                                                                     \
	         (struct nvml_device * device, int count, struct nvml_field_value *values))

#define NVML_EVENT_FUNCTIONS(OPTIONAL)                                                                   \
	OPTIONAL(int, nvmlEventSetCreate, (struct nvml_event_set * *set))                                \
	OPTIONAL(int, nvmlDeviceGetSupportedEventTypes, (struct nvml_device * device, uint64_t * types)) \
	OPTIONAL(int, nvmlDeviceRegisterEvents,                                                          \
	         (struct nvml_device * device, uint64_t types, struct nvml_event_set * set))             \
	OPTIONAL(int, nvmlEventSetWait_v2,                                                               \
	         (struct nvml_event_set * set, struct nvml_event * event, uint32_t timeout_ms))          \
	OPTIONAL(int, nvmlEventSetFree, (struct nvml_event_set * set))

/* Only root may read the placement of an instance. */
#define NVML_MIG_FUNCTIONS(OPTIONAL)                                                               \
	OPTIONAL(int, nvmlDeviceGetGpuInstanceById,                                                \
	         (struct nvml_device * device, uint32_t id, struct nvml_gpu_instance * *instance)) \
	OPTIONAL(int, nvmlGpuInstanceGetInfo,                                                      \
	         (struct nvml_gpu_instance * instance, struct nvml_gpu_instance_info * info))

/* Of Hopper and later. */
#define NVML_GPM_FUNCTIONS(OPTIONAL)                                                                               \
	OPTIONAL(int, nvmlGpmQueryDeviceSupport, (struct nvml_device * device, struct nvml_gpm_support * support)) \
	OPTIONAL(int, nvmlGpmSampleAlloc, (struct nvml_gpm_sample * *sample))                                      \
	OPTIONAL(int, nvmlGpmSampleFree, (struct nvml_gpm_sample * sample))                                        \
	OPTIONAL(int, nvmlGpmSampleGet, (struct nvml_device * device, struct nvml_gpm_sample * sample))            \
	OPTIONAL(int, nvmlGpmMigSampleGet,                                                                         \
	         (struct nvml_device * device, uint32_t gi, struct nvml_gpm_sample * sample))                      \
	OPTIONAL(int, nvmlGpmMetricsGet, (struct nvml_gpm_metrics * metrics))

#endif
