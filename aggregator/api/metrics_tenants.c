/* aggregator/api/metrics_tenants.c - the part of /metrics that depends on the token: the ledger, GPU time of this replica, quota. A tenant's token
 * may_see its own rows, operators see all. */
#include <string.h>

#include "aggregator/api/api.h"
#include "aggregator/core/quota/book/quota_figures.h"
#include "aggregator/service/decider.h"
#include "aggregator/store/access/access.h"
#include "aggregator/store/ingest/ingest.h"
#include "common/base/money.h"
#include "common/base/time.h"
#include "common/base/units.h"

#define GPU_DECIMALS 3

/* ---- the ledger: the same on every replica ---- */

static bool
may_see(const struct identity_row *who, const struct gauge_row *r)
{
	return api_sees(who, r->rest ? NULL : r->tenant);
}

static int64_t
bounded(int128 v)
{
	return v > INT64_MAX ? INT64_MAX : v < INT64_MIN ? INT64_MIN : (int64_t)v;
}

/* Drops decimals until the number fits into 64 bits. */
static void
write_number(struct prom *p, int128 v, int scale)
{
	for (; scale > 0 && (v > INT64_MAX || v < INT64_MIN); scale--)
		v = div_round_half_even(v, 10);
	prom_fixed(p, bounded(v), scale);
}

static void
write_hours(struct prom *p, const struct gauges_page *page, const struct identity_row *who)
{
	prom_family(p, "tollgate_period_gpu_hours", PROM_GAUGE,
	            "GPU-equivalent hours of the billing period in the ledger.");
	for (size_t i = 0; i < page->hours.count; i++) {
		const struct gauge_row *r = &page->hours.at[i];

		if (!may_see(who, r))
			continue;
		prom_begin(p);
		prom_label(p, "period", page->period);
		prom_label(p, "tenant", r->tenant);
		prom_label(p, "workspace", r->workspace);
		prom_label(p, "class", r->what);
		prom_label(p, "state", r->kind);
		write_number(p, div_round_half_even(r->amount, UNITS_PER_GPU * (NS_PER_HOUR / NS_PER_S)), 9);
	}
}

static void
write_costs(struct prom *p, const struct gauges_page *page, const struct identity_row *who)
{
	prom_family(p, "tollgate_period_cost", PROM_GAUGE, "Billed cost of the billing period so far.");
	for (size_t i = 0; i < page->costs.count; i++) {
		const struct gauge_row *r = &page->costs.at[i];

		if (!may_see(who, r))
			continue;
		prom_begin(p);
		prom_label(p, "period", page->period);
		prom_label(p, "tenant", r->tenant);
		prom_label(p, "workspace", r->workspace);
		prom_label(p, "currency", r->kind);
		write_number(p, r->amount, r->scale);
	}
}

static void
begin_budget(struct prom *p, const struct gauge_row *r)
{
	prom_begin(p);
	prom_label(p, "tenant", r->tenant);
	prom_label(p, "workspace", r->workspace);
}

static void
write_budgets(struct prom *p, const struct gauges_page *page, const struct identity_row *who)
{
	prom_family(
		p, "tollgate_budget", PROM_GAUGE,
		"Budget of the billing period in money, in tokens where the currency is token, or in GPU-hours where there is none: its limit, "
		"the consumed amount, and the forecast for the end of the period.");
	for (size_t i = 0; i < page->budgets.count; i++) {
		const struct gauge_row *r = &page->budgets.at[i];

		if (!may_see(who, r) || (strcmp(r->kind, "limit") != 0 && strcmp(r->kind, "consumed") != 0 &&
		                         strcmp(r->kind, "forecast") != 0))
			continue;
		begin_budget(p, r);
		prom_label(p, "kind", r->kind);
		prom_label(p, "currency", r->what);
		write_number(p, r->amount, r->scale);
	}
	prom_family(p, "tollgate_budget_ratio", PROM_GAUGE,
	            "Consumed fraction of the budget of the month; 1: all of it.");
	for (size_t i = 0; i < page->budgets.count; i++) {
		const struct gauge_row *r = &page->budgets.at[i];

		if (!may_see(who, r) || strcmp(r->kind, "ratio") != 0)
			continue;
		begin_budget(p, r);
		prom_label(p, "currency", r->what);
		write_number(p, r->amount, r->scale);
	}
}

/* The thresholds were decided on exact amounts; tollgate_budget_ratio is rounded to six decimals. */
static void
write_budget_thresholds(struct prom *p, const struct gauges_page *page, const struct identity_row *who)
{
	static const struct {
		const char *label, *kind;
		int least;
	} thresholds[] = {
		{"50", "threshold", 50}, {"80", "threshold", 80}, {"100", "threshold", 100}, {"forecast", "breach", 1}};

	prom_family(
		p, "tollgate_budget_reached", PROM_GAUGE,
		"1 where a budget of the billing period has reached 50, 80 or 100 percent; forecast: where it will be exceeded by the "
		"period's end.");
	for (size_t i = 0; i < page->budgets.count; i++) {
		const struct gauge_row *r = &page->budgets.at[i];

		for (size_t k = 0; k < ARRAY_LEN(thresholds) && may_see(who, r); k++) {
			if (strcmp(r->kind, thresholds[k].kind) != 0)
				continue;
			begin_budget(p, r);
			prom_label(p, "currency", r->what);
			prom_label(p, "threshold", thresholds[k].label);
			prom_int(p, r->amount >= thresholds[k].least);
		}
	}
}

static void
write_capacity(struct prom *p, const struct gauges_page *page, const struct identity_row *who)
{
	prom_family(p, "tollgate_capacity_gpus", PROM_GAUGE,
	            "GPUs in service by present health: healthy, down, unknown.");
	for (size_t i = 0; i < page->capacity.count; i++) {
		const struct gauge_row *r = &page->capacity.at[i];

		if (!may_see(who, r))
			continue;
		prom_begin(p);
		prom_label(p, "cluster", r->cluster);
		prom_label(p, "tenant", r->tenant);
		prom_label(p, "gpu_model", r->what);
		prom_label(p, "state", r->kind);
		prom_int(p, bounded(r->amount));
	}
}

enum node_value { NODE_LAG, NODE_AGE, NODE_SKEW, NODE_SILENT, NODE_VALUES };

static void
write_node(struct prom *p, const struct gauge_row *r, enum node_value what)
{
	int64_t ns = what == NODE_LAG ? r->lag_ns : what == NODE_AGE ? r->age_ns : r->skew_ns;

	if ((what == NODE_LAG && r->lag_ns < 0) || ((what == NODE_AGE || what == NODE_SKEW) && r->age_ns < 0))
		return;
	prom_begin(p);
	prom_label(p, "cluster", r->cluster);
	prom_label(p, "node", r->what);
	prom_label(p, "tenant", r->tenant);
	if (what == NODE_SILENT)
		prom_int(p, r->silent);
	else
		prom_fixed(p, ns / NS_PER_MS, 3);
}

static void
write_nodes(struct prom *p, const struct gauges_page *page, const struct identity_row *who)
{
	static const struct {
		const char *name, *help;
	} families[NODE_VALUES] = {
		[NODE_LAG] = {"tollgate_node_lag_seconds", "How far the records of a node are behind the present."},
		[NODE_AGE] = {"tollgate_node_status_age_seconds", "Time since the last status report of a node."},
		[NODE_SKEW] = {"tollgate_node_clock_skew_seconds",
	                       "Clock of a node minus the aggregator's clock, at the node's last status report."},
		[NODE_SILENT] = {"tollgate_node_silent",
	                         "1 when a node has sent no status report for three of its intervals."},
	};

	for (int k = 0; k < NODE_VALUES; k++) {
		prom_family(p, families[k].name, PROM_GAUGE, families[k].help);
		for (size_t i = 0; i < page->nodes.count; i++)
			if (may_see(who, &page->nodes.at[i]))
				write_node(p, &page->nodes.at[i], (enum node_value)k);
	}
}

/* Figures of the whole ledger; only operators see them. */
static void
write_operator_gauges(struct prom *p, const struct gauges_page *page)
{
	const struct backlog *b = &page->backlog;
	const struct {
		const char *name, *help;
		int64_t value;
		int decimals;
	} rows[] = {
		/* rounded up: the smallest error is not 0 */
		{"tollgate_conservation_error_seconds",
	         "Difference between the sum of all states and the time in service, in GPU-seconds of the billing period over all GPUs.",
	         bounded((page->conservation_error_unit_ns + UNITS_PER_GPU - 1) / UNITS_PER_GPU), 9},
		{"tollgate_period_unrated_lines",
	         "Lines of the billing period that are not charged because their cost exceeds the largest amount a bill can hold.",
	         page->unrated_lines, 0},
		{"tollgate_held_nodes", "Nodes that have sent data but are neither declared nor approved.",
	         b->held_nodes, 0},
		{"tollgate_quarantined_batches", "Batches in quarantine that await a decision.", b->quarantined, 0},
		{"tollgate_quarantine_age_seconds", "Age of the oldest batch in quarantine that awaits a decision.",
	         b->quarantine_age_ns / NS_PER_MS, 3},
		{"tollgate_unsealed_age_seconds",
	         "Time since the end of the oldest node-hour that is not sealed, or must be computed again.",
	         b->unsealed_age_ns / NS_PER_MS, 3},
	};
	const struct {
		const char *family;
		const struct gauge_rows *rows;
	} families[] = {{"tollgate_period_gpu_hours", &page->hours},
	                {"tollgate_period_cost", &page->costs},
	                {"tollgate_budget", &page->budgets},
	                {"tollgate_capacity_gpus", &page->capacity},
	                {"tollgate_node", &page->nodes}};

	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		prom_family(p, rows[i].name, PROM_GAUGE, rows[i].help);
		prom_begin(p);
		prom_fixed(p, rows[i].value, rows[i].decimals);
	}
	prom_family(p, "tollgate_rollup_backlog", PROM_GAUGE,
	            "Node-hours that are not sealed yet (open), or were and must be computed again (dirty).");
	prom_begin(p);
	prom_label(p, "state", "open");
	prom_int(p, b->open_hours);
	prom_begin(p);
	prom_label(p, "state", "dirty");
	prom_int(p, b->dirty_hours);
	prom_family(
		p, "tollgate_ledger_series_left_out", PROM_GAUGE,
		"Series of the ledger beyond metrics-series-max: they are added up under the tenant other; those of nodes are not shown.");
	for (size_t i = 0; i < ARRAY_LEN(families); i++) {
		prom_begin(p);
		prom_label(p, "family", families[i].family);
		prom_int(p, (int64_t)families[i].rows->beyond.count);
	}
}

static void
write_ledger(struct prom *p, const struct gauges_page *page, const struct identity_row *who)
{
	if (api_sees(who, NULL))
		write_operator_gauges(p, page);
	write_hours(p, page, who);
	write_costs(p, page, who);
	write_budgets(p, page, who);
	write_budget_thresholds(p, page, who);
	write_capacity(p, page, who);
	write_nodes(p, page, who);
}

/* ---- GPU time and energy that this replica accepted ---- */

/* Microseconds are finer than a scraper's double keeps for a fleet. Rounded down, so that no sample exceeds the exact amount. */
static void
put_amount(struct prom *p, unsigned kind, int128 amount)
{
	if (kind == SERIES_ENERGY)
		prom_fixed(p, (int64_t)amount, 3);
	else
		prom_fixed(p, (int64_t)(amount / (UNITS_PER_GPU * NS_PER_US)), 6);
}

/* Time without a holder has no workspace. NULL: the page does not know the workspace yet. */
static const struct workspace_name *
name_of(const struct gauges_page *page, int32_t workspace_id)
{
	static char empty[] = "";
	static const struct workspace_name none = {empty, empty};
	size_t at;

	if (workspace_id == 0)
		return &none;
	return hash_find(&page->names_by_id, (uint32_t)workspace_id, &at) ? &page->names[at] : NULL;
}

static void
put_series(struct prom *p, const struct usage_series *s, const struct workspace_name *name)
{
	prom_begin(p);
	prom_label(p, "cluster", s->cluster);
	prom_label(p, "tenant", name->tenant);
	prom_label(p, "workspace", name->workspace);
	prom_label(p, "gpu_model", s->gpu_model);
	prom_label(p, "profile", s->profile);
	if (s->kind != SERIES_ENERGY)
		prom_label(p, "state", usage_state_name((enum usage_state)s->kind));
	put_amount(p, s->kind, s->amount);
}

static void
put_family(struct prom *p, const struct usage_table *t, bool energy, const struct gauges_page *page,
           const struct identity_row *who)
{
	for (size_t i = 0; i < t->count; i++) {
		const struct workspace_name *name = name_of(page, t->at[i].workspace_id);

		if ((t->at[i].kind == SERIES_ENERGY) == energy && name != NULL && api_sees(who, name->tenant))
			put_series(p, &t->at[i], name);
	}
	for (unsigned kind = 0; kind < SERIES_KINDS; kind++) {
		if (t->rest[kind] == 0 || (kind == SERIES_ENERGY) != energy || !api_sees(who, NULL))
			continue;
		prom_begin(p);
		prom_label(p, "tenant", REST_TENANT);
		if (!energy)
			prom_label(p, "state", usage_state_name((enum usage_state)kind));
		put_amount(p, kind, t->rest[kind]);
	}
}

static void
write_usage(struct prom *p, struct usage_counters *u, const struct gauges_page *page, const struct identity_row *who)
{
	const struct usage_table *table = usage_counters_lock(u);

	prom_family(p, "tollgate_gpu_seconds_total", PROM_COUNTER,
	            "GPU-equivalent seconds that this replica stored in the ledger, by state.");
	put_family(p, table, false, page, who);
	prom_family(p, "tollgate_energy_joules_total", PROM_COUNTER,
	            "Energy of the GPU time that this replica stored in the ledger.");
	put_family(p, table, true, page, who);
	usage_counters_unlock(u);
}

/* ---- quota ---- */

/* Only operators see rows without a tenant and the rest row, because a tenant may have the same name as the rest row. */
static bool
may_see_quota(const struct identity_row *who, const struct gauge_row *r)
{
	return api_sees(who, r->rest || r->tenant[0] == '\0' ? NULL : r->tenant);
}

static void
write_decisions(struct prom *p, struct app *app, const struct identity_row *who)
{
	const struct gauge_rows *rows;

	prom_family(
		p, "tollgate_decisions_total", PROM_COUNTER,
		"Requests for capacity that this replica answered for the first time, by answer and the rule that decided.");
	rows = decision_counters_lock(app->decisions);
	for (size_t i = 0; i < rows->count; i++) {
		const struct gauge_row *r = &rows->at[i];

		if (!may_see_quota(who, r))
			continue;
		prom_begin(p);
		prom_label(p, "tenant", r->tenant);
		prom_label(p, "workspace", r->workspace);
		prom_label(p, "decision", r->kind);
		prom_label(p, "rule", r->what);
		prom_int(p, (int64_t)r->amount);
	}
	decision_counters_unlock(app->decisions);
}

/* ---- the quota book ---------------------------------------------------------------------------------------------------------------- */

/* Thousandths of a GPU. */
static int64_t
milli_gpus(int64_t units)
{
	return (int64_t)div_round_half_even((int128)units * 1000, UNITS_PER_GPU);
}

static const char *const kinds[] = {"limit", "reserved", "in_use", "borrowed", "on_demand", "lent", "queued", "held"};

static int64_t
kind_of(const struct quota_figure *f, size_t kind)
{
	const int64_t amounts[ARRAY_LEN(kinds)] = {f->account.limit, f->account.reserved, f->account.leased,
	                                           f->borrowed,      f->on_demand,        f->lent,
	                                           f->queued,        f->account.held};

	return amounts[kind];
}

static void
write_figure(struct prom *p, const char *const labels[4], const char *kind, int64_t units)
{
	static const char *const names[4] = {"cluster", "tenant", "workspace", "gpu_model"};

	prom_begin(p);
	for (size_t i = 0; i < ARRAY_LEN(names); i++)
		prom_label(p, names[i], labels[i]);
	prom_label(p, "kind", kind);
	prom_fixed(p, milli_gpus(units), GPU_DECIMALS);
}

/* Whether two figures differ only in the pool. */
static bool
is_same(const struct quota_figure *a, const struct quota_figure *b)
{
	return a->workspace == b->workspace && a->cluster == b->cluster && a->model == b->model;
}

/* Writes the sum over a workspace's own pool and the shared one. A kind that is unlimited in one of them has no sample. rest: if not NULL, the
 * sums are added to it instead. */
static void
write_group(struct prom *p, const struct quota_book *b, const struct quota_figure *f, size_t n, int64_t *rest)
{
	const char *path = quota_book_workspace_path(b, f->workspace);
	struct workspace_path at = workspace_path_split(path);

	for (size_t k = 0; k < ARRAY_LEN(kinds); k++) {
		int64_t sum = 0;

		for (size_t i = 0; i < n && sum != QUOTA_UNLIMITED; i++) {
			int64_t v = kind_of(&f[i], k);

			sum = v == QUOTA_UNLIMITED ? v : sum + v;
		}
		if (sum == QUOTA_UNLIMITED)
			continue;
		if (rest != NULL)
			rest[k] += sum;
		else
			write_figure(p,
			             (const char *const[]){quota_book_cluster_name(b, f->cluster), at.tenant,
			                                   at.workspace, quota_book_model_name(b, f->model)},
			             kinds[k], sum);
	}
}

static void
write_book(struct prom *p, const struct quota_book *b, size_t series_max, const struct identity_row *who)
{
	in_place(quota_figures) struct quota_figures f = {0};
	int64_t rest[ARRAY_LEN(kinds)] = {0};
	size_t groups = 0, n;
	struct workspace_path at;

	quota_figures_make(b, &f);
	prom_family(
		p, "tollgate_quota_gpus", PROM_GAUGE,
		"GPUs of a workspace by the quota book, in its own pool and the shared one: limit, reserved, in_use, borrowed (reserved by others), on_demand (reserved by nobody), lent, queued, held.");
	for (size_t i = 0; i < f.count; i += n) {
		for (n = 1; i + n < f.count && is_same(&f.at[i], &f.at[i + n]); n++)
			;
		at = workspace_path_split(quota_book_workspace_path(b, f.at[i].workspace));
		groups++;
		if (api_sees(who, at.tenant))
			write_group(p, b, &f.at[i], n, groups * ARRAY_LEN(kinds) > series_max ? rest : NULL);
	}
	for (size_t k = 0; k < ARRAY_LEN(kinds) && groups * ARRAY_LEN(kinds) > series_max && api_sees(who, NULL); k++)
		write_figure(p, (const char *const[]){"", REST_TENANT, "", ""}, kinds[k], rest[k]);
	prom_family(
		p, "tollgate_would_deny_total", PROM_COUNTER,
		"Requests that the rules would have denied, of workspaces whose quota is not enforced, since the start of the quota book.");
	for (int32_t w = 0; (size_t)w < quota_book_workspace_count(b); w++) {
		at = workspace_path_split(quota_book_workspace_path(b, w));
		if ((size_t)w >= series_max || !api_sees(who, at.tenant) || quota_book_would_deny(b, w) == 0)
			continue;
		prom_begin(p);
		prom_label(p, "tenant", at.tenant);
		prom_label(p, "workspace", at.workspace);
		prom_int(p, quota_book_would_deny(b, w));
	}
}

/* ---- the ledger -------------------------------------------------------------------------------------------------------------- */

#define KINDS_MAX 8
static const struct {
	const char *name, *help, *label;
	const char *kinds[KINDS_MAX]; /* operators always see these, with 0 where there is no row */
} families[QUOTA_GAUGE_FAMILIES] = {
	[QUOTA_RECLAIMS] = {"tollgate_reclaims",
                            "Leases that are being reclaimed and still hold capacity, by state of the reclaim.",
                            "state",
                            {"ordered", "draining", "overdue", "enforced"}},
	[QUOTA_EXCEPTIONS] =
		{"tollgate_exceptions",
                 "Exceptions from limits and reservations: requested, approved and not yet begun, running.",
                 "state",
                 {"requested", "approved", "running"}},
	[QUOTA_ANOMALIES] = {"tollgate_quota_anomalies",
                             "Differences between telemetry and the quota book, by kind.",
                             "kind",
                             {"unleased", "unused", "foreign", "excess", "reserved", "overdue", "idle"}},
	[QUOTA_UNLEASED] = {"tollgate_unleased_gpus", "GPUs that are held without a lease.", NULL, {""}},
};

static bool
has_kind(const struct gauge_rows *rows, const char *kind)
{
	for (size_t i = 0; i < rows->count; i++)
		if (strcmp(rows->at[i].kind, kind) == 0)
			return true;
	return false;
}

static void
write_row(struct prom *p, enum quota_gauge_family family, const struct gauge_row *r)
{
	prom_begin(p);
	prom_label(p, "tenant", r->tenant);
	if (family == QUOTA_UNLEASED) {
		prom_label(p, "workspace", r->workspace);
		prom_fixed(p, milli_gpus((int64_t)r->amount), GPU_DECIMALS);
		return;
	}
	prom_label(p, families[family].label, r->kind);
	prom_int(p, (int64_t)r->amount);
}

static void
write_rows(struct prom *p, const struct gauge_rows *rows, enum quota_gauge_family family,
           const struct identity_row *who)
{
	char empty[] = "";

	prom_family(p, families[family].name, PROM_GAUGE, families[family].help);
	for (size_t i = 0; i < rows->count; i++)
		if (may_see_quota(who, &rows->at[i]))
			write_row(p, family, &rows->at[i]);
	for (size_t k = 0; k < KINDS_MAX && families[family].kinds[k] != NULL && api_sees(who, NULL); k++) {
		struct gauge_row none = {.tenant = empty, .workspace = empty};

		if (has_kind(rows, families[family].kinds[k]))
			continue;
		none.kind = mem_strdup(families[family].kinds[k]);
		write_row(p, family, &none);
		mem_free(none.kind);
	}
}

static void
write_quota(struct prom *p, struct app *app, const struct gauges_page *page, const struct identity_row *who)
{
	struct quota_log *log = decider_log(app->decider);
	const struct quota_book *b;

	write_decisions(p, app, who);
	b = quota_log_borrow(log);
	if (b != NULL)
		write_book(p, b, (size_t)app->options->metrics_series_max, who);
	quota_log_give_back(log);
	for (int f = 0; f < QUOTA_GAUGE_FAMILIES; f++)
		write_rows(p, &page->quota[f], (enum quota_gauge_family)f, who);
}

void
metrics_write_tenants(struct prom *p, struct app *app, const struct gauges_page *page, const struct identity_row *who)
{
	write_usage(p, app->usage, page, who);
	write_ledger(p, page, who);
	write_quota(p, app, page, who);
}
