/* exporter/meter/meter_watch.h - what the meter tells besides records, for /metrics: running totals, and who is where others are allocated. */
#ifndef TOLLGATE_METER_WATCH_H
#define TOLLGATE_METER_WATCH_H

#include "exporter/meter/meter.h"
#include "exporter/meter/meter_plan.h"

struct total_key {
	uint64_t pair; /* device and holder */
	bool there;    /* at the last tick */
};

struct watch {
	struct meter_total *totals;
	struct total_key *keys; /* beside totals */
	size_t total_count, total_cap;
	struct idmap total_by_pair;
	struct meter_process_total *processes; /* of the last tick, in its order */
	size_t process_count, process_cap;
	struct meter_intruder *intruders,
		*before; /* of the last tick and of the one before it, by GPU, device and holder */
	size_t intruder_count, intruder_cap, before_count, before_cap;
};

void watch_fini(struct watch *w);

/* Adds what a record gets to its workload. */
void watch_add(struct watch *w, const struct plan_entry *cut);

/* A tick with so many processes begins. */
void watch_begin(struct watch *w, size_t process_count);
/* One GPU of the tick. `measured`: the slot before it is one in which holders were found. */
void watch_gpu(struct watch *w, const struct gpu_view *prev, struct gpu_view *now, int64_t slot_start_ns,
               int64_t slot_end_ns, bool measured);
/* Goes on from the watch of another stream, which has seen the same tick last. */
void watch_carry(struct watch *w, const struct dict *dict, const struct watch *before, const struct dict *before_dict);
/* All of them: totals of those who are not there are dropped. Returns how many intrusions began. */
int64_t watch_end(struct watch *w);

#endif
