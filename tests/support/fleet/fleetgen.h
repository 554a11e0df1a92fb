/* tests/support/fleet/fleetgen.h - what the nodes of a large fleet send: one batch after another, each of them packed.
 *
 * Holders keep their place. A third of them is idle, a sixth busy all the time, the others somewhere between; memory mostly stays;
 * nothing is regular to the nanosecond, because no meter is. The seed decides everything. */
#ifndef TOLLGATE_TESTS_FLEETGEN_H
#define TOLLGATE_TESTS_FLEETGEN_H

#include "common/wire/wire.h"

struct fleet_shape {
	size_t gpus;      /* of a node */
	size_t instances; /* MIG, of a GPU: 0 to 7 of 1g.10gb; 0: whole GPUs */
	size_t processes; /* that share a GPU or an instance */
};

struct fleet_node;
/* The time covered begins at start_ns, on a whole number of steps since 1970. */
struct fleet_node *fleet_node_new(const struct fleet_shape *shape, size_t number, int64_t start_ns, int64_t step_ns);
void fleet_node_free(struct fleet_node *n);
DEFINE_OWNED(fleet_node, struct fleet_node)

const char *fleet_node_name(const struct fleet_node *n);
/* Appends the frame of its next step. The first has the dictionary. How many records it has. */
size_t fleet_node_next(struct fleet_node *n, struct buf *out);

#endif
