/* aggregator/service/reply.c - replies that handlers and the deciding threads both write: problems, refused tokens, decisions. */
#include "aggregator/service/reply.h"

#include <string.h>
#include <strings.h>

#include "aggregator/service/token_batcher.h"
#include "aggregator/store/access/access.h"
#include "common/base/time.h"
#include "common/conf/json.h"

void
reply_problem(struct http_reply *rp, const struct http_request *rq, const struct err *err)
{
	size_t n = strspn(err->text, "abcdefghijklmnopqrstuvwxyz_");
	char field[64];

	if (err->kind != ERR_INVALID || n == 0 || n >= sizeof(field) || err->text[n] != ':') {
		http_problem_err(rp, rq, err);
		return;
	}
	memcpy(field, err->text, n);
	field[n] = '\0';
	http_problem(rp, rq, 400, field, "%s", err->text);
}

const char *
request_token(const struct http_request *rq)
{
	const char *header = http_header(rq, "Authorization");

	if (header == NULL || strncasecmp(header, "Bearer ", 7) != 0)
		return NULL;
	return header + 7;
}

void
reply_token_refused(struct app *app, const struct http_request *rq, struct http_reply *rp)
{
	token_batcher_forget(app->tokens, request_token(rq));
	http_problem(rp, rq, 401, "Authorization", "%s", STORE_TOKEN_REFUSED);
}

void
reply_write_time(struct buf *out, int64_t wall_ns)
{
	char text[TIME_TEXT_SIZE];

	if (wall_ns == 0)
		buf_str(out, "null");
	else
		buf_printf(out, "\"%s\"", time_format(wall_ns - wall_ns % NS_PER_S, text));
}

void
reply_adoption(const struct quota_book *b, const struct quota_adoption *a, struct buf *out)
{
	buf_str(out, "{\"cluster\":");
	json_write_string(quota_book_cluster_name(b, a->cluster), out);
	buf_printf(out, ",\"complete\":%s,\"switched_at\":", a->complete ? "true" : "false");
	reply_write_time(out, a->switched_ns);
	buf_char(out, '}');
}

/* ---- the resource ---------------------------------------------------------------------------------------------------------------- */

static void
time_member(struct buf *out, const char *name, int64_t ns)
{
	buf_printf(out, ",\"%s\":", name);
	reply_write_time(out, ns);
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
	buf_printf(out, ",\"workloads\":%s", v->workload.list ? v->workload.list : "[]");
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
reply_decision(const struct decision_view *v, const struct decision_told *told, const char *warning, const char *tenant,
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
	time_member(out, "adopted_at", v->adopted_ns);
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
