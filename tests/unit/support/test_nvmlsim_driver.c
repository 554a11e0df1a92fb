/* tests/unit/support/test_nvmlsim_driver.c - the simulator as a driver: accounting, GPM, events, placements, what models lack, and calls
 * that are slow, fail or hang. */
/* tsan */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/buf.h"
#include "common/base/time.h"
#include "tests/support/exporter/simapi.h"

#define S NS_PER_S
#define WALL0_US UINT64_C(1700000000000000)

static struct simnode node;
static struct simapi nvml;

static int
end_node(void **state)
{
	(void)state;
	unsetenv("TOLLGATE_SIM_RELEASE");
	if (node.handle) {
		nvml.nvmlShutdown();
		simnode_fini(&node);
	}
	return 0;
}

static void
begin(const char *scenario, int64_t t_ns)
{
	simnode_init(&node, scenario);
	simapi_load(&nvml, &node);
	node.set_time_ns(t_ns);
	assert_int_equal(nvml.nvmlInit_v2(), NVST_SUCCESS);
}

static struct nvml_device *
gpu(uint32_t index)
{
	struct nvml_device *device = NULL;

	assert_int_equal(nvml.nvmlDeviceGetHandleByIndex_v2(index, &device), NVST_SUCCESS);
	return device;
}

static struct nvml_device *
mig(uint32_t index, uint32_t slot)
{
	struct nvml_device *device = NULL;

	assert_int_equal(nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu(index), slot, &device), NVST_SUCCESS);
	return device;
}

/* ---- accounting ----------------------------------------------------------------------------------------------------- */

static const char accounts[] =
	"name: accounts\n"
	"driver: 610.43.02\n"
	"gpus:\n"
	"  - {model: NVIDIA L40S, memory_mib: 46068}\n"
	"  - {model: NVIDIA A100-SXM4-80GB, memory_mib: 81920, mig: [3g.40gb], accounting: true}\n"
	"processes:\n"
	"  - {pid: 10, gpu: 0, sm: 50}\n"
	"  - {pid: 11, gpu: 0, start: 10250ms, end: 10750ms, sm: 80, memory_mib: 7, activity: '250ms sm=40 memory_mib=3'}\n"
	"  - {pid: 11, gpu: 0, start: 20s, end: 21s, sm: 10, memory_mib: 1}\n"
	"  - {pid: 12, gpu: 0, start: 10s, sm: 25}\n"
	"  - {pid: 13, gpu: 0, start: 10s, sm: 25, graphics: true}\n";

static void
accounting_tells_what_processes_did_that_are_gone(void **state)
{
	struct nvml_accounting stats;
	struct nvml_accounting_v2 v2 = {.pid = 11};
	uint32_t on = 7, count = 0, pids[8];

	(void)state;
	begin(accounts, 5 * S);
	assert_int_equal(nvml.nvmlDeviceGetAccountingMode(gpu(0), &on), NVST_SUCCESS);
	assert_int_equal(on, 0);
	assert_int_equal(nvml.nvmlDeviceGetAccountingPids(gpu(0), &count, NULL), NVST_NOT_SUPPORTED);
	assert_int_equal(nvml.nvmlDeviceSetAccountingMode(gpu(0), 1), NVST_SUCCESS);
	assert_int_equal(nvml.nvmlDeviceGetAccountingPids(gpu(0), &count, NULL), NVST_SUCCESS);
	assert_int_equal(count, 0); /* PID 10 began before */

	node.set_time_ns(11 * S);
	assert_int_equal(nvml.nvmlDeviceGetAccountingPids(gpu(0), &count, NULL), NVST_INSUFFICIENT_SIZE);
	assert_int_equal(count, 2);
	assert_int_equal(nvml.nvmlDeviceGetAccountingPids(gpu(0), &count, NULL), NVST_INVALID_ARGUMENT);
	assert_int_equal(nvml.nvmlDeviceGetAccountingPids(gpu(0), &count, pids), NVST_SUCCESS);
	assert_int_equal(pids[0], 12);
	assert_int_equal(pids[1], 11);
	assert_int_equal(nvml.nvmlDeviceGetAccountingStats(gpu(0), 10, &stats), NVST_NOT_FOUND);
	assert_int_equal(nvml.nvmlDeviceGetAccountingStats(gpu(0), 12, &stats), NVST_SUCCESS);
	assert_int_equal(stats.running, 1);
	assert_int_equal(stats.time_ms, 0);
	assert_int_equal(nvml.nvmlDeviceGetAccountingStats(gpu(0), 11, &stats), NVST_SUCCESS);
	assert_int_equal(stats.running, 0);
	assert_int_equal(stats.time_ms, 500);
	assert_int_equal(stats.start_us, WALL0_US + 10250000);
	assert_int_equal(stats.gpu, 60);
	assert_int_equal(stats.max_memory, 7 << 20);
	assert_int_equal(nvml.nvmlDeviceGetAccountingStats_v2(gpu(0), &v2), NVST_SUCCESS);
	assert_int_equal(v2.sum_gpu / v2.sample_count, 6000);

	/* the PID comes back as another process: the last one is told */
	node.set_time_ns(22 * S);
	count = 8;
	assert_int_equal(nvml.nvmlDeviceGetAccountingPids(gpu(0), &count, pids), NVST_SUCCESS);
	assert_int_equal(count, 2);
	assert_int_equal(nvml.nvmlDeviceGetAccountingStats(gpu(0), 11, &stats), NVST_SUCCESS);
	assert_int_equal(stats.gpu, 10);
}

static void
accounting_is_off_on_a_partitioned_gpu_and_needs_root(void **state)
{
	uint32_t on = 7, count = 0;

	(void)state;
	begin(accounts, 5 * S);
	assert_int_equal(nvml.nvmlDeviceGetAccountingMode(gpu(1), &on), NVST_SUCCESS);
	assert_int_equal(on, 0);
	assert_int_equal(nvml.nvmlDeviceSetAccountingMode(gpu(1), 1), NVST_NOT_SUPPORTED);
	assert_int_equal(nvml.nvmlDeviceGetAccountingPids(gpu(1), &count, NULL), NVST_NOT_SUPPORTED);
	nvml.nvmlShutdown();
	simnode_fini(&node);
	begin("name: x\ndriver_quirk: unprivileged\ngpus: [{model: NVIDIA L40S, memory_mib: 46068}]\n", 0);
	assert_int_equal(nvml.nvmlDeviceSetAccountingMode(gpu(0), 1), NVST_NO_PERMISSION);
	assert_int_equal(nvml.nvmlDeviceGetAccountingStats_v2(gpu(0), &(struct nvml_accounting_v2){0}),
	                 NVST_FUNCTION_NOT_FOUND);
}

/* ---- samples -------------------------------------------------------------------------------------------------------- */

static void
samples_follow_the_phases_of_a_run_also_of_one_that_ended_between_readings(void **state)
{
	struct nvml_process_sample samples[100];
	struct nvml_processes_utilization info = {.version = NVML_PROCESSES_UTILIZATION_V1};
	struct nvml_process_utilization entries[100];
	uint32_t count = 100;

	(void)state;
	begin(accounts, 10 * S);
	assert_int_equal(nvml.nvmlDeviceGetProcessUtilization(gpu(0), samples, &count, 0), NVST_SUCCESS);
	node.set_time_ns(11 * S);
	count = 100;
	assert_int_equal(nvml.nvmlDeviceGetProcessUtilization(gpu(0), samples, &count, samples[0].timestamp_us),
	                 NVST_SUCCESS);
	assert_int_equal(count, 4);
	assert_int_equal(samples[3].pid, 11);
	assert_int_equal(samples[3].sm, 30);
	assert_int_equal(samples[3].timestamp_us, WALL0_US + 11000000);
	assert_int_equal(nvml.nvmlDeviceGetProcessesUtilizationInfo(gpu(0), &info), NVST_INSUFFICIENT_SIZE);
	assert_int_equal(info.count, 100);
	info.entries = entries;
	info.last_seen_us = WALL0_US + 10000000;
	assert_int_equal(nvml.nvmlDeviceGetProcessesUtilizationInfo(gpu(0), &info), NVST_SUCCESS);
	assert_int_equal(info.count, 4);
	assert_int_equal(entries[3].sm, 30);
	info.version = 1;
	assert_int_equal(nvml.nvmlDeviceGetProcessesUtilizationInfo(gpu(0), &info), NVST_ARGUMENT_VERSION_MISMATCH);
	assert_int_equal(nvml.nvmlDeviceGetProcessesUtilizationInfo(gpu(1), &info), NVST_ARGUMENT_VERSION_MISMATCH);
}

static void
stamps_jump_with_the_clock_of_the_node(void **state)
{
	struct nvml_process_sample samples[100];
	uint32_t count = 100;

	(void)state;
	begin("name: x\n"
	      "gpus: [{model: NVIDIA L40S, memory_mib: 46068}]\n"
	      "processes: [{pid: 10, gpu: 0, sm: 40, activity: '6s sm=80'}]\n"
	      "clock_steps: [{at: 5s, back: 1h}, {at: 8s, forward: 2h}]\n",
	      4 * S);
	assert_int_equal(nvml.nvmlDeviceGetProcessUtilization(gpu(0), samples, &count, 0), NVST_SUCCESS);
	assert_int_equal(samples[0].timestamp_us, WALL0_US + 4000000);
	/* nothing is newer than what was seen before the step */
	node.set_time_ns(7 * S);
	assert_int_equal(nvml.nvmlDeviceGetProcessUtilization(gpu(0), samples, &count, WALL0_US + 4000000),
	                 NVST_NOT_FOUND);
	count = 100;
	assert_int_equal(nvml.nvmlDeviceGetProcessUtilization(gpu(0), samples, &count, 0), NVST_SUCCESS);
	assert_int_equal(samples[0].timestamp_us, WALL0_US + 7000000 - UINT64_C(3600000000));
	/* since 7 s, over a step forward, the process was at 80 % */
	node.set_time_ns(9 * S);
	count = 100;
	assert_int_equal(nvml.nvmlDeviceGetProcessUtilization(gpu(0), samples, &count, samples[0].timestamp_us),
	                 NVST_SUCCESS);
	assert_int_equal(samples[0].sm, 80);
	assert_int_equal(samples[0].timestamp_us, WALL0_US + 9000000 + UINT64_C(3600000000));
}

/* ---- GPM ------------------------------------------------------------------------------------------------------------ */

static const char hopper[] = "name: hopper\n"
			     "gpm_metrics: 333\n"
			     "gpus:\n"
			     "  - model: NVIDIA H100 80GB HBM3\n"
			     "    memory_mib: 81559\n"
			     "    mig: [3g.40gb, 1c.2g.20gb, 1c.2g.20gb]\n"
			     "    readings: ['30s @1/0 engine_active_ppm=123456', '40s @1/0 engine_active_ppm=-']\n"
			     "  - {model: NVIDIA A100-SXM4-80GB, memory_mib: 81920, mig: [3g.40gb]}\n"
			     "processes:\n"
			     "  - {pid: 10, gpu: 0, instance: 0, start: 5s, sm: 80}\n"
			     "  - {pid: 11, gpu: 0, instance: 1, sm: 50}\n";

/* An answer with room for as many entries as any driver writes, and something behind them that must stay. */
struct answer {
	struct nvml_gpm_metrics *metrics;
	unsigned char *room;
};
#define ROOM (sizeof(struct nvml_gpm_metrics) + 333 * sizeof(struct nvml_gpm_metric) + 64)

static struct answer
ask(struct nvml_gpm_sample *from, struct nvml_gpm_sample *to, const uint32_t *ids, uint32_t count)
{
	unsigned char *room = malloc(ROOM);
	struct answer a = {(struct nvml_gpm_metrics *)(void *)room, room};

	assert_non_null(room);
	memset(room, 0xAA, ROOM);
	a.metrics->version = NVML_GPM_VERSION;
	a.metrics->count = count;
	a.metrics->from = from;
	a.metrics->to = to;
	for (uint32_t i = 0; i < count; i++)
		a.metrics->metrics[i].id = ids[i];
	return a;
}

static void
hopper_measures_each_instance_and_ampere_none(void **state)
{
	static const uint32_t ids[] = {NVML_GPM_ENGINE, NVML_GPM_SM, 97};
	struct nvml_gpm_support support = {.version = NVML_GPM_VERSION};
	struct nvml_gpm_sample *a, *b;
	struct answer answer;
	size_t last = ROOM;

	(void)state;
	begin(hopper, 0);
	assert_int_equal(nvml.nvmlGpmSampleAlloc(&a), NVST_SUCCESS);
	assert_int_equal(nvml.nvmlGpmSampleAlloc(&b), NVST_SUCCESS);
	assert_int_equal(nvml.nvmlGpmQueryDeviceSupport(gpu(1), &support), NVST_SUCCESS);
	assert_int_equal(support.supported, 0);
	assert_int_equal(nvml.nvmlGpmSampleGet(mig(1, 1), a), NVST_NOT_SUPPORTED);
	assert_int_equal(nvml.nvmlGpmQueryDeviceSupport(gpu(0), &support), NVST_SUCCESS);
	assert_int_equal(support.supported, 1);

	assert_int_equal(nvml.nvmlGpmSampleGet(mig(0, 1), a), NVST_SUCCESS);
	answer = ask(a, b, ids, 3);
	assert_int_equal(nvml.nvmlGpmMetricsGet(answer.metrics), NVST_INVALID_ARGUMENT);
	node.set_time_ns(20 * S);
	assert_int_equal(nvml.nvmlGpmSampleGet(mig(0, 1), b), NVST_SUCCESS);
	assert_int_equal(nvml.nvmlGpmMetricsGet(answer.metrics), NVST_SUCCESS);
	assert_true(answer.metrics->metrics[0].value == 60.0); /* 80 % of 15 of 20 seconds */
	assert_true(answer.metrics->metrics[1].value == 54.0);
	assert_int_equal(answer.metrics->metrics[2].status, NVST_NOT_SUPPORTED);
	/* all 333 are written, and nothing behind them */
	while (answer.room[last - 1] == 0xAA)
		last--;
	assert_int_equal(last, 13344);

	/* a GPU instance, of which one of two compute instances is half busy */
	assert_int_equal(nvml.nvmlGpmMigSampleGet(gpu(0), 3, a), NVST_SUCCESS);
	node.set_time_ns(24 * S);
	assert_int_equal(nvml.nvmlGpmMigSampleGet(gpu(0), 3, b), NVST_SUCCESS);
	assert_int_equal(nvml.nvmlGpmMetricsGet(answer.metrics), NVST_SUCCESS);
	assert_true(answer.metrics->metrics[0].value == 25.0);

	/* what is scripted */
	node.set_time_ns(30 * S);
	assert_int_equal(nvml.nvmlGpmSampleGet(mig(0, 1), a), NVST_SUCCESS);
	node.set_time_ns(31 * S);
	assert_int_equal(nvml.nvmlGpmSampleGet(mig(0, 1), b), NVST_SUCCESS);
	assert_int_equal(nvml.nvmlGpmMetricsGet(answer.metrics), NVST_SUCCESS);
	assert_true(answer.metrics->metrics[0].value == 12.3456);
	node.set_time_ns(41 * S);
	assert_int_equal(nvml.nvmlGpmSampleGet(mig(0, 1), b), NVST_SUCCESS);
	assert_int_equal(nvml.nvmlGpmMetricsGet(answer.metrics), NVST_SUCCESS);
	assert_int_equal(answer.metrics->metrics[0].status, NVST_NOT_SUPPORTED);
	answer.metrics->version = 2;
	assert_int_equal(nvml.nvmlGpmMetricsGet(answer.metrics), NVST_ARGUMENT_VERSION_MISMATCH);
	free(answer.room);
	nvml.nvmlGpmSampleFree(a);
	nvml.nvmlGpmSampleFree(b);
}

/* ---- events --------------------------------------------------------------------------------------------------------- */

static void
events_come_once_from_their_registration_on(void **state)
{
	struct nvml_event_set *set;
	struct nvml_event event;
	uint64_t types;

	(void)state;
	begin("name: x\n"
	      "gpus:\n"
	      "  - {model: NVIDIA L40S, memory_mib: 46068}\n"
	      "  - {model: NVIDIA A100-SXM4-80GB, memory_mib: 81920, mig: [3g.40gb], repartition: [{at: 30s, mig: off}]}\n"
	      "xids:\n"
	      "  - {gpu: 0, at: 20s, xid: 79}\n"
	      "  - {gpu: 0, at: 1s, xid: 13}\n"
	      "  - {gpu: 1, at: 20s, xid: 43, instance: 0}\n",
	      10 * S);
	assert_int_equal(nvml.nvmlEventSetCreate(&set), NVST_SUCCESS);
	assert_int_equal(nvml.nvmlDeviceGetSupportedEventTypes(gpu(0), &types), NVST_SUCCESS);
	assert_int_equal(types, NVML_EVENT_XID);
	assert_int_equal(nvml.nvmlDeviceRegisterEvents(gpu(0), types | NVML_EVENT_MIG_CONFIG, set), NVST_NOT_SUPPORTED);
	assert_int_equal(nvml.nvmlDeviceRegisterEvents(gpu(0), types, set), NVST_SUCCESS);
	assert_int_equal(nvml.nvmlDeviceRegisterEvents(gpu(1), types | NVML_EVENT_MIG_CONFIG, set), NVST_SUCCESS);
	assert_int_equal(nvml.nvmlEventSetWait_v2(set, &event, 0), NVST_TIMEOUT);
	assert_int_equal(nvml.nvmlEventSetWait_v2(set, &event, 1), NVST_TIMEOUT);
	node.set_time_ns(20 * S);
	assert_int_equal(nvml.nvmlEventSetWait_v2(set, &event, 0), NVST_SUCCESS);
	assert_ptr_equal(event.device, gpu(0));
	assert_int_equal(event.data, 79);
	assert_int_equal(event.gi, NVML_NO_INSTANCE);
	assert_int_equal(nvml.nvmlEventSetWait_v2(set, &event, 0), NVST_SUCCESS);
	assert_int_equal(event.data, 43);
	assert_int_equal(event.gi, 1);
	assert_int_equal(event.ci, 0);
	assert_int_equal(nvml.nvmlEventSetWait_v2(set, &event, 0), NVST_TIMEOUT);
	node.set_time_ns(31 * S);
	assert_int_equal(nvml.nvmlEventSetWait_v2(set, &event, 0), NVST_SUCCESS);
	assert_int_equal(event.type, NVML_EVENT_MIG_CONFIG);
	assert_int_equal(nvml.nvmlEventSetWait_v2(NULL, &event, 0), NVST_INVALID_ARGUMENT);
	assert_int_equal(nvml.nvmlEventSetFree(set), NVST_SUCCESS);
}

/* ---- boards --------------------------------------------------------------------------------------------------------- */

static void
placements_are_told_to_root_and_end_with_their_instance(void **state)
{
	static const char text[] = "name: x\n%s"
				   "gpus: [{model: NVIDIA A100-SXM4-80GB, memory_mib: 81920, "
				   "mig: [3g.40gb, 2g.20gb, 1g.10gb, 1g.10gb], repartition: [{at: 10s, mig: []}]}]\n";
	struct nvml_gpu_instance_info info;
	struct nvml_gpu_instance *instance;
	uint32_t slices = 0;
	char yaml[512];

	(void)state;
	snprintf(yaml, sizeof(yaml), text, "");
	begin(yaml, 0);
	/* a single slice cannot be the last of eight, so that the 3g has to be there */
	for (uint32_t i = 0; i < 4; i++) {
		uint32_t id;

		assert_int_equal(nvml.nvmlDeviceGetGpuInstanceId(mig(0, i + 1), &id), NVST_SUCCESS);
		assert_int_equal(nvml.nvmlDeviceGetGpuInstanceById(gpu(0), id, &instance), NVST_SUCCESS);
		assert_int_equal(nvml.nvmlGpuInstanceGetInfo(instance, &info), NVST_SUCCESS);
		assert_int_equal(info.id, id);
		assert_int_equal(info.placement.start % info.placement.size, 0);
		for (uint32_t s = 0; s < info.placement.size; s++) {
			assert_false(slices >> (info.placement.start + s) & 1);
			slices |= 1u << (info.placement.start + s);
		}
	}
	assert_int_equal(slices, 0xff);
	assert_int_equal(nvml.nvmlDeviceGetGpuInstanceById(gpu(0), 99, &instance), NVST_NOT_FOUND);
	node.set_time_ns(10 * S);
	assert_int_equal(nvml.nvmlGpuInstanceGetInfo(instance, &info), NVST_INVALID_ARGUMENT);
	nvml.nvmlShutdown();
	simnode_fini(&node);
	snprintf(yaml, sizeof(yaml), text, "driver_quirk: unprivileged\n");
	begin(yaml, 0);
	assert_int_equal(nvml.nvmlDeviceGetGpuInstanceById(gpu(0), 1, &instance), NVST_NO_PERMISSION);
}

static void
models_lack_what_they_lack(void **state)
{
	struct nvml_field_value field = {.id = NVML_FIELD_NVLINK_DATA_TX, .scope = NVML_ALL_LINKS};
	uint32_t rows[4];
	uint64_t count;

	(void)state;
	begin("name: x\n"
	      "gpus:\n"
	      "  - {model: NVIDIA GeForce RTX 4090, memory_mib: 24564}\n"
	      "  - {model: Tesla P100-SXM2-16GB, memory_mib: 16384}\n"
	      "  - {model: NVIDIA H100 80GB HBM3, memory_mib: 81559, readings: ['0s nvlink_tx_bytes=4096 ecc_corrected=7']}\n",
	      0);
	assert_int_equal(nvml.nvmlDeviceGetTotalEccErrors(gpu(0), 0, NVML_ECC_AGGREGATE, &count), NVST_NOT_SUPPORTED);
	assert_int_equal(nvml.nvmlDeviceGetRemappedRows(gpu(0), rows, rows + 1, rows + 2, rows + 3),
	                 NVST_NOT_SUPPORTED);
	assert_int_equal(nvml.nvmlDeviceGetFieldValues(gpu(0), 1, &field), NVST_SUCCESS);
	assert_int_equal(field.status, NVST_NOT_SUPPORTED);
	assert_int_equal(nvml.nvmlDeviceGetTotalEnergyConsumption(gpu(1), &count), NVST_NOT_SUPPORTED);
	assert_int_equal(nvml.nvmlDeviceGetTotalEccErrors(gpu(2), 0, NVML_ECC_AGGREGATE, &count), NVST_SUCCESS);
	assert_int_equal(count, 7);
	assert_int_equal(nvml.nvmlDeviceGetTotalEccErrors(gpu(2), 9, NVML_ECC_AGGREGATE, &count),
	                 NVST_INVALID_ARGUMENT);
	assert_int_equal(nvml.nvmlDeviceGetRemappedRows(gpu(2), rows, rows + 1, rows + 2, rows + 3), NVST_SUCCESS);
	assert_int_equal(nvml.nvmlDeviceGetFieldValues(gpu(2), 1, &field), NVST_SUCCESS);
	assert_int_equal(field.status, NVST_SUCCESS);
	assert_int_equal(field.value, 4);
	assert_int_equal(nvml.nvmlDeviceGetFieldValues(gpu(2), 1, NULL), NVST_INVALID_ARGUMENT);
}

static void
what_is_scripted_is_told_until_it_is_not(void **state)
{
	uint32_t milliwatts, mhz;
	uint64_t energy;

	(void)state;
	begin("name: x\n"
	      "gpus:\n"
	      "  - model: NVIDIA L40S\n"
	      "    memory_mib: 46068\n"
	      "    idle_watts: 40\n"
	      "    readings: ['10s power_mw=100000', '20s power_mw=-', '30s sm_clock_mhz=555 energy_mj=9']\n",
	      0);
	assert_int_equal(nvml.nvmlDeviceGetPowerUsage(gpu(0), &milliwatts), NVST_SUCCESS);
	assert_int_equal(milliwatts, 40000);
	node.set_time_ns(15 * S);
	assert_int_equal(nvml.nvmlDeviceGetPowerUsage(gpu(0), &milliwatts), NVST_SUCCESS);
	assert_int_equal(milliwatts, 100000);
	assert_int_equal(nvml.nvmlDeviceGetTotalEnergyConsumption(gpu(0), &energy), NVST_SUCCESS);
	assert_int_equal(energy, 10 * 40000 + 5 * 100000);
	node.set_time_ns(25 * S);
	assert_int_equal(nvml.nvmlDeviceGetPowerUsage(gpu(0), &milliwatts), NVST_NOT_SUPPORTED);
	node.set_time_ns(30 * S);
	assert_int_equal(nvml.nvmlDeviceGetClockInfo(gpu(0), NVML_CLOCK_OF_SM, &mhz), NVST_SUCCESS);
	assert_int_equal(mhz, 555);
	assert_int_equal(nvml.nvmlDeviceGetClockInfo(gpu(0), 9, &mhz), NVST_INVALID_ARGUMENT);
	assert_int_equal(nvml.nvmlDeviceGetTotalEnergyConsumption(gpu(0), &energy), NVST_SUCCESS);
	assert_int_equal(energy, 9);
}

/* ---- calls that misbehave ------------------------------------------------------------------------------------------- */

static const char hanging[] = "name: hanging\n"
			      "gpus: [{model: NVIDIA L40S, memory_mib: 46068, count: 2}]\n"
			      "calls:\n"
			      "  - {name: nvmlDeviceGetPowerUsage, gpu: 1, at: 10s, until: 20s, hang: true}\n"
			      "  - {name: nvmlDeviceGetTemperature, gpu: 0, at: 10s, until: 20s, status: 15}\n"
			      "  - {name: nvmlDeviceGetPcieReplayCounter, delay: 1ms}\n";

static struct nvml_device *hung;
static atomic_int answered;

static void *
ask_for_power(void *arg)
{
	uint32_t milliwatts;

	(void)arg;
	atomic_store(&answered, nvml.nvmlDeviceGetPowerUsage(hung, &milliwatts) == NVST_SUCCESS ? 1 : -1);
	return NULL;
}

static void
wait_until_it_hangs(pthread_t *thread)
{
	atomic_store(&answered, 0);
	assert_int_equal(pthread_create(thread, NULL, ask_for_power, NULL), 0);
	while (nvml.tollgate_sim_hanging() == 0)
		usleep(1000);
}

static void
a_call_that_hangs_holds_up_no_other_and_can_be_released(void **state)
{
	char path[128];
	pthread_t thread;
	uint32_t value;
	struct err err;

	(void)state;
	begin(hanging, 10 * S);
	hung = gpu(1);
	/* by the test */
	wait_until_it_hangs(&thread);
	assert_int_equal(nvml.nvmlDeviceGetPowerUsage(gpu(0), &value), NVST_SUCCESS);
	assert_int_equal(nvml.nvmlDeviceGetTemperature(hung, NVML_SENSOR_GPU, &value), NVST_SUCCESS);
	assert_int_equal(atomic_load(&answered), 0);
	nvml.tollgate_sim_release();
	pthread_join(thread, NULL);
	assert_int_equal(atomic_load(&answered), 1);
	assert_int_equal(nvml.tollgate_sim_hanging(), 0);
	/* by the clock of the scenario */
	wait_until_it_hangs(&thread);
	node.set_time_ns(20 * S);
	pthread_join(thread, NULL);
	assert_int_equal(atomic_load(&answered), 1);
	/* by a file */
	node.set_time_ns(10 * S);
	snprintf(path, sizeof(path), "%s/release", node.dir);
	setenv("TOLLGATE_SIM_RELEASE", path, 1);
	wait_until_it_hangs(&thread);
	assert_true(file_write_atomic(path, "", 0, 0600, &err));
	pthread_join(thread, NULL);
	assert_int_equal(atomic_load(&answered), 1);
	assert_int_equal(nvml.nvmlDeviceGetPowerUsage(hung, &value), NVST_SUCCESS);
}

static void
a_call_that_hangs_over_a_shutdown_finds_nothing_left(void **state)
{
	pthread_t thread;

	(void)state;
	begin(hanging, 10 * S);
	hung = gpu(1);
	wait_until_it_hangs(&thread);
	nvml.nvmlShutdown();
	nvml.tollgate_sim_release();
	pthread_join(thread, NULL);
	assert_int_equal(atomic_load(&answered), -1);
}

static void
calls_fail_on_their_gpu_in_their_time(void **state)
{
	uint32_t value;

	(void)state;
	begin(hanging, 9 * S);
	assert_int_equal(nvml.nvmlDeviceGetTemperature(gpu(0), NVML_SENSOR_GPU, &value), NVST_SUCCESS);
	node.set_time_ns(10 * S);
	assert_int_equal(nvml.nvmlDeviceGetTemperature(gpu(0), NVML_SENSOR_GPU, &value), NVST_GPU_IS_LOST);
	assert_int_equal(nvml.nvmlDeviceGetTemperature(gpu(1), NVML_SENSOR_GPU, &value), NVST_SUCCESS);
	assert_int_equal(nvml.nvmlDeviceGetPcieReplayCounter(gpu(0), &value), NVST_SUCCESS);
	node.set_time_ns(20 * S);
	assert_int_equal(nvml.nvmlDeviceGetTemperature(gpu(0), NVML_SENSOR_GPU, &value), NVST_SUCCESS);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(accounting_tells_what_processes_did_that_are_gone, end_node),
		cmocka_unit_test_teardown(accounting_is_off_on_a_partitioned_gpu_and_needs_root, end_node),
		cmocka_unit_test_teardown(samples_follow_the_phases_of_a_run_also_of_one_that_ended_between_readings,
	                                  end_node),
		cmocka_unit_test_teardown(stamps_jump_with_the_clock_of_the_node, end_node),
		cmocka_unit_test_teardown(hopper_measures_each_instance_and_ampere_none, end_node),
		cmocka_unit_test_teardown(events_come_once_from_their_registration_on, end_node),
		cmocka_unit_test_teardown(placements_are_told_to_root_and_end_with_their_instance, end_node),
		cmocka_unit_test_teardown(models_lack_what_they_lack, end_node),
		cmocka_unit_test_teardown(what_is_scripted_is_told_until_it_is_not, end_node),
		cmocka_unit_test_teardown(a_call_that_hangs_holds_up_no_other_and_can_be_released, end_node),
		cmocka_unit_test_teardown(a_call_that_hangs_over_a_shutdown_finds_nothing_left, end_node),
		cmocka_unit_test_teardown(calls_fail_on_their_gpu_in_their_time, end_node),
	};

	return cmocka_run_group_tests_name("nvmlsim: the driver", tests, NULL, NULL);
}
