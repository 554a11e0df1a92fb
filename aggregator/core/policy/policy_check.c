/* aggregator/core/policy/policy_check.c - what a value of the policy file may be, and what must agree across the file.
 *
 * Rules of quotas, for each model that an amount of the tenant names (or for any, where none is named):
 *  1. a reservation is a number; a limit is not below it
 *  2. what may be owed is at most the limit less the reservation, what may be lent at most the reservation
 *  3. no limit, and no sum of reservations, is beyond the tenant's maximum
 *  4. other resources of a workspace are within the tenant's
 *  5. every priority class and every cluster that is named exists
 *  6. there is a node that the tenant's isolation allows; on its own nodes alone nothing is reserved among the shared ones,
 *     and on whole GPUs alone no MIG instance is */
#include <stdlib.h>
#include <string.h>

#include "aggregator/core/metering/events.h"
#include "aggregator/core/policy/policy_fields.h"
#include "common/base/labels.h"

/* ---- single values ---- */

#define LOWER "abcdefghijklmnopqrstuvwxyz"
#define UPPER "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
#define DIGIT "0123456789"

static bool
only(const char *text, const char *allowed)
{
	return text[strspn(text, allowed)] == '\0';
}

static bool
begins_and_ends(const char *text, const char *allowed)
{
	return text[0] != '\0' && strchr(allowed, text[0]) != NULL && strchr(allowed, text[strlen(text) - 1]) != NULL;
}

/* The rule of DNS labels: such a name can also be a namespace, a label value and a file name. */
const char *
policy_label_fault(const char *text)
{
	if (strlen(text) > LIMIT_LABEL)
		return "is longer than " LIMIT_TEXT(LIMIT_LABEL) " characters";
	if (!only(text, LOWER DIGIT "-") || !begins_and_ends(text, LOWER DIGIT))
		return "must be lower-case letters, digits and '-', beginning and ending with a letter or digit";
	return NULL;
}

const char *
policy_node_fault(const char *text)
{
	if (strlen(text) > LIMIT_NODE_NAME)
		return "is longer than " LIMIT_TEXT(LIMIT_NODE_NAME) " characters";
	if (!only(text, LOWER UPPER DIGIT "-._") || !begins_and_ends(text, LOWER UPPER DIGIT))
		return "must be letters, digits, '-', '.' and '_', beginning and ending with a letter or digit";
	return NULL;
}

/* Anything else could never match: namespaces are DNS labels. */
const char *
policy_ns_fault(const char *text)
{
	if (text[0] == '\0')
		return "is empty";
	if (strlen(text) > 63)
		return "is longer than 63 characters";
	if (!only(text, LOWER DIGIT "-*?"))
		return "must be lower-case letters, digits and '-', with * and ? for what varies";
	return NULL;
}

/* As long as a value and of its characters, or it could never match; empty for the empty value. */
const char *
policy_value_fault(const char *text)
{
	if (strlen(text) > LABEL_MAX_VALUE)
		return "is longer than 63 characters";
	if (!only(text, LOWER UPPER DIGIT "-_.*?"))
		return "must be letters, digits, '-', '_' and '.', with * and ? for what varies";
	return NULL;
}

const char *
policy_code_fault(const char *text)
{
	if (strlen(text) > LIMIT_MODEL)
		return "is longer than " LIMIT_TEXT(LIMIT_MODEL) " characters";
	if (!only(text, LOWER UPPER DIGIT "-._+/ ") || !begins_and_ends(text, LOWER UPPER DIGIT))
		return "must be letters, digits, spaces and -._+/ beginning and ending with a letter or digit";
	return NULL;
}

/* Past digits, of which there must be one, and then a word; NULL when it is not so. */
static const char *
past_number(const char *text, const char *word)
{
	size_t digits = strspn(text, DIGIT);

	if (digits == 0 || strncmp(text + digits, word, strlen(word)) != 0)
		return NULL;
	return text + digits + strlen(word);
}

const char *
policy_profile_fault(const char *text)
{
	static const char fault[] = "is not a MIG profile like 3g.40gb, 1g.10gb+me or 1c.3g.40gb";
	const char *rest = past_number(text, "c.");

	if (strlen(text) > 32)
		return "is longer than 32 characters";
	rest = past_number(rest ? rest : text, "g.");
	rest = rest ? past_number(rest, "gb") : NULL;
	if (rest == NULL)
		return fault;
	if (rest[0] != '\0' && ((rest[0] != '+' && rest[0] != '-') || rest[1] == '\0' || !only(rest + 1, LOWER "+-.")))
		return fault;
	return NULL;
}

const char *
policy_uuid_fault(const char *text)
{
	if (text[0] == '\0' || strlen(text) > LIMIT_GPU_UUID)
		return "must have 1 to " LIMIT_TEXT(LIMIT_GPU_UUID) " characters";
	if (!only(text, LOWER UPPER DIGIT "-._:"))
		return "must be letters, digits and -._: as the driver writes it";
	return NULL;
}

/* ---- amounts of one tenant: rules 1 to 4 ---- */

/* In units; -1 when no amount is given, or it is of a profile that the model does not have. */
static int64_t
units_of(const struct policy_amounts *a, const char *model)
{
	const struct quantity *q = policy_amount_for(a, model);
	struct err ignored;
	int64_t units;

	return q != NULL && quantity_units(q, model, &units, &ignored) ? units : -1;
}

static int64_t
reserved_of(const struct policy_amounts *a, const char *model)
{
	int64_t units = units_of(a, model);

	return units > 0 ? units : 0;
}

static bool
bounded(int64_t units)
{
	return units >= 0 && units != QUANTITY_UNLIMITED;
}

struct place {
	const struct policy_tenant *tenant;
	const struct policy_workspace *workspace;
	const char *file;
	const char *model;
};

/* "FILE:LINE: workspace acme/a: limit 2 (H100) is below reserved 4" */
static bool
refuse(const struct place *at, int line, const char *field, int64_t value, const char *relation, int64_t bound,
       struct err *err)
{
	char shown[QUANTITY_TEXT_SIZE], most[QUANTITY_TEXT_SIZE];
	bool named = at->model[0] != '\0';

	return err_set(err, ERR_INVALID, "%s:%d: %s %s%s%s: %s %s%s%s%s %s %s", at->file, line,
	               at->workspace ? "workspace" : "tenant", at->tenant->name, at->workspace ? "/" : "",
	               at->workspace ? at->workspace->name : "", field, quantity_text(value, shown), named ? " (" : "",
	               at->model, named ? ")" : "", relation, quantity_text(bound, most));
}

/* Rules 1 and 2, and 3 for one limit. */
static bool
check_workspace_model(const struct place *at, struct err *err)
{
	const struct policy_workspace *w = at->workspace;
	int64_t own = reserved_of(&w->reserved, at->model), shared = reserved_of(&w->reserved_shared, at->model);
	int64_t reserved = own > shared ? own : shared;
	int64_t limit = units_of(&w->limit, at->model), borrow = units_of(&w->borrow, at->model);
	int64_t lend = units_of(&w->lend, at->model), maximum = units_of(&at->tenant->maximum, at->model);

	if (own == QUANTITY_UNLIMITED || shared == QUANTITY_UNLIMITED)
		return err_set(err, ERR_INVALID, "%s:%d: workspace %s/%s: reserved is none, but must be a number",
		               at->file, own == QUANTITY_UNLIMITED ? w->reserved.line : w->reserved_shared.line,
		               at->tenant->name, w->name);
	if (bounded(limit) && limit < reserved)
		return refuse(at, w->limit.line, "limit", limit, "is below reserved", reserved, err);
	if (bounded(limit) && bounded(borrow) && borrow > limit - own)
		return refuse(at, w->borrow.line, "borrow", borrow, "is more than limit less reserved,", limit - own,
		              err);
	if (bounded(lend) && lend > reserved)
		return refuse(at, w->lend.line, "lend", lend, "is more than reserved", reserved, err);
	if (bounded(limit) && bounded(maximum) && limit > maximum)
		return refuse(at, w->limit.line, "limit", limit, "is beyond the tenant's maximum", maximum, err);
	return true;
}

static bool
check_tenant_model(const struct place *at, struct err *err)
{
	const struct policy_tenant *t = at->tenant;
	int64_t maximum = units_of(&t->maximum, at->model), preset = units_of(&t->default_limit, at->model);
	struct place inside = *at;
	int64_t sum = 0;

	for (size_t i = 0; i < t->workspace_count; i++) {
		inside.workspace = &t->workspaces[i];
		if (!check_workspace_model(&inside, err))
			return false;
		/* at most 2 x 10^6 GPUs each, of at most 1000 workspaces */
		sum += reserved_of(&t->workspaces[i].reserved, at->model) +
		       reserved_of(&t->workspaces[i].reserved_shared, at->model);
	}
	if (!bounded(maximum))
		return true;
	if (bounded(preset) && preset > maximum)
		return refuse(at, t->default_limit.line, "default_limit", preset, "is beyond maximum", maximum, err);
	if (sum > maximum)
		return refuse(at, t->maximum.line, "maximum", maximum, "is below what its workspaces reserve together,",
		              sum, err);
	return true;
}

struct models {
	const char **at;
	size_t count;
};

static void
add_models(struct models *m, const struct policy_amounts *a)
{
	for (size_t i = 0; i < a->count; i++) {
		bool have = a->at[i].model[0] == '\0';

		for (size_t k = 0; k < m->count && !have; k++)
			have = strcmp(m->at[k], a->at[i].model) == 0;
		if (have)
			continue;
		m->at = mem_grow(m->at, m->count + 1, sizeof(*m->at));
		m->at[m->count++] = a->at[i].model;
	}
}

static bool
check_resources(const struct policy_tenant *t, const char *file, struct err *err)
{
	for (size_t i = 0; i < t->workspace_count; i++) {
		const struct policy_resources *w = &t->workspaces[i].limits;
		const struct {
			const char *name;
			int64_t have, most;
		} rows[] = {{"cpu (in thousandths)", w->cpu_millis, t->limits.cpu_millis},
		            {"memory (in bytes)", w->memory_bytes, t->limits.memory_bytes},
		            {"storage (in bytes)", w->storage_bytes, t->limits.storage_bytes}};

		for (size_t k = 0; k < ARRAY_LEN(rows); k++)
			if (rows[k].have >= 0 && rows[k].most >= 0 && rows[k].have > rows[k].most)
				return err_set(err, ERR_INVALID,
				               "%s:%d: workspace %s/%s: limits: %s %" PRId64
				               " is beyond the tenant's %" PRId64,
				               file, w->line, t->name, t->workspaces[i].name, rows[k].name,
				               rows[k].have, rows[k].most);
	}
	return true;
}

bool
policy_check_quota(const struct policy_tenant *t, const char *file, struct err *err)
{
	struct place at = {.tenant = t, .file = file, .model = ""};
	struct models m = {0};
	bool ok;

	add_models(&m, &t->maximum);
	add_models(&m, &t->default_limit);
	for (size_t i = 0; i < t->workspace_count; i++) {
		const struct policy_workspace *w = &t->workspaces[i];

		add_models(&m, &w->reserved);
		add_models(&m, &w->reserved_shared);
		add_models(&m, &w->limit);
		add_models(&m, &w->borrow);
		add_models(&m, &w->lend);
	}
	ok = check_resources(t, file, err) && check_tenant_model(&at, err);
	for (size_t i = 0; i < m.count && ok; i++) {
		at.model = m.at[i];
		ok = check_tenant_model(&at, err);
	}
	mem_free(m.at);
	return ok;
}

/* ---- the price book ---- */

static bool
check_repeated(const struct policy_book *b, const char *file, struct err *err)
{
	for (size_t i = 1; i < b->item_count; i++)
		for (size_t k = 0; k < i; k++)
			if (policy_same_entry(&policy_price_section, &b->items[i], &b->items[k]))
				return err_set(err, ERR_INVALID,
				               "%s:%d: this price is for the same usage as the one on line %d", file,
				               b->items[i].line, b->items[k].line);
	for (size_t i = 1; i < b->discount_count; i++)
		for (size_t k = 0; k < i; k++)
			if (policy_same_entry(&policy_discount_section, &b->discounts[i], &b->discounts[k]))
				return err_set(err, ERR_INVALID,
				               "%s:%d: this discount is for the same as the one on line %d", file,
				               b->discounts[i].line, b->discounts[k].line);
	for (size_t i = 1; i < b->energy_count; i++)
		for (size_t k = 0; k < i; k++)
			if (strcmp(b->energy[i].cluster, b->energy[k].cluster) == 0)
				return err_set(err, ERR_INVALID,
				               "%s:%d: energy of cluster \"%s\" is already on line %d", file,
				               b->energy[i].line, b->energy[i].cluster, b->energy[k].line);
	return true;
}

/* The largest amount that the events of a month can add up to must be billable: rule 8 of events.h. */
static bool
check_meters(const struct policy_book *b, const char *file, struct err *err)
{
	char price[DECIMAL_TEXT_SIZE], most[DECIMAL_TEXT_SIZE];

	for (size_t i = 0; i < b->item_count; i++) {
		const struct policy_price *p = &b->items[i];

		if (p->meter != NULL && p->price > event_price_limit(p->meter, p->per))
			return err_set(err, ERR_INVALID,
			               "%s:%d: price: %s for %" PRId64 " of meter \"%s\" is more than the limit of %s",
			               file, p->line, decimal_format(p->price, PRICE_SCALE, 0, price), p->per, p->meter,
			               decimal_format(event_price_limit(p->meter, p->per), PRICE_SCALE, 0, most));
	}
	return true;
}

/* `hint` is where to look first, as in policy_find(). */
static bool
check_named_tenant(const struct policy *p, const char *tenant, const char *what, int line, size_t *hint,
                   const char *file, struct err *err)
{
	return tenant == NULL || policy_find(p->tenants, p->tenant_count, sizeof(*p->tenants), tenant, hint) != NULL ||
	       err_set(err, ERR_INVALID, "%s:%d: %s is for tenant \"%s\", which the policy does not have", file, line,
	               what, tenant);
}

static bool
check_book_tenants(const struct policy_book *b, const struct policy *p, const char *file, struct err *err)
{
	size_t hint = 0;

	for (size_t i = 0; i < b->item_count; i++)
		if (!check_named_tenant(p, b->items[i].tenant, "this price", b->items[i].line, &hint, file, err))
			return false;
	for (size_t i = 0; i < b->discount_count; i++)
		if (!check_named_tenant(p, b->discounts[i].tenant, "this discount", b->discounts[i].line, &hint, file,
		                        err))
			return false;
	for (size_t i = 0; i < b->weight_count; i++)
		if (!check_named_tenant(p, b->weights[i].tenant, "this weight", b->weights[i].line, &hint, file, err))
			return false;
	return true;
}

static bool
check_book_clusters(const struct policy_book *b, const struct policy *p, const char *file, struct err *err)
{
	for (size_t i = 0; i < b->energy_count; i++) {
		const struct policy_energy *e = &b->energy[i];
		bool known = strcmp(e->cluster, p->cluster) == 0;

		for (size_t k = 0; k < p->node_count && !known; k++)
			known = strcmp(p->nodes[k].cluster, e->cluster) == 0;
		if (!known)
			return err_set(err, ERR_INVALID,
			               "%s:%d: energy: cluster \"%s\" is neither the policy's nor a node's", file,
			               e->line, e->cluster);
	}
	return true;
}

bool
policy_check_book(const struct policy_book *b, const struct policy *p, const char *file, struct err *err)
{
	return b == NULL || (check_repeated(b, file, err) && check_meters(b, file, err) &&
	                     check_book_tenants(b, p, file, err) && check_book_clusters(b, p, file, err));
}

/* ---- the whole file ---- */

/* Something that may occur only once, by up to six texts of which some may be NULL. */
struct entry {
	const char *part[6];
	int line;
	const struct policy_tenant *tenant; /* where it stands, for the message */
	const struct policy_workspace *workspace;
};

static int
compare_parts(const struct entry *a, const struct entry *b)
{
	int order = 0;

	for (size_t i = 0; i < ARRAY_LEN(a->part) && order == 0; i++) {
		const char *x = a->part[i], *y = b->part[i];

		order = x != NULL && y != NULL ? strcmp(x, y) : (x != NULL) - (y != NULL);
	}
	return order;
}

static int
compare_entries(const void *a, const void *b)
{
	const struct entry *x = a, *y = b;
	int order = compare_parts(x, y);

	return order ? order : (x->line > y->line) - (x->line < y->line);
}

/* The first repetition in the file: sorts, and returns the second of two equal entries, which stands right behind
 * the first; NULL when all differ. */
static const struct entry *
find_repeated(struct entry *entries, size_t n)
{
	const struct entry *found = NULL;

	qsort(entries, n, sizeof(*entries), compare_entries);
	for (size_t i = 1; i < n; i++)
		if (compare_parts(&entries[i - 1], &entries[i]) == 0 &&
		    (found == NULL || entries[i].line < found->line))
			found = &entries[i];
	return found;
}

/* Entries of one array, whose first member is their name. "FILE:LINE: tenant "acme" is already on line 3"; `of` stands behind the
 * name. */
static bool
check_unique(const char *noun, const char *of, const void *array, size_t n, size_t size, size_t line_offset,
             const char *file, struct err *err)
{
	owned(mem) struct entry *names = mem_array(n, sizeof(*names));
	const struct entry *again;

	for (size_t i = 0; i < n; i++) {
		const char *at = (const char *)array + i * size;

		names[i] = (struct entry){.part = {*(char *const *)(const void *)at},
		                          .line = *(const int *)(const void *)(at + line_offset)};
	}
	again = find_repeated(names, n);
	if (again != NULL)
		return err_set(err, ERR_INVALID, "%s:%d: %s \"%s\"%s is already on line %d", file, again->line, noun,
		               again->part[0], of, again[-1].line);
	return true;
}

#define CHECK_UNIQUE(noun, of, array, n, file, err) \
	check_unique((noun), (of), (array), (n), sizeof(*(array)), offsetof(__typeof__(*(array)), line), (file), (err))

static int
compare_tenants(const void *key, const void *tenant)
{
	const struct policy_tenant *const *t = tenant;

	return strcmp(key, (*t)->name);
}

static int
order_tenants(const void *a, const void *b)
{
	const struct policy_tenant *const *x = a, *const *y = b;

	return strcmp((*x)->name, (*y)->name);
}

static bool
check_owners(const struct policy *p, const char *file, struct err *err)
{
	owned(mem) const struct policy_tenant **sorted = mem_array(p->tenant_count, sizeof(*sorted));

	for (size_t i = 0; i < p->tenant_count; i++)
		sorted[i] = &p->tenants[i];
	qsort(sorted, p->tenant_count, sizeof(*sorted), order_tenants);
	for (size_t i = 0; i < p->node_count; i++) {
		const struct policy_node *n = &p->nodes[i];

		if (n->tenant != NULL &&
		    bsearch(n->tenant, sorted, p->tenant_count, sizeof(*sorted), compare_tenants) == NULL)
			return err_set(err, ERR_INVALID,
			               "%s:%d: node \"%s\" belongs to tenant \"%s\", which this file does not have",
			               file, n->line, n->name, n->tenant);
	}
	return true;
}

static size_t
list_rules(const struct policy_tenant *t, struct entry *out)
{
	size_t n = 0;

	for (size_t w = 0; w < t->workspace_count; w++)
		for (size_t i = 0; i < t->workspaces[w].rule_count; i++) {
			const struct policy_rule *r = &t->workspaces[w].rules[i];

			if (out != NULL)
				out[n] = (struct entry){.part = {r->cluster, r->ns, r->slurm_account, r->user, r->group,
				                                 r->labels},
				                        .line = r->line,
				                        .tenant = t,
				                        .workspace = &t->workspaces[w]};
			n++;
		}
	return n;
}

/* Of two rules with the same patterns only one is ever reached, whatever their priorities. */
static bool
check_rules(const struct policy *p, const char *file, struct err *err)
{
	owned(mem) struct entry *rules = NULL;
	const struct entry *again;
	size_t count = 0;

	for (size_t i = 0; i < p->tenant_count; i++)
		count += list_rules(&p->tenants[i], NULL);
	rules = mem_array(count, sizeof(*rules));
	count = 0;
	for (size_t i = 0; i < p->tenant_count; i++)
		count += list_rules(&p->tenants[i], rules + count);
	again = find_repeated(rules, count);
	if (again != NULL)
		return err_set(err, ERR_INVALID, "%s:%d: this rule of workspace %s/%s is also on line %d, for %s/%s",
		               file, again->line, again->tenant->name, again->workspace->name, again[-1].line,
		               again[-1].tenant->name, again[-1].workspace->name);
	return true;
}

static bool
check_devices(const struct policy *p, const char *file, struct err *err)
{
	owned(mem) struct entry *devices = NULL;
	const struct entry *again;
	size_t count = 0;

	for (size_t i = 0; i < p->node_count; i++)
		count += p->nodes[i].device_count;
	devices = mem_array(count, sizeof(*devices));
	count = 0;
	for (size_t i = 0; i < p->node_count; i++)
		for (size_t k = 0; k < p->nodes[i].device_count; k++)
			devices[count++] = (struct entry){.part = {p->nodes[i].devices[k].uuid},
			                                  .line = p->nodes[i].devices[k].line};
	again = find_repeated(devices, count);
	if (again != NULL)
		return err_set(err, ERR_INVALID, "%s:%d: device \"%s\" is already on line %d", file, again->line,
		               again->part[0], again[-1].line);
	return true;
}

static bool
check_tenant(const struct policy_tenant *t, const char *file, struct err *err)
{
	owned(mem) char *of_tenant = mem_printf(" of tenant \"%s\"", t->name), *of = mem_printf(" of %s", t->name);

	if (!CHECK_UNIQUE("workspace", of_tenant, t->workspaces, t->workspace_count, file, err) ||
	    !CHECK_UNIQUE("member", of, t->members.at, t->members.count, file, err))
		return false;
	for (size_t i = 0; i < t->workspace_count; i++) {
		const struct policy_workspace *w = &t->workspaces[i];
		owned(mem) char *of_workspace = mem_printf(" of %s/%s", t->name, w->name);

		if (!CHECK_UNIQUE("member", of_workspace, w->members.at, w->members.count, file, err))
			return false;
	}
	return policy_check_quota(t, file, err);
}

bool
policy_check(const struct policy *p, const char *file, struct err *err)
{
	if (!CHECK_UNIQUE("tenant", "", p->tenants, p->tenant_count, file, err))
		return false;
	for (size_t i = 0; i < p->tenant_count; i++)
		if (!check_tenant(&p->tenants[i], file, err))
			return false;
	/* nodes by name alone: an exporter gives no other */
	return CHECK_UNIQUE("priority class", "", p->classes, p->class_count, file, err) && check_rules(p, file, err) &&
	       CHECK_UNIQUE("node", "", p->nodes, p->node_count, file, err) && check_owners(p, file, err) &&
	       check_devices(p, file, err) && policy_check_book(p->prices, p, file, err);
}

/* ---- between tenants, priority classes and nodes: rules 5 and 6 ---- */

static bool
check_class_names(const struct policy *p, const struct policy_tenant *t, const char *file, struct err *err)
{
	for (size_t i = 0; i < t->class_count; i++) {
		bool known = false;

		for (size_t k = 0; k < p->class_count && !known; k++)
			known = strcmp(p->classes[k].name, t->classes[i]) == 0;
		if (!known)
			return err_set(
				err, ERR_INVALID,
				"%s:%d: tenant %s: priority_classes: \"%s\" is not among the file's %zu priority classes",
				file, t->line, t->name, t->classes[i], p->class_count);
		for (size_t k = 0; k < i; k++)
			if (strcmp(t->classes[k], t->classes[i]) == 0)
				return err_set(err, ERR_INVALID,
				               "%s:%d: tenant %s: priority_classes: \"%s\" is there twice", file,
				               t->line, t->name, t->classes[i]);
	}
	return true;
}

static bool
has_node(const struct policy *p, const char *tenant)
{
	for (size_t i = 0; i < p->node_count; i++) {
		const struct policy_node *n = &p->nodes[i];

		if (strcmp(n->state, "retired") != 0 &&
		    (n->tenant != NULL ? tenant != NULL && strcmp(n->tenant, tenant) == 0 : tenant == NULL))
			return true;
	}
	return false;
}

static bool
has_profile(const struct policy_amounts *a)
{
	for (size_t i = 0; i < a->count; i++)
		if (a->at[i].profile[0])
			return true;
	return false;
}

static bool
check_isolation(const struct policy *p, const struct policy_tenant *t, const char *file, struct err *err)
{
	bool apart = strcmp(t->isolation, "node") == 0, whole = strcmp(t->isolation, "gpu") == 0;

	if (strcmp(t->isolation, "shared") == 0)
		return true;
	if (!has_node(p, t->name) && (apart || !has_node(p, NULL)))
		return err_set(err, ERR_INVALID, "%s:%d: tenant %s: isolation %s: no node of this file is %s", file,
		               t->line, t->name, t->isolation, apart ? "its own" : "its own or shared");
	for (size_t i = 0; i < t->workspace_count; i++) {
		const struct policy_workspace *w = &t->workspaces[i];

		if (apart && w->reserved_shared.count > 0)
			return err_set(err, ERR_INVALID,
			               "%s:%d: workspace %s/%s: reserved_shared: the tenant's isolation is node, so "
			               "it never runs on shared nodes",
			               file, w->reserved_shared.line, t->name, w->name);
		if (whole && has_profile(&w->reserved_shared))
			return err_set(err, ERR_INVALID,
			               "%s:%d: workspace %s/%s: reserved_shared: the tenant's isolation is gpu, so "
			               "it never runs on a MIG instance of a shared node",
			               file, w->reserved_shared.line, t->name, w->name);
	}
	return true;
}

static bool
check_workspace_clusters(const struct policy *p, const struct policy_tenant *t, const char *file, struct err *err)
{
	for (size_t i = 0; i < t->workspace_count; i++) {
		const struct policy_workspace *w = &t->workspaces[i];
		bool known = w->cluster == NULL || strcmp(w->cluster, p->cluster) == 0;

		for (size_t k = 0; k < p->node_count && !known; k++)
			known = strcmp(p->nodes[k].cluster, w->cluster) == 0;
		if (!known)
			return err_set(err, ERR_INVALID,
			               "%s:%d: workspace %s/%s: cluster \"%s\" is neither the file's nor a node's",
			               file, w->line, t->name, w->name, w->cluster);
	}
	return true;
}

bool
policy_check_whole(const struct policy *p, const char *file, struct err *err)
{
	for (size_t i = 0; i < p->tenant_count; i++) {
		const struct policy_tenant *t = &p->tenants[i];

		if (!check_class_names(p, t, file, err) || !check_isolation(p, t, file, err) ||
		    !check_workspace_clusters(p, t, file, err))
			return false;
	}
	return true;
}
