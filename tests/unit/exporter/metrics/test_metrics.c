/* /metrics of a fixed node against golden files, and the pages that scrapes share. */
/* tsan */
#include <setjmp.h>
#include <stdarg.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "common/base/gz.h"
#include "common/base/time.h"
#include "common/base/units.h"
#include "exporter/metrics/metrics_render.h"
#include "tests/support/harness/golden.h"
#include "tests/support/exporter/pagegen.h"

static char none[] = "";

static struct wire_holder pod = {.kind = WIRE_POD,
                                 .ns = (char[]){"research"},
                                 .pod = (char[]){"train-0"},
                                 .pod_uid = (char[]){"0f1e"},
                                 .container = (char[]){"4d7a9b0c1e2f"},
                                 .slurm_job = none,
                                 .slurm_account = none,
                                 .user = none,
                                 .group = none,
                                 .labels = none,
                                 .uid = -1};
static struct wire_holder unnamed = {.kind = WIRE_POD,
                                     .ns = none,
                                     .pod = none,
                                     .pod_uid = (char[]){"aaaa-bbbb"},
                                     .container = (char[]){"0123456789ab"},
                                     .slurm_job = none,
                                     .slurm_account = none,
                                     .user = none,
                                     .group = none,
                                     .labels = none,
                                     .uid = -1};
static struct wire_holder job = {.kind = WIRE_SLURM_JOB,
                                 .ns = none,
                                 .pod = none,
                                 .pod_uid = none,
                                 .container = none,
                                 .slurm_job = (char[]){"4711"},
                                 .slurm_account = none,
                                 .user = (char[]){"al\"ice"},
                                 .group = none,
                                 .labels = none,
                                 .uid = 1000};

static struct wire_device gpu0 = {.id = 1,
                                  .gpu = 1,
                                  .uuid = (char[]){"GPU-aa"},
                                  .model = (char[]){"NVIDIA H100 80GB HBM3"},
                                  .profile = none,
                                  .gi = -1,
                                  .ci = -1,
                                  .units = UNITS_PER_GPU,
                                  .index = 0};
static struct wire_device gpu1 = {.id = 2,
                                  .gpu = 2,
                                  .uuid = (char[]){"GPU-bb"},
                                  .model = (char[]){"NVIDIA A100-SXM4-80GB"},
                                  .profile = none,
                                  .gi = -1,
                                  .ci = -1,
                                  .units = UNITS_PER_GPU,
                                  .index = 1};
static struct wire_device mig = {.id = 3,
                                 .gpu = 2,
                                 .uuid = (char[]){"MIG-cc"},
                                 .model = (char[]){"NVIDIA A100-SXM4-80GB"},
                                 .profile = (char[]){"3g.40gb"},
                                 .gi = 2,
                                 .ci = 0,
                                 .units = 2340,
                                 .index = 1};

/* Three GPUs: a whole one with two processes, one in MIG mode whose driver lacks much, and a lost one. */
struct fixture {
	struct gpu_reading *readings;
	struct tick_process on_gpu0[2], on_mig[1];
	struct tick_gpu gpus[3];
	struct tick tick;
	struct meter_total totals[3];
	struct meter_process_total process_totals[3];
	struct meter_intruder intruder;
	struct metrics_step steps[2];
	struct alloc_stats alloc;
	struct workload_row workloads[2];
	struct workload_stats workload_stats;
	struct metrics_input in;
};

/* All that a new driver has of a new board. */
static void
fill_board(struct gpu_reading *r)
{
	r->memory_active_ppm = 250000;
	r->sm_active_ppm = 800000;
	r->sm_occupancy_ppm = 400000;
	r->tensor_active_ppm = 300000;
	r->dram_active_ppm = 200000;
	r->board = (struct gpu_board){.graphics_clock_mhz = 1980,
	                              .sm_clock_mhz = 1965,
	                              .memory_clock_mhz = 2619,
	                              .video_clock_mhz = 1545,
	                              .memory_temperature_c = 70,
	                              .power_limit_mw = 700000,
	                              .throttle_reasons = 0x4 | 0x40,
	                              .encoder_ppm = 0,
	                              .decoder_ppm = 120000,
	                              .memory_reserved_bytes = 574619648,
	                              .memory_free_bytes = INT64_C(83872448512),
	                              .ecc_corrected = 12,
	                              .ecc_uncorrected = 1,
	                              .remapped_corrected = 2,
	                              .remapped_uncorrected = 1,
	                              .remap_pending = 1,
	                              .remap_failed = 0,
	                              .pcie_tx_bytes_per_s = 12345000,
	                              .pcie_rx_bytes_per_s = 67890000,
	                              .pcie_replays = 3,
	                              .pcie_generation = 5,
	                              .pcie_width = 16,
	                              .nvlink_tx_bytes = INT64_C(123456789012),
	                              .nvlink_rx_bytes = INT64_C(210987654321)};
	r->xids[r->xid_count++] =
		(struct gpu_xid){.code = 31, .count = 2, .last_wall_ns = INT64_C(1794807000250000000)};
}

static void
fill_readings(struct gpu_reading *r)
{
	for (int i = 0; i < 3; i++) {
		gpu_reading_clear(&r[i]);
		r[i].index = i;
	}
	snprintf(r[0].uuid, sizeof(r[0].uuid), "GPU-aa");
	snprintf(r[0].model, sizeof(r[0].model), "NVIDIA H100 80GB HBM3");
	snprintf(r[0].pci, sizeof(r[0].pci), "00000000:1B:00.0");
	r[0].active_ppm = 873000;
	r[0].memory_bytes = INT64_C(85520809984);
	r[0].memory_used_bytes = INT64_C(1073741824);
	r[0].power_mw = 412500;
	r[0].energy_mj = INT64_C(9007199254740993);
	r[0].temperature_c = 61;
	r[0].process_activity = true;
	fill_board(&r[0]);
	snprintf(r[1].uuid, sizeof(r[1].uuid), "GPU-bb");
	snprintf(r[1].model, sizeof(r[1].model), "NVIDIA A100-SXM4-80GB");
	r[1].mig = true;
	r[1].active_ppm = r[1].memory_bytes = r[1].memory_used_bytes = r[1].energy_mj = ABSENT;
	r[1].power_mw = 250000;
	r[1].temperature_c = 0;
	r[1].board.ecc_corrected = 0; /* a counter that stands at zero, and one that is not there */
	r[1].instance_count = 1;
	r[1].instances[0] = (struct gpu_instance){.gi = 2,
	                                          .placement_start = -1,
	                                          .ci = 0,
	                                          .units = 2340,
	                                          .memory_bytes = INT64_C(42949672960),
	                                          .memory_used_bytes = 4096,
	                                          .active_ppm = ABSENT,
	                                          .sm_active_ppm = 420000,
	                                          .sm_occupancy_ppm = 210000,
	                                          .tensor_active_ppm = 100000,
	                                          .dram_active_ppm = ABSENT};
	snprintf(r[1].instances[0].uuid, sizeof(r[1].instances[0].uuid), "MIG-cc");
	snprintf(r[1].instances[0].profile, sizeof(r[1].instances[0].profile), "3g.40gb");
	r[1].instances[r[1].instance_count++] = (struct gpu_instance){.gi = 9,
	                                                              .ci = 0,
	                                                              .units = 720,
	                                                              .memory_bytes = INT64_C(10200547328),
	                                                              .memory_used_bytes = ABSENT,
	                                                              .active_ppm = 10000,
	                                                              .sm_active_ppm = ABSENT,
	                                                              .sm_occupancy_ppm = ABSENT,
	                                                              .tensor_active_ppm = ABSENT,
	                                                              .dram_active_ppm = 5000};
	snprintf(r[1].instances[1].uuid, sizeof(r[1].instances[1].uuid), "MIG-ee");
	snprintf(r[1].instances[1].profile, sizeof(r[1].instances[1].profile), "1g.10gb");
	snprintf(r[2].uuid, sizeof(r[2].uuid), "GPU-dd");
	snprintf(r[2].model, sizeof(r[2].model), "NVIDIA H100 80GB HBM3");
	r[2].down = true;
	r[2].xids[r[2].xid_count++] =
		(struct gpu_xid){.code = 79, .count = 1, .last_wall_ns = INT64_C(1794807900000000000)};
}

/* A pod in cgroups of v2, with all there is, and a job in those of v1. */
static void
fill_workloads(struct fixture *f)
{
	f->workloads[0] = (struct workload_row){.holder = &pod,
	                                        .values = {[WORKLOAD_CPU_USER_NS] = INT64_C(1234567890000),
	                                                   [WORKLOAD_CPU_SYSTEM_NS] = 5000000,
	                                                   [WORKLOAD_MEMORY_BYTES] = INT64_C(34359738368),
	                                                   [WORKLOAD_MEMORY_WORKING_SET_BYTES] = INT64_C(30064771072),
	                                                   [WORKLOAD_MEMORY_ANON_BYTES] = INT64_C(25769803776),
	                                                   [WORKLOAD_MEMORY_PEAK_BYTES] = INT64_C(42949672960),
	                                                   [WORKLOAD_MEMORY_LIMIT_BYTES] = INT64_C(68719476736),
	                                                   [WORKLOAD_OOM_KILLS] = 0,
	                                                   [WORKLOAD_IO_READ_BYTES] = INT64_C(987654321098),
	                                                   [WORKLOAD_IO_WRITE_BYTES] = 4096,
	                                                   [WORKLOAD_PRESSURE_CPU_SOME_NS] = 1000,
	                                                   [WORKLOAD_PRESSURE_CPU_FULL_NS] = 2000,
	                                                   [WORKLOAD_PRESSURE_MEMORY_SOME_NS] = 3000,
	                                                   [WORKLOAD_PRESSURE_MEMORY_FULL_NS] = 4000,
	                                                   [WORKLOAD_PRESSURE_IO_SOME_NS] = 5000,
	                                                   [WORKLOAD_PRESSURE_IO_FULL_NS] = 6000}};
	f->workloads[1] = f->workloads[0];
	f->workloads[1].holder = &job;
	f->workloads[1].values[WORKLOAD_MEMORY_LIMIT_BYTES] = ABSENT;
	for (size_t i = WORKLOAD_PRESSURE_CPU_SOME_NS; i < WORKLOAD_VALUES; i++)
		f->workloads[1].values[i] = ABSENT;
	f->workload_stats = (struct workload_stats){.unread = 1, .failures = 2, .round_ns = 4000000};
}

static void
fixture_init(struct fixture *f)
{
	*f = (struct fixture){.readings = mem_array(3, sizeof(*f->readings))};
	fill_readings(f->readings);
	fill_workloads(f);
	f->on_gpu0[0] = (struct tick_process){
		.holder = &pod, .pid = 100, .gi = -1, .ci = -1, .memory_bytes = 1 << 30, .sm_ppm = 500000};
	f->on_gpu0[1] = (struct tick_process){
		.holder = &job, .pid = 200, .gi = -1, .ci = -1, .memory_bytes = ABSENT, .sm_ppm = 0};
	f->on_mig[0] = (struct tick_process){
		.holder = &unnamed, .pid = 300, .gi = 2, .ci = 0, .memory_bytes = 4096, .sm_ppm = ABSENT};
	f->gpus[0] = (struct tick_gpu){.reading = &f->readings[0], .processes = f->on_gpu0, .process_count = 2};
	f->gpus[1] = (struct tick_gpu){.reading = &f->readings[1], .processes = f->on_mig, .process_count = 1};
	f->gpus[2] = (struct tick_gpu){.reading = &f->readings[2]};
	f->tick = (struct tick){.boot_ns = 1, .gpus = f->gpus, .gpu_count = 3};
	f->totals[0] = (struct meter_total){
		&pod, &gpu0, &gpu0, (int128)UNITS_PER_GPU * 1500000000, UNITS_PER_GPU / 2 * (int128)NS_PER_S, 0};
	f->totals[1] = (struct meter_total){&job, &gpu0, &gpu0, 0, (int128)UNITS_PER_GPU * NS_PER_HOUR * 24 * 400, 0};
	f->totals[2] = (struct meter_total){&unnamed, &mig, &gpu1, 0, 0, (int128)2340 * 60 * NS_PER_S};
	f->process_totals[0] =
		(struct meter_process_total){.measured = true, .active_unit_ns = (int128)UNITS_PER_GPU * 1500000000};
	f->process_totals[1] = (struct meter_process_total){.measured = true};
	f->intruder = (struct meter_intruder){.holder = &job, .device = &gpu0, .gpu = &gpu0};
	f->alloc = (struct alloc_stats){.from_kubelet = 3,
	                                .from_slurm = 1,
	                                .unresolved = 1,
	                                .unmapped_processes = 3,
	                                .refused_files = 2,
	                                .kubelet = {.used = true, .up = true, .failures = 4},
	                                .kubelet_age_ns = 1500000000};
	f->steps[0] = (struct metrics_step){"gpus", true, 1000000};
	f->steps[1] = (struct metrics_step){"identity", false, 200000};
	f->in = (struct metrics_input){
		.node = "gn1",
		.version = "0.1.0",
		.source = "nvml",
		.driver = "550.163.01",
		.library = "12.550.163.01",
		.simulated = true,
		.tick = &f->tick,
		.process_metrics = true,
		.max_process_series = 1000,
		.process_totals = f->process_totals,
		.process_total_count = 3,
		.intruders = &f->intruder,
		.intruder_count = 1,
		.meter = {.short_processes = 5,
	                  .short_not_held = 1,
	                  .intrusions = 2,
	                  .energy_resets = 1,
	                  .unknown_slots = 3,
	                  .allocations_unknown = 1},
		.steps = f->steps,
		.step_count = 2,
		.alloc = &f->alloc,
		.workloads = f->workloads,
		.workload_count = 2,
		.workload_stats = &f->workload_stats,
		.gpus = {.listed = 5, .readable = 3, .down = 1},
		.silent_gpus = 1,
		.hanging_calls = 1,
		.silent_ns = 12500000000,
		.totals = f->totals,
		.total_count = 3,
		.outbox = {.spool = {.bytes = 123456,
	                             .segments = 2,
	                             .unacked_batches = 3,
	                             .lost_batches = 7,
	                             .corrupt_segments = 1,
	                             .torn_tails = 1,
	                             .foreign_segments = 2,
	                             .refused_batches = 1,
	                             .oldest_unacked_wall_ns = INT64_C(1794807900123456789)},
	                   .waiting = 4,
	                   .lost_waiting = 2},
		.pushes = true,
		.push = {.acked = 10, .moved = 1, .failed = 2, .last_success_wall_ns = INT64_C(1794807960000000000)},
		.ticks = 3600,
		.missed_ticks = 1,
		.failed_readings = 0,
		.tick_duration_ns = 1234567,
		.last_reading_wall_ns = INT64_C(1794807961500000000)};
}

static void
fixture_fini(struct fixture *f)
{
	mem_free(f->readings);
}

/* A page of its own. */
static void
render(const struct metrics_input *in, struct buf *out)
{
	struct metrics_memory memory;

	metrics_memory_init(&memory);
	buf_init(out, METRICS_MAX);
	metrics_render(in, &memory, out);
	metrics_memory_fini(&memory);
}

static void
the_page_of_a_known_node_is_the_golden_one(void **state)
{
	in_place(fixture) struct fixture f;
	in_place(buf) struct buf text, openmetrics;
	struct err err;

	(void)state;
	fixture_init(&f);
	buf_init(&openmetrics, METRICS_MAX);
	render(&f.in, &text);
	metrics_openmetrics(text.data, text.len, &openmetrics);
	if (!golden_check("exporter.metrics", text.data, text.len, &err) ||
	    !golden_check("exporter.openmetrics", openmetrics.data, openmetrics.len, &err))
		fail_msg("%s", err.text);
}

static void
promtool_finds_nothing_to_say(void **state)
{
	in_place(fixture) struct fixture f;
	in_place(buf) struct buf text;
	FILE *promtool;

	(void)state;
	if (system("command -v promtool >/dev/null") != 0)
		skip();
	fixture_init(&f);
	render(&f.in, &text);
	promtool = popen("promtool check metrics", "w");
	assert_non_null(promtool);
	assert_int_equal(fwrite(text.data, 1, text.len, promtool), text.len);
	assert_int_equal(pclose(promtool), 0);
}

static void
without_a_reading_only_the_exporter_speaks_of_itself(void **state)
{
	in_place(fixture) struct fixture f;
	in_place(buf) struct buf text;

	(void)state;
	fixture_init(&f);
	f.in.tick = NULL;
	f.in.pushes = false;
	f.in.total_count = 0;
	render(&f.in, &text);
	assert_null(strstr(text.data, "tollgate_gpu_"));
	assert_null(strstr(text.data, "tollgate_process_"));
	assert_null(strstr(text.data, "push"));
	assert_non_null(strstr(text.data, "tollgate_exporter_ticks_total 3600\n"));
}

static void
process_series_can_be_switched_off(void **state)
{
	in_place(fixture) struct fixture f;
	in_place(buf) struct buf text;

	(void)state;
	fixture_init(&f);
	f.in.process_metrics = false;
	render(&f.in, &text);
	assert_null(strstr(text.data, "tollgate_process_"));
	assert_non_null(strstr(text.data, "tollgate_workload_gpu_seconds_total"));
}

static size_t
occurrences(const struct buf *text, const char *of)
{
	size_t n = 0;

	for (const char *at = buf_text(text); (at = strstr(at, of)); at++)
		n++;
	return n;
}

static void
every_family_and_every_series_is_there_once(void **state)
{
	in_place(fixture) struct fixture f;
	in_place(buf) struct buf text;

	(void)state;
	fixture_init(&f);
	f.in.dcgm_hostname = "hostname";
	render(&f.in, &text);
	for (const char *at = text.data, *end; *at; at = end + 1) {
		char head[512];
		size_t len;

		end = strchr(at, '\n');
		/* a comment up to the end of the name, a sample up to its number */
		len = at[0] == '#' ? strlen("# HELP ") + strcspn(at + strlen("# HELP "), " ")
		                   : (size_t)((const char *)memrchr(at, ' ', (size_t)(end - at)) - at);
		snprintf(head, sizeof(head), "\n%.*s ", (int)len, at);
		if (occurrences(&text, head) != (at != text.data))
			fail_msg("twice:%s", head);
	}
}

static void
a_silent_gpu_has_its_name_and_its_errors_only(void **state)
{
	in_place(fixture) struct fixture f;
	in_place(buf) struct buf text;

	(void)state;
	fixture_init(&f);
	f.readings[0].silent = true;
	f.gpus[0].process_count = f.in.total_count = f.in.intruder_count = 0;
	render(&f.in, &text);
	assert_int_equal(occurrences(&text, "uuid=\"GPU-aa\""), 4);
	assert_non_null(strstr(text.data, "tollgate_gpu_info{gpu=\"0\""));
	assert_non_null(strstr(text.data,
	                       "tollgate_gpu_up{gpu=\"0\",uuid=\"GPU-aa\",gpu_model=\"H100-80GB\",node=\"gn1\"} 0\n"));
	assert_non_null(strstr(text.data, "tollgate_gpu_xid_errors_total{gpu=\"0\""));
	assert_non_null(strstr(text.data, "tollgate_gpu_xid_last_timestamp_seconds{gpu=\"0\""));
}

static bool
shows(const struct buf *text, unsigned pid)
{
	char label[32];

	snprintf(label, sizeof(label), ",pid=\"%u\"", pid);
	return strstr(buf_text(text), label);
}

static void
beyond_the_limit_the_processes_that_came_last_are_left_out(void **state)
{
	owned(pagegen) struct pagegen *g = pagegen_new(2, 10);
	struct metrics_memory memory;
	in_place(buf) struct buf text;

	(void)state;
	metrics_memory_init(&memory);
	buf_init(&text, METRICS_MAX);
	g->in.max_process_series = 3 * 12 + 2; /* a process is there with all its series or with none */
	for (size_t i = 0; i < g->process_count; i++)
		g->processes[i].start_boot_ns = (int64_t)(i * 7 % 20); /* in no order, none the same */
	for (int tick = 0; tick < 5; tick++) {
		metrics_render(&g->in, &memory, &text);
		for (size_t i = 0; i < g->process_count; i++)
			assert_int_equal(shows(&text, g->processes[i].pid), g->processes[i].start_boot_ns < 12);
		assert_int_equal(occurrences(&text, ",pid=\""), 36);
		assert_non_null(strstr(text.data, "tollgate_exporter_process_series_dropped 24\n"));
		pagegen_tick(g);
	}
	g->gpus[1].process_count = 0;
	g->in.process_total_count = 10;
	metrics_render(&g->in, &memory, &text);
	assert_int_equal(occurrences(&text, ",pid=\""), 30);
	assert_non_null(strstr(text.data, "tollgate_exporter_process_series_dropped 0\n"));
	metrics_memory_fini(&memory);
}

static void
holders_without_an_id_are_never_taken_for_each_other(void **state)
{
	in_place(fixture) struct fixture f;
	struct metrics_memory memory;
	in_place(buf) struct buf text;

	(void)state;
	fixture_init(&f);
	metrics_memory_init(&memory);
	buf_init(&text, METRICS_MAX);
	metrics_render(&f.in, &memory, &text);
	f.totals[0].holder = &job;
	f.totals[1].holder = &pod;
	metrics_render(&f.in, &memory, &text);
	assert_non_null(strstr(text.data, "slurm_job=\"4711\",user=\"al\\\"ice\",state=\"used\"} 1.500000000\n"));
	metrics_memory_fini(&memory);
}

static void
a_page_stays_as_it_is_while_someone_reads_it(void **state)
{
	in_place(fixture) struct fixture f;
	owned(metrics) struct metrics *m = metrics_new();
	struct metrics_page *page;
	const void *bytes, *again, *zipped;
	size_t len, again_len, zipped_len;
	in_place(buf) struct buf plain;
	struct err err;

	(void)state;
	fixture_init(&f);
	assert_null(metrics_get(m));
	metrics_publish(m, &f.in);
	page = metrics_get(m);
	metrics_page_bytes(page, PROM_TEXT, false, &bytes, &len);
	for (int i = 0; i < 5; i++) {
		f.in.ticks++;
		metrics_publish(m, &f.in);
	}
	metrics_page_bytes(page, PROM_TEXT, false, &again, &again_len);
	assert_ptr_equal(bytes, again);
	assert_non_null(memmem(bytes, len, "tollgate_exporter_ticks_total 3600\n", 35));
	metrics_page_bytes(page, PROM_TEXT, true, &zipped, &zipped_len);
	metrics_page_bytes(page, PROM_TEXT, true, &again, &again_len);
	assert_ptr_equal(zipped, again); /* compressed once */
	buf_init(&plain, METRICS_MAX);
	assert_true(gz_expand(zipped, zipped_len, &plain, &err));
	assert_int_equal(plain.len, len);
	assert_memory_equal(plain.data, bytes, len);
	metrics_page_release(page);
}

struct scraper {
	struct metrics *metrics;
	bool seen_all;
};

static void *
scrape(void *arg)
{
	struct scraper *s = arg;

	s->seen_all = true;
	for (int i = 0; i < 300; i++) {
		struct metrics_page *page = metrics_get(s->metrics);
		const void *bytes;
		size_t len;

		metrics_page_bytes(page, (enum prom_format)(i % 2), i % 3 == 0, &bytes, &len);
		s->seen_all = s->seen_all && len > 100;
		metrics_page_release(page);
	}
	return NULL;
}

static void
scrapes_and_ticks_do_not_disturb_each_other(void **state)
{
	in_place(fixture) struct fixture f;
	owned(metrics) struct metrics *m = metrics_new();
	struct scraper scrapers[3];
	pthread_t threads[3];

	(void)state;
	fixture_init(&f);
	metrics_publish(m, &f.in);
	for (size_t i = 0; i < 3; i++) {
		scrapers[i].metrics = m;
		assert_int_equal(pthread_create(&threads[i], NULL, scrape, &scrapers[i]), 0);
	}
	for (int i = 0; i < 300; i++)
		metrics_publish(m, &f.in);
	for (size_t i = 0; i < 3; i++) {
		pthread_join(threads[i], NULL);
		assert_true(scrapers[i].seen_all);
	}
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_page_of_a_known_node_is_the_golden_one),
		cmocka_unit_test(promtool_finds_nothing_to_say),
		cmocka_unit_test(without_a_reading_only_the_exporter_speaks_of_itself),
		cmocka_unit_test(process_series_can_be_switched_off),
		cmocka_unit_test(every_family_and_every_series_is_there_once),
		cmocka_unit_test(a_silent_gpu_has_its_name_and_its_errors_only),
		cmocka_unit_test(beyond_the_limit_the_processes_that_came_last_are_left_out),
		cmocka_unit_test(holders_without_an_id_are_never_taken_for_each_other),
		cmocka_unit_test(a_page_stays_as_it_is_while_someone_reads_it),
		cmocka_unit_test(scrapes_and_ticks_do_not_disturb_each_other),
	};

	return cmocka_run_group_tests_name("metrics", tests, NULL, NULL);
}
