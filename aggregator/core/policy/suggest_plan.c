/* aggregator/core/policy/suggest_plan.c - who claims what. The numbers are those of suggest.h. */
#include "aggregator/core/policy/suggest_plan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "aggregator/core/policy/attribution.h"
#include "aggregator/core/policy/policy_check.h"
#include "common/base/labels.h"
#include "common/base/text.h"

#define SEPARATORS "-_."
#define MANY 8        /* more names of one beginning than this are one pattern */
#define MANY_USERS 50 /* more users than this share a workspace */
#define CLAIMS_MAX 5000
/* Behind the rules of people: 100 is theirs unless they say otherwise. Labels are asked before the namespace they are in, names
 * before patterns. */
enum { PRIORITY_LABEL = 9000, PRIORITY_NAME = 9100, PRIORITY_PATTERN = 9200, PRIORITY_REST = 9900 };

void
plan_fini(struct plan *p)
{
	for (size_t i = 0; i < p->count; i++) {
		mem_free(p->at[i].pattern);
		mem_free(p->at[i].labels);
	}
	mem_free(p->at);
}

const struct policy_tenant *
plan_tenant(const struct policy *current, const char *name)
{
	for (size_t i = 0; current != NULL && i < current->tenant_count; i++)
		if (strcmp(current->tenants[i].name, name) == 0)
			return &current->tenants[i];
	return NULL;
}

/* --- names --- */

/* As policies want them: lower-case letters, digits and '-' between them, and not one of the ledger's own. */
static void
make_name(const char *text, size_t len, char out[CLAIM_NAME])
{
	size_t n = 0;

	for (size_t i = 0; i < len && n < CLAIM_NAME - 8; i++) {
		char c = text[i];

		if (c >= 'A' && c <= 'Z')
			c = (char)(c | 0x20);
		if ((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9'))
			out[n++] = c;
		else if (n > 0 && out[n - 1] != '-')
			out[n++] = '-';
	}
	while (n > 0 && out[n - 1] == '-')
		n--;
	out[n] = '\0';
	if (n == 0)
		snprintf(out, CLAIM_NAME, "unnamed");
	else if (strcmp(out, "unattributed") == 0 || strcmp(out, "platform") == 0)
		memcpy(out + n, "-2", 3);
}

static size_t
beginning(const char *text)
{
	size_t n = strcspn(text, SEPARATORS);

	/* a name that begins with a separator has no beginning of its own */
	return n > 0 ? n : strlen(text);
}

/* --- what is to be claimed --- */

/* A value of a field, and the time of one use with it. */
struct seen {
	enum claim_field field;
	const char *value;
	const struct suggest_use *use;
};

static int
compare_seen(const void *a, const void *b)
{
	const struct seen *x = a, *y = b;
	size_t n = beginning(x->value), m = beginning(y->value);
	int order;

	if (x->field != y->field)
		return x->field < y->field ? -1 : 1;
	order = strncmp(x->value, y->value, n < m ? n : m);
	if (order != 0 || n != m)
		return order != 0 ? order : n < m ? -1 : 1;
	return strcmp(x->value, y->value);
}

/* Rule 4, and what of a holder rules can look at. False: nothing that a rule could name. */
static bool
seen_of(const struct suggest_use *u, char (*uids)[24], struct seen *ret)
{
	const struct wire_holder *h = &u->holder;

	*ret = (struct seen){.use = u};
	if (h->kind == WIRE_POD) {
		ret->field = CLAIM_NAMESPACE;
		ret->value = h->ns;
	} else if (h->kind == WIRE_SLURM_JOB && h->slurm_account[0] != '\0') {
		ret->field = CLAIM_ACCOUNT;
		ret->value = h->slurm_account;
	} else if (h->group[0] != '\0') {
		ret->field = CLAIM_GROUP;
		ret->value = h->group;
	} else {
		ret->field = CLAIM_USER;
		ret->value = h->user;
		if (h->user[0] == '\0' && h->uid >= 0) {
			snprintf(*uids, sizeof(*uids), "%" PRId64, h->uid);
			ret->value = *uids;
		}
	}
	if (ret->field == CLAIM_NAMESPACE)
		return policy_ns_fault(ret->value) == NULL;
	return ret->value[0] != '\0' && text_is_clean(ret->value);
}

static bool
in_force(const struct policy *current, enum claim_field field, const char *pattern, const char *labels)
{
	for (size_t t = 0; current != NULL && t < current->tenant_count; t++)
		for (size_t w = 0; w < current->tenants[t].workspace_count; w++)
			for (size_t i = 0; i < current->tenants[t].workspaces[w].rule_count; i++) {
				const struct policy_rule *r = &current->tenants[t].workspaces[w].rules[i];
				const char *const has[] = {[CLAIM_NAMESPACE] = r->ns,
				                           [CLAIM_ACCOUNT] = r->slurm_account,
				                           [CLAIM_GROUP] = r->group,
				                           [CLAIM_USER] = r->user};

				if (has[field] != NULL && strcmp(has[field], pattern) == 0 &&
				    (labels == NULL) == (r->labels == NULL) &&
				    (labels == NULL || strcmp(labels, r->labels) == 0))
					return true;
			}
	return false;
}

/* A workspace of a tenant that is there already gets a name that is free. */
static void
name_workspace(const struct policy *current, struct claim *c, const char *text, size_t len)
{
	const struct policy_tenant *t = plan_tenant(current, c->tenant);
	size_t n;
	bool taken = true;

	make_name(text, len, c->workspace);
	n = strlen(c->workspace);
	for (int suffix = 2; taken; suffix++) {
		taken = false;
		for (size_t i = 0; t != NULL && i < t->workspace_count; i++)
			taken = taken || strcmp(t->workspaces[i].name, c->workspace) == 0;
		if (taken)
			snprintf(c->workspace + n, sizeof(c->workspace) - n, "-%d", suffix);
	}
}

static struct claim *
add_claim(struct plan *p, const struct policy *current, enum claim_field field, const char *pattern, char *labels,
          int64_t priority, int128 unit_ns)
{
	if (in_force(current, field, pattern, labels)) {
		mem_free(labels);
		return NULL;
	}
	if ((p->count & (p->count - 1)) == 0)
		p->at = mem_grow(p->at, p->count == 0 ? 1 : 2 * p->count, sizeof(*p->at));
	p->at[p->count] = (struct claim){.field = field,
	                                 .pattern = mem_strdup(pattern),
	                                 .labels = labels,
	                                 .priority = priority,
	                                 .unit_ns = unit_ns};
	return &p->at[p->count++];
}

/* --- rule 3 --- */

static int
compare_label_text(const void *a, const void *b)
{
	const struct label *x = *(const struct label *const *)a, *y = *(const struct label *const *)b;
	int order = strncmp(x->value, y->value, x->value_len < y->value_len ? x->value_len : y->value_len);

	return order != 0 ? order : (x->value_len > y->value_len) - (x->value_len < y->value_len);
}

static bool
same_value(const struct label *a, const struct label *b)
{
	return a->value_len == b->value_len && memcmp(a->value, b->value, a->value_len) == 0;
}

/* A label splits a namespace when at least nine tenths of its time has it, with more than one value. Gives the time that
 * its claims take. */
static int128
split_by_label(struct plan *p, const struct policy *current, const char *key, const struct seen *some, size_t n,
               int128 whole)
{
	owned(mem) struct label *labels = mem_array(n, sizeof(*labels));
	owned(mem) struct label **order = mem_array(n, sizeof(*order));
	int128 with = 0;
	size_t m = 0;

	for (size_t i = 0; i < n; i++) {
		if (!labels_find(some[i].use->holder.labels, key, strlen(key), &labels[i]) || labels[i].value_len == 0)
			continue;
		order[m++] = &labels[i];
		with += some[i].use->unit_ns;
	}
	if (m > 1)
		qsort(order, m, sizeof(*order), compare_label_text);
	if (m < 2 || with * 10 < whole * 9 || same_value(order[0], order[m - 1]))
		return 0;
	for (size_t i = 0, end; i < m; i = end) {
		int128 sum = 0;
		struct claim *c;
		char text[LABEL_MAX_KEY + LABEL_MAX_VALUE + 2];

		for (end = i; end < m && same_value(order[i], order[end]); end++)
			sum += some[order[end] - labels].use->unit_ns;
		snprintf(text, sizeof(text), "%s=%.*s", key, (int)order[i]->value_len, order[i]->value);
		c = add_claim(p, current, CLAIM_NAMESPACE, some[0].value, mem_strdup(text), PRIORITY_LABEL, sum);
		if (c == NULL)
			continue;
		make_name(order[i]->value, order[i]->value_len, c->tenant);
		name_workspace(current, c, some[0].value, strlen(some[0].value));
	}
	return with;
}

static int128
split_namespace(struct plan *p, const struct policy *current, const struct seen *some, size_t n, int128 whole)
{
	static const char *const keys[] = {"tenant",  "team",       "owner",
	                                   "project", "department", "app.kubernetes.io/part-of"};
	int128 taken = 0;

	for (size_t i = 0; i < ARRAY_LEN(keys) && taken == 0; i++)
		taken = split_by_label(p, current, keys[i], some, n, whole);
	return taken;
}

/* --- rules 2 and 4 --- */

static size_t
same_run(const struct seen *s, size_t n, size_t i, bool whole)
{
	size_t end = i, len = beginning(s[i].value);

	while (end < n && s[end].field == s[i].field &&
	       (whole ? strcmp(s[end].value, s[i].value) == 0
	              : beginning(s[end].value) == len && strncmp(s[end].value, s[i].value, len) == 0))
		end++;
	return end;
}

static void
name_claim(const struct policy *current, struct claim *c, bool alone)
{
	size_t len = beginning(c->pattern), whole = strlen(c->pattern);

	if (c->field == CLAIM_USER) {
		snprintf(c->tenant, sizeof(c->tenant), "hosts");
		name_workspace(current, c, c->pattern, whole);
	} else if (c->field == CLAIM_GROUP) {
		make_name(c->pattern, whole, c->tenant);
		name_workspace(current, c, "hosts", 5);
	} else {
		make_name(c->pattern, len, c->tenant);
		/* One of its kind, and no tenant whose name it begins with. */
		alone = alone && plan_tenant(current, c->tenant) == NULL;
		if (alone)
			make_name(c->pattern, whole, c->tenant);
		if (alone || len == whole)
			name_workspace(current, c, "default", 7);
		else
			name_workspace(current, c, c->pattern + len + 1, whole - len - 1);
	}
}

/* The names of one beginning: each by itself, or all but the beginning itself by a pattern for each separator. */
static void
claim_run(struct plan *p, const struct policy *current, const struct seen *s, size_t n)
{
	size_t names = 0, len = beginning(s[0].value);
	bool grouped = s[0].field == CLAIM_NAMESPACE || s[0].field == CLAIM_ACCOUNT, many;
	int128 behind[sizeof(SEPARATORS)] = {0};

	for (size_t i = 0; i < n; i = same_run(s, n, i, true))
		names++;
	many = grouped && names > MANY;
	for (size_t i = 0, end; i < n; i = end) {
		int128 sum = 0;
		struct claim *c;

		end = same_run(s, n, i, true);
		for (size_t k = i; k < end; k++)
			sum += s[k].use->unit_ns;
		if (s[i].field == CLAIM_NAMESPACE)
			sum -= split_namespace(p, current, s + i, end - i, sum);
		if (many && s[i].value[len] != '\0')
			behind[strchr(SEPARATORS, s[i].value[len]) - SEPARATORS] += sum;
		else if (sum > 0 &&
		         (c = add_claim(p, current, s[i].field, s[i].value, NULL, PRIORITY_NAME, sum)) != NULL)
			name_claim(current, c, names == 1);
	}
	for (size_t i = 0; many && i < strlen(SEPARATORS); i++) {
		owned(mem) char *pattern = mem_array(len + 3, 1);
		struct claim *c;

		if (behind[i] == 0)
			continue;
		snprintf(pattern, len + 3, "%.*s%c*", (int)len, s[0].value, SEPARATORS[i]);
		c = add_claim(p, current, s[0].field, pattern, NULL, PRIORITY_PATTERN, behind[i]);
		if (c == NULL)
			continue;
		make_name(pattern, len, c->tenant);
		name_workspace(current, c, "all", 3);
	}
}

static int
compare_size(const void *a, const void *b)
{
	const struct claim *x = a, *y = b;

	if (x->unit_ns != y->unit_ns)
		return x->unit_ns > y->unit_ns ? -1 : 1;
	if (x->field != y->field)
		return x->field < y->field ? -1 : 1;
	return strcmp(x->pattern, y->pattern);
}

/* Rule 4's end: the small ones of many users give way to one that takes whoever is left. */
static void
gather_users(struct plan *p, const struct policy *current)
{
	int128 rest = 0;
	size_t users = 0, kept = 0;
	struct claim *c;

	for (size_t i = 0; i < p->count; i++)
		users += p->at[i].field == CLAIM_USER;
	if (users <= MANY_USERS)
		return;
	users = 0;
	for (size_t i = 0; i < p->count; i++) {
		if (p->at[i].field == CLAIM_USER && ++users > MANY_USERS) {
			rest += p->at[i].unit_ns;
			mem_free(p->at[i].pattern);
			mem_free(p->at[i].labels);
		} else {
			p->at[kept++] = p->at[i];
		}
	}
	p->count = kept;
	/* The array has room for what was there. */
	p->at[kept] = (struct claim){.field = CLAIM_USER,
	                             .pattern = mem_strdup("*"),
	                             .priority = PRIORITY_REST,
	                             .tenant = "hosts",
	                             .unit_ns = rest};
	c = &p->at[p->count++];
	name_workspace(current, c, "others", 6);
	qsort(p->at, p->count, sizeof(*p->at), compare_size);
}

/* Rule 5. */
static void
take_largest(struct plan *p)
{
	int128 covered = p->before;

	for (size_t i = 0; i < p->count && i < CLAIMS_MAX; i++) {
		if (covered * 100 >= p->total * 99 && p->at[i].unit_ns * 1000 < p->total)
			break;
		p->at[i].taken = true;
		p->taken++;
		covered += p->at[i].unit_ns;
	}
}

static int
compare_place(const void *a, const void *b)
{
	const struct claim *x = a, *y = b;
	int order;

	if (x->taken != y->taken)
		return x->taken ? -1 : 1;
	if (!x->taken)
		return compare_size(a, b);
	order = strcmp(x->tenant, y->tenant);
	if (order == 0)
		order = strcmp(x->workspace, y->workspace);
	return order != 0 ? order : compare_size(a, b);
}

/* Measured, not added up: the rules as attribution asks them. */
static void
measure(const struct suggest_input *in, struct plan *p)
{
	owned(mem) struct attribution_rule *rules = mem_array(p->taken, sizeof(*rules));

	for (size_t i = 0; i < p->taken; i++) {
		const struct claim *c = &p->at[i];

		rules[i] = (struct attribution_rule){.id = (int64_t)i, .priority = c->priority, .labels = c->labels};
		*(c->field == CLAIM_NAMESPACE ? &rules[i].ns
		  : c->field == CLAIM_ACCOUNT ? &rules[i].slurm_account
		  : c->field == CLAIM_GROUP   ? &rules[i].group
		                              : &rules[i].user) = c->pattern;
	}
	attribution_sort(rules, p->taken);
	p->covered = p->before;
	for (size_t i = 0; i < in->use_count; i++)
		if (!in->uses[i].attributed &&
		    attribution_match(rules, p->taken, in->uses[i].cluster, &in->uses[i].holder) != NULL)
			p->covered += in->uses[i].unit_ns;
}

void
plan_make(const struct suggest_input *in, const struct policy *current, struct plan *p)
{
	owned(mem) struct seen *s = mem_array(in->use_count, sizeof(*s));
	owned(mem) char(*uids)[24] = mem_array(in->use_count, sizeof(*uids));
	size_t n = 0;

	for (size_t i = 0; i < in->use_count; i++) {
		p->total += in->uses[i].unit_ns;
		if (in->uses[i].attributed)
			p->before += in->uses[i].unit_ns;
		else if (seen_of(&in->uses[i], &uids[i], &s[n]))
			n++;
	}
	if (n > 1)
		qsort(s, n, sizeof(*s), compare_seen);
	for (size_t i = 0, end; i < n; i = end) {
		end = same_run(s, n, i, false);
		claim_run(p, current, s + i, end - i);
	}
	if (p->count > 1)
		qsort(p->at, p->count, sizeof(*p->at), compare_size);
	gather_users(p, current);
	take_largest(p);
	if (p->count > 1)
		qsort(p->at, p->count, sizeof(*p->at), compare_place);
	measure(in, p);
}
