/* aggregator/core/rating/rating_file.h - the rating input of a closed month as an archived text, and back. Pure.
 *
 * Lines of records.h: M the month, B a price book, I, D, S, W its items, discounts, sites and weights, U a row of charges. */
#ifndef TOLLGATE_RATING_FILE_H
#define TOLLGATE_RATING_FILE_H

#include "aggregator/core/rating/rating.h"

/* The month and its price books; and the rows of charges. Both, in this order, are a file. */
void rating_file_prices(const struct rating_input *in, struct buf *out);
void rating_file_rows(const struct rating_input *in, struct buf *out);

struct rating_file {
	struct rating_input in;
	void *memory;
};
/* ERR_INVALID names the line. A text that is read and written again has the same bytes. */
MUST_CHECK bool rating_file_read(const char *text, size_t len, struct rating_file **ret, struct err *err);
void rating_file_free(struct rating_file *f);
DEFINE_OWNED(rating_file, struct rating_file)

/* A month that was rated by earlier rules, as it was billed. Pure, exact.
 *
 * The archived rows of such a month, rated by the present rules, have other cents than its invoice; but only they have the amounts of each day.
 *
 * Rules, in order:
 *  1. a line gets its billed amounts. Cents that differ go to its days in proportion to their own cents, by largest remainder
 *  2. a line that was not billed is dropped
 *  3. the billed cost of reservations is amortised again (amortise.h)
 *
 * So the days of the remaining lines add up to their billed amounts. Billed lines that the present rules do not make are left to the caller. */
/* billed: n lines by line_id; found[i]: there is such a line. */
void rated_set_billed(struct rated *r, const struct rated_line *billed, size_t n, bool *ret_found);

#endif
