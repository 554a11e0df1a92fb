/* aggregator/api/api_policy.c - /v1/policy and /v1/prices, and the plain lists: tenants, workspaces, nodes, members, history, periods. */
#include <string.h>

#include "aggregator/api/api.h"
#include "aggregator/store/billing/report_store.h"
#include "aggregator/service/decider.h"
#include "aggregator/store/access/access.h"
#include "aggregator/store/policy/policy_store.h"
#include "common/base/log.h"
#include "common/base/time.h"
#include "common/conf/json.h"

/* ---- apply, show, list ---- */

#define DIFF_MAX (4u << 20)
#define BOOK_WAIT_NS (5 * NS_PER_S) /* how long a reply waits until the quota book uses the applied policy */

const char *
api_document_name(const struct http_request *rq, const char *preset, char out[API_DOCUMENT_NAME_MAX])
{
	const char *name = http_query(rq, "name");
	size_t n = 0;

	if (name == NULL || name[0] == '\0')
		return preset;
	for (; name[n] != '\0' && n < API_DOCUMENT_NAME_MAX - 1; n++)
		out[n] = name[n] < ' ' || name[n] == 0x7f ? '?' : name[n];
	out[n] = '\0';
	return out;
}

/* Whether quota decisions use the applied policy yet; the member `quota` of the reply. */
static const char *
quota_state(struct app *app, const struct policy_outcome *o)
{
	if (o->version == 0)
		return "unchanged";
	if (o->effective_ns > time_wall_ns())
		return "later";
	return decider_policy_wait(app->decider, o->version, o->effective_ns, time_boot_ns() + BOOK_WAIT_NS)
	               ? "in-effect"
	               : "pending";
}

void
handle_policy_put(void *app, void *worker, const struct http_request *rq, struct http_reply *rp)
{
	struct worker *w = worker;
	const char *dry = http_query(rq, "dry_run");
	bool dry_run = dry != NULL && strcmp(dry, "0") != 0;
	struct policy_outcome outcome = {0};
	struct policy_request request;
	char name[API_DOCUMENT_NAME_MAX], when[TIME_TEXT_SIZE];
	in_place(buf) struct buf diff = {0};
	struct err err = {0};

	buf_init(&diff, DIFF_MAX);
	request = (struct policy_request){.name = api_document_name(rq, "policy", name),
	                                  .text = rq->body,
	                                  .len = rq->body_len,
	                                  .actor = w->who.name,
	                                  .tenant = w->who.role == ROLE_TENANT_ADMIN ? w->who.tenant : NULL,
	                                  .now_ns = time_wall_ns(),
	                                  .dry_run = dry_run};
	if (!store_policy_apply(w->db, &request, &outcome, &diff, &err)) {
		http_problem_err(rp, rq, &err);
		return;
	}
	if (!dry_run && outcome.changes > 0)
		log_event(LOG_INFO, "policy applied", LS("by", w->who.name), LI("version", outcome.version),
		          LI("changes", outcome.changes));
	rp->content_type = "application/json";
	buf_printf(&rp->body,
	           "{\"dry_run\":%s,\"changes\":%zu,\"version\":%" PRId64
	           ",\"effective\":\"%s\",\"quota\":\"%s\",\"reattributing\":%s,\"corrects_from\":%s%s%s,\"diff\":",
	           dry_run ? "true" : "false", outcome.changes, outcome.version,
	           time_format(outcome.effective_ns, when), quota_state(app, &outcome),
	           outcome.reattributing ? "true" : "false", outcome.corrects_from[0] != '\0' ? "\"" : "null",
	           outcome.corrects_from, outcome.corrects_from[0] != '\0' ? "\"" : "");
	json_write_string(buf_text(&diff), &rp->body);
	buf_str(&rp->body, "}\n");
}

void
handle_policy_get(void *app, void *worker, const struct http_request *rq, struct http_reply *rp)
{
	struct worker *w = worker;
	const char *tenant = NULL;
	struct err err = {0};

	(void)app;
	if (!api_tenant(w, rq, &tenant, rp))
		return;
	rp->content_type = "application/yaml; charset=utf-8";
	if (!store_policy_get(w->db, tenant, &rp->body, &err))
		http_problem_err(rp, rq, &err);
}

void
handle_list(void *app, void *worker, const struct http_request *rq, struct http_reply *rp)
{
	struct worker *w = worker;
	const char *tenant = NULL;
	struct err err = {0};

	(void)app;
	if (!api_tenant(w, rq, &tenant, rp))
		return;
	rp->content_type = "application/json";
	if (!store_list_json(w->db, rq->path + strlen("/v1/"), tenant, &rp->body, &err))
		http_problem_err(rp, rq, &err);
}

/* ---- suggestions and progress ---- */

#define SEEN_PRESET_NS (30 * NS_PER_DAY)

void
handle_policy_suggest(void *app, void *worker, const struct http_request *rq, struct http_reply *rp)
{
	struct worker *w = worker;
	int64_t from_ns, to_ns, now_ns = time_wall_ns();
	struct err err = {0};

	(void)app;
	if (!api_range(w->db, rq, now_ns, &from_ns, &to_ns, &err)) {
		reply_problem(rp, rq, &err);
		return;
	}
	if (http_query(rq, "from") == NULL)
		from_ns = to_ns - SEEN_PRESET_NS;
	rp->content_type = "application/yaml; charset=utf-8";
	if (!store_policy_suggest(w->db, from_ns, to_ns, &rp->body, &err))
		reply_problem(rp, rq, &err);
}

void
handle_policy_progress(void *app, void *worker, const struct http_request *rq, struct http_reply *rp)
{
	struct worker *w = worker;
	struct err err = {0};

	(void)app;
	rp->content_type = "application/json";
	if (!store_reattribution_json(w->db, &rp->body, &err))
		http_problem_err(rp, rq, &err);
}

/* ---- price preview ---- */

void
handle_price_preview(void *app, void *worker, const struct http_request *rq, struct http_reply *rp)
{
	struct worker *w = worker;
	struct price_request request = {.name = "prices", .text = rq->body, .len = rq->body_len};
	char now[API_PERIOD_SIZE], name[API_DOCUMENT_NAME_MAX];
	struct err err = {0};

	(void)app;
	if (!api_tenant(w, rq, &request.tenant, rp))
		return;
	request.name = api_document_name(rq, "prices", name);
	rp->content_type = "application/json";
	if (!api_period(w, rq, "period", now, &request.period, &err) ||
	    !store_price_preview(w->db, &request, &rp->body, &err))
		http_problem_err(rp, rq, &err);
}
