/* tests/fuzz/fuzz_quota_book.c - any lines as texts of a quota book: the first is opened as a book, or {} where it is none; the others are told to it. Each
 * is refused with a sentence and changes nothing, or is taken, and the book opened from its text writes the same text. */
#include <string.h>

#include "aggregator/core/quota/book/quota_book.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define BYTES (8u << 20)
#define STEPS_MAX 64

static void
write_book(const struct quota_book *b, struct buf *out)
{
	buf_clear(out);
	quota_book_write(b, out);
	ASSERT(!out->over);
}

static void
check_book(const struct quota_book *b, struct buf *first, struct buf *second)
{
	owned(quota_book) struct quota_book *again = NULL;
	struct err err = {0};

	write_book(b, first);
	ASSERT(quota_book_open(buf_text(first), first->len, &again, &err));
	write_book(again, second);
	ASSERT(first->len == second->len && memcmp(first->data, second->data, first->len) == 0);
}

static void
tell(struct quota_book *b, int64_t now_ns, const char *line, size_t len, struct buf *first, struct buf *second)
{
	owned(quota_outcome) struct quota_outcome *o = NULL;
	in_place(buf) struct buf text;
	struct err err = {0};

	buf_init(&text, BYTES);
	if (quota_book_step(b, now_ns, line, len, &o, &err)) {
		quota_book_outcome_json(b, o, &text);
		return;
	}
	ASSERT(err.kind != ERR_NONE && err.text[0] != '\0');
	write_book(b, second);
	ASSERT(first->len == second->len && memcmp(first->data, second->data, first->len) == 0);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	const char *at = (const char *)data, *end = at + size;
	owned(quota_book) struct quota_book *b = NULL;
	in_place(buf) struct buf first, second;
	int64_t now_ns = 0;
	int steps = 0;

	buf_init(&first, BYTES);
	buf_init(&second, BYTES);
	while (at < end && steps++ < STEPS_MAX) {
		const char *newline = memchr(at, '\n', (size_t)(end - at));
		size_t len = (size_t)((newline ? newline : end) - at);

		if (!b && !quota_book_open(at, len, &b, NULL))
			ASSERT(quota_book_open("{}", 2, &b, NULL));
		write_book(b, &first);
		now_ns = quota_book_now(b) + INT64_C(1000000000);
		tell(b, now_ns, at, len, &first, &second);
		check_book(b, &first, &second);
		at += len + 1;
	}
	return 0;
}
