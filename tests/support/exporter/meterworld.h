/* tests/support/exporter/meterworld.h - a small node for tests of the meter: GPUs, processes, exits and allocations that a test puts there and
 * takes away, and what the meter makes of them as lines of text. */
#ifndef TOLLGATE_TESTS_METERWORLD_H
#define TOLLGATE_TESTS_METERWORLD_H

#include "common/base/time.h"
#include "exporter/meter/meter.h"

#define S NS_PER_S
#define MS NS_PER_MS
/* wall time of boot + 0: a quarter-hour */
#define OFFSET (INT64_C(1999999) * NS_PER_QUARTER_HOUR)

struct meterworld {
	struct meter *meter;
	struct gpu_reading *gpus;
	struct tick_gpu tick_gpus[4];
	struct tick_process processes[4][8];
	struct tick_process exits[4][8];
	struct tick_allocation allocations[8];
	size_t allocation_count;
	size_t gpu_count;
	struct wire_holder alice, bob, carol;
};

/* Whole GPUs named GPU-0 and on, measured and not active, without a counter of energy. */
void meterworld_init(struct meterworld *w, size_t gpus, int replicas);
void meterworld_fini(struct meterworld *w);

/* A process that is there until stop_all, on the whole GPU, with nothing known of its activity. PIDs go up from 100. */
struct tick_process *run(struct meterworld *w, size_t gpu, const struct wire_holder *h, int64_t start_boot_ns);
void stop_all(struct meterworld *w, size_t gpu);
/* Told by the next tick only; holder NULL: not known. */
struct tick_process *ended(struct meterworld *w, size_t gpu, const struct wire_holder *h, uint32_t pid,
                           int64_t start_boot_ns, int64_t end_boot_ns);
/* There until w->allocation_count is set lower. */
struct tick_allocation *allocate(struct meterworld *w, const struct wire_holder *h, const char *device_uuid,
                                 int32_t replica);
/* Named MIG-gi, not measured. */
struct gpu_instance *instance(struct gpu_reading *g, int gi, const char *profile, int64_t units);

bool tick(struct meterworld *w, int64_t boot_ns);
void ticks(struct meterworld *w, int64_t from_ns, int64_t to_ns); /* one a second */

/* Flushes, takes the batch with its full dictionary, and checks it. */
struct wire_batch *take_all(struct meterworld *w);
const struct wire_device *device_of(const struct wire_batch *b, uint32_t id);
/* Of one GPU and its instances. */
int128 unit_ns(const struct wire_batch *b, const char *gpu_uuid);
/* take_all, with one line per record: device, holder, state, sharing, method, start and length in ms since boot, amounts. */
void expect(struct meterworld *w, const char *want);

#endif
