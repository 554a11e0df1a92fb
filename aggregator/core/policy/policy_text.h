/* aggregator/core/policy/policy_text.h - the fields of tenants, workspaces and nodes as text, for those who show or write a
 * policy. */
#ifndef TOLLGATE_POLICY_TEXT_H
#define TOLLGATE_POLICY_TEXT_H

#include "aggregator/core/policy/policy.h"

#define POLICY_FIELD_MAX (64u << 10)

/* The nth field: its key, and its value in *out as the file has it; "" when the key would be absent. NULL after the last. */
const char *policy_tenant_field(const struct policy_tenant *t, size_t nth, struct buf *out);
const char *policy_workspace_field(const struct policy_workspace *w, size_t nth, struct buf *out);
const char *policy_node_field(const struct policy_node *n, size_t nth, struct buf *out);

/* What the keys are when they are absent. */
extern const struct policy_tenant policy_tenant_preset;
extern const struct policy_workspace policy_workspace_preset;
extern const struct policy_node policy_node_preset;

#endif
