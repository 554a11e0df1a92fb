/* tests/unit/exporter/delivery/test_outbox.c - a disk that hangs: nobody waits for it, and nothing gets out of order. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "common/wire/frame.h"
#include "common/base/time.h"
#include "exporter/delivery/outbox.h"
#include "tests/support/exporter/spooldir.h"

#define WALL SPOOLDIR_WALL
#define SHORT_NS (20 * NS_PER_MS) /* given to a disk that hangs */
#define LONG_NS (60 * NS_PER_S)   /* given to one that does not */

/* ---- the disk ---- */

static struct disk {
	pthread_mutex_t lock;
	pthread_cond_t change;
	bool hang_data, hang_files;
	int hanging;
} disk = {.lock = PTHREAD_MUTEX_INITIALIZER, .change = PTHREAD_COND_INITIALIZER};

static void
disk_wait(const bool *hang)
{
	pthread_mutex_lock(&disk.lock);
	disk.hanging++;
	while (*hang)
		pthread_cond_wait(&disk.change, &disk.lock);
	disk.hanging--;
	pthread_mutex_unlock(&disk.lock);
}

/* In place of libc's: the spool's batches are synced with the first, its heads and its state with the second. */
int
fdatasync(int fd)
{
	disk_wait(&disk.hang_data);
	return (int)syscall(SYS_fdatasync, fd);
}

int
fsync(int fd)
{
	disk_wait(&disk.hang_files);
	return (int)syscall(SYS_fsync, fd);
}

static void
disk_set(bool data, bool files)
{
	pthread_mutex_lock(&disk.lock);
	disk.hang_data = data;
	disk.hang_files = files;
	pthread_cond_broadcast(&disk.change);
	pthread_mutex_unlock(&disk.lock);
}

/* Without a limit: the test's own is one. */
static void
await_hang(void)
{
	bool hangs = false;

	while (!hangs) {
		pthread_mutex_lock(&disk.lock);
		hangs = disk.hanging > 0;
		pthread_mutex_unlock(&disk.lock);
		sched_yield();
	}
}

/* ---- a node ---- */

struct node {
	struct spooldir dir;
	struct spool_options options;
	struct outbox *outbox;
	int64_t minutes; /* that batches have been added for */
	struct err err;
	int changes;
	uint64_t newest; /* stream of which a batch was sent */
};

static void
node_open(struct node *n, int64_t patience_ns)
{
	struct spool *spool = NULL;

	if (!spool_open(&n->options, WALL, &spool, &n->err))
		fail_msg("%s", n->err.text);
	n->outbox = outbox_new(spool, &n->options);
	if (!outbox_start(n->outbox, patience_ns, &n->err))
		fail_msg("%s", n->err.text);
}

static void
node_init(struct node *n, int64_t patience_ns)
{
	*n = (struct node){0};
	disk_set(false, false);
	spooldir_init(&n->dir);
	n->options = spooldir_options(&n->dir);
	node_open(n, patience_ns);
}

static void
node_fini(struct node *n)
{
	disk_set(false, false);
	outbox_free(n->outbox);
	spooldir_fini(&n->dir);
}

static bool
add(struct node *n)
{
	struct wire_batch *b = wire_batch_new();

	(void)outbox_wants_dict(n->outbox);
	b->from_ns = WALL + n->minutes * NS_PER_MIN;
	b->to_ns = WALL + ++n->minutes * NS_PER_MIN;
	return outbox_add(n->outbox, b, WALL, &n->err);
}

static struct outbox_stats
stats_of(struct node *n)
{
	struct outbox_stats stats;

	outbox_stats(n->outbox, &stats);
	return stats;
}

/* A pass that waits, in whatever state the last one was left. */
static void
settle(struct node *n)
{
	while (!outbox_flush(n->outbox, WALL, &n->err))
		sched_yield();
	assert_int_equal(stats_of(n).waiting, 0);
}

/* The next batch, acknowledged; false when there is none. The end of an older stream that is offered once more is passed over. */
static bool
send(struct node *n, struct wire_batch **ret)
{
	in_place(buf) struct buf frames;
	struct spool_chunk chunk;
	bool any;

	buf_init(&frames, FRAME_HEAD + FRAME_MAX);
	for (;;) {
		if (!outbox_peek(n->outbox, 1, &frames, &chunk, &any, &n->err))
			fail_msg("%s", n->err.text);
		if (!any)
			return false;
		if (chunk.epoch >= n->newest)
			break;
		assert_true(outbox_ack(n->outbox, chunk.epoch, chunk.last_seq + 1, WALL, &n->err));
	}
	n->newest = chunk.epoch;
	if (!wire_unpack(frames.data + FRAME_HEAD, frames.len - FRAME_HEAD, ret, &n->err))
		fail_msg("%s", n->err.text);
	assert_int_equal((*ret)->seq, chunk.first_seq);
	if (!outbox_ack(n->outbox, chunk.epoch, chunk.last_seq + 1, WALL, &n->err))
		fail_msg("%s", n->err.text);
	return true;
}

/* Sends all: numbers and times without a hole, from minute `from` on. Returns how many, and of how many streams. */
static int
send_all(struct node *n, int64_t from, int *ret_losses, int *ret_streams)
{
	struct wire_batch *b = NULL;
	uint64_t epoch = 0, seq = 0;
	int count = 0;

	*ret_losses = *ret_streams = 0;
	for (; send(n, &b); count++) {
		if (b->epoch != epoch) {
			assert_true(b->epoch > epoch);
			++*ret_streams;
			seq = b->seq - 1;
		}
		assert_int_equal(b->seq, seq + 1);
		assert_int_equal(b->from_ns, WALL + from * NS_PER_MIN);
		from = (b->to_ns - WALL) / NS_PER_MIN;
		*ret_losses += b->kind == WIRE_LOSS;
		epoch = b->epoch;
		seq = b->last_seq;
		wire_batch_free(take(b));
	}
	assert_int_equal(from, n->minutes);
	return count;
}

static void
count_change(void *arg)
{
	++*(int *)arg;
}

static void
a_batch_is_on_disk_when_adding_returns(void **state)
{
	in_place(node) struct node n;
	int losses, streams;

	(void)state;
	node_init(&n, LONG_NS);
	outbox_listen(n.outbox, count_change, &n.changes);
	for (int i = 0; i < 20; i++) {
		assert_true(add(&n));
		assert_int_equal(stats_of(&n).spool.unacked_batches, i + 1);
		assert_int_equal(n.changes, i + 1);
	}
	assert_int_equal(send_all(&n, 0, &losses, &streams), 20);
	assert_int_equal(losses, 0);
	assert_int_equal(stats_of(&n).spool.unacked_batches, 0);
	/* and what was acknowledged is so after a restart */
	outbox_free(take(n.outbox));
	node_open(&n, LONG_NS);
	assert_int_equal(stats_of(&n).spool.unacked_batches, 0);
}

static void
older_batches_are_sent_while_the_disk_hangs_and_the_rest_follows_in_order(void **state)
{
	const bool hang_data[] = {true, false};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(hang_data); i++) {
		in_place(node) struct node n;
		struct wire_batch *b = NULL;
		int losses, streams;

		node_init(&n, LONG_NS);
		for (int j = 0; j < 3; j++)
			assert_true(add(&n));
		outbox_free(take(n.outbox));
		node_open(&n, SHORT_NS);
		disk_set(hang_data[i], !hang_data[i]); /* a new file begins, so that both are needed */
		assert_false(add(&n));
		assert_int_equal(n.err.kind, ERR_RETRY);
		assert_non_null(strstr(n.err.text, "does not answer"));
		await_hang();
		for (int j = 0; j < 10; j++)
			assert_false(add(&n));
		assert_int_equal(stats_of(&n).waiting, 11);
		assert_true(outbox_wants_dict(n.outbox));
		for (uint64_t seq = 1; seq <= 3; seq++) {
			assert_true(send(&n, &b));
			assert_int_equal(b->seq, seq);
			wire_batch_free(take(b));
		}
		assert_false(send(&n, &b));
		assert_int_equal(stats_of(&n).spool.unacked_batches, 0);
		disk_set(false, false);
		settle(&n);
		assert_int_equal(send_all(&n, 3, &losses, &streams), 11);
		assert_int_equal(losses, 0);
		assert_int_equal(streams, 1);
	}
}

static void
what_does_not_fit_into_memory_becomes_a_loss_but_for_what_is_being_written(void **state)
{
	in_place(node) struct node n;
	struct wire_batch *b = NULL;
	int losses, streams;

	(void)state;
	node_init(&n, SHORT_NS);
	disk_set(true, false);
	for (int i = 0; i < OUTBOX_WAITING_MAX + 10; i++) {
		assert_false(add(&n));
		await_hang();
	}
	assert_int_equal(stats_of(&n).waiting, OUTBOX_WAITING_MAX);
	assert_int_equal(stats_of(&n).lost_waiting, 11);
	disk_set(false, false);
	settle(&n);
	assert_true(send(&n, &b));
	assert_int_equal(b->kind, WIRE_USAGE);
	wire_batch_free(take(b));
	assert_true(send(&n, &b));
	assert_int_equal(b->kind, WIRE_LOSS);
	assert_int_equal(b->to_ns, WALL + 12 * NS_PER_MIN);
	wire_batch_free(take(b));
	assert_int_equal(send_all(&n, 12, &losses, &streams), OUTBOX_WAITING_MAX - 2);
	assert_int_equal(losses, 0);
}

static void
a_clock_step_while_the_disk_hangs_keeps_each_batch_in_its_stream(void **state)
{
	in_place(node) struct node n;
	int losses, streams;

	(void)state;
	node_init(&n, SHORT_NS);
	disk_set(true, false);
	for (int i = 0; i < 3; i++)
		assert_false(add(&n));
	await_hang();
	assert_false(outbox_new_stream(n.outbox, WALL + NS_PER_HOUR, &n.err));
	for (int i = 0; i < 2; i++)
		assert_false(add(&n));
	disk_set(false, false);
	settle(&n);
	assert_int_equal(send_all(&n, 0, &losses, &streams), 5);
	assert_int_equal(losses, 0);
	assert_int_equal(streams, 2);
}

static void
a_clock_that_steps_all_the_time_while_the_disk_hangs_stays_within_memory(void **state)
{
	in_place(node) struct node n;
	struct wire_batch *b = NULL;
	struct outbox_stats stats;
	int64_t sent = 0;

	(void)state;
	node_init(&n, SHORT_NS);
	disk_set(true, false);
	for (int i = 0; i < 2 * OUTBOX_WAITING_MAX; i++) {
		assert_false(add(&n));
		await_hang();
		assert_false(outbox_new_stream(n.outbox, WALL + i * NS_PER_HOUR, &n.err));
	}
	disk_set(false, false);
	settle(&n);
	stats = stats_of(&n);
	for (; send(&n, &b); sent++)
		wire_batch_free(take(b));
	assert_true(sent > 0);
	assert_int_equal(sent + stats.lost_waiting, 2 * OUTBOX_WAITING_MAX);
}

static void
the_end_does_not_wait_for_a_disk_that_hangs(void **state)
{
	static struct node n; /* its memory is left to the writer, which comes to its end later */

	(void)state;
	node_init(&n, SHORT_NS);
	disk_set(true, false);
	assert_false(add(&n));
	await_hang();
	assert_false(outbox_close(n.outbox));
	disk_set(false, false);
	while (spooldir_count(&n.dir, ".seg") != 1)
		sched_yield();
	spooldir_fini(&n.dir);
}

static void
a_file_that_is_damaged_while_sending_is_set_aside_by_the_writer(void **state)
{
	in_place(node) struct node n;
	struct wire_batch *b = NULL;
	int losses = 0;

	(void)state;
	node_init(&n, LONG_NS);
	for (int i = 0; i < 4; i++)
		assert_true(add(&n));
	{
		owned(mem) char *path = spooldir_segment(&n.dir, 0);
		int fd = open(path, O_WRONLY | O_CLOEXEC);

		assert_true(fd >= 0);
		assert_int_equal(pwrite(fd, "xxxxxxxx", 8, 90), 8);
		close(fd);
	}
	for (int i = 0; send(&n, &b); i++) {
		losses += b->kind == WIRE_LOSS;
		wire_batch_free(take(b));
	}
	assert_int_equal(losses, 1);
	assert_int_equal(stats_of(&n).spool.corrupt_segments, 1);
	assert_int_equal(stats_of(&n).spool.unacked_batches, 0);
	/* the file being written was that one: the next begins another, with the dictionary */
	assert_true(outbox_wants_dict(n.outbox));
	assert_true(add(&n));
	assert_true(send(&n, &b));
	assert_int_equal(b->kind, WIRE_USAGE);
	wire_batch_free(b);
}

static void
a_batch_made_without_the_dictionary_does_not_begin_a_file(void **state)
{
	in_place(node) struct node n;
	struct wire_batch *b = NULL;
	struct err err;

	(void)state;
	node_init(&n, LONG_NS);
	assert_true(add(&n));
	assert_false(outbox_wants_dict(n.outbox));
	assert_true(outbox_new_stream(n.outbox, WALL, &err)); /* between the question and the batch */
	b = wire_batch_new();
	b->from_ns = WALL + NS_PER_MIN;
	b->to_ns = WALL + 2 * NS_PER_MIN;
	assert_false(outbox_add(n.outbox, b, WALL, &err));
	settle(&n);
	b = NULL;
	assert_true(send(&n, &b));
	assert_int_equal(b->kind, WIRE_USAGE);
	wire_batch_free(take(b));
	assert_true(send(&n, &b));
	assert_int_equal(b->kind, WIRE_LOSS);
	wire_batch_free(b);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_batch_is_on_disk_when_adding_returns),
		cmocka_unit_test(older_batches_are_sent_while_the_disk_hangs_and_the_rest_follows_in_order),
		cmocka_unit_test(what_does_not_fit_into_memory_becomes_a_loss_but_for_what_is_being_written),
		cmocka_unit_test(a_clock_step_while_the_disk_hangs_keeps_each_batch_in_its_stream),
		cmocka_unit_test(a_clock_that_steps_all_the_time_while_the_disk_hangs_stays_within_memory),
		cmocka_unit_test(the_end_does_not_wait_for_a_disk_that_hangs),
		cmocka_unit_test(a_file_that_is_damaged_while_sending_is_set_aside_by_the_writer),
		cmocka_unit_test(a_batch_made_without_the_dictionary_does_not_begin_a_file),
	};

	return cmocka_run_group_tests_name("outbox", tests, NULL, NULL);
}
