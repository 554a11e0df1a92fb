/* aggregator/core/quota/engine/quota_memory.h - memory of lists that are made together and freed together. */
#ifndef TOLLGATE_QUOTA_MEMORY_H
#define TOLLGATE_QUOTA_MEMORY_H

#include "common/base/base.h"

struct quota_memory;

/* Zeroed. *m begins as NULL. */
void *quota_keep(struct quota_memory **m, size_t count, size_t size);
const char *quota_keep_text(struct quota_memory **m, const char *text);
void quota_memory_free(struct quota_memory *m);
DEFINE_OWNED(quota_memory, struct quota_memory)

#endif
