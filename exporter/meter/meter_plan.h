/* exporter/meter/meter_plan.h - who held what of one GPU in one slot: the meter's rules 1, 2 and 4 to 9 (meter.h), pure.
 *
 * The plan is a list of segments, cut where a holder begins or ends, each with one entry per record that it feeds. It does
 * not depend on where intervals end: cutting a segment later takes parts of its amounts that add up to them. */
#ifndef TOLLGATE_METER_PLAN_H
#define TOLLGATE_METER_PLAN_H

#include "exporter/meter/meter_dict.h"

#define PPM INT64_C(1000000)
/* 4 TiB: above any GPU, and small enough that a quarter-hour of it in byte-milliseconds fits in 63 bits */
#define VIEW_MEMORY_MAX (INT64_C(1) << 42)

/* A process on one device, as a tick saw it. */
struct view_process {
	struct dict_device *device;
	struct dict_holder *holder;
	uint32_t pid;
	int64_t begin_ns;     /* wall; with the PID: which process */
	int64_t end_ns;       /* wall; INT64_MAX: nobody has told that it ended */
	int64_t memory_bytes; /* 0 when not known */
	int64_t sm_ppm;       /* 0 when not known */
	size_t place;         /* among the processes of the tick */
	bool measured;        /* what it did since it was first seen */
	int128 active_unit_ns;
};

/* A process that ended since the tick before, as accounting tells. */
struct view_exit {
	struct dict_holder *holder; /* NULL: not known */
	uint32_t pid;
	int64_t begin_ns, end_ns; /* wall */
	int64_t active_ppm;       /* ABSENT: not known */
	int64_t memory_bytes;
	bool seen; /* some tick saw the process */
};

/* What one holder is allocated of one device. */
struct view_claim {
	struct dict_device *device;
	struct dict_holder *holder;
	int64_t begin_ns; /* wall; INT64_MAX: not before the tick that shows it */
	int32_t replica;  /* while they are being read: one claim each */
	int64_t replicas; /* how many it has; 0: all of the device */
	int64_t replica_of;
};

/* What the source measured of a device; ABSENT: not measured. */
struct view_activity {
	int64_t active_ppm;    /* its engine */
	int64_t sm_active_ppm; /* its multiprocessors */
};

struct view_instance {
	struct dict_device *device;
	struct view_activity activity;
};

/* One GPU as one tick saw it, with the driver's values brought into their ranges. */
struct gpu_view {
	bool down, silent;
	int64_t read_ns; /* wall: the last tick that had an answer; INT64_MAX: none had */
	bool mig, mps, process_activity;
	bool layout_odd; /* instances that weigh more than their GPU: nothing can be said */
	struct view_activity activity;
	int64_t units_unallocated, units_stranded;        /* with the instances: 5040 */
	struct view_instance instances[GPU_INSTANCE_MAX]; /* sorted by device id */
	size_t instance_count;
	struct view_process *processes; /* sorted by device id, holder, PID and beginning */
	size_t process_count, process_cap;
	struct view_claim *claims; /* sorted by device id, then holder, each pair once */
	size_t claim_count, claim_cap;
	struct view_exit *exits;
	size_t exit_count, exit_cap;
};

void gpu_view_fini(struct gpu_view *v);

struct plan_entry {
	struct dict_device *device;
	struct dict_holder *holder; /* NULL: nobody */
	uint32_t state, sharing, method;
	int64_t units;
	int64_t part_first, part_count,
		part_of; /* parts of the device's time: nanosecond t belongs to part t mod part_of */
	/* of the whole segment; while it is being cut, of what is left of it */
	int64_t held_ns, used_ns, unmeasured_ns, over_ns, memory_byte_ms, energy_mj, sm_active_ns, sm_measured_ns;
	int64_t peak_memory_bytes; /* of each part of it */
};

struct plan_segment {
	int64_t start_ns, end_ns; /* wall */
	size_t first, count;      /* of the entries: by device, the free part first, then the holders */
};

struct plan {
	struct plan_entry *entries;
	size_t entry_count, entry_cap;
	struct plan_segment *segments;
	size_t segment_count, segment_cap;
	bool unknown, nobody;               /* nobody: unknown or down, so that nobody holds */
	int64_t short_held, short_not_held; /* processes that no tick saw */
	/* the people of the slot, and memory to work in: kept from slot to slot */
	struct presence *presences; /* by device id, holder and beginning */
	size_t presence_count, presence_cap;
	struct claim *claims; /* by device id, then holder */
	size_t claim_count, claim_cap;
	struct party *parties;
	size_t party_cap;
	int64_t *cuts;
	size_t cut_cap;
	int128 *weights, *shares;
	size_t weight_cap;
};

void plan_fini(struct plan *p);

struct plan_slot {
	struct dict_device *gpu;
	const struct gpu_view *prev, *now;
	int64_t start_ns, end_ns; /* wall; start < end */
	bool unknown;             /* rule 5: too long */
	int64_t energy_mj;        /* >= 0: to be divided */
	int64_t tolerance_ns;     /* of the times that accounting tells */
	int replicas;
};
void plan_make(const struct plan_slot *slot, struct plan *into);

/* How much of [from, to) belongs to parts first .. first+count-1 of n; from >= 0. */
int64_t plan_part_ns(int64_t from_ns, int64_t to_ns, int64_t first, int64_t count, int64_t n);

/* Takes the first `duration` of what is left of an entry, from start_ns on, out of `left` nanoseconds. Amounts are taken in proportion;
 * the last cut takes the rest. In each part used + unmeasured <= held. */
struct plan_entry plan_cut(struct plan_entry *e, int64_t start_ns, int64_t duration_ns, int64_t left_ns);

#endif
