/* aggregator/api/metrics_ledger.c - the ledger on /metrics: the same on every replica, and of it what one may see. */
#include <string.h>

#include "aggregator/api/app.h"
#include "common/base/money.h"
#include "common/base/time.h"
#include "common/base/units.h"

static bool
sees(const struct identity_row *who, const struct gauge_row *r)
{
	return api_sees(who, r->rest ? NULL : r->tenant);
}

static int64_t
bounded(int128 v)
{
	return v > INT64_MAX ? INT64_MAX : v < INT64_MIN ? INT64_MIN : (int64_t)v;
}

/* With as many decimals as there is room for: a trillion tokens has fewer than a price. */
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

		if (!sees(who, r))
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

		if (!sees(who, r))
			continue;
		prom_begin(p);
		prom_label(p, "period", page->period);
		prom_label(p, "tenant", r->tenant);
		prom_label(p, "workspace", r->workspace);
		prom_label(p, "currency", r->kind);
		write_number(p, r->amount, r->scale);
	}
}

/* Money has as many decimals as are kept of it, hours too. */
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
		"what is consumed, and the forecast to the period's end.");
	for (size_t i = 0; i < page->budgets.count; i++) {
		const struct gauge_row *r = &page->budgets.at[i];

		if (!sees(who, r) || (strcmp(r->kind, "limit") != 0 && strcmp(r->kind, "consumed") != 0 &&
		                      strcmp(r->kind, "forecast") != 0))
			continue;
		begin_budget(p, r);
		prom_label(p, "kind", r->kind);
		prom_label(p, "currency", r->what);
		write_number(p, r->amount, r->scale);
	}
	prom_family(p, "tollgate_budget_ratio", PROM_GAUGE, "Consumed part of the month's budget: 1 is all of it.");
	for (size_t i = 0; i < page->budgets.count; i++) {
		const struct gauge_row *r = &page->budgets.at[i];

		if (!sees(who, r) || strcmp(r->kind, "ratio") != 0)
			continue;
		begin_budget(p, r);
		prom_label(p, "currency", r->what);
		write_number(p, r->amount, r->scale);
	}
}

/* Decided on the exact amounts, which a ratio of six decimals is not. */
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

		for (size_t k = 0; k < ARRAY_LEN(thresholds) && sees(who, r); k++) {
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
	            "GPUs in service by what can be done with them now: healthy, down, unknown.");
	for (size_t i = 0; i < page->capacity.count; i++) {
		const struct gauge_row *r = &page->capacity.at[i];

		if (!sees(who, r))
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
		[NODE_AGE] = {"tollgate_node_status_age_seconds", "Since a node last said who holds what."},
		[NODE_SKEW] = {"tollgate_node_clock_skew_seconds",
	                       "The clock of a node less that of the aggregator, when it last said so."},
		[NODE_SILENT] = {"tollgate_node_silent",
	                         "1 when a node has not said who holds what for three of its intervals."},
	};

	for (int k = 0; k < NODE_VALUES; k++) {
		prom_family(p, families[k].name, PROM_GAUGE, families[k].help);
		for (size_t i = 0; i < page->nodes.count; i++)
			if (sees(who, &page->nodes.at[i]))
				write_node(p, &page->nodes.at[i], (enum node_value)k);
	}
}

/* Of the whole ledger, so not for a tenant. */
static void
write_whole(struct prom *p, const struct gauges_page *page)
{
	const struct backlog *b = &page->backlog;
	const struct {
		const char *name, *help;
		int64_t value;
		int decimals;
	} rows[] = {
		/* rounded up: the smallest error is not 0 */
		{"tollgate_conservation_error_seconds",
	         "GPU-seconds of the billing period in which states and time in service differ, of all GPUs.",
	         bounded((page->conservation_error_unit_ns + UNITS_PER_GPU - 1) / UNITS_PER_GPU), 9},
		{"tollgate_period_unrated_lines",
	         "Lines of the billing period whose cost is beyond what a bill holds: they cost nothing.",
	         page->unrated_lines, 0},
		{"tollgate_held_nodes", "Nodes that have been seen and that nobody has declared or approved.",
	         b->held_nodes, 0},
		{"tollgate_quarantined_batches", "Batches in quarantine about which nobody has decided.",
	         b->quarantined, 0},
		{"tollgate_quarantine_age_seconds", "Since the oldest of them arrived.",
	         b->quarantine_age_ns / NS_PER_MS, 3},
		{"tollgate_unsealed_age_seconds",
	         "Since the end of the oldest node-hour that is not sealed, or must be computed again.",
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
		"Series of the ledger that are added up under the tenant other, or of nodes not shown, because of metrics-series-max.");
	for (size_t i = 0; i < ARRAY_LEN(families); i++) {
		prom_begin(p);
		prom_label(p, "family", families[i].family);
		prom_int(p, (int64_t)families[i].rows->beyond.count);
	}
}

void
metrics_write_ledger(struct prom *p, const struct gauges_page *page, const struct identity_row *who)
{
	if (api_sees(who, NULL))
		write_whole(p, page);
	write_hours(p, page, who);
	write_costs(p, page, who);
	write_budgets(p, page, who);
	write_budget_thresholds(p, page, who);
	write_capacity(p, page, who);
	write_nodes(p, page, who);
}
