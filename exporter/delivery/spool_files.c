/* exporter/delivery/spool_files.c - the segments of the spool as files: finding them at the start, repairing, giving up. */
#include "exporter/delivery/spool_files.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/wire/frame.h"
#include "common/base/time.h"

#define NAME_FORMAT "%016" PRIx64 "-%016" PRIx64 ".seg"
#define NAME_LEN (16 + 1 + 16 + 4)
/* a segment may end with one frame beyond its limit */
#define FILE_MAX (INT64_C(1) << 30)

char *
segment_path(const struct spool *s, uint64_t epoch, uint64_t first_seq)
{
	return mem_printf("%s/" NAME_FORMAT, s->options.dir, epoch, first_seq);
}

void
segment_fini(struct segment *g)
{
	mem_free(g->node);
	*g = (struct segment){0};
}

void
spool_insert(struct spool *s, struct segment g)
{
	size_t at = s->count;

	if (s->count == s->cap) {
		s->cap = s->cap ? s->cap * 2 : 16;
		s->segments = mem_grow(s->segments, s->cap, sizeof(*s->segments));
	}
	while (at > 0 && (s->segments[at - 1].epoch > g.epoch ||
	                  (s->segments[at - 1].epoch == g.epoch && s->segments[at - 1].first_seq > g.first_seq)))
		at--;
	memmove(&s->segments[at + 1], &s->segments[at], (s->count - at) * sizeof(g));
	s->segments[at] = g;
	s->count++;
	s->bytes += g.bytes;
}

void
spool_remove(struct spool *s, size_t at)
{
	s->bytes -= s->segments[at].bytes;
	segment_fini(&s->segments[at]);
	s->count--;
	memmove(&s->segments[at], &s->segments[at + 1], (s->count - at) * sizeof(*s->segments));
}

bool
spool_delete(struct spool *s, size_t at, struct err *err)
{
	owned(mem) char *path = segment_path(s, s->segments[at].epoch, s->segments[at].first_seq);

	if (unlink(path) != 0 && errno != ENOENT)
		return err_errno(err, ERR_RETRY, errno, "cannot delete %s", path);
	spool_remove(s, at);
	return true;
}

/* ---- loss batches ---- */

bool
spool_loss_frame(const struct spool *s, const struct segment *g, uint64_t first_seq, uint64_t last_seq, int64_t from_ns,
                 int64_t to_ns, struct buf *out, struct err *err)
{
	owned(wire_batch) struct wire_batch *b = wire_batch_new();
	in_place(buf) struct buf payload = {0};

	b->kind = WIRE_LOSS;
	b->node = mem_strdup(g->node);
	memcpy(b->boot_id, g->boot_id, sizeof(b->boot_id));
	b->epoch = g->epoch;
	b->seq = first_seq;
	b->last_seq = last_seq;
	b->flags = g->flags;
	b->exporter_version = mem_strdup(s->options.exporter_version);
	b->to_ns = to_ns > 0 ? to_ns : 0;
	b->from_ns = from_ns < 0 ? 0 : from_ns > b->to_ns ? b->to_ns : from_ns;
	buf_init(&payload, FRAME_MAX);
	if (!wire_pack(b, &payload, err))
		return false;
	frame_append(out, payload.data, payload.len);
	return true;
}

/* Writes the file of a segment of one loss batch, in the place of whatever has its name. g has the numbers and times. */
static bool
write_loss(const struct spool *s, struct segment *g, struct err *err)
{
	owned(mem) char *path = segment_path(s, g->epoch, g->first_seq);
	struct segment_head head = {.flags = g->flags, .epoch = g->epoch, .first_seq = g->first_seq};
	in_place(buf) struct buf file = {0};

	memcpy(head.boot_id, g->boot_id, sizeof(head.boot_id));
	snprintf(head.node, sizeof(head.node), "%s", g->node);
	buf_init(&file, SEGMENT_HEAD_MAX + FRAME_HEAD + FRAME_MAX);
	segment_head_write(&head, &file);
	if (!spool_loss_frame(s, g, g->first_seq, g->last_seq, g->from_ns, g->to_ns, &file, err) ||
	    !buf_ok(&file, path, err))
		return false;
	if (!file_write_atomic(path, file.data, file.len, 0600, err)) {
		if (err)
			err->kind = ERR_RETRY;
		return false;
	}
	g->bytes = (int64_t)file.len;
	g->loss = true;
	return true;
}

/* A copy of what names the stream, with nothing in it. */
static struct segment
same_stream(const struct segment *g)
{
	struct segment copy = {.epoch = g->epoch, .flags = g->flags, .acked_wall_ns = -1, .node = mem_strdup(g->node)};

	memcpy(copy.boot_id, g->boot_id, sizeof(copy.boot_id));
	return copy;
}

/* The file is replaced first and a joined one deleted after: in between, both say the same, and loading sorts it out. */
bool
spool_give_up(struct spool *s, size_t at, struct err *err)
{
	struct segment *g = &s->segments[at];
	bool join = at > 0 && g[-1].epoch == g->epoch && g[-1].loss && g[-1].last_seq + 1 == g->first_seq;
	struct segment loss = same_stream(g);
	int64_t lost = g->loss ? 0 : segment_unacked(g, spool_cursor(s, g->epoch));

	loss.first_seq = join ? g[-1].first_seq : g->first_seq;
	loss.last_seq = g->last_seq;
	loss.from_ns = join ? g[-1].from_ns : g->from_ns;
	loss.to_ns = g->to_ns;
	if (!write_loss(s, &loss, err)) {
		segment_fini(&loss);
		return false;
	}
	if (join) {
		/* the one before has the new file's name; only the list forgets it */
		spool_remove(s, at - 1);
		at--;
		if (!spool_delete(s, at, NULL))
			spool_remove(s, at);
	} else {
		spool_remove(s, at);
	}
	spool_insert(s, loss);
	s->lost_batches += lost;
	return true;
}

/* ---- repair ---- */

/* A loss segment for the numbers first..last between two others; `like` names the stream. */
static bool
fill_hole(struct spool *s, const struct segment *like, uint64_t first_seq, uint64_t last_seq, int64_t from_ns,
          int64_t to_ns, struct err *err)
{
	struct segment loss = same_stream(like);

	loss.first_seq = first_seq;
	loss.last_seq = last_seq;
	loss.from_ns = from_ns < to_ns ? from_ns : to_ns;
	loss.to_ns = to_ns;
	if (!write_loss(s, &loss, err)) {
		segment_fini(&loss);
		return false;
	}
	s->lost_batches += segment_unacked(&loss, spool_cursor(s, loss.epoch));
	spool_insert(s, loss);
	return true;
}

/* Before segment `at`: what is missing since the one before it, or nothing. The numbers from 1 up to a stream's first segment
 * were acknowledged and have gone. */
static bool
fill_before(struct spool *s, size_t at, struct err *err)
{
	const struct segment *g = &s->segments[at], *before = at > 0 ? g - 1 : NULL;

	if (!before || before->epoch != g->epoch || before->last_seq + 1 >= g->first_seq)
		return true;
	return fill_hole(s, g, before->last_seq + 1, g->first_seq - 1, before->to_ns, g->from_ns, err);
}

/* The file gets its second name before it loses the first: killed in between, it is found again, and its sound beginning with it. A
 * file system without links loses that beginning then. */
static bool
name_aside(struct spool *s, const char *path, struct err *err)
{
	owned(mem) char *aside = mem_printf("%s.corrupt", path);

	(void)unlink(aside);
	if (link(path, aside) != 0 && rename(path, aside) != 0)
		return err_errno(err, ERR_RETRY, errno, "cannot rename %s", path);
	s->corrupt_segments++;
	return true;
}

static struct segment
segment_of_scan(const struct segment_scan *scan)
{
	struct segment g = {.epoch = scan->head.epoch,
	                    .first_seq = scan->head.first_seq,
	                    .last_seq = scan->last_seq,
	                    .bytes = (int64_t)scan->sound_bytes,
	                    .from_ns = scan->from_ns,
	                    .to_ns = scan->to_ns,
	                    .acked_wall_ns = -1,
	                    .loss = scan->loss,
	                    .flags = scan->head.flags,
	                    .node = mem_strdup(scan->head.node)};

	memcpy(g.boot_id, scan->head.boot_id, sizeof(g.boot_id));
	return g;
}

/* Reads a segment's file and keeps what is sound: a torn tail is cut off, anything else sets the file aside first. What has
 * no sound batch is not listed. */
static bool
load_segment(struct spool *s, const char *path, uint64_t epoch, uint64_t first_seq, struct err *err)
{
	in_place(buf) struct buf file = {0};
	struct segment_scan scan = {0};
	struct err why;
	bool sound;

	buf_init(&file, FILE_MAX);
	if (!buf_read_file(&file, path, err))
		return false;
	sound = segment_scan(file.data, file.len, &scan, &why);
	/* written by a newer exporter: it stays as it is, for that one */
	if (!sound && why.kind == ERR_RETRY) {
		s->foreign_segments++;
		return true;
	}
	sound = sound && scan.head.epoch == epoch && scan.head.first_seq == first_seq;
	if (!sound || scan.end == SEGMENT_BAD) {
		if (!name_aside(s, path, err))
			return false;
		if (sound && scan.frames > 0 && !file_write_atomic(path, file.data, scan.sound_bytes, 0600, err))
			return false;
	} else if (scan.end == SEGMENT_TORN) {
		if (scan.frames > 0 && truncate(path, (off_t)scan.sound_bytes) != 0)
			return err_errno(err, ERR_RETRY, errno, "cannot cut %s", path);
		s->torn_tails++;
	}
	if (sound && scan.frames > 0)
		spool_insert(s, segment_of_scan(&scan));
	else
		(void)unlink(path); /* a head alone, or known by its other name */
	return true;
}

/* Takes a segment out of the list without freeing it. */
static struct segment
detach(struct spool *s, size_t at)
{
	struct segment g = s->segments[at];

	s->segments[at].node = NULL;
	spool_remove(s, at);
	return g;
}

bool
spool_set_aside(struct spool *s, size_t at, struct err *err)
{
	owned(mem) char *path = segment_path(s, s->segments[at].epoch, s->segments[at].first_seq);
	size_t before = s->count;
	struct segment was;
	struct err why;
	uint64_t kept_to;
	bool ok = true;

	if (s->fd >= 0 && at == s->count - 1) {
		close(s->fd);
		s->fd = -1;
	}
	was = detach(s, at);
	/* a file that somebody deleted has nothing sound */
	if (!load_segment(s, path, was.epoch, was.first_seq, &why) && why.kind != ERR_MISSING) {
		spool_insert(s, was);
		return err_set(err, ERR_RETRY, "%s", why.text);
	}
	kept_to = s->count == before ? s->segments[at].last_seq : was.first_seq - 1;
	if (kept_to < was.last_seq)
		ok = fill_hole(s, &was, kept_to + 1, was.last_seq, was.from_ns, was.to_ns, err);
	segment_fini(&was);
	return ok;
}

/* ---- the directory ---- */

/* Sixteen digits, as NAME_FORMAT writes them. */
static bool
parse_hex(const char *at, uint64_t *ret)
{
	const char digits[] = "0123456789abcdef";

	*ret = 0;
	for (int i = 0; i < 16; i++) {
		const char *digit = at[i] ? strchr(digits, at[i]) : NULL;

		if (!digit)
			return false;
		*ret = *ret << 4 | (uint64_t)(digit - digits);
	}
	return *ret <= INT64_MAX;
}

static bool
parse_name(const char *name, uint64_t *ret_epoch, uint64_t *ret_seq)
{
	return strlen(name) == NAME_LEN && parse_hex(name, ret_epoch) && name[16] == '-' &&
	       parse_hex(name + 17, ret_seq) && strcmp(name + 33, ".seg") == 0 && *ret_seq >= 1;
}

/* What file_write_atomic leaves behind when it is interrupted: "<name>.XXXXXX". */
static bool
is_leftover(const char *name)
{
	const char *dot = strrchr(name, '.');

	return dot && strlen(dot) == 7 && (strncmp(name, "state.", 6) == 0 || strstr(name, ".seg.") != NULL);
}

static bool
load_name(struct spool *s, const char *name, struct err *err)
{
	owned(mem) char *path = mem_printf("%s/%s", s->options.dir, name);
	uint64_t epoch, first_seq;

	if (is_leftover(name))
		(void)unlink(path);
	else if (parse_name(name, &epoch, &first_seq))
		return load_segment(s, path, epoch, first_seq, err);
	return true;
}

/* A segment whose numbers the one before it has too was being given up when the process ended: the loss stands. */
static bool
drop_doubles(struct spool *s, struct err *err)
{
	for (size_t i = 1; i < s->count;) {
		const struct segment *g = &s->segments[i];

		if (g[-1].epoch != g->epoch || g[-1].last_seq < g->last_seq) {
			i++;
			continue;
		}
		if (!spool_delete(s, i, err))
			return false;
	}
	return true;
}

static int
name_order(const struct dirent **a, const struct dirent **b)
{
	return strcmp((*a)->d_name, (*b)->d_name);
}

bool
spool_load(struct spool *s, struct err *err)
{
	struct dirent **names = NULL;
	int count = scandir(s->options.dir, &names, NULL, name_order);
	bool ok = count >= 0;

	if (!ok)
		return err_errno(err, ERR_RETRY, errno, "cannot read the spool %s", s->options.dir);
	for (int i = 0; i < count; i++) {
		ok = ok && load_name(s, names[i]->d_name, err);
		free(names[i]);
	}
	free(names);
	if (!ok || !drop_doubles(s, err))
		return false;
	state_load(s);
	for (size_t i = 0; i < s->count; i++)
		if (!fill_before(s, i, err))
			return false;
	return true;
}
