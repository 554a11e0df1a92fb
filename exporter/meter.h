/* exporter/meter.h - from ticks to interval records. Pure: times and readings in, records out.
 *
 * Between two ticks lies a slot (prev, now]. In it (BILLING 1):
 *  1. a process without an allocation holds from the later of the previous tick and its start until the first tick that
 *     misses it; a holder is all processes of one workload on one device
 *  2. a slot is cut into pieces where a holder begins, and at every multiple of the interval since 1970
 *  3. several holders of one device have equal parts of each piece, by largest remainder; with n replicas advertised each
 *     holder has one of n parts (n raised to the number of holders if there are more), the free parts are unallocated.
 *     Nanosecond t of wall time belongs to part t mod n: that is largest remainder in every piece, however it is cut
 *  4. used is what the source measured, never more than held; the excess is over
 *  5. a slot longer than twice the sample interval is unknown, on every GPU; a GPU that does not answer is down
 *  6. in every piece and for every GPU the units x held_ns of its records add up to 5040 x the piece
 *  7. a GPU's energy in a slot is divided by activity, by what is held when nothing was active; the parts add up
 *  8. a slot has the MIG layout that its first tick saw: a GPU is re-partitioned at the tick that notices it. A slot in which MIG
 *     mode changed, or at one end of which the GPU did not answer, is down
 *  9. a gap of more than a day is not covered at all: the ledger knows it as unknown, and a clock gone wild makes no records */
#ifndef TOLLGATE_EXPORTER_METER_H
#define TOLLGATE_EXPORTER_METER_H

#include "common/wire.h"
#include "exporter/gpu_source.h"

/* A process with its owner, as the sampler found it. */
struct tick_process {
	const struct wire_holder *holder; /* read during the call only; equal content is the same holder */
	uint32_t pid;                     /* for /metrics; the meter does not look at it */
	int64_t start_boot_ns;
	int32_t gi, ci;
	int64_t memory_bytes; /* ABSENT: not known */
	int64_t sm_ppm;
};
struct tick_gpu {
	const struct gpu_reading *reading;
	const struct tick_process *processes;
	size_t process_count;
};
struct tick {
	int64_t boot_ns;
	const struct tick_gpu *gpus;
	size_t gpu_count;
};

struct meter_options {
	int64_t sample_interval_ns;
	int64_t interval_ns;    /* divides 15 minutes */
	int64_t wall_offset_ns; /* wall = boot + offset, fixed for the stream */
	int replicas;           /* each whole GPU is advertised as this many; 1: not shared by replicas */
};

struct meter;
struct meter *meter_new(const struct meter_options *o);
void meter_free(struct meter *m);
DEFINE_OWNED(meter, struct meter)

/* Takes a tick. Returns true when it closed an interval: then meter_batch has something to take, and must be called. */
bool meter_tick(struct meter *m, const struct tick *t);
/* Closes the open interval now, at the last tick (stop, or a new stream epoch). */
void meter_flush(struct meter *m);

/* Moves the closed records and the time they cover into a batch (records, from_ns, to_ns), with the dictionary entries
 * that its records need and that no batch has had since the last one with full_dict; with full_dict, all that they need.
 * So what follows a full one can be read without what came before it. False when nothing is closed. */
bool meter_batch(struct meter *m, bool full_dict, struct wire_batch *into);

/* Running totals per workload and device, in unit-nanoseconds since the workload was first seen, for /metrics. A total stays for
 * one whole interval after its workload ended. */
struct meter_total {
	const struct wire_holder *holder;
	const struct wire_device *device;
	const struct wire_device *gpu; /* the physical GPU of the device, or the device itself */
	int128 used_unit_ns, idle_unit_ns, unmeasured_unit_ns;
};
size_t meter_totals(const struct meter *m, const struct meter_total **ret);

#endif
