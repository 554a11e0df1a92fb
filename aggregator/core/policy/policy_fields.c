/* aggregator/core/policy/policy_fields.c - the table of the policy file's keys, the rules between the keys of one entry, and reading, defaults
 * and freeing by the table. */
#include "aggregator/core/policy/policy_fields.h"

#include <string.h>

#include "common/base/time.h"

#define COST_CENTER_MAX 64u  /* bytes */
#define DISPLAY_MAX 200u     /* bytes of a tenant's display name */
#define DESCRIPTION_MAX 500u /* bytes of a workspace's description */
#define ADDRESS_MAX 254u     /* bytes of an e-mail address */
#define PATTERN_MAX 253u     /* bytes of a rule's pattern */
#define KEYS_MAX 32u         /* of one section */
#define IDLE_TIMEOUT_MAX (30 * 24 * NS_PER_HOUR)
#define PLATFORM_COST_MAX INT64_C(1000000000000)
#define RATIO_SCALE 9   /* ratios are in 10^-9 */
#define PERCENT_SCALE 7 /* so many decimals of a percentage are one of a ratio */

static const char *const tenant_roles[] = {"tenant-admin", "developer", "viewer", NULL};
static const char *const workspace_roles[] = {"developer", "viewer", NULL};
static const char *const isolations[] = {"node", "gpu", "mig", "shared", NULL};
static const char *const reclaims[] = {"any", "lower", "never", NULL};
static const char *const preempts[] = {"lower", "never", NULL};
static const char *const enforces[] = {"off", "warn", "on", NULL};
static const char *const states[] = {"in-service", "maintenance", "retired", NULL};
static const char *const classes[] = {"on-demand", "borrowed", "dedicated", "reserved", NULL};
static const char *const bases[] = {"allocated", "used", NULL};
static const char *const modes[] = {"exclusive", "mig", "mps", "timeslice", "plain", NULL};
static const char *const meters[] = {
	"storage", "egress", "inference-requests", "inference-input-tokens", "inference-output-tokens",
	"support", NULL};
static const char *const categories[] = {"gpu", "storage", "network", "inference", "support", NULL};

/* ---- rules between the keys of one entry ---- */

static bool
check_tenant(const struct yaml_doc *doc, const struct yaml_node *n, void *entry, struct err *err)
{
	const struct policy_tenant *t = entry;

	if (strcmp(t->name, "unattributed") != 0 && strcmp(t->name, "platform") != 0)
		return true;
	return yaml_err(doc, yaml_get(n, "name"), err,
	                "tenant name \"%s\" is reserved for usage that belongs to no tenant", t->name);
}

static bool
check_rule(const struct yaml_doc *doc, const struct yaml_node *n, void *entry, struct err *err)
{
	const struct policy_rule *r = entry;

	if (r->ns != NULL || r->slurm_account != NULL || r->user != NULL || r->group != NULL || r->labels != NULL ||
	    r->cluster != NULL)
		return true;
	return yaml_err(doc, n, err,
	                "a rule needs at least one of namespace, slurm_account, user, group, labels and cluster");
}

static bool
check_node(const struct yaml_doc *doc, const struct yaml_node *n, void *entry, struct err *err)
{
	const struct policy_node *node = entry;
	const struct yaml_node *shared = yaml_get(n, "shared");
	const struct yaml_node *has = yaml_get(n, "gpus") ? yaml_get(n, "gpus") : yaml_get(n, "mig");
	bool is_shared = true;

	if ((shared != NULL) == (node->tenant != NULL))
		return yaml_err(doc, n, err, "node \"%s\" needs exactly one of tenant: NAME and shared: true",
		                node->name);
	if (shared != NULL && !yaml_bool(doc, n, "shared", &is_shared, err))
		return false;
	if (!is_shared)
		return yaml_err(doc, shared, err,
		                "node \"%s\" has shared: false, but no tenant; write tenant: NAME instead", node->name);
	if (node->model == NULL)
		return has == NULL ||
		       yaml_err(doc, has, err, "node \"%s\" says what it has, and needs the key model", node->name);
	if (node->gpus == 0 && node->profile_count == 0)
		return yaml_err(doc, yaml_get(n, "model"), err,
		                "node \"%s\" has a model, and needs gpus: N, mig: {PROFILE: N} or both", node->name);
	return true;
}

/* Keys of GPUs do not stand beside a meter, and the other way round. */
static bool
check_price_kind(const struct yaml_doc *doc, const struct yaml_node *n, const char *meter, struct err *err)
{
	static const char *const of_gpus[] = {"gpu_model", "mig_profile", "sharing_mode", "class", "basis"};
	static const char *const of_meters[] = {"meter_sku", "per"};
	const char *const *keys = meter ? of_gpus : of_meters;
	size_t count = meter ? ARRAY_LEN(of_gpus) : ARRAY_LEN(of_meters);

	for (size_t i = 0; i < count; i++)
		if (yaml_get(n, keys[i]) != NULL)
			return yaml_err(doc, yaml_get(n, keys[i]), err, "%s: %s %s has no such key", keys[i],
			                meter ? "a price of meter" : "a price without a", meter ? meter : "meter");
	return true;
}

static bool
check_price(const struct yaml_doc *doc, const struct yaml_node *n, void *entry, struct err *err)
{
	const struct policy_price *p = entry;

	if (!check_price_kind(doc, n, p->meter, err))
		return false;
	if (p->basis_used && p->klass != NULL && strcmp(p->klass, "on-demand") != 0 &&
	    strcmp(p->klass, "borrowed") != 0)
		return yaml_err(doc, yaml_get(n, "basis"), err,
		                "basis \"used\" is for class on-demand or borrowed, not %s", p->klass);
	return true;
}

static bool
check_discount(const struct yaml_doc *doc, const struct yaml_node *n, void *entry, struct err *err)
{
	const struct policy_discount *d = entry;

	if (d->klass == NULL || d->category == NULL || d->category == categories[0])
		return true;
	return yaml_err(doc, yaml_get(n, "class"), err, "class \"%s\": category %s has no classes", d->klass,
	                d->category);
}

static bool
check_energy(const struct yaml_doc *doc, const struct yaml_node *n, void *entry, struct err *err)
{
	const struct policy_energy *e = entry;

	return e->price >= 0 || e->carbon >= 0 ||
	       yaml_err(doc, n, err, "energy of cluster %s needs price_per_kwh, carbon_g_per_kwh or both", e->cluster);
}

/* A node without a cluster is in the file's. */
static bool
check_file(const struct yaml_doc *doc, const struct yaml_node *n, void *entry, struct err *err)
{
	struct policy *p = entry;

	(void)doc;
	(void)n;
	(void)err;
	for (size_t i = 0; i < p->node_count; i++)
		if (p->nodes[i].cluster == NULL)
			p->nodes[i].cluster = mem_strdup(p->cluster);
	return true;
}

/* ---- the table; keys in the order in which they are read and rendered ---- */

/* clang-format off */
#define AT(type, member) .offset = offsetof(struct type, member)
#define TEXT(bytes) .type = &policy_type_text, .max = (bytes)
#define NAME(why) .type = &policy_type_name, .fault = (why)
#define WORD(list) .type = &policy_type_word, .words = (list)
#define LIST(of, most) .type = &policy_type_list, .section = &(of), .max = (most)
#define SECTION(list, type) .fields = (list), .field_count = ARRAY_LEN(list), .size = sizeof(struct type), .line_offset = offsetof(struct type, line)

static const struct policy_field tenant_member_fields[] = {
	{"user", TEXT(ADDRESS_MAX), AT(policy_member, user), .flags = POLICY_REQUIRED, .help = "as the identity provider names the user"},
	{"role", WORD(tenant_roles), AT(policy_member, role), .flags = POLICY_REQUIRED, .help = "what the user may do in the tenant"},
};
static const struct policy_section tenant_member_section = {
	"tenants[].members[]", "a member", "member", SECTION(tenant_member_fields, policy_member)};

static const struct policy_field workspace_member_fields[] = {
	{"user", TEXT(ADDRESS_MAX), AT(policy_member, user), .flags = POLICY_REQUIRED, .help = "as the identity provider names the user"},
	{"role", WORD(workspace_roles), AT(policy_member, role), .flags = POLICY_REQUIRED, .help = "what the user may do in the workspace"},
};
static const struct policy_section workspace_member_section = {
	"tenants[].workspaces[].members[]", "a member", "member", SECTION(workspace_member_fields, policy_member)};

/* Patterns have * and ? as in a shell; every pattern given must match. */
static const struct policy_field rule_fields[] = {
	{"namespace", NAME(policy_ns_fault), AT(policy_rule, ns), .flags = POLICY_IDENTITY, .help = "pattern of a pod's namespace"},
	{"slurm_account", TEXT(PATTERN_MAX), AT(policy_rule, slurm_account), .flags = POLICY_IDENTITY, .help = "pattern of a Slurm job's account"},
	{"user", TEXT(PATTERN_MAX), AT(policy_rule, user), .flags = POLICY_IDENTITY, .help = "pattern of a host user's or Slurm user's name, or uid"},
	{"group", TEXT(PATTERN_MAX), AT(policy_rule, group), .flags = POLICY_IDENTITY, .help = "pattern of such a user's primary group"},
	{"labels", .type = &policy_type_labels, AT(policy_rule, labels), .flags = POLICY_IDENTITY, .help = "a pod must have each of these labels, with a value that the pattern matches"},
	{"cluster", TEXT(PATTERN_MAX), AT(policy_rule, cluster), .flags = POLICY_IDENTITY, .help = "pattern of the cluster's name"},
	{"priority", .type = &policy_type_integer, AT(policy_rule, priority), .flags = POLICY_ALWAYS, .preset = "100", .min = 0, .max = POLICY_MAX_PRIORITY,
	 .help = "lower numbers are asked first, then the order of the file"},
};
const struct policy_section policy_rule_section = {
	"tenants[].workspaces[].rules[]", "a rule", "rule", SECTION(rule_fields, policy_rule), .check = check_rule};

static const struct policy_field workspace_fields[] = {
	{"name", NAME(policy_label_fault), AT(policy_workspace, name), .flags = POLICY_REQUIRED | POLICY_OWN_DIFF, .help = "lower-case letters, digits and -"},
	{"description", TEXT(DESCRIPTION_MAX), AT(policy_workspace, description), .flags = POLICY_OLD_DIFF | POLICY_TEXT_DIFF, .preset = "", .help = "for readers of reports"},
	{"cluster", NAME(policy_label_fault), AT(policy_workspace, cluster), .help = "where its reservations lie; default: the file's cluster"},
	{"reserved", .type = &policy_type_amounts, AT(policy_workspace, reserved), .help = "GPUs of the tenant's own nodes that are its whenever it asks"},
	{"reserved_shared", .type = &policy_type_amounts, AT(policy_workspace, reserved_shared), .help = "the same of shared nodes"},
	{"limit", .type = &policy_type_amounts, AT(policy_workspace, limit), .help = "never more than this; default: three times the reservation"},
	{"borrow", .type = &policy_type_amounts, AT(policy_workspace, borrow), .help = "at most so much beyond its reservation; default: limit less reservation"},
	{"lend", .type = &policy_type_amounts, AT(policy_workspace, lend), .help = "at most so much of its idle reservation goes to others; default: all of it"},
	{"reclaim", WORD(reclaims), AT(policy_workspace, reclaim), .preset = "any", .help = "from which borrowers it takes back its reservation"},
	{"preempt_own", WORD(preempts), AT(policy_workspace, preempt_own), .preset = "lower", .help = "whether its own work of lower priority is stopped for other work of its own"},
	{"weight", .type = &policy_type_integer, AT(policy_workspace, weight), .preset = "1", .min = 1, .max = POLICY_MAX_WEIGHT, .help = "its share where several workspaces ask"},
	{"enforce", WORD(enforces), AT(policy_workspace, enforce), .preset = "on", .help = "off: only counted; warn: reported, not refused"},
	{"idle_timeout", .type = &policy_type_duration, AT(policy_workspace, idle_timeout_ns), .min = NS_PER_S, .max = IDLE_TIMEOUT_MAX, .help = "idle GPUs are given back after it; default: none"},
	{"limits", .type = &policy_type_resources, AT(policy_workspace, limits), .help = "CPU cores, memory and storage"},
	{"budget", .type = &policy_type_budget, AT(policy_workspace, budget), .help = "for a month; a soft one warns, a hard one admits nothing new when it is spent"},
	{"sla", .type = &policy_type_sla, AT(policy_workspace, sla), .help = "promises to the workspace, measured"},
	{"members", LIST(workspace_member_section, POLICY_MAX_MEMBERS), AT(policy_workspace, members), .help = "its users"},
	{"rules", LIST(policy_rule_section, POLICY_MAX_RULES), AT(policy_workspace, rules), .help = "which usage belongs to it"},
};
const struct policy_section policy_workspace_section = {
	"tenants[].workspaces[]", "a workspace", "workspace", SECTION(workspace_fields, policy_workspace), .block = true};

static const struct policy_field tenant_fields[] = {
	{"name", NAME(policy_label_fault), AT(policy_tenant, name), .flags = POLICY_REQUIRED | POLICY_OWN_DIFF, .help = "lower-case letters, digits and -"},
	{"display_name", TEXT(DISPLAY_MAX), AT(policy_tenant, display_name), .flags = POLICY_OPERATOR | POLICY_NAMED_SAME | POLICY_OLD_DIFF | POLICY_TEXT_DIFF,
	 .help = "on invoices; default: the name"},
	{"cost_center", TEXT(COST_CENTER_MAX), AT(policy_tenant, cost_center), .flags = POLICY_OPERATOR | POLICY_OLD_DIFF | POLICY_TEXT_DIFF, .preset = "", .help = "on invoices"},
	{"owner", TEXT(ADDRESS_MAX), AT(policy_tenant, owner), .flags = POLICY_OPERATOR | POLICY_OLD_DIFF | POLICY_TEXT_DIFF, .preset = "", .help = "a contact, on invoices"},
	{"maximum", .type = &policy_type_amounts, AT(policy_tenant, maximum), .flags = POLICY_OPERATOR, .help = "over all its workspaces; default: none"},
	{"default_limit", .type = &policy_type_amounts, AT(policy_tenant, default_limit), .help = "of a workspace that reserves nothing; default: the maximum"},
	{"isolation", WORD(isolations), AT(policy_tenant, isolation), .flags = POLICY_OPERATOR, .preset = "shared", .help = "what separates it from other tenants"},
	{"priority_classes", .type = &policy_type_class_names, AT(policy_tenant, classes), .flags = POLICY_OPERATOR, .help = "those it may use; default: all"},
	{"limits", .type = &policy_type_resources, AT(policy_tenant, limits), .flags = POLICY_OPERATOR, .help = "CPU cores, memory and storage of all its workspaces"},
	{"budget", .type = &policy_type_budget, AT(policy_tenant, budget), .flags = POLICY_OPERATOR, .help = "for a month; a soft one warns, a hard one admits nothing new when it is spent"},
	{"auto_approve", .type = &policy_type_auto_approve, AT(policy_tenant, auto_approve), .flags = POLICY_OPERATOR, .help = "exceptions from limits that need no approval: so many GPUs of a model, each for no longer"},
	{"sla", .type = &policy_type_sla, AT(policy_tenant, sla), .flags = POLICY_OPERATOR, .help = "promises to the tenant, measured"},
	{"data_boundary", TEXT(POLICY_MAX_BOUNDARY), AT(policy_tenant, data_boundary), .flags = POLICY_OPERATOR, .preset = "", .help = "where its data may be; shown, no decision depends on it"},
	{"members", LIST(tenant_member_section, POLICY_MAX_MEMBERS), AT(policy_tenant, members), .help = "its users"},
	{"workspaces", LIST(policy_workspace_section, POLICY_MAX_WORKSPACES), AT(policy_tenant, workspaces), .help = "each is a line of the invoice per kind of GPU"},
};
const struct policy_section policy_tenant_section = {
	"tenants[]", "a tenant", "tenant", SECTION(tenant_fields, policy_tenant), .block = true, .check = check_tenant};

static const struct policy_field class_fields[] = {
	{"name", NAME(policy_label_fault), AT(policy_class, name), .flags = POLICY_REQUIRED, .help = "lower-case letters, digits and -"},
	{"value", .type = &policy_type_integer, AT(policy_class, value), .flags = POLICY_ALWAYS, .min = -POLICY_MAX_CLASS_VALUE, .max = POLICY_MAX_CLASS_VALUE, .help = "the higher value goes first"},
	{"preemptible", .type = &policy_type_bool, AT(policy_class, preemptible), .flags = POLICY_ALWAYS, .preset = "true", .help = "false: never taken back, and so within the reservation"},
};
static const struct policy_section class_section = {
	"priority_classes[]", "a priority class", "priority class", SECTION(class_fields, policy_class)};

static const struct policy_field device_fields[] = {
	{"uuid", NAME(policy_uuid_fault), AT(policy_device, uuid), .flags = POLICY_REQUIRED, .help = "of a GPU that was seen"},
	{"state", WORD(states), AT(policy_device, state), .flags = POLICY_REQUIRED, .help = "of this GPU alone"},
};
static const struct policy_section device_section = {
	"nodes[].devices[]", "a device", "device", SECTION(device_fields, policy_device)};

static const struct policy_field node_fields[] = {
	{"name", NAME(policy_node_fault), AT(policy_node, name), .flags = POLICY_REQUIRED | POLICY_OWN_DIFF, .help = "as its exporter gives it"},
	{"cluster", NAME(policy_label_fault), AT(policy_node, cluster), .flags = POLICY_OWN_DIFF, .help = "default: the file's cluster"},
	{"tenant", NAME(policy_label_fault), AT(policy_node, tenant), .flags = POLICY_OWN_DIFF, .help = "the tenant that it is dedicated to; this or shared"},
	{"shared", .type = &policy_type_shared, .flags = POLICY_OWN_DIFF | POLICY_ALWAYS, .help = "it is no tenant's own"},
	{"model", NAME(policy_code_fault), AT(policy_node, model), .help = "short GPU model; counts until the exporter has reported"},
	{"gpus", .type = &policy_type_count, AT(policy_node, gpus), .preset = "0", .min = 0, .max = LIMIT_NODE_GPUS, .help = "whole GPUs of that model"},
	{"mig", .type = &policy_type_profiles, AT(policy_node, profiles), .help = "MIG instances, on further GPUs"},
	{"state", WORD(states), AT(policy_node, state), .preset = "in-service", .help = "maintenance: not billed while nobody holds it; retired: gone"},
	{"devices", LIST(device_section, LIMIT_NODE_GPUS), AT(policy_node, devices), .help = "states of single GPUs"},
};
const struct policy_section policy_node_section = {
	"nodes[]", "a node", "node", SECTION(node_fields, policy_node), .check = check_node};

static const struct policy_field price_fields[] = {
	{"sku", NAME(policy_code_fault), AT(policy_price, sku), .flags = POLICY_OLD_DIFF | POLICY_TEXT_DIFF, .preset = "", .help = "on the bill; default: derived"},
	{"gpu_model", NAME(policy_code_fault), AT(policy_price, gpu_model), .flags = POLICY_IDENTITY | POLICY_OWN_DIFF, .help = "short GPU model; default: any"},
	{"mig_profile", NAME(policy_profile_fault), AT(policy_price, mig_profile), .flags = POLICY_IDENTITY | POLICY_OWN_DIFF, .help = "price of an instance; default: its share of the GPU"},
	{"sharing_mode", .type = &policy_type_word_copy, .words = modes, AT(policy_price, sharing_mode), .flags = POLICY_IDENTITY | POLICY_OWN_DIFF, .help = "default: any"},
	{"class", .type = &policy_type_word_copy, .words = classes, AT(policy_price, klass), .flags = POLICY_IDENTITY | POLICY_OWN_DIFF, .help = "default: any"},
	{"basis", .type = &policy_type_word_bool, .words = bases, AT(policy_price, basis_used), .flags = POLICY_OWN_DIFF | POLICY_QUOTED, .preset = "allocated", .help = "used: only active time is priced"},
	{"meter", WORD(meters), AT(policy_price, meter), .flags = POLICY_IDENTITY | POLICY_OWN_DIFF | POLICY_QUOTED, .help = "another meter; default: GPUs"},
	{"meter_sku", NAME(policy_code_fault), AT(policy_price, meter_sku), .flags = POLICY_IDENTITY | POLICY_OWN_DIFF, .help = "of that meter; default: any"},
	{"tenant", NAME(policy_label_fault), AT(policy_price, tenant), .flags = POLICY_IDENTITY | POLICY_OWN_DIFF, .help = "for this tenant alone"},
	{"price", .type = &policy_type_decimal, AT(policy_price, price), .flags = POLICY_REQUIRED | POLICY_OWN_DIFF, .max = POLICY_MAX_PRICE, .help = "per hour of a GPU, or per unit of the meter"},
	{"per", .type = &policy_type_integer, AT(policy_price, per), .flags = POLICY_OWN_DIFF, .preset = "1", .min = 1, .max = POLICY_MAX_PER, .help = "units of the meter that the price is for"},
};
const struct policy_section policy_price_section = {
	"prices.items[]", "a price", "price", SECTION(price_fields, policy_price), .check = check_price};

static const struct policy_field discount_fields[] = {
	{"tenant", NAME(policy_label_fault), AT(policy_discount, tenant), .flags = POLICY_IDENTITY, .help = "default: all tenants"},
	{"category", WORD(categories), AT(policy_discount, category), .flags = POLICY_IDENTITY | POLICY_QUOTED, .help = "default: any"},
	{"class", WORD(classes), AT(policy_discount, klass), .flags = POLICY_IDENTITY | POLICY_QUOTED, .help = "of category gpu; default: any"},
	{"percent", .type = &policy_type_ratio, AT(policy_discount, ratio), .flags = POLICY_REQUIRED | POLICY_ALWAYS, .scale = PERCENT_SCALE, .max = 100, .help = "off every price that matches"},
};
const struct policy_section policy_discount_section = {
	"prices.discounts[]", "a discount", "discount", SECTION(discount_fields, policy_discount), .check = check_discount};

static const struct policy_field energy_fields[] = {
	{"cluster", NAME(policy_label_fault), AT(policy_energy, cluster), .flags = POLICY_REQUIRED | POLICY_OWN_DIFF, .help = "where the energy is used"},
	{"price_per_kwh", .type = &policy_type_decimal, AT(policy_energy, price), .max = POLICY_MAX_PRICE, .help = "makes energy a line of the bill"},
	{"carbon_g_per_kwh", .type = &policy_type_decimal, AT(policy_energy, carbon), .max = POLICY_MAX_CARBON, .help = "reported beside the energy"},
};
const struct policy_section policy_energy_section = {
	"prices.energy[]", "an entry of energy", "energy", SECTION(energy_fields, policy_energy), .check = check_energy};

static const struct policy_field book_fields[] = {
	{"version", NAME(policy_code_fault), AT(policy_book, version), .flags = POLICY_REQUIRED | POLICY_OLD_DIFF, .help = "on every line of a bill; each change of prices needs a new one"},
	{"currency", .type = &policy_type_currency, AT(policy_book, currency), .flags = POLICY_OLD_DIFF, .help = "of all prices"},
	{"items", LIST(policy_price_section, POLICY_MAX_PRICES), AT(policy_book, items), .flags = POLICY_REQUIRED, .help = "prices; the most specific one that matches wins"},
	{"discounts", LIST(policy_discount_section, POLICY_MAX_PRICES), AT(policy_book, discounts), .help = "the one with the tenant wins, then with the category, then with the class"},
	{"lender_ratio", .type = &policy_type_ratio, AT(policy_book, lender_ratio), .preset = "0", .scale = RATIO_SCALE, .max = 1, .help = "part of a borrower's payment that the lender gets"},
	{"energy", LIST(policy_energy_section, POLICY_MAX_PRICES), AT(policy_book, energy), .help = "by cluster"},
	{"shared_idle", .type = &policy_type_shared_idle, AT(policy_book, shared_idle), .preset = "none", .help = "which tenants pay for idle shared nodes: method none, even, proportional or weights"},
	{"platform_cost", .type = &policy_type_platform_cost, AT(policy_book, platform_cost), .max = PLATFORM_COST_MAX, .help = "cost of the platform in a month, to compare with the bills"},
};
const struct policy_section policy_book_section = {
	"prices", "a price book", "price book", SECTION(book_fields, policy_book), .block = true};

static const struct policy_field file_fields[] = {
	{"version", .type = &policy_type_version, .flags = POLICY_ALWAYS, .help = "of the file format"},
	{"cluster", NAME(policy_label_fault), AT(policy, cluster), .flags = POLICY_REQUIRED, .help = "name of this ledger's cluster"},
	{"effective", .type = &policy_type_time, AT(policy, effective_ns), .help = "start of a billing hour; default: the current one"},
	{"priority_classes", LIST(class_section, LIMIT_CLASSES), AT(policy, classes), .help = "what a request for GPUs may say it is"},
	{"tenants", LIST(policy_tenant_section, POLICY_MAX_TENANTS), AT(policy, tenants), .help = "each gets an invoice"},
	{"nodes", LIST(policy_node_section, POLICY_MAX_NODES), AT(policy, nodes), .help = "owners, declared capacity and states"},
	{"prices", .type = &policy_type_book, AT(policy, prices), .help = "the price book"},
};
const struct policy_section policy_file_section = {
	"", "a policy", "policy", .fields = file_fields, .field_count = ARRAY_LEN(file_fields), .size = sizeof(struct policy),
	.line_offset = SIZE_MAX, .block = true, .check = check_file};
/* clang-format on */

const struct policy_section *const policy_sections[] = {&policy_file_section,      &class_section,
                                                        &policy_tenant_section,    &tenant_member_section,
                                                        &policy_workspace_section, &workspace_member_section,
                                                        &policy_rule_section,      &policy_node_section,
                                                        &device_section,           &policy_book_section,
                                                        &policy_price_section,     &policy_discount_section,
                                                        &policy_energy_section,    NULL};

/* ---- by the table ---- */

void
policy_preset(const struct policy_section *s, void *entry)
{
	for (size_t i = 0; i < s->field_count; i++)
		if (s->fields[i].type->preset != NULL)
			s->fields[i].type->preset(&s->fields[i], (char *)entry + s->fields[i].offset);
}

bool
policy_only_keys(const struct policy_section *s, const struct yaml_doc *doc, const struct yaml_node *n, struct err *err)
{
	const char *keys[KEYS_MAX + 1] = {NULL};

	ASSERT(s->field_count <= KEYS_MAX);
	for (size_t i = 0; i < s->field_count; i++)
		keys[i] = s->fields[i].key;
	return yaml_only_keys(doc, n, keys, err);
}

bool
policy_read_entry(const struct policy_section *s, const struct yaml_doc *doc, const struct yaml_node *n, void *entry,
                  struct err *err)
{
	policy_preset(s, entry);
	if (s->line_offset != SIZE_MAX)
		*(int *)(void *)((char *)entry + s->line_offset) = n->line;
	if (!yaml_expect(doc, n, YAML_MAP, s->title, err) || !policy_only_keys(s, doc, n, err))
		return false;
	for (size_t i = 0; i < s->field_count; i++) {
		const struct policy_field *f = &s->fields[i];

		if ((f->flags & POLICY_REQUIRED) && yaml_get(n, f->key) == NULL)
			return yaml_err(doc, n, err, "%s needs the key %s", s->title, f->key);
		if (f->type->read != NULL &&
		    !f->type->read(&(struct policy_at){.doc = doc, .map = n, .section = s, .field = f, .entry = entry},
		                   err))
			return false;
	}
	return s->check == NULL || s->check(doc, n, entry, err);
}

void
policy_free_entry(const struct policy_section *s, void *entry)
{
	for (size_t i = 0; i < s->field_count; i++)
		if (s->fields[i].type->free != NULL)
			s->fields[i].type->free(&s->fields[i], entry);
}

const char *
policy_identity(const struct policy_field *f, const void *entry)
{
	const char *text;

	memcpy(&text, (const char *)entry + f->offset, sizeof(text));
	return text;
}

bool
policy_same_entry(const struct policy_section *s, const void *a, const void *b)
{
	for (size_t i = 0; i < s->field_count; i++) {
		const char *x, *y;

		if (!(s->fields[i].flags & POLICY_IDENTITY))
			continue;
		x = policy_identity(&s->fields[i], a);
		y = policy_identity(&s->fields[i], b);
		if (x != NULL && y != NULL ? strcmp(x, y) != 0 : x != y)
			return false;
	}
	return true;
}

void
policy_field_text(const struct policy_field *f, const void *entry, struct buf *out)
{
	buf_clear(out);
	f->type->text(f, entry, out);
}

void
policy_book_free(struct policy_book *b)
{
	if (b == NULL)
		return;
	policy_free_entry(&policy_book_section, b);
	mem_free(b);
}

void
policy_free(struct policy *p)
{
	if (p == NULL)
		return;
	policy_free_entry(&policy_file_section, p);
	mem_free(p);
}

/* ---- the reference of keys ---- */

static void
describe_value(const struct policy_field *f, struct buf *out)
{
	if (f->words == NULL)
		buf_str(out, f->type->title);
	if (f->type == &policy_type_integer || f->type == &policy_type_count)
		buf_printf(out, ", %" PRId64 " to %" PRId64, f->min, f->max);
	if (f->words == NULL)
		return;
	for (const char *const *w = f->words; *w != NULL; w++)
		buf_printf(out, "%s%s", w == f->words ? "" : ", ", *w);
}

/* Readers of these types refuse a missing key themselves. */
static bool
is_required(const struct policy_field *f)
{
	return (f->flags & POLICY_REQUIRED) || f->type == &policy_type_version || f->type == &policy_type_currency ||
	       (f->type == &policy_type_integer && f->preset == NULL);
}

void
policy_key_reference(struct buf *out)
{
	for (const struct policy_section *const *at = policy_sections; *at != NULL; at++) {
		const struct policy_section *s = *at;

		buf_printf(out, "\n## %s\n\n| key | value | default | meaning |\n|---|---|---|---|\n",
		           s->path[0] ? s->path : "The file");
		for (size_t i = 0; i < s->field_count; i++) {
			const struct policy_field *f = &s->fields[i];

			buf_printf(out, "| %s | ", f->key);
			describe_value(f, out);
			buf_printf(out, " | %s | %s |\n",
			           is_required(f)                      ? "required"
			           : f->preset != NULL && f->preset[0] ? f->preset
			                                               : "",
			           f->help);
		}
	}
}
