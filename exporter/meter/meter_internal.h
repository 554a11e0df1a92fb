/* exporter/meter/meter_internal.h - the structs that pass between the files of the meter. Nothing outside this folder includes it.
 *
 * One GPU and one slot pass through the files in this order:
 *
 *   tick ─► meter_view.c      the reading as a gpu_view: known devices and holders, values in range
 *        ─► meter_presence.c  two views as processes and claims inside the slot (rules 1 and 2)
 *        ─► meter_share.c      processes and claims as a plan: entries that add up to the GPU (rules 3 to 9 and 11)
 *        ─► meter.c           the plan, cut at interval boundaries, as records and batches (rules 3, 5 and 10)
 *
 * meter_dict.c numbers devices and holders, meter_totals.c keeps the running totals for /metrics. The rules are in meter.h. */
#ifndef TOLLGATE_METER_INTERNAL_H
#define TOLLGATE_METER_INTERNAL_H

#include "common/base/hash.h"
#include "exporter/meter/meter.h"

#define PPM INT64_C(1000000)
/* 4 TiB: above any GPU, and small enough that a quarter-hour of it in byte-milliseconds fits in 63 bits */
#define METER_MEMORY_MAX (INT64_C(1) << 42)

/* ---- meter_dict.c: devices and holders of one stream, under the ids by which its batches name them ----
 *
 * The meter marks and sweeps entries once per batch, so that a node with many short workloads does not grow. An entry that comes
 * back later gets a new id: ids are never used twice. */

struct dict_device {
	struct wire_device wire;
	struct dict_device *gpu;                          /* itself for a GPU */
	char uuid_read[GPU_TEXT], profile_read[GPU_TEXT]; /* of an instance, as the driver has them */
	bool announced;                                   /* some batch since the last full one has it */
	bool needed;                                      /* by the batch being made */
	bool marked;
};

struct dict_holder {
	struct wire_holder wire;
	bool announced, needed, marked;
};

struct dict {
	struct dict_device **devices; /* in the order of their ids */
	size_t device_count;
	struct dict_holder **holders;
	size_t holder_count;
	struct hash device_by_id, holder_by_id;
	struct hash holder_by_source; /* from the identity cache's id to the position here */
	uint32_t last_device_id, last_holder_id;
};

void dict_fini(struct dict *d);

struct dict_device *dict_add_gpu(struct dict *d, const struct gpu_reading *g);
struct dict_device *dict_add_instance(struct dict *d, struct dict_device *gpu, const struct gpu_instance *i,
                                      int64_t created_ns);
/* True when the instance just read is the one known as d, as far as the driver lets one see. */
bool dict_same_instance(const struct dict_device *d, const struct gpu_instance *i);

/* The entry of this holder, made when its content is new. */
struct dict_holder *dict_holder(struct dict *d, const struct wire_holder *h);

/* A total order of holders by their content: the same in every stream, whatever ids they have. 0: the same holder. */
int dict_holder_order(const struct dict_holder *a, const struct dict_holder *b);

/* The entry with the content of another stream's entry; NULL: none. */
struct dict_device *dict_twin_device(const struct dict *d, const struct dict_device *other);
struct dict_holder *dict_twin_holder(const struct dict *d, const struct dict_holder *other);

/* Fills the batch's dictionary with the entries that its records need. */
void dict_write(struct dict *d, bool full, struct wire_batch *into);

/* Drops every entry that is not marked, and clears the marks. */
void dict_sweep(struct dict *d);

/* ---- processes and claims ---- */

/* The last tick of a slot that saw a process. */
enum last_seen { SEEN_BY_NONE, SEEN_BY_FIRST, SEEN_BY_SECOND };

/* One process on one device. A view has it as its tick saw it, or as accounting reported its end; a plan has a copy whose times
 * are cut to the slot. */
struct meter_process {
	struct dict_device *device;
	struct dict_holder *holder; /* NULL: an ended process whose holder is not known */
	uint32_t pid;
	enum last_seen seen;  /* SEEN_BY_NONE: only accounting reported it */
	bool accounted;       /* accounting measured its activity */
	int64_t begin_ns;     /* wall; with the PID: which process */
	int64_t end_ns;       /* wall; INT64_MAX: it runs */
	int64_t memory_bytes; /* 0: not known */
	int64_t active_ppm;   /* 0: not known */
	/* of a running process in a view: */
	size_t place;          /* among the processes of the tick */
	bool measured;         /* its activity was, at least once */
	int128 active_unit_ns; /* since it was first seen */
};
/* By device, holder, PID and beginning. 0: the same process. */
int process_order(const struct meter_process *a, const struct meter_process *b);

/* The allocations of one device to one holder. A view has it as its tick saw it; a plan has a copy that begins inside the slot and lasts
 * until its end. */
struct claim {
	struct dict_device *device;
	struct dict_holder *holder;
	int64_t begin_ns; /* wall; INT64_MAX: not before the tick that shows it */
	int64_t replicas; /* how many the holder has; 0: all of the device */
	int64_t replica_of;
	int32_t replica; /* while allocations are read, each is a claim of its own */
};
/* By device, then holder. */
int claim_order(const struct claim *a, const struct claim *b);

/* ---- meter_view.c: one GPU as one tick saw it, with the driver's values brought into their ranges ---- */

/* Activity of a device as the source measured it; ABSENT: not measured. */
struct device_activity {
	int64_t active_ppm;    /* its engine */
	int64_t sm_active_ppm; /* its multiprocessors */
};

struct view_instance {
	struct dict_device *device;
	struct device_activity activity;
};

struct gpu_view {
	bool down, silent;
	int64_t read_ns; /* wall: the last tick that had an answer; INT64_MAX: none had */
	bool mig, mps, process_activity;
	bool layout_invalid; /* the instances weigh more than their GPU, or one is listed twice */
	struct device_activity activity;
	int64_t units_unallocated, units_stranded;        /* with the instances: 5040 */
	struct view_instance instances[GPU_INSTANCE_MAX]; /* sorted by device id */
	size_t instance_count;
	struct meter_process *processes; /* that run, in process_order */
	size_t process_count, process_cap;
	struct meter_process *exits; /* that ended since the tick before */
	size_t exit_count, exit_cap;
	struct claim *claims; /* in claim_order, each pair once */
	size_t claim_count, claim_cap;
};

struct view_context {
	struct dict *dict;
	struct dict_device *gpu;
	const struct gpu_view *last; /* an instance of the last view that is still there stays the same device */
	int64_t wall_ns, wall_offset_ns;
	int64_t tolerance_ns; /* of the times that accounting reports */
	size_t first_place;   /* of the GPU's processes in the tick */
};
void gpu_view_read(struct gpu_view *v, const struct view_context *c, const struct tick_gpu *t);
/* A GPU that does not answer keeps the layout of the last view, so that it is recognised when it is back. */
void gpu_view_down(struct gpu_view *v, const struct gpu_view *last);
void gpu_view_fini(struct gpu_view *v);

/* How many processes appear only in the driver's samples of activity: no tick saw them, and accounting did not report them. */
int64_t gpu_view_sampled(const struct gpu_view *v, const struct gpu_view *last, const struct gpu_reading *r);

/* Adds an allocation when it is for a device of this view; uuid is that of the GPU. */
bool gpu_view_add_claim(struct gpu_view *v, const struct view_context *c, const char *uuid,
                        const struct tick_allocation *a);
/* After the last allocation: sorts the claims, and joins the replicas that one holder has of one device. */
void gpu_view_join_claims(struct gpu_view *v);

/* ---- meter_share.c: who held what of one GPU in one slot ----
 *
 * A plan is a list of segments, cut where a holder begins or ends, each with one entry per record that it feeds. It does not depend
 * on where intervals end: meter.c cuts an entry later into parts whose amounts add up to it. */

struct plan_entry {
	struct dict_device *device;
	struct dict_holder *holder; /* NULL: nobody */
	uint32_t state, sharing, method;
	int64_t units;
	/* parts of the device's time: nanosecond t belongs to part t mod part_of */
	int64_t part_first, part_count, part_of;
	/* of the whole segment; while it is being cut, of the rest of it */
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
	bool unknown;
	bool no_holders;                    /* unknown or down */
	int64_t short_held, short_not_held; /* processes that no tick saw */
	/* inside the slot; kept from slot to slot for their memory, as is the rest */
	struct meter_process *processes; /* by device, holder and beginning */
	size_t process_count, process_cap;
	struct claim *claims; /* in claim_order */
	size_t claim_count, claim_cap;
	struct segment_holder *holders;
	size_t holder_cap;
	int64_t *cuts;
	size_t cut_cap;
	int128 *weights, *shares;
	size_t weight_cap;
};

struct plan_slot {
	struct dict_device *gpu;
	const struct gpu_view *prev, *now;
	int64_t start_ns, end_ns; /* wall; start < end */
	bool unknown;             /* rule 5: too long */
	int64_t energy_mj;        /* >= 0: to be divided */
	int64_t tolerance_ns;     /* of the times that accounting reports */
	int replicas;
};
void plan_make(const struct plan_slot *slot, struct plan *into);
void plan_fini(struct plan *p);

/* Takes the first `duration` of the rest of an entry, from start_ns on, out of `left` nanoseconds. Amounts are taken in proportion; the
 * last cut takes the rest. In each part used + unmeasured <= held. */
struct plan_entry plan_cut(struct plan_entry *e, int64_t start_ns, int64_t duration_ns, int64_t left_ns);

/* ---- meter_presence.c: who was on one GPU in one slot (rules 1 and 2) ---- */

/* Fills processes and claims of the plan, and counts the processes that no tick saw. */
void presence_find(const struct plan_slot *slot, struct plan *p);
/* The same count for a slot without holders. */
void presence_count_short(const struct plan_slot *slot, struct plan *p);

/* ---- meter_totals.c: running totals and intruders, for /metrics ---- */

struct total_key {
	uint64_t pair; /* device and holder */
	bool there;    /* at the last tick */
};

struct totals {
	struct meter_total *list;
	struct total_key *keys; /* beside the list */
	size_t count, cap;
	struct hash by_pair;
	struct meter_process_total *processes; /* of the last tick, in its order */
	size_t process_count, process_cap;
	/* of the last tick and of the one before it, by GPU, device and holder */
	struct meter_intruder *intruders, *before;
	size_t intruder_count, intruder_cap, before_count, before_cap;
};

void totals_fini(struct totals *t);

/* Adds the amounts of a record to its workload. */
void totals_add(struct totals *t, const struct plan_entry *cut);

/* A tick with so many processes begins. */
void totals_begin_tick(struct totals *t, size_t process_count);
/* One GPU of the tick. `measured`: the plan of the slot before it has holders. */
void totals_add_gpu(struct totals *t, const struct gpu_view *prev, struct gpu_view *now, int64_t slot_start_ns,
                    int64_t slot_end_ns, bool measured);
/* After the last GPU: drops the totals of workloads that the tick missed. Returns how many intrusions began. */
int64_t totals_end_tick(struct totals *t);
/* Goes on from the totals of another stream, which has seen the same tick last. */
void totals_carry(struct totals *t, const struct dict *dict, const struct totals *before,
                  const struct dict *before_dict);

#endif
