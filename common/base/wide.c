/* common/base/wide.c - products of 128-bit integers. */
#include "common/base/wide.h"

/* By the four products of the halves. */
struct wide
wide_multiply(uint128 a, uint128 b)
{
	uint128 a0 = (uint64_t)a, a1 = a >> 64, b0 = (uint64_t)b, b1 = b >> 64;
	uint128 low = a0 * b0, middle = a1 * b0 + (low >> 64), other = a0 * b1 + (uint64_t)middle;

	return (struct wide){.high = a1 * b1 + (middle >> 64) + (other >> 64), .low = other << 64 | (uint64_t)low};
}

/* Bit by bit. */
uint128
wide_divide(struct wide w, uint128 d, uint128 *ret_remainder)
{
	uint128 rest = w.high, quotient = 0;

	ASSERT(w.high < d);
	for (int bit = 127; bit >= 0; bit--) {
		const bool carry = rest >> 127 != 0;

		rest = rest << 1 | (w.low >> bit & 1);
		quotient <<= 1;
		if (carry || rest >= d) {
			rest -= d;
			quotient |= 1;
		}
	}
	*ret_remainder = rest;
	return quotient;
}
