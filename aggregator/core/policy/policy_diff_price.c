/* aggregator/core/policy/policy_diff_price.c - what applying a policy changes: prices, and what is beside them. */
#include "aggregator/core/policy/policy_check.h"
#include "aggregator/core/policy/policy_diff.h"

#define PERCENT_SCALE 7 /* 10^-9 of a price is 10^-7 of a percentage */

static const struct policy_price *
find_price(const struct policy_book *b, const struct policy_price *p)
{
	for (size_t i = 0; i < b->item_count; i++)
		if (policy_same_price(&b->items[i], p))
			return &b->items[i];
	return NULL;
}

static const struct policy_discount *
find_discount(const struct policy_book *b, const struct policy_discount *d)
{
	for (size_t i = 0; i < b->discount_count; i++)
		if (policy_same_discount(&b->discounts[i], d))
			return &b->discounts[i];
	return NULL;
}

/* ---- items ---- */

static void
write_price(struct buf *out, const struct policy_price *p)
{
	const char *const words[] = {p->meter_sku, p->sharing_mode, p->klass};

	buf_str(out, p->meter ? p->meter : p->gpu_model ? p->gpu_model : "any GPU");
	if (p->mig_profile != NULL)
		buf_printf(out, " MIG %s", p->mig_profile);
	for (size_t i = 0; i < ARRAY_LEN(words); i++)
		if (words[i] != NULL)
			buf_printf(out, " %s", words[i]);
	if (p->tenant != NULL)
		buf_printf(out, " for %s", p->tenant);
}

/* "SIGN price WHAT", to which the caller adds the rest of the line. */
static void
price_change(struct diff *d, char sign, const struct policy_price *p)
{
	CHANGE(d, "%c price ", sign);
	write_price(d->out, p);
}

static void
write_amount(struct buf *out, const struct policy_price *p, int decimals)
{
	char price[DECIMAL_TEXT_SIZE];

	buf_printf(out, " %s", decimal_format(p->price, PRICE_SCALE, decimals, price));
	if (p->per != 1)
		buf_printf(out, " per %" PRId64, p->per);
	if (p->basis_used)
		buf_str(out, " of what was used");
}

static void
diff_price(struct diff *d, const struct policy_price *old, const struct policy_price *p, int decimals)
{
	bool amount = old == NULL || old->price != p->price || old->per != p->per || old->basis_used != p->basis_used;

	if (amount) {
		price_change(d, old ? '~' : '+', p);
		if (old != NULL) {
			write_amount(d->out, old, decimals);
			buf_str(d->out, " ->");
		}
		write_amount(d->out, p, decimals);
		buf_char(d->out, '\n');
	}
	if (old != NULL && strcmp(old->sku, p->sku) != 0) {
		price_change(d, '~', p);
		buf_printf(d->out, " sku \"%s\" -> \"%s\"\n", old->sku, p->sku);
	}
}

static void
diff_items(struct diff *d, const struct policy_book *from, const struct policy_book *to)
{
	struct err err;
	int decimals = 0;

	if (!currency_exponent(to->currency, &decimals, &err))
		decimals = 0; /* only how many zeros are shown */
	for (size_t i = 0; i < to->item_count; i++)
		diff_price(d, find_price(from, &to->items[i]), &to->items[i], decimals);
	for (size_t i = 0; i < from->item_count; i++)
		if (find_price(to, &from->items[i]) == NULL) {
			price_change(d, '-', &from->items[i]);
			buf_char(d->out, '\n');
		}
}

/* ---- what is beside them ---- */

static void
discount_change(struct diff *d, char sign, const struct policy_discount *x)
{
	CHANGE(d, "%c discount %s", sign, x->tenant ? x->tenant : "everybody");
	if (x->category != NULL)
		buf_printf(d->out, " %s", x->category);
	if (x->klass != NULL)
		buf_printf(d->out, " %s", x->klass);
}

static void
diff_discounts(struct diff *d, const struct policy_book *from, const struct policy_book *to)
{
	char before[DECIMAL_TEXT_SIZE], after[DECIMAL_TEXT_SIZE];

	for (size_t i = 0; i < to->discount_count; i++) {
		const struct policy_discount *x = &to->discounts[i], *old = find_discount(from, x);

		decimal_format(x->ratio, PERCENT_SCALE, 0, after);
		if (old != NULL && old->ratio == x->ratio)
			continue;
		discount_change(d, old ? '~' : '+', x);
		if (old != NULL)
			buf_printf(d->out, " %s %% ->", decimal_format(old->ratio, PERCENT_SCALE, 0, before));
		buf_printf(d->out, " %s %%\n", after);
	}
	for (size_t i = 0; i < from->discount_count; i++)
		if (find_discount(to, &from->discounts[i]) == NULL) {
			discount_change(d, '-', &from->discounts[i]);
			buf_char(d->out, '\n');
		}
}

/* An amount that may be absent, which is -1. */
static void
amount_change(struct diff *d, const char *what, const char *name, const char *field, int128 from, int128 to)
{
	char before[DECIMAL_TEXT_SIZE], after[DECIMAL_TEXT_SIZE];

	decimal_format(from, PRICE_SCALE, 0, before);
	decimal_format(to, PRICE_SCALE, 0, after);
	if (from == to)
		return;
	if (from < 0)
		CHANGE(d, "+ %s%s %s %s\n", what, name, field, after);
	else if (to < 0)
		CHANGE(d, "- %s%s %s %s\n", what, name, field, before);
	else
		CHANGE(d, "~ %s%s %s %s -> %s\n", what, name, field, before, after);
}

static const struct policy_energy no_energy = {.price = -1, .carbon = -1};

static const struct policy_energy *
find_energy(const struct policy_book *b, const char *cluster)
{
	size_t hint = 0;

	return diff_find(b->energy, b->energy_count, sizeof(*b->energy), cluster, &hint);
}

static void
diff_site(struct diff *d, const char *cluster, const struct policy_energy *from, const struct policy_energy *to)
{
	amount_change(d, "energy ", cluster, "price_per_kwh", from->price, to->price);
	amount_change(d, "energy ", cluster, "carbon_g_per_kwh", from->carbon, to->carbon);
}

static void
diff_energy(struct diff *d, const struct policy_book *from, const struct policy_book *to)
{
	for (size_t i = 0; i < to->energy_count; i++) {
		const struct policy_energy *old = find_energy(from, to->energy[i].cluster);

		diff_site(d, to->energy[i].cluster, old ? old : &no_energy, &to->energy[i]);
	}
	for (size_t i = 0; i < from->energy_count; i++)
		if (find_energy(to, from->energy[i].cluster) == NULL)
			diff_site(d, from->energy[i].cluster, &from->energy[i], &no_energy);
}

static void
diff_weights(struct diff *d, const struct policy_book *from, const struct policy_book *to)
{
	size_t hint = 0;

	for (size_t i = 0; i < to->weight_count; i++) {
		const struct policy_weight *w = &to->weights[i];
		const struct policy_weight *old =
			diff_find(from->weights, from->weight_count, sizeof(*w), w->tenant, &hint);

		if (old == NULL)
			CHANGE(d, "+ shared_idle weight %s %" PRId64 "\n", w->tenant, w->weight);
		else if (old->weight != w->weight)
			CHANGE(d, "~ shared_idle weight %s %" PRId64 " -> %" PRId64 "\n", w->tenant, old->weight,
			       w->weight);
	}
	hint = 0;
	for (size_t i = 0; i < from->weight_count; i++)
		if (diff_find(to->weights, to->weight_count, sizeof(*to->weights), from->weights[i].tenant, &hint) ==
		    NULL)
			CHANGE(d, "- shared_idle weight %s\n", from->weights[i].tenant);
}

static void
diff_beside(struct diff *d, const struct policy_book *from, const struct policy_book *to)
{
	diff_discounts(d, from, to);
	amount_change(d, "prices", "", "lender_ratio", from->lender_ratio, to->lender_ratio);
	diff_energy(d, from, to);
	if (strcmp(from->shared_idle, to->shared_idle) != 0)
		CHANGE(d, "~ prices shared_idle %s -> %s\n", from->shared_idle, to->shared_idle);
	diff_weights(d, from, to);
	amount_change(d, "prices", "", "platform_cost", from->platform_cost, to->platform_cost);
}

void
diff_books(struct diff *d, const struct policy_book *from, const struct policy_book *to)
{
	static const struct policy_book none = {.shared_idle = "none", .platform_cost = -1};

	if (to == NULL) {
		if (from != NULL)
			CHANGE(d, "- prices %s in %s\n", from->version, from->currency);
		return;
	}
	if (from == NULL) {
		CHANGE(d, "+ prices %s in %s\n", to->version, to->currency);
		from = &none;
	} else {
		if (strcmp(from->version, to->version) != 0)
			CHANGE(d, "~ prices version %s -> %s\n", from->version, to->version);
		if (strcmp(from->currency, to->currency) != 0)
			CHANGE(d, "~ prices currency %s -> %s\n", from->currency, to->currency);
	}
	diff_items(d, from, to);
	diff_beside(d, from, to);
}
