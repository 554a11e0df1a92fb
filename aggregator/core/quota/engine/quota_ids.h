/* aggregator/core/quota/engine/quota_ids.h - the positions of things by their ids or names: a hash table with linear probing. */
#ifndef TOLLGATE_QUOTA_IDS_H
#define TOLLGATE_QUOTA_IDS_H

#include "common/base/base.h"

struct quota_ids {
	int32_t *slots; /* position, or -1 */
	size_t cap, count;
};

/* `base` is an array of structs of `stride` bytes whose first member is the id. -1: there is none. */
int32_t quota_ids_get(const struct quota_ids *m, const void *base, size_t stride, const char *id);
void quota_ids_put(struct quota_ids *m, const void *base, size_t stride, int32_t position);
void quota_ids_drop(struct quota_ids *m, const void *base, size_t stride, int32_t position);

#endif
