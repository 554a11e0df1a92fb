/* tests/support/harness/bench.c */
#include "tests/support/harness/bench.h"

#include "common/base/base.h"
#include "common/base/time.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define ROUNDS 15
#define ROUND_NS (20 * NS_PER_MS)

void
bench_keep(const void *p)
{
	__asm__ volatile("" : : "g"(p) : "memory");
}

/* The processor's time of this thread: what other programs on the machine take does not count. */
static int64_t
cpu_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return (int64_t)t.tv_sec * NS_PER_S + t.tv_nsec;
}

static double
ns_per_call(void (*call)(void *), void *arg, int64_t calls)
{
	int64_t began = cpu_ns();

	for (int64_t i = 0; i < calls; i++)
		call(arg);
	return (double)(cpu_ns() - began) / (double)calls;
}

/* How many calls take about one round; the calls made to find out also warm the caches. */
static int64_t
calls_per_round(void (*call)(void *), void *arg)
{
	int64_t calls = 1;

	for (;;) {
		double ns = ns_per_call(call, arg, calls) * (double)calls;

		if (ns >= (double)ROUND_NS)
			return calls;
		calls = ns > 1e5 ? (int64_t)((double)calls * (double)ROUND_NS / ns) + 1 : calls * 10;
	}
}

static int
by_size(const void *a, const void *b)
{
	double x = *(const double *)a;
	double y = *(const double *)b;

	return (x > y) - (x < y);
}

static double
median(double *values)
{
	qsort(values, ROUNDS, sizeof(*values), by_size);
	return values[ROUNDS / 2];
}

void
bench_run(const struct bench *b)
{
	double ours[ROUNDS];
	double theirs[ROUNDS];
	double ratio[ROUNDS];
	int64_t our_calls = calls_per_round(b->ours, b->arg);
	int64_t their_calls = calls_per_round(b->theirs, b->arg);

	for (int i = 0; i < ROUNDS; i++) {
		ours[i] = ns_per_call(b->ours, b->arg, our_calls) / (double)b->items;
		theirs[i] = ns_per_call(b->theirs, b->arg, their_calls) / (double)b->items;
		ratio[i] = ours[i] / theirs[i];
	}
	printf("{\"name\": \"%s\", \"unit\": \"ns/%s\", \"ours\": %.2f, \"against\": \"%s\", \"theirs\": %.2f, \"ratio\": %.3f, "
	       "\"goal\": ",
	       b->name, b->item, median(ours), b->against, median(theirs), median(ratio));
	if (b->goal > 0)
		printf("%.3f}\n", b->goal);
	else
		printf("null}\n");
	fflush(stdout);
}
