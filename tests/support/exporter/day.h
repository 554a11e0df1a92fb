/* tests/support/exporter/day.h - a simulated day of two nodes: MIG layouts that change, MPS, time-slicing, plain sharing, two thousand short
 * processes, two lost GPUs, an exporter killed three times, and a clock stepped forth and back. The scenarios are in tests/support/exporter/day/. */
#ifndef TOLLGATE_TESTS_DAY_H
#define TOLLGATE_TESTS_DAY_H

#include "tests/support/exporter/fastnode.h"

#define DAY_KILLS 3
#define DAY_STREAMS 8
#define DAY_TICK_NS INT64_C(1000000000)
#define DAY_INTERVAL_NS INT64_C(60000000000)

/* kill -9 right after the tick at `at`; the next exporter makes its first tick at `back`. */
struct day_kill {
	int64_t at_ns, back_ns;
};

struct day_node {
	const char *name;
	const char *scenario; /* path from the root of the tree */
	int replicas;
	struct day_kill kills[DAY_KILLS];
	size_t kill_count;
};
#define DAY_NODES 2
extern const struct day_node day_nodes[DAY_NODES];

/* What a stream must cover, in virtual time, and the wall clock during it. */
struct day_stream {
	int64_t from_ns, to_ns;
	int64_t offset_ns; /* wall time minus virtual time */
};

/* One run of the exporter: from its first tick to its last, and what its page said then. */
struct day_life {
	int64_t from_ns, to_ns;
	int64_t short_not_held; /* tollgate_exporter_short_processes_total{held="false"} */
};

struct day_played {
	struct day_stream streams[DAY_STREAMS];
	size_t stream_count;
	struct day_life lives[DAY_KILLS + 1];
	size_t life_count;
};

/* Plays one node's day, each life of the exporter in a child of its own, into a spool. end_ns: how long the day is. What it returns of the
 * streams is what must be. */
void day_play(const struct day_node *n, const struct spool_options *spool, int64_t wall0_ns, int64_t end_ns,
              struct day_played *ret);

#endif
