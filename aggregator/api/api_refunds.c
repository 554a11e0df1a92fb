/* aggregator/api/api_refunds.c - hours of jobs that ended by a failed GPU or node: GET /v1/refunds. */
#include <stdio.h>
#include <string.h>

#include "aggregator/api/api.h"
#include "aggregator/store/billing/refund_store.h"
#include "common/base/time.h"

void
handle_refunds(void *app, void *worker, const struct http_request *rq, struct http_reply *rp)
{
	static const char *const formats[] = {"json", "csv", NULL};
	struct worker *w = worker;
	struct refund_query q = {0};
	const char *format = NULL;
	char now[API_PERIOD_SIZE], subject[API_PERIOD_SIZE];
	struct err err = {0};

	if (!api_tenant(w, rq, &q.tenant, rp))
		return;
	if (!api_query(rq, "format", formats, &format, &err) || !api_period(w, rq, "month", now, &q.period, &err)) {
		reply_problem(rp, rq, &err);
		return;
	}
	q.csv = format != NULL && strcmp(format, "csv") == 0;
	rp->content_type = q.csv ? "text/csv; charset=utf-8; header=present" : "application/json";
	if (!store_refunds(w->db, &q, &rp->body, &err)) {
		reply_problem(rp, rq, &err);
		return;
	}
	snprintf(subject, sizeof(subject), "refunds %.7s", q.period);
	api_note_read(app, w, q.tenant, "report.read", subject);
	if (q.csv)
		snprintf(rp->filename, sizeof(rp->filename), "tollgate-%.7s-refunds.csv", q.period);
}
