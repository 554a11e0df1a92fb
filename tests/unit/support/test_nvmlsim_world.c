/* tests/unit/support/test_nvmlsim_world.c - the simulator's world in motion against the scenario's truth, a day in fast-forward, forks, and
 * processes that register themselves. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/buf.h"
#include "common/base/time.h"
#include "tests/support/nvmlsim/truth.h"
#include "tests/support/exporter/simapi.h"

#define S NS_PER_S

static struct simnode node;
static struct simapi nvml;
static struct scenario *scenario;
static pid_t children[2];

static int
end_all(void **state)
{
	(void)state;
	unsetenv("TOLLGATE_SIM_LIVE");
	if (node.handle) {
		if (nvml.nvmlShutdown)
			nvml.nvmlShutdown();
		memset(&nvml, 0, sizeof(nvml));
		simnode_fini(&node);
	}
	scenario_free(take(scenario));
	for (size_t i = 0; i < ARRAY_LEN(children); i++)
		if (children[i] > 0) {
			kill(children[i], SIGKILL);
			waitpid(children[i], NULL, 0);
			children[i] = 0;
		}
	return 0;
}

static void
parse(const char *text)
{
	struct err err;

	scenario_free(take(scenario));
	if (!scenario_parse("test", text, strlen(text), &scenario, &err))
		fail_msg("%s", err.text);
}

/* ---- the truth ------------------------------------------------------------------------------------------------------ */

static const char mixed[] =
	"name: mixed\n"
	"gpus:\n"
	"  - {model: NVIDIA L40S, memory_mib: 46068, uuid: GPU-0, idle_watts: 100, max_watts: 300}\n"
	"  - model: NVIDIA A100-SXM4-80GB\n"
	"    memory_mib: 81920\n"
	"    uuid: GPU-1\n"
	"    mig: [{profile: 3g.40gb, uuid: MIG-a}, {profile: 1g.10gb, uuid: MIG-b}]\n"
	"    repartition: [{at: 60s, mig: off}]\n"
	"processes:\n"
	"  - {pid: 10, gpu: 0, end: 30s, sm: 60, memory_mib: 1, uid: 1, forks: [{pid: 11, after: 10s, sm: 60, memory_mib: 2}]}\n"
	"  - {pid: 20, gpu: 0, start: 20s, end: 40s, sm: 30, uid: 2}\n"
	"  - {pid: 30, gpu: 1, instance: 0, start: 10s, sm: 50, cgroup: /system.slice/slurmstepd.scope/job_7/step_0, uid: 3}\n"
	"  - {pid: 40, gpu: 1, sm: 100, pod: {namespace: team, name: web-0}}\n"
	"faults: [{gpu: 0, at: 90s, until: 95s, lost: true}, {at: 99s, unloaded: true}]\n";

static void
assert_row(const struct truth *t, const char *device, const char *workload, int64_t present_ns, int64_t held_unit_s,
           int64_t used_unit_s, int64_t over_unit_s)
{
	const struct truth_row *row = truth_find(t, device, workload);

	if (!row)
		fail_msg("%s has no row for %s", device, workload);
	assert_int_equal(row->present_ns, present_ns);
	assert_true(row->held == (int128)held_unit_s * S * TRUTH_PARTS);
	assert_true(row->used == (int128)used_unit_s * S * TRUTH_PARTS);
	assert_true(row->over == (int128)over_unit_s * S * TRUTH_PARTS);
}

static void
the_truth_says_who_held_what_and_how_active(void **state)
{
	owned(truth) struct truth *t = NULL, *shared = NULL;

	(void)state;
	parse(mixed);
	t = truth_new(scenario, 0, 100 * S, 1);
	assert_int_equal(t->count, 4);
	/* alone for 20 s: 60 %, then 100 % with its fork; then a half for 10 s, of which all is used, and as much beyond it */
	assert_row(t, "GPU-0", "user/1", 30 * S, 20 * 5040 + 10 * 2520, 10 * 3024 + 10 * 5040 + 10 * 2520, 10 * 2520);
	assert_row(t, "GPU-0", "user/2", 20 * S, 10 * 2520 + 10 * 5040, 20 * 1512, 0);
	/* in its instance until the GPU is whole; the other one from then on */
	assert_row(t, "MIG-a", "slurm/7/3", 50 * S, 50 * 2340, 25 * 2340, 0);
	assert_row(t, "GPU-1", "pod/team/web-0/main", 39 * S, 39 * 5040, 39 * 5040, 0);
	assert_int_equal(t->down_ns[0], 5 * S);
	assert_int_equal(t->down_ns[1], 0);
	assert_int_equal(t->unloaded_ns[0], 1 * S);
	assert_true(t->free_unit_ns[0] == (int128)(100 - 5 - 1 - 40) * 5040 * S);
	assert_true(t->free_unit_ns[1] == ((int128)60 * 5040 - 50 * 2340) * S);
	/* 100 W, and 200 W more by activity */
	assert_true(t->energy_mw_ns[0] == (int128)(100 * 100000 + 10 * 120000 + 20 * 200000 + 10 * 60000) * S);

	shared = truth_new(scenario, 0, 100 * S, 4);
	assert_row(shared, "GPU-0", "user/1", 30 * S, 30 * 1260, 30 * 1260, 10 * (3024 - 1260) + 20 * (5040 - 1260));
	assert_row(shared, "MIG-a", "slurm/7/3", 50 * S, 50 * 2340, 25 * 2340, 0);
}

static void
what_is_held_free_and_down_adds_up_to_the_gpu(void **state)
{
	(void)state;
	parse(mixed);
	for (size_t g = 0; g < 2; g++) {
		owned(truth) struct truth *whole = truth_new(scenario, 0, 100 * S, 1);
		int128 held = 0;

		for (size_t i = 0; i < whole->count; i++)
			if (whole->rows[i].gpu == g)
				held += whole->rows[i].held;
		assert_true(held / TRUTH_PARTS + whole->free_unit_ns[g] +
		                    (int128)UNITS_PER_GPU * (whole->down_ns[g] + whole->unloaded_ns[g]) ==
		            (int128)UNITS_PER_GPU * 100 * S);
	}
}

/* ---- a day ---------------------------------------------------------------------------------------------------------- */

static void
a_day_of_many_short_processes_is_read_second_by_second(void **state)
{
	in_place(buf) struct buf text;
	owned(truth) struct truth *t = NULL;
	struct err err;
	char path[128];
	uint64_t energy;
	struct nvml_device *gpu;
	struct nvml_process_info entries[16];
	struct nvml_process_sample samples[128];
	uint64_t seen_us = 0;
	int64_t seconds = 0;

	(void)state;
	buf_init(&text, 4u << 20);
	buf_str(&text, "name: day\ngpus: [{model: NVIDIA L40S, memory_mib: 46068, accounting: true}]\nprocesses:\n");
	for (int i = 0; i < 2000; i++)
		buf_printf(&text, "  - {pid: %d, gpu: 0, start: %dms, end: %dms, sm: %d}\n", 1000 + i,
		           i * 43000 + i % 700, i * 43000 + i % 700 + 300 + i % 2000, 1 + i % 100);
	simnode_init(&node, buf_text(&text));
	simapi_load(&nvml, &node);
	assert_int_equal(nvml.nvmlInit_v2(), NVST_SUCCESS);
	assert_int_equal(nvml.nvmlDeviceGetHandleByIndex_v2(0, &gpu), NVST_SUCCESS);
	for (int64_t s = 1; s <= 86400; s++) {
		uint32_t count = 16, sampled = 128;

		node.set_time_ns(s * S);
		assert_int_equal(nvml.nvmlDeviceGetComputeRunningProcesses_v3(gpu, &count, entries), NVST_SUCCESS);
		seconds += count;
		if (nvml.nvmlDeviceGetProcessUtilization(gpu, samples, &sampled, seen_us) == NVST_SUCCESS)
			seen_us = samples[0].timestamp_us;
		assert_int_equal(nvml.nvmlDeviceGetTotalEnergyConsumption(gpu, &energy), NVST_SUCCESS);
	}
	snprintf(path, sizeof(path), "%s", node.scenario);
	assert_true(scenario_load(path, &scenario, &err));
	t = truth_new(scenario, 0, 86400 * S, 1);
	assert_int_equal(energy, (uint64_t)(t->energy_mw_ns[0] / S));
	assert_true(seconds > 1000 && seconds < 4000);
}

/* ---- processes ------------------------------------------------------------------------------------------------------ */

static void
a_fork_is_another_pid_of_the_same_workload(void **state)
{
	const struct gpu_reading *r;

	(void)state;
	simnode_init(&node, "name: x\n"
	                    "gpus: [{model: NVIDIA L40S, memory_mib: 46068}]\n"
	                    "processes:\n"
	                    "  - pid: 10\n"
	                    "    gpu: 0\n"
	                    "    end: 20s\n"
	                    "    pod: {namespace: team, name: web-0}\n"
	                    "    forks: [{pid: 11, after: 5s, lasts: 30s, sm: 3}, {pid: 12, after: 1s}]\n");
	simnode_show_processes(&node);
	r = simnode_read(&node, 6 * S, 0);
	assert_int_equal(r->process_count, 3);
	r = simnode_read(&node, 21 * S, 0);
	assert_int_equal(r->process_count, 1);
	assert_int_equal(r->processes[0].pid, 11);
	r = simnode_read(&node, 35 * S, 0);
	assert_int_equal(r->process_count, 0);
}

static void
mig_mode_goes_on_and_off(void **state)
{
	(void)state;
	simnode_init(&node, "name: x\n"
	                    "gpus:\n"
	                    "  - model: NVIDIA H100 80GB HBM3\n"
	                    "    memory_mib: 81559\n"
	                    "    repartition: [{at: 10s, mig: [7g.80gb]}, {at: 20s, mig: []}, {at: 30s, mig: off}]\n"
	                    "processes: [{pid: 10, gpu: 0, sm: 1}, {pid: 11, gpu: 0, instance: 0/0, sm: 1}]\n");
	assert_int_equal(simnode_read(&node, 9 * S, 0)->processes[0].pid, 10);
	assert_true(simnode_read(&node, 10 * S, 0)->mig);
	assert_int_equal(node.snapshot->gpus[0].processes[0].pid, 11);
	assert_int_equal(simnode_read(&node, 20 * S, 0)->instance_count, 0);
	assert_int_equal(node.snapshot->gpus[0].units_unallocated, UNITS_PER_GPU);
	assert_int_equal(node.snapshot->gpus[0].process_count, 0);
	assert_false(simnode_read(&node, 30 * S, 0)->mig);
	assert_int_equal(node.snapshot->gpus[0].processes[0].pid, 10);
}

/* ---- live registrations --------------------------------------------------------------------------------------------- */

static pid_t
child(size_t i)
{
	children[i] = fork();
	assert_true(children[i] >= 0);
	if (children[i] == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		pause();
		_exit(0);
	}
	return children[i];
}

static void
register_as(const char *dir, const char *name, const char *text)
{
	char from[256], to[256];
	struct err err;

	snprintf(from, sizeof(from), "%s/.%s", dir, name);
	snprintf(to, sizeof(to), "%s/%s", dir, name);
	assert_true(file_write_atomic(from, text, strlen(text), 0600, &err));
	assert_int_equal(rename(from, to), 0);
}

static void
real_processes_hold_simulated_gpus_while_they_live(void **state)
{
	const struct gpu_process *p;
	char dir[128], path[256], text[128];
	pid_t one, two;

	(void)state;
	one = child(0);
	two = child(1);
	simnode_init(&node,
	             "name: x\n"
	             "gpus:\n"
	             "  - {model: NVIDIA L40S, memory_mib: 46068}\n"
	             "  - {model: NVIDIA A100-SXM4-80GB, memory_mib: 81920, mig: [{profile: 3g.40gb, uuid: MIG-a}]}\n"
	             "processes: [{pid: 3, gpu: 0}]\n");
	snprintf(dir, sizeof(dir), "%s/live", node.dir);
	assert_int_equal(mkdir(dir, 0700), 0);
	setenv("TOLLGATE_SIM_LIVE", dir, 1);
	snprintf(text, sizeof(text), "{pid: %d, gpu: 0, sm: 40, memory_mib: 8}", (int)one);
	register_as(dir, "before", text);
	assert_int_equal(simnode_read(&node, 10 * S, 0)->process_count, 2);
	p = simnode_process(&node.snapshot->gpus[0], (uint32_t)one);
	assert_non_null(p);
	assert_int_equal(p->memory_bytes, 8 << 20);

	snprintf(text, sizeof(text), "pid: %d\ndevice: MIG-a\nsm: 10\n", (int)two);
	register_as(dir, "in-mig", text);
	assert_int_equal(simnode_read(&node, 11 * S, 1)->process_count, 1);
	assert_int_equal(simnode_process(&node.snapshot->gpus[0], (uint32_t)one)->sm_ppm, 400000);

	/* another file under the same name is another registration */
	snprintf(text, sizeof(text), "{pid: %d, gpu: 0, sm: 90}", (int)one);
	register_as(dir, "before", text);
	assert_int_equal(simnode_read(&node, 12 * S, 0)->process_count, 2);
	assert_int_equal(simnode_read(&node, 13 * S, 0)->process_count, 2);
	assert_int_equal(simnode_process(&node.snapshot->gpus[0], (uint32_t)one)->sm_ppm, 900000);

	snprintf(path, sizeof(path), "%s/before", dir);
	assert_int_equal(unlink(path), 0);
	assert_int_equal(simnode_read(&node, 14 * S, 0)->process_count, 1);

	/* the process ends, its file stays */
	kill(two, SIGKILL);
	waitpid(two, NULL, 0);
	children[1] = 0;
	assert_int_equal(simnode_read(&node, 15 * S, 1)->process_count, 0);

	/* a registration that is wrong harms no other */
	register_as(dir, "wrong", "{pid: 1, gpu: 9}");
	snprintf(text, sizeof(text), "{pid: %d, gpu: 0}", (int)one);
	register_as(dir, "right", text);
	assert_int_equal(simnode_read(&node, 16 * S, 0)->process_count, 2);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(the_truth_says_who_held_what_and_how_active, end_all),
		cmocka_unit_test_teardown(what_is_held_free_and_down_adds_up_to_the_gpu, end_all),
		cmocka_unit_test_teardown(a_day_of_many_short_processes_is_read_second_by_second, end_all),
		cmocka_unit_test_teardown(a_fork_is_another_pid_of_the_same_workload, end_all),
		cmocka_unit_test_teardown(mig_mode_goes_on_and_off, end_all),
		cmocka_unit_test_teardown(real_processes_hold_simulated_gpus_while_they_live, end_all),
	};

	return cmocka_run_group_tests_name("nvmlsim: the world", tests, NULL, NULL);
}
