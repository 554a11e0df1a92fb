/* tests/support/quota/quotaref_world.h - a small state as the quota engine wants it, and the engine's state as plain facts. */
#ifndef TOLLGATE_TESTS_QUOTAREF_WORLD_H
#define TOLLGATE_TESTS_QUOTAREF_WORLD_H

#include "aggregator/core/quota/engine/quota.h"
#include "tests/support/quota/quotaref.h"

enum qref_kind { QREF_WHOLE, QREF_SLICES, QREF_REPLICAS };

#define QREF_TENANTS 2
#define QREF_NODE_DEVICES 8
#define QREF_START_NS INT64_C(1000000000000)

/* Everything the world points to. Filled in place; not to be copied. */
struct qref_world {
	struct quota_world world;
	int64_t unit; /* of one device */
	struct quota_shape shape;
	struct quota_tenant tenants[QREF_TENANTS];
	struct quota_workspace workspaces[QREF_WORKSPACES];
	struct quota_share shares[2 * QREF_WORKSPACES];
	struct quota_cap caps[QREF_TENANTS];
	struct quota_node nodes[QREF_NODES];
	struct quota_gpu gpus[QREF_NODES][QREF_NODE_DEVICES];
	struct quota_slots slots[QREF_NODES][QREF_NODE_DEVICES];
	struct quota_lease leases[QREF_LEASES];
	struct quota_part parts[QREF_LEASES][QREF_NODES * QREF_NODE_DEVICES];
	char ids[QREF_LEASES][16]; /* "l0" */
};

void qref_world_init(struct qref_world *w, const struct qref_state *s, enum qref_kind kind);
/* A request of the small state, under an id. */
struct quota_request qref_world_request(const struct qref_request *r, const char *id, int64_t now_ns);

/* What must hold of any state of the engine, whatever happened: devices are leased or held once, on devices that there are;
 * a hold waits for a lease that is there and told to go; an order that is not yet acknowledged has a hold that waits for it;
 * the figures add up. */
bool qref_sound(const struct quota_state *s, struct buf *why);

#endif
