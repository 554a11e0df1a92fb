/* A node of 8 GPUs x 7 MIG instances x 3 processes for some days in fast-forward: fast_week DAYS TICK_SECONDS. Prints a line per day:
 * processor time of a tick in ns, resident memory in KiB, and bytes of heap in use. Every day other pods come, and in one place of three every
 * ninety minutes, so that everything that could pile up has occasion to. The aggregator takes all batches at once. */
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/wire/frame.h"
#include "common/base/time.h"
#include "tests/support/exporter/fastnode.h"
#include "tests/support/exporter/spooldir.h"

#define GPUS 8
#define INSTANCES 7
#define PROCESSES 3
#define DAY_S INT64_C(86400)
#define CHURN_S INT64_C(5400)

static void
write_pod(struct buf *out, int gpu, int instance, int pod, int64_t from_s, int64_t to_s)
{
	buf_printf(out, "  - {pid: %d, gpu: %d, instance: %d, sm: %d, memory_mib: 512, ", 10000 + pod, gpu, instance,
	           10 + pod % 20);
	buf_printf(out, "pod: {namespace: team-%d, name: job-%d}, start: %" PRId64 "s, end: %" PRId64 "s}\n", gpu, pod,
	           from_s, to_s);
}

/* One place of an instance has another pod every ninety minutes, the others every day. */
static void
write_scenario(struct buf *out, int days)
{
	int pod = 0;

	buf_str(out, "name: week\ngpus:\n  - {model: NVIDIA H100 80GB HBM3, memory_mib: 81559, count: 8, mig: [");
	for (int i = 0; i < INSTANCES; i++)
		buf_str(out, i ? ", 1g.10gb" : "1g.10gb");
	buf_str(out, "]}\nprocesses:\n");
	for (int place = 0; place < GPUS * INSTANCES * PROCESSES; place++) {
		int64_t life_s = place % PROCESSES ? DAY_S : CHURN_S, shift_s = place % PROCESSES ? 0 : place * 7;
		int instance = place / PROCESSES;

		for (int64_t from_s = 0; from_s < days * DAY_S; from_s += life_s)
			write_pod(out, instance / INSTANCES, instance % INSTANCES, pod++, from_s + shift_s,
			          from_s + shift_s + life_s);
	}
}

static int64_t
cpu_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	return (int64_t)t.tv_sec * NS_PER_S + t.tv_nsec;
}

static long
resident_kib(void)
{
	FILE *f = fopen("/proc/self/status", "r");
	char line[256];
	long kib = 0;

	ASSERT(f);
	while (fgets(line, sizeof(line), f))
		if (strncmp(line, "VmRSS:", 6) == 0)
			kib = strtol(line + 6, NULL, 10);
	fclose(f);
	return kib;
}

/* What is allocated and not freed: the scenario is a part of it, and does not grow. */
static size_t
heap_bytes(void)
{
	struct mallinfo2 m = mallinfo2();

	return m.uordblks + m.hblkhd;
}

static void
take_batches(struct fastnode *f, struct buf *frames)
{
	struct spool_chunk chunk;
	struct err err;
	bool any = true;

	while (any) {
		if (!outbox_peek(f->outbox, 1 << 20, frames, &chunk, &any, &err) ||
		    (any &&
		     !outbox_ack(f->outbox, chunk.epoch, chunk.last_seq + 1, fastnode_wall(f, f->now_ns), &err))) {
			fprintf(stderr, "%s\n", err.text);
			exit(1);
		}
	}
}

static int
by_size(const void *a, const void *b)
{
	int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

	return (x > y) - (x < y);
}

/* The median of the day's hours: other programs on the machine come and go. */
static int64_t
play_day(struct fastnode *f, int day, int64_t tick_ns, struct buf *frames)
{
	int64_t ns_per_tick[24];

	for (int hour = 0; hour < 24; hour++) {
		int64_t began_ns = cpu_ns();

		for (int minute = 1; minute <= 60; minute++) {
			fastnode_play(f, day * NS_PER_DAY + hour * NS_PER_HOUR + minute * NS_PER_MIN);
			take_batches(f, frames);
		}
		ns_per_tick[hour] = (cpu_ns() - began_ns) / (NS_PER_HOUR / tick_ns);
	}
	qsort(ns_per_tick, 24, sizeof(ns_per_tick[0]), by_size);
	return ns_per_tick[12];
}

static void
play_days(struct fastnode *f, int days, int64_t tick_ns)
{
	in_place(buf) struct buf frames;

	buf_init(&frames, FRAME_HEAD + FRAME_MAX);
	fastnode_start(f, 0);
	for (int day = 0; day < days; day++) {
		int64_t ns = play_day(f, day, tick_ns, &frames);

		printf("%" PRId64 " %ld %zu\n", ns, resident_kib(), heap_bytes());
		fflush(stdout);
	}
	fastnode_stop(f);
}

int
main(int argc, char **argv)
{
	int days = argc == 3 ? (int)strtol(argv[1], NULL, 10) : 0;
	int64_t tick_ns = argc == 3 ? strtol(argv[2], NULL, 10) * NS_PER_S : 0;
	in_place(buf) struct buf scenario;
	in_place(spooldir) struct spooldir dir;
	in_place(fastnode) struct fastnode f;
	struct fastnode_options o;

	if (days < 1 || tick_ns < 1) {
		fprintf(stderr, "usage: fast_week DAYS TICK_SECONDS\n");
		return 2;
	}
	spooldir_init(&dir);
	o = (struct fastnode_options){.spool = spooldir_options(&dir),
	                              .sample_ns = tick_ns,
	                              .interval_ns = NS_PER_MIN,
	                              .replicas = 1,
	                              .wall0_ns = SPOOLDIR_WALL};
	o.spool.segment_bytes = 8 << 20;
	buf_init(&scenario, 64 << 20);
	write_scenario(&scenario, days);
	fastnode_init(&f, buf_text(&scenario), &o);
	buf_fini(&scenario);
	play_days(&f, days, tick_ns);
	return 0;
}
