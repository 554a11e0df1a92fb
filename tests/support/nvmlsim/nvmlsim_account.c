/* tests/support/nvmlsim/nvmlsim_account.c - the driver's accounting of processes: also of those that have ended.
 *
 * As on real drivers: a process counts when accounting was on before it began, a PID stands for its last process, at most
 * WORLD_ENDED_MAX ended ones are kept, and on a partitioned GPU accounting is off. */
#include "tests/support/nvmlsim/nvmlsim.h"

#include <string.h>

#include "common/base/time.h"

#define SAMPLES_PER_S 6
#define HUNDREDTHS 100

/* A process in the accounting; it runs while its end is SIM_NEVER. */
struct account {
	const struct sim_process *p;
	uint32_t pid;
	int64_t start_ns, end_ns, max_memory;
};

static bool
is_accounted(size_t gpu, const struct sim_process *p, int64_t start_ns)
{
	return !p->graphics && start_ns >= sim.accounting[gpu].since_ns;
}

static bool
find_account(const struct target *on, uint32_t pid, struct account *ret)
{
	const struct world_run *runs;
	const struct world_ended *e;
	size_t count = world_alive(sim.world, on->index, &runs);

	for (size_t i = 0; i < count; i++)
		if (runs[i].pid == pid && is_accounted(on->index, runs[i].p, runs[i].start_ns)) {
			int64_t memory = 0;

			for (size_t n = 0; n < runs[i].p->phase_count &&
			                   runs[i].p->phases[n].after_ns <= sim.now_ns - runs[i].start_ns;
			     n++)
				if (runs[i].p->phases[n].memory_bytes > memory)
					memory = runs[i].p->phases[n].memory_bytes;
			*ret = (struct account){runs[i].p, pid, runs[i].start_ns, SIM_NEVER, memory};
			return true;
		}
	for (size_t n = 0; (e = world_ended(sim.world, on->index, n)); n++)
		if (e->pid == pid && is_accounted(on->index, e->p, e->start_ns)) {
			*ret = (struct account){e->p, pid, e->start_ns, e->end_ns, e->max_memory_bytes};
			return true;
		}
	return false;
}

/* Hundredths of a percent over its life. */
static uint64_t
average_sm(const struct account *a)
{
	int64_t to = a->end_ns == SIM_NEVER ? sim.now_ns : a->end_ns, lasted = to - a->start_ns;

	if (lasted <= 0)
		return 0;
	return (uint64_t)((moment_sm_ns(a->p, a->start_ns, a->start_ns, to) * HUNDREDTHS + lasted / 2) / lasted);
}

static uint64_t
time_ms(const struct account *a)
{
	return a->end_ns == SIM_NEVER ? 0 : (uint64_t)((a->end_ns - a->start_ns) / NS_PER_MS);
}

static uint64_t
start_us(const struct account *a)
{
	return (uint64_t)(moment_wall_ns(sim.sc, sim.wall0_ns, a->start_ns) / NS_PER_US);
}

/* ---- the PIDs ------------------------------------------------------------------------------------------------------- */

static void
add_pid(struct sim_accounting *a, uint32_t pid)
{
	size_t at;

	if (hash_find(&a->known, pid, &at))
		return;
	hash_put(&a->known, pid, a->count);
	a->pids[a->count++] = pid;
}

/* Found anew when something happened since. */
static const struct sim_accounting *
known_pids(const struct target *on)
{
	struct sim_accounting *a = &sim.accounting[on->index];
	const struct world_run *runs;
	const struct world_ended *e;
	size_t alive;

	if (a->pids && a->version == world_version(sim.world))
		return a;
	alive = world_alive(sim.world, on->index, &runs);
	a->pids = mem_grow(a->pids, alive + WORLD_ENDED_MAX, sizeof(*a->pids));
	a->count = 0;
	a->version = world_version(sim.world);
	hash_clear(&a->known);
	for (size_t i = 0; i < alive; i++)
		if (is_accounted(on->index, runs[i].p, runs[i].start_ns))
			add_pid(a, runs[i].pid);
	for (size_t n = 0; (e = world_ended(sim.world, on->index, n)); n++)
		if (is_accounted(on->index, e->p, e->start_ns))
			add_pid(a, e->pid);
	return a;
}

/* ---- functions ------------------------------------------------------------------------------------------------------ */

int
nvmlDeviceGetAccountingMode(struct nvml_device *device, uint32_t *on_now)
{
	ENTER_BOARD(device, on_now);
	*on_now = sim.accounting[on.index].on && !on.layout->mig;
	return NVST_SUCCESS;
}

int
nvmlDeviceSetAccountingMode(struct nvml_device *device, uint32_t on_now)
{
	ENTER_BOARD(device, on_now <= 1);
	if (on.layout->mig)
		return NVST_NOT_SUPPORTED;
	if (sim_is_unprivileged())
		return NVST_NO_PERMISSION;
	if (on_now && !sim.accounting[on.index].on)
		sim.accounting[on.index].since_ns = sim.now_ns;
	sim.accounting[on.index].on = on_now != 0;
	return NVST_SUCCESS;
}

static bool
is_off(const struct target *on)
{
	return on->layout->mig || !sim.accounting[on->index].on;
}

int
nvmlDeviceGetAccountingPids(struct nvml_device *device, uint32_t *count, uint32_t *pids)
{
	const struct sim_accounting *a;

	ENTER_BOARD(device, count);
	if (is_off(&on))
		return NVST_NOT_SUPPORTED;
	a = known_pids(&on);
	if (*count < a->count) {
		*count = (uint32_t)a->count;
		return NVST_INSUFFICIENT_SIZE;
	}
	if (a->count > 0 && !pids)
		return NVST_INVALID_ARGUMENT;
	if (a->count > 0)
		memcpy(pids, a->pids, a->count * sizeof(*pids));
	*count = (uint32_t)a->count;
	return NVST_SUCCESS;
}

int
nvmlDeviceGetAccountingStats(struct nvml_device *device, uint32_t pid, struct nvml_accounting *stats)
{
	struct account a;

	ENTER_BOARD(device, stats);
	if (is_off(&on))
		return NVST_NOT_SUPPORTED;
	if (!find_account(&on, pid, &a))
		return NVST_NOT_FOUND;
	*stats = (struct nvml_accounting){
		.gpu = (uint32_t)((average_sm(&a) + HUNDREDTHS / 2) / HUNDREDTHS),
		.memory = (uint32_t)(average_sm(&a) / HUNDREDTHS / 2),
		.max_memory = (uint64_t)a.max_memory,
		.time_ms = time_ms(&a),
		.start_us = start_us(&a),
		.running = a.end_ns == SIM_NEVER,
	};
	return NVST_SUCCESS;
}

/* Of 610 and later. */
int
nvmlDeviceGetAccountingStats_v2(struct nvml_device *device, struct nvml_accounting_v2 *stats)
{
	struct account a;
	int64_t lasted;

	ENTER_BOARD(device, stats);
	if (sim_driver_major() < 610)
		return NVST_FUNCTION_NOT_FOUND;
	if (is_off(&on))
		return NVST_NOT_SUPPORTED;
	if (!find_account(&on, stats->pid, &a))
		return NVST_NOT_FOUND;
	lasted = (a.end_ns == SIM_NEVER ? sim.now_ns : a.end_ns) - a.start_ns;
	stats->running = a.end_ns == SIM_NEVER;
	stats->gpu = (uint32_t)((average_sm(&a) + HUNDREDTHS / 2) / HUNDREDTHS);
	stats->memory = stats->gpu / 2;
	stats->max_memory = (uint64_t)a.max_memory;
	stats->sample_count = (uint32_t)(lasted / (NS_PER_S / SAMPLES_PER_S)) + 1;
	stats->sum_gpu = average_sm(&a) * stats->sample_count;
	stats->sum_memory = stats->sum_gpu / 2;
	stats->time_ms = time_ms(&a);
	stats->start_us = start_us(&a);
	return NVST_SUCCESS;
}
