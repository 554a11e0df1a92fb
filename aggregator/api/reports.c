/* aggregator/api/reports.c - ranges of time, conservation and the month's chargeback. */
#include <stdio.h>
#include <string.h>

#include "aggregator/api/app.h"
#include "aggregator/core/report.h"
#include "common/time.h"

#define DAY_LENGTH 10 /* 2026-11-01 */

/* A moment in RFC 3339, or a day: its beginning in the billing zone. */
static bool
time_point(struct db *db, const struct http_request *rq, const char *name, int64_t preset_ns, int64_t *ret_ns,
           struct err *err)
{
	const char *text = http_query(rq, name);
	char moment[TIME_TEXT_SIZE];

	*ret_ns = preset_ns;
	if (text == NULL)
		return true;
	if (strlen(text) != DAY_LENGTH)
		return time_parse(text, ret_ns, err) || err_prefix(err, "%s", name);
	snprintf(moment, sizeof(moment), "%.10sT00:00:00Z", text);
	return (time_parse(moment, ret_ns, err) || err_prefix(err, "%s", name)) &&
	       store_day_start(db, text, ret_ns, err);
}

bool
api_range(struct db *db, const struct http_request *rq, int64_t now_ns, int64_t *ret_from_ns, int64_t *ret_to_ns,
          struct err *err)
{
	int64_t to_ns, from_ns;

	if (!time_point(db, rq, "to", now_ns, &to_ns, err) ||
	    !time_point(db, rq, "from", to_ns - NS_PER_DAY, &from_ns, err))
		return false;
	if (from_ns >= to_ns)
		return err_set(err, ERR_INVALID, "from: must be before to");
	*ret_from_ns = from_ns;
	*ret_to_ns = to_ns;
	return true;
}

void
handle_conservation(void *app, void *worker, const struct http_request *rq, struct http_reply *rp)
{
	struct worker *w = worker;
	int64_t from_ns, to_ns;
	struct err err = {0};

	(void)app;
	rp->content_type = "application/json";
	if (!api_range(w->db, rq, time_wall_ns(), &from_ns, &to_ns, &err) ||
	    !store_conservation_json(w->db, from_ns, to_ns, &rp->body, &err))
		http_problem_err(rp, rq, &err);
}

enum report_format { REPORT_NONE, REPORT_CSV, REPORT_JSON };

#define PERIOD_MAX 40

/* "2026-11.csv" is period and format; the period "current" is the one that now lies in. */
static enum report_format
report_name(const char *tail, char ret_period[PERIOD_MAX])
{
	const char *dot = strchr(tail, '.');

	if (dot == NULL || dot - tail >= PERIOD_MAX)
		return REPORT_NONE;
	memcpy(ret_period, tail, (size_t)(dot - tail));
	ret_period[dot - tail] = '\0';
	if (strcmp(dot, ".csv") == 0)
		return REPORT_CSV;
	return strcmp(dot, ".json") == 0 ? REPORT_JSON : REPORT_NONE;
}

static bool
report_body(struct db *db, char period[PERIOD_MAX], const char *tenant, enum report_format format, struct buf *out,
            struct err *err)
{
	owned(report_input) struct report_input *input = NULL;
	owned(rated) struct rated *rated = NULL;

	if (strcmp(period, "current") == 0 && !store_period_now(db, time_wall_ns(), period, err))
		return false;
	if (!store_report_load(db, period, tenant, &input, err) || !rating_run(&input->in, &rated, err))
		return false;
	return format == REPORT_CSV ? report_csv(&input->in, rated, out, err)
	                            : report_json(&input->in, rated, out, err);
}

void
handle_report(void *app, void *worker, const struct http_request *rq, struct http_reply *rp)
{
	struct worker *w = worker;
	const char *tenant = NULL;
	char period[PERIOD_MAX];
	enum report_format format = report_name(rq->tail, period);
	struct err err = {0};

	(void)app;
	if (format == REPORT_NONE) {
		http_problem(rp, rq, 404, NULL, "there is no report \"%.32s\"; ask for YYYY-MM.csv or YYYY-MM.json",
		             rq->tail);
		return;
	}
	if (!api_tenant(w, rq, &tenant, rp))
		return;
	if (!report_body(w->db, period, tenant, format, &rp->body, &err)) {
		http_problem_err(rp, rq, &err);
		return;
	}
	if (format == REPORT_JSON) {
		rp->content_type = "application/json";
		return;
	}
	rp->content_type = "text/csv; charset=utf-8; header=present";
	snprintf(rp->filename, sizeof(rp->filename), "tollgate-%s%s%.63s.csv", period, tenant != NULL ? "-" : "",
	         tenant != NULL ? tenant : "");
}
