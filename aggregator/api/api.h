/* aggregator/api/api.h - the HTTP side of the daemon: route table, access checks, helpers that read requests, handlers. */
#ifndef TOLLGATE_API_H
#define TOLLGATE_API_H

#include <assert.h>

#include "aggregator/service/app.h"
#include "aggregator/service/reply.h"
#include "aggregator/store/access/access.h"
#include "aggregator/store/policy/policy_store.h"
#include "common/conf/json.h"
#include "common/promtext/promtext.h"

struct capacity_request;
struct rules_kept;

/* One per worker thread: its connection, and the caller of its present request. */
struct worker {
	struct db *db;
	struct identity_row who;  /* role 0: no token was shown */
	struct rules_kept *rules; /* attribution rules; NULL: not needed yet */
};

/* The role of each route is in its row; a route open to all has ROLE_NONE_NEEDED. At one with TAKES_JOIN_TOKEN no token's role
 * helps: its handler takes the bearer token for a join token. */
#define ROLE_NONE_NEEDED 0u
#define TAKES_JOIN_TOKEN (1u << 31)
#define ROLES_ADMIN (ROLE_ADMIN | ROLE_TENANT_ADMIN)
#define ROLES_MONEY (ROLE_ADMIN | ROLE_BILLING)
#define ROLES_READ (ROLES_MONEY | ROLES_TENANT)
#define ROLES_ASK (ROLES_ADMIN | ROLE_DEVELOPER | ROLE_SCHEDULER)
#define ROLES_SCHEDULE (ROLE_ADMIN | ROLE_SCHEDULER)
#define ROLES_ANY (ROLES_READ | ROLE_NODE | ROLE_SCHEDULER | ROLE_METER)

/* Pools of workers: pushes and status of nodes; decisions, leases and reclaims; all other requests. */
enum api_pool { API_POOL_OTHERS, API_POOL_NODES, API_POOL_DECISIONS };
static_assert(API_POOL_DECISIONS < HTTP_POOLS, "httpd has as many pools");

/* A body_max that stands for the option ingest-max; main puts the number in its place. */
#define INGEST_BODY_OPTION SIZE_MAX

extern const struct http_route api_routes[];
extern const size_t api_route_count;

bool api_guard(void *app, void *worker, const struct http_request *rq, struct http_reply *rp);
/* Whether a request of a report's route is a report. */
bool api_heavy(const struct http_request *rq);
enum http_identified api_identify(void *app, void *worker, const struct http_request *rq, struct http_reply *rp,
                                  struct http_caller *ret);

/* openapi.json, embedded by the Makefile. tests/integration/test_openapi.py holds it against the route table and against real traffic. */
extern const char openapi_json[];
extern const size_t openapi_json_bytes;

/* A line for each route: method, path, roles, summary. */
void api_print_routes(struct buf *out);

/* The tenant whose rows may be shown: the token's own, or the one of ?tenant= (NULL: all). False, with 404 written, when a tenant's token asks
 * for another tenant: a token never learns which tenants exist. */
bool api_tenant(const struct worker *w, const struct http_request *rq, const char **ret_tenant, struct http_reply *rp);

/* Whether a caller may see a row of a tenant: operators see all, a tenant's token its own, others none. NULL: a row of no tenant. */
bool api_sees(const struct identity_row *who, const char *tenant);

/* Helpers that read a request; ERR_INVALID names the field or parameter. */
/* A query parameter, of UTF-8 text; NULL: absent. When there are choices (NULL-ended), one of them. */
MUST_CHECK bool api_query(const struct http_request *rq, const char *name, const char *const *choices, const char **ret,
                          struct err *err);
/* A number from 1 to max; *ret stays as it is when the parameter is absent. */
MUST_CHECK bool api_query_i64(const struct http_request *rq, const char *name, int64_t max, int64_t *ret,
                              struct err *err);
#define API_PERIOD_SIZE 40
/* A month of a request; absent (NULL) or "current": the present one, written into `now`. */
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
/* For the audit log: this token has read something; tenant: whose rows, NULL: not of one tenant. */
void api_note_read(struct app *app, const struct worker *w, const char *tenant, const char *action,
                   const char *subject);
#define API_DOCUMENT_NAME_MAX 128
/* The name of a document in error messages: the file name that the client sent in ?name=. */
const char *api_document_name(const struct http_request *rq, const char *preset, char out[API_DOCUMENT_NAME_MAX]);

/* ?wait=: until when on the boot clock; 0: not at all. */
MUST_CHECK bool api_wait(const struct http_request *rq, int64_t *ret_until_ns, struct err *err);
/* The headers Tollgate-Agent and Tollgate-Epoch of a request that changes something: the cluster whose agent sends it, and the epoch in which that
 * leads. Both or neither, and never with a tenant's token. */
MUST_CHECK bool api_agent(const struct http_request *rq, struct capacity_request *i, struct err *err);
/* Which decision or lease is meant by REQUEST_ID or TENANT/REQUEST_ID in a path (n bytes of it), and ?tenant=: its key and request_id. A
 * tenant's token means its own, and others do not exist. ERR_CONFLICT: an operator or scheduler named no tenant, and several have it. */
MUST_CHECK bool api_decision_find(struct worker *w, const struct http_request *rq, size_t n, struct capacity_request *i,
                                  struct err *err);

/* Everything on /metrics that only a token may see, by tenant: the ledger, GPU time of this replica, quota. */
void metrics_write_tenants(struct prom *p, struct app *app, const struct gauges_page *page,
                           const struct identity_row *who);

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
http_handler handle_admit, handle_decision_ask, handle_decision_get, handle_decision_cancel, handle_decisions;
http_handler handle_agent_lead, handle_adopt, handle_adoption_put, handle_adoption_list;
http_handler handle_leases, handle_lease_event, handle_lease_workloads, handle_reclaims, handle_reclaim_event;
http_handler handle_quota, handle_quota_anomalies, handle_quota_recording;
http_handler handle_sla, handle_budgets, handle_reconciliation, handle_refunds;
http_handler handle_adjustment_add, handle_adjustment_decide, handle_adjustments;
http_handler handle_usage, handle_conservation, handle_verify, handle_report;

#endif
