/* tests/unit/exporter/source/test_dcgm_engine.c - DCGM's engine that is not there, goes, hangs, or stands still: it costs NVML's readings nothing. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <pthread.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/time.h"
#include "tests/support/exporter/dcgmnode.h"

#define S NS_PER_S
#define PERCENT 10000

#define NODE                                                                            \
	"gpus:\n  - {model: NVIDIA A100-SXM4-80GB, memory_mib: 81920}\n"                \
	"  - model: NVIDIA A100-SXM4-80GB\n    memory_mib: 81920\n    mig: [3g.40gb]\n" \
	"processes:\n  - {pid: 10, gpu: 0, sm: 40}\n  - {pid: 11, gpu: 1, instance: 0, sm: 80}\n"

static struct dcgmnode node;

static int
end_node(void **state)
{
	(void)state;
	if (node.handle)
		dcgmnode_fini(&node);
	return 0;
}

static struct dcgm_status
status(void)
{
	struct dcgm_status s;

	dcgm_status(node.dcgm, &s);
	return s;
}

/* Reads at whole seconds, from..to; returns the activity of the instance at the last. NVML's part is there whatever happens. */
static int64_t
play(int64_t from, int64_t to)
{
	int64_t active = ABSENT;

	for (int64_t t = from; t <= to; t++) {
		const struct gpu_reading *r = dcgmnode_read(&node, t * S, 1);

		active = r->instances[0].active_ppm;
		assert_int_equal(r->process_count, 1);
		assert_true(r->power_mw > 0);
		assert_int_equal(node.node.snapshot->gpus[0].active_ppm, 40 * PERCENT);
	}
	return active;
}

/* Ticks until the engine is no longer late: how many it misses depends on the machine. */
static void
play_until_measured(int64_t from)
{
	for (int64_t t = from; play(t, t) != 80 * PERCENT; t++) {
		if (t == from + 20000)
			fail_msg("not measured again");
		usleep(1000);
	}
}

static void
wait_for_hanging(unsigned calls)
{
	while (node.hanging() != calls)
		usleep(1000);
}

/* ---- opening -------------------------------------------------------------------------------------------------------- */

static void
a_library_that_is_not_there_is_told_with_what_to_do(void **state)
{
	struct err err;

	(void)state;
	dcgmnode_init(&node, "name: d\n" NODE);
	node.options.library = "/nonexistent/libdcgm.so.4";
	assert_false(dcgmnode_try_open(&node, &err));
	assert_int_equal(err.kind, ERR_MISSING);
	assert_non_null(strstr(err.text, "--dcgm-library"));
}

static void
a_library_that_is_not_dcgms_is_refused(void **state)
{
	struct err err;

	(void)state;
	dcgmnode_init(&node, "name: d\n" NODE);
	node.options.library = node.node.library;
	assert_false(dcgmnode_try_open(&node, &err));
	assert_int_equal(err.kind, ERR_MISSING);
	assert_non_null(strstr(err.text, "dcgmInit"));
}

static void
a_host_engine_is_reached_by_address_or_by_unix_socket(void **state)
{
	static const char *const hosts[] = {"localhost", "127.0.0.1:5555", "/run/nv.sock", "unix:/run/nv.sock",
	                                    "unix:///run/nv.sock"};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(hosts); i++) {
		dcgmnode_init(&node, "name: d\n" NODE);
		node.options.host = hosts[i];
		assert_int_equal(play(0, 1), 80 * PERCENT);
		assert_true(status().up);
		assert_true(status().simulated);
		assert_string_equal(status().version, "4.2.3");
		dcgmnode_fini(&node);
	}
}

static void
an_engine_that_is_not_running_is_tried_again_ever_more_rarely(void **state)
{
	struct err err;

	(void)state;
	dcgmnode_init(&node, "name: d\ndcgm: {outages: [{until: 20s}]}\n" NODE);
	node.options.host = "localhost";
	assert_false(dcgmnode_try_open(&node, &err));
	assert_non_null(strstr(err.text, "localhost"));
	dcgm_free(take(node.dcgm));
	assert_int_equal(play(0, 19), ABSENT);
	assert_false(status().up);
	/* at the start, then at 0, 2, 6 and 14 s */
	assert_int_equal(status().failures, 5);
	assert_int_equal(play(20, 35), 80 * PERCENT);
	assert_true(status().up);
	assert_int_equal(status().connections, 1);
}

static void
an_engine_that_goes_and_comes_back_is_found_again(void **state)
{
	(void)state;
	dcgmnode_init(&node, "name: d\ndcgm: {outages: [{at: 5s, until: 7s}, {at: 40s, until: 41s}]}\n" NODE);
	assert_int_equal(play(0, 4), 80 * PERCENT);
	assert_int_equal(play(5, 5), ABSENT);
	assert_false(status().up);
	assert_int_equal(status().trouble.kind, ERR_RETRY);
	assert_int_equal(play(6, 12), 80 * PERCENT);
	assert_true(status().up);
	assert_int_equal(status().trouble.kind, ERR_NONE);
	assert_int_equal(play(13, 40), ABSENT);
	/* the first wait is short again */
	assert_int_equal(play(41, 42), 80 * PERCENT);
	assert_int_equal(status().connections, 3);
}

static void
an_engine_that_stands_still_has_no_values_after_two_ticks(void **state)
{
	(void)state;
	dcgmnode_init(&node, "name: d\ndcgm: {outages: [{at: 5s, until: 10s, stuck: true}]}\n" NODE);
	assert_int_equal(play(0, 4), 80 * PERCENT);
	assert_int_equal(play(5, 6), 80 * PERCENT); /* of 4 s */
	assert_int_equal(play(7, 7), ABSENT);
	assert_int_equal(play(8, 9), ABSENT);
	assert_int_equal(play(10, 11), 80 * PERCENT);
}

/* ---- hanging -------------------------------------------------------------------------------------------------------- */

static void
a_call_that_hangs_costs_its_values_and_nothing_else(void **state)
{
	(void)state;
	dcgmnode_init(&node, "name: d\ncalls:\n  - {name: dcgmUpdateAllFields, at: 5s, until: 6s, hang: true}\n" NODE);
	assert_int_equal(play(0, 4), 80 * PERCENT);
	node.node.set_time_ns(5 * S);
	dcgm_begin(node.dcgm, SIMNODE_T0_NS + 5 * S);
	wait_for_hanging(1);
	/* the clock of the scenario may not go on: at 6 s the call returns */
	for (int64_t t = 1; t <= 4; t++) {
		struct gpu_snapshot *snapshot = node.node.snapshot;
		struct err err;

		assert_true(gpu_source_read_all(node.node.source, SIMNODE_T0_NS + 5 * S + t * S, snapshot, &err));
		assert_int_equal(snapshot->gpus[0].active_ppm, 40 * PERCENT);
		assert_int_equal(snapshot->gpus[0].process_count, 1);
		assert_int_equal(snapshot->gpus[1].instances[0].active_ppm, t == 1 ? 80 * PERCENT : ABSENT);
	}
	assert_int_equal(node.hanging(), 1);
	assert_false(status().up);
	assert_int_equal(status().trouble.kind, ERR_RETRY);
	assert_true(status().late >= 4);
	node.node.set_time_ns(10 * S);
	wait_for_hanging(0);
	/* what it brought is of another time; the readings after it are whole again */
	play_until_measured(10);
	assert_true(status().up);
}

static void
closing_leaves_a_call_that_hangs_to_itself(void **state)
{
	struct dcgm *dcgm;

	(void)state;
	dcgmnode_init(&node, "name: d\ncalls:\n  - {name: dcgmUpdateAllFields, at: 5s, hang: true}\n" NODE);
	assert_int_equal(play(0, 4), 80 * PERCENT);
	node.node.set_time_ns(5 * S);
	dcgm_begin(node.dcgm, SIMNODE_T0_NS + 5 * S);
	wait_for_hanging(1);
	gpu_source_free(take(node.node.source));
	dcgm = take(node.dcgm);
	assert_false(dcgm_close(dcgm));
	node.release();
	wait_for_hanging(0);
}

static void
connecting_that_hangs_holds_nobody_up(void **state)
{
	(void)state;
	dcgmnode_init(&node, "name: d\ncalls:\n  - {name: dcgmStartEmbedded_v2, until: 3s, hang: true}\n" NODE);
	assert_true(dcgm_new(&node.options, &node.dcgm, NULL));
	wait_for_hanging(1);
	dcgm_free(take(node.dcgm));
	node.release();
}

/* ---- threads -------------------------------------------------------------------------------------------------------- */

static void *
read_one(void *arg)
{
	struct gpu_reading *r = arg;

	for (int i = 0; i < 200; i++) {
		dcgm_add(node.dcgm, true, true, r);
		r->by_dcgm = 0;
	}
	return NULL;
}

static void
readings_of_several_gpus_take_their_values_at_once(void **state)
{
	struct gpu_snapshot *snapshot;
	pthread_t threads[2];
	struct dcgm_status s;

	(void)state;
	dcgmnode_init(&node, "name: d\ndcgm: {outages: [{at: 30s, until: 31s}]}\n" NODE);
	play(0, 2);
	snapshot = node.node.snapshot;
	for (size_t i = 0; i < 2; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, read_one, &snapshot->gpus[i]), 0);
	for (int64_t t = 3; t < 60; t++) {
		node.node.set_time_ns(t * S);
		dcgm_begin(node.dcgm, SIMNODE_T0_NS + t * S);
		dcgm_status(node.dcgm, &s);
	}
	for (size_t i = 0; i < 2; i++)
		pthread_join(threads[i], NULL);
	play_until_measured(140);
	assert_true(status().up);
}

/* A simulator beside a driver would make readings that nobody could tell apart. */
static void
a_simulated_engine_adds_nothing_to_real_readings(void **state)
{
	struct gpu_reading r;

	(void)state;
	dcgmnode_init(&node, "name: d\n" NODE);
	assert_int_equal(play(0, 1), 80 * PERCENT);
	r = node.node.snapshot->gpus[0];
	r.sm_active_ppm = ABSENT;
	r.by_dcgm = 0;
	dcgm_add(node.dcgm, true, false, &r);
	assert_int_equal(r.sm_active_ppm, ABSENT);
	assert_int_equal(r.by_dcgm, 0);
	assert_false(status().up);
	assert_non_null(strstr(status().trouble.text, "simulator"));
}

/* ---- an engine in the process of a user -------------------------------------------------------------------------------- */

/* Opens DCGM as another user than root, in a child, and gives what it says; "": it opened. */
static void
open_as_user(char *said, size_t size)
{
	int fds[2], status;
	ssize_t n;
	pid_t pid;

	assert_int_equal(chmod(node.node.dir, 0755), 0);
	assert_int_equal(chmod(node.node.scenario, 0644), 0);
	assert_int_equal(pipe(fds), 0);
	pid = fork();
	assert_true(pid >= 0);
	if (pid == 0) {
		struct err err = {0};

		if (geteuid() == 0 && setresuid(65534, 65534, 65534) != 0)
			_exit(1);
		if (dcgmnode_try_open(&node, &err))
			err.text[0] = '\0';
		_exit(write(fds[1], err.text, sizeof(err.text)) == (ssize_t)sizeof(err.text) ? 0 : 1);
	}
	close(fds[1]);
	n = read(fds[0], said, size);
	close(fds[0]);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	assert_int_equal(n, size);
}

static void
an_engine_that_does_not_start_without_root_says_so_and_what_to_do(void **state)
{
	char said[sizeof(((struct err *)0)->text)];

	(void)state;
	dcgmnode_init(&node, "name: e\ndcgm: {quirk: [needs_root]}\n" NODE);
	open_as_user(said, sizeof(said));
	assert_non_null(strstr(said, "DCGM needs root"));
	assert_non_null(strstr(said, "uid "));
	assert_non_null(strstr(said, "initialization error"));
	assert_non_null(strstr(said, "--dcgm-host"));
}

/* With root, or for another reason, DCGM's own words stay. */
static void
an_engine_that_does_not_start_for_another_reason_does_not_ask_for_root(void **state)
{
	char said[sizeof(((struct err *)0)->text)];

	(void)state;
	dcgmnode_init(&node, "name: e\ncalls: [{name: dcgmStartEmbedded_v2, status: 24}]\n" NODE);
	open_as_user(said, sizeof(said));
	assert_string_equal(said, "DCGM does not start an engine in this process: limit reached");
}

static void
a_host_engine_needs_no_root(void **state)
{
	char said[sizeof(((struct err *)0)->text)];

	(void)state;
	dcgmnode_init(&node, "name: e\ndcgm: {quirk: [needs_root]}\n" NODE);
	node.options.host = "localhost";
	open_as_user(said, sizeof(said));
	assert_string_equal(said, "");
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(a_library_that_is_not_there_is_told_with_what_to_do, end_node),
		cmocka_unit_test_teardown(a_library_that_is_not_dcgms_is_refused, end_node),
		cmocka_unit_test_teardown(a_host_engine_is_reached_by_address_or_by_unix_socket, end_node),
		cmocka_unit_test_teardown(an_engine_that_is_not_running_is_tried_again_ever_more_rarely, end_node),
		cmocka_unit_test_teardown(an_engine_that_goes_and_comes_back_is_found_again, end_node),
		cmocka_unit_test_teardown(an_engine_that_stands_still_has_no_values_after_two_ticks, end_node),
		cmocka_unit_test_teardown(a_call_that_hangs_costs_its_values_and_nothing_else, end_node),
		cmocka_unit_test_teardown(closing_leaves_a_call_that_hangs_to_itself, end_node),
		cmocka_unit_test_teardown(connecting_that_hangs_holds_nobody_up, end_node),
		cmocka_unit_test_teardown(readings_of_several_gpus_take_their_values_at_once, end_node),
		cmocka_unit_test_teardown(a_simulated_engine_adds_nothing_to_real_readings, end_node),
		cmocka_unit_test_teardown(an_engine_that_does_not_start_without_root_says_so_and_what_to_do, end_node),
		cmocka_unit_test_teardown(an_engine_that_does_not_start_for_another_reason_does_not_ask_for_root,
	                                  end_node),
		cmocka_unit_test_teardown(a_host_engine_needs_no_root, end_node),
	};

	return cmocka_run_group_tests_name("dcgm_engine", tests, NULL, NULL);
}
