/* aggregator/api/api_tokens.c - tokens: made, listed, shown to their holders, revoked.
 *
 * Who may make which, in order:
 *  1. an admin makes any
 *  2. a tenant-admin makes tokens of its own tenant only: another tenant is one that does not exist
 *  3. and with tenant roles only, none above its own; they end, sooner or later */
#include <string.h>

#include "aggregator/api/api.h"
#include "aggregator/store/access/access.h"
#include "common/base/log.h"
#include "common/base/time.h"

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
