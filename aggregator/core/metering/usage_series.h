/* aggregator/core/metering/usage_series.h - counters of accepted usage for /metrics, a bounded number of series. Pure.
 *
 * A series is a workspace, a class of device and a state. Beyond the limit a new series is added to the rest, one series for
 * each state, so that sums over all series stay correct. */
#ifndef TOLLGATE_USAGE_SERIES_H
#define TOLLGATE_USAGE_SERIES_H

#include "aggregator/core/metering/ingest_sums.h"

/* Energy is counted beside the states. */
#define SERIES_ENERGY USAGE_STATES
#define SERIES_KINDS (USAGE_STATES + 1)

struct usage_series {
	int32_t workspace_id; /* 0: nobody holds */
	unsigned kind;        /* enum usage_state, or SERIES_ENERGY */
	char *cluster, *gpu_model, *profile;
	int128 amount; /* unit-nanoseconds, or millijoules */
};

struct usage_table {
	struct usage_series *at; /* in the order in which they came */
	size_t count, max;
	struct hash where;
	int128 rest[SERIES_KINDS];
	struct hash beyond; /* keys of the series in the rest, up to a limit */
};

void usage_table_init(struct usage_table *t, size_t max);
void usage_table_fini(struct usage_table *t);
void usage_table_add(struct usage_table *t, const struct ingest_sums *sums);
/* How many series the rest stands for. */
size_t usage_table_left_out(const struct usage_table *t);

#endif
