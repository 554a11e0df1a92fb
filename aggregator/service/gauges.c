/* aggregator/service/gauges.c - the thread that reads the ledger for /metrics. The rules are numbered in gauges.h. */
#include "aggregator/service/gauges.h"

#include <string.h>

#include "aggregator/service/app.h"
#include "aggregator/service/gauges_page.h"
#include "common/base/log.h"
#include "common/base/thread.h"
#include "common/base/time.h"

#define ACTIVE_NS (5 * NS_PER_MIN)  /* pages are renewed for so long after a scrape */
#define PATIENCE_NS (30 * NS_PER_S) /* of a scrape that waits */
#define REST_TIMES 9

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
