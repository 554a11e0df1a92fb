/* Whole ticks on the NVML simulator, on a clock that the test moves: from a scenario to the batches in the spool. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

#include "common/wire/frame.h"
#include "common/base/time.h"
#include "common/base/units.h"
#include "exporter/sampler.h"
#include "tests/support/exporter/simnode.h"
#include "tests/support/exporter/spooldir.h"

#define S NS_PER_S

static const char scenario[] =
	"name: lab\n"
	"gpus:\n"
	"  - {model: NVIDIA H100 80GB HBM3, memory_mib: 81920, count: 2}\n"
	"processes:\n"
	"  - {pid: 100, gpu: 0, sm: 50, memory_mib: 1024, pod: {namespace: team, name: train-0}}\n"
	"  - {pid: 200, gpu: 1, start: 30s, end: 75300ms, sm: 100, uid: 0, cgroup: /slurm/uid_0/job_7/step_0}\n"
	"faults:\n"
	"  - {gpu: 1, at: 200s, until: 210s, lost: true}\n"
	"  - {at: 300s, until: 307s, unloaded: true}\n";

struct bench {
	struct simnode node;
	struct spooldir dir;
	struct spool_options options;
	struct outbox *outbox;
	struct metrics *metrics;
	struct reader *reader;
	struct sampler *sampler;
	int64_t wall0_ns; /* wall time of virtual time 0 */
	struct sampler_report last;
};

static void
bench_init_with(struct bench *b, const char *yaml, int64_t patience_ns)
{
	struct sampler_options o = {.node = "gn1",
	                            .version = "test",
	                            .sample_interval_ns = S,
	                            .interval_ns = 60 * S,
	                            .read_patience_ns = patience_ns,
	                            .replicas = 1,
	                            .process_metrics = true};
	struct spool *spool = NULL;
	struct err err;

	*b = (struct bench){.wall0_ns = SPOOLDIR_WALL};
	simnode_init(&b->node, yaml);
	simnode_show_processes(&b->node);
	spooldir_init(&b->dir);
	b->options = spooldir_options(&b->dir);
	if (!spool_open(&b->options, b->wall0_ns, &spool, &err))
		fail_msg("%s", err.text);
	b->outbox = outbox_new(spool, &b->options);
	b->metrics = metrics_new();
	o.identity = (struct identity_options){.proc_root = b->node.proc, .pods_root = b->node.pods};
	b->reader = simnode_reader(&b->node);
	b->sampler = sampler_new(&o, b->reader, b->outbox, NULL, b->metrics, SIMNODE_T0_NS, b->wall0_ns);
}

static void
bench_init(struct bench *b)
{
	bench_init_with(b, scenario, SIMNODE_PATIENCE_NS);
}

static void
bench_fini(struct bench *b)
{
	sampler_free(b->sampler);
	reader_free(b->reader);
	metrics_free(b->metrics);
	outbox_free(b->outbox);
	spooldir_fini(&b->dir);
	simnode_fini(&b->node);
}

static void
play(struct bench *b, int64_t from_ns, int64_t to_ns)
{
	for (int64_t t = from_ns; t <= to_ns; t += S) {
		b->node.set_time_ns(t);
		sampler_tick(b->sampler, SIMNODE_T0_NS + t, b->wall0_ns + t, &b->last);
	}
}

/* What arrived, by holder and by state without one, in nanoseconds of a whole GPU. */
struct bill {
	int64_t pod, pod_used, job, job_used, unallocated, down, unknown;
	int128 unit_ns;
	int64_t covered_ns; /* by all batches */
	int64_t from_ns, to_ns;
	size_t streams, batches;
};

static void
book(struct bill *bill, const struct wire_batch *b, uint32_t *pod_id, uint32_t *job_id)
{
	if (b->kind == WIRE_LOSS)
		return;
	for (size_t i = 0; i < b->holder_count; i++)
		*(b->holders[i].kind == WIRE_POD ? pod_id : job_id) = b->holders[i].id;
	for (size_t i = 0; i < b->record_count; i++) {
		const struct wire_record *r = &b->records[i];
		int64_t ns = (int64_t)((int128)r->units * r->held_ns / UNITS_PER_GPU);

		bill->unit_ns += (int128)r->units * r->held_ns;
		bill->pod += r->holder && r->holder == *pod_id ? ns : 0;
		bill->pod_used += r->holder && r->holder == *pod_id ? r->used_ns : 0;
		bill->job += r->holder && r->holder == *job_id ? ns : 0;
		bill->job_used += r->holder && r->holder == *job_id ? r->used_ns : 0;
		bill->unallocated += r->state == WIRE_UNALLOCATED ? ns : 0;
		bill->down += r->state == WIRE_DOWN ? ns : 0;
		bill->unknown += r->state == WIRE_UNKNOWN ? ns : 0;
	}
	bill->covered_ns += b->to_ns - b->from_ns;
	bill->from_ns = bill->batches++ == 0 ? b->from_ns : bill->from_ns;
	bill->to_ns = b->to_ns;
}

static void
collect(struct bench *b, struct bill *bill)
{
	in_place(buf) struct buf frames;
	struct spool_chunk chunk;
	uint64_t epoch = 0;
	uint32_t pod_id = 0, job_id = 0;
	struct err err;
	bool any;

	*bill = (struct bill){0};
	sampler_finish(b->sampler, b->wall0_ns, &b->last);
	assert_int_equal(b->last.storing.kind, ERR_NONE);
	buf_init(&frames, FRAME_HEAD + FRAME_MAX);
	while (outbox_peek(b->outbox, 1, &frames, &chunk, &any, &err) && any) {
		owned(wire_batch) struct wire_batch *batch = NULL;

		if (!wire_unpack(frames.data + FRAME_HEAD, frames.len - FRAME_HEAD, &batch, &err) ||
		    !wire_check(batch, &err))
			fail_msg("%s", err.text);
		if (chunk.epoch < epoch) { /* the end of the stream before, offered once more */
			assert_true(outbox_ack(b->outbox, chunk.epoch, chunk.last_seq + 1, b->wall0_ns, &err));
			continue;
		}
		if (chunk.epoch != epoch)
			pod_id = job_id = 0;
		bill->streams += chunk.epoch != epoch;
		epoch = chunk.epoch;
		assert_string_equal(batch->node, "gn1");
		assert_int_equal(batch->flags, WIRE_SIMULATED);
		book(bill, batch, &pod_id, &job_id);
		assert_true(outbox_ack(b->outbox, epoch, chunk.last_seq + 1, b->wall0_ns, &err));
	}
	assert_true(bill->unit_ns == (int128)UNITS_PER_GPU * 2 * bill->covered_ns);
}

/* A start time has the kernel's resolution of 10 ms, an end that of the tick. */
static void
assert_about(int64_t got_ns, int64_t want_ns)
{
	assert_in_range(got_ns, want_ns - 10 * NS_PER_MS, want_ns + S + 10 * NS_PER_MS);
}

static void
holders_are_billed_what_the_scenario_gave_them_to_within_a_tick(void **state)
{
	in_place(bench) struct bench b;
	struct bill bill;

	(void)state;
	bench_init(&b);
	play(&b, 0, 180 * S);
	collect(&b, &bill);
	assert_int_equal(bill.streams, 1);
	assert_int_equal(bill.batches, 3);
	assert_int_equal(bill.covered_ns, 180 * S);
	assert_int_equal(bill.pod, 180 * S);
	assert_int_equal(bill.pod_used, 90 * S);
	assert_about(bill.job, 45300 * NS_PER_MS);
	assert_in_range(bill.job_used, 45 * S, 45310 * NS_PER_MS);
	assert_int_equal(bill.unallocated, 180 * S - bill.job);
}

/* The value of the first sample on the page that has both texts in its line. */
static double
on_page(struct bench *b, const char *name, const char *label)
{
	struct metrics_page *page = metrics_get(b->metrics);
	owned(mem) char *text = NULL;
	const void *bytes;
	double value = -1;
	size_t len;

	metrics_page_bytes(page, PROM_TEXT, false, &bytes, &len);
	text = mem_strndup(bytes, len);
	metrics_page_release(page);
	for (char *rest = text, *line; (line = strsep(&rest, "\n")) != NULL;)
		if (line[0] != '#' && strstr(line, name) && strstr(line, label) && strrchr(line, ' ')) {
			value = strtod(strrchr(line, ' '), NULL);
			break;
		}
	return value;
}

static void
no_counter_falls_when_the_clock_is_stepped(void **state)
{
	static const struct {
		const char *name, *label;
	} counters[] = {{"tollgate_workload_gpu_seconds_total", "state=\"used\""},
	                {"tollgate_process_gpu_seconds_total", "pid=\"100\""},
	                {"tollgate_exporter_unknown_slots_total", ""}};
	in_place(bench) struct bench b;
	double before[ARRAY_LEN(counters)];

	(void)state;
	bench_init(&b);
	play(&b, 0, 20 * S);
	play(&b, 25 * S, 40 * S); /* ticks were missed: unknown */
	for (size_t i = 0; i < ARRAY_LEN(counters); i++) {
		before[i] = on_page(&b, counters[i].name, counters[i].label);
		assert_true(before[i] > 0);
	}
	b.wall0_ns += 3600 * S;
	for (int64_t t = 41 * S; t <= 44 * S; t += S) {
		play(&b, t, t);
		for (size_t i = 0; i < ARRAY_LEN(counters); i++) {
			double now = on_page(&b, counters[i].name, counters[i].label);

			if (now < before[i])
				fail_msg("%s fell from %g to %g", counters[i].name, before[i], now);
			before[i] = now;
		}
	}
	/* half of each second, but for the five that nobody saw */
	assert_true(before[0] > 19 && before[0] < 20);
}

static void
a_stepped_clock_begins_a_stream_and_loses_no_time_of_the_boot_clock(void **state)
{
	const int64_t steps[] = {3600 * S, -3600 * S, 1500 * NS_PER_MS};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(steps); i++) {
		in_place(bench) struct bench b;
		struct bill bill;

		bench_init(&b);
		play(&b, 0, 90 * S);
		assert_int_equal(b.last.clock_step_ns, 0);
		b.wall0_ns += steps[i];
		play(&b, 91 * S, 91 * S);
		assert_int_equal(b.last.clock_step_ns, steps[i]);
		play(&b, 92 * S, 180 * S);
		assert_int_equal(b.last.clock_step_ns, 0);
		collect(&b, &bill);
		assert_int_equal(bill.streams, 2);
		assert_int_equal(bill.covered_ns, 180 * S);
		assert_int_equal(bill.pod, 180 * S);
		assert_int_equal(bill.to_ns, b.wall0_ns + 180 * S);
	}
}

static void
a_clock_that_drifts_less_than_a_second_goes_on(void **state)
{
	in_place(bench) struct bench b;
	struct bill bill;

	(void)state;
	bench_init(&b);
	for (int64_t t = 0; t <= 120; t++) {
		b.wall0_ns += 8 * NS_PER_MS;
		play(&b, t * S, t * S);
		assert_int_equal(b.last.clock_step_ns, 0);
	}
	collect(&b, &bill);
	assert_int_equal(bill.streams, 1);
}

static void
a_lost_gpu_is_down_while_it_is_lost(void **state)
{
	in_place(bench) struct bench b;
	struct bill bill;

	(void)state;
	bench_init(&b);
	play(&b, 180 * S, 240 * S);
	collect(&b, &bill);
	assert_in_range(bill.down, 10 * S, 12 * S);
	assert_int_equal(bill.pod, 60 * S);
}

static void
a_library_that_fails_is_opened_again_and_the_time_between_is_unknown(void **state)
{
	in_place(bench) struct bench b;
	struct bill bill;

	(void)state;
	bench_init(&b);
	play(&b, 280 * S, 300 * S);
	assert_int_not_equal(b.last.reading.kind, ERR_NONE);
	play(&b, 301 * S, 309 * S);
	assert_int_not_equal(b.last.reading.kind, ERR_NONE);
	play(&b, 310 * S, 340 * S);
	assert_int_equal(b.last.reading.kind, ERR_NONE);
	collect(&b, &bill);
	assert_int_equal(bill.covered_ns, 60 * S);
	assert_int_equal(bill.unknown, 2 * 11 * S); /* both GPUs, from tick 299 to tick 310 */
	assert_int_equal(bill.pod, 49 * S);
}

/* The boot clock goes on while the machine sleeps; nobody saw what the GPUs did. */
static void
a_suspend_of_ten_minutes_is_unknown_and_everything_else_is_as_before(void **state)
{
	in_place(bench) struct bench b;
	struct bill bill;

	(void)state;
	bench_init(&b);
	play(&b, 0, 90 * S);
	play(&b, 690 * S, 690 * S);
	assert_int_equal(b.last.clock_step_ns, 0);
	play(&b, 691 * S, 780 * S);
	collect(&b, &bill);
	assert_int_equal(bill.streams, 1);
	assert_int_equal(bill.covered_ns, 780 * S);
	assert_int_equal(bill.unknown, 2 * 600 * S);
	assert_int_equal(bill.pod, 180 * S);
	assert_int_equal(bill.unallocated, 180 * S - bill.job);
}

static void
a_clock_that_was_set_during_a_suspend_begins_a_stream_behind_the_unknown_time(void **state)
{
	const int64_t steps[] = {3600 * S, -3600 * S};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(steps); i++) {
		in_place(bench) struct bench b;
		struct bill bill;

		bench_init(&b);
		play(&b, 0, 90 * S);
		b.wall0_ns += steps[i];
		play(&b, 690 * S, 690 * S);
		assert_int_equal(b.last.clock_step_ns, steps[i]);
		play(&b, 691 * S, 780 * S);
		collect(&b, &bill);
		assert_int_equal(bill.streams, 2);
		assert_int_equal(bill.covered_ns, 780 * S);
		assert_int_equal(bill.unknown, 2 * 600 * S);
		assert_int_equal(bill.pod, 180 * S);
		assert_int_equal(bill.to_ns, b.wall0_ns + 780 * S);
	}
}

/* Sets virtual time and waits until the calls that this lets go have returned. */
static void
let_go(struct bench *b, int64_t t_ns)
{
	struct reader_status status;

	b->node.set_time_ns(t_ns);
	do
		reader_status(b->reader, 0, &status);
	while (status.hanging > 0);
}

static void
a_gpu_that_hangs_is_unknown_until_it_answers_and_the_other_is_not(void **state)
{
	const char yaml[] = "name: lab\n"
			    "gpus:\n"
			    "  - {model: NVIDIA H100 80GB HBM3, memory_mib: 81920, count: 2}\n"
			    "processes:\n"
			    "  - {pid: 100, gpu: 0, sm: 50, memory_mib: 1024, pod: {namespace: team, name: train-0}}\n"
			    "calls:\n"
			    "  - {name: nvmlDeviceGetPowerUsage, gpu: 1, at: 20s, until: 30s, hang: true}\n";
	in_place(bench) struct bench b;
	struct bill bill;

	(void)state;
	bench_init_with(&b, yaml, 4 * S);
	play(&b, 0, 19 * S);
	assert_int_equal(b.last.silent.kind, ERR_NONE);
	play(&b, 20 * S, 29 * S);
	assert_int_equal(b.last.reading.kind, ERR_NONE);
	assert_int_equal(b.last.silent.kind, ERR_RETRY);
	assert_memory_equal(b.last.silent.text, "GPU-", 4);
	assert_int_equal(b.last.gpus_read, 1);
	let_go(&b, 30 * S);
	play(&b, 30 * S, 60 * S);
	assert_int_equal(b.last.silent.kind, ERR_NONE);
	collect(&b, &bill);
	assert_int_equal(bill.covered_ns, 60 * S);
	assert_int_equal(bill.unknown, 11 * S); /* from tick 19 to tick 30 */
	assert_int_equal(bill.pod, 60 * S);
	assert_int_equal(bill.unallocated, 49 * S);
}

static void
a_driver_that_hangs_as_a_whole_is_unknown_and_batches_go_on(void **state)
{
	const char yaml[] = "name: lab\n"
			    "gpus:\n"
			    "  - {model: NVIDIA H100 80GB HBM3, memory_mib: 81920, count: 2}\n"
			    "calls:\n"
			    "  - {name: nvmlDeviceGetCount_v2, at: 20s, until: 200s, hang: true}\n";
	in_place(bench) struct bench b;
	struct outbox_stats stats;
	struct bill bill;

	(void)state;
	bench_init_with(&b, yaml, S);
	play(&b, 0, 199 * S);
	assert_int_equal(b.last.reading.kind, ERR_RETRY);
	outbox_stats(b.outbox, &stats);
	assert_int_equal(stats.spool.unacked_batches, 3);
	let_go(&b, 200 * S);
	play(&b, 200 * S, 240 * S);
	assert_int_equal(b.last.reading.kind, ERR_NONE);
	collect(&b, &bill);
	assert_int_equal(bill.batches, 4);
	assert_int_equal(bill.unknown, 2 * 181 * S);
	assert_int_equal(bill.unallocated, 2 * 59 * S);
}

/* Of a process that a tick has seen, accounting tells the end to the driver's resolution, not the tick's. */
static void
the_end_of_a_process_is_the_driver_s_where_it_has_accounting(void **state)
{
	const char yaml[] =
		"name: lab\n"
		"gpus:\n"
		"  - {model: NVIDIA H100 80GB HBM3, memory_mib: 81920, count: 2, accounting: true}\n"
		"processes:\n"
		"  - {pid: 200, gpu: 1, start: 10s, end: 30300ms, sm: 100, cgroup: /slurm/uid_0/job_7/step_0}\n"
		"  - {pid: 300, gpu: 0, start: 40200ms, end: 40700ms, sm: 100, cgroup: /slurm/uid_0/job_7/step_0}\n";
	in_place(bench) struct bench b;
	struct metrics_page *page;
	struct bill bill;
	const void *bytes;
	size_t len;
	char wall[32];

	(void)state;
	snprintf(wall, sizeof(wall), "%" PRId64, SPOOLDIR_WALL);
	setenv("TOLLGATE_SIM_WALL0_NS", wall, 1);
	bench_init_with(&b, yaml, SIMNODE_PATIENCE_NS);
	play(&b, 0, 60 * S);
	page = metrics_get(b.metrics);
	metrics_page_bytes(page, PROM_TEXT, false, &bytes, &len);
	/* nobody had seen the second one: it is counted, and holds nothing */
	assert_non_null(memmem(bytes, len, "short_processes_total{held=\"false\"} 1\n", 38));
	metrics_page_release(page);
	collect(&b, &bill);
	assert_in_range(bill.job, 20290 * NS_PER_MS, 20310 * NS_PER_MS);
	unsetenv("TOLLGATE_SIM_WALL0_NS");
}

static void
a_job_holds_what_slurm_gave_it_also_without_a_process(void **state)
{
	const char yaml[] =
		"name: lab\n"
		"gpus:\n"
		"  - {model: NVIDIA H100 80GB HBM3, memory_mib: 81920, count: 2}\n"
		"processes:\n"
		"  - {pid: 200, gpu: 1, start: 30s, end: 50s, sm: 100, cgroup: /slurm/uid_0/job_9/step_0}\n";
	const char file[] = "job=9\naccount=physics\nuser=ada\nuid=0\ngpus=1\n";
	in_place(bench) struct bench b;
	struct alloc_options o = {.slurm = {.owner_uid = getuid()}};
	char dir[128], path[160];
	struct bill bill;
	struct err err;

	(void)state;
	bench_init_with(&b, yaml, SIMNODE_PATIENCE_NS);
	snprintf(dir, sizeof(dir), "%s/jobs", b.node.dir);
	snprintf(path, sizeof(path), "%s/9", dir);
	o.slurm.slurm_dir = dir;
	assert_int_equal(mkdir(dir, 0755), 0);
	assert_true(file_write_atomic(path, file, strlen(file), 0644, &err));
	assert_true(sampler_use_allocations(b.sampler, &o, 0, &err));
	play(&b, 0, 60 * S);
	assert_int_equal(b.last.job_files.kind, ERR_NONE);
	assert_int_equal(chmod(path, 0666), 0);
	play(&b, 61 * S, 120 * S);
	assert_int_equal(b.last.job_files.kind, ERR_DENIED);
	collect(&b, &bill);
	/* one holder all the time; from tick 61 on its file, which anybody could have written, gives it nothing */
	assert_int_equal(bill.job, 61 * S);
	assert_about(bill.job_used, 19 * S);
	assert_int_equal(bill.unallocated, 120 * S + 59 * S);
}

static void
batches_wait_for_a_disk_that_does_not_take_them(void **state)
{
	in_place(bench) struct bench b;
	struct bill bill;

	(void)state;
	bench_init(&b);
	play(&b, 0, 61 * S);
	spooldir_fini(&b.dir); /* the directory is gone; the file that is open would go on, hence a new stream */
	b.wall0_ns += 10 * S;
	play(&b, 62 * S, 200 * S);
	assert_int_equal(b.last.storing.kind, ERR_RETRY);
	assert_int_equal(mkdir(b.dir.path, 0700), 0);
	play(&b, 201 * S, 201 * S);
	assert_int_equal(b.last.storing.kind, ERR_NONE);
	collect(&b, &bill);
	assert_int_equal(bill.to_ns, b.wall0_ns + 201 * S);
}

static void
every_tick_publishes_a_page(void **state)
{
	in_place(bench) struct bench b;
	struct metrics_page *page;
	const void *bytes;
	size_t len;

	(void)state;
	bench_init(&b);
	sampler_missed(b.sampler, 3);
	play(&b, 0, 2 * S);
	page = metrics_get(b.metrics);
	metrics_page_bytes(page, PROM_TEXT, false, &bytes, &len);
	assert_non_null(memmem(bytes, len, "tollgate_exporter_ticks_total 3\n", 32));
	assert_non_null(memmem(bytes, len, "tollgate_exporter_missed_ticks_total 3\n", 39));
	assert_non_null(memmem(bytes, len, "=\"team\"", 7));
	assert_non_null(memmem(bytes, len, "=\"train-0\"", 10));
	metrics_page_release(page);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(holders_are_billed_what_the_scenario_gave_them_to_within_a_tick),
		cmocka_unit_test(a_stepped_clock_begins_a_stream_and_loses_no_time_of_the_boot_clock),
		cmocka_unit_test(no_counter_falls_when_the_clock_is_stepped),
		cmocka_unit_test(a_clock_that_drifts_less_than_a_second_goes_on),
		cmocka_unit_test(a_lost_gpu_is_down_while_it_is_lost),
		cmocka_unit_test(a_library_that_fails_is_opened_again_and_the_time_between_is_unknown),
		cmocka_unit_test(a_suspend_of_ten_minutes_is_unknown_and_everything_else_is_as_before),
		cmocka_unit_test(a_clock_that_was_set_during_a_suspend_begins_a_stream_behind_the_unknown_time),
		cmocka_unit_test(a_gpu_that_hangs_is_unknown_until_it_answers_and_the_other_is_not),
		cmocka_unit_test(a_driver_that_hangs_as_a_whole_is_unknown_and_batches_go_on),
		cmocka_unit_test(the_end_of_a_process_is_the_driver_s_where_it_has_accounting),
		cmocka_unit_test(a_job_holds_what_slurm_gave_it_also_without_a_process),
		cmocka_unit_test(batches_wait_for_a_disk_that_does_not_take_them),
		cmocka_unit_test(every_tick_publishes_a_page),
	};

	return cmocka_run_group_tests_name("sampler", tests, NULL, NULL);
}
