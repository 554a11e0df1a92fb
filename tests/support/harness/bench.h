/* tests/support/harness/bench.h - measures a piece of our code beside a limit or a peer, in turns, in the same run.
 *
 * Machines are noisy, so only the ratio of two neighbours is worth much: both sides run alternately, and the figure is
 * the median of the rounds. Prints one line of JSON, which tests/bench/run.py gathers. */
#ifndef TOLLGATE_TESTS_BENCH_H
#define TOLLGATE_TESTS_BENCH_H

#include <stddef.h>

struct bench {
	const char *name;
	const char *item; /* what one call handles `items` of: "record", "series" */
	size_t items;
	const char *against; /* what the other side does */
	double goal;         /* ours / theirs, at most; 0: none was set */
	void (*ours)(void *arg);
	void (*theirs)(void *arg);
	void *arg;
};

void bench_run(const struct bench *b);

/* Keeps the compiler from leaving out work whose result nobody reads. */
void bench_keep(const void *p);

#endif
