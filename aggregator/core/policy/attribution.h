/* aggregator/core/policy/attribution.h - attribution: the first rule that matches a holder decides to which workspace its usage belongs. Pure.
 *
 * Rules, in order:
 *  1. rules are asked by priority, lowest number first, then by id
 *  2. a rule matches when every pattern it has matches
 *  3. a pattern on a field that the holder does not have never matches, not even *
 *  4. a namespace and labels are a pod's, an account a Slurm job's, a user and a group a Slurm job's or a host user's:
 *     the author of a pod chooses the uid inside it, so that uid decides nothing
 *  5. a user pattern is tried on the name and on the uid in decimal
 *  6. labels match when the pod has every key of the rule, with a value that the key's pattern matches; a label may
 *     have the empty value, which * matches
 *  7. no rule matches: unattributed */
#ifndef TOLLGATE_ATTRIBUTION_H
#define TOLLGATE_ATTRIBUTION_H

#include "common/wire/wire.h"

struct attribution_rule {
	int64_t id; /* of the row; document order breaks ties of priority through it */
	int64_t workspace_id;
	int64_t priority;
	const char *cluster, *ns, *slurm_account, *user, *group; /* NULL: matches anything */
	const char *
		labels; /* NULL: matches anything; else as common/base/labels.h writes them, with patterns for values */
};

/* Shell-like pattern with * and ?; no recursion on hostile patterns (linear in practice). */
bool pattern_match(const char *pattern, const char *text);

/* Sorts in the order in which rules are asked: priority, then id. */
void attribution_sort(struct attribution_rule *rules, size_t n);
/* The rule that owns the holder, or NULL: unattributed. The rules are sorted. */
const struct attribution_rule *attribution_match(const struct attribution_rule *rules, size_t n, const char *cluster,
                                                 const struct wire_holder *holder);

#endif
