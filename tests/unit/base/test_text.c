/* tests/unit/base/test_text.c */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/text.h"

static void
a_utf8_character_is_read_with_its_code_or_refused(void **state)
{
	static const struct {
		const char *name, *bytes;
		size_t len;
		uint32_t code;
	} rows[] = {
		{"ASCII", "A", 1, 'A'},
		{"the least of two bytes", "\xc2\x80", 2, 0x80},
		{"the least of three bytes", "\xe0\xa0\x80", 3, 0x800},
		{"the last before the surrogates", "\xed\x9f\xbf", 3, 0xd7ff},
		{"the first after the surrogates", "\xee\x80\x80", 3, 0xe000},
		{"the least of four bytes", "\xf0\x90\x80\x80", 4, 0x10000},
		{"the greatest", "\xf4\x8f\xbf\xbf", 4, 0x10ffff},
		{"overlong slash", "\xc0\xaf", 0, 0},
		{"overlong in three bytes", "\xe0\x9f\xbf", 0, 0},
		{"overlong in four bytes", "\xf0\x8f\xbf\xbf", 0, 0},
		{"a surrogate", "\xed\xa0\x80", 0, 0},
		{"beyond the greatest", "\xf4\x90\x80\x80", 0, 0},
		{"a continuation alone", "\x80", 0, 0},
		{"five bytes", "\xf8\x88\x80\x80\x80", 0, 0},
		{"cut off", "\xe2\x82", 0, 0},
		{"no continuation", "\xc3(", 0, 0},
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		uint32_t code = 0;
		size_t len = utf8_next(rows[i].bytes, strlen(rows[i].bytes), &code);

		if (len != rows[i].len || code != rows[i].code)
			fail_msg("%s: %zu bytes, code %x", rows[i].name, len, code);
	}
}

static void
clean_text_has_no_control_characters(void **state)
{
	static const char *const deceiving[] = {
		"a\xd8\x9c",     "a\xe2\x80\x8e", "a\xe2\x80\x8f", "a\xe2\x80\xa8", "a\xe2\x80\xa9",
		"a\xe2\x80\xaa", "a\xe2\x80\xab", "a\xe2\x80\xac", "a\xe2\x80\xad", "a\xe2\x80\xae",
		"a\xe2\x81\xa6", "a\xe2\x81\xa7", "a\xe2\x81\xa8", "a\xe2\x81\xa9", "a\xef\xbb\xbf",
	};

	(void)state;
	assert_true(text_is_clean(""));
	assert_true(text_is_clean("j\xc3\xb8rgen / \xe2\x82\xac \xf0\x9f\x98\x80"));
	assert_true(text_is_clean("\xc2\xa0")); /* the first after C1 */
	assert_false(text_is_clean("a\nb"));
	assert_false(text_is_clean("\x1b[31m"));
	assert_false(text_is_clean("\x7f"));
	assert_false(text_is_clean("\xc2\x9f"));
	assert_false(text_is_clean("a\xff"));
	/* what turns the direction of writing, or ends a line for some readers */
	for (size_t i = 0; i < ARRAY_LEN(deceiving); i++)
		assert_false(text_is_clean(deceiving[i]));
	/* their neighbours, and what scripts need: joiners, marks, right-to-left letters */
	assert_true(text_is_clean("\xd8\x9b\xd8\x9d \xe2\x80\x8b\xe2\x80\x8c\xe2\x80\x8d \xe2\x80\xa7\xe2\x80\xaf "
	                          "\xe2\x81\xa5\xe2\x81\xaa \xd7\xa9\xd7\x9c\xd7\x95\xd7\x9d"));
	assert_false(text_n_is_clean("a\0b", 3));
}

static void
a_number_has_one_spelling(void **state)
{
	static const char *const refused[] = {"",
	                                      "-",
	                                      "+1",
	                                      " 1",
	                                      "1 ",
	                                      "01",
	                                      "-0",
	                                      "00",
	                                      "1e3",
	                                      "0x1",
	                                      "1.0",
	                                      "9223372036854775808",
	                                      "-9223372036854775809",
	                                      "99999999999999999999"};
	int64_t v = 1;

	(void)state;
	assert_true(text_to_i64("0", &v) && v == 0);
	assert_true(text_to_i64("-17", &v) && v == -17);
	assert_true(text_to_i64("9223372036854775807", &v) && v == INT64_MAX);
	assert_true(text_to_i64("-9223372036854775808", &v) && v == INT64_MIN);
	for (size_t i = 0; i < ARRAY_LEN(refused); i++)
		if (text_to_i64(refused[i], &v))
			fail_msg("'%s' was read as %" PRId64, refused[i], v);
}

static void
the_nearest_word_is_one_its_author_could_have_meant(void **state)
{
	static const char *const words[] = {"listen", "interval", "sample-interval", "spool-max-bytes", "log-level",
	                                    "gpu",    NULL};
	static const char *const rows[][2] = {
		{"lisen", "listen"},
		{"intervall", "interval"},
		{"sample_interval", "sample-interval"},
		{"SAMPLE-INTERVAL", "sample-interval"},
		{"smaple-intervl", "sample-interval"},
		{"loglevel", "log-level"},
		{"gpus", "gpu"},
		{"gup", "gpu"},
		{"cpu", "gpu"},
		{"colour", NULL},
		{"", NULL},
		{"xyz", NULL},
	};
	char endless[512];

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		const char *near = text_nearest(rows[i][0], words);

		if ((near == NULL) != (rows[i][1] == NULL) || (near && strcmp(near, rows[i][1]) != 0))
			fail_msg("'%s': '%s'", rows[i][0], near ? near : "none");
	}
	memset(endless, 'a', sizeof(endless) - 1);
	endless[sizeof(endless) - 1] = '\0';
	assert_null(text_nearest(endless, words));
}

/* The published values of FNV-1a, 64 bits. */
static void
a_hash_is_as_published(void **state)
{
	(void)state;
	assert_true(text_hash("") == UINT64_C(0xcbf29ce484222325));
	assert_true(text_hash("a") == UINT64_C(0xaf63dc4c8601ec8c));
	assert_true(text_hash("foobar") == UINT64_C(0x85944171f73967e8));
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_utf8_character_is_read_with_its_code_or_refused),
		cmocka_unit_test(clean_text_has_no_control_characters),
		cmocka_unit_test(a_number_has_one_spelling),
		cmocka_unit_test(a_hash_is_as_published),
		cmocka_unit_test(the_nearest_word_is_one_its_author_could_have_meant),
	};

	return cmocka_run_group_tests_name("text", tests, NULL, NULL);
}
