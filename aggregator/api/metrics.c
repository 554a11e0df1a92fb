/* aggregator/api/metrics.c - liveness, readiness and /metrics. */
#include <stdlib.h>
#include <string.h>

#include "aggregator/api/app.h"
#include "aggregator/core/rating.h"
#include "common/promtext.h"
#include "common/time.h"
#include "common/units.h"

#define METRICS_MAX (64u << 20)
#define TOTALS_MAX 200000u /* tenant x workspace x state */

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
	struct worker *w = worker;
	struct err err = {0};

	(void)app;
	if (!store_ready(w->db, &err)) {
		http_problem(rp, rq, 503, NULL, "%s", err.text);
		return;
	}
	rp->content_type = "text/plain; charset=utf-8";
	buf_str(&rp->body, "ready\n");
}

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
	{"tollgate_ingest_quarantined_batches_total", "Sound batches whose content was refused, kept aside.",
         COUNTER(ingest_quarantined)},
	{"tollgate_ingest_lost_batches_total", "Batches that exporters reported as dropped.", COUNTER(ingest_lost)},
	{"tollgate_ingest_refused_total", "Pushes that were refused.", COUNTER(ingest_refused)},
	{"tollgate_ingest_mismatched_batches_total", "Batch numbers that came again with other bytes.",
         COUNTER(ingest_mismatches)},
	{"tollgate_aggregator_requests_total", "HTTP requests answered.", COUNTER(requests)},
	{"tollgate_aggregator_request_errors_total", "HTTP requests answered with a status of 500 or above.",
         COUNTER(request_errors)},
	{"tollgate_aggregator_seals_total", "Node-hours rolled up for the first time.", COUNTER(hours_sealed)},
	{"tollgate_aggregator_reseals_total", "Node-hours rolled up again.", COUNTER(hours_resealed)},
	{"tollgate_aggregator_rollup_errors_total", "Roll-ups that failed.", COUNTER(rollup_errors)},
};

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

		prom_family(p, counter_rows[i].name, PROM_COUNTER, counter_rows[i].help);
		prom_begin(p);
		prom_int(p, (int64_t)atomic_load(counter));
	}
	prom_family(p, "tollgate_events_total", PROM_COUNTER, "Events of other meters, by what became of them.");
	for (int fate = EVENT_ACCEPTED; fate < EVENT_FATES; fate++) {
		prom_begin(p);
		prom_label(p, "result", event_fate_name((enum event_fate)fate));
		prom_int(p, (int64_t)atomic_load(&app->counters.events[fate]));
	}
	prom_family(p, "tollgate_aggregator_start_time_seconds", PROM_GAUGE, "When this process began.");
	prom_begin(p);
	prom_fixed(p, app->started_wall_ns / NS_PER_MS, 3);
	prom_family(p, "tollgate_aggregator_rollup_time_seconds", PROM_GAUGE, "When the last roll-up ended.");
	prom_begin(p);
	prom_fixed(p, (int64_t)atomic_load(&app->counters.rollup_last_wall_ns) / NS_PER_MS, 3);
}

/* The period's hours by tenant, workspace and state; models and profiles are added up here. */
struct hours_row {
	char *tenant, *workspace, *state;
	int128 unit_ns;
};
struct hours {
	struct hours_row *rows;
	size_t count;
	const char *only_tenant; /* NULL: all */
};

static void
hours_fini(struct hours *h)
{
	for (size_t i = 0; i < h->count; i++) {
		mem_free(h->rows[i].tenant);
		mem_free(h->rows[i].workspace);
		mem_free(h->rows[i].state);
	}
	mem_free(h->rows);
}

static void
hours_add(void *arg, const struct usage_total *t)
{
	struct hours *h = arg;

	if (h->only_tenant != NULL && strcmp(h->only_tenant, t->tenant) != 0)
		return;
	for (size_t i = 0; i < h->count; i++) {
		struct hours_row *r = &h->rows[i];

		if (strcmp(r->tenant, t->tenant) == 0 && strcmp(r->workspace, t->workspace) == 0 &&
		    strcmp(r->state, t->state) == 0) {
			r->unit_ns += t->unit_ns;
			return;
		}
	}
	if (h->count == TOTALS_MAX)
		return;
	if ((h->count & (h->count - 1)) == 0)
		h->rows = mem_grow(h->rows, h->count == 0 ? 1 : h->count * 2, sizeof(*h->rows));
	h->rows[h->count++] =
		(struct hours_row){mem_strdup(t->tenant), mem_strdup(t->workspace), mem_strdup(t->state), t->unit_ns};
}

static bool
is_held(const char *state)
{
	return strcmp(state, "used") == 0 || strcmp(state, "idle") == 0 || strcmp(state, "unmeasured") == 0;
}

static void
write_hours(struct prom *p, const char *period, const struct hours *h)
{
	prom_family(p, "tollgate_period_gpu_hours", PROM_GAUGE,
	            "GPU-equivalent hours of the billing period in the ledger.");
	for (size_t i = 0; i < h->count; i++) {
		const struct hours_row *r = &h->rows[i];

		prom_begin(p);
		prom_label(p, "period", period);
		prom_label(p, "tenant", r->tenant);
		prom_label(p, "workspace", r->workspace);
		prom_label(p, "class", is_held(r->state) ? "on-demand" : "");
		prom_label(p, "state", r->state);
		prom_fixed(p, (int64_t)div_round_half_even(r->unit_ns, UNITS_PER_GPU * (NS_PER_HOUR / NS_PER_S)), 9);
	}
}

static void
write_cost(struct prom *p, const struct rating_input *in, const struct rated *rated)
{
	prom_family(p, "tollgate_period_cost", PROM_GAUGE, "Billed cost of the billing period so far.");
	for (size_t i = 0; i < rated->count;) {
		const struct rated_line *first = &rated->lines[i];
		int128 sum = 0;

		for (; i < rated->count && strcmp(rated->lines[i].tenant, first->tenant) == 0 &&
		       strcmp(rated->lines[i].workspace, first->workspace) == 0 &&
		       strcmp(rated->lines[i].currency, first->currency) == 0;
		     i++)
			sum += rated->lines[i].billed;
		prom_begin(p);
		prom_label(p, "period", in->period);
		prom_label(p, "tenant", first->tenant);
		prom_label(p, "workspace", first->workspace);
		prom_label(p, "currency", first->currency);
		prom_fixed(p, (int64_t)sum, first->currency_scale);
	}
}

/* Of the whole ledger, so not for a tenant. Rounded up: the smallest error is not 0. */
static bool
write_conservation(struct prom *p, struct worker *w, const char *period, struct err *err)
{
	int128 unit_ns = 0, ns;

	if (!store_conservation_error(w->db, period, &unit_ns, err))
		return false;
	ns = (unit_ns + UNITS_PER_GPU - 1) / UNITS_PER_GPU;
	prom_family(p, "tollgate_conservation_error_seconds", PROM_GAUGE,
	            "GPU-seconds of the billing period in which states and time in service differ, of all GPUs.");
	prom_begin(p);
	prom_fixed(p, ns > INT64_MAX ? INT64_MAX : (int64_t)ns, 9);
	return true;
}

/* What a token may see of the ledger, from the same rated lines as the report. */
static bool
write_ledger(struct prom *p, struct worker *w, struct err *err)
{
	owned(report_input) struct report_input *input = NULL;
	owned(rated) struct rated *rated = NULL;
	in_place(hours) struct hours hours = {0};
	char period[TIME_TEXT_SIZE];

	hours.only_tenant = (w->who.role & ROLES_TENANT) != 0 ? w->who.tenant : NULL;
	if (!store_period_now(w->db, time_wall_ns(), period, err))
		return false;
	if (hours.only_tenant == NULL && !write_conservation(p, w, period, err))
		return false;
	if (!store_report_load(w->db, period, hours.only_tenant, &input, err))
		return err->kind == ERR_MISSING;
	if (!rating_run(&input->in, &rated, err) || !store_period_totals(w->db, period, hours_add, &hours, err))
		return false;
	write_hours(p, period, &hours);
	write_cost(p, &input->in, rated);
	return true;
}

/* Inline: this replica's own series are at hand, so that a scrape is answered also when every worker is busy or the
 * database is gone. A token needs both, and goes to a worker. */
void
handle_metrics(void *app, void *worker, const struct http_request *rq, struct http_reply *rp)
{
	struct worker *w = worker;
	enum prom_format format = prom_negotiate(http_header(rq, "Accept"));
	struct prom p;
	struct err err = {0};

	if (w == NULL && http_header(rq, "Authorization") != NULL) {
		http_defer(rp);
		return;
	}
	rp->body.max = METRICS_MAX;
	rp->content_type = format == PROM_OPENMETRICS ? PROM_OPENMETRICS_TYPE : PROM_TEXT_TYPE;
	prom_init(&p, &rp->body, format);
	write_own(&p, app);
	if (w != NULL && (w->who.role & ROLES_READ) != 0 && !write_ledger(&p, w, &err)) {
		http_problem_err(rp, rq, &err);
		return;
	}
	prom_end(&p);
}
