/* tests/support/quota/quotaworld.h - random small quota worlds and what happens in them, for the property tests.
 *
 * What an event is about is drawn as a number and becomes a lease, request or node when it happens, so that a shorter list of events
 * still means something. */
#ifndef TOLLGATE_TESTS_QUOTAWORLD_H
#define TOLLGATE_TESTS_QUOTAWORLD_H

#include "aggregator/core/quota/engine/quota.h"
#include "tests/support/harness/prop.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define QUOTAWORLD_EVENTS 120
#else
#define QUOTAWORLD_EVENTS 1900
#endif
#define QUOTAWORLD_THINGS 6

struct quotaworld_step {
	uint8_t kind, pick, count, detail[6];
	uint8_t age; /* seconds that the requests of a submission have waited before */
	int32_t advance_s;
};

struct quotaworld {
	struct quota_settings settings;
	struct quota_tenant tenants[QUOTAWORLD_THINGS];
	struct quota_workspace workspaces[QUOTAWORLD_THINGS];
	struct quota_share shares[2 * QUOTAWORLD_THINGS];
	struct quota_cap caps[QUOTAWORLD_THINGS];
	struct {
		int32_t tenant, shape, count, gpus;
	} nodes[QUOTAWORLD_THINGS];
	size_t tenant_count, workspace_count, share_count, cap_count, node_count;
	struct quotaworld_step events[QUOTAWORLD_EVENTS];
	size_t event_count;
};

void quotaworld_generate(struct prop_source *s, void *c);
/* As it drew before there were adoptions and ages: for seeds of that time. */
void quotaworld_generate_first(struct prop_source *s, void *c);
void quotaworld_describe(const void *c, struct buf *out);
MUST_CHECK bool quotaworld_load(const struct quotaworld *k, struct quota_state **ret, struct err *err);

/* Everything an event points to. */
struct quotaworld_event {
	int64_t now_ns;
	struct quota_event event;
	struct quota_request requests[3];
	char ids[4][QUOTA_ID_SIZE];
	struct quota_slots slots[2];
	struct quota_exception exception;
	struct quota_policy policy;
	struct quota_share shares[64];
	struct quota_workspace workspaces[QUOTAWORLD_THINGS];
	struct quota_lease adopted;
	struct quota_part parts[4];
};
const struct quota_event *quotaworld_event(const struct quotaworld *k, size_t i, const struct quota_world *now,
                                           struct quotaworld_event *ret);

/* Whether a tenant's nodes have whole GPUs only. */
bool quotaworld_only_whole(const struct quota_world *w, int32_t tenant);

#endif
