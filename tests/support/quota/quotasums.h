/* tests/support/quota/quotasums.h - every sum that the quota engine keeps, again from the plain lists.
 *
 * Slow and plain on purpose: pools, accounts, node_shapes and pool_shapes must be what the lists of quota_save() add up to. */
#ifndef TOLLGATE_TESTS_QUOTASUMS_H
#define TOLLGATE_TESTS_QUOTASUMS_H

#include "aggregator/core/quota/engine/quota.h"
#include "common/base/buf.h"

/* Devices of a shape on a GPU: [0] in use, [1] held. */
void quotasums_devices(const struct quota_world *w, int32_t node, int32_t gpu, int32_t shape, int64_t ret[2]);
/* Whether what a workspace has in a cluster, of a shape, own or shared, is in the pool. */
bool quotasums_of_pool(const struct quota_world *w, const struct quota_pool_figures *p, int32_t workspace,
                       int32_t cluster, int32_t shape, bool shared);
/* Pools and accounts; leased + held + free = live + excess. */
bool quotasums_pools(const struct quota_state *s, const struct quota_world *w, struct buf *why);
/* The indexes inside, against themselves made anew. */
bool quotasums_indexes(const struct quota_state *s, struct buf *why);

#endif
