/* The spool against an aggregator that forgets: whatever is appended, acknowledged, lost on the way, damaged or over the cap, each
 * stream arrives without a hole, every batch that arrives is the one that was appended, and nothing is given up without cause. A failover
 * takes the last things away that the aggregator took, of whatever streams, and says nothing: the spool finds out. One to a story: a second
 * one that takes away what was just sent again, and nothing else, is found out when that stream is next moved back. */
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "common/base/digest.h"
#include "common/wire/frame.h"
#include "common/base/time.h"
#include "tests/support/harness/prop.h"
#include "tests/support/exporter/spooldir.h"

#define STEPS 40
#define STREAMS (STEPS + 2)
#define BATCHES (3 * STEPS)
#define TAKEN_MAX (20 * BATCHES)
#define FORGOTTEN_MAX 8 /* by one failover */

enum what { APPEND, PUSH, PUSH_UNHEARD, FAIL_OVER, REOPEN, NEW_STREAM, NEXT_DAY, DAMAGE };
static const char *const what_names[] = {"append", "push",       "push, reply lost", "fail over",
                                         "reopen", "new stream", "next day",         "damage"};

struct step {
	enum what what;
	uint64_t a, b;
};
struct story {
	int64_t cap_bytes;
	bool calm; /* no damage, no cap; half of these within a day, so that nothing ever goes */
	struct step step[STEPS];
	size_t steps;
};

static void
generate(struct prop_source *s, void *vc)
{
	struct story *c = vc;

	size_t kinds;

	c->calm = !prop_bool(s);
	kinds = !c->calm ? DAMAGE + 1 : prop_bool(s) ? DAMAGE : NEXT_DAY;
	c->cap_bytes = c->calm ? INT64_C(1) << 40 : 2500 + (int64_t)prop_u64(s, 20000);
	c->steps = prop_index(s, STEPS + 1);
	for (size_t i = 0; i < c->steps; i++)
		c->step[i] = (struct step){.what = (enum what)prop_index(s, kinds),
		                           .a = prop_u64(s, 1000),
		                           .b = prop_u64(s, 5000)};
}

static void
describe(const void *vc, struct buf *out)
{
	const struct story *c = vc;

	buf_printf(out, "cap %" PRId64 ":", c->cap_bytes);
	for (size_t i = 0; i < c->steps; i++)
		buf_printf(out, " %s(%" PRIu64 ",%" PRIu64 ")", what_names[c->step[i].what], c->step[i].a,
		           c->step[i].b);
}

struct stream {
	uint64_t epoch;
	uint64_t made;   /* numbers 1..made were appended */
	uint64_t cursor; /* the aggregator wants this one next */
	uint8_t digest[BATCHES + 1][SHA256_SIZE];
};

/* What the aggregator took, in order: a failover goes back in it. */
struct taken {
	size_t stream;
	uint64_t cursor_before;
};

struct world {
	const struct story *story;
	struct taken taken[TAKEN_MAX];
	size_t taken_count;
	bool failed_over;
	struct spooldir dir;
	struct spool_options options;
	struct spool *spool;
	int64_t wall_ns;
	struct stream *streams;
	size_t count;
	bool gone; /* acknowledged segments were deleted */
	struct buf frames;
	struct buf *why;
};

#define BROKEN(w, ...) (buf_printf((w)->why, __VA_ARGS__), false)

static bool
note_stream(struct world *w)
{
	uint64_t epoch = spool_epoch(w->spool);

	if (w->count > 0 && epoch <= w->streams[w->count - 1].epoch)
		return BROKEN(w, "epoch %" PRIu64 " after %" PRIu64, epoch, w->streams[w->count - 1].epoch);
	w->streams[w->count++] = (struct stream){.epoch = epoch, .cursor = 1};
	return true;
}

static bool
reopen(struct world *w)
{
	struct err err;

	spool_free(w->spool);
	w->spool = NULL;
	if (!spool_open(&w->options, w->wall_ns, &w->spool, &err))
		return BROKEN(w, "%s", err.text);
	return note_stream(w);
}

static bool
append(struct world *w, size_t filler)
{
	struct stream *st = &w->streams[w->count - 1];
	uint64_t seq = spool_next_seq(w->spool);
	in_place(buf) struct buf payload;
	struct err err;

	buf_init(&payload, FRAME_MAX);
	if (seq != st->made + 1)
		return BROKEN(w, "next number %" PRIu64 " after %" PRIu64, seq, st->made);
	spooldir_batch(&w->options, st->epoch, seq, filler, &payload);
	if (!spool_append(w->spool, payload.data, payload.len, spooldir_from_ns(seq), spooldir_from_ns(seq + 1),
	                  w->wall_ns, &err))
		return BROKEN(w, "%s", err.text);
	sha256(payload.data, payload.len, st->digest[seq]);
	st->made = seq;
	return true;
}

/* The aggregator takes one frame: lower numbers are ignored, higher ones are a hole. */
static bool
receive(struct world *w, struct stream *st, const uint8_t *payload, size_t len)
{
	owned(wire_batch) struct wire_batch *b = NULL;
	uint8_t digest[SHA256_SIZE];
	struct err err;

	if (!wire_unpack(payload, len, &b, &err) || !wire_check(b, &err))
		return BROKEN(w, "%s", err.text);
	if (b->seq < st->cursor)
		return true;
	if (b->epoch != st->epoch || b->seq != st->cursor || b->last_seq > st->made)
		return BROKEN(w, "stream %" PRIu64 ": %" PRIu64 "-%" PRIu64 " offered, %" PRIu64 " wanted of %" PRIu64,
		              b->epoch, b->seq, b->last_seq, st->cursor, st->made);
	if (b->kind == WIRE_LOSS && w->story->calm && !w->gone)
		return BROKEN(w, "%" PRIu64 "-%" PRIu64 " given up without cause", b->seq, b->last_seq);
	sha256(payload, len, digest);
	if (b->kind == WIRE_USAGE && memcmp(digest, st->digest[b->seq], sizeof(digest)) != 0)
		return BROKEN(w, "batch %" PRIu64 " is not the one that was appended", b->seq);
	if (w->taken_count == TAKEN_MAX)
		return BROKEN(w, "it never ends");
	w->taken[w->taken_count++] = (struct taken){(size_t)(st - w->streams), st->cursor};
	st->cursor = b->last_seq + 1;
	return true;
}

static struct stream *
find_stream(struct world *w, uint64_t epoch)
{
	for (size_t i = 0; i < w->count; i++)
		if (w->streams[i].epoch == epoch)
			return &w->streams[i];
	return NULL;
}

static bool
push(struct world *w, size_t max, bool heard, bool *ret_any)
{
	struct spool_chunk chunk;
	struct stream *st;
	const uint8_t *payload;
	size_t pos = 0, len;
	struct err err;

	if (!spool_peek(w->spool, max, &w->frames, &chunk, ret_any, &err))
		return BROKEN(w, "%s", err.text);
	if (!*ret_any)
		return true;
	st = find_stream(w, chunk.epoch);
	if (!st)
		return BROKEN(w, "stream %" PRIu64 " was never opened", chunk.epoch);
	if (chunk.first_seq > st->cursor) /* a gap: the aggregator says what it wants */
		return spool_ack(w->spool, chunk.epoch, st->cursor, w->wall_ns, &err) || BROKEN(w, "%s", err.text);
	while (frame_next(w->frames.data, w->frames.len, &pos, &payload, &len) == FRAME_OK)
		if (!receive(w, st, payload, len))
			return false;
	if (pos != w->frames.len || st->cursor <= chunk.first_seq)
		return BROKEN(w, "a chunk that ends inside a frame, or brings nothing");
	if (heard && !spool_ack(w->spool, chunk.epoch, st->cursor, w->wall_ns, &err))
		return BROKEN(w, "%s", err.text);
	return true;
}

static bool
damage(struct world *w, uint64_t which, uint64_t where)
{
	size_t count = spooldir_count(&w->dir, ".seg");
	owned(mem) char *path = count ? spooldir_segment(&w->dir, which % count) : NULL;
	in_place(buf) struct buf file;
	struct err err;

	buf_init(&file, 1 << 20);
	if (!path)
		return true;
	if (!buf_read_file(&file, path, &err))
		return BROKEN(w, "%s", err.text);
	file.data[where % file.len] ^= 0x41;
	FILE *f = fopen(path, "r+");

	if (!f || fwrite(file.data, 1, file.len, f) != file.len || fclose(f) != 0)
		return BROKEN(w, "cannot damage %s", path);
	return true;
}

static void
fail_over(struct world *w, size_t forgotten)
{
	if (w->failed_over)
		return;
	w->failed_over = forgotten > 0 && w->taken_count > 0;
	for (; forgotten > 0 && w->taken_count > 0; forgotten--) {
		const struct taken *t = &w->taken[--w->taken_count];

		w->streams[t->stream].cursor = t->cursor_before;
	}
}

static bool
act(struct world *w, const struct step *step)
{
	bool any;
	struct err err;

	switch (step->what) {
	case APPEND:
		for (uint64_t i = 0; i <= step->b % 3; i++)
			if (!append(w, step->a % 400))
				return false;
		return true;
	case PUSH: return push(w, step->b, true, &any);
	case PUSH_UNHEARD: return push(w, step->b, false, &any);
	case FAIL_OVER: fail_over(w, step->a % (FORGOTTEN_MAX + 1)); return true;
	case REOPEN: return reopen(w);
	case NEW_STREAM:
		if (!spool_new_stream(w->spool, w->wall_ns, &err))
			return BROKEN(w, "%s", err.text);
		return note_stream(w);
	case NEXT_DAY:
		w->wall_ns += NS_PER_DAY;
		w->gone = true;
		return true;
	case DAMAGE: return damage(w, step->a, step->b);
	}
	return false;
}

/* Everything that is left arrives. Streams that ended in damage may end early, the open one may not. */
static bool
drain(struct world *w)
{
	struct stream *open = &w->streams[w->count - 1];
	bool any = true;

	if (!append(w, 10))
		return false;
	for (size_t round = 0; any; round++) {
		if (round > 20 * BATCHES)
			return BROKEN(w, "it never ends");
		if (!push(w, 1000, true, &any))
			return false;
	}
	if (open->cursor != open->made + 1)
		return BROKEN(w, "the open stream ends at %" PRIu64 " of %" PRIu64, open->cursor - 1, open->made);
	for (size_t i = 0; w->story->calm && !w->gone && i < w->count; i++)
		if (w->streams[i].cursor != w->streams[i].made + 1)
			return BROKEN(w, "stream %zu ends at %" PRIu64 " of %" PRIu64, i, w->streams[i].cursor - 1,
			              w->streams[i].made);
	return true;
}

static void
world_fini(struct world *w)
{
	spool_free(w->spool);
	spooldir_fini(&w->dir);
	mem_free(w->streams);
	buf_fini(&w->frames);
}

static bool
streams_arrive_without_a_hole(const void *vc, struct buf *why)
{
	in_place(world) struct world w = {.story = vc, .wall_ns = SPOOLDIR_WALL, .why = why};

	spooldir_init(&w.dir);
	w.options = spooldir_options(&w.dir);
	w.options.cap_bytes = w.story->cap_bytes;
	w.streams = mem_array(STREAMS, sizeof(*w.streams));
	buf_init(&w.frames, FRAME_HEAD + FRAME_MAX);
	if (!reopen(&w))
		return false;
	for (size_t i = 0; i < w.story->steps; i++)
		if (!act(&w, &w.story->step[i]))
			return false;
	return drain(&w);
}

int
main(void)
{
	static const struct prop_test tests[] = {
		{"streams arrive without a hole, whatever happens to them", sizeof(struct story), generate,
	         streams_arrive_without_a_hole, describe, NULL},
	};

	return prop_main("spool", tests, ARRAY_LEN(tests));
}
