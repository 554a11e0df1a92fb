/* aggregator/core/quota/engine/quota_load.h - what loading a state and applying an event check alike. For the engine's own files. */
#ifndef TOLLGATE_QUOTA_LOAD_H
#define TOLLGATE_QUOTA_LOAD_H

#include "aggregator/core/quota/engine/quota_state.h"

static inline bool
quota_index_ok(int64_t v, size_t count)
{
	return v >= 0 && (uint64_t)v < count;
}

/* ---- quota_device.c --------------------------------------------------------------------------------------------------------- */

bool quota_slots_ok(const struct quota_state *s, const struct quota_slots *slots, size_t count);
void quota_gpu_slots(struct quota_state *s, int32_t gpu, const struct quota_slots *slots, size_t count);
int32_t quota_group_at(const struct quota_state *s, int32_t node, int32_t gpu, int32_t shape);
/* Parts as a plan, of at most `want` devices of the shape; false when there is no such place. */
bool quota_plan_of_parts(const struct quota_state *s, const struct quota_part *parts, size_t count, int32_t shape,
                         int64_t want, struct plan *ret);

/* ---- quota_load.c ----------------------------------------------------------------------------------------------------------- */

bool quota_request_ok(const struct quota_state *s, const struct quota_request *in);
bool quota_exception_ok(const struct quota_state *s, const struct quota_exception *in);

#endif
