/* aggregator/api/api_reclaims.c - /v1/reclaims: what leases were asked to give back, for whoever drains and enforces. */
#include <string.h>

#include "aggregator/api/api.h"
#include "aggregator/service/decider.h"
#include "common/base/text.h"

void
handle_reclaims(void *app_, void *worker, const struct http_request *rq, struct http_reply *rp)
{
	struct app *app = app_;
	struct worker *w = worker;
	owned(desk_item) struct desk_item *i = desk_item_new(DESK_RECLAIMS, &w->who, rq, rp);
	const char *tenant = NULL;
	struct err err = {0};

	if (!api_tenant(w, rq, &tenant, rp))
		return;
	if (tenant && strlen(tenant) >= sizeof(i->tenant))
		tenant = "-"; /* nobody's name */
	if (tenant) {
		memcpy(i->tenant, tenant, strlen(tenant) + 1);
		memcpy(i->of_tenant, i->tenant, sizeof(i->of_tenant));
	}
	if (!api_wait(rq, &i->until_ns, &err) || !api_query_i64(rq, "after", INT64_MAX, &i->after, &err)) {
		reply_problem(rp, rq, &err);
		return;
	}
	decider_put(app->decider, take(i));
}

/* ID/ack or ID/enforce */
static bool
read_path(struct worker *w, const struct http_request *rq, struct desk_item *i, struct err *err)
{
	const char *slash = strchr(rq->tail, '/');
	char number[24] = "", state[16];
	int64_t id;

	if (slash && (size_t)(slash - rq->tail) < sizeof(number))
		memcpy(number, rq->tail, (size_t)(slash - rq->tail));
	if (slash && strcmp(slash, "/ack") == 0)
		i->word = "drain";
	else if (slash && strcmp(slash, "/enforce") == 0)
		i->word = "enforce";
	if (!i->word || !text_to_i64(number, &id) || id < 1)
		return err_set(err, ERR_MISSING, "there is nothing at \"%.64s\": it is ID/ack or ID/enforce", rq->tail);
	if (!store_reclaim_lease(w->db, id, i->tenant[0] != '\0' ? i->tenant : NULL, i->key, i->of_tenant, state, err))
		return false;
	memcpy(i->id, decision_key_id(i->key), strnlen(decision_key_id(i->key), sizeof(i->id) - 1));
	if (strcmp(state, "cancelled") == 0)
		return err_set(err, ERR_CONFLICT, "reclaim %" PRId64 " was cancelled: the lease may stay", id);
	return true;
}

void
handle_reclaim_event(void *app_, void *worker, const struct http_request *rq, struct http_reply *rp)
{
	struct app *app = app_;
	struct worker *w = worker;
	owned(desk_item) struct desk_item *i = desk_item_new(DESK_EVENT, &w->who, rq, rp);
	struct err err = {0};

	if (!read_path(w, rq, i, &err)) {
		reply_problem(rp, rq, &err);
		return;
	}
	decider_put(app->decider, take(i));
}
