/* tests/unit/exporter/source/test_nvml_board.c - values of a board from the NVML source, against the simulator: every value, missing ones, and
 * how often the driver is asked. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "common/base/time.h"
#include "exporter/source/nvml/nvml_source.h"
#include "tests/support/exporter/simnode.h"

#define S NS_PER_S

static struct simnode node;
static int calls; /* of the function that is counted */

static int
end_node(void **state)
{
	(void)state;
	calls = 0;
	if (node.handle)
		simnode_fini(&node);
	return 0;
}

/* ---- values --------------------------------------------------------------------------------------------------------- */

#define BOARD(field)                                      \
	{                                                 \
#field, offsetof(struct gpu_board, field) \
	}
static const struct {
	const char *name;
	size_t offset;
} board_fields[] = {
	BOARD(graphics_clock_mhz),   BOARD(sm_clock_mhz),
	BOARD(memory_clock_mhz),     BOARD(video_clock_mhz),
	BOARD(memory_temperature_c), BOARD(power_limit_mw),
	BOARD(throttle_reasons),     BOARD(encoder_ppm),
	BOARD(decoder_ppm),          BOARD(memory_reserved_bytes),
	BOARD(memory_free_bytes),    BOARD(ecc_corrected),
	BOARD(ecc_uncorrected),      BOARD(remapped_corrected),
	BOARD(remapped_uncorrected), BOARD(remap_pending),
	BOARD(remap_failed),         BOARD(pcie_tx_bytes_per_s),
	BOARD(pcie_rx_bytes_per_s),  BOARD(pcie_replays),
	BOARD(pcie_generation),      BOARD(pcie_width),
	BOARD(nvlink_tx_bytes),      BOARD(nvlink_rx_bytes),
};
static_assert(ARRAY_LEN(board_fields) * sizeof(int64_t) == sizeof(struct gpu_board), "every field is in the table");

static int64_t
field_of(const struct gpu_board *b, size_t offset)
{
	int64_t value;

	memcpy(&value, (const char *)b + offset, sizeof(value));
	return value;
}

#define EVERYTHING                                                                                                      \
	"graphics_clock_mhz=1980 sm_clock_mhz=1981 memory_clock_mhz=2619 video_clock_mhz=1545 memory_temperature_c=71 " \
	"power_limit_mw=700000 throttle_reasons=68 encoder=12 decoder=34 memory_reserved_bytes=640000000 "              \
	"ecc_corrected=5 ecc_uncorrected=6 remapped_corrected=7 remapped_uncorrected=8 remap_pending=1 remap_failed=1 " \
	"pcie_tx_bytes_per_s=104857600 pcie_rx_bytes_per_s=209715200 pcie_replays=9 pcie_generation=5 pcie_width=16 "   \
	"nvlink_tx_bytes=1073741824 nvlink_rx_bytes=2147483648"
static const struct gpu_board everything = {
	.graphics_clock_mhz = 1980,
	.sm_clock_mhz = 1981,
	.memory_clock_mhz = 2619,
	.video_clock_mhz = 1545,
	.memory_temperature_c = 71,
	.power_limit_mw = 700000,
	.throttle_reasons = 68,
	.encoder_ppm = 120000,
	.decoder_ppm = 340000,
	.memory_reserved_bytes = 640000000,
	.memory_free_bytes = (INT64_C(81559) << 20) - 640000000,
	.ecc_corrected = 5,
	.ecc_uncorrected = 6,
	.remapped_corrected = 7,
	.remapped_uncorrected = 8,
	.remap_pending = 1,
	.remap_failed = 1,
	.pcie_tx_bytes_per_s = 104857600,
	.pcie_rx_bytes_per_s = 209715200,
	.pcie_replays = 9,
	.pcie_generation = 5,
	.pcie_width = 16,
	.nvlink_tx_bytes = 1073741824,
	.nvlink_rx_bytes = INT64_C(2147483648),
};

static void
every_value_of_a_board_is_told(void **state)
{
	static const char text[] = "name: board\ngpus:\n  - model: NVIDIA H100 80GB HBM3\n    memory_mib: 81559\n"
				   "    gpm: false\n    readings: [\"0s " EVERYTHING "\"]\n";
	const struct gpu_reading *r = NULL;

	(void)state;
	simnode_init(&node, text);
	for (int t = 0; t <= 12; t++)
		r = simnode_read(&node, t * S, 0);
	for (size_t i = 0; i < ARRAY_LEN(board_fields); i++) {
		int64_t value = field_of(&r->board, board_fields[i].offset);

		if (value != field_of(&everything, board_fields[i].offset))
			fail_msg("%s is %" PRId64, board_fields[i].name, value);
	}
}

static void
what_a_board_lacks_is_absent_and_never_zero(void **state)
{
	static const char lacking[] =
		"name: bare\ngpus:\n  - {model: NVIDIA H100 80GB HBM3, memory_mib: 81559, energy: false, nvlinks: 0, ecc: false, "
		"row_remap: false, gpm: false}\n"
		"calls:\n"
		"  - {name: nvmlDeviceGetClockInfo, status: 3}\n"
		"  - {name: nvmlDeviceGetCurrentClocksEventReasons, status: 3}\n"
		"  - {name: nvmlDeviceGetCurrentClocksThrottleReasons, status: 3}\n"
		"  - {name: nvmlDeviceGetEnforcedPowerLimit, status: 3}\n"
		"  - {name: nvmlDeviceGetPowerUsage, status: 3}\n"
		"  - {name: nvmlDeviceGetTemperature, status: 3}\n"
		"  - {name: nvmlDeviceGetUtilizationRates, status: 3}\n"
		"  - {name: nvmlDeviceGetEncoderUtilization, status: 3}\n"
		"  - {name: nvmlDeviceGetDecoderUtilization, status: 3}\n"
		"  - {name: nvmlDeviceGetMemoryInfo, status: 3}\n"
		"  - {name: nvmlDeviceGetMemoryInfo_v2, status: 3}\n"
		"  - {name: nvmlDeviceGetPcieThroughput, status: 3}\n"
		"  - {name: nvmlDeviceGetPcieReplayCounter, status: 3}\n"
		"  - {name: nvmlDeviceGetCurrPcieLinkGeneration, status: 3}\n"
		"  - {name: nvmlDeviceGetCurrPcieLinkWidth, status: 3}\n"
		"  - {name: nvmlDeviceGetFieldValues, status: 3}\n";
	const struct gpu_reading *r = NULL;

	(void)state;
	simnode_init(&node, lacking);
	for (int t = 0; t <= 12; t++)
		r = simnode_read(&node, t * S, 0);
	assert_false(r->down);
	for (size_t i = 0; i < ARRAY_LEN(board_fields); i++)
		if (field_of(&r->board, board_fields[i].offset) != ABSENT)
			fail_msg("%s is %" PRId64, board_fields[i].name, field_of(&r->board, board_fields[i].offset));
	assert_int_equal(r->active_ppm, ABSENT);
	assert_int_equal(r->memory_active_ppm, ABSENT);
	assert_int_equal(r->memory_bytes, ABSENT);
	assert_int_equal(r->memory_used_bytes, ABSENT);
	assert_int_equal(r->power_mw, ABSENT);
	assert_int_equal(r->energy_mj, ABSENT);
	assert_int_equal(r->temperature_c, ABSENT);
	assert_int_equal(r->sm_active_ppm, ABSENT);
	assert_false(r->accounting);
}

/* Every optional symbol is missing: dlsym gave NULL for it. */
static void
a_library_with_the_required_functions_only_is_read(void **state)
{
	static const char text[] = "name: old\ngpus: [{model: NVIDIA H100 80GB HBM3, memory_mib: 81559}]\n";
	struct nvml_api bare = {0};
	const struct gpu_reading *r;
	struct nvml_source *s;

	(void)state;
	simnode_init(&node, text);
	s = simnode_nvml(&node);
#define KEEP(ret, name, args) bare.name = s->api.name;
#define DROP(ret, name, args)
	NVML_FUNCTIONS(KEEP, DROP)
#undef KEEP
#undef DROP
	s->api.nvmlEventSetFree(s->events);
	s->events = NULL;
	s->api = bare;
	s->lists[LIST_GRAPHICS][0] = s->lists[LIST_GRAPHICS][1] = s->lists[LIST_GRAPHICS][2] = NULL;
	r = simnode_read(&node, S, 0);
	assert_false(r->down);
	for (size_t i = 0; i < ARRAY_LEN(board_fields); i++)
		assert_int_equal(field_of(&r->board, board_fields[i].offset), ABSENT);
	assert_int_equal(r->energy_mj, ABSENT);
	assert_false(r->mig || r->process_activity);
}

static void
throttle_reasons_have_an_older_name(void **state)
{
	static const char text[] =
		"name: r525\ndriver: 525.105.17\ngpus:\n"
		"  - {model: NVIDIA A100-SXM4-80GB, memory_mib: 81920, readings: [\"0s throttle_reasons=4\"]}\n";

	(void)state;
	simnode_init(&node, text);
	assert_int_equal(simnode_read(&node, S, 0)->board.throttle_reasons, 4);
	assert_int_equal(simnode_read(&node, 2 * S, 0)->board.throttle_reasons, 4);
}

static void
version_1_of_the_memory_does_not_tell_what_is_reserved(void **state)
{
	static const char text[] = "name: v1\ndriver_quirk: memory_v1\n"
				   "gpus: [{model: NVIDIA A100-SXM4-80GB, memory_mib: 81920}]\n";
	const struct gpu_reading *r;

	(void)state;
	simnode_init(&node, text);
	r = simnode_read(&node, S, 0);
	assert_int_equal(r->board.memory_reserved_bytes, ABSENT);
	assert_true(r->board.memory_free_bytes > 0);
	assert_int_equal(r->board.memory_free_bytes + r->memory_used_bytes, r->memory_bytes);
}

/* ---- fields --------------------------------------------------------------------------------------------------------- */

static struct {
	uint32_t type;
	uint64_t value;
	int status;
} told; /* of the field 82, by the function below */

static int
tell_fields(struct nvml_device *device, int count, struct nvml_field_value *values)
{
	(void)device;
	calls++;
	for (int i = 0; i < count; i++) {
		values[i].status = NVST_NOT_SUPPORTED;
		if (values[i].id != NVML_FIELD_MEMORY_TEMPERATURE)
			continue;
		values[i].status = (uint32_t)told.status;
		values[i].type = told.type;
		values[i].value = told.value;
	}
	return NVST_SUCCESS;
}

static void
a_field_is_read_in_the_type_that_the_driver_says(void **state)
{
	static const struct {
		const char *name;
		uint32_t type;
		uint64_t value;
		int status;
		int64_t read;
	} rows[] = {
		{"32 bits, with noise beside them", NVML_TYPE_UINT, UINT64_C(0xdeadbeef00000047), NVST_SUCCESS, 71},
		{"16 bits, with noise beside them", NVML_TYPE_USHORT, UINT64_C(0xdeadbeefbeef0047), NVST_SUCCESS, 71},
		{"64 bits", NVML_TYPE_ULONGLONG, 71, NVST_SUCCESS, 71},
		{"long", NVML_TYPE_ULONG, 71, NVST_SUCCESS, 71},
		{"signed 64 bits", NVML_TYPE_LONGLONG, 71, NVST_SUCCESS, 71},
		{"signed 32 bits", NVML_TYPE_INT, UINT64_C(0xdeadbeef00000047), NVST_SUCCESS, 71},
		{"a negative number is none", NVML_TYPE_INT, UINT32_MAX, NVST_SUCCESS, ABSENT},
		{"a fraction is none", NVML_TYPE_DOUBLE, 71, NVST_SUCCESS, ABSENT},
		{"a type from the future is none", 77, 71, NVST_SUCCESS, ABSENT},
		{"a field with an error has no value", NVML_TYPE_UINT, 71, NVST_UNKNOWN, ABSENT},
	};

	(void)state;
	simnode_init(&node, "name: f\ngpus: [{model: NVIDIA A100-SXM4-80GB, memory_mib: 81920}]\n");
	simnode_nvml(&node)->api.nvmlDeviceGetFieldValues = tell_fields;
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		int64_t value;

		told.type = rows[i].type;
		told.value = rows[i].value;
		told.status = rows[i].status;
		value = simnode_read(&node, (int64_t)i * S, 0)->board.memory_temperature_c;
		if (value != rows[i].read)
			fail_msg("%s: %" PRId64, rows[i].name, value);
	}
}

static void
no_field_is_asked_for_once_all_are_known_to_be_missing(void **state)
{
	(void)state;
	simnode_init(&node, "name: f\ngpus: [{model: NVIDIA A100-SXM4-80GB, memory_mib: 81920}]\n");
	simnode_nvml(&node)->api.nvmlDeviceGetFieldValues = tell_fields;
	told.status = NVST_NOT_SUPPORTED;
	for (int t = 0; t < 60; t++)
		assert_int_equal(simnode_read(&node, t * S, 0)->board.memory_temperature_c, ABSENT);
	assert_int_equal(calls, 1);
}

/* ---- how often ------------------------------------------------------------------------------------------------------ */

static int (*real_energy)(struct nvml_device *, uint64_t *);
static int
count_energy(struct nvml_device *device, uint64_t *millijoules)
{
	calls++;
	return real_energy(device, millijoules);
}

static void
what_is_not_supported_is_asked_again_after_ten_minutes(void **state)
{
	(void)state;
	simnode_init(&node, "name: e\ngpus: [{model: NVIDIA A100-SXM4-80GB, memory_mib: 81920, energy: false}]\n");
	real_energy = simnode_nvml(&node)->api.nvmlDeviceGetTotalEnergyConsumption;
	simnode_nvml(&node)->api.nvmlDeviceGetTotalEnergyConsumption = count_energy;
	for (int t = 0; t < 599; t++)
		assert_int_equal(simnode_read(&node, t * S, 0)->energy_mj, ABSENT);
	assert_int_equal(calls, 1);
	simnode_read(&node, 601 * S, 0);
	assert_int_equal(calls, 2);
}

static void
what_is_supported_is_asked_at_each_reading(void **state)
{
	(void)state;
	simnode_init(&node, "name: e\ngpus: [{model: NVIDIA A100-SXM4-80GB, memory_mib: 81920}]\n");
	real_energy = simnode_nvml(&node)->api.nvmlDeviceGetTotalEnergyConsumption;
	simnode_nvml(&node)->api.nvmlDeviceGetTotalEnergyConsumption = count_energy;
	for (int t = 0; t < 30; t++)
		simnode_read(&node, t * S, 0);
	assert_int_equal(calls, 30);
}

static int (*real_throughput)(struct nvml_device *, uint32_t, uint32_t *);
static int
count_throughput(struct nvml_device *device, uint32_t counter, uint32_t *kib)
{
	calls++;
	return real_throughput(device, counter, kib);
}

/* The driver watches the bus for 20 ms before it answers. */
static void
the_long_wait_for_pcie_comes_every_ten_seconds_and_never_with_gpm(void **state)
{
	static const struct {
		const char *model;
		int calls;
	} rows[] = {{"NVIDIA A100-SXM4-80GB", 2 * 6}, {"NVIDIA H100 80GB HBM3", 0}};

	for (size_t m = 0; m < ARRAY_LEN(rows); m++) {
		char text[256];

		snprintf(text, sizeof(text), "name: p\ngpus: [{model: %s, memory_mib: 81559}]\n", rows[m].model);
		simnode_init(&node, text);
		real_throughput = simnode_nvml(&node)->api.nvmlDeviceGetPcieThroughput;
		simnode_nvml(&node)->api.nvmlDeviceGetPcieThroughput = count_throughput;
		for (int t = 0; t <= 60; t++)
			simnode_read(&node, t * S, 0);
		assert_int_equal(calls, rows[m].calls);
		end_node(state);
	}
}

static void
slow_values_stay_until_their_turn_and_are_new_within_ten_seconds(void **state)
{
	static const char text[] =
		"name: s\ngpus:\n  - model: NVIDIA A100-SXM4-80GB\n    memory_mib: 81920\n"
		"    readings: [\"0s ecc_corrected=1 power_limit_mw=400000\", \"30s ecc_corrected=2 power_limit_mw=-\"]\n";
	const struct gpu_board *b;

	(void)state;
	simnode_init(&node, text);
	for (int t = 0; t < 30; t++) {
		b = &simnode_read(&node, t * S, 0)->board;
		assert_int_equal(b->ecc_corrected, 1);
		assert_int_equal(b->power_limit_mw, 400000);
	}
	for (int t = 30; t < 40; t++)
		assert_in_range(simnode_read(&node, t * S, 0)->board.ecc_corrected, 1, 2);
	b = &simnode_read(&node, 40 * S, 0)->board;
	assert_int_equal(b->ecc_corrected, 2);
	assert_int_equal(b->power_limit_mw, ABSENT);
}

static void
a_gpu_that_was_lost_tells_everything_anew(void **state)
{
	static const char text[] = "name: l\ngpus:\n  - model: NVIDIA A100-SXM4-80GB\n    memory_mib: 81920\n"
				   "    readings: [\"0s ecc_uncorrected=1\", \"5s ecc_uncorrected=8\"]\n"
				   "faults: [{gpu: 0, at: 4s, until: 6s, lost: true}]\n";

	(void)state;
	simnode_init(&node, text);
	assert_int_equal(simnode_read(&node, 3 * S, 0)->board.ecc_uncorrected, 1);
	assert_int_equal(simnode_read(&node, 5 * S, 0)->board.ecc_uncorrected, ABSENT);
	assert_true(simnode_read(&node, 5 * S, 0)->down);
	assert_int_equal(simnode_read(&node, 6 * S, 0)->board.ecc_uncorrected, 8);
}

static void
a_partitioned_gpu_has_a_board_too(void **state)
{
	static const char text[] =
		"name: m\ngpus:\n  - model: NVIDIA H100 80GB HBM3\n    memory_mib: 81559\n"
		"    mig: [3g.40gb]\n    readings: [\"0s sm_clock_mhz=1700 power_limit_mw=600000\"]\n";
	const struct gpu_reading *r;

	(void)state;
	simnode_init(&node, text);
	r = simnode_read(&node, S, 0);
	assert_true(r->mig);
	assert_int_equal(r->board.sm_clock_mhz, 1700);
	assert_int_equal(r->board.power_limit_mw, 600000);
	assert_int_equal(r->board.encoder_ppm, ABSENT);
	assert_int_equal(r->active_ppm, ABSENT);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(every_value_of_a_board_is_told, end_node),
		cmocka_unit_test_teardown(what_a_board_lacks_is_absent_and_never_zero, end_node),
		cmocka_unit_test_teardown(a_library_with_the_required_functions_only_is_read, end_node),
		cmocka_unit_test_teardown(throttle_reasons_have_an_older_name, end_node),
		cmocka_unit_test_teardown(version_1_of_the_memory_does_not_tell_what_is_reserved, end_node),
		cmocka_unit_test_teardown(a_field_is_read_in_the_type_that_the_driver_says, end_node),
		cmocka_unit_test_teardown(no_field_is_asked_for_once_all_are_known_to_be_missing, end_node),
		cmocka_unit_test_teardown(what_is_not_supported_is_asked_again_after_ten_minutes, end_node),
		cmocka_unit_test_teardown(what_is_supported_is_asked_at_each_reading, end_node),
		cmocka_unit_test_teardown(the_long_wait_for_pcie_comes_every_ten_seconds_and_never_with_gpm, end_node),
		cmocka_unit_test_teardown(slow_values_stay_until_their_turn_and_are_new_within_ten_seconds, end_node),
		cmocka_unit_test_teardown(a_gpu_that_was_lost_tells_everything_anew, end_node),
		cmocka_unit_test_teardown(a_partitioned_gpu_has_a_board_too, end_node),
	};

	return cmocka_run_group_tests_name("nvml board", tests, NULL, NULL);
}
