/* exporter/source/nvml/nvml_board.c - what NVML tells of a board, whatever it is cut into. The rules are in nvml_source.h.
 *
 * Rule 8 is here: what changes slowly, or is slow to ask (PCIe throughput makes the driver watch for 20 ms), is asked in
 * turn, one group each SLOW_STEP_NS, and the answer stays until the next turn. */
#include "exporter/source/nvml/nvml_source.h"

#include <string.h>

#include "common/base/time.h"

#define SLOW_STEP_NS (2 * NS_PER_S)
#define KIB 1024

static int64_t
from_kib(uint64_t kib)
{
	return kib > INT64_MAX / KIB ? ABSENT : (int64_t)kib * KIB;
}

bool
nvml_read_memory(struct nvml_reading *n, struct nvml_device *device, struct nvml_memory *ret)
{
	struct nvml_memory_v1 old = {0};

	*ret = (struct nvml_memory){.version = NVML_MEMORY_V2, .reserved = NVML_NOT_AVAILABLE};
	if (nvml_has(n, NVML_ASK(n, ASK_MEMORY_V2, nvmlDeviceGetMemoryInfo_v2, device, ret)))
		return true;
	if (!nvml_has(n, NVML_CALL(n->s, nvmlDeviceGetMemoryInfo, device, &old)))
		return false;
	*ret = (struct nvml_memory){
		.total = old.total, .free = old.free, .used = old.used, .reserved = NVML_NOT_AVAILABLE};
	return true;
}

static void
read_clocks(struct nvml_reading *n)
{
	struct gpu_board *b = &n->r->board;
	int64_t *const clocks[] = {
		[NVML_CLOCK_OF_GRAPHICS] = &b->graphics_clock_mhz,
		[NVML_CLOCK_OF_SM] = &b->sm_clock_mhz,
		[NVML_CLOCK_OF_MEMORY] = &b->memory_clock_mhz,
		[NVML_CLOCK_OF_VIDEO] = &b->video_clock_mhz,
	};
	uint32_t mhz;
	uint64_t reasons;

	for (uint32_t i = 0; i < ARRAY_LEN(clocks); i++)
		if (nvml_has(n, NVML_ASK(n, ASK_CLOCK + i, nvmlDeviceGetClockInfo, n->device, i, &mhz)))
			*clocks[i] = mhz;
	if (nvml_has(n, NVML_ASK(n, ASK_EVENT_REASONS, nvmlDeviceGetCurrentClocksEventReasons, n->device, &reasons)) ||
	    nvml_has(n,
	             NVML_ASK(n, ASK_THROTTLE_REASONS, nvmlDeviceGetCurrentClocksThrottleReasons, n->device, &reasons)))
		b->throttle_reasons = nvml_from_u64(reasons);
}

/* The value is stored in the type that the driver says. */
static int64_t
field_value(const struct nvml_field_value *f)
{
	int32_t small;

	switch ((enum nvml_value_type)f->type) {
	case NVML_TYPE_UINT: return (int64_t)(f->value & UINT32_MAX);
	case NVML_TYPE_USHORT: return (int64_t)(f->value & UINT16_MAX);
	case NVML_TYPE_INT: memcpy(&small, &f->value, sizeof(small)); return small < 0 ? ABSENT : small;
	case NVML_TYPE_ULONG:
	case NVML_TYPE_ULONGLONG:
	case NVML_TYPE_LONGLONG: return nvml_from_u64(f->value);
	case NVML_TYPE_DOUBLE: break;
	}
	return ABSENT;
}

/* One call for all fields; each has its own status. */
static void
read_fields(struct nvml_reading *n)
{
	struct gpu_board *b = &n->r->board;
	const struct {
		enum nvml_ask ask;
		enum nvml_field field;
		uint32_t scope;
		int64_t *to;
		int64_t unit;
	} fields[] = {
		{ASK_FIELD_MEMORY_TEMPERATURE, NVML_FIELD_MEMORY_TEMPERATURE, 0, &b->memory_temperature_c, 1},
		{ASK_FIELD_NVLINK_TX, NVML_FIELD_NVLINK_DATA_TX, NVML_ALL_LINKS, &b->nvlink_tx_bytes, KIB},
		{ASK_FIELD_NVLINK_RX, NVML_FIELD_NVLINK_DATA_RX, NVML_ALL_LINKS, &b->nvlink_rx_bytes, KIB},
	};
	struct nvml_field_value values[ARRAY_LEN(fields)] = {0};
	size_t which[ARRAY_LEN(fields)];
	int count = 0;

	for (size_t i = 0; i < ARRAY_LEN(fields); i++) {
		if (nvml_lacks(n, fields[i].ask))
			continue;
		which[count] = i;
		values[count++] = (struct nvml_field_value){.id = fields[i].field,
		                                            .scope = fields[i].scope,
		                                            .status = NVST_UNKNOWN};
	}
	if (count == 0 || !nvml_has(n, NVML_ASK(n, ASK_FIELDS, nvmlDeviceGetFieldValues, n->device, count, values)))
		return;
	for (int i = 0; i < count; i++) {
		int64_t value = field_value(&values[i]);

		if (!nvml_has(n, nvml_note(n, fields[which[i]].ask, (int)values[i].status)))
			continue;
		*fields[which[i]].to = fields[which[i]].unit == KIB ? from_kib((uint64_t)value) : value;
	}
}

/* ---- what is asked in turn ------------------------------------------------------------------------------------------ */

static void
ask_power_limit(struct nvml_reading *n, struct gpu_board *b)
{
	uint32_t milliwatts;

	b->power_limit_mw = ABSENT;
	if (nvml_has(n, NVML_ASK(n, ASK_POWER_LIMIT, nvmlDeviceGetEnforcedPowerLimit, n->device, &milliwatts)))
		b->power_limit_mw = milliwatts;
}

/* Not there while ECC is off. */
static void
ask_ecc(struct nvml_reading *n, struct gpu_board *b)
{
	uint64_t count;

	b->ecc_corrected = b->ecc_uncorrected = ABSENT;
	if (nvml_has(n, NVML_ASK(n, ASK_ECC, nvmlDeviceGetTotalEccErrors, n->device, NVML_ERROR_CORRECTED,
	                         NVML_ECC_AGGREGATE, &count)))
		b->ecc_corrected = nvml_from_u64(count);
	if (nvml_has(n, NVML_ASK(n, ASK_ECC, nvmlDeviceGetTotalEccErrors, n->device, NVML_ERROR_UNCORRECTED,
	                         NVML_ECC_AGGREGATE, &count)))
		b->ecc_uncorrected = nvml_from_u64(count);
}

/* Not there on a GPU with instances. */
static void
ask_remapped_rows(struct nvml_reading *n, struct gpu_board *b)
{
	uint32_t corrected, uncorrected, pending, failed;

	b->remapped_corrected = b->remapped_uncorrected = b->remap_pending = b->remap_failed = ABSENT;
	if (!nvml_has(n, NVML_ASK(n, ASK_REMAPPED_ROWS, nvmlDeviceGetRemappedRows, n->device, &corrected, &uncorrected,
	                          &pending, &failed)))
		return;
	b->remapped_corrected = corrected;
	b->remapped_uncorrected = uncorrected;
	b->remap_pending = pending != 0;
	b->remap_failed = failed != 0;
}

static void
ask_pcie_link(struct nvml_reading *n, struct gpu_board *b)
{
	uint32_t value;

	b->pcie_generation = b->pcie_width = b->pcie_replays = ABSENT;
	if (nvml_has(n, NVML_ASK(n, ASK_PCIE_GENERATION, nvmlDeviceGetCurrPcieLinkGeneration, n->device, &value)))
		b->pcie_generation = value;
	if (nvml_has(n, NVML_ASK(n, ASK_PCIE_WIDTH, nvmlDeviceGetCurrPcieLinkWidth, n->device, &value)))
		b->pcie_width = value;
	if (nvml_has(n, NVML_ASK(n, ASK_PCIE_REPLAYS, nvmlDeviceGetPcieReplayCounter, n->device, &value)))
		b->pcie_replays = value;
}

/* GPM has the same without the wait. */
static void
ask_pcie_throughput(struct nvml_reading *n, struct gpu_board *b)
{
	uint32_t kib;

	b->pcie_tx_bytes_per_s = b->pcie_rx_bytes_per_s = ABSENT;
	if (n->r->board.pcie_tx_bytes_per_s != ABSENT)
		return;
	if (nvml_has(n, NVML_ASK(n, ASK_PCIE_TX, nvmlDeviceGetPcieThroughput, n->device, NVML_PCIE_TX, &kib)))
		b->pcie_tx_bytes_per_s = from_kib(kib);
	if (nvml_has(n, NVML_ASK(n, ASK_PCIE_RX, nvmlDeviceGetPcieThroughput, n->device, NVML_PCIE_RX, &kib)))
		b->pcie_rx_bytes_per_s = from_kib(kib);
}

typedef void slow_group(struct nvml_reading *n, struct gpu_board *b);
/* The last one is the one to wait for: it is left out of the first reading, which asks all others. */
static slow_group *const slow_groups[] = {ask_power_limit, ask_ecc, ask_remapped_rows, ask_pcie_link,
                                          ask_pcie_throughput};
#define SLOW_GROUPS ARRAY_LEN(slow_groups)

static void
ask_in_turn(struct nvml_reading *n)
{
	struct known_gpu *g = n->gpu;

	if (!g->slow_begun) {
		memset(&g->slow, 0xff, sizeof(g->slow)); /* all ABSENT */
		for (size_t i = 0; i + 1 < SLOW_GROUPS; i++)
			slow_groups[i](n, &g->slow);
		g->slow_begun = true;
		g->slow_next = n->place % SLOW_GROUPS; /* so that not all GPUs have the long one in the same reading */
		g->slow_boot_ns = n->boot_ns;
	} else if (n->boot_ns - g->slow_boot_ns >= SLOW_STEP_NS) {
		slow_groups[g->slow_next](n, &g->slow);
		g->slow_next = (g->slow_next + 1) % SLOW_GROUPS;
		g->slow_boot_ns = n->boot_ns;
	}
}

void
nvml_read_board(struct nvml_reading *n)
{
	struct gpu_reading *r = n->r;
	struct nvml_memory memory;
	uint32_t milliwatts, celsius;
	uint64_t millijoules;

	if (nvml_read_memory(n, n->device, &memory)) {
		r->memory_bytes = nvml_from_u64(memory.total);
		r->memory_used_bytes = nvml_from_u64(memory.used);
		r->board.memory_reserved_bytes = nvml_from_u64(memory.reserved);
		r->board.memory_free_bytes = nvml_from_u64(memory.free);
	}
	if (nvml_has(n, NVML_ASK(n, ASK_POWER, nvmlDeviceGetPowerUsage, n->device, &milliwatts)))
		r->power_mw = milliwatts;
	if (nvml_has(n, NVML_ASK(n, ASK_ENERGY, nvmlDeviceGetTotalEnergyConsumption, n->device, &millijoules)))
		r->energy_mj = nvml_from_u64(millijoules);
	if (nvml_has(n, NVML_ASK(n, ASK_TEMPERATURE, nvmlDeviceGetTemperature, n->device, NVML_SENSOR_GPU, &celsius)) &&
	    celsius < 1000)
		r->temperature_c = celsius;
	read_clocks(n);
	read_fields(n);
}

void
nvml_read_slow(struct nvml_reading *n)
{
	struct gpu_board *b = &n->r->board;
	const struct gpu_board *slow = &n->gpu->slow;

	ask_in_turn(n);
	b->power_limit_mw = slow->power_limit_mw;
	b->ecc_corrected = slow->ecc_corrected;
	b->ecc_uncorrected = slow->ecc_uncorrected;
	b->remapped_corrected = slow->remapped_corrected;
	b->remapped_uncorrected = slow->remapped_uncorrected;
	b->remap_pending = slow->remap_pending;
	b->remap_failed = slow->remap_failed;
	b->pcie_generation = slow->pcie_generation;
	b->pcie_width = slow->pcie_width;
	b->pcie_replays = slow->pcie_replays;
	if (b->pcie_tx_bytes_per_s == ABSENT) {
		b->pcie_tx_bytes_per_s = slow->pcie_tx_bytes_per_s;
		b->pcie_rx_bytes_per_s = slow->pcie_rx_bytes_per_s;
	}
}
