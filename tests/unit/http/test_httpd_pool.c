/* tsan */
/* tests/unit/http/test_httpd_pool.c - workers and the shares in which jobs get them. Nothing waits for a time to pass: jobs wait at a gate. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>

#include "common/http/httpd_pool.h"
#include "common/base/time.h"

#define JOBS_MAX 64

struct item {
	struct httpd_job job; /* first: it is what the pool gives back */
	struct room *room;
	const char *name;
};

/* Jobs that run stand at the gate until the test lets one of them out. */
struct room {
	struct httpd_pool *pool;
	pthread_mutex_t lock;
	pthread_cond_t moved;
	char entered[JOBS_MAX * 4]; /* names, in the order they were begun, each followed by a space */
	int inside, begun, let_out;
	bool open;
	struct item items[JOBS_MAX];
	size_t count;
};

static void
run(struct httpd_job *job, void *worker)
{
	struct item *i = (struct item *)(void *)job;
	struct room *r = i->room;

	(void)worker;
	pthread_mutex_lock(&r->lock);
	strcat(strcat(r->entered, i->name), " ");
	r->begun++;
	r->inside++;
	pthread_cond_broadcast(&r->moved);
	while (r->let_out == 0 && !r->open)
		pthread_cond_wait(&r->moved, &r->lock);
	if (!r->open)
		r->let_out--;
	r->inside--;
	pthread_cond_broadcast(&r->moved);
	pthread_mutex_unlock(&r->lock);
}

static void
room_init(struct room *r, struct httpd_pool_options o)
{
	struct err err = {0};

	memset(r, 0, sizeof(*r));
	pthread_mutex_init(&r->lock, NULL);
	pthread_cond_init(&r->moved, NULL);
	o.run = run;
	assert_true(httpd_pool_start(&o, &r->pool, &err));
}

static void
room_fini(struct room *r)
{
	pthread_mutex_lock(&r->lock);
	r->open = true;
	pthread_cond_broadcast(&r->moved);
	pthread_mutex_unlock(&r->lock);
	httpd_pool_free(r->pool);
	pthread_cond_destroy(&r->moved);
	pthread_mutex_destroy(&r->lock);
}

static void
await_begun(struct room *r, int n)
{
	pthread_mutex_lock(&r->lock);
	while (r->begun < n)
		pthread_cond_wait(&r->moved, &r->lock);
	pthread_mutex_unlock(&r->lock);
}

/* One job goes, and the next is begun. */
static void
next(struct room *r)
{
	int begun;

	pthread_mutex_lock(&r->lock);
	begun = r->begun;
	r->let_out++;
	pthread_cond_broadcast(&r->moved);
	pthread_mutex_unlock(&r->lock);
	await_begun(r, begun + 1);
}

/* The last job goes. */
static void
next_is_none(struct room *r)
{
	pthread_mutex_lock(&r->lock);
	r->let_out++;
	pthread_cond_broadcast(&r->moved);
	while (r->inside > 0)
		pthread_cond_wait(&r->moved, &r->lock);
	pthread_mutex_unlock(&r->lock);
}

static void
expect_entered(struct room *r, const char *names)
{
	pthread_mutex_lock(&r->lock);
	assert_string_equal(r->entered, names);
	pthread_mutex_unlock(&r->lock);
}

/* "A1": the job 1 of group A; in lower case after it the member; a name that begins with a '!' is heavy. */
static enum httpd_push
push(struct room *r, const char *name, struct httpd_job **ret_displaced)
{
	struct item *i = &r->items[r->count++];
	bool heavy = name[0] == '!';
	struct httpd_share share = {
		.group = {name[heavy]}, .member = {name[heavy + 2]}, .heavy_max = 1, .heavy = heavy};
	struct httpd_job *displaced = NULL;
	enum httpd_push pushed;

	i->room = r;
	i->name = name;
	pushed = httpd_pool_push(r->pool, &i->job, &share, &displaced);
	if (ret_displaced)
		*ret_displaced = displaced;
	else
		assert_null(displaced);
	return pushed;
}

static void
push_all(struct room *r, const char *const *names, size_t n)
{
	for (size_t i = 0; i < n; i++)
		assert_int_equal(push(r, names[i], NULL), HTTPD_PUSHED);
}

#define PUSH_ALL(r, ...) \
	push_all(r, (const char *const[]){__VA_ARGS__}, ARRAY_LEN(((const char *const[]){__VA_ARGS__})))

static void
groups_take_turns_and_in_a_group_its_members(void **state)
{
	struct room r;

	(void)state;
	room_init(&r, (struct httpd_pool_options){.workers = 1, .queue_max = 20});
	PUSH_ALL(&r, "A1x");
	await_begun(&r, 1);
	PUSH_ALL(&r, "A2x", "A3x", "A4y", "A5y", "B1x", "C1x", "B2x");
	for (int i = 0; i < 7; i++)
		next(&r);
	expect_entered(&r, "A1x A2x B1x C1x A4y B2x A3x A5y ");
	room_fini(&r);
}

static void
a_group_has_a_part_of_the_workers(void **state)
{
	struct room r;

	(void)state;
	room_init(&r, (struct httpd_pool_options){.workers = 4, .queue_max = 20, .running_max = 2});
	PUSH_ALL(&r, "A1", "A2", "A3", "A4");
	await_begun(&r, 2);
	PUSH_ALL(&r, "B1");
	await_begun(&r, 3);
	/* a worker is free, and none of A may have it: A3 and A4 come when others have gone */
	pthread_mutex_lock(&r.lock);
	assert_int_equal(r.begun, 3);
	pthread_mutex_unlock(&r.lock);
	room_fini(&r);
	assert_int_equal(r.begun, 5);
}

static void
one_heavy_job_of_a_group_runs_and_plain_ones_pass_it(void **state)
{
	struct room r;

	(void)state;
	room_init(&r, (struct httpd_pool_options){.workers = 2, .queue_max = 20, .heavy_waiting_max = 2});
	PUSH_ALL(&r, "!A1");
	await_begun(&r, 1);
	PUSH_ALL(&r, "!A2", "!A3");
	assert_int_equal(push(&r, "!A4", NULL), HTTPD_PUSH_HEAVY_FULL);
	PUSH_ALL(&r, "A5");
	await_begun(&r, 2);
	PUSH_ALL(&r, "A6", "!B1");
	expect_entered(&r, "!A1 A5 ");
	room_fini(&r);
	assert_int_equal(r.begun, 6);
}

/* A lower bound of a time alone: however slow the machine is, it holds. */
static void
after_a_heavy_job_its_group_rests_as_long_as_it_ran(void **state)
{
	int64_t seen_ns, let_out_ns;
	struct room r;

	(void)state;
	room_init(&r, (struct httpd_pool_options){.workers = 2, .queue_max = 20});
	PUSH_ALL(&r, "!A1");
	await_begun(&r, 1);
	seen_ns = time_monotonic_ns();
	PUSH_ALL(&r, "!A2");
	while (time_monotonic_ns() - seen_ns < 50 * NS_PER_MS)
		sched_yield();
	let_out_ns = time_monotonic_ns();
	next(&r);
	assert_true(time_monotonic_ns() - let_out_ns >= let_out_ns - seen_ns);
	/* closing ends a rest */
	PUSH_ALL(&r, "!A3");
	room_fini(&r);
	assert_int_equal(r.begun, 3);
}

static void
heavy_jobs_together_have_a_limit(void **state)
{
	struct room r;

	(void)state;
	room_init(&r, (struct httpd_pool_options){.workers = 4, .queue_max = 20, .heavy_max = 2});
	PUSH_ALL(&r, "!A1", "!B1");
	await_begun(&r, 2);
	PUSH_ALL(&r, "!C1", "D1");
	await_begun(&r, 3);
	expect_entered(&r, strncmp(r.entered, "!A1", 3) == 0 ? "!A1 !B1 D1 " : "!B1 !A1 D1 ");
	room_fini(&r);
	assert_int_equal(r.begun, 4);
}

static void
a_job_that_ends_wakes_only_workers_that_have_something_to_do(void **state)
{
	struct room r;
	uint64_t wakes;

	(void)state;
	room_init(&r, (struct httpd_pool_options){.workers = 8, .queue_max = 64, .running_max = 1, .heavy_max = 1});
	PUSH_ALL(&r, "A1");
	await_begun(&r, 1);
	for (int i = 0; i < 40; i++)
		PUSH_ALL(&r, "A2");
	wakes = httpd_pool_wakes(r.pool);
	for (int i = 0; i < 40; i++)
		next(&r);
	/* the worker that ends one takes the next, and seven sleep on; a thread may be woken for nothing by the library now and then */
	assert_true(httpd_pool_wakes(r.pool) - wakes < 8);
	/* one that ends can make room for two */
	next_is_none(&r);
	PUSH_ALL(&r, "!A2");
	await_begun(&r, 42);
	PUSH_ALL(&r, "A3", "!B1");
	next(&r);
	await_begun(&r, 44);
	room_fini(&r);
}

static void
too_many_of_a_group_are_refused(void **state)
{
	struct room r;

	(void)state;
	room_init(&r, (struct httpd_pool_options){.workers = 1, .queue_max = 20, .waiting_max = 2});
	PUSH_ALL(&r, "A1");
	await_begun(&r, 1);
	PUSH_ALL(&r, "A2", "A3");
	assert_int_equal(push(&r, "A4", NULL), HTTPD_PUSH_GROUP_FULL);
	PUSH_ALL(&r, "B1");
	room_fini(&r);
}

static void
in_a_full_queue_the_group_with_the_most_gives_way(void **state)
{
	struct httpd_job *displaced = NULL;
	struct room r;

	(void)state;
	room_init(&r, (struct httpd_pool_options){.workers = 1, .queue_max = 3});
	PUSH_ALL(&r, "A1");
	await_begun(&r, 1);
	PUSH_ALL(&r, "A2", "A3", "A4");
	assert_int_equal(push(&r, "A5", NULL), HTTPD_PUSH_FULL);
	assert_int_equal(push(&r, "B1", &displaced), HTTPD_PUSHED);
	assert_string_equal(((struct item *)(void *)displaced)->name, "A4");
	/* two of A wait, one of B: a second one of B would be no better off than A */
	assert_int_equal(push(&r, "B2", NULL), HTTPD_PUSH_FULL);
	assert_int_equal(push(&r, "C1", &displaced), HTTPD_PUSHED);
	assert_string_equal(((struct item *)(void *)displaced)->name, "A3");
	assert_int_equal(push(&r, "D1", NULL), HTTPD_PUSH_FULL);
	for (int i = 0; i < 3; i++)
		next(&r);
	expect_entered(&r, "A1 A2 B1 C1 ");
	room_fini(&r);
}

static void
a_job_that_waits_can_be_taken_back_and_one_that_runs_cannot(void **state)
{
	struct room r;

	(void)state;
	room_init(&r, (struct httpd_pool_options){.workers = 1, .queue_max = 20});
	PUSH_ALL(&r, "A1");
	await_begun(&r, 1);
	PUSH_ALL(&r, "A2", "A3", "!A4");
	assert_false(httpd_pool_remove(r.pool, &r.items[0].job));
	assert_true(httpd_pool_remove(r.pool, &r.items[1].job));
	assert_false(httpd_pool_remove(r.pool, &r.items[1].job));
	assert_true(httpd_pool_remove(r.pool, &r.items[3].job));
	next(&r);
	expect_entered(&r, "A1 A3 ");
	room_fini(&r);
}

/* ---- whatever comes, in whatever order ---- */

struct random_item {
	struct httpd_job job;
	struct random_world *world;
	int group;
	bool heavy;
	int runs;
};

struct random_world {
	pthread_mutex_t lock;
	int running[4], heavy[4], all_heavy, wrong, ran;
};

static uint64_t
below(uint64_t *chance, uint64_t n)
{
	*chance = *chance * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
	return (*chance >> 33) % n;
}

static void
run_random(struct httpd_job *job, void *worker)
{
	struct random_item *i = (struct random_item *)(void *)job;
	struct random_world *w = i->world;

	(void)worker;
	pthread_mutex_lock(&w->lock);
	i->runs++;
	w->running[i->group]++;
	w->heavy[i->group] += i->heavy;
	w->all_heavy += i->heavy;
	w->wrong += w->running[i->group] > 2 || w->heavy[i->group] > 1 || w->all_heavy > 2;
	pthread_mutex_unlock(&w->lock);
	for (volatile int spin = 0; spin < 500; spin++)
		;
	pthread_mutex_lock(&w->lock);
	w->running[i->group]--;
	w->heavy[i->group] -= i->heavy;
	w->all_heavy -= i->heavy;
	w->ran++;
	pthread_mutex_unlock(&w->lock);
}

static void
each_job_is_run_once_or_given_back_and_no_limit_is_passed(void **state)
{
	enum { COUNT = 4000 };
	struct random_item *items = mem_array(COUNT, sizeof(*items));
	struct random_world w = {.wrong = 0};
	struct httpd_pool_options o = {.workers = 4,
	                               .queue_max = 12,
	                               .running_max = 2,
	                               .waiting_max = 8,
	                               .heavy_max = 2,
	                               .heavy_waiting_max = 4,
	                               .run = run_random};
	uint64_t chance = (uint64_t)time_wall_ns();
	struct httpd_pool *pool = NULL;
	struct err err = {0};
	int back = 0;

	(void)state;
	print_message("seed %" PRIu64 "\n", chance);
	pthread_mutex_init(&w.lock, NULL);
	assert_true(httpd_pool_start(&o, &pool, &err));
	for (int i = 0; i < COUNT; i++) {
		struct httpd_share share = {.heavy_max = 1, .heavy = below(&chance, 3) == 0};
		struct httpd_job *displaced = NULL;

		items[i].world = &w;
		items[i].group = (int)below(&chance, 4);
		items[i].heavy = share.heavy;
		snprintf(share.group, sizeof(share.group), "%d", items[i].group);
		snprintf(share.member, sizeof(share.member), "%d", (int)below(&chance, 3));
		back += httpd_pool_push(pool, &items[i].job, &share, &displaced) != HTTPD_PUSHED;
		back += displaced != NULL;
		if (below(&chance, 8) == 0 && httpd_pool_remove(pool, &items[below(&chance, (uint64_t)i + 1)].job))
			back++;
	}
	httpd_pool_free(pool);
	assert_int_equal(w.wrong, 0);
	assert_int_equal(w.ran + back, COUNT);
	for (int i = 0; i < COUNT; i++)
		assert_true(items[i].runs <= 1);
	pthread_mutex_destroy(&w.lock);
	mem_free(items);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(groups_take_turns_and_in_a_group_its_members),
		cmocka_unit_test(a_group_has_a_part_of_the_workers),
		cmocka_unit_test(one_heavy_job_of_a_group_runs_and_plain_ones_pass_it),
		cmocka_unit_test(after_a_heavy_job_its_group_rests_as_long_as_it_ran),
		cmocka_unit_test(heavy_jobs_together_have_a_limit),
		cmocka_unit_test(a_job_that_ends_wakes_only_workers_that_have_something_to_do),
		cmocka_unit_test(too_many_of_a_group_are_refused),
		cmocka_unit_test(in_a_full_queue_the_group_with_the_most_gives_way),
		cmocka_unit_test(a_job_that_waits_can_be_taken_back_and_one_that_runs_cannot),
		cmocka_unit_test(each_job_is_run_once_or_given_back_and_no_limit_is_passed),
	};

	return cmocka_run_group_tests_name("httpd_pool", tests, NULL, NULL);
}
