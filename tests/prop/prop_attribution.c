/* tests/prop/prop_attribution.c - rules and patterns against the plainest way to say what they mean. */
#include <string.h>

#include "aggregator/core/policy/attribution.h"
#include "aggregator/core/policy/policy.h"
#include "tests/support/harness/prop.h"

#define MAX_TEXT 8u
#define MAX_RULES 12u

/* Few letters, so that patterns meet texts; the simplest is the empty one. */
static void
draw_text(struct prop_source *s, const char *letters, char out[MAX_TEXT + 1])
{
	size_t n = prop_index(s, MAX_TEXT + 1);

	for (size_t i = 0; i < n; i++)
		out[i] = letters[prop_index(s, strlen(letters))];
	out[n] = '\0';
}

/* The definition: * is nothing, or one character and * again. */
static bool
means(const char *pattern, const char *text)
{
	if (*pattern == '\0')
		return *text == '\0';
	if (*pattern == '*')
		return means(pattern + 1, text) || (*text != '\0' && means(pattern, text + 1));
	return *text != '\0' && (*pattern == '?' || *pattern == *text) && means(pattern + 1, text + 1);
}

struct pattern_case {
	char pattern[MAX_TEXT + 1], text[MAX_TEXT + 1];
};

static void
generate_pattern(struct prop_source *s, void *c)
{
	struct pattern_case *p = c;

	draw_text(s, "ab*?", p->pattern);
	draw_text(s, "ab", p->text);
}

static void
describe_pattern(const void *c, struct buf *out)
{
	const struct pattern_case *p = c;

	buf_printf(out, "pattern \"%s\" on \"%s\"", p->pattern, p->text);
}

static bool
patterns_mean_what_they_say(const void *c, struct buf *why)
{
	const struct pattern_case *p = c;
	bool found = pattern_match(p->pattern, p->text);

	buf_printf(why, "%s", found ? "a match" : "no match");
	return found == means(p->pattern, p->text);
}

/* ---- rules ---- */

#define TEXTS 5u /* cluster, namespace, account, user, group */
#define KEYS 3u  /* labels there can be */

/* Which of the keys a pod has with which value, or a rule with which pattern. */
struct label_case {
	bool given[KEYS];
	char values[KEYS][MAX_TEXT + 1];
};

static const char *const keys[KEYS] = {"k", "kk", "x.io/k"};

struct rules_case {
	char texts[MAX_RULES][TEXTS][MAX_TEXT + 1];
	bool given[MAX_RULES][TEXTS];
	struct label_case patterns[MAX_RULES];
	struct label_case labels;
	int64_t priorities[MAX_RULES];
	size_t count;
	size_t swaps[MAX_RULES];
	uint32_t kind;
	char ns[MAX_TEXT + 1], account[MAX_TEXT + 1], user[MAX_TEXT + 1], group[MAX_TEXT + 1], cluster[MAX_TEXT + 1];
	int64_t uid;
};

static void
draw_labels(struct prop_source *s, const char *letters, size_t rare, struct label_case *l)
{
	for (size_t k = 0; k < KEYS; k++) {
		l->given[k] = prop_index(s, rare) == 0;
		draw_text(s, letters, l->values[k]);
	}
}

/* NULL: none. */
static char *
labels_of(const struct label_case *l)
{
	struct labels_set set = {0};

	for (size_t k = KEYS; k-- > 0;)
		if (l->given[k])
			ASSERT(labels_put(&set, keys[k], l->values[k]));
	return set.count ? labels_join(&set) : NULL;
}

static void
generate_rules(struct prop_source *s, void *c)
{
	struct rules_case *r = c;

	r->count = prop_index(s, MAX_RULES + 1);
	r->kind = WIRE_POD + (uint32_t)prop_index(s, 3);
	draw_text(s, "ab", r->ns);
	draw_text(s, "ab", r->account);
	draw_text(s, "ab1", r->user);
	draw_text(s, "ab", r->group);
	draw_text(s, "ab", r->cluster);
	draw_labels(s, "ab", 2, &r->labels);
	r->uid = prop_i64(s, -1, 12);
	for (size_t i = 0; i < r->count; i++) {
		r->priorities[i] = (int64_t)prop_index(s, 3);
		r->swaps[i] = prop_index(s, i + 1);
		for (size_t f = 0; f < TEXTS; f++) {
			r->given[i][f] = prop_index(s, 3) == 0;
			draw_text(s, "ab1*?", r->texts[i][f]);
		}
		draw_labels(s, "ab*?", 4, &r->patterns[i]);
	}
}

static void
describe_rules(const void *c, struct buf *out)
{
	const struct rules_case *r = c;

	owned(mem) char *labels = labels_of(&r->labels);

	buf_printf(out,
	           "holder of kind %u: cluster \"%s\" namespace \"%s\" account \"%s\" user \"%s\" uid %" PRId64
	           " group \"%s\" labels \"%s\"",
	           r->kind, r->cluster, r->ns, r->account, r->user, r->uid, r->group, labels ? labels : "");
	for (size_t i = 0; i < r->count; i++) {
		buf_printf(out, "\n#     rule %zu priority %" PRId64, i, r->priorities[i]);
		for (size_t f = 0; f < TEXTS; f++)
			buf_printf(out, " %s%s", r->given[i][f] ? "" : "-", r->given[i][f] ? r->texts[i][f] : "");
		owned(mem) char *patterns = labels_of(&r->patterns[i]);
		buf_printf(out, " %s", patterns ? patterns : "-");
	}
}

/* A pod's labels are in the holder of any kind: the rules must not look at them there. */
static struct wire_holder
holder_of(struct rules_case *r, char *labels)
{
	static char none[] = "";

	return (struct wire_holder){.kind = r->kind,
	                            .ns = r->ns,
	                            .pod = none,
	                            .pod_uid = none,
	                            .container = none,
	                            .slurm_job = none,
	                            .slurm_account = r->account,
	                            .user = r->user,
	                            .uid = r->uid,
	                            .group = r->group,
	                            .labels = labels ? labels : none};
}

static void
rules_of(const struct rules_case *r, struct attribution_rule *rules, char **labels)
{
	for (size_t i = 0; i < r->count; i++) {
		labels[i] = labels_of(&r->patterns[i]);
		rules[i] = (struct attribution_rule){.id = (int64_t)i,
		                                     .workspace_id = (int64_t)i,
		                                     .priority = r->priorities[i],
		                                     .cluster = r->given[i][0] ? r->texts[i][0] : NULL,
		                                     .ns = r->given[i][1] ? r->texts[i][1] : NULL,
		                                     .slurm_account = r->given[i][2] ? r->texts[i][2] : NULL,
		                                     .user = r->given[i][3] ? r->texts[i][3] : NULL,
		                                     .group = r->given[i][4] ? r->texts[i][4] : NULL,
		                                     .labels = labels[i]};
	}
}

static bool
field_means(const char *pattern, bool has, const char *value)
{
	return pattern == NULL || (has && value[0] != '\0' && means(pattern, value));
}

static bool
labels_mean(const struct label_case *patterns, bool pod, const struct label_case *labels)
{
	for (size_t k = 0; k < KEYS; k++)
		if (patterns->given[k] && !(pod && labels->given[k] && means(patterns->values[k], labels->values[k])))
			return false;
	return true;
}

static bool
rule_means(const struct attribution_rule *rule, const struct rules_case *r)
{
	owned(mem) char *uid = r->uid >= 0 ? mem_printf("%" PRId64, r->uid) : mem_strdup("");
	bool pod = r->kind == WIRE_POD;

	return field_means(rule->cluster, true, r->cluster) && field_means(rule->ns, pod, r->ns) &&
	       field_means(rule->slurm_account, r->kind == WIRE_SLURM_JOB, r->account) &&
	       (field_means(rule->user, !pod, r->user) || field_means(rule->user, !pod, uid)) &&
	       field_means(rule->group, !pod, r->group) && labels_mean(&r->patterns[rule->id], pod, &r->labels);
}

/* Shuffled, sorted and asked, against the best of all that match. */
static bool
the_first_matching_rule_owns(const void *c, struct buf *why)
{
	struct rules_case r;
	struct attribution_rule rules[MAX_RULES];
	char *labels[MAX_RULES];
	owned(mem) char *held = NULL;
	const struct attribution_rule *found;
	struct wire_holder h;
	int64_t want = -1;

	memcpy(&r, c, sizeof(r));
	rules_of(&r, rules, labels);
	held = labels_of(&r.labels);
	for (size_t i = 0; i < r.count; i++)
		if (rule_means(&rules[i], &r) && (want < 0 || rules[i].priority < rules[want].priority))
			want = (int64_t)i;
	for (size_t i = r.count; i > 1; i--) {
		struct attribution_rule kept = rules[i - 1];

		rules[i - 1] = rules[r.swaps[i - 1]];
		rules[r.swaps[i - 1]] = kept;
	}
	attribution_sort(rules, r.count);
	h = holder_of(&r, held);
	found = attribution_match(rules, r.count, r.cluster, &h);
	for (size_t i = 0; i < r.count; i++)
		mem_free(labels[i]);
	buf_printf(why, "rule %" PRId64 ", not %" PRId64, found ? found->id : -1, want);
	return (found ? found->id : -1) == want;
}

int
main(void)
{
	static const struct prop_test tests[] = {
		{"a pattern matches exactly the texts it describes", sizeof(struct pattern_case), generate_pattern,
	         patterns_mean_what_they_say, describe_pattern, NULL},
		{"the first rule by priority and id that matches owns the holder, in whatever order they came",
	         sizeof(struct rules_case), generate_rules, the_first_matching_rule_owns, describe_rules, NULL},
	};

	return prop_main("prop_attribution", tests, ARRAY_LEN(tests));
}
