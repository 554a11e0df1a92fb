/* aggregator/core/policy/policy_exception.h - the key auto_approve of a tenant: which exceptions need nobody's word. Only for the readers and
 * writers of the file. */
#ifndef TOLLGATE_POLICY_EXCEPTION_H
#define TOLLGATE_POLICY_EXCEPTION_H

#include "aggregator/core/policy/policy.h"

/* auto_approve: {max: 2, for: 24h}: GPUs, or a part of one, of one model at a time; each for no longer than this. */
MUST_CHECK bool policy_read_auto_approve(const struct yaml_doc *doc, const struct yaml_node *map,
                                         struct policy_auto_approve *ret, struct err *err);
/* As the file has it; nothing when there is none. */
void policy_auto_approve_text(const struct policy_auto_approve *a, struct buf *out);

#endif
