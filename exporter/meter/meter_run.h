/* exporter/meter/meter_run.h - a stretch of one GPU in which nothing changed: what the next records will be made of. */
#ifndef TOLLGATE_METER_RUN_H
#define TOLLGATE_METER_RUN_H

#include "exporter/meter/meter_plan.h"

struct record_list {
	struct wire_record *list;
	size_t count, cap;
};
void record_list_fini(struct record_list *l);
/* Moves the first `count` into an array of their own, by device, holder and time, so that the columns of a batch change little from row
 * to row. */
struct wire_record *record_list_take(struct record_list *l, size_t count);

struct run_entry {
	struct plan_entry sum; /* key and amounts since the run began */
	int64_t ticks;
};

struct run {
	int64_t start_ns, end_ns; /* wall; equal: no run */
	struct run_entry *entries;
	size_t count, cap;
};
void run_fini(struct run *run);

/* Makes the run's records, and empties it. */
void run_close(struct run *run, struct record_list *into);
/* The run goes on at start_ns with entries of this shape; if it has another, it is closed and a new one begins. */
void run_go_on(struct run *run, int64_t start_ns, const struct plan_entry *entries, size_t count,
               struct record_list *into);
void run_add(struct run_entry *to, const struct plan_entry *cut, bool is_tick);

#endif
