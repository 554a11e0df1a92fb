/* aggregator/api/api_periods.c - /v1/periods: checks before closing a month, the close, and the recomputation of a closed month. */
#include <string.h>

#include "aggregator/api/api.h"
#include "aggregator/store/billing/period.h"
#include "common/base/log.h"
#include "common/base/text.h"
#include "common/base/time.h"

#define MONTH_LENGTH 7

/* YYYY-MM/VERB */
static bool
month_of(const struct http_request *rq, const char *verb, char ret_month[MONTH_LENGTH + 1], struct err *err)
{
	if (strnlen(rq->tail, MONTH_LENGTH + 1) <= MONTH_LENGTH || rq->tail[MONTH_LENGTH] != '/' ||
	    strcmp(rq->tail + MONTH_LENGTH + 1, verb) != 0)
		return err_set(err, ERR_MISSING, "there is nothing at \"%.64s\"; it is YYYY-MM/%s", rq->tail, verb);
	memcpy(ret_month, rq->tail, MONTH_LENGTH);
	ret_month[MONTH_LENGTH] = '\0';
	return true;
}

/* A request may lower the threshold, never raise it: that would avoid the reason. */
static bool
threshold(const struct http_request *rq, const char *name, int64_t *ppm, struct err *err)
{
	const char *text = http_query(rq, name);
	int64_t max = *ppm;

	if (text == NULL || (text_to_i64(text, ppm) && *ppm >= 0 && *ppm <= max))
		return true;
	return err_set(err, ERR_INVALID,
	               "%s: \"%.64s\" is not a number from 0 to %" PRId64
	               ", which is what the aggregator allows without a reason",
	               name, text, max);
}

static bool
thresholds_of(const struct aggregator_options *o, const struct http_request *rq, struct period_thresholds *ret,
              struct err *err)
{
	*ret = app_close_thresholds(o);
	return threshold(rq, "unknown_max", &ret->unknown_ppm, err) &&
	       threshold(rq, "unattributed_max", &ret->unattributed_ppm, err);
}

void
handle_period_check(void *app, void *worker, const struct http_request *rq, struct http_reply *rp)
{
	struct worker *w = worker;
	char month[MONTH_LENGTH + 1];
	struct period_thresholds t;
	struct period_checks c;
	struct err err = {0};

	rp->content_type = "application/json";
	if (month_of(rq, "close", month, &err)) {
		if (!store_close_json(w->db, month, &rp->body, &err))
			http_problem_err(rp, rq, &err);
		return;
	}
	if (month_of(rq, "recompute", month, &err)) {
		if (!store_period_recompute(w->db, month, &rp->body, &err)) {
			buf_clear(&rp->body);
			http_problem_err(rp, rq, &err);
		}
		return;
	}
	if (!month_of(rq, "check", month, &err) || !thresholds_of(((const struct app *)app)->options, rq, &t, &err) ||
	    !store_period_check(w->db, month, time_wall_ns(), &t, &c, &err)) {
		http_problem_err(rp, rq, &err);
		return;
	}
	period_checks_json(&c, month, &rp->body);
}

/* {"reason": TEXT}, or nothing. */
static bool
reason_of(const struct http_request *rq, json_t **ret_doc, const char **ret, struct err *err)
{
	static const char *const fields[] = {"reason", NULL};

	*ret = "";
	if (rq->body_len == 0)
		return true;
	if (!api_body(rq, fields, ret_doc, err))
		return false;
	if (json_object_size(*ret_doc) == 0)
		return true;
	return api_reason(*ret_doc, ret, err);
}

void
handle_period_close(void *app, void *worker, const struct http_request *rq, struct http_reply *rp)
{
	struct worker *w = worker;
	char month[MONTH_LENGTH + 1];
	const struct aggregator_options *o = ((const struct app *)app)->options;
	struct period_close close = {
		.month = month, .actor = w->who.name, .organisation = o->organisation, .provider = o->provider_name};
	owned(json) json_t *doc = NULL;
	struct err err = {0};

	rp->content_type = "application/json";
	if (!month_of(rq, "close", month, &err) || !reason_of(rq, &doc, &close.reason, &err) ||
	    !thresholds_of(o, rq, &close.thresholds, &err)) {
		http_problem_err(rp, rq, &err);
		return;
	}
	close.now_ns = time_wall_ns();
	if (!store_close_request(w->db, &close, &err) || !store_close_json(w->db, month, &rp->body, &err)) {
		buf_clear(&rp->body);
		http_problem_err(rp, rq, &err);
		return;
	}
	rp->status = 202;
	closer_wake(((struct app *)app)->closer);
	log_event(LOG_INFO, "a period is to be closed", LS("period", month), LS("by", w->who.name),
	          LS("reason", close.reason));
}

void
handle_period_cancel(void *app, void *worker, const struct http_request *rq, struct http_reply *rp)
{
	struct worker *w = worker;
	char month[MONTH_LENGTH + 1];
	struct err err = {0};

	(void)app;
	rp->content_type = "application/json";
	if (!month_of(rq, "close", month, &err) || !store_close_cancel(w->db, month, w->who.name, &err) ||
	    !store_close_json(w->db, month, &rp->body, &err)) {
		buf_clear(&rp->body);
		http_problem_err(rp, rq, &err);
	}
}
