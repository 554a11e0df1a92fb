/* tests/unit/exporter/source/test_nvml_process.c - who is on a GPU and how active, through NVML, with every trap of real drivers that the simulator can
 * set. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <stdio.h>

#include "common/base/buf.h"
#include "common/base/time.h"
#include "tests/support/exporter/simnode.h"

#define S NS_PER_S
#define MIB (INT64_C(1) << 20)
#define PERCENT 10000

static struct simnode node;

static int
end_node(void **state)
{
	(void)state;
	if (node.handle)
		simnode_fini(&node);
	return 0;
}

/* ---- processes ------------------------------------------------------------------------------------------------------ */

static const char shared_gpu[] = "gpus: [{model: NVIDIA L40S, memory_mib: 46068}]\n"
				 "processes:\n"
				 "  - {pid: 300, gpu: 0, sm: 10, memory_mib: 30}\n"
				 "  - {pid: 100, gpu: 0, sm: 20, memory_mib: 10}\n"
				 "  - {pid: 200, gpu: 0, sm: 30, memory_mib: 20}\n";

static void
every_list_version_and_entry_size_gives_the_same_processes(void **state)
{
	static const char *const quirks[] = {"[]", "stride32", "no_v3", "no_v2", "list_race", "[stride32, list_race]"};
	char text[1024];

	(void)state;
	for (size_t q = 0; q < ARRAY_LEN(quirks); q++) {
		snprintf(text, sizeof(text), "name: shared\ndriver_quirk: %s\n%s", quirks[q], shared_gpu);
		simnode_init(&node, text);
		for (int64_t t = 0; t < 3; t++) {
			const struct gpu_reading *r = simnode_read(&node, t * S, 0);

			if (r->down || r->process_count != 3)
				fail_msg("%s: %zu processes %s", quirks[q], r->process_count, r->down_reason);
			for (uint32_t i = 0; i < 3; i++) {
				assert_int_equal(r->processes[i].pid, 100 * (i + 1));
				assert_int_equal(r->processes[i].memory_bytes, 10 * (i + 1) * MIB);
				assert_int_equal(r->processes[i].gi, -1);
			}
		}
		simnode_fini(&node);
	}
}

/* 100 processes need more than the first buffer, and 20 more appear each time the size is asked for. */
static void
a_list_that_grows_while_it_is_read_is_read_whole(void **state)
{
	static const char *const quirks[] = {"list_race", "[list_race, stride32]", "[list_race, no_v2]"};

	(void)state;
	for (size_t q = 0; q < ARRAY_LEN(quirks); q++) {
		in_place(buf) struct buf text;
		const struct gpu_reading *r;

		buf_init(&text, 1 << 20);
		buf_printf(&text, "name: many\ndriver_quirk: %s\n", quirks[q]);
		buf_str(&text, "gpus: [{model: NVIDIA L40S, memory_mib: 46068}]\nprocesses:\n");
		for (int i = 0; i < 100; i++)
			buf_printf(&text, "  - {pid: %d, gpu: 0, memory_mib: %d}\n", 1000 + (i * 37) % 100,
			           1 + (i * 37) % 100);
		simnode_init(&node, buf_text(&text));
		r = simnode_read(&node, 0, 0);
		assert_false(r->down);
		assert_true(r->process_count > 100);
		for (uint32_t i = 0; i < 100; i++) {
			assert_int_equal(r->processes[i].pid, 1000 + i);
			assert_int_equal(r->processes[i].memory_bytes, (1 + i) * MIB);
		}
		/* the memory of a snapshot is kept from tick to tick */
		const struct gpu_process *kept = r->processes;
		size_t cap = r->process_cap;
		r = simnode_read(&node, S, 0);
		assert_ptr_equal(r->processes, kept);
		assert_int_equal(r->process_cap, cap);
		simnode_fini(&node);
	}
}

static void
a_gpu_with_more_processes_than_we_hold_is_down_not_half_read(void **state)
{
	in_place(buf) struct buf text;
	const struct gpu_reading *r;

	(void)state;
	buf_init(&text, 1 << 20);
	buf_str(&text, "name: too-many\ngpus: [{model: NVIDIA L40S, memory_mib: 46068}]\nprocesses:\n");
	for (int i = 0; i <= GPU_PROCESS_MAX; i++)
		buf_printf(&text, "  - {pid: %d, gpu: 0}\n", 2000 + i);
	simnode_init(&node, buf_text(&text));
	r = simnode_read(&node, 0, 0);
	assert_true(r->down);
	assert_string_equal(r->down_reason, "insufficient size");
	assert_int_equal(r->process_count, 0);
}

static void
lists_are_united_and_an_mps_server_is_not_a_holder(void **state)
{
	static const char mps[] =
		"name: mps\n"
		"gpus: [{model: NVIDIA L40S, memory_mib: 46068, count: 3}]\n"
		"processes:\n"
		"  - {pid: 10, gpu: 0, memory_mib: 30, comm: nvidia-cuda-mps-server}\n"
		"  - {pid: 11, gpu: 0, sm: 40, memory_mib: 500, mps: true}\n"
		"  - {pid: 12, gpu: 0, sm: 20, memory_mib: 600, mps: true}\n"
		"  - {pid: 13, gpu: 0, sm: 5, memory_mib: 70, graphics: true, comm: Xorg}\n"
		/* not servers, whatever they call themselves: one works, one holds much */
		"  - {pid: 20, gpu: 1, sm: 7, memory_mib: 30, comm: nvidia-cuda-mps-server}\n"
		"  - {pid: 21, gpu: 1, sm: 0, memory_mib: 2000, comm: /usr/bin/nvidia-cuda-mps-server}\n"
		"  - {pid: 22, gpu: 1, sm: 0, memory_mib: 10, comm: /usr/bin/nvidia-cuda-mps-server}\n"
		/* a PID that was a server comes back as somebody's work */
		"  - {pid: 30, gpu: 2, memory_mib: 30, end: 5s, comm: nvidia-cuda-mps-server}\n"
		"  - {pid: 30, gpu: 2, memory_mib: 30, start: 6s}\n";
	const struct gpu_reading *r;

	(void)state;
	simnode_init(&node, mps);
	r = simnode_read(&node, 2 * S, 0);
	assert_true(r->mps);
	assert_int_equal(r->process_count, 3);
	assert_null(simnode_process(r, 10));
	assert_true(simnode_process(r, 11)->mps_client && simnode_process(r, 12)->mps_client);
	assert_int_equal(simnode_process(r, 12)->memory_bytes, 600 * MIB);
	assert_int_equal(simnode_process(r, 12)->sm_ppm, 20 * PERCENT);
	assert_false(simnode_process(r, 13)->mps_client);
	assert_int_equal(r->active_ppm, 65 * PERCENT);

	r = simnode_read(&node, 3 * S, 1);
	assert_int_equal(r->process_count, 2);
	assert_non_null(simnode_process(r, 20));
	assert_non_null(simnode_process(r, 21));
	assert_true(r->mps);

	assert_int_equal(simnode_read(&node, 4 * S, 2)->process_count, 0);
	assert_int_equal(simnode_read(&node, 5500 * NS_PER_MS, 2)->process_count, 0);
	assert_int_equal(simnode_read(&node, 7 * S, 2)->process_count, 1);
	assert_false(simnode_read(&node, 7 * S, 2)->mps);
}

/* ---- activity of processes ------------------------------------------------------------------------------------------ */

static void
activity_is_the_average_since_the_previous_reading(void **state)
{
	static const char text[] = "name: activity\ngpus: [{model: NVIDIA L40S, memory_mib: 46068}]\n"
				   "processes:\n"
				   "  - {pid: 10, gpu: 0, sm: 80, start: 6s}\n"
				   "  - {pid: 11, gpu: 0, sm: 30}\n"
				   "  - {pid: 12, gpu: 0, sm: 0}\n";
	const struct gpu_reading *r;

	(void)state;
	simnode_init(&node, text);
	r = simnode_read(&node, S, 0);
	assert_true(r->process_activity);
	assert_int_equal(simnode_process(r, 11)->sm_ppm, 30 * PERCENT);
	/* active in 5 of the 10 seconds since */
	r = simnode_read(&node, 11 * S, 0);
	assert_int_equal(simnode_process(r, 10)->sm_ppm, 40 * PERCENT);
	assert_int_equal(simnode_process(r, 11)->sm_ppm, 30 * PERCENT);
	assert_int_equal(simnode_process(r, 12)->sm_ppm, 0);
	/* and in the whole of the next one, because the stamp was handed back */
	r = simnode_read(&node, 12 * S, 0);
	assert_int_equal(simnode_process(r, 10)->sm_ppm, 80 * PERCENT);
}

static void
a_process_that_wakes_is_not_averaged_with_its_sleep(void **state)
{
	const struct gpu_process *p;

	(void)state;
	simnode_init(&node, "name: sleeper\n"
	                    "gpus: [{model: NVIDIA L40S, memory_mib: 46068}]\n"
	                    "processes: [{pid: 10, gpu: 0, sm: 40, activity: '10s sm=0; 20500ms sm=80'}]\n");
	for (int64_t s = 1; s <= 20; s++)
		simnode_read(&node, s * S, 0);
	p = simnode_process(simnode_read(&node, 21 * S, 0), 10);
	assert_int_equal(p->sm_ppm, 400000);
	p = simnode_process(simnode_read(&node, 22 * S, 0), 10);
	assert_int_equal(p->sm_ppm, 800000);
}

static void
a_gpu_without_samples_is_idle_not_broken(void **state)
{
	static const char text[] = "name: idle\ngpus: [{model: NVIDIA L40S, memory_mib: 46068}]\n"
				   "processes: [{pid: 10, gpu: 0, sm: 0}]\n";
	const struct gpu_reading *r;

	(void)state;
	simnode_init(&node, text);
	r = simnode_read(&node, S, 0);
	assert_false(r->down);
	assert_true(r->process_activity);
	assert_int_equal(r->processes[0].sm_ppm, 0);
	assert_int_equal(r->active_ppm, 0);
}

static void
activity_above_100_percent_is_noise(void **state)
{
	static const char text[] = "name: zombies\ndriver_quirk: zombie_samples\n"
				   "gpus: [{model: NVIDIA L40S, memory_mib: 46068}]\n"
				   "processes: [{pid: 10, gpu: 0, sm: 0}, {pid: 11, gpu: 0, sm: 100}]\n";
	const struct gpu_reading *r;

	(void)state;
	simnode_init(&node, text);
	r = simnode_read(&node, S, 0);
	assert_int_equal(r->process_count, 2);
	assert_int_equal(r->processes[0].sm_ppm, 0);
	assert_int_equal(r->processes[1].sm_ppm, 100 * PERCENT);
}

static void
a_driver_without_process_utilisation_leaves_it_absent(void **state)
{
	char text[1024];
	const struct gpu_reading *r;

	(void)state;
	snprintf(text, sizeof(text), "name: plain\ndriver_quirk: no_samples\n%s", shared_gpu);
	simnode_init(&node, text);
	r = simnode_read(&node, S, 0);
	assert_false(r->down || r->process_activity);
	assert_int_equal(r->processes[0].sm_ppm, ABSENT);
	assert_int_equal(r->active_ppm, 60 * PERCENT);
}

/* The stamps of samples are wall time. When that steps back, no sample is new for as long as the step was. */
static void
a_busy_gpu_is_not_idle_after_its_clock_stepped_back(void **state)
{
	char text[1024];
	const struct gpu_reading *r;

	(void)state;
	snprintf(text, sizeof(text), "name: step\n%s", shared_gpu);
	simnode_init(&node, text);
	assert_true(simnode_read(&node, 3600 * S, 0)->process_activity);
	for (int64_t t = 1; t <= 3; t++) {
		r = simnode_read(&node, t * S, 0);
		assert_false(r->process_activity);
		assert_int_equal(r->processes[0].sm_ppm, ABSENT);
	}
	r = simnode_read(&node, 4 * S, 0);
	assert_true(r->process_activity);
	assert_int_equal(r->processes[0].sm_ppm, 20 * PERCENT);
}
int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(every_list_version_and_entry_size_gives_the_same_processes, end_node),
		cmocka_unit_test_teardown(a_list_that_grows_while_it_is_read_is_read_whole, end_node),
		cmocka_unit_test_teardown(a_gpu_with_more_processes_than_we_hold_is_down_not_half_read, end_node),
		cmocka_unit_test_teardown(lists_are_united_and_an_mps_server_is_not_a_holder, end_node),
		cmocka_unit_test_teardown(activity_is_the_average_since_the_previous_reading, end_node),
		cmocka_unit_test_teardown(a_process_that_wakes_is_not_averaged_with_its_sleep, end_node),
		cmocka_unit_test_teardown(a_gpu_without_samples_is_idle_not_broken, end_node),
		cmocka_unit_test_teardown(activity_above_100_percent_is_noise, end_node),
		cmocka_unit_test_teardown(a_driver_without_process_utilisation_leaves_it_absent, end_node),
		cmocka_unit_test_teardown(a_busy_gpu_is_not_idle_after_its_clock_stepped_back, end_node),
	};

	return cmocka_run_group_tests_name("nvml_process", tests, NULL, NULL);
}
