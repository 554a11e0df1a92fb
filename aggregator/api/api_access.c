/* aggregator/api/api_access.c - /v1/tokens, /v1/join-tokens, /v1/join, /v1/whoami. */
#include <string.h>

#include "aggregator/api/api.h"
#include "aggregator/store/access/access.h"
#include "common/base/log.h"
#include "common/base/time.h"

/* ---- tokens ---- */

#define ADMIN_MOST_NS (3650 * NS_PER_DAY)
#define TENANT_PRESET_NS (90 * NS_PER_DAY)
#define TENANT_MOST_NS (366 * NS_PER_DAY)

static bool
read_request(const struct http_request *rq, bool by_tenant, json_t **ret_doc, struct token_request *ret,
             struct err *err)
{
	static const char *const fields[] = {"role", "tenant", "node", "sources", "description", "expires", NULL};
	const char *role = NULL;

	return api_body(rq, fields, ret_doc, err) && json_get_str(*ret_doc, "role", &role, err) &&
	       role_parse(role, &ret->role, err) && api_field(*ret_doc, "tenant", &ret->tenant, err) &&
	       api_field(*ret_doc, "node", &ret->node, err) && api_field(*ret_doc, "sources", &ret->sources, err) &&
	       api_field(*ret_doc, "description", &ret->description, err) &&
	       api_expiry(*ret_doc, time_wall_ns(), by_tenant ? TENANT_PRESET_NS : 0,
	                  by_tenant ? TENANT_MOST_NS : ADMIN_MOST_NS, &ret->expires_ns, err);
}

/* Rules 2 and 3. */
static bool
within_tenant(const struct worker *w, struct token_request *t, struct err *err)
{
	if ((t->role & ROLES_TENANT) == 0)
		return err_set(
			err, ERR_DENIED,
			"role: a tenant-admin makes tokens of the roles tenant-admin, developer and viewer, not %s",
			role_name(t->role));
	if (t->tenant == NULL)
		t->tenant = w->who.tenant;
	return strcmp(t->tenant, w->who.tenant) == 0 ||
	       err_set(err, ERR_MISSING, "tenant: there is no tenant \"%.64s\"", t->tenant);
}

void
handle_token_create(void *app, void *worker, const struct http_request *rq, struct http_reply *rp)
{
	struct worker *w = worker;
	bool by_tenant = (w->who.role & ROLES_TENANT) != 0;
	owned(json) json_t *doc = NULL;
	struct token_request t = {0};
	struct token_made made;
	struct err err = {0};

	(void)app;
	if (!read_request(rq, by_tenant, &doc, &t, &err) || (by_tenant && !within_tenant(w, &t, &err)) ||
	    !store_token_create(w->db, &t, w->who.name, &made, &err)) {
		http_problem_err(rp, rq, &err);
		return;
	}
	log_event(LOG_INFO, "token made", LS("by", w->who.name), LS("token", made.name));
	rp->status = 201;
	rp->content_type = "application/json";
	buf_printf(&rp->body, "{\"id\":%" PRId64 ",\"role\":\"%s\",\"name\":", made.id, role_name(t.role));
	json_write_string(made.name, &rp->body);
	buf_str(&rp->body, ",\"expires\":");
	reply_write_time(&rp->body, t.expires_ns);
	buf_printf(&rp->body, ",\"token\":\"%s\"}\n", made.token);
}

void
handle_tokens(void *app, void *worker, const struct http_request *rq, struct http_reply *rp)
{
	struct worker *w = worker;
	static const char *const states[] = {"active", "expired", "revoked", NULL};
	struct token_query q = {0};
	uint32_t role;
	struct err err = {0};

	(void)app;
	if (!api_tenant(w, rq, &q.tenant, rp))
		return;
	rp->content_type = "application/json";
	if (!api_query(rq, "role", NULL, &q.role, &err) || (q.role && !role_parse(q.role, &role, &err)) ||
	    !api_query(rq, "node", NULL, &q.node, &err) || !api_query(rq, "status", states, &q.status, &err) ||
	    !api_page(rq, &q.page, &err) || !store_tokens_json(w->db, &q, &rp->body, &err))
		http_problem_err(rp, rq, &err);
}

void
handle_whoami(void *app, void *worker, const struct http_request *rq, struct http_reply *rp)
{
	struct worker *w = worker;
	struct err err = {0};

	(void)app;
	rp->content_type = "application/json";
	if (!store_token_json(w->db, w->who.token_id, NULL, &rp->body, &err))
		http_problem_err(rp, rq, &err);
}

void
handle_token_revoke(void *app, void *worker, const struct http_request *rq, struct http_reply *rp)
{
	struct worker *w = worker;
	const char *tenant = NULL;
	struct err err = {0};
	int64_t id = 0;

	(void)app;
	if (!api_tenant(w, rq, &tenant, rp))
		return;
	rp->content_type = "application/json";
	if (!api_id(rq, &id, &err) || !store_token_revoke(w->db, id, tenant, w->who.name, &rp->body, &err)) {
		http_problem_err(rp, rq, &err);
		return;
	}
	log_event(LOG_INFO, "token revoked", LS("by", w->who.name), LI("token", id));
}

/* ---- join tokens ---- */

#define JOIN_PRESET_NS NS_PER_HOUR
#define JOIN_MOST_NS (30 * NS_PER_DAY)

void
handle_join_token_create(void *app, void *worker, const struct http_request *rq, struct http_reply *rp)
{
	static const char *const fields[] = {"node", "description", "expires", NULL};
	struct worker *w = worker;
	owned(json) json_t *doc = NULL;
	struct join_token_request j = {0};
	struct token_made made;
	struct err err = {0};

	(void)app;
	if (!api_body(rq, fields, &doc, &err) || !api_field(doc, "node", &j.node, &err) ||
	    !api_field(doc, "description", &j.description, &err) ||
	    !api_expiry(doc, time_wall_ns(), JOIN_PRESET_NS, JOIN_MOST_NS, &j.expires_ns, &err) ||
	    !store_join_token_create(w->db, &j, w->who.name, &made, &err)) {
		http_problem_err(rp, rq, &err);
		return;
	}
	log_event(LOG_INFO, "join token made", LS("by", w->who.name), LS("token", made.name));
	rp->status = 201;
	rp->content_type = "application/json";
	buf_printf(&rp->body, "{\"id\":%" PRId64 ",\"node\":", made.id);
	json_write_string(j.node, &rp->body);
	buf_str(&rp->body, ",\"expires\":");
	reply_write_time(&rp->body, j.expires_ns);
	buf_printf(&rp->body, ",\"join_token\":\"%s\"}\n", made.token);
}

void
handle_join_tokens(void *app, void *worker, const struct http_request *rq, struct http_reply *rp)
{
	static const char *const states[] = {"active", "used", "expired", "revoked", NULL};
	struct worker *w = worker;
	const char *status = NULL;
	struct page page;
	struct err err = {0};

	(void)app;
	rp->content_type = "application/json";
	if (!api_query(rq, "status", states, &status, &err) || !api_page(rq, &page, &err) ||
	    !store_join_tokens_json(w->db, status, &page, &rp->body, &err))
		http_problem_err(rp, rq, &err);
}

void
handle_join_token_revoke(void *app, void *worker, const struct http_request *rq, struct http_reply *rp)
{
	struct worker *w = worker;
	struct err err = {0};
	int64_t id = 0;

	(void)app;
	rp->content_type = "application/json";
	if (!api_id(rq, &id, &err) || !store_join_token_revoke(w->db, id, w->who.name, &rp->body, &err)) {
		http_problem_err(rp, rq, &err);
		return;
	}
	log_event(LOG_INFO, "join token revoked", LS("by", w->who.name), LI("token", id));
}

/* A join token that does not work is 401, one for another node 403: the same kind of error, distinguished by its field. */
static void
refuse(const struct http_request *rq, struct http_reply *rp, bool known, const struct err *err)
{
	if (err->kind == ERR_DENIED && !known)
		http_problem(rp, rq, 401, "Authorization", "%s", err->text);
	else if (err->kind == ERR_UNKNOWN)
		http_problem(
			rp, rq, 503, NULL,
			"whether the join token was used is not known: the database did not answer; an operator sees it in GET /v1/join-tokens");
	else
		http_problem_err(rp, rq, err);
}

void
handle_join(void *app, void *worker, const struct http_request *rq, struct http_reply *rp)
{
	static const char *const fields[] = {"node", NULL};
	struct worker *w = worker;
	owned(json) json_t *doc = NULL;
	const char *node = NULL;
	struct token_made made;
	struct err err = {0};
	bool known = false;

	(void)app;
	/* the token is judged before a word of the body is */
	if (!store_join_check(w->db, request_token(rq), &err)) {
		refuse(rq, rp, false, &err);
		return;
	}
	if (!api_body(rq, fields, &doc, &err) || !json_get_str(doc, "node", &node, &err) ||
	    !store_join(w->db, request_token(rq), node, &made, &known, &err)) {
		refuse(rq, rp, known, &err);
		return;
	}
	log_event(LOG_INFO, "node joined", LS("node", node), LS("token", made.name));
	rp->status = 201;
	rp->content_type = "application/json";
	buf_printf(&rp->body, "{\"id\":%" PRId64 ",\"role\":\"node\",\"node\":", made.id);
	json_write_string(node, &rp->body);
	buf_printf(&rp->body, ",\"token\":\"%s\"}\n", made.token);
}
