/* aggregator/api/policy.c - the policy document, tokens and the plain lists. */
#include <string.h>

#include "aggregator/api/app.h"
#include "common/json.h"
#include "common/log.h"
#include "common/time.h"

#define DIFF_MAX (4u << 20)
#define DOCUMENT_NAME_MAX 128

/* The name that errors carry: the file the operator typed, told by the client. */
static const char *
document_name(const struct http_request *rq, char out[DOCUMENT_NAME_MAX])
{
	const char *name = http_query(rq, "name");
	size_t n = 0;

	if (name == NULL || name[0] == '\0')
		return "policy";
	for (; name[n] != '\0' && n < DOCUMENT_NAME_MAX - 1; n++)
		out[n] = name[n] < ' ' || name[n] == 0x7f ? '?' : name[n];
	out[n] = '\0';
	return out;
}

void
handle_policy_put(void *app, void *worker, const struct http_request *rq, struct http_reply *rp)
{
	struct worker *w = worker;
	const char *dry = http_query(rq, "dry_run");
	bool dry_run = dry != NULL && strcmp(dry, "0") != 0;
	struct policy_outcome outcome = {0};
	char name[DOCUMENT_NAME_MAX], when[TIME_TEXT_SIZE];
	in_place(buf) struct buf diff;
	struct err err = {0};

	(void)app;
	buf_init(&diff, DIFF_MAX);
	if (!store_policy_apply(w->db, document_name(rq, name), rq->body, rq->body_len, w->who.name, time_wall_ns(),
	                        dry_run, &outcome, &diff, &err)) {
		http_problem_err(rp, rq, &err);
		return;
	}
	if (!dry_run && outcome.changes > 0)
		log_event(LOG_INFO, "policy applied", LS("by", w->who.name), LI("version", outcome.version),
		          LI("changes", outcome.changes));
	rp->content_type = "application/json";
	buf_printf(&rp->body, "{\"dry_run\":%s,\"changes\":%zu,\"version\":%" PRId64 ",\"effective\":\"%s\",\"diff\":",
	           dry_run ? "true" : "false", outcome.changes, outcome.version,
	           time_format(outcome.effective_ns, when));
	json_write_string(buf_text(&diff), &rp->body);
	buf_str(&rp->body, "}\n");
}

void
handle_policy_get(void *app, void *worker, const struct http_request *rq, struct http_reply *rp)
{
	struct worker *w = worker;
	struct err err = {0};

	(void)app;
	rp->content_type = "application/yaml; charset=utf-8";
	if (!store_policy_get(w->db, &rp->body, &err))
		http_problem_err(rp, rq, &err);
}

static bool
optional_str(const json_t *obj, const char *field, const char **ret, struct err *err)
{
	*ret = NULL;
	return json_object_get(obj, field) == NULL || json_get_str(obj, field, ret, err);
}

static bool
token_request(const struct http_request *rq, json_t **ret_doc, uint32_t *ret_role, const char **ret_tenant,
              const char **ret_node, struct err *err)
{
	static const char *const fields[] = {"role", "tenant", "node", NULL};
	const char *role = NULL;

	return json_parse("body", rq->body, rq->body_len, ret_doc, err) && json_only_fields(*ret_doc, fields, err) &&
	       json_get_str(*ret_doc, "role", &role, err) && role_parse(role, ret_role, err) &&
	       optional_str(*ret_doc, "tenant", ret_tenant, err) && optional_str(*ret_doc, "node", ret_node, err);
}

void
handle_token_create(void *app, void *worker, const struct http_request *rq, struct http_reply *rp)
{
	struct worker *w = worker;
	owned(json) json_t *doc = NULL;
	const char *tenant = NULL, *node = NULL;
	uint32_t role = 0;
	char token[72];
	struct err err = {0};

	(void)app;
	if (!token_request(rq, &doc, &role, &tenant, &node, &err) ||
	    !store_token_create(w->db, role, tenant, node, w->who.name, token, &err)) {
		http_problem_err(rp, rq, &err);
		return;
	}
	rp->status = 201;
	rp->content_type = "application/json";
	buf_printf(&rp->body, "{\"role\":\"%s\",\"token\":\"%s\"}\n", role_name(role), token);
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
