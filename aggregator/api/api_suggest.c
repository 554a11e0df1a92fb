/* aggregator/api/api_suggest.c - GET /v1/policy/suggest: a draft of a policy from what was seen. And GET /v1/policy/progress: how far the last
 * change of rules has come. */
#include "aggregator/api/api.h"
#include "aggregator/store/policy/policy_store.h"
#include "common/base/time.h"

#define SEEN_PRESET_NS (30 * NS_PER_DAY)

void
handle_policy_suggest(void *app, void *worker, const struct http_request *rq, struct http_reply *rp)
{
	struct worker *w = worker;
	int64_t from_ns, to_ns, now_ns = time_wall_ns();
	struct err err = {0};

	(void)app;
	if (!api_range(w->db, rq, now_ns, &from_ns, &to_ns, &err)) {
		reply_problem(rp, rq, &err);
		return;
	}
	if (http_query(rq, "from") == NULL)
		from_ns = to_ns - SEEN_PRESET_NS;
	rp->content_type = "application/yaml; charset=utf-8";
	if (!store_policy_suggest(w->db, from_ns, to_ns, &rp->body, &err))
		reply_problem(rp, rq, &err);
}

void
handle_policy_progress(void *app, void *worker, const struct http_request *rq, struct http_reply *rp)
{
	struct worker *w = worker;
	struct err err = {0};

	(void)app;
	rp->content_type = "application/json";
	if (!store_reattribution_json(w->db, &rp->body, &err))
		http_problem_err(rp, rq, &err);
}
