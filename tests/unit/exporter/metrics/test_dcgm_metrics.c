/* tests/unit/exporter/metrics/test_dcgm_metrics.c - what /metrics says of DCGM: which source told what, and how DCGM is. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <string.h>

#include "common/base/time.h"
#include "exporter/metrics/metrics_render.h"
#include "tests/support/exporter/dcgmnode.h"

#define S NS_PER_S

static const char scenario[] =
	"name: d\ndcgm: {outages: [{at: 10s, until: 12s}]}\n"
	"gpus:\n  - {model: NVIDIA A100-SXM4-80GB, memory_mib: 81920}\n"
	"  - model: NVIDIA A100-SXM4-80GB\n    memory_mib: 81920\n    mig: [3g.40gb, 1g.10gb]\n"
	"processes:\n  - {pid: 10, gpu: 0, sm: 40}\n  - {pid: 11, gpu: 1, instance: 0, sm: 80}\n";

static struct dcgmnode node;

static int
end_node(void **state)
{
	(void)state;
	if (node.handle)
		dcgmnode_fini(&node);
	return 0;
}

/* The page of a moment, made of the one before it. */
static void
render_at(int64_t t_ns, struct metrics_memory *m, struct buf *page)
{
	struct tick_gpu gpus[2] = {{0}};
	struct tick tick = {.boot_ns = SIMNODE_T0_NS + t_ns, .gpus = gpus, .gpu_count = 2};
	struct dcgm_status status;
	struct metrics_input in = {.node = "n",
	                           .version = "v",
	                           .source = "nvml",
	                           .driver = "d",
	                           .library = "l",
	                           .simulated = true,
	                           .tick = &tick,
	                           .dcgm = &status,
	                           .last_reading_wall_ns = -1};

	(void)dcgmnode_read(&node, t_ns, 1);
	dcgm_status(node.dcgm, &status);
	for (size_t i = 0; i < 2; i++)
		gpus[i].reading = &node.node.snapshot->gpus[i];
	metrics_render(&in, m, page);
}

static bool
has(struct buf *page, const char *line)
{
	return strstr(buf_text(page), line) != NULL;
}

static void
each_kind_of_value_names_the_source_that_told_it(void **state)
{
	struct metrics_memory m;
	in_place(buf) struct buf page;

	(void)state;
	dcgmnode_init(&node, scenario);
	metrics_memory_init(&m);
	buf_init(&page, METRICS_MAX);
	render_at(0, &m, &page);
	assert_true(has(&page, "tollgate_exporter_source_info{source=\"nvml\",field=\"gpu_activity\"} 1\n"));
	assert_false(has(&page, "field=\"mig_activity\""));
	render_at(S, &m, &page);
	assert_false(has(&page, "source=\"nvml\",field=\"gpu_activity\""));
	assert_true(
		has(&page,
	            "tollgate_exporter_source_info{source=\"dcgm\",library_version=\"4.2.3\",simulated=\"true\"} 1\n"));
	assert_true(has(&page, "tollgate_exporter_source_info{source=\"dcgm\",field=\"gpu_activity\"} 1\n"));
	assert_true(has(&page, "tollgate_exporter_source_info{source=\"dcgm\",field=\"mig_activity\"} 1\n"));
	assert_true(has(&page, "profile=\"3g.40gb\",pipe=\"fp32\"} 0.240000\n"));
	assert_true(has(&page, "tollgate_exporter_dcgm_up 1\n"));
	assert_true(has(&page, "tollgate_exporter_dcgm_watched 6\n"));
	render_at(10 * S, &m, &page);
	assert_true(has(&page, "tollgate_exporter_dcgm_up 0\n"));
	assert_true(has(&page, "tollgate_exporter_dcgm_failures_total 1\n"));
	assert_true(has(&page, "source=\"nvml\",field=\"gpu_activity\""));
	assert_false(has(&page, "source=\"dcgm\""));
	metrics_memory_fini(&m);
}

/* Rendering the next page over the last one must not be seen in it. */
static void
a_page_made_of_the_one_before_equals_one_made_anew(void **state)
{
	struct metrics_memory old, fresh;
	in_place(buf) struct buf page, again;

	(void)state;
	dcgmnode_init(&node, scenario);
	metrics_memory_init(&old);
	buf_init(&page, METRICS_MAX);
	for (int64_t t = 0; t < 20; t++) {
		buf_init(&again, METRICS_MAX);
		metrics_memory_init(&fresh);
		render_at(t * S, &old, &page);
		render_at(t * S, &fresh, &again);
		assert_string_equal(buf_text(&page), buf_text(&again));
		metrics_memory_fini(&fresh);
		buf_fini(&again);
	}
	buf_init(&again, 1);
	metrics_memory_fini(&old);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(each_kind_of_value_names_the_source_that_told_it, end_node),
		cmocka_unit_test_teardown(a_page_made_of_the_one_before_equals_one_made_anew, end_node),
	};

	return cmocka_run_group_tests_name("dcgm_metrics", tests, NULL, NULL);
}
