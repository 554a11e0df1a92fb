/* exporter/delivery/spool_send.c - what the aggregator gets next, and what it says it has. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "common/wire/frame.h"
#include "common/base/time.h"
#include "exporter/delivery/spool_files.h"

static bool
read_at(int fd, void *to, size_t n, int64_t offset)
{
	char *p = to;

	while (n > 0) {
		ssize_t got = pread(fd, p, n, (off_t)offset);

		if (got < 0 && errno == EINTR)
			continue;
		if (got <= 0) {
			errno = got == 0 ? EIO : errno;
			return false;
		}
		p += got;
		n -= (size_t)got;
		offset += got;
	}
	return true;
}

static uint32_t
frame_len(const uint8_t head[FRAME_HEAD])
{
	return (uint32_t)head[0] | (uint32_t)head[1] << 8 | (uint32_t)head[2] << 16 | (uint32_t)head[3] << 24;
}

enum read_result { READ_OK, READ_FULL, READ_DAMAGED };

/* Reads the frame at *offset behind what is in `frames`, checks it, and moves behind it. READ_FULL: it would be more than
 * max_bytes. */
static enum read_result
read_frame(int fd, int64_t end, size_t max_bytes, int64_t *offset, struct buf *frames)
{
	const uint8_t *payload;
	uint8_t head[FRAME_HEAD];
	size_t pos = frames->len, len, payload_len;
	char *to;

	if (*offset + (int64_t)FRAME_HEAD > end || !read_at(fd, head, FRAME_HEAD, *offset))
		return READ_DAMAGED;
	len = FRAME_HEAD + frame_len(head);
	if (frame_len(head) > FRAME_MAX || *offset + (int64_t)len > end)
		return READ_DAMAGED;
	if (frames->len > 0 && frames->len + len > max_bytes)
		return READ_FULL;
	to = buf_reserve(frames, len);
	ASSERT(to);
	if (!read_at(fd, to, len, *offset) ||
	    frame_next(frames->data, frames->len + len, &pos, &payload, &payload_len) != FRAME_OK)
		return READ_DAMAGED;
	buf_commit(frames, len);
	*offset += (int64_t)len;
	return READ_OK;
}

/* Where number seq begins: after the head and one frame per number. */
static bool
find_offset(const struct spool *s, const struct segment *g, int fd, uint64_t seq, int64_t *ret)
{
	int64_t offset = (int64_t)segment_head_len(g->node);
	uint64_t at = g->first_seq;

	if (s->hint_epoch == g->epoch && s->hint_seq <= seq && s->hint_seq > g->first_seq &&
	    s->hint_seq <= g->last_seq) {
		offset = s->hint_offset;
		at = s->hint_seq;
	}
	for (; at < seq; at++) {
		uint8_t head[FRAME_HEAD];

		if (offset + (int64_t)FRAME_HEAD > g->bytes || !read_at(fd, head, FRAME_HEAD, offset))
			return false;
		offset += (int64_t)FRAME_HEAD + frame_len(head);
	}
	*ret = offset;
	return offset < g->bytes;
}

static enum read_result
read_frames(struct spool *s, const struct segment *g, int fd, uint64_t seq, size_t max_bytes, struct buf *frames,
            struct spool_chunk *ret)
{
	int64_t offset;

	if (!find_offset(s, g, fd, seq, &offset))
		return READ_DAMAGED;
	*ret = (struct spool_chunk){.epoch = g->epoch, .first_seq = seq, .last_seq = seq - 1};
	while (ret->last_seq < g->last_seq) {
		enum read_result r = read_frame(fd, g->bytes, max_bytes, &offset, frames);

		/* what is sound before the damage goes first */
		if (r == READ_DAMAGED && ret->last_seq < seq)
			return READ_DAMAGED;
		if (r != READ_OK)
			break;
		ret->last_seq++;
	}
	s->hint_epoch = g->epoch;
	s->hint_seq = ret->last_seq + 1;
	s->hint_offset = offset;
	return READ_OK;
}

bool
spool_is_refused(const struct spool *s, uint64_t epoch)
{
	for (size_t i = 0; i < s->refused_count; i++)
		if (s->refused[i] == epoch)
			return true;
	return false;
}

void
spool_refuse(struct spool *s, uint64_t epoch)
{
	if (spool_is_refused(s, epoch))
		return;
	s->refused = mem_grow(s->refused, s->refused_count + 1, sizeof(*s->refused));
	s->refused[s->refused_count++] = epoch;
}

void
spool_offer_again(struct spool *s)
{
	s->refused_count = 0;
}

/* The first segment with something to send, and the cursor of its stream; s->count: none. */
static size_t
next_segment(const struct spool *s, uint64_t *ret_cursor)
{
	struct cursor_walk walk = {0};

	for (size_t i = 0; i < s->count; i++) {
		*ret_cursor = cursor_next(&walk, s, &s->segments[i]);
		if (segment_unacked(&s->segments[i], *ret_cursor) > 0 && !spool_is_refused(s, s->segments[i].epoch))
			return i;
	}
	return s->count;
}

/* A loss batch from the cursor on: the aggregator takes no number twice and leaves none out. */
static bool
peek_loss(const struct spool *s, const struct segment *g, uint64_t cursor, struct buf *frames, struct spool_chunk *ret,
          struct err *err)
{
	bool before = cursor < g->first_seq;
	uint64_t last = before ? g->first_seq - 1 : g->last_seq;
	/* of numbers that have gone only this is known: after the stream began, before what is here */
	int64_t from_ns = before ? (int64_t)(g->epoch < INT64_MAX / NS_PER_S ? g->epoch : 0) * NS_PER_S : g->from_ns;

	*ret = (struct spool_chunk){.epoch = g->epoch, .first_seq = cursor, .last_seq = last};
	return spool_loss_frame(s, g, cursor, last, from_ns, before ? g->from_ns : g->to_ns, frames, err);
}

/* A file that is not there is damaged in whole. */
static bool
peek_segment(struct spool *s, const struct segment *g, uint64_t cursor, size_t max_bytes, struct buf *frames,
             struct spool_chunk *ret, enum read_result *ret_result, struct err *err)
{
	owned(mem) char *path = segment_path(s, g->epoch, g->first_seq);
	int fd = open(path, O_RDONLY | O_CLOEXEC);

	*ret_result = READ_DAMAGED;
	if (fd < 0)
		return errno == ENOENT || err_errno(err, ERR_RETRY, errno, "cannot open %s", path);
	*ret_result = read_frames(s, g, fd, cursor, max_bytes, frames, ret);
	close(fd);
	return true;
}

static bool
is_foreign(const struct spool *s, const struct segment *g)
{
	return g->flags != s->options.flags || strcmp(g->node, s->node) != 0;
}

bool
spool_peek(struct spool *s, size_t max_bytes, struct buf *frames, struct spool_chunk *ret, bool *ret_any,
           struct err *err)
{
	ASSERT(frames->max >= FRAME_HEAD + FRAME_MAX && frames->max >= max_bytes);
	/* a damaged segment is set aside, and what takes its place is looked at again; each round leaves one segment behind */
	for (size_t rounds = s->count + 2; rounds > 0; rounds--) {
		uint64_t cursor = 0;
		size_t at = next_segment(s, &cursor);
		enum read_result result;

		buf_clear(frames);
		*ret_any = at < s->count;
		if (!*ret_any)
			return true;
		if (s->segments[at].loss || cursor < s->segments[at].first_seq) {
			if (!peek_loss(s, &s->segments[at], cursor, frames, ret, err))
				return false;
			result = READ_OK;
		} else if (!peek_segment(s, &s->segments[at], cursor, max_bytes, frames, ret, &result, err)) {
			return false;
		}
		ret->foreign = is_foreign(s, &s->segments[at]);
		if (result == READ_OK)
			return true;
		if (s->view) {
			s->hint_epoch = 0;
			return err_set(err, ERR_CONFLICT, "a file of the spool %s is not as it was", s->options.dir);
		}
		if (!spool_set_aside(s, at, err))
			return false;
	}
	return err_set(err, ERR_RETRY, "the spool %s cannot be read", s->options.dir);
}

bool
spool_note_ack(struct spool *s, uint64_t epoch, uint64_t next_seq, int64_t wall_ns, struct err *err)
{
	uint64_t end = epoch == s->epoch ? s->next_seq : 0;
	const struct stream_ack *before = spool_find_ack(s, epoch);
	struct stream_ack now = {.epoch = epoch, .wall_ns = wall_ns};
	bool doubt = !before || next_seq < before->next_seq; /* it begins, or was moved back */

	for (size_t i = 0; i < s->count; i++)
		if (s->segments[i].epoch == epoch && s->segments[i].last_seq + 1 > end)
			end = s->segments[i].last_seq + 1;
	if (end == 0)
		return true; /* a stream that has gone from here */
	if (next_seq < 1)
		return err_set(err, ERR_INVALID, "stream %" PRIu64 ": there is no batch number 0", epoch);
	if (next_seq > end && epoch == s->epoch)
		return err_set(err, ERR_CONFLICT,
		               "stream %" PRIu64 ": the aggregator wants batch %" PRIu64
		               " next, but the last one made is %" PRIu64,
		               epoch, next_seq, end - 1);
	now.next_seq = next_seq < end ? next_seq : end;
	if (before && before->doubted_wall_ns && now.next_seq == end)
		now.wall_ns = before->doubted_wall_ns;
	spool_put_ack(s, now);
	if (doubt)
		spool_doubt_before(s, epoch);
	spool_mark_acked(s);
	return true;
}

bool
spool_save(struct spool *s, struct err *err)
{
	return state_save(s, err);
}

bool
spool_ack(struct spool *s, uint64_t epoch, uint64_t next_seq, int64_t wall_ns, struct err *err)
{
	return spool_note_ack(s, epoch, next_seq, wall_ns, err) && state_save(s, err);
}
