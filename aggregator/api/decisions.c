/* aggregator/api/decisions.c - /v1/decisions: capacity is asked for, shown, waited for, and no longer wanted. */
#include <string.h>

#include "aggregator/api/dry_run.h"
#include "aggregator/api/token_line.h"
#include "common/text.h"
#include "common/time.h"

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

/* The verdict's own members but the first two, which are the row's. */
static void
verdict_members(const char *verdict, struct buf *out)
{
	const char *from = strstr(verdict, ",\"borrowed_gpus\"");
	size_t n = from ? strlen(from) : 0;

	while (n > 0 && from[n - 1] != '}')
		n--;
	if (n > 1)
		buf_add(out, from, n - 1);
}

/* What a reader is told of a verdict's victims. Ids and names have no characters that JSON must escape. */
struct reason {
	const char *key, *key_end;    /* of the lease, as the engine knows it */
	const char *workspace;        /* with what follows it */
	const char *why, *rest, *end; /* rest: of the lease itself, for whoever may know whose it is */
};

/* The one that begins here; false: there is none more. */
static bool
next_reason(const char **at, struct reason *ret)
{
	static const char id[] = "{\"id\":\"", workspace[] = ",\"workspace\":\"", why[] = "\"why\":";
	const char *begin = **at == ',' ? *at + 1 : *at;

	if (strncmp(begin, id, strlen(id)) != 0)
		return false;
	ret->key = begin + strlen(id);
	ret->key_end = strchr(ret->key, '"');
	ret->workspace = strstr(begin, workspace);
	ret->why = strstr(begin, why);
	ret->rest = strstr(begin, ",\"priority\":");
	ret->end = strchr(begin, '}');
	if (!ret->key_end || !ret->workspace || !ret->why || !ret->rest || !ret->end)
		return false;
	ret->workspace += strlen(workspace);
	*at = ret->end + 1;
	return true;
}

static bool
is_shown(const struct reason *r, const char *tenant)
{
	size_t n = strlen(tenant);

	return n == 0 || (strncmp(r->workspace, tenant, n) == 0 && r->workspace[n] == '/');
}

/* The request_id of a key. */
static void
write_id(const struct reason *r, struct buf *out)
{
	const char *slash = memchr(r->key, '/', (size_t)(r->key_end - r->key)), *from = slash ? slash + 1 : r->key;

	buf_char(out, '"');
	buf_add(out, from, (size_t)(r->key_end - from));
	buf_char(out, '"');
}

static void
write_victims(const char *at, const char *tenant, struct buf *out)
{
	const char *comma = "";
	struct reason r;

	while (next_reason(&at, &r)) {
		if (!is_shown(&r, tenant))
			continue;
		buf_str(out, comma);
		write_id(&r, out);
		comma = ",";
	}
}

static void
write_reasons(const char *at, const char *tenant, struct buf *out)
{
	const char *comma = "";
	struct reason r;

	while (next_reason(&at, &r)) {
		buf_str(out, comma);
		comma = ",";
		buf_str(out, "{\"id\":");
		if (is_shown(&r, tenant)) {
			write_id(&r, out);
			buf_add(out, r.key_end + 1, (size_t)(r.end - r.key_end));
		} else {
			buf_str(out, "null,\"workspace\":null,");
			buf_add(out, r.why, (size_t)(r.rest - r.why));
			buf_char(out, '}');
		}
	}
}

void
decision_verdict(const char *verdict, const char *tenant, struct buf *out)
{
	static const char id_key[] = "{\"id\":\"", victims_key[] = "\"victims\":[", reasons_key[] = "\"reasons\":[";
	const char *victims = strstr(verdict, victims_key), *reasons = strstr(verdict, reasons_key), *id, *slash;

	if (strncmp(verdict, id_key, strlen(id_key)) != 0 || !victims || !reasons) {
		buf_str(out, verdict);
		return;
	}
	id = verdict + strlen(id_key);
	slash = memchr(id, '/', strcspn(id, "\""));
	id = slash ? slash + 1 : id;
	victims += strlen(victims_key);
	reasons += strlen(reasons_key);
	buf_str(out, id_key);
	buf_add(out, id, (size_t)(victims - id));
	write_victims(reasons, tenant, out);
	victims = strchr(victims, ']');
	buf_add(out, victims, (size_t)(reasons - victims));
	write_reasons(reasons, tenant, out);
	buf_str(out, strchr(reasons, ']'));
}

void
decision_json(const struct decision_view *v, const char *explained, const char *warning, const char *tenant,
              struct buf *out)
{
	in_place(buf) struct buf verdict = {0};
	size_t n = strlen(v->body);

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
	buf_init(&verdict, HTTP_REPLY_MAX);
	if (explained || v->verdict)
		decision_verdict(explained ? explained : v->verdict, tenant, &verdict);
	verdict_members(buf_text(&verdict), out);
	buf_str(out, "}\n");
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

void
handle_decision_ask(void *app_, void *worker, const struct http_request *rq, struct http_reply *rp)
{
	owned(desk_item) struct desk_item *i = NULL;
	struct app *app = app_;
	const char *dry_run = http_query(rq, "dry_run");
	bool dry = dry_run && strcmp(dry_run, "0") != 0;
	struct identity_row who;
	struct err err = {0};
	int64_t unproved;

	if (!asker(app, worker, rq, &who, &unproved)) {
		http_defer(rp);
		return;
	}
	i = desk_item_new(DESK_SUBMIT, &who, rq, rp);
	i->token_id = unproved;
	if (!api_wait(rq, &i->until_ns, &err) || !json_parse("body", rq->body, rq->body_len, &i->doc, &err) ||
	    !decision_body_read(i->doc, i->tenant[0] != '\0' ? i->tenant : NULL, time_wall_ns(), &i->body, &err)) {
		if (unproved != 0)
			http_defer(rp); /* what is wrong is told to who has a token that holds */
		else
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

static void
list(struct worker *w, const struct http_request *rq, struct http_reply *rp, bool leases)
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
	    !store_decisions_json(w->db, &q, &rp->body, &err))
		api_problem(rp, rq, &err);
}

void
handle_decisions(void *app, void *worker, const struct http_request *rq, struct http_reply *rp)
{
	(void)app;
	list(worker, rq, rp, false);
}

void
handle_leases(void *app, void *worker, const struct http_request *rq, struct http_reply *rp)
{
	(void)app;
	list(worker, rq, rp, true);
}
