/* tests/unit/exporter/source/test_nvml_faults.c - every function of NVML fails in every way: a reading is then down with a reason, or lacks a value,
 * and what it says adds up. */
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

/* ---- answers that are odd ------------------------------------------------------------------------------------------- */

static uint32_t number; /* what the function that is replaced answers */

static int
tell_number(uint32_t *count)
{
	*count = number;
	return NVST_SUCCESS;
}

static void
a_gpu_that_is_no_longer_listed_is_down_and_keeps_its_place(void **state)
{
	struct err err;

	(void)state;
	simnode_init(&node, "name: o\ngpus: [{model: NVIDIA L40S, memory_mib: 46068, count: 3}]\n");
	assert_false(simnode_read(&node, S, 2)->down);
	simnode_nvml(&node)->api.nvmlDeviceGetCount_v2 = tell_number;
	number = 2;
	assert_string_equal(simnode_read(&node, 2 * S, 2)->down_reason, "no longer listed by the driver");
	assert_int_equal(simnode_read(&node, 2 * S, 2)->fault, GPU_FAULT_LOST);
	number = GPU_MAX + 1;
	assert_false(simnode_try_read(&node, 3 * S, &err));
	assert_int_equal(err.kind, ERR_INVALID);
	assert_non_null(strstr(err.text, "65 GPUs"));
}

/* It has no UUID to be booked under, and is counted for as long as that is so. */
static void
a_gpu_that_never_gave_a_handle_is_counted_with_its_reason(void **state)
{
	(void)state;
	simnode_init(&node, "name: o\ngpus: [{model: NVIDIA L40S, memory_mib: 46068, count: 3}]\n"
	                    "calls: [{name: nvmlDeviceGetHandleByIndex_v2, gpu: 1, until: 2s, status: 4}, "
	                    "{name: nvmlDeviceGetUUID, gpu: 2, until: 2s, status: 999}]\n");
	simnode_read(&node, S, 0);
	assert_int_equal(node.snapshot->listed, 3);
	assert_int_equal(node.snapshot->count, 1);
	assert_int_equal(node.snapshot->unnamed, 2);
	assert_string_equal(node.snapshot->unnamed_reason, "GPU 1: no permission; GPU 2: unknown error");
	assert_false(simnode_read(&node, 2 * S, 2)->down);
	assert_int_equal(node.snapshot->listed, 3);
	assert_int_equal(node.snapshot->unnamed, 0);
	assert_string_equal(node.snapshot->unnamed_reason, "");
}

static void
a_driver_that_lists_no_gpu_is_read_as_such(void **state)
{
	struct err err;

	(void)state;
	simnode_init(&node, "name: o\ngpus: [{model: NVIDIA L40S, memory_mib: 46068}]\n");
	simnode_nvml(&node)->api.nvmlDeviceGetCount_v2 = tell_number;
	number = 0;
	assert_true(simnode_try_read(&node, S, &err));
	assert_int_equal(node.snapshot->listed, 0);
	assert_int_equal(node.snapshot->count, 0);
}

/* Drivers answer either status for a slot without an instance. */
static void
a_mig_slot_that_is_an_invalid_argument_is_empty_and_the_others_are_read(void **state)
{
	const struct gpu_reading *r;

	(void)state;
	simnode_init(&node, "name: o\ndriver_quirk: invalid_slots\n"
	                    "gpus: [{model: NVIDIA H100 80GB HBM3, memory_mib: 81559, mig: [3g.40gb, 2g.20gb]}]\n"
	                    "processes: [{pid: 10, gpu: 0, instance: 1, sm: 50, memory_mib: 100}]\n");
	r = simnode_read(&node, S, 0);
	if (r->down)
		fail_msg("down: %s", r->down_reason);
	assert_int_equal(r->instance_count, 2);
	assert_string_equal(r->instances[1].profile, "2g.20gb");
	assert_int_equal(r->process_count, 1);
	check_reading(r, "empty slots are invalid arguments");
}

static int (*uuid_of)(struct nvml_device *device, char *text, uint32_t size);

/* Of the second instance that it is asked for: it was destroyed after its handle was given. */
static int
tell_uuid_but_once(struct nvml_device *device, char *text, uint32_t size)
{
	int status = uuid_of(device, text, size);

	if (status != NVST_SUCCESS || strncmp(text, "MIG-", 4) != 0 || ++number != 2)
		return status;
	return NVST_INVALID_ARGUMENT;
}

static void
an_instance_that_goes_while_it_is_read_leaves_the_others(void **state)
{
	const struct gpu_reading *r;

	(void)state;
	simnode_init(&node, "name: o\ngpus: [{model: NVIDIA H100 80GB HBM3, memory_mib: 81559, "
	                    "mig: [3g.40gb, 2g.20gb, 1g.10gb]}]\n");
	uuid_of = simnode_nvml(&node)->api.nvmlDeviceGetUUID;
	simnode_nvml(&node)->api.nvmlDeviceGetUUID = tell_uuid_but_once;
	number = 0;
	r = simnode_read(&node, S, 0);
	assert_false(r->down);
	assert_int_equal(r->instance_count, 2);
	assert_string_equal(r->instances[1].profile, "1g.10gb");
	check_reading(r, "an instance that goes");
	assert_int_equal(simnode_read(&node, 2 * S, 0)->instance_count, 3);
}

static int
tell_device_number(struct nvml_device *device, uint32_t *count)
{
	(void)device;
	*count = number;
	return NVST_SUCCESS;
}

static void
a_gpu_with_an_impossible_number_of_instances_is_down(void **state)
{
	(void)state;
	simnode_init(&node, "name: o\ngpus: [{model: NVIDIA H100 80GB HBM3, memory_mib: 81559, mig: [3g.40gb]}]\n");
	simnode_nvml(&node)->api.nvmlDeviceGetMaxMigDeviceCount = tell_device_number;
	number = 0;
	assert_string_equal(simnode_read(&node, S, 0)->down_reason,
	                    "the driver allows 0 MIG instances, between 1 and 56 expected");
	number = 57;
	assert_true(simnode_read(&node, 2 * S, 0)->down);
	number = 7;
	assert_false(simnode_read(&node, 3 * S, 0)->down);
}

static int
tell_whole_gpu(struct nvml_device *mig, struct nvml_attributes *a)
{
	(void)mig;
	*a = (struct nvml_attributes){.gi_slices = 7, .ci_slices = 7, .memory_mib = 81000};
	return NVST_SUCCESS;
}

static void
instances_larger_than_their_gpu_make_it_down(void **state)
{
	(void)state;
	simnode_init(&node,
	             "name: o\ngpus: [{model: NVIDIA H100 80GB HBM3, memory_mib: 81559, mig: [3g.40gb, 3g.40gb]}]\n");
	simnode_nvml(&node)->api.nvmlDeviceGetAttributes_v2 = tell_whole_gpu;
	assert_string_equal(simnode_read(&node, S, 0)->down_reason, "MIG instances add up to more than the GPU");
}

static int
tell_unknown_name(struct nvml_device *device, char *text, uint32_t size)
{
	(void)device;
	snprintf(text, size, "NVIDIA X900 72GB");
	return NVST_SUCCESS;
}

/* The geometry follows from the number of instances, the profile from the slices. */
static void
a_model_of_the_future_is_weighed_by_what_the_driver_says(void **state)
{
	const struct gpu_reading *r;

	(void)state;
	simnode_init(&node, "name: o\ngpus: [{model: NVIDIA H100 80GB HBM3, memory_mib: 81559, mig: "
	                    "[3g.40gb, {profile: 1c.2g.20gb, gi: 4}]}]\n");
	simnode_nvml(&node)->api.nvmlDeviceGetName = tell_unknown_name;
	r = simnode_read(&node, S, 0);
	assert_false(r->down);
	assert_string_equal(r->instances[0].profile, "3g.40gb");
	assert_string_equal(r->instances[1].profile, "1c.2g.20gb");
	assert_int_equal(r->instances[0].units, 2340);
	check_reading(r, "a model of the future");
}

/* One entry, and noise behind it: more than any entry is long. */
static int
write_beyond(struct nvml_device *device, uint32_t *count, void *entries)
{
	struct nvml_process_info entry = {
		.pid = 7, .used_memory = 4096, .gi = NVML_NO_INSTANCE, .ci = NVML_NO_INSTANCE};

	(void)device;
	memset(entries, 0x11, 200);
	memcpy(entries, &entry, sizeof(entry));
	*count = 1;
	return NVST_SUCCESS;
}

static void
a_driver_that_writes_beyond_its_entries_is_read_as_documented(void **state)
{
	const struct gpu_reading *r;

	(void)state;
	simnode_init(&node, "name: o\ngpus: [{model: NVIDIA L40S, memory_mib: 46068}]\n");
	simnode_nvml(&node)->lists[LIST_COMPUTE][0] = write_beyond;
	r = simnode_read(&node, S, 0);
	assert_int_equal(r->process_count, 1);
	assert_int_equal(r->processes[0].pid, 7);
	assert_int_equal(r->processes[0].memory_bytes, 4096);
}

/* Asks for more each time. */
static int
never_enough(struct nvml_device *device, uint32_t *count, void *entries)
{
	(void)device;
	(void)entries;
	*count += number;
	return NVST_INSUFFICIENT_SIZE;
}

static void
a_list_that_is_never_large_enough_is_given_up(void **state)
{
	static const uint32_t steps[] = {1, 1000000};

	for (size_t i = 0; i < ARRAY_LEN(steps); i++) {
		simnode_init(&node, "name: o\ngpus: [{model: NVIDIA L40S, memory_mib: 46068}]\n");
		simnode_nvml(&node)->lists[LIST_COMPUTE][0] = never_enough;
		number = steps[i];
		assert_true(simnode_read(&node, S, 0)->down);
		end_node(state);
	}
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(any_function_may_fail_in_any_way, end_node),
		cmocka_unit_test_teardown(one_gpu_that_fails_leaves_the_others_alone, end_node),
		cmocka_unit_test_teardown(a_gpu_that_is_no_longer_listed_is_down_and_keeps_its_place, end_node),
		cmocka_unit_test_teardown(a_gpu_that_never_gave_a_handle_is_counted_with_its_reason, end_node),
		cmocka_unit_test_teardown(a_driver_that_lists_no_gpu_is_read_as_such, end_node),
		cmocka_unit_test_teardown(a_mig_slot_that_is_an_invalid_argument_is_empty_and_the_others_are_read,
	                                  end_node),
		cmocka_unit_test_teardown(an_instance_that_goes_while_it_is_read_leaves_the_others, end_node),
		cmocka_unit_test_teardown(a_gpu_with_an_impossible_number_of_instances_is_down, end_node),
		cmocka_unit_test_teardown(instances_larger_than_their_gpu_make_it_down, end_node),
		cmocka_unit_test_teardown(a_model_of_the_future_is_weighed_by_what_the_driver_says, end_node),
		cmocka_unit_test_teardown(a_driver_that_writes_beyond_its_entries_is_read_as_documented, end_node),
		cmocka_unit_test_teardown(a_list_that_is_never_large_enough_is_given_up, end_node),
	};

	return cmocka_run_group_tests_name("nvml faults", tests, NULL, NULL);
}
