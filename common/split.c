/* common/split.c - dividing an integer among parties by largest remainder. */
#include "common/split.h"

#include <stdlib.h>

/* The quotient of a party is below the exact value by remainder / sum of weights. */
struct share {
	int128 remainder;
	size_t index;
};

#define SPLIT_ON_STACK 32

#define SPLIT_LIMIT ((int128)1 << 126)

static int128
sum_of_weights(int128 magnitude, const int128 *weight, size_t n)
{
	int128 sum = 0, product;

	for (size_t i = 0; i < n; i++) {
		ASSERT(weight[i] >= 0 && weight[i] < SPLIT_LIMIT - sum);
		ASSERT(!__builtin_mul_overflow(magnitude, weight[i], &product) && product < SPLIT_LIMIT);
		sum += weight[i];
	}
	return sum;
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
		int128 product = magnitude * weight[i];

		shares[i] = (struct share){.remainder = product % sum, .index = i};
		out[i] = product / sum;
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
split_largest_remainder(int128 total, const int128 *weight, size_t n, int128 *out)
{
	int128 magnitude, sum;

	ASSERT(total > -SPLIT_LIMIT && total < SPLIT_LIMIT);
	magnitude = total < 0 ? -total : total;
	sum = sum_of_weights(magnitude, weight, n);
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
