/* tests/unit/base/test_err.c - errors: kinds, texts, and what happens to texts that are long or odd. */
#include "common/base/err.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static void
setting_an_error_keeps_its_kind_and_text(void **state)
{
	struct err err = {0};

	(void)state;
	assert_false(err_set(&err, ERR_CONFLICT, "batch %s/%d", "node-1", 7));
	assert_int_equal(err.kind, ERR_CONFLICT);
	assert_string_equal(err.text, "batch node-1/7");
}

static void
a_prefix_goes_before_the_old_text_and_keeps_the_kind(void **state)
{
	struct err err = {0};

	(void)state;
	err_set(&err, ERR_MISSING, "no such file");
	assert_false(err_prefix(&err, "policy %d", 3));
	assert_int_equal(err.kind, ERR_MISSING);
	assert_string_equal(err.text, "policy 3: no such file");
}

static void
a_system_error_is_named_in_words(void **state)
{
	struct err err = {0};

	(void)state;
	assert_false(err_errno(&err, ERR_DENIED, EACCES, "cannot open %s", "/x"));
	assert_int_equal(err.kind, ERR_DENIED);
	assert_string_equal(err.text, "cannot open /x: Permission denied");
}

static void
no_err_at_all_is_allowed(void **state)
{
	(void)state;
	assert_false(err_set(NULL, ERR_FATAL, "x"));
	assert_false(err_prefix(NULL, "x"));
	assert_false(err_errno(NULL, ERR_FATAL, EIO, "x"));
}

static void
an_error_may_be_made_of_its_own_text(void **state)
{
	struct err err = {0};

	(void)state;
	err_set(&err, ERR_INVALID, "inner");
	err_set(&err, ERR_RETRY, "outer (%s)", err.text);
	assert_string_equal(err.text, "outer (inner)");
}

static void
control_characters_become_spaces_so_that_an_error_is_one_line(void **state)
{
	struct err err = {0};

	(void)state;
	err_set(&err, ERR_INVALID, "a\nb\tc\x7f%s", "\r\x01");
	assert_string_equal(err.text, "a b c   ");
}

static void
a_text_that_just_fits_is_kept_whole(void **state)
{
	char exact[sizeof(((struct err *)NULL)->text)];
	struct err err = {0};

	(void)state;
	memset(exact, 'x', sizeof(exact) - 1);
	exact[sizeof(exact) - 1] = '\0';
	err_set(&err, ERR_INVALID, "%s", exact);
	assert_string_equal(err.text, exact);
}

static void
a_longer_text_is_cut_with_dots(void **state)
{
	char text[4096];
	struct err err = {0};

	(void)state;
	memset(text, 'x', sizeof(text) - 1);
	text[sizeof(text) - 1] = '\0';
	for (size_t len = sizeof(err.text); len < sizeof(err.text) + 3; len++) {
		err_set(&err, ERR_INVALID, "%.*s", (int)len, text);
		assert_int_equal(strlen(err.text), sizeof(err.text) - 1);
		assert_string_equal(err.text + sizeof(err.text) - 5, "x...");
	}
	err_prefix(&err, "before");
	assert_memory_equal(err.text, "before: xxx", 11);
	assert_int_equal(strlen(err.text), sizeof(err.text) - 1);
	assert_string_equal(err.text + sizeof(err.text) - 4, "...");
}

static void
a_cut_never_splits_a_character(void **state)
{
	(void)state;
	/* three-byte characters from every offset */
	for (int offset = 0; offset < 3; offset++) {
		char text[2048] = "";
		struct err err = {0};
		size_t len;

		memset(text, 'x', (size_t)offset);
		for (int i = 0; i < 600; i++)
			strcat(text, "\xe2\x82\xac");
		err_set(&err, ERR_INVALID, "%s", text);
		len = strlen(err.text);
		assert_true(len <= sizeof(err.text) - 1 && len >= sizeof(err.text) - 3);
		assert_string_equal(err.text + len - 3, "...");
		assert_int_equal((len - 3 - (size_t)offset) % 3, 0);
	}
}

static void
every_kind_has_its_own_name(void **state)
{
	(void)state;
	for (int a = ERR_NONE; a <= ERR_FATAL; a++) {
		assert_string_not_equal(err_kind_name((enum err_kind)a), "unknown");
		for (int b = ERR_NONE; b < a; b++)
			assert_string_not_equal(err_kind_name((enum err_kind)a), err_kind_name((enum err_kind)b));
	}
	assert_string_equal(err_kind_name((enum err_kind)99), "unknown");
}

static void
a_detail_is_for_the_log_and_belongs_to_one_error(void **state)
{
	struct err err = {0};
	char text[ERR_LOG_SIZE];

	(void)state;
	err_set(&err, ERR_RETRY, "the database does not answer");
	assert_string_equal(err_log_text(&err, text), "the database does not answer");
	assert_false(err_detail(&err, "host %s:\nno route\n", "db1"));
	assert_string_equal(err.text, "the database does not answer");
	assert_string_equal(err.detail, "host db1: no route");
	err_prefix(&err, "report");
	assert_string_equal(err_log_text(&err, text), "report: the database does not answer (host db1: no route)");
	err_set(&err, ERR_INVALID, "other");
	assert_string_equal(err.detail, "");
	for (int n = 500; n < 530; n++) {
		err_detail(&err, "%0*d", n, 7);
		assert_int_equal(strlen(err.detail),
		                 (size_t)n < sizeof(err.detail) ? (size_t)n : sizeof(err.detail) - 1);
	}
	err_detail(NULL, "nobody");
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_detail_is_for_the_log_and_belongs_to_one_error),
		cmocka_unit_test(setting_an_error_keeps_its_kind_and_text),
		cmocka_unit_test(a_prefix_goes_before_the_old_text_and_keeps_the_kind),
		cmocka_unit_test(a_system_error_is_named_in_words),
		cmocka_unit_test(no_err_at_all_is_allowed),
		cmocka_unit_test(an_error_may_be_made_of_its_own_text),
		cmocka_unit_test(control_characters_become_spaces_so_that_an_error_is_one_line),
		cmocka_unit_test(a_text_that_just_fits_is_kept_whole),
		cmocka_unit_test(a_longer_text_is_cut_with_dots),
		cmocka_unit_test(a_cut_never_splits_a_character),
		cmocka_unit_test(every_kind_has_its_own_name),
	};

	return cmocka_run_group_tests_name("err", tests, NULL, NULL);
}
