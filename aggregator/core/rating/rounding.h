/* aggregator/core/rating/rounding.h - rounding several amounts so that they add up to their rounded sum. Pure.
 *
 * Not apportion(): that one divides a given total in proportion, which can move a part by more than
 * one from its own exact value when the total itself was rounded (10.99, 0.26 and 0.26 cents would be billed as
 * 12, 0 and 0). Here every part stays at its own quotient, rounded down or up. */
#ifndef TOLLGATE_ROUNDING_H
#define TOLLGATE_ROUNDING_H

#include "common/base/base.h"

/* out[i] is num[i] / den rounded down or up, so that the sum of out is the sum of num / den rounded half to even. The
 * largest remainders go up, the lower index first among equals; what divides evenly is never changed. den > 0.
 * false: the sum does not fit 128 bits. */
MUST_CHECK bool round_together(const int128 *num, size_t n, int128 den, int128 *out, int128 *ret_sum);

/* The same with the sum given: it must be the exact sum of num / den rounded down or up. */
void round_to_sum(const int128 *num, size_t n, int128 den, int128 sum, int128 *out);

#endif
