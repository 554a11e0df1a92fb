/* tsan */
/* tests/unit/http/test_httpc.c - the HTTP client: what it sends to a real server, and what it makes of one that answers badly,
 * late or not at all. */
#include "tests/support/http/httpd_world.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/http/httpc.h"
#include "common/base/time.h"

/* ---- a server that says what it was told to say ---- */

struct canned {
	int listener;
	uint16_t port;
	const char *replies[5]; /* one for each connection; with none it reads, and never answers */
	pthread_t thread;
	char request[8192]; /* as it came, valid after canned_fini */
	atomic_int accepted;
};

static void
canned_answer(struct canned *s, int fd, const char *reply)
{
	size_t n = 0;

	memset(s->request, 0, sizeof(s->request));
	while (n < sizeof(s->request) - 1) {
		ssize_t got = recv(fd, s->request + n, sizeof(s->request) - 1 - n, 0);

		if (got <= 0)
			break;
		n += (size_t)got;
		if (n == (size_t)got)
			atomic_fetch_add(&s->accepted, 1);
		if (reply && strstr(s->request, "\r\n\r\n")) {
			(void)try_say(fd, reply, strlen(reply));
			break;
		}
	}
	close(fd);
}

static void *
canned_serve(void *arg)
{
	struct canned *s = arg;
	size_t i = 0;

	do {
		int fd = accept(s->listener, NULL, NULL);

		if (fd < 0)
			return NULL;
		canned_answer(s, fd, s->replies[i]);
	} while (s->replies[i] && s->replies[++i]);
	return NULL;
}

static void
canned_init_list(struct canned *s, const char *const *replies)
{
	struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t len = sizeof(at);

	memset(s, 0, sizeof(*s));
	for (size_t i = 0; replies[i]; i++)
		s->replies[i] = replies[i];
	s->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	assert_int_equal(bind(s->listener, (struct sockaddr *)&at, sizeof(at)), 0);
	assert_int_equal(listen(s->listener, 4), 0);
	assert_int_equal(getsockname(s->listener, (struct sockaddr *)&at, &len), 0);
	s->port = ntohs(at.sin_port);
	assert_int_equal(pthread_create(&s->thread, NULL, canned_serve, s), 0);
}

static void
canned_init(struct canned *s, const char *reply)
{
	const char *const list[] = {reply, NULL};

	canned_init_list(s, list);
}

static void
canned_fini(struct canned *s)
{
	/* wakes an accept that nobody came to */
	shutdown(s->listener, SHUT_RDWR);
	pthread_join(s->thread, NULL);
	close(s->listener);
}

/* ---- clients ---- */

static struct httpc *
client(uint16_t port, const char *token_file, int64_t timeout_ns)
{
	char url[64];
	struct httpc_options o = {.base_url = url,
	                          .token_file = token_file,
	                          .user_agent = "tollgate-test/1",
	                          .connect_timeout_ns = WORLD_PATIENCE_S * NS_PER_S,
	                          .timeout_ns = timeout_ns};
	struct err err = {0};
	struct httpc *c = NULL;

	snprintf(url, sizeof(url), "http://127.0.0.1:%u/", (unsigned)port);
	if (!httpc_new(&o, &c, &err))
		fail_msg("%s", err.text);
	return c;
}

static void
reply_init(struct httpc_reply *r)
{
	*r = (struct httpc_reply){0};
	buf_init(&r->body, 8u << 20);
}

static void
httpc_reply_fini(struct httpc_reply *r)
{
	buf_fini(&r->body);
}

static void
call_ok(struct httpc *c, const char *method, const char *path, const char *body, struct httpc_reply *r)
{
	struct err err = {0};

	if (!httpc_call(c, method, path, body ? "text/plain" : NULL, body, body ? strlen(body) : 0, r, &err))
		fail_msg("%s", err.text);
}

/* ---- against the real server ---- */

static void
a_reply_of_any_status_is_a_reply(void **state)
{
	struct world *w = *state;
	owned(httpc) struct httpc *c = client(w->port, NULL, WORLD_PATIENCE_S * NS_PER_S);
	in_place(httpc_reply) struct httpc_reply r;

	reply_init(&r);
	call_ok(c, "GET", "/inline", NULL, &r);
	assert_int_equal(r.status, 200);
	assert_string_equal(buf_text(&r.body), "hello inline\n");
	assert_string_equal(r.content_type, "text/plain; charset=utf-8");
	call_ok(c, "POST", "/echo", "a body", &r);
	assert_string_equal(buf_text(&r.body), "a body");
	call_ok(c, "PUT", "/thing", "put", &r);
	assert_string_equal(buf_text(&r.body), "put");
	call_ok(c, "POST", "/echo", NULL, &r);
	assert_int_equal(r.status, 200);
	assert_int_equal(r.body.len, 0);
	call_ok(c, "DELETE", "/thing", NULL, &r);
	assert_int_equal(r.status, 200);
	call_ok(c, "HEAD", "/shared", NULL, &r);
	assert_int_equal(r.status, 200);
	assert_int_equal(r.body.len, 0);
	call_ok(c, "GET", "/shared", NULL, &r);
	assert_int_equal(r.body.len, WORLD_SHARED_BYTES);
	call_ok(c, "GET", "/nowhere", NULL, &r);
	assert_int_equal(r.status, 404);
	assert_string_equal(r.content_type, "application/problem+json");
}

static void
a_large_body_is_sent_and_a_refusal_of_it_is_read(void **state)
{
	struct world *w = *state;
	owned(httpc) struct httpc *c = client(w->port, NULL, WORLD_PATIENCE_S * NS_PER_S);
	in_place(httpc_reply) struct httpc_reply r;
	struct err err = {0};

	reply_init(&r);
	assert_true(httpc_call(c, "POST", "/echo", NULL, w->shared, WORLD_BODY_MAX, &r, &err));
	assert_int_equal(r.body.len, WORLD_BODY_MAX);
	/* small enough to be read and thrown away, then large enough to be refused while it waits for 100 Continue */
	assert_true(httpc_call(c, "POST", "/echo", NULL, w->shared, 1u << 19, &r, &err));
	assert_int_equal(r.status, 413);
	assert_true(httpc_call(c, "POST", "/echo", NULL, w->shared, WORLD_SHARED_BYTES, &r, &err));
	assert_int_equal(r.status, 413);
	call_ok(c, "GET", "/inline", NULL, &r);
	assert_int_equal(r.status, 200);
}

static void
a_body_may_be_sent_compressed_and_arrives_as_it_was(void **state)
{
	struct world *w = *state;
	char url[64];
	struct httpc_options o = {.base_url = url,
	                          .user_agent = "tollgate-test/1",
	                          .gzip = true,
	                          .connect_timeout_ns = WORLD_PATIENCE_S * NS_PER_S,
	                          .timeout_ns = WORLD_PATIENCE_S * NS_PER_S};
	owned(httpc) struct httpc *c = NULL;
	in_place(httpc_reply) struct httpc_reply r;
	struct err err = {0};

	reply_init(&r);
	snprintf(url, sizeof(url), "http://127.0.0.1:%u", (unsigned)w->port);
	assert_true(httpc_new(&o, &c, &err));
	call_ok(c, "POST", "/echo", "the same, the same, the same, the same, the same", &r);
	assert_string_equal(buf_text(&r.body), "the same, the same, the same, the same, the same");
	/* nothing to compress is nothing to say about it */
	call_ok(c, "POST", "/echo", NULL, &r);
	assert_int_equal(r.status, 200);
	assert_int_equal(r.body.len, 0);
	call_ok(c, "GET", "/inline", NULL, &r);
	assert_int_equal(r.status, 200);
}

static void
a_call_says_compression_and_the_clock_in_headers(void **state)
{
	struct canned s;
	char url[64];
	struct httpc_options o = {.base_url = url,
	                          .user_agent = "tollgate-test/1",
	                          .gzip = true,
	                          .clock_header = "Test-Clock",
	                          .connect_timeout_ns = WORLD_PATIENCE_S * NS_PER_S,
	                          .timeout_ns = WORLD_PATIENCE_S * NS_PER_S};
	struct httpc *c = NULL;
	in_place(httpc_reply) struct httpc_reply r;
	struct err err = {0};
	const char *clock;
	int64_t away_ns;

	(void)state;
	canned_init(&s, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
	reply_init(&r);
	snprintf(url, sizeof(url), "http://127.0.0.1:%u", (unsigned)s.port);
	assert_true(httpc_new(&o, &c, &err));
	call_ok(c, "POST", "/echo", "a body", &r);
	httpc_free(c);
	canned_fini(&s);
	assert_non_null(strstr(s.request, "\r\nContent-Encoding: gzip\r\n"));
	clock = strstr(s.request, "\r\nTest-Clock: ");
	assert_non_null(clock);
	away_ns = strtoll(clock + strlen("\r\nTest-Clock: "), NULL, 10) - time_wall_ns();
	assert_true(away_ns < NS_PER_DAY && away_ns > -NS_PER_DAY);
}

static void
a_server_that_was_restarted_is_found_again(void **state)
{
	struct world *w = *state;
	owned(httpc) struct httpc *c = client(w->port, NULL, WORLD_PATIENCE_S * NS_PER_S);
	in_place(httpc_reply) struct httpc_reply r;
	struct httpd_options o = options_of(w);
	struct err err = {0};
	char address[32];

	reply_init(&r);
	call_ok(c, "POST", "/echo", "one", &r);
	httpd_stop(w->h);
	w->h = NULL;
	assert_false(httpc_call(c, "POST", "/echo", NULL, "two", 3, &r, &err));
	assert_int_equal(err.kind, ERR_RETRY);
	assert_int_equal(r.status, 0);
	snprintf(address, sizeof(address), "127.0.0.1:%u", (unsigned)w->port);
	assert_non_null(strstr(err.text, address));
	o.listen = address;
	world_start(w, &o);
	call_ok(c, "POST", "/echo", "three", &r);
	assert_string_equal(buf_text(&r.body), "three");
}

static void
a_503_says_when_to_come_back(void **state)
{
	struct canned s;
	struct httpc *c;
	in_place(httpc_reply) struct httpc_reply r;

	(void)state;
	canned_init(&s, "HTTP/1.1 503 Busy\r\nRetry-After: 7\r\nContent-Length: 0\r\n\r\n");
	c = client(s.port, NULL, WORLD_PATIENCE_S * NS_PER_S);
	reply_init(&r);
	call_ok(c, "GET", "/", NULL, &r);
	assert_int_equal(r.status, 503);
	assert_int_equal(r.retry_after_s, 7);
	httpc_free(c);
	canned_fini(&s);
}

static void
a_header_that_is_wanted_is_given_and_an_old_one_is_not(void **state)
{
	static const struct {
		const char *reply, *value;
	} cases[] = {
		{"HTTP/1.1 200 OK\r\ntollgate-manifest: {\"rows\":1}\r\nContent-Length: 0\r\n\r\n", "{\"rows\":1}"},
		{"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", ""},
	};
	in_place(buf) struct buf value;

	(void)state;
	buf_init(&value, 1024);
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		struct canned s;
		struct httpc *c;
		in_place(httpc_reply) struct httpc_reply r;

		canned_init(&s, cases[i].reply);
		c = client(s.port, NULL, WORLD_PATIENCE_S * NS_PER_S);
		reply_init(&r);
		r.header = "Tollgate-Manifest";
		r.header_value = &value;
		call_ok(c, "GET", "/", NULL, &r);
		assert_string_equal(buf_text(&value), cases[i].value);
		httpc_free(c);
		canned_fini(&s);
	}
}

static void
a_request_carries_its_agent_type_and_nothing_of_the_environment(void **state)
{
	struct canned s;
	struct httpc *c;
	in_place(httpc_reply) struct httpc_reply r;

	(void)state;
	/* a proxy that does not exist: if it were used the call would fail */
	setenv("http_proxy", "http://127.0.0.1:1", 1);
	setenv("ALL_PROXY", "http://127.0.0.1:1", 1);
	canned_init(&s, "HTTP/1.1 302 Elsewhere\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 2\r\n\r\nno");
	c = client(s.port, NULL, WORLD_PATIENCE_S * NS_PER_S);
	reply_init(&r);
	call_ok(c, "POST", "/v1/ingest?x=1", "b", &r);
	/* and redirects are not followed: that would fail too */
	assert_int_equal(r.status, 302);
	assert_string_equal(buf_text(&r.body), "no");
	httpc_free(c);
	canned_fini(&s);
	unsetenv("http_proxy");
	unsetenv("ALL_PROXY");
	assert_memory_equal(s.request, "POST /v1/ingest?x=1 HTTP/1.1\r\n", 30);
	assert_non_null(strstr(s.request, "\r\nUser-Agent: tollgate-test/1\r\n"));
	assert_non_null(strstr(s.request, "\r\nContent-Type: text/plain\r\n"));
	assert_null(strstr(s.request, "Authorization"));
}

/* ---- calls that are repeated ---- */

static void
only_what_may_be_done_twice_is_repeated_and_only_when_it_may_help(void **state)
{
	static const struct {
		const char *method;
		int status, wait_s, done;
		bool again;
	} cases[] = {
		{"GET", 0, 0, 1, true},        {"HEAD", 0, 0, 1, true},    {"PUT", 0, 0, 1, true},
		{"DELETE", 0, 0, 1, true},     {"POST", 0, 0, 1, false},   {"PATCH", 0, 0, 1, false},
		{"get", 0, 0, 1, false},       {"POST", 503, 1, 1, false}, {"GET", 503, 0, 1, true},
		{"GET", 429, 0, 1, true},      {"GET", 408, 0, 1, true},   {"GET", 502, 0, 1, true},
		{"GET", 504, 0, 1, true},      {"GET", 500, 0, 1, false},  {"GET", 501, 0, 1, false},
		{"GET", 200, 0, 1, false},     {"GET", 304, 0, 1, false},  {"GET", 401, 0, 1, false},
		{"GET", 404, 0, 1, false},     {"GET", 409, 0, 1, false},  {"GET", 503, 0, 2, true},
		{"GET", 503, 0, 3, false},     {"GET", 503, 10, 1, true},  {"GET", 503, 11, 1, false},
		{"GET", 503, 86400, 1, false},
	};
	const struct httpc_retry r = {.attempts = 3, .least_ns = 1, .most_ns = 1, .patience_ns = 10 * NS_PER_S};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(cases); i++)
		if (httpc_may_repeat(&r, cases[i].method, cases[i].status, cases[i].wait_s, cases[i].done) !=
		    cases[i].again)
			fail_msg("%s, %d, Retry-After %d, after %d", cases[i].method, cases[i].status, cases[i].wait_s,
			         cases[i].done);
}

static void
pauses_double_up_to_the_longest_and_half_of_them_is_chance(void **state)
{
	const int64_t want[] = {1, 1, 2, 4, 8, 16, 32, 60, 60, 60};

	(void)state;
	for (unsigned i = 0; i < ARRAY_LEN(want); i++) {
		int64_t longest = httpc_pause_ns(NS_PER_S, NS_PER_MIN, i, 0, 0);
		int64_t shortest = httpc_pause_ns(NS_PER_S, NS_PER_MIN, i, 0, (uint64_t)(want[i] * NS_PER_S / 2));

		assert_int_equal(longest, want[i] * NS_PER_S);
		assert_int_equal(shortest, want[i] * NS_PER_S / 2);
	}
	assert_in_range(httpc_pause_ns(NS_PER_S, NS_PER_MIN, 4000000000u, 0, UINT64_MAX), NS_PER_S * 30, NS_PER_MIN);
}

static void
a_pause_is_never_shorter_than_the_server_asks_for(void **state)
{
	(void)state;
	assert_int_equal(httpc_pause_ns(NS_PER_S, NS_PER_MIN, 1, 30, 0), 30 * NS_PER_S);
	assert_int_equal(httpc_pause_ns(NS_PER_S, NS_PER_MIN, 1, 30, (uint64_t)(3 * NS_PER_S)), 33 * NS_PER_S);
	assert_int_equal(httpc_pause_ns(NS_PER_S, NS_PER_MIN, 9, 30, 0), NS_PER_MIN);
	for (uint64_t chance = 1; chance; chance <<= 1)
		assert_in_range(httpc_pause_ns(NS_PER_S, NS_PER_MIN, 9, 30, chance), 30 * NS_PER_S, NS_PER_MIN);
}

#define BUSY "HTTP/1.1 503 Busy\r\nContent-Length: 4\r\nConnection: close\r\n\r\nbusy"
#define FINE "HTTP/1.1 200 Fine\r\nContent-Length: 4\r\nConnection: close\r\n\r\nfine"

static void
a_call_is_repeated_until_it_works_or_the_attempts_are_used_up(void **state)
{
	static const struct {
		const char *name, *method;
		const char *replies[5];
		int status, calls;
	} cases[] = {
		{"works at once", "GET", {FINE}, 200, 1},
		{"busy, then fine", "GET", {BUSY, FINE}, 200, 2},
		{"cut off, busy, then fine", "PUT", {"HTTP/1.1 200", BUSY, FINE}, 200, 3},
		{"always busy", "GET", {BUSY, BUSY, BUSY, FINE}, 503, 3},
		{"never an answer", "GET", {"", "", "", FINE}, 0, 3},
		{"a POST goes out once", "POST", {BUSY, FINE}, 503, 1},
		{"a POST that is cut off goes out once", "POST", {"", FINE}, 0, 1},
		{"a longer pause than the patience",
	         "GET",
	         {"HTTP/1.1 503 Busy\r\nRetry-After: 3600\r\nContent-Length: 0\r\nConnection: close\r\n\r\n", FINE},
	         503,
	         1},
	};
	const struct httpc_retry r = {
		.attempts = 3, .least_ns = NS_PER_MS, .most_ns = 2 * NS_PER_MS, .patience_ns = NS_PER_S};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		in_place(httpc_reply) struct httpc_reply reply;
		struct err err = {0};
		struct canned s;
		struct httpc *c;
		bool ok;

		canned_init_list(&s, cases[i].replies);
		c = client(s.port, NULL, WORLD_PATIENCE_S * NS_PER_S);
		reply_init(&reply);
		ok = httpc_call_again(c, &r, cases[i].method, "/", NULL, NULL, 0, &reply, &err);
		if (ok != (cases[i].status != 0) || reply.status != cases[i].status ||
		    atomic_load(&s.accepted) != cases[i].calls)
			fail_msg("%s: status %d after %d calls, %s", cases[i].name, reply.status,
			         atomic_load(&s.accepted), err.text);
		assert_true(ok || err.kind == ERR_RETRY);
		httpc_free(c);
		canned_fini(&s);
	}
}

/* ---- servers that fail ---- */

static void
a_failed_call_is_to_be_repeated_and_says_why(void **state)
{
	static const struct {
		const char *name, *reply;
	} cases[] = {
		{"a reply that is cut off", "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf"},
		{"an empty reply", ""},
		{"no HTTP", "SSH-2.0-OpenSSH_9.2\r\n"},
	};
	in_place(httpc_reply) struct httpc_reply r;

	(void)state;
	reply_init(&r);
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		struct canned s;
		struct httpc *c;
		struct err err = {0};

		canned_init(&s, cases[i].reply);
		c = client(s.port, NULL, WORLD_PATIENCE_S * NS_PER_S);
		if (httpc_call(c, "GET", "/x", NULL, NULL, 0, &r, &err) || err.kind != ERR_RETRY || r.status != 0 ||
		    !strstr(err.text, "/x: "))
			fail_msg("%s: %s", cases[i].name, err.text);
		httpc_free(c);
		canned_fini(&s);
	}
}

static void
a_silent_server_is_left_after_the_timeout(void **state)
{
	struct canned s;
	struct httpc *c;
	struct err err = {0};
	in_place(httpc_reply) struct httpc_reply r;

	(void)state;
	canned_init(&s, NULL);
	c = client(s.port, NULL, 50 * NS_PER_MS);
	reply_init(&r);
	assert_false(httpc_call(c, "GET", "/slow", NULL, NULL, 0, &r, &err));
	assert_int_equal(err.kind, ERR_RETRY);
	assert_non_null(strstr(err.text, "timed out"));
	httpc_free(c);
	canned_fini(&s);
}

static void
a_reply_above_its_ceiling_is_refused(void **state)
{
	struct world *w = *state;
	owned(httpc) struct httpc *c = client(w->port, NULL, WORLD_PATIENCE_S * NS_PER_S);
	in_place(httpc_reply) struct httpc_reply r;
	struct err err = {0};

	reply_init(&r);
	r.body.max = 12;
	assert_false(httpc_call(c, "GET", "/inline", NULL, NULL, 0, &r, &err));
	assert_int_equal(err.kind, ERR_INVALID);
	assert_non_null(strstr(err.text, "limit of 12 bytes"));
	r.body.max = 13;
	call_ok(c, "GET", "/inline", NULL, &r);
	assert_int_equal(r.body.len, 13);
}

struct caller {
	struct httpc *c;
	bool ok;
	struct err err;
};

static void *
call_gate(void *arg)
{
	struct caller *a = arg;
	struct httpc_reply r;

	reply_init(&r);
	a->ok = httpc_call(a->c, "GET", "/gate", NULL, NULL, 0, &r, &a->err);
	httpc_reply_fini(&r);
	return NULL;
}

static void
an_abort_ends_the_call_under_way_and_those_to_come(void **state)
{
	struct world *w = *state;
	struct caller a = {.c = client(w->port, NULL, 3600 * NS_PER_S)};
	struct timespec until;
	pthread_t thread;

	assert_int_equal(pthread_create(&thread, NULL, call_gate, &a), 0);
	await_entered(w, 1);
	httpc_abort(a.c);
	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += WORLD_PATIENCE_S;
	assert_int_equal(pthread_timedjoin_np(thread, NULL, &until), 0);
	assert_false(a.ok);
	assert_int_equal(a.err.kind, ERR_RETRY);
	assert_non_null(strstr(a.err.text, "aborted"));
	open_gate(w);
	call_gate(&a);
	assert_false(a.ok);
	assert_int_equal(a.err.kind, ERR_RETRY);
	httpc_free(a.c);
}

/* ---- tokens ---- */

static char *
temp_file(void)
{
	const char *folder = getenv("TMPDIR");
	char *path = mem_printf("%s/tollgate-token-XXXXXX", folder ? folder : "/tmp");
	int fd = mkstemp(path);

	assert_true(fd >= 0);
	close(fd);
	return path;
}

static void
put_token(const char *path, const char *text, size_t n)
{
	struct err err = {0};

	if (!file_write_atomic(path, text, n, 0600, &err))
		fail_msg("%s", err.text);
}

static void
the_token_is_read_anew_for_each_call(void **state)
{
	static const char *const lines[] = {"first", "second\n", "third\r\n"};
	static const char *const expected[] = {"token=Bearer first", "token=Bearer second", "token=Bearer third"};
	struct world *w = *state;
	owned(mem) char *path = temp_file();
	owned(httpc) struct httpc *c = client(w->port, path, WORLD_PATIENCE_S * NS_PER_S);
	in_place(httpc_reply) struct httpc_reply r;

	reply_init(&r);
	for (size_t i = 0; i < ARRAY_LEN(lines); i++) {
		const char *token;

		put_token(path, lines[i], strlen(lines[i]));
		call_ok(c, "GET", "/values", NULL, &r);
		token = strstr(buf_text(&r.body), "token=");
		assert_non_null(token);
		assert_string_equal(token, expected[i]);
	}
	unlink(path);
}

static void
what_is_not_a_token_is_not_sent(void **state)
{
	static char longest[514];
	static const struct {
		const char *name, *text;
		size_t len;
		bool good;
	} cases[] = {
		{"empty", "", 0, false},
		{"only a newline", "\n", 1, false},
		{"a header smuggled in", "abc\r\nX-Role: admin\n", 19, false},
		{"a space", "a b", 3, false},
		{"a NUL", "a\0b", 3, false},
		{"not ASCII", "t\xc3\xb6ken", 6, false},
		{"512 bytes", longest, 512, true},
		{"513 bytes", longest, 513, false},
		{"514 bytes", longest, 514, false},
	};
	struct world *w = *state;
	owned(mem) char *path = temp_file();
	owned(httpc) struct httpc *c = client(w->port, path, WORLD_PATIENCE_S * NS_PER_S);
	in_place(httpc_reply) struct httpc_reply r;
	struct err err = {0};

	reply_init(&r);
	memset(longest, 't', sizeof(longest));
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		bool ok;

		put_token(path, cases[i].text, cases[i].len);
		ok = httpc_call(c, "GET", "/inline", NULL, NULL, 0, &r, &err);
		if (ok != cases[i].good)
			fail_msg("%s: %s", cases[i].name, ok ? "was sent" : err.text);
		if (!ok && (err.kind != ERR_INVALID || !strstr(err.text, path)))
			fail_msg("%s: %s", cases[i].name, err.text);
	}
	unlink(path);
	assert_false(httpc_call(c, "GET", "/inline", NULL, NULL, 0, &r, &err));
	assert_int_equal(err.kind, ERR_MISSING);
	assert_non_null(strstr(err.text, path));
	/* one refused call does not spoil the next */
	put_token(path, "good", 4);
	call_ok(c, "GET", "/inline", NULL, &r);
	assert_int_equal(r.status, 200);
	unlink(path);
}

/* ---- urls and problems ---- */

static void
only_a_base_url_of_http_or_https_is_taken(void **state)
{
	static const struct {
		const char *url;
		bool good;
	} cases[] = {
		{"http://127.0.0.1:9402", true},
		{"https://tollgate.example/prefix/", true},
		{"127.0.0.1:9402", false},
		{"ftp://127.0.0.1", false},
		{"file:///etc/passwd", false},
		{"http://", false},
		{"http:///path", false},
		{"http://user:secret@host", false},
		{"http://host?query", false},
		{"http://ho st", false},
		{"", false},
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		struct httpc_options o = {.base_url = cases[i].url, .connect_timeout_ns = 1, .timeout_ns = 1};
		struct err err = {0};
		struct httpc *c = NULL;

		if (httpc_new(&o, &c, &err) != cases[i].good)
			fail_msg("%s: %s", cases[i].url, err.text);
		if (!cases[i].good)
			assert_int_equal(err.kind, ERR_INVALID);
		httpc_free(c);
	}
}

static void
a_refusal_is_told_in_words(void **state)
{
	static const char problem[] = "application/problem+json";
	static const struct {
		const char *name;
		int status;
		const char *type, *body;
		enum err_kind kind;
		const char *text;
	} cases[] = {
		{"a problem", 409, problem, "{\"title\":\"Conflict\",\"detail\":\"seq 7\"}", ERR_CONFLICT,
	         "push: 409 Conflict: seq 7"},
		{"a problem with a charset", 403, "application/problem+json; charset=utf-8",
	         "{\"title\":\"Forbidden\",\"detail\":\"no\"}", ERR_DENIED, "push: 403 Forbidden: no"},
		{"a problem without detail", 404, problem, "{\"title\":\"Not Found\"}", ERR_MISSING,
	         "push: 404 Not Found"},
		{"a problem that is no JSON", 400, problem, "{oops", ERR_INVALID, "push: 400: {oops"},
		{"a problem that is a list", 400, problem, "[1]", ERR_INVALID, "push: 400: [1]"},
		{"plain text", 502, "text/html", "<b>Bad\ngateway</b>\n", ERR_RETRY, "push: 502: <b>Bad gateway</b>"},
		{"escape sequences", 500, "", "\x1b[31mred\xff\xc2\x9b", ERR_RETRY, "push: 500:  [31mred?"},
		{"nothing", 503, "", "", ERR_RETRY, "push: 503"},
		{"too many requests", 429, "", "", ERR_RETRY, "push: 429"},
		{"no token", 401, "", "", ERR_DENIED, "push: 401"},
		{"too large", 413, "", "", ERR_INVALID, "push: 413"},
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		in_place(httpc_reply) struct httpc_reply r;
		struct err err = {0};

		reply_init(&r);
		r.status = cases[i].status;
		snprintf(r.content_type, sizeof(r.content_type), "%s", cases[i].type);
		buf_str(&r.body, cases[i].body);
		assert_false(httpc_problem(&r, "push", &err));
		if (err.kind != cases[i].kind || strcmp(err.text, cases[i].text) != 0)
			fail_msg("%s: %s: %s", cases[i].name, err_kind_name(err.kind), err.text);
	}
}

static void
a_long_foreign_reply_is_cut_between_characters(void **state)
{
	in_place(httpc_reply) struct httpc_reply r;
	struct err err = {0};

	(void)state;
	reply_init(&r);
	r.status = 500;
	buf_char(&r.body, 'x');
	for (int i = 0; i < 1000; i++)
		buf_str(&r.body, "\xc3\xa4");
	assert_false(httpc_problem(&r, "get", &err));
	/* "get: 500: ", x and 99 characters of two bytes: the hundredth would end at byte 201 */
	assert_int_equal(strlen(err.text), strlen("get: 500: ") + 1 + 99 * 2);
}

static void
note_progress(void *arg, int64_t sent, int64_t received, int64_t total)
{
	int64_t *seen = arg;

	(void)sent;
	seen[0] = received;
	seen[1] = total;
}

static void
a_call_tells_how_far_it_is_and_what_the_servers_clock_says(void **state)
{
	static const struct {
		const char *name, *reply;
		int64_t date_wall_ns;
	} cases[] = {
		{"a date",
	         "HTTP/1.1 200 OK\r\nDate: Mon, 16 Nov 2026 05:45:00 GMT\r\nContent-Length: 3\r\nConnection: close\r\n\r\nabc",
	         INT64_C(1794807900) * NS_PER_S},
		{"no date", "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nConnection: close\r\n\r\nabc", -1},
		{"a date that is none",
	         "HTTP/1.1 200 OK\r\nDate: yesterday\r\nContent-Length: 3\r\nConnection: close\r\n\r\nabc", -1},
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		int64_t seen[2] = {0};
		struct canned server;
		char url[64];
		struct httpc_options o = {.base_url = url,
		                          .user_agent = "tollgate-test/1",
		                          .connect_timeout_ns = WORLD_PATIENCE_S * NS_PER_S,
		                          .timeout_ns = WORLD_PATIENCE_S * NS_PER_S,
		                          .progress = note_progress,
		                          .progress_arg = seen};
		owned(httpc) struct httpc *c = NULL;
		in_place(httpc_reply) struct httpc_reply r;
		struct err err = {0};

		reply_init(&r);
		canned_init(&server, cases[i].reply);
		snprintf(url, sizeof(url), "http://127.0.0.1:%u", (unsigned)server.port);
		if (!httpc_new(&o, &c, &err))
			fail_msg("%s", err.text);
		call_ok(c, "GET", "/", NULL, &r);
		canned_fini(&server);
		if (r.date_wall_ns != cases[i].date_wall_ns || seen[0] != 3 || seen[1] != 3)
			fail_msg("%s: date %" PRId64 ", %" PRId64 " of %" PRId64 " bytes", cases[i].name,
			         r.date_wall_ns, seen[0], seen[1]);
	}
}

#define IN_WORLD(f) cmocka_unit_test_setup_teardown(f, world_setup, world_teardown)

int
main(void)
{
	const struct CMUnitTest tests[] = {
		IN_WORLD(a_reply_of_any_status_is_a_reply),
		IN_WORLD(a_large_body_is_sent_and_a_refusal_of_it_is_read),
		IN_WORLD(a_body_may_be_sent_compressed_and_arrives_as_it_was),
		cmocka_unit_test(a_call_says_compression_and_the_clock_in_headers),
		IN_WORLD(a_server_that_was_restarted_is_found_again),
		cmocka_unit_test(a_503_says_when_to_come_back),
		cmocka_unit_test(a_header_that_is_wanted_is_given_and_an_old_one_is_not),
		cmocka_unit_test(a_request_carries_its_agent_type_and_nothing_of_the_environment),
		cmocka_unit_test(only_what_may_be_done_twice_is_repeated_and_only_when_it_may_help),
		cmocka_unit_test(pauses_double_up_to_the_longest_and_half_of_them_is_chance),
		cmocka_unit_test(a_pause_is_never_shorter_than_the_server_asks_for),
		cmocka_unit_test(a_call_is_repeated_until_it_works_or_the_attempts_are_used_up),
		cmocka_unit_test(a_failed_call_is_to_be_repeated_and_says_why),
		cmocka_unit_test(a_silent_server_is_left_after_the_timeout),
		IN_WORLD(a_reply_above_its_ceiling_is_refused),
		IN_WORLD(an_abort_ends_the_call_under_way_and_those_to_come),
		IN_WORLD(the_token_is_read_anew_for_each_call),
		IN_WORLD(what_is_not_a_token_is_not_sent),
		cmocka_unit_test(only_a_base_url_of_http_or_https_is_taken),
		cmocka_unit_test(a_refusal_is_told_in_words),
		cmocka_unit_test(a_long_foreign_reply_is_cut_between_characters),
		cmocka_unit_test(a_call_tells_how_far_it_is_and_what_the_servers_clock_says),
	};

	return cmocka_run_group_tests_name("httpc", tests, NULL, NULL);
}
