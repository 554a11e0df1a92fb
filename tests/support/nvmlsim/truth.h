/* tests/support/nvmlsim/truth.h - what a scenario says happened between two moments, exactly: what a meter should have found.
 *
 * Computed from the scenario alone, not by the simulator's library, and without regard to ticks: a test that lets things happen
 * at ticks gets what a perfect meter gets. Processes registered while the simulator ran (sim_live.h) are not in it. */
#ifndef TOLLGATE_NVMLSIM_TRUTH_H
#define TOLLGATE_NVMLSIM_TRUTH_H

#include "tests/support/nvmlsim/moment.h"

/* A workload on one device during a stretch. */
struct truth_holder {
	const char *workload; /* sim_process.workload */
	int place;            /* index of the instance in the layout, or PLACE_WHOLE */
	size_t processes;
	int64_t active_ppm;   /* of the device, its processes together, at most 1000000 */
	int64_t memory_bytes; /* together */
};

/* The longest time in which nothing changes on a GPU. */
struct truth_stretch {
	size_t gpu;
	int64_t from_ns, to_ns;
	const struct sim_layout *layout;
	const struct sim_fault *fault; /* NULL: it answers. With a fault, the holders are there but cannot be seen */
	bool unloaded;                 /* the driver is gone: nothing is known */
	const struct truth_holder *holders; /* by place, then by name. An MPS server is none */
	size_t holder_count;
	int64_t power_mw;
};
typedef void truth_visit(void *arg, const struct truth_stretch *s);
/* All stretches of a GPU, in order, from..to without a gap. */
void truth_walk(const struct scenario *sc, size_t gpu, int64_t from_ns, int64_t to_ns, truth_visit *visit, void *arg);

/* Parts of a unit-nanosecond: divisible by every number of holders up to 16, so that equal parts are whole numbers. */
#define TRUTH_PARTS INT64_C(720720)

/* A workload on one device over all of the time, while the GPU answered. */
struct truth_row {
	size_t gpu;
	char device[SIM_TEXT]; /* UUID of the GPU or the instance */
	int64_t units;         /* of the device: 5040, or the instance's */
	char *workload;
	int64_t present_ns; /* with a process on it */
	/* Equal parts of the device among the workloads present, x units x ns x TRUTH_PARTS. */
	int128 held;
	/* Of that: active, never more than held; and the activity beyond it. On a device that cannot be measured (MIG before Hopper)
	 * the activity is there all the same. */
	int128 used, over;
	int128 memory_byte_ns;
};
struct truth {
	struct truth_row *rows; /* by GPU, device, workload */
	size_t count, cap;
	/* per GPU: time, and units x ns, that no workload held */
	int64_t down_ns[SIM_GPUS_MAX], unloaded_ns[SIM_GPUS_MAX];
	int128 free_unit_ns
		[SIM_GPUS_MAX]; /* whole GPUs, instances and slices without a holder, the stranded ones too */
	int128 energy_mw_ns[SIM_GPUS_MAX];
};
/* replicas: each whole GPU is advertised as this many, 1: not. A workload then has one of n parts. */
struct truth *truth_new(const struct scenario *sc, int64_t from_ns, int64_t to_ns, int replicas);
void truth_free(struct truth *t);
DEFINE_OWNED(truth, struct truth)
const struct truth_row *truth_find(const struct truth *t, const char *device, const char *workload); /* NULL: none */

#endif
