/* aggregator/core/policy/policy_diff.h - between the files that write the differences of two policies. */
#ifndef TOLLGATE_POLICY_DIFF_H
#define TOLLGATE_POLICY_DIFF_H

#include <string.h>

#include "aggregator/core/policy/policy.h"

struct diff {
	struct buf *out;
	size_t changes;
	size_t *asked_last; /* per priority: which workspace of the old file had the rule seen last */
	bool reordered;
};

/* One line; the format ends in a newline. */
#define CHANGE(d, ...) ((d)->changes++, buf_printf((d)->out, __VA_ARGS__))

static inline bool
diff_same_text(const char *a, const char *b)
{
	return a != NULL && b != NULL ? strcmp(a, b) == 0 : a == b;
}

/* The entry of that name; `hint` is where to look first. Files keep their order, so it is nearly always there. */
const void *diff_find(const void *array, size_t n, size_t size, const char *name, size_t *hint);

/* policy_diff_quota.c; `from` is NULL for what is new. */
void diff_classes(struct diff *d, const struct policy *from, const struct policy *to);
void diff_tenant_quota(struct diff *d, const struct policy_tenant *from, const struct policy_tenant *to);
void diff_workspace_quota(struct diff *d, const char *name, const struct policy_workspace *from,
                          const struct policy_workspace *to);
void diff_nodes(struct diff *d, const struct policy *from, const struct policy *to);
/* policy_diff_price.c */
void diff_books(struct diff *d, const struct policy_book *from, const struct policy_book *to);

#endif
