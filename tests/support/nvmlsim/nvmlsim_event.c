/* tests/support/nvmlsim/nvmlsim_event.c - events of GPUs: XIDs and new layouts. */
#include "tests/support/nvmlsim/nvmlsim.h"

#include "common/base/time.h"

static_assert(SIM_EVENT_XID == NVML_EVENT_XID && SIM_EVENT_MIG == NVML_EVENT_MIG_CONFIG, "the scenario's event types");

/* What a set has been told of, and from when on; each event comes once. */
struct nvml_event_set {
	uint64_t types[SIM_GPUS_MAX];
	int64_t since_ns[SIM_GPUS_MAX];
	size_t next; /* in the scenario's events */
};

int
nvmlEventSetCreate(struct nvml_event_set **set)
{
	ENTER();
	if (!set)
		return NVST_INVALID_ARGUMENT;
	*set = mem_alloc(sizeof(**set));
	return NVST_SUCCESS;
}

int
nvmlEventSetFree(struct nvml_event_set *set)
{
	mem_free(set);
	return NVST_SUCCESS;
}

int
nvmlDeviceGetSupportedEventTypes(struct nvml_device *device, uint64_t *types)
{
	ENTER_BOARD(device, types);
	*types = NVML_EVENT_XID | (on.gpu->mig_capable ? NVML_EVENT_MIG_CONFIG : 0);
	return NVST_SUCCESS;
}

int
nvmlDeviceRegisterEvents(struct nvml_device *device, uint64_t types, struct nvml_event_set *set)
{
	ENTER_BOARD(device, set);
	if (types & ~(NVML_EVENT_XID | NVML_EVENT_MIG_CONFIG))
		return NVST_NOT_SUPPORTED;
	if (types & NVML_EVENT_MIG_CONFIG && !on.gpu->mig_capable)
		return NVST_NOT_SUPPORTED;
	if (set->types[on.index] == 0)
		set->since_ns[on.index] = sim.now_ns;
	set->types[on.index] |= types;
	return NVST_SUCCESS;
}

static bool
take_event(struct nvml_event_set *set, struct nvml_event *ret)
{
	for (; set->next < sim.sc->event_count; set->next++) {
		const struct sim_event *e = &sim.sc->events[set->next];

		if (e->at_ns > sim.now_ns)
			return false;
		if (!(set->types[e->gpu] & e->type) || e->at_ns <= set->since_ns[e->gpu])
			continue;
		*ret = (struct nvml_event){
			.device = &sim.gpus[e->gpu],
			.type = e->type,
			.data = e->data,
			.gi = e->gi,
			.ci = e->ci,
		};
		set->next++;
		return true;
	}
	return false;
}

/* The time that it may wait is real time. */
int
nvmlEventSetWait_v2(struct nvml_event_set *set, struct nvml_event *event, uint32_t timeout_ms)
{
	int64_t deadline_ns = time_boot_ns() + (int64_t)timeout_ms * NS_PER_MS;

	ENTER();
	if (!set || !event)
		return NVST_INVALID_ARGUMENT;
	while (!take_event(set, event)) {
		if (time_boot_ns() >= deadline_ns)
			return NVST_TIMEOUT;
		sim_wait_a_little();
		if (sim.users == 0)
			return NVST_UNINITIALIZED;
		sim.now_ns = sim_clock_ns();
	}
	return NVST_SUCCESS;
}
