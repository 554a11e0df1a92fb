/* tests/unit/exporter/source/test_nvml_events.c - the driver's events, and GPUs read in several threads, against the simulator. */
/* tsan */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "common/base/buf.h"
#include "common/base/time.h"
#include "exporter/source/nvml/nvml_source.h"
#include "tests/support/exporter/simnode.h"

#define S NS_PER_S

static struct simnode node;
static int calls;
static uint64_t registered; /* the events asked for last */

static int
end_node(void **state)
{
	(void)state;
	calls = 0;
	if (node.handle)
		simnode_fini(&node);
	return 0;
}

static int64_t
xids(const struct gpu_reading *r, uint32_t code)
{
	for (size_t i = 0; i < r->xid_count; i++)
		if (r->xids[i].code == code)
			return r->xids[i].count;
	return 0;
}

/* ---- errors --------------------------------------------------------------------------------------------------------- */

static void
errors_are_counted_by_kind_and_gpu(void **state)
{
	static const char text[] = "name: x\ngpus:\n  - {model: NVIDIA A100-SXM4-80GB, memory_mib: 81920}\n"
				   "  - {model: NVIDIA A100-SXM4-80GB, memory_mib: 81920, mig: [3g.40gb]}\n"
				   "xids:\n  - {gpu: 0, at: 2s, xid: 31}\n  - {gpu: 0, at: 2500ms, xid: 31}\n"
				   "  - {gpu: 0, at: 3s, xid: 94}\n  - {gpu: 1, at: 3s, xid: 43, instance: 0}\n";
	int64_t before = time_wall_ns();
	const struct gpu_reading *r;

	(void)state;
	simnode_init(&node, text);
	assert_int_equal(simnode_read(&node, 0, 0)->xid_count, 0);
	assert_int_equal(simnode_read(&node, S, 0)->xid_count, 0);
	r = simnode_read(&node, 4 * S, 0);
	assert_int_equal(r->xid_count, 2);
	assert_int_equal(xids(r, 31), 2);
	assert_int_equal(xids(r, 94), 1);
	assert_true(r->xids[0].last_wall_ns >= before && r->xids[0].last_wall_ns <= time_wall_ns());
	assert_int_equal(xids(&node.snapshot->gpus[1], 43), 1);
	assert_int_equal(node.snapshot->gpus[1].xid_count, 1);
	/* told once, counted on */
	r = simnode_read(&node, 5 * S, 0);
	assert_int_equal(xids(r, 31), 2);
}

static void
a_lost_gpu_keeps_the_error_that_says_why(void **state)
{
	static const char text[] =
		"name: x\ngpus: [{model: NVIDIA A100-SXM4-80GB, memory_mib: 81920}]\n"
		"xids: [{gpu: 0, at: 2s, xid: 79}]\nfaults: [{gpu: 0, at: 2s, until: 10s, lost: true}]\n";
	const struct gpu_reading *r;

	(void)state;
	simnode_init(&node, text);
	simnode_read(&node, S, 0);
	r = simnode_read(&node, 3 * S, 0);
	assert_true(r->down);
	assert_int_equal(xids(r, 79), 1);
	r = simnode_read(&node, 11 * S, 0);
	assert_false(r->down);
	assert_int_equal(xids(r, 79), 1);
}

static void
kinds_beyond_the_room_are_counted_together(void **state)
{
	struct buf text;
	const struct gpu_reading *r;
	int64_t sum = 0;

	(void)state;
	buf_init(&text, 65536);
	buf_printf(&text, "name: x\ngpus: [{model: NVIDIA A100-SXM4-80GB, memory_mib: 81920}]\nxids:\n");
	for (int i = 1; i <= 50; i++)
		buf_printf(&text, "  - {gpu: 0, at: 2s, xid: %d}\n", i);
	buf_printf(&text, "  - {gpu: 0, at: 3s, xid: 7}\n  - {gpu: 0, at: 3s, xid: 49}\n%c", '\0');
	simnode_init(&node, text.data);
	buf_fini(&text);
	simnode_read(&node, S, 0);
	simnode_read(&node, 2 * S, 0);
	r = simnode_read(&node, 4 * S, 0);
	assert_int_equal(r->xid_count, GPU_XID_MAX);
	assert_int_equal(xids(r, 7), 2);
	assert_int_equal(xids(r, 0), 50 - (GPU_XID_MAX - 1) + 1);
	for (size_t i = 0; i < r->xid_count; i++)
		sum += r->xids[i].count;
	assert_int_equal(sum, 52);
}

static void
a_library_without_events_is_read_without_them(void **state)
{
	static const char text[] =
		"name: x\ngpus: [{model: NVIDIA A100-SXM4-80GB, memory_mib: 81920}]\n"
		"calls: [{name: nvmlEventSetCreate, status: 3}]\nxids: [{gpu: 0, at: 2s, xid: 79}]\n";

	(void)state;
	simnode_init(&node, text);
	simnode_read(&node, S, 0);
	assert_int_equal(simnode_read(&node, 3 * S, 0)->xid_count, 0);
	assert_false(node.snapshot->gpus[0].down);
}

static int
support_old_events(struct nvml_device *device, uint64_t *types)
{
	(void)device;
	*types = 0xf;
	return NVST_SUCCESS;
}

static int (*real_register)(struct nvml_device *, uint64_t, struct nvml_event_set *);
static int
keep_register(struct nvml_device *device, uint64_t types, struct nvml_event_set *set)
{
	calls++;
	registered = types;
	return real_register(device, types, set);
}

static void
only_events_that_the_driver_knows_are_asked_for_and_once_per_handle(void **state)
{
	(void)state;
	simnode_init(&node, "name: x\ngpus: [{model: NVIDIA A100-SXM4-80GB, memory_mib: 81920}]\n");
	real_register = simnode_nvml(&node)->api.nvmlDeviceRegisterEvents;
	simnode_nvml(&node)->api.nvmlDeviceRegisterEvents = keep_register;
	simnode_nvml(&node)->api.nvmlDeviceGetSupportedEventTypes = support_old_events;
	for (int t = 0; t < 5; t++)
		simnode_read(&node, t * S, 0);
	assert_int_equal(registered, NVML_EVENT_XID);
	assert_int_equal(calls, 1);
}

/* ---- a new partition ------------------------------------------------------------------------------------------------ */

/* Trap: old drivers made UUIDs from gi and ci, so a new instance may have the UUID and the name of the old one. */
static void
a_new_partition_is_read_anew_whatever_its_uuids_are(void **state)
{
	static const char text[] =
		"name: m\ngpus:\n  - model: NVIDIA A100-SXM4-80GB\n    memory_mib: 81920\n"
		"    mig: [{profile: 1g.10gb, gi: 9, uuid: MIG-1, placement: 0}]\n"
		"    repartition: [{at: 2s, mig: [{profile: 1g.10gb, gi: 9, uuid: MIG-1, placement: 5}]}]\n";

	(void)state;
	simnode_init(&node, text);
	assert_int_equal(simnode_read(&node, S, 0)->instances[0].placement_start, 0);
	assert_int_equal(simnode_read(&node, 2 * S, 0)->instances[0].placement_start, 5);
	assert_string_equal(simnode_read(&node, 3 * S, 0)->instances[0].uuid, "MIG-1");
}

/* ---- threads -------------------------------------------------------------------------------------------------------- */

#define GPUS 8
#define ROUNDS 40

static struct gpu_reading *readings[GPUS]; /* one each, as those who wait for a driver have */

static void *
read_one(void *arg)
{
	size_t place = *(const size_t *)arg;

	for (int i = 0; i < ROUNDS; i++)
		simnode_nvml(&node)->base.ops->read(&simnode_nvml(&node)->base, place, readings[place]);
	return NULL;
}

static void
gpus_are_read_in_threads_while_the_list_goes_on(void **state)
{
	static const char text[] =
		"name: t\ngpus:\n"
		"  - {model: NVIDIA H100 80GB HBM3, memory_mib: 81559, count: 4, accounting: true}\n"
		"  - {model: NVIDIA H100 80GB HBM3, memory_mib: 81559, count: 4, mig: [3g.40gb, 2g.20gb]}\n"
		"processes:\n  - {pid: 10, gpu: [0, 1, 2, 3], sm: 40}\n"
		"  - {pid: 20, gpu: [4, 5, 6, 7], instance: 1, sm: 40}\n"
		"xids: [{gpu: 3, at: 1s, xid: 31}, {gpu: 5, at: 1s, xid: 43}]\n";
	pthread_t threads[GPUS];
	size_t places[GPUS];
	struct err err;

	(void)state;
	simnode_init(&node, text);
	simnode_read(&node, 0, 0);
	node.set_time_ns(2 * S);
	for (size_t i = 0; i < GPUS; i++) {
		places[i] = i;
		readings[i] = mem_alloc(sizeof(*readings[i]));
		assert_int_equal(pthread_create(&threads[i], NULL, read_one, &places[i]), 0);
	}
	for (int i = 0; i < ROUNDS; i++)
		assert_true(simnode_nvml(&node)->base.ops->list(&simnode_nvml(&node)->base, SIMNODE_T0_NS + 2 * S + i,
		                                                node.snapshot, &err));
	for (size_t i = 0; i < GPUS; i++) {
		pthread_join(threads[i], NULL);
		assert_false(readings[i]->down);
		assert_string_equal(readings[i]->uuid, node.snapshot->gpus[i].uuid);
		assert_int_equal(readings[i]->process_count, 1);
		assert_int_equal(readings[i]->instance_count, i < 4 ? 0 : 2);
		mem_free(readings[i]->processes);
		mem_free(readings[i]->exits);
		mem_free(readings[i]);
	}
	assert_int_equal(xids(&node.snapshot->gpus[3], 31), 1);
	assert_int_equal(xids(&node.snapshot->gpus[5], 43), 1);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(errors_are_counted_by_kind_and_gpu, end_node),
		cmocka_unit_test_teardown(a_lost_gpu_keeps_the_error_that_says_why, end_node),
		cmocka_unit_test_teardown(kinds_beyond_the_room_are_counted_together, end_node),
		cmocka_unit_test_teardown(a_library_without_events_is_read_without_them, end_node),
		cmocka_unit_test_teardown(only_events_that_the_driver_knows_are_asked_for_and_once_per_handle,
	                                  end_node),
		cmocka_unit_test_teardown(a_new_partition_is_read_anew_whatever_its_uuids_are, end_node),
		cmocka_unit_test_teardown(gpus_are_read_in_threads_while_the_list_goes_on, end_node),
	};

	return cmocka_run_group_tests_name("nvml events", tests, NULL, NULL);
}
