/* aggregator/service/gauges.c - the thread that reads the ledger for /metrics, and one reading. The rules are numbered in gauges.h. */
#include "aggregator/service/gauges.h"

#include <string.h>

#include "aggregator/core/rating/rating.h"
#include "aggregator/service/app.h"
#include "aggregator/service/budget_table.h"
#include "aggregator/store/billing/period.h"
#include "aggregator/store/billing/report_store.h"
#include "aggregator/store/ingest/ingest.h"
#include "aggregator/store/usage/usage.h"
#include "common/base/log.h"
#include "common/base/thread.h"
#include "common/base/time.h"

#define ACTIVE_NS (5 * NS_PER_MIN)  /* pages are renewed for so long after a scrape */
#define PATIENCE_NS (30 * NS_PER_S) /* of a scrape that waits */
#define REST_TIMES 9

/* ---- rows ---- */

void
gauge_rows_fini(struct gauge_rows *r)
{
	for (size_t i = 0; i < r->count; i++) {
		struct gauge_row *row = &r->at[i];

		mem_free(row->cluster);
		mem_free(row->tenant);
		mem_free(row->workspace);
		mem_free(row->what);
		mem_free(row->kind);
	}
	mem_free(r->at);
	hash_fini(&r->where);
	hash_fini(&r->beyond);
}

static void
gauges_page_free(struct gauges_page *p)
{
	if (p == NULL)
		return;
	gauge_rows_fini(&p->hours);
	gauge_rows_fini(&p->costs);
	gauge_rows_fini(&p->capacity);
	gauge_rows_fini(&p->nodes);
	gauge_rows_fini(&p->budgets);
	for (size_t i = 0; i < ARRAY_LEN(p->quota); i++)
		gauge_rows_fini(&p->quota[i]);
	for (size_t i = 0; i < p->name_count; i++) {
		mem_free(p->names[i].tenant);
		mem_free(p->names[i].workspace);
	}
	mem_free(p->names);
	hash_fini(&p->names_by_id);
	mem_free(p);
}

DEFINE_OWNED(gauges_page, struct gauges_page)

static uint64_t
hash_of(const struct gauge_key *k)
{
	const char *texts[] = {k->cluster, k->tenant, k->workspace, k->what, k->kind};
	uint64_t hash = hash_number(HASH_START, k->rest);

	for (size_t i = 0; i < ARRAY_LEN(texts); i++)
		hash = hash_text(hash, texts[i]);
	return hash;
}

static bool
is_of(const struct gauge_row *r, const struct gauge_key *k)
{
	return r->rest == k->rest && strcmp(r->cluster, k->cluster) == 0 && strcmp(r->tenant, k->tenant) == 0 &&
	       strcmp(r->workspace, k->workspace) == 0 && strcmp(r->what, k->what) == 0 &&
	       strcmp(r->kind, k->kind) == 0;
}

/* The row of a key, made where it is new; NULL when there are as many as there may be. The rest's rows are always made. */
static struct gauge_row *
row_of(struct gauge_rows *r, const struct gauge_key *k)
{
	uint64_t key = hash_of(k);
	size_t at, slot;

	for (at = hash_first(&r->where, key, &slot); at != HASH_NONE; at = hash_next(&r->where, key, &slot))
		if (is_of(&r->at[at], k))
			return &r->at[at];
	if (r->count >= r->max && !k->rest) {
		hash_put(&r->beyond, key, 0);
		return NULL;
	}
	hash_add(&r->where, key, r->count);
	array_room_by_count(r->at, r->count);
	r->at[r->count] = (struct gauge_row){.cluster = mem_strdup(k->cluster),
	                                     .tenant = mem_strdup(k->tenant),
	                                     .workspace = mem_strdup(k->workspace),
	                                     .what = mem_strdup(k->what),
	                                     .kind = mem_strdup(k->kind),
	                                     .rest = k->rest};
	return &r->at[r->count++];
}

/* Rule 4. */
struct gauge_row *
gauge_row(struct gauge_rows *r, const struct gauge_key *k)
{
	struct gauge_row *row = row_of(r, k);

	if (row != NULL)
		return row;
	return row_of(r, &(struct gauge_key){.cluster = "",
	                                     .tenant = REST_TENANT,
	                                     .workspace = "",
	                                     .what = "",
	                                     .kind = k->kind,
	                                     .rest = true});
}

/* ---- families ---- */

static bool
is_held(const char *state)
{
	return strcmp(state, "used") == 0 || strcmp(state, "idle") == 0 || strcmp(state, "unmeasured") == 0;
}

/* States without a holder; held time comes by class. */
static void
add_hours(void *arg, const struct usage_total *t)
{
	if (is_held(t->state))
		return;
	gauge_row(arg,
	          &(struct gauge_key){
			  .cluster = "", .tenant = t->tenant, .workspace = t->workspace, .what = "", .kind = t->state})
		->amount += t->unit_ns;
}

static void
add_classes(struct gauge_rows *rows, const struct rating_input *in)
{
	for (size_t i = 0; i < in->day_count; i++) {
		const struct usage_day *d = &in->days[i];
		const struct {
			const char *state;
			int128 unit_ns;
		} parts[] = {{"used", d->used_unit_ns},
		             {"idle", d->idle_unit_ns},
		             {"unmeasured", d->unmeasured_unit_ns}};

		if (d->kind != CHARGE_USAGE && d->kind != CHARGE_COVERED)
			continue;
		for (size_t k = 0; k < ARRAY_LEN(parts); k++)
			if (parts[k].unit_ns != 0)
				gauge_row(rows, &(struct gauge_key){.cluster = "",
				                                    .tenant = d->tenant,
				                                    .workspace = d->workspace,
				                                    .what = d->klass,
				                                    .kind = parts[k].state})
					->amount += parts[k].unit_ns;
	}
}

static void
add_costs(struct gauge_rows *rows, const struct rated *rated)
{
	for (size_t i = 0; i < rated->count; i++) {
		const struct rated_line *l = &rated->lines[i];
		struct gauge_row *row = gauge_row(rows, &(struct gauge_key){.cluster = "",
		                                                            .tenant = l->tenant,
		                                                            .workspace = l->workspace,
		                                                            .what = "",
		                                                            .kind = l->currency});

		row->amount += l->billed;
		row->scale = l->currency_scale;
	}
}

static void
add_capacity(void *arg, const struct capacity_row *c)
{
	gauge_row(arg, &(struct gauge_key){.cluster = c->cluster,
	                                   .tenant = c->tenant,
	                                   .workspace = "",
	                                   .what = c->gpu_model,
	                                   .kind = c->state})
		->amount += c->gpus;
}

static void
add_node(void *arg, const struct node_row *n)
{
	struct gauge_row *row = row_of(
		arg, &(struct gauge_key){
			     .cluster = n->cluster, .tenant = n->tenant, .workspace = "", .what = n->node, .kind = ""});

	if (row == NULL)
		return;
	row->lag_ns = n->lag_ns;
	row->age_ns = n->heard ? n->age_ns : -1;
	row->skew_ns = n->skew_ns;
	row->silent = n->silent;
}

static void
add_quota(void *arg, const struct quota_gauge *g)
{
	struct gauges_page *p = arg;

	gauge_row(&p->quota[g->family],
	          &(struct gauge_key){
			  .cluster = "", .tenant = g->tenant, .workspace = g->workspace, .what = "", .kind = g->kind})
		->amount += g->amount;
}

static void
add_name(void *arg, int32_t id, const char *tenant, const char *workspace)
{
	struct gauges_page *p = arg;

	array_room_by_count(p->names, p->name_count);
	p->names[p->name_count] = (struct workspace_name){mem_strdup(tenant), mem_strdup(workspace)};
	hash_put(&p->names_by_id, (uint32_t)id, p->name_count++);
}

/* One that finds no room for its numbers has none of them. */
static void
add_budget(struct gauge_rows *rows, const struct budget *b, const struct budget_state *s)
{
	const struct {
		const char *kind;
		int128 amount;
		int scale;
	} numbers[] = {{"limit", b->limit, PRICE_SCALE},       {"consumed", s->consumed, PRICE_SCALE},
	               {"forecast", s->forecast, PRICE_SCALE}, {"ratio", s->millionths, 6},
	               {"threshold", s->threshold, 0},         {"breach", s->forecast_breach, 0}};

	for (size_t i = 0; i < ARRAY_LEN(numbers); i++) {
		struct gauge_row *row = row_of(rows, &(struct gauge_key){.cluster = "",
		                                                         .tenant = b->tenant,
		                                                         .workspace = b->workspace,
		                                                         .what = b->unit,
		                                                         .kind = numbers[i].kind});

		if (row == NULL)
			return;
		row->amount = numbers[i].amount;
		row->scale = numbers[i].scale;
	}
}

/* The month while its tenants come one after the other. */
struct period_reading {
	struct gauges_page *page;
	struct budget_table budgets;
};

static bool
add_tenant(void *arg, const struct rating_input *in, const struct rated *view, struct err *err)
{
	struct period_reading *m = arg;

	if (!budget_table_add(&m->budgets, view, err))
		return false;
	add_classes(&m->page->hours, in);
	add_costs(&m->page->costs, view);
	for (size_t i = 0; i < view->count; i++)
		m->page->unrated_lines += view->lines[i].unrated;
	return true;
}

static bool
add_budgets(const struct budget_table *t, int64_t now_ns, struct gauges_page *p, struct err *err)
{
	for (size_t i = 0; i < t->list->count; i++) {
		struct budget_state s;

		if (!budget_table_judge(t, i, now_ns, &s, err))
			return false;
		add_budget(&p->budgets, &t->list->at[i], &s);
	}
	return true;
}

/* From the same rows and lines as the report. A month of which there is nothing yet has no cost. */
static bool
read_month(struct db *db, const struct budget_list *list, int64_t now_ns, struct gauges_page *p, struct err *err)
{
	struct period_reading m = {.page = p};
	bool ok;

	budget_table_init(&m.budgets, list);
	ok = store_period_each(db, p->period, NULL, add_tenant, &m, err) && add_budgets(&m.budgets, now_ns, p, err);
	budget_table_fini(&m.budgets);
	return ok;
}

static bool
read_period(struct db *db, struct gauges_page *p, struct err *err)
{
	owned(budget_list) struct budget_list *list = NULL;
	int64_t now_ns = time_wall_ns();

	if (!store_period_now(db, now_ns, p->period, err) ||
	    !store_conservation_error(db, p->period, &p->conservation_error_unit_ns, err))
		return false;
	if (!store_budgets_load(db, p->period, NULL, now_ns, &list, err) || !read_month(db, list, now_ns, p, err))
		return err->kind == ERR_MISSING;
	return store_period_totals(db, p->period, add_hours, &p->hours, err);
}

static bool
gauges_page_read(struct db *db, size_t rows_max, struct gauges_page **ret, struct err *err)
{
	owned(gauges_page) struct gauges_page *p = mem_alloc(sizeof(*p));
	int64_t now_ns = time_wall_ns();

	p->refs = 1;
	p->hours.max = p->costs.max = p->capacity.max = p->nodes.max = p->budgets.max = rows_max;
	for (size_t i = 0; i < ARRAY_LEN(p->quota); i++)
		p->quota[i].max = rows_max;
	if (!store_workspaces(db, add_name, p, err) || !read_period(db, p, err) ||
	    !store_capacity(db, add_capacity, &p->capacity, err) ||
	    !store_nodes(db, now_ns, add_node, &p->nodes, err) || !store_backlog(db, now_ns, &p->backlog, err) ||
	    !store_quota_gauges(db, now_ns, add_quota, p, err))
		return false;
	*ret = take(p);
	return true;
}

/* ---- the thread ---- */

struct gauges {
	const struct aggregator_options *options;
	struct db_counters *db;
	pthread_t thread;
	pthread_mutex_t lock; /* of all that follows */
	pthread_cond_t wake, done;
	bool stop;
	struct gauges_page *page; /* NULL: none yet, or the last reading failed */
	struct err failure;       /* of the last reading */
	struct gauges_stats stats;
	int64_t asked_ns, ended_ns; /* monotonic; INT64_MIN: never */
};

/* Rule 3. */
static int64_t
rest_ns(const struct gauges *g)
{
	int64_t long_ns = REST_TIMES * g->stats.duration_ns;

	return long_ns > g->options->metrics_refresh_ns ? long_ns : g->options->metrics_refresh_ns;
}

/* Rule 2: when the next reading is due; INT64_MAX: after the next scrape. */
static int64_t
due_ns(const struct gauges *g, int64_t now_ns)
{
	if (g->asked_ns == INT64_MIN || now_ns - g->asked_ns > ACTIVE_NS)
		return INT64_MAX;
	return g->ended_ns == INT64_MIN ? now_ns : g->ended_ns + rest_ns(g);
}

static bool
wait_until_due(struct gauges *g)
{
	bool stop;

	pthread_mutex_lock(&g->lock);
	while (!g->stop) {
		int64_t now_ns = time_monotonic_ns(), due = due_ns(g, now_ns);

		if (due <= now_ns)
			break;
		(void)condition_wait_until(&g->wake, &g->lock, due);
	}
	stop = g->stop;
	pthread_mutex_unlock(&g->lock);
	return !stop;
}

static void
unref(struct gauges_page *page)
{
	if (page != NULL && --page->refs == 0)
		gauges_page_free(page);
}

/* The page, or why there is none; logged when it begins to fail, and when that is over. */
static void
publish(struct gauges *g, struct gauges_page *page, const struct err *err, int64_t duration_ns)
{
	char why[ERR_LOG_SIZE];
	bool failed_before;

	pthread_mutex_lock(&g->lock);
	failed_before = g->failure.kind != ERR_NONE;
	unref(g->page);
	g->page = page;
	memset(&g->failure, 0, sizeof(g->failure));
	if (page == NULL)
		g->failure = *err;
	g->stats.readings++;
	g->stats.failures += page == NULL;
	g->stats.duration_ns = duration_ns;
	g->ended_ns = time_monotonic_ns();
	pthread_cond_broadcast(&g->done);
	pthread_mutex_unlock(&g->lock);
	if (page == NULL && !failed_before)
		log_event(LOG_WARN, "the ledger cannot be read for /metrics, will try again",
		          LS("error", err_log_text(err, why)));
	if (page != NULL && failed_before)
		log_write(LOG_INFO, "the ledger is read for /metrics again", NULL);
}

static void *
gauges_main(void *arg)
{
	struct gauges *g = arg;
	owned(db) struct db *db = NULL;
	struct err err = {0};

	if (!app_db_new(g->options, "tollgate-aggregator metrics", g->db, &db, &err)) {
		log_event(LOG_ERROR, "no gauges", LS("error", err.text));
		return NULL;
	}
	while (wait_until_due(g)) {
		struct gauges_page *page = NULL;
		int64_t began_ns = time_monotonic_ns();

		if (!gauges_page_read(db, (size_t)g->options->metrics_series_max, &page, &err))
			page = NULL;
		publish(g, page, &err, time_monotonic_ns() - began_ns);
	}
	return NULL;
}

bool
gauges_start(const struct aggregator_options *o, struct db_counters *db, struct gauges **ret, struct err *err)
{
	struct gauges *g = mem_alloc(sizeof(*g));

	g->options = o;
	g->db = db;
	g->asked_ns = g->ended_ns = INT64_MIN;
	pthread_mutex_init(&g->lock, NULL);
	condition_init(&g->wake);
	condition_init(&g->done);
	if (!thread_start("that reads gauges", gauges_main, g, &g->thread, err)) {
		mem_free(g);
		return false;
	}
	*ret = g;
	return true;
}

void
gauges_stop(struct gauges *g)
{
	if (g == NULL)
		return;
	pthread_mutex_lock(&g->lock);
	g->stop = true;
	pthread_cond_broadcast(&g->wake);
	pthread_cond_broadcast(&g->done);
	pthread_mutex_unlock(&g->lock);
	pthread_join(g->thread, NULL);
	gauges_page_free(g->page);
	pthread_cond_destroy(&g->wake);
	pthread_cond_destroy(&g->done);
	pthread_mutex_destroy(&g->lock);
	mem_free(g);
}

/* A page that the thread would have renewed by now, had it been asked, is too old. */
static bool
is_fresh(const struct gauges *g, int64_t now_ns)
{
	return g->ended_ns != INT64_MIN && now_ns - g->ended_ns <= rest_ns(g) + g->options->metrics_refresh_ns;
}

bool
gauges_get(struct gauges *g, struct gauges_page **ret, struct err *err)
{
	int64_t now_ns = time_monotonic_ns();
	bool ok = false, in_time = true;

	pthread_mutex_lock(&g->lock);
	g->asked_ns = now_ns;
	pthread_cond_signal(&g->wake);
	while (!g->stop && in_time && !is_fresh(g, time_monotonic_ns()))
		in_time = condition_wait_until(&g->done, &g->lock, now_ns + PATIENCE_NS);
	if (g->stop || !in_time) {
		(void)err_set(err, ERR_RETRY, "the ledger was not read in time");
	} else if (g->page == NULL) {
		*err = g->failure;
	} else {
		g->page->refs++;
		*ret = g->page;
		ok = true;
	}
	pthread_mutex_unlock(&g->lock);
	return ok;
}

void
gauges_put(struct gauges *g, struct gauges_page *page)
{
	pthread_mutex_lock(&g->lock);
	unref(page);
	pthread_mutex_unlock(&g->lock);
}

void
gauges_stats(struct gauges *g, struct gauges_stats *ret)
{
	pthread_mutex_lock(&g->lock);
	*ret = g->stats;
	pthread_mutex_unlock(&g->lock);
}
