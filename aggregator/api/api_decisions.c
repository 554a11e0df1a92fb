/* aggregator/api/api_decisions.c - /v1/decisions, /v1/admit, /v1/leases, /v1/agents, /v1/adopt, /v1/adoption, /v1/reclaims: requests for capacity, leases, work that runs already, and
 * orders to give leases back. */
#include <string.h>

#include "aggregator/api/api.h"
#include "aggregator/service/decider.h"
#include "aggregator/service/dry_run.h"
#include "aggregator/service/token_batcher.h"
#include "aggregator/store/access/access.h"
#include "common/base/text.h"
#include "common/base/time.h"

/* ---- decisions ---- */

#define WAIT_MOST_NS (5 * NS_PER_MIN)
#define ASK_INLINE_MAX 4096u /* a worker reads longer bodies */

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

bool
api_agent(const struct http_request *rq, struct capacity_request *i, struct err *err)
{
	const char *cluster = http_header(rq, "Tollgate-Agent"), *epoch = http_header(rq, "Tollgate-Epoch");

	if (!cluster && !epoch)
		return true;
	if (i->tenant[0] != '\0')
		return err_set(err, ERR_INVALID,
		               "Tollgate-Agent: it is for the agents of schedulers, not for a tenant's token");
	if (!cluster || !epoch)
		return err_set(err, ERR_INVALID, "Tollgate-Agent and Tollgate-Epoch go together: %s is missing",
		               cluster ? "Tollgate-Epoch" : "Tollgate-Agent");
	if (cluster[0] == '\0' || strlen(cluster) >= sizeof(i->agent) || !text_is_clean(cluster))
		return err_set(err, ERR_INVALID, "Tollgate-Agent: it is the name of a cluster, of 1 to %zu bytes",
		               sizeof(i->agent) - 1);
	if (!text_to_i64(epoch, &i->epoch) || i->epoch < 1 || i->epoch > EPOCH_MAX)
		return err_set(err, ERR_INVALID, "Tollgate-Epoch: \"%.32s\" is not a number from 1 to %" PRId64, epoch,
		               EPOCH_MAX);
	memcpy(i->agent, cluster, strlen(cluster) + 1);
	return true;
}

/* A worker has checked the token. In the server's thread the cached identity is used, and the commit checks the token again. */
static bool
identify_caller(struct app *app, const struct worker *w, const struct http_request *rq, struct identity_row *ret,
                int64_t *ret_unproved)
{
	const char *token = request_token(rq);

	*ret_unproved = 0;
	if (w) {
		*ret = w->who;
		return true;
	}
	if (rq->body_len > ASK_INLINE_MAX || !token || !token_batcher_cached(app->tokens, token, ret))
		return false;
	*ret_unproved = ret->token_id;
	return true;
}

/* The workspace of a request that names its workload, by the rules of store/quota/decision.h; a dry run uses the attribution rules only. A workload of
 * another tenant is answered like one without a workspace. */
static bool
place_by_workload(struct worker *w, struct capacity_request *i, bool dry, struct err *err)
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

/* Its workspace is known. */
static void
fill_ask(struct capacity_request *i)
{
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
}

static void
ask(struct app *app, struct worker *worker, const struct http_request *rq, struct http_reply *rp, bool admits, bool dry)
{
	owned(capacity_request) struct capacity_request *i = NULL;
	bool sound;
	struct identity_row who;
	struct err err = {0};
	int64_t unproved;

	if (!identify_caller(app, worker, rq, &who, &unproved)) {
		http_defer(rp);
		return;
	}
	i = capacity_request_new(REQUEST_SUBMIT, &who, rq, rp);
	i->token_id = unproved;
	i->admits = admits;
	sound = api_agent(rq, i, &err) && api_wait(rq, &i->until_ns, &err) &&
	        json_parse("body", rq->body, rq->body_len, &i->doc, &err) &&
	        decision_body_read(i->doc, i->tenant[0] != '\0' ? i->tenant : NULL, time_wall_ns(), &i->body, &err);
	/* a worker checks the token before an error is shown, and only a worker can look up the workspace of a workload */
	if (!worker && (!sound || i->body.workspace[0] == '\0')) {
		http_defer(rp);
		return;
	}
	if (!sound || (i->body.workspace[0] == '\0' && !place_by_workload(worker, i, dry, &err))) {
		reply_problem(rp, rq, &err);
		return;
	}
	fill_ask(i);
	if (dry)
		dry_runs_put(app->dry_runs, take(i));
	else
		decider_put(app->decider, take(i));
}

void
handle_decision_ask(void *app, void *worker, const struct http_request *rq, struct http_reply *rp)
{
	const char *dry_run = http_query(rq, "dry_run");

	ask(app, worker, rq, rp, false, dry_run && strcmp(dry_run, "0") != 0);
}

void
handle_admit(void *app, void *worker, const struct http_request *rq, struct http_reply *rp)
{
	ask(app, worker, rq, rp, true, false);
}

bool
api_decision_find(struct worker *w, const struct http_request *rq, size_t n, struct capacity_request *i,
                  struct err *err)
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
	/* of another tenant, two different tenants, or not a name */
	if (!decision_id_sound(i->id) || (tenant && (!text_is_clean(tenant) || (own && strcmp(own, tenant) != 0))))
		return err_set(err, ERR_MISSING, "there is no decision or lease \"%.*s\"", (int)(n < 128 ? n : 128),
		               rq->tail);
	return store_decision_find(w->db, own ? own : tenant, i->id, i->key, i->of_tenant, err);
}

void
handle_decision_get(void *app_, void *worker, const struct http_request *rq, struct http_reply *rp)
{
	struct worker *w = worker;
	owned(capacity_request) struct capacity_request *i = capacity_request_new(REQUEST_WATCH, &w->who, rq, rp);
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
	owned(capacity_request) struct capacity_request *i = capacity_request_new(REQUEST_EVENT, &w->who, rq, rp);
	struct err err = {0};

	i->word = "cancel";
	if (!api_agent(rq, i, &err) || !api_decision_find(w, rq, strlen(rq->tail), i, &err)) {
		reply_problem(rp, rq, &err);
		return;
	}
	decider_put(app->decider, take(i));
}

/* The present places of waiting requests: the rows have those of the time of the decision. */
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

/* Waiting requests are listed with their present place. */
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

/* ---- agents and adoption ---- */

static bool
read_agent(const struct http_request *rq, struct capacity_request *i, struct err *err)
{
	static const char *const fields[] = {"cluster", NULL};
	const char *cluster = NULL;

	if (!api_body(rq, fields, &i->doc, err) || !json_get_str(i->doc, "cluster", &cluster, err))
		return false;
	if (cluster[0] == '\0' || strlen(cluster) >= sizeof(i->agent))
		return err_set(err, ERR_INVALID, "cluster: it is a name of 1 to %zu bytes", sizeof(i->agent) - 1);
	memcpy(i->agent, cluster, strlen(cluster) + 1);
	return true;
}

void
handle_agent_lead(void *app_, void *worker, const struct http_request *rq, struct http_reply *rp)
{
	struct app *app = app_;
	struct worker *w = worker;
	owned(capacity_request) struct capacity_request *i = capacity_request_new(REQUEST_LEAD, &w->who, rq, rp);
	struct err err = {0};

	if (!read_agent(rq, i, &err)) {
		reply_problem(rp, rq, &err);
		return;
	}
	decider_put(app->decider, take(i));
}

void
handle_adopt(void *app_, void *worker, const struct http_request *rq, struct http_reply *rp)
{
	struct app *app = app_;
	struct worker *w = worker;
	owned(capacity_request) struct capacity_request *i = capacity_request_new(REQUEST_SUBMIT, &w->who, rq, rp);
	struct err err = {0};

	i->adopts = true;
	if (!api_agent(rq, i, &err) || !json_parse("body", rq->body, rq->body_len, &i->doc, &err) ||
	    !json_texts_clean(i->doc, &err) || !decision_adoption_read(i->doc, time_wall_ns(), &i->body, &err) ||
	    (i->body.workspace[0] == '\0' && !place_by_workload(w, i, false, &err))) {
		reply_problem(rp, rq, &err);
		return;
	}
	fill_ask(i);
	decider_put(app->decider, take(i));
}

static bool
read_adoption(const struct http_request *rq, struct capacity_request *i, struct err *err)
{
	static const char *const fields[] = {"cluster", "complete", NULL};
	in_place(buf) struct buf event = {.max = QUOTA_EVENT_MAX_BYTES};
	const json_t *complete;

	if (!api_body(rq, fields, &i->doc, err) || !json_get_str(i->doc, "cluster", &i->cluster, err))
		return false;
	complete = json_object_get(i->doc, "complete");
	if (!json_is_boolean(complete))
		return err_set(err, ERR_INVALID, "complete: it is true or false");
	buf_str(&event, "{\"adoption\":{\"cluster\":");
	json_write_string(i->cluster, &event);
	buf_printf(&event, ",\"complete\":%s}}", json_is_true(complete) ? "true" : "false");
	i->event = mem_strdup(buf_text(&event));
	return true;
}

void
handle_adoption_put(void *app_, void *worker, const struct http_request *rq, struct http_reply *rp)
{
	struct app *app = app_;
	struct worker *w = worker;
	owned(capacity_request) struct capacity_request *i = capacity_request_new(REQUEST_ADOPTION, &w->who, rq, rp);
	struct err err = {0};

	if (!api_agent(rq, i, &err) || !read_adoption(rq, i, &err)) {
		reply_problem(rp, rq, &err);
		return;
	}
	decider_put(app->decider, take(i));
}

void
handle_adoption_list(void *app_, void *worker, const struct http_request *rq, struct http_reply *rp)
{
	struct app *app = app_;
	struct quota_log *log = decider_log(app->decider);
	const struct quota_book *b = quota_log_borrow(log);
	bool any = false;

	(void)worker;
	buf_str(&rp->body, "{\"adoptions\":[");
	for (size_t i = 0; b && i < quota_book_cluster_count(b); i++) {
		const struct quota_adoption *a = quota_adoption_of(quota_book_state(b), (int32_t)i);

		if (a && any)
			buf_char(&rp->body, ',');
		if (a)
			reply_adoption(b, a, &rp->body);
		any |= a != NULL;
	}
	buf_str(&rp->body, "]}\n");
	rp->content_type = "application/json";
	quota_log_give_back(log);
	if (b)
		return;
	buf_clear(&rp->body);
	http_problem(rp, rq, 503, NULL, "the quota book was not read yet");
	rp->retry_after_s = 1;
}

/* ---- leases ---- */

#define GPUS_MAX 100000u
#define SMALL_WORKLOADS (2u * LIMIT_WORKLOADS * LIMIT_WORKLOAD)

/* {"nodes":[{"node","gpus":[UUID...]}]} as the parts of a confirm event. */
static bool
write_parts(const json_t *nodes, struct buf *out, struct err *err)
{
	const json_t *n, *gpu;
	size_t i, k;

	if (!json_is_array(nodes))
		return err_set(err, ERR_INVALID, "nodes: it is a list");
	buf_str(out, ",\"parts\":[");
	json_array_foreach(nodes, i, n)
	{
		const char *name = json_string_value(json_object_get(n, "node"));
		const json_t *gpus = json_object_get(n, "gpus");

		if (!name || !json_is_array(gpus) || json_array_size(gpus) > GPUS_MAX)
			return err_set(err, ERR_INVALID, "nodes: each has a node and its gpus, a list of UUIDs");
		json_array_foreach(gpus, k, gpu)
		{
			if (!json_is_string(gpu))
				return err_set(err, ERR_INVALID, "nodes: a GPU is named by its UUID");
			buf_str(out, out->data[out->len - 1] == '[' ? "{\"node\":" : ",{\"node\":");
			json_write_string(name, out);
			buf_str(out, ",\"gpu\":");
			json_write_string(json_string_value(gpu), out);
			buf_str(out, ",\"count\":1}");
		}
	}
	buf_char(out, ']');
	return true;
}

static bool
read_confirm(const struct http_request *rq, struct capacity_request *i, struct err *err)
{
	static const char *const fields[] = {"nodes", "workload", NULL};
	in_place(buf) struct buf event = {.max = QUOTA_EVENT_MAX_BYTES};
	const json_t *nodes;

	if (rq->body_len == 0)
		return true;
	if (!api_body(rq, fields, &i->doc, err) || !decision_workload_read(i->doc, &i->workload, err))
		return false;
	nodes = json_object_get(i->doc, "nodes");
	if (!nodes)
		return true;
	buf_str(&event, "{\"confirm\":{\"id\":");
	json_write_string(i->key, &event);
	if (!write_parts(nodes, &event, err))
		return false;
	buf_str(&event, "}}");
	if (!buf_ok(&event, "the confirmation", err))
		return false;
	i->event = mem_strdup(buf_text(&event));
	return true;
}

/* {"lost": true}: a scheduler's word that the node is dead. A tenant could free its limit by it while its work goes on. */
static bool
read_release(const struct worker *w, const struct http_request *rq, struct capacity_request *i, struct err *err)
{
	static const char *const fields[] = {"lost", NULL};
	in_place(buf) struct buf event = {.max = QUOTA_EVENT_MAX_BYTES};
	const json_t *lost;

	if (rq->body_len == 0)
		return true;
	if (!api_body(rq, fields, &i->doc, err))
		return false;
	lost = json_object_get(i->doc, "lost");
	if (lost && !json_is_boolean(lost))
		return err_set(err, ERR_INVALID, "lost: it is true or false");
	if (!json_is_true(lost))
		return true;
	if (w->who.role != ROLE_ADMIN && w->who.role != ROLE_SCHEDULER)
		return err_set(err, ERR_DENIED, "lost: only the roles scheduler and admin say that a node is dead");
	buf_str(&event, "{\"release\":{\"id\":");
	json_write_string(i->key, &event);
	buf_str(&event, ",\"lost\":true}}");
	if (!buf_ok(&event, "the release", err))
		return false;
	i->event = mem_strdup(buf_text(&event));
	return true;
}

/* ID/WORD or TENANT/ID/WORD */
static bool
read_lease_path(struct worker *w, const struct http_request *rq, struct capacity_request *i, struct err *err)
{
	static const struct {
		const char *word;
		bool of_scheduler; /* tenants may not */
	} words[] = {{"confirm", false}, {"heartbeat", false}, {"release", false}, {"drain", false}, {"renew", true}};
	const char *slash = strrchr(rq->tail, '/');

	for (size_t k = 0; slash && k < ARRAY_LEN(words); k++) {
		if (strcmp(slash + 1, words[k].word) != 0)
			continue;
		if (words[k].of_scheduler && (w->who.role & ROLES_TENANT) != 0)
			return err_set(err, ERR_DENIED, "the role %s may not %s a lease: schedulers and operators do",
			               role_name(w->who.role), words[k].word);
		i->word = words[k].word;
	}
	if (!i->word)
		return err_set(err, ERR_MISSING,
		               "there is nothing at \"%.64s\": it is ID/confirm, heartbeat, release, drain or renew",
		               rq->tail);
	return api_decision_find(w, rq, (size_t)(slash - rq->tail), i, err);
}

void
handle_lease_event(void *app_, void *worker, const struct http_request *rq, struct http_reply *rp)
{
	struct app *app = app_;
	struct worker *w = worker;
	owned(capacity_request) struct capacity_request *i = capacity_request_new(REQUEST_EVENT, &w->who, rq, rp);
	struct err err = {0};

	if (!api_agent(rq, i, &err) || !read_lease_path(w, rq, i, &err) ||
	    (strcmp(i->word, "confirm") == 0 && !read_confirm(rq, i, &err)) ||
	    (strcmp(i->word, "release") == 0 && !read_release(w, rq, i, &err))) {
		reply_problem(rp, rq, &err);
		return;
	}
	decider_put(app->decider, take(i));
}

/* ID/workloads or TENANT/ID/workloads */
static bool
read_workloads(struct worker *w, const struct http_request *rq, struct capacity_request *i, struct err *err)
{
	static const char *const fields[] = {"workloads", NULL};
	const char *slash = strrchr(rq->tail, '/');

	if (!slash || strcmp(slash, "/workloads") != 0)
		return err_set(err, ERR_MISSING, "there is nothing at \"%.64s\": it is ID/workloads", rq->tail);
	buf_init(&i->body.workloads, SMALL_WORKLOADS);
	if (!api_body(rq, fields, &i->doc, err) || !decision_workloads_read(i->doc, &i->body.workloads, err))
		return false;
	if (i->body.workloads.len == 0)
		return err_set(err, ERR_INVALID, "workloads: missing; it is a list, which may be empty");
	i->word = "workloads";
	i->workload.list = buf_text(&i->body.workloads);
	return api_decision_find(w, rq, (size_t)(slash - rq->tail), i, err);
}

void
handle_lease_workloads(void *app_, void *worker, const struct http_request *rq, struct http_reply *rp)
{
	struct app *app = app_;
	struct worker *w = worker;
	owned(capacity_request) struct capacity_request *i = capacity_request_new(REQUEST_EVENT, &w->who, rq, rp);
	struct err err = {0};

	if (!api_agent(rq, i, &err) || !read_workloads(w, rq, i, &err)) {
		reply_problem(rp, rq, &err);
		return;
	}
	decider_put(app->decider, take(i));
}

/* ---- reclaims ---- */

void
handle_reclaims(void *app_, void *worker, const struct http_request *rq, struct http_reply *rp)
{
	struct app *app = app_;
	struct worker *w = worker;
	owned(capacity_request) struct capacity_request *i = capacity_request_new(REQUEST_RECLAIMS, &w->who, rq, rp);
	const char *tenant = NULL;
	struct err err = {0};

	if (!api_tenant(w, rq, &tenant, rp))
		return;
	if (tenant && strlen(tenant) >= sizeof(i->tenant))
		tenant = "-"; /* no tenant has this name */
	if (tenant) {
		memcpy(i->tenant, tenant, strlen(tenant) + 1);
		memcpy(i->of_tenant, i->tenant, sizeof(i->of_tenant));
	}
	if (!api_wait(rq, &i->until_ns, &err) || !api_query_i64(rq, "after", INT64_MAX, &i->after, &err)) {
		reply_problem(rp, rq, &err);
		return;
	}
	decider_put(app->decider, take(i));
}

/* ID/ack or ID/enforce */
static bool
read_reclaim_path(struct worker *w, const struct http_request *rq, struct capacity_request *i, struct err *err)
{
	const char *slash = strchr(rq->tail, '/');
	char number[24] = "", state[16];
	int64_t id;

	if (slash && (size_t)(slash - rq->tail) < sizeof(number))
		memcpy(number, rq->tail, (size_t)(slash - rq->tail));
	if (slash && strcmp(slash, "/ack") == 0)
		i->word = "drain";
	else if (slash && strcmp(slash, "/enforce") == 0)
		i->word = "enforce";
	if (!i->word || !text_to_i64(number, &id) || id < 1)
		return err_set(err, ERR_MISSING, "there is nothing at \"%.64s\": it is ID/ack or ID/enforce", rq->tail);
	if (!store_reclaim_lease(w->db, id, i->tenant[0] != '\0' ? i->tenant : NULL, i->key, i->of_tenant, state, err))
		return false;
	memcpy(i->id, decision_key_id(i->key), strnlen(decision_key_id(i->key), sizeof(i->id) - 1));
	if (strcmp(state, "cancelled") == 0)
		return err_set(err, ERR_CONFLICT, "reclaim %" PRId64 " was cancelled: the lease may stay", id);
	return true;
}

void
handle_reclaim_event(void *app_, void *worker, const struct http_request *rq, struct http_reply *rp)
{
	struct app *app = app_;
	struct worker *w = worker;
	owned(capacity_request) struct capacity_request *i = capacity_request_new(REQUEST_EVENT, &w->who, rq, rp);
	struct err err = {0};

	if (!api_agent(rq, i, &err) || !read_reclaim_path(w, rq, i, &err)) {
		reply_problem(rp, rq, &err);
		return;
	}
	decider_put(app->decider, take(i));
}
