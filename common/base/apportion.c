/* common/base/apportion.c - dividing an integer among parties by largest remainder. */
#include "common/base/apportion.h"

#include <stdlib.h>

#include "common/base/wide.h"

/* The quotient of a party is below the exact value by remainder / sum of weights. */
struct share {
	int128 remainder;
	size_t index;
};

#define SPLIT_ON_STACK 32

#define SPLIT_LIMIT ((int128)1 << 126)

static int128
sum_of_weights(const int128 *weight, size_t n)
{
	int128 sum = 0;

	for (size_t i = 0; i < n; i++) {
		ASSERT(weight[i] >= 0 && weight[i] < SPLIT_LIMIT - sum);
		sum += weight[i];
	}
	return sum;
}

/* a x b / d and what is left, for b <= d. The product of a large pool's unit-nanoseconds with another one's has more than 128
 * bits; the quotient has not. */
static int128
part_of(int128 a, int128 b, int128 d, int128 *ret_remainder)
{
	int128 product;
	uint128 quotient, rest;

	if (!__builtin_mul_overflow(a, b, &product)) {
		*ret_remainder = product % d;
		return product / d;
	}
	/* its high half is below d, because a and b / d are below 2^126 and 1 */
	quotient = wide_divide(wide_multiply((uint128)a, (uint128)b), (uint128)d, &rest);
	*ret_remainder = (int128)rest;
	return (int128)quotient;
}

/* Largest remainder first; the lower index first among equals, so that the order is total. */
static int
share_order(const void *a, const void *b)
{
	const struct share *x = a, *y = b;

	if (x->remainder != y->remainder)
		return x->remainder > y->remainder ? -1 : 1;
	return x->index < y->index ? -1 : x->index > y->index;
}

static void
split_magnitude(int128 magnitude, int128 sum, const int128 *weight, size_t n, struct share *shares, int128 *out)
{
	int128 left = magnitude;

	for (size_t i = 0; i < n; i++) {
		shares[i].index = i;
		out[i] = part_of(magnitude, weight[i], sum, &shares[i].remainder);
		left -= out[i];
	}
	/* left is the sum of the remainders over sum: fewer than there are remainders above 0 */
	if (left == 0)
		return;
	qsort(shares, n, sizeof(*shares), share_order);
	for (size_t i = 0; left > 0; i++, left--)
		out[shares[i].index]++;
}

bool
apportion(int128 total, const int128 *weight, size_t n, int128 *out)
{
	int128 magnitude, sum;

	ASSERT(total > -SPLIT_LIMIT && total < SPLIT_LIMIT);
	magnitude = total < 0 ? -total : total;
	sum = sum_of_weights(weight, n);
	if (sum == 0) {
		for (size_t i = 0; i < n; i++)
			out[i] = 0;
		return false;
	}
	if (n <= SPLIT_ON_STACK) {
		struct share shares[SPLIT_ON_STACK];

		split_magnitude(magnitude, sum, weight, n, shares, out);
	} else {
		owned(mem) struct share *shares = mem_array(n, sizeof(*shares));

		split_magnitude(magnitude, sum, weight, n, shares, out);
	}
	/* a debt is split as the same credit would be */
	for (size_t i = 0; total < 0 && i < n; i++)
		out[i] = -out[i];
	return true;
}
