/* tests/unit/exporter/source/test_dcgm.c - what DCGM adds to readings, against its simulator beside NVML's. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <string.h>

#include "common/base/time.h"
#include "tests/support/exporter/dcgmnode.h"

#define S NS_PER_S
#define PERCENT 10000

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

static bool
is_by_dcgm(const struct gpu_reading *r, enum gpu_kind kind)
{
	return r->by_dcgm >> kind & 1;
}

/* ---- instances ------------------------------------------------------------------------------------------------------ */

#define AMPERE_MIG                                                          \
	"gpus:\n  - model: NVIDIA A100-SXM4-80GB\n    memory_mib: 81920\n"  \
	"    mig: [{profile: 3g.40gb, gi: 1}, {profile: 2g.20gb, gi: 5}]\n" \
	"processes:\n"                                                      \
	"  - {pid: 10, gpu: 0, instance: 0, sm: 80, start: 5s}\n"           \
	"  - {pid: 11, gpu: 0, instance: 1, sm: 30}\n"

static void
an_instance_on_ampere_has_the_activity_since_the_previous_reading(void **state)
{
	const struct gpu_reading *r;

	(void)state;
	dcgmnode_init(&node, "name: d\n" AMPERE_MIG);
	r = dcgmnode_read(&node, 0, 0);
	assert_int_equal(dcgmnode_instance(r, 1, 0)->active_ppm, ABSENT); /* one sample says nothing */
	r = dcgmnode_read(&node, S, 0);
	assert_int_equal(dcgmnode_instance(r, 1, 0)->active_ppm, 0);
	assert_int_equal(dcgmnode_instance(r, 5, 0)->active_ppm, 30 * PERCENT);
	r = dcgmnode_read(&node, 10 * S, 0);
	assert_in_range(dcgmnode_instance(r, 1, 0)->active_ppm, 80 * PERCENT * 5 / 9 - 1, 80 * PERCENT * 5 / 9 + 1);
	r = dcgmnode_read(&node, 11 * S, 0);
	assert_int_equal(dcgmnode_instance(r, 1, 0)->active_ppm, 80 * PERCENT);
	assert_int_equal(dcgmnode_instance(r, 1, 0)->sm_active_ppm, 72 * PERCENT);
	assert_int_equal(dcgmnode_instance(r, 1, 0)->sm_occupancy_ppm, 40 * PERCENT);
	assert_int_equal(dcgmnode_instance(r, 1, 0)->tensor_active_ppm, 48 * PERCENT);
	assert_int_equal(dcgmnode_instance(r, 1, 0)->dram_active_ppm, 32 * PERCENT);
	assert_true(dcgmnode_instance(r, 1, 0)->counters.present);
	assert_int_equal(dcgmnode_instance(r, 1, 0)->counters.pipe_ppm[GPU_PIPE_FP32], 24 * PERCENT);
	assert_int_equal(dcgmnode_instance(r, 1, 0)->counters.nvlink_tx_bytes_per_s, ABSENT);
	assert_false(r->counters.present);
	assert_true(is_by_dcgm(r, GPU_KIND_MIG_ACTIVITY));
	assert_false(is_by_dcgm(r, GPU_KIND_ACTIVITY));
	assert_int_equal(r->process_count, 2); /* which DCGM does not know of */
}

static void
compute_instances_of_one_gpu_instance_are_measured_each_but_not_their_memory(void **state)
{
	const struct gpu_reading *r;

	(void)state;
	dcgmnode_init(&node, "name: d\n"
	                     "gpus:\n  - model: NVIDIA A100-SXM4-80GB\n    memory_mib: 81920\n"
	                     "    mig: [{profile: 1c.3g.40gb, gi: 2, ci: 0}, {profile: 2c.3g.40gb, gi: 2, ci: 1}]\n"
	                     "processes:\n"
	                     "  - {pid: 10, gpu: 0, instance: 0, sm: 60}\n"
	                     "  - {pid: 11, gpu: 0, instance: 1, sm: 20}\n");
	(void)dcgmnode_read(&node, 0, 0);
	r = dcgmnode_read(&node, S, 0);
	assert_int_equal(dcgmnode_instance(r, 2, 0)->active_ppm, 60 * PERCENT);
	assert_int_equal(dcgmnode_instance(r, 2, 1)->active_ppm, 20 * PERCENT);
	assert_int_equal(dcgmnode_instance(r, 2, 0)->dram_active_ppm, ABSENT);
	assert_int_equal(dcgmnode_instance(r, 2, 1)->dram_active_ppm, ABSENT);
}

static void
shares_above_the_whole_are_the_whole_and_counted(void **state)
{
	const struct gpu_reading *r;

	(void)state;
	dcgmnode_init(&node,
	              "name: d\ndcgm: {quirk: [above_one]}\n"
	              "gpus:\n  - model: NVIDIA A100-SXM4-80GB\n    memory_mib: 81920\n    mig: [3g.40gb, 2g.20gb]\n"
	              "processes:\n  - {pid: 10, gpu: 0, instance: 0, sm: 100}\n"
	              "  - {pid: 11, gpu: 0, instance: 1, sm: 40}\n");
	(void)dcgmnode_read(&node, 0, 0);
	assert_int_equal(status().clamped, 0);
	r = dcgmnode_read(&node, S, 0);
	assert_int_equal(r->instances[0].active_ppm, 1000000);
	assert_int_equal(r->instances[1].active_ppm, 50 * PERCENT);
	assert_true(status().clamped > 0);
}

static void
power_and_energy_stay_the_boards(void **state)
{
	const struct gpu_reading *r;
	struct gpu_reading alone;

	(void)state;
	dcgmnode_init(&node, "name: d\n" AMPERE_MIG);
	simnode_open(&node.node);
	alone = *simnode_read(&node.node, 10 * S, 0);
	dcgmnode_open(&node, true);
	r = dcgmnode_read(&node, 10 * S, 0);
	assert_true(alone.power_mw > 0);
	assert_int_equal(r->power_mw, alone.power_mw);
	assert_int_equal(r->energy_mj, alone.energy_mj);
}

static void
an_instance_made_anew_under_the_same_ids_begins_anew(void **state)
{
	const struct gpu_reading *r;

	(void)state;
	dcgmnode_init(&node, "name: d\n"
	                     "gpus:\n  - model: NVIDIA A100-SXM4-80GB\n    memory_mib: 81920\n"
	                     "    mig: [{profile: 3g.40gb, gi: 1}]\n"
	                     "    repartition:\n"
	                     "      - {at: 5s, mig: [{profile: 3g.40gb, gi: 1}]}\n"
	                     "      - {at: 10s, mig: [{profile: 2g.20gb, gi: 3}, {profile: 2g.20gb, gi: 4}]}\n"
	                     "      - {at: 20s, mig: off}\n"
	                     "processes:\n  - {pid: 10, gpu: 0, instance: 0, sm: 50, end: 20s}\n"
	                     "  - {pid: 11, gpu: 0, start: 20s, sm: 70}\n");
	for (int64_t t = 0; t < 5; t++)
		r = dcgmnode_read(&node, t * S, 0);
	assert_int_equal(dcgmnode_instance(r, 1, 0)->active_ppm, 50 * PERCENT);
	r = dcgmnode_read(&node, 5 * S, 0);
	assert_int_equal(dcgmnode_instance(r, 1, 0)->active_ppm, ABSENT);
	for (int64_t t = 6; t < 9; t++)
		r = dcgmnode_read(&node, t * S, 0);
	assert_int_equal(dcgmnode_instance(r, 1, 0)->active_ppm, 50 * PERCENT);
	(void)dcgmnode_read(&node, 9 * S, 0);
	r = dcgmnode_read(&node, 10 * S, 0);
	assert_int_equal(dcgmnode_instance(r, 3, 0)->active_ppm, ABSENT);
	for (int64_t t = 11; t < 14; t++)
		r = dcgmnode_read(&node, t * S, 0);
	assert_int_equal(dcgmnode_instance(r, 3, 0)->active_ppm, 50 * PERCENT);
	assert_int_equal(dcgmnode_instance(r, 4, 0)->active_ppm, 0);
	for (int64_t t = 14; t < 24; t++)
		r = dcgmnode_read(&node, t * S, 0);
	assert_int_equal(r->active_ppm, 70 * PERCENT);
	assert_true(is_by_dcgm(r, GPU_KIND_ACTIVITY));
}

/* ---- instances that DCGM does not list ------------------------------------------------------------------------------- */

#define THREE_OF_WHICH_ONE_IS_NOT_LISTED(until)                                                        \
	"dcgm: {unlisted: [{gpu: 0, instance: 1" until "}]}\n"                                         \
	"gpus:\n  - model: NVIDIA A100-SXM4-80GB\n    memory_mib: 81920\n"                             \
	"    mig: [{profile: 3g.40gb, gi: 1}, {profile: 2g.20gb, gi: 5}, {profile: 1g.10gb, gi: 9}]\n" \
	"processes:\n"                                                                                 \
	"  - {pid: 10, gpu: 0, instance: 0, sm: 80}\n"                                                 \
	"  - {pid: 11, gpu: 0, instance: 1, sm: 30}\n"                                                 \
	"  - {pid: 12, gpu: 0, instance: 2, sm: 20}\n"

static void
an_instance_that_dcgm_does_not_list_costs_the_others_nothing(void **state)
{
	const struct gpu_reading *r = NULL;

	(void)state;
	dcgmnode_init(&node, "name: d\n" THREE_OF_WHICH_ONE_IS_NOT_LISTED(""));
	for (int t = 0; t < 5; t++)
		r = dcgmnode_read(&node, t * S, 0);
	/* also while it is looked for again */
	for (int t = 5; t < 40; t++) {
		r = dcgmnode_read(&node, t * S, 0);
		if (dcgmnode_instance(r, 1, 0)->active_ppm != 80 * PERCENT ||
		    dcgmnode_instance(r, 9, 0)->active_ppm != 20 * PERCENT)
			fail_msg("at %d s: %" PRId64 " and %" PRId64 " ppm", t, dcgmnode_instance(r, 1, 0)->active_ppm,
			         dcgmnode_instance(r, 9, 0)->active_ppm);
		assert_int_equal(dcgmnode_instance(r, 5, 0)->active_ppm, ABSENT);
		assert_int_equal(status().unlisted, 1);
	}
	assert_int_equal(status().failures, 0);
	assert_non_null(strstr(status().not_listed.text,
	                       "DCGM does not list 1 of the MIG instances that NVML lists, first MIG-"));
	assert_non_null(strstr(status().not_listed.text, dcgmnode_instance(r, 5, 0)->uuid));
}

static void
an_instance_that_dcgm_lists_later_is_measured_from_then_on(void **state)
{
	const struct gpu_reading *r = NULL;

	(void)state;
	dcgmnode_init(&node, "name: d\n" THREE_OF_WHICH_ONE_IS_NOT_LISTED(", until: 20s"));
	for (int t = 0; t < 40; t++)
		r = dcgmnode_read(&node, t * S, 0);
	assert_int_equal(dcgmnode_instance(r, 1, 0)->active_ppm, 80 * PERCENT);
	assert_int_equal(dcgmnode_instance(r, 5, 0)->active_ppm, 30 * PERCENT);
	assert_int_equal(status().unlisted, 0);
	assert_int_equal(status().not_listed.kind, ERR_NONE);
}

/* Two troubles are two sentences, so that neither makes the other one new. */
static void
an_instance_that_is_not_listed_is_said_beside_what_else_is_lacking(void **state)
{
	(void)state;
	dcgmnode_init(&node, "name: d\ndcgm: {unlisted: [{gpu: 0, instance: 0}]}\ngpus:\n"
	                     "  - {model: NVIDIA A100-SXM4-80GB, memory_mib: 81920, mig: [3g.40gb]}\n"
	                     "  - {model: Tesla P100-PCIE-16GB, memory_mib: 16280, dcp: false}\n");
	for (int t = 0; t < 5; t++)
		dcgmnode_read(&node, t * S, 0);
	assert_non_null(strstr(status().trouble.text, "DCGM does not profile GPU-"));
	assert_null(strstr(status().trouble.text, "list"));
	assert_int_equal(status().not_listed.kind, ERR_RETRY);
}

/* What the layout before had under the same ids does not count, with one that is not listed as without. */
static void
another_layout_is_not_read_from_the_view_of_the_one_before(void **state)
{
	const struct gpu_reading *r = NULL;

	(void)state;
	dcgmnode_init(&node,
	              "name: d\ndcgm: {unlisted: [{gpu: 0, instance: 1}]}\ngpus:\n"
	              "  - model: NVIDIA A100-SXM4-80GB\n    memory_mib: 81920\n"
	              "    mig: [{profile: 3g.40gb, gi: 1}, {profile: 2g.20gb, gi: 5}]\n"
	              "    repartition: [{at: 10s, mig: [{profile: 3g.40gb, gi: 1}, {profile: 1g.10gb, gi: 5}]}]\n"
	              "processes:\n  - {pid: 10, gpu: 0, instance: 0, sm: 80, end: 10s}\n");
	for (int t = 0; t < 10; t++)
		r = dcgmnode_read(&node, t * S, 0);
	assert_int_equal(dcgmnode_instance(r, 1, 0)->active_ppm, 80 * PERCENT);
	for (int t = 10; t < 25; t++) {
		r = dcgmnode_read(&node, t * S, 0);
		if (dcgmnode_instance(r, 1, 0)->active_ppm > 0)
			fail_msg("at %d s: %" PRId64 " ppm", t, dcgmnode_instance(r, 1, 0)->active_ppm);
	}
	assert_int_equal(dcgmnode_instance(r, 1, 0)->active_ppm, 0);
	assert_int_equal(status().unlisted, 1);
}

/* ---- whole GPUs ----------------------------------------------------------------------------------------------------- */

static void
a_gpu_without_counters_in_nvml_gets_all_of_dcgms(void **state)
{
	const struct gpu_reading *r;

	(void)state;
	dcgmnode_init(&node, "name: d\ngpus:\n  - {model: NVIDIA A100-SXM4-80GB, memory_mib: 81920}\n"
	                     "processes:\n  - {pid: 10, gpu: 0, sm: 40}\n");
	(void)dcgmnode_read(&node, 0, 0);
	r = dcgmnode_read(&node, S, 0);
	assert_int_equal(r->active_ppm, 40 * PERCENT);
	assert_int_equal(r->sm_active_ppm, 36 * PERCENT);
	assert_int_equal(r->sm_occupancy_ppm, 20 * PERCENT);
	assert_int_equal(r->tensor_active_ppm, 24 * PERCENT);
	assert_int_equal(r->dram_active_ppm, 16 * PERCENT);
	assert_int_equal(r->board.pcie_tx_bytes_per_s, INT64_C(40) * PERCENT * 4096);
	assert_true(r->counters.present);
	assert_int_equal(r->counters.pipe_ppm[GPU_PIPE_FP64], 4 * PERCENT);
	assert_int_equal(r->counters.pipe_ppm[GPU_PIPE_FP16], 8 * PERCENT);
	assert_int_equal(r->counters.nvlink_rx_bytes_per_s, INT64_C(40) * PERCENT * 4096);
	for (int kind = 0; kind < GPU_KINDS; kind++)
		assert_int_equal(is_by_dcgm(r, (enum gpu_kind)kind), kind != GPU_KIND_MIG_ACTIVITY);
}

#define HOPPER                                                           \
	"gpus:\n  - {model: NVIDIA H100 80GB HBM3, memory_mib: 81559}\n" \
	"processes:\n  - {pid: 10, gpu: 0, sm: 40}\n"

static void
nvmls_counters_are_as_good_as_dcgms_unless_dcgm_is_wanted(void **state)
{
	const struct gpu_reading *r;

	(void)state;
	dcgmnode_init(&node, "name: d\n" HOPPER);
	(void)dcgmnode_read(&node, 0, 0);
	r = dcgmnode_read(&node, S, 0);
	assert_int_equal(r->active_ppm, 40 * PERCENT);
	assert_int_equal(r->by_dcgm, 0);
	dcgmnode_fini(&node);

	dcgmnode_init(&node, "name: d\n" HOPPER);
	dcgmnode_open(&node, true);
	(void)dcgmnode_read(&node, 0, 0);
	r = dcgmnode_read(&node, S, 0);
	assert_int_equal(r->active_ppm, 40 * PERCENT);
	assert_true(is_by_dcgm(r, GPU_KIND_ACTIVITY));
	assert_true(is_by_dcgm(r, GPU_KIND_TENSOR_ACTIVE));
}

static void
a_gpu_that_is_down_gets_nothing(void **state)
{
	const struct gpu_reading *r;

	(void)state;
	dcgmnode_init(&node, "name: d\n" HOPPER "faults:\n  - {gpu: 0, at: 2s, until: 4s, lost: true}\n");
	dcgmnode_open(&node, true);
	(void)dcgmnode_read(&node, 0, 0);
	(void)dcgmnode_read(&node, S, 0);
	r = dcgmnode_read(&node, 2 * S, 0);
	assert_true(r->down);
	assert_int_equal(r->active_ppm, ABSENT);
	assert_int_equal(r->by_dcgm, 0);
}

/* ---- what can be watched -------------------------------------------------------------------------------------------- */

#define MIXED                                                                           \
	"gpus:\n"                                                                       \
	"  - {model: NVIDIA A100-SXM4-80GB, memory_mib: 81920, count: 3}\n"             \
	"  - {model: Tesla P100-PCIE-16GB, memory_mib: 16280, dcp: false}\n"            \
	"  - {model: NVIDIA A10, memory_mib: 23028}\n"                                  \
	"  - model: NVIDIA A100-SXM4-80GB\n    memory_mib: 81920\n    mig: [7g.80gb]\n" \
	"processes:\n  - {pid: 10, gpu: [0, 1, 2, 3, 4], sm: 50}\n"                     \
	"  - {pid: 11, gpu: 5, instance: 0, sm: 50}\n"

static void
one_gpu_that_cannot_be_profiled_costs_the_others_nothing(void **state)
{
	static const char *const scenarios[] = {"name: d\n" MIXED, "name: d\ndcgm: {quirk: [untold]}\n" MIXED};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(scenarios); i++) {
		dcgmnode_init(&node, scenarios[i]);
		(void)dcgmnode_read(&node, 0, 0);
		for (size_t gpu = 0; gpu < 6; gpu++) {
			const struct gpu_reading *r = dcgmnode_read(&node, (int64_t)(gpu + 1) * S, gpu);

			if (gpu == 5)
				assert_int_equal(r->instances[0].active_ppm, 50 * PERCENT);
			else
				assert_int_equal(r->sm_active_ppm, gpu == 3 ? ABSENT : 45 * PERCENT);
			assert_int_equal(r->process_count, 1);
		}
		assert_int_equal(status().refused, 1);
		assert_int_equal(status().trouble.kind, ERR_RETRY);
		assert_non_null(strstr(status().trouble.text, node.node.snapshot->gpus[3].uuid));
		dcgmnode_fini(&node);
	}
}

static void
where_only_one_field_fits_it_is_activity(void **state)
{
	const struct gpu_reading *r;

	(void)state;
	dcgmnode_init(&node, "name: d\ndcgm: {quirk: [multi_pass]}\n" AMPERE_MIG);
	(void)dcgmnode_read(&node, 0, 0);
	r = dcgmnode_read(&node, S, 0);
	assert_int_equal(dcgmnode_instance(r, 5, 0)->active_ppm, 30 * PERCENT);
	assert_int_equal(dcgmnode_instance(r, 5, 0)->sm_active_ppm, ABSENT);
}

static void
an_engine_without_root_tells_of_whole_gpus_only(void **state)
{
	const struct gpu_reading *r;

	(void)state;
	dcgmnode_init(&node, "name: d\ndriver_quirk: unprivileged\n"
	                     "gpus:\n  - model: NVIDIA A100-SXM4-80GB\n    memory_mib: 81920\n    mig: [3g.40gb]\n"
	                     "  - {model: NVIDIA A100-SXM4-80GB, memory_mib: 81920}\n"
	                     "processes:\n  - {pid: 10, gpu: 0, instance: 0, sm: 50}\n  - {pid: 11, gpu: 1, sm: 50}\n");
	(void)dcgmnode_read(&node, 0, 0);
	r = dcgmnode_read(&node, S, 0);
	assert_int_equal(r->instances[0].active_ppm, ABSENT);
	assert_int_equal(node.node.snapshot->gpus[1].sm_active_ppm, 45 * PERCENT);
	assert_true(status().up);
	assert_non_null(strstr(status().trouble.text, "root"));
	/* that the instances are asked for again and again costs the other GPU nothing */
	for (int64_t t = 2; t < 30; t++) {
		(void)dcgmnode_read(&node, t * S, 0);
		assert_int_equal(node.node.snapshot->gpus[1].sm_active_ppm, 45 * PERCENT);
	}
}

static void
blank_numbers_are_absent_also_when_they_claim_success(void **state)
{
	const struct gpu_reading *r;

	(void)state;
	dcgmnode_init(&node,
	              "name: d\ndcgm: {quirk: [blanks]}\n"
	              "gpus:\n  - model: NVIDIA A100-SXM4-80GB\n    memory_mib: 81920\n    mig: [3g.40gb]\n"
	              "    readings: [\"0s pcie_tx_bytes_per_s=- @1/0 engine_active_ppm=- tensor_active_ppm=-\", "
	              "\"2s @1/0 tensor_active_ppm=250000\"]\n"
	              "processes:\n  - {pid: 10, gpu: 0, instance: 0, sm: 50}\n");
	r = dcgmnode_read(&node, 0, 0);
	assert_int_equal(r->instances[0].sm_active_ppm, ABSENT);
	for (int64_t t = 1; t <= 2; t++)
		r = dcgmnode_read(&node, t * S, 0);
	assert_int_equal(r->instances[0].sm_active_ppm, 45 * PERCENT);
	assert_int_equal(r->instances[0].active_ppm, ABSENT);
	assert_int_equal(r->instances[0].tensor_active_ppm, ABSENT);
	assert_int_equal(r->board.pcie_tx_bytes_per_s, ABSENT);
	r = dcgmnode_read(&node, 3 * S, 0);
	assert_int_equal(r->instances[0].tensor_active_ppm, 250000);
	assert_int_equal(status().clamped, 0);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(an_instance_on_ampere_has_the_activity_since_the_previous_reading, end_node),
		cmocka_unit_test_teardown(compute_instances_of_one_gpu_instance_are_measured_each_but_not_their_memory,
	                                  end_node),
		cmocka_unit_test_teardown(shares_above_the_whole_are_the_whole_and_counted, end_node),
		cmocka_unit_test_teardown(power_and_energy_stay_the_boards, end_node),
		cmocka_unit_test_teardown(an_instance_made_anew_under_the_same_ids_begins_anew, end_node),
		cmocka_unit_test_teardown(an_instance_that_dcgm_does_not_list_costs_the_others_nothing, end_node),
		cmocka_unit_test_teardown(an_instance_that_dcgm_lists_later_is_measured_from_then_on, end_node),
		cmocka_unit_test_teardown(an_instance_that_is_not_listed_is_said_beside_what_else_is_lacking, end_node),
		cmocka_unit_test_teardown(another_layout_is_not_read_from_the_view_of_the_one_before, end_node),
		cmocka_unit_test_teardown(a_gpu_without_counters_in_nvml_gets_all_of_dcgms, end_node),
		cmocka_unit_test_teardown(nvmls_counters_are_as_good_as_dcgms_unless_dcgm_is_wanted, end_node),
		cmocka_unit_test_teardown(a_gpu_that_is_down_gets_nothing, end_node),
		cmocka_unit_test_teardown(one_gpu_that_cannot_be_profiled_costs_the_others_nothing, end_node),
		cmocka_unit_test_teardown(where_only_one_field_fits_it_is_activity, end_node),
		cmocka_unit_test_teardown(an_engine_without_root_tells_of_whole_gpus_only, end_node),
		cmocka_unit_test_teardown(blank_numbers_are_absent_also_when_they_claim_success, end_node),
	};

	return cmocka_run_group_tests_name("dcgm", tests, NULL, NULL);
}
