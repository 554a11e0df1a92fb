/* aggregator/core/policy/suggest.c - a draft of a policy: first the claims (which rule gives which usage to whom), then the policy in force written again with the
 * claims in their places. The numbers are those of suggest.h. */
#include "aggregator/core/policy/suggest.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "aggregator/core/policy/attribution.h"
#include "aggregator/core/policy/policy_fields.h"
#include "common/base/labels.h"
#include "common/base/text.h"
#include "common/base/time.h"
#include "common/base/units.h"
#include "common/conf/json.h"
#include "common/conf/yaml.h"

/* ==== rules 2 to 5: the claims ==== */

#define SEPARATORS "-_."
#define MANY 8        /* more names of one beginning than this are one pattern */
#define MANY_USERS 50 /* more users than this share a workspace */
#define CLAIMS_MAX 5000
/* Behind the rules of people: 100 is theirs unless they say otherwise. Labels are asked before the namespace they are in, names
 * before patterns. */
enum { PRIORITY_LABEL = 9000, PRIORITY_NAME = 9100, PRIORITY_PATTERN = 9200, PRIORITY_REST = 9900 };

enum claim_field { CLAIM_NAMESPACE, CLAIM_ACCOUNT, CLAIM_GROUP, CLAIM_USER };
#define CLAIM_NAME 64 /* of a tenant or workspace, with its end */

/* A proposed rule, and the tenant and workspace that it gives usage to. */
struct claim {
	enum claim_field field;
	char *pattern;
	char *labels; /* "team=ml"; NULL: none */
	int64_t priority;
	char tenant[CLAIM_NAME], workspace[CLAIM_NAME];
	int128 unit_ns;
	bool taken;
};
struct plan {
	struct claim *at; /* those taken first, by tenant and workspace; then the others, largest first */
	size_t count, taken;
	int128 total, before,
		covered; /* unit_ns: of all usage, attributed by the rules in force, and attributed with the claims taken */
};

static void
plan_fini(struct plan *p)
{
	for (size_t i = 0; i < p->count; i++) {
		mem_free(p->at[i].pattern);
		mem_free(p->at[i].labels);
	}
	mem_free(p->at);
}

static const struct policy_tenant *
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

/* --- usage to be claimed --- */

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

/* Rule 4, and the fields of a holder that rules can match. False: the holder has none of them. */
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
	array_room_by_count(p->at, p->count);
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

/* The end of rule 4: where there are many users, the smallest claims are replaced by one for all remaining users. */
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
	/* The array has room: claims were removed from it. */
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

static void
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

/* ==== the text ==== */

#define LEFT_OUT_SHOWN 20

struct draft {
	const struct suggest_input *in;
	const struct plan *plan;
	const struct policy *current; /* NULL: there is none */
	struct buf *out;
};

static void
indent(struct buf *out, int depth)
{
	for (int i = 0; i < depth; i++)
		buf_str(out, "  ");
}

/* --- scalars --- */

/* Whether YAML reads the text back unchanged when it is written without quotes: no quote, no white space, no character with a meaning. */
static bool
is_plain(const char *text)
{
	size_t n = strlen(text);

	return n > 0 && strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./") == n &&
	       text[0] != '-' && text[0] != '.';
}

static void
put_text(struct buf *out, const char *text)
{
	bool like_number = strspn(text, "0123456789.-") == strlen(text);
	static const char *const words[] = {"true", "false", "null", "yes", "no", "on", "off", "~"};

	for (size_t i = 0; i < ARRAY_LEN(words); i++)
		like_number = like_number || strcmp(text, words[i]) == 0;
	if (is_plain(text) && !like_number)
		buf_str(out, text);
	else
		json_write_string(text, out);
}

static void
put_scalar(struct buf *out, const struct yaml_node *n)
{
	if (yaml_is_null(n))
		buf_str(out, "null");
	else if (!n->quoted && is_plain(n->text))
		buf_str(out, n->text);
	else
		json_write_string(n->text, out);
}

/* --- rule 1: the tree of the policy in force --- */

static bool
is_leaf(const struct yaml_node *n)
{
	for (const struct yaml_node *c = n->child; c != NULL; c = c->next)
		if (c->kind != YAML_SCALAR)
			return false;
	return true;
}

/* On one line: scalars, and maps and lists of nothing else. */
static void
put_flow(struct buf *out, const struct yaml_node *n)
{
	const char *comma = "";

	if (n->kind == YAML_SCALAR) {
		put_scalar(out, n);
		return;
	}
	buf_char(out, n->kind == YAML_MAP ? '{' : '[');
	for (const struct yaml_node *c = n->child; c != NULL; c = c->next, comma = ", ") {
		buf_str(out, comma);
		if (n->kind == YAML_MAP) {
			put_text(out, c->key);
			buf_str(out, ": ");
		}
		put_flow(out, c);
	}
	buf_char(out, n->kind == YAML_MAP ? '}' : ']');
}

/* The value of a key, or of an item behind its dash. Depth is bounded by the reader. */
static void
put_value(struct buf *out, const struct yaml_node *n, bool item, int depth)
{
	if (n->kind == YAML_SCALAR || is_leaf(n)) {
		buf_char(out, ' ');
		put_flow(out, n);
		buf_char(out, '\n');
		return;
	}
	/* A map may begin beside the dash, as people write it. */
	item = item && n->kind == YAML_MAP;
	if (!item)
		buf_char(out, '\n');
	for (const struct yaml_node *c = n->child; c != NULL; c = c->next) {
		if (item && c == n->child)
			buf_char(out, ' ');
		else
			indent(out, depth);
		if (n->kind == YAML_MAP) {
			put_text(out, c->key);
			buf_char(out, ':');
		} else {
			buf_char(out, '-');
		}
		put_value(out, c, n->kind == YAML_LIST, depth + 1);
	}
}

/* --- new tenants, workspaces and nodes --- */

static void
put_hours(struct buf *out, int128 unit_ns)
{
	char text[DECIMAL_TEXT_SIZE];

	buf_str(out, decimal_format(unit_ns / ((int128)UNITS_PER_GPU * NS_PER_HOUR / 10), 1, 1, text));
}

static void
put_percent(struct buf *out, int128 part, int128 whole)
{
	char text[DECIMAL_TEXT_SIZE];

	buf_printf(out, "%s %%", decimal_format(whole == 0 ? 10000 : part * 10000 / whole, 2, 2, text));
}

static const char *
field_name(enum claim_field f)
{
	static const char *const names[] = {[CLAIM_NAMESPACE] = "namespace",
	                                    [CLAIM_ACCOUNT] = "slurm_account",
	                                    [CLAIM_GROUP] = "group",
	                                    [CLAIM_USER] = "user"};

	return names[f];
}

static void
put_rule(struct buf *out, const struct claim *c)
{
	buf_printf(out, "{%s: ", field_name(c->field));
	put_text(out, c->pattern);
	if (c->labels != NULL) {
		const char *value = strchr(c->labels, '=') + 1;

		buf_printf(out, ", labels: {%.*s: ", (int)(value - 1 - c->labels), c->labels);
		put_text(out, value);
		buf_char(out, '}');
	}
	buf_printf(out, ", priority: %" PRId64 "}   # ", c->priority);
	put_hours(out, c->unit_ns);
	buf_str(out, " GPU-hours\n");
}

/* The workspaces that are new in a tenant, from its first claim on; gives the first claim of another tenant. */
static size_t
put_workspaces(const struct draft *d, size_t i, int depth)
{
	const struct claim *at = d->plan->at;
	size_t first = i;

	for (; i < d->plan->taken && strcmp(at[i].tenant, at[first].tenant) == 0; i++) {
		if (i == first || strcmp(at[i].workspace, at[i - 1].workspace) != 0) {
			indent(d->out, depth);
			buf_str(d->out, "- name: ");
			put_text(d->out, at[i].workspace);
			buf_char(d->out, '\n');
			indent(d->out, depth + 1);
			buf_str(d->out, "rules:\n");
		}
		indent(d->out, depth + 2);
		buf_str(d->out, "- ");
		put_rule(d->out, &at[i]);
	}
	return i;
}

/* A tenant of the policy in force, and the workspaces that it gets. */
static void
put_tenant(const struct draft *d, const struct yaml_node *tenant)
{
	const struct yaml_node *name = yaml_get(tenant, "name"), *spaces = yaml_get(tenant, "workspaces");
	size_t claim = 0;

	while (claim < d->plan->taken && strcmp(d->plan->at[claim].tenant, name->text) != 0)
		claim++;
	buf_str(d->out, "  -");
	if (claim == d->plan->taken) {
		put_value(d->out, tenant, true, 2);
		return;
	}
	for (const struct yaml_node *c = tenant->child; c != NULL; c = c->next) {
		if (c == spaces)
			continue;
		buf_str(d->out, c == tenant->child ? " " : "    ");
		put_text(d->out, c->key);
		buf_char(d->out, ':');
		put_value(d->out, c, false, 3);
	}
	buf_str(d->out, spaces == tenant->child ? " workspaces:\n" : "    workspaces:\n");
	for (const struct yaml_node *c = spaces != NULL ? spaces->child : NULL; c != NULL; c = c->next) {
		buf_str(d->out, "      -");
		put_value(d->out, c, true, 4);
	}
	put_workspaces(d, claim, 3);
}

static void
put_tenants(const struct draft *d, const struct yaml_node *tenants)
{
	const struct claim *at = d->plan->at;

	buf_str(d->out,
	        d->plan->taken == 0 && (tenants == NULL || tenants->count == 0) ? "tenants: []\n" : "tenants:\n");
	for (const struct yaml_node *c = tenants != NULL ? tenants->child : NULL; c != NULL; c = c->next)
		put_tenant(d, c);
	for (size_t i = 0; i < d->plan->taken;) {
		if (plan_tenant(d->current, at[i].tenant) != NULL) {
			const char *name = at[i].tenant;

			while (i < d->plan->taken && strcmp(at[i].tenant, name) == 0)
				i++;
			continue;
		}
		buf_str(d->out, "  - name: ");
		put_text(d->out, at[i].tenant);
		buf_str(d->out, "\n    workspaces:\n");
		i = put_workspaces(d, i, 3);
	}
}

static void
put_nodes(const struct draft *d, const struct yaml_node *nodes)
{
	bool any = nodes != NULL && nodes->count > 0;
	const struct suggest_input *in = d->in;

	for (size_t i = 0; i < in->node_count; i++)
		any = any || (!in->nodes[i].declared && policy_node_fault(in->nodes[i].name) == NULL);
	if (!any)
		return;
	buf_str(d->out,
	        "\n# shared: true is nobody's own; say tenant: NAME instead where a node is one tenant's.\nnodes:\n");
	for (const struct yaml_node *c = nodes != NULL ? nodes->child : NULL; c != NULL; c = c->next) {
		buf_str(d->out, "  -");
		put_value(d->out, c, true, 2);
	}
	for (size_t i = 0; i < in->node_count; i++) {
		if (in->nodes[i].declared || policy_node_fault(in->nodes[i].name) != NULL)
			continue;
		buf_str(d->out, "  - {name: ");
		put_text(d->out, in->nodes[i].name);
		buf_str(d->out, ", cluster: ");
		put_text(d->out, in->nodes[i].cluster);
		buf_str(d->out, ", shared: true}\n");
	}
}

/* --- the document --- */

static void
put_left_out(const struct draft *d)
{
	const struct plan *p = d->plan;
	in_place(buf) struct buf name = {0};

	buf_init(&name, 8 * WIRE_MAX_TEXT);
	if (p->count == p->taken)
		return;
	buf_printf(d->out, "# %zu more were left out, because each is less than a thousandth:\n", p->count - p->taken);
	for (size_t i = p->taken; i < p->count && i < p->taken + LEFT_OUT_SHOWN; i++) {
		buf_clear(&name);
		json_write_string(p->at[i].pattern, &name);
		buf_printf(d->out, "#   %s %s, ", field_name(p->at[i].field), buf_text(&name));
		put_hours(d->out, p->at[i].unit_ns);
		buf_str(d->out, " GPU-hours\n");
	}
	if (p->count - p->taken > LEFT_OUT_SHOWN)
		buf_str(d->out, "#   ...\n");
}

static void
put_head(const struct draft *d)
{
	char from[TIME_TEXT_SIZE], to[TIME_TEXT_SIZE];

	buf_printf(d->out,
	           "# A draft, made from what was held from %s to %s. Names are guesses: look at each, change what is\n"
	           "# wrong, then\n"
	           "#\n"
	           "#   tollgate apply -f FILE --dry-run     shows what would change\n"
	           "#   tollgate apply -f FILE\n"
	           "#\n"
	           "# Its rules own ",
	           time_format(d->in->from_ns, from), time_format(d->in->to_ns, to));
	put_percent(d->out, d->plan->covered, d->plan->total);
	buf_str(d->out, " of the ");
	put_hours(d->out, d->plan->total);
	buf_str(d->out, " GPU-hours that somebody held; those in force own ");
	put_percent(d->out, d->plan->before, d->plan->total);
	buf_str(d->out,
	        ".\n# Rules that are in force stay, and are asked first. Labels are chosen by the author of a pod.\n");
	put_left_out(d);
}

static void
put_document(const struct draft *d, const struct yaml_node *root)
{
	static const char *const ours[] = {"version", "cluster", "effective", "tenants", "nodes"};
	const struct yaml_node *cluster = root != NULL ? yaml_get(root, "cluster") : NULL;
	char when[TIME_TEXT_SIZE];

	put_head(d);
	buf_printf(d->out, "\nversion: %d\ncluster: ", POLICY_VERSION);
	put_text(d->out, cluster != NULL ? cluster->text : d->in->cluster);
	buf_printf(d->out, "\n\n# From the start of this billing hour on.\neffective: %s\n\n",
	           time_format(d->in->effective_ns, when));
	put_tenants(d, root != NULL ? yaml_get(root, "tenants") : NULL);
	put_nodes(d, root != NULL ? yaml_get(root, "nodes") : NULL);
	for (const struct yaml_node *c = root != NULL ? root->child : NULL; c != NULL; c = c->next) {
		bool known = false;

		for (size_t i = 0; i < ARRAY_LEN(ours); i++)
			known = known || strcmp(ours[i], c->key) == 0;
		if (known)
			continue;
		buf_char(d->out, '\n');
		put_text(d->out, c->key);
		buf_char(d->out, ':');
		put_value(d->out, c, false, 1);
	}
}

bool
suggest_policy(const struct suggest_input *in, struct buf *out, struct err *err)
{
	owned(yaml) struct yaml_doc *doc = NULL;
	owned(policy) struct policy *current = NULL, *again = NULL;
	in_place(plan) struct plan plan = {0};
	struct draft d = {.in = in, .plan = &plan, .out = out};
	size_t begun = out->len;

	if (in->current != NULL && (!policy_parse("the policy in force", in->current, in->current_len, &current, err) ||
	                            !yaml_parse("the policy in force", in->current, in->current_len, &doc, err)))
		return false;
	d.current = current;
	plan_make(in, current, &plan);
	put_document(&d, doc != NULL ? yaml_root(doc) : NULL);
	if (!buf_ok(out, "the draft", err))
		return false;
	return policy_parse("the draft", out->data + begun, out->len - begun, &again, err);
}
