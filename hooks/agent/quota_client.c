/* hooks/agent/quota_client.c - the calls of the aggregator that the agent makes. */
#include "hooks/agent/quota_client.h"

#include <stdio.h>
#include <string.h>

#include "common/conf/json.h"
#include "common/base/hash.h"
#include "common/base/time.h"

#define PAGE 200 /* rows of a list in one reply */
#define REPLY_MAX (4u << 20)
#define BODY_MAX (16u << 10)
#define PATH_SIZE 512

struct quota_client {
	struct httpc *http;
	char *cluster, *quota_cluster; /* Slurm's name; the policy's, NULL: the ledger's own */
	const struct gpu_models *models;
	struct httpc_reply reply;
	struct buf body;
};

/* ---- models ---- */

bool
gpu_models_parse(const char *text, struct gpu_models *ret, struct err *err)
{
	struct gpu_models m = {0};

	for (const char *at = text; *at;) {
		size_t n = strcspn(at, ","), type = strcspn(at, "=,");

		if (type == 0 || at[type] != '=' || type >= GPU_TYPE_SIZE || n - type - 1 == 0 ||
		    n - type - 1 >= GPU_TYPE_SIZE) {
			mem_free(m.at);
			return err_set(err, ERR_INVALID, "\"%.*s\" is not TYPE=MODEL", (int)(n > 80 ? 80 : n), at);
		}
		array_room_by_count(m.at, m.count);
		m.at[m.count] = (struct gpu_model){0};
		memcpy(m.at[m.count].type, at, type);
		memcpy(m.at[m.count].model, at + type + 1, n - type - 1);
		m.count++;
		at += n + (at[n] == ',');
	}
	*ret = m;
	return true;
}

void
gpu_models_fini(struct gpu_models *m)
{
	mem_free(m->at);
}

static const char *
model_of(const struct gpu_models *m, const char *type)
{
	for (size_t i = 0; i < m->count; i++)
		if (strcmp(m->at[i].type, type) == 0)
			return m->at[i].model;
	return NULL;
}

/* ---- calls ---- */

bool
quota_client_new(const struct httpc_options *http, const char *cluster, const char *quota_cluster,
                 const struct gpu_models *models, struct quota_client **ret, struct err *err)
{
	owned(quota_client) struct quota_client *c = mem_alloc(sizeof(*c));

	buf_init(&c->reply.body, REPLY_MAX);
	buf_init(&c->body, BODY_MAX);
	c->cluster = mem_strdup(cluster);
	c->quota_cluster = mem_strdup(quota_cluster);
	c->models = models;
	if (!httpc_new(http, &c->http, err))
		return false;
	*ret = take(c);
	return true;
}

void
quota_client_free(struct quota_client *c)
{
	if (!c)
		return;
	httpc_free(c->http);
	buf_fini(&c->reply.body);
	buf_fini(&c->body);
	mem_free(c->cluster);
	mem_free(c->quota_cluster);
	mem_free(c);
}

void
quota_client_abort(struct quota_client *c)
{
	httpc_abort(c->http);
}

/* Any status below 500 but 408 and 429 is an answer. */
static bool
call(struct quota_client *c, const char *method, const char *path, const struct buf *body, struct err *err)
{
	if (!httpc_call(c->http, method, path, body ? "application/json" : NULL, body ? buf_text(body) : NULL,
	                body ? body->len : 0, &c->reply, err))
		return false;
	if (c->reply.status >= 500 || c->reply.status == 429 || c->reply.status == 408 || c->reply.status == 401 ||
	    c->reply.status == 403)
		return httpc_problem(&c->reply, path, err);
	return true;
}

static bool
read_reply(struct quota_client *c, json_t **ret, struct err *err)
{
	return json_parse("reply", buf_text(&c->reply.body), c->reply.body.len, ret, err);
}

static const char *
member(const json_t *obj, const char *name)
{
	const char *text = json_string_value(json_object_get(obj, name));

	return text ? text : "";
}

/* ---- asking ---- */

static void
write_text(struct buf *out, const char *name, const char *value)
{
	buf_printf(out, ",\"%s\":", name);
	json_write_string(value, out);
}

static void
write_ask(struct quota_client *c, const struct job *j)
{
	const char *model = model_of(c->models, j->ask.type);
	char id[REQUEST_ID_SIZE];
	struct buf *b = &c->body;

	job_request_id(j, c->cluster, id);
	buf_clear(b);
	buf_str(b, "{\"request_id\":");
	json_write_string(id, b);
	if (c->quota_cluster)
		write_text(b, "cluster", c->quota_cluster);
	if (gpu_type_is_mig(j->ask.type)) {
		write_text(b, "profile", j->ask.type);
		buf_printf(b, ",\"count\":%" PRId64, j->ask.gpus);
	} else {
		buf_printf(b, ",\"gpus\":%" PRId64, j->ask.gpus);
		if (!model && j->ask.type[0] != '\0')
			model = j->ask.type;
	}
	if (model)
		write_text(b, "gpu_model", model);
	if (j->ask.per_node > 0)
		buf_printf(b, ",\"per_node\":%" PRId64, j->ask.per_node);
	buf_printf(b, ",\"preemptible\":%s", job_is_preemptible(j) ? "true" : "false");
	if (j->time_limit_s > 0)
		buf_printf(b, ",\"expected_duration\":\"%" PRId64 "s\"", j->time_limit_s);
	buf_str(b, ",\"workload\":{\"user\":");
	json_write_string(j->user, b);
	if (j->account[0] != '\0')
		write_text(b, "slurm_account", j->account);
	if (j->uid >= 0)
		buf_printf(b, ",\"uid\":%" PRId64, j->uid);
	if (j->array_task < 0)
		buf_printf(b, ",\"slurm_job\":\"%" PRId64 "\"", j->id);
	buf_str(b, "}}");
}

/* The rule that a request waits for, as the word of its mark. */
static void
read_category(const json_t *row, char out[CATEGORY_SIZE])
{
	const char *decision = member(row, "decision");

	text_fit(out, CATEGORY_SIZE, strcmp(decision, "reclaim") == 0 ? "reclaim" : member(row, "rule"));
	if (out[0] == '\0')
		text_fit(out, CATEGORY_SIZE, "queue");
}

static void
read_decision(const json_t *doc, struct answer *ret)
{
	const char *status = member(doc, "status");

	*ret = (struct answer){.kind = ANSWER_ENDED};
	text_fit(ret->tenant, sizeof(ret->tenant), member(doc, "tenant"));
	text_fit(ret->text, sizeof(ret->text), member(doc, "summary"));
	read_category(doc, ret->category);
	if (strcmp(status, "waiting") == 0)
		ret->kind = ANSWER_WAITING;
	else if (strcmp(status, "admitted") == 0 || strcmp(status, "confirmed") == 0 || strcmp(status, "suspect") == 0)
		ret->kind = ANSWER_ADMITTED;
	else if (strcmp(status, "rejected") == 0)
		ret->kind = ANSWER_REJECTED;
}

static void
read_dry_run(const json_t *doc, struct answer *ret)
{
	const json_t *verdict = json_object_get(doc, "verdict");
	const char *decision = member(verdict, "decision");

	*ret = (struct answer){.kind = ANSWER_WAITING};
	text_fit(ret->text, sizeof(ret->text), member(verdict, "summary"));
	read_category(verdict, ret->category);
	if (strcmp(decision, "reject") == 0)
		ret->kind = ANSWER_REJECTED;
	else if (strcmp(decision, "admit") == 0 || strcmp(decision, "borrow") == 0)
		ret->kind = ANSWER_ADMITTED;
}

/* The detail of a problem is a sentence for people. */
static void
read_problem(struct quota_client *c, enum answer_kind kind, struct answer *ret)
{
	owned(json) json_t *doc = NULL;

	*ret = (struct answer){.kind = kind};
	if (read_reply(c, &doc, NULL))
		text_fit(ret->text, sizeof(ret->text), member(doc, "detail"));
}

bool
quota_client_ask(struct quota_client *c, const struct job *j, bool dry_run, struct answer *ret, struct err *err)
{
	owned(json) json_t *doc = NULL;

	write_ask(c, j);
	if (!buf_ok(&c->body, "the request", err) ||
	    !call(c, "POST", dry_run ? "/v1/decisions?dry_run=1" : "/v1/decisions", &c->body, err))
		return false;
	switch (c->reply.status) {
	case 404: read_problem(c, ANSWER_NOBODY, ret); return true;
	case 400:
	case 422: read_problem(c, ANSWER_REJECTED, ret); return true;
	case 409: read_problem(c, ANSWER_ENDED, ret); return true;
	default: break;
	}
	if (c->reply.status != 200)
		return httpc_problem(&c->reply, "decision", err);
	if (!read_reply(c, &doc, err))
		return false;
	if (dry_run)
		read_dry_run(doc, ret);
	else
		read_decision(doc, ret);
	return true;
}

/* ---- requests that exist ---- */

static void
path_of(char out[PATH_SIZE], const char *kind, const struct request *r, const char *word)
{
	snprintf(out, PATH_SIZE, "/v1/%s/%s/%s%s", kind, r->tenant, r->id, word);
}

bool
quota_client_explain(struct quota_client *c, const struct request *r, struct answer *ret, struct err *err)
{
	owned(json) json_t *doc = NULL;
	char path[PATH_SIZE];

	path_of(path, "decisions", r, "");
	if (!call(c, "GET", path, NULL, err))
		return false;
	if (c->reply.status != 200)
		return httpc_problem(&c->reply, "decision", err);
	if (!read_reply(c, &doc, err))
		return false;
	read_decision(doc, ret);
	return true;
}

/* The change is done, or was done before, or there is nothing any more to change: 404 and 409 are looked at again when the list is read. */
static bool
change(struct quota_client *c, const char *method, const char *path, const struct buf *body, struct err *err)
{
	return call(c, method, path, body, err) && (c->reply.status < 300 || c->reply.status == 404 ||
	                                            c->reply.status == 409 || httpc_problem(&c->reply, path, err));
}

bool
quota_client_confirm(struct quota_client *c, const struct request *r, const struct job *j, struct err *err)
{
	char path[PATH_SIZE];

	path_of(path, "leases", r, "/confirm");
	buf_clear(&c->body);
	buf_printf(&c->body, "{\"workload\":{\"slurm_job\":\"%" PRId64 "\"}}", j->id);
	return change(c, "POST", path, &c->body, err);
}

bool
quota_client_release(struct quota_client *c, const struct request *r, struct err *err)
{
	char path[PATH_SIZE];

	path_of(path, "leases", r, "/release");
	return change(c, "POST", path, NULL, err);
}

bool
quota_client_cancel(struct quota_client *c, const struct request *r, struct err *err)
{
	char path[PATH_SIZE];

	path_of(path, "decisions", r, "");
	return change(c, "DELETE", path, NULL, err);
}

bool
quota_client_ack(struct quota_client *c, const struct request *r, struct err *err)
{
	char path[PATH_SIZE];

	snprintf(path, sizeof(path), "/v1/reclaims/%" PRId64 "/ack", r->order);
	return change(c, "POST", path, NULL, err);
}

/* ---- lists ---- */

static void
add_row(struct quota_client *c, const json_t *row, struct request_list *into)
{
	struct request r = {0};
	const char *id = member(row, "request_id"), *workspace = member(row, "workspace"),
		   *status = member(row, "status");
	size_t n = strcspn(workspace, "/");

	if (strlen(id) >= sizeof(r.id) || n >= sizeof(r.tenant) || !request_id_parse(id, c->cluster, &r.of))
		return;
	text_fit(r.id, sizeof(r.id), id);
	memcpy(r.tenant, workspace, n);
	r.state = strcmp(status, "waiting") == 0    ? REQUEST_WAITING
	          : strcmp(status, "admitted") == 0 ? REQUEST_ADMITTED
	                                            : REQUEST_CONFIRMED;
	r.released = json_is_string(json_object_get(row, "released_at"));
	read_category(row, r.category);
	array_room(into->at, into->count, into->cap);
	into->at[into->count++] = r;
}

/* One of the two lists, page by page. */
static bool
list(struct quota_client *c, const char *what, const char *query, struct request_list *into, struct err *err)
{
	int64_t before = 0;
	char path[PATH_SIZE];

	do {
		owned(json) json_t *doc = NULL;
		const json_t *rows;

		snprintf(path, sizeof(path), "/v1/%s?limit=%d%s", what, PAGE, query);
		if (before > 0)
			snprintf(path + strlen(path), sizeof(path) - strlen(path), "&before=%" PRId64, before);
		if (!call(c, "GET", path, NULL, err))
			return false;
		if (c->reply.status != 200)
			return httpc_problem(&c->reply, path, err);
		if (!read_reply(c, &doc, err))
			return false;
		rows = json_object_get(doc, what);
		for (size_t i = 0; i < json_array_size(rows); i++)
			add_row(c, json_array_get(rows, i), into);
		before = json_integer_value(json_object_get(doc, "next"));
	} while (before > 0);
	return true;
}

static void
add_order(const json_t *row, const struct hash *by_id, struct request_list *into)
{
	const char *id = member(row, "lease"), *workspace = member(row, "workspace");
	size_t n = strcspn(workspace, "/"), slot;
	uint64_t key = hash_text(HASH_START, id);

	for (size_t at = hash_first(by_id, key, &slot); at != HASH_NONE; at = hash_next(by_id, key, &slot)) {
		struct request *r = &into->at[at];

		if (strcmp(r->id, id) != 0 || strlen(r->tenant) != n || strncmp(r->tenant, workspace, n) != 0)
			continue;
		r->order = json_integer_value(json_object_get(row, "id"));
		r->order_acked = json_is_string(json_object_get(row, "acked_at"));
		r->due_in_ns = json_integer_value(json_object_get(row, "due_in_seconds")) * NS_PER_S;
	}
}

bool
quota_client_list(struct quota_client *c, struct request_list *ret, struct err *err)
{
	in_place(request_list) struct request_list all = {0};
	in_place(hash) struct hash by_id = {0};
	owned(json) json_t *doc = NULL;
	const json_t *reclaims;

	/* In this order nothing is in both lists. A request that is admitted between them is in neither: its job asks again, and gets the same answer. */
	if (!list(c, "leases", "", &all, err) || !list(c, "decisions", "&status=waiting", &all, err) ||
	    !call(c, "GET", "/v1/reclaims", NULL, err))
		return false;
	if (c->reply.status != 200)
		return httpc_problem(&c->reply, "reclaims", err);
	if (!read_reply(c, &doc, err))
		return false;
	for (size_t i = 0; i < all.count; i++)
		hash_add(&by_id, hash_text(HASH_START, all.at[i].id), i);
	reclaims = json_object_get(doc, "reclaims");
	for (size_t i = 0; i < json_array_size(reclaims); i++)
		add_order(json_array_get(reclaims, i), &by_id, &all);
	*ret = all;
	all = (struct request_list){0};
	return true;
}
