/* aggregator/store/policy/policy_price_rows.c - the price book of a policy as rows.
 *
 * A book is a range of billing hours and never changes: a file with other prices ends the one in force and begins its own. */
#include <string.h>

#include "aggregator/store/policy/policy_over_time.h"
#include "common/base/digest.h"

#define PRICES_MAX_BYTES (16u << 20)

/* --- what a version stands for --- */

static void
hash_field(struct buf *b, const char *s)
{
	if (s)
		buf_printf(b, "%zu:%s", strlen(s), s);
	else
		buf_char(b, '-');
}

/* What a book need not say adds nothing when it is not said: a book that says less keeps its hash. */
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

/* NULL for what is not said, which is -1. */
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
price_rows_write(struct db *db, const struct policy_book *book, int64_t effective_ns, struct err *err)
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
price_rows_keep(struct db *db, const struct policy_book *book, int64_t closed_ns, struct err *err)
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
