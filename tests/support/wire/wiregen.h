/* tests/support/wire/wiregen.h - batches for tests and benchmarks: a small fixed one, and one like a busy node's. */
#ifndef TOLLGATE_TESTS_WIREGEN_H
#define TOLLGATE_TESTS_WIREGEN_H

#include "common/wire/wire.h"

/* The batches whose bytes are tests/golden/wire_v*_usage.hex: every kind of device, holder and state once, and what versions 2
 * and 3 have more; version 4 writes the content of version 3 otherwise. Never change them. */
struct wire_batch *wiregen_fixed_v1(void);
struct wire_batch *wiregen_fixed_v2(void);
struct wire_batch *wiregen_fixed_v3(void);
struct wire_batch *wiregen_fixed(void); /* of version 4 */
struct wire_batch *wiregen_loss(uint32_t version);

/* A node as the figures of common/wire/WIRE.md suppose it: gpus with holders sharing each, metered in `stretches` of ten seconds of
 * ten ticks. A third of the holders is idle, a sixth busy all the time, the others somewhere between; memory mostly stays.
 * Records are ordered as the exporter orders them, by device, holder and start. The seed decides everything. */
struct wire_batch *wiregen_node(uint64_t seed, size_t gpus, size_t holders_per_gpu, size_t stretches);

/* Field by field; false with the first difference in why. */
bool wiregen_same(const struct wire_batch *a, const struct wire_batch *b, struct buf *why);

#endif
