/* aggregator/api/api_join.c - one-time join tokens, and the join itself. */
#include "aggregator/api/api.h"
#include "aggregator/store/access/access.h"
#include "common/base/log.h"
#include "common/base/time.h"

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

/* A join token that does not work is 401, one for another node 403: the same kind of error, told apart by what it is about. */
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
