/* aggregator/core/policy/policy_part.h - the part of the policy that a tenant's administrator may change. Pure.
 *
 * Rules; a refusal names file, line, field and bound, and nothing of any other tenant:
 *  1. the file has exactly its own tenant, in the policy's cluster, and no nodes, prices or priority classes
 *  2. display_name, cost_center, owner, data_boundary, sla, maximum, isolation, priority_classes and limits of the tenant are the operator's:
 *     absent, or as they are
 *  3. the attribution rules are those that the operator gave the tenant, each once, with its priority, in any of its
 *     workspaces: a new pattern could take others' usage, a missing one would leave its own unpaid
 *  4. per pool, model and profile the workspaces reserve together at most what the operator's do
 *  5. no weight is above, and no enforcement looser than, what the operator gave some workspace of the tenant
 *  6. what the operator promised a workspace (sla) is the operator's: absent, or as it is
 *  7. everything else is checked as in any policy, beside the operator's maximum */
#ifndef TOLLGATE_POLICY_PART_H
#define TOLLGATE_POLICY_PART_H

#include "aggregator/core/policy/policy.h"

/* NULL: the policy has no such tenant. */
const struct policy_tenant *policy_tenant_named(const struct policy *p, const char *name);

/* `granted` is the policy as an operator last applied it. */
MUST_CHECK bool policy_part_check(const struct policy *granted, const struct policy *part, const char *tenant,
                                  const char *file, struct err *err);

/* The document in force, with the tenant's lines replaced by what its part says and everything else as it was; where the
 * tenant does not have lines of its own, the whole document written anew. `effective_ns` is written into it, or, when it
 * is INT64_MIN, none. */
MUST_CHECK bool policy_part_merge(const char *document, size_t len, const struct policy *now, const struct policy *part,
                                  int64_t effective_ns, struct buf *out, struct err *err);

#endif
