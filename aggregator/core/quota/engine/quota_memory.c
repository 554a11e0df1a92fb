/* aggregator/core/quota/engine/quota_memory.c - memory of lists that are made together and freed together. */
#include "aggregator/core/quota/engine/quota_memory.h"

#include <stddef.h>
#include <string.h>

#define BLOCK_BYTES (UINT64_C(64) << 10)

/* Blocks that are filled from the front, the last one first in the chain. */
struct quota_memory {
	struct quota_memory *before;
	size_t used, cap;
	max_align_t data[];
};

void *
quota_keep(struct quota_memory **m, size_t count, size_t size)
{
	size_t bytes = (count * size + sizeof(max_align_t)) / sizeof(max_align_t) * sizeof(max_align_t);
	char *at;

	ASSERT(count < SIZE_MAX / 4 / size);
	if (!*m || (*m)->cap - (*m)->used < bytes) {
		size_t cap = bytes > BLOCK_BYTES ? bytes : BLOCK_BYTES;
		struct quota_memory *block = mem_alloc(sizeof(*block) + cap);

		block->before = *m;
		block->cap = cap;
		*m = block;
	}
	at = (char *)(*m)->data + (*m)->used;
	(*m)->used += bytes;
	return at;
}

const char *
quota_keep_text(struct quota_memory **m, const char *text)
{
	size_t len = strlen(text);
	char *copy = quota_keep(m, len + 1, 1);

	memcpy(copy, text, len + 1);
	return copy;
}

void
quota_memory_free(struct quota_memory *m)
{
	while (m) {
		struct quota_memory *before = m->before;

		mem_free(m);
		m = before;
	}
}
