/* exporter/meter/meter.h - from ticks to interval records. Pure: times and readings in, records out.
 *
 * Between two ticks lies a slot (prev, now]. In it (BILLING 1):
 *  1. an allocation holds its device, also with no process, from the tick that first shows it (or from its own beginning, where
 *     that is known) until the first tick that misses it
 *  2. a process holds only a device that nobody is allocated, from the later of the previous tick and its start until its end,
 *     where the driver's accounting tells it, else until the first tick that misses it; so does one that began and ended
 *     inside the slot. A process of somebody else on an allocated device holds nothing: an intruder. A holder is all
 *     processes of one workload on one device. A process whose holder becomes another one (a name or labels came to be known) is
 *     the former's until the tick that says so
 *  3. a slot is cut into pieces where a holder begins or ends, and at every multiple of the interval since 1970
 *  4. several holders of one device have equal parts of each piece, by largest remainder; with n replicas advertised each
 *     holder has one of n parts, or as many as replicas are allocated to it (n raised to what is held if that is more), the
 *     free parts are unallocated. Nanosecond t of wall time belongs to part t mod n: that is largest remainder in every
 *     piece, however it is cut
 *  5. a slot longer than twice the sample interval is unknown, on every GPU; so is one at whose beginning or end a GPU was
 *     silent, on that GPU, also when it is allocated: that is evidence of a holder, but none that the GPU could be used while
 *     its driver hung, and nobody is billed for it. A GPU that is lost or in error is down
 *  6. in every piece and for every GPU the units x held_ns of its records add up to 5040 x the piece
 *  7. used is what the source measured, never more than held; the excess is over. The activity of a device is the only
 *     one's that has a process there, or an intruder's; between several it is divided by what is measured for each process
 *     (measured), else by what each holds (estimated). A process whose accounting tells its activity has that. What is held and
 *     was not measured is unmeasured: method none, or reserved where an allocation holds it
 *  8. a slot has the MIG layout that its first tick saw: a GPU is re-partitioned at the tick that notices it. A slot in which MIG
 *     mode changed, or at one end of which the GPU was down, is down
 *  9. a GPU's energy in a slot is what its counter rose by, E. With A the active unit-ns of all records (all that is held where it
 *     is unmeasured) of T = 5040 x the slot, E x A/T is divided by activity and the rest by units x time, held or not: so the
 *     idle rest of what nobody holds is on records without a holder. Both by largest remainder: the parts add up to E. A
 *     counter that fell began anew: the energy of that slot is not known, and none is made up
 * 10. a gap of more than a day is not covered at all: the ledger knows it as unknown, and a clock gone wild makes no records
 * 11. beside what is billed a record has, where the source tells it: the most memory that the holder's processes had at once, as ticks and
 *     accounting saw it, and the time in which the multiprocessors of its device worked, weighed by their share. Between several
 *     holders the latter is divided as activity was, or by what they hold where there was none; it is never more than held */
#ifndef TOLLGATE_METER_H
#define TOLLGATE_METER_H

#include "common/wire/wire.h"
#include "exporter/source/gpu_source.h"

/* A process with its owner, as the sampler found it. */
struct tick_process {
	const struct wire_holder *holder; /* read during the call only; equal content is the same holder */
	uint32_t pid;
	int64_t start_boot_ns; /* with the PID: which process */
	int32_t gi, ci;
	int64_t memory_bytes; /* ABSENT: not known */
	int64_t sm_ppm;
};
/* A process that ended since the previous tick, as the driver's accounting tells. Its times are as exact as the driver's. */
struct tick_exit {
	const struct wire_holder *holder; /* NULL: nobody knows whose it was */
	uint32_t pid;
	int64_t start_boot_ns, end_boot_ns;
	int64_t active_ppm; /* of its lifetime; ABSENT: not known */
	int64_t memory_bytes;
};
struct tick_gpu {
	const struct gpu_reading *reading;
	const struct tick_process *processes;
	size_t process_count;
	const struct tick_exit *exits;
	size_t exit_count;
};
/* What a scheduler gave to a holder. */
struct tick_allocation {
	const struct wire_holder *holder; /* equal content to that of its processes */
	const char *device_uuid;          /* of a GPU or a MIG instance, as the driver has it */
	int32_t replica;                  /* -1: all of the device */
	int32_t replica_of;               /* how many are advertised; 0: not told */
	int64_t begin_boot_ns;            /* ABSENT: not known */
};
struct tick {
	int64_t boot_ns;
	const struct tick_gpu *gpus;
	size_t gpu_count;
	const struct tick_allocation *allocations;
	size_t allocation_count;
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

/* Takes a tick. Returns true when it closed an interval: then meter_batch has something to take, and must be called. An interval
 * with very many records is closed before its end. */
bool meter_tick(struct meter *m, const struct tick *t);
/* Closes the open interval now, at the last tick (stop, or a new stream epoch). */
void meter_flush(struct meter *m);

/* Moves the closed records and the time they cover into a batch (records, from_ns, to_ns), with the dictionary entries
 * that its records need and that no batch has had since the last one with full_dict; with full_dict, all that they need.
 * So what follows a full one can be read without what came before it. False when nothing is closed. */
bool meter_batch(struct meter *m, bool full_dict, struct wire_batch *into);

/* Running totals per workload and device, in unit-nanoseconds since the workload was first seen, for /metrics. A total is gone
 * with the tick that misses its workload: its end is in the ledger. One on a silent GPU stays. */
struct meter_total {
	const struct wire_holder *holder;
	const struct wire_device *device;
	const struct wire_device *gpu; /* the physical GPU of the device, or the device itself */
	int128 used_unit_ns, idle_unit_ns, unmeasured_unit_ns;
};
size_t meter_totals(const struct meter *m, const struct meter_total **ret);

/* Activity of each process of the last tick since it was first seen, in the tick's order: GPU by GPU, as they are listed
 * there. */
struct meter_process_total {
	bool measured;         /* once, at least: by process, or as the only one on its device */
	int128 active_unit_ns; /* as the driver told it, before it is divided among holders */
};
size_t meter_process_totals(const struct meter *m, const struct meter_process_total **ret);

/* Who is on a device that is allocated to somebody else, at the last tick. */
struct meter_intruder {
	const struct wire_holder *holder;
	const struct wire_device *device;
	const struct wire_device *gpu;
};
size_t meter_intruders(const struct meter *m, const struct meter_intruder **ret);

struct meter_stats {
	int64_t short_processes; /* no tick saw them, accounting told of them: they hold, or are active for their allocation */
	int64_t short_not_held; /* no tick saw them, and they hold nothing: nobody knows whose, or on a device of others */
	int64_t intrusions;     /* times that a holder came upon a device allocated to somebody else */
	int64_t energy_resets;      /* slots of a GPU without energy, because its counter fell or jumped */
	int64_t unknown_slots;      /* slots of a GPU booked as unknown */
	size_t allocations_unknown; /* of the last tick: for devices that are not there */
};
void meter_stats(const struct meter *m, struct meter_stats *ret);

/* Totals and counts go on from those of the stream before, whose meter has taken the same tick last: a step of the clock is no
 * reason for a counter of /metrics to fall. */
void meter_carry(struct meter *m, const struct meter *before);

#endif
