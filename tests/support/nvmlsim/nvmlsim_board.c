/* tests/support/nvmlsim/nvmlsim_board.c - what the board of a GPU tells of itself. What a scenario does not script follows from
 * its activity. */
#include "tests/support/nvmlsim/nvmlsim.h"

#include <string.h>

#define SENSOR_COOLEST 30
#define SENSOR_RANGE 50
#define MEMORY_HOTTER 6
#define CLOCK_LOWEST 210
#define CLOCK_RANGE 1200
#define CLOCK_MEMORY 1593
#define CLOCK_VIDEO 1155
#define REASON_IDLE 1             /* bit of the clocks' event reasons */
#define PCIE_KIB_PER_S 4194304    /* at full activity */
#define NVLINK_KIB_PER_S 33554432 /* of all links, at full activity */
#define PERIOD_US 167000
#define KIB 1024

static int64_t
active_ppm(const struct target *on)
{
	return world_active_ppm(sim.world, on->index);
}

/* Percent of a board; none of it where the GPU is partitioned. */
static int
percent(const struct target *on, enum sim_key key, int64_t derived, uint32_t *ret)
{
	return on->layout->mig ? NVST_NOT_SUPPORTED : sim_value_u32(on, key, derived, ret);
}

int
nvmlDeviceGetUtilizationRates(struct nvml_device *device, struct nvml_utilization *rates)
{
	uint32_t memory = 0;
	int status;

	ENTER_BOARD(device, rates);
	status = percent(&on, KEY_ACTIVE, active_ppm(&on) / 10000, &rates->gpu);
	if (status != NVST_SUCCESS)
		return status;
	if (percent(&on, KEY_MEMORY_ACTIVE, rates->gpu / 2, &memory) == NVST_SUCCESS)
		rates->memory = memory;
	return NVST_SUCCESS;
}

int
nvmlDeviceGetEncoderUtilization(struct nvml_device *device, uint32_t *used, uint32_t *period_us)
{
	ENTER_BOARD(device, used && period_us);
	*period_us = PERIOD_US;
	return percent(&on, KEY_ENCODER, 0, used);
}

int
nvmlDeviceGetDecoderUtilization(struct nvml_device *device, uint32_t *used, uint32_t *period_us)
{
	ENTER_BOARD(device, used && period_us);
	*period_us = PERIOD_US;
	return percent(&on, KEY_DECODER, 0, used);
}

/* ---- memory --------------------------------------------------------------------------------------------------------- */

bool
sim_is_in(const struct target *on, const struct world_run *run)
{
	return !on->instance || (run->place != PLACE_WHOLE && on->instance == &on->layout->instances[run->place]);
}

static int64_t
held_memory(const struct target *on)
{
	const struct world_run *runs;
	size_t count = world_alive(sim.world, on->index, &runs);
	int64_t sum = 0;

	for (size_t i = 0; i < count; i++)
		if (sim_is_in(on, &runs[i]))
			sum += moment_phase(runs[i].p, sim.now_ns - runs[i].start_ns)->memory_bytes;
	return sum;
}

/* The driver's own share is "reserved" to version 2 and part of "used" to version 1. An instance reserves nothing. */
static int
fill_memory(const struct target *on, struct nvml_memory *m)
{
	int64_t total, reserved, used;
	int status;

	if (!on->instance && on->layout->mig && sim_is_unprivileged())
		return NVST_NO_PERMISSION;
	total = (on->instance ? (int64_t)on->instance->memory_mib : on->gpu->memory_mib) << 20;
	status = sim_value(on, KEY_MEMORY_BYTES, total, &total);
	if (status != NVST_SUCCESS)
		return status;
	if (sim_value(on, KEY_MEMORY_RESERVED_BYTES, on->instance ? 0 : total / 128, &reserved) != NVST_SUCCESS ||
	    reserved > total)
		reserved = 0;
	used = held_memory(on);
	if (sim_value(on, KEY_MEMORY_USED_BYTES, used, &used) != NVST_SUCCESS)
		used = 0;
	if (used > total - reserved)
		used = total - reserved;
	m->total = (uint64_t)total;
	m->reserved = (uint64_t)reserved;
	m->used = (uint64_t)used;
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

/* ---- power, temperature, clocks ------------------------------------------------------------------------------------- */

int
nvmlDeviceGetPowerUsage(struct nvml_device *device, uint32_t *milliwatts)
{
	ENTER_BOARD(device, milliwatts);
	return sim_value_u32(&on, KEY_POWER_MW, world_power_mw(sim.world, on.index), milliwatts);
}

int
nvmlDeviceGetTotalEnergyConsumption(struct nvml_device *device, uint64_t *millijoules)
{
	int64_t value;
	int status;

	ENTER_BOARD(device, millijoules);
	status = sim_value(&on, KEY_ENERGY_MJ, on.gpu->energy ? world_energy_mj(sim.world, on.index) : SIM_ABSENT,
	                   &value);
	if (status == NVST_SUCCESS)
		*millijoules = (uint64_t)value;
	return status;
}

int
nvmlDeviceGetEnforcedPowerLimit(struct nvml_device *device, uint32_t *milliwatts)
{
	ENTER_BOARD(device, milliwatts);
	return sim_value_u32(&on, KEY_POWER_LIMIT_MW, on.gpu->max_mw, milliwatts);
}

static int64_t
temperature(const struct target *on)
{
	return SENSOR_COOLEST + SENSOR_RANGE * active_ppm(on) / SIM_PPM;
}

int
nvmlDeviceGetTemperature(struct nvml_device *device, uint32_t sensor, uint32_t *celsius)
{
	ENTER_DEVICE(device, celsius);
	if (sensor != NVML_SENSOR_GPU)
		return NVST_INVALID_ARGUMENT;
	if (on.instance)
		return NVST_NOT_SUPPORTED;
	return sim_value_u32(&on, KEY_TEMPERATURE_C, temperature(&on), celsius);
}

int
nvmlDeviceGetClockInfo(struct nvml_device *device, uint32_t clock, uint32_t *mhz)
{
	static const enum sim_key keys[] = {
		[NVML_CLOCK_OF_GRAPHICS] = KEY_GRAPHICS_CLOCK_MHZ,
		[NVML_CLOCK_OF_SM] = KEY_SM_CLOCK_MHZ,
		[NVML_CLOCK_OF_MEMORY] = KEY_MEMORY_CLOCK_MHZ,
		[NVML_CLOCK_OF_VIDEO] = KEY_VIDEO_CLOCK_MHZ,
	};
	int64_t derived;

	ENTER_BOARD(device, mhz);
	if (clock >= ARRAY_LEN(keys))
		return NVST_INVALID_ARGUMENT;
	derived = clock == NVML_CLOCK_OF_MEMORY  ? CLOCK_MEMORY
	          : clock == NVML_CLOCK_OF_VIDEO ? CLOCK_VIDEO
	                                         : CLOCK_LOWEST + CLOCK_RANGE * active_ppm(&on) / SIM_PPM;
	return sim_value_u32(&on, keys[clock], derived, mhz);
}

static int
throttle_reasons(const struct target *on, uint64_t *reasons)
{
	int64_t value;
	int status = sim_value(on, KEY_THROTTLE_REASONS, active_ppm(on) == 0 ? REASON_IDLE : 0, &value);

	if (status == NVST_SUCCESS)
		*reasons = (uint64_t)value;
	return status;
}

/* The name since 535. */
int
nvmlDeviceGetCurrentClocksEventReasons(struct nvml_device *device, uint64_t *reasons)
{
	ENTER_BOARD(device, reasons);
	return sim_driver_major() < 535 ? NVST_FUNCTION_NOT_FOUND : throttle_reasons(&on, reasons);
}

int
nvmlDeviceGetCurrentClocksThrottleReasons(struct nvml_device *device, uint64_t *reasons)
{
	ENTER_BOARD(device, reasons);
	return throttle_reasons(&on, reasons);
}

/* ---- errors --------------------------------------------------------------------------------------------------------- */

int
nvmlDeviceGetTotalEccErrors(struct nvml_device *device, uint32_t error_type, uint32_t counter, uint64_t *count)
{
	int64_t value;
	int status;

	ENTER_BOARD(device, count);
	if (error_type > NVML_ERROR_UNCORRECTED || counter > NVML_ECC_AGGREGATE)
		return NVST_INVALID_ARGUMENT;
	status = sim_value(&on, error_type == NVML_ERROR_CORRECTED ? KEY_ECC_CORRECTED : KEY_ECC_UNCORRECTED,
	                   on.gpu->ecc ? 0 : SIM_ABSENT, &value);
	if (status == NVST_SUCCESS)
		*count = (uint64_t)value;
	return status;
}

int
nvmlDeviceGetRemappedRows(struct nvml_device *device, uint32_t *corrected, uint32_t *uncorrected, uint32_t *pending,
                          uint32_t *failed)
{
	static const enum sim_key keys[] = {KEY_REMAPPED_CORRECTED, KEY_REMAPPED_UNCORRECTED, KEY_REMAP_PENDING,
	                                    KEY_REMAP_FAILED};
	uint32_t *outs[] = {corrected, uncorrected, pending, failed};

	ENTER_BOARD(device, corrected && uncorrected && pending && failed);
	for (size_t i = 0; i < ARRAY_LEN(keys); i++) {
		int status = sim_value_u32(&on, keys[i], on.gpu->row_remap ? 0 : SIM_ABSENT, outs[i]);

		if (status != NVST_SUCCESS)
			return status;
	}
	return NVST_SUCCESS;
}

/* ---- PCIe and NVLink ------------------------------------------------------------------------------------------------ */

int
nvmlDeviceGetPcieThroughput(struct nvml_device *device, uint32_t counter, uint32_t *kib_per_s)
{
	int64_t bytes;
	int status;

	ENTER_BOARD(device, kib_per_s);
	if (counter > NVML_PCIE_RX)
		return NVST_INVALID_ARGUMENT;
	status = sim_value(&on, counter == NVML_PCIE_TX ? KEY_PCIE_TX_BYTES_PER_S : KEY_PCIE_RX_BYTES_PER_S,
	                   PCIE_KIB_PER_S * active_ppm(&on) / SIM_PPM * KIB, &bytes);
	if (status == NVST_SUCCESS)
		*kib_per_s = (uint32_t)(bytes / KIB);
	return status;
}

int
nvmlDeviceGetPcieReplayCounter(struct nvml_device *device, uint32_t *count)
{
	ENTER_BOARD(device, count);
	return sim_value_u32(&on, KEY_PCIE_REPLAYS, 0, count);
}

int
nvmlDeviceGetCurrPcieLinkGeneration(struct nvml_device *device, uint32_t *generation)
{
	ENTER_BOARD(device, generation);
	return sim_value_u32(&on, KEY_PCIE_GENERATION, on.gpu->gpm ? 5 : 4, generation);
}

int
nvmlDeviceGetCurrPcieLinkWidth(struct nvml_device *device, uint32_t *width)
{
	ENTER_BOARD(device, width);
	return sim_value_u32(&on, KEY_PCIE_WIDTH, 16, width);
}

/* KiB of all links together; of one link its part. */
static int
nvlink_value(const struct target *on, enum sim_key key, uint32_t scope, uint64_t *ret)
{
	int64_t links = on->gpu->nvlinks, derived = SIM_ABSENT, bytes;
	int status;

	if (scope != NVML_ALL_LINKS && scope >= (uint64_t)links)
		return links > 0 ? NVST_INVALID_ARGUMENT : NVST_NOT_SUPPORTED;
	if (links > 0)
		derived =
			(int64_t)(world_active_ppm_ns(sim.world, on->index) / SIM_PPM * NVLINK_KIB_PER_S / 1000000000) *
			KIB;
	status = sim_value(on, key, derived, &bytes);
	if (status == NVST_SUCCESS)
		*ret = (uint64_t)(scope == NVML_ALL_LINKS ? bytes / KIB : bytes / KIB / links);
	return status;
}

static void
fill_field(const struct target *on, struct nvml_field_value *v)
{
	uint32_t celsius;

	v->timestamp_us = moment_wall_ns(sim.sc, sim.wall0_ns, sim.now_ns) / 1000;
	v->latency_us = 0;
	v->value = 0;
	switch (v->id) {
	case NVML_FIELD_MEMORY_TEMPERATURE:
		v->type = NVML_TYPE_UINT;
		v->status = (uint32_t)sim_value_u32(on, KEY_MEMORY_TEMPERATURE_C,
		                                    on->gpu->mig_capable ? temperature(on) + MEMORY_HOTTER : SIM_ABSENT,
		                                    &celsius);
		if (v->status == NVST_SUCCESS)
			memcpy(&v->value, &celsius, sizeof(celsius));
		break;
	case NVML_FIELD_NVLINK_DATA_TX:
	case NVML_FIELD_NVLINK_DATA_RX:
		v->type = NVML_TYPE_ULONGLONG;
		v->status = (uint32_t)nvlink_value(on,
		                                   v->id == NVML_FIELD_NVLINK_DATA_TX ? KEY_NVLINK_TX_BYTES
		                                                                      : KEY_NVLINK_RX_BYTES,
		                                   v->scope, &v->value);
		break;
	default: v->status = NVST_NOT_SUPPORTED;
	}
}

/* The call succeeds; each value has its own status. */
int
nvmlDeviceGetFieldValues(struct nvml_device *device, int count, struct nvml_field_value *values)
{
	ENTER_BOARD(device, values && count > 0);
	for (int i = 0; i < count; i++)
		fill_field(&on, &values[i]);
	return NVST_SUCCESS;
}
