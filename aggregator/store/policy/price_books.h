/* aggregator/store/policy/price_books.h - price books: the book of a policy as rows, and books as rating wants them. For the files of store/ only. */
#ifndef TOLLGATE_PRICE_BOOKS_H
#define TOLLGATE_PRICE_BOOKS_H

#include "aggregator/core/policy/policy.h"
#include "aggregator/core/rating/rating.h"
#include "aggregator/store/db/db.h"
#include "common/base/hash.h"

/* Writes the book of a policy, in force from effective_ns on; NULL: from then on there are no prices. */
MUST_CHECK bool price_book_write(struct db *db, const struct policy_book *book, int64_t effective_ns, struct err *err);
/* A file that reaches into closed months, which end at closed_ns, must have the prices that are in force last. Writes nothing. */
MUST_CHECK bool price_book_unchanged(struct db *db, const struct policy_book *book, int64_t closed_ns, struct err *err);

/* Texts of the books point into the results, or into the policy's book. in_place(price_books) struct price_books b = {0}; */
struct price_books {
	struct rating_book *books; /* by id */
	size_t count;
	struct hash at; /* id of a price book -> index */
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
