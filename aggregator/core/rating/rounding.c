/* aggregator/core/rating/rounding.c - rounding several amounts so that they add up to their rounded sum. */
#include "aggregator/core/rating/rounding.h"

#include <stdlib.h>

#include "common/base/money.h"

struct remainder {
	int128 value; /* 0 .. den - 1 */
	size_t index;
};

static int
compare_remainders(const void *a, const void *b)
{
	const struct remainder *x = a, *y = b;

	if (x->value != y->value)
		return x->value > y->value ? -1 : 1;
	return (x->index > y->index) - (x->index < y->index);
}

void
round_to_sum(const int128 *num, size_t n, int128 den, int128 sum, int128 *out)
{
	owned(mem) struct remainder *rest = mem_array(n, sizeof(*rest));
	int128 left = sum;

	for (size_t i = 0; i < n; i++) {
		int128 over = num[i] % den;

		out[i] = num[i] / den;
		/* towards minus infinity, so that credits leave a remainder like charges do */
		if (over < 0) {
			over += den;
			out[i]--;
		}
		rest[i] = (struct remainder){.value = over, .index = i};
		left -= out[i];
	}
	/* left is the sum of the remainders over den, rounded: at most as many as there are remainders above 0 */
	ASSERT(left >= 0 && left <= (int128)n);
	if (left > 0)
		qsort(rest, n, sizeof(*rest), compare_remainders);
	for (size_t i = 0; left > 0; i++, left--)
		out[rest[i].index]++;
}

bool
round_together(const int128 *num, size_t n, int128 den, int128 *out, int128 *ret_sum)
{
	int128 exact = 0;

	for (size_t i = 0; i < n; i++)
		if (__builtin_add_overflow(exact, num[i], &exact))
			return false;
	*ret_sum = div_round_half_even(exact, den);
	round_to_sum(num, n, den, *ret_sum, out);
	return true;
}
