/* tests/support/nvmlsim/nvmlsim_process.c - the lists of processes and their activity, as NVML gives them. */
#include "tests/support/nvmlsim/nvmlsim.h"

#include <string.h>

#include "common/time.h"

#define SAMPLE_EPOCH_US UINT64_C(1700000000000000) /* what stamps of samples count from */
#define SAMPLE_BUFFER 100u                         /* entries that a size query asks for, as drivers do */
#define FIRST_WINDOW_NS NS_PER_S                   /* a caller without a stamp gets the last second */
#define RACE_PID 3000000u
#define RACE_STEP 20u
#define RACE_MAX 60u
#define ZOMBIE_PID 3999999u

/* ---- processes ------------------------------------------------------------------------------------------------------ */

enum list { LIST_COMPUTE, LIST_GRAPHICS, LIST_MPS };

/* An MPS client is in the compute list too, a graphics process only in its own. */
static bool
is_listed(const struct sim_process *p, enum list list)
{
	return list == LIST_COMPUTE ? !p->graphics : list == LIST_GRAPHICS ? p->graphics : p->mps;
}

static void
put_entry(void *entries, size_t at, size_t size, uint32_t pid, const struct sim_process *p, const struct target *on)
{
	struct nvml_process_detail entry = {.pid = pid, .gi = NVML_NO_INSTANCE, .ci = NVML_NO_INSTANCE};

	if (p)
		entry.used_memory = (uint64_t)p->memory_bytes;
	if (p && p->instance >= 0) {
		entry.gi = on->layout->instances[p->instance].gi;
		entry.ci = on->layout->instances[p->instance].ci;
	}
	memcpy((char *)entries + at * size, &entry, size);
}

/* Each entry is the beginning of the longest layout. Processes that appear in a race are there from the refusal on. */
static int
list_processes(const struct target *on, enum list list, size_t size, uint32_t *count, void *entries)
{
	uint32_t racers = list == LIST_COMPUTE && !on->layout->mig ? sim.racers : 0, needed = racers, at = 0;
	struct err err;

	if (sim.fp && !fakeproc_sync(sim.fp, sim.now_ns, &err))
		sim_complain(err.text);
	if (!on->instance && on->layout->mig && sim.sc->quirks & QUIRK_UNPRIVILEGED)
		return NVST_NO_PERMISSION;
	for (size_t i = 0; i < sim.sc->process_count; i++)
		needed += is_listed(&sim.sc->processes[i], list) && sim_is_in(on, &sim.sc->processes[i]);
	if (*count < needed) {
		*count = needed;
		if (sim.sc->quirks & QUIRK_LIST_RACE && sim.racers < RACE_MAX)
			sim.racers += RACE_STEP;
		return NVST_INSUFFICIENT_SIZE;
	}
	if (needed > 0 && !entries)
		return NVST_INVALID_ARGUMENT;
	for (size_t i = 0; i < sim.sc->process_count; i++) {
		const struct sim_process *p = &sim.sc->processes[i];

		if (is_listed(p, list) && sim_is_in(on, p))
			put_entry(entries, at++, size, world_pid(p, world_run(p, sim.now_ns)), p, on);
	}
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

/* Samples of one call: counted when `out` is NULL. */
struct sampling {
	struct nvml_process_sample *out;
	uint32_t count;
	int64_t from_ns, to_ns;
};

static void
put_sample(struct sampling *s, uint32_t pid, uint32_t sm)
{
	if (s->out)
		s->out[s->count] = (struct nvml_process_sample){
			.pid = pid,
			.timestamp_us = SAMPLE_EPOCH_US + (uint64_t)(s->to_ns / NS_PER_US),
			.sm = sm,
			.memory = sm / 2,
		};
	s->count++;
}

/* The average over the whole time asked for, of every run that had a part in it, also of one that has ended. A process
 * without activity has no sample. */
static void
sample_process(const struct target *on, const struct sim_process *p, struct sampling *s)
{
	int64_t run = world_latest_run(p, s->to_ns), window = s->to_ns - s->from_ns;

	if (!(p->gpus >> on->index & 1) || p->instance >= 0)
		return;
	if (p->sm == 0 && sim.sc->quirks & QUIRK_ZOMBIE_SAMPLES && world_run(p, s->to_ns) >= 0)
		put_sample(s, world_pid(p, world_run(p, s->to_ns)), 1000);
	for (; run >= 0; run--) {
		int64_t part = world_run_overlap(p, run, s->from_ns, s->to_ns);
		int64_t sm = (int64_t)(((int128)p->sm * part + window / 2) / window);

		if (part == 0 && world_run_start(p, run) <= s->from_ns)
			break;
		if (sm > 0)
			put_sample(s, world_pid(p, run), (uint32_t)sm);
	}
}

static void
sample_all(const struct target *on, struct sampling *s)
{
	s->count = 0;
	if (s->to_ns <= s->from_ns)
		return;
	for (size_t i = 0; i < sim.sc->process_count; i++)
		sample_process(on, &sim.sc->processes[i], s);
	if (sim.sc->quirks & QUIRK_ZOMBIE_SAMPLES)
		put_sample(s, ZOMBIE_PID, UINT32_MAX);
}

int
nvmlDeviceGetProcessUtilization(struct nvml_device *device, struct nvml_process_sample *samples, uint32_t *count,
                                uint64_t last_seen_us)
{
	struct sampling s = {0};

	ENTER_DEVICE(device, count);
	if (on.layout->mig || sim.sc->quirks & QUIRK_NO_SAMPLES)
		return NVST_NOT_SUPPORTED;
	s.to_ns = sim.now_ns / NS_PER_US * NS_PER_US;
	s.from_ns = last_seen_us > SAMPLE_EPOCH_US ? (int64_t)(last_seen_us - SAMPLE_EPOCH_US) * NS_PER_US
	                                           : s.to_ns - FIRST_WINDOW_NS;
	sample_all(&on, &s);
	if (!samples || *count < s.count) {
		*count = s.count > SAMPLE_BUFFER ? s.count : SAMPLE_BUFFER;
		return NVST_INSUFFICIENT_SIZE;
	}
	if (s.count == 0)
		return NVST_NOT_FOUND;
	s.out = samples;
	sample_all(&on, &s);
	*count = s.count;
	return NVST_SUCCESS;
}
