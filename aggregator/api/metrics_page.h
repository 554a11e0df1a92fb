/* aggregator/api/metrics_page.h - what handlers count, and how /metrics is made of it. */
#ifndef TOLLGATE_METRICS_PAGE_H
#define TOLLGATE_METRICS_PAGE_H

#include <stdatomic.h>

#include "aggregator/core/metering/ingest_sums.h"
#include "common/promtext/promtext.h"

struct app;
struct gauges_page;
struct identity_row;

/* Answers by the first digit of their status; 0: the client went before there was one. */
#define RESPONSE_CLASSES 6

#define HISTOGRAM_BUCKETS 12 /* and one for all that took longer */
struct histogram {
	atomic_llong buckets[HISTOGRAM_BUCKETS + 1]; /* each for itself */
	atomic_llong sum_ns;
};
void histogram_add(struct histogram *h, int64_t ns);
void histogram_write(struct prom *p, struct histogram *h);

/* GPU time and energy that this replica took into the ledger. */
struct usage_counters;
struct usage_counters *usage_counters_new(size_t series_max);
void usage_counters_free(struct usage_counters *u);
void usage_counters_add(struct usage_counters *u, const struct ingest_sums *sums);
/* What one may see of them; the page knows the workspaces' names, and one that it does not know is shown with the next. */
void usage_counters_write(struct prom *p, struct usage_counters *u, const struct gauges_page *page,
                          const struct identity_row *who);
size_t usage_counters_left_out(struct usage_counters *u);

/* What one may see of the ledger. */
void metrics_write_ledger(struct prom *p, const struct gauges_page *page, const struct identity_row *who);

#endif
