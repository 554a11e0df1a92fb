/* tests/unit/exporter/source/test_nvml_gpm.c - activity by counters (Hopper and later), of GPUs and MIG instances, against the simulator; and where
 * instances lie. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/time.h"
#include "exporter/source/nvml/nvml_source.h"
#include "tests/support/exporter/simnode.h"

#define S NS_PER_S
#define PERCENT 10000

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

static const struct gpu_instance *
instance(const struct gpu_reading *r, int32_t gi, int32_t ci)
{
	for (size_t i = 0; i < r->instance_count; i++)
		if (r->instances[i].gi == gi && r->instances[i].ci == ci)
			return &r->instances[i];
	fail_msg("no instance %d/%d", gi, ci);
	abort();
}

/* ---- instances ------------------------------------------------------------------------------------------------------ */

#define TWO_INSTANCES                                                       \
	"gpus:\n  - model: NVIDIA H100 80GB HBM3\n    memory_mib: 81559\n"  \
	"    mig: [{profile: 3g.40gb, gi: 1}, {profile: 2g.20gb, gi: 5}]\n" \
	"processes:\n"                                                      \
	"  - {pid: 10, gpu: 0, instance: 0, sm: 80, start: 5s}\n"           \
	"  - {pid: 11, gpu: 0, instance: 1, sm: 30}\n"

static void
an_instance_has_the_activity_since_the_previous_reading(void **state)
{
	const struct gpu_reading *r;

	(void)state;
	simnode_init(&node, "name: g\n" TWO_INSTANCES);
	r = simnode_read(&node, 0, 0);
	assert_int_equal(instance(r, 1, 0)->active_ppm, ABSENT); /* one sample says nothing */
	assert_int_equal(instance(r, 1, 0)->sm_active_ppm, ABSENT);
	r = simnode_read(&node, S, 0);
	assert_int_equal(instance(r, 1, 0)->active_ppm, 0);
	assert_int_equal(instance(r, 5, 0)->active_ppm, 30 * PERCENT);
	/* active in 5 of 9 seconds */
	r = simnode_read(&node, 10 * S, 0);
	assert_int_equal(instance(r, 1, 0)->active_ppm, (80 * PERCENT * 5 + 4) / 9);
	r = simnode_read(&node, 11 * S, 0);
	assert_int_equal(instance(r, 1, 0)->active_ppm, 80 * PERCENT);
	assert_int_equal(instance(r, 1, 0)->sm_active_ppm, 72 * PERCENT);
	assert_int_equal(instance(r, 1, 0)->sm_occupancy_ppm, 40 * PERCENT);
	assert_int_equal(instance(r, 1, 0)->tensor_active_ppm, 48 * PERCENT);
	assert_int_equal(instance(r, 1, 0)->dram_active_ppm, 32 * PERCENT);
	assert_int_equal(r->active_ppm, ABSENT);
}

/* Trap: the driver writes 3944, 8424 or 13344 bytes, all under version 1. */
static void
a_driver_that_writes_more_under_the_same_version_is_read(void **state)
{
	static const int sizes[] = {98, 210, 333};

	for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
		char text[512];

		snprintf(text, sizeof(text), "name: g\ngpm_metrics: %d\n" TWO_INSTANCES, sizes[i]);
		simnode_init(&node, text);
		simnode_read(&node, 0, 0);
		assert_int_equal(instance(simnode_read(&node, S, 0), 5, 0)->active_ppm, 30 * PERCENT);
		end_node(state);
	}
}

static void
samples_closer_than_100_ms_leave_the_value_as_it_was(void **state)
{
	(void)state;
	simnode_init(&node, "name: g\n" TWO_INSTANCES);
	simnode_read(&node, 0, 0);
	simnode_read(&node, 5 * S, 0);
	assert_int_equal(instance(simnode_read(&node, 5 * S + 99 * NS_PER_MS, 0), 1, 0)->active_ppm, 0);
	assert_int_equal(instance(simnode_read(&node, 5 * S + 100 * NS_PER_MS, 0), 1, 0)->active_ppm, 80 * PERCENT);
}

static void
an_ampere_instance_is_not_measured(void **state)
{
	static const char text[] =
		"name: a\ngpus: [{model: NVIDIA A100-SXM4-80GB, memory_mib: 81920, mig: [3g.40gb]}]\n"
		"processes: [{pid: 10, gpu: 0, instance: 0, sm: 80}]\n";
	const struct gpu_reading *r = NULL;

	(void)state;
	simnode_init(&node, text);
	for (int t = 0; t < 3; t++)
		r = simnode_read(&node, t * S, 0);
	assert_int_equal(r->instances[0].active_ppm, ABSENT);
	assert_int_equal(r->instances[0].sm_active_ppm, ABSENT);
}

/* The counters are of GPU instances. */
static void
compute_instances_that_share_a_gpu_instance_are_not_measured(void **state)
{
	static const char text[] =
		"name: c\ngpus:\n  - model: NVIDIA H100 80GB HBM3\n    memory_mib: 81559\n"
		"    mig: [{profile: 1c.3g.40gb, gi: 1, ci: 0}, {profile: 2c.3g.40gb, gi: 1, ci: 1}, "
		"{profile: 1c.3g.40gb, gi: 2, ci: 0}]\n"
		"processes: [{pid: 10, gpu: 0, instance: 0, sm: 80}, {pid: 12, gpu: 0, instance: 2, sm: 80}]\n";
	const struct gpu_reading *r = NULL;

	(void)state;
	simnode_init(&node, text);
	for (int t = 0; t < 3; t++)
		r = simnode_read(&node, t * S, 0);
	assert_int_equal(instance(r, 1, 0)->active_ppm, ABSENT);
	assert_int_equal(instance(r, 1, 1)->active_ppm, ABSENT);
	assert_true(instance(r, 2, 0)->active_ppm > 0);
}

/* ---- drivers that do not sample an instance by its GPU's handle --------------------------------------------------------- */

static void
an_instance_is_sampled_by_its_own_handle_where_its_gpus_does_not_do(void **state)
{
	static const int refusals[] = {NVST_FUNCTION_NOT_FOUND, NVST_NOT_SUPPORTED, NVST_INVALID_ARGUMENT,
	                               NVST_NO_PERMISSION, NVST_UNKNOWN};

	for (size_t i = 0; i < ARRAY_LEN(refusals); i++) {
		const struct gpu_reading *r = NULL;
		char text[640];

		snprintf(text, sizeof(text),
		         "name: g\n" TWO_INSTANCES "calls: [{name: nvmlGpmMigSampleGet, status: %d}]\n", refusals[i]);
		simnode_init(&node, text);
		for (int t = 6; t < 9; t++)
			r = simnode_read(&node, t * S, 0);
		if (instance(r, 1, 0)->active_ppm != 80 * PERCENT || instance(r, 5, 0)->active_ppm != 30 * PERCENT)
			fail_msg("status %d: %" PRId64 " and %" PRId64 " ppm", refusals[i],
			         instance(r, 1, 0)->active_ppm, instance(r, 5, 0)->active_ppm);
		end_node(state);
	}
}

static void
a_library_without_the_call_for_instances_is_read_by_their_handles(void **state)
{
	(void)state;
	simnode_init(&node, "name: g\n" TWO_INSTANCES);
	simnode_nvml(&node)->api.nvmlGpmMigSampleGet = NULL;
	simnode_read(&node, 6 * S, 0);
	assert_int_equal(instance(simnode_read(&node, 7 * S, 0), 1, 0)->active_ppm, 80 * PERCENT);
}

/* Two samples that were taken in different ways are not compared. */
static void
a_driver_that_begins_to_refuse_costs_one_value(void **state)
{
	(void)state;
	simnode_init(&node, "name: g\n" TWO_INSTANCES "calls: [{name: nvmlGpmMigSampleGet, at: 8s, status: 3}]\n");
	simnode_read(&node, 6 * S, 0);
	assert_int_equal(instance(simnode_read(&node, 7 * S, 0), 1, 0)->active_ppm, 80 * PERCENT);
	assert_int_equal(instance(simnode_read(&node, 8 * S, 0), 1, 0)->active_ppm, ABSENT);
	assert_int_equal(instance(simnode_read(&node, 9 * S, 0), 1, 0)->active_ppm, 80 * PERCENT);
}

/* A compute instance that is a part of its GPU instance would be another quantity by its own handle. */
static void
a_part_of_a_gpu_instance_is_not_sampled_by_its_handle(void **state)
{
	const struct gpu_reading *r = NULL;

	(void)state;
	simnode_init(&node, "name: g\ngpus: [{model: NVIDIA H100 80GB HBM3, memory_mib: 81559, mig: [1c.3g.40gb]}]\n"
	                    "processes: [{pid: 10, gpu: 0, instance: 0, sm: 80}]\n"
	                    "calls: [{name: nvmlGpmMigSampleGet, status: 3}]\n");
	for (int t = 0; t < 3; t++)
		r = simnode_read(&node, t * S, 0);
	assert_false(r->down);
	assert_int_equal(r->instances[0].active_ppm, ABSENT);
}

static double noise;
static int
tell_noise(struct nvml_gpm_metrics *m)
{
	for (uint32_t i = 0; i < m->count; i++) {
		m->metrics[i].status = m->metrics[i].id == NVML_GPM_SM ? NVST_UNKNOWN : NVST_SUCCESS;
		m->metrics[i].value = noise;
	}
	return NVST_SUCCESS;
}

/* Also when the driver would compute something from samples of two instances. */
static void
a_new_instance_in_an_old_place_begins_anew(void **state)
{
	static const char text[] =
		"name: n\ngpus:\n  - model: NVIDIA H100 80GB HBM3\n    memory_mib: 81559\n    mig: [{profile: 3g.40gb, gi: 1}]\n"
		"    repartition: [{at: 2s, mig: [{profile: 4g.40gb, gi: 1}]}]\n"
		"processes: [{pid: 10, gpu: 0, instance: 0, sm: 80}]\n";

	(void)state;
	simnode_init(&node, text);
	simnode_read(&node, 0, 0);
	assert_int_equal(simnode_read(&node, S, 0)->instances[0].active_ppm, 80 * PERCENT);
	assert_int_equal(simnode_read(&node, 2 * S, 0)->instances[0].active_ppm, ABSENT);
	assert_int_equal(simnode_read(&node, 3 * S, 0)->instances[0].active_ppm, 80 * PERCENT);
	end_node(state);
	simnode_init(&node, text);
	simnode_nvml(&node)->api.nvmlGpmMetricsGet = tell_noise;
	noise = 50;
	simnode_read(&node, 0, 0);
	assert_int_equal(simnode_read(&node, S, 0)->instances[0].active_ppm, 50 * PERCENT);
	assert_int_equal(simnode_read(&node, 2 * S, 0)->instances[0].active_ppm, ABSENT);
	assert_int_equal(simnode_read(&node, 3 * S, 0)->instances[0].active_ppm, 50 * PERCENT);
}

static int (*real_mig_sample)(struct nvml_device *, uint32_t, struct nvml_gpm_sample *);
static int
count_mig_sample(struct nvml_device *device, uint32_t gi, struct nvml_gpm_sample *sample)
{
	calls++;
	return real_mig_sample(device, gi, sample);
}

static void
a_driver_without_counters_of_instances_is_not_asked_each_second(void **state)
{
	(void)state;
	simnode_init(
		&node,
		"name: g\ncalls: [{name: nvmlGpmMigSampleGet, status: 3}, {name: nvmlGpmSampleGet, status: 3}]\n" TWO_INSTANCES);
	real_mig_sample = simnode_nvml(&node)->api.nvmlGpmMigSampleGet;
	simnode_nvml(&node)->api.nvmlGpmMigSampleGet = count_mig_sample;
	for (int t = 0; t < 30; t++)
		assert_int_equal(simnode_read(&node, t * S, 0)->instances[0].active_ppm, ABSENT);
	assert_int_equal(calls, 1);
}

/* ---- whole GPUs ----------------------------------------------------------------------------------------------------- */

static void
a_whole_gpu_tells_its_efficiency_and_its_bus(void **state)
{
	static const char text[] = "name: w\ngpus: [{model: NVIDIA H100 80GB HBM3, memory_mib: 81559}]\n"
				   "processes: [{pid: 10, gpu: 0, sm: 50, start: 500ms}]\n";
	const struct gpu_reading *r;

	(void)state;
	simnode_init(&node, text);
	r = simnode_read(&node, 0, 0);
	assert_int_equal(r->active_ppm, 0); /* from the rates */
	assert_int_equal(r->sm_active_ppm, ABSENT);
	r = simnode_read(&node, S, 0);
	assert_int_equal(r->active_ppm, 25 * PERCENT); /* of the whole second, not of its end */
	r = simnode_read(&node, 2 * S, 0);
	assert_int_equal(r->sm_active_ppm, 45 * PERCENT);
	assert_int_equal(r->sm_occupancy_ppm, 25 * PERCENT);
	assert_int_equal(r->tensor_active_ppm, 30 * PERCENT);
	assert_int_equal(r->dram_active_ppm, 20 * PERCENT);
	assert_int_equal(r->board.pcie_tx_bytes_per_s, 500000 * 4096);
	assert_int_equal(r->board.pcie_rx_bytes_per_s, 500000 * 4096);
}

static void
values_that_cannot_be_are_not_taken(void **state)
{
	static const struct {
		const char *name;
		double value;
		int64_t engine, pcie;
	} rows[] = {
		{"not a number", NAN, ABSENT, ABSENT},     {"below nothing", -0.5, ABSENT, ABSENT},
		{"infinite", INFINITY, ABSENT, ABSENT},    {"a rounding above all", 100.02, 1000000, 104878572},
		{"far above all", 250, ABSENT, 262144000}, {"a part of a percent", 12.34567, 123457, 12945373},
	};

	(void)state;
	simnode_init(
		&node,
		"name: n\ngpus: [{model: NVIDIA H100 80GB HBM3, memory_mib: 81559}]\n"
		"calls: [{name: nvmlDeviceGetUtilizationRates, status: 3}, {name: nvmlDeviceGetPcieThroughput, status: 3}]\n");
	simnode_nvml(&node)->api.nvmlGpmMetricsGet = tell_noise;
	simnode_read(&node, 0, 0);
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		const struct gpu_reading *r;

		noise = rows[i].value;
		r = simnode_read(&node, (int64_t)(i + 1) * S, 0);
		if (r->active_ppm != rows[i].engine || r->board.pcie_tx_bytes_per_s != rows[i].pcie)
			fail_msg("%s: %" PRId64 ", %" PRId64, rows[i].name, r->active_ppm,
			         r->board.pcie_tx_bytes_per_s);
		assert_int_equal(r->sm_active_ppm, ABSENT);
	}
}

static void
a_gpu_lost_between_two_samples_is_down_and_measured_again_later(void **state)
{
	static const char text[] = "name: l\ngpus: [{model: NVIDIA H100 80GB HBM3, memory_mib: 81559}]\n"
				   "processes: [{pid: 10, gpu: 0, sm: 50}]\n"
				   "faults: [{gpu: 0, at: 2s, until: 4s, reset_required: true}]\n";

	(void)state;
	simnode_init(&node, text);
	simnode_read(&node, 0, 0);
	assert_int_equal(simnode_read(&node, S, 0)->sm_active_ppm, 45 * PERCENT);
	assert_true(simnode_read(&node, 2 * S, 0)->down);
	assert_int_equal(simnode_read(&node, 3 * S, 0)->sm_active_ppm, ABSENT);
	/* the counters may have begun anew with a reset, so the sample from before is of no use */
	assert_int_equal(simnode_read(&node, 4 * S, 0)->active_ppm, 50 * PERCENT);
	assert_int_equal(simnode_read(&node, 4 * S, 0)->sm_active_ppm, ABSENT);
	assert_int_equal(simnode_read(&node, 5 * S, 0)->sm_active_ppm, 45 * PERCENT);
}

/* ---- where instances lie -------------------------------------------------------------------------------------------- */

#define SCATTERED                                                                              \
	"gpus:\n  - model: NVIDIA H100 80GB HBM3\n    memory_mib: 81559\n    mig:\n"           \
	"      - {profile: 1g.10gb, placement: 0}\n      - {profile: 1g.10gb, placement: 2}\n" \
	"      - {profile: 1g.10gb, placement: 4}\n      - {profile: 1g.10gb, placement: 6}\n"

static void
slices_between_instances_are_stranded(void **state)
{
	const struct gpu_reading *r;

	(void)state;
	simnode_init(&node, "name: p\n" SCATTERED);
	r = simnode_read(&node, S, 0);
	for (int i = 0; i < 4; i++) {
		assert_int_equal(r->instances[i].placement_start, 2 * i);
		assert_int_equal(r->instances[i].placement_size, 1);
	}
	assert_int_equal(r->units_unallocated, 3 * 675);
	assert_int_equal(r->units_stranded, 5040 - 7 * 675);
}

/* Counted, the same four slices would still make a 3g.40gb. */
static void
without_privilege_the_free_slices_are_counted(void **state)
{
	const struct gpu_reading *r;

	(void)state;
	simnode_init(&node, "name: p\ndriver_quirk: unprivileged\n" SCATTERED);
	r = simnode_read(&node, S, 0);
	assert_int_equal(r->instances[0].placement_start, -1);
	assert_int_equal(r->instances[0].placement_size, -1);
	assert_int_equal(r->units_unallocated, 2340);
	assert_int_equal(r->units_stranded, 0);
}

static void
placements_that_cannot_be_are_not_believed(void **state)
{
	static const struct {
		const char *name;
		int start[2], size[2];
		int64_t unallocated;
	} rows[] = {
		{"possible: 3g at 0 and 1g at 5 leave 1g at 4 and 1g.20gb at 6", {0, 5}, {4, 1}, 675 + 990},
		{"on top of each other", {0, 2}, {4, 1}, 3 * 675},
		{"another size than the memory", {0, 5}, {2, 1}, 3 * 675},
		{"a place that the profile does not have", {2, 6}, {4, 1}, 3 * 675},
		{"one of them not told", {0, -1}, {4, -1}, 3 * 675},
		{"beyond the GPU", {0, 31}, {4, 1}, 3 * 675},
	};
	const struct mig_geometry g = {.compute_slices = 7, .memory_slices = 8, .memory_slice_mib = 10240};
	struct gpu_reading *r = mem_alloc(sizeof(*r));
	struct err err;

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		gpu_reading_clear(r);
		r->instance_count = 2;
		r->instances[0] =
			(struct gpu_instance){.gi = 1, .compute_slices = 3, .gi_compute_slices = 3, .memory_slices = 4};
		r->instances[1] =
			(struct gpu_instance){.gi = 2, .compute_slices = 1, .gi_compute_slices = 1, .memory_slices = 1};
		for (int k = 0; k < 2; k++) {
			r->instances[k].placement_start = rows[i].start[k];
			r->instances[k].placement_size = rows[i].size[k];
		}
		assert_true(gpu_reading_weigh(r, &g, &err));
		if (r->units_unallocated != rows[i].unallocated)
			fail_msg("%s: %" PRId64, rows[i].name, r->units_unallocated);
		assert_int_equal(r->units_unallocated + r->units_stranded, 5040 - 2340 - 675);
	}
	mem_free(r);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(an_instance_has_the_activity_since_the_previous_reading, end_node),
		cmocka_unit_test_teardown(a_driver_that_writes_more_under_the_same_version_is_read, end_node),
		cmocka_unit_test_teardown(samples_closer_than_100_ms_leave_the_value_as_it_was, end_node),
		cmocka_unit_test_teardown(an_ampere_instance_is_not_measured, end_node),
		cmocka_unit_test_teardown(compute_instances_that_share_a_gpu_instance_are_not_measured, end_node),
		cmocka_unit_test_teardown(a_new_instance_in_an_old_place_begins_anew, end_node),
		cmocka_unit_test_teardown(a_driver_without_counters_of_instances_is_not_asked_each_second, end_node),
		cmocka_unit_test_teardown(an_instance_is_sampled_by_its_own_handle_where_its_gpus_does_not_do,
	                                  end_node),
		cmocka_unit_test_teardown(a_library_without_the_call_for_instances_is_read_by_their_handles, end_node),
		cmocka_unit_test_teardown(a_driver_that_begins_to_refuse_costs_one_value, end_node),
		cmocka_unit_test_teardown(a_part_of_a_gpu_instance_is_not_sampled_by_its_handle, end_node),
		cmocka_unit_test_teardown(a_whole_gpu_tells_its_efficiency_and_its_bus, end_node),
		cmocka_unit_test_teardown(values_that_cannot_be_are_not_taken, end_node),
		cmocka_unit_test_teardown(a_gpu_lost_between_two_samples_is_down_and_measured_again_later, end_node),
		cmocka_unit_test_teardown(slices_between_instances_are_stranded, end_node),
		cmocka_unit_test_teardown(without_privilege_the_free_slices_are_counted, end_node),
		cmocka_unit_test(placements_that_cannot_be_are_not_believed),
	};

	return cmocka_run_group_tests_name("nvml gpm", tests, NULL, NULL);
}
