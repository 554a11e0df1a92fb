/* aggregator/core/rating_file.h - what a month was rated from, as a text that is kept, and back. Pure.
 *
 * One line per record, fields between tabs, the first says what it is: M the month, B a price book, I, D, S, W its items, discounts,
 * sites and weights, U a row of charges. Numbers are whole, in the scale of their field; a field that is not there is \N; backslash,
 * tab and line ends are written \\ \t \n \r. The same input always gives the same bytes. */
#ifndef TOLLGATE_CORE_RATING_FILE_H
#define TOLLGATE_CORE_RATING_FILE_H

#include "aggregator/core/rating.h"

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
