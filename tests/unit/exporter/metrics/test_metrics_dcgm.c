/* dcgm-exporter's names for a fixed node against a golden file, and what is counted once where the original repeats it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "common/base/time.h"
#include "common/base/units.h"
#include "exporter/metrics/metrics_render.h"
#include "tests/support/harness/golden.h"

static char none[] = "";

#define POD(number, name)                                                                            \
	{                                                                                            \
		.id = (number), .kind = WIRE_POD, .ns = (char[]){"research"}, .pod = (char[]){name}, \
		.pod_uid = (char[]){name "-uid"}, .container = (char[]){"main"}, .slurm_job = none,  \
		.slurm_account = none, .user = none, .group = none, .labels = none, .uid = -1        \
	}
static struct wire_holder alone = POD(1, "alone"), first = POD(2, "first"), second = POD(3, "second"),
			  in_mig = POD(4, "in-mig");
static struct wire_holder job = {.id = 5,
                                 .kind = WIRE_SLURM_JOB,
                                 .ns = none,
                                 .pod = none,
                                 .pod_uid = none,
                                 .container = none,
                                 .slurm_job = (char[]){"4711"},
                                 .slurm_account = none,
                                 .user = (char[]){"alice"},
                                 .group = none,
                                 .labels = none,
                                 .uid = 1000};

/* An own GPU, a shared one, one in MIG mode, one of a job, a lost one. */
enum { OWN, SHARED, CUT, OF_JOB, LOST, GPUS };
#define TOTALS 6

struct fixture {
	struct gpu_reading *readings;
	struct wire_device gpus[GPUS], instances[2];
	struct tick_process on_own[1], on_shared[3], on_cut[2], on_job[1];
	struct tick_gpu tick_gpus[GPUS];
	struct tick tick;
	struct meter_total totals[TOTALS];
	struct dcgm_links links;
	struct metrics_input in;
};

static void
fill_gpu(struct fixture *f, int i)
{
	struct gpu_reading *r = &f->readings[i];

	gpu_reading_clear(r);
	r->index = i;
	snprintf(r->uuid, sizeof(r->uuid), "GPU-%d", i);
	snprintf(r->model, sizeof(r->model), "NVIDIA H100 80GB HBM3");
	snprintf(r->pci, sizeof(r->pci), "00000000:%02X:00.0", 0x1b + i);
	r->active_ppm = 873000;
	r->memory_active_ppm = 250000;
	r->memory_bytes = INT64_C(85520809984);
	r->memory_used_bytes = INT64_C(4) << 30;
	r->power_mw = 412500;
	r->energy_mj = 123456789;
	r->temperature_c = 61;
	r->tensor_active_ppm = 300000;
	r->dram_active_ppm = 200000;
	r->process_activity = true;
	r->board = (struct gpu_board){.sm_clock_mhz = 1965,
	                              .memory_clock_mhz = 2619,
	                              .memory_temperature_c = 70,
	                              .encoder_ppm = 0,
	                              .decoder_ppm = 120000,
	                              .memory_reserved_bytes = 574619648,
	                              .memory_free_bytes = INT64_C(80651223040),
	                              .remapped_corrected = 2,
	                              .remapped_uncorrected = 1,
	                              .remap_failed = 0,
	                              .pcie_tx_bytes_per_s = 12345000,
	                              .pcie_rx_bytes_per_s = 67890000,
	                              .pcie_replays = 3,
	                              .nvlink_tx_bytes = 1000,
	                              .nvlink_rx_bytes = 2000};
	f->gpus[i] = (struct wire_device){.id = (uint32_t)i + 1, .uuid = r->uuid, .gi = -1, .ci = -1};
	f->tick_gpus[i].reading = r;
}

/* One GPU instance with two compute instances. */
static void
cut(struct fixture *f)
{
	struct gpu_reading *r = &f->readings[CUT];

	r->mig = true;
	r->active_ppm = r->tensor_active_ppm = r->dram_active_ppm = ABSENT;
	r->instance_count = 2;
	for (int i = 0; i < 2; i++) {
		struct gpu_instance *in = &r->instances[i];

		*in = (struct gpu_instance){.gi = 2,
		                            .ci = i,
		                            .compute_slices = 1 + i,
		                            .memory_bytes = INT64_C(40) << 30,
		                            .memory_used_bytes = INT64_C(3) << 30,
		                            .active_ppm = i ? 600000 : 300000,
		                            .tensor_active_ppm = ABSENT,
		                            .dram_active_ppm = 100000};
		snprintf(in->uuid, sizeof(in->uuid), "MIG-%d", i);
		snprintf(in->profile, sizeof(in->profile), "%dc.3g.40gb", 1 + i);
		f->instances[i] = (struct wire_device){.id = 10 + (uint32_t)i, .uuid = in->uuid, .gi = 2, .ci = i};
	}
}

static struct tick_process
process(const struct wire_holder *h, int gi, int ci, int64_t mib, int64_t sm_ppm)
{
	return (struct tick_process){
		.holder = h, .pid = 100, .gi = gi, .ci = ci, .memory_bytes = mib << 20, .sm_ppm = sm_ppm};
}

static void
fill_holders(struct fixture *f)
{
	f->on_own[0] = process(&alone, -1, -1, 4096, 870000);
	f->on_shared[0] = process(&first, -1, -1, 1024, 500000);
	f->on_shared[1] = process(&first, -1, -1, 512, 100000);
	f->on_shared[2] = process(&second, -1, -1, 2048, ABSENT);
	f->on_cut[0] = process(&in_mig, 2, 0, 1024, ABSENT);
	f->on_cut[1] = process(&in_mig, 2, 1, 2048, ABSENT);
	f->on_job[0] = process(&job, -1, -1, 4096, 870000);
	f->tick_gpus[OWN].processes = f->on_own;
	f->tick_gpus[OWN].process_count = 1;
	f->tick_gpus[SHARED].processes = f->on_shared;
	f->tick_gpus[SHARED].process_count = 3;
	f->tick_gpus[CUT].processes = f->on_cut;
	f->tick_gpus[CUT].process_count = 2;
	f->tick_gpus[OF_JOB].processes = f->on_job;
	f->tick_gpus[OF_JOB].process_count = 1;
	f->totals[0] = (struct meter_total){.holder = &alone, .device = &f->gpus[OWN], .gpu = &f->gpus[OWN]};
	f->totals[1] = (struct meter_total){.holder = &first, .device = &f->gpus[SHARED], .gpu = &f->gpus[SHARED]};
	f->totals[2] = (struct meter_total){.holder = &second, .device = &f->gpus[SHARED], .gpu = &f->gpus[SHARED]};
	f->totals[3] = (struct meter_total){.holder = &in_mig, .device = &f->instances[0], .gpu = &f->gpus[CUT]};
	f->totals[4] = (struct meter_total){.holder = &in_mig, .device = &f->instances[1], .gpu = &f->gpus[CUT]};
	f->totals[5] = (struct meter_total){.holder = &job, .device = &f->gpus[OF_JOB], .gpu = &f->gpus[OF_JOB]};
}

static void
fixture_init(struct fixture *f)
{
	*f = (struct fixture){.readings = mem_array(GPUS, sizeof(*f->readings))};
	for (int i = 0; i < GPUS; i++)
		fill_gpu(f, i);
	cut(f);
	f->readings[OWN].xids[0] = (struct gpu_xid){.code = 31, .count = 2, .last_wall_ns = 10};
	f->readings[OWN].xids[1] = (struct gpu_xid){.code = 63, .count = 1, .last_wall_ns = 20};
	f->readings[OWN].xid_count = 2;
	f->readings[LOST].down = true;
	fill_holders(f);
	f->tick = (struct tick){.boot_ns = NS_PER_S, .gpus = f->tick_gpus, .gpu_count = GPUS};
	dcgm_links_update(&f->links, &f->tick);
	f->tick.boot_ns += 2 * NS_PER_S;
	f->readings[OWN].board.nvlink_tx_bytes += INT64_C(2048000000);
	dcgm_links_update(&f->links, &f->tick);
	f->in = (struct metrics_input){.node = "gn1",
	                               .version = "0.1.0",
	                               .source = "nvml",
	                               .driver = "550.163.01",
	                               .library = "12.550.163.01",
	                               .tick = &f->tick,
	                               .totals = f->totals,
	                               .total_count = TOTALS,
	                               .dcgm_hostname = "Hostname",
	                               .dcgm_links = &f->links,
	                               .last_reading_wall_ns = -1};
}

static void
fixture_fini(struct fixture *f)
{
	mem_free(f->readings);
}

/* The lines of dcgm-exporter's families. */
static void
render(const struct metrics_input *in, struct buf *out)
{
	struct metrics_memory memory;
	in_place(buf) struct buf page;

	metrics_memory_init(&memory);
	buf_init(&page, METRICS_MAX);
	buf_init(out, METRICS_MAX);
	metrics_render(in, &memory, &page);
	for (char *text = page.data, *line; (line = strsep(&text, "\n"));)
		if (strstr(line, "DCGM_FI_DEV") || strstr(line, "DCGM_FI_PROF"))
			buf_printf(out, "%s\n", line);
	metrics_memory_fini(&memory);
}

static void
the_default_list_of_dcgm_exporter_is_the_golden_one(void **state)
{
	in_place(fixture) struct fixture f;
	in_place(buf) struct buf text;
	struct err err;

	(void)state;
	fixture_init(&f);
	render(&f.in, &text);
	if (!golden_check("exporter.dcgm", text.data, text.len, &err))
		fail_msg("%s", err.text);
}

static void
the_label_of_the_host_is_spelled_as_told(void **state)
{
	in_place(fixture) struct fixture f;
	in_place(buf) struct buf text;

	(void)state;
	fixture_init(&f);
	f.in.dcgm_hostname = "hostname";
	render(&f.in, &text);
	assert_non_null(strstr(text.data, ",hostname=\"gn1\","));
	assert_null(strstr(text.data, ",Hostname="));
}

static void
the_uid_of_a_pod_is_there_when_asked_for(void **state)
{
	in_place(fixture) struct fixture f;
	in_place(buf) struct buf text;

	(void)state;
	fixture_init(&f);
	f.in.dcgm_pod_uid = true;
	render(&f.in, &text);
	assert_non_null(strstr(text.data, ",namespace=\"research\",pod=\"alone\",pod_uid=\"alone-uid\"} 1965\n"));
}

static void
without_the_option_there_is_none_of_it(void **state)
{
	in_place(fixture) struct fixture f;
	in_place(buf) struct buf text;

	(void)state;
	fixture_init(&f);
	f.in.dcgm_hostname = NULL;
	render(&f.in, &text);
	assert_int_equal(text.len, 0);
}

/* The sum over all samples of a family whose labels have the text. */
static double
sum(const struct buf *text, const char *family, const char *with)
{
	double sum = 0;

	for (const char *at = buf_text(text); (at = strstr(at, family)); at++) {
		const char *end = strchr(at, '\n');
		const char *value = memrchr(at, ' ', (size_t)(end - at));
		double v;

		if (at[strlen(family)] == '{' && memmem(at, (size_t)(end - at), with, strlen(with)) &&
		    sscanf(value, "%lf", &v) == 1)
			sum += v;
	}
	return sum;
}

static void
nothing_of_a_board_is_counted_twice(void **state)
{
	in_place(fixture) struct fixture f;
	in_place(buf) struct buf text;

	(void)state;
	fixture_init(&f);
	render(&f.in, &text);
	for (int i = 0; i < LOST; i++) {
		char gpu[32];

		snprintf(gpu, sizeof(gpu), "UUID=\"GPU-%d\"", i);
		assert_true(sum(&text, "DCGM_FI_DEV_POWER_USAGE", gpu) == 412.5);
		assert_true(sum(&text, "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", gpu) == 123456789);
	}
	assert_true(sum(&text, "DCGM_FI_DEV_GPU_UTIL", "UUID=\"GPU-1\"") == 60);
	assert_true(sum(&text, "DCGM_FI_DEV_FB_USED", "UUID=\"GPU-1\"") == 1024 + 512 + 2048);
	assert_true(sum(&text, "DCGM_FI_DEV_FB_USED", "pod=\"first\"") == 1024 + 512);
	assert_true(sum(&text, "DCGM_FI_DEV_FB_USED", "UUID=\"GPU-2\"") == 3072);
	assert_null(strstr(text.data, "GPU-4")); /* the lost one */
}

static void
where_the_driver_tells_processes_not_apart_a_shared_gpu_is_shown_once(void **state)
{
	in_place(fixture) struct fixture f;
	in_place(buf) struct buf text;

	(void)state;
	fixture_init(&f);
	f.readings[SHARED].process_activity = false;
	render(&f.in, &text);
	assert_true(sum(&text, "DCGM_FI_DEV_GPU_UTIL", "UUID=\"GPU-1\"") == 87);
	assert_true(sum(&text, "DCGM_FI_DEV_GPU_UTIL", "pod=\"first\"") == 0);
}

static void
a_link_counter_that_stands_is_no_traffic_and_one_that_falls_no_rate(void **state)
{
	in_place(fixture) struct fixture f;

	(void)state;
	fixture_init(&f);
	assert_int_equal(dcgm_links_rate(&f.links, "GPU-0"), 1024000000);
	assert_int_equal(dcgm_links_rate(&f.links, "GPU-1"), 0);
	assert_int_equal(dcgm_links_rate(&f.links, "GPU-9"), ABSENT);
	f.tick.boot_ns += NS_PER_S;
	dcgm_links_update(&f.links, &f.tick);
	assert_int_equal(dcgm_links_rate(&f.links, "GPU-0"), 0);
	f.tick.boot_ns += NS_PER_S;
	f.readings[OWN].board.nvlink_tx_bytes = 5;
	dcgm_links_update(&f.links, &f.tick);
	assert_int_equal(dcgm_links_rate(&f.links, "GPU-0"), ABSENT);
	f.tick.boot_ns += NS_PER_S;
	f.readings[OWN].board.nvlink_tx_bytes += 100;
	dcgm_links_update(&f.links, &f.tick);
	assert_int_equal(dcgm_links_rate(&f.links, "GPU-0"), 100);
	f.tick.boot_ns += NS_PER_S;
	f.readings[OWN].board.nvlink_tx_bytes = ABSENT;
	dcgm_links_update(&f.links, &f.tick);
	assert_int_equal(dcgm_links_rate(&f.links, "GPU-0"), ABSENT);
}

static void
who_has_a_part_of_a_gpu_and_no_process_on_it_uses_nothing(void **state)
{
	in_place(fixture) struct fixture f;
	in_place(buf) struct buf text;

	(void)state;
	fixture_init(&f);
	f.tick_gpus[SHARED].process_count = 2; /* none of the second pod */
	render(&f.in, &text);
	assert_non_null(strstr(text.data, "pod=\"second\"} 0\n"));
	assert_true(sum(&text, "DCGM_FI_DEV_FB_USED", "UUID=\"GPU-1\"") == 1024 + 512);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_default_list_of_dcgm_exporter_is_the_golden_one),
		cmocka_unit_test(the_label_of_the_host_is_spelled_as_told),
		cmocka_unit_test(the_uid_of_a_pod_is_there_when_asked_for),
		cmocka_unit_test(without_the_option_there_is_none_of_it),
		cmocka_unit_test(nothing_of_a_board_is_counted_twice),
		cmocka_unit_test(where_the_driver_tells_processes_not_apart_a_shared_gpu_is_shown_once),
		cmocka_unit_test(a_link_counter_that_stands_is_no_traffic_and_one_that_falls_no_rate),
		cmocka_unit_test(who_has_a_part_of_a_gpu_and_no_process_on_it_uses_nothing),
	};

	return cmocka_run_group_tests_name("metrics_dcgm", tests, NULL, NULL);
}
