/* tests/unit/base/test_spill.c - documents made in pieces: the same bytes and the same hash, plain and gzipped, with bounded memory. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/base/gz.h"
#include "common/base/spill.h"

#define DOCUMENT_MAX (64u << 20)

/* Lines of 40 bytes or so; the whole document also in `whole`. */
static void
fill(struct spill *s, size_t lines, struct buf *whole)
{
	struct err err = {0};

	for (size_t i = 0; i < lines; i++) {
		buf_printf(spill_buf(s), "%zu,line,%zu,of,a,long,document\r\n", i, i * i);
		buf_printf(whole, "%zu,line,%zu,of,a,long,document\r\n", i, i * i);
		assert_true(spill_step(s, &err));
		assert_true(spill_buf(s)->len < (512u << 10));
	}
}

static void
check_file(const struct spill_file *f, bool gzip, const struct buf *whole)
{
	owned(mem) char *bytes = mem_alloc((size_t)f->len + 1);
	in_place(buf) struct buf plain;
	uint8_t expected[SHA256_SIZE];
	struct err err = {0};

	buf_init(&plain, DOCUMENT_MAX);
	assert_int_equal(read(f->fd, bytes, (size_t)f->len + 1), f->len);
	if (gzip)
		assert_true(gz_expand(bytes, (size_t)f->len, &plain, &err));
	else
		buf_add(&plain, bytes, (size_t)f->len);
	assert_int_equal(plain.len, whole->len);
	assert_int_equal(f->plain_len, whole->len);
	assert_memory_equal(plain.data ? plain.data : "", whole->data ? whole->data : "", whole->len);
	sha256(whole->data ? whole->data : "", whole->len, expected);
	assert_memory_equal(f->sha256, expected, SHA256_SIZE);
	close(f->fd);
}

static void
a_document_comes_back_byte_for_byte(void **state)
{
	static const size_t sizes[] = {0, 1, 100, 20000, 100000};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(sizes) * 2; i++) {
		owned(spill) struct spill *s = NULL;
		in_place(buf) struct buf whole;
		struct spill_file file;
		struct err err = {0};

		buf_init(&whole, DOCUMENT_MAX);
		assert_true(spill_new(i % 2 == 1, &s, &err));
		fill(s, sizes[i / 2], &whole);
		assert_true(spill_end(s, &file, &err));
		check_file(&file, i % 2 == 1, &whole);
	}
}

static void
a_document_that_is_not_finished_leaves_no_file(void **state)
{
	owned(spill) struct spill *s = NULL;
	in_place(buf) struct buf whole;
	struct err err = {0};

	(void)state;
	buf_init(&whole, DOCUMENT_MAX);
	assert_true(spill_new(true, &s, &err));
	fill(s, 20000, &whole);
	spill_free(take(s)); /* the sanitizers see what is left */
}

static void
without_a_place_for_files_the_reason_is_said(void **state)
{
	const char *before = getenv("TMPDIR");
	owned(mem) char *kept = before ? mem_strdup(before) : NULL;
	struct spill *s = NULL;
	struct err err = {0};

	(void)state;
	assert_int_equal(setenv("TMPDIR", "/nonexistent/place", 1), 0);
	assert_false(spill_new(false, &s, &err));
	assert_int_equal(err.kind, ERR_RETRY);
	assert_non_null(strstr(err.text, "no temporary file"));
	assert_int_equal(kept ? setenv("TMPDIR", kept, 1) : unsetenv("TMPDIR"), 0);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_document_comes_back_byte_for_byte),
		cmocka_unit_test(a_document_that_is_not_finished_leaves_no_file),
		cmocka_unit_test(without_a_place_for_files_the_reason_is_said),
	};

	return cmocka_run_group_tests_name("spill", tests, NULL, NULL);
}
