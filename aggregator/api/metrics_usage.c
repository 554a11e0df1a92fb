/* aggregator/api/metrics_usage.c - counters of what this replica did: durations, GPU time and energy. */
#include <pthread.h>
#include <string.h>

#include "aggregator/api/app.h"
#include "aggregator/core/metering/usage_series.h"
#include "common/base/time.h"
#include "common/base/units.h"

/* ---- durations ---- */

static const struct {
	int64_t ns;
	const char *le;
} bounds[HISTOGRAM_BUCKETS] = {
	{1 * NS_PER_MS, "0.001"},  {2500 * NS_PER_US, "0.0025"}, {5 * NS_PER_MS, "0.005"}, {10 * NS_PER_MS, "0.01"},
	{25 * NS_PER_MS, "0.025"}, {50 * NS_PER_MS, "0.05"},     {100 * NS_PER_MS, "0.1"}, {250 * NS_PER_MS, "0.25"},
	{500 * NS_PER_MS, "0.5"},  {1 * NS_PER_S, "1.0"},        {5 * NS_PER_S, "5.0"},    {30 * NS_PER_S, "30.0"},
};

void
histogram_add(struct histogram *h, int64_t ns)
{
	size_t i = 0;

	while (i < HISTOGRAM_BUCKETS && ns > bounds[i].ns)
		i++;
	atomic_fetch_add(&h->buckets[i], 1);
	atomic_fetch_add(&h->sum_ns, ns);
}

void
histogram_write(struct prom *p, struct histogram *h)
{
	int64_t count = 0;

	for (size_t i = 0; i <= HISTOGRAM_BUCKETS; i++) {
		count += atomic_load(&h->buckets[i]);
		prom_begin_part(p, "_bucket");
		prom_label(p, "le", i < HISTOGRAM_BUCKETS ? bounds[i].le : "+Inf");
		prom_int(p, count);
	}
	prom_begin_part(p, "_sum");
	prom_fixed(p, atomic_load(&h->sum_ns), 9);
	prom_begin_part(p, "_count");
	prom_int(p, count);
}

/* ---- GPU time and energy ---- */

struct usage_counters {
	pthread_mutex_t lock;
	struct usage_table table;
};

struct usage_counters *
usage_counters_new(size_t series_max)
{
	struct usage_counters *u = mem_alloc(sizeof(*u));

	pthread_mutex_init(&u->lock, NULL);
	usage_table_init(&u->table, series_max);
	return u;
}

void
usage_counters_free(struct usage_counters *u)
{
	if (u == NULL)
		return;
	usage_table_fini(&u->table);
	pthread_mutex_destroy(&u->lock);
	mem_free(u);
}

void
usage_counters_add(struct usage_counters *u, const struct ingest_sums *sums)
{
	pthread_mutex_lock(&u->lock);
	usage_table_add(&u->table, sums);
	pthread_mutex_unlock(&u->lock);
}

size_t
usage_counters_left_out(struct usage_counters *u)
{
	size_t n;

	pthread_mutex_lock(&u->lock);
	n = usage_table_left_out(&u->table);
	pthread_mutex_unlock(&u->lock);
	return n;
}

/* Microseconds: more decimals than a scraper's numbers keep for a fleet. Cut, so that no sample is above the truth. */
static void
put_amount(struct prom *p, unsigned kind, int128 amount)
{
	if (kind == SERIES_ENERGY)
		prom_fixed(p, (int64_t)amount, 3);
	else
		prom_fixed(p, (int64_t)(amount / (UNITS_PER_GPU * NS_PER_US)), 6);
}

/* Nobody's time has no workspace. NULL: the page does not know it yet. */
static const struct workspace_name *
name_of(const struct gauges_page *page, int32_t workspace_id)
{
	static char nobody[] = "";
	static const struct workspace_name none = {nobody, nobody};
	size_t at;

	if (workspace_id == 0)
		return &none;
	return idmap_find(&page->names_by_id, (uint32_t)workspace_id, &at) ? &page->names[at] : NULL;
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

void
usage_counters_write(struct prom *p, struct usage_counters *u, const struct gauges_page *page,
                     const struct identity_row *who)
{
	pthread_mutex_lock(&u->lock);
	prom_family(p, "tollgate_gpu_seconds_total", PROM_COUNTER,
	            "GPU-equivalent seconds that this replica took into the ledger, by state.");
	put_family(p, &u->table, false, page, who);
	prom_family(p, "tollgate_energy_joules_total", PROM_COUNTER,
	            "Energy of the GPU time that this replica took into the ledger.");
	put_family(p, &u->table, true, page, who);
	pthread_mutex_unlock(&u->lock);
}
