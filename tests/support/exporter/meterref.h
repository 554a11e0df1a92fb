/* tests/support/exporter/meterref.h - the meter's rules computed a second time from a schedule, nanosecond by nanosecond and without any of the
 * meter's own ways: what every unit of every GPU should be booked as. */
#ifndef TOLLGATE_TESTS_METERREF_H
#define TOLLGATE_TESTS_METERREF_H

#include "tests/support/exporter/metersched.h"

/* What a device's time was: one of the holders, or a state. */
enum who { WHO_FREE = SCHED_HOLDERS, WHO_STRANDED, WHO_DOWN, WHO_UNKNOWN, WHOS };

struct amount {
	int128 unit_ns;
	int128 active_unit_ns;     /* used and over */
	int128 unmeasured_unit_ns; /* these two only of holders */
	int128 energy_umj;         /* millionths of a mJ */
	int64_t held_ns, used_ns, unmeasured_ns, over_ns, memory, energy_mj, ticks;
	int64_t sm_active_ns, sm_measured_ns, peak_memory_bytes;
};

struct ledger {
	struct amount of[SCHED_GPUS][SCHED_SLOTS][WHOS];
	int64_t entries[SCHED_GPUS]; /* how often energy was divided, and into how many parts */
};

/* Nanosecond t (boot) of a GPU, in the slot that ends with tick k: adds its unit_ns. */
void ref_nanosecond(const struct schedule *c, size_t k, size_t g, int64_t t, struct ledger *l);
/* A whole slot of a GPU with its unit_ns, activity and energy; energy_mj is what the counter rose by. */
void ref_slot(const struct schedule *c, size_t k, size_t g, int64_t energy_mj, struct ledger *l);

/* The slot before tick k is one of the GPU: it was told of before. */
bool ref_in_service(const struct schedule *c, size_t k, size_t g);
bool ref_unknown(const struct schedule *c, size_t k, size_t g);
/* Rules 5 and 8: a slot in which holders are looked for. */
bool ref_measured(const struct schedule *c, size_t k, size_t g);

/* Somebody without an allocation has a process on a device that is allocated, at a tick that sees the GPU. */
bool ref_intrudes(const struct schedule *c, size_t k, size_t g, size_t slot, size_t holder);

/* The process as tick k tells of it, if that is the tick that does: no tick saw it. */
enum ref_short { SHORT_NOT, SHORT_HELD, SHORT_NOT_HELD };
enum ref_short ref_short_process(const struct schedule *c, size_t k, size_t process);

#endif
