/* aggregator/api/api_sla.c - GET /v1/sla: what tenants and workspaces were promised, beside what was measured of it in a month. */
#include <string.h>

#include "aggregator/api/api.h"
#include "aggregator/store/billing/report_store.h"
#include "common/base/time.h"

void
handle_sla(void *app, void *worker, const struct http_request *rq, struct http_reply *rp)
{
	struct worker *w = worker;
	const char *tenant = NULL, *period = NULL;
	int64_t now_ns = time_wall_ns();
	char now[API_PERIOD_SIZE];
	struct err err = {0};

	(void)app;
	if (!api_tenant(w, rq, &tenant, rp))
		return;
	rp->content_type = "application/json";
	if (!api_period(w, rq, "period", now, &period, &err) ||
	    !store_sla_json(w->db, period, tenant, now_ns, &rp->body, &err))
		reply_problem(rp, rq, &err);
}
