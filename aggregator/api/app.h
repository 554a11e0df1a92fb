/* aggregator/api/app.h - what the rooms of the daemon's HTTP side share: the options, the counters, a worker's connection. */
#ifndef TOLLGATE_APP_H
#define TOLLGATE_APP_H

#include <assert.h>
#include <stdatomic.h>

#include "aggregator/service/audit_reads.h"
#include "aggregator/service/ingest_batcher.h"
#include "aggregator/service/gauges.h"
#include "aggregator/api/metrics_page.h"
#include "aggregator/api/metrics_quota.h"
#include "aggregator/options.h"
#include "aggregator/core/metering/events.h"
#include "aggregator/store/billing/period.h"
#include "aggregator/store/store.h"
#include "common/http/httpd.h"
#include "common/conf/json.h"

/* What a replica does besides answering (background.c). */
enum background_task {
	BACKGROUND_HELD,
	BACKGROUND_ATTRIBUTE,
	BACKGROUND_SLICE,
	BACKGROUND_SEAL,
	BACKGROUND_FOLD,
	BACKGROUND_PARTITIONS,
	BACKGROUND_RETAIN,
	BACKGROUND_CLOSE,
	BACKGROUND_ANCHOR,
	BACKGROUND_AUDIT,
	BACKGROUND_EXCEPTIONS,
	BACKGROUND_BUDGETS,
	BACKGROUND_TASKS
};
extern const char *const background_task_names[BACKGROUND_TASKS];
struct background_counters {
	atomic_llong runs, errors;
	atomic_llong duration_ns;  /* of all runs together */
	atomic_llong last_wall_ns; /* when it last succeeded; 0: never */
	atomic_llong
		done; /* node-hours sliced, sealed; days folded; partitions made; things retired; entries sealed; exceptions ended */
};

/* How requests for capacity were decided: as a bet, under the lock, or as a bet that was lost and then under the lock. */
enum decision_turns { TURN_BET, TURN_LOCKED, TURN_LOST, DECISION_TURNS };

/* What this replica did since it started; summed over replicas by Prometheus. */
struct counters {
	atomic_llong ingest_batches, ingest_records, ingest_duplicates, ingest_lost;
	atomic_llong ingest_mismatches;
	atomic_llong ingest_refused_by[INGEST_REFUSALS], ingest_quarantined_by[QUARANTINE_CLASSES];
	atomic_llong quarantine_released, quarantine_discarded;
	atomic_llong events[EVENT_FATES];
	atomic_llong status_kept, status_late, status_refused;
	atomic_llong ingest_bytes;
	struct histogram ingest_duration;
	struct histogram decision_duration; /* from the request to the answer, commit included */
	atomic_llong decision_turns[DECISION_TURNS];
	atomic_llong requests, request_errors, responses[RESPONSE_CLASSES];
	atomic_llong hours_sealed, hours_resealed, rollup_errors;
	atomic_llong rollup_last_wall_ns;
	struct background_counters background[BACKGROUND_TASKS];
};

struct decider;
struct dry_runs;
struct token_line;
struct quota_loop_memory;
struct probe;
struct app {
	const struct aggregator_options *options;
	struct counters counters;
	struct db_counters db;
	struct usage_counters *usage;
	struct gauges *gauges;
	struct ingest_line *line;
	struct token_line *tokens;
	struct audit_reads *reads;
	struct decision_counters *decisions;
	struct decider *decider;
	struct dry_runs *dry_runs;
	struct quota_loop_memory *loop;
	struct probe *probe;
	_Atomic(struct httpd *) httpd; /* for its figures; NULL: it has not started */
	struct closer *closer;
	int64_t started_wall_ns;
};

/* One per worker thread: its own connection, and who is asking in the request at hand. */
struct worker {
	struct db *db;
	struct identity_row who;  /* role 0: nobody showed a token */
	struct rules_kept *rules; /* of attribution; NULL: it has not needed them */
};

/* The thread that works in the background, with a connection of its own. */
struct background;
/* What stands against closing a month above this needs a reason. */
struct period_thresholds api_thresholds(const struct aggregator_options *o);
MUST_CHECK bool background_start(struct app *app, struct background **ret, struct err *err);
void background_stop(struct background *b);

/* The thread that closes months: looks for what was asked for every few seconds, or when it is woken. */
struct closer;
MUST_CHECK bool closer_start(struct app *app, struct closer **ret, struct err *err);
void closer_wake(struct closer *c);
void closer_stop(struct closer *c); /* NULL: there is none */

/* Of the login that writes what is made from inputs; as app_db_new. */
MUST_CHECK bool app_rollup_new(const struct aggregator_options *o, const char *purpose, struct db_counters *counters,
                               struct db **ret, struct err *err);
/* counters: of the app; NULL: nobody counts. */
bool app_db_new(const struct aggregator_options *o, const char *purpose, struct db_counters *counters, struct db **ret,
                struct err *err);

/* The role of each route is in its row; a route open to all has ROLE_NONE_NEEDED. At one with TAKES_JOIN_TOKEN no token's role
 * helps: its handler takes the bearer token for a join token. */
#define ROLE_NONE_NEEDED 0u
#define TAKES_JOIN_TOKEN (1u << 31)
#define ROLES_TENANT (ROLE_TENANT_ADMIN | ROLE_DEVELOPER | ROLE_VIEWER)
#define ROLES_ADMIN (ROLE_ADMIN | ROLE_TENANT_ADMIN)
#define ROLES_MONEY (ROLE_ADMIN | ROLE_BILLING)
#define ROLES_READ (ROLES_MONEY | ROLES_TENANT)
#define ROLES_ASK (ROLES_ADMIN | ROLE_DEVELOPER | ROLE_SCHEDULER)
#define ROLES_ANY (ROLES_READ | ROLE_NODE | ROLE_SCHEDULER | ROLE_METER)

/* The pools of workers: everything else; what nodes send; decisions, leases and reclaims. */
enum api_pool { API_POOL_OTHERS, API_POOL_NODES, API_POOL_DECISIONS };
static_assert(API_POOL_DECISIONS < HTTP_POOLS, "httpd has as many pools");

/* A body_max that stands for the option ingest-max; main puts the number in its place. */
#define INGEST_BODY_OPTION SIZE_MAX

extern const struct http_route api_routes[];
extern const size_t api_route_count;

/* Of the Authorization header; NULL: none. */
const char *api_bearer(const struct http_request *rq);
/* 401, and the token is not remembered: it did not hold where it had to prove itself. */
void api_refuse_token(struct app *app, const struct http_request *rq, struct http_reply *rp);
bool api_guard(void *app, void *worker, const struct http_request *rq, struct http_reply *rp);
/* Whether a request of a report's route is a report. */
bool api_heavy(const struct http_request *rq);
enum http_identified api_identify(void *app, void *worker, const struct http_request *rq, struct http_reply *rp,
                                  struct http_caller *ret);

/* One line each: method, path, who may use it, what it does. */
void api_print_routes(struct buf *out);

/* The tenant whose rows may be shown: the token's own, or what ?tenant= asks for (NULL: all). False when it asks for another
 * tenant than its own, with 404 written: a token never learns who else exists. */
bool api_tenant(const struct worker *w, const struct http_request *rq, const char **ret_tenant, struct http_reply *rp);

/* Whether a row of a tenant is for them: operators see all, a tenant's token its own, everybody else none. NULL: a row of no tenant. */
bool api_sees(const struct identity_row *who, const char *tenant);

/* Things that several handlers read from a request; ERR_INVALID names the field or parameter. */
/* A query parameter, of UTF-8 text; NULL: absent. When there are choices (NULL-ended), one of them. */
MUST_CHECK bool api_query(const struct http_request *rq, const char *name, const char *const *choices, const char **ret,
                          struct err *err);
/* A number from 1 to max; what *ret was when it is absent. */
MUST_CHECK bool api_query_i64(const struct http_request *rq, const char *name, int64_t max, int64_t *ret,
                              struct err *err);
#define API_PERIOD_SIZE 40
/* A month as it was said; absent (NULL) or "current": the one that now lies in, which is written into `now`. */
MUST_CHECK bool api_period_of(struct db *db, const char *said, char now[API_PERIOD_SIZE], const char **ret,
                              struct err *err);
/* ?NAME= likewise. */
MUST_CHECK bool api_period(struct worker *w, const struct http_request *rq, const char *name, char now[API_PERIOD_SIZE],
                           const char **ret, struct err *err);
MUST_CHECK bool api_page(const struct http_request *rq, struct page *ret, struct err *err); /* limit, before */
MUST_CHECK bool api_id(const struct http_request *rq, int64_t *ret, struct err *err);       /* the path's tail */
MUST_CHECK bool api_body(const struct http_request *rq, const char *const *fields, json_t **ret, struct err *err);
/* The member "reason" of a body, for the audit log: it is there, short and clean. */
MUST_CHECK bool api_reason(const json_t *doc, const char **ret, struct err *err);
MUST_CHECK bool api_field(const json_t *doc, const char *field, const char **ret, struct err *err); /* NULL: absent */
/* ?from= and ?to=, moments or days of the billing zone; by default the last 24 hours. */
MUST_CHECK bool api_range(struct db *db, const struct http_request *rq, int64_t now_ns, int64_t *ret_from_ns,
                          int64_t *ret_to_ns, struct err *err);
/* "expires": a time or a duration from now. Absent: now + preset_ns, or never (0) when that is 0. */
MUST_CHECK bool api_expiry(const json_t *doc, int64_t now_ns, int64_t preset_ns, int64_t most_ns, int64_t *ret_ns,
                           struct err *err);
/* As http_problem_err; a text that begins with a parameter's name and a colon also says so in "field". */
void api_problem(struct http_reply *rp, const struct http_request *rq, const struct err *err);
/* For the audit log: this token has read something; tenant: whose rows, NULL: not of one tenant. */
void api_note_read(struct app *app, const struct worker *w, const char *tenant, const char *action,
                   const char *subject);
#define API_DOCUMENT_NAME_MAX 128
/* The name that errors about a document carry: the file the operator typed, told by the client in ?name=. */
const char *api_document_name(const struct http_request *rq, const char *preset, char out[API_DOCUMENT_NAME_MAX]);
/* The text as JSON, or null for 0. */
void api_write_time(struct buf *out, int64_t wall_ns);

http_handler handle_healthz, handle_readyz, handle_metrics, handle_openapi;
http_handler handle_quarantine, handle_quarantine_show, handle_quarantine_decide;
http_handler handle_period_check, handle_period_close, handle_period_cancel;
http_handler handle_gpu_move;
http_handler handle_ingest, handle_status, handle_status_list;
http_handler handle_events, handle_events_summary;
http_handler handle_policy_suggest, handle_policy_progress, handle_price_preview;
http_handler handle_policy_put, handle_policy_get, handle_list, handle_node_approve;
http_handler handle_token_create, handle_tokens, handle_token_revoke, handle_whoami;
http_handler handle_join, handle_join_token_create, handle_join_tokens, handle_join_token_revoke;
http_handler handle_audit, handle_audit_verify, handle_journal_accept;
http_handler handle_exception_request, handle_exception_decide, handle_exceptions;
http_handler handle_decision_ask, handle_decision_get, handle_decision_cancel, handle_decisions;
http_handler handle_leases, handle_lease_event, handle_reclaims, handle_reclaim_event;
http_handler handle_quota, handle_quota_anomalies, handle_quota_recording;
http_handler handle_sla, handle_budgets, handle_reconciliation, handle_refunds;
http_handler handle_adjustment_add, handle_adjustment_decide, handle_adjustments;
http_handler handle_usage, handle_conservation, handle_verify, handle_report;

#endif
