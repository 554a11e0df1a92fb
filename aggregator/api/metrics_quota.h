/* aggregator/api/metrics_quota.h - quota on /metrics. */
#ifndef TOLLGATE_METRICS_QUOTA_H
#define TOLLGATE_METRICS_QUOTA_H

#include <stddef.h>

struct app;
struct counters;
struct gauges_page;
struct identity_row;
struct prom;

/* What this replica decided, by workspace, answer and rule. */
struct decision_counters;
struct decision_counters *decision_counters_new(size_t series_max);
void decision_counters_free(struct decision_counters *c);
/* workspace: "acme/prod". */
void decision_counters_add(struct decision_counters *c, const char *workspace, const char *decision, const char *rule);

void metrics_write_decision_duration(struct prom *p, struct counters *c);
/* What one may see of quota: of the book of this replica, and of the ledger. */
void metrics_write_quota(struct prom *p, struct app *app, const struct gauges_page *page,
                         const struct identity_row *who);

#endif
