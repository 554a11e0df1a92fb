/* aggregator/core/policy/policy_check_price.c - what must agree in a price book, and between it and the rest of the file. */
#include <string.h>

#include "aggregator/core/metering/events.h"
#include "aggregator/core/policy/policy_check.h"
#include "aggregator/core/policy/policy_diff.h"

bool
policy_same_price(const struct policy_price *a, const struct policy_price *b)
{
	return diff_same_text(a->tenant, b->tenant) && diff_same_text(a->meter, b->meter) &&
	       diff_same_text(a->meter_sku, b->meter_sku) && diff_same_text(a->gpu_model, b->gpu_model) &&
	       diff_same_text(a->mig_profile, b->mig_profile) && diff_same_text(a->sharing_mode, b->sharing_mode) &&
	       diff_same_text(a->klass, b->klass);
}

bool
policy_same_discount(const struct policy_discount *a, const struct policy_discount *b)
{
	return diff_same_text(a->tenant, b->tenant) && diff_same_text(a->category, b->category) &&
	       diff_same_text(a->klass, b->klass);
}

static bool
check_repeated(const struct policy_book *b, const char *file, struct err *err)
{
	for (size_t i = 1; i < b->item_count; i++)
		for (size_t k = 0; k < i; k++)
			if (policy_same_price(&b->items[i], &b->items[k]))
				return err_set(err, ERR_INVALID,
				               "%s:%d: this price is for the same usage as the one on line %d", file,
				               b->items[i].line, b->items[k].line);
	for (size_t i = 1; i < b->discount_count; i++)
		for (size_t k = 0; k < i; k++)
			if (policy_same_discount(&b->discounts[i], &b->discounts[k]))
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

/* What the events of a month may add up to can always be billed: rule 8 of events.h. */
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

/* `hint` is where to look first, as in diff_find(). */
static bool
check_tenant(const struct policy *p, const char *tenant, const char *what, int line, size_t *hint, const char *file,
             struct err *err)
{
	return tenant == NULL || diff_find(p->tenants, p->tenant_count, sizeof(*p->tenants), tenant, hint) != NULL ||
	       err_set(err, ERR_INVALID, "%s:%d: %s is for tenant \"%s\", which the policy does not have", file, line,
	               what, tenant);
}

static bool
check_tenants(const struct policy_book *b, const struct policy *p, const char *file, struct err *err)
{
	size_t hint = 0;

	for (size_t i = 0; i < b->item_count; i++)
		if (!check_tenant(p, b->items[i].tenant, "this price", b->items[i].line, &hint, file, err))
			return false;
	for (size_t i = 0; i < b->discount_count; i++)
		if (!check_tenant(p, b->discounts[i].tenant, "this discount", b->discounts[i].line, &hint, file, err))
			return false;
	for (size_t i = 0; i < b->weight_count; i++)
		if (!check_tenant(p, b->weights[i].tenant, "this weight", b->weights[i].line, &hint, file, err))
			return false;
	return true;
}

static bool
check_clusters(const struct policy_book *b, const struct policy *p, const char *file, struct err *err)
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
	                     check_tenants(b, p, file, err) && check_clusters(b, p, file, err));
}
