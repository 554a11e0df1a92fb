/* tests/support/exporter/metersched.h - random schedules for the meter: what truly happens on a small node, and the ticks that show it. */
#ifndef TOLLGATE_TESTS_METERSCHED_H
#define TOLLGATE_TESTS_METERSCHED_H

#include "exporter/meter/meter.h"
#include "tests/support/harness/prop.h"

#define SCHED_GPUS 3
#define SCHED_TICKS 24
#define SCHED_PROCESSES 10
#define SCHED_ALLOCATIONS 5
#define SCHED_HOLDERS 4
#define SCHED_SLOTS 5 /* of a GPU: instances with gi 0..3, and the GPU itself */
#define SCHED_WHOLE 4

struct sched_layout {
	bool mig;
	int64_t units[SCHED_WHOLE]; /* of the instance with this gi; 0: none */
	int64_t stranded;
};

enum sight { SEEN, LOST, MISSING, SILENT };

struct sched_process { /* its PID is its place, from 1 */
	size_t gpu, holder, gi;
	int64_t begin, end; /* boot, in nanoseconds */
	int64_t memory_bytes, sm_ppm;
	bool told;  /* accounting tells its end, at the first tick after it that has an answer of the GPU */
	bool named; /* and somebody knows whose it was */
	int64_t exit_ppm;
};

struct sched_allocation {
	size_t gpu, slot, holder;
	int32_t replica, replica_of;
	int64_t begin, end;
	bool begin_known;
};

struct schedule {
	int64_t unit_ns; /* 1: brute force is possible; else about a real tick */
	int64_t offset_ns;
	int replicas;
	int fineness; /* which interval */
	size_t gpus, ticks, processes, allocations;
	int64_t at[SCHED_TICKS]; /* boot, in nanoseconds */
	enum sight sight[SCHED_TICKS][SCHED_GPUS];
	size_t layout[SCHED_TICKS][SCHED_GPUS];
	int64_t active_ppm[SCHED_TICKS][SCHED_GPUS];
	bool process_activity[SCHED_GPUS];
	int64_t energy_mj[SCHED_TICKS][SCHED_GPUS];
	struct sched_process process[SCHED_PROCESSES];
	struct sched_allocation allocation[SCHED_ALLOCATIONS];
};

void schedule_small(struct prop_source *s, void *schedule); /* a tick is up to 50 ns after the one before */
void schedule_real(struct prop_source *s, void *schedule);  /* up to 2.5 s */
void schedule_describe(const void *schedule, struct buf *out);

struct meter_options schedule_options(const struct schedule *c, int finer); /* finer: 0 to 2 */
const struct sched_layout *schedule_layout(const struct schedule *c, size_t tick, size_t gpu);
static inline bool
sched_alive(const struct sched_process *p, int64_t at)
{
	return p->begin <= at && at < p->end;
}
static inline bool
sched_shown(const struct sched_allocation *a, int64_t at)
{
	return a->begin <= at && at < a->end;
}

/* Turns ticks of a schedule into what the meter takes. */
struct stage {
	struct gpu_reading *readings;
	struct tick_process processes[SCHED_GPUS][SCHED_PROCESSES];
	struct tick_process exits[SCHED_GPUS][SCHED_PROCESSES];
	bool exit_told[SCHED_PROCESSES];
	struct tick_gpu gpus[SCHED_GPUS];
	struct tick_allocation allocations[SCHED_ALLOCATIONS];
	char uuids[SCHED_ALLOCATIONS][32];
	struct wire_holder holders[SCHED_HOLDERS];
};
void stage_init(struct stage *st);
void stage_fini(struct stage *st);
bool stage_tick(struct stage *st, const struct schedule *c, size_t k, struct meter *m);

#endif
