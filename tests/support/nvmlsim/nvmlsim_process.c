/* tests/support/nvmlsim/nvmlsim_process.c - the lists of processes and their activity, as NVML gives them. */
#include "tests/support/nvmlsim/nvmlsim.h"

#include <string.h>

#include "common/base/time.h"

#define SAMPLE_BUFFER 100u       /* entries that a size query asks for, as drivers do */
#define FIRST_WINDOW_NS NS_PER_S /* a caller without a stamp gets the last second */
#define RACE_PID 3000000u
#define RACE_STEP 20u
#define RACE_MAX 60u
#define ZOMBIE_PID 3999999u

/* ---- processes ------------------------------------------------------------------------------------------------------ */

enum list { LIST_COMPUTE, LIST_GRAPHICS, LIST_MPS };

/* An MPS client is in the compute list too, a graphics process only in its own. */
static bool
is_listed(const struct target *on, const struct world_run *run, enum list list)
{
	return (list == LIST_COMPUTE    ? !run->p->graphics
	        : list == LIST_GRAPHICS ? run->p->graphics
	                                : run->p->mps) &&
	       sim_is_in(on, run);
}

static void
put_entry(void *entries, size_t at, size_t size, uint32_t pid, const struct world_run *run, const struct target *on)
{
	struct nvml_process_detail entry = {.pid = pid, .gi = NVML_NO_INSTANCE, .ci = NVML_NO_INSTANCE};

	if (run)
		entry.used_memory = (uint64_t)moment_phase(run->p, sim.now_ns - run->start_ns)->memory_bytes;
	if (run && run->place >= 0) {
		entry.gi = on->layout->instances[run->place].gi;
		entry.ci = on->layout->instances[run->place].ci;
	}
	memcpy((char *)entries + at * size, &entry, size);
}

/* Each entry is the beginning of the longest layout. Processes that appear in a race are there from the refusal on. */
static int
list_processes(const struct target *on, enum list list, size_t size, uint32_t *count, void *entries)
{
	uint32_t racers = list == LIST_COMPUTE && !on->layout->mig ? sim.racers : 0, needed = racers, at = 0;
	const struct world_run *runs;
	size_t alive;
	struct err err;

	if (sim.fp && !fakeproc_sync(sim.fp, sim.world, &err))
		sim_complain(err.text);
	if (!on->instance && on->layout->mig && sim_is_unprivileged())
		return NVST_NO_PERMISSION;
	alive = world_alive(sim.world, on->index, &runs);
	for (size_t i = 0; i < alive; i++)
		needed += is_listed(on, &runs[i], list);
	if (*count < needed) {
		*count = needed;
		if (sim.sc->quirks & QUIRK_LIST_RACE && sim.racers < RACE_MAX)
			sim.racers += RACE_STEP;
		return NVST_INSUFFICIENT_SIZE;
	}
	if (needed > 0 && !entries)
		return NVST_INVALID_ARGUMENT;
	for (size_t i = 0; i < alive; i++)
		if (is_listed(on, &runs[i], list))
			put_entry(entries, at++, size, runs[i].pid, &runs[i], on);
	for (uint32_t i = 0; i < racers; i++)
		put_entry(entries, at++, size, RACE_PID + i, NULL, on);
	*count = needed;
	return NVST_SUCCESS;
}

static size_t
entry_size_v3(void)
{
	return sim.sc->quirks & QUIRK_STRIDE32 ? sizeof(struct nvml_process_detail) : sizeof(struct nvml_process_info);
}

#define PROCESS_LIST(name, list)                                                                       \
	int name##_v3(struct nvml_device *device, uint32_t *count, void *entries)                      \
	{                                                                                              \
		ENTER_DEVICE(device, count);                                                           \
		if (sim.sc->quirks & (QUIRK_NO_V3 | QUIRK_NO_V2))                                      \
			return NVST_FUNCTION_NOT_FOUND;                                                \
		return list_processes(&on, list, entry_size_v3(), count, entries);                     \
	}                                                                                              \
	int name##_v2(struct nvml_device *device, uint32_t *count, void *entries)                      \
	{                                                                                              \
		ENTER_DEVICE(device, count);                                                           \
		if (sim.sc->quirks & QUIRK_NO_V2)                                                      \
			return NVST_FUNCTION_NOT_FOUND;                                                \
		return list_processes(&on, list, sizeof(struct nvml_process_info), count, entries);    \
	}                                                                                              \
	int name(struct nvml_device *device, uint32_t *count, void *entries)                           \
	{                                                                                              \
		ENTER_DEVICE(device, count);                                                           \
		return list_processes(&on, list, sizeof(struct nvml_process_info_v1), count, entries); \
	}
PROCESS_LIST(nvmlDeviceGetComputeRunningProcesses, LIST_COMPUTE)
PROCESS_LIST(nvmlDeviceGetGraphicsRunningProcesses, LIST_GRAPHICS)
PROCESS_LIST(nvmlDeviceGetMPSComputeRunningProcesses, LIST_MPS)

/* ---- activity of processes ------------------------------------------------------------------------------------------ */

/* Samples of one call: counted when there is nowhere to put them. */
struct sampling {
	struct nvml_process_sample *old;      /* one of these, or none */
	struct nvml_process_utilization *out; /* of the newer function */
	uint32_t count;
	int64_t from_ns, to_ns;
	uint64_t stamp_us;
};

static void
put_sample(struct sampling *s, uint32_t pid, uint32_t sm)
{
	if (s->old)
		s->old[s->count] = (struct nvml_process_sample){
			.pid = pid,
			.timestamp_us = s->stamp_us,
			.sm = sm,
			.memory = sm / 2,
		};
	if (s->out)
		s->out[s->count] = (struct nvml_process_utilization){
			.pid = pid,
			.timestamp_us = s->stamp_us,
			.sm = sm,
			.memory = sm / 2,
		};
	s->count++;
}

/* The average over the whole time asked for, of every run that had a part in it. A process without activity has no sample. */
static void
sample_run(const struct sim_process *p, uint32_t pid, int64_t start_ns, int64_t end_ns, struct sampling *s)
{
	int64_t window = s->to_ns - s->from_ns, to = end_ns < s->to_ns ? end_ns : s->to_ns;
	int64_t sm = (int64_t)((moment_sm_ns(p, start_ns, s->from_ns, to) + window / 2) / window);

	if (sm > 0)
		put_sample(s, pid, (uint32_t)sm);
}

static void
sample_all(const struct target *on, struct sampling *s)
{
	const struct world_run *runs;
	const struct world_ended *e;
	size_t count = world_alive(sim.world, on->index, &runs);

	s->count = 0;
	if (s->to_ns <= s->from_ns)
		return;
	for (size_t i = 0; i < count; i++) {
		const struct sim_process *p = runs[i].p;

		if (sim.sc->quirks & QUIRK_ZOMBIE_SAMPLES && moment_phase(p, sim.now_ns - runs[i].start_ns)->sm == 0)
			put_sample(s, runs[i].pid, 1000);
		else
			sample_run(p, runs[i].pid, runs[i].start_ns, SIM_NEVER, s);
	}
	for (size_t n = 0; (e = world_ended(sim.world, on->index, n)) && e->end_ns > s->from_ns; n++)
		if (moment_place(e->p, on->layout) == PLACE_WHOLE)
			sample_run(e->p, e->pid, e->start_ns, e->end_ns, s);
	if (sim.sc->quirks & QUIRK_ZOMBIE_SAMPLES)
		put_sample(s, ZOMBIE_PID, UINT32_MAX);
}

/* Stamps are the node's wall time in microseconds; the moment of a stamp is that of its beginning. */
static bool
begin_sampling(const struct target *on, uint64_t last_seen_us, struct sampling *s)
{
	int64_t wall = moment_wall_ns(sim.sc, sim.wall0_ns, sim.now_ns);

	if (on->layout->mig || !on->gpu->samples || sim.sc->quirks & QUIRK_NO_SAMPLES)
		return false;
	s->stamp_us = (uint64_t)(wall / NS_PER_US);
	s->to_ns = sim.now_ns - wall % NS_PER_US;
	if (last_seen_us == 0)
		s->from_ns = s->to_ns - FIRST_WINDOW_NS;
	else if (last_seen_us >= s->stamp_us)
		s->from_ns = s->to_ns;
	else
		s->from_ns = moment_of_wall(sim.sc, sim.wall0_ns, (int64_t)last_seen_us * NS_PER_US, s->to_ns);
	sample_all(on, s);
	return true;
}

static uint32_t
asked_for(uint32_t needed)
{
	return needed > SAMPLE_BUFFER ? needed : SAMPLE_BUFFER;
}

int
nvmlDeviceGetProcessUtilization(struct nvml_device *device, struct nvml_process_sample *samples, uint32_t *count,
                                uint64_t last_seen_us)
{
	struct sampling s = {0};

	ENTER_BOARD(device, count);
	if (!begin_sampling(&on, last_seen_us, &s))
		return NVST_NOT_SUPPORTED;
	if (!samples || *count < s.count) {
		*count = asked_for(s.count);
		return NVST_INSUFFICIENT_SIZE;
	}
	if (s.count == 0)
		return NVST_NOT_FOUND;
	s.old = samples;
	sample_all(&on, &s);
	*count = s.count;
	return NVST_SUCCESS;
}

/* Not in 535. */
int
nvmlDeviceGetProcessesUtilizationInfo(struct nvml_device *device, struct nvml_processes_utilization *info)
{
	struct sampling s = {0};

	ENTER_BOARD(device, info);
	if (sim_driver_major() < 550)
		return NVST_FUNCTION_NOT_FOUND;
	if (info->version != NVML_PROCESSES_UTILIZATION_V1)
		return NVST_ARGUMENT_VERSION_MISMATCH;
	if (!begin_sampling(&on, info->last_seen_us, &s))
		return NVST_NOT_SUPPORTED;
	if (!info->entries || info->count < s.count) {
		info->count = asked_for(s.count);
		return NVST_INSUFFICIENT_SIZE;
	}
	if (s.count == 0)
		return NVST_NOT_FOUND;
	s.out = info->entries;
	sample_all(&on, &s);
	info->count = s.count;
	return NVST_SUCCESS;
}
