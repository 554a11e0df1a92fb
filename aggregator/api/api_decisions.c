/* aggregator/api/api_decisions.c - /v1/decisions: capacity is asked for, shown, waited for, and no longer wanted. */
#include <string.h>

#include "aggregator/service/dry_run.h"
#include "aggregator/service/token_batcher.h"
#include "common/base/text.h"
#include "common/base/time.h"

#define WAIT_MOST_NS (5 * NS_PER_MIN)
#define ASK_INLINE_MAX 4096u /* a longer body is for a worker to read */

/* ---- the resource ---------------------------------------------------------------------------------------------------------------- */

static void
time_member(struct buf *out, const char *name, int64_t ns)
{
	buf_printf(out, ",\"%s\":", name);
	api_write_time(out, ns);
}

static void
text_member(struct buf *out, const char *name, const char *text)
{
	buf_printf(out, ",\"%s\":", name);
	json_write_string(text, out);
}

static void
lease_member(const struct decision_view *v, struct buf *out)
{
	if (v->admitted_ns == 0) {
		buf_str(out, ",\"lease\":null");
		return;
	}
	buf_str(out, ",\"lease\":{\"id\":");
	json_write_string(v->request_id, out);
	text_member(out, "state", v->status);
	time_member(out, "admitted_at", v->admitted_ns);
	time_member(out, "confirmed_at", v->confirmed_ns);
	time_member(out, "seen_at", v->seen_ns);
	time_member(out, "released_at", v->released_ns);
	time_member(out, "ended_at", v->ended_ns);
	text_member(out, "reclaim", v->reclaim[0] != '\0' ? v->reclaim : NULL);
	buf_char(out, '}');
}

static bool
may_know(const json_t *reason, const char *tenant)
{
	const char *workspace = json_string_value(json_object_get(reason, "workspace"));
	size_t n = strlen(tenant);

	return n == 0 || (workspace && strncmp(workspace, tenant, n) == 0 && workspace[n] == '/');
}

/* As quota_json_reply() writes a victim: leases by their request_id, and of others' leases only why they would go and how much they are. */
static json_t *
reply_reason(const json_t *reason, const char *tenant)
{
	const char *key = json_string_value(json_object_get(reason, "id"));
	json_t *to;

	if (may_know(reason, tenant)) {
		to = json_copy((json_t *)(uintptr_t)reason);
		json_object_set_new(to, "id", json_string(key ? decision_key_id(key) : ""));
		return to;
	}
	to = json_object();
	json_object_set_new(to, "id", json_null());
	json_object_set_new(to, "workspace", json_null());
	json_object_set(to, "why", json_object_get(reason, "why"));
	json_object_set(to, "gpus", json_object_get(reason, "gpus"));
	return to;
}

/* A verdict that was stored, read once: its members but the first two, which are the row's. */
static void
stored_members(json_t *doc, const char *tenant, struct buf *out)
{
	owned(json) json_t *victims = json_array(), *reasons = json_array();
	const json_t *stored_reasons;
	const char *name;
	json_t *value;

	stored_reasons = json_object_get(doc, "reasons");
	for (size_t i = 0; i < json_array_size(stored_reasons); i++) {
		json_t *to = reply_reason(json_array_get(stored_reasons, i), tenant);

		json_array_append_new(reasons, to);
		if (json_is_string(json_object_get(to, "id")))
			json_array_append(victims, json_object_get(to, "id"));
	}
	json_object_set(doc, "victims", victims);
	json_object_set(doc, "reasons", reasons);
	text_member(out, "summary", json_string_value(json_object_get(doc, "summary")));
	json_object_foreach(doc, name, value)
	{
		if (strcmp(name, "id") == 0 || strcmp(name, "decision") == 0 || strcmp(name, "summary") == 0)
			continue;
		buf_printf(out, ",\"%s\":", name);
		json_write(value, out);
	}
}

/* The row says where the verdict is, the log whose it is. */
static bool
is_verdict_of(const json_t *verdict, const char *key)
{
	const char *id = json_string_value(json_object_get(verdict, "id"));

	return id && strcmp(id, key) == 0;
}

bool
decision_json(const struct decision_view *v, const struct decision_told *told, const char *warning, const char *tenant,
              struct buf *out, struct err *err)
{
	owned(json) json_t *stored = NULL;
	size_t n = strlen(v->body);

	if (!told && v->verdict && !json_parse("the verdict", v->verdict, strlen(v->verdict), &stored, err)) {
		err->kind = ERR_FATAL;
		return err_prefix(err, "decision %s as it is stored", v->request_id);
	}
	if (stored && !is_verdict_of(stored, v->key))
		return err_set(
			err, ERR_FATAL,
			"decision %s as it is stored: at the place of its verdict the quota log has another text",
			v->request_id);
	buf_str(out, "{\"request_id\":");
	json_write_string(v->request_id, out);
	text_member(out, "tenant", v->tenant);
	text_member(out, "status", v->status);
	text_member(out, "decision", v->decision);
	text_member(out, "rule", v->rule);
	text_member(out, "asked_by", v->asked_by);
	time_member(out, "submitted_at", v->submitted_ns);
	time_member(out, "changed_at", v->changed_ns);
	time_member(out, "ended_at", v->ended_ns);
	text_member(out, "ended_why", v->ended_why[0] != '\0' ? v->ended_why : NULL);
	buf_printf(out, ",\"seq\":%" PRId64 ",\"request\":", v->changed_seq);
	buf_add(out, v->body, n > 0 && v->body[n - 1] == '\n' ? n - 1 : n);
	lease_member(v, out);
	buf_str(out, ",\"warnings\":[");
	if (warning)
		json_write_string(
			strcmp(warning, "place") == 0
				? "what it says it runs on is not free in its pool: its planned place stays counted"
				: warning,
			out);
	if (v->warn)
		buf_printf(out, "%s\"not enforced: the rules say %s\"", warning ? "," : "", v->would);
	buf_char(out, ']');
	if (told)
		quota_json_reply(&told->namer, told->verdict, &(struct quota_reader){.tenant = tenant}, out);
	else if (stored)
		stored_members(stored, tenant, out);
	buf_str(out, "}\n");
	return buf_ok(out, "the decision", err);
}

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
	const char *token = api_bearer(rq);

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
		api_problem(rp, rq, &err);
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
		api_problem(rp, rq, &err);
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
		api_problem(rp, rq, &err);
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
		api_problem(rp, rq, &err);
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
