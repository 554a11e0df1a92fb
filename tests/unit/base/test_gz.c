/* tests/unit/base/test_gz.c - gzip both ways: exactness, determinism, damage, and bombs. */
#include "common/base/gz.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

/* Repeats with a slow change, so that it compresses well but not to nothing. */
static void
fill(char *data, size_t n)
{
	for (size_t i = 0; i < n; i++)
		data[i] = (char)("usage,node,gpu,"[i % 15] + (int)(i / 4096 % 7));
}

static void
data_of_any_size_comes_back_as_it_was(void **state)
{
	static const size_t sizes[] = {0, 1, 100, 65535, 65536, 65537, 131072, 1000000};
	owned(mem) char *data = mem_alloc(1000000);

	(void)state;
	fill(data, 1000000);
	for (size_t i = 0; i < ARRAY_LEN(sizes); i++)
		for (int level = 1; level <= 9; level += 4) {
			in_place(buf) struct buf packed = {.max = 2000000};
			in_place(buf) struct buf back = {.max = sizes[i]}; /* exactly enough */
			struct err err = {0};

			if (!gz_compress(data, sizes[i], level, &packed, &err) ||
			    !gz_expand(packed.data, packed.len, &back, &err))
				fail_msg("%zu bytes at level %d: %s", sizes[i], level, err.text);
			assert_int_equal(back.len, sizes[i]);
			assert_memory_equal(buf_text(&back), data, sizes[i]);
		}
}

static void
the_same_input_gives_the_same_bytes_without_time_name_or_system(void **state)
{
	in_place(buf) struct buf a = {.max = 10000}, b = {.max = 10000};

	(void)state;
	assert_true(gz_compress("hello hello hello", 17, 6, &a, NULL));
	assert_true(gz_compress("hello hello hello", 17, 6, &b, NULL));
	assert_int_equal(a.len, b.len);
	assert_memory_equal(a.data, b.data, a.len);
	/* RFC 1952: magic, deflate, no flags, no time, XFL, operating system unknown */
	assert_memory_equal(a.data, "\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff", 10);
}

static void
both_directions_append(void **state)
{
	in_place(buf) struct buf packed = {.max = 1000}, out = {.max = 1000};

	(void)state;
	buf_str(&packed, "head");
	assert_true(gz_compress("body", 4, 6, &packed, NULL));
	assert_memory_equal(packed.data, "head\x1f\x8b", 6);
	buf_str(&out, "kept ");
	assert_true(gz_expand(packed.data + 4, packed.len - 4, &out, NULL));
	assert_string_equal(buf_text(&out), "kept body");
}

static void
output_that_does_not_fit_is_refused_and_the_buffer_left_as_it_was(void **state)
{
	in_place(buf) struct buf tight = {.max = 24}, packed = {.max = 1000}, out = {.max = 21};
	struct err err = {0};

	(void)state;
	buf_str(&tight, "kept");
	assert_false(gz_compress("something that is longer than it", 32, 6, &tight, &err));
	assert_int_equal(err.kind, ERR_INVALID);
	assert_non_null(strstr(err.text, "limit of 24 bytes"));
	assert_string_equal(buf_text(&tight), "kept");

	assert_true(gz_compress("0123456789012345678", 19, 6, &packed, NULL));
	buf_str(&out, "kep");
	assert_false(gz_expand(packed.data, packed.len, &out, &err)); /* 3 + 19 is one too many */
	assert_int_equal(err.kind, ERR_INVALID);
	assert_non_null(strstr(err.text, "limit of 21 bytes"));
	assert_string_equal(buf_text(&out), "kep");
}

/* A thousand times its size. Memory must follow the ceiling, not the bomb. */
static void
a_bomb_is_stopped_at_the_ceiling(void **state)
{
	owned(mem) char *zeros = mem_alloc(1u << 20);
	in_place(buf) struct buf inner = {.max = 2u << 20};
	in_place(buf) struct buf out = {.max = 1u << 16};
	struct err err = {0};

	(void)state;
	assert_true(gz_compress(zeros, 1u << 20, 9, &inner, NULL));
	assert_true(inner.len < 2000);
	assert_false(gz_expand(inner.data, inner.len, &out, &err));
	assert_int_equal(err.kind, ERR_INVALID);
	assert_non_null(strstr(err.text, "larger than the limit of 65536 bytes"));
	assert_int_equal(out.len, 0);
	assert_true(out.cap <= 1u << 16);
	assert_true(out.over);

	/* the same one byte above and at the ceiling */
	out.max = (1u << 20) - 1;
	buf_clear(&out);
	assert_false(gz_expand(inner.data, inner.len, &out, &err));
	out.max = 1u << 20;
	buf_clear(&out);
	assert_true(gz_expand(inner.data, inner.len, &out, &err));
	assert_int_equal(out.len, 1u << 20);
}

static void
a_stream_cut_anywhere_is_refused(void **state)
{
	in_place(buf) struct buf packed = {.max = 1000};
	char data[200];

	(void)state;
	fill(data, sizeof(data));
	assert_true(gz_compress(data, sizeof(data), 6, &packed, NULL));
	for (size_t n = 0; n < packed.len; n++) {
		in_place(buf) struct buf out = {.max = 1000};
		struct err err = {0};

		if (gz_expand(packed.data, n, &out, &err))
			fail_msg("the first %zu of %zu bytes were taken for the whole", n, packed.len);
		assert_int_equal(err.kind, ERR_INVALID);
		assert_int_equal(out.len, 0);
	}
}

/* Some bits carry no meaning: the header's time, extra flags and system, and the padding of the last byte. */
static void
one_changed_bit_is_never_taken_for_other_data(void **state)
{
	in_place(buf) struct buf packed = {.max = 1000};
	size_t harmless = 0;
	char data[200];

	(void)state;
	fill(data, sizeof(data));
	assert_true(gz_compress(data, sizeof(data), 6, &packed, NULL));
	for (size_t bit = 0; bit < packed.len * 8; bit++) {
		in_place(buf) struct buf out = {.max = 1000};

		packed.data[bit / 8] = (char)(packed.data[bit / 8] ^ 1 << bit % 8);
		if (gz_expand(packed.data, packed.len, &out, NULL)) {
			assert_int_equal(out.len, sizeof(data));
			assert_memory_equal(out.data, data, sizeof(data));
			harmless++;
		}
		packed.data[bit / 8] = (char)(packed.data[bit / 8] ^ 1 << bit % 8);
	}
	assert_true(harmless <= 7 * 8 + 7);
}

static void
what_follows_the_stream_is_refused(void **state)
{
	in_place(buf) struct buf packed = {.max = 1000}, out = {.max = 1000};
	struct err err = {0};

	(void)state;
	assert_true(gz_compress("data", 4, 6, &packed, NULL));
	buf_str(&packed, "abc");
	assert_false(gz_expand(packed.data, packed.len, &out, &err));
	assert_int_equal(err.kind, ERR_INVALID);
	assert_string_equal(err.text, "3 bytes follow the gzip stream");
	/* a second member too: a batch is one */
	packed.len -= 3;
	assert_true(gz_compress("more", 4, 6, &packed, NULL));
	assert_false(gz_expand(packed.data, packed.len, &out, &err));
	assert_non_null(strstr(err.text, "follow the gzip stream"));
	assert_int_equal(out.len, 0);
}

static void
what_is_not_gzip_is_refused(void **state)
{
	static const char zlib[] = "\x78\x9c\x4b\x4c\x4a\x06\x00\x02\x4d\x01\x27"; /* "abc" with zlib's header */
	in_place(buf) struct buf out = {.max = 1000};
	struct err err = {0};

	(void)state;
	assert_false(gz_expand("hello world, not gzip", 21, &out, &err));
	assert_non_null(strstr(err.text, "damaged"));
	assert_false(gz_expand(zlib, sizeof(zlib) - 1, &out, &err));
	assert_false(gz_expand("", 0, &out, &err));
	assert_non_null(strstr(err.text, "ends too early"));
	assert_int_equal(err.kind, ERR_INVALID);
}

static bool
keep_piece(void *arg, const char *data, size_t n, struct err *err)
{
	struct buf *out = arg;

	buf_add(out, data, n);
	return buf_ok(out, "what came", err);
}

static void
pieces_are_the_whole_and_damage_is_seen_in_them_too(void **state)
{
	owned(mem) char *data = mem_alloc(1000000);
	in_place(buf) struct buf packed = {.max = 2000000}, back = {.max = 1000000}, little = {.max = 1000};
	struct err err = {0};

	(void)state;
	fill(data, 1000000);
	assert_true(gz_compress(data, 1000000, 1, &packed, &err));
	assert_true(gz_expand_pieces(packed.data, packed.len, keep_piece, &back, &err));
	assert_int_equal(back.len, 1000000);
	assert_memory_equal(back.data, data, 1000000);
	assert_false(gz_expand_pieces(packed.data, packed.len, keep_piece, &little, &err)); /* who takes it says no */
	buf_clear(&back);
	assert_false(gz_expand_pieces(packed.data, packed.len - 1, keep_piece, &back, &err));
	assert_non_null(strstr(err.text, "torn"));
	buf_clear(&back);
	buf_char(&packed, 'x');
	assert_false(gz_expand_pieces(packed.data, packed.len, keep_piece, &back, &err));
	assert_non_null(strstr(err.text, "follow"));
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(pieces_are_the_whole_and_damage_is_seen_in_them_too),
		cmocka_unit_test(data_of_any_size_comes_back_as_it_was),
		cmocka_unit_test(the_same_input_gives_the_same_bytes_without_time_name_or_system),
		cmocka_unit_test(both_directions_append),
		cmocka_unit_test(output_that_does_not_fit_is_refused_and_the_buffer_left_as_it_was),
		cmocka_unit_test(a_bomb_is_stopped_at_the_ceiling),
		cmocka_unit_test(a_stream_cut_anywhere_is_refused),
		cmocka_unit_test(one_changed_bit_is_never_taken_for_other_data),
		cmocka_unit_test(what_follows_the_stream_is_refused),
		cmocka_unit_test(what_is_not_gzip_is_refused),
	};

	return cmocka_run_group_tests_name("gz", tests, NULL, NULL);
}
