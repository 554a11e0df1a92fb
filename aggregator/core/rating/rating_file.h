/* aggregator/core/rating/rating_file.h - what a month was rated from, as a text that is kept, and back. Pure.
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
/* ERR_INVALID names the line. What was read and is written again is the same bytes. */
MUST_CHECK bool rating_file_read(const char *text, size_t len, struct rating_file **ret, struct err *err);
void rating_file_free(struct rating_file *f);
DEFINE_OWNED(rating_file, struct rating_file)

/* A month that was rated by earlier rules, as it was billed. Pure, exact.
 *
 * The kept rows of such a month, rated by the rules of today, have other cents than its invoice; but only they say what its lines have on each day.
 *
 * Rules, in order:
 *  1. a line has the amounts that were billed of it. Cents that differ go to its days in proportion to what each has, by largest remainder
 *  2. a line that was not billed is none
 *  3. what was billed for reservations is amortised anew (core/rating/amortise.h)
 *
 * So what the days of the lines that are left have adds up to what was billed of them; lines that the rules of today do not make are the caller's. */
/* billed: n lines by line_id; found[i]: there is such a line. */
void rated_set_billed(struct rated *r, const struct rated_line *billed, size_t n, bool *ret_found);

#endif
