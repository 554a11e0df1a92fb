/* exporter/meter/meter.h - from ticks to interval records. Pure: times and readings in, records out.
 *
 * Between two ticks lies a slot (prev, now]. In it (BILLING 1):
 *  1. an allocation holds its device, also with no process, from the tick that first shows it (or from its own beginning, where
 *     that is known) until the first tick that misses it
 *  2. a process holds a device only if that is allocated to nobody: from the later of the previous tick and its start until its
 *     end, where the driver's accounting reports it, else until the first tick that misses it; so does a process that began and
 *     ended inside the slot. On a device that is allocated to another holder it holds nothing and is an intruder. All processes
 *     of one workload on one device are one holder. A process whose holder becomes another one (its name or labels became known)
 *     belongs to the former until the tick that shows the change
 *  3. a slot is cut into pieces where a holder begins or ends, and at every multiple of the interval since 1970
 *  4. several holders of one device have equal parts of each piece, by largest remainder; with n replicas advertised each
 *     holder has one of n parts, or as many as replicas are allocated to it (n is raised if more are held), and the
 *     free parts are unallocated. Nanosecond t of wall time belongs to part t mod n: that is largest remainder in every
 *     piece, however it is cut
 *  5. a slot longer than twice the sample interval is unknown, on every GPU; so is one at whose beginning or end a GPU was
 *     silent, on that GPU. Nobody is billed for it, also when the GPU is allocated: an allocation does not show that the GPU
 *     could be used while its driver hung. A GPU that is lost or in error is down
 *  6. in every piece and for every GPU the units x held_ns of its records add up to 5040 x the piece
 *  7. used is the activity that the source measured, at most held; the excess is over. The activity of a device belongs to the
 *     only holder or intruder with a process there; between several it is divided by the activity measured for each process
 *     (method measured), else by what each holds (estimated). A process whose activity accounting reports has that. Held time
 *     without a measurement is unmeasured: method none, or reserved where an allocation holds it
 *  8. a slot has the MIG layout that its first tick saw: a GPU is re-partitioned at the tick that notices it. A slot in which MIG
 *     mode changed, or at one end of which the GPU was down, is down
 *  9. a GPU's energy in a slot is the rise of its counter, E. With A the active unit-ns of all records (all that is held where it
 *     is unmeasured) of T = 5040 x the slot, E x A/T is divided by activity and the rest by units x time, held or not: so the
 *     idle energy of free units is on records without a holder. Both are divided by largest remainder: the parts add up to E. A
 *     counter that fell began anew: the energy of that slot is not known, and none is made up
 * 10. a gap of more than a day has no records: the ledger books it as unknown, and a broken clock cannot make records without end
 * 11. besides billed amounts a record has, where the source measures them: the most memory that the holder's processes had at once, as
 *     seen by ticks and accounting, and the time in which the multiprocessors of its device worked, weighed by their share. Between
 *     several holders the latter is divided as activity was, or by what they hold where there was none; it is at most held */
#ifndef TOLLGATE_METER_H
#define TOLLGATE_METER_H

#include "exporter/tick.h"

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

/* Returns true when the tick closed an interval: then meter_batch has records, and must be called. An interval with very many records
 * is closed before its end. */
bool meter_tick(struct meter *m, const struct tick *t);
/* Closes the open interval now, at the last tick (stop, or a new stream epoch). */
void meter_flush(struct meter *m);

/* Moves the closed records and the time they cover into a batch (records, from_ns, to_ns), with the dictionary entries
 * that its records need and that no batch has had since the last one with full_dict; with full_dict, all that they need.
 * So batches from a full one on can be read without those before it. False when nothing is closed. */
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
	int128 active_unit_ns; /* as the driver measured it, before it is divided among holders */
};
size_t meter_process_totals(const struct meter *m, const struct meter_process_total **ret);

/* A holder with a process on a device that is allocated to others, at the last tick. */
struct meter_intruder {
	const struct wire_holder *holder;
	const struct wire_device *device;
	const struct wire_device *gpu;
};
size_t meter_intruders(const struct meter *m, const struct meter_intruder **ret);

struct meter_stats {
	int64_t short_processes; /* seen by no tick, reported by accounting: they hold, or are active for their allocation */
	int64_t short_not_held; /* seen by no tick, and they hold nothing: their holder is not known, or the device is allocated to others */
	int64_t intrusions;         /* times that a holder began to use a device allocated to others */
	int64_t energy_resets;      /* slots of a GPU without energy, because its counter fell or jumped */
	int64_t unknown_slots;      /* slots of a GPU booked as unknown */
	size_t allocations_unknown; /* of the last tick: for devices that this node does not have */
};
void meter_stats(const struct meter *m, struct meter_stats *ret);

/* Totals and counts go on from the meter of the stream before, which has seen the same tick last: a step of the clock does not reset the
 * counters of /metrics. */
void meter_carry(struct meter *m, const struct meter *before);

#endif
