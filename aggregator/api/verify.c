/* aggregator/api/verify.c - the ledger against its evidence. */
#include "aggregator/api/app.h"
#include "common/time.h"

/* A node at a time keeps an answer short: the command line asks so, and a worker is held for one node only. */
void
handle_verify(void *app, void *worker, const struct http_request *rq, struct http_reply *rp)
{
	struct worker *w = worker;
	struct verify_query q = {0};
	struct err err = {0};

	(void)app;
	rp->content_type = "application/json";
	if (!api_query(rq, "node", NULL, &q.node, &err) ||
	    !api_range(w->db, rq, time_wall_ns(), &q.from_ns, &q.to_ns, &err) ||
	    !store_verify_json(w->db, &q, &rp->body, &err))
		http_problem_err(rp, rq, &err);
}
