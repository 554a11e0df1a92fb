/* aggregator/store/idmap.h - numbers to numbers: open addressing, at most half full. Keys are above 0. */
#ifndef TOLLGATE_STORE_IDMAP_H
#define TOLLGATE_STORE_IDMAP_H

#include "common/base.h"

struct idmap {
	uint64_t *keys;
	size_t *values;
	size_t cap, count;
};

/* in_place(idmap) struct idmap m = {0}; */
void idmap_fini(struct idmap *m);
void idmap_put(struct idmap *m, uint64_t key, size_t value);
bool idmap_get(const struct idmap *m, uint64_t key, size_t *ret_value);

#endif
