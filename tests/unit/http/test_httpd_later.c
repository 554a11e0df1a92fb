/* tsan */
/* tests/unit/http/test_httpd_later.c - requests that are kept without a worker until somebody else has their reply. */
#include "tests/support/http/httpd_world.h"

#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "common/base/time.h"

#define KEPT_MAX 12

/* Requests that wait, in the order they came;. */
struct keeper {
	struct world w; /* first: it is what the handlers of the world get */
	pthread_mutex_t lock;
	pthread_cond_t moved;
	struct {
		const struct http_request *rq;
		struct http_reply *rp;
	} kept[KEPT_MAX];
	size_t count;
	bool ends;
	int stops;
};

static void
answer_one(const struct http_request *rq, struct http_reply *rp, int status)
{
	const char *name = http_query(rq, "name");

	if (status == 503)
		http_problem(rp, rq, 503, NULL, "not any more");
	else
		buf_printf(&rp->body, "later %s", name ? name : "nobody");
	http_later_done(rq);
}

static void
answer_all(struct keeper *k, int status)
{
	pthread_mutex_lock(&k->lock);
	for (size_t i = 0; i < k->count; i++)
		answer_one(k->kept[i].rq, k->kept[i].rp, status);
	k->count = 0;
	pthread_mutex_unlock(&k->lock);
}

static void
await_kept(struct keeper *k, size_t n)
{
	struct timespec until;
	int rc = 0;

	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += WORLD_PATIENCE_S;
	pthread_mutex_lock(&k->lock);
	while (k->count < n && rc == 0)
		rc = pthread_cond_timedwait(&k->moved, &k->lock, &until);
	pthread_mutex_unlock(&k->lock);
	assert_int_equal(rc, 0);
}

static void
handle_keep(void *app, void *worker, const struct http_request *rq, struct http_reply *rp)
{
	struct keeper *k = app;

	(void)worker;
	if (!http_later(rq, &(struct http_keep){.poll = true})) {
		http_later_refuse(rq, rp);
		return;
	}
	pthread_mutex_lock(&k->lock);
	k->kept[k->count].rq = rq;
	k->kept[k->count++].rp = rp;
	pthread_cond_broadcast(&k->moved);
	pthread_mutex_unlock(&k->lock);
}

/* The reply is there before the handler returns. */
static void
handle_early(void *app, void *worker, const struct http_request *rq, struct http_reply *rp)
{
	(void)app;
	(void)worker;
	assert_true(http_later(rq, &(struct http_keep){.poll = true}));
	answer_one(rq, rp, 200);
}

static void
handle_free(void *app, void *worker, const struct http_request *rq, struct http_reply *rp)
{
	(void)app;
	(void)worker;
	(void)rq;
	buf_str(&rp->body, "at once");
}

static void
handle_wait(void *app, void *worker, const struct http_request *rq, struct http_reply *rp)
{
	struct keeper *k = app;

	pthread_mutex_lock(&k->w.lock);
	k->w.entered++;
	pthread_cond_broadcast(&k->w.moved);
	while (!k->w.open)
		pthread_cond_wait(&k->w.moved, &k->w.lock);
	pthread_mutex_unlock(&k->w.lock);
	handle_keep(app, worker, rq, rp);
}

static const struct http_route routes[] = {
	{"GET", "/keep", false, 0, handle_keep, 0, ""},
	{"POST", "/keep", false, WORLD_BODY_MAX, handle_keep, 0, ""},
	{"GET", "/early", false, 0, handle_early, 0, ""},
	{"GET", "/free", false, 0, handle_free, 0, ""},
	{"GET", "/wait", false, 0, handle_wait, 0, ""},
	{"POST", "/keep-inline", true, WORLD_BODY_MAX, handle_keep, 0, ""},
	{"GET", "/early-inline", true, 0, handle_early, 0, ""},
};

static void
on_stop(void *app)
{
	struct keeper *k = app;

	k->stops++;
	answer_all(k, 503);
}

static int
keeper_setup(void **state)
{
	struct keeper *k = mem_alloc(sizeof(*k));
	struct httpd_options o;

	world_init(&k->w);
	pthread_mutex_init(&k->lock, NULL);
	pthread_cond_init(&k->moved, NULL);
	o = options_of(&k->w);
	o.routes = routes;
	o.route_count = ARRAY_LEN(routes);
	o.later_max = KEPT_MAX;
	o.on_stop = on_stop;
	world_start(&k->w, &o);
	*state = k;
	return 0;
}

static int
keeper_teardown(void **state)
{
	struct keeper *k = *state;

	world_fini(&k->w);
	pthread_cond_destroy(&k->moved);
	pthread_mutex_destroy(&k->lock);
	mem_free(k);
	return 0;
}

static void
keep(struct keeper *k, int fds[], size_t n)
{
	for (size_t i = 0; i < n; i++) {
		char request[128];

		snprintf(request, sizeof(request), "GET /keep?name=%zu HTTP/1.1\r\n" HOST "\r\n", i);
		fds[i] = dial(k->w.port);
		tell(fds[i], request);
		await_kept(k, i + 1);
	}
}

static void
kept_requests_take_no_worker_and_each_gets_its_own_reply(void **state)
{
	struct keeper *k = *state;
	struct answer a = answer_empty();
	int fds[KEPT_MAX];

	keep(k, fds, KEPT_MAX); /* six times as many as there are workers */
	ask(&k->w, "GET /free HTTP/1.1\r\n" HOST "\r\n", &a);
	assert_string_equal(buf_text(&a.body), "at once");
	answer_all(k, 200);
	for (int i = 0; i < KEPT_MAX; i++) {
		char expected[32];

		hear(fds[i], &a, false);
		snprintf(expected, sizeof(expected), "later %d", i);
		assert_int_equal(a.status, 200);
		assert_string_equal(buf_text(&a.body), expected);
		/* the connection goes on */
		tell(fds[i], "GET /free HTTP/1.1\r\n" HOST "\r\n");
		hear(fds[i], &a, false);
		assert_string_equal(buf_text(&a.body), "at once");
		close(fds[i]);
	}
	answer_fini(&a);
}

static void
a_reply_may_be_there_before_its_handler_returns(void **state)
{
	struct keeper *k = *state;
	struct answer a = answer_empty();

	for (int i = 0; i < 20; i++) {
		ask(&k->w,
		    i % 2 ? "GET /early?name=bird HTTP/1.1\r\n" HOST "\r\n"
		          : "GET /early-inline?name=bird HTTP/1.1\r\n" HOST "\r\n",
		    &a);
		assert_int_equal(a.status, 200);
		assert_string_equal(buf_text(&a.body), "later bird");
	}
	answer_fini(&a);
}

static void
one_more_than_may_wait_is_told_so_at_once(void **state)
{
	struct keeper *k = *state;
	struct answer a = answer_empty();
	int fds[KEPT_MAX];

	keep(k, fds, KEPT_MAX);
	ask(&k->w, "GET /keep HTTP/1.1\r\n" HOST "\r\n", &a);
	assert_int_equal(a.status, 503);
	expect_header(&a, "Retry-After: 1\r\n");
	answer_all(k, 200);
	for (int i = 0; i < KEPT_MAX; i++) {
		hear(fds[i], &a, false);
		assert_int_equal(a.status, 200);
		close(fds[i]);
	}
	/* there is room again */
	keep(k, fds, 1);
	answer_all(k, 200);
	hear(fds[0], &a, false);
	assert_int_equal(a.status, 200);
	close(fds[0]);
	answer_fini(&a);
}

static void
a_client_that_left_is_found_out_by_its_reply_and_harms_nobody(void **state)
{
	struct linger reset = {.l_onoff = 1, .l_linger = 0};
	struct keeper *k = *state;
	struct answer a = answer_empty();
	int fds[2];

	keep(k, fds, 2);
	assert_int_equal(setsockopt(fds[0], SOL_SOCKET, SO_LINGER, &reset, sizeof(reset)), 0);
	close(fds[0]);
	answer_all(k, 200);
	hear(fds[1], &a, false);
	assert_string_equal(buf_text(&a.body), "later 1");
	await_count(&k->w.done, 2);
	close(fds[1]);
	answer_fini(&a);
}

static void *
stop_thread(void *arg)
{
	struct keeper *k = arg;

	httpd_stop(k->w.h);
	return NULL;
}

static void
a_stop_lets_their_keeper_answer_and_none_is_kept_after(void **state)
{
	struct keeper *k = *state;
	struct answer a = answer_empty();
	struct timespec until;
	pthread_t stopping;
	int fds[3], late;

	keep(k, fds, 3);
	late = dial(k->w.port);
	tell(late, "GET /wait HTTP/1.1\r\n" HOST "\r\n");
	await_entered(&k->w, 1);
	assert_int_equal(pthread_create(&stopping, NULL, stop_thread, k), 0);
	do /* until it turns requests away */
		ask(&k->w, "GET /free HTTP/1.1\r\n" HOST "\r\n", &a);
	while (a.status == 200);
	open_gate(&k->w);
	hear(late, &a, false);
	assert_int_equal(a.status, 503);
	for (int i = 0; i < 3; i++) {
		hear(fds[i], &a, false);
		assert_int_equal(a.status, 503);
		assert_non_null(strstr(buf_text(&a.body), "not any more"));
		close(fds[i]);
	}
	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += WORLD_PATIENCE_S;
	assert_int_equal(pthread_timedjoin_np(stopping, NULL, &until), 0);
	k->w.h = NULL;
	assert_int_equal(k->stops, 1);
	close(late);
	answer_fini(&a);
}

/* ---- many at once ---- */

static void *
answering(void *arg)
{
	struct keeper *k = arg;

	pthread_mutex_lock(&k->lock);
	while (!k->ends || k->count > 0) {
		while (k->count == 0 && !k->ends)
			pthread_cond_wait(&k->moved, &k->lock);
		for (size_t i = 0; i < k->count; i++)
			answer_one(k->kept[i].rq, k->kept[i].rp, 200);
		k->count = 0;
	}
	pthread_mutex_unlock(&k->lock);
	return NULL;
}

struct talker {
	struct keeper *k;
	int number;
	int wrong;
};

static void *
talk(void *arg)
{
	struct talker *t = arg;
	struct answer a = answer_empty();
	int fd = dial(t->k->w.port);

	for (int i = 0; i < 100; i++) {
		char expected[64], request[256];

		snprintf(expected, sizeof(expected), "later %d-%d", t->number, i);
		snprintf(request, sizeof(request),
		         "POST /keep%s?name=%d-%d HTTP/1.1\r\n" HOST "Content-Length: 4\r\n\r\nbody",
		         (t->number + i) % 2 ? "" : "-inline", t->number, i);
		if (!try_say(fd, request, strlen(request)))
			t->wrong++;
		hear(fd, &a, false);
		if (a.status == 503) /* the queue of the workers is short */
			i--;
		else if (a.status != 200 || strcmp(buf_text(&a.body), expected) != 0)
			t->wrong++;
	}
	close(fd);
	answer_fini(&a);
	return NULL;
}

static void
parallel_clients_each_get_their_own_later_replies(void **state)
{
	struct keeper *k = *state;
	struct talker talkers[8];
	pthread_t threads[8], answerer;

	assert_int_equal(pthread_create(&answerer, NULL, answering, k), 0);
	for (int i = 0; i < 8; i++) {
		talkers[i] = (struct talker){.k = k, .number = i};
		assert_int_equal(pthread_create(&threads[i], NULL, talk, &talkers[i]), 0);
	}
	for (int i = 0; i < 8; i++) {
		pthread_join(threads[i], NULL);
		assert_int_equal(talkers[i].wrong, 0);
	}
	pthread_mutex_lock(&k->lock);
	k->ends = true;
	pthread_cond_broadcast(&k->moved);
	pthread_mutex_unlock(&k->lock);
	pthread_join(answerer, NULL);
}

#define KEPT(f) cmocka_unit_test_setup_teardown(f, keeper_setup, keeper_teardown)

int
main(void)
{
	const struct CMUnitTest tests[] = {
		KEPT(kept_requests_take_no_worker_and_each_gets_its_own_reply),
		KEPT(a_reply_may_be_there_before_its_handler_returns),
		KEPT(one_more_than_may_wait_is_told_so_at_once),
		KEPT(a_client_that_left_is_found_out_by_its_reply_and_harms_nobody),
		KEPT(a_stop_lets_their_keeper_answer_and_none_is_kept_after),
		KEPT(parallel_clients_each_get_their_own_later_replies),
	};

	return cmocka_run_group_tests_name("httpd_later", tests, NULL, NULL);
}
