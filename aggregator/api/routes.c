/* aggregator/api/routes.c - route table: method, path, pool, body limit, handler, roles, summary; and the access checks. */
#include <string.h>
#include <strings.h>

#include "aggregator/api/api.h"
#include "aggregator/service/token_batcher.h"
#include "aggregator/core/metering/live.h"
#include "aggregator/store/access/access.h"
#include "aggregator/store/policy/policy_store.h"
#include "common/base/text.h"

#define SMALL_BODY (64u << 10)
#define ADOPT_BODY (256u << 10) /* a part for each GPU of large work */
#define POLICY_BODY (4u << 20)
#define EVENTS_BODY JSON_MAX_BYTES

/* Nodes and schedulers have workers of their own: no number of reports keeps a batch or a decision waiting. */
#define NODES HTTP_POOL(API_POOL_NODES)
#define DECIDE HTTP_POOL(API_POOL_DECISIONS)
#define REPORT HTTP_HEAVY

const struct http_route api_routes[] = {
	{"GET", "/healthz", HTTP_INLINE, 0, handle_healthz, ROLE_NONE_NEEDED, "the process is alive"},
	{"GET", "/readyz", HTTP_INLINE, 0, handle_readyz, ROLE_NONE_NEEDED,
         "the database answers and has this program's schema"},
	{"GET", "/metrics", HTTP_INLINE, 0, handle_metrics, ROLE_NONE_NEEDED,
         "Prometheus metrics: the daemon's own; with a token also the usage and cost that token may see"},
	{"GET", "/v1/openapi.json", false, 0, handle_openapi, ROLE_NONE_NEEDED, "this API as an OpenAPI document"},
	{"POST", "/v1/ingest", NODES, INGEST_BODY_OPTION, handle_ingest, ROLE_NODE, "batches of one exporter stream"},
	{"GET", "/v1/quarantine", false, 0, handle_quarantine, ROLES_MONEY,
         "batches whose content was refused, and what was decided; node, stream, class, decision, limit, before"},
	{"GET", "/v1/quarantine/", false, 0, handle_quarantine_show, ROLES_MONEY, "one of them, and what is in it"},
	{"POST", "/v1/quarantine/", false, SMALL_BODY, handle_quarantine_decide, ROLE_ADMIN,
         "release a batch into the ledger, or discard it: its time stays unknown"},
	{"POST", "/v1/status", NODES, LIVE_MAX_BYTES, handle_status, ROLE_NODE,
         "what a node says of this moment: which GPUs work, and who holds them"},
	{"GET", "/v1/status", false, 0, handle_status_list, ROLES_READ,
         "live state of nodes: age, health, holders, clocks; tenant, node"},
	{"POST", "/v1/gpus/", false, SMALL_BODY, handle_gpu_move, ROLE_ADMIN,
         "UUID/move: the node that a GPU is in from a time on, with a reason"},
	{"POST", "/v1/events", false, EVENTS_BODY, handle_events, ROLES_MONEY | ROLE_TENANT_ADMIN | ROLE_METER,
         "CloudEvents of other meters: storage, egress, inference, support"},
	{"GET", "/v1/events/summary", REPORT, 0, handle_events_summary, ROLES_READ,
         "what the events of a month add up to, by workspace, meter and SKU, or of inference by end user too; period, meter, tenant, by"},
	{"PUT", "/v1/policy", false, POLICY_BODY, handle_policy_put, ROLES_ADMIN,
         "apply the policy, or a tenant's part of it; ?dry_run=1 shows the differences"},
	{"GET", "/v1/policy", false, 0, handle_policy_get, ROLES_MONEY | ROLE_TENANT_ADMIN,
         "the policy as it was applied, or a tenant's part of it; tenant"},
	{"GET", "/v1/policy/progress", false, 0, handle_policy_progress, ROLES_MONEY,
         "how far holders are attributed again after the last change of rules"},
	{"GET", "/v1/policy/suggest", REPORT, 0, handle_policy_suggest, ROLE_ADMIN,
         "a draft of a policy that owns what was seen; from, to"},
	{"POST", "/v1/prices/preview", REPORT, POLICY_BODY, handle_price_preview, ROLES_MONEY,
         "what a month would have cost with these prices: a policy file, or its key prices; period, tenant, name"},
	{"POST", "/v1/tokens", false, SMALL_BODY, handle_token_create, ROLES_ADMIN, "make a token; it is shown once"},
	{"GET", "/v1/tokens", false, 0, handle_tokens, ROLES_ADMIN,
         "tokens, never their text; tenant, role, node, status, limit, before"},
	{"DELETE", "/v1/tokens/", false, 0, handle_token_revoke, ROLES_ADMIN, "revoke the token with this id, at once"},
	{"GET", "/v1/whoami", false, 0, handle_whoami, ROLES_ANY,
         "the token that was shown: its role, tenant, node and expiry"},
	{"POST", "/v1/join-tokens", false, SMALL_BODY, handle_join_token_create, ROLE_ADMIN,
         "make a join token, with which a node gets its token once; it is shown once"},
	{"GET", "/v1/join-tokens", false, 0, handle_join_tokens, ROLE_ADMIN,
         "join tokens, never their text; status, limit, before"},
	{"DELETE", "/v1/join-tokens/", false, 0, handle_join_token_revoke, ROLE_ADMIN,
         "revoke the join token with this id"},
	{"POST", "/v1/join", NODES, HTTP_SMALL_BODY, handle_join, TAKES_JOIN_TOKEN,
         "exchange a join token, as the bearer token, for the token of one node"},
	{"GET", "/v1/audit", false, 0, handle_audit, ROLES_MONEY | ROLE_TENANT_ADMIN,
         "who changed what, and who read reports; tenant, actor, action, subject, from, to, limit, before"},
	{"GET", "/v1/audit/differences", REPORT, 0, handle_audit_verify, ROLES_MONEY,
         "the chains of the audit log and their seals computed again, page by page: every difference; after, seal"},
	{"POST", "/v1/journal/", false, SMALL_BODY, handle_journal_accept, ROLE_ADMIN,
         "ENTRY/accept: answer for a change of rows that has no entry of the audit log"},
	{"POST", "/v1/decisions", HTTP_INLINE | DECIDE, SMALL_BODY, handle_decision_ask, ROLES_ASK,
         "ask for capacity; request_id makes it idempotent; dry_run, wait"},
	{"POST", "/v1/admit", HTTP_INLINE | DECIDE, SMALL_BODY, handle_admit, ROLES_ASK,
         "ask for capacity, the status is the answer: 200 run, 202 wait and ask again, 403 never; wait"},
	{"GET", "/v1/decisions", DECIDE, 0, handle_decisions, ROLES_READ | ROLE_SCHEDULER,
         "what was asked for and decided, newest first; tenant, workspace, status, limit, before"},
	{"GET", "/v1/decisions/", DECIDE | HTTP_POLLS, 0, handle_decision_get, ROLES_READ | ROLE_SCHEDULER,
         "a decision with every check and its numbers; wait until it no longer waits"},
	{"DELETE", "/v1/decisions/", DECIDE, 0, handle_decision_cancel, ROLES_ASK,
         "a request that waits is no longer wanted"},
	{"GET", "/v1/leases", DECIDE, 0, handle_leases, ROLES_READ | ROLE_SCHEDULER,
         "what is admitted and has not ended; tenant, workspace, status, limit, before"},
	{"POST", "/v1/leases/", DECIDE, SMALL_BODY, handle_lease_event, ROLES_ASK,
         "ID/confirm: it runs, and where; ID/heartbeat; ID/release: it ended; ID/drain: it is being ended; ID/renew (schedulers): it has not started yet"},
	{"PUT", "/v1/leases/", DECIDE, SMALL_BODY, handle_lease_workloads, ROLES_SCHEDULE,
         "ID/workloads: the pods, claims and Slurm jobs that a lease is seen by, instead of those before"},
	{"POST", "/v1/agents", DECIDE, SMALL_BODY, handle_agent_lead, ROLES_SCHEDULE,
         "the agent of a cluster's scheduler becomes its leader: a new epoch, for the header Tollgate-Epoch"},
	{"POST", "/v1/adopt", DECIDE, ADOPT_BODY, handle_adopt, ROLES_SCHEDULE,
         "work that runs already becomes a confirmed lease where it runs; request_id makes it idempotent"},
	{"PUT", "/v1/adoption", DECIDE, SMALL_BODY, handle_adoption_put, ROLES_SCHEDULE,
         "whether everything that runs in a cluster was adopted: until then a switch of enforcement waits"},
	{"GET", "/v1/adoption", DECIDE, 0, handle_adoption_list, ROLES_SCHEDULE | ROLE_BILLING,
         "the clusters whose schedulers adopt what runs, and whether that is complete"},
	{"GET", "/v1/reclaims", DECIDE | HTTP_POLLS, 0, handle_reclaims, ROLES_READ | ROLE_SCHEDULER,
         "what leases are asked to give back; wait for more than was known after an event; tenant, wait, after"},
	{"POST", "/v1/reclaims/", DECIDE, SMALL_BODY, handle_reclaim_event, ROLES_ASK,
         "ID/ack: the lease is draining; ID/enforce: the overdue one is being ended"},
	{"GET", "/v1/quota", false, 0, handle_quota, ROLES_READ | ROLE_SCHEDULER,
         "per workspace and model: limit, reserved, in use, borrowed, queued; per pool: capacity; tenant"},
	{"GET", "/v1/quota/anomalies", false, 0, handle_quota_anomalies, ROLES_READ | ROLE_SCHEDULER,
         "where telemetry and leases differ: unleased, unused, foreign, excess, reserved, overdue, idle; tenant"},
	{"GET", "/v1/quota/recording", REPORT, 0, handle_quota_recording, ROLE_ADMIN,
         "the log of decisions, for `tollgate quota simulate`; from_seq, to_seq"},
	{"GET", "/v1/usage", REPORT, 0, handle_usage, ROLES_READ,
         "GPU-hours by group, and what they cost; from, to, group_by, tenant, workspace, cluster, user, gpu_model, node, limit, cursor, exact, format, cost"},
	{"GET", "/v1/conservation", REPORT, 0, handle_conservation, ROLES_MONEY,
         "per GPU: the states against the time in service"},
	{"GET", "/v1/conservation/differences", REPORT, 0, handle_verify, ROLES_MONEY,
         "the ledger computed again from the batches it keeps: every difference; from, to, node, part"},
	{"GET", "/v1/reports/", REPORT, 0, handle_report, ROLES_READ,
         "the month's chargeback: YYYY-MM.csv, .json, .html, .focus.csv, .focus-periods.csv, .focus-invoices.csv, or YYYY-MM/lines/ID for what is behind a line; tenant, manifest, excel, focus_version"},
	{"POST", "/v1/adjustments", false, SMALL_BODY, handle_adjustment_add, ROLES_MONEY,
         "enter a one-off charge or credit; what billing enters somebody else approves"},
	{"POST", "/v1/adjustments/", false, SMALL_BODY, handle_adjustment_decide, ROLES_MONEY,
         "approve a one-off charge or credit, or take it back by a row of the opposite amount"},
	{"GET", "/v1/adjustments", false, 0, handle_adjustments, ROLES_READ,
         "one-off charges and credits, newest first; tenants see the approved ones; tenant, period, limit, before"},
	{"GET", "/v1/sla", REPORT, 0, handle_sla, ROLES_READ,
         "what was promised to tenants and workspaces, and what was measured of it in a month; period, tenant"},
	{"GET", "/v1/budgets", REPORT, 0, handle_budgets, ROLES_READ,
         "budgets of a month: what was spent, and what it will come to; period, tenant"},
	{"GET", "/v1/reconciliation", REPORT, 0, handle_reconciliation, ROLES_MONEY,
         "a month's capacity at list price against what was billed of it, term by term, and the platform's cost; month, format"},
	{"POST", "/v1/exceptions", false, SMALL_BODY, handle_exception_request, ROLES_ADMIN | ROLE_DEVELOPER,
         "ask for extra limit or reservation of a workspace until a time"},
	{"POST", "/v1/exceptions/", false, SMALL_BODY, handle_exception_decide, ROLES_ADMIN | ROLE_DEVELOPER,
         "ID/approve, ID/refuse or ID/revoke, with a reason; a developer takes back what it asked for itself"},
	{"GET", "/v1/exceptions", false, 0, handle_exceptions, ROLES_READ,
         "exceptions from limits and reservations, newest first; tenant, workspace, status, limit, before"},
	{"GET", "/v1/refunds", REPORT, 0, handle_refunds, ROLES_READ,
         "hours of jobs that ended by a failed GPU or node, and what was charged for them; month, tenant, format"},
	{"GET", "/v1/tenants", false, 0, handle_list, ROLES_READ, "tenants"},
	{"GET", "/v1/workspaces", false, 0, handle_list, ROLES_READ, "workspaces"},
	{"GET", "/v1/nodes", false, 0, handle_list, ROLES_MONEY, "nodes, their owners and how far their records reach"},
	{"POST", "/v1/nodes/", false, SMALL_BODY, handle_node_approve, ROLE_ADMIN,
         "NAME/approve, with a reason: what the node sends counts, and what it sent while it was held"},
	{"GET", "/v1/members", false, 0, handle_list, ROLES_READ, "members of tenants and workspaces, and their roles"},
	{"GET", "/v1/history", REPORT, 0, handle_list, ROLES_READ,
         "what the policy said when: owners and states of nodes, isolation, limits, reservations"},
	{"GET", "/v1/periods", false, 0, handle_list, ROLES_READ, "billing periods"},
	{"GET", "/v1/periods/", REPORT, 0, handle_period_check, ROLES_MONEY,
         "YYYY-MM/check: what stands against closing the month; YYYY-MM/close: how far that has come; YYYY-MM/recompute: a closed month proved from what was kept"},
	{"POST", "/v1/periods/", REPORT, SMALL_BODY, handle_period_close, ROLES_MONEY,
         "YYYY-MM/close: prove the month and close it, for good; above a threshold with a reason only"},
	{"DELETE", "/v1/periods/", false, 0, handle_period_cancel, ROLES_MONEY,
         "YYYY-MM/close: cancel a close that runs"},
};
const size_t api_route_count = ARRAY_LEN(api_routes);

bool
api_heavy(const struct http_request *rq)
{
	static const char progress[] = "/close"; /* how far a close has come: two rows */
	size_t n = strlen(rq->tail), end = strlen(progress);

	return rq->route->handle != handle_period_check || n < end || strcmp(rq->tail + n - end, progress) != 0;
}

/* The server's thread never waits for the database. An inline route that needs a role is answered there if the token's identity is cached, and
 * its handler has the token checked later; all other requests go to a worker. */
static bool
inline_guard(struct app *app, const struct http_request *rq, struct http_reply *rp)
{
	const char *token = request_token(rq);
	struct identity_row who;

	if (rq->route->roles == ROLE_NONE_NEEDED)
		return true;
	if (token != NULL && token_batcher_cached(app->tokens, token, &who) && (rq->route->roles & who.role) != 0)
		return true;
	http_defer(rp);
	return false;
}

static void
refuse_no_token(const struct http_request *rq, struct http_reply *rp)
{
	http_problem(rp, rq, 401, "Authorization", "a bearer token is needed: Authorization: Bearer TOKEN");
}

bool
api_guard(void *app, void *worker, const struct http_request *rq, struct http_reply *rp)
{
	const struct http_route *route = rq->route;
	struct worker *w = worker;
	const char *token = request_token(rq);
	struct err err = {0};

	if (w == NULL)
		return inline_guard(app, rq, rp);
	db_serve(w->db);
	memset(&w->who, 0, sizeof(w->who));
	if (token == NULL) {
		if (route->roles == ROLE_NONE_NEEDED)
			return true;
		refuse_no_token(rq, rp);
		return false;
	}
	if (!token_batcher_check(((struct app *)app)->tokens, w->db, token, &w->who, &err)) {
		memset(&w->who, 0, sizeof(w->who));
		if (err.kind == ERR_DENIED && route->roles == TAKES_JOIN_TOKEN)
			return true;
		if (err.kind == ERR_DENIED)
			http_problem(rp, rq, 401, "Authorization", "%s", err.text);
		else
			http_problem_err(rp, rq, &err);
		return false;
	}
	if (route->roles != ROLE_NONE_NEEDED && (route->roles & w->who.role) == 0) {
		http_problem(rp, rq, 403, NULL, "the role %s may not %s %s", role_name(w->who.role), rq->method,
		             route->path);
		return false;
	}
	return true;
}

/* By the cached identity in the server's thread: the guard checks the token again before the request is handled. */
static enum http_identified
identify_inline(struct app *app, const struct http_request *rq, struct http_reply *rp, struct identity_row *who)
{
	const char *token = request_token(rq);
	uint32_t roles = rq->route->roles;

	if (token == NULL && roles != ROLE_NONE_NEEDED) {
		refuse_no_token(rq, rp);
		return HTTP_CALLER_REFUSED;
	}
	/* a join token is judged by its handler */
	if (token == NULL || roles == TAKES_JOIN_TOKEN)
		return HTTP_CALLER_ANONYMOUS;
	if (!token_batcher_cached(app->tokens, token, who) || (roles != ROLE_NONE_NEEDED && (roles & who->role) == 0))
		return HTTP_CALLER_UNKNOWN;
	return HTTP_CALLER_KNOWN;
}

enum http_identified
api_identify(void *app, void *worker, const struct http_request *rq, struct http_reply *rp, struct http_caller *ret)
{
	enum http_identified identified;
	struct worker *w = worker;
	struct identity_row who;

	if (w == NULL) {
		identified = identify_inline(app, rq, rp, &who);
		if (identified != HTTP_CALLER_KNOWN)
			return identified;
	} else {
		if (!api_guard(app, worker, rq, rp))
			return HTTP_CALLER_REFUSED;
		if (w->who.role == 0)
			return HTTP_CALLER_ANONYMOUS;
		who = w->who;
	}
	ret->token_id = who.token_id;
	if ((who.role & ROLES_TENANT) != 0)
		memcpy(ret->tenant, who.tenant, sizeof(ret->tenant));
	return HTTP_CALLER_KNOWN;
}

bool
api_tenant(const struct worker *w, const struct http_request *rq, const char **ret_tenant, struct http_reply *rp)
{
	const char *asked = http_query(rq, "tenant");
	struct err err = {0};

	if ((w->who.role & ROLES_TENANT) != 0) {
		if (asked != NULL && strcmp(asked, w->who.tenant) != 0) {
			http_problem(rp, rq, 404, "tenant", "there is no tenant \"%.64s\"", asked);
			return false;
		}
		*ret_tenant = w->who.tenant;
		return true;
	}
	if (asked != NULL && !text_is_clean(asked)) {
		http_problem(rp, rq, 404, "tenant", "there is no tenant of that name: it is not UTF-8 text");
		return false;
	}
	if (asked != NULL && !store_tenant_known(w->db, asked, &err)) {
		reply_problem(rp, rq, &err);
		return false;
	}
	*ret_tenant = asked;
	return true;
}

bool
api_sees(const struct identity_row *who, const char *tenant)
{
	if ((who->role & ROLES_MONEY) != 0)
		return true;
	return (who->role & ROLES_TENANT) != 0 && tenant != NULL && strcmp(who->tenant, tenant) == 0;
}

void
handle_openapi(void *app, void *worker, const struct http_request *rq, struct http_reply *rp)
{
	(void)app;
	(void)worker;
	(void)rq;
	rp->content_type = "application/json";
	buf_add(&rp->body, openapi_json, openapi_json_bytes);
}

void
api_print_routes(struct buf *out)
{
	for (size_t i = 0; i < api_route_count; i++) {
		const struct http_route *r = &api_routes[i];
		const char *comma = "";

		buf_printf(out, "%s %s ", r->method, r->path);
		for (uint32_t role = 1; role <= ROLE_LAST; role <<= 1) {
			if ((r->roles & role) == 0)
				continue;
			buf_printf(out, "%s%s", comma, role_name(role));
			comma = ",";
		}
		if (r->roles == ROLE_NONE_NEEDED)
			buf_str(out, "open");
		if (r->roles == TAKES_JOIN_TOKEN)
			buf_str(out, "join-token");
		buf_printf(out, " %s\n", r->summary);
	}
}
