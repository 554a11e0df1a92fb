/* aggregator/api/api_events.c - POST /v1/events: CloudEvents of other meters, each with its own result; and their sums. */
#include <string.h>
#include <strings.h>

#include "aggregator/api/api.h"
#include "aggregator/store/access/access.h"
#include "aggregator/store/ingest/ingest.h"
#include "common/base/log.h"
#include "common/base/time.h"

#define SINGLE "application/cloudevents+json"
#define BATCH "application/cloudevents-batch+json"
#define LIMIT_RETRY_S 3600 /* a month ends, or somebody raises the limit: not soon */

/* False with 415 written when it is neither of the two. Parameters such as charset decide nothing: JSON is UTF-8. */
static bool
read_mode(const struct http_request *rq, struct http_reply *rp, bool *ret_batch)
{
	const char *type = http_header(rq, "Content-Type");
	size_t n = type != NULL ? strcspn(type, "; ") : 0;

	if (n == strlen(SINGLE) && strncasecmp(type, SINGLE, n) == 0)
		*ret_batch = false;
	else if (n == strlen(BATCH) && strncasecmp(type, BATCH, n) == 0)
		*ret_batch = true;
	else {
		http_problem(rp, rq, 415, "Content-Type", "an event is " SINGLE ", a list of them " BATCH);
		return false;
	}
	return true;
}

static int
status_of(enum err_kind kind)
{
	switch (kind) {
	case ERR_DENIED: return 403;
	case ERR_MISSING: return 404;
	case ERR_CONFLICT: return 409;
	case ERR_LIMIT: return 429;
	default: return 400;
	}
}

static bool
is_bad(const struct event *e)
{
	return e->fate == EVENT_CONFLICT || e->fate == EVENT_REFUSED;
}

static void
write_event(const struct event *e, size_t index, struct buf *out)
{
	buf_printf(out, "%s{\"index\":%zu,\"id\":", index > 0 ? ",\n" : "", index);
	json_write_string(e->id, out);
	buf_str(out, ",\"source\":");
	json_write_string(e->source, out);
	buf_printf(out, ",\"status\":\"%s\"", event_fate_name(e->fate));
	if (is_bad(e)) {
		buf_printf(out, ",\"problem\":{\"status\":%d,", status_of(e->kind));
		if (e->field[0] != '\0') {
			buf_str(out, "\"field\":");
			json_write_string(e->field, out);
			buf_char(out, ',');
		}
		buf_str(out, "\"detail\":");
		json_write_string(e->detail, out);
		buf_char(out, '}');
	}
	buf_char(out, '}');
}

/* One wrong event is the request's problem; of several, each has its own, and 207 says that there are some. */
static void
reply_events(const struct events *all, bool batch, const long long counts[EVENT_FATES], const struct http_request *rq,
             struct http_reply *rp)
{
	const struct event *first = all->items;

	if (!batch && is_bad(first)) {
		http_problem(rp, rq, status_of(first->kind), first->field[0] != '\0' ? first->field : NULL, "%s",
		             first->detail);
		if (first->kind == ERR_LIMIT)
			rp->retry_after_s = LIMIT_RETRY_S;
		return;
	}
	rp->status = counts[EVENT_CONFLICT] + counts[EVENT_REFUSED] > 0 ? 207 : 200;
	rp->content_type = "application/json";
	buf_printf(&rp->body, "{\"accepted\":%lld,\"duplicates\":%lld,\"conflicts\":%lld,\"refused\":%lld,\"events\":[",
	           counts[EVENT_ACCEPTED], counts[EVENT_DUPLICATE], counts[EVENT_CONFLICT], counts[EVENT_REFUSED]);
	for (size_t i = 0; i < all->count; i++)
		write_event(&all->items[i], i, &rp->body);
	buf_str(&rp->body, "]}\n");
}

void
handle_events(void *app_, void *worker, const struct http_request *rq, struct http_reply *rp)
{
	struct app *app = app_;
	struct worker *w = worker;
	const char *tenant = (w->who.role & ROLES_TENANT) != 0 ? w->who.tenant : NULL;
	const struct event_rules rules = {.now_ns = rq->arrived_wall_ns,
	                                  .age_ns = app->options->event_age_ns,
	                                  .ahead_ns = app->options->event_ahead_ns,
	                                  .count_max = (size_t)app->options->event_batch,
	                                  .tenant = tenant};
	owned(events) struct events *all = NULL;
	long long counts[EVENT_FATES] = {0};
	struct err err = {0};
	bool batch = false;

	if (!read_mode(rq, rp, &batch))
		return;
	if (!events_parse(rq->body, rq->body_len, batch, &rules, &all, &err) ||
	    !store_events_add(w->db, all,
	                      &(struct event_sender){w->who.token_id, tenant, app->options->tenant_skus,
	                                             w->who.role == ROLE_METER, rules.now_ns},
	                      &err)) {
		if (err.kind == ERR_UNKNOWN)
			err_set(&err, ERR_RETRY,
			        "whether they were stored is not known: the database did not answer; send them again, each counts once");
		http_problem_err(rp, rq, &err);
		return;
	}
	for (size_t i = 0; i < all->count; i++)
		counts[all->items[i].fate]++;
	for (size_t i = 0; i < EVENT_FATES; i++)
		atomic_fetch_add(&app->counters.events[i], counts[i]);
	if (counts[EVENT_CONFLICT] > 0)
		log_event(LOG_WARN, "events came again with other content", LS("by", w->who.name),
		          LI("events", counts[EVENT_CONFLICT]));
	reply_events(all, batch, counts, rq, rp);
}

void
handle_events_summary(void *app, void *worker, const struct http_request *rq, struct http_reply *rp)
{
	static const char *const meters[] = {
		"storage", "egress", "inference-requests", "inference-input-tokens", "inference-output-tokens",
		"support", NULL};
	static const char *const groups[] = {"sku", "end_user", NULL};
	struct worker *w = worker;
	struct meter_query q = {0};
	const char *by = NULL;
	char now[API_PERIOD_SIZE];
	struct err err = {0};

	(void)app;
	if (!api_tenant(w, rq, &q.tenant, rp))
		return;
	rp->content_type = "application/json";
	if (!api_query(rq, "meter", meters, &q.meter, &err) || !api_query(rq, "by", groups, &by, &err) ||
	    !api_period(w, rq, "period", now, &q.period, &err)) {
		http_problem_err(rp, rq, &err);
		return;
	}
	q.by_end_user = by != NULL && strcmp(by, "end_user") == 0;
	if (!store_meters_json(w->db, &q, &rp->body, &err))
		http_problem_err(rp, rq, &err);
}
