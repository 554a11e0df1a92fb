/* exporter/delivery/spool.c - the spool: opening, appending, reading for the aggregator, acknowledgements. */
#include "exporter/delivery/spool.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/wire/frame.h"
#include "common/base/time.h"
#include "exporter/delivery/spool_files.h"

#define RECHECKED_MAX 8 /* streams of one batch in a row: minutes, as much as a failover may lose */

void
spool_free(struct spool *s)
{
	if (!s)
		return;
	if (s->fd >= 0)
		close(s->fd);
	while (s->count > 0)
		spool_remove(s, s->count - 1);
	mem_free(s->segments);
	mem_free(s->acks);
	mem_free(s->refused);
	if (s->lock_fd >= 0)
		close(s->lock_fd);
	mem_free(s->dir);
	mem_free(s->node);
	mem_free(s->version);
	mem_free(s);
}

/* ---- opening ---- */

static bool
make_dirs(const char *dir, struct err *err)
{
	owned(mem) char *path = mem_strdup(dir);

	for (char *slash = strchr(path + 1, '/');; slash = strchr(slash + 1, '/')) {
		if (slash)
			*slash = '\0';
		if (mkdir(path, slash ? 0755 : 0700) != 0 && errno != EEXIST)
			return err_errno(err, ERR_FATAL, errno, "cannot make the spool %s", dir);
		if (!slash)
			return true;
		*slash = '/';
	}
}

static bool
take_lock(struct spool *s, struct err *err)
{
	owned(mem) char *path = mem_printf("%s/lock", s->dir);

	s->lock_fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	if (s->lock_fd < 0)
		return err_errno(err, ERR_FATAL, errno, "the spool %s is not writable: cannot open %s", s->dir, path);
	if (flock(s->lock_fd, LOCK_EX | LOCK_NB) == 0)
		return true;
	if (errno == EWOULDBLOCK)
		return err_set(err, ERR_FATAL, "the spool %s is in use by another exporter", s->dir);
	return err_errno(err, ERR_FATAL, errno, "cannot lock the spool %s", s->dir);
}

static void
expire(struct spool *s, int64_t wall_ns)
{
	for (size_t i = 0; i < s->count;) {
		const struct segment *g = &s->segments[i];
		bool current = s->fd >= 0 && i == s->count - 1;

		if (current || g->acked_wall_ns < 0 || wall_ns - g->acked_wall_ns < s->options.keep_ns ||
		    !spool_delete(s, i, NULL))
			i++;
	}
}

bool
spool_new_stream(struct spool *s, int64_t wall_ns, struct err *err)
{
	uint64_t seconds = wall_ns > 0 ? (uint64_t)(wall_ns / NS_PER_S) : 0;

	if (s->fd >= 0)
		close(s->fd);
	s->fd = -1;
	s->tail_dirty = false;
	s->epoch = s->epoch + 1 > seconds ? s->epoch + 1 : seconds;
	s->next_seq = 1;
	return spool_save(s, err);
}

bool
spool_open(const struct spool_options *o, int64_t wall_ns, struct spool **ret, struct err *err)
{
	owned(spool) struct spool *s = mem_alloc(sizeof(*s));

	s->options = *o;
	s->options.dir = s->dir = mem_strdup(o->dir);
	s->options.node = s->node = mem_strdup(o->node);
	s->options.exporter_version = s->version = mem_strdup(o->exporter_version);
	s->lock_fd = s->fd = -1;
	if (!make_dirs(s->dir, err) || !take_lock(s, err) || !spool_load(s, err))
		return false;
	for (size_t i = 0; i < s->count; i++)
		if (s->segments[i].epoch > s->epoch)
			s->epoch = s->segments[i].epoch;
	if (!spool_new_stream(s, wall_ns, err))
		return err_prefix(err, "the spool %s is not writable", s->dir);
	expire(s, wall_ns);
	*ret = take(s);
	return true;
}

/* ---- writing ---- */

uint64_t
spool_epoch(const struct spool *s)
{
	return s->epoch;
}

uint64_t
spool_next_seq(const struct spool *s)
{
	return s->next_seq;
}

static bool
wants_segment(const struct spool *s)
{
	return s->fd < 0 || s->segments[s->count - 1].bytes >= s->options.segment_bytes;
}

bool
spool_wants_dict(const struct spool *s)
{
	const struct segment *last = s->count > 0 ? &s->segments[s->count - 1] : NULL;

	/* a segment may have no batch yet: its first write failed */
	return wants_segment(s) || !last || last->last_seq < last->first_seq;
}

static bool
retry_errno(struct err *err, int errnum, const char *what, const char *path)
{
	return err_errno(err, ERR_RETRY, errnum, "cannot %s %s", what, path);
}

/* Writes the head atomically; the batch follows. */
static bool
begin_segment(struct spool *s, struct err *err)
{
	struct segment_head head = {.flags = s->options.flags, .epoch = s->epoch, .first_seq = s->next_seq};
	owned(mem) char *path = segment_path(s, s->epoch, s->next_seq);
	in_place(buf) struct buf text = {0};
	struct segment g = {.epoch = s->epoch,
	                    .first_seq = s->next_seq,
	                    .last_seq = s->next_seq - 1,
	                    .acked_wall_ns = -1,
	                    .flags = s->options.flags};
	int fd;

	memcpy(head.boot_id, s->options.boot_id, sizeof(head.boot_id));
	memcpy(g.boot_id, s->options.boot_id, sizeof(g.boot_id));
	snprintf(head.node, sizeof(head.node), "%s", s->node);
	buf_init(&text, SEGMENT_HEAD_MAX);
	segment_head_write(&head, &text);
	if (!file_write_atomic(path, text.data, text.len, 0600, err)) {
		if (err)
			err->kind = ERR_RETRY;
		return false;
	}
	fd = open(path, O_WRONLY | O_CLOEXEC);
	if (fd < 0)
		return retry_errno(err, errno, "open", path);
	if (s->fd >= 0)
		close(s->fd);
	s->fd = fd;
	s->tail_dirty = false;
	g.bytes = (int64_t)text.len;
	g.node = mem_strdup(s->node);
	spool_insert(s, g);
	return true;
}

/* Rule 4. */
static void
make_room(struct spool *s, int64_t more)
{
	while (s->count > 0 && s->bytes + more > s->options.cap_bytes) {
		size_t end = s->fd >= 0 ? s->count - 1 : s->count, victim = end;

		for (size_t i = 0; i < end && victim == end; i++)
			if (s->segments[i].acked_wall_ns >= 0)
				victim = i;
		if (victim < end) {
			if (!spool_delete(s, victim, NULL))
				return;
			continue;
		}
		for (size_t i = 0; i < end && victim == end; i++)
			if (!s->segments[i].loss)
				victim = i;
		if (victim == end || !spool_replace_by_loss(s, victim, NULL))
			return;
	}
}

static bool
write_at(int fd, const char *data, size_t n, int64_t offset)
{
	while (n > 0) {
		ssize_t put = pwrite(fd, data, n, (off_t)offset);

		if (put < 0 && errno == EINTR)
			continue;
		if (put < 0)
			return false;
		data += put;
		n -= (size_t)put;
		offset += put;
	}
	return true;
}

/* A failed write or sync is cut off. Writing the same bytes again makes their pages dirty again, so that the next sync covers
 * them. */
static bool
write_frame(struct spool *s, const struct buf *frame, struct err *err)
{
	struct segment *g = &s->segments[s->count - 1];
	owned(mem) char *path = segment_path(s, g->epoch, g->first_seq);
	int errnum;

	if (s->tail_dirty && ftruncate(s->fd, (off_t)g->bytes) != 0)
		return retry_errno(err, errno, "cut", path);
	s->tail_dirty = false;
	if (write_at(s->fd, frame->data, frame->len, g->bytes) && fdatasync(s->fd) == 0)
		return true;
	errnum = errno;
	s->tail_dirty = ftruncate(s->fd, (off_t)g->bytes) != 0;
	return retry_errno(err, errnum, "write to", path);
}

bool
spool_append(struct spool *s, const void *payload, size_t n, int64_t from_ns, int64_t to_ns, int64_t wall_ns,
             struct err *err)
{
	in_place(buf) struct buf frame = {0};
	struct segment *g;

	buf_init(&frame, FRAME_HEAD + FRAME_MAX);
	frame_append(&frame, payload, n);
	expire(s, wall_ns);
	make_room(s, (int64_t)(frame.len + (wants_segment(s) ? segment_head_len(s->node) : 0)));
	if (wants_segment(s) && !begin_segment(s, err))
		return false;
	if (!write_frame(s, &frame, err))
		return false;
	g = &s->segments[s->count - 1];
	if (g->last_seq < g->first_seq)
		g->from_ns = from_ns;
	g->to_ns = to_ns;
	g->last_seq = s->next_seq++;
	g->bytes += (int64_t)frame.len;
	g->acked_wall_ns = -1;
	s->bytes += (int64_t)frame.len;
	return true;
}

/* ---- acknowledgements ---- */

/* The position of the first entry that is not before this epoch. */
static size_t
ack_position(const struct spool *s, uint64_t epoch)
{
	size_t low = 0, high = s->ack_count;

	while (low < high) {
		size_t middle = low + (high - low) / 2;

		if (s->acks[middle].epoch < epoch)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

/* NULL: the stream has no acknowledgement. */
static const struct stream_ack *
find_ack(const struct spool *s, uint64_t epoch)
{
	size_t at = ack_position(s, epoch);

	return at < s->ack_count && s->acks[at].epoch == epoch ? &s->acks[at] : NULL;
}

void
spool_put_ack(struct spool *s, struct stream_ack ack)
{
	size_t at = ack_position(s, ack.epoch);

	if (at == s->ack_count || s->acks[at].epoch != ack.epoch) {
		s->acks = mem_grow(s->acks, s->ack_count + 1, sizeof(*s->acks));
		memmove(&s->acks[at + 1], &s->acks[at], (s->ack_count - at) * sizeof(*s->acks));
		s->ack_count++;
	}
	s->acks[at] = ack;
}

static bool
is_refused(const struct spool *s, uint64_t epoch)
{
	for (size_t i = 0; i < s->refused_count; i++)
		if (s->refused[i] == epoch)
			return true;
	return false;
}

void
spool_refuse(struct spool *s, uint64_t epoch)
{
	if (is_refused(s, epoch))
		return;
	s->refused = mem_grow(s->refused, s->refused_count + 1, sizeof(*s->refused));
	s->refused[s->refused_count++] = epoch;
}

void
spool_offer_again(struct spool *s)
{
	s->refused_count = 0;
}

/* Rule 6. An aggregator loses its latest commits: when it has the last batch, it has everything before it, also of earlier streams.
 * A stream of one batch proves nothing, because that batch is accepted either way: then the streams before it are rechecked too. */
static void
recheck_before(struct spool *s, uint64_t epoch)
{
	size_t streams = 0;

	for (size_t i = s->count; i-- > 0 && streams < RECHECKED_MAX;) {
		const struct segment *g = &s->segments[i];
		const struct stream_ack *a = g->epoch < epoch ? find_ack(s, g->epoch) : NULL;
		struct stream_ack rechecked;

		if (g->epoch >= epoch || is_refused(s, g->epoch))
			continue;
		if (!a || a->next_seq <= g->last_seq)
			return; /* it is sent anyway */
		rechecked = *a;
		rechecked.next_seq = g->loss ? g->first_seq : g->last_seq;
		if (!rechecked.rechecked_wall_ns)
			rechecked.rechecked_wall_ns = a->wall_ns;
		epoch = g->epoch;
		spool_put_ack(s, rechecked);
		if (rechecked.next_seq > 1)
			return;
		streams++;
	}
}

/* The cursor of each segment's stream, for a walk over all segments in order; start with a zeroed one. A stream without
 * acknowledgement begins at its first number on disk. */
struct cursor_walk {
	uint64_t epoch, cursor;
};

static uint64_t
cursor_next(struct cursor_walk *w, const struct spool *s, const struct segment *g)
{
	if (w->epoch != g->epoch) {
		const struct stream_ack *a = find_ack(s, g->epoch);

		w->epoch = g->epoch;
		w->cursor = a ? a->next_seq : g->first_seq;
	}
	return w->cursor;
}

uint64_t
spool_cursor(const struct spool *s, uint64_t epoch)
{
	const struct stream_ack *a = find_ack(s, epoch);

	for (size_t i = 0; !a && i < s->count; i++)
		if (s->segments[i].epoch == epoch)
			return s->segments[i].first_seq;
	return a ? a->next_seq : 1;
}

int64_t
segment_unacked(const struct segment *g, uint64_t cursor)
{
	uint64_t first = g->first_seq > cursor ? g->first_seq : cursor;

	return first > g->last_seq ? 0 : (int64_t)(g->last_seq - first + 1);
}

void
spool_mark_acked(struct spool *s)
{
	for (size_t i = 0; i < s->count; i++) {
		struct segment *g = &s->segments[i];
		const struct stream_ack *a = find_ack(s, g->epoch);

		if (!a || g->last_seq >= a->next_seq)
			g->acked_wall_ns = -1;
		else if (g->acked_wall_ns < 0)
			g->acked_wall_ns = a->wall_ns;
	}
}

bool
spool_note_ack(struct spool *s, uint64_t epoch, uint64_t next_seq, int64_t wall_ns, struct err *err)
{
	uint64_t end = epoch == s->epoch ? s->next_seq : 0;
	const struct stream_ack *before = find_ack(s, epoch);
	struct stream_ack now = {.epoch = epoch, .wall_ns = wall_ns};
	bool recheck = !before || next_seq < before->next_seq; /* rule 6 */

	for (size_t i = 0; i < s->count; i++)
		if (s->segments[i].epoch == epoch && s->segments[i].last_seq + 1 > end)
			end = s->segments[i].last_seq + 1;
	if (end == 0)
		return true; /* a stream that is no longer on disk */
	if (next_seq < 1)
		return err_set(err, ERR_INVALID, "stream %" PRIu64 ": there is no batch number 0", epoch);
	if (next_seq > end && epoch == s->epoch)
		return err_set(err, ERR_CONFLICT,
		               "stream %" PRIu64 ": the aggregator wants batch %" PRIu64
		               " next, but the last one made is %" PRIu64,
		               epoch, next_seq, end - 1);
	now.next_seq = next_seq < end ? next_seq : end;
	if (before && before->rechecked_wall_ns && now.next_seq == end)
		now.wall_ns = before->rechecked_wall_ns;
	spool_put_ack(s, now);
	if (recheck)
		recheck_before(s, epoch);
	spool_mark_acked(s);
	return true;
}

bool
spool_ack(struct spool *s, uint64_t epoch, uint64_t next_seq, int64_t wall_ns, struct err *err)
{
	return spool_note_ack(s, epoch, next_seq, wall_ns, err) && spool_save(s, err);
}

/* ---- reading ---- */

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

/* Appends the frame at *offset to `frames`, checks it, and moves behind it. READ_FULL: it would exceed max_bytes. */
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

/* File offset of batch number seq. */
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

		/* frames before the damage are sent first */
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

/* The first segment with something to send, and the cursor of its stream; s->count: none. */
static size_t
next_segment(const struct spool *s, uint64_t *ret_cursor)
{
	struct cursor_walk walk = {0};

	for (size_t i = 0; i < s->count; i++) {
		*ret_cursor = cursor_next(&walk, s, &s->segments[i]);
		if (segment_unacked(&s->segments[i], *ret_cursor) > 0 && !is_refused(s, s->segments[i].epoch))
			return i;
	}
	return s->count;
}

/* A loss batch that begins at the cursor: the aggregator accepts numbers only without gap or overlap. */
static bool
peek_loss(const struct spool *s, const struct segment *g, uint64_t cursor, struct buf *frames, struct spool_chunk *ret,
          struct err *err)
{
	bool before = cursor < g->first_seq;
	uint64_t last = before ? g->first_seq - 1 : g->last_seq;
	/* deleted numbers were made after the stream began and before the first batch on disk */
	int64_t from_ns = before ? (int64_t)(g->epoch < INT64_MAX / NS_PER_S ? g->epoch : 0) * NS_PER_S : g->from_ns;

	*ret = (struct spool_chunk){.epoch = g->epoch, .first_seq = cursor, .last_seq = last};
	return spool_loss_frame(s, g, cursor, last, from_ns, before ? g->from_ns : g->to_ns, frames, err);
}

/* A missing file counts as damaged. */
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
	/* a damaged segment is set aside and its replacement tried next; each round disposes of one segment */
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

/* ---- copies ---- */

struct spool *
spool_view(const struct spool *s)
{
	struct spool *v = mem_alloc(sizeof(*v));

	*v = *s;
	v->view = true;
	v->fd = v->lock_fd = -1;
	v->options.dir = v->dir = mem_strdup(s->dir);
	v->options.node = v->node = mem_strdup(s->node);
	v->options.exporter_version = v->version = mem_strdup(s->version);
	v->segments = mem_array(s->count + 1, sizeof(*v->segments));
	v->cap = s->count + 1;
	for (size_t i = 0; i < s->count; i++) {
		v->segments[i] = s->segments[i];
		v->segments[i].node = mem_strdup(s->segments[i].node);
	}
	v->acks = mem_array(s->ack_count + 1, sizeof(*v->acks));
	if (s->ack_count > 0)
		memcpy(v->acks, s->acks, s->ack_count * sizeof(*v->acks));
	v->refused = mem_array(s->refused_count + 1, sizeof(*v->refused));
	if (s->refused_count > 0)
		memcpy(v->refused, s->refused, s->refused_count * sizeof(*v->refused));
	v->hint_epoch = 0;
	return v;
}

static bool
has_stream(const struct spool *s, uint64_t epoch)
{
	for (size_t i = 0; i < s->count; i++)
		if (s->segments[i].epoch == epoch)
			return true;
	return false;
}

void
spool_copy_acks(struct spool *to, const struct spool *from)
{
	for (size_t i = 0; i < from->ack_count; i++) {
		const struct stream_ack *a = &from->acks[i];

		if (has_stream(to, a->epoch))
			spool_put_ack(to, *a);
	}
	to->refused_count = 0;
	for (size_t i = 0; i < from->refused_count; i++)
		spool_refuse(to, from->refused[i]);
	spool_mark_acked(to);
}

void
spool_copy_position(struct spool *to, const struct spool *from)
{
	to->hint_epoch = from->hint_epoch;
	to->hint_seq = from->hint_seq;
	to->hint_offset = from->hint_offset;
}

void
spool_set_flags(struct spool *s, uint32_t flags)
{
	s->options.flags = flags;
}

void
spool_stats(const struct spool *s, struct spool_stats *ret)
{
	struct cursor_walk walk = {0};

	*ret = (struct spool_stats){.bytes = s->bytes,
	                            .segments = (int64_t)s->count,
	                            .lost_batches = s->lost_batches,
	                            .corrupt_segments = s->corrupt_segments,
	                            .foreign_segments = s->foreign_segments,
	                            .torn_tails = s->torn_tails,
	                            .oldest_unacked_wall_ns = -1};
	for (size_t i = 0; i < s->count; i++) {
		const struct segment *g = &s->segments[i];
		int64_t unacked = segment_unacked(g, cursor_next(&walk, s, g));

		if (unacked == 0)
			continue;
		ret->unacked_batches += g->loss ? 1 : unacked;
		if (is_refused(s, g->epoch))
			ret->refused_batches += g->loss ? 1 : unacked;
		if (ret->oldest_unacked_wall_ns < 0)
			ret->oldest_unacked_wall_ns = g->from_ns;
	}
}
