/* exporter/source/nvml/nvml_accounting.c - processes that ended, from the driver's accounting. The rules are in nvml_source.h.
 *
 * Rule 9. The driver keeps the processes of a GPU in a ring: running ones, whose time is still 0, and ended ones, until newer ones
 * overwrite them. Of two with the same PID it keeps the later. A process that is in the ring but no longer on the GPU is queried until
 * it has ended; then it is reported as an exit, once. Processes that had ended when the source was opened are not reported. A PID that is
 * used again and ends again between two readings does not change the list: ended entries are queried again in turn, a few each reading,
 * and a different start time reveals the new process. */
#include "exporter/source/nvml/nvml_source.h"

#include <string.h>

#include "common/base/time.h"

#define ASK_AGAIN_EACH_READING 4
#define LIST_FIRST_CAP 128u
#define LIST_MAX 65536u
#define PPM_PER_HUNDREDTH 100 /* a hundredth of a percent */

/* The common part of both versions of the statistics. */
struct statistics {
	bool ended;
	uint64_t start_us, time_ms, max_memory;
	int64_t active_ppm;
};

static int
ask_v2(struct nvml_reading *n, uint32_t pid, struct statistics *ret)
{
	struct nvml_accounting_v2 a = {.pid = pid};
	int status = NVML_ASK(n, ASK_ACCOUNTING_V2, nvmlDeviceGetAccountingStats_v2, n->device, &a);

	*ret = (struct statistics){
		.ended = a.running == 0 && a.time_ms > 0,
		.start_us = a.start_us,
		.time_ms = a.time_ms,
		.max_memory = a.max_memory,
		.active_ppm = nvml_percent_to_ppm(a.gpu),
	};
	if (a.sample_count > 0 && a.sum_gpu / a.sample_count <= 10000)
		ret->active_ppm = (int64_t)((uint128)a.sum_gpu * PPM_PER_HUNDREDTH / a.sample_count);
	return status;
}

static int
ask_v1(struct nvml_reading *n, uint32_t pid, struct statistics *ret)
{
	struct nvml_accounting a = {0};
	int status = NVML_CALL(n->s, nvmlDeviceGetAccountingStats, n->device, pid, &a);

	*ret = (struct statistics){
		.ended = a.running == 0 && a.time_ms > 0,
		.start_us = a.start_us,
		.time_ms = a.time_ms,
		.max_memory = a.max_memory,
		.active_ppm = nvml_percent_to_ppm(a.gpu),
	};
	return status;
}

/* Version 2 has the activity in finer steps. */
static int
ask(struct nvml_reading *n, uint32_t pid, struct statistics *ret)
{
	int status = ask_v2(n, pid, ret);

	if (status == NVST_NOT_SUPPORTED || status == NVST_FUNCTION_NOT_FOUND)
		status = ask_v1(n, pid, ret);
	(void)nvml_has(n, status);
	return status;
}

static void
add_exit(struct nvml_reading *n, uint32_t pid, const struct statistics *st)
{
	struct gpu_exit *e = gpu_reading_exit(n->r);

	if (!e)
		return;
	*e = (struct gpu_exit){
		.pid = pid,
		.start_wall_ns = st->start_us > INT64_MAX / NS_PER_US ? ABSENT : (int64_t)st->start_us * NS_PER_US,
		.duration_ns = st->time_ms > INT64_MAX / NS_PER_MS ? ABSENT : (int64_t)st->time_ms * NS_PER_MS,
		.active_ppm = st->active_ppm,
		.max_memory_bytes = nvml_from_u64(st->max_memory),
	};
}

/* ---- the list ---- */

static int
list_pids(struct nvml_reading *n, uint32_t *ret_count)
{
	struct accounting *a = &n->gpu->accounting;

	for (int round = 0; round < 8; round++) {
		uint32_t count = a->pid_cap;
		int status;

		status = count ? NVML_CALL(n->s, nvmlDeviceGetAccountingPids, n->device, &count, a->pids)
		               : NVST_INSUFFICIENT_SIZE;
		*ret_count = count;
		if (status != NVST_INSUFFICIENT_SIZE)
			return status == NVST_SUCCESS && count > a->pid_cap ? NVST_UNKNOWN : status;
		if (count <= a->pid_cap)
			count = a->pid_cap ? a->pid_cap * 2 : LIST_FIRST_CAP;
		if (count > LIST_MAX)
			return status;
		a->pids = mem_grow(a->pids, count, sizeof(*a->pids));
		a->pid_cap = count;
	}
	return NVST_INSUFFICIENT_SIZE;
}

static bool
same_list(const struct accounting *a, uint32_t count)
{
	if (count != a->count)
		return false;
	for (uint32_t i = 0; i < count; i++)
		if (a->entries[i].pid != a->pids[i])
			return false;
	return true;
}

/* Brings the entries into the order of the list; entries that are no longer in it are dropped. */
static void
follow_list(struct accounting *a, uint32_t count)
{
	struct accounted *old = a->entries, *new = mem_array(count, sizeof(*new));

	for (uint32_t i = 0; i < count; i++) {
		size_t at = hash_get(&a->places, a->pids[i]);

		new[i] = at == HASH_NONE ? (struct accounted){.pid = a->pids[i], .ended = !a->begun} : old[at];
	}
	hash_clear(&a->places);
	for (uint32_t i = 0; i < count; i++)
		hash_put(&a->places, new[i].pid, i);
	mem_free(old);
	a->entries = new;
	a->count = count;
	a->begun = true;
}

/* ---- one reading ---- */

static void
check_running(struct nvml_reading *n, struct accounted *e)
{
	struct statistics st;
	int status;

	if (gpu_reading_find(n->r, e->pid, -1, -1))
		return;
	status = ask(n, e->pid, &st);
	if (status != NVST_SUCCESS) {
		e->ended = status == NVST_NOT_FOUND;
		return;
	}
	if (!st.ended)
		return;
	e->ended = true;
	if (st.start_us != e->start_us && !nvml_was_mps_server(n->gpu, e->pid))
		add_exit(n, e->pid, &st);
	e->start_us = st.start_us;
}

static void
check_ended(struct nvml_reading *n, struct accounted *e)
{
	struct statistics st;

	if (ask(n, e->pid, &st) != NVST_SUCCESS)
		return;
	e->ended = st.ended;
	if (e->ended && e->start_us != 0 && st.start_us != e->start_us)
		add_exit(n, e->pid, &st);
	if (e->ended)
		e->start_us = st.start_us;
}

static void
check_all(struct nvml_reading *n)
{
	struct accounting *a = &n->gpu->accounting;

	for (size_t i = 0; i < n->r->process_count; i++) {
		size_t at = hash_get(&a->places, n->r->processes[i].pid);

		if (at != HASH_NONE)
			a->entries[at].ended = false;
	}
	for (int i = 0; i < ASK_AGAIN_EACH_READING && a->count > 0; i++) {
		struct accounted *e = &a->entries[a->next++ % a->count];

		if (e->ended)
			check_ended(n, e);
	}
	for (uint32_t i = 0; i < a->count; i++)
		if (!a->entries[i].ended)
			check_running(n, &a->entries[i]);
}

/* Accounting is off by default. */
static int
ask_mode(const struct nvml_source *s, struct nvml_device *device, uint32_t *ret_on)
{
	int status = NVML_CALL(s, nvmlDeviceGetAccountingMode, device, ret_on);

	if (status == NVST_SUCCESS && *ret_on == 0 && s->enable_accounting &&
	    NVML_CALL(s, nvmlDeviceSetAccountingMode, device, 1) == NVST_SUCCESS)
		*ret_on = 1;
	return status;
}

/* Called at the opening, because the daemon may leave root after it. GPUs that appear later are tried at their first reading. */
void
nvml_enable_accounting(const struct nvml_source *s)
{
	uint32_t count = 0;

	if (!s->enable_accounting || s->api.nvmlDeviceGetCount_v2(&count) != NVST_SUCCESS)
		return;
	for (uint32_t i = 0; i < count && i < GPU_MAX; i++) {
		struct nvml_device *device = NULL;
		uint32_t on = 0;

		if (s->api.nvmlDeviceGetHandleByIndex_v2(i, &device) == NVST_SUCCESS)
			(void)ask_mode(s, device, &on);
	}
}

static bool
is_on(struct nvml_reading *n)
{
	uint32_t on = 0;
	int status;

	if (n->gpu->accounting.on)
		return true;
	if (nvml_is_unsupported(n, ASK_ACCOUNTING))
		return false;
	status = ask_mode(n->s, n->device, &on);
	if (status == NVST_SUCCESS && on == 0)
		status = NVST_NOT_SUPPORTED;
	return nvml_has(n, nvml_note(n, ASK_ACCOUNTING, status));
}

void
nvml_read_exits(struct nvml_reading *n)
{
	struct accounting *a = &n->gpu->accounting;
	uint32_t count = 0;

	a->on = is_on(n);
	if (!a->on)
		return;
	/* an error means that accounting was switched off; the ring is not continuous when it is on again */
	if (!nvml_has(n, list_pids(n, &count))) {
		a->on = a->begun = false;
		a->count = 0;
		hash_clear(&a->places);
		return;
	}
	if (!a->begun || !same_list(a, count))
		follow_list(a, count);
	check_all(n);
	n->r->accounting = true;
}

void
nvml_free_accounting(struct accounting *a)
{
	mem_free(a->pids);
	mem_free(a->entries);
	hash_fini(&a->places);
}
