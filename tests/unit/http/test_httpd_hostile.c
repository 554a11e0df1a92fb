/* tsan */
/* tests/unit/http/test_httpd_hostile.c - clients that mean harm: line ends, sizes, bytes one at a time, and anything at all. */
#include "tests/support/http/httpd_world.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/time.h"

/* ---- line ends ---- */

static void
a_head_whose_lines_others_may_end_elsewhere_is_refused(void **state)
{
	static const struct {
		const char *name, *request;
		int status;
	} cases[] = {
		{"the request line ends in a bare LF", "GET /inline HTTP/1.1\nHost: t\r\n\r\n", 400},
		{"a header does", "GET /inline HTTP/1.1\r\nA: b\nHost: t\r\n\r\n", 400},
		{"a header does, padded with spaces", "GET /inline HTTP/1.1\r\nA:      b\nHost:    t\r\n\r\n", 400},
		{"the last header does", "GET /inline HTTP/1.1\r\nHost: t\n\r\n", 400},
		{"the empty line does", "GET /inline HTTP/1.1\r\nHost: t\r\n\n", 400},
		{"all do", "GET /inline HTTP/1.1\nHost: t\n\n", 400},
		{"a header behind a bare LF is no header",
	         "POST /echo HTTP/1.1\r\n" HOST "X: y\nContent-Length: 3\r\n\r\nabc", 400},
		{"a header is folded", "GET /inline HTTP/1.1\r\n" HOST "A: b\r\n c\r\n\r\n", 400},
		{"a header is folded, in the middle", "GET /inline HTTP/1.1\r\nA: b\r\n\tc\r\n" HOST "\r\n", 400},
		{"a bare CR inside a value", "GET /inline HTTP/1.1\r\n" HOST "A: b\rc\r\n\r\n", 400},
		{"a tab inside a value", "GET /inline HTTP/1.1\r\n" HOST "A: b\tc\r\n\r\n", 200},
		{"an empty value", "GET /inline HTTP/1.1\r\n" HOST "A:\r\nB: \r\nC: d \r\n\r\n", 200},
		{"an empty line before the request line", "\r\nGET /inline HTTP/1.1\r\n" HOST "\r\n", 200},
		{"no header at all, HTTP/1.0", "GET /inline HTTP/1.0\r\n\r\n", 200},
		{"no header at all, with bare LFs", "GET /inline HTTP/1.0\n\n", 400},
	};
	struct answer a = answer_empty();

	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		ask(*state, cases[i].request, &a);
		if (a.status != cases[i].status)
			fail_msg("%s: %d\n%s", cases[i].name, a.status, buf_text(&a.body));
	}
	answer_fini(&a);
}

/* Whatever the pieces in which a sound head comes, and wherever it lies in the connection's memory. */
static void
a_sound_head_passes_in_any_pieces(void **state)
{
	struct world *w = *state;
	struct answer a = answer_empty();
	static char head[24000];
	int n = snprintf(head, sizeof(head), "GET /values?q=1 HTTP/1.1\r\n" HOST);
	int fd;

	for (int i = 0; i < 150; i++)
		n += snprintf(head + n, sizeof(head) - (size_t)n, "X-Header-%d: %0*d\r\n", i, i % 97 + 1, i);
	n += snprintf(head + n, sizeof(head) - (size_t)n, "X-Thing: here\r\n\r\n");
	fd = dial(w->port);
	for (int round = 0; round < 6; round++) {
		/* the first round byte by byte, then whole heads, two at once */
		int step = round == 0 ? 1 : round * 700, requests = round > 3 ? 2 : 1;

		for (int r = 0; r < requests; r++)
			for (int at = 0; at < n; at += step)
				assert_true(try_say(fd, head + at, (size_t)(n - at < step ? n - at : step)));
		for (int r = 0; r < requests; r++) {
			hear(fd, &a, false);
			if (a.status != 200)
				fail_msg("round %d: %d %s", round, a.status, buf_text(&a.body));
			assert_non_null(strstr(buf_text(&a.body), "header=here query=1"));
		}
	}
	close(fd);
	answer_fini(&a);
}

/* ---- sizes ---- */

static void
a_head_above_the_limit_is_answered_431_and_a_target_414(void **state)
{
	struct world *w = *state;
	struct answer a = answer_empty();
	static char line[40000];
	int fd;

	memset(line, 'l', sizeof(line));
	fd = dial(w->port);
	tell(fd, "GET /inline HTTP/1.1\r\n" HOST "X-Long: ");
	(void)try_say(fd, line, sizeof(line));
	hear(fd, &a, false);
	assert_int_equal(a.status, 431);
	close(fd);
	fd = dial(w->port);
	tell(fd, "GET /");
	(void)try_say(fd, line, sizeof(line));
	hear(fd, &a, false);
	assert_int_equal(a.status, 414);
	close(fd);
	/* many small ones */
	fd = dial(w->port);
	tell(fd, "GET /inline HTTP/1.1\r\n" HOST);
	for (int i = 0; i < 5000; i++)
		if (!try_say(fd, "A: b\r\n", 6))
			break;
	(void)try_say(fd, "\r\n", 2);
	hear(fd, &a, false);
	assert_int_equal(a.status, 431);
	close(fd);
	answer_fini(&a);
}

static void
world_end(struct world *w)
{
	world_fini(w);
	mem_free(w);
}

static void
a_server_may_set_aside_less_for_heads(void **state)
{
	static const struct {
		size_t header;
		int status;
	} rows[] = {{1000, 200}, {6000, 200}, {9000, 431}};
	struct world *w = mem_alloc(sizeof(*w));
	struct answer a = answer_empty();
	static char line[9000];
	struct httpd_options o;

	(void)state;
	world_init(w);
	o = options_of(w);
	o.head_max = 8192;
	world_start(w, &o);
	memset(line, 'l', sizeof(line));
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		int fd = dial(w->port);

		tell(fd, "GET /values HTTP/1.1\r\n" HOST "X-Thing: ");
		(void)try_say(fd, line, rows[i].header);
		(void)try_say(fd, "\r\n\r\n", 4);
		hear(fd, &a, false);
		assert_int_equal(a.status, rows[i].status);
		if (a.status == 200)
			assert_true(a.body.len > rows[i].header);
		close(fd);
	}
	answer_fini(&a);
	world_end(w);
}

/* ---- time ---- */

#define SHORT_NS (200 * NS_PER_MS)

static struct world *
hasty_world(void)
{
	struct world *w = mem_alloc(sizeof(*w));
	struct httpd_options o;

	world_init(w);
	o = options_of(w);
	o.request_timeout_ns = SHORT_NS;
	world_start(w, &o);
	return w;
}

/* Sends the byte again and again, never long after the last one, until the server has had enough. */
static void
trickle(int fd, char byte)
{
	int64_t until = time_boot_ns() + WORLD_PATIENCE_S * NS_PER_S;
	struct pollfd p = {.fd = fd, .events = POLLIN};
	char got;

	while (time_boot_ns() < until) {
		if (!try_say(fd, &byte, 1))
			return;
		if (poll(&p, 1, 10) == 1 && recv(fd, &got, 1, 0) <= 0)
			return;
	}
	fail_msg("the server still waits");
}

static void
a_request_that_trickles_in_is_ended_however_steadily_it_does(void **state)
{
	static const struct {
		const char *begin;
		char byte;
		int done; /* requests that are reported */
	} cases[] = {
		{"GET /inl", 'i', 0},
		{"GET /inline HTTP/1.1\r\nHost: t", 't', 0},
		{"POST /echo HTTP/1.1\r\n" HOST "Content-Length: 1000\r\n\r\n", 'b', 1},
		{"POST /nowhere HTTP/1.1\r\n" HOST "Content-Length: 1000000\r\n\r\n", 'b', 2},
	};
	struct world *w = hasty_world();
	struct answer a = answer_empty();

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		int fd = dial(w->port);

		tell(fd, cases[i].begin);
		trickle(fd, cases[i].byte);
		close(fd);
		await_count(&w->done, cases[i].done);
	}
	/* a connection that never says anything has the same time */
	expect_end(dial(w->port));
	/* and a second request on a connection too */
	{
		int fd = dial(w->port);

		tell(fd, "GET /inline HTTP/1.1\r\n" HOST "\r\n");
		hear(fd, &a, false);
		assert_int_equal(a.status, 200);
		tell(fd, "POST /echo HTTP/1.1\r\n" HOST "Content-Length: 1000\r\n\r\n");
		trickle(fd, 'b');
		close(fd);
	}
	ask(w, "GET /worker HTTP/1.1\r\n" HOST "\r\n", &a);
	assert_int_equal(a.status, 200);
	answer_fini(&a);
	world_end(w);
}

static void
who_waits_for_a_worker_or_rests_between_requests_is_left_alone(void **state)
{
	struct world *w = hasty_world();
	struct answer a = answer_empty();
	int busy = dial(w->port), resting = dial(w->port);

	(void)state;
	tell(resting, "GET /inline HTTP/1.1\r\n" HOST "\r\n");
	hear(resting, &a, false);
	tell(busy, "GET /gate HTTP/1.1\r\n" HOST "\r\n");
	await_entered(w, 1);
	usleep((useconds_t)(3 * SHORT_NS / NS_PER_US));
	open_gate(w);
	hear(busy, &a, false);
	assert_int_equal(a.status, 200);
	tell(resting, "GET /inline HTTP/1.1\r\n" HOST "\r\n");
	hear(resting, &a, false);
	assert_int_equal(a.status, 200);
	close(busy);
	close(resting);
	answer_fini(&a);
	world_end(w);
}

static void
who_does_not_take_its_reply_is_let_go_in_the_end(void **state)
{
	struct world *w = hasty_world();
	int deaf = dial(w->port);
	char byte;

	(void)state;
	tell(deaf, "GET /shared HTTP/1.1\r\n" HOST "\r\n");
	assert_int_equal(recv(deaf, &byte, 1, MSG_PEEK), 1);
	await_count(&w->released, 1);
	close(deaf);
	world_end(w);
}

/* ---- anything ---- */

static uint64_t
next(uint64_t *seed)
{
	*seed += UINT64_C(0x9e3779b97f4a7c15);
	uint64_t z = (*seed ^ (*seed >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);

	z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
	return z ^ (z >> 31);
}

static const char *const seeds[] = {
	"GET /values?q=a%20b HTTP/1.1\r\n" HOST
	"Accept-Encoding: gzip, br;q=0.5\r\nIf-None-Match: \"a\", W/\"b\"\r\n\r\n",
	"POST /echo HTTP/1.1\r\n" HOST "Content-Length: 11\r\nContent-Encoding: gzip\r\n\r\nhello world",
	"POST /echo HTTP/1.1\r\n" HOST
	"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n6;x=y\r\n world\r\n0\r\nT: r\r\n\r\n",
	"PUT /thing HTTP/1.1\r\n" HOST "Expect: 100-continue\r\nContent-Length: 3\r\n\r\nabc",
	"HEAD /files/a%22b HTTP/1.1\r\n" HOST "X-Request-Id: abc\r\nConnection: close\r\n\r\n",
	"DELETE /thing HTTP/1.0\r\nAuthorization: Bearer x\r\nCookie: a=b; c=\r\n\r\n",
	"GET /text?n=40&type HTTP/1.1\r\n" HOST "Accept-Encoding: gzip\r\n\r\nGET / HTTP/1.1\r\n" HOST "\r\n",
};

/* A request of the list above, with a few bytes changed, cut out, doubled or replaced by what parsers stumble over. */
static size_t
mutate(uint64_t *seed, char *out, size_t size)
{
	static const char *const stones[] = {"\r\n",
	                                     "\n",
	                                     "\r",
	                                     ":",
	                                     " ",
	                                     "\t",
	                                     "%00",
	                                     "%",
	                                     "0",
	                                     "-1",
	                                     "99999999999999999999",
	                                     "chunked",
	                                     "Content-Length: 7\r\n",
	                                     "Transfer-Encoding: chunked\r\n",
	                                     "\x80\xff",
	                                     "HTTP/1.1",
	                                     "\"",
	                                     "0\r\n\r\n",
	                                     "ffffffffffffffff\r\n",
	                                     "?",
	                                     "&=&",
	                                     "gzip"};
	const char *from = seeds[next(seed) % ARRAY_LEN(seeds)];
	size_t n = strlen(from);

	memcpy(out, from, n);
	for (uint64_t changes = next(seed) % 6; changes > 0; changes--) {
		size_t at = next(seed) % (n + 1), len = next(seed) % 8;
		const char *stone = stones[next(seed) % ARRAY_LEN(stones)];

		switch (next(seed) % 4) {
		case 0:
			if (at < n)
				out[at] = (char)next(seed);
			break;
		case 1:
			len = len < n - at ? len : n - at;
			memmove(out + at, out + at + len, n - at - len);
			n -= len;
			break;
		case 2:
		case 3:
			len = strlen(stone);
			if (n + len > size)
				break;
			memmove(out + at + len, out + at, n - at);
			memcpy(out + at, stone, len);
			n += len;
			break;
		}
	}
	return n;
}

static void
anything_at_all_leaves_the_server_serving(void **state)
{
	struct world *w = *state;
	struct answer a = answer_empty();
	uint64_t seed = 20261116;
	int fds[16];

	for (size_t i = 0; i < ARRAY_LEN(fds); i++)
		fds[i] = -1;
	for (int i = 0; i < 3000; i++) {
		int *fd = &fds[next(&seed) % ARRAY_LEN(fds)];
		char request[2048], some[4096];
		size_t n = mutate(&seed, request, sizeof(request));

		/* half of them on a connection that has seen others */
		if (*fd >= 0 && next(&seed) % 2) {
			close(*fd);
			*fd = -1;
		}
		if (*fd < 0)
			*fd = dial(w->port);
		if (!try_say(*fd, request, n) || recv(*fd, some, sizeof(some), MSG_DONTWAIT) == 0) {
			close(*fd);
			*fd = -1;
		}
		if (i % 500 == 0) {
			ask(w, "GET /worker HTTP/1.1\r\n" HOST "\r\n", &a);
			assert_true(a.status == 200 || a.status == 503);
		}
	}
	for (size_t i = 0; i < ARRAY_LEN(fds); i++)
		if (fds[i] >= 0)
			close(fds[i]);
	/* a full queue empties */
	do
		ask(w, "GET /worker HTTP/1.1\r\n" HOST "\r\n", &a);
	while (a.status == 503);
	assert_int_equal(a.status, 200);
	answer_fini(&a);
}

#define IN_WORLD(f) cmocka_unit_test_setup_teardown(f, world_setup, world_teardown)

int
main(void)
{
	const struct CMUnitTest tests[] = {
		IN_WORLD(a_head_whose_lines_others_may_end_elsewhere_is_refused),
		IN_WORLD(a_sound_head_passes_in_any_pieces),
		IN_WORLD(a_head_above_the_limit_is_answered_431_and_a_target_414),
		cmocka_unit_test(a_server_may_set_aside_less_for_heads),
		cmocka_unit_test(a_request_that_trickles_in_is_ended_however_steadily_it_does),
		cmocka_unit_test(who_waits_for_a_worker_or_rests_between_requests_is_left_alone),
		cmocka_unit_test(who_does_not_take_its_reply_is_let_go_in_the_end),
		IN_WORLD(anything_at_all_leaves_the_server_serving),
	};

	return cmocka_run_group_tests_name("httpd_hostile", tests, NULL, NULL);
}
