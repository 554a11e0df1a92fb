/* tests/fuzz/fuzz_rating_file.c - any bytes as what a month was rated from: refused in words, or a month whose text is the same bytes
 * again, and which rating takes or refuses, but never stumbles over. */
#include <string.h>

#include "aggregator/core/rating/rating_file.h"

#define TEXT_MAX (16u << 20)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	owned(rating_file) struct rating_file *f = NULL;
	owned(rated) struct rated *r = NULL;
	in_place(buf) struct buf again;
	struct err err = {0};

	buf_init(&again, TEXT_MAX);
	if (!rating_file_read((const char *)data, size, &f, &err)) {
		ASSERT(err.text[0] != '\0');
		return 0;
	}
	rating_file_prices(&f->in, &again);
	rating_file_rows(&f->in, &again);
	ASSERT(again.over || (again.len == size && memcmp(buf_text(&again), data, size) == 0));
	f->in.period_status = "closed";
	err = (struct err){0};
	if (!rating_run(&f->in, &r, &err))
		ASSERT(err.text[0] != '\0');
	return 0;
}
