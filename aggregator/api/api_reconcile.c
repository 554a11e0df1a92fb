/* aggregator/api/api_reconcile.c - capacity at list price against what was billed: GET /v1/reconciliation. */
#include "aggregator/store/billing/reconcile_store.h"

#include <stdio.h>
#include <string.h>

#include "aggregator/api/api.h"
#include "common/base/time.h"

static bool
write_reconciliation(struct worker *w, const struct aggregator_options *o, const char *month, const char *format,
                     struct http_reply *rp, struct err *err)
{
	owned(reconciliation) struct reconciliation *r = NULL;
	char zone[64];
	const struct reconcile_page page = {.provider = o->provider_name,
	                                    .organisation = o->organisation,
	                                    .zone = zone};

	if (!store_reconcile(w->db, month, &r, zone, err))
		return false;
	if (strcmp(format, "html") == 0) {
		rp->content_type = "text/html; charset=utf-8";
		return reconcile_html(r, &page, &rp->body, err);
	}
	if (strcmp(format, "csv") == 0) {
		rp->content_type = "text/csv; charset=utf-8; header=present";
		snprintf(rp->filename, sizeof(rp->filename), "tollgate-%.7s-reconciliation.csv", r->period);
		return reconcile_csv(r, &rp->body, err);
	}
	rp->content_type = "application/json";
	return reconcile_json(r, &rp->body, err);
}

void
handle_reconciliation(void *app, void *worker, const struct http_request *rq, struct http_reply *rp)
{
	static const char *const formats[] = {"json", "csv", "html", NULL};
	const struct aggregator_options *o = ((const struct app *)app)->options;
	struct worker *w = worker;
	const char *month = NULL, *format = NULL;
	char now[API_PERIOD_SIZE], subject[API_PERIOD_SIZE];
	struct err err = {0};

	if (!api_query(rq, "format", formats, &format, &err) || !api_period(w, rq, "month", now, &month, &err) ||
	    !write_reconciliation(w, o, month, format != NULL ? format : "json", rp, &err)) {
		rp->filename[0] = '\0';
		reply_problem(rp, rq, &err);
		return;
	}
	snprintf(subject, sizeof(subject), "reconciliation %.7s", month);
	api_note_read(app, w, NULL, "report.read", subject);
}
