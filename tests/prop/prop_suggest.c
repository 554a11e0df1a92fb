/* tests/prop/prop_suggest.c - a draft of a policy owns nearly all of what was seen, and takes nothing away. */
#include <stdio.h>
#include <string.h>

#include "aggregator/core/policy/attribution.h"
#include "aggregator/core/policy/suggest.h"
#include "tests/support/harness/prop.h"

#define MAX_USES 120u
#define TEXT 48

struct use {
	uint32_t kind;
	char ns[TEXT], account[TEXT], user[TEXT], group[TEXT], labels[TEXT];
	int64_t uid, unit_ns;
};
struct fleet_case {
	size_t count;
	struct use uses[MAX_USES];
	size_t current; /* which of the policies is in force; 0: none */
};

/* What is in force: flow and block, quoted and plain, quotas, prices, and rules that own some of what is seen. */
static const char *const policies[] = {
	NULL,
	"version: 1\ncluster: c\ntenants: []\n",
	"version: 1\ncluster: c\neffective: 2026-11-01T00:00:00Z\ntenants: [{name: acme, cost_center: \"007\", workspaces: [{name: dev, "
	"rules: [{namespace: acme-dev}]}]}]\nnodes: [{name: n1, shared: true}]\n"
	"prices: {version: \"2026-11\", currency: EUR, items: [{price: \"1.50\"}, {gpu_model: H100-80GB, price: \"2\"}]}\n",
	"version: 1\ncluster: c\ntenants:\n  - name: hosts\n    display_name: \"Hosts: all of them\"\n  - name: team\n    workspaces:\n"
	"      - name: default\n        description: 'it''s #1'\n        rules:\n          - {namespace: team, labels: {team: \"ml*\"}}\n"
	"          - {user: \"*\", cluster: c}\n",
};

static const char *
draw_word(struct prop_source *s)
{
	static const char *const words[] = {"a", "acme", "team", "ml", "Web", "x9", "platform", "true", "007"};

	return words[prop_index(s, ARRAY_LEN(words))];
}

static void
draw_name(struct prop_source *s, bool free, char out[TEXT])
{
	static const char separators[] = "-._";

	if (prop_index(s, 4) == 0)
		snprintf(out, TEXT, "%s", draw_word(s));
	else
		snprintf(out, TEXT, "%s%c%s%u", draw_word(s), free ? separators[prop_index(s, 3)] : '-', draw_word(s),
		         (unsigned)prop_index(s, 40));
	if (!free)
		for (char *p = out; *p != '\0'; p++)
			*p = (char)(*p >= 'A' && *p <= 'Z' ? *p | 0x20 : *p);
	if (free && prop_index(s, 12) == 0)
		snprintf(out, TEXT, "%s", (const char *const[]){"", "#1 \"x\"", "-", "ü: y", "*"}[prop_index(s, 5)]);
}

static void
generate(struct prop_source *s, void *c)
{
	static const char *const labels[] = {"", "team=ml", "team=web", "app=x,team=ml", "owner=zoe", "tenant=acme"};
	struct fleet_case *f = c;

	f->current = prop_index(s, ARRAY_LEN(policies));
	f->count = prop_index(s, MAX_USES + 1);
	for (size_t i = 0; i < f->count; i++) {
		struct use *u = &f->uses[i];

		u->kind = (uint32_t)(1 + prop_index(s, 3));
		u->uid = prop_i64(s, -1, 3000);
		u->unit_ns = prop_i64(s, 0, INT64_C(1) << 50);
		if (u->kind == WIRE_POD) {
			draw_name(s, false, u->ns);
			snprintf(u->labels, sizeof(u->labels), "%s", labels[prop_index(s, ARRAY_LEN(labels))]);
			continue;
		}
		if (u->kind == WIRE_SLURM_JOB)
			draw_name(s, true, u->account);
		draw_name(s, true, u->user);
		if (prop_bool(s))
			draw_name(s, true, u->group);
	}
}

static void
describe(const void *c, struct buf *out)
{
	const struct fleet_case *f = c;

	buf_printf(out, "policy %zu in force\n", f->current);
	for (size_t i = 0; i < f->count; i++)
		buf_printf(out,
		           "kind %u ns \"%s\" account \"%s\" user \"%s\" uid %lld group \"%s\" labels \"%s\": %lld\n",
		           f->uses[i].kind, f->uses[i].ns, f->uses[i].account, f->uses[i].user,
		           (long long)f->uses[i].uid, f->uses[i].group, f->uses[i].labels,
		           (long long)f->uses[i].unit_ns);
}

/* The rules of a policy, as attribution asks them. */
static size_t
rules_of(const struct policy *p, struct attribution_rule *out)
{
	size_t n = 0;

	for (size_t t = 0; p != NULL && t < p->tenant_count; t++)
		for (size_t w = 0; w < p->tenants[t].workspace_count; w++)
			for (size_t i = 0; i < p->tenants[t].workspaces[w].rule_count; i++, n++) {
				const struct policy_rule *r = &p->tenants[t].workspaces[w].rules[i];

				if (out != NULL)
					out[n] = (struct attribution_rule){.id = (int64_t)n,
					                                   .workspace_id = (int64_t)(1000 * t + w),
					                                   .priority = r->priority,
					                                   .cluster = r->cluster,
					                                   .ns = r->ns,
					                                   .slurm_account = r->slurm_account,
					                                   .user = r->user,
					                                   .group = r->group,
					                                   .labels = r->labels};
			}
	return n;
}

static const struct attribution_rule *
owner(const struct policy *p, const struct wire_holder *h)
{
	size_t n = rules_of(p, NULL);
	static struct attribution_rule rules[20000];

	ASSERT(n <= ARRAY_LEN(rules));
	rules_of(p, rules);
	attribution_sort(rules, n);
	return attribution_match(rules, n, "c", h);
}

static struct wire_holder
holder_of(struct use *u)
{
	static char none[] = "";

	return (struct wire_holder){.id = 1,
	                            .kind = u->kind,
	                            .ns = u->ns,
	                            .pod = none,
	                            .pod_uid = none,
	                            .container = none,
	                            .slurm_job = none,
	                            .slurm_account = u->account,
	                            .user = u->user,
	                            .uid = u->uid,
	                            .group = u->group,
	                            .labels = u->labels};
}

/* Nothing in it that a rule could name: such time stays unattributed whatever a policy says. */
static bool
nameless(const struct use *u)
{
	return u->kind != WIRE_POD && u->account[0] == '\0' && u->user[0] == '\0' && u->uid < 0 && u->group[0] == '\0';
}

static bool
same_name(const struct policy *a, const struct attribution_rule *x, const struct policy *b,
          const struct attribution_rule *y)
{
	const struct policy_tenant *s = &a->tenants[x->workspace_id / 1000], *t = &b->tenants[y->workspace_id / 1000];

	return strcmp(s->name, t->name) == 0 &&
	       strcmp(s->workspaces[x->workspace_id % 1000].name, t->workspaces[y->workspace_id % 1000].name) == 0;
}

static bool
a_draft_owns_nearly_all_and_takes_nothing_away(const void *c, struct buf *why)
{
	struct fleet_case *f = mem_array(1, sizeof(*f));
	static struct suggest_use uses[MAX_USES];
	static const struct suggest_node nodes[] = {{"n1", "c", true},
	                                            {"n2.example", "c", false},
	                                            {"bad name", "c", false}};
	const char *text = policies[((const struct fleet_case *)c)->current];
	owned(policy) struct policy *before = NULL, *after = NULL;
	in_place(buf) struct buf draft, diff;
	struct err err = {0};
	int128 total = 0, owned_ns = 0;
	bool ok = true;

	memcpy(f, c, sizeof(*f));
	buf_init(&draft, 4u << 20);
	buf_init(&diff, 4u << 20);
	if (text != NULL)
		ok = policy_parse("before", text, strlen(text), &before, &err);
	for (size_t i = 0; ok && i < f->count; i++) {
		uses[i] = (struct suggest_use){.cluster = "c",
		                               .holder = holder_of(&f->uses[i]),
		                               .unit_ns = f->uses[i].unit_ns};
		uses[i].attributed = owner(before, &uses[i].holder) != NULL;
	}
	ok = ok &&
	     suggest_policy(&(struct suggest_input){.cluster = "c",
	                                            .to_ns = INT64_C(3600000000000),
	                                            .uses = uses,
	                                            .use_count = f->count,
	                                            .nodes = nodes,
	                                            .node_count = ARRAY_LEN(nodes),
	                                            .current = text,
	                                            .current_len = text != NULL ? strlen(text) : 0},
	                    &draft, &err) &&
	     policy_parse("draft", buf_text(&draft), draft.len, &after, &err);
	if (!ok)
		buf_printf(why, "%s\n%s", err.text, buf_text(&draft));
	for (size_t i = 0; ok && i < f->count; i++) {
		const struct attribution_rule *was = owner(before, &uses[i].holder), *is;

		is = owner(after, &uses[i].holder);
		if (!nameless(&f->uses[i]))
			total += uses[i].unit_ns;
		if (!nameless(&f->uses[i]) && is != NULL)
			owned_ns += uses[i].unit_ns;
		if (was != NULL && (is == NULL || !same_name(before, was, after, is))) {
			buf_printf(why, "use %zu has another owner\n%s", i, buf_text(&draft));
			ok = false;
			break;
		}
	}
	if (ok && owned_ns * 100 < total * 95) {
		buf_printf(why, "less than 95 %% is owned\n%s", buf_text(&draft));
		ok = false;
	}
	/* Line by line: a draft only adds. */
	policy_diff(before, after, &diff);
	for (const char *line = buf_text(&diff); ok && *line != '\0'; line = strchr(line, '\n') + 1)
		if (line[0] != '+') {
			buf_printf(why, "it changes what was in force: %s\n%s", line, buf_text(&draft));
			ok = false;
		}
	mem_free(f);
	return ok;
}

int
main(void)
{
	static const struct prop_test tests[] = {
		{"a draft owns at least 95 % of what a rule can name, and everything in force stays as it was",
	         sizeof(struct fleet_case), generate, a_draft_owns_nearly_all_and_takes_nothing_away, describe, NULL},
	};

	return prop_main("prop_suggest", tests, ARRAY_LEN(tests));
}
