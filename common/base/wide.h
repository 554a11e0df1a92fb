/* common/base/wide.h - products of 128-bit integers, which need 256. Pure. */
#ifndef TOLLGATE_WIDE_H
#define TOLLGATE_WIDE_H

#include "common/base/base.h"

struct wide {
	uint128 high, low;
};
struct wide wide_multiply(uint128 a, uint128 b);
/* w / d and what is left; d > 0. The quotient has 128 bits: w.high < d. */
uint128 wide_divide(struct wide w, uint128 d, uint128 *ret_remainder);

#endif
