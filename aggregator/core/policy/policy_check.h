/* aggregator/core/policy/policy_check.h - what a value of the policy file may be, and what must agree across the file.
 * Only for the reader of the file. Pure. */
#ifndef TOLLGATE_POLICY_CHECK_H
#define TOLLGATE_POLICY_CHECK_H

#include "aggregator/core/policy/policy.h"

/* Each of these is NULL for a value that is allowed, else the reason as the end of a sentence: "has 64 characters,
 * at most 63 are allowed". */
const char *policy_label_fault(const char *text);   /* names of clusters, tenants and workspaces */
const char *policy_node_fault(const char *text);    /* host names, as Kubernetes and Slurm write them */
const char *policy_ns_fault(const char *text);      /* patterns of namespaces */
const char *policy_value_fault(const char *text);   /* patterns of a label's values */
const char *policy_code_fault(const char *text);    /* sku, price version, GPU model */
const char *policy_profile_fault(const char *text); /* "3g.40gb", "1c.3g.40gb", "1g.10gb+me" */

/* Names that occur twice, rules and prices that can never be reached, nodes of unknown tenants, and what one tenant's quotas
 * contradict. */
MUST_CHECK bool policy_check(const struct policy *p, const char *file, struct err *err);
/* What must agree between tenants, priority classes and nodes. */
MUST_CHECK bool policy_check_whole(const struct policy *p, const char *file, struct err *err);

/* policy_check_quota.c: amounts of one tenant that contradict each other. */
MUST_CHECK bool policy_check_quota(const struct policy_tenant *t, const char *file, struct err *err);

/* policy_check_price.c: prices that are for the same, and tenants and clusters that `p` does not have. No book is right. */
MUST_CHECK bool policy_check_book(const struct policy_book *b, const struct policy *p, const char *file,
                                  struct err *err);
/* Are the two prices, or discounts, for the same? */
bool policy_same_price(const struct policy_price *a, const struct policy_price *b);
bool policy_same_discount(const struct policy_discount *a, const struct policy_discount *b);

#endif
