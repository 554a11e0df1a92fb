/* tests/support/http/httpd_world.c - an HTTP server with one route for each thing to test, and a client that can say anything. */
#include "tests/support/http/httpd_world.h"

#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "common/base/spill.h"
#include "common/base/time.h"

/* ---- the server under test ---- */

static void
gate(struct world *w)
{
	pthread_mutex_lock(&w->lock);
	w->entered++;
	pthread_cond_broadcast(&w->moved);
	while (!w->open)
		pthread_cond_wait(&w->moved, &w->lock);
	pthread_mutex_unlock(&w->lock);
}

void
await_entered(struct world *w, int n)
{
	struct timespec until;
	int rc = 0;

	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += WORLD_PATIENCE_S;
	pthread_mutex_lock(&w->lock);
	while (w->entered < n && rc == 0)
		rc = pthread_cond_timedwait(&w->moved, &w->lock, &until);
	pthread_mutex_unlock(&w->lock);
	assert_int_equal(rc, 0);
}

void
open_gate(struct world *w)
{
	pthread_mutex_lock(&w->lock);
	w->open = true;
	pthread_cond_broadcast(&w->moved);
	pthread_mutex_unlock(&w->lock);
}

void
await_count(atomic_int *counter, int n)
{
	int64_t until = time_boot_ns() + WORLD_PATIENCE_S * NS_PER_S;

	while (atomic_load(counter) < n && time_boot_ns() < until)
		usleep(1000);
	assert_int_equal(atomic_load(counter), n);
}

static void
release_shared(void *arg)
{
	struct world *w = arg;

	atomic_fetch_add(&w->released, 1);
}

static void
say(struct http_reply *rp, const char *text)
{
	rp->content_type = "text/plain; charset=utf-8";
	buf_str(&rp->body, text);
}

static void
handle_hello(void *app, void *worker, const struct http_request *rq, struct http_reply *rp)
{
	(void)app;
	(void)rq;
	say(rp, worker ? "hello from a worker\n" : "hello inline\n");
}

static void
handle_values(void *app, void *worker, const struct http_request *rq, struct http_reply *rp)
{
	const char *header = http_header(rq, "X-Thing");
	const char *token = http_header(rq, "Authorization");
	const char *query = http_query(rq, "q");

	(void)app;
	(void)worker;
	buf_printf(&rp->body, "header=%s query=%s tail=%s token=%s", header ? header : "none", query ? query : "none",
	           rq->tail, token ? token : "none");
}

static void
handle_echo(void *app, void *worker, const struct http_request *rq, struct http_reply *rp)
{
	(void)app;
	(void)worker;
	buf_add(&rp->body, rq->body, rq->body_len);
}

static void
handle_gate(void *app, void *worker, const struct http_request *rq, struct http_reply *rp)
{
	(void)worker;
	(void)rq;
	gate(app);
	say(rp, "through\n");
}

/* The shared bytes once more, from a file; with ?fail a problem instead. */
static void
handle_document(void *app, void *worker, const struct http_request *rq, struct http_reply *rp)
{
	owned(spill) struct spill *document = NULL;
	struct world *w = app;
	struct spill_file file;
	struct err err = {0};

	(void)worker;
	assert_true(spill_new(false, &document, &err));
	buf_add(spill_buf(document), w->shared, WORLD_SHARED_BYTES);
	assert_true(spill_end(document, &file, &err));
	rp->content_type = "text/plain";
	rp->file = file.fd;
	rp->file_len = (size_t)file.len;
	if (http_query(rq, "fail"))
		http_problem(rp, rq, 409, NULL, "not now");
}

static void
handle_shared(void *app, void *worker, const struct http_request *rq, struct http_reply *rp)
{
	struct world *w = app;

	(void)worker;
	rp->content_type = "application/octet-stream";
	rp->shared = w->shared;
	rp->shared_len = WORLD_SHARED_BYTES;
	rp->release = release_shared;
	rp->release_arg = w;
	snprintf(rp->etag, sizeof(rp->etag), "v1");
	if (http_query(rq, "fail"))
		http_problem(rp, rq, 409, "field", "changed its mind");
}

static void
handle_file(void *app, void *worker, const struct http_request *rq, struct http_reply *rp)
{
	(void)app;
	(void)worker;
	say(rp, "a,b\n");
	snprintf(rp->filename, sizeof(rp->filename), "%s", rq->tail);
}

static void
handle_problem(void *app, void *worker, const struct http_request *rq, struct http_reply *rp)
{
	(void)app;
	(void)worker;
	say(rp, "half an answer");
	http_problem(rp, rq, 409, "seq", "sequence %d is \"early\"\n", 7);
	http_problem_i64(rp, "expected_seq", -5);
}

static void
handle_over(void *app, void *worker, const struct http_request *rq, struct http_reply *rp)
{
	(void)app;
	(void)worker;
	(void)rq;
	rp->body.max = 1000;
	for (int i = 0; i < 300; i++)
		say(rp, "more");
}

static void
handle_name(void *app, void *worker, const struct http_request *rq, struct http_reply *rp)
{
	char name[HTTP_CLIENT_NAME_SIZE];

	(void)app;
	(void)worker;
	buf_printf(&rp->body, "client=%s", http_client_name(rq, name, sizeof(name)) ? name : "none");
}

/* As many lines as ?n= says, a hundred unless it does; with an entity tag. */
static void
handle_text(void *app, void *worker, const struct http_request *rq, struct http_reply *rp)
{
	const char *n = http_query(rq, "n"), *type = http_query(rq, "type");

	(void)app;
	(void)worker;
	rp->content_type = type ? "application/octet-stream" : "text/csv; charset=utf-8";
	for (int i = 0; i < (n ? atoi(n) : 100); i++)
		buf_printf(&rp->body, "line,%d,of a text that is easily compressed\n", i);
	snprintf(rp->etag, sizeof(rp->etag), "t1");
}

/* Inline without ?wait, in a worker with it. */
static void
handle_either(void *app, void *worker, const struct http_request *rq, struct http_reply *rp)
{
	(void)app;
	if (!worker && http_query(rq, "wait")) {
		http_defer(rp);
		return;
	}
	buf_printf(&rp->body, "%s %.*s", worker ? "worker" : "inline", (int)rq->body_len, rq->body);
}

static const struct http_route routes[] = {
	{"GET", "/", true, 0, handle_hello, 0, ""},
	{"GET", "/inline", true, 0, handle_hello, 0, ""},
	{"GET", "/worker", false, 0, handle_hello, 0, ""},
	{"GET", "/values", false, 0, handle_values, 0, ""},
	{"GET", "/values/", true, 0, handle_values, 0, ""},
	{"GET", "/values/deep/", true, 0, handle_hello, 0, ""},
	{"POST", "/echo", false, WORLD_BODY_MAX, handle_echo, 0, ""},
	{"POST", "/echo-inline", true, WORLD_BODY_MAX, handle_echo, 0, ""},
	{"PUT", "/thing", true, WORLD_BODY_MAX, handle_echo, 0, ""},
	{"GET", "/thing", true, 0, handle_hello, 0, ""},
	{"DELETE", "/thing", true, 0, handle_hello, 0, ""},
	{"GET", "/gate", false, 0, handle_gate, 0, ""},
	{"GET", "/shared", false, 0, handle_shared, 0, ""},
	{"GET", "/document", false, 0, handle_document, 0, ""},
	{"GET", "/files/", true, 0, handle_file, 0, ""},
	{"GET", "/problem", false, 0, handle_problem, 0, ""},
	{"GET", "/over", false, 0, handle_over, 0, ""},
	{"GET", "/name", false, 0, handle_name, 0, ""},
	{"GET", "/text", false, 0, handle_text, 0, ""},
	{"GET", "/text-inline", true, 0, handle_text, 0, ""},
	{"GET", "/either", true, 0, handle_either, 0, ""},
	{"POST", "/either", true, WORLD_BODY_MAX, handle_either, 0, ""},
};

static bool
guard(void *app, void *worker, const struct http_request *rq, struct http_reply *rp)
{
	(void)app;
	(void)worker;
	if (!http_header(rq, "X-Stranger"))
		return true;
	http_problem(rp, rq, 401, NULL, "who are you");
	return false;
}

static void *
worker_new(void *app)
{
	struct world *w = app;

	atomic_fetch_add(&w->workers_made, 1);
	return w;
}

static void
worker_free(void *worker)
{
	struct world *w = worker;

	atomic_fetch_add(&w->workers_freed, 1);
}

static void
on_done(void *app, const struct http_request *rq, int status, size_t bytes, int64_t duration_ns)
{
	struct world *w = app;

	(void)bytes;
	if (rq->id[0] && duration_ns >= 0)
		atomic_store(&w->last_status, status);
	atomic_fetch_add(&w->done, 1);
}

struct httpd_options
options_of(struct world *w)
{
	return (struct httpd_options){.listen = "127.0.0.1:0",
	                              .routes = routes,
	                              .route_count = ARRAY_LEN(routes),
	                              .app = w,
	                              .guard = guard,
	                              .workers = 2,
	                              .queue_max = 1,
	                              .worker_new = worker_new,
	                              .worker_free = worker_free,
	                              .idle_timeout_ns = WORLD_PATIENCE_S * NS_PER_S,
	                              .connection_max = 64,
	                              .on_done = on_done};
}

void
world_init(struct world *w)
{
	memset(w, 0, sizeof(*w));
	pthread_mutex_init(&w->lock, NULL);
	pthread_cond_init(&w->moved, NULL);
	w->shared = mem_alloc(WORLD_SHARED_BYTES);
	memset(w->shared, 'x', WORLD_SHARED_BYTES);
}

void
world_start(struct world *w, const struct httpd_options *o)
{
	struct err err = {0};

	if (!httpd_start(o, &w->h, &err))
		fail_msg("%s", err.text);
	w->port = httpd_port(w->h);
}

void
world_fini(struct world *w)
{
	open_gate(w);
	httpd_stop(w->h);
	mem_free(w->shared);
	pthread_cond_destroy(&w->moved);
	pthread_mutex_destroy(&w->lock);
}

int
world_setup(void **state)
{
	struct world *w = mem_alloc(sizeof(*w));
	struct httpd_options o;

	world_init(w);
	o = options_of(w);
	world_start(w, &o);
	*state = w;
	return 0;
}

int
world_teardown(void **state)
{
	world_fini(*state);
	mem_free(*state);
	return 0;
}

/* ---- a client that can say anything ---- */

int
dial(uint16_t port)
{
	struct sockaddr_in to = {.sin_family = AF_INET,
	                         .sin_port = htons(port),
	                         .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	struct timeval patience = {.tv_sec = WORLD_PATIENCE_S};
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	assert_true(fd >= 0);
	assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience)), 0);
	assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience)), 0);
	assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof(to)), 0);
	return fd;
}

/* False when the server has closed the connection. */
bool
try_say(int fd, const void *data, size_t n)
{
	for (const char *p = data; n > 0;) {
		ssize_t put = send(fd, p, n, MSG_NOSIGNAL);

		if (put <= 0)
			return false;
		p += put;
		n -= (size_t)put;
	}
	return true;
}

void
tell(int fd, const char *text)
{
	assert_true(try_say(fd, text, strlen(text)));
}

/* One reply of a connection, or status 0 when it ended without one. Never more bytes than belong to it. */
void
hear(int fd, struct answer *a, bool head_only)
{
	size_t n = 0, want = 0;
	const char *length;

	buf_clear(&a->body);
	do {
		memset(a->head, 0, sizeof(a->head));
		for (n = 0; n < sizeof(a->head) - 1 && !strstr(a->head, "\r\n\r\n"); n++)
			if (recv(fd, a->head + n, 1, 0) != 1)
				break;
		a->status = n > 12 ? atoi(a->head + 9) : 0;
	} while (a->status == 100);
	length = strstr(a->head, "Content-Length: ");
	if (length && !head_only)
		want = strtoul(length + strlen("Content-Length: "), NULL, 10);
	while (a->body.len < want) {
		char piece[65536];
		size_t left = want - a->body.len;
		ssize_t got = recv(fd, piece, left < sizeof(piece) ? left : sizeof(piece), 0);

		assert_true(got > 0);
		buf_add(&a->body, piece, (size_t)got);
	}
}

void
answer_fini(struct answer *a)
{
	buf_fini(&a->body);
}

struct answer
answer_empty(void)
{
	struct answer a = {0};

	buf_init(&a.body, 16u << 20);
	return a;
}

/* A fresh connection, one request, its reply. */
void
ask(struct world *w, const char *request, struct answer *a)
{
	int fd = dial(w->port);

	tell(fd, request);
	hear(fd, a, strncmp(request, "HEAD", 4) == 0);
	close(fd);
}

void
expect_end(int fd)
{
	char byte;

	assert_true(recv(fd, &byte, 1, 0) <= 0);
	assert_int_not_equal(errno, EAGAIN);
}

void
expect_header(const struct answer *a, const char *line)
{
	if (!strstr(a->head, line))
		fail_msg("no '%s' in:\n%s", line, a->head);
}
