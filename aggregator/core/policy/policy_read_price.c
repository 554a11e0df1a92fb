/* aggregator/core/policy/policy_read_price.c - reading the price book of a policy file. What must agree across it is in
 * policy_check_price.c. */
#include <string.h>

#include "aggregator/core/policy/policy_check.h"
#include "aggregator/core/policy/policy_read.h"
#include "common/conf/yaml.h"

#define RATIO_SCALE 9   /* ratios are in 10^-9 */
#define PERCENT_SCALE 7 /* so many decimals of a percentage are one of a ratio */
#define PLATFORM_COST_MAX INT64_C(1000000000000)

static const char *const classes[] = {"on-demand", "borrowed", "dedicated", "reserved", NULL};

/* From 0 to `most`; a missing key leaves *ret as it is. */
static bool
read_decimal(const struct yaml_doc *doc, const struct yaml_node *map, const char *key, int scale, int64_t most,
             int128 *ret, struct err *err)
{
	const struct yaml_node *n = yaml_get(map, key);
	struct err why = {0};
	const char *text;
	int128 value;

	if (n == NULL)
		return true;
	if (!yaml_str(doc, map, key, &text, err))
		return false;
	if (!decimal_parse(text, scale, &value, &why))
		return yaml_err(doc, n, err, "%s %s", key, why.text);
	if (value < 0 || value > most * pow10_i128(scale))
		return yaml_err(doc, n, err, "%s \"%.*s\" is outside 0 to %" PRId64, key, policy_shown(text), text,
		                most);
	*ret = value;
	return true;
}

static bool
needs_key(const struct yaml_doc *doc, const struct yaml_node *map, const char *what, const char *key, struct err *err)
{
	return yaml_get(map, key) != NULL || yaml_err(doc, map, err, "%s needs the key %s", what, key);
}

/* ---- items ---- */

/* What only GPUs have does not stand beside a meter, and the other way round. */
static bool
check_kind(const struct yaml_doc *doc, const struct yaml_node *n, const char *meter, struct err *err)
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
read_per(const struct yaml_doc *doc, const struct yaml_node *n, struct policy_price *p, struct err *err)
{
	p->per = 1;
	if (yaml_get(n, "per") == NULL)
		return true;
	return yaml_i64(doc, n, "per", 1, POLICY_MAX_PER, &p->per, err);
}

static bool
read_basis(const struct yaml_doc *doc, const struct yaml_node *n, struct policy_price *p, struct err *err)
{
	static const char *const bases[] = {"allocated", "used", NULL};
	const char *basis = bases[0];

	if (!policy_read_word(doc, n, "basis", bases, &basis, err))
		return false;
	p->basis_used = basis == bases[1];
	if (p->basis_used && p->klass != NULL && strcmp(p->klass, "on-demand") != 0 &&
	    strcmp(p->klass, "borrowed") != 0)
		return yaml_err(doc, yaml_get(n, "basis"), err,
		                "basis \"used\" is for class on-demand or borrowed, not %s", p->klass);
	return true;
}

static bool
read_price(const struct yaml_doc *doc, const struct yaml_node *n, struct policy_price *p, struct err *err)
{
	static const char *const keys[] = {"sku",    "gpu_model", "mig_profile", "sharing_mode", "class", "basis",
	                                   "tenant", "meter",     "meter_sku",   "price",        "per",   NULL};
	static const char *const modes[] = {"exclusive", "mig", "mps", "timeslice", "plain", NULL};
	static const char *const meters[] = {
		"storage", "egress", "inference-requests", "inference-input-tokens", "inference-output-tokens",
		"support", NULL};
	const char *mode = NULL, *klass = NULL;

	p->line = n->line;
	if (!yaml_expect(doc, n, YAML_MAP, "a price", err) || !yaml_only_keys(doc, n, keys, err) ||
	    !policy_read_optional(doc, n, "price", "sku", policy_code_fault, &p->sku, err) ||
	    !policy_read_optional(doc, n, "price", "gpu_model", policy_code_fault, &p->gpu_model, err) ||
	    !policy_read_optional(doc, n, "price", "mig_profile", policy_profile_fault, &p->mig_profile, err) ||
	    !policy_read_word(doc, n, "sharing_mode", modes, &mode, err) ||
	    !policy_read_word(doc, n, "class", classes, &klass, err) ||
	    !policy_read_optional(doc, n, "price", "tenant", policy_label_fault, &p->tenant, err) ||
	    !policy_read_word(doc, n, "meter", meters, &p->meter, err) || !check_kind(doc, n, p->meter, err) ||
	    !policy_read_optional(doc, n, "price", "meter_sku", policy_code_fault, &p->meter_sku, err) ||
	    !needs_key(doc, n, "a price", "price", err) ||
	    !read_decimal(doc, n, "price", PRICE_SCALE, POLICY_MAX_PRICE, &p->price, err) || !read_per(doc, n, p, err))
		return false;
	p->sharing_mode = mem_strdup(mode);
	p->klass = mem_strdup(klass);
	if (p->sku == NULL)
		p->sku = mem_strdup("");
	return read_basis(doc, n, p, err);
}

static bool
read_items(const struct yaml_doc *doc, const struct yaml_node *n, struct policy_book *b, struct err *err)
{
	const struct yaml_node *list;

	if (!needs_key(doc, n, "a price book", "items", err) ||
	    !policy_read_list(doc, n, "items", POLICY_MAX_PRICES, &list, err))
		return false;
	b->items = mem_array(list->count, sizeof(*b->items));
	for (const struct yaml_node *c = list->child; c != NULL; c = c->next)
		if (!read_price(doc, c, &b->items[b->item_count++], err))
			return false;
	return true;
}

/* ---- what is beside the items ---- */

static bool
read_discount(const struct yaml_doc *doc, const struct yaml_node *n, struct policy_discount *d, struct err *err)
{
	static const char *const keys[] = {"tenant", "category", "class", "percent", NULL};
	static const char *const categories[] = {"gpu", "storage", "network", "inference", "support", NULL};
	int128 ratio = 0;

	d->line = n->line;
	if (!yaml_expect(doc, n, YAML_MAP, "a discount", err) || !yaml_only_keys(doc, n, keys, err) ||
	    !policy_read_optional(doc, n, "discount", "tenant", policy_label_fault, &d->tenant, err) ||
	    !policy_read_word(doc, n, "category", categories, &d->category, err) ||
	    !policy_read_word(doc, n, "class", classes, &d->klass, err) ||
	    !needs_key(doc, n, "a discount", "percent", err) ||
	    !read_decimal(doc, n, "percent", PERCENT_SCALE, 100, &ratio, err))
		return false;
	if (d->klass != NULL && d->category != NULL && d->category != categories[0])
		return yaml_err(doc, yaml_get(n, "class"), err, "class \"%s\": category %s has no classes", d->klass,
		                d->category);
	d->ratio = (int64_t)ratio;
	return true;
}

static bool
read_discounts(const struct yaml_doc *doc, const struct yaml_node *n, struct policy_book *b, struct err *err)
{
	const struct yaml_node *list;

	if (!policy_read_list(doc, n, "discounts", POLICY_MAX_PRICES, &list, err))
		return false;
	if (list == NULL)
		return true;
	b->discounts = mem_array(list->count, sizeof(*b->discounts));
	for (const struct yaml_node *c = list->child; c != NULL; c = c->next)
		if (!read_discount(doc, c, &b->discounts[b->discount_count++], err))
			return false;
	return true;
}

static bool
read_site(const struct yaml_doc *doc, const struct yaml_node *n, struct policy_energy *e, struct err *err)
{
	static const char *const keys[] = {"cluster", "price_per_kwh", "carbon_g_per_kwh", NULL};

	e->line = n->line;
	e->price = e->carbon = -1;
	if (!yaml_expect(doc, n, YAML_MAP, "an entry of energy", err) || !yaml_only_keys(doc, n, keys, err) ||
	    !needs_key(doc, n, "an entry of energy", "cluster", err) ||
	    !policy_read_checked(doc, n, "energy", "cluster", policy_label_fault, &e->cluster, err) ||
	    !read_decimal(doc, n, "price_per_kwh", PRICE_SCALE, POLICY_MAX_PRICE, &e->price, err) ||
	    !read_decimal(doc, n, "carbon_g_per_kwh", PRICE_SCALE, POLICY_MAX_CARBON, &e->carbon, err))
		return false;
	return e->price >= 0 || e->carbon >= 0 ||
	       yaml_err(doc, n, err, "energy of cluster %s needs price_per_kwh, carbon_g_per_kwh or both", e->cluster);
}

static bool
read_energy(const struct yaml_doc *doc, const struct yaml_node *n, struct policy_book *b, struct err *err)
{
	const struct yaml_node *list;

	if (!policy_read_list(doc, n, "energy", POLICY_MAX_PRICES, &list, err))
		return false;
	if (list == NULL)
		return true;
	b->energy = mem_array(list->count, sizeof(*b->energy));
	for (const struct yaml_node *c = list->child; c != NULL; c = c->next)
		if (!read_site(doc, c, &b->energy[b->energy_count++], err))
			return false;
	return true;
}

static bool
read_weights(const struct yaml_doc *doc, const struct yaml_node *map, struct policy_book *b, struct err *err)
{
	if (!yaml_expect(doc, map, YAML_MAP, "weights", err))
		return false;
	if (map->count == 0 || map->count > POLICY_MAX_TENANTS)
		return yaml_err(doc, map, err, "weights has %zu keys, 1 to %u are allowed", map->count,
		                POLICY_MAX_TENANTS);
	b->weights = mem_array(map->count, sizeof(*b->weights));
	for (const struct yaml_node *c = map->child; c != NULL; c = c->next) {
		struct policy_weight *w = &b->weights[b->weight_count++];
		const char *reason = policy_label_fault(c->key);

		if (reason != NULL)
			return yaml_err(doc, c, err, "weights: tenant \"%.*s\" %s", policy_shown(c->key), c->key,
			                reason);
		w->tenant = mem_strdup(c->key);
		w->line = c->key_line;
		if (!yaml_i64(doc, map, c->key, 1, POLICY_MAX_WEIGHT, &w->weight, err))
			return false;
	}
	return true;
}

static bool
read_shared_idle(const struct yaml_doc *doc, const struct yaml_node *book, struct policy_book *b, struct err *err)
{
	static const char *const keys[] = {"method", "weights", NULL};
	static const char *const methods[] = {"none", "even", "proportional", "weights", NULL};
	const struct yaml_node *n = yaml_get(book, "shared_idle"), *weights;
	bool weighted;

	b->shared_idle = methods[0];
	if (n == NULL)
		return true;
	if (!yaml_expect(doc, n, YAML_MAP, "shared_idle", err) || !yaml_only_keys(doc, n, keys, err) ||
	    !needs_key(doc, n, "shared_idle", "method", err) ||
	    !policy_read_word(doc, n, "method", methods, &b->shared_idle, err))
		return false;
	weights = yaml_get(n, "weights");
	weighted = b->shared_idle == methods[3];
	if (weighted && weights == NULL)
		return yaml_err(doc, n, err, "shared_idle: method weights needs the key weights");
	if (!weighted && weights != NULL)
		return yaml_err(doc, weights, err, "shared_idle: weights are for method weights, not %s",
		                b->shared_idle);
	return weights == NULL || read_weights(doc, weights, b, err);
}

static bool
read_platform_cost(const struct yaml_doc *doc, const struct yaml_node *book, struct policy_book *b, struct err *err)
{
	static const char *const keys[] = {"monthly", NULL};
	const struct yaml_node *n = yaml_get(book, "platform_cost");

	b->platform_cost = -1;
	return n == NULL || (yaml_expect(doc, n, YAML_MAP, "platform_cost", err) && yaml_only_keys(doc, n, keys, err) &&
	                     needs_key(doc, n, "platform_cost", "monthly", err) &&
	                     read_decimal(doc, n, "monthly", PRICE_SCALE, PLATFORM_COST_MAX, &b->platform_cost, err));
}

bool
policy_read_book(const struct yaml_doc *doc, struct policy_book **ret, struct err *err)
{
	static const char *const keys[] = {"version", "currency",    "items",         "discounts", "lender_ratio",
	                                   "energy",  "shared_idle", "platform_cost", NULL};
	const struct yaml_node *n = yaml_get(yaml_root(doc), "prices");
	struct policy_book *b;
	int128 ratio = 0;
	const char *currency;
	struct err why = {0};
	int exponent;

	if (n == NULL)
		return true;
	*ret = b = mem_alloc(sizeof(*b));
	b->line = n->line;
	if (!yaml_expect(doc, n, YAML_MAP, "prices", err) || !yaml_only_keys(doc, n, keys, err) ||
	    !policy_read_checked(doc, n, "price book", "version", policy_code_fault, &b->version, err) ||
	    !yaml_str(doc, n, "currency", &currency, err))
		return false;
	if (!currency_exponent(currency, &exponent, &why))
		return yaml_err(doc, yaml_get(n, "currency"), err, "currency %s", why.text);
	b->currency = mem_strdup(currency);
	if (!read_items(doc, n, b, err) || !read_discounts(doc, n, b, err) || !read_energy(doc, n, b, err) ||
	    !read_shared_idle(doc, n, b, err) || !read_platform_cost(doc, n, b, err) ||
	    !read_decimal(doc, n, "lender_ratio", RATIO_SCALE, 1, &ratio, err))
		return false;
	b->lender_ratio = (int64_t)ratio;
	return true;
}
