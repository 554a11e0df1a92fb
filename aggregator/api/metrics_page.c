/* aggregator/api/metrics_page.c - /healthz, /readyz and /metrics: the replica's own figures. */
#include <string.h>

#include "aggregator/api/api.h"
#include "aggregator/service/probe.h"
#include "aggregator/store/ingest/ingest.h"
#include "common/base/time.h"

#define METRICS_MAX (64u << 20)

void
handle_healthz(void *app, void *worker, const struct http_request *rq, struct http_reply *rp)
{
	(void)app;
	(void)worker;
	(void)rq;
	rp->content_type = "text/plain; charset=utf-8";
	buf_str(&rp->body, "ok\n");
}

void
handle_readyz(void *app, void *worker, const struct http_request *rq, struct http_reply *rp)
{
	const char *why = probe_why_not(((struct app *)app)->probe);

	(void)worker;
	if (why != NULL) {
		http_problem(rp, rq, 503, NULL, "%s", why);
		rp->retry_after_s = 1;
		return;
	}
	rp->content_type = "text/plain; charset=utf-8";
	buf_str(&rp->body, "ready\n");
}

/* ---- counters of this replica ---- */

struct counter_row {
	const char *name, *help;
	size_t offset;
};

#define COUNTER(f) offsetof(struct counters, f)
static const struct counter_row counter_rows[] = {
	{"tollgate_ingest_batches_total", "Batches accepted into the ledger.", COUNTER(ingest_batches)},
	{"tollgate_ingest_records_total", "Interval records accepted into the ledger.", COUNTER(ingest_records)},
	{"tollgate_ingest_duplicate_batches_total", "Batches that were known already, acknowledged again.",
         COUNTER(ingest_duplicates)},
	{"tollgate_ingest_lost_batches_total", "Batches that exporters reported as dropped.", COUNTER(ingest_lost)},
	{"tollgate_ingest_mismatched_batches_total", "Batch numbers that came again with other bytes.",
         COUNTER(ingest_mismatches)},
	{"tollgate_ingest_bytes_total", "Bytes of pushes, as they were sent.", COUNTER(ingest_bytes)},
	{"tollgate_aggregator_requests_total", "HTTP requests answered.", COUNTER(requests)},
	{"tollgate_aggregator_request_errors_total", "HTTP requests answered with a status of 500 or above.",
         COUNTER(request_errors)},
	{"tollgate_aggregator_seals_total", "Node-hours rolled up for the first time.", COUNTER(hours_sealed)},
	{"tollgate_aggregator_reseals_total", "Node-hours rolled up again.", COUNTER(hours_resealed)},
	{"tollgate_aggregator_rollup_errors_total", "Roll-ups that failed.", COUNTER(rollup_errors)},
};

static void
write_one(struct prom *p, const char *name, enum prom_type type, const char *help, int64_t value, int decimals)
{
	prom_family(p, name, type, help);
	prom_begin(p);
	prom_fixed(p, value, decimals);
}

static void
write_labelled(struct prom *p, const char *label, const char *value, const atomic_llong *counter)
{
	prom_begin(p);
	prom_label(p, label, value);
	prom_int(p, (int64_t)atomic_load(counter));
}

static void
write_histogram(struct prom *p, struct histogram *h)
{
	int64_t count = 0;

	for (size_t i = 0; i <= HISTOGRAM_BUCKETS; i++) {
		count += atomic_load(&h->buckets[i]);
		prom_begin_part(p, "_bucket");
		prom_label(p, "le", i < HISTOGRAM_BUCKETS ? histogram_bounds[i].le : "+Inf");
		prom_int(p, count);
	}
	prom_begin_part(p, "_sum");
	prom_fixed(p, atomic_load(&h->sum_ns), 9);
	prom_begin_part(p, "_count");
	prom_int(p, count);
}

static void
write_ingest(struct prom *p, struct counters *c)
{
	prom_family(p, "tollgate_ingest_quarantined_batches_total", PROM_COUNTER,
	            "Sound batches whose content was refused, kept aside, by why.");
	for (int i = QUARANTINE_NONE + 1; i < QUARANTINE_CLASSES; i++)
		write_labelled(p, "reason", quarantine_class_name((enum quarantine_class)i),
		               &c->ingest_quarantined_by[i]);
	prom_family(p, "tollgate_ingest_refused_total", PROM_COUNTER, "Pushes that were refused, by why.");
	for (int i = REFUSAL_NONE + 1; i < INGEST_REFUSALS; i++)
		write_labelled(p, "reason", ingest_refusal_name((enum ingest_refusal)i), &c->ingest_refused_by[i]);
	prom_family(p, "tollgate_ingest_duration_seconds", PROM_HISTOGRAM,
	            "How long pushes took, from the handler's first line to the answer.");
	write_histogram(p, &c->ingest_duration);
	prom_family(p, "tollgate_quarantine_decisions_total", PROM_COUNTER,
	            "What operators decided about batches in quarantine.");
	write_labelled(p, "decision", "released", &c->quarantine_released);
	write_labelled(p, "decision", "discarded", &c->quarantine_discarded);
	prom_family(p, "tollgate_status_messages_total", PROM_COUNTER,
	            "Messages of nodes about who holds what now, by what became of them; late: a newer one was there.");
	write_labelled(p, "result", "kept", &c->status_kept);
	write_labelled(p, "result", "late", &c->status_late);
	write_labelled(p, "result", "refused", &c->status_refused);
}

static void
write_decisions(struct prom *p, struct counters *c)
{
	static const char *const ways[DECISION_WAYS] = {"bet", "locked", "lost"};

	prom_family(p, "tollgate_decision_duration_seconds", PROM_HISTOGRAM,
	            "How long requests for capacity took, from their arrival to the answer, the commit included.");
	write_histogram(p, &c->decision_duration);
	prom_family(
		p, "tollgate_decision_turns_total", PROM_COUNTER,
		"Groups of requests for capacity: bet, committed without the lock of the quota book because no other replica had decided; "
		"locked, under that lock; lost, attempts without it that failed.");
	for (size_t i = 0; i < DECISION_WAYS; i++) {
		prom_begin(p);
		prom_label(p, "way", ways[i]);
		prom_int(p, atomic_load(&c->decision_ways[i]));
	}
}

static void
write_http(struct prom *p, struct counters *c)
{
	static const char *const codes[RESPONSE_CLASSES] = {"none", "1xx", "2xx", "3xx", "4xx", "5xx"};

	prom_family(p, "tollgate_aggregator_http_responses_total", PROM_COUNTER,
	            "HTTP requests by the class of their status; none: the client went before.");
	for (size_t i = 0; i < RESPONSE_CLASSES; i++)
		write_labelled(p, "code", codes[i], &c->responses[i]);
}

/* Limits, and the requests that wait for them. */
static void
write_shares(struct prom *p, struct httpd *httpd)
{
	static const char *const pools[HTTP_POOLS] = {
		[API_POOL_OTHERS] = "others", [API_POOL_NODES] = "ingest", [API_POOL_DECISIONS] = "decisions"};
	struct httpd_stats stats = {0};

	if (httpd != NULL)
		httpd_stats(httpd, &stats);
	prom_family(p, "tollgate_aggregator_http_limited_total", PROM_COUNTER,
	            "HTTP requests answered 429, by the limit of the caller's that they were beyond.");
	for (int i = 0; i < HTTP_LIMITS; i++) {
		prom_begin(p);
		prom_label(p, "limit", http_limit_names[i]);
		prom_int(p, stats.limited[i]);
	}
	write_one(p, "tollgate_aggregator_http_abandoned_total", PROM_COUNTER,
	          "HTTP requests whose client went before their reply.", stats.abandoned, 0);
	prom_family(p, "tollgate_aggregator_http_waiting", PROM_GAUGE,
	            "HTTP requests that wait for a worker, by the kind of worker.");
	for (int i = 0; i < HTTP_POOLS; i++) {
		prom_begin(p);
		prom_label(p, "workers", pools[i]);
		prom_int(p, stats.waiting[i]);
	}
	prom_family(p, "tollgate_aggregator_http_running", PROM_GAUGE,
	            "HTTP requests that a worker has, by the kind of worker.");
	for (int i = 0; i < HTTP_POOLS; i++) {
		prom_begin(p);
		prom_label(p, "workers", pools[i]);
		prom_int(p, stats.running[i]);
	}
	write_one(p, "tollgate_aggregator_http_kept", PROM_GAUGE,
	          "HTTP requests that wait for a decision, or for something to happen.", stats.kept, 0);
}

static void
write_background(struct prom *p, struct app *app)
{
	struct gauges_stats stats;
	size_t left_out;

	left_out = usage_table_left_out(usage_counters_lock(app->usage));
	usage_counters_unlock(app->usage);
	gauges_stats(app->gauges, &stats);
	write_one(p, "tollgate_aggregator_start_time_seconds", PROM_GAUGE, "When this process began.",
	          app->started_wall_ns / NS_PER_MS, 3);
	write_one(p, "tollgate_aggregator_rollup_time_seconds", PROM_GAUGE, "When the last roll-up ended.",
	          (int64_t)atomic_load(&app->counters.rollup_last_wall_ns) / NS_PER_MS, 3);
	write_one(p, "tollgate_aggregator_metrics_readings_total", PROM_COUNTER,
	          "Readings of the ledger for this page.", stats.readings, 0);
	write_one(p, "tollgate_aggregator_metrics_failures_total", PROM_COUNTER, "Of those, readings that failed.",
	          stats.failures, 0);
	write_one(p, "tollgate_aggregator_metrics_duration_seconds", PROM_GAUGE, "How long the last one took.",
	          stats.duration_ns, 9);
	write_one(p, "tollgate_aggregator_database_connects_total", PROM_COUNTER,
	          "Connections to the database that came about.", (int64_t)atomic_load(&app->db.connects), 0);
	write_one(p, "tollgate_aggregator_database_connections", PROM_GAUGE, "Connections to the database now.",
	          (int64_t)atomic_load(&app->db.open), 0);
	write_one(p, "tollgate_aggregator_database_failures_total", PROM_COUNTER,
	          "Connections that did not come about, and statements that failed.",
	          (int64_t)atomic_load(&app->db.failures), 0);
	write_one(p, "tollgate_aggregator_database_cuts_total", PROM_COUNTER,
	          "Connections to the database that this program ended because there was no reply in time.", db_cuts(),
	          0);
	write_one(
		p, "tollgate_aggregator_usage_series_left_out", PROM_GAUGE,
		"Series of GPU time and energy that are added up under the tenant other, because of metrics-series-max.",
		(int64_t)left_out, 0);
}

static void
write_own(struct prom *p, struct app *app)
{
	prom_family(p, "tollgate_aggregator_build_info", PROM_GAUGE, "Version of this program.");
	prom_begin(p);
	prom_label(p, "version", TOLLGATE_VERSION);
	prom_int(p, 1);
	for (size_t i = 0; i < ARRAY_LEN(counter_rows); i++) {
		const char *base = (const char *)&app->counters;
		const atomic_llong *counter = (const void *)(base + counter_rows[i].offset);

		write_one(p, counter_rows[i].name, PROM_COUNTER, counter_rows[i].help, (int64_t)atomic_load(counter),
		          0);
	}
	write_ingest(p, &app->counters);
	write_decisions(p, &app->counters);
	prom_family(p, "tollgate_events_total", PROM_COUNTER, "Events of other meters, by what became of them.");
	for (int fate = EVENT_ACCEPTED; fate < EVENT_FATES; fate++)
		write_labelled(p, "result", event_fate_name((enum event_fate)fate), &app->counters.events[fate]);
	write_http(p, &app->counters);
	write_shares(p, atomic_load(&app->httpd));
	write_background(p, app);
}

/* ---- the page ---- */

/* Inline: this replica's own series are at hand, so that a scrape is answered also when every worker is busy or the
 * database is gone. A token needs both, and goes to a worker. */
void
handle_metrics(void *app_, void *worker, const struct http_request *rq, struct http_reply *rp)
{
	struct app *app = app_;
	struct worker *w = worker;
	enum prom_format format = prom_negotiate(http_header(rq, "Accept"));
	struct gauges_page *page = NULL;
	struct prom p;
	struct err err = {0};

	if (w == NULL && http_header(rq, "Authorization") != NULL) {
		http_defer(rp);
		return;
	}
	if (w != NULL && (w->who.role & ROLES_READ) != 0 && !gauges_get(app->gauges, &page, &err)) {
		http_problem_err(rp, rq, &err);
		return;
	}
	rp->body.max = METRICS_MAX;
	rp->content_type = format == PROM_OPENMETRICS ? PROM_OPENMETRICS_TYPE : PROM_TEXT_TYPE;
	prom_init(&p, &rp->body, format);
	write_own(&p, app);
	if (page != NULL) {
		metrics_write_tenants(&p, app, page, &w->who);
		gauges_put(app->gauges, page);
	}
	prom_end(&p);
}
