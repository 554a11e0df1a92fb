/* aggregator/core/attribution.h - whose usage it is: the first rule that matches a holder. Pure. */
#ifndef TOLLGATE_CORE_ATTRIBUTION_H
#define TOLLGATE_CORE_ATTRIBUTION_H

#include "common/wire.h"

struct attribution_rule {
	int64_t id;            /* of the row; document order breaks ties of priority through it */
	int64_t workspace_id;
	int64_t priority;
	const char *cluster, *ns, *slurm_account, *user; /* NULL: matches anything */
};

/* Sorts in the order in which rules are asked: priority, then id. */
void attribution_sort(struct attribution_rule *rules, size_t n);
/* The rule that owns the holder, or NULL: unattributed. A pattern on a field that the holder does not have never matches. */
const struct attribution_rule *attribution_match(const struct attribution_rule *rules, size_t n, const char *cluster, const struct wire_holder *holder);

#endif
