/* common/base/apportion.h - dividing an integer among parties so that the parts add up to it, by largest remainder.
 * The one way in which Tollgate divides time, energy and hours. */
#ifndef TOLLGATE_APPORTION_H
#define TOLLGATE_APPORTION_H

#include "common/base/base.h"

/* out[i] is total * weight[i] / sum(weight), each within one of the exact value, adding up to total exactly.
 * total may be negative. Weights are >= 0; ties go to the lower index, so callers sort by id first.
 * If all weights are 0 every part is 0 and false is returned: the total belongs to nobody.
 * |total| and the sum of the weights must be below 2^126. */
MUST_CHECK bool apportion(int128 total, const int128 *weight, size_t n, int128 *out);

#endif
