/* tests/support/nvmlsim/nvmlsim.c - a shared library with NVML's interface over a scenario: the library itself; see README.md.
 *
 * The answers follow the real library: sizes are asked for by INSUFFICIENT_SIZE, missing things are NOT_SUPPORTED or
 * NOT_FOUND, a lost GPU answers GPU_IS_LOST to everything. */
#include "tests/support/nvmlsim/nvmlsim.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/time.h"

struct nvmlsim sim = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

/* By this symbol the exporter knows that its readings are made up. */
EXPORTED extern const char tollgate_simulator[];
const char tollgate_simulator[] = "nvmlsim";

#define FROZEN_WALL0_NS (INT64_C(1700000000) * NS_PER_S) /* where wall time begins for a test that sets the clock */

void
sim_complain(const char *text)
{
	if (strcmp(sim.complaint, text) == 0)
		return;
	fprintf(stderr, "nvmlsim: %s\n", text);
	snprintf(sim.complaint, sizeof(sim.complaint), "%s", text);
}

/* ---- entering a call ------------------------------------------------------------------------------------------------ */

int64_t
sim_clock_ns(void)
{
	int64_t now = sim.frozen ? sim.frozen_ns : time_boot_ns() - sim.t0_ns;

	return now < 0 ? 0 : now;
}

void
sim_leave(pthread_mutex_t **lock)
{
	pthread_mutex_unlock(*lock);
}

static bool
is_running(void)
{
	if (sim.users == 0 || sim.unloaded)
		return false;
	sim.now_ns = sim_clock_ns();
	sim.unloaded = moment_fault(sim.sc, -1, sim.now_ns) != NULL;
	return !sim.unloaded;
}

static bool
is_ours(const struct nvml_device *device)
{
	const struct nvml_device *slots = &sim.slots[0][0];

	return device && ((device >= sim.gpus && device < sim.gpus + sim.sc->gpu_count) ||
	                  (device >= slots && device < slots + sim.sc->gpu_count * SIM_INSTANCES_MAX));
}

int
sim_enter(const char *function, const struct nvml_device *device)
{
	struct err err;

	if (!is_running())
		return NVST_UNINITIALIZED;
	if (sim.sc->call_count > 0) {
		int status = sim_misbehave(function, is_ours(device) ? (int)device->gpu : -1);

		if (status != NVST_SUCCESS)
			return status;
		if (!is_running())
			return NVST_UNINITIALIZED;
	}
	world_advance(sim.world, sim.now_ns);
	if (sim.live && !live_sync(sim.live, sim.world, &err))
		sim_complain(err.text);
	return NVST_SUCCESS;
}

static uint32_t
max_instances(const struct sim_gpu *g)
{
	return (uint32_t)g->geometry.compute_slices;
}

/* Indexes of instances have holes, as on a GPU from which some were removed: the first is empty while there is room. */
static const struct sim_instance *
instance_at(const struct sim_gpu *g, const struct sim_layout *l, uint32_t slot)
{
	uint32_t hole = l->count < max_instances(g) ? 1 : 0;

	return slot >= hole && slot - hole < l->count ? &l->instances[slot - hole] : NULL;
}

static int
fault_status(size_t gpu)
{
	const struct sim_fault *f = moment_fault(sim.sc, (int)gpu, sim.now_ns);

	if (!f)
		return NVST_SUCCESS;
	return f->kind == FAULT_LOST             ? NVST_GPU_IS_LOST
	       : f->kind == FAULT_RESET_REQUIRED ? NVST_RESET_REQUIRED
	                                         : NVST_UNKNOWN;
}

int
sim_find_target(const struct nvml_device *device, struct target *ret)
{
	if (!is_ours(device))
		return NVST_INVALID_ARGUMENT;
	ret->index = device->gpu;
	ret->gpu = &sim.sc->gpus[device->gpu];
	ret->layout = world_layout(sim.world, device->gpu);
	ret->instance = device->slot < 0 ? NULL : instance_at(ret->gpu, ret->layout, (uint32_t)device->slot);
	if (device->slot >= 0 && !ret->instance)
		return NVST_INVALID_ARGUMENT;
	return fault_status(ret->index);
}

int
sim_value(const struct target *on, enum sim_key key, int64_t derived, int64_t *ret)
{
	int gi = on->instance ? (int)on->instance->gi : -1, ci = on->instance ? (int)on->instance->ci : -1;
	int64_t value = derived;

	moment_scripted(on->gpu, key, gi, ci, sim.now_ns, &value);
	if (value == SIM_ABSENT)
		return NVST_NOT_SUPPORTED;
	*ret = value;
	return NVST_SUCCESS;
}

int
sim_value_u32(const struct target *on, enum sim_key key, int64_t derived, uint32_t *ret)
{
	int64_t value;
	int status = sim_value(on, key, derived, &value);

	if (status == NVST_SUCCESS)
		*ret = (uint32_t)value;
	return status;
}

long
sim_driver_major(void)
{
	return strtol(sim.sc->driver, NULL, 10);
}

bool
sim_is_unprivileged(void)
{
	return (sim.sc->quirks & QUIRK_UNPRIVILEGED) != 0;
}

static int
give_text(const char *text, char *out, uint32_t size)
{
	if (!out)
		return NVST_INVALID_ARGUMENT;
	if (strlen(text) >= size)
		return NVST_INSUFFICIENT_SIZE;
	memcpy(out, text, strlen(text) + 1);
	return NVST_SUCCESS;
}

/* ---- the library ---------------------------------------------------------------------------------------------------- */

static void
stop(void)
{
	for (size_t g = 0; g < SIM_GPUS_MAX; g++) {
		mem_free(sim.accounting[g].pids);
		hash_fini(&sim.accounting[g].known);
		sim.accounting[g] = (struct sim_accounting){0};
	}
	live_free(take(sim.live));
	fakeproc_free(take(sim.fp));
	world_free(take(sim.world));
	scenario_free(take(sim.sc));
}

static int64_t
env_ns(const char *name, int64_t otherwise)
{
	const char *text = getenv(name);

	return text && *text ? strtoll(text, NULL, 10) : otherwise;
}

/* Virtual time 0 is where TOLLGATE_SIM_T0_NS puts it on the boot clock, else the first nvmlInit of this process. */
static void
begin_time(void)
{
	sim.t0_ns = env_ns("TOLLGATE_SIM_T0_NS", sim.t0_ns ? sim.t0_ns : time_boot_ns());
	sim.wall0_ns = env_ns("TOLLGATE_SIM_WALL0_NS",
	                      sim.frozen ? FROZEN_WALL0_NS : time_wall_ns() - (time_boot_ns() - sim.t0_ns));
	sim.now_ns = sim_clock_ns();
}

static bool
load(struct err *err)
{
	const char *path = getenv("TOLLGATE_SIM_SCENARIO"), *live = getenv("TOLLGATE_SIM_LIVE");

	if (!path || !*path)
		return err_set(err, ERR_INVALID, "TOLLGATE_SIM_SCENARIO does not name a scenario file");
	if (!scenario_load(path, &sim.sc, err))
		return false;
	sim.world = world_new(sim.sc);
	return fakeproc_open(getenv("TOLLGATE_SIM_PROC"), getenv("TOLLGATE_SIM_PODS"), sim.sc, sim.t0_ns, &sim.fp,
	                     err) &&
	       (!live || !*live || live_open(live, sim.sc, &sim.live, err));
}

static int
start(void)
{
	struct err err;

	begin_time();
	if (!load(&err)) {
		sim_complain(err.text);
		return NVST_INVALID_ARGUMENT;
	}
	sim.complaint[0] = '\0';
	sim.racers = 0;
	for (size_t g = 0; g < sim.sc->gpu_count; g++) {
		sim.gpus[g] = (struct nvml_device){.gpu = g, .slot = -1};
		for (int i = 0; i < SIM_INSTANCES_MAX; i++)
			sim.slots[g][i] = (struct nvml_device){.gpu = g, .slot = i};
		for (uint32_t i = 0; i < SIM_GI_MAX; i++)
			sim.gis[g][i] = (struct nvml_gpu_instance){.gpu = g, .id = i};
		sim.accounting[g].on = sim.sc->gpus[g].accounting;
	}
	if (sim.sc->init_error)
		return sim.sc->init_error;
	return moment_fault(sim.sc, -1, sim.now_ns) ? NVST_DRIVER_NOT_LOADED : sim_misbehave("nvmlInit_v2", -1);
}

int
nvmlInit_v2(void)
{
	int status = NVST_SUCCESS;

	pthread_mutex_lock(&sim.lock);
	if (sim.users == 0 || sim.unloaded) {
		stop();
		sim.users = 0;
		sim.unloaded = false;
		status = start();
		if (status == NVST_SUCCESS && !sim.sc)
			status = NVST_UNKNOWN; /* it hung, and somebody else failed meanwhile */
		if (status != NVST_SUCCESS)
			stop();
	}
	if (status == NVST_SUCCESS)
		sim.users++;
	pthread_mutex_unlock(&sim.lock);
	return status;
}

/* Successful also when there is nothing to shut down, as the real one. */
int
nvmlShutdown(void)
{
	pthread_mutex_lock(&sim.lock);
	if (sim.users > 0 && --sim.users == 0)
		stop();
	pthread_mutex_unlock(&sim.lock);
	return NVST_SUCCESS;
}

const char *
nvmlErrorString(int status)
{
	switch (status) {
	case NVST_SUCCESS: return "no error";
	case NVST_UNINITIALIZED: return "not initialised";
	case NVST_INVALID_ARGUMENT: return "invalid argument";
	case NVST_NOT_SUPPORTED: return "not supported";
	case NVST_NO_PERMISSION: return "no permission";
	case NVST_NOT_FOUND: return "not found";
	case NVST_INSUFFICIENT_SIZE: return "insufficient size";
	case NVST_DRIVER_NOT_LOADED: return "driver not loaded";
	case NVST_TIMEOUT: return "timeout";
	case NVST_LIBRARY_NOT_FOUND: return "library not found";
	case NVST_FUNCTION_NOT_FOUND: return "function not found";
	case NVST_GPU_IS_LOST: return "GPU is lost";
	case NVST_RESET_REQUIRED: return "GPU requires a reset";
	case NVST_LIB_RM_VERSION_MISMATCH: return "driver and library differ in version";
	case NVST_ARGUMENT_VERSION_MISMATCH: return "argument version mismatch";
	default: return "unknown error";
	}
}

int
nvmlSystemGetDriverVersion(char *text, uint32_t size)
{
	ENTER();
	return give_text(sim.sc->driver, text, size);
}

int
nvmlSystemGetNVMLVersion(char *text, uint32_t size)
{
	static const char unloaded[] = "12.550.163.01"; /* told without a driver too */

	pthread_mutex_lock(&sim.lock);
	int status = give_text(sim.sc ? sim.sc->library : unloaded, text, size);
	pthread_mutex_unlock(&sim.lock);
	return status;
}

int
nvmlSystemGetProcessName(uint32_t pid, char *text, uint32_t size)
{
	const struct sim_process *p;

	ENTER();
	p = world_process(sim.world, pid);
	return p ? give_text(p->comm, text, size) : NVST_NOT_FOUND;
}

/* ---- devices -------------------------------------------------------------------------------------------------------- */

int
nvmlDeviceGetCount_v2(uint32_t *count)
{
	ENTER();
	if (!count)
		return NVST_INVALID_ARGUMENT;
	*count = (uint32_t)sim.sc->gpu_count;
	return NVST_SUCCESS;
}

int
nvmlDeviceGetHandleByIndex_v2(uint32_t index, struct nvml_device **device)
{
	ENTER_WITH(index < SIM_GPUS_MAX ? &sim.gpus[index] : NULL);
	if (!device || index >= sim.sc->gpu_count)
		return NVST_INVALID_ARGUMENT;
	if (fault_status(index) == NVST_GPU_IS_LOST)
		return NVST_GPU_IS_LOST;
	*device = &sim.gpus[index];
	return NVST_SUCCESS;
}

int
nvmlDeviceGetUUID(struct nvml_device *device, char *text, uint32_t size)
{
	ENTER_DEVICE(device, text);
	return give_text(on.instance ? on.instance->uuid : on.gpu->uuid, text, size);
}

int
nvmlDeviceGetName(struct nvml_device *device, char *text, uint32_t size)
{
	char name[2 * SIM_TEXT + 8];

	ENTER_DEVICE(device, text);
	snprintf(name, sizeof(name), "%s%s%s", on.gpu->model, on.instance ? " MIG " : "",
	         on.instance ? on.instance->profile : "");
	return give_text(name, text, size);
}

int
nvmlDeviceGetPciInfo_v3(struct nvml_device *device, struct nvml_pci_info *pci)
{
	unsigned domain = 0, bus = 0, slot = 0;

	ENTER_DEVICE(device, pci);
	memset(pci, 0, sizeof(*pci));
	snprintf(pci->bus_id, sizeof(pci->bus_id), "%s", on.gpu->pci);
	if (sscanf(on.gpu->pci, "%8x:%2x:%2x", &domain, &bus, &slot) == 3)
		snprintf(pci->bus_id_legacy, sizeof(pci->bus_id_legacy), "%04X:%02X:%02X.0", domain & 0xffff,
		         bus & 0xff, slot & 0xff);
	pci->domain = domain;
	pci->bus = bus;
	pci->device = slot;
	pci->pci_device_id = 0x10de;
	return NVST_SUCCESS;
}

/* ---- instances ------------------------------------------------------------------------------------------------------ */

int
nvmlDeviceGetMigMode(struct nvml_device *device, uint32_t *current, uint32_t *pending)
{
	ENTER_BOARD(device, current && pending);
	if (!on.gpu->mig_capable)
		return NVST_NOT_SUPPORTED;
	*current = *pending = on.layout->mig;
	return NVST_SUCCESS;
}

int
nvmlDeviceGetMaxMigDeviceCount(struct nvml_device *device, uint32_t *count)
{
	ENTER_DEVICE(device, count);
	*count = on.layout->mig ? max_instances(on.gpu) : 0;
	return NVST_SUCCESS;
}

int
nvmlDeviceGetMigDeviceHandleByIndex(struct nvml_device *device, uint32_t index, struct nvml_device **mig)
{
	ENTER_BOARD(device, mig);
	if (!on.layout->mig)
		return NVST_NOT_SUPPORTED;
	if (index >= max_instances(on.gpu))
		return NVST_INVALID_ARGUMENT;
	if (!instance_at(on.gpu, on.layout, index))
		return sim.sc->quirks & QUIRK_INVALID_SLOTS ? NVST_INVALID_ARGUMENT : NVST_NOT_FOUND;
	*mig = &sim.slots[on.index][index];
	return NVST_SUCCESS;
}

int
nvmlDeviceGetGpuInstanceId(struct nvml_device *mig, uint32_t *id)
{
	ENTER_DEVICE(mig, id);
	if (!on.instance)
		return NVST_NOT_SUPPORTED;
	*id = on.instance->gi;
	return NVST_SUCCESS;
}

int
nvmlDeviceGetComputeInstanceId(struct nvml_device *mig, uint32_t *id)
{
	ENTER_DEVICE(mig, id);
	if (!on.instance)
		return NVST_NOT_SUPPORTED;
	*id = on.instance->ci;
	return NVST_SUCCESS;
}

int
nvmlDeviceGetAttributes_v2(struct nvml_device *mig, struct nvml_attributes *attributes)
{
	ENTER_DEVICE(mig, attributes);
	if (!on.instance || sim.sc->quirks & QUIRK_NO_ATTRIBUTES)
		return NVST_NOT_SUPPORTED;
	*attributes = (struct nvml_attributes){
		.multiprocessors = (uint32_t)on.instance->slices.compute * 14,
		.copy_engines = (uint32_t)on.instance->slices.memory,
		.gi_slices = (uint32_t)on.instance->slices.gi_compute,
		.ci_slices = (uint32_t)on.instance->slices.compute,
		.memory_mib = on.instance->memory_mib,
	};
	return NVST_SUCCESS;
}

static const struct sim_instance *
instance_of_gi(const struct sim_layout *l, uint32_t gi)
{
	for (size_t i = 0; i < l->count; i++)
		if (l->instances[i].gi == gi)
			return &l->instances[i];
	return NULL;
}

int
nvmlDeviceGetGpuInstanceById(struct nvml_device *device, uint32_t id, struct nvml_gpu_instance **instance)
{
	ENTER_BOARD(device, instance);
	if (!on.layout->mig)
		return NVST_NOT_SUPPORTED;
	if (sim_is_unprivileged())
		return NVST_NO_PERMISSION;
	if (id >= SIM_GI_MAX || !instance_of_gi(on.layout, id))
		return NVST_NOT_FOUND;
	*instance = &sim.gis[on.index][id];
	return NVST_SUCCESS;
}

/* A handle of an instance that is gone is not valid. */
int
nvmlGpuInstanceGetInfo(struct nvml_gpu_instance *instance, struct nvml_gpu_instance_info *info)
{
	const struct nvml_gpu_instance *first = &sim.gis[0][0];
	const struct sim_instance *in = NULL;

	ENTER();
	if (!info || !instance || instance < first || instance >= first + sim.sc->gpu_count * SIM_GI_MAX)
		return NVST_INVALID_ARGUMENT;
	in = instance_of_gi(world_layout(sim.world, instance->gpu), instance->id);
	if (!in)
		return NVST_INVALID_ARGUMENT;
	if (fault_status(instance->gpu) != NVST_SUCCESS)
		return fault_status(instance->gpu);
	*info = (struct nvml_gpu_instance_info){
		.device = &sim.gpus[instance->gpu],
		.id = instance->id,
		.profile = (uint32_t)(in->slices.gi_compute * 16 + in->slices.memory),
		.placement = {.start = (uint32_t)in->placement, .size = (uint32_t)in->slices.memory},
	};
	return NVST_SUCCESS;
}
