/* aggregator/api/api_budgets.c - budgets against the month: GET /v1/budgets. */
#include <string.h>

#include "aggregator/api/api.h"
#include "aggregator/service/budget_table.h"
#include "aggregator/store/billing/period.h"
#include "common/base/time.h"

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
