/* aggregator/core/rating/forecast.c - what a month will have come to. The numbers are those of forecast.h. */
#include "aggregator/core/rating/forecast.h"

#include <string.h>

#include "common/base/money.h"

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
