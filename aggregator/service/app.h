/* aggregator/service/app.h - the running daemon: its options, counters, threads and database connections. main.c fills it, threads and
 * handlers read it. */
#ifndef TOLLGATE_APP_H
#define TOLLGATE_APP_H

#include "aggregator/options.h"
#include "aggregator/service/counters.h"
#include "aggregator/store/access/access.h"
#include "aggregator/store/billing/period.h"
#include "aggregator/store/store.h"
#include "common/http/httpd.h"

struct audit_reads;
struct closer;
struct decider;
struct dry_runs;
struct ingest_batcher;
struct probe;
struct quota_loop_memory;
struct token_batcher;

struct app {
	const struct aggregator_options *options;
	struct counters counters;
	struct db_counters db;
	struct usage_counters *usage;
	struct gauges *gauges;
	struct ingest_batcher *ingest;
	struct token_batcher *tokens;
	struct audit_reads *reads;
	struct decision_counters *decisions;
	struct decider *decider;
	struct dry_runs *dry_runs;
	struct quota_loop_memory *loop;
	struct probe *probe;
	_Atomic(struct httpd *) httpd; /* for its figures; NULL: not started */
	struct closer *closer;
	int64_t started_wall_ns;
};

/* Connections. purpose: application_name in PostgreSQL; counters: of the app, or NULL. */
bool app_db_new(const struct aggregator_options *o, const char *purpose, struct db_counters *counters, struct db **ret,
                struct err *err);
/* With the login that may write derived tables. */
MUST_CHECK bool app_rollup_new(const struct aggregator_options *o, const char *purpose, struct db_counters *counters,
                               struct db **ret, struct err *err);
/* With the login of the schema's owner, for migrations only. */
MUST_CHECK bool app_owner_new(const struct aggregator_options *o, const char *purpose, struct db **ret,
                              struct err *err);

/* A month above one of these needs a reason to be closed. */
struct period_thresholds app_close_thresholds(const struct aggregator_options *o);

/* Roles that see one tenant. */
#define ROLES_TENANT (ROLE_TENANT_ADMIN | ROLE_DEVELOPER | ROLE_VIEWER)

/* The thread of periodic tasks, with its own connections. */
struct background;
MUST_CHECK bool background_start(struct app *app, struct background **ret, struct err *err);
void background_stop(struct background *b);

/* The thread that closes months. It looks for requested closes every two seconds, and when it is woken. */
MUST_CHECK bool closer_start(struct app *app, struct closer **ret, struct err *err);
void closer_wake(struct closer *c);
void closer_stop(struct closer *c); /* NULL is allowed */

#endif
