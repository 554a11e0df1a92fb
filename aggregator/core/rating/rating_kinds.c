/* aggregator/core/rating/rating_kinds.c - which rows of the input are of one kind, what a unit of each costs, and which kinds are one line: rule 1
 * of rating.h. Pure. */
#include <stdlib.h>
#include <string.h>

#include "aggregator/core/rating/rating_rows.h"

void
row_kinds_fini(struct row_kinds *k)
{
	for (size_t i = 0; i < k->count; i++)
		mem_free(k->at[i]);
	mem_free(k->at);
	mem_free(k->slots);
}

/* ---- the same kind ---- */

/* All that a price or a line is decided by, beside numbers. */
static const size_t texts[] = {
	offsetof(struct usage_day, tenant),       offsetof(struct usage_day, cost_center),
	offsetof(struct usage_day, workspace),    offsetof(struct usage_day, gpu_model),
	offsetof(struct usage_day, mig_profile),  offsetof(struct usage_day, klass),
	offsetof(struct usage_day, sharing_mode), offsetof(struct usage_day, cluster),
	offsetof(struct usage_day, meter),        offsetof(struct usage_day, unit),
	offsetof(struct usage_day, counterparty), offsetof(struct usage_day, category),
	offsetof(struct usage_day, currency),     offsetof(struct usage_day, reserved_profile),
	offsetof(struct usage_day, meter_sku),
};
#define TEXTS_OF_PRICE 4 /* the last of them decide about price, unit and sku, which are compared for themselves */

static const char *
text_at(const void *p, size_t offset)
{
	return *(const char *const *)(const void *)((const char *)p + offset);
}

static const char *
text_or_empty(const char *text)
{
	return text ? text : "";
}

/* NULL is "". */
static int
compare_at(const void *x, const void *y, const size_t *offsets, size_t n)
{
	int order = 0;

	for (size_t i = 0; i < n && order == 0; i++) {
		const char *a = text_at(x, offsets[i]), *b = text_at(y, offsets[i]);

		if (a != b) /* many are the same text in memory */
			order = strcmp(text_or_empty(a), text_or_empty(b));
	}
	return order;
}

static bool
same_kind(const struct usage_day *a, const struct usage_day *b)
{
	return a->kind == b->kind && a->price_book == b->price_book && a->instance_units == b->instance_units &&
	       a->amount == b->amount && a->reserved_units == b->reserved_units &&
	       compare_at(a, b, texts, ARRAY_LEN(texts)) == 0;
}

/* FNV-1a; a collision costs a comparison, nothing else. */
static size_t
hash_of(const struct usage_day *d)
{
	uint64_t hash = 14695981039346656037u ^ (uint64_t)d->kind ^ ((uint64_t)d->price_book << 8) ^
	                ((uint64_t)d->instance_units << 16);

	for (size_t i = 0; i < ARRAY_LEN(texts); i++) {
		for (const char *c = text_at(d, texts[i]); c != NULL && *c != '\0'; c++)
			hash = (hash ^ (unsigned char)*c) * 1099511628211u;
		hash = (hash ^ 0xff) * 1099511628211u;
	}
	return (size_t)(hash ^ hash >> 32);
}

/* ---- what is known of a kind ---- */

/* What the row is measured in. */
static struct rating_unit
unit_of_row(const struct usage_day *d, struct rating_unit u)
{
	u.base = d->kind == CHARGE_ENERGY ? "kWh" : d->unit;
	if (u.per_instance && d->reserved_profile != NULL && strcmp(d->reserved_profile, d->mig_profile) != 0)
		u.profile = d->reserved_profile;
	return u;
}

static struct row_kind
price_kind(const struct rating_input *in, const struct usage_day *d)
{
	const struct rating_book *book = d->price_book < 0 ? NULL : &in->books[d->price_book];
	struct rating_price price = {.unit = {.per = 1}, .own = {.per = 1}};

	if (d->kind == CHARGE_ADJUSTMENT) /* 12 */
		return (struct row_kind){.day = d,
		                         .sku = d->meter_sku,
		                         .price_version = "",
		                         .currency = d->currency,
		                         .price = {.unit_price = d->amount < 0 ? -d->amount : d->amount,
		                                   .unit = {.per = 1},
		                                   .own_price = d->amount < 0 ? -d->amount : d->amount,
		                                   .own = {.per = 1}},
		                         .priced = true};
	if (book != NULL)
		price = rating_price_of(book, d);
	if (price.item == NULL) { /* 7; what costs nothing by rule 8 needs no price */
		price.unit_price = price.own_price = 0;
		price.unit = price.own = (struct rating_unit){.per = 1};
		return (struct row_kind){.day = d,
		                         .sku = "",
		                         .price_version = "",
		                         .currency = in->currency,
		                         .price = price,
		                         .priced = d->kind == CHARGE_COVERED || d->kind == CHARGE_UNUSED};
	}
	return (struct row_kind){.day = d,
	                         .sku = price.item->sku,
	                         .price_version = book->version,
	                         .currency = book->currency,
	                         .price = price,
	                         .priced = true};
}

static struct row_kind
priced_kind(const struct rating_input *in, const struct usage_day *d)
{
	struct row_kind k = price_kind(in, d);

	k.price.unit = unit_of_row(d, k.price.unit);
	k.price.own = unit_of_row(d, k.price.own);
	return k;
}

/* Half of the slots stay empty. */
static void
grow(struct row_kinds *k)
{
	k->cap = k->cap == 0 ? 128 : 2 * k->cap;
	k->at = mem_grow(k->at, k->cap, sizeof(struct row_kind *));
	mem_free(k->slots);
	k->slot_count = 2 * k->cap;
	k->slots = mem_array(k->slot_count, sizeof(*k->slots));
	for (size_t i = 0; i < k->count; i++) {
		size_t slot = hash_of(k->at[i]->day) % k->slot_count;

		while (k->slots[slot] != 0)
			slot = (slot + 1) % k->slot_count;
		k->slots[slot] = i + 1;
	}
}

const struct row_kind *
row_kind_of(struct row_kinds *k, const struct rating_input *in, const struct usage_day *d)
{
	size_t slot;

	if (k->count == k->cap)
		grow(k);
	for (slot = hash_of(d) % k->slot_count; k->slots[slot] != 0; slot = (slot + 1) % k->slot_count)
		if (same_kind(k->at[k->slots[slot] - 1]->day, d))
			return k->at[k->slots[slot] - 1];
	k->at[k->count] = mem_alloc(sizeof(struct row_kind));
	*k->at[k->count] = priced_kind(in, d);
	k->slots[slot] = ++k->count;
	return k->at[k->count - 1];
}

/* ---- which kinds are one line ---- */

static int
compare_units(const struct rating_unit *a, const struct rating_unit *b)
{
	int order = ORDER(a->per_instance, b->per_instance);

	if (order == 0)
		order = ORDER(a->basis_used, b->basis_used);
	return order ? order : ORDER(a->per, b->per);
}

static int
compare_prices(const struct rating_price *a, const struct rating_price *b)
{
	int order = ORDER(a->unit_price, b->unit_price);

	if (order == 0)
		order = ORDER(a->own_price, b->own_price);
	if (order == 0)
		order = ORDER(a->discount_ratio, b->discount_ratio);
	if (order == 0)
		order = compare_units(&a->unit, &b->unit);
	return order ? order : compare_units(&a->own, &b->own);
}

/* Instances of a commitment's kind, of which the row's device may be another. */
static int
compare_reserved(const struct row_kind *x, const struct row_kind *y)
{
	int order = 0;

	if (!x->price.unit.per_instance) /* both, as their prices are the same */
		return 0;
	order = ORDER(x->day->reserved_units, y->day->reserved_units);
	return order ? order : strcmp(text_or_empty(x->day->reserved_profile), text_or_empty(y->day->reserved_profile));
}

int
row_kind_compare(const struct row_kind *x, const struct row_kind *y)
{
	/* what category and currency decide is in the kind */
	static const size_t own[] = {offsetof(struct row_kind, sku), offsetof(struct row_kind, price_version),
	                             offsetof(struct row_kind, currency)};
	int order = compare_at(x->day, y->day, texts, ARRAY_LEN(texts) - TEXTS_OF_PRICE);

	if (order == 0)
		order = compare_at(x, y, own, ARRAY_LEN(own));
	if (order == 0 && x->sku[0] == '\0') /* what an item names is one sku, whatever the events call it */
		order = strcmp(text_or_empty(x->day->meter_sku), text_or_empty(y->day->meter_sku));
	if (order == 0)
		order = ORDER(x->day->kind, y->day->kind);
	if (order == 0)
		order = ORDER(x->priced, y->priced);
	if (order == 0)
		order = compare_prices(&x->price, &y->price);
	if (order == 0)
		order = compare_reserved(x, y);
	return order ? order : ORDER(x->day->instance_units, y->day->instance_units);
}

static int
compare_pointers(const void *a, const void *b)
{
	return row_kind_compare(*(const struct row_kind *const *)a, *(const struct row_kind *const *)b);
}

/* The hash table is of no use after this. */
void
row_kinds_number(struct row_kinds *k)
{
	if (k->count == 0)
		return;
	qsort(k->at, k->count, sizeof(struct row_kind *), compare_pointers);
	for (size_t i = 1; i < k->count; i++)
		k->at[i]->line = k->at[i - 1]->line + (row_kind_compare(k->at[i - 1], k->at[i]) != 0);
}
