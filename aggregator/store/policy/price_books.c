/* aggregator/store/policy/price_books.c - price books as rating wants them: those of a month, or one that is only proposed. */
#include "aggregator/store/policy/price_books.h"

#include <string.h>

void
price_books_fini(struct price_books *b)
{
	PQclear(b->rows);
	PQclear(b->items_res);
	PQclear(b->discounts_res);
	PQclear(b->sites_res);
	PQclear(b->weights_res);
	idmap_fini(&b->at);
	mem_free(b->books);
	mem_free(b->items);
	mem_free(b->discounts);
	mem_free(b->sites);
	mem_free(b->weights);
}

static const char *
optional(const PGresult *r, int row, int col)
{
	return res_null(r, row, col) ? NULL : res_text(r, row, col);
}

/* -1 for NULL. */
static bool
optional_amount(const PGresult *r, int row, int col, int128 *ret, struct err *err)
{
	*ret = -1;
	return res_null(r, row, col) || res_i128(r, row, col, PRICE_SCALE, ret, err);
}

/* Of 10^-9. */
static bool
res_ratio(const PGresult *r, int row, int col, int64_t *ret, struct err *err)
{
	int128 ratio;

	if (!res_i128(r, row, col, PRICE_SCALE, &ratio, err))
		return false;
	*ret = (int64_t)ratio;
	return true;
}

static enum shared_method
shared_method_of(const char *word)
{
	return strcmp(word, "even") == 0           ? SHARED_EVEN
	       : strcmp(word, "proportional") == 0 ? SHARED_PROPORTIONAL
	       : strcmp(word, "weights") == 0      ? SHARED_WEIGHTS
	                                           : SHARED_NONE;
}

/* --- of the ledger --- */

/* The rows of a result that belong to a book are one stretch, and books come in the same order: *at moves past them. */
static size_t
stretch(const PGresult *r, int64_t book, int *at)
{
	int first = *at;

	while (*at < PQntuples(r) && res_i64(r, *at, 0) == book)
		++*at;
	return (size_t)(*at - first);
}

static bool
fill_items(struct price_books *b, struct err *err)
{
	const PGresult *r = b->items_res;

	b->items = mem_array((size_t)PQntuples(r), sizeof(*b->items));
	for (int i = 0; i < PQntuples(r); i++) {
		b->items[i] = (struct rating_item){.sku = res_text(r, i, 1),
		                                   .gpu_model = optional(r, i, 2),
		                                   .mig_profile = optional(r, i, 3),
		                                   .sharing_mode = optional(r, i, 4),
		                                   .klass = optional(r, i, 5),
		                                   .basis_used = res_bool(r, i, 7),
		                                   .meter = optional(r, i, 8),
		                                   .meter_sku = optional(r, i, 9),
		                                   .tenant = optional(r, i, 10),
		                                   .per = res_i64(r, i, 11)};
		if (!res_i128(r, i, 6, PRICE_SCALE, &b->items[i].price, err))
			return false;
	}
	return true;
}

static bool
fill_beside(struct price_books *b, struct err *err)
{
	const PGresult *d = b->discounts_res, *s = b->sites_res, *w = b->weights_res;

	b->discounts = mem_array((size_t)PQntuples(d), sizeof(*b->discounts));
	b->sites = mem_array((size_t)PQntuples(s), sizeof(*b->sites));
	b->weights = mem_array((size_t)PQntuples(w), sizeof(*b->weights));
	for (int i = 0; i < PQntuples(d); i++) {
		b->discounts[i] = (struct rating_discount){.tenant = optional(d, i, 1),
		                                           .category = optional(d, i, 2),
		                                           .klass = optional(d, i, 3)};
		if (!res_ratio(d, i, 4, &b->discounts[i].ratio, err))
			return false;
	}
	for (int i = 0; i < PQntuples(s); i++) {
		b->sites[i].cluster = res_text(s, i, 1);
		if (!optional_amount(s, i, 2, &b->sites[i].energy_price, err) ||
		    !optional_amount(s, i, 3, &b->sites[i].carbon, err))
			return false;
	}
	for (int i = 0; i < PQntuples(w); i++)
		b->weights[i] = (struct rating_weight){.tenant = res_text(w, i, 1), .weight = res_i64(w, i, 2)};
	return true;
}

static bool
fill_books(struct price_books *b, struct err *err)
{
	int item = 0, discount = 0, site = 0, weight = 0;

	b->count = (size_t)PQntuples(b->rows);
	b->books = mem_array(b->count, sizeof(*b->books));
	for (size_t i = 0; i < b->count; i++) {
		int64_t id = res_i64(b->rows, (int)i, 0);
		struct rating_book *k = &b->books[i];

		*k = (struct rating_book){.version = res_text(b->rows, (int)i, 1),
		                          .currency = res_text(b->rows, (int)i, 2),
		                          .items = b->items + item,
		                          .discounts = b->discounts + discount,
		                          .sites = b->sites + site,
		                          .weights = b->weights + weight,
		                          .shared_idle = shared_method_of(res_text(b->rows, (int)i, 4))};
		k->item_count = stretch(b->items_res, id, &item);
		k->discount_count = stretch(b->discounts_res, id, &discount);
		k->site_count = stretch(b->sites_res, id, &site);
		k->weight_count = stretch(b->weights_res, id, &weight);
		if (!res_ratio(b->rows, (int)i, 3, &k->lender_ratio, err) ||
		    !optional_amount(b->rows, (int)i, 5, &k->platform_cost, err))
			return false;
		idmap_put(&b->at, (uint64_t)id, i);
	}
	return true;
}

/* $1: the month; NULL: the moment $2. */
#define IN_FORCE                                                                                              \
	"(SELECT tstzrange(starts_at, ends_at) AS hours FROM period WHERE month = $1::text UNION ALL SELECT " \
	"tstzrange($2::timestamptz, $2::timestamptz, '[]') WHERE $1::text IS NULL) p ON b.effective && p.hours "

static bool
load(struct db *db, const char *month, int64_t at_ns, struct price_books *b, struct err *err)
{
	static const struct db_stmt books = {
		"price books", "SELECT b.id, b.version, b.currency, b.lender_ratio, b.shared_idle, b.platform_cost "
			       "FROM price_book b JOIN " IN_FORCE "ORDER BY b.id"};
	static const struct db_stmt items = {
		"price items",
		"SELECT i.book_id, i.sku, i.gpu_model, i.mig_profile, i.sharing_mode, i.class, i.price, i.basis = 'used', "
		"i.meter, i.meter_sku, t.name, coalesce(i.per, 1) FROM price_item i LEFT JOIN tenant t ON t.id = i.tenant_id "
		"JOIN price_book b ON b.id = i.book_id JOIN " IN_FORCE "ORDER BY i.book_id, i.position"};
	static const struct db_stmt discounts = {
		"price discounts",
		"SELECT d.book_id, t.name, d.category, d.class, d.ratio FROM price_discount d "
		"LEFT JOIN tenant t ON t.id = d.tenant_id JOIN price_book b ON b.id = d.book_id JOIN " IN_FORCE
		"ORDER BY d.book_id, d.position"};
	static const struct db_stmt sites = {
		"price sites",
		"SELECT s.book_id, c.name, s.energy_price, s.carbon FROM price_site s "
		"JOIN cluster c ON c.id = s.cluster_id JOIN price_book b ON b.id = s.book_id JOIN " IN_FORCE
		"ORDER BY s.book_id, s.cluster_id"};
	static const struct db_stmt weights = {
		"price weights",
		"SELECT w.book_id, t.name, w.weight FROM price_weight w "
		"JOIN tenant t ON t.id = w.tenant_id JOIN price_book b ON b.id = w.book_id JOIN " IN_FORCE
		"ORDER BY w.book_id, w.tenant_id"};
	struct db_args a = {0};

	arg_text(&a, month);
	arg_time(&a, at_ns);
	return db_run(db, &books, &a, &b->rows, err) && db_run(db, &items, &a, &b->items_res, err) &&
	       db_run(db, &discounts, &a, &b->discounts_res, err) && db_run(db, &sites, &a, &b->sites_res, err) &&
	       db_run(db, &weights, &a, &b->weights_res, err) && fill_items(b, err) && fill_beside(b, err) &&
	       fill_books(b, err);
}

bool
price_books_load(struct db *db, const char *month, struct price_books *b, struct err *err)
{
	return load(db, month, 0, b, err);
}

bool
price_books_at(struct db *db, int64_t at_ns, struct price_books *b, struct err *err)
{
	return load(db, NULL, at_ns, b, err);
}

/* --- of a file --- */

void
price_books_of(const struct policy_book *book, struct price_books *b)
{
	b->items = mem_array(book->item_count, sizeof(*b->items));
	b->discounts = mem_array(book->discount_count, sizeof(*b->discounts));
	b->sites = mem_array(book->energy_count, sizeof(*b->sites));
	b->weights = mem_array(book->weight_count, sizeof(*b->weights));
	b->books = mem_array(1, sizeof(*b->books));
	b->count = 1;
	for (size_t i = 0; i < book->item_count; i++) {
		const struct policy_price *p = &book->items[i];

		b->items[i] = (struct rating_item){.sku = p->sku,
		                                   .gpu_model = p->gpu_model,
		                                   .mig_profile = p->mig_profile,
		                                   .sharing_mode = p->sharing_mode,
		                                   .klass = p->klass,
		                                   .price = p->price,
		                                   .per = p->per,
		                                   .tenant = p->tenant,
		                                   .basis_used = p->basis_used,
		                                   .meter = p->meter,
		                                   .meter_sku = p->meter_sku};
	}
	for (size_t i = 0; i < book->discount_count; i++)
		b->discounts[i] = (struct rating_discount){.tenant = book->discounts[i].tenant,
		                                           .category = book->discounts[i].category,
		                                           .klass = book->discounts[i].klass,
		                                           .ratio = book->discounts[i].ratio};
	for (size_t i = 0; i < book->energy_count; i++)
		b->sites[i] = (struct rating_site){.cluster = book->energy[i].cluster,
		                                   .energy_price = book->energy[i].price,
		                                   .carbon = book->energy[i].carbon};
	for (size_t i = 0; i < book->weight_count; i++)
		b->weights[i] = (struct rating_weight){book->weights[i].tenant, book->weights[i].weight};
	b->books[0] = (struct rating_book){.version = book->version,
	                                   .currency = book->currency,
	                                   .items = b->items,
	                                   .item_count = book->item_count,
	                                   .discounts = b->discounts,
	                                   .discount_count = book->discount_count,
	                                   .sites = b->sites,
	                                   .site_count = book->energy_count,
	                                   .lender_ratio = book->lender_ratio,
	                                   .shared_idle = shared_method_of(book->shared_idle),
	                                   .weights = b->weights,
	                                   .weight_count = book->weight_count,
	                                   .platform_cost = book->platform_cost};
}
