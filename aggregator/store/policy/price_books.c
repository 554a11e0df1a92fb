/* aggregator/store/policy/price_books.c - price books: the book of a policy as rows, and books as rating wants them.
 *
 * A book holds for a range of billing hours and never changes: a file with other prices ends the one in force and begins its own. */
#include "aggregator/store/policy/price_books.h"

#include <string.h>

#include "common/base/digest.h"

#define PRICES_MAX_BYTES (16u << 20)

/* --- the hash behind a version --- */

static void
hash_field(struct buf *b, const char *s)
{
	if (s)
		buf_printf(b, "%zu:%s", strlen(s), s);
	else
		buf_char(b, '-');
}

/* An absent optional key adds nothing, so that older books keep their hash when a key is added. */
static void
hash_said(struct buf *b, const char *key, const char *value)
{
	if (!value)
		return;
	buf_str(b, key);
	hash_field(b, value);
}

static void
hash_amount(struct buf *b, const char *key, int128 amount)
{
	char text[DECIMAL_TEXT_SIZE];

	hash_said(b, key, amount >= 0 ? decimal_format(amount, PRICE_SCALE, 0, text) : NULL);
}

static void
hash_item(struct buf *b, const struct policy_price *item)
{
	const bool even = item->price % item->per == 0;
	char price[DECIMAL_TEXT_SIZE];

	hash_field(b, item->sku);
	hash_field(b, item->gpu_model);
	hash_field(b, item->mig_profile);
	hash_field(b, item->sharing_mode);
	hash_field(b, item->klass);
	/* a price for many units has the hash of the same price for one, where nine decimals hold that */
	hash_field(b, decimal_format(even ? item->price / item->per : item->price, PRICE_SCALE, 0, price));
	hash_said(b, "tenant", item->tenant);
	hash_said(b, "meter", item->meter);
	hash_said(b, "meter_sku", item->meter_sku);
	hash_said(b, "basis", item->basis_used ? "used" : NULL);
	hash_amount(b, "per", even ? -1 : item->per);
}

static void
hash_book(const struct policy_book *book, uint8_t out[SHA256_SIZE])
{
	in_place(buf) struct buf b = {0};

	buf_init(&b, PRICES_MAX_BYTES);
	hash_field(&b, book->currency);
	for (size_t i = 0; i < book->item_count; i++)
		hash_item(&b, &book->items[i]);
	for (size_t i = 0; i < book->discount_count; i++) {
		hash_amount(&b, "discount", book->discounts[i].ratio);
		hash_said(&b, "tenant", book->discounts[i].tenant);
		hash_said(&b, "category", book->discounts[i].category);
		hash_said(&b, "class", book->discounts[i].klass);
	}
	hash_amount(&b, "lender_ratio", book->lender_ratio > 0 ? book->lender_ratio : -1);
	for (size_t i = 0; i < book->energy_count; i++) {
		hash_said(&b, "energy", book->energy[i].cluster);
		hash_amount(&b, "price", book->energy[i].price);
		hash_amount(&b, "carbon", book->energy[i].carbon);
	}
	hash_said(&b, "shared_idle", strcmp(book->shared_idle, "none") != 0 ? book->shared_idle : NULL);
	for (size_t i = 0; i < book->weight_count; i++) {
		hash_said(&b, "weight", book->weights[i].tenant);
		buf_printf(&b, "%" PRId64, book->weights[i].weight);
	}
	hash_amount(&b, "platform_cost", book->platform_cost);
	/* A policy file is at most a quarter of this. */
	ASSERT(!b.over);
	sha256(buf_text(&b), b.len, out);
}

static bool
check_version(struct db *db, const struct policy_book *book, const uint8_t sha[SHA256_SIZE], struct err *err)
{
	static const struct db_stmt stmt = {"policy price version",
	                                    "SELECT FROM price_book WHERE version = $1 AND sha256 <> $2 LIMIT 1"};
	owned(result) PGresult *r = NULL;
	struct db_args a = {0};

	arg_text(&a, book->version);
	arg_bytes(&a, sha, SHA256_SIZE);
	if (!db_run(db, &stmt, &a, &r, err))
		return false;
	return PQntuples(r) == 0 ||
	       err_set(err, ERR_CONFLICT,
	               "line %d: prices: version \"%s\" was applied with other prices: a change needs a new version",
	               book->line, book->version);
}

/* --- rows --- */

/* NULL for an absent amount, which is -1. */
static void
array_amount(struct db_array *a, int128 amount)
{
	char text[DECIMAL_TEXT_SIZE];

	array_text(a, amount >= 0 ? decimal_format(amount, PRICE_SCALE, 0, text) : NULL);
}

static bool
insert_rows(struct db *db, const struct db_stmt *stmt, const char *book_id, struct db_columns *c, struct err *err)
{
	struct db_args a = {0};

	arg_text(&a, book_id);
	arg_columns(&a, c);
	return db_run(db, stmt, &a, NULL, err);
}

static bool
insert_items(struct db *db, const struct policy_book *book, const char *book_id, struct err *err)
{
	static const struct db_stmt stmt = {
		"policy price items",
		"INSERT INTO price_item (book_id, position, sku, gpu_model, mig_profile, sharing_mode, class, price, basis, "
		"meter, meter_sku, tenant_id, per) SELECT $1, e.position, e.sku, e.model, e.profile, e.sharing, e.class, e.price, "
		"e.basis, e.meter, e.meter_sku, t.id, nullif(e.per, 1) FROM unnest($2::integer[], $3::text[], $4::text[], $5::text[], "
		"$6::text[], $7::text[], $8::numeric[], $9::text[], $10::text[], $11::text[], $12::text[], $13::bigint[]) AS "
		"e(position, sku, model, profile, sharing, class, price, basis, meter, meter_sku, tenant, per) LEFT JOIN tenant t ON t.name = e.tenant"};
	in_place(db_columns) struct db_columns c = {0};

	db_columns_init(&c, 12);
	for (size_t i = 0; i < book->item_count; i++) {
		const struct policy_price *item = &book->items[i];

		array_i64(&c.col[0], (int64_t)i);
		array_text(&c.col[1], item->sku ? item->sku : "");
		array_text(&c.col[2], item->gpu_model);
		array_text(&c.col[3], item->mig_profile);
		array_text(&c.col[4], item->sharing_mode);
		array_text(&c.col[5], item->klass);
		array_amount(&c.col[6], item->price);
		array_text(&c.col[7], item->basis_used ? "used" : "allocated");
		array_text(&c.col[8], item->meter);
		array_text(&c.col[9], item->meter_sku);
		array_text(&c.col[10], item->tenant);
		array_i64(&c.col[11], item->per);
	}
	return insert_rows(db, &stmt, book_id, &c, err);
}

static bool
insert_discounts(struct db *db, const struct policy_book *book, const char *book_id, struct err *err)
{
	static const struct db_stmt stmt = {
		"policy price discounts",
		"INSERT INTO price_discount (book_id, position, category, class, ratio, tenant_id) "
		"SELECT $1, e.position, e.category, e.class, e.ratio, t.id FROM unnest($2::integer[], $3::text[], $4::text[], "
		"$5::numeric[], $6::text[]) AS e(position, category, class, ratio, tenant) "
		"LEFT JOIN tenant t ON t.name = e.tenant"};
	in_place(db_columns) struct db_columns c = {0};

	db_columns_init(&c, 5);
	for (size_t i = 0; i < book->discount_count; i++) {
		const struct policy_discount *d = &book->discounts[i];

		array_i64(&c.col[0], (int64_t)i);
		array_text(&c.col[1], d->category);
		array_text(&c.col[2], d->klass);
		array_amount(&c.col[3], d->ratio);
		array_text(&c.col[4], d->tenant);
	}
	return insert_rows(db, &stmt, book_id, &c, err);
}

static bool
insert_sites(struct db *db, const struct policy_book *book, const char *book_id, struct err *err)
{
	static const struct db_stmt stmt = {
		"policy price sites",
		"INSERT INTO price_site (book_id, cluster_id, energy_price, carbon) SELECT $1, c.id, e.price, e.carbon "
		"FROM unnest($2::text[], $3::numeric[], $4::numeric[]) AS e(cluster, price, carbon) "
		"JOIN cluster c ON c.name = e.cluster"};
	in_place(db_columns) struct db_columns c = {0};

	db_columns_init(&c, 3);
	for (size_t i = 0; i < book->energy_count; i++) {
		array_text(&c.col[0], book->energy[i].cluster);
		array_amount(&c.col[1], book->energy[i].price);
		array_amount(&c.col[2], book->energy[i].carbon);
	}
	return insert_rows(db, &stmt, book_id, &c, err);
}

static bool
insert_weights(struct db *db, const struct policy_book *book, const char *book_id, struct err *err)
{
	static const struct db_stmt stmt = {
		"policy price weights",
		"INSERT INTO price_weight (book_id, tenant_id, weight) SELECT $1, t.id, e.weight "
		"FROM unnest($2::text[], $3::bigint[]) AS e(tenant, weight) JOIN tenant t ON t.name = e.tenant"};
	in_place(db_columns) struct db_columns c = {0};

	db_columns_init(&c, 2);
	for (size_t i = 0; i < book->weight_count; i++) {
		array_text(&c.col[0], book->weights[i].tenant);
		array_i64(&c.col[1], book->weights[i].weight);
	}
	return insert_rows(db, &stmt, book_id, &c, err);
}

/* --- books --- */

static bool
end_books(struct db *db, int64_t effective_ns, struct err *err)
{
	static const struct db_stmt stmt = {
		"policy prices end",
		"UPDATE price_book "
		"SET effective = CASE WHEN lower(effective) >= $1 THEN 'empty'::tstzrange ELSE "
		"tstzrange(lower(effective), $1) END "
		"WHERE NOT isempty(effective) AND (upper_inf(effective) OR upper(effective) > $1)"};
	struct db_args a = {0};

	arg_time(&a, effective_ns);
	return db_run(db, &stmt, &a, NULL, err);
}

static bool
begin_book(struct db *db, const struct policy_book *book, const uint8_t sha[SHA256_SIZE], int64_t effective_ns,
           struct err *err)
{
	static const struct db_stmt stmt = {
		"policy prices",
		"INSERT INTO price_book (version, sha256, effective, currency, lender_ratio, shared_idle, "
		"platform_cost) VALUES ($1, $2, tstzrange($3, NULL), $4, $5, $6, $7) RETURNING id"};
	char ratio[DECIMAL_TEXT_SIZE], cost[DECIMAL_TEXT_SIZE];
	owned(result) PGresult *made = NULL;
	struct db_args a = {0};
	const char *id;

	arg_text(&a, book->version);
	arg_bytes(&a, sha, SHA256_SIZE);
	arg_time(&a, effective_ns);
	arg_text(&a, book->currency);
	arg_text(&a, decimal_format(book->lender_ratio, PRICE_SCALE, 0, ratio));
	arg_text(&a, book->shared_idle);
	arg_text(&a, book->platform_cost >= 0 ? decimal_format(book->platform_cost, PRICE_SCALE, 0, cost) : NULL);
	if (!db_run(db, &stmt, &a, &made, err))
		return false;
	id = res_text(made, 0, 0);
	return insert_items(db, book, id, err) && insert_discounts(db, book, id, err) &&
	       insert_sites(db, book, id, err) && insert_weights(db, book, id, err);
}

bool
price_book_write(struct db *db, const struct policy_book *book, int64_t effective_ns, struct err *err)
{
	static const struct db_stmt same = {
		"policy prices same",
		"SELECT FROM price_book WHERE version = $1 AND sha256 = $2 AND upper_inf(effective) "
		"AND effective @> $3::timestamptz"};
	owned(result) PGresult *have = NULL;
	uint8_t sha[SHA256_SIZE];
	struct db_args a = {0};

	if (!book)
		return end_books(db, effective_ns, err);
	hash_book(book, sha);
	arg_text(&a, book->version);
	arg_bytes(&a, sha, sizeof(sha));
	arg_time(&a, effective_ns);
	if (!db_run(db, &same, &a, &have, err))
		return false;
	return PQntuples(have) > 0 || (check_version(db, book, sha, err) && end_books(db, effective_ns, err) &&
	                               begin_book(db, book, sha, effective_ns, err));
}

bool
price_book_unchanged(struct db *db, const struct policy_book *book, int64_t closed_ns, struct err *err)
{
	static const struct db_stmt stmt = {
		"policy prices last",
		"SELECT version, encode(sha256, 'hex') FROM price_book WHERE upper_inf(effective)"};
	owned(result) PGresult *r = NULL;
	char hex[2 * SHA256_SIZE + 1] = "", when[TIME_TEXT_SIZE];
	uint8_t sha[SHA256_SIZE];

	if (!db_run(db, &stmt, NULL, &r, err))
		return false;
	if (book != NULL) {
		hash_book(book, sha);
		hex_encode(sha, sizeof(sha), hex);
	}
	if (PQntuples(r) == 0 ? book == NULL
	                      : book != NULL && strcmp(book->version, res_text(r, 0, 0)) == 0 &&
	                                strcmp(hex, res_text(r, 0, 1)) == 0)
		return true;
	return err_set(
		err, ERR_CONFLICT,
		"prices: a closed period keeps its prices: a file that reaches into one has those in force last (%s%s%s), and other prices "
		"come with a file of their own that is effective from %s on",
		PQntuples(r) > 0 ? "version \"" : "none", PQntuples(r) > 0 ? res_text(r, 0, 0) : "",
		PQntuples(r) > 0 ? "\"" : "", time_format(closed_ns, when));
}

/* --- reading: the books of a month, or a proposed one --- */

void
price_books_fini(struct price_books *b)
{
	PQclear(b->rows);
	PQclear(b->items_res);
	PQclear(b->discounts_res);
	PQclear(b->sites_res);
	PQclear(b->weights_res);
	hash_fini(&b->at);
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
		hash_put(&b->at, (uint64_t)id, i);
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
