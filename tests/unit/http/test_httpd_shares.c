/* tsan */
/* tests/unit/http/test_httpd_shares.c - callers of the HTTP server and their shares: who is asked before a body is read, what each may hold, and what
 * becomes of requests whose client has gone. */
#include "tests/support/http/httpd_world.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "common/base/time.h"

#define BODY_MAX (256u << 10)
#define KEPT_MAX 64

/* A caller says "X-Caller: TENANT/TOKEN", with "-" for no tenant. With "X-New" only a worker knows it. Token 666 is refused by whoever looks. */
struct callers {
	struct world w; /* first */
	pthread_mutex_t lock;
	pthread_cond_t moved;
	struct {
		const struct http_request *rq;
		struct http_reply *rp;
	} kept[KEPT_MAX];
	int count, gone;
	atomic_int asked_inline, asked_worker, guarded, abandoned;
};

static enum http_identified
identify(void *app, void *worker, const struct http_request *rq, struct http_reply *rp, struct http_caller *ret)
{
	const char *caller = http_header(rq, "X-Caller"), *slash;
	struct callers *c = app;

	atomic_fetch_add(worker ? &c->asked_worker : &c->asked_inline, 1);
	assert_int_equal(rq->body_len, 0);
	if (!caller)
		return HTTP_CALLER_ANONYMOUS;
	if (!worker && http_header(rq, "X-New"))
		return HTTP_CALLER_UNKNOWN;
	slash = strchr(caller, '/');
	ret->token_id = atoll(slash + 1);
	if (ret->token_id == 666) {
		http_problem(rp, rq, 401, NULL, "not you");
		return HTTP_CALLER_REFUSED;
	}
	if (caller[0] != '-')
		memcpy(ret->tenant, caller, (size_t)(slash - caller));
	return HTTP_CALLER_KNOWN;
}

static bool
guard(void *app, void *worker, const struct http_request *rq, struct http_reply *rp)
{
	struct callers *c = app;

	(void)worker;
	(void)rq;
	(void)rp;
	atomic_fetch_add(&c->guarded, 1);
	return true;
}

static void
handle_length(void *app, void *worker, const struct http_request *rq, struct http_reply *rp)
{
	(void)app;
	(void)worker;
	buf_printf(&rp->body, "%zu", rq->body_len);
}

static void
handle_gate(void *app, void *worker, const struct http_request *rq, struct http_reply *rp)
{
	struct callers *c = app;

	(void)worker;
	(void)rq;
	pthread_mutex_lock(&c->w.lock);
	c->w.entered++;
	pthread_cond_broadcast(&c->w.moved);
	while (!c->w.open)
		pthread_cond_wait(&c->w.moved, &c->w.lock);
	pthread_mutex_unlock(&c->w.lock);
	buf_str(&rp->body, "through");
}

/* ?tenant= is whom it is for. */
static void
handle_keep(void *app, void *worker, const struct http_request *rq, struct http_reply *rp)
{
	struct http_keep keep = {.poll = http_query(rq, "poll") != NULL, .tenant = http_query(rq, "tenant")};
	struct callers *c = app;

	(void)worker;
	if (!http_later(rq, &keep)) {
		http_later_refuse(rq, rp);
		return;
	}
	pthread_mutex_lock(&c->lock);
	c->kept[c->count].rq = rq;
	c->kept[c->count++].rp = rp;
	pthread_cond_broadcast(&c->moved);
	pthread_mutex_unlock(&c->lock);
}

static const struct http_route routes[] = {
	{"POST", "/length", HTTP_WORKER, BODY_MAX, handle_length, 0, ""},
	{"POST", "/length-inline", HTTP_INLINE, BODY_MAX, handle_length, 0, ""},
	{"POST", "/length-aside", HTTP_POOL(1), BODY_MAX, handle_length, 0, ""},
	{"GET", "/gate", HTTP_WORKER, 0, handle_gate, 0, ""},
	{"GET", "/report", HTTP_HEAVY, 0, handle_gate, 0, ""},
	{"GET", "/keep", HTTP_WORKER, 0, handle_keep, 0, ""},
	{"GET", "/keep-inline", HTTP_INLINE, 0, handle_keep, 0, ""},
};

/* Those whose client has gone are let go of, as a keeper would. */
static void
let_go(struct callers *c, bool all)
{
	int left = 0;

	pthread_mutex_lock(&c->lock);
	for (int i = 0; i < c->count; i++) {
		if (http_gone(c->kept[i].rq))
			c->gone++;
		if (all || http_gone(c->kept[i].rq))
			http_later_done(c->kept[i].rq);
		else
			c->kept[left++] = c->kept[i];
	}
	c->count = left;
	pthread_cond_broadcast(&c->moved);
	pthread_mutex_unlock(&c->lock);
}

static void
on_gone(void *app)
{
	let_go(app, false);
}

static void
on_stop(void *app)
{
	let_go(app, true);
}

static void
on_abandoned(void *app, void *worker)
{
	struct callers *c = app;

	assert_ptr_equal(worker, app); /* as worker_new of the world makes them */
	atomic_fetch_add(&c->abandoned, 1);
}

static int
callers_setup(void **state)
{
	struct callers *c = mem_alloc(sizeof(*c));
	struct httpd_options o;

	world_init(&c->w);
	pthread_mutex_init(&c->lock, NULL);
	pthread_cond_init(&c->moved, NULL);
	o = options_of(&c->w);
	o.routes = routes;
	o.route_count = ARRAY_LEN(routes);
	o.identify = identify;
	o.guard = guard;
	o.workers = 4;
	o.more_workers[0] = 1;
	o.queue_max = 40;
	o.later_max = 24;
	o.later_tenant_max = 3;
	o.on_gone = on_gone;
	o.on_abandoned = on_abandoned;
	o.on_stop = on_stop;
	world_start(&c->w, &o);
	*state = c;
	return 0;
}

static int
callers_teardown(void **state)
{
	struct callers *c = *state;

	world_fini(&c->w);
	pthread_cond_destroy(&c->moved);
	pthread_mutex_destroy(&c->lock);
	mem_free(c);
	return 0;
}

static void
await_callers(struct callers *c, const int *what, int n)
{
	struct timespec until;
	int rc = 0;

	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += WORLD_PATIENCE_S;
	pthread_mutex_lock(&c->lock);
	while (*what < n && rc == 0)
		rc = pthread_cond_timedwait(&c->moved, &c->lock, &until);
	pthread_mutex_unlock(&c->lock);
	assert_int_equal(rc, 0);
}

static struct httpd_stats
stats_of(struct callers *c)
{
	struct httpd_stats s;

	httpd_stats(c->w.h, &s);
	return s;
}

static int
begin(struct callers *c, const char *target, const char *more)
{
	char request[512];
	int fd = dial(c->w.port);

	snprintf(request, sizeof(request), "%s HTTP/1.1\r\n" HOST "%s\r\n", target, more);
	tell(fd, request);
	return fd;
}

static void
expect_limit(int fd, struct answer *a, const char *limit)
{
	char member[64];

	hear(fd, a, false);
	snprintf(member, sizeof(member), "\"limit\":\"%s\"", limit);
	assert_int_equal(a->status, 429);
	assert_non_null(strstr(a->head, "Retry-After: "));
	assert_non_null(strstr(buf_text(&a->body), member));
}

static void
expect_continue(int fd)
{
	static const char expected[] = "HTTP/1.1 100 Continue\r\n\r\n";
	char got[sizeof(expected)] = "";

	assert_int_equal(recv(fd, got, sizeof(got) - 1, MSG_WAITALL), sizeof(got) - 1);
	assert_string_equal(got, expected);
}

static void
pour(int fd, size_t n)
{
	char block[4096];

	memset(block, 'b', sizeof(block));
	for (; n > 0; n -= n < sizeof(block) ? n : sizeof(block))
		if (!try_say(fd, block, n < sizeof(block) ? n : sizeof(block)))
			return;
}

/* ---- who is asked ---- */

static void
a_stranger_is_refused_before_its_large_body_comes(void **state)
{
	static const char *const more[] = {
		"X-Caller: -/666\r\nContent-Length: 100000\r\n",
		"X-Caller: -/666\r\nX-New: 1\r\nContent-Length: 100000\r\n",
		"X-Caller: -/666\r\nX-New: 1\r\nContent-Length: 100000\r\nExpect: 100-continue\r\n",
	};
	static const char *const targets[] = {"POST /length", "POST /length-inline", "POST /length-aside"};
	struct callers *c = *state;
	struct answer a = answer_empty();

	for (size_t i = 0; i < ARRAY_LEN(more) * ARRAY_LEN(targets); i++) {
		int fd = begin(c, targets[i / ARRAY_LEN(more)], more[i % ARRAY_LEN(more)]);

		hear(fd, &a, false);
		assert_int_equal(a.status, 401);
		expect_end(fd);
		close(fd);
	}
	assert_int_equal(atomic_load(&c->guarded), 0);
	answer_fini(&a);
}

static void
who_sends_all_of_a_refused_body_still_reads_why(void **state)
{
	struct callers *c = *state;
	struct answer a = answer_empty();

	for (int i = 0; i < 20; i++) {
		int fd = begin(c, "POST /length", "X-Caller: -/666\r\nX-New: 1\r\nContent-Length: 200000\r\n");

		pour(fd, 200000);
		hear(fd, &a, false);
		assert_int_equal(a.status, 401);
		close(fd);
	}
	answer_fini(&a);
}

static void
a_known_caller_sends_its_large_body_also_when_only_a_worker_knows_it(void **state)
{
	static const char *const more[] = {
		"X-Caller: -/7\r\nContent-Length: 100000\r\n",
		"X-Caller: -/7\r\nX-New: 1\r\nContent-Length: 100000\r\n",
		"Content-Length: 100000\r\n",
	};
	static const char *const targets[] = {"POST /length", "POST /length-inline", "POST /length-aside"};
	struct callers *c = *state;
	struct answer a = answer_empty();

	for (size_t i = 0; i < ARRAY_LEN(more) * ARRAY_LEN(targets); i++) {
		int fd = begin(c, targets[i / ARRAY_LEN(more)], more[i % ARRAY_LEN(more)]);

		for (int again = 0; again < 2; again++) {
			pour(fd, 100000);
			hear(fd, &a, false);
			assert_int_equal(a.status, 200);
			assert_string_equal(buf_text(&a.body), "100000");
			if (again == 0) /* the connection goes on */
				tell(fd, "POST /length HTTP/1.1\r\n" HOST "Content-Length: 100000\r\n\r\n");
		}
		close(fd);
	}
	answer_fini(&a);
}

static void
a_worker_that_was_asked_does_not_ask_the_guard(void **state)
{
	struct callers *c = *state;
	struct answer a = answer_empty();

	ask(&c->w, "POST /length HTTP/1.1\r\n" HOST "X-Caller: -/7\r\nX-New: 1\r\nContent-Length: 2\r\n\r\nab", &a);
	assert_string_equal(buf_text(&a.body), "2");
	assert_int_equal(atomic_load(&c->asked_worker), 1);
	assert_int_equal(atomic_load(&c->guarded), 0);
	ask(&c->w, "POST /length HTTP/1.1\r\n" HOST "X-Caller: -/7\r\nContent-Length: 2\r\n\r\nab", &a);
	assert_int_equal(atomic_load(&c->asked_worker), 1);
	assert_int_equal(atomic_load(&c->guarded), 1);
	answer_fini(&a);
}

/* ---- bodies ---- */

static void
large_bodies_of_a_caller_have_a_limit_and_others_and_small_ones_go_on(void **state)
{
	struct callers *c = *state;
	struct answer a = answer_empty();
	int slow[8], fd;

	/* 2 MiB is an eighth of the least that a pool has: eight bodies of 250,000 bytes fit, also of two tokens of a tenant */
	for (int i = 0; i < 8; i++) {
		slow[i] = begin(c, "POST /length",
		                i % 2 ? "X-Caller: acme/1\r\nContent-Length: 250000\r\nExpect: 100-continue\r\n"
		                      : "X-Caller: acme/2\r\nContent-Length: 250000\r\nExpect: 100-continue\r\n");
		expect_continue(slow[i]);
	}
	fd = begin(c, "POST /length", "X-Caller: acme/1\r\nContent-Length: 250000\r\n");
	expect_limit(fd, &a, "bodies-per-caller");
	close(fd);
	ask(&c->w, "POST /length HTTP/1.1\r\n" HOST "X-Caller: acme/1\r\nContent-Length: 2\r\n\r\nab", &a);
	assert_int_equal(a.status, 200);
	fd = begin(c, "POST /length", "X-Caller: other/3\r\nContent-Length: 250000\r\n");
	pour(fd, 250000);
	hear(fd, &a, false);
	assert_int_equal(a.status, 200);
	close(fd);
	/* one that is done makes room for another */
	pour(slow[0], 250000);
	hear(slow[0], &a, false);
	assert_int_equal(a.status, 200);
	tell(slow[0], "POST /length HTTP/1.1\r\n" HOST "X-Caller: acme/1\r\nContent-Length: 250000\r\n\r\n");
	pour(slow[0], 250000);
	hear(slow[0], &a, false);
	assert_int_equal(a.status, 200);
	assert_int_equal(stats_of(c).limited[HTTP_LIMIT_CALLER_BODIES], 1);
	for (int i = 0; i < 8; i++)
		close(slow[i]);
	answer_fini(&a);
}

static void
small_bodies_of_unknown_callers_have_half_of_the_room(void **state)
{
	struct callers *c = *state;
	struct answer a = answer_empty();
	int slow[33];

	/* 64 connections: the address has room for 32 bodies of 16 KiB */
	for (int i = 0; i < 32; i++) {
		slow[i] = begin(c, "POST /length",
		                "X-Caller: -/7\r\nX-New: 1\r\nContent-Length: 16384\r\nExpect: 100-continue\r\n");
		expect_continue(slow[i]);
	}
	slow[32] = begin(c, "POST /length",
	                 "X-Caller: -/7\r\nX-New: 1\r\nContent-Length: 16384\r\nExpect: 100-continue\r\n");
	expect_limit(slow[32], &a, "bodies-per-address");
	ask(&c->w, "POST /length HTTP/1.1\r\n" HOST "X-Caller: -/7\r\nContent-Length: 2\r\n\r\nab", &a);
	assert_int_equal(a.status, 200);
	for (int i = 0; i < 33; i++)
		close(slow[i]);
	answer_fini(&a);
}

/* ---- workers ---- */

static void
one_report_of_a_tenant_is_made_at_a_time_and_others_are_served(void **state)
{
	struct callers *c = *state;
	struct answer a = answer_empty();
	int fds[18];

	fds[0] = begin(c, "GET /report", "X-Caller: acme/1\r\n");
	await_entered(&c->w, 1);
	for (int i = 1; i < 17; i++)
		fds[i] = begin(c, "GET /report", i % 2 ? "X-Caller: acme/1\r\n" : "X-Caller: acme/2\r\nX-New: 1\r\n");
	while (stats_of(c).waiting[0] < 16 || stats_of(c).running[0] > 1)
		sched_yield();
	fds[17] = begin(c, "GET /report", "X-Caller: acme/1\r\n");
	expect_limit(fds[17], &a, "reports-per-caller");
	ask(&c->w, "POST /length HTTP/1.1\r\n" HOST "X-Caller: acme/1\r\nContent-Length: 2\r\n\r\nab", &a);
	assert_int_equal(a.status, 200);
	ask(&c->w, "POST /length HTTP/1.1\r\n" HOST "X-Caller: other/3\r\nX-New: 1\r\nContent-Length: 2\r\n\r\nab", &a);
	assert_int_equal(a.status, 200);
	close(fds[17]);
	/* those that are not wanted any more are not made */
	for (int i = 1; i < 17; i += 2)
		close(fds[i]);
	while (stats_of(c).waiting[0] > 8 || stats_of(c).abandoned < 8)
		sched_yield();
	open_gate(&c->w);
	for (int i = 0; i < 17; i += 2) {
		hear(fds[i], &a, false);
		assert_int_equal(a.status, 200);
		close(fds[i]);
	}
	assert_int_equal(c->w.entered, 9);
	answer_fini(&a);
}

static void
a_report_that_is_being_made_for_nobody_is_told_to_its_worker(void **state)
{
	struct callers *c = *state;
	struct answer a = answer_empty();
	int report = begin(c, "GET /report", "X-Caller: acme/1\r\n"),
	    other = begin(c, "GET /gate", "X-Caller: acme/1\r\n");

	await_entered(&c->w, 2);
	close(other); /* no report: its worker goes on */
	close(report);
	await_count(&c->abandoned, 1);
	assert_int_equal(stats_of(c).abandoned, 1);
	open_gate(&c->w);
	await_count(&c->w.done, 2);
	ask(&c->w, "GET /report HTTP/1.1\r\n" HOST "X-Caller: acme/1\r\n\r\n", &a);
	assert_int_equal(a.status, 200);
	assert_int_equal(atomic_load(&c->abandoned), 1);
	answer_fini(&a);
}

/* ---- kept requests ---- */

static void
polls_of_a_tenant_have_a_limit_and_so_have_those_for_it(void **state)
{
	struct callers *c = *state;
	struct answer a = answer_empty();
	int fds[16], n = 0, refused;

	for (; n < 3; n++)
		fds[n] = begin(c, n % 2 ? "GET /keep?poll" : "GET /keep-inline?poll",
		               n ? "X-Caller: acme/1\r\n" : "X-Caller: acme/2\r\n");
	await_callers(c, &c->count, 3);
	refused = begin(c, "GET /keep?poll", "X-Caller: acme/1\r\n");
	expect_limit(refused, &a, "polls-per-caller");
	close(refused);
	/* what is no poll is counted apart */
	fds[n++] = begin(c, "GET /keep", "X-Caller: acme/1\r\n");
	await_callers(c, &c->count, 4);
	/* a token of no tenant has a quarter of all, and counts for the tenant it names as well */
	for (int i = 0; i < 3; i++)
		fds[n++] = begin(c, "GET /keep?poll&tenant=other", "X-Caller: -/9\r\n");
	await_callers(c, &c->count, 7);
	refused = begin(c, "GET /keep?poll&tenant=other", "X-Caller: -/9\r\n");
	expect_limit(refused, &a, "polls-per-caller");
	close(refused);
	for (int i = 0; i < 3; i++)
		fds[n++] = begin(c, "GET /keep?poll&tenant=third", "X-Caller: -/9\r\n");
	await_callers(c, &c->count, 10);
	refused = begin(c, "GET /keep?poll&tenant=fourth", "X-Caller: -/9\r\n");
	expect_limit(refused, &a, "polls-per-caller");
	close(refused);
	assert_int_equal(stats_of(c).kept, 10);
	for (int i = 0; i < n; i++)
		close(fds[i]);
	await_callers(c, &c->gone, n);
	while (stats_of(c).kept > 0)
		sched_yield();
	answer_fini(&a);
}

static void
a_place_is_free_again_as_soon_as_its_client_goes(void **state)
{
	struct callers *c = *state;

	for (int i = 0; i < 200; i++) {
		int fd = begin(c, i % 2 ? "GET /keep?poll" : "GET /keep-inline?poll", "X-Caller: -/7\r\n");

		/* never more at once than a token may have */
		while (i - atomic_load(&c->w.done) > 3)
			sched_yield();
		close(fd);
	}
	/* some went before they were kept, and were not */
	while (stats_of(c).kept > 0)
		sched_yield();
	await_count(&c->w.done, 200);
}

#define WITH_CALLERS(f) cmocka_unit_test_setup_teardown(f, callers_setup, callers_teardown)

int
main(void)
{
	const struct CMUnitTest tests[] = {
		WITH_CALLERS(a_stranger_is_refused_before_its_large_body_comes),
		WITH_CALLERS(who_sends_all_of_a_refused_body_still_reads_why),
		WITH_CALLERS(a_known_caller_sends_its_large_body_also_when_only_a_worker_knows_it),
		WITH_CALLERS(a_worker_that_was_asked_does_not_ask_the_guard),
		WITH_CALLERS(large_bodies_of_a_caller_have_a_limit_and_others_and_small_ones_go_on),
		WITH_CALLERS(small_bodies_of_unknown_callers_have_half_of_the_room),
		WITH_CALLERS(one_report_of_a_tenant_is_made_at_a_time_and_others_are_served),
		WITH_CALLERS(a_report_that_is_being_made_for_nobody_is_told_to_its_worker),
		WITH_CALLERS(polls_of_a_tenant_have_a_limit_and_so_have_those_for_it),
		WITH_CALLERS(a_place_is_free_again_as_soon_as_its_client_goes),
	};

	return cmocka_run_group_tests_name("httpd_shares", tests, NULL, NULL);
}
