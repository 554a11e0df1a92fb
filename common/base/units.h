/* common/base/units.h - weights of GPUs, MIG instances and replicas. One whole GPU is 5040 units (BILLING). */
#ifndef TOLLGATE_UNITS_H
#define TOLLGATE_UNITS_H

#include "common/base/err.h"

#define UNITS_PER_GPU INT64_C(5040)

/* How a model can be cut: an H100 has 7 compute and 8 memory slices, an A30 4 and 4. */
struct mig_geometry {
	int compute_slices;
	int memory_slices;
	int64_t memory_slice_mib; /* nominal, to read a profile's memory as slices */
};

struct mig_slices {
	int compute;    /* of the instance that is held */
	int memory;     /* of its GPU instance */
	int gi_compute; /* of its GPU instance; above compute when the compute instance is smaller than that */
};

/* The geometry of a model by its NVML name and its total memory; ERR_MISSING when it cannot be cut or is not known. */
MUST_CHECK bool mig_geometry_of(const char *model, int64_t memory_mib, struct mig_geometry *ret, struct err *err);

/* "3g.40gb", "1g.10gb+me", "1c.3g.40gb". */
MUST_CHECK bool mig_profile_parse(const struct mig_geometry *g, const char *profile, struct mig_slices *ret,
                                  struct err *err);

/* The mean of compute and memory share: (compute * M + memory * C) / (2 C M) of 5040. A compute instance smaller than
 * its GPU instance has its part of that memory: compute / gi_compute. Whole units for every legal profile. */
int64_t units_of_slices(const struct mig_geometry *g, struct mig_slices s);

/* Of free slices: the units of the largest set of instances that could still be created from them. The
 * other free units of a partitioned GPU are stranded. */
int64_t units_creatable(const struct mig_geometry *g, int compute_left, int memory_left);

/* The same where it is known which memory slices are taken (one bit each, from the lowest): a profile may begin at certain
 * slices only, so that free ones may be out of reach. Geometries whose places are not known have nothing left once a slice
 * is taken. */
int64_t units_creatable_at(const struct mig_geometry *g, uint32_t taken);
/* Whether a GPU instance of these slices may begin at a memory slice. False for geometries whose places are not known. */
bool mig_may_begin_at(const struct mig_geometry *g, int gi_compute, int memory, int start);

/* The most that a board of a model draws over any time, in watts: the makers' limit with half as much again, because a limit may be
 * raised and is overshot for moments. A model that is not in the table has GPU_POWER_UNKNOWN_W in its place. */
#define GPU_POWER_UNKNOWN_W 1500
int64_t gpu_power_most_w(const char *model);
/* The memory that a model has by its name, in bytes; 0: its name does not say. */
int64_t gpu_memory_most_bytes(const char *model);

/* Short model name used in policies, prices and reports: "NVIDIA H100 80GB HBM3" is "H100-80GB",
 * "NVIDIA A100-SXM4-40GB" is "A100-40GB"; an unknown name is kept, without the vendor's prefix. Writes at most size
 * bytes. */
void gpu_model_short(const char *nvml_name, char *out, size_t size);

#endif
