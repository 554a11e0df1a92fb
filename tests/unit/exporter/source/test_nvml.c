/* tests/unit/exporter/source/test_nvml.c - the NVML source against the simulator, with every trap of real drivers that it can set. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

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

/* Whatever a reading says, its parts are one GPU. */
static void
assert_adds_up(const struct gpu_reading *r)
{
	int64_t units = r->units_unallocated + r->units_stranded;

	for (size_t i = 0; i < r->instance_count; i++)
		units += r->instances[i].units;
	assert_int_equal(units, r->mig && !r->down ? UNITS_PER_GPU : 0);
}

/* ---- whole GPUs ----------------------------------------------------------------------------------------------------- */

static const char one_h100[] = "name: one\n"
			       "driver: 550.54.15\n"
			       "gpus:\n"
			       "  - model: NVIDIA H100 80GB HBM3\n"
			       "    uuid: GPU-11111111-2222-3333-4444-555555555555\n"
			       "    memory_mib: 81559\n"
			       "    idle_watts: 100\n"
			       "    max_watts: 300\n"
			       "processes:\n"
			       "  - {pid: 100, gpu: 0, sm: 50, memory_mib: 1000, start: 10s, end: 20s}\n"
			       "  - {pid: 101, gpu: 0, sm: 0, memory_mib: 24}\n";

static void
a_whole_gpu_reads_as_its_scenario_says(void **state)
{
	const struct gpu_reading *r;

	(void)state;
	simnode_init(&node, one_h100);
	r = simnode_read(&node, 15 * S, 0);
	assert_true(node.source->ops->simulated(node.source));
	assert_string_equal(node.source->ops->name, "nvml");
	assert_string_equal(node.source->ops->driver_version(node.source), "550.54.15");
	assert_string_equal(node.source->ops->library_version(node.source), "12.550.163.01");
	assert_int_equal(node.snapshot->count, 1);
	assert_int_equal(node.snapshot->boot_ns, SIMNODE_T0_NS + 15 * S);
	assert_string_equal(r->uuid, "GPU-11111111-2222-3333-4444-555555555555");
	assert_string_equal(r->model, "NVIDIA H100 80GB HBM3");
	assert_string_equal(r->pci, "00000000:01:00.0");
	assert_int_equal(r->index, 0);
	assert_false(r->down || r->mig || r->mps);
	assert_int_equal(r->active_ppm, 50 * PERCENT);
	assert_int_equal(r->memory_active_ppm, 25 * PERCENT);
	assert_int_equal(r->memory_bytes, 81559 * MIB);
	assert_int_equal(r->memory_used_bytes, 1024 * MIB);
	assert_int_equal(r->power_mw, 200000);
	assert_int_equal(r->temperature_c, 55);
	assert_int_equal(r->instance_count, 0);
	assert_int_equal(r->process_count, 2);
	assert_int_equal(r->processes[0].pid, 100);
	assert_int_equal(r->processes[0].gi, -1);
	assert_int_equal(r->processes[0].ci, -1);
	assert_int_equal(r->processes[0].memory_bytes, 1000 * MIB);
	assert_int_equal(r->processes[1].pid, 101);
	assert_int_equal(r->processes[1].memory_bytes, 24 * MIB);
	assert_adds_up(r);
}

static void
energy_is_power_over_time_and_never_falls(void **state)
{
	int64_t last = -1;

	(void)state;
	simnode_init(&node, one_h100);
	for (int64_t t = 0; t <= 30 * S; t += 700 * NS_PER_MS) {
		int64_t now = simnode_read(&node, t, 0)->energy_mj;

		assert_true(now >= last);
		last = now;
	}
	/* 30 s at 100 W and 10 s at 100 W more */
	assert_int_equal(simnode_read(&node, 30 * S, 0)->energy_mj, 4000000);
	assert_int_equal(simnode_read(&node, 15 * S, 0)->energy_mj, 2000000);
}

static void
derived_uuids_are_stable_and_different(void **state)
{
	static const char two[] = "name: two\ngpus: [{model: NVIDIA L40S, memory_mib: 46068, count: 2}]\n";
	char first[2][GPU_TEXT];

	(void)state;
	for (int round = 0; round < 2; round++) {
		simnode_init(&node, two);
		for (size_t i = 0; i < 2; i++) {
			const struct gpu_reading *r = simnode_read(&node, 0, i);

			if (round == 0)
				snprintf(first[i], sizeof(first[i]), "%s", r->uuid);
			assert_string_equal(r->uuid, first[i]);
			assert_int_equal(strlen(r->uuid), strlen("GPU-11111111-2222-3333-4444-555555555555"));
			assert_int_equal(r->index, (int)i);
		}
		simnode_fini(&node);
	}
	assert_string_not_equal(first[0], first[1]);
}

static void
memory_falls_back_to_version_1(void **state)
{
	char text[1024];

	(void)state;
	snprintf(text, sizeof(text), "%sdriver_quirk: memory_v1\n", one_h100);
	simnode_init(&node, text);
	assert_int_equal(simnode_read(&node, 15 * S, 0)->memory_bytes, 81559 * MIB);
	/* version 1 counts what the driver reserves as used */
	assert_int_equal(simnode_read(&node, 15 * S, 0)->memory_used_bytes, 1024 * MIB + 81559 * MIB / 128);
}

/* ---- MIG ------------------------------------------------------------------------------------------------------------ */

#define A100 "{model: NVIDIA A100-SXM4-80GB, memory_mib: 81920, idle_watts: 60, max_watts: 400, "

struct layout_case {
	const char *what;
	const char *mig;
	int64_t units[7];
	int64_t unallocated, stranded;
};

static const struct layout_case layout_cases[] = {
	{"no instance yet: all of it can be created", "[]", {0}, 5040, 0},
	{"a layout without a rest", "[3g.40gb, 2g.20gb, 1g.10gb, 1g.10gb]", {2340, 1350, 675, 675}, 0, 0},
	{"all memory taken: a compute slice is stranded", "[3g.40gb, 3g.40gb]", {2340, 2340}, 0, 360},
	{"all compute taken: a memory slice is stranded",
         "[1g.10gb, 1g.10gb, 1g.10gb, 1g.10gb, 1g.10gb, 1g.10gb, 1g.10gb]",
         {675, 675, 675, 675, 675, 675, 675},
         0,
         315},
	{"half of it: the other half can be created", "[4g.40gb]", {2700}, 2340, 0},
	{"a GPU instance in three parts", "[1c.3g.40gb, 1c.3g.40gb, 1c.3g.40gb, 4g.40gb]", {780, 780, 780, 2700}, 0, 0},
	{"compute slices of a GPU instance in no compute instance", "[1c.3g.40gb, 4g.40gb]", {780, 2700}, 1560, 0},
	{"one GPU instance with all", "[7g.80gb]", {5040}, 0, 0},
};

static void
instances_and_the_rest_add_up_to_one_gpu(void **state)
{
	static const char *const quirks[] = {"[]", "no_attributes", "unprivileged",
	                                     "[no_attributes, unprivileged, no_v2]"};
	char text[1024];

	(void)state;
	for (size_t c = 0; c < ARRAY_LEN(layout_cases) * ARRAY_LEN(quirks); c++) {
		const struct layout_case *want = &layout_cases[c % ARRAY_LEN(layout_cases)];
		const struct gpu_reading *r;

		snprintf(text, sizeof(text), "name: mig\ndriver_quirk: %s\ngpus: [" A100 "mig: %s}]\n",
		         quirks[c / ARRAY_LEN(layout_cases)], want->mig);
		simnode_init(&node, text);
		r = simnode_read(&node, S, 0);
		if (r->down)
			fail_msg("%s: down: %s", want->what, r->down_reason);
		assert_true(r->mig);
		for (size_t i = 0; i < 7; i++)
			if ((i < r->instance_count ? r->instances[i].units : 0) != want->units[i])
				fail_msg("%s: instance %zu of %zu has %" PRId64 " units", want->what, i,
				         r->instance_count, r->instances[i].units);
		if (r->units_unallocated != want->unallocated || r->units_stranded != want->stranded)
			fail_msg("%s: unallocated %" PRId64 ", stranded %" PRId64, want->what, r->units_unallocated,
			         r->units_stranded);
		assert_adds_up(r);
		simnode_fini(&node);
	}
}

static void
an_instance_reads_as_its_scenario_says(void **state)
{
	static const char text[] = "name: mig\ngpus: [" A100 "mig: [3g.40gb, 2g.20gb, 1c.2g.20gb]}]\n"
				   "processes:\n"
				   "  - {pid: 10, gpu: 0, instance: 1, sm: 100, memory_mib: 100}\n"
				   "  - {pid: 12, gpu: 0, instance: 2, sm: 100, memory_mib: 200, mps: true}\n"
				   "  - {pid: 11, gpu: 0, instance: 2, memory_mib: 20, comm: nvidia-cuda-mps-server}\n";
	const struct gpu_reading *r;
	const struct gpu_instance *in;

	(void)state;
	simnode_init(&node, text);
	r = simnode_read(&node, S, 0);
	assert_int_equal(r->instance_count, 3);
	in = &r->instances[1];
	assert_string_equal(in->profile, "2g.20gb");
	assert_memory_equal(in->uuid, "MIG-", 4);
	assert_int_equal(in->gi, 3);
	assert_int_equal(in->ci, 0);
	assert_int_equal(in->compute_slices, 2);
	assert_int_equal(in->gi_compute_slices, 2);
	assert_int_equal(in->memory_slices, 2);
	assert_int_equal(in->memory_bytes, 20480 * 95 / 100 * MIB);
	assert_int_equal(in->memory_used_bytes, 100 * MIB);
	assert_string_equal(r->instances[2].profile, "1c.2g.20gb");
	assert_int_equal(r->instances[2].gi, 4);
	assert_int_equal(r->instances[2].compute_slices, 1);
	assert_int_equal(r->instances[2].gi_compute_slices, 2);
	/* the driver measures activity of whole GPUs only, and power of the board */
	assert_int_equal(r->active_ppm, ABSENT);
	assert_int_equal(in->active_ppm, ABSENT);
	assert_false(r->process_activity);
	assert_int_equal(r->power_mw, 60000 + 340000 * 3 / 7);
	assert_int_equal(r->process_count, 2);
	assert_int_equal(simnode_process(r, 10)->gi, 3);
	assert_int_equal(simnode_process(r, 10)->sm_ppm, ABSENT);
	assert_int_equal(simnode_process(r, 12)->gi, 4);
	assert_true(r->mps && simnode_process(r, 12)->mps_client);
	assert_adds_up(r);
}

/* The new instance is behind the handle, and has the ids, of the old one. */
static void
a_repartitioned_gpu_has_new_instances_behind_old_handles(void **state)
{
	static const char text[] = "name: recut\n"
				   "gpus:\n"
				   "  - model: NVIDIA A100-SXM4-80GB\n"
				   "    memory_mib: 81920\n"
				   "    mig: [3g.40gb, 3g.40gb]\n"
				   "    repartition:\n"
				   "      - {at: 10s, mig: [4g.40gb]}\n"
				   "      - {at: 20s, mig: off}\n"
				   "      - {at: 30s, mig: [4g.40gb]}\n"
				   "processes:\n"
				   "  - {pid: 10, gpu: 0, instance: 0, memory_mib: 1, sm: 50}\n"
				   "  - {pid: 11, gpu: 0, memory_mib: 2, sm: 50}\n";
	char before[GPU_TEXT], after[GPU_TEXT];
	const struct gpu_reading *r;

	(void)state;
	simnode_init(&node, text);
	r = simnode_read(&node, 9 * S, 0);
	assert_int_equal(r->instance_count, 2);
	assert_int_equal(r->processes[0].pid, 10);
	snprintf(before, sizeof(before), "%s", r->instances[0].uuid);
	r = simnode_read(&node, 10 * S, 0);
	assert_int_equal(r->instance_count, 1);
	assert_string_equal(r->instances[0].profile, "4g.40gb");
	assert_int_equal(r->instances[0].units, 2700);
	assert_int_equal(r->instances[0].gi, 1);
	snprintf(after, sizeof(after), "%s", r->instances[0].uuid);
	assert_string_not_equal(before, after);
	r = simnode_read(&node, 20 * S, 0);
	assert_false(r->mig);
	assert_int_equal(r->instance_count, 0);
	assert_int_equal(r->active_ppm, 50 * PERCENT);
	assert_int_equal(r->process_count, 1);
	assert_int_equal(r->processes[0].pid, 11);
	assert_int_equal(r->processes[0].gi, -1);
	r = simnode_read(&node, 30 * S, 0);
	assert_string_not_equal(r->instances[0].uuid, after);
	assert_adds_up(r);
}

static void
a_layout_larger_than_its_gpu_is_refused(void **state)
{
	static const struct mig_geometry g = {7, 8, 10240};
	struct gpu_reading *r = mem_alloc(sizeof(*r));
	struct gpu_instance whole = {
		.profile = "7g.80gb", .compute_slices = 7, .gi_compute_slices = 7, .memory_slices = 8};
	struct err err;

	(void)state;
	gpu_reading_clear(r);
	r->instance_count = 2;
	r->instances[0] = r->instances[1] = whole;
	r->instances[1].gi = 1;
	assert_false(gpu_reading_weigh(r, &g, &err));
	assert_string_equal(err.text, "MIG instances add up to more than the GPU");
	/* two compute instances of one GPU instance with more slices than it has */
	r->instances[1].gi = 0;
	assert_false(gpu_reading_weigh(r, &g, &err));
	r->instance_count = 1;
	r->instances[0].memory_slices = 9;
	assert_false(gpu_reading_weigh(r, &g, &err));
	assert_string_equal(err.text, "instance 7g.80gb has 7 of 7 compute and 9 memory slices");
	mem_free(r);
}

/* ---- faults --------------------------------------------------------------------------------------------------------- */

static void
a_gpu_that_fails_is_down_and_the_others_go_on(void **state)
{
	static const char text[] = "name: faults\n"
				   "gpus: [{model: NVIDIA L40S, memory_mib: 46068, count: 4}]\n"
				   "processes: [{pid: 10, gpu: [0, 1, 2, 3], sm: 50, memory_mib: 1}]\n"
				   "faults:\n"
				   "  - {gpu: 0, at: 10s, until: 20s, lost: true}\n"
				   "  - {gpu: 1, at: 10s, until: 20s, reset_required: true}\n"
				   "  - {gpu: 2, at: 10s, until: 20s, unknown: true}\n";
	static const char *const reasons[] = {"GPU is lost", "GPU requires a reset", "unknown error"};
	static const enum gpu_fault faults[] = {GPU_FAULT_LOST, GPU_FAULT_RESET_REQUIRED, GPU_FAULT_OTHER,
	                                        GPU_FAULT_NONE};
	char uuid[4][GPU_TEXT];

	(void)state;
	simnode_init(&node, text);
	for (size_t i = 0; i < 4; i++) {
		snprintf(uuid[i], sizeof(uuid[i]), "%s", simnode_read(&node, 9 * S, i)->uuid);
		assert_false(node.snapshot->gpus[i].down);
	}
	for (size_t i = 0; i < 4; i++) {
		const struct gpu_reading *r = simnode_read(&node, 15 * S, i);

		assert_int_equal(node.snapshot->count, 4);
		assert_string_equal(r->uuid, uuid[i]);
		assert_string_equal(r->model, "NVIDIA L40S");
		assert_int_equal(r->index, (int)i);
		assert_true(r->down == (i < 3));
		assert_string_equal(r->down_reason, i < 3 ? reasons[i] : "");
		assert_int_equal(r->fault, faults[i]);
		assert_int_equal(r->process_count, i < 3 ? 0 : 1);
		assert_int_equal(r->energy_mj == ABSENT, i < 3);
	}
	for (size_t i = 0; i < 4; i++) {
		assert_false(simnode_read(&node, 20 * S, i)->down);
		assert_int_equal(node.snapshot->gpus[i].process_count, 1);
	}
}

static void
a_gpu_lost_from_the_start_appears_when_it_answers(void **state)
{
	static const char text[] = "name: late\ngpus: [{model: NVIDIA L40S, memory_mib: 46068, count: 2}]\n"
				   "faults: [{gpu: 0, at: 0s, until: 5s, lost: true}]\n";

	(void)state;
	simnode_init(&node, text);
	assert_int_equal(simnode_read(&node, S, 0)->index, 1);
	assert_int_equal(node.snapshot->count, 1);
	assert_int_equal(simnode_read(&node, 5 * S, 1)->index, 0);
	assert_int_equal(node.snapshot->count, 2);
	assert_false(node.snapshot->gpus[0].down || node.snapshot->gpus[1].down);
}

static void
a_partitioned_gpu_that_is_lost_has_no_instances(void **state)
{
	static const char text[] =
		"name: lost-mig\ngpus: [" A100 "mig: [3g.40gb]}]\nfaults: [{gpu: 0, at: 5s, until: 6s, lost: true}]\n";

	(void)state;
	simnode_init(&node, text);
	assert_int_equal(simnode_read(&node, S, 0)->instance_count, 1);
	assert_int_equal(simnode_read(&node, 5 * S, 0)->instance_count, 0);
	assert_true(node.snapshot->gpus[0].down);
	assert_adds_up(&node.snapshot->gpus[0]);
	assert_int_equal(simnode_read(&node, 6 * S, 0)->instance_count, 1);
	assert_adds_up(&node.snapshot->gpus[0]);
}

static void
a_driver_that_goes_away_is_tried_again(void **state)
{
	static const char text[] = "name: reload\ngpus: [{model: NVIDIA L40S, memory_mib: 46068}]\n"
				   "faults: [{at: 5s, until: 8s, unloaded: true}]\n";
	struct err err;

	(void)state;
	simnode_init(&node, text);
	assert_false(simnode_read(&node, 4 * S, 0)->down);
	assert_false(simnode_try_read(&node, 5 * S, &err));
	assert_int_equal(err.kind, ERR_RETRY);
	/* a library that lost its driver stays so until it is opened again */
	assert_false(simnode_try_read(&node, 9 * S, &err));
	assert_int_equal(err.kind, ERR_RETRY);
	node.set_time_ns(7 * S);
	assert_false(simnode_try_open(&node, &err));
	assert_int_equal(err.kind, ERR_MISSING);
	node.set_time_ns(9 * S);
	simnode_open(&node);
	assert_false(simnode_read(&node, 9 * S, 0)->down);
}

/* ---- opening -------------------------------------------------------------------------------------------------------- */

static void
what_init_answers_decides_what_the_caller_does(void **state)
{
	static const struct {
		int status;
		enum err_kind kind;
		const char *says;
	} cases[] = {
		{9, ERR_MISSING, "no NVIDIA driver answers (driver not loaded)"},
		{12, ERR_MISSING, "no NVIDIA driver answers (library not found)"},
		{4, ERR_DENIED, "the NVIDIA driver refuses this user"},
		{18, ERR_RETRY, "differ in version"},
		{999, ERR_RETRY, "the NVIDIA driver does not start: unknown error"},
	};
	char text[64];
	struct err err;

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		snprintf(text, sizeof(text), "name: no\ninit_error: %d\n", cases[i].status);
		simnode_init(&node, text);
		assert_false(simnode_try_open(&node, &err));
		if (err.kind != cases[i].kind || !strstr(err.text, cases[i].says))
			fail_msg("%d: %s: %s", cases[i].status, err_kind_name(err.kind), err.text);
		assert_null(node.source);
		simnode_fini(&node);
	}
}

static void
a_library_that_is_not_there_or_not_nvml_is_named(void **state)
{
	owned(gpu_source) struct gpu_source *source = NULL;
	struct err err;

	(void)state;
	assert_false(nvml_open(&(struct nvml_options){.library = "/nonexistent/libnvidia-ml.so.1"}, &source, &err));
	assert_int_equal(err.kind, ERR_MISSING);
	assert_non_null(strstr(err.text, "/nonexistent/libnvidia-ml.so.1"));
	assert_non_null(strstr(err.text, "install the NVIDIA driver"));
	assert_false(nvml_open(&(struct nvml_options){.library = "libm.so.6"}, &source, &err));
	assert_int_equal(err.kind, ERR_INVALID);
	assert_string_equal(err.text, "libm.so.6 is not NVIDIA's management library: it has no nvmlInit_v2");
	assert_null(source);
}

static void
nvidia_hardware_is_told_by_the_pci_bus(void **state)
{
	char path[512];
	struct err err;

	(void)state;
	simnode_init(&node, one_h100);
	snprintf(path, sizeof(path), "%s/pci", node.dir);
	assert_int_equal(pci_view(path), PCI_HIDDEN);
	assert_int_equal(mkdir(path, 0700), 0);
	assert_int_equal(pci_view(path), PCI_WITHOUT_NVIDIA);
	snprintf(path, sizeof(path), "%s/pci/0000:00:01.0", node.dir);
	assert_int_equal(mkdir(path, 0700), 0);
	snprintf(path, sizeof(path), "%s/pci/0000:00:01.0/vendor", node.dir);
	assert_true(file_write_atomic(path, "0x8086\n", 7, 0600, &err));
	snprintf(path, sizeof(path), "%s/pci", node.dir);
	assert_int_equal(pci_view(path), PCI_WITHOUT_NVIDIA);
	snprintf(path, sizeof(path), "%s/pci/0000:00:01.0/vendor", node.dir);
	assert_true(file_write_atomic(path, "0x10de\n", 7, 0600, &err));
	snprintf(path, sizeof(path), "%s/pci", node.dir);
	assert_int_equal(pci_view(path), PCI_WITH_NVIDIA);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(a_whole_gpu_reads_as_its_scenario_says, end_node),
		cmocka_unit_test_teardown(energy_is_power_over_time_and_never_falls, end_node),
		cmocka_unit_test_teardown(derived_uuids_are_stable_and_different, end_node),
		cmocka_unit_test_teardown(memory_falls_back_to_version_1, end_node),
		cmocka_unit_test_teardown(instances_and_the_rest_add_up_to_one_gpu, end_node),
		cmocka_unit_test_teardown(an_instance_reads_as_its_scenario_says, end_node),
		cmocka_unit_test_teardown(a_repartitioned_gpu_has_new_instances_behind_old_handles, end_node),
		cmocka_unit_test_teardown(a_layout_larger_than_its_gpu_is_refused, end_node),
		cmocka_unit_test_teardown(a_gpu_that_fails_is_down_and_the_others_go_on, end_node),
		cmocka_unit_test_teardown(a_gpu_lost_from_the_start_appears_when_it_answers, end_node),
		cmocka_unit_test_teardown(a_partitioned_gpu_that_is_lost_has_no_instances, end_node),
		cmocka_unit_test_teardown(a_driver_that_goes_away_is_tried_again, end_node),
		cmocka_unit_test_teardown(what_init_answers_decides_what_the_caller_does, end_node),
		cmocka_unit_test_teardown(a_library_that_is_not_there_or_not_nvml_is_named, end_node),
		cmocka_unit_test_teardown(nvidia_hardware_is_told_by_the_pci_bus, end_node),
	};

	return cmocka_run_group_tests_name("nvml", tests, NULL, NULL);
}
