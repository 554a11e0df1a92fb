/* tests/unit/exporter/source/test_nvml_account.c - processes that ended, and their activity, through NVML, against the simulator. */
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
#define MIB (INT64_C(1) << 20)
#define PERCENT 10000
#define WALL0_NS (INT64_C(1700000000) * S) /* of virtual time 0, see the simulator's README */
#define GPU(more) "gpus: [{model: NVIDIA A100-SXM4-80GB, memory_mib: 81920" more "}]\n"

static struct simnode node;
static int calls;

static int
end_node(void **state)
{
	(void)state;
	calls = 0;
	if (node.handle)
		simnode_fini(&node);
	return 0;
}

static const struct gpu_exit *
exit_of(const struct gpu_reading *r, uint32_t pid)
{
	for (size_t i = 0; i < r->exit_count; i++)
		if (r->exits[i].pid == pid)
			return &r->exits[i];
	return NULL;
}

/* ---- accounting ----------------------------------------------------------------------------------------------------- */

/* Version 1 rounds activity to whole percents. */
static void
a_process_between_two_readings_is_told_with_all_that_is_known_of_it(void **state)
{
	static const struct {
		const char *driver;
		int64_t active_ppm;
	} rows[] = {{"550.54.15", 33 * PERCENT}, {"610.10.01", 333300}};

	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		const struct gpu_reading *r;
		const struct gpu_exit *e;
		char text[512];

		snprintf(
			text, sizeof(text),
			"name: a\ndriver: %s\n" GPU(
				", accounting: true") "processes: [{pid: 77, gpu: 0, start: 1200ms, end: 1500ms, memory_mib: 300, sm: 100, "
						      "activity: \"100ms sm=0\"}]\n",
			rows[i].driver);
		simnode_init(&node, text);
		r = simnode_read(&node, S, 0);
		assert_true(r->accounting);
		assert_int_equal(r->exit_count, 0);
		r = simnode_read(&node, 2 * S, 0);
		assert_int_equal(r->exit_count, 1);
		assert_int_equal(r->process_count, 0);
		e = &r->exits[0];
		assert_int_equal(e->pid, 77);
		assert_int_equal(e->start_wall_ns, WALL0_NS + 1200 * NS_PER_MS);
		assert_int_equal(e->duration_ns, 300 * NS_PER_MS);
		assert_int_equal(e->active_ppm, rows[i].active_ppm);
		assert_int_equal(e->max_memory_bytes, 300 * MIB);
		assert_int_equal(simnode_read(&node, 3 * S, 0)->exit_count, 0);
		end_node(state);
	}
}

static void
a_process_between_two_readings_shows_in_samples_where_there_is_no_accounting(void **state)
{
	const struct gpu_reading *r;

	(void)state;
	simnode_init(&node, "name: a\n" GPU("") "processes:\n"
	                                        "- {pid: 77, gpu: 0, start: 1200ms, end: 1500ms, sm: 100}\n"
	                                        "- {pid: 78, gpu: 0, start: 0s, end: 9s, sm: 20}\n");
	assert_int_equal(simnode_read(&node, S, 0)->sampled_count, 0);
	r = simnode_read(&node, 2 * S, 0);
	assert_false(r->accounting);
	assert_int_equal(r->sampled_count, 1);
	assert_int_equal(r->sampled[0], 77);
	assert_int_equal(simnode_read(&node, 3 * S, 0)->sampled_count, 0);
}

static void
a_process_that_was_seen_running_is_told_when_it_ends_and_once(void **state)
{
	int told = 0;

	(void)state;
	simnode_init(&node,
	             "name: a\n" GPU(
			     ", accounting: true") "processes: [{pid: 77, gpu: 0, start: 1s, end: 5500ms, sm: 20}]\n");
	for (int t = 0; t < 40; t++) {
		const struct gpu_reading *r = simnode_read(&node, t * S, 0);

		told += (int)r->exit_count;
		if (t == 6)
			assert_int_equal(r->exits[0].duration_ns, 4500 * NS_PER_MS);
		assert_int_equal(r->exit_count, t == 6);
	}
	assert_int_equal(told, 1);
}

static void
what_ended_before_the_source_was_opened_is_not_told(void **state)
{
	static const char text[] = "name: a\n" GPU(", accounting: true") "processes:\n"
									 "  - {pid: 70, gpu: 0, start: 1s, end: 2s}\n"
									 "  - {pid: 71, gpu: 0, start: 1s, end: 12s}\n";

	(void)state;
	simnode_init(&node, text);
	for (int t = 10; t < 12; t++)
		assert_int_equal(simnode_read(&node, t * S, 0)->exit_count, 0);
	assert_non_null(exit_of(simnode_read(&node, 12 * S, 0), 71));
	for (int t = 13; t < 30; t++)
		assert_int_equal(simnode_read(&node, t * S, 0)->exit_count, 0);
}

/* Trap: of two processes with one PID the driver keeps the last. */
static void
a_pid_used_twice_is_told_for_each_process_that_the_driver_still_knows(void **state)
{
	static const char text[] =
		"name: a\n" GPU(", accounting: true") "processes:\n"
						      /* both between two readings: the first is lost */
						      "  - {pid: 80, gpu: 0, start: 1100ms, end: 1300ms}\n"
						      "  - {pid: 80, gpu: 0, start: 1400ms, end: 1900ms}\n"
						      /* seen running, both times */
						      "  - {pid: 81, gpu: 0, start: 1500ms, end: 2500ms}\n"
						      "  - {pid: 81, gpu: 0, start: 3500ms, end: 4500ms}\n";
	const struct gpu_reading *r;

	(void)state;
	simnode_init(&node, text);
	simnode_read(&node, S, 0);
	r = simnode_read(&node, 2 * S, 0);
	assert_int_equal(r->exit_count, 1);
	assert_int_equal(r->exits[0].duration_ns, 500 * NS_PER_MS);
	r = simnode_read(&node, 3 * S, 0);
	assert_int_equal(r->exit_count, 1);
	assert_int_equal(r->exits[0].start_wall_ns, WALL0_NS + 1500 * NS_PER_MS);
	assert_int_equal(simnode_read(&node, 4 * S, 0)->exit_count, 0);
	r = simnode_read(&node, 5 * S, 0);
	assert_int_equal(r->exit_count, 1);
	assert_int_equal(r->exits[0].start_wall_ns, WALL0_NS + 3500 * NS_PER_MS);
}

static void
a_pid_used_again_unseen_is_found_by_its_start(void **state)
{
	static const char text[] =
		"name: a\n" GPU(", accounting: true") "processes:\n"
						      "  - {pid: 90, gpu: 0, start: 1100ms, end: 1200ms}\n"
						      "  - {pid: 90, gpu: 0, start: 5100ms, end: 5400ms}\n";
	int told = 0;

	(void)state;
	simnode_init(&node, text);
	for (int t = 0; t < 20; t++) {
		const struct gpu_reading *r = simnode_read(&node, t * S, 0);
		const struct gpu_exit *e = exit_of(r, 90);

		told += e != NULL;
		if (e && t > 2)
			assert_int_equal(e->duration_ns, 300 * NS_PER_MS);
	}
	assert_int_equal(told, 2);
}

/* Rule 4: it held nothing while it ran. */
static void
an_mps_server_that_ends_is_not_told(void **state)
{
	static const char text[] = "name: a\n" GPU(
		", accounting: true") "processes:\n"
				      "  - {pid: 60, gpu: 0, end: 2500ms, memory_mib: 30, comm: nvidia-cuda-mps-server}\n"
				      "  - {pid: 61, gpu: 0, end: 2500ms, memory_mib: 30, mps: true}\n";
	const struct gpu_reading *r;

	(void)state;
	simnode_init(&node, text);
	simnode_read(&node, S, 0);
	simnode_read(&node, 2 * S, 0);
	r = simnode_read(&node, 3 * S, 0);
	assert_int_equal(r->exit_count, 1);
	assert_int_equal(r->exits[0].pid, 61);
}

static void
hundreds_of_short_processes_are_all_told(void **state)
{
	static const char text[] = "name: a\n" GPU(
		", accounting: true") "processes:\n"
				      "  - {pid: 1000, gpu: 0, start: 5ms, end: 8ms, every: 10ms, fresh_pids: true}\n";
	size_t told = 0;

	(void)state;
	simnode_init(&node, text);
	for (int t = 0; t <= 8; t++)
		told += simnode_read(&node, t * S, 0)->exit_count;
	assert_int_equal(told, 800);
}

static void
accounting_that_is_off_is_not_turned_on_unasked(void **state)
{
	const struct gpu_reading *r = NULL;

	(void)state;
	simnode_init(&node, "name: a\n" GPU("") "processes: [{pid: 77, gpu: 0, start: 1200ms, end: 1500ms}]\n");
	for (int t = 0; t < 4; t++) {
		r = simnode_read(&node, t * S, 0);
		assert_false(r->accounting);
		assert_int_equal(r->exit_count, 0);
	}
}

static int (*real_set_mode)(struct nvml_device *, uint32_t);
static int
count_set_mode(struct nvml_device *device, uint32_t on)
{
	calls++;
	return real_set_mode(device, on);
}

static void
accounting_is_turned_on_when_asked_and_allowed(void **state)
{
	static const struct {
		const char *quirk;
		bool on;
	} rows[] = {{"", true}, {"driver_quirk: unprivileged\n", false}};

	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		const struct gpu_reading *r = NULL;
		char text[512];

		snprintf(text, sizeof(text),
		         "name: a\n%s" GPU("") "processes: [{pid: 77, gpu: 0, start: 1200ms, end: 1500ms}]\n",
		         rows[i].quirk);
		simnode_init(&node, text);
		simnode_nvml(&node)->enable_accounting = true;
		real_set_mode = simnode_nvml(&node)->api.nvmlDeviceSetAccountingMode;
		simnode_nvml(&node)->api.nvmlDeviceSetAccountingMode = count_set_mode;
		for (int t = 0; t < 3; t++)
			r = simnode_read(&node, t * S, 0);
		assert_int_equal(r->accounting, rows[i].on);
		assert_int_equal(r->exit_count, rows[i].on);
		assert_int_equal(calls, 1);
		end_node(state);
	}
}

/* So that a daemon may leave root before it reads. */
static void
accounting_is_turned_on_when_the_library_is_opened(void **state)
{
	struct err err;

	(void)state;
	simnode_init(&node, "name: a\n" GPU("") "processes: [{pid: 77, gpu: 0, start: 200ms, end: 1500ms}]\n");
	assert_true(nvml_open(&(struct nvml_options){.library = node.library, .enable_accounting = true}, &node.source,
	                      &err));
	real_set_mode = simnode_nvml(&node)->api.nvmlDeviceSetAccountingMode;
	simnode_nvml(&node)->api.nvmlDeviceSetAccountingMode = count_set_mode;
	assert_true(simnode_read(&node, S, 0)->accounting);
	assert_int_equal(simnode_read(&node, 2 * S, 0)->exit_count, 1);
	assert_int_equal(calls, 0);
}

static void
a_partitioned_gpu_has_no_accounting(void **state)
{
	static const char text[] = "name: a\n" GPU(
		", accounting: true, mig: [3g.40gb]") "processes: [{pid: 77, gpu: 0, instance: 0, start: 1200ms, end: 1500ms}]\n";

	(void)state;
	simnode_init(&node, text);
	for (int t = 0; t < 4; t++)
		assert_false(simnode_read(&node, t * S, 0)->accounting);
}

/* A ring of the test's own, for what drivers may do and the simulator does not. */
static struct {
	uint32_t pid, running;
	uint64_t time_ms, start_us;
	int status;
} ring[3];

static int
tell_pids(struct nvml_device *device, uint32_t *count, uint32_t *pids)
{
	(void)device;
	assert_true(*count >= ARRAY_LEN(ring));
	for (uint32_t i = 0; i < ARRAY_LEN(ring); i++)
		pids[i] = ring[i].pid;
	*count = ARRAY_LEN(ring);
	return NVST_SUCCESS;
}

static int
tell_stats(struct nvml_device *device, uint32_t pid, struct nvml_accounting *stats)
{
	(void)device;
	for (size_t i = 0; i < ARRAY_LEN(ring); i++) {
		if (ring[i].pid != pid)
			continue;
		*stats = (struct nvml_accounting){.gpu = UINT32_MAX,
		                                  .max_memory = NVML_NOT_AVAILABLE,
		                                  .running = ring[i].running,
		                                  .time_ms = ring[i].time_ms,
		                                  .start_us = ring[i].start_us};
		return ring[i].status;
	}
	return NVST_NOT_FOUND;
}

/* Trap: time is 0 while a process runs. It may run and not be in any list, as one does that only begins. */
static void
a_process_is_told_when_it_has_ended_and_has_a_time_and_not_again(void **state)
{
	const struct gpu_reading *r;

	(void)state;
	simnode_init(&node,
	             "name: a\n" GPU(", accounting: true") "processes: [{pid: 5, gpu: 0, start: 6s, end: 7s}]\n");
	simnode_nvml(&node)->api.nvmlDeviceGetAccountingPids = tell_pids;
	simnode_nvml(&node)->api.nvmlDeviceGetAccountingStats = tell_stats;
	memset(ring, 0, sizeof(ring));
	ring[0].pid = 1;
	ring[1].pid = 2;
	ring[2].pid = 3;
	assert_int_equal(simnode_read(&node, 0, 0)->exit_count, 0);
	ring[0].pid = 4;
	ring[0].running = 1;
	ring[0].start_us = 1000;
	ring[1].pid = 5;
	ring[1].start_us = 2000;
	assert_int_equal(simnode_read(&node, S, 0)->exit_count, 0);
	ring[0].running = 0; /* ended, and its time is not there yet */
	assert_int_equal(simnode_read(&node, 2 * S, 0)->exit_count, 0);
	ring[0].time_ms = ring[1].time_ms = 50;
	r = simnode_read(&node, 3 * S, 0);
	assert_int_equal(r->exit_count, 2);
	assert_non_null(exit_of(r, 4));
	assert_non_null(exit_of(r, 5));
	assert_int_equal(r->exits[0].active_ppm, ABSENT);
	assert_int_equal(r->exits[0].max_memory_bytes, ABSENT);
	assert_int_equal(simnode_read(&node, 4 * S, 0)->exit_count, 0);
	/* the PID is on the GPU again, but the ring still has the one that was told */
	assert_int_equal(simnode_read(&node, 6 * S, 0)->exit_count, 0);
	assert_int_equal(simnode_read(&node, 8 * S, 0)->exit_count, 0);
}

static void
a_process_that_the_ring_lists_and_does_not_know_is_not_told(void **state)
{
	(void)state;
	simnode_init(&node, "name: a\n" GPU(", accounting: true"));
	simnode_nvml(&node)->api.nvmlDeviceGetAccountingPids = tell_pids;
	simnode_nvml(&node)->api.nvmlDeviceGetAccountingStats = tell_stats;
	memset(ring, 0, sizeof(ring));
	simnode_read(&node, 0, 0);
	ring[0].pid = 9;
	ring[0].status = NVST_NOT_FOUND;
	for (int t = 1; t < 5; t++) {
		const struct gpu_reading *r = simnode_read(&node, t * S, 0);

		assert_true(r->accounting && !r->down);
		assert_int_equal(r->exit_count, 0);
	}
}

/* ---- activity of processes ------------------------------------------------------------------------------------------ */

static int (*real_old)(struct nvml_device *, struct nvml_process_sample *, uint32_t *, uint64_t);
static int
count_old(struct nvml_device *device, struct nvml_process_sample *samples, uint32_t *count, uint64_t last_seen_us)
{
	calls++;
	return real_old(device, samples, count, last_seen_us);
}

/* Trap: the new call is in drivers from 550 on. */
static void
activity_comes_by_the_call_that_the_driver_has(void **state)
{
	static const struct {
		const char *driver;
		int old_calls;
	} rows[] = {{"535.161.08", 4}, {"550.54.15", 0}};

	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		char text[512];

		snprintf(text, sizeof(text),
		         "name: u\ndriver: %s\n" GPU(
				 "") "processes: [{pid: 10, gpu: 0, sm: 40}, {pid: 11, gpu: 0, sm: 0}]\n",
		         rows[i].driver);
		simnode_init(&node, text);
		real_old = simnode_nvml(&node)->api.nvmlDeviceGetProcessUtilization;
		simnode_nvml(&node)->api.nvmlDeviceGetProcessUtilization = count_old;
		for (int t = 1; t <= 4; t++) {
			const struct gpu_reading *r = simnode_read(&node, t * S, 0);

			assert_true(r->process_activity);
			assert_int_equal(simnode_process(r, 10)->sm_ppm, 40 * PERCENT);
			assert_int_equal(simnode_process(r, 11)->sm_ppm, 0);
		}
		assert_int_equal(calls, rows[i].old_calls);
		end_node(state);
	}
}

static uint64_t stamps[8];
static int
keep_stamp(struct nvml_device *device, struct nvml_processes_utilization *info)
{
	(void)device;
	if (!info->entries || info->count < 100) {
		info->count = 100;
		return NVST_INSUFFICIENT_SIZE;
	}
	stamps[calls++ % 8] = info->last_seen_us;
	memset(info->entries, 0, 100 * sizeof(*info->entries));
	info->entries[0] =
		(struct nvml_process_utilization){.pid = 10, .sm = 25, .timestamp_us = (uint64_t)calls * 1000};
	info->entries[1] =
		(struct nvml_process_utilization){.pid = 11, .sm = 30, .timestamp_us = (uint64_t)calls * 1000 - 500};
	info->count = 100; /* padded with empty entries, as drivers do */
	return NVST_SUCCESS;
}

static void
the_newest_stamp_is_handed_back(void **state)
{
	(void)state;
	simnode_init(&node, "name: s\n" GPU("") "processes: [{pid: 10, gpu: 0}, {pid: 11, gpu: 0}]\n");
	simnode_nvml(&node)->api.nvmlDeviceGetProcessesUtilizationInfo = keep_stamp;
	for (int t = 1; t <= 4; t++) {
		const struct gpu_reading *r = simnode_read(&node, t * S, 0);

		assert_int_equal(simnode_process(r, 10)->sm_ppm, 25 * PERCENT);
		assert_int_equal(simnode_process(r, 11)->sm_ppm, 30 * PERCENT);
	}
	for (int i = 0; i < 4; i++)
		assert_int_equal(stamps[i], i * 1000);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(a_process_between_two_readings_is_told_with_all_that_is_known_of_it,
	                                  end_node),
		cmocka_unit_test_teardown(a_process_between_two_readings_shows_in_samples_where_there_is_no_accounting,
	                                  end_node),
		cmocka_unit_test_teardown(a_process_that_was_seen_running_is_told_when_it_ends_and_once, end_node),
		cmocka_unit_test_teardown(what_ended_before_the_source_was_opened_is_not_told, end_node),
		cmocka_unit_test_teardown(a_pid_used_twice_is_told_for_each_process_that_the_driver_still_knows,
	                                  end_node),
		cmocka_unit_test_teardown(a_pid_used_again_unseen_is_found_by_its_start, end_node),
		cmocka_unit_test_teardown(an_mps_server_that_ends_is_not_told, end_node),
		cmocka_unit_test_teardown(hundreds_of_short_processes_are_all_told, end_node),
		cmocka_unit_test_teardown(accounting_that_is_off_is_not_turned_on_unasked, end_node),
		cmocka_unit_test_teardown(accounting_is_turned_on_when_asked_and_allowed, end_node),
		cmocka_unit_test_teardown(accounting_is_turned_on_when_the_library_is_opened, end_node),
		cmocka_unit_test_teardown(a_partitioned_gpu_has_no_accounting, end_node),
		cmocka_unit_test_teardown(a_process_is_told_when_it_has_ended_and_has_a_time_and_not_again, end_node),
		cmocka_unit_test_teardown(a_process_that_the_ring_lists_and_does_not_know_is_not_told, end_node),
		cmocka_unit_test_teardown(activity_comes_by_the_call_that_the_driver_has, end_node),
		cmocka_unit_test_teardown(the_newest_stamp_is_handed_back, end_node),
	};

	return cmocka_run_group_tests_name("nvml accounting", tests, NULL, NULL);
}
