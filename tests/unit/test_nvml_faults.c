/* tests/unit/test_nvml_faults.c - every function of NVML fails in every way: a reading is then down with a reason, or lacks a value,
 * and what it says adds up. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "common/time.h"
#include "exporter/nvml_abi.h"
#include "tests/support/simnode.h"

#define S NS_PER_S

static struct simnode node;

static int
end_node(void **state)
{
	(void)state;
	if (node.handle)
		simnode_fini(&node);
	return 0;
}

static const char *const functions[] = {
#define NAME(ret, name, args) #name,
	NVML_FUNCTIONS(NAME, NAME)
#undef NAME
};

/* Without these a GPU cannot be metered; every other may be missing for good, and the GPU is read without it. */
static const char *const needed[] = {
	"nvmlInit_v2",
	"nvmlDeviceGetCount_v2",
	"nvmlDeviceGetHandleByIndex_v2",
	"nvmlDeviceGetUUID",
	"nvmlDeviceGetName",
	"nvmlDeviceGetMaxMigDeviceCount",
	"nvmlDeviceGetMigDeviceHandleByIndex",
	"nvmlDeviceGetGpuInstanceId",
	"nvmlDeviceGetComputeInstanceId",
};

static bool
is_needed(const char *name)
{
	for (size_t i = 0; i < ARRAY_LEN(needed); i++)
		if (strcmp(needed[i], name) == 0)
			return true;
	/* without MIG mode a partitioned GPU cannot be told from a whole one; lists have three versions, any of them will do, but
	 * only "function not found" makes an older one answer */
	return strcmp(name, "nvmlDeviceGetMigMode") == 0 || strstr(name, "ComputeRunningProcesses") != NULL;
}

/* A whole GPU with everything, a partitioned one, and one without MIG. */
static const char world[] =
	"gpus:\n"
	"  - {model: NVIDIA H100 80GB HBM3, memory_mib: 81559, accounting: true}\n"
	"  - {model: NVIDIA H100 80GB HBM3, memory_mib: 81559, mig: [3g.40gb, {profile: 1c.2g.20gb, gi: 3, ci: 0}, "
	"{profile: 1c.2g.20gb, gi: 3, ci: 1}]}\n"
	"  - {model: NVIDIA L40S, memory_mib: 46068}\n"
	"processes:\n"
	"  - {pid: 10, gpu: [0, 2], sm: 50, memory_mib: 100}\n"
	"  - {pid: 11, gpu: 0, start: 1200ms, end: 1400ms}\n"
	"  - {pid: 12, gpu: 1, instance: 0, sm: 40}\n"
	"  - {pid: 13, gpu: 1, instance: 1, mps: true}\n"
	"  - {pid: 14, gpu: 2, graphics: true}\n"
	"xids: [{gpu: 0, at: 1s, xid: 31}]\n";

static bool
is_share(int64_t ppm)
{
	return ppm >= ABSENT && ppm <= 1000000;
}

/* What holds of every reading. */
static void
check_reading(const struct gpu_reading *r, const char *why)
{
	int64_t units = r->units_unallocated + r->units_stranded;

	if (r->down && !r->down_reason[0])
		fail_msg("%s: down without a reason", why);
	for (size_t i = 0; i < r->instance_count; i++) {
		units += r->instances[i].units;
		if (!is_share(r->instances[i].active_ppm) || !is_share(r->instances[i].sm_active_ppm))
			fail_msg("%s: the activity of an instance is no share", why);
	}
	if (units != (r->mig && !r->down ? UNITS_PER_GPU : 0))
		fail_msg("%s: %" PRId64 " units", why, units);
	if (!is_share(r->active_ppm) || !is_share(r->sm_active_ppm) || !is_share(r->board.encoder_ppm))
		fail_msg("%s: the activity of a GPU is no share", why);
	if (r->down && (r->process_count || r->exit_count || r->instance_count || r->energy_mj != ABSENT))
		fail_msg("%s: down, and yet something was read", why);
	for (size_t i = 0; i < r->process_count; i++)
		if (r->processes[i].pid == 0 || !is_share(r->processes[i].sm_ppm))
			fail_msg("%s: a process without a PID, or with more than all", why);
}

static void
read_with_failure(const char *function, int status)
{
	bool may_be_missing =
		(status == NVST_NOT_SUPPORTED || status == NVST_FUNCTION_NOT_FOUND) && !is_needed(function);
	char text[2048], why[96];
	struct err err;

	snprintf(why, sizeof(why), "%s answers %d", function, status);
	snprintf(text, sizeof(text), "name: f\n%scalls: [{name: %s, status: %d}]\n", world, function, status);
	simnode_init(&node, text);
	if (!simnode_try_open(&node, &err)) {
		if (strcmp(function, "nvmlInit_v2") != 0 || !err.text[0])
			fail_msg("%s: does not open: %s", why, err.text);
		return;
	}
	for (int t = 0; t < 4; t++) {
		if (!simnode_try_read(&node, t * S, &err)) {
			/* only a library that has lost its driver, or cannot count its GPUs, fails as a whole */
			if (status != NVST_UNINITIALIZED && strcmp(function, "nvmlDeviceGetCount_v2") != 0)
				fail_msg("%s: %s", why, err.text);
			return;
		}
		for (size_t i = 0; i < node.snapshot->count; i++) {
			check_reading(&node.snapshot->gpus[i], why);
			if (may_be_missing && node.snapshot->gpus[i].down)
				fail_msg("%s: a GPU is down for it: %s", why, node.snapshot->gpus[i].down_reason);
		}
		if (may_be_missing && node.snapshot->count != 3)
			fail_msg("%s: %zu GPUs", why, node.snapshot->count);
	}
}

static void
any_function_may_fail_in_any_way(void **state)
{
	static const int statuses[] = {
		NVST_UNINITIALIZED,
		NVST_INVALID_ARGUMENT,
		NVST_NOT_SUPPORTED,
		NVST_NO_PERMISSION,
		NVST_NOT_FOUND,
		NVST_INSUFFICIENT_SIZE,
		NVST_DRIVER_NOT_LOADED,
		NVST_TIMEOUT,
		NVST_FUNCTION_NOT_FOUND,
		NVST_GPU_IS_LOST,
		NVST_RESET_REQUIRED,
		NVST_ARGUMENT_VERSION_MISMATCH,
		NVST_UNKNOWN,
		998,
	};

	for (size_t f = 0; f < ARRAY_LEN(functions); f++)
		for (size_t i = 0; i < ARRAY_LEN(statuses); i++) {
			read_with_failure(functions[f], statuses[i]);
			end_node(state);
		}
}

/* And the one beside it is read as if nothing were. */
static void
one_gpu_that_fails_leaves_the_others_alone(void **state)
{
	char text[2048];

	snprintf(text, sizeof(text), "name: f\n%scalls: [{name: \"*\", gpu: 1, at: 2s, until: 4s, status: 999}]\n",
	         world);
	simnode_init(&node, text);
	assert_false(simnode_read(&node, S, 1)->down);
	for (int t = 2; t < 4; t++) {
		assert_true(simnode_read(&node, t * S, 1)->down);
		assert_false(node.snapshot->gpus[0].down || node.snapshot->gpus[2].down);
		assert_int_equal(node.snapshot->gpus[2].process_count, 2);
	}
	assert_false(simnode_read(&node, 4 * S, 1)->down);
	(void)state;
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(any_function_may_fail_in_any_way, end_node),
		cmocka_unit_test_teardown(one_gpu_that_fails_leaves_the_others_alone, end_node),
	};

	return cmocka_run_group_tests_name("nvml faults", tests, NULL, NULL);
}
