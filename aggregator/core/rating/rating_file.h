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

#endif
