/* aggregator/service/counters.c - counters of one replica since it started. */
#include "aggregator/service/counters.h"

#include <pthread.h>
#include <string.h>

#include "common/base/time.h"

/* ---- durations ---- */

const struct histogram_bound histogram_bounds[HISTOGRAM_BUCKETS] = {
	{1 * NS_PER_MS, "0.001"},  {2500 * NS_PER_US, "0.0025"}, {5 * NS_PER_MS, "0.005"}, {10 * NS_PER_MS, "0.01"},
	{25 * NS_PER_MS, "0.025"}, {50 * NS_PER_MS, "0.05"},     {100 * NS_PER_MS, "0.1"}, {250 * NS_PER_MS, "0.25"},
	{500 * NS_PER_MS, "0.5"},  {1 * NS_PER_S, "1.0"},        {5 * NS_PER_S, "5.0"},    {30 * NS_PER_S, "30.0"},
};

void
histogram_add(struct histogram *h, int64_t ns)
{
	size_t i = 0;

	while (i < HISTOGRAM_BUCKETS && ns > histogram_bounds[i].ns)
		i++;
	atomic_fetch_add(&h->buckets[i], 1);
	atomic_fetch_add(&h->sum_ns, ns);
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

const struct usage_table *
usage_counters_lock(struct usage_counters *u)
{
	pthread_mutex_lock(&u->lock);
	return &u->table;
}

void
usage_counters_unlock(struct usage_counters *u)
{
	pthread_mutex_unlock(&u->lock);
}

/* ---- decisions ---- */

struct decision_counters {
	pthread_mutex_t lock;
	struct gauge_rows rows;
};

struct decision_counters *
decision_counters_new(size_t series_max)
{
	struct decision_counters *c = mem_alloc(sizeof(*c));

	pthread_mutex_init(&c->lock, NULL);
	c->rows.max = series_max;
	return c;
}

void
decision_counters_free(struct decision_counters *c)
{
	if (c == NULL)
		return;
	gauge_rows_fini(&c->rows);
	pthread_mutex_destroy(&c->lock);
	mem_free(c);
}

struct workspace_path
workspace_path_split(const char *path)
{
	const char *slash = strchr(path, '/');
	size_t n = slash != NULL ? (size_t)(slash - path) : 0;
	struct workspace_path ret = {.workspace = ""};

	if (n == 0 || n >= sizeof(ret.tenant))
		return ret;
	memcpy(ret.tenant, path, n);
	ret.tenant[n] = '\0';
	ret.workspace = slash + 1;
	return ret;
}

void
decision_counters_add(struct decision_counters *c, const char *workspace, const char *decision, const char *rule)
{
	struct workspace_path p = workspace_path_split(workspace);

	pthread_mutex_lock(&c->lock);
	gauge_row(&c->rows,
	          &(struct gauge_key){
			  .cluster = "", .tenant = p.tenant, .workspace = p.workspace, .what = rule, .kind = decision})
		->amount++;
	pthread_mutex_unlock(&c->lock);
}

const struct gauge_rows *
decision_counters_lock(struct decision_counters *c)
{
	pthread_mutex_lock(&c->lock);
	return &c->rows;
}

void
decision_counters_unlock(struct decision_counters *c)
{
	pthread_mutex_unlock(&c->lock);
}
