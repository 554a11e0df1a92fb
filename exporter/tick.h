/* exporter/tick.h - what one tick saw: the GPUs, the processes on them with their holders, and the allocations.
 *
 * The sampler fills it. The meter, the status message and /metrics read it during that tick; nobody keeps a pointer into it. */
#ifndef TOLLGATE_TICK_H
#define TOLLGATE_TICK_H

#include "common/base/text.h"
#include "common/wire/wire.h"
#include "exporter/source/gpu_source.h"

/* A process on a GPU. Either it runs, or it ended since the previous tick and the driver's accounting reported it, with times as exact
 * as the driver's. */
struct tick_process {
	const struct wire_holder
		*holder; /* equal content is the same holder; NULL: an ended process whose holder is not known */
	char slurm_sluid[SLUID_CHARS + 1]; /* that its cgroup has in place of its job's number; empty: none */
	uint32_t pid;
	int64_t start_boot_ns; /* with the PID: which process */
	int64_t end_boot_ns;   /* of an ended process */
	int32_t gi, ci;        /* of a running process; -1: the whole GPU */
	int64_t memory_bytes;  /* ABSENT: not known */
	int64_t sm_ppm; /* activity since the previous tick, or over the life of an ended process; ABSENT: not known */
};

struct tick_gpu {
	const struct gpu_reading *reading;
	const struct tick_process *processes; /* that run */
	size_t process_count;
	const struct tick_process *exits; /* that ended since the previous tick, as accounting reports them */
	size_t exit_count;
};

/* A device, or a replica of it, that a scheduler gave to a holder. */
struct tick_allocation {
	const struct wire_holder *holder; /* equal content to that of its processes */
	const char *device_uuid;          /* of a GPU or a MIG instance, as the driver has it */
	int32_t replica;                  /* -1: all of the device */
	int32_t replica_of;               /* how many are advertised; 0: not known */
	int64_t begin_boot_ns;            /* ABSENT: not known */
};

struct tick {
	int64_t boot_ns;
	const struct tick_gpu *gpus;
	size_t gpu_count;
	const struct tick_allocation *allocations;
	size_t allocation_count;
};

#endif
