/* common/base/idmap.h - numbers to positions in an array: a hash table with linear probing.
 * There is no removal: after dropping array entries, clear the map and fill it again. */
#ifndef TOLLGATE_IDMAP_H
#define TOLLGATE_IDMAP_H

#include "common/base/base.h"

struct idmap {
	struct idmap_slot *slots; /* NULL until the first put */
	size_t cap, count;
};

#define IDMAP_NONE SIZE_MAX

void idmap_fini(struct idmap *m);
void idmap_clear(struct idmap *m);         /* keeps the memory */
size_t idmap_bytes(const struct idmap *m); /* that it holds */
/* The position stored under the key, or IDMAP_NONE. */
size_t idmap_get(const struct idmap *m, uint64_t key);
static inline bool
idmap_find(const struct idmap *m, uint64_t key, size_t *ret_position)
{
	size_t at = idmap_get(m, key);

	if (at == IDMAP_NONE)
		return false;
	*ret_position = at;
	return true;
}
void idmap_put(struct idmap *m, uint64_t key, size_t position); /* replaces; position < IDMAP_NONE */

#endif
