/* exporter/identity/alloc_device.h - the ways in which schedulers name a GPU, and which devices they mean. Pure. */
#ifndef TOLLGATE_ALLOC_DEVICE_H
#define TOLLGATE_ALLOC_DEVICE_H

#include "exporter/source/gpu_source.h"

/* "GPU-<uuid>", "MIG-<uuid>", "MIG-GPU-<uuid>/<gi>/<ci>" (drivers before 470), "3" (an index as nvidia-smi counts), "nvidia3",
 * "nvidia3/gi1", "nvidia3/vgpu2", "nvidia3/gi1/vgpu2" (GKE's device plugin). */
struct device_name {
	char *uuid;         /* NULL: by index, or no device at all */
	int32_t index;      /* -1: by UUID */
	int32_t gi, ci;     /* -1: not told */
	int32_t replica;    /* -1: not told */
	int32_t replica_of; /* 0: not told */
};

struct device_name device_name_parse(const char *text);
struct device_name device_name_none(void);
bool device_name_is_none(const struct device_name *d);
bool device_name_equal(const struct device_name *a, const struct device_name *b);
void device_name_fini(struct device_name *d);

/* The UUIDs of the devices that are meant, as the driver has them: one, or the compute instances of a GPU instance; 0: there
 * is none such here. A UUID is taken as it is, whether or not the driver shows it now. */
size_t device_name_resolve(const struct device_name *d, const struct gpu_snapshot *snap,
                           const char *ret[GPU_INSTANCE_MAX]);

#endif
