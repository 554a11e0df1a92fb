/* aggregator/core/policy/policy_read.h - typed values of the policy file, with errors that name file, line, field, value and
 * limit. Only for the readers of the file. */
#ifndef TOLLGATE_POLICY_READ_H
#define TOLLGATE_POLICY_READ_H

#include "aggregator/core/policy/policy.h"

/* How much of a wrong value an error shows: not so much that the reason behind it is cut off, and whole characters. */
int policy_shown(const char *text);

/* A text of at most max bytes without control or direction characters. `preset` stands for a missing key; "" also lets the
 * value be empty, and NULL leaves *ret NULL. */
MUST_CHECK bool policy_read_text(const struct yaml_doc *doc, const struct yaml_node *map, const char *key,
                                 const char *preset, size_t max, char **ret, struct err *err);
/* A value that a rule of policy_check.c must accept; a missing key is an error. `what` is the thing that has the
 * key. */
MUST_CHECK bool policy_read_checked(const struct yaml_doc *doc, const struct yaml_node *map, const char *what,
                                    const char *key, const char *(*fault)(const char *), char **ret, struct err *err);
MUST_CHECK bool policy_read_optional(const struct yaml_doc *doc, const struct yaml_node *map, const char *what,
                                     const char *key, const char *(*fault)(const char *), char **ret, struct err *err);
/* One of the NULL-ended words, of which *ret is then one; a missing key leaves *ret as it is. */
MUST_CHECK bool policy_read_word(const struct yaml_doc *doc, const struct yaml_node *map, const char *key,
                                 const char *const *words, const char **ret, struct err *err);
/* The list under a key; NULL in *ret and true when the key is missing. */
MUST_CHECK bool policy_read_list(const struct yaml_doc *doc, const struct yaml_node *map, const char *key, size_t max,
                                 const struct yaml_node **ret, struct err *err);
/* An amount of GPUs. */
MUST_CHECK bool policy_read_amounts(const struct yaml_doc *doc, const struct yaml_node *map, const char *key,
                                    struct policy_amounts *ret, struct err *err);
/* limits: {cpu: 64 or 500m, memory: 512Gi, storage: 10Ti}. */
MUST_CHECK bool policy_read_resources(const struct yaml_doc *doc, const struct yaml_node *map,
                                      struct policy_resources *ret, struct err *err);
/* The keys of a tenant and of a workspace that say what it may have, and of the file; policy_read_quota.c. */
MUST_CHECK bool policy_read_tenant_quota(const struct yaml_doc *doc, const struct yaml_node *n, struct policy_tenant *t,
                                         struct err *err);
MUST_CHECK bool policy_read_workspace_quota(const struct yaml_doc *doc, const struct yaml_node *n,
                                            struct policy_workspace *w, struct err *err);
/* The priority classes that somebody may use: a list of names, at most LIMIT_CLASSES of them. An empty list allows none; *ret is NULL
 * when there is no key priority_classes, which allows all. That they exist is for the caller to see. */
MUST_CHECK bool policy_read_class_names(const struct yaml_doc *doc, const struct yaml_node *map,
                                        const struct yaml_node **ret, struct err *err);
MUST_CHECK bool policy_read_classes(const struct yaml_doc *doc, struct policy *p, struct err *err);
/* policy_read_price.c; *ret is NULL when there is no key prices. Also after an error the caller owns *ret. */
MUST_CHECK bool policy_read_book(const struct yaml_doc *doc, struct policy_book **ret, struct err *err);
/* policy_read_nodes.c */
MUST_CHECK bool policy_read_nodes(const struct yaml_doc *doc, struct policy *p, struct err *err);

#endif
