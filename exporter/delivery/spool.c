/* exporter/delivery/spool.c - batches on disk until the aggregator has them. */
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
	return state_save(s, err);
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

	/* a segment may be there without a batch: its first write failed */
	return wants_segment(s) || !last || last->last_seq < last->first_seq;
}

static bool
retry_errno(struct err *err, int errnum, const char *what, const char *path)
{
	return err_errno(err, ERR_RETRY, errnum, "cannot %s %s", what, path);
}

/* The head is there in whole or not at all; the batch follows. */
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

/* Acknowledged segments go first, then the oldest ones that are not. The one being written stays. */
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
		if (victim == end || !spool_give_up(s, victim, NULL))
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

/* After a failed write or sync the file ends again where it did; the same bytes written again are dirty again, so that the
 * next sync speaks for them. */
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
		if (spool_is_refused(s, g->epoch))
			ret->refused_batches += g->loss ? 1 : unacked;
		if (ret->oldest_unacked_wall_ns < 0)
			ret->oldest_unacked_wall_ns = g->from_ns;
	}
}
