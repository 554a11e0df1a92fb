/* aggregator/store/policy/price_books.h - price books as rating wants them. For the files of store/ only. */
#ifndef TOLLGATE_PRICE_BOOKS_H
#define TOLLGATE_PRICE_BOOKS_H

#include "aggregator/core/policy/policy.h"
#include "aggregator/core/rating/rating.h"
#include "aggregator/store/db/db.h"
#include "common/base/idmap.h"

/* Texts of the books point into the results, or into the policy's book. in_place(price_books) struct price_books b = {0}; */
struct price_books {
	struct rating_book *books; /* by id */
	size_t count;
	struct idmap at; /* id of a price book -> index */
	PGresult *rows, *items_res, *discounts_res, *sites_res, *weights_res;
	struct rating_item *items;
	struct rating_discount *discounts;
	struct rating_site *sites;
	struct rating_weight *weights;
};
void price_books_fini(struct price_books *b);

/* Those that are in force at some hour of the month. */
MUST_CHECK bool price_books_load(struct db *db, const char *month, struct price_books *b, struct err *err);
/* The one that is in force at a moment, whether its billing month was made or not; none where there is none. */
MUST_CHECK bool price_books_at(struct db *db, int64_t at_ns, struct price_books *b, struct err *err);
/* One book that is in no ledger; it is borrowed. */
void price_books_of(const struct policy_book *book, struct price_books *b);

#endif
