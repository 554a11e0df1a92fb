/* aggregator/store/idmap.c - numbers to numbers: open addressing, at most half full. */
#include <string.h>

#include "aggregator/store/idmap.h"

static size_t
slot_of(const struct idmap *m, uint64_t key)
{
	size_t i = (size_t)(key * UINT64_C(0x9e3779b97f4a7c15) >> 20) & (m->cap - 1);

	while (m->keys[i] != 0 && m->keys[i] != key)
		i = (i + 1) & (m->cap - 1);
	return i;
}

static void
grow(struct idmap *m)
{
	struct idmap old = *m;

	m->cap = old.cap == 0 ? 64 : old.cap * 2;
	m->keys = mem_array(m->cap, sizeof(*m->keys));
	m->values = mem_array(m->cap, sizeof(*m->values));
	for (size_t i = 0; i < old.cap; i++) {
		if (old.keys[i] != 0) {
			size_t to = slot_of(m, old.keys[i]);

			m->keys[to] = old.keys[i];
			m->values[to] = old.values[i];
		}
	}
	mem_free(old.keys);
	mem_free(old.values);
}

void
idmap_fini(struct idmap *m)
{
	mem_free(m->keys);
	mem_free(m->values);
	memset(m, 0, sizeof(*m));
}

void
idmap_put(struct idmap *m, uint64_t key, size_t value)
{
	size_t i;

	ASSERT(key != 0);
	if (2 * (m->count + 1) > m->cap)
		grow(m);
	i = slot_of(m, key);
	m->count += m->keys[i] == 0;
	m->keys[i] = key;
	m->values[i] = value;
}

bool
idmap_get(const struct idmap *m, uint64_t key, size_t *ret_value)
{
	size_t i;

	if (m->cap == 0 || key == 0)
		return false;
	i = slot_of(m, key);
	if (m->keys[i] == 0)
		return false;
	*ret_value = m->values[i];
	return true;
}
