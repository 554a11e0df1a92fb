/* aggregator/api/api_decisions.c - /v1/decisions: capacity is asked for, shown, waited for, and no longer wanted. */
#include <string.h>

#include "aggregator/api/api.h"
#include "aggregator/service/dry_run.h"
#include "aggregator/service/token_batcher.h"
#include "aggregator/store/access/access.h"
#include "common/base/text.h"
#include "common/base/time.h"

#define WAIT_MOST_NS (5 * NS_PER_MIN)
#define ASK_INLINE_MAX 4096u /* a longer body is for a worker to read */

/* ---- handlers --------------------------------------------------------------------------------------------------------------------- */

bool
api_wait(const struct http_request *rq, int64_t *ret_until_ns, struct err *err)
{
	const char *text = http_query(rq, "wait");
	int64_t ns = 0;

	*ret_until_ns = 0;
	if (!text)
		return true;
	if (!duration_parse(text, &ns, NULL) || ns < 0 || ns > WAIT_MOST_NS)
		return err_set(err, ERR_INVALID, "wait: it is a duration like 30s, of at most 5m");
	*ret_until_ns = time_boot_ns() + ns;
	return true;
}

/* In the server's thread: with whom a token is remembered to be, which the turn proves. A worker has proved it. */
static bool
asker(struct app *app, const struct worker *w, const struct http_request *rq, struct identity_row *ret,
      int64_t *ret_unproved)
{
	const char *token = request_token(rq);

	*ret_unproved = 0;
	if (w) {
		*ret = w->who;
		return true;
	}
	if (rq->body_len > ASK_INLINE_MAX || !token || !token_line_recall(app->tokens, token, ret))
		return false;
	*ret_unproved = ret->token_id;
	return true;
}

/* Whose a request is that names its workload, by the rules of store/quota/decision.h; a dry run has only what the attribution rules say. What is another tenant's is
 * answered like what is nobody's. */
static bool
place_by_workload(struct worker *w, struct desk_item *i, bool dry, struct err *err)
{
	const char *own = i->tenant[0] != '\0' ? i->tenant : NULL, *id = i->body.request_id, *workspace;
	size_t n = own ? strlen(own) : 0;
	owned(mem) char *before = NULL, *now = NULL;

	if (!dry && own && !store_decision_workspace(w->db, own, id, &before, err))
		return false;
	if (!before && !store_workload_workspace(w->db, &w->rules, i->body.cluster, &i->body.holder, &now, err))
		return false;
	if (!dry && !own && !store_decision_replayed(w->db, now, id, i->body.digest, &before, err))
		return false;
	workspace = before ? before : now;
	if (!workspace || (own && (strncmp(workspace, own, n) != 0 || workspace[n] != '/')))
		return decision_body_no_workspace(&i->body, err);
	return decision_body_place(&i->body, workspace, err);
}

void
handle_decision_ask(void *app_, void *worker, const struct http_request *rq, struct http_reply *rp)
{
	owned(desk_item) struct desk_item *i = NULL;
	struct app *app = app_;
	const char *dry_run = http_query(rq, "dry_run");
	bool dry = dry_run && strcmp(dry_run, "0") != 0, sound;
	struct identity_row who;
	struct err err = {0};
	int64_t unproved;

	if (!asker(app, worker, rq, &who, &unproved)) {
		http_defer(rp);
		return;
	}
	i = desk_item_new(DESK_SUBMIT, &who, rq, rp);
	i->token_id = unproved;
	sound = api_wait(rq, &i->until_ns, &err) && json_parse("body", rq->body, rq->body_len, &i->doc, &err) &&
	        decision_body_read(i->doc, i->tenant[0] != '\0' ? i->tenant : NULL, time_wall_ns(), &i->body, &err);
	/* what is wrong is told to who has a token that holds, and whose a workload is only a worker can look up */
	if (!worker && (!sound || i->body.workspace[0] == '\0')) {
		http_defer(rp);
		return;
	}
	if (!sound || (i->body.workspace[0] == '\0' && !place_by_workload(worker, i, dry, &err))) {
		reply_problem(rp, rq, &err);
		return;
	}
	memcpy(i->id, i->body.request_id, sizeof(i->id));
	memcpy(i->key, i->body.key, sizeof(i->key));
	memcpy(i->of_tenant, i->body.tenant, sizeof(i->of_tenant));
	i->ask = (struct decision_ask){.key = i->body.key,
	                               .request_id = i->body.request_id,
	                               .workspace = i->body.workspace,
	                               .body = buf_text(&i->body.body),
	                               .asked_by = i->actor,
	                               .workload = i->body.workload};
	memcpy(i->ask.digest, i->body.digest, sizeof(i->ask.digest));
	if (dry)
		dry_runs_put(app->dry_runs, take(i));
	else
		decider_put(app->decider, take(i));
}

bool
api_decision_find(struct worker *w, const struct http_request *rq, size_t n, struct desk_item *i, struct err *err)
{
	const char *slash = memchr(rq->tail, '/', n), *id = slash ? slash + 1 : rq->tail;
	const char *own = (w->who.role & ROLES_TENANT) != 0 ? w->who.tenant : NULL, *tenant = http_query(rq, "tenant");
	size_t id_len = n - (size_t)(id - rq->tail), tenant_len = slash ? (size_t)(slash - rq->tail) : 0;
	char named[DECISION_TENANT_SIZE] = "";

	if (slash && tenant_len < sizeof(named)) {
		memcpy(named, rq->tail, tenant_len);
		tenant = tenant && strcmp(tenant, named) != 0 ? "" : named;
	} else if (slash) {
		tenant = "";
	}
	if (id_len < sizeof(i->id))
		memcpy(i->id, id, id_len);
	/* somebody else's, two different tenants, or nobody's name: there is no such thing */
	if (!decision_id_sound(i->id) || (tenant && (!text_is_clean(tenant) || (own && strcmp(own, tenant) != 0))))
		return err_set(err, ERR_MISSING, "there is no decision or lease \"%.*s\"", (int)(n < 128 ? n : 128),
		               rq->tail);
	return store_decision_find(w->db, own ? own : tenant, i->id, i->key, i->of_tenant, err);
}

void
handle_decision_get(void *app_, void *worker, const struct http_request *rq, struct http_reply *rp)
{
	struct worker *w = worker;
	owned(desk_item) struct desk_item *i = desk_item_new(DESK_WATCH, &w->who, rq, rp);
	struct app *app = app_;
	struct err err = {0};

	i->after = INT64_MAX; /* while it waits, whatever it says */
	if (!api_wait(rq, &i->until_ns, &err) || !api_decision_find(w, rq, strlen(rq->tail), i, &err)) {
		reply_problem(rp, rq, &err);
		return;
	}
	decider_put(app->decider, take(i));
}

void
handle_decision_cancel(void *app_, void *worker, const struct http_request *rq, struct http_reply *rp)
{
	struct app *app = app_;
	struct worker *w = worker;
	owned(desk_item) struct desk_item *i = desk_item_new(DESK_EVENT, &w->who, rq, rp);
	struct err err = {0};

	i->word = "cancel";
	if (!api_decision_find(w, rq, strlen(rq->tail), i, &err)) {
		reply_problem(rp, rq, &err);
		return;
	}
	decider_put(app->decider, take(i));
}

/* Where everything that waits is in its queue now: what the rows say is of when they were decided. */
static size_t
places_now(struct app *app, struct quota_place **ret)
{
	struct quota_log *log = decider_log(app->decider);
	const struct quota_book *b = quota_log_borrow(log);
	size_t count = b ? quota_queue_places(quota_book_state(b), ret) : 0;

	quota_log_give_back(log);
	if (count > 0)
		dry_runs_estimate(app->dry_runs);
	for (size_t i = 0; i < count; i++) {
		struct quota_start start = dry_runs_start_of(app->dry_runs, (*ret)[i].id);

		(*ret)[i].start_ns = start.at_ns >= time_wall_ns() ? start.at_ns : 0;
	}
	return count;
}

/* What waits is told with the place that it has now. */
static bool
list_rows(struct app *app, struct worker *w, struct decision_query *q, struct buf *out, struct err *err)
{
	owned(mem) struct quota_place *places = NULL;

	if (!q->leases && (!q->status || strcmp(q->status, "waiting") == 0))
		q->place_count = places_now(app, &places);
	q->places = places;
	return store_decisions_json(w->db, q, out, err);
}

static void
list(struct app *app, struct worker *w, const struct http_request *rq, struct http_reply *rp, bool leases)
{
	static const char *const statuses[] = {"waiting",  "admitted",  "confirmed", "suspect", "ended",
	                                       "rejected", "cancelled", "expired",   NULL};
	struct decision_query q = {.leases = leases};
	struct err err = {0};

	if (!api_tenant(w, rq, &q.tenant, rp))
		return;
	rp->content_type = "application/json";
	if (!api_query(rq, "workspace", NULL, &q.workspace, &err) ||
	    !api_query(rq, "status", statuses, &q.status, &err) || !api_page(rq, &q.page, &err) ||
	    !list_rows(app, w, &q, &rp->body, &err))
		reply_problem(rp, rq, &err);
}

void
handle_decisions(void *app, void *worker, const struct http_request *rq, struct http_reply *rp)
{
	list(app, worker, rq, rp, false);
}

void
handle_leases(void *app, void *worker, const struct http_request *rq, struct http_reply *rp)
{
	list(app, worker, rq, rp, true);
}
