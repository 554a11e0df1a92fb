/* aggregator/core/focus_costs.h - EffectiveCost: what was billed, with commitments spread over what became of them. Only for focus.c. Pure. */
#ifndef TOLLGATE_CORE_FOCUS_COSTS_H
#define TOLLGATE_CORE_FOCUS_COSTS_H

#include "aggregator/core/rating.h"

/* Of every day of every line, in their order; in the currency's smallest unit. The caller frees it. */
int128 *focus_effective(const struct rated *r);

#endif
