/* tests/unit/exporter/record/test_record.c - a simulated node is recorded through the source as a real one would be, and the recording is replayed:
 * the readings are the same, tick by tick. */
/* tsan */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/buf.h"
#include "common/base/time.h"
#include "exporter/record/record.h"
#include "exporter/record/record_file.h"
#include "tests/support/nvmlsim/sim_scenario.h"
#include "tests/support/exporter/simnode.h"

#define S NS_PER_S
#define TICKS 60
#define WALL0_NS (INT64_C(1700000000) * S)

static struct simnode node, replay;
static struct recorder *recorder;
static struct gpu_snapshot *kept[TICKS];
static char dir[128];

static int
end_all(void **state)
{
	char path[256];
	struct err err;

	(void)state;

	if (!recorder_close(take(recorder), 10 * S, &err))
		fail_msg("%s", err.text);
	for (size_t i = 0; i < TICKS; i++)
		gpu_snapshot_free(take(kept[i]));
	if (node.handle)
		simnode_fini(&node);
	if (replay.handle)
		simnode_fini(&replay);
	for (int i = 1; i < 20; i++) {
		snprintf(path, sizeof(path), "%s/recording-%04d.yaml", dir, i);
		unlink(path);
	}
	rmdir(dir);
	return 0;
}

static void
begin(const char *yaml, size_t file_bytes)
{
	struct recorder_options o = {.dir = dir, .node = "gn \"1\"", .proc_root = node.proc, .file_bytes = file_bytes};
	struct err err;

	simnode_init(&node, yaml);
	simnode_show_processes(&node);
	simnode_open(&node); /* makes the folder like /proc */
	snprintf(dir, sizeof(dir), "/tmp/record-%d", (int)getpid());
	assert_true(recorder_new(&o, &recorder, &err));
}

/* A copy that outlives the next reading. */
static struct gpu_snapshot *
copy(const struct gpu_snapshot *s)
{
	struct gpu_snapshot *c = gpu_snapshot_new();

	gpu_snapshot_resize(c, s->count);
	for (size_t i = 0; i < s->count; i++) {
		const struct gpu_reading *r = &s->gpus[i];

		c->gpus[i] = *r;
		c->gpus[i].processes = mem_array(r->process_count, sizeof(*r->processes));
		c->gpus[i].exits = mem_array(r->exit_count, sizeof(*r->exits));
		if (r->process_count)
			memcpy(c->gpus[i].processes, r->processes, r->process_count * sizeof(*r->processes));
		if (r->exit_count)
			memcpy(c->gpus[i].exits, r->exits, r->exit_count * sizeof(*r->exits));
	}
	return c;
}

static void
record_tick(int64_t t_ns)
{
	struct err err;

	simnode_read(&node, t_ns, 0);
	if (!recorder_take(recorder, node.snapshot, "550.163.01", "12.550.163.01", WALL0_NS + t_ns, &err))
		fail_msg("%s", err.text);
}

static void
finish(void)
{
	struct err err;

	if (!recorder_close(take(recorder), 10 * S, &err))
		fail_msg("%s", err.text);
}

/* ---- comparing ------------------------------------------------------------------------------------------------------ */

static const struct {
	const char *name;
	size_t offset;
} numbers[] = {
#define NUMBER(f)                                   \
	{                                           \
#f, offsetof(struct gpu_reading, f) \
	}
	NUMBER(units_unallocated),
	NUMBER(units_stranded),
	NUMBER(active_ppm),
	NUMBER(memory_active_ppm),
	NUMBER(memory_bytes),
	NUMBER(memory_used_bytes),
	NUMBER(power_mw),
	NUMBER(energy_mj),
	NUMBER(temperature_c),
	NUMBER(sm_active_ppm),
	NUMBER(sm_occupancy_ppm),
	NUMBER(tensor_active_ppm),
	NUMBER(dram_active_ppm),
	NUMBER(board.graphics_clock_mhz),
	NUMBER(board.sm_clock_mhz),
	NUMBER(board.memory_clock_mhz),
	NUMBER(board.video_clock_mhz),
	NUMBER(board.memory_temperature_c),
	NUMBER(board.power_limit_mw),
	NUMBER(board.throttle_reasons),
	NUMBER(board.encoder_ppm),
	NUMBER(board.decoder_ppm),
	NUMBER(board.memory_reserved_bytes),
	NUMBER(board.memory_free_bytes),
	NUMBER(board.ecc_corrected),
	NUMBER(board.ecc_uncorrected),
	NUMBER(board.remapped_corrected),
	NUMBER(board.remapped_uncorrected),
	NUMBER(board.remap_pending),
	NUMBER(board.remap_failed),
	NUMBER(board.pcie_tx_bytes_per_s),
	NUMBER(board.pcie_rx_bytes_per_s),
	NUMBER(board.pcie_replays),
	NUMBER(board.pcie_generation),
	NUMBER(board.pcie_width),
	NUMBER(board.nvlink_tx_bytes),
	NUMBER(board.nvlink_rx_bytes),
#undef NUMBER
};

static void
assert_same_instances(const struct gpu_reading *was, const struct gpu_reading *is)
{
	assert_int_equal(is->instance_count, was->instance_count);
	for (size_t i = 0; i < was->instance_count; i++) {
		const struct gpu_instance *a = &was->instances[i], *b = &is->instances[i];

		assert_string_equal(b->uuid, a->uuid);
		assert_string_equal(b->profile, a->profile);
		assert_int_equal(b->gi, a->gi);
		assert_int_equal(b->ci, a->ci);
		assert_int_equal(b->units, a->units);
		assert_int_equal(b->placement_start, a->placement_start);
		assert_int_equal(b->placement_size, a->placement_size);
		assert_int_equal(b->memory_bytes, a->memory_bytes);
		assert_int_equal(b->memory_used_bytes, a->memory_used_bytes);
		assert_int_equal(b->active_ppm, a->active_ppm);
		assert_int_equal(b->sm_active_ppm, a->sm_active_ppm);
		assert_int_equal(b->dram_active_ppm, a->dram_active_ppm);
	}
}

static void
assert_same_gpu(int tick, size_t gpu, const struct gpu_reading *was, const struct gpu_reading *is)
{
	assert_string_equal(is->uuid, was->uuid);
	assert_string_equal(is->model, was->model);
	assert_string_equal(is->pci, was->pci);
	assert_int_equal(is->index, was->index);
	if (is->down != was->down)
		fail_msg("tick %d, GPU %zu: down %d, was %d (%s)", tick, gpu, is->down, was->down, was->down_reason);
	assert_int_equal(is->fault, was->fault);
	assert_int_equal(is->xid_count, was->xid_count);
	for (size_t i = 0; i < was->xid_count; i++)
		assert_int_equal(is->xids[i].count, was->xids[i].count);
	if (was->down)
		return;
	assert_int_equal(is->mig, was->mig);
	assert_int_equal(is->mps, was->mps);
	assert_int_equal(is->accounting, was->accounting);
	for (size_t i = 0; i < ARRAY_LEN(numbers); i++) {
		int64_t a, b;

		memcpy(&a, (const char *)was + numbers[i].offset, sizeof(a));
		memcpy(&b, (const char *)is + numbers[i].offset, sizeof(b));
		if (a != b)
			fail_msg("tick %d, GPU %zu: %s is %" PRId64 ", was %" PRId64, tick, gpu, numbers[i].name, b, a);
	}
	assert_same_instances(was, is);
	assert_int_equal(is->process_activity, was->process_activity);
	if (is->process_count != was->process_count)
		fail_msg("tick %d, GPU %zu: %zu processes, were %zu", tick, gpu, is->process_count, was->process_count);
	for (size_t i = 0; i < was->process_count; i++) {
		const struct gpu_process *a = &was->processes[i], *b = &is->processes[i];

		assert_int_equal(b->pid, a->pid);
		assert_int_equal(b->gi, a->gi);
		assert_int_equal(b->ci, a->ci);
		assert_int_equal(b->memory_bytes, a->memory_bytes);
		if (b->sm_ppm != a->sm_ppm)
			fail_msg("tick %d, GPU %zu, PID %u: %" PRId64 " ppm, was %" PRId64, tick, gpu, a->pid,
			         b->sm_ppm, a->sm_ppm);
		assert_int_equal(b->mps_client, a->mps_client);
	}
}

/* ---- a whole node --------------------------------------------------------------------------------------------------- */

static const char lab[] =
	"name: lab\n"
	"gpus:\n"
	"  - {model: NVIDIA L40S, memory_mib: 46068, accounting: true, readings: ['10s ecc_corrected=3 throttle_reasons=4']}\n"
	"  - model: NVIDIA A100-SXM4-80GB\n"
	"    memory_mib: 81920\n"
	"    mig: [3g.40gb, 2g.20gb]\n"
	"    repartition: [{at: 20s, mig: off}, {at: 40s, mig: [1c.3g.40gb, 1c.3g.40gb]}]\n"
	"  - {model: NVIDIA H100 80GB HBM3, memory_mib: 81559}\n"
	"  - {model: NVIDIA H100 80GB HBM3, memory_mib: 81559, mig: [3g.40gb, 1g.10gb]}\n"
	"  - {model: NVIDIA GeForce RTX 4090, memory_mib: 24564}\n"
	"processes:\n"
	"  - {pid: 100, gpu: 0, sm: 40, memory_mib: 100, activity: '7300ms sm=90 memory_mib=300; 15s sm=2', uid: 7, comm: 'we \"ird\\ name'}\n"
	"  - {pid: 101, gpu: 0, start: 3300ms, end: 9700ms, every: 9s, sm: 33, pod: {namespace: team, name: web-0}}\n"
	"  - {pid: 102, gpu: 0, start: 5200ms, end: 5700ms, every: 11s, fresh_pids: true, sm: 80, memory_mib: 9}\n"
	"  - {pid: 2000, gpu: 1, instance: 0, sm: 10, memory_mib: 5}\n"
	"  - {pid: 2001, gpu: 1, instance: 1, start: 10s, end: 45s, memory_mib: 6, forks: [{pid: 2002, after: 2s, lasts: 3s}]}\n"
	"  - {pid: 2003, gpu: [1, 2], start: 5s, sm: 20, memory_mib: 7, activity: '9s sm=70'}\n"
	"  - {pid: 3000, gpu: 3, instance: 0, sm: 55, activity: '4500ms sm=15; 12s sm=95 memory_mib=900'}\n"
	"  - {pid: 4000, gpu: 4, sm: 20, mps: true}\n"
	"  - {pid: 4001, gpu: 4, comm: nvidia-cuda-mps-server}\n"
	"  - {pid: 4002, gpu: 4, start: 30s, end: 50s, sm: 30, mps: true}\n"
	"faults:\n"
	"  - {gpu: 2, at: 25s, until: 31s, lost: true}\n"
	"  - {gpu: 4, at: 33s, until: 35s, reset_required: true}\n"
	"  - {gpu: 3, until: 4s, lost: true}\n"
	"xids: [{gpu: 0, at: 12500ms, xid: 13}, {gpu: 0, at: 12600ms, xid: 13}, {gpu: 2, at: 25s, xid: 79}]\n";

static void
a_recording_gives_the_same_readings_tick_by_tick(void **state)
{
	char path[256];

	(void)state;
	begin(lab, 0);
	for (int i = 0; i < TICKS; i++) {
		record_tick(i * S + i * 1234567);
		kept[i] = copy(node.snapshot);
	}
	finish();
	gpu_source_free(take(node.source));
	snprintf(path, sizeof(path), "%s/recording-0001.yaml", dir);
	simnode_init_file(&replay, path);
	for (int i = 0; i < TICKS; i++) {
		simnode_read(&replay, i * S + i * 1234567, 0);
		assert_int_equal(replay.snapshot->count, kept[i]->count);
		for (size_t g = 0; g < kept[i]->count; g++)
			assert_same_gpu(i, g, &kept[i]->gpus[g], &replay.snapshot->gpus[g]);
	}
}

static const struct sim_process *
find(const struct scenario *sc, uint32_t pid)
{
	size_t i = 0;

	while (i < sc->process_count && sc->processes[i].pid != pid)
		i++;
	if (i == sc->process_count)
		fail_msg("PID %u is not in the recording", pid);
	return &sc->processes[i];
}

/* What was in the recorded /proc is in the replayed one. */
static void
a_recording_keeps_who_a_process_was_and_no_command_line(void **state)
{
	owned(scenario) struct scenario *sc = NULL;
	const struct sim_process *strange, *pod, *ended;
	char path[256];
	struct err err;

	(void)state;
	begin(lab, 0);
	for (int i = 0; i < 30; i++)
		record_tick(i * S);
	finish();
	snprintf(path, sizeof(path), "%s/recording-0001.yaml", dir);
	if (!scenario_load(path, &sc, &err))
		fail_msg("%s", err.text);
	assert_string_equal(sc->name, "gn \"1\"");
	strange = find(sc, 100);
	pod = find(sc, 101);
	ended = find(sc, 102);
	assert_string_equal(strange->comm, "we \"ird\\ name");
	assert_int_equal(strange->uid, 7);
	assert_non_null(strstr(pod->cgroup, "0::/kubepods.slice/"));
	/* seen by accounting alone: when and how active, and nobody's */
	assert_int_equal(ended->start_ns, 5200 * NS_PER_MS);
	assert_int_equal(ended->end_ns, 5700 * NS_PER_MS);
	assert_int_equal(ended->phases[0].sm, 80);
	assert_int_equal(ended->uid, 65534);
}

static void
a_pid_that_is_used_again_is_another_process(void **state)
{
	owned(scenario) struct scenario *sc = NULL;
	char path[256];
	struct err err;

	(void)state;
	begin("name: x\n"
	      "gpus: [{model: NVIDIA L40S, memory_mib: 46068}]\n"
	      "processes:\n"
	      "  - {pid: 10, gpu: 0, end: 5500ms, uid: 1}\n"
	      "  - {pid: 10, gpu: 0, start: 5500ms, uid: 2}\n",
	      0);
	for (int i = 0; i < 10; i++)
		record_tick(i * S);
	finish();
	snprintf(path, sizeof(path), "%s/recording-0001.yaml", dir);
	assert_true(scenario_load(path, &sc, &err));
	assert_int_equal(sc->process_count, 2);
	assert_int_equal(sc->processes[0].uid, 1);
	assert_int_equal(sc->processes[0].end_ns, 5 * S + 1);
	assert_int_equal(sc->processes[1].uid, 2);
	assert_int_equal(sc->processes[1].start_ns, 5 * S + 1);
}

/* ---- files ---------------------------------------------------------------------------------------------------------- */

static void
a_full_file_is_followed_by_one_that_stands_alone(void **state)
{
	char path[256];
	struct err err;
	int files = 0;

	(void)state;
	begin(lab, 20000); /* so few files that all may wait for the disk at once */
	for (int i = 0; i < TICKS; i++)
		record_tick(i * S);
	finish();
	for (int i = 1; i < 20; i++) {
		owned(scenario) struct scenario *sc = NULL;

		snprintf(path, sizeof(path), "%s/recording-%04d.yaml", dir, i);
		if (access(path, F_OK) != 0)
			break;
		if (!scenario_load(path, &sc, &err))
			fail_msg("%s", err.text);
		assert_int_equal(sc->gpu_count, i == 1 && sc->gpu_count == 4 ? 4 : 5);
		files++;
	}
	assert_in_range(files, 2, RECORD_WAITING_MAX);
}

static void
a_gpu_that_does_not_answer_in_time_is_a_call_that_hangs(void **state)
{
	owned(scenario) struct scenario *sc = NULL;
	char path[256];
	struct err err;

	(void)state;
	begin("name: x\ngpus: [{model: NVIDIA L40S, memory_mib: 46068}]\nprocesses: [{pid: 10, gpu: 0}]\n", 0);
	for (int i = 0; i < 10; i++) {
		simnode_read(&node, i * S, 0);
		node.snapshot->gpus[0].silent = i >= 3 && i < 7;
		if (node.snapshot->gpus[0].silent)
			node.snapshot->gpus[0].process_count = 0;
		assert_true(recorder_take(recorder, node.snapshot, "", "", WALL0_NS + i * S, &err));
	}
	finish();
	snprintf(path, sizeof(path), "%s/recording-0001.yaml", dir);
	assert_true(scenario_load(path, &sc, &err));
	assert_int_equal(sc->call_count, 1);
	assert_true(sc->calls[0].hang);
	assert_int_equal(sc->calls[0].at_ns, 3 * S);
	assert_int_equal(sc->calls[0].until_ns, 7 * S);
	assert_int_equal(sc->process_count, 1);
	assert_int_equal(sc->processes[0].end_ns, SIM_NEVER);
}

static void
a_disk_that_refuses_is_named_and_tried_again(void **state)
{
	owned(scenario) struct scenario *sc = NULL;
	char path[256];
	struct err err;
	bool refused = false;

	(void)state;
	begin("name: x\ngpus: [{model: NVIDIA L40S, memory_mib: 46068}]\n", 0);
	assert_int_equal(rmdir(dir), 0);
	for (int i = 0; i < 1000 && !refused; i++) {
		simnode_read(&node, i * 61 * S, 0);
		refused = !recorder_take(recorder, node.snapshot, "", "", WALL0_NS, &err);
		usleep(1000);
	}
	assert_true(refused);
	assert_non_null(strstr(err.text, dir));
	assert_int_equal(mkdir(dir, 0700), 0);
	finish();
	snprintf(path, sizeof(path), "%s/recording-0001.yaml", dir);
	assert_true(scenario_load(path, &sc, &err));
}

static void
a_folder_that_cannot_be_made_is_named(void **state)
{
	struct recorder_options o = {.dir = "/proc/no/such", .node = "x", .proc_root = "/proc"};
	struct err err;

	(void)state;
	assert_false(recorder_new(&o, &recorder, &err));
	assert_non_null(strstr(err.text, "record: cannot make /proc/no/such"));
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(a_recording_gives_the_same_readings_tick_by_tick, end_all),
		cmocka_unit_test_teardown(a_recording_keeps_who_a_process_was_and_no_command_line, end_all),
		cmocka_unit_test_teardown(a_pid_that_is_used_again_is_another_process, end_all),
		cmocka_unit_test_teardown(a_full_file_is_followed_by_one_that_stands_alone, end_all),
		cmocka_unit_test_teardown(a_gpu_that_does_not_answer_in_time_is_a_call_that_hangs, end_all),
		cmocka_unit_test_teardown(a_disk_that_refuses_is_named_and_tried_again, end_all),
		cmocka_unit_test_teardown(a_folder_that_cannot_be_made_is_named, end_all),
	};

	return cmocka_run_group_tests_name("record", tests, NULL, NULL);
}
