/* tests/unit/base/test_buf.c - the buffer's ceiling, and files read and written whole. */
#include "common/base/buf.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static void
an_empty_buffer_has_an_empty_text(void **state)
{
	in_place(buf) struct buf b;

	(void)state;
	buf_init(&b, 10);
	assert_string_equal(buf_text(&b), "");
	buf_add(&b, NULL, 0);
	buf_str(&b, "");
	buf_printf(&b, "%s", "");
	assert_int_equal(b.len, 0);
	assert_true(buf_ok(&b, "it", NULL));
}

static void
appends_add_up_and_stay_terminated(void **state)
{
	in_place(buf) struct buf b;

	(void)state;
	buf_init(&b, 1000);
	buf_str(&b, "abc");
	buf_char(&b, '-');
	buf_add(&b, "x\0y", 3);
	buf_printf(&b, "%d|%s", 42, "z");
	assert_int_equal(b.len, 11);
	assert_memory_equal(b.data, "abc-x\0y42|z", 12);
}

static void
numbers_are_written_in_decimal_to_their_limits(void **state)
{
	in_place(buf) struct buf b;

	(void)state;
	buf_init(&b, 1000);
	buf_i64(&b, 0);
	buf_char(&b, ' ');
	buf_i64(&b, -7);
	buf_char(&b, ' ');
	buf_i64(&b, INT64_MIN);
	buf_char(&b, ' ');
	buf_i64(&b, INT64_MAX);
	buf_char(&b, ' ');
	buf_u64(&b, UINT64_MAX);
	assert_string_equal(buf_text(&b), "0 -7 -9223372036854775808 9223372036854775807 18446744073709551615");
}

static void
a_buffer_takes_exactly_its_ceiling(void **state)
{
	in_place(buf) struct buf b;

	(void)state;
	buf_init(&b, 5);
	buf_str(&b, "12345");
	assert_true(buf_ok(&b, "it", NULL));
	assert_string_equal(buf_text(&b), "12345");
	buf_char(&b, '6');
	assert_true(b.over);
	assert_string_equal(buf_text(&b), "12345");
}

static void
past_the_ceiling_nothing_more_is_added_and_the_error_names_the_limit(void **state)
{
	struct err err = {0};
	in_place(buf) struct buf b;

	(void)state;
	buf_init(&b, 8);
	buf_str(&b, "1234");
	buf_str(&b, "56789");
	buf_char(&b, 'x'); /* would fit, but there is a hole before it */
	buf_printf(&b, "%d", 1);
	assert_string_equal(buf_text(&b), "1234");
	assert_false(buf_ok(&b, "the report", &err));
	assert_int_equal(err.kind, ERR_INVALID);
	assert_string_equal(err.text, "the report is larger than the limit of 8 bytes");
}

static void
clearing_forgets_content_and_excess(void **state)
{
	in_place(buf) struct buf b;

	(void)state;
	buf_init(&b, 4);
	buf_str(&b, "12345");
	assert_true(b.over);
	buf_clear(&b);
	buf_str(&b, "ab");
	assert_true(buf_ok(&b, "it", NULL));
	assert_string_equal(buf_text(&b), "ab");
	buf_clear(&b);
	assert_string_equal(buf_text(&b), "");
}

static void
a_ceiling_of_zero_takes_nothing(void **state)
{
	in_place(buf) struct buf b;

	(void)state;
	buf_init(&b, 0);
	buf_char(&b, 'x');
	assert_true(b.over);
	assert_string_equal(buf_text(&b), "");
}

static void
reserved_bytes_count_only_when_committed(void **state)
{
	in_place(buf) struct buf b;
	char *to;

	(void)state;
	buf_init(&b, 100);
	buf_str(&b, "ab");
	to = buf_reserve(&b, 50);
	assert_non_null(to);
	memset(to, 'x', 50);
	buf_commit(&b, 3);
	assert_int_equal(b.len, 5);
	assert_string_equal(buf_text(&b), "abxxx");
	assert_null(buf_reserve(&b, 96));
	assert_true(b.over);
}

static void
a_finished_buffer_can_be_used_again(void **state)
{
	in_place(buf) struct buf b;

	(void)state;
	buf_init(&b, 3);
	buf_str(&b, "abc");
	buf_fini(&b);
	assert_string_equal(buf_text(&b), "");
	buf_str(&b, "xyz");
	assert_string_equal(buf_text(&b), "xyz");
}

static void
growing_in_many_steps_loses_nothing(void **state)
{
	in_place(buf) struct buf b;

	(void)state;
	buf_init(&b, 1u << 20);
	for (int i = 0; i < 100000; i++)
		buf_char(&b, (char)('a' + i % 26));
	assert_true(buf_ok(&b, "it", NULL));
	for (size_t i = 0; i < b.len; i++)
		assert_int_equal(b.data[i], 'a' + (int)(i % 26));
	assert_int_equal(b.len, 100000);
}

/* Files: each test has a folder of its own, removed with its few files afterwards. */

static int
make_folder(void **state)
{
	char *folder = mem_strdup("/tmp/tollgate-test-buf-XXXXXX");

	*state = mkdtemp(folder);
	return *state ? 0 : -1;
}

static int
remove_folder(void **state)
{
	static const char *const names[] = {"file", "old"};
	char *folder = *state;
	int rc;

	for (size_t i = 0; i < ARRAY_LEN(names); i++) {
		owned(mem) char *path = mem_printf("%s/%s", folder, names[i]);

		unlink(path);
	}
	rc = rmdir(folder); /* fails when a test left something behind, such as a temporary file */
	mem_free(folder);
	return rc;
}

static void
a_file_written_is_read_back(void **state)
{
	static const size_t sizes[] = {0, 1, 255, 256, 257, 4096, 65536, 100000};
	owned(mem) char *path = mem_printf("%s/file", (char *)*state);
	owned(mem) char *content = mem_alloc(100000);

	for (size_t i = 0; i < 100000; i++)
		content[i] = (char)(i * 7 % 251);
	for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
		in_place(buf) struct buf b;
		struct err err = {0};

		buf_init(&b, 100000);
		if (!file_write_atomic(path, content, sizes[i], 0640, &err) || !buf_read_file(&b, path, &err))
			fail_msg("%zu bytes: %s", sizes[i], err.text);
		assert_int_equal(b.len, sizes[i]);
		assert_memory_equal(buf_text(&b), content, sizes[i]);
	}
}

static void
reading_replaces_what_the_buffer_had(void **state)
{
	owned(mem) char *path = mem_printf("%s/file", (char *)*state);
	in_place(buf) struct buf b;

	buf_init(&b, 10);
	buf_str(&b, "before that too long");
	assert_true(b.over);
	assert_true(file_write_atomic(path, "new", 3, 0600, NULL));
	assert_true(buf_read_file(&b, path, NULL));
	assert_string_equal(buf_text(&b), "new");
	assert_true(buf_ok(&b, "it", NULL));
}

static void
a_file_of_exactly_the_limit_is_read_and_one_byte_more_is_refused(void **state)
{
	owned(mem) char *path = mem_printf("%s/file", (char *)*state);
	in_place(buf) struct buf b;
	struct err err = {0};

	buf_init(&b, 5);
	assert_true(file_write_atomic(path, "12345", 5, 0600, NULL));
	assert_true(buf_read_file(&b, path, &err));
	assert_string_equal(buf_text(&b), "12345");
	assert_true(file_write_atomic(path, "123456", 6, 0600, NULL));
	assert_false(buf_read_file(&b, path, &err));
	assert_int_equal(err.kind, ERR_INVALID);
	assert_non_null(strstr(err.text, path));
	assert_non_null(strstr(err.text, "limit of 5 bytes"));
}

static void
a_file_whose_size_is_not_known_before_is_read_whole(void **state)
{
	in_place(buf) struct buf b;

	(void)state;
	buf_init(&b, 1u << 20);
	assert_true(buf_read_file(&b, "/proc/self/maps", NULL));
	assert_non_null(strstr(buf_text(&b), "[stack]"));
}

static void
what_cannot_be_read_is_named_with_its_reason(void **state)
{
	owned(mem) char *missing = mem_printf("%s/none", (char *)*state);
	in_place(buf) struct buf b;
	struct err err = {0};

	buf_init(&b, 100);
	assert_false(buf_read_file(&b, missing, &err));
	assert_int_equal(err.kind, ERR_MISSING);
	assert_non_null(strstr(err.text, missing));
	assert_non_null(strstr(err.text, "No such file"));
	assert_false(buf_read_file(&b, *state, &err));
	assert_int_equal(err.kind, ERR_FATAL);
	assert_non_null(strstr(err.text, "Is a directory"));
}

static void
the_mode_is_the_one_asked_for_whatever_the_umask(void **state)
{
	static const unsigned modes[] = {0600, 0640, 0644, 0666};
	owned(mem) char *path = mem_printf("%s/file", (char *)*state);
	mode_t before = umask(0077);
	bool right = true;

	for (size_t i = 0; i < ARRAY_LEN(modes); i++) {
		struct stat st;

		right &= file_write_atomic(path, "x", 1, modes[i], NULL) && stat(path, &st) == 0 &&
		         (st.st_mode & 07777) == modes[i];
	}
	umask(before);
	assert_true(right);
}

static void
a_reader_of_the_old_file_keeps_the_old_content(void **state)
{
	owned(mem) char *path = mem_printf("%s/file", (char *)*state);
	char old[4] = "";
	int fd;

	assert_true(file_write_atomic(path, "old", 3, 0600, NULL));
	fd = open(path, O_RDONLY | O_CLOEXEC);
	assert_true(fd >= 0);
	assert_true(file_write_atomic(path, "new", 3, 0600, NULL));
	assert_int_equal(read(fd, old, 3), 3);
	close(fd);
	assert_string_equal(old, "old");
}

static void
a_symbolic_link_is_replaced_and_its_target_left_alone(void **state)
{
	owned(mem) char *target = mem_printf("%s/old", (char *)*state);
	owned(mem) char *path = mem_printf("%s/file", (char *)*state);
	in_place(buf) struct buf b;

	buf_init(&b, 100);
	assert_true(file_write_atomic(target, "target", 6, 0600, NULL));
	assert_int_equal(symlink(target, path), 0);
	assert_true(file_write_atomic(path, "new", 3, 0600, NULL));
	assert_true(buf_read_file(&b, target, NULL));
	assert_string_equal(buf_text(&b), "target");
	assert_true(buf_read_file(&b, path, NULL));
	assert_string_equal(buf_text(&b), "new");
}

static void
a_failed_write_names_the_file_and_leaves_nothing_behind(void **state)
{
	owned(mem) char *nowhere = mem_printf("%s/no/file", (char *)*state);
	owned(mem) char *folder = mem_printf("%s/old", (char *)*state);
	struct err err = {0};

	assert_false(file_write_atomic(nowhere, "x", 1, 0600, &err));
	assert_int_equal(err.kind, ERR_MISSING);
	assert_non_null(strstr(err.text, nowhere));
	/* a folder cannot be replaced by a file; remove_folder checks that the temporary file is gone */
	assert_int_equal(mkdir(folder, 0700), 0);
	assert_false(file_write_atomic(folder, "x", 1, 0600, &err));
	assert_non_null(strstr(err.text, "cannot replace"));
	assert_int_equal(rmdir(folder), 0);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(an_empty_buffer_has_an_empty_text),
		cmocka_unit_test(appends_add_up_and_stay_terminated),
		cmocka_unit_test(numbers_are_written_in_decimal_to_their_limits),
		cmocka_unit_test(a_buffer_takes_exactly_its_ceiling),
		cmocka_unit_test(past_the_ceiling_nothing_more_is_added_and_the_error_names_the_limit),
		cmocka_unit_test(clearing_forgets_content_and_excess),
		cmocka_unit_test(a_ceiling_of_zero_takes_nothing),
		cmocka_unit_test(reserved_bytes_count_only_when_committed),
		cmocka_unit_test(a_finished_buffer_can_be_used_again),
		cmocka_unit_test(growing_in_many_steps_loses_nothing),
		cmocka_unit_test_setup_teardown(a_file_written_is_read_back, make_folder, remove_folder),
		cmocka_unit_test_setup_teardown(reading_replaces_what_the_buffer_had, make_folder, remove_folder),
		cmocka_unit_test_setup_teardown(a_file_of_exactly_the_limit_is_read_and_one_byte_more_is_refused,
	                                        make_folder, remove_folder),
		cmocka_unit_test(a_file_whose_size_is_not_known_before_is_read_whole),
		cmocka_unit_test_setup_teardown(what_cannot_be_read_is_named_with_its_reason, make_folder,
	                                        remove_folder),
		cmocka_unit_test_setup_teardown(the_mode_is_the_one_asked_for_whatever_the_umask, make_folder,
	                                        remove_folder),
		cmocka_unit_test_setup_teardown(a_reader_of_the_old_file_keeps_the_old_content, make_folder,
	                                        remove_folder),
		cmocka_unit_test_setup_teardown(a_symbolic_link_is_replaced_and_its_target_left_alone, make_folder,
	                                        remove_folder),
		cmocka_unit_test_setup_teardown(a_failed_write_names_the_file_and_leaves_nothing_behind, make_folder,
	                                        remove_folder),
	};

	return cmocka_run_group_tests_name("buf", tests, NULL, NULL);
}
