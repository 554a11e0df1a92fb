/* tsan */
/* tests/unit/http/test_httpd.c - the HTTP server, one request at a time: what it routes, answers and refuses. */
#include "tests/support/http/httpd_world.h"

#include <stdio.h>
#include <dirent.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/gz.h"

/* ---- routes ---- */

static void
requests_go_to_the_route_of_their_path_and_method(void **state)
{
	static const struct {
		const char *name, *request;
		int status;
		const char *text; /* in the body */
	} cases[] = {
		{"an exact inline route", "GET /inline HTTP/1.1\r\n" HOST "\r\n", 200, "hello inline"},
		{"an exact route of the workers", "GET /worker HTTP/1.1\r\n" HOST "\r\n", 200, "hello from a worker"},
		{"the root is a path like others", "GET / HTTP/1.1\r\n" HOST "\r\n", 200, "hello inline"},
		{"a query does not change the path", "GET /inline?x=/y HTTP/1.1\r\n" HOST "\r\n", 200, "hello inline"},
		{"a prefix gives its tail", "GET /values/2026-11.csv HTTP/1.1\r\n" HOST "\r\n", 200,
	         "tail=2026-11.csv"},
		{"the longer prefix wins", "GET /values/deep/er HTTP/1.1\r\n" HOST "\r\n", 200, "hello inline"},
		{"the exact path wins over the prefix", "GET /values HTTP/1.1\r\n" HOST "\r\n", 200, "tail="},
		{"headers and query reach a worker", "GET /values?q=a%20b&q=2 HTTP/1.1\r\n" HOST "x-thing: T\r\n\r\n",
	         200, "header=T query=a b"},
		{"a query name without value is there, and empty", "GET /values?q HTTP/1.1\r\n" HOST "\r\n", 200,
	         "query= tail"},
		{"absent header and query are absent", "GET /values HTTP/1.1\r\n" HOST "\r\n", 200,
	         "header=none query=none"},
		{"the root covers nothing else", "GET /nowhere HTTP/1.1\r\n" HOST "\r\n", 404, "/nowhere"},
		{"an exact path is not a prefix", "GET /inline/x HTTP/1.1\r\n" HOST "\r\n", 404, "/inline/x"},
		{"a method that the path does not take", "POST /thing HTTP/1.1\r\n" HOST "Content-Length: 0\r\n\r\n",
	         405, "POST"},
		{"methods are case-sensitive", "get /inline HTTP/1.1\r\n" HOST "\r\n", 405, "get"},
		{"HTTP/1.0 works", "GET /inline HTTP/1.0\r\n\r\n", 200, "hello inline"},
		{"the guard is asked first", "GET /worker HTTP/1.1\r\n" HOST "X-Stranger: 1\r\n\r\n", 401,
	         "who are you"},
		{"the guard is asked for inline routes too", "GET /inline HTTP/1.1\r\n" HOST "X-Stranger: 1\r\n\r\n",
	         401, "who are you"},
	};
	struct answer a = answer_empty();

	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		ask(*state, cases[i].request, &a);
		if (a.status != cases[i].status || !strstr(buf_text(&a.body), cases[i].text))
			fail_msg("%s: %d\n%s", cases[i].name, a.status, buf_text(&a.body));
	}
	answer_fini(&a);
}

static void
a_wrong_method_is_told_the_right_ones(void **state)
{
	struct answer a = answer_empty();

	ask(*state, "POST /thing HTTP/1.1\r\n" HOST "Content-Length: 0\r\n\r\n", &a);
	expect_header(&a, "Allow: PUT, GET, HEAD, DELETE\r\n");
	answer_fini(&a);
}

static void
head_is_get_without_the_body(void **state)
{
	struct world *w = *state;
	struct answer get = answer_empty(), head = answer_empty();
	int fd = dial(w->port);

	tell(fd, "HEAD /worker HTTP/1.1\r\n" HOST "\r\n");
	hear(fd, &head, true);
	/* the next reply begins where the head ended: there was no body */
	tell(fd, "GET /worker HTTP/1.1\r\n" HOST "\r\n");
	hear(fd, &get, false);
	assert_int_equal(head.status, 200);
	assert_int_equal(get.status, 200);
	expect_header(&head, "Content-Length: 20\r\n");
	assert_int_equal(get.body.len, 20);
	close(fd);
	answer_fini(&get);
	answer_fini(&head);
}

static void
every_reply_has_its_own_request_id(void **state)
{
	struct world *w = *state;
	struct answer a = answer_empty();
	char first[17] = "";
	int fd = dial(w->port);

	for (int i = 0; i < 2; i++) {
		const char *id;

		tell(fd, "GET /nowhere HTTP/1.1\r\n" HOST "\r\n");
		hear(fd, &a, false);
		id = strstr(a.head, "X-Request-Id: ");
		assert_non_null(id);
		id += strlen("X-Request-Id: ");
		assert_memory_not_equal(first, id, 16);
		memcpy(first, id, 16);
		assert_non_null(strstr(buf_text(&a.body), first));
	}
	close(fd);
	answer_fini(&a);
}

/* ---- replies ---- */

static void
a_problem_names_status_detail_field_and_id_and_nothing_of_the_answer_begun(void **state)
{
	static const char begin[] = "{\"type\":\"about:blank\",\"title\":\"Conflict\",\"status\":409,\"detail\":"
				    "\"sequence 7 is \\\"early\\\"\\n\",\"field\":\"seq\",\"request_id\":\"";
	static const char end[] = "\",\"expected_seq\":-5}\n";
	struct answer a = answer_empty();

	ask(*state, "GET /problem HTTP/1.1\r\n" HOST "\r\n", &a);
	assert_int_equal(a.status, 409);
	expect_header(&a, "Content-Type: application/problem+json\r\n");
	assert_int_equal(a.body.len, sizeof(begin) - 1 + 16 + sizeof(end) - 1);
	assert_memory_equal(a.body.data, begin, sizeof(begin) - 1);
	assert_memory_equal(a.body.data + sizeof(begin) - 1 + 16, end, sizeof(end) - 1);
	answer_fini(&a);
}

static void
a_reply_above_its_ceiling_is_a_500_and_not_half_a_document(void **state)
{
	struct answer a = answer_empty();

	ask(*state, "GET /over HTTP/1.1\r\n" HOST "\r\n", &a);
	assert_int_equal(a.status, 500);
	assert_non_null(strstr(buf_text(&a.body), "larger than the limit of 1000 bytes"));
	answer_fini(&a);
}

static void
a_known_entity_tag_is_answered_304(void **state)
{
	static const struct {
		const char *name, *request;
		int status;
	} cases[] = {
		{"the tag itself", "GET /shared HTTP/1.1\r\n" HOST "If-None-Match: \"v1\"\r\n\r\n", 304},
		{"weak, in a list", "GET /shared HTTP/1.1\r\n" HOST "If-None-Match: \"v0\", W/\"v1\"\r\n\r\n", 304},
		{"any", "GET /shared HTTP/1.1\r\n" HOST "If-None-Match: *\r\n\r\n", 304},
		{"for HEAD too", "HEAD /shared HTTP/1.1\r\n" HOST "If-None-Match: \"v1\"\r\n\r\n", 304},
		{"another tag", "GET /shared HTTP/1.1\r\n" HOST "If-None-Match: \"v10\"\r\n\r\n", 200},
		{"not a tag", "GET /shared HTTP/1.1\r\n" HOST "If-None-Match: v1\r\n\r\n", 200},
		{"no tag where none is given", "GET /inline HTTP/1.1\r\n" HOST "If-None-Match: *\r\n\r\n", 200},
		{"a problem is not the document", "GET /shared?fail HTTP/1.1\r\n" HOST "If-None-Match: *\r\n\r\n", 409},
	};
	struct answer a = answer_empty();

	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		ask(*state, cases[i].request, &a);
		if (a.status != cases[i].status)
			fail_msg("%s: %d", cases[i].name, a.status);
		if (a.status == 304)
			expect_header(&a, "ETag: \"v1\"\r\n");
	}
	answer_fini(&a);
}

static void
a_file_name_cannot_leave_its_quotes(void **state)
{
	struct answer a = answer_empty();

	ask(*state, "GET /files/2026-11.csv HTTP/1.1\r\n" HOST "\r\n", &a);
	expect_header(&a, "Content-Disposition: attachment; filename=\"2026-11.csv\"\r\n");
	ask(*state, "GET /files/a%22;b%5Cc/%C3%A4 HTTP/1.1\r\n" HOST "\r\n", &a);
	expect_header(&a, "Content-Disposition: attachment; filename=\"a__b_c___\"\r\n");
	ask(*state, "GET /files/a%0D%0Ac HTTP/1.1\r\n" HOST "\r\n", &a);
	assert_int_equal(a.status, 404);
	answer_fini(&a);
}

static void
a_shared_body_is_released_exactly_once(void **state)
{
	struct world *w = *state;
	struct answer a = answer_empty();
	char some[1000];
	int fd;

	ask(w, "GET /shared HTTP/1.1\r\n" HOST "\r\n", &a);
	assert_int_equal(a.body.len, WORLD_SHARED_BYTES);
	assert_memory_equal(a.body.data, w->shared, WORLD_SHARED_BYTES);
	await_count(&w->released, 1);
	ask(w, "HEAD /shared HTTP/1.1\r\n" HOST "\r\n", &a);
	await_count(&w->released, 2);
	ask(w, "GET /shared HTTP/1.1\r\n" HOST "If-None-Match: \"v1\"\r\n\r\n", &a);
	await_count(&w->released, 3);
	ask(w, "GET /shared?fail HTTP/1.1\r\n" HOST "\r\n", &a);
	await_count(&w->released, 4);
	/* the client goes away in the middle */
	fd = dial(w->port);
	tell(fd, "GET /shared HTTP/1.1\r\n" HOST "\r\n");
	assert_true(recv(fd, some, sizeof(some), 0) > 0);
	close(fd);
	await_count(&w->released, 5);
	await_count(&w->done, 5);
	answer_fini(&a);
	/* a second release would show at the latest when nothing is left to release */
	httpd_stop(w->h);
	w->h = NULL;
	assert_int_equal(atomic_load(&w->released), 5);
}

static int
open_descriptors(void)
{
	DIR *dir = opendir("/proc/self/fd");
	int n = 0;

	assert_non_null(dir);
	while (readdir(dir))
		n++;
	closedir(dir);
	return n;
}

static void
a_body_in_a_file_is_sent_whole_and_its_descriptor_closed(void **state)
{
	struct world *w = *state;
	struct answer a = answer_empty();
	char some[1000];
	int fd, before;

	ask(w, "GET /document HTTP/1.1\r\n" HOST "\r\n", &a);
	before = open_descriptors();
	for (int i = 0; i < 5; i++) {
		ask(w, "GET /document HTTP/1.1\r\n" HOST "Accept-Encoding: gzip\r\n\r\n", &a);
		assert_int_equal(a.status, 200);
		assert_int_equal(a.body.len, WORLD_SHARED_BYTES);
		assert_memory_equal(a.body.data, w->shared, WORLD_SHARED_BYTES);
		ask(w, "HEAD /document HTTP/1.1\r\n" HOST "\r\n", &a);
		expect_header(&a, "Content-Length: 4194304\r\n");
		ask(w, "GET /document?fail HTTP/1.1\r\n" HOST "\r\n", &a);
		assert_int_equal(a.status, 409);
		/* the client goes away in the middle */
		fd = dial(w->port);
		tell(fd, "GET /document HTTP/1.1\r\n" HOST "\r\n");
		assert_true(recv(fd, some, sizeof(some), 0) > 0);
		close(fd);
	}
	await_count(&w->done, 21);
	httpd_stop(w->h);
	w->h = NULL;
	assert_true(open_descriptors() < before + 5);
	answer_fini(&a);
}

/* ---- bodies ---- */

static void
post(struct world *w, const char *path, const char *headers, const void *body, size_t n, struct answer *a)
{
	char head[512];
	int fd = dial(w->port);

	snprintf(head, sizeof(head), "POST %s HTTP/1.1\r\n" HOST "%sContent-Length: %zu\r\n\r\n", path, headers, n);
	tell(fd, head);
	assert_true(try_say(fd, body, n));
	hear(fd, a, false);
	close(fd);
}

static void
a_body_is_taken_up_to_the_routes_limit(void **state)
{
	static const char *const paths[] = {"/echo", "/echo-inline"};
	struct world *w = *state;
	struct answer a = answer_empty();
	char body[WORLD_BODY_MAX + 1];

	memset(body, 'b', sizeof(body));
	for (size_t i = 0; i < ARRAY_LEN(paths); i++) {
		post(w, paths[i], "", body, WORLD_BODY_MAX, &a);
		assert_int_equal(a.status, 200);
		assert_int_equal(a.body.len, WORLD_BODY_MAX);
		post(w, paths[i], "", body, WORLD_BODY_MAX + 1, &a);
		assert_int_equal(a.status, 413);
		assert_non_null(strstr(buf_text(&a.body), "limit of 1000 bytes"));
		post(w, paths[i], "", body, 0, &a);
		assert_int_equal(a.status, 200);
		assert_int_equal(a.body.len, 0);
	}
	answer_fini(&a);
}

/* libmicrohttpd shows nobody the lines between chunks, and takes there what a proxy may read otherwise. */
static void
a_chunked_body_is_refused_whatever_its_lines_and_the_connection_ends(void **state)
{
	static const char *const bodies[] = {
		"5\r\nhello\r\n0\r\n\r\n",
		"5\nhello\r\n0\r\n\r\n",
		"5;x=\ny\r\nhello\r\n0\r\n\r\n",
		"xyz\r\n\r\n",
		"0\r\n\r\n",
	};
	struct world *w = *state;
	struct answer a = answer_empty();

	for (size_t i = 0; i < ARRAY_LEN(bodies); i++) {
		int fd = dial(w->port);
		char rest[4096] = "";

		tell(fd, "POST /echo HTTP/1.1\r\n" HOST "Transfer-Encoding: chunked\r\n\r\n");
		tell(fd, bodies[i]);
		(void)try_say(fd, "GET /inline HTTP/1.1\r\n" HOST "\r\n",
		              strlen("GET /inline HTTP/1.1\r\n" HOST "\r\n"));
		hear(fd, &a, false);
		assert_int_equal(a.status, 411);
		assert_non_null(strstr(buf_text(&a.body), "Content-Length"));
		while (recv(fd, rest, sizeof(rest) - 1, 0) > 0)
			assert_null(strstr(rest, " 200 "));
		close(fd);
	}
	answer_fini(&a);
}

static void
a_path_that_is_no_text_is_nowhere_and_a_query_that_is_none_is_refused(void **state)
{
	static const struct {
		const char *target;
		int status;
	} rows[] = {
		{"/files/%ff.csv", 404},       {"/files/%c0%80", 404},     {"/files/a%0ab", 404},
		{"/files/%e2%80%ae.csv", 404}, {"/files/%ed%a0%80", 404},  {"/files/%c3%a4.csv", 200},
		{"/values?q=%ff", 400},        {"/values?q=a&%ff=b", 400}, {"/values?q=%e2%80%ae", 400},
		{"/values?q=a%0ab", 400},      {"/values?q=%c3%a4", 200},  {"/values?other=%c2%85", 400},
		{"/values?q=%D8%9C", 400},     {"/nowhere?q=%ff", 404},    {"/values?%e2%81%a6", 400},
	};
	struct answer a = answer_empty();
	char request[256];

	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		snprintf(request, sizeof(request), "GET %s HTTP/1.1\r\n" HOST "\r\n", rows[i].target);
		ask(*state, request, &a);
		if (a.status != rows[i].status)
			fail_msg("%s: %d\n%s", rows[i].target, a.status, buf_text(&a.body));
		/* what was refused is not repeated */
		if (a.status != 200)
			for (size_t k = 0; k < a.body.len; k++)
				assert_true((unsigned char)a.body.data[k] < 0x80);
	}
	answer_fini(&a);
}

/* Also on refusals, and on what has no body. */
static void
every_reply_says_what_browsers_and_proxies_may_do_with_it(void **state)
{
	static const char *const requests[] = {
		"GET /inline HTTP/1.1\r\n" HOST "\r\n",
		"GET /worker HTTP/1.1\r\n" HOST "\r\n",
		"HEAD /worker HTTP/1.1\r\n" HOST "\r\n",
		"GET /nowhere HTTP/1.1\r\n" HOST "\r\n",
		"DELETE /inline HTTP/1.1\r\n" HOST "\r\n",
		"GET /problem HTTP/1.1\r\n" HOST "\r\n",
		"GET /inline HTTP/1.1\r\n" HOST HOST "\r\n",
		"POST /echo HTTP/1.1\r\n" HOST "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
		"POST /echo HTTP/1.1\r\n" HOST "Content-Encoding: br\r\n\r\n",
		"POST /echo HTTP/1.1\r\n" HOST "Content-Length: 10000000000\r\n\r\n",
	};
	struct answer a = answer_empty();

	for (size_t i = 0; i < ARRAY_LEN(requests); i++) {
		ask(*state, requests[i], &a);
		expect_header(&a, "X-Content-Type-Options: nosniff\r\n");
		expect_header(&a, "Content-Security-Policy: default-src 'none'; ");
		expect_header(&a, "Cache-Control: no-store\r\n");
	}
	/* with an entity tag the client may keep it, and asks each time */
	ask(*state, "GET /shared HTTP/1.1\r\n" HOST "If-None-Match: \"v1\"\r\n\r\n", &a);
	assert_int_equal(a.status, 304);
	expect_header(&a, "Cache-Control: private, no-cache\r\n");
	expect_header(&a, "X-Content-Type-Options: nosniff\r\n");
	answer_fini(&a);
}

static void
a_huge_announcement_is_refused_before_the_body_comes(void **state)
{
	static const char *const requests[] = {
		"POST /echo HTTP/1.1\r\n" HOST "Content-Length: 10000000000\r\n\r\n",
		"POST /nowhere HTTP/1.1\r\n" HOST "Content-Length: 10000000000\r\n\r\n",
		"POST /echo HTTP/1.1\r\n" HOST "Content-Length: 1001\r\nExpect: 100-continue\r\n\r\n",
	};
	struct world *w = *state;
	struct answer a = answer_empty();

	for (size_t i = 0; i < ARRAY_LEN(requests); i++) {
		int fd = dial(w->port);

		tell(fd, requests[i]);
		hear(fd, &a, false);
		assert_int_equal(a.status, i == 1 ? 404 : 413);
		expect_end(fd);
		close(fd);
	}
	answer_fini(&a);
}

static void
an_expected_body_is_asked_for(void **state)
{
	struct world *w = *state;
	struct answer a = answer_empty();
	char told[64] = "";
	int fd = dial(w->port);

	tell(fd, "POST /echo HTTP/1.1\r\n" HOST "Content-Length: 2\r\nExpect: 100-continue\r\n\r\n");
	assert_true(recv(fd, told, sizeof(told) - 1, 0) > 0);
	assert_non_null(strstr(told, " 100 "));
	tell(fd, "ok");
	hear(fd, &a, false);
	assert_string_equal(buf_text(&a.body), "ok");
	close(fd);
	answer_fini(&a);
}

static void
an_endless_body_ends_its_connection(void **state)
{
	struct world *w = *state;
	static char chunk[65536 + 9];
	bool going = true;
	int fd = dial(w->port);

	memset(chunk, 'e', sizeof(chunk));
	memcpy(chunk, "10000\r\n", 7);
	memcpy(chunk + sizeof(chunk) - 2, "\r\n", 2);
	tell(fd, "POST /echo HTTP/1.1\r\n" HOST "Transfer-Encoding: chunked\r\n\r\n");
	for (int i = 0; i < 1000 && going; i++)
		going = try_say(fd, chunk, sizeof(chunk));
	assert_false(going);
	close(fd);
	await_count(&w->done, 1);
}

static void
gzip_is_expanded_up_to_the_limit_and_other_encodings_are_refused(void **state)
{
	struct world *w = *state;
	struct answer a = answer_empty();
	in_place(buf) struct buf packed, bomb;
	static char zeros[WORLD_BODY_MAX + 1];
	struct err err = {0};

	buf_init(&packed, 4096);
	buf_init(&bomb, 4096);
	assert_true(gz_compress(zeros, WORLD_BODY_MAX, 6, &packed, &err));
	assert_true(gz_compress(zeros, WORLD_BODY_MAX + 1, 6, &bomb, &err));
	for (int i = 0; i < 2; i++) {
		const char *path = i ? "/echo-inline" : "/echo";

		post(w, path, "Content-Encoding: GZip\r\n", packed.data, packed.len, &a);
		assert_int_equal(a.status, 200);
		assert_int_equal(a.body.len, WORLD_BODY_MAX);
		assert_memory_equal(a.body.data, zeros, WORLD_BODY_MAX);
		post(w, path, "Content-Encoding: gzip\r\n", bomb.data, bomb.len, &a);
		assert_int_equal(a.status, 413);
		assert_non_null(strstr(buf_text(&a.body), "after gzip"));
		post(w, path, "Content-Encoding: gzip\r\n", packed.data, packed.len - 1, &a);
		assert_int_equal(a.status, 400);
		post(w, path, "Content-Encoding: gzip\r\n", "", 0, &a);
		assert_int_equal(a.status, 400);
		post(w, path, "Content-Encoding: gzip, gzip\r\n", packed.data, packed.len, &a);
		assert_int_equal(a.status, 415);
		expect_header(&a, "Accept-Encoding: gzip\r\n");
		post(w, path, "Content-Encoding: br\r\n", "x", 1, &a);
		assert_int_equal(a.status, 415);
		post(w, path, "Content-Encoding: identity\r\n", "x", 1, &a);
		assert_int_equal(a.status, 200);
		/* nobody unknown makes the server expand anything: the damaged stream is not even looked at */
		post(w, path, "Content-Encoding: gzip\r\nX-Stranger: 1\r\n", "x", 1, &a);
		assert_int_equal(a.status, 401);
		expect_header(&a, "WWW-Authenticate: Bearer\r\n");
	}
	answer_fini(&a);
}

static void
all_bodies_together_have_a_limit(void **state)
{
	struct world *w = mem_alloc(sizeof(*w));
	struct answer a = answer_empty();
	struct httpd_options o;
	char half[WORLD_BODY_MAX];
	int slow, fd;

	(void)state;
	world_init(w);
	o = options_of(w);
	o.body_total_max = WORLD_BODY_MAX + WORLD_BODY_MAX / 2;
	world_start(w, &o);
	memset(half, 'h', sizeof(half));
	slow = dial(w->port);
	tell(slow, "POST /echo HTTP/1.1\r\n" HOST "Content-Length: 1000\r\nExpect: 100-continue\r\n\r\n");
	assert_true(recv(slow, a.head, sizeof(a.head), 0) > 0);
	assert_true(try_say(slow, half, 999));
	/* until the 999 have arrived this one fits, then it does not */
	do {
		post(w, "/echo", "", half, 600, &a);
		assert_true(a.status == 200 || a.status == 503);
	} while (a.status == 200);
	expect_header(&a, "Retry-After: 1\r\n");
	/* what is held comes free with its request */
	tell(slow, "h");
	hear(slow, &a, false);
	assert_int_equal(a.status, 200);
	close(slow);
	fd = dial(w->port);
	for (int i = 0; i < 20; i++) {
		tell(fd, "POST /echo HTTP/1.1\r\n" HOST "Content-Length: 1000\r\n\r\n");
		assert_true(try_say(fd, half, sizeof(half)));
		hear(fd, &a, false);
		assert_int_equal(a.status, 200);
	}
	close(fd);
	answer_fini(&a);
	world_fini(w);
	mem_free(w);
}

/* ---- framing ---- */

static void
a_request_that_two_readers_may_read_differently_is_refused_and_its_connection_ends(void **state)
{
	static const struct {
		const char *name, *request;
	} cases[] = {
		{"Content-Length and chunked",
	         "POST /echo HTTP/1.1\r\n" HOST "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"},
		{"chunked and Content-Length",
	         "POST /echo HTTP/1.1\r\n" HOST "Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\n"},
		{"two lengths that differ",
	         "POST /echo HTTP/1.1\r\n" HOST
	         "Content-Length: 0\r\nContent-Length: 37\r\n\r\nGET /inline HTTP/1.1\r\n" HOST "X: y\r\n\r\n"},
		{"two lengths, the same number written differently",
	         "POST /echo HTTP/1.1\r\n" HOST "Content-Length: 1\r\nContent-Length: 01\r\n\r\nx"},
		{"a length that is a list", "POST /echo HTTP/1.1\r\n" HOST "Content-Length: 1, 1\r\n\r\nx"},
		{"a signed length", "POST /echo HTTP/1.1\r\n" HOST "Content-Length: +1\r\n\r\nx"},
		{"a negative length", "POST /echo HTTP/1.1\r\n" HOST "Content-Length: -1\r\n\r\nx"},
		{"a length in hexadecimal", "POST /echo HTTP/1.1\r\n" HOST "Content-Length: 0x1\r\n\r\nx"},
		{"an unknown transfer coding",
	         "POST /echo HTTP/1.1\r\n" HOST "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n"},
		{"chunked twice", "POST /echo HTTP/1.1\r\n" HOST
	                          "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"},
		{"chunked in HTTP/1.0", "POST /echo HTTP/1.0\r\n" HOST "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n"},
		{"a space before the colon", "POST /echo HTTP/1.1\r\n" HOST "Content-Length : 5\r\n\r\nhello"},
		{"a tab before the colon",
	         "POST /echo HTTP/1.1\r\n" HOST "Transfer-Encoding\t: chunked\r\n\r\n0\r\n\r\n"},
		{"a first header that is folded", "GET /inline HTTP/1.1\r\n Host: t\r\nHost: t\r\n\r\n"},
		{"an encoded NUL in the path", "GET /inline%00/x HTTP/1.1\r\n" HOST "\r\n"},
		{"a control character in the path", "GET /inline\x01 HTTP/1.1\r\n" HOST "\r\n"},
		{"no Host", "GET /inline HTTP/1.1\r\n\r\n"},
		{"two Hosts", "GET /inline HTTP/1.1\r\n" HOST "Host: other\r\n\r\n"},
		{"two Hosts that are the same", "GET /inline HTTP/1.1\r\n" HOST HOST "\r\n"},
		{"two Authorizations",
	         "GET /inline HTTP/1.1\r\n" HOST "Authorization: Bearer a\r\nauthorization: Bearer b\r\n\r\n"},
		{"two encodings", "POST /echo HTTP/1.1\r\n" HOST
	                          "Content-Encoding: gzip\r\nContent-Encoding: identity\r\nContent-Length: 0\r\n\r\n"},
		{"two spaces in the request line", "GET  /inline HTTP/1.1\r\n" HOST "\r\n"},
		{"a bare CR in a value", "GET /inline HTTP/1.1\r\n" HOST "A: b\rc\r\n\r\n"},
		{"a bare CR before the version", "GET /inline\r HTTP/1.1\r\n" HOST "\r\n"},
		{"a bare CR behind the version", "GET /inline HTTP/1.1\rX: y\r\n" HOST "\r\n"},
		{"an escape character in a value", "GET /inline HTTP/1.1\r\n" HOST "A: b\x1b[2J\r\n\r\n"},
	};
	struct world *w = *state;
	struct answer a = answer_empty();

	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		int fd = dial(w->port);
		char rest[4096] = "";

		tell(fd, cases[i].request);
		hear(fd, &a, false);
		if (a.status != 400)
			fail_msg("%s: %d", cases[i].name, a.status);
		/* libmicrohttpd writes the head of some of its own refusals twice; what counts is that nothing is answered and
		 * the connection ends */
		while (recv(fd, rest, sizeof(rest) - 1, 0) > 0)
			if (strstr(rest, " 200 "))
				fail_msg("%s: the connection went on", cases[i].name);
		close(fd);
	}
	answer_fini(&a);
}

/* C strings end at a NUL, the request does not. */
static void
a_nul_anywhere_in_the_head_is_refused(void **state)
{
#define WITH_NUL(s)              \
	{                        \
		s, sizeof(s) - 1 \
	}
	static const struct {
		const char *bytes;
		size_t n;
	} heads[] = {
		WITH_NUL("GET /inline\0 HTTP/1.1\r\n" HOST "\r\n"),
		WITH_NUL("GET /inline\0.csv HTTP/1.1\r\n" HOST "\r\n"),
		WITH_NUL("GET\0 /inline HTTP/1.1\r\n" HOST "\r\n"),
		WITH_NUL("GET /inline HTTP/1.1\0\r\n" HOST "\r\n"),
		WITH_NUL("GET /inline HTTP/1.1\r\n" HOST "A: b\0c\r\n\r\n"),
		WITH_NUL("GET /inline HTTP/1.1\r\n" HOST "A\0: b\r\n\r\n"),
		WITH_NUL("GET /inline HTTP/1.1\r\n" HOST "A: b\r\n\0\r\n\r\n"),
	};
	struct world *w = *state;
	struct answer a = answer_empty();

	for (size_t i = 0; i < ARRAY_LEN(heads); i++) {
		int fd = dial(w->port);

		assert_true(try_say(fd, heads[i].bytes, heads[i].n));
		hear(fd, &a, false);
		if (a.status != 400)
			fail_msg("head %zu: %d", i, a.status);
		close(fd);
	}
	answer_fini(&a);
}

static void
equal_content_lengths_and_pipelined_requests_are_fine(void **state)
{
	struct world *w = *state;
	struct answer a = answer_empty();
	int fd = dial(w->port);

	tell(fd, "POST /echo HTTP/1.1\r\n" HOST "Content-Length: 3\r\nContent-Length: 3\r\n\r\none"
	         "POST /echo HTTP/1.1\r\n" HOST "Content-Length: 3\r\n\r\ntwo"
	         "GET /inline HTTP/1.1\r\n" HOST "\r\n");
	hear(fd, &a, false);
	assert_string_equal(buf_text(&a.body), "one");
	hear(fd, &a, false);
	assert_string_equal(buf_text(&a.body), "two");
	hear(fd, &a, false);
	assert_string_equal(buf_text(&a.body), "hello inline\n");
	close(fd);
	answer_fini(&a);
}

static void
headers_have_a_limit(void **state)
{
	struct world *w = *state;
	struct answer a = answer_empty();
	static char line[40000];
	int fd = dial(w->port);

	memset(line, 'l', sizeof(line));
	tell(fd, "GET /inline HTTP/1.1\r\n" HOST "X-Long: ");
	(void)try_say(fd, line, sizeof(line));
	hear(fd, &a, false);
	assert_true(a.status == 431 || a.status == 413);
	close(fd);
	answer_fini(&a);
}

#define IN_WORLD(f) cmocka_unit_test_setup_teardown(f, world_setup, world_teardown)

int
main(void)
{
	const struct CMUnitTest tests[] = {
		IN_WORLD(requests_go_to_the_route_of_their_path_and_method),
		IN_WORLD(a_wrong_method_is_told_the_right_ones),
		IN_WORLD(head_is_get_without_the_body),
		IN_WORLD(every_reply_has_its_own_request_id),
		IN_WORLD(a_problem_names_status_detail_field_and_id_and_nothing_of_the_answer_begun),
		IN_WORLD(a_reply_above_its_ceiling_is_a_500_and_not_half_a_document),
		IN_WORLD(a_known_entity_tag_is_answered_304),
		IN_WORLD(a_file_name_cannot_leave_its_quotes),
		IN_WORLD(a_shared_body_is_released_exactly_once),
		IN_WORLD(a_body_in_a_file_is_sent_whole_and_its_descriptor_closed),
		IN_WORLD(a_body_is_taken_up_to_the_routes_limit),
		IN_WORLD(a_chunked_body_is_refused_whatever_its_lines_and_the_connection_ends),
		IN_WORLD(a_path_that_is_no_text_is_nowhere_and_a_query_that_is_none_is_refused),
		IN_WORLD(every_reply_says_what_browsers_and_proxies_may_do_with_it),
		IN_WORLD(a_huge_announcement_is_refused_before_the_body_comes),
		IN_WORLD(an_expected_body_is_asked_for),
		IN_WORLD(an_endless_body_ends_its_connection),
		IN_WORLD(gzip_is_expanded_up_to_the_limit_and_other_encodings_are_refused),
		cmocka_unit_test(all_bodies_together_have_a_limit),
		IN_WORLD(a_request_that_two_readers_may_read_differently_is_refused_and_its_connection_ends),
		IN_WORLD(a_nul_anywhere_in_the_head_is_refused),
		IN_WORLD(equal_content_lengths_and_pipelined_requests_are_fine),
		IN_WORLD(headers_have_a_limit),
	};

	return cmocka_run_group_tests_name("httpd", tests, NULL, NULL);
}
