/* aggregator/core/policy/policy_sla.h - the key sla of a tenant or a workspace: what it was promised. Only for the readers and writers of the file. */
#ifndef TOLLGATE_POLICY_SLA_H
#define TOLLGATE_POLICY_SLA_H

#include "aggregator/core/policy/policy.h"

/* sla: {owed_wait: 10m, delivered: "99.5"}, at least one of the two. */
MUST_CHECK bool policy_read_sla(const struct yaml_doc *doc, const struct yaml_node *map, struct policy_sla *ret,
                                struct err *err);
/* As the file has it; nothing when there is none. */
void policy_sla_text(const struct policy_sla *s, struct buf *out);

#endif
