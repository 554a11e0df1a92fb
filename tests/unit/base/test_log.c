/* tests/unit/base/test_log.c - log lines as they leave on stderr: their shape, and values that try to forge. */
/* tsan */
#include "common/base/log.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/base/buf.h"

/* stderr goes to a pipe while a test logs; each read gives what one write put in, as long as it is below PIPE_BUF. */
struct capture {
	int read_fd, saved;
};

static void
capture_begin(struct capture *c)
{
	int fd[2];

	assert_int_equal(pipe(fd), 0);
	fflush(stderr);
	c->saved = dup(STDERR_FILENO);
	c->read_fd = fd[0];
	assert_true(c->saved >= 0 && dup2(fd[1], STDERR_FILENO) >= 0);
	close(fd[1]);
}

static void
capture_end(struct capture *c, struct buf *out)
{
	ssize_t got;

	dup2(c->saved, STDERR_FILENO);
	close(c->saved);
	buf_init(out, 1u << 20);
	do {
		char *to = buf_reserve(out, 8192);

		assert_non_null(to);
		got = read(c->read_fd, to, 8192);
		assert_true(got >= 0);
		buf_commit(out, (size_t)got);
	} while (got > 0);
	close(c->read_fd);
}

/* What follows "msg=" in the one line that a call writes. */
static const char *
after_msg(const struct buf *out)
{
	const char *msg = strstr(buf_text(out), " msg=");

	assert_non_null(msg);
	assert_ptr_equal(strchr(buf_text(out), '\n'), out->data + out->len - 1);
	return msg + 5;
}

static void
a_line_has_time_level_program_message_and_fields(void **state)
{
	in_place(buf) struct buf out = {0};
	struct capture c;

	(void)state;
	log_init("tollgate-exporter", LOG_INFO);
	capture_begin(&c);
	log_event(LOG_INFO, "pushed", LI("batches", 3), LS("url", "http://127.0.0.1:9402/v1/ingest"));
	capture_end(&c, &out);
	assert_memory_equal(buf_text(&out), "ts=20", 5);
	assert_non_null(strstr(buf_text(&out), "Z level=info prog=tollgate-exporter msg=pushed"));
	assert_string_equal(after_msg(&out), "pushed batches=3 url=http://127.0.0.1:9402/v1/ingest\n");
}

static void
no_fields_are_allowed(void **state)
{
	in_place(buf) struct buf out = {0};
	struct capture c;

	(void)state;
	capture_begin(&c);
	log_write(LOG_WARN, "two words", NULL);
	capture_end(&c, &out);
	assert_non_null(strstr(buf_text(&out), " level=warn "));
	assert_string_equal(after_msg(&out), "\"two words\"\n");
}

static void
values_are_quoted_where_needed_and_cannot_forge(void **state)
{
	static const struct {
		const char *name, *value, *written;
	} rows[] = {
		{"a plain word", "abc", "abc"},
		{"a path", "/var/lib/tollgate", "/var/lib/tollgate"},
		{"nothing", "", "\"\""},
		{"no value at all", NULL, "\"\""},
		{"a space", "a b", "\"a b\""},
		{"another field", "x level=error", "\"x level=error\""},
		{"an equals sign", "a=b", "\"a=b\""},
		{"a quote that would end the value", "a\" b=\"c", "\"a\\\" b=\\\"c\""},
		{"a backslash before the closing quote", "a\\", "\"a\\\\\""},
		{"a new line with a whole record", "x\nts=1 level=info", "\"x\\nts=1 level=info\""},
		{"a carriage return and a tab", "\r\t", "\"\\r\\t\""},
		{"an escape sequence of the terminal", "\x1b[2J", "\"\\u001b[2J\""},
		{"delete", "\x7f", "\"\\u007f\""},
		{"a letter of another script", "caf\xc3\xa9", "\"caf\xc3\xa9\""},
		{"a next-line control",
	         "a\xc2\x85"
	         "b",
	         "\"a\\u0085b\""},
		{"a line separator",
	         "a\xe2\x80\xa8"
	         "b",
	         "\"a\\u2028b\""},
		{"a turn of direction",
	         "a\xe2\x80\xae"
	         "b",
	         "\"a\\u202eb\""},
		{"bytes that are not UTF-8", "a\xff\xc3", "\"a\\xff\\xc3\""},
		{"an overlong slash", "\xc0\xaf", "\"\\xc0\\xaf\""},
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		owned(mem) char *expected = mem_printf("m v=%s end=1\n", rows[i].written);
		in_place(buf) struct buf out = {0};
		struct capture c;

		capture_begin(&c);
		log_event(LOG_INFO, "m", LS("v", rows[i].value), LI("end", 1));
		capture_end(&c, &out);
		if (strcmp(after_msg(&out), expected) != 0)
			fail_msg("%s: %s", rows[i].name, after_msg(&out));
	}
}

static void
the_message_is_escaped_like_a_value(void **state)
{
	in_place(buf) struct buf out = {0};
	struct capture c;

	(void)state;
	capture_begin(&c);
	log_event(LOG_ERROR, "a\nb", LI("n", INT64_MIN));
	capture_end(&c, &out);
	assert_string_equal(after_msg(&out), "\"a\\nb\" n=-9223372036854775808\n");
}

static void
levels_below_the_least_are_silent(void **state)
{
	in_place(buf) struct buf out = {0};
	struct capture c;

	(void)state;
	log_init("p", LOG_WARN);
	capture_begin(&c);
	log_write(LOG_DEBUG, "no", NULL);
	log_write(LOG_INFO, "no", NULL);
	log_write(LOG_WARN, "yes", NULL);
	capture_end(&c, &out);
	log_init("p", LOG_DEBUG);
	assert_string_equal(after_msg(&out), "yes\n");
}

static void
a_long_value_is_cut_and_what_does_not_fit_is_left_out_whole(void **state)
{
	char value[20000];
	in_place(buf) struct buf out = {0};
	struct capture c;
	const char *text;

	(void)state;
	memset(value, '\n', sizeof(value) - 1);
	value[sizeof(value) - 1] = '\0';
	capture_begin(&c);
	log_event(LOG_INFO, "m", LS("a", value), LS("b", value), LI("c", 7));
	capture_end(&c, &out);
	text = after_msg(&out);
	assert_true(out.len <= 4096);
	assert_non_null(strstr(text, "m a=\"\\n\\n"));
	assert_non_null(strstr(text, "\\n...\" c=7 cut=true\n"));
	assert_null(strstr(text, " b="));
}

#define THREADS 4
#define LINES 200

static void *
log_lines(void *arg)
{
	for (int i = 0; i < LINES; i++)
		log_event(LOG_INFO, "line", LI("thread", *(int *)arg), LI("number", i),
		          LS("tail", "some text to make it longer"));
	return NULL;
}

struct reader {
	int fd;
	struct buf out;
};

static void *
read_lines(void *arg)
{
	struct reader *r = arg;
	char chunk[4096];
	ssize_t got;

	while ((got = read(r->fd, chunk, sizeof(chunk))) > 0)
		buf_add(&r->out, chunk, (size_t)got);
	return NULL;
}

static void
lines_of_several_threads_never_mix(void **state)
{
	pthread_t threads[THREADS], reader_thread;
	int numbers[THREADS], lines = 0;
	struct reader r = {.out = {.max = 4u << 20}};
	struct capture c;

	(void)state;
	capture_begin(&c);
	r.fd = c.read_fd;
	assert_int_equal(pthread_create(&reader_thread, NULL, read_lines, &r), 0);
	for (int i = 0; i < THREADS; i++) {
		numbers[i] = i;
		assert_int_equal(pthread_create(&threads[i], NULL, log_lines, &numbers[i]), 0);
	}
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	dup2(c.saved, STDERR_FILENO); /* closes the last write end, which ends the reader */
	close(c.saved);
	pthread_join(reader_thread, NULL);
	close(c.read_fd);

	for (char *line = r.out.data, *end; (end = strchr(line, '\n')); line = end + 1, lines++) {
		*end = '\0';
		assert_memory_equal(line, "ts=20", 5);
		assert_non_null(strstr(line, " msg=line thread="));
		assert_ptr_equal(strstr(line, " tail=\"some text to make it longer\""), end - 35);
	}
	buf_fini(&r.out);
	assert_int_equal(lines, THREADS * LINES);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_line_has_time_level_program_message_and_fields),
		cmocka_unit_test(no_fields_are_allowed),
		cmocka_unit_test(values_are_quoted_where_needed_and_cannot_forge),
		cmocka_unit_test(the_message_is_escaped_like_a_value),
		cmocka_unit_test(levels_below_the_least_are_silent),
		cmocka_unit_test(a_long_value_is_cut_and_what_does_not_fit_is_left_out_whole),
		cmocka_unit_test(lines_of_several_threads_never_mix),
	};

	return cmocka_run_group_tests_name("log", tests, NULL, NULL);
}
