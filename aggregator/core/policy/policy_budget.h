/* aggregator/core/policy/policy_budget.h - the key budget of a tenant or a workspace: what it means to spend in a month. Only for the
 * readers and writers of the file. */
#ifndef TOLLGATE_POLICY_BUDGET_H
#define TOLLGATE_POLICY_BUDGET_H

#include "aggregator/core/policy/policy.h"

/* budget: {amount: "1000.00", currency: EUR, kind: soft} {gpu_hours: 500, kind: hard} or {tokens: 5000000}; soft when not said. */
MUST_CHECK bool policy_read_budget(const struct yaml_doc *doc, const struct yaml_node *map, struct policy_budget *ret,
                                   struct err *err);
/* As the file has it; nothing when there is none. */
void policy_budget_text(const struct policy_budget *b, struct buf *out);

#endif
