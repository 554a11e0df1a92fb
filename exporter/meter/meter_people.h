/* exporter/meter/meter_people.h - who was on one GPU in one slot: the processes at its two ends and those that accounting tells of, and
 * the allocations (rules 1 and 2 of meter.h). */
#ifndef TOLLGATE_METER_PEOPLE_H
#define TOLLGATE_METER_PEOPLE_H

#include "exporter/meter/meter_plan.h"

/* The last tick of the slot that saw a process; one that only accounting tells of was seen by none. */
enum seen_by { SEEN_BY_NONE, SEEN_BY_FIRST, SEEN_BY_SECOND };

/* One process in the slot. */
struct presence {
	struct dict_device *device;
	struct dict_holder *holder;
	int64_t begin_ns, end_ns; /* inside the slot */
	int64_t memory_bytes;
	enum seen_by seen;
	int64_t active_ppm;
	bool told; /* its activity is told by accounting */
};

/* One holder's allocation of one device, from its beginning to the end of the slot. */
struct claim {
	struct dict_device *device;
	struct dict_holder *holder;
	int64_t begin_ns;
	int64_t replicas, replica_of;
};

/* Fills presences and claims of the plan, and counts the processes that no tick saw. */
void people_find(const struct plan_slot *slot, struct plan *p);
/* The same count for a slot in which nobody holds. */
void people_count_short(const struct plan_slot *slot, struct plan *p);

/* By device, holder, PID and beginning. 0: the same process. */
int view_process_order(const struct view_process *a, const struct view_process *b);
/* By device, then holder. */
int view_claim_order(const struct view_claim *a, const struct view_claim *b);

#endif
