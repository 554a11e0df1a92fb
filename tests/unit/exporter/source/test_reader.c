/* tests/unit/exporter/source/test_reader.c - a driver that hangs, fails and comes back, and a caller that never waits for it for long. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>

#include "common/base/time.h"
#include "exporter/source/reader.h"

#define S NS_PER_S
#define GPUS 4u
/* Nothing here takes as long as this, but a machine that is busy. */
#define PATIENCE_NS (300 * S)
/* How long a hanging call is waited for, at first; what does not hang must be done in half of it. */
#define SHORT_NS S

/* A source whose calls hang or fail as the test says. */
static struct fake {
	pthread_mutex_t lock;
	pthread_cond_t change;
	bool hang_open, hang_list, hang_close, hang_read[GPUS];
	bool fail_open, fail_list, lose[GPUS], down[GPUS], simulated;
	int opened, closed, lists, reads[GPUS], hanging, opened_calls;
	int64_t xids[GPUS];
	int64_t power_mw; /* of every GPU, to tell one reading from another */
} fake = {.lock = PTHREAD_MUTEX_INITIALIZER, .change = PTHREAD_COND_INITIALIZER};

static void
fake_hang(const bool *hang)
{
	fake.hanging++;
	while (*hang)
		pthread_cond_wait(&fake.change, &fake.lock);
	fake.hanging--;
}

static const char *
fake_version(const struct gpu_source *s)
{
	(void)s;
	return "1";
}

static bool
fake_simulated(const struct gpu_source *s)
{
	(void)s;
	return fake.simulated;
}

static bool
fake_list(struct gpu_source *s, int64_t boot_ns, struct gpu_snapshot *into, struct err *err)
{
	bool fail;

	(void)s;
	pthread_mutex_lock(&fake.lock);
	fake.lists++;
	fake_hang(&fake.hang_list);
	fail = fake.fail_list;
	gpu_snapshot_resize(into, GPUS);
	into->boot_ns = boot_ns;
	for (size_t i = 0; i < GPUS; i++) {
		gpu_reading_clear(&into->gpus[i]);
		snprintf(into->gpus[i].uuid, sizeof(into->gpus[i].uuid), "GPU-%zu", i);
		into->gpus[i].xid_count = fake.xids[i] > 0;
		into->gpus[i].xids[0] = (struct gpu_xid){.code = 79, .count = fake.xids[i], .last_wall_ns = 1};
		into->gpus[i].index = (int32_t)i;
		if (fake.down[i])
			gpu_reading_down(&into->gpus[i], GPU_FAULT_LOST, "gone");
	}
	pthread_mutex_unlock(&fake.lock);
	return !fail || err_set(err, ERR_RETRY, "no list today");
}

static void
fake_read(struct gpu_source *s, size_t place, struct gpu_reading *r)
{
	struct gpu_exit *e;

	(void)s;
	pthread_mutex_lock(&fake.lock);
	fake.reads[place]++;
	r->power_mw = fake.power_mw;
	gpu_reading_process(r, 100 + (uint32_t)place, -1, -1)->memory_bytes = 1;
	e = gpu_reading_exit(r);
	*e = (struct gpu_exit){.pid = 200 + (uint32_t)place};
	fake_hang(&fake.hang_read[place]);
	r->library_lost = fake.lose[place];
	pthread_mutex_unlock(&fake.lock);
}

static void
fake_close(struct gpu_source *s)
{
	pthread_mutex_lock(&fake.lock);
	fake_hang(&fake.hang_close);
	fake.closed++;
	pthread_mutex_unlock(&fake.lock);
	mem_free(s);
}

static const struct gpu_source_ops fake_ops = {
	.name = "fake",
	.driver_version = fake_version,
	.library_version = fake_version,
	.simulated = fake_simulated,
	.list = fake_list,
	.read = fake_read,
	.close = fake_close,
};

static bool
fake_open(void *arg, struct gpu_source **ret, struct err *err)
{
	bool fail;

	(void)arg;
	pthread_mutex_lock(&fake.lock);
	fake_hang(&fake.hang_open);
	fail = fake.fail_open;
	fake.opened += !fail;
	pthread_mutex_unlock(&fake.lock);
	if (fail)
		return err_set(err, ERR_MISSING, "no driver");
	*ret = mem_alloc(sizeof(**ret));
	(*ret)->ops = &fake_ops;
	return true;
}

static void
note_opened(void *arg)
{
	(void)arg;
	fake.opened_calls++;
}

static void
set(bool *what, bool value)
{
	pthread_mutex_lock(&fake.lock);
	*what = value;
	pthread_cond_broadcast(&fake.change);
	pthread_mutex_unlock(&fake.lock);
}

/* Another thread comes to this by itself; without a limit, because the test's own time limit is one. */
static void
await(const int *what, int value)
{
	for (;;) {
		pthread_mutex_lock(&fake.lock);
		if (*what == value) {
			pthread_mutex_unlock(&fake.lock);
			return;
		}
		pthread_mutex_unlock(&fake.lock);
		sched_yield();
	}
}

struct bench {
	struct reader *reader;
	const struct gpu_snapshot *last;
	int64_t boot_ns;
	struct err err;
};

static void
bench_init_closed(struct bench *b)
{
	struct reader_options o = {.open = fake_open, .opened = note_opened};

	*b = (struct bench){.boot_ns = 1000 * S};
	fake.opened = fake.closed = fake.lists = fake.opened_calls = 0;
	memset(fake.reads, 0, sizeof(fake.reads));
	fake.power_mw = 1;
	if (!reader_new(&o, &b->reader, &b->err))
		fail_msg("%s", b->err.text);
}

static void
bench_init(struct bench *b)
{
	bool answered;

	bench_init_closed(b);
	assert_true(reader_wait_open(b->reader, PATIENCE_NS, &answered, &b->err));
	assert_true(answered);
}

/* Whatever hangs is let go, and every source is closed. */
static void
bench_fini(struct bench *b)
{
	reader_free(b->reader);
	set(&fake.hang_open, false);
	set(&fake.hang_list, false);
	set(&fake.hang_close, false);
	for (size_t i = 0; i < GPUS; i++) {
		set(&fake.hang_read[i], false);
		set(&fake.down[i], false);
		set(&fake.lose[i], false);
	}
	await(&fake.hanging, 0);
	await(&fake.closed, fake.opened);
	set(&fake.fail_open, false);
	set(&fake.fail_list, false);
	set(&fake.simulated, false);
}

static bool
read_gpus(struct bench *b, int64_t patience_ns)
{
	b->boot_ns += S;
	return reader_read(b->reader, b->boot_ns, patience_ns, &b->last, &b->err);
}

static size_t
silent(const struct bench *b)
{
	size_t n = 0;

	for (size_t i = 0; i < b->last->count; i++) {
		char uuid[32];

		snprintf(uuid, sizeof(uuid), "GPU-%zu", i);
		assert_string_equal(b->last->gpus[i].uuid, uuid);
		n += b->last->gpus[i].silent;
		if (b->last->gpus[i].silent) {
			assert_int_equal(b->last->gpus[i].power_mw, ABSENT);
			assert_int_equal(b->last->gpus[i].process_count, 0);
			assert_int_equal(b->last->gpus[i].exit_count, 0);
			assert_false(b->last->gpus[i].down);
		}
	}
	return n;
}

static size_t
hanging(struct bench *b)
{
	struct reader_status status;

	reader_status(b->reader, b->boot_ns, &status);
	return status.hanging;
}

/* The first read beside `hang` GPUs that hang. On a machine that is busy another one may be overtaken as well: then all begins anew, with more
 * patience, so that only a reader which never reads the others fails. */
static void
read_beside(struct bench *b, size_t hang)
{
	for (int64_t patience_ns = SHORT_NS;; patience_ns *= 4) {
		bool hangs[GPUS];

		assert_true(read_gpus(b, patience_ns));
		if (silent(b) == hang || patience_ns >= PATIENCE_NS)
			break;
		memcpy(hangs, fake.hang_read, sizeof(hangs));
		bench_fini(b);
		bench_init(b);
		for (size_t i = 0; i < GPUS; i++)
			set(&fake.hang_read[i], hangs[i]);
	}
	assert_int_equal(silent(b), hang);
}

/* A call that has been let go is still under way for a moment. */
static void
read_until_all_answer(struct bench *b)
{
	while (!read_gpus(b, PATIENCE_NS) || silent(b) > 0)
		sched_yield();
}

static void
every_gpu_is_read_by_one_worker_that_is_kept(void **state)
{
	in_place(bench) struct bench b;
	struct reader_facts facts;
	struct reader_status status;

	(void)state;
	bench_init(&b);
	for (int i = 1; i <= 50; i++) {
		fake.power_mw = i;
		assert_true(read_gpus(&b, PATIENCE_NS));
		assert_int_equal(b.last->count, GPUS);
		assert_int_equal(b.last->boot_ns, b.boot_ns);
		assert_int_equal(silent(&b), 0);
		for (size_t g = 0; g < GPUS; g++) {
			assert_int_equal(b.last->gpus[g].power_mw, i);
			assert_int_equal(b.last->gpus[g].process_count, 1);
			assert_int_equal(b.last->gpus[g].processes[0].pid, 100 + g);
			assert_int_equal(b.last->gpus[g].exit_count, 1);
			assert_int_equal(b.last->gpus[g].exits[0].pid, 200 + g);
		}
	}
	assert_int_equal(fake.opened, 1);
	assert_int_equal(fake.opened_calls, 1);
	assert_int_equal(fake.lists, 50);
	reader_facts(b.reader, &facts);
	assert_true(facts.opened);
	assert_string_equal(facts.name, "fake");
	reader_status(b.reader, b.boot_ns, &status);
	assert_int_equal(status.silent, 0);
	assert_int_equal(status.silent_ns, 0);
}

static void
a_gpu_that_hangs_is_silent_and_the_others_are_read_in_the_same_tick(void **state)
{
	(void)state;
	for (size_t victim = 0; victim < GPUS; victim++) {
		in_place(bench) struct bench b;
		struct reader_status status;

		bench_init(&b);
		set(&fake.hang_read[victim], true);
		read_beside(&b, 1);
		assert_true(b.last->gpus[victim].silent);
		assert_int_equal(hanging(&b), 1);
		/* it is not called again, and not waited for again: this would take hours */
		for (int i = 0; i < 5; i++) {
			assert_true(read_gpus(&b, 3600 * S));
			assert_int_equal(silent(&b), 1);
			assert_true(b.last->gpus[victim].silent);
		}
		assert_int_equal(fake.reads[victim], 1);
		reader_status(b.reader, b.boot_ns, &status);
		assert_int_equal(status.silent, 1);
		assert_int_equal(status.silent_ns, 5 * S);
		fake.power_mw = 7;
		set(&fake.hang_read[victim], false);
		read_until_all_answer(&b);
		assert_int_equal(b.last->gpus[victim].power_mw, 7);
		assert_int_equal(fake.opened, 1);
		reader_status(b.reader, b.boot_ns, &status);
		assert_int_equal(status.silent_ns, 0);
	}
}

static void
three_gpus_that_begin_to_hang_at_once_leave_the_fourth_as_it_is(void **state)
{
	in_place(bench) struct bench b;

	(void)state;
	bench_init(&b);
	for (size_t i = 0; i < 3; i++)
		set(&fake.hang_read[i], true);
	read_beside(&b, 3);
	assert_false(b.last->gpus[3].silent);
	assert_int_equal(hanging(&b), 3);
	set(&fake.hang_read[1], false);
	while (hanging(&b) != 2)
		sched_yield();
	assert_true(read_gpus(&b, PATIENCE_NS));
	assert_int_equal(silent(&b), 2);
	assert_false(b.last->gpus[1].silent);
}

static void *
let_go(void *arg)
{
	bool *hang = arg;

	await(&fake.reads[3], 1);
	set(hang, false);
	return NULL;
}

static void
a_gpu_that_is_only_slow_is_overtaken_and_still_read(void **state)
{
	in_place(bench) struct bench b;
	pthread_t thread;

	(void)state;
	bench_init(&b);
	set(&fake.hang_read[0], true);
	assert_int_equal(pthread_create(&thread, NULL, let_go, &fake.hang_read[0]), 0);
	/* GPU 0 answers only when GPU 3 has been called, which takes a second worker */
	assert_true(read_gpus(&b, 4 * SHORT_NS));
	assert_int_equal(silent(&b), 0);
	assert_int_equal(b.last->gpus[0].power_mw, 1);
	pthread_join(thread, NULL);
}

static void
a_list_that_hangs_makes_all_silent_until_it_returns(void **state)
{
	in_place(bench) struct bench b;
	struct reader_status status;

	(void)state;
	bench_init(&b);
	assert_true(read_gpus(&b, PATIENCE_NS));
	set(&fake.hang_list, true);
	assert_false(read_gpus(&b, 50 * NS_PER_MS));
	assert_int_equal(b.err.kind, ERR_RETRY);
	assert_string_equal(b.err.text, "the GPU driver does not return from listing its GPUs");
	assert_int_equal(silent(&b), GPUS);
	for (int i = 0; i < 3; i++) {
		assert_false(read_gpus(&b, 3600 * S));
		assert_int_equal(silent(&b), GPUS);
	}
	await(&fake.lists, 2);
	reader_status(b.reader, b.boot_ns, &status);
	assert_int_equal(status.silent, GPUS);
	assert_int_equal(status.silent_ns, 3 * S);
	assert_int_equal(status.hanging, 1);
	set(&fake.hang_list, false);
	read_until_all_answer(&b);
	assert_int_equal(fake.opened, 1);
}

static void
an_opening_that_hangs_is_no_error_and_is_used_when_it_returns(void **state)
{
	in_place(bench) struct bench b;
	struct reader_facts facts;
	bool answered = true;

	(void)state;
	set(&fake.hang_open, true);
	bench_init_closed(&b);
	assert_true(reader_wait_open(b.reader, NS_PER_MS, &answered, &b.err));
	assert_false(answered);
	reader_facts(b.reader, &facts);
	assert_false(facts.opened);
	assert_false(read_gpus(&b, 3600 * S));
	assert_string_equal(b.err.text, "the GPU driver does not return from opening its library");
	assert_int_equal(b.last->count, 0);
	set(&fake.hang_open, false);
	read_until_all_answer(&b);
	assert_int_equal(b.last->count, GPUS);
	assert_int_equal(fake.opened, 1);
}

static void
an_opening_that_fails_says_why_and_is_tried_again_after_a_pause(void **state)
{
	in_place(bench) struct bench b;
	bool answered = false;

	(void)state;
	set(&fake.fail_open, true);
	bench_init_closed(&b);
	assert_false(reader_wait_open(b.reader, PATIENCE_NS, &answered, &b.err));
	assert_true(answered);
	assert_int_equal(b.err.kind, ERR_MISSING);
	assert_false(read_gpus(&b, PATIENCE_NS));
	assert_string_equal(b.err.text, "no driver");
	set(&fake.fail_open, false);
	assert_false(read_gpus(&b, PATIENCE_NS)); /* the pause */
	assert_string_equal(b.err.text, "no driver");
	b.boot_ns += READER_PAUSE_NS;
	assert_true(read_gpus(&b, PATIENCE_NS));
	assert_int_equal(silent(&b), 0);
}

static void
a_library_that_fails_is_closed_and_opened_again_after_a_pause(void **state)
{
	(void)state;
	for (int how = 0; how < 2; how++) {
		in_place(bench) struct bench b;

		bench_init(&b);
		assert_true(read_gpus(&b, PATIENCE_NS));
		set(how == 0 ? &fake.fail_list : &fake.lose[2], true);
		assert_false(read_gpus(&b, PATIENCE_NS));
		assert_int_equal(b.err.kind, ERR_RETRY);
		assert_int_equal(silent(&b), GPUS);
		assert_int_equal(fake.closed, 1); /* before anybody can ask again */
		set(&fake.fail_list, false);
		set(&fake.lose[2], false);
		assert_false(read_gpus(&b, PATIENCE_NS));
		b.boot_ns += READER_PAUSE_NS;
		read_until_all_answer(&b);
		assert_int_equal(fake.opened, 2);
	}
}

static void
errors_are_counted_on_when_the_library_is_opened_again(void **state)
{
	in_place(bench) struct bench b;

	(void)state;
	bench_init(&b);
	fake.xids[0] = 3;
	assert_true(read_gpus(&b, PATIENCE_NS));
	assert_int_equal(b.last->gpus[0].xids[0].count, 3);
	set(&fake.fail_list, true);
	assert_false(read_gpus(&b, PATIENCE_NS));
	assert_int_equal(b.last->gpus[0].xids[0].count, 3);
	set(&fake.fail_list, false);
	fake.xids[0] = 0;
	b.boot_ns += READER_PAUSE_NS;
	read_until_all_answer(&b);
	assert_int_equal(b.last->gpus[0].xid_count, 1);
	assert_int_equal(b.last->gpus[0].xids[0].count, 3);
	fake.xids[0] = 1;
	assert_true(read_gpus(&b, PATIENCE_NS));
	assert_true(read_gpus(&b, PATIENCE_NS));
	fake.xids[0] = 0;
	assert_int_equal(b.last->gpus[0].xids[0].count, 4);
	assert_int_equal(b.last->gpus[1].xid_count, 0);
}

static void
a_library_with_a_call_under_way_is_closed_by_that_call_s_worker(void **state)
{
	in_place(bench) struct bench b;

	(void)state;
	bench_init(&b);
	set(&fake.hang_read[1], true);
	read_beside(&b, 1);
	set(&fake.fail_list, true);
	assert_false(read_gpus(&b, PATIENCE_NS));
	set(&fake.fail_list, false);
	b.boot_ns += READER_PAUSE_NS;
	assert_true(read_gpus(&b, PATIENCE_NS));
	assert_int_equal(fake.opened, 2);
	assert_int_equal(fake.closed, 0);
	/* the call is in the old library, but the GPU is the same one */
	assert_int_equal(silent(&b), 1);
	assert_int_equal(fake.reads[1], 1);
	set(&fake.hang_read[1], false);
	await(&fake.closed, 1);
	read_until_all_answer(&b);
	assert_int_equal(fake.opened, 2);
}

static void
a_closing_that_hangs_blocks_nobody(void **state)
{
	in_place(bench) struct bench b;

	(void)state;
	bench_init(&b);
	set(&fake.hang_close, true);
	set(&fake.fail_list, true);
	assert_false(read_gpus(&b, 50 * NS_PER_MS));
	assert_string_equal(b.err.text, "no list today");
	set(&fake.fail_list, false);
	b.boot_ns += READER_PAUSE_NS;
	assert_false(read_gpus(&b, 3600 * S));
	assert_string_equal(b.err.text, "the GPU driver does not return from closing its library");
	set(&fake.hang_close, false);
	read_until_all_answer(&b);
}

static void
a_gpu_that_the_list_has_as_down_is_down_and_not_read(void **state)
{
	in_place(bench) struct bench b;

	(void)state;
	bench_init(&b);
	set(&fake.down[3], true);
	assert_true(read_gpus(&b, PATIENCE_NS));
	assert_int_equal(silent(&b), 0);
	assert_true(b.last->gpus[3].down);
	assert_string_equal(b.last->gpus[3].down_reason, "gone");
	assert_int_equal(fake.reads[3], 0);
}

static void
a_library_of_another_kind_is_not_taken(void **state)
{
	in_place(bench) struct bench b;

	(void)state;
	bench_init(&b);
	set(&fake.fail_list, true);
	assert_false(read_gpus(&b, PATIENCE_NS));
	await(&fake.closed, 1);
	set(&fake.fail_list, false);
	set(&fake.simulated, true);
	b.boot_ns += READER_PAUSE_NS;
	assert_false(read_gpus(&b, PATIENCE_NS));
	assert_int_equal(b.err.kind, ERR_FATAL);
	await(&fake.closed, 2);
	set(&fake.simulated, false);
	b.boot_ns += READER_PAUSE_NS;
	read_until_all_answer(&b);
}

/* bench_fini frees the reader first: it must return with the calls still hanging. */
static void
the_end_does_not_wait_for_a_call_that_hangs(void **state)
{
	bool *const what[] = {&fake.hang_read[0], &fake.hang_list};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(what); i++) {
		in_place(bench) struct bench b;

		bench_init(&b);
		set(what[i], true);
		(void)!read_gpus(&b, 50 * NS_PER_MS);
		assert_int_equal(hanging(&b), 1);
		assert_int_equal(fake.closed, 0);
	}
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_gpu_is_read_by_one_worker_that_is_kept),
		cmocka_unit_test(a_gpu_that_hangs_is_silent_and_the_others_are_read_in_the_same_tick),
		cmocka_unit_test(three_gpus_that_begin_to_hang_at_once_leave_the_fourth_as_it_is),
		cmocka_unit_test(a_gpu_that_is_only_slow_is_overtaken_and_still_read),
		cmocka_unit_test(a_list_that_hangs_makes_all_silent_until_it_returns),
		cmocka_unit_test(an_opening_that_hangs_is_no_error_and_is_used_when_it_returns),
		cmocka_unit_test(an_opening_that_fails_says_why_and_is_tried_again_after_a_pause),
		cmocka_unit_test(a_library_that_fails_is_closed_and_opened_again_after_a_pause),
		cmocka_unit_test(errors_are_counted_on_when_the_library_is_opened_again),
		cmocka_unit_test(a_library_with_a_call_under_way_is_closed_by_that_call_s_worker),
		cmocka_unit_test(a_closing_that_hangs_blocks_nobody),
		cmocka_unit_test(a_gpu_that_the_list_has_as_down_is_down_and_not_read),
		cmocka_unit_test(a_library_of_another_kind_is_not_taken),
		cmocka_unit_test(the_end_does_not_wait_for_a_call_that_hangs),
	};

	return cmocka_run_group_tests_name("reader", tests, NULL, NULL);
}
