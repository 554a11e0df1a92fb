/* tsan */
/* tests/unit/store/test_db_watch.c - deadlines of database connections: who waits too long is cut off, and nobody else. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "aggregator/store/db/db_watch.h"
#include "common/base/time.h"

#define PAST_NS 1 /* of the boot clock: long ago */
#define FAR_NS (24 * NS_PER_HOUR)

struct pair {
	int ours, theirs;
	struct db_watched watched;
};

static void
pair_open(struct pair *p)
{
	int fds[2];

	*p = (struct pair){0};
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
	p->ours = fds[0];
	p->theirs = fds[1];
	assert_true(db_watch_add(&p->watched, p->ours, NULL));
}

static void
pair_close(struct pair *p)
{
	close(p->ours);
	close(p->theirs);
	db_watch_remove(&p->watched);
}

/* Whether a byte that is sent from the other side arrives. */
static bool
is_whole(const struct pair *p)
{
	char c = 'x';

	return send(p->theirs, &c, 1, MSG_NOSIGNAL) == 1 && recv(p->ours, &c, 1, 0) == 1;
}

static void
a_read_that_is_past_its_deadline_returns(void **state)
{
	struct pair late, other;
	char c;

	(void)state;
	pair_open(&late);
	pair_open(&other);
	db_watch_until(&other.watched, time_boot_ns() + FAR_NS);
	db_watch_until(&late.watched, time_boot_ns() + 10 * NS_PER_MS);
	assert_int_equal(recv(late.ours, &c, 1, 0), 0);
	assert_true(atomic_load(&late.watched.cut));
	assert_false(atomic_load(&other.watched.cut));
	assert_true(is_whole(&other));
	pair_close(&late);
	pair_close(&other);
}

static void
a_write_that_nobody_takes_returns(void **state)
{
	static char much[1 << 20];
	struct pair p;

	(void)state;
	pair_open(&p);
	db_watch_until(&p.watched, time_boot_ns() + 10 * NS_PER_MS);
	while (send(p.ours, much, sizeof(much), MSG_NOSIGNAL) > 0)
		;
	assert_true(atomic_load(&p.watched.cut));
	pair_close(&p);
}

/* The watch has looked once more when another connection is cut. */
static void
wait_for_look(void)
{
	struct pair p;
	char c;

	pair_open(&p);
	db_watch_until(&p.watched, PAST_NS);
	assert_int_equal(recv(p.ours, &c, 1, 0), 0);
	pair_close(&p);
}

static void
a_connection_that_rests_is_left_alone(void **state)
{
	struct pair never, before;

	(void)state;
	pair_open(&never);
	pair_open(&before);
	db_watch_until(&before.watched, time_boot_ns() + FAR_NS);
	db_watch_until(&before.watched, 0);
	wait_for_look();
	assert_true(is_whole(&never) && is_whole(&before));
	pair_close(&never);
	pair_close(&before);
}

static void
a_number_that_became_another_sockets_is_not_shut(void **state)
{
	struct pair gone, other;
	int number;

	(void)state;
	pair_open(&gone);
	number = gone.ours;
	close(gone.ours);
	pair_open(&other);
	assert_int_equal(dup2(other.ours, number), number);
	db_watch_until(&gone.watched, PAST_NS);
	wait_for_look();
	wait_for_look();
	assert_true(atomic_load(&gone.watched.cut));
	assert_true(is_whole(&other));
	gone.ours = number;
	pair_close(&gone);
	pair_close(&other);
}

#define ROUNDS 200

/* As a worker does: statements one after the other, and a new connection now and then. */
static void *
work(void *arg)
{
	uintptr_t cut = 0;

	for (int i = 0; i < ROUNDS; i++) {
		struct pair p;

		pair_open(&p);
		for (int s = 0; s < ROUNDS; s++) {
			db_watch_until(&p.watched, time_boot_ns() + FAR_NS);
			db_watch_until(&p.watched, 0);
		}
		cut += atomic_load(&p.watched.cut) || !is_whole(&p);
		pair_close(&p);
	}
	(void)arg;
	return (void *)cut;
}

static void
many_threads_are_watched_at_once(void **state)
{
	pthread_t threads[8];

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(threads); i++)
		assert_int_equal(pthread_create(&threads[i], NULL, work, NULL), 0);
	for (size_t i = 0; i < ARRAY_LEN(threads); i++) {
		void *cut;

		assert_int_equal(pthread_join(threads[i], &cut), 0);
		assert_null(cut);
	}
}

/* The last test: it is true of the whole process. */
static void
a_stop_ends_what_rests_too(void **state)
{
	struct pair rests, waits;
	int64_t cuts = db_watch_cuts();
	char c;

	(void)state;
	pair_open(&rests);
	pair_open(&waits);
	db_watch_until(&waits.watched, time_boot_ns() + FAR_NS);
	assert_false(db_watch_stopped());
	db_watch_stop_at(time_boot_ns());
	assert_true(db_watch_stopped());
	assert_int_equal(recv(waits.ours, &c, 1, 0), 0);
	assert_int_equal(recv(rests.ours, &c, 1, 0), 0);
	assert_int_equal(db_watch_cuts() - cuts, 2);
	pair_close(&rests);
	pair_close(&waits);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_read_that_is_past_its_deadline_returns),
		cmocka_unit_test(a_write_that_nobody_takes_returns),
		cmocka_unit_test(a_connection_that_rests_is_left_alone),
		cmocka_unit_test(a_number_that_became_another_sockets_is_not_shut),
		cmocka_unit_test(many_threads_are_watched_at_once),
		cmocka_unit_test(a_stop_ends_what_rests_too),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
