/* aggregator/service/counters.h - counters of one replica since it started. Handlers and threads fill them, /metrics shows them, Prometheus
 * sums them over replicas. */
#ifndef TOLLGATE_COUNTERS_H
#define TOLLGATE_COUNTERS_H

#include <stdatomic.h>

#include "aggregator/core/metering/events.h"
#include "aggregator/core/metering/usage_series.h"
#include "aggregator/core/quota/engine/quota.h"
#include "aggregator/service/gauges.h"
#include "aggregator/store/ingest/ingest.h"
#include "aggregator/store/store.h"

/* Durations. */
#define HISTOGRAM_BUCKETS 12 /* and one for everything longer */
struct histogram {
	atomic_llong buckets[HISTOGRAM_BUCKETS + 1]; /* not cumulative */
	atomic_llong sum_ns;
};
struct histogram_bound {
	int64_t ns;
	const char *le; /* the label of /metrics */
};
extern const struct histogram_bound histogram_bounds[HISTOGRAM_BUCKETS];
void histogram_add(struct histogram *h, int64_t ns);

/* Periodic tasks of background.c. */
enum background_task {
	BACKGROUND_HELD,
	BACKGROUND_ATTRIBUTE,
	BACKGROUND_SLICE,
	BACKGROUND_SEAL,
	BACKGROUND_FOLD,
	BACKGROUND_PARTITIONS,
	BACKGROUND_RETAIN,
	BACKGROUND_CLOSE,
	BACKGROUND_ANCHOR,
	BACKGROUND_AUDIT,
	BACKGROUND_EXCEPTIONS,
	BACKGROUND_BUDGETS,
	BACKGROUND_TASKS
};
extern const char *const background_task_names[BACKGROUND_TASKS];
struct background_counters {
	atomic_llong runs, errors;
	atomic_llong duration_ns;  /* of all runs together */
	atomic_llong last_wall_ns; /* end of the last successful run; 0: never */
	atomic_llong done; /* items processed: node-hours, days, partitions, batches, audit entries, exceptions */
};

/* How a group of requests for capacity was decided: without the lock of the quota log, under that lock, or without it in vain because
 * another replica had committed meanwhile. The values of the label "way" on /metrics are bet, locked and lost. */
enum decision_way { WAY_OPTIMISTIC, WAY_LOCKED, WAY_OPTIMISTIC_FAILED, DECISION_WAYS };

/* Replies by the first digit of their status; 0: the client disconnected first. */
#define RESPONSE_CLASSES 6

struct counters {
	atomic_llong ingest_batches, ingest_records, ingest_duplicates, ingest_lost;
	atomic_llong ingest_mismatches;
	atomic_llong ingest_refused_by[INGEST_REFUSALS], ingest_quarantined_by[QUARANTINE_CLASSES];
	atomic_llong quarantine_released, quarantine_discarded;
	atomic_llong events[EVENT_FATES];
	atomic_llong status_kept, status_late, status_refused;
	atomic_llong ingest_bytes;
	struct histogram ingest_duration;
	struct histogram decision_duration; /* from the request to the reply, commit included */
	atomic_llong decision_ways[DECISION_WAYS];
	atomic_llong requests, request_errors, responses[RESPONSE_CLASSES];
	atomic_llong hours_sealed, hours_resealed, rollup_errors;
	atomic_llong rollup_last_wall_ns;
	struct background_counters background[BACKGROUND_TASKS];
};

/* GPU time and energy of the batches that this replica accepted. */
struct usage_counters;
struct usage_counters *usage_counters_new(size_t series_max);
void usage_counters_free(struct usage_counters *u);
void usage_counters_add(struct usage_counters *u, const struct ingest_sums *sums);
const struct usage_table *usage_counters_lock(struct usage_counters *u);
void usage_counters_unlock(struct usage_counters *u);

/* First answers to requests for capacity, by workspace, decision (gauge_row.kind) and rule (gauge_row.what). */
struct decision_counters;
struct decision_counters *decision_counters_new(size_t series_max);
void decision_counters_free(struct decision_counters *c);
/* workspace: "acme/prod". */
void decision_counters_add(struct decision_counters *c, const char *workspace, const char *decision, const char *rule);
const struct gauge_rows *decision_counters_lock(struct decision_counters *c);
void decision_counters_unlock(struct decision_counters *c);

/* "acme/prod" as two labels; a path of another form gives two empty ones. */
struct workspace_path {
	char tenant[QUOTA_NAME_SIZE];
	const char *workspace; /* points into the path */
};
struct workspace_path workspace_path_split(const char *path);

#endif
