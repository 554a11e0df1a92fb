/* The spool on a real directory: order, acknowledgement, torn tails at every byte, damage, the cap, and a full disk. */
#include <setjmp.h>
#include <stdarg.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

#include "common/wire/frame.h"
#include "common/base/time.h"
#include "exporter/delivery/spool_files.h"
#include "tests/support/exporter/spooldir.h"

#define WALL SPOOLDIR_WALL
#define FILLER 200

static struct spool *
open_spool(const struct spooldir *d, const struct spool_options *o)
{
	struct spool_options usual = spooldir_options(d);
	struct spool *s = NULL;
	struct err err;

	if (!spool_open(o ? o : &usual, WALL, &s, &err))
		fail_msg("%s", err.text);
	return s;
}

static void
append(const struct spooldir *d, struct spool *s, size_t count)
{
	struct spool_options o = spooldir_options(d);

	for (size_t i = 0; i < count; i++) {
		uint64_t seq = spool_next_seq(s);
		in_place(buf) struct buf payload;
		struct err err;

		buf_init(&payload, FRAME_MAX);
		spooldir_batch(&o, spool_epoch(s), seq, FILLER, &payload);
		if (!spool_append(s, payload.data, payload.len, spooldir_from_ns(seq), spooldir_from_ns(seq + 1), WALL,
		                  &err))
			fail_msg("%s", err.text);
	}
}

static bool
peek(struct spool *s, size_t max, struct buf *frames, struct spool_chunk *chunk)
{
	struct err err;
	bool any;

	if (!spool_peek(s, max, frames, chunk, &any, &err))
		fail_msg("%s", err.text);
	return any;
}

static void
ack(struct spool *s, uint64_t epoch, uint64_t next_seq)
{
	struct err err;

	if (!spool_ack(s, epoch, next_seq, WALL, &err))
		fail_msg("%s", err.text);
}

/* Everything that is not acknowledged, as text: "1 2 3 loss(4-9) 10 | 1 2", a bar between streams. Acknowledges it. An end of a stream
 * that is offered once more is not in it. */
static char *
drain(struct spool *s)
{
	in_place(buf) struct buf out, frames;
	struct spool_chunk chunk;
	uint64_t epoch = 0, newest = 0;

	buf_init(&out, 1 << 20);
	buf_init(&frames, FRAME_HEAD + FRAME_MAX);
	while (peek(s, 700, &frames, &chunk)) {
		const uint8_t *payload;
		size_t pos = 0, len;

		if (chunk.epoch < newest) {
			ack(s, chunk.epoch, chunk.last_seq + 1);
			continue;
		}
		newest = chunk.epoch;
		if (epoch && chunk.epoch != epoch)
			buf_str(&out, "| ");
		epoch = chunk.epoch;
		while (frame_next(frames.data, frames.len, &pos, &payload, &len) == FRAME_OK) {
			owned(wire_batch) struct wire_batch *b = NULL;
			struct err err;

			if (!wire_unpack(payload, len, &b, &err) || !wire_check(b, &err))
				fail_msg("%s", err.text);
			assert_int_equal(b->epoch, chunk.epoch);
			if (b->kind == WIRE_LOSS)
				buf_printf(&out, "loss(%" PRIu64 "-%" PRIu64 ") ", b->seq, b->last_seq);
			else
				buf_printf(&out, "%" PRIu64 " ", b->seq);
		}
		assert_int_equal(pos, frames.len);
		ack(s, chunk.epoch, chunk.last_seq + 1);
	}
	return mem_strdup(buf_text(&out));
}

static void
expect_drained(struct spool *s, const char *want)
{
	owned(mem) char *got = drain(s);

	assert_string_equal(got, want);
}

static void
batches_come_out_in_order_until_acknowledged(void **state)
{
	in_place(spooldir) struct spooldir d;
	in_place(buf) struct buf frames;
	struct spool_chunk chunk;

	(void)state;
	buf_init(&frames, FRAME_HEAD + FRAME_MAX);
	spooldir_init(&d);
	owned(spool) struct spool *s = open_spool(&d, NULL);

	assert_false(peek(s, 1000, &frames, &chunk));
	append(&d, s, 5);
	assert_true(peek(s, 1, &frames, &chunk)); /* always one whole frame */
	assert_int_equal(chunk.first_seq, 1);
	assert_int_equal(chunk.last_seq, 1);
	assert_true(peek(s, 900, &frames, &chunk)); /* not acknowledged: the same again, and more */
	assert_int_equal(chunk.first_seq, 1);
	assert_int_equal(chunk.last_seq, 3);
	ack(s, spool_epoch(s), 3);
	expect_drained(s, "3 4 5 ");
	append(&d, s, 1);
	expect_drained(s, "6 ");
	expect_drained(s, "");
}

static void
every_run_is_a_stream_of_its_own_and_the_older_goes_first(void **state)
{
	in_place(spooldir) struct spooldir d;
	uint64_t first, second;

	(void)state;
	spooldir_init(&d);
	{
		owned(spool) struct spool *s = open_spool(&d, NULL);

		first = spool_epoch(s);
		assert_int_equal(first, WALL / NS_PER_S);
		append(&d, s, 3);
		ack(s, first, 2);
	}
	{
		owned(spool) struct spool *s = open_spool(&d, NULL); /* the clock has not moved */
		struct err err;

		second = spool_epoch(s);
		assert_int_equal(second, first + 1);
		assert_int_equal(spool_next_seq(s), 1);
		append(&d, s, 1);
		assert_true(spool_new_stream(s, WALL, &err));
		assert_int_equal(spool_epoch(s), first + 2);
		append(&d, s, 2);
	}
	owned(spool) struct spool *s = open_spool(&d, NULL);

	expect_drained(s, "2 3 | 1 | 1 2 ");
}

static void
an_epoch_is_never_used_twice_even_when_its_segments_are_gone(void **state)
{
	in_place(spooldir) struct spooldir d;

	(void)state;
	spooldir_init(&d);
	for (uint64_t i = 0; i < 3; i++) {
		owned(spool) struct spool *s = open_spool(&d, NULL);

		assert_int_equal(spool_epoch(s), WALL / NS_PER_S + (int64_t)i);
	}
}

static void
a_segment_begins_with_the_full_dictionary(void **state)
{
	in_place(spooldir) struct spooldir d;

	(void)state;
	spooldir_init(&d);
	owned(spool) struct spool *s = open_spool(&d, NULL);

	assert_true(spool_wants_dict(s));
	append(&d, s, 1);
	assert_false(spool_wants_dict(s));
	append(&d, s, 3); /* beyond 1000 bytes */
	assert_true(spool_wants_dict(s));
	append(&d, s, 1);
	assert_false(spool_wants_dict(s));
	assert_int_equal(spooldir_count(&d, ".seg"), 2);
}

static void
a_tail_torn_at_any_byte_is_cut_and_everything_before_it_kept(void **state)
{
	in_place(spooldir) struct spooldir d;
	in_place(buf) struct buf file;
	size_t ends[8] = {0}, frames = 0, pos;
	const uint8_t *payload;
	struct segment_head head;
	struct err err;
	size_t len;

	(void)state;
	spooldir_init(&d);
	{
		owned(spool) struct spool *s = open_spool(&d, NULL);

		append(&d, s, 3);
	}
	owned(mem) char *path = spooldir_segment(&d, 0);

	buf_init(&file, 1 << 20);
	assert_true(buf_read_file(&file, path, &err));
	assert_true(segment_head_read(file.data, file.len, &head, &pos, &err));
	while (frame_next(file.data, file.len, &pos, &payload, &len) == FRAME_OK)
		ends[frames++] = pos;
	assert_int_equal(frames, 3);
	for (size_t cut = 0; cut <= file.len; cut++) {
		in_place(spooldir) struct spooldir torn;
		int whole = (cut >= ends[0]) + (cut >= ends[1]) + (cut >= ends[2]);

		spooldir_copy(&d, &torn);
		owned(mem) char *torn_path = spooldir_segment(&torn, 0);

		assert_int_equal(truncate(torn_path, (off_t)cut), 0);
		owned(spool) struct spool *s = open_spool(&torn, NULL);

		expect_drained(s, whole == 3 ? "1 2 3 " : whole == 2 ? "1 2 " : whole == 1 ? "1 " : "");
		append(&torn, s, 1);
		expect_drained(s, "1 ");
	}
}

static void
flip(const char *path, long offset)
{
	FILE *f = fopen(path, "r+");
	int c;

	assert_non_null(f);
	assert_int_equal(fseek(f, offset, SEEK_SET), 0);
	c = fgetc(f);
	assert_int_equal(fseek(f, offset, SEEK_SET), 0);
	assert_int_equal(fputc(c ^ 0x20, f), c ^ 0x20);
	assert_int_equal(fclose(f), 0);
}

static void
damage_in_the_middle_is_set_aside_and_booked_as_lost(void **state)
{
	in_place(spooldir) struct spooldir d;
	struct spool_stats stats;

	(void)state;
	spooldir_init(&d);
	{
		owned(spool) struct spool *s = open_spool(&d, NULL);

		append(&d, s, 12); /* four to a segment */
	}
	owned(mem) char *middle = spooldir_segment(&d, 1);

	flip(middle, 700); /* in batch 6 */
	owned(spool) struct spool *s = open_spool(&d, NULL);

	spool_stats(s, &stats);
	assert_int_equal(stats.corrupt_segments, 1);
	assert_int_equal(stats.lost_batches, 2);
	assert_int_equal(spooldir_count(&d, ".seg.corrupt"), 1);
	expect_drained(s, "1 2 3 4 5 6 loss(7-8) 9 10 11 12 ");
}

static void
a_segment_with_a_damaged_head_is_lost_in_whole(void **state)
{
	in_place(spooldir) struct spooldir d;

	(void)state;
	spooldir_init(&d);
	{
		owned(spool) struct spool *s = open_spool(&d, NULL);

		append(&d, s, 12);
	}
	owned(mem) char *middle = spooldir_segment(&d, 1);

	flip(middle, 20);
	owned(spool) struct spool *s = open_spool(&d, NULL);

	expect_drained(s, "1 2 3 4 loss(5-8) 9 10 11 12 ");
}

static void
a_segment_of_another_stream_under_a_wrong_name_is_not_taken_for_it(void **state)
{
	in_place(spooldir) struct spooldir d;

	(void)state;
	spooldir_init(&d);
	{
		owned(spool) struct spool *s = open_spool(&d, NULL);

		append(&d, s, 12);
	}
	owned(mem) char *first = spooldir_segment(&d, 0);
	owned(mem) char *second = spooldir_segment(&d, 1);

	assert_int_equal(rename(first, second), 0);
	owned(spool) struct spool *s = open_spool(&d, NULL);

	expect_drained(s, "9 10 11 12 "); /* what comes before the first that is here is the aggregator's to ask for */
	ack(s, (uint64_t)(WALL / NS_PER_S), 1);
	expect_drained(s, "loss(1-8) 9 10 11 12 ");
}

static void
damage_found_while_sending_is_booked_as_lost(void **state)
{
	in_place(spooldir) struct spooldir d;

	(void)state;
	spooldir_init(&d);
	owned(spool) struct spool *s = open_spool(&d, NULL);

	append(&d, s, 6);
	owned(mem) char *first = spooldir_segment(&d, 0);
	owned(mem) char *current = spooldir_segment(&d, 1);

	assert_int_equal(unlink(first), 0); /* somebody tidied up */
	flip(current, 400);                 /* in batch 6, in the segment being written */
	expect_drained(s, "loss(1-4) 5 loss(6-6) ");
	append(&d, s, 1);
	expect_drained(s, "7 ");
}

/* Bytes of a segment of four batches. */
static int64_t
segment_size(void)
{
	in_place(spooldir) struct spooldir d;
	struct spool_stats stats;

	spooldir_init(&d);
	owned(spool) struct spool *s = open_spool(&d, NULL);

	append(&d, s, 4);
	assert_true(spool_wants_dict(s));
	spool_stats(s, &stats);
	return stats.bytes;
}

static void
over_its_cap_the_oldest_becomes_one_loss_batch(void **state)
{
	in_place(spooldir) struct spooldir d;
	struct spool_options o;
	struct spool_stats stats;

	(void)state;
	spooldir_init(&d);
	o = spooldir_options(&d);
	o.cap_bytes = segment_size() * 7 / 2;
	{
		owned(spool) struct spool *s = open_spool(&d, &o);

		append(&d, s, 40);
		spool_stats(s, &stats);
		assert_true(stats.bytes <= o.cap_bytes);
		assert_int_equal(stats.lost_batches, 28);
		assert_int_equal(stats.oldest_unacked_wall_ns, spooldir_from_ns(1));
		assert_int_equal(stats.unacked_batches, 13);
	}
	owned(spool) struct spool *s = open_spool(&d, &o);

	expect_drained(s, "loss(1-28) 29 30 31 32 33 34 35 36 37 38 39 40 ");
}

static void
acknowledged_segments_go_before_any_that_are_not(void **state)
{
	in_place(spooldir) struct spooldir d;
	struct spool_options o;
	struct spool_stats stats;

	(void)state;
	spooldir_init(&d);
	o = spooldir_options(&d);
	o.cap_bytes = segment_size() * 7 / 2;
	owned(spool) struct spool *s = open_spool(&d, &o);

	append(&d, s, 10);
	ack(s, spool_epoch(s), 10);
	append(&d, s, 10);
	spool_stats(s, &stats);
	assert_int_equal(stats.lost_batches, 0);
	expect_drained(s, "10 11 12 13 14 15 16 17 18 19 20 ");
}

static void
a_loss_begins_where_the_aggregator_is(void **state)
{
	in_place(spooldir) struct spooldir d;
	struct spool_options o;
	struct spool_stats stats;

	(void)state;
	spooldir_init(&d);
	o = spooldir_options(&d);
	o.cap_bytes = segment_size() * 7 / 2;
	owned(spool) struct spool *s = open_spool(&d, &o);

	append(&d, s, 4);
	ack(s, spool_epoch(s), 3); /* half of the first segment */
	append(&d, s, 12);
	spool_stats(s, &stats);
	assert_int_equal(stats.lost_batches, 2);
	expect_drained(s, "loss(3-4) 5 6 7 8 9 10 11 12 13 14 15 16 ");
}

static void
a_cursor_that_moves_back_gets_what_is_here_and_a_loss_for_the_rest(void **state)
{
	in_place(spooldir) struct spooldir d;
	struct spool_options o;
	struct err err;
	uint64_t epoch;

	(void)state;
	spooldir_init(&d);
	o = spooldir_options(&d);
	owned(spool) struct spool *s = open_spool(&d, &o);

	epoch = spool_epoch(s);
	append(&d, s, 10);
	expect_drained(s, "1 2 3 4 5 6 7 8 9 10 ");
	ack(s, epoch, 4);
	expect_drained(s, "4 5 6 7 8 9 10 ");
	assert_true(spool_ack(s, epoch, 11, WALL, &err));
	append(&d, s, 1);
	ack(s, epoch, 12);
	/* a day later the acknowledged segments are gone */
	assert_true(spool_append(s, "x", 1, 0, 1, WALL + NS_PER_DAY, &err));
	assert_int_equal(spooldir_count(&d, ".seg"), 1);
	ack(s, epoch, 2);
	{
		in_place(buf) struct buf frames;
		struct spool_chunk chunk;

		buf_init(&frames, FRAME_HEAD + FRAME_MAX);
		assert_true(peek(s, 1, &frames, &chunk));
		assert_int_equal(chunk.first_seq, 2);
		assert_int_equal(chunk.last_seq, 8);
	}
	assert_false(spool_ack(s, epoch, 14, WALL, &err));
	assert_int_equal(err.kind, ERR_CONFLICT);
	assert_false(spool_ack(s, epoch, 0, WALL, &err));
	assert_int_equal(err.kind, ERR_INVALID);
	assert_true(spool_ack(s, 12345, 99, WALL, &err)); /* a stream that is not here */
}

static void
a_refused_stream_stays_and_the_ones_behind_it_go_on(void **state)
{
	in_place(spooldir) struct spooldir d;
	in_place(buf) struct buf frames;
	struct spool_chunk chunk;
	struct spool_options old;
	struct spool_stats stats;
	uint64_t epoch;

	(void)state;
	buf_init(&frames, FRAME_HEAD + FRAME_MAX);
	spooldir_init(&d);
	old = spooldir_options(&d);
	old.node = "old-name";
	{
		owned(spool) struct spool *s = open_spool(&d, &old);
		in_place(buf) struct buf payload;
		struct err err;

		epoch = spool_epoch(s);
		buf_init(&payload, FRAME_MAX);
		spooldir_batch(&old, epoch, 1, FILLER, &payload);
		assert_true(spool_append(s, payload.data, payload.len, spooldir_from_ns(1), spooldir_from_ns(2), WALL,
		                         &err));
	}
	owned(spool) struct spool *s = open_spool(&d, NULL);

	append(&d, s, 2);
	assert_true(peek(s, 1000, &frames, &chunk));
	assert_int_equal(chunk.epoch, epoch);
	assert_true(chunk.foreign);
	spool_refuse(s, epoch);
	spool_refuse(s, epoch);
	assert_true(peek(s, 1000, &frames, &chunk));
	assert_int_equal(chunk.epoch, spool_epoch(s));
	assert_false(chunk.foreign);
	expect_drained(s, "1 2 ");
	spool_stats(s, &stats);
	assert_int_equal(stats.refused_batches, 1);
	assert_int_equal(stats.unacked_batches, 1);
	spool_offer_again(s);
	expect_drained(s, "1 ");
}

/* The next chunk as "FIRST-LAST of the n-th stream". */
static void
expect_next(struct spool *s, uint64_t epoch, uint64_t first_seq, uint64_t last_seq)
{
	in_place(buf) struct buf frames;
	struct spool_chunk chunk;

	buf_init(&frames, FRAME_HEAD + FRAME_MAX);
	assert_true(peek(s, 1 << 20, &frames, &chunk));
	assert_int_equal(chunk.epoch, epoch);
	assert_int_equal(chunk.first_seq, first_seq);
	assert_int_equal(chunk.last_seq, last_seq);
}

static void
the_end_of_the_stream_before_is_offered_once_more_when_the_aggregator_may_have_lost_it(void **state)
{
	in_place(spooldir) struct spooldir d;
	in_place(buf) struct buf frames;
	struct spool_chunk chunk;
	uint64_t first, second, third;

	(void)state;
	buf_init(&frames, FRAME_HEAD + FRAME_MAX);
	spooldir_init(&d);
	for (int run = 0; run < 2; run++) {
		owned(spool) struct spool *s = open_spool(&d, NULL);

		append(&d, s, 3);
		expect_drained(s, "1 2 3 ");
	}
	owned(spool) struct spool *s = open_spool(&d, NULL);

	third = spool_epoch(s);
	second = third - 1;
	first = third - 2;
	append(&d, s, 2);
	expect_next(s, third, 1, 2);
	ack(s, third, 3);
	expect_next(s, second, 3, 3); /* a stream has begun */
	ack(s, second, 4);
	assert_false(peek(s, 1000, &frames, &chunk));
	append(&d, s, 1);
	ack(s, third, 2); /* a failover */
	expect_next(s, second, 3, 3);
	ack(s, second, 2); /* that lost some of this one, too */
	expect_next(s, first, 3, 3);
	ack(s, first, 4); /* but not of that */
	expect_next(s, second, 2, 3);
	ack(s, second, 4);
	expect_next(s, third, 2, 3);
	ack(s, third, 4);
	assert_false(peek(s, 1000, &frames, &chunk));
}

static void
a_stream_whose_end_was_offered_once_more_is_not_kept_for_longer(void **state)
{
	in_place(spooldir) struct spooldir d;
	struct err err;

	(void)state;
	spooldir_init(&d);
	{
		owned(spool) struct spool *s = open_spool(&d, NULL);

		append(&d, s, 3);
		expect_drained(s, "1 2 3 ");
	}
	owned(spool) struct spool *s = open_spool(&d, NULL);

	append(&d, s, 1);
	ack(s, spool_epoch(s), 2);
	assert_true(spool_ack(s, spool_epoch(s) - 1, 4, WALL + NS_PER_HOUR, &err));
	assert_int_equal(spooldir_count(&d, ".seg"), 2);
	assert_true(spool_append(s, "x", 1, 0, 1, WALL + NS_PER_DAY, &err));
	assert_int_equal(spooldir_count(&d, ".seg"), 1);
}

static void
a_full_disk_leaves_the_spool_as_it_was_and_the_batch_can_be_tried_again(void **state)
{
	in_place(spooldir) struct spooldir d;
	in_place(buf) struct buf payload;
	struct spool_options o;
	struct rlimit before, tight;
	struct spool_stats stats;
	struct err err;

	(void)state;
	spooldir_init(&d);
	o = spooldir_options(&d);
	buf_init(&payload, FRAME_MAX);
	owned(spool) struct spool *s = open_spool(&d, &o);

	append(&d, s, 2);
	spooldir_batch(&o, spool_epoch(s), 3, FILLER, &payload);
	signal(SIGXFSZ, SIG_IGN);
	assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
	tight = before;
	spool_stats(s, &stats);
	for (size_t room = 0; room < FRAME_HEAD + payload.len; room += 7) { /* the write is cut short at many places */
		tight.rlim_cur = (rlim_t)stats.bytes + room;
		assert_int_equal(setrlimit(RLIMIT_FSIZE, &tight), 0);
		assert_false(spool_append(s, payload.data, payload.len, 0, 1, WALL, &err));
		assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
		assert_int_equal(err.kind, ERR_RETRY);
		assert_non_null(strstr(err.text, d.path));
		assert_int_equal(spool_next_seq(s), 3);
	}
	append(&d, s, 2);
	expect_drained(s, "1 2 3 4 ");
	/* and when not even a segment can begin */
	tight.rlim_cur = 10;
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &tight), 0);
	assert_true(spool_wants_dict(s));
	assert_false(spool_append(s, payload.data, payload.len, 0, 1, WALL, &err));
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
	assert_int_equal(err.kind, ERR_RETRY);
	assert_true(spool_wants_dict(s));
	append(&d, s, 1);
	expect_drained(s, "5 ");
}

static void
one_process_at_a_time(void **state)
{
	in_place(spooldir) struct spooldir d;
	struct spool_options o;
	struct spool *second = NULL;
	struct err err;

	(void)state;
	spooldir_init(&d);
	o = spooldir_options(&d);
	owned(spool) struct spool *first = open_spool(&d, &o);

	assert_int_equal(spool_next_seq(first), 1);
	assert_false(spool_open(&o, WALL, &second, &err));
	assert_non_null(strstr(err.text, "in use by another exporter"));
}

static void
a_place_that_cannot_be_written_is_named(void **state)
{
	in_place(spooldir) struct spooldir d;
	struct spool_options o;
	struct spool *s = NULL;
	struct err err;

	(void)state;
	spooldir_init(&d);
	owned(mem) char *file = mem_printf("%s/file", d.path);
	owned(mem) char *below = mem_printf("%s/file/spool", d.path);

	assert_true(file_write_atomic(file, "x", 1, 0600, &err));
	o = spooldir_options(&d);
	o.dir = below;
	assert_false(spool_open(&o, WALL, &s, &err));
	assert_non_null(strstr(err.text, below));
}

static void
missing_folders_are_made(void **state)
{
	in_place(spooldir) struct spooldir d;
	struct spool_options o;
	struct err err;

	(void)state;
	spooldir_init(&d);
	owned(mem) char *deep = mem_printf("%s/a/b/c", d.path);

	o = spooldir_options(&d);
	o.dir = deep;
	owned(spool) struct spool *s = NULL;

	assert_true(spool_open(&o, WALL, &s, &err));
}

static void
what_an_interrupted_run_left_is_tidied_up(void **state)
{
	in_place(spooldir) struct spooldir d;
	in_place(spooldir) struct spooldir before;
	struct spool_options o;
	struct err err;

	(void)state;
	spooldir_init(&d);
	o = spooldir_options(&d);
	{
		owned(spool) struct spool *s = open_spool(&d, NULL);

		append(&d, s, 12);
	}
	spooldir_copy(&d, &before);
	o.cap_bytes = segment_size() * 2;
	{
		owned(spool) struct spool *s = open_spool(&d, &o);

		append(&d, s, 1);
		append(&d, s, 1); /* gives up segments 1-4 and 5-8, joined */
	}
	/* as if the process had ended after the joined loss was written and before the second file was deleted */
	owned(mem) char *from = spooldir_segment(&before, 1);
	owned(mem) char *to = mem_printf("%s/%s", d.path, strrchr(from, '/') + 1);
	owned(mem) char *temp = mem_printf("%s.a1B2c3", to);
	in_place(buf) struct buf file;

	buf_init(&file, 1 << 20);
	assert_true(buf_read_file(&file, from, &err));
	assert_true(file_write_atomic(to, file.data, file.len, 0600, &err));
	assert_true(file_write_atomic(temp, file.data, 10, 0600, &err));
	owned(spool) struct spool *s = open_spool(&d, NULL);

	assert_int_not_equal(access(temp, F_OK), 0);
	assert_int_not_equal(access(to, F_OK), 0);
	expect_drained(s, "loss(1-8) 9 10 11 12 | 1 2 ");
}

static void
a_state_that_cannot_be_read_only_means_that_batches_are_offered_again(void **state)
{
	in_place(spooldir) struct spooldir d;
	struct err err;

	(void)state;
	spooldir_init(&d);
	{
		owned(spool) struct spool *s = open_spool(&d, NULL);

		append(&d, s, 3);
		expect_drained(s, "1 2 3 ");
	}
	owned(mem) char *path = mem_printf("%s/state", d.path);

	assert_true(file_write_atomic(path, "\0\xff garbage", 10, 0600, &err));
	owned(spool) struct spool *s = open_spool(&d, NULL);

	expect_drained(s, "1 2 3 ");
}

static void
a_segment_of_a_newer_exporter_is_left_alone(void **state)
{
	in_place(spooldir) struct spooldir d;
	in_place(buf) struct buf file;
	struct spool_stats stats;
	struct segment_head head;
	struct err err;
	size_t head_len;
	uint32_t crc;

	(void)state;
	spooldir_init(&d);
	{
		owned(spool) struct spool *s = open_spool(&d, NULL);

		append(&d, s, 1);
	}
	owned(mem) char *path = spooldir_segment(&d, 0);

	buf_init(&file, 1 << 20);
	assert_true(buf_read_file(&file, path, &err));
	assert_true(segment_head_read(file.data, file.len, &head, &head_len, &err));
	file.data[8] = SEGMENT_VERSION + 1;
	crc = crc32c(0, file.data, head_len - 4);
	for (size_t i = 0; i < 4; i++)
		file.data[head_len - 4 + i] = (char)(crc >> (8 * i));
	assert_true(file_write_atomic(path, file.data, file.len, 0600, &err));
	owned(spool) struct spool *s = open_spool(&d, NULL);

	spool_stats(s, &stats);
	assert_int_equal(stats.foreign_segments, 1);
	expect_drained(s, "");
	assert_int_equal(access(path, F_OK), 0);
}

/* An exporter that was upgraded, or went back to before: what is in the spool goes out as it is. */
static void
batches_of_other_wire_versions_come_out_byte_for_byte(void **state)
{
	static const uint32_t versions[] = {1, 1, WIRE_VERSION + 1, 2};
	in_place(spooldir) struct spooldir d;
	in_place(buf) struct buf want, got, frames;
	struct spool_chunk chunk;
	struct spool_options o;
	uint64_t newest = 0;

	(void)state;
	spooldir_init(&d);
	o = spooldir_options(&d);
	buf_init(&want, 1 << 20);
	buf_init(&got, 1 << 20);
	buf_init(&frames, FRAME_HEAD + FRAME_MAX);
	for (size_t i = 0; i < ARRAY_LEN(versions); i++) {
		/* each run begins a segment of its own, so each version is the first of one */
		owned(spool) struct spool *s = open_spool(&d, NULL);
		in_place(buf) struct buf payload;
		struct err err;

		buf_init(&payload, FRAME_MAX);
		spooldir_batch_in(versions[i], &o, spool_epoch(s), spool_next_seq(s), FILLER, &payload);
		if (!spool_append(s, payload.data, payload.len, WALL, WALL + NS_PER_MIN, WALL, &err))
			fail_msg("%s", err.text);
		frame_append(&want, payload.data, payload.len);
	}
	owned(spool) struct spool *s = open_spool(&d, NULL);

	while (peek(s, 1 << 20, &frames, &chunk)) {
		/* an end of a stream that is offered once more */
		if (chunk.epoch >= newest)
			buf_add(&got, frames.data, frames.len);
		newest = chunk.epoch > newest ? chunk.epoch : newest;
		ack(s, chunk.epoch, chunk.last_seq + 1);
	}
	assert_int_equal(got.len, want.len);
	assert_memory_equal(got.data, want.data, want.len);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(batches_of_other_wire_versions_come_out_byte_for_byte),
		cmocka_unit_test(batches_come_out_in_order_until_acknowledged),
		cmocka_unit_test(every_run_is_a_stream_of_its_own_and_the_older_goes_first),
		cmocka_unit_test(an_epoch_is_never_used_twice_even_when_its_segments_are_gone),
		cmocka_unit_test(a_segment_begins_with_the_full_dictionary),
		cmocka_unit_test(a_tail_torn_at_any_byte_is_cut_and_everything_before_it_kept),
		cmocka_unit_test(damage_in_the_middle_is_set_aside_and_booked_as_lost),
		cmocka_unit_test(a_segment_with_a_damaged_head_is_lost_in_whole),
		cmocka_unit_test(a_segment_of_another_stream_under_a_wrong_name_is_not_taken_for_it),
		cmocka_unit_test(damage_found_while_sending_is_booked_as_lost),
		cmocka_unit_test(over_its_cap_the_oldest_becomes_one_loss_batch),
		cmocka_unit_test(acknowledged_segments_go_before_any_that_are_not),
		cmocka_unit_test(a_loss_begins_where_the_aggregator_is),
		cmocka_unit_test(a_cursor_that_moves_back_gets_what_is_here_and_a_loss_for_the_rest),
		cmocka_unit_test(a_refused_stream_stays_and_the_ones_behind_it_go_on),
		cmocka_unit_test(
			the_end_of_the_stream_before_is_offered_once_more_when_the_aggregator_may_have_lost_it),
		cmocka_unit_test(a_stream_whose_end_was_offered_once_more_is_not_kept_for_longer),
		cmocka_unit_test(a_full_disk_leaves_the_spool_as_it_was_and_the_batch_can_be_tried_again),
		cmocka_unit_test(one_process_at_a_time),
		cmocka_unit_test(a_place_that_cannot_be_written_is_named),
		cmocka_unit_test(missing_folders_are_made),
		cmocka_unit_test(what_an_interrupted_run_left_is_tidied_up),
		cmocka_unit_test(a_state_that_cannot_be_read_only_means_that_batches_are_offered_again),
		cmocka_unit_test(a_segment_of_a_newer_exporter_is_left_alone),
	};

	return cmocka_run_group_tests_name("spool", tests, NULL, NULL);
}
