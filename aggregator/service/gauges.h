/* aggregator/service/gauges.h - the ledger's part of /metrics: one thread reads it every few seconds while Prometheus scrapes, and all scrapes
 * share the last reading.
 *
 * Rules, by number in the code:
 *  1. a page has the rows of all tenants; api/metrics_tenants.c alone decides which of them a token sees
 *  2. without scrapes nothing is read. A scrape that finds no page, or an old one, waits for the next
 *  3. between two readings the thread rests for the interval, or for nine times as long as the last one took: whatever the size of the
 *     ledger, gauges use at most a tenth of one connection
 *  4. a family has a limited number of rows; further ones are added up in one row per state or currency, without a tenant */
#ifndef TOLLGATE_GAUGES_H
#define TOLLGATE_GAUGES_H

#include "aggregator/options.h"
#include "aggregator/store/quota/quota_store.h"
#include "aggregator/store/ingest/ingest.h"
#include "common/base/hash.h"

#define REST_TENANT "other" /* the tenant label of rule 4 */

/* One row of a family; each family uses some of the members. */
struct gauge_row {
	char *cluster, *tenant, *workspace; /* tenant "": none. Texts are never NULL */
	char *what;                         /* GPU model, node, usage class, or a budget's currency */
	char *kind;                         /* state, currency, or which number of a budget */
	bool rest;                          /* rule 4: shown to operators only */
	int128 amount;
	int scale;              /* of a cost */
	int64_t lag_ns, age_ns; /* of a node; -1: not known */
	int64_t skew_ns;
	bool silent;
};
struct gauge_rows {
	struct gauge_row *at;
	size_t count, max;
	struct hash where;
	struct hash beyond; /* keys of the rows that were added up, each once */
};
struct gauge_key {
	const char *cluster, *tenant, *workspace, *what, *kind; /* never NULL */
	bool rest;
};
/* The row of a key, made where it is new; the rest's when there are as many as there may be. */
struct gauge_row *gauge_row(struct gauge_rows *r, const struct gauge_key *k);
void gauge_rows_fini(struct gauge_rows *r);

struct workspace_name {
	char *tenant, *workspace;
};
struct gauges_page {
	int refs; /* under the lock of gauges */
	char period[40];
	struct gauge_rows hours, costs, capacity, nodes, budgets;
	struct gauge_rows quota[QUOTA_GAUGE_FAMILIES];
	int128 conservation_error_unit_ns;
	int64_t unrated_lines; /* of the billing period */
	struct backlog backlog;
	struct workspace_name *names;
	size_t name_count;
	struct hash names_by_id;
};

struct gauges;
MUST_CHECK bool gauges_start(const struct aggregator_options *o, struct db_counters *db, struct gauges **ret,
                             struct err *err);
void gauges_stop(struct gauges *g); /* NULL is allowed */
/* A reference to a page that is no older than a few seconds. */
MUST_CHECK bool gauges_get(struct gauges *g, struct gauges_page **ret, struct err *err);
void gauges_put(struct gauges *g, struct gauges_page *page);

struct gauges_stats {
	int64_t readings, failures, duration_ns; /* the last one's */
};
void gauges_stats(struct gauges *g, struct gauges_stats *ret);

#endif
