/* tests/support/exporter/pagegen.h - a busy node as /metrics sees it: whole GPUs with a pod per process, values that move each tick. */
#ifndef TOLLGATE_TESTS_PAGEGEN_H
#define TOLLGATE_TESTS_PAGEGEN_H

#include "exporter/metrics/metrics.h"

struct pagegen {
	struct metrics_input in;
	struct gpu_reading *readings;
	struct tick_gpu *gpus;
	struct tick tick;
	struct tick_process *processes;
	struct wire_holder *holders; /* of processes and totals, with ids from 1 */
	struct wire_device *devices;
	struct meter_total *totals;
	struct meter_process_total *process_totals;
	size_t process_count;
	bool borrows; /* holders and devices */
};

/* Six series per process, some fifty per GPU, and the exporter's own. */
struct pagegen *pagegen_new(size_t gpus, size_t processes_per_gpu);
/* The same node for another tick; its holders and devices are those of the first, which must outlive it. */
struct pagegen *pagegen_copy(const struct pagegen *of);
void pagegen_free(struct pagegen *g);
void pagegen_tick(struct pagegen *g); /* one second later */
DEFINE_OWNED(pagegen, struct pagegen)

/* How many series a page has: its lines that are no comments. */
size_t pagegen_series(const char *text, size_t len);

#endif
