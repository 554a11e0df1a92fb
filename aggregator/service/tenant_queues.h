/* aggregator/service/tenant_queues.h - requests that wait for a thread, in one queue per tenant.
 *
 * Rules, in order:
 *  1. requests of a tenant keep their order; requests about no tenant have a queue of their own
 *  2. tenants take turns: a tenant that was served goes behind the others
 *  3. at most `alone` requests of one tenant are taken at once, and at most `beside` if several tenants had requests within the last
 *     second, because the others wait for them
 *
 * For one thread, or under a lock. */
#ifndef TOLLGATE_TENANT_QUEUES_H
#define TOLLGATE_TENANT_QUEUES_H

#include "aggregator/service/decider.h"

#define QUEUES_SERVED 16
#define QUEUE_BUCKETS 256

struct tenant_queues {
	struct tenant_queue *first, *last; /* in the order of turns; none is empty */
	size_t count;
	struct tenant_queue *buckets[QUEUE_BUCKETS]; /* the same queues by hash */
	int64_t crowded_ns;                          /* when several tenants last had requests */
	uint64_t served[QUEUES_SERVED]; /* hashes of the tenants of the last take, or of the first of them */
	size_t served_count;
};

void tenant_queues_add(struct tenant_queues *q, struct capacity_request *item);
struct capacity_request *tenant_queues_take(struct tenant_queues *q, size_t most, size_t alone, size_t beside);
/* Removes from a list the requests whose client has disconnected, and returns them: nobody would read the reply. */
struct capacity_request *capacity_requests_gone(struct capacity_request **items);
/* Whether a tenant waits that was not served by the last take. */
bool tenant_queues_has_other(const struct tenant_queues *q);

#endif
