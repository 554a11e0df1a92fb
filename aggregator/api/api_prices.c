/* aggregator/api/api_prices.c - POST /v1/prices/preview: what a month would have cost with other prices. */
#include <string.h>

#include "aggregator/api/api.h"
#include "aggregator/store/billing/report_store.h"
#include "common/base/time.h"

void
handle_price_preview(void *app, void *worker, const struct http_request *rq, struct http_reply *rp)
{
	struct worker *w = worker;
	struct price_request request = {.name = "prices", .text = rq->body, .len = rq->body_len};
	char now[API_PERIOD_SIZE], name[API_DOCUMENT_NAME_MAX];
	struct err err = {0};

	(void)app;
	if (!api_tenant(w, rq, &request.tenant, rp))
		return;
	request.name = api_document_name(rq, "prices", name);
	rp->content_type = "application/json";
	if (!api_period(w, rq, "period", now, &request.period, &err) ||
	    !store_price_preview(w->db, &request, &rp->body, &err))
		http_problem_err(rp, rq, &err);
}
