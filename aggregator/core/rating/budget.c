/* aggregator/core/rating/budget.c - a budget compared with a month's report, and the forecast of the month. The numbers are those of budget.h. */
#include "aggregator/core/rating/budget.h"

#include <string.h>

#include "common/base/money.h"

#define ADD(sum, v) (!__builtin_add_overflow((sum), (v), &(sum)))

/* ---- forecast ---- */

const char *
forecast_method_text(const char *method)
{
	static const struct {
		const char *method, *text;
	} texts[] = {{"over", "the month is over"},
	             {"7-day-mean", "mean of the last 7 full days x the time left"},
	             {"pro-rata", "pro rata of the time elapsed, for want of 7 full days"},
	             {"pro-rata-since-first-hour",
	              "pro rata of the time since the ledger's first hour, for want of 7 full days"}};

	for (size_t i = 0; i < ARRAY_LEN(texts); i++)
		if (strcmp(texts[i].method, method) == 0)
			return texts[i].text;
	return "nothing has been measured yet";
}

/* amount x num / den, both of time; in two parts, because the product would leave 128 bits. */
static bool
extrapolate(int128 amount, int64_t num, int64_t den, int128 *sum)
{
	int128 whole;

	return !__builtin_mul_overflow(amount / den, (int128)num, &whole) &&
	       !__builtin_add_overflow(*sum, whole, sum) &&
	       !__builtin_add_overflow(*sum, div_round_half_even(amount % den * num, den), sum);
}

bool
forecast_run(const struct forecast_input *in, struct forecast *ret)
{
	const bool young = in->first_ns > in->start_ns;
	const int64_t begin_ns = young ? in->first_ns : in->start_ns; /* 2 */
	int128 so_far = 0, last = 0, sum;
	int64_t last_ns = 0;
	size_t first = 0, full = 0; /* full days, from the first on */

	for (size_t i = 0; i < in->count; i++) {
		if (__builtin_add_overflow(so_far, in->days[i].amount, &so_far))
			return false;
		first += in->days[i].from_ns < begin_ns;
		full += in->days[i].from_ns >= begin_ns && in->days[i].to_ns <= in->now_ns;
	}
	if (__builtin_add_overflow(so_far, in->once, &sum))
		return false;
	if (in->now_ns >= in->end_ns || in->now_ns <= begin_ns) { /* 1, 5 */
		*ret = (struct forecast){.amount = sum, .method = in->now_ns >= in->end_ns ? "over" : "none"};
		return true;
	}
	if (full < FORECAST_DAYS) { /* 4 */
		ret->method = young ? "pro-rata-since-first-hour" : "pro-rata";
		ret->amount = in->once;
		return extrapolate(so_far, in->end_ns - begin_ns, in->now_ns - begin_ns, &ret->amount);
	}
	for (size_t i = first + full - FORECAST_DAYS; i < first + full; i++) { /* 3 */
		last += in->days[i].amount;                                    /* a part of so_far, or as small */
		last_ns += in->days[i].to_ns - in->days[i].from_ns;
	}
	ret->method = "7-day-mean";
	ret->amount = sum;
	return extrapolate(last, in->end_ns - in->now_ns, last_ns, &ret->amount);
}

/* ---- budget ---- */

static bool
too_much(const struct budget *b, struct err *err)
{
	return err_set(err, ERR_INVALID, "%s/%s: the month is beyond what a budget holds", b->tenant, b->workspace);
}

static bool
is_correction(const struct rated_line *l)
{
	return l->correction_of != NULL && l->correction_of[0] != '\0';
}

bool
budget_unit_is_money(const char *unit)
{
	return unit[0] != '\0' && strcmp(unit, BUDGET_TOKENS) != 0;
}

/* Rules 1 to 3: what one day of a line counts. */
static int128
counted(const struct budget *b, const struct rated_line *l, const struct rated_day *d)
{
	if (strcmp(b->unit, BUDGET_HOURS) == 0)
		return (l->kind == CHARGE_USAGE || l->kind == CHARGE_COVERED) && !is_correction(l) ? d->ngh : 0;
	if (strcmp(b->unit, BUDGET_TOKENS) == 0)
		return l->kind == CHARGE_METER && l->unit.base && strcmp(l->unit.base, BUDGET_TOKENS) == 0 &&
		                       !is_correction(l)
		               ? d->quantity * (l->unit.per > 1 ? l->unit.per : 1)
		               : 0;
	return strcmp(l->currency, b->unit) == 0 ? d->billed * pow10_i128(PRICE_SCALE - l->currency_scale) : 0;
}

/* Rule 4. */
#define UNRATED_COST pow10_i128(PRICE_SCALE + RATING_COST_DIGITS)
static bool
is_beyond(const struct budget *b, const struct rated_line *l)
{
	return l->unrated && !is_correction(l) && strcmp(l->currency, b->unit) == 0;
}

bool
budget_consume(const struct budget *b, const struct rated *r, struct forecast_day *days, size_t count, int128 *once,
               struct err *err)
{
	for (size_t i = 0; i < r->count; i++) {
		const struct rated_line *l = &r->lines[i];

		if (strcmp(l->tenant, b->tenant) != 0 || (b->workspace[0] && strcmp(l->workspace, b->workspace) != 0))
			continue;
		if (is_beyond(b, l) && *once < UNRATED_COST / 2)
			*once += UNRATED_COST;
		for (size_t k = 0; k < l->day_count; k++) {
			const struct rated_day *d = &l->days[k];
			int128 *to;

			if (d->day < 0 || (size_t)d->day >= count)
				return err_set(err, ERR_INVALID, "%s: day %" PRId32 " is not in the month", l->tenant,
				               d->day);
			to = l->kind == CHARGE_ADJUSTMENT || is_correction(l) ? once : &days[d->day].amount;
			if (!ADD(*to, counted(b, l, d)))
				return too_much(b, err);
		}
	}
	return true;
}

/* Rule 5. */
static int
threshold_of(int128 consumed, int128 limit)
{
	static const int steps[] = {100, 80, 50};

	for (size_t i = 0; i < ARRAY_LEN(steps); i++)
		if (consumed * 100 >= limit * steps[i])
			return steps[i];
	return 0;
}

#define BUDGET_MAX (pow10_i128(PRICE_SCALE) * pow10_i128(21)) /* a millionfold of it fits 128 bits */

bool
budget_judge(const struct budget *b, const struct forecast_input *in, struct budget_state *ret, struct err *err)
{
	struct budget_state s = {.consumed = in->once};
	struct forecast f;

	for (size_t i = 0; i < in->count; i++)
		if (!ADD(s.consumed, in->days[i].amount))
			return too_much(b, err);
	if (!forecast_run(in, &f) || s.consumed > BUDGET_MAX || s.consumed < -BUDGET_MAX || b->limit > BUDGET_MAX)
		return too_much(b, err);
	s.forecast = f.amount;
	s.method = f.method;
	s.threshold = threshold_of(s.consumed, b->limit);
	s.millionths = s.consumed > 0 ? s.consumed * 1000000 / b->limit : 0;
	s.forecast_breach = s.forecast > b->limit;
	*ret = s;
	return true;
}
