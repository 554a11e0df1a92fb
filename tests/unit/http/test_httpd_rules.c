/* tests/unit/http/test_httpd_rules.c - what the HTTP server decides without a socket, and compressed replies with one. */
#include "tests/support/http/httpd_world.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/base/gz.h"
#include "common/http/httpd_rules.h"

static void
gzip_is_sent_to_those_who_take_it(void **state)
{
	static const struct {
		const char *header;
		bool takes;
	} rows[] = {
		{NULL, false},
		{"", false},
		{"gzip", true},
		{"GZIP", true},
		{"deflate", false},
		{"deflate, gzip;q=0.5", true},
		{"gzip;q=0", false},
		{"gzip; q=0.000", false},
		{"*", true},
		{"identity, gzip", true},
		{"xgzip", false},
		{"gzipx", false},
		{"br ,, gzip", true},
		{"*;q=0", false},
		{"gzip;q=0.1", true},
		{",,,", false},
		{"gzip;q=0, *", false},
		{"*, gzip;q=0", false},
		{"*;q=0, gzip", true},
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(rows); i++)
		if (http_takes_gzip(rows[i].header) != rows[i].takes)
			fail_msg("Accept-Encoding: %s", rows[i].header);
}

static void
a_clients_request_id_is_kept_when_it_can_harm_nobody(void **state)
{
	static const char a64[] = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
	static const struct {
		const char *id;
		bool kept;
	} rows[] = {
		{"req-7.A_z", true}, {"7", true},         {a64, true},      {NULL, false},
		{"", false},         {"a b", false},      {"a\"b", false},  {"a\\b", false},
		{"a=b", false},      {"\xc3\xa4", false}, {"a\x7f", false}, {"../x", false},
		{"0-._9", true},     {"a,b", false},      {"a\tb", false},  {"<script>", false},
	};
	struct world *w = *state;
	struct answer a = answer_empty();
	char request[512], line[128], long_id[HTTP_ID_MAX + 2];

	memset(long_id, 'a', sizeof(long_id) - 1);
	long_id[sizeof(long_id) - 1] = '\0';
	assert_false(http_id_sound(long_id));
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		if (http_id_sound(rows[i].id) != rows[i].kept)
			fail_msg("%s", rows[i].id);
		if (!rows[i].id)
			continue;
		snprintf(request, sizeof(request), "GET /nowhere HTTP/1.1\r\n" HOST "X-Request-Id: %s\r\n\r\n",
		         rows[i].id);
		snprintf(line, sizeof(line), "X-Request-Id: %s\r\n", rows[i].id);
		ask(w, request, &a);
		/* a control character in a value is refused as such */
		assert_int_equal(a.status, strchr(rows[i].id, 0x7f) ? 400 : 404);
		assert_int_equal(strstr(a.head, line) != NULL, rows[i].kept);
		assert_non_null(strstr(a.head, "X-Request-Id: "));
		if (rows[i].kept)
			assert_non_null(strstr(buf_text(&a.body), rows[i].id));
	}
	answer_fini(&a);
}

/* Feeds a head as libmicrohttpd leaves it behind: NULs where lines, names and values end. */
static const char *
fault_of(const char *head, size_t n, const char *version, const char *const *pairs)
{
	struct http_lines l;

	http_lines_begin(&l, head, 0, 0, version, n);
	for (; *pairs; pairs += 2)
		http_lines_header(&l, pairs[0], pairs[1]);
	http_lines_end(&l);
	return l.fault;
}

static void
line_ends_are_told_by_the_distances_of_the_texts(void **state)
{
	static const char crlf[] = "GET\0/\0HTTP/1.1\0\0Host\0 t\0\0A\0 b\0\0\0\0";
	static const char last_lf[] = "GET\0/\0HTTP/1.1\0\0Host\0 t\0\0\0";
	static const char first_lf[] = "GET\0/\0HTTP/1.1\0Host\0 t\0\0\0\0";
	static const char folded[] = "GET\0/\0HTTP/1.1\0\0Host\0 t\0\0 more\0\0A\0 b\0\0\0\0";
	static const char bare[] = "GET\0/\0HTTP/1.1\0\0\0\0";

	(void)state;
	assert_null(fault_of(crlf, sizeof(crlf) - 1, crlf + 6,
	                     (const char *const[]){crlf + 16, crlf + 22, crlf + 25, crlf + 28, NULL}));
	assert_null(fault_of(bare, sizeof(bare) - 1, bare + 6, (const char *const[]){NULL}));
	assert_non_null(strstr(fault_of(last_lf, sizeof(last_lf) - 1, last_lf + 6,
	                                (const char *const[]){last_lf + 16, last_lf + 22, NULL}),
	                       "carriage return"));
	assert_non_null(strstr(fault_of(first_lf, sizeof(first_lf) - 1, first_lf + 6,
	                                (const char *const[]){first_lf + 15, first_lf + 21, NULL}),
	                       "carriage return"));
	assert_non_null(
		strstr(fault_of(folded, sizeof(folded) - 1, folded + 6,
	                        (const char *const[]){folded + 16, folded + 22, folded + 32, folded + 35, NULL}),
	               "folded"));
	/* a name that is nowhere in the head */
	assert_non_null(
		strstr(fault_of(crlf, sizeof(crlf) - 1, crlf + 6, (const char *const[]){"Host", "t", NULL}), "folded"));
	/* the request line: a target that ends before its space, or begins late */
	{
		struct http_lines l;
		const uintptr_t at = (uintptr_t)crlf;

		http_lines_begin(&l, crlf, at + 4, 1, crlf + 6, sizeof(crlf) - 1);
		assert_null(l.fault);
		http_lines_begin(&l, crlf, at + 4, 0, crlf + 6, sizeof(crlf) - 1);
		assert_non_null(strstr(l.fault, "request line"));
		http_lines_begin(&l, crlf, at + 5, 0, crlf + 6, sizeof(crlf) - 1);
		assert_non_null(strstr(l.fault, "request line"));
	}
	/* a version that is not in the head: another libmicrohttpd, nothing is said of its lines */
	assert_null(fault_of(crlf, 10, crlf + 6, (const char *const[]){"Host", "t", NULL}));
}

/* ---- compressed replies ---- */

static void
expand(const struct answer *a, struct buf *out)
{
	struct err err = {0};

	buf_init(out, 16u << 20);
	if (!gz_expand(a->body.data, a->body.len, out, &err))
		fail_msg("%s", err.text);
}

static void
a_worker_compresses_what_is_worth_it_for_who_takes_it(void **state)
{
#define TAKES "Accept-Encoding: gzip\r\n\r\n"
	static const struct {
		const char *name, *request;
		bool gzip, vary;
	} cases[] = {
		{"a text that is long enough", "GET /text HTTP/1.1\r\n" HOST TAKES, true, true},
		{"a large one", "GET /text?n=20000 HTTP/1.1\r\n" HOST TAKES, true, true},
		{"nobody asked for it", "GET /text HTTP/1.1\r\n" HOST "\r\n", false, true},
		{"refused", "GET /text HTTP/1.1\r\n" HOST "Accept-Encoding: gzip;q=0\r\n\r\n", false, true},
		{"too short to pay", "GET /text?n=3 HTTP/1.1\r\n" HOST TAKES, false, false},
		{"not a text", "GET /text?type HTTP/1.1\r\n" HOST TAKES, false, false},
		{"in the server's own thread", "GET /text-inline HTTP/1.1\r\n" HOST TAKES, false, false},
		{"a shared body", "GET /shared HTTP/1.1\r\n" HOST TAKES, false, false},
		{"a problem", "GET /problem HTTP/1.1\r\n" HOST TAKES, false, false},
	};
	struct answer plain = answer_empty(), a = answer_empty();

	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		ask(*state, cases[i].request, &a);
		if ((strstr(a.head, "Content-Encoding: gzip\r\n") != NULL) != cases[i].gzip ||
		    (strstr(a.head, "Vary: Accept-Encoding\r\n") != NULL) != cases[i].vary)
			fail_msg("%s:\n%s", cases[i].name, a.head);
	}
	ask(*state, "GET /text?n=20000 HTTP/1.1\r\n" HOST "\r\n", &plain);
	ask(*state, "GET /text?n=20000 HTTP/1.1\r\n" HOST TAKES, &a);
	{
		in_place(buf) struct buf text;

		expand(&a, &text);
		assert_true(a.body.len * 4 < plain.body.len);
		assert_int_equal(text.len, plain.body.len);
		assert_memory_equal(text.data, plain.body.data, text.len);
	}
	/* HEAD announces what GET would send */
	ask(*state, "HEAD /text HTTP/1.1\r\n" HOST TAKES, &a);
	expect_header(&a, "Content-Encoding: gzip\r\n");
	answer_fini(&plain);
	answer_fini(&a);
}

static void
the_tag_of_compressed_bytes_is_weak_and_both_forms_are_known_by_it(void **state)
{
	struct answer a = answer_empty();

	ask(*state, "GET /text HTTP/1.1\r\n" HOST "\r\n", &a);
	expect_header(&a, "ETag: \"t1\"\r\n");
	ask(*state, "GET /text HTTP/1.1\r\n" HOST TAKES, &a);
	expect_header(&a, "ETag: W/\"t1\"\r\n");
	ask(*state, "GET /text HTTP/1.1\r\n" HOST "If-None-Match: W/\"t1\"\r\n" TAKES, &a);
	assert_int_equal(a.status, 304);
	expect_header(&a, "ETag: W/\"t1\"\r\n");
	expect_header(&a, "Vary: Accept-Encoding\r\n");
	assert_null(strstr(a.head, "Content-Encoding"));
	ask(*state, "GET /text HTTP/1.1\r\n" HOST "If-None-Match: W/\"t1\"\r\n\r\n", &a);
	assert_int_equal(a.status, 304);
	expect_header(&a, "ETag: \"t1\"\r\n");
	ask(*state, "GET /text HTTP/1.1\r\n" HOST "If-None-Match: \"t0\"\r\n" TAKES, &a);
	assert_int_equal(a.status, 200);
	expect_header(&a, "Content-Encoding: gzip\r\n");
	answer_fini(&a);
}

static void
what_does_not_shrink_or_is_too_large_is_sent_as_it_is(void **state)
{
	struct http_request rq = {.method = "GET", .path = "/", .id = "x"};
	struct http_reply rp;
	uint32_t noise = 1;

	(void)state;
	http_reply_init(&rp);
	rp.content_type = "text/plain";
	for (int i = 0; i < 5000; i++) {
		noise = noise * 1664525u + 1013904223u;
		buf_char(&rp.body, (char)(noise >> 24));
	}
	http_reply_pack(&rp, &rq, "gzip", NULL);
	assert_null(rp.content_encoding);
	assert_int_equal(rp.body.len, 5000);
	while (rp.body.len <= HTTP_GZIP_MAX)
		buf_str(&rp.body,
		        "all work and no play makes a server dull, and this line long enough to be done soon\n");
	http_reply_pack(&rp, &rq, "gzip", NULL);
	assert_null(rp.content_encoding);
	http_reply_fini(&rp);
}

static void
an_inline_handler_can_leave_a_request_to_a_worker(void **state)
{
	struct world *w = *state;
	struct answer a = answer_empty();
	int fd = dial(w->port);

	for (int i = 0; i < 3; i++) {
		tell(fd, "GET /either HTTP/1.1\r\n" HOST "\r\n");
		hear(fd, &a, false);
		assert_string_equal(buf_text(&a.body), "inline ");
		tell(fd, "POST /either?wait HTTP/1.1\r\n" HOST "Content-Length: 4\r\n\r\nbody");
		hear(fd, &a, false);
		/* with its body, which was still there */
		assert_string_equal(buf_text(&a.body), "worker body");
	}
	close(fd);
	answer_fini(&a);
}

#define IN_WORLD(f) cmocka_unit_test_setup_teardown(f, world_setup, world_teardown)

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(gzip_is_sent_to_those_who_take_it),
		IN_WORLD(a_clients_request_id_is_kept_when_it_can_harm_nobody),
		cmocka_unit_test(line_ends_are_told_by_the_distances_of_the_texts),
		IN_WORLD(a_worker_compresses_what_is_worth_it_for_who_takes_it),
		IN_WORLD(the_tag_of_compressed_bytes_is_weak_and_both_forms_are_known_by_it),
		cmocka_unit_test(what_does_not_shrink_or_is_too_large_is_sent_as_it_is),
		IN_WORLD(an_inline_handler_can_leave_a_request_to_a_worker),
	};

	return cmocka_run_group_tests_name("httpd_rules", tests, NULL, NULL);
}
