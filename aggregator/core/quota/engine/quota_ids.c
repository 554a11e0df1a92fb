/* aggregator/core/quota/engine/quota_ids.c - the positions of leases and requests by their ids: a hash table with linear probing. */
#include "aggregator/core/quota/engine/quota_ids.h"

#include <string.h>

#include "aggregator/core/quota/engine/quota.h"
#include "common/base/text.h"

static size_t
hash_of(const char *id)
{
	uint64_t h = text_hash(id);

	return (size_t)(h ^ (h >> 29));
}

static const char *
id_at(const void *base, size_t stride, int32_t position)
{
	return (const char *)base + (size_t)position * stride;
}

/* Where the id is, or the empty slot where it would be. */
static size_t
slot_of(const struct quota_ids *m, const void *base, size_t stride, const char *id)
{
	size_t i = hash_of(id) & (m->cap - 1);

	while (m->slots[i] != QUOTA_NONE && strcmp(id_at(base, stride, m->slots[i]), id) != 0)
		i = (i + 1) & (m->cap - 1);
	return i;
}

int32_t
quota_ids_get(const struct quota_ids *m, const void *base, size_t stride, const char *id)
{
	return m->cap == 0 ? QUOTA_NONE : m->slots[slot_of(m, base, stride, id)];
}

static void
grow(struct quota_ids *m, const void *base, size_t stride)
{
	struct quota_ids bigger = {.cap = m->cap ? 2 * m->cap : 64, .count = m->count};

	bigger.slots = mem_array(bigger.cap, sizeof(*bigger.slots));
	for (size_t i = 0; i < bigger.cap; i++)
		bigger.slots[i] = QUOTA_NONE;
	for (size_t i = 0; i < m->cap; i++)
		if (m->slots[i] != QUOTA_NONE)
			bigger.slots[slot_of(&bigger, base, stride, id_at(base, stride, m->slots[i]))] = m->slots[i];
	mem_free(m->slots);
	*m = bigger;
}

void
quota_ids_put(struct quota_ids *m, const void *base, size_t stride, int32_t position)
{
	if (2 * (m->count + 1) > m->cap)
		grow(m, base, stride);
	m->slots[slot_of(m, base, stride, id_at(base, stride, position))] = position;
	m->count++;
}

/* The entries that follow without a gap move up, so that no probe meets a hole before its id. */
void
quota_ids_drop(struct quota_ids *m, const void *base, size_t stride, int32_t position)
{
	size_t mask = m->cap - 1;
	size_t hole = slot_of(m, base, stride, id_at(base, stride, position));

	ASSERT(m->slots[hole] == position);
	for (size_t i = (hole + 1) & mask; m->slots[i] != QUOTA_NONE; i = (i + 1) & mask) {
		size_t home = hash_of(id_at(base, stride, m->slots[i])) & mask;

		if (((i - home) & mask) >= ((i - hole) & mask)) {
			m->slots[hole] = m->slots[i];
			hole = i;
		}
	}
	m->slots[hole] = QUOTA_NONE;
	m->count--;
}
