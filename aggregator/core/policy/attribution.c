/* aggregator/core/policy/attribution.c - the attribution rule that matches a holder. The numbers are those of attribution.h. */
#include "aggregator/core/policy/attribution.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- patterns --- */

/* Past one character of UTF-8, so that ? stands for what a person sees as one. */
static const char *
after_char(const char *text)
{
	text++;
	while (((unsigned char)*text & 0xc0) == 0x80)
		text++;
	return text;
}

/* Only the last * can still take more text: whatever an earlier one could take, the last one can take too. Hence
 * one place to return to, no recursion, and at most |pattern| x |text| steps. */
bool
pattern_match(const char *pattern, const char *text)
{
	const char *star = NULL, *resume = NULL;

	while (*text != '\0') {
		if (*pattern == '*') {
			star = ++pattern;
			resume = text;
		} else if (*pattern == '?') {
			pattern++;
			text = after_char(text);
		} else if (*pattern == *text) {
			pattern++;
			text++;
		} else if (star != NULL) {
			pattern = star;
			resume = after_char(resume);
			text = resume;
		} else {
			return false;
		}
	}
	while (*pattern == '*')
		pattern++;
	return *pattern == '\0';
}

/* --- rules --- */

/* 1 */
static int
compare_rules(const void *a, const void *b)
{
	const struct attribution_rule *x = a, *y = b;

	if (x->priority != y->priority)
		return x->priority < y->priority ? -1 : 1;
	return (x->id > y->id) - (x->id < y->id);
}

void
attribution_sort(struct attribution_rule *rules, size_t n)
{
	if (n > 1)
		qsort(rules, n, sizeof(*rules), compare_rules);
}

/* 3 */
static bool
field_matches(const char *pattern, const char *value)
{
	return pattern == NULL || (value[0] != '\0' && pattern_match(pattern, value));
}

/* The fields of a holder that rules may look at: rules 4 and 5, applied once. */
struct subject {
	const char *cluster;
	const char *ns, *slurm_account, *user, *group, *labels;
	char uid[24];
};

static void
subject_of(const char *cluster, const struct wire_holder *h, struct subject *ret)
{
	*ret = (struct subject){
		.cluster = cluster, .ns = "", .slurm_account = "", .user = "", .group = "", .labels = ""};
	if (h->kind == WIRE_POD) {
		ret->ns = h->ns;
		ret->labels = h->labels;
		return;
	}
	if (h->kind == WIRE_SLURM_JOB)
		ret->slurm_account = h->slurm_account;
	ret->user = h->user;
	ret->group = h->group;
	if (h->uid >= 0)
		snprintf(ret->uid, sizeof(ret->uid), "%" PRId64, h->uid);
}

/* The text of a label's value or of its pattern; false when no label can have so long a one. */
static bool
value_of(const struct label *l, char out[LABEL_MAX_VALUE + 1])
{
	if (l->value_len > LABEL_MAX_VALUE)
		return false;
	memcpy(out, l->value, l->value_len);
	out[l->value_len] = '\0';
	return true;
}

/* 6 */
static bool
labels_match(const char *patterns, const char *labels)
{
	char pattern[LABEL_MAX_VALUE + 1], value[LABEL_MAX_VALUE + 1];
	struct label p, l;

	while (patterns != NULL && labels_next(&patterns, &p))
		if (!labels_find(labels, p.key, p.key_len, &l) || !value_of(&p, pattern) || !value_of(&l, value) ||
		    !pattern_match(pattern, value))
			return false;
	return true;
}

/* 2 */
static bool
rule_matches(const struct attribution_rule *r, const struct subject *s)
{
	return field_matches(r->cluster, s->cluster) && field_matches(r->ns, s->ns) &&
	       field_matches(r->slurm_account, s->slurm_account) &&
	       (field_matches(r->user, s->user) || field_matches(r->user, s->uid)) &&
	       field_matches(r->group, s->group) && labels_match(r->labels, s->labels);
}

const struct attribution_rule *
attribution_match(const struct attribution_rule *rules, size_t n, const char *cluster, const struct wire_holder *holder)
{
	struct subject s;

	subject_of(cluster, holder, &s);
	for (size_t i = 0; i < n; i++)
		if (rule_matches(&rules[i], &s))
			return &rules[i];
	return NULL; /* 7 */
}
