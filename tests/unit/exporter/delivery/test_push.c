/* What replies mean, and the push thread against a server that plays the aggregator. */
/* tsan */
#include <setjmp.h>
#include <stdarg.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>

#include "common/wire/frame.h"
#include "common/http/httpd.h"
#include "common/base/log.h"
#include "common/base/time.h"
#include "exporter/delivery/push.h"
#include "tests/support/exporter/spooldir.h"

#define WALL SPOOLDIR_WALL
#define PATIENCE_S 300 /* only a test that would hang waits this long */

/* ---- the disk ---- */

static struct disk {
	pthread_mutex_t lock;
	pthread_cond_t change;
	bool hang;
	int hanging;
} disk = {.lock = PTHREAD_MUTEX_INITIALIZER, .change = PTHREAD_COND_INITIALIZER};

/* Linked in the place of the C library's: batches are read with it before they are sent. */
ssize_t slow_pread(int fd, void *to, size_t n, off_t offset) __asm__("pread");

ssize_t
slow_pread(int fd, void *to, size_t n, off_t offset)
{
	pthread_mutex_lock(&disk.lock);
	disk.hanging++;
	pthread_cond_broadcast(&disk.change);
	while (disk.hang)
		pthread_cond_wait(&disk.change, &disk.lock);
	disk.hanging--;
	pthread_mutex_unlock(&disk.lock);
	return (ssize_t)syscall(SYS_pread64, fd, to, n, offset);
}

static void
disk_hang(bool hang)
{
	pthread_mutex_lock(&disk.lock);
	disk.hang = hang;
	pthread_cond_broadcast(&disk.change);
	pthread_mutex_unlock(&disk.lock);
}

static void
await_hanging_read(void)
{
	pthread_mutex_lock(&disk.lock);
	while (disk.hanging == 0)
		pthread_cond_wait(&disk.change, &disk.lock);
	pthread_mutex_unlock(&disk.lock);
}

/* ---- the decision ---- */

struct decision_row {
	const char *name;
	int status;
	const char *body;
	enum push_action action;
	uint64_t next_seq;
};

/* Batches 5 to 8 of stream 100, which is this run's, were sent. */
static const struct decision_row decision_rows[] = {
	{"all taken", 200, "{\"epoch\":100,\"next_seq\":9}", PUSH_ACKED, 9},
	{"some taken", 200, "{\"next_seq\":6}", PUSH_ACKED, 6},
	{"it had more than was sent", 200, "{\"next_seq\":20}", PUSH_MOVE, 20},
	{"it has less than was acknowledged before", 200, "{\"next_seq\":2}", PUSH_MOVE, 2},
	{"nothing taken", 200, "{\"next_seq\":5}", PUSH_WAIT, 0},
	{"about another stream", 200, "{\"epoch\":101,\"next_seq\":9}", PUSH_WAIT, 0},
	{"no number", 200, "{}", PUSH_WAIT, 0},
	{"a number that is none", 200, "{\"next_seq\":\"9\"}", PUSH_WAIT, 0},
	{"batch 0", 200, "{\"next_seq\":0}", PUSH_WAIT, 0},
	{"a negative batch", 200, "{\"next_seq\":-9}", PUSH_WAIT, 0},
	{"not JSON", 200, "<html>", PUSH_WAIT, 0},
	{"JSON that is no object", 200, "[9]", PUSH_WAIT, 0},
	{"empty", 200, "", PUSH_WAIT, 0},
	{"a gap: earlier ones are wanted", 409, "{\"status\":409,\"expected_seq\":3}", PUSH_MOVE, 3},
	{"a gap: later ones are wanted", 409, "{\"status\":409,\"expected_seq\":7,\"epoch\":100}", PUSH_MOVE, 7},
	{"a gap that is none", 409, "{\"status\":409,\"expected_seq\":5}", PUSH_WAIT, 0},
	{"same number, other bytes", 409, "{\"status\":409,\"field\":\"seq\"}", PUSH_WAIT, 0},
	{"too large", 413, "{\"status\":413}", PUSH_FEWER, 0},
	{"who are you", 401, "", PUSH_WAIT, 0},
	{"not yours", 403, "{\"expected_seq\":3}", PUSH_WAIT, 0},
	{"simulated data on a real ledger", 422, "{\"title\":\"no\"}", PUSH_WAIT, 0},
	{"busy", 503, "", PUSH_WAIT, 0},
	{"a version that it does not know yet", 503, "{\"status\":503,\"detail\":\"wire version 3 is not known here\"}",
         PUSH_WAIT, 0},
	{"accepted is not taken", 202, "{\"next_seq\":9}", PUSH_WAIT, 0},
	{"moved elsewhere", 301, "", PUSH_WAIT, 0},
	{"broken", 500, "{\"next_seq\":9}", PUSH_WAIT, 0},
};

static void
replies_mean_what_the_rules_say(void **state)
{
	const struct spool_chunk sent = {.epoch = 100, .first_seq = 5, .last_seq = 8};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(decision_rows); i++) {
		const struct decision_row *r = &decision_rows[i];
		struct httpc_reply reply = {.status = r->status};
		struct push_decision d;

		buf_init(&reply.body, 1000);
		buf_str(&reply.body, r->body);
		d = push_decide(&sent, &reply);
		buf_fini(&reply.body);
		if (d.action != r->action || d.next_seq != r->next_seq)
			fail_msg("%s: action %d next %" PRIu64 " (%s)", r->name, (int)d.action, d.next_seq, d.reason);
		assert_int_equal(d.reason[0] == '\0', d.action == PUSH_ACKED);
	}
}

/* The same replies for a stream of an earlier name of the node. */
static void
only_a_refusal_of_another_name_s_stream_sets_it_aside(void **state)
{
	const struct spool_chunk sent = {.epoch = 100, .first_seq = 5, .last_seq = 8, .foreign = true};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(decision_rows); i++) {
		const struct decision_row *r = &decision_rows[i];
		enum push_action want = r->status == 403 || r->status == 422 ? PUSH_ASIDE : r->action;
		struct httpc_reply reply = {.status = r->status};
		struct push_decision d;

		buf_init(&reply.body, 1000);
		buf_str(&reply.body, r->body);
		d = push_decide(&sent, &reply);
		buf_fini(&reply.body);
		if (d.action != want || d.next_seq != r->next_seq)
			fail_msg("%s: action %d next %" PRIu64 " (%s)", r->name, (int)d.action, d.next_seq, d.reason);
	}
}

static void
one_batch_that_is_too_large_is_not_made_smaller(void **state)
{
	const struct spool_chunk one = {.epoch = 100, .first_seq = 5, .last_seq = 5};
	struct httpc_reply reply = {.status = 413};

	(void)state;
	buf_init(&reply.body, 1000);
	assert_int_equal(push_decide(&one, &reply).action, PUSH_WAIT);
}

/* ---- the thread ---- */

enum mood { WORKING, BUSY, SMALL, FORGETFUL, SILENT };

struct aggregator {
	struct httpd *httpd;
	pthread_mutex_t lock;
	pthread_cond_t moved;
	enum mood mood;
	uint64_t epoch, cursor, requests, refused; /* of the stream that came last */
	uint64_t cursors[8], epochs[8];            /* of all of them */
	const char *only_node;                     /* whose batches are taken; NULL: all are */
	bool bad_request;
};

static void
change_stream(struct aggregator *a, uint64_t epoch)
{
	size_t i = 0;

	for (size_t k = 0; k < ARRAY_LEN(a->epochs); k++)
		if (a->epochs[k] == a->epoch)
			a->cursors[k] = a->cursor;
	while (i + 1 < ARRAY_LEN(a->epochs) && a->epochs[i] != 0 && a->epochs[i] != epoch)
		i++;
	if (a->epochs[i] != epoch) {
		a->epochs[i] = epoch;
		a->cursors[i] = 1;
	}
	a->epoch = epoch;
	a->cursor = a->cursors[i];
}

/* Of today: what a clock says to the second is no matter of a test. */
static bool
says_the_time(const struct http_request *rq)
{
	const char *clock = http_header(rq, PUSH_CLOCK_HEADER);
	int64_t away_ns;

	if (!clock || strspn(clock, "0123456789") != strlen(clock))
		return false;
	away_ns = strtoll(clock, NULL, 10) - time_wall_ns();
	return away_ns < NS_PER_DAY && away_ns > -NS_PER_DAY;
}

static void
answer(struct aggregator *a, const struct http_request *rq, struct http_reply *rp)
{
	const char *type = http_header(rq, "Content-Type");
	const uint8_t *payload;
	size_t pos = 0, len, frames = 0;

	a->requests++;
	if (!type || strcmp(type, PUSH_CONTENT_TYPE) != 0 || !says_the_time(rq))
		a->bad_request = true;
	if (a->mood == BUSY || (a->mood == SMALL && rq->body_len > 500)) {
		a->refused++;
		http_problem(rp, rq, a->mood == BUSY ? 503 : 413, NULL, "not now");
		return;
	}
	if (a->mood == FORGETFUL) { /* a fail-over: it knows nothing of the stream */
		a->mood = WORKING;
		a->cursor = 1;
	}
	while (frame_next(rq->body, rq->body_len, &pos, &payload, &len) == FRAME_OK) {
		owned(wire_batch) struct wire_batch *b = NULL;
		struct err err;

		if (!wire_unpack(payload, len, &b, &err)) {
			a->bad_request = true;
			return;
		}
		if (a->only_node && strcmp(a->only_node, b->node) != 0) {
			a->refused++;
			http_problem(rp, rq, 403, NULL, "the token speaks for node %s, the batch is of node %s",
			             a->only_node, b->node);
			return;
		}
		change_stream(a, b->epoch);
		if (frames++ == 0 && b->seq > a->cursor) {
			http_problem(rp, rq, 409, "seq", "a gap");
			http_problem_i64(rp, "expected_seq", (int64_t)a->cursor);
			return;
		}
		if (b->seq == a->cursor)
			a->cursor = b->last_seq + 1;
	}
	rp->content_type = "application/json";
	buf_printf(&rp->body, "{\"epoch\":%" PRIu64 ",\"next_seq\":%" PRIu64 "}", a->epoch, a->cursor);
}

static void
handle(void *app, void *worker, const struct http_request *rq, struct http_reply *rp)
{
	struct aggregator *a = app;

	(void)worker;
	pthread_mutex_lock(&a->lock);
	while (a->mood == SILENT) {
		a->requests++;
		pthread_cond_broadcast(&a->moved);
		pthread_cond_wait(&a->moved, &a->lock);
	}
	answer(a, rq, rp);
	pthread_cond_broadcast(&a->moved);
	pthread_mutex_unlock(&a->lock);
}

struct node {
	struct spooldir dir;
	struct spool_options options;
	struct outbox *outbox;
	struct push *push;
	struct aggregator aggregator;
	int64_t refused_pause_ns;
	char url[64];
};

/* The spool of a node that has had another name before, with so many batches of two streams of that time. */
static void
leave_old_streams(struct node *n, size_t batches)
{
	struct spool_options old = spooldir_options(&n->dir);

	old.node = "old-name";
	for (int run = 0; run < 2; run++) {
		owned(outbox) struct outbox *outbox = NULL;
		struct spool *spool = NULL;
		struct err err;

		if (!spool_open(&old, WALL, &spool, &err))
			fail_msg("%s", err.text);
		outbox = outbox_new(spool, &old);
		for (size_t i = 0; i < batches; i++) {
			struct wire_batch *b = wire_batch_new();

			b->from_ns = WALL;
			b->to_ns = WALL + NS_PER_MIN;
			if (!outbox_add(outbox, b, WALL, &err))
				fail_msg("%s", err.text);
		}
	}
}

static void
node_init_after(struct node *n, size_t old_batches)
{
	static const struct http_route routes[] = {
		{.method = "POST", .path = PUSH_PATH, .body_max = 1 << 20, .handle = handle}};
	struct httpd_options h = {.listen = "127.0.0.1:0",
	                          .routes = routes,
	                          .route_count = ARRAY_LEN(routes),
	                          .app = &n->aggregator,
	                          .workers = 1,
	                          .queue_max = 4,
	                          .idle_timeout_ns = 60 * NS_PER_S,
	                          .connection_max = 8};
	struct spool *spool = NULL;
	struct err err;

	*n = (struct node){0};
	log_init("test_push", LOG_ERROR);
	pthread_mutex_init(&n->aggregator.lock, NULL);
	pthread_cond_init(&n->aggregator.moved, NULL);
	spooldir_init(&n->dir);
	leave_old_streams(n, old_batches);
	n->options = spooldir_options(&n->dir);
	if (!spool_open(&n->options, WALL, &spool, &err) || !httpd_start(&h, &n->aggregator.httpd, &err))
		fail_msg("%s", err.text);
	n->outbox = outbox_new(spool, &n->options);
	snprintf(n->url, sizeof(n->url), "http://127.0.0.1:%u", httpd_port(n->aggregator.httpd));
}

static void
node_init(struct node *n)
{
	node_init_after(n, 0);
}

static void
start(struct node *n)
{
	struct push_options o = {.http = {.base_url = n->url,
	                                  .user_agent = "test",
	                                  .connect_timeout_ns = NS_PER_S * PATIENCE_S,
	                                  .timeout_ns = NS_PER_S * PATIENCE_S},
	                         .chunk_bytes = 1000,
	                         .least_pause_ns = NS_PER_MS,
	                         .most_pause_ns = 4 * NS_PER_MS,
	                         .refused_pause_ns = n->refused_pause_ns};
	struct err err;

	if (!push_start(&o, n->outbox, &n->push, &err))
		fail_msg("%s", err.text);
}

static void
set_mood(struct node *n, enum mood mood)
{
	pthread_mutex_lock(&n->aggregator.lock);
	n->aggregator.mood = mood;
	pthread_cond_broadcast(&n->aggregator.moved);
	pthread_mutex_unlock(&n->aggregator.lock);
}

static void
node_fini(struct node *n)
{
	assert_true(push_stop(n->push, 0));
	set_mood(n, WORKING);
	httpd_stop(n->aggregator.httpd);
	assert_false(n->aggregator.bad_request);
	outbox_free(n->outbox);
	spooldir_fini(&n->dir);
	pthread_mutex_destroy(&n->aggregator.lock);
	pthread_cond_destroy(&n->aggregator.moved);
}

static void
add(struct node *n, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		struct wire_batch *b = wire_batch_new();
		struct err err;

		b->from_ns = WALL;
		b->to_ns = WALL + NS_PER_MIN;
		if (!outbox_add(n->outbox, b, WALL, &err))
			fail_msg("%s", err.text);
	}
	if (n->push)
		push_wake(n->push);
}

/* Waits until *number is at least `least`. */
static void
await(struct node *n, const uint64_t *number, uint64_t least)
{
	struct timespec until;

	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += PATIENCE_S;
	pthread_mutex_lock(&n->aggregator.lock);
	while (*number < least)
		if (pthread_cond_timedwait(&n->aggregator.moved, &n->aggregator.lock, &until) == ETIMEDOUT) {
			pthread_mutex_unlock(&n->aggregator.lock);
			fail_msg("%" PRIu64 " never came", least);
		}
	pthread_mutex_unlock(&n->aggregator.lock);
}

static int64_t
unacked(struct node *n)
{
	struct outbox_stats stats;

	outbox_stats(n->outbox, &stats);
	return stats.spool.unacked_batches;
}

static void
finish(struct node *n)
{
	push_stop(take(n->push), NS_PER_S * PATIENCE_S);
}

static int64_t
refused_batches(struct node *n)
{
	struct outbox_stats stats;

	outbox_stats(n->outbox, &stats);
	return stats.spool.refused_batches;
}

static void
streams_of_an_earlier_name_do_not_hold_up_this_one_s(void **state)
{
	in_place(node) struct node n;

	(void)state;
	node_init_after(&n, 3);
	n.refused_pause_ns = NS_PER_HOUR;
	n.aggregator.only_node = "gn1";
	assert_int_equal(unacked(&n), 6);
	start(&n);
	add(&n, 4);
	await(&n, &n.aggregator.cursor, 5);
	finish(&n);
	assert_int_equal(n.aggregator.refused, 2); /* each stream once in the hour */
	assert_int_equal(refused_batches(&n), 6);
	assert_int_equal(unacked(&n), 6);
}

static void
streams_set_aside_are_offered_again_and_taken_when_the_token_allows_it(void **state)
{
	in_place(node) struct node n;

	(void)state;
	node_init_after(&n, 3);
	n.refused_pause_ns = 0;
	n.aggregator.only_node = "gn1";
	start(&n);
	await(&n, &n.aggregator.refused, 2);
	pthread_mutex_lock(&n.aggregator.lock);
	n.aggregator.only_node = NULL;
	pthread_mutex_unlock(&n.aggregator.lock);
	add(&n, 1);
	finish(&n);
	assert_int_equal(unacked(&n), 0);
	assert_int_equal(refused_batches(&n), 0);
}

static void
what_is_added_is_sent_and_acknowledged(void **state)
{
	in_place(node) struct node n;
	struct push_stats stats;

	(void)state;
	node_init(&n);
	add(&n, 3); /* from before the start */
	start(&n);
	await(&n, &n.aggregator.cursor, 4);
	add(&n, 40);
	await(&n, &n.aggregator.cursor, 44);
	push_stats(n.push, &stats);
	assert_true(stats.acked >= 1 && stats.failed == 0 && !stats.failing);
	finish(&n);
	assert_int_equal(unacked(&n), 0);
}

static void
a_busy_aggregator_is_tried_until_it_works(void **state)
{
	in_place(node) struct node n;

	(void)state;
	node_init(&n);
	set_mood(&n, BUSY);
	start(&n);
	add(&n, 5);
	await(&n, &n.aggregator.refused, 3);
	assert_int_equal(unacked(&n), 5);
	set_mood(&n, WORKING);
	await(&n, &n.aggregator.cursor, 6);
	finish(&n);
	assert_int_equal(unacked(&n), 0);
}

static void
an_aggregator_that_lost_its_place_gets_everything_again(void **state)
{
	in_place(node) struct node n;
	struct push_stats stats;

	(void)state;
	node_init(&n);
	start(&n);
	add(&n, 5);
	await(&n, &n.aggregator.cursor, 6);
	set_mood(&n, FORGETFUL);
	add(&n, 1);
	await(&n, &n.aggregator.cursor, 7);
	push_stats(n.push, &stats);
	assert_true(stats.moved >= 1);
	finish(&n);
	assert_int_equal(unacked(&n), 0);
}

static void
an_aggregator_that_takes_little_gets_little(void **state)
{
	in_place(node) struct node n;

	(void)state;
	node_init(&n);
	set_mood(&n, SMALL);
	add(&n, 20);
	start(&n);
	await(&n, &n.aggregator.cursor, 21);
	finish(&n);
	assert_int_equal(unacked(&n), 0);
}

static void
a_stop_sends_what_is_there_without_waiting_for_the_pause(void **state)
{
	in_place(node) struct node n;

	(void)state;
	node_init(&n);
	add(&n, 9);
	start(&n);
	add(&n, 1);
	finish(&n);
	assert_int_equal(unacked(&n), 0);
	assert_int_equal(n.aggregator.cursor, 11);
}

static void
a_stop_does_not_wait_for_an_aggregator_that_is_silent_or_gone(void **state)
{
	in_place(node) struct node n;

	(void)state;
	node_init(&n);
	set_mood(&n, SILENT);
	start(&n);
	add(&n, 2);
	await(&n, &n.aggregator.requests, 1);
	push_stop(take(n.push), NS_PER_MS);
	assert_int_equal(unacked(&n), 2);
	snprintf(n.url, sizeof(n.url), "http://127.0.0.1:1");
	start(&n);
	push_stop(take(n.push), NS_PER_S * PATIENCE_S);
	assert_int_equal(unacked(&n), 2);
}

static void
a_stop_does_not_wait_for_a_disk_that_hangs_in_a_read(void **state)
{
	in_place(node) struct node n;

	(void)state;
	node_init(&n);
	add(&n, 2);
	disk_hang(true);
	start(&n);
	await_hanging_read();
	assert_false(push_stop(n.push, NS_PER_MS));
	disk_hang(false);
	assert_true(push_stop(take(n.push), NS_PER_S * PATIENCE_S));
	assert_int_equal(unacked(&n), 2); /* the request was broken off before it began */
}

/* ---- the outbox ---- */

/* A disk that is full: the spool's directory is gone. */
static void
batches_that_the_disk_does_not_take_wait_in_memory(void **state)
{
	in_place(node) struct node n;
	struct outbox_stats stats;
	struct err err;

	(void)state;
	node_init(&n);
	assert_true(outbox_wants_dict(n.outbox));
	spooldir_fini(&n.dir);
	for (int64_t i = 0; i < OUTBOX_WAITING_MAX + 10; i++) {
		struct wire_batch *b = wire_batch_new();

		b->from_ns = WALL + i * NS_PER_MIN;
		b->to_ns = b->from_ns + NS_PER_MIN;
		assert_false(outbox_add(n.outbox, b, WALL, &err));
		assert_int_equal(err.kind, ERR_RETRY);
		assert_true(outbox_wants_dict(n.outbox));
	}
	outbox_stats(n.outbox, &stats);
	assert_int_equal(stats.waiting, OUTBOX_WAITING_MAX);
	assert_int_equal(stats.lost_waiting, 11);
	assert_int_equal(mkdir(n.dir.path, 0700), 0);
	assert_true(outbox_flush(n.outbox, WALL, &err));
	start(&n);
	await(&n, &n.aggregator.cursor, OUTBOX_WAITING_MAX + 1);
	outbox_stats(n.outbox, &stats);
	assert_int_equal(stats.waiting, 0);
	{
		in_place(buf) struct buf frames;
		owned(wire_batch) struct wire_batch *b = NULL;
		struct spool_chunk chunk;
		const uint8_t *payload;
		size_t pos = 0, len;
		bool any;

		finish(&n);
		buf_init(&frames, FRAME_HEAD + FRAME_MAX);
		assert_true(outbox_ack(n.outbox, stats.epoch, 1, WALL, &err));
		assert_true(outbox_peek(n.outbox, 1, &frames, &chunk, &any, &err) && any);
		assert_int_equal(frame_next(frames.data, frames.len, &pos, &payload, &len), FRAME_OK);
		assert_true(wire_unpack(payload, len, &b, &err));
		assert_int_equal(b->kind, WIRE_LOSS);
		assert_int_equal(b->seq, 1);
		assert_int_equal(b->last_seq, 1);
		assert_int_equal(b->from_ns, WALL);
		assert_int_equal(b->to_ns, WALL + 11 * NS_PER_MIN);
	}
}

static void
a_batch_that_breaks_the_rules_goes_as_a_loss_and_does_not_hold_up_the_others(void **state)
{
	in_place(node) struct node n;
	struct wire_batch *bad = wire_batch_new();
	struct outbox_stats stats;
	struct err err;

	(void)state;
	node_init(&n);
	bad->from_ns = WALL;
	bad->to_ns = WALL + NS_PER_MIN;
	bad->records = mem_array(1, sizeof(*bad->records));
	bad->record_count = 1; /* of device 0, which cannot be */
	assert_false(outbox_add(n.outbox, bad, WALL, &err));
	assert_int_equal(err.kind, ERR_INVALID);
	add(&n, 1);
	outbox_stats(n.outbox, &stats);
	assert_int_equal(stats.waiting, 0);
	assert_int_equal(stats.lost_waiting, 1);
	assert_int_equal(stats.next_seq, 3);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(replies_mean_what_the_rules_say),
		cmocka_unit_test(only_a_refusal_of_another_name_s_stream_sets_it_aside),
		cmocka_unit_test(one_batch_that_is_too_large_is_not_made_smaller),
		cmocka_unit_test(streams_of_an_earlier_name_do_not_hold_up_this_one_s),
		cmocka_unit_test(streams_set_aside_are_offered_again_and_taken_when_the_token_allows_it),
		cmocka_unit_test(what_is_added_is_sent_and_acknowledged),
		cmocka_unit_test(a_busy_aggregator_is_tried_until_it_works),
		cmocka_unit_test(an_aggregator_that_lost_its_place_gets_everything_again),
		cmocka_unit_test(an_aggregator_that_takes_little_gets_little),
		cmocka_unit_test(a_stop_sends_what_is_there_without_waiting_for_the_pause),
		cmocka_unit_test(a_stop_does_not_wait_for_an_aggregator_that_is_silent_or_gone),
		cmocka_unit_test(a_stop_does_not_wait_for_a_disk_that_hangs_in_a_read),
		cmocka_unit_test(batches_that_the_disk_does_not_take_wait_in_memory),
		cmocka_unit_test(a_batch_that_breaks_the_rules_goes_as_a_loss_and_does_not_hold_up_the_others),
	};

	return cmocka_run_group_tests_name("push", tests, NULL, NULL);
}
