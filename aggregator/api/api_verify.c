/* aggregator/api/api_verify.c - the ledger against its evidence. */
#include <string.h>

#include "aggregator/api/api.h"
#include "aggregator/store/verify/verify.h"
#include "common/base/time.h"

static bool
run(struct db *db, struct verify_query *q, const char *part, struct buf *out, struct err *err)
{
	for (enum verify_part p = VERIFY_ALL; part != NULL && p < VERIFY_PARTS; p++)
		if (strcmp(verify_part_names[p], part) == 0)
			q->part = p;
	return store_verify_json(db, q, out, err);
}

/* A node or a day at a time keeps an answer short: the command line asks so, and a worker is held for one of them only. */
void
handle_verify(void *app, void *worker, const struct http_request *rq, struct http_reply *rp)
{
	struct worker *w = worker;
	struct verify_query q = {0};
	const char *part = NULL;
	struct err err = {0};

	(void)app;
	rp->content_type = "application/json";
	if (!api_query(rq, "node", NULL, &q.node, &err) || !api_query(rq, "part", verify_part_names, &part, &err) ||
	    !api_range(w->db, rq, time_wall_ns(), &q.from_ns, &q.to_ns, &err) || !run(w->db, &q, part, &rp->body, &err))
		http_problem_err(rp, rq, &err);
}
