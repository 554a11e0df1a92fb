/* aggregator/core/policy/policy_capacity.h - what the nodes have, and what of it is reserved. Pure.
 *
 * Rules:
 *  1. a pool is a cluster's nodes of one tenant, or its shared ones, per GPU model; retired nodes and GPUs are in none
 *  2. a node has what was seen on it; one that was never seen has what the file declares. A node in maintenance keeps its
 *     part: declared capacity is what there is when all is well
 *  3. a partitioned GPU has its instances, any other itself
 *  4. an amount without a model is of the only model of its pool; one with the name of a family ("H100") of the only model of
 *     that family. Where there are none or several, it is refused
 *  5. in each pool what is reserved is at most what there is, and of a MIG profile at most the instances there are
 *  6. a limit may name a model that is nowhere yet, but not a family of which there are several models */
#ifndef TOLLGATE_POLICY_CAPACITY_H
#define TOLLGATE_POLICY_CAPACITY_H

#include "aggregator/core/policy/policy.h"

/* Whole GPUs (profile ""), or instances of a profile, of one GPU that is in service. */
struct policy_seen {
	const char *node, *gpu; /* name, UUID */
	const char *model;      /* short */
	const char *profile;
	int64_t count, units; /* how many, and what one weighs */
};

struct policy_reservation {
	const char *tenant, *workspace, *cluster;
	bool shared;
	const char *model, *profile;
	int64_t instances; /* of the profile; 0 without one */
	int64_t units;
};
struct policy_reservations {
	struct policy_reservation *at;
	size_t count;
}; /* texts are the policy's and those of what was seen */
void policy_reservations_fini(struct policy_reservations *r);

/* The reservations of a policy, each with its model; those of one tenant alone when `only` is given, and then rule 5 is not
 * asked: what one tenant has was granted when the others' was. ERR_INVALID names file, line, workspace and the numbers. */
MUST_CHECK bool policy_reserve(const struct policy *p, const struct policy_seen *seen, size_t count, const char *only,
                               const char *file, struct policy_reservations *ret, struct err *err);

#endif
