/* common/base/idmap.c - numbers to positions in an array. */
#include "common/base/idmap.h"

#include <string.h>

#define IDMAP_FIRST_CAP 64u /* a power of two */

struct idmap_slot {
	uint64_t key;
	size_t position_plus_1; /* 0: free */
};

void
idmap_fini(struct idmap *m)
{
	mem_free(m->slots);
	*m = (struct idmap){0};
}

size_t
idmap_bytes(const struct idmap *m)
{
	return m->slots != NULL ? m->cap * sizeof(*m->slots) : 0;
}

void
idmap_clear(struct idmap *m)
{
	m->count = 0;
	if (m->slots)
		memset(m->slots, 0, m->cap * sizeof(*m->slots));
}

/* Neighbouring numbers, such as PIDs, land far apart: multiplied by 2^64 over the golden ratio, upper bits taken. */
static size_t
first_slot(const struct idmap *m, uint64_t key)
{
	return (size_t)((key * UINT64_C(0x9e3779b97f4a7c15)) >> 32) & (m->cap - 1);
}

/* The slot of the key, or the free one where it belongs. The table is never full. */
static struct idmap_slot *
find(const struct idmap *m, uint64_t key)
{
	size_t i = first_slot(m, key);

	while (m->slots[i].position_plus_1 && m->slots[i].key != key)
		i = (i + 1) & (m->cap - 1);
	return &m->slots[i];
}

size_t
idmap_get(const struct idmap *m, uint64_t key)
{
	const struct idmap_slot *slot;

	if (!m->slots)
		return IDMAP_NONE;
	slot = find(m, key);
	return slot->position_plus_1 ? slot->position_plus_1 - 1 : IDMAP_NONE;
}

static void
grow(struct idmap *m)
{
	struct idmap larger = {.cap = m->cap ? m->cap * 2 : IDMAP_FIRST_CAP, .count = m->count};

	larger.slots = mem_array(larger.cap, sizeof(*larger.slots));
	for (size_t i = 0; i < m->cap; i++)
		if (m->slots[i].position_plus_1)
			*find(&larger, m->slots[i].key) = m->slots[i];
	mem_free(m->slots);
	*m = larger;
}

void
idmap_put(struct idmap *m, uint64_t key, size_t position)
{
	struct idmap_slot *slot;

	ASSERT(position < IDMAP_NONE);
	if ((m->count + 1) * 2 > m->cap)
		grow(m);
	slot = find(m, key);
	m->count += slot->position_plus_1 == 0;
	*slot = (struct idmap_slot){.key = key, .position_plus_1 = position + 1};
}
