/* tests/support/nvmlsim/nvmlsim.c - a shared library with NVML's interface over a scenario; see README.md.
 *
 * The answers follow the real library: sizes are asked for by INSUFFICIENT_SIZE, missing things are NOT_SUPPORTED or
 * NOT_FOUND, a lost GPU answers GPU_IS_LOST to everything. */
#include "tests/support/nvmlsim/nvmlsim.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/time.h"

struct nvmlsim sim = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* By this symbol the exporter knows that its readings are made up. */
EXPORTED extern const char tollgate_simulator[];
const char tollgate_simulator[] = "nvmlsim";

/* Stops the virtual clock at a moment of the scenario; a negative one lets it run again. */
EXPORTED void tollgate_sim_set_time_ns(int64_t t_ns);

#define LIBRARY_VERSION "12.550.163.01"
#define SENSOR_COOLEST 30
#define SENSOR_RANGE 50

void
sim_complain(const char *text)
{
	if (strcmp(sim.complaint, text) == 0)
		return;
	fprintf(stderr, "nvmlsim: %s\n", text);
	snprintf(sim.complaint, sizeof(sim.complaint), "%s", text);
}

void
tollgate_sim_set_time_ns(int64_t t_ns)
{
	pthread_mutex_lock(&sim.lock);
	sim.frozen = t_ns >= 0;
	sim.frozen_ns = t_ns;
	pthread_mutex_unlock(&sim.lock);
}

static void
tell_time(void)
{
	sim.now_ns = sim.frozen ? sim.frozen_ns : time_boot_ns() - sim.t0_ns;
	if (sim.now_ns < 0)
		sim.now_ns = 0;
}

/* ---- entering a call ------------------------------------------------------------------------------------------------ */

void
sim_leave(pthread_mutex_t **lock)
{
	pthread_mutex_unlock(*lock);
}

bool
sim_is_running(void)
{
	if (sim.users == 0 || sim.unloaded)
		return false;
	tell_time();
	sim.unloaded = world_fault(sim.sc, -1, sim.now_ns) != NULL;
	return !sim.unloaded;
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
	const struct sim_fault *f = world_fault(sim.sc, (int)gpu, sim.now_ns);

	if (!f)
		return NVST_SUCCESS;
	return f->kind == FAULT_LOST             ? NVST_GPU_IS_LOST
	       : f->kind == FAULT_RESET_REQUIRED ? NVST_RESET_REQUIRED
	                                         : NVST_UNKNOWN;
}

static bool
is_ours(const struct nvml_device *device)
{
	const struct nvml_device *slots = &sim.slots[0][0];

	return (device >= sim.gpus && device < sim.gpus + sim.sc->gpu_count) ||
	       (device >= slots && device < slots + sim.sc->gpu_count * SIM_INSTANCES_MAX);
}

int
sim_find_target(const struct nvml_device *device, struct target *ret)
{
	if (!device || !is_ours(device))
		return NVST_INVALID_ARGUMENT;
	ret->index = device->gpu;
	ret->gpu = &sim.sc->gpus[device->gpu];
	ret->layout = world_layout(ret->gpu, sim.now_ns);
	ret->instance = device->slot < 0 ? NULL : instance_at(ret->gpu, ret->layout, (uint32_t)device->slot);
	if (device->slot >= 0 && !ret->instance)
		return NVST_INVALID_ARGUMENT;
	return fault_status(ret->index);
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
	fakeproc_free(sim.fp);
	sim.fp = NULL;
	scenario_free(sim.sc);
	sim.sc = NULL;
}

/* Virtual time 0 is where TOLLGATE_SIM_T0_NS puts it on the boot clock, else the first nvmlInit of this process. */
static void
begin_time(void)
{
	const char *text = getenv("TOLLGATE_SIM_T0_NS");

	if (text && *text)
		sim.t0_ns = strtoll(text, NULL, 10);
	else if (sim.t0_ns == 0)
		sim.t0_ns = time_boot_ns();
}

static int
start(void)
{
	const char *path = getenv("TOLLGATE_SIM_SCENARIO");
	struct err err;
	bool ok;

	begin_time();
	if (!path || !*path)
		ok = err_set(&err, ERR_INVALID, "TOLLGATE_SIM_SCENARIO does not name a scenario file");
	else
		ok = scenario_load(path, &sim.sc, &err) &&
		     fakeproc_open(getenv("TOLLGATE_SIM_PROC"), getenv("TOLLGATE_SIM_PODS"), sim.sc, sim.t0_ns, &sim.fp,
		                   &err);
	if (!ok) {
		sim_complain(err.text);
		return NVST_INVALID_ARGUMENT;
	}
	sim.complaint[0] = '\0';
	sim.racers = 0;
	tell_time();
	for (size_t g = 0; g < sim.sc->gpu_count; g++) {
		sim.energy[g] = (struct world_energy){0};
		sim.gpus[g] = (struct nvml_device){.gpu = g, .slot = -1};
		for (int i = 0; i < SIM_INSTANCES_MAX; i++)
			sim.slots[g][i] = (struct nvml_device){.gpu = g, .slot = i};
	}
	if (sim.sc->init_error)
		return sim.sc->init_error;
	return world_fault(sim.sc, -1, sim.now_ns) ? NVST_DRIVER_NOT_LOADED : NVST_SUCCESS;
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
	return give_text(LIBRARY_VERSION, text, size);
}

int
nvmlSystemGetProcessName(uint32_t pid, char *text, uint32_t size)
{
	ENTER();
	for (size_t i = 0; i < sim.sc->process_count; i++) {
		const struct sim_process *p = &sim.sc->processes[i];
		int64_t run = world_run(p, sim.now_ns);

		if (run >= 0 && world_pid(p, run) == pid)
			return give_text(p->comm, text, size);
	}
	return NVST_NOT_FOUND;
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
	ENTER();
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
	ENTER_DEVICE(device, pci);
	memset(pci, 0, sizeof(*pci));
	pci->bus = (uint32_t)on.index + 1;
	pci->pci_device_id = 0x10de;
	snprintf(pci->bus_id_legacy, sizeof(pci->bus_id_legacy), "0000:%02X:00.0", pci->bus & 0xff);
	snprintf(pci->bus_id, sizeof(pci->bus_id), "00000000:%02X:00.0", pci->bus & 0xff);
	return NVST_SUCCESS;
}

int
nvmlDeviceGetUtilizationRates(struct nvml_device *device, struct nvml_utilization *rates)
{
	ENTER_DEVICE(device, rates);
	if (on.layout->mig)
		return NVST_NOT_SUPPORTED;
	rates->gpu = (uint32_t)(world_active_ppm(sim.sc, on.index, sim.now_ns) / 10000);
	rates->memory = rates->gpu / 2;
	return NVST_SUCCESS;
}

bool
sim_is_in(const struct target *on, const struct sim_process *p)
{
	return world_is_on(sim.sc, on->index, p, sim.now_ns) &&
	       (!on->instance || on->instance == &on->layout->instances[p->instance]);
}

/* The driver's own share is "reserved" to version 2 and part of "used" to version 1. An instance reserves nothing. */
static int
fill_memory(const struct target *on, struct nvml_memory *m)
{
	if (!on->instance && on->layout->mig && sim.sc->quirks & QUIRK_UNPRIVILEGED)
		return NVST_NO_PERMISSION;
	m->total = (on->instance ? on->instance->memory_mib : (uint64_t)on->gpu->memory_mib) << 20;
	m->reserved = on->instance ? 0 : m->total / 128;
	m->used = 0;
	for (size_t i = 0; i < sim.sc->process_count; i++)
		if (sim_is_in(on, &sim.sc->processes[i]))
			m->used += (uint64_t)sim.sc->processes[i].memory_bytes;
	if (m->used > m->total - m->reserved)
		m->used = m->total - m->reserved;
	m->free = m->total - m->reserved - m->used;
	return NVST_SUCCESS;
}

int
nvmlDeviceGetMemoryInfo_v2(struct nvml_device *device, struct nvml_memory *memory)
{
	ENTER_DEVICE(device, memory);
	if (sim.sc->quirks & QUIRK_MEMORY_V1)
		return NVST_FUNCTION_NOT_FOUND;
	if (memory->version != NVML_MEMORY_V2)
		return NVST_ARGUMENT_VERSION_MISMATCH;
	return fill_memory(&on, memory);
}

int
nvmlDeviceGetMemoryInfo(struct nvml_device *device, struct nvml_memory_v1 *memory)
{
	struct nvml_memory m;
	int status;

	ENTER_DEVICE(device, memory);
	status = fill_memory(&on, &m);
	if (status == NVST_SUCCESS)
		*memory = (struct nvml_memory_v1){.total = m.total, .free = m.free, .used = m.used + m.reserved};
	return status;
}

int
nvmlDeviceGetPowerUsage(struct nvml_device *device, uint32_t *milliwatts)
{
	ENTER_DEVICE(device, milliwatts);
	if (on.instance)
		return NVST_NOT_SUPPORTED;
	*milliwatts = (uint32_t)world_power_mw(sim.sc, on.index, sim.now_ns);
	return NVST_SUCCESS;
}

int
nvmlDeviceGetTotalEnergyConsumption(struct nvml_device *device, uint64_t *millijoules)
{
	ENTER_DEVICE(device, millijoules);
	if (on.instance)
		return NVST_NOT_SUPPORTED;
	*millijoules = (uint64_t)world_energy_mj(sim.sc, on.index, &sim.energy[on.index], sim.now_ns);
	return NVST_SUCCESS;
}

int
nvmlDeviceGetTemperature(struct nvml_device *device, uint32_t sensor, uint32_t *celsius)
{
	ENTER_DEVICE(device, celsius);
	if (sensor != NVML_SENSOR_GPU)
		return NVST_INVALID_ARGUMENT;
	if (on.instance)
		return NVST_NOT_SUPPORTED;
	*celsius = (uint32_t)(SENSOR_COOLEST + SENSOR_RANGE * world_active_ppm(sim.sc, on.index, sim.now_ns) / 1000000);
	return NVST_SUCCESS;
}

/* ---- instances ------------------------------------------------------------------------------------------------------ */

int
nvmlDeviceGetMigMode(struct nvml_device *device, uint32_t *current, uint32_t *pending)
{
	ENTER_DEVICE(device, current && pending);
	if (!on.gpu->mig_capable || on.instance)
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
	ENTER_DEVICE(device, mig);
	if (!on.layout->mig || on.instance)
		return NVST_NOT_SUPPORTED;
	if (index >= max_instances(on.gpu))
		return NVST_INVALID_ARGUMENT;
	if (!instance_at(on.gpu, on.layout, index))
		return NVST_NOT_FOUND;
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
