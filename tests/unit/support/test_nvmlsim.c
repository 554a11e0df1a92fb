/* tests/unit/support/test_nvmlsim.c - the simulator itself: what its functions answer, the folders it keeps, the files it refuses,
 * and the scenarios of the demo. */
/* tsan */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/buf.h"
#include "common/base/time.h"
#include "tests/support/exporter/simapi.h"

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

static struct simapi nvml;

static void
load_nvml(void)
{
	simapi_load(&nvml, &node);
}

/* ---- answers -------------------------------------------------------------------------------------------------------- */

static const char two_kinds[] = "name: kinds\n"
				"gpus:\n"
				"  - {model: NVIDIA L40S, memory_mib: 46068}\n"
				"  - {model: NVIDIA A100-SXM4-80GB, memory_mib: 81920, mig: [3g.40gb]}\n"
				"processes:\n"
				"  - {pid: 10, gpu: 0, sm: 10, memory_mib: 1}\n"
				"  - {pid: 11, gpu: 0, sm: 10, memory_mib: 1}\n"
				"  - {pid: 12, gpu: 1, instance: 0, sm: 10, memory_mib: 1}\n";

static void
nothing_answers_before_init_and_after_shutdown(void **state)
{
	char text[96];
	uint32_t count;

	(void)state;
	simnode_init(&node, two_kinds);
	load_nvml();
	assert_int_equal(nvml.nvmlShutdown(), NVST_SUCCESS);
	assert_int_equal(nvml.nvmlDeviceGetCount_v2(&count), NVST_UNINITIALIZED);
	assert_int_equal(nvml.nvmlSystemGetDriverVersion(text, sizeof(text)), NVST_UNINITIALIZED);
	assert_int_equal(nvml.nvmlSystemGetNVMLVersion(text, sizeof(text)), NVST_SUCCESS);
	assert_int_equal(nvml.nvmlInit_v2(), NVST_SUCCESS);
	assert_int_equal(nvml.nvmlInit_v2(), NVST_SUCCESS);
	assert_int_equal(nvml.nvmlShutdown(), NVST_SUCCESS);
	assert_int_equal(nvml.nvmlDeviceGetCount_v2(&count), NVST_SUCCESS);
	assert_int_equal(count, 2);
	assert_int_equal(nvml.nvmlShutdown(), NVST_SUCCESS);
	assert_int_equal(nvml.nvmlDeviceGetCount_v2(&count), NVST_UNINITIALIZED);
}

static void
sizes_are_asked_for_as_with_the_real_library(void **state)
{
	struct nvml_process_info entries[4];
	struct nvml_process_sample samples[100];
	struct nvml_device *gpu;
	uint32_t count = 0;
	char small[8];

	(void)state;
	simnode_init(&node, two_kinds);
	load_nvml();
	node.set_time_ns(5 * S);
	assert_int_equal(nvml.nvmlInit_v2(), NVST_SUCCESS);
	assert_int_equal(nvml.nvmlDeviceGetHandleByIndex_v2(0, &gpu), NVST_SUCCESS);
	assert_int_equal(nvml.nvmlDeviceGetUUID(gpu, small, sizeof(small)), NVST_INSUFFICIENT_SIZE);

	assert_int_equal(nvml.nvmlDeviceGetComputeRunningProcesses_v3(gpu, &count, NULL), NVST_INSUFFICIENT_SIZE);
	assert_int_equal(count, 2);
	count = 1;
	assert_int_equal(nvml.nvmlDeviceGetComputeRunningProcesses_v3(gpu, &count, entries), NVST_INSUFFICIENT_SIZE);
	assert_int_equal(count, 2);
	count = 4;
	assert_int_equal(nvml.nvmlDeviceGetComputeRunningProcesses_v3(gpu, &count, NULL), NVST_INVALID_ARGUMENT);
	assert_int_equal(nvml.nvmlDeviceGetComputeRunningProcesses_v3(gpu, NULL, entries), NVST_INVALID_ARGUMENT);
	count = 4;
	assert_int_equal(nvml.nvmlDeviceGetComputeRunningProcesses_v3(gpu, &count, entries), NVST_SUCCESS);
	assert_int_equal(count, 2);
	assert_int_equal(entries[1].pid, 11);
	assert_int_equal(entries[1].gi, NVML_NO_INSTANCE);
	count = 0;
	assert_int_equal(nvml.nvmlDeviceGetGraphicsRunningProcesses_v3(gpu, &count, NULL), NVST_SUCCESS);

	assert_int_equal(nvml.nvmlDeviceGetProcessUtilization(gpu, NULL, &count, 0), NVST_INSUFFICIENT_SIZE);
	assert_int_equal(count, 100);
	assert_int_equal(nvml.nvmlDeviceGetProcessUtilization(gpu, samples, &count, 0), NVST_SUCCESS);
	assert_int_equal(count, 2);
	count = 100;
	assert_int_equal(nvml.nvmlDeviceGetProcessUtilization(gpu, samples, &count, samples[0].timestamp_us),
	                 NVST_NOT_FOUND);
	nvml.nvmlShutdown();
}

static void
a_partitioned_gpu_does_not_support_what_real_ones_do_not(void **state)
{
	struct nvml_memory memory = {.version = NVML_MEMORY_V2};
	struct nvml_device *whole, *gpu, *mig;
	struct nvml_utilization rates;
	struct nvml_process_info entry;
	struct nvml_attributes attributes;
	uint32_t current, pending, count = 0;
	uint64_t millijoules;

	(void)state;
	simnode_init(&node, two_kinds);
	load_nvml();
	assert_int_equal(nvml.nvmlInit_v2(), NVST_SUCCESS);
	assert_int_equal(nvml.nvmlDeviceGetHandleByIndex_v2(0, &whole), NVST_SUCCESS);
	assert_int_equal(nvml.nvmlDeviceGetHandleByIndex_v2(1, &gpu), NVST_SUCCESS);
	assert_int_equal(nvml.nvmlDeviceGetHandleByIndex_v2(2, &mig), NVST_INVALID_ARGUMENT);
	assert_int_equal(nvml.nvmlDeviceGetMigMode(whole, &current, &pending), NVST_NOT_SUPPORTED);
	assert_int_equal(nvml.nvmlDeviceGetMigMode(gpu, &current, &pending), NVST_SUCCESS);
	assert_int_equal(current, 1);
	assert_int_equal(nvml.nvmlDeviceGetMaxMigDeviceCount(whole, &count), NVST_SUCCESS);
	assert_int_equal(count, 0);
	assert_int_equal(nvml.nvmlDeviceGetMaxMigDeviceCount(gpu, &count), NVST_SUCCESS);
	assert_int_equal(count, 7);
	assert_int_equal(nvml.nvmlDeviceGetMigDeviceHandleByIndex(whole, 0, &mig), NVST_NOT_SUPPORTED);
	assert_int_equal(nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, 0, &mig), NVST_NOT_FOUND);
	assert_int_equal(nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, 7, &mig), NVST_INVALID_ARGUMENT);
	assert_int_equal(nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, 1, &mig), NVST_SUCCESS);
	assert_int_equal(nvml.nvmlDeviceGetUtilizationRates(gpu, &rates), NVST_NOT_SUPPORTED);
	assert_int_equal(nvml.nvmlDeviceGetUtilizationRates(mig, &rates), NVST_NOT_SUPPORTED);
	assert_int_equal(nvml.nvmlDeviceGetProcessUtilization(gpu, NULL, &count, 0), NVST_NOT_SUPPORTED);
	assert_int_equal(nvml.nvmlDeviceGetTotalEnergyConsumption(mig, &millijoules), NVST_NOT_SUPPORTED);
	assert_int_equal(nvml.nvmlDeviceGetAttributes_v2(gpu, &attributes), NVST_NOT_SUPPORTED);
	assert_int_equal(nvml.nvmlDeviceGetAttributes_v2(mig, &attributes), NVST_SUCCESS);
	assert_int_equal(attributes.gi_slices, 3);
	assert_int_equal(nvml.nvmlDeviceGetGpuInstanceId(gpu, &current), NVST_NOT_SUPPORTED);
	assert_int_equal(nvml.nvmlDeviceGetMemoryInfo_v2(mig, &memory), NVST_SUCCESS);
	memory.version = 1;
	assert_int_equal(nvml.nvmlDeviceGetMemoryInfo_v2(mig, &memory), NVST_ARGUMENT_VERSION_MISMATCH);
	count = 1;
	assert_int_equal(nvml.nvmlDeviceGetComputeRunningProcesses_v3(mig, &count, &entry), NVST_SUCCESS);
	assert_int_equal(entry.pid, 12);
	assert_int_equal(entry.gi, 1);
	assert_int_equal(nvml.nvmlDeviceGetTemperature(whole, 1, &current), NVST_INVALID_ARGUMENT);
	assert_int_equal(nvml.nvmlDeviceGetUUID(NULL, (char[96]){0}, 96), NVST_INVALID_ARGUMENT);
	nvml.nvmlShutdown();
}

static void *
read_in_a_thread(void *arg)
{
	struct nvml_process_info entries[4];
	struct nvml_device *gpu;

	(void)arg;
	for (int i = 0; i < 200; i++) {
		uint32_t count = 4;

		if (nvml.nvmlInit_v2() != NVST_SUCCESS || nvml.nvmlDeviceGetHandleByIndex_v2(0, &gpu) != NVST_SUCCESS ||
		    nvml.nvmlDeviceGetComputeRunningProcesses_v3(gpu, &count, entries) != NVST_SUCCESS || count != 2)
			return arg;
		node.set_time_ns(i * S);
		nvml.nvmlShutdown();
	}
	return NULL;
}

static void
threads_may_call_at_the_same_time(void **state)
{
	pthread_t threads[4];
	void *failed;

	(void)state;
	simnode_init(&node, two_kinds);
	load_nvml();
	for (size_t i = 0; i < ARRAY_LEN(threads); i++)
		assert_int_equal(pthread_create(&threads[i], NULL, read_in_a_thread, &node), 0);
	for (size_t i = 0; i < ARRAY_LEN(threads); i++) {
		assert_int_equal(pthread_join(threads[i], &failed), 0);
		assert_null(failed);
	}
}

/* What the library writes to stderr while it opens. */
static void
open_and_hear(char *out, size_t size)
{
	char path[128];
	struct err err;
	int kept = dup(STDERR_FILENO), file;
	ssize_t n;

	snprintf(path, sizeof(path), "%s/stderr", node.dir);
	file = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	assert_true(kept >= 0 && file >= 0);
	dup2(file, STDERR_FILENO);
	for (int i = 0; i < 2; i++)
		if (simnode_try_open(&node, &err) || err.kind != ERR_INVALID)
			err_set(&err, ERR_NONE, "opened");
	dup2(kept, STDERR_FILENO);
	n = pread(file, out, size - 1, 0);
	out[n > 0 ? n : 0] = '\0';
	close(kept);
	close(file);
	assert_int_equal(err.kind, ERR_INVALID);
}

/* ---- processes as /proc shows them ---------------------------------------------------------------------------------- */

static void
assert_file(const char *folder, const char *name, const char *expected)
{
	in_place(buf) struct buf text;
	char path[512];
	struct err err;

	snprintf(path, sizeof(path), "%s/%s", folder, name);
	buf_init(&text, 65536);
	if (!buf_read_file(&text, path, &err))
		fail_msg("%s", err.text);
	if (!strstr(buf_text(&text), expected))
		fail_msg("%s has not \"%s\" but: %s", name, expected, buf_text(&text));
}

static bool
exists(const char *folder, const char *name)
{
	char path[512];

	snprintf(path, sizeof(path), "%s/%s", folder, name);
	return access(path, F_OK) == 0;
}

static bool
has_prefixed(const char *folder, const char *prefix)
{
	DIR *dir = opendir(folder);
	const struct dirent *entry;
	bool found = false;

	assert_non_null(dir);
	while (!found && (entry = readdir(dir)))
		found = strncmp(entry->d_name, prefix, strlen(prefix)) == 0 && entry->d_name[strlen(prefix)] == '_';
	closedir(dir);
	return found;
}

static const char identities[] =
	"name: identities\n"
	"gpus: [{model: NVIDIA L40S, memory_mib: 46068}]\n"
	"processes:\n"
	"  - {pid: 10, gpu: 0, uid: 20001, comm: 'a (b) c'}\n"
	"  - {pid: 11, gpu: 0, start: 2s, end: 4s, cgroup: /system.slice/slurmstepd.scope/job_77/step_0}\n"
	"  - {pid: 12, gpu: 0, end: 5s, pod: {namespace: team, name: web-0, uid: 0a1b2c3d-0000-1111-2222-333344445555, container: app}}\n"
	"  - {pid: 13, gpu: 0, start: 1s, end: 7s, pod: {namespace: team, name: web-0, uid: 0a1b2c3d-0000-1111-2222-333344445555, container: side}}\n"
	"  - {pid: 500, gpu: 0, start: 1s, end: 2s, every: 3s, fresh_pids: true}\n"
	"  - {pid: 1600, gpu: 0, start: 1s, end: 2s, every: 3s}\n";

/* With SIMNODE_T0_NS = 5000.123456789 s and 100 ticks a second. */
static void
processes_come_and_go_in_a_folder_like_proc(void **state)
{
	(void)state;
	if (sysconf(_SC_CLK_TCK) != 100)
		skip();
	simnode_init(&node, identities);
	simnode_show_processes(&node);
	simnode_read(&node, 1500 * NS_PER_MS, 0);
	assert_file(node.proc, "10/stat", "10 (a (b) c) S 1 10 10 0 -1 4194304 100 0 0 0 5 2 0 0 20 0 1 0 500012 ");
	assert_file(node.proc, "10/status", "\nUid:\t20001\t20001\t20001\t20001\n");
	assert_file(node.proc, "10/cgroup", "0::/user.slice/user-20001.slice/session-1.scope\n");
	assert_file(
		node.proc, "12/cgroup",
		"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod0a1b2c3d_0000_1111_2222_333344445555.slice/"
		"cri-containerd-");
	assert_file(node.proc, "500/stat", " 500112 ");
	assert_file(node.proc, "1600/stat", " 500112 ");
	assert_false(exists(node.proc, "11"));
	assert_false(exists(node.proc, ".new"));

	simnode_read(&node, 2 * S, 0);
	assert_file(node.proc, "11/cgroup", "0::/system.slice/slurmstepd.scope/job_77/step_0\n");
	assert_false(exists(node.proc, "500"));

	/* the second run: another PID where they are fresh, the same PID with another start where they are not */
	simnode_read(&node, 4 * S, 0);
	assert_false(exists(node.proc, "11"));
	assert_false(exists(node.proc, "500"));
	assert_file(node.proc, "501/stat", " 500412 ");
	assert_file(node.proc, "1600/stat", " 500412 ");
}

static void
pods_have_a_folder_while_one_of_their_processes_lives(void **state)
{
	static const char pod[] = "team_web-0_0a1b2c3d-0000-1111-2222-333344445555";

	(void)state;
	simnode_init(&node, identities);
	simnode_show_processes(&node);
	simnode_read(&node, 1500 * NS_PER_MS, 0);
	assert_true(exists(node.pods, pod));
	assert_true(exists(node.pods, "team_web-0_0a1b2c3d-0000-1111-2222-333344445555/app"));
	assert_true(exists(node.pods, "team_web-0_0a1b2c3d-0000-1111-2222-333344445555/side"));
	simnode_read(&node, 6 * S, 0);
	assert_true(exists(node.pods, pod));
	simnode_read(&node, 7 * S, 0);
	assert_false(exists(node.pods, pod));
}

static void
folders_are_taken_over_from_an_earlier_run_and_no_others(void **state)
{
	char path[512], heard[2048];
	struct err err;

	(void)state;
	simnode_init(&node, identities);
	simnode_show_processes(&node);
	simnode_read(&node, S, 0);
	assert_true(exists(node.proc, "12"));
	/* killed and started again after the process ended */
	gpu_source_free(take(node.source));
	simnode_read(&node, 6 * S, 0);
	assert_false(exists(node.proc, "12"));
	assert_true(exists(node.proc, "13"));

	gpu_source_free(take(node.source));
	snprintf(path, sizeof(path), "%s/precious", node.dir);
	assert_true(file_write_atomic(path, "x", 1, 0600, &err));
	setenv("TOLLGATE_SIM_PROC", node.dir, 1);
	open_and_hear(heard, sizeof(heard));
	assert_non_null(strstr(heard, " is not empty and not the simulator's"));
	assert_true(exists(node.dir, "precious"));
}

/* ---- scenarios that are refused ------------------------------------------------------------------------------------- */

#define GPU "gpus: [{model: NVIDIA L40S, memory_mib: 46068}]\n"
#define MIG "gpus: [{model: NVIDIA A100-SXM4-80GB, memory_mib: 81920, mig: [3g.40gb]}]\n"

static const struct {
	const char *text;
	const char *says;
} refused[] = {
	{"gpus: []\n", ":1: name is missing"},
	{"name: x\ncolour: red\n", ":2: "},
	{"name: x\ndriver_quirk: fast\n", ":2: the driver_quirk \"fast\" is not known"},
	{"name: x\ngpus:\n  - {model: NVIDIA L40S}\n", ":3: "},
	{"name: x\ngpus: [{model: NVIDIA L40S, memory_mib: 46068, mig: [3g.40gb]}]\n",
         ":2: a NVIDIA L40S cannot be partitioned"},
	{"name: x\ngpus: [{model: NVIDIA A100-SXM4-80GB, memory_mib: 81920, mig: [9g.90gb]}]\n",
         ":2: the MIG profile \"9g.90gb\""},
	{"name: x\ngpus: [{model: NVIDIA A100-SXM4-80GB, memory_mib: 81920, mig: [4g.40gb, 4g.40gb]}]\n",
         ":2: these instances do not fit"},
	{"name: x\ngpus: [{model: NVIDIA L40S, memory_mib: 46068, count: 2, uuid: GPU-1}]\n",
         ":2: a uuid belongs to one GPU"},
	{"name: x\ngpus: [{model: NVIDIA L40S, memory_mib: 46068, idle_watts: 9, max_watts: 8}]\n",
         ":2: max_watts 8 is below"},
	{"name: x\n" GPU "processes:\n  - {pid: 2, gpu: 1}\n", ":4: gpu 1 does not exist: there are 1"},
	{"name: x\n" GPU "processes:\n  - {pid: 2, gpu: 0, instance: 0}\n", ":4: GPU 0 has no instance 0"},
	{"name: x\n" MIG "processes:\n  - {pid: 2, gpu: 0}\n", ":4: GPU 0 is partitioned"},
	{"name: x\n" GPU "processes:\n  - {pid: 2, gpu: 0, start: 5s, end: 5s}\n", ":4: end must be after start"},
	{"name: x\n" GPU "processes:\n  - {pid: 2, gpu: 0, every: 5s}\n", ":4: a process that repeats has an end"},
	{"name: x\n" GPU "processes:\n  - {pid: 2, gpu: 0, end: 6s, every: 5s}\n", ":4: a run is longer"},
	{"name: x\n" GPU "processes:\n  - {pid: 2, gpu: 0, start: 5}\n", ":4: start: "},
	{"name: x\n" GPU "processes:\n  - {pid: 2, gpu: 0}\n  - {pid: 2, gpu: 0}\n",
         ":5: PID 2 belongs to the process of line 4 too"},
	{"name: x\n" GPU "processes:\n  - {pid: 2, gpu: 0, pod: {namespace: a, name: ../b}}\n",
         ":4: the words of a pod"},
	{"name: x\n" GPU "processes:\n  - {pid: 2, gpu: 0, sm: 101}\n", ":4: "},
	{"name: x\n" GPU "faults:\n  - {gpu: 0, at: 5s}\n", ":4: a fault is one of lost"},
	{"name: x\n" GPU "faults:\n  - {at: 5s, lost: true}\n", ":4: unloaded concerns the driver"},
	{"name: x\ngpm_metrics: 99\n", ":2: gpm_metrics is 98, 210 or 333, as drivers have it, and not 99"},
	{"name: x\ngpus: [{model: NVIDIA L40S, memory_mib: 46068, readings: ['power_mw=1']}]\n",
         ":2: readings: \"power_mw=1\" is not a duration"},
	{"name: x\ngpus: [{model: NVIDIA L40S, memory_mib: 46068, readings: ['1s colour=1']}]\n",
         ":2: readings: \"colour\" is not known"},
	{"name: x\ngpus: [{model: NVIDIA L40S, memory_mib: 46068, readings: ['1s power_mw=1.5']}]\n",
         ":2: readings: \"power_mw=1.5\": the value is a number, or - for none"},
	{"name: x\ngpus: [{model: NVIDIA L40S, memory_mib: 46068, readings: ['1s @1 active=1']}]\n",
         ":2: readings: \"@1\" is not an instance like @1/0"},
	{"name: x\ngpus: [{model: NVIDIA L40S, memory_mib: 46068, readings: ['2s active=1', '1s active=1']}]\n",
         ":2: readings: readings are in order of their time"},
	{"name: x\ngpus: [{model: NVIDIA A100-SXM4-80GB, memory_mib: 81920, mig: [{profile: 3g.40gb, placement: 2}]}]\n",
         ":2: these instances do not fit"},
	{"name: x\n" GPU "processes:\n  - {pid: 2, gpu: 0, activity: '1s sm=101'}\n",
         ":4: activity: \"sm=101\" is none of sm=0..100"},
	{"name: x\n" GPU "processes:\n  - {pid: 2, gpu: 0, activity: '2s sm=1; 1s sm=2'}\n",
         ":4: activity: phases are in order"},
	{"name: x\n" GPU "processes:\n  - {pid: 2, gpu: 0, end: 5s, forks: [{pid: 3, after: 5s}]}\n",
         ":4: the fork begins at or after the end"},
	{"name: x\n" GPU "processes:\n  - {pid: 2, gpu: 0, forks: [{pid: 2}]}\n",
         ":4: PID 2 belongs to the process of line 4 too"},
	{"name: x\n" MIG "processes:\n  - {pid: 2, gpu: 0, instance: 9/9}\n", ":4: GPU 0 has no instance 9/9"},
	{"name: x\n" GPU "calls:\n  - {name: fopen, hang: true}\n", ":4: name \"fopen\" is neither a function of NVML"},
	{"name: x\n" GPU "calls:\n  - {name: nvmlDeviceGetUUID}\n", ":4: a call has a delay, a status, or hang: true"},
	{"name: x\n" GPU "xids:\n  - {gpu: 0, xid: 0}\n", ":4: "},
	{"name: x\n" GPU "xids:\n  - {gpu: 0, xid: 79, instance: 0}\n", ":4: GPU 0 has no instance 0 then"},
	{"name: x\nclock_steps: [{at: 5s}]\n", ":2: a clock step goes forward or back"},
	{"name: x\n" GPU "processes:\n  - {pid: 2, gpu: 0, start: 36500d}\n",
         ":4: start: \"36500d\" is more than 73 years"},
};

static void
a_wrong_scenario_is_refused_with_its_line_once(void **state)
{
	char heard[2048], start[256];

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(refused); i++) {
		simnode_init(&node, refused[i].text);
		open_and_hear(heard, sizeof(heard));
		snprintf(start, sizeof(start), "nvmlsim: %s%s", node.scenario, refused[i].says);
		if (strncmp(heard, start, strlen(start)) != 0 || strchr(heard, '\n') != strrchr(heard, '\n'))
			fail_msg("expected \"%s\" once, heard: %s", start, heard);
		simnode_fini(&node);
	}
	simnode_init(&node, "name: x\n");
	unsetenv("TOLLGATE_SIM_SCENARIO");
	open_and_hear(heard, sizeof(heard));
	assert_string_equal(heard, "nvmlsim: TOLLGATE_SIM_SCENARIO does not name a scenario file\n");
}

/* ---- the demo ------------------------------------------------------------------------------------------------------- */

/* Held from the first second by pods of these namespaces, and by a user of the node. */
static void
every_workspace_of_the_demo_holds_something_from_the_start(void **state)
{
	static const struct {
		const char *file;
		size_t gpus;
		const char *pids[4]; /* and what their cgroup or uid says */
		const char *pods[3];
	} demo[] = {
		{"deploy/demo/h100.yaml",
	         8,
	         {"41001", "42001", "43001"},
	         {"acme-training", "acme-inference", "globex-research"}},
		{"deploy/demo/mig.yaml", 2, {"51001", "51002", "53001"}, {"acme-inference", "globex-research"}},
		{"deploy/demo/timeslice.yaml", 1, {"61001", "61002", "61003"}, {"globex-research", "acme-training"}},
	};

	(void)state;
	for (size_t d = 0; d < ARRAY_LEN(demo); d++) {
		size_t least = SIZE_MAX, most = 0;

		simnode_init_file(&node, demo[d].file);
		simnode_show_processes(&node);
		simnode_read(&node, 0, 0);
		assert_int_equal(node.snapshot->count, demo[d].gpus);
		for (size_t i = 0; i < 4 && demo[d].pids[i]; i++)
			assert_true(exists(node.proc, demo[d].pids[i]));
		for (size_t i = 0; i < 3 && demo[d].pods[i]; i++)
			assert_true(has_prefixed(node.pods, demo[d].pods[i]));
		/* something happens within two minutes, and no GPU ever loses a unit */
		for (int64_t t = 0; t < 120; t++) {
			size_t holders = 0;

			simnode_read(&node, t * S, 0);
			for (size_t g = 0; g < node.snapshot->count; g++) {
				const struct gpu_reading *r = &node.snapshot->gpus[g];
				int64_t units = r->units_unallocated + r->units_stranded;

				assert_false(r->down);
				for (size_t i = 0; i < r->instance_count; i++)
					units += r->instances[i].units;
				assert_int_equal(units, r->mig ? UNITS_PER_GPU : 0);
				holders += r->process_count;
			}
			least = holders < least ? holders : least;
			most = holders > most ? holders : most;
		}
		assert_true(least < most);
		if (d == 2)
			assert_file(node.proc, "61003/status", "Uid:\t20001\t");
		simnode_fini(&node);
	}
}

static void
the_demo_strands_a_slice_and_leaves_a_gpu_free(void **state)
{
	(void)state;
	simnode_init_file(&node, "deploy/demo/mig.yaml");
	assert_int_equal(simnode_read(&node, 0, 0)->units_stranded, 0);
	assert_int_equal(simnode_read(&node, 0, 1)->units_stranded, 360);
	simnode_fini(&node);
	simnode_init_file(&node, "deploy/demo/h100.yaml");
	assert_int_equal(simnode_read(&node, 10 * S, 7)->process_count, 0);
	assert_int_equal(simnode_read(&node, 40 * S, 7)->process_count, 1);
	assert_int_equal(simnode_read(&node, 40 * S, 6)->active_ppm, 0);
	assert_int_equal(simnode_read(&node, 40 * S, 6)->process_count, 1);
	assert_true(simnode_read(&node, 40 * S, 0)->active_ppm >= 880000);
	simnode_fini(&node);
	simnode_init_file(&node, "deploy/demo/timeslice.yaml");
	assert_int_equal(simnode_read(&node, 10 * S, 0)->process_count, 3);
	assert_int_equal(simnode_read(&node, 25 * S, 0)->process_count, 4);
	assert_false(simnode_read(&node, 25 * S, 0)->mig);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(nothing_answers_before_init_and_after_shutdown, end_node),
		cmocka_unit_test_teardown(sizes_are_asked_for_as_with_the_real_library, end_node),
		cmocka_unit_test_teardown(a_partitioned_gpu_does_not_support_what_real_ones_do_not, end_node),
		cmocka_unit_test_teardown(threads_may_call_at_the_same_time, end_node),
		cmocka_unit_test_teardown(processes_come_and_go_in_a_folder_like_proc, end_node),
		cmocka_unit_test_teardown(pods_have_a_folder_while_one_of_their_processes_lives, end_node),
		cmocka_unit_test_teardown(folders_are_taken_over_from_an_earlier_run_and_no_others, end_node),
		cmocka_unit_test_teardown(a_wrong_scenario_is_refused_with_its_line_once, end_node),
		cmocka_unit_test_teardown(every_workspace_of_the_demo_holds_something_from_the_start, end_node),
		cmocka_unit_test_teardown(the_demo_strands_a_slice_and_leaves_a_gpu_free, end_node),
	};

	return cmocka_run_group_tests_name("nvmlsim", tests, NULL, NULL);
}
