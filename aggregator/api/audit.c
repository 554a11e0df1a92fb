/* aggregator/api/audit.c - GET /v1/audit: who changed what, when. */
#include "aggregator/api/app.h"
#include "common/time.h"

static bool
query_time(const struct http_request *rq, const char *name, int64_t preset_ns, int64_t *ret_ns, struct err *err)
{
	const char *text = http_query(rq, name);

	*ret_ns = preset_ns;
	return text == NULL || time_parse(text, ret_ns, err) || err_prefix(err, "%s", name);
}

void
handle_audit(void *app, void *worker, const struct http_request *rq, struct http_reply *rp)
{
	struct worker *w = worker;
	struct audit_query q = {0};
	struct err err = {0};

	(void)app;
	if (!api_tenant(w, rq, &q.tenant, rp))
		return;
	rp->content_type = "application/json";
	if (!api_query(rq, "actor", NULL, &q.actor, &err) || !api_query(rq, "action", NULL, &q.action, &err) ||
	    !api_query(rq, "subject", NULL, &q.subject, &err) || !query_time(rq, "from", INT64_MIN, &q.from_ns, &err) ||
	    !query_time(rq, "to", INT64_MAX, &q.to_ns, &err) || !api_page(rq, &q.page, &err) ||
	    !store_audit_json(w->db, &q, &rp->body, &err))
		http_problem_err(rp, rq, &err);
}
