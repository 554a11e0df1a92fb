/* tests/prop/prop_budget.c - a month at a constant rate is foreseen exactly, and a budget has spent what the report bills. */
#include <string.h>

#include "aggregator/core/rating/budget.h"
#include "common/base/time.h"
#include "tests/support/harness/prop.h"

#define DAYS_MAX 31
#define LINES_MAX 6

/* ---- a constant rate ---- */

struct month {
	size_t days, over; /* of which so many are over */
	int64_t hours[DAYS_MAX];
	int64_t into_ns;     /* the next day */
	int64_t first_hours; /* the ledger's first hour, since the month began; 0: it is older */
	int64_t rate;        /* per nanosecond */
	int128 once;
};

static void
generate_month(struct prop_source *s, void *c)
{
	struct month *m = c;

	m->days = 28 + prop_index(s, 4);
	for (size_t i = 0; i < m->days; i++)
		m->hours[i] = prop_u64(s, 9) < 9 ? 24 : prop_i64(s, 23, 25);
	m->over = prop_index(s, m->days);
	m->into_ns = prop_i64(s, 1, m->hours[m->over] * NS_PER_HOUR);
	m->first_hours = prop_u64(s, 1) == 0 ? 0 : prop_i64(s, 0, 24 * DAYS_MAX);
	m->rate = prop_i64(s, 0, 1000000000);
	m->once = prop_i128(s, 60);
}

static void
describe_month(const void *c, struct buf *out)
{
	const struct month *m = c;

	buf_printf(out,
	           "%zu days, %zu over and %" PRId64 " ns, the ledger from hour %" PRId64 " on, rate %" PRId64 "\n",
	           m->days, m->over, m->into_ns, m->first_hours, m->rate);
}

static bool
is_foreseen(const void *c, struct buf *why)
{
	const struct month *m = c;
	struct forecast_day days[DAYS_MAX];
	struct forecast_input in = {.days = days, .count = m->days, .once = m->once};
	struct forecast f;
	int64_t at = 0;

	in.first_ns = m->first_hours * NS_PER_HOUR;
	for (size_t i = 0; i < m->days; i++) {
		int64_t ns = m->hours[i] * NS_PER_HOUR, until = at + (i < m->over ? ns : i == m->over ? m->into_ns : 0);
		int64_t from = at > in.first_ns ? at : in.first_ns;

		if (i == m->over)
			in.now_ns = until;
		days[i] = (struct forecast_day){at, at + ns, until > from ? (int128)(until - from) * m->rate : 0};
		at += ns;
	}
	in.end_ns = at;
	if (!forecast_run(&in, &f))
		return false;
	buf_printf(why, "by %s\n", f.method);
	if (in.first_ns >= in.now_ns) /* nothing was measured yet */
		return f.amount == m->once && (in.now_ns >= at || strcmp(f.method, "none") == 0);
	return f.amount == (int128)(at - in.first_ns) * m->rate + m->once;
}

/* ---- a report ---- */

struct lines {
	size_t count;
	struct line {
		enum charge_kind kind;
		int tenant, workspace, currency;
		size_t days;
		int128 billed[DAYS_MAX];
	} at[LINES_MAX];
	int workspace; /* of the budget; 0: all */
};
static const char *const tenants[] = {"acme", "globex"};
static const char *const workspaces[] = {"", "a", "b"};
static const char *const currencies[] = {"EUR", "USD"};

static void
generate_lines(struct prop_source *s, void *c)
{
	static const enum charge_kind kinds[] = {CHARGE_USAGE, CHARGE_COMMITMENT, CHARGE_UNDELIVERED, CHARGE_METER,
	                                         CHARGE_ADJUSTMENT};
	struct lines *w = c;

	w->count = prop_index(s, LINES_MAX + 1);
	for (size_t i = 0; i < w->count; i++) {
		w->at[i].kind = kinds[prop_index(s, ARRAY_LEN(kinds))];
		w->at[i].tenant = (int)prop_index(s, ARRAY_LEN(tenants));
		w->at[i].workspace = (int)prop_index(s, ARRAY_LEN(workspaces));
		w->at[i].currency = (int)prop_index(s, ARRAY_LEN(currencies));
		w->at[i].days = prop_index(s, DAYS_MAX + 1);
		for (size_t k = 0; k < w->at[i].days; k++)
			w->at[i].billed[k] = prop_i128(s, 50);
	}
	w->workspace = (int)prop_index(s, ARRAY_LEN(workspaces));
}

static void
describe_lines(const void *c, struct buf *out)
{
	const struct lines *w = c;

	for (size_t i = 0; i < w->count; i++)
		buf_printf(out, "kind %d of %s/%s in %s, %zu days\n", (int)w->at[i].kind, tenants[w->at[i].tenant],
		           workspaces[w->at[i].workspace], currencies[w->at[i].currency], w->at[i].days);
}

static bool
is_what_is_billed(const void *c, struct buf *why)
{
	const struct lines *w = c;
	const struct budget b = {"acme", workspaces[w->workspace], "soft", "EUR", 1};
	struct rated_line lines[LINES_MAX];
	struct rated_day line_days[LINES_MAX][DAYS_MAX];
	struct rated r = {.lines = lines, .count = w->count};
	struct forecast_day days[DAYS_MAX] = {{0}};
	const struct forecast_input in = {.end_ns = 2, .now_ns = 2, .days = days, .count = DAYS_MAX};
	struct forecast_input with = in;
	struct budget_state state;
	struct err err = {0};
	int128 expected = 0;

	for (size_t i = 0; i < w->count; i++) {
		const struct line *l = &w->at[i];

		lines[i] = (struct rated_line){.kind = l->kind,
		                               .tenant = tenants[l->tenant],
		                               .workspace = workspaces[l->workspace],
		                               .currency = currencies[l->currency],
		                               .currency_scale = 2,
		                               .days = line_days[i],
		                               .day_count = l->days};
		for (size_t k = 0; k < l->days; k++) {
			line_days[i][k] = (struct rated_day){.day = (int32_t)k, .billed = l->billed[k]};
			if (l->tenant == 0 && l->currency == 0 && (w->workspace == 0 || l->workspace == w->workspace))
				expected += l->billed[k];
		}
	}
	if (!budget_consume(&b, &r, days, DAYS_MAX, &with.once, &err) || !budget_judge(&b, &with, &state, &err)) {
		buf_printf(why, "%s\n", err.text);
		return false;
	}
	return state.consumed == expected * 10000000 && state.forecast == state.consumed;
}

int
main(void)
{
	static const struct prop_test tests[] = {
		{"a month at a constant rate is foreseen exactly, whatever the lengths of its days and whenever the ledger began",
	         sizeof(struct month), generate_month, is_foreseen, describe_month, NULL},
		{"a budget of money has spent what the report bills", sizeof(struct lines), generate_lines,
	         is_what_is_billed, describe_lines, NULL},
	};

	return prop_main("prop_budget", tests, ARRAY_LEN(tests));
}
