/* aggregator/main.c - tollgate-aggregator: starts and stops the threads and the HTTP server. */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "aggregator/api/api.h"
#include "aggregator/service/audit_reads.h"
#include "aggregator/service/decider.h"
#include "aggregator/service/dry_run.h"
#include "aggregator/service/probe.h"
#include "aggregator/service/quota_telemetry.h"
#include "aggregator/service/ingest_batcher.h"
#include "aggregator/service/token_batcher.h"
#include "aggregator/store/access/access.h"
#include "aggregator/store/ingest/ingest.h"
#include "aggregator/store/policy/policy_store.h"
#include "common/base/log.h"
#include "common/base/time.h"

#define TEXT_MAX (1u << 20)
#define REPORTS_NICE 5                 /* batches and decisions go first */
#define STOP_REPLIES_NS (4 * NS_PER_S) /* httpd gives clients three */

static void *
worker_new(void *app_)
{
	struct app *app = app_;
	struct worker *w = mem_alloc(sizeof(*w));
	struct err err = {0};

	/* db_new fails on an unreadable connection string only, and main has made one from it already. */
	if (!app_db_new(app->options, "tollgate-aggregator", &app->db, &w->db, &err))
		log_event(LOG_ERROR, "no database handle", LS("error", err.text));
	ASSERT(w->db != NULL);
	return w;
}

static void
worker_free(void *worker)
{
	struct worker *w = worker;

	rules_kept_free(w->rules);
	db_free(w->db);
	mem_free(w);
}

static void
log_request(bool all, const struct http_request *rq, int status, size_t bytes, int64_t duration_ns)
{
	char from[HTTP_ADDRESS_SIZE], name[HTTP_CLIENT_NAME_SIZE];

	if (!all && status < 500 && rq->detail == NULL)
		return;
	log_event(status >= 500 || rq->detail != NULL ? LOG_WARN : LOG_INFO, "request", LS("id", rq->id),
	          LS("from", http_client_address(rq, from)),
	          LS("client", http_client_name(rq, name, sizeof(name)) ? name : ""), LS("method", rq->method),
	          LS("path", rq->path), LI("status", status), LI("bytes", bytes), LI("us", duration_ns / NS_PER_US),
	          LS("detail", rq->detail != NULL ? rq->detail : ""));
}

static void
on_done(void *app_, const struct http_request *rq, int status, size_t bytes, int64_t duration_ns)
{
	struct app *app = app_;

	atomic_fetch_add(&app->counters.requests, 1);
	atomic_fetch_add(&app->counters.responses[status / 100 < RESPONSE_CLASSES ? status / 100 : 0], 1);
	if (status >= 500)
		atomic_fetch_add(&app->counters.request_errors, 1);
	/* The server answers 413 by itself, before the handler could count it. */
	if (status == 413 && rq->route != NULL && rq->route->handle == handle_ingest)
		atomic_fetch_add(&app->counters.ingest_refused_by[REFUSAL_OVERSIZED], 1);
	log_request(app->options->access_log, rq, status, bytes, duration_ns);
}

static void
on_stop(void *app_)
{
	struct app *app = app_;

	decider_drain(app->decider);
	dry_runs_drain(app->dry_runs);
}

static void
on_gone(void *app_)
{
	struct app *app = app_;

	decider_client_gone(app->decider);
}

static void
on_abandoned(void *app, void *worker)
{
	const struct worker *w = worker;

	(void)app;
	db_abandon(w->db);
}

static void
on_tls(void *app, enum httpd_tls_event event, const struct err *err)
{
	(void)app;
	switch (event) {
	case HTTPD_TLS_RENEWED: log_write(LOG_INFO, "TLS files read again", NULL); break;
	case HTTPD_TLS_REFUSED:
		log_event(LOG_ERROR, "new TLS files refused, the old ones stay in use", LS("error", err->text));
		break;
	case HTTPD_TLS_EXPOSED:
		log_write(LOG_WARN, "every user of this host may read the key of the TLS certificate", NULL);
		break;
	}
}

/* --- start and stop --- */

/* With the owner's login, which is used for nothing else. */
static bool
migrate(const struct aggregator_options *o, struct err *err)
{
	struct ledger_options ledger = {.demo = o->demo,
	                                .zone = o->billing_zone,
	                                .owner_role = o->owner_role,
	                                .daemon_role = o->daemon_role,
	                                .rollup_role = o->rollup_role};
	owned(db) struct db *db = NULL;
	int applied = 0;

	if (!app_owner_new(o, "tollgate-aggregator migrate", &db, err) || !store_migrate(db, &ledger, &applied, err))
		return false;
	log_event(LOG_INFO, "schema migrated", LI("files", applied), LS("daemon", o->daemon_role),
	          LS("roll_up", o->rollup_role));
	return true;
}

static bool
check_schema(const struct aggregator_options *o, struct db *db, struct err *err)
{
	owned(db) struct db *rollup = NULL;
	struct ledger have;

	if (!store_ready(db, err) || !app_rollup_new(o, "tollgate-aggregator start", NULL, &rollup, err) ||
	    !store_logins_check(db, rollup, err) || !store_ledger(db, &have, err))
		return false;
	if (strcmp(have.zone, o->billing_zone) != 0)
		log_event(LOG_WARN, "the ledger keeps the billing zone it was created with", LS("zone", have.zone),
		          LS("option", o->billing_zone));
	if (have.demo != o->demo)
		log_event(LOG_WARN,
		          have.demo ? "this ledger is a demo"
		                    : "this ledger is not a demo: simulated records are refused",
		          LS("option", o->demo ? "demo" : "no-demo"));
	return true;
}

static bool
issue_admin_token(struct db *db, const char *path, struct err *err)
{
	struct token_request rq = {.role = ROLE_ADMIN, .description = "issued on the host"};
	struct token_made made;
	size_t n;

	if (!store_token_create(db, &rq, "tollgate-aggregator --issue-admin-token", &made, err))
		return false;
	n = strlen(made.token);
	made.token[n++] = '\n';
	if (strcmp(path, "-") == 0)
		return fwrite(made.token, 1, n, stdout) == n ||
		       err_set(err, ERR_FATAL, "the token cannot be written to standard output");
	return file_write_atomic(path, made.token, n, 0600, err);
}

static struct httpd_tls_files
tls_files(const struct aggregator_options *o)
{
	return (struct httpd_tls_files){.cert = o->tls_cert,
	                                .key = o->tls_key,
	                                .client_ca = o->tls_client_ca,
	                                .client_required = o->tls_client_required};
}

static struct http_route *
routes_with_limits(const struct aggregator_options *o)
{
	struct http_route *routes = mem_array(api_route_count, sizeof(*routes));

	memcpy(routes, api_routes, api_route_count * sizeof(*routes));
	for (size_t i = 0; i < api_route_count; i++)
		if (routes[i].body_max == INGEST_BODY_OPTION)
			routes[i].body_max = (size_t)o->ingest_max_bytes;
	return routes;
}

static int64_t stop_grace_ns; /* for end_by_force, which outlives the options */

/* The last resort: a thread neither ends nor waits for the database. */
static void *
end_by_force(void *arg)
{
	int64_t ns = stop_grace_ns;
	const struct timespec grace = {.tv_sec = (time_t)(ns / NS_PER_S), .tv_nsec = (long)(ns % NS_PER_S)};

	(void)arg;
	(void)clock_nanosleep(CLOCK_MONOTONIC, 0, &grace, NULL);
	log_write(LOG_ERROR, "not all work ended within stop-grace: ending without waiting for it", NULL);
	_exit(CONF_EXIT_FAILED);
}

/* The process ends within stop-grace. Statements that still run are cancelled early enough for connects, which cannot be cancelled, to time out,
 * and for clients to take their replies. */
static void
begin_stop(const struct aggregator_options *o)
{
	int64_t left_ns = o->connect_timeout_ns + STOP_REPLIES_NS;
	pthread_t thread;

	if (left_ns > o->stop_grace_ns / 4 * 3)
		left_ns = o->stop_grace_ns / 4 * 3;
	db_stop_at(time_boot_ns() + o->stop_grace_ns - left_ns);
	stop_grace_ns = o->stop_grace_ns;
	if (pthread_create(&thread, NULL, end_by_force, NULL) == 0)
		(void)pthread_detach(thread);
}

static bool
serve(struct app *app, const sigset_t *signals, struct err *err)
{
	const struct aggregator_options *o = app->options;
	owned(mem) struct http_route *routes = routes_with_limits(o);
	struct httpd_options http = {
		.listen = o->listen,
		.tls = tls_files(o),
		.on_tls = on_tls,
		.routes = routes,
		.route_count = api_route_count,
		.app = app,
		.guard = api_guard,
		.identify = api_identify,
		.heavy = api_heavy,
		.workers = (int)o->workers,
		.more_workers = {[API_POOL_NODES - 1] = (int)o->workers_ingest,
	                         [API_POOL_DECISIONS - 1] = (int)o->workers_decisions},
		.nice = REPORTS_NICE,
		.queue_max = (int)o->queue,
		.worker_new = worker_new,
		.worker_free = worker_free,
		.idle_timeout_ns = o->idle_timeout_ns,
		.request_timeout_ns = o->request_timeout_ns,
		.connection_max = (int)o->connections,
		.later_tenant_max = (int)o->tenant_polls,
		.on_gone = on_gone,
		.on_abandoned = on_abandoned,
		.on_stop = on_stop,
		.on_done = on_done,
	};
	struct background *background = NULL;
	struct httpd *httpd = NULL;
	int signal_number = 0;
	int64_t cuts;

	if (!probe_start(app, &app->probe, err))
		return false;
	if (!closer_start(app, &app->closer, err)) {
		probe_stop(app->probe);
		return false;
	}
	if (!background_start(app, &background, err)) {
		closer_stop(app->closer);
		probe_stop(app->probe);
		return false;
	}
	if (!decider_start(app, &app->decider, err) || !dry_runs_start(app, &app->dry_runs, err) ||
	    !httpd_start(&http, &httpd, err)) {
		dry_runs_stop(app->dry_runs);
		decider_stop(app->decider);
		background_stop(background);
		closer_stop(app->closer);
		probe_stop(app->probe);
		return false;
	}
	atomic_store(&app->httpd, httpd);
	log_event(LOG_INFO, "ready", LS("listen", o->listen), LS("version", TOLLGATE_VERSION));
	while (sigwait(signals, &signal_number) == 0 && signal_number == SIGHUP) {
		log_event(LOG_INFO, "SIGHUP", LS("tls", o->tls_cert ? "reading the files again" : "none"));
		httpd_tls_renew(httpd);
	}
	log_event(LOG_INFO, "stopping", LS("signal", strsignal(signal_number)));
	cuts = db_cuts();
	begin_stop(o);
	httpd_stop(httpd); /* its figures are not read any more */
	dry_runs_stop(app->dry_runs);
	decider_stop(app->decider);
	background_stop(background);
	closer_stop(app->closer);
	probe_stop(app->probe);
	if (db_cuts() > cuts)
		log_event(LOG_WARN, "what waited for the database was cut off, to stop in time",
		          LI("connections", db_cuts() - cuts));
	return true;
}

static bool
run(const void *options, struct err *err)
{
	const struct aggregator_options *o = options;
	struct app app = {.options = o, .started_wall_ns = time_wall_ns()};
	owned(db) struct db *db = NULL;
	sigset_t signals;
	bool ok;

	log_init(aggregator_program.name, (enum log_level)o->log_level);
	signal(SIGPIPE, SIG_IGN);
	/* Until the program serves, a signal ends it at once, also while it waits for the database: uncommitted work is rolled back. */
	signal(SIGHUP, SIG_IGN);
	if (o->migrate)
		return migrate(o, err);
	if (!app_db_new(o, "tollgate-aggregator start", NULL, &db, err) || !check_schema(o, db, err))
		return false;
	if (o->issue_admin_token != NULL)
		return issue_admin_token(db, o->issue_admin_token, err);
	db_free(take(db));
	/* Blocked before any thread that takes signals exists, so that only sigwait takes them. */
	sigemptyset(&signals);
	sigaddset(&signals, SIGINT);
	sigaddset(&signals, SIGTERM);
	sigaddset(&signals, SIGHUP);
	pthread_sigmask(SIG_BLOCK, &signals, NULL);
	signal(SIGHUP, SIG_DFL);
	app.ingest = ingest_batcher_new(o->slice_ns);
	app.reads = audit_reads_new();
	app.tokens = token_batcher_new();
	app.decisions = decision_counters_new((size_t)o->metrics_series_max);
	app.usage = usage_counters_new((size_t)o->metrics_series_max);
	app.loop = quota_loop_memory_new(&(struct quota_settings){.burst = 2,
	                                                          .grace_ns = o->reclaim_grace_ns,
	                                                          .aging_ns = o->queue_aging_ns,
	                                                          .head_wait_ns = o->head_wait_ns,
	                                                          .backoff_ns = o->borrow_backoff_ns,
	                                                          .backoff_forget_ns = o->borrow_backoff_forget_ns,
	                                                          .confirm_ns = o->lease_confirm_ns,
	                                                          .silence_ns = o->lease_silence_ns,
	                                                          .unused_most_ns = NS_PER_HOUR});
	ok = gauges_start(o, &app.db, &app.gauges, err) && serve(&app, &signals, err);
	gauges_stop(app.gauges);
	usage_counters_free(app.usage);
	decision_counters_free(app.decisions);
	audit_reads_free(app.reads);
	ingest_batcher_free(app.ingest);
	token_batcher_free(app.tokens);
	quota_loop_memory_free(app.loop);
	return ok;
}

/* Checks that the option table cannot express. */
static bool
options_check(void *options, struct err *err)
{
	const struct aggregator_options *o = options;
	struct httpd_tls_files tls = tls_files(o);
	char host[256];
	uint16_t port;

	if (!addr_parse(o->listen, host, sizeof(host), &port, err))
		return err_prefix(err, "listen");
	if (NS_PER_HOUR % o->slice_ns != 0)
		return err_set(err, ERR_INVALID, "slice: an hour is not a multiple of it");
	return httpd_tls_files_check(&tls, err);
}

int
main(int argc, char **argv)
{
	struct aggregator_options options = {0};
	const struct conf_daemon d = {&aggregator_program, &options, options_check, run};
	in_place(buf) struct buf text = {0};

	buf_init(&text, TEXT_MAX);
	/* for users and tests; not in the option table, because it describes the program and not a run of it */
	if (argc == 2 && strcmp(argv[1], "--print-routes") == 0) {
		api_print_routes(&text);
		fputs(buf_text(&text), stdout);
		return CONF_EXIT_STOPPED;
	}
	return conf_main(&d, argc, argv);
}
