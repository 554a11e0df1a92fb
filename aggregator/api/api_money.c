/* aggregator/api/api_money.c - /v1/adjustments, /v1/budgets, /v1/sla, /v1/refunds, /v1/reconciliation. */
#include <stdio.h>
#include <string.h>

#include "aggregator/api/api.h"
#include "aggregator/store/billing/report_store.h"
#include "aggregator/store/access/access.h"
#include "aggregator/service/budget_table.h"
#include "aggregator/store/billing/finance.h"
#include "aggregator/store/billing/period.h"
#include "common/base/log.h"
#include "common/base/money.h"
#include "common/base/text.h"
#include "common/base/time.h"

/* ---- adjustments ---- */

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

/* ---- budgets ---- */

static bool
add_tenant(void *arg, const struct rating_input *in, const struct rated *view, struct err *err)
{
	(void)in;
	return budget_table_add(arg, view, err);
}

/* ---- the reply ---- */

static void
write_amount(struct buf *out, const char *name, int128 amount, int decimals)
{
	char text[DECIMAL_TEXT_SIZE];

	buf_printf(out, ",\"%s\":\"%s\"", name,
	           decimal_format(div_round_half_even(amount, pow10_i128(PRICE_SCALE - decimals)), decimals, decimals,
	                          text));
}

static bool
write_budget(const struct budget *b, const struct budget_state *s, struct buf *out, struct err *err)
{
	char ratio[DECIMAL_TEXT_SIZE];
	int decimals = PRICE_SCALE;

	if (budget_unit_is_money(b->unit) && !currency_exponent(b->unit, &decimals, err))
		return false;
	if (strcmp(b->unit, BUDGET_TOKENS) == 0)
		decimals = 0;
	buf_str(out, "{\"tenant\":");
	json_write_string(b->tenant, out);
	buf_str(out, ",\"workspace\":");
	json_write_string(b->workspace, out);
	buf_printf(out, ",\"kind\":\"%s\",\"unit\":\"%s\"", b->kind, b->unit[0] ? b->unit : "gpu-hour");
	write_amount(out, "limit", b->limit, decimals);
	write_amount(out, "consumed", s->consumed, decimals);
	write_amount(out, "forecast", s->forecast, decimals);
	buf_printf(
		out,
		",\"ratio\":\"%s\",\"threshold\":%d,\"forecast_breach\":%s,\"method\":\"%s\",\"method_text\":\"%s\"}",
		decimal_format(s->millionths, 6, 6, ratio), s->threshold, s->forecast_breach ? "true" : "false",
		s->method, forecast_method_text(s->method));
	return true;
}

static bool
write_budgets(struct db *db, const char *period, const char *tenant, struct buf *out, struct err *err)
{
	owned(budget_list) struct budget_list *list = NULL;
	in_place(budget_table) struct budget_table t = {0};
	int64_t now_ns = time_wall_ns();

	if (!store_budgets_load(db, period, tenant, now_ns, &list, err))
		return false;
	budget_table_init(&t, list);
	if (list->count > 0 && !store_period_each(db, period, tenant, add_tenant, &t, err))
		return false;
	buf_printf(out, "{\"period\":\"%s\",\"budgets\":[", period);
	for (size_t i = 0; i < list->count; i++) {
		struct budget_state s;

		buf_str(out, i > 0 ? ",\n" : "");
		if (!budget_table_judge(&t, i, now_ns, &s, err) || !write_budget(&list->at[i], &s, out, err))
			return false;
	}
	buf_str(out, "]}\n");
	return buf_ok(out, "the budgets", err);
}

void
handle_budgets(void *app, void *worker, const struct http_request *rq, struct http_reply *rp)
{
	struct worker *w = worker;
	const char *tenant = NULL, *period = NULL;
	char now[API_PERIOD_SIZE];
	struct err err = {0};

	(void)app;
	if (!api_tenant(w, rq, &tenant, rp))
		return;
	rp->content_type = "application/json";
	if (!api_period(w, rq, "period", now, &period, &err) || !write_budgets(w->db, period, tenant, &rp->body, &err))
		reply_problem(rp, rq, &err);
}

/* ---- service levels ---- */

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

/* ---- refunds ---- */

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

/* ---- reconciliation ---- */

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
