/* tsan */
/* tests/unit/http/test_httpd_load.c - the HTTP server with many clients, bad clients, and at its end. */
#include "tests/support/http/httpd_world.h"

#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "common/base/time.h"

/* ---- many at once ---- */

/* With both workers at the gate one place is left to wait. Of two requests more one is refused, at once: it is in a,
 * and its connection in ret_refused. The other waits, on ret_waiting. */
static void
fill_queue(struct world *w, const char *request, struct answer *a, int *ret_waiting, int *ret_refused)
{
	struct pollfd two[2] = {{.events = POLLIN}, {.events = POLLIN}};
	int refused;

	for (int i = 0; i < 2; i++) {
		two[i].fd = dial(w->port);
		tell(two[i].fd, request);
	}
	assert_int_equal(poll(two, 2, WORLD_PATIENCE_S * 1000), 1);
	refused = two[0].revents ? 0 : 1;
	hear(two[refused].fd, a, false);
	*ret_refused = two[refused].fd;
	*ret_waiting = two[1 - refused].fd;
}

static void
occupy_workers(struct world *w, int busy[2])
{
	for (int i = 0; i < 2; i++) {
		busy[i] = dial(w->port);
		tell(busy[i], "GET /gate HTTP/1.1\r\n" HOST "\r\n");
	}
	await_entered(w, 2);
}

static void
a_full_queue_is_answered_503_at_once_and_the_rest_is_served(void **state)
{
	struct world *w = *state;
	struct answer a = answer_empty();
	int busy[2], waiting, refused;

	occupy_workers(w, busy);
	fill_queue(w, "GET /gate HTTP/1.1\r\n" HOST "\r\n", &a, &waiting, &refused);
	assert_int_equal(a.status, 503);
	expect_header(&a, "Retry-After: 1\r\n");
	/* inline routes do not need a worker */
	ask(w, "GET /inline HTTP/1.1\r\n" HOST "\r\n", &a);
	assert_int_equal(a.status, 200);
	open_gate(w);
	for (int i = 0; i < 2; i++) {
		hear(busy[i], &a, false);
		assert_int_equal(a.status, 200);
		close(busy[i]);
	}
	hear(waiting, &a, false);
	assert_int_equal(a.status, 200);
	/* and the refused connection can try again */
	tell(refused, "GET /gate HTTP/1.1\r\n" HOST "\r\n");
	hear(refused, &a, false);
	assert_int_equal(a.status, 200);
	close(waiting);
	close(refused);
	answer_fini(&a);
}

struct talker {
	struct world *w;
	int number;
	int wrong;
};

static void *
talk(void *arg)
{
	struct talker *t = arg;
	struct answer a = answer_empty();
	int fd = dial(t->w->port);

	for (int i = 0; i < 100; i++) {
		char body[64], request[256];
		int n = snprintf(body, sizeof(body), "talker %d, request %d", t->number, i);

		snprintf(request, sizeof(request), "POST %s HTTP/1.1\r\n" HOST "Content-Length: %d\r\n\r\n%s",
		         i % 3 ? "/echo" : "/echo-inline", n, body);
		if (!try_say(fd, request, strlen(request)))
			t->wrong++;
		hear(fd, &a, false);
		if (a.status != 200 || strcmp(buf_text(&a.body), body) != 0)
			t->wrong++;
	}
	close(fd);
	answer_fini(&a);
	return NULL;
}

static void
parallel_clients_each_get_their_own_replies(void **state)
{
	struct world *w = mem_alloc(sizeof(*w));
	struct talker talkers[8];
	pthread_t threads[8];
	struct httpd_options o;

	(void)state;
	world_init(w);
	o = options_of(w);
	o.queue_max = 8;
	world_start(w, &o);
	for (int i = 0; i < 8; i++) {
		talkers[i] = (struct talker){.w = w, .number = i};
		assert_int_equal(pthread_create(&threads[i], NULL, talk, &talkers[i]), 0);
	}
	for (int i = 0; i < 8; i++) {
		pthread_join(threads[i], NULL);
		assert_int_equal(talkers[i].wrong, 0);
	}
	await_count(&w->done, 800);
	world_fini(w);
	assert_int_equal(atomic_load(&w->workers_made), 2);
	assert_int_equal(atomic_load(&w->workers_freed), 2);
	mem_free(w);
}

static void
slow_clients_do_not_hold_up_others(void **state)
{
	struct world *w = *state;
	struct answer a = answer_empty();
	int half_head = dial(w->port), half_body = dial(w->port), deaf = dial(w->port);
	char byte;

	tell(half_head, "GET /inline HTTP/1.1\r\nHos");
	tell(half_body, "POST /echo HTTP/1.1\r\n" HOST "Content-Length: 10\r\n\r\nhalf");
	tell(deaf, "GET /shared HTTP/1.1\r\n" HOST "\r\n");
	/* the reply to the deaf one has begun and does not fit into the kernel's buffers */
	assert_int_equal(recv(deaf, &byte, 1, MSG_PEEK), 1);
	for (int i = 0; i < 20; i++) {
		ask(w, "GET /worker HTTP/1.1\r\n" HOST "\r\n", &a);
		assert_int_equal(a.status, 200);
		ask(w, "GET /inline HTTP/1.1\r\n" HOST "\r\n", &a);
		assert_int_equal(a.status, 200);
	}
	tell(half_head, "t: t\r\n\r\n");
	hear(half_head, &a, false);
	assert_int_equal(a.status, 200);
	tell(half_body, "and ha");
	hear(half_body, &a, false);
	assert_string_equal(buf_text(&a.body), "halfand ha");
	hear(deaf, &a, false);
	assert_int_equal(a.body.len, WORLD_SHARED_BYTES);
	close(half_head);
	close(half_body);
	close(deaf);
	answer_fini(&a);
}

/* Closes with a reset: an orderly end right behind other bytes is not seen by libmicrohttpd until the idle timeout. */
static void
break_off(int fd)
{
	struct linger reset = {.l_onoff = 1, .l_linger = 0};

	assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset)), 0);
	close(fd);
}

static void
a_client_that_leaves_while_a_worker_is_busy_harms_nobody(void **state)
{
	struct world *w = *state;
	struct answer a = answer_empty();
	int fd = dial(w->port);

	tell(fd, "GET /gate HTTP/1.1\r\n" HOST "\r\n");
	await_entered(w, 1);
	break_off(fd);
	open_gate(w);
	await_count(&w->done, 1);
	ask(w, "GET /worker HTTP/1.1\r\n" HOST "\r\n", &a);
	assert_int_equal(a.status, 200);
	answer_fini(&a);
}

static void
each_request_is_reported_once_with_its_status(void **state)
{
	static const struct {
		const char *request;
		int status;
	} cases[] = {
		{"GET /inline HTTP/1.1\r\n" HOST "\r\n", 200},
		{"GET /worker HTTP/1.1\r\n" HOST "\r\n", 200},
		{"GET /nowhere HTTP/1.1\r\n" HOST "\r\n", 404},
		{"POST /echo HTTP/1.1\r\n" HOST "Content-Length: 5000000\r\n\r\n", 413},
		{"POST /echo HTTP/1.1\r\n" HOST "Content-Length: 1\r\nContent-Length: 2\r\n\r\n", 400},
	};
	struct world *w = *state;
	struct answer a = answer_empty();
	int fd;

	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		ask(w, cases[i].request, &a);
		await_count(&w->done, (int)i + 1);
		assert_int_equal(atomic_load(&w->last_status), cases[i].status);
	}
	/* one that has begun, and then breaks off */
	fd = dial(w->port);
	tell(fd, "POST /echo HTTP/1.1\r\n" HOST "Content-Length: 10\r\nExpect: 100-continue\r\n\r\n");
	assert_true(recv(fd, a.head, sizeof(a.head), 0) > 0);
	break_off(fd);
	await_count(&w->done, (int)ARRAY_LEN(cases) + 1);
	assert_int_equal(atomic_load(&w->last_status), 0);
	answer_fini(&a);
}

/* ---- start and stop ---- */

static void
a_taken_port_is_named(void **state)
{
	struct world *w = *state;
	struct httpd_options o = options_of(w);
	struct err err = {0};
	struct httpd *second = NULL;
	char address[32];

	snprintf(address, sizeof(address), "127.0.0.1:%u", (unsigned)w->port);
	o.listen = address;
	assert_false(httpd_start(&o, &second, &err));
	assert_null(second);
	assert_int_equal(err.kind, ERR_CONFLICT);
	assert_non_null(strstr(err.text, address));
	assert_non_null(strstr(err.text, "in use"));
	o.listen = "127.0.0.1";
	assert_false(httpd_start(&o, &second, &err));
	assert_int_equal(err.kind, ERR_INVALID);
	assert_non_null(strstr(err.text, "127.0.0.1"));
	o.listen = "[::1]:0";
	if (httpd_start(&o, &second, &err)) {
		assert_true(httpd_port(second) > 0);
		httpd_stop(second);
	}
	httpd_stop(NULL);
}

static void *
stop_thread(void *arg)
{
	struct world *w = arg;

	httpd_stop(w->h);
	return NULL;
}

static pthread_t
begin_stop(struct world *w)
{
	pthread_t thread;

	assert_int_equal(pthread_create(&thread, NULL, stop_thread, w), 0);
	return thread;
}

static void
await_stop(struct world *w, pthread_t thread)
{
	struct timespec until;

	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += WORLD_PATIENCE_S;
	assert_int_equal(pthread_timedjoin_np(thread, NULL, &until), 0);
	w->h = NULL;
}

/* Until requests are turned away. */
static void
await_refusal(struct world *w)
{
	struct answer a = answer_empty();

	do {
		int fd = dial(w->port);

		a.status = 0;
		if (try_say(fd, "GET /inline HTTP/1.1\r\n" HOST "\r\n", strlen("GET /inline HTTP/1.1\r\n" HOST "\r\n")))
			hear(fd, &a, false);
		close(fd);
	} while (a.status == 200);
	answer_fini(&a);
}

static void
a_stop_finishes_requests_in_work_and_in_the_queue(void **state)
{
	struct world *w = *state;
	struct answer a = answer_empty();
	pthread_t stopping;
	int busy[3], refused, idle = dial(w->port), half = dial(w->port);

	occupy_workers(w, busy);
	fill_queue(w, "GET /shared HTTP/1.1\r\n" HOST "\r\n", &a, &busy[2], &refused);
	assert_int_equal(a.status, 503);
	close(refused);
	tell(half, "POST /echo HTTP/1.1\r\n" HOST "Content-Length: 10\r\nExpect: 100-continue\r\n\r\n");
	assert_true(recv(half, a.head, sizeof(a.head), 0) > 0);
	stopping = begin_stop(w);
	await_refusal(w);
	/* a connection that was there before is told, and let go */
	tell(idle, "GET /inline HTTP/1.1\r\n" HOST "\r\n");
	hear(idle, &a, false);
	assert_int_equal(a.status, 503);
	expect_header(&a, "Connection: close\r\n");
	expect_end(idle);
	open_gate(w);
	for (int i = 0; i < 3; i++) {
		hear(busy[i], &a, false);
		assert_int_equal(a.status, 200);
		assert_int_equal(a.body.len, i < 2 ? strlen("through\n") : WORLD_SHARED_BYTES);
		close(busy[i]);
	}
	await_stop(w, stopping);
	assert_int_equal(atomic_load(&w->workers_freed), 2);
	assert_int_equal(atomic_load(&w->released), 1);
	close(idle);
	close(half);
	answer_fini(&a);
}

static void
a_stop_at_the_connection_limit_does_not_hang(void **state)
{
	struct world *w = mem_alloc(sizeof(*w));
	struct answer a = answer_empty();
	struct httpd_options o;
	int fds[10];

	(void)state;
	world_init(w);
	o = options_of(w);
	o.connection_max = 4;
	world_start(w, &o);
	for (int i = 0; i < 10; i++) {
		fds[i] = dial(w->port);
		/* the first four are served and stay, the others wait in the backlog */
		tell(fds[i], "GET /worker HTTP/1.1\r\n" HOST "\r\n");
		if (i < 4) {
			hear(fds[i], &a, false);
			assert_int_equal(a.status, 200);
		}
	}
	await_stop(w, begin_stop(w));
	for (int i = 0; i < 10; i++)
		close(fds[i]);
	answer_fini(&a);
	world_fini(w);
	mem_free(w);
}

static void *
hammer(void *arg)
{
	const int *at = arg;
	int fd = *at;
	char some[4096];

	while (try_say(fd, "GET /worker HTTP/1.1\r\n" HOST "\r\n", strlen("GET /worker HTTP/1.1\r\n" HOST "\r\n")))
		if (recv(fd, some, sizeof(some), 0) <= 0)
			break;
	close(fd);
	return NULL;
}

static void
a_stop_amid_requests_ends_well_whatever_they_were_at(void **state)
{
	(void)state;
	for (int round = 0; round < 40; round++) {
		struct world *w = mem_alloc(sizeof(*w));
		struct httpd_options o;
		pthread_t threads[4];
		int fds[ARRAY_LEN(threads)];

		world_init(w);
		o = options_of(w);
		world_start(w, &o);
		for (size_t i = 0; i < ARRAY_LEN(threads); i++)
			fds[i] = dial(w->port);
		for (size_t i = 0; i < ARRAY_LEN(threads); i++)
			assert_int_equal(pthread_create(&threads[i], NULL, hammer, &fds[i]), 0);
		while (atomic_load(&w->done) < 20)
			usleep(100);
		await_stop(w, begin_stop(w));
		for (size_t i = 0; i < ARRAY_LEN(threads); i++)
			pthread_join(threads[i], NULL);
		world_fini(w);
		mem_free(w);
	}
}

static void
a_stop_does_not_wait_for_ever_for_a_client_that_does_not_read(void **state)
{
	struct world *w = *state;
	int deaf = dial(w->port);
	char byte;

	tell(deaf, "GET /shared HTTP/1.1\r\n" HOST "\r\n");
	assert_int_equal(recv(deaf, &byte, 1, MSG_PEEK), 1);
	await_stop(w, begin_stop(w));
	assert_int_equal(atomic_load(&w->released), 1);
	close(deaf);
}

static void
an_idle_connection_is_closed_after_its_time(void **state)
{
	struct world *w = mem_alloc(sizeof(*w));
	struct answer a = answer_empty();
	struct httpd_options o;
	int fd;

	(void)state;
	world_init(w);
	o = options_of(w);
	o.idle_timeout_ns = 1;
	world_start(w, &o);
	fd = dial(w->port);
	tell(fd, "GET /inline HTTP/1.1\r\n" HOST "\r\n");
	hear(fd, &a, false);
	assert_int_equal(a.status, 200);
	expect_end(fd);
	close(fd);
	answer_fini(&a);
	world_fini(w);
	mem_free(w);
}

#define IN_WORLD(f) cmocka_unit_test_setup_teardown(f, world_setup, world_teardown)

int
main(void)
{
	const struct CMUnitTest tests[] = {
		IN_WORLD(a_full_queue_is_answered_503_at_once_and_the_rest_is_served),
		cmocka_unit_test(parallel_clients_each_get_their_own_replies),
		IN_WORLD(slow_clients_do_not_hold_up_others),
		IN_WORLD(a_client_that_leaves_while_a_worker_is_busy_harms_nobody),
		IN_WORLD(each_request_is_reported_once_with_its_status),
		IN_WORLD(a_taken_port_is_named),
		IN_WORLD(a_stop_finishes_requests_in_work_and_in_the_queue),
		cmocka_unit_test(a_stop_at_the_connection_limit_does_not_hang),
		cmocka_unit_test(a_stop_amid_requests_ends_well_whatever_they_were_at),
		IN_WORLD(a_stop_does_not_wait_for_ever_for_a_client_that_does_not_read),
		cmocka_unit_test(an_idle_connection_is_closed_after_its_time),
	};

	return cmocka_run_group_tests_name("httpd_load", tests, NULL, NULL);
}
