/* aggregator/api/refunds.c - hours of jobs that ended by a failed GPU or node: GET /v1/refunds. */
#include <stdio.h>
#include <string.h>

#include "aggregator/api/app.h"
#include "aggregator/store/refund.h"
#include "common/time.h"

#define MONTH_MAX 40

void
handle_refunds(void *app, void *worker, const struct http_request *rq, struct http_reply *rp)
{
	static const char *const formats[] = {"json", "csv", NULL};
	struct worker *w = worker;
	struct refund_query q = {0};
	const char *format = NULL;
	char now[MONTH_MAX], subject[MONTH_MAX];
	struct err err = {0};

	if (!api_tenant(w, rq, &q.tenant, rp))
		return;
	if (!api_query(rq, "month", NULL, &q.period, &err) || !api_query(rq, "format", formats, &format, &err) ||
	    ((q.period == NULL || strcmp(q.period, "current") == 0) &&
	     (!store_period_now(w->db, time_wall_ns(), now, &err) || (q.period = now) == NULL))) {
		api_problem(rp, rq, &err);
		return;
	}
	q.csv = format != NULL && strcmp(format, "csv") == 0;
	rp->content_type = q.csv ? "text/csv; charset=utf-8; header=present" : "application/json";
	if (!store_refunds(w->db, &q, &rp->body, &err)) {
		api_problem(rp, rq, &err);
		return;
	}
	snprintf(subject, sizeof(subject), "refunds %.7s", q.period);
	api_note_read(app, w, q.tenant, "report.read", subject);
	if (q.csv)
		snprintf(rp->filename, sizeof(rp->filename), "tollgate-%.7s-refunds.csv", q.period);
}
