/* aggregator/api/api_finance.c - one-off charges and credits: asked for, agreed to, taken back, listed. */
#include <string.h>

#include "aggregator/api/api.h"
#include "aggregator/store/access/access.h"
#include "aggregator/store/billing/finance.h"
#include "common/base/log.h"
#include "common/base/money.h"
#include "common/base/text.h"
#include "common/base/time.h"

#define REFUND_ID 16 /* characters */

/* An invoice has no smaller amounts than its currency. */
static bool
amount_of(const char *text, const char *currency, char ret[DECIMAL_TEXT_SIZE], struct err *err)
{
	int exponent;
	int128 value;

	if (!currency_exponent(currency, &exponent, err))
		return err_prefix(err, "currency");
	if (!decimal_parse(text, exponent, &value, err))
		return err_prefix(err, "amount");
	if (value == 0 || value > pow10_i128(exponent + 15) || value < -pow10_i128(exponent + 15))
		return err_set(err, ERR_INVALID, "amount: it is 0, or beyond 10^15");
	decimal_format(value, exponent, exponent, ret);
	return true;
}

static bool
category_of(const json_t *doc, const char **ret, struct err *err)
{
	static const char *const categories[] = {"gpu",     "storage", "network", "inference",
	                                         "support", "energy",  "other"};

	if (!api_field(doc, "category", ret, err))
		return false;
	if (*ret == NULL)
		*ret = "other";
	for (size_t i = 0; i < ARRAY_LEN(categories); i++)
		if (strcmp(*ret, categories[i]) == 0)
			return true;
	return err_set(err, ERR_INVALID,
	               "category: \"%.40s\" is none of gpu, storage, network, inference, support, energy, other", *ret);
}

static bool
period_of(struct db *db, const json_t *doc, char now[API_PERIOD_SIZE], const char **ret, struct err *err)
{
	const char *said = NULL;

	if (!api_field(doc, "period", &said, err))
		return false;
	if (said != NULL && !text_is_clean(said))
		return err_set(err, ERR_INVALID, "period: it is not a month like 2026-11");
	return api_period_of(db, said, now, ret, err);
}

static bool
read_request(struct db *db, const json_t *doc, char amount[DECIMAL_TEXT_SIZE], char period[API_PERIOD_SIZE],
             struct adjustment_request *rq, struct err *err)
{
	const char *text = NULL;

	if (!json_get_str(doc, "tenant", &rq->tenant, err) || !api_field(doc, "workspace", &rq->workspace, err) ||
	    !json_get_str(doc, "amount", &text, err) || !json_get_str(doc, "currency", &rq->currency, err) ||
	    !amount_of(text, rq->currency, amount, err) || !category_of(doc, &rq->category, err) ||
	    !api_reason(doc, &rq->reason, err) || !period_of(db, doc, period, &rq->period, err) ||
	    !api_field(doc, "refund", &rq->refund, err))
		return false;
	rq->amount = amount;
	if (rq->refund != NULL &&
	    (strlen(rq->refund) != REFUND_ID || strspn(rq->refund, "0123456789abcdef") != REFUND_ID))
		return err_set(err, ERR_INVALID, "refund: it is the id of a row of GET /v1/refunds");
	if (rq->refund != NULL && amount[0] != '-')
		return err_set(err, ERR_INVALID, "amount: a refund is a credit, and negative");
	if (!text_is_clean(rq->tenant))
		return err_set(err, ERR_INVALID,
		               "tenant: it is not UTF-8 text without control or direction characters");
	if (rq->workspace != NULL && !text_is_clean(rq->workspace))
		return err_set(err, ERR_INVALID,
		               "workspace: it is not UTF-8 text without control or direction characters");
	return true;
}

void
handle_adjustment_add(void *app, void *worker, const struct http_request *rq, struct http_reply *rp)
{
	static const char *const fields[] = {"tenant",   "workspace", "period", "amount", "currency",
	                                     "category", "reason",    "refund", NULL};
	struct worker *w = worker;
	struct adjustment_request a = {.actor = w->who.name, .approved = w->who.role == ROLE_ADMIN};
	char amount[DECIMAL_TEXT_SIZE], period[API_PERIOD_SIZE];
	owned(json) json_t *doc = NULL;
	struct err err = {0};

	(void)app;
	rp->content_type = "application/json";
	if (!api_body(rq, fields, &doc, &err) || !read_request(w->db, doc, amount, period, &a, &err) ||
	    !store_adjustment_add(w->db, &a, &rp->body, &err)) {
		reply_problem(rp, rq, &err);
		return;
	}
	rp->status = 201;
	log_event(LOG_INFO, "one-off charge or credit entered", LS("by", a.actor), LS("tenant", a.tenant),
	          LS("period", a.period), LS("amount", a.amount), LS("currency", a.currency));
}

/* ID/approve or ID/reverse. */
static bool
decision_of(const struct http_request *rq, int64_t *ret_id, bool *ret_reverse, struct err *err)
{
	size_t n = strcspn(rq->tail, "/");
	char id[24];

	if (n < sizeof(id) && rq->tail[n] == '/') {
		const char *verb = rq->tail + n + 1;

		memcpy(id, rq->tail, n);
		id[n] = '\0';
		*ret_reverse = strcmp(verb, "reverse") == 0;
		if ((*ret_reverse || strcmp(verb, "approve") == 0) && text_to_i64(id, ret_id) && *ret_id > 0)
			return true;
	}
	return err_set(err, ERR_MISSING,
	               "a one-off charge or credit can be approved or reversed: POST .../ID/approve or "
	               ".../ID/reverse");
}

void
handle_adjustment_decide(void *app, void *worker, const struct http_request *rq, struct http_reply *rp)
{
	static const char *const fields[] = {"reason", "period", NULL};
	struct worker *w = worker;
	struct adjustment_decision d = {.actor = w->who.name, .admin = w->who.role == ROLE_ADMIN};
	char period[API_PERIOD_SIZE];
	owned(json) json_t *doc = NULL;
	bool reverse = false;
	struct err err = {0};

	(void)app;
	rp->content_type = "application/json";
	if (!decision_of(rq, &d.id, &reverse, &err) || !api_body(rq, fields, &doc, &err) ||
	    !api_reason(doc, &d.reason, &err) ||
	    (json_object_get(doc, "period") != NULL && !period_of(w->db, doc, period, &d.period, &err)) ||
	    !(reverse ? store_adjustment_reverse : store_adjustment_approve)(w->db, &d, &rp->body, &err)) {
		reply_problem(rp, rq, &err);
		return;
	}
	log_event(LOG_INFO, reverse ? "one-off charge or credit reversed" : "one-off charge or credit approved",
	          LS("by", d.actor), LI("id", d.id));
}

void
handle_adjustments(void *app, void *worker, const struct http_request *rq, struct http_reply *rp)
{
	struct worker *w = worker;
	struct adjustment_query q = {.approved_only = (w->who.role & ROLES_MONEY) == 0};
	char now[API_PERIOD_SIZE];
	struct err err = {0};

	(void)app;
	if (!api_tenant(w, rq, &q.tenant, rp))
		return;
	rp->content_type = "application/json";
	if (!api_query(rq, "period", NULL, &q.period, &err) ||
	    (q.period != NULL && !api_period_of(w->db, q.period, now, &q.period, &err)) ||
	    !api_page(rq, &q.page, &err) || !store_adjustments_json(w->db, &q, &rp->body, &err))
		reply_problem(rp, rq, &err);
}
